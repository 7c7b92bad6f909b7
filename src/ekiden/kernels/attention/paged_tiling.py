"""Tiling of paged attention: its static parameters, the sizes of tiles and chunks, and a tile."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.prim import IntImm, PrimExpr, Var, const, maximum, minimum
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import For, ForKind, Stmt

EFFICIENT_TILE_ROWS = 6
"""Tile rows above which larger tiles save little."""
DEFAULT_CHUNK_KEYS = 256
"""Keys per chunk: merging a partial result costs as much as one or two keys per row."""
DEFAULT_SPLIT_BELOW_TILES = 8
"""Number of tiles below which threads share chunks, without a target."""


@dataclass(frozen=True, slots=True)
class PagedAttentionConfig:
    """Static parameters of a paged attention: tokens per page, the scale of scores (None: 1 /
    sqrt(depth)), the softcap (0: none), and the sliding window in keys (0: none).
    """

    page_tokens: int
    scale: float | None = None
    softcap: float = 0.0
    window: int = 0


@dataclass(frozen=True, slots=True)
class PagedTiling:
    """Tile sizes: query rows, vectors of keys or depth, keys per chunk, and the number of tiles
    below which threads share the chunks of a tile (flash decoding).
    """

    rows: int = EFFICIENT_TILE_ROWS
    vectors: int = 4
    chunk_keys: int = DEFAULT_CHUNK_KEYS
    split_below_tiles: int = DEFAULT_SPLIT_BELOW_TILES


@dataclass(frozen=True, slots=True)
class PagedTile:
    """Query tile: tokens and heads that share a KV head, their positions, the pages visible to the
    tile and to the current chunk, and the buffers of scores and of the chunk's partial result.
    """

    first_token: PrimExpr
    num_tokens: int
    first_head: PrimExpr
    kv_head: PrimExpr
    positions: tuple[PrimExpr, ...]
    sequence: PrimExpr
    begin_page: PrimExpr
    end_page: PrimExpr
    tile_begin_page: PrimExpr
    tile_end_page: PrimExpr
    last_position: PrimExpr
    first_row: PrimExpr
    scores: Buffer
    partial_result: Buffer


def const_int(dim: PrimExpr) -> int:
    """Return a constant dimension as an int."""
    assert isinstance(dim, IntImm), dim
    return dim.value


def serial_loop(var: Var, extent: PrimExpr, body: Stmt, begin: PrimExpr | None = None) -> Stmt:
    """Return a serial loop over [begin, begin + extent)."""
    return For(var, const(0) if begin is None else begin, extent, ForKind.SERIAL, body)


@dataclass(frozen=True, slots=True)
class ChunkSplit:
    """Split of a tile's chunks among threads: whether it is active, the maximum number of pieces of
    a tile, and the buffer of partial results.
    """

    max_splits: PrimExpr
    is_shared: PrimExpr
    partial_results: Buffer


def position_bounds(positions: Sequence[PrimExpr]) -> tuple[PrimExpr, PrimExpr]:
    """Return the minimum and the maximum of token positions."""
    lowest, last = positions[0], positions[0]
    for position in positions[1:]:
        lowest, last = minimum(lowest, position), maximum(last, position)
    return lowest, last
