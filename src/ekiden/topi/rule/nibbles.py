"""Dense layers of bytes with weights of four bits, by products of bytes.

    for each panel of 64 rows of the weight, in parallel; for each tile of rows of the data:
      for each block of k:
        t[i, v] = -total[i, block] * point[block, v]
        for each word of the block:                        32 bits: eight numbers
          t[i, v] += four bytes of a . lower halves of b[v] + the next four . upper halves
        acc[i, v] += step[i, block] * scale[block, v] * t[i, v]

One row takes all 64 columns at once, to have sums enough that none waits for another; beyond
`wide_rows` tiles are two vectors wide, so that what is unpacked serves more rows.
"""

from __future__ import annotations

from ekiden import te
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Cast, IntImm, Mul, PrimExpr, Var, const
from ekiden.target import Target
from ekiden.tir.expr import Buffer, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, LetStmt, PrimFunc, Stmt, seq
from ekiden.topi.nn.nibbles import GROUP, PANEL
from ekiden.topi.rule.by_hand import make_buffers, product, tiled_function, unflatten
from ekiden.topi.rule.decision import Choice, Decision, Fixed, Space, steps_down
from ekiden.topi.rule.epilogue import Epilogue, find_anchor
from ekiden.topi.rule.family import Family
from ekiden.topi.rule.product_space import MOST_ROWS
from ekiden.topi.rule.tiles import balanced_rows, column_mask

NARROW = 2
"""Vectors of tiles of many rows."""
SPARE = 4
"""Registers beside sums: what is unpacked of a word, and the mask."""


class _Nibbles:
    """One kernel being built."""

    def __init__(
        self,
        inputs: list[te.Tensor],
        outputs: list[te.Tensor],
        target: Target,
        decision: Decision,
    ) -> None:
        self.decision = decision
        self.anchor = find_anchor(outputs, "dense_nibbles_pack")
        self.buffers = make_buffers(inputs, outputs)
        operands = [self.buffers[t] for t in _operands(self.anchor)]
        self.data, self.step, self.total, self.weight, self.scale, self.point = operands
        self.units = int(str(self.anchor.op.attrs["units"]))
        self.lanes = target.lanes("float32")
        self.blocks, self.words = self.weight.shape[1:3]
        self.rows = product(self.data.shape[:-1])
        self.epilogue = Epilogue(self.anchor, outputs[0], self.buffers)
        self.leading = list(outputs[0].shape[:-1])

    def load(self, buffer: Buffer, at: PrimExpr) -> PrimExpr:
        """A vector."""
        vector = dt.with_lanes(buffer.dtype, self.lanes)
        return buffer[ramp(at, 1, self.lanes)].with_fields(dtype=vector)

    def word(self, row: PrimExpr, at: PrimExpr) -> PrimExpr:
        """Four bytes of the data in every lane."""
        start = row * self.data.shape[-1] + at
        taken = self.data[ramp(start, 1, 4)].with_fields(dtype="int8x4")
        return broadcast(call_intrin("reinterpret", taken, dtype="int32"), self.lanes)

    def words_of(
        self, sums: Buffer, rows: int, first: PrimExpr, place: PrimExpr, at: PrimExpr, vectors: int
    ) -> Stmt:
        """The sums grow by a word of each row of the weight: those at `place`, and `at` in k."""
        kind = dt.with_lanes("int32", self.lanes)
        loaded = [Var(f"w{v}", kind) for v in range(vectors)]
        halves = [(Var(f"low{v}", kind), Var(f"high{v}", kind)) for v in range(vectors)]
        steps: list[Stmt] = []
        for i in range(rows):
            for half in range(2):
                value = Var(f"a{i}_{half}", kind)
                grown = []
                for v in range(vectors):
                    n = const(i * vectors + v)
                    made = call_intrin("dot4_u8s8", sums[n], halves[v][half], value, dtype=kind)
                    grown.append(BufferStore(sums, made, (n,)))
                taken = self.word(first + i, at + half * (GROUP // 2))
                steps.append(LetStmt(value, taken, seq(*grown)))
        made_all = seq(*steps)
        mask, four = (broadcast(const(n, "int32"), self.lanes) for n in (0x0F0F0F0F, 4))
        for v in reversed(range(vectors)):
            upper = call_intrin("right_shift", loaded[v], four, dtype=kind)
            parts = [call_intrin("bitwise_and", x, mask, dtype=kind) for x in (loaded[v], upper)]
            made_all = LetStmt(halves[v][1], parts[1], made_all)
            made_all = LetStmt(halves[v][0], parts[0], made_all)
            made_all = LetStmt(loaded[v], self.load(self.weight, place + v * self.lanes), made_all)
        return made_all

    def block(
        self, acc: Buffer, rows: int, first: PrimExpr, panel: PrimExpr, column: int, vectors: int
    ) -> Stmt:
        """All blocks of k for a tile."""
        b, w = Var("block"), Var("word")
        kind, real = dt.with_lanes("int32", self.lanes), dt.with_lanes("float32", self.lanes)
        sums = Buffer("sums", (const(rows * vectors),), kind, "register")
        line = panel * self.blocks + b
        begin: list[Stmt] = []
        end: list[Stmt] = []
        for v in range(vectors):
            at = line * PANEL + (column + v * self.lanes)
            point = Cast(self.load(self.point, at), kind)
            scale = self.load(self.scale, at)
            for i in range(rows):
                n, of_row = const(i * vectors + v), (first + i) * self.blocks + b
                total = broadcast(const(0, "int32") - self.total[of_row], self.lanes)
                begin.append(BufferStore(sums, Mul(total, point, kind), (n,)))
                step = Mul(broadcast(self.step[of_row], self.lanes), scale, real)
                grown = call_intrin("fma", Cast(sums[n], real), step, acc[n], dtype=real)
                end.append(BufferStore(acc, grown, (n,)))
        place = (line * self.words + w) * PANEL + column
        words = self.words_of(sums, rows, first, place, (b * self.words + w) * GROUP, vectors)
        loop = For(w, const(0), self.words, ForKind.SERIAL, words)
        each = Allocate(sums, seq(*begin, loop, *end))
        return For(b, const(0), self.blocks, ForKind.SERIAL, each)

    def tile(self, rows: int, first: PrimExpr, panel: PrimExpr, column: int, valid: int) -> Stmt:
        """One tile from a column of a panel, of whose columns from there `valid` are stored."""
        is_wide = rows <= self.decision.number("wide_rows")
        wanted = PANEL // self.lanes if is_wide else NARROW
        vectors = min(wanted, -(-valid // self.lanes))
        acc = Buffer(
            "acc", (const(rows * vectors),), dt.with_lanes("float32", self.lanes), "register"
        )
        zero = broadcast(const(0.0, "float32"), self.lanes)
        count = rows * vectors
        clear = [BufferStore(acc, zero, (const(n),)) for n in range(count)]
        stores: list[Stmt] = []
        for n in range(count):
            i, v = divmod(n, vectors)
            left = valid - v * self.lanes
            mask = None if left >= self.lanes else column_mask(left, self.lanes)
            row, at = first + i, panel * PANEL + (column + v * self.lanes)
            place = row * self.units + at
            indices = unflatten(row, self.leading, at)
            stores.append(self.epilogue.store(indices, place, acc[const(n)], mask))
        work = self.block(acc, rows, first, panel, column, vectors)
        made = Allocate(acc, seq(*clear, work, *stores))
        width = vectors * self.lanes
        if valid <= width:
            return made
        return seq(made, self.tile(rows, first, panel, column + width, valid - width))

    def panels(self, count: int, begin: int, valid: int) -> Stmt:
        """Some panels in parallel, all rows of each."""
        panel = Var("p")
        inside = balanced_rows(
            self.rows,
            self.decision.number("rows"),
            lambda rows, first: self.tile(rows, first, panel, 0, valid),
        )
        return For(panel, const(begin), const(count), ForKind.PARALLEL, inside, {"grain": 1})

    def body(self) -> Stmt:
        """Whole panels, then the last one if it is narrower."""
        whole, rest = divmod(self.units, PANEL)
        parts = [self.panels(whole, 0, PANEL)] if whole else []
        if rest:
            parts.append(self.panels(1, whole, rest))
        return seq(*parts)


def _operands(anchor: te.Tensor) -> tuple[te.Tensor, ...]:
    found = anchor.op.attrs["inputs"]
    assert isinstance(found, tuple)
    return found


def accepts(anchor: te.Tensor) -> bool:
    """Whether the rule covers a product: the shape of the weight is known."""
    return all(isinstance(d, IntImm) for t in _operands(anchor)[3:] for d in t.shape)


def dense_nibbles_pack(
    inputs: list[te.Tensor],
    outputs: list[te.Tensor],
    target: Target,
    name: str,
    decision: Decision,
) -> PrimFunc:
    """The rule for tag "dense_nibbles_pack"."""
    kernel = _Nibbles(inputs, outputs, target, decision)
    return tiled_function(name, kernel.buffers, kernel.body(), len(outputs))


def space(anchor: te.Tensor, target: Target) -> Space:
    """What may be chosen."""
    rows = steps_down(MOST_ROWS)
    return (
        Choice("rows", rows, "rows of a tile"),
        Choice("wide_rows", (*rows, 0), "rows up to which a tile has all columns of a panel"),
    )


def default(anchor: te.Tensor, target: Target, fixed: Fixed) -> Decision:
    """As many rows as registers hold sums of, whole numbers and floats, with all columns; and as
    many sums with two vectors."""
    vectors = PANEL // target.lanes("float32")
    wide = max(1, (target.registers - SPARE) // (2 * vectors))
    rows = max(wide, wide * vectors // NARROW)
    return Decision.of({"rows": fixed.get("rows", rows), "wide_rows": fixed.get("wide_rows", wide)})


FAMILY = Family(
    name="dense_nibbles_pack",
    accepts=accepts,
    needs=("dot4_u8s8",),
    space=space,
    default=default,
    build=dense_nibbles_pack,
    why="each block of k is scaled on its way into the sums, which are of two types",
)
