"""Continuous batching of generation requests: admission of texts, prefill of their prompts, and
decoding in steps shared by all.

A step is one call of the program. As long as a prompt is not read, it reads up to `chunk` tokens:
the last one of every text that is under way, each of which gets its next token so, and of prompts
what there is room for, one token at least; else it makes up to `steps` tokens of every text. Texts
come and go between steps (Yu and others, "Orca: A Distributed Serving System for Transformer-Based
Generative Models", OSDI 2022; pages: Kwon and others, "PagedAttention", SOSP 2023). What a text
becomes does not depend on those beside it.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import field
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ekiden import runtime
from ekiden.llm.grammar import Grammar, LazyGrammar
from ekiden.llm.logit_biases import TokenScore, score_token
from ekiden.llm.multi_lora import NO_ADAPTER
from ekiden.llm.page_allocator import Key, PageAllocator
from ekiden.llm.prompt_cache import page_bytes, read_page, write_page
from ekiden.llm.sampling import Sampling
from ekiden.llm.tokenizer import Detokenizer
from ekiden.runtime.errors import InputError, RunError
from ekiden.runtime.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from ekiden.llm.model import Model

__all__ = ["Engine", "Stream", "to_token_ids"]

Ints = NDArray[np.int32]
MAX_SHOWN_TOKENS = 8
"""Tokens of a prompt by which an error names a text."""
RUN_FAILED_REASON = "the run failed that was to make the next token"


def to_token_ids(values: Sequence[int]) -> list[int]:
    """Convert to a list of token ids. Raises InputError unless it is a list of integers; bytes are
    rejected as probable text.
    """
    if isinstance(values, (bytes, bytearray)):
        raise InputError("prompt: whole numbers expected as tokens, got bytes")
    try:
        return [index(token) for token in values]
    except TypeError as error:
        raise InputError(f"prompt: whole numbers expected as tokens: {error}") from error


@dataclass(eq=False)
class Stream:
    """Sequence being generated, as an iterator over its generated tokens. Closing it, or dropping
    the iterator, aborts the generation.
    """

    engine: Engine
    prompt: tuple[int, ...]
    sampling: Sampling
    tokens: list[int] = field(default_factory=list)
    """Those made so far."""
    finish: str = ""
    """Why it is over: "stop" at a token or text that ends it, "length", "closed", or "failed" where
    the run failed that it was in, or its logits are no numbers: its next token is a RunError."""
    reason: str = ""
    """What failed."""
    shared: int = 0
    """Tokens of the prompt that were in the cache already."""
    read: int = 0
    """Tokens that the cache holds."""
    grammar: Grammar | LazyGrammar | None = None
    state: int = 0
    """Of the grammar."""
    keys: list[Key] = field(default_factory=list)
    """Of the pages that the prompt fills."""
    pages: list[int] = field(default_factory=list)
    given: int = 0
    """How many of them were taken."""
    ends: frozenset[int] = frozenset()
    """Tokens that end it."""
    stop_texts: tuple[str, ...] = ()
    """Texts that end it, special tokens aside."""
    text: Detokenizer | None = None
    """Its text, where a text may end it."""
    scores: list[TokenScore] = field(default_factory=list)
    """Of each token, where log-probabilities are asked for."""
    adapter: int = NO_ADAPTER
    """The number of its adapter."""
    token_counts: Counter[int] = field(default_factory=Counter)
    """How often it has each of its tokens, where penalties depend on that."""
    stored_pages: dict[Key, bytes] = field(default_factory=dict)
    """Pages of its prompt that the prompt cache on disk has, until they are in the cache."""
    is_long: bool = False
    """Whether the cache holds it by the rope of texts beyond the model's `switch_tokens`."""

    @property
    def limit(self) -> int:
        """Return the maximum number of tokens, prompt included."""
        return min(len(self.prompt) + self.sampling.max_tokens, self.engine.model.context)

    @property
    def length(self) -> int:
        """Return the number of tokens."""
        return len(self.prompt) + len(self.tokens)

    @property
    def is_reading(self) -> bool:
        """Return whether tokens before the last one are still to be read."""
        return self.read < max(len(self.prompt), self.length - 1)

    @property
    def has_switched(self) -> bool:
        """Return whether it has grown beyond the rope by which the cache holds it."""
        switch_tokens = self.engine.model.config.switch_tokens
        return not self.is_long and 0 < switch_tokens < self.length

    @property
    def variant(self) -> bytes:
        """Return what besides tokens decides about keys and values of its prompt."""
        # The name is part of it: adapters change the keys and values of a prompt.
        adapter = self.sampling.adapter.encode()
        return b"long " + adapter if self.is_long else adapter

    @property
    def is_done(self) -> bool:
        """Return whether its last token has been taken."""
        return self.finish not in ("", "failed") and self.given == len(self.tokens)

    @property
    def whole(self) -> tuple[int, ...]:
        """Return all tokens, prompt included."""
        return (*self.prompt, *self.tokens)

    def part(self, first: int, count: int) -> list[int]:
        """Return `count` tokens from position `first`, in time that depends only on these."""
        begin = max(first - len(self.prompt), 0)
        of_prompt = self.prompt[first : first + count]
        return [*of_prompt, *self.tokens[begin : begin + count - len(of_prompt)]]

    @property
    def name(self) -> str:
        """Return a description for errors, by its prompt."""
        first = ", ".join(map(str, self.prompt[:MAX_SHOWN_TOKENS]))
        if len(self.prompt) <= MAX_SHOWN_TOKENS:
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
        """Stop the generation."""
        self.engine.close(self)


class Engine:
    """Generation engine: schedules the texts of one model by continuous batching; its methods are
    thread-safe.
    """

    def __init__(self, model: Model, *, sequences: int = 16, chunk: int = 512,
                 steps: int = 1) -> None:  # fmt: skip
        """Create an engine of at most `sequences` concurrent sequences, while others wait; a step
        reads at most `chunk` prompt tokens, or generates `steps` tokens of each sequence.
        """
        for name, value in (("sequences", sequences), ("chunk", chunk), ("steps", steps)):
            if type(value) is not int or value < 1:
                raise InputError(f"Engine: '{name}' must be at least 1, got {value!r}")
        self.model, self.sequences, self.chunk, self.steps = model, sequences, chunk, steps
        pages_per_text = model.most_pages
        self.pages = PageAllocator(sequences * pages_per_text, model.layout.page)
        self._state = model.new_state(sequences * pages_per_text)
        self._page_bytes = page_bytes(self._cache_arrays(), model.layout.row)
        self.prompt_tokens: dict[str, int] = dict.fromkeys(("computed", "memory", "disk"), 0)
        """Tokens of prompts by where their keys and values came from."""
        self._waiting: deque[Stream] = deque()
        self._running: list[Stream] = []
        self._closed: deque[Stream] = deque()
        """Those that are to end."""
        self._lock = threading.Lock()

    def submit(self, prompt: Sequence[int], sampling: Sampling | None = None) -> Stream:
        """Queue a prompt, and return the sequence that continues it. Raises InputError for an empty
        prompt, one too long for the context, or an unknown token.
        """
        stream = self.prepare(prompt, sampling)
        if not stream.finish:
            self.add(stream)
        return stream

    def prepare(self, prompt: Sequence[int], sampling: Sampling | None = None) -> Stream:
        """Return the sequence of a prompt without queueing it; `add` does. Raises as `submit`."""
        stream = Stream(self, tuple(to_token_ids(prompt)), sampling or Sampling())
        self.model.check_prompt(stream.prompt)
        self._set_stop_conditions(stream)
        self.model.check_biases(stream.sampling)
        stream.adapter = self.model.adapter_number(stream.sampling.adapter)
        stream.grammar = self.model.grammar(stream.sampling.grammar)
        if stream.grammar is not None and stream.grammar.is_over(stream.state):
            stream.finish = "stop"  # the empty text is all that the form has
            return stream
        stream.is_long = stream.has_switched
        stream.keys = self.pages.prefix_keys(stream.prompt, stream.variant)
        self._read_stored_pages(stream)
        return stream

    def _read_stored_pages(self, stream: Stream) -> None:
        """Read the pages of a prompt from disk that the cache does not have, on the caller's
        thread: steps never wait for a disk.
        """
        if self.model.prompt_cache is not None:
            missing = self.pages.missing_keys(stream.keys, len(stream.prompt))
            stream.stored_pages = self.model.prompt_cache.read(missing, self._page_bytes)

    def _set_stop_conditions(self, stream: Stream) -> None:
        """Set the stop tokens and stop strings of a sequence. Raises InputError for stop texts
        without a tokenizer.
        """
        sampling = stream.sampling
        stop_tokens = self.model.stop_tokens(sampling.stop)
        ends = () if sampling.ignore_end else self.model.ends
        stream.ends = frozenset((*ends, *stop_tokens.values()))
        stream.stop_texts = tuple(text for text in sampling.stop if text not in stop_tokens)
        if stream.stop_texts:
            stream.text = Detokenizer(self.model.tokenizer, stream.prompt, stream.stop_texts)

    def add(self, stream: Stream) -> None:
        """Queue a sequence without waiting for a step: any thread may append to the deque, and only
        the holder of the lock takes from it.
        """
        self._waiting.append(stream)

    def run(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling | None = None
    ) -> list[list[int]]:
        """Return the tokens generated for each prompt."""
        streams = [self.submit(prompt, sampling) for prompt in prompts]
        return [list(stream) for stream in streams]

    def step(self) -> None:
        """Run one step for all sequences, if there are any."""
        with self._lock:
            self._end_closed()
            if self._waiting or self._running:
                self._run_step()
        self._end_closed_if_idle()

    def advance(self, stream: Stream) -> None:
        """Run steps until a sequence has one more token or is finished."""
        initial_count = len(stream.tokens)
        while len(stream.tokens) == initial_count and not stream.finish:
            with self._lock:
                self._end_closed()
                if len(stream.tokens) == initial_count and not stream.finish:
                    self._run_step()
            self._end_closed_if_idle()

    def close(self, stream: Stream) -> None:
        """Abort a sequence: at once, or at the end of the step that is being made. It may be called
        anywhere, by a collector of garbage also within a step.
        """
        self._closed.append(stream)
        self._end_closed_if_idle()

    def _end_closed_if_idle(self) -> None:
        """Abort closed sequences if the lock is free; it is checked after each step once the lock
        is released, since closing a sequence does not wait for the lock.
        """
        # Non-blocking: the holder of the lock ends closed texts when it releases it.
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
                self._finish_stream(stream, "closed")

    def _run_step(self) -> None:
        """Admit waiting sequences and run one prefill or decode step."""
        self._admit_waiting()
        for stream in self._running:
            if stream.has_switched:
                self._read_again(stream)
            if stream.stored_pages:
                self._restore_pages(stream)
        try:
            if any(stream.is_reading or stream.sampling.is_stepwise for stream in self._running):
                self._prefill()
            else:
                self._decode()
        except BaseException:
            self._fail_running()
            raise

    def _cache_arrays(self) -> list[NDArray[Any]]:
        """Return views of the caches. They must not be kept: a cache that others refer to is copied
        by the program that changes it.
        """
        arrays = []
        for state in self._state:
            assert isinstance(state.value, runtime.Tensor)
            arrays.append(state.value.numpy())
        return arrays

    def _restore_pages(self, stream: Stream) -> None:
        """Copy pages of a prompt that were on disk into the cache: as many tokens as a step reads,
        so that running texts wait no longer than for a prompt.
        """
        size, caches = self.pages.size, self._cache_arrays()
        first = stream.read // size
        for number in range(first, first + max(1, self.chunk // size)):
            key = stream.keys[number] if number < len(stream.keys) else b""
            data = stream.stored_pages.pop(key, None)
            if data is None:  # all are there, or others have filled what was missing
                stream.stored_pages = {}
                return
            write_page(caches, stream.pages[number], self.model.layout.row, data)
            self.pages.mark_filled(stream.pages[number], stream.keys[number])
            stream.read += size
            self.prompt_tokens["disk"] += size

    def _read_again(self, stream: Stream) -> None:
        """Let a text be read from its beginning by the rope of longer texts."""
        # Not in place: other texts, and later ones, share pages by the shorter rope.
        self.pages.release(stream.pages)
        stream.is_long = True
        stream.keys = self.pages.prefix_keys(stream.prompt, stream.variant)
        allocation = self._allocate_pages(stream)
        assert allocation is not None, "there are pages for as many texts of any length"
        stream.pages, stream.read = allocation

    def _allocate_pages(self, stream: Stream) -> tuple[list[int], int] | None:
        """Allocate pages as `PageAllocator.allocate` does."""
        # Reserve pages for the whole answer up front, so that a running text can never run out
        # of them.
        tokens = stream.limit + self.model.spare
        return self.pages.allocate(stream.keys, len(stream.prompt), tokens)

    def _fail_running(self) -> None:
        """Fail all running sequences after a failed run, since the KV cache may be lost."""
        for stream in list(self._running):
            self._finish_stream(stream, "failed", RUN_FAILED_REASON)
        # The failed call owned the cache in place, so its contents are undefined, shared prefixes
        # included.
        self.pages = PageAllocator(self.sequences * self.model.most_pages, self.model.layout.page)
        self._state = self.model.new_state(self.sequences * self.model.most_pages)

    def _admit_waiting(self) -> None:
        """Admit waiting sequences in order while there are slots and KV-cache pages. One whose next
        page is being filled by a running text, as that of a further choice, waits until it can
        share it; those behind it go on.
        """
        filling, held = self._filling_keys(), []
        while self._waiting and len(self._running) < self.sequences:
            first = self._waiting[0]
            if self.pages.next_key(first.keys, len(first.prompt)) in filling:
                held.append(self._waiting.popleft())
                continue
            allocation = self._allocate_pages(first)
            if allocation is None:
                assert self._running, "a text alone has its pages"
                break
            first.pages, first.shared = allocation
            first.read = first.shared
            self.prompt_tokens["memory"] += first.shared
            self._running.append(self._waiting.popleft())
            filling.update(self._unfilled_keys(first))
        self._waiting.extendleft(reversed(held))

    def _filling_keys(self) -> set[Key]:
        """Return the prefix keys of pages that running sequences have yet to fill."""
        if not self._waiting:
            return set()
        return {key for stream in self._running for key in self._unfilled_keys(stream)}

    def _unfilled_keys(self, stream: Stream) -> Sequence[Key]:
        """Return the prefix keys of a prompt's pages that are not filled yet."""
        return stream.keys[stream.read // self.pages.size :]

    def _finish_stream(self, stream: Stream, why: str, reason: str = "") -> None:
        stream.finish, stream.reason = why, reason
        if stream in self._running:
            self._running.remove(stream)
            self.pages.release(stream.pages)
            stream.pages = []
        elif stream in self._waiting:
            self._waiting.remove(stream)

    def _prefill(self) -> None:
        """Process prompt chunks in one call together with running sequences, which come first so
        that none waits for another's prompt. Without a prompt it is a step whose logits the host
        sees.
        """
        # Chunked prefill bounds the time that running texts wait for a long prompt.
        budget, segments = self.chunk, []
        for stream in sorted(self._running, key=lambda item: item.is_reading):
            first = self._first_unprocessed(stream)
            rest = stream.length - first
            count = min(budget, rest) if stream.is_reading else rest
            if count and not stream.stored_pages:
                segments.append((stream, first, count))
                # Some prompt goes on in any case.
                budget = max(budget - count, 0 if stream.is_reading else 1)
        if not segments:  # all texts wait for pages that were on disk
            return
        streams = [owner for owner, _, _ in segments]
        # Not of whole texts, whose copies would grow with their lengths in each step.
        ids = np.concatenate([owner.part(first, n) for owner, first, n in segments])
        # All segments form one ragged batch: `rows` says which text each token belongs to.
        rows = np.repeat(np.arange(len(segments)), [n for _, _, n in segments])
        positions = np.concatenate([np.arange(first, first + n) for _, first, n in segments])
        ends = np.cumsum([n for _, _, n in segments]) - 1
        where = np.stack((ids, rows, positions)).astype(np.int32)
        done = [i for i, (ended, first, n) in enumerate(segments) if first + n == ended.length]
        tokens, logits = self.model.prefill(
            self._state,
            where,
            self._page_tables(streams),
            ends[done].astype(np.int32),
            streams,
            done,
        )
        for stream, first, n in segments:
            self._record_cached(stream, first + n - stream.read)
        for i, token, row in zip(done, tokens.tolist(), logits, strict=True):
            alternatives = streams[i].sampling.logprobs
            if alternatives is not None and token >= 0:
                streams[i].scores.append(score_token(row, token, alternatives))
            self._append_tokens(streams[i], [token])

    def _first_unprocessed(self, stream: Stream) -> int:
        """Return the position of the first token to feed to the model. With proposals, the last
        token but one of a running text is read again, since the draft model has not seen it if it
        was the last proposal.
        """
        # A boolean subtracts as 0 or 1.
        return stream.read - (not stream.is_reading and self.model.spare > 0)

    def _decode(self) -> None:
        """Generate tokens for all running sequences."""
        streams = list(self._running)
        if not streams:
            return
        # No text may run past its limit within one call, nor past the tokens of its rope.
        steps = min(self.steps, *(self.model.steps_ahead(running) for running in streams))
        if any(candidate.grammar is not None for candidate in streams):
            steps = 1  # whether a form has an end is known here
        generated = self.model.decode(self._state, streams, self._page_tables(streams), steps)
        for stream, tokens in zip(streams, generated, strict=True):
            self._record_cached(stream, len(tokens))
            self._append_tokens(stream, tokens)

    def _record_cached(self, stream: Stream, count: int) -> None:
        """Record tokens that are now in the KV cache; full pages of the prompt become shareable."""
        size = self.pages.size
        before, stream.read = stream.read // size, stream.read + count
        computed = min(stream.read, len(stream.prompt)) - (stream.read - count)
        self.prompt_tokens["computed"] += max(computed, 0)
        # Only pages wholly inside the prompt are shared: generated tokens have no prefix key.
        filled = range(before, min(stream.read, len(stream.prompt)) // size)
        for n in filled:
            self.pages.mark_filled(stream.pages[n], stream.keys[n])
        prompt_cache = self.model.prompt_cache
        if filled and prompt_cache is not None:
            caches, row = self._cache_arrays(), self.model.layout.row
            for n in filled:
                if not prompt_cache.has(stream.keys[n]):
                    prompt_cache.write(stream.keys[n], read_page(caches, stream.pages[n], row))

    def _append_tokens(self, stream: Stream, tokens: Sequence[int]) -> None:
        """Append tokens to a sequence, finishing it at a stop token, stop string or length
        limit.
        """
        for token in tokens:
            if token in stream.ends:
                return self._finish_stream(stream, "stop")
            if token < 0:  # as `choose` of the program says
                token_number = len(stream.tokens) + 1
                return self._finish_stream(
                    stream, "failed", f"the logits of token {token_number} are no numbers"
                )
            if stream.grammar is not None:
                stream.state = stream.grammar.advance(stream.state, token)
                assert stream.state >= 0, "tokens that a form forbids have no weight"
            stream.tokens.append(token)
            if stream.sampling.has_count_penalties:
                stream.token_counts[token] += 1
            try:
                if stream.text is not None and stream.text.adds_stop(token):
                    return self._finish_stream(stream, "stop")
            except InputError as error:  # of the tokenizer's decoder: those beside it go on
                return self._finish_stream(stream, "failed", str(error))
            try:
                if stream.grammar is not None and stream.grammar.is_over(stream.state):
                    return self._finish_stream(stream, "stop")
            except InputError as error:  # a pattern of too many states
                return self._finish_stream(stream, "failed", str(error))
            if stream.length >= stream.limit:
                return self._finish_stream(stream, "length")
        return None

    def _page_tables(self, streams: Sequence[Stream]) -> Ints:
        """Return the page table of each sequence."""
        tables = np.zeros((len(streams), self.model.most_pages), np.int32)
        for row, stream in zip(tables, streams, strict=True):
            row[: len(stream.pages)] = stream.pages
        return tables
