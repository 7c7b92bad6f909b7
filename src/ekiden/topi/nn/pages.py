"""A cache of keys and values in pages: writing and reading (kernels.attention.pages says how
they lie).
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.arith import simplify
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import PrimExpr, Select, Var, cast, const, maximum, minimum
from ekiden.kernels.attention.page_attention import paged_attention_of
from ekiden.kernels.attention.page_planes import BY_DTYPE, SCALE, Plane
from ekiden.kernels.attention.pages import Pages
from ekiden.kernels.cpu.scatter import copied
from ekiden.kernels.in_place import UPDATES
from ekiden.te import Tensor
from ekiden.te.range_check import CHECKS, RangeCheck, range_check
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, IfThenElse, LetStmt, Stmt, seq
from ekiden.topi.shape import check_rank, expect_shape, known

FEW = 4
"""Tokens that one thread writes sooner than two begin."""


def _checked(
    name: str, page: int, tokens: Tensor, cache: Tensor, places: Sequence[Tensor]
) -> tuple[RangeCheck, ...]:
    """The checks of what both operators take. Raises ValueError for what cannot be."""
    layer, tables, sequences, positions = places
    for each, rank, what in (
        (tokens, 3, "projected"), (cache, 5, "cache"), (layer, 1, "layer"), (tables, 2, "tables"),
        (sequences, 1, "sequences"), (positions, 1, "positions"),
    ):  # fmt: skip
        check_rank(f"{name}: {what!r}", each.shape, rank)
    for each, what in zip(places, ("layer", "tables", "sequences", "positions"), strict=True):
        if each.dtype != "int32":
            raise ValueError(f"{name}: {what!r} must be int32, got {each.dtype}")
    if tokens.dtype != "float32" or cache.dtype not in BY_DTYPE:
        kinds = f"float32 and a cache of {', '.join(BY_DTYPE)}"
        raise ValueError(f"{name}: takes {kinds}, got {tokens.dtype} and {cache.dtype}")
    depth, groups, plane = (known(d) for d in (tokens.shape[2], *cache.shape[3:]))
    heads = known(tokens.shape[1])
    if depth is None or heads is None or not groups or plane is None:
        raise ValueError(f"{name}: the numbers of heads and their depth must be known")
    if heads < 2 * groups:
        raise ValueError(
            f"{name}: {heads} heads of 'projected' are less than {groups} keys and as many values"
        )
    quantum = BY_DTYPE[cache.dtype].quantum
    if page <= 0 or depth <= 0 or page % quantum or depth % quantum:
        raise ValueError(
            f"{name}: a page and a depth must be multiples of {quantum}, got {page} and {depth}"
        )
    of = Plane(page, depth, cache.dtype)
    if not (count := of.pages(cache.shape[4])):
        raise ValueError(
            f"{name}: a page of {page} tokens has {of.size} elements of {cache.dtype} for a head,"
            f" and a block a multiple of that, got {plane}"
        )
    expect_shape(name, "cache", cache.shape[2:3], (2,))
    expect_shape(name, "layer", layer.shape, (1,))
    for each, what in ((sequences, "sequences"), (positions, "positions")):
        expect_shape(name, what, each.shape, tokens.shape[:1])
    most = simplify(tables.shape[1] * page)
    return (
        range_check(f"{name}: layer", layer, 0, cache.shape[1]),
        range_check(f"{name}: page", tables, 0, simplify(cache.shape[0] * count)),
        range_check(f"{name}: sequence", sequences, 0, tables.shape[0]),
        range_check(f"{name}: position", positions, -1, most),
    )


def _written(plane: Plane, given: Buffer, source: PrimExpr, cache: Buffer, base: PrimExpr,
             token: PrimExpr, values: int) -> Stmt:  # fmt: skip
    """The numbers of a token from `source` on, put into the plane at `base`."""
    d, group = Var("d"), Var("group")
    if plane.has_scales:
        made = _scaled(plane, given, source, cache, base, token, group, values)
        return For(group, const(0), const(plane.groups), ForKind.SERIAL, made)
    value = cast(given[simplify(source + d)], cache.dtype)
    made = BufferStore(cache, value, (base + plane.at(token, d, values),))
    return For(d, const(0), const(plane.depth), ForKind.SERIAL, made)


def _scaled(plane: Plane, given: Buffer, source: PrimExpr, cache: Buffer, base: PrimExpr,
            token: PrimExpr, group: PrimExpr, values: int) -> Stmt:  # fmt: skip
    """Those of one group, and their scale."""
    row, zero, none = plane.format, const(0), const(0.0, "float32")
    most = Buffer("most", (const(1),), "float32", "register")
    k, d, first = Var("k"), Var("d"), group * plane.group
    scale, finer, bits = Var("scale", "float16"), Var("finer", "float32"), Var("bits", "int32")
    place = first + d
    near = call_intrin("round", given[simplify(source + place)] * finer)
    low, high = (const(value, "float32") for value in (row.least, row.most))
    level = cast(maximum(minimum(near, high), low), "int32") + row.zero
    put = _put(plane, cache, base + plane.at(token, place, values), level,
               plane.shift(token, place, values))  # fmt: skip
    halves = [
        BufferStore(
            cache, cast(call_intrin("right_shift", bits, const(8 * n, "int32")), cache.dtype),
            (base + plane.scale_at(token, group) + n,),
        )
        for n in range(SCALE.itemsize)
    ]  # fmt: skip
    made = seq(*halves, For(d, zero, const(plane.group), ForKind.SERIAL, put))
    wide, one = cast(scale, "float32"), const(1.0, "float32")
    safe = Select(wide > none, wide, one, "float32")
    made = LetStmt(finer, one / safe, made)
    made = LetStmt(bits, cast(call_intrin("reinterpret", scale, dtype="uint16"), "int32"), made)
    made = LetStmt(scale, cast(most[zero], "float16"), made)
    here = given[simplify(source + first + k)]
    least, top = (here * const(1 / level, "float32") for level in (row.least, row.most))
    grown = BufferStore(most, maximum(most[zero], maximum(least, top)), (zero,))
    return Allocate(most, seq(
        BufferStore(most, none, (zero,)),
        For(k, zero, const(plane.group), ForKind.SERIAL, grown),
        made,
    ))  # fmt: skip


def _put(plane: Plane, cache: Buffer, at: PrimExpr, level: PrimExpr, shift: PrimExpr) -> Stmt:
    """A whole number, in its bits of an element."""
    if plane.format.bits == 8:
        return BufferStore(cache, cast(level, cache.dtype), (at,))
    by = cast(shift, "int32")
    mask = call_intrin("left_shift", const((1 << plane.format.bits) - 1, "int32"), by)
    kept = call_intrin("bitwise_and", cast(cache[at], "int32"), const(255, "int32") - mask)
    both = call_intrin("bitwise_or", kept, call_intrin("left_shift", level, by))
    return BufferStore(cache, cast(both, cache.dtype), (at,))


def write_pages(cache: Tensor, projected: Tensor, places: Sequence[Tensor], page: int) -> Tensor:
    """The cache with keys and values of one layer at the positions of n tokens: the last heads of
    `projected` [n, heads, depth] are keys, then as many values; `places` are layer, tables,
    sequences and positions, and nothing is written at position -1."""
    name = "write_pages"
    checks = _checked(name, page, projected, cache, places)

    depth = known(projected.shape[2])
    assert depth is not None
    plane = Plane(page, depth, cache.dtype)

    def build(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """The copy of the cache, which goes where it lies in the result's bytes, and a loop over
        tokens in their order: of two at one place the last one counts.
        """
        old, given, layer, tables, sequences, positions = ins
        tokens, heads, _ = given.shape
        groups = old.shape[3]
        t, g = Var("t"), Var("g")
        position, source = (Var(n, "int64") for n in ("position", "source"))
        row = cast(sequences[t], "int64") * tables.shape[1] + position // page
        number, at = cast(tables[simplify(row)], "int64"), position % page
        parts = []
        for values in (0, 1):
            base = Var(f"base{values}", "int64")
            start = plane.start(old, cast(layer[0], "int64"), number, g, values)
            put = _written(
                plane, given, source + values * groups * depth, outs[0], base, at, values
            )
            parts.append(LetStmt(base, start, put))
        made: Stmt = LetStmt(
            source, cast((t * heads + heads - 2 * groups + g) * depth, "int64"), seq(*parts)
        )
        made = LetStmt(
            position, cast(positions[t], "int64"), IfThenElse(position >= const(0, "int64"), made)
        )
        # the tokens of a head in their order: of two at one place the last one counts
        made = For(t, const(0), tokens, ForKind.SERIAL, made)
        # a thread of its own is worth having for some tokens; of one they are few
        alone = For(g, const(0), groups, ForKind.SERIAL, made)
        beside = For(g, const(0), groups, ForKind.PARALLEL, made, {"grain": 1})
        return seq(copied(old, outs[0]), IfThenElse(tokens < FEW, alone, beside))

    inputs = [cache, projected, *places]
    attrs: dict[str, object] = {CHECKS: checks, UPDATES: 0}
    (made,) = te.extern_op([cache.shape], inputs, build, [cache.dtype], name, attrs=attrs)
    return made


def paged_attention(
    projected: Tensor, cache: Tensor, places: Sequence[Tensor], pages: Pages
) -> Tensor:
    """softmax(query * keys * scale) * values of one layer for n tokens: [n, heads, depth]; a token
    sees the keys of its sequence up to its own position. `projected` [n, heads + 2 * groups, depth]
    begins with the queries, as for `write_pages`. Raises ValueError for heads that are no multiple
    of the groups."""
    name = "paged_attention"
    checks = _checked(name, pages.page, projected, cache, places)
    groups, total = known(cache.shape[3]), known(projected.shape[1])
    assert groups is not None and total is not None
    heads = total - 2 * groups
    if heads <= 0 or heads % groups:
        raise ValueError(f"{name}: {heads} heads are no multiple of {groups} that have keys")

    def build(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        return paged_attention_of(pages, ins, outs[0]).body()

    shape: tuple[PrimExpr, ...] = (projected.shape[0], const(heads), projected.shape[2])
    attrs: dict[str, object] = {CHECKS: checks, "pages": pages}
    (made,) = te.extern_op(
        [shape], [projected, cache, *places], build, ["float32"], name, name, attrs
    )
    return made


__all__ = ["paged_attention", "write_pages"]
