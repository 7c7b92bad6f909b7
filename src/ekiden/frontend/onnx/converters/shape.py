"""ONNX shape operators: reshapes, broadcasts, ranges and constants.

A shape that is computed from dimensions is a value of the importer (shape_evaluation), not a
tensor of the program: Shape, Gather, Mul and Concat before a Reshape leave only expressions. Where
the shape depends on run-time data it is a tensor, and its unknown extents get symbolic names where
it is used.
"""

from __future__ import annotations

import numpy as np

from ekiden.arith import simplify
from ekiden.frontend.common.dynamic_reshape import reshape_to_data
from ekiden.frontend.common.dynamic_squeeze import emit_drop_axes, emit_squeeze_all
from ekiden.frontend.common.exact_integers import exact_integer
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.string_value import string_constant
from ekiden.frontend.common.value import Value, constant_value
from ekiden.frontend.onnx.converters.runtime_axes import is_runtime_input
from ekiden.frontend.onnx.node import OnnxNode, OnnxRow
from ekiden.frontend.onnx.shape_evaluation import (
    check_range_step,
    check_reshape_target,
    normalize_axes,
    scalar_fill,
)
from ekiden.ir.prim import EQ, GE, AnyDim, IntImm, PrimExpr, fold_binary
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import (
    Dim,
    are_equal_dims,
    as_dim,
    as_shape,
    broadcast_shape,
    known_int,
    product_of_dims,
)


def _identity(node: OnnxNode) -> Value:
    return node.value(0)


def _constant(node: OnnxNode) -> Value:
    """Convert Constant in any of its attribute forms."""
    if node.has("sparse_value"):
        sparse = node.get_tensor("sparse_value")
        assert sparse is not None, "a sparse tensor is read as an array"
        return constant_value(sparse)
    tensor = node.get_tensor("value")
    if tensor is not None:
        # String tensors are read as arrays of Python objects.
        return string_constant(tensor) if tensor.dtype == np.object_ else constant_value(tensor)
    if node.has("value_string") or node.has("value_strings"):
        one = node.get_string("value_string", "")
        return string_constant(
            np.array(node.get_strings("value_strings"), object)
            if node.has("value_strings")
            else np.array(one, object)
        )
    for name, dtype in (("value_float", np.float32), ("value_int", np.int64)):
        if node.has(name):
            number = node.get_float(name, 0) if dtype is np.float32 else node.get_int(name)
            return constant_value(np.asarray(number, dtype))
    if node.has("value_floats"):
        return constant_value(np.asarray(node.get_floats("value_floats"), np.float32))
    return constant_value(np.asarray(node.get_ints("value_ints"), np.int64))


def _shape(node: OnnxNode) -> Expr:
    """Convert Shape of run-time dimensions."""
    dims = op.shape_of(node.expr(0), dtype="int64")
    end = node.get_int("end") if node.has("end") else node.rank(0)
    return op.strided_slice(dims, begin=[node.get_int("start", 0)], end=[end], axes=[0])


def _num_elements(node: OnnxNode) -> Expr:
    return op.ndarray_size(node.expr(0), dtype="int64")


def _reshape(node: OnnxNode) -> Expr | Value:
    allow_zero = bool(node.get_int("allowzero", 0))
    if not node.value(1).is_known:
        return reshape_to_data(node, allow_zero)
    target = node.dims(1, "shape")
    check_reshape_target(target)
    _require_same_size(node, target, allow_zero)
    return op.reshape(node.expr(0), target, allowzero=allow_zero)


def _reshape_1(node: OnnxNode) -> Expr | Value:
    """Convert Reshape before opset 5, whose shape is an attribute."""
    if not node.has("shape"):
        node.reject("attribute 'shape' is missing")
    target = node.get_ints("shape")
    check_reshape_target(target)
    _require_same_size(node, target, False)
    return op.reshape(node.expr(0), target)


def _require_same_size(node: OnnxNode, target: tuple[Dim, ...], allow_zero: bool) -> None:
    """Require equal numbers of elements, or divisibility where one extent is -1."""
    shape = node.shape(0)
    # ONNX Reshape: 0 copies the input's extent, unless allowzero is set.
    copied = [
        i for i, d in enumerate(target) if known_int(d) == 0 and not allow_zero and i < len(shape)
    ]
    extents = [
        shape[i] if i in copied else as_dim(d) for i, d in enumerate(target) if known_int(d) != -1
    ]
    count, total = product_of_dims(extents), product_of_dims(shape)
    if isinstance(count, AnyDim) or isinstance(total, AnyDim):
        return
    if len(extents) == len(target):
        node.scope.require_condition(fold_binary(EQ, total, count))
    elif isinstance(count, IntImm) and count.value:
        node.scope.require_condition(fold_binary(EQ, total % count, 0))


def _flatten(node: OnnxNode) -> Expr:
    shape = node.shape(0)
    axis = node.get_int("axis", 1)
    axis_index = axis + len(shape) if axis < 0 else axis
    if not 0 <= axis_index <= len(shape):
        node.reject(f"attribute 'axis' must be in [{-len(shape)}, {len(shape)}], got {axis}")
    return op.reshape(
        node.expr(0),
        (product_of_dims(shape[:axis_index]), product_of_dims(shape[axis_index:])),
        allowzero=True,
    )


def _axes_input(node: OnnxNode) -> tuple[int, ...] | None:
    """Return the constant axes of the attribute or of input 1; None without either."""
    if node.has("axes"):
        return node.get_ints("axes")
    return None if node.optional_value(1) is None else node.constant_ints(1)


def _squeeze(node: OnnxNode) -> Result:
    """Convert Squeeze; without axes, all axes of extent 1 go."""
    if not node.has("axes") and is_runtime_input(node, 1):
        return _squeeze_runtime_axes(node)
    axes = _axes_input(node)
    if not axes:
        return emit_squeeze_all(node)
    return op.squeeze(node.expr(0), axis=[node.axis(a, node.rank(0)) for a in axes])


def _squeeze_runtime_axes(node: OnnxNode) -> Expr:
    """Emit Squeeze along run-time axes of known number."""
    rank = node.rank(0)
    is_gone = _axis_mask(node, rank)
    extents = op.shape_of(node.expr(0), dtype="int64")
    # ONNX Squeeze: it is an error to name an axis whose extent is not 1.
    is_one = op.logical_or(op.logical_not(is_gone), op.equal(extents, const(np.int64(1))))
    node.scope.require_at_run_time(op.all(is_one), " needs axes of extent 1")
    return emit_drop_axes(node.expr(0), is_gone, rank - _num_axes(node))


def _unsqueeze_runtime_axes(node: OnnxNode) -> Expr:
    """Emit Unsqueeze along run-time axes of known number."""
    rank = node.rank(0) + _num_axes(node)
    is_new = _axis_mask(node, rank)
    before = op.cumsum(op.cast(is_new, "int64"), axis=0)
    # The place of an extent is less by the new axes before it; that of a new axis is not used.
    position = op.maximum(op.subtract(const(np.arange(rank)), before), const(np.int64(0)))
    one = const(np.ones(1, np.int64))
    extents = op.concatenate((op.shape_of(node.expr(0), dtype="int64"), one), axis=0)
    shape = op.where(is_new, const(np.int64(1)), op.take(extents, position, axis=0))
    return op.reshape(node.expr(0), shape, allowzero=True)


def _num_axes(node: OnnxNode) -> int:
    """Return the number of axes in input 1. Raises UnsupportedError where it is known at run time
    only.
    """
    shape = node.shape(1)
    count = 1 if not shape else known_int(shape[0])
    if count is None:
        node.reject_dynamic_input(
            1, "the number of 'axes' must be constant, as it is the rank of the result"
        )
    return count


def _axis_mask(node: OnnxNode, rank: int) -> Expr:
    """Emit which of `rank` axes are among the run-time axes, bool [rank]. Axes out of range or
    repeated are a run-time error.
    """
    count = _num_axes(node)
    axis_input = op.reshape(op.cast(node.expr(1), "int64"), (count,))
    axes = op.take(const(np.arange(rank)), axis_input, axis=0, mode="raise")
    matches = op.equal(op.expand_dims(axes, axis=1), const(np.arange(rank)[None]))
    times = op.sum(op.cast(matches, "int64"), axis=[0])
    one = const(np.int64(1))
    node.scope.require_at_run_time(op.all(op.less_equal(times, one)), " needs axes that differ")
    return op.equal(times, one)


def _unsqueeze(node: OnnxNode) -> Expr:
    if not node.has("axes") and is_runtime_input(node, 1):
        return _unsqueeze_runtime_axes(node)
    axes = _axes_input(node)
    if axes is None:
        node.reject("'axes' is missing")
    data, rank = node.expr(0), node.rank(0) + len(axes)
    # Ascending order, because axes count in the result.
    for axis in sorted(normalize_axes(node, axes, rank)):
        data = op.expand_dims(data, axis=axis)
    return data


def _expand(node: OnnxNode) -> Expr | Value:
    if not node.value(1).is_known:
        return _expand_to_runtime_shape(node)
    target = as_shape(node.dims(1, "shape"))
    shape = node.shape(0)
    node.scope.require_broadcastable(shape, target)
    broadcasted = broadcast_shape(shape, target)
    if broadcasted is None:
        node.reject(f"shape {shape!r} does not broadcast to {target!r}")
    return emit_broadcast_to(node.value(0), node, broadcasted)


def _expand_to_runtime_shape(node: OnnxNode) -> Value:
    """Emit an expansion to a run-time shape. Broadcasting is bidirectional: an extent of 1 in the
    shape keeps that of the data.
    """
    count = known_int(node.shape(1)[0])
    if count is None:
        node.reject("the number of dimensions of 'shape' must be constant")
    rank = max(count, node.rank(0))
    # Broadcasting in both directions: a target of 1 keeps the input's own extent.
    input_shape = node.scope.shape_vector(node.value(0), rank)
    target = node.expr(1)
    if count < rank:
        target = op.concatenate([const(np.ones(rank - count, np.int64)), target], axis=0)
    expanded = op.broadcast_to(
        node.expr(0), op.where(op.equal(target, const(1, "int64")), input_shape, target)
    )
    target_dims = [AnyDim() if d is None else d for d in node.partial_elements(1)]
    shape = broadcast_shape(node.shape(0), target_dims)
    if shape is None:
        node.reject(f"shape {node.shape(0)!r} does not broadcast to {target_dims!r}")
    return node.scope.bind_named(expanded, node.proto.output[0], shape)


def emit_broadcast_to(value: Value, node: OnnxNode, shape: tuple[PrimExpr, ...]) -> Expr | Value:
    """Emit a broadcast of `value` to a shape; the value itself if it has that shape."""
    have = value.type.shape
    if len(have) == len(shape) and all(
        are_equal_dims(a, b) for a, b in zip(have, shape, strict=True)
    ):
        return value
    return op.broadcast_to(node.scope.expr(value), shape)


def _constant_of_shape(node: OnnxNode) -> Expr:
    number = scalar_fill(node)
    shape = node.dims(0, "input")
    return op.full(
        const(number), shape, dtype="bool" if number.dtype == np.bool_ else str(number.dtype)
    )


def _read_range_bound(value: Value) -> int | float | PrimExpr | None:
    """Return a bound of Range: a number, an expression of dimensions, or None for run-time data."""
    if not value.is_known:
        return None
    element = value.known_elements.item()
    return exact_integer(element) if isinstance(element, PrimExpr) else element


def _range(node: OnnxNode) -> Expr:
    """Convert Range: static, symbolic or at run time."""
    bounds = [_read_range_bound(node.value(i)) for i in range(3)]
    check_range_step(bounds[2])
    numbers = [b for b in bounds if isinstance(b, (int, float))]
    if len(numbers) == len(bounds):
        return op.arange(numbers[0], numbers[1], numbers[2], dtype=node.dtype(0))
    dims = [_as_dim_or_none(b) for b in bounds]
    known_dims = [d for d in dims if d is not None]
    # The extent of the result is then known at run time only.
    if len(known_dims) < len(bounds):  # data, or fractions beside dimensions
        begin, end, delta = (op.reshape(e, ()) for e in node.exprs())
        return op.arange(begin, end, delta, dtype=node.dtype(0))
    first, last, by = known_dims
    if isinstance(by, PrimExpr):
        return _symbolic_range(node, first, last, by)
    return op.arange(first, last, by, dtype=node.dtype(0))


def _as_dim_or_none(bound: int | float | PrimExpr | None) -> Dim | None:
    """Return a bound as a dimension; None for run-time data and fractions."""
    if isinstance(bound, float):
        return int(bound) if bound.is_integer() else None
    return bound


def _symbolic_range(node: OnnxNode, start: Dim, limit: Dim, step: PrimExpr) -> Expr:
    """Emit a range with a symbolic, positive step."""
    node.scope.require_condition(fold_binary(GE, step, 1))
    # ceil((limit - start) / step), ONNX Range's number of elements.
    count = simplify((as_dim(limit) - as_dim(start) + step - 1) // step)
    offsets = op.multiply(op.arange(0, count, 1, dtype="int64"), node.scope.emit_dim(step))
    return op.cast(op.add(offsets, node.scope.emit_dim(as_dim(start))), node.dtype(0))


def _tile(node: OnnxNode) -> Expr:
    return op.tile(node.expr(0), node.dims(1, "repeats", node.rank(0)))


# fmt: off
ROWS = (
    OnnxRow("Identity",        _identity),
    OnnxRow("Constant",        _constant,
        attributes="sparse_value value value_float value_floats value_int value_ints value_string "
        "value_strings"),
    OnnxRow("Shape",           _shape, attributes="start end"),
    OnnxRow("Size",            _num_elements),
    OnnxRow("Reshape",         _reshape_1, attributes="consumed_inputs shape"),
    OnnxRow("Reshape",         _reshape, since_version=5, attributes="allowzero"),
    OnnxRow("Flatten",         _flatten, attributes="axis"),
    OnnxRow("Squeeze",         _squeeze, attributes="axes"),
    OnnxRow("Unsqueeze",       _unsqueeze, attributes="axes"),
    OnnxRow("Expand",          _expand, since_version=8),
    OnnxRow("ConstantOfShape", _constant_of_shape, since_version=9, attributes="value"),
    OnnxRow("Range",           _range, since_version=11),
    OnnxRow("Tile",            _tile, since_version=6),
)
# fmt: on
