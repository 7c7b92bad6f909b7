"""Register tiles as micro-kernels that schedules put in: importing this registers them."""

from __future__ import annotations

from ekiden.ir.dtype import itemsize
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import PrimExpr, Var, const, logical_and
from ekiden.runtime.errors import ScheduleError
from ekiden.tir.expr import broadcast
from ekiden.tir.stmt import Stmt
from ekiden.tir.tensor_intrin.micro import MicroKernel, Options, SumLoop, TileNest
from ekiden.topi.nn.weights import WORD_OF
from ekiden.topi.rule.ahead import Prefetches, bound
from ekiden.topi.rule.epilogue import LIGHT
from ekiden.topi.rule.tiles import WIDE_LANES, KLoop, Parts, Tile, compute_tile

LINE = 64
"""Bytes of a cache line."""


def _register_tile(nest: TileNest, options: Options) -> Stmt:
    """Sums in registers: `compute_tile`."""
    loops, word = _loops_of_words(nest)
    lanes = options["lanes"]
    if word == 1 and lanes > WIDE_LANES and 2 * nest.columns <= lanes:
        lanes //= 2
    shape = Tile(nest.rows, -(-nest.columns // lanes), lanes, nest.columns, nest.dtype)
    base, inner = Var("base"), loops[-1]
    row = getattr(inner.b_stride, "value", 0)
    near = Prefetches(
        nest.b,
        row,
        LINE // itemsize(nest.b.dtype),
        inner.extent,
        nest.following,
        options["own"] if row else 0,
        options["spread"] if row else 0,
        options["unroll"],
    )
    lets, ahead = near.of(base, nest.number)
    made = compute_tile(
        shape,
        [KLoop(s.extent, s.a_stride, s.b_stride) for s in loops],
        nest.a,
        nest.a_rows,
        nest.b,
        base,
        nest.store,
        nest.work > LIGHT,
        ahead,
        near.unroll,
        _parts(nest, lanes),
    )
    return bound([(base, nest.b_base), *lets], made)


def _loops_of_words(nest: TileNest) -> tuple[tuple[SumLoop, ...], int]:
    """The loops of the sums, and how many neighbours a step takes of words. Raises ScheduleError
    where factors do not lie so."""
    word = WORD_OF.get(nest.b.dtype, 1)
    if nest.b_columns != word:
        raise ScheduleError(
            f"register_tile: columns of {nest.b.name!r} must lie {word} elements apart, they lie "
            f"{nest.b_columns}"
        )
    if word == 1:
        return nest.loops, 1
    *outer, last = nest.loops
    side_by_side = all(getattr(x, "value", 0) == 1 for x in (last.a_stride, last.b_stride))
    if not outer or getattr(last.extent, "value", 0) != word or not side_by_side:
        raise ScheduleError(
            f"register_tile: the innermost loop must run over the {word} elements of a word"
        )
    return tuple(outer), word


def _parts(nest: TileNest, lanes: int) -> Parts | None:
    """Sums that begin with what was kept, zeros in the first part."""
    part = nest.part
    if part is None:
        return None

    def load(row: PrimExpr, column: PrimExpr, mask: PrimExpr | None) -> PrimExpr:
        begun = broadcast(part.begun, lanes)
        zero = broadcast(const(0, nest.dtype), lanes)
        wanted = begun if mask is None else logical_and(begun, mask)
        return if_then_else(wanted, part.load(row, column, lanes), zero)

    return Parts(part.is_last, load, part.keep)


REGISTER_TILE = MicroKernel.register(
    MicroKernel(
        name="register_tile",
        needs=(),
        defaults={"lanes": 16, "own": 0, "spread": 0, "unroll": 1},
        write=_register_tile,
    )
)
"""lanes: of a vector. own, spread: see `ahead`. unroll: steps that stand one after the other."""

__all__ = ["REGISTER_TILE"]
