"""ScopeBuilder: build nested lets and conditionals imperatively.

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
class _BuilderScope:
    """Scope under construction: its bindings, and its result or pending conditional."""

    bindings: list[tuple[Var, Expr]] = field(default_factory=list)
    result: Expr | None = None
    pending: tuple[Expr, Expr] | None = None

    def build(self) -> Expr:
        """Build the scope's expression.

        Raises:
            RuntimeError: It has no result.
        """
        if self.pending is not None:
            raise RuntimeError("scope: an if_scope must be followed by an else_scope")
        if self.result is None:
            raise RuntimeError("scope: ret was not called")
        expr = self.result
        # A Let contains all that follows it: the chain is built from its end.
        for name, value in reversed(self.bindings):
            expr = Let(name, value, expr)
        return expr


class ScopeBuilder:
    """Builder of let chains (TVM's name); `get` returns the expression."""

    def __init__(self) -> None:
        self._scopes = [_BuilderScope()]

    def let(self, var: Var | str | tuple[str, Type | str], value: Expr) -> Var:
        """Bind a value to a variable, or to a new one by name (and type)."""
        bound = _make_variable(var)
        self._scopes[-1].bindings.append((bound, value))
        return bound

    @contextmanager
    def if_scope(self, cond: Expr) -> Iterator[None]:
        """Open the true branch of a conditional.

        An else_scope follows.
        """
        self._check_no_result()
        branch = yield from self._open_scope()
        self._scopes[-1].pending = (cond, branch)

    @contextmanager
    def else_scope(self) -> Iterator[None]:
        """Open the false branch of the pending conditional.

        Raises:
            RuntimeError: No `if_scope` was before it.
        """
        pending = self._scopes[-1].pending
        if pending is None:
            raise RuntimeError("scope: an else_scope must follow an if_scope")
        branch = yield from self._open_scope()
        self._scopes[-1].pending = None
        self._scopes[-1].result = If(*pending, branch)

    def _open_scope(self) -> Generator[None, None, Expr]:
        self._scopes.append(_BuilderScope())
        depth = len(self._scopes)
        try:
            yield
            return self._scopes[-1].build()
        finally:
            # Scopes that an exception left open inside go too.
            del self._scopes[depth - 1 :]

    def ret(self, value: Expr) -> None:
        """Set the result of the current scope.

        Raises:
            RuntimeError: It has one already.
        """
        self._check_no_result()
        self._scopes[-1].result = value

    def _check_no_result(self) -> None:
        if self._scopes[-1].result is not None or self._scopes[-1].pending is not None:
            raise RuntimeError("scope: it has a result already")

    def get(self) -> Expr:
        """Return the built expression.

        Raises:
            RuntimeError: `ret` was not called.
        """
        return self._scopes[-1].build()

    def function(
        self, *params: Var | tuple[str, Type | str], ret_type: Type | None = None
    ) -> Function:
        """Return a function of the given parameters with the built expression as its body."""
        return Function(tuple(map(_make_variable, params)), self.get(), ret_type)

    def param_list(self, *args: str | tuple[str, Type | str]) -> tuple[Var, ...]:
        """Return new parameter variables."""
        return tuple(map(_make_variable, args))

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


def _make_variable(spec: Var | str | tuple[str, Type | str]) -> Var:
    if isinstance(spec, Var):
        return spec
    if isinstance(spec, str):
        return Var(spec)
    name, kind = spec
    return var(name, kind)


__all__ = ["ScopeBuilder"]
