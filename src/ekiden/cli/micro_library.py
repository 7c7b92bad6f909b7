"""`ekiden compile MODEL --executor aot --runtime crt -f mlf -o model.tar`"""

from __future__ import annotations

import argparse
import os
import time

from ekiden._lazy import load_module
from ekiden.backend.crt.micro_module import MicroModule, Pool
from ekiden.cli.options import decisions_config, parse_decimal, parse_key_value, parse_shapes
from ekiden.ir.transform import PassContext
from ekiden.runtime.errors import InputError
from ekiden.runtime.files import check_folder

DEFAULT_MODULE_NAME = "default"
"""The name of a model that is given none (TVM's)."""
UNSUPPORTED_AOT_OPTIONS = (
    "cc",
    "bounds",
    "records",
    "size",
    "byoc",
    "devices",
    "timings",
    "timings_file",
)
"""Options of an artifact that C without the runtime has no use for; beside those that have a value
by default."""


def add_model_library_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a model library."""
    parser.add_argument(
        "--runtime",
        choices=("cpp", "crt"),
        default="cpp",
        help="the runtime that the code needs: Ekiden's (cpp), or none (crt), for microcontrollers",
    )
    parser.add_argument(
        "-f",
        "--output-format",
        choices=("mlf",),
        help="Model Library Format, a tar of C: with --runtime crt and --executor aot",
    )
    parser.add_argument(
        "--module-name", default=DEFAULT_MODULE_NAME, help="with mlf: the prefix of C names"
    )
    parser.add_argument(
        "--workspace-pools",
        default="",
        metavar="NAME[=BYTES],...",
        help="with mlf: memory pools that the caller provides, in order of preference, and "
        "their sizes",
    )
    parser.add_argument(
        "--footprint",
        action="store_true",
        help="with mlf: compile the C code for the target and print the bytes of code and stack",
    )


def is_model_library(options: argparse.Namespace) -> bool:
    """Return whether the arguments request a Model Library Format archive. Raises InputError for
    incomplete requests.
    """
    if options.runtime == "cpp" and not options.output_format:
        if (
            options.module_name != DEFAULT_MODULE_NAME
            or options.workspace_pools
            or options.footprint
        ):
            raise InputError("--module-name, --workspace-pools and --footprint need -f mlf")
        return False
    if options.runtime != "crt" or options.output_format != "mlf" or options.executor != "aot":
        raise InputError("a model library needs all three of --executor aot --runtime crt -f mlf")
    return True


def write_model_library(options: argparse.Namespace) -> int:
    """Compile and write a Model Library Format archive, printing the memory that the model
    needs.
    """
    _validate_options(options)
    check_folder(options.output)
    started = time.perf_counter()
    targets = options.target or ["c"]
    if len(targets) > 1:
        raise InputError("--target: a model library has one target")
    with PassContext(config=decisions_config(options)):
        program = load_module("ekiden.compiler.export.micro").compile(
            options.model,
            targets[0],
            shape=parse_shapes(options.shape) or None,
            name=options.module_name,
            pools=_parse_workspace_pools(options.workspace_pools),
        )
    load_module("ekiden.compiler.export.model_library").export_model_library_format(
        program, options.output
    )
    size, seconds = os.path.getsize(options.output), time.perf_counter() - started
    print(f"{options.output}: {size / 1e6:.1f} MB in {seconds:.1f} s")
    for line in format_memory_summary(program.module):
        print(f"  {line}")
    if options.footprint:
        for line in load_module("ekiden.micro.footprint").footprint(program).lines():
            print(f"  {line}")
    return 0


def _validate_options(options: argparse.Namespace) -> None:
    """Raise InputError for an option that this output format does not support."""
    used = [name for name in UNSUPPORTED_AOT_OPTIONS if getattr(options, name)]
    used += ["precision"] if options.precision != "float32" else []
    used += ["denormals"] if options.denormals != "keep" else []
    used += ["float_rewrites"] if options.float_rewrites != "rounded" else []
    if used:
        raise InputError(f"--{used[0].replace('_', '-')}: not supported for a model library")


def _parse_workspace_pools(text: str) -> list[Pool]:
    """Parse `--workspace-pools`. Raises InputError."""
    pools: list[Pool] = []
    for entry in filter(None, text.split(",")):
        name, size = parse_key_value(entry, "NAME=BYTES") if "=" in entry else (entry, "")
        limit = parse_decimal(size)
        if (size and limit is None) or not name.isidentifier():
            raise InputError(f"--workspace-pools: NAME or NAME=BYTES expected, got '{entry}'")
        if name in [p.name for p in pools]:
            raise InputError(f"--workspace-pools: '{name}' is given twice")
        pools.append(Pool(name, limit))
    return pools


def format_memory_summary(module: MicroModule) -> list[str]:
    """Return the lines of a program's memory summary: constants, workspace and
    input/output bytes.
    """
    lines = [f"input {t.name}: {t.dtype}{list(t.shape)}" for t in module.inputs]
    lines += [f"output {t.name}: {t.dtype}{list(t.shape)}" for t in module.outputs]
    lines.append(f"constants {module.constant_bytes} bytes, read-only")
    for pool in module.pools:
        limit = "" if pool.limit is None else f" of {pool.limit}"
        lines.append(f"memory {pool.name} {pool.used}{limit} bytes")
    return lines
