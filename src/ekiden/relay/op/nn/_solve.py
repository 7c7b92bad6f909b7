"""What the types of parameters must be, so that a program may leave them out: `relay.var("weight")`
is the weight that its layer needs.

Each function is an `ekiden.ir.op.Solve`: argument types, None where unknown, to argument types.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.attrs import Attrs
from ekiden.ir.op import Solve
from ekiden.ir.prim import PrimExpr
from ekiden.ir.type import TensorType, Type
from ekiden.topi.dimensions import as_dim, window_extent
from ekiden.topi.layout import is_blocked, parse, transform_shape, whole

Types = Sequence[Type | None]


def vectors_along(axis: int = 1) -> Solve:
    """Return a Solve that makes all arguments but the first vectors.

    They have the extent of the axis in the attribute `axis`, or by default in the argument.
    """

    def solve(types: Types, attrs: Attrs | None) -> Types:
        """Return the types with unknown vectors filled in, unless the data's type is unknown."""
        data, *vectors = types
        at = getattr(attrs, "axis", axis)
        if not isinstance(data, TensorType) or not -len(data.shape) <= at < len(data.shape):
            return types
        vector = TensorType((data.shape[at],), data.dtype)
        return [data, *(v or vector for v in vectors)]

    return solve


def matrix(types: Types, attrs: Attrs | None) -> Types:
    """Return the types with the weight of a dense layer or product filled in, from `units`."""
    data, weight = types
    units = getattr(attrs, "units", None)
    if weight is not None or units is None or not isinstance(data, TensorType) or not data.shape:
        return types
    inner = data.shape[-2 if getattr(attrs, "transpose_a", False) else -1]
    rows_are_units = getattr(attrs, "transpose_b", True)
    shape = (as_dim(units), inner) if rows_are_units else (inner, as_dim(units))
    return [data, TensorType(shape, data.dtype)]


def window(types: Types, attrs: Attrs | None) -> Types:
    """Return the types with the weight of a convolution filled in, from `channels` and
    `kernel_size`.
    """
    return _window(types, attrs, "I")


def window_transposed(types: Types, attrs: Attrs | None) -> Types:
    """Return the types with the weight of a transposed convolution filled in.

    It divides its results among the groups.
    """
    return _window(types, attrs, "O")


def deformed(types: Types, attrs: Attrs | None) -> Types:
    """Return the types with the weight and the offsets of a deformable convolution filled in.

    The offsets are the distances, down and right, that each tap of each result moves.
    """
    data, offset, weight = types
    data, weight = window((data, weight), attrs)
    layout, kernel_layout = (str(getattr(attrs, n)) for n in ("data_layout", "kernel_layout"))
    is_plain = len(layout) == 4 and "C" in layout and sorted(kernel_layout) == sorted("OIHW")
    if offset is not None or not is_plain or not isinstance(data, TensorType):
        return [data, offset, weight]
    if not isinstance(weight, TensorType) or not len(data.shape) == len(weight.shape) == 4:
        return [data, offset, weight]
    strides, padding, dilation = (getattr(attrs, n) for n in ("strides", "padding", "dilation"))
    extents = dict(zip(layout, data.shape, strict=True))
    taps = as_dim(2 * int(getattr(attrs, "deformable_groups", 1)))
    for at, letter in enumerate("HW"):
        size = weight.shape[kernel_layout.index(letter)]
        taps = size * taps
        extents[letter] = window_extent(
            extents[letter], size, strides[at], padding[at], padding[at + 2], dilation[at]
        )
    extents["C"] = taps
    return [data, TensorType(tuple(extents[letter] for letter in layout), data.dtype), weight]


def _window(types: Types, attrs: Attrs | None, divided: str) -> Types:
    """Return the types with a weight filled in.

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
    is_packed = not kernel_layout.isalpha() and not is_blocked(kernel_layout)
    if weight is not None or not is_known or is_packed:
        return types
    assert isinstance(data, TensorType) and size is not None and channels is not None
    if len(data.shape) != len(parse(data_layout)) or "C" not in data_layout:
        return types
    groups = int(getattr(attrs, "groups", 1))
    plain = whole(data_layout)
    input_channels: PrimExpr = transform_shape(data.shape, data_layout, plain)[plain.index("C")]
    output_channels = as_dim(channels)
    extents = {"I": input_channels // groups if divided == "I" else input_channels}
    extents["O"] = output_channels // groups if divided == "O" else output_channels
    extents |= dict(zip("DHW"[3 - len(size) :], map(as_dim, size), strict=True))
    flat = whole(kernel_layout)
    shape = transform_shape(tuple(extents[letter] for letter in flat), flat, kernel_layout)
    return [data, TensorType(shape, data.dtype)]
