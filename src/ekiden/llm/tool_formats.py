"""Tool-call formats of models, one table row each: one row for each, chosen by the marks of the
model's chat template.

form     where               an answer with a call
xml      Qwen3-Coder         <tool_call><function=f><parameter=x>1</parameter></function>
hermes   Hermes, Qwen 2.5/3  <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>
mistral  Mistral             [TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}], or
                             [TOOL_CALLS]f[ARGS]{"x": 1}
granite  Granite, Phi 4      <|tool_call|>[{"name": "f", "arguments": {"x": 1}}]
llama    Llama 3             {"name": "f", "parameters": {"x": 1}}
python   Llama 3.2, 4        [f(x=1), g()]
harmony  gpt-oss             <|channel|>commentary to=functions.f<|message|>{"x": 1}<|call|>
json     others              {"name": "f", "arguments": {"x": 1}}
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["TOOL_FORMATS", "ToolCall", "ToolFormat", "find_tool_format", "read_calls"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Tool call parsed from a response."""

    name: str
    arguments: str
    """An object in JSON."""
    id_length: int = 0
    """Letters of its identifier, where templates want as many; 0: any."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """Tool-call format of a response."""

    name: str
    marks: tuple[str, ...]
    """A chat template with all of these has the form."""
    begin: str
    """The text before calls; empty where a call is the whole answer."""
    end: str
    """The text after calls; empty where they end with the answer."""
    parse: Callable[[str], list[ToolCall] | None]
    """Return the calls of a whole body, None for a body that has none."""
    opening: str = ""
    """First characters of a body, by which one without `begin` is recognised; empty: `begin` is
    always there."""
    frame: str = ""
    """How a call is forced: the body, with NAME and ARGUMENTS; empty where it cannot be."""
    id_length: int = 0
    """As `ToolCall.id_length`."""


def read_calls(value: object) -> list[ToolCall] | None:
    """Return the tool calls in a JSON value: an object, or a list of them."""
    entries = value if isinstance(value, list) else [value]
    calls = []
    for entry in entries:
        if not isinstance(entry, Mapping):
            return None
        function = entry.get("function", entry)
        entry = function if isinstance(function, Mapping) else {**entry, "name": function}
        name = entry.get("name")
        arguments = entry.get("arguments", entry.get("parameters", {}))
        if isinstance(arguments, str):  # as OpenAI's own interface has them
            arguments = _parse_json(arguments)
        if not isinstance(name, str) or not isinstance(arguments, Mapping):
            return None
        calls.append(ToolCall(name, json.dumps(arguments, ensure_ascii=False)))
    return calls or None


def _parse_json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _parse_objects(body: str) -> list[ToolCall] | None:
    """Parse consecutive JSON objects or lists, separated by ";", "," or whitespace."""
    decoder, position = json.JSONDecoder(), 0
    calls: list[ToolCall] = []
    while True:
        while position < len(body) and body[position] in " \t\r\n,;":
            position += 1
        if position == len(body):
            return calls or None
        try:
            value, position = decoder.raw_decode(body, position)
        except (ValueError, RecursionError):
            return None
        value_calls = read_calls(value)
        if value_calls is None:
            return None
        calls += value_calls


_NAMED_CALL = re.compile(
    r"\s*(?:\[TOOL_CALLS\])?([\w.-]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?(?=\s*\{)"
)


def _parse_mistral(body: str) -> list[ToolCall] | None:
    """Parse a list of objects, or names each followed by an object of arguments."""
    if body.lstrip()[:1] in ("[", "{") and not body.lstrip().startswith("[TOOL_CALLS]"):
        return _parse_objects(body)
    decoder, position = json.JSONDecoder(), 0
    calls: list[ToolCall] = []
    while body[position:].strip():
        name = _NAMED_CALL.match(body, position)
        if name is None:
            return None
        start = body.index("{", name.end())
        try:
            arguments, position = decoder.raw_decode(body, start)
        except (ValueError, RecursionError):
            return None
        calls.append(ToolCall(name[1], json.dumps(arguments, ensure_ascii=False)))
    return calls or None


def _parse_python(body: str) -> list[ToolCall] | None:
    """Parse a list of Python calls whose arguments are literals by keyword."""
    try:
        tree = ast.parse(body.strip(), mode="eval").body
        nodes = tree.elts if isinstance(tree, ast.List) else [tree]
        calls = [_python_call(node) for node in nodes]
    except (SyntaxError, ValueError, RecursionError, MemoryError, TypeError):
        return None
    return calls or None


def _python_call(node: ast.expr) -> ToolCall:
    """Return the tool call of a Python call expression. Raises ValueError for what is none with
    literals by keyword.
    """
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("a call with arguments by keyword expected")
    arguments = {
        keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords if keyword.arg
    }
    return ToolCall(ast.unparse(node.func), json.dumps(arguments, ensure_ascii=False))


_XML_FUNCTION = re.compile(r"<function=([^>]+)>(.*?)</function>", re.DOTALL)
_XML_PARAMETER = re.compile(r"<parameter=([^>]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


def _parse_xml(body: str) -> list[ToolCall] | None:
    """Parse functions whose parameters are XML elements; JSON values are decoded."""
    calls = []
    for function in _XML_FUNCTION.finditer(body):
        arguments: dict[str, Any] = {}
        for parameter in _XML_PARAMETER.finditer(function[2]):
            value = _parse_json(parameter[2])
            arguments[parameter[1].strip()] = parameter[2] if value is None else value
        calls.append(ToolCall(function[1].strip(), json.dumps(arguments, ensure_ascii=False)))
    return calls or None


_OBJECT = '{"name": "NAME", "arguments": ARGUMENTS}'
_NAMED_PARAMETERS = '{"name": "NAME", "parameters": ARGUMENTS}'
# fmt: off
TOOL_FORMATS: Sequence[ToolFormat] = (
    #          name       marks in the template          begin             end
    ToolFormat("harmony", ("<|channel|>", "<|message|>"), "",              "",
               lambda body: None),  # channel_parser reads whole answers
    ToolFormat("xml",     ("<tool_call>", "<function="), "<tool_call>",    "</tool_call>",
               _parse_xml),
    ToolFormat("hermes",  ("<tool_call>",),              "<tool_call>",    "</tool_call>",
               _parse_objects, frame=_OBJECT),
    ToolFormat("mistral", ("[TOOL_CALLS]",),             "[TOOL_CALLS]",   "",
               _parse_mistral, frame=f"[{_OBJECT}]", id_length=9),
    ToolFormat("granite", ("<|tool_call|>",),            "<|tool_call|>",  "",
               _parse_objects, frame=f"[{_OBJECT}]"),
    ToolFormat("llama",   ('"parameters": ',),           "<|python_tag|>", "",
               _parse_objects, "{", _NAMED_PARAMETERS),
    ToolFormat("python",  ("func_name1(",),              "",               "",
               _parse_python, "["),
    ToolFormat("json",    ("tools",),                    "",               "",
               _parse_objects, "{", _OBJECT),
)
# fmt: on


def find_tool_format(template: str) -> ToolFormat | None:
    """Return the tool-call format by the markers in a model's chat template; None for a template
    without tools.
    """
    if "tools" not in template:
        return None
    return next(row for row in TOOL_FORMATS if all(mark in template for mark in row.marks))
