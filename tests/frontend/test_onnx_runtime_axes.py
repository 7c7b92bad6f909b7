"""Axes and lengths that come at run time, and axes of no elements: interpreted and compiled as in
ONNX Runtime and in ONNX's reference."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx_models import Array, agree, graph_model, ints, normal
from onnx_models import named_node as node

import ekiden
from ekiden.runtime.errors import IndexRangeError, RunError, UnsupportedError
from long_runs import share

pytestmark = pytest.mark.early
X = normal(2, 3, 4)
REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
    "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp",
)  # fmt: skip


@share(6)
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [(1,), (-1, 0), (0, 1, 2)])
@pytest.mark.parametrize("op_type", REDUCTIONS)
def test_reductions_over_runtime_axes_match_references(
    op_type: str, axes: tuple[int, ...], keepdims: int
) -> None:
    feed = {"x": np.abs(X), "a": ints(*axes)}
    agree([node(op_type, "x a", keepdims=keepdims)], feed)


@pytest.mark.parametrize("target", ["c", "llvm -mcpu=nehalem", "llvm -mcpu=haswell"])
def test_runtime_axis_reductions_match_on_each_target(target: str) -> None:
    feed = {"x": X, "a": ints(2, 0)}
    agree([node("ReduceSum", "x a", keepdims=0)], feed, opset=13, targets=(target,))
    agree([node("ReduceLogSumExp", "x a")], feed, targets=(target,))


@share(3)
@pytest.mark.parametrize("dtype", ["int64", "int32", "float16", "float64"])
@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceMean", "ReduceMax"])
def test_reductions_of_other_dtypes(op_type: str, dtype: str) -> None:
    """A mean of float16 is rounded once, of all axes."""
    feed = {"x": (100 * X).astype(dtype), "a": ints(1, 2)}
    if dtype == "float16":  # ONNX Runtime rounds the sum too
        feed["x"] = np.round(X * 4).astype(dtype)
    agree([node(op_type, "x a", keepdims=0)], feed)


@pytest.mark.parametrize("noop", [0, 1])
@pytest.mark.parametrize("axes", [(), (1,), (2, 0, -2)])
def test_runtime_number_of_axes_matches_references(axes: tuple[int, ...], noop: int) -> None:
    """Of no axes all are reduced, or none; what is done to each element is done all the same."""
    feed = {"x": X, "a": ints(*axes)}
    for op_type in ("ReduceSum", "ReduceL2"):
        reduction = node(op_type, "x a", noop_with_empty_axes=noop)
        agree([reduction], feed, symbolic=True, reference=not axes)
        agree([reduction], feed, reference=not axes)


@share(3)
@pytest.mark.parametrize("axes", [(1,), (0,), (1, 2)])
@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin"])
def test_reductions_of_empty_axes_match_references(op_type: str, axes: tuple[int, ...]) -> None:
    feed = {"x": np.zeros((2, 0, 3), np.float32), "a": ints(*axes)}
    for keepdims in (0, 1):
        agree([node(op_type, "x a", keepdims=keepdims)], feed, reference=True)


def test_computed_axes_match_references() -> None:
    """What stands behind goes on by the extents that are found."""
    nodes = [
        node("NonZero", "m", "n"),
        node("Reshape", "n flat", "a"),
        node("ReduceSum", "x a", "s"),
        node("Softmax", "s", "t"),
        node("Add", "t s"),
    ]
    for mask in ((1, 0, 1), (0, 0, 1), (1, 1, 1)):
        agree(nodes, {"x": X, "m": ints(*mask)}, {"flat": ints(-1)})
    by_shape = [node("Shape", "x", "a", end=1), node("ReduceSum", "x a", keepdims=0)]
    for first in (1, 2):
        agree(by_shape, {"x": normal(first, 3, 4)}, symbolic=True)


def test_invalid_runtime_axes_end_the_run() -> None:
    def run(*axes: int) -> None:
        feed = {"x": X, "a": ints(*axes)}
        model = graph_model([node("ReduceSum", "x a", keepdims=0)], feed, ["y"], opset=13)
        ekiden.compile(model)(**feed)

    with pytest.raises(IndexRangeError, match="'ReduceSum of y': index 3 at position 0 is out of"):
        run(3)
    with pytest.raises(RunError, match=r"'ReduceSum of y' .*each axis must be named once\)"):
        run(1, -2)
    feed = {"x": X, "a": ints(1)}
    model = graph_model([node("ReduceSum", "x a", keepdims=0)], feed, ["y"], symbolic=True)
    with pytest.raises(UnsupportedError, match="without 'keepdims' the number of 'axes' must be"):
        ekiden.compile(model)


@share(4)
@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("shape", [(2, 3, 4), (0, 3), (3, 0), (1, 0, 2)])
def test_hardmax_along_any_extent(shape: tuple[int, ...], dtype: str, opset: int) -> None:
    """Of none there is nothing to mark; the first of equals is marked, and what is no number."""
    x = np.round(normal(*shape)).astype(dtype)
    for axis in range(len(shape)):
        old = opset < 13  # the reference knows the newer meaning alone
        if old and dtype != "float32":
            continue
        for symbolic in (False, True):
            agree([node("Hardmax", "x", axis=axis)], {"x": x}, None, opset, symbolic, not old)
    if x.size and opset == 13:
        x[0, 1, 2] = np.nan
        agree([node("Hardmax", "x", axis=1)], {"x": x}, None, opset, True, True)


@share(6)
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("shape", [(3, 0), (0, 0), (0,), (1, 2)])
def test_scatter_nd_coordinate_count_follows_updates(
    shape: tuple[int, ...], reduction: str, symbolic: bool
) -> None:
    """By none an update is of all the data; the number follows from ranks where it has a name."""
    indices = np.ones(shape, np.int64)
    updates = normal(*shape[:-1], *X.shape[shape[-1] :], seed=1)
    feed = {"x": X, "i": indices, "u": updates if reduction != "none" else np.ones_like(updates)}
    agree([node("ScatterND", "x i u", reduction=reduction)], feed, None, 18, symbolic)


CASES: dict[str, tuple[onnx.NodeProto, dict[str, Array]]] = {
    "TopK": (node("TopK", "x k", "y i", axis=1), {"k": ints(2)}),
    "OneHot": (node("OneHot", "i d v"), {"i": ints(1, 0), "d": ints(3), "v": ints(2, 5)}),
    "Tile": (node("Tile", "x r"), {"r": ints(2, 1, 3)}),
    "Split": (node("Split", "x s", "y z", axis=1), {"s": ints(2, 1)}),
    "Resize": (node("Resize", "x - - s"), {"s": ints(2, 3, 7)}),
}


@pytest.mark.parametrize("name", CASES)
def test_vector_of_implied_length(name: str) -> None:
    """Sizes of a vector whose length the model does not say."""
    result, sizes = CASES[name]
    feed = {"x": X, **sizes} if "x" in result.input else sizes
    # ONNX Runtime wants to know how many sizes a Resize has.
    agree([result], feed, symbolic=True, reference=name == "Resize")


@pytest.mark.parametrize("shape", [(4, 0, 3), (0, 3), (2, 0, 2, 3), (0, 0, 3)])
def test_matmuls_without_rows_match_references(shape: tuple[int, ...]) -> None:
    """Axes are joined into rows, of which there are none."""
    feed = {"x": np.zeros(shape, np.float32)}
    agree([node("MatMul", "x w")], feed, {"w": normal(3, 5)})
