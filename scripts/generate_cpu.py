#!/usr/bin/env python3
"""Generate the processor tables of the C runtime and documentation from src/ekiden/target:
runtime/src/ek_cpu_table.h, tables in docs/artifact-format.md.

scripts/generate_cpu.py           write both files scripts/generate_cpu.py --check   write nothing;
fail if a file is out of date
"""

import sys
from pathlib import Path

from generated_files import write_or_check

REPOSITORY_ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY_ROOT / "src"))

from ekiden.target.features import ARM, ARMV7, DETECTION_WORDS, FEATURE_TABLE, RISCV, WASM, X86  # noqa: E402

ARTIFACT_FORMAT_PAGE = REPOSITORY_ROOT / "docs/artifact-format.md"
BEGIN, END = "<!-- abilities: scripts/generate_cpu.py -->\n", "<!-- end of abilities -->\n"
CPU_TABLE_HEADER = REPOSITORY_ROOT / "runtime/src/ek_cpu_table.h"
ARCHITECTURE_GUARDS = {
    X86: "defined(__x86_64__)",
    ARM: "defined(__aarch64__) && defined(__linux__)",
    RISCV: "defined(__riscv) && defined(__linux__)",
    ARMV7: "defined(__arm__) && defined(__linux__)",
    WASM: "defined(__wasm32__)",
}
CPU_TABLE_HEAD = """\
/* What processors may have, by the names of /proc/cpuinfo; included by ek_cpu.c alone.
**
** Generated from src/ekiden/target/features.py by scripts/generate_cpu.py. Do not edit. */
"""


def feature_table(architecture: str) -> str:
    """Return the C feature table of an architecture: detection word, bit, and register state of
    each flag.
    """
    words = DETECTION_WORDS[architecture]
    listed = ", ".join(words)
    rows = [
        f'    {{"{f.flag}", {words.index(f.place[0])}, {f.place[1]},'
        f" {register_state_name(f.state)}}},"
        for f in FEATURE_TABLE.values()
        if f.architecture == architecture and f.flag
    ]
    return "\n".join(
        (
            f"/* Words: {listed}. */",
            f"enum {{ WORDS = {len(words)} }};",
            "",
            "static const ability abilities[] = {",
            *rows,
            "};",
        )
    )


def register_state_name(name: str) -> str:
    """Return the C name of the register state a feature needs."""
    return f"NEEDS_{name.upper()}" if name else "NEEDS_NONE"


def artifact_flags(architecture: str) -> list[str]:
    """Return the flags that artifacts may require on an architecture."""
    return [f.flag for f in FEATURE_TABLE.values() if f.architecture == architecture and f.flag]


def updated_page() -> str:
    """Return the documentation page with its table updated."""
    head, _, after_begin = ARTIFACT_FORMAT_PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, tail = after_begin.partition(END)
    rows = [f"| {arch} | {' '.join(artifact_flags(arch))} |\n" for arch in ARCHITECTURE_GUARDS]
    return "".join((head, BEGIN, "| architecture | abilities |\n|---|---|\n", *rows, END, tail))


def cpu_table_header() -> str:
    """Return the C header."""
    sections = [CPU_TABLE_HEAD]
    for i, (architecture, guard) in enumerate(ARCHITECTURE_GUARDS.items()):
        sections.append(f"#{'el' if i else ''}if {guard}\n\n{feature_table(architecture)}\n")
    return "\n".join([*sections, "#endif", ""])


def main() -> int:
    """Write the files, or with --check compare them; return the exit status."""
    return write_or_check(
        {CPU_TABLE_HEADER: cpu_table_header(), ARTIFACT_FORMAT_PAGE: updated_page()},
        Path(__file__).name,
    )


if __name__ == "__main__":
    sys.exit(main())
