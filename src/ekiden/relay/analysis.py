"""Questions about Relay programs: are they well formed, which operators do they use, which patterns
does a match miss.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ekiden.ir.expr import GlobalVar
from ekiden.ir.module import IRModule
from ekiden.ir.op import OPS, Op
from ekiden.relay.expr import Call, Expr, Function, Let, Match, Var
from ekiden.relay.visitor import ATOMS, CHILDREN, pattern_vars, post_order
from ekiden.runtime.errors import InternalError


@dataclass(slots=True, eq=False)
class _Scope:
    """Where the variables of one binder can be seen; `first` and `last` number the scopes inside
    it.
    """

    parent: _Scope | None = None
    depth: int = 0
    inner: list[_Scope] = field(default_factory=list)
    first: int = 0
    last: int = 0

    def open(self) -> _Scope:
        """A scope inside this one."""
        made = _Scope(self, self.depth + 1)
        self.inner.append(made)
        return made


def _parts(expr: Expr) -> tuple[list[Expr], list[tuple[tuple[Var, ...], Expr]]]:
    """What is evaluated in the scope of an expression, and what in scopes it opens: (variables,
    body).
    """
    match expr:
        case Let(var=var, value=value, body=body) if isinstance(value, Function):
            return [], [((var,), value), ((var,), body)]
        case Let(var=var, value=value, body=body):
            return [value], [((var,), body)]
        case Function(params=params, body=body):
            return [], [(params, body)]
        case Match(data=data, clauses=clauses):
            return [data], [(pattern_vars(c.lhs), c.rhs) for c in clauses]
        case _:
            return list(CHILDREN[type(expr)](expr)), []


def _common(a: _Scope | None, b: _Scope) -> _Scope:
    if a is None:
        return b
    while a is not b:
        if a.depth < b.depth:
            a, b = b, a
        assert a.parent is not None
        a = a.parent
    return a


def _number(top: _Scope) -> None:
    """Number scopes so that those inside another have numbers between its first and last."""
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


class _Scoping:
    """The scope of every expression below a root: the innermost one around all its uses."""

    def __init__(self, root: Expr) -> None:
        self.top = _Scope()
        self.where: dict[Expr, _Scope] = {root: self.top}
        self.binders: dict[Var, list[_Scope]] = {}
        self.twice: list[Var] = []
        self.order = [e for e in post_order(root, into_functions=True) if not isinstance(e, ATOMS)]
        for expr in reversed(self.order):
            self._place(expr)
        _number(self.top)

    def _place(self, expr: Expr) -> None:
        scope = self.where[expr]
        here, opened = _parts(expr)
        for part in here:
            self.where[part] = _common(self.where.get(part), scope)
        new: dict[Var, list[_Scope]] = {}
        for variables, body in opened:
            inner = scope.open()
            self.where[body] = _common(self.where.get(body), inner)
            for var in variables:
                new.setdefault(var, []).append(inner)
        self.twice += [v for v in new if v in self.binders]
        self.binders.update(new)

    def sees(self, expr: Expr, var: Var) -> bool:
        """Whether a variable used by an expression is bound around it."""
        at = self.where[expr].first
        return any(scope.first <= at <= scope.last for scope in self.binders.get(var, ()))


def find_errors(module: IRModule) -> list[str]:
    """Every way in which the Relay functions of a module are not well formed.

    Each variable is bound once in the module and used only where it is bound; each global name is a
    function of the module; each operator exists and has its number of arguments.
    """
    found: list[str] = []
    bound: set[Var] = set()
    for name, function in module.functions.items():
        if isinstance(function, Function):
            found += [f"@{name.name_hint}: {e}" for e in _errors_in(function, module, bound)]
    return found


def _errors_in(root: Expr, module: IRModule | None, bound: set[Var]) -> list[str]:
    scoping = _Scoping(root)
    found = [f"%{v.name_hint} is bound more than once" for v in scoping.twice]
    found += [f"%{v.name_hint} is bound in two functions" for v in scoping.binders if v in bound]
    bound.update(scoping.binders)
    for expr in scoping.order:
        here, opened = _parts(expr)
        for part in here:
            if isinstance(part, Var) and not scoping.sees(expr, part):
                found.append(f"%{part.name_hint} is used where it is not bound")
            elif (
                isinstance(part, GlobalVar) and module is not None and part not in module.functions
            ):
                found.append(f"@{part.name_hint} is not a function of the module")
        for variables, body in opened:
            if isinstance(body, Var) and body not in variables and not scoping.sees(expr, body):
                found.append(f"%{body.name_hint} is used where it is not bound")
        found += _arity_errors(expr)
    return found


def _arity_errors(expr: Expr) -> list[str]:
    if not isinstance(expr, Call) or not isinstance(expr.op, Op):
        return []
    definition = OPS.get(expr.op.name)
    if definition is None:
        return [f"{expr.op.name}: no such operator"]
    expected, got = len(definition.arguments), len(expr.args)
    return [] if expected == got else [f"{expr.op.name}: expected {expected} arguments, got {got}"]


def well_formed(value: IRModule | Expr) -> bool:
    """Whether a module or expression is well formed; free variables of a bare expression are
    allowed.
    """
    if isinstance(value, IRModule):
        return not find_errors(value)
    scoping = _Scoping(value)
    free = [v for v in scoping.where if isinstance(v, Var) and v not in scoping.binders]
    return not _errors_in(Function(tuple(free), value, None), None, set())


def verify(module: IRModule) -> None:
    """Raise InternalError with every error that `find_errors` finds."""
    found = find_errors(module)
    if found:
        raise InternalError("the module is not well formed: " + "; ".join(found[:10]))


def list_op_freqs(module: IRModule) -> dict[str, int]:
    """How many calls of each operator a module has, bodies of fused functions included."""
    count: Counter[str] = Counter()
    for function in module.functions.values():
        if isinstance(function, Function):
            calls = (e for e in post_order(function, into_functions=True) if isinstance(e, Call))
            count.update(c.op.name for c in calls if isinstance(c.op, Op))
    return dict(count)
