"""Computations whose inner axes an instruction executes: `te.compute((m, 16), lambda i: add(a[i,
0:16], b[i, 0:16]))`.

The function gets fewer indices than there are axes, and gives a call of what
`te.decl_tensor_intrin` declared. The axes that it does not get are the instruction's own. What is
computed is written down as any computation, in the words of the instruction's operation:

    c[i, i0] = a[i, 0 + i0] + b[i, 0 + i0]

so that it means the same to whoever reads it; a schedule begins with the instruction at the first
of its own axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekiden.arith import simplify
from ekiden.ir.node import ignored_field, node
from ekiden.ir.prim import PrimExpr, Var, convert, is_const
from ekiden.ir.prim_visitor import rewrite, substitute
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.te.reducer import Reduce, ReduceAxis, make_reduce
from ekiden.te.tensor import ComputeOp, InstructionCall, ProducerLoad, Tensor, TensorRegion
from ekiden.tir.stmt import IterVar

__all__ = ["IntrinsicCall", "TensorComputeOp"]


@node("te.TensorComputeOp")
class TensorComputeOp(ComputeOp):
    """A computation whose last `num_intrin_axes` axes an instruction executes. Of the reduced axes,
    the last `num_intrin_reduce_axes` are summed inside the instruction.
    """

    name: str
    tag: str
    attrs: Mapping[str, object]
    axis: tuple[IterVar, ...]
    body: tuple[PrimExpr, ...]
    intrin: object = ignored_field(default=None)
    num_intrin_axes: int = 0
    num_intrin_reduce_axes: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class IntrinsicCall(InstructionCall):
    """A call of an instruction: the tensor regions it reads and the axes its calls are
    summed over.
    """

    intrin: object
    op: ComputeOp
    inputs: tuple[Tensor, ...]
    regions: tuple[TensorRegion, ...]
    reduce_axis: tuple[ReduceAxis, ...]

    def operation(
        self, name: str, tag: str, attrs: Mapping[str, object], axis: tuple[IterVar, ...], own: int
    ) -> TensorComputeOp:
        """Return the computation for this call. Raises ValueError if the number of axes differs
        from the instruction's, or a region's shape from its input's.
        """
        if own != len(self.op.axis):
            raise ValueError(
                f"compute {name!r}: the instruction {self.op.name!r} has {len(self.op.axis)} axes,"
                f" and {own} are left to it"
            )
        indices: dict[Var, PrimExpr] = {
            old.var: new.var for old, new in zip(self.op.axis, axis[-own:], strict=True)
        }
        for region, source in zip(self.regions, self.inputs, strict=True):
            _require_region_shape(name, region, source)
        # Fresh axes: the instruction's own ones occur in every call of it.
        sums = tuple(ReduceAxis(a.name, a.dtype, a.extent) for a in self.op.reduce_axis)
        indices.update(zip(self.op.reduce_axis, sums, strict=True))
        sources = self._source_exprs(indices)
        first, bodies = self.op.body[0], tuple(sources)
        if isinstance(first, Reduce):
            bodies = tuple(make_reduce(first.reducer, sources, (*self.reduce_axis, *sums)))
        elif self.reduce_axis:
            raise ValueError(f"compute {name!r}: the instruction {self.op.name!r} is no sum")
        return TensorComputeOp(name, tag, attrs, axis, bodies, self.intrin, own, len(sums))

    def _source_exprs(self, at: dict[Var, PrimExpr]) -> list[PrimExpr]:
        """Return the instruction's bodies, or the sources of its reduction, with loads redirected
        to the bound regions.
        """
        region_of = dict(zip(self.inputs, self.regions, strict=True))

        def redirect_to_region(e: PrimExpr) -> PrimExpr:
            """Replace an access to an instruction input by one to its region."""
            if not isinstance(e, ProducerLoad) or e.producer not in region_of:
                return e
            return _region_element(region_of[e.producer], e.indices)

        first = self.op.body[0]
        sources: Sequence[PrimExpr] = self.op.body
        if isinstance(first, Reduce):
            sources = first.sources
        return [rewrite(substitute(s, at), redirect_to_region) for s in sources]


def _require_region_shape(name: str, region: TensorRegion, source: Tensor) -> None:
    """Raise ValueError if a region's shape differs from that of the input that it is bound to."""
    tensor, slices = region.tensor, []
    if len(region.indices) != tensor.ndim:
        raise ValueError(
            f"compute {name!r}: {tensor.name!r} has {tensor.ndim} axes, got {len(region.indices)}"
            " indices of a part"
        )
    for index, size in zip(region.indices, tensor.shape, strict=True):
        if isinstance(index, slice):
            slices.append(_slice_end(index, size) - _slice_begin(index))
    sizes = [simplify(extent) for extent in slices]
    if len(sizes) != source.ndim or not all(
        is_const(simplify(a - b), 0) for a, b in zip(sizes, source.shape, strict=True)
    ):
        raise ValueError(
            f"compute {name!r}: the part of {tensor.name!r} has the shape {tuple(sizes)}, and the"
            f" instruction reads {source.shape}"
        )


def _region_element(region: TensorRegion, inside: Sequence[PrimExpr]) -> PrimExpr:
    """Return the element of a region at indices within its slices."""
    inner = iter(inside)
    return region.tensor[
        tuple(_slice_begin(i) + next(inner) if isinstance(i, slice) else i for i in region.indices)  # type: ignore[misc]
    ]


def _slice_begin(region_slice: slice) -> PrimExpr:
    """Return the start of a slice. Raises ValueError for a step other than 1."""
    if region_slice.step not in (None, 1):
        raise ValueError(f"compute: a part of a tensor has step 1, got {region_slice.step}")
    return convert(0 if region_slice.start is None else region_slice.start, "int64")


def _slice_end(region_slice: slice, size: PrimExpr) -> PrimExpr:
    """Return the end of a slice, which defaults to the axis's extent."""
    return convert(size if region_slice.stop is None else region_slice.stop, "int64")
