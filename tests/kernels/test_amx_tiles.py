"""Tiles whose sums are kept in registers that hold matrices: results where the machine has them,
and anywhere the code that is made. Bytes are in test_byte_products.py too, beside all other ways.
"""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

import ekiden
from ekiden import relay, te
from ekiden.codegen.llvm import assembly
from ekiden.kernels import schedule, select_kernel
from ekiden.relay.transform import AlterOpLayout, InferType
from ekiden.target import Target
from ekiden.tir.transform import lower
from ekiden.topi.nn import dense_pack

SAPPHIRE = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=sapphirerapids -num-cores=1")
needs_matrices = pytest.mark.skipif(
    not Target("llvm").has("amx_int8"), reason="needs a processor with AMX"
)


def layer(rows: object, k: int, n: int, panel: int = 64) -> tuple[list[te.Tensor], te.Tensor]:
    data = te.placeholder((rows, k), "uint8", "data")
    weight = te.placeholder((-(-n // panel), k // 4, panel, 4), "int8", "weight")
    return [data, weight], dense_pack(data, weight, n, panel, "int32")


def dense(rows: object, weight: np.ndarray, dtype: str, sums: str) -> relay.IRModule:
    x = relay.var("x", relay.tensor_type((rows, weight.shape[1]), dtype))
    out = relay.op.nn.dense(x, relay.const(weight), out_dtype=sums)
    return relay.IRModule.from_expr(relay.Function((x,), out))


@needs_matrices
@pytest.mark.parametrize("rows", [32, 16, 5])
def test_tiles_of_any_height_have_the_rows_there_are(rows: int) -> None:
    """Two registers high, one, and less; over 32 rows, up to 16, and between."""
    rng = np.random.default_rng(0)
    w = rng.integers(-128, 128, (70, 324)).astype("int8")
    run = ekiden.compile(
        dense(relay.Any(), w, "uint8", "int32"), decisions={"dense_pack": {"rows": rows}}
    )
    for m in (0, 1, 15, 16, 17, 31, 32, 33, 47, 64, 65):
        x = rng.integers(0, 256, (m, 324)).astype("uint8")
        np.testing.assert_array_equal(run(x).numpy(), x.astype("int64") @ w.T.astype("int64"))


@needs_matrices
@pytest.mark.parametrize(("m", "k", "n"), [(40, 70, 50), (128, 768, 64), (5, 31, 3)])
def test_products_of_bfloat16(m: int, k: int, n: int) -> None:
    """Each sum is rounded once a term: within k halves of the last place of what is added up."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((m, k)).astype(ml_dtypes.bfloat16)
    w = rng.standard_normal((n, k)).astype(ml_dtypes.bfloat16)
    result = ekiden.compile(dense(m, w, "bfloat16", "float32"))(x).numpy()
    left, right = x.astype("float64"), w.astype("float64")
    bound = k * 2.0**-24 * (np.abs(left) @ np.abs(right.T))
    assert (np.abs(result - left @ right.T) <= bound).all()


@needs_matrices
@pytest.mark.parametrize(
    ("image", "channels", "kernel", "strides", "dilation"),
    [((1, 5, 9, 7), 35, 3, 1, 1), ((2, 8, 33, 40), 20, 1, 1, 1), ((1, 11, 12, 6), 16, 3, 2, 2)],
)
def test_convolutions_of_bfloat16(
    image: tuple[int, ...], channels: int, kernel: int, strides: int, dilation: int
) -> None:
    """Of float32, where they are asked for: those of the rounded operands."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((channels, image[3], kernel, kernel)).astype("f")
    x = relay.var("x", relay.tensor_type(image))
    pads = kernel // 2 * dilation
    out = relay.op.nn.conv2d(
        x, relay.const(w), strides, pads, dilation, data_layout="NHWC", kernel_layout="OIHW"
    )
    module = relay.IRModule.from_expr(relay.Function((x,), out))
    data = rng.standard_normal(image).astype("f")
    with ekiden.transform.PassContext(config={"relay.ProductPrecision.dtype": "bfloat16"}):
        result = ekiden.compile(module)(data).numpy()
    reach = (kernel - 1) * dilation + 1
    padded = np.pad(data.astype(ml_dtypes.bfloat16), ((0, 0), (pads, pads), (pads, pads), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(
        padded.astype("float64"), (reach, reach), axis=(1, 2)
    )[:, ::strides, ::strides, :, ::dilation, ::dilation]
    right = w.astype(ml_dtypes.bfloat16).astype("float64")
    want = np.einsum("nyxcij,ocij->nyxo", windows, right)
    terms = np.einsum("nyxcij,ocij->nyxo", np.abs(windows), np.abs(right))
    assert (np.abs(result - want) <= image[3] * kernel**2 * 2.0**-24 * terms).all()


@pytest.mark.parametrize(("rows", "depth", "copies"), [(40, 128, 1), (40, 100, 0), (4, 128, 0)])
def test_matrix_registers_read_a_parameter_from_whole_cache_lines(
    rows: int, depth: int, copies: int
) -> None:
    """Callers' arrays begin anywhere; rows that are no whole lines, and vectors, gain nothing."""
    w = np.arange(16 * depth).reshape(16, depth).astype("int8")
    module = dense(rows, w, "uint8", "int32")
    packed = AlterOpLayout(SAPPHIRE)(InferType()(module))
    assert str(packed).count("copy(") == copies
    if SAPPHIRE.serves(Target.host()):
        memory = np.random.default_rng(0).integers(0, 256, rows * depth + 1).astype("uint8")
        x = memory[1:].reshape(rows, depth)
        result = ekiden.compile(module, SAPPHIRE)(x).numpy()
        np.testing.assert_array_equal(result, x.astype("int64") @ w.T.astype("int64"))


@pytest.mark.quick
def test_few_rows_use_vector_instructions() -> None:
    chosen = {
        m: select_kernel([layer(m, 768, 768)[1]], SAPPHIRE).decision["dot"] for m in (1, 4, 5, 128)
    }
    assert chosen == {1: "dot4_u8s8", 4: "dot4_u8s8", 5: "amx_int8", 128: "amx_int8"}
    cascade = Target("llvm -mcpu=cascadelake")
    assert select_kernel([layer(128, 768, 768)[1]], cascade).decision["dot"] == "dot4_u8s8"


@pytest.mark.quick
def test_amx_configuration_is_set_once_and_released() -> None:
    """All tiles of a thread are alike: one shape before them, nothing held behind them."""
    inputs, output = layer(64, 256, 128)
    func = lower(schedule(inputs, [output], SAPPHIRE, "kernel"), SAPPHIRE)
    words = re.findall(r"ldtilecfg|tdpbusd|tilerelease", assembly([func], SAPPHIRE))
    assert [words[0], *words[-1:]] == ["ldtilecfg", "tilerelease"]
    assert words.count("ldtilecfg") == 1
