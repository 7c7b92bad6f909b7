"""Sequences and optionals: known at import, loop-carried, as inputs and outputs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_models import FLOAT, Array, ints, normal
from test_onnx_control import BOOL, INT, graph, model, node, value

import ekiden
from ekiden.frontend.onnx import from_onnx
from ekiden.relay.interpreter import Interpreter
from ekiden.relay.op.sequence import elements
from ekiden.runtime import get_global_func
from ekiden.runtime.errors import ImportModelError, InputError, RunError, UnsupportedError


def sequence(name: str, shape: tuple[int | str, ...] | None = None) -> onnx.ValueInfoProto:
    element = helper.make_tensor_type_proto(FLOAT, shape)
    return helper.make_value_info(name, helper.make_sequence_type_proto(element))


def as_lists(result: object) -> object:
    if isinstance(result, ekiden.Tensor):
        return result.numpy()
    return [as_lists(item) for item in result] if isinstance(result, (list, tuple)) else result


def same(actual: object, wanted: object) -> None:
    if isinstance(wanted, (list, tuple)):
        assert isinstance(actual, (list, tuple)) and len(actual) == len(wanted)
        for a, b in zip(actual, wanted, strict=True):
            same(a, b)
    else:
        assert isinstance(actual, np.ndarray) and actual.shape == np.shape(wanted)
        np.testing.assert_allclose(actual, wanted, rtol=1e-5)


def check(result: onnx.ModelProto, **feed: object) -> ekiden.Executable:
    """Compiled as ONNX's reference."""
    executable: ekiden.Executable = ekiden.compile(result)
    actual = as_lists(executable(**feed))
    expected = ReferenceEvaluator(result).run(None, feed)  # type: ignore[arg-type]
    same(actual if len(expected) > 1 else [actual], expected)
    return executable


def test_known_sequences_emit_no_runtime_lists() -> None:
    nodes = [
        node("SequenceConstruct", "x y", "a"),
        node("SequenceInsert", "a x zero", "b"),
        node("SequenceErase", "b one", "c"),
        node("SequenceAt", "c one", "d"),
        node("SequenceLength", "c", "n"),
        node("ConcatFromSequence", "b", "e", axis=0),
        node("ConcatFromSequence", "c", "f", axis=1, new_axis=1),
    ]
    weights = {"zero": np.array(0), "one": np.array(1)}
    graph_model = model(
        nodes, [value("x", FLOAT, [2, 3]), value("y", FLOAT, [2, 3])], "d n e f", weights
    )
    executable = check(graph_model, x=normal(2, 3), y=normal(2, 3, seed=1))
    assert "host_functions" not in executable.raw.metadata


def test_sequence_elements_may_differ_in_rank() -> None:
    nodes = [node("SequenceConstruct", "x y", "a"), node("SequenceAt", "a last", "d")]
    graph_model = model(
        nodes, [value("x", FLOAT, [2, 3]), value("y", FLOAT, [4])], "d", {"last": np.array(-1)}
    )
    check(graph_model, x=normal(2, 3), y=normal(4))


def growing(
    nodes: list[onnx.NodeProto], outputs: str, weights: dict[str, Array]
) -> onnx.ModelProto:
    """A loop that puts x * 1, x * 2, ... into a sequence `s`."""
    body = graph(
        [
            node("Identity", "go", "go_out"),
            node("Add", "x acc", "acc_out"),
            node("SequenceInsert", "s acc_out", "s_out"),
        ],
        [
            value("i", INT),
            value("go", BOOL),
            value("acc", FLOAT, ["k", 2]),
            sequence("s", ("k", 2)),
        ],
        "go_out acc_out s_out",
    )
    first = [node("SequenceEmpty", "", "s0"), node("Loop", "n true x s0", "acc_last s", body=body)]
    inputs = [value("n", INT), value("x", FLOAT, ["k", 2])]
    return model([*first, *nodes], inputs, outputs, {"true": np.array(True), **weights})


@pytest.mark.parametrize("trips", [1, 4])
def test_loop_fills_a_sequence(trips: int) -> None:
    nodes = [
        node("SequenceAt", "s zero", "a"),
        node("SequenceAt", "s last", "b"),
        node("SequenceLength", "s", "length"),
        node("SequenceInsert", "s x zero", "longer"),
        node("SequenceErase", "longer last", "other"),
        node("ConcatFromSequence", "s", "c", axis=0),
        node("ConcatFromSequence", "s", "d", axis=1, new_axis=1),
    ]
    weights = {"zero": np.array(0), "last": np.array(-1)}
    result = growing(nodes, "a b length other c d s", weights)
    executable = check(result, n=np.array(trips), x=normal(3, 2))
    assert "ek.sequence.at" in executable.raw.metadata["host_functions"]  # type: ignore[operator]
    assert executable.outputs[-1].dtype == "sequence of float32"


def test_empty_sequence_comes_out() -> None:
    result = growing([], "s", {})
    assert ekiden.compile(result)(n=np.array(0), x=normal(3, 2)) == []


def test_out_of_range_sequence_position_is_an_error() -> None:
    result = growing([node("SequenceAt", "s p", "a")], "a", {"p": np.array(5)})
    with pytest.raises(RunError, match="position 5 is out of range for 2 elements"):
        ekiden.compile(result)(n=np.array(2), x=normal(3, 2))
    known = [node("SequenceConstruct", "x", "s"), node("SequenceAt", "s p", "a")]
    with pytest.raises(UnsupportedError, match="position 5 is out of range for 1 elements"):
        from_onnx(model(known, [value("x", FLOAT, [2])], "a", {"p": np.array(5)}))


@pytest.mark.parametrize("argument", [None, np.array(2), ints(1, 4)])
@pytest.mark.parametrize("extent", [5, "n"])
def test_split_to_sequence_matches_reference(argument: Array | None, extent: int | str) -> None:
    nodes = [
        node("SplitToSequence", "x" if argument is None else "x sizes", "s", axis=1),
        node("SequenceMap", "s", "t", body=graph([node("Relu", "e", "f")], [value("e")], "f")),
        node("ConcatFromSequence", "t", "y", axis=1),
    ]
    weights = {} if argument is None else {"sizes": argument}
    graph_model = model(nodes, [value("x", FLOAT, [2, extent])], "y", weights)
    x = normal(2, 5)
    result = as_lists(ekiden.compile(graph_model)(x))
    same(result, np.maximum(x, 0))


def test_sequence_is_an_input() -> None:
    nodes = [node("SequenceLength", "s", "n"), node("ConcatFromSequence", "s", "y", axis=0)]
    graph_model = model(nodes, [sequence("s", ("k", 2))], "n y")
    executable = ekiden.compile(graph_model)
    parts = [normal(1, 2), normal(3, 2)]
    same(as_lists(executable(parts)), [np.array(2), np.concatenate(parts)])
    with pytest.raises(
        InputError, match=r"input 's\[1\]': expected Tensor\[\(s_0, 2\), float32\], got"
    ):
        executable([normal(1, 2), normal(1, 3)])
    with pytest.raises(InputError, match="expected a list of tensors"):
        executable(normal(1, 2))


def test_sequence_of_known_length_is_as_many_inputs() -> None:
    nodes = [node("SequenceAt", "s p", "y")]
    graph_model = model(nodes, [sequence("s")], "y", {"p": np.array(1)})
    with pytest.raises(ImportModelError, match="the elements of the sequence 's' have no shape"):
        from_onnx(graph_model)
    executable = ekiden.compile(graph_model, shape={"s": [(2,), (3, 4)]})
    assert [i.name for i in executable.inputs] == ["s.0", "s.1"]
    same(as_lists(executable(normal(2), normal(3, 4))), normal(3, 4))


def test_optional_values_are_known_at_import() -> None:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, [2]))
    there, gone = branch_of("OptionalGetElement"), graph([node("Neg", "x", "m")], [], "m")
    nodes = [
        node("OptionalHasElement", "o", "has"),
        node("If", "has", "y", then_branch=there, else_branch=gone),
    ]
    graph_model = model(nodes, [helper.make_value_info("o", kind), value("x", FLOAT, [2])], "y")
    o, x = normal(2), normal(2, seed=1)
    same(as_lists(ekiden.compile(graph_model)(o, x)), o)
    same(as_lists(ekiden.compile(graph_model, shape={"o": None})(x)), -x)


def branch_of(op_type: str) -> onnx.GraphProto:
    return graph([node(op_type, "o", "g")], [], "g")


def test_interpreted_sequences() -> None:
    result = Interpreter(from_onnx(growing([], "s", {}))).evaluate(
        "main", np.array(3), normal(1, 2)
    )
    same(elements(result), [normal(1, 2) * k for k in (2, 3, 4)])


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("length", (3,)), ("length", ()), ("at", (ekiden.runtime.ADT(1, ()), 0)),
        ("at", (ekiden.runtime.ADT(0, (1, 2)), 0)), ("insert", (ekiden.runtime.ADT(1, ()), 1, 7)),
        ("erase", (ekiden.runtime.ADT(1, ()), -1)), ("concat", (ekiden.runtime.ADT(1, ()), 0)),
        ("concat", (ekiden.runtime.ADT(0, (5, ekiden.runtime.ADT(1, ()))), 0)),
        ("stack", (ekiden.runtime.ADT(1, ()), 1, 2, 0)), ("split", (1, 2, 3, 4)),
        ("split", (normal(2), ints(3), 0, 1)), ("split", (normal(2), ints(-1, 3), 0, 1)),
    ],
)  # fmt: skip
def test_sequence_functions_check_their_arguments(name: str, args: tuple[object, ...]) -> None:
    with pytest.raises((TypeError, RunError)):
        get_global_func(f"ek.sequence.{name}")(*args)


def test_input_in_mixed_shape_sequence_keeps_its_shape() -> None:
    nodes = [
        node("Transpose", "x", "t"),
        node("SequenceConstruct", "x t", "a"),
        node("SequenceInsert", "a x k", "b"),
        node("SequenceAt", "b one", "y"),
    ]
    graph_model = model(
        nodes, [value("x", FLOAT, ["n", 4]), value("k", INT)], "y", {"one": np.array(1)}
    )
    check(graph_model, x=normal(3, 4), k=np.array(0))
