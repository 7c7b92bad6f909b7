"""Loop-invariant code motion (LICM): compute invariant expressions of recursive functions before
the recursion.

    let %loop = fn (%i, %v) { if (less(%i, 9)) { %loop(add(%i, 1), add(%v, sort(%x))) } else .. };
    ->  let %invariant = sort(%x);
        let %loop = fn (%i, %v) { if (less(%i, 9)) { %loop(add(%i, 1), add(%v, %invariant)) } .. };

Loops are functions that call themselves, and functions that others call for each element of a list.
A graph does not say where a node is evaluated: what only the body of such a function uses is
evaluated in the body, each time, whether the program was written so or Inline put an argument
there. This pass moves it outside of all functions whose parameters it does not depend on.

What moves has no effect and cannot fail: its data are not refused (`OpDef.may_fail`), its shapes
are proved to fit. So it may be computed before a loop without iterations, and out of a branch that
no iteration takes, which costs it once at most. A loop inside of a loop moves as one region, but
not out of a branch, whose condition may be what ends it; the branch in which the outer function
calls itself runs in all iterations, except perhaps the last. Tuples and fills cost nothing and stay
where they are read.

Afterwards what moved is bound by a let, so that no later pass, and no kernel, moves it back into
the loop. Time is linear, times the depth of nested functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

from ekiden.ir.attrs import Attrs
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.prim import AnyDim, IntImm, PrimExpr
from ekiden.ir.prim import Var as Symbol
from ekiden.ir.prim_visitor import free_vars as prim_vars
from ekiden.ir.structural import structural_equal
from ekiden.ir.transform import Pass, PassContext
from ekiden.ir.type import TensorType, Type
from ekiden.relay.analysis.shape_constraints import has_conditions
from ekiden.relay.expr import Call, Constant, Function, If, Let, Match, Tuple, TupleGetItem, Var
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.lambda_lift import iter_tensor_types
from ekiden.relay.transform.language.let_chains import LetBinding, build_lets
from ekiden.relay.transform.language.scope_tree import (
    RelayScope,
    bodies,
    enclosing_scope,
    evaluation_order,
    find_scopes,
    is_atom,
    is_scoped,
    map_functions,
    operands,
    replace_children,
)
from ekiden.relay.visitor import pattern_vars, type_post_order
from ekiden.runtime.lazy_dataclass import dataclass

MAX_REGION_VISITS = 16
"""Maximum average visits per expression in the search for movable regions."""


def hoist_invariants(function: Function) -> Function:
    """Hoist the loop invariants of a function."""
    order = evaluation_order(function.body)
    # Loops are functions that call themselves, so without functions there are none.
    if not any(isinstance(e, Function) and not is_atom(e) for e in order):
        return function
    return function.with_fields(body=_Hoister(function, order).hoist_all())


@dataclass(slots=True)
class _HoistTarget:
    """Outermost scope in which an expression can be evaluated, and whether it may be moved
    there.
    """

    earliest: RelayScope
    is_movable: bool


@dataclass(slots=True)
class _ScopeInfo:
    """Scopes of a function's body with their enclosing loops."""

    root: RelayScope
    scope_of_expr: dict[RelayExpr, RelayScope] = field(default_factory=dict)
    enclosing_loop_body: dict[RelayScope, RelayScope | None] = field(default_factory=dict)
    """Body of the innermost recursive function around each scope, or None."""
    certain_loop_body: dict[RelayScope, RelayScope | None] = field(default_factory=dict)
    """Same, if every iteration but perhaps the last reaches the scope."""
    scope_of_var: dict[RelayExpr, RelayScope] = field(default_factory=dict)
    """Scope in which each variable is defined."""


class _Hoister:
    """Loop-invariant code motion within one global function."""

    def __init__(self, function: Function, order: list[RelayExpr]) -> None:
        self.order = order
        scopes = find_scopes(function.body)
        self.scopes = _ScopeInfo(scopes[0])
        self.scopes.scope_of_expr = {e: s for s in scopes for e in s.nodes}
        self._record_variable_scopes(function, scopes)
        self._record_loop_bodies(scopes)
        self.symbols = _symbol_scopes(self.scopes)
        self.hoist_targets: dict[RelayExpr, _HoistTarget] = {}
        self.aliases: dict[RelayExpr, RelayExpr] = {}
        """Hoisted value by let variable."""
        self.names: dict[RelayExpr, list[Var]] = {}
        """Let variables bound to each value."""
        for let in order:
            if isinstance(let, Let):
                self.names.setdefault(let.value, []).append(let.var)
        self.visits = 0

    def hoist_all(self) -> RelayExpr:
        """Return the body with invariants hoisted."""
        for expr in self.order:
            if is_scoped(expr):
                self.hoist_targets[expr] = self._find_target(expr)
                self._record_aliases(expr)
        moved = self._hoisted_exprs()
        return self._rebuild(moved) if moved else self.scopes.root.result

    # Scopes.

    def _record_variable_scopes(self, function: Function, scopes: list[RelayScope]) -> None:
        visible = self.scopes.scope_of_var
        visible.update(dict.fromkeys(function.params, scopes[0]))
        for scope in scopes:
            for opener, inner in scope.child_scopes.items():
                match opener:
                    case Let(var=var):
                        visible[var] = inner[0]
                    case Function(params=params):
                        visible.update(dict.fromkeys(params, inner[0]))
                    case Match(clauses=clauses):
                        for clause, body in zip(clauses, inner, strict=True):
                            visible.update(dict.fromkeys(pattern_vars(clause.lhs), body))

    def _record_loop_bodies(self, scopes: list[RelayScope]) -> None:
        again = self._recursive_scopes(scopes)
        body_of, certain = self.scopes.enclosing_loop_body, self.scopes.certain_loop_body
        body_of[scopes[0]] = certain[scopes[0]] = None
        for scope in scopes:  # outer before inner
            for opener, inner in scope.child_scopes.items():
                for body in inner:
                    is_function = isinstance(opener, Function) and bool(opener.params)
                    is_reached = isinstance(opener, Let) or body in again
                    body_of[body] = body if is_function else body_of[scope]
                    # A branch may not be reached, so what could loop in it must not move before it.
                    certain[body] = body if is_function else certain[scope] if is_reached else None

    def _recursive_scopes(self, scopes: list[RelayScope]) -> set[RelayScope]:
        """Return the scopes on the path from a function's body to its recursive calls."""
        bodies_of: dict[RelayExpr, RelayScope] = {}
        for scope in scopes:
            for opener, inner in scope.child_scopes.items():
                if isinstance(opener, Function):
                    bodies_of[opener] = inner[0]
        named = [e for e in self.order if isinstance(e, Let) and e.value in bodies_of]
        body_of = {e.var: bodies_of[e.value] for e in named}
        reaching: set[RelayScope] = set()
        for expr, scope in self.scopes.scope_of_expr.items():
            if isinstance(expr, Call) and isinstance(expr.op, Var) and expr.op in body_of:
                body = body_of[expr.op]
                current: RelayScope | None = scope
                while current is not None and current is not body and current.depth > body.depth:
                    # The scopes further out have been recorded with it.
                    if current in reaching:
                        break
                    reaching.add(current)
                    current = current.parent
        return reaching

    # Places.

    def _find_target(self, expr: RelayExpr) -> _HoistTarget:
        scope = self.scopes.scope_of_expr[expr]
        stays = _HoistTarget(scope, is_movable=False)
        # No function is around it, so it is evaluated once anyway.
        if self.scopes.enclosing_loop_body[scope] is None:
            return stays
        if bodies(expr):
            return self._region_target(expr, scope) or stays
        if not _is_movable(expr):
            return stays
        inside = [o for o in operands(expr) if not isinstance(o, Constant)]
        return self._target_after_operands(expr, scope, inside) or stays

    def _target_after_operands(
        self, expr: RelayExpr, scope: RelayScope, inside: list[RelayExpr]
    ) -> _HoistTarget | None:
        """Return the target after all operands of an expression; None where it uses a dimension
        that is bound elsewhere.
        """
        earliest = self.scopes.root
        for operand in inside:
            position = self._earliest_scope(operand)
            if position.depth > earliest.depth:
                earliest = position
        for symbol in _used_symbols(expr):
            named = self.symbols.get(symbol)
            # A dimension that is bound elsewhere has no value at the target.
            if named is None or enclosing_scope(scope, named.depth) is not named:
                return None
            if named.depth > earliest.depth:
                earliest = named
        return _HoistTarget(earliest, is_movable=True)

    def _earliest_scope(self, operand: RelayExpr) -> RelayScope:
        if operand in self.aliases:
            return self.hoist_targets[self.aliases[operand]].earliest
        if operand in self.hoist_targets:
            return self.hoist_targets[operand].earliest
        return self.scopes.scope_of_var.get(operand, self.scopes.root)

    def _record_aliases(self, value: RelayExpr) -> None:
        """Record the variables that alias a hoisted value, transitively, so that they resolve to
        it.
        """
        motion = self.hoist_targets.get(self.aliases.get(value, value))
        if motion is None or not motion.is_movable or _is_free(value):
            return
        unseen = [value]
        while unseen:
            named = unseen.pop()
            for var in self.names.get(named, ()):
                kind = var.checked_type_or_none()
                # A declared type that is less specific is what readers were typed with.
                if kind is None or structural_equal(kind, named.checked_type):
                    self.aliases[var] = self.aliases.get(named, named)
                    unseen.append(var)

    def _region_target(self, expr: RelayExpr, scope: RelayScope) -> _HoistTarget | None:
        """Return the target of a whole loop or branch; None where it is in tail position or has an
        effect.
        """
        # A recursive call in tail position must stay one, or the stack would grow.
        if isinstance(expr, Function) or scope.result is expr:
            return None
        inner, nodes = _region_contents(expr, scope)
        self.visits += len(nodes)
        # Deep nests would be visited once per level.
        if self.visits > MAX_REGION_VISITS * len(self.order):
            return None
        # Calls of functions within the region move along with them.
        functions = {e.var for e in nodes if isinstance(e, Let) and isinstance(e.value, Function)}
        if not all(_is_movable(e, functions) for e in nodes):
            return None
        read = {o: None for e in nodes for o in (*operands(e), *bodies(e))}
        for node in nodes:
            read.pop(node, None)
        motion = self._target_after_operands(
            expr, scope, [o for o in read if not self._is_region_local(o, inner)]
        )
        symbols = {s for e in nodes for s in _used_symbols(e)} if motion is not None else set()
        for named in (self.symbols.get(s) for s in symbols):
            if motion is None or named is None or named in inner:
                continue
            if named.depth > motion.earliest.depth:
                motion.earliest = named
        if motion is not None and any(isinstance(e, Function) for e in nodes):
            # A loop may not end, so it moves only where it would have been reached.
            motion.earliest = _outermost_target(
                scope, motion.earliest, self.scopes.certain_loop_body
            )
        return motion

    def _is_region_local(self, operand: RelayExpr, inner: set[RelayScope]) -> bool:
        """Return whether an operand that a region reads is defined inside it."""
        position = self.scopes.scope_of_expr.get(operand) or self.scopes.scope_of_var.get(operand)
        return position is None or position in inner

    # What moves.

    def _hoisted_exprs(self) -> dict[RelayExpr, RelayScope]:
        """Return the hoisted expressions with their target scopes."""
        targets: dict[RelayExpr, RelayScope] = {}
        for expr, motion in self.hoist_targets.items():
            scope = self.scopes.scope_of_expr[expr]
            target = (
                _outermost_target(scope, motion.earliest, self.scopes.enclosing_loop_body)
                if motion.is_movable
                else scope
            )
            if target is not scope:
                targets[expr] = target
        return targets

    def _name_hoisted(self, moved: Mapping[RelayExpr, RelayScope]) -> dict[RelayExpr, RelayExpr]:
        """Create variables for hoisted expressions that are read outside their target scope."""
        read: dict[RelayExpr, None] = {}
        for expr in self.order:
            target = None if _is_free(expr) else moved.get(expr)
            for operand in (*operands(expr), *bodies(expr)):
                # Values that are read only where they move to need no name.
                value = self.aliases.get(operand, operand)
                if value in moved and not _is_free(value) and moved[value] is not target:
                    read[value] = None
        names: dict[RelayExpr, RelayExpr] = {}
        for expr in read:
            variable = Var("invariant", span=expr.span)
            variable.set_checked_type(expr.checked_type)
            names[expr] = variable
        return names

    def _rebuild(self, moved: dict[RelayExpr, RelayScope]) -> RelayExpr:
        names = self._name_hoisted(moved)
        new: dict[RelayExpr, RelayExpr] = {}
        bindings: dict[RelayScope, list[LetBinding]] = {}
        for expr in self.order:
            scope = self.scopes.scope_of_expr.get(expr)
            children_: dict[RelayExpr, RelayExpr] = {}
            for operand in operands(expr):
                children_[operand] = self._resolve(operand, names, new)
            for body in scope.child_scopes.get(expr, ()) if scope is not None else ():
                result = self._resolve(body.result, names, new)
                children_[body.result] = build_lets(bindings.pop(body, []), result)
            if isinstance(expr, Let):  # its body may be its variable, which an alias replaces
                new[expr] = _rebuild_let(expr, children_[expr.value], children_[expr.body])
            else:
                new[expr] = replace_children(expr, children_) if children_ else expr
            if expr in names:
                variable = names[expr]
                assert isinstance(variable, Var)
                bindings.setdefault(moved[expr], []).append((variable, new[expr]))
        root = self.scopes.root
        return build_lets(bindings.pop(root, []), self._resolve(root.result, names, new))

    def _resolve(
        self,
        expr: RelayExpr,
        names: Mapping[RelayExpr, RelayExpr],
        new: Mapping[RelayExpr, RelayExpr],
    ) -> RelayExpr:
        """Return the rewritten form of an expression at a use."""
        value = self.aliases.get(expr, expr)
        return names[value] if value in names else new.get(expr, expr)


def _rebuild_let(let: Let, value: RelayExpr, body: RelayExpr) -> RelayExpr:
    """Rebuild a let with another value and body, and its old type."""
    if value is let.value and body is let.body:
        return let
    rebuilt = Let(let.var, value, body, let.span)
    if (kind := let.checked_type_or_none()) is not None:
        rebuilt.set_checked_type(kind)
    return rebuilt


def _outermost_target(
    scope: RelayScope, earliest: RelayScope, body_of: Mapping[RelayScope, RelayScope | None]
) -> RelayScope:
    """Return the outermost scope reachable by leaving loop bodies without passing the earliest
    admissible scope.
    """
    best = scope
    body = body_of[scope]
    # One function body at a time, as long as all operands have their values outside.
    while body is not None and body.parent is not None and body.parent.depth >= earliest.depth:
        best = body.parent
        body = body_of[best]
    return best


def _region_contents(expr: RelayExpr, scope: RelayScope) -> tuple[set[RelayScope], list[RelayExpr]]:
    """Return the scopes and expressions inside an expression, including those of a function
    value.
    """
    nodes = [expr]
    if isinstance(expr, Let) and isinstance(expr.value, Function):
        nodes.append(expr.value)
    stack = [inner for opener in nodes for inner in scope.child_scopes.get(opener, ())]
    inside: set[RelayScope] = set()
    while stack:
        body = stack.pop()
        inside.add(body)
        nodes.extend(body.nodes)
        stack.extend(s for opened in body.child_scopes.values() for s in opened)
    return inside, nodes


def _is_movable(expr: RelayExpr, functions: set[Var] | None = None) -> bool:
    """Return whether an expression can be speculated: it has no effect and cannot fail.

    That holds for operators, and in a region for calls of the functions that it binds.
    """
    match expr:
        case Call(op=Op() as op):
            row = op.definition
            # An operator that may raise must not run in a program whose loop has no iteration.
            return not (
                row.stateful or row.may_fail or row.is_fusion_barrier or has_conditions(expr)
            )
        case Call(op=Var() as name):
            return functions is not None and name in functions
        case Tuple() | TupleGetItem():
            return True
        case Match(complete=complete):
            return complete and functions is not None
        case Let() | If() | Function():
            return functions is not None
    return False


def _is_free(expr: RelayExpr) -> bool:
    """Return whether recomputing an expression is free: tuples and fills."""
    if isinstance(expr, Call) and isinstance(expr.op, Op):
        return expr.op.definition.fills is not None
    return isinstance(expr, Tuple)


def _symbol_scopes(scopes: _ScopeInfo) -> dict[Symbol, RelayScope]:
    """Map each symbolic dimension to the outermost scope in which a variable's type
    determines it.
    """
    outermost: dict[Symbol, RelayScope] = {}
    for variable, scope in scopes.scope_of_var.items():
        kind = variable.checked_type_or_none()
        for symbol in () if kind is None else _symbolic_dims(kind):
            if symbol not in outermost or scope.depth < outermost[symbol].depth:
                outermost[symbol] = scope
    return outermost


def _symbolic_dims(kind: Type) -> Iterator[Symbol]:
    for tensor in iter_tensor_types(kind):
        yield from (d for d in tensor.shape if isinstance(d, Symbol))


def _used_symbols(expr: RelayExpr) -> set[Symbol]:
    """Return the symbolic dimensions in an expression's type and attributes."""
    symbols: set[Symbol] = set()
    kind = expr.checked_type_or_none()
    for tensor in () if kind is None else type_post_order(kind):
        if isinstance(tensor, TensorType):
            symbols.update(_symbols_in(tensor.shape))
    if isinstance(expr, Call) and isinstance(expr.attrs, Attrs):
        symbols.update(_symbols_in(tuple(expr.attrs[name] for name in expr.attrs)))
    return symbols


def _symbols_in(values: tuple[object, ...]) -> Iterator[Symbol]:
    stack: list[object] = list(values)
    while stack:
        value = stack.pop()
        if isinstance(value, (tuple, list)):
            stack.extend(value)
        elif isinstance(value, PrimExpr) and not isinstance(value, (IntImm, AnyDim)):
            yield from prim_vars(value)


def HoistInvariants() -> Pass:  # noqa: N802
    """Return a pass that hoists loop invariants out of recursive functions."""

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Hoist invariants out of each function's loops."""
        return map_functions(module, hoist_invariants)

    return Pass("HoistInvariants", transform, 0, (InferType(),))
