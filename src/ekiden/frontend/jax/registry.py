"""Converter table of MLIR operations, assembled from the converter families."""

from __future__ import annotations

from collections.abc import Callable

from ekiden.frontend.common.unsupported import Unsupported, suggest_nearest
from ekiden.frontend.jax.converters import (
    bitcast,
    calls,
    complex,
    control_flow,
    convolution,
    data_movement,
    dot_general,
    elementwise,
    gather,
    linalg,
    random,
    reduce_window,
    reduction,
    reduction_bodies,
    scatter,
    sort,
)
from ekiden.frontend.jax.node import Converter, StablehloRow
from ekiden.ir.user_extensions import record_extension

CONVERTER_FAMILIES = (
    elementwise, bitcast, data_movement, dot_general, convolution, reduction, reduce_window, gather,
    scatter, sort, random, reduction_bodies, control_flow, calls, linalg, complex,
)  # fmt: skip
CONVERTER_TABLE: dict[str, StablehloRow] = {
    row.name: row for family in CONVERTER_FAMILIES for row in family.ROWS
}
""""stablehlo.add" -> its row."""
assert len(CONVERTER_TABLE) == sum(len(family.ROWS) for family in CONVERTER_FAMILIES), (
    "an operation has two rows"
)


def lookup_converter(name: str) -> StablehloRow:
    """Look up the converter entry of an operation. Raises Unsupported with the closest names if
    there is none.
    """
    if name not in CONVERTER_TABLE:
        near = suggest_nearest(name, CONVERTER_TABLE)
        text = f"the operation is not supported{near}; ekiden.frontend.jax.register teaches one"
        raise Unsupported(text)
    return CONVERTER_TABLE[name]


def register(name: str, *, override: bool = False) -> Callable[[Converter], Converter]:
    """Return a decorator that registers a converter of an MLIR operation or custom call.

        @ekiden.frontend.jax.register("custom_call:my_scale")
        def scale(node):
            return node.expr(0) * relay.const(2.0)

    `name` is the operation with its dialect, or "custom_call:" and the function's name. The
    converter gets a Node (see ekiden.frontend.jax.node) and returns a Relay expression, or a list
    with one for each output.

    Raises ValueError where the operation has a row, unless `override` is set.
    """

    def add(convert: Converter) -> Converter:
        """Add the entry and record the converter as a user extension."""
        if name in CONVERTER_TABLE and not override:
            raise ValueError(f"register {name!r}: it is there; say override=True to replace it")
        record_extension(convert)
        CONVERTER_TABLE[name] = StablehloRow(name, convert)
        return convert

    return add
