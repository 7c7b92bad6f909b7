"""Target: an immutable value that says what code is for, with the facts schedules choose tiles
by."""

from __future__ import annotations

import functools
import os
import platform
from dataclasses import dataclass, replace

from ekiden.ir import dtype as dt
from ekiden.runtime.errors import CompileError
from ekiden.target import cpuinfo

_TRIPLE = "x86_64-unknown-linux-gnu"

# fmt: off
VECTORS: dict[str, tuple[int, int]] = {   # cpu: (vector bits, vector registers)
    "x86-64":    (128, 16),
    "x86-64-v2": (128, 16),
    "x86-64-v3": (256, 16),
    "x86-64-v4": (512, 32),
    "znver1":    (256, 16),
    "znver2":    (256, 16),
    "znver3":    (256, 16),
    "znver4":    (512, 32),
    "znver5":    (512, 32),
    "generic":   (128, 16),
    "cortex-a72":  (128, 32),
    "neoverse-n1": (128, 32),
    "neoverse-v1": (128, 32),
    "neoverse-v2": (128, 32),
    "apple-m1":    (128, 32),
}
# fmt: on
_ARM_TRIPLE = "aarch64-unknown-linux-gnu"
_ARM = ("cortex", "neoverse", "apple")
"""How the names of processors of AArch64 begin."""
ABILITIES: dict[str, tuple[str, ...]] = {
    "fma": ("x86-64", "x86-64-v2", "generic"),
    "float16": ("x86-64", "x86-64-v2", "generic"),
    "rounding": ("x86-64", "generic"),
}
"""What code may need -> the processors of x86-64 without it. Those of AArch64 have all."""
KINDS = ("llvm", "c")
"""The code generators."""


@dataclass(frozen=True, slots=True)
class Target:
    """What code will run on. Equal targets give equal code; `str` and `parse` are inverse.

    kind: the code generator. cpu, features: LLVM's names. vector_bits, registers: the vector
    register file. l1, l2: bytes of a core's data caches. cores: threads that schedules may count
    on.
    """

    kind: str = "llvm"
    triple: str = _TRIPLE
    cpu: str = "x86-64-v3"
    features: tuple[str, ...] = ()
    vector_bits: int = 256
    registers: int = 16
    l1: int = 32 << 10
    l2: int = 1 << 20
    cores: int = 1

    @staticmethod
    @functools.cache
    def host() -> Target:
        """This machine."""
        info = cpuinfo.read_cpuinfo()
        bits = cpuinfo.vector_bits(info)
        is_arm = platform.machine() in ("aarch64", "arm64")
        return Target(
            triple=_ARM_TRIPLE if is_arm else _TRIPLE,
            cpu=cpuinfo.cpu_name(info),
            features=cpuinfo.cpu_features(info),
            vector_bits=bits,
            registers=32 if bits == 512 or is_arm else 16,
            l1=cpuinfo.cache_bytes(1, 32 << 10),
            l2=cpuinfo.cache_bytes(2, 1 << 20),
            cores=len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1,
        )

    @staticmethod
    def parse(text: str | Target) -> Target:
        """A target from its text form: "llvm" or "c" (this machine), or "llvm -mcpu=x86-64-v3
        -cores=4 ...".

        Raises CompileError for an unknown kind, option or processor.
        """
        if isinstance(text, Target):
            return text
        kind, *options = text.split() or [""]
        if kind not in KINDS:
            known = " or ".join(map(repr, KINDS))
            raise CompileError(f"target: expected {known} and options, got {text!r}")
        if not options:
            return replace(Target.host(), kind=kind)
        return replace(_from_options(dict(_option(each) for each in options)), kind=kind)

    def lanes(self, dtype: str) -> int:
        """Elements of `dtype` in one vector register."""
        return self.vector_bits // (8 * dt.itemsize(dt.element(dtype)))

    @property
    def architecture(self) -> str:
        """ "x86-64" or "aarch64"."""
        return "aarch64" if self.triple.startswith(("aarch64", "arm64")) else "x86-64"

    def has(self, ability: str) -> bool:
        """Whether there are instructions for "fma", "rounding" (to whole numbers) or "float16"
        (conversions).
        """
        return self.architecture == "aarch64" or self.cpu not in ABILITIES[ability]

    @property
    def needs(self) -> tuple[str, ...]:
        """The flags of /proc/cpuinfo that its code relies on. Features of LLVM that are none of
        `cpuinfo.KNOWN` say what is fast, or are of no use to compiled code.
        """
        extra = [cpuinfo.RENAMED.get(f, f) for f in self.features]
        known = [flag for flag in extra if flag in cpuinfo.KNOWN]
        return tuple(dict.fromkeys((*cpuinfo.ABILITIES[self.cpu], *known)))

    def serves(self, other: Target) -> bool:
        """Whether every machine that runs code for `other` runs that for this one."""
        return self.architecture == other.architecture and set(self.needs) <= set(other.needs)

    def __str__(self) -> str:
        """The text form `parse` reads, with every fact."""
        features = f" -mattr={','.join(self.features)}" if self.features else ""
        return (
            f"{self.kind} -mtriple={self.triple} -mcpu={self.cpu}{features}"
            f" -vector-bits={self.vector_bits} -registers={self.registers}"
            f" -l1={self.l1} -l2={self.l2} -cores={self.cores}"
        )


_OPTIONS = ("mtriple", "mcpu", "mattr", "vector-bits", "registers", "l1", "l2", "cores")


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.lstrip("-").partition("=")
    if not text.startswith("-") or not equals or name not in _OPTIONS:
        known = ", ".join(f"-{name}=" for name in _OPTIONS)
        raise CompileError(f"target: unknown option {text!r}; there are {known}")
    return name, value


def _from_options(options: dict[str, str]) -> Target:
    host = Target.host()
    cpu = options.get("mcpu", host.cpu)
    if cpu not in VECTORS:
        raise CompileError(f"target: unknown processor {cpu!r}; there are {', '.join(VECTORS)}")
    bits, registers = VECTORS[cpu]
    if options.get("mtriple", "").startswith("aarch64") and cpu == "generic":
        registers = 32
    features = options.get("mattr", ",".join(host.features) if cpu == host.cpu else "")

    def number(name: str, default: int) -> int:
        text = options.get(name, str(default))
        if not text.isdigit():
            raise CompileError(f"target: option -{name} must be a number, got {text!r}")
        return int(text)

    return Target(
        triple=options.get("mtriple", _ARM_TRIPLE if cpu.startswith(_ARM) else _TRIPLE),
        cpu=cpu,
        features=tuple(f for f in features.split(",") if f),
        vector_bits=number("vector-bits", bits),
        registers=number("registers", registers),
        l1=number("l1", host.l1),
        l2=number("l2", host.l2),
        cores=number("cores", host.cores),
    )
