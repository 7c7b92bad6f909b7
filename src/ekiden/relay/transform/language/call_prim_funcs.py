"""Wrap the loop programs (PrimFuncs) of a module in Relay functions that call them.

    @prim_func addone(a, b): ..    def @main(%x) { @addone(%x) }
    ->  def @addone(%a, Inline=1) { call_lowered(%a, func=addone) }    def @main(%x) { @addone(%x) }

From there on a loop program is an operator like any other: it may be a value, be called by its
name, and becomes a kernel of its own.
"""

from __future__ import annotations

from ekiden.ir.module import IRModule
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.relay.op.prim_func_call import wrap_prim_func
from ekiden.tir.stmt import PrimFunc


@module_pass(name="CallPrimFuncs")
def _call_prim_funcs(module: IRModule, context: PassContext) -> IRModule:
    functions = {
        name: wrap_prim_func(f.with_attr("global_symbol", name.name_hint))
        if isinstance(f, PrimFunc)
        else f
        for name, f in module.functions.items()
    }
    return module.with_functions(functions)


def CallPrimFuncs() -> Pass:  # noqa: N802
    """Return a pass that wraps PrimFuncs in Relay functions."""
    return _call_prim_funcs
