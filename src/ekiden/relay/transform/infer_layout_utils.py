"""Layout inference rules: how each operator adapts to its inputs' layouts, for ConvertLayout and
AlterOpLayout.

A rule gets the layouts that a call's inputs had ("NCHW"; None where they are unknown) and, the
second time it is asked, those that they have now. It returns the layouts that the call needs of its
inputs, those of its results, and its attributes for them. A layout that stays None means that the
rule does not know, and the call keeps the layouts that it had.

    mean(axis=[2, 3])    NCHW -> NHWC    mean(axis=[1, 2])

Users add rules, or replace them, with `relay.op.register_infer_correct_layout` (TVM's name).

A layout is a word of axes: capitals are primal axes, a number and a small letter the inner part of
one that is split (NCHW16c: 16 channels innermost). A rule asks for the index of an axis (`axis_of`)
and its split factor (`factor_of`); what counts axes by numbers keeps the letter and looks the
number up again. It must return what it got where it cannot follow: a wrong layout is a wrong
result, an unchanged one costs a transformation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ekiden.ir.op import OP_ATTRS, OPS, Op, OpPattern
from ekiden.ir.prim import IntImm, is_const
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.data_layout import parse_layout
from ekiden.topi.dimensions import OPEN_SLICE_END

Layout = str | None
Layouts = Sequence[Layout]


@dataclass(frozen=True, slots=True)
class InferCorrectLayoutOutput:
    """Result of a layout rule (TVM's name): layouts of inputs and outputs, and the adapted
    attributes.
    """

    input_layouts: Layouts
    output_layouts: Layouts
    new_attrs: Any


_InferredLayouts = InferCorrectLayoutOutput
OpAttrs = Any
"""Attributes of any operator."""
NewLayouts = Layouts | None
ArgumentTypes = Sequence[Type]
LayoutRule = Callable[[OpAttrs, NewLayouts, Layouts, ArgumentTypes], _InferredLayouts]
"""Function (attributes, new layouts or None, old layouts, types) -> inferred layouts."""


def primal_axes(layout: str) -> list[str]:
    """Return the primal axes of a layout in order: NCHW16c -> N, C, H, W."""
    return [letter for letter, _ in parse_layout(layout) if letter.isupper()]


def block_factor(layout: str, letter: str) -> int:
    """Return the block factor of an axis: 16 for C in NCHW16c, 0 if the axis is not split."""
    return next((size for name, size in parse_layout(layout) if name == letter.lower()), 0)


def axis_index(layout: str, letter: str) -> int:
    """Return the index of a primal axis in a layout, or -1."""
    names = [name for name, _ in parse_layout(layout)]
    return names.index(letter) if letter in names else -1


def format_layout(axes: Sequence[tuple[str, int]]) -> str:
    """Format (letter, factor) pairs as a layout string."""
    return "".join(f"{size or ''}{letter}" for letter, size in axes)


def _axis_letter(layout: str, axis: int) -> str:
    return parse_layout(layout)[axis][0]


def _rank(kind: Type) -> int:
    return len(kind.shape) if isinstance(kind, TensorType) else 0


# --- element by element ---------------------------------------------------------------------------


def infer_elementwise(
    attrs: OpAttrs, new: NewLayouts, old: Layouts, types: ArgumentTypes
) -> _InferredLayouts:
    """Infer one common layout for all operands of an elementwise operator."""
    chosen = new[0] if new is not None else next((layout for layout in old if layout), None)
    return _InferredLayouts((chosen,) * len(old), (chosen,), attrs)


def _is_renaming(layout_a: str, layout_b: str) -> bool:
    """Return whether two layouts are equal up to a renaming of axes."""
    a, b = parse_layout(layout_a), parse_layout(layout_b)
    if len(a) != len(b) or any(
        s != t or x.isupper() != y.isupper() for (x, s), (y, t) in zip(a, b, strict=True)
    ):
        return False
    forward = {x: y for (x, _), (y, _) in zip(a, b, strict=True)}
    # Both directions: the renaming must be one to one.
    back = {y: x for (x, _), (y, _) in zip(a, b, strict=True)}
    return all(forward[x] == y and back[y] == x for (x, _), (y, _) in zip(a, b, strict=True))


def _transform_like(old: str, like_old: str, like_new: str) -> str | None:
    """Apply to `old` the layout change from `like_old` to `like_new`; None where that is undefined.

    The two broadcast, and may name axes differently: (W, NCHW, NHWC) -> NHWC; dropping what W lacks
    is left to the caller. Axes that broadcast together are paired from the last one on; those that
    the shorter lacks get letters that it does not use, so that both are permuted alike. None where
    the pairs disagree: one axis split, or a letter that would mean two.
    """
    if not old:
        return old
    longer, shorter = parse_layout(like_old), parse_layout(old)
    if len(longer) < len(shorter):
        longer, shorter = shorter, longer
    head, tail = longer[: len(longer) - len(shorter)], longer[len(longer) - len(shorter) :]
    # A letter in both parts would be an axis split across the boundary of broadcasting.
    if {x.upper() for x, _ in head} & {x.upper() for x, _ in tail}:
        return None
    if not _is_renaming(format_layout(tail), format_layout(shorter)):
        return None
    # From the right, as broadcasting aligns axes.
    names = dict(
        zip(
            (x.upper() for x, _ in reversed(parse_layout(like_old))),
            (x.upper() for x, _ in reversed(parse_layout(old))),
            strict=False,
        )
    )
    used = set(names.values())
    for letter in reversed(primal_axes(like_old)):
        if letter not in names:
            # Axes that only the longer tensor has need letters that are not taken.
            free = next(c for c in (letter, *map(chr, range(65, 91))) if c not in used)
            names[letter] = free
            used.add(free)
    renamed = []
    for letter, size in parse_layout(like_new):
        if letter.upper() not in names:
            return None
        renamed_letter = names[letter.upper()]
        renamed.append((renamed_letter if letter.isupper() else renamed_letter.lower(), size))
    return format_layout(renamed)


def _unit_block_layout(layout: str, old: str, shape: Sequence[Any]) -> str:
    """Return the layout for a broadcast operand: blocks of a unit or absent axis have factor 1
    (NCHW16c -> NCHW1c).
    """
    axes = []
    for letter, size in parse_layout(layout):
        if letter.islower():
            position = axis_index(old, letter.upper())
            is_one = position < 0 or (
                is_const(shape[position], 1) and not block_factor(old, letter)
            )
            size = 1 if is_one else size
        axes.append((letter, size))
    return format_layout(axes)


def infer_broadcast(
    attrs: OpAttrs, new: NewLayouts, old: Layouts, types: ArgumentTypes
) -> _InferredLayouts:
    """Infer the layouts of two broadcasting operands: the smaller follows the larger."""
    failed = _InferredLayouts((None, None), (None,), attrs)
    shapes = [t.shape if isinstance(t, TensorType) else () for t in types[:2]]
    large = 0 if len(shapes[0]) >= len(shapes[1]) else 1
    layouts: list[Layout] = list(old[:2])
    if all(layout is None for layout in layouts):
        return failed
    if None in layouts:
        known_index = 0 if layouts[0] is not None else 1
        # Axes that only the other tensor has would be without names.
        if len(shapes[known_index]) < len(shapes[1 - known_index]):
            return failed
        axes = parse_layout(layouts[known_index] or "")
        layouts[1 - known_index] = format_layout(axes[len(axes) - len(shapes[1 - known_index]) :])
        result = layouts[known_index]
    else:
        result = layouts[large]
    if new is None:
        return _InferredLayouts(layouts, (result,), attrs)
    # An unknown layout counts as one without axes.
    current = [new_layout or "" for new_layout in new[:2]]
    more = 0 if len(primal_axes(current[0])) >= len(primal_axes(current[1])) else 1
    small = 1 - more
    changed = _transform_like(layouts[small] or "", layouts[more] or "", current[more])
    if changed is None:
        return failed
    result = current[large]
    layouts[small] = _unit_block_layout(changed, layouts[small] or "", shapes[small])
    layouts[more] = current[more]
    return _InferredLayouts(layouts, (result,), attrs)


# --- operators with layouts of their own ----------------------------------------------------------


def _infer_convolution(
    attrs: OpAttrs, new: NewLayouts, old: Layouts, types: ArgumentTypes
) -> _InferredLayouts:
    """Infer the layouts of a convolution, which keeps the layouts of its attributes."""
    more = ("C",) * (len(old) - 2)
    inputs = (attrs.data_layout, attrs.kernel_layout, *more)
    return _InferredLayouts(inputs, (attrs.out_layout or attrs.data_layout,), attrs)


def _infer_deformable_conv(
    attrs: OpAttrs, new: NewLayouts, old: Layouts, types: ArgumentTypes
) -> _InferredLayouts:
    inputs = (attrs.data_layout, attrs.data_layout, attrs.kernel_layout)
    return _InferredLayouts(inputs, (attrs.out_layout or attrs.data_layout,), attrs)


def _make_data_layout_rule(fits: Callable[[str, str], bool]) -> LayoutRule:
    """Return a rule for operators with one `layout` attribute, which adopt their data's layout
    where `fits` allows it.
    """

    def infer_from_data(
        attrs: OpAttrs, new: NewLayouts, old: Layouts, types: ArgumentTypes
    ) -> _InferredLayouts:
        """Adopt the data's changed layout where it fits, else keep the call's own.

        Further inputs are vectors of channels.
        """
        # If the call's layout differs from the data's, it has been changed deliberately.
        new_layout = new[0] if new is not None and attrs.layout == old[0] else None
        if new_layout and new_layout != old[0] and fits(new_layout, attrs.layout):
            attrs = attrs.with_fields(layout=new_layout)
        result = getattr(attrs, "out_layout", "") or attrs.layout
        return _InferredLayouts((attrs.layout, *("C",) * (len(old) - 1)), (result,), attrs)

    return infer_from_data


def _preserves_spatial_axes(layout: str, native_layout: str) -> bool:
    """Return whether the spatial axes keep their positions and stay unsplit."""
    axes = [letter for letter in "DHW" if axis_index(native_layout, letter) >= 0]
    return all(
        axis_index(layout, a) == axis_index(native_layout, a) and not block_factor(layout, a)
        for a in axes
    )


def _infer_pool(
    attrs: OpAttrs, new: NewLayouts, old: Layouts, types: ArgumentTypes
) -> _InferredLayouts:
    """Infer the layouts of a pooling, which adopts any layout with unsplit spatial axes."""

    def fits(layout: str, native_layout: str) -> bool:
        axes = [letter for letter in "DHW" if axis_index(native_layout, letter) >= 0]
        return all(axis_index(layout, a) >= 0 and not block_factor(layout, a) for a in axes)

    # An explicit output layout fixes the call's own layout, too.
    if new is not None and attrs["out_layout"]:
        return _InferredLayouts((attrs.layout,), (attrs.out_layout,), attrs)
    return _make_data_layout_rule(fits)(attrs, new, old, types)


def _infer_batch_norm(
    attrs: OpAttrs, new: NewLayouts, old: Layouts, types: ArgumentTypes
) -> _InferredLayouts:
    """Infer the layouts of batch_norm: data and per-channel parameters along `axis`."""
    layout = old[0] if new is None else new[0]
    if layout is None or old[0] is None:
        return _InferredLayouts((None,), (None,), attrs)
    letter = _axis_letter(old[0], attrs.axis)
    if new is not None:
        if axis_index(layout, letter) < 0 or block_factor(layout, letter):
            layout = old[0]
        attrs = attrs.with_fields(axis=axis_index(layout, letter))
    return _InferredLayouts((layout, "C", "C", "C", "C"), (layout, "C", "C"), attrs)


def _infer_axis_op(
    attrs: OpAttrs, new: NewLayouts, old: Layouts, types: ArgumentTypes
) -> _InferredLayouts:
    """Infer the layouts of an operator along one `axis`; further inputs are vectors along it."""
    layout = old[0] if new is None else new[0]
    if layout is None or old[0] is None:
        return _InferredLayouts((None,), (None,), attrs)
    if new is not None:
        letter = _axis_letter(old[0], attrs.axis)
        if axis_index(layout, letter) < 0 or block_factor(layout, letter):
            layout = old[0]
        attrs = attrs.with_fields(axis=axis_index(layout, letter))
    return _InferredLayouts((layout, *("C",) * (len(old) - 1)), (layout,), attrs)


def _infer_axes_op(
    attrs: OpAttrs, new: NewLayouts, old: Layouts, types: ArgumentTypes
) -> _InferredLayouts:
    """Infer the layouts of an operator along a tuple `axis`, whose result has its data's shape."""
    layout = old[0] if new is None else new[0]
    if layout is None or old[0] is None:
        return _InferredLayouts((None,), (None,), attrs)
    if new is not None:
        letters = [_axis_letter(old[0], int(a)) for a in attrs.axis]
        if any(
            axis_index(layout, letter_checked) < 0 or block_factor(layout, letter_checked)
            for letter_checked in letters
        ):
            layout = old[0]
        attrs = attrs.with_fields(axis=tuple(axis_index(layout, letter) for letter in letters))
    return _InferredLayouts((layout,), (layout,), attrs)


def _make_fixed_rule(*layouts: str) -> LayoutRule:
    """Return a rule with fixed layouts, inputs first, result last."""

    def rule(
        attrs: OpAttrs, new: NewLayouts, old: Layouts, types: ArgumentTypes
    ) -> _InferredLayouts:
        """Return the fixed layouts, whatever the operands have."""
        return _InferredLayouts(layouts[:-1], layouts[-1:], attrs)

    return rule


def _infer_roi_op(
    attrs: OpAttrs, new: NewLayouts, old: Layouts, types: ArgumentTypes
) -> _InferredLayouts:
    return _InferredLayouts((attrs.layout, "N5"), (attrs.layout,), attrs)


# --- operators that count axes --------------------------------------------------------------------


def _infer_reduce(
    attrs: OpAttrs, new: NewLayouts, old: Layouts, types: ArgumentTypes
) -> _InferredLayouts:
    """Infer the layouts of a reduction: reduced axes map by letter, blocks follow their primal
    axes.
    """
    layout = old[0] if new is None else new[0]
    if layout is None or old[0] is None:
        return _InferredLayouts((None,), (None,), attrs)
    rank, axis = _rank(types[0]), attrs.axis
    old_axes = (
        range(rank)
        if axis is None
        else [int(a) % rank for a in (axis if isinstance(axis, Sequence) else (axis,))]
    )
    gone = {_axis_letter(old[0], a) for a in old_axes}
    if getattr(attrs, "exclude", False):
        gone = set(primal_axes(old[0])) - gone
    kept_axes, new_axes = [], []
    for index, (letter, size) in enumerate(parse_layout(layout)):
        if letter.upper() in gone:
            new_axes.append(index)
            if attrs.keepdims:
                kept_axes.append((letter, 1 if letter.islower() else 0))
        else:
            kept_axes.append((letter, size))
    # An explicit list of axes replaces `exclude`.
    if new is not None and axis is not None:  # all axes stay all axes
        attrs = attrs.with_fields(axis=tuple(new_axes))
        if getattr(attrs, "exclude", False):
            attrs = attrs.with_fields(exclude=False)
    return _InferredLayouts((layout,) * len(old), (format_layout(kept_axes),), attrs)


def _infer_arg_reduce(
    attrs: OpAttrs, new: NewLayouts, old: Layouts, types: ArgumentTypes
) -> _InferredLayouts:
    """Infer the layouts of argmax and argmin, whose flattened index requires the order of axes to
    be preserved.

    The index among the elements of several axes is counted in the order of these axes. Along one
    axis it is the same in any layout.
    """
    if new is None or new[0] is None or old[0] is None:
        return _infer_reduce(attrs, new, old, types)
    old_axes = range(_rank(types[0])) if attrs.axis is None else np.atleast_1d(attrs.axis)
    named = {_axis_letter(old[0], int(a)) for a in old_axes}
    gone = [candidate for candidate in primal_axes(old[0]) if (candidate in named) != attrs.exclude]
    new_axes = [axis_index(new[0], letter) for letter in gone]
    # The index counts through the reduced axes in order, so another order would change it.
    stays = new_axes == sorted(new_axes) and not any(
        block_factor(new[0], reduced) for reduced in gone
    )
    return _infer_reduce(attrs, new if stays or len(gone) == 1 else old, old, types)


def _infer_transpose(
    attrs: OpAttrs, new: NewLayouts, old: Layouts, types: ArgumentTypes
) -> _InferredLayouts:
    if old[0] is None:
        return _InferredLayouts((None,), (None,), attrs)
    rank = len(parse_layout(old[0]))
    axes = [int(a) % rank for a in attrs.axes] if attrs.axes else list(reversed(range(rank)))
    layout = old[0]
    if new is not None and new[0] and sorted(new[0]) == sorted(old[0]):
        layout = new[0]
        axes = [axis_index(layout, _axis_letter(old[0], a)) for a in axes]
    result = format_layout([parse_layout(layout)[a] for a in axes])
    new_attrs = attrs.with_fields(axes=tuple(axes)) if new is not None else attrs
    return _InferredLayouts((layout,), (result,), new_attrs)


def _infer_squeeze(
    attrs: OpAttrs, new: NewLayouts, old: Layouts, types: ArgumentTypes
) -> _InferredLayouts:
    layout = old[0] if new is None else new[0]
    if layout is None or old[0] is None:
        return _InferredLayouts((None,), (None,), attrs)
    kind = types[0]
    assert isinstance(kind, TensorType)
    ones = [i for i, d in enumerate(kind.shape) if is_const(d, 1)]
    axes = ones if attrs.axis is None else [int(a) % len(kind.shape) for a in attrs.axis]
    gone = {_axis_letter(old[0], a) for a in axes}
    if any(block_factor(layout, letter) for letter in gone):
        layout = old[0]
    if new is not None:
        attrs = attrs.with_fields(
            axis=tuple(axis_index(layout, _axis_letter(old[0], a)) for a in axes)
        )
    remaining = format_layout(
        [(letter, size) for letter, size in parse_layout(layout) if letter not in gone]
    )
    return _InferredLayouts((layout,), (remaining,), attrs)


def _infer_pad(
    attrs: OpAttrs, new: NewLayouts, old: Layouts, types: ArgumentTypes
) -> _InferredLayouts:
    """Infer the layouts of a padding: widths move with their axes, split axes must not be
    padded.
    """
    layout = old[0]
    if layout is None:
        return _InferredLayouts((None,), (None,), attrs)
    if new is not None and new[0]:
        widths = {
            letter: tuple(w)
            for (letter, _), w in zip(parse_layout(layout), attrs.pad_width, strict=True)
        }
        split = [letter.upper() for letter, _ in parse_layout(new[0]) if letter.islower()]
        if all(widths.get(letter) == (0, 0) for letter in split):
            layout = new[0]
            moved = tuple(widths[letter.upper()] for letter, _ in parse_layout(layout))
            attrs = attrs.with_fields(pad_width=moved)
    return _InferredLayouts((layout, "1") if len(old) > 1 else (layout,), (layout,), attrs)


def _infer_concatenate(
    attrs: OpAttrs, new: NewLayouts, old: Layouts, types: ArgumentTypes
) -> _InferredLayouts:
    tuple_type = types[0]
    count = len(tuple_type.fields) if isinstance(tuple_type, TupleType) else 1
    before = next((layout_or_none for layout_or_none in old[:count] if layout_or_none), None)
    if before is None:
        return _InferredLayouts((None,), (None,), attrs)
    axis = attrs.axis % len(parse_layout(before))
    layout = before
    if new is not None and len(set(new[:count])) == 1 and new[0] and old[0]:
        layout = new[0]
        attrs = attrs.with_fields(axis=axis_index(layout, _axis_letter(old[0], axis)))
    elif not _axis_letter(layout, axis).isupper():
        return _InferredLayouts((None,), (None,), attrs)
    more = ("C",) * (len(old) - count)
    return _InferredLayouts((layout,) * count + more, (layout,), attrs)


def _infer_split(
    attrs: OpAttrs, new: NewLayouts, old: Layouts, types: ArgumentTypes
) -> _InferredLayouts:
    sections = attrs.indices_or_sections
    count = len(sections) + 1 if isinstance(sections, tuple) else int(sections)
    layout = old[0]
    if layout is None:
        return _InferredLayouts((None,), (None,) * count, attrs)
    if new is not None and new[0]:
        letter = _axis_letter(layout, attrs.axis)
        factor = block_factor(new[0], letter) or 1
        # Equal sections stay equal in any layout, while cuts are positions.
        is_list = isinstance(sections, tuple)
        if axis_index(new[0], letter) >= 0 and (
            not is_list or all(s % factor == 0 for s in sections)
        ):
            layout = new[0]
            attrs = attrs.with_fields(axis=axis_index(layout, letter))
            if is_list and factor > 1:
                attrs = attrs.with_fields(indices_or_sections=tuple(s // factor for s in sections))
    return _InferredLayouts((layout,), (layout,) * count, attrs)


def _static_ints(values: Sequence[Any] | None) -> list[int] | None:
    if values is None:
        return []
    values_as_ints = [v.value if isinstance(v, IntImm) else v for v in values]
    return values_as_ints if all(isinstance(v, int) for v in values_as_ints) else None


def _infer_strided_slice(
    attrs: OpAttrs, new: NewLayouts, old: Layouts, types: ArgumentTypes
) -> _InferredLayouts:
    """Infer the layouts of strided_slice: bounds move with their axes and are divided by block
    factors.
    """
    layout = old[0]
    failed = _InferredLayouts((None,), (None,), attrs)
    if layout is None or new is None or new[0] is None:
        return _InferredLayouts((layout,) * len(old), (layout,), attrs)
    rank = len(parse_layout(layout))
    bound_lists = [
        _static_ints(attr_values) for attr_values in (attrs.begin, attrs.end, attrs.strides)
    ]
    if any(bound_list is None for bound_list in bound_lists):
        return failed
    begin, end, strides = (bounds_or_none or [] for bounds_or_none in bound_lists)
    if len(end) < len(begin):
        return _InferredLayouts((layout,) * len(old), (layout,), attrs)
    begin = begin + [0] * (len(end) - len(begin))
    axes = list(range(len(begin))) if attrs.axes is None else [int(a) % rank for a in attrs.axes]
    strides = (strides + [1] * len(begin))[: len(begin)]
    if attrs.slice_mode == "size":
        strides = [1] * len(begin)
    bounds: dict[int, tuple[int, int, int]] = {}
    for a, b, e, s in zip(axes, begin, end, strides, strict=True):
        letter = _axis_letter(layout, a)
        index, factor = axis_index(new[0], letter), block_factor(new[0], letter) or 1
        # Bounds inside of a block have no counterpart along the outer axis.
        if index < 0 or b % factor or (e % factor and e > 0) or (factor > 1 and s != 1):
            return _InferredLayouts((layout,) * len(old), (layout,), attrs)
        bounds[index] = (b // factor, e // factor if e >= 0 else e, s)
    if attrs.axes is not None:
        order = list(bounds)
        attrs = attrs.with_fields(axes=tuple(order))
    elif new[0] == layout:
        order = list(bounds)
    else:
        kind = types[0]
        assert isinstance(kind, TensorType)
        order = list(range(len(parse_layout(new[0]))))
        for index, (letter, size) in enumerate(parse_layout(new[0])):
            extent = _static_ints([kind.shape[axis_index(layout, letter.upper())]])
            if index not in bounds and (extent is None or letter.islower()):
                bounds[index] = (0, size, 1) if extent is not None else (0, OPEN_SLICE_END, 1)
            elif index not in bounds:
                assert extent is not None
                bounds[index] = (0, extent[0] // (block_factor(new[0], letter) or 1), 1)
    new_bounds = [tuple(bounds[index][i] for index in order) for i in range(3)]
    attrs = attrs.with_fields(begin=new_bounds[0], end=new_bounds[1], strides=new_bounds[2])
    return _InferredLayouts((new[0],) * len(old), (new[0],), attrs)


def _infer_slice_like(
    attrs: OpAttrs, new: NewLayouts, old: Layouts, types: ArgumentTypes
) -> _InferredLayouts:
    if new is not None and old[0] and old[0] == old[1] and new[0] and new[0] == new[1]:
        axes = attrs.axes or range(_rank(types[0]))
        moved = tuple(axis_index(new[0], _axis_letter(old[0], int(a))) for a in axes)
        if -1 not in moved:
            return _InferredLayouts(new, (new[0],), attrs.with_fields(axes=moved))
    return _InferredLayouts(old, (old[0],), attrs)


def _infer_topk(
    attrs: OpAttrs, new: NewLayouts, old: Layouts, types: ArgumentTypes
) -> _InferredLayouts:
    output = _infer_axis_op(attrs, new, old, types)
    count = 2 if attrs.ret_type == "both" else 1
    return InferCorrectLayoutOutput(
        output.input_layouts, tuple(output.output_layouts) * count, output.new_attrs
    )


def _with_qparams(rule: LayoutRule, data: int) -> LayoutRule:
    """Extend a rule to quantised operators: the first `data` inputs are data, the others scales and
    zero points.
    """

    def infer_with_qparams(
        attrs: OpAttrs, new: NewLayouts, old: Layouts, types: ArgumentTypes
    ) -> _InferredLayouts:
        """Apply the rule to the data inputs, with layout "C" for scales and zero points."""
        output = rule(attrs, None if new is None else new[:data], old[:data], types[:data])
        inputs = (*output.input_layouts, *("C",) * (len(old) - data))
        return _InferredLayouts(inputs, output.output_layouts, output.new_attrs)

    return infer_with_qparams


_POOL_OP_NAMES = [
    *(f"nn.{kind}_pool{n}d" for kind in ("avg", "max") for n in (1, 2, 3)),
    *(f"nn.adaptive_{kind}_pool{n}d" for kind in ("avg", "max") for n in (1, 2, 3)),
    *(f"nn.global_{kind}_pool2d" for kind in ("avg", "max")),
]
_CONV_OP_NAMES = "conv1d conv2d conv3d conv1d_transpose conv2d_transpose conv3d_transpose"

LAYOUT_RULES: dict[str, LayoutRule] = {
    **dict.fromkeys((f"nn.{name}" for name in _CONV_OP_NAMES.split()), _infer_convolution),
    **dict.fromkeys(("qnn.conv2d", "qnn.conv2d_transpose"), _infer_convolution),
    "nn.deformable_conv2d": _infer_deformable_conv,
    **dict.fromkeys(_POOL_OP_NAMES, _infer_pool),
    "qnn.avg_pool2d": _with_qparams(_infer_pool, 1),
    **dict.fromkeys(
        ("nn.upsampling", "nn.upsampling3d"), _make_data_layout_rule(_preserves_spatial_axes)
    ),
    **dict.fromkeys(
        ("image.resize1d", "image.resize2d", "image.resize3d"),
        _make_data_layout_rule(lambda layout, own: sorted(layout) == sorted(own)),
    ),
    **dict.fromkeys(("vision.roi_align", "vision.roi_pool"), _infer_roi_op),
    "nn.dense": _make_fixed_rule("NC", "NC", "NC"),
    "nn.batch_norm": _infer_batch_norm,
    **dict.fromkeys(("nn.instance_norm", "nn.layer_norm", "nn.lrn", "nn.rms_norm"), _infer_axis_op),
    "nn.l2_normalize": _infer_axes_op,
    "nn.prelu": _infer_axis_op,
    "nn.dropout": infer_elementwise,
    **dict.fromkeys("sum mean max min prod any all".split(), _infer_reduce),
    **dict.fromkeys(("argmax", "argmin"), _infer_arg_reduce),
    "variance": _infer_reduce,
    "transpose": _infer_transpose,
    "squeeze": _infer_squeeze,
    "nn.pad": _infer_pad,
    "concatenate": _infer_concatenate,
    "qnn.concatenate": _infer_concatenate,
    "split": _infer_split,
    "strided_slice": _infer_strided_slice,
    "slice_like": _infer_slice_like,
    "topk": _infer_topk,
    **dict.fromkeys(("qnn.requantize", "qnn.quantize", "qnn.dequantize"), _infer_axis_op),
    **dict.fromkeys(("qnn.add", "qnn.subtract", "qnn.mul"), _with_qparams(infer_broadcast, 2)),
}
"""Layout rules by operator; elementwise operators need none."""


def infer_layouts(
    op: Op, attrs: OpAttrs, new: NewLayouts, old: Layouts, types: ArgumentTypes
) -> _InferredLayouts | None:
    """Infer the layouts of a call by its operator's rule, or return None."""
    # A user's rule comes before the one of the table.
    rule: Any = OP_ATTRS.get("FInferCorrectLayout", {}).get(op.name) or LAYOUT_RULES.get(op.name)
    if rule is None:
        pattern = OPS[op.name].pattern
        if pattern == OpPattern.ELEMWISE:
            rule = infer_elementwise
        elif pattern == OpPattern.BROADCAST and len(old) == 2:
            rule = infer_broadcast
        else:
            return None
    output: _InferredLayouts = rule(attrs, new, old, types)
    if None in output.input_layouts or None in output.output_layouts:
        return None
    return output


__all__ = ["InferCorrectLayoutOutput", "infer_layouts"]
