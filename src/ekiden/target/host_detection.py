"""Detection of the host's processor, features and caches. Missing and implausible values are taken
from the processor table.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from ekiden.runtime import get_global_func
from ekiden.runtime.files import PathName
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target.features import ARM, ARMV7, FEATURES_BY_FLAG, RISCV, X86, feature_closure
from ekiden.target.processors import (
    ARM_PARTS,
    GENERIC_PROCESSORS,
    PROCESSORS,
    X86_MODELS,
    Cache,
    CoreModel,
    ProcessorRow,
)

_UNAME_ARCHITECTURES = {"aarch64": ARM, "arm64": ARM, "riscv64": RISCV, "armv7l": ARMV7}
SYSFS_CACHE_DIR = "/sys/devices/system/cpu/cpu0/cache"
MAX_CACHE_RATIO = 4
"""Maximum plausible ratio of a reported cache to the processor's per-core share; larger ones are
the hypervisor's, which shows a guest of two cores all 480 MB of a socket.
"""


def host_architecture() -> str:
    """Return the architecture of this machine."""
    return _UNAME_ARCHITECTURES.get(os.uname().machine.lower(), X86)


def read_cpuinfo(text: str | None = None) -> dict[str, str]:
    """Return the first processor's entry in /proc/cpuinfo; empty if there is none."""
    if text is None:
        text = _read_system_file("/proc/cpuinfo")
    entry: dict[str, str] = {}
    # The first processor's block stands for all.
    for line in text.split("\n\n", 1)[0].splitlines():
        key, _, value = line.partition(":")
        entry[key.strip()] = value.strip()
    return entry


def host_flags(arch: str) -> list[str]:
    """Return the feature flags of this machine as the runtime detects them when it loads code; a
    feature whose registers the system does not save is absent, whatever /proc/cpuinfo shows.
    """
    has = get_global_func("ek.runtime.cpu_has")
    return [flag for of, flag in FEATURES_BY_FLAG if of == arch and has(flag)]


def flags_to_features(flags: Iterable[str], arch: str) -> frozenset[str]:
    """Return the features behind flags of /proc/cpuinfo, by LLVM's names, with the baseline."""
    flagged = {
        FEATURES_BY_FLAG[arch, flag].name for flag in flags if (arch, flag) in FEATURES_BY_FLAG
    }
    complete = {
        n
        for n in flagged
        if flagged.issuperset(feature_closure(arch, (n,)) - feature_closure(arch, ()))
    }
    return feature_closure(arch, complete)


def _identify_processor(info: dict[str, str], arch: str) -> ProcessorRow | None:
    """Identify the processor by its vendor, family and model."""
    if arch == X86:
        family, model = int(info.get("cpu family", 0)), int(info.get("model", 0))
        model_ranges = X86_MODELS.get((info.get("vendor_id", ""), family), ())
        name = next((name for first, last, name in model_ranges if first <= model <= last), None)
    else:
        made_by, part_number = (
            int(info.get(f"CPU {key}", "0"), 16) for key in ("implementer", "part")
        )
        name = ARM_PARTS.get((made_by, part_number))
    return PROCESSORS.get(name or "")


def _candidate_processors(info: dict[str, str], arch: str) -> list[ProcessorRow]:
    """Return the vendor's processors, and those that stand for a level of the architecture."""
    vendor = info.get("vendor_id", "")
    is_amd, is_intel = vendor == "AuthenticAMD", vendor == "GenuineIntel"
    return [
        p
        for p in PROCESSORS.values()
        if p.architecture == arch
        and (
            p.name.startswith((GENERIC_PROCESSORS[arch], "generic"))
            or (is_amd and p.name.startswith("znver"))
            or (is_intel and not p.name.startswith("znver"))
        )
    ]


def best_processor(
    info: dict[str, str], arch: str, present: frozenset[str]
) -> tuple[ProcessorRow, CoreModel]:
    """Return the processor whose features cover most of those present, and the core for the cost
    model. Ties go to the processor the machine identifies as, then to the first in the table. A
    machine that hides features still uses the core it identifies as.
    """
    named = _identify_processor(info, arch)

    def match_rank(processor: ProcessorRow) -> tuple[int, bool]:
        """Return the sort key: number of features, then whether the machine identifies as it."""
        return len(feature_closure(arch, processor.features)), processor == named

    rows = _candidate_processors(info, arch) + ([named] if named else [])
    # A guest may lack features of its nominal processor, when the hypervisor masks them.
    fitting = [p for p in rows if feature_closure(arch, p.features) <= present]
    best = max(fitting, key=match_rank)
    is_level = best.name.startswith((GENERIC_PROCESSORS[arch], "generic"))
    return best, named.core if named is not None and is_level else best.core


def host_caches(
    core: CoreModel, is_guest: bool, folder: PathName = SYSFS_CACHE_DIR
) -> tuple[Cache, ...]:
    """Return the data caches the system reports, as far as they are plausible for that core; in a
    guest each cache is shared by at least as many cores as on the host machine.
    """
    rows = core.caches
    shown = _reported_caches(folder)
    alone = shown[1].sharers if 1 in shown else 1
    levels = []
    for level in range(1, max(len(rows), *shown, 0) + 1):
        row = rows[level - 1] if level <= len(rows) else None
        if level in shown:
            levels.append(_plausible_cache(shown[level], row, alone, is_guest))
        elif row is not None:
            levels.append(row)
    return tuple(levels)


@dataclass(frozen=True, slots=True)
class _ReportedCache:
    """Cache as reported in /sys; `sharers` counts hardware threads."""

    size: int
    ways: int
    line: int
    sharers: int


def _plausible_cache(shown: _ReportedCache, row: Cache | None, alone: int, is_guest: bool) -> Cache:
    """Return the reported cache where it is plausible, else the table's; speeds always come from
    the table.
    """
    row = row or Cache(shown.size, 16, 64, 1, 8.0, 60)
    sharers = max(1, shown.sharers // alone)
    share = shown.size // (max(sharers, row.shared_by) if is_guest else sharers)
    if (
        shown.size <= 0
        or not row.share <= MAX_CACHE_RATIO * share <= MAX_CACHE_RATIO**2 * row.share
    ):
        return row
    return replace(
        row,
        size=shown.size,
        ways=shown.ways if 0 < shown.ways <= 64 else row.ways,
        line=shown.line if shown.line in (32, 64, 128, 256) else row.line,
        shared_by=max(sharers, row.shared_by) if is_guest else sharers,
    )


def _reported_caches(folder: PathName) -> dict[int, _ReportedCache]:
    """Return the first core's data caches by level, as /sys reports them."""
    by_level: dict[int, _ReportedCache] = {}
    names = os.listdir(folder) if os.path.isdir(folder) else ()
    for index in sorted(name for name in names if name.startswith("index")):
        about = partial(_read_cpuinfo, folder, index)
        kind, level = about("type"), about("level")
        if kind in ("Data", "Unified") and level.isdigit():
            associativity, line = (
                _parse_size(about(name))
                for name in ("ways_of_associativity", "coherency_line_size")
            )
            sharers = _count_processors(about("shared_cpu_list"))
            by_level[int(level)] = _ReportedCache(
                _parse_size(about("size")), associativity, line, sharers
            )
    return by_level


def _parse_size(text: str) -> int:
    """Parse a size such as "48K"; 0 if it is malformed."""
    digits = text.rstrip("KMG")
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
    return int(digits) * scale if digits.isdigit() else 0


def _count_processors(text: str) -> int:
    """Count the processors in a list such as "0-3,8"; at least 1."""
    count = 0
    for id_range in filter(None, text.split(",")):
        first, _, last = id_range.partition("-")
        if first.isdigit() and (last or first).isdigit():
            count += int(last or first) - int(first) + 1
    return max(1, count)


def _read_cpuinfo(*path: PathName) -> str:
    return _read_system_file(os.path.join(*path)).strip()


def _read_system_file(path: str) -> str:
    """Return the contents of a system file; empty if it does not exist."""
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def extra_features(processor: ProcessorRow, present: frozenset[str]) -> tuple[str, ...]:
    """Return this machine's features beyond those of its processor's name, sorted, without any that
    another one implies.
    """
    arch = processor.architecture
    beyond = sorted(present - feature_closure(arch, processor.features))
    # Implied features are left out, which keeps the target's text short.
    brought: Sequence[str] = [
        f for name in beyond for f in feature_closure(arch, (name,)) if f != name
    ]
    return tuple(name for name in beyond if name not in brought)


__all__ = [
    "best_processor",
    "extra_features",
    "flags_to_features",
    "host_architecture",
    "host_caches",
    "host_flags",
    "read_cpuinfo",
]
