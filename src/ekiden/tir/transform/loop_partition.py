"""Cut loops where a condition changes, so that it is gone from the part that does the work.

What a split leaves over is marked `likely` by lower_blocks. Such conditions, and extents that are
minima, are linear in the loops around them. Of a loop that decides one, the steps for which it
holds whatever the loops inside do become a loop without it:

    for i in range((n + 3) // 4):                for i in range(n // 4):
        for j in range(4):                           for j in range(4): s
            if likely(i*4 + j < n): s      ->    if n % 4 > 0:
                                                     for j in range(n % 4): s

Of a loop with the annotation HINT (TVM's) the conditions of `if_then_else` are decided too: most
tiles of a window read no padding, and a condition on a vector is a branch that keeps what two of
its readers load apart.

Where the last part has few possible sizes and its loops are to be written out, there is a copy for
each, so that registers stay registers: `if n % 4 == 3: .. elif n % 4 == 2: .. elif ..`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ekiden.arith import Analyzer
from ekiden.ir.pass_context import LOOP_PARTITION, PassContext
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
    binary,
    const,
    is_const,
    logical_and,
    maximum,
    minimum,
)
from ekiden.ir.prim_visitor import free_vars, post_order, rewrite
from ekiden.ir.prim_visitor import substitute as substitute_expr
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.distinct import distinct
from ekiden.tir.expr import BufferLoad
from ekiden.tir.stmt import For, ForKind, IfThenElse, LetStmt, PrimFunc, Stmt
from ekiden.tir.transform.thread_sync import is_barrier
from ekiden.tir.visitor import (
    NOTHING,
    StmtMutator,
    expressions,
    is_nothing,
    sequence,
    substitute,
    walk,
)

HINT = "pragma_loop_partition_hint"
"""Annotation of a loop that is cut where conditions of values change, not of statements alone."""
MOST_COPIES = 8
"""Values of a rest for which there is a copy each."""
Decisions = Mapping[PrimExpr, PrimExpr]
"""What stands in the place of a condition or of the extent of a loop."""


@dataclass(frozen=True, slots=True)
class _Bound:
    """With s the step of a loop: `node` is decided for every step of the loops inside iff
    s * scale + low > 0, and the other way for every one iff s * scale + high <= 0.
    """

    node: PrimExpr
    scale: int
    low: PrimExpr
    high: PrimExpr
    inner: PrimExpr
    """A condition is `inner < s * scale + high`; inner is >= 0 and depends on loops inside only."""


def _likely(e: PrimExpr) -> PrimExpr | None:
    return e.args[0] if isinstance(e, Intrinsic) and e.op == "likely" else None


def _conjuncts(e: PrimExpr) -> Iterator[PrimExpr]:
    stack = [e]
    while stack:
        each = stack.pop()
        if isinstance(each, And):
            stack += [each.b, each.a]
        else:
            yield each


def _candidates(root: Stmt, guards: bool = False) -> Iterator[PrimExpr]:
    """Conditions marked likely, and extents that are minima; with `guards` those of values too."""
    for s in walk(root):
        if guards:
            for e in post_order(*expressions(s)):
                if isinstance(e, Intrinsic) and e.op == "if_then_else":
                    yield from _conjuncts(e.args[0])
        if isinstance(s, IfThenElse) and (marked := _likely(s.condition)) is not None:
            yield from _conjuncts(marked)
        elif isinstance(s, For) and isinstance(s.extent, Min):
            yield s.extent


def _positive_when(e: PrimExpr) -> PrimExpr | None:
    """An expression that is > 0 iff a comparison holds, or a minimum is its constant side."""
    match e:
        case LT(a=a, b=b) if a.dtype == "int64":
            return b - a
        case LE(a=a, b=b) if a.dtype == "int64":
            return b - a + 1
        case GT(a=a, b=b) if a.dtype == "int64":
            return a - b
        case GE(a=a, b=b) if a.dtype == "int64":
            return a - b + 1
        case Min(a=IntImm() as size, b=rest) | Min(a=rest, b=IntImm() as size):
            return rest - (size - 1)
    return None


class _Decide(StmtMutator):
    """Puts decisions in the place of conditions and extents."""

    def __init__(self, decisions: Decisions, guards: bool = False) -> None:
        self._decisions = decisions
        self._guards = guards
        self._memo: dict[int, PrimExpr] = {}

    def expr(self, expr: PrimExpr) -> PrimExpr:
        """With the conditions of values that are decided."""
        if not self._guards:
            return expr
        return rewrite(expr, lambda e: self._decisions.get(e, e), self._memo)

    def visit_if(self, stmt: IfThenElse) -> Stmt:
        """`if likely(a and b)` without what is decided; where that is false what stands behind
        `else`, nothing where a split left it over."""
        marked = _likely(stmt.condition)
        if marked is None:
            return super().visit_if(stmt)
        left: PrimExpr = const(True)
        for each in _conjuncts(marked):
            left = logical_and(left, self._decisions.get(each, each))
        otherwise = NOTHING if stmt.else_case is None else self.visit(stmt.else_case)
        if is_const(left, 0):
            return otherwise
        inside = self.visit(stmt.then_case)
        if is_const(left):
            return inside
        same = left is marked or all(
            a is b for a, b in zip(_conjuncts(left), _conjuncts(marked), strict=False)
        )
        condition = stmt.condition if same and left.dtype else Intrinsic("likely", (left,), "bool")
        other = None if is_nothing(otherwise) else otherwise
        return stmt.with_fields(condition=condition, then_case=inside, else_case=other)

    def visit_for(self, stmt: For) -> Stmt:
        """With the extent that holds in this part; gone where its body is."""
        body = self.visit(stmt.body)
        if is_nothing(body):
            return NOTHING
        extent = self._decisions.get(stmt.extent, stmt.extent)
        return stmt.with_fields(extent=extent, body=body)


class _Partition(StmtMutator):
    def __init__(self, cuts_constant: bool) -> None:
        self._cuts_constant = cuts_constant
        self._analyzer = Analyzer()
        self._lanes: set[Var] = set()
        self.has_cut = False

    def visit_for(self, stmt: For) -> Stmt:
        """Partition a loop, then the loops inside each part."""
        self._analyzer.bind(stmt.loop_var, stmt.min, stmt.extent)
        if stmt.kind is ForKind.VECTORIZED:
            self._lanes.add(stmt.loop_var)
        if stmt.kind is ForKind.THREAD_BINDING or not is_const(stmt.min, 0):
            return super().visit_for(stmt)
        if isinstance(stmt.extent, IntImm) and not self._cuts_constant:
            return super().visit_for(stmt)
        bounds = self._bounds(stmt)
        return self._cut(stmt, bounds) if bounds else super().visit_for(stmt)

    # what a loop decides

    def _bounds(self, loop: For) -> list[_Bound]:
        guards = _is_hinted(loop)
        if next(_candidates(loop.body, guards), None) is None:
            return []
        # A cut may depend on the thread, and then not all threads come to a barrier of each part.
        if any(map(is_barrier, walk(loop.body))):
            return []
        inside = {s.loop_var: s for s in walk(loop.body) if isinstance(s, For)}
        hidden = {s.var for s in walk(loop.body) if isinstance(s, LetStmt)}
        for each in inside.values():  # copies of a loop share its variable: what is here counts
            self._analyzer.bind(each.loop_var, each.min, each.extent)
        found = dict.fromkeys(_candidates(loop.body, guards))
        if loop.kind is ForKind.PARALLEL:  # chunks of work: a short last one is as good
            found = dict.fromkeys(e for e in found if not isinstance(e, Min))
        made = (self._bound(node, loop, inside, hidden) for node in found)
        return [b for b in made if b is not None]

    # A condition d > 0, d linear in the loop's step s and in the variables of loops inside: d is
    # lowest and highest at ends of those, so s * scale + low <= d <= s * scale + high, both linear
    # in s. It holds for all inner steps where the left side is > 0, for none where the right is <=
    # 0.
    def _bound(
        self, node: PrimExpr, loop: For, inside: Mapping[Var, For], hidden: set[Var]
    ) -> _Bound | None:
        difference = _positive_when(node)
        if difference is None or any(isinstance(e, BufferLoad) for e in post_order(difference)):
            return None
        used = free_vars(difference)
        if loop.loop_var not in used or not hidden.isdisjoint(used):
            return None
        if not self._lanes.isdisjoint({*used} - {loop.loop_var}):
            return None  # it differs between lanes: a mask, not the bound of a loop
        scale = self._analyzer.coefficient(difference, loop.loop_var)
        low = high = start = substitute_expr(difference, {loop.loop_var: const(0)})
        for var in used:
            if var not in inside:
                continue
            ends = self._ends(difference, var, inside[var])
            if ends is None:
                return None
            low, high = substitute_expr(low, {var: ends[0]}), substitute_expr(high, {var: ends[1]})
        simplify = self._analyzer.simplify
        if isinstance(node, Min):  # as if it were var < rest for a var below the constant side
            size = node.a if isinstance(node.a, IntImm) else node.b
            high = low + (size - 1)
        inner = simplify(high - start)
        return _Bound(node, scale, simplify(low), simplify(high), inner) if scale else None

    def _ends(self, difference: PrimExpr, var: Var, loop: For) -> tuple[PrimExpr, PrimExpr] | None:
        """The values of an inner variable at which the difference is smallest and largest."""
        scale = self._analyzer.coefficient(difference, var)
        if scale is None or not isinstance(loop.min, IntImm):
            return None
        extent = loop.extent
        if isinstance(extent, Min):
            extent = extent.a if isinstance(extent.a, IntImm) else extent.b
        if not isinstance(extent, IntImm):
            return None
        first, last = loop.min, loop.min + (extent.value - 1)
        return (first, last) if scale >= 0 else (last, first)

    # cutting

    def _cut(self, loop: For, bounds: Sequence[_Bound]) -> Stmt:
        """[0, begin) and [end, extent) with the conditions, [begin, end) without."""
        factor = self._left_over(loop, bounds)
        begin, end = self._decided_steps(loop, bounds, factor)
        written_out = loop.kind in (ForKind.UNROLLED, ForKind.VECTORIZED)
        if written_out and not (is_const(begin) and is_const(end)):
            return super().visit_for(loop)
        self.has_cut = True
        if loop.kind is ForKind.PARALLEL:
            return self._branches(loop, begin, end, bounds, factor)
        main = self._part(loop, begin, end, {b.node: _decided(b) for b in bounds})
        before = self._part(loop, const(0), begin, self._never(bounds, begin - 1, above=True))
        return sequence(before, main, self._after(loop, end, bounds, factor))

    def _branches(
        self,
        loop: For,
        begin: PrimExpr,
        end: PrimExpr,
        bounds: Sequence[_Bound],
        factor: int | None,
    ) -> Stmt:
        """A parallel loop stays one, so that what is left over runs beside the rest."""
        step = loop.loop_var
        decided = {b.node: _decided(b) for b in bounds}
        whole = self.visit(_Decide(decided, _is_hinted(loop)).visit(loop.body))
        if factor is None:
            rest = self.visit(loop.body)
        else:
            size = self._analyzer.simplify(bounds[0].high % factor)
            rest = self._sizes(loop, step, bounds, factor, size) or NOTHING
        inside = logical_and(step >= begin if not is_const(begin, 0) else const(True), step < end)
        return loop.with_fields(body=IfThenElse(inside, whole, rest))

    # s * scale + low > 0: for scale > 0 from s = -low // scale + 1 on; for scale < 0 as long as
    # s <= (low - 1) // -scale. All bounds at once: the largest begin, the smallest end.
    def _decided_steps(
        self, loop: For, bounds: Sequence[_Bound], factor: int | None
    ) -> tuple[PrimExpr, PrimExpr]:
        """The first step for which all bounds hold, and the one after the last."""
        simplify = self._analyzer.simplify
        if factor is not None:
            return const(0), simplify(bounds[0].high // factor)
        begin: PrimExpr = const(0)
        end = loop.extent
        for each in bounds:
            if each.scale > 0:
                begin = self._larger(begin, -each.low // each.scale + 1)
            else:
                end = self._smaller(end, (each.low - 1) // -each.scale + 1)
        begin = simplify(self._smaller(begin, loop.extent))
        return begin, simplify(self._larger(end, begin))

    def _smaller(self, a: PrimExpr, b: PrimExpr) -> PrimExpr:
        if self._analyzer.can_prove(a <= b):
            return a
        return b if self._analyzer.can_prove(b <= a) else minimum(a, b)

    def _larger(self, a: PrimExpr, b: PrimExpr) -> PrimExpr:
        if self._analyzer.can_prove(a >= b):
            return a
        return b if self._analyzer.can_prove(b >= a) else maximum(a, b)

    def _never(self, bounds: Sequence[_Bound], step: PrimExpr, above: bool) -> Decisions:
        """The conditions that hold for no step beyond one: `above` those that grow with steps."""
        return {
            b.node: const(False)
            for b in bounds
            if (b.scale > 0) == above
            and not isinstance(b.node, Min)
            and self._analyzer.can_prove(step * b.scale + b.high <= 0)
        }

    def _part(self, loop: For, begin: PrimExpr, end: PrimExpr, decisions: Decisions) -> Stmt:
        """The steps [begin, end), counted from 0, and what is inside them partitioned."""
        extent = self._analyzer.simplify(end - begin)
        if self._analyzer.can_prove(extent <= 0):
            return NOTHING
        body = _Decide(decisions, _is_hinted(loop)).visit(loop.body)
        if is_const(extent, 1):
            return self.visit(substitute(body, {loop.loop_var: begin}))
        if is_nothing(body):
            return NOTHING
        self._analyzer.bind(loop.loop_var, const(0), extent)
        if not is_const(begin, 0):
            body = substitute(body, {loop.loop_var: loop.loop_var + begin})
        body = self.visit(body)
        return NOTHING if is_nothing(body) else loop.with_fields(extent=extent, body=body)

    def _after(
        self, loop: For, end: PrimExpr, bounds: Sequence[_Bound], factor: int | None
    ) -> Stmt:
        if self._analyzer.can_prove_equal(end, loop.extent):
            return NOTHING
        if factor is None:
            return self._part(loop, end, loop.extent, self._never(bounds, end, above=False))
        rest = self._analyzer.simplify(bounds[0].high % factor)
        if not is_const(rest) and (factor > MOST_COPIES or not _writes_out(loop.body)):
            return IfThenElse(rest > 0, self._last_step(loop, end, bounds, rest))
        return self._sizes(loop, end, bounds, factor, rest) or NOTHING

    def _sizes(
        self, loop: For, step: PrimExpr, bounds: Sequence[_Bound], factor: int, rest: PrimExpr
    ) -> Stmt | None:
        """The last step, in a copy for each size that it may have if its loops are written out."""
        if is_const(rest) or factor > MOST_COPIES or not _writes_out(loop.body):
            return self._last_step(loop, step, bounds, rest)
        chain: Stmt | None = None
        for value in range(1, factor):
            one = self._last_step(loop, step, bounds, const(value))
            chain = IfThenElse(binary(EQ, rest, const(value)), one, chain)
        return chain

    # The common case: a split of n by `factor` leaves the one bound s * factor + inner < n, with
    # inner in [0, factor). Then the whole steps are n // factor, and what is left is known without
    # any comparison: one step of n % factor.
    def _left_over(self, loop: For, bounds: Sequence[_Bound]) -> int | None:
        """The factor of the split that the bounds come from, if all come from one: then at most one
        step is left, of high % factor elements.
        """
        first = bounds[0]
        factor = -first.scale
        prove_equal = self._analyzer.can_prove_equal
        if factor < 1 or not prove_equal(first.high - first.low, const(factor - 1)):
            return None
        if not prove_equal(loop.extent, (first.high + (factor - 1)) // factor):
            return None
        alike = all(
            b.scale == first.scale
            and prove_equal(b.low, first.low)
            and prove_equal(b.high, first.high)
            for b in bounds
        )
        return factor if alike else None

    def _last_step(
        self, loop: For, step: PrimExpr, bounds: Sequence[_Bound], rest: PrimExpr
    ) -> Stmt:
        """The step after the last whole one, which has `rest` elements."""
        decisions: dict[PrimExpr, PrimExpr] = {
            b.node: rest if isinstance(b.node, Min) else b.inner < rest for b in bounds
        }
        body = _Decide(decisions, _is_hinted(loop)).visit(loop.body)
        return self.visit(substitute(body, {loop.loop_var: step}))


def _decided(bound: _Bound) -> PrimExpr:
    """What a node is in the part where its bound holds."""
    if isinstance(bound.node, Min):
        return bound.node.a if isinstance(bound.node.a, IntImm) else bound.node.b
    return const(True)


def _writes_out(body: Stmt) -> bool:
    return any(isinstance(s, For) and s.kind is ForKind.UNROLLED for s in walk(body))


def _is_hinted(loop: For) -> bool:
    return bool((loop.annotations or {}).get(HINT))


class _Unmark(StmtMutator):
    def visit_if(self, stmt: IfThenElse) -> Stmt:
        """if likely(c): s  ->  if c: s"""
        marked = _likely(stmt.condition)
        return super().visit_if(stmt if marked is None else stmt.with_fields(condition=marked))


def loop_partition(func: PrimFunc) -> PrimFunc:
    """The function without conditions marked likely in the parts of loops that decide them, as the
    option `tir.LoopPartition` of the current PassContext says.
    """
    hinted = any(isinstance(s, For) and _is_hinted(s) for s in walk(func.body))
    if not hinted and next(_candidates(func.body), None) is None:
        return func
    options = PassContext.current().fields(LOOP_PARTITION)
    partition = _Partition(bool(options["partition_const_loop"]))
    body = _Unmark().visit(partition.visit(func.body))
    new = func.with_fields(body=body)
    return distinct(new) if partition.has_cut else new
