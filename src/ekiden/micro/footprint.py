"""How many bytes a model's C takes before there is a project: what a compiler makes of it, without
what no program calls, and a bound of the stack by the graph of its calls.

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
from ekiden.micro.stack import Calls
from ekiden.micro.templates import C_FLAGS, FPUS
from ekiden.runtime.errors import ExportError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target.triple import MICRO

NOBITS, ALLOCATED, WRITABLE = 8, 2, 1
"""Of sections in ELF: a kind without content, and flags."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of a model, as a compiler made them."""

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
        """Bytes that are only read."""
        return self.code + self.constants + self.tables

    @property
    def ram(self) -> int:
        """Bytes that are written, the stack included."""
        return self.workspace + self.stack

    def lines(self) -> list[str]:
        """As text."""
        beyond = f", beside {', '.join(self.calls)}" if self.calls else ""
        return [
            f"flash {self.flash} bytes: code {self.code}, constants {self.constants}, tables"
            f" {self.tables}",
            f"RAM {self.ram} bytes: memory {self.workspace}, stack at most {self.stack}{beyond}",
        ]


@dataclass(frozen=True, slots=True)
class Section:
    """A section of an ELF file."""

    name: str
    kind: int
    flags: int
    size: int


def footprint(program: MicroProgram, cc: str | None = None, cflags: str = "-O2") -> Footprint:
    """Compile the C of a program for its target by GCC, and say what it takes. `cc` is another
    compiler than arm-none-eabi-gcc for a Cortex-M, cc for this machine, in words, `cflags` are
    options beside those that the C needs. Raises ExportError where there is no such compiler, with
    what it says, and for calls in a circle."""
    words = _compiler(program, cc)
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder)
        for path, data in library_files(program).items():
            if path.startswith("codegen/"):
                (there / path).parent.mkdir(parents=True, exist_ok=True)
                (there / path).write_bytes(data)
        name = program.module.name
        sources = sorted(there.glob(f"codegen/host/src/{name}_lib[012].c"))
        flags = [*C_FLAGS.split(), *cflags.split(), f"-I{there}/codegen/host/include"]
        for source in sources:
            made = f"{source.with_suffix('.o')}"
            _run([*words, *flags, "-fcallgraph-info=su", "-c", str(source), "-o", made])
        objects = [str(source.with_suffix(".o")) for source in sources]
        linked, entry = there / "all.o", f"ekiden_{name}"
        link = ["-nostdlib", "-r", "-Wl,--gc-sections", f"-Wl,-e,{entry}", f"-Wl,-u,{entry}"]
        _run([*words, *link, *objects, "-o", str(linked)])
        graph = Calls.read([source.with_suffix(".ci") for source in sources])
        if words[0].endswith("gcc") and program.module.target.triple.partition("-")[0] in MICRO:
            graph = graph.with_library(disassembled([*words, *objects, f"-Wl,-e,{entry}"]))
        stack, calls = graph.most("run_arrays")
        return _sums(sections(linked.read_bytes()), stack, calls)


def _compiler(program: MicroProgram, cc: str | None) -> list[str]:
    """The words of the command."""
    target = program.module.target
    is_board = target.triple.partition("-")[0] in MICRO
    words = (cc or ("arm-none-eabi-gcc" if is_board else "cc")).split()
    if shutil.which(words[0]) is None:
        hint = ": apt install gcc-arm-none-eabi libnewlib-arm-none-eabi" if is_board else ""
        raise ExportError(f"footprint: {words[0]} is missing{hint}")
    if not is_board:
        return words
    return [*words, f"-mcpu={target.cpu}", *FPUS.get(target.cpu, "-mthumb").split()]


def _run(command: list[str]) -> str:
    """What a command prints. Raises ExportError with what it says where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        shown = "\n".join(done.stderr.splitlines()[:20])
        raise ExportError(f"footprint: {command[0]} failed:\n{shown}")
    return done.stdout


def _sums(found: list[Section], stack: int, calls: tuple[str, ...]) -> Footprint:
    """Over sections, by what they are."""
    code = constants = tables = workspace = 0
    for each in found:
        if not each.flags & ALLOCATED:
            continue
        if each.kind == NOBITS or each.flags & WRITABLE:
            workspace += each.size
        elif each.name.startswith(".text"):
            code += each.size
        elif "_constant_" in each.name:
            constants += each.size
        else:
            tables += each.size
    return Footprint(code, constants, tables, workspace, stack, calls)


def sections(elf: bytes) -> list[Section]:
    """The sections of an ELF file of either width."""
    wide = elf[4] == 2
    place = struct.unpack_from("<Q" if wide else "<I", elf, 40 if wide else 32)[0]
    entry, count, names = struct.unpack_from("<HHH", elf, 58 if wide else 46)
    rows: list[tuple[int, int, int, int, int]] = []
    for n in range(count):
        at = place + n * entry
        name, kind, flags, _, offset, size = struct.unpack_from(
            "<IIQQQQ" if wide else "<IIIIII", elf, at
        )
        rows.append((name, kind, flags, offset, size))
    text = rows[names][3] if names < len(rows) else 0
    return [
        Section(elf[text + name : elf.index(0, text + name)].decode(), kind, flags, size)
        for name, kind, flags, _, size in rows
    ]


def disassembled(command: list[str]) -> str:
    """The text of a whole program with what it calls of the compiler's libraries. Raises
    ExportError.
    """
    with tempfile.TemporaryDirectory() as folder:
        linked = f"{folder}/program"
        options = ["-nostartfiles", "-Wl,--gc-sections", "-Wl,--unresolved-symbols=ignore-all"]
        _run([*command, *options, "-lm", "-o", linked])
        objdump = _run([command[0], "-print-prog-name=objdump"]).strip()
        return _run([objdump, "-d", "--no-show-raw-insn", linked])


__all__ = ["Footprint", "Section", "footprint", "sections"]
