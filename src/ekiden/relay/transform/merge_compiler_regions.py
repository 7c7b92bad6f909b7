"""Join regions of one external compiler that feed each other.

    end(nn.relu(begin(end(exp(begin(%x))))))   ->   end(nn.relu(exp(begin(%x))))

Two regions stay apart where joining them would make a region wait for itself through a third.
"""

from __future__ import annotations

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.relay.transform.annotate_target import inside, mark_of
from ekiden.relay.transform.compiler_regions import (
    Region,
    data_of,
    find_regions,
    is_mark,
    unmarked,
)
from ekiden.relay.transform.infer_type import InferType
from ekiden.relay.transform.scopes import evaluation_order, map_functions, on_body, with_children


def merge_regions(root: RelayExpr) -> RelayExpr:
    """`root` without the marks between joined regions."""
    order = evaluation_order(root)
    region_of = find_regions(root)
    _join(order, region_of)
    new: dict[RelayExpr, RelayExpr] = {}
    for expr in order:
        if mark_of(expr, "begin") is not None:
            new[expr] = with_children(expr, new)
            continue
        replaced = dict(new)
        region = region_of.get(expr)
        for child in data_of(expr) if region is not None else ():
            source = unmarked(child)
            if is_mark(child) and region_of.get(source) is region:
                replaced[child] = new[source]
        new[expr] = with_children(expr, replaced if region is not None else new)
    return new[root]


def _join(order: list[RelayExpr], region_of: dict[RelayExpr, Region]) -> None:
    """Union regions in place, in order of evaluation, where that makes no cycle."""
    for expr in order:
        region = region_of.get(expr)
        if region is None:
            continue
        for child in data_of(expr):
            other = region_of.get(unmarked(child))
            is_near = other is not None and other is not region_of[expr]
            if is_near and other.target == region.target:  # type: ignore[union-attr]
                assert other is not None
                _join_two(order, region_of, other, region_of[expr])


def _join_two(
    order: list[RelayExpr], region_of: dict[RelayExpr, Region], first: Region, second: Region
) -> None:
    """Join unless something outside of both lies on a path from one to the other."""
    both = {**first.members, **second.members}
    reached: set[RelayExpr] = set()
    for expr in order:
        below = data_of(expr)
        if expr in both:
            if any(c in reached for c in below):
                return
        elif is_mark(expr):
            if inside(expr) in reached:
                reached.add(expr)
        elif any(c in reached or unmarked(c) in both for c in below):
            reached.add(expr)
    first.members.update(second.members)
    region_of.update(dict.fromkeys(second.members, first))


@module_pass(name="MergeCompilerRegions", required=(InferType(),))
def _merge_compiler_regions(module: IRModule, context: PassContext) -> IRModule:
    return map_functions(module, on_body(merge_regions))


def MergeCompilerRegions() -> Pass:  # noqa: N802
    """The pass described at the top of this file."""
    return _merge_compiler_regions
