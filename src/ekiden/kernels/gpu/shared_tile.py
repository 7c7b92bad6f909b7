"""Tiles of a contraction's factors in shared memory, and the registers that read them."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.prim import PrimExpr, Var, const
from ekiden.kernels.gpu.vector_access import vector_loop
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import BufferStore, Stmt

__all__ = ["RegisterOperands", "SharedTile"]


@dataclass(frozen=True, slots=True)
class SharedTile:
    """Tile of a factor in shared memory: `num_lines` rows or columns by the depth of a block of k.

    Along k, elements are neighbours in shared memory if they are in the memory that they come from;
    else rows or columns are. Other elements are a pitch apart. The last two fields are the
    neighbours that a thread loads as one, and those that it reads from shared memory as one.
    """

    buffer: Buffer
    value: PrimExpr
    axes: Sequence[Var]
    num_lines: int
    pitch: int
    is_k_contiguous: bool
    load_width: int = 1
    read_width: int = 1

    def element_index(self, number: PrimExpr, step: PrimExpr) -> PrimExpr:
        """Return the index of a row's or column's element at a step of k."""
        if self.is_k_contiguous:
            return number * self.pitch + step
        return step * self.pitch + number

    def load(self, number: PrimExpr, step: PrimExpr) -> PrimExpr:
        """Load the element of a row or column at a step of k."""
        return BufferLoad(self.buffer, (self.element_index(number, step),), self.value.dtype)


@dataclass(frozen=True, slots=True)
class RegisterOperands:
    """A thread's rows or columns of a shared tile, and the registers that a wide read fills."""

    shared_tile: SharedTile
    indices: Sequence[PrimExpr]
    registers: Buffer | None

    def emit_loads(self, first: PrimExpr, step: int) -> list[Stmt]:
        """Emit the wide reads of a step of k that earlier steps have not made."""
        tile, lane, loads = self.shared_tile, Var("lane"), []
        # The registers already hold the steps between two multiples of the read width.
        if self.registers is None or (tile.is_k_contiguous and step % tile.read_width):
            return []
        lines = (
            range(len(self.indices))
            if tile.is_k_contiguous
            else range(0, len(self.indices), tile.read_width)
        )
        for n in lines:
            position = tile.element_index(self.indices[n], first + step) + lane
            value = BufferLoad(tile.buffer, (position,), tile.value.dtype)
            to = const(n * tile.read_width if tile.is_k_contiguous else n) + lane
            load = BufferStore(self.registers, value, (to,))
            loads.append(vector_loop(lane, tile.read_width, load))
        return loads

    def values(self, first: PrimExpr, step: int) -> list[PrimExpr]:
        """Return the operand values of a step of k."""
        tile = self.shared_tile
        if self.registers is None:
            return [tile.load(number, first + step) for number in self.indices]
        stride = tile.read_width if tile.is_k_contiguous else 1
        indices = [
            n * stride + (step % stride if tile.is_k_contiguous else 0)
            for n in range(len(self.indices))
        ]
        return [BufferLoad(self.registers, (const(n),), tile.value.dtype) for n in indices]
