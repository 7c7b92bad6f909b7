"""Adapter from decoders of `ekiden.llm` to the server's text-model interface: conversations in,
pieces of answers out.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ekiden import llm
from ekiden.llm.answer_parser import AnswerParser
from ekiden.llm.conversation import Conversation, open_conversation
from ekiden.llm.engine_loop import EngineLoop, TokenUpdate
from ekiden.llm.grammar import Grammar, LazyGrammar
from ekiden.llm.logit_biases import TokenScore
from ekiden.llm.prompt_cache import DEFAULT_PROMPT_CACHE_BYTES
from ekiden.llm.tokenizer import Detokenizer, Tokenizer
from ekiden.runtime.errors import LoadError, RequestError, RunError
from ekiden.serve.config import TextConfig
from ekiden.serve.text import Message, Piece, Sampling, ScoredToken, TextRequest

__all__ = ["DecoderAnswer", "DecoderTextModel", "open_decoder"]


class DecoderAnswer:
    """Streamed answer of a decoder, as `TextAnswer`."""

    def __init__(
        self,
        loop: EngineLoop,
        tokenizer: Tokenizer,
        stream: llm.Stream,
        conversation: Conversation | None = None,
    ) -> None:
        self._loop, self._stream, self._tokenizer = loop, stream, tokenizer
        marks = () if conversation is None else conversation.marks
        self._texts = Detokenizer(tokenizer, stream.prompt, stream.stop_texts, marks)
        self.parser = AnswerParser() if conversation is None else conversation.parser()
        self.prompt = len(stream.prompt)

    def start(self, deadline: float, deliver: Callable[[TokenUpdate], None]) -> None:
        """Start the generation; see `TextAnswer`."""
        self._loop.add(self._stream, deliver, deadline)

    def pieces(self, delivered: TokenUpdate) -> list[Piece]:
        """Return the delivered pieces; see `TextAnswer`. Raises RequestError at the deadline,
        RunError where a step failed.
        """
        pieces: list[Piece] = []
        for n, token in enumerate(delivered.tokens):
            text = self._texts.add(token)
            scores = tuple(map(self._scored_token, delivered.scores[n : n + 1]))
            if self._texts.has_stopped:
                return [*pieces, Piece(text, 1, "stop", scores)]
            pieces.append(Piece(text, scores=scores))
        match delivered.finish:
            case "":
                return pieces
            case "deadline":
                raise RequestError("the time of the request is over", "deadline")
            case "failed":
                raise RunError(f"generate: {self._stream.name}: {delivered.reason}")
            case "closed":
                raise RequestError("the model was let go", "stopping", 1.0)
        return [*pieces, Piece(self._texts.rest(), 0, delivered.finish)]

    def _scored_token(self, score: TokenScore) -> ScoredToken:
        data = self._tokenizer.token_data
        top = tuple((data(token), logprob) for token, logprob in score.top)
        return ScoredToken(data(score.token), score.logprob, top)

    def cancel(self) -> None:
        """Cancel the generation; see `TextAnswer`."""
        self._loop.cancel(self._stream)


class DecoderTextModel:
    """Decoder as a `TextModel` and `TextEngine`: concurrent answers share the model's generation
    engine, whose loop makes each step for all of them.
    """

    constrains_answers = True
    """Patterns are honoured; see `Sampling.pattern`."""

    def __init__(self, model: llm.Model) -> None:
        if model.tokenizer is None:
            raise LoadError(
                "text: a model with a tokenizer expected: a tokenizer.json beside it, and the"
                " package tokenizers (pip install 'ekiden[llm]')"
            )
        self._model = model
        self._lock = threading.Lock()
        self._loop: EngineLoop | None = None

    @property
    def sizes(self) -> dict[str, object]:
        """Return the model's sizes under the names of vLLM and of llama.cpp's server."""
        model, config = self._model, self._model.config
        return {
            "max_model_len": model.context,
            "meta": {
                "n_ctx": model.context, "n_ctx_train": config.max_positions,
                "n_vocab": config.vocabulary, "n_embd": config.hidden, "n_layer": config.layers,
                "n_slots": model.sequences,
            },
        }  # fmt: skip

    @property
    def prompt_tokens_by_source(self) -> Mapping[str, int]:
        """Return how many tokens of prompts were computed, and were in memory or on disk."""
        return self._model.engine.prompt_tokens

    @property
    def adapters(self) -> tuple[str, ...]:
        """Return the names of the LoRA adapters that requests may select."""
        return self._model.adapters

    def prepare(self, messages: Sequence[Message], sampling: Sampling) -> DecoderAnswer:
        """Create the answer to a conversation; see `TextEngine`."""
        return self.open(TextRequest(tuple(messages), sampling=sampling))

    def open(self, request: TextRequest) -> DecoderAnswer:
        """Create the answer to a request; see `RequestEngine`."""
        model, sampling = self._model, request.sampling
        assert model.tokenizer is not None
        conversation: Conversation | None = None
        grammar = model.grammar(sampling.pattern or None)
        if request.prompt is None:
            conversation = open_conversation(
                model.tokenizer,
                [_to_template_message(message) for message in request.messages],
                request.tools,
                request.tool_choice,
                grammar is not None,
                request.template_options,
            )
            tokens = conversation.tokens
            if conversation.pattern:
                # What tells calls apart may be special tokens, which a grammar has to see.
                grammar = model.grammar(conversation.pattern, conversation.marks)
        else:
            tokens = model.encode(request.prompt)
        model.check_prompt(tokens)  # else a prompt that is too long is a wrong number of tokens
        settings = self._to_llm_sampling(len(tokens), sampling, grammar, request.adapter)
        stream = model.engine.prepare(tokens, settings)
        with self._lock:
            if self._loop is None:
                self._loop = EngineLoop(model.engine)
        return DecoderAnswer(self._loop, model.tokenizer, stream, conversation)

    def close(self) -> None:
        """End all answers; see `TextEngine`."""
        with self._lock:
            if self._loop is not None:
                self._loop.close()

    def _tokenize_messages(self, messages: Sequence[Message]) -> list[int]:
        """Return the token ids of a conversation. Raises InputError if there are too many."""
        dictionaries = [_to_template_message(message) for message in messages]
        assert self._model.tokenizer is not None
        tokens = self._model.tokenizer.conversation(dictionaries)
        self._model.check_prompt(tokens)
        return tokens

    def prompt_tokens(self, messages: Sequence[Message]) -> int:
        """Return the number of tokens of a conversation. Raises InputError if there are
        too many.
        """
        return len(self._tokenize_messages(messages))

    def generate(self, messages: Sequence[Message], sampling: Sampling) -> Iterator[Piece]:
        """Yield the answer incrementally."""
        tokens = self._tokenize_messages(messages)
        options = self._to_llm_sampling(len(tokens), sampling)
        for piece in self._model.generate(tokens, options):
            yield Piece(piece.text, int(piece.token is not None), piece.finish)

    def _to_llm_sampling(
        self,
        prompt: int,
        sampling: Sampling,
        grammar: Grammar | LazyGrammar | None = None,
        adapter: str = "",
    ) -> llm.Sampling:
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        requested = {name: getattr(sampling, name) for name in names}
        settings: dict[str, Any] = {
            "temperature": 1.0,
            **self._model.sampling_defaults,
            **{name: value for name, value in requested.items() if value is not None},
        }
        return llm.Sampling(
            **settings,
            max_tokens=sampling.max_tokens or self._model.context - prompt,
            seed=secrets.randbits(62) if sampling.seed is None else sampling.seed,
            stop=sampling.stop,
            grammar=grammar or sampling.pattern or None,
            frequency_penalty=sampling.frequency_penalty,
            presence_penalty=sampling.presence_penalty,
            logit_bias=sampling.logit_bias,
            logprobs=sampling.logprobs,
            ignore_end=sampling.ignore_end,
            adapter=adapter,
        )


def _to_template_message(message: Message) -> dict[str, object]:
    """Convert a message to the form that chat templates read: absent fields are undefined there."""
    fields: dict[str, object] = {"role": message.role, "content": message.content}
    optional_fields = {
        "tool_calls": [dict(call) for call in message.tool_calls],
        "tool_call_id": message.tool_call_id,
        "name": message.name,
    }
    return fields | {key: value for key, value in optional_fields.items() if value}


def open_decoder(folder: Path, config: TextConfig) -> DecoderTextModel:
    """Load a configured decoder; its paths are relative to a folder. Raises LoadError and what
    `llm.load` raises.
    """
    adapters = {name: folder / path for name, path in config.adapters.items()}
    return DecoderTextModel(
        llm.load(
            folder / config.checkpoint, context=config.context or None, sequences=config.sequences,
            adapters=adapters or None,
            prompt_cache=folder / config.prompt_cache if config.prompt_cache else None,
            prompt_cache_bytes=config.prompt_cache_bytes or DEFAULT_PROMPT_CACHE_BYTES,
        )
    )  # fmt: skip
