"""Layout conversion to NHWC: inserted transposes sink through the graph until they cancel.

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
from ekiden.ir.op import OpPattern, TransposeRule
from ekiden.ir.prim import PrimExpr, const, is_const
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.ir.type import TensorType, TupleType, tensor_type
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant, Tuple, TupleGetItem
from ekiden.relay.transform.graph.canonicalize_ops import CanonicalizeOps
from ekiden.relay.transform.graph.conv1d_to_conv2d import conv1d_to_conv2d, squeeze_height
from ekiden.relay.transform.graph.fold_scale_axis import op_name_of
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import (
    infer_local_type,
    lift_body_rewrite,
    map_functions,
    rewrite_graph,
)
from ekiden.relay.visitor import post_order
from ekiden.topi.dimensions import is_unknown_dim

if TYPE_CHECKING:
    import ekiden.relay.op.slice as slices
    from ekiden.relay.transform.layout import desired_layouts as layouts
else:
    slices = LazyModule("ekiden.relay.op.slice")
    layouts = LazyModule("ekiden.relay.transform.layout.desired_layouts")

AxisPermutation = tuple[int, ...]
CHANNELS_LAST_LAYOUTS = {"NCHW": "NHWC", "NCDHW": "NDHWC"}
"""Channels-last layout by channels-first layout."""


def inverse_permutation(perm: AxisPermutation) -> AxisPermutation:
    """Return the inverse permutation."""
    return tuple(perm.index(i) for i in range(len(perm)))


def _tensor_shape(expr: RelayExpr) -> tuple[PrimExpr, ...]:
    kind = expr.checked_type
    assert isinstance(kind, TensorType)
    return kind.shape


def emit_transpose(data: RelayExpr, perm: AxisPermutation) -> RelayExpr:
    """Emit a transpose of `data`: nothing for the identity, merged with a transpose of its operand,
    folded for constants.
    """
    if op_name_of(data) == "transpose":
        assert isinstance(data, Call)
        inner = transpose_axes(data)
        return emit_transpose(data.args[0], tuple(inner[i] for i in perm))
    if perm == tuple(range(len(perm))):
        return data
    if isinstance(data, Constant):
        # Transposed at compile time, so that the run does not pay for it.
        folded = Constant(np.ascontiguousarray(data.data.transpose(perm)), span=data.span)
        kind = data.checked_type
        assert isinstance(kind, TensorType)
        folded.set_checked_type(TensorType(tuple(kind.shape[i] for i in perm), kind.dtype))
        return folded
    return infer_local_type(op.transpose(data, perm))


def moves_only_unit_axes(shape: Sequence[PrimExpr], perm: AxisPermutation) -> bool:
    """Return whether a transpose moves only unit axes, which leaves the bytes in order."""
    # An axis of extent 1 has no stride that matters.
    moved = [i for i in perm if not is_const(shape[i], 1)]
    return moved == sorted(moved)


def transpose_axes(call: Call) -> AxisPermutation:
    """Return the permutation of a transpose call."""
    rank = len(_tensor_shape(call))
    axes = getattr(call.attrs, "axes", None)
    return tuple(reversed(range(rank))) if axes is None else tuple(int(a) % rank for a in axes)


def _convertible_layout_attr(call: Call) -> str | None:
    """Return the layout attribute of an operator that can be converted to channels-last,
    or None.
    """
    if not op_name_of(call):
        return None
    attrs, field_name = call.attrs, call.op.definition.layout  # type: ignore[attr-defined]
    # Channels-last operators, and those in packed layouts, stay as they are.
    if not field_name or getattr(attrs, field_name) not in CHANNELS_LAST_LAYOUTS:
        return None
    return (
        field_name if getattr(attrs, "out_layout", "") in ("", getattr(attrs, field_name)) else None
    )


def _convert_to_nhwc(call: Call, layout_field: str) -> RelayExpr:
    assert call.attrs is not None
    layout = CHANNELS_LAST_LAYOUTS[getattr(call.attrs, layout_field)]
    changes: dict[str, object] = {layout_field: layout}
    if hasattr(call.attrs, "out_layout"):
        # The result follows the layout of the data.
        changes["out_layout"] = ""
    back = _channels_first_perm(len(layout))
    args = (emit_transpose(call.args[0], inverse_permutation(back)), *call.args[1:])
    nhwc_call = _untyped_copy(call.with_fields(args=args, attrs=call.attrs.with_fields(**changes)))
    return emit_transpose(infer_local_type(nhwc_call), back)


def _channels_first_perm(rank: int) -> AxisPermutation:
    """Return the permutation from channels-last to channels-first: NHWC -> NCHW."""
    return (0, rank - 1, *range(1, rank - 1))


def _untyped_copy(call: Call) -> Call:
    """Return a copy without a checked type."""
    return Call(call.op, call.args, call.attrs, call.type_args, span=call.span)


def _operand_perm(expr: RelayExpr) -> AxisPermutation | None:
    return (
        transpose_axes(expr) if isinstance(expr, Call) and op_name_of(expr) == "transpose" else None
    )


def _transposed_operand(expr: RelayExpr) -> RelayExpr:
    assert isinstance(expr, Call)
    return expr.args[0]


def _sink_operand(operand: RelayExpr, perm: AxisPermutation) -> RelayExpr | None:
    """Return the operand in the order of the transposed operation, or None if that would cost a
    copy.

    One of a lower rank broadcasts from the right, so its missing axes are written out before they
    move.
    """
    if _operand_perm(operand) == perm:
        return _transposed_operand(operand)
    rank = len(_tensor_shape(operand))
    if rank == 0:
        return operand
    if rank > len(perm):
        return None
    # Broadcasting adds leading axes of 1, which the transpose moves too.
    wide = (const(1),) * (len(perm) - rank) + _tensor_shape(operand)
    if not isinstance(operand, Constant) and not moves_only_unit_axes(
        wide, inverse_permutation(perm)
    ):
        return None
    return emit_transpose(
        operand if rank == len(perm) else _reshape_operand(operand, wide), inverse_permutation(perm)
    )


def _reshape_operand(operand: RelayExpr, shape: tuple[PrimExpr, ...]) -> RelayExpr:
    if not isinstance(operand, Constant):
        return infer_local_type(op.reshape(operand, shape, allowzero=True))
    data = operand.data.reshape([1] * (len(shape) - operand.data.ndim) + list(operand.data.shape))
    constant = Constant(data, span=operand.span)
    kind = operand.checked_type
    assert isinstance(kind, TensorType)
    constant.set_checked_type(tensor_type(data.shape, kind.dtype))
    return constant


def _sink_broadcast(call: Call, perm: AxisPermutation) -> RelayExpr | None:
    """Sink a transpose through a broadcasting operator: f(transpose(a), b) -> transpose(f(a, b')),
    b' = b transposed back.
    """
    # An operand of higher rank would broadcast the transposed one along new axes.
    if any(len(_tensor_shape(a)) > len(perm) for a in call.args):
        return None
    args = [_sink_operand(a, perm) for a in call.args]
    if any(a is None for a in args):
        return None
    return emit_transpose(infer_local_type(_untyped_copy(call.with_fields(args=tuple(args)))), perm)


def _sink_axis_op(call: Call, perm: AxisPermutation) -> RelayExpr | None:
    """Sink a transpose through an operator along one axis: softmax, lrn, prelu, ..."""
    assert call.attrs is not None
    # Axis i of the transposed tensor is axis perm[i] of the one below.
    axis = perm[int(getattr(call.attrs, "axis", -1)) % len(perm)]
    changed = call.with_fields(
        args=(_transposed_operand(call.args[0]), *call.args[1:]),
        attrs=call.attrs.with_fields(axis=axis),
    )
    return emit_transpose(infer_local_type(_untyped_copy(changed)), perm)


def _sink_concatenate(call: Call, perm: AxisPermutation) -> RelayExpr | None:
    """Sink transposes through concatenate: concatenate((transpose(a), transpose(b)), axis) ->
    transpose(concatenate((a, b), axis')).
    """
    fields_tuple = call.args[0]
    assert isinstance(fields_tuple, Tuple) and call.attrs is not None
    if any(_operand_perm(p) != perm for p in fields_tuple.fields):
        return None
    axis = perm[int(getattr(call.attrs, "axis", 0)) % len(perm)]
    return emit_transpose(
        infer_local_type(
            op.concatenate(Tuple(tuple(map(_transposed_operand, fields_tuple.fields))), axis)
        ),
        perm,
    )


def _sink_split(call: Call, perm: AxisPermutation) -> RelayExpr | None:
    """Sink a transpose through split: split(transpose(a), axis) -> (transpose(%s.0),
    transpose(%s.1), ..), %s = split(a, axis').

    Not where queries, keys and values are made the first axis to be parted there: parts of that lie
    where they are, and behind them would be a transpose for each.
    """
    assert call.attrs is not None
    # Only channel moves cancel further down.
    if perm != _channels_first_perm(len(perm)):
        return None
    axis = perm[int(getattr(call.attrs, "axis", 0)) % len(perm)]
    changed = call.with_fields(
        args=(_transposed_operand(call.args[0]),), attrs=call.attrs.with_fields(axis=axis)
    )
    # Each field gets its own transpose, which later operators sink separately.
    split_call = infer_local_type(_untyped_copy(changed))
    kind = split_call.checked_type
    assert isinstance(kind, TupleType)
    fields_ = (
        infer_local_type(TupleGetItem(split_call, position)) for position in range(len(kind.fields))
    )
    return infer_local_type(Tuple(tuple(emit_transpose(field_, perm) for field_ in fields_)))


def _sink_slice(call: Call, perm: AxisPermutation) -> RelayExpr | None:
    """Sink a transpose through strided_slice: strided_slice(transpose(a), axes) ->
    transpose(strided_slice(a, axes')).
    """
    attrs = call.attrs
    assert isinstance(attrs, slices.StridedSliceAttrs)
    if perm != _channels_first_perm(len(perm)):
        return None
    if len(attrs.begin) != len(attrs.end) or len(attrs.strides) not in (0, len(attrs.end)):
        return None  # with axes all lists have one length
    axes = range(len(attrs.end)) if attrs.axes is None else attrs.axes
    moved = tuple(perm[a % len(perm)] for a in axes)
    changed = call.with_fields(
        args=(_transposed_operand(call.args[0]),), attrs=attrs.with_fields(axes=moved)
    )
    return emit_transpose(infer_local_type(_untyped_copy(changed)), perm)


def _sink_pad(call: Call, perm: AxisPermutation) -> RelayExpr | None:
    assert call.attrs is not None
    width = getattr(call.attrs, "pad_width", ())
    moved = tuple(width[i] for i in inverse_permutation(perm))
    changed = call.with_fields(
        args=(_transposed_operand(call.args[0]), *call.args[1:]),
        attrs=call.attrs.with_fields(pad_width=moved),
    )
    return emit_transpose(infer_local_type(_untyped_copy(changed)), perm)


def _sink_reduce(call: Call, perm: AxisPermutation) -> RelayExpr | None:
    """Sink a transpose through a reduction: sum(transpose(a), axis) -> transpose(sum(a, axis'))."""
    assert call.attrs is not None
    rank = len(perm)
    axis = getattr(call.attrs, "axis", None)
    # The complement of the axes would have to be computed in the new order.
    if getattr(call.attrs, "exclude", False):
        return None
    axes = tuple(range(rank)) if axis is None else tuple(int(a) % rank for a in np.atleast_1d(axis))
    changed = call.with_fields(
        args=(_transposed_operand(call.args[0]),),
        attrs=call.attrs.with_fields(axis=tuple(sorted(perm[a] for a in axes))),
    )
    reduction = infer_local_type(_untyped_copy(changed))
    if getattr(call.attrs, "keepdims", False):
        return emit_transpose(reduction, perm)
    # Without the reduced axes the permutation has gaps: its entries are ranked anew.
    remaining = [perm[i] for i in range(rank) if i not in axes]
    return emit_transpose(reduction, tuple(sorted(remaining).index(a) for a in remaining))


def _sink_broadcast_to(call: Call, perm: AxisPermutation) -> RelayExpr | None:
    """Sink a transpose through broadcast_to: broadcast_to(transpose(a), s) ->
    transpose(broadcast_to(a, s')).
    """
    shape = _tensor_shape(call)
    # New leading axes would not be in the permutation.
    if len(shape) != len(perm):
        return None
    moved = tuple(shape[i] for i in inverse_permutation(perm))
    return emit_transpose(
        infer_local_type(op.broadcast_to(_transposed_operand(call.args[0]), moved)), perm
    )


def _common_prefix_and_suffix(
    before: Sequence[PrimExpr], after: Sequence[PrimExpr]
) -> tuple[int, int]:
    """Return the number of equal leading dimensions, and of equal trailing ones among the rest."""
    shorter = min(len(before), len(after))
    head = 0
    while head < shorter and prove_equal(before[head], after[head]):
        head += 1
    tail = 0
    while tail < shorter - head and prove_equal(before[-1 - tail], after[-1 - tail]):
        tail += 1
    return head, tail


def _sink_reshape(call: Call, perm: AxisPermutation) -> RelayExpr | None:
    """Sink a transpose through a reshape that splits one dimension or merges several.

    Joined dimensions that are not neighbours in order below are first made so, among themselves. Of
    (n, c, h, w) -> (n, c, h * w) behind NHWC: below it is (n, h, w, c) -> (n, h * w, c). A channel
    shuffle, (n, g * k, ..) -> (n, g, k, ..) and back, so costs the one transpose that it means.
    Dimensions of 1 may come or go anywhere.
    """
    before, after = _tensor_shape(call.args[0]), _tensor_shape(call)
    if any(map(is_unknown_dim, after)):
        return None  # no reshape can name an extent that is not known
    head, tail = _common_prefix_and_suffix(before, after)
    old, new = len(before) - head - tail, len(after) - head - tail
    if min(old, new) == 0:
        return (
            _sink_expand_dims(call, perm, head, new)
            if new
            else _sink_squeeze(call, perm, head, old)
        )
    source = list(perm[head : head + old])
    block = sorted(source)
    # Dimensions can be joined below only if they are neighbours there.
    if min(old, new) != 1 or block != list(range(block[0], block[0] + old)):
        return None
    start = block[0]
    below = _transposed_operand(call.args[0])
    order = [*range(start), *source, *range(start + old, len(perm))]
    ordered = emit_transpose(below, tuple(order))
    shape = list(_tensor_shape(ordered))
    shape[start : start + old] = after[head : head + new]
    reshaped = infer_local_type(op.reshape(ordered, tuple(shape), allowzero=True))
    # Axes behind the block move by as many as the reshape adds or removes.
    shifted = [p if p < start else p + new - old for p in perm]
    moved = [*shifted[:head], *range(start, start + new), *shifted[head + old :]]
    return emit_transpose(reshaped, tuple(moved))


def _sink_squeeze(call: Call, perm: AxisPermutation, head: int, count: int) -> RelayExpr | None:
    """Sink a transpose through a reshape that removes unit dimensions from `head` on."""
    below, gone = _transposed_operand(call.args[0]), perm[head : head + count]
    shape = _tensor_shape(below)
    if not all(is_const(shape[i], 1) for i in gone):
        return None
    remaining = [i for i in range(len(shape)) if i not in gone]
    squeezed = infer_local_type(op.squeeze(below, sorted(gone)))
    return emit_transpose(squeezed, tuple(remaining.index(i) for i in perm if i not in gone))


def _sink_expand_dims(call: Call, perm: AxisPermutation, head: int, count: int) -> RelayExpr:
    """Sink a transpose through a reshape that inserts unit dimensions at `head`.

    They go before what follows them behind the transpose: (n, c, w) -> (n, c, 1, w) is (n, w, c) ->
    (n, 1, w, c).
    """
    below = _transposed_operand(call.args[0])
    start = perm[head] if head < len(perm) else len(perm)
    expanded = infer_local_type(op.expand_dims(below, start, count))
    shifted = [i + count if i >= start else i for i in perm]
    return emit_transpose(
        expanded, (*shifted[:head], *range(start, start + count), *shifted[head:])
    )


SinkRule = Callable[[Call, AxisPermutation], "RelayExpr | None"]
SINK_RULES: Mapping[TransposeRule, SinkRule] = {
    TransposeRule.AXIS: _sink_axis_op,
    TransposeRule.AXES: _sink_reduce,
    TransposeRule.SHAPE: _sink_reshape,
    TransposeRule.WIDTHS: _sink_pad,
    TransposeRule.FIELDS: _sink_concatenate,
    TransposeRule.PARTS: _sink_split,
    TransposeRule.BOX: _sink_slice,
    TransposeRule.EXTENTS: _sink_broadcast_to,
    TransposeRule.ORDER: lambda call, perm: emit_transpose(call.args[0], transpose_axes(call)),
}
"""Rules that sink a transpose from the first operand to the result, by operator."""


def _sink_kind(expr: RelayExpr) -> TransposeRule:
    return expr.op.definition.transpose_rule if op_name_of(expr) else TransposeRule.NO  # type: ignore[attr-defined]


def _sink_rule(call: Call) -> SinkRule | None:
    kind = _sink_kind(call)
    if kind is not TransposeRule.NO:
        return SINK_RULES[kind]
    if op_name_of(call) and call.op.definition.pattern <= OpPattern.BROADCAST:  # type: ignore[attr-defined]
        return _sink_broadcast
    return None


def _sink_transpose(call: Call) -> RelayExpr:
    rule = _sink_rule(call)
    operands = call.args[0].fields if call.args and isinstance(call.args[0], Tuple) else call.args
    # The first transposed operand decides, and the others are matched to it.
    perm = next((p for p in map(_operand_perm, operands) if p is not None), None)
    is_tensor = isinstance(call.checked_type, TensorType)
    if rule is None or perm is None or not (is_tensor or rule is _sink_split):
        return call
    if (
        rule is not _sink_broadcast
        and rule is not _sink_concatenate
        and _operand_perm(operands[0]) is None
    ):
        return call
    return rule(call, perm) or call


def _has_convolution(root: RelayExpr) -> bool:
    """Return whether a graph has a convertible convolution.

    The others follow it, but are as fast in NCHW as in NHWC, and not worth a transpose.
    """
    calls = (e for e in post_order(root, into_functions=True) if isinstance(e, Call))
    kernels = [c for c in calls if op_name_of(c) and c.op.definition.macs]  # type: ignore[attr-defined]
    return any(_convertible_layout_attr(c) or conv1d_to_conv2d(c) is not None for c in kernels)


def _convert_and_sink(old: RelayExpr, new: RelayExpr, gains: bool) -> RelayExpr:
    if isinstance(new, TupleGetItem) and isinstance(new.tuple_value, Tuple):
        return new.tuple_value.fields[new.index]  # a part that _split has transposed
    if not isinstance(new, Call) or not op_name_of(new):
        return new
    wide = conv1d_to_conv2d(new)
    if wide is not None:
        data, weight = wide.args
        if isinstance(data, Call):
            # A transpose below the added height moves past it, to where the convolution sees it.
            infer_local_type(
                wide := _untyped_copy(wide.with_fields(args=(_sink_transpose(data), weight)))
            )
        narrow = squeeze_height(_convert_call(wide, gains), new)
        assert isinstance(narrow, Call)
        return _keep_span(_sink_transpose(narrow), new)
    return _keep_span(_convert_call(new, gains), new)


def _convert_call(call: Call, gains: bool) -> RelayExpr:
    layout_field = _convertible_layout_attr(call)
    if layout_field is None:
        return _sink_transpose(call)
    below = _operand_perm(call.args[0])
    # Data that is in NHWC already costs no transpose.
    follows = below is not None and below == _channels_first_perm(len(below))
    return _convert_to_nhwc(call, layout_field) if gains or follows else call


def _keep_span(new_expr: RelayExpr, old: RelayExpr) -> RelayExpr:
    if new_expr is old or new_expr.span is not None or not isinstance(new_expr, Call):
        return new_expr
    named = new_expr.with_fields(span=old.span)
    named.set_checked_type(new_expr.checked_type)
    return named


def _simplify_views(old: RelayExpr, new: RelayExpr) -> RelayExpr:
    """Simplify views: a transpose of unit axes becomes a reshape, nested reshapes merge, and a
    reshape to its own shape vanishes.
    """
    kind = _sink_kind(new)
    if kind not in (TransposeRule.ORDER, TransposeRule.SHAPE):
        return new
    assert isinstance(new, Call)
    data, shape = new.args[0], _tensor_shape(new)
    if kind is TransposeRule.ORDER and not moves_only_unit_axes(
        _tensor_shape(data), transpose_axes(new)
    ):
        return new
    is_view = _sink_kind(data) is TransposeRule.SHAPE
    if is_view:
        data = _transposed_operand(data)
    data_shape = _tensor_shape(data)
    # The two reshapes undo each other.
    if len(data_shape) == len(shape) and all(map(prove_equal, data_shape, shape)):
        return data
    if (kind is TransposeRule.SHAPE and not is_view) or any(map(is_unknown_dim, shape)):
        return new
    return _keep_span(infer_local_type(op.reshape(data, shape, allowzero=True)), new)


def convert_layout(root: RelayExpr) -> RelayExpr:
    """Convert a graph to NHWC: one sweep converts and sinks, the second simplifies views. Needs
    checked types.
    """
    # The second sweep sees which transposes were left by the first.
    return rewrite_graph(
        rewrite_graph(root, partial(_convert_and_sink, gains=_has_convolution(root))),
        _simplify_views,
    )


@module_pass(name="ConvertLayout", opt_level=3, required=(InferType(),))
def _convert_layout(module: IRModule, context: PassContext) -> IRModule:
    return map_functions(module, lift_body_rewrite(convert_layout))


def ConvertLayout(desired_layouts: layouts.DesiredLayouts | None = None) -> Pass:  # noqa: N802
    """Return a pass that converts layouts to NHWC, or to the desired layouts (TVM's
    ConvertLayout).
    """
    if desired_layouts is None:
        return _convert_layout

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Convert each function to the requested layouts."""
        return layouts.convert_to_layouts(module, desired_layouts)

    return Pass("ConvertLayout", transform, 3, (InferType(), CanonicalizeOps(), InferType()))
