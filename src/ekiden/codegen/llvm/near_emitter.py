"""Neighbours in memory of a device as one access: an address that is a multiple of 16.

    %wide = load <4 x float>, ptr %at, align 16     where the memory of a kernel begins at one
    %one = load float, ptr %at, align 4 ...         elsewhere element by element

What is not proven to be a multiple behind where memory begins (`codegen.near`) is left as it is.
"""

from __future__ import annotations

from ekiden.codegen.llvm.builder import Operand
from ekiden.codegen.llvm.statement import StatementEmitter
from ekiden.codegen.llvm.types import memory_type, register_type
from ekiden.codegen.near import MOST_BYTES, near_bytes
from ekiden.ir import dtype as dt
from ekiden.ir.prim import PrimExpr
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import BufferStore

SHARED = "shared"
"""The scope of memory of a block, which begins at a multiple of more."""


class NearEmitter(StatementEmitter):
    """Emits a kernel with such accesses."""

    def masked_load(
        self, buffer: Buffer, index: PrimExpr, dtype: str, mask: Operand | None
    ) -> Operand:
        """Lanes that lie beside each other at once, where they may be."""
        align = self._alignment(buffer, index) if mask is None else 0
        if not align:
            return super().masked_load(buffer, index, dtype, mask)
        b, kind, (place, _) = self.b, register_type(dtype), self.address(buffer, index)
        if buffer.scope == SHARED:
            return b.load(f"load {kind}, ptr {place}, align {align}", self.place_of(buffer))
        wide, each, done = (b.fresh(n) for n in ("wide", "each", "done"))
        b.branch_if(self._is_aligned(buffer), wide, each)
        b.start(wide)
        whole = b.value(f"load {kind}, ptr {place}, align {align}")
        b.branch(done)
        b.start(each)
        joined: Operand = "poison"
        for lane, at in enumerate(self._places(buffer, place, dt.lanes(dtype))):
            one = f"{memory_type(buffer.dtype)} {b.value(_load(buffer, at))}"
            joined = b.value(f"insertelement {kind} {joined}, {one}, i64 {lane}")
        b.branch(done)
        b.start(done)
        return b.phi(dtype, (whole, wide), (joined, each))

    def memory_store(self, s: BufferStore, dtype: str, value: Operand) -> None:
        """Likewise."""
        align = self._alignment(s.buffer, s.indices[0]) if s.predicate is None else 0
        if not align:
            super().memory_store(s, dtype, value)
            return
        b, kind, (place, _) = self.b, register_type(dtype), self.address(s.buffer, s.indices[0])
        if s.buffer.scope == SHARED:
            b.effect(f"store {kind} {value}, ptr {place}, align {align}")
            return
        wide, each, done = (b.fresh(n) for n in ("wide", "each", "done"))
        b.branch_if(self._is_aligned(s.buffer), wide, each)
        b.start(wide)
        b.effect(f"store {kind} {value}, ptr {place}, align {align}")
        b.branch(done)
        b.start(each)
        own, size = memory_type(s.buffer.dtype), dt.itemsize(s.buffer.dtype)
        for lane, at in enumerate(self._places(s.buffer, place, dt.lanes(dtype))):
            one = b.value(f"extractelement {kind} {value}, i64 {lane}")
            b.effect(f"store {own} {one}, ptr {at}, align {size}")
        b.branch(done)
        b.start(done)

    def _alignment(self, buffer: Buffer, index: PrimExpr) -> int:
        """That of the first of neighbours; 0 where they are not one access."""
        is_given = self.pointers.get(buffer, "").startswith("%buffer.")
        index = self.affine(index)
        return near_bytes(buffer, index) if is_given or buffer.scope == SHARED else 0

    def _is_aligned(self, buffer: Buffer) -> Operand:
        """Whether memory that the kernel is given begins where it must: asked once, at first."""
        pointer = self.pointers[buffer]
        name = f"%near.{pointer.removeprefix('%buffer.')}"
        if f"  {name} = icmp eq i64 {name}.rest, 0" not in self.b.entry:
            self.b.entry += [
                f"  {name}.at = ptrtoint ptr {pointer} to i64",
                f"  {name}.rest = and i64 {name}.at, {MOST_BYTES - 1}",
                f"  {name} = icmp eq i64 {name}.rest, 0",
            ]
        return name

    def _places(self, buffer: Buffer, place: Operand, lanes: int) -> list[Operand]:
        """The addresses of lanes."""
        kind = memory_type(buffer.dtype)
        at = [f"getelementptr {kind}, ptr {place}, i64 {lane}" for lane in range(lanes)]
        return [self.b.value(text) for text in at]


def _load(buffer: Buffer, place: Operand) -> str:
    return f"load {memory_type(buffer.dtype)}, ptr {place}, align {dt.itemsize(buffer.dtype)}"


__all__ = ["NearEmitter"]
