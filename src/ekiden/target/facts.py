"""The facts of a target: from the table of processors, the machine itself, and what a user says."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, replace

from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import probe
from ekiden.target.features import (
    ARCHITECTURES,
    ARM,
    ARMV7,
    BASE,
    CORTEX_M,
    FEATURES,
    RISCV,
    WASM,
    X86,
    closure,
    names_of,
    vector_registers,
)
from ekiden.target.processors import (
    GENERIC,
    IN_32_BITS,
    PROCESSORS,
    Cache,
    Core,
    Processor,
    per_cycle,
)
from ekiden.target.triple import TRIPLES, architecture_of, normalize_triple

Given = Mapping[str, object]
"""Options by their names in text. Values are texts, numbers and lists."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What stands behind a target before anything is overridden."""

    processor: str
    architecture: str
    features: tuple[str, ...]
    """Beyond the processor's."""
    core: Core
    caches: tuple[Cache, ...]


@functools.cache
def host() -> Machine:
    """This machine."""
    info, arch = probe.read_cpuinfo(), probe.architecture()
    present = probe.features_of(probe.own_flags(arch), arch)
    processor, core = probe.processor_of(info, arch, present)
    extra = probe.extra_features(processor, present)
    found = probe.caches(core, is_guest="hypervisor" in info.get("flags", ""))
    return Machine(processor.name, arch, extra, core, found)


def host_cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _row(each: Processor) -> Machine:
    return Machine(each.name, each.architecture, (), each.core, each.core.caches)


OTHER_NAMES = {
    "core-avx2": "haswell",
    "core-avx-i": "ivybridge",
    "corei7-avx": "sandybridge",
    "corei7": "nehalem",
}
"""What LLVM calls processors of the table too."""


def processor_named(name: str, arch: str | None = None) -> Processor:
    """A row of the table, by its name or another of LLVM's; for Armv7 that of a 64-bit processor is
    what it is in 32 bits. Raises CompileError with those there are."""
    name = OTHER_NAMES.get(name, name)
    if name not in PROCESSORS:
        known = ", ".join(PROCESSORS)
        raise CompileError(f"target: unknown processor {name!r}; there are native, {known}")
    row = PROCESSORS[name]
    if arch == ARMV7 and row.architecture == ARM and name.startswith("cortex-a"):
        return replace(row, architecture=ARMV7, features=(IN_32_BITS,))
    return row


def _machine(given: Given, triple: str | None) -> Machine:
    """The machine that -mcpu, -mtriple and -mtune name."""
    arch = architecture_of(triple) if triple else None
    name = str(given.get("mcpu", "native" if arch in (None, host().architecture) else "generic"))
    if arch is not None and arch not in ARCHITECTURES:
        stranger = "generic" if name == "native" else name
        return replace(_row(PROCESSORS[GENERIC[X86]]), processor=stranger, architecture=arch)
    if name == "native":
        made = host()
    else:
        wanted = arch or host().architecture
        made = _row(processor_named(GENERIC[wanted] if name == "generic" else name, arch))
    if arch not in (None, made.architecture):
        what = f"processor {made.processor!r} is {made.architecture}"
        raise CompileError(f"target: {what}, the triple {triple!r} is not")
    tune = given.get("mtune")
    if tune is None:
        return made
    other = host() if tune == "native" else _row(processor_named(str(tune)))
    return replace(made, core=other.core, caches=other.caches)


def resolve(given: Given, base_cores: int | None = None) -> dict[str, object]:
    """The fields of a target by name. Raises CompileError for values that cannot be."""
    triple = normalize_triple(str(given["mtriple"])) if given.get("mtriple") else None
    machine = _machine(given, triple)
    arch = machine.architecture
    asked = _features(given.get("mattr", ()), arch)
    features = tuple(dict.fromkeys((*machine.features, *asked)))
    present = all_features(arch, machine.processor, features)
    own, registers = vector_registers(arch, present)
    bits = _number("vector-bits", given, own, least=8)
    _check_width(bits, own, machine.processor, is_scalable=arch == RISCV and "v" in present)
    core = machine.core
    loads = _number("loads", given, per_cycle(core.loads, bits))
    return {
        "triple": triple or _triple_of(machine),
        "cpu": machine.processor,
        "features": features,
        "vector_bits": bits,
        "registers": _number("registers", given, registers),
        "cores": _number("cores", given, _default_cores(arch, base_cores)),
        "caches": _caches(given, machine.caches, loads * bits / 8),
        "fma_units": _number("fma-units", given, per_cycle(core.fma, bits)),
        "fma_latency": _number("fma-latency", given, core.fma_latency),
        "loads": loads,
    }


def _check_width(bits: int, own: int, processor: str, *, is_scalable: bool) -> None:
    """Raises CompileError for vectors that no register holds: instructions of a width that the
    processor lacks would be asked for."""
    if bits & (bits - 1):
        raise CompileError(f"target: option -vector-bits must be a power of two, got {bits}")
    if bits > own and not is_scalable:
        raise CompileError(
            f"target: option -vector-bits={bits}: the vector registers of {processor!r} with its "
            f"features have {own}"
        )


def _triple_of(machine: Machine) -> str:
    row = PROCESSORS.get(machine.processor)
    return row.triple if row is not None and row.triple else TRIPLES[machine.architecture]


def _default_cores(arch: str, base: int | None) -> int:
    """A microcontroller has one, whatever this machine has; so has a page, unless told."""
    if arch == CORTEX_M:
        return 1
    return base or (1 if arch == WASM else host_cores())


def all_features(arch: str, cpu: str, extra: Sequence[str]) -> frozenset[str]:
    """Those of the processor and those beyond it, with all that they bring."""
    if arch not in ARCHITECTURES:
        return frozenset(extra)
    return closure(arch, (*processor_named(cpu, arch).features, *extra))


def _features(value: object, arch: str) -> tuple[str, ...]:
    """Names, "-" before those taken away; from a text with commas or a list, "+" before the others
    or nothing."""
    listed = value.split(",") if isinstance(value, str) else value
    assert isinstance(listed, Sequence)
    names = [str(each).strip().removeprefix("+") for each in listed]
    names = [n for n in names if n and n.removeprefix("-") not in BASE.get(arch, ())] + [
        _taken_away(n, arch) for n in names if n.startswith("-") and n[1:] in BASE.get(arch, ())
    ]
    both = [n for n in names if f"-{n}" in names]
    if both:
        raise CompileError(f"target: feature {both[0]!r} is both added and taken away by -mattr")
    unknown = [n for n in names if (arch, n.removeprefix("-")) not in FEATURES]
    if unknown and arch in ARCHITECTURES:
        known = ", ".join(names_of(arch))
        raise CompileError(f"target: unknown feature {unknown[0]!r} of {arch}; there are {known}")
    return tuple(dict.fromkeys(names))


def _taken_away(name: str, arch: str) -> str:
    raise CompileError(f"target: {name[1:]!r} is part of every {arch} and cannot be taken away")


def _number(name: str, given: Given, default: int, least: int = 1) -> int:
    text = str(given.get(name, default))
    if not (text.isascii() and text.isdigit()):
        raise CompileError(f"target: option -{name} must be a number, got {text!r}")
    if int(text) < least:
        raise CompileError(f"target: option -{name} must be at least {least}, got {text}")
    return int(text)


# fmt: off
_CACHE_PARTS: tuple[Callable[[str], float], ...] = (
    lambda text: _bytes(text), int, int, int, float, int,   # as the fields of Cache
)
# fmt: on
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def _bytes(text: str) -> int:
    return int(text[:-1]) * _UNITS[text[-1]] if text[-1:] in _UNITS else int(text)


def _caches(given: Given, known: Sequence[Cache], first: float) -> tuple[Cache, ...]:
    """The levels, with what -l1=, -l2= and -l3= say; L1 gives as much as the loads take unless it
    says otherwise. A level of no bytes is none."""
    found: list[Cache] = []
    for level, name in enumerate(("l1", "l2", "l3")):
        row = known[level] if level < len(known) else Cache(0, 16, 64, 1, 8.0, 60)
        row = replace(row, bandwidth=first) if level == 0 else row
        made = _cache(name, str(given[name]), row) if name in given else row
        if made.size == 0:
            break
        found.append(made)
    _check_levels(given, len(found))
    return tuple(found)


def _check_levels(given: Given, count: int) -> None:
    """Raises CompileError for a processor without a first cache, which no model of kernels knows,
    and for a level that is said to lie behind one that is not there."""
    if count == 0:
        raise CompileError(f"target: option -l1 must be above 0, got {str(given['l1'])!r}")
    for level in range(count + 2, 4):
        said = str(given.get(f"l{level}", "0"))
        if _cache(f"l{level}", said, Cache(0, 16, 64, 1, 8.0, 60)).size:
            raise CompileError(f"target: option -l{level}={said} lies behind no -l{level - 1}")


def _cache(name: str, text: str, row: Cache) -> Cache:
    """A size, or its first fields: size:ways:line:shared:bandwidth:latency."""
    parts, values = text.split(":"), list(astuple(row))
    try:
        values[: len(parts)] = [read(part) for read, part in zip(_CACHE_PARTS, parts, strict=False)]
        valid = len(parts) <= len(_CACHE_PARTS) and min(values[1:]) > 0 and values[0] >= 0
    except ValueError:
        valid = False
    if not valid:
        form = "bytes (48K, 2M) or size:ways:line:shared:bandwidth:latency"
        raise CompileError(f"target: option -{name} must be {form}, got {text!r}")
    return Cache(*values)


OPTIONS = ("mtriple", "mcpu", "mtune", "mattr", "vector-bits", "registers", "cores",
           "l1", "l2", "l3", "fma-units", "fma-latency", "loads")  # fmt: skip
"""The names of facts in text. -mtune= is another processor's core and caches."""
SAME = {"num-cores": "cores"}
"""TVM's names -> ours."""

__all__ = ["OPTIONS", "SAME", "Given", "Machine", "all_features", "host", "resolve"]
