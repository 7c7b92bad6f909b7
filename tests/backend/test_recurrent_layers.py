"""Recurrent layers against float64 formulas, one sequence and one step at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import ekiden
from ekiden import relay
from ekiden.ir.expr_text import format_type
from ekiden.relay import op
from ekiden.runtime.errors import IndexRangeError, TypeInferenceError
from ekiden.topi.recurrent_cells import GATE_COUNTS
from long_runs import alike, share

Array = npt.NDArray[Any]
Function = Callable[[Array], Array]
RANDOM = np.random.default_rng(7)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softplus(x: Array) -> Array:
    return np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0)


FUNCTIONS = {
    "sigmoid": lambda x, a, b: sigmoid(x),
    "tanh": lambda x, a, b: np.tanh(x),
    "relu": lambda x, a, b: np.maximum(x, 0),
    "affine": lambda x, a, b: a * x + b,
    "leaky_relu": lambda x, a, b: np.where(x > 0, x, a * x),
    "scaled_tanh": lambda x, a, b: a * np.tanh(b * x),
    "hard_sigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "elu": lambda x, a, b: np.where(x > 0, x, a * (np.exp(x) - 1)),
    "softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "softplus": lambda x, a, b: softplus(x),
}


class Layer:
    """A layer in float64."""

    def __init__(self, kind: str, tensors: dict[str, Array], options: dict[str, Any]) -> None:
        self.kind, self.options = kind, options
        self.w = {k: v if k == "lengths" else v.astype(np.float64) for k, v in tensors.items()}
        self.hidden = tensors["weight_h"].shape[1]
        names = options.get("activations", ())
        alphas, betas = (list(options.get(n, ())) + [0.0] * 3 for n in ("alphas", "betas"))
        self.given = [
            lambda x, n=n, a=a, b=b: FUNCTIONS[n](x, a, b)
            for n, a, b in zip(names, alphas, betas, strict=False)
        ]

    def act(self, n: int, default: Function) -> Function:
        function = self.given[n] if self.given else default
        limit = self.options.get("clip", 0.0)
        return (lambda x: function(np.clip(x, -limit, limit))) if limit else function

    def step(self, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        w = self.w
        a = w["weight_i"] @ x + w["bias_i"]
        r = w["weight_h"] @ h + w["bias_h"]
        if self.kind == "rnn":
            return self.act(0, np.tanh)(a + r), c
        f, g = self.act(0, sigmoid), self.act(1, np.tanh)
        if self.kind == "gru":
            (ar, az, an), (rr, rz, rn) = np.split(a, 3), np.split(r, 3)
            reset, update = f(ar + rr), f(az + rz)
            product = reset * rn
            if self.options.get("reset_first"):
                last = w["weight_h"][2 * self.hidden :]
                product = last @ (reset * h) + w["bias_h"][2 * self.hidden :]
            return (1 - update) * g(an + product) + update * h, c
        i, forget, cell, o = np.split(a + r, 4)
        pi, pf, po = np.split(w.get("peephole", np.zeros(3 * self.hidden)), 3)
        take = f(i + pi * c)
        keep = 1 - take if self.options.get("input_forget") else f(forget + pf * c)
        c = keep * c + take * g(cell)
        last = self.given[2] if self.given else np.tanh
        return f(o + po * c) * last(c), c

    def run(self, data: Array) -> tuple[Array, Array, Array]:
        steps, batch = data.shape[:2]
        result = np.zeros((steps, batch, self.hidden))
        zeros = np.zeros((batch, self.hidden))
        h, c = (np.array(self.w.get(n, zeros)) for n in ("initial_h", "initial_c"))
        for b in range(batch):
            length = int(self.w["lengths"][b]) if "lengths" in self.w else steps
            for t in range(length):
                at = length - 1 - t if self.options.get("reverse") else t
                h[b], c[b] = self.step(data[at, b].astype(np.float64), h[b], c[b])
                result[at, b] = h[b]
        return result, h, c


def random_tensors(kind: str, inputs: int, hidden: int) -> dict[str, Array]:
    rows = GATE_COUNTS[kind] * hidden
    shapes = {
        "weight_i": (rows, inputs),
        "weight_h": (rows, hidden),
        "bias_i": (rows,),
        "bias_h": (rows,),
    }
    return {k: RANDOM.standard_normal(s, np.float32) * np.float32(0.4) for k, s in shapes.items()}


def check(
    kind: str,
    size: tuple[int, int, int, int],
    extras: dict[str, Array] | None = None,
    dynamic: bool = True,
    weights_given: bool = False,
    **options: object,
) -> None:
    """Compiled and interpreted results of a layer, sizes as (steps, batch, inputs, hidden)."""
    steps, batch, inputs, hidden = size
    tensors = random_tensors(kind, inputs, hidden) | (extras or {})
    dims = [relay.SizeVar(n, "int64") for n in ("steps", "batch")] if dynamic else [steps, batch]
    fixed = extras is not None
    x = relay.var("x", shape=(dims[0], batch if fixed else dims[1], inputs))
    params = [x]
    values = {name: relay.const(v) for name, v in tensors.items()}
    arrays = [RANDOM.standard_normal((steps, batch, inputs), np.float32)]
    if weights_given:
        values["weight_h"] = relay.var("w", shape=tensors["weight_h"].shape)
        params.append(values["weight_h"])
        arrays.append(tensors["weight_h"])
    transformed = getattr(op.nn, kind)(x, **values, **options)
    module = relay.IRModule.from_expr(relay.Function(params, transformed))
    expected = Layer(kind, tensors, options).run(arrays[0])
    actual = ekiden.compile(module)(*arrays)
    meant = relay.create_executor("debug", module).evaluate()(*arrays)
    for result, also, want in zip(actual, meant, expected, strict=False):
        np.testing.assert_allclose(result, want, rtol=2e-5, atol=2e-5)
        np.testing.assert_allclose(also.numpy(), want, rtol=2e-5, atol=2e-5)


@share(4)
@pytest.mark.parametrize("kind", GATE_COUNTS)
@pytest.mark.parametrize("size", [(5, 1, 4, 16), (1, 1, 3, 5), (4, 9, 7, 37), (3, 2, 5, 300)])
def test_recurrent_layers_match_formula(kind: str, size: tuple[int, int, int, int]) -> None:
    check(kind, size)


@pytest.mark.parametrize("kind", GATE_COUNTS)
def test_all_options_combined_match_formula(kind: str) -> None:
    steps, batch, hidden = 6, 3, 21
    extras = {
        "initial_h": RANDOM.standard_normal((batch, hidden), np.float32),
        "lengths": np.array([6, 0, 4], np.int32),
    }
    if kind == "lstm":
        extras["initial_c"] = RANDOM.standard_normal((batch, hidden), np.float32)
        extras["peephole"] = RANDOM.standard_normal(3 * hidden, np.float32)
    check(kind, (steps, batch, 4, hidden), extras, reverse=True, clip=0.7)


def test_zero_steps_return_the_initial_state() -> None:
    check("lstm", (0, 2, 3, 8), {"initial_h": np.ones((2, 8), np.float32)})


def test_reverse_layers_without_lengths_match_formula() -> None:
    check("gru", (5, 2, 3, 8), reverse=True)


@pytest.mark.parametrize("hidden", [6, 32, 272])
def test_gru_reset_before_matmul_matches_formula(hidden: int) -> None:
    check("gru", (4, 2, 3, hidden), reset_first=True)


def test_coupled_input_forget_gates_match_formula() -> None:
    check("lstm", (4, 2, 3, 8), input_forget=True)


def test_computed_weights_match_formula() -> None:
    check("lstm", (4, 2, 3, 20), weights_given=True)
    check("gru", (4, 1, 3, 9), weights_given=True, dynamic=False)


@alike(4)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_custom_activations_match_formula(name: str) -> None:
    check("rnn", (3, 1, 4, 18), activations=(name,), alphas=(0.3,), betas=(0.6,))


def test_lstm_activations_are_f_g_h() -> None:
    names = ("hard_sigmoid", "softsign", "relu")
    check("lstm", (3, 1, 4, 18), activations=names, alphas=(0.2,), betas=(0.5,))


def test_recurrent_step_is_split_among_threads() -> None:
    check("lstm", (3, 1, 8, 512), dynamic=False)


def typed(**changes: object) -> str:
    argument: dict[str, Any] = {"kind": "lstm"} | changes
    data = relay.var("x", shape=argument.pop("data", (4, 2, 32)))
    weight = relay.var("w", shape=argument.pop("weight", (32, 8)))
    body = op.nn.recurrent(data, weight, **argument)
    module = relay.IRModule.from_expr(relay.Function([data, weight], body))
    return format_type(relay.transform.InferType()(module)["main"].checked_type.ret_type)


def test_recurrent_layer_result_types() -> None:
    state = "Tensor[(2, 8), float32]"
    assert typed() == f"(Tensor[(4, 2, 8), float32], {state}, {state})"
    assert typed(kind="gru", data=(4, 2, 24), weight=(24, 8)).count(state) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "lstn"}, "kind must be one of rnn, lstm, gru, got 'lstn'"),
        ({"data": (4, 32)}, "'data' must have 3 dimensions"),
        ({"weight": (31, 8)}, "rows of 'weight' and gates \\* hidden must agree, got 31 and 32"),
        ({"data": (4, 2, 31)}, "the last dimension of 'data' must be a multiple of 4"),
        ({"activations": ("tanh",)}, "lstm takes 3 activations, got 1"),
        ({"activations": ("tanh", "tan", "tanh")}, "got tan"),
        ({"extras": {"biases": relay.const(1.0)}}, "given must name some of bias, initial_h"),
        ({"extras": {"bias": relay.const(np.ones(8, np.float32))}}, "the shape of 'bias'"),
        ({"extras": {"lengths": relay.const(np.ones(2, np.int64))}}, "'lengths' must be int32"),
    ],
)
def test_invalid_recurrent_layers_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeInferenceError, match=message):
        typed(**changes)


@pytest.mark.parametrize("tier", ["full", "quick"])
@pytest.mark.parametrize("lengths", [(4, 2), (0, -1), (2**31 - 1, 3)])
def test_lengths_beyond_the_steps_are_refused(tier: str, lengths: tuple[int, int]) -> None:
    """Backwards they would say where in the data to read."""
    x, argument = relay.var("x", shape=(3, 2, 4)), relay.var("n", shape=(2,), dtype="int32")
    weight_i, weight_h = (relay.const(np.ones((9, n), "float32")) for n in (4, 3))
    layer = op.nn.gru(x, weight_i, weight_h, lengths=argument, reverse=True)
    module = ekiden.IRModule.from_expr(relay.Function([x, argument], layer[0]))
    arrays = np.ones((3, 2, 4), "float32"), np.array(lengths, "int32")
    message = r"recurrent: length -?\d+ at position [01] is out of range \(\[0, 3\] are valid\)"
    for run in (
        ekiden.compile(module, tier=tier),
        relay.create_executor("debug", module).evaluate(),
    ):
        with pytest.raises(IndexRangeError, match=message):
            run(*arrays)
