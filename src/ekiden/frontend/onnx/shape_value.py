"""Shape arithmetic at import: nodes whose inputs are known are evaluated here, by the rules of
ekiden.frontend.common.arithmetic.

An evaluator receives the node and the elements of its present inputs, and returns the elements of
its output, or None to leave the node to its converter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from ekiden.frontend.common import arithmetic as rules
from ekiden.frontend.common.arithmetic import SMALL, Rule, Scalar, concatenated, evaluated
from ekiden.frontend.common.converters.elementwise import rows_of
from ekiden.frontend.common.converters.reduction import reduced_vector
from ekiden.frontend.common.converters.reduction import rows_of as reductions
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value, dtype_name, known
from ekiden.frontend.onnx.dtype import from_onnx_dtype
from ekiden.frontend.onnx.messages import onnx
from ekiden.frontend.onnx.node import Node
from ekiden.ir import prim
from ekiden.ir.op import Array
from ekiden.ir.prim import PrimExpr
from ekiden.runtime.errors import ImportModelError
from ekiden.topi.dimensions import infer_reshape

Evaluator = Callable[[Node, Sequence[Array]], Array | None]


def evaluate(node: Node) -> Value | None:
    """Return the output of a node that is known at import; None if it must be computed at
    run time.
    """
    if node.op_type == "Shape":
        return rules.shape_of(node.shape(0)[node.get_int("start", 0) : _end(node)])
    if node.op_type == "Size":
        return _size(node)
    evaluator = EVALUATORS.get(node.op_type)
    if evaluator is None:
        return None
    if node.op_type == "Cast" and node.get_int("to") == onnx.TensorProto.STRING:
        return None
    present = [v for v in node.inputs if v is not None]
    if not present or not all(v.is_known for v in present):
        return None
    dtype = _result_dtype(node, present)
    return evaluated(node.inputs, partial(evaluator, node), dtype, node.op_type in VIEWS)


def followed(node: Node, result: Value) -> Value:
    """Return the output of a node that was computed from run-time data, annotated with what is
    known of its elements; a known value where all elements are.
    """
    evaluator = EVALUATORS.get(node.op_type)
    if evaluator is None or result.is_text:
        return result
    return rules.followed(node.scope, node.inputs, partial(evaluator, node), result)


def fold(node: Node, result: Result) -> Result:
    """Evaluate a converter's result if its operands are small constants; return anything else
    unchanged.
    """
    return rules.fold(node.scope, node.inputs, result)


def _result_dtype(node: Node, inputs: Sequence[Value]) -> str:
    if node.op_type in PREDICATES:
        return "bool"
    if node.op_type == "Cast":
        return from_onnx_dtype(node.get_int("to"))
    if node.op_type == "ConstantOfShape":
        return dtype_name(fill_value(node))
    return inputs[1 if node.op_type == "Where" else 0].type.dtype


def _end(node: Node) -> int | None:
    return node.get_int("end") if node.has("end") else None


def _size(node: Node) -> Value | None:
    total: PrimExpr = prim.const(1)
    for extent in node.shape(0):
        total = total * extent
    # A product with an unknown dimension is not an expression; the run computes it.
    if any(isinstance(d, prim.AnyDim) for d in node.shape(0)):
        return None
    return known(np.array(total, object), "int64")


def _plain(rule: Rule) -> Evaluator:
    def evaluator(node: Node, inputs: Sequence[Array]) -> Array | None:
        """Apply the rule to inputs whose shapes broadcast."""
        try:
            np.broadcast_shapes(*(i.shape for i in inputs))
        except ValueError:
            shapes = " and ".join(str(i.shape) for i in inputs)
            raise ImportModelError(f"shapes {shapes} do not broadcast") from None
        return rule(inputs)

    return evaluator


def _modulo(node: Node, inputs: Sequence[Array]) -> Array | None:
    if node.get_int("fmod", 0) or any(i.dtype.kind == "f" for i in inputs):
        return None
    return rules.floor_mod(inputs)


def _cast(node: Node, inputs: Sequence[Array]) -> Array | None:
    return rules.cast(from_onnx_dtype(node.get_int("to")))(inputs)


# Moving elements.


def _axis(node: Node, rank: int) -> int:
    return node.axis(node.get_int("axis", 0), rank)


def _constant_axes(node: Node, inputs: Sequence[Array]) -> tuple[int, ...] | None:
    """Return axes from the attribute (opset < 13) or the second input; None where neither is
    present.
    """
    if node.has("axes"):
        return node.get_ints("axes")
    if len(inputs) < 2:
        return None
    if inputs[1].dtype == np.object_:
        raise Unsupported("'axes' must be constant")
    return tuple(int(a) for a in inputs[1].ravel())


def _gather(node: Node, inputs: Sequence[Array]) -> Array | None:
    data, indices = inputs
    if indices.dtype == np.object_:
        return None
    axis = _axis(node, data.ndim)
    extent = data.shape[axis]
    wrong = indices[(indices < -extent) | (indices >= extent)]
    if wrong.size:
        raise Unsupported(f"index {int(wrong[0])} is out of range for an axis of extent {extent}")
    return np.asarray(np.take(data, indices.astype(np.int64), axis=axis))


def _slice(node: Node, inputs: Sequence[Array]) -> Array | None:
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
        at = node.axis(axis, data.ndim)
        stop = None if step < 0 and end < -data.shape[at] else end
        first = max(start, -data.shape[at]) if step < 0 else start  # as ONNX clamps, unlike NumPy
        windows[at] = slice(first, stop, step)
    return data[tuple(windows)]


def _concat(node: Node, inputs: Sequence[Array]) -> Array | None:
    return concatenated(inputs, _axis(node, inputs[0].ndim))


def _unsqueeze(node: Node, inputs: Sequence[Array]) -> Array | None:
    axes = _constant_axes(node, inputs)
    if axes is None:
        return None
    return np.expand_dims(inputs[0], distinct_axes(node, axes, inputs[0].ndim + len(axes)))


def distinct_axes(node: Node, axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return axes counted from the front. Raises Unsupported where one comes twice."""
    at = tuple(node.axis(a, rank) for a in axes)
    if len(set(at)) < len(at):
        node.unsupported(f"'axes' must be distinct, got {tuple(axes)}")
    return at


def _squeeze(node: Node, inputs: Sequence[Array]) -> Array | None:
    return np.squeeze(inputs[0], _constant_axes(node, inputs) or None)  # as of no axes: of all


def check_reshape(target: Sequence[int | PrimExpr]) -> None:
    """Raise for numbers that mean something to Relay's reshape and nothing to ONNX's."""
    for extent in target:
        number = extent.value if isinstance(extent, prim.IntImm) else extent
        if isinstance(number, int) and number < -1:
            raise ImportModelError(f"a dimension of the shape must be at least -1, got {number}")


def _reshape(node: Node, inputs: Sequence[Array]) -> Array | None:
    data = inputs[0]
    if not node.has("shape") and len(inputs) < 2:
        return None
    target = np.array(node.get_ints("shape")) if node.has("shape") else inputs[1]
    if target.dtype == np.object_:
        return None
    check_reshape([int(v) for v in target])
    shape = [prim.const(d) for d in data.shape]
    inferred = infer_reshape(shape, [int(v) for v in target], bool(node.get_int("allowzero", 0)))
    return data.reshape([d.value for d in inferred if isinstance(d, prim.IntImm)])


def _transpose(node: Node, inputs: Sequence[Array]) -> Array | None:
    return inputs[0].transpose(node.get_ints("perm", tuple(reversed(range(inputs[0].ndim)))))


def _flatten(node: Node, inputs: Sequence[Array]) -> Array | None:
    axis = node.get_int("axis", 1)
    rows = int(
        np.prod(inputs[0].shape[: axis + inputs[0].ndim if axis < 0 else axis], dtype=np.int64)
    )
    return inputs[0].reshape(rows, inputs[0].size // rows if rows else 0)


def fill_value(node: Node) -> Array:
    """Return the scalar of attribute `value`, 0 where it is absent. Raises Unsupported for a tensor
    of another number of elements.
    """
    fill = node.get_tensor("value")
    if fill is not None and fill.size != 1:
        node.unsupported(f"attribute 'value' must have 1 element, got {fill.size}")
    # ConstantOfShape defaults to a float32 zero.
    return np.zeros((), np.float32) if fill is None else fill.reshape(())


MAX_FILLED = 1 << 20
"""Elements of one value that are made at import; more is left to the program."""


def _constant_of_shape(node: Node, inputs: Sequence[Array]) -> Array | None:
    if inputs[0].dtype == np.object_:
        return None
    shape = [int(d) for d in inputs[0]]
    if min(shape, default=0) < 0:
        raise ImportModelError(f"a tensor must have extents of at least 0, got {shape}")
    return np.full(shape, fill_value(node)) if math.prod(shape) <= MAX_FILLED else None


def _expand(node: Node, inputs: Sequence[Array]) -> Array | None:
    data, target = inputs
    if target.dtype == np.object_:
        return None
    shape = np.broadcast_shapes(data.shape, tuple(int(v) for v in target))
    return np.broadcast_to(data, shape) if math.prod(map(int, shape)) <= SMALL else None


def _tile(node: Node, inputs: Sequence[Array]) -> Array | None:
    data, times = inputs
    if times.dtype == np.object_:
        return None
    counts = [int(t) for t in times]
    if min(counts, default=0) < 0:
        raise ImportModelError(f"'repeats' must be at least 0, got {counts}")
    return np.tile(data, counts) if data.size * math.prod(counts) <= SMALL else None


def check_step(step: object) -> None:
    """Raise ImportModelError for a range that would not end."""
    if isinstance(step, (int, float)) and step == 0:
        raise ImportModelError("'delta' must not be 0")


def _range(node: Node, inputs: Sequence[Array]) -> Array | None:
    if any(i.dtype == np.object_ for i in inputs):
        return None
    start, limit, step = (i.item() for i in inputs)
    check_step(step)
    if abs(limit - start) > SMALL * abs(step):  # not allocated before its size is known
        return None
    elements = np.arange(start, limit, step, dtype=inputs[0].dtype)
    return elements if elements.size <= SMALL else None


def _reduce(both: Scalar) -> Evaluator:
    # Only shape vectors are reduced at import; other tensors are left to the run.
    def evaluator(node: Node, inputs: Sequence[Array]) -> Array | None:
        """Reduce a vector of sizes. Return None for other shapes, for axes that are not known, and
        for no elements.
        """
        if any(i.dtype == np.object_ for i in inputs[1:]):
            return None
        data, axes = inputs[0], _constant_axes(node, inputs)
        if axes not in (None, (0,), (-1,), ()):
            return None
        if data.ndim == 1 and data.size and not axes and node.get_int("noop_with_empty_axes", 0):
            return data
        return reduced_vector(data, both, bool(node.get_int("keepdims", 1)))

    return evaluator


VIEWS = frozenset(
    ("Identity", "Reshape", "Unsqueeze", "Squeeze", "Transpose", "Flatten", "ConstantOfShape")
)
"""Cheap for any size: no elements are copied (ConstantOfShape makes a weight)."""
_SHARED = {name: row for name, _, row in rows_of("onnx") if row.rule is not None}
PREDICATES = frozenset(name for name, row in _SHARED.items() if row.is_predicate)

# fmt: off
EVALUATORS: Mapping[str, Evaluator] = {
    **{name: _plain(row.rule) for name, row in _SHARED.items() if row.rule is not None},
    "Mod":             _modulo,
    "Min":             _plain(rules.minimum),
    "Max":             _plain(rules.maximum),
    "Where":           _plain(rules.where),
    "Cast":            _cast,
    "Identity":        lambda node, inputs: inputs[0],
    "Gather":          _gather,
    "Slice":           _slice,
    "Concat":          _concat,
    "Unsqueeze":       _unsqueeze,
    "Squeeze":         _squeeze,
    "Reshape":         _reshape,
    "Transpose":       _transpose,
    "Flatten":         _flatten,
    "ConstantOfShape": _constant_of_shape,
    "Expand":          _expand,
    "Tile":            _tile,
    "Range":           _range,
    **{name: _reduce(row.both) for name, row in reductions("onnx") if row.both is not None},
}
# fmt: on
