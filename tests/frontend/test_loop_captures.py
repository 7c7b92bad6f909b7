"""Loop invariants: what a loop's body captures, or carries unchanged, is computed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import ekiden

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
ROWS, TURNS = 8, 7
X = np.random.default_rng(0).standard_normal((ROWS, ROWS)).astype(np.float32)
Nodes = list[onnx.NodeProto]
of = helper.make_tensor_value_info
node = helper.make_node


def constant(name: str, kind: int, data: np.ndarray) -> onnx.NodeProto:
    return node("Constant", [], [name], value=helper.make_tensor(name, kind, data.shape, data))


def body(nodes: Nodes, carried: str = "v", condition: str = "go") -> onnx.GraphProto:
    """The body of a Loop that carries one value, which `nodes` make into `after`."""
    shape = [ROWS, ROWS]
    return helper.make_graph(
        [*nodes, node("Identity", [condition], ["go_on"])],
        f"body_{carried}",
        [of("i", INT, []), of(condition, BOOL, []), of(carried, FLOAT, shape)],
        [of("go_on", BOOL, []), of("after", FLOAT, shape)],
    )


def model(before: Nodes, nodes: Nodes) -> onnx.ModelProto:
    """A Loop of TURNS iterations of `nodes` from x, and what comes before it."""
    shape = [ROWS, ROWS]
    loop = node("Loop", ["turns", "yes", "x"], ["y"], body=body(nodes))
    constants = [
        constant("turns", INT, np.array(TURNS)),
        constant("yes", BOOL, np.array(True)),
        constant("k", INT, np.array([ROWS])),
        constant("rows", INT, np.arange(ROWS)[::-1].copy()),
    ]
    graph = helper.make_graph(
        [*constants, *before, loop], "main", [of("x", FLOAT, shape)], [of("y", FLOAT, shape)]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def calls(result: onnx.ModelProto) -> Counter[str]:
    """How often each operator runs, alone or in a kernel with others."""
    report = ekiden.compile(result).profile(X, peak=False)
    return Counter(name for call in report.calls for name in call.title.split("+"))


def agrees(result: onnx.ModelProto) -> None:
    expected = ReferenceEvaluator(result).run(None, {"x": X})[0]
    actual = np.asarray(ekiden.compile(result)(X))
    np.testing.assert_allclose(actual, np.asarray(expected), rtol=1e-4, atol=1e-4)


ADDED = [node("Add", ["v", "big"], ["after"])]
INNER = helper.make_graph(
    [node("MatMul", ["u", "x"], ["next"]), node("Identity", ["ok"], ["still"])],
    "inner",
    [of("j", INT, []), of("ok", BOOL, []), of("u", FLOAT, [ROWS, ROWS])],
    [of("still", BOOL, []), of("next", FLOAT, [ROWS, ROWS])],
)
SCANNED = helper.make_graph(
    [node("Add", ["s", "row"], ["sum"]), node("Identity", ["sum"], ["part"])],
    "scanned",
    [of("s", FLOAT, [ROWS]), of("row", FLOAT, [ROWS])],
    [of("sum", FLOAT, [ROWS]), of("part", FLOAT, [ROWS])],
)
KINDS: dict[str, tuple[Nodes, dict[str, int]]] = {
    "operators": ([node("TopK", ["x", "k"], ["big", "at"])], {"topk": 1}),
    "data that may be refused": ([node("Gather", ["x", "rows"], ["big"])], {"take": 1}),
    "loop": (
        [
            constant("three", INT, np.array(3)),
            node("Loop", ["three", "yes", "x"], ["big"], body=INNER),
        ],
        {"matmul": 3, "dense": 3},
    ),
    "scan": (
        [
            constant("zero", FLOAT, np.zeros(ROWS, np.float32)),
            node("Scan", ["zero", "x"], ["end", "big"], num_scan_inputs=1, body=SCANNED),
        ],
        {"take": ROWS},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_loop_invariant_captures_are_computed_once(kind: str) -> None:
    before, expected = KINDS[kind]
    graph_model = model(before, ADDED)
    agrees(graph_model)
    counted = calls(graph_model)
    assert {n: counted[n] for n in expected if counted[n]}.items() <= expected.items()
    assert any(counted[n] for n in expected)


def test_captures_of_inner_branch_are_hoisted() -> None:
    """Also where it may be refused, as the model computes it outside."""
    taken = helper.make_graph(ADDED, "taken", [], [of("after", FLOAT, [ROWS, ROWS])])
    other = helper.make_graph(
        [node("Neg", ["v"], ["other"])], "other", [], [of("other", FLOAT, [ROWS, ROWS])]
    )
    nodes = [
        constant("two", INT, np.array(2)),
        node("Less", ["two", "i"], ["late"]),
        node("If", ["late"], ["after"], then_branch=taken, else_branch=other),
    ]
    graph_model = model([node("Gather", ["x", "rows"], ["big"])], nodes)
    agrees(graph_model)
    assert calls(graph_model)["take"] == 1


def test_consecutive_loops_take_linear_time() -> None:
    """Each reads the one before; their product would be 7^4 iterations."""
    nodes: Nodes = []
    for number in range(4):
        inside = [node("Add", ["v", "x" if not number else f"o{number - 1}"], ["after"])]
        nodes.append(node("Loop", ["turns", "yes", "x"], [f"o{number}"], body=body(inside)))
    graph_model = model(nodes, [node("Add", ["v", "o3"], ["after"])])
    agrees(graph_model)
    assert calls(graph_model)["less"] == 5 * (TURNS + 1)


def test_inner_loop_captures_from_the_body_around_it() -> None:
    """A value of the outer iteration is computed once in it, one from outside once in all."""
    inner = body([node("Add", ["u", "own"], ["a"]), node("Add", ["a", "big"], ["after"])], "u", "c")
    nodes = [
        node("Softmax", ["v"], ["own"]),
        node("Loop", ["turns", "yes", "x"], ["after"], body=inner),
    ]
    graph_model = model([node("TopK", ["x", "k"], ["big", "at"])], nodes)
    agrees(graph_model)
    counted = calls(graph_model)
    assert (counted["topk"], counted["nn.softmax"] + counted["softmax"]) == (1, TURNS)


def test_unchanged_loop_state_becomes_captured() -> None:
    shape = [ROWS, ROWS]
    nodes = [
        node("TopK", ["w", "k"], ["big", "at"]),
        node("Add", ["v", "big"], ["v2"]),
        node("Identity", ["w"], ["w2"]),
        node("Identity", ["go"], ["go2"]),
    ]
    inside = helper.make_graph(
        nodes,
        "body",
        [of("i", INT, []), of("go", BOOL, []), of("v", FLOAT, shape), of("w", FLOAT, shape)],
        [of("go2", BOOL, []), of("v2", FLOAT, shape), of("w2", FLOAT, shape)],
    )
    graph_model = model(
        [node("Loop", ["turns", "yes", "x", "x"], ["big", "same"], body=inside)], ADDED
    )
    agrees(graph_model)
    assert calls(graph_model)["topk"] == 1


def test_torch_loops_capture_what_is_computed_before() -> None:
    torch = pytest.importorskip("torch", reason="the package torch is not installed")
    while_loop: Callable[..., Any] = torch._higher_order_ops.while_loop

    class Looped(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:  # noqa: ANN401
            big = torch.sort(x, dim=1)[0]
            return while_loop(
                lambda i, v: i < TURNS, lambda i, v: (i + 1, v + big), (torch.tensor(0), x)
            )[1]

    x = torch.from_numpy(X)
    compiled = ekiden.compile(Looped().eval(), (x,))
    counted = Counter(c.title for c in compiled.profile(X, peak=False).calls)
    assert sum(n for title, n in counted.items() if "sort" in title) == 1
    np.testing.assert_allclose(np.asarray(compiled(X)), Looped()(x).numpy(), rtol=1e-5)
