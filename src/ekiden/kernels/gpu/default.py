"""Default kernels of GPUs: one thread per element of each computation.

    for i, j: block                         for b in blockIdx.x, t in threadIdx.x:
      for k: reduce                  ->       if b * 256 + t < n * m:
                                                block at (flat // m, flat % m), for k inside

Computations that are not inlined follow one another, each a launch of its own, but for those that
need of each other what stands in their own row (`row_groups`); statements of an
extern operation run by rows where they have a parallel loop, else on one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.prim import IntImm, PrimExpr, Var, convert, is_const
from ekiden.ir.prim_visitor import free_vars
from ekiden.kernels.family import Family
from ekiden.kernels.gpu.launch import (
    MAX_LOCAL_BYTES,
    ROW_LOOP_THREADS_PER_BLOCK,
    THREADS_PER_BLOCK,
    ComputationNest,
    emit_launch,
    threads_per_block,
)
from ekiden.kernels.gpu.reduction import emit_vector_row
from ekiden.kernels.gpu.row_fusion import emit_fused_launch, group_launches, needs_fused_launch
from ekiden.kernels.gpu.scan import emit_scan_launch
from ekiden.kernels.gpu.vector_access import unravel_index
from ekiden.kernels.prim_builder import product_of_dims
from ekiden.kernels.stages import copy_repeated_outputs, inline_cheap_stages, stages_of
from ekiden.target import Target
from ekiden.te.inline import input_tensors
from ekiden.te.prim_func import (
    TensorBufferMap,
    create_extern_stage,
    create_stage_nest,
    group_by_operation,
    wrap_in_allocations,
)
from ekiden.te.tensor import ComputeOp, ExternOp, Tensor
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, LetStmt, PrimFunc, SeqStmt, Stmt
from ekiden.tir.transform.thread_sync import is_thread_loop
from ekiden.tir.visitor import ExprRewriter, flatten_seq, is_no_op, pre_order_stmts, rename
from ekiden.tir.visitor import substitute as substitute_statement


def build_default_kernels(
    inputs: list[Tensor], outputs: list[Tensor], target: Target, name: str
) -> PrimFunc:
    """Build the default kernels of targets with threads."""
    chosen = inline_cheap_stages(copy_repeated_outputs(outputs))
    buffers = TensorBufferMap()
    params = tuple(buffers.declare(t) for t in (*inputs, *chosen))
    groups = group_by_operation(stages_of(chosen))
    intermediates = [t for group in groups for t in group if t not in buffers.buffers]
    for t in intermediates:
        buffers.declare(t)
    statements = []
    for run in group_launches(groups, target):
        if needs_fused_launch(run, target):
            body, inside = emit_fused_launch(
                run, buffers, _single_reader_tensors(intermediates, run, groups), target
            )
            intermediates = [t for t in intermediates if t not in inside]
            statements.append(body)
            continue
        (group,) = run
        op = group[0].op
        if isinstance(op, ComputeOp):
            statements.append(_emit_launch(op, group, buffers, target))
        elif isinstance(op, ExternOp):
            scan = emit_scan_launch(op, group, buffers, target)
            statements.append(
                scan or _bind_statements_to_threads(create_extern_stage(op, group, buffers))
            )
    attrs = {"global_symbol": name, "num_outputs": len(outputs)}
    return PrimFunc(
        params,
        wrap_in_allocations(flatten_seq(*statements), [buffers.buffers[t] for t in intermediates]),
        attrs,
    )


def _single_reader_tensors(
    intermediates: Sequence[Tensor],
    run: Sequence[Sequence[Tensor]],
    groups: Sequence[Sequence[Tensor]],
) -> set[Tensor]:
    """Return the tensors of a run that are read only by the run's operations."""
    inside = {t for group in run for t in group}
    read = {t for group in groups if group not in run for t in input_tensors(group[0])}
    return {t for t in intermediates if t in inside and t not in read}


def _emit_launch(
    op: ComputeOp, group: Sequence[Tensor], buffers: TensorBufferMap, target: Target
) -> Stmt:
    """Emit the kernel launch of one computation."""
    row = emit_vector_row(op, group[0], buffers, target) if len(group) == 1 else None
    if row is None:
        return _bind_loops_to_threads(create_stage_nest(op, group, buffers), target)
    index, extents = Var("index"), [a.extent for a in op.axis]
    count = product_of_dims(extents)
    indices = dict(zip((a.var for a in op.axis), unravel_index(index, extents), strict=True))
    return emit_launch(
        index, count, threads_per_block(count, target), substitute_statement(row, indices)
    )


def _bind_loops_to_threads(nest: Stmt, target: Target) -> Stmt:
    """Bind a computation's spatial loops to blocks and threads; reduction loops stay serial."""
    index = Var("index")
    body, count, lanes = ComputationNest.from_stage(nest).vector_body(index, (), target)
    # Where threads run one after the other with vectors, a block needs only as many as there are.
    alone = lanes > 1 and target.thread_warp_size == 1
    return emit_launch(
        index, count, threads_per_block(count, target) if alone else THREADS_PER_BLOCK, body
    )


def _bind_statements_to_threads(body: Stmt) -> Stmt:
    """Bind parallel loops to threads; serial statements run on one thread, merged into as few
    launches as possible. Loops that a PrimFunc of the user binds to threads are launches already.
    """
    if is_no_op(body):
        return body
    is_launched = any(map(is_thread_loop, pre_order_stmts(body)))
    if not is_launched and not _has_parallel_loop(body):
        return _emit_row_launch(Var("index"), convert(1), 1, body)
    match body:
        case SeqStmt():
            groups = groupby(body.seq, _has_launch)
            groups_of_stmts = [list(g) if rows else [flatten_seq(*g)] for rows, g in groups]
            return flatten_seq(
                *(_bind_statements_to_threads(s) for group in groups_of_stmts for s in group)
            )
        # Memory of a block or a thread, which SplitHostDevice moves into the launch.
        case Allocate() if is_launched and body.buffer.scope != "global":
            return body
        case Allocate():  # several launches have it: memory of the device
            global_buffer = body.buffer.with_fields(scope="global")
            inner = rename(body.body, {}, {body.buffer: global_buffer})
            return Allocate(global_buffer, _bind_statements_to_threads(inner))
        case LetStmt():
            return body.with_fields(body=_bind_statements_to_threads(body.body))
        # The caller has split sequences, so this is the outermost parallel loop.
        case For() if _is_parallel_loop(body) and not is_launched:
            return _emit_row_launch(
                body.loop_var, body.extent, ROW_LOOP_THREADS_PER_BLOCK, body.body
            )
    if is_launched:
        return body
    return _emit_row_launch(Var("index"), convert(1), 1, body)


def _is_parallel_loop(s: Stmt) -> bool:
    """Return whether a statement is a parallel loop."""
    return isinstance(s, For) and s.kind is ForKind.PARALLEL and is_const(s.min, 0)


def _has_parallel_loop(s: Stmt) -> bool:
    """Return whether a statement contains a parallel loop."""
    return any(map(_is_parallel_loop, pre_order_stmts(s)))


def _has_launch(s: Stmt) -> bool:
    """Return whether a statement contains a loop that is, or will be, bound to threads."""
    return any(_is_parallel_loop(inner) or is_thread_loop(inner) for inner in pre_order_stmts(s))


def _emit_row_launch(row: Var, count: PrimExpr, threads: int, body: Stmt) -> Stmt:
    """Emit the launch of a body for each row, one block per row."""
    workspaces = _WorkspaceRewriter(row, count)
    launched = emit_launch(row, count, threads, workspaces.visit(body))
    return wrap_in_allocations(launched, list(workspaces.workspaces.values()))


class _WorkspaceRewriter(ExprRewriter):
    """Rewriter that moves large or dynamic allocations of threads into one global buffer with a
    slice per row.

    for i in parallel(n): t = alloc(m); .. t[k]   ->   t = alloc(n, m); for i in ..: .. t[i, k]
    """

    def __init__(self, row: Var, count: PrimExpr) -> None:
        super().__init__(self._rewrite_load)
        self._row, self._count = row, count
        self._row_vars: set[Var] = {row}
        self.workspaces: dict[Buffer, Buffer] = {}

    def visit_allocate(self, stmt: Allocate) -> Stmt:
        """Move a large or dynamic allocation to a global workspace."""
        buffer = stmt.buffer
        size = simplify(product_of_dims(buffer.shape) * dt.itemsize(buffer.dtype))
        is_own = isinstance(size, IntImm) and size.value <= MAX_LOCAL_BYTES
        if is_own or buffer.scope != "global" or not self._row_vars.isdisjoint(free_vars(size)):
            return super().visit_allocate(stmt)
        if buffer not in self.workspaces:  # several parts of a row may have it, one after the other
            self.workspaces[buffer] = buffer.with_fields(shape=(self._count, *buffer.shape))
        return self.visit(stmt.body)

    def visit_for(self, stmt: For) -> Stmt:
        """Record the loop variable, which the size of an allocation may not depend on."""
        self._row_vars.add(stmt.loop_var)
        return super().visit_for(stmt)

    def visit_let(self, stmt: LetStmt) -> Stmt:
        """Record the bound variable, which the size of an allocation may not depend on."""
        self._row_vars.add(stmt.var)
        return super().visit_let(stmt)

    def _rewrite_load(self, e: PrimExpr) -> PrimExpr:
        if isinstance(e, BufferLoad) and e.buffer in self.workspaces:
            return e.with_fields(
                buffer=self.workspaces[e.buffer], indices=self._prepend_row(e.indices)
            )
        return e

    def _prepend_row(self, indices: Sequence[PrimExpr]) -> tuple[PrimExpr, ...]:
        return (self._row, *indices)

    def visit_store(self, stmt: BufferStore) -> Stmt:
        """Redirect a store to the row's slice of the workspace."""
        store = super().visit_store(stmt)
        assert isinstance(store, BufferStore)
        if store.buffer not in self.workspaces:
            return store
        indices = self._prepend_row(store.indices)
        return store.with_fields(buffer=self.workspaces[store.buffer], indices=indices)


FAMILY = Family(
    name="threads",
    is_gpu_family=True,
    unscheduled_reason=(
        "each computation is its own launch; extern operations between them have no blocks to bind"
    ),
    accepts=lambda anchor, target: False,
    build_unscheduled=lambda inputs, outputs, target, name, _: build_default_kernels(
        inputs, outputs, target, name
    ),
)
"""Fallback family of targets with threads."""
