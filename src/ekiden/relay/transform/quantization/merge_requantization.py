"""Requantise sums by one factor: what scales them back to floats and what quantises these again.

    round(divide(add(multiply(cast(%sums), s), b), y))
->  round(add(multiply(cast(%sums), s / y), b / y))

A product of bytes between DequantizeLinear and QuantizeLinear is scaled, gets its bias, and is
divided by the scale of the result: a division takes as long as ten multiplications, and where few
channels are summed the whole kernel waited for it. Engines that have such a product as one operator
scale once. Of a sum each term is scaled, so that a residual is scaled once, too.

Only what is rounded to a level next, as results differ by a rounding: of sums that end between two
levels either may come. A division of anything else stays: inputs that are written in decimals
(0.15 / 0.1) do end there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from ekiden.ir.dtype import is_float
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Array, Linear
from ekiden.ir.transform import Pass, PassContext
from ekiden.ir.type import TensorType
from ekiden.relay.expr import Call, Constant
from ekiden.relay.transform.graph.calls import typed
from ekiden.relay.transform.graph.float_rewrites import allows
from ekiden.relay.transform.graph.fold_scale_axis import op_of, row_of
from ekiden.relay.transform.graph.merged_constants import merged_product, merged_quotient
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scopes import (
    evaluation_order,
    map_functions,
    on_body,
    operands,
    with_children,
)

Merge = Callable[[Array, Array], Array | None]
"""merged_product or merged_quotient."""


class _Terms:
    """Rewrites the roundings of one graph."""

    def __init__(self, root: RelayExpr) -> None:
        self.order = evaluation_order(root)
        self.uses = Counter(id(o) for e in self.order for o in operands(e))
        self.scalable: set[int] = set()
        """Sums of terms that are scaled by constants, by id: a factor of all goes into these."""
        for expr in self.order:
            if self._is_scalable(expr):
                self.scalable.add(id(expr))
        self.new: dict[RelayExpr, RelayExpr] = {}

    def run(self, root: RelayExpr) -> RelayExpr:
        """Return the graph with fewer factors."""
        for expr in self.order:
            merged = self._requantized(expr) if op_of(expr) == "round" else None
            self.new[expr] = merged or with_children(expr, self.new)
        return self.new[root]

    def _is_scalable(self, expr: RelayExpr) -> bool:
        """Return whether a factor of an expression can go into constants of it; its operands have
        been asked."""
        if isinstance(expr, Constant):
            return is_float(str(expr.data.dtype))
        row, kind = row_of(expr), expr.checked_type_or_none()
        if row is None or not isinstance(kind, TensorType) or not is_float(kind.dtype):
            return False
        assert isinstance(expr, Call)
        if row.linear is Linear.SCALES:
            return any(isinstance(arg, Constant) for arg in expr.args)
        is_sum = row.linear in (Linear.SHIFTS, Linear.SHIFTS_BACK)
        is_unary = len(expr.args) == 1 and (row.homogeneous or row.reshape_only)
        return (is_sum or is_unary) and all(map(self._is_own, expr.args))

    def _is_own(self, expr: RelayExpr) -> bool:
        """Return whether an expression is scalable and read once: others were computed twice."""
        return id(expr) in self.scalable and (
            isinstance(expr, Constant) or self.uses[id(expr)] == 1
        )

    def _requantized(self, rounding: RelayExpr) -> RelayExpr | None:
        """Return a rounding of terms that have the factor in their constants; None where there is
        no factor, or where it has no such terms."""
        assert isinstance(rounding, Call)
        (levels,) = rounding.args
        row = row_of(levels)
        if row is None or self.uses[id(levels)] != 1:
            return None
        assert isinstance(levels, Call)
        is_quotient = op_of(levels) == "divide"
        if not is_quotient and row.linear is not Linear.SCALES:
            return None
        data, factor = levels.args
        if not isinstance(factor, Constant) or factor.data.size != 1 or not self._is_own(data):
            return None
        value = factor.data.reshape(())
        if isinstance(data, Constant) or not value > 0:
            return None
        terms = self._scaled(data, value, merged_quotient if is_quotient else merged_product)
        return None if terms is None else typed(rounding.with_fields(args=(terms,)))

    def _scaled(self, root: RelayExpr, factor: Array, merge: Merge) -> RelayExpr | None:
        """Return the terms with the factor in their constants; None where one of those leaves its
        range."""
        scaled: dict[RelayExpr, RelayExpr] = {}
        for expr in self._terms(root):
            row = row_of(expr)
            if row is None or row.linear is Linear.SCALES:
                made = self._with_factor(expr, factor, merge)
                if made is None:
                    return None
                scaled[expr] = made
            else:
                scaled[expr] = typed(with_children(expr, scaled))
        return scaled[root]

    def _terms(self, root: RelayExpr) -> list[RelayExpr]:
        """Return what a factor of `root` changes, operands first."""
        order: list[RelayExpr] = []
        stack = [root]
        while stack:
            expr = stack.pop()
            order.append(expr)
            row = row_of(expr)
            if row is not None and row.linear is not Linear.SCALES:
                stack.extend(operands(expr))
        return order[::-1]

    def _with_factor(self, expr: RelayExpr, factor: Array, merge: Merge) -> RelayExpr | None:
        """Return a constant, or a product with one, scaled; None where it leaves its range."""
        if isinstance(expr, Constant):
            value = merge(expr.data, factor.astype(expr.data.dtype))
            return None if value is None else typed(Constant(np.asarray(value), span=expr.span))
        assert isinstance(expr, Call)
        which = next(n for n, arg in enumerate(expr.args) if isinstance(arg, Constant))
        changed = self._with_factor(expr.args[which], factor, merge)
        if changed is None:
            return None
        args = [self.new[arg] for arg in expr.args]
        args[which] = changed
        return typed(expr.with_fields(args=tuple(args)))


def MergeRequantization() -> Pass:  # noqa: N802
    """Return the pass described at the top of this file."""

    def transform(module: IRModule, context: PassContext) -> IRModule:
        if not allows("requantise by one factor", context):
            return module
        return map_functions(module, on_body(lambda body: _Terms(body).run(body)))

    return Pass("MergeRequantization", transform, 1, (InferType(),))


__all__ = ["MergeRequantization"]
