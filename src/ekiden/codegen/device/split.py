"""Split a program bound to threads into device kernels and a host function.

    def f(a, b):                                        def f(a, b):
        for i in thread_binding(n, "blockIdx.x"):   ->      call_packed("f_kernel", device,
            for j in thread_binding(64, "threadIdx.x"):         n, 1, 1, 64, 1, 1, a, b)
                b[i, j] = a[i, j]                       def f_kernel(a, b): ...

The host's code runs on the target's host, reads no element, and computes grids and the sizes of
buffers between kernels. Buffers that it allocates are memory of the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from ekiden.arith import prove_equal
from ekiden.codegen.common import DEVICE_ID_VAR, DEVICE_TYPE_ATTR
from ekiden.codegen.device.kernel_codegen import generate_kernel
from ekiden.codegen.device.printer import kernel_parameters
from ekiden.ir import dtype as dt
from ekiden.ir.expr import BaseFunc, GlobalVar
from ekiden.ir.module import IRModule
from ekiden.ir.prim import Intrinsic, PrimExpr, StringImm, Var, cast, const, maximum
from ekiden.ir.prim_visitor import free_vars, substitute
from ekiden.ir.transform import Sequential
from ekiden.runtime.artifact.device_code import DeviceKernel
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.expr import BufferAddress, BufferLoad
from ekiden.tir.stmt import BufferStore, Evaluate, For, IfThenElse, LetStmt, PrimFunc, Stmt
from ekiden.tir.transform import split_host_device
from ekiden.tir.transform.host_device_split import is_device_loop
from ekiden.tir.transform.narrow_data_type import narrow_data_type
from ekiden.tir.transform.pipeline import (
    PASSES_AFTER_HOST_DEVICE_SPLIT,
    PASSES_BEFORE_HOST_DEVICE_SPLIT,
)
from ekiden.tir.visitor import StmtMutator, all_exprs, pre_order_stmts


@dataclass(frozen=True, slots=True)
class Split:
    """Result of the split: the lowered host function and the device kernels."""

    host: PrimFunc
    kernels: list[DeviceKernel]


def split_host_and_device(func: PrimFunc, target: Target, readable: bool = False) -> Split:
    """Split a scheduled program into the host function and its device kernels (TVM's
    SplitHostDevice).

    Args:
        func: the scheduled program.
        target: the device's target.
        readable: print kernels as text where their code is binary.

    Raises:
        CompileError: for what a device cannot do, such as element accesses outside of threads.
    """
    if target.bounds:
        raise CompileError(f"target {target.kind.name!r}: bounds='check' is for processors alone")
    with target:  # reductions over threads are made of what its threads can do
        module = Sequential(PASSES_BEFORE_HOST_DEVICE_SPLIT, name="tir.before_split")(
            IRModule({func.name: func})
        )
    split_module = split_host_device(module)
    grids = {
        name.name_hint: _launch_grid(f)
        for name, f in split_module.functions.items()
        if isinstance(f, PrimFunc) and name.name_hint != func.name
    }
    guarded: dict[GlobalVar | str, BaseFunc] = {
        name: _ThreadExtentUnifier(grids[name.name_hint]).function(f)
        if name.name_hint in grids
        else f
        for name, f in split_module.functions.items()
    }
    # Guards come before this lowering, so that it sees the extents that are launched.
    with target:  # whose rules lower intrinsics
        lowered = Sequential(PASSES_AFTER_HOST_DEVICE_SPLIT, name="tir.after_split")(
            IRModule(guarded)
        )
    callers = _kernel_size_arguments(split_module, lowered)
    kernels, calls = [], {}
    for name, kernel_func in lowered.functions.items():
        if name.name_hint == func.name:
            continue
        assert isinstance(kernel_func, PrimFunc)
        kernel_func = narrow_data_type(
            kernel_func
        )  # devices compute in 32 bits, of 64 each step is several
        buffers, numbers = kernel_parameters(kernel_func.body)
        params = tuple(b for b in kernel_func.buffers if b in buffers)
        body, sizes, size_values = _pass_floats_as_bits(kernel_func.body, numbers)
        kernel = generate_kernel(
            kernel_func.with_fields(params=params, body=body), sizes, target, readable
        )
        kernels.append(kernel)
        used = tuple(n for n, b in enumerate(kernel_func.params) if b in buffers)
        callers_of_kernel = callers[name.name_hint]
        grid = {
            axis: substitute(extent, callers_of_kernel)
            for axis, extent in grids[name.name_hint].items()
        }
        calls[name.name_hint] = _KernelLaunch(
            kernel, grid, used, tuple(substitute(g, callers_of_kernel) for g in size_values)
        )
    host = lowered[func.name]
    assert isinstance(host, PrimFunc)
    return Split(_host_function(host, calls, target), kernels)


def _kernel_size_arguments(
    split_module: IRModule, lowered: IRModule
) -> dict[str, dict[Var, PrimExpr]]:
    """Return the size and scalar arguments of each kernel at the host's call sites: sizes come from
    `split_module`, whose buffers still have shapes, scalars from `lowered`, whose loops are
    executed.
    """
    values: dict[str, dict[Var, PrimExpr]] = {}
    for module, is_run in ((split_module, False), (lowered, True)):
        for name, args in _kernel_calls(module):
            kernel = split_module[name]
            assert isinstance(kernel, PrimFunc)
            own = values.setdefault(name, {})
            for param, arg in zip(kernel.params, args, strict=True):
                if isinstance(param, Var):
                    own[param] = arg
                # Flattened buffers have lost their shapes; those before lowering still relate sizes
                # to arguments.
                elif isinstance(arg, BufferAddress) and not is_run:
                    # written alike, as the parameter is a copy
                    of_host = free_vars(*arg.buffer.sizes())
                    own.update(zip(free_vars(*param.sizes()), of_host, strict=True))
    return values


def _kernel_calls(module: IRModule) -> Iterator[tuple[str, tuple[PrimExpr, ...]]]:
    """Yield the name and the arguments of every call of a kernel."""
    bodies = [f.body for f in module.functions.values() if isinstance(f, PrimFunc)]
    for call in (e for body in bodies for e in all_exprs(body)):
        if isinstance(call, Intrinsic) and call.op == "call_function":
            name, *args = call.args
            assert isinstance(name, StringImm)
            yield name.value, tuple(args)


def _pass_floats_as_bits(
    body: Stmt, numbers: Sequence[Var]
) -> tuple[Stmt, list[Var], tuple[PrimExpr, ...]]:
    """Rewrite a kernel to take integers alone; a float parameter is passed as its bits. Return the
    body, its parameters, and the values for them.
    """
    sizes: list[Var] = []
    arguments: list[PrimExpr] = []
    for number in numbers:
        if not dt.is_float(number.dtype):
            sizes.append(number)
            arguments.append(number)
            continue
        same_size = f"int{dt.SCALAR_BITS[number.dtype]}"
        # Kernel parameters beside buffers are 64-bit integers; a float travels as its bits.
        bits = Var(f"{number.name}_bits", "int64")
        value = Intrinsic("reinterpret", (cast(bits, same_size),), number.dtype)
        body = LetStmt(number, value, body)
        sizes.append(bits)
        arguments.append(cast(Intrinsic("reinterpret", (number,), same_size), "int64"))
    return body, sizes, tuple(arguments)


LaunchGrid = Mapping[str, PrimExpr]
"""Extent of each thread axis."""


def _launch_grid(kernel: PrimFunc) -> LaunchGrid:
    extents: dict[str, PrimExpr] = {}
    inside: set[Var] = set()
    for s in pre_order_stmts(kernel.body):
        if isinstance(s, For):
            inside.add(s.loop_var)
        if not isinstance(s, For) or not is_device_loop(s):
            continue
        axis = str((s.annotations or {})["thread"])
        # The host computes the grid before the launch, when none of the kernel's loops has run.
        if not inside.isdisjoint(free_vars(s.extent)):
            raise CompileError(f"kernel {kernel.name!r}: the extent of {axis} changes with loops")
        previous = extents.get(axis)
        # Several loops over one axis share its threads: the grid has the largest of their extents.
        extents[axis] = (
            s.extent if previous is None or previous is s.extent else maximum(previous, s.extent)
        )
    return extents


class _ThreadExtentUnifier(StmtMutator):
    """Mutator that unifies the extents of all loops of a kernel over one thread axis: shorter loops
    get a guard.
    """

    def __init__(self, grid: LaunchGrid) -> None:
        self._grid = grid

    def function(self, func: BaseFunc) -> BaseFunc:
        """Return the kernel with the bodies of its shorter loops guarded."""
        assert isinstance(func, PrimFunc)
        return func.with_fields(body=self.visit(func.body))

    def visit_for(self, stmt: For) -> Stmt:
        """Extend a thread loop to the grid's extent; the added threads do nothing."""
        loop = super().visit_for(stmt)
        if not is_device_loop(stmt) or not isinstance(loop, For):
            return loop
        grid_extent = self._grid[str((stmt.annotations or {})["thread"])]
        if prove_equal(loop.extent, grid_extent):
            return loop
        body = IfThenElse(loop.loop_var < loop.extent, loop.body)
        return loop.with_fields(extent=grid_extent, body=body)


@dataclass(frozen=True, slots=True)
class _KernelLaunch:
    kernel: DeviceKernel
    grid: LaunchGrid
    buffer_indices: tuple[int, ...]
    """Indices of the buffers that the kernel takes."""
    sizes: tuple[PrimExpr, ...]

    def launch_call(self, addresses: tuple[PrimExpr, ...]) -> PrimExpr:
        """Return the launch call: kernel name, device id, three grid extents, three block extents
        (1 for unused axes), buffer addresses, sizes.
        """
        axes = [f"{kind}.{axis}" for kind in ("blockIdx", "threadIdx") for axis in "xyz"]
        grid = [self.grid.get(axis, const(1)) for axis in axes]
        buffers = [addresses[n] for n in self.buffer_indices]
        args = (StringImm(self.kernel.name), DEVICE_ID_VAR, *grid, *buffers, *self.sizes)
        return Intrinsic("call_packed", args, "int32")


class _LaunchRewriter(StmtMutator):
    def __init__(self, calls: Mapping[str, _KernelLaunch]) -> None:
        self._calls = calls

    def visit_evaluate(self, stmt: Evaluate) -> Stmt:
        """Rewrite `call_function("f_kernel", a)` to `call_packed("f_kernel", device, grid, a,
        sizes)`.
        """
        e = stmt.value
        if not isinstance(e, Intrinsic) or e.op != "call_function":
            return stmt
        name = e.args[0]
        assert isinstance(name, StringImm)
        return Evaluate(self._calls[name.value].launch_call(e.args[1:]))


def _check_no_host_access(name: str, host: Stmt, target: Target) -> None:
    """Raise CompileError where the host reads or writes elements of a buffer, which is in device
    memory.
    """
    stores = (s.buffer for s in pre_order_stmts(host) if isinstance(s, BufferStore))
    loads = (e.buffer for e in all_exprs(host) if isinstance(e, BufferLoad))
    for buffer in chain(stores, loads):
        raise CompileError(
            f"{name!r}: target {target.kind.name!r}: elements of {buffer.name!r} are used outside "
            "of threads, which alone reach its memory: bind a loop around them to one of their axes"
        )


def _host_function(func: PrimFunc, calls: Mapping[str, _KernelLaunch], target: Target) -> PrimFunc:
    body = _LaunchRewriter(calls).visit(func.body)
    _check_no_host_access(func.name, body, target)
    attrs = {**(func.attrs or {}), DEVICE_TYPE_ATTR: target.kind.device_type}
    return func.with_fields(body=body, attrs=attrs)


__all__ = ["Split", "split_host_and_device"]
