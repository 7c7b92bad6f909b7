"""JSON requests and responses of the Open Inference Protocol, optionally followed by binary
tensors.
"""

from __future__ import annotations

from typing import Any

import orjson

from ekiden.runtime.errors import RequestError
from ekiden.serve.bounded_json import SCAN_CHUNK_BYTES, LongArrays, parse_bounded, parse_object
from ekiden.serve.datatypes import (
    DATATYPE_BY_NAME,
    Array,
    Datatype,
    tensor_bytes,
    tensor_from_bytes,
    tensor_from_json,
    tensor_to_bytes,
    tensor_to_json,
)
from ekiden.serve.json_tensors import MIN_CHUNKED_ELEMENTS, format_tensor, parse_tensor
from ekiden.serve.requests import (
    InferRequest,
    InferResponse,
    RequestedOutput,
    parse_class_count,
    parse_parameters,
    parse_shape,
)

__all__ = [
    "HEADER_LENGTH",
    "is_short_answer",
    "is_short_body",
    "parse_infer_request",
    "serialize_infer_response",
]

HEADER_LENGTH = "inference-header-content-length"
"""The header that says how many bytes of a body are JSON; the rest are tensors."""


MAX_INLINE_BODY_BYTES = SCAN_CHUNK_BYTES // 2
"""Bytes of a body that is read on the event loop."""


def is_short_body(body: bytes | bytearray) -> bool:
    """Return whether a body is short enough to be parsed on the event loop."""
    return len(body) <= MAX_INLINE_BODY_BYTES


def parse_infer_request(
    model: str, version: str, body: bytes | bytearray, header: str, max_bytes: int = 1 << 62
) -> InferRequest:
    """Parse a request body whose tensors take at most `max_bytes`. Raises RequestError."""
    split = len(body)
    if header:
        # `int` would also accept signs, spaces and underscores.
        if not (header.isascii() and header.isdigit() and len(header) < 16):
            raise RequestError(f"header {HEADER_LENGTH}: an integer expected")
        split = int(header)
        if split > len(body):
            raise RequestError(f"header {HEADER_LENGTH}: the body has {len(body)} bytes")
    # Slices of a memoryview do not copy a large body.
    view = memoryview(body)
    arrays = None
    if split <= SCAN_CHUNK_BYTES:
        fields = parse_object(view[:split])
    else:
        fields, arrays = parse_bounded(view[:split])
    request = InferRequest(model, version, _text_field(fields, "id"))
    request.parameters = parse_parameters(_object_field(fields, "parameters"))
    _parse_inputs(
        request,
        _object_list_field(fields, "inputs"),
        view[split:],
        arrays,
        max_bytes,
        is_short_body(body),
    )
    if "outputs" in fields:
        outputs = _object_list_field(fields, "outputs")
        request.outputs = tuple(
            _parse_requested_output(row, request.parameters.binary) for row in outputs
        )
    return request


def _parse_inputs(
    request: InferRequest,
    rows: list[dict[str, Any]],
    tail: memoryview,
    arrays: LongArrays | None,
    max_bytes: int,
    is_short: bool,
) -> None:
    """Parse the inputs into the request. Raises RequestError."""
    at = 0
    for row in rows:
        name, datatype = _text_field(row, "name"), _text_field(row, "datatype")
        if name in request.inputs:
            raise RequestError(f"input '{name}': it is there twice")
        kind = DATATYPE_BY_NAME.get(datatype)
        if kind is None:
            known_types = ", ".join(DATATYPE_BY_NAME)
            raise RequestError(f"input '{name}': datatype: one of {known_types} expected")
        shape = parse_shape(name, row.get("shape"))
        if not is_short:  # a short body has no more values than a few thousand
            # Declared sizes are summed before any tensor is allocated.
            max_bytes -= tensor_bytes(name, kind, shape)
        if max_bytes < 0:
            raise RequestError(f"input '{name}': the tensors are too large", "too_large")
        size = _binary_size(name, row)
        if size is None:
            request.inputs[name] = _json_tensor(name, kind, shape, row.get("data"), arrays)
        else:
            if size > len(tail) - at:
                raise RequestError(f"input '{name}': {size} bytes expected, {len(tail) - at} left")
            request.inputs[name] = tensor_from_bytes(name, kind, shape, tail[at : at + size])
            at += size
        request.datatypes[name] = datatype
    if at != len(tail):
        raise RequestError(f"the body has {len(tail) - at} bytes that belong to no input")
    if arrays is not None and arrays.names:
        raise RequestError("the body has a long array that is no input's data", "too_large")


def _json_tensor(
    name: str, kind: Datatype, shape: list[int], data: object, arrays: LongArrays | None
) -> Array:
    """Return the tensor of an input whose data are in the JSON."""
    text = None if arrays is None else arrays.pop_array(data)
    if text is None:
        return tensor_from_json(name, kind, shape, data)
    if not kind.values:
        raise RequestError(f"input '{name}': {kind.name} has no form in JSON: send binary data")
    return parse_tensor(name, kind, shape, text)


def _binary_size(name: str, row: dict[str, Any]) -> int | None:
    """Return the size in bytes of an input's binary data after the JSON; None if its data are in
    the JSON.
    """
    parameters = _object_field(row, "parameters")
    if unknown := [key for key in parameters if key != "binary_data_size"]:
        raise RequestError(f"input '{name}': no parameter is named '{unknown[0][:64]}'")
    if "binary_data_size" not in parameters:
        return None
    size = parameters["binary_data_size"]
    # `isinstance` would accept true, which JSON distinguishes from 1.
    if type(size) is not int or size < 0:
        raise RequestError(f"input '{name}': binary_data_size: an integer from 0 on expected")
    if "data" in row:
        raise RequestError(f"input '{name}': data or binary data expected, got both")
    return size


def _parse_requested_output(row: dict[str, Any], binary: bool) -> RequestedOutput:
    """Parse a requested output. Raises RequestError."""
    name = _text_field(row, "name")
    parameters = _object_field(row, "parameters")
    if unknown := [key for key in parameters if key not in ("binary_data", "classification")]:
        raise RequestError(f"output '{name}': no parameter is named '{unknown[0][:64]}'")
    chosen = parameters.get("binary_data", binary)
    if not isinstance(chosen, bool):
        raise RequestError(f"output '{name}': binary_data: true or false expected")
    return RequestedOutput(name, chosen, parse_class_count(name, parameters))


def _text_field(row: dict[str, Any], key: str) -> str:
    """Return a text field of an object; "" if `id` is missing. Raises RequestError."""
    value = row.get(key, "" if key == "id" else None)
    if not isinstance(value, str) or (not value and key != "id"):
        raise RequestError(f"{key}: a text expected")
    return value


def _object_field(row: dict[str, Any], key: str) -> dict[str, Any]:
    """Return an object field, empty by default. Raises RequestError."""
    value = row.get(key, {})
    if not isinstance(value, dict):
        raise RequestError(f"{key}: an object expected")
    return value


def _object_list_field(row: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Return a field that is a list of objects. Raises RequestError."""
    value = row.get(key)
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise RequestError(f"{key}: a list of objects expected")
    return value


Pieces = list[bytes | memoryview]


def is_short_answer(request: InferRequest, response: InferResponse) -> bool:
    """Return whether an answer is short enough to be written on the event loop."""
    count = 0
    for array in response.outputs:  # those that nobody asked for count too: they are few
        count += array.size
    return count <= MIN_CHUNKED_ELEMENTS


def serialize_infer_response(
    request: InferRequest, response: InferResponse
) -> tuple[Pieces, int | None]:
    """Return the chunks of a response body, and the size of its JSON in bytes; None where all is
    JSON.

    Raises RequestError for outputs that JSON cannot say.
    """
    rows: list[dict[str, object]] = []
    tail: Pieces = []
    long_texts: list[Pieces] = []
    for at, is_binary in response.requested_outputs(request):
        name, datatype, array = response.answered_output(request, at)
        row: dict[str, object] = {
            "name": name,
            "shape": list(array.shape),
            "datatype": datatype.name,
        }
        long_texts.append([])
        if is_binary:
            tail.append(tensor_to_bytes(datatype, array))
            row["parameters"] = {"binary_data_size": len(tail[-1])}
        elif array.size <= MIN_CHUNKED_ELEMENTS:
            row["data"] = tensor_to_json(name, datatype, array)
        else:
            long_texts[-1].extend(format_tensor(name, datatype, array))
        rows.append(row)
    head: dict[str, object] = {"model_name": response.model, "model_version": response.version}
    if response.id:
        head["id"] = response.id
    text = _json_chunks(head, rows, long_texts)
    return text + tail, sum(map(len, text)) if tail else None


def _json_chunks(
    head: dict[str, object], rows: list[dict[str, object]], long_texts: list[Pieces]
) -> Pieces:
    """Return the JSON of an answer, with the data of long rows inserted."""
    option = orjson.OPT_SERIALIZE_NUMPY
    if not any(long_texts):
        return [orjson.dumps({**head, "outputs": rows}, option=option)]
    pieces: Pieces = [orjson.dumps(head)[:-1], b',"outputs":[']
    for number, (row, text) in enumerate(zip(rows, long_texts, strict=True)):
        if number:
            pieces.append(b",")
        row_json = orjson.dumps(row, option=option)
        pieces += [row_json[:-1], b',"data":', *text, b"}"] if text else [row_json]
    return [*pieces, b"]}"]
