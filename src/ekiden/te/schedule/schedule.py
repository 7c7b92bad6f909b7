"""Schedule of computations by stages. TVM's `te.create_schedule`.

    s = te.create_schedule(C.op)
    xo, xi = s[C].split(C.op.axis[0], factor=32)
    s[A1].compute_at(s[C], xo)
    module = ekiden.build(s, [A, B, C], "llvm")

A stage records what is asked of it. `lowering` makes the loop program of the computations and does
it there by the primitives of `tir.Schedule`, which prove that the meaning stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import PrimExpr, Var, const, logical_and
from ekiden.ir.prim_visitor import free_vars, rewrite, substitute
from ekiden.runtime import Object
from ekiden.runtime.errors import ScheduleError
from ekiden.te.inline import post_order_tensors
from ekiden.te.reducer import CommReducer, Reduce, ReduceAxis, make_reduce
from ekiden.te.schedule.axis_values import solve_leaves, solve_roots
from ekiden.te.schedule.relations import Axis, Fuse, Reorder, Split, Step, is_reduce_axis
from ekiden.te.schedule.stage import Attach, Stage
from ekiden.te.tensor import ComputeOp, ExternOp, Operation, PlaceholderOp, ProducerLoad, Tensor
from ekiden.tir.expr import SCOPES
from ekiden.tir.stmt import IterKind, IterVar

Tensors = Tensor | Sequence[Tensor]


@Object.register
class Schedule:
    """Stages of computations, producers first; `schedule[tensor]` is that of a tensor."""

    def __init__(self, outputs: Sequence[Operation]) -> None:
        self.outputs: list[Operation] = list(outputs)
        self.stages: list[Stage] = []
        self.groups: list[Stage] = []
        self.stage_map: dict[Operation, Stage] = {}
        for tensor in post_order_tensors([op.output(0) for op in outputs]):
            if tensor.op in self.stage_map:
                continue
            if isinstance(tensor.op, ExternOp):
                # Steps before their scan: stages are in the order of producers.
                for step, _ in tensor.op.steps:
                    self._insert_stage(Stage(step, within=tensor.op), len(self.stages))
            self._insert_stage(Stage(tensor.op, tensor.op in self.outputs), len(self.stages))

    def _insert_stage(self, stage: Stage, at: int) -> Stage:
        self.stages.insert(at, stage)
        assert stage.op is not None
        self.stage_map[stage.op] = stage
        return stage

    def __getitem__(self, k: Tensor | Operation) -> Stage:
        """Return the stage of a tensor or an operation. Raises ScheduleError for one that is not in
        the schedule.
        """
        op = k.op if isinstance(k, Tensor) else k
        stage = self.stage_map.get(op)
        if stage is None:
            raise ScheduleError(
                f"schedule: {getattr(op, 'name', k)!r} is not among the computations"
                f" {[s.name for s in self.stages]}"
            )
        return stage

    def normalize(self) -> Schedule:
        """Return the schedule unchanged: its axes begin at 0 always."""
        return self

    # Groups.

    def create_group(
        self, outputs: Tensors, inputs: Tensors, include_inputs: bool = False
    ) -> Stage:
        """Create a group stage of all computations between inputs and outputs (with
        `include_inputs`, those too): its `compute_at` moves every member that is not attached
        elsewhere.
        """
        ends, begins = _as_list(outputs), set(_as_list(inputs))
        inside: dict[Operation, None] = {}
        stack = list(ends)
        while stack:
            tensor = stack.pop()
            if tensor in begins and not include_inputs:
                continue
            if tensor.op in inside or isinstance(tensor.op, PlaceholderOp):
                continue
            inside[tensor.op] = None
            if tensor not in begins:
                stack.extend(tensor.op.input_tensors)
        group = Stage(None)
        for stage in self.stages:
            if stage.origin_op in inside:
                self._add_to_group(stage, group)
        self.groups.append(group)
        return group

    def _add_to_group(self, stage: Stage, group: Stage) -> None:
        """Put a stage into a group: the outermost of its groups becomes a member of the new."""
        current = stage
        while current.group is not None and current.group is not group:
            current = current.group
        if current is not group and current.group is None:
            current.group = group
            group.num_child_stages += 1

    # New computations.

    def cache_read(
        self, tensor: Tensor, scope: str, readers: Sequence[Tensor | Operation] | Tensor | Operation
    ) -> Tensor:
        """Create a copy of a tensor in a memory scope for the readers, and return it. Raises
        ScheduleError for a reader that does not read the tensor.
        """
        _require_valid_scope("cache_read", tensor, scope)
        reader_list = [readers] if isinstance(readers, (Tensor, Operation)) else list(readers)
        if not reader_list:
            raise ScheduleError(f"cache_read of {tensor.name!r}: there must be a reader")
        axis = _fresh_axes(tensor.shape)
        body = ProducerLoad(tensor, tuple(a.var for a in axis), tensor.dtype)
        cached = ComputeOp(f"{tensor.name}.{scope}", "", {}, axis, (body,)).output(0)
        for reader in reader_list:
            stage = self[self[reader].enclosing_scan or reader]
            redirected = _redirect_inputs(stage.op, {tensor: cached})
            if redirected is stage.op:
                raise ScheduleError(
                    f"cache_read of {tensor.name!r}: {stage.name!r} does not read it"
                )
            stage.op = redirected
        # Directly behind its tensor and so before all readers: stages are ordered producers first.
        cache_stage = self._insert_stage(Stage(cached.op), self.stages.index(self[tensor]) + 1)
        cache_stage.scope = scope
        _join_group_of(cache_stage, self[tensor].group)
        return cached

    def cache_write(self, tensor: Tensors, scope: str) -> Tensor | list[Tensor]:
        """Compute a tensor (all outputs of one operation) in another memory scope first, then copy
        it; return the cached tensor. After steps on its axes, the cache is laid out as the
        leaves. Raises ScheduleError for what is no computation.
        """
        outputs = _as_list(tensor)
        stage = self[outputs[0]]
        op = stage.op
        _require_valid_scope("cache_write", outputs[0], scope)
        stage.refuse_within("cache_write")
        if not isinstance(op, ComputeOp):
            raise ScheduleError(f"cache_write of {outputs[0].name!r}: it is no computation")
        if len(outputs) != len(op.body) or any(t.op is not outputs[0].op for t in outputs):
            raise ScheduleError(
                f"cache_write of {outputs[0].name!r}: all {len(op.body)} outputs of the "
                "operation must"
                " be given"
            )
        cached, copying = _split_into_cache_and_copy(op, stage, scope)
        position = self.stages.index(stage)
        cache_stage = self._insert_stage(Stage(cached), position)
        cache_stage.steps = [s for s in stage.steps if _is_on_reduce_axes(s)]
        _replay_leaves(cache_stage)
        # The reduction moves to the cache stage; the copy back has spatial axes only.
        stage.steps = [s for s in stage.steps if not _is_on_reduce_axes(s)]
        stage.op = copying
        stage.leaf_iter_vars = [a for a in stage.leaf_iter_vars if not is_reduce_axis(a)]
        stage.all_iter_vars = [a for a in stage.all_iter_vars if not is_reduce_axis(a)]
        cache_stage.scope = scope
        _join_group_of(cache_stage, stage.group)
        cached_tensors = [cached.output(n) for n in range(len(cached.body))]
        return cached_tensors[0] if isinstance(tensor, Tensor) else cached_tensors

    def rfactor(self, tensor: Tensor, axis: Axis, factor_axis: int = 0) -> Tensor | list[Tensor]:
        """Split a reduction into partial reductions for each iteration of a reduction axis, and
        their total; return the partial tensor, in which the axis is number `factor_axis`. Its
        stage reduces over the other reduction leaves. Raises ScheduleError for an axis that is
        not a reduction leaf, or was fused with another.
        """
        stage = self[tensor]
        op = stage.op
        stage.refuse_within("rfactor")
        if not isinstance(op, ComputeOp) or not isinstance(op.body[0], Reduce):
            raise ScheduleError(f"rfactor of {tensor.name!r}: it is no reduction")
        factored = stage._leaf_axis("rfactor", axis)
        if not is_reduce_axis(factored):
            raise ScheduleError(
                f"rfactor of {tensor.name!r}: {axis.var.name!r} is not reduced over"
            )
        rank = len(op.axis)
        axis_position = factor_axis + rank + 1 if factor_axis < 0 else factor_axis
        if not 0 <= axis_position <= rank:
            raise ScheduleError(
                f"rfactor of {tensor.name!r}: factor_axis must be from 0 to {rank}, got"
                f" {factor_axis}"
            )
        partial_op, total_op = _factor_reduction(op, stage, factored, axis_position)
        self._insert_stage(Stage(partial_op), self.stages.index(stage))
        stage.op = total_op
        stage.begin_anew()
        partial_tensors = [partial_op.output(n) for n in range(len(partial_op.body))]
        return partial_tensors[0] if len(partial_tensors) == 1 else partial_tensors


def create_schedule(ops: Tensor | Operation | Sequence[Tensor | Operation]) -> Schedule:
    """Create a schedule of operations, each stage at its own loops before its readers; duplicates
    count once. Raises ScheduleError for what is no operation.
    """
    op_list = [ops] if isinstance(ops, (Tensor, Operation)) else list(ops)
    for item in op_list:
        if not isinstance(item, (Tensor, Operation)):
            raise ScheduleError(f"create_schedule: expected operations, got {type(item).__name__}")
    return Schedule(list(dict.fromkeys(o.op if isinstance(o, Tensor) else o for o in op_list)))


def _join_group_of(stage: Stage, group: Stage | None) -> None:
    """Add a new stage to the group of the one it was created for."""
    stage.group = group
    if group is not None:
        group.num_child_stages += 1


def _as_list(tensors: Tensors) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _require_valid_scope(what: str, tensor: Tensor, scope: str) -> None:
    if scope not in SCOPES:
        raise ScheduleError(
            f"{what} of {tensor.name!r}: expected one of {', '.join(SCOPES)}, got {scope!r}"
        )


def _fresh_axes(shape: Sequence[PrimExpr], names: Sequence[str] = ()) -> tuple[IterVar, ...]:
    axis_names = names or [f"ax{n}" for n in range(len(shape))]
    return tuple(
        IterVar(Var(n), d, IterKind.SPATIAL) for n, d in zip(axis_names, shape, strict=True)
    )


def _redirect_inputs(op: Operation | None, new: Mapping[Tensor, Tensor]) -> Operation | None:
    """Return an operation with replaced inputs; itself where it reads none of them."""
    if isinstance(op, ExternOp):
        inputs = tuple(new.get(t, t) for t in op.inputs)
        return op if inputs == op.inputs else op.with_fields(inputs=inputs)
    if not isinstance(op, ComputeOp):
        return op
    body = redirect_body(op, new)
    return (
        op if all(a is b for a, b in zip(body, op.body, strict=True)) else op.with_fields(body=body)
    )


def redirect_body(op: ComputeOp, new: Mapping[Tensor, Tensor]) -> tuple[PrimExpr, ...]:
    """Return the expressions of a computation over replaced tensors."""

    def redirect_load(e: PrimExpr) -> PrimExpr:
        """Redirect a read of a replaced tensor."""
        if isinstance(e, ProducerLoad) and e.producer in new:
            return e.with_fields(producer=new[e.producer])
        return e

    return tuple(rewrite(b, redirect_load) for b in op.body)


def _is_on_reduce_axes(step: Step) -> bool:
    if isinstance(step, Reorder):
        return all(map(is_reduce_axis, step.order))
    if isinstance(step, Split):
        return is_reduce_axis(step.parent)
    return isinstance(step, Fuse) and is_reduce_axis(step.fused)


def _replay_leaves(stage: Stage) -> None:
    """Recompute a stage's leaf and all-axes lists by replaying its splits and fuses."""
    steps, leaves = stage.steps, stage.leaf_iter_vars
    for step in steps:
        if isinstance(step, Split):
            offset = leaves.index(step.parent)
            leaves[offset : offset + 1] = [step.outer, step.inner]
            stage.all_iter_vars += [step.outer, step.inner]
        elif isinstance(step, Fuse):
            offset = leaves.index(step.outer)
            leaves[offset : offset + 2] = [step.fused]
            stage.all_iter_vars.append(step.fused)
        elif isinstance(step, Reorder):
            positions = sorted(map(leaves.index, step.order))
            for position, axis in zip(positions, step.order, strict=True):
                leaves[position] = axis


def _split_into_cache_and_copy(
    op: ComputeOp, stage: Stage, scope: str
) -> tuple[ComputeOp, ComputeOp]:
    """Return the computation into the cache, and the copy back over the operation's axes."""
    spatial = [a for a in stage.leaf_iter_vars if not is_reduce_axis(a)]
    names = [a.var.name for a in spatial]
    axes = _fresh_axes([a.extent for a in spatial], [f"{n}.c" for n in names])
    values, conditions = solve_roots(
        stage.steps, {a: new.var for a, new in zip(spatial, axes, strict=True)}
    )
    point = {root.var: values[root] for root in op.axis}
    body = _body_at_axes(op, point, stage.steps)
    if conditions:
        body = tuple(_guard_reads(b, conditions) for b in body)
    cached = ComputeOp(f"{op.name}.{scope}", op.tag, op.attrs, axes, body)
    leaf_values = solve_leaves(stage.steps, {a: a.var for a in op.axis})
    indices = tuple(leaf_values[a] for a in spatial)
    copies = tuple(ProducerLoad(cached.output(n), indices, b.dtype) for n, b in enumerate(op.body))
    return cached, op.with_fields(body=copies)


def _body_at_axes(
    op: ComputeOp, at: Mapping[Var, PrimExpr], steps: Sequence[Step]
) -> tuple[PrimExpr, ...]:
    """Return what an operation computes at other axes. A reduction axis whose extent depends on a
    moved axis is replaced; raises ScheduleError where steps name it already.
    """
    values: dict[Var, PrimExpr] = dict(at)
    new: dict[Var, ReduceAxis] = {}
    for reduce_axis in op.reduce_axis:
        if values.keys() & set(free_vars(reduce_axis.extent)):
            extent, origin = (
                substitute(reduce_axis.extent, values),
                reduce_axis.origin or reduce_axis,
            )
            new[reduce_axis] = ReduceAxis(
                reduce_axis.name, reduce_axis.dtype, extent, origin=origin
            )
            if any(
                isinstance(s, (Split, Fuse)) and reduce_axis in _consumed_axes(s) for s in steps
            ):
                raise ScheduleError(
                    f"cache_write of {op.name!r}: {reduce_axis.name!r} is split or fused, and "
                    "its extent"
                    " depends on another axis; do that to the axes of what this gives"
                )
    bodies = []
    for body in op.body:
        moved_body = substitute(body, {**values, **new})
        if isinstance(moved_body, Reduce):
            axis = tuple(new.get(a, a) for a in moved_body.axis)
            moved_body = moved_body.with_fields(
                axis=axis, reducer=_reducer_at_axes(moved_body.reducer, values)
            )
        bodies.append(moved_body)
    return tuple(bodies)


def _reducer_at_axes(reducer: CommReducer, values: dict[Var, PrimExpr]) -> CommReducer:
    """Return a reducer that names an axis in its combination or identity, at other axes."""
    substituted = [
        tuple(substitute(e, values) for e in es)
        for es in (reducer.result, reducer.identity_element)
    ]
    if all(
        a is b
        for a, b in zip(
            (*substituted[0], *substituted[1]),
            (*reducer.result, *reducer.identity_element),
            strict=True,
        )
    ):
        return reducer
    return reducer.with_fields(result=substituted[0], identity_element=substituted[1])


def _consumed_axes(step: Split | Fuse) -> tuple[Axis, ...]:
    return (step.parent,) if isinstance(step, Split) else (step.outer, step.inner)


def _guard_reads(body: PrimExpr, conditions: Sequence[PrimExpr]) -> PrimExpr:
    """Return a body whose reads happen only where the conditions hold."""
    conjunction = conditions[0]
    for condition in conditions[1:]:
        conjunction = logical_and(conjunction, condition)
    if isinstance(body, Reduce):
        # Points outside contribute the identity, so that the guard does not change the result of
        # the reduction.
        starts = body.reducer.identity_element
        sources = (
            if_then_else(conjunction, s, i) for s, i in zip(body.sources, starts, strict=True)
        )
        return body.with_fields(sources=tuple(sources))
    return if_then_else(conjunction, body, const(0, body.dtype))


def _factor_reduction(
    op: ComputeOp, stage: Stage, factored: Axis, axis_position: int
) -> tuple[ComputeOp, ComputeOp]:
    """Return the partial reductions per iteration of the factored axis, and the reduction
    of those.
    """
    first = op.body[0]
    assert isinstance(first, Reduce)
    part_axis = IterVar(Var(factored.var.name), factored.extent, IterKind.SPATIAL)
    axes = list(_fresh_axes([a.extent for a in op.axis], [a.var.name for a in op.axis]))
    axes.insert(axis_position, part_axis)
    spatial = {a.var for a in op.axis}
    if spatial.intersection(free_vars(factored.extent)):
        raise ScheduleError(
            f"rfactor of {op.name!r}: the extent of {factored.var.name!r} depends on another axis,"
            " so that what is kept of its steps is no tensor"
        )
    spatial_axes = [a for n, a in enumerate(axes) if n != axis_position]
    point: dict[Var, PrimExpr] = {
        old.var: new.var for old, new in zip(op.axis, spatial_axes, strict=True)
    }
    other_sums = [a for a in stage.leaf_iter_vars if is_reduce_axis(a) and a is not factored]
    inner = {a: ReduceAxis(a.var.name, "int64", substitute(a.extent, point)) for a in other_sums}
    leaves: dict[Axis, PrimExpr] = {factored: part_axis.var, **inner}
    values, conditions = solve_roots(stage.steps, leaves)
    for root in op.reduce_axis:
        if root not in values:
            raise ScheduleError(f"rfactor of {op.name!r}: {root.name!r} is not made of its leaves")
        point[root] = values[root]
    sources = [substitute(s, point) for s in first.sources]
    where = None
    for condition in conditions:
        # Splits that do not divide the extent: surplus iterations are masked in the partial
        # reductions.
        where = condition if where is None else logical_and(where, condition)
    reducer = _reducer_at_axes(first.reducer, point)
    body = make_reduce(reducer, sources, tuple(inner.values()), where)
    partial_op = ComputeOp(f"{op.name}.rf", op.tag, op.attrs, tuple(axes), body)
    again = ReduceAxis(f"{factored.var.name}.v", "int64", factored.extent)
    indices: list[PrimExpr] = [a.var for a in op.axis]
    indices.insert(axis_position, again)
    loads = [
        ProducerLoad(partial_op.output(n), tuple(indices), s.dtype) for n, s in enumerate(sources)
    ]
    return partial_op, op.with_fields(body=make_reduce(first.reducer, loads, (again,)))


__all__ = ["Attach", "Schedule", "create_schedule"]
