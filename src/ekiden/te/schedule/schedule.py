"""A schedule of computations, by stages: TVM's `te.create_schedule`.

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
from ekiden.te.schedule.axis_values import leaves_from_roots, roots_from_leaves
from ekiden.te.schedule.relations import Axis, Fuse, Reorder, Split, Step, is_reduced
from ekiden.te.schedule.stage import Attach, Stage
from ekiden.te.tensor import ComputeOp, ExternOp, Operation, PlaceholderOp, ProducerLoad, Tensor
from ekiden.tir.expr import SCOPES
from ekiden.tir.stmt import IterKind, IterVar

Tensors = Tensor | Sequence[Tensor]


@Object.register
class Schedule:
    """The stages of computations, producers first; `schedule[tensor]` is that of a tensor."""

    def __init__(self, outputs: Sequence[Operation]) -> None:
        self.outputs: list[Operation] = list(outputs)
        self.stages: list[Stage] = []
        self.groups: list[Stage] = []
        self.stage_map: dict[Operation, Stage] = {}
        for tensor in post_order_tensors([op.output(0) for op in outputs]):
            if tensor.op in self.stage_map:
                continue
            if isinstance(tensor.op, ExternOp):
                for step, _ in tensor.op.steps:
                    self._add(Stage(step, within=tensor.op), len(self.stages))
            self._add(Stage(tensor.op, tensor.op in self.outputs), len(self.stages))

    def _add(self, stage: Stage, at: int) -> Stage:
        self.stages.insert(at, stage)
        assert stage.op is not None
        self.stage_map[stage.op] = stage
        return stage

    def __getitem__(self, k: Tensor | Operation) -> Stage:
        """The stage of a tensor or an operation. Raises ScheduleError for one that is not in the
        schedule.
        """
        op = k.op if isinstance(k, Tensor) else k
        found = self.stage_map.get(op)
        if found is None:
            raise ScheduleError(
                f"schedule: {getattr(op, 'name', k)!r} is not among the computations"
                f" {[s.name for s in self.stages]}"
            )
        return found

    def normalize(self) -> Schedule:
        """The schedule itself: its axes begin at 0 always."""
        return self

    # Groups.

    def create_group(
        self, outputs: Tensors, inputs: Tensors, include_inputs: bool = False
    ) -> Stage:
        """A stage for all that lies between inputs and outputs (with `include_inputs`, those too):
        `compute_at` of it moves every member that is not attached elsewhere.
        """
        ends, begins = _many(outputs), set(_many(inputs))
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
                self._join(stage, group)
        self.groups.append(group)
        return group

    def _join(self, stage: Stage, group: Stage) -> None:
        """Put a stage into a group: the outermost of its groups becomes a member of the new."""
        at = stage
        while at.group is not None and at.group is not group:
            at = at.group
        if at is not group and at.group is None:
            at.group = group
            group.num_child_stages += 1

    # New computations.

    def cache_read(
        self, tensor: Tensor, scope: str, readers: Sequence[Tensor | Operation] | Tensor | Operation
    ) -> Tensor:
        """A copy of a tensor in a memory, which the readers read; gives the copy.

        Raises ScheduleError for a reader that does not read the tensor.
        """
        _check_scope("cache_read", tensor, scope)
        many = [readers] if isinstance(readers, (Tensor, Operation)) else list(readers)
        if not many:
            raise ScheduleError(f"cache_read of {tensor.name!r}: there must be a reader")
        axis = _fresh_axes(tensor.shape)
        body = ProducerLoad(tensor, tuple(a.var for a in axis), tensor.dtype)
        cached = ComputeOp(f"{tensor.name}.{scope}", "", {}, axis, (body,)).output(0)
        for each in many:
            stage = self[self[each].within or each]
            found = _repointed(stage.op, {tensor: cached})
            if found is stage.op:
                raise ScheduleError(
                    f"cache_read of {tensor.name!r}: {stage.name!r} does not read it"
                )
            stage.op = found
        made = self._add(Stage(cached.op), self.stages.index(self[tensor]) + 1)
        made.scope = scope
        _enter(made, self[tensor].group)
        return cached

    def cache_write(self, tensor: Tensors, scope: str) -> Tensor | list[Tensor]:
        """Compute a tensor (all outputs of one operation) in another memory first, and copy it;
        gives what is computed there.

        After steps on its axes, what is computed is laid out as the leaves are. Raises
        ScheduleError for what is no computation.
        """
        many = _many(tensor)
        stage = self[many[0]]
        op = stage.op
        _check_scope("cache_write", many[0], scope)
        stage.refuse_within("cache_write")
        if not isinstance(op, ComputeOp):
            raise ScheduleError(f"cache_write of {many[0].name!r}: it is no computation")
        if len(many) != len(op.body) or any(t.op is not many[0].op for t in many):
            raise ScheduleError(
                f"cache_write of {many[0].name!r}: all {len(op.body)} outputs of the operation must"
                " be given"
            )
        cached, copying = _written_through(op, stage, scope)
        at = self.stages.index(stage)
        made = self._add(Stage(cached), at)
        made.steps = [s for s in stage.steps if _is_about_sums(s)]
        _replay_leaves(made)
        stage.steps = [s for s in stage.steps if not _is_about_sums(s)]
        stage.op = copying
        stage.leaf_iter_vars = [a for a in stage.leaf_iter_vars if not is_reduced(a)]
        stage.all_iter_vars = [a for a in stage.all_iter_vars if not is_reduced(a)]
        made.scope = scope
        _enter(made, stage.group)
        found = [cached.output(n) for n in range(len(cached.body))]
        return found[0] if isinstance(tensor, Tensor) else found

    def rfactor(self, tensor: Tensor, axis: Axis, factor_axis: int = 0) -> Tensor | list[Tensor]:
        """A sum for each step of a reduced axis, and the sum of those; gives the first, which has
        the axis as number `factor_axis` of its own. Its stage sums over the other reduced leaves.

        Raises ScheduleError for an axis that is not a reduced leaf, or was fused with another.
        """
        stage = self[tensor]
        op = stage.op
        stage.refuse_within("rfactor")
        if not isinstance(op, ComputeOp) or not isinstance(op.body[0], Reduce):
            raise ScheduleError(f"rfactor of {tensor.name!r}: it is no reduction")
        factored = stage._leaf("rfactor", axis)
        if not is_reduced(factored):
            raise ScheduleError(
                f"rfactor of {tensor.name!r}: {axis.var.name!r} is not reduced over"
            )
        rank = len(op.axis)
        place = factor_axis + rank + 1 if factor_axis < 0 else factor_axis
        if not 0 <= place <= rank:
            raise ScheduleError(
                f"rfactor of {tensor.name!r}: factor_axis must be from 0 to {rank}, got"
                f" {factor_axis}"
            )
        parts, whole = _factored(op, stage, factored, place)
        self._add(Stage(parts), self.stages.index(stage))
        stage.op = whole
        stage.begin_anew()
        found = [parts.output(n) for n in range(len(parts.body))]
        return found[0] if len(found) == 1 else found


def create_schedule(ops: Tensor | Operation | Sequence[Tensor | Operation]) -> Schedule:
    """A schedule that computes operations, each stage at its own loops before its readers. One that
    comes twice, as the operation of two tensors, is one. Raises ScheduleError for what is no
    operation."""
    many = [ops] if isinstance(ops, (Tensor, Operation)) else list(ops)
    for each in many:
        if not isinstance(each, (Tensor, Operation)):
            raise ScheduleError(f"create_schedule: expected operations, got {type(each).__name__}")
    return Schedule(list(dict.fromkeys(o.op if isinstance(o, Tensor) else o for o in many)))


def _enter(stage: Stage, group: Stage | None) -> None:
    """Make a new stage a member of the group of the one it was made for."""
    stage.group = group
    if group is not None:
        group.num_child_stages += 1


def _many(tensors: Tensors) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _check_scope(what: str, tensor: Tensor, scope: str) -> None:
    if scope not in SCOPES:
        raise ScheduleError(
            f"{what} of {tensor.name!r}: expected one of {', '.join(SCOPES)}, got {scope!r}"
        )


def _fresh_axes(shape: Sequence[PrimExpr], names: Sequence[str] = ()) -> tuple[IterVar, ...]:
    given = names or [f"ax{n}" for n in range(len(shape))]
    return tuple(IterVar(Var(n), d, IterKind.SPATIAL) for n, d in zip(given, shape, strict=True))


def _repointed(op: Operation | None, new: Mapping[Tensor, Tensor]) -> Operation | None:
    """An operation that reads other tensors; itself where it reads none of the old ones."""
    if isinstance(op, ExternOp):
        inputs = tuple(new.get(t, t) for t in op.inputs)
        return op if inputs == op.inputs else op.with_fields(inputs=inputs)
    if not isinstance(op, ComputeOp):
        return op
    body = repointed_body(op, new)
    return (
        op if all(a is b for a, b in zip(body, op.body, strict=True)) else op.with_fields(body=body)
    )


def repointed_body(op: ComputeOp, new: Mapping[Tensor, Tensor]) -> tuple[PrimExpr, ...]:
    """The expressions of a computation over other tensors."""

    def change(e: PrimExpr) -> PrimExpr:
        """A read of a replaced tensor reads the new one."""
        if isinstance(e, ProducerLoad) and e.producer in new:
            return e.with_fields(producer=new[e.producer])
        return e

    return tuple(rewrite(b, change) for b in op.body)


def _is_about_sums(step: Step) -> bool:
    if isinstance(step, Reorder):
        return all(map(is_reduced, step.order))
    if isinstance(step, Split):
        return is_reduced(step.parent)
    return isinstance(step, Fuse) and is_reduced(step.fused)


def _replay_leaves(stage: Stage) -> None:
    """Bring the lists of axes up to the steps of a stage."""
    steps, leaves = stage.steps, stage.leaf_iter_vars
    for step in steps:
        if isinstance(step, Split):
            at = leaves.index(step.parent)
            leaves[at : at + 1] = [step.outer, step.inner]
            stage.all_iter_vars += [step.outer, step.inner]
        elif isinstance(step, Fuse):
            at = leaves.index(step.outer)
            leaves[at : at + 2] = [step.fused]
            stage.all_iter_vars.append(step.fused)
        elif isinstance(step, Reorder):
            places = sorted(map(leaves.index, step.order))
            for place, axis in zip(places, step.order, strict=True):
                leaves[place] = axis


def _written_through(op: ComputeOp, stage: Stage, scope: str) -> tuple[ComputeOp, ComputeOp]:
    """What is computed into the cache, and the copy back, over the axes of the operation."""
    spatial = [a for a in stage.leaf_iter_vars if not is_reduced(a)]
    names = [a.var.name for a in spatial]
    axes = _fresh_axes([a.extent for a in spatial], [f"{n}.c" for n in names])
    values, conditions = roots_from_leaves(
        stage.steps, {a: new.var for a, new in zip(spatial, axes, strict=True)}
    )
    at = {root.var: values[root] for root in op.axis}
    body = _moved(op, at, stage.steps)
    if conditions:
        body = tuple(_guarded(b, conditions) for b in body)
    cached = ComputeOp(f"{op.name}.{scope}", op.tag, op.attrs, axes, body)
    places = leaves_from_roots(stage.steps, {a: a.var for a in op.axis})
    indices = tuple(places[a] for a in spatial)
    copies = tuple(ProducerLoad(cached.output(n), indices, b.dtype) for n, b in enumerate(op.body))
    return cached, op.with_fields(body=copies)


def _moved(
    op: ComputeOp, at: Mapping[Var, PrimExpr], steps: Sequence[Step]
) -> tuple[PrimExpr, ...]:
    """What an operation computes at other axes. A reduced axis whose extent depends on one that
    moves is another axis then; ScheduleError where steps name it already."""
    values: dict[Var, PrimExpr] = dict(at)
    new: dict[Var, ReduceAxis] = {}
    for each in op.reduce_axis:
        if values.keys() & set(free_vars(each.extent)):
            extent, origin = substitute(each.extent, values), each.origin or each
            new[each] = ReduceAxis(each.name, each.dtype, extent, origin=origin)
            if any(isinstance(s, (Split, Fuse)) and each in _taken(s) for s in steps):
                raise ScheduleError(
                    f"cache_write of {op.name!r}: {each.name!r} is split or fused, and its extent"
                    " depends on another axis; do that to the axes of what this gives"
                )
    bodies = []
    for body in op.body:
        made = substitute(body, {**values, **new})
        if isinstance(made, Reduce):
            axis = tuple(new.get(a, a) for a in made.axis)
            made = made.with_fields(axis=axis, reducer=_moved_reducer(made.reducer, values))
        bodies.append(made)
    return tuple(bodies)


def _moved_reducer(reducer: CommReducer, values: dict[Var, PrimExpr]) -> CommReducer:
    """A reducer whose combination or first value names an axis, at other axes."""
    made = [
        tuple(substitute(e, values) for e in es)
        for es in (reducer.result, reducer.identity_element)
    ]
    if all(
        a is b
        for a, b in zip(
            (*made[0], *made[1]), (*reducer.result, *reducer.identity_element), strict=True
        )
    ):
        return reducer
    return reducer.with_fields(result=made[0], identity_element=made[1])


def _taken(step: Split | Fuse) -> tuple[Axis, ...]:
    return (step.parent,) if isinstance(step, Split) else (step.outer, step.inner)


def _guarded(body: PrimExpr, conditions: Sequence[PrimExpr]) -> PrimExpr:
    """A body that reads nothing where a condition does not hold."""
    whole = conditions[0]
    for each in conditions[1:]:
        whole = logical_and(whole, each)
    if isinstance(body, Reduce):
        starts = body.reducer.identity_element
        sources = (if_then_else(whole, s, i) for s, i in zip(body.sources, starts, strict=True))
        return body.with_fields(sources=tuple(sources))
    return if_then_else(whole, body, const(0, body.dtype))


def _factored(
    op: ComputeOp, stage: Stage, factored: Axis, place: int
) -> tuple[ComputeOp, ComputeOp]:
    """The sums of the parts, and their sum."""
    first = op.body[0]
    assert isinstance(first, Reduce)
    part = IterVar(Var(factored.var.name), factored.extent, IterKind.SPATIAL)
    axes = list(_fresh_axes([a.extent for a in op.axis], [a.var.name for a in op.axis]))
    axes.insert(place, part)
    spatial = {a.var for a in op.axis}
    if spatial.intersection(free_vars(factored.extent)):
        raise ScheduleError(
            f"rfactor of {op.name!r}: the extent of {factored.var.name!r} depends on another axis,"
            " so that what is kept of its steps is no tensor"
        )
    kept = [a for n, a in enumerate(axes) if n != place]
    at: dict[Var, PrimExpr] = {old.var: new.var for old, new in zip(op.axis, kept, strict=True)}
    rest = [a for a in stage.leaf_iter_vars if is_reduced(a) and a is not factored]
    inner = {a: ReduceAxis(a.var.name, "int64", substitute(a.extent, at)) for a in rest}
    leaves: dict[Axis, PrimExpr] = {factored: part.var, **inner}
    values, conditions = roots_from_leaves(stage.steps, leaves)
    for root in op.reduce_axis:
        if root not in values:
            raise ScheduleError(f"rfactor of {op.name!r}: {root.name!r} is not made of its leaves")
        at[root] = values[root]
    sources = [substitute(s, at) for s in first.sources]
    where = None
    for each in conditions:
        where = each if where is None else logical_and(where, each)
    reducer = _moved_reducer(first.reducer, at)
    body = make_reduce(reducer, sources, tuple(inner.values()), where)
    parts = ComputeOp(f"{op.name}.rf", op.tag, op.attrs, tuple(axes), body)
    again = ReduceAxis(f"{factored.var.name}.v", "int64", factored.extent)
    indices: list[PrimExpr] = [a.var for a in op.axis]
    indices.insert(place, again)
    loads = [ProducerLoad(parts.output(n), tuple(indices), s.dtype) for n, s in enumerate(sources)]
    return parts, op.with_fields(body=make_reduce(first.reducer, loads, (again,)))


__all__ = ["Attach", "Schedule", "create_schedule"]
