"""Products on tensor cores: tensorized schedules and the family of products, as CUDA C on fibers,
whose header computes what a warp does; and what NVIDIA's compiler makes of them."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import test_cuda_text as cuda
from test_cuda_text import nvrtc as nvrtc  # the fixture

import ekiden
from ekiden import relay, runtime, te, tir
from ekiden.codegen.device import DeviceKernel
from ekiden.ir.module import IRModule
from ekiden.ir.prim import StringImm, Var, const
from ekiden.kernels.gpu.launch import thread_loop
from ekiden.relay.expr import RelayExpr
from ekiden.runtime import Device
from ekiden.runtime.errors import CompileError, DeviceError
from ekiden.target import Target
from ekiden.tir.expr import Buffer, BufferAddress
from ekiden.tir.op import tvm_fill_fragment, tvm_store_matrix_sync
from ekiden.tir.stmt import Allocate, Evaluate, IfThenElse, PrimFunc, seq
from ekiden.tir.tensor_intrin import cuda as intrinsics
from long_runs import alike

RNG = np.random.default_rng(31)
WORDS = {"float16": ("f16", "f32"), "int8": ("s8", "s32")}
TARGET = "cuda -arch=sm_80"


def numbers(*shape: int, dtype: str = "float16") -> np.ndarray:
    """Whole numbers, of which sums are exact."""
    return RNG.integers(-4, 5, shape).astype(dtype)


def tensorized(m: int, n: int, k: int, dtype: str, turned: bool, gap: int = 0) -> PrimFunc:
    """Blocks of 32 x 32 sums by one warp, factors by way of memory of the block, whose rows end
    with a gap."""
    word, total = WORDS[dtype]
    sums = {"f32": "float32", "s32": "int32"}[total]
    a = te.placeholder((m, k), dtype, "a")
    b = te.placeholder((n, k) if turned else (k, n), dtype, "b")
    r = te.reduce_axis((0, k), "r")

    def value(i: Var, j: Var) -> te.Tensor:
        right = b[j, r] if turned else b[r, j]
        return te.sum(a[i, r].astype(sums) * right.astype(sums), r)

    c = te.compute((m, n), value, name="c")
    s = tir.Schedule(te.create_prim_func([a, b, c]))
    block = s.get_block("c")
    i, j, depth = s.get_loops(block)
    (i0, i1, i2), (j0, j1, j2) = (s.split(loop, [None, 2, 16]) for loop in (i, j))
    k0, k1 = s.split(depth, [None, 16])
    s.reorder(i0, j0, k0, i1, j1, i2, j2, k1)
    s.bind(i0, "blockIdx.y")
    s.bind(j0, "blockIdx.x")
    shared = [s.cache_read(block, n, "shared") for n in (0, 1)]
    held = [s.cache_read(block, n, f"wmma.matrix_{'ab'[n]}") for n in (0, 1)]
    out = s.cache_write(block, 0, "wmma.accumulator")
    for item in (*held, *shared):
        s.compute_at(item, k0)
    s.reverse_compute_at(out, j0)
    for item in shared:
        _, threads = s.split(s.fuse(*s.get_loops(item)[-2:]), [None, 32])
        s.bind(threads, "threadIdx.x")
        s.storage_align(item, 0, 0, 32, gap)
    init = s.decompose_reduction(block, k0)
    ends = ("_a", "_b_trans" if turned else "_b")
    named = [f"wmma_load_16x16x16_{word}{end}_shared" for end in ends]
    for item, name in zip(
        (*held, out), (*named, f"wmma_store_16x16x16_{total}_global"), strict=True
    ):
        p, q = s.get_loops(item)[-2:]
        (p0, p1), (q0, q1) = (s.split(loop, [None, 16]) for loop in (p, q))
        s.reorder(p0, q0, p1, q1)
        s.tensorize(p1, name)
    s.tensorize(s.get_loops(init)[-2], f"wmma_fill_16x16x16_{total}")
    s.tensorize(i2, f"wmma_sync_16x16x16_{word}{word}{total}{'_trans' if turned else ''}")
    func = s.mod["main"]
    assert isinstance(func, PrimFunc)
    return func


@pytest.mark.parametrize(
    ("dtype", "turned", "gap"), [("float16", False, 0), ("float16", True, 24), ("int8", True, 0)]
)
def test_tensorized_schedules_match_numpy(
    fake_cuda: Device, dtype: str, turned: bool, gap: int
) -> None:
    m, n, k = 64, 96, 48
    module = ekiden.build(tensorized(m, n, k, dtype, turned, gap), TARGET)
    text = str(module.get_source("cuda"))
    assert "a_shared[" in text and "__syncthreads" in text
    assert (", 24);" in text) is (gap > 0)  # how far apart rows are in memory of the block
    a, b = numbers(m, k, dtype=dtype), numbers(*((n, k) if turned else (k, n)), dtype=dtype)
    wide = "int32" if dtype == "int8" else "float32"
    inputs = [runtime.nd.array(x, fake_cuda) for x in (a, b, np.zeros((m, n), wide))]
    module["main"](*inputs)
    right = b.T if turned else b
    np.testing.assert_array_equal(inputs[-1].numpy(), a.astype(wide) @ right.astype(wide))


def conv(x: RelayExpr, w: RelayExpr) -> RelayExpr:
    return relay.nn.conv2d(x, w, padding=(1, 1), kernel_size=(3, 3))


def program(build: Callable[..., RelayExpr], *argument: np.ndarray) -> IRModule:
    params = [relay.var(f"x{n}", shape=g.shape, dtype=str(g.dtype)) for n, g in enumerate(argument)]
    return IRModule.from_expr(relay.Function(params, build(*params)))


BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
CASES: dict[str, tuple[Callable[..., RelayExpr], tuple[np.ndarray, ...]]] = {
    "dense": (relay.nn.dense, (numbers(70, 33), numbers(130, 33))),
    "bfloat16": (
        lambda a, b: relay.nn.relu(relay.nn.matmul(a, b)),
        (numbers(33, 40).astype(BFLOAT16), numbers(40, 24).astype(BFLOAT16)),
    ),
    "convolution": (conv, (numbers(2, 8, 9, 7), numbers(24, 8, 3, 3))),
}


@pytest.mark.parametrize("name", CASES)
def test_tensor_core_small_dtypes_match_numpy(fake_cuda: Device, name: str) -> None:
    """The same as in float32 on a processor, rounded once: sums are exact in both."""
    build, argument = CASES[name]
    module = program(build, *argument)
    exe = ekiden.compile(module, TARGET)
    actual = exe(*argument).numpy()
    expected = ekiden.compile(module, "llvm")(*argument).numpy()
    np.testing.assert_array_equal(actual.astype("float32"), expected.astype("float32"))


def test_targets_without_tensor_cores_use_other_kernels() -> None:
    """Older devices, and factors of other types."""
    assert not Target("cuda -arch=sm_75").has("tensor_cores")
    assert not Target("cuda -model=any").has("tensor_cores")
    module = program(
        relay.nn.dense, numbers(32, 32, dtype="float32"), numbers(32, 32, dtype="float32")
    )
    with pytest.raises(
        CompileError, match="no tensor cores for these factors, which must be float16"
    ):
        ekiden.compile(module, TARGET, decisions={"thread_product": {"tensor": 1}})


def test_devices_without_matrices_of_a_warp() -> None:
    with pytest.raises(CompileError, match=r"buffer 'c_wmma_accumulator' .* kind 'opencl' has no"):
        ekiden.build(tensorized(32, 32, 16, "float16", False), "opencl -device=any")


def test_divergent_warp_call_is_refused(disposable_cuda: Device) -> None:
    sums = Buffer("sums", (const(256),), "float32", "wmma.accumulator")
    out, thread = Buffer("out", (const(16), const(16)), "float32"), Var("thread")
    held = BufferAddress(sums, access="w")
    fill = Evaluate(tvm_fill_fragment(held, 16, 16, 16, 0, const(0.0, "float32")))
    place = BufferAddress(out, (const(0), const(0)), access="w")
    store = tvm_store_matrix_sync(held, 16, 16, 16, 0, place, 16, StringImm("row_major"))
    body = Allocate(sums, seq(fill, IfThenElse(thread < 8, Evaluate(store))))
    threads = thread_loop(thread, 32, "threadIdx.x", body)
    func = PrimFunc(
        (out,), thread_loop(Var("block"), 1, "blockIdx.x", threads), {"global_symbol": "f"}
    )
    there = runtime.nd.array(np.zeros((16, 16), "float32"), disposable_cuda)
    ekiden.build(func, TARGET)["f"](there)
    with pytest.raises(DeviceError, match="in kernel 'f_kernel'"):
        there.numpy()


def disassembled(nvrtc: ctypes.CDLL, kernel: DeviceKernel, architecture: str, folder: Path) -> str:
    """The instructions of a kernel."""
    home = find_spec("nvidia")
    folders = list(home.submodule_search_locations or ()) if home is not None else []
    result = [p for f in folders for p in Path(f).glob("*/bin/nvdisasm")]
    if not result:
        pytest.skip("needs nvdisasm: pip install nvidia-cuda-nvdisasm")
    (folder / "kernel.cubin").write_bytes(cuda.binary(nvrtc, kernel, architecture))
    command = [str(result[0]), "-c", str(folder / "kernel.cubin")]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@alike(6)
@pytest.mark.parametrize("name", CASES)
def test_tensor_core_kernels_use_mma_instructions(
    nvrtc: ctypes.CDLL, tmp_path: Path, name: str
) -> None:
    """Nothing is spilled, and the products are instructions of tensor cores."""
    build, argument = CASES[name]
    seen = 0
    for kernel in cuda.kernels_of(program(build, *argument), Target(TARGET)):
        if b"ek_multiply" not in kernel.code:
            continue
        for architecture in cuda.ARCHITECTURES:
            message = cuda.compiled(nvrtc, kernel, architecture)
            assert re.findall(r"(\d+) bytes spill", message) == ["0", "0"], message
            text = disassembled(nvrtc, kernel, architecture, tmp_path)
            assert "HMMA.16816.F32" in text
            seen += 1
    assert seen == len(cuda.ARCHITECTURES)


def test_tensor_intrinsics_have_tvm_names() -> None:
    for name in intrinsics.__all__:
        assert tir.TensorIntrin.get(getattr(intrinsics, name)).name == getattr(intrinsics, name)
