"""LSTM as a scan over time."""

from __future__ import annotations

from collections.abc import Callable

from ekiden import te
from ekiden.ir.prim import PrimExpr, Var, const
from ekiden.te import Tensor

Scalar = Callable[[PrimExpr], PrimExpr]


def lstm(
    Xs: Tensor,  # noqa: N803
    Wi: Tensor,  # noqa: N803
    Wh: Tensor,  # noqa: N803
    Bi: Tensor | None = None,  # noqa: N803
    Bh: Tensor | None = None,  # noqa: N803
    h_init: Tensor | None = None,
    c_init: Tensor | None = None,
    proj: Tensor | None = None,
    p_i: Tensor | None = None,
    p_f: Tensor | None = None,
    p_o: Tensor | None = None,
    f_act: Scalar = te.sigmoid,
    g_act: Scalar = te.tanh,
    h_act: Scalar = te.tanh,
    reverse: bool = False,
    weight_layout: str = "IFGO",
) -> tuple[Tensor, Tensor]:
    """Return (hidden states, cell states) of every step: [time, batch, hidden] each, for [time,
    batch, inputs].

    Wi: [4 hidden, inputs], Wh: [4 hidden, hidden], the gates in the order of `weight_layout` (I
    input, F forget, G cell, O output). Biases [4 hidden], peepholes p_* [hidden], initial states
    [batch, hidden]. `proj` is TVM's and must be None. The input projection of all steps is made
    before the recurrence. Raises ValueError for a layout that does not name each gate once.
    """
    if sorted(weight_layout) != sorted("IFGO"):
        raise ValueError(f"lstm: weight_layout must order the letters IFGO, got {weight_layout!r}")
    if proj is not None:
        raise ValueError("lstm: proj must be None; project the hidden states afterwards")
    steps, batch, size = Xs.shape
    hidden = Wh.shape[1]
    k, j = te.reduce_axis((0, size), "k"), te.reduce_axis((0, hidden), "j")
    gates = (steps, batch, Wi.shape[0])

    def time_index(t: PrimExpr) -> PrimExpr:
        """Return the position in the sequence of a step."""
        return steps - 1 - t if reverse else t

    projected = te.compute(
        gates,
        lambda t, b, g: te.sum(Xs[time_index(t), b, k] * Wi[g, k], k),
        name="input_projection",
    )
    # Row 0 of a state is the one before the first step.
    shape = (steps + 1, batch, hidden)
    h_state, c_state = (te.placeholder(shape, Xs.dtype, n) for n in ("h_state", "c_state"))
    recurrent = te.compute(
        (steps + 1, batch, Wh.shape[0]),
        lambda t, b, g: te.sum(h_state[t - 1, b, j] * Wh[g, j], j),
        name="recurrent_projection",
    )

    def gate_preactivation(letter: str, t: PrimExpr, b: PrimExpr, h: PrimExpr) -> PrimExpr:
        """Return a gate's pre-activation: the input projection of this step plus the recurrent
        product, and both biases. Row t of the states is the state after step t, row 0 the
        initial one.
        """
        position = hidden * weight_layout.index(letter) + h
        value = projected[t - 1, b, position] + recurrent[t, b, position]
        for bias in (Bi, Bh):
            value = value if bias is None else value + bias[position]
        return value

    def peephole(weight: Tensor | None, cell: PrimExpr, h: PrimExpr) -> PrimExpr:
        """Return what a cell adds to a gate, 0 without such a weight."""
        return const(0.0, Xs.dtype) if weight is None else cell * weight[h]

    def next_cell(t: Var, b: Var, h: Var) -> PrimExpr:
        """Return the cell state: f * old + i * g (Hochreiter and Schmidhuber 1997, with the forget
        gate of Gers 2000).
        """
        old = c_state[t - 1, b, h]
        keep = f_act(gate_preactivation("F", t, b, h) + peephole(p_f, old, h))
        take = f_act(gate_preactivation("I", t, b, h) + peephole(p_i, old, h))
        return keep * old + take * g_act(gate_preactivation("G", t, b, h))

    cells = te.compute(shape, next_cell, name="next_c")

    def next_hidden(t: Var, b: Var, h: Var) -> PrimExpr:
        """Return the hidden state by the output gate and the new cell."""
        new = cells[t, b, h]
        return f_act(gate_preactivation("O", t, b, h) + peephole(p_o, new, h)) * h_act(new)

    hiddens = te.compute(shape, next_hidden, name="next_h")
    starts = [_initial_state(first, batch, hidden, Xs.dtype) for first in (h_init, c_init)]
    states = te.scan(starts, [hiddens, cells], [h_state, c_state], name="lstm_scan")
    assert isinstance(states, list)
    return _drop_initial_state(states[0], steps), _drop_initial_state(states[1], steps)


def _initial_state(first: Tensor | None, batch: PrimExpr, hidden: PrimExpr, dtype: str) -> Tensor:
    return te.compute(
        (1, batch, hidden),
        lambda _, b, h: const(0, dtype) if first is None else first[b, h],
        name="start",
    )


def _drop_initial_state(states: Tensor, steps: PrimExpr) -> Tensor:
    return te.compute(
        (steps, *states.shape[1:]),
        lambda t, b, h: states[t + 1, b, h],
        name="states",
        tag="injective",
    )


__all__ = ["lstm"]
