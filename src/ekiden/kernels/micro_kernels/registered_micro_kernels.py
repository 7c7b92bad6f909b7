"""Registration of the register and AMX tiles as micro-kernels of schedules; importing the module
registers them.

A micro-kernel is a tensor intrinsic whose sizes are those of the nest that it replaces: `desc` says
what it computes, as a loop program the schedule compares with, `impl` how. The schedule proves that
loops, buffers and bounds are those; what is inside of the tile no schedule step looks at. So the
trace of a dense layer is steps of split, reorder and parallel that end in one tensorize, and
replays.
"""

from __future__ import annotations

from ekiden.ir.dtype import itemsize
from ekiden.ir.prim import IntImm, PrimExpr, Var, const, is_const
from ekiden.kernels.micro_kernels.depthwise_tiles import emit_depthwise_tile
from ekiden.kernels.micro_kernels.epilogue import MAX_LIGHT_OPERATIONS
from ekiden.kernels.micro_kernels.matrix_tiles import MatrixOperands, MatrixTile, emit_matrix_tile
from ekiden.kernels.micro_kernels.prefetch import PanelPrefetches
from ekiden.kernels.micro_kernels.register_tiles import (
    LANES_OF_256_BITS,
    WIDENED_DTYPE,
    RegisterTile,
    emit_register_tile,
)
from ekiden.kernels.prim_builder import wrap_in_lets
from ekiden.kernels.quantized.int8_dot import NARROW_DOT_FEATURE
from ekiden.runtime.errors import ScheduleError
from ekiden.tir.stmt import Stmt
from ekiden.tir.tensor_intrin.micro import (
    GatherLoop,
    MatmulTileNest,
    MicroKernel,
    Options,
    SumLoop,
)
from ekiden.topi.nn.weight_packing import (
    DOT_WORD_BY_DTYPE,
    INT16_PAIR_SUMS_FACT,
    WORD_PAIR_ELEMENTS,
)

CACHE_LINE_BYTES = 64
"""Bytes of a cache line."""
_WORD_PAIR_LOOPS = ((2, 1, 2), (2, 2, 1))
"""Names of the loops over a word in the pair order 0, 2, 1, 3."""


def _emit_register_tile(nest: MatmulTileNest, options: Options) -> Stmt:
    """Emit a register tile for a scheduled block, by `emit_register_tile`."""
    loops, word = _loops_outside_words(nest, nest.loops)
    if any(s.rows is not None for s in loops):
        if nest.b.dtype == WIDENED_DTYPE:
            raise ScheduleError("register_tile: terms of words of int16 are of all rows")
        if loops[-1].rows is not None:
            loops = (*loops, SumLoop(const(1), const(0), const(0)))
    if nest.copy is not None and word > 1:
        raise ScheduleError("register_tile: a tile of words makes no copy")
    dot = ""
    if options["pair_sums"]:
        # Nothing in a program tells what a weight holds: whoever packed it declares it.
        if INT16_PAIR_SUMS_FACT not in nest.facts:
            raise ScheduleError(
                "register_tile: pair_sums: the block does not declare "
                f"{INT16_PAIR_SUMS_FACT!r}, that sums of two products fit int16"
            )
        dot = NARROW_DOT_FEATURE
    lanes = options["lanes"]
    # Half a vector holds all columns, and no core is slower at 256 bits than at 512.
    if word == 1 and lanes > LANES_OF_256_BITS and 2 * nest.columns <= lanes:
        lanes //= 2
    shape = RegisterTile(
        nest.rows, -(-nest.columns // lanes), lanes, nest.columns, nest.dtype, dot, word=word
    )
    wide = shape.vectors * lanes
    # The tile loads whole vectors: on narrower rows the last one would read past the buffer.
    if wide > max(nest.columns, nest.b_width):
        raise ScheduleError(
            f"register_tile: vectors of {lanes} end behind the {nest.columns} columns of"
            f" {nest.b.name!r}, whose rows are not known to have {wide}"
        )
    base, inner = Var("base"), loops[-1]
    row = _static_extent(inner.b_stride)
    is_narrow = nest.columns < nest.b_width
    # A tile of few rows finishes before its prefetches arrive.
    has_time = (
        nest.rows >= options["l1_prefetch_min_rows_narrow" if is_narrow else "l1_prefetch_min_rows"]
    )
    # `row` is 0 where the panel's stride is symbolic: then no line distance can be computed.
    panel_prefetches = PanelPrefetches(
        nest.b,
        row,
        CACHE_LINE_BYTES // itemsize(nest.b.dtype),
        inner.extent,
        nest.next_panel_offset,
        options["l1_prefetch"] if row and has_time else 0,
        options["l2_prefetch"] if row else 0,
        options["unroll"],
    )
    lets, ahead = panel_prefetches.tile_prefetches(base, nest.panel_position)
    tile_stmt = emit_register_tile(
        shape,
        loops,
        nest.a,
        nest.a_rows,
        nest.b,
        base,
        nest.store,
        nest.epilogue_flops > MAX_LIGHT_OPERATIONS,
        ahead,
        panel_prefetches.unroll,
        nest.partial_sums,
        _checked_gather(nest),
        nest.copy,
    )
    return wrap_in_lets([(base, nest.b_base), *lets], tile_stmt)


def _loops_outside_words(
    nest: MatmulTileNest, loops: tuple[SumLoop, ...]
) -> tuple[tuple[SumLoop, ...], int]:
    """Return the reduction loops outside the loop over a word, and the word's elements.

    Raises:
        ScheduleError: If the factors do not have the layout that words need.
    """
    word = DOT_WORD_BY_DTYPE.get(nest.b.dtype, 1)
    is_paired = nest.a.dtype == WIDENED_DTYPE and nest.b_columns == WORD_PAIR_ELEMENTS
    if is_paired and word > 1:
        word = WORD_PAIR_ELEMENTS  # bytes are widened where they are loaded
    # One vector load takes the words of neighbouring columns, so these must be adjacent.
    if nest.columns > 1 and nest.b_columns != word:
        raise ScheduleError(
            f"register_tile: columns of {nest.b.name!r} must lie {word} elements apart, they lie "
            f"{nest.b_columns}"
        )
    if word == 1:
        return loops, 1
    is_halved = nest.a.dtype == WIDENED_DTYPE and word != WORD_PAIR_ELEMENTS
    expected = _WORD_PAIR_LOOPS if is_halved else ((word, 1, 1),)
    inner = loops[-len(expected) :]
    actual = tuple(
        (_static_extent(s.extent), _static_extent(s.a_stride), _static_extent(s.b_stride))
        for s in inner
    )
    if any(s.rows is not None or not is_const(s.begin, 0) for s in inner):
        raise ScheduleError(f"register_tile: a condition parts a word of {word} elements")
    if actual != expected or len(loops) == len(inner):
        raise ScheduleError(
            f"register_tile: the innermost loops must be {expected} (steps, how far they move in"
            f" both factors) over a word of {word} elements, got {actual}"
        )
    return loops[: -len(expected)], word


def _checked_gather(nest: MatmulTileNest) -> GatherLoop | None:
    """Return the loop of looked-up words. Raises ScheduleError if they lack the layout of words."""
    gather = nest.gather
    if gather is not None:
        steps = SumLoop(gather.extent, gather.a_stride, gather.b_stride)
        _loops_outside_words(nest, (steps, *gather.word_loops))
    return gather


def _static_extent(size: PrimExpr) -> int:
    return size.value if isinstance(size, IntImm) else 0


def _emit_matrix_tile(nest: MatmulTileNest, options: Options) -> Stmt:
    """Emit an AMX tile for a scheduled block, by `emit_matrix_tile`."""
    loops, word = _loops_outside_words(nest, nest.loops)
    # Sums in these registers cannot be continued: a chunk of k would have to reload them.
    if word == 1 or nest.partial_sums is not None or nest.row_loop is None or nest.a_stride is None:
        raise ScheduleError("matrix_tile: sums of words, all of them at once, expected")
    shape = MatrixTile(nest.rows, nest.row_loop, nest.columns, nest.dtype)
    factors = MatrixOperands(nest.a, nest.a_rows[0], nest.a_stride, nest.b, nest.b_base)
    return emit_matrix_tile(shape, loops, factors, nest.store)


REGISTER_TILE_KERNEL = MicroKernel.register(
    MicroKernel(
        name="register_tile",
        required_features=(),
        defaults={
            "lanes": 16,
            "l1_prefetch": 0,
            "l1_prefetch_min_rows": 1,
            "l1_prefetch_min_rows_narrow": 1,
            "l2_prefetch": 0,
            "unroll": 1,
            "pair_sums": 0,
        },
        write=_emit_register_tile,
        takes_conditions=True,
        makes_copies=True,
        renamed_options={
            "own": "l1_prefetch",
            "own_rows": "l1_prefetch_min_rows",
            "own_rows_narrow": "l1_prefetch_min_rows_narrow",
            "spread": "l2_prefetch",
        },
    )
)
"""Options. lanes: vector width. l1_prefetch: L1 prefetch distance of the panel, in steps of k.
l1_prefetch_min_rows: fewest rows of a tile that prefetches into L1; l1_prefetch_min_rows_narrow:
the same for tiles that leave out columns of their panel. l2_prefetch: tiles that prefetch the next
panel into L2. unroll: unroll factor of k. pair_sums: whether sums of two int8 products are int16.
"""

MATRIX_TILE_KERNEL = MicroKernel.register(
    MicroKernel(
        name="matrix_tile",
        required_features=(),
        defaults={},
        write=_emit_matrix_tile,
        accepts_any_rows=True,
    )
)

DEPTHWISE_TILE_KERNEL = MicroKernel.register(
    MicroKernel(
        name="depthwise_tile",
        required_features=(),
        defaults={"lanes": 16},
        write=emit_depthwise_tile,
        is_elementwise=True,
        takes_conditions=True,
    )
)

__all__ = ["DEPTHWISE_TILE_KERNEL", "MATRIX_TILE_KERNEL", "REGISTER_TILE_KERNEL"]
