"""Channel axes and per-channel scales, shared by ForwardFoldScaleAxis and BackwardFoldScaleAxis.

A scale s of the channels of x [n, c, h, w] occurs in a program as multiply(x, s'), s' [c, 1, 1].
Through what is linear in its data it moves: conv2d(x * s', w) = conv2d(x, w * s), and conv2d(x, w)
* s' = conv2d(x, s * w), where it meets a weight and is multiplied at compile time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ekiden.arith import prove_equal
from ekiden.ir.dtype import is_float
from ekiden.ir.expr import RelayExpr
from ekiden.ir.op import Array, LinearForm
from ekiden.ir.prim import IntImm
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant, Var
from ekiden.relay.transform.graph.call_rewrites import infer_new_types
from ekiden.relay.transform.graph.fold_scale_axis import is_same_shape, op_definition_of
from ekiden.runtime.lazy_dataclass import dataclass

AxisIndices = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChannelScale:
    """Per-channel factor with one axis per channel axis, and its constant value where known."""

    expr: RelayExpr
    value: Array | None

    @property
    def is_positive(self) -> bool:
        """Return whether the factor is known to be positive in all channels."""
        return self.value is not None and bool(np.all(self.value > 0))

    @property
    def is_divisor(self) -> bool:
        """Return whether the factor is known to be non-zero in all channels."""
        return self.value is not None and bool(np.all(self.value != 0))

    def reshape_along(self, like: RelayExpr, axes: AxisIndices) -> ChannelScale:
        """Return the factor reshaped to broadcast along the given axes of an expression."""
        kind = like.checked_type
        assert isinstance(kind, TensorType)
        sizes = [d.value if isinstance(d, IntImm) else 1 for d in kind.shape]
        shape = [size if i in axes else 1 for i, size in enumerate(sizes)]
        behind = len(sizes) - axes[-1] - 1
        shaped = self.expr
        if len(axes) > 1:
            shaped = op.reshape(shaped, shape)
        elif behind:
            shaped = op.expand_dims(shaped, 1, behind)
        value = None if self.value is None else self.value.reshape(shape)
        return ChannelScale(infer_new_types(shaped), value)


ConstantProduct = Callable[[Array, Array], Array | None]
"""fold_product or scale_weights, as a function type."""


def apply_scale(data: RelayExpr, scale: ChannelScale, merge: ConstantProduct) -> RelayExpr | None:
    """Multiply data by a scale that broadcasts to it; constants are folded.

    None where a folded constant would leave the range of its dtype.
    """
    if isinstance(data, Constant) and scale.value is not None:
        product = merge(data.data, scale.value.astype(data.data.dtype))
        return None if product is None else Constant(np.ascontiguousarray(product), span=data.span)
    return op.multiply(data, scale.expr)


def constant_value(expr: RelayExpr) -> Array | None:
    """Return the value of a constant or of a reshaped constant, or None."""
    shapes: list[Call] = []
    while (
        isinstance(expr, Call) and (row := op_definition_of(expr)) is not None and row.reshape_only
    ):
        shapes.append(expr)
        expr = expr.args[0]
    if not isinstance(expr, Constant):
        return None
    value = np.asarray(expr.data)
    for call in reversed(shapes):
        kind = call.checked_type
        assert isinstance(kind, TensorType)
        sizes = [d.value for d in kind.shape if isinstance(d, IntImm)]
        if len(sizes) != len(kind.shape):
            return None
        value = value.reshape(sizes)
    return value


def match_channel_scale(
    factor: RelayExpr, like: TensorType, axes: AxisIndices
) -> ChannelScale | None:
    """Return the per-channel scale that a factor of a tensor represents along its axes, or None.

    Returns:
        None where it varies along others, too, or is neither a constant nor a name.
    """
    value, kind = constant_value(factor), factor.checked_type
    if value is None and not isinstance(factor, Var):
        return None
    assert isinstance(kind, TensorType)
    sizes = [like.shape[axis] for axis in axes]
    if value is not None and value.size == 1:
        # A single number is written out for each channel, whose count must be known.
        if any(not isinstance(size, IntImm) for size in sizes):
            return None
        filled = np.full([int(size) for size in sizes], value.reshape(()), value.dtype)  # type: ignore[call-overload]
        return ChannelScale(infer_new_types(Constant(filled)), filled)
    base = len(like.shape) - len(kind.shape)
    if base > axes[0] or base < 0:
        return None
    other_axes = [i for i in range(len(kind.shape)) if i + base not in axes]
    is_fit = all(prove_equal(kind.shape[axis - base], like.shape[axis]) for axis in axes)
    if not is_fit or any(not _is_unit_extent(kind.shape[i]) for i in other_axes):
        return None
    squeezed = infer_new_types(op.squeeze(factor, other_axes)) if other_axes else factor
    return ChannelScale(squeezed, None if value is None else value.squeeze(tuple(other_axes)))


def _is_unit_extent(size: object) -> bool:
    return isinstance(size, IntImm) and size.value == 1


@dataclass(frozen=True, slots=True)
class ChannelAxes:
    """Channel axes of a product: in its data, in its result, and of both in its weight."""

    read: AxisIndices
    weight_input_axes: AxisIndices
    output_axes: AxisIndices
    weight_output_axes: AxisIndices
    groups: int = 1
    """Number of channel groups of the convolution."""

    def input_scale_along_weight(self, weight: RelayExpr, scale: ChannelScale) -> ChannelScale:
        """Return an input-channel scale reshaped along the weight."""
        if self.groups == 1:
            return scale.reshape_along(weight, self.weight_input_axes)
        kind = weight.checked_type
        assert isinstance(kind, TensorType)
        sizes = [d.value for d in kind.shape if isinstance(d, IntImm)]
        (i,), (o,) = self.weight_input_axes, self.weight_output_axes
        group_shape = (self.groups, 1, sizes[i])
        # Each output channel reads the inputs of its own group only.
        repeated = op.repeat(op.reshape(scale.expr, group_shape), sizes[o] // self.groups, 1)
        shape = [size if n in (i, o) else 1 for n, size in enumerate(sizes)]
        value = scale.value
        if value is not None:
            value = value.reshape(group_shape).repeat(sizes[o] // self.groups, 1).reshape(shape)
        return ChannelScale(infer_new_types(op.reshape(repeated, shape)), value)


def channel_axes_of(call: RelayExpr) -> ChannelAxes | None:
    """Return the channel axes of a float convolution or dense layer, or None."""
    row = op_definition_of(call)
    if row is None or row.channels is None or not isinstance(call, Call):
        return None
    kind, weight = call.checked_type, call.args[1].checked_type
    assert isinstance(kind, TensorType) and isinstance(weight, TensorType)
    # An integer weight cannot hold its product with a scale.
    if not is_float(kind.dtype) or kind.dtype != weight.dtype:
        return None
    layout, kernel = (getattr(call.attrs, n, None) for n in ("data_layout", "kernel_layout"))
    if layout is None or kernel is None:
        last = len(kind.shape) - 1
        plain = not getattr(call.attrs, "transpose_a", False)
        is_dense = plain and row.channels == (-1, 0) and getattr(call.attrs, "transpose_b", True)
        return ChannelAxes((last,), (1,), (last,), (0,)) if is_dense else None
    out = getattr(call.attrs, "out_layout", "") or layout
    read, written = _axes_of_letter(layout, "C"), _axes_of_letter(out, "C")
    o, i = _axes_of_letter(kernel, "O"), _axes_of_letter(kernel, "I")
    if len(_axis_letters(kernel)) != len(weight.shape) or not (len(o) == len(written) == len(read)):
        return None
    if row.channels[1] != 0 or len(i) != len(read):  # the weight of a transposed convolution
        return None
    groups = int(getattr(call.attrs, "groups", 1))
    if groups == 1:
        return ChannelAxes(read, i, written, o)
    # In a depthwise weight the input channels run along O.
    if _is_depthwise(call, read, written):
        return ChannelAxes(read, o, written, o)
    is_plain = o < i and len(o) == 1 and all(isinstance(d, IntImm) for d in weight.shape)
    return ChannelAxes(read, i, written, o, groups) if is_plain else None


def _axis_letters(layout: str) -> list[str]:
    return [letter for letter in layout if letter.isalpha()]


def _axes_of_letter(layout: str, name: str) -> AxisIndices:
    return tuple(n for n, letter in enumerate(_axis_letters(layout)) if letter.upper() == name)


def _is_depthwise(call: Call, read: AxisIndices, written: AxisIndices) -> bool:
    """Return whether each input channel forms a group with one output channel."""
    data, kind = call.args[0].checked_type, call.checked_type
    assert isinstance(data, TensorType) and isinstance(kind, TensorType)
    sizes = [[t.shape[a] for a in axes] for t, axes in ((data, read), (kind, written))]
    numbers = [[d.value for d in dims if isinstance(d, IntImm)] for dims in sizes]
    is_known = all(len(n) == len(s) for n, s in zip(numbers, sizes, strict=True))
    groups = int(getattr(call.attrs, "groups", 1))
    return is_known and all(int(np.prod(n)) == groups for n in numbers)


def data_argument_indices(call: RelayExpr, axes: AxisIndices) -> list[int]:
    """Return the arguments of a sum or product with the result's shape whose other operand varies
    only along `axes`.
    """
    row = op_definition_of(call)
    if row is None or row.linear is LinearForm.NO or not isinstance(call, Call):
        return []
    kind = call.checked_type
    assert isinstance(kind, TensorType)
    same_shaped = [
        i
        for i, arg in enumerate(call.args[:2])
        if isinstance(arg.checked_type, TensorType) and is_same_shape(kind, arg.checked_type)
    ]
    if not is_float(kind.dtype) or len(same_shaped) == 2 or not same_shaped:
        return same_shaped if is_float(kind.dtype) else []
    if same_shaped == [1] and not row.commutes:
        return []
    return same_shaped if varies_along(call, same_shaped[0], axes) else []


def varies_along(call: Call, at: int, axes: AxisIndices) -> bool:
    """Return whether the operand other than argument `at` varies only along `axes` of the
    result.
    """
    kind, addend_type = call.checked_type, call.args[1 - at].checked_type
    assert isinstance(kind, TensorType) and isinstance(addend_type, TensorType)
    if (bias_axis := getattr(call.attrs, "axis", None)) is not None:  # a bias along an axis
        return axes == (int(bias_axis) % len(kind.shape),)
    base = len(kind.shape) - len(addend_type.shape)
    return all(
        axis >= base and prove_equal(addend_type.shape[axis - base], kind.shape[axis])
        for axis in axes
    ) and all(_is_unit_extent(d) for i, d in enumerate(addend_type.shape) if i + base not in axes)


def scale_for_addend(call: Call, at: int, scale: ChannelScale, axes: AxisIndices) -> ChannelScale:
    """Return a data scale reshaped for the operand other than argument `at`."""
    if getattr(call.attrs, "axis", None) is not None:
        return scale
    return scale.reshape_along(call, axes)


def are_all_equal(candidates: Sequence[AxisIndices]) -> bool:
    """Return whether all candidates are equal."""
    return len(set(candidates)) == 1
