"""Split functions into device kernels and the host code that launches them.

    def f(a, b):                                        def f(a, b):
        for i in thread_binding(8, "blockIdx.x"):   ->      call_function("f_kernel", a, b)
            b[i] = a[i]                                 def f_kernel(a, b):
                                                            for i in thread_binding(8, ..): ..

Each outermost loop over a thread axis becomes a function with the attributes of a device function:
`tir.is_device` and `tir.thread_axes`. It has a parameter per buffer that it uses; sizes come with
the shapes, other variables as scalars. On a CPU thread loops run as loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from ekiden.ir.expr import BaseFunc
from ekiden.ir.module import IRModule
from ekiden.ir.prim import Intrinsic, PrimExpr, StringImm, Var
from ekiden.ir.prim_visitor import free_vars, substitute
from ekiden.tir.expr import Buffer, BufferAddress
from ekiden.tir.stmt import Evaluate, For, ForKind, PrimFunc, Stmt
from ekiden.tir.transform.virtual_thread_injection import is_virtual_thread_loop
from ekiden.tir.visitor import StmtMutator, free_vars_and_buffers, pre_order_stmts, rename


def is_device_loop(stmt: Stmt) -> bool:
    """Return whether a statement is a loop over GPU threads."""
    is_thread = isinstance(stmt, For) and stmt.kind is ForKind.THREAD_BINDING
    return is_thread and not is_virtual_thread_loop(stmt)


class _HostDeviceSplitter(StmtMutator):
    def __init__(self, func: PrimFunc) -> None:
        self._func = func
        self.kernels: dict[str, PrimFunc] = {}

    def visit_for(self, stmt: For) -> Stmt:
        """Replace the outermost thread loop by a kernel launch."""
        if not is_device_loop(stmt):
            return super().visit_for(stmt)
        used = free_vars_and_buffers(stmt)
        buffers = [b for b in used if isinstance(b, Buffer)]
        variables = [v for v in used if isinstance(v, Var)]
        buffers = self._order_params(buffers)
        sizes = {d for b in buffers for d in b.shape if isinstance(d, Var)}
        # Sizes are known from the buffers that are passed, so only other variables become scalar
        # parameters.
        numbers = [v for v in variables if v not in sizes]
        count = len(self.kernels)
        name = f"{self._func.name}_kernel{'' if count == 0 else f'_{count}'}"
        threads = [s for s in pre_order_stmts(stmt) if isinstance(s, For) and is_device_loop(s)]
        # An axis that several loops use is one dimension of the launch.
        axes = tuple(dict.fromkeys(str((s.annotations or {})["thread"]) for s in threads))
        attrs = {"global_symbol": name, "tir.is_device": True, "tir.thread_axes": axes}
        self.kernels[name] = _with_fresh_params(PrimFunc((*buffers, *numbers), stmt, attrs))
        arguments = (*(BufferAddress(b) for b in buffers), *numbers)
        return Evaluate(Intrinsic("call_function", (StringImm(name), *arguments), "int32"))

    def _order_params(self, buffers: Sequence[Buffer]) -> list[Buffer]:
        """Return the function's parameters in their order, then local buffers."""
        kernel_buffers = [b for b in self._func.buffers if b in buffers]
        return kernel_buffers + [b for b in buffers if b not in kernel_buffers]


def _with_fresh_params(func: PrimFunc) -> PrimFunc:
    """Return a function with fresh parameters and size variables: two functions that share some
    could not be printed as separate texts.
    """
    sizes = free_vars(*(size for b in func.buffers for size in b.sizes()))
    fresh_params: dict[Var, PrimExpr] = {
        v: type(v)(v.name, v.dtype) for v in dict.fromkeys((*sizes, *func.scalars))
    }
    buffers = {
        b: b.with_fields(
            shape=tuple(substitute(d, fresh_params) for d in b.shape),
            strides=tuple(substitute(d, fresh_params) for d in b.strides),
            elem_offset=None if b.elem_offset is None else substitute(b.elem_offset, fresh_params),
        )
        for b in func.buffers
    }
    params = tuple(buffers[p] if isinstance(p, Buffer) else fresh_params[p] for p in func.params)
    body = rename(func.body, fresh_params, buffers)
    return func.with_fields(params=cast("tuple[Buffer | Var, ...]", params), body=body)


def split_host_device(module: IRModule) -> IRModule:
    """Return the module with device regions in functions of their own. Blocks must have been
    lowered.
    """
    functions: dict[str, BaseFunc] = {}
    for name, func in module.functions.items():
        # Kernels that were split before stay as they are, so the pass may run twice.
        if not isinstance(func, PrimFunc) or (func.attrs or {}).get("tir.is_device"):
            functions[name.name_hint] = func
            continue
        split = _HostDeviceSplitter(func)
        functions[name.name_hint] = func.with_fields(body=split.visit(func.body))
        functions.update(split.kernels)
    return IRModule(dict(functions.items()), module.type_definitions, module.attrs)
