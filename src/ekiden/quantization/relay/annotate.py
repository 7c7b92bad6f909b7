"""Say where values are rounded, in floats.

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

__all__ = ["OPERATOR", "annotate"]

OPERATOR = "relay.op.annotation.simulated_quantize"


class State(Enum):
    """What a value is on its way to integers."""

    FLOAT = "not rounded"
    BYTES = "rounded"
    SUMS = "sums of products of bytes, in 32 bits"
    OPEN = "of bytes, in steps that the next rounding gives"


def is_product(name: str) -> bool:
    """Whether an operator sums products, and has a form in integers."""
    known = name in OP_ATTRS.get(RULES, {}) and OP_ATTRS.get(ALONE, {}).get(name)
    return bool(known) and Op.get(name).definition.macs is not None


class _Annotator:
    """One function on its way; `states` are those of its new expressions."""

    def __init__(self, body: RelayExpr, config: QConfig) -> None:
        self.config = config
        self.states: dict[RelayExpr, State] = {}
        self.rounded: dict[tuple[RelayExpr, int], Call] = {}
        order = evaluation_order(body)
        self.readers = Counter(child for each in order for child in children(each))
        self.numbers = _numbers(order)
        self.useful = _useful(order, self._is_wanted)

    def _is_wanted(self, call: Call, name: str) -> bool:
        """Whether a product is to be one of integers."""
        skipped = self.config.skip_conv_layers
        if name == "nn.dense" and self.config.skip_dense_layer:
            return False
        if name == "nn.conv2d" and skipped is not None and self.numbers[call] in skipped:
            return False
        return all(_is_float(arg) for arg in call.args) and self.config.guard(call)

    def rewrite(self, old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """The expression with its operands rounded as the table says."""
        if not isinstance(old, Call) or not isinstance(new, Call) or not isinstance(old.op, Op):
            return new
        name = old.op.name
        if is_product(name):
            if not self._is_wanted(old, name):
                return new
            made = self._on_bytes(new, new.args)
            return self._once(old, made, State.SUMS)
        if not self.config.guard(old) or name not in OP_ATTRS.get(RULES, {}):
            return new
        state, made = self._follow(old, new, name)
        return self._once(old, made, state)

    def _follow(self, old: Call, new: Call, name: str) -> tuple[State, Call]:
        """What becomes of an operator that is no product."""
        states = [self._state(arg) for arg in new.args]
        first = states[0]
        if all(each is State.FLOAT for each in states):
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
        if isinstance(expr, Tuple):
            found = {self._state(each) for each in expr.fields}
            return State.OPEN if found - {State.FLOAT} else State.FLOAT
        return self.states.get(expr, State.FLOAT)

    def _on_bytes(self, call: Call, args: Sequence[RelayExpr]) -> Call:
        """The call with all operands rounded, of tuples each."""
        made = [
            Tuple(tuple(map(self._bytes, arg.fields))) if isinstance(arg, Tuple)
            else self._bytes(arg)
            for arg in args
        ]  # fmt: skip
        return Call(call.op, tuple(made), call.attrs, call.type_args, call.span)

    def _bytes(self, expr: RelayExpr) -> RelayExpr:
        """The value rounded; once for all that read it."""
        if self._state(expr) is State.BYTES:
            return expr
        constant = isinstance(expr, Constant)
        kind = QAnnotateKind.WEIGHT if constant else QAnnotateKind.INPUT
        if (expr, kind) not in self.rounded:
            most = float(2 ** (self.config.get_nbit_by_kind(kind) - 1) - 1)
            step, low, high = (const(np.float32(each)) for each in (0.0, -most, most))
            made = simulated_quantize(expr, step, low, high, kind)
            self.rounded[expr, kind] = made
            self.states[made] = State.BYTES
        return self.rounded[expr, kind]

    def _once(self, old: RelayExpr, made: Call, state: State) -> RelayExpr:
        """The result, which is rounded here where several read it: else each would compute it."""
        if state is State.FLOAT:
            return made
        self.states[made] = state
        several = state is not State.BYTES and self.readers[old] > 1
        return self._bytes(made) if several else made


def _is_float(expr: RelayExpr) -> bool:
    kind = expr.checked_type
    return isinstance(kind, TensorType) and kind.dtype == "float32"


def _numbers(order: Sequence[RelayExpr]) -> dict[RelayExpr, int]:
    """Convolutions in the order of evaluation."""
    found = [e for e in order if isinstance(e, Call) and e.op == Op.get("nn.conv2d")]
    return {each: at for at, each in enumerate(found)}


def _useful(order: Sequence[RelayExpr], is_wanted: Callable[[Call, str], bool]) -> set[RelayExpr]:
    """The values that a product of integers reads, through operators that have rules."""
    found: set[RelayExpr] = set()
    rules = OP_ATTRS.get(RULES, {})
    for expr in reversed(order):
        if not isinstance(expr, Call) or not isinstance(expr.op, Op):
            if isinstance(expr, Tuple) and expr in found:
                found.update(expr.fields)
            continue
        name = expr.op.name
        wanted = is_wanted(expr, name) if is_product(name) else expr in found and name in rules
        if wanted:
            found.update(expr.args)
    return found


def annotate() -> Pass:
    """The pass described at the top of this file, as the current `qconfig` says."""
    config = current_qconfig()

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """The module with rounding put in; types are inferred again."""

        def rewrite(body: RelayExpr) -> RelayExpr:
            return rewrite_graph(body, _Annotator(body, config).rewrite)

        return InferType()(map_functions(module, on_body(rewrite)))

    return Pass("QuantizeAnnotate", transform, 1, (InferType(),))
