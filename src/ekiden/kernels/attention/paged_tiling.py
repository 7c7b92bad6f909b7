"""Tiling of paged attention: its static parameters, the sizes of tiles and chunks, and a tile."""

from __future__ import annotations

from ekiden.ir.prim import PrimExpr
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Buffer

EFFICIENT_TILE_ROWS = 6
"""Rows of a tile beyond which more save little."""
DEFAULT_CHUNK_KEYS = 256
"""Of a chunk: merging a row's part is the work of one key or two."""
DEFAULT_SPLIT_BELOW_TILES = 8
"""Tiles below which threads share the chunks of each, where no target is known."""


@dataclass(frozen=True, slots=True)
class PagedAttentionConfig:
    """The static parameters of a paged attention: tokens per page, the scale of scores (None: 1 /
    sqrt of the depth), the softcap (0 for none), and the sliding window in keys (0 for none).
    """

    page: int
    scale: float | None = None
    softcap: float = 0.0
    window: int = 0


@dataclass(frozen=True, slots=True)
class PagedTiling:
    """The tiling: rows of a tile, vectors of keys or depth, keys of a chunk, and the number of
    tiles below which threads share the chunks of each.
    """

    rows: int = EFFICIENT_TILE_ROWS
    vectors: int = 4
    chunk_keys: int = DEFAULT_CHUNK_KEYS
    split_below_tiles: int = DEFAULT_SPLIT_BELOW_TILES


@dataclass(frozen=True, slots=True)
class PagedTile:
    """A tile: `span` tokens from `first` on, heads of each from `head` on, which share the keys of
    `group`; their positions and the maximum of them; their sequence, of which pages `begin` to
    `end` are visible, for the tile or a chunk, and `start` to `stop` for the tile; the index of
    its first row in its unit; the buffers of scores and of a chunk's partial result.
    """

    first: PrimExpr
    span: int
    head: PrimExpr
    group: PrimExpr
    places: tuple[PrimExpr, ...]
    sequence: PrimExpr
    begin: PrimExpr
    end: PrimExpr
    start: PrimExpr
    stop: PrimExpr
    last: PrimExpr
    slot: PrimExpr
    scores: Buffer
    part: Buffer
