"""Flatbuffer reader: a model's subgraphs, tensors and operators as plain data.

The fields are those of the schema (tensorflow/compiler/mlir/lite/schema/schema.fbs).
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import tflite

from ekiden.frontend.tflite.sparse import densify
from ekiden.ir.dtype import to_numpy
from ekiden.ir.op import Array
from ekiden.runtime.errors import ImportModelError
from ekiden.runtime.lazy_dataclass import dataclass

FILE_IDENTIFIER = b"TFL3"
Table: TypeAlias = Any
"""A class of the parser, which has no types."""


def _enum_names(enum: type) -> dict[int, str]:
    return {v: k for k, v in vars(enum).items() if isinstance(v, int) and not k.startswith("_")}


OPERATOR_NAMES = _enum_names(tflite.BuiltinOperator)
"""Code -> "CONV_2D"."""
_OPTION_TABLES = _enum_names(tflite.BuiltinOptions)
_OPTION_TABLES_2 = _enum_names(tflite.BuiltinOptions2)
TENSOR_DTYPES = {code: name.lower() for code, name in _enum_names(tflite.TensorType).items()}
"""Code -> "float32"; "string", "resource", "variant", "int4" and complex ones are no dtypes of
ours."""
NUMERIC_DTYPES = (
    "float16", "float32", "float64", "bfloat16", "int8", "int16", "int32", "int64",
    "uint8", "uint16", "uint32", "uint64", "bool",
)  # fmt: skip
"""Those whose values are NumPy's."""


@dataclass(frozen=True, slots=True)
class TensorQuantization:
    """Quantization parameters, real = scale * (stored - zero_point), per tensor or per slice of an
    axis.
    """

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int


@dataclass(frozen=True, slots=True)
class TfliteTensor:
    """Tensor of a subgraph.

    shape: -1 for dynamic extents, () also where `is_unranked`; quantization: None if not quantised.
    """

    index: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    quantization: TensorQuantization | None
    data: Array | None
    is_variable: bool
    is_sparse: bool
    is_unranked: bool = False
    """Whether the model says that any rank may come."""

    def __str__(self) -> str:
        return f"tensor {self.index} {self.name!r}"

    @property
    def storage_dtype(self) -> str:
        """Return the dtype of the tensor's value in Relay; complex numbers are float pairs along a
        last axis.
        """
        return "float32" if self.dtype == "complex64" else self.dtype

    @property
    def is_supported(self) -> bool:
        """Return whether the tensor can have a value in Relay."""
        return self.dtype in NUMERIC_DTYPES and not self.is_variable and not self.is_sparse

    @property
    def unsupported_reason(self) -> str:
        """Return the reason why the tensor is not supported."""
        if self.is_variable:
            return f"{self} is a variable"
        return f"{self} is sparse" if self.is_sparse else f"{self} has the dtype {self.dtype}"


@dataclass(frozen=True, slots=True)
class TfliteOperator:
    """Operator of a subgraph.

    options: the table of the schema, None for none; custom_options: the bytes of a custom operator;
    intermediate_tensors: the intermediate tensors, which state how internal values are quantised;
    tensors -1 are absent.
    """

    index: int
    code: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Any
    custom_options: bytes = b""
    intermediate_tensors: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TfliteSubgraph:
    """Subgraph: its tensors, operators, inputs and outputs."""

    tensors: Sequence[TfliteTensor]
    operations: Sequence[TfliteOperator]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TfliteSignature:
    """Signature of a model: a function's subgraph, and the names of its inputs and outputs."""

    graph: int
    inputs: Mapping[int, str]
    outputs: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class TfliteModel:
    """Parsed model file."""

    label: str
    graphs: Sequence[TfliteSubgraph]
    signatures: Mapping[str, TfliteSignature]


def read_model(source: object) -> TfliteModel:
    """Read and parse a model from a path or bytes. Raises ImportModelError for a missing, broken or
    foreign file.
    """
    if isinstance(source, bytes):
        return _parse_model(source, "model")
    assert isinstance(source, (str, os.PathLike))
    path = Path(source)
    label = f"model {path.name!r}"
    try:
        return _parse_model(path.read_bytes(), label)
    except OSError as error:
        text = f"cannot read {str(path)!r}: {error.strerror}"
        raise ImportModelError(f"import {label}: {text}") from error


def _parse_model(data: bytes, label: str) -> TfliteModel:
    # Bytes 4 to 7 of a flatbuffer are its file identifier.
    if data[4:8] != FILE_IDENTIFIER:
        text = f"expected a TensorFlow Lite model, got {len(data)} bytes that are none"
        raise ImportModelError(f"import {label}: {text}")
    try:
        return _FlatbufferReader(data).read_model(label)
    except (struct.error, IndexError, ValueError, TypeError, AttributeError, KeyError) as error:
        # what flatbuffers raises where an offset leads out of the buffer
        text = "its flatbuffer is broken or cut short"
        raise ImportModelError(f"import {label}: {text}: {error}") from error


class _FlatbufferReader:
    """Reader of a flatbuffer's tables."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.root: Any = tflite.Model.GetRootAs(data, 0)
        self._states_ranks = self._writes_has_rank()

    def read_model(self, label: str) -> TfliteModel:
        """Read the whole model."""
        root = self.root
        graphs = [self._read_subgraph(root.Subgraphs(i)) for i in range(root.SubgraphsLength())]
        if not graphs:
            raise ValueError("it has no subgraph")
        signatures: dict[str, TfliteSignature] = {}
        for i in range(root.SignatureDefsLength()):
            definition = root.SignatureDefs(i)
            inputs = [definition.Inputs(k) for k in range(definition.InputsLength())]
            outputs = [definition.Outputs(k) for k in range(definition.OutputsLength())]
            signatures[_decode_text(definition.SignatureKey())] = TfliteSignature(
                definition.SubgraphIndex(),
                {m.TensorIndex(): _decode_text(m.Name()) for m in inputs},
                {m.TensorIndex(): _decode_text(m.Name()) for m in outputs},
            )
            graphs[definition.SubgraphIndex()]  # IndexError where there is none
        return TfliteModel(label, graphs, signatures)

    def _writes_has_rank(self) -> bool:
        """Return whether the model's writer sets `has_rank` at all; older ones never do."""
        graphs = [self.root.Subgraphs(i) for i in range(self.root.SubgraphsLength())]
        tensors = (g.Tensors(i) for g in graphs for i in range(g.TensorsLength()))
        return any(t.HasRank() for t in tensors)

    def _read_subgraph(self, table: Table) -> TfliteSubgraph:
        count = table.TensorsLength()
        stated = [_decode_text(table.Tensors(i).Name()) for i in range(count)]
        times = Counter(stated)
        # Names may be empty or repeated, so the index makes them unique.
        names = [n if n and times[n] == 1 else f"{n or 'tensor'}:{i}" for i, n in enumerate(stated)]
        tensors = [self._read_tensor(table.Tensors(i), i, n) for i, n in enumerate(names)]
        operations = [
            self._read_operator(table.Operators(i), i) for i in range(table.OperatorsLength())
        ]
        graph = TfliteSubgraph(
            tensors, operations, _int_field(table, "Inputs"), _int_field(table, "Outputs")
        )
        for indices in (
            graph.inputs,
            graph.outputs,
            *(o.inputs + o.outputs + o.intermediate_tensors for o in operations),
        ):
            # -1 stands for an absent tensor.
            if any(not -1 <= i < count for i in indices):
                raise ValueError(f"it names a tensor that is none of its {count}")
        return graph

    def _read_tensor(self, table: Table, index: int, name: str) -> TfliteTensor:
        # ShapeSignature has -1 for dynamic extents, in place of which Shape has examples.
        shape = _int_field(table, "ShapeSignature") or _int_field(table, "Shape")
        dtype = TENSOR_DTYPES.get(table.Type(), f"number {table.Type()}")
        data = None
        raw = self._buffer_bytes(table.Buffer())
        if raw is not None and dtype in NUMERIC_DTYPES:
            data = np.frombuffer(raw, to_numpy(dtype))
            sparsity = table.Sparsity()
            data = data.reshape(shape) if sparsity is None else densify(data, shape, sparsity)
        quantization = _read_quantization(table.Quantization(), dtype)
        is_sparse = table.Sparsity() is not None
        is_unranked = self._states_ranks and not shape and not table.HasRank()
        return TfliteTensor(
            index, name, shape, dtype, quantization, data, bool(table.IsVariable()), is_sparse,
            is_unranked,
        )  # fmt: skip

    def _buffer_bytes(self, index: int) -> Array | bytes | None:
        buffer = self.root.Buffers(index) if index < self.root.BuffersLength() else None
        if buffer is None:
            return None
        if buffer.Offset() > 1:  # behind the flatbuffer, in files of more than 2 GB
            return self.data[buffer.Offset() : buffer.Offset() + buffer.Size()]
        # An empty buffer means that the tensor is no constant.
        return None if buffer.DataLength() == 0 else np.asarray(buffer.DataAsNumpy())

    def _read_operator(self, table: Table, index: int) -> TfliteOperator:
        code = self.root.OperatorCodes(table.OpcodeIndex())
        # Codes above 127 are in builtin_code alone; older files have deprecated_builtin_code alone.
        number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
        name = OPERATOR_NAMES.get(number, f"operator {number}")
        if name == "CUSTOM":
            name = f"CUSTOM {_decode_text(code.CustomCode())}"
        return TfliteOperator(
            index,
            name,
            _int_field(table, "Inputs"),
            _int_field(table, "Outputs"),
            _read_options(table),
            bytes(_array_field(table, "CustomOptions")),
            _int_field(table, "Intermediates"),
        )


def _decode_text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def _array_field(table: Table, field: str) -> Array:
    values: Array = getattr(table, f"{field}AsNumpy")()
    return values if getattr(table, f"{field}Length")() else np.zeros(0, np.uint8)


def _int_field(table: Table, field: str) -> tuple[int, ...]:
    if getattr(table, f"{field}Length")() == 0:
        return ()
    return tuple(int(i) for i in getattr(table, f"{field}AsNumpy")())


def _read_options(table: Table) -> Table | None:
    for kind, held, names in (
        (table.BuiltinOptionsType(), table.BuiltinOptions(), _OPTION_TABLES),
        (table.BuiltinOptions2Type(), table.BuiltinOptions2(), _OPTION_TABLES_2),
    ):
        if kind and held is not None:
            options: Any = getattr(tflite, names[kind])()
            options.Init(held.Bytes, held.Pos)
            return options
    return None


def _read_quantization(table: Table, dtype: str) -> TensorQuantization | None:
    if table is None or table.ScaleLength() == 0:
        return None
    scale = tuple(float(s) for s in table.ScaleAsNumpy())
    # A file may leave out zero points that are 0.
    points = _int_field(table, "ZeroPoint") or (0,) * len(scale)
    if dtype in NUMERIC_DTYPES and "int" in dtype:
        ends: Any = np.iinfo(dtype)
        if not all(ends.min <= point <= ends.max for point in points):
            raise ValueError(f"a zero point of {points} is no number of {dtype}")
    return TensorQuantization(scale, points, table.QuantizedDimension())
