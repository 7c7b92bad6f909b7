"""Int8 contractions on GPUs with a four-byte dot-product instruction (dp4a).

    sum over k of a[m, k] * b[n, k]  ->  sum over words of dot4(a[m, word], b[n, word])

A word is four bytes that follow each other along k, packed when a thread loads it to shared memory,
whether they are neighbours in memory or not; bytes behind the last k are 0, so any k is served. The
rest is as in `tiled_matmul`, of int32 along words.
"""

from __future__ import annotations

from collections.abc import Mapping

from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin, if_then_else
from ekiden.ir.prim import Cast, Intrinsic, PrimExpr, Var, cast, const, is_const
from ekiden.ir.prim_visitor import free_vars, substitute
from ekiden.kernels.decision import Decision
from ekiden.kernels.family import known_extent
from ekiden.kernels.gpu.contraction_factors import (
    ContractionFactors,
    is_unit_stride,
    match_contraction,
)
from ekiden.kernels.gpu.launch import ReductionGroup
from ekiden.kernels.gpu.tiled_matmul import TiledMatmulKernel
from ekiden.kernels.gpu.vector_access import unravel_index
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.te.reducer import Reduce, ReduceAxis, reduce_axis
from ekiden.te.tensor import ProducerLoad
from ekiden.tir.expr import BufferLoad, ramp
from ekiden.tir.stmt import BufferStore, PrimFunc, Stmt

DOT_WORD_BYTES = 4
"""Bytes per dot-product word."""
DEFAULT_WORD_DEPTH = 16
"""Default words of k between two barriers."""
MIN_WORD_DEPTH = 4
FACTOR_DTYPES: Mapping[str, str] = {"int8": "s8", "uint8": "u8"}
"""Byte dtypes with int32 accumulation -> their name in instructions."""


def strip_int32_widening(factor: PrimExpr) -> PrimExpr | None:
    """Return the byte expression that is widened to int32, or None."""
    if not isinstance(factor, Cast) or factor.dtype != "int32":
        return None
    return factor.value if factor.value.dtype in FACTOR_DTYPES else None


def dot_feature(a: str, b: str) -> str:
    """Return the target feature of the dot-product instruction for two byte dtypes, in either
    order.
    """
    first_kind, second_kind = sorted(
        (FACTOR_DTYPES[a], FACTOR_DTYPES[b]), reverse=True
    )  # u8s8, of different ones
    return f"dot4_{first_kind}{second_kind}"


def can_multiply(factors: ContractionFactors, target: Target) -> bool:
    """Return whether a target has the dot-product instruction for these factors."""
    a, b = strip_int32_widening(factors.a), strip_int32_widening(factors.b)
    return a is not None and b is not None and target.has(dot_feature(a.dtype, b.dtype))


def words_per_k_block(factors: ContractionFactors) -> int:
    """Return the words of k between two barriers, limited by the reduction's size."""
    size, depth = known_extent(factors.reduction_size), DEFAULT_WORD_DEPTH
    while size is not None and depth > MIN_WORD_DEPTH and size <= depth // 2 * DOT_WORD_BYTES:
        depth //= 2
    return depth


class KWordPacker:
    """Packer of the reduction axes of a contraction into words of four bytes.

    Where the last axis of k is a multiple of a word, words replace that axis, which takes fewer
    divisions than words of all axes as one do.
    """

    def __init__(self, factors: ContractionFactors) -> None:
        self.axes, self.depth = factors.reduce_axes.axis, factors.reduction_size
        self.is_exact = is_const(simplify(self.axes[-1].extent % DOT_WORD_BYTES), 0)
        # Words inside the last axis need no division of k; otherwise all axes are one, padded by 0.
        outer = self.axes[:-1] if self.is_exact else ()
        size = self.axes[-1].extent if self.is_exact else self.depth + (DOT_WORD_BYTES - 1)
        self.word = reduce_axis((0, simplify(size // DOT_WORD_BYTES)), "word")
        self.words: tuple[ReduceAxis, ...] = (*outer, self.word)

    def load_byte(self, value: PrimExpr, number: int) -> PrimExpr:
        """Load a byte of a factor's word, zero-extended; 0 past the last k."""
        step = self.word * DOT_WORD_BYTES + number
        indices: dict[Var, PrimExpr] = (
            {self.axes[-1]: step} if self.is_exact else self._values_at_step(step)
        )
        # Through uint8: a sign extension would set bits of the word's other bytes.
        byte = cast(cast(substitute(value, indices), "uint8"), "uint32")
        if self.is_exact or number == 0 or is_const(simplify(self.depth % DOT_WORD_BYTES), 0):
            return byte
        return if_then_else(step < self.depth, byte, const(0, "uint32"))

    def _values_at_step(self, step: PrimExpr) -> dict[Var, PrimExpr]:
        position = unravel_index(step, [r.extent for r in self.axes])
        return dict(zip(self.axes, position, strict=True))

    def pack_word(self, value: PrimExpr) -> PrimExpr:
        """Pack four bytes of a factor into a little-endian word."""
        if self.is_exact and (near := self._load_contiguous_word(value)) is not None:
            return near
        word = self.load_byte(value, 0)
        for number in range(1, DOT_WORD_BYTES):
            moved = call_intrin(
                "left_shift", self.load_byte(value, number), const(8 * number, "uint32")
            )
            word = call_intrin("bitwise_or", word, moved)
        return cast(word, "int32")

    def _load_contiguous_word(self, value: PrimExpr) -> PrimExpr | None:
        """Return a 32-bit load of four contiguous bytes, or None where they are not contiguous. A
        condition that holds for all of them stays in front of the read.

        A condition that holds for all of them stays in front of the read. None where they are no
        neighbours.
        """
        last = self.axes[-1]
        match value:
            case Intrinsic(op="if_then_else", args=(condition, inside, outside)):
                near = None if last in free_vars(condition) else self._load_contiguous_word(inside)
                if near is None or not is_const(outside, 0):
                    return None
                return if_then_else(condition, near, const(0, "int32"))
            case ProducerLoad(producer=tensor, indices=(*outer, index)):
                is_near = is_const(simplify(substitute(index, {last: last + 1}) - index), 1)
                if not is_near or any(last in free_vars(outer_index) for outer_index in outer):
                    return None
                first = substitute(index, {last: self.word * DOT_WORD_BYTES})
                kind = dt.with_lanes(value.dtype, DOT_WORD_BYTES)
                read = ProducerLoad(tensor, (*outer, ramp(first, 1, DOT_WORD_BYTES)), kind)
                return Intrinsic("reinterpret", (read,), "int32")
        return None


@dataclass(frozen=True, slots=True)
class WordReductionGroup(ReductionGroup):
    """Reduction group whose reduction runs over words of four bytes."""

    words: Reduce

    @property
    def reduce(self) -> Reduce:
        """Return the reduction over words."""
        return self.words


class Int8DotKernel(TiledMatmulKernel):
    """Builder of a tiled kernel that multiplies words of four bytes."""

    elements_per_step = DOT_WORD_BYTES

    @classmethod
    def max_access_width_of(cls, target: Target, factors: ContractionFactors) -> int:
        """Return 1: words are loaded one at a time."""
        return 1

    def __init__(self, group: ReductionGroup, decision: Decision) -> None:
        f = match_contraction(group.anchor)
        assert f is not None
        a, b = strip_int32_widening(f.a), strip_int32_widening(f.b)
        assert a is not None and b is not None
        self.bytes_, self.innermost_axis = (a, b), f.reduce_axes.axis[-1]
        self.factor_dtypes = a.dtype, b.dtype
        super().__init__(group, decision)
        steps = KWordPacker(f)
        x, y = steps.pack_word(a), steps.pack_word(b)
        words = f.reduce_axes.with_fields(sources=(x * y,), axis=steps.words)
        self.group = WordReductionGroup(
            group.params, group.inputs, group.output, group.anchor, words
        )
        self.factors = ContractionFactors(x, y, f.batch, f.rows, f.columns, f.extents, words)

    def is_k_contiguous(self, factor: PrimExpr) -> bool:
        """Return whether consecutive words of k are adjacent in a factor's memory."""
        step = Var("step")
        read = self.bytes_[0 if factor is self.factors.a else 1]  # of bytes, or of words
        return is_unit_stride(read, {self.innermost_axis: step}, step)

    def emit_product(self, number: int, x: PrimExpr, y: PrimExpr) -> Stmt:
        """Emit the dot product of two words, added to an accumulator."""
        indices, op = (const(number),), dot_feature(*self.factor_dtypes)
        total = BufferLoad(self.sums, indices, self.dtype)
        # The mixed instruction takes the unsigned operand first.
        x, y = (y, x) if self.factor_dtypes == ("int8", "uint8") else (x, y)
        return BufferStore(self.sums, call_intrin(op, total, x, y, dtype="int32"), indices)

    def build(self, name: str, shared: bool = True) -> PrimFunc:
        """Build the PrimFunc."""
        return super().build(name, shared=True)


__all__ = ["FACTOR_DTYPES", "Int8DotKernel", "can_multiply", "words_per_k_block"]
