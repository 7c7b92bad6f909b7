"""Paged KV cache: writes and attention (layout in kernels.attention.kv_layout)."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.arith import simplify
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import PrimExpr, Select, Var, cast, const, maximum, minimum
from ekiden.kernels.attention.kv_layout import CACHE_FORMAT_BY_DTYPE, CACHE_SCALE_DTYPE, CachePlane
from ekiden.kernels.attention.paged_attention import PagedAttentionConfig
from ekiden.kernels.attention.paged_attention_family import create_paged_attention
from ekiden.kernels.cpu.scatter import emit_copy
from ekiden.kernels.in_place import UPDATES_ATTR_KEY
from ekiden.te import Tensor
from ekiden.te.range_checks import RANGE_CHECKS_ATTR_KEY, RangeCheck, range_check
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, IfThenElse, LetStmt, Stmt, seq
from ekiden.topi.dimensions import known_int, require_rank, require_shape

MIN_TOKENS_PER_THREAD = 4
"""Minimum tokens per thread below which writes are not parallelised."""


def _page_checks(
    name: str, page: int, tokens: Tensor, cache: Tensor, page_inputs: Sequence[Tensor]
) -> tuple[RangeCheck, ...]:
    """Return the range checks of the inputs of both operators. Raises ValueError for invalid
    types.
    """
    layer, tables, sequences, positions = page_inputs
    for input_tensor, rank, what in (
        (tokens, 3, "projected"), (cache, 5, "cache"), (layer, 1, "layer"), (tables, 2, "tables"),
        (sequences, 1, "sequences"), (positions, 1, "positions"),
    ):  # fmt: skip
        require_rank(f"{name}: {what!r}", input_tensor.shape, rank)
    for input_tensor, what in zip(
        page_inputs, ("layer", "tables", "sequences", "positions"), strict=True
    ):
        if input_tensor.dtype != "int32":
            raise ValueError(f"{name}: {what!r} must be int32, got {input_tensor.dtype}")
    if tokens.dtype != "float32" or cache.dtype not in CACHE_FORMAT_BY_DTYPE:
        kinds = f"float32 and a cache of {', '.join(CACHE_FORMAT_BY_DTYPE)}"
        raise ValueError(f"{name}: takes {kinds}, got {tokens.dtype} and {cache.dtype}")
    depth, groups, plane = (known_int(d) for d in (tokens.shape[2], *cache.shape[3:]))
    heads = known_int(tokens.shape[1])
    if depth is None or heads is None or not groups or plane is None:
        raise ValueError(f"{name}: the numbers of heads and their depth must be known")
    if heads < 2 * groups:
        raise ValueError(
            f"{name}: {heads} heads of 'projected' are less than {groups} keys and as many values"
        )
    quantum = CACHE_FORMAT_BY_DTYPE[cache.dtype].granularity
    if page <= 0 or depth <= 0 or page % quantum or depth % quantum:
        raise ValueError(
            f"{name}: a page and a depth must be multiples of {quantum}, got {page} and {depth}"
        )
    of = CachePlane(page, depth, cache.dtype)
    if not (count := of.pages_per_block(cache.shape[4])):
        raise ValueError(
            f"{name}: a page of {page} tokens has {of.size} elements of {cache.dtype} for a head,"
            f" and a block a multiple of that, got {plane}"
        )
    require_shape(name, "cache", cache.shape[2:3], (2,))
    require_shape(name, "layer", layer.shape, (1,))
    for input_tensor, what in ((sequences, "sequences"), (positions, "positions")):
        require_shape(name, what, input_tensor.shape, tokens.shape[:1])
    max_position = simplify(tables.shape[1] * page)
    return (
        range_check(f"{name}: layer", layer, 0, cache.shape[1]),
        range_check(f"{name}: page", tables, 0, simplify(cache.shape[0] * count)),
        range_check(f"{name}: sequence", sequences, 0, tables.shape[0]),
        range_check(f"{name}: position", positions, -1, max_position),
    )


def _emit_token_store(plane: CachePlane, source_buffer: Buffer, source: PrimExpr, cache: Buffer,
                      base: PrimExpr, token: PrimExpr, values: int) -> Stmt:  # fmt: skip
    """Emit the store of a token's values into the plane at `base`."""
    d, group = Var("d"), Var("group")
    if plane.has_scales:
        loop = _emit_quantized_store(
            plane, source_buffer, source, cache, base, token, group, values
        )
        return For(group, const(0), const(plane.num_groups), ForKind.SERIAL, loop)
    value = cast(source_buffer[simplify(source + d)], cache.dtype)
    loop = BufferStore(cache, value, (base + plane.element_offset(token, d, values),))
    return For(d, const(0), const(plane.depth), ForKind.SERIAL, loop)


def _emit_quantized_store(plane: CachePlane, source_buffer: Buffer, source: PrimExpr, cache: Buffer,
                          base: PrimExpr, token: PrimExpr, group: PrimExpr,
                          values: int) -> Stmt:  # fmt: skip
    """Emit the store of one group's quantised values and their scale."""
    row, zero, none = plane.format, const(0), const(0.0, "float32")
    max_scale = Buffer("most", (const(1),), "float32", "register")
    k, d, first = Var("k"), Var("d"), group * plane.group_size
    scale, finer, bits = Var("scale", "float16"), Var("finer", "float32"), Var("bits", "int32")
    element = first + d
    near = call_intrin("round", source_buffer[simplify(source + element)] * finer)
    low, high = (const(value, "float32") for value in (row.min_value, row.max_value))
    level = cast(maximum(minimum(near, high), low), "int32") + row.zero_point
    put = _emit_bits_store(plane, cache, base + plane.element_offset(token, element, values), level,
                           plane.bit_offset(token, element, values))  # fmt: skip
    halves = [
        BufferStore(
            cache, cast(call_intrin("right_shift", bits, const(8 * n, "int32")), cache.dtype),
            (base + plane.scale_offset(token, group) + n,),
        )
        for n in range(CACHE_SCALE_DTYPE.itemsize)
    ]  # fmt: skip
    body = seq(*halves, For(d, zero, const(plane.group_size), ForKind.SERIAL, put))
    wide, one = cast(scale, "float32"), const(1.0, "float32")
    # A group of zeros has scale 0; dividing by 1 instead keeps its levels 0 and free of NaN.
    safe = Select(wide > none, wide, one, "float32")
    body = LetStmt(finer, one / safe, body)
    body = LetStmt(bits, cast(call_intrin("reinterpret", scale, dtype="uint16"), "int32"), body)
    # Values are divided by the scale as float16 rounds it, because that is the one that readers
    # multiply by.
    body = LetStmt(scale, cast(max_scale[zero], "float16"), body)
    value = source_buffer[simplify(source + first + k)]
    low_scale, top = (
        value * const(1 / level, "float32") for level in (row.min_value, row.max_value)
    )
    grown = BufferStore(max_scale, maximum(max_scale[zero], maximum(low_scale, top)), (zero,))
    return Allocate(
        max_scale,
        seq(
            BufferStore(max_scale, none, (zero,)),
            For(k, zero, const(plane.group_size), ForKind.SERIAL, grown),
            body,
        ),
    )


def _emit_bits_store(
    plane: CachePlane, cache: Buffer, at: PrimExpr, level: PrimExpr, shift: PrimExpr
) -> Stmt:
    """Emit the store of an integer into a bit field of an element."""
    if plane.format.bits == 8:
        return BufferStore(cache, cast(level, cache.dtype), (at,))
    by = cast(shift, "int32")
    mask = call_intrin("left_shift", const((1 << plane.format.bits) - 1, "int32"), by)
    # Numbers that share a byte are of one head, which one thread writes: no race.
    other_bits = call_intrin("bitwise_and", cast(cache[at], "int32"), const(255, "int32") - mask)
    both = call_intrin("bitwise_or", other_bits, call_intrin("left_shift", level, by))
    return BufferStore(cache, cast(both, cache.dtype), (at,))


def write_pages(cache: Tensor, projected: Tensor, places: Sequence[Tensor], page: int) -> Tensor:
    """Return the cache with the keys and values of one layer at the positions of n tokens.

    Args:
        cache: the pages.
        projected: [n, heads, depth], whose last heads are keys, then as many values.
        places: layer, tables, sequences and positions; position -1 is not written.
        page: tokens of a page.

    Returns:
        The updated cache.
    """
    name = "write_pages"
    checks = _page_checks(name, page, projected, cache, places)

    depth = known_int(projected.shape[2])
    assert depth is not None
    plane = CachePlane(page, depth, cache.dtype)

    def emit_write_pages(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit the copy of the cache, elided when updated in place, and a serial loop over tokens:
        the last write to a position wins.
        """
        old, projected_buffer, layer, tables, sequences, positions = ins
        tokens, heads, _ = projected_buffer.shape
        groups = old.shape[3]
        t, g = Var("t"), Var("g")
        position, source = (Var(n, "int64") for n in ("position", "source"))
        row = cast(sequences[t], "int64") * tables.shape[1] + position // page
        number, offset = cast(tables[simplify(row)], "int64"), position % page
        stores = []
        for values in (0, 1):
            base = Var(f"base{values}", "int64")
            start = plane.plane_offset(old, cast(layer[0], "int64"), number, g, values)
            put = _emit_token_store(
                plane,
                projected_buffer,
                source + values * groups * depth,
                outs[0],
                base,
                offset,
                values,
            )
            stores.append(LetStmt(base, start, put))
        loop: Stmt = LetStmt(
            source, cast((t * heads + heads - 2 * groups + g) * depth, "int64"), seq(*stores)
        )
        loop = LetStmt(
            position, cast(positions[t], "int64"), IfThenElse(position >= const(0, "int64"), loop)
        )
        # the tokens of a head in their order: of two at one place the last one counts
        loop = For(t, const(0), tokens, ForKind.SERIAL, loop)
        # a thread of its own is worth having for some tokens; of one they are few
        alone = For(g, const(0), groups, ForKind.SERIAL, loop)
        beside = For(g, const(0), groups, ForKind.PARALLEL, loop, {"grain": 1})
        return seq(
            emit_copy(old, outs[0]), IfThenElse(tokens < MIN_TOKENS_PER_THREAD, alone, beside)
        )

    inputs = [cache, projected, *places]
    attrs: dict[str, object] = {RANGE_CHECKS_ATTR_KEY: checks, UPDATES_ATTR_KEY: 0}
    (updated,) = te.extern_op(
        [cache.shape], inputs, emit_write_pages, [cache.dtype], name, attrs=attrs
    )
    return updated


def paged_attention(
    projected: Tensor,
    cache: Tensor,
    places: Sequence[Tensor],
    pages: PagedAttentionConfig,
    sinks: Tensor | None = None,
) -> Tensor:
    """Return softmax(query * keys * scale) * values of one layer for n tokens: [n, heads, depth]. A
    token attends to the keys of its sequence up to its own position. `projected` [n, heads + 2 *
    groups, depth] begins with the queries, as for `write_pages`. Raises ValueError for a number
    of heads that is no multiple of the groups.
    """
    name = "paged_attention"
    checks = _page_checks(name, pages.page_tokens, projected, cache, places)
    groups, total = known_int(cache.shape[3]), known_int(projected.shape[1])
    assert groups is not None and total is not None
    heads = total - 2 * groups
    if heads <= 0 or heads % groups:
        raise ValueError(f"{name}: {heads} heads are no multiple of {groups} that have keys")
    inputs = [projected, cache, *places]
    if sinks is not None:
        require_shape(name, "sinks", sinks.shape, (heads,))
        if sinks.dtype != "float32":
            raise ValueError(f"{name}: 'sinks' must be float32, got {sinks.dtype}")
        inputs.append(sinks)

    def emit_paged_attention(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit the kernel over its buffers."""
        return create_paged_attention(pages, ins, outs[0]).emit_kernel()

    shape: tuple[PrimExpr, ...] = (projected.shape[0], const(heads), projected.shape[2])
    attrs: dict[str, object] = {RANGE_CHECKS_ATTR_KEY: checks, "pages": pages}
    (result,) = te.extern_op([shape], inputs, emit_paged_attention, ["float32"], name, name, attrs)
    return result


__all__ = ["paged_attention", "write_pages"]
