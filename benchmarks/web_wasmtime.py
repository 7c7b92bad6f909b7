"""A wasmtime host of the WebAssembly runtime: what bindings/web/runtime.js does, in Python.

It loads an artifact and calls `main`; docs/guides/web.md describes the imports.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from wasmtime import (
    Engine,
    Func,
    FuncType,
    Global,
    GlobalType,
    Instance,
    Memory,
    Module,
    Store,
    Table,
    Val,
    ValType,
)

Array = np.ndarray[Any, Any]
HEADER, VALUE, PAYLOAD = 24, 16, 8
NUM_STANDARD_IMPORTS = 5
TENSOR, ARRAY = 70, 71
DTYPE_CODES = {"f": 2, "i": 0, "u": 1, "b": 6}
DTYPE_NAMES = {(2, 32): "float32", (2, 64): "float64", (0, 64): "int64", (0, 32): "int32",
               (0, 8): "int8", (1, 8): "uint8", (6, 8): "bool"}  # fmt: skip


class WasmRuntime:
    """Instance of the WebAssembly runtime."""

    def __init__(self, wasm: bytes) -> None:
        self.engine = Engine()
        self.store = Store(self.engine)
        module = Module(self.engine, wasm)
        types = {"i": ValType.i32(), "d": ValType.f64()}
        rows = {
            "place": ("iiii", "i", self.instantiate_kernels),
            "drop": ("i", "", lambda first: None),
            "features": ("", "i", lambda: 3),
            "now": ("", "d", lambda: 1e3 * time.perf_counter()),
            "warn": ("ii", "", lambda line, size: print(self.read_string(line, size))),
            "call": ("iiii", "i", lambda *_: -1),
            "forget": ("i", "", lambda number: None),
            "device": ("iii", "i", lambda *_: -1),
            "wait": ("", "i", lambda: -1),
        }
        imports = []
        for module_import in module.imports:
            takes, gives, body = rows[str(module_import.name)]
            kind = FuncType([types[t] for t in takes], [types[t] for t in gives])
            imports.append(Func(self.store, kind, body))
        self.exports = Instance(self.store, module, imports).exports(self.store)
        memory, table = self.exports["memory"], self.exports["__indirect_function_table"]
        assert isinstance(memory, Memory) and isinstance(table, Table)
        self.memory, self.table = memory, table
        self.call_c("_initialize")

    def call_c(self, name: str, *args: int) -> int:
        """Call a function of runtime.h."""
        function = self.exports[name]
        assert isinstance(function, Func)
        result: Any = function(self.store, *args)
        return result if result is None or result >= 0 else int(result)

    def instantiate_kernels(self, text: int, size: int, addresses: int, data: int) -> int:
        """Instantiate a kernel module in the runtime's memory and table."""
        module = Module(self.engine, bytes(self.memory.read(self.store, text, text + size)))
        room = bytes(self.memory.read(self.store, text, text + 64))
        # Functions of the module are called through the runtime's indirect function table.
        first = self.table.grow(self.store, _table_size(room), None)
        constant = GlobalType(ValType.i32(), False)
        imports: list[Any] = [
            self.memory,
            self.table,
            Global(self.store, constant, Val.i32(data)),
            Global(self.store, constant, Val.i32(first)),
            self.exports["__stack_pointer"],
        ]
        for index, _ in enumerate(module.imports[NUM_STANDARD_IMPORTS:]):
            (address,) = struct.unpack("<I", self.read(addresses + 4 * index, 4))
            if module.imports[NUM_STANDARD_IMPORTS + index].module == "env":
                imports.append(self.table.get(self.store, address))
            else:
                kind = GlobalType(ValType.i32(), True)
                imports.append(Global(self.store, kind, Val.i32(address)))
        Instance(self.store, module, imports)
        return first

    def read(self, at: int, size: int) -> bytes:
        """Return bytes of its memory."""
        at &= 0xFFFFFFFF
        return bytes(self.memory.read(self.store, at, at + size))

    def read_string(self, at: int, size: int) -> str:
        """Return text in its memory."""
        return self.read(at, size).decode()

    def read_pointer(self, at: int) -> int:
        """Return a pointer in its memory."""
        (address,) = struct.unpack("<I", self.read(at, 4))
        return int(address)

    def copy_in(self, data: bytes) -> int:
        """Copy bytes into newly allocated memory."""
        position = self.call_c("ek_web_alloc", max(len(data), 1), 64) & 0xFFFFFFFF
        self.memory.write(self.store, data, position)
        return position

    def check(self, code: int) -> None:
        """Raise RuntimeError with the runtime's last error unless the status is 0."""
        if code == 0:
            return
        error = self.call_c("ek_error_take") & 0xFFFFFFFF
        words = struct.unpack("<4I", self.read(error + HEADER, 16))
        raise RuntimeError(f"{self.read_string(*words[:2])}: {self.read_string(*words[2:])}")

    def load_artifact(self, data: bytes) -> int:
        """Return the function `main` of an artifact."""
        room = self.call_c("ek_web_file", len(data)) & 0xFFFFFFFF
        self.memory.write(self.store, data, room)
        out = self.copy_in(bytes(8))
        self.check(self.call_c("ek_module_load", self.copy_in(b"model.eki\0"), out))
        self.check(
            self.call_c("ek_module_get", self.read_pointer(out), self.copy_in(b"main\0"), out)
        )
        return self.read_pointer(out)

    def call_function(self, function: int, inputs: Sequence[Array]) -> list[Array]:
        """Call a function on arrays; return copies of its results."""
        values = b"".join(
            struct.pack("<iIQ", TENSOR, 0, self.create_tensor(input_array))
            for input_array in inputs
        )
        arg_values, ret = self.copy_in(values), self.copy_in(bytes(VALUE))
        body = self.table.get(self.store, self.read_pointer(function + HEADER))
        assert isinstance(body, Func)
        self.check(body(self.store, function, arg_values, len(inputs), ret))
        for position in range(len(inputs)):
            self.call_c(
                "ek_object_release", self.read_pointer(arg_values + VALUE * position + PAYLOAD)
            )
        kind, _, payload = struct.unpack("<iII", self.read(ret, 12))
        results = self.flatten_result(kind, payload)
        self.call_c("ek_object_release", payload)
        for block in (arg_values, ret):
            self.call_c("ek_web_free", block)
        return results

    def create_tensor(self, array: Array) -> int:
        """Create a runtime tensor with a copy of an array."""
        code, bits = DTYPE_CODES[array.dtype.kind], 8 * array.itemsize
        dims = struct.pack(f"<{array.ndim}q", *array.shape)
        position = self.copy_in(dims + struct.pack("<BBHiii", code, bits, 1, 1, 0, 0))
        dtype = position + len(dims)
        out = dtype + 12
        self.check(self.call_c("ek_tensor_new", position, array.ndim, dtype, dtype + 4, out))
        tensor_object = self.read_pointer(out)
        data = np.ascontiguousarray(array).tobytes()
        self.memory.write(self.store, data, self.read_pointer(tensor_object + HEADER))
        self.call_c("ek_web_free", position)
        return tensor_object

    def flatten_result(self, kind: int, at: int) -> list[Array]:
        """Return the tensors of a result, flattened."""
        if kind != TENSOR:
            size, first = struct.unpack("<iI", self.read(at + HEADER + 4, 8))
            (size,) = struct.unpack("<i", self.read(at + HEADER + 4, 4))
            first = at + HEADER + 8  # of an ADT
            if kind == ARRAY:
                first, _, size = struct.unpack("<IIi", self.read(at + HEADER, 12))
            rows = [struct.unpack("<iII", self.read(first + VALUE * i, 12)) for i in range(size)]
            return [nested for row in rows for nested in self.flatten_result(row[0], row[2])]
        data, _, _, rank, code, bits, _, dims, _, _, offset = struct.unpack(
            "<IiiiBBHIIIQ", self.read(at + HEADER, 40)
        )
        shape = struct.unpack(f"<{rank}q", self.read(dims, 8 * rank))
        dtype = np.dtype(DTYPE_NAMES[code, bits])
        size = int(np.prod(shape)) * dtype.itemsize
        return [np.frombuffer(self.read(data + offset, size), dtype).reshape(shape)]


def _table_size(head: bytes) -> int:
    """Return the number of table entries that a module needs, from its `dylink.0` section."""
    position = head.index(b"dylink.0") + 9
    numbers: list[int] = []
    value = shift = 0
    while len(numbers) < 4:
        # Unsigned LEB128: 7 bits a byte, the lowest first.
        value |= (head[position] & 0x7F) << shift
        shift += 7
        if head[position] < 0x80:
            numbers.append(value)
            value = shift = 0
        position += 1
    return numbers[3]


def run_model(wasm: bytes, data: bytes, inputs: Mapping[str, Array]) -> tuple[list[Array], float]:
    """Return an artifact's results, and the minimum milliseconds of a run."""
    runtime = WasmRuntime(wasm)
    function = runtime.load_artifact(data)
    times: list[float] = []
    results: list[Array] = []
    for _ in range(3):
        started = time.perf_counter()
        results = runtime.call_function(function, list(inputs.values()))
        times.append(1e3 * (time.perf_counter() - started))
    return results, min(times)
