"""Depthwise tile: the micro-kernel of sums of products by elements.

A tile is `rows` x `vectors` accumulators kept in registers while the taps run; each step loads the
vectors of a row of weights, and per tile row the vectors of data that it multiplies:

    acc[i, v] = fma(a[i, k, v], b[k, v], acc[i, v])

Such a kernel is memory-bound; the tile reuses each vector of weights for its rows. Rows without a
term in a step are left out of it, so that no zero is multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import PrimExpr, Var, const, is_const
from ekiden.kernels.micro_kernels.register_tiles import RegisterTile
from ekiden.kernels.micro_kernels.sum_loops import emit_sum_loops
from ekiden.kernels.micro_kernels.vector_memory import load_as_float32
from ekiden.kernels.prim_builder import wrap_in_lets
from ekiden.runtime.errors import ScheduleError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Buffer, broadcast
from ekiden.tir.stmt import Allocate, BufferStore, Stmt, seq
from ekiden.tir.tensor_intrin.micro import MatmulTileNest, Options, StoreVector, SumLoop


@dataclass(frozen=True, slots=True)
class ElementProducts:
    """Factors of the sums of a tile, `a` times `b`: the offset of each row in the first, that of
    all rows in the second, and the loops of the sums.
    """

    a: Buffer
    a_rows: Sequence[PrimExpr]
    b: Buffer
    b_base: PrimExpr
    loops: Sequence[SumLoop]


def emit_depthwise_sums(tile: RegisterTile, products: ElementProducts, store: StoreVector) -> Stmt:
    """Emit the sums of a tile, and the stores of the results."""
    masks = [tile.vector_mask(v) for v in range(tile.vectors)]
    acc = tile.accumulator_buffer()
    zero = broadcast(const(0.0, "float32"), tile.lanes)
    clear = [BufferStore(acc, zero, (const(i),)) for i in range(tile.num_vectors)]
    stores = [
        store(const(i), const(v * tile.lanes), acc[i * tile.vectors + v], mask)
        for i in range(tile.rows)
        for v, mask in enumerate(masks)
    ]
    loops = [s for s in products.loops if not _is_unit(s)]

    def emit_terms(values: Sequence[PrimExpr], rows: Sequence[int]) -> Stmt:
        """Emit one iteration of all loops, at these values of their variables."""
        a, b = const(0), products.b_base
        for value, s in zip(values, loops, strict=True):
            a, b = a + value * s.a_stride, b + value * s.b_stride
        return _emit_tap(products, tile, acc, masks, a, b, rows)

    sums = emit_sum_loops(loops, tile.rows, emit_terms)
    return Allocate(acc, seq(*clear, sums, *stores))


def emit_depthwise_tile(nest: MatmulTileNest, options: Options) -> Stmt:
    """Emit a depthwise tile for a scheduled block.

    Raises:
        ScheduleError: If columns are not adjacent in both factors, or sums are not float32.
    """
    if (nest.a_columns, nest.b_columns) != (1, 1) or nest.dtype != "float32":
        raise ScheduleError(
            "depthwise_tile: float32 sums over adjacent columns of both factors expected, got "
            f"{nest.dtype} and columns {nest.a_columns} and {nest.b_columns} elements apart"
        )
    if nest.partial_sums is not None:
        raise ScheduleError("depthwise_tile: all loops of the sum must be in the tile")
    lanes = options["lanes"]
    tile = RegisterTile(nest.rows, -(-nest.columns // lanes), lanes, nest.columns)
    products = ElementProducts(nest.a, nest.a_rows, nest.b, nest.b_base, nest.loops)
    return emit_depthwise_sums(tile, products, nest.store)


def _is_unit(loop: SumLoop) -> bool:
    return loop.rows is None and is_const(loop.extent, 1) and is_const(loop.begin, 0)


def _emit_tap(
    products: ElementProducts,
    tile: RegisterTile,
    acc: Buffer,
    masks: Sequence[PrimExpr | None],
    a: PrimExpr,
    b: PrimExpr,
    rows: Sequence[int],
) -> Stmt:
    """Emit the products of some rows with a row of weights."""
    weights = [Var(f"w{v}", tile.vector_dtype) for v in range(tile.vectors)]
    adds: list[Stmt] = []
    for i in rows:
        for v, mask in enumerate(masks):
            value = load_as_float32(
                products.a, products.a_rows[i] + a + v * tile.lanes, tile.lanes, mask
            )
            at = i * tile.vectors + v
            total = call_intrin("fma", value, weights[v], acc[at], dtype=acc.dtype)
            adds.append(BufferStore(acc, total, (const(at),)))
    loads = [
        (weight, load_as_float32(products.b, b + v * tile.lanes, tile.lanes, masks[v]))
        for v, weight in enumerate(weights)
    ]
    return wrap_in_lets(loads, seq(*adds))


__all__ = ["ElementProducts", "emit_depthwise_sums", "emit_depthwise_tile"]
