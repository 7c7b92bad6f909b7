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
    with grpc.insecure_channel(f"127.0.0.1:{server.server.grpc_port}") as made:
        yield made


def call(channel: Channel, method: str, request: Proto = b"", **given: object) -> Proto:
    data = request if isinstance(request, bytes) else request.SerializeToString()
    answer = channel.unary_unary(f"/{GRPC_SERVICE_NAME}/{method}")(data, timeout=30, **given)
    return parse_message(f"{method}Response", answer)


def infer(model: str = "whole", **values: object) -> Proto:
    tensor = {"name": "x", "datatype": "INT64", "shape": [1, 4], **values}
    return create_message("ModelInferRequest", model_name=model, inputs=[tensor])


def test_typed_contents_are_decoded(channel: Channel) -> None:
    found = call(channel, "ModelInfer", infer(contents={"int64_contents": [1, 2, 3, 4]}))
    assert np.frombuffer(found.raw_output_contents[0], np.int64).tolist() == [2, 4, 6, 8]
    assert found.model_version == "1" and list(found.outputs[0].shape) == [1, 4]


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
    with pytest.raises(grpc.RpcError) as found:
        call(channel, "ModelInfer", request_)
    error: Any = found.value
    assert error.code().name == code and error.details().startswith(text)


def test_small_integers_keep_their_range(channel: Channel) -> None:
    wrong = infer("fixed", datatype="INT8", shape=[1], contents={"int_contents": [300]})
    with pytest.raises(grpc.RpcError, match="out of the range of INT8"):
        call(channel, "ModelInfer", wrong)


def test_a_call_with_too_little_time(channel: Channel) -> None:
    request = infer(contents={"int64_contents": [1, 2, 3, 4]})
    request.parameters["timeout"].int64_param = 1
    with pytest.raises(grpc.RpcError) as found:
        call(channel, "ModelInfer", request)
    error: Any = found.value
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
    found: dict[str, dict[str, int]] = {}
    stack = [("", each) for each in FILE_DESCRIPTOR.message_type]
    while stack:
        outer, each = stack.pop()
        found[outer + each.name] = {field.name: field.number for field in each.field}
        stack += [(f"{outer}{each.name}.", n) for n in each.nested_type if "Entry" not in n.name]
    return found


def test_message_fields_match_triton() -> None:
    pb2 = pytest.importorskip(
        "tritonclient.grpc.service_pb2", reason="needs the package tritonclient[grpc]"
    )
    for path, fields in ours().items():
        theirs = pb2.DESCRIPTOR.message_types_by_name[path.split(".")[0]]
        for name in path.split(".")[1:]:
            theirs = theirs.nested_types_by_name[name]
        for field in next_fields(path):
            other = theirs.fields_by_name[field.name]
            assert (other.number, other.type) == (field.number, field.type), (path, field.name)
        assert len(fields) <= len(theirs.fields)
    service = pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    assert {*GRPC_METHODS} <= {method.name for method in service.methods}


def next_fields(path: str) -> list[Any]:
    messages: Any = FILE_DESCRIPTOR.message_type
    for name in path.split("."):
        found = next(each for each in messages if each.name == name)
        messages = found.nested_type
    return list(found.field)


def test_message_fields_match_the_protocol() -> None:
    """Against the protocol's own file, where EKIDEN_INFERENCE_PROTOCOL names the folder of it."""
    folder = os.environ.get("EKIDEN_INFERENCE_PROTOCOL")
    if not folder:
        pytest.skip(
            "EKIDEN_INFERENCE_PROTOCOL, the folder of open_inference_grpc.proto, is not set"
        )
    text = re.sub(r"//.*", "", (Path(folder) / "open_inference_grpc.proto").read_text())
    found, stack = {}, []
    for token in re.finditer(
        r"message\s+(\w+)|(oneof|service)\s+\w+|rpc (\w+)|(\w+)\s*=\s*(\d+)\s*;|([{}])", text
    ):
        name, block, rpc, field, number, brace = token.groups()
        if name:
            stack.append(name)
            found[".".join(stack)] = {}
        elif block:
            stack.append("")
        elif rpc:
            assert rpc in GRPC_METHODS
            stack.append("")
        elif field:
            found[".".join(filter(None, stack))][field] = int(number)
        elif brace == "}":
            stack.pop()
    known = ours()
    del found["ModelMetadataResponse"]["properties"]
    assert {name: known[name] for name in found} == found
