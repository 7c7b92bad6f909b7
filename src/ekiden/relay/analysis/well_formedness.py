"""Well-formedness checks: unique names, scopes, arities, kinds, exhaustive matches."""

from __future__ import annotations

from dataclasses import field

from ekiden.ir.expr import GlobalVar
from ekiden.ir.module import IRModule
from ekiden.ir.op import OPS, Op
from ekiden.ir.type import TypeVar
from ekiden.relay.analysis.kind_checking import kind_errors
from ekiden.relay.analysis.match_exhaustion import pattern_text, unmatched_cases
from ekiden.relay.analysis.type_variables import free_type_vars
from ekiden.relay.expr import Call, Expr, Function, If, Let, Match, Var
from ekiden.relay.visitor import (
    ATOM_CLASSES,
    CHILD_GETTERS,
    annotated_types,
    pattern_vars,
    post_order,
    type_post_order,
)
from ekiden.runtime.errors import InternalError
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(slots=True, eq=False)
class _BinderScope:
    """Scope of one binder; `first` and `last` number its nested scopes."""

    parent: _BinderScope | None = None
    depth: int = 0
    inner: list[_BinderScope] = field(default_factory=list)
    first: int = 0
    last: int = 0
    block: _BinderScope | None = None
    """Innermost enclosing scope (or itself) that is not a let body."""

    def open_child(self, is_block: bool) -> _BinderScope:
        """Open a child scope."""
        opened = _BinderScope(self, self.depth + 1)
        opened.block = opened if is_block else self.block
        self.inner.append(opened)
        return opened


def _subscopes(expr: Expr) -> tuple[list[Expr], list[tuple[tuple[Var, ...], Expr]]]:
    """Return an expression's children in its own scope, and those in scopes that it opens.

    The latter are pairs (variables, body).
    """
    match expr:
        case Let(var=var, value=value, body=body) if isinstance(value, Function):
            return [], [((var,), value), ((var,), body)]
        case Let(var=var, value=value, body=body):
            return [value], [((var,), body)]
        case Function(params=params, body=body):
            return [], [(params, body)]
        case If(cond=cond, true_branch=true_branch, false_branch=false_branch):
            return [cond], [((), true_branch), ((), false_branch)]
        case Match(data=data, clauses=clauses):
            return [data], [(pattern_vars(c.lhs), c.rhs) for c in clauses]
        case _:
            return list(CHILD_GETTERS[type(expr)](expr)), []


def _lowest_common_ancestor(a: _BinderScope | None, b: _BinderScope) -> _BinderScope:
    if a is None:
        return b
    while a is not b:
        if a.depth < b.depth:
            a, b = b, a
        assert a.parent is not None
        # The deeper one steps out until both are one scope.
        a = a.parent
    return a


def _number_scopes(top: _BinderScope) -> None:
    """Number scopes in preorder, so that ancestry is an interval test."""
    count = 0
    stack = [(top, False)]
    while stack:
        scope, done = stack.pop()
        if done:
            scope.last = count
            continue
        count += 1
        scope.first = count
        stack.append((scope, True))
        stack.extend((s, False) for s in scope.inner)


class _ScopeAssignment:
    """Assignment of every expression to the innermost scope around all its uses."""

    def __init__(self, root: Expr) -> None:
        self.root_scope = _BinderScope()
        self.root_scope.block = self.root_scope
        self.scope_by_expr: dict[Expr, _BinderScope] = {root: self.root_scope}
        self.binders: dict[Var, list[_BinderScope]] = {}
        self.duplicate_vars: list[Var] = []
        self.order = [
            e for e in post_order(root, into_functions=True) if not isinstance(e, ATOM_CLASSES)
        ]
        # Users come before their operands, so that the scope of an operand is known from all its
        # uses.
        for expr in reversed(self.order):
            self._assign_scope(expr)
        _number_scopes(self.root_scope)

    def _assign_scope(self, expr: Expr) -> None:
        scope = self.scope_by_expr[expr]
        in_scope, opened = _subscopes(expr)
        for subexpression in in_scope:
            self.scope_by_expr[subexpression] = _lowest_common_ancestor(
                self.scope_by_expr.get(subexpression), scope
            )
        new: dict[Var, list[_BinderScope]] = {}
        for variables, body in opened:
            inner = scope.open_child(is_block=not isinstance(expr, Let))
            self.scope_by_expr[body] = _lowest_common_ancestor(self.scope_by_expr.get(body), inner)
            once = dict.fromkeys(variables, inner)
            # A parameter list that names one variable twice.
            self.duplicate_vars += [v for v in once if variables.count(v) > 1]
            if not isinstance(expr, Let):  # the one variable of a Let sees itself and the body
                self.duplicate_vars += [v for v in once if v in new]
            for var in once:
                new.setdefault(var, []).append(inner)
        # A variable bound by two binders would be ambiguous after inlining.
        self.duplicate_vars += [v for v in new if v in self.binders]
        self.binders.update(new)

    def is_visible(self, expr: Expr, var: Var) -> bool:
        """Return whether a variable is bound in an enclosing scope of the expression."""
        position = self.scope_by_expr[expr].first
        # Scopes are numbered in preorder: those inside another have numbers in its interval.
        return any(scope.first <= position <= scope.last for scope in self.binders.get(var, ()))


def find_errors(module: IRModule) -> list[str]:
    """Return all well-formedness errors of a module's Relay functions.

    Each variable is bound once in the module and used only where it is bound, type variables too;
    each global name is a function of the module; each operator exists and has its number of
    arguments; each type has a kind; each complete match has a clause for every value.
    """
    problems: list[str] = []
    bound: set[Var] = set()
    for name, function in module.functions.items():
        if isinstance(function, Function):
            errors = [
                *_find_expr_errors(function, module, bound),
                *_find_type_errors(function, module),
            ]
            problems += [f"@{name.name_hint}: {e}" for e in errors]
    return problems


def find_match_error(match: Match, module: IRModule) -> str | None:
    """Return the error of an inexhaustive match declared complete, or None."""
    missing = unmatched_cases(match, module) if match.complete else []
    if not missing:
        return None
    # A type of many constructors may have more missing cases than a message should list.
    shown = [pattern_text(p) for p in missing[:3]] + ["..."] * (len(missing) > 3)
    return f"match: expected a clause for every value, got none for {', '.join(shown)}"


def _find_type_errors(root: Function, module: IRModule) -> list[str]:
    """Return ill-kinded types, unbound type variables and inexhaustive matches."""
    exprs = post_order(root, into_functions=True)
    problems = kind_errors(exprs, module)
    if any(
        isinstance(t, TypeVar)
        for e in exprs
        for w in annotated_types(e)
        for t in type_post_order(w)
    ):
        unbound = free_type_vars(root)
        problems += [f"type variable {v.name_hint} is used where it is not bound" for v in unbound]
    errors = (find_match_error(e, module) for e in exprs if isinstance(e, Match))
    return problems + [e for e in errors if e is not None]


def _find_expr_errors(root: Expr, module: IRModule | None, bound: set[Var]) -> list[str]:
    scoping = _ScopeAssignment(root)
    problems = [f"%{v.name_hint} is bound more than once" for v in scoping.duplicate_vars]
    problems += [f"%{v.name_hint} is bound in two functions" for v in scoping.binders if v in bound]
    bound.update(scoping.binders)
    for expr in scoping.order:
        in_scope, opened = _subscopes(expr)
        inside = [b for variables, b in opened if b not in variables]
        for subexpression in (*in_scope, *inside):
            if isinstance(subexpression, Var) and not scoping.is_visible(expr, subexpression):
                problems.append(f"%{subexpression.name_hint} is used where it is not bound")
            elif (
                isinstance(subexpression, GlobalVar)
                and module is not None
                and subexpression not in module.functions
            ):
                problems.append(f"@{subexpression.name_hint} is not a function of the module")
        problems += _find_arity_errors(expr)
    return problems


def _find_arity_errors(expr: Expr) -> list[str]:
    if not isinstance(expr, Call) or not isinstance(expr.op, Op):
        return []
    definition = OPS.get(expr.op.name)
    if definition is None:
        return [f"{expr.op.name}: no such operator"]
    expected, actual = len(definition.arguments), len(expr.args)
    if expected - definition.optional <= actual <= expected:
        return []
    return [f"{expr.op.name}: expected {expected} arguments, got {actual}"]


def well_formed(value: IRModule | Expr) -> bool:
    """Return whether a module or expression is well formed.

    Free variables of a bare expression are allowed.
    """
    if isinstance(value, IRModule):
        return not find_errors(value)
    scoping = _ScopeAssignment(value)
    free = [v for v in scoping.scope_by_expr if isinstance(v, Var) and v not in scoping.binders]
    return not _find_expr_errors(Function(tuple(free), value, None), None, set())


def check_basic_block_normal_form(expr: Expr) -> bool:
    """Return whether every value shared between blocks is let-bound.

    A block is a function's body, a branch of an If, or a clause of a Match.
    `ToBasicBlockNormalForm` establishes this form.
    """
    scoping = _ScopeAssignment(expr)
    for position in scoping.order:
        block = scoping.scope_by_expr[position].block
        in_scope, opened = _subscopes(position)
        for subexpression in in_scope:
            if (
                not isinstance(subexpression, ATOM_CLASSES)
                and scoping.scope_by_expr[subexpression].block is not block
            ):
                return False
        bodies = [body for _, body in opened if not isinstance(body, ATOM_CLASSES)]
        if any(
            scoping.scope_by_expr[body].depth <= scoping.scope_by_expr[position].depth
            for body in bodies
        ):
            return False
    return True


def verify(module: IRModule) -> None:
    """Raise InternalError listing every well-formedness error of a module."""
    problems = find_errors(module)
    if problems:
        raise InternalError("the module is not well formed: " + "; ".join(problems[:10]))
