"""Lower a schedule of stages to a loop program. `lower(schedule, args)`.

1. The computations as they are now, what is inlined put into its readers.
2. `create_prim_func` of them: one block each, in loops of its own.
3. Stages, readers first: move the block to where it is to be computed, then its steps in order.
   So a block moves into loops that have their final form, and its own loops cover what is needed.
4. Instructions, kinds of loops, inits of sums in nests of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from ekiden.arith import simplify
from ekiden.ir.name_uniquer import NameUniquer
from ekiden.ir.prim import Cast, IntImm, PrimExpr, Var, const, is_const, logical_and
from ekiden.ir.prim_visitor import free_vars, rewrite, substitute
from ekiden.ir.range import Range
from ekiden.runtime.errors import ScheduleError
from ekiden.te.inline import ProducerInliner, post_order_tensors
from ekiden.te.prim_func import create_prim_func, create_prim_func_with_scalars, validate_arguments
from ekiden.te.schedule.relations import (
    Axis,
    AxisAttr,
    Fuse,
    IterVar,
    Reorder,
    Singleton,
    Split,
    Step,
    is_reduce_axis,
    root_axes,
)
from ekiden.te.schedule.scan_threads import interchange_time_and_threads
from ekiden.te.schedule.schedule import Schedule
from ekiden.te.schedule.stage import Attach, Stage
from ekiden.te.stmt_renaming import rename_blocks
from ekiden.te.tensor import ComputeOp, ExternOp, Operation, PlaceholderOp, ProducerLoad, Tensor
from ekiden.te.tensor_intrin import tensorize_stage
from ekiden.tir.index_map import IndexMap
from ekiden.tir.predicates import join_conjuncts, split_conjuncts
from ekiden.tir.schedule.schedule import Schedule as LoopSchedule
from ekiden.tir.schedule.trace import BlockRV, LoopRV
from ekiden.tir.stmt import IMPORT_LLVM_ATTR, Block, BlockRealize, For, PrimFunc, Stmt
from ekiden.tir.visitor import StmtMutator

MAX_THREADS_PER_BLOCK = 1024
"""Maximum number of threads per block."""


def lower(schedule: Schedule, args: Sequence[Tensor | Var], name: str = "main") -> PrimFunc:
    """Return the loop program of a schedule over its arguments: inputs, then outputs, as in
    `create_prim_func`. Raises ScheduleError for a step that would change its meaning; TypeError
    and ValueError as there.
    """
    validate_arguments(args, f"lower {name!r}")
    return create_prim_func_with_scalars(
        args, lambda tensors: ScheduleLowering(schedule, tensors, name).func
    )


def infer_bound(schedule: Schedule) -> dict[Axis, Range]:
    """Return the range of every axis of every stage in terms of the surrounding loop variables.
    TVM: `te.schedule.InferBound`.
    """
    return _lower_schedule(schedule).bounds


def _lower_schedule(schedule: Schedule) -> ScheduleLowering:
    """Lower a schedule over its inputs and outputs."""
    inputs = [s.op.output(0) for s in schedule.stages if isinstance(s.op, PlaceholderOp)]
    outputs = [op.output(n) for op in schedule.outputs for n in range(op.num_outputs)]
    return ScheduleLowering(schedule, [*inputs, *outputs], "main")


def schedule_ops(schedule: Schedule, bounds: Mapping[Axis, Range] | None = None) -> Stmt:
    """Return the statements of a schedule over its inputs and outputs, before any pass. Ranges are
    inferred anew: `bounds` is TVM's. TVM: `te.schedule.ScheduleOps`.
    """
    del bounds
    return _lower_schedule(schedule).func.body


class ScheduleDataflow:
    """The operations of a schedule in their current form, with unique names."""

    def __init__(self, schedule: Schedule, args: Sequence[Tensor]) -> None:
        self.schedule = schedule
        self.tensor_map: dict[Tensor, Tensor] = {}
        """Current tensor of the program for each original or rewritten tensor."""
        self.scan_step_blocks: dict[Operation, str] = {}
        """Block name of each step computation of a scan."""
        self.scan_copy_blocks: set[str] = set()
        """Block names of the copies that scans make of initial rows and step results."""
        self._names = NameUniquer()
        self.inlined = {s for s in schedule.stages if is_inlined(s) and s.enclosing_scan is None}
        for tensor in args:
            if isinstance(tensor.op, PlaceholderOp):
                self._copy_operation(tensor.op)
        for stage in schedule.stages:
            assert stage.op is not None and stage.origin_op is not None
            # Steps of a scan are part of its extern operation and are copied with that.
            if stage.enclosing_scan is None:
                self._copy_operation(stage.op, stage.origin_op)
        self._inline_stages()

    def _copy_operation(self, op: Operation, origin: Operation | None = None) -> None:
        if op.output(0) in self.tensor_map:
            return
        fields: dict[str, object] = {"name": self._names.fresh(op.name)}
        if isinstance(op, ComputeOp):
            fields["body"] = tuple(rewrite(b, self._redirect_load) for b in op.body)
        if isinstance(op, ExternOp):
            fields["inputs"] = tuple(self.tensor_map[t] for t in op.inputs)
            names: dict[str, str] = {}
            fields["body"] = rename_blocks(
                op.body, lambda name: names.setdefault(name, self._names.fresh(name))
            )
            self.scan_step_blocks |= {step: names[name] for step, name in op.steps}
            if op.steps:
                self.scan_copy_blocks |= {*names.values()} - {*self.scan_step_blocks.values()}
        copied = op.with_fields(**fields)
        # Found both by what the stage computes now and by what the user wrote.
        for source_op in {op, origin or op}:
            for n in range(copied.num_outputs):
                self.tensor_map[source_op.output(n)] = copied.output(n)

    def stage_belongs_to(self, stage: Stage, operations: set[Operation]) -> bool:
        """Return whether a stage's operation is among the program's operations."""
        op = stage.enclosing_scan or stage.op
        assert op is not None
        return self.tensor_map[op.output(0)].op in operations

    def block_name(self, stage: Stage) -> str:
        """Return the name of a stage's block."""
        assert stage.op is not None
        step_name = self.scan_step_blocks.get(stage.op)
        return self.tensors(stage)[0].name if step_name is None else step_name

    def _redirect_load(self, e: PrimExpr) -> PrimExpr:
        if not isinstance(e, ProducerLoad):
            return e
        current = self.tensor_map.get(e.producer)
        if current is None:
            raise ScheduleError(
                f"schedule: {e.producer.name!r} is read before it is computed, or is in no stage"
            )
        return e.with_fields(producer=current)

    def _inline_stages(self) -> None:
        """Inline the chosen stages into their readers."""
        chosen = [t for s in self.inlined for t in self.tensors(s)]
        if not chosen:
            return
        inliner = ProducerInliner(set(chosen))
        again: dict[Tensor, Tensor] = {}

        def redirect_load(e: PrimExpr) -> PrimExpr:
            """Redirect a read of an operation's result to its copy."""
            if isinstance(e, ProducerLoad) and e.producer in again:
                return e.with_fields(producer=again[e.producer])
            return e

        for tensor in post_order_tensors(dict.fromkeys(self.tensor_map.values())):
            op = tensor.op
            if isinstance(op, ExternOp):
                lost = [t.name for t in op.inputs if t in chosen]
                if lost:
                    raise ScheduleError(
                        f"compute_inline of {lost[0]!r}: {op.name!r}, which is written as"
                        " statements, reads it"
                    )
                op = op.with_fields(inputs=tuple(again.get(t, t) for t in op.inputs))
            elif isinstance(op, ComputeOp) and tensor not in chosen:
                op = op.with_fields(
                    body=tuple(rewrite(inliner.rewrite_expr(b), redirect_load) for b in op.body)
                )
            if op is not tensor.op:
                for n in range(op.num_outputs):
                    again.setdefault(tensor.op.output(n), op.output(n))
        self.tensor_map = {old: again.get(t, t) for old, t in self.tensor_map.items()}

    def tensors(self, stage: Stage) -> list[Tensor]:
        """Return a stage's tensors in the program."""
        assert stage.op is not None
        return [self.tensor_map[stage.op.output(n)] for n in range(stage.op.num_outputs)]


class ScheduleLowering:
    """The lowering of a schedule: `func` is the resulting program, `bounds` the ranges of axes."""

    def __init__(self, schedule: Schedule, args: Sequence[Tensor], name: str) -> None:
        self.dataflow = ScheduleDataflow(schedule, args)
        self.bounds: dict[Axis, Range] = {}
        self._loops: dict[Axis, LoopRV] = {}
        self._blocks: dict[Stage, BlockRV] = {}
        self._imported_ir: list[str] = []
        arguments = [self._current_argument(a) for a in args]
        self._argument_ops = {t.op for t in arguments}
        self.sch = LoopSchedule(create_prim_func(arguments, name))
        operations = {t.op for t in post_order_tensors(arguments)}
        stages = [
            s
            for s in schedule.stages
            if isinstance(s.op, ComputeOp) and self.dataflow.stage_belongs_to(s, operations)
        ]
        self._set_memory_scopes(schedule, operations)
        # Consumers before producers: compute_at needs the consumer's loops in their final form.
        for stage in reversed(stages):
            self._apply_stage(stage)
        for stage in schedule.stages:
            if stage.is_input and stage.layouts:
                self._lay_out_input(stage, stages)
        for stage in stages:
            self._bind_scan_copies(stage)
        names = self._axis_var_map()
        for stage in stages:
            if not self._is_removed(stage):
                self._annotate_stage(stage)
        self.bounds = {
            a: Range.from_min_extent(substitute(r.min, dict(names)), r.extent)
            for a, r in self.bounds.items()
        }
        func = _PredicateAndNameRewriter(names, self._store_predicates(stages)).visit_func(
            self.sch.func
        )
        func = interchange_time_and_threads(func, self.dataflow.scan_step_blocks.values())
        if self._imported_ir:
            func = func.with_attr(IMPORT_LLVM_ATTR, tuple(self._imported_ir))
        self.func = func

    def _current_argument(self, tensor: Tensor) -> Tensor:
        if not isinstance(tensor, Tensor):
            raise ScheduleError(
                f"lower: expected tensors as arguments, got {type(tensor).__name__}"
            )
        current = self.dataflow.tensor_map.get(tensor)
        if current is None:
            raise ScheduleError(f"lower: argument {tensor.name!r} is not in the schedule")
        return current

    def _is_removed(self, stage: Stage) -> bool:
        """Return whether a stage exists in its readers only. An inlined argument is stored as
        well, by loops of its own.
        """
        if stage.enclosing_scan is not None or not is_inlined(stage):
            return is_inlined(stage)
        return self.dataflow.tensors(stage)[0].op not in self._argument_ops

    def _block_handle(self, stage: Stage) -> BlockRV:
        if stage not in self._blocks:
            self._blocks[stage] = self.sch.get_block(self.dataflow.block_name(stage))
        return self._blocks[stage]

    def _set_memory_scopes(self, schedule: Schedule, operations: set[Operation]) -> None:
        """Set the memory scopes of intermediates, before any move that depends on them."""
        for stage in schedule.stages:
            if (
                stage.is_input
                or not stage.scope
                or not self.dataflow.stage_belongs_to(stage, operations)
            ):
                continue
            assert stage.op is not None
            if (
                stage.enclosing_scan is None
                and self.dataflow.tensors(stage)[0].op in self._argument_ops
            ):
                if stage.scope != "global":
                    raise ScheduleError(
                        f"set_scope of {stage.name!r}: it is an argument, which is global"
                    )
            elif stage.is_extern:
                raise ScheduleError(f"set_scope of {stage.name!r}: what statements write is global")
            else:
                for n in range(stage.op.num_outputs):
                    self.sch.set_scope(self._block_handle(stage), n, stage.scope)

    # Where a stage is computed, and its steps.

    def _apply_stage(self, stage: Stage) -> None:
        """Apply a stage's attachment, layouts, steps and thread bindings to its block."""
        if self._is_removed(stage):
            self.sch.compute_inline(self._block_handle(stage))
            return
        position = _attachment_of(stage)
        if position is not None:
            parent, axis = position
            loop = self._loops.get(axis)
            if loop is None:
                raise ScheduleError(
                    f"compute_at of {stage.name!r}: {axis.var.name!r} is no loop of"
                    f" {parent.name!r} any more"
                )
            # Unit loops stay, so that every axis of the stage has a loop.
            self.sch.compute_at(self._block_handle(stage), loop, preserve_unit_loops=True)
        for index_map, _ in stage.layouts:
            self.sch.transform_layout(self._block_handle(stage), ("write", 0), index_map)
            self.sch.transform_block_layout(
                self._block_handle(stage), _with_reduce_axes(index_map, stage)
            )
        self._record_axes(stage)
        for step in stage.steps:
            self._apply_step(step)
        for axis, attr in stage.iter_var_attrs.items():
            if attr.bind_thread is not None:
                self.sch.bind(self._loop_handle(stage, axis), attr.bind_thread.thread_tag)
        if stage.is_rolling:
            self.sch.rolling_buffer(self._block_handle(stage), 0)

    # Only threads reach a device's memory: copies into a scan's state are made where they are.
    def _bind_scan_copies(self, stage: Stage) -> None:
        """Bind the loops of a scan's copies to the threads that its computations run on."""
        bound = [
            a for a in stage.leaf_iter_vars if _is_thread_bound(stage, a) and not is_reduce_axis(a)
        ]
        if not bound or not self.dataflow.scan_copy_blocks or stage.layouts:
            return
        assert isinstance(stage.op, ComputeOp)
        axes = stage.op.axis if stage.enclosing_scan is None else stage.op.axis[1:]
        for copy in self.sch.get_consumers(self._block_handle(stage)):
            block = self.sch.get(copy)
            if not isinstance(block, Block) or block.name not in self.dataflow.scan_copy_blocks:
                continue
            axis_loops = self.sch.get_loops(copy)[-len(axes) :] if axes else []
            loops: dict[Axis, LoopRV] = dict(zip(axes, axis_loops, strict=True))
            for step in stage.steps:
                own_step = _spatial_step(step)
                if own_step is not None:
                    loops |= _apply_to_loops(self.sch, own_step, loops)
            for axis in bound:
                thread = stage.iter_var_attrs[axis].bind_thread
                assert thread is not None
                self.sch.bind(loops[axis], thread.thread_tag)

    def _lay_out_input(self, stage: Stage, stages: Sequence[Stage]) -> None:
        """Transform the layout of an argument through a stage that reads it."""
        tensor = self.dataflow.tensors(stage)[0]
        unscanned_stages = [s for s in stages if s.enclosing_scan is None]
        readers = [
            s for s in unscanned_stages if tensor in self.dataflow.tensors(s)[0].op.input_tensors
        ]
        if not readers:
            raise ScheduleError(f"transform_layout of {stage.name!r}: no computation reads it")
        for index_map, _ in stage.layouts:
            self.sch.transform_layout(self._block_handle(readers[0]), tensor.name, index_map)

    def _record_axes(self, stage: Stage) -> None:
        """Record the loops of the stage's own axes, and their ranges."""
        block = self._block_handle(stage)
        realize = self.sch.statement(block)
        assert isinstance(realize, BlockRealize)
        axes = _initial_axes(stage)
        loops = self.sch.get_loops(block)
        axis_loops = loops[len(loops) - len(axes) :] if axes else []
        variables: dict[Var, PrimExpr] = {}
        for axis, loop in zip(axes, axis_loops, strict=True):
            self._record_loop(axis, loop)
            loop_stmt = self._loop_stmt(loop)
            variables[loop_stmt.loop_var] = loop_stmt.min
        for axis, value in zip(axes, realize.iter_values, strict=True):
            low = _strip_casts(substitute(value, variables))
            self.bounds[axis] = Range.from_min_extent(low, self.bounds[axis].extent)

    def _loop_stmt(self, loop: LoopRV) -> For:
        loop_stmt = self.sch.get(loop)
        assert isinstance(loop_stmt, For)
        return loop_stmt

    def _record_loop(self, axis: Axis, loop: LoopRV) -> None:
        self._loops[axis] = loop
        loop_stmt = self._loop_stmt(loop)
        self.bounds[axis] = Range.from_min_extent(loop_stmt.min, loop_stmt.extent)

    def _apply_step(self, step: Step) -> None:
        for axis, loop in _apply_to_loops(self.sch, step, self._loops).items():
            self._record_loop(axis, loop)

    def _loop_handle(self, stage: Stage, axis: Axis) -> LoopRV:
        loop_rv = self._loops.get(axis)
        if loop_rv is None:
            raise ScheduleError(
                f"{stage.name!r}: {axis.var.name!r} was split or fused after something was asked"
                " of it"
            )
        return loop_rv

    # How its loops run.

    def _annotate_stage(self, stage: Stage) -> None:
        """Apply a stage's storage alignment, pragmas, tensor intrinsics and loop kinds, and
        decompose its reduction.
        """
        block = self._block_handle(stage)
        for axis, (factor, offset) in stage.storage_alignments.items():
            which = _initial_axes(stage).index(axis)
            self.sch.storage_align(block, 0, which, factor, offset)
        if stage.is_double_buffered:
            self.sch.annotate(block, "double_buffer_scope", 0)
        tensorized = False
        for axis, attr in stage.iter_var_attrs.items():
            loop = self._loop_handle(stage, axis)
            for kind, value in attr.pragmas.items():
                if kind == "import_llvm":
                    self._imported_ir.append(str(value))
                else:
                    self.sch.annotate(loop, f"pragma_{kind}", 1 if value is None else value)
            if attr.tensor_intrin is not None:
                reduced = self._outermost_reduction_loop(stage)
                tensorize_stage(self.sch, block, loop, reduced, attr.tensor_intrin)
                tensorized = True
            _set_loop_kind(self.sch, loop, attr)
        outermost = self._outermost_reduction_loop(stage)
        if outermost is not None and not tensorized and not _reduces_by_threads(stage):
            self._decompose_reduction(block, outermost)

    def _outermost_reduction_loop(self, stage: Stage) -> LoopRV | None:
        for axis in stage.leaf_iter_vars:
            if is_reduce_axis(axis):
                return self._loops.get(axis)
        return None

    def _decompose_reduction(self, block: BlockRV, loop: LoopRV) -> None:
        """Move the init before the reduction, as TVM does, so that no iteration tests for it. If
        that is rejected (a condition on reduction and other loops) it stays in the first
        iteration.
        """
        backup = self.sch.copy()
        try:
            self.sch.decompose_reduction(block, loop)
        except ScheduleError:
            self.sch = backup

    def _axis_var_map(self) -> dict[Var, Var]:
        """Return the map from loop variables to the variables of derived axes, which user
        expressions name.
        """
        loop_vars = {a: self._loop_stmt(loop).loop_var for a, loop in self._loops.items()}
        derived_axes = {
            a for s in self.dataflow.schedule.stages for a in s.all_iter_vars[_num_root_axes(s) :]
        }
        return {v: a.var for a, v in loop_vars.items() if a in derived_axes}

    def _store_predicates(self, stages: Sequence[Stage]) -> dict[str, PrimExpr]:
        """Return the store conditions of blocks, with thread axes replaced by their bound loops."""
        threads: dict[Var, PrimExpr] = {}
        for stage in stages:
            threads |= self._thread_var_map(stage)
        return {
            self.dataflow.block_name(s): self._store_condition(s, threads | self._thread_var_map(s))
            for s in stages
            if s.store_predicate is not None
        }

    def _thread_var_map(self, stage: Stage) -> dict[Var, PrimExpr]:
        """Return the variables of a stage's thread axes, mapped to those of the loops bound to
        them.
        """
        return {
            attr.bind_thread.var: self._loop_stmt(self._loops[axis]).loop_var
            for axis, attr in stage.iter_var_attrs.items()
            if attr.bind_thread is not None
        }

    def _enclosing_thread_vars(self, stage: Stage) -> set[Var]:
        """Return the variables of the thread axes around a stage's store: its own, without reducing
        ones, and those of the stages that it is computed in.
        """
        around: set[Var] = set()
        current: tuple[Stage, Axis | None] | None = stage, None
        while current is not None:
            owner, until = current
            leaves = owner.leaf_iter_vars
            for axis in leaves if until is None else leaves[: leaves.index(until) + 1]:
                attr = owner.iter_var_attrs.get(axis)
                is_around = until is not None or not is_reduce_axis(axis)
                if attr is not None and attr.bind_thread is not None and is_around:
                    around.add(attr.bind_thread.var)
            current = _attachment_of(owner)
        return around

    # All threads of a sum have it in the end, and one stores it: lowering chooses which. So it is
    # with threads of another stage, all of which do the same here.
    def _store_condition(self, stage: Stage, threads: dict[Var, PrimExpr]) -> PrimExpr:
        """Return the condition under which a stage stores, without conjuncts that only select one
        of the reducing threads. Raises ScheduleError where no thread would store.
        """
        assert stage.store_predicate is not None
        around = self._enclosing_thread_vars(stage)
        either = {
            attr.bind_thread.var: axis.extent
            for stage_with_threads in self.dataflow.schedule.stages
            for axis, attr in stage_with_threads.iter_var_attrs.items()
            if attr.bind_thread is not None and attr.bind_thread.var not in around
        }
        remaining: list[PrimExpr] = []
        for condition in split_conjuncts(stage.store_predicate):
            used = either.keys() & set(free_vars(condition))
            if not used:
                remaining.append(condition)
            elif not _is_satisfiable(condition, {v: either[v] for v in used}):
                raise ScheduleError(
                    f"set_store_predicate of {stage.name!r}: {condition} is not known to hold for"
                    " any of the threads that reduce, one of which stores the result"
                )
        return substitute(join_conjuncts(remaining), threads)


def _reduces_by_threads(stage: Stage) -> bool:
    """Return whether a reduction axis of a stage is bound to threads."""
    return any(is_reduce_axis(a) and _is_thread_bound(stage, a) for a in stage.leaf_iter_vars)


def _is_thread_bound(stage: Stage, axis: Axis) -> bool:
    """Return whether an axis of a stage is bound to threads."""
    attr = stage.iter_var_attrs.get(axis)
    return attr is not None and attr.bind_thread is not None


def _is_satisfiable(condition: PrimExpr, extents: Mapping[Var, PrimExpr]) -> bool:
    """Return whether a condition provably holds for one of the threads, by enumeration."""
    # Of a symbolic extent only thread 0 is certain to exist.
    sizes = [e.value if isinstance(e, IntImm) else 1 for e in extents.values()]
    for numbers in itertools.islice(itertools.product(*map(range, sizes)), MAX_THREADS_PER_BLOCK):
        indices: dict[Var, PrimExpr] = dict(zip(extents, map(const, numbers), strict=True))
        if is_const(simplify(substitute(condition, indices)), True):
            return True
    return False


def _spatial_step(step: Step) -> Step | None:
    """Return a step restricted to spatial axes; None where it is on others."""
    match step:
        case Split() if not is_reduce_axis(step.parent):
            return step
        case Fuse() if not is_reduce_axis(step.fused):
            return step
        case Reorder():
            return Reorder(tuple(a for a in step.order if not is_reduce_axis(a)))
    return None


def _apply_to_loops(sch: LoopSchedule, step: Step, loops: dict[Axis, LoopRV]) -> dict[Axis, LoopRV]:
    """Apply a step to the loops of axes: remove those that it replaces, return the new ones."""
    match step:
        case Split():
            factor = _int_or_expr(step.factor if step.nparts is None else step.nparts)
            factors = [None, factor] if step.nparts is None else [factor, None]
            outer, inner = sch.split(loops.pop(step.parent), factors)
            return {step.outer: outer, step.inner: inner}
        case Fuse():
            pair = (loops.pop(step.outer), loops.pop(step.inner))
            return {step.fused: sch.fuse(*pair)}
        case Reorder():
            sch.reorder(*(loops[a] for a in step.order))
            return {}
        case Singleton():
            raise ScheduleError("fuse of no axes: a computation without axes has no loops")


def is_inlined(stage: Stage) -> bool:
    """Return whether a stage is inlined into its readers."""
    return stage.attach_type is Attach.INLINE


def _num_root_axes(stage: Stage) -> int:
    """Return the number of root (unsplit, unfused) axes of a stage."""
    return 0 if stage.op is None else len(root_axes(stage.op))


def _set_loop_kind(sch: LoopSchedule, loop: LoopRV, attr: AxisAttr) -> None:
    match attr.iter_type:
        case IterVar.Vectorized:
            sch.vectorize(loop)
        case IterVar.Parallelized:
            sch.parallel(loop)
        case IterVar.Unrolled:
            sch.unroll(loop)


def _int_or_expr(factor: PrimExpr | None) -> int | PrimExpr:
    assert factor is not None
    return factor.value if isinstance(factor, IntImm) else factor


def _with_reduce_axes(index_map: IndexMap, stage: Stage) -> IndexMap:
    """Extend an index map of spatial axes by the unchanged reduction axes."""
    assert isinstance(stage.op, ComputeOp)
    sums = tuple(Var(r.name) for r in stage.op.reduce_axis)
    return IndexMap((*index_map.initial_indices, *sums), (*index_map.final_indices, *sums))


class _PredicateAndNameRewriter(StmtMutator):
    """A mutator that renames loop variables to their axes' variables and adds store conditions."""

    def __init__(self, names: Mapping[Var, Var], predicates: Mapping[str, PrimExpr]) -> None:
        self._names = dict(names)
        self._predicates = predicates

    def visit_func(self, func: PrimFunc) -> PrimFunc:
        """Return the changed function."""
        return func.with_fields(body=self.visit(func.body))

    def rewrite_expr(self, expr: PrimExpr) -> PrimExpr:
        """Replace the variables of loops by those of axes."""
        return substitute(expr, dict(self._names))

    def visit_for(self, stmt: For) -> Stmt:
        """Rename the loop's variable to its axis's."""
        new = super().visit_for(stmt)
        assert isinstance(new, For)
        return new.with_fields(loop_var=self._names.get(stmt.loop_var, stmt.loop_var))

    def visit_realize(self, stmt: BlockRealize) -> Stmt:
        """Add the block's condition."""
        new = super().visit_realize(stmt)
        assert isinstance(new, BlockRealize)
        # A decomposed init stores under the same condition as its reduction.
        name = stmt.block.name.removesuffix("_init")
        condition = self._predicates.get(name)
        if condition is None:
            return new
        return new.with_fields(predicate=logical_and(new.predicate, self.rewrite_expr(condition)))


def _attachment_of(stage: Stage) -> tuple[Stage, Axis] | None:
    """Return the stage and axis that a stage, or its group, is computed at."""
    current: Stage | None = stage
    while current is not None:
        if current.attach_type is Attach.SCOPE:
            assert current.attach_stage is not None and current.attach_ivar is not None
            return current.attach_stage, current.attach_ivar
        current = current.group
    return None


def _initial_axes(stage: Stage) -> list[Axis]:
    """Return the axes of a block's loops before any step."""
    assert isinstance(stage.op, ComputeOp)
    spatial: Sequence[Axis] = stage.layouts[-1][1] if stage.layouts else stage.op.axis
    return [*spatial, *stage.op.reduce_axis]


def _strip_casts(e: PrimExpr) -> PrimExpr:
    return rewrite(e, lambda x: x.value if isinstance(x, Cast) else x)
