"""Names, spans, outputs and weights of an imported model."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import compare, graph_model, normal

from ekiden.frontend.onnx import from_onnx
from ekiden.ir.structural import structural_equal
from ekiden.relay.expr import Call, Constant, Function, Tuple
from ekiden.relay.interpreter import Interpreter
from ekiden.relay.type_infer import infer_type
from ekiden.relay.visitor import post_order
from ekiden.runtime.errors import ImportModelError

pytestmark = pytest.mark.quick

JSON_NAME = '{"1": "1_minute_timer", "2": "other"}'


def node(
    op_type: str, inputs: list[str], outputs: list[str], **attributes: object
) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs, outputs, **attributes)


def main_of(model: onnx.ModelProto) -> Function:
    main = infer_type(from_onnx(model))["main"]
    assert isinstance(main, Function)
    return main


def test_original_names_are_kept_beside_sanitized_ones() -> None:
    inputs = {
        "onnx::Flatten_0": normal(2, 3),
        "a/b": normal(2, 3),
        "a b": normal(2, 3),
        "0": normal(2, 3),
    }
    nodes = [node("Sum", list(inputs), [JSON_NAME])]
    model = graph_model(nodes, inputs, [JSON_NAME])
    module = from_onnx(model)
    assert module.attrs["input_names"] == tuple(inputs)
    assert module.attrs["output_names"] == (JSON_NAME,)
    main = module["main"]
    assert isinstance(main, Function)
    assert [p.name_hint for p in main.params] == ["onnx_Flatten_0", "a_b", "a_b_1", "v0"]
    compare(model, inputs)


def test_outputs_may_be_inputs_weights_and_repeated() -> None:
    x = normal(2, 3)
    model = graph_model([node("Relu", ["x"], ["y"])], {"x": x}, ["x", "y", "w"], {"w": normal(4)})
    model.graph.output.append(model.graph.output[1])
    actual = Interpreter(from_onnx(model)).evaluate("main", x)
    assert isinstance(actual, tuple)
    for result, expected in zip(
        actual, [x, np.maximum(x, 0), normal(4), np.maximum(x, 0)], strict=True
    ):
        np.testing.assert_array_equal(result, expected)
    assert from_onnx(model).attrs["output_names"] == ("x", "y", "w", "y")


def test_every_expression_names_its_node() -> None:
    nodes = [
        node("Gemm", ["x", "w", "b"], ["h"], name="layer1/fc", alpha=0.5),
        node("HardSwish", ["h"], ["y"]),
    ]
    model = graph_model(nodes, {"x": normal(2, 3)}, ["y"], {"w": normal(3, 4), "b": normal(4)})
    main = main_of(model)
    calls = {str(e.span) for e in post_order(main) if isinstance(e, Call)}
    assert calls == {"Gemm 'layer1/fc'", "HardSwish 'y'"}
    spans = {str(e.span) for e in post_order(main) if isinstance(e, Constant)}
    assert spans == {"Gemm 'layer1/fc'", "HardSwish 'y'", "initializer 'b'"}
    assert [str(p.span) for p in main.params] == ["input 'x'"]


def test_value_used_twice_is_one_expression() -> None:
    nodes = [
        node("Split", ["x"], ["a", "b"], axis=1, num_outputs=2),
        node("Mul", ["a", "b"], ["p"]),
        node("Add", ["p", "a"], ["y"]),
    ]
    x = normal(2, 4)
    model = graph_model(nodes, {"x": x}, ["y"], opset=18)
    calls = [e for e in post_order(main_of(model)) if isinstance(e, Call)]
    assert len(calls) == 3
    compare(model, {"x": x})


def test_several_outputs_are_a_tuple_in_order() -> None:
    nodes = [node("Relu", ["x"], ["a"]), node("Neg", ["x"], ["b"])]
    main = main_of(graph_model(nodes, {"x": normal(2)}, ["b", "a"]))
    assert isinstance(main.body, Tuple)
    assert [f.op.name for f in main.body.fields] == ["negative", "nn.relu"]  # type: ignore[attr-defined]


def test_nodes_that_no_output_needs_are_left_out() -> None:
    nodes = [node("Relu", ["x"], ["y"]), node("NoSuchThing", ["x"], ["unused"])]
    model = graph_model(nodes[:1], {"x": normal(2)}, ["y"])
    model.graph.node.append(nodes[1])
    assert [
        e.span.source_name for e in post_order(main_of(model)) if isinstance(e, Call) and e.span
    ] == ["Relu 'y'"]


def test_weights_can_stay_parameters() -> None:
    x, w = normal(2, 3), normal(3, 4, seed=1)
    model = graph_model([node("MatMul", ["x", "w"], ["y"])], {"x": x}, ["y"], {"w": w})
    module = from_onnx(model, freeze_params=False)
    params = module.attrs["params"]
    assert isinstance(params, dict)
    assert list(params) == ["w"]
    assert module.attrs["input_names"] == ("x", "w")
    result = Interpreter(module).evaluate("main", x, params["w"])
    np.testing.assert_allclose(result, x @ w, rtol=1e-5)


def test_files_bytes_and_models_import_alike(tmp_path: Path) -> None:
    model = graph_model([node("Relu", ["x"], ["y"])], {"x": normal(2)}, ["y"])
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    for source in (model, model.SerializeToString(), path, str(path)):
        assert from_onnx(source).attrs["input_names"] == ("x",)


def test_external_weights_of_a_model(tmp_path: Path) -> None:
    x, w = normal(2, 300), normal(300, 40, seed=1)
    model = graph_model([node("MatMul", ["x", "w"], ["y"])], {"x": x}, ["y"], {"w": w})
    path = tmp_path / "m.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="m.data", size_threshold=16)
    result = Interpreter(from_onnx(path)).evaluate("main", x)
    np.testing.assert_allclose(result, x @ w, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_chain_of_many_nodes_imports() -> None:
    count = 5000
    nodes = [node("Relu", [f"t{i}"], [f"t{i + 1}"]) for i in range(count)]
    model = graph_model(nodes, {"t0": normal(2)}, [f"t{count}"])
    calls = [e for e in post_order(main_of(model)) if isinstance(e, Call)]
    assert len(calls) == count


def test_functions_of_the_model_are_inlined() -> None:
    body = [node("Mul", ["a", "a"], ["s"]), node("Add", ["s", "a"], ["b"])]
    result = helper.make_function(
        "local", "Poly", ["a"], ["b"], body, [helper.make_opsetid("", 17)]
    )
    call = helper.make_node("Poly", ["x"], ["y"], domain="local", name="poly")
    model = graph_model([], {"x": normal(3)}, ["y"])
    model.graph.node.append(call)
    model.functions.append(result)
    model.opset_import.append(helper.make_opsetid("local", 1))
    x = normal(3)
    np.testing.assert_allclose(
        Interpreter(from_onnx(model)).evaluate("main", x), x * x + x, rtol=1e-6
    )


def test_model_may_come_through_a_pipe() -> None:
    """Its size is not known before it is read."""
    proto = graph_model([node("Relu", ["x"], ["y"])], {"x": normal(2, 3)}, ["y"])
    data = proto.SerializeToString()
    read, write = os.pipe()
    try:
        with open(write, "wb") as file:
            file.write(data)
        module = from_onnx(Path(f"/dev/fd/{read}"))
    finally:
        os.close(read)
    assert structural_equal(module, from_onnx(data))


def test_empty_file_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "empty.onnx"
    path.write_bytes(b"")
    with pytest.raises(
        ImportModelError, match=r"import model 'empty\.onnx': expected an ONNX model"
    ):
        from_onnx(path)
