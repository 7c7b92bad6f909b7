"""What axes are worth in terms of each other: roots of the leaves, leaves of the roots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekiden.arith import Analyzer
from ekiden.ir.prim import PrimExpr
from ekiden.te.schedule.relations import Axis, Fuse, Split, Step


def inner_size(step: Split | Fuse) -> PrimExpr:
    """How many steps the inner axis of a relation has."""
    return step.inner.extent


def roots_from_leaves(
    steps: Sequence[Step], leaves: Mapping[Axis, PrimExpr]
) -> tuple[dict[Axis, PrimExpr], list[PrimExpr]]:
    """The values of all axes that the leaves given are made from, and the conditions under which
    those are steps at all (a split that does not divide makes too many).
    """
    values = dict(leaves)
    conditions: list[PrimExpr] = []
    analyzer = Analyzer()
    for step in reversed(steps):
        if isinstance(step, Split) and step.outer in values and step.inner in values:
            size = inner_size(step)
            values[step.parent] = values[step.outer] * size + values[step.inner]
            covered = step.outer.extent * size
            if not analyzer.can_prove_equal(covered, step.parent.extent):
                conditions.append(values[step.parent] < step.parent.extent)
        elif isinstance(step, Fuse) and step.fused in values:
            size = inner_size(step)
            values[step.outer] = values[step.fused] // size
            values[step.inner] = values[step.fused] % size
    return values, conditions


def leaves_from_roots(
    steps: Sequence[Step], roots: Mapping[Axis, PrimExpr]
) -> dict[Axis, PrimExpr]:
    """The values of all axes made from the roots given."""
    values = dict(roots)
    for step in steps:
        if isinstance(step, Split) and step.parent in values:
            size = inner_size(step)
            values[step.outer] = values[step.parent] // size
            values[step.inner] = values[step.parent] % size
        elif isinstance(step, Fuse) and step.outer in values and step.inner in values:
            values[step.fused] = values[step.outer] * inner_size(step) + values[step.inner]
    return values
