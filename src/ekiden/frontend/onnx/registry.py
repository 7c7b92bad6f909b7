"""The converter table: (domain, operator) -> its rows, made of the rows of each family."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ekiden.frontend.onnx.converters import (
    cast,
    contrib,
    contrib_attention,
    contrib_quantize,
    control,
    convolution,
    elementwise,
    image,
    linear,
    ml_features,
    ml_models,
    movement,
    norm,
    placing,
    pool,
    quantize,
    random,
    recurrent,
    reduction,
    sequence,
    shape,
    signal,
    text,
    training,
)
from ekiden.frontend.onnx.node import Converter, Row
from ekiden.ir.extensions import note_extension

FAMILIES = (
    elementwise, cast, reduction, shape, movement, placing, linear, convolution, pool, norm,
    quantize, recurrent, image, signal, random, training, control, sequence,
    contrib, contrib_attention, contrib_quantize,
    text, ml_features, ml_models,
)  # fmt: skip


def _table(rows: Iterable[Row]) -> dict[tuple[str, str], tuple[Row, ...]]:
    found: dict[tuple[str, str], tuple[Row, ...]] = {}
    for row in rows:
        key = (row.domain, row.op_type)
        have = found.get(key, ())
        assert all(r.since != row.since for r in have), f"{key} since {row.since} has two rows"
        found[key] = (*have, row)
    return found


TABLE = _table(row for family in FAMILIES for row in family.ROWS)
"""(domain, operator) -> its rows; what ONNX itself defines has the domain ""."""


def register(
    domain: str, op: str, *, since: int = 1, attributes: str = "", override: bool = False
) -> Callable[[Converter], Converter]:
    """A decorator that teaches the import an operator of a model:

        @ekiden.frontend.onnx.register("com.example", "Scale", attributes="factor")
        def scale(node):
            return relay.op.multiply(node.expr(0), relay.const(node.get_float("factor", 1.0)))

    The function gets a Node (see ekiden.frontend.onnx.node) and gives a Relay expression, or a list
    of one for each output. `since` is the first version of the domain whose meaning it has;
    `attributes` are the names it understands, separated by blanks.

    Raises ValueError where that operator and version have a row, unless `override` is set.
    """

    def add(convert: Converter) -> Converter:
        """Sets the row of the version, and has the converter remembered as the user's own."""
        key = ("" if domain == "ai.onnx" else domain, op)
        others = tuple(r for r in TABLE.get(key, ()) if r.since != since)
        if len(others) < len(TABLE.get(key, ())) and not override:
            raise ValueError(
                f"register {op!r} of domain {domain!r}: version {since} is there; "
                "say override=True to replace it"
            )
        note_extension(convert)
        TABLE[key] = (*others, Row(op, convert, since, attributes, domain=key[0]))
        return convert

    return add
