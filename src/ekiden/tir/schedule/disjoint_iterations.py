"""Proofs that no two iterations of loops access one element of a buffer.

What one iteration accesses of a buffer is a box (`tir.access_regions`), an over-estimate.
`arith.injectivity_error` shows that two iterations are disjoint: the indices of an element, or the
corner of an iteration's box plus any offset inside, determine the iteration. `schedule.legality`
builds the checks of primitives on these proofs.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.arith import Analyzer, injectivity_error
from ekiden.ir.prim import IntImm, PrimExpr, Var, const, convert, is_const
from ekiden.ir.prim_visitor import free_vars, post_order
from ekiden.ir.prim_visitor import substitute as substitute_expr
from ekiden.ir.range import Range
from ekiden.tir.access_regions import Access, bounding_region
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.reduction import is_same_expr
from ekiden.tir.schedule.program import (
    PART_EXTENT_BOUND_ANNOTATION,
    ScheduleProgram,
    accesses_of_buffer,
    bound_analyzer,
    determining_vars,
    loop_ranges,
    unit_loop_values,
)
from ekiden.tir.stmt import For
from ekiden.tir.transform.buffer_flattening import flat_index
from ekiden.tir.visitor import buffers_written


# Tests in order of cost. (1) All accesses have one index vector: either an iteration's stride
# exceeds the span of the inner loops (`_stride_exceeds_inner_extent`), or the indices determine the
# iteration (`injectivity_error`). (2) Several index vectors: take the iteration's bounding box,
# with free variables x0, x1, ... for an element inside; if the indices of any element of the box
# determine the iteration, boxes are disjoint. Boxes over-estimate, so the test is sound but
# incomplete.
def overlap_fault(
    program: ScheduleProgram, loop: For, buffer: Buffer, loop_vars: set[Var], chain: Sequence[For]
) -> str | None:
    """Return why two iterations of the given loops may access one element of a buffer; None if they
    cannot.
    """
    accesses = accesses_of_buffer(loop.body, buffer)
    outer = [*program.loops_above(loop), loop]
    # A loop of one iteration has no second one to collide with.
    varying = [s for s in outer if s.loop_var in loop_vars and not is_const(s.extent, 1)]
    loop_vars = {s.loop_var for s in varying}
    if not loop_vars:
        return None
    accesses = [_drop_unit_loops(a, outer) for a in accesses]
    first = accesses[0]
    if all(_same_access(first, access) for access in accesses):
        if len(varying) == 1 and _stride_exceeds_inner_extent(
            loop, buffer, first, varying[0].loop_var, outer
        ):
            return None
        loops = [*varying, *first.loops]
        return _injectivity_fault(
            _indices_of_loops(loop, first.indices, loops),
            loop_ranges(loops),
            determining_vars(loops, loop_vars),
            outer,
        )
    ranges = loop_ranges(varying)
    # Different access patterns: compare the bounding boxes instead, with a free coordinate within
    # each axis.
    box = bounding_region(buffer, [_widen_part_loops(a) for a in accesses], outer)
    corners: list[PrimExpr] = []
    for axis, axis_range in enumerate(box):
        if is_const(axis_range.extent, 1):
            corners.append(axis_range.min)
            continue
        inside = Var(f"x{axis}")
        ranges[inside] = Range(axis_range.extent)
        corners.append(axis_range.min + inside)
    return _injectivity_fault(corners, ranges, loop_vars, outer)


# out[rows[e], j]: whatever rows[e] is, steps of j touch elements of their ranges.
def _indices_of_loops(
    loop: For, indices: Sequence[PrimExpr], loops: Sequence[For]
) -> list[PrimExpr]:
    """Return the indices without a loaded value that the loops vary or overwrite."""
    loop_vars = {s.loop_var for s in loops}

    def is_looked_up(index: PrimExpr) -> bool:
        """Return whether an index loads a value that the loops vary or overwrite."""
        loads = [e for e in post_order(index) if isinstance(e, BufferLoad)]
        return any(
            not loop_vars.isdisjoint(free_vars(e)) or e.buffer in buffers_written(loop.body)
            for e in loads
        )

    return [index for index in indices if not is_looked_up(index)]


def _drop_unit_loops(access: Access, outer: Sequence[For]) -> Access:
    """Return the access without the variables of single-iteration loops."""
    values = unit_loop_values([*outer, *access.loops])
    if not values:
        return access
    indices = tuple(Analyzer().simplify(substitute_expr(i, values)) for i in access.indices)
    loops = tuple(
        s.with_fields(min=substitute_expr(s.min, values), extent=substitute_expr(s.extent, values))
        for s in access.loops
        if s.loop_var not in values
    )
    return Access(indices, loops, access.is_store, access.is_conditional, access.extents)


def _widen_part_loops(access: Access) -> Access:
    """Return the access with the extent of every loop over parts over-estimated by that of the
    largest part.
    """
    values: dict[Var, PrimExpr] = {}
    loops: list[For] = []
    for loop in access.loops:
        low, max_extent = (
            substitute_expr(loop.min, values),
            (loop.annotations or {}).get(PART_EXTENT_BOUND_ANNOTATION),
        )
        if max_extent is not None:
            inside = Var(loop.loop_var.name, loop.loop_var.dtype)
            values[loop.loop_var] = low + inside
            low, size = const(0, inside.dtype), convert(max_extent, inside.dtype)  # type: ignore[arg-type]
            loop = loop.with_fields(loop_var=inside, extent=size)
        loops.append(loop.with_fields(min=low))
    indices = tuple(substitute_expr(i, values) for i in access.indices)
    extents = access.extents
    return Access(indices, tuple(loops), access.is_store, access.is_conditional, extents)


def _stride_exceeds_inner_extent(
    loop: For, buffer: Buffer, access: Access, var: Var, outer: Sequence[For]
) -> bool:
    """Return whether an iteration's stride exceeds the address span of the loops inside it: the
    common case, cheaper than an injectivity proof.
    """
    analyzer = bound_analyzer(outer)
    values: dict[Var, PrimExpr] = {}
    sizes: dict[Var, int] = {}
    for inner_loop in access.loops:
        max_extent = (inner_loop.annotations or {}).get(
            PART_EXTENT_BOUND_ANNOTATION, inner_loop.extent
        )
        size = max_extent.value if isinstance(max_extent, IntImm) else max_extent
        if not isinstance(size, int):
            return False
        inside = Var(inner_loop.loop_var.name, inner_loop.loop_var.dtype)
        values[inner_loop.loop_var] = substitute_expr(inner_loop.min, values) + inside
        analyzer.bind(inside, 0, size)
        sizes[inside] = size
    flat = analyzer.simplify(substitute_expr(flat_index(buffer, access.indices), values))
    looked_up = {e.buffer for e in post_order(flat) if isinstance(e, BufferLoad)}
    if looked_up and not looked_up.isdisjoint(buffers_written(loop.body)):
        return False  # the loop writes the index table, so iterations may read different indices
    step = analyzer.coefficient(flat, var)
    steps = [analyzer.coefficient(flat, x) for x in sizes]
    if not step or any(s is None for s in steps):
        return False
    # Interval argument: an iteration touches [base, base + reach]; the next base is a stride away,
    # so reach < stride means disjoint intervals.
    reach = sum(abs(s or 0) * max(n - 1, 0) for s, n in zip(steps, sizes.values(), strict=True))
    return reach < abs(step)


def _injectivity_fault(
    indices: Sequence[PrimExpr], iters: dict[Var, Range], loop_vars: set[Var], outer: Sequence[For]
) -> str | None:
    """Return why indices do not determine the given loop variables, with outer loops fixed or free;
    None if they do (disjoint iterations).
    """
    fault = injectivity_error(indices, iters, loop_vars)
    if fault is None or injectivity_error(indices, loop_ranges(outer) | iters, loop_vars) is None:
        return None
    return fault


def _same_access(a: Access, b: Access) -> bool:
    """Return whether two accesses traverse the same elements in the same way, up to names of loop
    variables.
    """
    if a.indices == b.indices and a.loops == b.loops:
        return True
    left_loops, right_loops = _loops_in_indices(a), _loops_in_indices(b)
    if len(left_loops) != len(right_loops):
        return False
    names: dict[Var, PrimExpr] = {}
    for x, y in zip(left_loops, right_loops, strict=True):
        names[y.loop_var] = x.loop_var
        if not is_same_expr(x.extent, y.extent) or not is_same_expr(x.min, y.min):
            return False
    return all(
        is_same_expr(x, substitute_expr(y, names))
        for x, y in zip(a.indices, b.indices, strict=True)
    )


def _loops_in_indices(access: Access) -> list[For]:
    """Return the loops that an access's indices depend on."""
    used = set(free_vars(*access.indices))
    used_loops: list[For] = []
    # From the innermost out: the bounds of a loop may use the loops around it.
    for loop in reversed(access.loops):
        if loop.loop_var in used:
            used.update(free_vars(loop.min, loop.extent))
            used_loops.append(loop)
    return used_loops[::-1]
