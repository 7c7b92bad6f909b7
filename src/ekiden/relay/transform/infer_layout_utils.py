"""How operators follow the layouts of their inputs: the rules of ConvertLayout and AlterOpLayout.

A rule gets the layouts that a call's inputs had ("NCHW"; None where nobody said) and, the second
time it is asked, those that they have now. It gives the layouts that the call wants of its inputs,
those of its results, and its attributes for them. A layout that stays None: the rule does not know,
and the call keeps the layouts that it had.

    mean(axis=[2, 3])    NCHW -> NHWC    mean(axis=[1, 2])

Users add rules, or replace them, with `relay.op.register_infer_correct_layout` (TVM's name).

A layout is a word of axes: capitals are whole axes, a number and a small letter the inner part of
one that is split (NCHW16c: 16 channels innermost). Of an axis a rule asks where it stands now
(`place_of`) and whether it is split (`factor_of`); what counts axes by numbers keeps the letter and
looks the number up anew. It must give what it got back where it cannot follow: a wrong layout is a
wrong result, a kept one costs a transformation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ekiden.ir.op import OP_ATTRS, OPS, Op, OpPattern
from ekiden.ir.prim import IntImm, is_const
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.layout import parse

Layout = str | None
Layouts = Sequence[Layout]


@dataclass(frozen=True, slots=True)
class InferCorrectLayoutOutput:
    """What a rule gives (TVM's name): layouts of inputs and results, attributes."""

    input_layouts: Layouts
    output_layouts: Layouts
    new_attrs: Any


Output = InferCorrectLayoutOutput
Fields = Any
"""Attributes, of any operator."""
Now = Layouts | None
Types = Sequence[Type]
Rule = Callable[[Fields, Now, Layouts, Types], Output]
"""(attributes, layouts now or None, layouts before, types before) -> what the call takes."""


def primal(layout: str) -> list[str]:
    """The whole axes of a layout, in order: NCHW16c -> N, C, H, W."""
    return [letter for letter, _ in parse(layout) if letter.isupper()]


def factor_of(layout: str, letter: str) -> int:
    """How an axis is split: 16 for C in NCHW16c, 0 if it is not."""
    return next((size for name, size in parse(layout) if name == letter.lower()), 0)


def place_of(layout: str, letter: str) -> int:
    """Where a whole axis stands, -1 if nowhere."""
    names = [name for name, _ in parse(layout)]
    return names.index(letter) if letter in names else -1


def joined(axes: Sequence[tuple[str, int]]) -> str:
    """The layout of axes: the inverse of `parse`."""
    return "".join(f"{size or ''}{letter}" for letter, size in axes)


def _letter(layout: str, axis: int) -> str:
    return parse(layout)[axis][0]


def _rank(kind: Type) -> int:
    return len(kind.shape) if isinstance(kind, TensorType) else 0


# --- element by element ---------------------------------------------------------------------------


def elementwise(attrs: Fields, new: Now, old: Layouts, types: Types) -> Output:
    """Any layout, the same for all."""
    chosen = new[0] if new is not None else next((each for each in old if each), None)
    return Output((chosen,) * len(old), (chosen,), attrs)


def _is_alike(one: str, other: str) -> bool:
    """Whether two layouts differ by the names of their axes alone."""
    a, b = parse(one), parse(other)
    if len(a) != len(b) or any(
        s != t or x.isupper() != y.isupper() for (x, s), (y, t) in zip(a, b, strict=True)
    ):
        return False
    there = {x: y for (x, _), (y, _) in zip(a, b, strict=True)}
    back = {y: x for (x, _), (y, _) in zip(a, b, strict=True)}
    return all(there[x] == y and back[y] == x for (x, _), (y, _) in zip(a, b, strict=True))


def _changed_like(old: str, like_old: str, like_new: str) -> str | None:
    """`old` changed as `like_old` is to `like_new`; the two broadcast, and may name axes
    differently: (W, NCHW, NHWC) -> NHWC without what W lacks is left to the caller.

    Axes that broadcast together are paired from the last one on; those that the shorter lacks get
    letters that it does not use, so that both are permuted alike. None where the pairs disagree:
    one axis split, or a letter that would mean two.
    """
    if not old:
        return old
    many, few = parse(like_old), parse(old)
    if len(many) < len(few):
        many, few = few, many
    head, tail = many[: len(many) - len(few)], many[len(many) - len(few) :]
    if {x.upper() for x, _ in head} & {x.upper() for x, _ in tail}:
        return None
    if not _is_alike(joined(tail), joined(few)):
        return None
    names = dict(
        zip(
            (x.upper() for x, _ in reversed(parse(like_old))),
            (x.upper() for x, _ in reversed(parse(old))),
            strict=False,
        )
    )
    used = set(names.values())
    for letter in reversed(primal(like_old)):
        if letter not in names:
            free = next(c for c in (letter, *map(chr, range(65, 91))) if c not in used)
            names[letter] = free
            used.add(free)
    renamed = []
    for letter, size in parse(like_new):
        if letter.upper() not in names:
            return None
        made = names[letter.upper()]
        renamed.append((made if letter.isupper() else made.lower(), size))
    return joined(renamed)


def _for_ones(layout: str, old: str, shape: Sequence[Any]) -> str:
    """Inner axes of what broadcasts have extent 1: NCHW16c -> NCHW1c, where C is 1 or absent."""
    axes = []
    for letter, size in parse(layout):
        if letter.islower():
            at = place_of(old, letter.upper())
            is_one = at < 0 or (is_const(shape[at], 1) and not factor_of(old, letter))
            size = 1 if is_one else size
        axes.append((letter, size))
    return joined(axes)


def broadcast(attrs: Fields, new: Now, old: Layouts, types: Types) -> Output:
    """Two tensors that broadcast: the smaller is changed as the larger was."""
    failed = Output((None, None), (None,), attrs)
    shapes = [t.shape if isinstance(t, TensorType) else () for t in types[:2]]
    large = 0 if len(shapes[0]) >= len(shapes[1]) else 1
    layouts: list[Layout] = list(old[:2])
    if all(each is None for each in layouts):
        return failed
    if None in layouts:
        known = 0 if layouts[0] is not None else 1
        if len(shapes[known]) < len(shapes[1 - known]):
            return failed
        axes = parse(layouts[known] or "")
        layouts[1 - known] = joined(axes[len(axes) - len(shapes[1 - known]) :])
        result = layouts[known]
    else:
        result = layouts[large]
    if new is None:
        return Output(layouts, (result,), attrs)
    now = [each or "" for each in new[:2]]
    more = 0 if len(primal(now[0])) >= len(primal(now[1])) else 1
    small = 1 - more
    wanted = _changed_like(layouts[small] or "", layouts[more] or "", now[more])
    if wanted is None:
        return failed
    result = now[large]
    layouts[small] = _for_ones(wanted, layouts[small] or "", shapes[small])
    layouts[more] = now[more]
    return Output(layouts, (result,), attrs)


# --- operators with layouts of their own ----------------------------------------------------------


def _convolution(attrs: Fields, new: Now, old: Layouts, types: Types) -> Output:
    """Others follow convolutions."""
    more = ("C",) * (len(old) - 2)
    inputs = (attrs.data_layout, attrs.kernel_layout, *more)
    return Output(inputs, (attrs.out_layout or attrs.data_layout,), attrs)


def _deformable(attrs: Fields, new: Now, old: Layouts, types: Types) -> Output:
    inputs = (attrs.data_layout, attrs.data_layout, attrs.kernel_layout)
    return Output(inputs, (attrs.out_layout or attrs.data_layout,), attrs)


def _follows(fits: Callable[[str, str], bool]) -> Rule:
    """Operators with one attribute `layout`, which follow their data where that fits."""

    def rule(attrs: Fields, new: Now, old: Layouts, types: Types) -> Output:
        """The data's layout where it moved and fits, else the call's own, which a user may have
        asked for; further inputs are vectors of channels.
        """
        now = new[0] if new is not None and attrs.layout == old[0] else None
        if now and now != old[0] and fits(now, attrs.layout):
            attrs = attrs.with_fields(layout=now)
        result = getattr(attrs, "out_layout", "") or attrs.layout
        return Output((attrs.layout, *("C",) * (len(old) - 1)), (result,), attrs)

    return rule


def _same_windows(layout: str, own: str) -> bool:
    """Whether the axes of windows stand where they stood, unsplit."""
    axes = [letter for letter in "DHW" if place_of(own, letter) >= 0]
    return all(place_of(layout, a) == place_of(own, a) and not factor_of(layout, a) for a in axes)


def _pool(attrs: Fields, new: Now, old: Layouts, types: Types) -> Output:
    """Pooling goes over H and W wherever they are, but does not split them."""

    def fits(layout: str, own: str) -> bool:
        axes = [letter for letter in "DHW" if place_of(own, letter) >= 0]
        return all(place_of(layout, a) >= 0 and not factor_of(layout, a) for a in axes)

    if new is not None and attrs["out_layout"]:
        return Output((attrs.layout,), (attrs.out_layout,), attrs)
    return _follows(fits)(attrs, new, old, types)


def _channels(attrs: Fields, new: Now, old: Layouts, types: Types) -> Output:
    """Batch normalisation: parameters along the axis."""
    layout = old[0] if new is None else new[0]
    if layout is None or old[0] is None:
        return Output((None,), (None,), attrs)
    letter = _letter(old[0], attrs.axis)
    if new is not None:
        if place_of(layout, letter) < 0 or factor_of(layout, letter):
            layout = old[0]
        attrs = attrs.with_fields(axis=place_of(layout, letter))
    return Output((layout, "C", "C", "C", "C"), (layout, "C", "C"), attrs)


def _one_axis(attrs: Fields, new: Now, old: Layouts, types: Types) -> Output:
    """Operators along `axis`, of one result like the data; further inputs lie along it."""
    layout = old[0] if new is None else new[0]
    if layout is None or old[0] is None:
        return Output((None,), (None,), attrs)
    if new is not None:
        letter = _letter(old[0], attrs.axis)
        if place_of(layout, letter) < 0 or factor_of(layout, letter):
            layout = old[0]
        attrs = attrs.with_fields(axis=place_of(layout, letter))
    return Output((layout, *("C",) * (len(old) - 1)), (layout,), attrs)


def _axes(attrs: Fields, new: Now, old: Layouts, types: Types) -> Output:
    """Operators along `axis`, a tuple, of one result like the data."""
    layout = old[0] if new is None else new[0]
    if layout is None or old[0] is None:
        return Output((None,), (None,), attrs)
    if new is not None:
        letters = [_letter(old[0], int(a)) for a in attrs.axis]
        if any(place_of(layout, each) < 0 or factor_of(layout, each) for each in letters):
            layout = old[0]
        attrs = attrs.with_fields(axis=tuple(place_of(layout, each) for each in letters))
    return Output((layout,), (layout,), attrs)


def _fixed(*layouts: str) -> Rule:
    """Layouts that nothing changes: of the inputs, then of the result."""

    def rule(attrs: Fields, new: Now, old: Layouts, types: Types) -> Output:
        return Output(layouts[:-1], layouts[-1:], attrs)

    return rule


def _regions(attrs: Fields, new: Now, old: Layouts, types: Types) -> Output:
    return Output((attrs.layout, "N5"), (attrs.layout,), attrs)


# --- operators that count axes --------------------------------------------------------------------


def _reduce(attrs: Fields, new: Now, old: Layouts, types: Types) -> Output:
    """Reductions: the axes by their letters; inner parts with their whole."""
    layout = old[0] if new is None else new[0]
    if layout is None or old[0] is None:
        return Output((None,), (None,), attrs)
    rank, axis = _rank(types[0]), attrs.axis
    given = (
        range(rank)
        if axis is None
        else [int(a) % rank for a in (axis if isinstance(axis, Sequence) else (axis,))]
    )
    gone = {_letter(old[0], a) for a in given}
    if getattr(attrs, "exclude", False):
        gone = set(primal(old[0])) - gone
    kept, places = [], []
    for at, (letter, size) in enumerate(parse(layout)):
        if letter.upper() in gone:
            places.append(at)
            if attrs.keepdims:
                kept.append((letter, 1 if letter.islower() else 0))
        else:
            kept.append((letter, size))
    if new is not None and axis is not None:  # all axes stay all axes
        attrs = attrs.with_fields(axis=tuple(places))
        if getattr(attrs, "exclude", False):
            attrs = attrs.with_fields(exclude=False)
    return Output((layout,) * len(old), (joined(kept),), attrs)


def _reduce_to_place(attrs: Fields, new: Now, old: Layouts, types: Types) -> Output:
    """`argmax` and `argmin`: the place among the elements of several axes is counted in the order
    of these axes, which is kept. Along one axis it is the same in any layout.
    """
    if new is None or new[0] is None or old[0] is None:
        return _reduce(attrs, new, old, types)
    given = range(_rank(types[0])) if attrs.axis is None else np.atleast_1d(attrs.axis)
    named = {_letter(old[0], int(a)) for a in given}
    gone = [each for each in primal(old[0]) if (each in named) != attrs.exclude]
    places = [place_of(new[0], each) for each in gone]
    stays = places == sorted(places) and not any(factor_of(new[0], each) for each in gone)
    return _reduce(attrs, new if stays or len(gone) == 1 else old, old, types)


def _transpose(attrs: Fields, new: Now, old: Layouts, types: Types) -> Output:
    if old[0] is None:
        return Output((None,), (None,), attrs)
    rank = len(parse(old[0]))
    axes = [int(a) % rank for a in attrs.axes] if attrs.axes else list(reversed(range(rank)))
    layout = old[0]
    if new is not None and new[0] and sorted(new[0]) == sorted(old[0]):
        layout = new[0]
        axes = [place_of(layout, _letter(old[0], a)) for a in axes]
    result = joined([parse(layout)[a] for a in axes])
    made = attrs.with_fields(axes=tuple(axes)) if new is not None else attrs
    return Output((layout,), (result,), made)


def _squeeze(attrs: Fields, new: Now, old: Layouts, types: Types) -> Output:
    layout = old[0] if new is None else new[0]
    if layout is None or old[0] is None:
        return Output((None,), (None,), attrs)
    kind = types[0]
    assert isinstance(kind, TensorType)
    ones = [i for i, d in enumerate(kind.shape) if is_const(d, 1)]
    axes = ones if attrs.axis is None else [int(a) % len(kind.shape) for a in attrs.axis]
    gone = {_letter(old[0], a) for a in axes}
    if any(factor_of(layout, letter) for letter in gone):
        layout = old[0]
    if new is not None:
        attrs = attrs.with_fields(axis=tuple(place_of(layout, _letter(old[0], a)) for a in axes))
    left = joined([(letter, size) for letter, size in parse(layout) if letter not in gone])
    return Output((layout,), (left,), attrs)


def _pad(attrs: Fields, new: Now, old: Layouts, types: Types) -> Output:
    """Widths move with their axes; a split axis is not padded."""
    layout = old[0]
    if layout is None:
        return Output((None,), (None,), attrs)
    if new is not None and new[0]:
        widths = {
            letter: tuple(w) for (letter, _), w in zip(parse(layout), attrs.pad_width, strict=True)
        }
        split = [letter.upper() for letter, _ in parse(new[0]) if letter.islower()]
        if all(widths.get(letter) == (0, 0) for letter in split):
            layout = new[0]
            moved = tuple(widths[letter.upper()] for letter, _ in parse(layout))
            attrs = attrs.with_fields(pad_width=moved)
    return Output((layout, "1") if len(old) > 1 else (layout,), (layout,), attrs)


def _concatenate(attrs: Fields, new: Now, old: Layouts, types: Types) -> Output:
    parts = types[0]
    count = len(parts.fields) if isinstance(parts, TupleType) else 1
    before = next((each for each in old[:count] if each), None)
    if before is None:
        return Output((None,), (None,), attrs)
    axis = attrs.axis % len(parse(before))
    layout = before
    if new is not None and len(set(new[:count])) == 1 and new[0] and old[0]:
        layout = new[0]
        attrs = attrs.with_fields(axis=place_of(layout, _letter(old[0], axis)))
    elif not _letter(layout, axis).isupper():
        return Output((None,), (None,), attrs)
    more = ("C",) * (len(old) - count)
    return Output((layout,) * count + more, (layout,), attrs)


def _split(attrs: Fields, new: Now, old: Layouts, types: Types) -> Output:
    sections = attrs.indices_or_sections
    count = len(sections) + 1 if isinstance(sections, tuple) else int(sections)
    layout = old[0]
    if layout is None:
        return Output((None,), (None,) * count, attrs)
    if new is not None and new[0]:
        letter = _letter(layout, attrs.axis)
        factor = factor_of(new[0], letter) or 1
        is_list = isinstance(sections, tuple)
        if place_of(new[0], letter) >= 0 and (
            not is_list or all(s % factor == 0 for s in sections)
        ):
            layout = new[0]
            attrs = attrs.with_fields(axis=place_of(layout, letter))
            if is_list and factor > 1:
                attrs = attrs.with_fields(indices_or_sections=tuple(s // factor for s in sections))
    return Output((layout,), (layout,) * count, attrs)


def _numbers(values: Sequence[Any] | None) -> list[int] | None:
    if values is None:
        return []
    made = [v.value if isinstance(v, IntImm) else v for v in values]
    return made if all(isinstance(v, int) for v in made) else None


def _strided_slice(attrs: Fields, new: Now, old: Layouts, types: Types) -> Output:
    """Bounds move with their axes, in steps of the factor of a split one."""
    layout = old[0]
    failed = Output((None,), (None,), attrs)
    if layout is None or new is None or new[0] is None:
        return Output((layout,) * len(old), (layout,), attrs)
    rank = len(parse(layout))
    parts = [_numbers(each) for each in (attrs.begin, attrs.end, attrs.strides)]
    if any(part is None for part in parts):
        return failed
    begin, end, strides = (part or [] for part in parts)
    if len(end) < len(begin):
        return Output((layout,) * len(old), (layout,), attrs)
    begin = begin + [0] * (len(end) - len(begin))
    axes = list(range(len(begin))) if attrs.axes is None else [int(a) % rank for a in attrs.axes]
    strides = (strides + [1] * len(begin))[: len(begin)]
    if attrs.slice_mode == "size":
        strides = [1] * len(begin)
    bounds: dict[int, tuple[int, int, int]] = {}
    for a, b, e, s in zip(axes, begin, end, strides, strict=True):
        letter = _letter(layout, a)
        at, factor = place_of(new[0], letter), factor_of(new[0], letter) or 1
        if at < 0 or b % factor or (e % factor and e > 0) or (factor > 1 and s != 1):
            return Output((layout,) * len(old), (layout,), attrs)
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
            extent = _numbers([kind.shape[place_of(layout, letter.upper())]])
            if at not in bounds and (extent is None or letter.islower()):
                bounds[at] = (0, size, 1) if extent is not None else (0, 1 << 30, 1)
            elif at not in bounds:
                assert extent is not None
                bounds[at] = (0, extent[0] // (factor_of(new[0], letter) or 1), 1)
    made = [tuple(bounds[at][i] for at in order) for i in range(3)]
    attrs = attrs.with_fields(begin=made[0], end=made[1], strides=made[2])
    return Output((new[0],) * len(old), (new[0],), attrs)


def _slice_like(attrs: Fields, new: Now, old: Layouts, types: Types) -> Output:
    if new is not None and old[0] and old[0] == old[1] and new[0] and new[0] == new[1]:
        axes = attrs.axes or range(_rank(types[0]))
        moved = tuple(place_of(new[0], _letter(old[0], int(a))) for a in axes)
        if -1 not in moved:
            return Output(new, (new[0],), attrs.with_fields(axes=moved))
    return Output(old, (old[0],), attrs)


def _topk(attrs: Fields, new: Now, old: Layouts, types: Types) -> Output:
    made = _one_axis(attrs, new, old, types)
    count = 2 if attrs.ret_type == "both" else 1
    return InferCorrectLayoutOutput(
        made.input_layouts, tuple(made.output_layouts) * count, made.new_attrs
    )


def _with_parameters(rule: Rule, data: int) -> Rule:
    """A rule for the first `data` inputs; the others are scales and zero points."""

    def extended(attrs: Fields, new: Now, old: Layouts, types: Types) -> Output:
        """The rule's answer with "C" for each scale and zero point, which are vectors of channels
        or scalars, and have nothing to move.
        """
        made = rule(attrs, None if new is None else new[:data], old[:data], types[:data])
        inputs = (*made.input_layouts, *("C",) * (len(old) - data))
        return Output(inputs, made.output_layouts, made.new_attrs)

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
    "qnn.avg_pool2d": _with_parameters(_pool, 1),
    **dict.fromkeys(("nn.upsampling", "nn.upsampling3d"), _follows(_same_windows)),
    **dict.fromkeys(
        ("image.resize1d", "image.resize2d", "image.resize3d"),
        _follows(lambda layout, own: sorted(layout) == sorted(own)),
    ),
    **dict.fromkeys(("vision.roi_align", "vision.roi_pool"), _regions),
    "nn.dense": _fixed("NC", "NC", "NC"),
    "nn.batch_norm": _channels,
    **dict.fromkeys(("nn.instance_norm", "nn.layer_norm", "nn.lrn", "nn.rms_norm"), _one_axis),
    "nn.l2_normalize": _axes,
    "nn.prelu": _one_axis,
    "nn.dropout": elementwise,
    **dict.fromkeys("sum mean max min prod any all".split(), _reduce),
    **dict.fromkeys(("argmax", "argmin"), _reduce_to_place),
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
    **dict.fromkeys(("qnn.add", "qnn.subtract", "qnn.mul"), _with_parameters(broadcast, 2)),
}
"""Operator -> its rule; those that go element by element need none."""


def infer_layouts(op: Op, attrs: Fields, new: Now, old: Layouts, types: Types) -> Output | None:
    """What an operator takes, by its rule; None if it has none, or that does not know."""
    rule: Any = OP_ATTRS.get("FInferCorrectLayout", {}).get(op.name) or RULES.get(op.name)
    if rule is None:
        pattern = OPS[op.name].pattern
        if pattern == OpPattern.ELEMWISE:
            rule = elementwise
        elif pattern == OpPattern.BROADCAST and len(old) == 2:
            rule = broadcast
        else:
            return None
    made: Output = rule(attrs, new, old, types)
    if None in made.input_layouts or None in made.output_layouts:
        return None
    return made


__all__ = ["InferCorrectLayoutOutput", "infer_layouts"]
