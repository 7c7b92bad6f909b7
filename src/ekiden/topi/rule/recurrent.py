"""Layers of recurrent networks: the loop over time in one kernel.

    for t:  for panel:  gates = h[t - 1] * weight[panel];  h[t], c[t] = cell(data[t] + gates)

A panel of the weight holds `lanes` neighbouring hidden units with all their gates, so the register
tile of a panel is all that the cell of those units needs, and it is computed where the product
ends. Each thread keeps the same run of panels through all steps and walks it forth and back by
turns: what it read last is what it reads first, so a part as large as its L2 cache is not fetched
again (512 units: 4 MB of weights, 46 us for a step from L3).
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.arith import simplify
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import IntImm, PrimExpr, Select, Var, const
from ekiden.target import Target
from ekiden.tir.expr import Buffer, BufferLoad, broadcast, ramp
from ekiden.tir.stmt import (
    Allocate,
    BufferStore,
    For,
    ForKind,
    LetStmt,
    PrimFunc,
    Stmt,
    seq,
)
from ekiden.topi.cells import Cell, VectorMaths
from ekiden.topi.rule.dense import make_buffers
from ekiden.topi.rule.tiles import KLoop, Tile, balanced_rows, compute_tile

LANES = 16
"""Hidden units of a panel where no target is known."""
PARALLEL_PRODUCTS = 1 << 17
"""Multiplications of a step from which threads share it: less takes no longer than to call them."""
MAX_ROWS = 6
"""Sequences of a batch that a register tile takes."""
PEEPHOLES = ("p_i", "p_f", "p_o")


class Layer:
    """The statement of one layer. `inputs` are data [steps, batch, gates * hidden], weight (packed,
    or as it is), and those of `cell.given`; `outputs` all hidden states and the last states."""

    def __init__(
        self,
        cell: Cell,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        lanes: int,
        cores: int,
    ) -> None:
        self.cell, self.outputs, self.cores = cell, outputs, cores
        self.data, self.weight = inputs[:2]
        self.extras = dict(zip(cell.given, inputs[2:], strict=True))
        self.is_packed = len(self.weight.shape) == 3
        self.lanes = self._packed_lanes() if self.is_packed else lanes
        self.steps, self.batch = self.data.shape[:2]
        hidden = self.weight.shape[1]
        assert isinstance(hidden, IntImm)
        self.hidden, self.panels = hidden.value, -(-hidden.value // self.lanes)
        self.width = self.panels * self.lanes
        self.size = simplify(self.batch * self.width)
        # Rows of states are whole vectors: products read them unmasked. Two halves take turns.
        self.h = Buffer("h_state", (self.size * 2,))
        self.c = Buffer("c_state", (self.size,))
        self.reset = Buffer("reset_state", (self.size,))
        self.update = Buffer("update", (self.size,))
        self.states = {"h": self.h} | ({"c": self.c} if cell.kind == "lstm" else {})

    def _packed_lanes(self) -> int:
        width = self.weight.shape[2]
        assert isinstance(width, IntImm)
        return width.value // self.cell.gates

    # Vectors.

    def load(self, buffer: Buffer, at: PrimExpr, mask: PrimExpr | None = None) -> PrimExpr:
        """A vector; zeros where the mask is not set."""
        vector = BufferLoad(buffer, (ramp(at, 1, self.lanes),), f"float32x{self.lanes}")
        return vector if mask is None else if_then_else(mask, vector, self.zero)

    def store(
        self, buffer: Buffer, at: PrimExpr, value: PrimExpr, mask: PrimExpr | None = None
    ) -> Stmt:
        """Keep a vector."""
        return BufferStore(buffer, value, (ramp(at, 1, self.lanes),), mask)

    @property
    def zero(self) -> PrimExpr:
        """A vector of zeros."""
        return broadcast(const(0.0, "float32"), self.lanes)

    def mask(self, panel: PrimExpr) -> PrimExpr | None:
        """The lanes of a panel that are hidden units; None where all are."""
        if self.hidden == self.width:
            return None
        limit = broadcast(const(self.hidden), self.lanes)
        return ramp(panel * self.lanes, 1, self.lanes) < limit

    # Before and after the loop.

    def each_state(self, name: str, first: bool) -> Stmt:
        """A state from its initial value, or to its output."""
        row, panel = Var("row"), Var("panel")
        state, mask = self.states[name], self.mask(panel)
        inside, outside = (row * n + panel * self.lanes for n in (self.width, self.hidden))
        if first:
            given = self.extras.get(f"initial_{name}")
            value = self.zero if given is None else self.load(given, outside, mask)
            body = self.store(state, inside, value)
        else:
            output = self.outputs[1 + list(self.states).index(name)]
            half = self.steps % 2 * self.size if name == "h" else const(0)
            body = self.store(output, outside, self.load(state, half + inside), mask)
        each = For(panel, const(0), const(self.panels), ForKind.SERIAL, body)
        return For(row, const(0), self.batch, ForKind.SERIAL, each)

    def packed(self) -> tuple[Buffer, Stmt]:
        """A copy of the weight in panels, and what makes it."""
        gates, lanes = self.cell.gates, self.lanes
        copy = Buffer("packed", (const(self.panels * self.hidden * gates * lanes),))
        panel, k = Var("panel"), Var("k")
        mask = self.mask(panel)
        steps = []
        for gate in range(gates):
            first = (panel * lanes + gate * self.hidden) * self.hidden + k
            index = (ramp(first, self.hidden, lanes),)
            value: PrimExpr = BufferLoad(self.weight, index, f"float32x{lanes}")
            if mask is not None:
                value = if_then_else(mask, value, self.zero)
            steps.append(
                self.store(copy, ((panel * self.hidden + k) * gates + gate) * lanes, value)
            )
        rows = For(k, const(0), const(self.hidden), ForKind.SERIAL, seq(*steps))
        return copy, For(panel, const(0), const(self.panels), ForKind.PARALLEL, rows, {"grain": 1})

    # One step.

    def time(self, t: PrimExpr, row: PrimExpr) -> tuple[PrimExpr, PrimExpr | None]:
        """(which row of the data step t of a sequence takes, whether the sequence has a step t)."""
        lengths = self.extras.get("lengths")
        if lengths is None:
            return (self.steps - 1 - t if self.cell.reverse else t), None
        length = BufferLoad(lengths, (row,), "int32")
        there = t < length
        at = length - 1 - t
        return (if_then_else(there, at, t) if self.cell.reverse else t), there

    def units(self, t: PrimExpr, phase: int, panel: PrimExpr, weight: Buffer) -> Stmt:
        """The product and the cell of a panel, for all sequences."""
        chosen, lanes = self.cell.phases[phase], self.lanes
        step = self.cell.gates * lanes
        base = panel * (self.hidden * step) + chosen[0] * lanes
        source = self.reset if phase else self.h
        half = const(0) if phase else t % 2 * self.size

        def tile(rows: int, first: PrimExpr) -> Stmt:
            shape = Tile(rows, len(chosen), lanes, len(chosen) * lanes)
            products = Buffer("products", (const(rows * len(chosen) * lanes),), scope="local")

            def keep(i: PrimExpr, column: PrimExpr, value: PrimExpr, _: PrimExpr | None) -> Stmt:
                return self.store(products, i * (len(chosen) * lanes) + column, value)

            starts = [half + (first + i) * self.width for i in range(rows)]
            loops = [KLoop(const(self.hidden), const(1), const(step))]
            multiply = compute_tile(shape, loops, source, starts, weight, base, keep)
            row = Var("row")
            one = self.one(t, phase, panel, first + row, products, row * (len(chosen) * lanes))
            each = For(row, const(0), const(rows), ForKind.SERIAL, one)
            return Allocate(products, seq(multiply, each))

        return balanced_rows(self.batch, MAX_ROWS, tile)

    def one(
        self,
        t: PrimExpr,
        phase: int,
        panel: PrimExpr,
        row: PrimExpr,
        products: Buffer,
        at: PrimExpr,
    ) -> Stmt:
        """The cell of a panel's units in one sequence; its products begin at `at`."""
        chosen, lanes, mask = self.cell.phases[phase], self.lanes, self.mask(panel)
        unit, place = panel * lanes, row * self.width + panel * lanes
        when, there = self.time(t, row)
        time = Var("time")
        line = (time * self.batch + row) * self.cell.gates
        x = [self.load(self.data, (line + g) * self.hidden + unit, mask) for g in chosen]
        r = [self.load(products, at + n * lanes) for n in range(len(chosen))]
        if "bias" in self.extras:
            bias = self.extras["bias"]
            r = [
                value + self.load(bias, unit + g * self.hidden, mask)
                for g, value in zip(chosen, r, strict=True)
            ]
        old = {"h": self.load(self.h, t % 2 * self.size + place)}
        if "c" in self.states:
            old["c"] = self.load(self.c, place)
        known = old | {
            name: self.load(self.extras["peephole"], unit + n * self.hidden, mask)
            for n, name in enumerate(PEEPHOLES)
            if "peephole" in self.extras
        }
        if phase:
            known["update"] = self.load(self.update, place)
        made = self.cell.step(VectorMaths(lanes), phase, x, r, known)
        body = self.keep(
            t, made, old, place, ((time * self.batch + row) * self.hidden + unit, there, mask)
        )
        return LetStmt(time, when, body)

    def keep(
        self,
        t: PrimExpr,
        made: dict[str, PrimExpr],
        old: dict[str, PrimExpr],
        place: PrimExpr,
        output: tuple[PrimExpr, PrimExpr | None, PrimExpr | None],
    ) -> Stmt:
        """Store what a cell made. A sequence that has ended keeps its state, and its output is
        zero."""
        at, there, mask = output
        targets = {
            "h": (self.h, (1 - t % 2) * self.size + place),
            "c": (self.c, place),
            "reset": (self.reset, place),
            "update": (self.update, place),
        }
        names = {name: Var(f"new_{name}", f"float32x{self.lanes}") for name in made}
        stores = []
        for name, variable in names.items():
            kept: PrimExpr = variable
            if there is not None and name in old:
                kept = Select(broadcast(there, self.lanes), kept, old[name], kept.dtype)
            stores.append(self.store(*targets[name], kept))
        if "h" in names:
            shown: PrimExpr = names["h"]
            if there is not None:
                shown = Select(broadcast(there, self.lanes), shown, self.zero, shown.dtype)
            stores.append(self.store(self.outputs[0], at, shown, mask))
        body = seq(*stores)
        for name, value in reversed(made.items()):
            body = LetStmt(names[name], value, body)
        return body

    def step(self, t: PrimExpr, phase: int, weight: Buffer) -> Stmt:
        """All panels of a phase; the run of each thread forth in even steps, back in odd ones."""
        products = self.hidden * self.hidden * len(self.cell.phases[phase])
        if isinstance(self.batch, IntImm):
            products *= self.batch.value
        count = min(self.cores, self.panels) if products >= PARALLEL_PRODUCTS else 1
        chunk, turn, panel = Var("chunk"), Var("turn"), Var("panel")
        begin = chunk * self.panels // count
        extent = simplify((chunk + 1) * self.panels // count - begin)
        at = begin + turn + t % 2 * (extent - 1 - turn * 2)
        inside = LetStmt(panel, at, self.units(t, phase, panel, weight))
        run = For(turn, const(0), extent, ForKind.SERIAL, inside)
        kind = ForKind.PARALLEL if count > 1 else ForKind.SERIAL
        return For(chunk, const(0), const(count), kind, run, {"grain": 1} if count > 1 else None)

    def body(self) -> Stmt:
        """The whole layer."""
        weight, made = (self.weight, None) if self.is_packed else self.packed()
        t = Var("t")
        phases = [self.step(t, n, weight) for n in range(len(self.cell.phases))]
        statements = [
            *(self.each_state(name, True) for name in self.states),
            For(t, const(0), self.steps, ForKind.SERIAL, seq(*phases)),
            *(self.each_state(name, False) for name in self.states),
        ]
        whole = seq(*([] if made is None else [made]), *statements)
        used = [*self.states.values(), *([self.reset, self.update] if len(phases) > 1 else [])]
        for buffer in [*used, *([] if made is None else [weight])]:
            whole = Allocate(buffer, whole)
        return whole


def recurrent(
    inputs: list[te.Tensor], outputs: list[te.Tensor], target: Target, name: str
) -> PrimFunc:
    """The rule for tag "recurrent": all outputs of one layer."""
    anchor = outputs[0]
    cell = anchor.op.attrs["cell"]
    assert isinstance(cell, Cell)
    assert isinstance(anchor.op, te.ExternOp)
    buffers = make_buffers(inputs, outputs)
    operands = [buffers[t] for t in anchor.op.inputs]
    results = [buffers[t] for t in sorted(outputs, key=lambda t: t.value_index)]
    layer = Layer(cell, operands, results, target.lanes("float32"), target.cores)
    attrs = {"global_symbol": name, "num_outputs": len(outputs), "tir.tiled": 1}
    return PrimFunc((*buffers.values(),), layer.body(), attrs)


__all__ = ["LANES", "Layer", "recurrent"]
