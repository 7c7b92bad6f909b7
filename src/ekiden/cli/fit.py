"""`ekiden fit MODEL`: what a run needs of memory, and the largest size that fits.

Exit codes: 0 it fits, 1 the model cannot be read or planned, 2 wrong usage, 3 it does not fit.
"""

from __future__ import annotations

import argparse
import json

from ekiden.cli.options import add_dim_argument, is_artifact, parse_dim_sizes
from ekiden.compiler.memory_fit import MemoryFit, fit_memory
from ekiden.runtime.environment import parse_bytes
from ekiden.runtime.errors import InputError

TOO_LARGE_EXIT_STATUS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("file", help="a model, which is planned without compiling its kernels")
    add_dim_argument(parser)
    parser.add_argument(
        "--grow", metavar="NAME", default="",
        help="find the largest size of this dimension that fits",
    )  # fmt: skip
    parser.add_argument(
        "--memory", metavar="SIZE", help="memory that there is, such as 8G (what is free here)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Print the memory of a run by part, and the largest size. Raises InputError."""
    free_bytes = None if options.memory is None else _parse_memory(options.memory)
    dims = parse_dim_sizes(options.dim)
    if is_artifact(options.file):
        raise InputError(
            f"'{options.file}' is planned already: ekiden inspect shows its memory; name its model"
        )
    fit = fit_memory(options.file, dims, growing_dim=options.grow, free_bytes=free_bytes)
    print(_to_json(fit) if options.json else _to_text(fit))
    return 0 if fit.fits else TOO_LARGE_EXIT_STATUS


def _parse_memory(text: str) -> int:
    """Return the bytes of a text such as "8G". Raises InputError."""
    size = parse_bytes(text)
    if size is None:
        raise InputError(f"--memory: bytes such as 500M or 8G expected, got '{text}'")
    return size


def _to_text(fit: MemoryFit) -> str:
    """Return a table of the parts, and the conclusion."""
    memory = fit.memory
    rows = {
        "weights": memory.weights,
        "inputs": memory.inputs,
        "activations": memory.activations,
        "a run": memory.total,
        "free": fit.free_bytes,
    }
    width = max(len(f"{size:,}") for size in rows.values())
    sizes = ", ".join(f"{name} = {size}" for name, size in fit.dims.items())
    lines = [f"bytes{f' with {sizes}' if sizes else ''}:"]
    lines += [f"  {name:12} {size:>{width},}" for name, size in rows.items()]
    if fit.growing_dim:
        largest = "any" if fit.largest_size is None else f"{fit.largest_size:,}"
        lines.append(f"largest {fit.growing_dim} that fits: {largest}")
    elif not fit.fits:
        lines.append("it does not fit")
    return "\n".join(lines)


def _to_json(fit: MemoryFit) -> str:
    memory = fit.memory
    return json.dumps({
        "dims": dict(fit.dims),
        "weights": memory.weights,
        "inputs": memory.inputs,
        "activations": memory.activations,
        "total": memory.total,
        "free": fit.free_bytes,
        "fits": fit.fits,
        "grow": fit.growing_dim or None,
        "largest": fit.largest_size,
    })  # fmt: skip
