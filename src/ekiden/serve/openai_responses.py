"""OpenAI's responses endpoint: a conversation as a list of items, and an answer whose items come
one after another.

An answer is one state machine: each delta closes the item before it if that is of another kind,
opens its own, and grows it. A stream sends what happens as events; a whole answer is the last one.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from ekiden.runtime.errors import RequestError
from ekiden.serve.generation import Generation
from ekiden.serve.openai_answers import ChoiceDelta, OpenAIAnswer, new_tool_call_id
from ekiden.serve.openai_fields import read_fields
from ekiden.serve.openai_messages import parse_messages, parse_tool_choice, parse_tools
from ekiden.serve.openai_requests import RESPONSES, OpenAIRequest, build_request, parse_sampling
from ekiden.serve.text import TextRequest

__all__ = ["ResponsesAnswer", "parse_responses_request"]

TEXT_PARTS = ("input_text", "output_text", "text")
ITEM_KINDS = {
    "reasoning": ("reasoning", "rs"),
    "content": ("message", "msg"),
    "call": ("function_call", "fc"),
}
"""Kind of a delta -> (that of its item, what the item's name begins with)."""


def parse_responses_request(body: Mapping[str, Any]) -> OpenAIRequest:
    """Parse a request for a response. Raises RequestError for what is invalid or not honoured."""
    values = read_fields(RESPONSES, body)
    entries = values.get("input")
    if isinstance(entries, str):
        entries = [{"role": "user", "content": entries}]
    if not isinstance(entries, list) or not entries:
        raise RequestError("'input': a text, or a list of items, expected")
    messages = [m for n, entry in enumerate(entries) for m in _to_chat_messages(n, entry)]
    if "instructions" in values:
        messages.insert(0, {"role": "system", "content": values["instructions"]})
    tools = parse_tools([_to_chat_tool(entry) for entry in values.get("tools", [])])
    choice = parse_tool_choice(_to_chat_tool(values.get("tool_choice")), tools)
    options = dict(values.get("chat_template_kwargs", {}))
    effort = values.get("reasoning", {}).get("effort")
    if effort is not None:
        options.setdefault("reasoning_effort", effort)
    sampling = parse_sampling(
        {**values, "max_tokens": values.get("max_output_tokens")}, None, values.get("text", "")
    )
    request = TextRequest(
        messages=parse_messages(_merge_assistant_messages(messages)),
        sampling=sampling,
        tools=() if choice == "none" else tools,
        tool_choice="auto" if choice == "none" else choice,
        template_options=options,
    )
    return build_request(
        RESPONSES, values, (request,), is_parallel=values.get("parallel_tool_calls", True),
        is_forced_call=choice.startswith("function:"), echo=_echoed_fields(body),
    )  # fmt: skip


def _echoed_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request fields that the response repeats."""
    defaults: dict[str, Any] = {
        "instructions": None, "max_output_tokens": None, "metadata": {},
        "parallel_tool_calls": True, "temperature": None, "text": {"format": {"type": "text"}},
        "tool_choice": "auto", "tools": [], "top_p": None, "truncation": "disabled", "user": None,
    }  # fmt: skip
    return {
        name: value if body.get(name) is None else body[name] for name, value in defaults.items()
    }


def _to_chat_tool(entry: object) -> object:
    """Convert a function of the responses API to that of the chat API; other values are
    unchanged.
    """
    if not isinstance(entry, dict) or entry.get("type") != "function" or "function" in entry:
        return entry
    return {"type": "function", "function": {k: v for k, v in entry.items() if k != "type"}}


def _to_chat_messages(number: int, item: object) -> list[dict[str, Any]]:
    """Convert an input item to chat messages. Raises RequestError."""
    where = f"input[{number}]"
    kind = item.get("type", "message") if isinstance(item, dict) else None
    if not isinstance(item, dict) or not isinstance(kind, str):
        raise RequestError(f"'{where}': an item expected")
    match kind:
        case "message":
            content = item.get("content")
            if isinstance(content, list):
                content = [_text_part(where, part) for part in content]
            return [{"role": item.get("role"), "content": content}]
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            return [{"role": "assistant", "content": None, "tool_calls": [call]}]
        case "function_call_output":
            output = item.get("output")
            return [{"role": "tool", "content": output, "tool_call_id": item.get("call_id")}]
        case "reasoning":  # chat templates leave out what was thought in earlier turns
            return []
    raise RequestError(f"'{where}.type': '{kind[:64]}' is not supported")


def _text_part(where: str, part: object) -> dict[str, Any]:
    if not isinstance(part, dict) or part.get("type") not in TEXT_PARTS:
        raise RequestError(f"'{where}.content': parts of text expected")
    return {"type": "text", "text": part.get("text")}


def _merge_assistant_messages(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge the tool calls of one assistant turn into one message, as the chat API has them."""
    joined: list[dict[str, Any]] = []
    for message in messages:
        last = joined[-1] if joined else {}
        if "tool_calls" in message and last.get("role") == "assistant":
            joined[-1] = {
                **last, "tool_calls": [*last.get("tool_calls", []), *message["tool_calls"]],
            }  # fmt: skip
        else:
            joined.append(message)
    return joined


class ResponsesAnswer(OpenAIAnswer):
    """Response of the responses endpoint, streamed or complete."""

    def __init__(self, request: OpenAIRequest, generations: Sequence[Generation]) -> None:
        super().__init__(request, generations)
        self._items: list[dict[str, Any]] = []
        self._number = 0
        self._name = f"resp_{secrets.token_hex(16)}"
        self._last = ""
        """The kind of the newest delta."""

    async def complete(self) -> dict[str, object]:
        """Return the complete (non-streamed) response."""
        response: dict[str, object] = {}
        async for event in self.chunks():
            response = event.get("response", response)  # type: ignore[assignment]
        return response

    async def chunks(self) -> AsyncIterator[dict[str, object]]:
        """Yield the events of the streamed response; the last one contains the complete
        response.
        """
        yield self._event("response.created", response=self._response("in_progress"))
        yield self._event("response.in_progress", response=self._response("in_progress"))
        finish = ""
        async for delta in self._deltas(0):
            finish = delta.finish or finish
            for event in self._delta_events(delta):
                yield event
        for event in self._close_item():
            yield event
        if not self._items:
            for event in (*self._open_item("content"), *self._close_item()):
                yield event
        status = "incomplete" if finish == "length" else "completed"
        yield self._event(f"response.{status}", response=self._response(status))

    def _event(self, kind: str, **fields: object) -> dict[str, object]:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}

    def _item_event(self, kind: str, **fields: object) -> dict[str, object]:
        """Return an event of the current output item."""
        return self._event(
            kind, output_index=len(self._items) - 1, item_id=self._items[-1]["id"], **fields
        )

    def _response(self, status: str) -> dict[str, object]:
        is_done = status != "in_progress"
        usage = self._usage()
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self._name, "object": "response", "created_at": self._created,
            "status": status, "error": None,
            "incomplete_details": details,
            "model": self._request.model, "output": list(self._items) if is_done else [],
            "previous_response_id": None, "store": False, **self._request.echo,
            "usage": {
                "input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"],
                "total_tokens": usage["total_tokens"],
            } if is_done else None,
        }  # fmt: skip

    def _delta_events(self, choice_delta: ChoiceDelta) -> list[dict[str, object]]:
        """Return the events of a delta."""
        delta = choice_delta.delta
        if delta is None:
            return []
        events: list[dict[str, object]] = []
        if delta.kind != self._last or delta.call is not None:
            events += [*self._close_item(), *self._open_item(delta.kind)]
        item = self._items[-1]
        if delta.call is not None:
            item["name"], item["call_id"] = delta.call.name, new_tool_call_id(delta.call.id_length)
            events[-1]["item"] = dict(item)
            item["arguments"] = delta.call.arguments
            kind = "response.function_call_arguments.delta"
            return [*events, self._item_event(kind, delta=delta.call.arguments)]
        item["content"][0]["text"] += delta.text
        kind = "response.reasoning_text" if delta.kind == "reasoning" else "response.output_text"
        return [*events, self._item_event(f"{kind}.delta", content_index=0, delta=delta.text)]

    def _open_item(self, kind: str) -> list[dict[str, object]]:
        """Return the opening events of an output item."""
        self._last = kind
        item_kind, prefix = ITEM_KINDS[kind]
        item: dict[str, Any] = {"id": f"{prefix}_{secrets.token_hex(12)}", "type": item_kind}
        if kind == "call":
            item |= {"status": "in_progress", "arguments": "", "name": "", "call_id": ""}
        elif kind == "reasoning":
            item |= {"summary": [], "content": []}
        else:
            item |= {"role": "assistant", "status": "in_progress", "content": []}
        self._items.append(item)
        events = [
            self._event(
                "response.output_item.added", output_index=len(self._items) - 1, item=dict(item)
            )
        ]
        if kind != "call":
            content_part: dict[str, object] = {"type": "reasoning_text", "text": ""}
            if kind == "content":
                content_part = {"type": "output_text", "text": "", "annotations": []}
            item["content"] = [content_part]
            events.append(
                self._item_event(
                    "response.content_part.added", content_index=0, part=dict(content_part)
                )
            )
        return events

    def _close_item(self) -> list[dict[str, object]]:
        """Return the closing events of the current output item."""
        if not self._last:
            return []
        kind, self._last = self._last, ""
        item = self._items[-1]
        if kind != "reasoning":
            item["status"] = "completed"
        if kind == "call":
            arguments = item["arguments"]
            events = [
                self._item_event(
                    "response.function_call_arguments.done", arguments=arguments, name=item["name"]
                )
            ]
        else:
            content_part = item["content"][0]
            name = "response.reasoning_text" if kind == "reasoning" else "response.output_text"
            events = [
                self._item_event(f"{name}.done", content_index=0, text=content_part["text"]),
                self._item_event(
                    "response.content_part.done", content_index=0, part=dict(content_part)
                ),
            ]
        done = self._event(
            "response.output_item.done", output_index=len(self._items) - 1, item=dict(item)
        )
        return [*events, done]
