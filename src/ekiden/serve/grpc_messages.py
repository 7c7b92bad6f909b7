"""gRPC messages of the Open Inference Protocol, and conversion of requests and responses.

The table says the fields; classes are made of it in a pool of descriptors of our own, so that a
client's generated ones may be in the same process. Messages are those of the protocol's `inference`
package, with the extensions for repositories and streams.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]

from ekiden.runtime.errors import RequestError
from ekiden.serve.datatypes import (
    DATATYPE_BY_NAME,
    Array,
    Datatype,
    element_count,
    tensor_bytes,
    tensor_from_bytes,
    tensor_to_bytes,
    text_array,
)
from ekiden.serve.grpc_scan import (
    PackedContents,
    encode_field_prefix,
    is_brief_message,
    split_request,
)
from ekiden.serve.requests import (
    InferRequest,
    InferResponse,
    RequestedOutput,
    parse_class_count,
    parse_parameters,
)

__all__ = [
    "FILE_DESCRIPTOR",
    "GRPC_METHODS",
    "GRPC_SERVICE_NAME",
    "Proto",
    "create_message",
    "parse_message",
    "parse_request",
    "serialize_response",
]

Proto: TypeAlias = Any
"""A message: classes are made at run time."""
GRPC_SERVICE_NAME = "inference.GRPCInferenceService"
_TENSOR_FIELDS = "name:string=1 datatype:string=2 shape:int64*=3"
_TENSOR_DATA_FIELDS = (
    f"{_TENSOR_FIELDS} parameters:map<InferParameter>=4 contents:InferTensorContents=5"
)
_MODEL_VERSION_FIELDS = "name:string=1 version:string=2"
_DURATION_FIELDS = (
    "compute_input:StatisticDuration={} compute_infer:StatisticDuration={} "
    "compute_output:StatisticDuration={}"
)
_MODEL_CONTROL_FIELDS = (
    "repository_name:string=1 model_name:string=2 parameters:map<ModelRepositoryParameter>=3"
)

MESSAGE_FIELDS = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "live:bool=1",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "ready:bool=1",
    "ModelReadyRequest": _MODEL_VERSION_FIELDS,
    "ModelReadyResponse": "ready:bool=1",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "name:string=1 version:string=2 extensions:string*=3",
    "ModelMetadataRequest": _MODEL_VERSION_FIELDS,
    "ModelMetadataResponse": "name:string=1 versions:string*=2 platform:string=3 "
    "inputs:TensorMetadata*=4 outputs:TensorMetadata*=5",
    "ModelMetadataResponse.TensorMetadata": _TENSOR_FIELDS,
    "InferParameter": "bool_param:bool?=1 int64_param:int64?=2 string_param:string?=3 "
    "double_param:double?=4 uint64_param:uint64?=5",
    "InferTensorContents": "bool_contents:bool*=1 int_contents:int32*=2 int64_contents:int64*=3 "
    "uint_contents:uint32*=4 uint64_contents:uint64*=5 fp32_contents:float*=6 "
    "fp64_contents:double*=7 bytes_contents:bytes*=8",
    "ModelInferRequest": "model_name:string=1 model_version:string=2 id:string=3 "
    "parameters:map<InferParameter>=4 inputs:InferInputTensor*=5 "
    "outputs:InferRequestedOutputTensor*=6 raw_input_contents:bytes*=7",
    "ModelInferRequest.InferInputTensor": _TENSOR_DATA_FIELDS,
    "ModelInferRequest.InferRequestedOutputTensor": "name:string=1 "
    "parameters:map<InferParameter>=2",
    "ModelInferResponse": "model_name:string=1 model_version:string=2 id:string=3 "
    "parameters:map<InferParameter>=4 outputs:InferOutputTensor*=5 raw_output_contents:bytes*=6",
    "ModelInferResponse.InferOutputTensor": _TENSOR_DATA_FIELDS,
    "ModelStreamInferResponse": "error_message:string=1 infer_response:ModelInferResponse=2",
    "ModelRepositoryParameter": "bool_param:bool?=1 int64_param:int64?=2 string_param:string?=3 "
    "bytes_param:bytes?=4",
    "RepositoryIndexRequest": "repository_name:string=1 ready:bool=2",
    "RepositoryIndexResponse": "models:ModelIndex*=1",
    "RepositoryIndexResponse.ModelIndex": "name:string=1 version:string=2 state:string=3 "
    "reason:string=4",
    "RepositoryModelLoadRequest": _MODEL_CONTROL_FIELDS,
    "RepositoryModelLoadResponse": "",
    "RepositoryModelUnloadRequest": _MODEL_CONTROL_FIELDS,
    "RepositoryModelUnloadResponse": "",
    "ModelConfigRequest": _MODEL_VERSION_FIELDS,
    "ModelConfigResponse": "config:ModelConfig=1",
    "ModelConfig": "name:string=1 platform:string=2 max_batch_size:int32=4 input:ModelInput*=5 "
    "output:ModelOutput*=6 dynamic_batching:ModelDynamicBatching=11 "
    "sequence_batching:ModelSequenceBatching=13 backend:string=17",
    # An enumeration is an int32 on the wire.
    "ModelInput": "name:string=1 data_type:int32=2 dims:int64*=4",
    "ModelOutput": "name:string=1 data_type:int32=2 dims:int64*=3",
    "ModelDynamicBatching": "max_queue_delay_microseconds:uint64=2",
    "ModelSequenceBatching": "max_sequence_idle_microseconds:uint64=1",
    "ModelStatisticsRequest": _MODEL_VERSION_FIELDS,
    "ModelStatisticsResponse": "model_stats:ModelStatistics*=1",
    "ModelStatistics": "name:string=1 version:string=2 last_inference:uint64=3 "
    "inference_count:uint64=4 execution_count:uint64=5 inference_stats:InferStatistics=6 "
    "batch_stats:InferBatchStatistics*=7",
    "InferStatistics": "success:StatisticDuration=1 fail:StatisticDuration=2 "
    f"queue:StatisticDuration=3 {_DURATION_FIELDS.format(4, 5, 6)} "
    "cache_hit:StatisticDuration=7 cache_miss:StatisticDuration=8",
    "InferBatchStatistics": f"batch_size:uint64=1 {_DURATION_FIELDS.format(2, 3, 4)}",
    "StatisticDuration": "count:uint64=1 ns:uint64=2",
}
"""Message -> its fields: name, type and number. `*` is repeated, `?` one of a choice."""

RAW_OUTPUT_CONTENTS_FIELD = 6
"""The number of that field of a ModelInferResponse."""
GRPC_METHODS = (
    "ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer",
    "RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload", "ModelConfig",
    "ModelStatistics",
)  # fmt: skip
"""Methods of one request and one answer, whose messages are called after them."""

_FIELD_PATTERN = re.compile(r"(\w+):(map<)?(\w+)>?([*?]?)=(\d+)")
_Field = descriptor_pb2.FieldDescriptorProto
_SCALAR_TYPES = {
    name.removeprefix("TYPE_").lower(): number for name, number in _Field.Type.items()
}  # string -> TYPE_STRING, ...


def _build_file_descriptor() -> descriptor_pb2.FileDescriptorProto:
    """Return the message table as a protobuf file descriptor."""
    file_proto = descriptor_pb2.FileDescriptorProto(
        name="ekiden/inference.proto", package="inference", syntax="proto3"
    )
    descriptors: dict[str, descriptor_pb2.DescriptorProto] = {}
    for path, text in MESSAGE_FIELDS.items():
        outer, _, name = path.rpartition(".")
        holder = descriptors[outer].nested_type if outer else file_proto.message_type
        descriptors[path] = descriptor = holder.add(name=name)
        for field in _FIELD_PATTERN.finditer(text):
            _add_field(descriptor, path, *field.groups())
    return file_proto


def _add_field(
    descriptor: descriptor_pb2.DescriptorProto,
    path: str,
    name: str,
    is_map: str | None,
    kind: str,
    mark: str,
    number: str,
) -> None:
    """Add a field to a message descriptor."""
    field = descriptor.field.add(name=name, number=int(number), label=_Field.LABEL_OPTIONAL)
    if is_map or mark == "*":
        field.label = _Field.LABEL_REPEATED
    if mark == "?":
        if not descriptor.oneof_decl:
            descriptor.oneof_decl.add(name="parameter_choice")
        field.oneof_index = 0
    if is_map:
        entry = descriptor.nested_type.add(name="ParametersEntry")
        entry.options.map_entry = True
        _add_field(entry, path, "key", None, "string", "", "1")
        _add_field(entry, path, "value", None, kind, "", "2")
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".inference.{path}.ParametersEntry"
    elif kind in _SCALAR_TYPES:
        field.type = _SCALAR_TYPES[kind]
    else:
        nested = f"{path}.{kind}"
        type_name = nested if nested in MESSAGE_FIELDS else kind
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".inference.{type_name}"


FILE_DESCRIPTOR = _build_file_descriptor()
_DESCRIPTOR_POOL = descriptor_pool.DescriptorPool()
_DESCRIPTOR_POOL.Add(FILE_DESCRIPTOR)
_MESSAGE_CLASSES = {
    name: message_factory.GetMessageClass(
        _DESCRIPTOR_POOL.FindMessageTypeByName(f"inference.{name}")
    )
    for name in MESSAGE_FIELDS
}


def create_message(name: str, /, **values: object) -> Proto:
    """Create a message of a type in the table."""
    return _MESSAGE_CLASSES[name](**values)


def parse_message(name: str, data: bytes) -> Proto:
    """Parse bytes as a message. Raises RequestError if they are invalid."""
    try:
        return _MESSAGE_CLASSES[name].FromString(data)
    except DecodeError:
        raise RequestError(f"the message is no {name}") from None


def parse_request(data: bytes, max_bytes: int) -> InferRequest:
    """Parse a ModelInferRequest whose tensors take at most `max_bytes`. Raises RequestError."""
    if is_brief_message(data):
        proto = parse_message("ModelInferRequest", data)
        contents = [row.contents if row.HasField("contents") else None for row in proto.inputs]
        return convert_request(proto, list(proto.raw_input_contents), contents, max_bytes)
    skeleton, raw, values = split_request(data)
    return convert_request(parse_message("ModelInferRequest", skeleton), raw, values, max_bytes)


def convert_request(
    proto: Proto,
    raw: Sequence[bytes | memoryview],
    contents: Sequence[PackedContents | Proto | None],
    max_bytes: int,
) -> InferRequest:
    """Convert a message to a request, with its raw contents and the contents of each input. Raises
    RequestError.
    """
    request = InferRequest(proto.model_name, proto.model_version, proto.id)
    request.parameters = parse_parameters(_parameter_values(proto.parameters))
    if raw and len(raw) != len(proto.inputs):
        raise RequestError(
            f"raw_input_contents: {len(proto.inputs)} expected, as there are inputs, got {len(raw)}"
        )
    for at, row in enumerate(proto.inputs):
        if row.name in request.inputs:
            raise RequestError(f"input '{row.name}': it is there twice")
        if row.parameters:
            raise RequestError(f"input '{row.name}': no parameters expected")
        kind = DATATYPE_BY_NAME.get(row.datatype)
        if kind is None:
            known_types = ", ".join(DATATYPE_BY_NAME)
            raise RequestError(f"input '{row.name}': datatype: one of {known_types} expected")
        shape = list(row.shape)
        max_bytes -= tensor_bytes(row.name, kind, shape)
        if max_bytes < 0:
            raise RequestError(f"input '{row.name}': the tensors are too large", "too_large")
        request.datatypes[row.name] = kind.name
        values = contents[at]
        if not raw:
            request.inputs[row.name] = _typed_tensor(row, kind, shape, values)
        elif values is not None:
            raise RequestError(f"input '{row.name}': contents or raw contents expected, got both")
        else:
            request.inputs[row.name] = tensor_from_bytes(row.name, kind, shape, raw[at])
    request.outputs = tuple(_requested_output(row) for row in proto.outputs)
    return request


def _typed_tensor(
    row: Proto, kind: Datatype, shape: list[int], values: PackedContents | Proto | None
) -> Array:
    """Return the tensor of an input's typed values."""
    if isinstance(values, PackedContents):
        return values.tensor(row.name, kind, shape)
    return _contents_tensor(row.name, kind, shape, row.contents)


def _requested_output(row: Proto) -> RequestedOutput:
    """Return a requested output; `binary_data` changes nothing, since all are raw."""
    name, parameters = str(row.name), _parameter_values(row.parameters)
    if set(parameters) - {"binary_data", "classification"}:
        raise RequestError(f"output '{name}': classification alone expected as a parameter")
    return RequestedOutput(name, True, parse_class_count(name, parameters))


def _parameter_values(entries: Mapping[str, Message]) -> dict[str, object]:
    """Return parameter values by name. Raises RequestError for one without a value."""
    values: dict[str, object] = {}
    for name, value in entries.items():
        field = value.WhichOneof("parameter_choice")
        if field is None:
            raise RequestError(f"parameter '{name[:64]}': it has no value")
        values[name] = getattr(value, field)
    return values


def _contents_tensor(name: str, kind: Datatype, shape: Sequence[int], contents: Proto) -> Array:
    """Return the tensor of an input's contents. Raises RequestError."""
    count = element_count(name, shape)
    if not kind.field:
        raise RequestError(f"input '{name}': {kind.name} has no contents: send raw contents")
    if any(field.name != kind.field for field, _ in contents.ListFields()):
        raise RequestError(f"input '{name}': {kind.field} alone expected for {kind.name}")
    values = getattr(contents, kind.field)
    if kind.is_text:
        return text_array(name, values, shape)
    if len(values) != count:
        raise RequestError(f"input '{name}': {count} elements expected, got {len(values)}")
    wide = np.array(values)
    if kind.numpy.kind in "iu" and count:
        info = np.iinfo(kind.numpy)
        if int(wide.min()) < info.min or int(wide.max()) > info.max:
            raise RequestError(f"input '{name}': a value is out of the range of {kind.name}")
    return wide.astype(kind.numpy).reshape(tuple(shape))


def serialize_response(request: InferRequest, response: InferResponse) -> bytes:
    """Serialize a ModelInferResponse with raw tensors."""
    head = create_message(
        "ModelInferResponse", model_name=response.model, model_version=response.version,
        id=response.id,
    )  # fmt: skip
    tail: list[bytes | memoryview] = []
    for at, _ in response.requested_outputs(request):
        name, datatype, array = response.answered_output(request, at)
        head.outputs.add(name=name, datatype=datatype.name, shape=array.shape)
        raw = tensor_to_bytes(datatype, array)
        tail += [encode_field_prefix(RAW_OUTPUT_CONTENTS_FIELD, len(raw)), raw]
    return b"".join([head.SerializeToString(), *tail])
