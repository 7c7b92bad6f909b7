"""Float32 Fourier transforms by matrix products, against NumPy's in float64."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from onnx_models import Array, graph_model

import ekiden
from long_runs import share

RANDOM = np.random.default_rng(0)


def run(op_type: str, signal: Array, weights: dict[str, Array], **attributes: int) -> Array:
    """The operator's result, compiled; an input of no name is absent."""
    names = ["x", *(w if w in weights else "" for w in ("step", "window", "length", "axis"))]
    if op_type == "DFT":
        names = ["x", "length" if "length" in weights else "", "axis"]
    node = helper.make_node(op_type, names[: 4 if op_type == "STFT" else 3], ["y"], **attributes)
    model = graph_model([node], {"x": signal}, ["y"], weights, 20 if op_type == "DFT" else 17, True)
    dims = model.graph.input[0].type.tensor_type.shape.dim
    for dim, extent in list(zip(dims, signal.shape, strict=True))[1:]:
        if op_type == "DFT" or dim is dims[-1]:
            dim.dim_value = extent  # the batch has any size, and the time of a signal
    return ekiden.compile(model)(signal).numpy()


def pairs(numbers: Array) -> Array:
    return np.stack([numbers.real, numbers.imag], axis=-1)


def signal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype("float32")


def close(actual: Array, wanted: Array) -> None:
    assert actual.shape == wanted.shape and actual.dtype == np.float32
    np.testing.assert_allclose(actual, wanted, atol=2e-6 * np.abs(wanted).max())


@share(4)
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(("extent", "length"), [(1, None), (37, 50), (50, 37)])
def test_dft_matches_numpy(extent: int, length: int | None, parts: int) -> None:
    x = signal(2, extent, 3, parts)
    numbers = x[..., 0] + (1j * x[..., 1] if parts == 2 else 0)
    weights = {"axis": np.array(1)} | ({} if length is None else {"length": np.array(length)})
    close(run("DFT", x, weights), pairs(np.fft.fft(numbers, length, axis=1)))
    close(run("DFT", x, weights, inverse=1), pairs(np.fft.ifft(numbers, length, axis=1)))
    if parts == 1:
        close(run("DFT", x, weights, onesided=1), pairs(np.fft.rfft(numbers.real, length, axis=1)))


@share(4)
@pytest.mark.parametrize(("shape", "onesided"), [((2, 90), 1), ((1, 90, 1), 0), ((2, 90, 2), 0)])
@pytest.mark.parametrize("is_windowed", [False, True])
def test_stft_matches_numpy(shape: tuple[int, ...], onesided: int, is_windowed: bool) -> None:
    x, window = signal(*shape), signal(20) if is_windowed else np.ones(20, "float32")
    weights = {"step": np.array(7), "length": np.array(20)} | (
        {"window": window} if is_windowed else {}
    )
    numbers = x if x.ndim == 2 else x[..., 0] + (1j * x[..., 1] if shape[2] == 2 else 0)
    frames = np.stack([numbers[:, at : at + 20] * window for at in range(0, 71, 7)], axis=1)
    expected = np.fft.fft(frames)[..., : 11 if onesided else 20]
    close(run("STFT", x, weights, onesided=onesided), pairs(expected))
