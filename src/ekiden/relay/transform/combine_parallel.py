"""Run operators side by side over the same data as one, and cut its result.

    nn.conv2d(%x, %v), nn.conv2d(%x, %w)
->  %0 = nn.conv2d(%x, concatenate((%v, %w)));
    strided_slice(%0, .. first channels), strided_slice(%0, .. the others)

Likewise nn.dense (as one wide product, or as one batch of equal ones) and nn.batch_matmul. Only
weights that are constants or names take part, so that nothing waits for what comes later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.prim import IntImm
from ekiden.ir.structural import structural_key
from ekiden.ir.transform import Pass, PassContext, Sequential
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant, TupleGetItem, Var
from ekiden.relay.transform.calls import typed
from ekiden.relay.transform.infer_type import InferType
from ekiden.relay.transform.scopes import find_scopes, map_functions, on_body, rewrite_graph

Key = tuple[object, ...]
FEW_ROWS = 8
"""Rows up to which the default pipeline combines dense layers. Each may be too little work for two
cores where all together are enough (3 of 8x384x384: 66 to 36 us), and on one core it is as fast. Of
more rows, layers fill the cores, and cutting their result costs 2 % (3 of 128x384x384); so it is
with the 1x1 convolutions of an Inception block."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How calls of one operator are combined.

    key: what they must have in common beside the data, None to leave a call out. combine: the
    results, in order, of calls over the one data.
    """

    name: str
    key: Callable[[Call], Key | None]
    combine: Callable[[RelayExpr, Sequence[Call]], list[RelayExpr]]


def _shape(expr: RelayExpr) -> list[int] | None:
    kind = expr.checked_type
    assert isinstance(kind, TensorType)
    sizes = [d.value for d in kind.shape if isinstance(d, IntImm)]
    return sizes if len(sizes) == len(kind.shape) else None


def _cut(whole: RelayExpr, sizes: Sequence[int], axis: int) -> list[RelayExpr]:
    """The parts of a result along an axis, of the others all (TVM's form)."""
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    ones = [1] * (axis + 1)
    return [
        op.strided_slice(whole, [0] * axis + [start], [-1] * axis + [size], ones, slice_mode="size")
        for size, start in zip(sizes, starts, strict=True)
    ]


def _conv2d_key(call: Call) -> Key | None:
    attrs, weight = call.attrs, _shape(call.args[1])
    layouts = tuple(getattr(attrs, n) for n in ("data_layout", "kernel_layout", "out_layout"))
    if weight is None or getattr(attrs, "groups", 1) != 1 or layouts[:2] != ("NCHW", "OIHW"):
        return None
    plain = attrs.with_fields(channels=None) if attrs is not None else None
    return (structural_key(plain), *weight[1:], layouts[2] in ("", "NCHW"))


def _conv2d(data: RelayExpr, calls: Sequence[Call]) -> list[RelayExpr]:
    sizes = [(_shape(c.args[1]) or [0])[0] for c in calls]
    attrs = calls[0].attrs
    assert attrs is not None
    weight = op.concatenate([c.args[1] for c in calls], 0)
    whole = Call(calls[0].op, (data, weight), attrs.with_fields(channels=sum(sizes)))
    return _cut(whole, sizes, 1)


def _dense_key(call: Call) -> Key | None:
    weight = _shape(call.args[1])
    attrs = None if call.attrs is None else structural_key(call.attrs.with_fields(units=None))
    return None if weight is None else (attrs, weight[1])


def _equal_dense_key(call: Call) -> Key | None:
    weight, kind = _shape(call.args[1]), call.args[0].checked_type
    assert isinstance(kind, TensorType)
    key = _dense_key(call)
    return None if key is None or weight is None or len(kind.shape) != 2 else (*key, weight[0])


def _few_rows_key(call: Call) -> Key | None:
    data = _shape(call.args[0])
    few = data is not None and math.prod(data[:-1]) <= FEW_ROWS
    return _dense_key(call) if few and isinstance(call.args[1], Constant) else None


def _wide_dense(data: RelayExpr, calls: Sequence[Call]) -> list[RelayExpr]:
    sizes = [(_shape(c.args[1]) or [0])[0] for c in calls]
    out_dtype = getattr(calls[0].attrs, "out_dtype", "")
    weight = op.concatenate([c.args[1] for c in calls], 0)
    kind = calls[0].checked_type
    assert isinstance(kind, TensorType)
    whole = op.nn.dense(data, weight, sum(sizes), out_dtype)
    return _cut(whole, sizes, len(kind.shape) - 1)


def _batched_dense(data: RelayExpr, calls: Sequence[Call]) -> list[RelayExpr]:
    out_dtype = getattr(calls[0].attrs, "out_dtype", "")
    left = op.stack([data] * len(calls), 0)
    right = op.stack([c.args[1] for c in calls], 0)
    whole = op.nn.batch_matmul(left, right, out_dtype=out_dtype)
    parts = op.split(whole, len(calls), 0)
    return [op.squeeze(TupleGetItem(parts, i), axis=[0]) for i in range(len(calls))]


def _batch_matmul_key(call: Call) -> Key | None:
    weight = _shape(call.args[1])
    if weight is None:
        return None
    columns = 1 if getattr(call.attrs, "transpose_b", True) else 2
    return (structural_key(call.attrs), weight[0], weight[3 - columns])


def _batch_matmul(data: RelayExpr, calls: Sequence[Call]) -> list[RelayExpr]:
    columns = 1 if getattr(calls[0].attrs, "transpose_b", True) else 2
    sizes = [(_shape(c.args[1]) or [0] * 3)[columns] for c in calls]
    right = op.concatenate([c.args[1] for c in calls], columns)
    return _cut(Call(calls[0].op, (data, right), calls[0].attrs), sizes, 2)


CONV2D = Kind("nn.conv2d", _conv2d_key, _conv2d)
WIDE_DENSE = Kind("nn.dense", _dense_key, _wide_dense)
FEW_ROWS_DENSE = Kind("nn.dense", _few_rows_key, _wide_dense)
BATCHED_DENSE = Kind("nn.dense", _equal_dense_key, _batched_dense)
BATCH_MATMUL = Kind("nn.batch_matmul", _batch_matmul_key, _batch_matmul)


def combine(root: RelayExpr, kind: Kind, min_num_branches: int) -> RelayExpr:
    """`root` with each group of at least so many calls of one scope as one. Needs checked types."""
    group_of: dict[RelayExpr, list[RelayExpr]] = {}
    for group in _find_groups(root, kind):
        if len(group) >= min_num_branches:
            group_of.update(dict.fromkeys(group, group))
    parts: dict[RelayExpr, RelayExpr] = {}

    def rewrite(old: RelayExpr, new: RelayExpr) -> RelayExpr:
        if old not in group_of:
            return new
        if old not in parts:
            assert isinstance(new, Call)
            group = group_of[old]
            calls = [c for c in group if isinstance(c, Call)]
            made = kind.combine(new.args[0], calls)
            parts.update(zip(group, map(typed, made), strict=True))
        return parts[old]

    return rewrite_graph(root, rewrite)


def _find_groups(root: RelayExpr, kind: Kind) -> list[list[RelayExpr]]:
    groups: dict[Key, list[RelayExpr]] = {}
    for scope in find_scopes(root):
        for expr in scope.nodes:
            if not isinstance(expr, Call) or not isinstance(expr.op, Op):
                continue
            is_it = expr.op.name == kind.name and isinstance(expr.args[1], (Constant, Var))
            key = kind.key(expr) if is_it else None
            if key is not None:
                groups.setdefault((id(scope), expr.args[0], *key), []).append(expr)
    return list(groups.values())


def _combining(name: str, kind: Kind, min_num_branches: int, opt_level: int = 4) -> Pass:
    def transform(module: IRModule, context: PassContext) -> IRModule:
        return map_functions(module, on_body(lambda b: combine(b, kind, min_num_branches)))

    return Pass(name, transform, opt_level, (InferType(),))


def CombineParallelConv2D(min_num_branches: int = 3) -> Pass:  # noqa: N802
    """The pass described at the top of this file, for convolutions of one image."""
    return _combining("CombineParallelConv2d", CONV2D, min_num_branches)


def CombineParallelDense(min_num_branches: int = 3, to_batch: bool = True) -> Pass:  # noqa: N802
    """The pass described at the top of this file, for products of one matrix.

    to_batch: as one nn.batch_matmul of weights of equal shape, else as one wide nn.dense.
    """
    kind = BATCHED_DENSE if to_batch else WIDE_DENSE
    return _combining("CombineParallelDense", kind, min_num_branches)


def CombineFewRows(min_num_branches: int = 2) -> Pass:  # noqa: N802
    """The same for dense layers with constant weights of at most FEW_ROWS rows, as one wide one."""
    return _combining("CombineFewRows", FEW_ROWS_DENSE, min_num_branches, 3)


def CombineParallelBatchMatmul(min_num_branches: int = 3) -> Pass:  # noqa: N802
    """The pass described at the top of this file, for batched products of one tensor."""
    return _combining("CombineParallelBatchMatmul", BATCH_MATMUL, min_num_branches)


def BatchingOps() -> Pass:  # noqa: N802
    """All three, one after the other."""
    return Sequential(
        (CombineParallelConv2D(), CombineParallelDense(), CombineParallelBatchMatmul()),
        "BatchingOps",
    )
