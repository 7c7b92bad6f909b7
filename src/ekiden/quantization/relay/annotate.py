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
from ekiden.relay.op.op import ALONE, BIASES, KEEPS, MIXES, RULES
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scopes import (
    evaluation_order,
    map_functions,
    on_body,
    rewrite_graph,
)
from ekiden.relay.visitor import children

__all__ = ["SIMULATED_QUANTIZE", "annotate"]

SIMULATED_QUANTIZE = "relay.op.annotation.simulated_quantize"


class State(Enum):
    """Annotation state of an expression."""

    FLOAT = "not rounded"
    BYTES = "rounded"
    SUMS = "sums of products of bytes, in 32 bits"
    OPEN = "of bytes, in steps that the next rounding gives"


def is_product(name: str) -> bool:
    """Return whether an operator is a contraction that has an integer form."""
    has_rules = name in OP_ATTRS.get(RULES, {}) and OP_ATTRS.get(ALONE, {}).get(name)
    return bool(has_rules) and Op.get(name).definition.macs is not None


class _Annotator:
    """Annotation rewriter of one function; `states` maps its new expressions to their states."""

    def __init__(self, body: RelayExpr, config: QConfig) -> None:
        self.config = config
        self.states: dict[RelayExpr, State] = {}
        self.rounded: dict[tuple[RelayExpr, int], Call] = {}
        order = evaluation_order(body)
        self.readers = Counter(child for expr in order for child in children(expr))
        self.numbers = _numbers(order)
        self.useful = _useful(order, self._is_wanted)

    def _is_wanted(self, call: Call, name: str) -> bool:
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
        if is_product(name):
            if not self._is_wanted(old, name):
                return new
            quantised = self._on_bytes(new, new.args)
            return self._once(old, quantised, State.SUMS)
        if not self.config.guard(old) or name not in OP_ATTRS.get(RULES, {}):
            return new
        state, quantised = self._follow(old, new, name)
        return self._once(old, quantised, state)

    def _follow(self, old: Call, new: Call, name: str) -> tuple[State, Call]:
        """Return the state and rewritten call of an operator that is no contraction, from its
        operands' states.
        """
        states = [self._state(arg) for arg in new.args]
        first = states[0]
        if all(state_of_arg is State.FLOAT for state_of_arg in states):
            return State.FLOAT, new
        if OP_ATTRS.get(KEEPS, {}).get(name):
            if not isinstance(old.op, Op) or len(new.args) > 1:
                return State.FLOAT, new
            if old.op.definition.pattern is OpPattern.ELEMWISE or first is State.BYTES:
                return first, new
            return State.BYTES, self._on_bytes(new, new.args)
        takes_sums = OP_ATTRS.get(BIASES, {}).get(name) and first is State.SUMS
        if takes_sums and isinstance(new.args[1], Constant):
            return State.SUMS, new
        if OP_ATTRS.get(MIXES, {}).get(name) and old in self.useful:
            return State.OPEN, self._on_bytes(new, new.args)
        return State.FLOAT, new

    def _state(self, expr: RelayExpr) -> State:
        """Return the state of an expression."""
        if isinstance(expr, Tuple):
            field_states = {self._state(field) for field in expr.fields}
            return State.OPEN if field_states - {State.FLOAT} else State.FLOAT
        return self.states.get(expr, State.FLOAT)

    def _on_bytes(self, call: Call, args: Sequence[RelayExpr]) -> Call:
        """Return the call with every operand quantized, tuples field by field."""
        quantised_args = [
            Tuple(tuple(map(self._bytes, arg.fields))) if isinstance(arg, Tuple)
            else self._bytes(arg)
            for arg in args
        ]  # fmt: skip
        return Call(call.op, tuple(quantised_args), call.attrs, call.type_args, call.span)

    def _bytes(self, expr: RelayExpr) -> RelayExpr:
        """Return the simulated quantization of a value, shared by all its uses."""
        if self._state(expr) is State.BYTES:
            return expr
        constant = isinstance(expr, Constant)
        kind = QAnnotateKind.WEIGHT if constant else QAnnotateKind.INPUT
        if (expr, kind) not in self.rounded:
            # Symmetric range without the lowest integer, so that negation cannot overflow.
            max_level = float(2 ** (self.config.get_nbit_by_kind(kind) - 1) - 1)
            step, low, high = (const(np.float32(bound)) for bound in (0.0, -max_level, max_level))
            quantised = simulated_quantize(expr, step, low, high, kind)
            self.rounded[expr, kind] = quantised
            self.states[quantised] = State.BYTES
        return self.rounded[expr, kind]

    def _once(self, old: RelayExpr, result: Call, state: State) -> RelayExpr:
        """Return the result, quantized here if it has several uses, so that none recomputes it."""
        if state is State.FLOAT:
            return result
        self.states[result] = state
        several = state is not State.BYTES and self.readers[old] > 1
        return self._bytes(result) if several else result


def _is_float(expr: RelayExpr) -> bool:
    kind = expr.checked_type
    return isinstance(kind, TensorType) and kind.dtype == "float32"


def _numbers(order: Sequence[RelayExpr]) -> dict[RelayExpr, int]:
    """Number the conv2d calls in evaluation order."""
    convolutions = [e for e in order if isinstance(e, Call) and e.op == Op.get("nn.conv2d")]
    return {conv: at for at, conv in enumerate(convolutions)}


def _useful(order: Sequence[RelayExpr], is_wanted: Callable[[Call, str], bool]) -> set[RelayExpr]:
    """Return the values that reach an integer contraction through operators with rules."""
    used: set[RelayExpr] = set()
    rules = OP_ATTRS.get(RULES, {})
    # Reverse post-order: all uses of an expression are seen before the expression itself.
    for expr in reversed(order):
        if not isinstance(expr, Call) or not isinstance(expr.op, Op):
            if isinstance(expr, Tuple) and expr in used:
                used.update(expr.fields)
            continue
        name = expr.op.name
        is_used = is_wanted(expr, name) if is_product(name) else expr in used and name in rules
        if is_used:
            used.update(expr.args)
    return used


def annotate() -> Pass:
    """Return the annotation pass under the current `qconfig`."""
    config = current_qconfig()

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Insert simulated quantization, and infer types again."""

        def rewrite(body: RelayExpr) -> RelayExpr:
            return rewrite_graph(body, _Annotator(body, config).rewrite)

        return InferType()(map_functions(module, on_body(rewrite)))

    return Pass("QuantizeAnnotate", transform, 1, (InferType(),))
