"""`ekiden export FILE -o model.so`: write a shared library, an object, C or an archive."""

from __future__ import annotations

import argparse
import os
import time

import ekiden
from ekiden.cli.compile import print_artifact_size, redirect_stdout_for_stream
from ekiden.cli.options import (
    MODEL_FILE_HELP,
    add_output_arguments,
    add_target_arguments,
    is_artifact,
    parse_shapes,
)
from ekiden.runtime.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("file", help=MODEL_FILE_HELP)
    add_output_arguments(parser)
    add_target_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Write the format that the suffix names; a model is compiled first. Raises InputError for
    options of a compilation beside an artifact.
    """
    started = time.perf_counter()
    if not is_artifact(options.file):
        shape = parse_shapes(options.shape) or None
        target = options.target or "llvm"
        ekiden.export(options.file, options.output, target, shape=shape, cc=options.cc)
    elif options.target or options.shape:
        raise InputError("an artifact is already compiled: --target and --shape apply to models")
    else:
        ekiden.export(ekiden.load(options.file), options.output, cc=options.cc)
    size = os.path.getsize(options.file)
    with redirect_stdout_for_stream(options.output):
        print_artifact_size(options.output, size, time.perf_counter() - started)
    return 0
