"""Files that are damaged, of every kind that is read: an error of ours, or as if they were not
there.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ekiden
from ekiden import LoadError, relay
from ekiden.backend.graph.executor_graph import ExecutorGraph
from ekiden.codegen.cache import KernelCache
from ekiden.compiler.cache.artifacts import ArtifactCache
from ekiden.compiler.cache.cache_keys import create_cache_request
from ekiden.compiler.options import CompileOptions
from ekiden.frontend.registry import identify_model
from ekiden.ir import user_extensions
from ekiden.runtime.errors import ScheduleError
from ekiden.runtime.params import load_param_dict
from ekiden.tir.schedule.trace import Trace

pytestmark = pytest.mark.quick
DEEP = "[" * 100_000


def params_file(header: object, elements: bytes = b"1234") -> bytes:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    return len(text).to_bytes(8, "little") + text + elements


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"dtype": [], "shape": [1], "data_offsets": [0, 4]},
         "must have a dtype of safetensors, such as F32, got "),
        ({"dtype": "F32", "shape": [1] * 65, "data_offsets": [0, 4]},
         "must have at most 64 dimensions, got 65"),
        ({"dtype": "F32", "shape": {}, "data_offsets": [0, 4]}, "must have a shape and two "),
    ],
)  # fmt: skip
def test_damaged_params_header_row_is_refused(row: object, message: str) -> None:
    with pytest.raises(LoadError) as caught:
        load_param_dict(params_file({"w": row}))
    assert str(caught.value).startswith(f"load parameters from 'bytes': 'w' {message}")


def test_deeply_nested_params_header_is_refused() -> None:
    with pytest.raises(LoadError, match="the header is no JSON"):
        load_param_dict(params_file(DEEP))


def graph_text(shape: object = (1,), dtype: object = "float32", constant: object = "0") -> str:
    attrs = {"shape": ["", [shape]], "dltype": ["", [dtype]], "storage_id": ["", [0]]}
    node = {"op": "null", "name": "x", "inputs": [], "attrs": {"constant": constant}}
    return json.dumps({"attrs": attrs, "nodes": [node], "heads": [[0, 0, 0]]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (DEEP, "read graph: RecursionError: "),
        (graph_text(shape=[2**63]), "read graph: numbers from 0 to 2\\*\\*63 - 1 expected"),
        (graph_text(shape=[True]), "read graph: numbers from 0 to 2\\*\\*63 - 1 expected"),
        (graph_text(dtype="object"), "read graph: InternalError: a dtype such as 'float32' "),
        (graph_text(dtype="f4,i1"), "read graph: InternalError: a dtype such as 'float32' "),
        (graph_text(dtype=3), "read graph: AttributeError: "),
        (graph_text(constant=1e400), "read graph: OverflowError: "),
    ],
)
def test_damaged_graph_json_is_refused(text: str, message: str) -> None:
    with pytest.raises(LoadError, match=message):
        ExecutorGraph.from_json(text)


@pytest.mark.parametrize(
    "text", [DEEP, "5", "{}", "[[], [[1, 2]]]", "[[[1e400, [], {}, []]], [[]]]"]
)
def test_damaged_trace_is_refused(text: str) -> None:
    with pytest.raises(ScheduleError, match="not a saved trace: "):
        Trace.from_json(text)


def test_damaged_kernel_is_not_in_the_cache(tmp_path: Path) -> None:
    """Before there was a digest, half a file was linked, or ended in whatever JSON raised."""
    cache = KernelCache(tmp_path)
    cache.put("ab12", b"code of a kernel")
    assert cache.get("ab12") == b"code of a kernel"
    (path,) = tmp_path.glob("*/*.o")
    whole = path.read_bytes()
    for damaged in (b"", whole[:5], whole[:-1], whole + b"0", whole[:-1] + b"?"):
        path.write_bytes(damaged)
        assert cache.get("ab12") is None
    path.write_bytes(whole)
    assert cache.get("ab12") == b"code of a kernel"


@pytest.mark.parametrize("text", [b"5", b"{", DEEP.encode(), b"\xff"])
def test_damaged_list_of_weight_files_is_a_miss(
    text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_extensions, "_USER_DEFINITIONS", [])  # tests before this one have some
    (tmp_path / "model.onnx").write_bytes(b"a model")
    expected = create_cache_request(identify_model(tmp_path / "model.onnx"), CompileOptions("llvm"))
    assert expected is not None
    x = relay.var("x", shape=(2,))
    module = relay.IRModule.from_expr(relay.Function([x], x))
    made = ekiden.compile(module).raw.to_bytes()
    cache = ArtifactCache(tmp_path / "cache", 1 << 30)
    assert cache.put(expected, memoryview(made), ()) is not None
    assert cache.get(expected) is not None
    (tmp_path / "cache" / f"{expected.digest()}.json").write_bytes(text)
    assert cache.get(expected) is None
