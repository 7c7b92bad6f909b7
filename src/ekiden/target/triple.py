"""Parsing and normalization of LLVM target triples: architecture-vendor-system-environment.

A text of three parts is read by position otherwise: `thumbv7em-none-eabihf` has the system `eabihf`
and the wrong ABI.
"""

from __future__ import annotations

from ekiden.target.features import ARM, ARMV7, CORTEX_M, RISCV, WASM, X86

SYSTEM_PREFIXES = (
    "linux",
    "none",
    "windows",
    "darwin",
    "macosx",
    "macos",
    "ios",
    "freebsd",
    "wasi",
)
_ARCH_ALIASES = {
    "amd64": "x86_64",
    "x64": "x86_64",
    "arm64": "aarch64",
    "armv7a": "armv7",
    "armv7l": "armv7",
}
DEFAULT_TRIPLES: dict[str, str] = {
    X86: "x86_64-unknown-linux-gnu",
    ARM: "aarch64-unknown-linux-gnu",
    RISCV: "riscv64-unknown-linux-gnu",
    ARMV7: "armv7-unknown-linux-gnueabihf",
    WASM: "wasm32-unknown-unknown",
}
"""Default triple of each architecture."""
MICROCONTROLLER_ARCHES = (
    "thumbv6m",
    "thumbv7m",
    "thumbv7em",
    "thumbv8m.base",
    "thumbv8m.main",
    "thumbv8.1m.main",
)
"""Architectures of microcontrollers, which are compiled as C without the runtime."""
_ARCH_BY_TRIPLE_WORD = {triple.partition("-")[0]: arch for arch, triple in DEFAULT_TRIPLES.items()}


def normalize_triple(text: str) -> str:
    """Expand a triple to four components: "riscv64-linux-gnu" becomes "riscv64-unknown-linux-gnu".
    The system defaults to Linux, for WebAssembly to none.
    """
    machine, *components = text.split("-")
    if architecture_of(machine) == WASM and components in ([], ["unknown"]):
        return DEFAULT_TRIPLES[WASM]
    if not components or components[0].startswith(SYSTEM_PREFIXES):
        components.insert(0, "unknown")
    vendor, system, *environment = [*components, "linux"] if len(components) == 1 else components
    machine = _ARCH_ALIASES.get(machine, machine)
    usual = DEFAULT_TRIPLES.get(architecture_of(machine), "gnu").rpartition("-")[2]
    environment_text = "-".join(environment) or (usual if system == "linux" else "")
    return "-".join(filter(None, (machine, vendor, system, environment_text)))


def architecture_of(triple: str) -> str:
    """Return the architecture of a normalized triple: one of ARCHITECTURES, else its first
    component.
    """
    machine = triple.partition("-")[0]
    return (
        CORTEX_M
        if machine in MICROCONTROLLER_ARCHES
        else _ARCH_BY_TRIPLE_WORD.get(machine, machine)
    )


def is_supported(triple: str) -> bool:
    """Return whether code can be generated for a triple: Linux on an architecture with a runtime
    (Armv7 only with the hard-float ABI), or WebAssembly without a system.
    """
    machine, _, system, environment, *_ = [*triple.split("-"), "", "", ""]
    # The runtime for Armv7 is built for the hard-float ABI only.
    if _ARCH_BY_TRIPLE_WORD.get(machine) == ARMV7 and not environment.endswith("eabihf"):
        return False
    return (
        machine in _ARCH_BY_TRIPLE_WORD
        and system == DEFAULT_TRIPLES[_ARCH_BY_TRIPLE_WORD[machine]].split("-")[2]
    )


__all__ = [
    "DEFAULT_TRIPLES",
    "MICROCONTROLLER_ARCHES",
    "architecture_of",
    "is_supported",
    "normalize_triple",
]
