"""Fold multiplications by constants before convolutions and products into their weights.

    nn.conv2d(multiply(%x, s), W)                   ->  nn.conv2d(%x, s * W)
    nn.conv2d(nn.relu(multiply(%x, s)), W)          ->  nn.conv2d(nn.relu(%x), s * W)      s > 0
    nn.conv2d(add(multiply(%x, s), b), W)           ->  nn.conv2d(add(%x, b / s), s * W)   s != 0

s has a value per input channel, or one. Only for floating point, constants s, b, W, where the
constant does not widen what it scales, and where nothing else reads what is between. Scales behind
convolutions are for FoldScaleAxis (TVM's BackwardFoldScaleAxis).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from ekiden.ir.dtype import is_float
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Array, Linear, OpDef
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant
from ekiden.relay.transform.fold_scale_axis import full_rank, row_of, same_shape
from ekiden.relay.transform.infer_type import InferType
from ekiden.relay.transform.scopes import (
    evaluation_order,
    map_functions,
    on_body,
    operands,
    with_children,
)


@dataclass(frozen=True, slots=True)
class _Step:
    """A call on the way from a scale to a product: what it does to `data`, by which constant (of
    the rank of the data), None where it is homogeneous."""

    call: Call
    linear: Linear
    data: RelayExpr
    value: Array | None


def _step(expr: RelayExpr) -> _Step | None:
    """A call of which a scale of its data could be moved behind it, or is that; None of others."""
    row, kind = row_of(expr), expr.checked_type
    if row is None or not isinstance(expr, Call) or not isinstance(kind, TensorType):
        return None
    if not is_float(kind.dtype):
        return None
    if row.homogeneous:
        return _Step(expr, Linear.NO, expr.args[0], None)
    if row.linear is Linear.NO:
        return None
    at = 1 if row.commutes and isinstance(expr.args[0], Constant) else 0
    data, constant = expr.args[at], expr.args[1 - at]
    given = data.checked_type
    is_plain = isinstance(constant, Constant) and isinstance(given, TensorType)
    if not is_plain or not same_shape(kind, given):  # type: ignore[arg-type]
        return None
    assert isinstance(constant, Constant)
    return _Step(expr, row.linear, data, full_rank(expr, constant.data, len(kind.shape)))


def _passes(step: _Step, scale: Array) -> bool:
    """Whether a scale before a step may stand behind it."""
    if step.value is None:
        return bool(np.all(scale > 0))
    with np.errstate(all="ignore"):
        return bool(np.all(np.isfinite(step.value / scale)))


def _scaled(call: Call, row: OpDef, scale: Array) -> Constant | None:
    """The weight of a product times a scale of its data per channel; None where it varies
    otherwise, or the layouts are others than the operator's own."""
    weight, attrs = call.args[1], call.attrs
    assert isinstance(weight, Constant) and row.channels is not None
    layouts = getattr(attrs, "data_layout", "NC"), getattr(attrs, "kernel_layout", "OI")
    if [str(each)[:2] for each in layouts] != ["NC", "OI"]:
        return None
    axis, groups = row.channels[0] % scale.ndim, int(getattr(attrs, "groups", 1))
    if any(d != 1 for i, d in enumerate(scale.shape) if i != axis):
        return None
    out, per_group, *window = weight.data.shape
    if weight.data.dtype != scale.dtype or scale.size not in (1, groups * per_group):
        return None
    factor = scale.reshape(groups, 1, -1, 1) if scale.size > 1 else scale.reshape(())
    parts = weight.data.reshape(groups, out // groups, per_group, -1)
    made = (parts * factor.astype(weight.data.dtype)).reshape(out, per_group, *window)
    return Constant(np.ascontiguousarray(made), span=weight.span)


class _Folder:
    """Rewrites one graph bottom-up."""

    def __init__(self, root: RelayExpr) -> None:
        self.order = evaluation_order(root)
        self.uses = Counter(id(o) for e in self.order for o in operands(e))
        self.new: dict[RelayExpr, RelayExpr] = {}

    def run(self, root: RelayExpr) -> RelayExpr:
        """The folded graph."""
        for expr in self.order:
            self.new[expr] = self._folded(expr) or with_children(expr, self.new)
        return self.new[root]

    def _way(self, data: RelayExpr) -> tuple[list[_Step], Array] | None:
        """The steps from a scale to `data`, nearest to that first, and the scale behind them."""
        steps: list[_Step] = []
        while self.uses[id(data)] == 1 and (step := _step(data)) is not None:
            if step.linear is Linear.SCALES:
                assert step.value is not None
                is_fit = all(_passes(each, step.value) for each in steps)
                return ([*steps, step], step.value) if is_fit else None
            steps.append(step)
            data = step.data
        return None

    def _folded(self, call: RelayExpr) -> RelayExpr | None:
        row = row_of(call)
        if row is None or row.channels is None or not isinstance(call, Call):
            return None
        if not isinstance(call.args[1], Constant) or (way := self._way(call.args[0])) is None:
            return None
        weight = _scaled(call, row, way[1])
        if weight is None:
            return None
        return call.with_fields(args=(self._unscaled(*way), weight))

    def _unscaled(self, steps: list[_Step], scale: Array) -> RelayExpr:
        """What the steps compute without the scale, which is the last."""
        made = self.new[steps[-1].data]
        for step in reversed(steps[:-1]):
            if step.value is None:
                made = step.call.with_fields(args=(made,))
            else:
                function = op.add if step.linear is Linear.SHIFTS else op.subtract
                made = function(made, Constant((step.value / scale).astype(step.value.dtype)))
        return made


@module_pass(name="ForwardFoldScaleAxis", opt_level=3, required=(InferType(),))
def _forward_fold_scale_axis(module: IRModule, context: PassContext) -> IRModule:
    return map_functions(module, on_body(lambda body: _Folder(body).run(body)))


def ForwardFoldScaleAxis() -> Pass:  # noqa: N802
    """The pass described at the top of this file (TVM's name)."""
    return _forward_fold_scale_axis
