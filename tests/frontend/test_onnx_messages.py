"""ONNX's protobuf messages without the package onnx."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ekiden.frontend.onnx.registry import CONVERTER_TABLE
from ekiden.frontend.onnx.tensor import to_array

IMPORT = """
import sys
from ekiden.frontend.onnx.importer import import_onnx
import_onnx(sys.argv[1])
assert "onnx" not in sys.modules, "reading a model imports all of the package"
from ekiden.frontend.onnx.lazy_onnx import onnx as messages
import onnx
assert messages.ModelProto is onnx.ModelProto and messages.helper is onnx.helper
assert onnx.onnx_ml_pb2.ModelProto is onnx.ModelProto
"""


def test_model_is_read_without_the_package(tmp_path: Path) -> None:
    floats = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in "xy"]
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    weight = numpy_helper.from_array(np.ones((2, 3), np.float32), "w")
    graph = helper.make_graph(nodes, "g", floats[:1], floats[1:], [weight])
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), path)
    subprocess.run([sys.executable, "-c", IMPORT, str(path)], check=True)


KINDS = [k for k in TensorProto.DataType.values() if k != TensorProto.UNDEFINED]


@pytest.mark.parametrize("raw", [True, False], ids=["raw", "listed"])
@pytest.mark.parametrize("kind", KINDS, ids=TensorProto.DataType.Name)
def test_tensors_equal_the_onnx_package(kind: int, raw: bool) -> None:
    if kind == TensorProto.STRING:
        result = helper.make_tensor("t", kind, [2, 2], [b"a", b"b", b"", b"d"])
    else:
        array = np.array([[1, 0], [2, 1]]).astype(helper.tensor_dtype_to_np_dtype(kind))
        result = numpy_helper.from_array(array, "t")
        if not raw:
            result = helper.make_tensor("t", kind, [2, 2], array.ravel())
    expected, actual = numpy_helper.to_array(result), to_array(result)
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    assert actual.tobytes() == expected.tobytes() or kind == TensorProto.STRING


def test_converter_rows_start_at_schema_changes() -> None:
    """So that a row is found by the opset of the model alone."""
    changes: dict[tuple[str, str], set[int]] = {}
    for item in onnx.defs.get_all_schemas_with_history():
        changes.setdefault((item.domain, item.name), set()).add(item.since_version)
    for key, rows in CONVERTER_TABLE.items():
        for row in rows if key in changes else ():
            assert row.since_version in changes[key] or row.since_version < min(changes[key]), key


def test_converter_rows_list_required_graph_attributes() -> None:
    kind = onnx.defs.OpSchema.AttrType.GRAPH
    for schema in onnx.defs.get_all_schemas_with_history():
        for row in CONVERTER_TABLE.get((schema.domain, schema.name)) or ():
            if row.since_version == schema.since_version:
                expected = {
                    n for n, a in schema.attributes.items() if a.required and a.type == kind
                }
                assert set(row.graph_attributes.split()) == expected, schema.name
