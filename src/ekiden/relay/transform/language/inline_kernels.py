"""Inline global kernel functions (primitive, or of external compilers) at their calls.

    def @region(%y, Compiler="c", ..) {..}   def @main(%x) { @region(nn.relu(%x)) }
    ->  def @main(%x) { fn (%y, Compiler="c", Primitive=1, ..) {..}(nn.relu(%x)) }

`Inline` does so too, with the functions that are marked to be inlined. The virtual machine's
compiler needs this pass at any opt level: later passes know a kernel by its callee.
"""

from __future__ import annotations

from ekiden.ir.module import IRModule
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.relay.expr import Function
from ekiden.relay.transform.language.inline import inline, is_kernel_function


@module_pass(name="InlineKernels")
def _inline_kernels(module: IRModule, context: PassContext) -> IRModule:
    if not any(
        isinstance(f, Function) and is_kernel_function(f) for f in module.functions.values()
    ):
        return module
    return inline(module, lambda name, function: is_kernel_function(function))


def InlineKernels() -> Pass:  # noqa: N802
    """Return a pass that inlines global kernel functions at their calls."""
    return _inline_kernels


__all__ = ["InlineKernels"]
