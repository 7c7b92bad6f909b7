"""String tensors: inputs, constants, outputs, data movement, comparison, matching."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ekiden
from ekiden.frontend.onnx.regex import RegexError, compile_dfa, utf8_byte_ranges
from ekiden.runtime.errors import InputError, UnsupportedError
from long_runs import share

Array = np.ndarray[Any, Any]
WORDS = np.array([["to", "be", "", "or"], ["not", "tö", "😀", "be"]], object)


def strings(*values: str) -> onnx.TensorProto:
    return helper.make_tensor("w", TensorProto.STRING, [len(values)], [v.encode() for v in values])


def model_of(
    nodes: Sequence[onnx.NodeProto],
    outputs: Mapping[str, int],
    weights: Sequence[onnx.TensorProto] = (),
    shape: Sequence[int | str] = ("n", "m"),
) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info("x", TensorProto.STRING, shape)]
    infos = [onnx.ValueInfoProto(name=n, type=_type(t)) for n, t in outputs.items()]
    graph = helper.make_graph(list(nodes), "g", inputs, infos, list(weights))
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 4)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _type(element: int) -> onnx.TypeProto:
    result = onnx.TypeProto()
    result.tensor_type.elem_type = element
    return result


def run(
    nodes: Sequence[onnx.NodeProto],
    x: Array = WORDS,
    kind: int = TensorProto.STRING,
    weights: Sequence[onnx.TensorProto] = (),
    shape: Sequence[int | str] = ("n", "m"),
) -> Any:  # noqa: ANN401 - an array of str, or a tensor
    return ekiden.compile(model_of(nodes, {"y": kind}, weights, shape))(x)


def node(op: str, *inputs: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, ["x", *inputs], ["y"], **attributes)


def vector(name: str, *values: int) -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(np.array(values, np.int64), name)


def test_strings_are_inputs_and_outputs() -> None:
    exe = ekiden.compile(model_of([node("Identity")], {"y": TensorProto.STRING}))
    assert str(exe.inputs[0]) == "x: string[n, m]" and exe.outputs[0].dtype == "string"
    for argument in (WORDS, WORDS[:0], WORDS[:, :1], np.full((2, 2), "", object)):
        result = exe(argument)
        assert result.shape == argument.shape and result.tolist() == argument.tolist()
    assert exe([["a", "b"]]).tolist() == [["a", "b"]]
    with pytest.raises(InputError, match="input 'x': expected an array of str"):
        exe(np.zeros((2, 2)))
    with pytest.raises(InputError, match="expected 2 dimensions"):
        exe(["a"])


def test_strings_survive_a_file(tmp_path: Path) -> None:
    exe = ekiden.compile(model_of([node("StringConcat", "w")], {"y": TensorProto.STRING},
                                  [strings("!")]))  # fmt: skip
    exe.save(tmp_path / "m.eki")
    assert ekiden.load(tmp_path / "m.eki")(WORDS).tolist() == (WORDS + "!").tolist()


@pytest.mark.parametrize(("result", "weights", "wanted"), [
    (node("Transpose", perm=[1, 0]), [], WORDS.T),
    (node("Reshape", "s"), [vector("s", -1)], WORDS.ravel()),
    (node("Flatten", axis=0), [], WORDS.reshape(1, 8)),
    (node("Gather", "s", axis=1), [vector("s", 3, -1, 0)], WORDS[:, [3, 3, 0]]),
    (node("Slice", "s", "e"), [vector("s", 1, 0), vector("e", 2, 3)], WORDS[1:2, :3]),
    (node("Unsqueeze", "s"), [vector("s", 1)], WORDS[:, None]),
    (node("Expand", "s"), [vector("s", 3, 2, 4)], np.broadcast_to(WORDS, (3, 2, 4))),
    (node("Tile", "s"), [vector("s", 1, 2)], np.tile(WORDS, (1, 2))),
    (node("Concat", "x", axis=0), [], np.concatenate([WORDS, WORDS])),
    (node("StringConcat", "w"), [strings(*"abcd")], WORDS + np.array([*"abcd"], object)),
], ids=lambda v: v.op_type if isinstance(v, onnx.NodeProto) else "")  # fmt: skip
def test_data_movement_of_strings_matches_numpy(
    result: onnx.NodeProto, weights: list[onnx.TensorProto], wanted: Array
) -> None:
    for shape in (("n", 4), (2, 4)):
        actual = run([result], weights=weights, shape=shape)
        assert actual.shape == wanted.shape and actual.tolist() == wanted.tolist()


def test_split_gives_several() -> None:
    nodes = [helper.make_node("Split", ["x"], ["a", "b"], axis=1, num_outputs=2)]
    exe = ekiden.compile(
        model_of(nodes, {"a": TensorProto.STRING, "b": TensorProto.STRING}, shape=("n", 4))
    )
    first, second = exe(WORDS)
    assert first.tolist() == WORDS[:, :2].tolist() and second.tolist() == WORDS[:, 2:].tolist()


def test_shape_and_where_of_strings() -> None:
    assert run([node("Shape")], kind=TensorProto.INT64).numpy().tolist() == [2, 4]
    nodes = [helper.make_node("Equal", ["x", "w"], ["e"]),
             helper.make_node("Where", ["e", "v", "x"], ["y"])]  # fmt: skip
    values = helper.make_tensor("v", TensorProto.STRING, [], [b"a long one"])
    result = run(nodes, weights=[strings("be"), values])
    assert result.tolist() == np.where(WORDS == "be", "a long one", WORDS).tolist()


@share(2)
@pytest.mark.parametrize("action", ["NONE", "LOWER", "UPPER"])
@pytest.mark.parametrize("exact", [0, 1])
def test_string_normalizer_changes_case_and_removes_stopwords(action: str, exact: int) -> None:
    data = np.array(["Monday", "monday", "Straße", "SUNDAY", "ÉTÉ"], object)
    stop = ["monday", "été"]
    exe = ekiden.compile(
        model_of(
            [node("StringNormalizer", case_change_action=action, is_case_sensitive=exact,
                  stopwords=stop)],
            {"y": TensorProto.STRING},
            shape=("n",),
        )
    )  # fmt: skip
    kept = [w for w in data if (w if exact else w.lower()) not in stop]
    changed = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}[action]
    assert exe(data).tolist() == [changed(w) for w in kept]
    assert exe(np.array(["monday", "monday"], object)).tolist() == [""]


def test_unsupported_string_operators_are_named() -> None:
    with pytest.raises(UnsupportedError, match="expected a tensor of numbers, got one of strings"):
        run([node("Relu")])


PATTERNS = [
    r"a*b+c?", r"[a-cé-ü]+", r"[^ab]+", r"(a|bc){2,3}", r"\d+\.\d*", r".*x", r"(?i)aBc",
    r"(?:ab|a)(c|bcd)(d*)", r"[\w.-]+@[a-z]+\.com", r"a{3}", r"[-a]+", r"[\]a]+", r"^ab$", "",
    r"a??b", r"(\bab\b|x| )*", r"a\B.*", r"(^|a)b($|c)", r"(?P<n>a)\W\D\S",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_automaton_agrees_with_re(pattern: str) -> None:
    moves, kinds, accepts = compile_dfa(pattern)
    rng = random.Random(0)
    for _ in range(300):
        argument = "".join(rng.choice("abcdxé üA.@1 \n-]😀") for _ in range(rng.randrange(7)))
        state = 0
        for byte in argument.encode():
            state = moves[state, kinds[byte]]
        assert accepts[state] == (re.fullmatch(pattern, argument, re.A) is not None), argument


@pytest.mark.parametrize(("pattern", "message"), [
    ("a(b", r"'\)' expected at position 3"), ("*a", "nothing before"), ("a)", "unexpected"),
    (r"\p{Greek}", "unsupported class"), (r"\C", "unsupported escape"), ("[b-a]", "a range"),
    ("(?=a)", "unsupported flag"),
    ("(.{1000}){1000}", "states"), ("(" * 200, "nested groups"), ("[[:foo:]]", "the name"),
    ("(a|b)*a(a|b){20}", "more than 10000 states"), ("a{5,2}", "a count"), ("a\\", "more expected"),
])  # fmt: skip
def test_invalid_regex_patterns_are_refused(pattern: str, message: str) -> None:
    with pytest.raises(RegexError, match=message):
        compile_dfa(pattern)


def test_byte_sequences_cover_each_character_once() -> None:
    rng = random.Random(1)
    for _ in range(50):
        low, high = sorted(rng.randrange(0x110000) for _ in range(2))
        result = list(utf8_byte_ranges(low, high))
        for _ in range(20):
            point = rng.randrange(0x110000)
            data = chr(point).encode("utf-8", "surrogatepass")
            hits = [s for s in result if len(s) == len(data)
                    and all(a <= b <= c for b, (a, c) in zip(data, s, strict=True))]  # fmt: skip
            assert len(hits) == (low <= point <= high)


def test_match_in_a_model() -> None:
    pattern = r"(?i)[a-z]+@[a-z]+\.com"
    data = np.array([["A@b.com", "a@b.org", "", "é@b.com"]], object)
    result = run([node("RegexFullMatch", pattern=pattern)], data, kind=TensorProto.BOOL)
    assert result.numpy().tolist() == [[True, False, False, False]]
    with pytest.raises(UnsupportedError, match="RegexFullMatch 'y': pattern .* unsupported class"):
        run([node("RegexFullMatch", pattern=r"\p{Greek}")])
