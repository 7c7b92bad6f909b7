# ruff: noqa: ANN401 - graphs in a line, attributes as helper.make_node
"""If, Loop and Scan: nesting, captured values, changing shapes; against ONNX's reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import FLOAT, Array, Feed, compare, interpret, ints, normal

import ekiden
from ekiden.frontend.onnx import from_onnx
from ekiden.relay.expr import Function, If
from ekiden.relay.interpreter import Interpreter
from ekiden.relay.visitor import post_order
from ekiden.runtime.errors import ImportModelError, RunError

INT, BOOL = TensorProto.INT64, TensorProto.BOOL
Shape = Sequence[int | str | None]


def value(name: str, kind: int = FLOAT, shape: Shape = ()) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def node(
    op_type: str, inputs: str, outputs: str, name: str = "", **attributes: Any
) -> onnx.NodeProto:
    taken = [i.strip("-") for i in inputs.split()]
    return helper.make_node(op_type, taken, outputs.split(), name=name, **attributes)


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: str,
    weights: dict[str, Array] | None = None,
) -> onnx.GraphProto:
    results = [helper.make_empty_tensor_value_info(o) for o in outputs.split()]
    tensors = [onnx.numpy_helper.from_array(a, n) for n, a in (weights or {}).items()]
    return helper.make_graph(list(nodes), "graph", list(inputs), results, tensors)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: str,
    weights: dict[str, Array] | None = None,
    opset: int = 18,
) -> onnx.ModelProto:
    result = graph(nodes, inputs, outputs, weights)
    return helper.make_model(result, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def check(result: onnx.ModelProto, **feed: Any) -> None:
    arrays: Feed = {n: np.asarray(a) for n, a in feed.items()}
    compare(result, arrays, reference=True)
    compare_compiled(result, arrays)


def compare_compiled(result: onnx.ModelProto, feed: Feed) -> None:
    """The compiled program gives what the interpreter does."""
    actual = ekiden.compile(result)(**feed)
    expected = interpret(result, list(feed.values()))
    for ekiden_result, reference in zip(
        actual if isinstance(actual, tuple) else (actual,), expected, strict=True
    ):
        assert isinstance(ekiden_result, ekiden.Tensor)
        assert ekiden_result.shape == reference.shape
        np.testing.assert_allclose(ekiden_result.numpy(), reference, rtol=1e-5, atol=1e-5)


def branch(op_type: str, inputs: str, output: str = "r", **attributes: Any) -> onnx.GraphProto:
    return graph([node(op_type, inputs, output, **attributes)], [], output)


# If.


def test_if_captures_outer_values() -> None:
    nodes = [
        node("Relu", "x", "h"),
        node("If", "c", "y", then_branch=branch("Add", "h x"), else_branch=branch("Neg", "h")),
    ]
    graph_model = model(nodes, [value("c", BOOL), value("x", FLOAT, ["n", 3])], "y")
    for condition in (True, False):
        check(graph_model, c=condition, x=normal(2, 3))


def test_nested_ifs() -> None:
    inner = node(
        "If", "d", "r", then_branch=branch("Abs", "x", "a"), else_branch=branch("Neg", "h", "b")
    )
    then = graph([node("Exp", "x", "h"), inner], [], "r")
    nodes = [node("If", "c", "y", then_branch=then, else_branch=branch("Identity", "x"))]
    graph_model = model(
        nodes, [value("c", BOOL), value("d", BOOL, [1]), value("x", FLOAT, [2])], "y"
    )
    for c in (True, False):
        for d in (True, False):
            check(graph_model, c=c, d=[d], x=normal(2))


def test_branches_of_different_shapes() -> None:
    twice = graph([node("Concat", "x x", "r", axis=0)], [], "r")
    nodes = [
        node("If", "c", "h", then_branch=twice, else_branch=branch("Identity", "x")),
        node("Relu", "h", "y"),
        node("Shape", "y", "s"),
    ]
    graph_model = model(nodes, [value("c", BOOL), value("x", FLOAT, ["n", 3])], "y s")
    check(graph_model, c=True, x=normal(2, 3))
    check(graph_model, c=False, x=normal(2, 3))


def test_constant_condition_imports_one_branch() -> None:
    squeeze = branch("Squeeze", "x zero")
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "d"),
        node("Equal", "d one", "c"),
        node("If", "c", "y", then_branch=squeeze, else_branch=branch("Identity", "x")),
    ]
    weights = {"zero": ints(0), "one": ints(1)}
    for extent in (1, 2):
        graph_model = model(nodes, [value("x", FLOAT, [extent, 3])], "y", weights)
        main = from_onnx(graph_model)["main"]
        assert not any(isinstance(e, If) for e in post_order(main))
        check(graph_model, x=normal(extent, 3))


def rank_changing() -> onnx.ModelProto:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "d"),
        node("Equal", "d one", "c"),
        node(
            "If",
            "c",
            "h",
            name="pick",
            then_branch=branch("Squeeze", "x zero"),
            else_branch=branch("Identity", "x"),
        ),
        node("MatMul", "w h", "y"),
    ]
    weights = {"zero": ints(0), "one": ints(1), "w": normal(2, 3)}
    return model(nodes, [value("x", FLOAT, ["n", 3])], "y", weights)


def test_branches_of_different_ranks_continue_in_both() -> None:
    for extent in (1, 3):
        check_ranks(rank_changing(), x=normal(extent, 3))


def check_ranks(result: onnx.ModelProto, **feed: Array) -> None:
    """Compare an output of several ranks with ONNX's reference."""
    compare(result, feed, reference=True)


def test_data_condition_selects_the_special_case_branch() -> None:
    nodes = [
        node("Equal", "d one", "c"),
        node(
            "If",
            "c",
            "step",
            then_branch=branch("Identity", "zero"),
            else_branch=branch("Div", "d two"),
        ),
        node("Mul", "x step", "y"),
    ]
    weights = {"one": ints(1), "zero": ints(0), "two": ints(2)}
    graph_model = model(nodes, [value("d", INT, [1]), value("x", INT, [3])], "y", weights)
    check(graph_model, d=ints(8), x=ints(1, 2, 3))


def test_node_that_fails_in_all_branches_is_an_error() -> None:
    nodes = [
        node(
            "If",
            "c",
            "y",
            name="pick",
            then_branch=branch("MatMul", "x x"),
            else_branch=branch("MatMul", "x x"),
        )
    ]
    with pytest.raises(ImportModelError, match="MatMul 'r'") as caught:
        from_onnx(model(nodes, [value("c", BOOL), value("x", FLOAT, [2, 3])], "y"))
    assert "inside If 'pick'" in caught.value.__notes__


def test_expressions_of_shapes_are_chosen_symbolically() -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "d"),
        node("Greater", "d two", "c"),
        node(
            "If", "c", "k", then_branch=branch("Add", "d two"), else_branch=branch("Mul", "d two")
        ),
        node("Unsqueeze", "k zero", "t"),
        node("Expand", "x t", "y"),
    ]
    weights = {"zero": np.array(0), "two": np.array(2)}
    nodes[4] = node("Reshape", "k minus", "t")
    weights["minus"] = ints(-1)
    graph_model = model(nodes, [value("x", FLOAT, ["n"])], "y", weights)
    del nodes
    assert from_onnx(graph_model)["main"] is not None


# Loop.


def counting(
    step: Sequence[onnx.NodeProto], carried: str, scans: str = "", shapes: Shape = (2,)
) -> onnx.GraphProto:
    outputs = f"go_out {' '.join(f'{c}_out' for c in carried.split())} {scans}"
    inputs = [
        value("i", INT),
        value("go", BOOL),
        *(value(c, FLOAT, shapes) for c in carried.split()),
    ]
    return graph(step, inputs, outputs)


ADD = [node("Identity", "go", "go_out"), node("Add", "x w", "x_out")]


@pytest.mark.parametrize("trips", [0, 1, 5])
def test_loop_with_a_trip_count(trips: int) -> None:
    body = counting([*ADD, node("Mul", "x_out x", "y")], "x", "y")
    graph_model = model(
        [node("Loop", "n - x0", "x ys", body=body)],
        [value("n", INT), value("x0", FLOAT, [2]), value("w", FLOAT, [2])],
        "x ys",
    )
    graph_model.graph.node[0].input[1] = ""
    if trips:
        compare(graph_model, {"n": np.array(trips), "x0": normal(2), "w": normal(2, seed=1)})
    else:
        last, ys = Interpreter(from_onnx(graph_model)).evaluate(
            "main", np.array(0), normal(2), normal(2)
        )  # type: ignore[misc]
        np.testing.assert_array_equal(last, normal(2))
        assert ys.shape == (0, 2)


def test_empty_scan_outputs_have_iteration_extents() -> None:
    body = counting([*ADD, node("Mul", "x_out x", "y")], "x", "y", ["n", 3])
    inputs = [value("t", INT), value("x0", FLOAT, ["n", 3]), value("w", FLOAT, ["n", 3])]
    graph_model = model([node("Loop", "t - x0", "x ys", body=body)], inputs, "x ys")
    graph_model.graph.node[0].input[1] = ""
    _, ys = ekiden.compile(graph_model)(np.array(0), normal(2, 3), normal(2, 3))
    assert ys.shape == (0, 2, 3)


def test_loop_ends_by_its_condition() -> None:
    step = [
        node("Add", "x w", "x_out"),
        node("ReduceSum", "x_out", "total", keepdims=0),
        node("Less", "total limit", "go_out"),
    ]
    graph_model = model(
        [node("Loop", "n c x0", "x ys", body=counting([*step, node("Neg", "x", "y")], "x", "y"))],
        [value("n", INT), value("c", BOOL), value("x0", FLOAT, [2])],
        "x ys",
        {"w": np.ones(2, np.float32), "limit": np.array(9, np.float32)},
    )
    for n, c in ((100, True), (3, True)):
        check(graph_model, n=n, c=c, x0=np.zeros(2, np.float32))


def test_carried_value_grows() -> None:
    step = [node("Identity", "go", "go_out"), node("Concat", "x w", "x_out", axis=0)]
    graph_model = model(
        [
            node("Loop", "n c x0", "x", body=counting(step, "x")),
            node("Relu", "x", "y"),
            node("Shape", "y", "s"),
        ],
        [
            value("n", INT),
            value("c", BOOL),
            value("x0", FLOAT, ["k", 2]),
            value("w", FLOAT, [1, 2]),
        ],
        "y s",
    )
    check(graph_model, n=3, c=True, x0=normal(1, 2), w=normal(1, 2, seed=1))


def test_nested_loops() -> None:
    inner = counting([node("Identity", "go", "go_out"), node("Add", "x h", "x_out")], "x")
    step = [
        node("Identity", "go", "go_out"),
        node("Mul", "z w", "h"),
        node("Loop", "three go z", "z_out", body=inner),
    ]
    graph_model = model(
        [node("Loop", "n c x0", "y", body=counting(step, "z"))],
        [value("n", INT), value("c", BOOL), value("x0", FLOAT, [2]), value("w", FLOAT, [2])],
        "y",
        {"three": np.array(3)},
    )
    check(graph_model, n=2, c=True, x0=normal(2), w=normal(2, seed=1))


def test_loop_branch_uses_iteration_number() -> None:
    step = [
        node("Identity", "go", "go_out"),
        node("Equal", "i one", "first"),
        node(
            "If",
            "first",
            "x_out",
            then_branch=branch("Neg", "x"),
            else_branch=branch("Add", "x w", "q"),
        ),
    ]
    graph_model = model(
        [node("Loop", "n c x0", "y", body=counting(step, "x"))],
        [value("n", INT), value("c", BOOL), value("x0", FLOAT, [2])],
        "y",
        {"one": np.array(1), "w": normal(2)},
    )
    check(graph_model, n=4, c=True, x0=normal(2, seed=3))


@pytest.mark.parametrize("shape", [(), (1,)])
def test_loop_of_known_length_may_change_the_rank(shape: Shape) -> None:
    step = [node("Identity", "go", "go_out"), node("Unsqueeze", "x zero", "x_out")]
    step.append(node("ReduceSum", "x", "total", keepdims=0))
    graph_model = model(
        [node("Loop", "n - x0", "x totals", body=counting(step, "x", "total", (None,)))],
        [value("x0", FLOAT, [2])],
        "x totals",
        {"zero": ints(0), "n": np.full(shape, 3)},
    )
    for item in graph_model.graph.node[0].attribute[0].g.input[2:]:
        item.type.tensor_type.ClearField("shape")
    feed = {"x0": normal(2)}
    last, totals = ekiden.compile(graph_model)(**feed)
    np.testing.assert_array_equal(last.numpy(), feed["x0"][None, None, None])
    np.testing.assert_allclose(totals.numpy(), [feed["x0"].sum()] * 3, rtol=1e-6)


def test_loop_body_iteration_number_may_be_a_vector() -> None:
    """As older exporters declare it; also the condition."""
    body = graph(
        [
            node("Squeeze", "i zero", "at"),
            node("Gather", "rows at", "row"),
            node("Add", "x row", "x_out"),
            node("Identity", "go", "go_out"),
        ],
        [value("i", INT, [1]), value("go", BOOL, [1]), value("x", FLOAT, [3])],
        "go_out x_out",
    )
    graph_model = model(
        [node("Loop", "n c x0", "y", body=body)],
        [value("c", BOOL), value("x0", FLOAT, [3]), value("rows", FLOAT, [4, 3])],
        "y",
        {"zero": ints(0), "n": np.array(4)},
    )
    rows, x = normal(4, 3), normal(3, seed=1)
    result = ekiden.compile(graph_model)(c=np.array(True), x0=x, rows=rows)
    np.testing.assert_allclose(np.asarray(result), x + rows.sum(axis=0), rtol=1e-5)


def test_branches_of_different_dtypes_are_refused() -> None:
    branches = {"then_branch": branch("Neg", "x"), "else_branch": branch("Cast", "x", "q", to=INT)}
    graph_model = model(
        [node("If", "c", "y", name="either", **branches)],
        [value("c", BOOL), value("x", FLOAT, [2])],
        "y",
    )
    with pytest.raises(ImportModelError, match="If 'either': .*float32 and else_branch int64"):
        from_onnx(graph_model)


@pytest.mark.parametrize("count", [1, 2])
def test_slice_bounds_of_any_length(count: int) -> None:
    """Without axes they are those of the first ones; more than there are end the run."""
    graph_model = model(
        [node("Slice", "x starts ends", "y")],
        [value("x", FLOAT, ["a", "b"]), value("starts", INT, ["k"]), value("ends", INT, ["k"])],
        "y",
    )
    x = normal(3, 4)
    compiled = ekiden.compile(graph_model)
    result = compiled(x, np.full(count, 1), np.full(count, 3))
    np.testing.assert_array_equal(result.numpy(), x[(slice(1, 3),) * count])
    with pytest.raises(RunError):
        compiled(x, np.full(3, 1), np.full(3, 3))


# Scan.


@pytest.mark.parametrize("direction", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
def test_scan_matches_reference(direction: int, axis: int) -> None:
    body = graph(
        [node("Add", "s x", "t"), node("Mul", "t x", "y")],
        [value("s", FLOAT, [2]), value("x", FLOAT, [2])],
        "t y",
    )
    scan = node(
        "Scan", "s0 xs", "last ys", body=body, num_scan_inputs=1,
        scan_input_axes=[axis], scan_input_directions=[direction],
        scan_output_axes=[1 - axis], scan_output_directions=[1 - direction],
    )  # fmt: skip
    shape = ["n", 2] if axis == 0 else [2, "n"]
    graph_model = model([scan], [value("s0", FLOAT, [2]), value("xs", FLOAT, shape)], "last ys")
    xs = normal(5, 2) if axis == 0 else normal(2, 5)
    compare(graph_model, {"s0": normal(2, seed=1), "xs": xs})
    compare_compiled(graph_model, {"s0": normal(2, seed=1), "xs": xs})


def test_long_scan_is_not_unrolled() -> None:
    body = counting([*ADD, node("Mul", "x_out x", "y")], "x", "y")
    graph_model = model(
        [node("Loop", "n c x0", "x ys", body=body)],
        [value("c", BOOL), value("x0", FLOAT, [2]), value("w", FLOAT, [2])],
        "ys",
        {"n": np.array(1000)},
    )
    main = from_onnx(graph_model)["main"]
    assert isinstance(main, Function) and len(post_order(main)) < 100
    check(graph_model, c=True, x0=normal(2), w=normal(2) * 1e-3)
