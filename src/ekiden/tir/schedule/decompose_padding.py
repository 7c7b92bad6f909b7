"""A primitive on blocks: the border of a padded copy and what lies inside it, apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden.arith import Analyzer
from ekiden.ir.prim import (
    GE,
    GT,
    LE,
    LT,
    And,
    Intrinsic,
    PrimExpr,
    Select,
    Var,
    const,
    is_const,
    maximum,
    minimum,
)
from ekiden.ir.prim_visitor import free_vars, post_order, rewrite, substitute
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import BufferLoad
from ekiden.tir.predicates import conjunction
from ekiden.tir.schedule.check import single_store
from ekiden.tir.schedule.loops import require_plain
from ekiden.tir.schedule.program import Program, bound_analyzer, refuse, serial
from ekiden.tir.stmt import Block, BlockRealize, BufferStore, For, IterVar, PrimFunc, Stmt
from ekiden.tir.visitor import sequence


def decompose_padding(
    program: Program, realize: BlockRealize, loop: For
) -> tuple[PrimFunc, list[str]]:
    """See `Schedule.decompose_padding`."""
    step, name = "decompose_padding", realize.block.name
    inside, value, border = _padding(realize)
    nest = _nest(program, realize, loop)
    if realize.block.init is not None:
        refuse(f"{step} {name!r}: it has an init", realize)
    if not is_const(realize.predicate, 1):
        inside += _conjuncts(realize.predicate)
    given = {i.var: v for i, v in zip(realize.block.iter_vars, realize.iter_values, strict=True)}
    analyzer = bound_analyzer([*program.loops_above(loop), *nest])
    box = _Box(nest, {s.loop_var: const(0) for s in nest}, {s.loop_var: s.extent for s in nest})
    left = [c for c in inside if not box.took(substitute(c, given), analyzer, realize)]
    store = realize.block.body
    assert isinstance(store, BufferStore)
    fill = program.fresh_block(f"{name}_pad_const")
    filled = _copied(realize, fill, store.with_fields(value=border), {}, {})
    filled = filled.with_fields(predicate=realize.predicate)
    inner = _copied(
        realize, name, store.with_fields(value=value), box.values(analyzer), box.fixed(analyzer)
    )
    predicate = conjunction(substitute(c, given) for c in left)
    inner = inner.with_fields(predicate=predicate)
    made = sequence(
        _in_loops(filled, nest, [s.extent for s in nest]),
        _in_loops(inner, nest, box.extents(analyzer)),
    )
    return program.replace(loop, made), [fill]


def _padding(realize: BlockRealize) -> tuple[list[PrimExpr], PrimExpr, PrimExpr]:
    """The conditions under which a block copies, what it copies, and what it stores elsewhere."""
    step, name = "decompose_padding", realize.block.name
    value = single_store(step, realize).value
    match value:
        case Intrinsic(op="if_then_else", args=(condition, inner, border)):
            pass
        case Select(condition=condition, true_value=inner, false_value=border):
            pass
        case _:
            refuse(f"{step} {name!r}: it does not choose between data and a constant", realize)
    if any(isinstance(e, (BufferLoad, Var)) for e in post_order(border)):
        refuse(f"{step} {name!r}: what it stores in the border is no constant", realize)
    return _conjuncts(condition), inner, border


def _conjuncts(e: PrimExpr) -> list[PrimExpr]:
    return [*_conjuncts(e.a), *_conjuncts(e.b)] if isinstance(e, And) else [e]


def _nest(program: Program, realize: BlockRealize, loop: For) -> list[For]:
    step, name = "decompose_padding", realize.block.name
    above = program.loops_above(realize)
    if loop not in above:
        refuse(f"{step} {name!r}: loop {loop.loop_var.name!r} is not around it", loop)
    nest = above[above.index(loop) :]
    for each, body in zip(nest, [*nest[1:], realize], strict=True):
        require_plain(step, each)
        if each.body is not body or not is_const(each.min, 0):
            refuse(f"{step} {name!r}: something else stands in loop {each.loop_var.name!r}", each)
        if any(s.loop_var in free_vars(each.extent) for s in nest):
            refuse(f"{step} {name!r}: the range of {each.loop_var.name!r} changes", each)
    return nest


@dataclass
class _Box:
    """The part of each loop in which all conditions hold: from `low` on, below `stop`."""

    nest: Sequence[For]
    low: dict[Var, PrimExpr]
    stop: dict[Var, PrimExpr]

    def took(self, condition: PrimExpr, analyzer: Analyzer, realize: BlockRealize) -> bool:
        """Narrows a loop by a condition; False where none of the loops is in it."""
        used = [s.loop_var for s in self.nest if s.loop_var in free_vars(condition)]
        if not used:
            return False
        name = f"decompose_padding {realize.block.name!r}"
        least = _least(condition)
        if least is None or len(used) > 1:
            refuse(f"{name}: {condition} does not bound a single loop", realize)
        (var,) = used
        step = analyzer.coefficient(least, var)
        if step not in (1, -1):
            refuse(f"{name}: {condition} does not bound loop {var.name!r}", realize)
        rest = analyzer.simplify(substitute(least, {var: const(0, var.dtype)}))
        if step == 1:  # var + rest >= 0
            self.low[var] = maximum(self.low[var], -rest)
        else:
            self.stop[var] = minimum(self.stop[var], rest + 1)
        return True

    def values(self, analyzer: Analyzer) -> dict[Var, PrimExpr]:
        """Each loop as what it is when counted from 0."""
        return {v: analyzer.simplify(v + low) for v, low in self.low.items()}

    def fixed(self, analyzer: Analyzer) -> dict[Var, tuple[PrimExpr, PrimExpr]]:
        """(where it begins, how many steps are left) of each loop, where no other loop says it."""
        extents = self.extents(analyzer)
        parts = {
            s.loop_var: (analyzer.simplify(self.low[s.loop_var]), extent)
            for s, extent in zip(self.nest, extents, strict=True)
        }
        return {v: part for v, part in parts.items() if not free_vars(*part)}

    def extents(self, analyzer: Analyzer) -> list[PrimExpr]:
        """How many steps are left of each loop."""
        spans = (self.stop[s.loop_var] - self.low[s.loop_var] for s in self.nest)
        return [analyzer.simplify(maximum(span, 0)) for span in spans]


def _least(condition: PrimExpr) -> PrimExpr | None:
    """What is at least 0 just where a comparison of integers holds."""
    match condition:
        case GE(a=a, b=b) | LE(a=b, b=a):
            return a - b
        case GT(a=a, b=b) | LT(a=b, b=a):
            return a - b - 1
    return None


def _copied(
    realize: BlockRealize,
    name: str,
    store: BufferStore,
    values: dict[Var, PrimExpr],
    fixed: dict[Var, tuple[PrimExpr, PrimExpr]],
) -> BlockRealize:
    """The block with another store and iterators of its own, its loops replaced by values. An
    iterator that is a loop of a `fixed` part counts that part alone.
    """
    iters: list[IterVar] = []
    given: list[PrimExpr] = []
    at: dict[Var, PrimExpr] = {}
    for old, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
        part = fixed.get(value) if isinstance(value, Var) else None
        low, extent = part or (const(0), old.extent)
        new = IterVar(Var(old.var.name, old.var.dtype), extent, old.kind)
        iters.append(new)
        given.append(value if part else substitute(value, values))
        at[old.var] = new.var if is_const(low, 0) else new.var + low
    simplify = Analyzer().simplify
    body = store.with_fields(
        value=rewrite(substitute(store.value, at), lambda e: _simple_load(e, simplify)),
        indices=tuple(simplify(substitute(i, at)) for i in store.indices),
    )
    return BlockRealize(tuple(given), const(True), Block(name, tuple(iters), body))


def _simple_load(e: PrimExpr, simplify: Callable[[PrimExpr], PrimExpr]) -> PrimExpr:
    if not isinstance(e, BufferLoad):
        return e
    return BufferLoad(e.buffer, tuple(map(simplify, e.indices)), e.dtype)


def _in_loops(realize: BlockRealize, nest: Sequence[For], extents: Sequence[PrimExpr]) -> Stmt:
    news: dict[Var, PrimExpr] = {s.loop_var: Var(s.loop_var.name, s.loop_var.dtype) for s in nest}
    made: Stmt = realize.with_fields(
        iter_values=tuple(substitute(v, news) for v in realize.iter_values),
        predicate=substitute(realize.predicate, news),
    )
    for each, extent in zip(reversed(nest), reversed(extents), strict=True):
        var = news[each.loop_var]
        assert isinstance(var, Var)
        made = serial(var, extent, made)
    return made


__all__ = ["decompose_padding"]
