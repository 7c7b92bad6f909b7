"""Generated microcontroller projects: a folder with a model, a program around it, and the means to
build, flash and run it.

project/model/        the content of the model library
project/src/          the program
project/Makefile      builds build/firmware
project/project.json  the template and the options that the project was made with
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ekiden.compiler.export.micro import MicroProgram
from ekiden.compiler.export.model_library import MLF_VERSION, library_files
from ekiden.micro.footprint import SHF_ALLOC, SHF_WRITE, SHT_NOBITS, parse_elf_sections
from ekiden.micro.templates import (
    CONFIG_HEADER_TEMPLATE,
    CPU_FLOAT_FLAGS,
    LINKER_SCRIPT_TEMPLATE,
    MAKEFILE_TEMPLATE,
    MODEL_C_FLAGS,
    TEMPLATES,
    MemoryRegion,
    Template,
)
from ekiden.rpc.channel import Stream
from ekiden.rpc.client import start_piped_program
from ekiden.runtime.artifact.archive import read_archive_files
from ekiden.runtime.errors import ExportError, InputError, LoadError
from ekiden.runtime.files import PathName, rewrite_os_errors
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.runtime.paths import micro_source_dir, server_source_dir

Options = Mapping[str, object]
OPTIONS: dict[str, str] = {
    "cc": "the C compiler, in words",
    "cflags": "its options beside the project's own (-O2)",
    "cpu": "the processor, of the template 'bare': " + ", ".join(CPU_FLOAT_FLAGS),
    "flash": "ORIGIN:BYTES of a board's memory for code and constants",
    "constants": "ORIGIN:BYTES of one for constants, where they have their own",
    "ram": "ORIGIN:BYTES of its other memory",
    "stack_bytes": "that must be left for the stack (8192)",
    "heap_bytes": "for tensors that a session holds (three times those of one run)",
    "frame_bytes": "for one message of a session (8192)",
    "workspace_size_bytes": "the most memory that was planned may need; more is refused",
    "verbose": "true: what the compiler prints is shown",
    "flash_command": "the command that `flash` runs, in words; {firmware} is the program",
    "icount": "true: QEMU counts a nanosecond for each instruction, so that times are exact",
}
"""What `generate_project` takes."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Section sizes of a built program in bytes, as linked."""

    flash: int
    """Code, constants, and what variables begin with."""
    ram: int
    model_code: int
    """Of the flash, the model's code."""
    model_constants: int
    model_workspace: int
    """Of the RAM, the memory that was planned."""


class ProjectStream:
    """Byte stream to a project's running program, with the descriptions of the model's inputs and
    outputs: {"inputs": [{"name", "shape", "dtype", "size"}, ...], "outputs": [...]}.
    """

    def __init__(self, stream: Stream, tensors: Mapping[str, list[dict[str, Any]]]) -> None:
        self.tensors = tensors
        self.recv_into, self.sendall = stream.recv_into, stream.sendall
        self.settimeout, self.close = stream.settimeout, stream.close


class GeneratedProject:
    """Generated project in a folder."""

    def __init__(self, folder: PathName) -> None:
        """Open a project. Raises LoadError if the folder holds none."""
        self.folder = Path(folder)
        try:
            saved = json.loads((self.folder / "project.json").read_text())
            self.template = TEMPLATES[saved["template"]]
            self.options: dict[str, Any] = dict(saved["options"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise LoadError(f"open project '{folder}': {error!r}") from error

    @property
    def firmware(self) -> Path:
        """Return the path of the program that `build` creates."""
        return self.folder / "build" / "firmware"

    def build(self) -> Path:
        """Build the program with `make`."""
        words = str(self.options.get("cc", self.template.cc)).split()
        for program in ("make", words[0]):
            if shutil.which(program) is None:
                raise ExportError(
                    f"build '{self.folder}': {program} is missing{_install_hint(program)}"
                )
        command = ["make", "-C", str(self.folder)]
        if "cflags" in self.options:
            command.append(f"CFLAGS=-O2 {self.options['cflags']}")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if self.options.get("verbose"):
            print(done.stdout, done.stderr, sep="", end="")
        if done.returncode != 0:
            shown = "\n".join(done.stderr.splitlines()[:20])
            raise ExportError(f"build '{self.folder}': the C compiler failed:\n{shown}")
        return self.firmware

    def flash(self) -> None:
        """Flash the program to the board: nothing for programs of this machine and of QEMU, the
        option `flash_command` for others. Raises ExportError.
        """
        self._check_is_built("flash")
        command = self.options.get("flash_command")
        if command is None:
            if self.template.emulator or self.template.name == "host":
                return
            raise ExportError(
                f"flash '{self.folder}': the option flash_command expected, such as "
                "'openocd -f board.cfg -c \"program {firmware} exit\"'"
            )
        words = [w.replace("{firmware}", str(self.firmware)) for w in str(command).split()]
        if shutil.which(words[0]) is None:
            raise ExportError(
                f"flash '{self.folder}': {words[0]} is missing{_install_hint(words[0])}"
            )
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ExportError(f"flash '{self.folder}': {done.stderr.strip()[:2000]}")

    def open_transport(self) -> ProjectStream:
        """Start the program, and return the stream on which it serves sessions; closing it ends the
        program. Raises ExportError where it is not built or serves none.
        """
        self._check_is_built("open transport")
        if not self.template.serves:
            raise ExportError(
                f"open transport: a program of the template {self.template.name!r} serves none"
            )
        about = json.loads((self.folder / "model/metadata.json").read_text())
        (row,) = next(iter(about["modules"].values()))["memory"]["functions"]["main"]
        rows = {
            side: [{"name": name, **tensor} for name, tensor in row[side].items()]
            for side in ("inputs", "outputs")
        }
        return ProjectStream(start_piped_program(self._program_command()), rows)

    transport = open_transport

    def _program_command(self) -> list[str]:
        emulator = list(self.template.emulator)
        if not emulator:
            return [str(self.firmware.absolute())]
        if shutil.which(emulator[0]) is None:
            raise ExportError(
                f"open transport: {emulator[0]} is missing{_install_hint(emulator[0])}"
            )
        if self.options.get("icount"):
            emulator[1:1] = ["-icount", "shift=0,sleep=off"]
        return [*emulator, str(self.firmware)]

    def _check_is_built(self, what: str) -> None:
        if not self.firmware.exists():
            raise ExportError(f"{what}: '{self.folder}' is not built yet")

    def sizes(self) -> Sizes:
        """Return the linked sizes. Raises ExportError before `build`."""
        self._check_is_built("sizes")
        return _parse_linked_sizes(
            self.firmware.read_bytes(), (self.folder / "build/firmware.map").read_text()
        )


def generate_project(
    template: PathName,
    library: PathName | MicroProgram,
    folder: PathName,
    options: Options | None = None,
) -> GeneratedProject:
    """Generate a project from a template around a model library.

    Args:
        template: One of TEMPLATES, as a text or a path.
        library: The path of a model library, or a program of `micro.compile`.
        folder: The folder to create.
        options: Options listed in OPTIONS.

    Raises InputError for an unknown template or option, FileExistsError if the folder exists,
    LoadError for a file that is no model library of version 7 (docs/guides/micro.md).
    """
    row, chosen = _lookup_template(os.fspath(template)), dict(options or {})
    unknown = [name for name in chosen if name not in OPTIONS]
    if unknown:
        known_options = ", ".join(OPTIONS)
        raise InputError(
            f"generate project: no option is named '{unknown[0]}'; there are {known_options}"
        )
    for name in chosen:
        if not row.takes(name):
            raise InputError(
                f"generate project: the template '{row.name}' takes no option '{name}'"
            )
    files = (
        library_files(library) if isinstance(library, MicroProgram) else read_archive_files(library)
    )
    about = _parse_mlf_metadata(files, library)
    if "workspace_size_bytes" in chosen:
        limit = _parse_int_option("workspace_size_bytes", chosen, 0)
        if about.workspace_bytes > limit:
            raise InputError(
                f"generate project: workspace_size_bytes: the model needs {about.workspace_bytes}"
                f" bytes, {limit} are given"
            )
    texts, to = _generate_files(row, about, chosen), Path(folder)
    with rewrite_os_errors("generate project", folder):
        to.mkdir(parents=True)
    for path, data in files.items():
        _write_file(to / "model" / path, data)
    for name in row.sources:
        source = micro_source_dir() / name
        source = source if source.exists() else server_source_dir() / name
        _write_file(to / "src" / name, source.read_bytes())
    for path, text in texts.items():
        _write_file(to / path, text.encode())
    return GeneratedProject(to)


_TEMPLATES_BY_PLATFORM = {"crt": "host"}
"""Name of TVM's platform -> template."""


def get_microtvm_template_projects(platform: str) -> str:
    """Return the template name that `generate_project` accepts for a TVM platform.

    Raises:
        InputError: There is none, as for "zephyr" and "arduino".
    """
    if platform in _TEMPLATES_BY_PLATFORM:
        return _TEMPLATES_BY_PLATFORM[platform]
    raise InputError(
        f"template project of {platform!r}: there is none: 'crt' is this machine, TEMPLATES has"
        f" boards ({', '.join(TEMPLATES)}); other build systems take the C of"
        " `export_model_library_format`"
    )


def _lookup_template(name: str) -> Template:
    """Look up a template. Raises InputError."""
    if name not in TEMPLATES:
        known_templates = "; ".join(f"{t.name} ({t.about})" for t in TEMPLATES.values())
        raise InputError(
            f"generate project: no template is named '{name}'; there are {known_templates}"
        )
    return TEMPLATES[name]


def _write_file(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@dataclass(frozen=True, slots=True)
class _MlfMetadata:
    """Contents of metadata.json for its single model. io_bytes: the size of its inputs and outputs,
    each rounded up to 16. pools: the size of each caller-provided memory pool, by name; None if
    it has its own.
    """

    name: str
    io_bytes: int
    workspace_bytes: int
    pools: Mapping[str, int] | None


_C_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""What may be a part of an identifier in C: names of a file go into the project's sources."""


def _validate_identifier(value: object) -> str:
    """Return the value if it is a C identifier; otherwise raise ValueError."""
    if not isinstance(value, str) or not _C_IDENTIFIER.fullmatch(value):
        raise ValueError(f"a name expected, got {value!r:.80}")
    return value


def _validate_num_bytes(value: object) -> int:
    """Return the value if it is a byte count below 2^31; otherwise raise ValueError."""
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise ValueError(f"a number of bytes below 2^31 expected, got {value!r:.80}")
    return value


def _parse_mlf_metadata(files: Mapping[str, bytes], library: object) -> _MlfMetadata:
    """Parse metadata.json, which must describe one model."""
    try:
        metadata = json.loads(files["metadata.json"])
        (about,) = metadata["modules"].values()
        if metadata["version"] != MLF_VERSION:
            raise ValueError(f"version {metadata['version']!r:.80}")
        # Names of the file are pasted into C sources and Makefiles: only identifiers are safe
        # there.
        name = _validate_identifier(about["model_name"])
        if f"codegen/host/include/ekiden_{name}.h" not in files:
            raise ValueError(f"no header of {name!r}")
        # Unpacking raises ValueError unless there is exactly one.
        (main,) = about["memory"]["functions"]["main"]
        tensors = [*main["inputs"].values(), *main["outputs"].values()]
        pools = main.get("workspace_pools")
        return _MlfMetadata(
            name,
            sum(-(-_validate_num_bytes(t["size"]) // 16) * 16 for t in tensors),
            _validate_num_bytes(main.get("workspace_size_bytes", 0)),
            None
            if pools is None
            else {
                _validate_identifier(key): _validate_num_bytes(row["size_bytes"])
                for key, row in pools.items()
            },
        )
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise LoadError(
            f"read '{library}': a model library of version {MLF_VERSION} that Ekiden wrote "
            "expected, "
            f"with one model: {error!r:.200}"
        ) from error


def _generate_files(row: Template, about: _MlfMetadata, options: Options) -> dict[str, str]:
    """Return the generated text files of a project by path: Makefile, configuration header, options
    and, for boards, the linker script.
    """
    machine = row.machine
    if "{cpu}" in machine:
        cpu = str(options.get("cpu", "cortex-m4"))
        if cpu not in CPU_FLOAT_FLAGS:
            raise InputError(
                f"generate project: cpu one of {', '.join(CPU_FLOAT_FLAGS)} expected, got '{cpu}'"
            )
        machine = machine.format(cpu=cpu, fpu=CPU_FLOAT_FLAGS[cpu])
    is_board = bool(row.memories)
    link = "-nostartfiles -Tboard.ld -Wl,--gc-sections -lm" if is_board else "-Wl,--gc-sections -lm"
    flags = " ".join(f"{row.flags} {'' if is_board else '-D_GNU_SOURCE'}".split())
    texts = {
        "Makefile": MAKEFILE_TEMPLATE.format(
            cc=options.get("cc", row.cc),
            c_flags=MODEL_C_FLAGS,
            machine=machine,
            flags=flags,
            link=link,
            script="board.ld" if is_board else "",
        ),
        "src/ek_micro_config.h": _emit_config_header(about, options),
        "project.json": json.dumps({"template": row.name, "options": dict(options)}, indent=2),
    }
    if is_board:
        regions = {
            name: _parse_memory_region(name, options, row.memories.get(name))
            for name in ("flash", "constants", "ram")
            if name in row.memories or name in options
        }
        texts["board.ld"] = _emit_linker_script(
            regions, _parse_int_option("stack_bytes", options, 8192)
        )
    return texts


def _emit_linker_script(regions: Mapping[str, MemoryRegion], stack: int) -> str:
    """Return the GNU linker script of a board."""
    constants, alias = "", 'REGION_ALIAS("constants", flash)'
    if "constants" in regions:
        row, alias = regions["constants"], ""
        constants = f"constants (r) : ORIGIN = {row.origin:#x}, LENGTH = {row.length:#x}"
    return LINKER_SCRIPT_TEMPLATE.format(
        stack=stack, flash=regions["flash"], ram=regions["ram"], constants=constants, alias=alias
    )


def _emit_config_header(about: _MlfMetadata, options: Options) -> str:
    """Return the C header with the server's frame and heap sizes and the model's memory pools."""
    pools, table = "", "NULL"
    if about.pools is not None:
        pools = "".join(
            f"static uint8_t ek_pool_{name}[{max(size, 1)}]"
            f' __attribute__((aligned(16), section(".bss.noinit.ekiden.{name}")));\n'
            for name, size in about.pools.items()
        )
        pool_pointers = ", ".join(f"ek_pool_{name}" for name in about.pools)
        pools += f"static void *const ek_pools[] = {{{pool_pointers}}};\n"
        table = "ek_pools"
    return CONFIG_HEADER_TEMPLATE.format(
        name=about.name,
        pools=pools,
        pool_table=table,
        frame=_parse_int_option("frame_bytes", options, 8192, minimum=4096),
        heap=_parse_int_option("heap_bytes", options, 3 * about.io_bytes + 16),
    )


def _parse_int_option(name: str, options: Options, default: int, minimum: int = 1) -> int:
    """Return an integer option, or its default. Raises InputError if it is below the minimum."""
    value = options.get(name, default)
    if not isinstance(value, int) or value < minimum:
        raise InputError(
            f"generate project: {name}: a number from {minimum} on expected, got {value!r}"
        )
    return value


def _parse_memory_region(name: str, options: Options, default: MemoryRegion | None) -> MemoryRegion:
    """Parse a memory region option ORIGIN:BYTES. Raises InputError."""
    if name not in options and default is not None:
        return default
    origin, _, length = str(options[name]).partition(":")
    try:
        return MemoryRegion(int(origin, 0), int(length, 0))
    except ValueError as error:
        form = "ORIGIN:BYTES, such as 0x08000000:0x100000"
        raise InputError(f"generate project: {name}: {form} expected") from error


def _install_hint(program: str) -> str:
    packages = {
        "arm-none-eabi-gcc": "gcc-arm-none-eabi libnewlib-arm-none-eabi",
        "qemu-system-arm": "qemu-system-arm",
        "make": "make",
    }
    return f": apt install {packages[program]}" if program in packages else ""


def _parse_linked_sizes(elf: bytes, text: str) -> Sizes:
    """Sum the allocated sections of a linked program, and the model's own sections in the linker
    map.
    """
    flash = ram = 0
    for elf_section in parse_elf_sections(elf):
        if elf_section.flags & SHF_ALLOC:
            # Initial values of .data lie in flash and are copied to RAM at reset: counted in both.
            flash += elf_section.size if elf_section.section_type != SHT_NOBITS else 0
            ram += elf_section.size if elf_section.flags & SHF_WRITE else 0
    linked_map = text.partition("\nLinker script and memory map")[
        2
    ]  # before it stands what is left out
    model = {"code": 0, "constants": 0, "workspace": 0}
    row = re.compile(r"^ (\.[\w.]+)\s+0x[0-9a-f]+\s+(0x[0-9a-f]+) (\S+)$", re.MULTILINE)
    for section, size, file in row.findall(linked_map):
        if "model/codegen/host/src" not in file:
            continue
        number = int(size, 16)
        if section.startswith(".text"):
            model["code"] += number
        elif section.startswith(".rodata") and file.endswith("_lib2.o"):
            model["constants"] += number
        elif section.startswith(".bss.noinit"):
            model["workspace"] += number
    return Sizes(flash, ram, model["code"], model["constants"], model["workspace"])


__all__ = [
    "OPTIONS",
    "GeneratedProject",
    "ProjectStream",
    "Sizes",
    "generate_project",
    "get_microtvm_template_projects",
]
