"""`ekiden web MODEL -o FOLDER`: write a model with all files that a web page needs to run it."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from ekiden.cli.options import MODEL_FILE_HELP, is_artifact, parse_shapes
from ekiden.compiler.artifact import compile_artifact
from ekiden.compiler.export.web import (
    RUNTIME_FILE,
    THREADED_RUNTIME_FILE,
    package_files,
    web_targets,
    write_web_folder,
)
from ekiden.compiler.options import CompileOptions
from ekiden.frontend.common.options import ImportOptions
from ekiden.frontend.registry import identify_model
from ekiden.runtime.errors import InputError
from ekiden.runtime.files import rewrite_os_errors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("file", help=MODEL_FILE_HELP)
    parser.add_argument("-o", "--output", required=True, metavar="FOLDER", help="what is written")
    parser.add_argument(
        "--target",
        action="append",
        metavar="'llvm -mtriple=wasm32 ...'",
        help="what to compile for, the best first; else with and without relaxed vectors, which "
        "stand beside 'webgpu' too",
    )
    parser.add_argument(
        "--shape", action="append", default=[], metavar="NAME=1,3,224,224",
        help="the shape of an input, instead of the one the model says",
    )  # fmt: skip
    parser.add_argument("--cc", help="a clang for wasm32-wasi, else that of the package ziglang")


def run(options: argparse.Namespace) -> int:
    """Compile a model, or take an artifact, and write the folder. Raises InputError for compilation
    options with an artifact.
    """
    started = time.perf_counter()
    data: bytes | memoryview
    if is_artifact(options.file):
        if options.target or options.shape:
            raise InputError(
                "an artifact is already compiled: --target and --shape apply to models"
            )
        with rewrite_os_errors("read", options.file):
            data = Path(options.file).read_bytes()
    else:
        import_options = ImportOptions(parse_shapes(options.shape) or None)
        compile_options = CompileOptions(web_targets(options.target or ()), import_options)
        data = compile_artifact(identify_model(options.file), compile_options).to_bytes()
    write_web_folder(data, options.output, cc=options.cc)
    folder = Path(options.output)
    for name in (RUNTIME_FILE, THREADED_RUNTIME_FILE, *package_files(), "model.eki"):
        print(f"  {folder / name}: {(folder / name).stat().st_size:,} bytes")
    print(f"{folder}: in {time.perf_counter() - started:.1f} s")
    return 0
