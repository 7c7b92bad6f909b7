"""Whether programs are well formed: names, scopes, arities, kinds of types, cases of matches."""

from __future__ import annotations

from dataclasses import field

from ekiden.ir.expr import GlobalVar
from ekiden.ir.module import IRModule
from ekiden.ir.op import OPS, Op
from ekiden.ir.type import TypeVar
from ekiden.relay.analysis.kind import kind_errors
from ekiden.relay.analysis.matches import pattern_text, unmatched_cases
from ekiden.relay.analysis.variables import free_type_vars
from ekiden.relay.expr import Call, Expr, Function, If, Let, Match, Var
from ekiden.relay.visitor import (
    ATOMS,
    CHILDREN,
    pattern_vars,
    post_order,
    type_post_order,
    types_in,
)
from ekiden.runtime.errors import InternalError
from ekiden.runtime.lazy_dataclass import dataclass


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
    block: _Scope | None = None
    """The innermost scope around this one (or itself) that is no body of a Let."""

    def open(self, is_block: bool) -> _Scope:
        """A scope inside this one."""
        made = _Scope(self, self.depth + 1)
        made.block = made if is_block else self.block
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
        case If(cond=cond, true_branch=true_branch, false_branch=false_branch):
            return [cond], [((), true_branch), ((), false_branch)]
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
        self.top.block = self.top
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
            inner = scope.open(is_block=not isinstance(expr, Let))
            self.where[body] = _common(self.where.get(body), inner)
            once = dict.fromkeys(variables, inner)
            self.twice += [v for v in once if variables.count(v) > 1]
            if not isinstance(expr, Let):  # the one variable of a Let sees itself and the body
                self.twice += [v for v in once if v in new]
            for var in once:
                new.setdefault(var, []).append(inner)
        self.twice += [v for v in new if v in self.binders]
        self.binders.update(new)

    def sees(self, expr: Expr, var: Var) -> bool:
        """Whether a variable used by an expression is bound around it."""
        at = self.where[expr].first
        return any(scope.first <= at <= scope.last for scope in self.binders.get(var, ()))


def find_errors(module: IRModule) -> list[str]:
    """Every way in which the Relay functions of a module are not well formed.

    Each variable is bound once in the module and used only where it is bound, type variables too;
    each global name is a function of the module; each operator exists and has its number of
    arguments; each type has a kind; each complete match has a clause for every value.
    """
    found: list[str] = []
    bound: set[Var] = set()
    for name, function in module.functions.items():
        if isinstance(function, Function):
            errors = [*_errors_in(function, module, bound), *_type_errors(function, module)]
            found += [f"@{name.name_hint}: {e}" for e in errors]
    return found


def match_error(match: Match, module: IRModule) -> str | None:
    """What a match that promises to be complete lacks."""
    missing = unmatched_cases(match, module) if match.complete else []
    if not missing:
        return None
    shown = [pattern_text(p) for p in missing[:3]] + ["..."] * (len(missing) > 3)
    return f"match: expected a clause for every value, got none for {', '.join(shown)}"


def _type_errors(root: Function, module: IRModule) -> list[str]:
    """Ill-kinded types, type variables out of scope, and values that no clause fits."""
    exprs = post_order(root, into_functions=True)
    found = kind_errors(exprs, module)
    if any(isinstance(t, TypeVar) for e in exprs for w in types_in(e) for t in type_post_order(w)):
        unbound = free_type_vars(root)
        found += [f"type variable {v.name_hint} is used where it is not bound" for v in unbound]
    errors = (match_error(e, module) for e in exprs if isinstance(e, Match))
    return found + [e for e in errors if e is not None]


def _errors_in(root: Expr, module: IRModule | None, bound: set[Var]) -> list[str]:
    scoping = _Scoping(root)
    found = [f"%{v.name_hint} is bound more than once" for v in scoping.twice]
    found += [f"%{v.name_hint} is bound in two functions" for v in scoping.binders if v in bound]
    bound.update(scoping.binders)
    for expr in scoping.order:
        here, opened = _parts(expr)
        inside = [b for variables, b in opened if b not in variables]
        for part in (*here, *inside):
            if isinstance(part, Var) and not scoping.sees(expr, part):
                found.append(f"%{part.name_hint} is used where it is not bound")
            elif (
                isinstance(part, GlobalVar) and module is not None and part not in module.functions
            ):
                found.append(f"@{part.name_hint} is not a function of the module")
        found += _arity_errors(expr)
    return found


def _arity_errors(expr: Expr) -> list[str]:
    if not isinstance(expr, Call) or not isinstance(expr.op, Op):
        return []
    definition = OPS.get(expr.op.name)
    if definition is None:
        return [f"{expr.op.name}: no such operator"]
    expected, got = len(definition.arguments), len(expr.args)
    if expected - definition.optional <= got <= expected:
        return []
    return [f"{expr.op.name}: expected {expected} arguments, got {got}"]


def well_formed(value: IRModule | Expr) -> bool:
    """Whether a module or expression is well formed; free variables of a bare expression are
    allowed.
    """
    if isinstance(value, IRModule):
        return not find_errors(value)
    scoping = _Scoping(value)
    free = [v for v in scoping.where if isinstance(v, Var) and v not in scoping.binders]
    return not _errors_in(Function(tuple(free), value, None), None, set())


def check_basic_block_normal_form(expr: Expr) -> bool:
    """Whether every value that is used in two blocks is bound by a Let: a block is a function's
    body, a branch of an If, or a clause of a Match. `ToBasicBlockNormalForm` makes it so.
    """
    scoping = _Scoping(expr)
    for at in scoping.order:
        block = scoping.where[at].block
        here, opened = _parts(at)
        for part in here:
            if not isinstance(part, ATOMS) and scoping.where[part].block is not block:
                return False
        bodies = [body for _, body in opened if not isinstance(body, ATOMS)]
        if any(scoping.where[body].depth <= scoping.where[at].depth for body in bodies):
            return False
    return True


def verify(module: IRModule) -> None:
    """Raise InternalError with every error that `find_errors` finds."""
    found = find_errors(module)
    if found:
        raise InternalError("the module is not well formed: " + "; ".join(found[:10]))
