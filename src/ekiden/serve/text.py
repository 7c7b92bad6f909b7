"""Models of text: Python objects that give an answer piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from ekiden.runtime.errors import LoadError
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = [
    "Message", "Piece", "Sampling", "TextAnswer", "TextEngine", "TextModel", "find_text_model",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: str
    """"system", "developer", "user", "assistant" or "tool"."""
    content: str


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an answer is chosen. A model that cannot honour one raises InputError."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    """The server cuts the answer before the first of these, and asks for no more pieces then."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of an answer."""

    text: str
    tokens: int = 1
    """How many tokens it took."""
    finish: str = ""
    """With the last piece why it is the last: "stop", or "length" at the limit of tokens."""


@runtime_checkable
class TextModel(Protocol):
    """What a model of text must have to be served."""

    def prompt_tokens(self, messages: Sequence[Message]) -> int:
        """How many tokens the conversation takes. Raises InputError where they are too many."""

    def generate(self, messages: Sequence[Message], sampling: Sampling) -> Iterator[Piece]:
        """The answer, piece by piece. The iterator is closed where the client has gone or time is
        over; it is used by one thread at a time, and several are under way at once.
        """


class TextAnswer(Protocol):
    """An answer that an engine makes beside others."""

    prompt: int
    """How many tokens the conversation takes."""

    def start(self, deadline: float, deliver: Callable[[Any], None]) -> None:
        """Begin it. `deliver` is called on any thread with what there is of it; its time is over at
        `deadline`, by `time.monotonic`. It does not wait."""

    def pieces(self, delivered: Any) -> list[Piece]:  # noqa: ANN401  # the engine's own
        """Return the pieces of what was delivered. Raises EkidenError where the answer failed."""

    def cancel(self) -> None:
        """End it: nothing is delivered any more. It does not wait."""


@runtime_checkable
class TextEngine(TextModel, Protocol):
    """A model of text that makes its answers on a loop of its own: no thread waits for it."""

    def prepare(self, messages: Sequence[Message], sampling: Sampling) -> TextAnswer:
        """Return the answer to a conversation, not begun. Raises InputError for one too long."""

    def close(self) -> None:
        """End all answers. It does not wait."""


def find_text_model(place: str) -> TextModel:
    """The object that `package.module:name` says, or what it makes when called without arguments.

    Raises LoadError where there is none, or it is no TextModel.
    """
    module, _, name = place.partition(":")
    try:
        found = getattr(import_module(module), name)
        made = found() if isinstance(found, type) or not isinstance(found, TextModel) else found
    except Exception as error:  # of code that is not ours
        raise LoadError(f"text: object '{place}': {type(error).__name__}: {error}") from error
    if not isinstance(made, TextModel):
        raise LoadError(f"text: object '{place}': 'prompt_tokens' and 'generate' expected")
    return made
