"""LSTMs of one and two layers (input 300, hidden 512) with the same seeded weights in each engine;
a case is the length of a sequence of one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from nimble_engines import (
    WEIGHT_SEED,
    Array,
    ForeignModule,
    OnnxGraph,
    Run,
    SeededWeights,
    import_torch,
)

import ekiden
from ekiden import relay
from ekiden.relay import op

INPUTS, HIDDEN = 300, 512


def random_sequence(length: int) -> Array:
    """Return the inputs of a sequence, [steps, 1, INPUTS]."""
    return np.random.default_rng((WEIGHT_SEED, length)).standard_normal(
        (length, 1, INPUTS), np.float32
    )


def lstm_weights(layers: int) -> list[list[Array]]:
    """Return each layer's input and hidden weights and biases, with gates in the order i,
    f, g, o.
    """
    draw, rows = SeededWeights(), 4 * HIDDEN
    sizes = [INPUTS, *[HIDDEN] * (layers - 1)]
    return [[draw(rows, n), draw(rows, HIDDEN), draw(rows), draw(rows)] for n in sizes]


def run_ekiden(layers: int, threads: int) -> Run:
    """Return Ekiden's run: one artifact for all lengths."""
    x: relay.Expr = relay.var("x", shape=(relay.SizeVar("steps", "int64"), 1, INPUTS))
    state = x
    for layer_weights in lstm_weights(layers):
        state = relay.TupleGetItem(op.nn.lstm(state, *map(relay.const, layer_weights)), 0)
    exe = ekiden.compile(relay.IRModule.from_expr(relay.Function([x], state)))
    return lambda length: [exe(random_sequence(length))]


def run_torch(layers: int, threads: int) -> Run:
    """Return a run of torch.nn.LSTM."""
    return _make_torch_run(layers, import_torch(threads), lambda model: model)


def run_torch_compile(layers: int, threads: int) -> Run:
    """Return a run through torch.compile with dynamic lengths."""
    torch = import_torch(threads)
    return _make_torch_run(layers, torch, lambda model: torch.compile(model, dynamic=True))


def _make_torch_run(
    layers: int, torch: ForeignModule, wrap: Callable[[ForeignModule], ForeignModule]
) -> Run:
    """Return a run of the wrapped PyTorch model."""
    model = torch.nn.LSTM(INPUTS, HIDDEN, layers).eval()
    for n, layer_weights in enumerate(lstm_weights(layers)):
        for name, value in zip(
            ("weight_ih", "weight_hh", "bias_ih", "bias_hh"), layer_weights, strict=True
        ):
            getattr(model, f"{name}_l{n}").data = torch.from_numpy(value)
    model.flatten_parameters()
    call = wrap(model)
    return lambda length: [call(torch.from_numpy(random_sequence(length)))[0].numpy()]


def run_onnxruntime(layers: int, threads: int) -> Run:
    """Return a run of ONNX's LSTM operator."""
    graph = OnnxGraph()
    state = "x"
    for wi, wh, bi, bh in lstm_weights(layers):
        wi, wh, bi, bh = (_reorder_gates(w)[None] for w in (wi, wh, bi, bh))
        tensors = map(graph.add_initializer, (wi, wh, np.concatenate([bi, bh], 1)))
        # Y has the shape [steps, directions, batch, hidden]: the axis of directions is squeezed.
        lstm_output = graph.add_node("LSTM", state, *tensors, outputs=3, hidden_size=HIDDEN)
        state = graph.add_node("Squeeze", lstm_output, graph.add_initializer(np.array([1])))
    session = graph.create_session(threads, {"x": (1, ["steps", 1, INPUTS])}, state)
    return lambda length: list(session.run(None, {"x": random_sequence(length)}))


def _reorder_gates(weight: Array) -> Array:
    """Reorder LSTM gates from PyTorch's i, f, g, o to ONNX's i, o, f, c."""
    i, f, g, o = np.split(weight, 4)
    return np.concatenate([i, o, f, g])


def lstm_engines(layers: int) -> dict[str, Callable[[int], Run]]:
    """Return each engine's workload, ours first."""
    makers = {
        "ekiden": run_ekiden,
        "torch": run_torch,
        "torch.compile": run_torch_compile,
        "onnxruntime": run_onnxruntime,
    }
    return {name: partial(make, layers) for name, make in makers.items()}
