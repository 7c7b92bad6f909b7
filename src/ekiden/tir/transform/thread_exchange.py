"""Refuse threads that exchange values through shared memory where they run one after another.

    for tx in T.thread_binding(16):          thread 0 would read s[15] before thread 15 stores it
        s[tx] = a[tx]
        b[tx] = s[15 - tx]

A device's threads wait between the two statements (`ThreadSync`). On a processor the loop over
threads is serial, so that each thread may only read what it has stored itself. That is proved per
buffer and axis of indices: the distance between what one thread loads and stores is less than the
distance between the elements of neighbouring threads.
"""

from __future__ import annotations

from collections.abc import Iterator

from ekiden.arith import Analyzer
from ekiden.ir.prim import IntImm, PrimExpr, Var
from ekiden.ir.prim_visitor import free_vars, substitute
from ekiden.ir.prim_visitor import post_order as post_order_exprs
from ekiden.ir.range import Range
from ekiden.runtime.errors import CompileError
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import BufferStore, For, PrimFunc, Stmt
from ekiden.tir.transform.thread_group import thread_axis_of
from ekiden.tir.transform.thread_sync import SHARED_SCOPES
from ekiden.tir.visitor import pre_order_stmts, stmt_exprs

Indices = tuple[PrimExpr, ...]


def refuse_thread_exchange(func: PrimFunc) -> PrimFunc:
    """Return the function unchanged.

    Raises CompileError where a thread may load an element of shared memory that another thread of
    its block stores, since no barrier separates threads that run one after another.
    """
    for stmt in pre_order_stmts(func.body):
        if isinstance(stmt, For) and thread_axis_of(stmt).startswith("threadIdx"):
            buffer = _exchanged_buffer(stmt)
            if buffer is not None:
                raise CompileError(
                    f"build '{func.name}': threads of loop {stmt.loop_var.name!r} exchange values"
                    f" through {buffer.name!r} and would wait for each other, and a processor runs"
                    " them one after another: build it for a device"
                )
    return func


def _exchanged_buffer(loop: For) -> Buffer | None:
    """Return a shared buffer of which an iteration of the loop may load what another stores."""
    stores: dict[Buffer, list[Indices]] = {}
    for stmt in pre_order_stmts(loop.body):
        if isinstance(stmt, BufferStore) and stmt.buffer.scope in SHARED_SCOPES:
            stores.setdefault(stmt.buffer, []).append(stmt.indices)
    if not stores:
        return None
    analyzer = _bind_loops(loop)
    for buffer, indices in _shared_loads(loop.body):
        for stored in stores.get(buffer, ()):
            if not _is_private(loop.loop_var, stored, indices, analyzer):
                return buffer
    return None


def _shared_loads(body: Stmt) -> Iterator[tuple[Buffer, Indices]]:
    """Yield the loads of shared memory."""
    for stmt in pre_order_stmts(body):
        for value in stmt_exprs(stmt):
            for expr in post_order_exprs(value):
                if isinstance(expr, BufferLoad) and expr.buffer.scope in SHARED_SCOPES:
                    yield expr.buffer, expr.indices


def _bind_loops(loop: For) -> Analyzer:
    """Return an analyzer that knows the ranges of a loop and those inside."""
    analyzer = Analyzer()
    for stmt in pre_order_stmts(loop):
        if isinstance(stmt, For):
            analyzer.bind(stmt.loop_var, Range.from_min_extent(stmt.min, stmt.extent))
    return analyzer


def _is_private(thread: Var, stored: Indices, loaded: Indices, analyzer: Analyzer) -> bool:
    """Return whether the elements that a thread loads are none that another thread stores.

    Elements that no thread's number selects count as private: all threads store them, so that the
    last value a thread sees is its own.
    """
    if not any(thread in free_vars(index) for index in (*stored, *loaded)):
        return True
    return any(
        _separates_threads(thread, store, load, analyzer)
        for store, load in zip(stored, loaded, strict=True)
    )


def _separates_threads(thread: Var, store: PrimExpr, load: PrimExpr, analyzer: Analyzer) -> bool:
    """Return whether an axis's indices of neighbouring threads are farther apart than a thread's
    store and load.
    """
    step = analyzer.simplify(substitute(store, {thread: thread + 1}) - store)
    distance = analyzer.simplify(load - store)
    if not isinstance(step, IntImm) or thread in free_vars(distance):
        return False
    bound = analyzer.const_int_bound(distance)
    return max(abs(bound.min_value), abs(bound.max_value)) < abs(step.value)


__all__ = ["refuse_thread_exchange"]
