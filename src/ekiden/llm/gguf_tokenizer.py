"""Conversion of a GGUF file's tokenizer to one of the package tokenizers.

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
from ekiden.llm.tokenizer import Tokenizer, convert_tokenizer_errors
from ekiden.runtime.errors import LoadError

__all__ = ["build_gguf_tokenizer", "merge_pairs"]

Package = Any
"""The package tokenizers, and what is of it: it has no types."""
METASPACE_CHAR = "\u2581"
"""A space in tokens of SentencePiece."""
UNKNOWN_TYPE, CONTROL_TYPE, USER_DEFINED_TYPE = 2, 3, 4
"""Types of tokens: for what has no other, those that only say something about a text, and those
that stand for themselves before a text is cut. Others are as the kind has them."""
_GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_GPT4_PATTERN_TEMPLATE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLIT_PATTERNS: Mapping[str, tuple[str, ...]] = {
    "gpt-2": (_GPT2_PATTERN,),
    "smollm": (r"\p{N}", _GPT2_PATTERN),
    "starcoder": (r"\p{N}", _GPT2_PATTERN),
    "llama-bpe": (_GPT4_PATTERN_TEMPLATE.format("{1,3}"),),
    "qwen2": (_GPT4_PATTERN_TEMPLATE.format(""),),
}
"""`ggml.pre` -> the expressions that cut a text, one after the other."""
IGNORE_MERGES_KINDS = ("llama-bpe",)
"""Those of which a word that is a token is not cut."""
BOS_KINDS = ("llama", "llama-bpe")
"""Kinds, or ways to cut, of which texts begin with a token where the file does not say."""


class _TokenizerEntries:
    """Validated tokenizer entries of a GGUF file."""

    def __init__(self, path: Path, values: Mapping[str, object]) -> None:
        self.path, self.given = path, values
        self.tokens = self.string_list("ggml.tokens")

    def load_error(self, name: str, message: str) -> LoadError:
        return LoadError(f"{self.path}: 'tokenizer.{name}': {message}")

    def string_list(self, name: str) -> list[str]:
        """Return a list of strings. Raises `load_error` if it is missing or invalid."""
        value = self.given.get(name)
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise self.load_error(name, "a list of texts expected")
        return value

    def number_list(self, name: str, default: float) -> list[float]:
        """Return one number per token."""
        value = self.given.get(name)
        if value is None:
            return [default] * len(self.tokens)
        if not isinstance(value, np.ndarray) or value.shape != (len(self.tokens),):
            raise self.load_error(name, f"{len(self.tokens)} numbers expected, one for each token")
        return [float(number) for number in value]

    def token_id(self, name: str) -> int | None:
        """Return the number of a special token; None if there is none."""
        token_id = self.given.get(f"ggml.{name}_token_id")
        if token_id is None:
            return None
        if not isinstance(token_id, int) or not 0 <= token_id < len(self.tokens):
            count = len(self.tokens)
            raise self.load_error(
                f"ggml.{name}_token_id", f"one of {count} tokens expected, got {token_id}"
            )
        return token_id

    def string(self, name: str, default: str = "") -> str:
        """Return a text, or the default if it is missing. Raises `load_error` if it is no
        text.
        """
        value = self.given.get(name, default)
        if not isinstance(value, str):
            raise self.load_error(name, "a text expected")
        return value

    def boolean(self, name: str, default: bool) -> bool:
        return bool(self.given.get(f"ggml.{name}", default))

    @property
    def vocabulary(self) -> dict[str, int]:
        return {token: n for n, token in enumerate(self.tokens)}


def merge_pairs(tokens: Sequence[str], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Return every pair of tokens whose concatenation is a token, the likeliest first; ties in
    token order.
    """
    number = {token: n for n, token in enumerate(tokens)}
    # a token may be a whole text: cuts are where both parts have the length of some token
    lengths = {len(token) for token in tokens} - {0}

    def iter_splits() -> Iterator[tuple[float, int, int, int]]:
        """Yield (order, whole, left and right token numbers) for every way to split each token."""
        for n, token in enumerate(tokens):
            for cut in lengths:
                if len(token) - cut not in lengths:
                    continue
                left_id, right = number.get(token[:cut]), number.get(token[cut:])
                if left_id is not None and right is not None:
                    # SentencePiece joins the pair of highest score first; merge lists are in order
                    # of priority.
                    yield -scores[n], n, left_id, right

    return [(tokens[left_id], tokens[right]) for _, _, left_id, right in sorted(iter_splits())]


def _configure_metaspace(
    package: Package, entries: _TokenizerEntries, tokenizer: Package
) -> Package:
    """Configure a tokenizer to mark spaces, with one before the text."""
    begins = entries.boolean("add_space_prefix", True)
    normalizers, decoders = package.normalizers, package.decoders
    prefix = [normalizers.Prepend(METASPACE_CHAR)] if begins else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", METASPACE_CHAR)])
    # Bytes must become characters before the texts of tokens are joined.
    decoder_steps = [
        decoders.Replace(METASPACE_CHAR, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    # The decoder strips the space that the normalizer put before the text.
    tokenizer.decoder = decoders.Sequence(
        [*decoder_steps, *([decoders.Strip(" ", 1, 0)] if begins else [])]
    )
    return tokenizer


def _build_score_bpe(package: Package, entries: _TokenizerEntries) -> Package:
    unknown = entries.token_id("unknown")
    model = package.models.BPE(
        entries.vocabulary,
        merge_pairs(entries.tokens, entries.number_list("ggml.scores", 0.0)),
        unk_token=None if unknown is None else entries.tokens[unknown],
        byte_fallback=True,
        fuse_unk=True,
    )
    return _configure_metaspace(package, entries, package.Tokenizer(model))


def _build_merge_list_bpe(package: Package, entries: _TokenizerEntries) -> Package | None:
    """Build a BPE tokenizer from a merge list; None for an unknown pre-tokenizer."""
    how = entries.string("ggml.pre", "gpt-2")
    if how not in SPLIT_PATTERNS:
        return None
    merges = []
    for merge_text in entries.string_list("ggml.merges"):
        left_token, space, right = merge_text.partition(" ")
        if not space:
            raise entries.load_error(
                "ggml.merges", f"two tokens and a space expected, got '{merge_text}'"
            )
        merges.append((left_token, right))
    cuts = package.pre_tokenizers
    model = package.models.BPE(entries.vocabulary, merges, ignore_merges=how in IGNORE_MERGES_KINDS)
    tokenizer = package.Tokenizer(model)
    splitters = [cuts.Split(package.Regex(pattern), "isolated") for pattern in SPLIT_PATTERNS[how]]
    letters = cuts.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = cuts.Sequence([*splitters, letters])
    tokenizer.decoder = package.decoders.ByteLevel()
    return tokenizer


def _build_unigram(package: Package, entries: _TokenizerEntries) -> Package:
    """Build a unigram tokenizer."""
    scored = [*zip(entries.tokens, entries.number_list("ggml.scores", 0.0), strict=True)]
    model = package.models.Unigram(scored, entries.token_id("unknown"), byte_fallback=True)
    tokenizer = _configure_metaspace(package, entries, package.Tokenizer(model))
    table = entries.given.get("ggml.precompiled_charsmap")
    if isinstance(table, np.ndarray):
        first = package.normalizers.Precompiled(table.astype(np.uint8).tobytes())
        tokenizer.normalizer = package.normalizers.Sequence([first, tokenizer.normalizer])
    return tokenizer


TOKENIZER_BUILDERS: Mapping[str, Callable[[Package, _TokenizerEntries], Package | None]] = {
    "llama": _build_score_bpe,
    "gpt2": _build_merge_list_bpe,
    "t5": _build_unigram,
}
"""By `ggml.model`; None for one whose texts are cut in a way that is not known."""


def _add_special_tokens(package: Package, entries: _TokenizerEntries, tokenizer: Package) -> None:
    """Add begin and end tokens to texts, as the file or the tokenizer kind specifies."""
    kind, how = entries.string("ggml.model"), entries.string("ggml.pre")
    first = entries.boolean("add_bos_token", kind in BOS_KINDS or how in BOS_KINDS)
    last = entries.boolean("add_eos_token", kind == "t5")
    begin = entries.token_id("bos") if first else None
    end = entries.token_id("eos") if last else None
    named = [(entries.tokens[n], n) for n in (begin, end) if n is not None]
    if not named:
        return
    end_tokens = [None if n is None else entries.tokens[n] for n in (begin, end)]
    single = [piece for piece in (end_tokens[0], "$A", end_tokens[1]) if piece is not None]
    tokenizer.post_processor = package.processors.TemplateProcessing(single, None, named)


def build_gguf_tokenizer(checkpoint: GGUFCheckpoint) -> Tokenizer | None:
    """Return a file's tokenizer; None if there is none, or its kind is unknown. Requires the
    package tokenizers. Raises LoadError for a broken one.
    """
    entry_values = checkpoint.tokenizer
    if entry_values.get("ggml.model") not in TOKENIZER_BUILDERS:
        return None
    package = import_module("tokenizers")
    entries = _TokenizerEntries(checkpoint.path, entry_values)
    with convert_tokenizer_errors(LoadError, f"{checkpoint.path}: tokenizer"):
        inner = TOKENIZER_BUILDERS[entries.string("ggml.model")](package, entries)
        if inner is None:
            return None
        kinds = entries.number_list("ggml.token_type", 1)
        for kind, add in ((USER_DEFINED_TYPE, inner.add_tokens), (CONTROL_TYPE,
                                                                  inner.add_special_tokens),
                          (UNKNOWN_TYPE, inner.add_special_tokens)):  # fmt: skip
            named = (token for token, n in zip(entries.tokens, kinds, strict=True) if n == kind)
            add([package.AddedToken(token, normalized=False) for token in named])
        _add_special_tokens(package, entries, inner)
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown"}
    numbers = {name: entries.token_id(key_name) for name, key_name in names.items()}
    settings = {name: entries.tokens[n] for name, n in numbers.items() if n is not None}
    return Tokenizer(inner, {**settings, **_chat_template_settings(entries)})


def _chat_template_settings(entries: _TokenizerEntries) -> dict[str, object]:
    """Return a file's chat template: a text, or several by names, of which the unnamed one is
    "default".
    """
    prefix = "chat_template"
    keys = [key for key in entries.given if key == prefix or key.startswith(f"{prefix}.")]
    templates = {key[len(prefix) + 1 :] or "default": entries.string(key) for key in keys}
    templates = {name: template for name, template in templates.items() if template}
    if not templates:
        return {}
    is_single = list(templates) == ["default"]
    return {"chat_template": templates["default"] if is_single else templates}
