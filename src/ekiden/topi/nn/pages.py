"""A cache of keys and values in pages (topi.rule.pages says how they lie): writing and reading."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.arith import simplify
from ekiden.ir.prim import PrimExpr, Var, cast, const
from ekiden.te import Tensor
from ekiden.te.range_check import CHECKS, RangeCheck, range_check
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import BufferStore, For, ForKind, IfThenElse, LetStmt, Stmt, seq
from ekiden.topi.rule.in_place import UPDATES
from ekiden.topi.rule.pages import PagedAttention, Pages
from ekiden.topi.rule.scatter import copied
from ekiden.topi.shape import check_rank, expect_shape, known

QUANTUM = 4
"""What the depth of a head and the tokens of a page are multiples of."""
KINDS = ("float32", "float16", "bfloat16")


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
    if tokens.dtype != "float32" or cache.dtype not in KINDS:
        kinds = f"float32 and a cache of {', '.join(KINDS)}"
        raise ValueError(f"{name}: takes {kinds}, got {tokens.dtype} and {cache.dtype}")
    depth, groups, plane = (known(d) for d in (tokens.shape[2], *cache.shape[3:]))
    heads = known(tokens.shape[1])
    if depth is None or heads is None or not groups or plane is None:
        raise ValueError(f"{name}: the numbers of heads and their depth must be known")
    if heads < 2 * groups:
        raise ValueError(
            f"{name}: {heads} heads of 'projected' are less than {groups} keys and as many values"
        )
    if page <= 0 or depth <= 0 or page % QUANTUM or depth % QUANTUM:
        raise ValueError(
            f"{name}: a page and a depth must be multiples of {QUANTUM}, got {page} and {depth}"
        )
    if plane != page * depth:
        raise ValueError(
            f"{name}: a page of {page} tokens has {page * depth} numbers of a head, got {plane}"
        )
    expect_shape(name, "cache", cache.shape[2:3], (2,))
    expect_shape(name, "layer", layer.shape, (1,))
    for each, what in ((sequences, "sequences"), (positions, "positions")):
        expect_shape(name, what, each.shape, tokens.shape[:1])
    most = simplify(tables.shape[1] * page)
    return (
        range_check(f"{name}: layer", layer, 0, cache.shape[1]),
        range_check(f"{name}: page", tables, 0, cache.shape[0]),
        range_check(f"{name}: sequence", sequences, 0, tables.shape[0]),
        range_check(f"{name}: position", positions, -1, most),
    )


def write_pages(cache: Tensor, projected: Tensor, places: Sequence[Tensor], page: int) -> Tensor:
    """The cache with keys and values of one layer at the positions of n tokens: the last heads of
    `projected` [n, heads, depth] are keys, then as many values; `places` are layer, tables,
    sequences and positions, and nothing is written at position -1."""
    name = "write_pages"
    checks = _checked(name, page, projected, cache, places)

    def build(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        old, given, layer, tables, sequences, positions = ins
        tokens, heads, depth = given.shape
        groups = old.shape[3]
        t, g, d = Var("t"), Var("g"), Var("d")
        position, base = Var("position", "int64"), Var("base", "int64")
        plane = page * depth
        row = cast(sequences[t], "int64") * tables.shape[1] + position // page
        index = cast(tables[simplify(row)], "int64") * old.shape[1] + cast(layer[0], "int64")
        start = (index * 2 * groups + g) * plane
        at, source = position % page, (t * heads + heads - 2 * groups + g) * depth + d
        made: Stmt = seq(
            BufferStore(outs[0], cast(given[source], old.dtype), (base + d * page + at,)),
            BufferStore(
                outs[0], cast(given[source + groups * depth], old.dtype),
                (base + groups * plane + at * depth + d,),
            ),
        )  # fmt: skip
        made = For(d, const(0), depth, ForKind.SERIAL, made)
        made = For(g, const(0), groups, ForKind.SERIAL, LetStmt(base, start, made))
        made = LetStmt(
            position, cast(positions[t], "int64"), IfThenElse(position >= const(0, "int64"), made)
        )
        return seq(
            copied(old, outs[0]),
            For(
                t, const(0), tokens, ForKind.SERIAL, made
            ),  # of two at one place the last one counts
        )

    inputs = [cache, projected, *places]
    attrs: dict[str, object] = {CHECKS: checks, UPDATES: 0}
    (made,) = te.extern_op([cache.shape], inputs, build, [cache.dtype], name, attrs=attrs)
    return made


def paged_attention(
    projected: Tensor, cache: Tensor, places: Sequence[Tensor], pages: Pages
) -> Tensor:
    """softmax(query * keys * scale) * values of one layer for n tokens: [n, heads, depth]; a token
    sees the keys of its sequence up to its own position. `projected` [n, heads + 2 * groups, depth]
    begins with the queries, as for `write_pages`."""
    name = "paged_attention"
    checks = _checked(name, pages.page, projected, cache, places)
    groups, total = known(cache.shape[3]), known(projected.shape[1])
    assert groups is not None and total is not None
    heads = total - 2 * groups
    if heads <= 0 or heads % groups:
        raise ValueError(f"{name}: {heads} heads are no multiple of {groups} that have keys")

    def build(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        return PagedAttention(pages, ins, outs[0]).body()

    shape: tuple[PrimExpr, ...] = (projected.shape[0], const(heads), projected.shape[2])
    attrs: dict[str, object] = {CHECKS: checks, "pages": pages}
    (made,) = te.extern_op(
        [shape], [projected, cache, *places], build, ["float32"], name, name, attrs
    )
    return made


__all__ = ["paged_attention", "write_pages"]
