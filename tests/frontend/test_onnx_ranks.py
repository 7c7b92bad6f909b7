# ruff: noqa: ANN401 - graphs in a line, attributes as helper.make_node
"""Values of data-dependent rank, from branches and loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import FLOAT, Feed, evaluated, ints, normal
from test_onnx_control import BOOL, INT, branch, counting, graph, model, node, value

import ekiden
from ekiden.frontend.onnx import from_onnx
from ekiden.relay.expr import Match
from ekiden.relay.interpreter import Interpreter
from ekiden.relay.visitor import post_order
from ekiden.runtime.errors import ImportModelError, InputError, RunError, UnsupportedError
from onnx_runtime import run_onnx_runtime

EXECUTORS = ("vm", "aot", "async")


def check(output: onnx.ModelProto, *feeds: Feed, executors: tuple[str, ...] = ("vm",)) -> None:
    """All executors and the interpreter give what ONNX Runtime does, of its ranks."""
    programs = [ekiden.compile(output, executor=e) for e in executors]
    interpreter = Interpreter(from_onnx(output))
    for feed in feeds:
        expected = run_onnx_runtime(output, feed)
        results = [evaluated(interpreter, list(feed.values()))]
        for program in programs:
            actual = program(**feed)
            results.append([np.from_dlpack(t) for t in _all(actual)])
        for result in results:
            for ekiden_result, reference in zip(result, expected, strict=True):
                assert (
                    ekiden_result.shape == reference.shape
                    and ekiden_result.dtype == reference.dtype
                )
                np.testing.assert_allclose(ekiden_result, reference, rtol=1e-5, atol=1e-6)


def _all(result: Any) -> tuple[ekiden.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def choice(output: str = "q", name: str = "pick") -> onnx.NodeProto:
    """x where c holds, else x with one axis more."""
    return node(
        "If", "c", output, name=name,
        then_branch=branch("Identity", "x"), else_branch=branch("Unsqueeze", "x zero"),
    )  # fmt: skip


INPUTS = [value("x", FLOAT, [4]), value("c", BOOL)]
WEIGHTS = {"zero": ints(0)}
BOTH: list[Feed] = [{"x": normal(4), "c": np.array(c)} for c in (True, False)]


@pytest.mark.parametrize("op_type", ["Relu", "Softmax", "ReduceSum", "Shape", "Size"])
def test_code_after_branches_of_different_ranks_is_duplicated(op_type: str) -> None:
    nodes = [choice(), node(op_type, "q", "y"), node("Neg", "q", "z")]
    check(model(nodes, INPUTS, "y z q", WEIGHTS), *BOTH, executors=EXECUTORS)


def test_ranks_merge_after_rank_normalizing_node() -> None:
    nodes = [choice(), node("Exp", "q", "e"), node("Flatten", "e", "f", axis=0)]
    nodes += [node("Add", "f w", "a"), node("Relu", "a", "y")]
    graph_model = model(nodes, INPUTS, "y", {**WEIGHTS, "w": normal(4)})
    check(graph_model, *BOTH)
    matches = [e for e in post_order(from_onnx(graph_model)["main"]) if isinstance(e, Match)]
    assert len(matches) == 1
    assert str(ekiden.compile(graph_model).outputs[0]) == "y: float32[1, 4]"


def test_branches_that_read_a_value_of_several_ranks() -> None:
    inner = node(
        "If", "c", "y", name="again",
        then_branch=branch("Neg", "q"), else_branch=branch("ReduceMax", "q", keepdims=0),
    )  # fmt: skip
    check(model([choice(), inner], INPUTS, "y", WEIGHTS), *BOTH)


def test_branch_inside_a_branch_gives_three_ranks() -> None:
    deep = graph([node("Unsqueeze", "x axes", "r")], [], "r")
    inner = node("If", "d", "r", then_branch=branch("Unsqueeze", "x zero"), else_branch=deep)
    outer = node(
        "If", "c", "q", then_branch=branch("Identity", "x"), else_branch=graph([inner], [], "r")
    )
    graph_model = model(
        [outer, node("Softmax", "q", "y"), node("ReduceSum", "y", "z", keepdims=0)],
        [*INPUTS, value("d", BOOL)], "y z", {**WEIGHTS, "axes": ints(0, 1)},
    )  # fmt: skip
    feeds = [
        {"x": normal(4), "c": np.array(c), "d": np.array(d)}
        for c in (True, False) for d in (True, False)
    ]  # fmt: skip
    check(graph_model, *feeds, executors=EXECUTORS)


def test_ranks_of_two_conditionals_combine() -> None:
    other = node(
        "If", "d", "r",
        then_branch=branch("Identity", "x"), else_branch=branch("Unsqueeze", "x axes"),
    )  # fmt: skip
    nodes = [choice(), other, node("Add", "q r", "y"), node("Mul", "q q", "z")]
    inputs = [*INPUTS, value("d", BOOL)]
    graph_model = model(nodes, inputs, "y z r", {**WEIGHTS, "axes": ints(0, 2)})
    feeds = [
        {"x": normal(4), "c": np.array(c), "d": np.array(d)}
        for c in (True, False) for d in (True, False)
    ]  # fmt: skip
    check(graph_model, *feeds)


def test_outputs_of_one_branch_have_correlated_ranks() -> None:
    then = graph([node("Identity", "x", "a"), node("Neg", "x", "b")], [], "a b")
    other = graph([node("Unsqueeze", "x zero", "a"), node("Unsqueeze", "x axes", "b")], [], "a b")
    nodes = [
        node("If", "c", "p q", then_branch=then, else_branch=other), node("Add", "p q", "y"),
        node("Concat", "p p", "z", axis=0),
    ]  # fmt: skip
    graph_model = model(nodes, INPUTS, "y z", {**WEIGHTS, "axes": ints(0, 1)})
    check(graph_model, *BOTH)


def test_function_of_the_model_takes_a_value_of_several_ranks() -> None:
    body = [node("Relu", "a", "r"), node("Add", "r a", "b")]
    imports = [helper.make_opsetid("", 18)]
    function = helper.make_function("own", "Twice", ["a"], ["b"], body, imports)
    call = helper.make_node("Twice", ["q"], ["y"], domain="own")
    graph_model = model([choice(), call], INPUTS, "y", WEIGHTS)
    graph_model.functions.append(function)
    graph_model.opset_import.append(helper.make_opsetid("own", 1))
    check(graph_model, *BOTH)


def test_unsupported_rank_is_a_runtime_error() -> None:
    """And costs nothing: the program is that of the other branch."""
    nodes = [choice(), node("Exp", "q", "e"), node("Conv", "e w", "y", name="late")]
    inputs = [value("x", FLOAT, [1, 4]), value("c", BOOL)]
    graph_model = model(nodes, inputs, "y", {**WEIGHTS, "w": normal(1, 1, 3)})
    good, bad = ({"x": normal(1, 4), "c": np.array(c)} for c in (False, True))
    exe = ekiden.compile(graph_model)
    np.testing.assert_allclose(
        np.from_dlpack(_all(exe(**good))[0]), run_onnx_runtime(graph_model, good)[0], rtol=1e-5
    )
    with pytest.raises(RunError, match=r"If 'pick': then_branch is taken, but .*Conv 'late'"):
        exe(**bad)
    matches = [
        e for e in post_order(from_onnx(graph_model)["main"]) if isinstance(e, Match) and e.clauses
    ]
    assert matches == []


def test_rank_of_no_branch_is_an_import_error() -> None:
    nodes = [choice(), node("Conv", "q w", "y", name="late")]
    graph_model = model(nodes, INPUTS, "y", {**WEIGHTS, "w": normal(1, 1, 3)})
    with pytest.raises(ImportModelError, match="Conv 'late'"):
        from_onnx(graph_model)


def test_facts_are_separate_per_rank() -> None:
    """A product in the branch of matrices says n == 3, which vectors need not meet."""
    then = graph([node("MatMul", "x w", "r")], [], "r")
    other = branch("ReduceSum", "x axes", keepdims=0)
    pick = node("If", "c", "q", then_branch=then, else_branch=other)
    graph_model = model(
        [pick, node("Relu", "q", "y")], [value("x", FLOAT, ["m", 3]), value("c", BOOL)], "y",
        {"w": normal(3, 2), "axes": ints(1)},
    )  # fmt: skip
    check(
        graph_model, *({"x": normal(n, 3), "c": np.array(c)} for n in (1, 5) for c in (True, False))
    )


@pytest.mark.parametrize(
    "executor", ["vm", *(pytest.param(e, marks=pytest.mark.long) for e in ("aot", "async"))]
)
def test_loop_carries_a_value_whose_rank_grows(executor: str) -> None:
    step = [node("Identity", "go", "go_out"), node("Unsqueeze", "x zero", "x_out")]
    step.append(node("ReduceSum", "x", "total", keepdims=0))
    result = unranked(model(
        [node("Loop", "n - x0", "x totals", body=counting(step, "x", "total"))],
        [value("n", INT), value("x0", FLOAT, [2])], "x totals", WEIGHTS,
    ))  # fmt: skip
    feeds = [{"n": np.array(n), "x0": normal(2)} for n in (0, 1, 3, 7)]
    check(result, *feeds, executors=(executor,))
    with pytest.raises(RunError, match="'x': more than 8 combinations of ranks"):
        ekiden.compile(result, executor=executor)(n=np.array(8), x0=normal(2))


def unranked(result: onnx.ModelProto) -> onnx.ModelProto:
    """The model with no shapes of what its loop carries."""
    for item in result.graph.node[0].attribute[0].g.input[2:]:
        item.type.tensor_type.ClearField("shape")
    return result


def test_loop_ranks_may_alternate() -> None:
    step = [
        node("Identity", "go", "go_out"),
        node("Mod", "i two", "p"),
        node("Cast", "p", "odd", to=BOOL),
        node(
            "If", "odd", "x_out",
            then_branch=branch("Squeeze", "x zero"), else_branch=branch("Unsqueeze", "x zero"),
        ),
        node("Add", "k one", "k_out"),
    ]  # fmt: skip
    result = unranked(model(
        [node("Loop", "n - x0 k0", "y k", body=counting(step, "x k")), node("Relu", "y", "z")],
        [value("n", INT), value("x0", FLOAT, [3]), value("k0", FLOAT, [])], "z k",
        {**WEIGHTS, "two": np.array(2), "one": np.float32(1).reshape(())},
    ))  # fmt: skip
    feeds = [{"n": np.array(n), "x0": normal(3), "k0": normal()} for n in (0, 1, 2, 5)]
    check(result, *feeds)


def test_loop_that_changes_a_dtype_is_refused() -> None:
    step = [node("Identity", "go", "go_out"), node("Cast", "x", "x_out", to=INT)]
    result = unranked(model(
        [node("Loop", "n - x0", "y", name="turn", body=counting(step, "x"))],
        [value("n", INT), value("x0", FLOAT, [2])], "y",
    ))  # fmt: skip
    with pytest.raises(ImportModelError, match="Loop 'turn': the carried value 'x' must keep"):
        from_onnx(result)


def test_output_of_several_ranks_is_saved_loaded_and_described(tmp_path: Path) -> None:
    graph_model = model([choice("y")], INPUTS, "y", WEIGHTS)
    exe = ekiden.compile(graph_model)
    assert str(exe.outputs[0]) == "y: any rank of float32[...]"
    exe.save(tmp_path / "m.eki")
    loaded = ekiden.load(tmp_path / "m.eki")
    for feed in BOTH:
        np.testing.assert_array_equal(
            np.from_dlpack(_all(loaded(**feed))[0]), run_onnx_runtime(graph_model, feed)[0]
        )
    with pytest.raises(InputError, match="out 'y': the output is a any rank of float32"):
        exe(**BOTH[0], out=np.zeros(4, np.float32))


def test_rank_cases_are_merged_to_bound_their_number() -> None:
    """Of six choices whether to have an axis more come 64 cases, but 7 ranks."""
    nodes, before = [], "x"
    for at in range(6):
        longer, same = branch("Unsqueeze", f"{before} zero"), branch("Identity", before)
        nodes.append(node("If", f"c{at}", f"q{at}", then_branch=longer, else_branch=same))
        nodes.append(node("Neg", f"q{at}", f"n{at}"))
        before = f"n{at}"
    inputs = [value("x", FLOAT, [4]), *(value(f"c{at}", BOOL) for at in range(6))]
    graph_model = model([*nodes, node("Exp", before, "y")], inputs, "y", WEIGHTS)
    feeds: list[Feed] = [
        {"x": normal(4), **{f"c{at}": np.array(bool(number >> at & 1)) for at in range(6)}}
        for number in (0, 5, 63)
    ]
    check(graph_model, *feeds)


def test_too_many_rank_cases_are_refused() -> None:
    nodes, names = [], []
    for at in range(6):
        nodes.append(choice(f"q{at}", f"pick{at}"))
        names.append(f"q{at}")
    graph_model = model([*nodes, node("Sum", " ".join(names), "y")], INPUTS, "y", WEIGHTS)
    with pytest.raises(ImportModelError, match="Sum 'y': more than 32 combinations of ranks"):
        from_onnx(graph_model)


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ([2, "n", 3], [(2, 1, 3), (2, 4, 3)]),
        (["n", "n"], [(1, 1), (3, 3)]),
        (["a", "b", 1, 5], [(1, 1, 1, 5), (1, 2, 1, 5), (3, 1, 1, 5), (3, 2, 1, 5)]),
    ],
)
def test_squeeze_without_axes_drops_runtime_unit_axes(
    shape: list[int | str], sizes: list[tuple[int, ...]]
) -> None:
    nodes = [node("Squeeze", "x", "q"), node("Relu", "q", "y")]
    nodes.append(node("ReduceSum", "q", "z", keepdims=0))
    graph_model = model(nodes, [value("x", FLOAT, shape)], "y z")
    check(graph_model, *({"x": normal(*size)} for size in sizes), executors=EXECUTORS)


def test_squeeze_without_axes_ends_the_run_where_a_later_node_refuses_the_rank() -> None:
    nodes = [node("Squeeze", "x", "q"), node("Conv", "q w", "y", name="late")]
    inputs = [value("x", FLOAT, ["n", 2, 5])]
    exe = ekiden.compile(model(nodes, inputs, "y", {"w": normal(3, 2, 1)}))
    assert _all(exe(x=normal(4, 2, 5)))[0].shape == (4, 3, 5)
    with pytest.raises(RunError, match=r"Squeeze 'q': the branch of extents of 1 .*Conv 'late'"):
        exe(x=normal(1, 2, 5))


def test_squeeze_without_axes_of_too_many_sizes_is_refused_with_what_helps() -> None:
    dims = [f"n{axis}" for axis in range(8)]
    graph_model = model([node("Squeeze", "x", "y")], [value("x", FLOAT, dims)], "y")
    with pytest.raises(UnsupportedError, match=r"Squeeze 'y': .* shape= says which"):
        from_onnx(graph_model)


def test_axes_are_known_in_each_rank_case() -> None:
    """Which are integers of one rank in both, but other ones."""
    nodes = [
        choice(), node("Shape", "q", "s"), node("Shape", "s", "r"), node("Squeeze", "r zero", "k"),
        node("Range", "first k step", "axes"), node("ReduceMax", "q axes", "y", keepdims=0),
    ]  # fmt: skip
    numbers = {"first": np.array(0), "step": np.array(1)}
    check(model(nodes, INPUTS, "y", {**WEIGHTS, **numbers}), *BOTH)


def test_strings_whose_rank_depends_on_the_run_are_refused() -> None:
    text = value("x", onnx.TensorProto.STRING, ["n", 3])
    squeeze = model([node("Squeeze", "x", "y")], [text], "y")
    inputs = [value("x", onnx.TensorProto.STRING, [4]), value("c", BOOL)]
    for result in (squeeze, model([choice("y", "late")], inputs, "y", WEIGHTS)):
        with pytest.raises(UnsupportedError, match=r"(Squeeze 'y'|If 'late'): strings whose rank"):
            from_onnx(result)
