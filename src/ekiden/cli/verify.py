"""`ekiden verify MODEL`: the compiled model against ONNX Runtime or ONNX's reference evaluator.

Exit codes: 0 they agree, 1 the model cannot be read, compiled or run, 2 wrong usage, 3 they differ.
"""

from __future__ import annotations

import argparse

from ekiden.cli.options import (
    add_dim_argument,
    add_remote_arguments,
    check_rpc_options,
    is_artifact,
    is_uncompiled_model,
    load_named_arrays,
    nonnegative_float,
    open_remote,
    parse_dim_sizes,
)
from ekiden.compiler.verify import REFERENCE_ENGINES, ComparisonTolerance, verify
from ekiden.runtime.errors import InputError

MISMATCH_EXIT_STATUS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "file", help="an ONNX model, or an artifact compiled from the model of --model"
    )
    parser.add_argument("--model", help="the ONNX model that an artifact was compiled from")
    parser.add_argument(
        "--against",
        metavar=f"{{{','.join(REFERENCE_ENGINES)},MODEL}}",
        help="the engine to compare with, or the original of a quantised model; the latter "
        "compares by signal-to-noise ratio",
    )
    parser.add_argument("--layers", action="store_true", help="compare the result of every node")
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=array.npy",
        help="the array of an input (default: random numbers)",
    )
    add_dim_argument(parser)
    add_remote_arguments(parser)
    for name, default, what in TOLERANCE_OPTIONS:
        parser.add_argument(name, type=nonnegative_float, help=f"{what} ({default:g})")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


TOLERANCE_OPTIONS = (
    ("--rtol", ComparisonTolerance().rtol, "relative tolerance"),
    ("--atol", ComparisonTolerance().atol, "absolute tolerance"),
    ("--of-range", ComparisonTolerance().of_range, "tolerance as a share of the largest value"),
    (
        "--snr",
        ComparisonTolerance().snr,
        "the minimum signal-to-noise ratio against another model, in decibels",
    ),
)


def _parse_tolerance(options: argparse.Namespace) -> ComparisonTolerance:
    """Return the tolerance given by `--rtol` and its siblings. Raises InputError for options that
    this comparison does not use.
    """
    names = {name: name.lstrip("-").replace("-", "_") for name, *_ in TOLERANCE_OPTIONS}
    option_values = {f: v for f in names.values() if (v := getattr(options, f)) is not None}
    is_other_model = options.against is not None and options.against not in REFERENCE_ENGINES
    wrong = [
        name for name, f in names.items() if f in option_values and is_other_model != (f == "snr")
    ]
    if wrong:
        suitable = "another model, where --snr is" if is_other_model else "an engine, as --rtol is"
        raise InputError(f"{wrong[0]}: no tolerance of a comparison with {suitable}")
    return ComparisonTolerance(**option_values)


def run(options: argparse.Namespace) -> int:
    """Compare, and name the first node that differs. Raises InputError for an artifact without its
    model.
    """
    artifact = options.file if is_artifact(options.file) else None
    if artifact is not None and options.model is None:
        raise InputError(f"'{artifact}' is an artifact; name its model: --model model.onnx")
    if artifact is None and options.model is not None:
        raise InputError(f"--model: '{options.file}' is a model itself")
    check_rpc_options(options)
    # For its check: an artifact takes no --target.
    is_uncompiled_model(options.file, options.target)
    report = verify(
        options.model or options.file,
        artifact if options.remote is None else open_remote(options, options.file),
        target=options.target if options.remote is None else None,
        inputs=load_named_arrays(options.input),
        dims=parse_dim_sizes(options.dim),
        against=options.against,
        layers=options.layers,
        tolerance=_parse_tolerance(options),
    )
    print(report.json() if options.json else report)
    return 0 if report else MISMATCH_EXIT_STATUS
