"""Memory footprint of a model's C code before linking: section sizes of reachable functions, and a
stack bound from the call graph.

Sums over the sections of one relocatable object that the linker made of all files, from the model's
table on; the stack by `ekiden.micro.stack`.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

from ekiden.compiler.export.micro import MicroProgram
from ekiden.compiler.export.model_library import library_files
from ekiden.micro.stack import CallGraph
from ekiden.micro.templates import CPU_FLOAT_FLAGS, MODEL_C_FLAGS
from ekiden.runtime.errors import ExportError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target.triple import MICROCONTROLLER_ARCHES

SHT_NOBITS, SHF_ALLOC, SHF_WRITE = 8, 2, 1
"""Of sections in ELF: a kind without content, and flags."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Section sizes of a model in bytes, as compiled."""

    code: int
    constants: int
    tables: int
    """What else is only read: names, shapes, texts."""
    workspace: int
    """Memory that was planned and that the model has itself; 0 where the caller gives it."""
    stack: int
    """The most that a run takes, but for `calls`; interrupts come on top."""
    calls: tuple[str, ...]
    """Functions that it calls of which nothing is known: those of this machine's C library."""

    @property
    def flash(self) -> int:
        """Return the bytes of read-only memory."""
        return self.code + self.constants + self.tables

    @property
    def ram(self) -> int:
        """Return the bytes of writable memory, the stack included."""
        return self.workspace + self.stack

    def lines(self) -> list[str]:
        """Return the sizes as text, one per line."""
        beyond = f", beside {', '.join(self.calls)}" if self.calls else ""
        return [
            f"flash {self.flash} bytes: code {self.code}, constants {self.constants}, tables"
            f" {self.tables}",
            f"RAM {self.ram} bytes: memory {self.workspace}, stack at most {self.stack}{beyond}",
        ]


@dataclass(frozen=True, slots=True)
class ElfSection:
    """Section header of an ELF file."""

    name: str
    section_type: int
    flags: int
    size: int


def footprint(program: MicroProgram, cc: str | None = None, cflags: str = "-O2") -> Footprint:
    """Compile a program's C code with GCC for its target, and return its memory footprint.

    Args:
        program: The program.
        cc: Another compiler command than arm-none-eabi-gcc for a Cortex-M, or cc for this machine.
        cflags: Options besides those the C code needs.

    Raises ExportError if there is no such compiler, if it fails, and for recursive calls.
    """
    words = _compiler_command(program, cc)
    with tempfile.TemporaryDirectory() as folder:
        build_dir = Path(folder)
        for path, data in library_files(program).items():
            if path.startswith("codegen/"):
                (build_dir / path).parent.mkdir(parents=True, exist_ok=True)
                (build_dir / path).write_bytes(data)
        name = program.module.name
        sources = sorted(build_dir.glob(f"codegen/host/src/{name}_lib[012].c"))
        flags = [*MODEL_C_FLAGS.split(), *cflags.split(), f"-I{build_dir}/codegen/host/include"]
        for source in sources:
            object_file = f"{source.with_suffix('.o')}"
            _run_command(
                [*words, *flags, "-fcallgraph-info=su", "-c", str(source), "-o", object_file]
            )
        objects = [str(source.with_suffix(".o")) for source in sources]
        linked, entry = build_dir / "all.o", f"ekiden_{name}"
        # A relocatable link with garbage collection: unused sections go, and libc stays out of the
        # sizes.
        link = ["-nostdlib", "-r", "-Wl,--gc-sections", f"-Wl,-e,{entry}", f"-Wl,-u,{entry}"]
        _run_command([*words, *link, *objects, "-o", str(linked)])
        graph = CallGraph.read([source.with_suffix(".ci") for source in sources])
        # Only Thumb disassembly is parsed; on other hosts library stack stays unknown and is
        # listed.
        if (
            words[0].endswith("gcc")
            and program.module.target.triple.partition("-")[0] in MICROCONTROLLER_ARCHES
        ):
            graph = graph.with_disassembly(
                disassemble_linked([*words, *objects, f"-Wl,-e,{entry}"])
            )
        stack, calls = graph.worst_case_stack("run_arrays")
        return _sum_sections(parse_elf_sections(linked.read_bytes()), stack, calls)


def _compiler_command(program: MicroProgram, cc: str | None) -> list[str]:
    """Return the compiler command for a program's target: a cross compiler with its processor flags
    for microcontrollers. Raises ExportError.
    """
    target = program.module.target
    is_board = target.triple.partition("-")[0] in MICROCONTROLLER_ARCHES
    words = (cc or ("arm-none-eabi-gcc" if is_board else "cc")).split()
    if shutil.which(words[0]) is None:
        hint = ": apt install gcc-arm-none-eabi libnewlib-arm-none-eabi" if is_board else ""
        raise ExportError(f"footprint: {words[0]} is missing{hint}")
    if not is_board:
        return words
    return [*words, f"-mcpu={target.cpu}", *CPU_FLOAT_FLAGS.get(target.cpu, "-mthumb").split()]


def _run_command(command: list[str]) -> str:
    """Run a command and return its standard output. Raises ExportError with its messages if it
    fails.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        shown = "\n".join(done.stderr.splitlines()[:20])
        raise ExportError(f"footprint: {command[0]} failed:\n{shown}")
    return done.stdout


def _sum_sections(elf_sections: list[ElfSection], stack: int, calls: tuple[str, ...]) -> Footprint:
    """Sum the sizes of sections by kind."""
    code = constants = tables = workspace = 0
    for section in elf_sections:
        if not section.flags & SHF_ALLOC:
            continue
        # .bss occupies no file bytes, yet needs RAM like .data.
        if section.section_type == SHT_NOBITS or section.flags & SHF_WRITE:
            workspace += section.size
        elif section.name.startswith(".text"):
            code += section.size
        elif "_constant_" in section.name:
            constants += section.size
        else:
            tables += section.size
    return Footprint(code, constants, tables, workspace, stack, calls)


def parse_elf_sections(elf: bytes) -> list[ElfSection]:
    """Parse the section headers of a 32- or 64-bit ELF file."""
    # EI_CLASS: ELFCLASS64 is 2; header fields lie at other offsets than in ELFCLASS32.
    wide = elf[4] == 2
    table_offset = struct.unpack_from("<Q" if wide else "<I", elf, 40 if wide else 32)[0]
    # e_shentsize, e_shnum and e_shstrndx.
    entry, count, names = struct.unpack_from("<HHH", elf, 58 if wide else 46)
    rows: list[tuple[int, int, int, int, int]] = []
    for n in range(count):
        position = table_offset + n * entry
        name, kind, flags, _, offset, size = struct.unpack_from(
            "<IIQQQQ" if wide else "<IIIIII", elf, position
        )
        rows.append((name, kind, flags, offset, size))
    text = rows[names][3] if names < len(rows) else 0
    return [
        ElfSection(elf[text + name : elf.index(0, text + name)].decode(), kind, flags, size)
        for name, kind, flags, _, size in rows
    ]


def disassemble_linked(command: list[str]) -> str:
    """Link a program with the compiler's libraries, and return its disassembly. Raises
    ExportError.
    """
    with tempfile.TemporaryDirectory() as folder:
        linked = f"{folder}/program"
        options = ["-nostartfiles", "-Wl,--gc-sections", "-Wl,--unresolved-symbols=ignore-all"]
        _run_command([*command, *options, "-lm", "-o", linked])
        objdump = _run_command([command[0], "-print-prog-name=objdump"]).strip()
        return _run_command([objdump, "-d", "--no-show-raw-insn", linked])


__all__ = ["ElfSection", "Footprint", "footprint", "parse_elf_sections"]
