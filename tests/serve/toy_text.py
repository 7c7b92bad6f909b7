"""Models of text that say the last message again, a word or a letter at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ekiden.llm.answer_parser import AnswerParser
from ekiden.llm.tool_formats import find_tool_format
from ekiden.runtime.errors import InputError
from ekiden.serve import Embeddings, Message, Piece, Sampling
from ekiden.serve.text import ScoredToken, TextRequest


class Echo:
    def __init__(self) -> None:
        self.closed = threading.Event()

    def prompt_tokens(self, messages: Sequence[Message]) -> int:
        return sum(len(m.content.split()) for m in messages)

    def generate(self, messages: Sequence[Message], sampling: Sampling) -> Iterator[Piece]:
        if messages[-1].content == "refuse":
            raise InputError("too long a conversation")
        words = messages[-1].content.split()
        try:
            while True:
                for at, word in enumerate(words):
                    if word == "break":
                        raise ZeroDivisionError("a secret word")
                    yield Piece(word if at == 0 else f" {word}")
                if words[-1] != "forever":
                    return
        finally:
            self.closed.set()


class Scripted:
    """A model whose conversations say what it answers: the last message, a letter at a time, in the
    parts that a template tells apart. Of each letter it reports the log-probability -1.
    """

    constrains_answers = True

    def __init__(self, template: str = "", starts: str = "start") -> None:
        self.template, self.starts = template, starts
        self.requests: list[TextRequest] = []

    def open(self, request: TextRequest) -> ScriptedAnswer:
        self.requests.append(request)
        text = request.prompt if isinstance(request.prompt, str) else ""
        if request.messages:
            text = request.messages[-1].content
        form = find_tool_format(self.template) if request.tools else None
        names = [tool["function"]["name"] for tool in request.tools]
        has_reasoning = "<think>" in self.template
        parser = AnswerParser(form, names, has_reasoning=has_reasoning, state=self.starts)
        return ScriptedAnswer(text, request.sampling, parser)

    def prepare(self, messages: Sequence[Message], sampling: Sampling) -> ScriptedAnswer:
        return self.open(TextRequest(tuple(messages), sampling=sampling))

    def prompt_tokens(self, messages: Sequence[Message]) -> int:
        return len(messages)

    def generate(self, messages: Sequence[Message], sampling: Sampling) -> Iterator[Piece]:
        yield from self.prepare(messages, sampling).all_pieces()

    def close(self) -> None:
        pass


class ScriptedAnswer:
    prompt = 7

    def __init__(self, text: str, sampling: Sampling, parser: AnswerParser) -> None:
        self._text, self._sampling, self.parser = text, sampling, parser

    def start(self, deadline: float, deliver: Callable[[object], None]) -> None:
        for at in range(0, len(self._text), 3):
            deliver(self._text[at : at + 3])
        deliver("")

    def pieces(self, delivered: str) -> list[Piece]:
        if not delivered:
            return [Piece("", 0, "stop")]
        return [Piece(letter, scores=self._scores(letter)) for letter in delivered]

    def _scores(self, letter: str) -> tuple[ScoredToken, ...]:
        count = self._sampling.logprobs
        if count is None:
            return ()
        return (ScoredToken(letter.encode(), -1.0, ((b"\xff", -0.5), (b"b", -2.0))[:count]),)

    def all_pieces(self) -> Iterator[Piece]:
        yield from self.pieces(self._text)

    def cancel(self) -> None:
        pass


class Lengths:
    """A model that makes vectors of texts: their letters, and a half."""

    def embed(self, texts: Sequence[str | tuple[int, ...]]) -> Embeddings:
        if "refuse" in texts:
            raise InputError("too long a text")
        vectors = np.array([[len(text), 0.5] for text in texts], np.float32)
        return Embeddings(vectors, sum(map(len, texts)))
