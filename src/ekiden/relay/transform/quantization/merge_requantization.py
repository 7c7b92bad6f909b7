"""Merge the dequantising and requantising scales of integer sums into one factor.

    round(divide(add(multiply(cast(%sums), s), b), y))
->  round(add(multiply(cast(%sums), s / y), b / y))

    cast(clip(add(round(%x), z), 0, 255), uint8)
->  cast(add(cast(round(clip(%x, -z, 255 - z)), int32), z), uint8)

A product of bytes between DequantizeLinear and QuantizeLinear is scaled, gets its bias, and is
divided by the scale of the result: a division takes as long as ten multiplications, and where few
channels are summed the whole kernel waited for it. Engines that have such a product as one operator
scale once. Of a sum each term is scaled, so that a residual is scaled once, too.

Only what is rounded to a level next, as results differ by a rounding: of sums that end between two
levels either may come. A division of anything else stays: inputs that are written in decimals (0.15
/ 0.1) do end there.

The second gives the same levels, as bounds that are whole numbers may be taken before rounding: so
processors round and convert by one instruction, and zero points are added to integers. What is no
number becomes a byte either way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from ekiden.ir.dtype import int_range, is_float
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Array, LinearForm
from ekiden.ir.transform import Pass, PassContext
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant, const
from ekiden.relay.op.elementwise import ClipAttrs
from ekiden.relay.transform.graph.call_rewrites import infer_new_types
from ekiden.relay.transform.graph.constant_arithmetic import fold_product, fold_quotient
from ekiden.relay.transform.graph.float_rewrites import is_rewrite_allowed
from ekiden.relay.transform.graph.fold_scale_axis import op_definition_of, op_name_of
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import (
    evaluation_order,
    lift_body_rewrite,
    map_functions,
    operands,
    replace_children,
)

INT8_DTYPES = ("int8", "uint8")
ConstantMerge = Callable[[Array, Array], Array | None]
"""fold_product or fold_quotient, as a function type."""


class _RequantizationMerger:
    """Rewriter of the round operators of one graph."""

    def __init__(self, root: RelayExpr) -> None:
        self.order = evaluation_order(root)
        self.uses = Counter(id(o) for e in self.order for o in operands(e))
        self.absorbing_exprs: set[int] = set()
        """Ids of sums whose terms are all scaled by constants, which absorb a common factor."""
        for expr in self.order:
            if self._absorbs_factor(expr):
                self.absorbing_exprs.add(id(expr))
        self.rewritten: dict[RelayExpr, RelayExpr] = {}

    def run(self, root: RelayExpr) -> RelayExpr:
        """Return the graph with merged factors."""
        for expr in self.order:
            name = op_name_of(expr)
            changed = self._merge_into_terms(expr) if name == "round" else None
            # In evaluation order, so that operands have been rewritten before.
            changed = self._rewrite_cast_to_int8(expr) if name == "cast" else changed
            self.rewritten[expr] = changed or replace_children(expr, self.rewritten)
        return self.rewritten[root]

    def _absorbs_factor(self, expr: RelayExpr) -> bool:
        """Return whether the constants of an expression can absorb a factor, given that its
        operands can.
        """
        if isinstance(expr, Constant):
            return is_float(str(expr.data.dtype))
        row, kind = op_definition_of(expr), expr.checked_type_or_none()
        if row is None or not isinstance(kind, TensorType) or not is_float(kind.dtype):
            return False
        assert isinstance(expr, Call)
        if row.linear is LinearForm.SCALES:
            return any(isinstance(arg, Constant) for arg in expr.args)
        is_sum = row.linear in (LinearForm.SHIFTS, LinearForm.SHIFTS_BACK)
        is_unary = len(expr.args) == 1 and (row.homogeneous or row.reshape_only)
        return (is_sum or is_unary) and all(map(self._is_single_use_absorbing, expr.args))

    def _is_single_use_absorbing(self, expr: RelayExpr) -> bool:
        """Return whether an expression can absorb a factor and has a single use."""
        return id(expr) in self.absorbing_exprs and (
            isinstance(expr, Constant) or self.uses[id(expr)] == 1
        )

    def _rewrite_cast_to_int8(self, expr: RelayExpr) -> RelayExpr | None:
        """Rewrite a conversion of rounded and clipped floats to 8 bits so that the zero point is
        added in int32, or return None.
        """
        assert isinstance(expr, Call)
        kind, (clipped,) = expr.checked_type, expr.args
        bounds = clipped.attrs if isinstance(clipped, Call) else None
        if not isinstance(kind, TensorType) or kind.dtype not in INT8_DTYPES:
            return None
        if not isinstance(bounds, ClipAttrs) or self.uses[id(clipped)] != 1:
            return None
        assert isinstance(clipped, Call)
        rounding, point = self._match_rounding(clipped.args[0])
        if rounding is None:
            return None
        # The bounds apply before the zero point is added.
        low, high = bounds.a_min - point, bounds.a_max - point
        dtype_min, dtype_max = int_range(kind.dtype) or (0, 0)
        # With whole bounds clipping before the rounding gives the same result as after it.
        is_whole = all(float(end).is_integer() for end in (bounds.a_min, bounds.a_max, point))
        if not is_whole or not dtype_min <= bounds.a_min <= bounds.a_max <= dtype_max:
            return None
        inside = op.clip(operands(self.rewritten[rounding])[0], low, high)
        levels: RelayExpr = op.cast(op.round(inside).with_fields(span=rounding.span), "int32")
        if point:
            levels = op.add(levels, const(np.int32(point)))
        return infer_new_types(op.cast(levels, kind.dtype).with_fields(span=expr.span))

    def _match_rounding(self, expr: RelayExpr) -> tuple[Call | None, float]:
        """Match a single-use float32 round plus a constant zero point; return (None, 0)
        otherwise.
        """
        point = 0.0
        row = op_definition_of(expr)
        if row is not None and row.linear is LinearForm.SHIFTS and self.uses[id(expr)] == 1:
            assert isinstance(expr, Call)
            expr, shift = expr.args
            # A zero point per channel does not fit one pair of bounds.
            if not isinstance(shift, Constant) or shift.data.size != 1:
                return None, 0.0
            point = float(shift.data.reshape(()))
        kind = expr.checked_type_or_none()
        is_float32 = isinstance(kind, TensorType) and kind.dtype == "float32"
        is_own = op_name_of(expr) == "round" and is_float32 and self.uses[id(expr)] == 1
        return (expr, point) if is_own and isinstance(expr, Call) else (None, 0.0)

    def _merge_into_terms(self, rounding: RelayExpr) -> RelayExpr | None:
        """Merge the factor under a round into the constants of its terms, or return None."""
        assert isinstance(rounding, Call)
        (levels,) = rounding.args
        row = op_definition_of(levels)
        if row is None or self.uses[id(levels)] != 1:
            return None
        assert isinstance(levels, Call)
        is_quotient = op_name_of(levels) == "divide"
        if not is_quotient and row.linear is not LinearForm.SCALES:
            return None
        data, factor = levels.args
        if (
            not isinstance(factor, Constant)
            or factor.data.size != 1
            or not self._is_single_use_absorbing(data)
        ):
            return None
        value = factor.data.reshape(())
        # A negative factor would turn minima and maxima around.
        if isinstance(data, Constant) or not value > 0:
            return None
        terms = self._scale_terms(data, value, fold_quotient if is_quotient else fold_product)
        return None if terms is None else infer_new_types(rounding.with_fields(args=(terms,)))

    def _scale_terms(
        self, root: RelayExpr, factor: Array, merge: ConstantMerge
    ) -> RelayExpr | None:
        """Return the terms with scaled constants; None where one leaves its range."""
        scaled: dict[RelayExpr, RelayExpr] = {}
        for expr in self._collect_terms(root):
            row = op_definition_of(expr)
            if row is None or row.linear is LinearForm.SCALES:
                made = self._scale_constant(expr, factor, merge)
                if made is None:
                    return None
                scaled[expr] = made
            else:
                scaled[expr] = infer_new_types(replace_children(expr, scaled))
        return scaled[root]

    def _collect_terms(self, root: RelayExpr) -> list[RelayExpr]:
        """Return the expressions that a factor of `root` reaches, in post-order."""
        order: list[RelayExpr] = []
        stack = [root]
        while stack:
            expr = stack.pop()
            order.append(expr)
            row = op_definition_of(expr)
            if row is not None and row.linear is not LinearForm.SCALES:
                stack.extend(operands(expr))
        return order[::-1]

    def _scale_constant(
        self, expr: RelayExpr, factor: Array, merge: ConstantMerge
    ) -> RelayExpr | None:
        """Return a scaled constant, or a product with its constant scaled; None where it leaves its
        range.
        """
        if isinstance(expr, Constant):
            value = merge(expr.data, factor.astype(expr.data.dtype))
            return (
                None
                if value is None
                else infer_new_types(Constant(np.asarray(value), span=expr.span))
            )
        assert isinstance(expr, Call)
        which = next(n for n, arg in enumerate(expr.args) if isinstance(arg, Constant))
        changed = self._scale_constant(expr.args[which], factor, merge)
        if changed is None:
            return None
        # Only the constant changes; the other operand is the rewritten one.
        args = [self.rewritten[arg] for arg in expr.args]
        args[which] = changed
        return infer_new_types(expr.with_fields(args=tuple(args)))


def MergeRequantization() -> Pass:  # noqa: N802
    """Return a pass that merges dequantisation and requantisation scales."""

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Merge requantisations in each function, if the context allows the rewrite."""
        if not is_rewrite_allowed("requantise by one factor", context):
            return module
        return map_functions(
            module, lift_body_rewrite(lambda body: _RequantizationMerger(body).run(body))
        )

    return Pass("MergeRequantization", transform, 1, (InferType(),))


__all__ = ["MergeRequantization"]
