"""Requests and answers of the protocol as JSON, with tensors behind it as bytes where asked."""

from __future__ import annotations

from typing import Any

import orjson

from ekiden.runtime.errors import RequestError
from ekiden.serve.datatypes import BY_NAME, from_json, from_raw, to_json, to_raw
from ekiden.serve.requests import (
    Asked,
    InferRequest,
    InferResponse,
    read_parameters,
    read_shape,
)

__all__ = ["HEADER_LENGTH", "read_json", "read_request", "write_response"]

HEADER_LENGTH = "inference-header-content-length"
"""The header that says how many bytes of a body are JSON; the rest are tensors."""


def read_json(data: bytes | memoryview) -> dict[str, Any]:
    """The object that a body is. Raises RequestError for what is none."""
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is no JSON: {error.msg}") from None
    if not isinstance(found, dict):
        raise RequestError("the body: an object expected")
    return found


def read_request(model: str, version: str, body: bytes, header: str) -> InferRequest:
    """The request that a body has. Raises RequestError that says what is wrong with it."""
    split = len(body)
    if header:
        if not (header.isascii() and header.isdigit() and len(header) < 16):
            raise RequestError(f"header {HEADER_LENGTH}: an integer expected")
        split = int(header)
        if split > len(body):
            raise RequestError(f"header {HEADER_LENGTH}: the body has {len(body)} bytes")
    view = memoryview(body)
    found = read_json(view[:split])
    made = InferRequest(model, version, _text(found, "id"))
    made.parameters = read_parameters(_object(found, "parameters"))
    _read_inputs(made, _objects(found, "inputs"), view[split:])
    if "outputs" in found:
        outputs = _objects(found, "outputs")
        made.outputs = tuple(_asked(each, made.parameters.binary) for each in outputs)
    return made


def _read_inputs(made: InferRequest, rows: list[dict[str, Any]], tail: memoryview) -> None:
    at = 0
    for row in rows:
        name, datatype = _text(row, "name"), _text(row, "datatype")
        if name in made.inputs:
            raise RequestError(f"input '{name}': it is there twice")
        kind = BY_NAME.get(datatype)
        if kind is None:
            there = ", ".join(BY_NAME)
            raise RequestError(f"input '{name}': datatype: one of {there} expected")
        shape = read_shape(name, row.get("shape"))
        size = _binary_size(name, row)
        if size is None:
            made.inputs[name] = from_json(name, kind, shape, row.get("data"))
        else:
            if size > len(tail) - at:
                raise RequestError(f"input '{name}': {size} bytes expected, {len(tail) - at} left")
            made.inputs[name] = from_raw(name, kind, shape, tail[at : at + size])
            at += size
        made.datatypes[name] = datatype
    if at != len(tail):
        raise RequestError(f"the body has {len(tail) - at} bytes that belong to no input")


def _binary_size(name: str, row: dict[str, Any]) -> int | None:
    """How many bytes an input has behind the JSON; None where its data stand in it."""
    given = _object(row, "parameters")
    if unknown := [key for key in given if key != "binary_data_size"]:
        raise RequestError(f"input '{name}': no parameter is named '{unknown[0][:64]}'")
    if "binary_data_size" not in given:
        return None
    size = given["binary_data_size"]
    if type(size) is not int or size < 0:
        raise RequestError(f"input '{name}': binary_data_size: an integer from 0 on expected")
    if "data" in row:
        raise RequestError(f"input '{name}': data or binary data expected, got both")
    return size


def _asked(row: dict[str, Any], binary: bool) -> Asked:
    name = _text(row, "name")
    given = _object(row, "parameters")
    if unknown := [key for key in given if key != "binary_data"]:
        raise RequestError(f"output '{name}': no parameter is named '{unknown[0][:64]}'")
    chosen = given.get("binary_data", binary)
    if not isinstance(chosen, bool):
        raise RequestError(f"output '{name}': binary_data: true or false expected")
    return Asked(name, chosen)


def _text(row: dict[str, Any], key: str) -> str:
    """A text of an object; empty where `id` is missing. Raises RequestError."""
    found = row.get(key, "" if key == "id" else None)
    if not isinstance(found, str) or (not found and key != "id"):
        raise RequestError(f"{key}: a text expected")
    return found


def _object(row: dict[str, Any], key: str) -> dict[str, Any]:
    found = row.get(key, {})
    if not isinstance(found, dict):
        raise RequestError(f"{key}: an object expected")
    return found


def _objects(row: dict[str, Any], key: str) -> list[dict[str, Any]]:
    found = row.get(key)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise RequestError(f"{key}: a list of objects expected")
    return found


def write_response(request: InferRequest, response: InferResponse) -> tuple[bytes, int | None]:
    """The body of an answer, and how much of it is JSON; None where all is.

    Raises RequestError for outputs that JSON cannot say.
    """
    rows, tail = [], []
    for at, is_binary in response.chosen(request):
        port, array = response.signature.outputs[at], response.outputs[at]
        row: dict[str, object] = {
            "name": port.name,
            "shape": list(array.shape),
            "datatype": port.datatype.name,
        }
        if is_binary:
            tail.append(to_raw(port.datatype, array))
            row["parameters"] = {"binary_data_size": len(tail[-1])}
        else:
            row["data"] = to_json(port.name, port.datatype, array)
        rows.append(row)
    head: dict[str, object] = {"model_name": response.model, "model_version": response.version}
    if response.id:
        head["id"] = response.id
    text = orjson.dumps({**head, "outputs": rows}, option=orjson.OPT_SERIALIZE_NUMPY)
    return (b"".join([text, *tail]), len(text)) if tail else (text, None)
