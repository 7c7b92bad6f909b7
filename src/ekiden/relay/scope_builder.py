"""Building nested lets and choices from Python, statement by statement.

sb = ScopeBuilder()
with sb.if_scope(cond):
    t = sb.let("t", relay.add(x, one))
    sb.ret(t)
with sb.else_scope():
    sb.ret(y)
expr = sb.get()
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field

from ekiden.ir.type import FuncType, Type
from ekiden.relay.expr import Expr, Function, If, Let, Var, var
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(slots=True)
class _Scope:
    """The bindings made so far and the result, or a choice that still lacks its other side."""

    bindings: list[tuple[Var, Expr]] = field(default_factory=list)
    result: Expr | None = None
    pending: tuple[Expr, Expr] | None = None

    def close(self) -> Expr:
        """Return the scope as one expression.

        Raises:
            RuntimeError: It has no result.
        """
        if self.pending is not None:
            raise RuntimeError("scope: an if_scope must be followed by an else_scope")
        if self.result is None:
            raise RuntimeError("scope: ret was not called")
        expr = self.result
        for name, value in reversed(self.bindings):
            expr = Let(name, value, expr)
        return expr


class ScopeBuilder:
    """Collects bindings; `get` gives the expression (TVM's face)."""

    def __init__(self) -> None:
        self._scopes = [_Scope()]

    def let(self, var: Var | str | tuple[str, Type | str], value: Expr) -> Var:
        """Bind a value to a variable, a new one by name, or a new one by name and type."""
        bound = _variable(var)
        self._scopes[-1].bindings.append((bound, value))
        return bound

    @contextmanager
    def if_scope(self, cond: Expr) -> Iterator[None]:
        """Open a `with` block whose result is that of a choice if `cond` holds.

        An else_scope follows.
        """
        self._refuse_result()
        branch = yield from self._inner()
        self._scopes[-1].pending = (cond, branch)

    @contextmanager
    def else_scope(self) -> Iterator[None]:
        """Open a `with` block whose result is that of the choice begun before if its test does not
        hold.

        Raises:
            RuntimeError: No `if_scope` was before it.
        """
        pending = self._scopes[-1].pending
        if pending is None:
            raise RuntimeError("scope: an else_scope must follow an if_scope")
        branch = yield from self._inner()
        self._scopes[-1].pending = None
        self._scopes[-1].result = If(*pending, branch)

    def _inner(self) -> Generator[None, None, Expr]:
        self._scopes.append(_Scope())
        depth = len(self._scopes)
        try:
            yield
            return self._scopes[-1].close()
        finally:
            del self._scopes[depth - 1 :]

    def ret(self, value: Expr) -> None:
        """Set the result of the current scope.

        Raises:
            RuntimeError: It has one already.
        """
        self._refuse_result()
        self._scopes[-1].result = value

    def _refuse_result(self) -> None:
        if self._scopes[-1].result is not None or self._scopes[-1].pending is not None:
            raise RuntimeError("scope: it has a result already")

    def get(self) -> Expr:
        """Return the expression built.

        Raises:
            RuntimeError: `ret` was not called.
        """
        return self._scopes[-1].close()

    def function(
        self, *params: Var | tuple[str, Type | str], ret_type: Type | None = None
    ) -> Function:
        """Return a function of these parameters whose body is the expression built."""
        return Function(tuple(map(_variable, params)), self.get(), ret_type)

    def param_list(self, *args: str | tuple[str, Type | str]) -> tuple[Var, ...]:
        """Return new variables, to be parameters."""
        return tuple(map(_variable, args))

    def type_of(self, expr: Expr) -> Type:
        """Return the annotated type of a variable or function.

        Raises:
            TypeError: The expression is no annotated variable or function.
        """
        if isinstance(expr, Function):
            kinds: Sequence[Type | None] = [p.type_annotation for p in expr.params]
            param_types = tuple(k for k in kinds if k is not None)
            assert expr.ret_type is not None, "the function has no result type"
            return FuncType(param_types, expr.ret_type)
        if isinstance(expr, Var) and expr.type_annotation is not None:
            return expr.type_annotation
        raise TypeError(f"type_of: expected an annotated variable or a function, got {expr!r}")


def _variable(spec: Var | str | tuple[str, Type | str]) -> Var:
    if isinstance(spec, Var):
        return spec
    if isinstance(spec, str):
        return Var(spec)
    name, kind = spec
    return var(name, kind)


__all__ = ["ScopeBuilder"]
