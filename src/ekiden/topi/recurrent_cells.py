"""Cells of recurrent networks (RNN, LSTM, GRU): the computation of one time step.

The inputs are projected for all steps at once, before the loop; a step computes the product of the
hidden state with the recurrent weight, then the cell:

    rnn     h' = f(x + R h)
    lstm    i, f, g, o = x + R h;  c' = f(f + p_f c) * c + f(i + p_i c) * g(g);
            h' = f(o + p_o c') * h(c')
    gru     r, z = f(x + R h);  n = g(x_n + r * (R_n h)), or g(x_n + R_n (r * h)) where the reset
            comes first;  h' = (1 - z) * n + z * h

A cell is written once, over the operations of `CellMath`: the kernel computes it on vectors, the
reference on arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from ekiden.ir.intrinsic import INTRINSICS, call_intrin
from ekiden.ir.prim import Div, Max, Min, PrimExpr, const
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import broadcast

CellValue: TypeAlias = Any
"""Vector expression or array; both support + - *."""


class CellMath(Protocol):
    """Protocol of the arithmetic that a cell needs besides + - *, for vectors and arrays."""

    def constant(self, value: float) -> CellValue:
        """Return a constant."""

    def call(self, name: str, value: CellValue) -> CellValue:
        """Return an intrinsic of one argument."""

    def divide(self, a: CellValue, b: CellValue) -> CellValue:
        """Return a / b."""

    def maximum(self, a: CellValue, b: CellValue) -> CellValue:
        """Return max(a, b)."""

    def minimum(self, a: CellValue, b: CellValue) -> CellValue:
        """Return min(a, b)."""


@dataclass(frozen=True, slots=True)
class VectorMath:
    """Cell arithmetic on vectors of float32 expressions."""

    lanes: int

    def constant(self, value: float) -> PrimExpr:
        """Return a vector with the number in every lane."""
        return broadcast(const(value, "float32"), self.lanes)

    def call(self, name: str, value: PrimExpr) -> PrimExpr:
        """Return an intrinsic of one argument."""
        return call_intrin(name, value)

    def divide(self, a: PrimExpr, b: PrimExpr) -> PrimExpr:
        """Return a / b."""
        return Div(a, b, a.dtype)

    def maximum(self, a: PrimExpr, b: PrimExpr) -> PrimExpr:
        """Return max(a, b)."""
        return Max(a, b, a.dtype)

    def minimum(self, a: PrimExpr, b: PrimExpr) -> PrimExpr:
        """Return min(a, b)."""
        return Min(a, b, a.dtype)


class ArrayMath:
    """Cell arithmetic on float32 NumPy arrays."""

    def constant(self, value: float) -> CellValue:
        """Return a scalar."""
        return np.float32(value)

    def call(self, name: str, value: CellValue) -> CellValue:
        """Return an intrinsic of one argument."""
        return INTRINSICS[name].reference(value)

    def divide(self, a: CellValue, b: CellValue) -> CellValue:
        """Return a / b."""
        return a / b

    def maximum(self, a: CellValue, b: CellValue) -> CellValue:
        """Return max(a, b)."""
        return np.maximum(a, b)

    def minimum(self, a: CellValue, b: CellValue) -> CellValue:
        """Return min(a, b)."""
        return np.minimum(a, b)


Activation: TypeAlias = Callable[[CellMath, CellValue, float, float], CellValue]


def _relu(m: CellMath, x: CellValue) -> CellValue:
    return m.maximum(x, m.constant(0.0))


def _min_with_zero(m: CellMath, x: CellValue) -> CellValue:
    return m.minimum(x, m.constant(0.0))


def _clamp_to_unit(m: CellMath, x: CellValue) -> CellValue:
    """Clamp to [0, 1]."""
    return m.maximum(m.minimum(x, m.constant(1.0)), m.constant(0.0))


def _softplus(m: CellMath, x: CellValue) -> CellValue:
    """Return log(1 + exp(x)) as max(x, 0) + log1p(exp(-|x|)), log1p corrected for the rounding of 1
    + x.
    """
    decay = m.call("exp", m.constant(0.0) - m.call("abs", x))
    one = m.constant(1.0)
    rounded = one + decay
    lost = m.divide(decay - (rounded - one), rounded)
    return _relu(m, x) + (m.call("log", rounded) + lost)


def _elu(m: CellMath, x: CellValue, alpha: float) -> CellValue:
    """Return x, or alpha * (exp(x) - 1) where x < 0, computed by tanh(x / 2) to keep the digits
    near 0.
    """
    t = m.call("tanh", m.constant(0.5) * _min_with_zero(m, x))
    return _relu(m, x) + m.constant(2.0 * alpha) * m.divide(t, m.constant(1.0) - t)


# fmt: off
CELL_ACTIVATIONS: dict[str, Activation] = {
    "sigmoid":      lambda m, x, a, b: m.call("sigmoid", x),
    "tanh":         lambda m, x, a, b: m.call("tanh", x),
    "relu":         lambda m, x, a, b: _relu(m, x),
    "affine":       lambda m, x, a, b: m.constant(a) * x + m.constant(b),
    "leaky_relu":   lambda m, x, a, b: _relu(m, x) + m.constant(a) * _min_with_zero(m, x),
    "scaled_tanh":  lambda m, x, a, b: m.constant(a) * m.call("tanh", m.constant(b) * x),
    "hard_sigmoid": lambda m, x, a, b: _clamp_to_unit(m, m.constant(a) * x + m.constant(b)),
    "elu":          lambda m, x, a, b: _elu(m, x, a),
    "softsign":     lambda m, x, a, b: m.divide(x, m.constant(1.0) + m.call("abs", x)),
    "softplus":     lambda m, x, a, b: _softplus(m, x),
}
# fmt: on
"""Activation functions (operations, value, alpha, beta) by ONNX name."""

GATE_COUNTS = {"rnn": 1, "lstm": 4, "gru": 3}
"""Number of gates by cell kind."""
DEFAULT_ACTIVATIONS = {
    "rnn": ("tanh",),
    "lstm": ("sigmoid", "tanh", "tanh"),
    "gru": ("sigmoid", "tanh"),
}
"""Default activations f, g, h by cell kind."""
OPTIONAL_CELL_INPUTS = (
    "bias",
    "initial_h",
    "initial_c",
    "peephole",
    "lengths",
    "scale",
    "sums",
    "places",
)
"""Optional inputs of a layer besides data and weight: a recurrent bias [gates * hidden], the first
states [batch, hidden], weights from the cell to i, f, o [3 * hidden], the number of steps of each
sequence [batch] (int32).

scale and sums [gates * hidden] belong to a weight of int8: what its rows are multiplied by, and
the sums of their bytes (int32). States are then quantised to uint8 at each step, all sequences of
the batch together, as DynamicQuantizeLinear of ONNX does. places [panels, r] (int32) are of such a
weight that is packed: the last r rows of its panels are multiplied with those words of the states,
and sums of the products of two neighbours fit int16.
"""
INT32_CELL_INPUTS = ("lengths", "sums", "places")
"""Optional inputs of dtype int32; the others are float32."""


@dataclass(frozen=True, slots=True)
class RecurrentCell:
    """Configuration of a recurrent cell: kind, activations with alpha and beta, optional inputs,
    and variants.
    """

    kind: str
    activations: tuple[tuple[str, float, float], ...]
    optional_inputs: tuple[str, ...] = ()
    reverse: bool = False
    reset_first: bool = False
    input_forget: bool = False
    clip: float = 0.0

    @property
    def num_gates(self) -> int:
        """Return the number of gates of a step."""
        return GATE_COUNTS[self.kind]

    @property
    def gate_phases(self) -> tuple[tuple[int, ...], ...]:
        """Return the gates of each matrix product of a step; a second product multiplies the result
        of the first.
        """
        return ((0, 1), (2,)) if self.reset_first else (tuple(range(self.num_gates)),)

    def apply_activation(self, m: CellMath, n: int, x: CellValue) -> CellValue:
        """Apply the n-th activation to a clipped value."""
        name, alpha, beta = self.activations[n]
        if self.clip:
            x = m.maximum(m.minimum(x, m.constant(self.clip)), m.constant(-self.clip))
        return CELL_ACTIVATIONS[name](m, x, alpha, beta)

    def compute_phase(
        self,
        m: CellMath,
        phase: int,
        x: Sequence[CellValue],
        r: Sequence[CellValue],
        state: Mapping[str, CellValue],
    ) -> dict[str, CellValue]:
        """Compute one phase of a step: the gates of one matrix product.

        Args:
            m: the arithmetic.
            phase: the phase's number.
            x: input projections of the phase's gates.
            r: their recurrent products, with biases.
            state: previous values: h, c, p_i, p_f, p_o, and "update" of an earlier phase.

        Returns:
            The changed values: "h" and "c" are new states, "reset" is the operand of the next
            phase's product.
        """
        if self.kind == "rnn":
            return {"h": self.apply_activation(m, 0, x[0] + r[0])}
        if self.kind == "lstm":
            return self._lstm_step(m, [a + b for a, b in zip(x, r, strict=True)], state)
        return self._gru_step(m, phase, x, r, state)

    def _lstm_step(
        self, m: CellMath, gates: list[CellValue], state: Mapping[str, CellValue]
    ) -> dict[str, CellValue]:
        i, f, g, o = gates
        old = state["c"]
        if "peephole" in self.optional_inputs:
            i, f = i + state["p_i"] * old, f + state["p_f"] * old
        take = self.apply_activation(m, 0, i)
        keep = m.constant(1.0) - take if self.input_forget else self.apply_activation(m, 0, f)
        new = keep * old + take * self.apply_activation(m, 1, g)
        if "peephole" in self.optional_inputs:
            # The output gate sees the new cell state, the other two the old one (ONNX LSTM).
            o = o + state["p_o"] * new
        # Called directly: `clip` bounds the sums of gates, not the cell state.
        name, alpha, beta = self.activations[2]
        return {
            "c": new,
            "h": self.apply_activation(m, 0, o) * CELL_ACTIVATIONS[name](m, new, alpha, beta),
        }

    def _gru_step(
        self,
        m: CellMath,
        phase: int,
        x: Sequence[CellValue],
        r: Sequence[CellValue],
        state: Mapping[str, CellValue],
    ) -> dict[str, CellValue]:
        if phase == 1:
            update, new = state["update"], self.apply_activation(m, 1, x[0] + r[0])
        else:
            reset, update = (self.apply_activation(m, 0, x[n] + r[n]) for n in range(2))
            if self.reset_first:
                return {"reset": reset * state["h"], "update": update}
            # linear_before_reset of ONNX: the reset multiplies the whole product, its bias
            # included.
            new = self.apply_activation(m, 1, x[2] + reset * r[2])
        return {"h": (m.constant(1.0) - update) * new + update * state["h"]}


__all__ = [
    "CELL_ACTIVATIONS",
    "DEFAULT_ACTIVATIONS",
    "GATE_COUNTS",
    "INT32_CELL_INPUTS",
    "OPTIONAL_CELL_INPUTS",
    "ArrayMath",
    "CellMath",
    "RecurrentCell",
    "VectorMath",
]
