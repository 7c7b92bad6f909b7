"""Compiled decoder: prompts in, tokens out."""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ekiden
from ekiden import runtime
from ekiden.kernels.attention.kv_layout import CACHE_FORMATS
from ekiden.llm.chat import ChatAnswer
from ekiden.llm.checkpoint import Checkpoint, HasGenerationConfig, check_files
from ekiden.llm.checkpoint_files import find_tokenizer, open_checkpoint
from ekiden.llm.conversation import is_conversation, open_conversation
from ekiden.llm.decoder import FORWARD_ENTRY, CacheLayout, cache_shape, sequence_inputs
from ekiden.llm.decoder_config import DecoderConfig, read_config
from ekiden.llm.engine import Engine, Stream, to_token_ids
from ekiden.llm.generation_config import read_sampling_defaults
from ekiden.llm.generation_program import (
    DECODE,
    DRAFT,
    PREFILL,
    SETTINGS,
    SPECULATE,
    DraftModel,
    build_generation_program,
)
from ekiden.llm.grammar import MAX_TABLE_BYTES, Grammar, LazyGrammar, compile_grammar
from ekiden.llm.logit_biases import logit_biases
from ekiden.llm.lora import AdaptedCheckpoint
from ekiden.llm.multi_lora import NO_ADAPTER, AdapterSet
from ekiden.llm.prompt_cache import (
    DEFAULT_PROMPT_CACHE_BYTES,
    PromptCache,
    prompt_model_digest,
)
from ekiden.llm.sampling import Sampling
from ekiden.llm.state_space import reject_state_options, state_layout
from ekiden.llm.token_trie import TokenTrie
from ekiden.llm.tokenizer import Detokenizer, Tokenizer
from ekiden.runtime.errors import InputError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.runtime.vm import VirtualMachine

__all__ = ["Model", "Piece", "load"]

Ints = NDArray[np.int32]
DEFAULT_CONTEXT_TOKENS = 4096
"""Tokens of a text, where nobody says and the model can have more."""
MAX_GRAMMARS = 64
"""Of recent texts, which are kept."""
DEFAULT_PROPOSED_TOKENS = 4
"""Of a smaller model at once, where nobody says."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Increment of a streamed response: the text that a token adds, empty if it is an incomplete
    character; the last piece has `finish`, the reason why the response is over: "stop" or "length".
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
    adapter: str | os.PathLike[str] | None = None,
    adapters: Mapping[str, str | os.PathLike[str]] | None = None,
    draft: str | os.PathLike[str] | Checkpoint | None = None,
    proposals: int | None = None,
    prompt_cache: str | os.PathLike[str] | None = None,
    prompt_cache_bytes: int = DEFAULT_PROMPT_CACHE_BYTES,
    num_threads: int | None = None,
    **options: Any,  # noqa: ANN401  # of another function
) -> Model:
    """Compile a transformers folder (`config.json`, safetensors), a GGUF file, or any `Checkpoint`.

    A text has at most `context` tokens (else what the model can, up to 4,096), and `sequences` are
    made at once; the cache is as large as both need, in pages of `page` tokens. Its format is
    `cache`: "float32", "float16", "bfloat16", "int8", which has a scale for each token of a head,
    or "int4" with one for each 32 numbers; by default float32 where the weights are, so that
    nothing is rounded, and else float16. `tokenizer` is one of the package tokenizers, or its file;
    a folder and a GGUF file have their own. `adapter` is a folder of a LoRA as PEFT writes it, that
    is added to the weights. `adapters` are folders by their names, of which each text chooses one
    (`Sampling.adapter`) or none; texts with different ones are made together. `options` are those
    of `ekiden.compile`.

    `prompt_cache` is a folder in which pages of prompts are kept for later processes, at most
    `prompt_cache_bytes` of them (`prompt_cache.py`): a prompt that begins like an earlier one is
    read from there as far as both agree.

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
    if adapter is not None:
        opened_checkpoint = AdaptedCheckpoint(opened_checkpoint, adapter)
    config: dict[str, Any] = dict(opened_checkpoint.config)
    context = _context_length(context, read_config(config).max_positions)
    decoder = read_config(config, context)
    if type(sequences) is not int or sequences < 1:
        raise InputError(f"load: 'sequences' must be at least 1, got {sequences!r}")
    if decoder.has_states:
        reject_state_options(
            {"draft": draft, "adapters": adapters, "prompt_cache": prompt_cache}, cache, decoder
        )
        layout = state_layout(context)
    else:
        cache = cache or _default_cache_dtype(opened_checkpoint, decoder)
        layout = _cache_layout(page, cache, decoder)
    if draft is None and proposals is not None:
        raise InputError("load: 'proposals' are those of a 'draft', which is not given")
    chosen = None if adapters is None else AdapterSet.open(adapters, opened_checkpoint)
    proposals = DEFAULT_PROPOSED_TOKENS if proposals is None else proposals
    draft_checkpoint = None if draft is None else _open_checkpoint(draft)
    small = (
        None
        if draft_checkpoint is None
        else _open_draft(draft_checkpoint, decoder, context, proposals)
    )
    generation = (
        opened_checkpoint.generation if isinstance(opened_checkpoint, HasGenerationConfig) else {}
    )
    defaults = read_sampling_defaults(generation)
    stored_prompts = None
    if prompt_cache is not None:
        digest = prompt_model_digest(
            [checkpoint, adapter, draft, *(adapters or {}).values()],
            [context, layout, sorted(adapters or {})],
        )
        stored_prompts = PromptCache(prompt_cache, digest, prompt_cache_bytes)
    exe = ekiden.compile(
        build_generation_program(opened_checkpoint, decoder, layout, small, chosen),
        num_threads=num_threads,
        **options,
    )
    check_files(opened_checkpoint, draft_checkpoint, chosen)
    _trim_heap()
    return Model(
        exe, decoder, layout, context, sequences, Tokenizer.of(tokenizer), small, defaults,
        None if chosen is None else chosen.names, stored_prompts,
    )  # fmt: skip


def _context_length(context: int | None, max_positions: int) -> int:
    """Return the tokens of a text, by default what the model can, up to DEFAULT_CONTEXT_TOKENS.
    Raises InputError for a number that the model cannot have.
    """
    context = min(max_positions, DEFAULT_CONTEXT_TOKENS) if context is None else context
    if type(context) is not int or not 2 <= context <= max_positions:
        raise InputError(
            f"load: 'context' must be from 2 to {max_positions} tokens, got {context!r}"
        )
    return context


def _cache_layout(page: int, cache: str, config: DecoderConfig) -> CacheLayout:
    """Return the KV-cache layout of a cache format. Raises InputError for an impossible one."""
    if cache not in CACHE_FORMATS:
        raise InputError(f"load: 'cache' must be one of {', '.join(CACHE_FORMATS)}, got {cache!r}")
    row = CACHE_FORMATS[cache]
    if type(page) is not int or page < row.granularity or page % row.granularity:
        raise InputError(f"load: 'page' must be a multiple of {row.granularity}, got {page!r}")
    if config.alibi and cache in ("int8", "int4"):
        # Positions in keys would be rounded with them.
        raise InputError(
            f"load: a cache of {cache} cannot hold the positions that a {config.architecture} has"
            " in its keys: float32, float16 or bfloat16 can"
        )
    # Quantized caches store whole blocks of a head's elements.
    if config.cache_depth % row.granularity:
        raise InputError(
            f"load: a cache of {cache} is for heads of a multiple of {row.granularity} numbers,"
            f" those of the model have {config.depth}"
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


def _open_draft(
    checkpoint: Checkpoint, large: DecoderConfig, context: int, count: int
) -> DraftModel:
    """Return the draft model of speculative decoding. Raises InputError unless it shares the larger
    model's vocabulary and context.
    """
    if type(count) is not int or count < 1:
        raise InputError(f"load: 'proposals' must be at least 1, got {count!r}")
    config = read_config(dict(checkpoint.config), context)
    if config.vocabulary != large.vocabulary:
        raise InputError(
            f"load: 'draft' must have the {large.vocabulary} tokens of the model, it has"
            f" {config.vocabulary}"
        )
    return DraftModel(checkpoint, config, count)


def _default_cache_dtype(checkpoint: Checkpoint, config: DecoderConfig) -> str:
    """Return a KV-cache dtype with the precision of the weights."""
    name = f"{config.names.layer.format(0)}{config.names.down}.weight"
    is_float = name not in set(checkpoint) or checkpoint[name].format == "float32"
    return "float32" if is_float else "float16"


class Model:
    """Compiled decoder with its tokenizer and KV-cache layout. Any threads and engines may use it
    at once; calls are serialized.
    """

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
        adapters: Sequence[str] | None = None,
        prompt_cache: PromptCache | None = None,
    ) -> None:
        self.prompt_cache = prompt_cache
        self.exe, self.config, self.layout, self.context = exe, config, layout, context
        self.sequences, self.tokenizer = sequences, tokenizer
        self.sampling_defaults = sampling_defaults or {}
        """Fields of `Sampling` that the checkpoint sets for answers whose request does not."""
        self.adapters = tuple(adapters or ())
        """The names of adapters that texts may choose."""
        self._drafts = None if draft is None else draft.config
        self._sequence_inputs = sequence_inputs(adapters is not None, config, self._drafts)
        self.spare = 0 if draft is None else draft.count
        """Tokens behind the end of a text that the cache holds for a while: proposals."""
        self.most_pages = -(-(context + self.spare) // layout.page)
        self.ends = config.end_tokens
        self._machine = VirtualMachine(exe)
        self._free = runtime.tensor(np.zeros((1, config.vocabulary), np.int32))
        self._grammars: dict[tuple[str, Sequence[str]], Grammar | LazyGrammar] = {}
        self._tries: dict[Sequence[str], TokenTrie] = {}
        self._engine: Engine | None = None
        self._lock, self._calls = threading.Lock(), threading.Lock()

    @property
    def engine(self) -> Engine:
        """Return the engine shared by all sequences, created on first use."""
        with self._lock:
            if self._engine is None:
                self._engine = Engine(self, sequences=self.sequences)
            return self._engine

    def new_state(self, pages: int) -> tuple[runtime.Ref, ...]:
        """Return KV caches of `pages` pages, one per decoder; memory is committed when they are
        first written.
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
        worst = max(prompt, key=lambda t: t if t >= 0 else self.config.vocabulary)
        if not 0 <= worst < self.config.vocabulary:
            raise InputError(
                f"prompt: token {worst} is none of the {self.config.vocabulary} of the model"
            )

    def check_biases(self, sampling: Sampling) -> None:
        """Raise InputError for a logit bias of a token outside the vocabulary."""
        for token in sampling.logit_bias:
            if not 0 <= token < self.config.vocabulary:
                raise InputError(
                    f"logit_bias: token {token} is none of the {self.config.vocabulary} of the"
                    " model"
                )

    def adapter_number(self, name: str) -> int:
        """Return the index of an adapter, NO_ADAPTER for an empty name. Raises InputError for one
        that the model does not have.
        """
        if not name:
            return NO_ADAPTER
        if name not in self.adapters:
            known = ", ".join(map(repr, self.adapters)) or "none"
            raise InputError(f"adapter: {name!r} is none of the model's: {known}")
        return self.adapters.index(name)

    def stop_tokens(self, stops: Sequence[str]) -> Mapping[str, int]:
        """Return the stop strings that are special tokens, with their token ids. Raises InputError
        for stop texts without a tokenizer.
        """
        if stops and self.tokenizer is None:
            raise InputError("stop: tokens only, as the model has no tokenizer")
        special_tokens = {} if self.tokenizer is None else self.tokenizer.special_tokens
        return {text: special_tokens[text] for text in stops if text in special_tokens}

    # Calls of the program.

    def _call_entry(self, entry: str, *args: object) -> object:
        """Call an entry function of the program, serialised by a lock: engines and `logits` share
        one virtual machine.
        """
        with self._calls:
            return self._machine.invoke(entry, *args)

    def _paging_inputs(self, tables: Ints, **by_sequence: Sequence[int]) -> tuple[Ints, ...]:
        """Return the page tables and the `sequence_inputs` that the program takes."""
        return (tables, *(np.array(by_sequence[n], np.int32) for n in self._sequence_inputs))

    def _placing(self, streams: Sequence[Stream], tables: Ints) -> tuple[Ints, ...]:
        """Return the page tables and `sequence_inputs` of streams."""
        return self._paging_inputs(
            tables,
            adapters=[stream.adapter for stream in streams],
            totals=[stream.length for stream in streams],
        )

    def logits(self, tokens: Sequence[int], adapter: str = "") -> NDArray[np.float32]:
        """Return the logits [n, vocabulary] after each of n tokens of a sequence of its own, with
        or without an adapter. Raises InputError for an adapter or tokens that the model does not
        have.
        """
        number = self.adapter_number(adapter)
        tokens = to_token_ids(tokens)
        self.check_prompt(tokens)
        pages = -(-len(tokens) // self.layout.page)
        n = np.arange(len(tokens), dtype=np.int32)
        result = self._call_entry(
            FORWARD_ENTRY, self._allocate_cache(self.config, pages), np.array(tokens, np.int32),
            np.zeros_like(n), n,
            *self._paging_inputs(
                np.arange(pages, dtype=np.int32)[None], adapters=[number], totals=[len(tokens)]
            ),
            n,
        )  # fmt: skip
        assert isinstance(result, runtime.Tensor)
        return np.asarray(result.numpy())

    def prefill(
        self, state: tuple[runtime.Ref, ...], where: Ints, tables: Ints, picks: Ints,
        streams: Sequence[Stream], done: Sequence[int],
    ) -> tuple[Ints, NDArray[np.float32]]:  # fmt: skip
        """Process prompt tokens; return the tokens sampled after `picks` and their logits [n,
        vocabulary]. `picks` are the last tokens read of the streams `done`; `where` holds the ids,
        rows and positions read.
        """
        history, settings, seeds, is_greedy = self._sampling_inputs(streams, 0)
        moves, states = self._grammar_inputs(streams)
        lengths = np.array([streams[i].length for i in done], np.int32)
        bias_ids, changes = logit_biases([streams[i] for i in done])
        placing = self._placing(streams, tables)
        # The draft model must have the prompt in its own cache before it can propose anything.
        for small in state[1:]:
            self._call_entry(DRAFT, small, *where, *placing, picks)
        result = self._call_entry(
            PREFILL, state[0], *where, *placing, picks, history, np.array(done, np.int32), lengths,
            settings, seeds, moves, states[list(done)], is_greedy, bias_ids, changes,
            np.array(changes.size > 0),
        )  # fmt: skip
        assert isinstance(result, tuple)
        tokens, logits = (np.asarray(tensor.numpy()) for tensor in result)
        return tokens, logits

    def decode(
        self, state: tuple[runtime.Ref, ...], streams: Sequence[Stream], tables: Ints, steps: int
    ) -> list[list[int]]:
        """Return the next tokens of each sequence: at most `steps`, fewer if all end earlier; with
        proposals, at least one round of them.
        """
        # All proposals of a round are read by one rope.
        takes_proposals = not any(
            stream.grammar is not None or self._switches_within(stream, self.spare)
            for stream in streams
        )
        if self._drafts is not None and takes_proposals:
            return self._speculate(state, streams, tables, steps)
        history, settings, seeds, is_greedy = self._sampling_inputs(streams, steps)
        lengths = np.array([text.length for text in streams], np.int32)
        moves, states = self._grammar_inputs(streams)
        placing = self._placing(streams, tables)
        result = self._call_entry(
            DECODE, state[0], np.array(steps, np.int32), history, lengths, states,
            np.arange(len(streams), dtype=np.int32), *placing, settings, seeds, moves,
            np.array((*self.ends, -1), np.int32), is_greedy,
        )  # fmt: skip
        assert isinstance(result, tuple)
        token_rows, count = result[0].numpy(), int(result[2].numpy())
        return [row[n : n + count].tolist() for row, n in zip(token_rows, lengths, strict=True)]

    def _switches_within(self, stream: Stream, count: int) -> bool:
        """Return whether the rope of a text changes before it has so many more tokens."""
        return stream.length <= self.config.switch_tokens < stream.length + count

    def steps_ahead(self, stream: Stream) -> int:
        """Return how many tokens a text may get before it is at its limit or its rope changes."""
        steps, switch_tokens = stream.limit - stream.length, self.config.switch_tokens
        if not switch_tokens or stream.is_long:
            return steps
        return min(steps, switch_tokens - stream.length + 1)

    def _speculate(
        self, state: tuple[runtime.Ref, ...], streams: Sequence[Stream], tables: Ints, steps: int
    ) -> list[list[int]]:
        """Return the tokens accepted in rounds of speculative decoding."""
        count = self.spare
        rounds = max(1, steps // (count + 1))
        history, settings, seeds, is_greedy = self._sampling_inputs(streams, rounds * (count + 1))
        lengths = np.array([text.length for text in streams], np.int32)
        rows = np.arange(len(streams), dtype=np.int32)
        placing = self._placing(streams, tables)
        result = self._call_entry(
            SPECULATE, *state, np.array(rounds, np.int32), history, lengths, rows,
            rows + np.int32(len(rows)), np.array(count, np.int32),
            np.arange(count + 1, dtype=np.int32), *placing, settings, seeds, self._free,
            np.full_like(rows, -1), np.array((*self.ends, -1), np.int32), is_greedy,
        )  # fmt: skip
        assert isinstance(result, tuple)
        token_rows, ends = (tensor.numpy() for tensor in result)
        every = zip(token_rows, lengths, ends, strict=True)
        return [row[begin:end].tolist() for row, begin, end in every]

    def _sampling_inputs(
        self, streams: Sequence[Stream], steps: int
    ) -> tuple[Ints, NDArray[np.float32], NDArray[np.int64], NDArray[np.bool_]]:
        """Return the inputs of token sampling: (history with room for `steps` tokens, settings,
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
                begin = max(stream.length - 2, 0)
                row[begin : stream.length] = stream.part(begin, 2)
        settings = np.array([text.sampling.settings() for text in streams], np.float32)
        assert settings.shape[1] == len(SETTINGS)
        seeds = np.array([sampled.sampling.seed for sampled in streams], np.int64)
        return history, settings, seeds, np.array(all(s.sampling.is_greedy for s in streams))

    def _grammar_inputs(self, streams: Sequence[Stream]) -> tuple[runtime.Tensor, Ints]:
        """Return the mask rows of the sequences' grammar states [n, vocabulary], and each
        sequence's row index, -1 without a grammar.
        """
        if not any(stream.grammar is not None for stream in streams):
            return self._free, np.full(len(streams), -1, np.int32)
        # Steps with a grammar are of one token, so that a table needs the rows of the present
        # states alone.
        rows = [s.grammar.row(s.state) for s in streams if s.grammar is not None]
        numbers = np.cumsum([s.grammar is not None for s in streams]) - 1
        states = np.where([s.grammar is None for s in streams], -1, numbers)
        return runtime.tensor(np.stack(rows)), states.astype(np.int32)

    def grammar(
        self, given: Grammar | LazyGrammar | str | None, marks: Sequence[str] = ()
    ) -> Grammar | LazyGrammar | None:
        """Compile a pattern to a grammar, caching recent ones. Raises InputError, also without a
        tokenizer to give the tokens' text. Of special tokens, `marks` alone may match.
        """
        if given is None or not isinstance(given, str):
            if given is not None and given.vocabulary != self.config.vocabulary:
                raise InputError(
                    f"grammar: it is for {given.vocabulary} tokens, the model has"
                    f" {self.config.vocabulary}"
                )
            return given
        if self.tokenizer is None:
            raise InputError("grammar: a tokenizer is needed to say what tokens are")
        key = given, tuple(marks)
        # Compiled outside the lock: two threads may at worst build it twice.
        with self._lock:
            cached = self._grammars.pop(key, None)
            if cached is not None and cached.nbytes <= MAX_TABLE_BYTES // 2:
                self._grammars[key] = cached
                return cached
        compiled = compile_grammar(given, self._token_trie(key[1]), self.ends)
        with self._lock:
            self._grammars[key] = compiled
            while sum(g.nbytes for g in self._grammars.values()) > MAX_TABLE_BYTES or (
                len(self._grammars) > MAX_GRAMMARS
            ):
                del self._grammars[next(iter(self._grammars))]
        return compiled

    def _token_trie(self, marks: Sequence[str]) -> TokenTrie:
        """Return the vocabulary as a trie for grammars, in which the special tokens among `marks`
        have their text.
        """
        assert self.tokenizer is not None
        special = self.tokenizer.special_tokens if marks else {}
        shown = tuple(mark for mark in marks if mark in special)
        with self._lock:
            trie = self._tries.get(shown)
        if trie is None:
            tokens = self.tokenizer.token_bytes(self.config.vocabulary)
            for mark in shown:
                tokens[special[mark]] = mark.encode()
            trie = TokenTrie(tokens)
            with self._lock:
                self._tries[shown] = trie
        return trie

    # Texts.

    def encode(self, prompt: str | Sequence[int]) -> list[int]:
        """Return the token ids of a prompt. Raises InputError for text without a tokenizer, or for
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
        """Generate the response to a prompt incrementally; `changes` override fields of `Sampling`.
        Raises InputError for a prompt that is empty, too long or not in the vocabulary, and for
        stop texts without a tokenizer.
        """
        options = _change(sampling or Sampling(), changes)
        stream = self.engine.submit(self.encode(prompt), options)
        pieces = self._iter_pieces(stream)
        # A generator that never starts does not reach its finally clause.
        weakref.finalize(pieces, stream.close).atexit = False  # also one that was never begun
        return pieces

    async def generate_async(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling | None = None,
        **changes: Any,  # noqa: ANN401  # fields of Sampling
    ) -> AsyncIterator[Piece]:
        """Generate the response to a prompt as `generate` does, without blocking the event loop."""
        pieces = self.generate(prompt, sampling, **changes)
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            yield piece

    def generate_texts(
        self,
        prompts: Sequence[str | Sequence[int] | Sequence[Mapping[str, Any]]],
        sampling: Sampling | None = None,
        **changes: Any,  # noqa: ANN401  # fields of Sampling
    ) -> list[str]:
        """Return the responses to several prompts, generated in one batch.

        Args:
            prompts: Texts, tokens, or conversations: lists of messages.
            sampling: That of each response.
            changes: Fields of `Sampling` to override.

        Raises InputError as `generate` and `chat` do.
        """
        answers: list[ChatAnswer | Iterator[Piece]] = [
            self.chat(prompt, sampling, **changes)
            if is_conversation(prompt)
            else self.generate(prompt, sampling, **changes)  # type: ignore[arg-type]
            for prompt in prompts
        ]
        return [
            answer.read()
            if isinstance(answer, ChatAnswer)
            else "".join(piece.text for piece in answer)
            for answer in answers
        ]

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling: Sampling | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        tool_choice: str = "auto",
        options: Mapping[str, Any] | None = None,
        **changes: Any,  # noqa: ANN401  # fields of Sampling
    ) -> ChatAnswer:
        """Answer a conversation, rendered by the model's chat template.

        Args:
            messages: "role" and "content", and what else the template reads.
            sampling: By default that of the checkpoint, up to the end of the context.
            tools: Functions that the response may call, in OpenAI's form.
            tool_choice: "auto", "required", or "function:" and the name of the one to call.
            options: Further variables of the template ("enable_thinking").
            changes: Fields of `Sampling` to override.

        Raises InputError for messages that the template rejects, a model without tokenizer or
        template, and what `generate` raises it for.
        """
        if self.tokenizer is None:
            raise InputError("chat: the model has no tokenizer: that takes a tokenizer.json")
        form = changes.get("grammar", None if sampling is None else sampling.grammar)
        conversation = open_conversation(
            self.tokenizer, messages, tools, tool_choice, form is not None, options
        )
        if form is None and conversation.pattern:
            changes["grammar"] = self.grammar(conversation.pattern, conversation.marks)
        if sampling is None:
            self.check_prompt(conversation.tokens)
            remaining = self.context - len(conversation.tokens)
            sampling = Sampling(**{"max_tokens": remaining, **self.sampling_defaults})  # type: ignore[arg-type]
        stream = self.engine.submit(conversation.tokens, _change(sampling, changes))
        return ChatAnswer(stream, conversation)

    def _iter_pieces(self, stream: Stream) -> Iterator[Piece]:
        pieces = Detokenizer(self.tokenizer, stream.prompt, stream.stop_texts)
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


def _change(sampling: Sampling, changes: Mapping[str, Any]) -> Sampling:
    """Return sampling parameters with some fields changed. Raises InputError for a field that there
    is not.
    """
    if not changes:
        return sampling
    fields = {name: getattr(sampling, name) for name in Sampling.__slots__}
    unknown = sorted(set(changes) - set(fields))
    if unknown:
        raise InputError(f"generate: '{unknown[0]}' is none of {', '.join(fields)}")
    return Sampling(**{**fields, **changes})
