"""int4 weights: lowering per target, and results."""

from __future__ import annotations

import numpy as np
import pytest
from pass_checks import Array, calls

import ekiden
from ekiden import relay
from ekiden.ir.module import IRModule
from ekiden.relay.transform import AlterOpLayout, InferType
from ekiden.runtime.errors import TypeInferenceError
from ekiden.target import Target
from ekiden.topi.nn.int4_dense import ROWS_PER_PANEL, pack_nibbles, unpack_nibbles, unpack_panels
from long_runs import share
from processor import processors

NAME = "nn.contrib_dense_nibbles"
BYTES = Target.parse("llvm -mcpu=znver4 -mattr=avx512vnni")
PLAIN = Target.parse("llvm -mcpu=x86-64-v3")


def weights(rows: int, blocks: int, block: int) -> tuple[Array, Array, Array]:
    random = np.random.default_rng(rows + blocks)
    levels = random.integers(0, 256, (rows, blocks, block // 2), dtype=np.uint8)
    scale = random.random((rows, blocks), np.float32)
    return levels, scale, random.integers(0, 16, (rows, blocks), dtype=np.uint8)


def dequantized(levels: Array, scale: Array, point: Array) -> Array:
    wide = unpack_nibbles(levels).astype("float64") - point[..., None]
    return (wide * scale[..., None]).reshape(len(levels), -1)


def layer(given: tuple[Array, Array, Array], depth: int, relu: bool = False) -> IRModule:
    x = relay.var("x", relay.TensorType((relay.SizeVar("n"), depth), "float32"))
    body = relay.nn.contrib_dense_nibbles(x, *map(relay.const, given))
    return IRModule.from_expr(relay.Function([x], relay.nn.relu(body) if relu else body))


@pytest.mark.parametrize(("rows", "blocks", "block"), [(1, 1, 8), (64, 2, 16), (65, 3, 32)])
def test_packing_is_lossless(rows: int, blocks: int, block: int) -> None:
    levels, scale, point = weights(rows, blocks, block)
    words, scales, points = pack_nibbles(levels, scale, point)
    panels = -(-rows // ROWS_PER_PANEL)
    assert words.shape == (panels, blocks, block // 8, ROWS_PER_PANEL) and words.dtype == np.int32
    assert scales.shape == points.shape == (panels, blocks, ROWS_PER_PANEL)
    np.testing.assert_array_equal(unpack_panels(words)[:rows], unpack_nibbles(levels))
    assert not scales.transpose(0, 2, 1).reshape(-1, blocks)[rows:].any()


@pytest.mark.parametrize(
    ("target", "last"), [(BYTES, "nn.contrib_dense_nibbles_pack"), (PLAIN, "nn.contrib_dense_pack")]
)
def test_quantised_layer_lowering_per_target(target: Target, last: str) -> None:
    module = AlterOpLayout(target)(InferType()(layer(weights(20, 2, 32), 64)))
    result = calls(InferType()(module))
    assert result[-1] == last and NAME not in result
    assert ("round" in result) == (target is BYTES)


@share(4)
@pytest.mark.parametrize("rows", [0, 1, 4, 7, 33])
@pytest.mark.parametrize(("units", "depth", "block"), [(1, 8, 8), (64, 64, 32), (77, 50, 16)])
def test_int4_dense_matches_reference(rows: int, units: int, depth: int, block: int) -> None:
    argument = weights(units, -(-depth // block), block)
    data = np.random.default_rng(rows).standard_normal((rows, depth)).astype("float32")
    expected = np.maximum(data @ dequantized(*argument)[:, :depth].T, 0)
    bound = np.abs(data).max(initial=0) / 254 * np.abs(dequantized(*argument)).sum(1).max()
    for target in processors():
        actual = ekiden.compile(layer(argument, depth, relu=True), target)(data).numpy()
        assert actual.shape == (rows, units)
        assert np.abs(actual - expected).max(initial=0) <= bound + 1e-5


def test_zero_blocks_give_zero() -> None:
    argument = weights(3, 2, 16)
    result = np.asarray(ekiden.compile(layer(argument, 32))(np.zeros((2, 32), "float32")).numpy())
    np.testing.assert_array_equal(result, np.zeros((2, 3), "float32"))


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        ((2, 65), "float32", "the blocks of 'data' and of 'weight'"),
        ((2, 64), "float64", "takes float32, uint8, float32, uint8, got float64"),
    ],
)
def test_invalid_int4_weights_are_refused(shape: tuple[int, ...], dtype: str, message: str) -> None:
    x = relay.var("x", shape=shape, dtype=dtype)
    body = relay.nn.contrib_dense_nibbles(x, *map(relay.const, weights(4, 2, 32)))
    with pytest.raises(TypeInferenceError, match=message):
        InferType()(IRModule.from_expr(relay.Function([x], body)))
