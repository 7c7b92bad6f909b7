"""Constants of long computations: in memory as vectors where each would take an instruction in
every turn of a loop, and nowhere else.
"""

from __future__ import annotations

import pytest

from ekiden import te
from ekiden.codegen import llvm
from ekiden.ir.intrinsic import call_intrin
from ekiden.target import Target
from ekiden.tir.transform import lower
from ekiden.topi.rule.default import schedule_default


def assembly(name: str, cpu: str) -> str:
    """The code of a function of 4,096 numbers."""
    target = Target(f"llvm -mcpu={cpu} -mtriple=x86_64-unknown-linux-gnu")
    x = te.placeholder((64, 64), "float32", "x")
    y = te.compute((64, 64), lambda i, j: call_intrin(name, x[i, j]), "y")
    made = schedule_default([x], [y], target, "kernel")
    return llvm.assembly([lower(made)], target)


@pytest.mark.parametrize("name", ["erf", "tanh"])
def test_no_turn_of_a_loop_fills_lanes(name: str) -> None:
    text = assembly(name, "haswell")
    (turn,) = (part for part in text.split(".p2align") if "vdivps" in part and ".LBB" in part)
    assert ".vector." in turn and "broadcast" not in turn.split("vmovups")[1]


@pytest.mark.parametrize("cpu", ["nehalem", "skylake-avx512", "znver4"])
def test_others_have_them_already(cpu: str) -> None:
    assert ".vector." not in assembly("erf", cpu)


def test_long_computations_take_two_vectors_at_a_time() -> None:
    target = Target("llvm -mcpu=haswell")
    x = te.placeholder((64, 64), "float32", "x")
    y = te.compute((64, 64), lambda i, j: call_intrin("tanh", x[i, j]), "y")
    assert '"lanes": 16' in str(schedule_default([x], [y], target, "kernel"))
