"""Densification of sparse constants (TACO format: dense and CSR dimensions, block maps).

The schema's format (TACO's): dimensions in traversal order, those of blocks behind those of the
tensor, each dense or with segments and indices of the non-zero elements (CSR).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tflite

from ekiden.ir.op import Array
from ekiden.runtime.devices.memory import check_memory_limit


def densify(values: Array, shape: Sequence[int], table: Any) -> Array:  # noqa: ANN401
    """Return the dense tensor of a sparse constant's non-zero values.

    `table` is the schema's SparsityParameters. Raises ValueError where they do not fit.
    """
    order = [int(i) for i in table.TraversalOrderAsNumpy()]
    blocks = [int(i) for i in table.BlockMapAsNumpy()] if table.BlockMapLength() else []
    metadata = [table.DimMetadata(i) for i in range(table.DimMetadataLength())]
    paths = np.zeros((1, 0), np.int64)
    """Coordinates so far of what is kept, in the order of the values."""
    positions = np.zeros(1, np.int64)
    for dimension in metadata:
        if dimension.Format() == 0:
            size = int(dimension.DenseSize())
            _check_coordinate_memory(len(positions) * size, len(metadata))
            step = np.tile(np.arange(size), len(positions))
            parents = np.repeat(np.arange(len(positions)), size)
            positions = np.repeat(positions, size) * size + step
        else:
            segments, indices = (
                _read_vector(dimension, "ArraySegments"),
                _read_vector(dimension, "ArrayIndices"),
            )
            # CSR: a row's length is the distance of consecutive segment starts.
            counts = segments[positions + 1] - segments[positions]
            _check_coordinate_memory(int(counts.sum()), len(metadata))
            parents = np.repeat(np.arange(len(positions)), counts)
            starts = np.repeat(segments[positions] - np.cumsum(counts) + counts, counts)
            positions = starts + np.arange(counts.sum())
            step = indices[positions]
        paths = np.hstack([paths[parents], step[:, None]])
    if len(paths) != len(values) or len(metadata) != len(order):
        raise ValueError(f"{len(values)} values for {len(paths)} places of a sparse tensor")
    traversed = np.zeros((len(paths), len(order)), np.int64)
    traversed[:, order] = paths
    sizes = {o: int(m.DenseSize()) for o, m in zip(order, metadata, strict=True)}
    coordinates = traversed[:, : len(shape)].copy()
    for i, axis in enumerate(blocks):
        coordinates[:, axis] *= sizes[len(shape) + i]
        coordinates[:, axis] += traversed[:, len(shape) + i]
    # The shape is untrusted, so the limit is checked before the allocation.
    check_memory_limit(math.prod(shape) * values.itemsize, "a sparse constant as a dense one")
    dense = np.zeros(tuple(shape), values.dtype)
    dense[tuple(coordinates.T)] = values
    return dense


def _check_coordinate_memory(count: int, rank: int) -> None:
    """Raise MemoryLimitError where the coordinates of so many elements exceed the limit."""
    check_memory_limit(8 * count * (rank + 1), "the coordinates of a sparse constant")


_VECTOR_TYPES = {1: tflite.Int32Vector, 2: tflite.Uint16Vector, 3: tflite.Uint8Vector}


def _read_vector(table: Any, field: str) -> Array:  # noqa: ANN401
    """Return a vector field of int32, uint16 or uint8 as int64."""
    held, vector = getattr(table, field)(), _VECTOR_TYPES[getattr(table, f"{field}Type")()]()
    vector.Init(held.Bytes, held.Pos)
    values = vector.ValuesAsNumpy() if vector.ValuesLength() else ()
    return np.array(values, np.int64)
