"""The converter table: (domain, operator) -> its rows, made of the rows of each family."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ekiden.frontend.onnx.converters import (
    cast,
    control,
    convolution,
    elementwise,
    image,
    linear,
    movement,
    norm,
    placing,
    pool,
    quantize,
    random,
    reduction,
    shape,
    signal,
    training,
)
from ekiden.frontend.onnx.node import Row

FAMILIES = (
    elementwise, cast, reduction, shape, movement, placing, linear, convolution, pool, norm,
    quantize, image, signal, random, training, control,
)  # fmt: skip


def _table(rows: Iterable[Row]) -> Mapping[tuple[str, str], tuple[Row, ...]]:
    found: dict[tuple[str, str], tuple[Row, ...]] = {}
    for row in rows:
        key = (row.domain, row.op_type)
        have = found.get(key, ())
        assert all(r.since != row.since for r in have), f"{key} since {row.since} has two rows"
        found[key] = (*have, row)
    return found


TABLE = _table(row for family in FAMILIES for row in family.ROWS)
