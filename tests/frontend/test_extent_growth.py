"""Extents that are made of themselves layer by layer: their text stays short, and what is compiled
grows with the layers alone.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import ekiden
from ekiden.frontend.common.scope import MAX_EXTENT_NODES
from ekiden.frontend.onnx import from_onnx
from ekiden.ir.prim import PrimExpr
from ekiden.ir.prim_visitor import children, has_more_nodes
from ekiden.ir.type import TensorType
from ekiden.relay.expr import Function
from ekiden.relay.transform.language.scope_tree import evaluation_order
from ekiden.topi.dimensions import is_unknown_dim

Nodes = list[onnx.NodeProto]
Layer = Callable[[Nodes, str, str], str]
WIDTH = 8
WEIGHT = (np.random.default_rng(0).standard_normal((WIDTH, WIDTH)) / 8).astype(np.float32)
HEADS = {"all": [0, 0, 2, 4], "merged": [1, -1, 2, 4], "fives": [-1, 5, 2, 4]}
of = helper.make_tensor_value_info


def model(layers: int, layer: Layer, **inputs: Sequence[Any]) -> onnx.ModelProto:
    """As many layers from x; inputs are float32, by name and shape."""
    nodes: Nodes = []
    last = "x"
    for number in range(layers):
        last = layer(nodes, last, f"l{number}_")
    nodes.append(helper.make_node("Relu", [last], ["y"]))
    weights = [onnx.numpy_helper.from_array(WEIGHT, "w")]
    shapes = {**HEADS, "joined": [0, -1, WIDTH]}
    weights += [onnx.numpy_helper.from_array(np.array(v), n) for n, v in shapes.items()]
    arguments = [of(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    graph = helper.make_graph(nodes, "g", arguments, [of("y", TensorProto.FLOAT, None)], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def attention(heads: str, mask: str | None) -> Layer:
    """Self-attention whose heads are made by one of the reshapes, with a residual addition; `mask`
    names the input that is added to the scores, in which {} is the number of the layer.
    """

    def layer(nodes: Nodes, x: str, p: str) -> str:
        def add(op: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:  # noqa: ANN401
            nodes.append(helper.make_node(op, inputs, [p + output], **attributes))
            return p + output

        split = add("Reshape", [add("MatMul", [x, "w"], "q"), heads], "h")
        rows = add("Transpose", [split], "t", perm=[0, 2, 1, 3])
        scores = add("MatMul", [rows, add("Transpose", [split], "k", perm=[0, 2, 3, 1])], "s")
        if mask is not None:
            scores = add("Add", [scores, mask.format(p[1:-1])], "m")
        mixed = add("MatMul", [add("Softmax", [scores], "p", axis=-1), rows], "a")
        back = add("Transpose", [mixed], "b", perm=[0, 2, 1, 3])
        return add("Add", [add("Reshape", [back, "joined"], "c"), x], "y")

    return layer


def extents(result: onnx.ModelProto) -> int:
    """How many nodes the extents of all types of the imported program have together; none is above
    the limit.
    """
    main = from_onnx(result)["main"]
    assert isinstance(main, Function)
    kinds = (e.checked_type_or_none() for e in evaluation_order(main.body))
    dims = [d for k in kinds if isinstance(k, TensorType) for d in k.shape]
    assert not any(has_more_nodes(d, 8 * MAX_EXTENT_NODES) for d in dims)
    return sum(map(nodes_of, dims))


def nodes_of(dim: PrimExpr) -> int:
    """How many nodes an extent is written with."""
    count, stack = 0, [dim]
    while stack:
        count += 1
        stack.extend(children(stack.pop()))
    return count


def run(result: onnx.ModelProto, **feed: np.ndarray) -> None:
    """Compare a compiled model with ONNX's reference."""
    expected = ReferenceEvaluator(result).run(None, feed)[0]
    executable = ekiden.compile(result)
    actual = executable(*(feed[i.name] for i in executable.inputs))
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=1e-4, atol=1e-4)


X = np.random.default_rng(1).standard_normal((1, 5, WIDTH)).astype(np.float32)
ONE_MASK = attention("all", "mask")


def size(result: onnx.ModelProto) -> int:
    """Bytes of the artifact."""
    artifact = io.BytesIO()
    ekiden.compile(result).save(artifact)
    return len(artifact.getvalue())


def test_masked_layer_extents_grow_linearly() -> None:
    """Of 48 layers each adds the same: the extent of a residual is that of the one before."""

    def masked(layers: int) -> onnx.ModelProto:
        return model(layers, ONE_MASK, x=["b", "s", WIDTH], mask=["bm", 1, 1, "sm"])

    few, some, many = (extents(masked(n)) for n in (3, 6, 48))
    assert many - some == 14 * (some - few)
    assert size(masked(48)) < 3 * size(masked(6))


@pytest.mark.parametrize("mask", [(3, 1, 1, 5), (1, 1, 1, 5), (3, 1, 1, 1), (1, 1, 1, 1)])
@pytest.mark.parametrize("batch", [1, 3])
def test_masks_broadcast(batch: int, mask: tuple[int, ...]) -> None:
    graph_model = model(3, ONE_MASK, x=["b", "s", WIDTH], mask=["bm", 1, 1, "sm"])
    random = np.random.default_rng(2)
    x = random.standard_normal((batch, 5, WIDTH)).astype(np.float32)
    run(graph_model, x=x, mask=random.standard_normal(mask).astype(np.float32))


def test_incompatible_mask_is_refused() -> None:
    graph_model = model(2, ONE_MASK, x=["b", "s", WIDTH], mask=["bm", 1, 1, "sm"])
    with pytest.raises(ekiden.EkidenError):
        ekiden.compile(graph_model)(
            np.ones((2, 5, WIDTH), np.float32), np.ones((3, 1, 1, 5), np.float32)
        )


def test_extents_of_layers_with_own_masks_stay_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extent is one of 7 sizes, which is bound to a symbol before it is written out: one that
    only the run knows.
    """
    monkeypatch.setattr("ekiden.frontend.common.scope.MAX_EXTENT_NODES", 20)
    graph_model = model(
        6,
        attention("all", "mask{}"),
        x=["b", "s", WIDTH],
        **{f"mask{n}": [f"b{n}", 1, 1, f"s{n}"] for n in range(6)},
    )
    imported = from_onnx(graph_model)["main"]
    assert isinstance(imported, Function)
    kind = imported.body.checked_type
    assert isinstance(kind, TensorType) and is_unknown_dim(kind.shape[0])
    masks = {f"mask{n}": np.ones((1, 1, 1, 5 if n % 2 else 1), np.float32) for n in range(6)}
    run(graph_model, x=X, **masks)


@pytest.mark.parametrize("heads", HEADS)
def test_merged_axis_extents_grow_linearly(heads: str) -> None:
    """b * select(b * s == 1, s, b * s) and so on, each of the one before."""
    few, many = (extents(model(n, attention(heads, None), x=["b", "s", WIDTH])) for n in (6, 18))
    assert many < 3 * few + 12 * 30 * MAX_EXTENT_NODES
    run(model(6, attention(heads, None), x=["b", "s", WIDTH]), x=X)


def test_residual_of_two_names_has_one_extent() -> None:
    def layer(nodes: Nodes, z: str, p: str) -> str:
        for op, inputs, output in (
            ("Add", [z, "y0"], "a"),
            ("Softmax", [p + "a"], "b"),
            ("Add", [p + "b", z], "c"),
            ("Add", [p + "c", "x"], "d"),
        ):
            nodes.append(helper.make_node(op, inputs, [p + output]))
        return p + "d"

    graph_model = model(13, layer, x=["n", 4], y0=["m", 4])
    executable = ekiden.compile(graph_model)
    assert str(executable.outputs[0].shape[0]) == "select(n == 1, m, n)"
    random = np.random.default_rng(3)
    for n, m in ((3, 1), (1, 3), (3, 3), (1, 1)):
        rows = [random.standard_normal((count, 4)).astype(np.float32) for count in (n, m)]
        run(graph_model, x=rows[0], y0=rows[1])


@pytest.mark.parametrize(("left", "right"), [(3, 1), (1, 3), (3, 3)])
def test_batch_matmul_broadcasts_at_run_time(left: int, right: int) -> None:
    nodes = [helper.make_node("MatMul", ["x", "k"], ["z"]), helper.make_node("Relu", ["z"], ["y"])]
    inputs = [of("x", 1, ["a", "b", 4]), of("k", 1, ["g", 4, 4])]
    graph = helper.make_graph(nodes, "g", inputs, [of("y", 1, None)])
    graph_model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    random = np.random.default_rng(4)
    x = random.standard_normal((left, 7, 4)).astype(np.float32)
    run(graph_model, x=x, k=random.standard_normal((right, 4, 4)).astype(np.float32))
