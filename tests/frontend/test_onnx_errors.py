# ruff: noqa: E501 - messages are compared whole
"""Import errors: the whole messages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import FLOAT, graph_model, ints, normal

from ekiden.frontend.onnx import from_onnx
from ekiden.runtime.errors import ImportModelError, UnsupportedError

pytestmark = pytest.mark.quick


def node(
    op_type: str, inputs: str, output: str, name: str = "", **attributes: object
) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs.split(), output.split(), name=name, **attributes)


def raw_model(
    nodes: list[onnx.NodeProto],
    outputs: str = "y",
    opset: int = 17,
    weights: dict[str, object] | None = None,
) -> onnx.ModelProto:
    """A model that no checker has seen."""
    x = helper.make_tensor_value_info("x", FLOAT, [2, 3])
    results = [helper.make_empty_tensor_value_info(o) for o in outputs.split()]
    tensors = [onnx.numpy_helper.from_array(a, n) for n, a in (weights or {}).items()]  # type: ignore[arg-type]
    graph = helper.make_graph(nodes, "test", [x], results, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def message(model: onnx.ModelProto | bytes | Path, kind: type[Exception] = ImportModelError) -> str:
    with pytest.raises(kind) as caught:
        from_onnx(model)
    assert isinstance(caught.value, UnsupportedError) == (kind is UnsupportedError)
    return str(caught.value)


def test_every_unsupported_node_is_listed_once() -> None:
    model = raw_model(
        [
            node("Sigmoidd", "x", "a", name="layer/act"),
            node("LayerNormalisation", "a", "b"),
            node("Conv", "b w", "c", name="conv", pads=[0, 0], colour=3),
            node("Pad", "c p", "d", name="edge", mode="mirror"),
            helper.make_node("Quark", ["d"], ["e"], name="q", domain="com.example"),
            helper.make_node(
                "If", ["e"], ["y"], name="branch", then_branch=helper.make_graph([], "g", [], [])
            ),
        ],
        weights={"w": normal(1, 1, 1), "p": ints(0, 0)},
    )
    assert message(model, UnsupportedError) == (
        "import model: 6 nodes are not supported\n"
        "  Sigmoidd 'layer/act': unknown operator; the nearest supported are Sigmoid, HardSigmoid\n"
        "  LayerNormalisation 'b': unknown operator; the nearest supported are LayerNormalization, "
        "LpNormalization, SimplifiedLayerNormalization\n"
        "  Conv 'conv': unknown attribute 'colour'; supported are auto_pad, dilations, group, kernel_shape, pads, strides\n"
        "  Pad 'edge': attribute 'mode' must be one of 'constant', 'reflect', 'edge', 'wrap', got 'mirror'\n"
        "  com.example::Quark 'q': unknown operator; ekiden.frontend.onnx.register teaches one\n"
        "  If 'branch': attribute 'else_branch' is missing"
    )


def test_unsupported_values_are_listed_together() -> None:
    model = raw_model(
        [
            node("ReduceSum", "x shape", "a", name="one", keepdims=0),
            node("Relu", "a", "b", name="after one"),
            node("Gemm", "x w c", "d", name="two"),
            node("MaxPool", "x", "e", name="three", kernel_shape=[2]),
            node("Concat", "b d e", "y", axis=0),
        ],
        weights={"w": normal(3, 2), "c": normal(2)},
    )
    shape = helper.make_tensor_value_info("shape", TensorProto.INT64, ["n"])
    model.graph.input.append(shape)
    assert message(model, UnsupportedError) == (
        "import model: 2 nodes are not supported\n"
        "  ReduceSum 'one': without 'keepdims' the number of 'axes' must be known\n"
        "  MaxPool 'three': 'X' must have rank 3 or more, got 2"
    )


@pytest.mark.parametrize("source", ["x", "table"])
def test_reshape_refuses_extents_below_minus_one(source: str) -> None:
    """They have a meaning in Relay, whose operator it becomes."""
    weights = {"shape": ints(0, -2), "table": ints(1, 2, 3).reshape(1, 3)}
    model = raw_model([node("Reshape", f"{source} shape", "y", name="view")], weights=weights)
    assert message(model) == (
        "import model: Reshape 'view': a dimension of the shape must be at least -1, got -2"
    )


@pytest.mark.parametrize("opset", [0, 99])
def test_opset_outside_the_range_is_refused(opset: int) -> None:
    model = raw_model([node("Relu", "x", "y")], opset=opset)
    assert (
        message(model, UnsupportedError)
        == f"import model: expected an opset from 1 to {onnx.defs.onnx_opset_version()}, "
        f"which the installed onnx package knows, got {opset}"
    )


def test_file_of_a_later_format_is_refused() -> None:
    model = raw_model([node("Relu", "x", "y")])
    model.ir_version = 99
    assert message(model, UnsupportedError) == (
        f"import model: expected an IR version up to {onnx.IR_VERSION}, which the installed onnx "
        "package knows, got 99"
    )


def test_operator_older_than_its_converter_is_refused() -> None:
    model = raw_model([node("Range", "x x x", "y")], opset=7)
    assert message(model, UnsupportedError) == (
        "import model: 1 node is not supported\n  Range 'y': opset 7 is not supported; expected 11 or newer"
    )


def test_cycle_is_reported_with_its_nodes() -> None:
    model = raw_model(
        [node("Add", "x c", "a", name="first"), node("Relu", "a", "b", name="second"), node("Neg", "b", "c", name="third"),
         node("Relu", "b", "y")]
    )  # fmt: skip
    assert message(model) == (
        "import model: the graph must have no cycle, got Relu 'second' -> Neg 'third' -> Add 'first' -> Relu 'second'"
    )


def test_nodes_may_come_in_any_order() -> None:
    model = raw_model([node("Relu", "a", "y"), node("Neg", "x", "a")])
    assert from_onnx(model).attrs["output_names"] == ("y",)


def test_missing_initializer_is_named_with_its_reader() -> None:
    model = raw_model([node("Gemm", "x w b", "y", name="fc")])
    assert message(model) == (
        "import model: expected an initializer, input or node for each tensor; "
        "missing: 'w', input of Gemm 'fc'; 'b', input of Gemm 'fc'"
    )


def test_output_that_is_not_made_is_named() -> None:
    assert message(raw_model([node("Relu", "x", "y")], outputs="y z")) == (
        "import model: expected an initializer, input or node for each tensor; missing: 'z', output of the model"
    )


def test_names_made_twice_are_reported() -> None:
    model = raw_model([node("Relu", "x", "y"), node("Neg", "x", "y")])
    assert (
        message(model)
        == "import model: every tensor must be made once, but 'y' is made more than once"
    )


def test_foreign_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "photo.onnx"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    assert message(path) == (
        "import model 'photo.onnx': expected an ONNX model, got 264 bytes that do not parse as one "
        "(another format, or cut short)"
    )


def test_missing_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "none.onnx"
    assert (
        message(path)
        == f"import model 'none.onnx': cannot read {str(path)!r}: No such file or directory"
    )


def test_every_prefix_of_a_model_is_refused() -> None:
    whole = raw_model(
        [node("Gemm", "x w b", "y")], weights={"w": normal(3, 2), "b": normal(2)}
    ).SerializeToString()
    assert from_onnx(whole).attrs["output_names"] == ("y",)
    for length in range(len(whole)):
        with pytest.raises(ImportModelError):
            from_onnx(whole[:length])


def test_weight_with_too_few_bytes_is_refused() -> None:
    model = raw_model([node("Gemm", "x w", "y")], weights={"w": normal(3, 2)})
    model.graph.initializer[0].raw_data = b"1234"
    assert message(model).startswith("import model: initializer 'w' is broken: ")


def test_element_type_that_is_not_supported_is_named() -> None:
    model = raw_model([node("Identity", "x", "y")])
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.COMPLEX64
    assert (
        message(model, UnsupportedError)
        == "import model: input 'x': element type complex64 is not supported"
    )


def test_type_error_names_the_node() -> None:
    model = raw_model([node("Add", "x w", "y", name="sum")], weights={"w": normal(5)})
    assert message(model).startswith(
        "import model: Add 'sum': add: shapes (2, 3) and (5,) do not broadcast"
    )


def test_shape_for_an_input_that_is_not_there_is_refused() -> None:
    with pytest.raises(ImportModelError) as caught:
        from_onnx(raw_model([node("Relu", "x", "y")]), shape={"z": [1]})
    assert str(caught.value) == "import model: shape is given for 'z'; the inputs are 'x'"


def test_input_without_a_shape_asks_for_one() -> None:
    model = raw_model([node("Relu", "x", "y")])
    model.graph.input[0].type.tensor_type.ClearField("shape")
    assert message(model) == "import model: input 'x' has no shape; give one with shape={'x': ...}"
    assert from_onnx(model, shape={"x": [2, "n"]}).attrs["input_names"] == ("x",)


def test_default_attribute_that_is_unknown_to_the_converter_is_accepted() -> None:
    model = graph_model([node("Softmax", "x", "y", axis=-1)], {"x": normal(2, 3)}, ["y"])
    model.graph.node[0].attribute.extend(node("Dropout", "", "", seed=1).attribute)
    assert "unknown attribute 'seed'; supported are axis" in message(model, UnsupportedError)
    resize = node("Resize", "i r s", "y", mode="nearest", keep_aspect_ratio_policy="stretch")
    feed = {"i": normal(1, 1, 2, 2)}
    weights = {"r": np.zeros(0, np.float32), "s": np.array([1, 1, 2, 2], np.float32)}
    from_onnx(graph_model([resize], feed, ["y"], weights, opset=18))


def test_matmul_error_uses_model_names() -> None:
    built_model = graph_model([node("MatMul", "x w", "y", name="proj")], {"x": normal(2, 5)}, ["y"])
    built_model.graph.initializer.append(onnx.numpy_helper.from_array(normal(4, 3), "w"))
    with pytest.raises(ImportModelError) as caught:
        from_onnx(built_model)
    assert str(caught.value) == (
        "import model: MatMul 'proj': dimension 1 of the left input and dimension 0 of the right "
        "one must agree, got 5 and 4"
    )
    assert caught.value.__notes__[-1] == (
        "hint: it follows from the input 'x', Tensor[(2, 5), float32]; "
        "shape={name: (...)} gives other shapes"
    )


def outside(folder: Path) -> Path:
    """A model whose weight lies in a file beside it."""
    built_model = graph_model([node("Add", "x w", "y")], {"x": normal(3)}, ["y"], {"w": normal(3)})
    path = folder / "model.onnx"
    onnx.save(built_model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    return path


def test_weights_in_files_that_are_not_there(tmp_path: Path) -> None:
    path = outside(tmp_path)
    from_onnx(path)
    with pytest.raises(ImportModelError, match="'w' lies in the file 'w.bin', and a model without"):
        from_onnx(path.read_bytes())
    (tmp_path / "w.bin").write_bytes(b"123")
    with pytest.raises(ImportModelError, match="length .12. exceeds available data"):
        from_onnx(path)
    (tmp_path / "w.bin").unlink()
    with pytest.raises(ImportModelError, match="'w' lies in the file 'w.bin', which must be in"):
        from_onnx(path)
