"""Dense layers of bytes with weights of four bits, by products of bytes.

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
from ekiden.kernels.decision import Decision, Fixed
from ekiden.kernels.family import Family
from ekiden.kernels.prim_builder import tiled_builder
from ekiden.kernels.quantized.word_panels import WordPanels, operands_of, rows_in_registers, space
from ekiden.target import Target
from ekiden.tir.expr import Buffer, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, LetStmt, Stmt, seq
from ekiden.topi.nn.nibbles import PANEL_ROWS, WORD_VALUES

SPARE_REGISTERS = 4
"""Registers beside sums: what is unpacked of a word, and the mask."""
TAG = "dense_nibbles_pack"


class _Int4Kernel(WordPanels):
    """A builder of one kernel."""

    def __init__(
        self,
        inputs: list[te.Tensor],
        outputs: list[te.Tensor],
        target: Target,
        decision: Decision,
    ) -> None:
        super().__init__(inputs, outputs, target, decision, TAG, PANEL_ROWS)
        _, self.step, self.total, self.weight, self.scale, self.point = self.operands
        self.blocks, self.words = self.weight.shape[1:3]

    def load(self, buffer: Buffer, at: PrimExpr) -> PrimExpr:
        """Load a vector."""
        vector = dt.with_lanes(buffer.dtype, self.lanes)
        return buffer[ramp(at, 1, self.lanes)].with_fields(dtype=vector)

    def add_word(
        self,
        sums: Buffer,
        rows: int,
        first: PrimExpr,
        word_offset: PrimExpr,
        at: PrimExpr,
        vectors: int,
    ) -> Stmt:
        """Emit the addition of a word of each row of the weight to the sums.

        Args:
            sums: The sums of the block.
            rows: Rows of the tile.
            first: The first row.
            place: The offset of the words.
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
                data_word = self.word(first + i, at + half * (WORD_VALUES // 2))
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
            stmt = LetStmt(loaded[v], self.load(self.weight, word_offset + v * self.lanes), stmt)
        return stmt

    def block(
        self, acc: Buffer, rows: int, first: PrimExpr, panel: PrimExpr, column: int, vectors: int
    ) -> Stmt:
        """Return the loop over all blocks of k for a tile."""
        b, w = Var("block"), Var("word")
        kind, real = dt.with_lanes("int32", self.lanes), dt.with_lanes("float32", self.lanes)
        sums = Buffer("sums", (const(rows * vectors),), kind, "register")
        line = panel * self.blocks + b
        begin: list[Stmt] = []
        end: list[Stmt] = []
        for v in range(vectors):
            at = line * PANEL_ROWS + (column + v * self.lanes)
            point = Cast(self.load(self.point, at), kind)
            scale = self.load(self.scale, at)
            for i in range(rows):
                n, of_row = const(i * vectors + v), (first + i) * self.blocks + b
                # sum(a * (q - point)) = sum(a * q) - point * sum(a): the second term starts the
                # sums.
                total = broadcast(const(0, "int32") - self.total[of_row], self.lanes)
                begin.append(BufferStore(sums, Mul(total, point, kind), (n,)))
                step = Mul(broadcast(self.step[of_row], self.lanes), scale, real)
                grown = call_intrin("fma", Cast(sums[n], real), step, acc[n], dtype=real)
                end.append(BufferStore(acc, grown, (n,)))
        word_offset = (line * self.words + w) * PANEL_ROWS + column
        words = self.add_word(
            sums, rows, first, word_offset, (b * self.words + w) * WORD_VALUES, vectors
        )
        loop = For(w, const(0), self.words, ForKind.SERIAL, words)
        block_body = Allocate(sums, seq(*begin, loop, *end))
        return For(b, const(0), self.blocks, ForKind.SERIAL, block_body)


def accepts(anchor: te.Tensor, target: Target) -> bool:
    """Return whether the kernel covers a product: the shape of the weight is known."""
    return all(isinstance(d, IntImm) for t in operands_of(anchor)[3:] for d in t.shape)


def default(anchor: te.Tensor, target: Target, fixed: Fixed) -> Decision:
    """Return as many rows as registers hold sums of."""
    return rows_in_registers(target, fixed, PANEL_ROWS, SPARE_REGISTERS)


FAMILY = Family(
    name=TAG,
    accepts=accepts,
    needs=("dot4_u8s8",),
    space=space,
    default=default,
    build=tiled_builder(_Int4Kernel),
    why="each block of k is scaled on its way into the sums, which are of two types",
)
