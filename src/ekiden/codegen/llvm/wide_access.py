"""Wide accesses of device kernels as LLVM IR: loads and stores at addresses that are a multiple of
16.

    %wide = load <4 x float>, ptr %at, align 16     where the memory of a kernel begins at one
    %one = load float, ptr %at, align 4 ...         elsewhere element by element

Accesses whose offset from the beginning is not proven to be a multiple (`codegen.wide_access`) are
left as they are.
"""

from __future__ import annotations

from ekiden.codegen.llvm.builder import Operand
from ekiden.codegen.llvm.gpu_backends import GpuBackend
from ekiden.codegen.llvm.statement import StatementEmitter
from ekiden.codegen.llvm.types import memory_type, register_type
from ekiden.codegen.wide_access import MAX_ACCESS_BYTES, SHARED_SCOPE, vector_access_bytes
from ekiden.ir import dtype as dt
from ekiden.ir.prim import PrimExpr
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import BufferStore


class WideAccessEmitter(StatementEmitter):
    """Statement emitter of a kernel, with wide accesses where the device has them."""

    backend: GpuBackend

    def masked_load(
        self, buffer: Buffer, index: PrimExpr, dtype: str, mask: Operand | None
    ) -> Operand:
        """Emit one load of contiguous lanes where their alignment is proven."""
        # A mask guards lanes outside the buffer, which one wide load would read.
        align = self._alignment(buffer, index) if mask is None else 0
        if not align:
            return super().masked_load(buffer, index, dtype, mask)
        b, kind, (position, _) = self.builder, register_type(dtype), self.address(buffer, index)
        pointer = f"{self.pointer_type(buffer)} {position}"
        if buffer.scope == SHARED_SCOPE:
            return b.load(f"load {kind}, {pointer}, align {align}", self.memory_id(buffer))
        wide, scalar, join = (b.fresh_name(n) for n in ("wide", "each", "done"))
        b.branch_if(self._alignment_flag(buffer), wide, scalar)
        b.start(wide)
        # Not `b.load`: the value exists on this side of the branch only.
        loaded = b.append_value(f"load {kind}, {pointer}, align {align}")
        b.branch(join)
        b.start(scalar)
        # All lanes are inserted below, so no initial value is needed.
        lanes: Operand = "poison"
        element_type, size = memory_type(buffer.dtype), dt.itemsize(buffer.dtype)
        for lane, lane_pointer in enumerate(self._lane_pointers(buffer, pointer, dt.lanes(dtype))):
            load = b.append_value(f"load {element_type}, {lane_pointer}, align {size}")
            element = f"{element_type} {load}"
            lanes = b.append_value(f"insertelement {kind} {lanes}, {element}, i64 {lane}")
        b.branch(join)
        b.start(join)
        return b.phi(dtype, (loaded, wide), (lanes, scalar))

    def emit_memory_store(self, s: BufferStore, dtype: str, value: Operand) -> None:
        """Emit one store of contiguous lanes where their alignment is proven."""
        align = self._alignment(s.buffer, s.indices[0]) if s.predicate is None else 0
        if not align:
            super().emit_memory_store(s, dtype, value)
            return
        b, kind, (position, _) = (
            self.builder,
            register_type(dtype),
            self.address(s.buffer, s.indices[0]),
        )
        pointer = f"{self.pointer_type(s.buffer)} {position}"
        if s.buffer.scope == SHARED_SCOPE:
            b.append_void(f"store {kind} {value}, {pointer}, align {align}")
            return
        wide, lane_by_lane, done = (b.fresh_name(n) for n in ("wide", "each", "done"))
        b.branch_if(self._alignment_flag(s.buffer), wide, lane_by_lane)
        b.start(wide)
        b.append_void(f"store {kind} {value}, {pointer}, align {align}")
        b.branch(done)
        b.start(lane_by_lane)
        element_type, size = memory_type(s.buffer.dtype), dt.itemsize(s.buffer.dtype)
        for lane, each_at in enumerate(self._lane_pointers(s.buffer, pointer, dt.lanes(dtype))):
            one = b.append_value(f"extractelement {kind} {value}, i64 {lane}")
            b.append_void(f"store {element_type} {one}, {each_at}, align {size}")
        b.branch(done)
        b.start(done)

    def _alignment(self, buffer: Buffer, index: PrimExpr) -> int:
        """Return the alignment in bytes of a contiguous access; 0 where it is not one access."""
        if not self.backend.has_wide_accesses:
            return 0
        is_argument = self.pointers.get(buffer, "").startswith("%buffer.")
        return vector_access_bytes(buffer, self.ramp_of(index), is_argument)

    def _alignment_flag(self, buffer: Buffer) -> Operand:
        """Return the flag that tells whether an argument is 16-byte aligned; computed once, in the
        entry block.
        """
        pointer = self.pointers[buffer]
        name = f"%near.{pointer.removeprefix('%buffer.')}"
        # Every access of the buffer needs the flag, but SSA form permits one definition.
        if f"  {name} = icmp eq i64 {name}.rest, 0" not in self.builder.entry:
            self.builder.entry += [
                f"  {name}.at = ptrtoint {self.pointer_type(buffer)} {pointer} to i64",
                f"  {name}.rest = and i64 {name}.at, {MAX_ACCESS_BYTES - 1}",
                f"  {name} = icmp eq i64 {name}.rest, 0",
            ]
        return name

    def _lane_pointers(self, buffer: Buffer, first_address: str, lanes: int) -> list[str]:
        """Return the typed address of each lane after that of the first."""
        kind, pointer = memory_type(buffer.dtype), self.pointer_type(buffer)
        indices = [f"getelementptr {kind}, {first_address}, i64 {lane}" for lane in range(lanes)]
        return [f"{pointer} {self.builder.append_value(text)}" for text in indices]


__all__ = ["WideAccessEmitter"]
