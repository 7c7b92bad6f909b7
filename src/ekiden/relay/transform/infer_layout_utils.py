"""Layout inference: how operators follow the layouts of their inputs, for ConvertLayout and
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
from ekiden.topi.dimensions import OPEN_END
from ekiden.topi.layout import parse

Layout = str | None
Layouts = Sequence[Layout]


@dataclass(frozen=True, slots=True)
class InferCorrectLayoutOutput:
    """Result of a rule (TVM's name): layouts of inputs and results, attributes."""

    input_layouts: Layouts
    output_layouts: Layouts
    new_attrs: Any


_Output = InferCorrectLayoutOutput
Fields = Any
"""Attributes, of any operator."""
NewLayouts = Layouts | None
Types = Sequence[Type]
Rule = Callable[[Fields, NewLayouts, Layouts, Types], _Output]
"""(attributes, layouts now or None, layouts before, types before) -> what the call takes."""


def primal_axes(layout: str) -> list[str]:
    """Return the primal axes of a layout, in order: NCHW16c -> N, C, H, W."""
    return [letter for letter, _ in parse(layout) if letter.isupper()]


def factor_of(layout: str, letter: str) -> int:
    """Return how an axis is split: 16 for C in NCHW16c, 0 if it is not."""
    return next((size for name, size in parse(layout) if name == letter.lower()), 0)


def axis_of(layout: str, letter: str) -> int:
    """Return the index of a primal axis, -1 if there is none."""
    names = [name for name, _ in parse(layout)]
    return names.index(letter) if letter in names else -1


def join_axes(axes: Sequence[tuple[str, int]]) -> str:
    """Return the layout of axes: the inverse of `parse`."""
    return "".join(f"{size or ''}{letter}" for letter, size in axes)


def _letter(layout: str, axis: int) -> str:
    return parse(layout)[axis][0]


def _rank(kind: Type) -> int:
    return len(kind.shape) if isinstance(kind, TensorType) else 0


# --- element by element ---------------------------------------------------------------------------


def elementwise(attrs: Fields, new: NewLayouts, old: Layouts, types: Types) -> _Output:
    """Accept any layout, the same for all."""
    chosen = new[0] if new is not None else next((layout for layout in old if layout), None)
    return _Output((chosen,) * len(old), (chosen,), attrs)


def _is_alike(layout_a: str, layout_b: str) -> bool:
    """Return whether two layouts differ by the names of their axes alone."""
    a, b = parse(layout_a), parse(layout_b)
    if len(a) != len(b) or any(
        s != t or x.isupper() != y.isupper() for (x, s), (y, t) in zip(a, b, strict=True)
    ):
        return False
    forward = {x: y for (x, _), (y, _) in zip(a, b, strict=True)}
    back = {y: x for (x, _), (y, _) in zip(a, b, strict=True)}
    return all(forward[x] == y and back[y] == x for (x, _), (y, _) in zip(a, b, strict=True))


def _change_alike(old: str, like_old: str, like_new: str) -> str | None:
    """Change `old` as `like_old` is changed to `like_new`.

    The two broadcast, and may name axes differently: (W, NCHW, NHWC) -> NHWC; dropping what W lacks
    is left to the caller. Axes that broadcast together are paired from the last one on; those that
    the shorter lacks get letters that it does not use, so that both are permuted alike. None where
    the pairs disagree: one axis split, or a letter that would mean two.
    """
    if not old:
        return old
    longer, shorter = parse(like_old), parse(old)
    if len(longer) < len(shorter):
        longer, shorter = shorter, longer
    head, tail = longer[: len(longer) - len(shorter)], longer[len(longer) - len(shorter) :]
    # A letter in both parts would be an axis split across the boundary of broadcasting.
    if {x.upper() for x, _ in head} & {x.upper() for x, _ in tail}:
        return None
    if not _is_alike(join_axes(tail), join_axes(shorter)):
        return None
    names = dict(
        zip(
            (x.upper() for x, _ in reversed(parse(like_old))),
            (x.upper() for x, _ in reversed(parse(old))),
            strict=False,
        )
    )
    used = set(names.values())
    for letter in reversed(primal_axes(like_old)):
        if letter not in names:
            free = next(c for c in (letter, *map(chr, range(65, 91))) if c not in used)
            names[letter] = free
            used.add(free)
    renamed = []
    for letter, size in parse(like_new):
        if letter.upper() not in names:
            return None
        renamed_letter = names[letter.upper()]
        renamed.append((renamed_letter if letter.isupper() else renamed_letter.lower(), size))
    return join_axes(renamed)


def _for_ones(layout: str, old: str, shape: Sequence[Any]) -> str:
    """Inner axes of what broadcasts have extent 1: NCHW16c -> NCHW1c, where C is 1 or absent."""
    axes = []
    for letter, size in parse(layout):
        if letter.islower():
            at = axis_of(old, letter.upper())
            is_one = at < 0 or (is_const(shape[at], 1) and not factor_of(old, letter))
            size = 1 if is_one else size
        axes.append((letter, size))
    return join_axes(axes)


def broadcast(attrs: Fields, new: NewLayouts, old: Layouts, types: Types) -> _Output:
    """Return the layouts of two tensors that broadcast: the smaller is changed as the
    larger was.
    """
    failed = _Output((None, None), (None,), attrs)
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
        axes = parse(layouts[known_index] or "")
        layouts[1 - known_index] = join_axes(axes[len(axes) - len(shapes[1 - known_index]) :])
        result = layouts[known_index]
    else:
        result = layouts[large]
    if new is None:
        return _Output(layouts, (result,), attrs)
    current = [new_layout or "" for new_layout in new[:2]]
    more = 0 if len(primal_axes(current[0])) >= len(primal_axes(current[1])) else 1
    small = 1 - more
    changed = _change_alike(layouts[small] or "", layouts[more] or "", current[more])
    if changed is None:
        return failed
    result = current[large]
    layouts[small] = _for_ones(changed, layouts[small] or "", shapes[small])
    layouts[more] = current[more]
    return _Output(layouts, (result,), attrs)


# --- operators with layouts of their own ----------------------------------------------------------


def _convolution(attrs: Fields, new: NewLayouts, old: Layouts, types: Types) -> _Output:
    """Keep the layouts of a convolution: others follow it."""
    more = ("C",) * (len(old) - 2)
    inputs = (attrs.data_layout, attrs.kernel_layout, *more)
    return _Output(inputs, (attrs.out_layout or attrs.data_layout,), attrs)


def _deformable(attrs: Fields, new: NewLayouts, old: Layouts, types: Types) -> _Output:
    inputs = (attrs.data_layout, attrs.data_layout, attrs.kernel_layout)
    return _Output(inputs, (attrs.out_layout or attrs.data_layout,), attrs)


def _follow_data(fits: Callable[[str, str], bool]) -> Rule:
    """Operators with one attribute `layout`, which follow their data where that fits."""

    def rule(attrs: Fields, new: NewLayouts, old: Layouts, types: Types) -> _Output:
        """Return the data's layout where it changed and fits, else the call's own, which a user may
        have chosen.

        Further inputs are vectors of channels.
        """
        new_layout = new[0] if new is not None and attrs.layout == old[0] else None
        if new_layout and new_layout != old[0] and fits(new_layout, attrs.layout):
            attrs = attrs.with_fields(layout=new_layout)
        result = getattr(attrs, "out_layout", "") or attrs.layout
        return _Output((attrs.layout, *("C",) * (len(old) - 1)), (result,), attrs)

    return rule


def _same_windows(layout: str, own: str) -> bool:
    """Return whether the axes of windows keep their indices, unsplit."""
    axes = [letter for letter in "DHW" if axis_of(own, letter) >= 0]
    return all(axis_of(layout, a) == axis_of(own, a) and not factor_of(layout, a) for a in axes)


def _pool(attrs: Fields, new: NewLayouts, old: Layouts, types: Types) -> _Output:
    """Follow any layout that does not split the axes of windows."""

    def fits(layout: str, own: str) -> bool:
        axes = [letter for letter in "DHW" if axis_of(own, letter) >= 0]
        return all(axis_of(layout, a) >= 0 and not factor_of(layout, a) for a in axes)

    # An explicit output layout fixes the call's own layout, too.
    if new is not None and attrs["out_layout"]:
        return _Output((attrs.layout,), (attrs.out_layout,), attrs)
    return _follow_data(fits)(attrs, new, old, types)


def _channels(attrs: Fields, new: NewLayouts, old: Layouts, types: Types) -> _Output:
    """Follow batch normalization's data, parameters along the axis."""
    layout = old[0] if new is None else new[0]
    if layout is None or old[0] is None:
        return _Output((None,), (None,), attrs)
    letter = _letter(old[0], attrs.axis)
    if new is not None:
        if axis_of(layout, letter) < 0 or factor_of(layout, letter):
            layout = old[0]
        attrs = attrs.with_fields(axis=axis_of(layout, letter))
    return _Output((layout, "C", "C", "C", "C"), (layout, "C", "C"), attrs)


def _one_axis(attrs: Fields, new: NewLayouts, old: Layouts, types: Types) -> _Output:
    """Follow the data of an operator along `axis`; further inputs are vectors along it."""
    layout = old[0] if new is None else new[0]
    if layout is None or old[0] is None:
        return _Output((None,), (None,), attrs)
    if new is not None:
        letter = _letter(old[0], attrs.axis)
        if axis_of(layout, letter) < 0 or factor_of(layout, letter):
            layout = old[0]
        attrs = attrs.with_fields(axis=axis_of(layout, letter))
    return _Output((layout, *("C",) * (len(old) - 1)), (layout,), attrs)


def _axes(attrs: Fields, new: NewLayouts, old: Layouts, types: Types) -> _Output:
    """Follow the data of an operator along `axis`, a tuple, of one result like the data."""
    layout = old[0] if new is None else new[0]
    if layout is None or old[0] is None:
        return _Output((None,), (None,), attrs)
    if new is not None:
        letters = [_letter(old[0], int(a)) for a in attrs.axis]
        if any(
            axis_of(layout, letter_checked) < 0 or factor_of(layout, letter_checked)
            for letter_checked in letters
        ):
            layout = old[0]
        attrs = attrs.with_fields(axis=tuple(axis_of(layout, letter) for letter in letters))
    return _Output((layout,), (layout,), attrs)


def _fixed(*layouts: str) -> Rule:
    """Return a rule of fixed layouts: of the inputs, then of the result."""

    def rule(attrs: Fields, new: NewLayouts, old: Layouts, types: Types) -> _Output:
        return _Output(layouts[:-1], layouts[-1:], attrs)

    return rule


def _regions(attrs: Fields, new: NewLayouts, old: Layouts, types: Types) -> _Output:
    return _Output((attrs.layout, "N5"), (attrs.layout,), attrs)


# --- operators that count axes --------------------------------------------------------------------


def _reduce(attrs: Fields, new: NewLayouts, old: Layouts, types: Types) -> _Output:
    """Follow the data of a reduction: the axes by their letters; inner axes with their
    primal ones.
    """
    layout = old[0] if new is None else new[0]
    if layout is None or old[0] is None:
        return _Output((None,), (None,), attrs)
    rank, axis = _rank(types[0]), attrs.axis
    old_axes = (
        range(rank)
        if axis is None
        else [int(a) % rank for a in (axis if isinstance(axis, Sequence) else (axis,))]
    )
    gone = {_letter(old[0], a) for a in old_axes}
    if getattr(attrs, "exclude", False):
        gone = set(primal_axes(old[0])) - gone
    kept_axes, new_axes = [], []
    for at, (letter, size) in enumerate(parse(layout)):
        if letter.upper() in gone:
            new_axes.append(at)
            if attrs.keepdims:
                kept_axes.append((letter, 1 if letter.islower() else 0))
        else:
            kept_axes.append((letter, size))
    # An explicit list of axes replaces `exclude`.
    if new is not None and axis is not None:  # all axes stay all axes
        attrs = attrs.with_fields(axis=tuple(new_axes))
        if getattr(attrs, "exclude", False):
            attrs = attrs.with_fields(exclude=False)
    return _Output((layout,) * len(old), (join_axes(kept_axes),), attrs)


def _arg_reduce(attrs: Fields, new: NewLayouts, old: Layouts, types: Types) -> _Output:
    """Follow the data of `argmax` and `argmin` if their axes keep their order.

    The index among the elements of several axes is counted in the order of these axes. Along one
    axis it is the same in any layout.
    """
    if new is None or new[0] is None or old[0] is None:
        return _reduce(attrs, new, old, types)
    old_axes = range(_rank(types[0])) if attrs.axis is None else np.atleast_1d(attrs.axis)
    named = {_letter(old[0], int(a)) for a in old_axes}
    gone = [candidate for candidate in primal_axes(old[0]) if (candidate in named) != attrs.exclude]
    new_axes = [axis_of(new[0], letter) for letter in gone]
    stays = new_axes == sorted(new_axes) and not any(factor_of(new[0], reduced) for reduced in gone)
    return _reduce(attrs, new if stays or len(gone) == 1 else old, old, types)


def _transpose(attrs: Fields, new: NewLayouts, old: Layouts, types: Types) -> _Output:
    if old[0] is None:
        return _Output((None,), (None,), attrs)
    rank = len(parse(old[0]))
    axes = [int(a) % rank for a in attrs.axes] if attrs.axes else list(reversed(range(rank)))
    layout = old[0]
    if new is not None and new[0] and sorted(new[0]) == sorted(old[0]):
        layout = new[0]
        axes = [axis_of(layout, _letter(old[0], a)) for a in axes]
    result = join_axes([parse(layout)[a] for a in axes])
    new_attrs = attrs.with_fields(axes=tuple(axes)) if new is not None else attrs
    return _Output((layout,), (result,), new_attrs)


def _squeeze(attrs: Fields, new: NewLayouts, old: Layouts, types: Types) -> _Output:
    layout = old[0] if new is None else new[0]
    if layout is None or old[0] is None:
        return _Output((None,), (None,), attrs)
    kind = types[0]
    assert isinstance(kind, TensorType)
    ones = [i for i, d in enumerate(kind.shape) if is_const(d, 1)]
    axes = ones if attrs.axis is None else [int(a) % len(kind.shape) for a in attrs.axis]
    gone = {_letter(old[0], a) for a in axes}
    if any(factor_of(layout, letter) for letter in gone):
        layout = old[0]
    if new is not None:
        attrs = attrs.with_fields(axis=tuple(axis_of(layout, _letter(old[0], a)) for a in axes))
    remaining = join_axes([(letter, size) for letter, size in parse(layout) if letter not in gone])
    return _Output((layout,), (remaining,), attrs)


def _pad(attrs: Fields, new: NewLayouts, old: Layouts, types: Types) -> _Output:
    """Move widths with their axes; a split axis is not padded."""
    layout = old[0]
    if layout is None:
        return _Output((None,), (None,), attrs)
    if new is not None and new[0]:
        widths = {
            letter: tuple(w) for (letter, _), w in zip(parse(layout), attrs.pad_width, strict=True)
        }
        split = [letter.upper() for letter, _ in parse(new[0]) if letter.islower()]
        if all(widths.get(letter) == (0, 0) for letter in split):
            layout = new[0]
            moved = tuple(widths[letter.upper()] for letter, _ in parse(layout))
            attrs = attrs.with_fields(pad_width=moved)
    return _Output((layout, "1") if len(old) > 1 else (layout,), (layout,), attrs)


def _concatenate(attrs: Fields, new: NewLayouts, old: Layouts, types: Types) -> _Output:
    tuple_type = types[0]
    count = len(tuple_type.fields) if isinstance(tuple_type, TupleType) else 1
    before = next((layout_or_none for layout_or_none in old[:count] if layout_or_none), None)
    if before is None:
        return _Output((None,), (None,), attrs)
    axis = attrs.axis % len(parse(before))
    layout = before
    if new is not None and len(set(new[:count])) == 1 and new[0] and old[0]:
        layout = new[0]
        attrs = attrs.with_fields(axis=axis_of(layout, _letter(old[0], axis)))
    elif not _letter(layout, axis).isupper():
        return _Output((None,), (None,), attrs)
    more = ("C",) * (len(old) - count)
    return _Output((layout,) * count + more, (layout,), attrs)


def _split(attrs: Fields, new: NewLayouts, old: Layouts, types: Types) -> _Output:
    sections = attrs.indices_or_sections
    count = len(sections) + 1 if isinstance(sections, tuple) else int(sections)
    layout = old[0]
    if layout is None:
        return _Output((None,), (None,) * count, attrs)
    if new is not None and new[0]:
        letter = _letter(layout, attrs.axis)
        factor = factor_of(new[0], letter) or 1
        is_list = isinstance(sections, tuple)
        if axis_of(new[0], letter) >= 0 and (not is_list or all(s % factor == 0 for s in sections)):
            layout = new[0]
            attrs = attrs.with_fields(axis=axis_of(layout, letter))
            if is_list and factor > 1:
                attrs = attrs.with_fields(indices_or_sections=tuple(s // factor for s in sections))
    return _Output((layout,), (layout,) * count, attrs)


def _numbers(values: Sequence[Any] | None) -> list[int] | None:
    if values is None:
        return []
    values_as_ints = [v.value if isinstance(v, IntImm) else v for v in values]
    return values_as_ints if all(isinstance(v, int) for v in values_as_ints) else None


def _strided_slice(attrs: Fields, new: NewLayouts, old: Layouts, types: Types) -> _Output:
    """Move bounds with their axes, divided by the factor of a split one."""
    layout = old[0]
    failed = _Output((None,), (None,), attrs)
    if layout is None or new is None or new[0] is None:
        return _Output((layout,) * len(old), (layout,), attrs)
    rank = len(parse(layout))
    bound_lists = [_numbers(attr_values) for attr_values in (attrs.begin, attrs.end, attrs.strides)]
    if any(bound_list is None for bound_list in bound_lists):
        return failed
    begin, end, strides = (bounds_or_none or [] for bounds_or_none in bound_lists)
    if len(end) < len(begin):
        return _Output((layout,) * len(old), (layout,), attrs)
    begin = begin + [0] * (len(end) - len(begin))
    axes = list(range(len(begin))) if attrs.axes is None else [int(a) % rank for a in attrs.axes]
    strides = (strides + [1] * len(begin))[: len(begin)]
    if attrs.slice_mode == "size":
        strides = [1] * len(begin)
    bounds: dict[int, tuple[int, int, int]] = {}
    for a, b, e, s in zip(axes, begin, end, strides, strict=True):
        letter = _letter(layout, a)
        at, factor = axis_of(new[0], letter), factor_of(new[0], letter) or 1
        # Bounds inside of a block have no counterpart along the outer axis.
        if at < 0 or b % factor or (e % factor and e > 0) or (factor > 1 and s != 1):
            return _Output((layout,) * len(old), (layout,), attrs)
        bounds[at] = (b // factor, e // factor if e >= 0 else e, s)
    if attrs.axes is not None:
        order = list(bounds)
        attrs = attrs.with_fields(axes=tuple(order))
    elif new[0] == layout:
        order = list(bounds)
    else:
        kind = types[0]
        assert isinstance(kind, TensorType)
        order = list(range(len(parse(new[0]))))
        for at, (letter, size) in enumerate(parse(new[0])):
            extent = _numbers([kind.shape[axis_of(layout, letter.upper())]])
            if at not in bounds and (extent is None or letter.islower()):
                bounds[at] = (0, size, 1) if extent is not None else (0, OPEN_END, 1)
            elif at not in bounds:
                assert extent is not None
                bounds[at] = (0, extent[0] // (factor_of(new[0], letter) or 1), 1)
    new_bounds = [tuple(bounds[at][i] for at in order) for i in range(3)]
    attrs = attrs.with_fields(begin=new_bounds[0], end=new_bounds[1], strides=new_bounds[2])
    return _Output((new[0],) * len(old), (new[0],), attrs)


def _slice_like(attrs: Fields, new: NewLayouts, old: Layouts, types: Types) -> _Output:
    if new is not None and old[0] and old[0] == old[1] and new[0] and new[0] == new[1]:
        axes = attrs.axes or range(_rank(types[0]))
        moved = tuple(axis_of(new[0], _letter(old[0], int(a))) for a in axes)
        if -1 not in moved:
            return _Output(new, (new[0],), attrs.with_fields(axes=moved))
    return _Output(old, (old[0],), attrs)


def _topk(attrs: Fields, new: NewLayouts, old: Layouts, types: Types) -> _Output:
    output = _one_axis(attrs, new, old, types)
    count = 2 if attrs.ret_type == "both" else 1
    return InferCorrectLayoutOutput(
        output.input_layouts, tuple(output.output_layouts) * count, output.new_attrs
    )


def _with_qparams(rule: Rule, data: int) -> Rule:
    """Return a rule for the first `data` inputs; the others are scales and zero points."""

    def extended(attrs: Fields, new: NewLayouts, old: Layouts, types: Types) -> _Output:
        """Extend the rule's answer by "C" for each scale and zero point, vectors of channels or
        scalars.
        """
        output = rule(attrs, None if new is None else new[:data], old[:data], types[:data])
        inputs = (*output.input_layouts, *("C",) * (len(old) - data))
        return _Output(inputs, output.output_layouts, output.new_attrs)

    return extended


_POOLS = [
    *(f"nn.{kind}_pool{n}d" for kind in ("avg", "max") for n in (1, 2, 3)),
    *(f"nn.adaptive_{kind}_pool{n}d" for kind in ("avg", "max") for n in (1, 2, 3)),
    *(f"nn.global_{kind}_pool2d" for kind in ("avg", "max")),
]
_CONVS = "conv1d conv2d conv3d conv1d_transpose conv2d_transpose conv3d_transpose"

RULES: dict[str, Rule] = {
    **dict.fromkeys((f"nn.{name}" for name in _CONVS.split()), _convolution),
    **dict.fromkeys(("qnn.conv2d", "qnn.conv2d_transpose"), _convolution),
    "nn.deformable_conv2d": _deformable,
    **dict.fromkeys(_POOLS, _pool),
    "qnn.avg_pool2d": _with_qparams(_pool, 1),
    **dict.fromkeys(("nn.upsampling", "nn.upsampling3d"), _follow_data(_same_windows)),
    **dict.fromkeys(
        ("image.resize1d", "image.resize2d", "image.resize3d"),
        _follow_data(lambda layout, own: sorted(layout) == sorted(own)),
    ),
    **dict.fromkeys(("vision.roi_align", "vision.roi_pool"), _regions),
    "nn.dense": _fixed("NC", "NC", "NC"),
    "nn.batch_norm": _channels,
    **dict.fromkeys(("nn.instance_norm", "nn.layer_norm", "nn.lrn", "nn.rms_norm"), _one_axis),
    "nn.l2_normalize": _axes,
    "nn.prelu": _one_axis,
    "nn.dropout": elementwise,
    **dict.fromkeys("sum mean max min prod any all".split(), _reduce),
    **dict.fromkeys(("argmax", "argmin"), _arg_reduce),
    "variance": _reduce,
    "transpose": _transpose,
    "squeeze": _squeeze,
    "nn.pad": _pad,
    "concatenate": _concatenate,
    "qnn.concatenate": _concatenate,
    "split": _split,
    "strided_slice": _strided_slice,
    "slice_like": _slice_like,
    "topk": _topk,
    **dict.fromkeys(("qnn.requantize", "qnn.quantize", "qnn.dequantize"), _one_axis),
    **dict.fromkeys(("qnn.add", "qnn.subtract", "qnn.mul"), _with_qparams(broadcast, 2)),
}
"""Operator -> its rule; those that go element by element need none."""


def infer_layouts(
    op: Op, attrs: Fields, new: NewLayouts, old: Layouts, types: Types
) -> _Output | None:
    """Return the layouts of a call by its operator's rule; None if there is none, or if it does not
    know.
    """
    rule: Any = OP_ATTRS.get("FInferCorrectLayout", {}).get(op.name) or RULES.get(op.name)
    if rule is None:
        pattern = OPS[op.name].pattern
        if pattern == OpPattern.ELEMWISE:
            rule = elementwise
        elif pattern == OpPattern.BROADCAST and len(old) == 2:
            rule = broadcast
        else:
            return None
    output: _Output = rule(attrs, new, old, types)
    if None in output.input_layouts or None in output.output_layouts:
        return None
    return output


__all__ = ["InferCorrectLayoutOutput", "infer_layouts"]
