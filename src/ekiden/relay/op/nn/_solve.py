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
from ekiden.topi.layout import is_blocked, parse, transform_shape, whole
from ekiden.topi.shape import as_dim, window_extent

Types = Sequence[Type | None]


def vectors_along(axis: int = 1) -> Solve:
    """Every argument but the first is a vector of the extent of the attribute `axis` (or this)."""

    def solve(types: Types, attrs: Attrs | None) -> Types:
        """The types with unknown vectors filled in; as they are while the data's is unknown."""
        data, *vectors = types
        at = getattr(attrs, "axis", axis)
        if not isinstance(data, TensorType) or not -len(data.shape) <= at < len(data.shape):
            return types
        vector = TensorType((data.shape[at],), data.dtype)
        return [data, *(v or vector for v in vectors)]

    return solve


def matrix(types: Types, attrs: Attrs | None) -> Types:
    """The weight of a dense layer or the second matrix of a product, of `units` results."""
    data, weight = types
    units = getattr(attrs, "units", None)
    if weight is not None or units is None or not isinstance(data, TensorType) or not data.shape:
        return types
    inner = data.shape[-2 if getattr(attrs, "transpose_a", False) else -1]
    rows_are_units = getattr(attrs, "transpose_b", True)
    shape = (as_dim(units), inner) if rows_are_units else (inner, as_dim(units))
    return [data, TensorType(shape, data.dtype)]


def window(types: Types, attrs: Attrs | None) -> Types:
    """The weight of a convolution, of `channels` results and a window of `kernel_size`."""
    return _window(types, attrs, "I")


def window_transposed(types: Types, attrs: Attrs | None) -> Types:
    """The weight of a transposed convolution, which divides its results among the groups."""
    return _window(types, attrs, "O")


def deformed(types: Types, attrs: Attrs | None) -> Types:
    """The weight of a deformable convolution, and how far each tap of each result moves: down and
    right."""
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
    """`divided` is the letter of the kernel's layout for channels that groups divide."""
    data, weight = types
    size, channels = getattr(attrs, "kernel_size", None), getattr(attrs, "channels", None)
    data_layout = str(getattr(attrs, "data_layout", ""))
    kernel_layout = str(getattr(attrs, "kernel_layout", ""))
    known = size is not None and channels is not None and isinstance(data, TensorType)
    is_packed = not kernel_layout.isalpha() and not is_blocked(kernel_layout)
    if weight is not None or not known or is_packed:
        return types
    assert isinstance(data, TensorType) and size is not None and channels is not None
    if len(data.shape) != len(parse(data_layout)) or "C" not in data_layout:
        return types
    groups = int(getattr(attrs, "groups", 1))
    plain = whole(data_layout)
    given: PrimExpr = transform_shape(data.shape, data_layout, plain)[plain.index("C")]
    made = as_dim(channels)
    extents = {"I": given // groups if divided == "I" else given}
    extents["O"] = made // groups if divided == "O" else made
    extents |= dict(zip("DHW"[3 - len(size) :], map(as_dim, size), strict=True))
    flat = whole(kernel_layout)
    shape = transform_shape(tuple(extents[letter] for letter in flat), flat, kernel_layout)
    return [data, TensorType(shape, data.dtype)]
