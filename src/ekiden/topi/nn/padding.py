"""Padding operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ekiden import te
from ekiden.ir.prim import ExprLike, PrimExpr, Select, Var, cast, convert, maximum, minimum
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.te import Tensor
from ekiden.topi.dimensions import Dim, Shape, as_dim, as_shape, expect_least, known, tidy
from ekiden.topi.nn.convolution import guarded

BorderMap = Callable[[PrimExpr, PrimExpr], PrimExpr]
"""(position, extent of the data) -> position within the data."""


@dataclass(frozen=True, slots=True)
class PaddingMode:
    """Padding mode: the data position that a border position shows, close before and after the
    data, and anywhere.
    """

    near: tuple[BorderMap, BorderMap]
    anywhere: BorderMap
    reach: Callable[[int], int]
    """How far data of an extent are from where `near` no longer holds."""


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
    width = _widths(data, pad_before, pad_after)
    value = pad_value[()] if isinstance(pad_value, Tensor) else convert(pad_value, data.dtype)
    return te.compute(
        _padded_shape(data, width),
        lambda *i: _constant(data, cast(value, data.dtype), width, i),
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
    return _moved(data, _widths(data, pad_before, pad_after), PADDING_MODES[mode.lower()], name)


def _widths(
    data: Tensor, before: Sequence[Dim], after: Sequence[Dim] | None
) -> list[tuple[PrimExpr, PrimExpr]]:
    pairs = (as_shape(before), as_shape(before if after is None else after))
    if any(len(p) != data.ndim for p in pairs):
        raise ValueError(
            f"pad: expected {data.ndim} widths, got {len(pairs[0])} before, {len(pairs[1])} after"
        )
    return list(zip(*pairs, strict=True))


def _padded_shape(data: Tensor, width: Sequence[Sequence[PrimExpr]]) -> Shape:
    return tuple(tidy(d + a + b) for d, (a, b) in zip(data.shape, width, strict=True))


def expect_shown(name: str, shape: Shape, width: Sequence[Sequence[PrimExpr]]) -> None:
    """Check that each padded axis has an element left that its borders can show. Raises ValueError
    where there is known to be none; unknown extents are assumed to fit.
    """
    cut = [[min(known(w) or 0, 0) for w in widths] for widths in width]
    padded = [any(known(w) != 0 for w in axis_widths) for axis_widths in width]
    minimum_sizes = [1 - sum(c) if p else None for p, c in zip(padded, cut, strict=True)]
    expect_least(name, "data", shape, minimum_sizes)


def _moved(
    data: Tensor,
    width: Sequence[Sequence[PrimExpr]],
    border: PaddingMode,
    name: str,
    shape: Shape | None = None,
) -> Tensor:
    """Pad with elements of the data, of which there must be one."""
    expect_shown(name, data.shape, width)

    def body(*i: Var) -> PrimExpr:
        """Return the element that each axis's border rule shows."""
        return data[
            [_placed(n, d, a, b, border) for n, d, (a, b) in zip(i, data.shape, width, strict=True)]
        ]

    return te.compute(shape or _padded_shape(data, width), body, name=name, tag="injective")


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
        return _moved(data, width, PADDING_MODES[mode], "pad", shape)
    return te.compute(
        shape or _padded_shape(data, width),
        lambda *i: _constant(data, cast(pad_value[()], data.dtype), width, i),
        name="pad",
        tag="injective",
    )


def _constant(
    data: Tensor,
    value: PrimExpr,
    width: Sequence[Sequence[PrimExpr]],
    indices: Sequence[PrimExpr],
) -> PrimExpr:
    at, conditions = [], []
    for index, size, (before, after) in zip(indices, data.shape, width, strict=True):
        position = index - before
        at.append(position)
        if not _is_at_most_zero(before):
            conditions.append(position >= 0)
        if not _is_at_most_zero(after):
            conditions.append(position < size)
    return guarded(data, at, conditions, value)


def _is_at_most_zero(width: PrimExpr) -> bool:
    number = known(width)
    return number is not None and number <= 0


def _placed(
    index: PrimExpr, size: PrimExpr, before: PrimExpr, after: PrimExpr, border: PaddingMode
) -> PrimExpr:
    """Return the data position that a position of the result shows; negative widths crop first. The
    borders are separate from the interior, so that loops can be split there.
    """
    first, cut = maximum(as_dim(0) - before, 0), maximum(as_dim(0) - after, 0)
    position, inside = index - maximum(before, 0), size - first - cut
    source_position = position
    if not _is_at_most_zero(after):
        beyond = _beyond(position, inside, after, border, 1)
        source_position = Select(position >= inside, beyond, source_position, "int64")
    if not _is_at_most_zero(before):
        beyond = _beyond(position, inside, before, border, 0)
        source_position = Select(position < 0, beyond, source_position, "int64")
    return first + source_position


def _beyond(
    position: PrimExpr, size: PrimExpr, width: PrimExpr, border: PaddingMode, side: int
) -> PrimExpr:
    """Return the data position that a position beyond one side shows."""
    widest, extent = known(width), known(size)
    if widest is None or extent is None or widest > border.reach(extent):
        return border.anywhere(position, size)
    return border.near[side](position, size)


def _reflected(position: PrimExpr, size: PrimExpr) -> PrimExpr:
    """Return a reflected position, with period 2 (size - 1)."""
    period = maximum((size - 1) * 2, 1)
    phase = position % period
    return Select(phase < size, phase, period - phase, "int64")


def _doubled(position: PrimExpr, size: PrimExpr) -> PrimExpr:
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
        (lambda p, n: as_dim(0) - p, lambda p, n: (n - 1) * 2 - p), _reflected, lambda n: n - 1
    ),
    "symmetric": PaddingMode(
        (lambda p, n: as_dim(-1) - p, lambda p, n: n * 2 - 1 - p), _doubled, lambda n: n
    ),
    "wrap": PaddingMode(
        (lambda p, n: p + n, lambda p, n: p - n), lambda p, n: p % maximum(n, 1), lambda n: n
    ),
}
"""What stands beyond the data: its first or last element, the data mirrored without or with that
element, or the data repeated."""


__all__ = ["mirror_pad", "pad"]
