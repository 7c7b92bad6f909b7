"""Registry of large weights that stay in the model file or its external data files instead of in
protobuf messages.

    weights = Weights()
    model = onnx.ModelProto.FromString(weights.without(data))
    with weights.here():  array = to_array(tensor)

Where files are lent (ekiden.runtime.artifact.mapped_files) an array is a view of what is mapped,
which begins at any byte; else it is a copy, so that nothing of a file is needed once its model is
imported.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from ekiden.frontend.onnx.external_data import external_location, open_beneath
from ekiden.frontend.onnx.lazy_onnx import onnx
from ekiden.frontend.onnx.weight_stripping import CUT_LOCATION, cut_weights, mark_cut
from ekiden.ir.op import Array
from ekiden.runtime.artifact import mapped_files

_ACTIVE_WEIGHTS: ContextVar[WeightRegistry]


class WeightRegistry:
    """Registry of weight bytes cut out of protobuf messages, by number."""

    def __init__(self) -> None:
        lent = mapped_files.borrowable_files()
        self._copies = lent is None
        self.files = mapped_files.MappedFiles() if lent is None else lent
        self._parts: list[memoryview] = []
        self._beside: dict[str, memoryview | None] = {}
        """Files beside the model's by their locations; None: they are left to the package onnx."""

    def strip_weights(self, data: bytes | memoryview) -> bytes | memoryview:
        """Cut the large weights out of a serialised model and register their bytes."""
        view = memoryview(data)
        message, spans = cut_weights(view, len(self._parts))
        # Views keep the mapped file alive as long as a weight is registered.
        self._parts += [view[begin:end] for begin, end in spans]
        return message

    def register_external(self, tensor: onnx.TensorProto, folder: str) -> bool:
        """Register a tensor's external data and mark the tensor; return False if it cannot be
        mapped. Return False, with nothing changed, where the location is not plainly valid: the
        package onnx then reports the error.
        """
        external = external_location(tensor)
        if external is None:
            return False
        location, begin, length = external
        if location not in self._beside:
            self._beside[location] = self._map_file(folder, location)
        data = self._beside[location]
        if data is None:
            return False
        end = begin + length
        # A declared range beyond the file is left to the package onnx, whose error names it.
        if not begin <= end <= len(data):
            return False
        mark_cut(tensor, len(self._parts))
        self._parts.append(data[begin:end])
        return True

    def _map_file(self, folder: str, location: str) -> memoryview | None:
        """Map or read an external data file; None if it cannot be opened below the folder."""
        handle = open_beneath(folder, location)
        if handle is None:
            return None
        # adopt takes ownership of the descriptor if it can map the file.
        adopted = self.files.adopt(handle, os.path.join(folder, location))
        if adopted is not None:
            return adopted
        with open(handle, "rb", buffering=0) as file:
            return mapped_files.read_remaining(file)

    def array(self, number: int, kind: type[np.generic]) -> Array:
        """Return a registered weight as a vector of a dtype. Raises ValueError where its size is
        not a multiple of the element's.
        """
        elements = np.frombuffer(self._parts[number], kind)
        # Without lent files the model's file may go after the import, so arrays must own their
        # memory.
        return elements.copy() if self._copies else elements

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Make this registry the active one inside the context."""
        token = _ACTIVE_WEIGHTS.set(self)
        try:
            yield
        finally:
            _ACTIVE_WEIGHTS.reset(token)


_ACTIVE_WEIGHTS = ContextVar("here")


def weight_number(proto: onnx.TensorProto) -> int | None:
    """Return the registry number of a tensor that was cut out of its message; None for others."""
    if proto.data_location != onnx.TensorProto.EXTERNAL:
        return None
    entries = {entry.key: entry.value for entry in proto.external_data}
    return int(entries["offset"]) if entries.get("location") == CUT_LOCATION else None


def registered_elements(proto: onnx.TensorProto, kind: type[np.generic]) -> Array | None:
    """Return the elements of a cut-out tensor from the active registry, as a vector; None for other
    tensors. Raises ValueError where its bytes are not a whole number of elements.
    """
    number = weight_number(proto)
    return None if number is None else _ACTIVE_WEIGHTS.get().array(number, kind)


__all__ = ["WeightRegistry", "registered_elements", "weight_number"]
