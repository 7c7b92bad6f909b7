"""The debug operator: call a function on a value in the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array, OpDef, register_op
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import call_op, identity_relation
from ekiden.runtime import get_global_func, register_func
from ekiden.runtime import tensor as new_tensor

_DEBUG_FUNC_IDS = count()


@node("relay.attrs.DebugAttrs")
class DebugAttrs(Attrs):
    """Attributes of debug: the global function to call on the value; empty for none."""

    debug_func: str = ""


def _call_debug_func(attrs: DebugAttrs, data: Array) -> Array:
    if attrs.debug_func:
        debugger = get_global_func(attrs.debug_func)
        assert debugger is not None
        debugger(new_tensor(data))
    return data


register_op(
    OpDef(
        name="debug",
        arguments=("data",),
        attrs=DebugAttrs,
        relation=identity_relation("debug"),
        result="the type of data",
        reference=_call_debug_func,
        stateful=True,
        description="The same value; a function is called with it, by the interpreter alone:"
        " compiled programs refuse it.",
    )
)


def debug(expr: Expr, debug_func: Callable[..., object] | None = None) -> Call:
    """Return `expr`, on whose value the interpreter calls a function.

    The interpreter is `create_executor("debug")`.
    """
    name = "" if debug_func is None else f"debugger_func{next(_DEBUG_FUNC_IDS)}"
    if debug_func is not None:
        register_func(name, debug_func)
    return call_op("debug", expr, attrs=DebugAttrs(name))


__all__ = ["debug"]
