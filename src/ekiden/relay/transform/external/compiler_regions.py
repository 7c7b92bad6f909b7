"""Annotated regions of external compilers as sets of expressions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from ekiden.ir.expr import RelayExpr
from ekiden.ir.op import Op
from ekiden.relay.expr import Call, Constant
from ekiden.relay.transform.external.annotate_target import annotated_value, compiler_annotation
from ekiden.relay.transform.language.scope_tree import evaluation_order, is_atom
from ekiden.relay.visitor import children
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(eq=False, slots=True)
class CompilerRegion:
    """Expressions of one external compiler, in order of evaluation."""

    target: str
    members: dict[RelayExpr, None] = field(default_factory=dict)


def data_operands(expr: RelayExpr) -> tuple[RelayExpr, ...]:
    """Return the data operands of an expression: its children without the callee."""
    below = children(expr)
    return below[1:] if isinstance(expr, Call) and not isinstance(expr.op, Call) else below


def is_compiler_annotation(expr: RelayExpr) -> bool:
    """Return whether an expression is a compiler_begin or compiler_end."""
    return (
        compiler_annotation(expr, "begin") is not None
        or compiler_annotation(expr, "end") is not None
    )


def find_regions(root: RelayExpr) -> dict[RelayExpr, CompilerRegion]:
    """Map every expression between annotations to its region."""
    region_of: dict[RelayExpr, CompilerRegion] = {}
    for expr in evaluation_order(root):
        if is_compiler_annotation(expr) or is_atom(expr) or isinstance(expr, (Constant, Op)):
            continue
        targets = {
            t for c in data_operands(expr) if (t := compiler_annotation(c, "begin")) is not None
        }
        # Operands without marks in between belong to the same region.
        near = [region_of[c] for c in data_operands(expr) if c in region_of]
        if not targets and not near:
            continue
        # With operands in several regions these are one, since no mark separates them.
        region = near[0] if near else CompilerRegion(targets.pop())
        for merged in near[1:]:
            _merge_into(region, merged, region_of)
        region.members[expr] = None
        region_of[expr] = region
    return region_of


def _merge_into(
    region: CompilerRegion, merged: CompilerRegion, region_of: dict[RelayExpr, CompilerRegion]
) -> None:
    if merged is region:
        return
    region.members.update(merged.members)
    region_of.update(dict.fromkeys(merged.members, region))


def strip_annotations(expr: RelayExpr) -> RelayExpr:
    """Strip the annotations around an expression."""
    while is_compiler_annotation(expr):
        expr = annotated_value(expr)
    return expr


@dataclass(frozen=True, slots=True)
class AnnotatedRegion:
    """Annotated region (TVM's name): `args` are its compiler_begin nodes, `rets` its compiler_end
    nodes, `nodes` all of them and the expressions between.
    """

    target: str
    nodes: tuple[RelayExpr, ...]
    args: tuple[RelayExpr, ...]
    rets: tuple[RelayExpr, ...]


class AnnotatedRegionSet:
    """Annotated regions of an expression in order of evaluation (TVM's name)."""

    def __init__(self, expr: RelayExpr, region_begin_op: Op, region_end_op: Op) -> None:
        """Find the regions. Raises ValueError for other operators than those that begin and end
        regions.
        """
        marks = {"begin": region_begin_op.name, "end": region_end_op.name}
        # TVM's interface passes the marks; these are the only ones there are.
        if any(name != f"annotation.compiler_{which}" for which, name in marks.items()):
            names_text = " and ".join(marks.values())
            raise ValueError(f"regions: marks of compilers expected, got {names_text}")
        ends = [e for e in evaluation_order(expr) if compiler_annotation(e, "end") is not None]
        regions = dict.fromkeys(find_regions(expr).values())
        self.regions = tuple(_build_annotated_region(region, ends) for region in regions)
        self._region_of = {node: region for region in self.regions for node in region.nodes}

    def __len__(self) -> int:
        return len(self.regions)

    def get_region(self, expr: RelayExpr) -> AnnotatedRegion | None:
        """Return the region that contains an expression or annotation, or None."""
        return self._region_of.get(expr)


def _build_annotated_region(region: CompilerRegion, ends: Sequence[RelayExpr]) -> AnnotatedRegion:
    read = [c for member in region.members for c in data_operands(member)]
    args = tuple(dict.fromkeys(c for c in read if compiler_annotation(c, "begin") is not None))
    rets = tuple(end for end in ends if annotated_value(end) in region.members)
    return AnnotatedRegion(region.target, (*args, *region.members, *rets), args, rets)
