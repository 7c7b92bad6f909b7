"""Layouts of tensors as values: which letter is which axis, and how indices go from one to another.

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


def parse(layout: str) -> list[tuple[str, int]]:
    """Axes in order: ("C", 0) is a whole axis, ("c", 16) the inner part of C: NCHW16c. Raises
    ValueError.
    """
    text = str.__str__(layout)
    axes = [(letter, int(size or 0)) for size, letter in re.findall(r"(\d*)([A-Za-z])", text)]
    if "".join(f"{size or ''}{letter}" for letter, size in axes) != text:
        raise ValueError(f"layout {text!r}: expected letters, lower-case ones after their factor")
    return axes


class Layout(str):
    """A layout (TVM's). It is its text, for all that takes one, and also the sequence of its
    letters: `len`, `[]` and loops go over axes.
    """

    __slots__ = ("axes",)
    axes: tuple[IterVar, ...]
    """A variable for each axis; its extent is the factor, or a variable of its own."""

    def __new__(cls, name: str, dtype: str = "int32") -> Layout:
        """Raises TypeError for a dtype that is no integer's, ValueError for another text."""
        if not dtype or not dt.is_int(dtype):
            raise TypeError(f"layout: a dtype of integers expected, got {dtype!r}")
        made = super().__new__(cls, name)
        made.axes = tuple(_axis(letter, size, dtype) for letter, size in parse(name))
        return made

    @property
    def name(self) -> str:
        """Its text."""
        return str.__str__(self)

    def __len__(self) -> int:
        return len(self.axes)

    def __getitem__(self, index: int) -> str:  # type: ignore[override]  # of axes, not of letters
        return self.axes[index].var.name

    def __iter__(self):  # type: ignore[no-untyped-def]  # noqa: ANN204 - of str
        return iter([each.var.name for each in self.axes])

    def index_of(self, axis: str) -> int:
        """The position of an axis, -1 if there is none of that letter."""
        names = list(self)
        return names.index(axis) if axis in names else -1

    def factor_of(self, axis: str) -> int:
        """The extent of the inner part of an axis, by the letter of either; -1 if it has none."""
        return dict(parse(self)).get(axis.lower(), -1)


def _axis(letter: str, size: int, dtype: str) -> IterVar:
    extent = convert(size, dtype) if size else Var(f"{letter}_shape", dtype)
    return IterVar(Var(letter, dtype), extent, IterKind.SPATIAL)


def layout(layout_str: str, dtype: str = "int32") -> Layout:
    """The layout of a text; TVM's name."""
    return Layout(layout_str, dtype)


class BijectiveLayout:
    """How indices and shapes of one layout are those of another with the same axes (TVM's)."""

    def __init__(self, source: Layout, target: Layout) -> None:
        self.src_layout, self.dst_layout = source, target

    def forward_index(self, index: Sequence[ExprLike]) -> tuple[PrimExpr, ...]:
        """Indices of the source as those of the target."""
        return _moved(self.src_layout, self.dst_layout, index, is_shape=False)

    def backward_index(self, index: Sequence[ExprLike]) -> tuple[PrimExpr, ...]:
        """Indices of the target as those of the source."""
        return _moved(self.dst_layout, self.src_layout, index, is_shape=False)

    def forward_shape(self, shape: Sequence[ExprLike]) -> tuple[PrimExpr, ...]:
        """A shape in the source layout as one in the target's."""
        return _moved(self.src_layout, self.dst_layout, shape, is_shape=True)

    def backward_shape(self, shape: Sequence[ExprLike]) -> tuple[PrimExpr, ...]:
        """A shape in the target layout as one in the source's."""
        return _moved(self.dst_layout, self.src_layout, shape, is_shape=True)


def bijective_layout(src_layout: str | Layout, dst_layout: str | Layout) -> BijectiveLayout | None:
    """How one layout becomes another; None where they are not of the same axes."""
    if "__undef__" in (src_layout, dst_layout):
        return None
    source, target = Layout(src_layout), Layout(dst_layout)
    wholes = [{name for name in each if name.isupper()} for each in (source, target)]
    if not wholes[0] or wholes[0] != wholes[1]:
        return None
    return BijectiveLayout(source, target)


def _moved(
    source: Layout, target: Layout, given: Sequence[ExprLike], *, is_shape: bool
) -> tuple[PrimExpr, ...]:
    """Indices, or extents, of the axes of a layout as those of another."""
    if len(given) != len(source):
        raise ValueError(f"layout {source.name}: {len(source)} axes expected, got {len(given)}")
    values = dict(zip(source, map(convert, given), strict=True))
    found = []
    for letter, size in parse(target):
        if is_shape and size:
            found.append(convert(size))
            continue
        whole, factor = values[letter.upper()], source.factor_of(letter)
        if factor > 0:
            whole = whole * factor if is_shape else whole * factor + values[letter.lower()]
        inner = target.factor_of(letter)
        cut = whole if inner < 0 else floordiv(whole, inner)
        found.append(floormod(whole, size) if size else cut)
    return tuple(found)


__all__ = ["BijectiveLayout", "Layout", "bijective_layout", "layout"]
