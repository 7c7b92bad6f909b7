"""What this machine is, read from the operating system; every fact has a default for when it cannot
be read."""

from __future__ import annotations

import platform
from pathlib import Path

_V2 = ("pni", "ssse3", "sse4_1", "sse4_2", "popcnt")
_V3 = (*_V2, "avx", "avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_ZEN4 = (*_V4, "sse4a", "gfni", "avx512ifma", "avx512vbmi", "avx512_vbmi2", "avx512_vnni",
         "avx512_bitalg", "avx512_vpopcntdq", "avx512_bf16")  # fmt: skip
_N1 = ("asimdhp", "asimddp")

# fmt: off
LEVELS: dict[str, tuple[str, ...]] = {   # newest first; all flags must be there
    "x86-64-v4": _V4,
    "x86-64-v3": _V3,
    "x86-64-v2": _V2,
    "x86-64":    (),
}
ABILITIES: dict[str, tuple[str, ...]] = {
    **LEVELS,
    "znver1":    (*_V3, "sse4a"),
    "znver2":    (*_V3, "sse4a"),
    "znver3":    (*_V3, "sse4a"),
    "znver4":    _ZEN4,
    "znver5":    (*_ZEN4, "avx_vnni"),
    "generic":   (),
    "cortex-a72":  (),
    "neoverse-n1": _N1,
    "neoverse-v1": (*_N1, "asimdfhm", "flagm", "sha3", "sve", "i8mm", "bf16"),
    "neoverse-v2": (*_N1, "asimdfhm", "flagm", "sve", "sve2", "i8mm", "bf16"),
    "apple-m1":    (*_N1, "asimdfhm", "flagm", "sha3"),
}
"""Processor, by LLVM's name -> the flags of /proc/cpuinfo of what compiled code may use on it. The
runtime knows them too: runtime/src/ek_cpu.c.
"""
RENAMED: dict[str, str] = {
    "sse3": "pni", "sse4.1": "sse4_1", "sse4.2": "sse4_2", "lzcnt": "abm", "bmi": "bmi1",
    "avxvnni": "avx_vnni", "avx512vbmi2": "avx512_vbmi2", "avx512vnni": "avx512_vnni",
    "avx512bitalg": "avx512_bitalg", "avx512vpopcntdq": "avx512_vpopcntdq",
    "avx512fp16": "avx512_fp16", "avx512bf16": "avx512_bf16",
    "fullfp16": "asimdhp", "dotprod": "asimddp", "fp16fml": "asimdfhm",
}
"""LLVM's names of features that /proc/cpuinfo calls otherwise -> the flags."""
MODELS: dict[tuple[str, int, int], str] = {   # (vendor, family, model number // 16): LLVM's name
    ("AuthenticAMD", 26, 0): "znver5",
    ("AuthenticAMD", 25, 10): "znver4",
    ("AuthenticAMD", 25, 6): "znver4",
    ("AuthenticAMD", 25, 1): "znver4",
    ("AuthenticAMD", 25, 0): "znver3",
    ("AuthenticAMD", 23, 3): "znver2",
    ("AuthenticAMD", 23, 0): "znver1",
}
# fmt: on
KNOWN = frozenset((*RENAMED.values(), *(flag for of in ABILITIES.values() for flag in of)))
"""The flags that the runtime knows."""
EXTRA_FEATURES: dict[str, str] = {"avx512_vnni": "avx512vnni", "avx512_bf16": "avx512bf16"}
"""Flags of /proc/cpuinfo that code generation asks for by LLVM's name, beyond those of a level."""


def read_cpuinfo(text: str | None = None) -> dict[str, str]:
    """The first processor's entry of /proc/cpuinfo; empty where there is none."""
    if text is None:
        path = Path("/proc/cpuinfo")
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    entry: dict[str, str] = {}
    for line in text.split("\n\n", 1)[0].splitlines():
        key, _, value = line.partition(":")
        entry[key.strip()] = value.strip()
    return entry


def cpu_name(info: dict[str, str]) -> str:
    """LLVM's name of the processor when it is known and has all that code for it may use, else the
    highest x86-64 level it reaches."""
    flags = set(info.get("flags", "").split())
    level = next(name for name, needed in LEVELS.items() if flags.issuperset(needed))
    if platform.machine() not in ("x86_64", "AMD64"):
        return "generic"
    family, model = int(info.get("cpu family", 0)), int(info.get("model", 0))
    known = MODELS.get((info.get("vendor_id", ""), family, model // 16))
    return known if known is not None and flags.issuperset(ABILITIES[known]) else level


def cpu_features(info: dict[str, str]) -> tuple[str, ...]:
    """Features beyond the level, by LLVM's names, sorted."""
    flags = set(info.get("flags", "").split())
    return tuple(sorted(name for flag, name in EXTRA_FEATURES.items() if flag in flags))


def vector_bits(info: dict[str, str]) -> int:
    """Width of the widest vector registers that are useful."""
    flags = set(info.get("flags", "").split())
    if flags.issuperset(LEVELS["x86-64-v4"]):
        return 512
    return 256 if flags.issuperset(LEVELS["x86-64-v3"]) else 128


def cache_bytes(level: int, default: int) -> int:
    """Bytes of this core's data cache of a level."""
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        facts = {name: _read(index / name) for name in ("level", "type", "size")}
        if facts["level"] == str(level) and facts["type"] in ("Data", "Unified"):
            size = facts["size"]
            scale = {"K": 1 << 10, "M": 1 << 20}.get(size[-1:], 1)
            return int(size.rstrip("KM")) * scale
    return default


def _read(path: Path) -> str:
    return path.read_text(encoding="ascii").strip() if path.exists() else ""
