"""Loop partitioning: peel the iterations in which a tail condition may fail, so that the main loop
has no condition.

lower_blocks marks the predicates of splits as `likely`. Such conditions, and extents that are
minima, are linear in the enclosing loops. For a loop that decides one, the iterations in which it
holds whatever the inner loops do become a loop without it:

    for i in range((n + 3) // 4):                for i in range(n // 4):
        for j in range(4):                           for j in range(4): s
            if likely(i*4 + j < n): s      ->    if n % 4 > 0:
                                                     for j in range(n % 4): s

For a loop with PARTITION_HINT_ANNOTATION (TVM's) the conditions of `if_then_else` are decided too:
most tiles of a window read no padding, and a condition on a vector is a branch that prevents two
of its readers from sharing loads.

Where the tail has few possible sizes and its loops are to be unrolled, there is a copy per size, so
that registers stay registers: `if n % 4 == 3: .. elif n % 4 == 2: .. elif ..`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import is_

from ekiden.arith import Analyzer
from ekiden.ir.pass_context import LOOP_PARTITION_OPTION, PassContext
from ekiden.ir.prim import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    And,
    IntImm,
    Intrinsic,
    Min,
    PrimExpr,
    Var,
    const,
    fold_binary,
    is_const,
    logical_and,
    maximum,
    minimum,
)
from ekiden.ir.prim_visitor import chain_operands, free_vars, post_order, rewrite
from ekiden.ir.prim_visitor import substitute as substitute_expr
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.alpha_renaming import distinct
from ekiden.tir.expr import BufferLoad
from ekiden.tir.stmt import For, ForKind, IfThenElse, LetStmt, PrimFunc, Stmt
from ekiden.tir.transform.thread_sync import is_barrier
from ekiden.tir.visitor import (
    NO_OP,
    StmtMutator,
    flatten_seq,
    is_no_op,
    pre_order_stmts,
    stmt_exprs,
    substitute,
)

PARTITION_HINT_ANNOTATION = "pragma_loop_partition_hint"
"""Annotation of a loop that is also partitioned by conditions within expressions."""
MAX_TAIL_COPIES = 8
"""Maximum number of tail sizes that get a copy each."""
Decisions = Mapping[PrimExpr, PrimExpr]
"""Replacement of each condition or loop extent that is decided in a part."""


@dataclass(frozen=True, slots=True)
class _LinearBound:
    """The linear bounds of a condition. With s the iteration of a loop: `node` holds for every
    iteration of the inner loops iff s * scale + low > 0, and for none iff s * scale + high <= 0.
    """

    node: PrimExpr
    scale: int
    low: PrimExpr
    high: PrimExpr
    inner: PrimExpr
    """Inner term of a condition `inner < scale * i + high`; it is >= 0 and depends on inner loops
    only.
    """


def _strip_likely(e: PrimExpr) -> PrimExpr | None:
    return e.args[0] if isinstance(e, Intrinsic) and e.op == "likely" else None


def _partition_candidates(root: Stmt, guards: bool = False) -> Iterator[PrimExpr]:
    """Yield conditions marked likely, and extents that are minima; with `guards` conditions of
    if_then_else too.
    """
    for s in pre_order_stmts(root):
        if guards:
            for e in post_order(*stmt_exprs(s)):
                if isinstance(e, Intrinsic) and e.op == "if_then_else":
                    yield from chain_operands(e.args[0], And)
        if isinstance(s, IfThenElse) and (marked := _strip_likely(s.condition)) is not None:
            yield from chain_operands(marked, And)
        elif isinstance(s, For) and isinstance(s.extent, Min):
            yield s.extent


def _slack_expr(e: PrimExpr) -> PrimExpr | None:
    """Return an expression that is > 0 iff a comparison holds, or iff a minimum equals its constant
    side; None for other forms.
    """
    match e:
        case LT(a=a, b=b) if a.dtype == "int64":
            return b - a
        case LE(a=a, b=b) if a.dtype == "int64":
            return b - a + 1
        case GT(a=a, b=b) if a.dtype == "int64":
            return a - b
        case GE(a=a, b=b) if a.dtype == "int64":
            return a - b + 1
        case Min(a=IntImm() as size, b=variable_side) | Min(a=variable_side, b=IntImm() as size):
            return variable_side - (size - 1)
    return None


class _DecisionRewriter(StmtMutator):
    """A mutator that substitutes decisions for conditions and extents."""

    def __init__(self, decisions: Decisions, guards: bool = False) -> None:
        self._decisions = decisions
        self._guards = guards
        self._memo: dict[int, PrimExpr] = {}

    def rewrite_expr(self, expr: PrimExpr) -> PrimExpr:
        """Substitute the decided conditions of if_then_else."""
        if not self._guards:
            return expr
        return rewrite(expr, lambda e: self._decisions.get(e, e), self._memo)

    def visit_if(self, stmt: IfThenElse) -> Stmt:
        """Simplify `if likely(a and b)` by the decisions; a false condition leaves the else branch,
        if any.
        """
        marked = _strip_likely(stmt.condition)
        if marked is None:
            return super().visit_if(stmt)
        undecided: PrimExpr = const(True)
        for conjunct in chain_operands(marked, And):
            undecided = logical_and(undecided, self._decisions.get(conjunct, conjunct))
        otherwise = NO_OP if stmt.else_case is None else self.visit(stmt.else_case)
        if is_const(undecided, 0):
            return otherwise
        inside = self.visit(stmt.then_case)
        if is_const(undecided):
            return inside
        same = undecided is marked or all(
            map(is_, chain_operands(undecided, And), chain_operands(marked, And))
        )
        condition = (
            stmt.condition
            if same and undecided.dtype
            else Intrinsic("likely", (undecided,), "bool")
        )
        else_case = None if is_no_op(otherwise) else otherwise
        return stmt.with_fields(condition=condition, then_case=inside, else_case=else_case)

    def visit_for(self, stmt: For) -> Stmt:
        """Substitute the extent of this part; remove the loop if its body is removed."""
        body = self.visit(stmt.body)
        if is_no_op(body):
            return NO_OP
        extent = self._decisions.get(stmt.extent, stmt.extent)
        return stmt.with_fields(extent=extent, body=body)


class _LoopPartitioner(StmtMutator):
    def __init__(self, cuts_constant: bool) -> None:
        self._partitions_constant_loops = cuts_constant
        self._analyzer = Analyzer()
        self._lanes: set[Var] = set()
        self.has_partitioned = False

    def visit_for(self, stmt: For) -> Stmt:
        """Partition a loop, then the loops inside each part."""
        self._analyzer.bind(stmt.loop_var, stmt.min, stmt.extent)
        if stmt.kind is ForKind.VECTORIZED:
            self._lanes.add(stmt.loop_var)
        # Threads cannot be cut into parts, and bounds are derived for loops that start at 0.
        if stmt.kind is ForKind.THREAD_BINDING or not is_const(stmt.min, 0):
            return super().visit_for(stmt)
        if isinstance(stmt.extent, IntImm) and not self._partitions_constant_loops:
            return super().visit_for(stmt)
        bounds = self._collect_bounds(stmt)
        return self._partition_loop(stmt, bounds) if bounds else super().visit_for(stmt)

    # what a loop decides

    def _collect_bounds(self, loop: For) -> list[_LinearBound]:
        guards = _has_partition_hint(loop)
        if next(_partition_candidates(loop.body, guards), None) is None:
            return []
        # A cut may depend on the thread, and then not all threads come to a barrier of each part.
        if any(map(is_barrier, pre_order_stmts(loop.body))):
            return []
        inside = {s.loop_var: s for s in pre_order_stmts(loop.body) if isinstance(s, For)}
        hidden = {s.var for s in pre_order_stmts(loop.body) if isinstance(s, LetStmt)}
        for (
            inner_loop
        ) in inside.values():  # copies of a loop share its variable: what is here counts
            self._analyzer.bind(inner_loop.loop_var, inner_loop.min, inner_loop.extent)
        candidates = dict.fromkeys(_partition_candidates(loop.body, guards))
        if loop.kind is ForKind.PARALLEL:  # chunks of work: a short last one is as good
            candidates = dict.fromkeys(e for e in candidates if not isinstance(e, Min))
        bounds = (self._match_bound(node, loop, inside, hidden) for node in candidates)
        return [b for b in bounds if b is not None]

    # A condition d > 0, d linear in the loop's step s and in the variables of loops inside: d is
    # lowest and highest at ends of those, so s * scale + low <= d <= s * scale + high, both linear
    # in s. It holds for all inner steps where the left side is > 0, for none where the right is <=
    # 0.
    def _match_bound(
        self, node: PrimExpr, loop: For, inside: Mapping[Var, For], hidden: set[Var]
    ) -> _LinearBound | None:
        difference = _slack_expr(node)
        # The loop may change what memory holds, so a bound computed before it would be stale.
        if difference is None or any(isinstance(e, BufferLoad) for e in post_order(difference)):
            return None
        used = free_vars(difference)
        # Lets inside the loop are bound per iteration: bounds before the loop cannot name them.
        if loop.loop_var not in used or not hidden.isdisjoint(used):
            return None
        if not self._lanes.isdisjoint({*used} - {loop.loop_var}):
            return None  # differs between lanes: a mask, not a loop bound
        # The bound must be linear in the loop variable: then it holds on one interval, found by a
        # division.
        scale = self._analyzer.coefficient(difference, loop.loop_var)
        low = high = start = substitute_expr(difference, {loop.loop_var: const(0)})
        for var in used:
            if var not in inside:
                continue
            ends = self._extremes_over(difference, var, inside[var])
            if ends is None:
                return None
            low, high = substitute_expr(low, {var: ends[0]}), substitute_expr(high, {var: ends[1]})
        simplify = self._analyzer.simplify
        if isinstance(node, Min):  # min(c, y): treat as var < y for all var < c
            size = node.a if isinstance(node.a, IntImm) else node.b
            high = low + (size - 1)
        inner = simplify(high - start)
        return _LinearBound(node, scale, simplify(low), simplify(high), inner) if scale else None

    def _extremes_over(
        self, difference: PrimExpr, var: Var, loop: For
    ) -> tuple[PrimExpr, PrimExpr] | None:
        """Return the values of an inner variable that minimise and maximise the difference."""
        scale = self._analyzer.coefficient(difference, var)
        if scale is None or not isinstance(loop.min, IntImm):
            return None
        extent = loop.extent
        # A minimum is at most its constant side: the assumed range is wider, never narrower.
        if isinstance(extent, Min):
            extent = extent.a if isinstance(extent.a, IntImm) else extent.b
        if not isinstance(extent, IntImm):
            return None
        first, last = loop.min, loop.min + (extent.value - 1)
        return (first, last) if scale >= 0 else (last, first)

    # cutting

    def _partition_loop(self, loop: For, bounds: Sequence[_LinearBound]) -> Stmt:
        """Return [0, begin) and [end, extent) with the conditions, [begin, end) without."""
        factor = self._split_factor(loop, bounds)
        begin, end = self._main_range(loop, bounds, factor)
        written_out = loop.kind in (ForKind.UNROLLED, ForKind.VECTORIZED)
        # An unrolled or vectorised loop needs a constant extent in each part.
        if written_out and not (is_const(begin) and is_const(end)):
            return super().visit_for(loop)
        self.has_partitioned = True
        if loop.kind is ForKind.PARALLEL:
            return self._branch_in_parallel_loop(loop, begin, end, bounds, factor)
        main = self._loop_over_range(loop, begin, end, {b.node: _decided_value(b) for b in bounds})
        before = self._loop_over_range(
            loop, const(0), begin, self._conditions_never_true(bounds, begin - 1, above=True)
        )
        return flatten_seq(before, main, self._tail_of(loop, end, bounds, factor))

    def _branch_in_parallel_loop(
        self,
        loop: For,
        begin: PrimExpr,
        end: PrimExpr,
        bounds: Sequence[_LinearBound],
        factor: int | None,
    ) -> Stmt:
        """Return a parallel loop with a branch inside: it stays one loop, so that the tail runs
        concurrently with the main part.
        """
        step = loop.loop_var
        decided = {b.node: _decided_value(b) for b in bounds}
        main_body = self.visit(
            _DecisionRewriter(decided, _has_partition_hint(loop)).visit(loop.body)
        )
        if factor is None:
            tail_body = self.visit(loop.body)
        else:
            size = self._analyzer.simplify(bounds[0].high % factor)
            tail_body = self._tail_copies(loop, step, bounds, factor, size) or NO_OP
        inside = logical_and(step >= begin if not is_const(begin, 0) else const(True), step < end)
        return loop.with_fields(body=IfThenElse(inside, main_body, tail_body))

    # s * scale + low > 0: for scale > 0 from s = -low // scale + 1 on; for scale < 0 as long as
    # s <= (low - 1) // -scale. All bounds at once: the largest begin, the smallest end.
    def _main_range(
        self, loop: For, bounds: Sequence[_LinearBound], factor: int | None
    ) -> tuple[PrimExpr, PrimExpr]:
        """Return the first iteration for which all bounds hold, and the one after the last."""
        simplify = self._analyzer.simplify
        if factor is not None:
            return const(0), simplify(bounds[0].high // factor)
        begin: PrimExpr = const(0)
        end = loop.extent
        for bound in bounds:
            if bound.scale > 0:
                begin = self._max_of(begin, -bound.low // bound.scale + 1)
            else:
                end = self._min_of(end, (bound.low - 1) // -bound.scale + 1)
        # The parts stay inside the loop, in order, even where the bounds exclude all iterations.
        begin = simplify(self._min_of(begin, loop.extent))
        return begin, simplify(self._max_of(end, begin))

    def _min_of(self, a: PrimExpr, b: PrimExpr) -> PrimExpr:
        if self._analyzer.can_prove(a <= b):
            return a
        return b if self._analyzer.can_prove(b <= a) else minimum(a, b)

    def _max_of(self, a: PrimExpr, b: PrimExpr) -> PrimExpr:
        if self._analyzer.can_prove(a >= b):
            return a
        return b if self._analyzer.can_prove(b >= a) else maximum(a, b)

    def _conditions_never_true(
        self, bounds: Sequence[_LinearBound], step: PrimExpr, above: bool
    ) -> Decisions:
        """Return the conditions that hold for no iteration beyond one; with `above` those that grow
        with the iteration.
        """
        return {
            b.node: const(False)
            for b in bounds
            if (b.scale > 0) == above
            and not isinstance(b.node, Min)
            and self._analyzer.can_prove(step * b.scale + b.high <= 0)
        }

    def _loop_over_range(
        self, loop: For, begin: PrimExpr, end: PrimExpr, decisions: Decisions
    ) -> Stmt:
        """Return the iterations [begin, end), counted from 0, with their inside partitioned."""
        extent = self._analyzer.simplify(end - begin)
        if self._analyzer.can_prove(extent <= 0):
            return NO_OP
        body = _DecisionRewriter(decisions, _has_partition_hint(loop)).visit(loop.body)
        if is_const(extent, 1):
            return self.visit(substitute(body, {loop.loop_var: begin}))
        if is_no_op(body):
            return NO_OP
        self._analyzer.bind(loop.loop_var, const(0), extent)
        if not is_const(begin, 0):
            body = substitute(body, {loop.loop_var: loop.loop_var + begin})
        body = self.visit(body)
        return NO_OP if is_no_op(body) else loop.with_fields(extent=extent, body=body)

    def _tail_of(
        self, loop: For, end: PrimExpr, bounds: Sequence[_LinearBound], factor: int | None
    ) -> Stmt:
        if self._analyzer.can_prove_equal(end, loop.extent):
            return NO_OP
        if factor is None:
            return self._loop_over_range(
                loop, end, loop.extent, self._conditions_never_true(bounds, end, above=False)
            )
        tail_size = self._analyzer.simplify(bounds[0].high % factor)
        if not is_const(tail_size) and (
            factor > MAX_TAIL_COPIES or not _has_unrolled_loop(loop.body)
        ):
            return IfThenElse(tail_size > 0, self._last_iteration(loop, end, bounds, tail_size))
        return self._tail_copies(loop, end, bounds, factor, tail_size) or NO_OP

    def _tail_copies(
        self,
        loop: For,
        step: PrimExpr,
        bounds: Sequence[_LinearBound],
        factor: int,
        tail_size: PrimExpr,
    ) -> Stmt | None:
        """Return the last iteration, with a copy per size that it may have if its loops are
        unrolled.
        """
        if is_const(tail_size) or factor > MAX_TAIL_COPIES or not _has_unrolled_loop(loop.body):
            return self._last_iteration(loop, step, bounds, tail_size)
        chain: Stmt | None = None
        # A tail of 0 elements runs nothing and needs no copy.
        for value in range(1, factor):
            tail = self._last_iteration(loop, step, bounds, const(value))
            chain = IfThenElse(fold_binary(EQ, tail_size, const(value)), tail, chain)
        return chain

    # The common case: a split of n by `factor` leaves the one bound s * factor + inner < n, with
    # inner in [0, factor). Then the whole steps are n // factor, and what is left is known without
    # any comparison: one step of n % factor.
    def _split_factor(self, loop: For, bounds: Sequence[_LinearBound]) -> int | None:
        """Return the factor of the split that all bounds come from, or None: then at most one
        iteration is left, of high % factor elements.
        """
        first = bounds[0]
        factor = -first.scale
        prove_equal = self._analyzer.can_prove_equal
        if factor < 1 or not prove_equal(first.high - first.low, const(factor - 1)):
            return None
        # Where the condition never holds, the loop has no iterations, and high % factor no meaning.
        if self._analyzer.can_prove(first.high < 0):
            return None
        # Only then does the loop have exactly one partial iteration, the last one.
        if not prove_equal(loop.extent, (first.high + (factor - 1)) // factor):
            return None
        # The size of the last step is computed from the first bound alone, so all must agree on it.
        alike = all(
            b.scale == first.scale
            and prove_equal(b.low, first.low)
            and prove_equal(b.high, first.high)
            for b in bounds
        )
        return factor if alike else None

    def _last_iteration(
        self, loop: For, step: PrimExpr, bounds: Sequence[_LinearBound], tail_size: PrimExpr
    ) -> Stmt:
        """Return the iteration after the last full one, which has `tail_size` elements."""
        decisions: dict[PrimExpr, PrimExpr] = {
            b.node: tail_size if isinstance(b.node, Min) else b.inner < tail_size for b in bounds
        }
        body = _DecisionRewriter(decisions, _has_partition_hint(loop)).visit(loop.body)
        return self.visit(substitute(body, {loop.loop_var: step}))


def _decided_value(bound: _LinearBound) -> PrimExpr:
    """Return the value of a node in the part where its bound holds."""
    if isinstance(bound.node, Min):
        return bound.node.a if isinstance(bound.node.a, IntImm) else bound.node.b
    return const(True)


def _has_unrolled_loop(body: Stmt) -> bool:
    return any(isinstance(s, For) and s.kind is ForKind.UNROLLED for s in pre_order_stmts(body))


def _has_partition_hint(loop: For) -> bool:
    return bool((loop.annotations or {}).get(PARTITION_HINT_ANNOTATION))


class _LikelyRemover(StmtMutator):
    def visit_if(self, stmt: IfThenElse) -> Stmt:
        """Rewrite if likely(c): s to if c: s."""
        marked = _strip_likely(stmt.condition)
        return super().visit_if(stmt if marked is None else stmt.with_fields(condition=marked))


def loop_partition(func: PrimFunc) -> PrimFunc:
    """Return the function with likely conditions removed from the parts of loops that decide them,
    as the option `tir.LoopPartition` of the current PassContext says.
    """
    hinted = any(isinstance(s, For) and _has_partition_hint(s) for s in pre_order_stmts(func.body))
    if not hinted and next(_partition_candidates(func.body), None) is None:
        return func
    options = PassContext.current().fields(LOOP_PARTITION_OPTION)
    partition = _LoopPartitioner(bool(options["partition_const_loop"]))
    body = _LikelyRemover().visit(partition.visit(func.body))
    new = func.with_fields(body=body)
    # Copies of a loop bind the same variables.
    return distinct(new) if partition.has_partitioned else new
