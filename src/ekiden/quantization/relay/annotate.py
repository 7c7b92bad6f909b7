"""Annotation: mark where values are quantized, still in floats.

    nn.conv2d(%x, w)
->  nn.conv2d(simulated_quantize(%x, 0f, -127f, 127f), simulated_quantize(w, 0f, -127f, 127f))

Products are what is worth it: their operands become bytes, their results are sums of 32 bits. What
follows is integer too where FakeQuantizationToInteger has a rule for it. The table says what each
operator wants of its operands; a step of 0 is one that calibration has yet to find.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum

import numpy as np

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import OP_ATTRS, Op, OpPattern
from ekiden.ir.transform import Pass, PassContext
from ekiden.ir.type import TensorType
from ekiden.quantization.relay.config import QAnnotateKind, QConfig, current_qconfig
from ekiden.relay.expr import Call, Constant, Tuple, const
from ekiden.relay.op.annotation import simulated_quantize
from ekiden.relay.op.op import (
    ADDS_BIAS_ATTR,
    CONVERTS_ALONE_ATTR,
    FAKE_QUANTIZATION_ATTR,
    KEEPS_SCALE_ATTR,
    MIXES_SCALES_ATTR,
)
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import (
    evaluation_order,
    lift_body_rewrite,
    map_functions,
    rewrite_graph,
)
from ekiden.relay.transform.quantization.fake_quantization_to_integer import load_rules
from ekiden.relay.visitor import children

__all__ = ["SIMULATED_QUANTIZE", "annotate"]

SIMULATED_QUANTIZE = "relay.op.annotation.simulated_quantize"


class AnnotationState(Enum):
    """Annotation state of an expression."""

    FLOAT = "not rounded"
    INT8 = "rounded"
    INT32_ACCUMULATOR = "sums of products of bytes, in 32 bits"
    SCALE_PENDING = "of bytes, in steps that the next rounding gives"


def is_quantizable_contraction(name: str) -> bool:
    """Return whether an operator is a contraction that has an integer form."""
    has_rules = name in OP_ATTRS.get(FAKE_QUANTIZATION_ATTR, {}) and OP_ATTRS.get(
        CONVERTS_ALONE_ATTR, {}
    ).get(name)
    return bool(has_rules) and Op.get(name).definition.macs is not None


class _Annotator:
    """Annotation rewriter of one function; `states` maps its new expressions to their states."""

    def __init__(self, body: RelayExpr, config: QConfig) -> None:
        self.config = config
        self.states: dict[RelayExpr, AnnotationState] = {}
        self.rounded: dict[tuple[RelayExpr, int], Call] = {}
        order = evaluation_order(body)
        self.readers = Counter(child for expr in order for child in children(expr))
        self.numbers = _number_convolutions(order)
        self.useful = _values_reaching_contractions(order, self._should_quantize)

    def _should_quantize(self, call: Call, name: str) -> bool:
        """Return whether the configuration requests this contraction in integers."""
        skipped = self.config.skip_conv_layers
        if name == "nn.dense" and self.config.skip_dense_layer:
            return False
        if name == "nn.conv2d" and skipped is not None and self.numbers[call] in skipped:
            return False
        return all(_is_float(arg) for arg in call.args) and self.config.guard(call)

    def rewrite(self, old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """Return the expression with its operands quantized according to the operator rules."""
        if not isinstance(old, Call) or not isinstance(new, Call) or not isinstance(old.op, Op):
            return new
        name = old.op.name
        if is_quantizable_contraction(name):
            if not self._should_quantize(old, name):
                return new
            quantised = self._quantize_operands(new, new.args)
            return self._quantize_shared_result(old, quantised, AnnotationState.INT32_ACCUMULATOR)
        if not self.config.guard(old) or name not in OP_ATTRS.get(FAKE_QUANTIZATION_ATTR, {}):
            return new
        state, quantised = self._propagate_state(old, new, name)
        return self._quantize_shared_result(old, quantised, state)

    def _propagate_state(self, old: Call, new: Call, name: str) -> tuple[AnnotationState, Call]:
        """Return the state and rewritten call of an operator that is no contraction, from its
        operands' states.
        """
        states = [self._lookup_state(arg) for arg in new.args]
        first = states[0]
        if all(state_of_arg is AnnotationState.FLOAT for state_of_arg in states):
            return AnnotationState.FLOAT, new
        if OP_ATTRS.get(KEEPS_SCALE_ATTR, {}).get(name):
            if not isinstance(old.op, Op) or len(new.args) > 1:
                return AnnotationState.FLOAT, new
            if old.op.definition.pattern is OpPattern.ELEMWISE or first is AnnotationState.INT8:
                return first, new
            return AnnotationState.INT8, self._quantize_operands(new, new.args)
        takes_sums = (
            OP_ATTRS.get(ADDS_BIAS_ATTR, {}).get(name)
            and first is AnnotationState.INT32_ACCUMULATOR
        )
        if takes_sums and isinstance(new.args[1], Constant):
            return AnnotationState.INT32_ACCUMULATOR, new
        if OP_ATTRS.get(MIXES_SCALES_ATTR, {}).get(name) and old in self.useful:
            return AnnotationState.SCALE_PENDING, self._quantize_operands(new, new.args)
        return AnnotationState.FLOAT, new

    def _lookup_state(self, expr: RelayExpr) -> AnnotationState:
        """Return the state of an expression."""
        if isinstance(expr, Tuple):
            field_states = {self._lookup_state(field) for field in expr.fields}
            return (
                AnnotationState.SCALE_PENDING
                if field_states - {AnnotationState.FLOAT}
                else AnnotationState.FLOAT
            )
        return self.states.get(expr, AnnotationState.FLOAT)

    def _quantize_operands(self, call: Call, args: Sequence[RelayExpr]) -> Call:
        """Return the call with every operand quantized, tuples field by field."""
        quantised_args = [
            Tuple(tuple(map(self._quantize_value, arg.fields))) if isinstance(arg, Tuple)
            else self._quantize_value(arg)
            for arg in args
        ]  # fmt: skip
        return Call(call.op, tuple(quantised_args), call.attrs, call.type_args, call.span)

    def _quantize_value(self, expr: RelayExpr) -> RelayExpr:
        """Return the simulated quantization of a value, shared by all its uses."""
        if self._lookup_state(expr) is AnnotationState.INT8:
            return expr
        constant = isinstance(expr, Constant)
        kind = QAnnotateKind.WEIGHT if constant else QAnnotateKind.INPUT
        if (expr, kind) not in self.rounded:
            # Symmetric range without the lowest integer, so that negation cannot overflow.
            max_level = float(2 ** (self.config.get_nbit_by_kind(kind) - 1) - 1)
            step, low, high = (const(np.float32(bound)) for bound in (0.0, -max_level, max_level))
            quantised = simulated_quantize(expr, step, low, high, kind)
            self.rounded[expr, kind] = quantised
            self.states[quantised] = AnnotationState.INT8
        return self.rounded[expr, kind]

    def _quantize_shared_result(
        self, old: RelayExpr, result: Call, state: AnnotationState
    ) -> RelayExpr:
        """Return the result, quantized here if it has several uses, so that none recomputes it."""
        if state is AnnotationState.FLOAT:
            return result
        self.states[result] = state
        several = state is not AnnotationState.INT8 and self.readers[old] > 1
        return self._quantize_value(result) if several else result


def _is_float(expr: RelayExpr) -> bool:
    kind = expr.checked_type
    return isinstance(kind, TensorType) and kind.dtype == "float32"


def _number_convolutions(order: Sequence[RelayExpr]) -> dict[RelayExpr, int]:
    """Number the conv2d calls in evaluation order."""
    convolutions = [e for e in order if isinstance(e, Call) and e.op == Op.get("nn.conv2d")]
    return {conv: index for index, conv in enumerate(convolutions)}


def _values_reaching_contractions(
    order: Sequence[RelayExpr], is_wanted: Callable[[Call, str], bool]
) -> set[RelayExpr]:
    """Return the values that reach an integer contraction through operators with rules."""
    used: set[RelayExpr] = set()
    rules = OP_ATTRS.get(FAKE_QUANTIZATION_ATTR, {})
    # Reverse post-order: all uses of an expression are seen before the expression itself.
    for expr in reversed(order):
        if not isinstance(expr, Call) or not isinstance(expr.op, Op):
            if isinstance(expr, Tuple) and expr in used:
                used.update(expr.fields)
            continue
        name = expr.op.name
        is_used = (
            is_wanted(expr, name)
            if is_quantizable_contraction(name)
            else expr in used and name in rules
        )
        if is_used:
            used.update(expr.args)
    return used


def annotate() -> Pass:
    """Return the annotation pass under the current `qconfig`."""
    config = current_qconfig()
    load_rules()

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Insert simulated quantization, and infer types again."""

        def rewrite(body: RelayExpr) -> RelayExpr:
            """Annotate the operands of a body."""
            return rewrite_graph(body, _Annotator(body, config).rewrite)

        return InferType()(map_functions(module, lift_body_rewrite(rewrite)))

    return Pass("QuantizeAnnotate", transform, 1, (InferType(),))
