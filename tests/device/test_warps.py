"""What threads of a warp hand each other: the calls by themselves, and kernels that combine values
by them, on fibers, in PTX and in the code of NVIDIA's devices."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import test_cuda_text as cuda
import test_gpu_kernel_families as families
import test_ptx as ptx
import test_tensor_cores as tensors
from test_cuda_text import nvrtc as nvrtc  # the fixture

import ekiden
from ekiden import relay, runtime, tir
from ekiden.cli import main
from ekiden.codegen.device import DeviceKernel, split_host_and_device
from ekiden.codegen.llvm import gpu_kernel
from ekiden.ir import dtype as dt
from ekiden.ir.module import IRModule
from ekiden.relay.expr import RelayExpr
from ekiden.runtime import Device
from ekiden.runtime.errors import CompileError, DeviceError
from ekiden.target import Target
from long_runs import alike

TARGET = "cuda -model=any"
DTYPES = "float32 int32 uint32 float16 bfloat16 int8 uint8 int16 int64 uint64 float64 bool".split()
CALLS = [
    ("T.tvm_warp_shuffle(T.uint32(4294967295), {x}, t // 3 + 1, 32, 32)", lambda t: t // 3 + 1),
    ("T.tvm_warp_shuffle(T.tvm_warp_activemask(), {x}, 5, 8, 32)", lambda t: t // 8 * 8 + 5),
    ("T.tvm_warp_shuffle_up(T.uint32(4294967295), {x}, 3, 32, 32)",
     lambda t: np.where(t < 3, t, t - 3)),
    ("T.tvm_warp_shuffle_down(T.uint32(4294967295), {x}, 3, 16, 32)",
     lambda t: np.where(t % 16 + 3 < 16, t + 3, t)),
]  # fmt: skip
"""A call, and whose value each thread of a warp has."""
SOME = "T.tvm_warp_shuffle_down(T.uint32({mask}), {{x}}, 1, 16, 32)"


def program(calls: Sequence[tuple[str, str]], guard: str = "True") -> tir.PrimFunc:
    """Calls of values of a type, by two blocks of two warps."""
    params, lines = [], []
    for n, (call, dtype) in enumerate(calls):
        params += [f'{name}{n}: T.Buffer((4, 32), "{dtype}")' for name in "xy"]
        lines.append(f"y{n}[b * 2 + w, t] = {call.format(x=f'x{n}[b * 2 + w, t]')}\n")
    func = tir.parse(f"""from ekiden.script import tir as T
@T.prim_func
def f({", ".join(params)}):
    for b in T.thread_binding(2, "blockIdx.x"):
        for w in T.thread_binding(2, "threadIdx.y"):
            for t in T.thread_binding(32, "threadIdx.x"):
                if {guard}:
                    {(20 * " ").join(lines)}""")
    assert isinstance(func, tir.PrimFunc)
    return func


def given(dtype: str) -> np.ndarray:
    """Values of which hardly one is another's."""
    numbers = np.arange(128).reshape(4, 32)
    if dtype == "bool":
        return numbers * 7 % 5 < 2
    wide = numbers * (2**40 + 1) if dtype in ("int64", "uint64", "float64") else numbers
    signed = wide if dtype[0] == "u" else wide - wide.max() // 2
    return (signed + (0.25 if dtype in ("float32", "float64") else 0)).astype(dt.to_numpy(dtype))


@pytest.mark.parametrize("through", ["cuda", "ptx"])
def test_warp_shuffle_calls_match_reference(
    fake_cuda: Device, monkeypatch: pytest.MonkeyPatch, through: str
) -> None:
    """Each of them, and values of every type, through one word or two."""
    target = TARGET
    if through == "ptx":
        monkeypatch.setattr(gpu_kernel, "compile_device_code", ptx.for_fibers)
        target = "nvptx -arch=sm_80 -model=fibers"
    calls = [(call, "float32") for call, _ in CALLS] + [(CALLS[3][0], d) for d in DTYPES]
    lanes = [lane(np.arange(32)) for _, lane in CALLS] + [CALLS[3][1](np.arange(32))] * len(DTYPES)
    built = ekiden.build(program(calls), target)
    arrays = [f(given(dtype)) for _, dtype in calls for f in (np.copy, np.zeros_like)]
    there = [runtime.nd.array(a, fake_cuda) for a in arrays]
    built["f"](*there)
    for n, (call, dtype) in enumerate(calls):
        expected = given(dtype)[:, lanes[n]]
        assert there[2 * n + 1].numpy().tolist() == expected.tolist(), (call, dtype)


@pytest.mark.skipif(cuda.GPU, reason="needs fibers: what a GPU does with such a call is not said")
def test_divergent_shuffle_is_an_error(
    fake_cuda: Device, disposable_cuda: Device, capfd: pytest.CaptureFixture[str]
) -> None:
    """Half of a warp may call where the mask has half; else the device is lost."""
    for mask, device in (("65535", fake_cuda), ("4294967295", disposable_cuda)):
        call = (SOME.format(mask=mask), "float32")
        here, there = (runtime.nd.array(given("float32"), device) for _ in range(2))
        ekiden.build(program([call], guard="t < 16"), TARGET)["f"](here, there)
        if device is fake_cuda:
            assert there.numpy()[:, :15].tolist() == given("float32")[:, 1:16].tolist()
            continue
        with pytest.raises(DeviceError, match="in kernel 'f_kernel'"):
            there.numpy()
    assert "a shuffle that not all threads of its mask make" in capfd.readouterr().err


def test_invalid_warp_calls_are_refused() -> None:
    call = "T.tvm_warp_shuffle_down(T.uint32({}), {{x}}, {}, {}, {})"

    def of(*numbers: int) -> tir.PrimFunc:
        return program([(call.format(*numbers), "float32")])

    good = of(2**32 - 1, 1, 32, 32)
    for target in ("opencl -device=any -thread_warp_size=32", "webgpu"):
        with pytest.raises(CompileError, match="tvm_warp_shuffle_down: kind '.*' has no shuffles"):
            ekiden.build(good, target)
    with pytest.raises(CompileError, match="tvm_warp_shuffle_down; threads of devices that have"):
        ekiden.build(good, "llvm")
    with pytest.raises(TypeError, match="interpreter: tvm_warp_shuffle_down has no meaning"):
        tir.interpreter.run_prim_func(tir.transform.lower(good), given("float32"), given("float32"))
    for numbers, wrong in (((1, 12, 32), "neighbours that exchange are 1, 2, 4"),
                           ((1, 16, 64), "warps have 32 threads, got 64")):  # fmt: skip
        for target in (TARGET, "nvptx -arch=sm_80"):
            with pytest.raises(CompileError, match=wrong):
                ekiden.build(of(2**32 - 1, *numbers), target)
    with pytest.raises(CompileError, match="kind 'metal' has no masks"):
        ekiden.build(of(65535, 1, 16, 32), "metal")
    (kernel,) = split_host_and_device(good, Target("metal")).kernels
    assert b"ek_lane [[thread_index_in_simdgroup]]" in kernel.code


def test_targets_with_warp_shuffles() -> None:
    have = {k: Target(f"{k} -model=any").has("warp_shuffles") for k in
            ("cuda", "nvptx", "metal", "opencl", "webgpu")}  # fmt: skip
    assert have == {"cuda": True, "nvptx": True, "metal": True, "opencl": False, "webgpu": False}
    assert not Target("llvm").has("warp_shuffles")


# kernels


def kernels_of(make: Callable[..., RelayExpr], x: np.ndarray, target: str) -> list[DeviceKernel]:
    """Those of a function of one argument."""
    var = relay.var("x", shape=x.shape, dtype=str(x.dtype))
    module = IRModule.from_expr(relay.Function([var], make(var)))
    return list(cuda.kernels_of(module, Target(target)))


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


Row = tuple[Callable[..., RelayExpr], Callable[[np.ndarray], np.ndarray], str, tuple[int, ...]]
ROWS: dict[str, Row] = {
    "sum": (lambda x: relay.sum(x, axis=1), lambda x: x.sum(1), "float32", (3, 1001)),
    "max of float16": (lambda x: relay.max(x, axis=1), lambda x: x.max(1), "float16", (2, 517)),
    "sum of int64": (lambda x: relay.sum(x, axis=1), lambda x: x.sum(1), "int64", (2, 777)),
    "min of int8": (relay.min, lambda x: x.min(), "int8", (5, 131)),
    "prod of float64": (lambda x: relay.prod(x * relay.const(0.01, "float64") +
                                             relay.const(1.0, "float64"), axis=1),
                        lambda x: (x * 0.01 + 1).prod(1), "float64", (2, 600)),
    "any": (lambda x: relay.any(relay.greater(x, relay.const(3.9, "float32")), axis=1),
            lambda x: (x > 3.9).any(1), "float32", (4, 999)),
    "softmax": (relay.nn.softmax, softmax, "float32", (2, 1025)),
    "softmax of bfloat16": (relay.nn.softmax, softmax, "bfloat16", (3, 33)),
    "argmax": (lambda x: relay.argmax(x, axis=1), lambda x: x.argmax(1), "float32", (3, 1000)),
    "argmin of int32": (lambda x: relay.argmin(x, axis=1), lambda x: x.argmin(1), "int32",
                        (2, 600)),
    "cumsum": (lambda x: relay.cumsum(x, axis=1), lambda x: x.cumsum(1), "float32", (3, 3001)),
    "cumsum of int64": (lambda x: relay.cumsum(x, exclusive=True),
                        lambda x: np.concatenate([[0], x.cumsum()[:-1]]), "int64", (1500,)),
    "cumprod of columns": (lambda x: relay.cumprod(x, axis=0), lambda x: x.cumprod(0), "float64",
                           (77, 3)),
}  # fmt: skip
"""A program, what it means, of which type and shape."""


def row_data(name: str) -> np.ndarray:
    _, _, dtype, shape = ROWS[name]
    numbers = families.RNG.standard_normal(shape)
    return (numbers * (1 if dtype[0] in "fb" else 40)).astype(dt.to_numpy(dtype))


@alike(4)
@pytest.mark.parametrize("name", ROWS)
def test_kernels(fake_cuda: Device, name: str) -> None:
    """Of every type, and of lengths that no warp divides."""
    make, meaning, dtype, _ = ROWS[name]
    x = row_data(name)
    var = relay.var("x", shape=x.shape, dtype=dtype)
    actual = ekiden.compile(IRModule.from_expr(relay.Function([var], make(var))), TARGET)(x).numpy()
    assert any(b"__shfl_" in k.code for k in kernels_of(make, x, TARGET))
    wide = x.astype("float64") if dt.is_float(dtype) else x
    expected = meaning(wide)
    near = 1e-2 if dtype in ("float16", "bfloat16") else 1e-5
    most = float(np.abs(expected.astype("float64")).max())
    np.testing.assert_allclose(
        actual.astype(expected.dtype), expected, rtol=near, atol=near * most / 10
    )


def spread(x: RelayExpr) -> RelayExpr:
    return relay.max(x) - relay.min(x)


@alike(2)
@pytest.mark.parametrize(
    ("make", "meaning"),
    [(relay.nn.softmax, softmax), (spread, lambda x: x.max() - x.min())],
    ids=["rows", "all"],
)
def test_long_rows_of_many_units(
    fake_cuda: Device, make: Callable[..., RelayExpr], meaning: Callable[..., np.ndarray]
) -> None:
    """Elements of few long rows have threads of the whole device, reductions of them a block."""
    assert fake_cuda.exist
    x, target = families.numbers(2, 4001), f"{TARGET} -cores=108"
    texts = [k.code for k in kernels_of(make, x, target)]
    assert sum(b"__shfl_down_sync" in text for text in texts) == 2
    var = relay.var("x", shape=x.shape)
    result = ekiden.compile(IRModule.from_expr(relay.Function([var], make(var))), target)(x)
    np.testing.assert_allclose(result.numpy(), meaning(x.astype("float64")), 1e-5, 1e-8)


def waits(kernel: DeviceKernel) -> int:
    return len(re.findall(r"__syncthreads|barrier\(", kernel.code.decode().partition("void ")[2]))


def test_warp_reductions_need_fewer_barriers() -> None:
    """One for a block of several warps, none for one warp; by halves where there are no warps."""
    x = np.zeros((2, 4096), "float32")

    def total(x: RelayExpr) -> RelayExpr:
        return relay.sum(x, axis=1)

    without = "opencl -device=any -thread_warp_size=32"
    for threads, many, few in ((256, 9, 1), (32, 6, 0)):
        fixed = {"kernels.decisions": {"thread_reduction": {"threads": threads}}}
        with ekiden.transform.PassContext(config=fixed):
            counts = [waits(*kernels_of(total, x, t)) for t in (without, TARGET)]
        assert counts == [many, few]
    (rows,) = kernels_of(relay.nn.softmax, np.zeros((64, 1024), "float32"), TARGET)
    assert waits(rows) == 3


def test_warp_shuffles_use_shfl_instructions(nvrtc: ctypes.CDLL, tmp_path: Path) -> None:
    """Nothing is spilled, and registers are handed over by instructions of warps."""
    (kernel,) = kernels_of(relay.nn.softmax, np.zeros((64, 1024), "float32"), TARGET)
    for architecture in cuda.ARCHITECTURES:
        message = cuda.compiled(nvrtc, kernel, architecture)
        assert re.findall(r"(\d+) bytes spill", message) == ["0", "0"], message
        assert "SHFL.DOWN" in tensors.disassembled(nvrtc, kernel, architecture, tmp_path)


def test_warp_shuffles_in_ptx_attention() -> None:
    for name in ("softmax", "attention", "attention of one query"):
        texts = [k.code for k in cuda.kernels_of(ptx.module_of(name), Target(ptx.TARGET))]
        assert any(b"shfl.sync.down.b32" in text for text in texts)
    (kernel,) = cuda.kernels_of(ptx.module_of("attention"), Target(TARGET))
    assert waits(kernel) == 3 and b", 8, 16)" in kernel.code  # of 16 threads each query has


def test_inspect_shows_warp_shuffles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = relay.parse("def @main(%x: Tensor[(2, 1024), float32]) { nn.softmax(%x) }")
    path = tmp_path / "m.eki"
    ekiden.export(module, str(path), TARGET)
    assert main(["inspect", str(path), "--stage", "cuda"]) == 0
    assert "__shfl_down_sync(" in capsys.readouterr().out
