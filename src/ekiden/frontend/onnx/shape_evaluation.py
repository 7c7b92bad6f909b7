"""Constant evaluation of shape computations at import.

The rules are those of ekiden.frontend.common.constant_folding.

An evaluator receives the node and the elements of its present inputs, and returns the elements of
its output, or None to leave the node to its converter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from ekiden.frontend.common import constant_folding as rules
from ekiden.frontend.common.constant_folding import (
    MAX_FOLDED_ELEMENTS,
    Rule,
    Scalar,
    concat_elements,
    evaluate_rule,
)
from ekiden.frontend.common.converters.elementwise import elementwise_rows
from ekiden.frontend.common.converters.reduction import reduce_size_vector
from ekiden.frontend.common.converters.reduction import reduction_rows as reductions
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value, dtype_name, known_value
from ekiden.frontend.onnx.dtype import from_onnx_dtype
from ekiden.frontend.onnx.lazy_onnx import onnx
from ekiden.frontend.onnx.node import OnnxNode
from ekiden.ir import prim
from ekiden.ir.op import Array
from ekiden.ir.prim import PrimExpr
from ekiden.runtime.errors import ImportModelError
from ekiden.topi.dimensions import infer_reshape

Evaluator = Callable[[OnnxNode, Sequence[Array]], Array | None]


def evaluate_node(node: OnnxNode) -> Value | None:
    """Evaluate a node whose inputs are known at import; return None if it must run."""
    if node.op_type == "Shape":
        return rules.constant_shape(node.shape(0)[node.get_int("start", 0) : _shape_end(node)])
    if node.op_type == "Size":
        return _evaluate_size(node)
    evaluator = SHAPE_EVALUATORS.get(node.op_type)
    if evaluator is None:
        return None
    # Strings are tensors of bytes here, which the array rules do not know.
    if node.op_type == "Cast" and node.get_int("to") == onnx.TensorProto.STRING:
        return None
    present = [v for v in node.inputs if v is not None]
    if not present or not all(v.is_known for v in present):
        return None
    dtype = _result_dtype(node, present)
    return evaluate_rule(
        node.inputs, partial(evaluator, node), dtype, node.op_type in VIEW_OPERATORS
    )


def annotate_result(node: OnnxNode, result: Value) -> Value:
    """Annotate a run-time result with the known values of its elements."""
    evaluator = SHAPE_EVALUATORS.get(node.op_type)
    if evaluator is None or result.is_string:
        return result
    return rules.propagate_elements(node.scope, node.inputs, partial(evaluator, node), result)


def fold_result(node: OnnxNode, result: Result) -> Result:
    """Fold a converter's result whose operands are small constants; others are unchanged."""
    return rules.fold_results(node.scope, node.inputs, result)


def _result_dtype(node: OnnxNode, inputs: Sequence[Value]) -> str:
    """Return the dtype of an evaluated node's result."""
    if node.op_type in PREDICATE_OPERATORS:
        return "bool"
    if node.op_type == "Cast":
        return from_onnx_dtype(node.get_int("to"))
    if node.op_type == "ConstantOfShape":
        return dtype_name(scalar_fill(node))
    return inputs[1 if node.op_type == "Where" else 0].type.dtype


def _shape_end(node: OnnxNode) -> int | None:
    """Return the attribute `end` of Shape; None where it is absent."""
    return node.get_int("end") if node.has("end") else None


def _evaluate_size(node: OnnxNode) -> Value | None:
    """Return the number of elements as an expression; None where a dimension is unknown."""
    total: PrimExpr = prim.const(1)
    for extent in node.shape(0):
        total = total * extent
    # A product with an unknown dimension is not an expression; the run computes it.
    if any(isinstance(d, prim.AnyDim) for d in node.shape(0)):
        return None
    return known_value(np.array(total, object), "int64")


def _broadcast_evaluator(rule: Rule) -> Evaluator:
    """Return an evaluator that applies a rule to inputs that broadcast."""

    def evaluate_broadcast(node: OnnxNode, inputs: Sequence[Array]) -> Array | None:
        """Apply the rule; raise ImportModelError for shapes that do not broadcast."""
        try:
            np.broadcast_shapes(*(i.shape for i in inputs))
        except ValueError:
            shapes = " and ".join(str(i.shape) for i in inputs)
            raise ImportModelError(f"shapes {shapes} do not broadcast") from None
        return rule(inputs)

    return evaluate_broadcast


def _evaluate_mod(node: OnnxNode, inputs: Sequence[Array]) -> Array | None:
    """Evaluate Mod on integers with Python's sign; None for `fmod` and floats."""
    if node.get_int("fmod", 0) or any(i.dtype.kind == "f" for i in inputs):
        return None
    return rules.floor_mod(inputs)


def _evaluate_cast(node: OnnxNode, inputs: Sequence[Array]) -> Array | None:
    return rules.cast_rule(from_onnx_dtype(node.get_int("to")))(inputs)


# Moving elements.


def _axis_attribute(node: OnnxNode, rank: int) -> int:
    return node.axis(node.get_int("axis", 0), rank)


def _constant_axes(node: OnnxNode, inputs: Sequence[Array]) -> tuple[int, ...] | None:
    """Return the axes of the attribute (before opset 13) or of the second input; None without
    either.
    """
    if node.has("axes"):
        return node.get_ints("axes")
    if len(inputs) < 2:
        return None
    if inputs[1].dtype == np.object_:
        raise Unsupported("'axes' must be constant")
    return tuple(int(a) for a in inputs[1].ravel())


def _evaluate_gather(node: OnnxNode, inputs: Sequence[Array]) -> Array | None:
    data, indices = inputs
    if indices.dtype == np.object_:
        return None
    axis = _axis_attribute(node, data.ndim)
    extent = data.shape[axis]
    wrong = indices[(indices < -extent) | (indices >= extent)]
    if wrong.size:
        raise Unsupported(f"index {int(wrong[0])} is out of range for an axis of extent {extent}")
    return np.asarray(np.take(data, indices.astype(np.int64), axis=axis))


def _evaluate_slice(node: OnnxNode, inputs: Sequence[Array]) -> Array | None:
    if any(i.dtype == np.object_ for i in inputs[1:]):
        return None
    data = inputs[0]
    if node.has("starts"):
        starts, ends = node.get_ints("starts"), node.get_ints("ends")
        axes, steps = node.get_ints("axes", tuple(range(len(starts)))), (1,) * len(starts)
    else:
        present = (index for index, v in enumerate(node.inputs) if v is not None)
        bounds = {p: tuple(int(v) for v in i) for p, i in zip(present, inputs, strict=True) if p}
        starts, ends = bounds[1], bounds[2]
        axes = bounds.get(3, tuple(range(len(starts))))
        steps = bounds.get(4, (1,) * len(starts))
    windows = [slice(None)] * data.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        axis_index = node.axis(axis, data.ndim)
        # A negative stop means another thing to NumPy: only None reaches the first element
        # backwards.
        stop = None if step < 0 and end < -data.shape[axis_index] else end
        first = (
            max(start, -data.shape[axis_index]) if step < 0 else start
        )  # as ONNX clamps, unlike NumPy
        windows[axis_index] = slice(first, stop, step)
    return data[tuple(windows)]


def _evaluate_concat(node: OnnxNode, inputs: Sequence[Array]) -> Array | None:
    return concat_elements(inputs, _axis_attribute(node, inputs[0].ndim))


def _evaluate_unsqueeze(node: OnnxNode, inputs: Sequence[Array]) -> Array | None:
    axes = _constant_axes(node, inputs)
    if axes is None:
        return None
    return np.expand_dims(inputs[0], normalize_axes(node, axes, inputs[0].ndim + len(axes)))


def normalize_axes(node: OnnxNode, axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return axes counted from the front; raise Unsupported for duplicates."""
    axis_indices = tuple(node.axis(a, rank) for a in axes)
    if len(set(axis_indices)) < len(axis_indices):
        node.reject(f"'axes' must be distinct, got {tuple(axes)}")
    return axis_indices


def _evaluate_squeeze(node: OnnxNode, inputs: Sequence[Array]) -> Array | None:
    """Evaluate Squeeze; without axes all axes of extent 1 go."""
    return np.squeeze(inputs[0], _constant_axes(node, inputs) or None)  # as of no axes: of all


def check_reshape_target(target: Sequence[int | PrimExpr]) -> None:
    """Raise ImportModelError for extents below -1, which Relay's reshape reads as special codes."""
    for extent in target:
        number = extent.value if isinstance(extent, prim.IntImm) else extent
        if isinstance(number, int) and number < -1:
            raise ImportModelError(f"a dimension of the shape must be at least -1, got {number}")


def _evaluate_reshape(node: OnnxNode, inputs: Sequence[Array]) -> Array | None:
    data = inputs[0]
    if not node.has("shape") and len(inputs) < 2:
        return None
    target = np.array(node.get_ints("shape")) if node.has("shape") else inputs[1]
    # An array of objects holds dimension expressions; such a target is left to the converter.
    if target.dtype == np.object_:
        return None
    check_reshape_target([int(v) for v in target])
    shape = [prim.const(d) for d in data.shape]
    inferred = infer_reshape(shape, [int(v) for v in target], bool(node.get_int("allowzero", 0)))
    return data.reshape([d.value for d in inferred if isinstance(d, prim.IntImm)])


def _evaluate_transpose(node: OnnxNode, inputs: Sequence[Array]) -> Array | None:
    return inputs[0].transpose(node.get_ints("perm", tuple(reversed(range(inputs[0].ndim)))))


def _evaluate_flatten(node: OnnxNode, inputs: Sequence[Array]) -> Array | None:
    axis = node.get_int("axis", 1)
    rows = int(
        np.prod(inputs[0].shape[: axis + inputs[0].ndim if axis < 0 else axis], dtype=np.int64)
    )
    return inputs[0].reshape(rows, inputs[0].size // rows if rows else 0)


def scalar_fill(node: OnnxNode) -> Array:
    """Return the scalar of the attribute `value`; float32 0 where it is absent. Raises
    UnsupportedError for a tensor of another number of elements.
    """
    fill = node.get_tensor("value")
    if fill is not None and fill.size != 1:
        node.reject(f"attribute 'value' must have 1 element, got {fill.size}")
    # ConstantOfShape defaults to a float32 zero.
    return np.zeros((), np.float32) if fill is None else fill.reshape(())


MAX_FILLED_ELEMENTS = 1 << 20
"""Elements of one value that are made at import; more is left to the program."""


def _evaluate_constant_of_shape(node: OnnxNode, inputs: Sequence[Array]) -> Array | None:
    if inputs[0].dtype == np.object_:
        return None
    shape = [int(d) for d in inputs[0]]
    if min(shape, default=0) < 0:
        raise ImportModelError(f"a tensor must have extents of at least 0, got {shape}")
    return np.full(shape, scalar_fill(node)) if math.prod(shape) <= MAX_FILLED_ELEMENTS else None


def _evaluate_expand(node: OnnxNode, inputs: Sequence[Array]) -> Array | None:
    data, target = inputs
    if target.dtype == np.object_:
        return None
    shape = np.broadcast_shapes(data.shape, tuple(int(v) for v in target))
    return (
        np.broadcast_to(data, shape) if math.prod(map(int, shape)) <= MAX_FOLDED_ELEMENTS else None
    )


def _evaluate_tile(node: OnnxNode, inputs: Sequence[Array]) -> Array | None:
    data, times = inputs
    if times.dtype == np.object_:
        return None
    counts = [int(t) for t in times]
    if min(counts, default=0) < 0:
        raise ImportModelError(f"'repeats' must be at least 0, got {counts}")
    return np.tile(data, counts) if data.size * math.prod(counts) <= MAX_FOLDED_ELEMENTS else None


def check_range_step(step: object) -> None:
    """Raise ImportModelError for a step of 0."""
    if isinstance(step, (int, float)) and step == 0:
        raise ImportModelError("'delta' must not be 0")


def _evaluate_range(node: OnnxNode, inputs: Sequence[Array]) -> Array | None:
    if any(i.dtype == np.object_ for i in inputs):
        return None
    start, limit, step = (i.item() for i in inputs)
    check_range_step(step)
    if abs(limit - start) > MAX_FOLDED_ELEMENTS * abs(
        step
    ):  # not allocated before its size is known
        return None
    elements = np.arange(start, limit, step, dtype=inputs[0].dtype)
    return elements if elements.size <= MAX_FOLDED_ELEMENTS else None


def _reduction_evaluator(both: Scalar) -> Evaluator:
    # Only shape vectors are reduced at import; other tensors are left to the run.
    """Return an evaluator that reduces a shape vector by a scalar operator."""

    def evaluate_reduction(node: OnnxNode, inputs: Sequence[Array]) -> Array | None:
        """Reduce a vector of sizes over its axis; None for other tensors, for axes that are not
        known and for no elements.
        """
        if any(i.dtype == np.object_ for i in inputs[1:]):
            return None
        data, axes = inputs[0], _constant_axes(node, inputs)
        if axes not in (None, (0,), (-1,), ()):
            return None
        if data.ndim == 1 and data.size and not axes and node.get_int("noop_with_empty_axes", 0):
            return data
        return reduce_size_vector(data, both, bool(node.get_int("keepdims", 1)))

    return evaluate_reduction


VIEW_OPERATORS = frozenset(
    ("Identity", "Reshape", "Unsqueeze", "Squeeze", "Transpose", "Flatten", "ConstantOfShape")
)
"""Cheap for any size: no elements are copied (ConstantOfShape makes a weight)."""
_SHARED_ROWS = {name: row for name, _, row in elementwise_rows("onnx") if row.rule is not None}
PREDICATE_OPERATORS = frozenset(name for name, row in _SHARED_ROWS.items() if row.is_predicate)

# fmt: off
SHAPE_EVALUATORS: Mapping[str, Evaluator] = {
    **{name: _broadcast_evaluator(row.rule)
       for name, row in _SHARED_ROWS.items() if row.rule is not None},
    "Mod":             _evaluate_mod,
    "Min":             _broadcast_evaluator(rules.minimum),
    "Max":             _broadcast_evaluator(rules.maximum),
    "Where":           _broadcast_evaluator(rules.where),
    "Cast":            _evaluate_cast,
    "Identity":        lambda node, inputs: inputs[0],
    "Gather":          _evaluate_gather,
    "Slice":           _evaluate_slice,
    "Concat":          _evaluate_concat,
    "Unsqueeze":       _evaluate_unsqueeze,
    "Squeeze":         _evaluate_squeeze,
    "Reshape":         _evaluate_reshape,
    "Transpose":       _evaluate_transpose,
    "Flatten":         _evaluate_flatten,
    "ConstantOfShape": _evaluate_constant_of_shape,
    "Expand":          _evaluate_expand,
    "Tile":            _evaluate_tile,
    "Range":           _evaluate_range,
    **{name: _reduction_evaluator(row.size_rule)
       for name, row in reductions("onnx") if row.size_rule is not None},
}
# fmt: on
