"""LSTM of one and of two layers (inputs 300, hidden 512) with the same seeded weights in each
engine; a case is the length of a sequence of one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from nimble_engines import SEED, Array, Foreign, OnnxGraph, Run, Weights, torch_for

import ekiden
from ekiden import relay
from ekiden.relay import op

INPUTS, HIDDEN = 300, 512


def sequence(length: int) -> Array:
    """Inputs [steps, 1, INPUTS]."""
    return np.random.default_rng((SEED, length)).standard_normal((length, 1, INPUTS), np.float32)


def weights(layers: int) -> list[list[Array]]:
    """Of each layer: input and hidden weights, biases; gates in the order i, f, g, o."""
    draw, rows = Weights(), 4 * HIDDEN
    sizes = [INPUTS, *[HIDDEN] * (layers - 1)]
    return [[draw(rows, n), draw(rows, HIDDEN), draw(rows), draw(rows)] for n in sizes]


def run_ekiden(layers: int, threads: int) -> Run:
    """One artifact for all lengths."""
    x: relay.Expr = relay.var("x", shape=(relay.SizeVar("steps", "int64"), 1, INPUTS))
    state = x
    for given in weights(layers):
        state = relay.TupleGetItem(op.nn.lstm(state, *map(relay.const, given)), 0)
    exe = ekiden.compile(relay.IRModule.from_expr(relay.Function([x], state)))
    return lambda length: [exe(sequence(length))]


def run_torch(layers: int, threads: int) -> Run:
    """torch.nn.LSTM."""
    return _torch(layers, torch_for(threads), lambda model: model)


def run_torch_compile(layers: int, threads: int) -> Run:
    """The same through torch.compile, lengths dynamic."""
    torch = torch_for(threads)
    return _torch(layers, torch, lambda model: torch.compile(model, dynamic=True))


def _torch(layers: int, torch: Foreign, wrap: Callable[[Foreign], Foreign]) -> Run:
    model = torch.nn.LSTM(INPUTS, HIDDEN, layers).eval()
    for n, given in enumerate(weights(layers)):
        for name, value in zip(
            ("weight_ih", "weight_hh", "bias_ih", "bias_hh"), given, strict=True
        ):
            getattr(model, f"{name}_l{n}").data = torch.from_numpy(value)
    model.flatten_parameters()
    call = wrap(model)
    return lambda length: [call(torch.from_numpy(sequence(length)))[0].numpy()]


def run_onnxruntime(layers: int, threads: int) -> Run:
    """ONNX's LSTM operator."""
    graph = OnnxGraph()
    state = "x"
    for wi, wh, bi, bh in weights(layers):
        wi, wh, bi, bh = (_iofc(w)[None] for w in (wi, wh, bi, bh))
        tensors = map(graph.constant, (wi, wh, np.concatenate([bi, bh], 1)))
        made = graph.node("LSTM", state, *tensors, outputs=3, hidden_size=HIDDEN)
        state = graph.node("Squeeze", made, graph.constant(np.array([1])))
    session = graph.session(threads, {"x": (1, ["steps", 1, INPUTS])}, state)
    return lambda length: list(session.run(None, {"x": sequence(length)}))


def _iofc(weight: Array) -> Array:
    """Gates i, f, g, o in ONNX's order i, o, f, g."""
    i, f, g, o = np.split(weight, 4)
    return np.concatenate([i, o, f, g])


def engines(layers: int) -> dict[str, Callable[[int], Run]]:
    """Each engine's workload, ours first."""
    made = {
        "ekiden": run_ekiden,
        "torch": run_torch,
        "torch.compile": run_torch_compile,
        "onnxruntime": run_onnxruntime,
    }
    return {name: partial(make, layers) for name, make in made.items()}
