"""Paged attention: write to a paged KV cache, and attend over it; the kernels are those of
kernels.attention.paged_attention.

Both take `projected` [n, heads + 2 * groups, depth], of each token its queries, keys and values,
and where tokens stand: `layer` int32 [1], `tables` int32 [sequences, most pages], which pages of
the cache have the tokens of a sequence, and of each of n tokens its row of the tables and its
position in that sequence, `sequences` and `positions` int32 [n].
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array
from ekiden.kernels.attention.kv_layout import MAX_QUERY_LEVEL, CachePlane
from ekiden.kernels.attention.paged_attention import PagedAttentionConfig
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import call_op, check_range
from ekiden.relay.op._declare_topi import declare_topi_op

PAGE_INDEX_ARGUMENTS = ("layer", "tables", "sequences", "positions")


@node("relay.attrs.WritePagesAttrs")
class WritePagesAttrs(Attrs):
    """Attributes of contrib_write_pages: tokens per page."""

    page: int = 64


@node("relay.attrs.PagedAttentionAttrs")
class PagedAttentionAttrs(Attrs):
    """Attributes of contrib_paged_attention: tokens per page, scale (None: 1 / sqrt(depth)), soft
    cap (0: none), window (0: all keys).
    """

    page: int = 64
    scale: float | None = None
    softcap: float = 0.0
    window: int = 0

    @property
    def pages(self) -> PagedAttentionConfig:
        """Return the attributes as the kernel's configuration."""
        return PagedAttentionConfig(self.page, self.scale, self.softcap, self.window)


def _check_slots(
    name: str, page: int, cache: Array, plane: CachePlane, token_slots: Sequence[Array]
) -> None:
    """Raise IndexRangeError for a slot out of range, as the kernels do (topi.nn.paged_kv_cache)."""
    layer, tables, sequences, positions = token_slots
    check_range(f"{name}: layer", layer, (0, cache.shape[1]))
    check_range(f"{name}: page", tables, (0, cache.shape[0] * (cache.shape[4] // plane.size)))
    check_range(f"{name}: sequence", sequences, (0, tables.shape[0]))
    # -1 is allowed: it marks no token.
    check_range(f"{name}: position", positions, (-1, tables.shape[1] * page))


def _write_pages_reference(
    attrs: WritePagesAttrs, cache: Array, projected: Array, *token_slots: Array
) -> Array:
    if not cache.size:  # no kernel runs for a result without elements
        return cache
    page, groups = attrs.page, cache.shape[3]
    plane = CachePlane(page, projected.shape[-1], str(cache.dtype))
    _check_slots("write_pages", page, cache, plane, token_slots)
    layer, tables, sequences, positions = token_slots
    # The operator is pure: whatever else reads the old cache keeps its values.
    new_cache = cache.copy()
    blocks = plane.layer_view(new_cache, layer[0])
    keys, values = projected[:, -2 * groups : -groups], projected[:, -groups:]
    for k, v, s, p in zip(keys, values, sequences, positions, strict=True):
        # Padding of a batch: no token.
        if p < 0:
            continue
        # A table numbers pages; a block of the cache holds several of them.
        block, inside = divmod(tables[s, p // page], blocks.shape[3])
        for which, row in enumerate((k, v)):
            plane.write_token(blocks[block, which, :, inside], p % page, row, which)
    return new_cache


def _paged_attention_reference(
    attrs: PagedAttentionAttrs, projected: Array, cache: Array, *token_slots: Array
) -> Array:
    layer, tables, sequences, positions = token_slots[:4]
    sinks = token_slots[4] if len(token_slots) > 4 else None
    query = projected[:, : -2 * cache.shape[3]]
    if not query.size:
        return query
    _, heads, depth = query.shape
    attended, page = np.zeros_like(query), attrs.page
    plane, groups = CachePlane(page, depth, str(cache.dtype)), cache.shape[3]
    _check_slots("paged_attention", page, cache, plane, token_slots[:4])
    blocks = np.moveaxis(plane.layer_view(cache, layer[0]), 3, 1)
    pages = blocks.reshape(-1, *blocks.shape[2:])
    keys, values = (
        plane.dequantize(pages[:, which], which).transpose(0, 2, 1, 3) for which in (0, 1)
    )
    # Kernels round queries too where the cache holds bytes.
    if plane.has_scales:
        query = quantize_query(query)
    scale = 1 / math.sqrt(depth) if attrs.scale is None else attrs.scale
    for n, (sequence, position) in enumerate(zip(sequences, positions, strict=True)):
        # Sliding-window attention: a query sees the last `window` keys, its own included.
        first = max(0, position - attrs.window + 1) if attrs.window else 0
        visible = range(first, position + 1)
        if not visible:
            continue
        indices = [(tables[sequence, i // page], i % page) for i in visible]
        # Grouped-query attention: each head of the cache serves several query heads.
        own = [
            np.repeat(np.stack([x[i] for i in indices]), heads // groups, 1) for x in (keys, values)
        ]
        scores = np.einsum("hd,thd->ht", query[n], own[0]) * np.float32(scale)
        if attrs.softcap:
            scores = np.tanh(scores / np.float32(attrs.softcap)) * np.float32(attrs.softcap)
        # The largest is taken off so that exp does not overflow.
        if sinks is not None:  # a further key, whose value is 0
            scores = np.concatenate([scores, sinks[:, None]], axis=-1)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        shares = shares[:, : len(indices)]
        attended[n] = np.einsum("ht,thd->hd", shares, own[1])
    return attended


def quantize_query(query: Array) -> Array:
    """Quantise queries per head to int8, with the largest magnitude mapped to 127."""
    step = np.abs(query).max(-1, keepdims=True) * np.float32(1 / MAX_QUERY_LEVEL)
    # A head of zeros has no step: its reciprocal is replaced by 0.
    finer = np.divide(1, step, out=np.zeros_like(step), where=step > 0)
    return np.asarray(np.rint(query * finer) * step)


declare_topi_op(
    "nn.contrib_write_pages",
    ("cache", "projected", *PAGE_INDEX_ARGUMENTS),
    lambda attrs, cache, projected, *token_slots: topi.nn.write_pages(
        cache, projected, token_slots, attrs.page
    ),
    "the cache [blocks, layers, 2, groups, pages of a block * page * depth] with the keys and"
    " values of `projected` [n, heads + 2 * groups, depth] at the places of n tokens; position -1"
    " is none",
    WritePagesAttrs,
    reference=_write_pages_reference,
    refuses=True,
)
declare_topi_op(
    "nn.contrib_paged_attention",
    ("projected", "cache", *PAGE_INDEX_ARGUMENTS),
    lambda attrs, projected, cache, *token_slots: topi.nn.paged_attention(
        projected, cache, token_slots, attrs.pages
    ),
    "[n, heads, depth] for `projected` [n, heads + 2 * groups, depth]: a token sees the keys"
    " of its sequence up to its own position",
    PagedAttentionAttrs,
    reference=_paged_attention_reference,
    refuses=True,
)

declare_topi_op(
    "nn.contrib_paged_attention_with_sinks",
    ("projected", "cache", *PAGE_INDEX_ARGUMENTS, "sinks"),
    lambda attrs, projected, cache, *inputs: topi.nn.paged_attention(
        projected, cache, inputs[:4], attrs.pages, inputs[4]
    ),
    "[n, heads, depth] as of nn.contrib_paged_attention, where each head has a further key of the"
    " score `sinks` [heads], whose value is 0",
    PagedAttentionAttrs,
    reference=_paged_attention_reference,
    refuses=True,
)


def contrib_write_pages(
    cache: Expr, projected: Expr, layer: Expr, tables: Expr, sequences: Expr, positions: Expr,
    page: int,
) -> Call:  # fmt: skip
    """Return the KV cache with the keys and values of one layer written to the slots of n tokens.

    It is changed in place if nothing else refers to it.
    """
    token_slots = (layer, tables, sequences, positions)
    return call_op(
        "nn.contrib_write_pages", cache, projected, *token_slots, attrs=WritePagesAttrs(page)
    )


def contrib_paged_attention(
    projected: Expr, cache: Expr, layer: Expr, tables: Expr, sequences: Expr, positions: Expr,
    page: int, scale: float | None = None, softcap: float = 0.0, window: int = 0,
) -> Call:  # fmt: skip
    """Return softmax(query * keys * scale) * values per head of n tokens, over the pages of their
    sequences.
    """
    token_slots = (layer, tables, sequences, positions)
    attrs = PagedAttentionAttrs(page, scale, softcap, window)
    return call_op("nn.contrib_paged_attention", projected, cache, *token_slots, attrs=attrs)


def contrib_paged_attention_with_sinks(
    projected: Expr, cache: Expr, layer: Expr, tables: Expr, sequences: Expr, positions: Expr,
    sinks: Expr, page: int, scale: float | None = None, softcap: float = 0.0, window: int = 0,
) -> Call:  # fmt: skip
    """Return what `contrib_paged_attention` returns where each head has a further key of the score
    `sinks` float32 [heads] and the value 0, as in gpt-oss: it takes a share of the softmax.
    """
    token_slots = (layer, tables, sequences, positions)
    attrs = PagedAttentionAttrs(page, scale, softcap, window)
    name = "nn.contrib_paged_attention_with_sinks"
    return call_op(name, projected, cache, *token_slots, sinks, attrs=attrs)


__all__ = [
    "contrib_paged_attention",
    "contrib_paged_attention_with_sinks",
    "contrib_write_pages",
]
