"""Combine parallel operators that share their data operand into one wide operator, and slice its
result.

    nn.conv2d(%x, %v), nn.conv2d(%x, %w)
    ->  %0 = nn.conv2d(%x, concatenate((%v, %w)));
        strided_slice(%0, .. first channels), strided_slice(%0, .. the others)

Likewise nn.dense (as one wide product, or as one batch of equal ones) and nn.batch_matmul. What
follows all of them alike, element by element, is applied to the combined result: additions of a
bias each, as one of the biases side by side. Only weights and biases that are constants or names
take part, so that nothing waits for what comes later.

Rows of a weight do not mix:  x [v; w]^T = [x v^T, x w^T].  What follows, element by element,
commutes with cutting along the axis that was joined:  f(cut(y)) = cut(f(y)).

Groups are of one scope: a let between two calls ends it, as a weight may be bound there. The first
call that is met in the order of evaluation becomes the combined one, the others are cut out of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op, OpPattern
from ekiden.ir.prim import IntImm
from ekiden.ir.structural import structural_key
from ekiden.ir.transform import Pass, PassContext, Sequential
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant, TupleGetItem, Var
from ekiden.relay.transform.graph.call_rewrites import infer_new_types
from ekiden.relay.transform.graph.float_rewrites import is_rewrite_allowed
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import (
    RelayScope,
    find_scopes,
    lift_body_rewrite,
    map_functions,
    operands,
    rewrite_graph,
)
from ekiden.runtime.lazy_dataclass import dataclass

GroupingKey = tuple[object, ...]
MAX_COMBINED_DENSE_ROWS = 8
"""Maximum rows of dense layers that the default pipeline combines (3 of 8x384x384: 66 to 36 us).
Each may be too little work for two cores where all together are enough (3 of 8x384x384: 66 to 36
us), and on one core it is as fast. Of more rows, layers fill the cores, and cutting their result
costs 2 % (3 of 128x384x384); so it is with the 1x1 convolutions of an Inception block.
"""


@dataclass(frozen=True, slots=True)
class CombineRule:
    """Rule for combining parallel calls of one operator.

    key       what calls must have in common beside the data; None to leave a call out
    combine   combines all calls over the one data
    axis      the axis of a call's result along which the results lie side by side; None where they
              are the entries of a new first axis
    widens    whether one number for all channels may take part in what follows, once for each
    follows   whether anything may follow
    """

    name: str
    key: Callable[[Call], GroupingKey | None]
    combine: Callable[[RelayExpr, Sequence[Call]], RelayExpr]
    axis: Callable[[Call], int | None]
    broadcasts_args: bool = False
    combines_followers: bool = True


def _static_shape(expr: RelayExpr) -> list[int] | None:
    kind = expr.checked_type
    assert isinstance(kind, TensorType)
    sizes = [d.value for d in kind.shape if isinstance(d, IntImm)]
    return sizes if len(sizes) == len(kind.shape) else None


def _rank(expr: RelayExpr) -> int:
    kind = expr.checked_type
    assert isinstance(kind, TensorType)
    return len(kind.shape)


def _slice_result(
    combined: RelayExpr, sizes: Sequence[int], axis: int, rank: int
) -> list[RelayExpr]:
    """Slice a combined result along an axis into pieces of the given sizes (begin and size lists of
    `rank` entries, as TVM writes them).
    """
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    before, behind = [0] * axis, [0] * (rank - axis - 1)
    begins = [[*before, start, *behind] for start in starts]
    ends = [[*(-1 for _ in before), size, *(-1 for _ in behind)] for size in sizes]
    return [
        op.strided_slice(combined, begin, end, [1] * rank, slice_mode="size")
        for begin, end in zip(begins, ends, strict=True)
    ]


def _conv2d_grouping_key(call: Call) -> GroupingKey | None:
    attrs, weight = call.attrs, _static_shape(call.args[1])
    layouts = tuple(getattr(attrs, n) for n in ("data_layout", "kernel_layout", "out_layout"))
    # Weights are concatenated along O, the first axis.
    is_plain = layouts in (("NCHW", "OIHW", ""), ("NCHW", "OIHW", "NCHW"))
    if weight is None or getattr(attrs, "groups", 1) != 1 or not is_plain:
        return None
    # The number of output channels may differ between the branches; all other attributes must
    # agree.
    plain = attrs.with_fields(channels=None, out_layout="") if attrs is not None else None
    return (structural_key(plain), *weight[1:])


def _combine_conv2d(data: RelayExpr, calls: Sequence[Call]) -> RelayExpr:
    sizes = [(_static_shape(c.args[1]) or [0])[0] for c in calls]
    attrs = calls[0].attrs
    assert attrs is not None
    weight = op.concatenate([c.args[1] for c in calls], 0)
    return Call(calls[0].op, (data, weight), attrs.with_fields(channels=sum(sizes)))


def _dense_grouping_key(call: Call) -> GroupingKey | None:
    weight = _static_shape(call.args[1])
    attrs = None if call.attrs is None else structural_key(call.attrs.with_fields(units=None))
    return None if weight is None else (attrs, weight[1])


def _equal_shape_dense_key(call: Call) -> GroupingKey | None:
    weight, kind = _static_shape(call.args[1]), call.args[0].checked_type
    assert isinstance(kind, TensorType)
    key = _dense_grouping_key(call)
    return None if key is None or weight is None or len(kind.shape) != 2 else (*key, weight[0])


def _few_rows_dense_key(call: Call) -> GroupingKey | None:
    data = _static_shape(call.args[0])
    few = data is not None and math.prod(data[:-1]) <= MAX_COMBINED_DENSE_ROWS
    return _dense_grouping_key(call) if few and isinstance(call.args[1], Constant) else None


def _combine_wide_dense(data: RelayExpr, calls: Sequence[Call]) -> RelayExpr:
    sizes = [(_static_shape(c.args[1]) or [0])[0] for c in calls]
    out_dtype = getattr(calls[0].attrs, "out_dtype", "")
    weight = op.concatenate([c.args[1] for c in calls], 0)
    return op.nn.dense(data, weight, sum(sizes), out_dtype)


def _combine_batched_dense(data: RelayExpr, calls: Sequence[Call]) -> RelayExpr:
    out_dtype = getattr(calls[0].attrs, "out_dtype", "")
    stacked_data = op.stack([data] * len(calls), 0)
    stacked_weights = op.stack([c.args[1] for c in calls], 0)
    return op.nn.batch_matmul(stacked_data, stacked_weights, out_dtype=out_dtype)


def _batch_matmul_grouping_key(call: Call) -> GroupingKey | None:
    weight = _static_shape(call.args[1])
    if weight is None:
        return None
    # The axis of the columns may differ in size, the other ones may not.
    columns = 1 if getattr(call.attrs, "transpose_b", True) else 2
    return (structural_key(call.attrs), weight[0], weight[3 - columns])


def _combine_batch_matmul(data: RelayExpr, calls: Sequence[Call]) -> RelayExpr:
    columns = 1 if getattr(calls[0].attrs, "transpose_b", True) else 2
    right = op.concatenate([c.args[1] for c in calls], columns)
    return Call(calls[0].op, (data, right), calls[0].attrs)


def _last_axis(call: Call) -> int:
    return _rank(call) - 1


CONV2D_RULE = CombineRule("nn.conv2d", _conv2d_grouping_key, _combine_conv2d, lambda call: 1)
WIDE_DENSE_RULE = CombineRule(
    "nn.dense", _dense_grouping_key, _combine_wide_dense, _last_axis, broadcasts_args=True
)
FEW_ROWS_DENSE_RULE = CombineRule(
    "nn.dense", _few_rows_dense_key, _combine_wide_dense, _last_axis, combines_followers=False
)
BATCHED_DENSE_RULE = CombineRule(
    "nn.dense", _equal_shape_dense_key, _combine_batched_dense, lambda call: None
)
BATCH_MATMUL_RULE = CombineRule(
    "nn.batch_matmul", _batch_matmul_grouping_key, _combine_batch_matmul, _last_axis
)


@dataclass(frozen=True, slots=True)
class _ParallelGroup:
    """Parallel calls of one operator in a scope, each with the chain of elementwise calls that
    alone follow it.
    """

    kind: CombineRule
    branches: list[list[Call]]

    def combine_branches(self, data: RelayExpr) -> dict[RelayExpr, RelayExpr]:
        """Return a map from the last call of each combined branch to its slice of the combined
        result.
        """
        calls = [branch[0] for branch in self.branches]
        axis = self.kind.axis(calls[0])
        combined = infer_new_types(self.kind.combine(data, calls))
        for level in zip(*(branch[1:] for branch in self.branches), strict=False):
            followed = _combine_followers(self.kind, combined, calls, level, axis)
            # The result is cut where the branches begin to differ.
            if followed is None:
                break
            combined, axis = infer_new_types(followed[0]), followed[1]
            calls = list(level)
        slices = self._slice_branches(combined, calls, axis)
        return dict(zip(calls, map(infer_new_types, slices), strict=True))

    def _slice_branches(
        self, combined: RelayExpr, calls: Sequence[Call], axis: int | None
    ) -> list[RelayExpr]:
        if axis is None:
            fields = op.split(combined, len(calls), 0)
            return [op.squeeze(TupleGetItem(fields, i), axis=[0]) for i in range(len(calls))]
        sizes = [(_static_shape(call) or [0] * (axis + 1))[axis] for call in calls]
        return _slice_result(
            combined, sizes, axis, _rank(calls[0]) if self.kind.broadcasts_args else axis + 1
        )


def _combine_followers(
    kind: CombineRule,
    combined: RelayExpr,
    before: Sequence[Call],
    level: Sequence[Call],
    axis: int | None,
) -> tuple[RelayExpr, int | None] | None:
    """Combine the calls that follow each branch into one call over the combined result.

    Followers must be alike in operator, attributes, and the position of the data. With attributes
    and several arguments (an axis, say) it is not known which axis an attribute counts, so only
    operators without attributes may take further tensors.

    Returns:
        The combined call and the axis of its slices; None where followers differ.
    """
    first = level[0]
    # Subtraction and division do not commute, so the data must be the same argument in all.
    position = next(i for i, arg in enumerate(first.args) if arg is before[0])
    alike = all(
        call.op is first.op
        and structural_key(call.attrs) == structural_key(first.attrs)
        and len(call.args) == len(first.args)
        and call.args[position] is data
        for call, data in zip(level, before, strict=True)
    )
    is_plain = first.attrs is None or len(first.args) == 1
    if not alike or not is_plain:
        return None
    where = _slice_axis_after(before, level, axis)
    if where is None:
        return None
    args = list(first.args)
    for i in range(len(args)):
        joined = (
            combined
            if i == position
            else _combine_args(kind, [c.args[i] for c in level], level, where[0])
        )
        if joined is None:
            return None
        args[i] = joined
    return Call(first.op, tuple(args), first.attrs), where[0]


def _slice_axis_after(
    before: Sequence[Call], level: Sequence[Call], axis: int | None
) -> tuple[int | None] | None:
    """Return the axis of the branches' slices after the following calls, in a 1-tuple; None where
    it is unknown.

    What broadcasts may add axes in front. An operator with one argument may move them (transpose):
    the axis is then the one along which the extents are those that the slices had, if that is one
    alone and all others agree.
    """
    shapes = [_static_shape(call) for call in level]
    rank, was = _rank(level[0]), _rank(before[0])
    if any(shape is None or len(shape) != rank for shape in shapes):
        return None
    if axis is None:
        is_same = all(
            _static_shape(a) == _static_shape(b) for a, b in zip(before, level, strict=True)
        )
        is_even = (
            isinstance(level[0].op, Op) and level[0].op.definition.pattern is OpPattern.ELEMWISE
        )
        return (None,) if is_same and (is_even or level[0].attrs is None) else None
    sizes = [(_static_shape(call) or [0] * was)[axis] for call in before]
    is_broadcast = len(level[0].args) > 1 or rank == was
    candidates = [axis + rank - was] if is_broadcast else range(rank)
    # A reshape may move the axis: it is found again by its sizes.
    matching = [n for n in candidates if [(s or [0] * rank)[n] for s in shapes] == sizes]
    other_dims = {tuple(d for n, d in enumerate(s or ()) if n not in matching) for s in shapes}
    return (matching[0],) if len(matching) == 1 and len(other_dims) == 1 else None


def _combine_args(
    kind: CombineRule, args: Sequence[RelayExpr], calls: Sequence[Call], axis: int | None
) -> RelayExpr | None:
    """Combine the non-data arguments of parallel calls; None where their shapes do not match."""
    shapes = [_static_shape(arg) for arg in args]
    alike = {(None if s is None else len(s), _dtype(a)) for s, a in zip(shapes, args, strict=True)}
    is_ready = all(isinstance(arg, (Constant, Var)) for arg in args)
    if len(alike) != 1 or not is_ready or shapes[0] is None:
        return None
    rank = _rank(calls[0])
    if axis is None:
        return _stack_args(args, rank) if all(s == shapes[0] for s in shapes) else None
    axis_index = axis - (rank - len(shapes[0]))
    other_dims = {tuple(d for n, d in enumerate(s or ()) if n != axis_index) for s in shapes}
    widened = [
        _broadcast_arg(kind, arg, call, axis_index, axis)
        for arg, call in zip(args, calls, strict=True)
    ]
    complete = [arg_or_none for arg_or_none in widened if arg_or_none is not None]
    if len(other_dims) != 1 or len(complete) != len(widened):
        return None
    is_last = axis_index == len(shapes[0]) - 1 and not kind.broadcasts_args
    return op.concatenate(complete, -1 if is_last else max(axis_index, 0))


def _dtype(expr: RelayExpr) -> str:
    kind = expr.checked_type
    assert isinstance(kind, TensorType)
    return kind.dtype


def _stack_args(args: Sequence[RelayExpr], rank: int) -> RelayExpr:
    """Stack arguments along a new leading axis, padded with unit axes to the rank of the
    results.
    """
    missing = rank - _rank(args[0])
    full = [op.expand_dims(arg, 0, missing) for arg in args] if missing else args
    return op.stack(full, 0)


def _broadcast_arg(
    kind: CombineRule, arg: RelayExpr, call: Call, at: int, axis: int
) -> RelayExpr | None:
    """Broadcast an argument to the extent of the call's channels along its axis `at`; None where
    that is impossible.
    """
    shape, size = _static_shape(arg) or [], (_static_shape(call) or [])[axis]
    if at >= 0 and shape[at] == size:
        return arg
    is_number = not shape or (at >= 0 and shape[at] == 1)
    if not kind.broadcasts_args or not is_number or axis != _rank(call) - 1:
        return None
    return op.repeat(arg if shape else op.expand_dims(arg, -1), size, max(at, 0))


def combine_parallel_ops(root: RelayExpr, kind: CombineRule, min_num_branches: int) -> RelayExpr:
    """Return `root` with every group of at least `min_num_branches` parallel calls combined into
    one.

    Needs checked types.
    """
    group_of: dict[RelayExpr, _ParallelGroup] = {}
    for group in _find_groups(root, kind):
        # Cutting the result costs more than few calls save.
        if len(group.branches) >= min_num_branches:
            group_of.update(dict.fromkeys((branch[0] for branch in group.branches), group))
    slices: dict[RelayExpr, RelayExpr] = {}
    combined_groups: set[int] = set()

    def rewrite(old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """Replace a grouped call by its slice; the first call of a group emits the combined
        operator.
        """
        group = group_of.get(old)
        if group is not None and id(group) not in combined_groups:
            assert isinstance(new, Call)
            combined_groups.add(id(group))
            slices.update(group.combine_branches(new.args[0]))
        return slices.get(old, new)

    return rewrite_graph(root, rewrite)


def _find_groups(root: RelayExpr, kind: CombineRule) -> list[_ParallelGroup]:
    groups: dict[GroupingKey, _ParallelGroup] = {}
    for scope in find_scopes(root):
        users = _scope_users(scope) if kind.combines_followers else {}
        for expr in scope.nodes:
            if not isinstance(expr, Call) or not isinstance(expr.op, Op):
                continue
            # Only constants and variables: a computed weight could depend on another branch.
            is_it = expr.op.name == kind.name and isinstance(expr.args[1], (Constant, Var))
            key = kind.key(expr) if is_it else None
            if key is not None:
                # The scope is part of the key: a weight of another scope may not be bound yet.
                full = (id(scope), expr.args[0], _dtype(expr.args[1]), *key)
                groups.setdefault(full, _ParallelGroup(kind, [])).branches.append(
                    _elementwise_chain(expr, users)
                )
    return list(groups.values())


def _scope_users(scope: RelayScope) -> dict[RelayExpr, list[RelayExpr]]:
    """Return the users of each expression that has none outside the scope."""
    users: dict[RelayExpr, list[RelayExpr]] = {}
    for expr in scope.nodes:
        for operand in operands(expr):
            if operand not in scope.outputs:
                users.setdefault(operand, []).append(expr)
    return users


def _elementwise_chain(call: Call, users: Mapping[RelayExpr, Sequence[RelayExpr]]) -> list[Call]:
    branch = [call]
    # A value with several users ends the branch, since it must be cut for them.
    while len(next_users := users.get(branch[-1], ())) == 1:
        (user,) = next_users
        if not isinstance(user, Call) or not isinstance(user.op, Op):
            break
        # Only elementwise followers commute with cutting.
        if user.op.definition.pattern > OpPattern.BROADCAST:
            break
        branch.append(user)
    return branch


def _combine_pass(name: str, kind: CombineRule, min_num_branches: int, opt_level: int = 4) -> Pass:
    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Combine parallel operators in each function, where the rewrite is allowed."""
        if not is_rewrite_allowed("join products", context):
            return module
        return map_functions(
            module, lift_body_rewrite(lambda b: combine_parallel_ops(b, kind, min_num_branches))
        )

    return Pass(name, transform, opt_level, (InferType(),))


def CombineParallelConv2D(min_num_branches: int = 3) -> Pass:  # noqa: N802
    """Return a pass that combines parallel conv2d calls on the same data (TVM's
    CombineParallelConv2D).
    """
    return _combine_pass("CombineParallelConv2d", CONV2D_RULE, min_num_branches)


def CombineParallelDense(min_num_branches: int = 3, to_batch: bool = True) -> Pass:  # noqa: N802
    """Return a pass that combines parallel dense layers on the same data (TVM's
    CombineParallelDense).

    Args:
        min_num_branches: The fewest calls that are combined.
        to_batch: Whether they become one nn.batch_matmul of weights of equal shape, or one wide
            nn.dense.
    """
    kind = BATCHED_DENSE_RULE if to_batch else WIDE_DENSE_RULE
    return _combine_pass("CombineParallelDense", kind, min_num_branches)


def CombineFewRows(min_num_branches: int = 2) -> Pass:  # noqa: N802
    """Return a pass that combines parallel dense layers of few rows and constant weights into one
    wide layer.
    """
    return _combine_pass("CombineFewRows", FEW_ROWS_DENSE_RULE, min_num_branches, 3)


def CombineParallelBatchMatmul(min_num_branches: int = 3) -> Pass:  # noqa: N802
    """Return a pass that combines parallel batch_matmul calls on the same data (TVM's
    CombineParallelBatchMatmul).
    """
    return _combine_pass("CombineParallelBatchMatmul", BATCH_MATMUL_RULE, min_num_branches)


def BatchingOps() -> Pass:  # noqa: N802
    """Return the sequence of the conv2d, dense and batch_matmul combining passes (TVM's
    BatchingOps).
    """
    return Sequential(
        (CombineParallelConv2D(), CombineParallelDense(), CombineParallelBatchMatmul()),
        "BatchingOps",
    )
