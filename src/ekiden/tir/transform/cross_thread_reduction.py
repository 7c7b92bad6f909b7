"""Cross-thread reductions: each thread reduces its part, then the threads combine their results.

    for i in thread_binding(n, "blockIdx.x"):      for i in thread_binding(n, "blockIdx.x"):
        for k in thread_binding(64,                    for k in thread_binding(64, "threadIdx.x"):
                                "threadIdx.x"):            own = 0
            with block("b"):                  ->           if k < m: own = own + a[i, k]
                where(k < m)                               parts[k] = own
                with init(): b[i] = 0                      ... (see thread_tree)
                b[i] = b[i] + a[i, k]                      if k == 0: b[i] = parts[0]

Serial loops that the block reduces over run in each thread. Other blocks in the reduction's loops,
such as an rfactor's partial sums, run before the block as they did. All threads of a block reach
every barrier: the predicate guards what is added and stored, never a barrier. TVM:
LowerCrossThreadReduction, without the detour over T.tvm_thread_allreduce (thread_allreduce.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from ekiden.ir.prim import PrimExpr, Var, const, is_const
from ekiden.ir.prim_visitor import free_vars
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.alpha_renaming import distinct
from ekiden.tir.expr import Buffer
from ekiden.tir.predicates import init_conditions, join_conjuncts
from ekiden.tir.reduction import (
    DecomposedReduction,
    Elements,
    match_reduction,
    substitute_iterators,
)
from ekiden.tir.stmt import (
    Allocate,
    BlockRealize,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    IterKind,
    PrimFunc,
    SeqStmt,
    Stmt,
    seq,
)
from ekiden.tir.transform.thread_group import group_threads, kernel_thread_axes, thread_axis_of
from ekiden.tir.transform.tree_reduction import element_loads
from ekiden.tir.visitor import StmtMutator, pre_order_stmts

_ZERO_INDEX = (const(0),)


@dataclass(frozen=True, slots=True)
class _ThreadReductionNest:
    """The statements from the outermost loop that a block reduces over to the block, which is last
    in each of them.
    """

    chain: tuple[Stmt, ...]
    realize: BlockRealize
    reduced: tuple[For, ...]

    @staticmethod
    def match(first: For) -> _ThreadReductionNest | None:
        """Return the nest that begins at a loop if threads reduce in it, else None."""
        chain: list[Stmt] = []
        stmt: Stmt = first
        while not isinstance(stmt, BlockRealize):
            chain.append(stmt)
            if isinstance(stmt, (For, Allocate)):
                stmt = stmt.body
            elif isinstance(stmt, SeqStmt):
                stmt = stmt.seq[-1]
            else:
                return None
        used = _reduction_loop_vars(stmt)
        reduced = tuple(s for s in chain if isinstance(s, For) and s.loop_var in used)
        if stmt.block.init is None or first not in reduced or not any(map(thread_axis_of, reduced)):
            return None
        return _ThreadReductionNest(tuple(chain), stmt, reduced)


def _reduction_loop_vars(realize: BlockRealize) -> set[Var]:
    """Return the variables of the loops that a block reduces over."""
    pairs = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    return set(free_vars(*(v for i, v in pairs if i.kind is IterKind.REDUCE)))


class _CrossThreadReductionLowerer(StmtMutator):
    def __init__(self, func: PrimFunc, target: Target | None) -> None:
        self._name, self._target = func.name, target
        self._results = frozenset(func.buffers)
        self._enclosing_thread_loops: list[For] = []
        """Thread loops around the current statement."""
        self._thread_axes: set[str] = set()
        """Thread axes of the kernel within a block."""

    def visit_for(self, stmt: For) -> Stmt:
        """Lower a reduction over threads at its outermost loop; track loops over threads."""
        nest, axis = _ThreadReductionNest.match(stmt), thread_axis_of(stmt)
        # A kernel begins: its barriers wait for threads of all its axes, not of this nest alone.
        if not self._enclosing_thread_loops and (axis or nest is not None):
            self._thread_axes = kernel_thread_axes(stmt)
        if nest is not None:
            return self._lower_nest(nest)
        if not axis:
            return super().visit_for(stmt)
        self._enclosing_thread_loops.append(stmt)
        visited = super().visit_for(stmt)
        self._enclosing_thread_loops.pop()
        return visited

    def visit_realize(self, stmt: BlockRealize) -> Stmt:
        """Refuse a block that reduces over threads outside a recognised nest."""
        used = _reduction_loop_vars(stmt)
        for loop in self._enclosing_thread_loops:
            if stmt.block.init is not None and loop.loop_var in used:
                self._refuse(
                    stmt,
                    f"other statements follow it in the loop of {thread_axis_of(loop)}, whose steps"
                    " are parts of its sum: compute them elsewhere",
                )
        return super().visit_realize(stmt)

    def _refuse(self, realize: BlockRealize, why: str) -> NoReturn:
        raise CompileError(
            f"{self._name!r}: block {realize.block.name!r} reduces over threads: {why}"
        )

    def _lower_nest(self, nest: _ThreadReductionNest) -> Stmt:
        """Emit a nest as partial reductions of each thread (partial = identity; partial =
        combine(partial, term)), their combination across threads, and the store.
        """
        realize = nest.realize
        reduction = match_reduction(realize.block)
        if reduction is None:
            self._refuse(
                realize,
                "its update is no sum, product, minimum or maximum, nor a reducer of te's",
            )
        threads, outer = self._split_thread_loops(nest)
        values = {
            i.var: v for i, v in zip(realize.block.iter_vars, realize.iter_values, strict=True)
        }
        elements_of_result, starts, initial, terms = substitute_iterators(reduction, values)
        stored_where = self._store_conditions(nest)
        partials = [
            Buffer(f"own_{b.name}", (const(1),), b.dtype, "local") for b, _ in elements_of_result
        ]
        own_elements: Elements = [(b, _ZERO_INDEX) for b in partials]
        step = reduction.combine(own_elements, element_loads(partials), terms)
        if not is_const(realize.predicate, True):
            step = IfThenElse(realize.predicate, step)
        # Statements before the block are lowered under the hoisted loops, inside which they now
        # run.
        self._enclosing_thread_loops += [*outer, *threads]
        steps = self._rebuild_serial_loops(nest, [*outer, *threads], step)
        team = group_threads(
            self._enclosing_thread_loops,
            [loop.loop_var for loop in nest.reduced],
            self._thread_axes,
            self._target,
            lambda why: self._refuse(realize, why),
        )
        # A value that is read later in the kernel is stored by every thread and read back by the
        # same thread, so that no barrier is needed.
        is_result = all(b in self._results for b, _ in elements_of_result)
        combined = team.emit_combination(reduction, partials, everywhere=not is_result)
        del self._enclosing_thread_loops[
            len(self._enclosing_thread_loops) - len(outer) - len(threads) :
        ]
        store = _emit_result_stores(reduction, elements_of_result, combined.values, initial)
        who = [team.thread.equal(0)] if is_result else []
        condition = join_conjuncts([*who, *stored_where])
        if not is_const(condition, True):
            store = IfThenElse(condition, store)
        # Each thread starts from the identity element, not from the initial value, which must count
        # once.
        begin = [BufferStore(b, e, _ZERO_INDEX) for b, e in zip(partials, starts, strict=True)]
        body: Stmt = seq(*begin, steps, *combined.statements, store)
        # Inside the loops over threads: one copy per thread.
        for buffer in (*partials, *combined.local):
            body = Allocate(buffer, body)
        for loop in reversed(threads):
            body = loop.with_fields(body=body)
        # Outside the loops over threads, inside those over blocks: one copy per thread block.
        for buffer in combined.shared:
            body = Allocate(buffer, body)
        for loop in reversed(outer):
            body = loop.with_fields(body=body)
        if self._enclosing_thread_loops or outer:
            return body
        # Memory of a block stands inside of a kernel, which the outermost loop over threads is.
        return For(
            Var("block"), const(0), const(1), ForKind.THREAD_BINDING, body, _ONE_BLOCK_ANNOTATIONS
        )

    def _split_thread_loops(self, nest: _ThreadReductionNest) -> tuple[list[For], list[For]]:
        """Return the loops over threads of a block, and over blocks, that move to the front."""
        threads: list[For] = []
        outer: list[For] = []
        realize = nest.realize
        inside: set[Var] = set()
        siblings = False
        for s in nest.chain:
            if isinstance(s, SeqStmt):
                siblings = True
            if not isinstance(s, For):
                continue
            axis, name = thread_axis_of(s), s.loop_var.name
            if not axis:
                if s not in nest.reduced and not is_const(s.extent, 1):
                    self._refuse(
                        realize,
                        f"loop {name!r}, which it does not reduce over, lies inside of its sum:"
                        " reorder it outside",
                    )
                inside.add(s.loop_var)
                continue
            if siblings and inside:
                self._refuse(
                    realize,
                    f"other statements stand between {axis} and the loops of its sum around it:"
                    " put the loop over threads outermost",
                )
            if inside.intersection(free_vars(s.extent, s.min)):
                self._refuse(realize, f"the extent of {axis} changes with the loops of its sum")
            (outer if axis.startswith("blockIdx") else threads).append(s)
        for s in nest.reduced:
            if thread_axis_of(s).startswith("blockIdx"):
                self._refuse(
                    realize,
                    f"blocks of {thread_axis_of(s)} do not wait for each other; see rfactor",
                )
        return threads, outer

    def _store_conditions(self, nest: _ThreadReductionNest) -> list[PrimExpr]:
        """Return the conditions under which there is an element to store."""
        reduced = {s.loop_var for s in nest.reduced}
        conditions: list[PrimExpr] = []
        for condition in init_conditions(nest.realize):
            used = set(free_vars(condition))
            # Conditions on the other loops decide whether the element exists; those on reduced
            # loops guard terms, which the predicate of the step does.
            if not used & reduced:
                conditions.append(condition)
            elif used - reduced - _symbolic_size_vars(condition, nest):
                self._refuse(
                    nest.realize, "its condition mixes loops that it reduces over with others"
                )
        return conditions

    def _rebuild_serial_loops(
        self, nest: _ThreadReductionNest, hoisted: Sequence[For], step: Stmt
    ) -> Stmt:
        """Return the serial loops and the statements before the block, with the step in the block's
        place.
        """
        body = step
        for s in reversed(nest.chain):
            if isinstance(s, SeqStmt):
                body = seq(*(self.visit(sibling) for sibling in s.seq[:-1]), body)
            elif isinstance(s, Allocate) or s not in hoisted:
                assert isinstance(s, (Allocate, For))
                body = s.with_fields(body=body)
        return body


_ONE_BLOCK_ANNOTATIONS = {"thread": "blockIdx.x"}


def _symbolic_size_vars(condition: PrimExpr, nest: _ThreadReductionNest) -> set[Var]:
    """Return the variables of a condition that no loop of the nest binds and no iterator depends
    on: sizes of tensors."""
    bound = set(free_vars(*nest.realize.iter_values))
    return {v for v in free_vars(condition) if v not in bound}


def _emit_result_stores(
    reduction: DecomposedReduction,
    elements_of_result: Elements,
    values: Sequence[PrimExpr],
    initial: Sequence[PrimExpr],
) -> Stmt:
    """Return the stores of the results, combined with the initial values where those are not
    identity elements.
    """
    if initial:
        return reduction.combine(elements_of_result, initial, values)
    pairs = zip(elements_of_result, values, strict=True)
    return seq(*(BufferStore(b, value, indices) for (b, indices), value in pairs))


def lower_cross_thread_reduction(func: PrimFunc, target: Target | None = None) -> PrimFunc:
    """Return the function with its reductions over threads as code of each thread.

    Threads exchange registers by warp shuffles where the target (default: the current one) supports
    them. Raises CompileError, with the block's name, for what threads cannot reduce.
    """
    if not _has_thread_reduction(func.body):
        return func
    lowering = _CrossThreadReductionLowerer(func, target or Target.current())
    return distinct(func.with_fields(body=lowering.visit(func.body)))


def _has_thread_reduction(body: Stmt) -> bool:
    """Return whether any block reduces over threads."""
    threads: set[Var] = set()
    reduced: set[Var] = set()
    for s in pre_order_stmts(body):
        if isinstance(s, For) and thread_axis_of(s):
            threads.add(s.loop_var)
        elif isinstance(s, BlockRealize) and s.block.init is not None:
            reduced |= _reduction_loop_vars(s)
    return not threads.isdisjoint(reduced)


__all__ = ["lower_cross_thread_reduction"]
