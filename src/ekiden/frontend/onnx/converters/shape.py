"""Operators about shapes: new views of the same elements, broadcasts, tensors made from a shape.

A shape that is computed from dimensions is a value of the importer (shape_value), not a tensor of
the program: Shape, Gather, Mul and Concat before a Reshape leave no trace but expressions. Only
where data decide does a tensor say the shape, and then its unknown extents get names where it is
used.
"""

from __future__ import annotations

import numpy as np

from ekiden.arith import simplify
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.reshaping import by_data
from ekiden.frontend.common.squeezing import squeezed, without_axes
from ekiden.frontend.common.text_value import text_constant
from ekiden.frontend.common.value import Value, constant
from ekiden.frontend.common.whole import whole
from ekiden.frontend.onnx.converters.axis import is_data
from ekiden.frontend.onnx.node import Node, Row
from ekiden.frontend.onnx.shape_value import check_reshape, check_step, distinct_axes, fill_value
from ekiden.ir.prim import EQ, GE, AnyDim, IntImm, PrimExpr, binary
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.shape import Dim, as_dim, as_shape, broadcast_shape, equal, known, product


def _identity(node: Node) -> Value:
    return node.value(0)


def _constant(node: Node) -> Value:
    if node.has("sparse_value"):
        sparse = node.get_tensor("sparse_value")
        assert sparse is not None, "a sparse tensor is read as an array"
        return constant(sparse)
    found = node.get_tensor("value")
    if found is not None:
        return text_constant(found) if found.dtype == np.object_ else constant(found)
    if node.has("value_string") or node.has("value_strings"):
        one = node.get_string("value_string", "")
        return text_constant(
            np.array(node.get_strings("value_strings"), object)
            if node.has("value_strings")
            else np.array(one, object)
        )
    for name, dtype in (("value_float", np.float32), ("value_int", np.int64)):
        if node.has(name):
            number = node.get_float(name, 0) if dtype is np.float32 else node.get_int(name)
            return constant(np.asarray(number, dtype))
    if node.has("value_floats"):
        return constant(np.asarray(node.get_floats("value_floats"), np.float32))
    return constant(np.asarray(node.get_ints("value_ints"), np.int64))


def _shape(node: Node) -> Expr:
    """Reached only where a dimension is unknown until run time."""
    dims = op.shape_of(node.expr(0), dtype="int64")
    end = node.get_int("end") if node.has("end") else node.rank(0)
    return op.strided_slice(dims, begin=[node.get_int("start", 0)], end=[end], axes=[0])


def _size(node: Node) -> Expr:
    return op.ndarray_size(node.expr(0), dtype="int64")


def _reshape(node: Node) -> Expr | Value:
    allow_zero = bool(node.get_int("allowzero", 0))
    if not node.value(1).is_known:
        return by_data(node, allow_zero)
    wanted = node.dims(1, "shape")
    check_reshape(wanted)
    _require_same_count(node, wanted, allow_zero)
    return op.reshape(node.expr(0), wanted, allowzero=allow_zero)


def _reshape_by_attribute(node: Node) -> Expr | Value:
    """Before opset 5."""
    if not node.has("shape"):
        node.unsupported("attribute 'shape' is missing")
    wanted = node.get_ints("shape")
    check_reshape(wanted)
    _require_same_count(node, wanted, False)
    return op.reshape(node.expr(0), wanted)


def _require_same_count(node: Node, wanted: tuple[Dim, ...], allow_zero: bool) -> None:
    """Note that the numbers of elements must agree, or divide where one dimension is -1."""
    shape = node.shape(0)
    copied = [
        i for i, d in enumerate(wanted) if known(d) == 0 and not allow_zero and i < len(shape)
    ]
    given = [shape[i] if i in copied else as_dim(d) for i, d in enumerate(wanted) if known(d) != -1]
    count, total = product(given), product(shape)
    if isinstance(count, AnyDim) or isinstance(total, AnyDim):
        return
    if len(given) == len(wanted):
        node.scope.require(binary(EQ, total, count))
    elif isinstance(count, IntImm) and count.value:
        node.scope.require(binary(EQ, total % count, 0))


def _flatten(node: Node) -> Expr:
    shape = node.shape(0)
    axis = node.get_int("axis", 1)
    at = axis + len(shape) if axis < 0 else axis
    if not 0 <= at <= len(shape):
        node.unsupported(f"attribute 'axis' must be in [{-len(shape)}, {len(shape)}], got {axis}")
    return op.reshape(node.expr(0), (product(shape[:at]), product(shape[at:])), allowzero=True)


def _axes(node: Node) -> tuple[int, ...] | None:
    if node.has("axes"):
        return node.get_ints("axes")
    return None if node.optional(1) is None else node.axes(1)


def _squeeze(node: Node) -> Result:
    """Of no axes, also of an empty list, all of extent 1 go."""
    if not node.has("axes") and is_data(node, 1):
        return _squeeze_by_data(node)
    axes = _axes(node)
    if not axes:
        return squeezed(node)
    return op.squeeze(node.expr(0), axis=[node.axis(a, node.rank(0)) for a in axes])


def _squeeze_by_data(node: Node) -> Expr:
    """The axes come at run time, of which the number is known: the result has the other extents, in
    their order."""
    rank = node.rank(0)
    is_gone = _places_by_data(node, rank)
    extents = op.shape_of(node.expr(0), dtype="int64")
    is_one = op.logical_or(op.logical_not(is_gone), op.equal(extents, const(np.int64(1))))
    node.scope.require_data(op.all(is_one), " needs axes of extent 1")
    return without_axes(node.expr(0), is_gone, rank - _count_of_axes(node))


def _unsqueeze_by_data(node: Node) -> Expr:
    """The axes come at run time, of which the number is known: the result has 1 there, and the
    extents of the data between."""
    rank = node.rank(0) + _count_of_axes(node)
    is_new = _places_by_data(node, rank)
    before = op.cumsum(op.cast(is_new, "int64"), axis=0)
    # The place of an extent is less by the new axes before it; that of a new axis is not used.
    at = op.maximum(op.subtract(const(np.arange(rank)), before), const(np.int64(0)))
    one = const(np.ones(1, np.int64))
    extents = op.concatenate((op.shape_of(node.expr(0), dtype="int64"), one), axis=0)
    shape = op.where(is_new, const(np.int64(1)), op.take(extents, at, axis=0))
    return op.reshape(node.expr(0), shape, allowzero=True)


def _count_of_axes(node: Node) -> int:
    """Return how many axes there are. Raises Unsupported where only the run knows."""
    shape = node.shape(1)
    count = 1 if not shape else known(shape[0])
    if count is None:
        node.needs(1, "the number of 'axes' must be constant, as it is the rank of the result")
    return count


def _places_by_data(node: Node, rank: int) -> Expr:
    """Return which of `rank` axes are among those that come at run time: bool [rank]. The run ends
    where one is out of range, or there twice."""
    count = _count_of_axes(node)
    given = op.reshape(op.cast(node.expr(1), "int64"), (count,))
    axes = op.take(const(np.arange(rank)), given, axis=0, mode="raise")
    equal = op.equal(op.expand_dims(axes, axis=1), const(np.arange(rank)[None]))
    times = op.sum(op.cast(equal, "int64"), axis=[0])
    one = const(np.int64(1))
    node.scope.require_data(op.all(op.less_equal(times, one)), " needs axes that differ")
    return op.equal(times, one)


def _unsqueeze(node: Node) -> Expr:
    if not node.has("axes") and is_data(node, 1):
        return _unsqueeze_by_data(node)
    axes = _axes(node)
    if axes is None:
        node.unsupported("'axes' is missing")
    data, rank = node.expr(0), node.rank(0) + len(axes)
    for axis in sorted(distinct_axes(node, axes, rank)):
        data = op.expand_dims(data, axis=axis)
    return data


def _expand(node: Node) -> Expr | Value:
    if not node.value(1).is_known:
        return _expand_by_data(node)
    wanted = as_shape(node.dims(1, "shape"))
    shape = node.shape(0)
    node.scope.broadcasts(shape, wanted)
    found = broadcast_shape(shape, wanted)
    if found is None:
        node.unsupported(f"shape {shape!r} does not broadcast to {wanted!r}")
    return broadcast(node.value(0), node, found)


def _expand_by_data(node: Node) -> Value:
    """Both ways: an extent of 1 in the shape leaves that of the data."""
    count = known(node.shape(1)[0])
    if count is None:
        node.unsupported("the number of dimensions of 'shape' must be constant")
    rank = max(count, node.rank(0))
    own = node.scope.shape_vector(node.value(0), rank)
    wanted = node.expr(1)
    if count < rank:
        wanted = op.concatenate([const(np.ones(rank - count, np.int64)), wanted], axis=0)
    found = op.broadcast_to(
        node.expr(0), op.where(op.equal(wanted, const(1, "int64")), own, wanted)
    )
    parts = [AnyDim() if d is None else d for d in node.partial(1)]
    shape = broadcast_shape(node.shape(0), parts)
    if shape is None:
        node.unsupported(f"shape {node.shape(0)!r} does not broadcast to {parts!r}")
    return node.scope.bound(found, node.proto.output[0], shape)


def broadcast(value: Value, node: Node, shape: tuple[PrimExpr, ...]) -> Expr | Value:
    """`value` with that shape; itself if it has it."""
    have = value.type.shape
    if len(have) == len(shape) and all(equal(a, b) for a, b in zip(have, shape, strict=True)):
        return value
    return op.broadcast_to(node.scope.expr(value), shape)


def _constant_of_shape(node: Node) -> Expr:
    number = fill_value(node)
    shape = node.dims(0, "input")
    return op.full(
        const(number), shape, dtype="bool" if number.dtype == np.bool_ else str(number.dtype)
    )


def _bound(value: Value) -> int | float | PrimExpr | None:
    """A bound of a range: a number, an expression of dimensions, None for anything else."""
    if not value.is_known:
        return None
    found = value.elements.item()
    return whole(found) if isinstance(found, PrimExpr) else found


def _range(node: Node) -> Expr:
    given = [_bound(node.value(i)) for i in range(3)]
    check_step(given[2])
    numbers = [b for b in given if isinstance(b, (int, float))]
    if len(numbers) == len(given):
        return op.arange(numbers[0], numbers[1], numbers[2], dtype=node.dtype(0))
    dims = [_dim(b) for b in given]
    known_dims = [d for d in dims if d is not None]
    if len(known_dims) < len(given):  # data, or fractions beside dimensions
        begin, end, delta = (op.reshape(e, ()) for e in node.exprs())
        return op.arange(begin, end, delta, dtype=node.dtype(0))
    first, last, by = known_dims
    if isinstance(by, PrimExpr):
        return _steps(node, first, last, by)
    return op.arange(first, last, by, dtype=node.dtype(0))


def _dim(bound: int | float | PrimExpr | None) -> Dim | None:
    """A bound as a dimension; None for data and fractions."""
    if isinstance(bound, float):
        return int(bound) if bound.is_integer() else None
    return bound


def _steps(node: Node, start: Dim, limit: Dim, step: PrimExpr) -> Expr:
    """Range by steps of a symbolic length, which must be positive."""
    node.scope.require(binary(GE, step, 1))
    count = simplify((as_dim(limit) - as_dim(start) + step - 1) // step)
    places = op.multiply(op.arange(0, count, 1, dtype="int64"), node.scope.scalar(step))
    return op.cast(op.add(places, node.scope.scalar(as_dim(start))), node.dtype(0))


def _tile(node: Node) -> Expr:
    return op.tile(node.expr(0), node.dims(1, "repeats", node.rank(0)))


# fmt: off
ROWS = (
    Row("Identity",        _identity),
    Row("Constant",        _constant,
        attributes="sparse_value value value_float value_floats value_int value_ints value_string "
        "value_strings"),
    Row("Shape",           _shape, attributes="start end"),
    Row("Size",            _size),
    Row("Reshape",         _reshape_by_attribute, attributes="consumed_inputs shape"),
    Row("Reshape",         _reshape, since=5, attributes="allowzero"),
    Row("Flatten",         _flatten, attributes="axis"),
    Row("Squeeze",         _squeeze, attributes="axes"),
    Row("Unsqueeze",       _unsqueeze, attributes="axes"),
    Row("Expand",          _expand, since=8),
    Row("ConstantOfShape", _constant_of_shape, since=9, attributes="value"),
    Row("Range",           _range, since=11),
    Row("Tile",            _tile, since=6),
)
# fmt: on
