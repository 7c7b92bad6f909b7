"""Validation of messages and tools of OpenAI's requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from ekiden.runtime.errors import RequestError
from ekiden.serve.text import Message

__all__ = ["parse_messages", "parse_tool_choice", "parse_tools"]

CHAT_ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_TOOLS = 128


def parse_messages(entries: Sequence[object]) -> tuple[Message, ...]:
    """Parse messages. Raises RequestError."""
    return tuple(_parse_message(number, entry) for number, entry in enumerate(entries))


def _parse_message(at: int, entry: object) -> Message:
    """Parse one message. Raises RequestError."""
    if not isinstance(entry, dict) or entry.get("role") not in CHAT_ROLES:
        raise RequestError(f"'messages[{at}]': a role of {', '.join(CHAT_ROLES)} expected")
    role, content = entry["role"], entry.get("content")
    if content is None and role == "assistant":  # it may have called functions alone
        content = entry.get("refusal") or ""
    if isinstance(content, list):  # parts, of which only texts are taken
        texts = [p.get("text") for p in content if isinstance(p, dict) and p.get("type") == "text"]
        if len(texts) == len(content) and all(isinstance(text, str) for text in texts):
            content = "".join(map(str, texts))
    if not isinstance(content, str):
        raise RequestError(f"'messages[{at}]': content of text expected")
    for key in ("tool_call_id", "name"):
        if not isinstance(entry.get(key) or "", str):
            raise RequestError(f"'messages[{at}].{key}': a text expected")
    calls = entry.get("tool_calls") or []
    if not isinstance(calls, list) or (calls and role != "assistant"):
        raise RequestError(f"'messages[{at}].tool_calls': calls by an assistant expected")
    return Message(
        role,
        content,
        tuple(_parse_tool_call(f"messages[{at}].tool_calls[{n}]", c) for n, c in enumerate(calls)),
        entry.get("tool_call_id") or "",
        entry.get("name") or "",
    )


def _parse_tool_call(where: str, call: object) -> dict[str, Any]:
    """Parse a tool call, decoding its arguments, which chat templates read as an object. Raises
    RequestError.
    """
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError(f"'{where}': a function with a name expected")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments)
        except ValueError:
            arguments = None
    if not isinstance(arguments, dict):
        raise RequestError(f"'{where}': an object in JSON expected as arguments")
    assert isinstance(call, dict)
    return {**call, "function": {**function, "arguments": arguments}}


def parse_tools(entries: Sequence[object]) -> tuple[Mapping[str, Any], ...]:
    """Validate the tools that an answer may call. Raises RequestError."""
    if len(entries) > MAX_TOOLS:
        raise RequestError(f"'tools': at most {MAX_TOOLS} expected")
    tools = tuple(_parse_tool(f"tools[{n}]", entry) for n, entry in enumerate(entries))
    names = [tool["function"]["name"] for tool in tools]
    if len(set(names)) < len(names):
        raise RequestError("'tools': functions of different names expected")
    return tools


def _parse_tool(where: str, tool: object) -> Mapping[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or tool.get("type") != "function":
        raise RequestError(f"'{where}.type': 'function' expected")
    if not isinstance(function, dict):
        raise RequestError(f"'{where}.function': an object expected")
    name = function.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= 64:
        raise RequestError(f"'{where}.function.name': a name of up to 64 letters expected")
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise RequestError(f"'{where}.function.parameters': a JSON schema expected")
    return tool


def parse_tool_choice(value: object, tools: Sequence[Mapping[str, Any]]) -> str:
    """Return "none", "auto", "required", or "function:" followed by a name. Raises RequestError."""
    if value is None:
        return "auto" if tools else "none"
    if value in ("none", "auto"):
        return str(value)
    if not tools:
        raise RequestError("'tool_choice': 'tools' expected beside it")
    if value == "required":
        return "required"
    function = value.get("function") if isinstance(value, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(value, dict) or value.get("type") != "function" or name is None:
        raise RequestError("'tool_choice': 'none', 'auto', 'required' or a function expected")
    if name not in [tool["function"]["name"] for tool in tools]:
        raise RequestError(f"'tool_choice': '{str(name)[:64]}' is none of the tools")
    return f"function:{name}"
