"""Texts and tokens: the tokenizer of a model, and its answer as text while it is made."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ekiden.runtime.errors import LoadError

__all__ = ["Pieces", "Tokenizer", "read_tokenizer"]

BROKEN = "\ufffd"
"""What stands for bytes that are no letter yet."""
FILE = "tokenizer.json"


class Tokenizer:
    """A tokenizer of the package tokenizers."""

    def __init__(self, inner: Any) -> None:  # noqa: ANN401  # of a package without types
        self.inner = inner

    @staticmethod
    def of(given: object) -> Tokenizer | None:
        """A tokenizer from what a user gives: one of the package, or its file. Raises LoadError."""
        if given is None or isinstance(given, Tokenizer):
            return given
        if isinstance(given, (str, os.PathLike)):
            return Tokenizer.read(Path(given))
        if hasattr(given, "backend_tokenizer"):  # of transformers
            return Tokenizer(given.backend_tokenizer)
        if not (hasattr(given, "encode") and hasattr(given, "decode")):
            raise LoadError(f"tokenizer: one of the package tokenizers expected, got {given!r}")
        return Tokenizer(given)

    @staticmethod
    def read(path: Path) -> Tokenizer:
        """The one in a file. Raises LoadError, also without the package."""
        try:
            package = import_module("tokenizers")
        except ModuleNotFoundError as error:
            raise LoadError(
                f"{path}: needs the package tokenizers: pip install 'ekiden[llm]'"
            ) from error
        try:
            return Tokenizer(package.Tokenizer.from_file(str(path)))
        except Exception as error:  # the package raises nothing narrower
            raise LoadError(f"{path}: {error}") from error

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, with those that begin one."""
        found: list[int] = self.inner.encode(text).ids
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without those that only say something about it."""
        return str(self.inner.decode(list(tokens), skip_special_tokens=True))


def read_tokenizer(path: str | os.PathLike[str]) -> Tokenizer | None:
    """The tokenizer that lies beside a checkpoint; None where there is none, or its package is not
    installed. Raises LoadError for a broken one."""
    folder = Path(path)
    file = (folder if folder.is_dir() else folder.parent) / FILE
    return Tokenizer.read(file) if file.is_file() and find_spec("tokenizers") else None


class Pieces:
    """An answer as text while it is made. Tokens are parts of letters, and what a letter looks like
    may depend on those before it: a piece is what decoding some of the last tokens gives more.
    What may be the beginning of a text that stops it is held back.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, prompt: Sequence[int], stops: Sequence[str] = ()
    ) -> None:
        self._tokenizer, self._stops = tokenizer, stops
        self._tokens = list(prompt[-8:])
        self._begin, self._end = 0, len(self._tokens)
        self._held = ""
        self.has_stopped = False

    def add(self, token: int) -> str:
        """What can be shown now."""
        self._tokens.append(token)
        return self._shown(self._decoded(is_last=False))

    def _decoded(self, is_last: bool) -> str:
        if self._tokenizer is None:
            return ""
        before = self._tokenizer.decode(self._tokens[self._begin : self._end])
        after = self._tokenizer.decode(self._tokens[self._begin :])
        if len(after) <= len(before) or (after.endswith(BROKEN) and not is_last):
            return ""
        self._begin, self._end = self._end, len(self._tokens)
        return after[len(before) :]

    def _shown(self, text: str) -> str:
        self._held += text
        found = [at for at in (self._held.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.has_stopped = True
            made, self._held = self._held[: min(found)], ""
            return made
        keep = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        made, self._held = self._held[:cut], self._held[cut:]
        return made

    def rest(self) -> str:
        """What was held back, at the end."""
        if self.has_stopped:
            return ""
        made = self._shown(self._decoded(is_last=True))
        if not self.has_stopped:
            made, self._held = made + self._held, ""
        return made


def _overlap(text: str, stop: str) -> int:
    """How much of the end of a text is the beginning of another."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
