"""Layers of recurrent networks: the loop over time in one kernel.

    for t:  for panel:  gates = h[t - 1] * weight[panel];  h[t], c[t] = cell(data[t] + gates)

A panel of the weight holds `lanes` neighbouring hidden units with all their gates, so the register
tile of a panel is all that the cell of those units needs, and it is computed where the product
ends. Each thread keeps the same run of panels through all steps and walks it forth and back by
turns: what it read last is what it reads first, so a part as large as its L2 cache is not fetched
again (512 units: 4 MB of weights, 46 us for a step from L3).

A weight of int8 is multiplied with states that are quantised to bytes before each step, and
widened to int16 where words are multiplied in pairs (int8_dot.py). Its panels may have rows behind
the others, with a list of the words of the states that they are multiplied with.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from ekiden import te
from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin, if_then_else
from ekiden.ir.prim import (
    Add,
    Cast,
    Div,
    IntImm,
    Max,
    Min,
    Mul,
    PrimExpr,
    Select,
    Sub,
    Var,
    cast,
    const,
)
from ekiden.kernels.cost_model import accumulator_chains
from ekiden.kernels.decision import Decision
from ekiden.kernels.family import Family
from ekiden.kernels.micro_kernels.register_tiles import (
    RegisterTile,
    balanced_row_tiles,
    emit_register_tile,
)
from ekiden.kernels.micro_kernels.vector_memory import VectorMemory
from ekiden.kernels.prim_builder import create_tiled_function, declare_extern_parameters
from ekiden.kernels.quantized.int8_dot import create_widened_buffer, emit_widen_pairs
from ekiden.kernels.spaces.recurrent import (
    default_decision,
    register_gate_groups,
    search_space,
    state_dtype,
)
from ekiden.target import Target
from ekiden.te.range_checks import range_checks_of
from ekiden.tir.expr import Buffer, BufferLoad, VectorReduce, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, LetStmt, PrimFunc, Stmt, seq
from ekiden.tir.tensor_intrin.micro import GatherLoop, SumLoop
from ekiden.topi.nn.weight_packing import DOT_WORD_CHANNELS
from ekiden.topi.recurrent_cells import RecurrentCell, VectorMath

DEFAULT_RECURRENT_LANES = 16
"""Hidden units per panel without a target."""
MIN_PARALLEL_PRODUCTS = 1 << 17
"""Multiply-adds per time step below which the step is not parallelised."""
DEFAULT_BATCH_ROWS = 6
"""Sequences per register tile without a target."""
PEEPHOLE_NAMES = ("p_i", "p_f", "p_o")


class RecurrentLayerKernel(VectorMemory):
    """Builder of the kernel of one recurrent layer. `inputs` are data [steps, batch, gates *
    hidden], weight (packed, or as it is), and those of `cell.given`; `outputs` all hidden states
    and the last states.
    """

    def __init__(
        self,
        cell: RecurrentCell,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        target: Target | None = None,
        decision: Decision | None = None,
    ) -> None:
        self.cell, self.outputs, self.target = cell, outputs, target
        self.cores = target.cores if target is not None else 1
        self.data, self.weight = inputs[:2]
        self.optional_inputs = dict(zip(cell.optional_inputs, inputs[2:], strict=True))
        self.is_packed = len(self.weight.shape) > 2
        self.is_bytes = self.weight.dtype == "int8"
        lanes = target.lanes("float32") if target is not None else DEFAULT_RECURRENT_LANES
        self.lanes = self._packed_lanes() if self.is_packed else lanes
        self.steps, self.batch = self.data.shape[:2]
        rows = self.data.shape[2]
        assert isinstance(rows, IntImm)
        self.hidden = rows.value // cell.num_gates
        self.panels = -(-self.hidden // self.lanes)
        self.word_elements = DOT_WORD_CHANNELS if self.is_bytes else 1
        self.depth = -(-self.hidden // self.word_elements)
        self.width = self.panels * self.lanes
        self.state_elements = simplify(self.batch * self.width)
        # Rows of states are whole vectors: products read them unmasked. Two halves take turns.
        self.h = Buffer("h_state", (self.state_elements * 2,))
        self.c = Buffer("c_state", (self.state_elements,))
        self.reset = Buffer("reset_state", (self.state_elements,))
        self.update = Buffer("update", (self.state_elements,))
        self.quantized = Buffer("quantized", (self.state_elements,), "uint8")
        self.dot = str((decision or Decision()).get("dot", ""))
        self.rows = int((decision or Decision()).get("rows", DEFAULT_BATCH_ROWS))
        self.word_indices = self.optional_inputs.get("places")
        self.num_residual_words = (
            0 if self.word_indices is None else _static_size(self.word_indices.shape[1])
        )
        self.widened_states = create_widened_buffer(self.quantized, decision or Decision())
        self.scale = Buffer("state_scale", (const(1),))
        self.zero_point = Buffer("state_zero_point", (const(1),), "int32")
        self.state_dtype = state_dtype(self.weight.dtype, cell)
        self.states = {"h": self.h} | ({"c": self.c} if cell.kind == "lstm" else {})

    def _packed_lanes(self) -> int:
        width = self.weight.shape[2]
        assert isinstance(width, IntImm)
        return width.value // self.cell.num_gates

    # Vectors.

    def unit_mask(self, panel: PrimExpr) -> PrimExpr | None:
        """Return the mask of a panel's lanes that are hidden units, or None for all."""
        if self.hidden == self.width:
            return None
        limit = broadcast(const(self.hidden), self.lanes)
        return ramp(panel * self.lanes, 1, self.lanes) < limit

    # Before and after the loop.

    def emit_copy_state(self, name: str, first: bool) -> Stmt:
        """Emit the copy of a state from its initial value, or to its output."""
        row, panel = Var("row"), Var("panel")
        state, mask = self.states[name], self.unit_mask(panel)
        inside, outside = (row * n + panel * self.lanes for n in (self.width, self.hidden))
        if first:
            initial = self.optional_inputs.get(f"initial_{name}")
            value = (
                self.broadcast_scalar(0.0) if initial is None else self.load(initial, outside, mask)
            )
            body = self.store(state, inside, value)
        else:
            output = self.outputs[1 + list(self.states).index(name)]
            # Halves take turns: after all steps the last state is in half steps % 2.
            half = self.steps % 2 * self.state_elements if name == "h" else const(0)
            body = self.store(output, outside, self.load(state, half + inside), mask)
        panels_loop = For(panel, const(0), const(self.panels), ForKind.SERIAL, body)
        return For(row, const(0), self.batch, ForKind.SERIAL, panels_loop)

    def pack_weight(self) -> tuple[Buffer, Stmt]:
        """Return the buffer of a packed weight, and the statement that fills it."""
        gates, lanes, dtype = self.cell.num_gates, self.lanes, self.weight.dtype
        count = self.panels * self.depth * gates * lanes * self.word_elements
        copy = Buffer("packed", (const(count),), dtype)
        panel, k = Var("panel"), Var("k")
        mask, zero = self.unit_mask(panel), broadcast(const(0, dtype), lanes)
        steps = []
        for gate, byte in product(range(gates), range(self.word_elements)):
            column = k * self.word_elements + byte
            index = (ramp((panel * lanes + gate * self.hidden) * self.hidden + column,
                          self.hidden, lanes),)  # fmt: skip
            value: PrimExpr = BufferLoad(self.weight, index, dt.with_lanes(dtype, lanes))
            if mask is not None:
                value = if_then_else(mask, value, zero)
            # The last word of a row is padded with zeros, which add nothing to the products.
            if self.depth * self.word_elements != self.hidden:
                value = if_then_else(column < self.hidden, value, zero)
            offset = ((panel * self.depth + k) * gates + gate) * (lanes * self.word_elements) + byte
            steps.append(BufferStore(copy, value, (ramp(offset, self.word_elements, lanes),)))
        rows = For(k, const(0), const(self.depth), ForKind.SERIAL, seq(*steps))
        return copy, For(panel, const(0), const(self.panels), ForKind.PARALLEL, rows, {"grain": 1})

    # One step.

    def time_of_step(self, t: PrimExpr, row: PrimExpr) -> tuple[PrimExpr, PrimExpr | None]:
        """Return the data row of step t of a sequence, and the condition that the sequence has a
        step t.
        """
        lengths = self.optional_inputs.get("lengths")
        if lengths is None:
            return (self.steps - 1 - t if self.cell.reverse else t), None
        length = BufferLoad(lengths, (row,), "int32")
        is_active = t < length
        at = length - 1 - t
        return (if_then_else(is_active, at, t) if self.cell.reverse else t), is_active

    def matmul_lhs_address(self, t: PrimExpr, phase: int) -> tuple[Buffer, PrimExpr]:
        """Return the buffer and offset of a phase's left operand."""
        if self.is_bytes:
            return self.quantized if self.widened_states is None else self.widened_states, const(0)
        return self.phase_state(t, phase)

    def phase_state(self, t: PrimExpr, phase: int) -> tuple[Buffer, PrimExpr]:
        """Return the buffer and offset of a phase's state."""
        return (self.reset, const(0)) if phase else (self.h, t % 2 * self.state_elements)

    def emit_quantize(self, t: PrimExpr, phase: int) -> Stmt:
        """Emit the dynamic quantisation of a phase's state to bytes; its range includes 0."""
        source, start = self.phase_state(t, phase)
        shape, one = (const(self.lanes),), const(0)
        # Both start at 0, so that 0 is a level of the range (as in ONNX DynamicQuantizeLinear).
        low, high = (Buffer(name, shape, scope="local") for name in ("low", "high"))
        i, j = Var("i"), Var("j")
        count = simplify(self.state_elements // self.lanes)
        value = self.load(source, start + i * self.lanes)
        vector = value.dtype
        extremes = seq(
            self.store(low, one, Min(self.load(low, one), value, vector)),
            self.store(high, one, Max(self.load(high, one), value, vector)),
        )
        minimum = VectorReduce(self.load(low, one), "min", "float32")
        maximum = VectorReduce(self.load(high, one), "max", "float32")
        spread = (maximum - minimum) / const(255.0, "float32")
        # A state of zeros has no range: any scale that is not 0 serves.
        step = if_then_else(maximum > minimum, spread, const(1.0, "float32"))
        scale = self.scale[const(0)]
        zero = call_intrin("round", (const(0.0, "float32") - minimum) / scale)
        level = call_intrin("round", Div(self.load(source, start + j * self.lanes),
                                         broadcast(scale, self.lanes), vector))  # fmt: skip
        shift = broadcast(cast(self.zero_point[const(0)], "float32"), self.lanes)
        top = broadcast(const(255.0, "float32"), self.lanes)
        byte = Max(Min(Add(level, shift, vector), top, vector), self.broadcast_scalar(0.0), vector)
        bytes_ = Cast(byte, dt.with_lanes("uint8", self.lanes))
        stmt = seq(
            self.store(low, one, self.broadcast_scalar(0.0)),
            self.store(high, one, self.broadcast_scalar(0.0)),
            For(i, const(0), count, ForKind.SERIAL, extremes),
            BufferStore(self.scale, step, (const(0),)),
            BufferStore(self.zero_point, cast(zero, "int32"), (const(0),)),
            For(j, const(0), count, ForKind.SERIAL,
                self.store(self.quantized, j * self.lanes, bytes_)),
        )  # fmt: skip
        if self.widened_states is not None:
            width = const(self.width)
            stmt = seq(
                stmt,
                emit_widen_pairs(
                    self.quantized,
                    self.widened_states,
                    self.batch * width,
                    self.lanes,
                    self.word_elements,
                ),
            )
        return Allocate(low, Allocate(high, stmt))

    def gate_products(self, products: Buffer, at: PrimExpr, phase: int, unit: PrimExpr,
                      mask: PrimExpr | None) -> list[PrimExpr]:  # fmt: skip
        """Return the products of a phase's gates for a panel, in float32."""
        gate_values: list[PrimExpr] = []
        for n, gate in enumerate(self.cell.gate_phases[phase]):
            value = self.load(products, at + n * self.lanes)
            if self.is_bytes:
                row, vector = unit + gate * self.hidden, dt.with_lanes("int32", self.lanes)
                zero = broadcast(self.zero_point[const(0)], self.lanes)
                # sum((q - zero) * w) = sum(q * w) - zero * sum(w), whose sums of w are stored.
                sums = Mul(zero, self.load(self.optional_inputs["sums"], row, mask), vector)
                step = broadcast(self.scale[const(0)], self.lanes)
                weight = self.load(self.optional_inputs["scale"], row, mask)
                total = Cast(Sub(value, sums, vector), weight.dtype)
                value = Mul(total, Mul(step, weight, weight.dtype), weight.dtype)
            gate_values.append(value)
        return gate_values

    def emit_panel(self, t: PrimExpr, phase: int, panel: PrimExpr, weight: Buffer) -> Stmt:
        """Emit the matrix product and the cell of a panel, for all sequences."""
        chosen, lanes = self.cell.gate_phases[phase], self.lanes
        dtype = "int32" if self.is_bytes else "float32"

        def emit_rows(rows: int, first: PrimExpr) -> Stmt:
            """Emit some batch rows: the gate products of a panel, in thread-local memory, then the
            cell.
            """
            count = const(rows * len(chosen) * lanes)
            products = Buffer("products", (count,), dtype, "local")
            multiply = seq(
                *(
                    self.emit_products((t, phase), group, (rows, first), (panel, weight), products)
                    for group in self.register_gate_groups(chosen, rows)
                )
            )
            row = Var("row")
            one = self.emit_cell(
                t, phase, panel, first + row, products, row * (len(chosen) * lanes)
            )
            rows_loop = For(row, const(0), const(rows), ForKind.SERIAL, one)
            return Allocate(products, seq(multiply, rows_loop))

        return balanced_row_tiles(self.batch, self.rows, emit_rows)

    def register_gate_groups(self, gates: Sequence[int], rows: int) -> Sequence[Sequence[int]]:
        """Return groups of gates whose accumulators fit the registers together."""
        return (
            (gates,)
            if self.target is None
            else register_gate_groups(gates, rows, self.target, self.state_dtype)
        )

    def emit_products(
        self,
        when: tuple[PrimExpr, int],
        gates: Sequence[int],
        tile: tuple[int, PrimExpr],
        panel: tuple[PrimExpr, Buffer],
        products: Buffer,
    ) -> Stmt:
        """Emit the products of some gates at a step and phase.

        Args:
            when: The step and the phase.
            gates: The gates.
            tile: The number of rows, and the first.
            panel: The panel's number, and the weight.
            products: Where they are stored.
        """
        (t, phase), (rows, first), (number, weight), lanes = when, tile, panel, self.lanes
        chosen = self.cell.gate_phases[phase]
        count, wide, chains = len(gates), len(gates) * lanes, 1
        if self.target is not None:
            # With few rows and gates, one accumulator per sum would wait for the latency of each
            # multiply-add.
            chains = accumulator_chains(rows, count, self.target, self.state_dtype)
        shape = RegisterTile(rows, count, lanes, wide, products.dtype, self.dot, chains)
        behind = (gates[0] - chosen[0]) * lanes

        def store_product(
            i: PrimExpr, column: PrimExpr, value: PrimExpr, _: PrimExpr | None
        ) -> Stmt:
            """Store a vector of products at its row and gate."""
            return self.store(products, i * (len(chosen) * lanes) + behind + column, value)

        step = self.cell.num_gates * lanes * self.word_elements
        base = number * ((self.depth + self.num_residual_words) * step) + gates[0] * (
            lanes * self.word_elements
        )
        source, half = self.matmul_lhs_address(t, phase)
        starts = [half + (first + i) * self.width for i in range(rows)]
        loops = [SumLoop(const(self.depth), const(self.word_elements), const(step))]
        indexed = self.residual_words(number, base)
        return emit_register_tile(
            shape, loops, source, starts, weight, base, store_product, gather=indexed
        )

    def residual_words(self, panel: PrimExpr, base: PrimExpr) -> GatherLoop | None:
        """Return the words of a panel that whole iterations over k leave over, or None."""
        if self.word_indices is None or not self.num_residual_words:
            return None
        step = self.cell.num_gates * self.lanes * self.word_elements
        return GatherLoop(
            extent=const(self.num_residual_words),
            table=self.word_indices,
            table_begin=panel * self.num_residual_words,
            a_stride=const(self.word_elements),
            b_base=base + self.depth * step,
            b_stride=const(step),
        )

    def emit_cell(
        self,
        t: PrimExpr,
        phase: int,
        panel: PrimExpr,
        row: PrimExpr,
        products: Buffer,
        at: PrimExpr,
    ) -> Stmt:
        """Emit the cell of a panel's units in one sequence; its products begin at `at`."""
        chosen, lanes, mask = self.cell.gate_phases[phase], self.lanes, self.unit_mask(panel)
        unit, state_offset = panel * lanes, row * self.width + panel * lanes
        when, is_active = self.time_of_step(t, row)
        time = Var("time")
        line = (time * self.batch + row) * self.cell.num_gates
        x = [self.load(self.data, (line + g) * self.hidden + unit, mask) for g in chosen]
        r = self.gate_products(products, at, phase, unit, mask)
        if "bias" in self.optional_inputs:
            bias = self.optional_inputs["bias"]
            r = [
                value + self.load(bias, unit + g * self.hidden, mask)
                for g, value in zip(chosen, r, strict=True)
            ]
        old = {"h": self.load(self.h, t % 2 * self.state_elements + state_offset)}
        if "c" in self.states:
            old["c"] = self.load(self.c, state_offset)
        cell_inputs = old | {
            name: self.load(self.optional_inputs["peephole"], unit + n * self.hidden, mask)
            for n, name in enumerate(PEEPHOLE_NAMES)
            if "peephole" in self.optional_inputs
        }
        if phase:
            cell_inputs["update"] = self.load(self.update, state_offset)
        new_values = self.cell.compute_phase(VectorMath(lanes), phase, x, r, cell_inputs)
        body = self.emit_store_cell(
            t,
            new_values,
            old,
            state_offset,
            ((time * self.batch + row) * self.hidden + unit, is_active, mask),
        )
        return LetStmt(time, when, body)

    def emit_store_cell(
        self,
        t: PrimExpr,
        new_values: dict[str, PrimExpr],
        old: dict[str, PrimExpr],
        state_offset: PrimExpr,
        output: tuple[PrimExpr, PrimExpr | None, PrimExpr | None],
    ) -> Stmt:
        """Emit the stores of a cell's new values. A sequence that has ended keeps its state, and
        its output is zero.
        """
        at, is_active, mask = output
        targets = {
            # Double-buffered: other panels of this step still read the previous state.
            "h": (self.h, (1 - t % 2) * self.state_elements + state_offset),
            "c": (self.c, state_offset),
            "reset": (self.reset, state_offset),
            "update": (self.update, state_offset),
        }
        names = {
            name: Var(f"new_{name}", dt.with_lanes("float32", self.lanes)) for name in new_values
        }
        stores = []
        for name, variable in names.items():
            stored: PrimExpr = variable
            if is_active is not None and name in old:
                # Shorter sequences of a batch carry their last state to the end.
                stored = Select(broadcast(is_active, self.lanes), stored, old[name], stored.dtype)
            stores.append(self.store(*targets[name], stored))
        if "h" in names:
            shown: PrimExpr = names["h"]
            if is_active is not None:
                shown = Select(
                    broadcast(is_active, self.lanes), shown, self.broadcast_scalar(0.0), shown.dtype
                )
            stores.append(self.store(self.outputs[0], at, shown, mask))
        body = seq(*stores)
        for name, value in reversed(new_values.items()):
            body = LetStmt(names[name], value, body)
        return body

    def emit_phase(self, t: PrimExpr, phase: int, weight: Buffer) -> Stmt:
        """Emit all panels of a phase; threads walk their panels in alternating direction, so that
        the last ones are still in the cache.
        """
        # Each step ends in a barrier of all threads: small layers are faster on one thread.
        products = self.hidden * self.hidden * len(self.cell.gate_phases[phase])
        if isinstance(self.batch, IntImm):
            products *= self.batch.value
        count = min(self.cores, self.panels) if products >= MIN_PARALLEL_PRODUCTS else 1
        chunk, position, panel = Var("chunk"), Var("turn"), Var("panel")
        begin = chunk * self.panels // count
        extent = simplify((chunk + 1) * self.panels // count - begin)
        # Odd steps reverse the run: what is left in the cache from the step before comes first.
        at = begin + position + t % 2 * (extent - 1 - position * 2)
        inside = LetStmt(panel, at, self.emit_panel(t, phase, panel, weight))
        run = For(position, const(0), extent, ForKind.SERIAL, inside)
        kind = ForKind.PARALLEL if count > 1 else ForKind.SERIAL
        grain = {"grain": 1} if count > 1 else None
        shared = For(chunk, const(0), const(count), kind, run, grain)
        return seq(self.emit_quantize(t, phase), shared) if self.is_bytes else shared

    def emit_layer(self) -> Stmt:
        """Emit the complete layer."""
        weight, pack_stmt = (self.weight, None) if self.is_packed else self.pack_weight()
        t = Var("t")
        phases = [self.emit_phase(t, n, weight) for n in range(len(self.cell.gate_phases))]
        statements = [
            *(self.emit_copy_state(name, True) for name in self.states),
            For(t, const(0), self.steps, ForKind.SERIAL, seq(*phases)),
            *(self.emit_copy_state(name, False) for name in self.states),
        ]
        stmt = seq(*([] if pack_stmt is None else [pack_stmt]), *statements)
        # GRU resets the state in a first phase, which all units must finish before the second.
        used = [*self.states.values(), *([self.reset, self.update] if len(phases) > 1 else [])]
        if self.is_bytes:
            used += [self.quantized, self.scale, self.zero_point]
        if self.widened_states is not None:
            used.append(self.widened_states)
        for buffer in [*used, *([] if pack_stmt is None else [weight])]:
            stmt = Allocate(buffer, stmt)
        return stmt


def build_recurrent(
    inputs: list[te.Tensor],
    outputs: list[te.Tensor],
    target: Target,
    name: str,
    decision: Decision,
) -> PrimFunc:
    """Build the kernel of tag "recurrent": all outputs of one layer."""
    cell = outputs[0].op.attrs["cell"]
    assert isinstance(cell, RecurrentCell)
    buffers, operands, results = declare_extern_parameters(inputs, outputs)
    layer = RecurrentLayerKernel(cell, operands, results, target, decision)
    func = create_tiled_function(name, buffers, layer.emit_layer(), len(outputs))
    if range_checks_of(outputs[0].op):
        func = func.with_attr({"tir.has_blocks": 1})  # the checks of lengths are loops as others
    # gates that stay shut make states decay through subnormal numbers
    return func.with_attr({"tir.flush_subnormals": 1})


def _static_size(dim: PrimExpr) -> int:
    """Return a static dimension as an int."""
    assert isinstance(dim, IntImm), "packed weights are known"
    return dim.value


FAMILY = Family(
    name="recurrent",
    build_unscheduled=build_recurrent,
    unscheduled_reason=(
        "the gates of a step are summed in registers and end in the cell; no micro-kernel takes a "
        "block of ordered steps"
    ),
    search_space=search_space,
    default_decision=default_decision,
    prevents_fusion=True,
)

__all__ = ["DEFAULT_RECURRENT_LANES", "RecurrentLayerKernel", "build_recurrent"]
