"""Inference of parameter types: fill in the weight types that a program omits, as for
`relay.var("weight")`.

Each function is an `ekiden.ir.op.ArgTypeSolver`: argument types, None where unknown, to
argument types.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.attrs import Attrs
from ekiden.ir.op import ArgTypeSolver
from ekiden.ir.prim import PrimExpr
from ekiden.ir.type import TensorType, Type
from ekiden.tir.data_layout import parse_layout
from ekiden.topi.dimensions import as_dim, window_extent
from ekiden.topi.layout import is_blocked, primal_layout, transform_shape

Types = Sequence[Type | None]


def infer_channel_vectors(axis: int = 1) -> ArgTypeSolver:
    """Return a rule that infers all arguments but the first as vectors along an axis.

    They have the extent of the axis in the attribute `axis`, or by default in the argument.
    """

    def infer_types(types: Types, attrs: Attrs | None) -> Types:
        """Infer unknown vector types, unless the data's type is unknown."""
        data, *vectors = types
        axis_index = getattr(attrs, "axis", axis)
        if not isinstance(data, TensorType) or not -len(data.shape) <= axis_index < len(data.shape):
            return types
        vector = TensorType((data.shape[axis_index],), data.dtype)
        return [data, *(v or vector for v in vectors)]

    return infer_types


def infer_dense_weight(types: Types, attrs: Attrs | None) -> Types:
    """Infer the weight type of a dense layer from `units`."""
    data, weight = types
    units = getattr(attrs, "units", None)
    if weight is not None or units is None or not isinstance(data, TensorType) or not data.shape:
        return types
    # The reduction axis: the data's last, or its rows where it is transposed.
    inner = data.shape[-2 if getattr(attrs, "transpose_a", False) else -1]
    # nn.dense has no such attribute: its weight has a row for each unit.
    rows_are_units = getattr(attrs, "transpose_b", True)
    shape = (as_dim(units), inner) if rows_are_units else (inner, as_dim(units))
    return [data, TensorType(shape, data.dtype)]


def infer_conv_weight(types: Types, attrs: Attrs | None) -> Types:
    """Infer the weight type of a convolution from `channels` and `kernel_size`."""
    return _infer_window_weight(types, attrs, "I")


def infer_conv_transpose_weight(types: Types, attrs: Attrs | None) -> Types:
    """Infer the weight type of a transposed convolution.

    It divides its results among the groups.
    """
    return _infer_window_weight(types, attrs, "O")


def infer_deformable_conv_params(types: Types, attrs: Attrs | None) -> Types:
    """Infer the weight and offset types of a deformable convolution.

    The offsets are the distances, down and right, that each tap of each result moves.
    """
    data, offset, weight = types
    data, weight = infer_conv_weight((data, weight), attrs)
    layout, kernel_layout = (str(getattr(attrs, n)) for n in ("data_layout", "kernel_layout"))
    # Blocked layouts split the channels, which the offsets have of their own number.
    is_plain = len(layout) == 4 and "C" in layout and sorted(kernel_layout) == sorted("OIHW")
    if offset is not None or not is_plain or not isinstance(data, TensorType):
        return [data, offset, weight]
    if not isinstance(weight, TensorType) or not len(data.shape) == len(weight.shape) == 4:
        return [data, offset, weight]
    strides, padding, dilation = (getattr(attrs, n) for n in ("strides", "padding", "dilation"))
    extents = dict(zip(layout, data.shape, strict=True))
    # Two offsets, of row and column, for each tap of each deformable group.
    taps = as_dim(2 * int(getattr(attrs, "deformable_groups", 1)))
    for index, letter in enumerate("HW"):
        size = weight.shape[kernel_layout.index(letter)]
        taps = size * taps
        extents[letter] = window_extent(
            extents[letter],
            size,
            strides[index],
            padding[index],
            padding[index + 2],
            dilation[index],
        )
    extents["C"] = taps
    return [data, TensorType(tuple(extents[letter] for letter in layout), data.dtype), weight]


def _infer_window_weight(types: Types, attrs: Attrs | None, divided: str) -> Types:
    """Infer a convolution weight type.

    Args:
        types: The types of data and weight.
        attrs: The attributes of the convolution.
        divided: The letter of the kernel's layout for channels that groups divide.
    """
    data, weight = types
    size, channels = getattr(attrs, "kernel_size", None), getattr(attrs, "channels", None)
    data_layout = str(getattr(attrs, "data_layout", ""))
    kernel_layout = str(getattr(attrs, "kernel_layout", ""))
    is_known = size is not None and channels is not None and isinstance(data, TensorType)
    # A layout that this function cannot take apart.
    is_packed = not kernel_layout.isalpha() and not is_blocked(kernel_layout)
    if weight is not None or not is_known or is_packed:
        return types
    assert isinstance(data, TensorType) and size is not None and channels is not None
    if len(data.shape) != len(parse_layout(data_layout)) or "C" not in data_layout:
        return types
    groups = int(getattr(attrs, "groups", 1))
    plain = primal_layout(data_layout)
    input_channels: PrimExpr = transform_shape(data.shape, data_layout, plain)[plain.index("C")]
    output_channels = as_dim(channels)
    # Each group sees its share of one side's channels only.
    extents = {"I": input_channels // groups if divided == "I" else input_channels}
    extents["O"] = output_channels // groups if divided == "O" else output_channels
    extents |= dict(zip("DHW"[3 - len(size) :], map(as_dim, size), strict=True))
    # Extents are found without blocks, then split as the kernel layout has them.
    flat = primal_layout(kernel_layout)
    shape = transform_shape(tuple(extents[letter] for letter in flat), flat, kernel_layout)
    return [data, TensorType(shape, data.dtype)]
