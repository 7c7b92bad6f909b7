"""Decomposition of reductions: initial values, the term of each step, and the combiner of partial
results.

    with init(): c[i] = 0                starts       (0,)
    c[i] = c[i] + a[i, k]        ->      terms        ((term, a[i, k]),)
                                         combination  c[i] = c[i] + term

A built-in operator's update is recognised by its form. Blocks with the annotation "commutative",
which come from user-defined reducers, bind their terms to variables in front of the combination.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekiden.ir.prim import (
    Add,
    And,
    BinaryExpr,
    IntImm,
    Max,
    Min,
    Mul,
    Or,
    PrimExpr,
    Var,
    const,
    is_const,
)
from ekiden.ir.prim_visitor import is_same_expr as is_identical_expr
from ekiden.ir.prim_visitor import substitute
from ekiden.ir.structural import structural_key
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.comm_reducer import CommReducer
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import Block, BufferStore, LetStmt, SeqStmt, Stmt, seq
from ekiden.tir.visitor import ExprRewriter, pre_order_stmts

COMBINE_ANNOTATION = "commutative"
"""Annotation of a block whose combiner is a declared reducer."""
REDUCTION_OPERATORS: tuple[type[BinaryExpr], ...] = (Add, Mul, Min, Max, And, Or)
"""Associative and commutative operators (up to rounding)."""
_IDENTITY_ELEMENTS: Mapping[type[BinaryExpr], int] = {Add: 0, Mul: 1}
"""Identity elements of operators that are not idempotent."""

Elements = Sequence[tuple[Buffer, tuple[PrimExpr, ...]]]


def is_same_expr(a: PrimExpr, b: PrimExpr) -> bool:
    """Return whether two expressions are structurally equal."""
    if a is b:
        return True
    if type(a) is not type(b) or a.dtype != b.dtype:
        return False
    if isinstance(a, IntImm) and isinstance(b, IntImm):
        return a.value == b.value
    return is_identical_expr(a, b) or structural_key(a) == structural_key(b)


def match_update(store: BufferStore) -> tuple[type[BinaryExpr], PrimExpr] | None:
    """Return (op, x) if a store is `c[i] = op(c[i], x)`."""
    value = store.value
    if not isinstance(value, REDUCTION_OPERATORS):
        return None
    for own, term in ((value.a, value.b), (value.b, value.a)):
        if (
            isinstance(own, BufferLoad)
            and own.buffer is store.buffer
            and all(is_same_expr(a, b) for a, b in zip(own.indices, store.indices, strict=True))
        ):
            return type(value), term
    return None


@dataclass(frozen=True, slots=True)
class DecomposedReduction:
    """A reduction block of one or several results."""

    targets: tuple[tuple[Buffer, tuple[PrimExpr, ...]], ...]
    """Element that each result accumulates into, over the block's iterators."""
    identity_elements: tuple[PrimExpr, ...]
    """Initial values of every partial result."""
    initial_values: tuple[PrimExpr, ...]
    """Initial values of the whole reduction where they are not the identity elements, else ()."""
    terms: tuple[tuple[Var, PrimExpr], ...]
    """Variables of the combiner with the terms that a step binds to them."""
    combiner: Stmt
    """Stores to the targets, over their old values and the term variables."""

    def combine(
        self, places: Elements, left_values: Sequence[PrimExpr], right: Sequence[PrimExpr]
    ) -> Stmt:
        """Return the combiner applied to two partial results, stored into elements of other
        buffers.

        Args:
            places: a buffer and indices per result.
            left_values: the values of the first partial result.
            right: the values of the second, or the terms of a step.
        """
        target_elements = {t: p for (t, _), p in zip(self.targets, places, strict=True)}
        values = {t: v for (t, _), v in zip(self.targets, left_values, strict=True)}
        # Fresh variables per use: a combiner is emitted several times in one function.
        names: dict[Var, PrimExpr] = {v: Var(v.name, v.dtype) for v, _ in self.terms}
        for stmt in pre_order_stmts(self.combiner):
            if isinstance(stmt, LetStmt):
                names[stmt.var] = Var(stmt.var.name, stmt.var.dtype)
        if len(self.targets) == 1:  # a single store reads its own target before it writes
            (term, _), (value,) = self.terms[0], right
            return _CombinerSubstituter(target_elements, values, {**names, term: value}).visit(
                self.combiner
            )
        result = _CombinerSubstituter(target_elements, values, names).visit(self.combiner)
        # All terms are bound before a target is stored: no store may change a term.
        for (old, _), value in reversed(list(zip(self.terms, right, strict=True))):
            new = names[old]
            assert isinstance(new, Var)
            result = LetStmt(new, value, result)
        return result


class _CombinerSubstituter(ExprRewriter):
    """A rewriter that substitutes elements and variables in a combiner."""

    def __init__(
        self,
        where: Mapping[Buffer, tuple[Buffer, tuple[PrimExpr, ...]]],
        values: Mapping[Buffer, PrimExpr],
        names: Mapping[Var, PrimExpr],
    ) -> None:
        super().__init__(self._substitute_node)
        self._where, self._values, self._names = where, values, names

    def _substitute_node(self, e: PrimExpr) -> PrimExpr:
        if isinstance(e, BufferLoad):
            return self._values.get(e.buffer, e)
        return self._names.get(e, e) if isinstance(e, Var) else e

    def visit_let(self, stmt: LetStmt) -> Stmt:
        """Rebind the let to a fresh variable per use of the combination."""
        new = self._names[stmt.var]
        assert isinstance(new, Var)
        return LetStmt(new, self.rewrite_expr(stmt.value), self.visit(stmt.body))

    def visit_store(self, stmt: BufferStore) -> Stmt:
        """Store a result to its substituted element."""
        buffer, indices = self._where[stmt.buffer]
        return BufferStore(buffer, self.rewrite_expr(stmt.value), indices)


def match_reduction(block: Block) -> DecomposedReduction | None:
    """Return a block's reduction; None for a block without init or with an update of
    unknown form.
    """
    starts = None if block.init is None else _stores_by_buffer(block.init)
    if starts is None:
        return None
    if (block.annotations or {}).get(COMBINE_ANNOTATION):
        return _match_tuple_reduction(block, starts)
    return _match_operator_reduction(block, starts)


def _stores_by_buffer(stmt: Stmt) -> dict[Buffer, BufferStore] | None:
    """Return the stores of a sequence by their buffers; None if there is anything else in it."""
    stmts = stmt.seq if isinstance(stmt, SeqStmt) else (stmt,)
    stores = [s for s in stmts if isinstance(s, BufferStore) and s.predicate is None]
    by_buffer = {s.buffer: s for s in stores}
    return by_buffer if len(by_buffer) == len(stmts) else None


def _match_operator_reduction(
    block: Block, starts: Mapping[Buffer, BufferStore]
) -> DecomposedReduction | None:
    """Match stores `c[i] = op(c[i], x)` with one of the known reduction operators, one per
    result.
    """
    updates = _stores_by_buffer(block.body)
    if updates is None or updates.keys() != starts.keys():
        return None
    terms: list[tuple[Var, PrimExpr]] = []
    combination: list[Stmt] = []
    neutral: list[PrimExpr] = []
    for buffer, store in updates.items():
        update = match_update(store)
        if update is None:
            return None
        op, term = update
        begin, dtype = starts[buffer].value, buffer.dtype
        current_value, var = (
            BufferLoad(buffer, store.indices, dtype),
            Var(f"{buffer.name}_term", dtype),
        )
        # min, max, and, or are idempotent: starting every partial result with the initial value
        # changes nothing. Sums and products must count it once, so their partial results start with
        # the identity element.
        neutral.append(const(_IDENTITY_ELEMENTS[op], dtype) if op in _IDENTITY_ELEMENTS else begin)
        terms.append((var, term))
        combination.append(store.with_fields(value=op(current_value, var, dtype)))
    initial = tuple(starts[b].value for b in updates)
    is_neutral = all(
        a is b or (is_const(a) and is_same_expr(a, b))
        for a, b in zip(initial, neutral, strict=True)
    )
    targets = tuple((b, s.indices) for b, s in updates.items())
    initial_values = () if is_neutral else initial
    return DecomposedReduction(
        targets, tuple(neutral), initial_values, tuple(terms), seq(*combination)
    )


def _match_tuple_reduction(
    block: Block, starts: Mapping[Buffer, BufferStore]
) -> DecomposedReduction | None:
    """Match lets of the terms followed by stores of all results, as a comm_reducer of several
    values lowers.
    """
    terms: list[tuple[Var, PrimExpr]] = []
    body = block.body
    while isinstance(body, LetStmt) and len(terms) < len(starts):
        terms.append((body.var, body.value))
        body = body.body
    stores = [s for s in pre_order_stmts(body) if isinstance(s, BufferStore)]
    targets = tuple((s.buffer, s.indices) for s in stores)
    if len(terms) != len(starts) or {b for b, _ in targets} != starts.keys():
        return None
    begins = tuple(starts[b].value for b, _ in targets)
    # A reducer declares its own identity elements, so there is nothing to add to them.
    return DecomposedReduction(targets, begins, (), tuple(terms), body)


def decompose_reducer(reducer: CommReducer) -> DecomposedReduction:
    """Return the reduction of a reducer, over elements of its own; its terms are the identity."""
    identity = reducer.identity_element
    zero = (const(0),)
    targets = [Buffer(v.name, (const(1),), v.dtype, "local") for v in reducer.lhs]
    loads = [BufferLoad(t, zero, t.dtype) for t in targets]
    values = reducer.combine(loads, reducer.rhs)
    if len(targets) == 1:
        combiner: Stmt = BufferStore(targets[0], values[0], zero)
    else:  # all values are computed before the first store
        names = [Var(f"{t.name}_next", t.dtype) for t in targets]
        combiner = seq(*(BufferStore(t, n, zero) for t, n in zip(targets, names, strict=True)))
        for name, value in reversed(list(zip(names, values, strict=True))):
            combiner = LetStmt(name, value, combiner)
    terms = tuple(zip(reducer.rhs, identity, strict=True))
    return DecomposedReduction(tuple((t, zero) for t in targets), identity, (), terms, combiner)


def substitute_iterators(
    reduction: DecomposedReduction, values: Mapping[Var, PrimExpr]
) -> tuple[Elements, list[PrimExpr], list[PrimExpr], list[PrimExpr]]:
    """Return the elements, starts, initial values and terms of a reduction with the iterators of
    its block replaced by expressions of loops."""
    bound = dict(values)

    def substitute_each(exprs: Sequence[PrimExpr]) -> list[PrimExpr]:
        """Substitute loop expressions for block iterators."""
        return [substitute(e, bound) for e in exprs]

    elements = [(b, tuple(substitute_each(indices))) for b, indices in reduction.targets]
    terms = substitute_each([t for _, t in reduction.terms])
    return (
        elements,
        substitute_each(reduction.identity_elements),
        substitute_each(reduction.initial_values),
        terms,
    )


__all__ = [
    "COMBINE_ANNOTATION",
    "REDUCTION_OPERATORS",
    "DecomposedReduction",
    "decompose_reducer",
    "is_same_expr",
    "match_reduction",
    "match_update",
    "substitute_iterators",
]  # fmt: skip
