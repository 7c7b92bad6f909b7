"""Resolution of a target's processor attributes: from the processor table, host detection, and user
options.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, replace

from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import host_detection
from ekiden.target.features import (
    ARCHITECTURES,
    ARM,
    ARMV7,
    BASELINE_FEATURES,
    CORTEX_M,
    FEATURE_TABLE,
    RISCV,
    WASM,
    X86,
    feature_closure,
    feature_names,
    vector_registers,
)
from ekiden.target.processors import (
    ARMV7_EXTRA_FEATURE,
    GENERIC_PROCESSORS,
    PROCESSORS,
    Cache,
    CoreModel,
    ProcessorRow,
    operations_per_cycle,
)
from ekiden.target.triple import DEFAULT_TRIPLES, architecture_of, normalize_triple

OptionValues = Mapping[str, object]
"""Option values by name. Values are texts, numbers and lists."""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Processor attributes of a machine, before overrides by options."""

    processor: str
    architecture: str
    features: tuple[str, ...]
    """Features beyond those of the processor."""
    core: CoreModel
    caches: tuple[Cache, ...]


@functools.cache
def host_facts() -> MachineFacts:
    """Return the processor attributes of this machine."""
    info, arch = host_detection.read_cpuinfo(), host_detection.host_architecture()
    present = host_detection.flags_to_features(host_detection.host_flags(arch), arch)
    processor, core = host_detection.best_processor(info, arch, present)
    extra = host_detection.extra_features(processor, present)
    # Hypervisors report cache sizes of the whole socket to guests.
    data_caches = host_detection.host_caches(core, is_guest="hypervisor" in info.get("flags", ""))
    return MachineFacts(processor.name, arch, extra, core, data_caches)


def host_cores() -> int:
    """Return the number of cores available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _table_facts(processor: ProcessorRow) -> MachineFacts:
    """Return the processor attributes of an entry of the table."""
    return MachineFacts(
        processor.name, processor.architecture, (), processor.core, processor.core.caches
    )


PROCESSOR_ALIASES = {
    "core-avx2": "haswell",
    "core-avx-i": "ivybridge",
    "corei7-avx": "sandybridge",
    "corei7": "nehalem",
}
"""LLVM's aliases of processors in the table."""


def find_processor(name: str, arch: str | None = None) -> ProcessorRow:
    """Look up a processor by its name or an LLVM alias; for Armv7, a 64-bit processor is returned
    with its 32-bit features. Raises CompileError listing the known names.
    """
    name = PROCESSOR_ALIASES.get(name, name)
    if name not in PROCESSORS:
        names = ", ".join(PROCESSORS)
        raise CompileError(f"target: unknown processor {name!r}; there are native, {names}")
    row = PROCESSORS[name]
    if arch == ARMV7 and row.architecture == ARM and name.startswith("cortex-a"):
        return replace(row, architecture=ARMV7, features=(ARMV7_EXTRA_FEATURE,))
    return row


def _select_machine(options: OptionValues, triple: str | None) -> MachineFacts:
    """Return the machine that -mcpu, -mtriple and -mtune select."""
    arch = architecture_of(triple) if triple else None
    name = str(
        options.get("mcpu", "native" if arch in (None, host_facts().architecture) else "generic")
    )
    if arch is not None and arch not in ARCHITECTURES:
        stranger = "generic" if name == "native" else name
        return replace(
            _table_facts(PROCESSORS[GENERIC_PROCESSORS[X86]]), processor=stranger, architecture=arch
        )
    if name == "native":
        machine = host_facts()
    else:
        target_arch = arch or host_facts().architecture
        machine = _table_facts(
            find_processor(GENERIC_PROCESSORS[target_arch] if name == "generic" else name, arch)
        )
    if arch not in (None, machine.architecture):
        what = f"processor {machine.processor!r} is {machine.architecture}"
        raise CompileError(f"target: {what}, the triple {triple!r} is not")
    tune = options.get("mtune")
    if tune is None:
        return machine
    tuned = host_facts() if tune == "native" else _table_facts(find_processor(str(tune)))
    # -mtune changes the cost model only, not the instructions.
    return replace(machine, core=tuned.core, caches=tuned.caches)


def resolve_facts(options: OptionValues, base_cores: int | None = None) -> dict[str, object]:
    """Return the fields of a target by name. Raises CompileError for invalid values."""
    triple = normalize_triple(str(options["mtriple"])) if options.get("mtriple") else None
    machine = _select_machine(options, triple)
    arch = machine.architecture
    requested = _parse_features(options.get("mattr", ()), arch)
    features = tuple(dict.fromkeys((*machine.features, *requested)))
    present = all_features(arch, machine.processor, features)
    vector_bits, registers = vector_registers(arch, present)
    bits = _parse_number("vector-bits", options, vector_bits, minimum=8)
    _check_vector_width(
        bits, vector_bits, machine.processor, is_scalable=arch == RISCV and "v" in present
    )
    core = machine.core
    loads = _parse_number("loads", options, operations_per_cycle(core.loads, bits))
    return {
        "triple": triple or _default_triple(machine),
        "cpu": machine.processor,
        "features": features,
        "vector_bits": bits,
        "registers": _parse_number("registers", options, registers),
        "cores": _parse_number("cores", options, _default_cores(arch, base_cores)),
        "caches": _override_caches(options, machine.caches, loads * bits / 8),
        "fma_units": _parse_number("fma-units", options, operations_per_cycle(core.fma, bits)),
        "fma_latency": _parse_number("fma-latency", options, core.fma_latency),
        "loads": loads,
    }


def _check_vector_width(bits: int, own: int, processor: str, *, is_scalable: bool) -> None:
    """Raise CompileError if a vector width exceeds every register: code would ask for instructions
    that the processor does not support.
    """
    if bits & (bits - 1):
        raise CompileError(f"target: option -vector-bits must be a power of two, got {bits}")
    if bits > own and not is_scalable:
        raise CompileError(
            f"target: option -vector-bits={bits}: the vector registers of {processor!r} with its "
            f"features have {own}"
        )


def _default_triple(machine: MachineFacts) -> str:
    row = PROCESSORS.get(machine.processor)
    return row.triple if row is not None and row.triple else DEFAULT_TRIPLES[machine.architecture]


def _default_cores(arch: str, base: int | None) -> int:
    """Return the default number of cores: one for microcontrollers, and for WebAssembly unless
    specified.
    """
    if arch == CORTEX_M:
        return 1
    return base or (1 if arch == WASM else host_cores())


def all_features(arch: str, cpu: str, extra: Sequence[str]) -> frozenset[str]:
    """Return the features of the processor and the extra ones, with everything they imply."""
    if arch not in ARCHITECTURES:
        return frozenset(extra)
    return feature_closure(arch, (*find_processor(cpu, arch).features, *extra))


def _parse_features(value: object, arch: str) -> tuple[str, ...]:
    """Parse a feature list, from comma-separated text or a sequence: "-" removes a feature, "+" or
    no sign adds it.
    """
    listed = value.split(",") if isinstance(value, str) else value
    assert isinstance(listed, Sequence)
    names = [str(entry).strip().removeprefix("+") for entry in listed]
    names = [
        n for n in names if n and n.removeprefix("-") not in BASELINE_FEATURES.get(arch, ())
    ] + [
        _removed_feature(n, arch)
        for n in names
        if n.startswith("-") and n[1:] in BASELINE_FEATURES.get(arch, ())
    ]
    both = [n for n in names if f"-{n}" in names]
    if both:
        raise CompileError(f"target: feature {both[0]!r} is both added and taken away by -mattr")
    unknown = [n for n in names if (arch, n.removeprefix("-")) not in FEATURE_TABLE]
    if unknown and arch in ARCHITECTURES:
        names_there = ", ".join(feature_names(arch))
        raise CompileError(
            f"target: unknown feature {unknown[0]!r} of {arch}; there are {names_there}"
        )
    return tuple(dict.fromkeys(names))


def _removed_feature(name: str, arch: str) -> str:
    raise CompileError(f"target: {name[1:]!r} is part of every {arch} and cannot be taken away")


MAX_NUMBER_DIGITS = 18
"""Digits of numbers of options: what an int64 holds, and int() parses in no time."""


def _parse_number(name: str, options: OptionValues, default: int, minimum: int = 1) -> int:
    """Parse a numeric option of at least `minimum`. Raises CompileError."""
    text = str(options.get(name, default))
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_NUMBER_DIGITS):
        raise CompileError(
            f"target: option -{name} must be a number, got {text[: 2 * MAX_NUMBER_DIGITS]!r}"
        )
    if int(text) < minimum:
        raise CompileError(f"target: option -{name} must be at least {minimum}, got {text}")
    return int(text)


# fmt: off
_CACHE_FIELD_PARSERS: tuple[Callable[[str], float], ...] = (
    lambda text: _parse_bytes(text), int, int, int, float, int,   # as the fields of Cache
)
# fmt: on
_SIZE_SUFFIXES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def _parse_bytes(text: str) -> int:
    return int(text[:-1]) * _SIZE_SUFFIXES[text[-1]] if text[-1:] in _SIZE_SUFFIXES else int(text)


def _override_caches(
    options: OptionValues, base_caches: Sequence[Cache], first: float
) -> tuple[Cache, ...]:
    """Return the cache levels with -l1=, -l2= and -l3= applied. L1 bandwidth matches the load units
    unless specified; a level of zero bytes ends the list.
    """
    levels: list[Cache] = []
    for level, name in enumerate(("l1", "l2", "l3")):
        row = base_caches[level] if level < len(base_caches) else Cache(0, 16, 64, 1, 8.0, 60)
        row = replace(row, bandwidth=first) if level == 0 else row
        cache = _parse_cache(name, str(options[name]), row) if name in options else row
        if cache.size == 0:
            break
        levels.append(cache)
    _check_cache_levels(options, len(levels))
    return tuple(levels)


def _check_cache_levels(options: OptionValues, count: int) -> None:
    """Raise CompileError for a processor without an L1 cache, which no kernel model supports, and
    for a cache level behind a missing one.
    """
    if count == 0:
        raise CompileError(f"target: option -l1 must be above 0, got {str(options['l1'])!r}")
    for level in range(count + 2, 4):
        setting = str(options.get(f"l{level}", "0"))
        if _parse_cache(f"l{level}", setting, Cache(0, 16, 64, 1, 8.0, 60)).size:
            raise CompileError(f"target: option -l{level}={setting} lies behind no -l{level - 1}")


def _parse_cache(name: str, text: str, row: Cache) -> Cache:
    """Parse a cache: a size, or a prefix of size:ways:line:shared:bandwidth:latency."""
    cache_fields, values = text.split(":"), list(astuple(row))
    try:
        values[: len(cache_fields)] = [
            read(field_text)
            for read, field_text in zip(_CACHE_FIELD_PARSERS, cache_fields, strict=False)
        ]
        valid = (
            len(cache_fields) <= len(_CACHE_FIELD_PARSERS)
            and min(values[1:]) > 0
            and values[0] >= 0
        )
    except ValueError:
        valid = False
    if not valid:
        form = "bytes (48K, 2M) or size:ways:line:shared:bandwidth:latency"
        raise CompileError(f"target: option -{name} must be {form}, got {text!r}")
    return Cache(*values)


FACT_OPTIONS = ("mtriple", "mcpu", "mtune", "mattr", "vector-bits", "registers", "cores",
                "l1", "l2", "l3", "fma-units", "fma-latency", "loads")  # fmt: skip
"""Options that override processor facts; -mtune= takes another processor's core and caches."""
FACT_OPTION_ALIASES = {"num-cores": "cores"}
"""TVM's names of those options."""

__all__ = [
    "FACT_OPTIONS",
    "FACT_OPTION_ALIASES",
    "MachineFacts",
    "OptionValues",
    "all_features",
    "host_facts",
    "resolve_facts",
]
