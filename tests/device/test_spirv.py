"""Kernels through LLVM as SPIR-V: its own validator takes every family, Intel's runtime computes
what NumPy does, and a driver that does not take them says so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import test_cuda_text as cuda
import test_gpu_kernel_families as families
import test_ptx as ptx

import ekiden
from ekiden import relay
from ekiden.cli import main
from ekiden.codegen.llvm import compiler
from ekiden.ir.module import IRModule
from ekiden.relay.expr import RelayExpr
from ekiden.runtime.errors import CompileError
from ekiden.target import Target
from fake_drivers import compile_fake_driver
from long_runs import LONG, alike

HERE = Path(__file__).parent
ANY = "opencl -mtriple=spirv64 -model=any"
NAMES = list(families.CASES)
USUAL = ["dense", "conv2d", "softmax", "scatter_add", "sort"]


@pytest.fixture(scope="module")
def validator() -> str:
    """The path of SPIR-V's."""
    result = shutil.which("spirv-val")
    if result is None:
        pytest.skip("needs spirv-val: apt-get install spirv-tools")
    return result


def validate(validator: str, code: bytes, environment: str = "opencl2.1") -> None:
    """Of OpenCL 2.1 with SPIR-V 1.0, unless said otherwise."""
    command = [validator, "--target-env", environment, "-"]
    completed = subprocess.run(command, input=code, capture_output=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr


@alike(4)
@pytest.mark.parametrize("bits", [32, 256])
@pytest.mark.parametrize("name", NAMES)
def test_spirv_kernel_families_validate(validator: str, name: str, bits: int) -> None:
    target = Target(f"{ANY} -vector-bits={bits}")
    for kernel in cuda.kernels_of(ptx.module_of(name), target):
        assert kernel.format == "spirv"
        validate(validator, kernel.code)


def intel() -> dict[str, str]:
    """The environment in which the loader finds Intel's runtime of the package; {} without it."""
    library = Path(sys.prefix) / "lib" / "libintelocl.so"
    if not library.exists():
        return {}
    paths = filter(None, (str(library.parent), os.environ.get("LD_LIBRARY_PATH")))
    return {"LD_LIBRARY_PATH": os.pathsep.join(paths), "OCL_ICD_FILENAMES": str(library)}


@pytest.mark.parametrize("names", [USUAL, pytest.param(NAMES, marks=LONG)], ids=["usual", "all"])
def test_spirv_kernels_match_numpy(names: list[str], tmp_path: Path) -> None:
    """In a process of its own, which finds Intel's runtime for processors alone."""
    argument = intel()
    if not argument:
        pytest.skip("needs Intel's OpenCL: pip install intel-opencl-rt intel-cmplr-lib-rt")
    (tmp_path / "intel.icd").write_text(argument.pop("OCL_ICD_FILENAMES"))
    argument |= {"OCL_ICD_VENDORS": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(HERE / "spirv_results.py"), "opencl -mtriple=spirv64", *names]
    environment = {**os.environ, **argument}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if "libOpenCL.so.1 finds no device" in ran.stderr:
        pytest.skip("needs a processor that Intel's OpenCL runs on")
    assert ran.returncode == 0, ran.stderr
    *agreed, message = ran.stdout.splitlines()
    assert agreed == names and "at 40 of 40" in message


x, y = (relay.var(n, shape=(7, 33)) for n in "xy")
# fmt: off
ODD: dict[str, tuple[list[relay.Var], Callable[[], RelayExpr]]] = {
    "tables of numbers": ([x], lambda: relay.log(relay.cast(relay.exp(x), "float64"))),
    "half": ([x], lambda: relay.cast(relay.cast(x, "float16"), "bfloat16")),
    "places": ([x], lambda: relay.strided_slice(x, (0, 0), (7, 33), (1, 5))),
    "bytes": ([x], lambda: relay.less(relay.cast(x, "uint8"), relay.const(3, "uint8"))),
}
# fmt: on


@pytest.mark.parametrize("name", ODD)
def test_unsupported_vector_widths_are_split(validator: str, name: str) -> None:
    """LLVM has none of addresses. Half floats are a capability that not all of OpenCL has."""
    params, body = ODD[name]
    module = IRModule.from_expr(relay.Function(params, body()))
    for bits in (32, 512):
        for kernel in cuda.kernels_of(module, Target(f"{ANY} -vector-bits={bits}")):
            validate(validator, kernel.code, "spv1.0")


def test_spirv_refuses_missing_llvm_features() -> None:
    """It would end the process."""
    module = IRModule.from_expr(relay.Function([x], relay.topk(x, 3)[0]))
    with pytest.raises(
        CompileError, match=r"kernel 'fused_topk_\w+': as spirv: LLVM gave up: LLVM"
    ):
        ekiden.compile(module, ANY)


def test_spirv_versions_are_selectable(validator: str) -> None:
    """The oldest, unless another is asked for; LLVM's full name of a triple is the same."""
    module = ptx.module_of("pad")
    for triple, version in (("", 0), ("v1.2", 2), ("v1.4", 4)):
        target = Target(f"opencl -mtriple=spirv64{triple}-unknown-unknown -model=any")
        assert target == f"opencl -mtriple=spirv64{triple} -model=any"
        (kernel,) = cuda.kernels_of(module, target)
        assert int.from_bytes(kernel.code[4:8], "little") == 0x10000 + 0x100 * version
        validate(validator, kernel.code, f"spv1.{version}")


def test_inspect_disassembles_spirv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a model LLVM's assembly; of an artifact what its disassembler reads."""
    path, target = tmp_path / "m.eki", "opencl -mtriple=spirv64"
    module = ptx.module_of("pad")
    program = ekiden.compile(module, ANY)
    program.save(path)
    assert main(["inspect", str(path), "--stage", "opencl"]) == 1
    if shutil.which("spirv-dis") is not None:
        assert main(["inspect", str(path), "--stage", "spirv"]) == 0
        assert "OpEntryPoint Kernel" in capsys.readouterr().out
    func = ptx.a_function()
    assert "OpEntryPoint Kernel" in ekiden.build(func, target).get_source("spirv")
    assert "__kernel void" in ekiden.build(func, "opencl").get_source("opencl")


def test_artifact_without_its_disassembler(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ekiden.compile(ptx.module_of("pad"), ANY).save(tmp_path / "m.eki")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["inspect", str(tmp_path / "m.eki"), "--stage", "spirv"]) == 1
    assert "apt-get install spirv-tools" in capsys.readouterr().err


def test_unsupported_spirv_kernels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ptx.module_of("pad")
    for wrong in ("spirv32", "spirv64v1.7", "spirv1.6-vulkan", "nvptx64-nvidia-cuda"):
        with pytest.raises(CompileError, match=rf"-mtriple={wrong}: only 'spirv64' or "):
            ekiden.compile(module, f"opencl -mtriple={wrong}")
    with pytest.raises(CompileError, match="-mtriple=spirv64: there is no such thing"):
        ekiden.compile(module, "cuda -mtriple=spirv64")

    def without(triple: str) -> None:
        raise RuntimeError("No available targets are compatible with triple")

    monkeypatch.setattr(compiler.llvm.Target, "from_triple", without)
    with pytest.raises(CompileError, match=r"LLVM makes no code for 'spirv64v1.0-.* in llvmlite 0"):
        ekiden.compile(module, ANY)


def test_driver_without_spirv_is_an_error(tmp_path: Path) -> None:
    """Each way once, and no module goes to a driver whose instructions do not fill it."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler: apt-get install gcc")
    library = tmp_path / "libOpenCL.so.1"
    compile_fake_driver("opencl", library)
    command = [sys.executable, str(HERE / "spirv_refused.py"), str(library)]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "EKIDEN_CACHE_DIR": ""}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    message = dict(line.split("|", 1) for line in ran.stdout.splitlines())
    assert message[""] == message["extension"] == "[2.0, 0.0]"
    kernel = "opencl(0): kernel 'f': "
    none = (
        f"DeviceError: {kernel}the driver of 'stand-in' takes no SPIR-V (clCreateProgramWithIL); "
        "compile for 'opencl' without -mtriple, which makes OpenCL C"
    )
    for mode in ("nothing behind the extension", "takes none", "unknown question"):
        assert message[mode] == none
    assert message["takes 1.0"] == (
        f"DeviceError: {kernel}it is SPIR-V 1.2, of which the driver of 'stand-in' takes 1.0 at "
        "most; compile for 'opencl -mtriple=spirv64v1.0', or for 'opencl', which makes OpenCL C"
    )
    refused = f"DeviceError: {kernel}the driver of 'stand-in' refuses its SPIR-V (error -30)"
    assert message["refuses"] == refused
    for mode in ("no memory", "no memory to build"):
        assert message[mode].startswith(f"MemoryError: {kernel}it has too little memory (error ")
    assert "refuses it (error -11): error: line 3: no such thing" in message["does not build"]
    assert "kernel 'g': its code has none of that name" in message["other name"]
    refused, _, rest = message["damaged"].partition(" refused, ")
    assert int(refused) > 0 and int(refused) + int(rest.split()[0]) == int(rest.split()[-1])
