"""Interfaces of text models: Python objects that give an answer piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from ekiden.llm.answer_parser import AnswerParser
from ekiden.runtime.errors import LoadError
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = [
    "AnyTextModel", "EmbeddingModel", "Embeddings", "Message", "Piece", "RequestEngine",
    "RerankModel", "RerankScores", "Sampling", "ScoredToken", "TextAnswer", "TextEngine",
    "TextModel", "TextRequest", "constrains_answers", "find_text_model",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Message:
    """Message of a conversation."""

    role: str
    """"system", "developer", "user", "assistant" or "tool"."""
    content: str
    """Its text; empty where an assistant's message has tool calls alone."""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    """Calls of functions by an assistant, in OpenAI's form, with their arguments as an object."""
    tool_call_id: str = ""
    """The call that a message of a tool answers."""
    name: str = ""
    """Who says it, where several have a role; the function, of a tool."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of an answer. A model that cannot honour one raises InputError."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    """The server cuts the answer before the first of these, and asks for no more pieces then."""
    pattern: str = ""
    """The regular expression that the whole answer matches; empty for any answer. Models without
    `constrains_answers` are not asked for one."""
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Token -> what is added to its logit."""
    logprobs: int | None = None
    """The number of likeliest tokens that pieces report beside each token; None reports none."""
    ignore_end: bool = False
    """Whether tokens that end an answer are as others."""


@dataclass(frozen=True, slots=True)
class TextRequest:
    """Generation request with all inputs of one answer. Fields beyond `messages` and the first ones
    of `Sampling` are for models with `open` (`RequestEngine`); others are not asked for them.
    """

    messages: tuple[Message, ...] = ()
    prompt: str | tuple[int, ...] | None = None
    """A text, or its tokens, that the answer goes on from, in the place of messages."""
    sampling: Sampling = field(default_factory=Sampling)
    tools: tuple[Mapping[str, Any], ...] = ()
    """Functions that the answer may call, in OpenAI's form."""
    tool_choice: str = "auto"
    """"auto", "required", or "function:" and the name of the one to call."""
    template_options: Mapping[str, Any] = field(default_factory=dict)
    """Further variables of the chat template."""
    adapter: str = ""
    """The adapter that the answer is made with, one of the model's `adapters`; empty for none."""


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """Token of an answer with its log-probability."""

    data: bytes
    """The bytes that it stands for; those of its name, for a special token."""
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()
    """The likeliest tokens in descending order."""

    @property
    def text(self) -> str:
        """Return the token's text, with replacement characters for incomplete characters."""
        return self.data.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Piece:
    """Increment of a streamed answer: its text, number of tokens, and finish reason."""

    text: str
    tokens: int = 1
    """How many tokens it took."""
    finish: str = ""
    """With the last piece why it is the last: "stop", or "length" at the limit of tokens."""
    scores: tuple[ScoredToken, ...] = ()
    """Of its tokens, where log-probabilities were asked for."""


@runtime_checkable
class TextModel(Protocol):
    """Interface of a text model that generates answers as iterators."""

    def prompt_tokens(self, messages: Sequence[Message]) -> int:
        """Return the number of tokens of a conversation. Raises InputError if there are
        too many.
        """

    def generate(self, messages: Sequence[Message], sampling: Sampling) -> Iterator[Piece]:
        """Yield the answer incrementally. The iterator is closed if the client disconnects or time
        runs out; it is used by one thread at a time, while several answers run concurrently.
        """


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Embedding vectors of texts."""

    vectors: Any
    """float32 [texts, dimensions], as numpy takes it."""
    tokens: int = 0
    """How many tokens the texts have together."""


@runtime_checkable
class EmbeddingModel(Protocol):
    """Interface of an embedding model."""

    def embed(self, texts: Sequence[str | tuple[int, ...]]) -> Embeddings:
        """Return an embedding for each text or token list. Raises InputError for one that it
        refuses. Several threads may call it at once.
        """


@dataclass(frozen=True, slots=True)
class RerankScores:
    """Relevance scores of documents for a query."""

    scores: Any
    """float32 [documents], the greater the better, as numpy takes it."""
    tokens: int = 0
    """How many tokens the pairs have together."""


@runtime_checkable
class RerankModel(Protocol):
    """Interface of a reranker."""

    def rerank(self, query: str, documents: Sequence[str]) -> RerankScores:
        """Return the relevance score of each document. Raises InputError for a text that it
        refuses. Several threads may call it at once.
        """


AnyTextModel = TextModel | EmbeddingModel | RerankModel
"""What a model of text may be."""


def constrains_answers(model: TextModel) -> bool:
    """Return whether a model supports `Sampling.pattern`: it has a true `constrains_answers`."""
    return getattr(model, "constrains_answers", False) is True


class TextAnswer(Protocol):
    """Answer that an engine generates concurrently with others."""

    prompt: int
    """How many tokens the conversation takes."""

    def start(self, deadline: float, deliver: Callable[[Any], None]) -> None:
        """Start the answer, without waiting for it. `deliver` is called on any thread with the text
        that is new; the answer ends at `deadline`, by `time.monotonic`.
        """

    def pieces(self, delivered: Any) -> list[Piece]:  # noqa: ANN401  # the engine's own
        """Return the increments delivered so far."""

    def cancel(self) -> None:
        """Cancel the answer: nothing is delivered any more. It does not wait."""


@runtime_checkable
class TextEngine(TextModel, Protocol):
    """Text model that generates on an engine loop of its own, so that no thread waits for an
    answer.
    """

    def prepare(self, messages: Sequence[Message], sampling: Sampling) -> TextAnswer:
        """Return the answer to a conversation, not started yet."""

    def close(self) -> None:
        """End all answers."""


@runtime_checkable
class RequestEngine(TextEngine, Protocol):
    """Text engine that supports all fields of a `TextRequest`."""

    def open(self, request: TextRequest) -> ParsedAnswer:
        """Return the answer to a request, not started yet. Raises InputError for what the model
        cannot honour.
        """


class ParsedAnswer(TextAnswer, Protocol):
    """Answer whose text is parsed into reasoning, content and tool calls."""

    parser: AnswerParser
    """What tells them apart; it has not read anything yet."""


def find_text_model(spec: str) -> AnyTextModel:
    """Import the object named `package.module:name`, calling it without arguments if it is a
    factory. Raises LoadError if there is none, or it is no TextModel, EmbeddingModel or
    RerankModel.
    """
    module, _, name = spec.partition(":")
    try:
        attribute = getattr(import_module(module), name)
        model = (
            attribute()
            if isinstance(attribute, type) or not isinstance(attribute, AnyTextModel)
            else attribute
        )
    except Exception as error:  # of code that is not ours
        raise LoadError(f"text: object '{spec}': {type(error).__name__}: {error}") from error
    if not isinstance(model, AnyTextModel):
        raise LoadError(
            f"text: object '{spec}': 'prompt_tokens' and 'generate', 'embed', or 'rerank', expected"
        )
    return model
