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
WINDOWS_TRIPLE = "x86_64-pc-windows-gnu"
"""Triple of code for Windows. Images do not depend on a C library: `-msvc` gives the same code."""
SUPPORTED_TRIPLES = (*DEFAULT_TRIPLES.values(), WINDOWS_TRIPLE)
"""Triples whose architecture and system have a runtime."""
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
    """Return whether code can be generated for a triple: one whose architecture and system are
    those of SUPPORTED_TRIPLES, for Armv7 only with the hard-float ABI.
    """
    machine, _, _, environment, *_ = [*triple.split("-"), "", "", ""]
    # The runtime for Armv7 is built for the hard-float ABI only.
    if _ARCH_BY_TRIPLE_WORD.get(machine) == ARMV7 and not environment.endswith("eabihf"):
        return False
    return (machine, system_of(triple)) in {
        (supported.partition("-")[0], system_of(supported)) for supported in SUPPORTED_TRIPLES
    }


def system_of(triple: str) -> str:
    """Return the system of a normalized triple, "" if it has none."""
    return [*triple.split("-"), "", ""][2]


def object_triple(triple: str) -> str:
    """Return the triple that machine code is generated for: that of a Windows target selects the
    calling convention of Windows, but ELF as the format of objects, which images are linked from.
    """
    return f"{WINDOWS_TRIPLE}-elf" if system_of(triple) == "windows" else triple


__all__ = [
    "DEFAULT_TRIPLES",
    "MICROCONTROLLER_ARCHES",
    "SUPPORTED_TRIPLES",
    "WINDOWS_TRIPLE",
    "architecture_of",
    "is_supported",
    "normalize_triple",
    "object_triple",
    "system_of",
]
