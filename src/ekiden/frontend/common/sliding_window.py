"""Sliding windows of convolutions, pooling and reductions.

A window has a number for each axis that it slides over: the spatial ones of an image, or all axes
of a tensor as XLA has them. Padding may be an expression of dimensions, as that of SAME is where
extents are symbolic; data are padded by an operator of its own then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from ekiden.frontend.common.dynamic_slices import xla_pad
from ekiden.frontend.common.node import Node
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value
from ekiden.ir.dtype import is_float
from ekiden.ir.prim import PrimExpr, maximum
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.dimensions import (
    Dim,
    Shape,
    as_dim,
    as_ints,
    ceil_div,
    known_int,
    simplify_dim,
    to_attr_dims,
)


@dataclass(frozen=True, slots=True)
class Window:
    """Window geometry by axis: extents, strides, dilations, and the padding before and after the
    data.

    base_dilations: the elements between those of the data, XLA's base dilation; () for none.
    """

    extents: tuple[Dim, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    padding_before: tuple[Dim, ...]
    padding_after: tuple[Dim, ...]
    base_dilations: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        rank = len(self.extents)
        fields = (
            self.strides,
            self.dilations,
            self.padding_before,
            self.padding_after,
            self.base_dilations or self.extents,
        )
        if any(len(field) != rank for field in fields):
            raise Unsupported(f"its windows do not have {rank} axes in all of their options")
        limits: dict[str, tuple[tuple[Dim, ...], int]] = {
            "extents": (self.extents, 1), "strides": (self.strides, 1),
            "dilations": (self.dilations, 1), "gaps": (self.base_dilations, 0),
        }  # fmt: skip
        for option, (sizes, limit) in limits.items():
            for size in sizes:
                number = known_int(as_dim(size))
                if number is not None and number < limit:
                    raise Unsupported(f"windows need {option} of {limit} at least, got {number}")

    @property
    def has_static_extents(self) -> bool:
        """Return whether the window's extents are numbers."""
        return all(known_int(extent) is not None for extent in self.extents)

    @property
    def static_extents(self) -> tuple[int, ...]:
        """Return the window's extents. Raises ValueError where one is symbolic."""
        return as_ints(self.extents)

    @property
    def padding(self) -> tuple[int, ...] | None:
        """Return the padding before each axis, then after each; None if it is symbolic."""
        numbers = [known_int(p) for p in (*self.padding_before, *self.padding_after)]
        return None if None in numbers else tuple(n for n in numbers if n is not None)

    @property
    def dilated_extents(self) -> list[PrimExpr]:
        """Return the number of elements that a dilated window spans along each axis."""
        pairs = zip(self.extents, self.dilations, strict=True)
        return [simplify_dim((as_dim(extent) - 1) * d + 1) for extent, d in pairs]

    def output_extents(self, shape: Sequence[Dim]) -> Shape:
        """Return the number of windows along each axis of padded data."""
        rows = zip(shape, self.dilated_extents, self.strides, strict=True)
        return tuple(simplify_dim((as_dim(extent) - reach) // s + 1) for extent, reach, s in rows)

    def overhang(self, extents: Shape, counts: Sequence[Dim]) -> list[PrimExpr]:
        """Return the number of elements by which the last of `counts` windows overhangs the data;
        negative if it ends before.
        """
        rows = zip(
            counts, self.strides, self.dilated_extents, extents, self.padding_before, strict=True
        )
        return [simplify_dim((as_dim(n) - 1) * s + r - e - as_dim(b)) for n, s, r, e, b in rows]

    def with_trailing_padding(self, extents: Shape, counts: Sequence[Dim]) -> Window:
        """Return the window with enough trailing padding for `counts` windows."""
        pairs = zip(self.overhang(extents, counts), self.padding_after, strict=True)
        after = [
            simplify_dim(maximum(m, as_dim(a)))
            if (number := known_int(m)) is None
            else max(number, 0)
            for m, a in pairs
        ]
        return replace(self, padding_after=tuple(after))

    def without_padding(self) -> Window:
        """Return the window without padding, for data that are padded already."""
        none = (0,) * len(self.strides)
        return replace(self, padding_before=none, padding_after=none)

    def unsqueeze_height(self) -> Window:
        """Return a one-dimensional window as a two-dimensional one of height 1."""
        return Window(
            (1, *self.extents), (1, *self.strides), (1, *self.dilations), (0, *self.padding_before),
            (0, *self.padding_after),
        )  # fmt: skip


def same_padding_window(
    extents: Shape, kernel: Sequence[Dim], strides: Sequence[int], dilations: Sequence[int],
    odd_before: bool = False,
) -> Window:  # fmt: skip
    """Return the window of SAME padding: ceil(extent / stride) windows along each axis.

    An odd element of padding is placed behind the data, or before them with `odd_before`.
    """
    totals = []
    for extent, size, stride, dilation in zip(extents, kernel, strides, dilations, strict=True):
        reach = (as_dim(size) - 1) * dilation + 1
        spare = (
            (ceil_div(extent, stride) - 1) * stride + reach - extent if stride > 1 else reach - 1
        )
        totals.append(simplify_dim(maximum(spare, 0)) if stride > 1 else simplify_dim(spare))
    # An odd total puts the extra element after the data, except for ONNX's SAME_LOWER.
    small = to_attr_dims(simplify_dim(total // 2) for total in totals)
    large = to_attr_dims(simplify_dim(total - total // 2) for total in totals)
    sides = (large, small) if odd_before else (small, large)
    return Window(tuple(kernel), tuple(strides), tuple(dilations), *sides)


def pad_window(node: Node, data: Expr, window: Window, fill: float, first: int = 2) -> Expr:
    """Emit data with a window's padding on the axes from `first` on."""
    kind = node.tensor_type_of(data)
    sides: list[tuple[Dim, Dim]] = list(
        zip(window.padding_before, window.padding_after, strict=True)
    )
    after = len(kind.shape) - first - len(sides)
    value = fill if is_float(kind.dtype) else int(fill)
    widths = [*[(0, 0)] * first, *sides, *[(0, 0)] * after]
    return op.nn.pad(data, widths, const(value, kind.dtype))


def iter_window_taps(
    data: Expr, window: Window, counts: Sequence[Dim], first: int = 0
) -> Iterator[Expr]:
    """Yield a strided slice of padded data per window position (tap), in row-major order of the
    taps.
    """
    axes = list(range(first, first + len(counts))) if first else None
    for tap in product(*map(range, window.static_extents)):
        begin = [t * d for t, d in zip(tap, window.dilations, strict=True)]
        rows = zip(counts, window.strides, begin, strict=True)
        end = to_attr_dims(simplify_dim((as_dim(n) - 1) * s + 1 + b) for n, s, b in rows)
        yield op.strided_slice(data, begin, end, strides=list(window.strides), axes=axes)


# As XLA has them, over all axes of a tensor.


def pad_and_dilate(node: Node, window: Window, value: Value, fill: Expr) -> Value:
    """Emit a tensor with window padding, negative padding cropped, and base dilation
    applied (XLA).
    """
    inner = window.base_dilations or (0,) * len(window.strides)
    return node.bind_shared(
        xla_pad(node, value, fill, window.padding_before, window.padding_after, inner)
    )


def emit_tap_values(node: Node, window: Window, wide: Value) -> Iterator[Value]:
    """Yield the taps of padded data, each computed once."""
    data = node.scope.expr(wide)
    for tap in iter_window_taps(
        data, window, window.output_extents(node.tensor_type_of(data).shape)
    ):
        yield node.bind_shared(tap)
