"""Table of the request fields of OpenAI's endpoints, with their validation: one row for each, with
the endpoints that take it and what it is read by.

A field without a row is refused by its name, and so is a value that a row does not read: nothing
that would change an answer is dropped in silence. Null asks for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import starmap
from typing import Any

from ekiden.llm.json_schema import json_object_pattern, json_schema_pattern
from ekiden.runtime.errors import InputError, RequestError
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["FIELDS", "RequestField", "read_fields"]

MAX_STOPS = 4
MAX_STOP_CHARS = 1024
"""Of a text that stops an answer: what is held back is compared with each of its beginnings."""
MAX_CHOICES = 128
MAX_BIASES = 1024
"""Tokens with a bias in one request."""

ENDPOINTS = {"c": "chat", "p": "completions", "r": "responses", "e": "embeddings", "k": "rerank"}
"""Letter -> name of an endpoint."""
Reader = Callable[[str, Any], Any]
"""(name of the field, value) -> what it means. Raises RequestError."""


@dataclass(frozen=True, slots=True)
class RequestField:
    """Request field, a row of the table."""

    name: str
    endpoints: str
    """Letters of those that take it (`ENDPOINTS`)."""
    read: Reader
    effect: str
    """What honours it, for the page; empty where it says nothing about the answer."""

    def page_line(self) -> str:
        """Return the field's row of the table in docs/openai.md."""
        names = ", ".join(name for letter, name in ENDPOINTS.items() if letter in self.endpoints)
        return f"| `{self.name}` | {names} | {self.effect or 'taken, changes nothing'} |"


def _number_in(minimum: float, maximum: float) -> Reader:
    def read(name: str, value: Any) -> float:  # noqa: ANN401  # JSON
        """Return the number. Raises RequestError for one out of range."""
        if type(value) not in (int, float) or not minimum <= value <= maximum:
            raise RequestError(f"'{name}': a number from {minimum} to {maximum} expected")
        return float(value)

    return read


def _int_in(minimum: int, maximum: int) -> Reader:
    def read(name: str, value: Any) -> int:  # noqa: ANN401  # JSON
        """Return the integer. Raises RequestError for one out of range."""
        if type(value) is not int or not minimum <= value <= maximum:
            raise RequestError(f"'{name}': a whole number from {minimum} to {maximum} expected")
        return value

    return read


def _one_of(*values: object) -> Reader:
    """Return a reader of a field that supports only the given values."""

    def read(name: str, value: Any) -> Any:  # noqa: ANN401  # JSON
        """Return the value. Raises RequestError for one that is not supported."""
        if not any(type(value) is type(allowed) and value == allowed for allowed in values):
            raise RequestError(f"'{name}': this value is not supported")
        return value

    return read


def _read_bool(name: str, value: Any) -> bool:  # noqa: ANN401  # JSON
    if not isinstance(value, bool):
        raise RequestError(f"'{name}': true or false expected")
    return value


def _read_text(name: str, value: Any) -> str:  # noqa: ANN401  # JSON
    if not isinstance(value, str):
        raise RequestError(f"'{name}': a text expected")
    return value


def _read_any(name: str, value: Any) -> Any:  # noqa: ANN401  # JSON
    return value


def _read_model(name: str, value: Any) -> str:  # noqa: ANN401  # JSON
    if not isinstance(value, str):
        raise RequestError(f"'{name}': a name expected")
    return value


def _read_object(name: str, value: Any) -> dict[str, Any]:  # noqa: ANN401  # JSON
    if not isinstance(value, dict):
        raise RequestError(f"'{name}': an object expected")
    return value


def _read_list(name: str, value: Any) -> list[Any]:  # noqa: ANN401  # JSON
    if not isinstance(value, list):
        raise RequestError(f"'{name}': a list expected")
    return value


def _read_messages(name: str, value: Any) -> list[Any]:  # noqa: ANN401  # JSON
    if not isinstance(value, list) or not value:
        raise RequestError(f"'{name}': a list of messages expected")
    return value


def _read_stops(name: str, value: Any) -> tuple[str, ...]:  # noqa: ANN401  # JSON
    stops = [value] if isinstance(value, str) else value
    if (
        not isinstance(stops, list)
        or len(stops) > MAX_STOPS
        or not all(isinstance(s, str) and 0 < len(s) <= MAX_STOP_CHARS for s in stops)
    ):
        raise RequestError(
            f"'{name}': a text of up to {MAX_STOP_CHARS} letters, or up to {MAX_STOPS} of them,"
            " expected"
        )
    return tuple(stops)


def _read_logit_bias(name: str, value: Any) -> dict[int, float]:  # noqa: ANN401  # JSON
    biases: dict[int, float] = {}
    for token, bias in _read_object(name, value).items():
        is_token = token.isascii() and token.isdigit() and len(token) < 10
        if not is_token or type(bias) not in (int, float) or not -100 <= bias <= 100:
            raise RequestError(f"'{name}': numbers from -100 to 100 by tokens expected")
        biases[int(token)] = float(bias)
    if len(biases) > MAX_BIASES:
        raise RequestError(f"'{name}': at most {MAX_BIASES} tokens expected")
    return biases


def _read_stream_options(name: str, value: Any) -> dict[str, Any]:  # noqa: ANN401  # JSON
    options = _read_object(name, value)
    for key, entry in options.items():
        if key not in ("include_usage", "include_obfuscation"):
            raise RequestError(f"'{name}.{key[:64]}' is not supported")
        if entry is not None:
            _read_bool(f"{name}.{key}", entry)
    if options.get("include_obfuscation"):
        raise RequestError(f"'{name}.include_obfuscation': this value is not supported")
    return options


def _read_text_format(name: str, value: Any) -> str:  # noqa: ANN401  # JSON
    """Return the regular expression that the field "text" of a response requires, whose format
    contains the schema itself; empty for any answer.
    """
    if not isinstance(value, dict):
        raise RequestError(f"'{name}': an object expected")
    if unknown := sorted(value.keys() - {"format"}):
        raise RequestError(f"'{name}.{unknown[0][:64]}' is not supported")
    form = value.get("format")
    if isinstance(form, dict) and form.get("type") == "json_schema" and "schema" in form:
        form = {"type": "json_schema", "json_schema": form}
    return "" if form is None else _read_response_format(f"{name}.format", form)


def _read_reasoning(name: str, value: Any) -> Mapping[str, Any]:  # noqa: ANN401  # JSON
    """Return the reasoning options: its effort."""
    fields = {k: v for k, v in _read_object(name, value).items() if v is not None}
    if unknown := sorted(fields.keys() - {"effort"}):
        raise RequestError(f"'{name}.{unknown[0][:64]}' is not supported")
    return fields


def _read_response_format(name: str, value: Any) -> str:  # noqa: ANN401  # JSON
    """Return the regular expression of the answers that a response format allows; empty for any."""
    form = value if isinstance(value, dict) else {}
    kind, described = form.get("type"), form.get("json_schema")
    if kind == "json_schema" and isinstance(described, dict) and "schema" in described:
        known_fields, schema = {"type", "json_schema"}, described["schema"]
    elif kind == "json_object":
        # A schema beside it is an extension of llama.cpp's server.
        known_fields, schema = {"type", "schema"}, form.get("schema")
    elif kind == "text":
        known_fields, schema = {"type"}, None
    else:
        raise RequestError(
            f"'{name}': 'text', 'json_object', or 'json_schema' with a schema, expected"
        )
    if unknown := sorted(form.keys() - known_fields):
        raise RequestError(f"'{name}.{unknown[0][:64]}' is not supported")
    if schema is None:
        return json_object_pattern() if kind == "json_object" else ""
    try:
        return json_schema_pattern(schema)
    except InputError as error:
        raise RequestError(f"'{name}': {error}") from error


_PENALTY = _number_in(-2, 2)
_TOKENS = _int_in(1, 2**31)
_SEED = _int_in(-(2**63), 2**63 - 1)
# fmt: off
FIELDS: Mapping[str, RequestField] = {row.name: row for row in starmap(RequestField, (
    # name                   for      read by                   honoured by
    ("model",                 "cprek", _read_model,              "the model, or an adapter of one"),
    ("lora",                  "cpr",   _read_text,               "an adapter; an extension"),
    ("messages",              "c",     _read_messages,           "the chat template"),
    ("prompt",                "p",     _read_any,                "texts or tokens, one or several"),
    ("input",                 "re",    _read_any,                "a conversation; texts or tokens"),
    ("query",                 "k",     _read_text,               "what documents are scored for"),
    ("documents",             "k",     _read_list,               "texts, or objects with `text`"),
    ("top_n",                 "k",     _int_in(1, 2**31),        "so many of the best"),
    ("return_documents",      "k",     _read_bool,               "`false`: without the texts"),
    ("instructions",          "r",     _read_text,               "the message of the system"),
    ("stream",                "cpr",   _read_bool,               "server-sent events"),
    ("stream_options",        "cp",    _read_stream_options,     "`include_usage`"),
    ("max_tokens",            "cp",    _TOKENS,                  "the engine"),
    ("max_completion_tokens", "c",     _TOKENS,                  "the engine, before `max_tokens`"),
    ("max_output_tokens",     "r",     _TOKENS,                  "the engine"),
    ("temperature",           "cpr",   _number_in(0, 2),         "token choice"),
    ("top_p",                 "cpr",   _number_in(0, 1),         "token choice"),
    ("top_k",                 "cpr",   _int_in(0, 2**24),        "token choice; an extension"),
    ("min_p",                 "cpr",   _number_in(0, 1),         "token choice; an extension"),
    ("repetition_penalty",    "cpr",   _number_in(1e-3, 1e3),    "token choice; an extension"),
    ("frequency_penalty",     "cp",    _PENALTY,                 "logits of the answer's tokens"),
    ("presence_penalty",      "cp",    _PENALTY,                 "logits of the answer's tokens"),
    ("logit_bias",            "cp",    _read_logit_bias,         "logits by token"),
    ("seed",                  "cp",    _SEED,                    "equal seeds give equal answers"),
    ("stop",                  "cp",    _read_stops,              "the answer ends before one"),
    ("ignore_eos",            "cp",    _read_bool,               "an end is no end; an extension"),
    ("n",                     "cp",    _int_in(1, MAX_CHOICES),  "seeds one after another"),
    ("best_of",               "p",     _int_in(1, MAX_CHOICES),  "the value of `n` alone"),
    ("logprobs",              "cp",    _read_any,                "the model's own distribution"),
    ("top_logprobs",          "c",     _int_in(0, 20),           "the likeliest beside each token"),
    ("echo",                  "p",     _read_bool,               "the prompt; not with `logprobs`"),
    ("response_format",       "c",     _read_response_format,    "a grammar"),
    ("text",                  "r",     _read_text_format,        "`format`: a grammar"),
    ("tools",                 "cr",    _read_list,               "the chat template, a parser"),
    ("tool_choice",           "cr",    _read_any,                "a grammar forces a call"),
    ("parallel_tool_calls",   "cr",    _read_bool,               "`false`: the first call alone"),
    ("reasoning_effort",      "c",     _read_text,               "a variable of the chat template"),
    ("reasoning",             "r",     _read_reasoning,          "`effort`, for the chat template"),
    ("chat_template_kwargs",  "cr",    _read_object,             "its variables; an extension"),
    ("modalities",            "c",     _one_of(["text"]),        "text alone"),
    ("encoding_format",       "e",     _one_of("float", "base64"), "numbers, or base64 of float32"),
    ("dimensions",            "e",     _int_in(1, 2**20),        "the model's own length alone"),
    ("previous_response_id",  "r",     _one_of(),                "refused: nothing is stored"),
    ("conversation",          "r",     _one_of(),                "refused: nothing is stored"),
    ("background",            "r",     _one_of(False),           "answers are waited for"),
    ("include",               "r",     _one_of([]),              "nothing further"),
    ("truncation",            "r",     _one_of("disabled"),      "a prompt is never cut"),
    ("functions",             "c",     _one_of([]),              "refused: `tools` replace it"),
    ("user",                  "cperk", _read_any,                ""),
    ("metadata",              "cr",    _read_any,                ""),
    ("store",                 "cr",    _one_of(False),           "nothing is stored"),
    ("service_tier",          "cr",    _read_any,                ""),
    ("safety_identifier",     "cr",    _read_any,                ""),
    ("prompt_cache_key",      "cr",    _read_any,                ""),
    ("prediction",            "c",     _read_any,                ""),
))}
# fmt: on


def read_fields(endpoint: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Validate the set fields of a request, and return their values by name.

    Args:
        endpoint: The endpoint's letter, as in `RequestField.endpoints`.
        body: The request's object.

    Raises RequestError for a field without a row or value that is not honoured.
    """
    values: dict[str, Any] = {}
    for name, value in body.items():
        if value is None:
            continue  # clients send null for settings that they do not make
        row = FIELDS.get(name)
        if row is None or endpoint not in row.endpoints:
            raise RequestError(f"'{name[:64]}' is not supported")
        if isinstance(value, float) and not math.isfinite(value):
            raise RequestError(f"'{name}': a finite number expected")
        values[name] = row.read(name, value)
    if "model" not in values:
        raise RequestError("'model': a name expected")
    return values
