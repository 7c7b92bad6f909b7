"""Texts and tokens: the tokenizer of a model, and its answer as text while it is made."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from ekiden.llm.chat_template import rendered, template_of
from ekiden.llm.stops import StopFilter
from ekiden.runtime.errors import EkidenError, InputError, LoadError

__all__ = ["FILE", "Pieces", "Tokenizer", "refused_as"]

BROKEN = "\ufffd"
"""What stands for bytes that are no letter yet."""
CONTEXT = 8
"""Tokens of a prompt on which the look of an answer's first letters may depend."""
FILE, SETTINGS, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"


class Tokenizer:
    """A tokenizer of the package tokenizers; `settings` are those of `tokenizer_config.json`, of
    which a chat template is one."""

    def __init__(
        self,
        inner: Any,  # noqa: ANN401  # of a package without types
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.inner, self.settings = inner, settings or {}

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
        with refused_as(LoadError, str(path)):
            inner = package.Tokenizer.from_file(str(path))
        return Tokenizer(inner, _settings(path.parent))

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, with those that begin one. Raises InputError for half a pair of
        surrogates, which is no letter."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"prompt: no text: {error}") from error
        return self._encoded(text)

    def conversation(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The tokens of messages ("role", "content") up to where the answer begins, by the model's
        own template, or else a line for each. Raises InputError for messages that the template
        refuses, LoadError for a template without the package jinja2."""
        template = template_of(self.settings)
        if template is None:
            lines = [f"{each['role']}: {each['content']}\n" for each in messages]
            return self.encode("".join([*lines, "assistant:"]))
        text = rendered(template, self.settings, messages)
        return self._encoded(text, add_special_tokens=False)

    def _encoded(self, text: str, **options: bool) -> list[int]:
        """Return the tokens of a text. A batch of one: the package gives Python's lock back for
        batches alone, and a long text takes seconds."""
        batch = getattr(self.inner, "encode_batch", None)
        with refused_as(InputError, "prompt: the tokenizer refuses it"):
            if batch is None:
                return list(self.inner.encode(text, **options).ids)
            return list(batch([text], **options)[0].ids)

    def token_bytes(self, count: int) -> list[bytes | None]:
        """The bytes of each token, None for those that only say something about a text."""
        special = {n for n, each in self.inner.get_added_tokens_decoder().items() if each.special}
        decoder = self.inner.decoder
        has_letters = decoder is not None and b"ByteLevel" in decoder.__getstate__()
        turn = _byte_level if has_letters else _plain_bytes
        names = (None if n in special else self.inner.id_to_token(n) for n in range(count))
        return [None if name is None else turn(name) for name in names]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without those that only say something about it. Raises InputError
        where the tokenizer's decoder fails."""
        with refused_as(InputError, "decode: the tokenizer refuses it"):
            return str(self.inner.decode(list(tokens), skip_special_tokens=True))


@contextmanager
def refused_as(kind: type[EkidenError], what: str) -> Iterator[None]:
    """Raise what the package tokenizers raises as an error of a kind, which begins with `what`.

    The package raises nothing narrower than Exception. A pattern that gives up at its limit of
    retries, and other failures of its Rust code, are panics: no Exception, of a class that no
    module has, which would end a server's thread.
    """
    try:
        yield
    except EkidenError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise kind(f"{what}: {error}") from error


def _byte_level(name: str) -> bytes:
    """A token whose letters stand for bytes, as GPT-2 writes them."""
    return b"".join(bytes([LETTERS[c]]) if c in LETTERS else c.encode() for c in name)


def _plain_bytes(name: str) -> bytes:
    """A token of SentencePiece: a low bar for a space, or a byte as <0x0A>."""
    if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        return bytes([int(name[3:5], 16)])
    return name.replace("\u2581", " ").encode()


def _letters() -> dict[str, int]:
    """The letters that stand for bytes: printable ones for themselves, others from 256 on."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in shown]
    return {chr(b): b for b in shown} | {chr(256 + n): b for n, b in enumerate(rest)}


LETTERS = _letters()


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / SETTINGS
    try:
        found = json.loads(path.read_text()) if path.is_file() else {}
    except ValueError as error:
        raise LoadError(f"{path}: {error}") from error
    template = folder / TEMPLATE
    if template.is_file():
        found["chat_template"] = template.read_text()
    return dict(found)


def _end_of(tokenizer: Tokenizer | None, prompt: Sequence[int]) -> list[int]:
    """The last tokens of a prompt, some of them, from the beginning of a letter on: a decoder of
    bytes shows none of those that follow half a letter."""
    count = CONTEXT
    while tokenizer is not None and count < len(prompt):
        if not tokenizer.decode(prompt[-count:]).startswith(BROKEN):
            break
        count *= 2
    return list(prompt[-count:])


class Pieces:
    """An answer as text while it is made. Tokens are parts of letters, and what a letter looks like
    may depend on those before it: a piece is what decoding some of the last tokens gives more.
    What may be the beginning of a text that stops it is held back.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, prompt: Sequence[int], stops: Sequence[str] = ()
    ) -> None:
        self._tokenizer, self._filter = tokenizer, StopFilter(stops)
        self._tokens = _end_of(tokenizer, prompt)
        self._begin, self._end = 0, len(self._tokens)

    @property
    def has_stopped(self) -> bool:
        """Whether the answer is over at one of the stops."""
        return self._filter.has_stopped

    def add(self, token: int) -> str:
        """What can be shown now."""
        self._tokens.append(token)
        return self._filter.add(self._decoded(is_last=False))

    def _decoded(self, is_last: bool) -> str:
        if self._tokenizer is None:
            return ""
        before = self._tokenizer.decode(self._tokens[self._begin : self._end])
        after = self._tokenizer.decode(self._tokens[self._begin :])
        if is_last and after.endswith(BROKEN):  # a decoder of bytes may break those before it too
            rest = self._tokenizer.decode(self._tokens[self._end :])
            return rest.rstrip(BROKEN) + BROKEN if rest else ""
        if len(after) <= len(before) or after.endswith(BROKEN):
            return ""
        self._begin, self._end = self._end, len(self._tokens)
        return after[len(before) :]

    def rest(self) -> str:
        """What was held back, at the end."""
        if self.has_stopped:
            return ""
        return self._filter.add(self._decoded(is_last=True)) + self._filter.rest()
