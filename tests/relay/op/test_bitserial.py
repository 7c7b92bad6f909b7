"""nn.bitpack, nn.bitserial_conv2d and nn.bitserial_dense."""

from __future__ import annotations

import numpy as np
import pytest

import ekiden
from ekiden import relay
from ekiden.relay.testing import run_infer_type
from ekiden.runtime.errors import TypeInferenceError
from long_runs import share

RNG = np.random.default_rng(0)


def packed(data: np.ndarray, bits: int, pack_axis: int, bit_axis: int, word: str) -> np.ndarray:
    """By NumPy: the first element along an axis is the highest bit of its word."""
    width = np.iinfo(word).bits
    planes = []
    for bit in range(bits):
        ones = np.moveaxis((data >> bit) & 1, pack_axis, -1)
        groups = ones.reshape(*ones.shape[:-1], -1, width).astype(object)
        words = sum(groups[..., k] << (width - 1 - k) for k in range(width)).astype(word)
        planes.append(np.moveaxis(words, -1, pack_axis))
    return np.stack(planes, bit_axis)


@share(2)
@pytest.mark.parametrize("word", ["uint8", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("bits, pack_axis, bit_axis", [(1, 1, 2), (3, 1, 4), (2, -1, 0)])
def test_bitpack_matches_numpy(word: str, bits: int, pack_axis: int, bit_axis: int) -> None:
    data = RNG.integers(-100, 100, (2, 64, 1, 64)).astype("int16")
    x = relay.var("x", shape=data.shape, dtype="int16")
    call = relay.nn.bitpack(x, bits, pack_axis, bit_axis, word)
    module = ekiden.IRModule.from_expr(relay.Function([x], call))
    expected = packed(data, bits, pack_axis, bit_axis, word)
    for kind in ("debug", "vm"):
        actual = relay.create_executor(kind, module).evaluate()(data).numpy()
        assert actual.dtype == word
        np.testing.assert_array_equal(actual, expected)


def test_invalid_bitserial_arguments_are_refused() -> None:
    x = relay.var("x", shape=(2, 30), dtype="int16")
    for call, message in (
        (relay.nn.bitpack(x), "multiple of 32"),
        (relay.nn.bitpack(x, pack_type="float32"), "pack_type must be one of"),
        (relay.nn.bitpack(x, bits=17, pack_axis=0), "int16 has no 17 bits"),
        (relay.nn.bitpack(relay.var("y", shape=(2, 32))), "must be"),
    ):
        with pytest.raises(TypeInferenceError, match=message):
            run_infer_type(call)


@pytest.mark.parametrize("unipolar", [True, False])
def test_bitserial_products_match_numpy(unipolar: bool) -> None:
    """A bit of a weight stands for 1 or -1, or for 1 or 0."""
    data, weight = RNG.integers(0, 4, (2, 8)), RNG.integers(0, 4, (5, 8))
    image, taps = RNG.integers(0, 4, (1, 3, 6, 6)), RNG.integers(0, 4, (4, 3, 3, 3))

    def numbers(bits: np.ndarray) -> np.ndarray:
        parts = [(bits >> b) & 1 for b in range(2)]
        return sum((2 * p - 1 if unipolar else p) << b for b, p in enumerate(parts))

    def run(make: object, x: np.ndarray, w: np.ndarray, **how: object) -> np.ndarray:
        names = [relay.var(n, shape=a.shape, dtype="int8") for n, a in (("x", x), ("w", w))]
        call = make(*names, unipolar=unipolar, weight_bits=2, **how)
        module = ekiden.IRModule.from_expr(relay.Function(names, call))
        result = relay.create_executor("vm", module).evaluate()(x.astype("int8"), w.astype("int8"))
        assert result.dtype == "int16"
        return result.numpy()

    result = run(relay.nn.bitserial_dense, data, weight, data_bits=2, units=5)
    np.testing.assert_array_equal(result, data @ numbers(weight).T)
    result = run(relay.nn.bitserial_conv2d, image, taps, activation_bits=2, padding=(1, 1))
    wide = np.pad(image, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), (2, 3))
    np.testing.assert_array_equal(result, np.einsum("nchwij,ocij->nohw", windows, numbers(taps)))
