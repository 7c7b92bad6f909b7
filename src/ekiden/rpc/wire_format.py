"""Serialization of messages. Reading trusts nothing: sizes, tags, depth and handles are checked
before anything is made of them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence, Sized
from typing import Protocol

import numpy as np

from ekiden.rpc.errors import FrameError
from ekiden.rpc.messages import MAX_VALUE_DEPTH, MESSAGES, RETURN_PREFIX_BYTES, Kind, ValueTag
from ekiden.runtime import ADT, DataType, Device, Module, PackedFunc, Shape
from ekiden.runtime.binding._core import Object

__all__ = [
    "MAX_TENSOR_RANK",
    "HandleTable",
    "MessageReader",
    "MessageWriter",
    "RemoteTensorType",
    "check_lent_size",
    "parse_body",
    "parse_header",
    "serialize_frame",
    "serialize_frame_parts",
]  # fmt: skip

_HEAD, _READ_HEAD = struct.Struct("<IB3x"), struct.Struct("<IBBH")
_MIN_BODY_SIZES = {int(row.kind): (row.kind, row.min_body_bytes) for row in MESSAGES.values()}
_MIN_TAIL_BYTES = 16 << 10
"""Bytes from which on a field is sent from where it lies."""
_U32, _U64, _I64 = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct("<q")
_F64, _TYPE, _DTYPE = struct.Struct("<d"), struct.Struct("<iiBBHI"), struct.Struct("<BBH")
_DEVICE, _ADT = struct.Struct("<ii"), struct.Struct("<iI")
_TAGGED_STRUCTS = {form: struct.Struct(f"<B{form.format[1:]}") for form in (_U32, _U64, _I64, _F64)}
MAX_TENSOR_RANK = 64
_DTYPE_KIND_NAMES = ("int", "uint", "float", "handle", "bfloat", "complex", "bool")
_SPECIAL_DTYPES = {
    (DataType(name).type_code, DataType(name).bits): name
    for name in (
        "bool float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2"
        " float8_e5m2fnuz float8_e8m0fnu float6_e2m3fn float6_e3m2fn float4_e2m1fn"
    ).split()
}
"""Code and bits of the dtypes whose names are not made of these."""

Bytes = bytes | bytearray | memoryview


class RemoteTensorType(tuple[Device, str, tuple[int, ...]]):
    """Device, dtype and shape of a remote tensor."""

    __slots__ = ()


class HandleTable(Protocol):
    """Interface that maps between handles and objects of both sides."""

    def export(self, value: object) -> int:
        """Return a new handle of a local object."""

    def local_object(self, handle: int) -> object:
        """Return the object of a handle. Raises FrameError if there is none."""

    def remote_handle(self, value: object) -> int | None:
        """Return the remote handle behind a proxy; None for any other value."""

    def make_proxy(self, tag: ValueTag, handle: int, about: object) -> object:
        """Return a proxy of a remote object."""


class NoHandles:
    """Handle table of a peer without objects, such as a tracker."""

    def export(self, value: object) -> int:
        """Raise TypeError: there are no local objects."""
        raise TypeError("rpc: this peer has no objects")

    def local_object(self, handle: int) -> object:
        """Raise FrameError: there are no local objects."""
        raise FrameError("rpc: this peer has no objects")

    def remote_handle(self, value: object) -> int | None:
        """Return None: there are no remote objects."""
        return None

    def make_proxy(self, tag: ValueTag, handle: int, about: object) -> object:
        """Raise FrameError: there are no remote objects."""
        raise FrameError("rpc: this peer has no objects")


class MessageWriter:
    """Writer of one message: `data`, and `tail` if its last field is large and stays in place."""

    __slots__ = ("_handles", "data", "tail")

    def __init__(self, handles: HandleTable) -> None:
        self.data = bytearray(_HEAD.size)
        self.tail: memoryview | None = None
        self._handles = handles

    def write_number(self, form: struct.Struct, value: object) -> None:
        """Write a number. Raises OverflowError if it does not fit."""
        try:
            self.data += form.pack(value)
        except struct.error as error:
            raise OverflowError(f"rpc: {value!r} does not fit its field: {error}") from error

    def write_blob(self, value: Bytes) -> None:
        """Write length-prefixed bytes."""
        self.write_number(_U32, len(value))
        self.data += value

    def write_last_field(self, value: Bytes) -> None:
        """Write the last field of a message, referencing large bytes instead of copying them."""
        if len(value) < _MIN_TAIL_BYTES:
            self.write_blob(value)
        else:
            self.write_number(_U32, len(value))
            self.tail = memoryview(value)

    def write_text(self, value: str) -> None:
        """Write text as bytes."""
        if not isinstance(value, str):
            raise TypeError(f"rpc: text expected, got {value!r}")
        self.write_blob(value.encode("utf-8", "surrogatepass"))

    def write_tensor_type(self, value: RemoteTensorType) -> None:
        """Write a device, dtype and shape."""
        device, dtype, shape = value
        kind = DataType(dtype)
        self.data += _TYPE.pack(*device, kind.type_code, kind.bits, kind.lanes, len(shape))
        self.data += struct.pack(f"<{len(shape)}q", *shape)

    def write_values(self, items: Sequence[object], depth: int = 0) -> None:
        """Write count-prefixed values."""
        self.write_number(_U32, len(items))
        for item in items:
            self.write_value(item, depth)

    def write_value(self, item: object, depth: int = 0) -> None:
        """Write one value. Raises TypeError for what cannot be transferred, ValueError if it is
        nested too deeply.
        """
        if depth > MAX_VALUE_DEPTH:
            raise ValueError(f"rpc: more than {MAX_VALUE_DEPTH} containers inside each other")
        write = _WRITER_BY_TYPE.get(type(item))
        if write is None:
            write = self._uncommon_writer(item)
        write(self, item, depth)

    def _uncommon_writer(self, item: object) -> Callable[..., None]:
        """Return the writer of an item of an uncommon class. Raises TypeError."""
        if self._handles.remote_handle(item) is not None:
            return MessageWriter._write_remote_object
        for cls, write in _VALUE_WRITERS:
            if isinstance(item, cls):
                return write
        # Runtime objects may be callable, but are passed as objects.
        is_thing = isinstance(item, (Object, Module)) and not isinstance(item, PackedFunc)
        if callable(item) and not is_thing:
            return MessageWriter._write_function
        hint = ": copy it there first, as ekiden.nd.array(x, session.cpu())"
        is_array = hasattr(item, "__array__") or hasattr(item, "__dlpack__")
        raise TypeError(f"rpc: {type(item).__name__} cannot cross{hint if is_array else ''}")

    def _write_tagged(self, tag: ValueTag, form: struct.Struct, value: object) -> None:
        try:
            self.data += _TAGGED_STRUCTS[form].pack(tag, value)
        except struct.error as error:
            raise OverflowError(f"rpc: {value!r} does not fit its field: {error}") from error

    def _write_remote_object(self, item: object, depth: int) -> None:
        self._write_tagged(ValueTag.YOURS, _U64, self._handles.remote_handle(item))

    def _write_scalar(self, item: np.generic, depth: int) -> None:
        self.write_value(item.item(), depth)

    def _write_none(self, item: object, depth: int) -> None:
        self.data.append(ValueTag.NONE)

    def _write_bool(self, item: bool, depth: int) -> None:
        self.data += bytes((ValueTag.BOOL, item))

    def _write_int(self, item: int, depth: int) -> None:
        self._write_tagged(ValueTag.INT, _I64, item)

    def _write_float(self, item: float, depth: int) -> None:
        self._write_tagged(ValueTag.FLOAT, _F64, item)

    def _write_dtype(self, item: DataType, depth: int) -> None:
        self.data.append(ValueTag.DTYPE)
        self.data += _DTYPE.pack(item.type_code, item.bits, item.lanes)

    def _write_device(self, item: Device, depth: int) -> None:
        self.data.append(ValueTag.DEVICE)
        self.data += _DEVICE.pack(*(getattr(item, "remote_device", None) or item))

    def _write_str(self, item: str, depth: int) -> None:
        self.data.append(ValueTag.STR)
        self.write_text(item)

    def _write_bytes(self, item: Bytes, depth: int) -> None:
        self.data.append(ValueTag.BYTES)
        self.write_blob(item)

    def _write_shape(self, item: Shape, depth: int) -> None:
        self._write_tagged(ValueTag.SHAPE, _U32, len(item))
        self.data += struct.pack(f"<{len(item)}q", *item)

    def _write_adt(self, item: tuple[object, ...], depth: int) -> None:
        """Write a tuple or ADT."""
        self.data.append(ValueTag.ADT)
        self.data += _ADT.pack(getattr(item, "tag", 0), len(item))
        for element in item:
            self.write_value(element, depth + 1)

    def _write_array(self, item: Sequence[object], depth: int) -> None:
        self.data.append(ValueTag.ARRAY)
        self.write_values(item, depth + 1)

    def _write_map(self, item: dict[object, object], depth: int) -> None:
        """Write a dictionary."""
        self._write_tagged(ValueTag.MAP, _U32, len(item))
        for pair in item.items():
            for key_or_value in pair:
                self.write_value(key_or_value, depth + 1)

    def _write_function(self, item: object, depth: int) -> None:
        self._write_tagged(ValueTag.FUNCTION, _U64, self._handles.export(item))


_VALUE_WRITERS: tuple[tuple[type | tuple[type, ...], Callable[..., None]], ...] = (
    (type(None), MessageWriter._write_none),
    (bool, MessageWriter._write_bool),
    (int, MessageWriter._write_int),
    (float, MessageWriter._write_float),
    (np.generic, MessageWriter._write_scalar),
    (DataType, MessageWriter._write_dtype),
    (str, MessageWriter._write_str),
    ((bytes, bytearray, memoryview), MessageWriter._write_bytes),
    (Device, MessageWriter._write_device),
    (Shape, MessageWriter._write_shape),
    (tuple, MessageWriter._write_adt),
    (list, MessageWriter._write_array),
    (dict, MessageWriter._write_map),
)
"""Class -> how it is written; a class stands before those it is derived from."""
_WRITER_BY_TYPE = {cls: write for cls, write in _VALUE_WRITERS if isinstance(cls, type)}


def _write_handles(writer: MessageWriter, value: Sequence[int]) -> None:
    writer.write_number(_U32, len(value))
    for handle in value:
        writer.write_number(_U64, handle)


_FIELD_WRITERS: dict[str, Callable[..., None]] = {
    "u": lambda w, v: w.write_number(_U32, v),
    "q": lambda w, v: w.write_number(_U64, v),
    "i": lambda w, v: w.write_number(_I64, v),
    "h": lambda w, v: w.write_number(_U64, v),
    "s": MessageWriter.write_text,
    "b": MessageWriter.write_last_field,
    "t": MessageWriter.write_tensor_type,
    "v": MessageWriter.write_value,
    "V": MessageWriter.write_values,
    "H": _write_handles,
}


class MessageReader:
    """Reader of the body of one message. Raises FrameError if it is invalid."""

    __slots__ = ("_at", "_data", "_end", "_handles", "_lends")

    def __init__(self, data: Bytes, handles: HandleTable, lends: bool = False) -> None:
        self._data = memoryview(data)
        self._at, self._end = 0, len(data)
        self._handles, self._lends = handles, lends

    @property
    def remaining_bytes(self) -> int:
        """Return the number of unread bytes."""
        return self._end - self._at

    def _advance(self, size: int) -> int:
        """Advance over the next bytes, and return where they begin."""
        position = self._at
        if size > self._end - position:
            raise FrameError(f"rpc: {size} bytes expected in a message, got {self._end - position}")
        self._at = position + size
        return position

    def read_bytes(self, size: int) -> memoryview:
        """Return the next bytes."""
        position = self._advance(size)
        return self._data[position : self._at]

    def read_number(self, form: struct.Struct) -> int:
        """Return the next number."""
        value: int = form.unpack_from(self._data, self._advance(form.size))[0]
        return value

    def read_count(self, min_bytes: int) -> int:
        """Return a count of items that take at least `min_bytes` each. Raises FrameError for more
        than can fit.
        """
        # What is announced must be here already: memory is taken in proportion to the bytes that
        # came, whatever number stands in them.
        count = self.read_number(_U32)
        if count * min_bytes > self.remaining_bytes:
            raise FrameError(f"rpc: {count} items announced in {self.remaining_bytes} bytes")
        return count

    def read_blob(self) -> memoryview:
        """Return length-prefixed bytes."""
        return self.read_bytes(self.read_count(1))

    def read_bytes_or_view(self) -> Bytes:
        """Return bytes; a view into the message if its buffer outlives the call."""
        return self.read_blob() if self._lends else bytes(self.read_blob())

    def read_text(self) -> str:
        """Return text."""
        try:
            return str(self.read_blob(), "utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise FrameError(f"rpc: text expected: {error.reason}") from error

    def read_sizes(self, count: int) -> tuple[int, ...]:
        """Return signed numbers."""
        return struct.unpack(f"<{count}q", self.read_bytes(8 * count))

    def read_tensor_type(self) -> RemoteTensorType:
        """Return a tensor's type. Raises FrameError for an invalid dtype, a rank above MAX_RANK, or
        negative sizes.
        """
        kind, number, code, bits, lanes, rank = _TYPE.unpack(self.read_bytes(_TYPE.size))
        if rank > MAX_TENSOR_RANK:
            raise FrameError(f"rpc: a rank of {MAX_TENSOR_RANK} at most expected, got {rank}")
        shape = self.read_sizes(rank)
        # Sizes are signed on the wire and come from the peer.
        if any(size < 0 for size in shape):
            raise FrameError(f"rpc: sizes of a tensor expected, got {shape}")
        return RemoteTensorType((Device(kind, number), _dtype_name(code, bits, lanes), shape))

    def read_values(self, depth: int = 0) -> list[object]:
        """Return count-prefixed values."""
        return [self.read_value(depth) for _ in range(self.read_count(1))]

    def read_value(self, depth: int = 0) -> object:
        """Return one value. Raises FrameError for an unknown tag, or containers nested deeper than
        DEPTH_LIMIT.
        """
        if depth > MAX_VALUE_DEPTH:
            raise FrameError(f"rpc: more than {MAX_VALUE_DEPTH} containers inside each other")
        tag = self._data[self._advance(1)]
        read = _VALUE_READERS.get(tag)
        if read is None:
            raise FrameError(f"rpc: a kind of value expected, got {tag}")
        return read(self, depth)

    def read_local_object(self, depth: int) -> object:
        """Return a local object by its handle."""
        return self._handles.local_object(self.read_number(_U64))

    def read_proxy(self, tag: ValueTag, about: Callable[[MessageReader], object]) -> object:
        """Return a proxy of a remote object."""
        handle = self.read_number(_U64)
        return self._handles.make_proxy(tag, handle, about(self))

    def read_bool(self, depth: int) -> bool:
        """Return a boolean. Raises FrameError unless it is 0 or 1."""
        byte = self.read_bytes(1)[0]
        if byte > 1:
            raise FrameError(f"rpc: 0 or 1 expected, got {byte}")
        return bool(byte)

    def read_adt(self, depth: int) -> object:
        """Return a tuple, or an ADT of another tag. Raises FrameError for more fields than
        remaining bytes.
        """
        tag, count = _ADT.unpack(self.read_bytes(_ADT.size))
        # Each item takes at least one byte.
        if count > self.remaining_bytes:
            raise FrameError(f"rpc: {count} items announced in {self.remaining_bytes} bytes")
        items = tuple(self.read_value(depth + 1) for _ in range(count))
        return ADT(tag, items) if tag else items

    def read_map(self, depth: int) -> dict[object, object]:
        """Return a dictionary. Raises FrameError for an unhashable key."""
        entries = {}
        for _ in range(self.read_count(2)):
            key = self.read_value(depth + 1)
            try:
                hash(key)
            except (TypeError, ValueError) as error:  # a list in a tuple; a view of these bytes
                raise FrameError(f"rpc: a key expected, got a {type(key).__name__}") from error
            entries[key] = self.read_value(depth + 1)
        return entries

    def read_device(self, depth: int) -> Device:
        """Return a local device."""
        return Device(*_DEVICE.unpack(self.read_bytes(_DEVICE.size)))

    def read_dtype(self, depth: int) -> DataType:
        """Return a dtype."""
        return DataType(_dtype_name(*_DTYPE.unpack(self.read_bytes(_DTYPE.size))))


def _read_no_description(reader: MessageReader) -> None:
    """Return None: functions and modules have no description on the wire."""


_VALUE_READERS: dict[int, Callable[[MessageReader, int], object]] = {
    ValueTag.NONE: lambda r, depth: None,
    ValueTag.INT: lambda r, depth: r.read_number(_I64),
    ValueTag.BOOL: MessageReader.read_bool,
    ValueTag.FLOAT: lambda r, depth: _F64.unpack(r.read_bytes(8))[0],
    ValueTag.DTYPE: MessageReader.read_dtype,
    ValueTag.DEVICE: MessageReader.read_device,
    ValueTag.OBJECT: lambda r, depth: r.read_proxy(ValueTag.OBJECT, MessageReader.read_text),
    ValueTag.STR: lambda r, depth: r.read_text(),
    ValueTag.BYTES: lambda r, depth: r.read_bytes_or_view(),
    ValueTag.FUNCTION: lambda r, depth: r.read_proxy(ValueTag.FUNCTION, _read_no_description),
    ValueTag.SHAPE: lambda r, depth: Shape(r.read_sizes(r.read_count(8))),
    ValueTag.TENSOR: lambda r, depth: r.read_proxy(ValueTag.TENSOR, MessageReader.read_tensor_type),
    ValueTag.ARRAY: lambda r, depth: r.read_values(depth + 1),
    ValueTag.MAP: MessageReader.read_map,
    ValueTag.MODULE: lambda r, depth: r.read_proxy(ValueTag.MODULE, _read_no_description),
    ValueTag.YOURS: MessageReader.read_local_object,
    ValueTag.ADT: MessageReader.read_adt,
}

_FIELD_READERS: dict[str, Callable[[MessageReader], object]] = {
    "u": lambda r: r.read_number(_U32),
    "q": lambda r: r.read_number(_U64),
    "i": lambda r: r.read_number(_I64),
    "h": lambda r: r.read_number(_U64),
    "s": MessageReader.read_text,
    "b": MessageReader.read_blob,
    "t": MessageReader.read_tensor_type,
    "v": MessageReader.read_value,
    "V": MessageReader.read_values,
    "H": lambda r: [r.read_number(_U64) for _ in range(r.read_count(8))],
}


def _dtype_name(code: int, bits: int, lanes: int) -> str:
    """Return the name of a dtype from its code, bits and lanes. Raises FrameError."""
    name = _SPECIAL_DTYPES.get((code, bits), "")
    if not name and (code >= len(_DTYPE_KIND_NAMES) or _DTYPE_KIND_NAMES[code] == "handle"):
        raise FrameError(f"rpc: a dtype expected, got code {code}, {bits} bits")
    name = name or f"{_DTYPE_KIND_NAMES[code]}{bits}"
    try:
        return str(DataType(name if lanes == 1 else f"{name}x{lanes}"))
    except TypeError as error:
        raise FrameError(f"rpc: a dtype expected, got {name}x{lanes}") from error


def serialize_frame_parts(
    kind: Kind, fields: Sequence[object], handles: HandleTable
) -> tuple[bytearray, memoryview | None]:
    """Serialize a frame, returning large trailing bytes separately instead of copying them. Raises
    TypeError, OverflowError or ValueError for what cannot be transferred.
    """
    writer = MessageWriter(handles)
    for letter, value in zip(MESSAGES[kind].fields, fields, strict=True):
        _FIELD_WRITERS[letter](writer, value)
    size = len(writer.data) - _HEAD.size + (0 if writer.tail is None else len(writer.tail))
    _HEAD.pack_into(writer.data, 0, size, kind)
    return writer.data, writer.tail


def serialize_frame(kind: Kind, fields: Sequence[object], handles: HandleTable) -> bytearray:
    """Serialize a whole frame. Raises what `serialize_frame_parts` raises."""
    frame, tail = serialize_frame_parts(kind, fields, handles)
    return frame if tail is None else frame + tail


def parse_body(kind: Kind, data: Bytes, handles: HandleTable, lends: bool = False) -> list[object]:
    """Parse the fields of a message. With `lends`, bytes are views of it. Raises FrameError."""
    reader = MessageReader(data, handles, lends)
    fields = [_FIELD_READERS[letter](reader) for letter in MESSAGES[kind].fields]
    if reader.remaining_bytes:
        raise FrameError(f"rpc: {kind.name} has {reader.remaining_bytes} bytes too many")
    return fields


def check_lent_size(head: Bytes, buffer: Sized | None) -> None:
    """Raise FrameError unless a RETURN announces exactly as many bytes as the caller's
    buffer has.
    """
    size = -1 if buffer is None else len(buffer)
    if head[0] != ValueTag.BYTES or int.from_bytes(head[1:RETURN_PREFIX_BYTES], "little") != size:
        raise FrameError(f"rpc: {size} bytes expected, got a frame as long that begins otherwise")


def parse_header(data: Bytes, limit: int, begin: int = 0) -> tuple[Kind, int]:
    """Parse the header of a frame into its message kind and body size. Raises FrameError for an
    unknown message, or a body that is too short or exceeds the limit.
    """
    size, number, zero, zeros = _READ_HEAD.unpack_from(data, begin)
    kind, min_size = _MIN_BODY_SIZES.get(number, (None, 0))
    # Reserved bytes must be zero, so that later versions can use them.
    if kind is None or zero or zeros:
        head = bytes(data[begin : begin + _HEAD.size])
        raise FrameError(f"rpc: a message expected, got the bytes {head.hex()}")
    if not min_size <= size <= limit:
        raise FrameError(f"rpc: {kind.name} of {size} bytes, of at most {limit}")
    return kind, size
