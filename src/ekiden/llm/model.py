"""Compiled decoder: prompts in, tokens out."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ekiden
from ekiden import runtime
from ekiden.kernels.attention.kv_layout import CACHE_FORMATS
from ekiden.llm.architectures import DecoderConfig, read_decoder_config
from ekiden.llm.config_numbers import read_integer
from ekiden.llm.decoder import FORWARD_ENTRY, CacheLayout, cache_shape
from ekiden.llm.engine import Engine, Stream, to_token_ids
from ekiden.llm.files import find_tokenizer, open_checkpoint
from ekiden.llm.generation_config import read_sampling_defaults
from ekiden.llm.grammar import MAX_TABLE_BYTES, Grammar
from ekiden.llm.logit_edits import logit_edits
from ekiden.llm.program import (
    DECODE,
    DRAFT,
    PREFILL,
    SAMPLING_SETTING_NAMES,
    SPECULATE,
    DraftModel,
    build_generation_program,
)
from ekiden.llm.sampling import Sampling
from ekiden.llm.text import Detokenizer, Tokenizer
from ekiden.llm.weights import Checkpoint, FileBacked, HasGenerationConfig
from ekiden.runtime.errors import InputError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.runtime.vm import VirtualMachine

__all__ = ["Model", "Piece", "load"]

Ints = NDArray[np.int32]
DEFAULT_CONTEXT_TOKENS = 4096
"""Tokens of a text, where nobody says and the model can have more."""
DEFAULT_PROPOSED_TOKENS = 4
"""Of a smaller model at once, where nobody says."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Piece of an answer: the text that a token adds, empty if it is an incomplete character; the
    last piece has `finish`, the reason why the answer is over: "stop" or "length".
    """

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
    """Compile a transformers folder (`config.json`, safetensors), a GGUF file, or any `Checkpoint`.

    A text has at most `context` tokens (else what the model can, up to 4,096), and `sequences` are
    made at once; the cache is as large as both need, in pages of `page` tokens. Its format is
    `cache`: "float32", "float16", "bfloat16", "int8", which has a scale for each token of a head,
    or "int4" with one for each 32 numbers; by default float32 where the weights are, so that
    nothing is rounded, and else float16. `tokenizer` is one of the package tokenizers, or its file;
    a folder and a GGUF file have their own. `options` are those of `ekiden.compile`.

    `draft` is a smaller model of the same tokens: it proposes so many `proposals` (4), which go
    through the larger one at once. Texts are the same as without, and are made faster where the
    larger one would often choose the same.

    Raises UnsupportedError for an architecture that there is not, ImportModelError for a tensor
    that is missing, LoadError for a file that was changed meanwhile, and what `ekiden.compile`
    raises.
    """
    opened_checkpoint = _open_checkpoint(checkpoint)
    if tokenizer is None and isinstance(checkpoint, (str, os.PathLike)):
        tokenizer = find_tokenizer(checkpoint, opened_checkpoint)
    config: dict[str, Any] = dict(opened_checkpoint.config)
    max_positions = read_integer(config, "max_position_embeddings", DEFAULT_CONTEXT_TOKENS)
    context = min(max_positions, DEFAULT_CONTEXT_TOKENS) if context is None else context
    if type(context) is not int or not 2 <= context <= max_positions:
        raise InputError(
            f"load: 'context' must be from 2 to {max_positions} tokens, got {context!r}"
        )
    decoder = read_decoder_config(config, context)
    if type(sequences) is not int or sequences < 1:
        raise InputError(f"load: 'sequences' must be at least 1, got {sequences!r}")
    layout = _cache_layout(page, cache or _default_cache_dtype(opened_checkpoint, decoder), decoder)
    if draft is None and proposals is not None:
        raise InputError("load: 'proposals' are those of a 'draft', which is not given")
    proposals = DEFAULT_PROPOSED_TOKENS if proposals is None else proposals
    draft_checkpoint = None if draft is None else _open_checkpoint(draft)
    small = (
        None
        if draft_checkpoint is None
        else _open_draft_model(draft_checkpoint, decoder, context, proposals)
    )
    generation = (
        opened_checkpoint.generation if isinstance(opened_checkpoint, HasGenerationConfig) else {}
    )
    defaults = read_sampling_defaults(generation)
    exe = ekiden.compile(
        build_generation_program(opened_checkpoint, decoder, layout, small),
        num_threads=num_threads,
        **options,
    )
    opened: list[object] = [opened_checkpoint, draft_checkpoint]
    for opened_file in opened:
        if isinstance(opened_file, FileBacked):
            # A file changed during the compilation would leave torn weights in the program.
            opened_file.check()
    _trim_heap()
    return Model(
        exe, decoder, layout, context, sequences, Tokenizer.convert(tokenizer), small, defaults
    )


def _cache_layout(page: int, cache: str, config: DecoderConfig) -> CacheLayout:
    """Return the layout of a cache format. Raises InputError for an impossible one."""
    if cache not in CACHE_FORMATS:
        raise InputError(f"load: 'cache' must be one of {', '.join(CACHE_FORMATS)}, got {cache!r}")
    row = CACHE_FORMATS[cache]
    if type(page) is not int or page < row.granularity or page % row.granularity:
        raise InputError(f"load: 'page' must be a multiple of {row.granularity}, got {page!r}")
    # Quantized caches store whole blocks of a head's elements.
    if config.head_dim % row.granularity:
        raise InputError(
            f"load: a cache of {cache} is for heads of a multiple of {row.granularity} numbers,"
            f" those of the model have {config.head_dim}"
        )
    return CacheLayout(page, row.dtype)


def _trim_heap() -> None:
    """Return memory freed by compilation to the system (malloc_trim): glibc would keep 120 MB after
    a model of 135M.
    """
    # glibc keeps freed arenas, and compiling frees gigabytes of intermediate weights.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def _open_checkpoint(checkpoint: str | os.PathLike[str] | Checkpoint) -> Checkpoint:
    if isinstance(checkpoint, (str, os.PathLike)):
        return open_checkpoint(checkpoint)
    return checkpoint


def _open_draft_model(
    checkpoint: Checkpoint, large: DecoderConfig, context: int, count: int
) -> DraftModel:
    """Return the draft model. Raises InputError unless it shares the larger model's vocabulary and
    context.
    """
    if type(count) is not int or count < 1:
        raise InputError(f"load: 'proposals' must be at least 1, got {count!r}")
    config = read_decoder_config(dict(checkpoint.config), context)
    if config.vocab_size != large.vocab_size:
        raise InputError(
            f"load: 'draft' must have the {large.vocab_size} tokens of the model, it has"
            f" {config.vocab_size}"
        )
    return DraftModel(checkpoint, config, count)


def _default_cache_dtype(checkpoint: Checkpoint, config: DecoderConfig) -> str:
    """Return a cache dtype as precise as the weights."""
    name = f"{config.names.layer.format(0)}{config.names.down}.weight"
    is_float = name not in set(checkpoint) or checkpoint[name].format == "float32"
    return "float32" if is_float else "float16"


class Model:
    """Compiled decoder. Any threads and engines may use it at once; calls are serialized."""

    def __init__(
        self,
        exe: ekiden.Executable,
        config: DecoderConfig,
        layout: CacheLayout,
        context: int,
        sequences: int,
        tokenizer: Tokenizer | None,
        draft: DraftModel | None = None,
        sampling_defaults: Mapping[str, float] | None = None,
    ) -> None:
        self.exe, self.config, self.layout, self.context = exe, config, layout, context
        self.sequences, self.tokenizer = sequences, tokenizer
        self.sampling_defaults = sampling_defaults or {}
        """Fields of `Sampling` that the checkpoint sets for answers whose request does not."""
        self._drafts = None if draft is None else draft.config
        self.spare = 0 if draft is None else draft.num_proposed_tokens
        """Tokens behind the end of a text that the cache holds for a while: proposals."""
        self.most_pages = -(-(context + self.spare) // layout.page_tokens)
        self.ends = config.end_tokens
        self._machine = VirtualMachine(exe)
        self._free = runtime.tensor(np.zeros((1, config.vocab_size), np.int32))
        self._joined: tuple[list[Grammar], runtime.Tensor] = [], self._free
        self._grammars: dict[str, Grammar] = {}
        self._engine: Engine | None = None
        self._lock, self._calls = threading.Lock(), threading.Lock()

    @property
    def engine(self) -> Engine:
        """Return the engine shared by all texts, created on first use."""
        with self._lock:
            if self._engine is None:
                self._engine = Engine(self, sequences=self.sequences)
            return self._engine

    def new_state(self, pages: int) -> tuple[runtime.Ref, ...]:
        """Return caches of `pages` pages, one per decoder; memory is committed when they are first
        written.
        """
        configs = (self.config,) if self._drafts is None else (self.config, self._drafts)
        return tuple(self._allocate_cache(config, pages) for config in configs)

    def _allocate_cache(self, config: DecoderConfig, pages: int) -> runtime.Ref:
        shape = [
            int(str(d)) for d in cache_shape(config, self.layout, self.layout.num_blocks(pages))
        ]
        return runtime.Ref(runtime.empty(shape, self.layout.dtype))

    def check_prompt(self, prompt: Sequence[int]) -> None:
        """Raise InputError for an invalid prompt."""
        if not prompt:
            raise InputError("prompt: at least one token expected")
        if len(prompt) >= self.context:
            raise InputError(
                f"prompt: {len(prompt)} tokens leave no place in a context of {self.context}"
            )
        worst = max(prompt, key=lambda t: t if t >= 0 else self.config.vocab_size)
        if not 0 <= worst < self.config.vocab_size:
            raise InputError(
                f"prompt: token {worst} is none of the {self.config.vocab_size} of the model"
            )

    def check_biases(self, sampling: Sampling) -> None:
        """Raise InputError for a bias of a token that the model does not have."""
        for token in sampling.logit_bias:
            if not 0 <= token < self.config.vocab_size:
                raise InputError(
                    f"logit_bias: token {token} is none of the {self.config.vocab_size} of the"
                    " model"
                )

    def stop_tokens(self, stops: Sequence[str]) -> Mapping[str, int]:
        """Return those of stop texts that are special tokens, with their numbers. Raises InputError
        for stop texts without a tokenizer.
        """
        if stops and self.tokenizer is None:
            raise InputError("stop: tokens only, as the model has no tokenizer")
        special_tokens = {} if self.tokenizer is None else self.tokenizer.special_tokens
        return {text: special_tokens[text] for text in stops if text in special_tokens}

    # Calls of the program.

    def _call_entry(self, entry: str, *args: object) -> object:
        """Call an entry of the program, one call at a time: engines and `logits` share one virtual
        machine.
        """
        with self._calls:
            return self._machine.invoke(entry, *args)

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return the logits [n, vocabulary] after each of n tokens of a separate text."""
        tokens = to_token_ids(tokens)
        self.check_prompt(tokens)
        pages = -(-len(tokens) // self.layout.page_tokens)
        n = np.arange(len(tokens), dtype=np.int32)
        result = self._call_entry(
            FORWARD_ENTRY, self._allocate_cache(self.config, pages), np.array(tokens, np.int32),
            np.zeros_like(n), n, np.arange(pages, dtype=np.int32)[None], n,
        )  # fmt: skip
        assert isinstance(result, runtime.Tensor)
        return np.asarray(result.numpy())

    def prefill(
        self, state: tuple[runtime.Ref, ...], where: Ints, tables: Ints, picks: Ints,
        streams: Sequence[Stream], done: Sequence[int],
    ) -> tuple[Ints, NDArray[np.float32]]:  # fmt: skip
        """Process tokens, and return the tokens that follow `picks`, with the decoder's logits
        [n, vocabulary] of them. `picks` are the last tokens read of the streams `done`; `where`
        holds the ids, rows and positions read.
        """
        history, settings, seeds, is_greedy = self._sampling_inputs(streams, 0)
        moves, states = self._grammar_inputs(streams)
        lengths = np.array([streams[i].length for i in done], np.int32)
        places, changes = logit_edits([streams[i] for i in done])
        # The draft model must have the prompt in its own cache before it can propose anything.
        for small in state[1:]:
            self._call_entry(DRAFT, small, *where, tables, picks)
        result = self._call_entry(
            PREFILL, state[0], *where, tables, picks, history, np.array(done, np.int32), lengths,
            settings, seeds, moves, states[list(done)], is_greedy, places, changes,
            np.array(changes.size > 0),
        )  # fmt: skip
        assert isinstance(result, tuple)
        tokens, logits = (np.asarray(tensor.numpy()) for tensor in result)
        return tokens, logits

    def decode(
        self, state: tuple[runtime.Ref, ...], streams: Sequence[Stream], tables: Ints, steps: int
    ) -> list[list[int]]:
        """Return the next tokens of each text: at most `steps`, fewer if all end earlier; with
        proposals, at least one round of them.
        """
        has_forms = any(stream.grammar is not None for stream in streams)
        if self._drafts is not None and not has_forms:
            return self._speculate(state, streams, tables, steps)
        history, settings, seeds, is_greedy = self._sampling_inputs(streams, steps)
        lengths = np.array([text.length for text in streams], np.int32)
        moves, states = self._grammar_inputs(streams)
        result = self._call_entry(
            DECODE, state[0], np.array(steps, np.int32), history, lengths, states,
            np.arange(len(streams), dtype=np.int32), tables, settings, seeds, moves,
            np.array((*self.ends, -1), np.int32), is_greedy,
        )  # fmt: skip
        assert isinstance(result, tuple)
        token_rows, count = result[0].numpy(), int(result[2].numpy())
        return [row[n : n + count].tolist() for row, n in zip(token_rows, lengths, strict=True)]

    def _speculate(
        self, state: tuple[runtime.Ref, ...], streams: Sequence[Stream], tables: Ints, steps: int
    ) -> list[list[int]]:
        """Return the tokens of rounds of speculative decoding."""
        count = self.spare
        rounds = max(1, steps // (count + 1))
        history, settings, seeds, is_greedy = self._sampling_inputs(streams, rounds * (count + 1))
        lengths = np.array([text.length for text in streams], np.int32)
        rows = np.arange(len(streams), dtype=np.int32)
        result = self._call_entry(
            SPECULATE, *state, np.array(rounds, np.int32), history, lengths, rows,
            rows + np.int32(len(rows)), np.array(count, np.int32),
            np.arange(count + 1, dtype=np.int32), tables, settings, seeds, self._free,
            np.full_like(rows, -1), np.array((*self.ends, -1), np.int32), is_greedy,
        )  # fmt: skip
        assert isinstance(result, tuple)
        token_rows, ends = (tensor.numpy() for tensor in result)
        every = zip(token_rows, lengths, ends, strict=True)
        return [row[begin:end].tolist() for row, begin, end in every]

    def _sampling_inputs(
        self, streams: Sequence[Stream], steps: int
    ) -> tuple[Ints, NDArray[np.float32], NDArray[np.int64], NDArray[np.bool_]]:
        """Return the inputs of token selection: (history with room for `steps` tokens, settings,
        seeds, whether all are greedy).
        """
        width = max(candidate.length for candidate in streams) + steps
        history = np.zeros((len(streams), width), np.int32)
        for row, stream in zip(history, streams, strict=True):
            if stream.sampling.repetition_penalty != 1:
                row[: stream.length] = stream.whole
            else:
                # Without a repetition penalty the program reads only the last two tokens: copying
                # whole histories would cost O(length) per step.
                recent = (*stream.prompt[-2:], *stream.tokens[-2:])[-2:]
                row[max(stream.length - 2, 0) : stream.length] = recent
        settings = np.array([text.sampling.settings() for text in streams], np.float32)
        assert settings.shape[1] == len(SAMPLING_SETTING_NAMES)
        seeds = np.array([sampled.sampling.seed for sampled in streams], np.int64)
        return history, settings, seeds, np.array(all(s.sampling.is_greedy for s in streams))

    def _grammar_inputs(self, streams: Sequence[Stream]) -> tuple[runtime.Tensor, Ints]:
        """Return the concatenated transition tables of the texts' grammars, and each text's state
        in them, -1 without a grammar.
        """
        grammars = list(dict.fromkeys(s.grammar for s in streams if s.grammar is not None))
        if not grammars:
            return self._free, np.full(len(streams), -1, np.int32)
        # Grammars share one table, so each one's states are offset by the sizes of those before it.
        starts = np.cumsum([0, *(len(grammar_.moves) for grammar_ in grammars)])
        joined = self._joined  # another engine may put others there
        if joined[0] != grammars:
            shifted = [
                np.where(g.moves >= 0, g.moves + n, -1)
                for g, n in zip(grammars, starts, strict=False)
            ]
            joined = grammars, runtime.tensor(np.concatenate(shifted).astype(np.int32))
            self._joined = joined
        begins = {g: int(n) for g, n in zip(grammars, starts, strict=False)}
        states = [-1 if s.grammar is None else begins[s.grammar] + s.state for s in streams]
        return joined[1], np.array(states, np.int32)

    def grammar(self, given: Grammar | str | None) -> Grammar | None:
        """Compile a regular expression, caching recent ones. Raises InputError, also without a
        tokenizer to give the tokens' text.
        """
        if given is None or isinstance(given, Grammar):
            if given is not None and given.moves.shape[1] != self.config.vocab_size:
                raise InputError(
                    f"grammar: it is for {given.moves.shape[1]} tokens, the model has"
                    f" {self.config.vocab_size}"
                )
            return given
        if self.tokenizer is None:
            raise InputError("grammar: a tokenizer is needed to say what tokens are")
        # Compiled outside the lock: a table for a large vocabulary takes seconds, and two threads
        # may at worst build it twice.
        with self._lock:
            cached = self._grammars.get(given)
        if cached is not None:
            return cached
        tokens = self.tokenizer.token_bytes(self.config.vocab_size)
        compiled = Grammar.of(given, tokens, self.ends)
        with self._lock:
            self._grammars[given] = compiled
            while sum(g.moves.nbytes for g in self._grammars.values()) > MAX_TABLE_BYTES:
                del self._grammars[next(iter(self._grammars))]
        return compiled

    # Texts.

    def encode(self, prompt: str | Sequence[int]) -> list[int]:
        """Return the tokens of a prompt. Raises InputError for text without a tokenizer, or for
        neither text nor tokens.
        """
        if not isinstance(prompt, str):
            return to_token_ids(prompt)
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
        """Generate the answer to a prompt piece by piece; `changes` override fields of `Sampling`.
        Raises InputError for a prompt that is empty, too long or not in the vocabulary, and for
        stop texts without a tokenizer.
        """
        options = sampling or Sampling()
        if changes:
            fields = {name: getattr(options, name) for name in Sampling.__slots__}
            unknown = sorted(set(changes) - set(fields))
            if unknown:
                raise InputError(f"generate: '{unknown[0]}' is none of {', '.join(fields)}")
            options = Sampling(**{**fields, **changes})
        stream = self.engine.submit(self.encode(prompt), options)
        pieces = self._iter_pieces(stream)
        # A generator that never starts does not reach its finally clause.
        weakref.finalize(pieces, stream.close).atexit = False  # also one that was never begun
        return pieces

    def _iter_pieces(self, stream: Stream) -> Iterator[Piece]:
        pieces = Detokenizer(self.tokenizer, stream.prompt, stream.stop_texts)
        try:
            for token in stream:
                text = pieces.add(token)
                if pieces.has_stopped:
                    yield Piece(token, text, "stop")
                    return
                is_last = stream.is_done
                yield Piece(token, text + (pieces.flush() if is_last else ""),
                            stream.finish if is_last else "")  # fmt: skip
                if is_last:
                    return
            yield Piece(None, pieces.flush(), stream.finish)
        finally:
            stream.close()
