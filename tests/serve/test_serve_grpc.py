"""The protocol over gRPC without a client of others: descriptions, typed contents, errors."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from serving import Running, serving

from ekiden.serve.grpc_messages import (
    FILE_DESCRIPTOR,
    GRPC_METHODS,
    GRPC_SERVICE_NAME,
    Proto,
    create_message,
    parse_message,
)

Channel = Any


@pytest.fixture
def channel(server: Running) -> Iterator[Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{server.server.grpc_port}") as result:
        yield result


def call(channel: Channel, method: str, request: Proto = b"", **argument: object) -> Proto:
    data = request if isinstance(request, bytes) else request.SerializeToString()
    answer = channel.unary_unary(f"/{GRPC_SERVICE_NAME}/{method}")(data, timeout=30, **argument)
    return parse_message(f"{method}Response", answer)


def infer(model: str = "whole", **values: object) -> Proto:
    tensor = {"name": "x", "datatype": "INT64", "shape": [1, 4], **values}
    return create_message("ModelInferRequest", model_name=model, inputs=[tensor])


def test_typed_contents_are_decoded(channel: Channel) -> None:
    result = call(channel, "ModelInfer", infer(contents={"int64_contents": [1, 2, 3, 4]}))
    assert np.frombuffer(result.raw_output_contents[0], np.int64).tolist() == [2, 4, 6, 8]
    assert result.model_version == "1" and list(result.outputs[0].shape) == [1, 4]


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        (b"\xff\xff", "INVALID_ARGUMENT", "the message is no ModelInferRequest"),
        (
            infer("none", contents={"int64_contents": [0] * 4}),
            "NOT_FOUND",
            "no model of that name is there",
        ),
        (infer(), "INVALID_ARGUMENT", "input 'x': 4 elements expected, got 0"),
        (infer(shape=[-1, 4]), "INVALID_ARGUMENT", "input 'x': shape: sizes from 0"),
        (infer(datatype="Q"), "INVALID_ARGUMENT", "input 'x': datatype: one of BOOL"),
        (infer(contents={"fp32_contents": [1.0] * 4}), "INVALID_ARGUMENT", "input 'x': int64_cont"),
        (infer(parameters={"q": {"bool_param": True}}), "INVALID_ARGUMENT", "input 'x': no param"),
    ],
)
def test_errors_have_codes(channel: Channel, request_: Proto, code: str, text: str) -> None:
    with pytest.raises(grpc.RpcError) as result:
        call(channel, "ModelInfer", request_)
    error: Any = result.value
    assert error.code().name == code and error.details().startswith(text)


def test_small_integers_keep_their_range(channel: Channel) -> None:
    wrong = infer("fixed", datatype="INT8", shape=[1], contents={"int_contents": [300]})
    with pytest.raises(grpc.RpcError, match="out of the range of INT8"):
        call(channel, "ModelInfer", wrong)


def test_call_with_too_little_time(channel: Channel) -> None:
    request = infer(contents={"int64_contents": [1, 2, 3, 4]})
    request.parameters["timeout"].int64_param = 1
    with pytest.raises(grpc.RpcError) as result:
        call(channel, "ModelInfer", request)
    error: Any = result.value
    assert error.code().name == "DEADLINE_EXCEEDED"


def test_grpc_calls_need_tokens(models: Path, tmp_path: Path) -> None:
    (tmp_path / "t").write_text("0123456789abcdef")
    with (
        serving(models, token_file=str(tmp_path / "t")) as server,
        grpc.insecure_channel(f"127.0.0.1:{server.server.grpc_port}") as channel,
    ):
        assert call(channel, "ServerLive").live
        with pytest.raises(grpc.RpcError, match="a bearer token expected"):
            call(channel, "ServerMetadata")
        metadata = (("authorization", "Bearer 0123456789abcdef"),)
        assert call(channel, "ServerMetadata", metadata=metadata).name == "ekiden"
        request = create_message("RepositoryModelLoadRequest", model_name="soft")
        with pytest.raises(grpc.RpcError, match="this token may not load"):
            call(channel, "RepositoryModelLoad", request, metadata=metadata)


def ours() -> dict[str, dict[str, int]]:
    """Message -> field -> number, of our description."""
    result: dict[str, dict[str, int]] = {}
    stack = [("", item) for item in FILE_DESCRIPTOR.message_type]
    while stack:
        outer, item = stack.pop()
        result[outer + item.name] = {field.name: field.number for field in item.field}
        stack += [(f"{outer}{item.name}.", n) for n in item.nested_type if "Entry" not in n.name]
    return result


def test_message_fields_match_triton() -> None:
    pb2 = pytest.importorskip(
        "tritonclient.grpc.service_pb2", reason="needs the package tritonclient[grpc]"
    )
    for path, fields in ours().items():
        reference = pb2.DESCRIPTOR.message_types_by_name[path.split(".")[0]]
        for name in path.split(".")[1:]:
            reference = reference.nested_types_by_name[name]
        for field in next_fields(path):
            other = reference.fields_by_name[field.name]
            assert (other.number, other.type) == (field.number, field.type), (path, field.name)
        assert len(fields) <= len(reference.fields)
    service = pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    assert {*GRPC_METHODS} <= {method.name for method in service.methods}


def next_fields(path: str) -> list[Any]:
    messages: Any = FILE_DESCRIPTOR.message_type
    for name in path.split("."):
        result = next(message for message in messages if message.name == name)
        messages = result.nested_type
    return list(result.field)


def test_message_fields_match_the_protocol() -> None:
    """Against the protocol's own file, where EKIDEN_INFERENCE_PROTOCOL names the folder of it."""
    folder = os.environ.get("EKIDEN_INFERENCE_PROTOCOL")
    if not folder:
        pytest.skip(
            "EKIDEN_INFERENCE_PROTOCOL, the folder of open_inference_grpc.proto, is not set"
        )
    text = re.sub(r"//.*", "", (Path(folder) / "open_inference_grpc.proto").read_text())
    result, stack = {}, []
    for token in re.finditer(
        r"message\s+(\w+)|(oneof|service)\s+\w+|rpc (\w+)|(\w+)\s*=\s*(\d+)\s*;|([{}])", text
    ):
        name, block, rpc, field, number, brace = token.groups()
        if name:
            stack.append(name)
            result[".".join(stack)] = {}
        elif block:
            stack.append("")
        elif rpc:
            assert rpc in GRPC_METHODS
            stack.append("")
        elif field:
            result[".".join(filter(None, stack))][field] = int(number)
        elif brace == "}":
            stack.pop()
    known = ours()
    del result["ModelMetadataResponse"]["properties"]
    assert {name: known[name] for name in result} == result
