"""Values of axes in terms of each other: roots from leaves, leaves from roots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekiden.arith import Analyzer
from ekiden.ir.prim import PrimExpr
from ekiden.te.schedule.relations import Axis, Fuse, Split, Step


def inner_extent(step: Split | Fuse) -> PrimExpr:
    """Return the extent of a relation's inner axis."""
    return step.inner.extent


def solve_roots(
    steps: Sequence[Step], leaves: Mapping[Axis, PrimExpr]
) -> tuple[dict[Axis, PrimExpr], list[PrimExpr]]:
    """Return the values of all axes from which the given leaves are derived, and the conditions
    under which they are iterations at all (a split that does not divide has too many).
    """
    values = dict(leaves)
    conditions: list[PrimExpr] = []
    analyzer = Analyzer()
    # From the last step on: the axes that it made are leaves, or solved already.
    for step in reversed(steps):
        if isinstance(step, Split) and step.outer in values and step.inner in values:
            size = inner_extent(step)
            values[step.parent] = values[step.outer] * size + values[step.inner]
            covered = step.outer.extent * size
            if not analyzer.can_prove_equal(covered, step.parent.extent):
                conditions.append(values[step.parent] < step.parent.extent)
        elif isinstance(step, Fuse) and step.fused in values:
            size = inner_extent(step)
            values[step.outer] = values[step.fused] // size
            values[step.inner] = values[step.fused] % size
    return values, conditions


def solve_leaves(steps: Sequence[Step], roots: Mapping[Axis, PrimExpr]) -> dict[Axis, PrimExpr]:
    """Return the values of all axes derived from the given roots."""
    values = dict(roots)
    for step in steps:
        if isinstance(step, Split) and step.parent in values:
            size = inner_extent(step)
            values[step.outer] = values[step.parent] // size
            values[step.inner] = values[step.parent] % size
        elif isinstance(step, Fuse) and step.outer in values and step.inner in values:
            values[step.fused] = values[step.outer] * inner_extent(step) + values[step.inner]
    return values
