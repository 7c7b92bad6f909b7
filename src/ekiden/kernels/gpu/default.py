"""The default rule for devices of many threads: every element of a computation has a thread.

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
    ROW_THREADS,
    THREADS,
    Nest,
    launch,
    threads_of,
)
from ekiden.kernels.gpu.reduction import row_of
from ekiden.kernels.gpu.row_groups import build_joined, is_joined, runs_of
from ekiden.kernels.gpu.scan import scan_stage
from ekiden.kernels.gpu.vector_access import coordinates
from ekiden.kernels.prim_builder import product
from ekiden.kernels.stages import chosen_stages, distinct_outputs, stages_of
from ekiden.target import Target
from ekiden.te.inline import inputs_of
from ekiden.te.prim_func import BufferMap, allocated, extern_stage, stage_block, whole_operations
from ekiden.te.tensor import ComputeOp, ExternOp, Tensor
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, LetStmt, PrimFunc, SeqStmt, Stmt
from ekiden.tir.visitor import ExprRewriter, is_nothing, rename, sequence, walk
from ekiden.tir.visitor import substitute as substitute_statement


def schedule_threads(
    inputs: list[Tensor], outputs: list[Tensor], target: Target, name: str
) -> PrimFunc:
    """Build the default kernels for kinds of targets that have threads."""
    chosen = chosen_stages(distinct_outputs(outputs))
    buffers = BufferMap()
    params = tuple(buffers.declare(t) for t in (*inputs, *chosen))
    groups = whole_operations(stages_of(chosen))
    intermediates = [t for group in groups for t in group if t not in buffers.buffers]
    for t in intermediates:
        buffers.declare(t)
    statements = []
    for run in runs_of(groups, target):
        if is_joined(run, target):
            body, inside = build_joined(
                run, buffers, _private_tensors(intermediates, run, groups), target
            )
            intermediates = [t for t in intermediates if t not in inside]
            statements.append(body)
            continue
        (group,) = run
        op = group[0].op
        if isinstance(op, ComputeOp):
            statements.append(_stage(op, group, buffers, target))
        elif isinstance(op, ExternOp):
            scan = scan_stage(op, group, buffers, target)
            statements.append(scan or _bound_statements(extern_stage(op, group, buffers)))
    attrs = {"global_symbol": name, "num_outputs": len(outputs)}
    return PrimFunc(
        params, allocated(sequence(*statements), [buffers.buffers[t] for t in intermediates]), attrs
    )


def _private_tensors(
    intermediates: Sequence[Tensor],
    run: Sequence[Sequence[Tensor]],
    groups: Sequence[Sequence[Tensor]],
) -> set[Tensor]:
    """Return the tensors that operations of a run compute and no other operation reads."""
    inside = {t for group in run for t in group}
    read = {t for group in groups if group not in run for t in inputs_of(group[0])}
    return {t for t in intermediates if t in inside and t not in read}


def _stage(op: ComputeOp, group: Sequence[Tensor], buffers: BufferMap, target: Target) -> Stmt:
    """Return the launch of a computation."""
    row = row_of(op, group[0], buffers, target) if len(group) == 1 else None
    if row is None:
        return _bound_block(stage_block(op, group, buffers), target)
    index, extents = Var("index"), [a.extent for a in op.axis]
    count = product(extents)
    at = dict(zip((a.var for a in op.axis), coordinates(index, extents), strict=True))
    return launch(index, count, threads_of(count, target), substitute_statement(row, at))


def _bound_block(nest: Stmt, target: Target) -> Stmt:
    """Bind a computation's loops: the spatial ones become threads, the others stay inside."""
    index = Var("index")
    body, count, lanes = Nest.of(nest).part(index, (), target)
    # Where threads run one after the other with vectors, a block needs only as many as there are.
    alone = lanes > 1 and target.thread_warp_size == 1
    return launch(index, count, threads_of(count, target) if alone else THREADS, body)


def _bound_statements(body: Stmt) -> Stmt:
    """Parallel loops become threads; what stands outside of them runs on one thread, as much of it
    in one launch as follows without such a loop."""
    if is_nothing(body):
        return body
    if not _has_parallel_loop(body):
        return _launched(Var("index"), convert(1), 1, body)
    match body:
        case SeqStmt():
            groups = groupby(body.seq, _has_parallel_loop)
            groups_of_stmts = [list(g) if rows else [sequence(*g)] for rows, g in groups]
            return sequence(*(_bound_statements(s) for group in groups_of_stmts for s in group))
        case Allocate():  # several launches have it: memory of the device
            global_buffer = body.buffer.with_fields(scope="global")
            inner = rename(body.body, {}, {body.buffer: global_buffer})
            return Allocate(global_buffer, _bound_statements(inner))
        case LetStmt():
            return body.with_fields(body=_bound_statements(body.body))
        # The caller has split sequences, so this is the outermost parallel loop.
        case For() if _is_parallel_loop(body):
            return _launched(body.loop_var, body.extent, ROW_THREADS, body.body)
    return _launched(Var("index"), convert(1), 1, body)


def _is_parallel_loop(s: Stmt) -> bool:
    """Return whether a statement is a loop whose iterations are independent."""
    return isinstance(s, For) and s.kind is ForKind.PARALLEL and is_const(s.min, 0)


def _has_parallel_loop(s: Stmt) -> bool:
    """Return whether a statement contains a parallel loop."""
    return any(map(_is_parallel_loop, walk(s)))


def _launched(row: Var, count: PrimExpr, threads: int, body: Stmt) -> Stmt:
    """Return the launch of a body for each row."""
    workspaces = _Workspaces(row, count)
    launched = launch(row, count, threads, workspaces.visit(body))
    return allocated(launched, list(workspaces.moved.values()))


class _Workspaces(ExprRewriter):
    """Rewriter that moves memory that no thread can have by itself into one buffer for all rows.

    for i in parallel(n): t = alloc(m); .. t[k]   ->   t = alloc(n, m); for i in ..: .. t[i, k]
    """

    def __init__(self, row: Var, count: PrimExpr) -> None:
        super().__init__(self._load)
        self._row, self._count = row, count
        self._inside: set[Var] = {row}
        self.moved: dict[Buffer, Buffer] = {}

    def visit_allocate(self, stmt: Allocate) -> Stmt:
        """Move a buffer that is too large, or of a dynamic size, before the row begins."""
        buffer = stmt.buffer
        size = simplify(product(buffer.shape) * dt.itemsize(buffer.dtype))
        is_own = isinstance(size, IntImm) and size.value <= MAX_LOCAL_BYTES
        if is_own or buffer.scope != "global" or not self._inside.isdisjoint(free_vars(size)):
            return super().visit_allocate(stmt)
        if buffer not in self.moved:  # several parts of a row may have it, one after the other
            self.moved[buffer] = buffer.with_fields(shape=(self._count, *buffer.shape))
        return self.visit(stmt.body)

    def visit_for(self, stmt: For) -> Stmt:
        """Record the loop variable: a size may not depend on it."""
        self._inside.add(stmt.loop_var)
        return super().visit_for(stmt)

    def visit_let(self, stmt: LetStmt) -> Stmt:
        """Record the variable, likewise."""
        self._inside.add(stmt.var)
        return super().visit_let(stmt)

    def _load(self, e: PrimExpr) -> PrimExpr:
        if isinstance(e, BufferLoad) and e.buffer in self.moved:
            return e.with_fields(buffer=self.moved[e.buffer], indices=self._row_indices(e.indices))
        return e

    def _row_indices(self, indices: Sequence[PrimExpr]) -> tuple[PrimExpr, ...]:
        return (self._row, *indices)

    def visit_store(self, stmt: BufferStore) -> Stmt:
        """Redirect a store to the row's slice."""
        store = super().visit_store(stmt)
        assert isinstance(store, BufferStore)
        if store.buffer not in self.moved:
            return store
        indices = self._row_indices(store.indices)
        return store.with_fields(buffer=self.moved[store.buffer], indices=indices)


FAMILY = Family(
    name="threads",
    on_threads=True,
    why=(
        "each computation is a launch of its own, with statements of extern operations among "
        "them, which have no blocks to bind"
    ),
    accepts=lambda anchor, target: False,
    build=lambda inputs, outputs, target, name, _: schedule_threads(inputs, outputs, target, name),
)
"""What no other family takes on devices of many threads."""
