"""Input shapes of the command line."""

from __future__ import annotations

import argparse
import re

from ekiden.ir.prim import AnyDim
from ekiden.runtime.errors import InputError

__all__ = ["ArgumentError", "parse_shape_string"]

_SHAPE = r"(?:[\w.:;-]+(?:/[\w.:;-]+)*|\"[^\"]+\"):\s*\[\s*-?\d+(?:\s*,\s*-?\d+)*\s*\]"


class ArgumentError(InputError, argparse.ArgumentTypeError):
    """Error of an argument's text, which argparse reports with the argument's name."""


def parse_shape_string(inputs_string: str) -> dict[str, list[object]]:
    """Parse input shapes such as "x:[1,3,224,224] y:[-1,10]", separated by spaces or commas; -1 is
    `relay.Any()`. Raises ArgumentError.
    """
    shapes: dict[str, list[object]] = {}
    if re.sub(_SHAPE, "", inputs_string).strip(" ,\t\n") or not re.search(_SHAPE, inputs_string):
        raise ArgumentError(f"'x:[1,3,224,224] y:[1,10]' expected, got '{inputs_string}'")
    for item in re.findall(_SHAPE, inputs_string):
        name, _, dims = item.rpartition(":")
        sizes = map(int, dims.strip(" []").split(","))
        shapes[name.strip('"')] = [AnyDim() if size < 0 else size for size in sizes]
    return shapes
