"""Saving nodes as JSON."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
from relay_programs import PROGRAMS

from ekiden.ir.json import load_json, save_json
from ekiden.ir.prim import SizeVar
from ekiden.ir.span import Span
from ekiden.ir.structural import structural_equal
from ekiden.ir.type import TypeKind, TypeVar
from ekiden.relay import Call, Constant, IRModule, Tuple, const, op, parse, tensor_type
from ekiden.runtime.errors import LoadError

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("name", PROGRAMS)
def test_module_loads_as_it_was_saved(name: str) -> None:
    module = parse(PROGRAMS[name])
    text = save_json(module)
    loaded = load_json(text)
    assert isinstance(loaded, IRModule)
    assert structural_equal(loaded, module)
    assert save_json(loaded) == text


def test_shared_nodes_stay_shared() -> None:
    c = const(np.arange(3))
    loaded = load_json(save_json(Tuple((c, c))))
    assert isinstance(loaded, Tuple) and loaded.fields[0] is loaded.fields[1]


def test_operators_are_those_of_the_registry() -> None:
    call = op.add(const(1.0), const(2.0))
    loaded = load_json(save_json(call))
    assert isinstance(loaded, Call) and loaded.op is call.op


@pytest.mark.parametrize(
    "array",
    [
        np.array(3, np.int8),
        np.zeros((0, 2)),
        np.array([np.nan, -0.0]),
        np.ones((2, 2), ml_dtypes.bfloat16),
        np.array(True),
    ],
)
def test_arrays_keep_their_bits(array: np.ndarray) -> None:
    loaded = load_json(save_json(Constant(array)))
    assert isinstance(loaded, Constant)
    assert (loaded.data.dtype, loaded.data.shape, loaded.data.tobytes()) == (
        array.dtype,
        array.shape,
        array.tobytes(),
    )


def test_spans_enums_and_infinities_are_kept() -> None:
    call = op.clip(const(1.0), 0.0, float("inf")).with_fields(span=Span("Clip 'c'"))
    loaded = load_json(save_json(call))
    assert isinstance(loaded, Call) and str(loaded.span) == "Clip 'c'"
    assert loaded.attrs is not None and loaded.attrs.a_max == float("inf")  # type: ignore[attr-defined]
    kind = load_json(save_json(TypeVar("n", TypeKind.SHAPE_VAR)))
    assert isinstance(kind, TypeVar) and kind.kind is TypeKind.SHAPE_VAR


def test_containers_and_types_round_trip() -> None:
    n = SizeVar("n")
    loaded = load_json(save_json({"shape": (n, n), "type": tensor_type((n, 3))}))
    assert isinstance(loaded, dict)
    assert loaded["shape"][0] is loaded["shape"][1] is loaded["type"].shape[0]


def _document(nodes: list[object], root: object) -> str:
    return json.dumps({"ekiden": "1", "root": root, "nodes": nodes, "arrays": []})


REJECTED = [
    ("{}", "not a saved node: KeyError: 'ekiden'"),
    ("[]", "not a saved node: TypeError: "),
    ("no", "not a saved node: JSONDecodeError: "),
    ('{"ekiden": "9"}', "JSON of format '9', expected '1'"),
    (_document([["relay.Nope", {}]], {"node": 0}), "no node type 'relay.Nope'"),
    (
        _document([["relay.Tuple", {"fields": [{"node": 0}]}]], {"node": 0}),
        "node 0 refers to 0, which does not come before it",
    ),
    (_document([["relay.Tuple", {"strange": 1}]], {"node": 0}), "not a saved node: TypeError: "),
    (_document([], {"node": -1}), "node 0 refers to -1"),
    (_document([], {"array": 0}), "not a saved node: IndexError: "),
    (_document([], {"what": 0}), "unexpected 'what'"),
    ("[" * 100_000, "not a saved node: "),
]


@pytest.mark.parametrize(("text", "message"), REJECTED)
def test_malformed_json_is_refused(text: str, message: str) -> None:
    with pytest.raises(LoadError) as caught:
        load_json(text)
    assert str(caught.value).startswith(message)


def test_what_cannot_be_saved_is_named() -> None:
    with pytest.raises(TypeError, match="^save_json: cannot save a object"):
        save_json(object())


def test_graph_of_tvm_is_refused_with_what_to_do() -> None:
    graph = json.dumps({"nodes": [], "arg_nodes": [], "heads": [], "attrs": {}})
    with pytest.raises(LoadError, match=r"JSON of TVM \(version \?\).*relay\.parse reads"):
        load_json(graph)
