"""Unify thread loops: one loop per thread axis around everything that runs on it.

    for i in thread_binding(8, "blockIdx.x"):        for blockIdx_x in thread_binding(8, ..):
        for j in thread_binding(4, "threadIdx.x"):       for threadIdx_x in thread_binding(4, ..):
            B[i, j] = A[i, j]                    ->          B[blockIdx_x, threadIdx_x] = ..
        for k in thread_binding(4, "threadIdx.x"):           C[blockIdx_x, threadIdx_x] = ..
            C[i, k] = B[i, k]

Loops of virtual threads stay. TVM: UnifyThreadBinding.
"""

from __future__ import annotations

from ekiden.arith import prove_equal
from ekiden.ir.prim import PrimExpr, Var, cast, const
from ekiden.ir.prim_visitor import free_vars
from ekiden.runtime.errors import ScheduleError
from ekiden.tir.stmt import For, ForKind, PrimFunc, Stmt
from ekiden.tir.transform.virtual_thread_injection import is_virtual_thread_loop
from ekiden.tir.visitor import StmtMutator, flatten_seq, substitute, with_body


class _ThreadBindingUnifier(StmtMutator):
    def __init__(self, name: str) -> None:
        self._name = name
        self._open_axes: dict[str, tuple[Var, PrimExpr]] = {}
        """Variable and extent of each thread axis inside the outermost thread loop."""
        self._depth_of_threads = 0

    def visit_for(self, stmt: For) -> Stmt:
        """Open all axes at the outermost loop over threads; inner loops become uses of the axis's
        variable.

        Raises ScheduleError where loops of one axis differ in extent, or an extent is only known
        inside other loops.
        """
        axis = str((stmt.annotations or {}).get("thread", ""))
        if stmt.kind is not ForKind.THREAD_BINDING or is_virtual_thread_loop(stmt):
            return super().visit_for(stmt)
        axis_binding = self._open_axes.get(axis)
        if axis_binding is None:
            outside = {v for v, _ in self._open_axes.values()}
            inner = set(free_vars(stmt.extent)) - outside
            if self._depth_of_threads and inner:
                names = ", ".join(sorted(v.name for v in inner))
                raise ScheduleError(f"{self._name!r}: the extent of {axis} changes with {names}")
            var = Var(axis.replace(".", "_"), stmt.loop_var.dtype)
            axis_binding = self._open_axes[axis] = var, stmt.extent
        elif not prove_equal(cast(axis_binding[1], "int64"), cast(stmt.extent, "int64")):
            raise ScheduleError(
                f"{self._name!r}: loops over {axis} have the extents {axis_binding[1]} and "
                f"{stmt.extent}"
            )
        value = cast(axis_binding[0], stmt.loop_var.dtype) + stmt.min
        self._depth_of_threads += 1
        body = self.visit(substitute(stmt.body, {stmt.loop_var: value}))
        self._depth_of_threads -= 1
        if self._depth_of_threads:
            return body
        opened = list(self._open_axes.items())
        self._open_axes = {}
        # The axis met first is outermost: extents of later ones may use its variable.
        for name, (var, extent) in reversed(opened):
            low = const(0, extent.dtype)
            body = For(var, low, extent, ForKind.THREAD_BINDING, body, {"thread": name})
        return flatten_seq(body)


def unify_thread_binding(func: PrimFunc) -> PrimFunc:
    """Return the function with one loop per axis. Raises ScheduleError (a ValueError) for loops
    over one axis with two extents, or with an extent that changes inside.
    """
    return with_body(func, _ThreadBindingUnifier(func.name).visit(func.body))


__all__ = ["unify_thread_binding"]
