"""Loop primitives: each maps a program to an equivalent PrimFunc.

The method of `Schedule` of the same name documents each with the program before and after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from ekiden.arith import Analyzer, keep_digits, simplify_around_digits
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import (
    IntImm,
    PrimExpr,
    Var,
    const,
    convert,
    is_const,
    logical_and,
    maximum,
    minimum,
)
from ekiden.ir.prim_visitor import free_vars
from ekiden.ir.prim_visitor import substitute as substitute_expr
from ekiden.tir.schedule.legality import (
    is_bound_within_block,
    require_concurrent,
    require_permutable,
)
from ekiden.tir.schedule.program import (
    PART_EXTENT_BOUND_ANNOTATION,
    PART_OF_ANNOTATION,
    ScheduleProgram,
    block_writes,
    bound_analyzer,
    refuse,
    serial_loop,
    substitute_loop_vars,
    to_index_dtype,
    wrap_in_loops,
)
from ekiden.tir.stmt import Block, BlockRealize, BufferStore, For, ForKind, IterVar, PrimFunc, Stmt
from ekiden.tir.visitor import StmtMutator, flatten_seq, pre_order_stmts, sub_statements

LOOP_KIND_ANNOTATIONS = ("grain", "lanes", "thread")
"""Annotations that belong to a kind of loop."""
UNEVEN_TAIL_MODES = ("short", "balanced")
"""Tail modes of a split into parts of unequal size."""
TAIL_MODES = ("predicate", "loop", *UNEVEN_TAIL_MODES)
"""Ways to handle the remainder of a split."""
TAIL_BLOCK_SUFFIX = "_tail"
"""Suffix of block names in the remainder loop of a split."""


def require_unscheduled_loop(step: str, loop: For) -> None:
    """Refuse a loop that is not serial or has annotations: it has already been scheduled."""
    name = loop.loop_var.name
    if loop.kind is not ForKind.SERIAL:
        refuse(f"{step} {name!r}: the loop is already {loop.kind.value}", loop)
    if loop.annotations:
        refuse(f"{step} {name!r}: the loop has annotations {sorted(loop.annotations)}", loop)


# Whether the new loops may be more steps than the old is a proof: where it fails, as for symbolic
# extents, the guard is there, and costs a comparison where it was not needed.
def _split_extents(
    old: For, factors: Sequence[int | PrimExpr | None], analyzer: Analyzer
) -> tuple[list[PrimExpr], bool]:
    """Return the extents of the new loops, and whether their product may exceed the loop's
    extent.
    """
    name = old.loop_var.name
    shown = [f.value if isinstance(f, IntImm) else f for f in factors]
    if len(factors) == 0:
        refuse(f"split {name!r}: expected at least one factor", old)
    if sum(f is None for f in factors) > 1:
        refuse(f"split {name!r}: only one factor may be None, got {shown}", old)
    dtype = old.loop_var.dtype
    sizes = [None if f is None else to_index_dtype(convert(f, dtype), dtype) for f in factors]
    product: PrimExpr = const(1, dtype)
    for size in sizes:
        if size is not None:
            if not analyzer.can_prove(size > 0):
                refuse(f"split {name!r}: factors must be positive, got {shown}", old)
            product = product * size
    extent = old.extent
    if None in sizes:
        inferred = analyzer.simplify((extent + product - 1) // product)
        exact = is_const(analyzer.simplify(extent % product), 0)
        if exact:
            inferred = analyzer.simplify(extent // product)
        return [inferred if f is None else f for f in sizes], not exact
    product = analyzer.simplify(product)
    extents = [f for f in sizes if f is not None]
    if analyzer.can_prove_equal(product, extent):
        return extents, False
    # A smaller product would lose iterations; surplus ones are masked.
    if not analyzer.can_prove(product >= extent):
        refuse(
            f"split {name!r}: factors {shown} multiply to less than the extent "
            f"{extent.value if isinstance(extent, IntImm) else 'of the loop'}",
            old,
        )
    return extents, True


def split(
    program: ScheduleProgram,
    loop: For,
    factors: Sequence[int | PrimExpr | None],
    preserve_unit_iters: bool = True,
    disable_predication: bool = False,
    tail: str = "predicate",
) -> tuple[PrimFunc, list[Var]]:
    """See `Schedule.split`."""
    require_unscheduled_loop("split", loop)
    if tail not in TAIL_MODES:
        names = ", ".join(map(repr, TAIL_MODES))
        refuse(f"split {loop.loop_var.name!r}: tail is one of {names}, got {tail!r}", loop)
    above = program.loops_above(loop)
    analyzer = bound_analyzer(above)
    factors = list(factors)
    if tail == "loop":
        return _split_with_tail_loop(program, loop, factors, analyzer)
    if tail in UNEVEN_TAIL_MODES:
        return _split_into_parts(program, loop, factors, analyzer, tail)
    extents, may_exceed = _split_extents(loop, factors, analyzer)
    variables = [Var(f"{loop.loop_var.name}_{n}", loop.loop_var.dtype) for n in range(len(extents))]
    loops = [serial_loop(v, e) for v, e in zip(variables, extents, strict=True)]
    for new_loop in loops:
        analyzer.bind(new_loop.loop_var, new_loop.min, new_loop.extent)
    index = _flatten_loop_vars(variables, extents, preserve_unit_iters)
    body = substitute_and_simplify(loop.body, {loop.loop_var: loop.min + index}, analyzer)
    # The product of the factors exceeds the extent: iterations past the end are masked at the
    # blocks, never skipped by a break.
    if may_exceed and not disable_predication:
        condition = index < loop.extent
        if not analyzer.can_prove(condition):
            body = _add_predicate(loop, body, condition)
    return program.replace(loop, wrap_in_loops(loops, body)), variables


# Simplifying may take digits apart that belong together: (i * 5 + j) // 2 and (i * 5 + j) % 2 are
# known to be two digits of one sum, while i * 2 + (i + j) // 2, which is the same number, beside (i
# + j) % 2 is not. Later steps would refuse what this one had proved, so where that happens
# quotients are left as they are.
def substitute_and_simplify(stmt: Stmt, values: Mapping[Var, PrimExpr], analyzer: Analyzer) -> Stmt:
    """Return the statement with loop variables substituted and bindings simplified; quotients are
    left alone where simplification would hide that they are digits of one loop.
    """
    simplified: dict[int, PrimExpr] = {}

    def simplify_cached(e: PrimExpr) -> PrimExpr:
        """Return the simplified expression, memoised for the check that digits of one loop are
        still recognised.
        """
        if id(e) not in simplified:
            simplified[id(e)] = analyzer.simplify(e)
        return simplified[id(e)]

    result = substitute_loop_vars(stmt, values, simplify_cached)
    if keep_digits(list(simplified.values()), analyzer):
        return result
    return substitute_loop_vars(stmt, values, lambda e: simplify_around_digits(e, analyzer))


# Of digits d0, d1, d2 with extents e0, e1, e2: (d0 * e1 + d1) * e2 + d2, Horner's way. e0 is not
# used.
def _flatten_loop_vars(
    variables: Sequence[Var], extents: Sequence[PrimExpr], keep_units: bool
) -> PrimExpr:
    """Return the index ((i0 * e1 + i1) * e2 + i2) ... of loop variables with these extents."""
    index: PrimExpr = const(0, variables[0].dtype)
    for var, extent in zip(variables, extents, strict=True):
        unit = is_const(extent, 1) and not keep_units
        index = index * extent + (const(0, var.dtype) if unit else var)
    return index


class _PredicateAdder(StmtMutator):
    """A mutator that adds a condition to every outermost block."""

    def __init__(self, condition: PrimExpr) -> None:
        self._condition = condition

    def visit_realize(self, stmt: BlockRealize) -> Stmt:
        return stmt.with_fields(predicate=logical_and(stmt.predicate, self._condition))


def _add_predicate(loop: For, body: Stmt, condition: PrimExpr) -> Stmt:
    stack = [loop.body]
    while stack:
        s = stack.pop()
        if isinstance(s, BufferStore):
            refuse(
                f"split {loop.loop_var.name!r}: the loop holds a store outside blocks, which "
                "cannot be given a condition",
                s,
            )
        if not isinstance(s, BlockRealize):
            stack.extend(sub_statements(s))
    return _PredicateAdder(condition).visit(body)


# The body twice: code grows, and no step asks whether it is there. Blocks of the copy have names of
# their own, as names are how a schedule finds them.
def _split_with_tail_loop(
    program: ScheduleProgram,
    loop: For,
    factors: Sequence[int | PrimExpr | None],
    analyzer: Analyzer,
) -> tuple[PrimFunc, list[Var]]:
    """Return the main loop over full tiles followed by a copy of the body for the tail."""
    name = loop.loop_var.name
    if any(loop.loop_var in free_vars(s.min) for s in _loops_in(loop.body)):
        refuse(f"split {name!r}: with tail='loop' it must not count the parts of a loop", loop)
    if len(factors) == 0 or factors[0] is not None or None in factors[1:]:
        refuse(f"split {name!r}: with tail='loop' the first factor alone must be None", loop)
    dtype = loop.loop_var.dtype
    inner = [to_index_dtype(convert(f, dtype), dtype) for f in factors[1:] if f is not None]
    step: PrimExpr = const(1, dtype)
    for size in inner:
        if not analyzer.can_prove(size > 0):
            refuse(f"split {name!r}: factors must be positive", loop)
        step = step * size
    outer = analyzer.simplify(loop.extent // step)
    variables = [Var(f"{name}_{n}", loop.loop_var.dtype) for n in range(len(factors))]
    loops = [serial_loop(v, e) for v, e in zip(variables, [outer, *inner], strict=True)]
    index = _flatten_loop_vars(variables, [outer, *inner], True)
    main = substitute_loop_vars(loop.body, {loop.loop_var: loop.min + index})
    tail_extent = analyzer.simplify(loop.extent % step)
    statements = [wrap_in_loops(loops, main)]
    if not is_const(tail_extent, 0):
        # The tail is a second copy of the blocks: names of blocks and variables must stay unique in
        # a program.
        copied = copy_with_fresh_names(loop, TAIL_BLOCK_SUFFIX)
        assert isinstance(copied, For)
        tail_index = copied.min + analyzer.simplify(outer * step) + copied.loop_var
        body = substitute_loop_vars(copied.body, {copied.loop_var: tail_index})
        statements.append(copied.with_fields(min=const(0), extent=tail_extent, body=body))
    return program.replace(loop, flatten_seq(*statements)), variables


# Parts whose sizes differ by one at most (balanced), or one that is shorter (short): the inner loop
# runs over its part by the old loop's own numbers, so that the body stays as it is. Its `min`
# depends on the outer loop; MOST says how many steps it may have, for those who lay out buffers.
def _split_into_parts(
    program: ScheduleProgram,
    loop: For,
    factors: Sequence[int | PrimExpr | None],
    analyzer: Analyzer,
    tail: str,
) -> tuple[PrimFunc, list[Var]]:
    """Split a loop into one that counts parts and one over a part's iterations by their original
    indices.
    """
    name, dtype, extent = loop.loop_var.name, loop.loop_var.dtype, loop.extent
    sizes = [f for f in factors if f is not None]
    if len(factors) != 2 or len(sizes) != 1 or (tail == "short" and factors[0] is not None):
        expected = "[None, n]" if tail == "short" else "[None, n] or [n, None]"
        refuse(f"split {name!r}: with tail={tail!r} the factors are {expected}", loop)
    (size,) = (to_index_dtype(convert(f, dtype), dtype) for f in sizes)
    if not analyzer.can_prove(size > 0):
        refuse(f"split {name!r}: factors must be positive", loop)
    if is_const(extent, 0):
        return split(program, loop, factors)
    counts_parts = factors[0] is not None
    count = size if counts_parts else analyzer.simplify((extent + size - 1) // size)
    outer, inner = Var(f"{name}_0", dtype), Var(f"{name}_1", dtype)
    analyzer.bind(outer, 0, count)
    step = analyzer.simplify(extent // count) if tail == "balanced" else size
    part_extent = extent if is_const(count, 1) else step
    if is_const(analyzer.simplify(extent % (count if tail == "balanced" else part_extent)), 0):
        analyzer.bind(inner, 0, part_extent)
        values = {loop.loop_var: loop.min + outer * part_extent + inner}
        same = substitute_and_simplify(loop.body, values, analyzer)
        nest = [serial_loop(outer, count), serial_loop(inner, part_extent)]
        return program.replace(loop, wrap_in_loops(nest, same)), [outer, inner]
    if tail == "short":
        begin = outer * size
        part_size = minimum(size, extent - begin)
    else:
        some = maximum(count, 1)  # a division may be done before it is known that there are parts
        min_size, more = extent // some, extent % some
        begin = outer * min_size + minimum(outer, more)
        part_size = min_size + if_then_else(outer < more, const(1, dtype), const(0, dtype))
    low = analyzer.simplify(loop.min + begin)
    notes: dict[str, object] = {PART_OF_ANNOTATION: _hashable_size(extent)}
    max_size = _hashable_size(
        analyzer.simplify((extent + count - 1) // count) if counts_parts else size
    )
    notes[PART_EXTENT_BOUND_ANNOTATION] = max_size
    body = substitute_loop_vars(loop.body, {loop.loop_var: inner})
    over = For(inner, low, analyzer.simplify(part_size), ForKind.SERIAL, body, notes)
    return program.replace(loop, serial_loop(outer, count, over)), [outer, inner]


def _hashable_size(size: PrimExpr) -> object:
    return size.value if isinstance(size, IntImm) else size


def partition(
    program: ScheduleProgram, loop: For, points: Sequence[int | PrimExpr]
) -> tuple[PrimFunc, list[Var]]:
    """See `Schedule.partition`."""
    name, dtype = loop.loop_var.name, loop.loop_var.dtype
    require_unscheduled_loop("partition", loop)
    if any(loop.loop_var in free_vars(s.min) for s in _loops_in(loop.body)):
        refuse(f"partition {name!r}: it must not count the parts of a loop", loop)
    analyzer = bound_analyzer(program.loops_above(loop))
    ends: list[PrimExpr] = [const(0, dtype)]
    for point_arg in points:
        point = to_index_dtype(convert(point_arg, dtype), dtype)
        # Clamped so that the parts stay in order and cover the extent exactly, whatever a symbolic
        # point is at run time.
        if not analyzer.can_prove(ends[-1] <= point):
            point = maximum(point, ends[-1])
        if not analyzer.can_prove(point <= loop.extent):
            point = minimum(point, loop.extent)
        ends.append(point)
    ends.append(loop.extent)
    part_loops: list[Stmt] = []
    variables: list[Var] = []
    used_names = set(program.blocks)
    for n, (low, high) in enumerate(pairwise(ends)):
        source_loop = loop
        if n:
            source_loop = _copy_with_unused_names(loop, used_names)
        var = Var(name, dtype)
        body = substitute_loop_vars(source_loop.body, {source_loop.loop_var: loop.min + low + var})
        part_loops.append(serial_loop(var, analyzer.simplify(high - low), body))
        variables.append(var)
    return program.replace(loop, flatten_seq(*part_loops)), variables


def _copy_with_unused_names(loop: For, used_names: set[str]) -> For:
    """Return a copy whose blocks have unused names."""
    names = [s.name for s in pre_order_stmts(loop) if isinstance(s, Block)]
    number = 1
    while any(f"{name}_{number}" in used_names for name in names):
        number += 1
    used_names.update(f"{name}_{number}" for name in names)
    copied = copy_with_fresh_names(loop, f"_{number}")
    assert isinstance(copied, For)
    return copied


def loop_partition(
    program: ScheduleProgram,
    loop: For,
    factors: Sequence[int | PrimExpr | None],
    preserve_unit_iters: bool = True,
) -> tuple[PrimFunc, list[Var]]:
    """See `Schedule.loop_partition`."""
    name = loop.loop_var.name
    step = f"loop_partition {name!r}"
    require_unscheduled_loop("loop_partition", loop)
    analyzer = bound_analyzer(program.loops_above(loop))
    pieces = _partition_extents(step, loop, factors, analyzer)
    variables: list[Var] = []
    statements: list[Stmt] = []
    low: PrimExpr = loop.min
    for n, size in enumerate(pieces):
        var = Var(f"{name}_{n}", loop.loop_var.dtype)
        # The first part keeps the block names, by which schedules find blocks.
        copied = loop if n == 0 else copy_with_fresh_names(loop, f"_part{n}")
        assert isinstance(copied, For)
        is_unit = not preserve_unit_iters and is_const(size, 1)
        index = low if is_unit else analyzer.simplify(low) + var
        body = substitute_loop_vars(copied.body, {copied.loop_var: index})
        statements.append(body if is_unit else serial_loop(var, size, body))
        if not is_unit:
            variables.append(var)
        low = analyzer.simplify(low + size)
    return program.replace(loop, flatten_seq(*statements)), variables


def _partition_extents(
    step: str, loop: For, factors: Sequence[int | PrimExpr | None], analyzer: Analyzer
) -> list[PrimExpr]:
    """Return the extents of the parts; an omitted factor is inferred, and without one the remainder
    is a part at the end.
    """
    dtype = loop.loop_var.dtype
    sizes = [None if f is None else to_index_dtype(convert(f, dtype), dtype) for f in factors]
    total: PrimExpr = const(0, dtype)
    for size in sizes:
        if size is not None and not analyzer.can_prove(size > 0):
            refuse(f"{step}: factors must be positive", loop)
        total = total if size is None else total + size
    if not sizes or sizes.count(None) > 1:
        refuse(f"{step}: expected factors, of which one at most is None", loop)
    remainder = analyzer.simplify(loop.extent - total)
    if not analyzer.can_prove(remainder >= (1 if None in sizes else 0)):
        refuse(f"{step}: the factors do not leave enough of the extent", loop)
    if None not in sizes and not is_const(remainder, 0):
        sizes.append(remainder)
    return [remainder if s is None else s for s in sizes]


def copy_with_fresh_names(root: Stmt, suffix: str) -> Stmt:
    """Return a copy with fresh loop and iterator variables and blocks renamed by a suffix."""

    values: dict[Var, PrimExpr] = {}
    """New variable of each loop and iterator entered so far, whose scopes are inside."""

    class _FreshNames(StmtMutator):
        def rewrite_expr(self, expr: PrimExpr) -> PrimExpr:
            """Replace the variables of the scopes around."""
            return substitute_expr(expr, values)

        def visit_for(self, stmt: For) -> Stmt:
            """Rename the loop variable: two copies of a loop are two scopes."""
            low, extent = self.rewrite_expr(stmt.min), self.rewrite_expr(stmt.extent)
            new = values[stmt.loop_var] = Var(stmt.loop_var.name, stmt.loop_var.dtype)
            body = self.visit(stmt.body)
            return stmt.with_fields(loop_var=new, min=low, extent=extent, body=body)

        def visit_block(self, stmt: Block) -> Stmt:
            """Rename iterators and the block itself: blocks are found by name."""
            names = [Var(i.var.name, i.var.dtype) for i in stmt.iter_vars]
            values.update(zip((i.var for i in stmt.iter_vars), names, strict=True))
            iters = tuple(
                IterVar(name, self.rewrite_expr(i.extent), i.kind)
                for name, i in zip(names, stmt.iter_vars, strict=True)
            )
            init = None if stmt.init is None else self.visit(stmt.init)
            body = self.visit(stmt.body)
            return stmt.with_fields(name=stmt.name + suffix, iter_vars=iters, body=body, init=init)

    return _FreshNames().visit(root)


def fuse(
    program: ScheduleProgram, *nest: For, preserve_unit_iters: bool = True
) -> tuple[PrimFunc, list[Var]]:
    """See `Schedule.fuse`."""
    if not nest:
        refuse("fuse: expected at least one loop")
    for outer, inner in pairwise(nest):
        if outer.body is not inner:
            refuse(
                f"fuse: {inner.loop_var.name!r} must be alone inside {outer.loop_var.name!r}",
                outer,
            )
    for loop in nest:
        require_unscheduled_loop("fuse", loop)
        if not is_const(loop.min, 0):
            refuse(f"fuse: loop {loop.loop_var.name!r} must start at 0", loop)
    _require_rectangular("fuse", nest)
    analyzer = bound_analyzer(program.loops_above(nest[0]))
    fused = Var("_".join([*(s.loop_var.name for s in nest), "fused"]), nest[0].loop_var.dtype)
    total: PrimExpr = const(1, fused.dtype)
    for loop in nest:
        total = total * loop.extent
    total = analyzer.simplify(total)
    analyzer.bind(fused, 0, total)
    # The reverse of `_flatten_loop_vars`, from the innermost loop out: f % e, then f // e goes on.
    # The
    # outermost of more than one step needs no remainder, as f is below the product.
    quotient: PrimExpr = fused
    values: dict[Var, PrimExpr] = {}
    first = next((n for n, s in enumerate(nest) if not is_const(s.extent, 1)), 0)
    for n in reversed(range(len(nest))):
        loop = nest[n]
        if is_const(loop.extent, 1) and not (preserve_unit_iters and len(nest) == 1):
            values[loop.loop_var] = const(0, fused.dtype)
        elif n == first:
            values[loop.loop_var] = quotient
        else:
            # Of a loop without a step, which no step sees, any digit is as good.
            digits = const(1, fused.dtype) if is_const(loop.extent, 0) else loop.extent
            values[loop.loop_var] = quotient % digits
            quotient = quotient // digits
    body = substitute_and_simplify(nest[-1].body, values, analyzer)
    return program.replace(nest[0], serial_loop(fused, total, body)), [fused]


def _require_rectangular(step: str, nest: Sequence[For]) -> None:
    """Require a rectangular nest: no loop's range depends on an outer one of them."""
    defined: set[Var] = set()
    for loop in nest:
        for v in free_vars(loop.min, loop.extent):
            if v in defined:
                refuse(f"{step}: the range of {loop.loop_var.name!r} depends on {v.name!r}", loop)
        defined.add(loop.loop_var)


# Loops that are not named keep their places, and the named ones share out theirs.
def reorder(program: ScheduleProgram, *new_order: For) -> PrimFunc:
    """See `Schedule.reorder`."""
    names = [s.loop_var.name for s in new_order]
    if len(set(new_order)) != len(new_order):
        refuse(f"reorder: {names} names a loop twice")
    if len(new_order) < 2:
        return program.func
    depth = {s: len(program.path_to(s)) for s in new_order}
    ordered = sorted(new_order, key=lambda s: depth[s])
    nest = program.perfect_chain(ordered[0], ordered[-1])
    if nest is None or any(s not in nest for s in new_order):
        refuse(
            f"reorder: loops {names} must lie in one nest with nothing else between them",
            ordered[0],
        )
    order = iter(new_order)
    slots = [next(order) if s in depth else s for s in nest]
    if slots == nest:
        return program.func
    inside = {s.loop_var for s in nest}
    defined: set[Var] = set()
    for loop in slots:
        for v in free_vars(loop.min, loop.extent):
            # Triangular nests: a loop cannot move outside the loop that defines its bounds.
            if v in inside and v not in defined:
                refuse(f"reorder: the range of {loop.loop_var.name!r} depends on {v.name!r}", loop)
        defined.add(loop.loop_var)
    for loop in nest:
        if loop.kind in (ForKind.PARALLEL, ForKind.VECTORIZED, ForKind.THREAD_BINDING):
            refuse(f"reorder: loop {loop.loop_var.name!r} is already {loop.kind.value}", loop)
    require_permutable("reorder", program, nest, slots)
    return program.replace(nest[0], wrap_in_loops(slots, nest[-1].body))


def reorder_block_iter_var(
    program: ScheduleProgram, realize: BlockRealize, new_order: Sequence[int]
) -> PrimFunc:
    """See `Schedule.reorder_block_iter_var`."""
    block = realize.block
    order = [int(n) for n in new_order]
    if sorted(order) != list(range(len(block.iter_vars))):
        refuse(
            f"reorder_block_iter_var {block.name!r}: {order} is no order of "
            f"{len(block.iter_vars)} iterators",
            realize,
        )
    new = realize.with_fields(
        iter_values=tuple(realize.iter_values[n] for n in order),
        block=block.with_fields(iter_vars=tuple(block.iter_vars[n] for n in order)),
    )
    return program.replace(realize, new)


def add_unit_loop(
    program: ScheduleProgram, target: For | BlockRealize
) -> tuple[PrimFunc, list[Var]]:
    """See `Schedule.add_unit_loop`."""
    var = Var("u")
    return program.replace(target, serial_loop(var, const(1), target)), [var]


def set_loop_kind(
    program: ScheduleProgram,
    loop: For,
    kind: ForKind,
    step: str,
    annotations: Mapping[str, object] | None = None,
) -> PrimFunc:
    """Set how a loop runs: in parallel, vectorised, on a thread axis or unrolled."""
    if kind is ForKind.UNROLLED:
        if not isinstance(loop.extent, IntImm):
            refuse(f"unroll {loop.loop_var.name!r}: the extent must be a constant", loop)
    else:
        lanes = kind is ForKind.VECTORIZED
        require_concurrent(step, program, loop, lanes, together=is_bound_within_block(annotations))
    # What an earlier kind needed goes with it.
    other_annotations = {
        k: v for k, v in (loop.annotations or {}).items() if k not in LOOP_KIND_ANNOTATIONS
    }
    notes = {**other_annotations, **(annotations or {})} or None
    return program.replace(loop, loop.with_fields(kind=kind, annotations=notes))


def parallel(program: ScheduleProgram, loop: For, grain: int = 1) -> PrimFunc:
    """See `Schedule.parallel`."""
    if grain < 1:
        refuse(f"parallel {loop.loop_var.name!r}: grain must be at least 1, got {grain}", loop)
    notes = None if grain == 1 else {"grain": grain}
    return set_loop_kind(program, loop, ForKind.PARALLEL, "parallel", notes)


def vectorize(program: ScheduleProgram, loop: For, lanes: int | None = None) -> PrimFunc:
    """See `Schedule.vectorize`."""
    if lanes is not None and lanes < 1:
        refuse(f"vectorize {loop.loop_var.name!r}: lanes must be at least 1, got {lanes}", loop)
    for other_loop in _loops_around_and_inside(program, loop):
        if other_loop.kind is ForKind.VECTORIZED:
            refuse(
                f"vectorize {loop.loop_var.name!r}: loop {other_loop.loop_var.name!r} of the "
                "same nest "
                "is vectorized already",
                other_loop,
            )
    notes = None if lanes is None else {"lanes": lanes}
    return set_loop_kind(program, loop, ForKind.VECTORIZED, "vectorize", notes)


def unroll(program: ScheduleProgram, loop: For) -> PrimFunc:
    """See `Schedule.unroll`."""
    return set_loop_kind(program, loop, ForKind.UNROLLED, "unroll")


GPU_THREAD_AXES = tuple(f"{kind}.{axis}" for kind in ("blockIdx", "threadIdx") for axis in "xyz")
VIRTUAL_THREAD_AXES = ("vthread", "vthread.x", "vthread.y", "vthread.z")


def bind(program: ScheduleProgram, loop: For, thread_axis: str) -> PrimFunc:
    """See `Schedule.bind`."""
    name = loop.loop_var.name
    if thread_axis not in GPU_THREAD_AXES + VIRTUAL_THREAD_AXES:
        refuse(
            f"bind {name!r}: expected one of "
            f"{', '.join(GPU_THREAD_AXES + VIRTUAL_THREAD_AXES)}, got {thread_axis!r}",
            loop,
        )
    # What is copied to shared memory is shared out between the threads that stand around it.
    copied = [
        b.scope for leaf in program.outermost_blocks(loop.body) for b in block_writes(leaf.block)
    ]
    together = bool(copied) and all(scope.startswith("shared") for scope in copied)
    for other_loop in () if together else _loops_around_and_inside(program, loop):
        if (other_loop.annotations or {}).get(
            "thread"
        ) == thread_axis and thread_axis in GPU_THREAD_AXES:
            refuse(
                f"bind {name!r}: loop {other_loop.loop_var.name!r} in the same nest is bound to "
                f"{thread_axis!r}",
                other_loop,
            )
    return set_loop_kind(
        program, loop, ForKind.THREAD_BINDING, f"bind to {thread_axis}", {"thread": thread_axis}
    )


def _loops_around_and_inside(program: ScheduleProgram, loop: For) -> list[For]:
    """Return the loops around a loop, also those around enclosing blocks, and those inside it."""
    around = [s for s in program.path_to(loop) if isinstance(s, For) and s is not loop]
    return [*around, *_loops_in(loop.body)]


def _loops_in(root: Stmt) -> list[For]:
    loops: list[For] = []
    stack = [root]
    while stack:
        s = stack.pop()
        if isinstance(s, For):
            loops.append(s)
        stack.extend(sub_statements(s))
    return loops


def annotate(
    program: ScheduleProgram, loop_or_block: For | BlockRealize, ann_key: str, ann_val: object
) -> PrimFunc:
    """See `Schedule.annotate`."""
    target = loop_or_block.block if isinstance(loop_or_block, BlockRealize) else loop_or_block
    notes = {**(target.annotations or {}), ann_key: _freeze_annotation(ann_val)}
    return program.replace(target, target.with_fields(annotations=notes))


def _freeze_annotation(value: object) -> object:
    """Convert lists to tuples: nodes are immutable values."""
    return tuple(map(_freeze_annotation, value)) if isinstance(value, (list, tuple)) else value


def unannotate(
    program: ScheduleProgram, loop_or_block: For | BlockRealize, ann_key: str
) -> PrimFunc:
    """See `Schedule.unannotate`."""
    target = loop_or_block.block if isinstance(loop_or_block, BlockRealize) else loop_or_block
    notes = dict(target.annotations or {})
    if ann_key not in notes:
        refuse(f"unannotate: there is no {ann_key!r}; there are {sorted(notes)}", loop_or_block)
    del notes[ann_key]
    return program.replace(target, target.with_fields(annotations=notes or None))
