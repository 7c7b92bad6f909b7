"""Default kernel family: injective groups, reductions, and row-wise groups of several stages.

injective        one nest over the output, neighbouring axes fused where every access allows,
                 cut where conditions change
reduction        vectors over the reduced axis (contiguous data along it) or over the last
                 output axis, sums in registers
several stages   all of them per step of the outer axes they share, intermediates of one step
                 in a small buffer; without shared axes one after the other
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.arith import Analyzer, prove_equal, simplify
from ekiden.ir import dtype as dt
from ekiden.ir.prim import IntImm, PrimExpr, Var, const, is_const, minimum
from ekiden.ir.prim_visitor import rewrite, substitute
from ekiden.kernels.attention.softmax_bounds import rewrite_with_row_bounds
from ekiden.kernels.cost_model import cache_levels
from ekiden.kernels.cpu.injective import emit_injective_nest
from ekiden.kernels.cpu.loops import (
    LoopAxis,
    NestAccesses,
    element_cost,
    estimated_product,
    fuse_axes,
    parallel_outer_loops,
)
from ekiden.kernels.cpu.reduction import ReductionNest, StreamedProducer, reduces_innermost_axis
from ekiden.kernels.cpu.tuple_reduction import emit_tuple_reduction
from ekiden.kernels.family import Family
from ekiden.kernels.stages import copy_repeated_outputs, inline_cheap_stages, stages_of
from ekiden.target import Target
from ekiden.te.inline import input_tensors, is_stored
from ekiden.te.prim_func import (
    TensorBufferMap,
    create_extern_stage,
    group_by_operation,
    wrap_in_allocations,
)
from ekiden.te.reducer import Reduce
from ekiden.te.tensor import ComputeOp, ExternOp, ProducerLoad, Tensor
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import For, ForKind, PrimFunc, Stmt
from ekiden.tir.transform.buffer_flattening import flat_index
from ekiden.tir.visitor import flatten_seq
from ekiden.tir.visitor import substitute as substitute_statement

MAX_ROW_STACK_BYTES = 16384
"""Intermediates of a row up to this size live on the stack, larger ones in the workspace."""
ROWS_PER_STAGE = 4
"""Rows that a stage processes before the next stage begins, so that independent rows hide each
other's latency. Fewer where as many do not stay in half of the first cache.
"""


class _DefaultKernel:
    """Builder of the default loop nests of one group.

    `prefix` are the outer axes that all stages share; buffers of a row lack them.
    """

    def __init__(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], target: Target) -> None:
        self.target = target
        self.analyzer = Analyzer()
        self.map = TensorBufferMap()
        self.params = tuple(self.map.declare(t) for t in (*inputs, *outputs))
        self.stages = stages_of(outputs)
        self.outputs = set(outputs)
        self.prefix: list[LoopAxis] = []
        self.rows: set[Tensor] = set()
        self.extents = {
            a.var: a.extent for t in self.stages if isinstance(t.op, ComputeOp) for a in t.op.axis
        }
        self.row: Var | None = None
        """Index of the row within a block of rows."""

    # Elements of stages as flat accesses.

    def stage_axes(self, tensor: Tensor) -> tuple[list[LoopAxis], dict[Var, PrimExpr]]:
        """Return a stage's axes after the shared prefix, and the substitution of its variables."""
        op = tensor.op
        assert isinstance(op, ComputeOp)
        shared = len(self.prefix)
        values: dict[Var, PrimExpr] = {
            a.var: p.var for a, p in zip(op.axis, self.prefix, strict=False)
        }
        own: list[LoopAxis] = []
        for op_axis in op.axis[shared:]:
            axis = LoopAxis(Var(op_axis.var.name), op_axis.extent)
            self.analyzer.bind(axis.var, 0, axis.extent)
            values[op_axis.var] = axis.var
            own.append(axis)
        return own, values

    def flat_element(self, tensor: Tensor, indices: Sequence[PrimExpr]) -> tuple[Buffer, PrimExpr]:
        """Return the buffer and the flat index of a tensor element."""
        buffer = self.map.buffers[tensor]
        at = tuple(indices)
        # A row's buffer has none of the shared axes: it holds one block of rows only.
        if tensor in self.rows:
            own = at[len(self.prefix) :] or (const(0),)
            at = own if self.row is None else (self.row, *own)
        index = flat_index(buffer, at) if len(at) > 1 else at[0] if at else const(0)
        return buffer, self.analyzer.simplify(index)

    def replace_loads(self, expr: PrimExpr, values: dict[Var, PrimExpr]) -> PrimExpr:
        """Return the expression with tensor reads as flat loads."""

        def replace_node(e: PrimExpr) -> PrimExpr:
            """Substitute a variable, or a tensor read by a load with one flat index."""
            if isinstance(e, Var):
                return values.get(e, e)
            if isinstance(e, ProducerLoad):
                buffer, index = self.flat_element(e.producer, e.indices)
                return BufferLoad(buffer, (index,), e.dtype)
            return e

        return rewrite(rewrite_with_row_bounds(expr, self.extents, self.target), replace_node)

    # Stages.

    def emit_stage(self, tensor: Tensor) -> Stmt:
        """Emit the loops of one output of a computation."""
        op = tensor.op
        assert isinstance(op, ComputeOp)
        axes, values = self.stage_axes(tensor)
        body = op.body[tensor.value_index]
        buffer, index = self.flat_element(tensor, [values[a.var] for a in op.axis])
        if not isinstance(body, Reduce):
            value = self.replace_loads(body, values)
            return emit_injective_nest(
                axes, buffer, index, value, self.analyzer, self.target, not self.prefix
            )
        return self.emit_reduction(buffer, index, axes, body, values)

    def emit_reduction(
        self,
        buffer: Buffer,
        index: PrimExpr,
        axes: list[LoopAxis],
        body: Reduce,
        values: dict[Var, PrimExpr],
    ) -> Stmt:
        """Emit the loops of a reduction, with axes fused where possible."""
        reduced = self._reduction_axes(body, values)
        source = self.replace_loads(body.source, values)
        axes, step = fuse_axes(axes, NestAccesses([index], [source]), self.analyzer)
        index, source = substitute(index, step), substitute(source, step)
        reduced, step = fuse_axes(reduced, NestAccesses([index], [source]), self.analyzer)
        source = substitute(source, step)
        nest = ReductionNest(
            buffer, index, body.kind, source, axes, reduced, self.analyzer, self.target
        )
        return nest.emit_nest(not self.prefix)

    def _reduction_axes(self, body: Reduce, values: dict[Var, PrimExpr]) -> list[LoopAxis]:
        reduced: list[LoopAxis] = []
        for reduce_axis in body.axis:
            axis = LoopAxis(Var(reduce_axis.name), reduce_axis.extent)
            self.analyzer.bind(axis.var, 0, axis.extent)
            values[reduce_axis] = axis.var
            reduced.append(axis)
        return reduced

    def emit_row_stages(self) -> list[Stmt]:
        """Emit the stages of one row in order; a stage whose first reader is a reduction is
        computed inside its loop.
        """
        statements: list[Stmt] = []
        waiting: Tensor | None = None
        for n, tensor in enumerate(self.stages):
            following = self.stages[n + 1] if n + 1 < len(self.stages) else None
            if waiting is None and following is not None and self._can_stream(tensor, following):
                waiting = tensor
                continue
            both = None if waiting is None else self._emit_streamed(waiting, tensor)
            if both is None:
                statements.extend(self.emit_stage(t) for t in (waiting, tensor) if t is not None)
            else:
                statements.append(both)
            waiting = None
        return statements

    def _can_stream(self, tensor: Tensor, reader: Tensor) -> bool:
        """Return whether a reduction over one axis reads each element of a row of `tensor` exactly
        once.
        """
        op, producer_op = reader.op, tensor.op
        assert isinstance(op, ComputeOp)
        assert isinstance(producer_op, ComputeOp)
        if (
            len(op.reduce_axis) != 1
            or producer_op.reduce_axis
            or tensor.ndim != len(self.prefix) + 1
        ):
            return False
        reads = [e for e in te.tensor_loads(op) if e.producer is tensor]
        in_order = bool(reads) and all(e.indices[-1] is op.reduce_axis[0] for e in reads)
        return in_order and prove_equal(op.reduce_axis[0].extent, tensor.shape[-1])

    def _emit_streamed(self, tensor: Tensor, reader: Tensor) -> Stmt | None:
        """Emit one loop that computes, stores and reduces `tensor`; None where vectors do not run
        along the row.
        """
        op, producer_op = reader.op, tensor.op
        assert isinstance(op, ComputeOp)
        assert isinstance(producer_op, ComputeOp)
        axes, values = self.stage_axes(reader)
        body = op.body[reader.value_index]
        assert isinstance(body, Reduce)
        (last,) = self._reduction_axes(body, values)
        element = Var("element", tensor.dtype)

        def substitute_element(e: PrimExpr) -> PrimExpr:
            return element if isinstance(e, ProducerLoad) and e.producer is tensor else e

        at = [p.var for p in self.prefix] + [last.var]
        inside: dict[Var, PrimExpr] = {a.var: v for a, v in zip(producer_op.axis, at, strict=True)}
        value = self.replace_loads(producer_op.body[tensor.value_index], inside)
        stream = StreamedProducer(element, value, *self.flat_element(tensor, at))
        buffer, index = self.flat_element(reader, [values[a.var] for a in op.axis])
        source = self.replace_loads(rewrite(body.source, substitute_element), values)
        unit = {a.var: const(0) for a in axes}
        nest = ReductionNest(
            buffer,
            substitute(index, unit),
            body.kind,
            substitute(source, unit),
            [],
            [last],
            self.analyzer,
            self.target,
            stream,
        )
        single = all(is_const(a.extent, 1) for a in axes)
        # Only a row with one result can be streamed: with more, the intermediate would be computed
        # again for each.
        return nest.emit_nest(False) if single and nest.vectorizes_reduced_axis() else None

    def emit_tuple_reduction(self, group: Sequence[Tensor], body: Reduce) -> Stmt:
        """Emit the loops of all outputs of a reduction with a user-defined reducer."""
        op = group[0].op
        assert isinstance(op, ComputeOp)
        axes, values = self.stage_axes(group[0])
        targets = [self.flat_element(t, [values[a.var] for a in op.axis]) for t in group]
        reduced = self._reduction_axes(body, values)
        sources = [self.replace_loads(s, values) for s in body.sources]
        return emit_tuple_reduction(targets, body.reducer, sources, axes, reduced)

    # Groups.

    def emit_rows(self, shared: int) -> Stmt:
        """Emit all stages per iteration of the leading `shared` axes."""
        first = self.stages[-1]
        names = first.op.axis[:shared] if isinstance(first.op, ComputeOp) else ()
        self.prefix = [LoopAxis(Var(a.var.name), a.extent) for a in names]
        for axis in self.prefix:
            self.analyzer.bind(axis.var, 0, axis.extent)
        # Before the row buffers: an intermediate that lives in an output needs none.
        self._reuse_output_buffers()
        inside = [t for t in self.stages if t not in self.map.buffers]
        self.rows.update(inside)
        rows = self._rows_per_stage(shared)
        if rows > 1:
            self.row = Var("row")
            self.analyzer.bind(self.row, 0, rows)
        buffers = [self._create_row_buffer(t, shared, rows) for t in inside]
        axes, step = self._fused_prefix()
        # Threads pay only from a certain amount of work per row; the estimate counts expensive
        # functions as several elements.
        work = sum(
            estimated_product(t.shape[shared:]) * element_cost(_body_exprs(t)) for t in self.stages
        )
        work += estimated_product(self._reduction_extents())
        stages = [substitute_statement(s, step) for s in self.emit_row_stages()]
        if self.row is not None:
            axes, stages = _block_rows(axes, self.row, rows, stages)
        body = wrap_in_allocations(flatten_seq(*stages), buffers)
        return parallel_outer_loops(axes, work * rows, body)

    def _rows_per_stage(self, shared: int) -> int:
        """Return the number of rows that a stage processes before the next stage: up to
        ROWS_PER_STAGE, limited by each core's share and by L1.
        """
        if len(self.stages) < 2 or not any(map(_is_reduction, self.stages)):
            return 1
        size = sum(estimated_product(t.shape[shared:]) * dt.itemsize(t.dtype) for t in self.stages)
        size += sum(
            estimated_product(self._reduction_extents()) * dt.itemsize(t.dtype)
            for t in {i for t in self.stages for i in input_tensors(t)} - set(self.stages)
        )
        count = estimated_product([a.extent for a in self.prefix]) // self.target.cores
        # Half of L1: the other half holds what the rows read.
        near = cache_levels(self.target)[0].size // 2
        return max(1, min(ROWS_PER_STAGE, count, near // max(size, 1)))

    def _fused_prefix(self) -> tuple[list[LoopAxis], dict[Var, PrimExpr]]:
        """Return the shared axes, fused as far as every access stays affine, and the substitution
        of the old variables.
        """
        indices: list[PrimExpr] = []
        values: list[PrimExpr] = []
        for tensor in self.stages:
            op = tensor.op
            assert isinstance(op, ComputeOp)
            _, names = self.stage_axes(tensor)
            body = op.body[tensor.value_index]
            indices.append(self.flat_element(tensor, [names[a.var] for a in op.axis])[1])
            values.append(
                self.replace_loads(body.source if isinstance(body, Reduce) else body, names)
            )
        return fuse_axes(self.prefix, NestAccesses(indices, values), self.analyzer)

    def _reuse_output_buffers(self) -> None:
        """Alias an intermediate to the output that overwrites it element by element."""
        shared_outputs: set[Tensor] = set()
        for n, tensor in enumerate(self.stages):
            readers = [t for t in self.stages[n + 1 :] if tensor in input_tensors(t)]
            last = readers[-1] if readers else tensor
            free = (
                tensor not in self.outputs and last in self.outputs and last not in shared_outputs
            )
            free = free and not last.is_part
            if free and _can_overwrite(last, tensor):
                shared_outputs.add(last)
                self.map.buffers[tensor] = self.map.buffers[last]

    def _reduction_extents(self) -> list[PrimExpr]:
        ops = [t.op for t in self.stages if isinstance(t.op, ComputeOp)]
        longest = max(
            (op.reduce_axis for op in ops),
            key=lambda r: estimated_product([a.extent for a in r]),
            default=(),
        )
        return [a.extent for a in longest]

    def _create_row_buffer(self, tensor: Tensor, shared: int, rows: int) -> Buffer:
        several = () if self.row is None else (const(rows),)
        shape = (*several, *(tensor.shape[shared:] or (const(1),)))
        small = all(isinstance(d, IntImm) for d in shape)
        fits = small and estimated_product(shape) * dt.itemsize(tensor.dtype) <= MAX_ROW_STACK_BYTES
        buffer = self.map.declare(tensor, "local" if fits else "global").with_fields(shape=shape)
        self.map.buffers[tensor] = buffer
        return buffer

    def emit_sequential(self) -> Stmt:
        """Emit the stages one after the other, with complete intermediates."""
        statements: list[Stmt] = []
        buffers: list[Buffer] = []
        for group in group_by_operation(self.stages):
            for tensor in group:
                if tensor not in self.map.buffers:
                    buffers.append(self.map.declare(tensor))
            op = group[0].op
            body = op.body[0] if isinstance(op, ComputeOp) else None
            if isinstance(op, ExternOp):
                statements.append(create_extern_stage(op, group, self.map))
            elif isinstance(body, Reduce) and not body.kind:
                statements.append(self.emit_tuple_reduction(group, body))
            else:
                statements.extend(self.emit_stage(t) for t in group)
        return wrap_in_allocations(flatten_seq(*statements), buffers)

    def emit_kernel(self) -> Stmt:
        """Emit the body of the function."""
        shared = num_shared_axes(self.stages) if len(self.stages) > 1 else 0
        if shared == 0:
            return self.emit_sequential()
        return self.emit_rows(shared)


def _is_reduction(tensor: Tensor) -> bool:
    return isinstance(tensor.op, ComputeOp) and bool(tensor.op.reduce_axis)


def _block_rows(
    axes: Sequence[LoopAxis], row: Var, rows: int, stages: Sequence[Stmt]
) -> tuple[list[LoopAxis], list[Stmt]]:
    """Return loops over blocks of rows, with a loop over the block's rows around every stage."""
    *outer, last = axes
    group = LoopAxis(Var("rows"), simplify((last.extent + (rows - 1)) // rows))
    is_even = isinstance(last.extent, IntImm) and last.extent.value % rows == 0
    row_count = const(rows) if is_even else minimum(const(rows), last.extent - group.var * rows)
    step: dict[Var, PrimExpr] = {last.var: group.var * rows + row}
    row_loops = [
        For(row, const(0), row_count, ForKind.SERIAL, substitute_statement(s, step)) for s in stages
    ]
    return [*outer, group], list(row_loops)


def _body_exprs(tensor: Tensor) -> tuple[PrimExpr, ...]:
    return tensor.op.body if isinstance(tensor.op, ComputeOp) else ()


def _can_overwrite(output: Tensor, tensor: Tensor) -> bool:
    """Return whether each output element reads only the element of the tensor at its own index."""
    op = output.op
    assert isinstance(op, ComputeOp)
    if output.dtype != tensor.dtype or len(output.shape) != len(tensor.shape) or op.reduce_axis:
        return False
    axes = [a.var for a in op.axis]
    reads = [e for e in te.tensor_loads(op) if e.producer is tensor]
    in_place = all(i is a for e in reads for i, a in zip(e.indices, axes, strict=True))
    return in_place and all(map(prove_equal, output.shape, tensor.shape))


def num_matching_leading_indices(
    consumer: Tensor, producer: Tensor, indices: Sequence[PrimExpr], limit: int
) -> int:
    """Return how many leading indices of a read are the consumer's axes in the same positions."""
    assert isinstance(consumer.op, ComputeOp)
    count = 0
    for axis, index, dim in zip(consumer.op.axis, indices, producer.shape, strict=False):
        unit = is_const(axis.extent, 1) and is_const(index, 0)
        if count >= limit or not (index is axis.var or unit) or not prove_equal(axis.extent, dim):
            break
        count += 1
    return count


def _has_custom_reducer(op: ComputeOp) -> bool:
    """Return whether a computation is a reduction with a user-defined reducer, which has a nest of
    its own.
    """
    return isinstance(op.body[0], Reduce) and not op.body[0].kind


def num_shared_axes(stages: Sequence[Tensor]) -> int:
    """Return the number of leading axes that all stages share; one less where the last one should
    be vectorised.
    """
    if any(not isinstance(t.op, ComputeOp) or _has_custom_reducer(t.op) for t in stages):
        return 0
    inside = set(stages)
    last = stages[-1]
    limit = min(t.ndim for t in stages)
    for tensor in stages:
        op = tensor.op
        assert isinstance(op, ComputeOp)
        limit = num_matching_leading_indices(tensor, last, [a.var for a in op.axis], limit)
        for load in te.tensor_loads(op):
            if load.producer in inside:
                limit = num_matching_leading_indices(tensor, load.producer, load.indices, limit)
    reductions = [t for t in stages if isinstance(t.op, ComputeOp) and t.op.reduce_axis]
    if not reductions:
        # a plane of a stored stage at a time: what picks its elements is found once for all rows
        planes = min(max(t.ndim - 2, 0) for t in stages)
        return min(limit, planes) if any(map(is_stored, stages)) else 0
    # Axes are shared only if no stage reads another one at other indices of them: then a row is
    # independent of all other rows.
    return (
        limit
        if all(map(reduces_innermost_axis, reductions))
        else min(limit, min(t.ndim for t in reductions) - 1)
    )


def schedule_default(
    inputs: list[Tensor], outputs: list[Tensor], target: Target, name: str
) -> PrimFunc:
    """Build the function of a group by the default loop nests."""
    distinct = copy_repeated_outputs(outputs)
    chosen = inline_cheap_stages(distinct)
    kernel = _DefaultKernel(inputs, chosen, target)
    return PrimFunc(
        kernel.params, kernel.emit_kernel(), {"global_symbol": name, "num_outputs": len(outputs)}
    )


FAMILY = Family(
    name="default",
    accepts=lambda anchor, target: True,
    unscheduled_reason=(
        "the stages of a row share its loops; registers are transposed, for which no step exists"
    ),
    build_unscheduled=lambda inputs, outputs, target, name, _: schedule_default(
        inputs, outputs, target, name
    ),
    writes_strided_rows=True,
)
"""Fallback family of all other groups."""
