"""Tokenizer of a model, and incremental detokenizer of its answers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from ekiden.llm.chat_template import find_chat_template, render_chat
from ekiden.llm.stop_filter import StopFilter
from ekiden.runtime.cached_property import cached_property
from ekiden.runtime.errors import EkidenError, InputError, LoadError

__all__ = ["FILE", "Detokenizer", "Tokenizer", "convert_tokenizer_errors"]

REPLACEMENT_CHAR = "\ufffd"
"""What stands for bytes that are no letter yet."""
PROMPT_TAIL_TOKENS = 8
"""Tokens of a prompt on which the look of an answer's first letters may depend."""
FILE, SETTINGS, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
SPECIAL_TOKENS, NAMED_TEMPLATES = "special_tokens_map.json", "additional_chat_templates"


class Tokenizer:
    """Tokenizer of the package tokenizers; `settings` are those of `tokenizer_config.json`,
    including the chat template.
    """

    def __init__(
        self,
        inner: Any,  # noqa: ANN401  # of a package without types
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.inner, self.settings = inner, settings or {}

    @staticmethod
    def of(source: Any) -> Tokenizer | None:  # noqa: ANN401  # of packages without types
        """Convert a user's tokenizer: one of the package, or its file. Raises LoadError."""
        if source is None or isinstance(source, Tokenizer):
            return source
        if isinstance(source, (str, os.PathLike)):
            return Tokenizer.read(Path(source))
        if hasattr(source, "backend_tokenizer"):  # of transformers
            template = getattr(source, "chat_template", None)
            return Tokenizer(
                source.backend_tokenizer, {**source.special_tokens_map, "chat_template": template}
            )
        if not (hasattr(source, "encode") and hasattr(source, "decode")):
            raise LoadError(f"tokenizer: one of the package tokenizers expected, got {source!r}")
        return Tokenizer(source)

    @staticmethod
    def read(path: Path) -> Tokenizer:
        """Load a tokenizer file. Raises LoadError, also without the package."""
        try:
            package = import_module("tokenizers")
        except ModuleNotFoundError as error:
            raise LoadError(
                f"{path}: needs the package tokenizers: pip install 'ekiden[llm]'"
            ) from error
        with convert_tokenizer_errors(LoadError, str(path)):
            inner = package.Tokenizer.from_file(str(path))
        return Tokenizer(inner, _load_settings(path.parent))

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, including begin tokens. Raises InputError for an unpaired
        surrogate.
        """
        try:
            # Lone surrogates have no UTF-8 form, which the package needs.
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"prompt: no text: {error}") from error
        return self._encode_text(text)

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Return the token ids of a text pair, joined by the tokenizer, and the segment of each.
        Raises InputError for a text that it refuses.
        """
        with convert_tokenizer_errors(InputError, "pair: the tokenizer refuses it"):
            for text in (first, second):
                text.encode()  # unpaired surrogates have no UTF-8 form
            encoding = self.inner.encode(first, second)
            return list(encoding.ids), list(encoding.type_ids)

    def conversation(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[int]:
        """Return the token ids of messages ("role", "content") up to the position at which the
        response begins, by the model's chat template. Raises InputError without a template, and for
        messages that it rejects, LoadError without the package jinja2.
        """
        template = find_chat_template(self.settings, tools is not None)
        return self.encode_rendered(render_chat(template, self.settings, messages, tools))

    def encode_rendered(self, text: str) -> list[int]:
        """Return the token ids of a rendered chat template, which contains its special tokens."""
        return self._encode_text(text, add_special_tokens=False)

    def _encode_text(self, text: str, **options: bool) -> list[int]:
        """Return the token ids of a text."""
        batch = getattr(self.inner, "encode_batch", None)
        with convert_tokenizer_errors(InputError, "prompt: the tokenizer refuses it"):
            if batch is None:
                return list(self.inner.encode(text, **options).ids)
            return list(batch([text], **options)[0].ids)

    @cached_property
    def special_tokens(self) -> Mapping[str, int]:
        """Return the ids of special tokens, which are omitted from decoded text."""
        list_added_tokens = getattr(self.inner, "get_added_tokens_decoder", None)
        added_tokens: Mapping[int, Any] = {} if list_added_tokens is None else list_added_tokens()
        return {str(added.content): n for n, added in added_tokens.items() if added.special}

    def token_bytes(self, count: int) -> list[bytes | None]:
        """Return the bytes of each token; None for special tokens."""
        special = set(self.special_tokens.values())
        names = (None if n in special else self.inner.id_to_token(n) for n in range(count))
        return [None if name is None else self._name_to_bytes(name) for name in names]

    @cached_property
    def _name_to_bytes(self) -> Callable[[str], bytes]:
        decoder = self.inner.decoder
        has_letters = decoder is not None and b"ByteLevel" in decoder.__getstate__()
        return _byte_level_to_bytes if has_letters else _sentencepiece_to_bytes

    def token_data(self, token: int) -> bytes:
        """Return the bytes of a token; for a special token the bytes of its name."""
        name = self.inner.id_to_token(token) or ""
        return name.encode() if name in self.special_tokens else self._name_to_bytes(name)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens. Raises InputError if the
        tokenizer's decoder fails.
        """
        with convert_tokenizer_errors(InputError, "decode: the tokenizer refuses it"):
            return str(self.inner.decode(list(tokens), skip_special_tokens=True))


@contextmanager
def convert_tokenizer_errors(kind: type[EkidenError], what: str) -> Iterator[None]:
    """Translate exceptions of the package tokenizers to an exception class, prefixed with `what`.

    The package raises nothing narrower than Exception. A pattern that reaches its limit of retries,
    and other failures of its Rust code, are panics: no Exception, but of a class that no module
    exports, and would end a server's thread.
    """
    try:
        yield
    except EkidenError:
        raise
    except BaseException as error:
        # pyo3 raises Rust panics as BaseException.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise kind(f"{what}: {error}") from error


def _byte_level_to_bytes(name: str) -> bytes:
    """Return the bytes of a token in GPT-2's byte-level alphabet."""
    return b"".join(
        bytes([BYTE_LEVEL_CHARS[c]]) if c in BYTE_LEVEL_CHARS else c.encode() for c in name
    )


def _sentencepiece_to_bytes(name: str) -> bytes:
    """Return the bytes of a SentencePiece token: U+2581 is a space, <0x0A> a byte."""
    if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        return bytes([int(name[3:5], 16)])
    return name.replace("\u2581", " ").encode()


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's byte alphabet: printable characters for themselves, the others from 256 on."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    unprintable = [byte for byte in range(256) if byte not in shown]
    return {chr(b): b for b in shown} | {chr(256 + n): b for n, b in enumerate(unprintable)}


BYTE_LEVEL_CHARS = _byte_alphabet()


def _load_settings(folder: Path) -> dict[str, Any]:
    """Load a tokenizer's settings and chat template. Raises LoadError."""
    settings: dict[str, Any] = {}
    for path in (folder / SPECIAL_TOKENS, folder / SETTINGS):  # the second prevails
        fields = _read_json_object(path) if path.is_file() else {}
        settings |= {name: value for name, value in fields.items() if value is not None}
    template = folder / TEMPLATE
    if template.is_file():
        settings["chat_template"] = _read_text(template)
    named = sorted((folder / NAMED_TEMPLATES).glob("*.jinja"))
    if named and isinstance(settings.get("chat_template", ""), str):
        templates = {path.stem: _read_text(path) for path in named}
        if "chat_template" in settings:
            templates["default"] = settings["chat_template"]
        settings["chat_template"] = templates
    return settings


def _read_text(path: Path) -> str:
    """Read a text file. Raises LoadError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"{path}: {error}") from error


def _read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises LoadError."""
    try:
        fields = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{path}: {error}") from error
    if not isinstance(fields, dict):
        raise LoadError(f"{path}: an object expected, got {type(fields).__name__}")
    return fields


def _prompt_tail(tokenizer: Tokenizer | None, prompt: Sequence[int]) -> list[int]:
    """Return the last tokens of a prompt, starting at a character boundary: a byte decoder shows
    nothing after half a character.
    """
    count = PROMPT_TAIL_TOKENS
    while tokenizer is not None and count < len(prompt):
        if not tokenizer.decode(prompt[-count:]).startswith(REPLACEMENT_CHAR):
            break
        count *= 2
    return list(prompt[-count:])


class Detokenizer:
    """Incremental detokenizer: a response as text while it is generated. Tokens may be parts of
    characters, and a character's form may depend on those before it: a piece is what decoding
    the last tokens adds. A suffix that may be the beginning of a stop text is held back.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        prompt: Sequence[int],
        stops: Sequence[str] = (),
        marks: Sequence[str] = (),
    ) -> None:
        """Create a detokenizer.

        Args:
            tokenizer: The tokenizer; None gives empty texts.
            prompt: The tokens before the response.
            stops: Texts before which the response ends.
            marks: Special tokens that the text shows, as those by which calls of functions begin.
        """
        self._tokenizer, self._filter = tokenizer, StopFilter(stops)
        special_tokens = {} if tokenizer is None or not marks else tokenizer.special_tokens
        self._marks = {special_tokens[mark]: mark for mark in marks if mark in special_tokens}
        self._tokens = _prompt_tail(tokenizer, prompt)
        self._begin, self._end = 0, len(self._tokens)

    @property
    def has_stopped(self) -> bool:
        """Return whether a stop string has ended the response."""
        return self._filter.has_stopped

    def add(self, token: int) -> str:
        """Append a token, and return the text that can be emitted."""
        if token in self._marks:
            shown = self._decode_new(is_last=True) + self._marks[token]
            self._tokens, self._begin, self._end = [], 0, 0
            return self._filter.feed(shown)
        self._tokens.append(token)
        return self._filter.feed(self._decode_new(is_last=False))

    def adds_stop(self, token: int) -> bool:
        """Append a token, and return whether a stop string has ended the response."""
        self.add(token)
        return self.has_stopped

    def _decode_new(self, is_last: bool) -> str:
        """Return the text that the newest tokens add, holding back incomplete characters unless
        `is_last`.
        """
        if self._tokenizer is None:
            return ""
        # Decoders depend on neighbours (spaces, byte fallback): only the difference of two
        # decodings is the new text.
        before = self._tokenizer.decode(self._tokens[self._begin : self._end])
        after = self._tokenizer.decode(self._tokens[self._begin :])
        if is_last and after.endswith(
            REPLACEMENT_CHAR
        ):  # a decoder of bytes may break those before it too
            remainder = self._tokenizer.decode(self._tokens[self._end :])
            return remainder.rstrip(REPLACEMENT_CHAR) + REPLACEMENT_CHAR if remainder else ""
        if len(after) <= len(before) or after.endswith(REPLACEMENT_CHAR):
            return ""
        self._begin, self._end = self._end, len(self._tokens)
        return after[len(before) :]

    def rest(self) -> str:
        """Return the held-back text at the end of the response."""
        if self.has_stopped:
            return ""
        return self._filter.feed(self._decode_new(is_last=True)) + self._filter.flush()
