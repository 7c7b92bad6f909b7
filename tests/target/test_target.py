"""Targets: text form, attributes, errors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ekiden.codegen.llvm import ir_to_assembly
from ekiden.runtime.errors import CompileError
from ekiden.target import Cache, Target
from ekiden.target.features import ABILITIES
from ekiden.target.processors import PROCESSORS

pytestmark = pytest.mark.quick

TEXTS = [
    "llvm",
    "c",
    "llvm -mcpu=x86-64-v3",
    "llvm -mcpu=znver5 -mattr=avx512fp16 -cores=4 -l2=2097152",
    "llvm -mcpu=skylake-avx512 -mattr=-avx512f,+avxvnni",
    "llvm -mcpu=skylake-avx512 -l1=64K:16:128 -l3=0 -fma-units=1 -fma-latency=6 -loads=1",
    "llvm -mtriple=riscv64-linux-gnu",
    "llvm -mtriple=armv7l-linux-gnueabihf -device=arm_cpu -model='a b' -libs=cblas,mkl",
    "cuda -arch=sm_80 -max_threads_per_block=512",
    "raspberry-pi/4b-aarch64",
    "nvidia/jetson-nano",
    "llvm -mcpu=znver4 -host='llvm -mcpu=znver4'",
]


@pytest.mark.parametrize("text", TEXTS)
def test_text_dictionary_and_fields_say_the_same(text: str) -> None:
    target = Target.parse(text)
    assert Target.parse(str(target)) == target == Target(target.export()) == replace(target)
    assert hash(Target(str(target))) == hash(target)
    assert Target.parse(target) is target and Target(target) == target


@pytest.mark.parametrize("cpu", PROCESSORS)
def test_every_processor_has_all_facts(cpu: str) -> None:
    target = Target(
        f"llvm -mcpu={cpu} -mtriple={PROCESSORS[cpu].architecture}-linux-gnu".replace(
            "x86-64-l", "x86_64-l"
        )
    )
    assert target.cpu == cpu and target.lanes("float32") in (4, 8, 16)
    assert target.registers in (8, 16, 32) and 1 <= target.fma_units <= 4 <= 2 * target.fma_latency
    sizes = [cache.share for cache in target.caches]
    assert len(sizes) >= 2 and sizes[0] < sizes[1] and sizes[0] >= 32 << 10
    assert all(c.size % (c.line * c.ways) == 0 and c.latency > 0 for c in target.caches)
    speeds = [c.bandwidth for c in target.caches]
    assert speeds == sorted(speeds, reverse=True)
    assert speeds[0] == target.loads * target.vector_bits / 8
    assert Target(str(target)) == target


def test_facts_follow_the_processor() -> None:
    wide, split = Target("llvm -mcpu=skylake-avx512"), Target("llvm -mcpu=znver4")
    assert (wide.vector_bits, wide.registers, wide.fma_units, wide.loads) == (512, 32, 2, 2)
    assert (split.vector_bits, split.registers, split.fma_units, split.loads) == (512, 32, 1, 1)
    assert Target("llvm -mcpu=znver4 -vector-bits=256").fma_units == 2
    assert wide.caches[1] == Cache(1 << 20, 16, 64, 1, 50, 14)
    assert (wide.l1, wide.l2, wide.l3) == (32 << 10, 1 << 20, 20 * 1408 << 10)
    small = Target("llvm -mcpu=x86-64-v3")
    assert (
        small.lanes("float32"),
        small.lanes("float64"),
        small.lanes("int8"),
        small.registers,
    ) == (8, 4, 32, 16)


def test_every_fact_can_be_overridden() -> None:
    target = Target(
        "llvm -mcpu=znver4 -vector-bits=256 -registers=16 -num-cores=3 -l1=48K"
        " -l2=2M:16:64:2:20.5:18 -l3=0 -fma-units=4 -fma-latency=3 -loads=3"
    )
    assert (target.vector_bits, target.registers, target.cores) == (256, 16, 3)
    assert (target.fma_units, target.fma_latency, target.loads) == (4, 3, 3)
    assert target.caches == (
        Cache(48 << 10, 8, 64, 1, 96, 4),
        Cache(2 << 20, 16, 64, 2, 20.5, 18),
    )
    assert target.l3 == 0
    inputs = {"kind": "llvm", "mcpu": "znver4", "vector-bits": 256, "registers": 16, "num-cores": 3}
    inputs |= {"l1": "48K", "l2": "2M:16:64:2:20.5:18", "l3": 0}
    assert Target({**inputs, "fma-units": 4, "fma-latency": 3, "loads": 3}) == target


def test_mcpu_option_selects_processor_attributes() -> None:
    target = Target("llvm -mcpu=x86-64-v3 -mtune=sapphirerapids")
    assert (target.cpu, target.vector_bits, target.l2, target.loads) == (
        "x86-64-v3",
        256,
        2 << 20,
        3,
    )
    native = Target("llvm -mcpu=x86-64-v3 -mtune=native")
    assert native.caches[1:] == Target.host().caches[1:]


def test_abilities_follow_the_processor() -> None:
    asked = ("fma", "float16", "rounding", "dot4_u8s8", "dot4_s8s8", "dot2_bf16", "amx_int8")
    table = {
        "llvm -mcpu=x86-64": "",
        "llvm -mcpu=x86-64-v2": "rounding",
        "llvm -mcpu=x86-64-v3": "fma float16 rounding",
        "llvm -mcpu=skylake-avx512": "fma float16 rounding",
        "llvm -mcpu=cascadelake": "fma float16 rounding dot4_u8s8",
        "llvm -mcpu=cooperlake": "fma float16 rounding dot4_u8s8 dot2_bf16",
        "llvm -mcpu=sapphirerapids": "fma float16 rounding dot4_u8s8 dot2_bf16 amx_int8",
        "llvm -mcpu=alderlake": "fma float16 rounding dot4_u8s8",
        "llvm -mcpu=arrowlake": "fma float16 rounding dot4_u8s8 dot4_s8s8",
        "llvm -mcpu=sapphirerapids -mattr=-avx512f": "fma float16 rounding dot4_u8s8 amx_int8",
        "llvm -mcpu=sapphirerapids -mattr=-amx-tile": "fma float16 rounding dot4_u8s8 dot2_bf16",
        "llvm -mcpu=x86-64-v4 -mattr=avx512vnni": "fma float16 rounding dot4_u8s8",
        "c -mcpu=sapphirerapids": "fma float16 rounding",
        "llvm -mcpu=cortex-a72": "fma float16 rounding",
        "llvm -mcpu=neoverse-n1": "fma float16 rounding dot4_s8s8",
        "llvm -mcpu=neoverse-v2": "fma float16 rounding dot4_u8s8 dot4_s8s8 dot2_bf16",
        "llvm -mtriple=aarch64-linux-gnu -mcpu=generic": "fma float16 rounding",
        "llvm -mtriple=riscv64-linux-gnu": "fma",
        "cuda -model=any": "fma rounding",
        "cuda -model=any -arch=sm_60": "fma rounding",
        "nvptx -model=any -arch=sm_61": "fma rounding dot4_u8s8 dot4_s8s8",
    }
    for text, expected in table.items():
        target = Target.parse(text)
        assert [a for a in asked if target.has(a)] == [a for a in asked if a in expected.split()], (
            text
        )
    with pytest.raises(KeyError):
        Target("llvm").has("telepathy")
    assert {"madd_s16", "madd_u8s8", "fma_fp16", "i8mm", "dot4_u8u8"} <= set(ABILITIES)


def test_code_needs_what_code_generators_use() -> None:
    """Float16 arithmetic of the processor is switched off where code is made for it."""
    target = Target("llvm -mcpu=sapphirerapids")
    assert "avx512_fp16" in target.flags and "avx512_fp16" not in target.needs
    assert {"avx512_vnni", "avx512_bf16", "fma", "avx512bw", "amx_int8"} <= set(target.needs)
    assert target.has("amx_bf16") and not target.has("fma_fp16")
    arm = Target("llvm -mcpu=neoverse-v2")
    assert "sve2" in arm.flags and "sve2" not in arm.needs and "i8mm" in arm.needs
    text = "define half @f(half %a, half %b) {\n  %c = fadd half %a, %b\n  ret half %c\n}\n"
    triple = 'target triple = "x86_64-unknown-linux-gnu"\n'
    assert "vcvtph2ps" in ir_to_assembly(triple + text, target)
    assert Target("llvm -mcpu=icelake-server").serves(target)


def test_removed_feature_removes_its_dependents() -> None:
    target = Target("llvm -mcpu=sapphirerapids -mattr=-avx512f")
    assert (target.vector_bits, target.registers) == (256, 16)
    assert not any("avx512" in flag for flag in target.needs) and "avx_vnni" in target.needs
    assert "sse4_2" in Target("llvm -mcpu=x86-64 -mattr=+avx").needs


def test_processors_of_aarch64_have_its_triple_and_registers() -> None:
    for text in ("llvm -mcpu=apple-m1", "llvm -mtriple=aarch64-unknown-linux-gnu -mcpu=generic"):
        target = Target.parse(text)
        assert (target.architecture, target.registers) == ("aarch64", 32), text


TRIPLES = {
    "riscv64-linux-gnu": "riscv64-unknown-linux-gnu",
    "arm64-linux-android": "aarch64-unknown-linux-android",
    "amd64-pc-linux-musl": "x86_64-pc-linux-musl",
    "aarch64": "aarch64-unknown-linux-gnu",
    "x86_64-linux": "x86_64-unknown-linux-gnu",
    "thumbv7em-none-eabihf": "thumbv7em-unknown-none-eabihf",
}


@pytest.mark.parametrize("text", TRIPLES)
def test_triples_have_four_parts(text: str) -> None:
    assert Target(f"llvm -mtriple={text}").triple == TRIPLES[text]


# fmt: off
KINDS = "llvm, c, cuda, nvptx, opencl, vulkan, metal, rocm, webgpu, hexagon"
WRONG = [
    ("garbage",             f"target: unknown kind in 'garbage'; there are {KINDS}"),
    ("",                    "target: expected a kind and options, got ''"),
    ("llvm mcpu=znver4",    "target: expected options -name=value, got 'mcpu=znver4'"),
    ("llvm -cores=many",    "target: option -cores must be a number, got 'many'"),
    ("llvm -cores=" + "9" * 5000, f"target: option -cores must be a number, got {'9' * 36!r}"),
    ("llvm -cores=0",       "target: option -cores must be at least 1, got 0"),
    ("llvm -cores=²",       "target: option -cores must be a number, got '²'"),
    ("llvm -mcpu=znver4 -mcpu=znver2",
     "target: option -mcpu is given twice, in '-mcpu=znver4 -mcpu=znver2'"),
    ("llvm -cores=2 -num-cores=3",
     "target: option -cores is given twice, once as another name of it"),
    ("llvm -vector-bits=100", "target: option -vector-bits must be a power of two, got 100"),
    ("llvm -mcpu=haswell -vector-bits=512", "target: option -vector-bits=512: the vector "
     "registers of 'haswell' with its features have 256"),
    ("llvm -mattr=+avx,-avx", "target: feature 'avx' is both added and taken away by -mattr"),
    ("llvm -l1=0",          "target: option -l1 must be above 0, got '0'"),
    ("llvm -l2=0 -l3=4M",   "target: option -l3=4M lies behind no -l2"),
    ("cuda -max_num_threads=0", "target: option -max_num_threads must be at least 1, got 0"),
    *((f"{kind} -arch={arch}", "target: option -arch must be an architecture from 'sm_50' on, as "
       f"'sm_80' or 'sm_90a', got {arch!r}")
      for kind in ("cuda", "nvptx") for arch in ("sm_1", "sm_5000", "gfx900", "")),
    ("llvm -l2=big",        "target: option -l2 must be bytes (48K, 2M) or "
     "size:ways:line:shared:bandwidth:latency, got 'big'"),
    ("llvm -mattr=-sse2",   "target: 'sse2' is part of every x86-64 and cannot be taken away"),
    ("llvm -mcpu=znver4 -mtriple=aarch64-linux-gnu",
     "target: processor 'znver4' is x86-64, the triple 'aarch64-unknown-linux-gnu' is not"),
    ("llvm -model='a",      'target: wrong text "llvm -model=\'a": No closing quotation'),
    ("{",                   "target: wrong JSON: Expecting property name enclosed in double "
     "quotes: line 1 column 2 (char 1)"),
    ('{"mcpu": "znver4"}',  "target: expected a 'kind', got {'mcpu': 'znver4'}"),
    ("llvm -system-lib=7",  "target: option -system-lib must be 0 or 1, got '7'"),
]
STARTS = [
    ("llvm -fast=1",        "target: llvm: unknown option 'fast'; there are -mtriple=, "),
    ("llvm -mcpu=z80",      "target: unknown processor 'z80'; there are native, x86-64, "),
    ("llvm -mattr=+magic",  "target: unknown feature 'magic' of x86-64; there are sse3, "),
    ('{"kind": "llvm", "cores": ' + "9" * 5000 + "}", "target: wrong JSON: Exceeds the limit"),
    ('{"kind": ' * 100_000, "target: wrong JSON: maximum recursion depth exceeded"),
    ("nvidia/none",         f"target: unknown kind in 'nvidia/none'; there are {KINDS}; tags "),
]
# fmt: on


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_malformed_target_texts_are_refused(text: str, message: str) -> None:
    with pytest.raises(CompileError) as raised:
        Target(text)
    assert str(raised.value) == message


@pytest.mark.parametrize("argument", [5, ["llvm", "opencl"], b"llvm"])
def test_invalid_targets_are_refused(argument: object) -> None:
    with pytest.raises(CompileError, match="target: one text or dictionary expected, got"):
        Target(argument)  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "start"), STARTS)
def test_unknown_names_list_the_valid_ones(text: str, start: str) -> None:
    with pytest.raises(CompileError) as raised:
        Target.parse(text)
    assert str(raised.value).startswith(start)


@pytest.mark.parametrize(
    "text", ["llvm", "c", "llvm -mcpu=znver4", "llvm -mcpu=x86-64-v3 -cores=2"]
)
def test_target_equals_its_text_forms(text: str) -> None:
    target = Target(text)
    assert target == text
    assert text == target
    assert target == str(target)
    assert hash(target) == hash(str(target)) == hash(Target(str(target)))
    assert {str(target): 1}[target] == 1  # type: ignore[index]
    assert target in (text,)


@pytest.mark.parametrize("other", ["", "garbage", "llvm -mcpu=nothing", "llvm -cores=77", 3, None])
def test_target_is_not_equal_to_what_names_another_or_none(other: object) -> None:
    assert Target("llvm") != other
