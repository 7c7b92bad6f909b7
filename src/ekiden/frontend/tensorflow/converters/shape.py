"""Constants, and operators that compute shapes or depend on them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from tensorflow.python.framework import tensor_util

from ekiden.frontend.common import constant_folding as rules
from ekiden.frontend.common.converters import data_movement as shared
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.value import Value, constant_value
from ekiden.frontend.tensorflow.load import decode_shape, dtype_name
from ekiden.frontend.tensorflow.node import TensorflowNode, TensorflowRow
from ekiden.ir import prim
from ekiden.ir.dtype import to_numpy
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Expr
from ekiden.runtime.devices.memory import check_memory_limit


def _const(node: TensorflowNode) -> Value:
    dtype = node.dtype_attribute("dtype")  # refused where it is none of a tensor
    tensor = node.proto.attr["value"].tensor
    if dtype_name(tensor.dtype) != dtype:
        node.reject(f"its value is {dtype_name(tensor.dtype)}, and its 'dtype' {dtype}")
    # One element and an extent stand for a tensor of any size, which TensorFlow expands.
    num_bytes = math.prod(decode_shape(tensor.tensor_shape) or ()) * to_numpy(dtype).itemsize
    check_memory_limit(num_bytes, f"the constant {node.name!r}")
    return constant_value(np.asarray(tensor_util.MakeNdarray(tensor)))


def _shape(node: TensorflowNode) -> Result:
    dtype = node.dtype_attribute("out_type", "int32")
    constant_shape = rules.constant_shape(node.shape(0), dtype)
    return op.shape_of(node.expr(0), dtype=dtype) if constant_shape is None else constant_shape


def _shape_n(node: TensorflowNode) -> list[Value | None]:
    dtype = node.dtype_attribute("out_type", "int32")
    return [rules.constant_shape(node.shape(i), dtype) for i in range(len(node.inputs))]


def _size(node: TensorflowNode) -> Expr:
    return op.ndarray_size(node.expr(0), dtype=node.dtype_attribute("out_type", "int32"))


def _rank(node: TensorflowNode) -> Value:
    return constant_value(np.array(node.rank(0), np.int32))


def _strided_slice(node: TensorflowNode) -> Result:
    if node.int_attribute("shrink_axis_mask") and node.value(1).array is None:
        return _emit_dynamic_element(node)
    return shared.strided_slice(node)


def _emit_dynamic_element(node: TensorflowNode) -> Expr:
    """Emit x[i] for a data-dependent index along the first axis."""
    count = node.shape(1)[0]
    has_others = node.int_attribute("new_axis_mask") or node.int_attribute("ellipsis_mask")
    if not prim.is_const(count, 1) or has_others:
        node.reject("several indices that are data are not supported")
    return op.take(node.expr(0), op.reshape(node.expr(1), ()), axis=0)


def _pack_rule(node: TensorflowNode, inputs: Sequence[Array]) -> Array:
    axis = node.int_attribute("axis")
    return rules.concat_elements([np.expand_dims(i, axis) for i in inputs], axis)


def _pack(node: TensorflowNode) -> Result:
    axis = node.axis(node.int_attribute("axis"), node.rank(0) + 1)
    return op.stack(node.exprs(), axis=axis)


def _concat_rule(node: TensorflowNode, inputs: Sequence[Array]) -> Array | None:
    axis = inputs[-1]
    return None if axis.dtype == np.object_ else rules.concat_elements(inputs[:-1], int(axis))


def _concat(node: TensorflowNode) -> Result:
    (axis,) = node.constant_ints(len(node.inputs) - 1, "axis")
    operands = [node.expr(i) for i in range(len(node.inputs) - 1)]
    return op.concatenate(operands, axis=node.axis(axis, node.rank(0)))


def _concat_v1(node: TensorflowNode) -> Result:
    (axis,) = node.constant_ints(0, "concat_dim")
    return op.concatenate(node.exprs()[1:], axis=node.axis(axis, node.rank(1)))


def _gather_rule(node: TensorflowNode, inputs: Sequence[Array]) -> Array | None:
    return shared.gather_rule(node, inputs, int(inputs[2]) if len(inputs) > 2 else 0)


def _gather(node: TensorflowNode) -> Expr:
    return shared.gather(node, node.constant_ints(2, "axis")[0] if len(node.inputs) > 2 else 0)


def _axes_to_squeeze(node: TensorflowNode) -> list[int]:
    """Return the normalized axes to remove; none if all of extent 1 are meant."""
    return [
        node.axis(a, node.rank(0))
        for a in node.int_list_attribute("squeeze_dims") or node.int_list_attribute("axis")
    ]


def _squeeze_rule(node: TensorflowNode, inputs: Sequence[Array]) -> Array:
    return np.squeeze(inputs[0], tuple(_axes_to_squeeze(node)) or None)


def _squeeze(node: TensorflowNode) -> Result:
    return shared.squeeze(node, _axes_to_squeeze(node))


def _range(node: TensorflowNode) -> Expr:
    return shared.arange(node, node.dtype_attribute("Tidx", "int32"))


# fmt: off
ROWS = (
    TensorflowRow("Const",         _const),
    TensorflowRow("Shape",         _shape),
    TensorflowRow("ShapeN",        _shape_n),
    TensorflowRow("Size",          _size),
    TensorflowRow("Rank",          _rank),
    TensorflowRow("Reshape",       shared.reshape),
    TensorflowRow("StridedSlice",  _strided_slice),
    TensorflowRow("Pack",          _pack, _pack_rule),
    TensorflowRow("ConcatV2",      _concat, _concat_rule),
    TensorflowRow("Concat",        _concat_v1),
    *(TensorflowRow(n, _gather, _gather_rule) for n in ("Gather", "GatherV2")),
    TensorflowRow("Squeeze",       _squeeze, _squeeze_rule),
    TensorflowRow("Range",         _range, rules.to_node_rule(rules.arange_rule)),
)
# fmt: on
