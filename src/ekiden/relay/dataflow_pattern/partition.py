"""Put what matches a pattern into functions of its own.

    nn.relu(nn.conv2d(%x, %w))
->  fn (%a, %b, PartitionedFromPattern="nn.conv2d_nn.relu_") { nn.relu(nn.conv2d(%a, %b)) }(%x, %w)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ekiden.ir.expr import GlobalVar, RelayExpr
from ekiden.ir.op import Op
from ekiden.ir.type import Type
from ekiden.relay.dataflow_pattern import pattern as p
from ekiden.relay.dataflow_pattern.matcher import NodeMap, Users, find_match, users_below
from ekiden.relay.expr import Call, Constant, Constructor, Function, Tuple, TupleGetItem, Var
from ekiden.relay.transform.scopes import with_children
from ekiden.relay.visitor import children, post_order

OPEN = (p.WildcardPattern, p.VarPattern)
"""What these match stays outside of the function and becomes an argument."""


@dataclass(slots=True)
class Group:
    """One match: its root and all expressions that move into the function, in post-order."""

    root: RelayExpr
    members: dict[RelayExpr, None]


def partition(
    pattern: p.DFPattern,
    expr: RelayExpr,
    attrs: Mapping[str, object] | None = None,
    check: Callable[[RelayExpr], bool] | None = None,
) -> RelayExpr:
    """The expression with every match as the call of a function with `attrs` and
    PartitionedFromPattern.

    Matches do not overlap: those nearer to the result come first. A match is left alone where
    `check(its root)` is false, or where something outside uses a value inside of it.
    """
    groups = _find_groups(pattern, expr, check)
    inside = {member for group in groups.values() for member in group.members}
    new: dict[RelayExpr, RelayExpr] = {}
    for each in post_order(expr, into_functions=True):
        if each in groups:
            new[each] = _extract(groups[each], attrs or {}, new)
        elif each not in inside:
            new[each] = with_children(each, new)
    return new[expr]


def _find_groups(
    pattern: p.DFPattern, root: RelayExpr, check: Callable[[RelayExpr], bool] | None
) -> dict[RelayExpr, Group]:
    users = users_below(root)
    taken: set[RelayExpr] = set()
    groups: dict[RelayExpr, Group] = {}
    for expr in reversed(post_order(root, into_functions=True)):
        found = None if expr in taken else find_match(pattern, expr, users)
        if found is None:
            continue
        members = _members(expr, found)
        is_free = taken.isdisjoint(members) and _is_closed(expr, members, users)
        if is_free and (check is None or check(expr)):
            taken.update(members)
            groups[expr] = Group(expr, members)
    return groups


def _members(root: RelayExpr, found: NodeMap) -> dict[RelayExpr, None]:
    """What moves into the function: all that a closed pattern matched, and operators never do."""
    outside = {e for q, exprs in found.items() if isinstance(q, OPEN) for e in exprs}
    closed = {e for q, exprs in found.items() if not isinstance(q, OPEN) for e in exprs}
    inside = {
        e
        for e in (closed - outside) | {root}
        if not isinstance(e, (Op, GlobalVar, Constructor, Var))
    }
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


def _is_closed(root: RelayExpr, members: Mapping[RelayExpr, None], users: Users) -> bool:
    """Whether nothing outside uses a value computed inside, but for the result."""
    return all(
        member is root
        or isinstance(member, Constant)
        or all(user in members for user in users.get(member, ()))
        for member in members
    )


def _extract(
    group: Group, attrs: Mapping[str, object], new: Mapping[RelayExpr, RelayExpr]
) -> RelayExpr:
    params: dict[RelayExpr, Var] = {}
    inner: dict[RelayExpr, RelayExpr] = {}
    for member in group.members:
        for child in children(member):
            if child not in group.members and child not in params and needs_parameter(child):
                params[child] = Var(f"FunctionVar_{len(params)}", _known_type(child))
        inner[member] = with_children(member, {**params, **inner})
    name = "".join(f"{_label(member)}_" for member in group.members if _label(member))
    function = Function(
        tuple(params.values()),
        inner[group.root],
        group.root.checked_type_or_none(),
        attrs={**attrs, "PartitionedFromPattern": name},
    )
    call = Call(function, tuple(new.get(a, a) for a in params), span=group.root.span)
    known = group.root.checked_type_or_none()
    if known is not None:
        call.set_checked_type(known)
    return call


def _known_type(expr: RelayExpr) -> Type | None:
    known = expr.checked_type_or_none()
    return expr.type_annotation if known is None and isinstance(expr, Var) else known


def needs_parameter(expr: RelayExpr) -> bool:
    """Whether an expression used inside of a function, but made outside, is handed in."""
    return not isinstance(expr, (Op, GlobalVar, Constructor))


def _label(expr: RelayExpr) -> str:
    match expr:
        case Call(op=Op(name=name)):
            return name
        case Call():
            return "call"
        case Tuple():
            return "Tuple"
        case TupleGetItem(index=index):
            return f"TupleGetItem{index}"
        case _:
            return ""
