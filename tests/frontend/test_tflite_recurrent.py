"""Recurrent layers of integers give the bits of LiteRT's kernels, run after run."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pytest
from tflite_models import Array, Op, Spec, litert_runs, model

import ekiden
from ekiden.frontend.tflite.gemmlowp import FixedPoint
from ekiden.runtime.errors import ImportModelError, UnsupportedError
from long_runs import share

RNG = np.random.default_rng(19)
Table: TypeAlias = Any
UNITS, INPUTS, BATCH, STEPS = 11, 7, 3, 4


def numbers(dtype: str, *shape: int) -> Array:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype)


def uniform(low: float, high: float) -> float:
    return float(np.float32(RNG.uniform(low, high)))


def weights(*shape: int, dtype: str = "int8", scale: float = 0.0) -> Spec:
    data = numbers(dtype, *shape)
    return Spec(data=data, scale=[scale or uniform(0.002, 0.02)], point=[0])


def runs_agree(
    code: str, args: dict[int, Spec], count: int, table: Table, outs: list[Spec],
    between: list[Spec] | None = None,
) -> None:  # fmt: skip
    """Three runs, each of which begins with what the one before kept. Input 0 is the data."""
    specs, places = [], [-1] * count
    for at, arg in args.items():
        places[at] = len(specs)
        specs.append(arg)
    inside = list(range(len(specs), len(specs) + len(between or [])))
    specs += between or []
    results = list(range(len(specs), len(specs) + len(outs)))
    op = Op(code, places, results, table, between=inside)
    free = [i for i, s in enumerate(specs) if s.data is None and not s.is_variable]
    free = [i for i in free if i not in inside]
    data = model([*specs, *outs], [op], free, results)
    arguments = [[numbers(specs[i].dtype, *specs[i].shape) for i in free] for _ in range(3)]
    exe = ekiden.compile(data)
    for inputs, expected in zip(arguments, litert_runs(data, arguments), strict=True):
        result = exe(*inputs)
        for actual, reference in zip([result] if len(outs) == 1 else result, expected, strict=True):
            np.testing.assert_array_equal(actual.numpy(), reference)


# LSTM.


def lstm(
    shape: tuple[int, ...], more: str = "", few: bool = False, power: int = -11
) -> tuple[dict[int, Spec], list[Spec], Spec]:
    """(inputs, tensors between, output) of a layer with peepholes, a projection or norms; `few`:
    without weights of the input gate."""
    outputs = 5 if "projection" in more else UNITS
    gates = range(1, 4) if few else range(4)
    state = {"scale": [uniform(0.005, 0.02)], "point": [int(RNG.integers(-20, 20))]}
    args = {0: Spec((*shape, INPUTS), "int8", scale=[uniform(0.01, 0.05)], point=[-4])}
    args |= {1 + g: weights(UNITS, INPUTS) for g in gates}
    args |= {5 + g: weights(UNITS, outputs) for g in gates}
    if "peepholes" in more:
        holes = range(1, 3) if few else range(3)
        args |= {9 + h: weights(UNITS, dtype="int16", scale=2e-4) for h in holes}
    args |= {12 + g: Spec(data=RNG.integers(-3000, 3000, UNITS).astype(np.int32)) for g in gates}
    if "projection" in more:
        args[16] = weights(outputs, UNITS)
        args[17] = Spec(data=RNG.integers(-3000, 3000, outputs).astype(np.int32))
    args[18] = Spec((BATCH, outputs), "int8", is_variable=True, **state)  # type: ignore[arg-type]
    args[19] = Spec((BATCH, UNITS), "int16", scale=[2.0**power], point=[0], is_variable=True)
    if "norms" in more:
        args |= {20 + g: weights(UNITS, dtype="int16", scale=uniform(5e-5, 1e-4)) for g in gates}
    between = [Spec((), "int16", scale=[uniform(1e-3, 3e-3)], point=[0]) for _ in range(4)]
    point = int(RNG.integers(-20, 20)) if "projection" in more else state["point"][0]
    between.append(Spec((), "int8", scale=[uniform(0.005, 0.02)], point=[point]))
    return args, between, Spec((*shape, outputs), "int8", **state)  # type: ignore[arg-type]


@share(4)
@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("more", ["", "peepholes", "projection", "norms"])
def test_integer_sequence_lstm_matches_litert(more: str, few: bool) -> None:
    args, between, out = lstm((BATCH, STEPS), more, few)
    fields = {"FusedActivationFunction": 4, "TimeMajor": False}
    table = ("UnidirectionalSequenceLSTMOptions", fields)
    runs_agree("UNIDIRECTIONAL_SEQUENCE_LSTM", args, 24, table, [out], between)


@share(4)
@pytest.mark.parametrize("power", [-15, -12, -9])
@pytest.mark.parametrize("clips", [(0.0, 0.0), (0.5, 0.3)])
def test_integer_lstm_variants_match_litert(power: int, clips: tuple[float, float]) -> None:
    more = "projection" if clips[1] else ""
    args, between, out = lstm((STEPS, BATCH), more, power=power)
    table = ("UnidirectionalSequenceLSTMOptions", {
        "FusedActivationFunction": 4, "TimeMajor": True, "CellClip": clips[0],
        "ProjClip": clips[1],
    })  # fmt: skip
    runs_agree("UNIDIRECTIONAL_SEQUENCE_LSTM", args, 24, table, [out], between)


@pytest.mark.long
@pytest.mark.parametrize("more", ["norms peepholes", "norms projection"])
def test_integer_layer_norm_lstm_matches_litert(more: str) -> None:
    test_integer_sequence_lstm_matches_litert(more, few=False)


def test_integer_single_step_lstm_matches_litert() -> None:
    args, between, out = lstm((BATCH,))
    table = ("LSTMOptions", {"FusedActivationFunction": 4})
    runs_agree("LSTM", args, 24, table, [out], between)


def test_legacy_uint8_lstm() -> None:
    steps: dict[str, Any] = {"scale": [1 / 128], "point": [128]}
    cell: dict[str, Any] = {"scale": [2.0**-11], "point": [0]}
    bias = Spec(data=RNG.integers(-30000, 30000, 4 * UNITS).astype(np.int32), scale=[0.01 / 128],
                point=[0])  # fmt: skip
    args = {
        0: Spec((BATCH, INPUTS), "uint8", **steps), 1: Spec((BATCH, UNITS), "uint8", **steps),
        2: Spec(data=numbers("uint8", 4 * UNITS, INPUTS + UNITS), scale=[0.01], point=[120]),
        3: bias, 4: Spec((BATCH, UNITS), "int16", **cell),
    }  # fmt: skip
    outs = [
        Spec((BATCH, UNITS), "uint8", **steps), Spec((BATCH, UNITS), "int16", **cell),
        Spec((BATCH, INPUTS + UNITS), "uint8", **steps),
        Spec((BATCH, 4 * UNITS), "int16", scale=[2.0**-12], point=[0]),
    ]  # fmt: skip
    table = ("LSTMOptions", {"FusedActivationFunction": 4, "KernelType": 1})
    runs_agree("LSTM", args, 5, table, outs)


# SVDF.


@pytest.mark.parametrize("rank,has_bias", [(1, True), (2, False)])
def test_integer_svdf_matches_litert(rank: int, has_bias: bool) -> None:
    filters, memory, state = 6 * rank, 5, uniform(5e-4, 2e-3)
    args = {
        0: Spec((BATCH, INPUTS), "int8", scale=[0.05], point=[-7]), 1: weights(filters, INPUTS),
        2: weights(filters, memory, dtype="int16", scale=1e-4),
        4: Spec((BATCH, filters * memory), "int16", scale=[state], point=[0], is_variable=True),
    }  # fmt: skip
    if has_bias:
        args[3] = Spec(data=RNG.integers(-(10**6), 10**6, 6).astype(np.int32))
    out = Spec((BATCH, 6), "int8", scale=[uniform(0.5, 2)], point=[-20])
    table = ("SVDFOptions", {"Rank": rank, "FusedActivationFunction": 1})
    runs_agree("SVDF", args, 5, table, [out])


# What needs no LiteRT.


@pytest.mark.parametrize("bits,near", [(15, 5e-4), (31, 2e-7)])
def test_fixed_point_functions_are_accurate(bits: int, near: float) -> None:
    fixed, one = FixedPoint(bits), float(1 << bits)
    for whole in range(1, 7):
        real = np.linspace(-(1 << whole), (1 << whole), 4001)[1:-1]
        data = np.round(real * (1 << (bits - whole))).astype(np.int64)
        real = data / (1 << (bits - whole))
        result = [f(data, whole) / one for f in (fixed.sigmoid, fixed.tanh)]
        np.testing.assert_allclose(result[0], 1 / (1 + np.exp(-real)), atol=near)
        np.testing.assert_allclose(result[1], np.tanh(real), atol=near)


def refused(change: Any, message: str, code: str = "UNIDIRECTIONAL_SEQUENCE_LSTM") -> None:  # noqa: ANN401
    args, between, out = lstm((BATCH, STEPS))
    change(args, between)
    places = [-1] * 24
    for i, at in enumerate(args):
        places[at] = i
    specs = [*args.values(), *between, out]
    last = len(specs) - 1
    inside = range(len(args), last)
    table = ("UnidirectionalSequenceLSTMOptions", {"FusedActivationFunction": 4})
    data = model(specs, [Op(code, places, [last], table, between=inside)], [0], [last])
    with pytest.raises(UnsupportedError, match=message):
        ekiden.compile(data)


def test_unsupported_integer_recurrent_layers_are_refused() -> None:
    refused(lambda args, between: between.pop(), "4 tensors between")
    refused(lambda args, between: args[19].scale.__setitem__(0, 0.001), "scale of tensor .* 2..-15")
    refused(lambda args, between: setattr(args[0], "dtype", "int16"), "t0' is int16: kernels of")
    refused(lambda args, between: setattr(between[4], "scale", []), "kernels of quantised int8")


def test_state_whose_zero_point_is_no_number_of_it_is_refused() -> None:
    args, between, out = lstm((BATCH, STEPS))
    args[18].point = [300]
    specs = [*args.values(), *between, out]
    table = ("UnidirectionalSequenceLSTMOptions", {"FusedActivationFunction": 4})
    places = [list(args).index(at) if at in args else -1 for at in range(24)]
    op = Op("UNIDIRECTIONAL_SEQUENCE_LSTM", places, [len(specs) - 1], table)
    with pytest.raises(ImportModelError, match="a zero point of .300,. is no number of int8"):
        ekiden.compile(model(specs, [op], [0], [len(specs) - 1]))
