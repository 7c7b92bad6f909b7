"""Forward folding of scales: multiplications before convolutions and dense layers move into their
weights.

    nn.conv2d(multiply(%x, %s), %w)                 ->  nn.conv2d(%x, %w * %s)
    nn.conv2d(nn.relu(multiply(%x, s)), %w)         ->  nn.conv2d(nn.relu(%x), %w * s)     s > 0
    nn.conv2d(add(multiply(%x, s), %b), %w)         ->  nn.conv2d(add(%x, %b / s), %w * s) s != 0

A scale has a value per input channel, or is one constant; it may be a constant or a name. Only
floating point, in any layout, and only where all that reads what is between takes the scale.
Products of constants are computed at once; others become part of the program.

    conv(x * s, w) = conv(x, w * s)      s along the channels that are summed over
    relu(x * s) = relu(x) * s            s > 0: what is homogeneous, as are maxima over windows
    x * s + b = (x + b / s) * s          s != 0

Two walks. Users first, each reports which scale it accepts of its operands, and under which
condition; an operand with several users accepts what all of them do. Then operands first: a
multiplication whose readers all take its factor goes, and the factor travels in `scales` until a
weight has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import LinearForm
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant
from ekiden.relay.transform.graph.channel_scales import (
    AxisIndices,
    ChannelScale,
    apply_scale,
    channel_axes_of,
    data_argument_indices,
    match_channel_scale,
    scale_for_addend,
)
from ekiden.relay.transform.graph.constant_arithmetic import fold_quotient, scale_weights
from ekiden.relay.transform.graph.float_rewrites import is_rewrite_allowed
from ekiden.relay.transform.graph.fold_scale_axis import op_definition_of
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import (
    bodies,
    evaluation_order,
    lift_body_rewrite,
    map_functions,
    operands,
    replace_children,
)
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class _FoldableScale:
    """Scale that all users of a value can absorb: its axes, and whether it must be positive or
    non-zero.
    """

    axes: AxisIndices
    positive: bool = False
    divides: bool = False


class _ForwardScaleFolder:
    """Folder of one graph: backward to find the scales that users absorb, forward to rewrite."""

    def __init__(self, root: RelayExpr) -> None:
        self.root, self.order = root, evaluation_order(root)
        self.accepted_scales: dict[RelayExpr, _FoldableScale] = {}
        self.rewritten: dict[RelayExpr, RelayExpr] = {}
        self.folded_scales: dict[RelayExpr, ChannelScale] = {}
        """Scale folded out of each rewritten expression, along the absorbed axes."""

    def run(self) -> RelayExpr:
        """Return the graph with scales folded into weights."""
        self._find_foldable_scales()
        for expr in self.order:
            self.rewritten[expr] = self._fold_expr(expr)
        return self.rewritten[self.root]

    def _find_foldable_scales(self) -> None:
        # The root is read from outside, where nothing can take a scale.
        answers_of: dict[RelayExpr, list[_FoldableScale | None]] = {self.root: [None]}
        for expr in reversed(self.order):
            answers = answers_of.get(expr, [])
            first = answers[0] if answers else None
            # One reader that takes no scale would see data that lacks it.
            if first is not None and all(a is not None and a.axes == first.axes for a in answers):
                self.accepted_scales[expr] = _FoldableScale(
                    first.axes,
                    any(a.positive for a in answers if a),
                    any(a.divides for a in answers if a),
                )
            for body in bodies(expr):
                answers_of.setdefault(body, []).append(None)
            for i, operand in enumerate(operands(expr)):
                answers_of.setdefault(operand, []).append(self._foldable_scale(expr, i))

    def _foldable_scale(self, expr: RelayExpr, at: int) -> _FoldableScale | None:
        """Return the scale that an expression can absorb from operand `at`, or None."""
        channels, row = channel_axes_of(expr), op_definition_of(expr)
        if channels is not None:
            return _FoldableScale(channels.read) if at == 0 else None
        accepted = self.accepted_scales.get(expr)
        if accepted is None or row is None:
            return None
        # relu(s * x) = s * relu(x) only for s > 0.
        if row.homogeneous:
            return replace(accepted, positive=True)
        # s * x + b = s * (x + b / s): the addend is divided by the scale, which must not be 0.
        is_sum = row.linear in (LinearForm.SHIFTS, LinearForm.SHIFTS_BACK)
        is_data = is_sum and data_argument_indices(expr, accepted.axes) == [at]
        # (s * x + b) = s * (x + b / s), which needs a scale without zeros.
        return replace(accepted, divides=True) if is_data else None

    def _fold_expr(self, expr: RelayExpr) -> RelayExpr:
        row = op_definition_of(expr)
        if row is None or not isinstance(expr, Call):
            return replace_children(expr, self.rewritten)
        accepted = self.accepted_scales.get(expr)
        if accepted is not None and row.linear is LinearForm.SCALES:
            return self._fold_multiplication(expr, accepted) or replace_children(
                expr, self.rewritten
            )
        scaled = [arg for arg in expr.args if arg in self.folded_scales]
        if not scaled:
            return replace_children(expr, self.rewritten)
        scale = self.folded_scales[scaled[0]]
        if (channels := channel_axes_of(expr)) is not None:
            near = channels.input_scale_along_weight(expr.args[1], scale)
            weight = apply_scale(self.rewritten[expr.args[1]], near, scale_weights)
            # The weight would leave its range, so the data gets its scale back.
            if weight is None:
                data = self._reapply_scale(expr.args[0], scale, channels.read)
                return expr.with_fields(args=(data, self.rewritten[expr.args[1]]))
            return expr.with_fields(args=(self.rewritten[expr.args[0]], weight))
        if row.homogeneous:
            self.folded_scales[expr] = scale
            return replace_children(expr, self.rewritten)
        assert accepted is not None
        return self._fold_through_sum(expr, expr.args.index(scaled[0]), scale, accepted)

    def _fold_multiplication(self, call: Call, accepted: _FoldableScale) -> RelayExpr | None:
        """Fold a multiplication away: return its data operand, and record the scale; None where
        that is not allowed.
        """
        kind = call.checked_type
        assert isinstance(kind, TensorType)
        for position in data_argument_indices(call, accepted.axes):
            scale = match_channel_scale(call.args[1 - position], kind, accepted.axes)
            # Data that already lacks a scale cannot lack a second one.
            is_fit = scale is not None and call.args[position] not in self.folded_scales and (
                (scale.is_positive or not accepted.positive)
                and (scale.is_divisor or not accepted.divides)
            )  # fmt: skip
            if scale is not None and is_fit:
                self.folded_scales[call] = scale
                return self.rewritten[call.args[position]]
        return None

    def _reapply_scale(self, data: RelayExpr, scale: ChannelScale, axes: AxisIndices) -> RelayExpr:
        """Multiply data by the scale that was folded out of it."""
        return op.multiply(self.rewritten[data], scale.reshape_along(data, axes).expr)

    def _fold_through_sum(
        self, call: Call, at: int, scale: ChannelScale, accepted: _FoldableScale
    ) -> RelayExpr:
        """Fold a scale through a sum, by dividing the addend by it.

        Where the quotient is no number of full precision the scale stays before the sum.
        """
        data, addend = self.rewritten[call.args[at]], self.rewritten[call.args[1 - at]]
        near = scale_for_addend(call, at, scale, accepted.axes)
        if isinstance(addend, Constant) and near.value is not None:
            divided = fold_quotient(addend.data, near.value)
            if divided is None:
                data = self._reapply_scale(call.args[at], scale, accepted.axes)
                return call.with_fields(args=_ordered_args(at, data, addend))
            addend = Constant(divided.astype(addend.data.dtype))
        else:
            addend = op.divide(addend, near.expr)
        self.folded_scales[call] = scale
        return call.with_fields(args=_ordered_args(at, data, addend))


def _ordered_args(at: int, data: RelayExpr, addend: RelayExpr) -> Sequence[RelayExpr]:
    return (data, addend) if at == 0 else (addend, data)


@module_pass(name="ForwardFoldScaleAxis", opt_level=3, required=(InferType(),))
def _forward_fold_scale_axis(module: IRModule, context: PassContext) -> IRModule:
    if not is_rewrite_allowed("scale weights", context):
        return module
    return map_functions(module, lift_body_rewrite(lambda body: _ForwardScaleFolder(body).run()))


def ForwardFoldScaleAxis() -> Pass:  # noqa: N802
    """Return a pass that folds scales forward into weights (TVM's ForwardFoldScaleAxis)."""
    return _forward_fold_scale_axis
