"""Run a command as on a processor with fewer features, for engines that choose kernels by CPUID.

    python benchmarks/emulate_cpu.py x86-64-v3 python benchmarks/quantized_operators.py \
        --target "llvm -mcpu=x86-64-v3"

Clears the bits of all features of the feature table that the processor of that name lacks
(hide_features.c, built with `cc` at each run). Caches, clock and ports stay those of the machine.
Needs Linux and a processor whose CPUID can fault (`cpuid_fault` in /proc/cpuinfo).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ekiden.target.features import FEATURE_TABLE, X86, feature_closure
from ekiden.target.processors import PROCESSORS

HIDDEN_WORDS = ("1.ecx", "7.ebx", "7.ecx", "7.edx", "7.1.eax", "7.1.edx")
"""Words of CPUID whose bits are cleared, in the order of hide_features.c."""
SOURCE = Path(__file__).parent / "hide_features.c"


def hidden_feature_bits(cpu: str) -> str:
    """Return the bits that a processor does not have in each of the words, in hexadecimal."""
    row = PROCESSORS.get(cpu)
    if row is None or row.architecture != X86:
        names = ", ".join(n for n, r in PROCESSORS.items() if r.architecture == X86)
        sys.exit(f"emulate_cpu: expected one of {names}, got {cpu!r}")
    bits, available = dict.fromkeys(HIDDEN_WORDS, 0), feature_closure(X86, row.features)
    for (architecture, name), feature in FEATURE_TABLE.items():
        word, bit = feature.place
        if architecture == X86 and word in bits and name not in available:
            bits[word] |= 1 << bit
    return ",".join(f"{value:x}" for value in bits.values())


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit status."""
    if len(arguments) < 2:
        sys.exit(__doc__)
    cpu, *command = arguments
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/hide_features.so"
        build = ["cc", "-std=c11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", library]
        subprocess.run([*build, str(SOURCE)], check=True)
        variables = {"LD_PRELOAD": library, "HIDDEN_FEATURES": hidden_feature_bits(cpu)}
        return subprocess.run(command, env={**os.environ, **variables}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
