"""`ekiden compile MODEL -o FILE`"""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import AbstractContextManager, nullcontext, redirect_stdout

from ekiden.driver.commands.options import (
    add_decisions,
    add_output,
    add_target,
    decisions_config,
    parse_shapes,
)
from ekiden.driver.compiler import compile_artifact, records_config
from ekiden.driver.library import format_of, write_artifact
from ekiden.frontend.common.options import ImportOptions
from ekiden.ir.instrument import PassTimingInstrument
from ekiden.ir.pass_context import DENORMALS, DENORMALS_KINDS, PRECISION, SIZE
from ekiden.ir.transform import PassContext
from ekiden.runtime.artifact import metadata_of
from ekiden.runtime.files import check_folder
from ekiden.runtime.metadata import tensor_infos
from ekiden.target.virtual_device import with_bounds


def arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("model", help="a model: an ONNX file")
    add_output(parser)
    add_target(parser)
    parser.add_argument(
        "--precision",
        choices=("float32", "bfloat16"),
        default="float32",
        help="of the operands of dense layers, where the processor multiplies it",
    )
    parser.add_argument(
        "--bounds",
        choices=("check",),
        default="",
        help="compare every access of a buffer with its extent: slow, to find faults of kernels",
    )
    add_decisions(parser)
    parser.add_argument(
        "--records",
        action="append",
        metavar="FILE",
        help="what `ekiden tune` has found, else the files of EKIDEN_RECORDS",
    )
    parser.add_argument(
        "--size",
        choices=("small",),
        default="",
        help="keep weights as large as they are in the model; loading takes a little longer",
    )
    parser.add_argument(
        "--denormals",
        choices=DENORMALS_KINDS,
        default="keep",
        help="whether kernels flush subnormal numbers to 0",
    )
    parser.add_argument("--timing", action="store_true", help="say what took how long")


def run(options: argparse.Namespace) -> int:
    """Compile, write, and say what the model takes and gives. The code need not run here."""
    format_of(options.output)
    check_folder(options.output)
    started = time.perf_counter()
    asked = ImportOptions(parse_shapes(options.shape) or None)
    timing = PassTimingInstrument()
    config = decisions_config(options) | records_config(options.records)
    if options.precision != "float32":
        config[PRECISION] = options.precision
    if options.size:
        config[SIZE] = options.size
    if options.denormals != "keep":
        config[DENORMALS] = options.denormals
    with PassContext(config=config, instruments=[timing] if options.timing else []):
        target = with_bounds(options.target or "llvm", options.bounds)
        found = compile_artifact(options.model, target, asked)
    made = found if isinstance(found, memoryview) else found.to_bytes()
    write_artifact(made, options.output, cc=options.cc)
    with beside(options.output):
        print_written(options.output, len(made), time.perf_counter() - started)
        described = tensor_infos(metadata_of(made), str(options.output))
        for what, infos in zip(("input", "output"), described, strict=True):
            for info in infos:
                print(f"  {what} {info}")
        if options.timing:
            print(timing.render())
    return 0


def beside(path: str) -> AbstractContextManager[object]:
    """What is printed then goes to standard error where the file is a device or a pipe, which may
    be standard output.
    """
    return nullcontext() if os.path.isfile(path) else redirect_stdout(sys.stderr)


def print_written(path: str, size: int, seconds: float) -> None:
    """The size of a file; of the artifact, where the path is a device."""
    size = os.path.getsize(path) if os.path.isfile(path) else size
    print(f"{path}: {size / 1e6:.1f} MB in {seconds:.1f} s")
