"""The primitive decompose_padding: split a padded copy into a fill of the border and a copy of the
interior.
"""

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
from ekiden.tir.predicates import join_conjuncts
from ekiden.tir.schedule.legality import single_store
from ekiden.tir.schedule.loops import require_unscheduled_loop
from ekiden.tir.schedule.program import ScheduleProgram, bound_analyzer, refuse, serial_loop
from ekiden.tir.stmt import Block, BlockRealize, BufferStore, For, IterVar, PrimFunc, Stmt
from ekiden.tir.visitor import flatten_seq


def decompose_padding(
    program: ScheduleProgram, realize: BlockRealize, loop: For
) -> tuple[PrimFunc, list[str]]:
    """See `Schedule.decompose_padding`."""
    step, name = "decompose_padding", realize.block.name
    inside, value, border = _match_padding(realize)
    nest = _perfect_nest_from(program, realize, loop)
    if realize.block.init is not None:
        refuse(f"{step} {name!r}: it has an init", realize)
    if not is_const(realize.predicate, 1):
        inside += _split_conjuncts(realize.predicate)
    bindings = {i.var: v for i, v in zip(realize.block.iter_vars, realize.iter_values, strict=True)}
    analyzer = bound_analyzer([*program.loops_above(loop), *nest])
    box = _InteriorBox(
        nest, {s.loop_var: const(0) for s in nest}, {s.loop_var: s.extent for s in nest}
    )
    unabsorbed = [
        c for c in inside if not box.add_condition(substitute(c, bindings), analyzer, realize)
    ]
    store = realize.block.body
    assert isinstance(store, BufferStore)
    fill = program.fresh_block_name(f"{name}_pad_const")
    filled = _copy_block(realize, fill, store.with_fields(value=border), {}, {})
    filled = filled.with_fields(predicate=realize.predicate)
    inner = _copy_block(
        realize,
        name,
        store.with_fields(value=value),
        box.shifted_loop_vars(analyzer),
        box.constant_ranges(analyzer),
    )
    predicate = join_conjuncts(substitute(c, bindings) for c in unabsorbed)
    inner = inner.with_fields(predicate=predicate)
    result = flatten_seq(
        _wrap_in_loops(filled, nest, [s.extent for s in nest]),
        _wrap_in_loops(inner, nest, box.extents(analyzer)),
    )
    return program.replace(loop, result), [fill]


def _match_padding(realize: BlockRealize) -> tuple[list[PrimExpr], PrimExpr, PrimExpr]:
    """Return the conditions under which a block copies, the copied value, and the value of the
    border.
    """
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
    return _split_conjuncts(condition), inner, border


def _split_conjuncts(e: PrimExpr) -> list[PrimExpr]:
    return [*_split_conjuncts(e.a), *_split_conjuncts(e.b)] if isinstance(e, And) else [e]


def _perfect_nest_from(program: ScheduleProgram, realize: BlockRealize, loop: For) -> list[For]:
    step, name = "decompose_padding", realize.block.name
    above = program.loops_above(realize)
    if loop not in above:
        refuse(f"{step} {name!r}: loop {loop.loop_var.name!r} is not around it", loop)
    nest = above[above.index(loop) :]
    for inner_loop, body in zip(nest, [*nest[1:], realize], strict=True):
        require_unscheduled_loop(step, inner_loop)
        if inner_loop.body is not body or not is_const(inner_loop.min, 0):
            refuse(
                f"{step} {name!r}: something else stands in loop {inner_loop.loop_var.name!r}",
                inner_loop,
            )
        if any(s.loop_var in free_vars(inner_loop.extent) for s in nest):
            refuse(
                f"{step} {name!r}: the range of {inner_loop.loop_var.name!r} changes", inner_loop
            )
    return nest


@dataclass
class _InteriorBox:
    """The range of each loop in which all conditions hold: from `lower_bounds` on, below
    `upper_bounds`.
    """

    nest: Sequence[For]
    lower_bounds: dict[Var, PrimExpr]
    upper_bounds: dict[Var, PrimExpr]

    def add_condition(self, condition: PrimExpr, analyzer: Analyzer, realize: BlockRealize) -> bool:
        """Narrow a loop's range by a condition; return False where none of the loops
        occurs in it.
        """
        used = [s.loop_var for s in self.nest if s.loop_var in free_vars(condition)]
        if not used:
            return False
        name = f"decompose_padding {realize.block.name!r}"
        difference = _nonnegative_form(condition)
        if difference is None or len(used) > 1:
            refuse(f"{name}: {condition} does not bound a single loop", realize)
        (var,) = used
        step = analyzer.coefficient(difference, var)
        if step not in (1, -1):
            refuse(f"{name}: {condition} does not bound loop {var.name!r}", realize)
        offset = analyzer.simplify(substitute(difference, {var: const(0, var.dtype)}))
        if step == 1:  # var + rest >= 0
            self.lower_bounds[var] = maximum(self.lower_bounds[var], -offset)
        else:
            self.upper_bounds[var] = minimum(self.upper_bounds[var], offset + 1)
        return True

    def shifted_loop_vars(self, analyzer: Analyzer) -> dict[Var, PrimExpr]:
        """Return each loop variable in terms of one that counts from 0."""
        return {v: analyzer.simplify(v + low) for v, low in self.lower_bounds.items()}

    def constant_ranges(self, analyzer: Analyzer) -> dict[Var, tuple[PrimExpr, PrimExpr]]:
        """Return (begin, extent) of each loop whose range does not depend on other loops."""
        extents = self.extents(analyzer)
        loop_ranges = {
            s.loop_var: (analyzer.simplify(self.lower_bounds[s.loop_var]), extent)
            for s, extent in zip(self.nest, extents, strict=True)
        }
        return {
            v: loop_range for v, loop_range in loop_ranges.items() if not free_vars(*loop_range)
        }

    def extents(self, analyzer: Analyzer) -> list[PrimExpr]:
        """Return the narrowed extent of each loop."""
        spans = (self.upper_bounds[s.loop_var] - self.lower_bounds[s.loop_var] for s in self.nest)
        return [analyzer.simplify(maximum(span, 0)) for span in spans]


def _nonnegative_form(condition: PrimExpr) -> PrimExpr | None:
    """Return an expression that is >= 0 exactly where an integer comparison holds."""
    match condition:
        case GE(a=a, b=b) | LE(a=b, b=a):
            return a - b
        case GT(a=a, b=b) | LT(a=b, b=a):
            return a - b - 1
    return None


def _copy_block(
    realize: BlockRealize,
    name: str,
    store: BufferStore,
    values: dict[Var, PrimExpr],
    fixed: dict[Var, tuple[PrimExpr, PrimExpr]],
) -> BlockRealize:
    """Return the block with another store and fresh iterators, its loop variables replaced by
    `values`. An iterator bound to a loop of a `fixed` range iterates over that range alone.
    """
    iters: list[IterVar] = []
    bindings: list[PrimExpr] = []
    var_map: dict[Var, PrimExpr] = {}
    for old, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
        loop_range = fixed.get(value) if isinstance(value, Var) else None
        low, extent = loop_range or (const(0), old.extent)
        new = IterVar(Var(old.var.name, old.var.dtype), extent, old.kind)
        iters.append(new)
        bindings.append(value if loop_range else substitute(value, values))
        var_map[old.var] = new.var if is_const(low, 0) else new.var + low
    simplify = Analyzer().simplify
    body = store.with_fields(
        value=rewrite(substitute(store.value, var_map), lambda e: _simplify_load(e, simplify)),
        indices=tuple(simplify(substitute(i, var_map)) for i in store.indices),
    )
    return BlockRealize(tuple(bindings), const(True), Block(name, tuple(iters), body))


def _simplify_load(e: PrimExpr, simplify: Callable[[PrimExpr], PrimExpr]) -> PrimExpr:
    if not isinstance(e, BufferLoad):
        return e
    return BufferLoad(e.buffer, tuple(map(simplify, e.indices)), e.dtype)


def _wrap_in_loops(realize: BlockRealize, nest: Sequence[For], extents: Sequence[PrimExpr]) -> Stmt:
    news: dict[Var, PrimExpr] = {s.loop_var: Var(s.loop_var.name, s.loop_var.dtype) for s in nest}
    stmt: Stmt = realize.with_fields(
        iter_values=tuple(substitute(v, news) for v in realize.iter_values),
        predicate=substitute(realize.predicate, news),
    )
    for loop, extent in zip(reversed(nest), reversed(extents), strict=True):
        var = news[loop.loop_var]
        assert isinstance(var, Var)
        stmt = serial_loop(var, extent, stmt)
    return stmt


__all__ = ["decompose_padding"]
