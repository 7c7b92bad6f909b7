"""Operator fusion: group operators that one kernel computes, by post-dominance over fusion
patterns.

    %0 = nn.conv2d(%x, %w);  %1 = add(%0, %b);  nn.relu(%1)
->  %0 = fn (%p0, %p1, %p2, Primitive=1) { nn.relu(add(nn.conv2d(%p0, %p1), %p2)) };  %0(%x, %w, %b)

The algorithm is Relay's (Roesch et al. 2018): a node joins its immediate post-dominator when every
path between them is simple enough. A node's post-dominator is where all that is made of it meets
again: the first operator through which every path from it to the result goes. That, and not a
neighbour, is what it joins, or a diamond would be torn:

    %0 = nn.conv2d(..); %1 = exp(%0); %2 = tanh(%0); add(%1, %2)      conv2d joins the add, and with
                                                                      it exp and tanh

Patterns are ordered by how freely they fuse (OpPattern), so that "simple enough" is <=. Three
phases go over all nodes, in Relay's order: first what follows products and reductions, then what
only moves elements, then what ends in a tuple. Later phases take what earlier ones left, so that a
transposition joins the kernel behind it only where no product wanted that.

Before: a graph with checked types, no lets that operands are shared across. After: every call of an
operator that has a kernel is inside of a function with the attribute Primitive, which is an atom
for all passes behind. Time is linear in nodes and edges, but for chains of which each asks for its
path; those are as long as a kernel may have operators.

Operators that only change a shape never join a group, because as a view they cost nothing; one that
is read at many places of a kernel, in a chain of slices for example, is kept, since each place
would compute it again. `annotation.stop_fusion` is gone afterwards: what is behind it reads a
kernel's result. A maximum over windows of 2x2 ends the group of a convolution whose kernels hold
whole windows in their tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field

from ekiden.arith import prove_equal
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op, OpPattern
from ekiden.ir.pass_context import MAX_FUSE_DEPTH_OPTION
from ekiden.ir.prim import IntImm
from ekiden.ir.prim import Var as Symbol
from ekiden.ir.prim_visitor import free_vars as prim_vars
from ekiden.ir.transform import Pass, PassContext
from ekiden.ir.type import FuncType
from ekiden.kernels.families import has_epilogue
from ekiden.relay.expr import Call, Constant, Function, Tuple, Var
from ekiden.relay.op.nn.window_attrs import MaxPool2DAttrs
from ekiden.relay.transform.fusion.union_find import UnionFindNode
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import (
    evaluation_order,
    find_scopes,
    lift_body_rewrite,
    map_functions,
    operands,
    replace_children,
)
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(eq=False, slots=True)
class _FusionNode(UnionFindNode):
    """Node of a scope's dataflow graph; the members of a fused group form one union-find set."""

    expr: RelayExpr
    index: int
    pattern: OpPattern
    users: list[tuple[_FusionNode, OpPattern]] = field(default_factory=list)
    external: bool = False
    """Whether the node is materialised: used outside the scope, its result, or used too often."""
    anchor: OpPattern = OpPattern.OPAQUE
    """Highest fusion pattern in the group."""
    size: int = 1
    members: list[RelayExpr] = field(init=False)
    """Expressions of the group."""
    dominator: _FusionNode | None = None
    dominator_pattern: OpPattern = OpPattern.OPAQUE
    depth: int = 1

    def __post_init__(self) -> None:
        self.members = [self.expr]


@dataclass(frozen=True, slots=True)
class KernelLimits:
    """Limits of one kernel: number of operators, and of values read (0: no limit)."""

    operators: int = 256
    inputs: int = 0


DEFAULT_KERNEL_LIMITS = KernelLimits()


def is_primitive_call(expr: RelayExpr) -> bool:
    """Return whether an expression calls an operator that lowers to a kernel."""
    return (
        isinstance(expr, Call) and isinstance(expr.op, Op) and expr.op.definition.lower is not None
    )


def is_inline_constant(expr: RelayExpr) -> bool:
    """Return whether a constant is a scalar of rank 0, which becomes an immediate of the kernel."""
    return isinstance(expr, Constant) and expr.data.ndim == 0


MAX_POOL_2X2_EPILOGUE = "pairs_max"
"""Name of the 2x2 max-pooling epilogue of kernels."""
MAX_EPILOGUE_DEPTH = 8
"""Maximum operators between a convolution and a pooling fused as its epilogue."""


def _is_fusable_max_pool(expr: RelayExpr) -> bool:
    """Return whether an operator is a 2x2 max pooling that a convolution kernel can apply as its
    epilogue.

    Windows must not overlap and must fill the data, which must be elementwise on an operator whose
    kernels have that epilogue.
    """
    if not (isinstance(expr, Call) and isinstance(expr.attrs, MaxPool2DAttrs)):
        return False
    attrs = expr.attrs
    # Windows must tile the image exactly, or a register tile of the convolution would hold partial
    # windows.
    plain = attrs.layout == "NHWC" and attrs.dilation == (1, 1) and not any(attrs.padding)
    sides = getattr(expr.args[0].checked_type, "shape", ())[1:3]
    if not (plain and attrs.pool_size == attrs.strides == (2, 2)) or not all(
        isinstance(d, IntImm) and d.value % 2 == 0 for d in sides
    ):
        return False
    stack = [(expr.args[0], 0)]
    while stack:
        position, depth = stack.pop()
        if (
            not (isinstance(position, Call) and isinstance(position.op, Op))
            or depth > MAX_EPILOGUE_DEPTH
        ):
            continue
        # The convolution at the start of the chain has a kernel that can apply it.
        if has_epilogue(position.op.definition.kernels, MAX_POOL_2X2_EPILOGUE):
            return True
        if _op_pattern(position) <= OpPattern.BROADCAST:
            stack += [(a, depth + 1) for a in position.args if _same_shape(a, position)]
    return False


def _op_pattern(expr: RelayExpr) -> OpPattern:
    if _is_fusable_max_pool(expr):
        return OpPattern.ELEMWISE
    if isinstance(expr, Call) and isinstance(expr.op, Op):
        definition = expr.op.definition
        # A reshape is a view: it copies nothing, so a kernel for it would only add a store.
        if definition.lower is None or definition.reshape_only:
            return OpPattern.OPAQUE
        return definition.pattern
    return OpPattern.TUPLE if isinstance(expr, Tuple) else OpPattern.OPAQUE


def _edge_pattern(user: RelayExpr, pattern: OpPattern, operand: RelayExpr) -> OpPattern:
    """Return the fusion pattern of a producer-consumer edge.

    A broadcast operator is elementwise in the operand that already has the result's shape. It stays
    apart from one whose dimensions, perhaps named inside, cannot be told from the result's.
    """
    if isinstance(user, Tuple):
        return OpPattern.INJECTIVE
    if pattern == OpPattern.BROADCAST and _has_derived_dimension(user, operand):
        return OpPattern.OPAQUE
    # Where shapes agree, each element reads its own index, and the sums may still be in registers.
    if pattern == OpPattern.BROADCAST and _same_shape(user, operand):
        return OpPattern.ELEMWISE
    return pattern


def _has_derived_dimension(user: RelayExpr, operand: RelayExpr) -> bool:
    """Return whether a symbolic dimension of the operand occurs in the result only within compound
    expressions.
    """
    inner = getattr(operand.checked_type, "shape", ())
    outer = getattr(user.checked_type, "shape", ())
    plain = {d for d in outer if isinstance(d, Symbol)}
    nested_dims = {v for d in outer for v in prim_vars(d)} - plain
    return any(isinstance(d, Symbol) and d in nested_dims for d in inner)


def _same_shape(a: RelayExpr, b: RelayExpr) -> bool:
    shape_a, shape_b = (
        getattr(a.checked_type, "shape", None),
        getattr(b.checked_type, "shape", None),
    )
    if shape_a is None or shape_b is None or len(shape_a) != len(shape_b):
        return False
    return all(prove_equal(x, y) for x, y in zip(shape_a, shape_b, strict=True))


def _build_graph(nodes: list[RelayExpr], outputs: set[RelayExpr]) -> dict[RelayExpr, _FusionNode]:
    graph: dict[RelayExpr, _FusionNode] = {}
    for expr in nodes:
        pattern = _op_pattern(expr)
        node = _FusionNode(expr, len(graph), pattern, external=expr in outputs, anchor=pattern)
        graph[expr] = node
        for operand in operands(expr):
            if operand in graph:
                edge = _edge_pattern(expr, pattern, operand)
                # Nothing follows such a maximum within the kernel.
                if _is_fusable_max_pool(operand):
                    edge = OpPattern.OPAQUE
                graph[operand].users.append((node, edge))
    return graph


MAX_COMPUTED_COPIES = 8
"""Maximum recomputations of an operator within a kernel, which double with each shifted self-read.
"""


MAX_RECOMPUTED_OPERATORS = 3
"""Maximum operators of a chain that is always cheap to recompute."""


def _materialize_duplicated_values(graph: dict[RelayExpr, _FusionNode]) -> None:
    """Materialise values that a kernel would otherwise compute too many times.

    A kernel has no memory of its own for intermediates: where a user reads elements in place, the
    value is computed once with the user's, and where it reads them elsewhere (a slice, shifted)
    once more. copies(x) = max over users in place + sum over users elsewhere, from the results
    backwards. A sum by doubling of 13 elements was written out 81 times, and took minutes to
    compile.
    """
    copies: dict[_FusionNode, int] = {}
    # Users first: a node is computed as often as all of its users together.
    for node in reversed(graph.values()):
        user_copies = [(copies[user], edge) for user, edge in node.users]
        same = max((n for n, edge in user_copies if edge == OpPattern.ELEMWISE), default=0)
        moved = sum(n for n, e in user_copies if OpPattern.ELEMWISE < e <= OpPattern.INJECTIVE)
        copies[node] = max(1, same + moved)
        if copies[node] > MAX_COMPUTED_COPIES and not _is_cheap_chain(node, graph):
            # Stored once, it is read from memory by all users.
            node.external, copies[node] = True, 1


def _is_cheap_chain(node: _FusionNode, graph: dict[RelayExpr, _FusionNode]) -> bool:
    """Return whether at most MAX_RECOMPUTED_OPERATORS elementwise operators lead to a node; true
    for other nodes.

    A tuple is no operator, and passed through: `concatenate((t, t))` of such leads to more and
    more.
    """
    if node.pattern > OpPattern.INJECTIVE:
        return True
    visited, stack, count = {node}, [node], 1
    # The search stops as soon as recomputing would cost more than a load.
    while stack and count <= MAX_RECOMPUTED_OPERATORS:
        for operand in operands(stack.pop().expr):
            before = graph.get(operand)
            if before is None or before in visited:
                continue
            if before.pattern <= OpPattern.INJECTIVE or before.pattern == OpPattern.TUPLE:
                visited.add(before)
                stack.append(before)
                count += before.pattern != OpPattern.TUPLE
    return count <= MAX_RECOMPUTED_OPERATORS


def _lowest_common_dominator(
    a: _FusionNode | None, b: _FusionNode | None
) -> tuple[_FusionNode | None, OpPattern]:
    """Return the lowest common ancestor in the post-dominator tree, and the worst pattern on the
    way to it.

    The deeper of both goes up: depth is counted from the result.
    """
    worst = OpPattern.ELEMWISE
    while a is not b:
        if a is None or b is None:
            return None, OpPattern.OPAQUE
        if a.depth < b.depth:
            # The deeper of both goes up.
            a, b = b, a
        worst = max(worst, a.dominator_pattern)
        a = a.dominator
    return a, worst


def _find_post_dominators(nodes: list[_FusionNode]) -> None:
    """Build the post-dominator tree in reverse topological order: a node's parent is the common
    ancestor of its users. A result, and what is used outside of the scope, is a root.
    """
    for node in reversed(nodes):
        if node.external or not node.users:
            continue
        dominator: _FusionNode | None = node.users[0][0]
        worst = node.users[0][1]
        # The intersection of dominators of Cooper, Harvey and Kennedy, on a DAG in one pass.
        for user, pattern in node.users[1:]:
            dominator, passed = _lowest_common_dominator(dominator, user)
            worst = max(worst, pattern, passed)
            if dominator is None:
                break
        node.dominator = dominator
        if dominator is not None:
            node.depth = dominator.depth + 1
            node.dominator_pattern = worst


FusionCondition = Callable[[OpPattern, bool], bool]
"""Predicate (pattern of a group on the path, is_sink) -> may be merged."""


def _nodes_on_paths(
    source: _FusionNode, sink: _FusionNode, allowed: FusionCondition
) -> list[_FusionNode] | None:
    """Return all nodes on paths from source (included) to sink (excluded), or None if one violates
    the condition.
    """
    path: list[_FusionNode] = [source]
    # Diamonds are walked once.
    visited = {id(source)}
    stack = [user for user, _ in source.users]
    while stack:
        current = stack.pop()
        if id(current) in visited:
            continue
        visited.add(id(current))
        if not allowed(current.root().anchor, current is sink):
            return None
        if current is not sink:
            path.append(current)
            stack.extend(user for user, _ in current.users)
    return path


def _merge_groups(child: _FusionNode, parent: _FusionNode) -> None:
    """Merge two fusion groups.

    A tuple says nothing of how hard a group is to compute, so it leaves the anchor of the merged
    group as it was.
    """
    child, parent = child.root(), parent.root()
    if child is parent:
        return
    parent.size += child.size
    parent.members += child.members
    child.parent = parent
    parent.anchor = (
        max(parent.anchor, child.anchor) if child.anchor != OpPattern.TUPLE else parent.anchor
    )


def _fuse_into_dominator(node: _FusionNode, allowed: FusionCondition, limits: KernelLimits) -> None:
    assert node.dominator is not None
    path = _nodes_on_paths(node, node.dominator, allowed)
    if path is None:
        return
    groups = {id(n.root()): n.root() for n in [*path, node.dominator]}
    # All nodes on the path come along, so their groups count too.
    if sum(g.size for g in groups.values()) > limits.operators:
        return
    # GPU and C backends bound the number of kernel arguments.
    if limits.inputs and _num_group_inputs(groups.values()) > limits.inputs:
        return
    for n in path:
        _merge_groups(n, node.dominator)


def _num_group_inputs(groups: Iterable[_FusionNode]) -> int:
    """Return the number of values that groups read from outside."""
    inside = {m for g in groups for m in g.members}
    read = {operand for m in inside for operand in operands(m)} - inside
    return sum(not is_inline_constant(operand_read) for operand_read in read)


def _is_at_most_broadcast(kind: OpPattern, is_sink: bool) -> bool:
    return kind <= OpPattern.BROADCAST


def _is_at_most_injective(kind: OpPattern, is_sink: bool) -> bool:
    return kind <= OpPattern.INJECTIVE


def _is_fusable_into_reduction(kind: OpPattern, is_sink: bool) -> bool:
    return kind <= (OpPattern.OUT_ELEMWISE_FUSABLE if is_sink else OpPattern.INJECTIVE)


def _try_fuse(node: _FusionNode, phase: int, limits: KernelLimits) -> None:
    """Fuse a node into its post-dominator if the phase allows (the three phases of Relay's
    GraphPartitioner).
    """
    dominator = node.dominator
    anchor = node.root().anchor
    if dominator is None or OpPattern.OPAQUE in (anchor, node.pattern, node.dominator_pattern):
        return
    # The last phase only joins what moves elements with the tuple that collects it.
    if phase == 2:
        target = dominator.root().anchor
        if (
            anchor <= OpPattern.INJECTIVE
            and dominator.pattern == OpPattern.TUPLE
            and target <= OpPattern.INJECTIVE
        ):
            _fuse_into_dominator(node, _is_at_most_injective, limits)
        return
    # An earlier node on the path has brought this one along.
    if node.root() is dominator.root() or dominator.root().anchor == OpPattern.TUPLE:
        return
    if anchor == OpPattern.OUT_ELEMWISE_FUSABLE:
        # Products take what follows them first, before other groups can.
        if phase == 0 and node.dominator_pattern == OpPattern.ELEMWISE:
            _fuse_into_dominator(node, _is_at_most_broadcast, limits)
    elif anchor <= OpPattern.BROADCAST:
        if node.dominator_pattern <= OpPattern.COMM_REDUCE:
            _fuse_into_dominator(node, _is_fusable_into_reduction, limits)
    elif anchor in (OpPattern.INJECTIVE, OpPattern.TUPLE) and phase == 1:
        _fuse_into_dominator(node, _is_at_most_injective, limits)


def _partition_scope(
    nodes: list[RelayExpr], outputs: set[RelayExpr], limits: KernelLimits
) -> dict[RelayExpr, list[RelayExpr]]:
    """Partition a scope into fusion groups: result expression -> members in topological order."""
    graph = _build_graph(nodes, outputs)
    ordered = list(graph.values())
    _materialize_duplicated_values(graph)
    _find_post_dominators(ordered)
    for phase in range(3):
        for node in ordered:
            _try_fuse(node, phase, limits)
    groups: dict[int, list[RelayExpr]] = {}
    for node in ordered:
        groups.setdefault(id(node.root()), []).append(node.expr)
    # Members are in topological order, so the last is the result.
    return {members[-1]: members for members in groups.values()}


class _GroupBuilder:
    """Builder of a fused group's primitive function.

    The args are what is read that no member computes, each once, in the order of its first use.
    Numbers stay inside as constants, for the kernel to be simplified by.
    """

    def __init__(self, members: list[RelayExpr]) -> None:
        self.inner: dict[RelayExpr, RelayExpr] = {}
        self.params: list[Var] = []
        self.args: list[RelayExpr] = []
        for member in members:
            self.inner[member] = self._rebuild_member(member)
        self.body = self.inner[members[-1]]

    def _rebuild_member(self, expr: RelayExpr) -> RelayExpr:
        return replace_children(
            expr, {operand: self._operand_value(operand) for operand in operands(expr)}
        )

    def _operand_value(self, expr: RelayExpr) -> RelayExpr:
        if expr in self.inner:
            return self.inner[expr]
        if is_inline_constant(expr):
            return expr
        if isinstance(expr, Tuple):  # a tuple costs nothing: take its fields
            return self._rebuild_member(expr)
        # Names by position: equal groups become equal functions, and one kernel is compiled.
        param = Var(f"p{len(self.params)}", expr.checked_type)
        param.set_checked_type(expr.checked_type)
        self.params.append(param)
        self.args.append(expr)
        self.inner[expr] = param
        return param

    def build_function(self, result: RelayExpr, reshape_only: bool) -> Function:
        """Build the primitive function of the group."""
        attrs: dict[str, object] = {"Primitive": 1}
        if reshape_only:
            attrs["relay.reshape_only"] = 1
        func = Function(
            tuple(self.params), self.body, result.checked_type, (), attrs, span=result.span
        )
        func.set_checked_type(
            FuncType(tuple(p.checked_type for p in self.params), result.checked_type)
        )
        return func


def single_operator_function(call: Call) -> Function:
    """Build the primitive function of a single operator call."""
    return _GroupBuilder([call]).build_function(call, _is_reshape_only([call]))


def _is_stop_fusion(expr: RelayExpr) -> bool:
    return (
        isinstance(expr, Call) and isinstance(expr.op, Op) and expr.op.definition.is_fusion_barrier
    )


def _is_reshape_only(members: list[RelayExpr]) -> bool:
    only = members[0]
    return (
        len(members) == 1
        and isinstance(only, Call)
        and isinstance(only.op, Op)
        and only.op.definition.reshape_only
    )


def find_kernel_groups(
    root: RelayExpr, most: KernelLimits = DEFAULT_KERNEL_LIMITS
) -> dict[RelayExpr, list[RelayExpr]]:
    """Map the result of each fused group that has a kernel to the group's members, in all scopes
    below root.
    """
    groups: dict[RelayExpr, list[RelayExpr]] = {}
    for scope in find_scopes(root):
        for result, members in _partition_scope(scope.nodes, scope.outputs, most).items():
            # A group of tuples alone computes nothing.
            if any(is_primitive_call(m) for m in members):
                groups[result] = members
    return groups


def fuse(root: RelayExpr, most: KernelLimits = DEFAULT_KERNEL_LIMITS) -> RelayExpr:
    """Replace every fused group below root by a call of a primitive function. Needs checked types.

    A group of one operator fuses nothing. Parameters of a function stand in the order in which the
    group reads them, so that equal groups are equal functions, of which one kernel is compiled.
    """
    groups = find_kernel_groups(root, most)
    inner = {m for result, members in groups.items() for m in members if m is not result}
    new: dict[RelayExpr, RelayExpr] = {}
    for expr in evaluation_order(root):
        if expr in inner:
            continue
        if expr not in groups:
            new[expr] = replace_children(expr, new)
            continue
        # A fence has done its work once the groups are made.
        if _is_stop_fusion(expr):
            assert isinstance(expr, Call)
            new[expr] = new.get(expr.args[0], expr.args[0])
            continue
        members = groups[expr]
        builder = _GroupBuilder(members)
        function = builder.build_function(expr, _is_reshape_only(members))
        call = Call(function, tuple(new.get(a, a) for a in builder.args), span=expr.span)
        call.set_checked_type(expr.checked_type)
        new[expr] = call
    return new[root]


def FuseOps(fuse_opt_level: int = -1, most_inputs: int = 0) -> Pass:  # noqa: N802
    """Return a pass that fuses operators into primitive functions (TVM's FuseOps).

    Args:
        fuse_opt_level: 0 gives every operator its own function; below 0, the opt level of the
            context.
        most_inputs: The limit of what a kernel of a device reads; 0 for none.
    """

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Fuse the functions of a module within the limit of the option MAX_FUSE_DEPTH_OPTION."""
        limit = context.option(MAX_FUSE_DEPTH_OPTION)
        assert isinstance(limit, int)
        level = context.opt_level if fuse_opt_level < 0 else fuse_opt_level
        # At level 0 each operator is a kernel of its own, for debugging.
        limits = KernelLimits(1 if level == 0 else limit, most_inputs)
        return map_functions(module, lift_body_rewrite(lambda body: fuse(body, limits)))

    return Pass("FuseOps", transform, required=(InferType(),))
