"""Export of a model for browsers: the WebAssembly runtime, the JavaScript package, and the
artifact.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ekiden.codegen.llvm import wasm
from ekiden.compiler.export.library import run_c_compiler
from ekiden.ir.cache_folders import cache_folders
from ekiden.runtime.artifact.chunks import Bytes
from ekiden.runtime.artifact.container_format import artifact_metadata
from ekiden.runtime.artifact.metadata import target_variants
from ekiden.runtime.errors import ExportError
from ekiden.runtime.files import PathName, make_private_folder, rewrite_os_errors, write_atomic
from ekiden.runtime.paths import include_dir, source_dir, web_source_dir
from ekiden.target import Target
from ekiden.target.features import WASM

__all__ = [
    "RUNTIME_FILE", "THREADED_RUNTIME_FILE", "WEB_TARGETS", "build_runtime", "package_files",
    "web_targets",
    "write_web_folder",
]  # fmt: skip

WEB_TARGETS = tuple(
    f"llvm -mtriple=wasm32-unknown-unknown -mattr=+{feature}"
    for feature in ("relaxed-simd", "simd128")
)
"""Default targets of a web export; an engine loads the first variant that it supports."""
RUNTIME_FILE, THREADED_RUNTIME_FILE = "ekiden.wasm", "ekiden-threads.wasm"
WASM_COMPILER_FLAGS = (
    "-target", "wasm32-wasi", "-mexec-model=reactor", "-Os", "-std=gnu11", "-D_GNU_SOURCE",
    "-DEK_STATIC", "-Dgetenv=ek_web_getenv", "-DNDEBUG",
    "-fvisibility=hidden", "-ffunction-sections", "-fdata-sections", "-mbulk-memory",
    "-mnontrapping-fptoint", "-msign-ext", "-s", "-Wl,--export-dynamic", "-Wl,--export-table",
    "-Wl,--export=__stack_pointer",
)  # fmt: skip
"""Compiler flags of the runtime: small, freestanding, with a growable function table."""
FLAGS_BY_RUNTIME_FILE = {
    RUNTIME_FILE: (),
    THREADED_RUNTIME_FILE: (
        "-mcpu=generic+atomics+bulk_memory+mutable_globals+nontrapping_fptoint+sign_ext",
        "-Wl,--shared-memory", "-Wl,--import-memory", "-Wl,--initial-memory=33554432",
        "-Wl,--max-memory=4294901760", "-Wl,--export=__wasm_init_tls", "-Wl,--export=__tls_size",
    ),
}  # fmt: skip
"""Additional compiler flags per runtime file; the threaded one imports shared memory."""
TABLE_SECTION, BOUNDED_TABLE_TYPE = 4, b"\1\x70\1"


def web_targets(requested: Sequence[str]) -> list[str]:
    """Return the compile targets; WebAssembly host targets are added where only devices are
    requested.
    """
    is_said = any(Target.parse(target).kind.is_cpu for target in requested)
    return [*requested, *(() if is_said else WEB_TARGETS)]


def build_runtime(*, cc: str | None = None, name: str = RUNTIME_FILE) -> bytes:
    """Build the WebAssembly runtime, or return it from the cache if the sources are unchanged.

    Args:
        cc: a clang for wasm32-wasi with its C library; by default that of the package ziglang.
        name: RUNTIME_FILE or THREADED_RUNTIME_FILE.

    Returns:
        The module's bytes.

    Raises:
        ExportError: if there is no compiler or it fails.
    """
    command, sources = (
        [*_wasm_compiler(cc), *WASM_COMPILER_FLAGS, *FLAGS_BY_RUNTIME_FILE[name]],
        _runtime_sources(),
    )
    cached_file = _cached_output(command, sources)
    if cached_file is not None and cached_file.exists():
        return cached_file.read_bytes()
    folders = [f"-I{include_dir()}", f"-I{source_dir()}", f"-I{web_source_dir()}"]
    with tempfile.TemporaryDirectory(prefix="ekiden-web-") as folder:
        words = [*command, *folders, *map(str, sources), "-o", name]
        run_c_compiler(folder, words, f"build '{name}'")
        module = _remove_table_limit(Path(folder, name).read_bytes())
    if cached_file is not None:
        make_private_folder(cached_file.parent)
        write_atomic(cached_file, lambda file: file.write(module), is_owners=True)
    return module


def package_files() -> list[str]:
    """Return the files of the package `ekiden-web`, besides the runtimes."""
    about = json.loads((web_source_dir() / "package.json").read_text())
    return ["package.json", *(name for name in about["files"] if name not in FLAGS_BY_RUNTIME_FILE)]


def write_web_folder(data: Bytes, folder: PathName, *, cc: str | None = None) -> None:
    """Write a folder for a web server: the runtime, `ekiden-web`, and the bytes of an artifact as
    `model.eki`. Files that are there are replaced, others stay.

    Raises ExportError for an artifact without code for WebAssembly, and as `build_runtime`.
    """
    targets = [Target.parse(text or "llvm") for text in target_variants(artifact_metadata(data))]
    if all(target.architecture != WASM for target in targets):
        architectures = ", ".join(target.architecture for target in targets)
        raise ExportError(
            f"write '{folder}': code for {WASM} expected, got {architectures}; compile the "
            "model for "
            f"{WEB_TARGETS[-1]!r}"
        )
    site_folder, runtimes = (
        Path(folder),
        {name: build_runtime(cc=cc, name=name) for name in FLAGS_BY_RUNTIME_FILE},
    )
    with rewrite_os_errors("write", folder):
        site_folder.mkdir(parents=True, exist_ok=True)
    for name in package_files():
        shutil.copyfile(web_source_dir() / name, site_folder / name)
    for name, runtime in runtimes.items():
        write_atomic(site_folder / name, lambda file, code=runtime: file.write(code))  # type: ignore[misc]
    write_atomic(site_folder / "model.eki", lambda file: file.write(data))


def _wasm_compiler(cc: str | None) -> list[str]:
    if cc:
        return shlex.split(cc)
    if importlib.util.find_spec("ziglang") is None:
        raise ExportError(
            f"build '{RUNTIME_FILE}': a C compiler for WebAssembly expected, got none: "
            "pip install ziglang"
        )
    return [sys.executable, "-m", "ziglang", "cc"]


def _runtime_sources() -> list[Path]:
    """Return the runtime's sources, with the system layer replaced for WebAssembly."""
    own = sorted(web_source_dir().glob("*.c"))
    names = {path.name for path in own}
    return [*(p for p in sorted(source_dir().glob("*.c")) if p.name not in names), *own]


def _cached_output(command: Sequence[str], sources: Sequence[Path]) -> Path | None:
    """Return the cache path of a command's output for its sources; None without a cache."""
    home, _ = cache_folders()
    if home is None:
        return None
    hasher = hashlib.sha256(repr(tuple(command)).encode())
    headers = [*sorted(include_dir().rglob("*.h")), *sorted(source_dir().glob("*.[hd]*"))]
    headers += sorted(web_source_dir().glob("*.h"))
    for path in (*sources, *headers):
        hasher.update(path.read_bytes())
    return Path(home, "web") / f"{hasher.hexdigest()[:32]}.wasm"


def _remove_table_limit(module: bytes) -> bytes:
    """Remove the size limit of a module's function table, since linkers size it for the module's
    own functions and models add theirs.
    """
    sections = [wasm.WASM_MAGIC]
    for number, content in wasm.iter_sections(module):
        if number == TABLE_SECTION and content.startswith(BOUNDED_TABLE_TYPE):
            table_limits = content[len(BOUNDED_TABLE_TYPE) :]
            end = next(i for i, byte in enumerate(table_limits) if byte < 0x80) + 1
            content = b"\1\x70\0" + table_limits[:end]
        sections.append(wasm.encode_section(number, content))
    return b"".join(sections)
