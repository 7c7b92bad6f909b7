"""Make products of the quantised dialect of those whose operands were bytes.

    nn.dense((cast(%x u8, i32) - p) * s, (cast(W s8, i32) - q) * t)       in float32
->  cast(qnn.dense(%x, W, p, q), f32) * (s t)
    nn.conv2d(cast(%x u8, i32) - p, W i32)                                in int32
->  qnn.conv2d(%x, W s8, p, 0)

However a program writes it (levels.py), there is one integer product, which the dialect computes as
the target does best; of bytes, which constants are folded to. Its sums are exact, those of float32
are rounded. What a scale varies along has to be an axis of the result: rows of data, channels of
weights. A zero point of data is one for all.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ekiden.ir.attrs import Attrs
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.transform import Pass, PassContext
from ekiden.relay import op
from ekiden.relay.expr import Call, const
from ekiden.relay.op._declare import call as call_op
from ekiden.relay.op.nn.geometry import Conv2DAttrs, Conv2DTransposeAttrs
from ekiden.relay.op.nn.matrix_products import BatchMatmulAttrs, DenseAttrs, MatmulAttrs
from ekiden.relay.transform.graph.calls import rewrite_calls, typed
from ekiden.relay.transform.graph.float_rewrites import allows
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scopes import map_functions, on_body
from ekiden.relay.transform.quantization.levels import Levels, levels_of, type_of
from ekiden.runtime.lazy_dataclass import dataclass

PRODUCTS = ("nn.dense", "nn.matmul", "nn.batch_matmul", "nn.conv2d", "nn.conv2d_transpose")
SUMS = ("int32", "float32")
"""Types of results of which an integer product is known to hold the sums: those of int32 wrap as
its own do."""


@dataclass(frozen=True, slots=True)
class _Axes:
    """Of a product's operands the axes that a scale may vary along, which the result has too.

    rows: of the data, axis -> that of the result; channels: that of the weight, and of the result.
    """

    rows: Mapping[int, int]
    channels: tuple[int, int] | None
    rank: int
    """Of the result."""


def _spread(levels: Levels, parameter: RelayExpr, axis: int, at: int, rank: int) -> RelayExpr:
    """Return a parameter in the shape that broadcasts with a result of `rank` dimensions.

    It varies along `axis` of an operand, which is axis `at` of the result.
    """
    if not levels.varies(parameter):
        return typed(op.reshape(parameter, ())) if type_of(parameter).shape else parameter
    after = rank - 1 - at
    return typed(op.reshape(parameter, (-1, *(1,) * after)))


def _vector(levels: Levels, channels: int) -> RelayExpr:
    """Return the zero point of a weight in the form that the dialect takes."""
    point = levels.point
    if point is None:
        return const(np.int32(0))
    shape = (-1,) if levels.varies(point) else ()
    return typed(op.reshape(point, shape)) if type_of(point).shape != shape else point


def _product(
    call: Call, a: Levels, b: Levels
) -> tuple[str, Attrs, RelayExpr, RelayExpr, _Axes] | None:
    """Return the dialect's operator, its attributes and operands, and the axes of both."""
    rank = len(type_of(call).shape)
    match call.attrs:
        case DenseAttrs() as attrs:
            rows = {n: n for n in range(rank - 1)}
            return "qnn.dense", attrs, a.data, b.data, _Axes(rows, (0, rank - 1), rank)
        case MatmulAttrs() as attrs:
            data = _turned(a.data) if attrs.transpose_a else a.data
            weight = b.data if attrs.transpose_b else _turned(b.data)
            last = a.rank - 1 if attrs.transpose_a else None
            rows = {n: n for n in range(rank - 1)} if last is None else {last: rank - 2}
            channels = (0 if attrs.transpose_b else 1, rank - 1)
            plain = DenseAttrs(attrs.units, attrs.out_dtype)
            return "qnn.dense", plain, data, weight, _Axes(rows, channels, rank)
        case BatchMatmulAttrs() as attrs:
            rows = {2 if attrs.transpose_a else 1: 1}
            channels = (1 if attrs.transpose_b else 2, 2)
            return "qnn.batch_matmul", attrs, a.data, b.data, _Axes(rows, channels, rank)
        case Conv2DAttrs() | Conv2DTransposeAttrs() as attrs:
            out = attrs.out_layout or attrs.data_layout
            if {*attrs.kernel_layout} != {*"OIHW"} or {*out} != {*"NCHW"}:
                return None
            name = "conv2d" if isinstance(attrs, Conv2DAttrs) else "conv2d_transpose"
            at = attrs.kernel_layout.index("O"), out.index("C")
            is_grouped = name == "conv2d_transpose" and attrs.groups > 1  # O is of a group
            axes = _Axes({}, None if is_grouped else at, rank)
            return f"qnn.{name}", attrs, a.data, b.data, axes
        case _:
            return None


def _turned(matrix: RelayExpr) -> RelayExpr:
    rank = len(type_of(matrix).shape)
    return typed(op.transpose(matrix, (*range(rank - 2), rank - 1, rank - 2)))


def _fits(a: Levels, b: Levels, axes: _Axes, is_batched: bool) -> bool:
    """Return whether parameters vary along axes of the result alone."""
    channels = set() if axes.channels is None or is_batched else {axes.channels[0]}
    return (
        not a.varies(a.point)
        and a.varies(a.scale) <= set(axes.rows)
        and len(a.varies(a.scale)) <= 1
        and b.varies(b.point) <= channels
        and b.varies(b.scale) <= ({axes.channels[0]} if axes.channels else set())
    )


def _in_integers(call: Call) -> RelayExpr | None:
    """Return an ordinary product as a product of the dialect, or None."""
    out = type_of(call).dtype
    if out not in SUMS or (out == "float32" and not allows("multiply bytes")):
        return None
    if [type_of(operand).dtype for operand in call.args[:2]] == ["uint8", "int8"]:
        return None  # it is one of bytes already
    sides = []
    for operand in call.args[:2]:
        if (levels := levels_of(operand)) is None:
            return None
        sides.append(levels)
    a, b = sides
    product = _product(call, a, b)
    # A result of int32 leaves no room for scales.
    if product is None or (out == "int32" and (a.scale is not None or b.scale is not None)):
        return None
    name, attrs, data, weight, axes = product
    if not _fits(a, b, axes, name == "qnn.batch_matmul"):
        return None
    zero = const(np.int32(0))
    point = zero if a.point is None else _spread(a, a.point, 0, 0, 0)
    one = const(np.float32(1))
    # The scales are multiplied in afterwards, so the dialect sees scales of one.
    changed = attrs.with_fields(out_dtype="int32")
    kernel_point = _vector(b, 0)
    args = (data, weight, point, kernel_point, one, one)
    sums: RelayExpr = call_op(name, *args, attrs=changed).with_fields(span=call.span)
    return typed(sums) if out == "int32" else _scaled(sums, a, b, axes)


def _scaled(sums: RelayExpr, a: Levels, b: Levels, axes: _Axes) -> RelayExpr:
    """Sums as the floats that they stand for."""
    scales = []
    if a.scale is not None:
        axis = next(iter(a.varies(a.scale)), 0)
        scales.append(_spread(a, a.scale, axis, axes.rows.get(axis, 0), axes.rank))
    if b.scale is not None:
        axis, at = axes.channels or (0, 0)
        scales.append(_spread(b, b.scale, axis, at, axes.rank))
    floats = op.cast(sums, "float32")
    if not scales:
        return typed(floats)
    factor = scales[0] if len(scales) == 1 else op.multiply(*scales)
    return typed(op.multiply(floats, factor))


def IntegerProducts() -> Pass:  # noqa: N802
    """The pass described at the top of this file."""

    def transform(module: IRModule, context: PassContext) -> IRModule:
        table = dict.fromkeys(PRODUCTS, _in_integers)
        return map_functions(module, on_body(lambda body: rewrite_calls(body, table)))

    return Pass("IntegerProducts", transform, 1, (InferType(),))


__all__ = ["IntegerProducts"]
