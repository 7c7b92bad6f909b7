"""Values that are named in an expression (`tir.Let`) and looked at while a program runs:
`tir.trace([i, x[i]], "my.look")`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.prim import ExprLike, Intrinsic, PrimExpr, StringImm, Var, convert
from ekiden.ir.prim_visitor import substitute
from ekiden.runtime import get_global_func, register_func
from ekiden.runtime.errors import ExpressionError

_CALLED = "ekiden.tir.trace"


@register_func(_CALLED)
def _traced(action: str, *values: float) -> float:
    """What the action gives, or the last value where that is nothing."""
    found = get_global_func(action)(*values)
    return values[-1] if found is None else found  # type: ignore[return-value]


@register_func("tvm.default_trace_action")
def _shown(*values: float) -> None:
    print(list(values))


def trace(args: Sequence[ExprLike], trace_action: str = "tvm.default_trace_action") -> PrimExpr:
    """The last value, handed with the others to a global function when it is computed; where that
    returns a value it is taken instead. Without one the values are printed.

    A program with traces needs the compiler in its process. Raises ExpressionError for what is no
    list of values.
    """
    if not isinstance(args, (list, tuple)) or not args:
        raise ExpressionError(f"trace: a list of values expected, got {args!r}")
    values = tuple(map(convert, args))
    names = StringImm(_CALLED), StringImm(trace_action)
    return Intrinsic("call_packed", (*names, *values), values[-1].dtype)


class Let:
    """`body` with `value` in the place of `var`. There is no node: expressions share what they are
    made of, so that a name saves nothing."""

    def __new__(cls, var: Var, value: ExprLike, body: ExprLike) -> PrimExpr:  # type: ignore[misc]
        """Raises ExpressionError for a value of another dtype than the variable's."""
        given = convert(value, var.dtype if isinstance(value, (int, float)) else None)
        if given.dtype != var.dtype:
            raise ExpressionError(f"Let: {var.name} is {var.dtype}, its value {given.dtype}")
        return substitute(convert(body), {var: given})


__all__ = ["Let", "trace"]
