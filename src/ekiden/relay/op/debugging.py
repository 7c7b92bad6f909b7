"""A look at a value while the interpreter runs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array, OpDef, register_op
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import call, identity_relation
from ekiden.runtime import get_global_func, register_func
from ekiden.runtime import tensor as new_tensor

_NUMBERS = count()


@node("relay.attrs.DebugAttrs")
class DebugAttrs(Attrs):
    """The global function that is called with the value; empty: none."""

    debug_func: str = ""


def _look(attrs: DebugAttrs, data: Array) -> Array:
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
        reference=_look,
        stateful=True,
        description="The same value; a function is called with it, by the interpreter alone:"
        " compiled programs refuse it.",
    )
)


def debug(expr: Expr, debug_func: Callable[..., object] | None = None) -> Call:
    """Return `expr`, marked for the interpreter to call a function with its value.

    The interpreter is `create_executor("debug")`.
    """
    name = "" if debug_func is None else f"debugger_func{next(_NUMBERS)}"
    if debug_func is not None:
        register_func(name, debug_func)
    return call("debug", expr, attrs=DebugAttrs(name))


__all__ = ["debug"]
