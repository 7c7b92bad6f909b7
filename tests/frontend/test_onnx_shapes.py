"""Shape arithmetic stays symbolic, what the model implies about dimensions is learned, and shapes
can be outputs.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, helper
from onnx_models import FLOAT, compare, graph_model, interpret, ints, normal

from ekiden import compile as compile_model
from ekiden.arith import Analyzer, evaluate
from ekiden.frontend.onnx import from_onnx
from ekiden.ir.prim import PrimExpr, SizeVar, Var
from ekiden.ir.type import TensorType
from ekiden.relay.expr import Call, Function
from ekiden.relay.visitor import post_order
from ekiden.runtime.errors import InputError

pytestmark = pytest.mark.quick


def node(op_type: str, inputs: str, output: str, **attributes: object) -> object:
    return helper.make_node(op_type, inputs.split(), output.split(), **attributes)


def main_of(model: ModelProto, **options: object) -> Function:
    main = from_onnx(model, **options)["main"]  # type: ignore[arg-type]
    assert isinstance(main, Function)
    return main


def result(main: Function) -> tuple[PrimExpr, ...]:
    assert isinstance(main.ret_type, TensorType)
    return main.ret_type.shape


def names(shape: tuple[PrimExpr, ...]) -> list[object]:
    return [d.name if isinstance(d, SizeVar) else getattr(d, "value", None) for d in shape]


def operators(main: Function) -> list[str]:
    return [e.op.name for e in post_order(main) if isinstance(e, Call)]  # type: ignore[attr-defined]


def test_shape_reversed_by_slice_without_axes() -> None:
    """An input that is left out has a place: what stands behind it is not taken for it."""
    slicing = helper.make_node("Slice", ["s", "last", "first", "", "back"], ["turned"])
    nodes = [node("Shape", "x", "s"), slicing, node("Reshape", "x turned", "y")]
    weights = {"last": ints(-1), "first": ints(-10), "back": ints(-1)}
    feed = {"x": normal(2, 3, 4)}
    for symbolic in (False, True):
        model = graph_model(nodes, feed, ["y"], weights, symbolic=symbolic)
        assert compile_model(model)(**feed).shape == (4, 3, 2)
    folded = graph_model([slicing], {"s": ints(5, 6, 7)}, ["turned"], weights)
    assert compile_model(folded)(ints(5, 6, 7)).numpy().tolist() == [7, 6, 5]


def test_reshape_by_shape_arithmetic_keeps_the_symbols() -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n"),
        node("Unsqueeze", "n axes", "n1"),
        node("Gather", "s one", "t"),
        node("Unsqueeze", "t axes", "t1"),
        node("Concat", "n1 t1 heads", "shape", axis=0),
        node("Reshape", "x shape", "y"),
    ]
    weights = {"zero": np.array(0), "one": np.array(1), "axes": ints(0), "heads": ints(3, -1)}
    x = normal(2, 5, 12)
    model = graph_model(nodes, {"x": x}, ["y"], weights)
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", FLOAT, ["batch", "time", 12]))
    main = main_of(model)
    assert names(result(main)) == ["batch", "time", 3, 4]
    assert operators(main) == ["reshape"]
    compare(model, {"x": x})


def test_exporters_expand_idiom_folds() -> None:
    """Where(Equal(shape, -1), ones, shape) is the shape itself: a dimension is never -1."""
    nodes = [
        node("Shape", "x", "s"),
        node("Shape", "s", "r"),
        node("ConstantOfShape", "r", "ones", value=helper.make_tensor("v", 7, [1], [1])),
        node("Mul", "ones minus", "minus_ones"),
        node("Equal", "s minus_ones", "open"),
        node("Where", "open ones s", "shape"),
        node("Expand", "table shape", "y"),
    ]
    x = normal(2, 5)
    model = graph_model(
        nodes, {"x": x}, ["y"], {"minus": np.array(-1), "table": normal(1, 1)}, symbolic=True
    )
    assert names(result(main_of(model))) == ["x_0", "x_1"]
    compare(model, {"x": x})


def test_slicing_a_table_bounds_the_dimension() -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s one", "t", axis=0),
        node("Slice", "table zero t axis", "rows"),
        node("Add", "x rows", "y"),
    ]
    weights = {"one": ints(1), "zero": ints(0), "axis": ints(0), "table": normal(16, 4, seed=1)}
    x = normal(2, 7, 4)
    model = graph_model(nodes, {"x": x}, ["y"], weights)
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", FLOAT, ["n", "t", 4]))
    module = from_onnx(model)
    main = module["main"]
    assert isinstance(main, Function)
    assert names(result(main)) == ["n", "t", 4]
    (time,) = [d for d in result(main) if isinstance(d, SizeVar) and d.name == "t"]
    assert time.upper == 16
    ((condition, where),) = constraints(module.attrs)
    assert where == "dimension 't'"
    assert [evaluate(condition, {time: n}) for n in (16, 17)] == [1, 0]
    compare(model, {"x": x})


def constraints(attrs: dict[str, object]) -> tuple[tuple[PrimExpr, str], ...]:
    actual = attrs["constraints"]
    assert isinstance(actual, tuple)
    return actual


def test_equal_dimensions_are_unified() -> None:
    a, b = normal(3, 4), normal(3, 2, seed=1)
    model = graph_model([node("Concat", "a b", "y", axis=1)], {"a": a, "b": b}, ["y"])
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("a", FLOAT, ["p", 4]))
    model.graph.input[1].CopyFrom(helper.make_tensor_value_info("b", FLOAT, ["q", 2]))
    main = main_of(model)
    shapes = [p.type_annotation.shape for p in main.params]  # type: ignore[union-attr]
    assert shapes[0][0] is shapes[1][0] is result(main)[0]
    compare(model, {"a": a, "b": b})


@pytest.mark.slow
def test_determined_dimension_becomes_constant() -> None:
    x, w = normal(2, 5), normal(5, 3)
    model = graph_model([node("MatMul", "x w", "y")], {"x": x}, ["y"], {"w": w})
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", FLOAT, ["n", "k"]))
    main = main_of(model)
    assert isinstance(main.params[0].type_annotation, TensorType)
    assert names(main.params[0].type_annotation.shape) == ["n", 5]
    compare(model, {"x": x})
    with pytest.raises(InputError, match=r"expected Tensor\[\(n, 5\), float32\], got \(2, 4\)"):
        compile_model(model)(normal(2, 4))


def test_later_batch_constraint_decides_squeeze() -> None:
    weights = {"w": normal(1, 12, 6), "r": normal(1, 12, 4)}
    nodes = [
        node("Squeeze", "x", "rows"),
        node("Relu", "rows", "y"),
        node("GRU", "x w r none none h", "z", hidden_size=4),
    ]
    feed = {"x": normal(5, 1, 6), "h": normal(1, 1, 4)}
    nodes[2].input[3:5] = ["", ""]  # type: ignore[attr-defined]
    model = graph_model(nodes, feed, ["y", "z"], weights)
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", FLOAT, [5, "batch", 6]))
    compare(model, feed)


def test_squeeze_without_axes_ignores_declared_output_rank() -> None:
    nodes = [node("ReduceSum", "x one", "s", keepdims=1), node("Squeeze", "s", "y")]
    model = graph_model(nodes, {"x": normal(1, 4)}, ["y"], {"one": ints(1)})
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", FLOAT, ["batch", 4]))
    declared = helper.make_tensor_value_info("y", FLOAT, [])
    for output in (declared, helper.make_empty_tensor_value_info("y")):
        model.graph.output[0].CopyFrom(output)
        for rows in (1, 3):
            compare(model, {"x": normal(rows, 4)})


def test_resize_to_other_image_takes_its_extent() -> None:
    nodes = [
        node("MaxPool", "x", "small", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        node("Resize", "small  scales", "large", mode="nearest"),
        node("Add", "x large", "sum"),
        node("Relu", "sum", "y"),
    ]
    nodes[1].input[:] = ["small", "", "scales"]  # type: ignore[attr-defined]
    x = normal(1, 2, 6, 8)
    scales = np.array([1, 1, 2, 2], np.float32)
    model = graph_model(nodes, {"x": x}, ["y"], {"scales": scales}, symbolic=True)
    module = from_onnx(model)
    main = module["main"]
    assert isinstance(main, Function)
    assert names(result(main)) == ["x_0", "x_1", "x_2", "x_3"]
    height = result(main)[2]
    assert isinstance(height, Var)
    condition = next(c for c, where in constraints(module.attrs) if "Resize" in where)
    assert [evaluate(condition, {height: n}) for n in (6, 7)] == [1, 0]
    compare(model, {"x": x})


def test_resize_to_determined_extent() -> None:
    nodes = [
        node("Resize", "x none scales", "large", mode="nearest"),
        node("Add", "large b", "sum"),
        node("MatMul", "sum w", "y"),
    ]
    nodes[0].input[1] = ""  # type: ignore[attr-defined]
    feed = {"x": normal(1, 2, 3, 4), "b": normal(1, 2, 6, 8)}
    weights = {"scales": np.array([1, 1, 2, 2], np.float32), "w": normal(8, 5)}
    model = graph_model(nodes, feed, ["y"], weights, symbolic=True)
    compare(model, feed)
    main = main_of(model)
    assert isinstance(main.params[1].type_annotation, TensorType)
    assert names(main.params[1].type_annotation.shape)[3] == 8


def test_unequal_symbols_that_broadcast_are_a_condition_on_the_inputs() -> None:
    model = graph_model(
        [node("Add", "a b", "y")], {"a": normal(3), "b": normal(3)}, ["y"], symbolic=True
    )
    module = from_onnx(model)
    ((condition, where),) = constraints(module.attrs)
    assert where == "Add 'y'"
    main = module["main"]
    assert isinstance(main, Function)
    a, b = (p.type_annotation.shape[0] for p in main.params)  # type: ignore[union-attr]
    assert [evaluate(condition, {a: m, b: n}) for m, n in ((3, 3), (1, 3), (3, 1), (2, 3))] == [
        1,
        1,
        1,
        0,
    ]
    for feed in ((normal(3), normal(3)), (normal(1), normal(3)), (normal(3), normal(1))):
        assert interpret(model, feed)[0].shape == (3,)


def test_shape_values_that_are_needed_at_run_time_are_computed() -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s one", "t"),
        node("Mul", "t two", "twice"),
        node("Div", "s three", "thirds"),
        node("Cast", "t", "real", to=1),
        node("Mul", "x real", "scaled"),
    ]
    weights = {"one": np.array(1), "two": np.array(2), "three": np.array(3)}
    x = normal(4, 7)
    model = graph_model(nodes, {"x": x}, ["s", "twice", "thirds", "scaled"], weights, symbolic=True)
    compare(model, {"x": x})


def test_unnamed_dimensions_get_names() -> None:
    model = graph_model([node("Relu", "x", "y")], {"x": normal(2, 3, 4)}, ["y"])
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", FLOAT, ["?", None, "?"]))
    assert names(result(main_of(model))) == ["x_dim0", "x_dim1", "x_dim2"]


def test_shape_argument_overrides_model_shapes() -> None:
    model = graph_model([node("Relu", "x", "y")], {"x": normal(2, 3)}, ["y"], symbolic=True)
    assert names(result(main_of(model, shape={"x": [5, "rows"]}))) == [5, "rows"]


def test_weight_made_by_constant_of_shape_is_a_constant() -> None:
    nodes = [node("ConstantOfShape", "s", "w"), node("MatMul", "x w", "y")]
    model = graph_model(nodes, {"x": normal(2, 300)}, ["y"], {"s": ints(300, 40)})
    assert operators(main_of(model)) == ["nn.dense"]


def test_product_with_a_constant_is_a_dense_layer_for_any_rank() -> None:
    x = normal(2, 3, 4, 5)
    model = graph_model(
        [node("MatMul", "x w", "y")], {"x": x}, ["y"], {"w": normal(5, 6)}, symbolic=True
    )
    assert operators(main_of(model)) == ["nn.dense"]
    compare(model, {"x": x})


def test_symbols_of_shapes_are_never_negative() -> None:
    model = graph_model([node("Relu", "x", "y")], {"x": normal(2)}, ["y"], symbolic=True)
    (size,) = result(main_of(model))
    assert Analyzer().can_prove(size >= 0)


@pytest.mark.parametrize(("rows", "columns"), [(3, 4), (1, 7)])
def test_range_with_symbolic_step(rows: int, columns: int) -> None:
    x = normal(rows, columns)
    nodes = [
        node("Shape", "x", "n", start=1, end=2),
        node("Squeeze", "n", "step"),
        node("Size", "x", "all"),
        node("Range", "zero all step", "y"),
    ]
    weights = {"zero": np.array(0, np.int64)}
    model = graph_model(nodes, {"x": x}, ["y"], weights, symbolic=True)  # type: ignore[arg-type]
    compare(model, {"x": x})


@pytest.mark.slow
def test_data_dependent_slices_can_be_added() -> None:
    """The extents are compared at run time: the sum keeps neither of their names."""
    x = normal(9)
    nodes = [
        node("Slice", "x zero n zero", "first"),
        node("Exp", "first", "grown"),
        node("Slice", "x m n zero", "second"),
        node("Add", "grown second", "y"),
    ]
    counts = {"n": ints(5), "m": ints(4)}
    model = graph_model(nodes, {"x": x, **counts}, ["y"], {"zero": ints(0)})  # type: ignore[arg-type]
    actual = compile_model(model)(x, counts["n"], counts["m"]).numpy()
    np.testing.assert_allclose(actual, np.exp(x[:5]) + x[4:5], rtol=1e-6)


LEAST, MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@pytest.mark.parametrize("step", [1, 2, -1, -3])
def test_slices_by_data_of_any_size(step: int) -> None:
    """Bounds that are no indices are clamped, however far away. ONNX lets a start before the axis
    be its first element, backwards too, where NumPy gives nothing."""
    weights = {"axis": ints(0), "step": ints(step)}
    inputs = {"x": normal(5, 2), "first": ints(0), "last": ints(0)}
    cut = node("Slice", "x first last axis step", "y")
    model = graph_model([cut], inputs, ["y"], weights, symbolic=True)  # type: ignore[arg-type, list-item]
    compiled = compile_model(model, shape={"first": (1,), "last": (1,)})
    for count in 0, 1, 5:
        x = normal(count, 2)
        for first in LEAST, -100, -3, 0, 2, 100, MOST:
            for last in LEAST, LEAST + 1, -100, -3, 0, 3, 100, MOST:
                begin = max(first, -count) if step < 0 else first
                end = None if step < 0 and last < -count else last
                actual = compiled(x, ints(first), ints(last)).numpy()
                np.testing.assert_array_equal(actual, x[begin:end:step])
