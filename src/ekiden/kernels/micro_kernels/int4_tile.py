"""Micro-kernel of products of int8 data with int4 weights in scaled groups.

    for b in groups:                                   sums[i, v] = -total[i, b] * point[b, v]
      for k: s += a[k] * level(w, k)              ->   for each word: sums[i, v] = dot4(...)
      d += (s - total[b] * point[b])                   acc[i, v] += sums[i, v] * step * scale
           * (step[b] * scale[b])

A word holds eight levels of a row: those of k to k + 3 in the low halves of its bytes, those of
k + 4 to k + 7 in the high ones. Sums of a group are int32, those of groups float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden import te
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Cast, Mul, PrimExpr, Var, cast, const
from ekiden.kernels.micro_kernels.panel_tiles import PanelTile
from ekiden.kernels.scheduled_kernel import result_description
from ekiden.tir.expr import Buffer, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, LetStmt, PrimFunc, Stmt, seq
from ekiden.tir.tensor_intrin.micro import DescribedTile, MicroKernel, Options

VALUES_PER_WORD = 8
"""Int4 values per word."""
Element = Callable[..., PrimExpr]
"""Function (indices) -> element of an operand, of one row or one column."""


def group_sum(data: Element, word: Element, group: PrimExpr, words: int) -> PrimExpr:
    """Return the int32 sum of data times levels of a group.

    Args:
        data: The element at k.
        word: The word of (group, number).
        group: The group.
        words: The words of a group.
    """
    w, half, byte = (te.reduce_axis((0, n), name) for n, name in ((words, "w"), (2, "h"), (4, "c")))
    shift = cast(byte * 8 + half * 4, "int32")
    shifted = call_intrin("right_shift", word(group, w), shift, dtype="int32")
    level = call_intrin("bitwise_and", shifted, const(15, "int32"), dtype="int32")
    at = (group * words + w) * VALUES_PER_WORD + half * 4 + byte
    return te.sum(cast(data(at), "int32") * level, (w, half, byte))


def scaled_group(
    group_sums: Element, row_factors: Sequence[Element], column_factors: Sequence[Element]
) -> Element:
    """Return the function of a group that gives its float32 term: its sum, less the data's sum
    times the zero point, times the steps of data and weight.

    Args:
        group_sums: The int32 sum of a group.
        row_factors: The step and the sum of the data of a group.
        column_factors: The step and the zero point of the weight of a group.
    """
    (step, total), (scale, point) = row_factors, column_factors

    def term(group: PrimExpr) -> PrimExpr:
        """Return a quantization group's contribution: the product of the scales times the dot
        product, corrected for the zero point.
        """
        # sum(a * (q - point)) = sum(a * q) - point * sum(a)
        corrected = group_sums(group) - total(group) * cast(point(group), "int32")
        return cast(corrected, "float32") * (step(group) * scale(group))

    return term


def describe_int4_result(options: Options) -> PrimFunc:
    """Return the program of one result."""
    groups, words = options["groups"], options["words"]
    data = te.placeholder((groups * words * VALUES_PER_WORD,), "int8", "data")
    step = te.placeholder((groups,), "float32", "step")
    total = te.placeholder((groups,), "int32", "total")
    weight = te.placeholder((groups, words, 1), "int32", "weight")
    scale = te.placeholder((groups, 1), "float32", "scale")
    point = te.placeholder((groups, 1), "uint8", "point")
    sums = te.compute(
        (groups,),
        lambda b: group_sum(lambda k: data[k], lambda b, w: weight[b, w, 0], b, words),
        name="sums",
    )
    b = te.reduce_axis((0, groups), "b")
    term = scaled_group(
        lambda b: sums[b],
        (lambda b: step[b], lambda b: total[b]),
        (lambda b: scale[b, 0], lambda b: point[b, 0]),
    )
    result = te.compute((), lambda: te.sum(term(b), b), name="result")
    return result_description([data, step, total, weight, scale, point], result)


class _Int4Tile(PanelTile):
    """Emitter of one tile."""

    def __init__(self, tile: DescribedTile, options: Options) -> None:
        super().__init__(tile, options)
        self.groups, self.words = options["groups"], options["words"]

    def load_vector(self, name: str, at: PrimExpr) -> PrimExpr:
        """Load a vector of an operand of columns, `at` elements from its first."""
        operand = self.tile.operands[name]
        index = ramp(operand.row_offsets[0] + at, 1, self.lanes)
        return operand.buffer[index].with_fields(
            dtype=dt.with_lanes(operand.buffer.dtype, self.lanes)
        )

    def emit_sums(self, acc: Buffer, column: int, vectors: int) -> Stmt:
        """Emit the loop over all groups."""
        b, w = Var("block"), Var("word")
        sums = Buffer("sums", (const(self.rows * vectors),), self.kind, "register")
        begin: list[Stmt] = []
        end: list[Stmt] = []
        for v in range(vectors):
            at = b * self.tile.operands["scale"].axis_strides[0] + (column + v * self.lanes)
            point = Cast(self.load_vector("point", at), self.kind)
            scale = self.load_vector("scale", at)
            for i in range(self.rows):
                n = const(i * vectors + v)
                # The zero point's share starts the sums.
                total = const(0, "int32") - self.row_element("total", i, b)
                begin.append(
                    BufferStore(sums, Mul(broadcast(total, self.lanes), point, self.kind), (n,))
                )
                step = broadcast(self.row_element("step", i, b), self.lanes)
                factor = Mul(step, scale, self.real)
                grown = call_intrin(
                    "fma", Cast(sums[n], self.real), factor, acc[n], dtype=self.real
                )
                end.append(BufferStore(acc, grown, (n,)))
        loop = For(
            w,
            const(0),
            const(self.words),
            ForKind.SERIAL,
            self.emit_word(sums, b, w, column, vectors),
        )
        inside = Allocate(sums, seq(*begin, loop, *end))
        return For(b, const(0), const(self.groups), ForKind.SERIAL, inside)

    def emit_word(self, sums: Buffer, b: Var, w: Var, column: int, vectors: int) -> Stmt:
        """Emit the products of one word of each column, added to the sums of its group."""
        loaded = [Var(f"w{v}", self.kind) for v in range(vectors)]
        halves = [(Var(f"low{v}", self.kind), Var(f"high{v}", self.kind)) for v in range(vectors)]
        steps: list[Stmt] = []
        k = (b * self.words + w) * VALUES_PER_WORD
        for i in range(self.rows):
            for half in range(2):
                value = Var(f"a{i}_{half}", self.kind)
                updates = []
                for v in range(vectors):
                    n = const(i * vectors + v)
                    updated = call_intrin(
                        "dot4_u8s8", sums[n], halves[v][half], value, dtype=self.kind
                    )
                    updates.append(BufferStore(sums, updated, (n,)))
                word = self.broadcast_word(i, k + half * (VALUES_PER_WORD // 2))
                steps.append(LetStmt(value, word, seq(*updates)))
        stmt = seq(*steps)
        mask, four = (broadcast(const(n, "int32"), self.lanes) for n in (0x0F0F0F0F, 4))
        group_stride, word_stride, _ = self.tile.operands["weight"].axis_strides
        for v in reversed(range(vectors)):
            # The shift moves the upper half of each byte down; the mask drops the neighbour's bits.
            upper = call_intrin("right_shift", loaded[v], four, dtype=self.kind)
            levels = [
                call_intrin("bitwise_and", x, mask, dtype=self.kind) for x in (loaded[v], upper)
            ]
            stmt = LetStmt(halves[v][1], levels[1], stmt)
            stmt = LetStmt(halves[v][0], levels[0], stmt)
            at = b * group_stride + w * word_stride + (column + v * self.lanes)
            stmt = LetStmt(loaded[v], self.load_vector("weight", at), stmt)
        return stmt


INT4_TILE_KERNEL = MicroKernel.register(
    MicroKernel(
        name="int4_tile",
        required_features=("dot4_u8s8",),
        defaults={
            "lanes": 16,
            "panel": 64,
            "groups": 1,
            "words": 1,
            "wide_rows": 0,
            "narrow_vectors": 2,
        },
        describe=describe_int4_result,
        write_described=lambda tile, options: _Int4Tile(tile, options).emit(),
    )
)
"""lanes: of a vector. panel: columns stored side by side. groups: of a row. words: of a group.
wide_rows: rows up to which a tile has all columns of a panel; narrow_vectors: the vectors of
other tiles."""

__all__ = ["INT4_TILE_KERNEL", "group_sum", "scaled_group"]
