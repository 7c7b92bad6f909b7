"""Kernels through LLVM as PTX: NVIDIA's assembler takes every family, and the same text of LLVM for
this processor, on fibers, computes what NumPy does."""

from __future__ import annotations

import re
import struct
import subprocess
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import test_cuda_text as cuda
import test_gpu_kernel_families as families

import ekiden
from ekiden import relay, runtime
from ekiden.codegen import llvm
from ekiden.codegen.llvm import gpu_kernel
from ekiden.codegen.llvm.gpu_backends import GpuBackend
from ekiden.ir.module import IRModule
from ekiden.ir.prim import Var, const
from ekiden.kernels.gpu.launch import thread_loop
from ekiden.runtime import Device
from ekiden.runtime.errors import CompileError
from ekiden.target import Target
from ekiden.tir.expr import Buffer, BufferAddress
from ekiden.tir.op import tvm_fill_fragment
from ekiden.tir.stmt import Allocate, AssertStmt, BufferStore, Evaluate, PrimFunc, seq
from long_runs import alike

HERE = Path(__file__).parent
TARGET = "nvptx -arch=sm_80 -model=any"


def module_of(name: str) -> IRModule:
    """A case of the families."""
    program, argument, *_ = families.CASES[name]
    params = [relay.var(f"x{n}", shape=g.shape) for n, g in enumerate(argument)]
    return IRModule.from_expr(relay.Function(params, program(*params)))


@alike(6)
@pytest.mark.parametrize("name", families.CASES)
def test_families_assemble_without_spills(tmp_path: Path, name: str) -> None:
    home = find_spec("nvidia")
    folders = list(home.submodule_search_locations or ()) if home is not None else []
    result = [p for f in folders for p in Path(f).glob("*/bin/ptxas")]
    if not result:
        pytest.skip("needs ptxas: pip install nvidia-cuda-nvcc")
    for kernel in cuda.kernels_of(module_of(name), Target(TARGET)):
        assert kernel.format == "ptx"
        (tmp_path / "k.ptx").write_bytes(kernel.code)
        for architecture in cuda.ARCHITECTURES:
            command = [str(result[0]), "-v", f"--gpu-name={architecture}", "-o", "k.cubin", "k.ptx"]
            completed = subprocess.run(
                command, capture_output=True, text=True, cwd=tmp_path, check=False
            )
            assert completed.returncode == 0, completed.stderr
            assert re.findall(r"(\d+) bytes spill", completed.stderr) == ["0", "0"], (
                completed.stderr
            )


SHIM = """
#include "{header}"
extern "C" {{
{registers}
void fibre_barrier(int) {{ __syncthreads(); }}
{shuffles}
int fibre_active() {{ return (int)__activemask(); }}
{dots}
void {name}({kinds});
extern const int fibre_args_{name};
const int fibre_args_{name} = {count};
void fibre_call_{name}(void **args) {{ {name}({given}); }}
}}
"""
SHUFFLE = """
{kind} fibre_{way}_{short}(int mask, {kind} x, int lane, int within) {{
  return fibre_shuffle(FIBRE_{way_upper}, (unsigned)mask, x, lane, 32 - (within >> 8));
}}"""
NAMES = {"tid": "threadIdx", "ctaid": "blockIdx", "ntid": "blockDim", "nctaid": "gridDim"}


def for_fibers(text: gpu_kernel.KernelIr, target: Target, road: GpuBackend) -> bytes:
    """What stand-ins for NVIDIA's libraries load, of a kernel as it is before it becomes PTX."""
    host = Target.host()
    ir = re.sub(r"target datalayout.*\n", "", text.ir).replace(road.triple, host.triple)
    ir = re.sub(r" addrspace\(\d\)", "", ir)
    name = ir.partition("ptx_kernel void @")[2].partition("(")[0]
    params = ir.partition(f"@{name}(")[2].partition(")")[0].split(", ")
    ir = ir.replace("ptx_kernel ", "")
    ir = re.sub(r"llvm\.nvvm\.read\.ptx\.sreg\.(\w+)\.(\w)", r"fibre_\1_\2", ir)
    ir = ir.replace("llvm.nvvm.barrier.cta.sync.aligned.all", "fibre_barrier")
    ir = re.sub(r"llvm\.nvvm\.shfl\.sync\.(\w+)\.(\w+)", r"fibre_\1_\2", ir)
    ir = ir.replace("llvm.nvvm.activemask", "fibre_active")
    ir = re.sub(r"llvm\.nvvm\.idp4a\.(\w)\.(\w)", r"fibre_dot_\1\2", ir)
    dots = "\n".join(
        f"int fibre_dot_{x}{y}(int a, int b, int c) {{ return ek_dot4_{x}8{y}8_int32(c, a, b); }}"
        for x, y in ("ss", "uu", "us")
    )
    registers = "\n".join(
        f"int fibre_{short}_{a}() {{ return (int){long}.{a}; }}"
        for short, long in NAMES.items()
        for a in "xyz"
    )
    shim = SHIM.format(
        header=HERE / "fibre.h",
        registers=registers,
        shuffles="".join(
            SHUFFLE.format(kind=kind, way=way, way_upper=way.upper(), short=short)
            for way in ("idx", "up", "down")
            for kind, short in (("float", "f32"), ("int", "i32"))
        ),
        dots=dots,
        name=name,
        kinds=", ".join("void *" if p.startswith("ptr") else "int64_t" for p in params),
        count=len(params),
        given=", ".join(
            f"args[{n}]" if p.startswith("ptr") else f"(int64_t)args[{n}]"
            for n, p in enumerate(params)
        ),
    )
    with TemporaryDirectory() as result:
        folder = Path(result)
        (folder / "k.o").write_bytes(llvm.compile_ir(ir, host))
        (folder / "shim.cpp").write_text(shim)
        command = [
            "c++",
            "-std=c++17",
            "-O1",
            "-w",
            "-shared",
            "-fPIC",
            "shim.cpp",
            "k.o",
            "-o",
            "k.so",
        ]
        subprocess.run(command, cwd=folder, check=True)
        library = (folder / "k.so").read_bytes()
    return b"FIBRES\0\0" + struct.pack("<Q", len(library)) + library


@pytest.fixture
def as_fibers(fake_cuda: Device, monkeypatch: pytest.MonkeyPatch) -> str:
    """A target of its own, whose kernels are made for fibers."""
    monkeypatch.setattr(gpu_kernel, "compile_device_code", for_fibers)
    return "nvptx -arch=sm_80 -model=fibers"


@pytest.mark.parametrize("name", ["dense", "softmax", "scatter_add"])
def test_ptx_kernels_match_numpy(as_fibers: str, name: str) -> None:
    families.check(name, Target(as_fibers), None)


def a_function() -> PrimFunc:
    """64 threads in two blocks, of which those from the 40th on fail."""
    out, thread, block = Buffer("out", (const(64),), "float32"), Var("thread"), Var("block")
    index = block * 32 + thread
    wrong = AssertStmt(index < 40, "at {} of {}", "ValueError", (index, const(40)))
    body = seq(wrong, BufferStore(out, const(1.0), (index,)))
    threads = thread_loop(thread, 32, "threadIdx.x", body)
    return PrimFunc((out,), thread_loop(block, 2, "blockIdx.x", threads), {"global_symbol": "f"})


def test_failing_index_check_in_ptx(as_fibers: str) -> None:
    """The first thread tells its values."""
    there = runtime.nd.array(np.zeros(64, "float32"), runtime.device("cuda"))
    with pytest.raises(ValueError, match="at 40 of 40"):
        ekiden.build(a_function(), as_fibers)["f"](there)


def test_ptx_refuses_unsupported_features() -> None:
    matrices = Buffer("m", (const(256),), "float32", "wmma.accumulator")
    out = Buffer("out", (const(4),), "float32")
    thread = Var("t")
    held = BufferAddress(matrices, access="w")
    fill = Evaluate(tvm_fill_fragment(held, 16, 16, 16, 0, const(0.0, "float32")))
    body = Allocate(matrices, seq(fill, BufferStore(out, const(0.0), (thread,))))
    threads = thread_loop(thread, 4, "threadIdx.x", body)
    func = PrimFunc((out,), thread_loop(Var("b"), 1, "blockIdx.x", threads), {"global_symbol": "f"})
    with pytest.raises(
        CompileError, match="kind 'nvptx' has no matrices of a warp; kind 'cuda' has"
    ):
        ekiden.build(func, TARGET)
