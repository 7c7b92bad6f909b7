"""The large weights of a model that is imported: they lie in its file, or in files beside it, and
not in its messages (see ekiden.frontend.onnx.wire).

    weights = Weights()
    model = onnx.ModelProto.FromString(weights.without(data))
    with weights.here():  array = to_array(tensor)

Where files are lent (ekiden.runtime.artifact.mapped_files) an array is a view of what is mapped,
which
begins at any byte; else it is a copy, so that nothing of a file is needed once its model is
imported.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from ekiden.frontend.onnx.beside import opened, place_of
from ekiden.frontend.onnx.messages import onnx
from ekiden.frontend.onnx.wire import MARK, mark, without_weights
from ekiden.ir.op import Array
from ekiden.runtime.artifact import mapped_files

_HERE: ContextVar[Weights]


class Weights:
    """The bytes that messages leave out, by their numbers."""

    def __init__(self) -> None:
        lent = mapped_files.borrowed_files()
        self._copies = lent is None
        self.files = mapped_files.MappedFiles() if lent is None else lent
        self._parts: list[memoryview] = []
        self._beside: dict[str, memoryview | None] = {}
        """Files beside the model's by their locations; None: they are left to the package onnx."""

    def without(self, data: bytes | memoryview) -> bytes | memoryview:
        """The message of a model without its large weights, which are looked up here."""
        view = memoryview(data)
        rest, places = without_weights(view, len(self._parts))
        self._parts += [view[begin:end] for begin, end in places]
        return rest

    def leave_beside(self, tensor: onnx.TensorProto, folder: str) -> bool:
        """Leave the bytes of a tensor in their file below the folder of the model. False, and
        nothing has changed, where what the model says of them is not plainly right: what to make
        of that is for the package onnx to say."""
        place = place_of(tensor)
        if place is None:
            return False
        location, begin, length = place
        if location not in self._beside:
            self._beside[location] = self._bytes_of(folder, location)
        data = self._beside[location]
        if data is None:
            return False
        end = begin + length
        if not begin <= end <= len(data):
            return False
        mark(tensor, len(self._parts))
        self._parts.append(data[begin:end])
        return True

    def _bytes_of(self, folder: str, location: str) -> memoryview | None:
        handle = opened(folder, location)
        if handle is None:
            return None
        found = self.files.adopt(handle, os.path.join(folder, location))
        if found is not None:
            return found
        with open(handle, "rb", buffering=0) as file:
            return mapped_files.read_whole(file)

    def array(self, number: int, kind: type[np.generic]) -> Array:
        """The elements of a weight. Raises ValueError where its bytes are no number of them."""
        found = np.frombuffer(self._parts[number], kind)
        return found.copy() if self._copies else found

    @contextmanager
    def here(self) -> Iterator[None]:
        """Tensors read inside may have their bytes here."""
        token = _HERE.set(self)
        try:
            yield
        finally:
            _HERE.reset(token)


_HERE = ContextVar("here")


def number_of(proto: onnx.TensorProto) -> int | None:
    """The number of a tensor whose bytes have stayed out of its message; None for others."""
    if proto.data_location != onnx.TensorProto.EXTERNAL:
        return None
    said = {each.key: each.value for each in proto.external_data}
    return int(said["offset"]) if said.get("location") == MARK else None


def outside(proto: onnx.TensorProto, kind: type[np.generic]) -> Array | None:
    """The elements of such a tensor, in a row; None for others. Raises ValueError where its bytes
    are no number of them."""
    number = number_of(proto)
    return None if number is None else _HERE.get().array(number, kind)


__all__ = ["Weights", "number_of", "outside"]
