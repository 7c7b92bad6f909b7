"""The converter table: operation -> its row, made of the rows of each family."""

from __future__ import annotations

from collections.abc import Callable

from ekiden.frontend.common.unsupported import Unsupported, nearest
from ekiden.frontend.jax.converters import (
    bits,
    bodies,
    calls,
    complex,
    control,
    convolution,
    elementwise,
    gathering,
    linalg,
    linear,
    movement,
    random,
    reduction,
    scattering,
    sorting,
    windows,
)
from ekiden.frontend.jax.node import Converter, Row
from ekiden.ir.extensions import note_extension

FAMILIES = (
    elementwise, bits, movement, linear, convolution, reduction, windows, gathering, scattering,
    sorting, random, bodies, control, calls, linalg, complex,
)  # fmt: skip
TABLE: dict[str, Row] = {row.name: row for family in FAMILIES for row in family.ROWS}
""""stablehlo.add" -> its row."""
assert len(TABLE) == sum(len(family.ROWS) for family in FAMILIES), "an operation has two rows"


def find(name: str) -> Row:
    """The row of an operation. Raises Unsupported naming those whose names are nearest."""
    if name not in TABLE:
        near = nearest(name, TABLE)
        text = f"the operation is not supported{near}; ekiden.frontend.jax.register teaches one"
        raise Unsupported(text)
    return TABLE[name]


def register(name: str, *, override: bool = False) -> Callable[[Converter], Converter]:
    """A decorator that teaches the import an operation of MLIR, by its name with the dialect, or a
    function that programs call outside of them, by "custom_call:" and its name:

        @ekiden.frontend.jax.register("custom_call:my_scale")
        def scale(node):
            return node.expr(0) * relay.const(2.0)

    The function gets a Node (see ekiden.frontend.jax.node) and gives a Relay expression, or a list
    of one for each output.

    Raises ValueError where that operation has a row, unless `override` is set.
    """

    def add(convert: Converter) -> Converter:
        """Sets the row, and has the converter remembered as the user's own."""
        if name in TABLE and not override:
            raise ValueError(f"register {name!r}: it is there; say override=True to replace it")
        note_extension(convert)
        TABLE[name] = Row(name, convert)
        return convert

    return add
