"""Integer recurrent layers, bit for bit as TensorFlow Lite's kernels: int8 activations, int16 cell
state and gates.

    LSTM   sums x W + h R, then p c: each in int16, saturated, in steps of 1 / 4096, or in those of
           the tensor between where they are normalised
           i, f, o = sigmoid(its sums),  g = tanh(its sums): gemmlowp's, of 15 bits
           c' = f c + i g, saturated,  h' = o tanh(c'), which a projection follows
    basic  the older LSTM of uint8: the same without the rest, its steps fixed
    SVDF   what is seen in int16, weighed by int16, in the output's steps

A cell's scale is a power of two. There is no RNN of integers in TensorFlow Lite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ekiden.frontend.tflite import gemmlowp
from ekiden.frontend.tflite.converters.recurrent_state import (
    read_optional_input,
    run_steps,
    to_operator_order,
    to_time_major,
    update_svdf_memory,
)
from ekiden.frontend.tflite.integer_arithmetic import (
    QuantParams,
    quant_params,
    rescale,
    rescale_half_up,
)
from ekiden.frontend.tflite.node import TfliteNode
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.relay.qnn import op as qnn
from ekiden.runtime.lazy_dataclass import dataclass

_Q15 = gemmlowp.FixedPoint(15)
_GATE_INTEGER_BITS = 3
"""Bits before the point of what goes into a gate."""
_UNIT_SCALE = const(np.float32(1))
INPUT, FORGET, NEW, SHOW = range(4)
"""The gates, in the order of their tensors."""
_PEEPHOLE_INDEX = {INPUT: 0, FORGET: 1, SHOW: 2}
"""The gates that see the cell, in the order of their weights."""


def _saturate_to_dtype(data: Expr, dtype: str) -> Expr:
    """Saturate int32 levels to a dtype's range."""
    info = np.iinfo(dtype)
    return op.clip(data, int(info.min), int(info.max))


def _lookup_int16(data: Expr, function: Callable[[Array, int], Array], integer_bits: int) -> Expr:
    """Look up a function of int16 fixed-point numbers with `integer_bits` integer bits."""
    # 128 KiB of constants replace gemmlowp's 16-bit polynomials exactly, as every input is
    # tabulated.
    table = function(np.arange(-32768, 32768), integer_bits).astype(np.int16)
    # A table of all 65,536 inputs replaces the fixed-point evaluation.
    index = op.add(data, const(np.int32(32768)))
    return op.cast(op.take(const(table), index, mode="fast"), "int32")


def _rounding_shift_right(data: Expr, bits: int) -> Expr:
    """Divide int32 numbers by 2**bits, rounding half away from zero."""
    below = op.right_shift(data, const(np.int32(31)))
    moved = op.add(op.add(data, const(np.int32(1 << bits >> 1))), below)
    return op.right_shift(moved, const(np.int32(bits)))


def _scale_exponent(node: TfliteNode, index: int) -> int:
    """Return the exponent of the cell state's power-of-two scale."""
    exponent = float(np.log2(quant_params(node, node.ins[index]).scale))
    if abs(exponent - round(exponent)) > 1e-3 or not -15 <= round(exponent) <= -9:
        node.reject(f"the scale of {node.ins[index]} is none of 2**-15 to 2**-9")
    return round(exponent)


def _integer_dense(data: Expr, weight: Expr, point: int) -> Expr:
    return qnn.dense(
        data, weight, const(np.int32(point)), const(np.int32(0)), _UNIT_SCALE, _UNIT_SCALE
    )


# LSTM.


@dataclass(frozen=True, slots=True)
class _IntegerLstmCell:
    """Integer LSTM cell as its tensors describe it: present gates and the scales of intermediates.

    between: the scales of the sums of each gate; hidden: that of the hidden state before a
    projection.
    """

    node: TfliteNode
    gates: tuple[int, ...]
    intermediate_scales: tuple[np.float32, ...]
    hidden: QuantParams
    power: int

    @staticmethod
    def from_node(node: TfliteNode) -> _IntegerLstmCell:
        """Read a cell from its node. Raises Unsupported for what has no kernel."""
        if node.dtype(0) != "int8":
            node.reject(f"{node.ins[0]} is {node.dtype(0)}: kernels of float32 and int8 are here")
        tensors = [node.graph.graph.tensors[i] for i in node.operation.intermediate_tensors]
        if len(tensors) != 5:
            node.reject(f"{len(tensors)} tensors between: kernels of 5 are here")
        if node.read_option("FusedActivationFunction", 4) != 4:
            node.reject("its activation is not tanh, the one that kernels of integers have")
        names = [node.optional_value(20 + gate) is not None for gate in range(4)]
        is_normal = names[FORGET]
        between = [
            quant_params(node, t).scale if is_normal else np.float32(2**-12) for t in tensors[:4]
        ]
        gates = range(4) if node.optional_value(1) is not None else range(1, 4)
        cell = _IntegerLstmCell(
            node,
            tuple(gates),
            tuple(between),
            quant_params(node, tensors[4]),
            _scale_exponent(node, 19),
        )
        cell.reject_peepholes()
        return cell

    def reject_peepholes(self) -> None:
        """Reject peepholes of a projected cell, of which the kernels read only a part."""
        has_holes = self.node.optional_value(11) is not None
        if has_holes and self.node.shape(6)[1] != self.node.shape(6)[0]:
            self.node.reject("peepholes of a cell that has another size than its output")

    @property
    def is_normalised(self) -> bool:
        """Return whether gate sums are layer-normalized before their bias is added."""
        return self.node.optional_value(20 + FORGET) is not None

    def accumulate_gates(self, data: Expr, first: int, source: int, bias: int | None) -> Expr:
        """Emit data times the concatenated weights of all gates, at the scales of the gates'
        intermediates.

        first: the weights of the first of four gates; source: the tensor that the data belong to.
        """
        node, source_levels = self.node, quant_params(self.node, self.node.ins[source])
        weight = op.concatenate([node.expr(first + g) for g in self.gates], axis=0)
        products = _integer_dense(data, weight, source_levels.zero_point)
        if bias is not None:
            products = op.add(
                products, op.concatenate([node.expr(bias + g) for g in self.gates], axis=0)
            )
        factors = [
            np.full(self.num_units,
                quant_params(node, node.ins[first + g]).scale * source_levels.scale
                    / self.intermediate_scales[g]) for g in self.gates
        ]  # fmt: skip
        return rescale(products, np.concatenate(factors).astype(np.float64))

    @property
    def num_units(self) -> int:
        """Return the number of units of a cell."""
        (units,) = self.node.static_extents(2, (0,))
        if units is None:
            self.node.reject(f"{self.node.ins[2]} must have known extents")
        return units

    def activate_gate(self, gate: int, sums: Expr, cell: Expr) -> Expr:
        """Emit a gate's activation from its sums and the cell state."""
        peephole_index = _PEEPHOLE_INDEX.get(gate)
        if peephole_index is not None and self.node.optional_value(9 + peephole_index) is not None:
            weight = self.node.expr(9 + peephole_index)
            steps = quant_params(self.node, self.node.ins[9 + peephole_index]).scale
            factor = np.float32(
                2.0**self.power * float(steps) / float(self.intermediate_scales[gate])
            )
            peephole = rescale(op.multiply(op.cast(weight, "int32"), cell), float(factor))
            sums = _saturate_to_dtype(op.add(sums, peephole), "int16")
        if self.is_normalised:
            sums = self.normalize_gate(gate, sums)
        return _lookup_int16(sums, _Q15.tanh if gate == NEW else _Q15.sigmoid, _GATE_INTEGER_BITS)

    def normalize_gate(self, gate: int, sums: Expr) -> Expr:
        """Layer-normalize gate sums over the units with 10 fraction bits."""
        steps = quant_params(self.node, self.node.ins[20 + gate]).scale
        guard = max(1, int(np.float32(10000) * steps))
        apart = _integer_layer_norm(self.node, sums, self.num_units, guard)
        wide = op.multiply(apart, op.cast(self.node.expr(20 + gate), "int32"))
        wide = op.cast(op.add(wide, self.node.expr(12 + gate)), "int64")
        half = op.where(op.greater(wide, const(np.int64(0))), const(np.int64(512)),
                        const(np.int64(-512)))  # fmt: skip
        moved = op.cast(op.trunc_divide(op.add(wide, half), const(np.int64(1024))), "int32")
        return _saturate_to_dtype(rescale(moved, float(steps) * 2**12), "int16")

    def step(self, rows: Sequence[Expr], states: Sequence[Expr]) -> list[Expr]:
        """Compute (output, cell) from the previous (output, cell)."""
        node, output, before = self.node, states[0], op.cast(states[1], "int32")
        sums = _saturate_to_dtype(
            op.add(self.accumulate_gates(output, 5, 18, None), rows[0]), "int16"
        )
        gate_sums = dict(zip(self.gates, op.split(sums, len(self.gates), axis=-1), strict=True))
        gate_values = {
            g: self.activate_gate(g, gate_sums[g], before) for g in self.gates if g != SHOW
        }
        take = gate_values.get(INPUT)
        if take is None:
            # CIFG: the input gate is 1 - f, where 32767 is the largest Q15 number.
            take = op.subtract(const(np.int32(32767)), gate_values[FORGET])
        retained = _rounding_shift_right(op.multiply(gate_values[FORGET], before), 15)
        # Both gates have 15 fraction bits; the shift brings their product to the cell's scale 2 **
        # power.
        new = _rounding_shift_right(op.multiply(take, gate_values[NEW]), 30 + self.power)
        cell = _saturate_to_dtype(op.add(retained, new), "int16")
        limit = _clip_bound_levels(node.read_option("CellClip"), quant_params(node, node.ins[19]))
        cell = op.clip(cell, -limit, limit) if limit > 0 else cell
        show = self.activate_gate(SHOW, gate_sums[SHOW], cell)
        hidden_product = op.multiply(show, _lookup_int16(cell, _Q15.tanh, 15 + self.power))
        factor = np.float32(2.0**-15 / float(self.hidden.scale) * 2.0**-15)
        moved = op.add(
            rescale(hidden_product, float(factor)), const(np.int32(self.hidden.zero_point))
        )
        shown = op.cast(_saturate_to_dtype(moved, "int8"), "int8")
        return [self.project_hidden(shown), op.cast(cell, "int16")]

    def project_hidden(self, shown: Expr) -> Expr:
        """Emit the projected hidden state, or the hidden state itself without a projection."""
        node = self.node
        if node.optional_value(16) is None:
            return shown
        products, bias = (
            _integer_dense(shown, node.expr(16), self.hidden.zero_point),
            read_optional_input(node, 17),
        )
        products = products if bias is None else op.add(products, bias)
        state = quant_params(node, node.ins[18])
        factor = quant_params(node, node.ins[16]).scale * self.hidden.scale / state.scale
        moved = _saturate_to_dtype(
            op.add(rescale(products, float(factor)), const(np.int32(state.zero_point))), "int8"
        )
        limit = _clip_bound_levels(node.read_option("ProjClip"), quant_params(node, node.outs[0]))
        return op.cast(op.clip(moved, -limit, limit) if limit > 0 else moved, "int8")


def _clip_bound_levels(bound: float, steps: QuantParams) -> int:
    """Return a clipping bound in levels, truncated; 0 for none."""
    low, high = -(1 << 15), (1 << 15) - 1
    if steps.dtype == "int8":
        low, high = -128, 127
    return int(np.clip(np.float32(bound) / steps.scale, low, high)) if bound > 0 else 0


def _integer_layer_norm(node: TfliteNode, sums: Expr, units: int, guard: int) -> Expr:
    """Normalize numbers to mean 0 and variance 1 with 10 fraction bits; a variance below 1 becomes
    `guard`.

    The kernel truncates the quotient of 2**20 and the units. Row statistics are bound: fused into
    their row, they would be recomputed for each element.
    """

    def i64(value: int) -> Expr:
        return const(np.int64(value))

    wide = op.cast(sums, "int64")
    total = op.sum(wide, axis=[-1], keepdims=True)
    mean: Expr = op.trunc_divide(op.multiply(total, i64(1024)), i64(units))
    squares = op.sum(op.multiply(wide, wide), axis=[-1], keepdims=True)
    apart = op.subtract(op.multiply(squares, i64((1 << 20) // units)), op.multiply(mean, mean))
    variance = op.trunc_divide(apart, i64(1 << 20))
    variance = op.where(op.less(variance, i64(1)), i64(guard), variance)
    root = gemmlowp.inverse_sqrt(node.scope.expr(node.bind_shared(variance)))
    mean, factor, shift = (
        node.scope.expr(node.bind_shared(statistic)) for statistic in (mean, *root)
    )
    moved = op.subtract(op.multiply(wide, i64(1024)), mean)
    return op.cast(
        gemmlowp.rounding_divide_by_pot(gemmlowp.doubling_high_mul(moved, factor), shift), "int32"
    )


def convert_integer_sequence_lstm(node: TfliteNode) -> Expr:
    """Convert UNIDIRECTIONAL_SEQUENCE_LSTM; the input products of all steps are one matrix
    product.
    """
    cell = _IntegerLstmCell.from_node(node)
    products = cell.accumulate_gates(
        to_time_major(node, 0), 1, 0, None if cell.is_normalised else 12
    )
    every = run_steps(node, [_saturate_to_dtype(products, "int16")], [18, 19], cell.step)
    return to_operator_order(node, every)


def convert_integer_lstm(node: TfliteNode) -> list[Expr] | Expr:
    """Convert one LSTM step; KernelType 1 is the basic kernel."""
    if node.read_option("KernelType"):
        return _basic_lstm(node)
    cell = _IntegerLstmCell.from_node(node)
    products = _saturate_to_dtype(
        cell.accumulate_gates(node.expr(0), 1, 0, None if cell.is_normalised else 12), "int16"
    )
    every = run_steps(node, [op.expand_dims(products, 0)], [18, 19], cell.step)
    return op.squeeze(every, axis=[0])


_CELL_INTEGER_BITS = 4
"""Bits before the point of the older LSTM's cell."""


def _basic_lstm(node: TfliteNode) -> list[Expr]:
    """Convert the basic LSTM (data, output, weights, bias, cell) to output, cell, concatenated
    inputs and gates (i, g, f, o).

    Numbers of uint8 are steps of 1 / 128 from 128; sums are those of ruy's int16 products.
    """
    if node.dtype(0) != "uint8":
        node.reject(f"{node.ins[0]} is {node.dtype(0)}: the older kernel takes uint8")
    concatenated = op.concatenate([node.expr(0), node.expr(1)], axis=-1)
    weight, steps = quant_params(node, node.ins[2]), node.ins[3]
    if steps is None or steps.quantization is None:
        node.reject(f"{steps} has no scale")
    # This kernel fixes the activations' scale to 1 / 128 and their zero point to 128.
    points = const(np.int32(128)), const(np.int32(weight.zero_point))
    sums = op.add(
        qnn.dense(concatenated, node.expr(2), *points, _UNIT_SCALE, _UNIT_SCALE), node.expr(3)
    )
    factor = 4096 * float(np.float32(steps.quantization.scale[0]))
    gates = _saturate_to_dtype(rescale_half_up(sums, factor), "int16")
    gate_sums = op.split(gates, 4, axis=-1)
    functions = (_Q15.sigmoid, _Q15.tanh, _Q15.sigmoid, _Q15.sigmoid)
    take, new, keep, show = (
        _lookup_int16(gate_sum, function, _GATE_INTEGER_BITS)
        for gate_sum, function in zip(gate_sums, functions, strict=True)
    )
    retained = _round_to_q15(op.multiply(keep, op.cast(node.expr(4), "int32")))
    added = _rounding_shift_right(_round_to_q15(op.multiply(take, new)), _CELL_INTEGER_BITS)
    cell = _saturate_to_dtype(op.add(added, retained), "int16")
    shown = _round_to_q15(op.multiply(show, _lookup_int16(cell, _Q15.tanh, _CELL_INTEGER_BITS)))
    output = op.add(
        _saturate_to_dtype(_rounding_shift_right(shown, 8), "int8"), const(np.int32(128))
    )
    return [op.cast(output, "uint8"), op.cast(cell, "int16"), concatenated, op.cast(gates, "int16")]


def _round_to_q15(product: Expr) -> Expr:
    """Round a product of two Q15 numbers to Q15, half up."""
    return op.right_shift(op.add(product, const(np.int32(1 << 14))), const(np.int32(15)))


# SVDF.


def convert_integer_svdf(node: TfliteNode) -> Expr:
    """Convert SVDF (data, features [filters, inputs], int16 time weights, bias, int16 state).

    The kernel leaves the activation to the limits of the output.
    """
    data, features, weights, state, result = (
        quant_params(node, t) for t in (*node.ins[:3], node.ins[4], node.outs[0])
    )
    kinds = [s.dtype for s in (data, features, weights, state, result)]
    if kinds != ["int8", "int8", "int16", "int16", "int8"]:
        node.reject(f"tensors of {', '.join(kinds)}: a kernel of int8 and int16 is here")
    products = _integer_dense(node.expr(0), node.expr(1), data.zero_point)
    filtered = _saturate_to_dtype(
        rescale(products, float(data.scale * features.scale / state.scale)), "int16"
    )
    total = update_svdf_memory(node, op.cast(filtered, "int16"), op.cast(node.expr(2), "int32"))
    bias = read_optional_input(node, 3)
    total = total if bias is None else op.add(total, bias)
    moved = rescale(total, float(state.scale * weights.scale / result.scale))
    moved = op.add(moved, const(np.int32(result.zero_point)))
    return op.cast(_saturate_to_dtype(moved, "int8"), "int8")
