"""Dense layers with packed constant weights.

    out[m, n] = sum over k of data[m, k] * weight[n // tile, k, n % tile]

or, of uint8 and int8 with int32 results, weight[n // tile, k // 4, n % tile, k % 4]; of bfloat16
with float32 results, two steps of k side by side.

Loop order: with few rows the row tile stays in L1 while the panels stream by; with many the panel
stays in L2 while the rows stream by. Threads share out the panels, so that each reads its part of
the weights once; with too few panels, the row tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden import te
from ekiden.arith import simplify
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import IntImm, Min, PrimExpr, Var, const
from ekiden.target import Target
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import For, ForKind, IfThenElse, Prefetch, PrimFunc, Stmt, seq
from ekiden.topi.nn.weights import WORD_OF
from ekiden.topi.rule.epilogue import Epilogue, find_anchor, operands_of
from ekiden.topi.rule.stages import has_known_weights
from ekiden.topi.rule.tiles import (
    KLoop,
    Tile,
    balanced_rows,
    compute_tile,
    fitting_lanes,
    max_rows,
)

LINE = 16
"""Words of 4 bytes in a cache line."""
DISTANCE = 16
"""Steps of k by which a panel is brought to L1 ahead: 4 KB of it."""
FEW_ROWS = 256
"""Up to this many rows the row tile is the outer loop."""


def make_buffers(
    inputs: Sequence[te.Tensor], outputs: Sequence[te.Tensor]
) -> dict[te.Tensor, Buffer]:
    """The parameters of a kernel: inputs, then outputs."""
    named = [(t, f"p{i}") for i, t in enumerate(inputs)] + [
        (t, f"out{i}") for i, t in enumerate(outputs)
    ]
    return {t: Buffer(name, t.whole_shape, t.dtype) for t, name in named}


def product(dims: Sequence[PrimExpr]) -> PrimExpr:
    """The number of elements of a shape."""
    total: PrimExpr = const(1)
    for dim in dims:
        total = total * dim
    return simplify(total)


def unflatten(row: PrimExpr, leading: Sequence[PrimExpr], column: PrimExpr) -> list[PrimExpr]:
    """The indices of an element from its row among all and its column."""
    found: list[PrimExpr] = []
    for dim in reversed(leading[1:]):
        found.append(row % dim)
        row = row // dim
    if leading:
        found.append(row)
    return [*reversed(found), column]


class _Dense:
    """One dense kernel being built."""

    def __init__(self, inputs: list[te.Tensor], outputs: list[te.Tensor], target: Target) -> None:
        self.anchor = find_anchor(outputs, "dense_pack")
        self.buffers = make_buffers(inputs, outputs)
        attrs = self.anchor.op.attrs
        data, weight = operands_of(self.anchor)
        self.a, self.b = self.buffers[data], self.buffers[weight]
        self.units, self.width = int(str(attrs["units"])), int(str(attrs["tile"]))
        self.lanes = target.lanes("float32")
        self.target = target
        self.rows = product(data.shape[:-1])
        self.k = data.shape[-1]
        self.word = WORD_OF[weight.dtype] if len(weight.shape) == 4 else 1
        self.epilogue = Epilogue(self.anchor, outputs[0], self.buffers)
        self.leading = list(outputs[0].shape[:-1])

    def tile(self, rows: int, first: PrimExpr, panel: PrimExpr, valid: int, near: bool) -> Stmt:
        """One tile of `rows` rows and one panel, which is `near` if other rows read it before."""
        lanes = self.lanes if self.word > 1 else fitting_lanes(valid, self.target)
        shape = Tile(rows, -(-valid // lanes), lanes, valid, self.anchor.dtype)

        def store(i: PrimExpr, column: PrimExpr, value: PrimExpr, mask: PrimExpr | None) -> Stmt:
            row, at = first + i, panel * self.width + column
            return self.epilogue.store(
                unflatten(row, self.leading, at), row * self.units + at, value, mask
            )

        step = self.width * self.word
        loops = [KLoop(simplify(self.k // self.word), const(self.word), const(step))]
        a_rows = [(first + i) * self.k for i in range(rows)]
        base = panel * self.k * self.width
        heavy = not self.epilogue.is_light
        ahead = None if near else self.prefetches(first, base)
        return compute_tile(shape, loops, self.a, a_rows, self.b, base, store, heavy, ahead)

    def prefetches(self, first: PrimExpr, base: PrimExpr) -> Callable[[PrimExpr], Stmt]:
        """What a step of k brings near: to L1 what this panel needs DISTANCE steps later, to L2
        half of the next panel, the first half in the first tile of rows."""
        step, line = self.width * self.word, LINE * self.word
        half = step // 2
        later = if_then_else(first > 0, simplify(self.k // self.word) * half, const(0))
        begin = base + self.k * self.width + later

        def ahead(k: PrimExpr) -> Stmt:
            own = base + (k + DISTANCE) * step
            following = begin + k * half
            return seq(
                *(Prefetch(self.b, (own + n,), 3) for n in range(0, step, line)),
                *(Prefetch(self.b, (following + n,), 2) for n in range(0, half, line)),
            )

        return ahead

    def row_tiles(self, panels: PrimExpr, first_panel: PrimExpr, valid: int, kind: ForKind) -> Stmt:
        """Row tiles outside, panels [first_panel, first_panel + panels) inside."""
        limit = max_rows(-(-valid // self.lanes), self.target)
        panel = Var("p")

        def body(rows: int, first: PrimExpr) -> Stmt:
            tile = self.tile(rows, first, panel, valid, True)
            return For(panel, first_panel, panels, ForKind.SERIAL, tile)

        return balanced_rows(self.rows, limit, body, kind)

    def panel_tiles(self, panel: PrimExpr, valid: int) -> Stmt:
        """All rows of one panel."""
        limit = max_rows(-(-valid // self.lanes), self.target)

        def body(rows: int, first: PrimExpr) -> Stmt:
            early = self.tile(rows, first, panel, valid, False)
            if 2 * rows <= limit:  # balanced: such a tile is one of at most two
                return early
            return IfThenElse(first <= limit, early, self.tile(rows, first, panel, valid, True))

        return balanced_rows(self.rows, limit, body)

    def body(self) -> Stmt:
        """All panels, of which the last one may be narrower."""
        whole, rest = divmod(self.units, self.width)
        panels = whole + (rest > 0)
        if panels < self.target.cores:
            return self.shared_rows(whole, rest)
        if isinstance(self.rows, IntImm) and self.rows.value <= FEW_ROWS:
            return self.chunks(panels, whole, rest)
        return self.shared_panels(panels, whole, rest)

    def shared_rows(self, whole: int, rest: int) -> Stmt:
        """Threads share out the row tiles."""
        kind = ForKind.PARALLEL
        wide = [self.row_tiles(const(whole), const(0), self.width, kind)] if whole else []
        return seq(*wide, *([self.row_tiles(const(1), const(whole), rest, kind)] if rest else []))

    def shared_panels(self, panels: int, whole: int, rest: int) -> Stmt:
        """Panels outside and in parallel, row tiles inside."""
        panel = Var("p")
        if whole == 0:
            inside = self.panel_tiles(panel, rest)
        elif rest == 0:
            inside = self.panel_tiles(panel, self.width)
        else:
            wide, narrow = self.panel_tiles(panel, self.width), self.panel_tiles(const(whole), rest)
            inside = IfThenElse(panel < whole, wide, narrow)
        return For(panel, const(0), const(panels), ForKind.PARALLEL, inside, {"grain": 1})

    def chunks(self, panels: int, whole: int, rest: int) -> Stmt:
        """One run of panels per thread; inside, row tiles outermost."""
        chunk, count = Var("c"), min(self.target.cores, panels)
        begin, end = chunk * panels // count, (chunk + 1) * panels // count
        parts = []
        if whole:
            extent = simplify((Min(end, const(whole), end.dtype) if rest else end) - begin)
            parts.append(self.row_tiles(extent, begin, self.width, ForKind.SERIAL))
        if rest:
            narrow = self.row_tiles(const(1), const(whole), rest, ForKind.SERIAL)
            parts.append(IfThenElse(chunk.equal(count - 1), narrow) if count > 1 else narrow)
        return For(chunk, const(0), const(count), ForKind.PARALLEL, seq(*parts), {"grain": 1})


def accepts(anchor: te.Tensor) -> bool:
    """Whether the rule covers a product: a weight of words, or float32 throughout."""
    data, weight = operands_of(anchor)
    plain = {data.dtype, weight.dtype, anchor.dtype} == {"float32"}
    return has_known_weights(anchor) and (plain or len(weight.shape) == 4)


def dense_pack(
    inputs: list[te.Tensor], outputs: list[te.Tensor], target: Target, name: str
) -> PrimFunc:
    """The rule for tag "dense_pack"."""
    kernel = _Dense(inputs, outputs, target)
    params = (*kernel.buffers.values(),)
    return PrimFunc(
        params, kernel.body(), {"global_symbol": name, "num_outputs": len(outputs), "tir.tiled": 1}
    )
