"""Streaming parser of a model's answer into reasoning, content and tool calls.

One state machine over text:

    start      what the answer is, is not known: it may begin with "<think>", or with a call
    reasoning  up to "</think>"
    content    up to the text that begins calls
    calls      up to the text that ends them, or the end of the answer

Text that may be the beginning of a mark is held back until that is decided. A body of calls is
parsed when it is whole; one that has no calls of known functions is content as it stands.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ekiden.llm.stop_filter import suffix_overlap
from ekiden.llm.tool_formats import ToolCall, ToolFormat
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["REASONING_BEGIN", "REASONING_END", "AnswerDelta", "AnswerParser"]

REASONING_BEGIN, REASONING_END = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class AnswerDelta:
    """Delta of a streamed response."""

    kind: str
    """"reasoning", "content" or "call"."""
    text: str = ""
    call: ToolCall | None = None


class AnswerParser:
    """Streaming parser of a response; see the module's description for its states."""

    def __init__(
        self,
        form: ToolFormat | None = None,
        functions: Collection[str] = (),
        *,
        has_reasoning: bool = False,
        state: str = "start",
    ) -> None:
        """Create a parser.

        Args:
            form: The form of calls; None where there are no tools.
            functions: The names of the functions that may be called.
            has_reasoning: Whether a response may begin with reasoning.
            state: The state at the response's first character.
        """
        self._form, self._functions = form, functions
        self._has_reasoning = has_reasoning
        self._state = state
        self._held = ""
        self._strips = state == "reasoning"
        """Whether white space at the beginning of the part is left out."""
        self.calls = 0
        """How many calls there were so far."""

    def feed(self, text: str) -> list[AnswerDelta]:
        """Parse more text and return the deltas that it determines."""
        self._held += text
        return self._advance(is_last=False)

    def finish(self) -> list[AnswerDelta]:
        """Return the remaining deltas at the end of the response."""
        return self._advance(is_last=True)

    def _advance(self, is_last: bool) -> list[AnswerDelta]:
        deltas: list[AnswerDelta] = []
        state = ""
        # A mark changes the state, and the text behind it is read in the new one.
        while state != self._state:
            state = self._state
            match state:
                case "start":
                    self._leave_start(is_last)
                case "reasoning":
                    self._read_text(deltas, "reasoning", REASONING_END, "content", is_last)
                case "content":
                    begin = "" if self._form is None else self._form.begin
                    self._read_text(deltas, "content", begin, "calls", is_last)
                case "calls":
                    self._read_calls(deltas, is_last)
        return deltas

    def _leave_start(self, is_last: bool) -> None:
        """Choose the first state from the first characters of the response."""
        text = self._held.lstrip()
        begins = [REASONING_BEGIN] if self._has_reasoning else []
        if not is_last and any(begin.startswith(text) for begin in begins):
            return  # also where there is white space alone
        if begins and text.startswith(REASONING_BEGIN):
            self._held = text.removeprefix(REASONING_BEGIN)
            self._state, self._strips = "reasoning", True
        elif self._form is not None and self._form.opening:
            if not text and not is_last:
                return
            is_call = text[:1] == self._form.opening
            self._state = "calls" if is_call else "content"
        else:
            self._state = "content"

    def _read_text(
        self, deltas: list[AnswerDelta], kind: str, mark: str, next_state: str, is_last: bool
    ) -> None:
        """Emit text up to a delimiter, and change the state there."""
        if self._strips:
            self._held = self._held.lstrip()
        position = self._held.find(mark) if mark else -1
        if position >= 0:
            text, self._held = self._held[:position], self._held[position + len(mark) :]
            # White space around marks belongs to neither part.
            text = text.rstrip() if kind == "reasoning" or not text.strip() else text
            self._state, self._strips = next_state, next_state == "content"
        else:
            keep = 0 if is_last or not mark else suffix_overlap(self._held, mark)
            if not is_last and kind == "reasoning":
                body = self._held[: len(self._held) - keep]
                keep += len(body) - len(body.rstrip())
            cut = len(self._held) - keep
            text, self._held = self._held[:cut], self._held[cut:]
        if text:
            self._strips = position >= 0 and self._strips
            deltas.append(AnswerDelta(kind, text))

    def _read_calls(self, deltas: list[AnswerDelta], is_last: bool) -> None:
        """Parse a section of tool calls once it is complete."""
        assert self._form is not None
        end = self._form.end
        position = self._held.find(end) if end else -1
        if position < 0 and not is_last:
            return
        body = self._held if position < 0 else self._held[:position]
        prefix = "" if body.lstrip()[:1] == self._form.opening else self._form.begin
        calls = self._form.parse(body.removeprefix(self._form.begin))
        if calls is None or not all(call.name in self._functions for call in calls):
            text = prefix + body + (end if position >= 0 else "")
            if text.strip():
                deltas.append(AnswerDelta("content", text))
        else:
            length = self._form.id_length
            deltas += [AnswerDelta("call", call=replace(call, id_length=length)) for call in calls]
            self.calls += len(calls)
        self._held = "" if position < 0 else self._held[position + len(end) :]
        self._state, self._strips = "content", True
