"""Factors of a sum of products (contraction), and the memory order of their elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.prim import IntImm, Mul, PrimExpr, Var, const, is_const
from ekiden.ir.prim_visitor import free_vars, post_order
from ekiden.kernels.family import known_extent
from ekiden.kernels.gpu.vector_access import access_stride, unravel_index
from ekiden.kernels.prim_builder import product_of_dims
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.te.reducer import Reduce
from ekiden.te.tensor import ComputeOp, ProducerLoad, Tensor


@dataclass(frozen=True, slots=True)
class ContractionFactors:
    """Factors of a contraction, and its axes by role: batch, rows (of `a`), columns (of `b`) and
    reduced.
    """

    a: PrimExpr
    b: PrimExpr
    batch: tuple[Var, ...]
    rows: tuple[Var, ...]
    columns: tuple[Var, ...]
    extents: Mapping[Var, PrimExpr]
    reduce_axes: Reduce

    @property
    def reduction_size(self) -> PrimExpr:
        """Return the number of products per result element."""
        return simplify(product_of_dims([r.extent for r in self.reduce_axes.axis]))

    def num_elements(self, axes: Sequence[Var]) -> PrimExpr:
        """Return the product of the extents of axes."""
        return simplify(product_of_dims([self.extents[v] for v in axes])) if axes else const(1)

    def axis_values(self, axes: Sequence[Var], number: PrimExpr) -> dict[Var, PrimExpr]:
        """Return the axis values of a flat index."""
        position = unravel_index(number, [self.extents[v] for v in axes]) if axes else []
        return dict(zip(axes, position, strict=True))


def match_contraction(anchor: Tensor) -> ContractionFactors | None:
    """Return the factors of a computation that is a sum of products, else None."""
    op = anchor.op
    body = op.body[anchor.value_index] if isinstance(op, ComputeOp) else None
    if not isinstance(op, ComputeOp) or not isinstance(body, Reduce) or body.kind != "sum":
        return None
    source = body.source
    if len(body.sources) != 1 or not isinstance(source, Mul) or dt.lanes(source.dtype) != 1:
        return None
    axes = [a.var for a in op.axis]
    of_a, of_b = set(free_vars(source.a)), set(free_vars(source.b))
    # Tiles share the loops over k, so all results need the same extents.
    if any(v in axes for r in body.axis for v in free_vars(r.extent)):
        return None
    rows = tuple(v for v in axes if v in of_a and v not in of_b)
    columns = tuple(v for v in axes if v in of_b and v not in of_a)
    batch = tuple(v for v in axes if v not in rows and v not in columns)
    if not rows and not columns:
        return None
    extents = {a.var: a.extent for a in op.axis}
    # Axes of extent 1 never move in memory, so they say nothing about contiguity.
    order = {v: n for n, v in enumerate(axes) if known_extent(extents[v]) != 1}
    last = [max((order.get(v, -1) for v in group), default=-1) for group in (rows, columns)]
    # The factor that has the innermost axis of the result becomes b, whose axes are columns.
    if last[0] > last[1]:
        return ContractionFactors(source.b, source.a, batch, columns, rows, extents, body)
    return ContractionFactors(source.a, source.b, batch, rows, columns, extents, body)


def is_unit_stride(value: PrimExpr, positions: Mapping[Var, PrimExpr], step: Var) -> bool:
    """Return whether consecutive values of a variable read the same or adjacent elements.

    Args:
        value: An expression over tensors.
        positions: Its variables in terms of `step`.
        step: The variable.
    """
    reads = [e for e in post_order(value) if isinstance(e, ProducerLoad)]
    distances = [access_stride(e.producer.shape, e.indices, positions, step) for e in reads]
    return all(is_const(d, 0) or is_const(d, 1) for d in distances)


def stride_bound(value: PrimExpr, axis: Var) -> int:
    """Return an upper bound of an expression's stride in elements along an axis; 0 if it is
    dynamic.
    """
    reads = [e for e in post_order(value) if isinstance(e, ProducerLoad)]
    step = Var("step")
    distances = [access_stride(e.producer.shape, e.indices, {axis: step}, step) for e in reads]
    return max((abs(d.value) for d in distances if isinstance(d, IntImm)), default=0)


__all__ = ["ContractionFactors", "is_unit_stride", "match_contraction", "stride_bound"]
