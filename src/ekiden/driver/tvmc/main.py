"""Command line of `tvmc`."""

from __future__ import annotations

import argparse
import logging
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ekiden import __version__
from ekiden.driver.tvmc import autotuner, compiler, frontends, runner
from ekiden.driver.tvmc.model import TVMCPackage
from ekiden.relay.backend import Executor, Runtime
from ekiden.runtime.errors import EkidenError, InputError
from ekiden.target.kinds import TARGET_KINDS

__all__ = ["main", "parse_shapes"]

TARGET_OPTIONS = ("mcpu", "mattr", "mtriple", "mabi", "model", "num-cores")
"""Options of `--target-KIND-OPTION`."""
EXECUTOR_OPTIONS: Mapping[str, str] = {
    "graph-link-params": "graph", "aot-link-params": "aot", "aot-unpacked-api": "aot",
    "aot-interface-api": "aot", "aot-workspace-byte-alignment": "aot",
    "aot-constant-byte-alignment": "aot",
}  # fmt: skip
"""Option of `--executor-OPTION` -> the executor that has it."""


def parse_shapes(text: str) -> dict[str, list[int]]:
    """Parse input shapes such as "x:[1,3,224,224] y:[1,10]". Raises InputError."""
    pattern = r"(?:[\w./:;-]+|\"[^\"]+\"):\s*\[\s*-?\d+(?:\s*,\s*-?\d+)*\s*\]"
    found = re.findall(pattern, text)
    if not found or re.sub(pattern, "", text).strip():
        raise InputError(f"tvmc: --input-shapes 'x:[1,3,224,224] y:[1,10]' expected, got '{text}'")
    shapes = {}
    for item in found:
        name, _, dims = item.rpartition(":")
        shapes[name.strip('"')] = [int(d) for d in dims.strip(" []").split(",")]
    return shapes


def _build_parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="tvmc", description="Load, tune, compile and run models.")
    top.add_argument("-v", "--verbose", action="count", default=0, help="log more")
    top.add_argument("--version", action="version", version=f"ekiden {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    _add_compile_command(commands.add_parser("compile", help="compile a model into a package"))
    _add_run_command(commands.add_parser("run", help="run a package"))
    _add_tune_command(commands.add_parser("tune", help="search for faster kernels of a model"))
    return top


def _add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("FILE", help="the model")
    parser.add_argument("--model-format", choices=frontends.get_frontend_names())
    parser.add_argument("--input-shapes", type=parse_shapes, help="such as 'x:[1,3] y:[2,4]'")
    parser.add_argument("--target", default="llvm", help="the target")
    parser.add_argument("--target-host", help="the target's host")
    for kind in sorted(TARGET_KINDS):
        for option in TARGET_OPTIONS:
            parser.add_argument(f"--target-{kind}-{option}", help=argparse.SUPPRESS)
    parser.add_argument("-v", "--verbose", action="count", default=0, help=argparse.SUPPRESS)


def _add_compile_command(parser: argparse.ArgumentParser) -> None:
    _add_model_arguments(parser)
    add = parser.add_argument
    add("-o", "--output", default="module.tar", help="the package (module.tar)")
    add("-f", "--output-format", choices=compiler.OUTPUT_FORMATS, default="so")
    add("-O", "--opt-level", type=int, choices=range(4), default=3)
    add("--cross-compiler", default="", help="the C compiler that links the library")
    add("--cross-compiler-options", default="", help="its options")
    add("--dump-code", default="", help="relay, tir, ll or asm, also with commas between them")
    add("--pass-config", action="append", metavar="NAME=VALUE", help="an option of a pass")
    add("--disabled-pass", help="passes that do not run, with commas between them")
    add("--tuning-records", help="the records that kernels are chosen by")
    add("--desired-layout", choices=("NCHW", "NHWC"), help="the layout of convolutions")
    add("--desired-layout-ops", nargs="+", help="the operators that have it")
    add("--executor", choices=("graph", "aot"), default="graph")
    add("--runtime", choices=("cpp", "crt"), default="cpp")
    add("--runtime-cpp-system-lib", type=int, help=argparse.SUPPRESS)
    add("--runtime-crt-system-lib", type=int, help=argparse.SUPPRESS)
    for option in EXECUTOR_OPTIONS:
        add(f"--executor-{option}", help=argparse.SUPPRESS)
    add("--module-name", default="default", help="the name of the module")
    add("--print-pass-times", action="store_true", help="print the times of passes")
    add("--print-ir-before", help="passes before which the module is printed")
    add("--print-ir-after", help="passes after which the module is printed")
    parser.set_defaults(func=_compile)


def _add_run_command(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("PATH", help="the package")
    add = parser.add_argument
    add("-v", "--verbose", action="count", default=0, help=argparse.SUPPRESS)
    add("--device", choices=runner.DEVICES, default="cpu")
    add("--fill-mode", choices=runner.FILL_MODES, default="random", help="inputs that lack")
    add("-i", "--inputs", help="an .npz file of inputs")
    add("-o", "--outputs", help="an .npz file for outputs")
    add("--print-time", action="store_true", help="print the times of runs")
    add("--print-top", type=int, metavar="N", help="print the N largest values of each output")
    add("--profile", action="store_true", help="print a report by kernels")
    add("--end-to-end", action="store_true", help="count the copies of inputs and outputs")
    add("--repeat", type=int, default=1, help="how many times are measured")
    add("--number", type=int, default=1, help="of how many runs each is the mean")
    add("--rpc-key", help="the key of a server at a tracker")
    add("--rpc-tracker", help="HOST:PORT of the tracker")
    parser.set_defaults(func=_run)


def _add_tune_command(parser: argparse.ArgumentParser) -> None:
    _add_model_arguments(parser)
    add = parser.add_argument
    add("-o", "--output", required=True, help="the file of the records")
    add("--early-stopping", type=int, help=argparse.SUPPRESS)
    add("--min-repeat-ms", type=int, help="milliseconds of a measurement, at least")
    add("--number", type=int, default=10, help=argparse.SUPPRESS)
    add("--repeat", type=int, default=1, help=argparse.SUPPRESS)
    add("--parallel", type=int, help="processes that compile")
    add("--rpc-key", help="the key of a server at a tracker")
    add("--rpc-tracker", help="HOST:PORT of the tracker")
    add("--timeout", type=int, default=30, help="seconds of a process that measures")
    add("--trials", type=int, default=1000, help="how many candidates are tried")
    add("--tuning-records", help="records of an earlier run")
    add("--enable-autoscheduler", action="store_true", help=argparse.SUPPRESS)
    add("--tasks", default="all", help="numbers of tasks such as '0,2-4'; 'list' prints them")
    add("--tuner", choices=tuple(autotuner.TUNERS), default="xgb")
    parser.set_defaults(func=_tune)


def _parse_target_options(options: argparse.Namespace) -> dict[str, dict[str, object]]:
    values: dict[str, dict[str, object]] = {}
    for kind in TARGET_KINDS:
        for option in TARGET_OPTIONS:
            value = getattr(options, f"target_{kind}_{option}".replace("-", "_"), None)
            if value is not None:
                values.setdefault(kind, {})[option] = value
    return values


def _parse_executor(options: argparse.Namespace) -> Executor:
    given: dict[str, Any] = {}
    for option, of in EXECUTOR_OPTIONS.items():
        value = getattr(options, f"executor_{option}".replace("-", "_"))
        if value is not None:
            if of != options.executor:
                raise InputError(f"tvmc: --executor-{option} is of the executor '{of}'")
            given[option.partition("-")[2]] = _parse_option(value)
    return Executor(options.executor, given)


def _parse_option(text: str) -> object:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return int(text) if text.isdigit() else text


def _compile(options: argparse.Namespace) -> None:
    model = frontends.load_model(options.FILE, options.model_format, options.input_shapes)
    system_lib = getattr(options, f"runtime_{options.runtime}_system_lib")
    how = {"system-lib": bool(system_lib)} if system_lib is not None else {}
    compiler.compile_model(
        model,
        options.target,
        opt_level=options.opt_level,
        executor=_parse_executor(options),
        runtime=Runtime(options.runtime, how),
        tuning_records=options.tuning_records,
        package_path=options.output,
        cross=options.cross_compiler or None,
        cross_options=options.cross_compiler_options,
        output_format=options.output_format,
        dump_code=[kind for kind in options.dump_code.split(",") if kind],
        target_host=options.target_host,
        disabled_pass=options.disabled_pass,
        pass_context_configs=options.pass_config,
        additional_target_options=_parse_target_options(options),
        mod_name=options.module_name,
        desired_layout=options.desired_layout,
        desired_layout_ops=options.desired_layout_ops,
        print_pass_times=options.print_pass_times,
        print_ir_before=options.print_ir_before.split(",") if options.print_ir_before else None,
        print_ir_after=options.print_ir_after.split(",") if options.print_ir_after else None,
    )


def _parse_tracker(options: argparse.Namespace) -> tuple[str | None, int]:
    host, _, port = (options.rpc_tracker or "").partition(":")
    if port and not port.isdigit():
        raise InputError(f"tvmc: --rpc-tracker: HOST:PORT expected, got '{options.rpc_tracker}'")
    return host or None, int(port or 9090)


def _run(options: argparse.Namespace) -> None:
    host, port = _parse_tracker(options)
    inputs: Mapping[str, Any] = np.load(options.inputs) if options.inputs else {}
    result = runner.run_module(
        TVMCPackage(options.PATH), options.device, host, port, options.rpc_key, dict(inputs),
        options.fill_mode, options.repeat, options.number, options.profile, options.end_to_end,
    )  # fmt: skip
    if options.print_time:
        print(result.format_times())
    for name, output in result.outputs.items() if options.print_top else ():
        # The largest first; indices of the flattened output, as TVM prints them.
        order = np.argsort(output, axis=None)[::-1][: options.print_top]
        print(f"{name}:\n{np.array((order, output.flatten()[order]))}")
    if options.outputs:
        np.savez(options.outputs, **result.outputs)  # type: ignore[arg-type]


def _tune(options: argparse.Namespace) -> None:
    host, port = _parse_tracker(options)
    model = frontends.load_model(options.FILE, options.model_format, options.input_shapes)
    autotuner.tune_model(
        model,
        options.target,
        tuning_records=options.output,
        prior_records=options.tuning_records,
        hostname=host,
        port=port,
        rpc_key=options.rpc_key,
        trials=options.trials,
        target_host=options.target_host,
        tuner=options.tuner,
        min_repeat_ms=options.min_repeat_ms,
        timeout=options.timeout,
        parallel=options.parallel,
        additional_target_options=_parse_target_options(options),
        tasks_filter=options.tasks,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code, 1 with a message for an error."""
    parser = _build_parser()
    try:
        options = parser.parse_args(argv)
        logging.basicConfig(level=max(logging.WARNING - 10 * options.verbose, logging.DEBUG))
        if options.command is None:
            parser.print_help(sys.stderr)
            return 1
        options.func(options)
    except (EkidenError, OSError) as error:
        sys.stderr.write(f"tvmc: {str(error).removeprefix('tvmc: ')}\n")
        return 1
    return 0
