"""JSON schemas as regular expressions: what they match, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from test_chat import LINES, Bytes
from tiny_models import tiny

from ekiden import llm
from ekiden.llm.grammar import LazyGrammar
from ekiden.llm.json_schema import json_object_pattern, json_schema_pattern
from ekiden.llm.token_trie import TokenTrie
from ekiden.llm.tokenizer import Tokenizer
from ekiden.runtime.errors import InputError
from ekiden.serve.decoders import DecoderTextModel
from ekiden.serve.text import Message, Sampling

PERSON: dict[str, Any] = {
    "type": "object",
    "title": "Person",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": ["integer", "null"]},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 2},
        "born": {"type": "string", "format": "date"},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
    "$defs": {"tag": {"enum": ["a.b", 'q"', 3, True]}},
}


BYTES = TokenTrie([bytes([byte]) for byte in range(256)])


def matches(schema: object, text: str) -> bool:
    return fits(json_schema_pattern(schema), text)


def fits(pattern: str, text: str) -> bool:
    grammar, state = LazyGrammar(pattern, BYTES), 0
    for byte in text.encode():
        if grammar.row(state)[byte] < 0:
            return False
        state = grammar.advance(state, byte)
    return grammar.is_match(state)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"name": "Ann", "tags": []}', True),
        ('{"name":"A\\"\\u00e9","age":-7,"tags":["a.b", 3],"born":"2020-02-29"}', True),
        ('{"name": "漢字", "age": null, "tags": ["q\\"", true]}', True),
        ('{"name": "toolong", "tags": []}', False),
        ('{"name": "Ann", "tags": ["axb"]}', False),
        ('{"name": "Ann", "tags": [3, 3, 3]}', False),
        ('{"name": "Ann", "age": 07, "tags": []}', False),
        ('{"tags": [], "name": "Ann"}', False),
        ('{"name": "Ann"}', False),
        ('{"name": "Ann", "tags": [],}', False),
        ('{"name": "Ann", "tags": [], "more": 1}', False),
        ('{"name": "Ann", "tags": [], "born": "2020-13-01"}', False),
    ],
)
def test_patterns_match_values_of_their_schema(text: str, expected: bool) -> None:
    assert matches(PERSON, text) is expected
    if expected:
        json.loads(text)


@pytest.mark.parametrize("count", range(8))
def test_properties_that_are_not_required_may_be_left_out(count: int) -> None:
    names = ("x", "y", "z")
    schema = {"type": "object", "properties": {name: {"type": "boolean"} for name in names}}
    chosen = [name for n, name in enumerate(names) if count >> n & 1]
    text = json.dumps(dict.fromkeys(chosen, True))
    assert matches(schema, text)
    assert matches({**schema, "required": ["y"]}, text) is ("y" in chosen)


def test_numbers_arrays_and_any_of_match() -> None:
    schema = {
        "anyOf": [{"type": "number"}, {"type": "array", "items": {"const": 1}, "minItems": 2}]
    }
    for text in ("0", "-1.5e+3", "12", "[1, 1]", "[1,1,1]"):
        assert matches(schema, text)
    for text in ("01", "1.", ".5", "+1", "[1]", "[]", "[1, 2]", "null"):
        assert not matches(schema, text)
    assert matches({"type": "array", "items": {"type": "null"}, "maxItems": 0}, "[]")


NODE = {"type": "object", "properties": {"next": {"$ref": "#"}}}
WIDE = {"anyOf": [{"$ref": "#/$defs/x1"}] * 8}
DOUBLING = {
    "$defs": {f"x{n}": {"anyOf": [{"$ref": f"#/$defs/x{n + 1}"}] * 8} for n in range(1, 20)}
}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (3, "schema: an object expected, got 3"),
        ({"type": "text"}, "schema: 'type': \"text\" is no type"),
        ({"type": "string", "format": "email"}, "schema: 'format': one of date, time, date-time"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "'maxLength' is below 'minLength'"),
        ({"type": "string", "maxLength": -1}, "'maxLength': a whole number from 0 on expected"),
        ({"type": "object", "required": ["x"]}, "'required': 'x' is no property"),
        ({"$ref": "#/$defs/x"}, "'#/\\$defs/x' leads nowhere"),
        ({"$ref": "http://x"}, "a local reference expected"),
        ({"enum": []}, "a list of values expected as 'enum'"),
        ({"not": {}}, r"schema: one of '\$ref', 'enum', 'const', 'anyOf', 'type' expected"),
        ({"type": "string", "pattern": "a", "maxLength": 1}, "'maxLength' is not supported beside"),
        ({"type": "string", "pattern": "(a"}, "schema: 'pattern': .* at position"),
        ({"type": "string", "pattern": "(?=a)"}, "schema: 'pattern': "),
        ({"type": "string", "pattern": r"a\bc"}, "are not supported inside a pattern"),
        ({"type": "integer", "minimum": 0.5}, "'minimum': a whole number up to"),
        ({"type": "integer", "minimum": 2, "maximum": 1}, "no number between its bounds"),
        ({"type": "integer", "multipleOf": 2}, "'multipleOf' is not supported here"),
        ({"properties": {"a": {}}, "type": "object", "additionalProperties": {}}, "beside 'prop"),
    ],
)
def test_unsupported_schemas_are_refused(schema: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        json_schema_pattern(schema)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "object", "properties": {"a": True}, "required": [{"x": 1}]}, "a list of names"),
        ({"type": "object", "properties": {}, "required": [["a"]]}, "a list of names"),
        ({"type": "array", "minItems": None, "maxItems": 3}, "'minItems': a whole number"),
        ({"type": "array", "maxItems": None}, "'maxItems': a whole number"),
        ({"type": "string", "minLength": None, "maxLength": 2}, "'minLength': a whole number"),
    ],
)
def test_values_of_keywords_that_are_of_another_type_are_refused(
    schema: object, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        json_schema_pattern(schema)


def test_recursive_references_are_supported() -> None:
    tree = {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "integer"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                },
                "required": ["value"],
            }
        },
    }
    assert matches(tree, '{"value":1,"children":[{"value":2},{"value":3,"children":[]}]}')
    assert not matches(tree, '{"value":1,"children":[{"value":"2"}]}')
    assert matches(NODE, '{"next":{"next":{}}}')
    assert not matches(NODE, '{"next":{"next":3}}')


def test_schema_without_finite_values_is_refused() -> None:
    with pytest.raises(InputError, match="no tokens make a text"):
        matches({**NODE, "required": ["next"]}, "{}")


@pytest.mark.parametrize("schema", [{}, True, {"type": "object"}, {"type": "array"}])
def test_empty_schema_accepts_any_value(schema: object) -> None:
    texts = ['{"a": [1, {"b": null}, "\\n"], "c": -1.5e3}', '[[], {}, [true, "x"]]', "3", '"x"']
    kinds = ("object", "array") if not isinstance(schema, dict) or not schema else schema["type"]
    for text, kind in zip(texts, ("object", "array", "", ""), strict=True):
        assert matches(schema, text) is (schema in ({}, True) or kind == kinds)
    for text in ("[1,]", '{"a"}', "{1: 2}", "[", "nul"):
        assert not matches(schema, text)


def test_json_objects_nest_to_a_bound() -> None:
    pattern = json_object_pattern()
    for depth, expected in ((1, True), (12, True), (100, False)):
        assert fits(pattern, '{"a": ' * depth + "1" + "}" * depth) is expected
    assert not fits(pattern, "[]")


def test_property_names_may_be_any_string() -> None:
    schema = {"type": "object", "additionalProperties": {"type": "integer"}}
    assert matches(schema, '{"a": 1, "b": 2}') and not matches(schema, '{"a": "1"}')


@pytest.mark.parametrize(("low", "high"), [(0, 9), (7, 132), (-25, 8), (-9, -3), (95, None),
                                           (None, -12), (None, 40), (100, 100)])  # fmt: skip
def test_whole_numbers_keep_their_bounds(low: int | None, high: int | None) -> None:
    bounds = {k: v for k, v in (("minimum", low), ("maximum", high)) if v is not None}
    grammar = LazyGrammar(json_schema_pattern({"type": "integer", **bounds}), BYTES)
    for number in range(-140, 160):
        state = 0
        for byte in str(number).encode():
            state = grammar.advance(state, byte) if state >= 0 else state
        is_in = (low is None or number >= low) and (high is None or number <= high)
        assert (state >= 0 and grammar.is_match(state)) is is_in, number


def test_numbers_keep_their_bounds() -> None:
    schema = {"type": "number", "exclusiveMinimum": -2, "maximum": 3}
    for text in ("-1.99", "-0.5", "0", "2.75", "3", "3.00"):
        assert matches(schema, text), text
    for text in ("-2", "-2.0", "3.01", "4", "-3", "1e5"):
        assert not matches(schema, text), text
    above = {"type": "number", "exclusiveMinimum": 0}
    assert [matches(above, t) for t in ("0", "0.0", "0.01", "12.5")] == [False, False, True, True]


def test_texts_match_their_pattern_as_json_writes_them() -> None:
    schema = {"type": "string", "pattern": r"^[A-Z]{2}-\d+$"}
    assert matches(schema, '"AB-12"') and not matches(schema, '"xAB-12"')
    anywhere = {"type": "string", "pattern": 'a"b|\\n$'}
    assert matches(anywhere, r'"xa\"bx"') and matches(anywhere, r'"x\n"')
    assert not matches(anywhere, '"xa"') and not matches(anywhere, '"xab"')
    assert matches({"type": "string", "pattern": "^é.+"}, '"éx"')


def test_references_that_multiply_are_bounded() -> None:
    end = {"x20": {"type": "null"}}
    many = {"type": "object", "properties": {f"p{n}": {"enum": ["x" * 99]} for n in range(5000)}}
    for schema in ({**WIDE, "$defs": {**DOUBLING["$defs"], **end}}, many):
        with pytest.raises(InputError, match="is too large"):
            json_schema_pattern(schema)


class BytePieces(Bytes):
    """One whose tokens are named as SentencePiece names bytes."""

    decoder = None

    def id_to_token(self, token: int) -> str:
        return f"<0x{token:02X}>"


def test_answers_of_a_served_decoder_are_of_their_schema() -> None:
    tokenizer = Tokenizer(BytePieces(), {"chat_template": LINES})
    model = llm.load(tiny("llama", vocab_size=256), page=16, sequences=2, tokenizer=tokenizer)
    served = DecoderTextModel(model)
    pattern = json_schema_pattern(PERSON)
    for seed in range(3):
        sampling = Sampling(seed=seed, max_tokens=150, pattern=pattern)
        pieces = list(served.generate([Message("user", "go")], sampling))
        text = "".join(piece.text for piece in pieces)
        assert pieces[-1].finish == "stop" and set(json.loads(text)) >= {"name", "tags"}
    served.close()
