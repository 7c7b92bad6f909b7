"""Small models of TensorFlow Lite, written as flatbuffers, and LiteRT as the reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

flatbuffers = pytest.importorskip("flatbuffers", reason="the package 'flatbuffers' is missing")
tflite = pytest.importorskip("tflite", reason="the package 'tflite' is missing")

Array = np.ndarray[Any, Any]
Builder: TypeAlias = Any
"""flatbuffers.Builder, which has no types."""
_DTYPES = "float16 float32 float64 int8 uint8 int16 uint16 int32 uint32 int64 uint64 bool".split()
TYPES: dict[Any, int] = {
    np.dtype(n): getattr(tflite.TensorType, n.upper()) for n in _DTYPES
} | {"resource": tflite.TensorType.RESOURCE}  # fmt: skip


@dataclass
class Spec:
    """A tensor: its shape (-1 for an open extent) and dtype, or its data."""

    shape: Sequence[int] = ()
    dtype: str = "float32"
    data: Array | None = None
    scale: Sequence[float] = ()
    point: Sequence[int] = ()
    axis: int = 0
    name: str = ""
    is_variable: bool = False


@dataclass
class Op:
    """An operator over tensors by index. table: (name of the options, their fields)."""

    code: str
    inputs: Sequence[int]
    outputs: Sequence[int]
    table: tuple[str, Mapping[str, Any]] | None = None
    custom: bytes = b""
    between: Sequence[int] = ()


@dataclass
class Part:
    """A further graph of a model."""

    tensors: Sequence[Spec]
    ops: Sequence[Op]
    inputs: Sequence[int]
    outputs: Sequence[int]


def _vector(b: Builder, items: Sequence[int]) -> int:
    b.StartVector(4, len(items), 4)
    for item in reversed(items):
        b.PrependUOffsetTRelative(item)
    return b.EndVector()


def _table(b: Builder, name: str, **fields: object) -> int:
    getattr(tflite, f"{name}Start")(b)
    for key, value in fields.items():
        getattr(tflite, f"{name}Add{key}")(b, value)
    return getattr(tflite, f"{name}End")(b)


def _numbers(b: Builder, values: npt.ArrayLike, dtype: str) -> int:
    return b.CreateNumpyVector(np.asarray(values, dtype))


def _tensor(b: Builder, spec: Spec, index: int, buffer: int) -> int:
    shape = spec.shape if spec.data is None else spec.data.shape
    dtype: Any = spec.dtype if spec.data is None else spec.data.dtype
    dtype = dtype if dtype == "resource" else np.dtype(dtype)
    fields: dict[str, Any] = {
        "Name": b.CreateString(spec.name or f"t{index}"),
        "Shape": _numbers(b, [max(d, 1) for d in shape], "int32"),
        "ShapeSignature": _numbers(b, shape, "int32"),
    }
    if len(spec.scale):
        scale = _numbers(b, spec.scale, "float32")
        point = _numbers(b, spec.point, "int64")
        fields["Quantization"] = _table(
            b, "QuantizationParameters", Scale=scale, ZeroPoint=point, QuantizedDimension=spec.axis
        )
    return _table(b, "Tensor", Type=TYPES[dtype], Buffer=buffer, HasRank=True,
                  IsVariable=spec.is_variable, **fields)  # fmt: skip


def _operation(b: Builder, op: Op, code: int) -> int:
    fields: dict[str, Any] = {
        "Inputs": _numbers(b, op.inputs, "int32"), "Outputs": _numbers(b, op.outputs, "int32"),
    }  # fmt: skip
    if op.table is not None:
        name, argument = op.table
        argument = {k: b.CreateString(v) if isinstance(v, str) else v for k, v in argument.items()}
        fields |= _options(b, name, argument)
    if len(op.between):
        fields["Intermediates"] = _numbers(b, op.between, "int32")
    if op.custom:
        fields["CustomOptions"] = b.CreateByteVector(op.custom)
    return _table(b, "Operator", OpcodeIndex=code, **fields)


def _options(b: Builder, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The table of an operator, of the enum that knows it. Lists are of int32, those of StableHLO
    of int64, those of a composite bytes; of floats where they hold one.
    """
    wide = "int64" if name.startswith("Stablehlo") else "int32"
    wide = "uint8" if name.startswith("StableHLO") else wide
    held = {
        k: _numbers(b, v, "float32" if any(isinstance(e, float) for e in v) else wide)
        if isinstance(v, list) else v
        for k, v in given.items()
    }  # fmt: skip
    enum = "BuiltinOptions" if hasattr(tflite.BuiltinOptions, name) else "BuiltinOptions2"
    number = getattr(getattr(tflite, enum), name)
    return {f"{enum}Type": number, enum: _table(b, name, **held)}


def model(
    tensors: Sequence[Spec],
    ops: Sequence[Op],
    inputs: Sequence[int],
    outputs: Sequence[int],
    signatures: Sequence[str] = (),
    more: Sequence[Part] = (),
) -> bytes:
    """The bytes of a model, with signatures of its first graph whose names are "in<i>" and
    "out<i>"; `more` are its other graphs.
    """
    b: Builder = flatbuffers.Builder(1024)
    parts = [Part(tensors, ops, inputs, outputs), *more]
    data = [None, *(s.data for p in parts for s in p.tensors if s.data is not None)]
    vectors = [
        None if d is None else b.CreateNumpyVector(d.reshape(-1).view(np.uint8)) for d in data
    ]
    buffers = [_table(b, "Buffer", **({} if v is None else {"Data": v})) for v in vectors]
    places = iter(range(1, len(data)))
    names = sorted({op.code for p in parts for op in p.ops})
    codes = [_code(b, name) for name in names]
    graphs = [_graph(b, p, names, places) for p in parts]
    keys = [_signature(b, key, inputs, outputs) for key in signatures]
    root = _table(
        b, "Model", Version=3, OperatorCodes=_vector(b, codes), Subgraphs=_vector(b, graphs),
        Buffers=_vector(b, buffers), SignatureDefs=_vector(b, keys),
    )  # fmt: skip
    b.Finish(root, file_identifier=b"TFL3")
    return bytes(b.Output())


def _graph(b: Builder, part: Part, names: Sequence[str], places: Iterator[int]) -> int:
    result = [
        _tensor(b, s, i, 0 if s.data is None else next(places)) for i, s in enumerate(part.tensors)
    ]
    operations = [_operation(b, op, names.index(op.code)) for op in part.ops]
    return _table(
        b, "SubGraph", Tensors=_vector(b, result), Operators=_vector(b, operations),
        Inputs=_numbers(b, part.inputs, "int32"), Outputs=_numbers(b, part.outputs, "int32"),
    )  # fmt: skip


_VERSIONS = {"BROADCAST_TO": 2}
"""The oldest versions that have kernels, where that is not 1."""


def _code(b: Builder, name: str) -> int:
    custom = {"CustomCode": b.CreateString(name[7:])} if name.startswith("CUSTOM ") else {}
    number = getattr(tflite.BuiltinOperator, name.partition(" ")[0])
    return _table(
        b, "OperatorCode", BuiltinCode=number, DeprecatedBuiltinCode=min(number, 127),
        Version=_VERSIONS.get(name, 1), **custom,
    )  # fmt: skip


def _signature(b: Builder, key: str, inputs: Sequence[int], outputs: Sequence[int]) -> int:
    def maps(word: str, indices: Sequence[int]) -> int:
        names = [b.CreateString(f"{word}{i}") for i in range(len(indices))]
        return _vector(b, [_table(b, "TensorMap", Name=n, TensorIndex=t)
                           for n, t in zip(names, indices, strict=True)])  # fmt: skip

    fields = {"Inputs": maps("in", inputs), "Outputs": maps("out", outputs)}
    return _table(b, "SignatureDef", SignatureKey=b.CreateString(key), **fields)


def litert(data: bytes, *inputs: Array) -> list[Array]:
    """What LiteRT's reference kernels give, or its others where it has none for an operator. Skips
    where it is missing.
    """
    module = pytest.importorskip(
        "ai_edge_litert.interpreter", reason="the package 'ai-edge-litert' is missing"
    )
    kinds = module.OpResolverType
    for kind in (kinds.BUILTIN_REF, kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES):
        try:
            run = module.Interpreter(model_content=data, experimental_op_resolver_type=kind)
            break
        except ValueError as error:
            if "Didn't find op" not in str(error):
                raise
    for info, array in zip(run.get_input_details(), inputs, strict=True):
        run.resize_tensor_input(info["index"], array.shape)
    run.allocate_tensors()
    return _invoked(run, inputs)


def _invoked(run: Any, inputs: Sequence[Array]) -> list[Array]:  # noqa: ANN401
    for info, array in zip(run.get_input_details(), inputs, strict=True):
        run.set_tensor(info["index"], array)
    run.invoke()
    return [np.array(run.get_tensor(o["index"])) for o in run.get_output_details()]


def litert_runs(data: bytes, runs: Sequence[Sequence[Array]]) -> list[list[Array]]:
    """What LiteRT gives, run after run, for a model that keeps values between them."""
    module = pytest.importorskip(
        "ai_edge_litert.interpreter", reason="the package 'ai-edge-litert' is missing"
    )
    kind = module.OpResolverType.BUILTIN_REF
    run = module.Interpreter(model_content=data, experimental_op_resolver_type=kind)
    run.allocate_tensors()
    return [_invoked(run, item) for item in runs]
