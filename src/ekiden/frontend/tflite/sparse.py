"""Sparse constants as dense ones.

The schema's format (TACO's): dimensions in the order that they are traversed, those of blocks
behind those of the tensor, each dense or with segments and indices of what is not zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tflite

from ekiden.ir.op import Array
from ekiden.runtime.devices.memory import check_room


def densified(values: Array, shape: Sequence[int], table: Any) -> Array:  # noqa: ANN401
    """The tensor of a shape whose values that are not zero are given; `table` is the schema's
    SparsityParameters. Raises ValueError where they do not fit.
    """
    order = [int(i) for i in table.TraversalOrderAsNumpy()]
    blocks = [int(i) for i in table.BlockMapAsNumpy()] if table.BlockMapLength() else []
    metadata = [table.DimMetadata(i) for i in range(table.DimMetadataLength())]
    paths = np.zeros((1, 0), np.int64)
    """Coordinates so far of what is kept, in the order of the values."""
    places = np.zeros(1, np.int64)
    for each in metadata:
        if each.Format() == 0:
            size = int(each.DenseSize())
            _check_places(len(places) * size, len(metadata))
            step = np.tile(np.arange(size), len(places))
            parents = np.repeat(np.arange(len(places)), size)
            places = np.repeat(places, size) * size + step
        else:
            segments, indices = _vector(each, "ArraySegments"), _vector(each, "ArrayIndices")
            counts = segments[places + 1] - segments[places]
            _check_places(int(counts.sum()), len(metadata))
            parents = np.repeat(np.arange(len(places)), counts)
            starts = np.repeat(segments[places] - np.cumsum(counts) + counts, counts)
            places = starts + np.arange(counts.sum())
            step = indices[places]
        paths = np.hstack([paths[parents], step[:, None]])
    if len(paths) != len(values) or len(metadata) != len(order):
        raise ValueError(f"{len(values)} values for {len(paths)} places of a sparse tensor")
    found = np.zeros((len(paths), len(order)), np.int64)
    found[:, order] = paths
    sizes = {o: int(m.DenseSize()) for o, m in zip(order, metadata, strict=True)}
    coordinates = found[:, : len(shape)].copy()
    for i, axis in enumerate(blocks):
        coordinates[:, axis] *= sizes[len(shape) + i]
        coordinates[:, axis] += found[:, len(shape) + i]
    check_room(math.prod(shape) * values.itemsize, "a sparse constant as a dense one")
    made = np.zeros(tuple(shape), values.dtype)
    made[tuple(coordinates.T)] = values
    return made


def _check_places(count: int, rank: int) -> None:
    """Raise MemoryLimitError where the coordinates of so many places pass the limit."""
    check_room(8 * count * (rank + 1), "the coordinates of a sparse constant")


_VECTORS = {1: tflite.Int32Vector, 2: tflite.Uint16Vector, 3: tflite.Uint8Vector}


def _vector(table: Any, field: str) -> Array:  # noqa: ANN401
    """A field that is a vector of int32, uint16 or uint8."""
    held, made = getattr(table, field)(), _VECTORS[getattr(table, f"{field}Type")()]()
    made.Init(held.Bytes, held.Pos)
    found = made.ValuesAsNumpy() if made.ValuesLength() else ()
    return np.array(found, np.int64)
