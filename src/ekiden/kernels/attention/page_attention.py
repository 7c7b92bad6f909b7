"""The kernel family of paged attention: its knobs and its construction for a cache dtype."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.kernels.attention.kv_layout import FORMAT_BY_DTYPE, WORD_BYTES
from ekiden.kernels.attention.page_bytes import Int8PagedAttention
from ekiden.kernels.attention.paged_attention_int4 import Int4PagedAttention
from ekiden.kernels.attention.pages import (
    DEFAULT_CHUNK_KEYS,
    DEFAULT_F32_LANES,
    EFFICIENT_TILE_ROWS,
    PagedAttention,
    PagedTiling,
    Pages,
)
from ekiden.kernels.cost_model import most_rows
from ekiden.kernels.decision import Decision, Fixed, Knob, Space, descending
from ekiden.kernels.family import Family
from ekiden.kernels.prim_builder import extern_buffers, tiled_function
from ekiden.kernels.quantized.int8_dot import word_products
from ekiden.target import Target
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import PrimFunc

CHUNK_KEYS = (
    DEFAULT_CHUNK_KEYS,
    DEFAULT_CHUNK_KEYS * 4,
    DEFAULT_CHUNK_KEYS * 2,
    DEFAULT_CHUNK_KEYS // 2,
)
TILES_PER_THREAD = 4
"""Tiles of each thread from which the last of them keeps others waiting for little."""


def paged_attention_of(
    pages: Pages, inputs: Sequence[Buffer], output: Buffer, lanes: int = DEFAULT_F32_LANES,
    cut: PagedTiling | None = None, dots: Sequence[str] = (),
) -> PagedAttention:  # fmt: skip
    """Return the attention for the dtype of its cache; `dots`: the target's integer dot-product
    instructions.
    """
    row = FORMAT_BY_DTYPE[inputs[1].dtype]
    if not row.group:
        return PagedAttention(pages, inputs, output, lanes, cut)
    kind = Int8PagedAttention if row.held == WORD_BYTES else Int4PagedAttention
    return kind(pages, inputs, output, lanes, cut, dots)


def space(anchor: te.Tensor, target: Target) -> Space:
    """Return the search space of a paged attention."""
    return (
        Knob("rows", descending(most_rows(2, target)), "queries of a tile"),
        Knob("vectors", descending(4), "vectors of a tile"),
        Knob("keys", CHUNK_KEYS, "keys of a chunk"),
    )


def default(anchor: te.Tensor, target: Target, fixed: Fixed) -> Decision:
    """Return the default decision: as many queries as keep the FMA units busy, on as many vectors
    as registers hold; twice the keys per chunk for 8-bit and narrower caches, so that their
    memory streams are as long.
    """
    vectors = int(fixed.get("vectors", 4 if target.registers > DEFAULT_F32_LANES else 2))
    rows = fixed.get("rows", max(1, min(EFFICIENT_TILE_ROWS, most_rows(vectors, target))))
    is_narrow = FORMAT_BY_DTYPE[anchor.op.input_tensors[1].dtype].group > 0
    keys = fixed.get("keys", DEFAULT_CHUNK_KEYS * 2 if is_narrow else DEFAULT_CHUNK_KEYS)
    return Decision.of({"rows": rows, "vectors": vectors, "keys": keys})


def paged_attention(
    inputs: list[te.Tensor],
    outputs: list[te.Tensor],
    target: Target,
    name: str,
    decision: Decision,
) -> PrimFunc:
    """Build the kernel of tag "paged_attention"."""
    pages = outputs[0].op.attrs["pages"]
    assert isinstance(pages, Pages)
    buffers, operands, (result,) = extern_buffers(inputs, outputs)
    rows, vectors, keys = (decision.number(n) for n in ("rows", "vectors", "keys"))
    cut, lanes = (
        PagedTiling(rows, vectors, keys, TILES_PER_THREAD * target.cores),
        target.lanes("float32"),
    )
    attention = paged_attention_of(pages, operands, result, lanes, cut, word_products(target))
    body = tiled_function(name, buffers, attention.body(), len(outputs))
    return body.with_attr({"tir.has_blocks": 1})  # the checks of places are loops as others


FAMILY = Family(
    name="paged_attention",
    build=paged_attention,
    why="pages are found in a table as it goes, and a softmax runs along between two products",
    space=space,
    default=default,
    is_whole=True,
)

__all__ = ["FAMILY", "paged_attention_of"]
