"""Tensor layouts (axis letters, block factors), and transforms between layouts. All knowledge of
how NCHW, NHWC and weight layouts relate is in this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from ekiden.ir.expr_text import format_prim_expr
from ekiden.ir.op import Array
from ekiden.ir.prim import PrimExpr
from ekiden.tir.data_layout import parse_layout
from ekiden.topi.dimensions import as_dim, as_ints, known_int, simplify_dim, unify_dim

_T = TypeVar("_T")


def primal_layout(layout: str) -> str:
    """Return a layout without block factors: NCHW16c -> NCHW."""
    return "".join(letter for letter, _ in parse_layout(layout) if letter.isupper())


def is_blocked(layout: str) -> bool:
    """Return whether a layout has block factors, as NCHW16c and OIHW2i8o. Weights packed for
    kernels (OHWI64o) are padded as well and do not count.
    """
    return layout != primal_layout(layout) and not layout.startswith(("OHWI", "ODHWI", "G"))


def axis_index(layout: str, letter: str) -> int:
    """Return the index of an axis by its letter."""
    return [name for name, _ in parse_layout(layout)].index(letter)


def transpose_axes(source: str, target: str) -> tuple[int, ...]:
    """Return the permutation from `source` to `target`, which has the same letters. Raises
    ValueError if it has others.
    """
    if sorted(source) != sorted(target):
        raise ValueError(f"layout {source!r} cannot be permuted to {target!r}")
    return tuple(source.index(letter) for letter in target)


def permute_values(values: Sequence[_T], source: str, target: str) -> tuple[_T, ...]:
    """Reorder one value per axis (a shape, pads, indices) from one layout to another."""
    return tuple(values[i] for i in transpose_axes(source, target))


def packed_tile_size(kernel_layout: str) -> int:
    """Return the tile size of a packed weight layout ("OHWI16o" -> 16); 0 for an unpacked one."""
    return next((size for letter, size in parse_layout(kernel_layout) if letter == "o"), 0)


def packed_word_size(kernel_layout: str) -> int:
    """Return the word size of a packed weight layout in input channels ("OHWI16o4i" -> 4); 1 for
    others.
    """
    return next((size for letter, size in parse_layout(kernel_layout) if letter == "i"), 1)


def spatial_axis_indices(layout: str) -> tuple[int, ...]:
    """Return the indices of the spatial axes (D, H, W), outermost first."""
    return tuple(i for i, (letter, _) in enumerate(parse_layout(layout)) if letter in "DHW")


def channel_axis(layout: str) -> int:
    """Return the index of the channel axis."""
    return axis_index(layout, "C")


def transform_shape(shape: Sequence[PrimExpr], source: str, target: str) -> tuple[PrimExpr, ...]:
    """Return the shape of a tensor after a layout change. Raises ValueError if an inner factor does
    not divide.
    """
    extents = _primal_extents(shape, source)
    factors = {letter.upper(): size for letter, size in parse_layout(target) if size}
    return tuple(
        as_dim(size) if size else _outer_extent(extents[letter], factors.get(letter, 1), letter)
        for letter, size in parse_layout(target)
    )


def _primal_extents(shape: Sequence[PrimExpr], source: str) -> dict[str, PrimExpr]:
    axes = parse_layout(source)
    if len(axes) != len(shape):
        raise ValueError(f"layout {source!r} has {len(axes)} axes, got {len(shape)} dimensions")
    extents = {letter: d for (letter, size), d in zip(axes, shape, strict=True) if not size}
    for (letter, size), dim in zip(axes, shape, strict=True):
        if size:
            if unify_dim(dim, as_dim(size)) is None:
                raise ValueError(
                    f"layout {source!r} has {size} of {letter!r}, got {format_prim_expr(dim)}"
                )
            extents[letter.upper()] = extents[letter.upper()] * size
    return extents


def _outer_extent(extent: PrimExpr, factor: int, letter: str) -> PrimExpr:
    number = known_int(extent)
    if number is not None and number % factor:
        raise ValueError(f"axis {letter} of extent {number} does not divide by {factor}")
    return simplify_dim(extent // factor)


def transform_array(data: Array, source: str, target: str) -> Array:
    """Convert a NumPy array from one layout to another."""
    extents = as_ints(transform_shape(tuple(map(as_dim, data.shape)), source, target))
    names, targets = [n for n, _ in parse_layout(source)], [n for n, _ in parse_layout(target)]
    plain = [n for n in names if n.isupper()]
    order = [
        i
        for n in plain
        for i in (names.index(n), names.index(n.lower()) if n.lower() in names else -1)
        if i >= 0
    ]
    factors = dict(parse_layout(source))
    merged = [data.shape[names.index(n)] * factors.get(n.lower(), 1) for n in plain]
    plain_array = data.transpose(order).reshape(merged)
    cut: list[int] = []
    position: dict[str, int] = {}
    for name in plain:
        position[name] = len(cut)
        cut.append(extents[targets.index(name)])
        if name.lower() in targets:
            position[name.lower()] = len(cut)
            cut.append(extents[targets.index(name.lower())])
    return np.ascontiguousarray(plain_array.reshape(cut).transpose([position[n] for n in targets]))
