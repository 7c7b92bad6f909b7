"""Let expressions (`tir.Let`), and tracing of run-time values: `tir.trace([i, x[i]],
"my.look")`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.prim import ExprLike, Intrinsic, PrimExpr, StringImm, Var, convert
from ekiden.ir.prim_visitor import substitute
from ekiden.runtime import get_global_func, register_func
from ekiden.runtime.errors import ExpressionError

_TRACE_FUNCTION = "ekiden.tir.trace"


@register_func(_TRACE_FUNCTION)
def _run_trace_action(action: str, *values: float) -> float:
    """Return the action's result, or the last value where it returns None."""
    result = get_global_func(action)(*values)
    return values[-1] if result is None else result  # type: ignore[return-value]


@register_func("tvm.default_trace_action")
def _print_trace_values(*values: float) -> None:
    print(list(values))


def trace(args: Sequence[ExprLike], trace_action: str = "tvm.default_trace_action") -> PrimExpr:
    """Return an expression that passes values to a global function when computed and yields the
    last one.

    Where the function returns a value, that is the expression's value. The default action prints
    the values. A program with traces needs the compiler in its process. Raises ExpressionError
    unless `args` is a non-empty list of values.
    """
    if not isinstance(args, (list, tuple)) or not args:
        raise ExpressionError(f"trace: a list of values expected, got {args!r}")
    values = tuple(map(convert, args))
    names = StringImm(_TRACE_FUNCTION), StringImm(trace_action)
    return Intrinsic("call_packed", (*names, *values), values[-1].dtype)


class Let:
    """A let expression: `body` with `value` substituted for `var`. There is no node: expressions
    are shared DAGs, so a name saves nothing.
    """

    def __new__(cls, var: Var, value: ExprLike, body: ExprLike) -> PrimExpr:  # type: ignore[misc]
        """Return the substituted body; raise ExpressionError for a value of another dtype than the
        variable's.
        """
        converted = convert(value, var.dtype if isinstance(value, (int, float)) else None)
        if converted.dtype != var.dtype:
            raise ExpressionError(f"Let: {var.name} is {var.dtype}, its value {converted.dtype}")
        return substitute(convert(body), {var: converted})


__all__ = ["Let", "trace"]
