"""General forms of extern operations (recurrent layers, attention) as stages of tensor expressions,
repeated per time step or head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import field

from ekiden import te
from ekiden.arith import simplify
from ekiden.backend.kernels.general_encoding import NoGeneralFormError
from ekiden.ir.intrinsic import call_intrin, if_then_else
from ekiden.ir.prim import (
    Div,
    IntImm,
    Max,
    Min,
    PrimExpr,
    Select,
    Var,
    cast,
    const,
    is_const,
    minimum,
)
from ekiden.kernels.attention.attention_config import AttentionConfig
from ekiden.kernels.recurrent.layers import PEEPHOLE_NAMES
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.nn.weight_packing import DOT_WORD_CHANNELS
from ekiden.topi.recurrent_cells import RecurrentCell

PANEL_COLUMNS = 16
"""Panel width for weights that are not packed."""
Indices = Sequence[PrimExpr]
Body = Callable[..., PrimExpr]


@dataclass(frozen=True, slots=True)
class ResultLayout:
    """Destination of a computation's elements: a tensor, the strides of the axes in it, and an
    offset.
    """

    tensor: te.Tensor
    strides: Indices
    offset: PrimExpr


@dataclass(frozen=True, slots=True)
class RegionStep:
    """Computation with the destination of each of its results."""

    computation: Sequence[te.Tensor]
    destinations: Sequence[ResultLayout]


@dataclass(frozen=True, slots=True)
class Region:
    """Steps in order, repeated `iterations` times; `iteration` is the current number."""

    iteration: Var
    iterations: PrimExpr
    steps: Sequence[RegionStep]


@dataclass(eq=False, slots=True)
class _RegionBuilder:
    """Builder of regions and of the memory that they use."""

    regions: list[Region] = field(default_factory=list)

    def add_unrepeated(self, *steps: RegionStep) -> None:
        """Add steps that run once."""
        self.regions.append(Region(Var("once"), const(1), steps))


def extern_op_regions(op: te.ExternOp, outputs: Sequence[te.Tensor]) -> list[Region]:
    """Return the regions that write all outputs of an operation. Raises NoGeneralFormError."""
    row = REGION_BUILDERS.get(op.tag)
    if row is None:
        raise NoGeneralFormError(f"{op.name} is made of statements")
    builder = _RegionBuilder()
    row(builder, op, outputs)
    return builder.regions


def _row_major_strides(shape: Indices) -> list[PrimExpr]:
    strides: list[PrimExpr] = [const(1)]
    for dim in reversed(shape[1:]):
        strides.append(simplify(strides[-1] * dim))
    return strides[: len(shape)][::-1]


def _result_destination(tensor: te.Tensor, leading: Indices = ()) -> ResultLayout:
    """Return the destination of a whole tensor at leading indices of another."""
    strides = _row_major_strides(tensor.whole_shape)
    offset: PrimExpr = const(0)
    for index, stride in zip(leading, strides, strict=False):
        offset = offset + index * stride
    return ResultLayout(tensor, strides[len(leading) :], offset)


def _region_step(shape: Indices, body: Body, *layouts: ResultLayout, name: str) -> RegionStep:
    return RegionStep([te.compute(tuple(shape), body, name=name)], layouts)


def _state_tensor(shape: Indices, name: str, dtype: str = "float32") -> te.Tensor:
    return te.placeholder(tuple(shape), dtype, name)


# Recurrent layers ---------------------------------------------------------------------------------


class _ScalarMath:
    """Scalar arithmetic of a recurrent cell on tensor expressions."""

    def constant(self, value: float) -> PrimExpr:
        return const(value, "float32")

    def call(self, name: str, value: PrimExpr) -> PrimExpr:
        return call_intrin(name, value)

    def divide(self, a: PrimExpr, b: PrimExpr) -> PrimExpr:
        return Div(a, b, a.dtype)

    def maximum(self, a: PrimExpr, b: PrimExpr) -> PrimExpr:
        return Max(a, b, a.dtype)

    def minimum(self, a: PrimExpr, b: PrimExpr) -> PrimExpr:
        return Min(a, b, a.dtype)


class _RecurrentLayer:
    """Recurrent layer; inputs and outputs are those of ekiden.topi.nn.recurrent."""

    def __init__(self, op: te.ExternOp, outputs: Sequence[te.Tensor]) -> None:
        cell = op.attrs["cell"]
        assert isinstance(cell, RecurrentCell)
        self.cell, self.outputs = cell, list(outputs)
        self.data, self.given = op.inputs[:2]
        self.is_bytes = self.given.dtype == "int8"
        self.extra_inputs = dict(zip(cell.optional_inputs, op.inputs[2:], strict=True))
        self.steps, self.batch, rows = self.data.whole_shape
        assert isinstance(rows, IntImm)
        self.hidden = rows.value // cell.num_gates
        self.h = _state_tensor((self.batch, const(self.hidden)), "h_state")
        self.c = _state_tensor((self.batch, const(self.hidden)), "c_state")
        self.reset = _state_tensor((self.batch, const(self.hidden)), "reset_state")
        self.update = _state_tensor((self.batch, const(self.hidden)), "update")
        self.dtype = "int32" if self.is_bytes else "float32"
        self.is_packed = len(self.given.whole_shape) > 2
        self.columns, self.lanes, self.width = rows.value, self.hidden, PANEL_COLUMNS
        if self.is_packed:  # panels of units with all their gates
            panels, width = self.given.whole_shape[0], self.given.whole_shape[2]
            assert isinstance(panels, IntImm) and isinstance(width, IntImm)
            self.columns, self.width = panels.value * width.value, width.value
            self.lanes = self.width // cell.num_gates
        self.weight = self.given
        if not self.is_packed:
            panels = const(-(-self.columns // self.width))
            shape = (panels, const(self.hidden), const(self.width))
            self.weight = _state_tensor(shape, "panels", self.dtype)
        self.products = _state_tensor((self.batch, const(self.columns)), "products", self.dtype)
        self.bytes = _state_tensor((self.batch, const(self.hidden)), "bytes", "uint8")
        self.places = self.extra_inputs.get("places")
        if self.places is None or is_const(self.places.whole_shape[1], 0):
            self.places = None
        else:
            panels, listed = self.places.whole_shape
            steps = simplify(listed * DOT_WORD_CHANNELS)
            self.listed = _state_tensor((self.batch, panels, steps), "listed", "uint8")
            self.more = _state_tensor((self.batch, panels, const(self.width)), "more", "int32")
        self.low, self.high = _state_tensor((), "low"), _state_tensor((), "high")
        self.states = {"h": self.h} | ({"c": self.c} if cell.kind == "lstm" else {})

    @property
    def state_shape(self) -> Indices:
        """Return the shape of a state."""
        return self.h.whole_shape

    def init_state(self, name: str) -> RegionStep:
        """Return the step that initialises a state."""
        initial_state = self.extra_inputs.get(f"initial_{name}")

        def initial_element(b: Var, u: Var) -> PrimExpr:
            return const(0.0, "float32") if initial_state is None else initial_state[b, u]

        return _region_step(
            self.state_shape,
            initial_element,
            _result_destination(self.states[name]),
            name=f"first_{name}",
        )

    def copy_final_state(self, name: str) -> RegionStep:
        """Return the step that copies a final state to its output."""
        output = self.outputs[1 + list(self.states).index(name)]
        state = self.states[name]
        return _region_step(
            self.state_shape,
            lambda b, u: state[b, u],
            _result_destination(output),
            name=f"last_{name}",
        )

    def pack_weight(self) -> list[RegionStep]:
        """Return the step that packs the weight into column panels, if it is not packed."""
        if self.weight is self.given:
            return []
        zero = const(0, self.given.dtype)

        def packed_element(p: Var, k: Var, i: Var) -> PrimExpr:
            """Return element i of panel p at step k; rows behind the last column are zeros, so that
            a product may take whole panels.
            """
            row = p * self.width + i
            value = if_then_else(row < self.columns, self.given[row, k], zero)
            return cast(value, self.dtype)

        return [
            _region_step(
                self.weight.whole_shape,
                packed_element,
                _result_destination(self.weight),
                name="panels",
            )
        ]

    def multiply_state(self, state: te.Tensor) -> list[RegionStep]:
        """Return the steps that multiply a state by the weight, in the weight's row order."""
        k, width = te.reduce_axis((0, self.hidden), "k"), self.width
        steps = self.quantize_state(state) if self.is_bytes else []
        operand = self.bytes if self.is_bytes else state

        def product_element(b: Var, column: Var) -> PrimExpr:
            factor = self.panel_element(column // width, k, column % width)
            return te.sum(cast(operand[b, k], self.dtype) * factor, k)

        shape = self.products.whole_shape
        steps.append(
            _region_step(
                shape, product_element, _result_destination(self.products), name="products"
            )
        )
        return steps if self.places is None else [*steps, *self.multiply_listed_words(self.places)]

    def panel_element(self, panel: PrimExpr, k: PrimExpr, column: PrimExpr) -> PrimExpr:
        """Return an element of a panel of the weight."""
        if self.is_bytes and self.is_packed:
            return cast(
                self.weight[panel, k // DOT_WORD_CHANNELS, column, k % DOT_WORD_CHANNELS],
                self.dtype,
            )
        return self.weight[panel, k, column]

    def multiply_listed_words(self, word_indices: te.Tensor) -> list[RegionStep]:
        """Return the products with the residual words that each panel looks up by index, added to
        the dense products (kernels/quantized/int8_dot.py).
        """
        shape = self.listed.whole_shape
        j = te.reduce_axis((0, shape[2]), "j")

        def listed_word(b: Var, p: Var, at: Var) -> PrimExpr:
            """Return a channel of a word of bytes by its index in the list."""
            return self.bytes[
                b,
                cast(word_indices[p, at // DOT_WORD_CHANNELS], "int64") * DOT_WORD_CHANNELS
                + at % DOT_WORD_CHANNELS,
            ]

        def listed_product(b: Var, p: Var, column: Var) -> PrimExpr:
            """Return the product of a listed channel and its weight."""
            factor = self.given[
                p,
                j // DOT_WORD_CHANNELS + self.hidden // DOT_WORD_CHANNELS,
                column,
                j % DOT_WORD_CHANNELS,
            ]
            return te.sum(cast(self.listed[b, p, j], "int32") * cast(factor, "int32"), j)

        return [
            _region_step(shape, listed_word, _result_destination(self.listed), name="listed"),
            _region_step(
                self.more.whole_shape, listed_product, _result_destination(self.more), name="more"
            ),
        ]

    def quantize_state(self, state: te.Tensor) -> list[RegionStep]:
        """Return the steps that quantise a state to uint8 with the smallest range that contains it
        and 0.
        """
        zero = const(0.0, "float32")

        def reduce_extreme(reduce: Callable[..., PrimExpr], to: te.Tensor) -> RegionStep:
            """Return a step that reduces a state to its minimum or maximum."""
            b = te.reduce_axis((0, self.batch), "b")
            u = te.reduce_axis((0, self.hidden), "u")
            body = state[b, u]
            return _region_step(
                (), lambda: reduce(body, (b, u)), _result_destination(to), name=to.op.name
            )

        def quantized_byte(b: Var, u: Var) -> PrimExpr:
            """Return round(x / scale) + zero point, clamped to 0..255. ONNX
            DynamicQuantizeLinear.
            """
            step, point = self.quantization_params()
            level = call_intrin("round", state[b, u] / step) + cast(point, "float32")
            top = const(255.0, "float32")
            return cast(Max(Min(level, top, "float32"), zero, "float32"), "uint8")

        return [
            reduce_extreme(te.min, self.low),
            reduce_extreme(te.max, self.high),
            _region_step(
                self.state_shape, quantized_byte, _result_destination(self.bytes), name="bytes"
            ),
        ]

    def quantization_params(self) -> tuple[PrimExpr, PrimExpr]:
        """Return the quantisation parameters (scale, zero point) of the bytes."""
        zero, one = const(0.0, "float32"), const(1.0, "float32")
        low, high = Min(self.low[()], zero, "float32"), Max(self.high[()], zero, "float32")
        step = if_then_else(high > low, (high - low) / const(255.0, "float32"), one)
        return step, cast(call_intrin("round", (zero - low) / step), "int32")

    def gate_product(self, b: Var, u: Var, gate: int) -> PrimExpr:
        """Return the float32 product of a unit's gate."""
        position: PrimExpr = u + gate * self.hidden
        row = position
        if self.is_packed:
            position = u // self.lanes * self.width + gate * self.lanes + u % self.lanes
        value: PrimExpr = self.products[b, position]
        if self.places is not None:
            value = value + self.more[b, position // self.width, position % self.width]
        if not self.is_bytes:
            return value
        step, point = self.quantization_params()
        total = cast(value - point * self.extra_inputs["sums"][row], "float32")
        return total * (step * self.extra_inputs["scale"][row])

    def input_row(self, t: PrimExpr, b: Var) -> tuple[PrimExpr, PrimExpr | None]:
        """Return the input row of a time step, and whether it exists, as
        kernels.recurrent.layers.Layer does.
        """
        lengths = self.extra_inputs.get("lengths")
        if lengths is None:
            return (self.steps - 1 - t if self.cell.reverse else t), None
        length = lengths[b]
        is_valid = t < length
        return (if_then_else(is_valid, length - 1 - t, t) if self.cell.reverse else t), is_valid

    def cell_step(self, t: Var, phase: int) -> RegionStep:
        """Return the step that computes one phase of all hidden units."""
        names: list[str] = []

        def cell_values(b: Var, u: Var) -> tuple[PrimExpr, ...]:
            """Return the new recurrent states of hidden unit `u` of row `b`, in the order of
            `names`.
            """
            changes = self.unit_update(t, phase, b, u)
            names.extend(changes)
            return tuple(changes.values())

        shape = self.state_shape
        results = te.compute_op(tuple(shape), cell_values, name=f"cells_{phase}")
        memory = {"h": self.h, "c": self.c, "reset": self.reset, "update": self.update}
        layouts = [
            _result_destination(self.outputs[0], (self.output_row(t),))
            if name == "shown"
            else _result_destination(memory[name])
            for name in names
        ]
        return RegionStep(results, layouts)

    def output_row(self, t: Var) -> PrimExpr:
        """Return the row of the output that a time step writes."""
        return self.steps - 1 - t if self.cell.reverse else t

    def unit_update(self, t: Var, phase: int, b: Var, u: Var) -> dict[str, PrimExpr]:
        """Return the new values of a unit, by the state that stores them."""
        chosen = self.cell.gate_phases[phase]
        when, is_valid = self.input_row(t, b)
        x = [self.data[when, b, u + g * self.hidden] for g in chosen]
        r = [self.gate_product(b, u, g) for g in chosen]
        if "bias" in self.extra_inputs:
            bias = self.extra_inputs["bias"]
            r = [value + bias[u + g * self.hidden] for g, value in zip(chosen, r, strict=True)]
        old = {name: state[b, u] for name, state in self.states.items()}
        cell_inputs = dict(old)
        if "peephole" in self.extra_inputs:
            weight = self.extra_inputs["peephole"]
            cell_inputs |= {
                name: weight[u + n * self.hidden] for n, name in enumerate(PEEPHOLE_NAMES)
            }
        if phase:
            cell_inputs["update"] = self.update[b, u]
        changes = dict(self.cell.compute_phase(_ScalarMath(), phase, x, r, cell_inputs))
        if "h" in changes:
            shown = changes["h"]
            changes["shown"] = (
                shown if is_valid is None else if_then_else(is_valid, shown, const(0.0, "float32"))
            )
        if is_valid is not None:
            changes |= {
                n: Select(is_valid, changes[n], old[n], "float32") for n in old if n in changes
            }
        return changes


def _build_recurrent(
    regions: _RegionBuilder, op: te.ExternOp, outputs: Sequence[te.Tensor]
) -> None:
    """Build the region of the loop over time."""
    layer, t = _RecurrentLayer(op, outputs), Var("t")
    if layer.cell.reverse and "lengths" in layer.extra_inputs:
        raise NoGeneralFormError("sequences of their own lengths are read backwards")
    regions.add_unrepeated(*layer.pack_weight(), *(layer.init_state(name) for name in layer.states))
    steps: list[RegionStep] = []
    for phase in range(len(layer.cell.gate_phases)):
        steps += layer.multiply_state(layer.reset if phase else layer.h)
        steps.append(layer.cell_step(t, phase))
    regions.regions.append(Region(t, layer.steps, steps))
    regions.add_unrepeated(*(layer.copy_final_state(name) for name in layer.states))


# Attention ----------------------------------------------------------------------------------------


MAX_QUERY_ROWS = 256
"""Maximum number of queries per block, for each of which keys are repacked."""


class _QueryBlock:
    """Block of queries of one attention head of one batch element, numbered by `iteration`."""

    def __init__(self, op: te.ExternOp, output: te.Tensor, iteration: Var) -> None:
        heads = op.attrs["heads"]
        assert isinstance(heads, AttentionConfig)
        self.heads, self.output = heads, output
        self.query, self.key, self.value = op.inputs[:3]
        self.bias = op.inputs[3] if len(op.inputs) > 3 else None
        self.q, k, self.v = (
            dict(zip(layout, operand.whole_shape, strict=True))
            for layout, operand in zip(heads.layouts, op.inputs[:3], strict=False)
        )
        blocks = simplify((self.q["s"] + (MAX_QUERY_ROWS - 1)) // MAX_QUERY_ROWS)
        self.num_iterations = simplify(self.q["b"] * self.q["h"] * blocks)
        number: PrimExpr = iteration
        self.first_query: PrimExpr = const(0)
        self.rows = self.q["s"]
        if not is_const(blocks, 1):
            number, self.first_query = iteration // blocks, iteration % blocks * MAX_QUERY_ROWS
            self.rows = minimum(self.q["s"] - self.first_query, const(MAX_QUERY_ROWS))
        self.b, self.head = number // self.q["h"], number % self.q["h"]
        groups = k["h"]
        self.kv_head = self.head // simplify(self.q["h"] // groups)
        self.queries, self.keys, self.depth = self.q["s"], self.v["s"], self.q["d"]
        self.scores = _state_tensor((self.rows, self.keys), "scores")
        self.row_max = _state_tensor((self.rows,), "top")
        self.row_sum = _state_tensor((self.rows,), "total")
        self.weighted_values = _state_tensor((self.rows, self.v["d"]), "mixed")

    def operand_element(self, tensor: te.Tensor, n: int, s: PrimExpr, d: PrimExpr) -> PrimExpr:
        """Return an element of the n-th operand."""
        head = self.kv_head if n in (1, 2) else self.head
        index = {"b": self.b, "h": head, "s": s, "d": d}
        return tensor[tuple(index[axis] for axis in self.heads.layouts[n])]

    def num_visible_keys(self, row: PrimExpr) -> PrimExpr:
        """Return the number of keys, from the first, that a query row attends to."""
        shift = self.keys - self.queries if self.heads.causal == "end" else const(0)
        return row + shift + 1

    def score(self, s: Var, key: Var) -> PrimExpr:
        """Return a scaled, capped and biased score, before the softmax."""
        scale = self.heads.scale
        if scale is None:
            if not isinstance(self.depth, IntImm):
                raise NoGeneralFormError("an attention whose depth is not known")
            scale = 1 / math.sqrt(self.depth.value)
        value = self.scores[s, key] * const(scale, "float32")
        if cap := self.heads.softcap:
            value = call_intrin("tanh", value * const(1 / cap, "float32")) * const(cap, "float32")
        if self.bias is not None:
            bias_index = (self.b, self.head, self.first_query + s, key)
            dims = self.bias.whole_shape
            value = value + self.bias[tuple(
                const(0) if is_const(d, 1) else i for i, d in zip(bias_index, dims, strict=True)
            )]  # fmt: skip
        if not self.heads.causal:
            return value
        return if_then_else(
            key < self.num_visible_keys(self.first_query + s), value, const(-math.inf, "float32")
        )

    def output_element(self, s: Var, d: Var) -> PrimExpr:
        """Return an element of the result: the weighted sum over the softmax denominator."""
        value = self.weighted_values[s, d] / self.row_sum[s]
        if not self.heads.nan_as_zero:
            return value
        return if_then_else(call_intrin("isnan", self.row_sum[s]), const(0.0, "float32"), value)

    def build_steps(self) -> list[RegionStep]:
        """Return the steps of the block."""
        d, j, n, m = (te.reduce_axis((0, extent), name) for extent, name in (
            (self.depth, "d"), (self.keys, "j"), (self.keys, "n"), (self.keys, "m")))  # fmt: skip
        scores, rows = _result_destination(self.scores), self.scores.whole_shape
        width = self.weighted_values.whole_shape
        layout = self.heads.layouts[3]
        strides = dict(zip(layout, _row_major_strides(self.output.whole_shape), strict=True))
        destination = ResultLayout(
            self.output,
            (strides["s"], strides["d"]),
            self.b * strides["b"] + self.head * strides["h"] + self.first_query * strides["s"],
        )
        return [
            _region_step(
                rows,
                lambda s, key: te.sum(
                    self.operand_element(self.query, 0, self.first_query + s, d)
                    * self.operand_element(self.key, 1, key, d),
                    d,
                ),
                scores,
                name="scores",
            ),
            _region_step(rows, self.score, scores, name="bent"),
            _region_step(
                rows[:1],
                lambda s: te.max(self.scores[s, j], j),
                _result_destination(self.row_max),
                name="top",
            ),
            _region_step(
                rows,
                lambda s, key: call_intrin("exp", self.scores[s, key] - self.row_max[s]),
                scores,
                name="powers",
            ),
            _region_step(
                rows[:1],
                lambda s: te.sum(self.scores[s, n], n),
                _result_destination(self.row_sum),
                name="total",
            ),
            _region_step(
                width,
                lambda s, d: te.sum(
                    self.scores[s, m] * self.operand_element(self.value, 2, m, d), m
                ),
                _result_destination(self.weighted_values),
                name="mixed",
            ),
            _region_step(width, self.output_element, destination, name="share"),
        ]


def _build_attention(
    regions: _RegionBuilder, op: te.ExternOp, outputs: Sequence[te.Tensor]
) -> None:
    """Build the region of the loop over heads' query blocks."""
    iteration = Var("head")
    head = _QueryBlock(op, outputs[0], iteration)
    regions.regions.append(Region(iteration, head.num_iterations, head.build_steps()))


REGION_BUILDERS: dict[str, Callable[[_RegionBuilder, te.ExternOp, Sequence[te.Tensor]], None]] = {
    "recurrent": _build_recurrent,
    "attention": _build_attention,
}
"""Builder of the regions of each operation tag."""

__all__ = ["Region", "RegionStep", "extern_op_regions"]
