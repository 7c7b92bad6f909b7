"""Traversals of Relay expressions and types without recursion, so that a chain of 100,000 nodes
needs no deeper stack than one of ten.

`CHILDREN` says what the children of each node are (binders included, in the order of evaluation)
and `REBUILD` makes a node from new children; everything else here is made from these two tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import is_

from ekiden.ir.expr import GlobalVar, RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.type import (
    FuncType,
    IncompleteType,
    RelayRefType,
    TensorType,
    TupleType,
    Type,
    TypeCall,
    TypeRelation,
    TypeVar,
)
from ekiden.relay.expr import (
    Call,
    Clause,
    Constant,
    Constructor,
    Expr,
    Function,
    If,
    Let,
    Match,
    Pattern,
    PatternConstructor,
    PatternTuple,
    PatternVar,
    RefCreate,
    RefRead,
    RefWrite,
    Tuple,
    TupleGetItem,
    TupleWrapper,
    Var,
)

ATOM_CLASSES = (Var, GlobalVar, Constant, Op, Constructor)
"""Expression classes without children."""

_NO_CHILDREN: tuple[Expr, ...] = ()


def pattern_vars(pattern: Pattern) -> tuple[Var, ...]:
    """Return the variables of a pattern, left to right."""
    variables: list[Var] = []
    stack = [pattern]
    while stack:
        current = stack.pop()
        if isinstance(current, PatternVar):
            variables.append(current.var)
        elif isinstance(current, (PatternConstructor, PatternTuple)):
            stack.extend(reversed(current.patterns))
    return tuple(variables)


def map_pattern(pattern: Pattern, new: Mapping[Expr, Expr]) -> Pattern:
    """Replace the variables of a pattern; return itself if none is replaced."""
    if isinstance(pattern, PatternVar):
        replacement = new.get(pattern.var, pattern.var)
        return pattern.with_fields(var=replacement)
    if isinstance(pattern, (PatternConstructor, PatternTuple)):
        inner = tuple(map_pattern(p, new) for p in pattern.patterns)
        same = all(a is b for a, b in zip(inner, pattern.patterns, strict=True))
        # The same object where nothing changes, as passes compare by identity.
        return pattern if same else pattern.with_fields(patterns=inner)
    return pattern


def _match_children(m: Match) -> tuple[Expr, ...]:
    subexprs: list[Expr] = [m.data]
    for clause in m.clauses:
        subexprs.extend(pattern_vars(clause.lhs))
        subexprs.append(clause.rhs)
    return tuple(subexprs)


# fmt: off
CHILD_GETTERS: dict[type, Callable[..., tuple[Expr, ...]]] = {
    Var:          lambda e: _NO_CHILDREN,
    GlobalVar:    lambda e: _NO_CHILDREN,
    Constant:     lambda e: _NO_CHILDREN,
    Op:           lambda e: _NO_CHILDREN,
    Constructor:  lambda e: _NO_CHILDREN,
    Call:         lambda e: (e.op, *e.args),
    Tuple:        lambda e: e.fields,
    TupleGetItem: lambda e: (e.tuple_value,),
    Let:          lambda e: (e.var, e.value, e.body),
    If:           lambda e: (e.cond, e.true_branch, e.false_branch),
    Function:     lambda e: (*e.params, e.body),
    RefCreate:    lambda e: (e.value,),
    RefRead:      lambda e: (e.ref,),
    RefWrite:     lambda e: (e.ref, e.value),
    Match:        _match_children,
}
"""Child getters by node class."""
# fmt: on


def _rebuild_match(m: Match, c: Sequence[Expr]) -> Match:
    new = dict(zip(_match_children(m), c, strict=True))
    clauses = tuple(Clause(map_pattern(clause.lhs, new), new[clause.rhs]) for clause in m.clauses)
    return Match(c[0], clauses, m.complete, span=m.span)


# fmt: off
REBUILDERS: dict[type, Callable[..., Expr]] = {
    Call:         lambda e, c: Call(c[0], tuple(c[1:]), e.attrs, e.type_args, span=e.span),
    Tuple:        lambda e, c: Tuple(tuple(c), span=e.span),
    TupleGetItem: lambda e, c: TupleGetItem(c[0], e.index, span=e.span),
    Let:          lambda e, c: Let(c[0], c[1], c[2], span=e.span),
    If:           lambda e, c: If(c[0], c[1], c[2], span=e.span),
    Function:     lambda e, c: Function(
                      tuple(c[:-1]), c[-1], e.ret_type, e.type_params, e.attrs, span=e.span),
    RefCreate:    lambda e, c: RefCreate(c[0], span=e.span),
    RefRead:      lambda e, c: RefRead(c[0], span=e.span),
    RefWrite:     lambda e, c: RefWrite(c[0], c[1], span=e.span),
    Match:        _rebuild_match,
}
"""Functions (node, new children) -> new untyped node with the same span, by node class."""
# fmt: on


def children(expr: Expr) -> tuple[Expr, ...]:
    """Return the direct subexpressions, binders included.

    Raises:
        KeyError: The node is not Relay's (a PrimFunc).
    """
    return CHILD_GETTERS[type(expr)](expr)


def rebuild(expr: Expr, new_children: Sequence[Expr]) -> Expr:
    """Rebuild an expression with new children; return it unchanged if all are identical."""
    old = CHILD_GETTERS[type(expr)](expr)
    # The same object keeps its type, and passes that changed nothing are seen to have done so.
    if all(map(is_, old, new_children)):
        return expr
    return REBUILDERS[type(expr)](expr, new_children)


def post_order(root: Expr, into_functions: bool = False) -> list[Expr]:
    """Return every expression below `root` in post-order, shared ones once.

    Binders (Var) come where they bind. A function below the root is an atom unless
    `into_functions`; a root that is a function is always entered.
    """
    order: list[Expr] = []
    done: dict[Expr, bool] = {}
    stack: list[Expr] = [root]
    while stack:
        expr = stack[-1]
        state = done.get(expr)
        # The first visit pushes the children; the second, when they are done, emits the node.
        if state is None:
            if type(expr) is not Function or into_functions or expr is root:
                # Marked as open before the children are pushed: met again on the way up, it is
                # done.
                below = CHILD_GETTERS[type(expr)](expr)
                if below:
                    done[expr] = False
                    # Reversed, so that the first child is visited first.
                    stack.extend([c for c in reversed(below) if c not in done])
                    continue
        elif state:
            stack.pop()
            continue
        done[expr] = True
        order.append(expr)
        stack.pop()
    return order


class ExprMutator:
    """Bottom-up mutator that rebuilds each shared node once, preserving unchanged nodes and types.

    Override `rewrite(old, new)`, called for every node with the node rebuilt from rewritten
    children; or, per node class, `rewrite_call(old, new_children)`, `rewrite_let`,
    `rewrite_tuple_get_item`, ... which replace the rebuilding (and then `rewrite` is not called).
    Binders are children too: rewriting a Var renames it where it is bound and where it is used.
    """

    into_functions = True
    """Whether function bodies below the root are rewritten."""

    def __init__(self) -> None:
        self.memo: dict[Expr, Expr] = {}
        # Looked up once for each mutator, not for each node.
        self._own = {
            kind: getattr(self, f"rewrite_{name}")
            for kind, name in _REWRITE_METHODS.items()
            if hasattr(self, f"rewrite_{name}")
        }

    def rewrite(self, old: Expr, new: Expr) -> Expr:
        """Return the replacement of `old`, given `new` with rewritten children."""
        return new

    def visit(self, root: Expr) -> Expr:
        """Return the rewritten expression."""
        memo = self.memo
        for expr in post_order_after(root, memo, self.into_functions):
            new = [memo[c] for c in self._unvisited_children(expr, root)]
            handler = self._own.get(type(expr))
            memo[expr] = (
                handler(expr, new)
                if handler is not None
                else self.rewrite(expr, rebuild(expr, new) if new else expr)
            )
        return memo[root]

    def _unvisited_children(self, expr: Expr, root: Expr) -> tuple[Expr, ...]:
        if type(expr) is Function and not self.into_functions and expr is not root:
            return ()
        return CHILD_GETTERS[type(expr)](expr)


_REWRITE_METHODS: dict[type, str] = {
    Var: "var",
    GlobalVar: "global_var",
    Constant: "constant",
    Op: "op",
    Constructor: "constructor",
    Call: "call",
    Tuple: "tuple",
    TupleGetItem: "tuple_get_item",
    Let: "let",
    If: "if",
    Function: "function",
    RefCreate: "ref_create",
    RefRead: "ref_read",
    RefWrite: "ref_write",
    Match: "match",
}


def post_order_after(
    root: Expr, known: Mapping[Expr, object], into_functions: bool = True
) -> list[Expr]:
    """Return `post_order` without the expressions in `known` and those reachable only from them."""
    if not known:
        return post_order(root, into_functions)
    order: list[Expr] = []
    done: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(root, False)]
    while stack:
        expr, expanded = stack.pop()
        if expanded:
            order.append(expr)
        elif expr not in done and expr not in known:
            done.add(expr)
            stack.append((expr, True))
            if type(expr) is not Function or into_functions or expr is root:
                stack.extend((c, False) for c in reversed(CHILD_GETTERS[type(expr)](expr)))
    return order


class _Substituter(ExprMutator):
    """Mutator that substitutes variables."""

    def __init__(self, mapping: Mapping[Var, Expr]) -> None:
        super().__init__()
        # A variable that is replaced counts as rewritten already.
        self.memo.update(mapping.items())


def bind(expr: Expr, mapping: Mapping[Var, Expr]) -> Expr:
    """Substitute variables in an expression (TVM's `relay.bind`).

    In a function, parameters that are replaced are removed.
    """
    if not isinstance(expr, Function):
        return _Substituter(mapping).visit(expr)
    body = _Substituter(mapping).visit(expr.body)
    # A bound parameter is no parameter any more.
    params = tuple(p for p in expr.params if p not in mapping)
    return expr.with_fields(
        params=params if len(params) < len(expr.params) else expr.params, body=body
    )


def fresh_copy(expr: Expr, mapping: Mapping[Var, Expr] | None = None) -> Expr:
    """Copy an expression with fresh bound variables (alpha renaming).

    `mapping` replaces free variables on the way. Expressions without bound variables are shared.
    """
    new: dict[Var, Expr] = {}
    for variable in bound_vars(expr):
        new[variable] = Var(variable.name_hint, variable.type_annotation, span=variable.span)
        checked = variable.checked_type_or_none()
        if checked is not None:
            # Types of the copy need no second inference.
            new[variable].set_checked_type(checked)
    return _Substituter({**new, **(mapping or {})}).visit(expr)


def bound_vars(expr: Expr) -> list[Var]:
    """Return all variables bound in `expr`, in order."""
    met = post_order(expr, into_functions=True)
    bound = {v for e in met for v in vars_bound_by(e)}
    return [e for e in met if isinstance(e, Var) and e in bound]


def vars_bound_by(expr: Expr) -> Sequence[Var]:
    """Return the variables that an expression itself binds."""
    match expr:
        case Let(var=var):
            return (var,)
        case Function(params=params):
            return params
        case Match(clauses=clauses):
            return [v for c in clauses for v in pattern_vars(c.lhs)]
        case _:
            return ()


def all_vars(expr: Expr) -> list[Var]:
    """Return all variables bound or used in `expr`, in order."""
    return [e for e in post_order(expr, into_functions=True) if isinstance(e, Var)]


def free_vars(expr: Expr) -> list[Var]:
    """Return the free variables of a well-formed expression, in order."""
    used: list[Var] = []
    bound: set[Var] = set()
    for e in post_order(expr, into_functions=True):
        if isinstance(e, Var):
            used.append(e)
        else:
            bound.update(vars_bound_by(e))
    # At the end, as a shared variable may be met before its binder in this order.
    return [v for v in used if v not in bound]


def close_over_free_vars(expr: object) -> Function:
    """Close an expression over its free variables: `fn (free variables) { expr }`.

    Raises:
        TypeError: The value is no expression.
    """
    if isinstance(expr, TupleWrapper):
        expr = expr.astuple()
    if not isinstance(expr, RelayExpr):
        raise TypeError(f"module: expected a function or an expression, got {expr!r}")
    return Function(tuple(dict.fromkeys(free_vars(expr))), expr)


IRModule.wrapper = staticmethod(close_over_free_vars)


def type_children(kind: Type) -> tuple[Type, ...]:
    """Return the component types of a type."""
    match kind:
        case TupleType(fields=fields):
            return fields
        case FuncType(arg_types=args, ret_type=ret, type_constraints=held):
            return (*args, ret, *held)
        case TypeRelation(args=args):
            return args
        case TypeCall(func=func, args=args):
            return (func, *args)
        case RelayRefType(value=value):
            return (value,)
        case _:
            return ()


def type_post_order(kind: Type) -> list[Type]:
    """Return a type and its components in post-order, each once."""
    order: list[Type] = []
    done: set[Type] = set()
    stack: list[tuple[Type, bool]] = [(kind, False)]
    while stack:
        position, expanded = stack.pop()
        if expanded:
            order.append(position)
        elif position not in done:
            done.add(position)
            stack.append((position, True))
            stack.extend((c, False) for c in reversed(type_children(position)))
    return order


def map_type(kind: Type, replace: Callable[[Type], Type]) -> Type:
    """Rebuild a type bottom-up by `replace`.

    It is the type itself when nothing changes.
    """
    # Most types are tensors: no walk for them.
    if type(kind) is TensorType:
        return replace(kind)
    new: dict[Type, Type] = {}
    for node in type_post_order(kind):
        new[node] = replace(_rebuild_type(node, new))
    return new[kind]


def _map_component_types(kinds: tuple[Type, ...], new: Mapping[Type, Type]) -> tuple[Type, ...]:
    mapped = tuple(new[k] for k in kinds)
    return kinds if all(map(is_, mapped, kinds)) else mapped


def _rebuild_type(kind: Type, new: Mapping[Type, Type]) -> Type:
    match kind:
        case TupleType(fields=fields):
            return kind.with_fields(fields=_map_component_types(fields, new))
        case FuncType(arg_types=args, ret_type=ret):
            plain = kind.with_fields(arg_types=_map_component_types(args, new), ret_type=new[ret])
            held = tuple(r for c in kind.type_constraints if isinstance(r := new[c], TypeRelation))
            return (
                plain if held == kind.type_constraints else plain.with_fields(type_constraints=held)
            )
        case TypeRelation(args=args):
            return kind.with_fields(args=_map_component_types(args, new))
        case TypeCall(func=func, args=args):
            return kind.with_fields(func=new[func], args=_map_component_types(args, new))
        case RelayRefType(value=value):
            return kind.with_fields(value=new[value])
        case _:
            return kind


def substitute_type(kind: Type, mapping: Mapping[TypeVar, Type]) -> Type:
    """Substitute type variables in a type."""
    return map_type(kind, lambda t: mapping.get(t, t) if isinstance(t, TypeVar) else t)


def has_holes(kind: Type) -> bool:
    """Return whether a type contains an IncompleteType."""
    if type(kind) is TensorType:
        return False
    return any(isinstance(t, IncompleteType) for t in type_post_order(kind))


def annotated_types(expr: Expr) -> tuple[Type, ...]:
    """Return the type annotations and type arguments written at a node."""
    match expr:
        case Var(type_annotation=kind):
            return () if kind is None else (kind,)
        case Call(type_args=args):
            return args
        case Function(ret_type=ret):
            return () if ret is None else (ret,)
        case _:
            return ()


__all__ = [
    "ATOM_CLASSES",
    "CHILD_GETTERS",
    "REBUILDERS",
    "ExprMutator",
    "RelayExpr",
    "all_vars",
    "annotated_types",
    "bind",
    "bound_vars",
    "children",
    "close_over_free_vars",
    "free_vars",
    "has_holes",
    "map_pattern",
    "map_type",
    "pattern_vars",
    "post_order",
    "post_order_after",
    "rebuild",
    "substitute_type",
    "type_children",
    "type_post_order",
    "vars_bound_by",
]
