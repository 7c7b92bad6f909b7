"""Quantised products: qnn.dense, qnn.conv2d, qnn.conv2d_transpose, qnn.batch_matmul.

    sum over k of (data - input_zero_point) * (weight - kernel_zero_point)

in integers, of a scale that is the product of the scales. The scales take no part in it: they are
arguments so that passes find them. Bytes with constant weights become the products of bytes of
`qnn.products`; the rest is multiplied in the result's dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ekiden.ir.attrs import Attrs
from ekiden.ir.op import OPS, Array
from ekiden.ir.prim import PrimExpr, is_const
from ekiden.ir.type import TensorType, Type
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant, Expr
from ekiden.relay.op._declare import attrs_of, fail, tensors
from ekiden.relay.op.nn.geometry import (
    Conv2DAttrs,
    Conv2DTransposeAttrs,
    ConvAttrs,
    Ints,
    sides,
    spread,
    window_size,
)
from ekiden.relay.op.nn.matrix_products import BatchMatmulAttrs, DenseAttrs
from ekiden.relay.qnn import products
from ekiden.relay.qnn._declare import (
    BYTES,
    SHORTS,
    call,
    check_parameter,
    declare,
    dtype_of,
    is_all,
    tensor,
)

WIDE = ("int16", "int32", "int64")
_ARGUMENTS = "data weight input_zero_point kernel_zero_point input_scale kernel_scale"


class _Product:
    """One operator: the ordinary one that multiplies, and where the weight's channels are."""

    def __init__(
        self,
        name: str,
        attrs: type[Attrs],
        channels: Callable[[Any], tuple[int, int]],
        data: Sequence[str] = SHORTS,
        weight: Sequence[str] = BYTES,
        out: Sequence[str] = WIDE,
    ) -> None:
        """Set up the row of an operator.

        Args:
            name: The name of the ordinary operator.
            attrs: The class of its attributes.
            channels: Returns, for attributes, the axes of the weight's and of the result's
            channels.
            data: The dtypes of data.
            weight: The dtypes of weights.
            out: The dtypes of results.
        """
        self.name, self.attrs, self.channels = name, attrs, channels
        self.dtypes = {"data": data, "weight": weight, "out_dtype": out}

    @property
    def full(self) -> str:
        """Return the operator's name."""
        return f"qnn.{self.name}"

    def relation(self, types: Sequence[Type], attrs: Attrs | None) -> Type:
        """Return the ordinary product's type, after checks of dtypes, scales and zero points."""
        settings: Any = attrs_of(self.attrs, attrs)
        data, weight, *scales = tensors(self.full, types, 6)
        out = dtype_of(
            self.full, TensorType((), settings.out_dtype), self.dtypes["out_dtype"], "out_dtype"
        )
        dtype_of(self.full, data, self.dtypes["data"], "data")
        dtype_of(self.full, weight, self.dtypes["weight"], "weight")
        like = [TensorType(kind.shape, out) for kind in (data, weight)]
        result = tensor(OPS[f"nn.{self.name}"].relation(like, settings))
        at, of_result = self.channels(settings)
        dims: tuple[PrimExpr | None, ...] = (None, weight.shape[at], None, result.shape[of_result])
        for kind, what, dim in zip(scales, _ARGUMENTS.split()[2:], dims, strict=True):
            check_parameter(self.full, kind, what, dim)
        return result

    def reference(self, attrs: Any, data: Array, weight: Array, *points: Array) -> Array:  # noqa: ANN401
        """Return the product computed in int64, in the result's dtype."""
        at, _ = self.channels(attrs)
        point = points[1]
        if point.ndim:
            point = point.reshape([-1 if i == at % weight.ndim else 1 for i in range(weight.ndim)])
        multiply = OPS[f"nn.{self.name}"].reference
        assert multiply is not None
        wide = attrs.with_fields(out_dtype="int64")
        product = multiply(wide, data.astype(np.int64) - points[0], weight.astype(np.int64) - point)
        return np.asarray(product).astype(attrs.out_dtype)

    def general(self, attrs: Any, args: Sequence[Expr], types: Sequence[Type]) -> Expr:  # noqa: ANN401
        """Return the product of shifted operands in the result's dtype."""
        data, weight = (op.cast(operand, attrs.out_dtype) for operand in args[:2])
        at, _ = self.channels(attrs)
        if not is_all(args[2], 0):
            data = op.subtract(data, op.cast(args[2], attrs.out_dtype))
        if not is_all(args[3], 0):
            point, rank = op.cast(args[3], attrs.out_dtype), len(tensor(types[1]).shape)
            if tensor(types[3]).shape:
                point = op.reshape(point, [-1 if i == at % rank else 1 for i in range(rank)])
            weight = op.subtract(weight, point)
        return call(f"nn.{self.name}", data, weight, attrs=attrs)

    def takes_bytes(self, attrs: Any, args: Sequence[Expr], types: Sequence[Type]) -> bool:  # noqa: ANN401
        """Return whether the product of bytes serves, which needs the weight at build time."""
        data, weight = tensor(types[0]).dtype, tensor(types[1]).dtype
        are_known = isinstance(args[1], Constant) and isinstance(args[3], Constant)
        return are_known and data in BYTES and weight in BYTES and attrs.out_dtype == "int32"

    def declare(self, expand: Callable[[Any, Sequence[Expr], Sequence[Type]], Expr]) -> None:
        """Declare the operator."""
        result = f"as nn.{self.name}, of attribute 'out_dtype'"
        declare(
            self.full,
            _ARGUMENTS,
            self.relation,
            self.reference,
            expand,
            self.attrs,
            result,
            f"nn.{self.name}",
        )


# --- dense, batch_matmul -------------------------------------------------------------------------

_DENSE = _Product("dense", DenseAttrs, lambda attrs: (0, -1), out=("int32", "int64"))
_BATCHED = _Product("batch_matmul", BatchMatmulAttrs, lambda attrs: (-2, -1), BYTES, out=("int32",))


def _expand_dense(attrs: DenseAttrs, args: Sequence[Expr], types: Sequence[Type]) -> Expr:
    weight, point = args[1], args[3]
    if not _DENSE.takes_bytes(attrs, args, types) or not isinstance(weight, Constant):
        return _DENSE.general(attrs, args, types)
    return products.dense(args[0], weight, args[2], point, tensor(types[0]).dtype)


_DENSE.declare(_expand_dense)
_BATCHED.declare(_BATCHED.general)


def dense(
    data: Expr,
    weight: Expr,
    input_zero_point: Expr,
    kernel_zero_point: Expr,
    input_scale: Expr,
    kernel_scale: Expr,
    units: int | None = None,
    out_dtype: str = "int32",
) -> Call:
    """Return quantised data [..., k] of 8 or 16 bits times the transpose of weight [units, k] of 8
    bits.

    The result is [..., units] of int32 or int64. Zero points are int32 and scales float32: scalars,
    those of the kernel also vectors [units].
    """
    attrs = DenseAttrs(units, out_dtype)
    points = input_zero_point, kernel_zero_point
    return call("qnn.dense", data, weight, *points, input_scale, kernel_scale, attrs=attrs)


def batch_matmul(
    x: Expr,
    y: Expr,
    x_zero_point: Expr,
    y_zero_point: Expr,
    x_scale: Expr,
    y_scale: Expr,
    out_dtype: str = "int32",
) -> Call:
    """Return quantised x [b, m, k] times the transposes of y [b, n, k], of 8 bits: int32 [b, m, n].

    Zero points (int32) and scales (float32) are scalars.
    """
    attrs = BatchMatmulAttrs(out_dtype)
    points = x_zero_point, y_zero_point
    return call("qnn.batch_matmul", x, y, *points, x_scale, y_scale, attrs=attrs)


# --- convolutions --------------------------------------------------------------------------------


def _conv_channels(attrs: ConvAttrs) -> tuple[int, int]:
    layout = attrs.out_layout or attrs.data_layout
    if "O" not in attrs.kernel_layout or "C" not in layout:
        actual = f"got {attrs.kernel_layout!r} and {layout!r}"
        fail(
            "qnn.conv2d",
            f"layouts with channels O of the kernel and C of the data wanted, {actual}",
        )
    return attrs.kernel_layout.index("O"), layout.index("C")


_CONV = _Product("conv2d", Conv2DAttrs, _conv_channels, SHORTS[:3], SHORTS[:3])
_TRANSPOSED = _Product("conv2d_transpose", Conv2DTransposeAttrs, _conv_channels)


def _permutation(layout: str, target: str) -> tuple[int, ...]:
    return tuple(layout.index(axis) for axis in target)


def _expand_conv(attrs: Conv2DAttrs, args: Sequence[Expr], types: Sequence[Type]) -> Expr:
    weight, out = args[1], attrs.out_layout or attrs.data_layout
    plain = {"".join(sorted(layout)) for layout in (attrs.data_layout, out)} == {"CHNW"}
    plain = plain and sorted(attrs.kernel_layout) == sorted("OIHW")
    if not plain or not _CONV.takes_bytes(attrs, args, types) or not isinstance(weight, Constant):
        return _CONV.general(attrs, args, types)
    kernel = np.transpose(weight.data, _permutation(attrs.kernel_layout, "OIHW"))
    data = tensor(types[0])
    channels = data.shape[attrs.data_layout.index("C")]
    if not is_const(channels, kernel.shape[1] * attrs.groups):  # I is a multiplier
        return _CONV.general(attrs, args, types)
    result = products.conv2d(
        _transposed(args[0], attrs.data_layout, "NCHW"),
        Constant(np.ascontiguousarray(kernel), span=weight.span),
        args[2],
        args[3],
        data.dtype,
        attrs.strides,
        attrs.padding,
        attrs.dilation,
        attrs.groups,
    )
    return _transposed(result, "NCHW", out)


def _transposed(data: Expr, layout: str, target: str) -> Expr:
    return data if layout == target else op.transpose(data, _permutation(layout, target))


def _expand_transposed(
    attrs: Conv2DTransposeAttrs, args: Sequence[Expr], types: Sequence[Type]
) -> Expr:
    """Return the transposed convolution, in float32, which has kernels, where that is exact."""
    exact = None
    if attrs.groups == 1 and _TRANSPOSED.takes_bytes(attrs, args, types):
        terms, channels = (attrs.kernel_layout.index(axis) for axis in "IO")
        wide = attrs.with_fields(out_dtype="float32")
        exact = products.in_floats(
            args[0], args[1], (args[2], args[3]),
            (attrs.data_layout.index("C"), terms, channels),
            lambda data, weight: call("nn.conv2d_transpose", data, weight, attrs=wide),
        )  # fmt: skip
    return _TRANSPOSED.general(attrs, args, types) if exact is None else exact


_CONV.declare(_expand_conv)
_TRANSPOSED.declare(_expand_transposed)


def conv2d(
    data: Expr,
    kernel: Expr,
    input_zero_point: Expr,
    kernel_zero_point: Expr,
    input_scale: Expr,
    kernel_scale: Expr,
    kernel_size: Ints | None = None,
    channels: int | None = None,
    strides: Ints = (1, 1),
    padding: Ints = (0, 0),
    dilation: Ints = (1, 1),
    groups: int = 1,
    data_layout: str = "NCHW",
    kernel_layout: str = "OIHW",
    out_layout: str = "",
    out_dtype: str = "int32",
) -> Call:
    """Return a convolution of quantised tensors of int8, uint8 or int16, as int16, int32 or int64.

    The border is the input's zero point, which stands for 0. Zero points are int32 and scales
    float32: scalars, those of the kernel also vectors over its output channels.
    """
    attrs = Conv2DAttrs(
        spread(strides, 2), sides(padding, 2), spread(dilation, 2), groups, channels,
        window_size(kernel_size, 2), data_layout, kernel_layout, out_layout, out_dtype,
    )  # fmt: skip
    points = input_zero_point, kernel_zero_point
    return call("qnn.conv2d", data, kernel, *points, input_scale, kernel_scale, attrs=attrs)


def conv2d_transpose(
    data: Expr,
    weight: Expr,
    input_zero_point: Expr,
    kernel_zero_point: Expr,
    input_scale: Expr,
    kernel_scale: Expr,
    strides: Ints = (1, 1),
    padding: Ints = (0, 0),
    dilation: Ints = (1, 1),
    groups: int = 1,
    channels: int | None = None,
    kernel_size: Ints | None = None,
    data_layout: str = "NCHW",
    kernel_layout: str = "IOHW",
    out_layout: str = "",
    output_padding: Ints = (0, 0),
    out_dtype: str = "int32",
) -> Call:
    """Return a transposed convolution of a quantised tensor of 8 or 16 bits with a weight of 8.

    Otherwise it is as `conv2d`.
    """
    attrs = Conv2DTransposeAttrs(
        spread(strides, 2), sides(padding, 2), spread(dilation, 2), groups, channels,
        window_size(kernel_size, 2), data_layout, kernel_layout, out_layout, out_dtype,
        spread(output_padding, 2),
    )  # fmt: skip
    points = input_zero_point, kernel_zero_point
    return call(
        "qnn.conv2d_transpose", data, weight, *points, input_scale, kernel_scale, attrs=attrs
    )


__all__ = ["batch_matmul", "conv2d", "conv2d_transpose", "dense"]
