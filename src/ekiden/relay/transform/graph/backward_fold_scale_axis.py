"""Backward folding of scales: multiplications after convolutions and dense layers move into their
weights.

    multiply(nn.conv2d(%x, %w), %s)                 ->  nn.conv2d(%x, %w * %s)
    multiply(nn.relu(nn.conv2d(%x, %w)), s)         ->  nn.relu(nn.conv2d(%x, %w * s))     s > 0
    multiply(add(nn.conv2d(%x, %w), %b), %s)        ->  add(nn.conv2d(%x, %w * %s), %b * %s)

A scale has a value per output channel, or is one constant; it may be a constant or a name. Only
floating point, in any layout, and only where nothing else reads what is between. Products of
constants are computed at once; others become part of the program.

The mirror of ForwardFoldScaleAxis: each expression reports which scales it accepts (operands
first), then each multiplication passes its factor down to it (users first), and a third walk writes
the new weights. Of a sum both sides take the factor; where they are convolutions both, both weights
do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import LinearForm
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Call
from ekiden.relay.transform.graph.channel_scales import (
    AxisIndices,
    ChannelScale,
    apply_scale,
    are_all_equal,
    channel_axes_of,
    data_argument_indices,
    match_channel_scale,
    scale_for_addend,
)
from ekiden.relay.transform.graph.constant_arithmetic import fold_product, scale_weights
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
    """Scale that an expression can absorb: its axes, its required sign, and the arguments it passes
    it to.
    """

    axes: AxisIndices
    positive: bool
    arg_indices: tuple[int, ...]


class _BackwardScaleFolder:
    """Folder of one graph: forward to find expressions that absorb a scale, backward to propagate
    scales, forward to rewrite.
    """

    def __init__(self, root: RelayExpr) -> None:
        self.root, self.order = root, evaluation_order(root)
        read = [o for e in self.order for o in (*operands(e), *bodies(e))]
        self.uses = Counter([*map(id, read), id(root)])
        self.accepted_scales: dict[RelayExpr, _FoldableScale] = {}
        self.pending_scales: dict[RelayExpr, ChannelScale] = {}
        self.removed_multiplications: dict[RelayExpr, int] = {}
        """Index of the data argument that replaces each removed multiplication."""
        self.blocked_scales: dict[RelayExpr, ChannelScale] = {}
        """Scales that reached an expression which cannot absorb them, and are reapplied there."""

    def run(self) -> RelayExpr:
        """Return the graph with scales folded into weights."""
        for expr in self.order:
            if (accepted := self._find_foldable_scale(expr)) is not None:
                self.accepted_scales[expr] = accepted
        # Users precede operands here, so a scale has reached an expression before it is passed
        # further down.
        for expr in reversed(self.order):
            self._propagate_scale(expr)
        new: dict[RelayExpr, RelayExpr] = {}
        for expr in self.order:
            new[expr] = self._fold_expr(expr, new)
        return new[self.root]

    def _foldable_scale(self, arg: RelayExpr) -> _FoldableScale | None:
        """Return the scale that an argument with a single user can absorb, or None."""
        # A second user would see the scaled value.
        return self.accepted_scales.get(arg) if self.uses[id(arg)] == 1 else None

    def _find_foldable_scale(self, expr: RelayExpr) -> _FoldableScale | None:
        if (channels := channel_axes_of(expr)) is not None:
            return _FoldableScale(channels.output_axes, False, ())
        row = op_definition_of(expr)
        if row is None or not isinstance(expr, Call):
            return None
        if row.homogeneous:
            below = self._foldable_scale(expr.args[0])
            # f(s * x) = s * f(x) holds for relu and maxima only if s is positive.
            return None if below is None else _FoldableScale(below.axes, True, (0,))
        # Only linear operators commute with a scale: s * (x + b) = s * x + s * b.
        if row.linear not in (LinearForm.SHIFTS, LinearForm.SHIFTS_BACK):
            return None
        by_index = {
            i: t for i, arg in enumerate(expr.args) if (t := self._foldable_scale(arg)) is not None
        }
        axes = [t.axes for t in by_index.values()]
        if not by_index or not are_all_equal(axes):
            return None
        # Each side that has the shape of the sum must take the factor.
        data_indices = data_argument_indices(expr, axes[0])
        if not data_indices or any(i not in by_index for i in data_indices):
            return None
        return _FoldableScale(
            axes[0], any(by_index[i].positive for i in data_indices), tuple(data_indices)
        )

    def _propagate_scale(self, expr: RelayExpr) -> None:
        row, factor = op_definition_of(expr), self.pending_scales.get(expr)
        if not isinstance(expr, Call) or row is None:
            return
        if factor is not None and self._scale_operands(expr, expr.args, factor) is None:
            # The product would leave the range of the dtype: the factor stays a multiplication
            # here.
            self.blocked_scales[expr] = self.pending_scales.pop(expr)
        elif factor is not None:
            for position in self.accepted_scales[expr].arg_indices:
                self.pending_scales[expr.args[position]] = factor
        elif row.linear is LinearForm.SCALES:
            self._remove_multiplication(expr)

    def _remove_multiplication(self, call: Call) -> None:
        kind = call.checked_type
        assert isinstance(kind, TensorType)
        # Either side of the product may be the data.
        for position in (0, 1):
            accepted = self._foldable_scale(call.args[position])
            if accepted is None or position not in data_argument_indices(call, accepted.axes):
                continue
            scale = match_channel_scale(call.args[1 - position], kind, accepted.axes)
            if scale is not None and (scale.is_positive or not accepted.positive):
                self.removed_multiplications[call], self.pending_scales[call.args[position]] = (
                    position,
                    scale,
                )
                return

    def _fold_expr(self, expr: RelayExpr, new: dict[RelayExpr, RelayExpr]) -> RelayExpr:
        if expr in self.removed_multiplications:
            assert isinstance(expr, Call)
            return new[expr.args[self.removed_multiplications[expr]]]
        rebuilt, factor = replace_children(expr, new), self.pending_scales.get(expr)
        if expr in self.blocked_scales:
            return op.multiply(
                rebuilt,
                self.blocked_scales[expr].reshape_along(expr, self.accepted_scales[expr].axes).expr,
            )
        if factor is None:
            return rebuilt
        assert isinstance(expr, Call) and isinstance(rebuilt, Call)
        args = self._scale_operands(expr, rebuilt.args, factor)
        assert args is not None, "what cannot take its factor is stopped"
        return rebuilt.with_fields(args=args)

    def _scale_operands(
        self, expr: Call, args: Sequence[RelayExpr], factor: ChannelScale
    ) -> tuple[RelayExpr, ...] | None:
        """Return the arguments with the weight or addend scaled, or None where a constant would
        leave its dtype's range.
        """
        if (channels := channel_axes_of(expr)) is not None:
            near = factor.reshape_along(expr.args[1], channels.weight_output_axes)
            weight = apply_scale(args[1], near, scale_weights)
            return None if weight is None else (args[0], weight)
        accepted = self.accepted_scales[expr]
        # Both operands of the sum take the factor, so no addend is left to scale.
        if len(accepted.arg_indices) == len(expr.args):
            return tuple(args)
        (position,) = accepted.arg_indices
        scaled_addend = apply_scale(
            args[1 - position],
            scale_for_addend(expr, position, factor, accepted.axes),
            fold_product,
        )
        if scaled_addend is None:
            return None
        return (scaled_addend, args[position]) if position else (args[position], scaled_addend)


@module_pass(name="BackwardFoldScaleAxis", opt_level=3, required=(InferType(),))
def _backward_fold_scale_axis(module: IRModule, context: PassContext) -> IRModule:
    if not is_rewrite_allowed("scale weights", context):
        return module
    return map_functions(module, lift_body_rewrite(lambda body: _BackwardScaleFolder(body).run()))


def BackwardFoldScaleAxis() -> Pass:  # noqa: N802
    """Return a pass that folds scales backward into weights (TVM's BackwardFoldScaleAxis)."""
    return _backward_fold_scale_axis
