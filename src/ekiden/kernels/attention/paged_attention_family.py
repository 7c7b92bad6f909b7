"""Kernel family of paged attention: its search space, its default decision, and a builder per cache
dtype.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.kernels.attention.kv_layout import CACHE_FORMAT_BY_DTYPE, CACHE_WORD_BYTES
from ekiden.kernels.attention.paged_attention import (
    DEFAULT_CHUNK_KEYS,
    DEFAULT_PAGED_LANES,
    EFFICIENT_TILE_ROWS,
    PagedAttention,
    PagedAttentionConfig,
    PagedTiling,
)
from ekiden.kernels.attention.paged_attention_int4 import Int4PagedAttention
from ekiden.kernels.attention.paged_attention_int8 import Int8PagedAttention
from ekiden.kernels.cost_model import max_register_rows
from ekiden.kernels.decision import Decision, Knob, Overrides, SearchSpace, descending_range
from ekiden.kernels.family import Family
from ekiden.kernels.prim_builder import create_tiled_function, declare_extern_parameters
from ekiden.kernels.quantized.int8_dot import word_dot_instructions
from ekiden.target import Target
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import PrimFunc

CHUNK_KEYS_DOMAIN = (
    DEFAULT_CHUNK_KEYS,
    DEFAULT_CHUNK_KEYS * 4,
    DEFAULT_CHUNK_KEYS * 2,
    DEFAULT_CHUNK_KEYS // 2,
)
TILES_PER_THREAD = 4
"""Tiles per thread above which load imbalance is negligible."""


def create_paged_attention(
    pages: PagedAttentionConfig, inputs: Sequence[Buffer], output: Buffer,
    lanes: int = DEFAULT_PAGED_LANES, tiling: PagedTiling | None = None, dots: Sequence[str] = (),
) -> PagedAttention:  # fmt: skip
    """Return the paged-attention builder for the cache's dtype; `dots` lists the target's integer
    dot-product instructions.
    """
    row = CACHE_FORMAT_BY_DTYPE[inputs[1].dtype]
    if not row.group_size:
        return PagedAttention(pages, inputs, output, lanes, tiling)
    kind = Int8PagedAttention if row.values_per_word == CACHE_WORD_BYTES else Int4PagedAttention
    return kind(pages, inputs, output, lanes, tiling, dots)


def search_space(anchor: te.Tensor, target: Target) -> SearchSpace:
    """Return the search space of a paged attention."""
    return (
        Knob("rows", descending_range(max_register_rows(2, target)), "queries of a tile"),
        Knob("vectors", descending_range(4), "vectors of a tile"),
        Knob("keys", CHUNK_KEYS_DOMAIN, "keys of a chunk"),
    )


def default_decision(anchor: te.Tensor, target: Target, fixed: Overrides) -> Decision:
    """Return the default decision: enough queries to keep the FMA units busy, as many vectors as
    the registers hold, and twice the keys per chunk for caches of 8 bits or fewer.
    """
    vectors = int(fixed.get("vectors", 4 if target.registers > DEFAULT_PAGED_LANES else 2))
    rows = fixed.get("rows", max(1, min(EFFICIENT_TILE_ROWS, max_register_rows(vectors, target))))
    is_narrow = CACHE_FORMAT_BY_DTYPE[anchor.op.input_tensors[1].dtype].group_size > 0
    keys = fixed.get("keys", DEFAULT_CHUNK_KEYS * 2 if is_narrow else DEFAULT_CHUNK_KEYS)
    return Decision.from_mapping({"rows": rows, "vectors": vectors, "keys": keys})


def build_paged_attention(
    inputs: list[te.Tensor],
    outputs: list[te.Tensor],
    target: Target,
    name: str,
    decision: Decision,
) -> PrimFunc:
    """Build the kernel of the tag "paged_attention"."""
    pages = outputs[0].op.attrs["pages"]
    assert isinstance(pages, PagedAttentionConfig)
    buffers, operands, (result,) = declare_extern_parameters(inputs, outputs)
    rows, vectors, keys = (decision.int_value(n) for n in ("rows", "vectors", "keys"))
    tiling, lanes = (
        PagedTiling(rows, vectors, keys, TILES_PER_THREAD * target.cores),
        target.lanes("float32"),
    )
    attention = create_paged_attention(
        pages, operands, result, lanes, tiling, word_dot_instructions(target)
    )
    body = create_tiled_function(name, buffers, attention.emit_kernel(), len(outputs))
    return body.with_attr({"tir.has_blocks": 1})  # the checks of places are loops as others


FAMILY = Family(
    name="paged_attention",
    build_unscheduled=build_paged_attention,
    unscheduled_reason=(
        "pages are looked up in a table inside the loop, with an online softmax between "
        "the two products"
    ),
    search_space=search_space,
    default_decision=default_decision,
    prevents_fusion=True,
)

__all__ = ["FAMILY", "create_paged_attention"]
