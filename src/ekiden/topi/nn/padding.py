"""Padding operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ekiden import te
from ekiden.ir.prim import ExprLike, PrimExpr, Select, Var, cast, convert, maximum, minimum
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.te import Tensor
from ekiden.topi.dimensions import (
    Dim,
    Shape,
    as_dim,
    as_shape,
    known_int,
    require_min_extent,
    simplify_dim,
)
from ekiden.topi.nn.convolution import guarded_load

BorderMap = Callable[[PrimExpr, PrimExpr], PrimExpr]
"""Function (position, extent of the data) -> position within the data."""


@dataclass(frozen=True, slots=True)
class PaddingMode:
    """Padding mode: the map from a border position to a data position, for positions close to the
    data and for any.
    """

    near_map: tuple[BorderMap, BorderMap]
    any_map: BorderMap
    near_limit: Callable[[int], int]
    """Distance from the data up to which `near_map` is valid, by extent."""


def pad(
    data: Tensor,
    pad_before: Sequence[Dim],
    pad_after: Sequence[Dim] | None = None,
    pad_value: Tensor | ExprLike = 0.0,
    name: str = "PadInput",
    attrs: Mapping[str, object] | None = None,
) -> Tensor:
    """Pad `data` with a value (a number or a tensor of rank 0); `pad_after` defaults to
    `pad_before`, negative widths crop.
    """
    width = _padding_widths(data, pad_before, pad_after)
    value = pad_value[()] if isinstance(pad_value, Tensor) else convert(pad_value, data.dtype)
    return te.compute(
        _padded_shape(data, width),
        lambda *i: _pad_with_constant(data, cast(value, data.dtype), width, i),
        name=name,
        tag="injective",
        attrs=attrs,
    )


def mirror_pad(
    data: Tensor,
    pad_before: Sequence[Dim],
    pad_after: Sequence[Dim] | None = None,
    mode: str = "SYMMETRIC",
    name: str = "MirrorPadInput",
) -> Tensor:
    """Pad `data` with mirrored borders, which repeat the edge ("SYMMETRIC") or not ("REFLECT")."""
    if mode not in ("SYMMETRIC", "REFLECT"):
        raise ValueError(f"mirror_pad: mode must be SYMMETRIC or REFLECT, got {mode!r}")
    return _pad_with_data(
        data, _padding_widths(data, pad_before, pad_after), PADDING_MODES[mode.lower()], name
    )


def _padding_widths(
    data: Tensor, before: Sequence[Dim], after: Sequence[Dim] | None
) -> list[tuple[PrimExpr, PrimExpr]]:
    pairs = (as_shape(before), as_shape(before if after is None else after))
    if any(len(p) != data.ndim for p in pairs):
        raise ValueError(
            f"pad: expected {data.ndim} widths, got {len(pairs[0])} before, {len(pairs[1])} after"
        )
    return list(zip(*pairs, strict=True))


def _padded_shape(data: Tensor, width: Sequence[Sequence[PrimExpr]]) -> Shape:
    return tuple(simplify_dim(d + a + b) for d, (a, b) in zip(data.shape, width, strict=True))


def require_nonempty(name: str, shape: Shape, width: Sequence[Sequence[PrimExpr]]) -> None:
    """Raise ValueError where a padded axis has no element for its borders; unknown extents are
    assumed to fit.
    """
    cut = [[min(known_int(w) or 0, 0) for w in widths] for widths in width]
    padded = [any(known_int(w) != 0 for w in axis_widths) for axis_widths in width]
    minimum_sizes = [1 - sum(c) if p else None for p, c in zip(padded, cut, strict=True)]
    require_min_extent(name, "data", shape, minimum_sizes)


def _pad_with_data(
    data: Tensor,
    width: Sequence[Sequence[PrimExpr]],
    border: PaddingMode,
    name: str,
    shape: Shape | None = None,
) -> Tensor:
    """Pad with data elements by the border mode; at least one must exist."""
    require_nonempty(name, data.shape, width)

    def load_border_element(*i: Var) -> PrimExpr:
        """Load the element that the border mode selects on each axis."""
        return data[
            [
                _source_position(n, d, a, b, border)
                for n, d, (a, b) in zip(i, data.shape, width, strict=True)
            ]
        ]

    return te.compute(
        shape or _padded_shape(data, width), load_border_element, name=name, tag="injective"
    )


def pad_by_mode(
    data: Tensor,
    pad_value: Tensor,
    width: Sequence[Shape],
    mode: str,
    shape: Shape | None = None,
) -> Tensor:
    """Pad `data` with (before, after) borders per axis: "constant", whose value is converted to the
    dtype of the data, or one of PADDING_MODES. `shape` is the result's where widths are data.
    """
    if mode != "constant":
        return _pad_with_data(data, width, PADDING_MODES[mode], "pad", shape)
    return te.compute(
        shape or _padded_shape(data, width),
        lambda *i: _pad_with_constant(data, cast(pad_value[()], data.dtype), width, i),
        name="pad",
        tag="injective",
    )


def _pad_with_constant(
    data: Tensor,
    value: PrimExpr,
    width: Sequence[Sequence[PrimExpr]],
    indices: Sequence[PrimExpr],
) -> PrimExpr:
    point, conditions = [], []
    for index, size, (before, after) in zip(indices, data.shape, width, strict=True):
        position = index - before
        point.append(position)
        if not _is_known_nonpositive(before):
            conditions.append(position >= 0)
        if not _is_known_nonpositive(after):
            conditions.append(position < size)
    return guarded_load(data, point, conditions, value)


def _is_known_nonpositive(width: PrimExpr) -> bool:
    number = known_int(width)
    return number is not None and number <= 0


def _source_position(
    index: PrimExpr, size: PrimExpr, before: PrimExpr, after: PrimExpr, border: PaddingMode
) -> PrimExpr:
    """Return the data position of a result position; negative widths crop first. The borders are
    separate from the interior, so that loops can be split there.
    """
    first, cut = maximum(as_dim(0) - before, 0), maximum(as_dim(0) - after, 0)
    position, inside = index - maximum(before, 0), size - first - cut
    source_position = position
    if not _is_known_nonpositive(after):
        beyond = _border_position(position, inside, after, border, 1)
        source_position = Select(position >= inside, beyond, source_position, "int64")
    if not _is_known_nonpositive(before):
        beyond = _border_position(position, inside, before, border, 0)
        source_position = Select(position < 0, beyond, source_position, "int64")
    return first + source_position


def _border_position(
    position: PrimExpr, size: PrimExpr, width: PrimExpr, border: PaddingMode, side: int
) -> PrimExpr:
    """Return the data position of a border position on one side."""
    widest, extent = known_int(width), known_int(size)
    # A border wider than the data wraps around several times: only the general form, with a modulo,
    # covers it.
    if widest is None or extent is None or widest > border.near_limit(extent):
        return border.any_map(position, size)
    return border.near_map[side](position, size)


def _reflect_position(position: PrimExpr, size: PrimExpr) -> PrimExpr:
    """Return a reflected position, with period 2 (size - 1)."""
    # A single element would have period 0, by which nothing can be divided.
    period = maximum((size - 1) * 2, 1)
    phase = position % period
    return Select(phase < size, phase, period - phase, "int64")


def _mirror_position(position: PrimExpr, size: PrimExpr) -> PrimExpr:
    """Return a mirrored position, with period 2 size."""
    phase = position % maximum(size * 2, 1)
    return Select(phase < size, phase, size * 2 - 1 - phase, "int64")


PADDING_MODES: Mapping[str, PaddingMode] = {
    "edge": PaddingMode(
        (lambda p, n: as_dim(0), lambda p, n: n - 1),
        lambda p, n: maximum(minimum(p, n - 1), 0),
        lambda n: n,
    ),
    "reflect": PaddingMode(
        (lambda p, n: as_dim(0) - p, lambda p, n: (n - 1) * 2 - p),
        _reflect_position,
        lambda n: n - 1,
    ),
    "symmetric": PaddingMode(
        (lambda p, n: as_dim(-1) - p, lambda p, n: n * 2 - 1 - p), _mirror_position, lambda n: n
    ),
    "wrap": PaddingMode(
        (lambda p, n: p + n, lambda p, n: p - n), lambda p, n: p % maximum(n, 1), lambda n: n
    ),
}
"""Padding modes: edge, reflect (without the edge), symmetric (with it), and wrap."""


__all__ = ["mirror_pad", "pad"]
