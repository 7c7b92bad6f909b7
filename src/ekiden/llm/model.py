"""A decoder that is compiled: prompts in, tokens out."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ekiden
from ekiden import runtime
from ekiden.kernels.attention.page_planes import FORMATS
from ekiden.llm.architectures import DecoderConfig, read_config
from ekiden.llm.config_numbers import whole
from ekiden.llm.decoder import FORWARD, Layout, cache_shape
from ekiden.llm.engine import Engine, Stream, whole_tokens
from ekiden.llm.files import find_tokenizer, open_checkpoint
from ekiden.llm.grammar import MOST_BYTES, Grammar
from ekiden.llm.program import DECODE, DRAFT, PREFILL, SETTINGS, SPECULATE, Draft, program
from ekiden.llm.sampling import Sampling
from ekiden.llm.text import Pieces, Tokenizer
from ekiden.llm.weights import Checkpoint, OfFiles
from ekiden.runtime.errors import InputError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.runtime.vm import VirtualMachine

__all__ = ["Model", "Piece", "load"]

Ints = NDArray[np.int32]
DEFAULT_CONTEXT = 4096
"""Tokens of a text, where nobody says and the model can have more."""
PROPOSALS = 4
"""Of a smaller model at once, where nobody says."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of an answer: the text that a token adds, which is empty where it is the beginning of
    a letter; `finish` says with the last one why it is the last, "stop" or "length"."""

    token: int | None
    text: str
    finish: str = ""


def load(
    checkpoint: str | os.PathLike[str] | Checkpoint,
    *,
    context: int | None = None,
    sequences: int = 16,
    page: int = 64,
    cache: str | None = None,
    tokenizer: object = None,
    draft: str | os.PathLike[str] | Checkpoint | None = None,
    proposals: int | None = None,
    num_threads: int | None = None,
    **options: Any,  # noqa: ANN401  # of another function
) -> Model:
    """The model of a folder of transformers (`config.json`, safetensors), a GGUF file, or any
    `Checkpoint`, compiled.

    A text has at most `context` tokens (else what the model can, up to 4,096), and `sequences` are
    made at once; the cache is as large as both need, in pages of `page` tokens. Its format
    is `cache`: "float32", "float16", "bfloat16", "int8", which has a scale for each token of a
    head, or "int4" with one for each 32 numbers; by default float32 where the weights are, so that
    nothing is rounded, and else float16.
    `tokenizer` is one of the package tokenizers, or its file; a folder and a GGUF file have their
    own. `options` are those of `ekiden.compile`.

    `draft` is a smaller model of the same tokens: it proposes so many `proposals` (4), which go
    through the larger one at once. Texts are the same as without, and are made faster where the
    larger one would often choose the same.

    Raises UnsupportedError for an architecture that there is not, ImportModelError for a tensor
    that is missing, LoadError for a file that was changed meanwhile, and what `ekiden.compile`
    raises.
    """
    found = _opened(checkpoint)
    if tokenizer is None and isinstance(checkpoint, (str, os.PathLike)):
        tokenizer = find_tokenizer(checkpoint, found)
    config: dict[str, Any] = dict(found.config)
    most = whole(config, "max_position_embeddings", DEFAULT_CONTEXT)
    context = min(most, DEFAULT_CONTEXT) if context is None else context
    if type(context) is not int or not 2 <= context <= most:
        raise InputError(f"load: 'context' must be from 2 to {most} tokens, got {context!r}")
    decoder = read_config(config, context)
    if type(sequences) is not int or sequences < 1:
        raise InputError(f"load: 'sequences' must be at least 1, got {sequences!r}")
    layout = _layout(page, cache or _cache_of(found, decoder), decoder)
    if draft is None and proposals is not None:
        raise InputError("load: 'proposals' are those of a 'draft', which is not given")
    proposals = PROPOSALS if proposals is None else proposals
    other = None if draft is None else _opened(draft)
    small = None if other is None else _draft_of(other, decoder, context, proposals)
    exe = ekiden.compile(program(found, decoder, layout, small), num_threads=num_threads, **options)
    opened: list[object] = [found, other]
    for each in opened:
        if isinstance(each, OfFiles):
            each.check()
    _give_back()
    return Model(exe, decoder, layout, context, sequences, Tokenizer.of(tokenizer), small)


def _layout(page: int, cache: str, config: DecoderConfig) -> Layout:
    """How a cache of that format lies. Raises InputError for one that there cannot be."""
    if cache not in FORMATS:
        raise InputError(f"load: 'cache' must be one of {', '.join(FORMATS)}, got {cache!r}")
    row = FORMATS[cache]
    if type(page) is not int or page < row.quantum or page % row.quantum:
        raise InputError(f"load: 'page' must be a multiple of {row.quantum}, got {page!r}")
    if config.depth % row.quantum:
        raise InputError(
            f"load: a cache of {cache} is for heads of a multiple of {row.quantum} numbers, those"
            f" of the model have {config.depth}"
        )
    return Layout(page, row.dtype)


def _give_back() -> None:
    """Give the system what compiling has freed, where the process's allocator keeps it: glibc's
    keeps 120 MB after a model of 135M."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def _opened(checkpoint: str | os.PathLike[str] | Checkpoint) -> Checkpoint:
    if isinstance(checkpoint, (str, os.PathLike)):
        return open_checkpoint(checkpoint)
    return checkpoint


def _draft_of(found: Checkpoint, large: DecoderConfig, context: int, count: int) -> Draft:
    """The smaller model, which must have the tokens and the context of the larger one."""
    if type(count) is not int or count < 1:
        raise InputError(f"load: 'proposals' must be at least 1, got {count!r}")
    config = read_config(dict(found.config), context)
    if config.vocabulary != large.vocabulary:
        raise InputError(
            f"load: 'draft' must have the {large.vocabulary} tokens of the model, it has"
            f" {config.vocabulary}"
        )
    return Draft(found, config, count)


def _cache_of(checkpoint: Checkpoint, config: DecoderConfig) -> str:
    """The dtype of a cache as exact as the weights are."""
    name = f"{config.names.layer.format(0)}{config.names.down}.weight"
    is_float = name not in set(checkpoint) or checkpoint[name].format == "float32"
    return "float32" if is_float else "float16"


class Model:
    """A compiled decoder. Any threads may use it at once, and any engines: calls wait for each
    other."""

    def __init__(
        self,
        exe: ekiden.Executable,
        config: DecoderConfig,
        layout: Layout,
        context: int,
        sequences: int,
        tokenizer: Tokenizer | None,
        draft: Draft | None = None,
    ) -> None:
        self.exe, self.config, self.layout, self.context = exe, config, layout, context
        self.sequences, self.tokenizer = sequences, tokenizer
        self._drafts = None if draft is None else draft.config
        self.spare = 0 if draft is None else draft.count
        """Tokens behind the end of a text that the cache holds for a while: proposals."""
        self.most_pages = -(-(context + self.spare) // layout.page)
        self.ends = config.ends
        self._machine = VirtualMachine(exe)
        self._free = runtime.tensor(np.zeros((1, config.vocabulary), np.int32))
        self._joined: tuple[list[Grammar], runtime.Tensor] = [], self._free
        self._grammars: dict[str, Grammar] = {}
        self._engine: Engine | None = None
        self._lock, self._calls = threading.Lock(), threading.Lock()

    @property
    def engine(self) -> Engine:
        """What all texts share; made when it is first asked for."""
        with self._lock:
            if self._engine is None:
                self._engine = Engine(self, sequences=self.sequences)
            return self._engine

    def new_state(self, pages: int) -> tuple[runtime.Ref, ...]:
        """Caches of so many pages, one for each decoder; memory is taken when they are first
        written."""
        configs = (self.config,) if self._drafts is None else (self.config, self._drafts)
        return tuple(self._new_cache(config, pages) for config in configs)

    def _new_cache(self, config: DecoderConfig, pages: int) -> runtime.Ref:
        shape = [int(str(d)) for d in cache_shape(config, self.layout, self.layout.blocks(pages))]
        return runtime.Ref(runtime.empty(shape, self.layout.dtype))

    def check_prompt(self, prompt: Sequence[int]) -> None:
        """Raises InputError for a prompt that there can be none after."""
        if not prompt:
            raise InputError("prompt: at least one token expected")
        if len(prompt) >= self.context:
            raise InputError(
                f"prompt: {len(prompt)} tokens leave no place in a context of {self.context}"
            )
        worst = max(prompt, key=lambda t: t if t >= 0 else self.config.vocabulary)
        if not 0 <= worst < self.config.vocabulary:
            raise InputError(
                f"prompt: token {worst} is none of the {self.config.vocabulary} of the model"
            )

    # Calls of the program.

    def _call(self, entry: str, *given: object) -> object:
        """One of them, one at a time: engines and `logits` have one machine."""
        with self._calls:
            return self._machine.invoke(entry, *given)

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """The logits [n, vocabulary] after each of n tokens, of a text of its own."""
        tokens = whole_tokens(tokens)
        self.check_prompt(tokens)
        pages = -(-len(tokens) // self.layout.page)
        n = np.arange(len(tokens), dtype=np.int32)
        made = self._call(
            FORWARD, self._new_cache(self.config, pages), np.array(tokens, np.int32),
            np.zeros_like(n), n, np.arange(pages, dtype=np.int32)[None], n,
        )  # fmt: skip
        assert isinstance(made, runtime.Tensor)
        return np.asarray(made.numpy())

    def prefill(
        self, state: tuple[runtime.Ref, ...], where: Ints, tables: Ints, picks: Ints,
        streams: Sequence[Stream], done: Sequence[int],
    ) -> Ints:  # fmt: skip
        """The tokens after `picks` of those that are read, which are the last ones of the streams
        `done`; `where` are numbers, rows and positions of what is read."""
        history, settings, seeds, is_greedy = self._choices(streams, 0)
        moves, states = self._forms(streams)
        lengths = np.array([streams[i].length for i in done], np.int32)
        for small in state[1:]:
            self._call(DRAFT, small, *where, tables, picks)
        made = self._call(
            PREFILL, state[0], *where, tables, picks, history, np.array(done, np.int32), lengths,
            settings, seeds, moves, states[list(done)], is_greedy,
        )  # fmt: skip
        assert isinstance(made, runtime.Tensor)
        return np.asarray(made.numpy())

    def decode(
        self, state: tuple[runtime.Ref, ...], streams: Sequence[Stream], tables: Ints, steps: int
    ) -> list[list[int]]:
        """The next tokens of each text, at most `steps`, less where all have ended before; with
        proposals a round of them at least."""
        has_forms = any(each.grammar is not None for each in streams)
        if self._drafts is not None and not has_forms:
            return self._speculate(state, streams, tables, steps)
        history, settings, seeds, is_greedy = self._choices(streams, steps)
        lengths = np.array([each.length for each in streams], np.int32)
        moves, states = self._forms(streams)
        made = self._call(
            DECODE, state[0], np.array(steps, np.int32), history, lengths, states,
            np.arange(len(streams), dtype=np.int32), tables, settings, seeds, moves,
            np.array((*self.ends, -1), np.int32), is_greedy,
        )  # fmt: skip
        assert isinstance(made, tuple)
        found, count = made[0].numpy(), int(made[2].numpy())
        return [row[n : n + count].tolist() for row, n in zip(found, lengths, strict=True)]

    def _speculate(
        self, state: tuple[runtime.Ref, ...], streams: Sequence[Stream], tables: Ints, steps: int
    ) -> list[list[int]]:
        """The tokens of some rounds of proposals."""
        count = self.spare
        rounds = max(1, steps // (count + 1))
        history, settings, seeds, is_greedy = self._choices(streams, rounds * (count + 1))
        lengths = np.array([each.length for each in streams], np.int32)
        rows = np.arange(len(streams), dtype=np.int32)
        made = self._call(
            SPECULATE, *state, np.array(rounds, np.int32), history, lengths, rows,
            rows + np.int32(len(rows)), np.array(count, np.int32),
            np.arange(count + 1, dtype=np.int32), tables, settings, seeds, self._free,
            np.full_like(rows, -1), np.array((*self.ends, -1), np.int32), is_greedy,
        )  # fmt: skip
        assert isinstance(made, tuple)
        found, ends = (each.numpy() for each in made)
        every = zip(found, lengths, ends, strict=True)
        return [row[begin:end].tolist() for row, begin, end in every]

    def _choices(
        self, streams: Sequence[Stream], steps: int
    ) -> tuple[Ints, NDArray[np.float32], NDArray[np.int64], NDArray[np.bool_]]:
        """(history with room for so many tokens, settings, seeds, whether all are greedy)."""
        width = max(each.length for each in streams) + steps
        history = np.zeros((len(streams), width), np.int32)
        for row, each in zip(history, streams, strict=True):
            if each.sampling.repetition_penalty != 1:
                row[: each.length] = each.whole
            else:
                recent = (*each.prompt[-2:], *each.tokens[-2:])[-2:]
                row[max(each.length - 2, 0) : each.length] = recent
        settings = np.array([each.sampling.settings() for each in streams], np.float32)
        assert settings.shape[1] == len(SETTINGS)
        seeds = np.array([each.sampling.seed for each in streams], np.int64)
        return history, settings, seeds, np.array(all(s.sampling.is_greedy for s in streams))

    def _forms(self, streams: Sequence[Stream]) -> tuple[runtime.Tensor, Ints]:
        """The tables of all grammars of some texts, one after the other, and each text's state
        there, -1 for one without."""
        given = list(dict.fromkeys(s.grammar for s in streams if s.grammar is not None))
        if not given:
            return self._free, np.full(len(streams), -1, np.int32)
        starts = np.cumsum([0, *(len(each.moves) for each in given)])
        joined = self._joined  # another engine may put others there
        if joined[0] != given:
            whole = [
                np.where(g.moves >= 0, g.moves + n, -1) for g, n in zip(given, starts, strict=False)
            ]
            joined = given, runtime.tensor(np.concatenate(whole).astype(np.int32))
            self._joined = joined
        begins = {g: int(n) for g, n in zip(given, starts, strict=False)}
        states = [-1 if s.grammar is None else begins[s.grammar] + s.state for s in streams]
        return joined[1], np.array(states, np.int32)

    def grammar(self, given: Grammar | str | None) -> Grammar | None:
        """The form that a regular expression says; those asked for last are kept. Raises
        InputError, also where there is no tokenizer to say what tokens are."""
        if given is None or isinstance(given, Grammar):
            if given is not None and given.moves.shape[1] != self.config.vocabulary:
                raise InputError(
                    f"grammar: it is for {given.moves.shape[1]} tokens, the model has"
                    f" {self.config.vocabulary}"
                )
            return given
        if self.tokenizer is None:
            raise InputError("grammar: a tokenizer is needed to say what tokens are")
        with self._lock:
            known = self._grammars.get(given)
        if known is not None:
            return known
        tokens = self.tokenizer.token_bytes(self.config.vocabulary)
        made = Grammar.of(given, tokens, self.ends)
        with self._lock:
            self._grammars[given] = made
            while sum(g.moves.nbytes for g in self._grammars.values()) > MOST_BYTES:
                del self._grammars[next(iter(self._grammars))]
        return made

    # Texts.

    def encode(self, prompt: str | Sequence[int]) -> list[int]:
        """The tokens of a prompt. Raises InputError for a text where there is no tokenizer, and for
        what is none of both."""
        if not isinstance(prompt, str):
            return whole_tokens(prompt)
        if self.tokenizer is None:
            raise InputError(
                "prompt: tokens expected, as the model has no tokenizer: that takes a"
                " tokenizer.json beside it, and the package tokenizers (pip install 'ekiden[llm]')"
            )
        return self.tokenizer.encode(prompt)

    def generate(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling | None = None,
        **changes: Any,  # noqa: ANN401  # fields of Sampling
    ) -> Iterator[Piece]:
        """The answer to a prompt, token by token; `changes` are fields of `Sampling`.

        Raises InputError for a prompt that is empty, too long or not in the vocabulary, and for
        stop texts where there is no tokenizer.
        """
        wanted = sampling or Sampling()
        if changes:
            fields = {name: getattr(wanted, name) for name in Sampling.__slots__}
            unknown = sorted(set(changes) - set(fields))
            if unknown:
                raise InputError(f"generate: '{unknown[0]}' is none of {', '.join(fields)}")
            wanted = Sampling(**{**fields, **changes})
        if wanted.stop and self.tokenizer is None:
            raise InputError("stop: tokens only, as the model has no tokenizer")
        stream = self.engine.submit(self.encode(prompt), wanted)
        made = self._pieces(stream)
        weakref.finalize(made, stream.close).atexit = False  # also one that was never begun
        return made

    def _pieces(self, stream: Stream) -> Iterator[Piece]:
        pieces = Pieces(self.tokenizer, stream.prompt, stream.sampling.stop)
        try:
            for token in stream:
                text = pieces.add(token)
                if pieces.has_stopped:
                    yield Piece(token, text, "stop")
                    return
                is_last = stream.is_done
                yield Piece(token, text + (pieces.rest() if is_last else ""),
                            stream.finish if is_last else "")  # fmt: skip
                if is_last:
                    return
            yield Piece(None, pieces.rest(), stream.finish)
        finally:
            stream.close()
