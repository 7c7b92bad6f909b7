"""Targets: text form, facts, errors."""

from __future__ import annotations

import pytest

from ekiden.runtime.errors import CompileError
from ekiden.target import Target, cpuinfo

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    "text",
    ["llvm", "llvm -mcpu=x86-64-v3", "llvm -mcpu=znver5 -mattr=avx512bf16 -cores=4 -l2=2097152"],
)
def test_text_form_round_trips(text: str) -> None:
    target = Target.parse(text)
    assert Target.parse(str(target)) == target
    assert Target.parse(target) is target


def test_facts_follow_the_processor() -> None:
    assert (
        Target.parse("llvm -mcpu=znver4").vector_bits,
        Target.parse("llvm -mcpu=znver4").registers,
    ) == (512, 32)
    small = Target.parse("llvm -mcpu=x86-64-v3")
    assert (
        small.lanes("float32"),
        small.lanes("float64"),
        small.lanes("int8"),
        small.registers,
    ) == (8, 4, 32, 16)


def test_abilities_follow_the_processor() -> None:
    asked = ("fma", "float16", "rounding")
    table = {
        "llvm -mcpu=x86-64": [False, False, False],
        "llvm -mcpu=x86-64-v2": [False, False, True],
        "llvm -mcpu=x86-64-v3": [True, True, True],
        "llvm -mcpu=cortex-a72": [True, True, True],
        "llvm -mtriple=aarch64-unknown-linux-gnu -mcpu=generic": [True, True, True],
    }
    for text, expected in table.items():
        assert [Target.parse(text).has(a) for a in asked] == expected, text


def test_processors_of_aarch64_have_its_triple_and_registers() -> None:
    for text in ("llvm -mcpu=apple-m1", "llvm -mtriple=aarch64-unknown-linux-gnu -mcpu=generic"):
        target = Target.parse(text)
        assert (target.architecture, target.registers) == ("aarch64", 32), text
        assert Target.parse(str(target)) == target


# fmt: off
WRONG = [
    ("cuda",                "target: expected 'llvm' or 'c' and options, got 'cuda'"),
    ("",                    "target: expected 'llvm' or 'c' and options, got ''"),
    ("llvm -fast=1",        "target: unknown option '-fast=1'; there are -mtriple=, -mcpu=, "
                            "-mattr=, -vector-bits=, -registers=, -l1=, -l2=, -cores="),
    ("llvm -cores=many",    "target: option -cores must be a number, got 'many'"),
]
# fmt: on


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_wrong_texts(text: str, message: str) -> None:
    with pytest.raises(CompileError) as raised:
        Target.parse(text)
    assert str(raised.value) == message


def test_unknown_processor_lists_those_there_are() -> None:
    with pytest.raises(CompileError, match=r"^target: unknown processor 'z80'; there are x86-64, "):
        Target.parse("llvm -mcpu=z80")


def test_cpuinfo() -> None:
    flags = " ".join(cpuinfo.ABILITIES["znver4"])
    head = "processor : 0\nvendor_id : AuthenticAMD\ncpu family : 25\nmodel : 17"
    info = cpuinfo.read_cpuinfo(f"{head}\nflags : {flags}\n\nprocessor : 1\n")
    assert cpuinfo.cpu_name(info) == "znver4"
    assert cpuinfo.cpu_features(info) == ("avx512bf16", "avx512vnni")
    assert cpuinfo.vector_bits(info) == 512
    masked = cpuinfo.read_cpuinfo(f"{head}\nflags : {flags.replace('avx512_vbmi2', '')}\n")
    assert cpuinfo.cpu_name(masked) == "x86-64-v4"  # as under some hypervisors
    plain = cpuinfo.read_cpuinfo("vendor_id : Other\nflags : sse2\n")
    assert cpuinfo.cpu_name(plain) == "x86-64"
    assert cpuinfo.vector_bits(plain) == 128
