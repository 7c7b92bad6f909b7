"""Kernels as Metal: what they say is C++ of the kind that Metal is; what it lacks is refused."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import test_cuda_text as cuda
import test_gpu_kernel_families as families

from ekiden import relay
from ekiden.ir.module import IRModule
from ekiden.runtime.errors import CompileError
from ekiden.target import Target

HERE = Path(__file__).parent


def module_of(name: str) -> IRModule:
    """A case of the families."""
    program, argument, *_ = families.CASES[name]
    params = [relay.var(f"x{n}", shape=g.shape) for n, g in enumerate(argument)]
    return IRModule.from_expr(relay.Function(params, program(*params)))


def test_kernel_families_emit_metal(tmp_path: Path) -> None:
    """All of them in one text, read by a compiler of C++ with the words of Metal."""
    if shutil.which("c++") is None:
        pytest.skip("needs a C++ compiler: apt-get install g++")
    names = [n for n in families.CASES if n != "types"]
    texts = []
    for n, name in enumerate(names):
        for kernel in cuda.kernels_of(module_of(name), Target("metal")):
            assert kernel.format == "metal" and b"kernel void" in kernel.code
            texts.append(f"namespace k{n}_{len(texts)} {{\n{kernel.code.decode()}\n}}\n")
    text = (
        "".join(texts).replace("#include <metal_stdlib>", "").replace("using namespace metal;", "")
    )
    source = tmp_path / "k.cpp"
    source.write_text(f'#include "{HERE / "metal.h"}"\nusing namespace metal;\n{text}')
    command = ["c++", "-std=c++17", "-fsyntax-only", "-Wno-attributes", "-w", str(source)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr[:3000]


@pytest.mark.parametrize(("kind", "rounding"), [("metal", "rintf("), ("webgpu", "round(")])
def test_metal_kernels_avoid_magic_number_rounding(kind: str, rounding: str) -> None:
    """Compilers of these languages may compute sums in another order, by which a large number that
    is added and taken away again is gone."""
    x = relay.var("x", shape=(5,))
    for op in (relay.exp, relay.sigmoid, relay.tanh):
        module = IRModule.from_expr(relay.Function([x], op(x)))
        (kernel,) = cuda.kernels_of(module, Target(kind))
        assert rounding in kernel.code.decode()


def test_metal_refuses_float64() -> None:
    with pytest.raises(CompileError, match=r"kernel '.*': metal has no float64"):
        list(cuda.kernels_of(module_of("types"), Target("metal")))
