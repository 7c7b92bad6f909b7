"""Functions of the model, operators registered from Python, weights beside the file, notes of
errors.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import FLOAT, compare, interpret, normal
from test_onnx_control import BOOL, branch, graph, model, node, value

import ekiden
from ekiden.frontend.onnx import from_onnx, register, survey
from ekiden.frontend.onnx.node import OnnxNode
from ekiden.frontend.onnx.registry import CONVERTER_TABLE
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.runtime.errors import ImportModelError, UnsupportedError

OWN = "com.example"


def function(
    name: str,
    nodes: list[onnx.NodeProto],
    inputs: str,
    outputs: str,
    opset: int = 18,
    **more: object,
) -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(OWN, 1)]
    return helper.make_function(OWN, name, inputs.split(), outputs.split(), nodes, imports, **more)


def with_functions(result: onnx.ModelProto, *functions: onnx.FunctionProto) -> onnx.ModelProto:
    result.functions.extend(functions)
    result.opset_import.append(helper.make_opsetid(OWN, 1))
    return result


def own(op_type: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs.split(), outputs.split(), domain=OWN, **attributes)


def test_functions_call_functions() -> None:
    square = function("Square", [node("Mul", "a a", "b")], "a", "b")
    norm = function(
        "Norm", [own("Square", "x", "s"), node("ReduceSum", "s", "y", keepdims=1)], "x", "y"
    )
    result = with_functions(
        model([own("Norm", "x", "y")], [value("x", FLOAT, ["n", 3])], "y"), norm, square
    )
    compare(result, {"x": normal(2, 3)})
    assert {o.name: o.implementation_kind for o in survey(result).operators} == {"Norm": "function"}


def test_function_has_attributes_and_a_version_of_its_own() -> None:
    inner = node("Softmax", "x", "y")  # of opset 11: over all axes from 1
    inner.attribute.append(
        onnx.AttributeProto(name="axis", ref_attr_name="at", type=onnx.AttributeProto.INT)
    )
    old = function("Old", [inner], "x", "y", opset=11, attributes=["at"])
    output = with_functions(
        model([own("Old", "x", "y", at=1)], [value("x", FLOAT, [2, 3, 4])], "y"), old
    )
    (result,) = interpret(output, [normal(2, 3, 4)])
    np.testing.assert_allclose(result.reshape(2, -1).sum(1), 1, rtol=1e-5)


def test_function_is_called_in_a_branch_and_has_branches() -> None:
    choose = function(
        "Choose",
        [node("If", "c", "y", then_branch=branch("Neg", "x"), else_branch=branch("Abs", "x", "s"))],
        "c x",
        "y",
    )
    then = graph([own("Choose", "c x", "r")], [], "r")
    nodes = [node("If", "c", "y", then_branch=then, else_branch=branch("Identity", "x", "q"))]
    output = with_functions(model(nodes, [value("c", BOOL), value("x", FLOAT, [2])], "y"), choose)
    for c in (True, False):
        (result,) = interpret(output, [np.array(c), normal(2)])
        np.testing.assert_allclose(result, -normal(2) if c else normal(2))


def test_functions_that_call_themselves_are_refused() -> None:
    one = function("One", [own("Two", "x", "y")], "x", "y")
    two = function("Two", [own("One", "x", "y")], "x", "y")
    result = with_functions(model([own("One", "x", "y")], [value("x", FLOAT, [2])], "y"), one, two)
    with pytest.raises(ImportModelError, match="functions must not call themselves: 'One', 'Two'"):
        from_onnx(result)


def test_what_is_not_supported_inside_a_function_is_listed() -> None:
    bad = function("Bad", [node("Sigmoidd", "x", "y", name="inside")], "x", "y")
    result = with_functions(model([own("Bad", "x", "y")], [value("x", FLOAT, [2])], "y"), bad)
    with pytest.raises(UnsupportedError, match="Sigmoidd 'inside': unknown operator"):
        from_onnx(result)


def test_operator_is_registered_from_python() -> None:
    graph_model = model([own("Scale", "x", "y", factor=3.0)], [value("x", FLOAT, ["n"])], "y")
    graph_model.opset_import.append(helper.make_opsetid(OWN, 1))
    with pytest.raises(UnsupportedError, match="Scale 'y': unknown operator"):
        from_onnx(graph_model)
    try:

        @register(OWN, "Scale", attributes="factor")
        def scale(at: OnnxNode) -> Expr:
            return op.multiply(at.expr(0), const(at.get_float("factor", 1.0)))

        result = ekiden.compile(graph_model)(normal(4))
        assert isinstance(result, ekiden.Tensor)
        np.testing.assert_allclose(result.numpy(), 3 * normal(4), rtol=1e-6)
        with pytest.raises(ValueError, match="version 1 is there"):
            register(OWN, "Scale")(scale)
    finally:
        del CONVERTER_TABLE[OWN, "Scale"]


def test_external_weights_of_a_function(tmp_path: Path) -> None:
    graph_model = model(
        [node("MatMul", "x w", "y")], [value("x", FLOAT, [2, 64])], "y", {"w": normal(64, 32)}
    )
    path = tmp_path / "big.onnx"
    onnx.save(graph_model, path, save_as_external_data=True, location="big.data", size_threshold=16)
    result = ekiden.compile(path)(normal(2, 64))
    assert isinstance(result, ekiden.Tensor)
    np.testing.assert_allclose(result.numpy(), normal(2, 64) @ normal(64, 32), rtol=1e-4, atol=1e-4)
    (tmp_path / "big.data").unlink()
    with pytest.raises(ImportModelError, match="must be in the folder of the model"):
        from_onnx(path)


def test_errors_list_the_producing_nodes() -> None:
    nodes = [
        node("Relu", "x", "a", name="first"),
        node("Transpose", "a", "b", name="second"),
        node("Add", "b w", "y", name="sum"),
    ]
    graph_model = model(nodes, [value("x", FLOAT, [2, 3])], "y", {"w": normal(5, 5)})
    with pytest.raises(ImportModelError, match="Add 'sum'") as caught:
        from_onnx(graph_model)
    assert caught.value.__notes__ == [
        "its input 'b' is Tensor[(3, 2), float32]",
        "its input 'w' is Tensor[(5, 5), float32]",
        "made by Transpose 'second' <- Relu 'first'",
        "hint: it follows from the input 'x', Tensor[(2, 3), float32]; "
        "shape={name: (...)} gives other shapes",
    ]
