"""Chat completions in Python: an iterator over its parts, also for `async for`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from ekiden.llm.answer_parser import AnswerDelta
from ekiden.llm.conversation import Conversation
from ekiden.llm.tokenizer import Detokenizer
from ekiden.llm.tool_formats import ToolCall

if TYPE_CHECKING:
    from ekiden.llm.engine import Stream

__all__ = ["ChatAnswer"]


class ChatAnswer:
    """Response to a conversation, as an iterator over its deltas, text or tool calls. It is
    generated while it is iterated; `async for` does not block the event loop.
    """

    def __init__(self, stream: Stream, conversation: Conversation) -> None:
        self._stream = stream
        tokenizer = stream.engine.model.tokenizer
        self._texts = Detokenizer(tokenizer, stream.prompt, stream.stop_texts, conversation.marks)
        self._parser = conversation.parser()
        self._parts = self._iter_parts()
        self.text = ""
        """The content so far."""
        self.reasoning = ""
        """What was thought before, where the model does that."""
        self.calls: list[ToolCall] = []
        """The functions that are called."""
        self.finish = ""
        """Why the answer is over: "stop", "length" or "closed"; empty before."""
        self.prompt_tokens = len(stream.prompt)

    @property
    def tokens(self) -> int:
        """Return the number of generated tokens."""
        return len(self._stream.tokens)

    def __iter__(self) -> Iterator[AnswerDelta]:
        return self

    def __next__(self) -> AnswerDelta:
        delta = next(self._parts)
        if delta.call is not None:
            self.calls.append(delta.call)
        elif delta.kind == "reasoning":
            self.reasoning += delta.text
        else:
            self.text += delta.text
        return delta

    def __aiter__(self) -> AsyncIterator[AnswerDelta]:
        return self

    async def __anext__(self) -> AnswerDelta:
        delta = await asyncio.to_thread(next, self, None)
        if delta is None:
            raise StopAsyncIteration
        return delta

    def close(self) -> None:
        """End the response."""
        self._stream.close()
        self.finish = self.finish or "closed"

    def read(self) -> str:
        """Return the whole content after the end of the generation."""
        for _ in self:
            pass
        return self.text

    def _iter_parts(self) -> Iterator[AnswerDelta]:
        stream, texts = self._stream, self._texts
        try:
            for token in stream:
                yield from self._parser.feed(texts.add(token))
                if texts.has_stopped:
                    break
            yield from self._parser.feed(texts.rest())
            yield from self._parser.finish()
        finally:
            stream.close()
            self.finish = self.finish or stream.finish or "stop"
