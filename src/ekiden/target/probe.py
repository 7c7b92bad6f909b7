"""What this machine is, asked of the system. What it does not say, or says against reason, stands
in the table of processors.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from ekiden.runtime import get_global_func
from ekiden.runtime.files import PathName
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target.features import ARM, ARMV7, BY_FLAG, RISCV, X86, closure
from ekiden.target.processors import GENERIC, MODELS, PARTS, PROCESSORS, Cache, Core, Processor

_MACHINES = {"aarch64": ARM, "arm64": ARM, "riscv64": RISCV, "armv7l": ARMV7}
CACHES = "/sys/devices/system/cpu/cpu0/cache"
TRUSTED = 4
"""A cache of more than so many times what its processor has for each core is the hypervisor's,
which shows a guest of two cores all 480 MB of a socket."""


def architecture() -> str:
    """That of this machine."""
    return _MACHINES.get(os.uname().machine.lower(), X86)


def read_cpuinfo(text: str | None = None) -> dict[str, str]:
    """The first processor's entry of /proc/cpuinfo; empty where there is none."""
    if text is None:
        text = _text("/proc/cpuinfo")
    entry: dict[str, str] = {}
    for line in text.split("\n\n", 1)[0].splitlines():
        key, _, value = line.partition(":")
        entry[key.strip()] = value.strip()
    return entry


def own_flags(arch: str) -> list[str]:
    """What this machine has of an architecture, as the runtime finds that loads the code: a system
    that keeps no registers for instructions has none of them, whatever /proc/cpuinfo shows."""
    has = get_global_func("ek.runtime.cpu_has")
    return [flag for of, flag in BY_FLAG if of == arch and has(flag)]


def features_of(flags: Iterable[str], arch: str) -> frozenset[str]:
    """The features behind flags of /proc/cpuinfo, by LLVM's names, with the base."""
    found = {BY_FLAG[arch, flag].name for flag in flags if (arch, flag) in BY_FLAG}
    whole = {n for n in found if found.issuperset(closure(arch, (n,)) - closure(arch, ()))}
    return closure(arch, whole)


def _named(info: dict[str, str], arch: str) -> Processor | None:
    """The processor by what it says of itself: vendor, family and model."""
    if arch == X86:
        family, model = int(info.get("cpu family", 0)), int(info.get("model", 0))
        known = MODELS.get((info.get("vendor_id", ""), family), ())
        name = next((name for first, last, name in known if first <= model <= last), None)
    else:
        made_by, part = (int(info.get(f"CPU {key}", "0"), 16) for key in ("implementer", "part"))
        name = PARTS.get((made_by, part))
    return PROCESSORS.get(name or "")


def _candidates(info: dict[str, str], arch: str) -> list[Processor]:
    """Processors of the vendor, and those that stand for a level of the architecture."""
    vendor = info.get("vendor_id", "")
    is_amd, is_intel = vendor == "AuthenticAMD", vendor == "GenuineIntel"
    return [
        p
        for p in PROCESSORS.values()
        if p.architecture == arch
        and (
            p.name.startswith((GENERIC[arch], "generic"))
            or (is_amd and p.name.startswith("znver"))
            or (is_intel and not p.name.startswith("znver"))
        )
    ]


def processor_of(
    info: dict[str, str], arch: str, present: frozenset[str]
) -> tuple[Processor, Core]:
    """The processor with the most features of those that are there, and the core to count with.

    Of equals that which the machine says it is, else the first of the table. A machine that hides
    features of what it says it is counts with that one's core all the same.
    """
    named = _named(info, arch)

    def rank(each: Processor) -> tuple[int, bool]:
        return len(closure(arch, each.features)), each == named

    rows = _candidates(info, arch) + ([named] if named else [])
    fitting = [p for p in rows if closure(arch, p.features) <= present]
    best = max(fitting, key=rank)
    is_level = best.name.startswith((GENERIC[arch], "generic"))
    return best, named.core if named is not None and is_level else best.core


def caches(core: Core, is_guest: bool, folder: PathName = CACHES) -> tuple[Cache, ...]:
    """The data caches that the system shows, as far as they can be for that core; in a guest at
    least as many cores share one as on the machine beneath."""
    rows = core.caches
    shown = _shown(folder)
    alone = shown[1].sharers if 1 in shown else 1
    found = []
    for level in range(1, max(len(rows), *shown, 0) + 1):
        row = rows[level - 1] if level <= len(rows) else None
        if level in shown:
            found.append(_reasonable(shown[level], row, alone, is_guest))
        elif row is not None:
            found.append(row)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Shown:
    """A cache as /sys has it; `sharers` are hardware threads."""

    size: int
    ways: int
    line: int
    sharers: int


def _reasonable(shown: _Shown, row: Cache | None, alone: int, is_guest: bool) -> Cache:
    """What is shown where it may be true, else the row's; speeds are always the row's."""
    row = row or Cache(shown.size, 16, 64, 1, 8.0, 60)
    sharers = max(1, shown.sharers // alone)
    share = shown.size // (max(sharers, row.shared_by) if is_guest else sharers)
    if shown.size <= 0 or not row.share <= TRUSTED * share <= TRUSTED**2 * row.share:
        return row
    return replace(
        row,
        size=shown.size,
        ways=shown.ways if 0 < shown.ways <= 64 else row.ways,
        line=shown.line if shown.line in (32, 64, 128, 256) else row.line,
        shared_by=max(sharers, row.shared_by) if is_guest else sharers,
    )


def _shown(folder: PathName) -> dict[int, _Shown]:
    """Level -> cache of the first core, of those that hold data."""
    found: dict[int, _Shown] = {}
    names = os.listdir(folder) if os.path.isdir(folder) else ()
    for index in sorted(name for name in names if name.startswith("index")):
        about = partial(_read, folder, index)
        kind, level = about("type"), about("level")
        if kind in ("Data", "Unified") and level.isdigit():
            ways, line = (
                _number(about(name)) for name in ("ways_of_associativity", "coherency_line_size")
            )
            sharers = _count(about("shared_cpu_list"))
            found[int(level)] = _Shown(_number(about("size")), ways, line, sharers)
    return found


def _number(text: str) -> int:
    """ "48K" and the like; 0 for none."""
    digits = text.rstrip("KMG")
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
    return int(digits) * scale if digits.isdigit() else 0


def _count(text: str) -> int:
    """Of "0-3,8" 5; at least 1."""
    count = 0
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            count += int(last or first) - int(first) + 1
    return max(1, count)


def _read(*path: PathName) -> str:
    return _text(os.path.join(*path)).strip()


def _text(path: str) -> str:
    """What a file of the system says; empty where there is none."""
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def extra_features(processor: Processor, present: frozenset[str]) -> tuple[str, ...]:
    """Features of this machine beyond those of its processor's name, sorted, none that another of
    them brings."""
    arch = processor.architecture
    beyond = sorted(present - closure(arch, processor.features))
    brought: Sequence[str] = [f for name in beyond for f in closure(arch, (name,)) if f != name]
    return tuple(name for name in beyond if name not in brought)


__all__ = [
    "architecture",
    "caches",
    "extra_features",
    "features_of",
    "own_flags",
    "processor_of",
    "read_cpuinfo",
]
