"""Quantised matrix products and convolutions: qnn.dense, qnn.conv2d, qnn.conv2d_transpose,
qnn.batch_matmul.

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
from ekiden.relay.op._declare import check_attrs, check_tensors, raise_type_error
from ekiden.relay.op.nn.matrix_products import BatchMatmulAttrs, DenseAttrs
from ekiden.relay.op.nn.window_attrs import (
    Conv2DAttrs,
    Conv2DTransposeAttrs,
    ConvAttrs,
    Ints,
    expand_kernel_size,
    expand_padding,
    expand_per_axis,
)
from ekiden.relay.qnn import int8_lowering
from ekiden.relay.qnn._declare import (
    INT8_DTYPES,
    UP_TO_16_BIT_DTYPES,
    as_tensor_type,
    call_qnn_op,
    check_dtype,
    check_qparam,
    declare_qnn_op,
    is_qparam_equal_to,
)

ACCUMULATOR_DTYPES = ("int16", "int32", "int64")
_PRODUCT_ARGUMENTS = "data weight input_zero_point kernel_zero_point input_scale kernel_scale"


class _QnnProduct:
    """Declaration of a qnn product: the float operator it maps to, and its weight's
    channel axis.
    """

    def __init__(
        self,
        name: str,
        attrs: type[Attrs],
        channels: Callable[[Any], tuple[int, int]],
        data: Sequence[str] = UP_TO_16_BIT_DTYPES,
        weight: Sequence[str] = INT8_DTYPES,
        out: Sequence[str] = ACCUMULATOR_DTYPES,
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
    def op_name(self) -> str:
        """Return the operator's name."""
        return f"qnn.{self.name}"

    def relation(self, types: Sequence[Type], attrs: Attrs | None) -> Type:
        """Infer the float operator's type after checking dtypes, scales and zero points."""
        settings: Any = check_attrs(self.attrs, attrs)
        data, weight, *scales = check_tensors(self.op_name, types, 6)
        out = check_dtype(
            self.op_name, TensorType((), settings.out_dtype), self.dtypes["out_dtype"], "out_dtype"
        )
        check_dtype(self.op_name, data, self.dtypes["data"], "data")
        check_dtype(self.op_name, weight, self.dtypes["weight"], "weight")
        like = [TensorType(kind.shape, out) for kind in (data, weight)]
        result = as_tensor_type(OPS[f"nn.{self.name}"].relation(like, settings))
        position, of_result = self.channels(settings)
        dims: tuple[PrimExpr | None, ...] = (
            None,
            weight.shape[position],
            None,
            result.shape[of_result],
        )
        for kind, what, dim in zip(scales, _PRODUCT_ARGUMENTS.split()[2:], dims, strict=True):
            check_qparam(self.op_name, kind, what, dim)
        return result

    def reference(self, attrs: Any, data: Array, weight: Array, *points: Array) -> Array:  # noqa: ANN401
        """Compute the product in int64, cast to the result's dtype."""
        position, _ = self.channels(attrs)
        point = points[1]
        if point.ndim:
            point = point.reshape(
                [-1 if i == position % weight.ndim else 1 for i in range(weight.ndim)]
            )
        multiply = OPS[f"nn.{self.name}"].reference
        assert multiply is not None
        # int64 holds every sum of products of 16 bits.
        wide = attrs.with_fields(out_dtype="int64")
        product = multiply(wide, data.astype(np.int64) - points[0], weight.astype(np.int64) - point)
        return np.asarray(product).astype(attrs.out_dtype)

    def expand_general(self, attrs: Any, args: Sequence[Expr], types: Sequence[Type]) -> Expr:  # noqa: ANN401
        """Expand to the product of zero-point-shifted operands in the result's dtype."""
        data, weight = (op.cast(operand, attrs.out_dtype) for operand in args[:2])
        position, _ = self.channels(attrs)
        if not is_qparam_equal_to(args[2], 0):
            data = op.subtract(data, op.cast(args[2], attrs.out_dtype))
        if not is_qparam_equal_to(args[3], 0):
            point, rank = op.cast(args[3], attrs.out_dtype), len(as_tensor_type(types[1]).shape)
            if as_tensor_type(types[3]).shape:
                # A zero point for each output channel lies along the weight's channel axis.
                point = op.reshape(point, [-1 if i == position % rank else 1 for i in range(rank)])
            weight = op.subtract(weight, point)
        return call_qnn_op(f"nn.{self.name}", data, weight, attrs=attrs)

    def can_use_int8_kernel(self, attrs: Any, args: Sequence[Expr], types: Sequence[Type]) -> bool:  # noqa: ANN401
        """Return whether the int8 kernel applies, which needs a constant weight."""
        data, weight = as_tensor_type(types[0]).dtype, as_tensor_type(types[1]).dtype
        # The correction for the data's zero point is the sum of weights, computed at build time.
        are_known = isinstance(args[1], Constant) and isinstance(args[3], Constant)
        return (
            are_known
            and data in INT8_DTYPES
            and weight in INT8_DTYPES
            and attrs.out_dtype == "int32"
        )

    def declare_op(self, expand: Callable[[Any, Sequence[Expr], Sequence[Type]], Expr]) -> None:
        """Declare the operator."""
        result = f"as nn.{self.name}, of attribute 'out_dtype'"
        declare_qnn_op(
            self.op_name,
            _PRODUCT_ARGUMENTS,
            self.relation,
            self.reference,
            expand,
            self.attrs,
            result,
            f"nn.{self.name}",
        )


# --- dense, batch_matmul -------------------------------------------------------------------------

_DENSE_PRODUCT = _QnnProduct("dense", DenseAttrs, lambda attrs: (0, -1), out=("int32", "int64"))
_BATCH_MATMUL_PRODUCT = _QnnProduct(
    "batch_matmul", BatchMatmulAttrs, lambda attrs: (-2, -1), INT8_DTYPES, out=("int32",)
)


def _expand_dense(attrs: DenseAttrs, args: Sequence[Expr], types: Sequence[Type]) -> Expr:
    weight, point = args[1], args[3]
    if not _DENSE_PRODUCT.can_use_int8_kernel(attrs, args, types) or not isinstance(
        weight, Constant
    ):
        return _DENSE_PRODUCT.expand_general(attrs, args, types)
    return int8_lowering.dense(args[0], weight, args[2], point, as_tensor_type(types[0]).dtype)


_DENSE_PRODUCT.declare_op(_expand_dense)
_BATCH_MATMUL_PRODUCT.declare_op(_BATCH_MATMUL_PRODUCT.expand_general)


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
    """Return quantised data [..., k] (8 or 16 bits) times the transpose of an 8-bit weight [units,
    k].

    The result is [..., units] of int32 or int64. Zero points are int32 and scales float32: scalars,
    those of the kernel also vectors [units].
    """
    attrs = DenseAttrs(units, out_dtype)
    points = input_zero_point, kernel_zero_point
    return call_qnn_op("qnn.dense", data, weight, *points, input_scale, kernel_scale, attrs=attrs)


def batch_matmul(
    x: Expr,
    y: Expr,
    x_zero_point: Expr,
    y_zero_point: Expr,
    x_scale: Expr,
    y_scale: Expr,
    out_dtype: str = "int32",
) -> Call:
    """Return the batched product of 8-bit x [b, m, k] and y [b, n, k] transposed: int32 [b, m, n].

    Zero points (int32) and scales (float32) are scalars.
    """
    attrs = BatchMatmulAttrs(out_dtype)
    points = x_zero_point, y_zero_point
    return call_qnn_op("qnn.batch_matmul", x, y, *points, x_scale, y_scale, attrs=attrs)


# --- convolutions --------------------------------------------------------------------------------


def _conv_channels(attrs: ConvAttrs) -> tuple[int, int]:
    layout = attrs.out_layout or attrs.data_layout
    if "O" not in attrs.kernel_layout or "C" not in layout:
        actual = f"got {attrs.kernel_layout!r} and {layout!r}"
        raise_type_error(
            "qnn.conv2d",
            f"layouts with channels O of the kernel and C of the data wanted, {actual}",
        )
    return attrs.kernel_layout.index("O"), layout.index("C")


_CONV2D_PRODUCT = _QnnProduct(
    "conv2d", Conv2DAttrs, _conv_channels, UP_TO_16_BIT_DTYPES[:3], UP_TO_16_BIT_DTYPES[:3]
)
_CONV2D_TRANSPOSE_PRODUCT = _QnnProduct("conv2d_transpose", Conv2DTransposeAttrs, _conv_channels)


def _layout_permutation(layout: str, target: str) -> tuple[int, ...]:
    return tuple(layout.index(axis) for axis in target)


def _expand_conv(attrs: Conv2DAttrs, args: Sequence[Expr], types: Sequence[Type]) -> Expr:
    weight, out = args[1], attrs.out_layout or attrs.data_layout
    plain = {"".join(sorted(layout)) for layout in (attrs.data_layout, out)} == {"CHNW"}
    plain = plain and sorted(attrs.kernel_layout) == sorted("OIHW")
    if (
        not plain
        or not _CONV2D_PRODUCT.can_use_int8_kernel(attrs, args, types)
        or not isinstance(weight, Constant)
    ):
        return _CONV2D_PRODUCT.expand_general(attrs, args, types)
    # Constants are rearranged once, at build time.
    kernel = np.transpose(weight.data, _layout_permutation(attrs.kernel_layout, "OIHW"))
    data = as_tensor_type(types[0])
    channels = data.shape[attrs.data_layout.index("C")]
    if not is_const(channels, kernel.shape[1] * attrs.groups):  # I is a multiplier
        return _CONV2D_PRODUCT.expand_general(attrs, args, types)
    result = int8_lowering.conv2d(
        _transpose_layout(args[0], attrs.data_layout, "NCHW"),
        Constant(np.ascontiguousarray(kernel), span=weight.span),
        args[2],
        args[3],
        data.dtype,
        attrs.strides,
        attrs.padding,
        attrs.dilation,
        attrs.groups,
    )
    return _transpose_layout(result, "NCHW", out)


def _transpose_layout(data: Expr, layout: str, target: str) -> Expr:
    return data if layout == target else op.transpose(data, _layout_permutation(layout, target))


def _expand_conv_transpose(
    attrs: Conv2DTransposeAttrs, args: Sequence[Expr], types: Sequence[Type]
) -> Expr:
    """Expand a transposed convolution to float32, which has kernels, where that is exact."""
    # float32 has kernels for transposed convolution; integers up to 2**24 are exact in it.
    exact = None
    if attrs.groups == 1 and _CONV2D_TRANSPOSE_PRODUCT.can_use_int8_kernel(attrs, args, types):
        terms, channels = (attrs.kernel_layout.index(axis) for axis in "IO")
        wide = attrs.with_fields(out_dtype="float32")
        exact = int8_lowering.product_in_float32(
            args[0], args[1], (args[2], args[3]),
            (attrs.data_layout.index("C"), terms, channels),
            lambda data, weight: call_qnn_op("nn.conv2d_transpose", data, weight, attrs=wide),
        )  # fmt: skip
    return _CONV2D_TRANSPOSE_PRODUCT.expand_general(attrs, args, types) if exact is None else exact


_CONV2D_PRODUCT.declare_op(_expand_conv)
_CONV2D_TRANSPOSE_PRODUCT.declare_op(_expand_conv_transpose)


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
    """Return a convolution of int8, uint8 or int16 data with int16, int32 or int64 results.

    The border is the input's zero point, which stands for 0. Zero points are int32 and scales
    float32: scalars, those of the kernel also vectors over its output channels.
    """
    attrs = Conv2DAttrs(
        expand_per_axis(strides, 2),
        expand_padding(padding, 2),
        expand_per_axis(dilation, 2),
        groups,
        channels,
        expand_kernel_size(kernel_size, 2),
        data_layout,
        kernel_layout,
        out_layout,
        out_dtype,
    )
    points = input_zero_point, kernel_zero_point
    return call_qnn_op("qnn.conv2d", data, kernel, *points, input_scale, kernel_scale, attrs=attrs)


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
    """Return a transposed convolution of 8- or 16-bit data with an 8-bit weight.

    Otherwise it is as `conv2d`.
    """
    attrs = Conv2DTransposeAttrs(
        expand_per_axis(strides, 2),
        expand_padding(padding, 2),
        expand_per_axis(dilation, 2),
        groups,
        channels,
        expand_kernel_size(kernel_size, 2),
        data_layout,
        kernel_layout,
        out_layout,
        out_dtype,
        expand_per_axis(output_padding, 2),
    )
    points = input_zero_point, kernel_zero_point
    return call_qnn_op(
        "qnn.conv2d_transpose", data, weight, *points, input_scale, kernel_scale, attrs=attrs
    )


__all__ = ["batch_matmul", "conv2d", "conv2d_transpose", "dense"]
