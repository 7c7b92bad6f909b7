"""A model of text that says the last message again, a word at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from ekiden.runtime.errors import InputError
from ekiden.serve import Message, Piece, Sampling


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
