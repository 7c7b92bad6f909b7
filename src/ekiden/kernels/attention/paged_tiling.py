"""Tiling of paged attention: its static parameters, the sizes of tiles and chunks, and a tile."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.prim import IntImm, PrimExpr, Var, const, maximum, minimum
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import For, ForKind, Stmt

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


def const_int(dim: PrimExpr) -> int:
    """Return the value of a constant dimension."""
    assert isinstance(dim, IntImm), dim
    return dim.value


def serial_loop(var: Var, extent: PrimExpr, body: Stmt, begin: PrimExpr | None = None) -> Stmt:
    """Return a serial loop."""
    return For(var, const(0) if begin is None else begin, extent, ForKind.SERIAL, body)


@dataclass(frozen=True, slots=True)
class ChunkSplit:
    """Whether threads share the chunks of a tile, the maximum of pieces of a tile, and the buffer
    of partial results.
    """

    pieces: PrimExpr
    is_shared: PrimExpr
    kept: Buffer


def min_and_max(positions: Sequence[PrimExpr]) -> tuple[PrimExpr, PrimExpr]:
    """Return the minimum and maximum of some positions."""
    lowest, last = positions[0], positions[0]
    for position in positions[1:]:
        lowest, last = minimum(lowest, position), maximum(last, position)
    return lowest, last
