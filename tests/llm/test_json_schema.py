"""JSON schemas as regular expressions: what they match, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from test_chat import LINES, Bytes
from tiny_models import tiny

from ekiden import llm
from ekiden.frontend.onnx.regex import compile_dfa
from ekiden.llm.json_schema import json_schema_pattern
from ekiden.llm.text import Tokenizer
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


def matches(schema: object, text: str) -> bool:
    moves, kinds, accepts = compile_dfa(json_schema_pattern(schema))
    state = 0
    for byte in text.encode():
        state = int(moves[state, kinds[byte]])
        if state < 0:
            return False
    return bool(accepts[state])


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


def test_numbers_arrays_and_alternatives() -> None:
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
        ({}, r"schema: one of '\$ref', 'enum', 'const', 'anyOf', 'type' expected"),
        ({"type": "text"}, "schema: 'type': \"text\" is no type"),
        ({"type": "string", "pattern": "a"}, "schema: 'pattern' is not supported here"),
        ({"type": "integer", "minimum": 1}, "schema: 'minimum' is not supported here"),
        ({"type": "string", "format": "email"}, "schema: 'format': one of date, time, date-time"),
        ({"type": "array"}, "schema: 'items' expected for an array"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "'maxLength' is below 'minLength'"),
        ({"type": "string", "maxLength": -1}, "'maxLength': a whole number from 0 on expected"),
        ({"type": "object", "required": ["x"]}, "'required': 'x' is no property"),
        ({"type": "object", "additionalProperties": True}, "'additionalProperties' other than"),
        ({"$ref": "#/$defs/x"}, "'#/\\$defs/x' leads nowhere"),
        ({"$ref": "http://x"}, "a local reference expected"),
        ({"enum": []}, "a list of values expected as 'enum'"),
        (NODE, "schema at next/#/next/.*: is recursive, or too deep"),
    ],
)
def test_schemas_that_cannot_be_held_are_refused(schema: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        json_schema_pattern(schema)


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
