"""Int8 dense layers with int4 weights, by int8 dot products.

for each panel of 64 rows of the weight, in parallel; for each tile of rows of the data:
  for each block of k:
    t[i, v] = -total[i, block] * point[block, v]
    for each word of the block:                        32 bits: eight numbers
      t[i, v] += four bytes of a . lower halves of b[v] + the next four . upper halves
    acc[i, v] += step[i, block] * scale[block, v] * t[i, v]
"""

from __future__ import annotations

from ekiden import te
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Cast, IntImm, Mul, PrimExpr, Var, const
from ekiden.kernels.decision import Decision, Overrides
from ekiden.kernels.family import Family
from ekiden.kernels.prim_builder import kernel_builder
from ekiden.kernels.quantized.word_panels import (
    WordPanelKernel,
    anchor_operands,
    rows_in_registers,
    search_space,
)
from ekiden.target import Target
from ekiden.tir.expr import Buffer, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, LetStmt, Stmt, seq
from ekiden.topi.nn.int4_dense import ROWS_PER_PANEL, VALUES_PER_WORD

INT4_SPARE_REGISTERS = 4
"""Registers for unpacked words and the mask beside the accumulators."""
INT4_DENSE_TAG = "dense_nibbles_pack"


class _Int4DenseKernel(WordPanelKernel):
    """Builder of one int4 dense kernel."""

    def __init__(
        self,
        inputs: list[te.Tensor],
        outputs: list[te.Tensor],
        target: Target,
        decision: Decision,
    ) -> None:
        super().__init__(inputs, outputs, target, decision, INT4_DENSE_TAG, ROWS_PER_PANEL)
        _, self.step, self.total, self.weight, self.scale, self.point = self.operands
        self.blocks, self.words = self.weight.shape[1:3]

    def load_vector(self, buffer: Buffer, at: PrimExpr) -> PrimExpr:
        """Load a vector of int32 words."""
        vector = dt.with_lanes(buffer.dtype, self.lanes)
        return buffer[ramp(at, 1, self.lanes)].with_fields(dtype=vector)

    def emit_word(
        self,
        sums: Buffer,
        rows: int,
        first: PrimExpr,
        word_offset: PrimExpr,
        at: PrimExpr,
        vectors: int,
    ) -> Stmt:
        """Emit the products of one word of each weight row, added to the sums.

        Args:
            sums: The sums of the block.
            rows: Rows of the tile.
            first: The first row.
            word_offset: The offset of the words.
            at: The first k of the words.
            vectors: Vectors of columns.
        """
        kind = dt.with_lanes("int32", self.lanes)
        loaded = [Var(f"w{v}", kind) for v in range(vectors)]
        halves = [(Var(f"low{v}", kind), Var(f"high{v}", kind)) for v in range(vectors)]
        steps: list[Stmt] = []
        for i in range(rows):
            for half in range(2):
                value = Var(f"a{i}_{half}", kind)
                updates = []
                for v in range(vectors):
                    n = const(i * vectors + v)
                    updated = call_intrin("dot4_u8s8", sums[n], halves[v][half], value, dtype=kind)
                    updates.append(BufferStore(sums, updated, (n,)))
                # Low nibbles hold the first four values of k of a word, high nibbles the last four.
                data_word = self.broadcast_word(first + i, at + half * (VALUES_PER_WORD // 2))
                steps.append(LetStmt(value, data_word, seq(*updates)))
        stmt = seq(*steps)
        mask, four = (broadcast(const(n, "int32"), self.lanes) for n in (0x0F0F0F0F, 4))
        for v in reversed(range(vectors)):
            # The shift moves the upper nibble of each byte down; the mask drops the neighbour's
            # bits.
            upper = call_intrin("right_shift", loaded[v], four, dtype=kind)
            nibbles = [call_intrin("bitwise_and", x, mask, dtype=kind) for x in (loaded[v], upper)]
            stmt = LetStmt(halves[v][1], nibbles[1], stmt)
            stmt = LetStmt(halves[v][0], nibbles[0], stmt)
            stmt = LetStmt(
                loaded[v], self.load_vector(self.weight, word_offset + v * self.lanes), stmt
            )
        return stmt

    def emit_blocks(
        self, acc: Buffer, rows: int, first: PrimExpr, panel: PrimExpr, column: int, vectors: int
    ) -> Stmt:
        """Emit the loop over all k blocks of a tile."""
        b, w = Var("block"), Var("word")
        kind, real = dt.with_lanes("int32", self.lanes), dt.with_lanes("float32", self.lanes)
        sums = Buffer("sums", (const(rows * vectors),), kind, "register")
        line = panel * self.blocks + b
        begin: list[Stmt] = []
        end: list[Stmt] = []
        for v in range(vectors):
            at = line * ROWS_PER_PANEL + (column + v * self.lanes)
            point = Cast(self.load_vector(self.point, at), kind)
            scale = self.load_vector(self.scale, at)
            for i in range(rows):
                n, of_row = const(i * vectors + v), (first + i) * self.blocks + b
                # sum(a * (q - point)) = sum(a * q) - point * sum(a): the second term starts the
                # sums.
                total = broadcast(const(0, "int32") - self.total[of_row], self.lanes)
                begin.append(BufferStore(sums, Mul(total, point, kind), (n,)))
                step = Mul(broadcast(self.step[of_row], self.lanes), scale, real)
                grown = call_intrin("fma", Cast(sums[n], real), step, acc[n], dtype=real)
                end.append(BufferStore(acc, grown, (n,)))
        word_offset = (line * self.words + w) * ROWS_PER_PANEL + column
        words = self.emit_word(
            sums, rows, first, word_offset, (b * self.words + w) * VALUES_PER_WORD, vectors
        )
        loop = For(w, const(0), self.words, ForKind.SERIAL, words)
        block_body = Allocate(sums, seq(*begin, loop, *end))
        return For(b, const(0), self.blocks, ForKind.SERIAL, block_body)


def is_supported(anchor: te.Tensor, target: Target) -> bool:
    """Return whether the kernel covers a product: the weight's shape is static."""
    return all(isinstance(d, IntImm) for t in anchor_operands(anchor)[3:] for d in t.shape)


def default_decision(anchor: te.Tensor, target: Target, fixed: Overrides) -> Decision:
    """Return the default decision: as many rows as the registers hold accumulators for."""
    return rows_in_registers(target, fixed, ROWS_PER_PANEL, INT4_SPARE_REGISTERS)


FAMILY = Family(
    name=INT4_DENSE_TAG,
    accepts=is_supported,
    required_features=("dot4_u8s8",),
    search_space=search_space,
    default_decision=default_decision,
    build_unscheduled=kernel_builder(_Int4DenseKernel),
    unscheduled_reason=(
        "each block of k is scaled as it is accumulated, and the accumulators have two types"
    ),
)
