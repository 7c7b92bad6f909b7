"""Streaming parser of the Harmony format (channels), in which gpt-oss answers: messages, each with
a header and a body.

    <|channel|>analysis<|message|>...<|end|>                                   reasoning
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>
    <|start|>assistant<|channel|>final<|message|>...<|return|>                 content

The prompt ends behind the first "<|start|>assistant". Commentary without a recipient is content,
and so is a text that begins with no header, and a call of a function that there is not.

Source: OpenAI, "OpenAI harmony response format" (2025).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection

from ekiden.llm.answer_parser import AnswerDelta, AnswerParser
from ekiden.llm.stop_filter import suffix_overlap
from ekiden.llm.tool_formats import ToolCall

__all__ = ["CHANNEL_MARKS", "FINAL_HEADER", "HarmonyParser", "has_channels"]

CHANNEL, MESSAGE, START, END, CALL, RETURN, CONSTRAIN = CHANNEL_MARKS = (
    "<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>",
)  # fmt: skip
"""Texts that tell parts apart, which are special tokens."""
BODY_ENDS = (END, CALL, RETURN, START)
FINAL_HEADER = f"{CHANNEL}final{MESSAGE}"
RECIPIENT = re.compile(r"to=functions\.([\w.-]+)")
ROLE = "assistant"


def has_channels(template: str) -> bool:
    """Return whether a chat template uses the Harmony format."""
    return CHANNEL in template and MESSAGE in template


class HarmonyParser(AnswerParser):
    """Streaming parser of a response in the Harmony format."""

    def __init__(self, functions: Collection[str] = (), *, state: str = "start") -> None:
        """Create a parser.

        Args:
            functions: The names of the functions that may be called.
            state: "start", or "content" behind the header of the final channel.
        """
        super().__init__(None, functions, state=state)
        self._kind, self._function = "content", ""
        """What a body is, and the function that it calls."""

    def _advance(self, is_last: bool) -> list[AnswerDelta]:
        deltas: list[AnswerDelta] = []
        is_decided = True
        while is_decided and (self._held or is_last):
            if self._state in ("start", "header"):
                is_decided = self._read_header(is_last)
            else:
                is_decided = self._read_body(deltas, is_last)
            if is_last and not self._held:
                break
        return deltas

    def _read_header(self, is_last: bool) -> bool:
        """Parse a message header once it is complete; return whether it was."""
        position = self._held.find(MESSAGE)
        if position < 0 and not is_last and (self._state == "header" or self._may_be_header()):
            return False
        if position < 0 or (self._state == "start" and not self._may_be_header()):
            # A text without a header; what is left of an incomplete one says nothing.
            if self._state == "header" or self._may_be_header():
                self._held = ""
            self._kind, self._function, self._state = "content", "", "body"
            return True
        header, self._held = self._held[:position], self._held[position + len(MESSAGE) :]
        name = RECIPIENT.search(header)
        _, _, behind = header.partition(CHANNEL)
        self._kind = "reasoning" if behind.startswith("analysis") else "content"
        self._function = "" if name is None else name[1]
        self._state = "body"
        return True

    def _may_be_header(self) -> bool:
        """Return whether the held-back text may be the beginning of a header."""
        text = self._held.lstrip()
        begins = (CHANNEL, START, MESSAGE, "to=", ROLE + CHANNEL)
        return any(text.startswith(begin) or begin.startswith(text) for begin in begins)

    def _read_body(self, deltas: list[AnswerDelta], is_last: bool) -> bool:
        """Emit a message body up to its end, tool calls once they are complete; return whether it
        has ended.
        """
        end_match = [
            (position, mark) for mark in BODY_ENDS if (position := self._held.find(mark)) >= 0
        ]
        position, mark = min(end_match, default=(-1, ""))
        # The JSON of a call can be checked only when it is complete.
        if position < 0 and self._function and not is_last:
            return False
        keep = 0
        if position < 0 and not is_last:
            # The end of the text may be the beginning of a mark.
            keep = max(suffix_overlap(self._held, mark) for mark in BODY_ENDS)
        cut = position if position >= 0 else len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut + len(mark) :]
        if self._function and (position >= 0 or is_last):
            self._add_call(deltas, text)
        elif text:
            deltas.append(AnswerDelta(self._kind, text))
        if position >= 0:
            self._state, self._function = "header", ""
        return position >= 0

    def _add_call(self, deltas: list[AnswerDelta], body: str) -> None:
        """Append the tool call of a body; append it as content if it is not a valid call."""
        name, self._function = self._function, ""
        try:
            is_object = isinstance(json.loads(body), dict)
        except (ValueError, RecursionError):
            is_object = False
        if is_object and name in self._functions:
            deltas.append(AnswerDelta("call", call=ToolCall(name, body.strip())))
            self.calls += 1
        elif body:
            deltas.append(AnswerDelta("content", body))
