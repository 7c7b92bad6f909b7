"""The tokenizer that a GGUF file holds, as one of the package tokenizers.

    ggml.model   kind
    "llama"      pairs are joined that make the likeliest token (BPE of SentencePiece); spaces are
                 low bars, what there is no token for is bytes
    "gpt2"       pairs are joined in the order of a list (BPE of bytes), within words by `ggml.pre`
    "t5"         the likeliest tokens of all ways to cut a text (unigram of SentencePiece)

Source: docs/gguf.md of ggml, src/llama-vocab.cpp of llama.cpp; T. Kudo, J. Richardson,
"SentencePiece", EMNLP 2018.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ekiden.llm.gguf import GGUFCheckpoint
from ekiden.llm.text import Tokenizer, refused_as
from ekiden.runtime.errors import LoadError

__all__ = ["joins", "tokenizer_of"]

Package = Any
"""The package tokenizers, and what is of it: it has no types."""
BAR = "\u2581"
"""A space in tokens of SentencePiece."""
UNKNOWN, CONTROL, DEFINED = 2, 3, 4
"""Types of tokens: for what has no other, those that only say something about a text, and those
that stand for themselves before a text is cut. Others are as the kind has them."""
_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LATER = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS: Mapping[str, tuple[str, ...]] = {
    "gpt-2": (_WORDS,),
    "smollm": (r"\p{N}", _WORDS),
    "starcoder": (r"\p{N}", _WORDS),
    "llama-bpe": (_LATER.format("{1,3}"),),
    "qwen2": (_LATER.format(""),),
}
"""`ggml.pre` -> the expressions that cut a text, one after the other."""
WHOLE = ("llama-bpe",)
"""Those of which a word that is a token is not cut."""
BEGINS = ("llama", "llama-bpe")
"""Kinds, or ways to cut, of which texts begin with a token where the file does not say."""


class _Entries:
    """What a file says of its tokenizer, checked."""

    def __init__(self, path: Path, given: Mapping[str, object]) -> None:
        self.path, self.given = path, given
        self.tokens = self.texts("ggml.tokens")

    def fail(self, name: str, message: str) -> LoadError:
        return LoadError(f"{self.path}: 'tokenizer.{name}': {message}")

    def texts(self, name: str) -> list[str]:
        """A list of texts. Raises what `fail` makes where it is none or missing."""
        found = self.given.get(name)
        if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
            raise self.fail(name, "a list of texts expected")
        return found

    def numbers(self, name: str, default: float) -> list[float]:
        """One for each token."""
        found = self.given.get(name)
        if found is None:
            return [default] * len(self.tokens)
        if not isinstance(found, np.ndarray) or found.shape != (len(self.tokens),):
            raise self.fail(name, f"{len(self.tokens)} numbers expected, one for each token")
        return [float(each) for each in found]

    def token(self, name: str) -> int | None:
        """The number of a token that has a meaning."""
        found = self.given.get(f"ggml.{name}_token_id")
        if found is None:
            return None
        if not isinstance(found, int) or not 0 <= found < len(self.tokens):
            count = len(self.tokens)
            raise self.fail(f"ggml.{name}_token_id", f"one of {count} tokens expected, got {found}")
        return found

    def text(self, name: str, default: str = "") -> str:
        """A text, or the default where it is missing. Raises what `fail` makes where it is none."""
        found = self.given.get(name, default)
        if not isinstance(found, str):
            raise self.fail(name, "a text expected")
        return found

    def truth(self, name: str, default: bool) -> bool:
        return bool(self.given.get(f"ggml.{name}", default))

    @property
    def vocabulary(self) -> dict[str, int]:
        return {token: n for n, token in enumerate(self.tokens)}


def joins(tokens: Sequence[str], scores: Sequence[float]) -> list[tuple[str, str]]:
    """All pairs of tokens that make one, the likeliest first; of one token, by their numbers."""
    number = {token: n for n, token in enumerate(tokens)}
    # a token may be a whole text: cuts are where both parts have the length of some token
    lengths = {len(token) for token in tokens} - {0}

    def pairs() -> Iterator[tuple[float, int, int, int]]:
        """(order, number of the whole, of its left and of its right part) for each way to cut each
        token.
        """
        for n, token in enumerate(tokens):
            for cut in lengths:
                if len(token) - cut not in lengths:
                    continue
                left, right = number.get(token[:cut]), number.get(token[cut:])
                if left is not None and right is not None:
                    yield -scores[n], n, left, right

    return [(tokens[left], tokens[right]) for _, _, left, right in sorted(pairs())]


def _bars(package: Package, entries: _Entries, made: Package) -> Package:
    """Spaces are bars, and there is one before a text."""
    begins = entries.truth("add_space_prefix", True)
    normalizers, decoders = package.normalizers, package.decoders
    prefix = [normalizers.Prepend(BAR)] if begins else []
    made.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", BAR)])
    parts = [decoders.Replace(BAR, " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*parts, *([decoders.Strip(" ", 1, 0)] if begins else [])])
    return made


def _joined_by_score(package: Package, entries: _Entries) -> Package:
    unknown = entries.token("unknown")
    model = package.models.BPE(
        entries.vocabulary,
        joins(entries.tokens, entries.numbers("ggml.scores", 0.0)),
        unk_token=None if unknown is None else entries.tokens[unknown],
        byte_fallback=True,
        fuse_unk=True,
    )
    return _bars(package, entries, package.Tokenizer(model))


def _joined_by_list(package: Package, entries: _Entries) -> Package | None:
    how = entries.text("ggml.pre", "gpt-2")
    if how not in WORDS:
        return None
    merges = []
    for each in entries.texts("ggml.merges"):
        left, space, right = each.partition(" ")
        if not space:
            raise entries.fail("ggml.merges", f"two tokens and a space expected, got '{each}'")
        merges.append((left, right))
    cuts = package.pre_tokenizers
    model = package.models.BPE(entries.vocabulary, merges, ignore_merges=how in WHOLE)
    made = package.Tokenizer(model)
    parts = [cuts.Split(package.Regex(each), "isolated") for each in WORDS[how]]
    letters = cuts.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = cuts.Sequence([*parts, letters])
    made.decoder = package.decoders.ByteLevel()
    return made


def _likeliest(package: Package, entries: _Entries) -> Package:
    scored = [*zip(entries.tokens, entries.numbers("ggml.scores", 0.0), strict=True)]
    model = package.models.Unigram(scored, entries.token("unknown"), byte_fallback=True)
    made = _bars(package, entries, package.Tokenizer(model))
    table = entries.given.get("ggml.precompiled_charsmap")
    if isinstance(table, np.ndarray):
        first = package.normalizers.Precompiled(table.astype(np.uint8).tobytes())
        made.normalizer = package.normalizers.Sequence([first, made.normalizer])
    return made


KINDS: Mapping[str, Callable[[Package, _Entries], Package | None]] = {
    "llama": _joined_by_score,
    "gpt2": _joined_by_list,
    "t5": _likeliest,
}
"""By `ggml.model`; None for one whose texts are cut in a way that is not known."""


def _add_ends(package: Package, entries: _Entries, made: Package) -> None:
    """Texts begin and end with a token, as the file says or the kind has it."""
    kind, how = entries.text("ggml.model"), entries.text("ggml.pre")
    first = entries.truth("add_bos_token", kind in BEGINS or how in BEGINS)
    last = entries.truth("add_eos_token", kind == "t5")
    begin = entries.token("bos") if first else None
    end = entries.token("eos") if last else None
    named = [(entries.tokens[n], n) for n in (begin, end) if n is not None]
    if not named:
        return
    parts = [None if n is None else entries.tokens[n] for n in (begin, end)]
    single = [each for each in (parts[0], "$A", parts[1]) if each is not None]
    made.post_processor = package.processors.TemplateProcessing(single, None, named)


def tokenizer_of(checkpoint: GGUFCheckpoint) -> Tokenizer | None:
    """The tokenizer of a file; None where it has none, or one of a kind that is not known. Needs
    the package tokenizers. Raises LoadError for one that is broken."""
    given = checkpoint.tokenizer
    if given.get("ggml.model") not in KINDS:
        return None
    package = import_module("tokenizers")
    entries = _Entries(checkpoint.path, given)
    with refused_as(LoadError, f"{checkpoint.path}: tokenizer"):
        made = KINDS[entries.text("ggml.model")](package, entries)
        if made is None:
            return None
        kinds = entries.numbers("ggml.token_type", 1)
        for kind, add in ((DEFINED, made.add_tokens), (CONTROL, made.add_special_tokens),
                          (UNKNOWN, made.add_special_tokens)):  # fmt: skip
            named = (token for token, n in zip(entries.tokens, kinds, strict=True) if n == kind)
            add([package.AddedToken(token, normalized=False) for token in named])
        _add_ends(package, entries, made)
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown"}
    numbers = {name: entries.token(each) for name, each in names.items()}
    settings = {name: entries.tokens[n] for name, n in numbers.items() if n is not None}
    if template := entries.text("chat_template"):
        settings["chat_template"] = template
    return Tokenizer(made, settings)
