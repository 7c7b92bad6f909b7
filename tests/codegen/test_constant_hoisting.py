"""Constants of long computations: in memory as vectors where each would take an instruction in
every turn of a loop, and nowhere else.
"""

from __future__ import annotations

import numpy as np
import pytest
from codegen_kernels import map_kernel, run_map

from ekiden import te
from ekiden.codegen import llvm
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import PrimExpr
from ekiden.kernels.cpu.default import schedule_default
from ekiden.target import Target
from ekiden.tir.transform import lower


def assembly(name: str, cpu: str) -> str:
    """The code of a function of 4,096 numbers."""
    target = Target(f"llvm -mcpu={cpu} -mtriple=x86_64-unknown-linux-gnu")
    x = te.placeholder((64, 64), "float32", "x")
    y = te.compute((64, 64), lambda i, j: call_intrin(name, x[i, j]), "y")
    result = schedule_default([x], [y], target, "kernel")
    return llvm.assembly([lower(result)], target)


@pytest.mark.parametrize("name", ["erf", "tanh"])
def test_loop_iterations_do_not_broadcast_constants(name: str) -> None:
    text = assembly(name, "haswell")
    (turn,) = (part for part in text.split(".p2align") if "vdivps" in part and ".LBB" in part)
    assert ".vector." in turn and "broadcast" not in turn.split("vmovups")[1]


@pytest.mark.parametrize("cpu", ["nehalem", "skylake-avx512", "znver4"])
def test_short_computations_keep_constants_inline(cpu: str) -> None:
    assert ".vector." not in assembly("erf", cpu)


def test_long_computations_take_two_vectors_at_a_time() -> None:
    target = Target("llvm -mcpu=haswell")
    x = te.placeholder((64, 64), "float32", "x")
    y = te.compute((64, 64), lambda i, j: call_intrin("tanh", x[i, j]), "y")
    assert '"lanes": 16' in str(schedule_default([x], [y], target, "kernel"))


@pytest.mark.parametrize("count", [24, 40, 48])
@pytest.mark.parametrize("name", ["exp", "tanh", "log"])
def test_vectors_need_not_have_a_power_of_two_of_lanes(name: str, count: int) -> None:
    x = np.linspace(0.1, 5, 2 * count, dtype=np.float32)

    def body(value: PrimExpr) -> PrimExpr:
        return call_intrin(name, value, dtype=value.dtype)

    result = run_map(body, [x], ["float32"], "float32", count)
    np.testing.assert_allclose(result, getattr(np, name)(x), rtol=1e-6)
    kernel = lower(map_kernel(body, ["float32"], "float32", count, count))
    for cpu in ("haswell", "skylake-avx512"):
        target = Target(f"llvm -mcpu={cpu} -mtriple=x86_64-unknown-linux-gnu")
        assert "vmulps" in llvm.assembly([kernel], target)
