"""`ekiden run FILE --input name=array.npy ...`"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import numpy as np

from ekiden.driver.commands.options import FILE, add_remote, open_given, read_arrays
from ekiden.runtime.files import write_whole


def arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("file", help=FILE)
    parser.add_argument(
        "--input", action="append", default=[], metavar="NAME=array.npy", help="one for each input"
    )
    parser.add_argument("--output-dir", help="write each output here as output0.npy, ...")
    add_remote(parser)


def run(options: argparse.Namespace) -> int:
    """Run once and print or write the outputs."""
    executable = open_given(options)
    result = executable(**read_arrays(options.input))
    tensors = result if isinstance(result, tuple) else (result,)
    for index, (info, tensor) in enumerate(zip(executable.outputs, tensors, strict=True)):
        array = tensor.numpy()
        print(f"{info.name}: {array.dtype} {array.shape}")
        if options.output_dir is None:
            print(np.array2string(array, threshold=20, precision=5))
            continue
        folder = Path(options.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / f"output{index}.npy", partial(np.save, arr=array))
    return 0
