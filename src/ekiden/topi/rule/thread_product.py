"""Sums of products on devices of many threads: dense layers, products of matrices in batches,
convolutions, and whatever else multiplies what depends on rows by what depends on columns.

    out[z, m, n] = sum over k of a[z, m, k] * b[z, n, k]

Axes that only one factor reads are rows or columns, those that both read batches: a convolution is
a product whose rows are its channels, whose columns are its pixels, and whose k are channels and
taps; the data is never copied. Columns are those with the last axis of the result, so that
neighbouring threads write neighbouring elements.

    a block of threads per tile of rows x columns, each thread every so many columns of some rows
    vector>1   one thread a block, whose columns or steps of k are vectors (`thread_vectors`)
    shared=0   for k: a, b of the thread's rows and columns; sums in registers
    shared=1   for blocks of k: all threads bring their share of a and b into memory of the block;
               barrier; for k in the block: sums in registers; barrier
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ekiden.arith import simplify
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import Mul, PrimExpr, Var, const, logical_and, minimum
from ekiden.target import Target
from ekiden.te.prim_func import allocated
from ekiden.te.tensor import ComputeOp, Tensor
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import BufferStore, IfThenElse, LetStmt, PrimFunc, Stmt, seq
from ekiden.tir.transform.thread_sync import BARRIER
from ekiden.topi.rule.decision import Choice, Decision, Fixed, Space
from ekiden.topi.rule.family import Family, size_of
from ekiden.topi.rule.loops import product
from ekiden.topi.rule.thread_factors import Factors, factors_of
from ekiden.topi.rule.thread_lanes import coordinates
from ekiden.topi.rule.thread_parts import Group, bound, serial
from ekiden.topi.rule.thread_vectors import (
    COLUMNS,
    DEPTH,
    VectorKernel,
    columns_of,
    tile_of,
    way_of,
)

ROWS, SUMS = 4, 4
"""Sums of a thread: as many as keep loads below multiply-adds and still fit its registers."""
LANES = 16
"""Threads beside each other along columns."""

ALONE_ROWS, ALONE_COLUMNS, ALONE_LANES = 8, 2, 64
"""The same where threads run one after the other, as in PoCL on a processor, whose compiler makes
vectors along the threads of a block (512x512x512 on a Zen 4: 2.9 GFLOP/s, 1.3 with the above)."""
DEPTH_OF_BLOCK = 16
"""Steps of k between two barriers."""


def _space(anchor: Tensor, target: Target) -> Space:
    return (
        Choice("rows", (8, 4, 2, 1), "rows of a thread"),
        Choice("columns", (8, 4, 2, 1), "columns of a thread"),
        Choice("lanes", (64, 32, 16, 8, 4, 2, 1), "threads beside each other along columns"),
        Choice("lines", (64, 32, 16, 8, 4, 2, 1), "threads above each other along rows"),
        Choice("depth", (32, 16, 8, 4), "steps between two barriers, of shared=1"),
        Choice("shared", (1, 0), "whether blocks of k come into memory of the block"),
        Choice("vector", (16, 8, 4, 2, 1), "lanes of the vectors of a thread alone in its block"),
        Choice("along", (COLUMNS, DEPTH), "what its vectors run over"),
    )


def _down(most: int, size: int | None) -> int:
    """A power of two up to `most`, no larger than needed for a size."""
    return most if size is None else max(1, min(most, 2 ** math.ceil(math.log2(max(size, 1)))))


def _default(anchor: Tensor, target: Target, fixed: Fixed) -> Decision:
    """Squares of sums; where threads run alone (a warp of 1), as on processors, fewer threads and
    no barriers, which make each of them stop."""
    factors = factors_of(anchor)
    assert factors is not None
    if (vectors := _of_vectors(anchor, factors, target, fixed)) is not None:
        return vectors
    m, n = size_of(factors.size(factors.rows)), size_of(factors.size(factors.columns))
    has_warps = target.thread_warp_size > 1
    lanes = _down(LANES if has_warps else ALONE_LANES, n)
    rows = _down(ROWS if has_warps else ALONE_ROWS, m)
    most = SUMS if has_warps else ALONE_COLUMNS
    columns = _down(most, None if n is None else -(-n // lanes))
    lines = _down(LANES if has_warps else 1, None if m is None else -(-m // rows))
    while lanes * lines > target.max_num_threads:
        lines //= 2
    found: dict[str, int | str] = {
        "rows": rows, "columns": columns, "lanes": lanes, "lines": lines,
        "depth": DEPTH_OF_BLOCK, "shared": int(has_warps), "vector": 1, "along": COLUMNS,
    }  # fmt: skip
    return Decision.of(found | dict(fixed))


def _of_vectors(anchor: Tensor, factors: Factors, target: Target, fixed: Fixed) -> Decision | None:
    """With vectors, where threads run one after the other and have them; None where they do not,
    or something is fixed that only the other kernels have."""
    most = target.lanes(factors.a.dtype)
    asked = fixed.get("vector", most if target.thread_warp_size == 1 else 1)
    if asked == 1 or not fixed.keys().isdisjoint(("lanes", "lines", "depth", "shared")):
        return None
    along, lanes = way_of(anchor, factors, int(asked))
    if lanes == 1 and "vector" not in fixed:
        return None
    inner = columns_of(factors) if along == COLUMNS else factors.columns
    m, n = size_of(factors.size(factors.rows)), size_of(factors.size(inner))
    vectors = n if n is None or along == DEPTH else n // lanes
    rows, columns = tile_of(target, m, vectors, along)
    found: dict[str, int | str] = {
        "rows": rows, "columns": columns, "lanes": 1, "lines": 1, "depth": DEPTH_OF_BLOCK,
        "shared": 0, "vector": lanes, "along": along,
    }  # fmt: skip
    return Decision.of(found | dict(fixed))


class _Kernel:
    """One program being built."""

    def __init__(self, group: Group, decision: Decision) -> None:
        factors = factors_of(group.anchor)
        assert factors is not None
        self.group, self.factors = group, factors
        self.rows, self.columns, self.lanes, self.lines, self.depth = (
            decision.number(n) for n in ("rows", "columns", "lanes", "lines", "depth")
        )
        self.m, self.n = factors.size(factors.rows), factors.size(factors.columns)
        self.dtype = group.reduce.dtype
        count = const(self.rows * self.columns)
        self.sums = Buffer("sums", (count,), self.dtype, "local")
        self.thread = Var("thread")
        self.block_m, self.block_n, self.block_z = Var("tile"), Var("part"), Var("batch")

    @property
    def tile_m(self) -> int:
        """Rows of a block."""
        return self.rows * self.lines

    @property
    def tile_n(self) -> int:
        """Columns of a block."""
        return self.columns * self.lanes

    def row(self, i: int) -> PrimExpr:
        """Row i of this thread."""
        return self.block_m * self.tile_m + self.own_row(i)

    def own_row(self, i: int) -> PrimExpr:
        """The same in the tile of the block."""
        return self.thread // self.lanes + i * self.lines

    def column(self, j: int) -> PrimExpr:
        """Column j of this thread."""
        return self.block_n * self.tile_n + self.own_column(j)

    def own_column(self, j: int) -> PrimExpr:
        """The same in the tile of the block."""
        return self.thread % self.lanes + j * self.lanes

    def places(self, axes: Sequence[Var], number: PrimExpr) -> dict[Var, PrimExpr]:
        """Axes at the element of a number."""
        at = coordinates(number, [self.factors.extents[v] for v in axes]) if axes else []
        return dict(zip(axes, at, strict=True))

    def factor(self, value: PrimExpr, axes: Sequence[Var], number: PrimExpr, k: object) -> PrimExpr:
        """A factor at an element of its axes and a step."""
        assert isinstance(k, dict)
        at = self.places(axes, number) | self.places(self.factors.batch, self.block_z) | k
        return self.group.element(value, at)

    def start(self) -> Stmt:
        """All sums are 0."""
        count = self.rows * self.columns
        zero = const(0, self.dtype)
        return seq(*(BufferStore(self.sums, zero, (const(i),)) for i in range(count)))

    def step(self, a: Sequence[PrimExpr], b: Sequence[PrimExpr]) -> Stmt:
        """Every sum gets its product."""
        names_a = [Var(f"a{i}", e.dtype) for i, e in enumerate(a)]
        names_b = [Var(f"b{j}", e.dtype) for j, e in enumerate(b)]
        stores: list[Stmt] = []
        for i, x in enumerate(names_a):
            for j, y in enumerate(names_b):
                at = (const(i * self.columns + j),)
                stores.append(
                    BufferStore(self.sums, BufferLoad(self.sums, at, self.dtype) + x * y, at)
                )
        body = seq(*stores)
        for name, value in reversed([*zip(names_a, a, strict=True), *zip(names_b, b, strict=True)]):
            body = LetStmt(name, value, body)
        return body

    def alone(self) -> Stmt:
        """Each thread reads what it needs; beyond the last row and column the last again."""
        axes = self.group.reduce.axis
        names: dict[Var, PrimExpr] = {r: Var(r.name) for r in axes}
        f = self.factors
        rows = [minimum(self.row(i), self.m - 1) for i in range(self.rows)]
        columns = [minimum(self.column(j), self.n - 1) for j in range(self.columns)]
        a = [self.factor(f.a, f.rows, at, names) for at in rows]
        b = [self.factor(f.b, f.columns, at, names) for at in columns]
        body = self.step(a, b)
        for r in reversed(axes):
            var = names[r]
            assert isinstance(var, Var)
            body = serial(var, r.extent, body)
        return body

    def together(self) -> tuple[Stmt, list[Buffer]]:
        """Blocks of k through memory of the block of threads."""
        f, axes = self.factors, self.group.reduce.axis
        threads = self.lanes * self.lines
        total = simplify(product([r.extent for r in axes]))
        block, step = Var("block"), Var("step")
        source = self.group.reduce.source
        assert isinstance(source, Mul)
        left = Buffer("left", (const(self.depth * self.tile_m),), f.a.dtype, "shared")
        right = Buffer("right", (const(self.depth * self.tile_n),), f.b.dtype, "shared")

        def bring(
            buffer: Buffer, value: PrimExpr, axes_of: Sequence[Var], tile: int, first: PrimExpr,
            most: PrimExpr,
        ) -> Stmt:  # fmt: skip
            """A tile of one factor to the group's memory, each thread every `threads`-th element;
            zeros beyond the ends, so that the product needs no bounds.
            """
            turn = Var("turn")
            count = self.depth * tile
            at = turn * threads + self.thread
            k = block * self.depth + at // tile
            number = first + at % tile
            steps = dict(zip(axes, coordinates(k, [r.extent for r in axes]), strict=True))
            inside = logical_and(k < total, number < most)
            read = self.factor(value, axes_of, number, steps)
            store = BufferStore(buffer, if_then_else(inside, read, const(0, value.dtype)), (at,))
            exact = count % threads == 0
            guarded = store if exact else IfThenElse(at < count, store)
            return serial(turn, -(-count // threads), guarded)

        rows = [
            BufferLoad(left, (step * self.tile_m + self.own_row(i),), f.a.dtype)
            for i in range(self.rows)
        ]
        columns = [
            BufferLoad(
                right,
                (step * self.tile_n + self.own_column(j),),
                f.b.dtype,
            )
            for j in range(self.columns)
        ]
        body = seq(
            bring(left, f.a, f.rows, self.tile_m, self.block_m * self.tile_m, self.m),
            bring(right, f.b, f.columns, self.tile_n, self.block_n * self.tile_n, self.n),
            BARRIER,
            serial(step, self.depth, self.step(rows, columns)),
            BARRIER,
        )
        blocks = simplify((total + (self.depth - 1)) // self.depth)
        return serial(block, blocks, body), [left, right]

    def finish(self) -> Stmt:
        """What follows the sums, and the stores."""
        f, anchor = self.factors, self.group.anchor.op
        assert isinstance(anchor, ComputeOp)
        stores: list[Stmt] = []
        for i in range(self.rows):
            for j in range(self.columns):
                at = self.places(f.rows, self.row(i)) | self.places(f.columns, self.column(j))
                at |= self.places(f.batch, self.block_z)
                value = BufferLoad(self.sums, (const(i * self.columns + j),), self.dtype)
                store = self.group.store([at[a.var] for a in anchor.axis], value)
                inside = logical_and(self.row(i) < self.m, self.column(j) < self.n)
                stores.append(IfThenElse(inside, store))
        return seq(*stores)

    def build(self, name: str, shared: bool) -> PrimFunc:
        """The program."""
        sums, kept = self.together() if shared else (self.alone(), [])
        body = allocated(seq(self.start(), sums, self.finish()), [self.sums])
        tiles_m = simplify((self.m + (self.tile_m - 1)) // self.tile_m)
        tiles_n = simplify((self.n + (self.tile_n - 1)) // self.tile_n)
        body = bound(self.thread, self.lanes * self.lines, "threadIdx.x", body)
        body = allocated(body, kept)  # outside of threads: they have it together
        body = bound(self.block_n, tiles_n, "blockIdx.x", body)
        body = bound(self.block_m, tiles_m, "blockIdx.y", body)
        body = bound(self.block_z, self.factors.size(self.factors.batch), "blockIdx.z", body)
        return self.group.function(body, name)


def build(
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    target: Target,
    name: str,
    decision: Decision,
) -> PrimFunc:
    """The kernel of a product, and of what follows it."""
    group = Group.of(inputs, outputs)
    if decision.number("vector") > 1:
        return VectorKernel(group, decision).build(name)
    return _Kernel(group, decision).build(name, bool(decision.number("shared")))


FAMILY = Family(
    name="thread_product",
    on_threads=True,
    why=(
        "axes of any number are counted through as rows, columns and k, and threads bring "
        "what others read: tiles of fused axes, some of sizes that a run tells, are not "
        "proven yet"
    ),
    accepts=lambda anchor: factors_of(anchor) is not None,
    space=_space,
    default=_default,
    build=build,
)
