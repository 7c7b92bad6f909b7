"""Command line of `tvmc`."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ekiden import __version__
from ekiden.driver.tvmc import autotuner, compiler, frontends, runner
from ekiden.driver.tvmc.config_options import set_config_defaults
from ekiden.driver.tvmc.model import TVMCPackage
from ekiden.driver.tvmc.pass_list import parse_pass_list_str
from ekiden.driver.tvmc.registry import generate_registry_args, reconstruct_registry_entity
from ekiden.driver.tvmc.result_utils import get_top_results
from ekiden.driver.tvmc.shape_parser import parse_shape_string
from ekiden.driver.tvmc.target import (
    generate_target_args,
    reconstruct_target_args,
    target_from_cli,
)
from ekiden.driver.tvmc.tracker import DEFAULT_TRACKER_PORT, tracker_host_port_from_cli
from ekiden.driver.tvmc.transform import generate_transform_args, parse_graph_transform_args
from ekiden.driver.tvmc.workspace_pools import (
    generate_workspace_pools_args,
    workspace_pools_recombobulate,
)
from ekiden.relay.backend import Executor, Runtime
from ekiden.runtime.errors import EkidenError

__all__ = ["main"]


def _build_parser() -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """Return the parser, and those of its commands by name."""
    top = argparse.ArgumentParser(prog="tvmc", description="Load, tune, compile and run models.")
    top.add_argument("-v", "--verbose", action="count", default=0, help="log more")
    top.add_argument("--version", action="version", version=f"ekiden {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    _add_compile_command(commands.add_parser("compile", help="compile a model into a package"))
    _add_run_command(commands.add_parser("run", help="run a package"))
    _add_tune_command(commands.add_parser("tune", help="search for faster kernels of a model"))
    for command in commands.choices.values():
        command.add_argument("--config", help="a JSON file of arguments, or its name")
    return top, commands.choices


def _add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("FILE", help="the model")
    parser.add_argument("--model-format", choices=frontends.get_frontend_names())
    parser.add_argument("--input-shapes", type=parse_shape_string, help="such as 'x:[1,3] y:[2,4]'")
    generate_target_args(parser)
    parser.add_argument("--target-host", help="the target's host")
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
    add("--disabled-pass", type=parse_pass_list_str, help="passes that do not run: NAME,NAME")
    add("--tuning-records", help="the records that kernels are chosen by")
    generate_transform_args(parser)
    generate_registry_args(parser, Executor, "graph")
    generate_registry_args(parser, Runtime, "cpp")
    generate_workspace_pools_args(parser)
    add("--module-name", default="default", help="the name of the module")
    add("--print-pass-times", action="store_true", help="print the times of passes")
    add("--print-ir-before", type=parse_pass_list_str, help="passes before which it is printed")
    add("--print-ir-after", type=parse_pass_list_str, help="passes after which it is printed")
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


def _compile(options: argparse.Namespace) -> None:
    model = frontends.load_model(options.FILE, options.model_format, options.input_shapes)
    target_options = reconstruct_target_args(options)
    target, codegens = target_from_cli(options.target, target_options)
    targets = [target] if target.host is None else [target, target.host]
    compiler.compile_model(
        model,
        options.target,
        opt_level=options.opt_level,
        executor=reconstruct_registry_entity(options, Executor) or "graph",
        runtime=reconstruct_registry_entity(options, Runtime) or "cpp",
        tuning_records=options.tuning_records,
        package_path=options.output,
        cross=options.cross_compiler or None,
        cross_options=options.cross_compiler_options,
        output_format=options.output_format,
        dump_code=[kind for kind in options.dump_code.split(",") if kind],
        target_host=options.target_host,
        disabled_pass=options.disabled_pass,
        pass_context_configs=options.pass_config,
        additional_target_options=target_options,
        mod_name=options.module_name,
        print_pass_times=options.print_pass_times,
        print_ir_before=options.print_ir_before,
        print_ir_after=options.print_ir_after,
        workspace_pools=workspace_pools_recombobulate(options, targets, codegens),
        **parse_graph_transform_args(options),
    )


def _run(options: argparse.Namespace) -> None:
    host, port = tracker_host_port_from_cli(options.rpc_tracker)
    inputs: Mapping[str, Any] = np.load(options.inputs) if options.inputs else {}
    result = runner.run_module(
        TVMCPackage(options.PATH), options.device, host, port or DEFAULT_TRACKER_PORT,
        options.rpc_key, dict(inputs), options.fill_mode, options.repeat, options.number,
        options.profile, options.end_to_end,
    )  # fmt: skip
    if options.print_time:
        print(result.format_times())
    if options.print_top:
        print(get_top_results(result, options.print_top))
    if options.outputs:
        np.savez(options.outputs, **result.outputs)  # type: ignore[arg-type]


def _tune(options: argparse.Namespace) -> None:
    host, port = tracker_host_port_from_cli(options.rpc_tracker)
    model = frontends.load_model(options.FILE, options.model_format, options.input_shapes)
    autotuner.tune_model(
        model,
        options.target,
        tuning_records=options.output,
        prior_records=options.tuning_records,
        hostname=host,
        port=port or DEFAULT_TRACKER_PORT,
        rpc_key=options.rpc_key,
        trials=options.trials,
        target_host=options.target_host,
        tuner=options.tuner,
        min_repeat_ms=options.min_repeat_ms,
        timeout=options.timeout,
        parallel=options.parallel,
        additional_target_options=reconstruct_target_args(options),
        tasks_filter=options.tasks,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code, 1 with a message for an error."""
    parser, commands = _build_parser()
    try:
        set_config_defaults(commands, sys.argv[1:] if argv is None else argv)
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
