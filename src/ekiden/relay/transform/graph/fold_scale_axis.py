"""Fold scales and biases by constants into each other and into weights.

    multiply(nn.conv2d(%x, W), s)       ->  nn.conv2d(%x, W * s)   s: a value per output channel
    multiply(add(%x, b), s)             ->  add(%y, b * s)         y: a %x that s goes into
    multiply(multiply(%x, a), b)        ->  multiply(%x, a * b)
    (%x * a + t) * b + u                ->  %x * (a * b) + (t * b + u)
    add(add(%x, a), b)                  ->  add(%x, a + b)
    subtract(%x, a)                     ->  add(%x, -a)
    nn.bias_add(%x, b, axis)            ->  add(%x, b along axis)

Only for floating point, constants a, b, s, W, where the constant does not widen the result and what
is merged keeps its range and does not cancel (constant_arithmetic.py).

    s * (W x + b) = (s W) x + s b        s per output channel: a row of W

holds for real numbers; of floats each product is rounded otherwise than before, as it is in every
engine that folds batch normalization. Distributing a scale over a sum alone would gain nothing and
round once more, which can move a value to another level where it is quantized behind: so a scale
goes through a sum only where there is a weight below that takes it up. What another node reads too
is not changed, or it would see the scale.

Runs before layouts change, as it knows OIHW weights alone: from there on, weights are packed.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from ekiden.arith import prove_equal
from ekiden.ir.dtype import is_float
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Array, LinearForm, Op, OpDef
from ekiden.ir.transform import Pass, PassContext
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant
from ekiden.relay.transform.graph.constant_arithmetic import (
    fold_affine_factors,
    fold_factors,
    fold_product,
    fold_sum,
    scale_weights,
)
from ekiden.relay.transform.graph.constant_evaluation_cache import lookup_result, store_result
from ekiden.relay.transform.graph.float_rewrites import is_rewrite_allowed
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import (
    evaluation_order,
    lift_body_rewrite,
    map_functions,
    operands,
    replace_children,
)


def op_name_of(expr: RelayExpr) -> str:
    """Return the name of the called operator, or "" for any other expression."""
    return expr.op.name if isinstance(expr, Call) and isinstance(expr.op, Op) else ""


def op_definition_of(expr: RelayExpr) -> OpDef | None:
    """Return the definition of the called operator, or None."""
    return expr.op.definition if isinstance(expr, Call) and isinstance(expr.op, Op) else None


def _linearity(expr: RelayExpr) -> LinearForm:
    row = op_definition_of(expr)
    return LinearForm.NO if row is None else row.linear


def is_same_shape(a: TensorType, b: TensorType) -> bool:
    """Return whether two tensor types are provably of equal shape."""
    return len(a.shape) == len(b.shape) and all(
        prove_equal(x, y) for x, y in zip(a.shape, b.shape, strict=True)
    )


class _ScaleFolder:
    """Bottom-up folder of one graph, with use counts of the rewritten expressions."""

    def __init__(self, root: RelayExpr) -> None:
        self.order = evaluation_order(root)
        counts = Counter(id(o) for e in self.order for o in operands(e))
        self.old_uses = {e: counts[id(e)] for e in self.order}
        self.uses: dict[RelayExpr, int] = {}
        self.rewritten: dict[RelayExpr, RelayExpr] = {}
        self.affine_factors: dict[RelayExpr, Array] = {}
        """Sums that are two affine steps in one -> the magnitudes of their factors."""

    def run(self, root: RelayExpr) -> RelayExpr:
        """Return the graph with scales and biases folded."""
        for expr in self.order:
            rewritten = self._fold_linear_call(expr, replace_children(expr, self.rewritten))
            self.rewritten[expr] = rewritten
            # Counted for the new expression, as rules ask about new operands.
            self.uses[rewritten] = self.old_uses[expr]
        return self.rewritten[root]

    def _fold_linear_call(self, old: RelayExpr, new: RelayExpr) -> RelayExpr:
        row = op_definition_of(new)
        if row is None or row.linear is LinearForm.NO:
            return new
        assert isinstance(new, Call) and isinstance(old, Call)
        kind, lhs = old.checked_type, new.args[0]
        index = 0 if isinstance(new.args[1], Constant) else 1
        if (index == 1 and not row.commutes) or (isinstance(lhs, Constant) and index == 0):
            return new
        constant = new.args[1 - index]
        data_type = old.args[index].checked_type
        if (
            not isinstance(constant, Constant)
            or not isinstance(kind, TensorType)
            or not isinstance(data_type, TensorType)
        ):
            return new
        # Products of integers wrap, and a constant of higher rank would broadcast the data.
        if not is_float(kind.dtype) or not is_same_shape(kind, data_type):
            return new
        folded = self._fold_into(
            row.linear, new.args[index], reshape_to_rank(new, constant.data, len(kind.shape))
        )
        if folded.span is not None or not isinstance(folded, Call):
            return folded
        spanned = folded.with_fields(span=new.span)
        if folded in self.affine_factors:
            self.affine_factors[spanned] = self.affine_factors[folded]
        return spanned

    def _fold_into(self, linear: LinearForm, data: RelayExpr, value: Array) -> RelayExpr:
        if linear is LinearForm.SCALES:
            return self._fold_multiply(data, value)
        return self._fold_add(data, -value if linear is LinearForm.SHIFTS_BACK else value)

    def _count_single_use(self, expr: RelayExpr) -> RelayExpr:
        self.uses[expr] = 1
        return expr

    def _fold_add(self, data: RelayExpr, value: Array) -> RelayExpr:
        if op_name_of(data) == "add" and self.uses.get(data) == 1:
            assert isinstance(data, Call)
            if isinstance(data.args[1], Constant) and data.args[1].data.ndim == value.ndim:
                # A sum that cancels would lose the digits of both biases.
                terms = self.affine_factors.get(data)
                if terms is None:
                    terms = _max_term_magnitude(data.args[0])
                total = fold_sum(data.args[1].data, value, terms)
                if total is not None:
                    return self._fold_add(data.args[0], total)
        return self._count_single_use(op.add(data, Constant(value)))

    def _fold_multiply(self, data: RelayExpr, value: Array) -> RelayExpr:
        return self._absorb_factor(data, value) or self._count_single_use(
            op.multiply(data, Constant(value))
        )

    def _absorb_factor(
        self, data: RelayExpr, value: Array, is_affine: bool = False
    ) -> RelayExpr | None:
        """Return `data` scaled by a constant that one of its own constants absorbs, or None.

        A sum alone cannot: its terms would be rounded once more. `is_affine`: whether `data` is a
        term of a sum that is scaled.
        """
        # Another reader would see the scaled value.
        if not isinstance(data, Call) or self.uses.get(data) != 1:
            return None
        linear, last = _linearity(data), data.args[-1]
        if isinstance(last, Constant) and last.data.ndim == value.ndim:
            if linear is LinearForm.SCALES:
                fold = fold_affine_factors if is_affine else fold_factors
                product = fold(last.data, value)
                return None if product is None else self._fold_multiply(data.args[0], product)
            if linear is LinearForm.SHIFTS:
                shift = fold_product(last.data, value)
                # (x + b) * s = x * s + b * s pays only if something below absorbs s.
                inner = None if shift is None else self._absorb_factor(data.args[0], value, True)
                if inner is None or shift is None:
                    return None
                total = self._count_single_use(op.add(inner, Constant(shift)))
                factor = inner.args[-1] if isinstance(inner, Call) else None
                if op_name_of(inner) == "multiply" and isinstance(factor, Constant):
                    self.affine_factors[total] = np.abs(factor.data)
                return total
        scaled = _scale_weight(data, value)
        return None if scaled is None else self._count_single_use(scaled)


def _max_term_magnitude(expr: RelayExpr) -> Array | None:
    """Return the largest weight magnitude of a convolution or dense layer, a bound on its terms;
    None for other expressions.
    """
    row = op_definition_of(expr)
    if row is None or row.channels is None or not isinstance(expr, Call):
        return None
    weight = expr.args[1]
    return np.abs(weight.data).max(initial=0) if isinstance(weight, Constant) else None


def reshape_to_rank(call: Call, value: Array, rank: int) -> Array:
    """Reshape a constant to the result's rank by leading unit axes; a bias_add bias along
    its axis.
    """
    if op_name_of(call) == "nn.bias_add":
        axis = int(getattr(call.attrs, "axis", 1)) % rank
        return value.reshape([value.size if i == axis else 1 for i in range(rank)])
    return value.reshape([1] * (rank - value.ndim) + list(value.shape))


def _scale_weight(call: Call, value: Array) -> RelayExpr | None:
    """Return the call with its weight scaled per output channel, or None if the constant varies
    along another axis.
    """
    row = op_definition_of(call)
    if row is None or row.channels is None or not isinstance(call.args[1], Constant):
        return None
    layout = getattr(call.attrs, "out_layout", "") or getattr(call.attrs, "data_layout", "NC")
    if [layout[:2], str(getattr(call.attrs, "kernel_layout", "OI"))[:2]] != ["NC", "OI"]:
        return None
    axis, weight_axis = row.channels
    weight = call.args[1].data
    if weight.dtype != value.dtype:  # int8 summed as float32: the weight cannot hold its product
        return None
    axis %= value.ndim
    # A factor that varies within a channel cannot be moved into the weight.
    if any(d != 1 for i, d in enumerate(value.shape) if i != axis):
        return None
    scale = value.reshape([-1 if i == weight_axis else 1 for i in range(weight.ndim)])
    # Large weights are scaled once for several compilations.
    scaled = lookup_result(scale_weights, (weight, scale))
    if scaled is None:
        terms = scale_weights(weight, scale)
        if terms is None:
            return None
        scaled = store_result(scale_weights, (weight, scale), np.ascontiguousarray(terms))
    assert isinstance(scaled, np.ndarray)
    new_weight = Constant(scaled, span=call.args[1].span)
    return call.with_fields(args=(call.args[0], new_weight))


def _fold_scale_axis(module: IRModule, context: PassContext) -> IRModule:
    if not is_rewrite_allowed("scale weights", context):
        return module
    return map_functions(module, lift_body_rewrite(lambda body: _ScaleFolder(body).run(body)))


def FoldScaleAxis() -> Pass:  # noqa: N802
    """Return a pass that folds constant scales and biases (TVM's FoldScaleAxis)."""
    return Pass("FoldScaleAxis", _fold_scale_axis, 3, (InferType(),))
