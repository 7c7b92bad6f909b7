"""Products of bytes on devices that multiply words of four, or squares of them, in one instruction:
as CUDA C on fibers and as PTX, as NumPy to the bit; and what NVIDIA's compiler makes of them."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import test_cuda_text as cuda
import test_ptx as ptx
import test_tensor_cores as tensors
from test_cuda_text import nvrtc as nvrtc  # the fixture
from test_ptx import as_fibers as as_fibers

import ekiden
from ekiden import relay, runtime, te
from ekiden.codegen.device import DeviceKernel
from ekiden.ir.intrinsic import INTRINSICS, call_intrin
from ekiden.ir.module import IRModule
from ekiden.relay import qnn
from ekiden.relay.expr import Constant, RelayExpr
from ekiden.runtime import Device
from ekiden.runtime.errors import CompileError
from ekiden.target import Target
from long_runs import alike

RNG = np.random.default_rng(41)
WORDS, SQUARES = "cuda -arch=sm_75 -model=any", "cuda -arch=sm_80 -model=any"
ONE = Constant(np.float32(1))


def ints(dtype: str, *shape: int) -> np.ndarray:
    """All that there are."""
    ends = np.iinfo(dtype)
    return RNG.integers(ends.min, ends.max + 1, shape).astype(dtype)


def most(dtype: str, *shape: int) -> np.ndarray:
    """Those of the largest products."""
    return np.full(shape, -128 if dtype == "int8" else 255, dtype)


def wide(*argument: RelayExpr) -> list[RelayExpr]:
    return [relay.cast(item, "int32") for item in argument]


def point(number: int | list[int]) -> Constant:
    return Constant(np.array(number, "int32"))


def batched(x: RelayExpr, y: RelayExpr) -> RelayExpr:
    return relay.nn.batch_matmul(*wide(x, y))


def centred(x: RelayExpr, y: RelayExpr) -> RelayExpr:
    return qnn.op.batch_matmul(x, y, point(7), point(-3), ONE, ONE)


def later(x: RelayExpr) -> RelayExpr:
    """Rows that begin one byte behind where memory does."""
    return relay.reshape(relay.strided_slice(x, [1], [97]), (12, 8))


def of_channels(x: RelayExpr, w: RelayExpr) -> RelayExpr:
    """A weight that is no constant, with a zero point for each of its rows."""
    points = point(list(range(-9, 10)))
    return qnn.op.dense(x, w, point(-128), points, ONE, ONE, 19)


def conv(layout: str, kernel: str, groups: int = 1) -> Callable[..., RelayExpr]:
    window = {"data_layout": layout, "kernel_layout": kernel, "groups": groups}
    return lambda x, w: relay.nn.conv2d(
        x, w, (2, 1), (1, 1), kernel_size=(3, 3), out_dtype="int32", **window
    )


def quantised(weight: np.ndarray, of_data: int, of_weight: int) -> Callable[..., RelayExpr]:
    """A convolution of constant weights, whose border is the zero point."""
    points = point(of_data), point(of_weight)
    return lambda x: qnn.op.conv2d(
        x, Constant(weight), *points, ONE, ONE, (3, 3), len(weight), padding=(1, 1)
    )


def rows(weight: np.ndarray, of_data: int) -> Callable[..., RelayExpr]:
    return lambda x: qnn.op.dense(x, Constant(weight), point(of_data), point(0), ONE, ONE)


# fmt: off
CASES: dict[str, tuple[Callable[..., RelayExpr], tuple[np.ndarray, ...]]] = {
    "of both signs": (batched, (ints("int8", 2, 5, 7), ints("int8", 2, 9, 7))),
    "of no sign":    (batched, (ints("uint8", 1, 33, 66), ints("uint8", 1, 70, 66))),
    "signs differ":  (batched, (ints("uint8", 2, 34, 3), ints("int8", 2, 17, 3))),
    "the other way": (batched, (ints("int8", 1, 17, 65), ints("uint8", 1, 66, 65))),
    "of one step":   (batched, (ints("int8", 1, 9, 1), ints("int8", 1, 8, 1))),
    "largest":       (batched, (most("int8", 1, 8, 999), most("int8", 1, 9, 999))),
    "sums wrap":     (batched, (most("uint8", 1, 8, 40000), most("uint8", 1, 8, 40000))),
    "nothing":       (batched, (ints("int8", 1, 9, 0), ints("int8", 1, 8, 0))),
    "matmul":        (lambda x, y: relay.nn.matmul(x, y, out_dtype="int32"),
                      (ints("int8", 18, 37), ints("int8", 37, 20))),
    "dense of one row": (lambda x, y: relay.nn.dense(x, y, out_dtype="int32"),
                         (ints("uint8", 1, 130), ints("int8", 70, 130))),
    "zero points":   (centred, (ints("int8", 2, 9, 34), ints("uint8", 2, 35, 34))),
    "of channels":   (of_channels, (ints("int8", 5, 21), ints("int8", 19, 21))),
    "conv2d":        (conv("NCHW", "OIHW"), (ints("int8", 2, 3, 9, 8), ints("int8", 9, 3, 3, 3))),
    "conv2d NHWC":   (conv("NHWC", "HWIO"),
                      (ints("uint8", 1, 9, 8, 12), ints("uint8", 3, 3, 12, 9))),
    "grouped":       (conv("NCHW", "OIHW", 2),
                      (ints("int8", 1, 8, 7, 6), ints("int8", 12, 4, 3, 3))),
    "not aligned":   (lambda x, w: relay.nn.dense(later(x), w, out_dtype="int32"),
                      (ints("int8", 97), ints("int8", 9, 8))),
    "quantised":     (quantised(ints("int8", 9, 8, 3, 3), 3, 0), (ints("int8", 1, 8, 6, 9),)),
    "quantised, without signs": (quantised(ints("uint8", 9, 8, 3, 3), 7, 121),
                                 (ints("uint8", 1, 8, 6, 9),)),
    "quantised rows": (rows(ints("int8", 33, 40), 0), (ints("uint8", 18, 40),)),
}
# fmt: on


FIGURES = ("of no sign", "zero points", "conv2d NHWC", "quantised")
"""Those in the table of CUDA's kernels."""
INSTRUCTIONS = {WORDS: "IDP.4A", SQUARES: "IMMA.16816"}


def instruction_of(kernel: DeviceKernel) -> str:
    """The one that multiplies in a kernel; nothing for kernels that are no such product."""
    text = kernel.code.decode().partition("__global__")[2]
    ways = {"ek_dot4": INSTRUCTIONS[WORDS], "ek_multiply": INSTRUCTIONS[SQUARES]}
    return next((way for call, way in ways.items() if call in text), "")


def program(name: str) -> IRModule:
    return tensors.program(*(CASES[name][0], *CASES[name][1]))


def texts(module: IRModule, target: str) -> list[str]:
    """The kernels themselves, without the functions before them."""
    result = [k.code.decode() for k in cuda.kernels_of(module, Target(target))]
    return [text.partition("__global__")[2] for text in result]


def check(name: str, target: str) -> None:
    """As the interpreter has it, which computes with NumPy."""
    module, argument = program(name), CASES[name][1]
    actual = ekiden.compile(module, target)(*argument).numpy()
    expected = relay.create_executor("debug", module).evaluate()(*argument).numpy()
    np.testing.assert_array_equal(actual, expected)


@alike(4)
@pytest.mark.parametrize("name", CASES)
def test_int8_dot4_matmul_matches_interpreter(fake_cuda: Device, name: str) -> None:
    assert fake_cuda.exist
    check(name, WORDS)


@alike(5)
@pytest.mark.parametrize("name", CASES)
def test_int8_matrix_tile_matmul_matches_interpreter(fake_cuda: Device, name: str) -> None:
    assert fake_cuda.exist
    check(name, SQUARES)


@alike(6)
@pytest.mark.parametrize("name", CASES)
def test_int8_dot4_matmul_as_ptx_matches_interpreter(as_fibers: str, name: str) -> None:
    check(name, as_fibers)


@pytest.mark.parametrize(
    ("name", "target", "wanted"),
    [
        ("of both signs", WORDS, "ek_dot4_s8s8_int32(sums"),
        ("quantised rows", WORDS, "ek_dot4_u8s8_int32(sums"),
        ("zero points", WORDS, "ek_dot4_s8s8_int32(sums"),
        ("grouped", WORDS, "ek_dot4_s8s8_int32(sums"),
        ("quantised", WORDS, "ek_dot4_u8s8_int32(sums"),
        ("of no sign", SQUARES, "ek_multiply_u8_"),
        ("signs differ", SQUARES, "ek_multiply_s8_"),
        ("of channels", SQUARES, "ek_dot4_s8s8_int32(sums"),
        ("quantised", SQUARES, "ek_multiply_s8_"),
        ("quantised rows", SQUARES, "ek_multiply_s8_"),
    ],
)
def test_int8_matmul_uses_expected_instruction(name: str, target: str, wanted: str) -> None:
    assert any(wanted in text for text in texts(program(name), target)), name


def test_int8_matmul_without_dot_instruction() -> None:
    """Bytes are widened, as before; who asks for words is told."""
    module = program("of both signs")
    for target in ("cuda -model=any", "opencl -device=any -thread_warp_size=32"):
        assert not Target(target).has("dot4_s8s8")
        assert not any("dot4" in text for text in texts(module, target))
        with pytest.raises(CompileError, match="no products of words for .* int8 or uint8"):
            ekiden.compile(module, target, decisions={"thread_product": {"dot": 1}})
    floats = tensors.program(relay.nn.dense, *(np.ones((8, 8), "float32"),) * 2)
    with pytest.raises(CompileError, match="must be int8 or uint8"):
        ekiden.compile(floats, WORDS, decisions={"thread_product": {"dot": 1}})


def test_int8_matmul_decisions_give_equal_results(fake_cuda: Device) -> None:
    """They change the kernel, not its result: bytes one by one, and words in shallow blocks."""
    assert fake_cuda.exist
    module, argument = program("conv2d NHWC"), CASES["conv2d NHWC"][1]
    result = [
        ekiden.compile(module, WORDS, decisions={"thread_product": fixed})(*argument).numpy()
        for fixed in ({"dot": 0}, {"depth": 4, "rows": 3})
    ]
    np.testing.assert_array_equal(*result)


@alike(3)
@pytest.mark.parametrize("name", ["zero points", "quantised", "conv2d NHWC"])
def test_int8_matmul_cuda_instructions(nvrtc: ctypes.CDLL, tmp_path: Path, name: str) -> None:
    """Nothing is spilled, and the products are instructions for words or squares."""
    for target in (WORDS, SQUARES):
        for kernel in cuda.kernels_of(program(name), Target(target)):
            expected = instruction_of(kernel)
            for architecture in cuda.ARCHITECTURES:
                message = cuda.compiled(nvrtc, kernel, architecture)
                assert re.findall(r"(\d+) bytes spill", message) == ["0", "0"], message
                result = (
                    tensors.disassembled(nvrtc, kernel, architecture, tmp_path) if expected else ""
                )
                assert expected in result, architecture


def test_int8_matmul_ptx_instructions() -> None:
    kernels = cuda.kernels_of(program("zero points"), Target(ptx.TARGET))
    text = "".join(kernel.code.decode() for kernel in kernels)
    assert "dp4a.s32.s32" in text


@pytest.mark.parametrize("op", ["dot4_s8s8", "dot4_u8u8"])
def test_int8_dot4_sums_on_cpu(op: str) -> None:
    """Programs that say them run there, too."""
    names = [te.placeholder((33,), "int32", n) for n in "abc"]
    a, b, total = names
    out = te.compute((33,), lambda i: call_intrin(op, total[i], a[i], b[i], dtype="int32"))
    x, y, z = (ints("int32", 33) for _ in range(3))
    inputs = [runtime.nd.array(item) for item in (x, y, z, np.zeros(33, "int32"))]
    ekiden.build(te.create_prim_func([*names, out]), "llvm")["main"](*inputs)
    np.testing.assert_array_equal(inputs[-1].numpy(), INTRINSICS[op].reference(z, x, y))
