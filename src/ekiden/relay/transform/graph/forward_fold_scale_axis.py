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
from ekiden.ir.op import Linear
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant
from ekiden.relay.transform.graph.float_rewrites import allows
from ekiden.relay.transform.graph.fold_scale_axis import row_of
from ekiden.relay.transform.graph.merged_constants import merged_quotient, scaled_terms
from ekiden.relay.transform.graph.scaled_axes import (
    Axes,
    Scale,
    channels_of,
    data_arguments,
    scale_of,
    scale_of_addend,
    times,
)
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scopes import (
    bodies,
    evaluation_order,
    map_functions,
    on_body,
    operands,
    with_children,
)
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class _AcceptedScale:
    """Scale that all users of a value can absorb: its axes, and whether it must be positive or
    non-zero.
    """

    axes: Axes
    positive: bool = False
    divides: bool = False


class _Folder:
    """Folder of one graph: backward to find the scales that users absorb, forward to rewrite."""

    def __init__(self, root: RelayExpr) -> None:
        self.root, self.order = root, evaluation_order(root)
        self.wanted: dict[RelayExpr, _AcceptedScale] = {}
        self.new: dict[RelayExpr, RelayExpr] = {}
        self.scales: dict[RelayExpr, Scale] = {}
        """Of an expression whose new form lacks a factor: that, along the axes wanted."""

    def run(self) -> RelayExpr:
        """Return the graph with scales folded into weights."""
        self._ask()
        for expr in self.order:
            self.new[expr] = self._folded(expr)
        return self.new[self.root]

    def _ask(self) -> None:
        # The root is read from outside, where nothing can take a scale.
        answers_of: dict[RelayExpr, list[_AcceptedScale | None]] = {self.root: [None]}
        for expr in reversed(self.order):
            answers = answers_of.get(expr, [])
            first = answers[0] if answers else None
            # One reader that takes no scale would see data that lacks it.
            if first is not None and all(a is not None and a.axes == first.axes for a in answers):
                self.wanted[expr] = _AcceptedScale(
                    first.axes,
                    any(a.positive for a in answers if a),
                    any(a.divides for a in answers if a),
                )
            for body in bodies(expr):
                answers_of.setdefault(body, []).append(None)
            for i, operand in enumerate(operands(expr)):
                answers_of.setdefault(operand, []).append(self._accepted_for(expr, i))

    def _accepted_for(self, expr: RelayExpr, at: int) -> _AcceptedScale | None:
        """Return the scale that an expression can absorb from operand `at`, or None."""
        channels, row = channels_of(expr), row_of(expr)
        if channels is not None:
            return _AcceptedScale(channels.read) if at == 0 else None
        accepted = self.wanted.get(expr)
        if accepted is None or row is None:
            return None
        # relu(s * x) = s * relu(x) only for s > 0.
        if row.homogeneous:
            return replace(accepted, positive=True)
        # s * x + b = s * (x + b / s): the addend is divided by the scale, which must not be 0.
        is_sum = row.linear in (Linear.SHIFTS, Linear.SHIFTS_BACK)
        is_data = is_sum and data_arguments(expr, accepted.axes) == [at]
        # (s * x + b) = s * (x + b / s), which needs a scale without zeros.
        return replace(accepted, divides=True) if is_data else None

    def _folded(self, expr: RelayExpr) -> RelayExpr:
        row = row_of(expr)
        if row is None or not isinstance(expr, Call):
            return with_children(expr, self.new)
        accepted = self.wanted.get(expr)
        if accepted is not None and row.linear is Linear.SCALES:
            return self._take_scale(expr, accepted) or with_children(expr, self.new)
        scaled = [arg for arg in expr.args if arg in self.scales]
        if not scaled:
            return with_children(expr, self.new)
        scale = self.scales[scaled[0]]
        if (channels := channels_of(expr)) is not None:
            near = channels.scaled_as_read(expr.args[1], scale)
            weight = times(self.new[expr.args[1]], near, scaled_terms)
            # The weight would leave its range, so the data gets its scale back.
            if weight is None:
                data = self._put_back(expr.args[0], scale, channels.read)
                return expr.with_fields(args=(data, self.new[expr.args[1]]))
            return expr.with_fields(args=(self.new[expr.args[0]], weight))
        if row.homogeneous:
            self.scales[expr] = scale
            return with_children(expr, self.new)
        assert accepted is not None
        return self._shifted(expr, expr.args.index(scaled[0]), scale, accepted)

    def _take_scale(self, call: Call, accepted: _AcceptedScale) -> RelayExpr | None:
        """Fold a multiplication away: return its data operand, and record the scale; None where
        that is not allowed.
        """
        kind = call.checked_type
        assert isinstance(kind, TensorType)
        for at in data_arguments(call, accepted.axes):
            scale = scale_of(call.args[1 - at], kind, accepted.axes)
            # Data that already lacks a scale cannot lack a second one.
            is_fit = scale is not None and call.args[at] not in self.scales and (
                (scale.is_positive or not accepted.positive)
                and (scale.is_divisor or not accepted.divides)
            )  # fmt: skip
            if scale is not None and is_fit:
                self.scales[call] = scale
                return self.new[call.args[at]]
        return None

    def _put_back(self, data: RelayExpr, scale: Scale, axes: Axes) -> RelayExpr:
        """Multiply data by the scale that was folded out of it."""
        return op.multiply(self.new[data], scale.along(data, axes).expr)

    def _shifted(self, call: Call, at: int, scale: Scale, accepted: _AcceptedScale) -> RelayExpr:
        """Fold a scale through a sum, by dividing the addend by it.

        Where the quotient is no number of full precision the scale stays before the sum.
        """
        data, addend = self.new[call.args[at]], self.new[call.args[1 - at]]
        near = scale_of_addend(call, at, scale, accepted.axes)
        if isinstance(addend, Constant) and near.value is not None:
            divided = merged_quotient(addend.data, near.value)
            if divided is None:
                data = self._put_back(call.args[at], scale, accepted.axes)
                return call.with_fields(args=_pair(at, data, addend))
            addend = Constant(divided.astype(addend.data.dtype))
        else:
            addend = op.divide(addend, near.expr)
        self.scales[call] = scale
        return call.with_fields(args=_pair(at, data, addend))


def _pair(at: int, data: RelayExpr, addend: RelayExpr) -> Sequence[RelayExpr]:
    return (data, addend) if at == 0 else (addend, data)


@module_pass(name="ForwardFoldScaleAxis", opt_level=3, required=(InferType(),))
def _forward_fold_scale_axis(module: IRModule, context: PassContext) -> IRModule:
    if not allows("scale weights", context):
        return module
    return map_functions(module, on_body(lambda body: _Folder(body).run()))


def ForwardFoldScaleAxis() -> Pass:  # noqa: N802
    """Return a pass that folds scales forward into weights (TVM's ForwardFoldScaleAxis)."""
    return _forward_fold_scale_axis
