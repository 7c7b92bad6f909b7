"""Responses of OpenAI's chat and completion endpoints: each choice as a sequence of deltas, which a
stream sends as they come and a whole answer sums up.
"""

from __future__ import annotations

import asyncio
import secrets
import string
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from ekiden.llm.answer_parser import AnswerDelta
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.serve.generation import Generation
from ekiden.serve.openai_requests import CHAT, OpenAIRequest
from ekiden.serve.text import ScoredToken

__all__ = ["OpenAIAnswer"]

CALL_ID_LETTERS = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """Delta of a streamed choice, with the scores of its tokens."""

    delta: AnswerDelta | None
    """None for scores alone, or the end."""
    scores: tuple[ScoredToken, ...] = ()
    finish: str = ""
    call_index: int = 0
    """The number of the call among those of its choice."""


class OpenAIAnswer:
    """Response to one chat or completion request: its choices are generations that run side by
    side.
    """

    def __init__(self, request: OpenAIRequest, generations: Sequence[Generation]) -> None:
        self._request, self._generations = request, generations
        is_chat = request.endpoint == CHAT
        self._id = f"{'chatcmpl' if is_chat else 'cmpl'}-{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._form = ChatFormat(request) if is_chat else CompletionFormat(request)

    def close(self) -> None:
        """End all choices."""
        for generation in self._generations:
            generation.close()

    def _response_head(self, kind: str) -> dict[str, object]:
        return {
            "id": self._id, "object": kind, "created": self._created, "model": self._request.model,
            "system_fingerprint": None,
        }  # fmt: skip

    def _usage(self) -> dict[str, Any]:
        """Return the token usage; the prompt is counted once for all choices."""
        prompt = sum(generation.prompt for generation in self._generations[:: self._request.n])
        completion = sum(generation.completion for generation in self._generations)
        return {
            "prompt_tokens": prompt, "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }  # fmt: skip

    async def complete(self) -> dict[str, object]:
        """Return the complete (non-streamed) response."""
        choices = await asyncio.gather(
            *(self._collect_choice(n) for n in range(len(self._generations)))
        )
        return {**self._response_head(self._form.whole), "choices": choices, "usage": self._usage()}

    async def _collect_choice(self, index: int) -> dict[str, object]:
        deltas = [delta async for delta in self._deltas(index)]
        return {"index": index, **self._form.choice(deltas, self._prompt_text(index))}

    async def chunks(self) -> AsyncIterator[dict[str, object]]:
        """Yield the chunks of a streamed response."""
        count = len(self._generations)
        for index in range(count):
            for body in self._form.first(self._prompt_text(index)):
                yield self._chunk(index, body)
        async for index, delta in merge_deltas([self._deltas(n) for n in range(count)]):
            for body in self._form.delta(delta):
                yield self._chunk(index, body)
        if self._request.usage:
            yield {**self._response_head(self._form.chunk), "choices": [], "usage": self._usage()}

    def _chunk(self, index: int, body: dict[str, object]) -> dict[str, object]:
        chunk = {**self._response_head(self._form.chunk), "choices": [{"index": index, **body}]}
        return {**chunk, "usage": None} if self._request.usage else chunk

    def _prompt_text(self, index: int) -> str:
        prompt = self._request.requests[index].prompt
        return prompt if self._request.is_echo and isinstance(prompt, str) else ""

    async def _deltas(self, index: int) -> AsyncIterator[ChoiceDelta]:
        """Yield the deltas of a choice; the last one has `finish`."""
        generation = self._generations[index]
        parser = generation.parser
        scores: list[ScoredToken] = []
        calls = 0
        async for piece in generation.pieces():
            scores += piece.scores
            for delta in parser.feed(piece.text):
                calls += delta.call is not None
                if delta.call is None or self._accepts_call(calls):
                    yield ChoiceDelta(delta, tuple(scores), call_index=calls - 1)
                    scores.clear()
        for delta in parser.finish():
            calls += delta.call is not None
            if delta.call is None or self._accepts_call(calls):
                yield ChoiceDelta(delta, tuple(scores), call_index=calls - 1)
                scores.clear()
        finish = generation.finish
        if calls and finish == "stop" and not self._request.is_forced_call:
            finish = "tool_calls"
        # Released here, where the counts are final: other choices may go on for long.
        generation.close()
        yield ChoiceDelta(None, tuple(scores), finish)

    def _accepts_call(self, number: int) -> bool:
        return number == 1 or self._request.is_parallel


async def merge_deltas(
    iterators: Sequence[AsyncIterator[ChoiceDelta]],
) -> AsyncIterator[tuple[int, ChoiceDelta]]:
    """Yield the deltas of all choices as they arrive, each with its choice index."""
    if len(iterators) == 1:
        async for delta in iterators[0]:
            yield 0, delta
        return
    pending = {asyncio.ensure_future(anext(it)): n for n, it in enumerate(iterators)}
    try:
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=pending.__getitem__):
                index = pending.pop(task)
                try:
                    delta = task.result()
                except StopAsyncIteration:
                    continue
                pending[asyncio.ensure_future(anext(iterators[index]))] = index
                yield index, delta
    finally:
        for task in pending:
            task.cancel()


def new_tool_call_id(length: int = 0) -> str:
    """Return a random tool call id, of `length` letters if the chat template requires a length."""
    if length:
        return "".join(secrets.choice(CALL_ID_LETTERS) for _ in range(length))
    return f"call_{secrets.token_hex(12)}"


class ChatFormat:
    """Formatter of chat completion responses."""

    whole, chunk = "chat.completion", "chat.completion.chunk"

    def __init__(self, request: OpenAIRequest) -> None:
        self._wants_scores = request.requests[0].sampling.logprobs is not None

    def choice(self, deltas: Sequence[ChoiceDelta], prompt: str) -> dict[str, object]:
        """Return a complete choice from its deltas."""
        texts = {"content": "", "reasoning": ""}
        calls = []
        scores: list[ScoredToken] = []
        for choice_delta in deltas:
            scores += choice_delta.scores
            if choice_delta.delta is None:
                continue
            if choice_delta.delta.call is None:
                texts[choice_delta.delta.kind] += choice_delta.delta.text
            else:
                calls.append(_format_call(choice_delta.delta))
        content = texts["content"] or (None if calls else "")
        message: dict[str, object] = {"role": "assistant", "content": content, "refusal": None}
        if texts["reasoning"]:
            message["reasoning_content"] = texts["reasoning"]
        if calls:
            message["tool_calls"] = calls
        return {
            "message": message, "logprobs": self._logprobs(scores),
            "finish_reason": deltas[-1].finish,
        }  # fmt: skip

    def first(self, prompt: str) -> list[dict[str, object]]:
        """Return the first event bodies of a choice."""
        return [self._body({"role": "assistant", "content": ""})]

    def delta(self, choice_delta: ChoiceDelta) -> list[dict[str, object]]:
        """Return the event bodies of a delta."""
        delta, bodies = choice_delta.delta, []
        if delta is not None and delta.call is not None:
            bodies.append(
                self._body(
                    {"tool_calls": [{"index": choice_delta.call_index, **_format_call(delta)}]},
                    choice_delta.scores,
                )
            )
        elif delta is not None:
            key = "reasoning_content" if delta.kind == "reasoning" else "content"
            bodies.append(self._body({key: delta.text}, choice_delta.scores))
        elif choice_delta.scores:
            bodies.append(self._body({"content": ""}, choice_delta.scores))
        if choice_delta.finish:
            bodies.append(self._body({}, finish=choice_delta.finish))
        return bodies

    def _body(
        self, delta: dict[str, object], scores: Sequence[ScoredToken] = (), finish: str = ""
    ) -> dict[str, object]:
        logprobs = self._logprobs(scores) if scores else None
        return {"delta": delta, "logprobs": logprobs, "finish_reason": finish or None}

    def _logprobs(self, scores: Sequence[ScoredToken]) -> dict[str, object] | None:
        if not self._wants_scores:
            return None
        return {"content": [_format_chat_logprob(score) for score in scores], "refusal": None}


def _format_call(delta: AnswerDelta) -> dict[str, object]:
    call = delta.call
    assert call is not None
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": new_tool_call_id(call.id_length), "type": "function", "function": function}


def _format_chat_logprob(score: ScoredToken) -> dict[str, object]:
    def entry(data: bytes, logprob: float) -> dict[str, object]:
        """Return a token with its log-probability and bytes, in OpenAI's form."""
        return {
            "token": data.decode(errors="replace"), "logprob": logprob, "bytes": list(data),
        }  # fmt: skip

    top = [entry(data, logprob) for data, logprob in score.top]
    return {**entry(score.data, score.logprob), "top_logprobs": top}


class CompletionFormat:
    """Formatter of text completion responses."""

    whole = chunk = "text_completion"

    def __init__(self, request: OpenAIRequest) -> None:
        self._wants_scores = request.requests[0].sampling.logprobs is not None

    def choice(self, deltas: Sequence[ChoiceDelta], prompt: str) -> dict[str, object]:
        """Return a complete choice from its deltas."""
        text = "".join(d.delta.text for d in deltas if d.delta is not None)
        scores = [score for d in deltas for score in d.scores]
        return {
            "text": prompt + text, "logprobs": self._logprobs(scores),
            "finish_reason": deltas[-1].finish,
        }  # fmt: skip

    def first(self, prompt: str) -> list[dict[str, object]]:
        """Return the first event bodies of a choice."""
        return [self._body(prompt)] if prompt else []

    def delta(self, choice_delta: ChoiceDelta) -> list[dict[str, object]]:
        """Return the event bodies of a delta."""
        text = "" if choice_delta.delta is None else choice_delta.delta.text
        return [self._body(text, choice_delta.scores, choice_delta.finish)]

    def _body(
        self, text: str, scores: Sequence[ScoredToken] = (), finish: str = ""
    ) -> dict[str, object]:
        logprobs = self._logprobs(scores) if scores else None
        return {"text": text, "logprobs": logprobs, "finish_reason": finish or None}

    def _logprobs(self, scores: Sequence[ScoredToken]) -> dict[str, object] | None:
        if not self._wants_scores:
            return None
        offsets, at = [], 0
        for score in scores:
            offsets.append(at)
            at += len(score.text)
        return {
            "tokens": [score.text for score in scores],
            "token_logprobs": [score.logprob for score in scores],
            "top_logprobs": [
                {data.decode(errors="replace"): logprob for data, logprob in score.top}
                for score in scores
            ],
            "text_offset": offsets,
        }
