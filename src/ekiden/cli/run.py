"""`ekiden run FILE --input name=array.npy ...`"""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path

import numpy as np

from ekiden import runtime
from ekiden.cli.options import (
    MODEL_FILE_HELP,
    add_remote_arguments,
    load_named_arrays,
    open_local_or_remote,
)
from ekiden.ir.op import Array
from ekiden.runtime.artifact.metadata import TensorInfo
from ekiden.runtime.errors import InputError
from ekiden.runtime.files import write_atomic


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("file", help=MODEL_FILE_HELP)
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=array.npy",
        help="the array of an input; repeat for each input",
    )
    parser.add_argument(
        "--output-dir",
        help="folder for the outputs: output0.npy, ...; for a sequence output0_0.npy, ...",
    )
    add_remote_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Run once and print or write the outputs."""
    if options.output_dir is not None and os.path.exists(options.output_dir):
        _check_output_folder(options.output_dir)
    executable = open_local_or_remote(options)
    result = executable(**load_named_arrays(options.input))
    tensors = result if isinstance(result, tuple) else (result,)
    for index, (info, value) in enumerate(zip(executable.outputs, tensors, strict=True)):
        for number, array in _number_output_arrays(info, value):
            print(f"{info.name}{number and f'[{number}]'}: {array.dtype} {array.shape}")
            if options.output_dir is None:
                print(np.array2string(array, threshold=20, precision=5))
                continue
            folder = Path(options.output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            name = f"output{index}{number and f'_{number}'}.npy"
            # Atomic, so that a failed run leaves no truncated array.
            write_atomic(folder / name, partial(np.save, arr=array))
    return 0


def _check_output_folder(path: str) -> None:
    """Raise NotADirectoryError before the run if its outputs could not be written."""
    if not os.path.isdir(path):
        raise NotADirectoryError(f"--output-dir '{path}': it is a file, a folder expected")


def _number_output_arrays(info: TensorInfo, value: object) -> list[tuple[str, Array]]:
    """Return the arrays of an output with their file names; a sequence has one per element. Raises
    InputError for values that are no arrays.
    """
    if isinstance(value, runtime.Tensor):
        return [("", value.numpy())]
    if isinstance(value, np.ndarray):  # of texts
        return [("", value.astype(str))]
    if isinstance(value, list) and all(isinstance(element, runtime.Tensor) for element in value):
        return [(str(n), element.numpy()) for n, element in enumerate(value)]
    raise InputError(f"run: output '{info.name}' is a {info.dtype}: call the executable in Python")
