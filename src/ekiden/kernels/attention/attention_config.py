"""Static parameters of an attention, and its operands by the axis letters of their layouts."""

from __future__ import annotations

from ekiden.arith import simplify
from ekiden.ir.prim import PrimExpr, const, maximum, minimum
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Buffer

__all__ = ["CAUSAL_MODES", "AttentionConfig", "StridedOperand"]

CAUSAL_MODES = ("", "start", "end")
"""Causal modes: no mask, mask aligned at the first key, mask aligned at the last key."""


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """Static parameters of an attention: layouts of query, key, value and result, the scale of
    scores (None: 1 / sqrt(depth)), the causal mode, the softcap (0: none), and whether NaN
    probabilities count as 0.
    """

    layouts: tuple[str, str, str, str] = ("bhsd",) * 4
    scale: float | None = None
    causal: str = ""
    softcap: float = 0.0
    nan_as_zero: bool = False

    def num_visible_keys(self, row: PrimExpr, queries: PrimExpr, keys: PrimExpr) -> PrimExpr:
        """Return the number of keys that a query attends to, counted from the first."""
        if not self.causal:
            return keys
        shift = keys - queries if self.causal == "end" else const(0)
        return maximum(minimum(row + shift + 1, keys), const(0))


@dataclass(frozen=True, slots=True)
class StridedOperand:
    """Buffer with its dimensions and strides by the axis letters of its layout."""

    buffer: Buffer
    dims: dict[str, PrimExpr]
    strides: dict[str, PrimExpr]

    @staticmethod
    def from_buffer(buffer: Buffer, layout: str) -> StridedOperand:
        """Return the operand of a compact buffer whose axes are in the order of `layout`."""
        step: PrimExpr = const(1)
        strides = {}
        for axis, dim in zip(reversed(layout), reversed(buffer.shape), strict=True):
            strides[axis] = step
            step = simplify(step * dim)
        return StridedOperand(buffer, dict(zip(layout, buffer.shape, strict=True)), strides)
