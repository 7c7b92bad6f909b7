"""CUDA C: every family compiles for every architecture without spills, and what fibers refuse."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import test_gpu_kernel_families as families

import ekiden
from ekiden import relay, runtime
from ekiden.codegen.device import DeviceKernel, unpack_kernels
from ekiden.compiler.build import compile_to_bytes
from ekiden.ir.module import IRModule
from ekiden.ir.prim import Var, const
from ekiden.kernels.gpu.launch import thread_loop
from ekiden.runtime import Device
from ekiden.runtime.artifact.container_format import read_sections
from ekiden.runtime.binding.layout import Section
from ekiden.runtime.errors import DeviceError
from ekiden.target import Target
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import BufferStore, IfThenElse, PrimFunc, seq
from ekiden.tir.transform.thread_sync import STORAGE_SYNC
from fake_drivers import GPU

ARCHITECTURES = ("sm_80", "sm_90", "sm_120")


def nvrtc_library() -> ctypes.CDLL | None:
    """NVIDIA's compiler as a library, where its package is installed."""
    home = find_spec("nvidia")
    folders = list(home.submodule_search_locations or ()) if home is not None else []
    result = [p for f in folders for p in Path(f).glob("**/lib/libnvrtc.so.*")]
    return ctypes.CDLL(str(result[0])) if result else None


@pytest.fixture(scope="module")
def nvrtc() -> ctypes.CDLL:
    """The same, or a skip."""
    result = nvrtc_library()
    if result is None:
        pytest.skip("needs NVRTC: pip install nvidia-cuda-nvrtc")
    return result


def kernels(name: str, shared: int | None) -> Iterator[DeviceKernel]:
    """Those of a case of the families."""
    program, argument, *_ = families.CASES[name]
    params = [relay.var(f"x{i}", shape=g.shape) for i, g in enumerate(argument)]
    module = IRModule.from_expr(relay.Function(params, program(*params)))
    fixed = {} if shared is None else {"thread_product": {"shared": shared}}
    with ekiden.transform.PassContext(config={"kernels.decisions": fixed}):
        yield from kernels_of(module, Target("cuda"))


def kernels_of(module: IRModule, target: Target) -> Iterator[DeviceKernel]:
    """Those of a program."""
    data = compile_to_bytes(module, target)
    for kind, _, payload in read_sections(data):
        if kind is Section.DEVICE_CODE:
            yield from unpack_kernels(bytes(payload))


@contextmanager
def translated(
    nvrtc: ctypes.CDLL, kernel: DeviceKernel, architecture: str
) -> Iterator[tuple[ctypes.c_void_p, str]]:
    """A program of the compiler, and what ptxas says of it; raises AssertionError where the
    compiler refuses a kernel."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), kernel.code, kernel.name.encode(), 0, None, None
    )
    options = [f"--gpu-architecture={architecture}", "-fmad=false", "--ptxas-options=-v"]
    argument = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
    status = nvrtc.nvrtcCompileProgram(program, len(options), argument)
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    text = log.value.decode()
    assert status == 0, text
    yield program, text
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def compiled(nvrtc: ctypes.CDLL, kernel: DeviceKernel, architecture: str) -> str:
    """What ptxas says of a kernel."""
    with translated(nvrtc, kernel, architecture) as (_, text):
        return text


def binary(nvrtc: ctypes.CDLL, kernel: DeviceKernel, architecture: str) -> bytes:
    """Its code."""
    with translated(nvrtc, kernel, architecture) as (program, _):
        size = ctypes.c_size_t()
        nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        result = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetCUBIN(program, result)
        return result.raw


@pytest.mark.parametrize(("name", "shared"), families.SHARED + families.OTHERS)
def test_families_compile_without_spills(nvrtc: ctypes.CDLL, name: str, shared: int | None) -> None:
    for kernel in kernels(name, shared):
        for architecture in ARCHITECTURES:
            message = compiled(nvrtc, kernel, architecture)
            assert re.findall(r"(\d+) bytes spill", message) == ["0", "0"], (kernel.name, message)


@pytest.mark.skipif(GPU, reason="needs fibers: what a GPU does with such a barrier is not defined")
def test_divergent_barrier_is_refused_by_fibers(fake_cuda: Device, disposable_cuda: Device) -> None:
    """It loses the device, of which every later use says what did; the first goes on."""
    out = Buffer("out", (const(8),), "float32")
    thread, block = Var("thread"), Var("block")
    store = BufferStore(out, const(1.0), (thread,))
    modules = []
    for body in (seq(store, STORAGE_SYNC), IfThenElse(thread < 4, STORAGE_SYNC)):
        threads = thread_loop(thread, 8, "threadIdx.x", seq(store, body))
        func = PrimFunc(
            (out,), thread_loop(block, 1, "blockIdx.x", threads), {"global_symbol": "f"}
        )
        modules.append(ekiden.build(func, "cuda"))
    here, there = (
        runtime.nd.array(np.zeros(8, "float32"), d) for d in (fake_cuda, disposable_cuda)
    )
    right, wrong = modules
    right["f"](there)
    assert there.numpy().tolist() == [1.0] * 8
    wrong["f"](there)
    lost = rf"{re.escape(str(disposable_cuda))}: .*it is lost .* in kernel 'f_kernel'"
    for _ in range(2):
        with pytest.raises(DeviceError, match=lost):
            there.numpy()
    right["f"](here)
    assert here.numpy().tolist() == [1.0] * 8
