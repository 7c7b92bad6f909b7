"""Conversion of image operators to NHWC: the transposes that this needs are pushed through the
graph until they cancel.

    nn.relu(nn.conv2d(%x, W))                                 (NCHW)
    ->  transpose(nn.relu(nn.conv2d(transpose(%x), W, NHWC)))     one in, one out, for a network

Sweep 1, from inputs to results, gives convolutions over one axis a height, puts each operator that
has a layout between two transposes (where there is a convolution, which gains by it), moves a
transpose of an operand to the result wherever the operator can work on the transposed data (a
table), and merges transposes that meet. With P a transposition and f elementwise:

    f(P a, b) = P f(a, P' b)          P' the inverse: free where b is a number, a constant, or has
                                      but one axis longer than 1
    sum(P a, axis) = P2 sum(a, P[axis])         P2 what remains of P without the axes that go
    split(P a, axis).i = P split(a, P[axis]).i, and so of slices, where P is from NHWC to NCHW
    P (Q a) = (P Q) a,  P P' a = a

A transpose that meets an operator it cannot pass stays before it, and is a kernel. That is why NHWC
is not used where there is no convolution: other operators are as fast in either layout.

Sweep 2 turns transposes that move only dimensions of size 1 into reshapes, merges reshapes, and
drops those that change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ekiden._lazy import LazyModule
from ekiden.arith import prove_equal
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import OpPattern, Transposes
from ekiden.ir.prim import PrimExpr, const, is_const
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.ir.type import TensorType, TupleType, tensor_type
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant, Tuple, TupleGetItem
from ekiden.relay.transform.graph.canonicalize_ops import CanonicalizeOps
from ekiden.relay.transform.graph.fold_scale_axis import op_of
from ekiden.relay.transform.graph.one_axis import over_two_axes, without_height
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scopes import infer_here, map_functions, on_body, rewrite_graph
from ekiden.relay.visitor import post_order
from ekiden.topi.dimensions import is_any

if TYPE_CHECKING:
    import ekiden.relay.op.slice as slices
    from ekiden.relay.transform.layout import desired_layouts as layouts
else:
    slices = LazyModule("ekiden.relay.op.slice")
    layouts = LazyModule("ekiden.relay.transform.layout.desired_layouts")

Perm = tuple[int, ...]
CHANNELS_LAST = {"NCHW": "NHWC", "NCDHW": "NDHWC"}
"""Layouts with the channels first, and last."""


def inverse(perm: Perm) -> Perm:
    """Return the permutation that undoes `perm`."""
    return tuple(perm.index(i) for i in range(len(perm)))


def _shape(expr: RelayExpr) -> tuple[PrimExpr, ...]:
    kind = expr.checked_type
    assert isinstance(kind, TensorType)
    return kind.shape


def transpose(data: RelayExpr, perm: Perm) -> RelayExpr:
    """Return `data` transposed: itself for the identity, merged with a transpose below."""
    if op_of(data) == "transpose":
        assert isinstance(data, Call)
        inner = axes_of(data)
        return transpose(data.args[0], tuple(inner[i] for i in perm))
    if perm == tuple(range(len(perm))):
        return data
    if isinstance(data, Constant):
        folded = Constant(np.ascontiguousarray(data.data.transpose(perm)), span=data.span)
        kind = data.checked_type
        assert isinstance(kind, TensorType)
        folded.set_checked_type(TensorType(tuple(kind.shape[i] for i in perm), kind.dtype))
        return folded
    return infer_here(op.transpose(data, perm))


def moves_only_ones(shape: Sequence[PrimExpr], perm: Perm) -> bool:
    """Return whether transposing leaves the bytes in their order."""
    moved = [i for i in perm if not is_const(shape[i], 1)]
    return moved == sorted(moved)


def axes_of(call: Call) -> Perm:
    """Return the permutation of a transpose call."""
    rank = len(_shape(call))
    axes = getattr(call.attrs, "axes", None)
    return tuple(reversed(range(rank))) if axes is None else tuple(int(a) % rank for a in axes)


def _layout_field(call: Call) -> str | None:
    """Return the attribute with the layout, of an operator that can have its channels last."""
    if not op_of(call):
        return None
    attrs, field_name = call.attrs, call.op.definition.layout  # type: ignore[attr-defined]
    if not field_name or getattr(attrs, field_name) not in CHANNELS_LAST:
        return None
    return (
        field_name if getattr(attrs, "out_layout", "") in ("", getattr(attrs, field_name)) else None
    )


def _to_nhwc(call: Call, layout_field: str) -> RelayExpr:
    assert call.attrs is not None
    layout = CHANNELS_LAST[getattr(call.attrs, layout_field)]
    changes: dict[str, object] = {layout_field: layout}
    if hasattr(call.attrs, "out_layout"):
        changes["out_layout"] = ""
    back = _channels_second(len(layout))
    args = (transpose(call.args[0], inverse(back)), *call.args[1:])
    nhwc_call = _fresh(call.with_fields(args=args, attrs=call.attrs.with_fields(**changes)))
    return transpose(infer_here(nhwc_call), back)


def _channels_second(rank: int) -> Perm:
    """Channels from the last place to the second: NHWC -> NCHW."""
    return (0, rank - 1, *range(1, rank - 1))


def _fresh(call: Call) -> Call:
    """Return a copy without a type."""
    return Call(call.op, call.args, call.attrs, call.type_args, span=call.span)


def _perm_below(expr: RelayExpr) -> Perm | None:
    return axes_of(expr) if isinstance(expr, Call) and op_of(expr) == "transpose" else None


def _below(expr: RelayExpr) -> RelayExpr:
    assert isinstance(expr, Call)
    return expr.args[0]


def _match_operand(operand: RelayExpr, perm: Perm) -> RelayExpr | None:
    """Return the operand that the transposed operation needs, None if that would cost a copy.

    One of a lower rank broadcasts from the right, so its missing axes are written out before they
    move.
    """
    if _perm_below(operand) == perm:
        return _below(operand)
    rank = len(_shape(operand))
    if rank == 0:
        return operand
    if rank > len(perm):
        return None
    wide = (const(1),) * (len(perm) - rank) + _shape(operand)
    if not isinstance(operand, Constant) and not moves_only_ones(wide, inverse(perm)):
        return None
    return transpose(operand if rank == len(perm) else _reshaped(operand, wide), inverse(perm))


def _reshaped(operand: RelayExpr, shape: tuple[PrimExpr, ...]) -> RelayExpr:
    if not isinstance(operand, Constant):
        return infer_here(op.reshape(operand, shape, allowzero=True))
    data = operand.data.reshape([1] * (len(shape) - operand.data.ndim) + list(operand.data.shape))
    constant = Constant(data, span=operand.span)
    kind = operand.checked_type
    assert isinstance(kind, TensorType)
    constant.set_checked_type(tensor_type(data.shape, kind.dtype))
    return constant


def _sink_broadcast(call: Call, perm: Perm) -> RelayExpr | None:
    """f(transpose(a), b, ...) -> transpose(f(a, b', ...)), b' = b transposed back"""
    # An operand of higher rank would broadcast the transposed one along new axes.
    if any(len(_shape(a)) > len(perm) for a in call.args):
        return None
    args = [_match_operand(a, perm) for a in call.args]
    if any(a is None for a in args):
        return None
    return transpose(infer_here(_fresh(call.with_fields(args=tuple(args)))), perm)


def _with_axis(call: Call, perm: Perm) -> RelayExpr | None:
    """Operators along one axis: softmax, lrn, prelu, ..."""
    assert call.attrs is not None
    axis = perm[int(getattr(call.attrs, "axis", -1)) % len(perm)]
    changed = call.with_fields(
        args=(_below(call.args[0]), *call.args[1:]), attrs=call.attrs.with_fields(axis=axis)
    )
    return transpose(infer_here(_fresh(changed)), perm)


def _concatenate(call: Call, perm: Perm) -> RelayExpr | None:
    """concatenate((transpose(a), transpose(b)), axis) -> transpose(concatenate((a, b), axis'))"""
    fields_tuple = call.args[0]
    assert isinstance(fields_tuple, Tuple) and call.attrs is not None
    if any(_perm_below(p) != perm for p in fields_tuple.fields):
        return None
    axis = perm[int(getattr(call.attrs, "axis", 0)) % len(perm)]
    return transpose(
        infer_here(op.concatenate(Tuple(tuple(map(_below, fields_tuple.fields))), axis)), perm
    )


def _split(call: Call, perm: Perm) -> RelayExpr | None:
    """split(transpose(a), axis) -> (transpose(%s.0), transpose(%s.1), ..), %s = split(a, axis')

    Not where queries, keys and values are made the first axis to be parted there: parts of that lie
    where they are, and behind them would be a transpose for each.
    """
    assert call.attrs is not None
    # Only channel moves cancel further down.
    if perm != _channels_second(len(perm)):
        return None
    axis = perm[int(getattr(call.attrs, "axis", 0)) % len(perm)]
    changed = call.with_fields(
        args=(_below(call.args[0]),), attrs=call.attrs.with_fields(axis=axis)
    )
    split_call = infer_here(_fresh(changed))
    kind = split_call.checked_type
    assert isinstance(kind, TupleType)
    fields_ = (infer_here(TupleGetItem(split_call, at)) for at in range(len(kind.fields)))
    return infer_here(Tuple(tuple(transpose(field_, perm) for field_ in fields_)))


def _slice(call: Call, perm: Perm) -> RelayExpr | None:
    """strided_slice(transpose(a), axes) -> transpose(strided_slice(a, axes')), where `_split` is"""
    attrs = call.attrs
    assert isinstance(attrs, slices.StridedSliceAttrs)
    if perm != _channels_second(len(perm)):
        return None
    if len(attrs.begin) != len(attrs.end) or len(attrs.strides) not in (0, len(attrs.end)):
        return None  # with axes all lists have one length
    axes = range(len(attrs.end)) if attrs.axes is None else attrs.axes
    moved = tuple(perm[a % len(perm)] for a in axes)
    changed = call.with_fields(args=(_below(call.args[0]),), attrs=attrs.with_fields(axes=moved))
    return transpose(infer_here(_fresh(changed)), perm)


def _pad(call: Call, perm: Perm) -> RelayExpr | None:
    assert call.attrs is not None
    width = getattr(call.attrs, "pad_width", ())
    moved = tuple(width[i] for i in inverse(perm))
    changed = call.with_fields(
        args=(_below(call.args[0]), *call.args[1:]), attrs=call.attrs.with_fields(pad_width=moved)
    )
    return transpose(infer_here(_fresh(changed)), perm)


def _reduce(call: Call, perm: Perm) -> RelayExpr | None:
    """sum(transpose(a), axis) -> transpose(sum(a, axis'))"""
    assert call.attrs is not None
    rank = len(perm)
    axis = getattr(call.attrs, "axis", None)
    if getattr(call.attrs, "exclude", False):
        return None
    axes = tuple(range(rank)) if axis is None else tuple(int(a) % rank for a in np.atleast_1d(axis))
    changed = call.with_fields(
        args=(_below(call.args[0]),),
        attrs=call.attrs.with_fields(axis=tuple(sorted(perm[a] for a in axes))),
    )
    reduction = infer_here(_fresh(changed))
    if getattr(call.attrs, "keepdims", False):
        return transpose(reduction, perm)
    remaining = [perm[i] for i in range(rank) if i not in axes]
    return transpose(reduction, tuple(sorted(remaining).index(a) for a in remaining))


def _broadcast_to(call: Call, perm: Perm) -> RelayExpr | None:
    """broadcast_to(transpose(a), s) -> transpose(broadcast_to(a, s'))"""
    shape = _shape(call)
    if len(shape) != len(perm):
        return None
    moved = tuple(shape[i] for i in inverse(perm))
    return transpose(infer_here(op.broadcast_to(_below(call.args[0]), moved)), perm)


def _equal_ends(before: Sequence[PrimExpr], after: Sequence[PrimExpr]) -> tuple[int, int]:
    """Return how many leading, and of the rest how many trailing, dimensions are equal."""
    shorter = min(len(before), len(after))
    head = 0
    while head < shorter and prove_equal(before[head], after[head]):
        head += 1
    tail = 0
    while tail < shorter - head and prove_equal(before[-1 - tail], after[-1 - tail]):
        tail += 1
    return head, tail


def _reshape(call: Call, perm: Perm) -> RelayExpr | None:
    """Move a reshape that splits one dimension, or joins several, before the transpose.

    Joined dimensions that are not neighbours in order below are first made so, among themselves. Of
    (n, c, h, w) -> (n, c, h * w) behind NHWC: below it is (n, h, w, c) -> (n, h * w, c). A channel
    shuffle, (n, g * k, ..) -> (n, g, k, ..) and back, so costs the one transpose that it means.
    Dimensions of 1 may come or go anywhere.
    """
    before, after = _shape(call.args[0]), _shape(call)
    if any(map(is_any, after)):
        return None  # no reshape can name an extent that is not known
    head, tail = _equal_ends(before, after)
    old, new = len(before) - head - tail, len(after) - head - tail
    if min(old, new) == 0:
        return _insert_ones(call, perm, head, new) if new else _remove_ones(call, perm, head, old)
    source = list(perm[head : head + old])
    block = sorted(source)
    # Dimensions can be joined below only if they are neighbours there.
    if min(old, new) != 1 or block != list(range(block[0], block[0] + old)):
        return None
    start = block[0]
    below = _below(call.args[0])
    order = [*range(start), *source, *range(start + old, len(perm))]
    ordered = transpose(below, tuple(order))
    shape = list(_shape(ordered))
    shape[start : start + old] = after[head : head + new]
    reshaped = infer_here(op.reshape(ordered, tuple(shape), allowzero=True))
    shifted = [p if p < start else p + new - old for p in perm]
    moved = [*shifted[:head], *range(start, start + new), *shifted[head + old :]]
    return transpose(reshaped, tuple(moved))


def _remove_ones(call: Call, perm: Perm, head: int, count: int) -> RelayExpr | None:
    """Move a reshape that removes dimensions of 1, from `head` on, before the transpose."""
    below, gone = _below(call.args[0]), perm[head : head + count]
    shape = _shape(below)
    if not all(is_const(shape[i], 1) for i in gone):
        return None
    remaining = [i for i in range(len(shape)) if i not in gone]
    squeezed = infer_here(op.squeeze(below, sorted(gone)))
    return transpose(squeezed, tuple(remaining.index(i) for i in perm if i not in gone))


def _insert_ones(call: Call, perm: Perm, head: int, count: int) -> RelayExpr:
    """Move a reshape that inserts dimensions of 1 at `head` before the transpose.

    They go before what follows them behind the transpose: (n, c, w) -> (n, c, 1, w) is (n, w, c) ->
    (n, 1, w, c).
    """
    below = _below(call.args[0])
    start = perm[head] if head < len(perm) else len(perm)
    expanded = infer_here(op.expand_dims(below, start, count))
    shifted = [i + count if i >= start else i for i in perm]
    return transpose(expanded, (*shifted[:head], *range(start, start + count), *shifted[head:]))


Sink = Callable[[Call, Perm], "RelayExpr | None"]
SINK_RULES: Mapping[Transposes, Sink] = {
    Transposes.AXIS: _with_axis,
    Transposes.AXES: _reduce,
    Transposes.SHAPE: _reshape,
    Transposes.WIDTHS: _pad,
    Transposes.FIELDS: _concatenate,
    Transposes.PARTS: _split,
    Transposes.BOX: _slice,
    Transposes.EXTENTS: _broadcast_to,
    Transposes.ORDER: lambda call, perm: transpose(call.args[0], axes_of(call)),
}
"""What moves a transpose of the (first) operand to the result."""


def _sink_kind(expr: RelayExpr) -> Transposes:
    return expr.op.definition.turns if op_of(expr) else Transposes.NO  # type: ignore[attr-defined]


def _sink_rule(call: Call) -> Sink | None:
    kind = _sink_kind(call)
    if kind is not Transposes.NO:
        return SINK_RULES[kind]
    if op_of(call) and call.op.definition.pattern <= OpPattern.BROADCAST:  # type: ignore[attr-defined]
        return _sink_broadcast
    return None


def _sink(call: Call) -> RelayExpr:
    rule = _sink_rule(call)
    operands = call.args[0].fields if call.args and isinstance(call.args[0], Tuple) else call.args
    perm = next((p for p in map(_perm_below, operands) if p is not None), None)
    is_tensor = isinstance(call.checked_type, TensorType)
    if rule is None or perm is None or not (is_tensor or rule is _split):
        return call
    if (
        rule is not _sink_broadcast
        and rule is not _concatenate
        and _perm_below(operands[0]) is None
    ):
        return call
    return rule(call, perm) or call


def _has_convolution(root: RelayExpr) -> bool:
    """Return whether a convolution is among the operators with a layout.

    The others follow it, but are as fast in NCHW as in NHWC, and not worth a transpose.
    """
    calls = (e for e in post_order(root, into_functions=True) if isinstance(e, Call))
    kernels = [c for c in calls if op_of(c) and c.op.definition.macs]  # type: ignore[attr-defined]
    return any(_layout_field(c) or over_two_axes(c) is not None for c in kernels)


def _sweep(old: RelayExpr, new: RelayExpr, gains: bool) -> RelayExpr:
    if isinstance(new, TupleGetItem) and isinstance(new.tuple_value, Tuple):
        return new.tuple_value.fields[new.index]  # a part that _split has transposed
    if not isinstance(new, Call) or not op_of(new):
        return new
    wide = over_two_axes(new)
    if wide is not None:
        data, weight = wide.args
        if isinstance(data, Call):
            infer_here(wide := _fresh(wide.with_fields(args=(_sink(data), weight))))
        narrow = without_height(_converted(wide, gains), new)
        assert isinstance(narrow, Call)
        return _with_span(_sink(narrow), new)
    return _with_span(_converted(new, gains), new)


def _converted(call: Call, gains: bool) -> RelayExpr:
    layout_field = _layout_field(call)
    if layout_field is None:
        return _sink(call)
    below = _perm_below(call.args[0])
    # Data that is in NHWC already costs no transpose.
    follows = below is not None and below == _channels_second(len(below))
    return _to_nhwc(call, layout_field) if gains or follows else call


def _with_span(new_expr: RelayExpr, old: RelayExpr) -> RelayExpr:
    if new_expr is old or new_expr.span is not None or not isinstance(new_expr, Call):
        return new_expr
    named = new_expr.with_fields(span=old.span)
    named.set_checked_type(new_expr.checked_type)
    return named


def _simplify_views(old: RelayExpr, new: RelayExpr) -> RelayExpr:
    """transpose moving ones -> reshape; reshape(reshape(x)) -> reshape(x), or x if of its shape"""
    kind = _sink_kind(new)
    if kind not in (Transposes.ORDER, Transposes.SHAPE):
        return new
    assert isinstance(new, Call)
    data, shape = new.args[0], _shape(new)
    if kind is Transposes.ORDER and not moves_only_ones(_shape(data), axes_of(new)):
        return new
    is_view = _sink_kind(data) is Transposes.SHAPE
    if is_view:
        data = _below(data)
    data_shape = _shape(data)
    if len(data_shape) == len(shape) and all(map(prove_equal, data_shape, shape)):
        return data
    if (kind is Transposes.SHAPE and not is_view) or any(map(is_any, shape)):
        return new
    return _with_span(infer_here(op.reshape(data, shape, allowzero=True)), new)


def convert_layout(root: RelayExpr) -> RelayExpr:
    """Run both sweeps over an expression. Needs checked types."""
    return rewrite_graph(
        rewrite_graph(root, partial(_sweep, gains=_has_convolution(root))), _simplify_views
    )


@module_pass(name="ConvertLayout", opt_level=3, required=(InferType(),))
def _convert_layout(module: IRModule, context: PassContext) -> IRModule:
    return map_functions(module, on_body(convert_layout))


def ConvertLayout(desired_layouts: layouts.Desired | None = None) -> Pass:  # noqa: N802
    """Return the pass described at the top of this file; with layouts, that of
    desired_layouts.py.
    """
    if desired_layouts is None:
        return _convert_layout

    def transform(module: IRModule, context: PassContext) -> IRModule:
        return layouts.convert_to(module, desired_layouts)

    return Pass("ConvertLayout", transform, 3, (InferType(), CanonicalizeOps(), InferType()))
