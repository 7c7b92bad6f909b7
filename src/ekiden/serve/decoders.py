"""Language models of `ekiden.llm` as models of text: conversations in, pieces of answers out."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence

from ekiden import llm
from ekiden.runtime.errors import LoadError
from ekiden.serve.text import Message, Piece, Sampling

__all__ = ["DecoderText", "open_decoder"]


class DecoderText:
    """A decoder as a `TextModel`. Answers that are under way together share the model's engine: the
    one whose next token is asked for makes a step for all."""

    def __init__(self, model: llm.Model) -> None:
        if model.tokenizer is None:
            raise LoadError(
                "text: a model with a tokenizer expected: a tokenizer.json beside it, and the"
                " package tokenizers (pip install 'ekiden[llm]')"
            )
        self._model = model

    def _prompt(self, messages: Sequence[Message]) -> list[int]:
        given = [{"role": each.role, "content": each.content} for each in messages]
        assert self._model.tokenizer is not None
        tokens = self._model.tokenizer.conversation(given)
        self._model.check_prompt(tokens)
        return tokens

    def prompt_tokens(self, messages: Sequence[Message]) -> int:
        """How many tokens the conversation takes. Raises InputError where they are too many."""
        return len(self._prompt(messages))

    def generate(self, messages: Sequence[Message], sampling: Sampling) -> Iterator[Piece]:
        """The answer, piece by piece."""
        tokens = self._prompt(messages)
        heat, share = sampling.temperature, sampling.top_p
        wanted = llm.Sampling(
            max_tokens=sampling.max_tokens or self._model.context - len(tokens),
            temperature=1.0 if heat is None else heat,
            top_p=1.0 if share is None else share,
            seed=secrets.randbits(62) if sampling.seed is None else sampling.seed,
            stop=sampling.stop,
        )
        for piece in self._model.generate(tokens, wanted):
            yield Piece(piece.text, int(piece.token is not None), piece.finish)


def open_decoder(path: str, context: int, sequences: int) -> DecoderText:
    """The checkpoint at a path, served. Raises LoadError and what `llm.load` raises."""
    return DecoderText(llm.load(path, context=context or None, sequences=sequences))
