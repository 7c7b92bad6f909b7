"""Merge adjacent regions of one external compiler.

    end(nn.relu(begin(end(exp(begin(%x))))))   ->   end(nn.relu(exp(begin(%x))))

Two regions stay apart where joining them would make a region wait for itself through a third, and
where they are evaluated in different scopes: a region becomes one call, which is made in one scope.
"""

from __future__ import annotations

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.relay.transform.external.annotate_target import DEFAULT_TARGET, compiler_annotation
from ekiden.relay.transform.external.compiler_regions import (
    CompilerRegion,
    data_operands,
    find_regions,
    is_compiler_annotation,
    strip_annotations,
)
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import (
    RelayScope,
    bodies,
    evaluation_order,
    find_scopes,
    lift_body_rewrite,
    map_functions,
    operands,
    replace_children,
)


def merge_regions(root: RelayExpr) -> RelayExpr:
    """Return `root` without the annotations between merged regions."""
    order = evaluation_order(root)
    region_of = find_regions(root)
    scope_of = {expr: scope for scope in find_scopes(root) for expr in scope.nodes}
    _merge_adjacent_regions(order, region_of, scope_of)
    new: dict[RelayExpr, RelayExpr] = {}
    for expr in order:
        if compiler_annotation(expr, "begin") is not None:
            new[expr] = replace_children(expr, new)
            continue
        # A copy for each expression: marks are skipped only on edges within its region.
        replaced = dict(new)
        region = region_of.get(expr)
        for child in data_operands(expr) if region is not None else ():
            source = strip_annotations(child)
            if is_compiler_annotation(child) and region_of.get(source) is region:
                replaced[child] = new[source]
        new[expr] = replace_children(expr, replaced if region is not None else new)
    return new[root]


def _merge_adjacent_regions(
    order: list[RelayExpr],
    region_of: dict[RelayExpr, CompilerRegion],
    scope_of: dict[RelayExpr, RelayScope],
) -> None:
    """Merge adjacent regions of equal targets and scopes unless that creates a cycle.

    The order is that of evaluation, external compilers first, so that what stays with Ekiden keeps
    none of them apart.
    """
    # Regions of external compilers first: merging default regions could close cycles that forbid
    # larger offloads.
    for is_default in (False, True):
        for expr in order:
            # Looked up anew each time, since joins replace regions.
            region = region_of.get(expr)
            if region is None or (region.target == DEFAULT_TARGET) is not is_default:
                continue
            for child in data_operands(expr):
                source = strip_annotations(child)
                source_region = region_of.get(source)
                if (
                    source_region is not None
                    and source_region.target == region.target
                    and scope_of[source] is scope_of[expr]
                ):
                    _try_merge(region_of, source_region, region_of[expr])


def _try_merge(
    region_of: dict[RelayExpr, CompilerRegion], first: CompilerRegion, second: CompilerRegion
) -> None:
    """Merge two regions unless they are the same or the result would depend on itself."""
    if first is second or _creates_cycle({**first.members, **second.members}, region_of):
        return
    first.members.update(second.members)
    region_of.update(dict.fromkeys(second.members, first))


def _creates_cycle(
    members: dict[RelayExpr, None], region_of: dict[RelayExpr, CompilerRegion]
) -> bool:
    """Return whether an outside dependency of `members` depends on one of them: merging would
    create a cycle.

    A region needs all that any of its members reads, also in the bodies that a member opens: a
    closure whose body reads one member may be called by another.
    """
    visited: set[RelayExpr] = set()
    waiting = [s for member in members for s in _dependencies(member) if s not in members]
    while waiting:
        expr = waiting.pop()
        if expr in visited:
            continue
        region = region_of.get(expr)
        # A region is compiled as one function, so all of its inputs come before any output.
        group = [expr] if region is None else list(region.members)
        visited.update(group)
        needed = [s for region_member in group for s in _dependencies(region_member)]
        if any(dependency in members for dependency in needed):
            return True
        waiting.extend(next_expr for next_expr in needed if next_expr not in visited)
    return False


def _dependencies(expr: RelayExpr) -> list[RelayExpr]:
    """Return the operands and bodies of an expression, with annotations stripped."""
    return [strip_annotations(child) for child in (*operands(expr), *bodies(expr))]


@module_pass(name="MergeCompilerRegions", required=(InferType(),))
def _merge_compiler_regions(module: IRModule, context: PassContext) -> IRModule:
    return map_functions(module, lift_body_rewrite(merge_regions))


def MergeCompilerRegions() -> Pass:  # noqa: N802
    """Return a pass that merges adjacent regions of one compiler (TVM's MergeCompilerRegions)."""
    return _merge_compiler_regions
