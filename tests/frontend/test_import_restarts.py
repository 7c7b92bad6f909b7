"""Imports that begin again with what they have learnt: nothing of an attempt but facts reaches the
next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import ekiden
from ekiden.frontend.common.dim_facts import RestartImport
from ekiden.frontend.common.scope import Scope
from ekiden.frontend.onnx import from_onnx
from ekiden.ir.prim import PrimExpr, SizeVar
from ekiden.ir.prim_visitor import free_vars
from ekiden.ir.structural import structural_equal
from ekiden.ir.type import TensorType
from ekiden.relay.expr import Function
from ekiden.relay.visitor import post_order, type_post_order

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
of, node = helper.make_tensor_value_info, helper.make_node


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, tuple[int, Sequence[Any]]],
    weights: dict[str, np.ndarray],
) -> onnx.ModelProto:
    """A model that gives y."""
    tensors = [onnx.numpy_helper.from_array(a, n) for n, a in weights.items()]
    arguments = [of(name, kind, shape) for name, (kind, shape) in inputs.items()]
    graph = helper.make_graph(nodes, "g", arguments, [of("y", FLOAT, None)], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


LENGTHS = {
    "zero": np.array(0),
    "one": np.array(1),
    "axes": np.array([0, 1]),
    "scales": np.array([1, 1, 2], np.float32),
}
FRAMES = [
    node("ReduceSum", ["durations"], ["frames"], keepdims=0),
    node("Range", ["zero", "frames", "one"], ["steps"]),
    node("Cast", ["steps"], ["times"], to=FLOAT),
    node("Unsqueeze", ["times", "axes"], ["track"]),
]
"""A length that is data: the sum of predicted durations."""
NEAREST = {
    "mode": "nearest",
    "coordinate_transformation_mode": "asymmetric",
    "nearest_mode": "floor",
}
INPUTS: dict[str, tuple[int, Sequence[Any]]] = {
    "x": (FLOAT, [1, 1, "a"]),
    "durations": (INT, ["k"]),
}
RESIZED_FIRST = model(
    [
        node("Resize", ["x", "", "scales"], ["up"], **NEAREST),
        *FRAMES,
        node("Add", ["up", "track"], ["both"]),
        node("Resize", ["both", "", "scales"], ["twice"], **NEAREST),
        node("Relu", ["twice"], ["y"]),
    ],
    INPUTS,
    LENGTHS,
)
RESIZED_LAST = model(
    [
        *FRAMES,
        node("Resize", ["track", "", "scales"], ["up"], **NEAREST),
        node("Add", ["up", "x"], ["both"]),
        node("MatMul", ["both", "w"], ["product"]),
        node("Relu", ["product"], ["y"]),
    ],
    {**INPUTS, "w": (FLOAT, ["b", "c"])},
    LENGTHS,
)
BODY = helper.make_graph(
    [
        node("MatMul", ["v", "x2"], ["next"]),
        node("Identity", ["go"], ["on"]),
    ],
    "body",
    [of("i", INT, []), of("go", BOOL, []), of("v", FLOAT, ["r", "s"])],
    [of("on", BOOL, []), of("next", FLOAT, ["r", "s"])],
)
LOOPED = model(
    [
        node("NonZero", ["u"], ["places"]),
        node("Cast", ["places"], ["p"], to=FLOAT),
        node("Transpose", ["p"], ["pt"], perm=[1, 0]),
        node("MatMul", ["pt", "x1"], ["m"]),
        node("Loop", ["trips", "", "m"], ["last"], body=BODY),
        node("Relu", ["last"], ["y"]),
    ],
    {"u": (FLOAT, ["n"]), "x1": (FLOAT, ["e", "f"]), "x2": (FLOAT, ["g", "h"])},
    {"trips": np.array(2)},
)
MODELS = {"resized first": RESIZED_FIRST, "resized last": RESIZED_LAST, "looped": LOOPED}
ROW = np.arange(4, dtype=np.float32).reshape(1, 1, 4)
FEEDS = {
    "resized first": {"x": ROW, "durations": np.array([3, 4, 1])},
    "resized last": {
        "x": np.concatenate([ROW, ROW], axis=2),
        "durations": np.array([3, 1]),
        "w": np.arange(24, dtype=np.float32).reshape(8, 3),
    },
    "looped": {
        "u": np.array([1, 0, 2, 3], np.float32),
        "x1": np.ones((1, 2), np.float32),
        "x2": np.eye(2, dtype=np.float32),
    },
}


@pytest.mark.parametrize("name", MODELS)
def test_data_dependent_lengths_meet_resized_extents(name: str) -> None:
    result, feed = MODELS[name], FEEDS[name]
    expected = ReferenceEvaluator(result).run(None, feed)[0]
    executable = ekiden.compile(result)
    actual = executable(*(feed[i.name] for i in executable.inputs))
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=1e-5)


def symbols_of(function: Function) -> set[SizeVar]:
    """The symbols in the types of a function."""
    kinds = (e.checked_type_or_none() for e in post_order(function.body, into_functions=True))
    types = [t for k in kinds if k is not None for t in type_post_order(k)]
    dims: list[PrimExpr] = [d for t in types if isinstance(t, TensorType) for d in t.shape]
    return {v for v in free_vars(*dims) if isinstance(v, SizeVar)}


@pytest.mark.parametrize("name", MODELS)
def test_import_attempts_share_no_symbols(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The import is begun again at each of its questions to the facts, one after the other."""
    same, broadcasts = Scope.require_equal_dims, Scope.require_broadcastable
    asked, stop_at = 0, -1
    attempts: list[Scope] = []

    def count() -> None:
        nonlocal asked
        asked += 1
        if asked == stop_at:
            raise RestartImport

    def same_counted(self: Scope, *pairs: Any) -> None:  # noqa: ANN401
        same(self, *pairs)
        count()

    def broadcasts_counted(self: Scope, *pairs: Any) -> None:  # noqa: ANN401
        broadcasts(self, *pairs)
        count()

    original = Scope.__init__

    def noted(self: Scope, *args: Any) -> None:  # noqa: ANN401
        original(self, *args)
        attempts.append(self)

    plain = from_onnx(MODELS[name])
    monkeypatch.setattr(Scope, "require_equal_dims", same_counted)
    monkeypatch.setattr(Scope, "require_broadcastable", broadcasts_counted)
    monkeypatch.setattr(Scope, "__init__", noted)
    from_onnx(MODELS[name])
    questions = asked
    assert questions
    for number in range(1, questions + 1):
        asked, stop_at = 0, number
        attempts.clear()
        again = from_onnx(MODELS[name])
        assert structural_equal(again, plain)
        main = again["main"]
        assert isinstance(main, Function)
        earlier = {s for scope in attempts[:-1] for s in scope.symbols()}
        assert len(attempts) > 1 and not earlier & symbols_of(main)
