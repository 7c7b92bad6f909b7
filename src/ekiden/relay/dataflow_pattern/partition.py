"""Pattern partitioning: move matches into functions.

    nn.relu(nn.conv2d(%x, %w))
->  fn (%a, %b, PartitionedFromPattern="nn.conv2d_nn.relu_") { nn.relu(nn.conv2d(%a, %b)) }(%x, %w)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ekiden.ir.expr import GlobalVar, RelayExpr
from ekiden.ir.op import Op
from ekiden.ir.type import Type
from ekiden.relay.dataflow_pattern import pattern as p
from ekiden.relay.dataflow_pattern.matcher import NodeMap, Users, build_user_map, find_match
from ekiden.relay.expr import Call, Constant, Constructor, Function, Tuple, TupleGetItem, Var
from ekiden.relay.transform.language.scope_tree import replace_children
from ekiden.relay.visitor import children, post_order, vars_bound_by
from ekiden.runtime.lazy_dataclass import dataclass

UNBOUND_PATTERNS = (p.WildcardPattern, p.VarPattern)
"""Patterns whose matches stay outside and become arguments of the function."""


@dataclass(slots=True)
class PartitionGroup:
    """Match to partition: its root and members in post-order."""

    root: RelayExpr
    members: dict[RelayExpr, None]


def partition(
    pattern: p.DFPattern,
    expr: RelayExpr,
    attrs: Mapping[str, object] | None = None,
    check: Callable[[RelayExpr], bool] | None = None,
) -> RelayExpr:
    """Partition every match of a pattern into a function call.

    Matches do not overlap: those nearer to the result come first. A match is left alone where
    `check(its root)` is false, or where something outside uses a value inside of it.

    Args:
        pattern: The pattern.
        expr: The expression.
        attrs: Attributes of the functions, which also have PartitionedFromPattern.
        check: Tells whether a match may become a function.
    """
    groups = _find_groups(pattern, expr, check)
    inside = {member for group in groups.values() for member in group.members}
    new: dict[RelayExpr, RelayExpr] = {}
    for subexpression in post_order(expr, into_functions=True):
        if subexpression in groups:
            new[subexpression] = _extract_function(groups[subexpression], attrs or {}, new)
        elif subexpression not in inside:
            new[subexpression] = replace_children(subexpression, new)
    return new[expr]


p.DFPattern.partitioner = partition


def _find_groups(
    pattern: p.DFPattern, root: RelayExpr, check: Callable[[RelayExpr], bool] | None
) -> dict[RelayExpr, PartitionGroup]:
    users = build_user_map(root)
    grouped = _already_partitioned(root)
    groups: dict[RelayExpr, PartitionGroup] = {}
    # From the result backwards, so that the largest matches are cut out first.
    for expr in reversed(post_order(root, into_functions=True)):
        matched = None if expr in grouped else find_match(pattern, expr, users)
        if matched is None:
            continue
        members = _group_members(expr, matched)
        own = [m for m in members if not isinstance(m, Constant)]  # constants may be in several
        is_free = grouped.isdisjoint(own) and _has_single_output(expr, members, users)
        if is_free and (check is None or check(expr)):
            grouped.update(own)
            groups[expr] = PartitionGroup(expr, members)
    return groups


def _already_partitioned(root: RelayExpr) -> set[RelayExpr]:
    """Return the expressions inside functions created by earlier partitioning."""
    functions = [e for e in post_order(root, into_functions=True) if isinstance(e, Function)]
    return {
        inner
        for function in functions
        if function.attr("PartitionedFromPattern") is not None
        for inner in post_order(function.body, into_functions=True)
    }


def _group_members(root: RelayExpr, matched: NodeMap) -> dict[RelayExpr, None]:
    """Return the expressions that move into the function.

    These are all that a closed pattern matched, and those in functions that it matched which use
    their parameters; operators never move.
    """
    paths = {q.path for q in matched if isinstance(q, p.DominatorPattern)}
    closed = {
        e for q in matched if not isinstance(q, UNBOUND_PATTERNS) or q in paths for e in matched[q]
    }
    for function in [e for e in closed if isinstance(e, Function)]:
        closed.update(_depends_on_bound_vars(function))
    inside = {e for e in closed | {root} if not isinstance(e, (Op, GlobalVar, Constructor, Var))}
    order: dict[RelayExpr, None] = {}
    stack: list[tuple[RelayExpr, bool]] = [(root, False)]
    while stack:
        expr, ready = stack.pop()
        if ready:
            order[expr] = None
        elif expr in inside and expr not in order:
            stack.append((expr, True))
            stack.extend((c, False) for c in reversed(children(expr)))
    return order


def _depends_on_bound_vars(function: Function) -> set[RelayExpr]:
    """Return the expressions of a function's body that depend on a variable bound in it."""
    order = post_order(function, into_functions=True)
    dependent: set[RelayExpr] = {v for binder in order for v in vars_bound_by(binder)}
    for expr in order:
        if not dependent.isdisjoint(children(expr)):
            dependent.add(expr)
    return dependent


def _has_single_output(root: RelayExpr, members: Mapping[RelayExpr, None], users: Users) -> bool:
    """Return whether the result is the only member used outside."""
    return all(
        member is root
        or isinstance(member, Constant)
        or all(user in members for user in users.get(member, ()))
        for member in members
    )


def _extract_function(
    group: PartitionGroup, attrs: Mapping[str, object], new: Mapping[RelayExpr, RelayExpr]
) -> RelayExpr:
    params = {
        leaf: Var(f"FunctionVar_{i}", _known_type(leaf))
        for i, leaf in enumerate(_group_inputs(group))
    }
    inner: dict[RelayExpr, RelayExpr] = {}
    for member in group.members:
        inner[member] = replace_children(member, {**params, **inner})
    name = "".join(f"{_param_hint(member)}_" for member in group.members if _param_hint(member))
    function = Function(
        tuple(params.values()),
        inner[group.root],
        group.root.checked_type_or_none(),
        attrs={**attrs, "PartitionedFromPattern": name},
    )
    call = Call(function, tuple(new.get(a, a) for a in params), span=group.root.span)
    result_type = group.root.checked_type_or_none()
    if result_type is not None:
        call.set_checked_type(result_type)
    return call


def _group_inputs(group: PartitionGroup) -> list[RelayExpr]:
    """Return the outer expressions that a group uses, in order of first use."""
    leaves: dict[RelayExpr, None] = {}
    visited: set[RelayExpr] = {v for member in group.members for v in vars_bound_by(member)}
    stack = [group.root]
    while stack:
        expr = stack.pop()
        if expr in visited:
            continue
        visited.add(expr)
        if expr in group.members:
            stack.extend(reversed(children(expr)))
        elif needs_parameter(expr):
            leaves[expr] = None
    return list(leaves)


def _known_type(expr: RelayExpr) -> Type | None:
    checked = expr.checked_type_or_none()
    return expr.type_annotation if checked is None and isinstance(expr, Var) else checked


def needs_parameter(expr: RelayExpr) -> bool:
    """Return whether an outer expression becomes a parameter of the function."""
    return not isinstance(expr, (Op, GlobalVar, Constructor))


def _param_hint(expr: RelayExpr) -> str:
    match expr:
        case Call(op=Op(name=name)):
            return name
        case Call():
            return "FunctionCall"
        case Tuple():
            return "Tuple"
        case TupleGetItem(index=index):
            return f"TupleGetItem{index}"
        case _:
            return ""
