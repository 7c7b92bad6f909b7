"""Dense layers with packed constant weights.

    out[m, n] = sum over k of data[m, k] * weight[n // tile, k, n % tile]

or, of uint8 and int8 with int32 results, weight[n // tile, k // 4, n % tile, k % 4]; of bfloat16
with float32 results, two steps of k side by side. Panels of bytes may have rows behind those, with
a list of the words of data that they are multiplied with (words.py).

    for a run of panels, or one, in parallel:
      for a block of k:
        for a panel, for a tile of rows:         or the other way round, by `order`
          own:     every step brings the row of the panel `own` steps ahead to the first cache
                   (where rows are not known, in tiles of enough of them)
          spread:  the first so many tiles bring the next panel to the second, a line at a time

Sums of a block of k are kept in the result until the last one. With few panels threads share out
the row tiles instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ekiden import te
from ekiden.arith import simplify
from ekiden.ir.prim import IntImm, Min, PrimExpr, Var, const, is_const, logical_and
from ekiden.target import Target
from ekiden.tir.expr import Buffer, broadcast, ramp
from ekiden.tir.stmt import (
    Allocate,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    PrimFunc,
    Stmt,
    seq,
)
from ekiden.topi.nn.weights import WORD_OF
from ekiden.topi.rule.ahead import Prefetches, bound
from ekiden.topi.rule.decision import (
    Choice,
    Decision,
    Fixed,
    Space,
    Value,
    divisors,
    steps_down,
)
from ekiden.topi.rule.epilogue import Epilogue, find_anchor, operands_of
from ekiden.topi.rule.family import NARROW, Family, Product
from ekiden.topi.rule.model import (
    DISTANCES,
    LEAST_BLOCK,
    Blocking,
    hides_prefetches,
    most_rows,
    panel_choice,
    panel_width,
    tile_rows,
)
from ekiden.topi.rule.stages import has_known_weights
from ekiden.topi.rule.tiles import (
    KLoop,
    Listed,
    Parts,
    Tile,
    balanced_rows,
    compute_tile,
    fitting_lanes,
    span,
)
from ekiden.topi.rule.words import dot_space, dots, pairs_of, widen

LINE = 16
"""Words of 4 bytes in a cache line."""
NARROW_ROWS = 12
"""Rows of a tile on a panel narrower than others, if registers hold them."""
UNROLLS = (1, 2, 4)
"""Steps of k that may stand one after the other."""


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

    def __init__(
        self, inputs: list[te.Tensor], outputs: list[te.Tensor], target: Target, decision: Decision
    ) -> None:
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
        self.word = _word(weight)
        self.epilogue = Epilogue(self.anchor, outputs[0], self.buffers)
        self.leading = list(outputs[0].shape[:-1])
        self.decision = decision
        steps = simplify(self.k // self.word)
        block = decision.number("k_block")
        self.steps: PrimExpr = const(block) if block else steps
        self.blocks = steps.value // block if block and isinstance(steps, IntImm) else 1
        self.copied: Buffer | None = None
        self.pairs = pairs_of(self.a, decision)
        places = attrs.get("places")
        self.places = self.buffers[places] if isinstance(places, te.Tensor) else None
        self.listed = 0 if self.places is None else _listed(self.anchor)
        self.panel_size = simplify((self.k + self.listed * self.word) * self.width)
        step, unroll = self.width * self.word, decision.number("unroll")
        own, spread = decision.number("own"), decision.number("spread")
        following = self.panel_size
        line = LINE * self.word
        self.near = Prefetches(self.b, step, line, self.steps, following, own, spread, unroll)

    # A tile.

    def tile(
        self,
        rows: int,
        first: PrimExpr,
        panel: PrimExpr,
        valid: int,
        block: PrimExpr,
        number: PrimExpr | None,
    ) -> Stmt:
        """One tile of `rows` rows and one panel over a block of k; `number` is the tile's among
        those of the panel, if the next tile has the same panel."""
        lanes = self.lanes if self.word > 1 else fitting_lanes(valid, self.target)
        dot = str(self.decision.get("dot", ""))
        shape = Tile(rows, -(-valid // lanes), lanes, valid, self.anchor.dtype, dot)

        def place(i: PrimExpr, column: PrimExpr) -> tuple[PrimExpr, PrimExpr, PrimExpr]:
            row, at = first + i, panel * self.width + column
            return row, row * self.units + at, at

        def store(i: PrimExpr, column: PrimExpr, value: PrimExpr, mask: PrimExpr | None) -> Stmt:
            row, flat, at = place(i, column)
            return self.epilogue.store(unflatten(row, self.leading, at), flat, value, mask)

        def keep(i: PrimExpr, column: PrimExpr, value: PrimExpr, mask: PrimExpr | None) -> Stmt:
            _, flat, at = place(i, column)
            return self.epilogue.put(flat, at, value, mask)

        def load(i: PrimExpr, column: PrimExpr, mask: PrimExpr | None) -> PrimExpr:
            _, flat, at = place(i, column)
            begun = broadcast(block > 0, lanes)
            return self.epilogue.kept(
                flat, at, lanes, begun if mask is None else logical_and(begun, mask)
            )

        step = self.width * self.word
        loops = [KLoop(self.steps, const(self.word), const(step))]
        start, row = block * self.steps * self.word, self.k
        source = self.a
        if self.pairs is not None:
            source = self.pairs
        if self.copied is not None:
            source, start, row = self.copied, const(0), self.copied.shape[1]
        base = Var("base")
        near = self.near
        if not isinstance(self.rows, IntImm) and not self.has_time(rows, shape.vectors):
            near = replace(near, own=0)
        lets, ahead = near.of(base, number)
        made = compute_tile(
            shape,
            loops,
            source,
            [(first + i) * row + start for i in range(rows)],
            self.b,
            base,
            store,
            not self.epilogue.is_light,
            ahead,
            self.near.unroll,
            Parts(block.equal(self.blocks - 1), load, keep) if self.blocks > 1 else None,
            self.rest(panel),
        )
        begin = simplify(panel * self.panel_size + block * (self.steps * step))
        return bound([(base, begin), *lets], made)

    def has_time(self, rows: int, vectors: int) -> bool:
        """Whether a tile has time to bring its panel ahead."""
        dtype = _sizes(self.anchor)[0].dtype
        return hides_prefetches(rows, vectors, self.target, dtype)

    def rest(self, panel: PrimExpr) -> Listed | None:
        """The rows of a panel behind those for all words of data, if there are any."""
        if self.places is None:
            return None
        word, step = const(self.word), const(self.width * self.word)
        origin = panel * self.panel_size + self.k * self.width
        return Listed(self.listed, self.places, panel * self.listed, origin, word, step)

    # The loops around tiles.

    def row_tiles(
        self, panels: PrimExpr, begin: PrimExpr, valid: int, block: PrimExpr, kind: ForKind
    ) -> Stmt:
        """Row tiles outside, panels [begin, begin + panels) inside."""
        panel = Var("p")

        def body(rows: int, first: PrimExpr) -> Stmt:
            tile = self.tile(rows, first, panel, valid, block, None)
            return For(panel, begin, panels, ForKind.SERIAL, tile)

        return balanced_rows(self.rows, self.limit(valid), body, kind)

    def panel_tiles(self, panel: PrimExpr, valid: int, block: PrimExpr) -> Stmt:
        """All rows of one panel."""
        number = Var("t")

        def body(rows: int, first: PrimExpr) -> Stmt:
            return self.tile(rows, first, panel, valid, block, number)

        return balanced_rows(self.rows, self.limit(valid), body, ForKind.SERIAL, number)

    def limit(self, valid: int) -> int:
        """Most rows of a tile; of a narrow panel as many as there are registers for."""
        vectors = -(-valid // self.lanes)
        if valid == self.width:
            return self.decision.number("rows")
        return max(self.decision.number("rows"), min(NARROW_ROWS, self.most(vectors)))

    def most(self, vectors: int) -> int:
        """Rows that registers hold."""
        return most_rows(vectors, self.target, _sizes(self.anchor)[0].dtype)

    def any_panel(self, panel: PrimExpr, whole: int, rest: int, block: PrimExpr) -> Stmt:
        """All rows of a panel, which may be the narrow one."""
        if rest == 0:
            return self.panel_tiles(panel, self.width, block)
        narrow = self.panel_tiles(const(whole), rest, block)
        if whole == 0:
            return narrow
        return IfThenElse(panel < whole, self.panel_tiles(panel, self.width, block), narrow)

    def run(
        self, begin: PrimExpr, end: PrimExpr, is_end: PrimExpr, block: PrimExpr, kind: ForKind
    ) -> Stmt:
        """Panels [begin, end); the narrow one is among them if `is_end`."""
        whole, rest = divmod(self.units, self.width)
        if self.decision["order"] == "panel" and kind is ForKind.SERIAL:
            panel = Var("p")
            inside = self.any_panel(panel, whole, rest, block)
            return For(panel, begin, simplify(end - begin), ForKind.SERIAL, inside)
        parts = []
        if whole:
            count = simplify((Min(end, const(whole), end.dtype) if rest else end) - begin)
            parts.append(self.row_tiles(count, begin, self.width, block, kind))
        if rest:
            narrow = self.row_tiles(const(1), const(whole), rest, block, kind)
            parts.append(narrow if is_const(is_end, 1) else IfThenElse(is_end, narrow))
        return seq(*parts)

    def by_blocks(self, make: Callable[[PrimExpr], Stmt]) -> Stmt:
        """`make(block)` for all blocks of k."""
        if self.blocks == 1:
            return make(const(0))
        block = Var("kb")
        if not self.decision["copy"]:
            return For(block, const(0), const(self.blocks), ForKind.SERIAL, make(block))
        assert isinstance(self.steps, IntImm)
        self.copied = Buffer("rows", (self.rows, const(self.steps.value + LINE)))
        body = seq(self.copy(self.copied, block), make(block))
        return Allocate(self.copied, For(block, const(0), const(self.blocks), ForKind.SERIAL, body))

    def copy(self, to: Buffer, block: PrimExpr) -> Stmt:
        """A block of all rows, at a distance that is no power of two."""
        row = Var("row")
        start, begin = row * self.k + block * self.steps, row * to.shape[1]

        def body(at: PrimExpr, many: int) -> Stmt:
            load = self.a[ramp(start + at, 1, many)].with_fields(dtype=f"float32x{many}")
            return BufferStore(to, load, (ramp(begin + at, 1, many),))

        return For(row, const(0), self.rows, ForKind.SERIAL, span(self.steps, self.lanes, body))

    def body(self) -> Stmt:
        """All panels, on data widened before if their words are multiplied in pairs."""
        if self.pairs is None:
            return self.all_panels()
        wide = widen(self.a, self.pairs, self.rows, self.k, self.lanes)
        return Allocate(self.pairs, seq(wide, self.all_panels()))

    def all_panels(self) -> Stmt:
        """All panels, of which the last one may be narrower."""
        panels = -(-self.units // self.width)
        always = const(True, "bool")
        if self.decision["split"] == "rows":
            kind = ForKind.PARALLEL
            return self.by_blocks(lambda kb: self.run(const(0), const(panels), always, kb, kind))
        if self.blocks == 1 and self.decision["order"] == "panel":
            panel = Var("p")
            inside = self.any_panel(panel, *divmod(self.units, self.width), const(0))
            return For(panel, const(0), const(panels), ForKind.PARALLEL, inside, {"grain": 1})
        chunk, count = Var("c"), min(self.target.cores, panels)
        begin, end = chunk * panels // count, (chunk + 1) * panels // count
        last = chunk.equal(count - 1) if count > 1 else always
        inside = self.by_blocks(lambda kb: self.run(begin, end, last, kb, ForKind.SERIAL))
        return For(chunk, const(0), const(count), ForKind.PARALLEL, inside, {"grain": 1})


def _word(weight: te.Tensor) -> int:
    """Elements of a row that a step takes at a time."""
    return WORD_OF[weight.dtype] if len(weight.shape) == 4 else 1


def accepts(anchor: te.Tensor) -> bool:
    """Whether the rule covers a product: a weight of words, or float32 throughout."""
    data, weight = operands_of(anchor)
    plain = {data.dtype, weight.dtype, anchor.dtype} == {"float32"}
    return has_known_weights(anchor) and (plain or len(weight.shape) == 4)


def _listed(anchor: te.Tensor) -> int:
    """Rows of a panel that have a list of their places in the data."""
    places = anchor.op.attrs["places"]
    assert isinstance(places, te.Tensor)
    count = places.shape[1]
    assert isinstance(count, IntImm), "weights are known"
    return count.value


def _sizes(anchor: te.Tensor) -> tuple[Product, int]:
    """The product of an anchor, in steps of k, and the width of its panels."""
    data, weight = operands_of(anchor)
    attrs = anchor.op.attrs
    depth = simplify(data.shape[-1] // _word(weight))
    units, panel = int(str(attrs["units"])), int(str(attrs["tile"]))
    dtype = NARROW if "places" in attrs else data.dtype
    return Product.of(product(data.shape[:-1]), units, depth, dtype), panel


def space(anchor: te.Tensor, target: Target) -> Space:
    """What may be chosen for a dense layer."""
    sizes, panel = _sizes(anchor)
    vectors = -(-panel // target.lanes("float32"))
    blocking = Blocking(sizes, panel, 1, target)
    is_plain = sizes.dtype == "float32"
    blocks = divisors(sizes.depth, LEAST_BLOCK)[1:] if sizes.depth and is_plain else ()
    rows = steps_down(most_rows(vectors, target, sizes.dtype))
    # fmt: off
    return (
        Choice("panel", (panel,), "columns of a panel of weights", is_early=True),
        Choice("rows", rows, "rows of a tile"),
        Choice("order", ("panel", "row"), "the outer loop: panels, or tiles of rows"),
        Choice("k_block", (0, *blocks), "steps of k of a block; 0: all"),
        Choice("own", DISTANCES, "steps by which a panel is brought to the first cache ahead"),
        Choice("spread", blocking.spreads(), "tiles that bring the next panel to the second"),
        Choice("unroll", UNROLLS, "steps of k that stand one after the other"),
        Choice("copy", (0, 1), "whether the rows of a block of k are copied apart"),
        Choice("split", ("panels", "rows"), "what threads share out"),
        *dot_space(operands_of(anchor)[1], target, "places" in anchor.op.attrs),
    )
    # fmt: on


def default(anchor: te.Tensor, target: Target, fixed: Fixed) -> Decision:
    """What is chosen for a dense layer."""
    sizes, panel = _sizes(anchor)
    chosen: dict[str, Value] = {"panel": panel, **{n: v for n, v in fixed.items() if n != "panel"}}
    vectors = -(-panel // target.lanes("float32"))
    rows = int(chosen.setdefault("rows", tile_rows(vectors, sizes, target)))
    blocking = Blocking(sizes, panel, rows, target)
    few = -(-(sizes.columns or 0) // panel) < target.cores
    split = chosen.setdefault("split", "rows" if few else "panels")
    order = str(chosen.setdefault("order", "row" if split == "rows" else blocking.order()))
    chosen.setdefault("k_block", blocking.k_block(order) if sizes.dtype == "float32" else 0)
    own = int(chosen.setdefault("own", blocking.own(order)))
    chosen.setdefault("spread", blocking.spread(order))
    chosen.setdefault("unroll", blocking.unroll("row" if blocking.tiles == 1 else "panel", own))
    chosen.setdefault("copy", blocking.copy(int(chosen["k_block"])))
    chosen.setdefault("dot", dots(target, sizes.dtype == NARROW)[0])
    return Decision.of({choice.name: chosen[choice.name] for choice in space(anchor, target)})


def build(
    inputs: list[te.Tensor],
    outputs: list[te.Tensor],
    target: Target,
    name: str,
    decision: Decision,
) -> PrimFunc:
    """The loops of a dense layer."""
    kernel = _Dense(inputs, outputs, target, decision)
    attrs = {"global_symbol": name, "num_outputs": len(outputs), "tir.tiled": 1}
    return PrimFunc((*kernel.buffers.values(),), kernel.body(), attrs)


FAMILY = Family(
    name="dense_pack",
    accepts=accepts,
    space=space,
    default=default,
    build=build,
    panel=panel_width,
    panels=panel_choice,
    writes_rows=True,
    keeps_sums=lambda decision: decision["k_block"] != 0,
)
