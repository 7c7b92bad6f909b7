"""Shape arithmetic at import: nodes whose inputs are known, as numbers or as expressions of
dimensions, are evaluated here.

An evaluator gets the node and the elements of its inputs (NumPy arrays, or object arrays of
PrimExpr) and gives the elements of its output, or None to leave the node to its converter.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ekiden.arith import Analyzer, simplify
from ekiden.frontend.onnx import sizes
from ekiden.frontend.onnx.dtype import from_onnx_dtype
from ekiden.frontend.onnx.node import Node, Result
from ekiden.frontend.onnx.sequence_value import NoTensor
from ekiden.frontend.onnx.unsupported import Unsupported
from ekiden.frontend.onnx.value import Value, constant, known
from ekiden.frontend.onnx.whole import truncated, whole
from ekiden.ir import prim
from ekiden.ir.dtype import is_float, is_int, to_numpy
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.op import Array, Op
from ekiden.ir.prim import PrimExpr
from ekiden.ir.type import TupleType
from ekiden.relay.expr import Expr, TupleGetItem
from ekiden.relay.interpreter import Interpreter
from ekiden.relay.visitor import free_vars, post_order
from ekiden.runtime.errors import ImportModelError
from ekiden.topi.shape import infer_reshape

SMALL = 1024
"""The most elements that are evaluated at import; more is left to constant folding."""

Evaluator = Callable[[Node, Sequence[Array]], Array | None]
Scalar = Callable[..., object]


def evaluate(node: Node) -> Value | None:
    """The output of a node that is known at import; None if it has to be computed at run time."""
    if node.op_type == "Shape":
        return _shape(node)
    if node.op_type == "Size":
        return _size(node)
    rule = EVALUATORS.get(node.op_type)
    present = [v for v in node.inputs if v is not None]
    if rule is None or not present or not all(v.is_known for v in present):
        return None
    if node.op_type not in VIEWS and sum(v.elements.size for v in present) > SMALL:
        return None
    found = rule(node, [v.elements for v in present])
    return None if found is None else known(found, _result_dtype(node, present, found))


def followed(node: Node, result: Value) -> Value:
    """The output of a node that was computed from data, with what is known of its elements; a known
    value where that is all of them.
    """
    rule = EVALUATORS.get(node.op_type)
    present = [v for v in node.inputs if v is not None]
    if rule is None or result.is_known or not _is_followed(result):
        return result
    if not all(_is_followed(v) for v in present):
        return result
    given = [sizes.elements(node.scope, v) for v in present]
    known_of = [e for e in given if e is not None]
    if len(known_of) < len(given):
        return result
    try:
        found = rule(node, known_of)
    except Unsupported:
        return result
    if found is None or found.dtype != np.object_:
        return result
    tidy = np.asarray(np.frompyfunc(simplify, 1, 1)(found), object)
    if all(map(sizes.is_dim, tidy.ravel())):
        return known(tidy, result.type.dtype)
    result.hint = tidy
    return result


def _is_followed(value: Value) -> bool:
    return not isinstance(value, NoTensor) and (is_int(value.type.dtype) or value.is_known)


def fold(node: Node, result: Result) -> Result:
    """What a converter made of small constants, evaluated by the meaning of its operators; anything
    else as it is.
    """
    present = [v for v in node.inputs if v is not None]
    if not present or any(v.array is None for v in present):
        return result
    size = sum(v.elements.size for v in present)
    if not isinstance(result, Expr):
        many = result if isinstance(result, Sequence) else [result]
        return [_fold_one(node, each, size) if isinstance(each, Expr) else each for each in many]
    kind = node.scope.type_of(result)
    if isinstance(kind, TupleType):
        return [_fold_one(node, TupleGetItem(result, i), size) for i in range(len(kind.fields))]
    return _fold_one(node, result, size)


def _fold_one(node: Node, result: Expr, size: int) -> Expr | Value:
    """`size` is the number of elements that the result is made of."""
    shape = getattr(node.scope.type_of(result), "shape", None)
    if shape is None or not all(map(prim.is_const, shape)) or free_vars(result):
        return result
    if size + math.prod(d.value for d in shape) > SMALL or _is_stateful(result):
        return result
    found = Interpreter().evaluate(result)
    return constant(found) if isinstance(found, np.ndarray) else result


def _is_stateful(root: Expr) -> bool:
    return any(isinstance(e, Op) and e.definition.stateful for e in post_order(root))


def _result_dtype(node: Node, inputs: Sequence[Value], found: Array) -> str:
    if node.op_type in PREDICATES:
        return "bool"
    if node.op_type == "Cast":
        return from_onnx_dtype(node.get_int("to"))
    if node.op_type == "ConstantOfShape":
        return str(found.dtype)
    return inputs[1 if node.op_type == "Where" else 0].type.dtype


def _shape(node: Node) -> Value | None:
    shape = node.shape(0)
    if any(isinstance(d, prim.AnyDim) for d in shape):
        return None
    return known(np.array(shape[node.get_int("start", 0) : _end(node)], object), "int64")


def _end(node: Node) -> int | None:
    return node.get_int("end") if node.has("end") else None


def _size(node: Node) -> Value | None:
    total: PrimExpr = prim.const(1)
    for each in node.shape(0):
        total = total * each
    if any(isinstance(d, prim.AnyDim) for d in node.shape(0)):
        return None
    return known(np.array(total, object), "int64")


# Element by element.


def _elementwise(numeric: Callable[..., Array], symbolic: Scalar) -> Evaluator:
    def rule(node: Node, inputs: Sequence[Array]) -> Array | None:
        if all(i.dtype != np.object_ for i in inputs):
            with np.errstate(all="ignore"):
                return np.asarray(numeric(*inputs))
        lifted = [lift(i) for i in inputs]
        return np.asarray(np.frompyfunc(symbolic, len(lifted), 1)(*lifted), object)

    return rule


def _folded(numeric: Callable[..., Array], symbolic: Scalar) -> Evaluator:
    """As `_elementwise`, over any number of inputs from the left."""
    pair = _elementwise(numeric, symbolic)

    def rule(node: Node, inputs: Sequence[Array]) -> Array | None:
        total: Array | None = inputs[0]
        for each in inputs[1:]:
            total = None if total is None else pair(node, [total, each])
        return total

    return rule


def lift(values: Array) -> Array:
    """Numbers as expressions; integers of any width are int64."""
    if values.dtype == np.object_:
        return values
    dtype = (
        "bool"
        if values.dtype == np.bool_
        else "int64"
        if values.dtype.kind in "iu"
        else str(values.dtype)
    )
    lifted = np.empty(values.shape, object)
    for at, each in np.ndenumerate(values):
        lifted[at] = prim.const(each.item(), dtype)
    return lifted


def _numeric_divide(a: Array, b: Array) -> Array:
    if a.dtype.kind not in "iu":
        return np.asarray(np.divide(a, b, dtype=a.dtype))
    x, y = a.astype(np.int64), b.astype(np.int64)
    quotient = np.abs(x) // np.maximum(np.abs(y), 1)
    return np.where((x < 0) == (y < 0), quotient, -quotient).astype(a.dtype)


def _symbolic_divide(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """Floor division where both sides are known not to be negative: there it is C's division, and
    simplifies further.
    """
    if is_int(a.dtype) and _not_negative(a) and _not_negative(b):
        return a // b
    return a / b


def _modulo(node: Node, inputs: Sequence[Array]) -> Array | None:
    if node.get_int("fmod", 0) or any(i.dtype.kind == "f" for i in inputs):
        return None
    return _elementwise(np.mod, operator.mod)(node, inputs)


def _not_negative(value: PrimExpr) -> bool:
    return Analyzer().const_int_bound(value)[0] >= 0


def _compare(kind: type[prim.BinaryExpr]) -> Scalar:
    def rule(a: PrimExpr, b: PrimExpr) -> PrimExpr:
        condition = prim.binary(kind, a, b)
        analyzer = Analyzer()
        if is_float(a.dtype) or prim.is_const(condition):
            return condition
        if analyzer.can_prove(condition):
            return prim.const(True)
        opposite = prim.binary(_OPPOSITE[kind], a, b)
        return prim.const(False) if analyzer.can_prove(opposite) else condition

    return rule


_OPPOSITE = {
    prim.EQ: prim.NE, prim.NE: prim.EQ, prim.LT: prim.GE,
    prim.GE: prim.LT, prim.GT: prim.LE, prim.LE: prim.GT,
}  # fmt: skip


def select(condition: PrimExpr, x: PrimExpr, y: PrimExpr) -> PrimExpr:
    """x where the condition holds, else y."""
    if prim.is_const(condition):
        return y if prim.is_const(condition, 0) else x
    return prim.Select(condition, x, y, x.dtype)


def _not(value: PrimExpr) -> PrimExpr:
    if prim.is_const(value):
        return prim.const(prim.is_const(value, 0))
    return prim.Not(value)


def _intrinsic(name: str) -> Scalar:
    return lambda x: call_intrin(name, x)


def _cast(node: Node, inputs: Sequence[Array]) -> Array | None:
    (values,) = inputs
    dtype = from_onnx_dtype(node.get_int("to"))
    if values.dtype != np.object_:
        with np.errstate(invalid="ignore"):
            return values.astype(to_numpy(dtype))
    if not (is_int(dtype) or is_float(dtype) or dtype == "bool"):
        return None
    return np.asarray(np.frompyfunc(lambda e: _converted(e, dtype), 1, 1)(values), object)


def _converted(value: PrimExpr, dtype: str) -> PrimExpr:
    """A symbolic element under another type; floats that dimensions were computed in are whole."""
    if is_int(dtype) and is_float(value.dtype):
        found = truncated(value)
        if found is not None and (whole(value) is not None or _not_negative(found)):
            return found
    return prim.cast(value, "int64" if is_int(dtype) else dtype)


# Moving elements.


def _axis(node: Node, rank: int) -> int:
    return node.axis(node.get_int("axis", 0), rank)


def _constant_axes(node: Node, inputs: Sequence[Array]) -> tuple[int, ...] | None:
    """Axes from the attribute (opset < 13) or the second input."""
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
        starts, ends = (tuple(int(v) for v in i) for i in inputs[1:3])
        axes = tuple(int(v) for v in inputs[3]) if len(inputs) > 3 else tuple(range(len(starts)))
        steps = tuple(int(v) for v in inputs[4]) if len(inputs) > 4 else (1,) * len(starts)
    windows = [slice(None)] * data.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        at = node.axis(axis, data.ndim)
        stop = None if step < 0 and end < -data.shape[at] else end
        first = max(start, -data.shape[at]) if step < 0 else start  # as ONNX clamps, unlike NumPy
        windows[at] = slice(first, stop, step)
    return data[tuple(windows)]


def _concat(node: Node, inputs: Sequence[Array]) -> Array | None:
    if any(i.dtype == np.object_ for i in inputs):
        inputs = [lift(i) for i in inputs]
    return np.concatenate(inputs, axis=_axis(node, inputs[0].ndim))


def _unsqueeze(node: Node, inputs: Sequence[Array]) -> Array | None:
    axes = _constant_axes(node, inputs)
    return None if axes is None else np.expand_dims(inputs[0], axes)


def _squeeze(node: Node, inputs: Sequence[Array]) -> Array | None:
    return np.squeeze(inputs[0], _constant_axes(node, inputs))


def check_reshape(wanted: Sequence[int | PrimExpr]) -> None:
    """Raise for numbers that mean something to Relay's reshape and nothing to ONNX's."""
    for each in wanted:
        number = each.value if isinstance(each, prim.IntImm) else each
        if isinstance(number, int) and number < -1:
            raise ImportModelError(f"a dimension of the shape must be at least -1, got {number}")


def _reshape(node: Node, inputs: Sequence[Array]) -> Array | None:
    data, wanted = inputs
    if wanted.dtype == np.object_:
        return None
    check_reshape([int(v) for v in wanted])
    shape = [prim.const(d) for d in data.shape]
    found = infer_reshape(shape, [int(v) for v in wanted], bool(node.get_int("allowzero", 0)))
    return data.reshape([d.value for d in found if isinstance(d, prim.IntImm)])


def _transpose(node: Node, inputs: Sequence[Array]) -> Array | None:
    return inputs[0].transpose(node.get_ints("perm", tuple(reversed(range(inputs[0].ndim)))))


def _flatten(node: Node, inputs: Sequence[Array]) -> Array | None:
    axis = node.get_int("axis", 1)
    rows = int(
        np.prod(inputs[0].shape[: axis + inputs[0].ndim if axis < 0 else axis], dtype=np.int64)
    )
    return inputs[0].reshape(rows, inputs[0].size // rows if rows else 0)


def _constant_of_shape(node: Node, inputs: Sequence[Array]) -> Array | None:
    if inputs[0].dtype == np.object_:
        return None
    fill = node.get_tensor("value")
    return np.full([int(d) for d in inputs[0]], np.float32(0) if fill is None else fill.ravel()[0])


def _expand(node: Node, inputs: Sequence[Array]) -> Array | None:
    data, wanted = inputs
    if wanted.dtype == np.object_:
        return None
    shape = np.broadcast_shapes(data.shape, tuple(int(v) for v in wanted))
    return np.broadcast_to(data, shape) if np.prod(shape) <= SMALL else None


def _tile(node: Node, inputs: Sequence[Array]) -> Array | None:
    data, times = inputs
    if times.dtype == np.object_:
        return None
    counts = [int(t) for t in times]
    return np.tile(data, counts) if data.size * math.prod(counts) <= SMALL else None


def _range(node: Node, inputs: Sequence[Array]) -> Array | None:
    if any(i.dtype == np.object_ for i in inputs):
        return None
    start, limit, step = (i.item() for i in inputs)
    found = np.arange(start, limit, step, dtype=inputs[0].dtype)
    return found if found.size <= SMALL else None


def _reduce(function: Scalar) -> Evaluator:
    def rule(node: Node, inputs: Sequence[Array]) -> Array | None:
        data, axes = inputs[0], _constant_axes(node, inputs)
        if data.ndim != 1 or axes not in (None, (0,), (-1,), ()) or not data.size:
            return None
        if not axes and node.get_int("noop_with_empty_axes", 0):
            return data
        total = lift(data)[0]
        for each in lift(data)[1:]:
            total = function(total, each)
        return np.full((1,) if node.get_int("keepdims", 1) else (), total, object)

    return rule


VIEWS = frozenset(
    ("Identity", "Reshape", "Unsqueeze", "Squeeze", "Transpose", "Flatten", "ConstantOfShape")
)
"""Cheap for any size: no elements are copied (ConstantOfShape makes a weight)."""
PREDICATES = frozenset(
    ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Not", "And", "Or")
)

# fmt: off
EVALUATORS: Mapping[str, Evaluator] = {
    "Add":             _elementwise(np.add, operator.add),
    "Sub":             _elementwise(np.subtract, operator.sub),
    "Mul":             _elementwise(np.multiply, operator.mul),
    "Div":             _elementwise(_numeric_divide, _symbolic_divide),
    "Mod":             _modulo,
    "Neg":             _elementwise(np.negative, operator.neg),
    "Min":             _folded(np.minimum, prim.minimum),
    "Max":             _folded(np.maximum, prim.maximum),
    "Equal":           _elementwise(np.equal, _compare(prim.EQ)),
    "Less":            _elementwise(np.less, _compare(prim.LT)),
    "LessOrEqual":     _elementwise(np.less_equal, _compare(prim.LE)),
    "Greater":         _elementwise(np.greater, _compare(prim.GT)),
    "GreaterOrEqual":  _elementwise(np.greater_equal, _compare(prim.GE)),
    "Not":             _elementwise(np.logical_not, _not),
    "And":             _elementwise(np.logical_and, prim.logical_and),
    "Where":           _elementwise(np.where, select),
    "Floor":           _elementwise(np.floor, _intrinsic("floor")),
    "Ceil":            _elementwise(np.ceil, _intrinsic("ceil")),
    "Sqrt":            _elementwise(np.sqrt, _intrinsic("sqrt")),
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
    "ReduceProd":      _reduce(operator.mul),
    "ReduceSum":       _reduce(operator.add),
    "ReduceMax":       _reduce(prim.maximum),
    "ReduceMin":       _reduce(prim.minimum),
}
# fmt: on
