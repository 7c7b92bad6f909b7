"""Reader of `torch.save` checkpoints (`pytorch_model.bin`) that executes no pickled code.

A file is a zip archive: `data.pkl` is a pickle of tensors by name, and `data/N` are their bytes. A
pickle may call any function. Here it may call those that rebuild tensors alone, which only note
where a tensor lies; any other instruction or name is refused, so a file cannot do anything. Bytes
are views of the mapped file.

Source: `torch.serialization` of PyTorch since 1.6. What is wrong is a LoadError that names file and
thing.
"""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import struct
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ekiden.llm.checkpoint import UNQUANTIZED_DTYPES, MappedBytes, Weight, tensor_bytes
from ekiden.runtime.errors import LoadError

__all__ = ["TorchFile"]

MAX_PICKLE_BYTES = 64 << 20
"""Of the names and shapes of all tensors: those of the largest models take a few hundred KB."""
LOCAL_HEADER_BYTES = 30
"""Of an entry of a zip archive, before its name."""
FORMAT_BY_STORAGE: Mapping[str, str] = {
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
}
OTHER_STORAGES = (
    "BoolStorage", "ByteStorage", "CharStorage", "DoubleStorage", "IntStorage", "LongStorage",
    "ShortStorage",
)  # fmt: skip
"""Of tensors that a decoder does not read, such as masks."""
MAX_EXPANDED_ELEMENTS = 1 << 24
"""Elements of a tensor that repeats its storage by strides of 0, as `torch.Tensor.expand` does: a
file of 100 bytes could have 2^48 otherwise."""
ZIP_ERRORS = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
)
"""What zipfile raises for damaged archives, and for encrypted ones and unknown compression."""
OPCODES = frozenset(
    "PROTO FRAME STOP MARK GLOBAL STACK_GLOBAL REDUCE BUILD BINPERSID MEMOIZE PUT BINPUT"
    " LONG_BINPUT GET BINGET LONG_BINGET EMPTY_DICT EMPTY_TUPLE EMPTY_LIST DICT LIST TUPLE TUPLE1"
    " TUPLE2 TUPLE3 SETITEM SETITEMS APPEND APPENDS NONE NEWTRUE NEWFALSE INT LONG LONG1 LONG4"
    " BININT BININT1 BININT2 FLOAT BINFLOAT BINUNICODE SHORT_BINUNICODE BINUNICODE8 UNICODE POP"
    " POP_MARK".split()
)
"""Instructions of pickles of state dictionaries: none makes an object by its class."""


class _Storage(NamedTuple):
    """Storage of tensor elements: the entry of the archive, its kind, and elements."""

    entry: str
    kind: str
    elements: int


class _StoredTensor(NamedTuple):
    """View of a storage: shape, and strides and offset in elements."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class TorchFile(Mapping[str, Weight]):
    """`torch.save` file as a mapping: tensors by name, as read-only views of the mapped file.
    Raises LoadError.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._bytes = MappedBytes(self.path, "PyTorch")
        try:
            with zipfile.ZipFile(self.path) as archive:
                self._entries = {info.filename: info for info in archive.infolist()}
                self._root, content = self._read_pickle(archive)
        except ZIP_ERRORS as error:
            raise LoadError(
                f"{self.path}: no file of torch.save since PyTorch 1.6: {error}"
            ) from error
        self._tensors = self._parse_pickle(content)

    def _read_pickle(self, archive: zipfile.ZipFile) -> tuple[str, bytes]:
        """Return the folder of the archive's entries, and the pickle."""
        name = next((n for n in self._entries if n.endswith("/data.pkl")), None)
        if name is None:
            raise LoadError(f"{self.path}: no file of torch.save: it has no 'data.pkl'")
        root = name.removesuffix("data.pkl")
        if f"{root}byteorder" in self._entries:
            with archive.open(f"{root}byteorder") as order:
                if order.read(16) != b"little":
                    raise LoadError(f"{self.path}: bytes of a big-endian machine")
        with archive.open(name) as file:
            # One byte above the limit shows that the entry is too large.
            content = file.read(MAX_PICKLE_BYTES + 1)
        if len(content) > MAX_PICKLE_BYTES:
            raise LoadError(
                f"{self.path}: '{name}': at most {MAX_PICKLE_BYTES} bytes of names expected"
            )
        return root, content

    def _parse_pickle(self, content: bytes) -> dict[str, _StoredTensor]:
        """Return the tensors of a pickle. Raises LoadError for anything else."""
        try:
            # All opcodes are checked before the unpickler executes the first.
            _check_opcodes(content)
            value = _TensorUnpickler(content).load()
        except LoadError as error:
            raise LoadError(f"{self.path}: {error}") from error
        except Exception as error:  # a pickle's mistakes have no common class
            raise LoadError(f"{self.path}: no pickle of tensors: {error}") from error
        # Checkpoints of a training run hold the weights under this key.
        if isinstance(value, dict) and isinstance(value.get("state_dict"), dict):
            value = value["state_dict"]
        if not isinstance(value, dict):
            raise LoadError(f"{self.path}: tensors by name expected, got {type(value).__name__}")
        return {
            name: tensor
            for name, tensor in value.items()
            if isinstance(name, str) and isinstance(tensor, _StoredTensor)
        }

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __getitem__(self, name: str) -> Weight:
        """Return a tensor. Raises KeyError, and LoadError for an unsupported dtype."""
        tensor = self._tensors[name]
        where = f"{self.path}: tensor '{name}'"
        format = FORMAT_BY_STORAGE.get(tensor.storage.kind)
        if format is None:
            supported = ", ".join(FORMAT_BY_STORAGE)
            raise LoadError(f"{where}: one of {supported} expected, got {tensor.storage.kind}")
        dtype = UNQUANTIZED_DTYPES[format]
        count = tensor_bytes(tensor.shape, 1, where)
        if count > max(tensor.storage.elements, MAX_EXPANDED_ELEMENTS):
            raise LoadError(f"{where}: {count} elements of {tensor.storage.elements} in the file")
        spans = zip(tensor.shape, tensor.strides, strict=True)
        last = tensor.offset + sum((extent - 1) * stride for extent, stride in spans)
        if 0 not in tensor.shape and last >= tensor.storage.elements:
            raise LoadError(f"{where}: element {last} of {tensor.storage.elements} that there are")
        stored = self._storage(where, tensor.storage, dtype.itemsize).view(dtype)
        # A stride between fewer than two elements is never added, and need not fit into an integer.
        steps = zip(tensor.shape, tensor.strides, strict=True)
        strides = tuple(step * dtype.itemsize if n > 1 and count else 0 for n, step in steps)
        data = np.lib.stride_tricks.as_strided(
            stored[tensor.offset :], tensor.shape, strides, writeable=False
        )
        return Weight(name, format, tensor.shape, data)

    def _storage(self, where: str, storage: _Storage, item_bytes: int) -> NDArray[np.uint8]:
        """Return the bytes of a storage as a view of the mapped file. Raises LoadError unless the
        file has them plain.
        """
        entry = self._entries.get(f"{self._root}data/{storage.entry}")
        size = storage.elements * item_bytes
        # Only an uncompressed entry can be viewed in the mapped file.
        if entry is None or entry.compress_type != zipfile.ZIP_STORED or entry.file_size < size:
            raise LoadError(f"{where}: no {size} bytes in the entry 'data/{storage.entry}'")
        self._bytes.check()
        data, position = self._bytes.data, entry.header_offset
        header = data[position : position + LOCAL_HEADER_BYTES]
        if len(header) < LOCAL_HEADER_BYTES:
            raise LoadError(f"{where}: the entry 'data/{storage.entry}' lies behind the file")
        # The lengths of name and extra field may differ from those of the directory.
        name_bytes, extra_bytes = (int(n) for n in header[26:30].view("<u2"))
        begin = position + LOCAL_HEADER_BYTES + name_bytes + extra_bytes
        raw = data[begin : begin + size]
        if len(raw) < size:
            raise LoadError(f"{where}: the entry 'data/{storage.entry}' lies behind the file")
        return raw

    def check(self) -> None:
        """Raise LoadError if the file has changed since it was opened."""
        self._bytes.check()


def _check_opcodes(content: bytes) -> None:
    """Raise LoadError for a pickle opcode outside the allowlist."""
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name not in OPCODES:
            raise LoadError(f"the pickle: instruction {opcode.name} is none of a file of tensors")
        # The unpickler's memo is as long as its largest number.
        if "PUT" in opcode.name and not 0 <= int(argument or 0) <= len(content):
            raise LoadError(f"the pickle: number {argument} of an object")


def _rebuild_tensor(
    storage: object, offset: object, shape: object, strides: object, *_: object
) -> _StoredTensor:
    """Describe a tensor instead of rebuilding it (torch._utils._rebuild_tensor_v2)."""
    sizes = [shape, strides]
    if not (
        isinstance(storage, _Storage)
        and type(offset) is int
        and offset >= 0
        and all(
            isinstance(size, tuple) and all(type(n) is int and n >= 0 for n in size)
            for size in sizes
        )
        and isinstance(shape, tuple)
        and isinstance(strides, tuple)
        and len(shape) == len(strides)
    ):
        raise LoadError(f"the pickle: a tensor of shape {shape!r} with strides {strides!r}")
    return _StoredTensor(storage, offset, shape, strides)


def _rebuild_parameter(data: object, *_: object) -> object:
    """Return the tensor of a parameter (torch._utils._rebuild_parameter)."""
    return data


CALLABLES: Mapping[tuple[str, str], object] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    **{("torch", kind): kind for kind in (*FORMAT_BY_STORAGE, *OTHER_STORAGES)},
}
"""All that a pickle may name; storages are their names."""


class _TensorUnpickler(pickle.Unpickler):
    """Unpickler restricted to tensors."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content))

    def find_class(self, module_name: str, global_name: str, /) -> object:
        """Return the stand-in for a global, or raise LoadError. Raises LoadError for one that is
        not a tensor's.
        """
        if (module_name, global_name) not in CALLABLES:
            raise LoadError(f"the pickle names '{module_name}.{global_name}', which is no tensor's")
        return CALLABLES[module_name, global_name]

    def persistent_load(self, pid: object) -> _Storage:
        """Return the storage of a persistent id: ("storage", kind, entry, device, elements)."""
        if not isinstance(pid, tuple) or len(pid) != 5 or pid[0] != "storage":
            raise LoadError(f"the pickle: a storage expected, got {pid!r}")
        kind, entry, elements = pid[1], pid[2], pid[4]
        if not (isinstance(kind, str) and isinstance(entry, str) and type(elements) is int):
            raise LoadError(f"the pickle: a storage expected, got {pid!r}")
        return _Storage(entry, kind, elements)
