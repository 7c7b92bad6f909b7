"""`ekiden compile MODEL -o FILE`"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout

from ekiden.cli.micro_library import (
    add_model_library_arguments,
    is_model_library,
    write_model_library,
)
from ekiden.cli.options import (
    add_decision_argument,
    add_output_arguments,
    add_target_arguments,
    parse_decisions,
    parse_shapes,
)
from ekiden.compiler.artifact import compile_artifact
from ekiden.compiler.export.library import export_format_of, write_artifact
from ekiden.compiler.options import CompileOptions
from ekiden.frontend.common.options import ImportOptions
from ekiden.frontend.registry import identify_model
from ekiden.ir.pass_context import DENORMALS_KINDS, FLOAT_REWRITES_KINDS
from ekiden.ir.timings import Timings
from ekiden.ir.transform import PassContext
from ekiden.runtime import Device
from ekiden.runtime.artifact.container_format import artifact_metadata
from ekiden.runtime.artifact.metadata import EXECUTOR_KINDS, placement_summary, tensor_infos
from ekiden.runtime.errors import CompileError
from ekiden.runtime.files import check_folder, write_text
from ekiden.target import Target, TargetLike
from ekiden.target.virtual_device import DeviceLike, Targets


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "model", help="a model file or folder of a supported format (docs/frontends.md)"
    )
    add_output_arguments(parser)
    add_target_arguments(parser)
    parser.add_argument(
        "--precision",
        choices=("float32", "bfloat16"),
        default="float32",
        help="precision of dense layers' operands, where the processor supports it",
    )
    parser.add_argument(
        "--bounds",
        choices=("check",),
        default="",
        help="check every buffer access against the buffer's size; slow, for debugging kernels",
    )
    add_decision_argument(parser)
    parser.add_argument(
        "--records",
        action="append",
        metavar="FILE",
        help="tuning records of `ekiden tune` (default: the files in EKIDEN_RECORDS)",
    )
    parser.add_argument(
        "--size",
        choices=("small",),
        default="",
        help="store weights at their size in the model; loading takes a little longer",
    )
    parser.add_argument(
        "--denormals",
        choices=DENORMALS_KINDS,
        default="keep",
        help="whether kernels flush subnormal numbers to 0",
    )
    parser.add_argument(
        "--float-rewrites",
        choices=FLOAT_REWRITES_KINDS,
        default="rounded",
        help="how far rewrites may change results: not at all, by rounding, or without bound",
    )
    parser.add_argument(
        "--executor",
        choices=EXECUTOR_KINDS,
        default="vm",
        help="how the artifact runs: native code (aot), independent kernels at once (async),"
        " bytecode (vm)",
    )
    parser.add_argument(
        "--byoc",
        default="",
        metavar="ENGINE",
        help="the engine that runs regions of the model: onnxruntime, openvino; auto: the "
        "regions where an engine measures faster than Ekiden on this machine",
    )
    parser.add_argument(
        "--devices",
        choices=("auto",),
        default="",
        help="measure the model on the devices of each --target, or on all that are here, and over "
        "the host and each of them, and write the fastest",
    )
    add_model_library_arguments(parser)
    parser.add_argument(
        "--timings",
        action="store_true",
        help="print the time of each phase and pass, including the processes that compile kernels",
    )
    parser.add_argument(
        "--timings-file",
        metavar="FILE",
        help="write these times as JSON, or as a flame chart for speedscope.app (.speedscope.json)",
    )


def run(options: argparse.Namespace) -> int:
    """Compile and write the model, and print its inputs and outputs. The code need not run on this
    machine.
    """
    if is_model_library(options):
        return write_model_library(options)
    export_format_of(options.output).check_compiler(options.output, options.cc)
    # Before the compilation, which may take minutes.
    check_folder(options.output)
    started = time.perf_counter()
    compile_options = _parse_compile_options(options)
    timings = _make_timings(options)
    with PassContext(
        config=compile_options.pass_options(), instruments=[timings] if timings else []
    ):
        data = compile_artifact(identify_model(options.model), compile_options).to_bytes()
    write_artifact(data, options.output, cc=options.cc)
    with redirect_stdout_for_stream(options.output):
        print_artifact_size(options.output, len(data), time.perf_counter() - started)
        metadata = artifact_metadata(data)
        described = tensor_infos(metadata, str(options.output))
        for what, infos in zip(("input", "output"), described, strict=True):
            for info in infos:
                print(f"  {what} {info}")
        if placement := placement_summary(metadata):
            print(f"  devices {placement}")
        if options.timings and timings is not None:
            print(timings.format_table())
    if options.timings_file and timings is not None:
        is_chart = options.timings_file.endswith(".speedscope.json")
        write_text(options.timings_file, timings.flame_chart() if is_chart else timings.as_json())
    return 0


def _parse_compile_options(options: argparse.Namespace) -> CompileOptions:
    """Return the `CompileOptions` for the parsed arguments."""
    if options.devices and options.bounds:
        raise CompileError("--devices auto takes no --bounds")
    targets = (
        _parse_device_targets(options.target or ()) if options.devices else options.target or "llvm"
    )
    return CompileOptions(
        targets,
        ImportOptions(parse_shapes(options.shape) or None),
        executor=options.executor,
        devices=options.devices,
        bounds=options.bounds,
        size=options.size,
        denormals=options.denormals,
        float_rewrites="" if options.float_rewrites == "rounded" else options.float_rewrites,
        precision="" if options.precision == "float32" else options.precision,
        byoc=options.byoc,
        decisions=parse_decisions(options),
        records=options.records,
    )


def _parse_device_targets(texts: Sequence[str]) -> Targets:
    """Return each target on the first device of its kind; None stands for all devices present.
    Raises CompileError for two targets of one device.
    """
    by_device: dict[DeviceLike, TargetLike | Sequence[TargetLike]] = {}
    for target in map(Target, texts):
        device = Device(target.kind.device_type, 0)
        if device in by_device:
            raise CompileError(
                "--devices auto: one target for each device expected, got "
                f"{str(by_device[device])!r} "
                f"and {str(target)!r} for {device}"
            )
        by_device[device] = target
    return by_device or None


def _make_timings(options: argparse.Namespace) -> Timings | None:
    """Return a pass-timing instrument that already counts the process's start-up time, or None if
    none was requested.
    """
    if not (options.timings or options.timings_file):
        return None
    if options.timings_file:
        check_folder(options.timings_file)
    timings = Timings()
    # Importing the compiler precedes the instrument, yet belongs to the command's time.
    timings.add("start", time.process_time(), time.process_time())
    return timings


def redirect_stdout_for_stream(path: str) -> AbstractContextManager[object]:
    """Redirect printing to standard error if the output file is a device or pipe, which may be
    standard output.
    """
    return nullcontext() if os.path.isfile(path) else redirect_stdout(sys.stderr)


def print_artifact_size(path: str, size: int, seconds: float) -> None:
    """Print the size of the written file, or of the artifact if the path is a device."""
    size = os.path.getsize(path) if os.path.isfile(path) else size
    print(f"{path}: {size / 1e6:.1f} MB in {seconds:.1f} s")
