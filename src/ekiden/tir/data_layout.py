"""Tensor layouts as values, and index and shape transforms between them.

layout("NCHW16c").factor_of("C") == 16
bijective_layout("NCHW", "NCHW16c").forward_shape((1, 32, 7, 7)) == (1, 2, 7, 7, 16)
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ekiden.ir import dtype as dt
from ekiden.ir.prim import ExprLike, PrimExpr, Var, convert
from ekiden.tir.op import floordiv, floormod
from ekiden.tir.stmt import IterKind, IterVar


def parse_layout(layout: str) -> list[tuple[str, int]]:
    """Return the axes of a layout string in order: ("C", 0) is a whole axis, ("c", 16) the inner
    part of C in NCHW16c. Raises ValueError.
    """
    # A Layout iterates over its axes; the regular expression needs its characters.
    text = str.__str__(layout)
    axes = [(letter, int(size or 0)) for size, letter in re.findall(r"(\d*)([A-Za-z])", text)]
    if "".join(f"{size or ''}{letter}" for letter, size in axes) != text:
        raise ValueError(f"layout {text!r}: expected letters, lower-case ones after their factor")
    return axes


class Layout(str):
    """A layout string (TVM's Layout) that is also the sequence of its axis letters: `len`, `[]` and
    iteration go over axes.
    """

    __slots__ = ("axes",)
    axes: tuple[IterVar, ...]
    """A variable for each axis; its extent is the factor, or a variable of its own."""

    def __new__(cls, name: str, dtype: str = "int32") -> Layout:
        """Return a layout; raise TypeError for a dtype that is not an integer's and ValueError for
        malformed text.
        """
        if not dtype or not dt.is_int(dtype):
            raise TypeError(f"layout: a dtype of integers expected, got {dtype!r}")
        layout = super().__new__(cls, name)
        layout.axes = tuple(
            _layout_axis(letter, size, dtype) for letter, size in parse_layout(name)
        )
        return layout

    @property
    def name(self) -> str:
        """Return the layout string."""
        return str.__str__(self)

    def __len__(self) -> int:
        return len(self.axes)

    def __getitem__(self, index: int) -> str:  # type: ignore[override]  # of axes, not of letters
        return self.axes[index].var.name

    def __iter__(self):  # type: ignore[no-untyped-def]  # noqa: ANN204 - of str
        return iter([axis.var.name for axis in self.axes])

    def index_of(self, axis: str) -> int:
        """Return the position of an axis, or -1 if the layout lacks it."""
        names = list(self)
        return names.index(axis) if axis in names else -1

    def factor_of(self, axis: str) -> int:
        """Return the extent of an axis's inner part, by either letter, or -1 if the axis is not
        split.
        """
        return dict(parse_layout(self)).get(axis.lower(), -1)


def _layout_axis(letter: str, size: int, dtype: str) -> IterVar:
    extent = convert(size, dtype) if size else Var(f"{letter}_shape", dtype)
    return IterVar(Var(letter, dtype), extent, IterKind.SPATIAL)


def layout(layout_str: str, dtype: str = "int32") -> Layout:
    """Return the Layout of a string; TVM's name."""
    return Layout(layout_str, dtype)


class BijectiveLayout:
    """A bijection of indices and shapes between two layouts of the same axes (TVM's)."""

    def __init__(self, source: Layout, target: Layout) -> None:
        self.src_layout, self.dst_layout = source, target

    def forward_index(self, index: Sequence[ExprLike]) -> tuple[PrimExpr, ...]:
        """Return the target-layout indices of a source-layout element."""
        return _transform_layout(self.src_layout, self.dst_layout, index, is_shape=False)

    def backward_index(self, index: Sequence[ExprLike]) -> tuple[PrimExpr, ...]:
        """Return the source-layout indices of a target-layout element."""
        return _transform_layout(self.dst_layout, self.src_layout, index, is_shape=False)

    def forward_shape(self, shape: Sequence[ExprLike]) -> tuple[PrimExpr, ...]:
        """Return the target-layout shape of a source-layout shape."""
        return _transform_layout(self.src_layout, self.dst_layout, shape, is_shape=True)

    def backward_shape(self, shape: Sequence[ExprLike]) -> tuple[PrimExpr, ...]:
        """Return the source-layout shape of a target-layout shape."""
        return _transform_layout(self.dst_layout, self.src_layout, shape, is_shape=True)


def bijective_layout(src_layout: str | Layout, dst_layout: str | Layout) -> BijectiveLayout | None:
    """Return the bijection between two layouts, or None where their axes differ."""
    if "__undef__" in (src_layout, dst_layout):
        return None
    source, target = Layout(src_layout), Layout(dst_layout)
    primal_axes = [{name for name in axes if name.isupper()} for axes in (source, target)]
    if not primal_axes[0] or primal_axes[0] != primal_axes[1]:
        return None
    return BijectiveLayout(source, target)


def _transform_layout(
    source: Layout, target: Layout, index_or_shape: Sequence[ExprLike], *, is_shape: bool
) -> tuple[PrimExpr, ...]:
    """Return indices, or extents, of a source layout's axes as those of a target layout."""
    if len(index_or_shape) != len(source):
        raise ValueError(
            f"layout {source.name}: {len(source)} axes expected, got {len(index_or_shape)}"
        )
    values = dict(zip(source, map(convert, index_or_shape), strict=True))
    result = []
    for letter, size in parse_layout(target):
        if is_shape and size:
            result.append(convert(size))
            continue
        primal, factor = values[letter.upper()], source.factor_of(letter)
        if factor > 0:
            primal = primal * factor if is_shape else primal * factor + values[letter.lower()]
        inner = target.factor_of(letter)
        outer = primal if inner < 0 else floordiv(primal, inner)
        result.append(floormod(primal, size) if size else outer)
    return tuple(result)


__all__ = ["BijectiveLayout", "Layout", "bijective_layout", "layout"]
