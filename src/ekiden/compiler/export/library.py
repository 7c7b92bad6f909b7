"""Export of a compiled model as a shared library, an object, C source, or a source archive.

The suffix of a file decides; `FORMATS` has a row for each.
"""

from __future__ import annotations

import importlib.util
import io
import os
import platform
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from ekiden import runtime
from ekiden.codegen.llvm.image import architecture_of
from ekiden.compiler.export.library_source import (
    DECIMAL_ARRAY_HEADER,
    extern_functions,
    library_source,
)
from ekiden.runtime.artifact import late_bound
from ekiden.runtime.artifact.chunks import Bytes
from ekiden.runtime.artifact.container_format import (
    SECTION_ALIGNMENT_BYTES,
    artifact_metadata,
    function_names,
)
from ekiden.runtime.artifact.metadata import target_variants
from ekiden.runtime.errors import ExportError
from ekiden.runtime.executable.formats import ARTIFACT_SUFFIX, MODEL_FILE_KINDS
from ekiden.runtime.files import PathName, Writer, check_folder, rewrite_os_errors, write_atomic
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.runtime.paths import include_dir, source_dir, static_library_path
from ekiden.target import Target
from ekiden.target.features import WASM
from ekiden.target.triple import DEFAULT_TRIPLES

__all__ = [
    "EXPORT_FORMATS",
    "ExportFormat",
    "c_compiler_for",
    "export_format_of",
    "export_library",
    "run_c_compiler",
    "save_module",
    "serialize_module",
    "write_artifact",
]

_MAKEFILE_TEMPLATE = """\
# make CC=aarch64-linux-gnu-gcc builds {stem}.so for another machine than this one.
CFLAGS ?= -O2
MODEL = -std=gnu11 -fPIC -Iinclude
RUNTIME = -DEK_STATIC '-DEK_API=__attribute__((visibility("hidden")))'
LINK = -shared -s -Wl,--gc-sections -Wl,-z,nodelete -Wl,-z,defs

{stem}.so: {stem}.c {stem}.eki $(wildcard src/*)
\t$(CC) $(CFLAGS) $(MODEL) $(RUNTIME) $(LINK) {stem}.c src/*.c -o $@ -pthread -ldl -lm
"""
_STATIC_RUNTIME_FLAGS = ("-DEK_STATIC", '-DEK_API=__attribute__((visibility("hidden")))')
_LINK_FLAGS = (
    "-shared",
    "-fPIC",
    "-O2",
    "-s",
    "-Wl,--gc-sections",
    "-Wl,-z,nodelete",
    "-Wl,-z,defs",
)
_FCOMPILE_FLAGS = ("-O2", "-Wl,--gc-sections", "-Wl,-z,nodelete")
"""Compiler flags passed to `fcompile`, without -shared, which it adds itself."""
_EMBEDDED_NAME = "executable.eki"
_MODULES_MAGIC = b"EKMODS\0\1"
"""Magic bytes of a serialised module graph (format in runtime.h)."""


@dataclass(frozen=True, slots=True)
class _ExportContent:
    """Content to export: bytes for `ek_module_from_bytes`, function names, architecture and C
    functions.
    """

    data: Bytes
    names: Sequence[str]
    architecture: str
    externs: Sequence[str]
    """C functions that the kernels call and that are linked in."""


def _artifact_content(data: Bytes) -> _ExportContent:
    """Return the content of an artifact; of several variants, the one of this machine's
    architecture, else the first.
    """
    parsed = (Target.parse(text or "llvm") for text in target_variants(artifact_metadata(data)))
    architectures = [target.architecture.replace("-", "_") for target in parsed]
    machine = platform.machine()
    runs_on = machine if machine in architectures else architectures[0]
    return _ExportContent(data, function_names(data), runs_on, extern_functions([data]))


def _module_content(module: runtime.Module) -> _ExportContent:
    """Return the content of a module with its imports, for its code's architecture or this
    machine's. Raises ExportError for a kind that cannot be saved.
    """
    module_images = [_serialize_one(imported) for imported in _collect_imports(module)]
    data = serialize_module(module)
    runs_on = (
        architecture_of(_serialize_one(module)) if module.kind == "image" else platform.machine()
    )
    return _ExportContent(data, module.names(), runs_on, extern_functions(module_images))


def save_module(module: runtime.Module, path: PathName, fmt: str = "") -> None:
    """Write a module in a format of `get_source` ("ll", "asm", "c", "s") or of `export_library`.
    The path's suffix is the format unless `fmt` is given. Raises ExportError.
    """
    chosen = fmt or Path(path).suffix.removeprefix(".")
    name = {"s": "asm"}.get(chosen, chosen)
    if name in (module.sources or {}):
        text = module.get_source(name)
        write_atomic(path, lambda file: file.write(text.encode()))
        return
    row = EXPORT_FORMATS.get(f".{chosen}")
    if row is None:
        known_formats = [*(module.sources or {}), *(suffix[1:] for suffix in EXPORT_FORMATS)]
        raise ExportError(
            f"save '{path}': a format of {', '.join(known_formats)} expected, got {chosen!r}"
        )
    _write_export(
        row, _ExportRequest(_module_content(module), check_folder(path).absolute(), None, ())
    )


@dataclass(frozen=True, slots=True)
class _ExportRequest:
    """Export request: the content, the target path, and the C compiler with its options."""

    content: _ExportContent
    target: Path
    cc: str | None
    options: Sequence[str]
    fcompile: Callable[..., object] | None = None
    """User function that builds the library instead of the C compiler; see `export_library`."""
    prefix: str = ""
    """Prefix of the exported function symbols."""

    @property
    def data(self) -> Bytes:
        """Return the bytes to export."""
        return self.content.data

    @property
    def architecture(self) -> str:
        """Return the architecture of the code."""
        return self.content.architecture

    @property
    def is_foreign(self) -> bool:
        """Return whether the code is for another architecture than the installed runtime."""
        return self.architecture != platform.machine()


def _write_artifact(request: _ExportRequest) -> None:
    write_atomic(request.target, lambda file: file.write(request.data))


def _write_library(request: _ExportRequest) -> None:
    if request.fcompile is not None:
        _call_fcompile(request, request.fcompile)
        return
    arguments = [*_LINK_FLAGS, *request.options, "library.c", *_runtime_inputs(request)]
    _compile_library(
        request, [*arguments, "-o", "made", *_system_libraries(request)], is_program=True
    )


def _write_object(request: _ExportRequest) -> None:
    _compile_library(request, ["-c", "-fPIC", "-O2", *request.options, "library.c", "-o", "made"])


def _write_c(request: _ExportRequest) -> None:
    def write_source(file: Writer) -> None:
        """Write the C source, then the artifact as decimal numbers, 65,536 per line, formatted by
        one table lookup and join per line.
        """
        file.write(_library_source(request, None).encode())
        file.write(b"\n" + DECIMAL_ARRAY_HEADER.encode())
        rows = np.frombuffer(request.data, np.uint8)
        for at in range(0, len(rows), 1 << 16):
            file.write(b",".join(_DECIMAL_BYTES[rows[at : at + (1 << 16)]].tolist()) + b",\n")
        file.write(b"};\n")

    write_atomic(request.target, write_source)


_DECIMAL_BYTES = np.array([str(i).encode() for i in range(256)])


def _write_archive(request: _ExportRequest) -> None:
    """Write a source archive that a C compiler can build for any machine."""
    stem = re.sub(r"[^A-Za-z0-9_.-]", "_", request.target.stem) or "model"
    texts = {
        f"{stem}.eki": bytes(request.data),
        f"{stem}.c": _library_source(request, f"{stem}.eki").encode(),
        "Makefile": _MAKEFILE_TEMPLATE.format(stem=stem).encode(),
    }
    for folder, path in (("include/ekiden", include_dir() / "ekiden"), ("src", source_dir())):
        texts |= {f"{folder}/{p.name}": p.read_bytes() for p in sorted(path.iterdir())}

    def write_tar(file: Writer) -> None:
        """Write the files as a stream, to a target that need not be seekable."""
        with tarfile.open(fileobj=file, mode="w|", format=tarfile.GNU_FORMAT) as archive:  # type: ignore[call-overload]  # all it does is write
            for name, data in texts.items():
                about = tarfile.TarInfo(f"{stem}/{name}")
                about.size = len(data)
                archive.addfile(about, io.BytesIO(data))

    write_atomic(request.target, write_tar)


@dataclass(frozen=True, slots=True)
class ExportFormat:
    """Export format: its description, the function that writes it, and whether a C
    compiler runs.
    """

    description: str
    write: Callable[[_ExportRequest], None]
    is_compiled: bool
    """Whether the format needs a C compiler."""

    def check_compiler(self, path: PathName, cc: str | None, options: Sequence[str] = ()) -> None:
        """Raise ExportError for a C compiler or options that the format would not use."""
        if self.is_compiled or (cc is None and not options):
            return
        what = f"cc={cc!r}" if cc is not None else f"options={list(options)}"
        suffix = os.path.splitext(path)[1]
        raise ExportError(f"write '{path}': no C compiler makes {suffix or 'it'}, got {what}")

    def write_file(self, request: _ExportRequest) -> None:
        """Check the request, and write the export file."""
        self.check_compiler(request.target, request.cc, request.options)
        self.write(request)


EXPORT_FORMATS = {
    suffix: ExportFormat(MODEL_FILE_KINDS[suffix], write, is_compiled)
    for suffix, write, is_compiled in (
        (ARTIFACT_SUFFIX, _write_artifact, False),
        (".so", _write_library, True),
        (".o", _write_object, True),
        (".c", _write_c, False),
        (".tar", _write_archive, False),
    )
}
"""Export formats by file suffix."""


def export_format_of(path: PathName) -> ExportFormat:
    """Return the format of a path's suffix; the artifact format for a device or pipe. Raises
    ExportError, which lists the formats, for another suffix.
    """
    target = Path(path)
    format_row = EXPORT_FORMATS.get(target.suffix)
    if format_row is None and target.exists() and not target.is_file() and not target.is_dir():
        format_row = EXPORT_FORMATS[".eki"]
    if format_row is not None:
        return format_row
    suffixes = ", ".join(f"{suffix} ({row.description})" for suffix, row in EXPORT_FORMATS.items())
    actual = f"'{target.suffix}'" if target.suffix else "none"
    raise ExportError(
        f"write '{target}': the suffix decides what is written, got {actual}: {suffixes}"
    )


def write_artifact(
    data: Bytes, path: PathName, *, cc: str | None = None, options: Sequence[str] = ()
) -> None:
    """Write the bytes of an artifact, which need not run on this machine, in the format of `path`'s
    suffix; see `export_library`. Raises ExportError for WebAssembly as anything but an artifact.
    """
    request = _ExportRequest(_artifact_content(data), check_folder(path).absolute(), cc, options)
    _write_export(export_format_of(path), request)


def export_library(
    program: runtime.Executable | runtime.Module,
    path: PathName,
    *,
    cc: str | None = None,
    options: Sequence[str] = (),
    fcompile: object = None,
    name: str = "",
) -> None:
    """Export a model, or a module with its imports, in the format of the suffix: `.so` shared
    library, `.o` object, `.c` source, `.tar` sources with a Makefile, `.eki` artifact.

    Each function of the executable becomes a symbol `__tvm_ffi_<name>`, so that
    `ekiden.runtime.load_module(path)["main"]` runs it, `ek_module_load` does in C, and
    `tvm_ffi.load_module` of the published package. The library needs libc and threads alone.

    With a `name` the symbols are `__tvm_ffi_<name>_<function>`, so that several models go into one
    program as `.o` or `.c`. C functions that kernels call (`tir.call_extern`) are linked: `options`
    name the objects and libraries that have them.

    A module that imports others, or is none of an executable, has no artifact (`.eki`).
    `cc` is the C compiler; else $CC, cc, gcc or clang is taken, or that of the package ziglang.
    `options` go to its command line. `fcompile(output, files, options=[...])` makes a library in
    the place of a compiler, as in TVM, of C and the runtime (contrib.cc has such functions); with
    one the suffix may be any, and `cc` is handed on. Raises ExportError when there is no compiler
    or it fails, for another suffix, and for a module whose kind cannot be saved, such as a shared
    library.
    """
    function = _compile_function(path, fcompile)
    chosen = EXPORT_FORMATS[".so"] if function else export_format_of(path)
    if name and not re.fullmatch(r"[A-Za-z0-9_]+", name):
        raise ExportError(f"export library '{path}': a C identifier expected as name, got {name!r}")
    if name and chosen is EXPORT_FORMATS[ARTIFACT_SUFFIX]:
        raise ExportError(f"export library '{path}': an artifact has no symbols to name {name!r}")
    target = check_folder(path).absolute()
    if isinstance(program, runtime.Executable):
        content = _artifact_content(late_bound.complete_artifact_bytes(program))
    else:
        if chosen is EXPORT_FORMATS[".eki"] and (
            program.imported_modules or program.kind != "executable"
        ):
            raise ExportError(
                f"export library '{path}': modules are written as .so, .o, .c or .tar"
            )
        content = _module_content(program)
    prefix = f"{name}_" if name else ""
    _write_export(chosen, _ExportRequest(content, target, cc, options, function, prefix))


def _compile_function(path: PathName, fcompile: object) -> Callable[..., object] | None:
    """Return the user function that builds a library; None for None and TVM's False."""
    if not fcompile:
        return None
    if not callable(fcompile):
        raise ExportError(
            f"export library '{path}': fcompile must be a function (output, files, options), got "
            f"{fcompile!r}"
        )
    return fcompile


def _write_export(chosen: ExportFormat, request: _ExportRequest) -> None:
    """Write a request in a format. Raises ExportError for code that only an artifact can hold."""
    if request.architecture == WASM and chosen is not EXPORT_FORMATS[ARTIFACT_SUFFIX]:
        raise ExportError(
            f"write '{request.target}': code for {WASM} is written as {ARTIFACT_SUFFIX}, or by "
            "`ekiden web`"
        )
    chosen.write_file(request)


def serialize_module(module: runtime.Module) -> bytes:
    """Serialise a module and its transitive imports, each once, for `ek_module_from_bytes`. Raises
    ExportError for a kind that cannot be saved.
    """
    # Numbered once each, because imports may form a diamond.
    numbers = {importer: at for at, importer in enumerate(_collect_imports(module))}
    imports = [
        n
        for m in numbers
        for imported_module in m.imported_modules
        for n in (numbers[m], numbers[imported_module])
    ]
    images = [_serialize_one(unique_module) for unique_module in numbers]
    if len(images) == 1:
        return images[0]
    rows: list[int] = []
    at = len(_MODULES_MAGIC) + 16 + 16 * len(images) + 8 * len(imports)
    for image in images:
        at += -at % SECTION_ALIGNMENT_BYTES
        rows += (at, len(image))
        at += len(image)
    words = [len(images), *rows, len(imports) // 2, *imports]
    data = bytearray(_MODULES_MAGIC + struct.pack(f"<{len(words)}Q", *words))
    for image in images:
        data += bytes(-len(data) % SECTION_ALIGNMENT_BYTES) + image
    return bytes(data)


def _collect_imports(module: runtime.Module) -> list[runtime.Module]:
    """Return a module and its transitive imports, each once, nearest first."""
    request = {module: None}
    for importer in (waiting := [module]):
        waiting += [imported for imported in importer.imported_modules if imported not in request]
        request.update(dict.fromkeys(importer.imported_modules))
    return list(request)


def _serialize_one(module: runtime.Module) -> bytes:
    try:
        return module.to_bytes()
    except ValueError as error:
        raise ExportError(f"export library: {error}; import what it was made from") from error


def _library_source(request: _ExportRequest, file: str | None) -> str:
    """Return the C source of a library that embeds a program by including `file`."""
    content = request.content
    return library_source(len(content.data), content.names, content.externs, file, request.prefix)


def _runtime_inputs(request: _ExportRequest) -> list[str]:
    """Return the linker inputs of the runtime: the installed library, or its sources for another
    architecture.
    """
    if not request.is_foreign:
        return [str(static_library_path().resolve())]
    sources = map(str, sorted(source_dir().glob("*.c")))
    return ["-std=gnu11", f"-I{include_dir()}", *_STATIC_RUNTIME_FLAGS, *sources]


def _system_libraries(request: _ExportRequest) -> list[str]:
    """Return the system libraries that a model is linked with; libm where kernels call C
    functions.
    """
    return ["-pthread", "-ldl", *(("-lm",) if request.content.externs else ())]


def _compile_library(
    request: _ExportRequest, arguments: Sequence[str], is_program: bool = False
) -> None:
    """Compile library.c to the output file."""
    command = c_compiler_for("export library", request.architecture, request.cc)
    with tempfile.TemporaryDirectory(prefix="ekiden-export-") as folder:
        with rewrite_os_errors(f"export library '{request.target}': write to the folder", folder):
            Path(folder, _EMBEDDED_NAME).write_bytes(request.data)
            Path(folder, "library.c").write_text(_library_source(request, _EMBEDDED_NAME))
        # In a folder of its own: the compiler's temporary files never appear beside the user's.
        run_c_compiler(folder, [*command, *arguments], f"export library '{request.target}'")
        with open(Path(folder, "made"), "rb") as built:
            write_atomic(request.target, partial(shutil.copyfileobj, built), is_program)


def _call_fcompile(request: _ExportRequest, fcompile: Callable[..., object]) -> None:
    """Call the user's build function in a folder of its own, with absolute paths."""
    with tempfile.TemporaryDirectory(prefix="ekiden-export-") as folder:
        data, source, built = (Path(folder, n) for n in (_EMBEDDED_NAME, "library.c", "made"))
        data.write_bytes(request.data)
        source.write_text(_library_source(request, str(data)))
        linked = _runtime_inputs(request)
        files = [option for option in linked if not option.startswith("-")]
        flags = [path for path in linked if path.startswith("-")]
        options = [*_FCOMPILE_FLAGS, *flags, *request.options, *_system_libraries(request)]
        compiler = {} if request.cc is None else {"cc": request.cc}
        fcompile(str(built), [str(source), *files], options=options, **compiler)
        if not built.exists():
            raise ExportError(f"export library '{request.target}': fcompile made no '{built}'")
        with open(built, "rb") as file:
            write_atomic(request.target, partial(shutil.copyfileobj, file), is_program=True)


def c_compiler_for(what: str, architecture: str, cc: str | None = None) -> list[str]:
    """Return the command of a C compiler for an architecture: `cc`, $CC, or an installed one.
    Raises ExportError where there is none.
    """
    named = cc or os.environ.get("CC", "")
    if named.strip():
        return shlex.split(named)
    is_foreign = architecture != platform.machine()
    machine, _, system = DEFAULT_TRIPLES.get(architecture, f"{architecture}-linux-gnu").partition(
        "-"
    )
    foreign = f"{_COMPILER_PREFIXES.get(machine, machine)}-{system.removeprefix('unknown-')}"
    names = (f"{foreign}-gcc",) if is_foreign else ("cc", "gcc", "clang")
    for name in names:
        if shutil.which(name):
            return [name]
    # Zig brings headers and libc for all supported architectures, so it can cross-compile.
    if importlib.util.find_spec("ziglang") is not None:
        target_options = ["-target", foreign] if is_foreign else []
        return [sys.executable, "-m", "ziglang", "cc", *target_options]
    of = f" for {architecture}" if is_foreign else ""
    raise ExportError(
        f"{what}: a C compiler{of} expected ({', '.join(names[:-1])}"
        f"{' or ' * (len(names) > 1)}{names[-1]}), got none; install one, or: pip install ziglang"
    )


_COMPILER_PREFIXES = {"armv7": "arm"}
"""Prefix of cross compilers by architecture, where it is not the architecture's name."""


def run_c_compiler(folder: str, command: Sequence[str], what: str) -> None:
    """Run a C compiler in a folder. Raises ExportError with its messages."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    except OSError as error:
        raise ExportError(f"{what}: run '{command[0]}': {error}") from error
    if done.returncode != 0:
        shown = "\n".join(done.stderr.decode(errors="replace").splitlines()[:20])
        failure = f"\n{shown}" if shown else f" '{command[0]}' ended with {done.returncode}"
        raise ExportError(f"{what}: the C compiler failed:{failure}")
