"""Neighbours in memory of a device as one access: in text, on fibers, in NVIDIA's instructions; and
where they must not be: views that begin anywhere."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import test_cuda_text as cuda
import test_tensor_cores as tensors
from test_cuda_text import nvrtc as nvrtc  # the fixture

import ekiden
from ekiden import relay, runtime
from ekiden.ir.module import IRModule
from ekiden.relay.expr import RelayExpr
from ekiden.runtime import Device, Tensor
from ekiden.runtime.errors import CompileError
from ekiden.target import Target

RNG = np.random.default_rng(9)
WARPS = "opencl -device=any -thread_warp_size=16"
Program = Callable[..., RelayExpr]


def numbers(dtype: str, *shape: int) -> np.ndarray:
    """Whole numbers, of which sums are exact."""
    return RNG.integers(-4, 5, shape).astype(dtype)


def texts(build: Program, target: str, *argument: np.ndarray, **fixed: int | str) -> str:
    """The kernels of a program."""
    with ekiden.transform.PassContext(config={"kernels.decisions": {"thread_product": fixed}}):
        result = cuda.kernels_of(tensors.program(build, *argument), Target(target))
        return "\n".join(k.code.decode() for k in result)


class Moved:
    """A tensor without its first elements, as DLPack says it."""

    def __init__(self, whole: Tensor, count: int) -> None:
        self.whole, self.count = whole, count

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.whole.__dlpack_device__()

    def __dlpack__(self, **options: object) -> object:
        capsule = self.whole.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        address = pointer(capsule, b"dltensor")
        shape = ctypes.c_void_p.from_address(address + 24).value
        assert shape is not None
        ctypes.c_int64.from_address(shape).value -= self.count
        offset = self.count * self.whole.numpy().itemsize
        ctypes.c_uint64.from_address(address + 40).value += offset
        return capsule


def moved(array: np.ndarray, device: Device, count: int) -> Tensor:
    """An array in memory of a device, so many elements behind where its memory begins."""
    flat = np.concatenate([np.zeros(count, array.dtype), array.ravel()])
    return runtime.from_dlpack(Moved(runtime.nd.array(flat, device), count)).view(array.shape)


# fmt: off
CASES: dict[str, tuple[Program, tuple[np.ndarray, ...], Callable[..., np.ndarray]]] = {
    "float32": (relay.nn.matmul, (numbers("float32", 20, 40), numbers("float32", 40, 36)),
                lambda a, b: a @ b),
    "float64": (relay.nn.batch_matmul,
                (numbers("float64", 2, 9, 36), numbers("float64", 2, 7, 36)),
                lambda a, b: a @ b.swapaxes(1, 2)),
    "tensor cores": (relay.nn.dense, (numbers("float16", 24, 72), numbers("float16", 40, 72)),
                     lambda a, b: a @ b.T),
    "bytes": (lambda a, b: relay.nn.relu(a - b), (numbers("int8", 64, 256), numbers("int8", 256)),
              lambda a, b: np.maximum(a - b, 0)),
}
# fmt: on


@pytest.mark.parametrize("name", CASES)
def test_unaligned_views_match_numpy(fake_cuda: Device, name: str) -> None:
    """Aligned ones by whole accesses, which fibers check; others element by element."""
    build, argument, meaning = CASES[name]
    assert "ek_load_near<uint4>" in texts(build, tensors.TARGET, *argument)
    module = ekiden.compile(tensors.program(build, *argument), tensors.TARGET)
    expected = meaning(*(x.astype("float64") for x in argument))
    for counts in ((0, 0), (1, 0), (3, 2), (8, 4)):
        views = [moved(x, fake_cuda, n) for x, n in zip(argument, counts, strict=True)]
        np.testing.assert_array_equal(module(*views).numpy().astype("float64"), expected)


def test_unproven_accesses_stay_scalar() -> None:
    """Rows of 33 do not all begin at a multiple."""
    odd = numbers("float32", 20, 33), numbers("float32", 33, 35)
    text = texts(relay.nn.matmul, "cuda", *odd)
    assert not re.search(r"ek_load_near<\w+>\(\w+, &p\d", text)
    assert "_near<" not in texts(relay.add, "cuda", numbers("float32", 99, 33), odd[0][:1])


def test_one_barrier_for_each_block_of_two() -> None:
    """Before the first, and after each of the two that a turn multiplies."""
    argument = CASES["float32"][1]
    for buffers, barriers in ((1, 2), (2, 3)):
        text = texts(relay.nn.matmul, "cuda", *argument, buffers=buffers)
        assert text.count("__syncthreads()") == barriers


def test_languages() -> None:
    """By their own words; threads that run one after the other have what they had."""
    build, argument, _ = CASES["float32"]
    ptx = texts(build, "nvptx -arch=sm_80", *argument)
    for access in ("ld.global.v4", "ld.shared.v4", "st.shared.v4", "st.global.v4"):
        assert access in ptx
    assert "vload4" in texts(build, WARPS, *argument)
    assert "vload" not in texts(build, "opencl -device=any", *argument, shared=1)
    assert "vec4" not in texts(build, "webgpu", *argument)


REFUSED: Mapping[str, tuple[dict[str, int | str], str]] = {
    "alone": ({"shared": 0, "buffers": 2}, "near and buffers are about memory of the block, of sh"),
    "wide": ({"access_width": 8}, "access at most 4 neighbours of float32 as one"),
    "large": (
        {"rows": 12, "columns": 12, "lanes": 32, "lines": 16, "depth": 16, "buffers": 2},
        r"a block takes \d+ bytes of memory, of which target .* has 49152",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_decisions_that_are_refused(name: str) -> None:
    fixed, message = REFUSED[name]
    with pytest.raises(CompileError, match=f"decisions: 'thread_product' .*{message}"):
        texts(
            relay.nn.dense,
            "cuda",
            numbers("float32", 512, 64),
            numbers("float32", 512, 64),
            **fixed,
        )


def test_wide_accesses_use_vector_instructions(nvrtc: ctypes.CDLL, tmp_path: Path) -> None:
    build, argument, _ = CASES["float32"]
    (kernel,) = cuda.kernels_of(tensors.program(build, *argument), Target("cuda"))
    text = tensors.disassembled(nvrtc, kernel, "sm_80", tmp_path)
    for access in ("LDG.E.128", "LDS.128", "STS.128", "STG.E.128"):
        assert access in text


def test_unsupported_wide_accesses_are_not_chosen() -> None:
    """Memory of a block that is too small, and shuffles that LLVM has not for an architecture."""
    x, w = relay.var("x", shape=(70, 13)), relay.var("w", shape=(50, 13))
    product = IRModule.from_expr(relay.Function([x, w], relay.nn.dense(x, w)))
    for target in ("cuda -max_shared_memory_per_block=1024", "cuda -max_num_threads=8"):
        ekiden.compile(product, target)
    row = relay.var("row", shape=(1, 50257))
    softmax = IRModule.from_expr(relay.Function([row], relay.nn.softmax(row)))
    ekiden.compile(softmax, "nvptx -arch=sm_61")
