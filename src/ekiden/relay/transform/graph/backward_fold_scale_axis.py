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
from ekiden.ir.op import Linear
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Call
from ekiden.relay.transform.graph.float_rewrites import allows
from ekiden.relay.transform.graph.fold_scale_axis import row_of
from ekiden.relay.transform.graph.merged_constants import merged_product, scaled_terms
from ekiden.relay.transform.graph.scaled_axes import (
    Axes,
    Scale,
    channels_of,
    data_arguments,
    same_axes,
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
    """Scale that an expression can absorb: its axes, its required sign, and the arguments it passes
    it to.
    """

    axes: Axes
    positive: bool
    places: tuple[int, ...]


class _Folder:
    """Folder of one graph: forward to find expressions that absorb a scale, backward to propagate
    scales, forward to rewrite.
    """

    def __init__(self, root: RelayExpr) -> None:
        self.root, self.order = root, evaluation_order(root)
        read = [o for e in self.order for o in (*operands(e), *bodies(e))]
        self.uses = Counter([*map(id, read), id(root)])
        self.taken: dict[RelayExpr, _AcceptedScale] = {}
        self.factors: dict[RelayExpr, Scale] = {}
        self.dropped: dict[RelayExpr, int] = {}
        """A multiplication that is not needed any more -> which argument stands for it."""
        self.stopped: dict[RelayExpr, Scale] = {}
        """What a factor came down to and cannot go into: it is multiplied with there."""

    def run(self) -> RelayExpr:
        """Return the graph with scales folded into weights."""
        for expr in self.order:
            if (accepted := self._accepts(expr)) is not None:
                self.taken[expr] = accepted
        # Users precede operands here, so a scale has reached an expression before it is passed
        # further down.
        for expr in reversed(self.order):
            self._hand_down(expr)
        new: dict[RelayExpr, RelayExpr] = {}
        for expr in self.order:
            new[expr] = self._folded(expr, new)
        return new[self.root]

    def _accepted_by(self, arg: RelayExpr) -> _AcceptedScale | None:
        """Return the scale that an argument with a single user can absorb, or None."""
        # A second user would see the scaled value.
        return self.taken.get(arg) if self.uses[id(arg)] == 1 else None

    def _accepts(self, expr: RelayExpr) -> _AcceptedScale | None:
        if (channels := channels_of(expr)) is not None:
            return _AcceptedScale(channels.written, False, ())
        row = row_of(expr)
        if row is None or not isinstance(expr, Call):
            return None
        if row.homogeneous:
            below = self._accepted_by(expr.args[0])
            # f(s * x) = s * f(x) holds for relu and maxima only if s is positive.
            return None if below is None else _AcceptedScale(below.axes, True, (0,))
        # Only linear operators commute with a scale: s * (x + b) = s * x + s * b.
        if row.linear not in (Linear.SHIFTS, Linear.SHIFTS_BACK):
            return None
        by_index = {
            i: t for i, arg in enumerate(expr.args) if (t := self._accepted_by(arg)) is not None
        }
        axes = [t.axes for t in by_index.values()]
        if not by_index or not same_axes(axes):
            return None
        # Each side that has the shape of the sum must take the factor.
        data_indices = data_arguments(expr, axes[0])
        if not data_indices or any(i not in by_index for i in data_indices):
            return None
        return _AcceptedScale(
            axes[0], any(by_index[i].positive for i in data_indices), tuple(data_indices)
        )

    def _hand_down(self, expr: RelayExpr) -> None:
        row, factor = row_of(expr), self.factors.get(expr)
        if not isinstance(expr, Call) or row is None:
            return
        if factor is not None and self._scaled(expr, expr.args, factor) is None:
            # The product would leave the range of the dtype: the factor stays a multiplication
            # here.
            self.stopped[expr] = self.factors.pop(expr)
        elif factor is not None:
            for at in self.taken[expr].places:
                self.factors[expr.args[at]] = factor
        elif row.linear is Linear.SCALES:
            self._drop(expr)

    def _drop(self, call: Call) -> None:
        kind = call.checked_type
        assert isinstance(kind, TensorType)
        # Either side of the product may be the data.
        for at in (0, 1):
            accepted = self._accepted_by(call.args[at])
            if accepted is None or at not in data_arguments(call, accepted.axes):
                continue
            scale = scale_of(call.args[1 - at], kind, accepted.axes)
            if scale is not None and (scale.is_positive or not accepted.positive):
                self.dropped[call], self.factors[call.args[at]] = at, scale
                return

    def _folded(self, expr: RelayExpr, new: dict[RelayExpr, RelayExpr]) -> RelayExpr:
        if expr in self.dropped:
            assert isinstance(expr, Call)
            return new[expr.args[self.dropped[expr]]]
        rebuilt, factor = with_children(expr, new), self.factors.get(expr)
        if expr in self.stopped:
            return op.multiply(rebuilt, self.stopped[expr].along(expr, self.taken[expr].axes).expr)
        if factor is None:
            return rebuilt
        assert isinstance(expr, Call) and isinstance(rebuilt, Call)
        args = self._scaled(expr, rebuilt.args, factor)
        assert args is not None, "what cannot take its factor is stopped"
        return rebuilt.with_fields(args=args)

    def _scaled(
        self, expr: Call, args: Sequence[RelayExpr], factor: Scale
    ) -> tuple[RelayExpr, ...] | None:
        """Return the arguments with the weight or addend scaled, or None where a constant would
        leave its dtype's range.
        """
        if (channels := channels_of(expr)) is not None:
            near = factor.along(expr.args[1], channels.written_in_weight)
            weight = times(args[1], near, scaled_terms)
            return None if weight is None else (args[0], weight)
        accepted = self.taken[expr]
        # Both operands of the sum take the factor, so no addend is left to scale.
        if len(accepted.places) == len(expr.args):
            return tuple(args)
        (at,) = accepted.places
        scaled_addend = times(
            args[1 - at], scale_of_addend(expr, at, factor, accepted.axes), merged_product
        )
        if scaled_addend is None:
            return None
        return (scaled_addend, args[at]) if at else (args[at], scaled_addend)


@module_pass(name="BackwardFoldScaleAxis", opt_level=3, required=(InferType(),))
def _backward_fold_scale_axis(module: IRModule, context: PassContext) -> IRModule:
    if not allows("scale weights", context):
        return module
    return map_functions(module, on_body(lambda body: _Folder(body).run()))


def BackwardFoldScaleAxis() -> Pass:  # noqa: N802
    """Return a pass that folds scales backward into weights (TVM's BackwardFoldScaleAxis)."""
    return _backward_fold_scale_axis
