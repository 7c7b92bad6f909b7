"""Conversation rendered and tokenised for generation: its tokens, and how the answer is read.

The chat template decides: whether it has tools and the form of calls, whether answers begin with
reasoning, and whether the prompt has begun that already.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from ekiden.llm.answer_parser import REASONING_BEGIN, REASONING_END, AnswerParser
from ekiden.llm.chat_template import find_chat_template, render_chat
from ekiden.llm.harmony_parser import (
    CHANNEL_MARKS,
    FINAL_HEADER,
    HarmonyParser,
    has_channels,
)
from ekiden.llm.json_schema import json_object_pattern, json_schema_pattern
from ekiden.llm.tokenizer import Tokenizer
from ekiden.llm.tool_formats import ToolFormat, find_tool_format
from ekiden.runtime.errors import InputError
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["Conversation", "is_conversation", "open_conversation"]

TEMPLATE_ARGUMENTS = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
"""Variables that no option may set."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Prompt tokens of a conversation, with the format in which its response is parsed."""

    tokens: list[int]
    form: ToolFormat | None
    """The form of calls; None without tools."""
    functions: frozenset[str]
    """The names that may be called."""
    has_reasoning: bool
    """Whether an answer may begin with reasoning."""
    state: str
    """The state of the parser at the answer's first character."""
    pattern: str
    """The pattern of an answer that has to be a call, or whose calls have to be of their schemas;
    empty for any answer."""
    in_channels: bool = False
    """Whether the answer is messages in channels."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Return the delimiters between the parts of a response, which may be special tokens."""
        if self.in_channels:
            return CHANNEL_MARKS
        calls = () if self.form is None else (self.form.begin, self.form.end)
        return (REASONING_BEGIN, REASONING_END, *filter(None, calls))

    def parser(self) -> AnswerParser:
        """Return a streaming parser of the response."""
        if self.in_channels:
            return HarmonyParser(self.functions, state=self.state)
        return AnswerParser(
            self.form, self.functions, has_reasoning=self.has_reasoning, state=self.state
        )


def open_conversation(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] = (),
    tool_choice: str = "auto",
    is_constrained: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Conversation:
    """Render and tokenise messages, and choose the tool-call format, grammar and parser of their
    response.

    Args:
        tokenizer: The model's, with its chat template.
        messages: "role", "content" and what else the template reads.
        tools: Functions that the response may call, in OpenAI's form.
        tool_choice: "auto", "required", or "function:" and the name of the one to call.
        is_constrained: Whether the response has a grammar, which has no place for reasoning.
        options: Further variables of the template.

    Raises InputError for a template that takes no tools, a variable that it does not have, a call
    that cannot be forced, and messages that it rejects.
    """
    template = find_chat_template(tokenizer.settings, bool(tools))
    for name in options or {}:
        if name in TEMPLATE_ARGUMENTS or not re.search(rf"\b{re.escape(name)}\b", template):
            raise InputError(f"'{name[:64]}': the model's chat template has no such variable")
    form = find_tool_format(template) if tools else None
    if tools and form is None:
        raise InputError("'tools': the model's chat template takes no tools")
    text = render_chat(template, tokenizer.settings, messages, list(tools) or None, options)
    in_channels = has_channels(template)
    has_reasoning = REASONING_BEGIN in template or REASONING_BEGIN in tokenizer.special_tokens
    is_forced = form is not None and tool_choice != "auto"
    state = "start"
    if in_channels and is_constrained:  # a grammar of the final message alone
        text += FINAL_HEADER
    elif has_reasoning and text.rstrip().endswith(REASONING_BEGIN):
        state = "reasoning"
        if is_constrained or is_forced:  # a grammar of the answer alone: reasoning ends here
            text, state = f"{text.rstrip()}\n\n{REASONING_END}\n\n", "start"
    pattern = ""
    if is_forced:
        assert form is not None
        pattern = _call_pattern(form, tools, tool_choice)
        text, state = text + form.begin, "calls"
    elif form is not None and not is_constrained and any(map(is_strict, tools)):
        pattern = _strict_pattern(form, tools)
    names = frozenset(str(tool["function"]["name"]) for tool in tools)
    # A grammar's JSON is content, whatever tools there are.
    return Conversation(
        tokenizer.encode_rendered(text), None if is_constrained else form, names, has_reasoning,
        "content" if is_constrained else state, pattern, in_channels,
    )  # fmt: skip


def is_conversation(prompt: object) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    """Return whether a prompt is a list of messages."""
    return (
        isinstance(prompt, (list, tuple))
        and all(isinstance(m, Mapping) for m in prompt)
        and (len(prompt) > 0)
    )


def is_strict(tool: Mapping[str, Any]) -> bool:
    """Return whether a function's arguments must conform to its schema (`"strict": true`)."""
    return tool["function"].get("strict") is True


def _call_pattern(form: ToolFormat, tools: Sequence[Mapping[str, Any]], choice: str) -> str:
    """Return the pattern of exactly one tool call. Raises InputError for a form that cannot be
    forced, or parameters that are no schema that a grammar holds.
    """
    if not form.frame:
        raise InputError(f"'tool_choice': calls in the form '{form.name}' cannot be forced")
    name = choice.removeprefix("function:")
    calls = [
        _tool_call_pattern(form, tool, number, holds_schema=True)
        for number, tool in enumerate(tools)
        if choice == "required" or tool["function"]["name"] == name
    ]
    return f"({'|'.join(calls)})"


def _strict_pattern(form: ToolFormat, tools: Sequence[Mapping[str, Any]]) -> str:
    """Return the pattern of responses in which every tool call conforms to its schema. Raises
    InputError for a form that no grammar holds, and parameters that are no such schema.
    """
    if not form.frame:
        raise InputError(f"'tools': calls in the form '{form.name}' cannot be 'strict'")
    calls = [
        _tool_call_pattern(form, tool, number, holds_schema=is_strict(tool))
        for number, tool in enumerate(tools)
    ]
    call = rf"\s{{0,2}}({'|'.join(calls)})\s{{0,2}}"
    begin = _literal(form.begin)
    text = f"(?:(?!{begin})(?s:.))*" if begin else "(?s:.)*"
    if form.opening:  # a call is the whole answer, and its first character says so
        first = re.escape(form.opening + form.begin[:1])
        optional = f"({begin})?" if begin else ""
        return rf"(\s{{0,2}}{optional}{call}|\s{{0,2}}([^\s{first}]{text})?)"
    if form.end:
        return f"{text}({begin}{call}{_literal(form.end)}{text})*"
    return f"{text}({begin}{call})?"


def _tool_call_pattern(
    form: ToolFormat, tool: Mapping[str, Any], number: int, holds_schema: bool
) -> str:
    """Return the pattern of a call of one function. Raises InputError for parameters that are no
    schema that a grammar holds.
    """
    function = tool["function"]
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    try:
        arguments = (
            json_schema_pattern(parameters, f"tool{number}_")
            if holds_schema
            else json_object_pattern()
        )
    except InputError as error:
        raise InputError(f"'tools[{number}].function.parameters': {error}") from error
    frame = _literal(form.frame).replace('"NAME"', _literal(json.dumps(function["name"])))
    return frame.replace("ARGUMENTS", arguments)


def _literal(text: str) -> str:
    """Escape a text as a pattern."""
    return re.escape(text).replace(r"\ ", " ")
