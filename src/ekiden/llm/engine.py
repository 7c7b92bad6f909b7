"""Many texts at once: who is admitted, whose prompt is read, and who gets the next tokens.

A step is one call of the program. As long as a prompt is not read, it reads up to `chunk` tokens:
the last one of every text that is under way, each of which gets its next token so, and of prompts
what there is room for, one token at least; else it makes up to `steps` tokens of every text. Texts
come and go between steps (Yu and others, "Orca: A Distributed Serving System for Transformer-Based
Generative Models", OSDI 2022; pages: Kwon and others, "PagedAttention", SOSP 2023). What a text
becomes does not depend on those beside it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import field
from operator import index
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ekiden.llm.grammar import Grammar
from ekiden.llm.pages import Key, Pages
from ekiden.llm.sampling import Sampling
from ekiden.runtime.errors import InputError, RunError
from ekiden.runtime.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from ekiden.llm.model import Model

__all__ = ["Engine", "Stream", "whole_tokens"]

Ints = NDArray[np.int32]
SHOWN = 8
"""Tokens of a prompt by which an error names a text."""
RUN_FAILED = "the run failed that was to make the next token"


def whole_tokens(given: Sequence[int]) -> list[int]:
    """The numbers of tokens. Raises InputError for what is no list of whole numbers; bytes are
    meant as a text."""
    if isinstance(given, (bytes, bytearray)):
        raise InputError("prompt: whole numbers expected as tokens, got bytes")
    try:
        return [index(token) for token in given]
    except TypeError as error:
        raise InputError(f"prompt: whole numbers expected as tokens: {error}") from error


@dataclass(eq=False)
class Stream:
    """One text under way: an iterator over the tokens that are made for it. Closing it, or dropping
    the iterator, ends it."""

    engine: Engine
    prompt: tuple[int, ...]
    sampling: Sampling
    tokens: list[int] = field(default_factory=list)
    """Those made so far."""
    finish: str = ""
    """Why it is over: "stop" at a token that ends a text, "length", "closed", or "failed" where
    the run failed that it was in, or its logits are no numbers: its next token is a RunError."""
    reason: str = ""
    """What failed."""
    shared: int = 0
    """Tokens of the prompt that were in the cache already."""
    read: int = 0
    """Tokens that the cache holds."""
    grammar: Grammar | None = None
    state: int = 0
    """Of the grammar."""
    keys: list[Key] = field(default_factory=list)
    """Of the pages that the prompt fills."""
    pages: list[int] = field(default_factory=list)
    given: int = 0
    """How many of them were taken."""

    @property
    def limit(self) -> int:
        """Tokens that it has at most, with its prompt."""
        return min(len(self.prompt) + self.sampling.max_tokens, self.engine.model.context)

    @property
    def length(self) -> int:
        """Tokens that it has."""
        return len(self.prompt) + len(self.tokens)

    @property
    def is_done(self) -> bool:
        """Whether the last of its tokens was taken."""
        return self.finish not in ("", "failed") and self.given == len(self.tokens)

    @property
    def whole(self) -> tuple[int, ...]:
        """Its tokens, from the first of the prompt on."""
        return (*self.prompt, *self.tokens)

    @property
    def name(self) -> str:
        """What an error calls it, by its prompt."""
        first = ", ".join(map(str, self.prompt[:SHOWN]))
        if len(self.prompt) <= SHOWN:
            return f"the text after [{first}]"
        return f"the text after [{first}, ...] ({len(self.prompt)} tokens)"

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        while self.given == len(self.tokens):
            if self.finish == "failed":
                raise RunError(f"generate: {self.name}: {self.reason}")
            if self.finish:
                raise StopIteration
            self.engine.advance(self)
        self.given += 1
        return self.tokens[self.given - 1]

    def close(self) -> None:
        """Make no more tokens for it."""
        self.engine.close(self)


class Engine:
    """Schedules the texts of one model; its methods may be called by any threads."""

    def __init__(self, model: Model, *, sequences: int = 16, chunk: int = 512,
                 steps: int = 1) -> None:  # fmt: skip
        """At most so many `sequences` are under way together, others wait; a step reads at most
        `chunk` tokens of prompts, or makes `steps` tokens of each text."""
        for name, value in (("sequences", sequences), ("chunk", chunk), ("steps", steps)):
            if type(value) is not int or value < 1:
                raise InputError(f"Engine: '{name}' must be at least 1, got {value!r}")
        self.model, self.sequences, self.chunk, self.steps = model, sequences, chunk, steps
        most = model.most_pages
        self.pages = Pages(sequences * most, model.layout.page)
        self._state = model.new_state(sequences * most)
        self._waiting: deque[Stream] = deque()
        self._running: list[Stream] = []
        self._closed: deque[Stream] = deque()
        """Those that are to end."""
        self._lock = threading.Lock()

    def submit(self, prompt: Sequence[int], sampling: Sampling | None = None) -> Stream:
        """A text that begins with a prompt. Raises InputError for an empty prompt, one that is too
        long for the context, or a token that there is not."""
        stream = self.prepare(prompt, sampling)
        if not stream.finish:
            self.add(stream)
        return stream

    def prepare(self, prompt: Sequence[int], sampling: Sampling | None = None) -> Stream:
        """Return the text of a prompt, which `add` lets wait for its turn. Raises as `submit`."""
        made = Stream(self, tuple(whole_tokens(prompt)), sampling or Sampling())
        self.model.check_prompt(made.prompt)
        made.grammar = self.model.grammar(made.sampling.grammar)
        if made.grammar is not None and made.grammar.is_over(made.state):
            made.finish = "stop"  # the empty text is all that the form has
            return made
        made.keys = self.pages.keys(made.prompt)
        return made

    def add(self, stream: Stream) -> None:
        """Let a text wait for its turn. It does not wait for a step: a deque is appended to by any
        thread, and only who holds the lock takes from it."""
        self._waiting.append(stream)

    def run(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling | None = None
    ) -> list[list[int]]:
        """The tokens made for each of several prompts."""
        streams = [self.submit(prompt, sampling) for prompt in prompts]
        return [list(stream) for stream in streams]

    def step(self) -> None:
        """Make one step for all texts, if there are any. Raises what the run raises, whose texts
        have failed then."""
        with self._lock:
            self._end_closed()
            if self._waiting or self._running:
                self._step()
        self._end_those_closed()

    def advance(self, stream: Stream) -> None:
        """Make steps until a text has one more token, or is over."""
        known = len(stream.tokens)
        while len(stream.tokens) == known and not stream.finish:
            with self._lock:
                self._end_closed()
                if len(stream.tokens) == known and not stream.finish:
                    self._step()
            self._end_those_closed()

    def close(self, stream: Stream) -> None:
        """End a text: at once, or at the end of the step that is being made. It may be called
        anywhere, by a collector of garbage also within a step."""
        self._closed.append(stream)
        self._end_those_closed()

    def _end_those_closed(self) -> None:
        """By whoever finds the lock open: it is looked for after each step once the lock is given
        back, as who closes a text does not wait for it."""
        while self._closed and self._lock.acquire(blocking=False):
            try:
                self._end_closed()
            finally:
                self._lock.release()

    # Steps. The lock is held.

    def _end_closed(self) -> None:
        while self._closed:
            stream = self._closed.popleft()
            if not stream.finish:
                self._end(stream, "closed")

    def _step(self) -> None:
        self._admit()
        try:
            if any(each.read < len(each.prompt) for each in self._running):
                self._read()
            else:
                self._decode()
        except BaseException:
            self._forget()
            raise

    def _forget(self) -> None:
        """After a run that failed: the cache may be lost, and with it what was under way."""
        for each in list(self._running):
            self._end(each, "failed", RUN_FAILED)
        self.pages = Pages(self.sequences * self.model.most_pages, self.model.layout.page)
        self._state = self.model.new_state(self.sequences * self.model.most_pages)

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self.sequences:
            first = self._waiting[0]
            tokens = first.limit + self.model.spare
            found = self.pages.take(first.keys, len(first.prompt), tokens)
            if found is None:
                assert self._running, "a text alone has its pages"
                return
            first.pages, first.shared = found
            first.read = first.shared
            self._running.append(self._waiting.popleft())

    def _end(self, stream: Stream, why: str, reason: str = "") -> None:
        stream.finish, stream.reason = why, reason
        if stream in self._running:
            self._running.remove(stream)
            self.pages.give_back(stream.pages)
            stream.pages = []
        elif stream in self._waiting:
            self._waiting.remove(stream)

    def _read(self) -> None:
        """One call for prompts and for texts under way, which come first: none waits for a prompt
        of another."""
        left, parts = self.chunk, []
        for each in sorted(self._running, key=lambda each: each.read < len(each.prompt)):
            first = self._first(each)
            is_prompt = each.read < len(each.prompt)
            count = min(left, each.length - first) if is_prompt else each.length - first
            if count:
                parts.append((each, first, count))
                left = max(left - count, 0 if is_prompt else 1)  # some prompt goes on in any case
        streams = [each for each, _, _ in parts]
        ids = np.concatenate([each.whole[first : first + n] for each, first, n in parts])
        rows = np.repeat(np.arange(len(parts)), [n for _, _, n in parts])
        positions = np.concatenate([np.arange(first, first + n) for _, first, n in parts])
        ends = np.cumsum([n for _, _, n in parts]) - 1
        where = np.stack((ids, rows, positions)).astype(np.int32)
        done = [i for i, (each, first, n) in enumerate(parts) if first + n == each.length]
        tokens = self.model.prefill(
            self._state, where, self._tables(streams), ends[done].astype(np.int32), streams, done
        )
        for each, first, n in parts:
            self._wrote(each, first + n - each.read)
        for i, token in zip(done, tokens, strict=True):
            self._add(streams[i], [int(token)])

    def _first(self, stream: Stream) -> int:
        """The first token that is read next. Where there are proposals, the last but one of a text
        under way is read again: the smaller model has not seen it if it was the last proposal."""
        is_under_way = stream.read >= len(stream.prompt)
        return stream.read - (is_under_way and self.model.spare > 0)

    def _decode(self) -> None:
        streams = list(self._running)
        if not streams:
            return
        steps = min(self.steps, *(each.limit - each.length for each in streams))
        if any(each.grammar is not None for each in streams):
            steps = 1  # whether a form has an end is known here
        made = self.model.decode(self._state, streams, self._tables(streams), steps)
        for each, tokens in zip(streams, made, strict=True):
            self._wrote(each, len(tokens))
            self._add(each, tokens)

    def _wrote(self, stream: Stream, count: int) -> None:
        """Count tokens that the cache holds now; the pages of the prompt that they fill are for
        others too."""
        size = self.pages.size
        before, stream.read = stream.read // size, stream.read + count
        for n in range(before, min(stream.read, len(stream.prompt)) // size):
            self.pages.filled(stream.pages[n], stream.keys[n])

    def _add(self, stream: Stream, tokens: Sequence[int]) -> None:
        ends = () if stream.sampling.ignore_end else self.model.ends
        for token in tokens:
            if token in ends:
                return self._end(stream, "stop")
            if token < 0:  # as `choose` of the program says
                place = len(stream.tokens) + 1
                return self._end(stream, "failed", f"the logits of token {place} are no numbers")
            if stream.grammar is not None:
                stream.state = int(stream.grammar.moves[stream.state, token])
                assert stream.state >= 0, "tokens that a form forbids have no weight"
            stream.tokens.append(token)
            if stream.grammar is not None and stream.grammar.is_over(stream.state):
                return self._end(stream, "stop")
            if stream.length >= stream.limit:
                return self._end(stream, "length")
        return None

    def _tables(self, streams: Sequence[Stream]) -> Ints:
        made = np.zeros((len(streams), self.model.most_pages), np.int32)
        for row, each in zip(made, streams, strict=True):
            row[: len(each.pages)] = each.pages
        return made
