"""Stages of a schedule: a computation and the primitives applied to it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

from ekiden.ir import dtype as dt
from ekiden.ir.prim import ExprLike, IntImm, PrimExpr, Var, const, convert
from ekiden.runtime import Object
from ekiden.runtime.errors import ScheduleError
from ekiden.te.reducer import ReduceAxis
from ekiden.te.schedule.relations import (
    Axis,
    AxisAttr,
    Fuse,
    Reorder,
    Singleton,
    Split,
    Step,
    ThreadAxis,
    ceil_div,
    is_reduce_axis,
    iter_kind_of,
    root_axes,
)
from ekiden.te.tensor import ComputeOp, ExternOp, Operation, PlaceholderOp
from ekiden.te.tensor_compute import TensorComputeOp
from ekiden.tir.expr import SCOPES
from ekiden.tir.index_map import IndexMap
from ekiden.tir.stmt import IterKind, IterVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from ekiden.te.tensor_intrin import TensorIntrin


class Attach(IntEnum):
    """Attachment of a stage: where it is computed; the numbers are TVM's."""

    ROOT = 1
    INLINE = 2
    SCOPE = 4


@Object.register
class Stage:
    """A stage of a schedule: one computation with its axes and the primitives applied to it.
    Methods record steps; `lower` applies them, and rejects what would change the program's
    meaning with a ScheduleError.
    """

    def __init__(
        self, op: Operation | None, is_output: bool = False, within: ExternOp | None = None
    ) -> None:
        self.op = op
        """Current operation; `cache_write` and `rfactor` replace it."""
        self.origin_op = op
        """Original operation, by which `schedule[...]` finds the stage."""
        self.enclosing_scan = within
        """Scan whose step this computation is; its first axis is the scan's time axis."""
        self.is_output = is_output
        self.scope = ""
        self.attach_type = Attach.ROOT
        self.attach_stage: Stage | None = None
        self.attach_ivar: Axis | None = None
        self.group: Stage | None = None
        self.num_child_stages = 0
        """Number of stages and groups directly in a group."""
        self.steps: list[Step] = []
        self.iter_var_attrs: dict[Axis, AxisAttr] = {}
        self.storage_alignments: dict[Axis, tuple[int, int]] = {}
        self.store_predicate: PrimExpr | None = None
        self.is_double_buffered = self.is_rolling = False
        self.env_thread_axes: tuple[ThreadAxis, ...] = ()
        self.layouts: list[tuple[IndexMap, tuple[IterVar, ...]]] = []
        self.begin_anew()
        if isinstance(op, TensorComputeOp):
            self._tensorize_own_axes(op)

    def __repr__(self) -> str:
        return f"stage({self.name})"

    @property
    def name(self) -> str:
        """Return the name of the operation."""
        return "group" if self.op is None else self.op.name

    @property
    def relations(self) -> list[Split | Fuse | Singleton]:
        """Return the relations between axes, in order."""
        return [s for s in self.steps if not isinstance(s, Reorder)]

    def begin_anew(self) -> None:
        """Reset the stage to its operation's axes, without relations."""
        roots = () if self.op is None else root_axes(self.op)
        self.steps = []
        self.all_iter_vars: list[Axis] = list(roots)
        # A step of a scan has no loop over its first axis: the time belongs to the scan.
        self.leaf_iter_vars: list[Axis] = list(roots if self.enclosing_scan is None else roots[1:])

    def _tensorize_own_axes(self, op: TensorComputeOp) -> None:
        """Make the instruction's own axes innermost, and tensorize them."""
        outer_sums = len(op.reduce_axis) - op.num_intrin_reduce_axes
        intrin_axes: list[Axis] = [*op.axis[-op.num_intrin_axes :], *op.reduce_axis[outer_sums:]]
        if outer_sums:
            self.reorder(*op.reduce_axis[:outer_sums], *intrin_axes)
        self.tensorize(intrin_axes[0], op.intrin)  # type: ignore[arg-type]

    def refuse_within(self, what: str) -> None:
        """Raise ScheduleError where the computation is a step of a scan, or an instruction's."""
        if isinstance(self.op, TensorComputeOp):
            raise ScheduleError(f"{what} of {self.name!r}: an instruction computes it")
        if self.enclosing_scan is not None:
            raise ScheduleError(
                f"{what} of {self.name!r}: it is a step of {self.enclosing_scan.name!r}"
            )

    # Axes.

    def split(
        self, parent: Axis, factor: ExprLike | None = None, nparts: ExprLike | None = None
    ) -> tuple[IterVar, IterVar]:
        """Split an axis and return (outer, inner): inner of `factor` iterations, or outer of
        `nparts`. Raises ValueError unless exactly one of the two is given, ScheduleError for an
        axis that is no leaf.
        """
        if (factor is None) == (nparts is None):
            raise ValueError(f"split of {self.name!r}: give either factor or nparts")
        parent = self._leaf_axis("split", parent)
        name, size, kind = parent.var.name, _axis_extent(parent), iter_kind_of(parent)
        requested = factor if nparts is None else nparts
        size_expr = convert(requested, "int64") if isinstance(requested, (int, PrimExpr)) else None
        if size_expr is None or not dt.is_int(size_expr.dtype):
            raise ScheduleError(f"split of {self.name!r}: expected a whole factor, got {requested}")
        if isinstance(size_expr, IntImm) and size_expr.value < 1:
            raise ScheduleError(
                f"split of {self.name!r}: expected a factor above 0, got {size_expr}"
            )
        other_size = ceil_div(size, size_expr)
        sizes = (other_size, size_expr) if nparts is None else (size_expr, other_size)
        outer = IterVar(Var(f"{name}.outer"), sizes[0], kind)
        inner = IterVar(Var(f"{name}.inner"), sizes[1], kind)
        step = Split(
            parent, outer, inner, *((size_expr, None) if nparts is None else (None, size_expr))
        )
        self._replace_leaves([parent], [outer, inner], step)
        return outer, inner

    def fuse(self, *args: Axis) -> IterVar:
        """Fuse adjacent axes in order; of none, return an axis of one iteration. Raises
        ScheduleError for other axes.
        """
        if not args:
            singleton = IterVar(Var("singleton"), const(1), IterKind.SPATIAL)
            self._replace_leaves([], [singleton], Singleton(singleton))
            return singleton
        fused = self._leaf_axis("fuse", args[0])
        for inner in args[1:]:
            fused = self._fuse_pair(fused, self._leaf_axis("fuse", inner))
        if isinstance(fused, ReduceAxis):
            return IterVar(fused.var, fused.extent, IterKind.REDUCE)
        return fused

    def _fuse_pair(self, outer: Axis, inner: Axis) -> IterVar:
        leaves = self.leaf_iter_vars
        if leaves.index(outer) + 1 != leaves.index(inner):
            raise ScheduleError(
                f"fuse of {self.name!r}: {inner.var.name!r} must follow {outer.var.name!r};"
                f" axes are {_axis_names(leaves)}"
            )
        if is_reduce_axis(outer) != is_reduce_axis(inner):
            raise ScheduleError(
                f"fuse of {self.name!r}: {outer.var.name!r} and {inner.var.name!r}, one of which"
                " is reduced over"
            )
        name = f"{outer.var.name}.{inner.var.name}.fused"
        fused = IterVar(Var(name), _axis_extent(outer) * _axis_extent(inner), iter_kind_of(outer))
        self._replace_leaves([outer, inner], [fused], Fuse(outer, inner, fused))
        return fused

    def reorder(self, *args: Axis) -> None:
        """Reorder axes as given; others stay in place. Raises ScheduleError for an axis that is no
        leaf, or is given twice.
        """
        order = tuple(self._leaf_axis("reorder", a) for a in args)
        if len(set(order)) != len(order):
            raise ScheduleError(
                f"reorder of {self.name!r}: an axis is there twice: {_axis_names(order)}"
            )
        positions = sorted(self.leaf_iter_vars.index(a) for a in order)
        for position, axis in zip(positions, order, strict=True):
            self.leaf_iter_vars[position] = axis
        self.steps.append(Reorder(order))

    def tile(
        self, x_parent: Axis, y_parent: Axis, x_factor: ExprLike, y_factor: ExprLike
    ) -> tuple[IterVar, IterVar, IterVar, IterVar]:
        """Tile two axes: return (x_outer, y_outer, x_inner, y_inner)."""
        x_outer, x_inner = self.split(x_parent, x_factor)
        y_outer, y_inner = self.split(y_parent, y_factor)
        self.reorder(x_outer, y_outer, x_inner, y_inner)
        return x_outer, y_outer, x_inner, y_inner

    def _leaf_axis(self, what: str, axis: Axis) -> Axis:
        for leaf in self.leaf_iter_vars:
            # A shifted reduction axis is a new object; users name the original one.
            if leaf is axis or (isinstance(leaf, ReduceAxis) and leaf.origin is axis):
                return leaf
        if not isinstance(axis, (IterVar, ReduceAxis)):
            raise ScheduleError(
                f"{what} of {self.name!r}: expected an axis, got {type(axis).__name__}"
            )
        if self.enclosing_scan is not None and axis is self.all_iter_vars[0]:
            raise ScheduleError(
                f"{what} of {self.name!r}: {axis.var.name!r} is the time of"
                f" {self.enclosing_scan.name!r}, whose steps are one after the other"
            )
        raise ScheduleError(
            f"{what} of {self.name!r}: {axis.var.name!r} is not among its axes"
            f" {_axis_names(self.leaf_iter_vars)}"
        )

    def _replace_leaves(self, old: Sequence[Axis], new: Sequence[IterVar], step: Step) -> None:
        position = self.leaf_iter_vars.index(old[0]) if old else 0
        self.leaf_iter_vars[position : position + len(old)] = new
        self.all_iter_vars += new
        self.steps.append(step)

    # How axes run.

    def _axis_attr(self, what: str, axis: Axis) -> AxisAttr:
        return self.iter_var_attrs.setdefault(self._leaf_axis(what, axis), AxisAttr())

    def bind(self, ivar: Axis, thread_ivar: ThreadAxis) -> None:
        """Bind an axis to a thread axis. Raises ScheduleError for another axis."""
        if not isinstance(thread_ivar, ThreadAxis):
            raise ScheduleError(
                f"bind of {self.name!r}: expected a te.thread_axis, got"
                f" {type(thread_ivar).__name__}"
            )
        self._axis_attr("bind", ivar).bind_thread = thread_ivar

    def vectorize(self, var: Axis) -> None:
        """Vectorise an axis. Raises ScheduleError for one that is reduced over."""
        self._set_kind("vectorize", var, IterVar.Vectorized)

    def unroll(self, var: Axis) -> None:
        """Unroll an axis."""
        self._axis_attr("unroll", var).iter_type = IterVar.Unrolled

    def parallel(self, var: Axis) -> None:
        """Distribute the iterations of an axis over threads. Raises ScheduleError for one reduced
        over.
        """
        self._set_kind("parallel", var, IterVar.Parallelized)

    def _set_kind(self, what: str, var: Axis, kind: int) -> None:
        if is_reduce_axis(self._leaf_axis(what, var)):
            raise ScheduleError(
                f"{what} of {self.name!r}: {var.var.name!r} is reduced over; see rfactor"
            )
        self._axis_attr(what, var).iter_type = kind

    def pragma(self, var: Axis, pragma_type: str, pragma_value: object = None) -> None:
        """Annotate the loop of an axis with "pragma_<pragma_type>", for passes to read."""
        self._axis_attr("pragma", var).pragmas[pragma_type] = pragma_value

    def tensorize(self, var: Axis, tensor_intrin: TensorIntrin) -> None:
        """Replace an axis and those inside it by a tensor intrinsic."""
        attr = self._axis_attr("tensorize", var)
        attr.iter_type, attr.tensor_intrin = IterVar.Tensorized, tensor_intrin

    # Where it is computed, and kept.

    def compute_at(self, parent: Stage, scope: Axis) -> None:
        """Compute, in each iteration of an axis of another stage, the elements that the iteration
        reads.

        Raises ScheduleError for an axis that is no leaf of that stage.
        """
        if parent is self:
            raise ScheduleError(f"compute_at of {self.name!r}: it cannot be computed in itself")
        self.attach_type = Attach.SCOPE
        self.attach_stage = parent
        self.attach_ivar = parent._leaf_axis(f"compute_at {self.name!r}", scope)

    def compute_inline(self) -> None:
        """Inline each element into the expressions that read it; an input stays as it is. Raises
        ScheduleError for a reduction and for what is no computation.
        """
        if self.is_input:
            return
        if not isinstance(self.op, ComputeOp) or self.op.reduce_axis:
            kind = "a reduction" if isinstance(self.op, ComputeOp) else "no computation"
            raise ScheduleError(f"compute_inline of {self.name!r}: it is {kind}")
        self.attach_type = Attach.INLINE

    def compute_root(self) -> None:
        """Compute the stage in loops of its own, before its readers."""
        self.attach_type, self.attach_stage, self.attach_ivar = Attach.ROOT, None, None

    def set_scope(self, scope: str) -> None:
        """Set the memory scope of the result; one of `tir.expr.SCOPES`. Raises ScheduleError for
        another.
        """
        if scope not in SCOPES:
            raise ScheduleError(
                f"set_scope of {self.name!r}: expected one of {', '.join(SCOPES)}, got {scope!r}"
            )
        self.scope = scope

    def set_store_predicate(self, predicate: PrimExpr) -> None:
        """Store only where a condition on the stage's axes and threads holds."""
        self.store_predicate = predicate

    def env_threads(self, threads: ThreadAxis | Sequence[ThreadAxis]) -> None:
        """Run the statements of an extern operation or a scan under threads.

        Raises ScheduleError: their statements are theirs; bind the loops inside.
        """
        raise ScheduleError(
            f"env_threads of {self.name!r}: the statements of an extern operation or a scan are not"
            " launched on threads; write thread loops in them, or schedule a computation"
        )

    def storage_align(self, axis: Axis, factor: int, offset: int) -> None:
        """Pad the storage so that the stride of an axis is k * factor + offset elements."""
        self.storage_alignments[self._root_axis("storage_align", axis)] = (int(factor), int(offset))

    def double_buffer(self) -> None:
        """Double-buffer the storage; one is filled while the other is read."""
        self.is_double_buffered = True

    def rolling_buffer(self) -> None:
        """Keep the window that an iteration reads in a circular buffer, and compute only the
        elements that enter it.
        """
        self.is_rolling = True

    def transform_layout(
        self, mapping_function: Callable[..., ExprLike | Sequence[ExprLike]]
    ) -> list[IterVar]:
        """Transform the tensor's layout: element (i, j, ...) is stored at the function's result,
        and loops follow it. Return the new axes; none for an input. Raises ScheduleError after
        other steps on the axes, and for extern operations.
        """
        self.refuse_within("transform_layout")
        if self.op is None or self.is_extern:
            raise ScheduleError(f"transform_layout of {self.name!r}: it is no computation")
        if self.steps:
            raise ScheduleError(
                f"transform_layout of {self.name!r}: it must come before other steps on its axes"
            )
        shape = self.op.output(0).shape
        if self.layouts:
            shape = tuple(a.extent for a in self.layouts[-1][1])
        index_map = IndexMap.from_func(mapping_function, len(shape))
        sizes = index_map.map_shape(shape)
        new_axes = tuple(IterVar(Var(f"axis{n}"), d, IterKind.SPATIAL) for n, d in enumerate(sizes))
        self.layouts.append((index_map, new_axes))
        if self.is_input:
            return []
        reduced = [a for a in self.leaf_iter_vars if is_reduce_axis(a)]
        self.leaf_iter_vars = [*new_axes, *reduced]
        self.all_iter_vars += new_axes
        return list(new_axes)

    def _root_axis(self, what: str, axis: Axis) -> Axis:
        if self.op is None or axis not in root_axes(self.op):
            raise ScheduleError(
                f"{what} of {self.name!r}: {axis.var.name!r} is no axis of the operation"
            )
        return axis

    @property
    def is_input(self) -> bool:
        """Return whether the stage is a placeholder."""
        return isinstance(self.op, PlaceholderOp)

    @property
    def is_extern(self) -> bool:
        """Return whether the computation is written as statements."""
        return isinstance(self.op, ExternOp)


def _axis_extent(axis: Axis) -> PrimExpr:
    return axis.extent


def _axis_names(axes: Sequence[Axis]) -> list[str]:
    return [a.var.name for a in axes]
