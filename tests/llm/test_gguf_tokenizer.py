"""Tokenizers that GGUF files hold: as those they were written from, and as SentencePiece cuts."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import pytest

from ekiden.llm.checkpoint_files import find_tokenizer
from ekiden.llm.gguf import GGUFCheckpoint, write_gguf
from ekiden.llm.gguf_tokenizer import merge_pairs
from ekiden.llm.tokenizer import Tokenizer
from ekiden.runtime.errors import LoadError

tokenizers: Any = pytest.importorskip("tokenizers", reason="needs the package tokenizers")

TEXTS = (
    "The quick brown fox, and 12345 dogs.", "  two  spaces\n\n\tand a tab ", "", " ",
    "wörter ünd 漢字 🎉 don't WE'LL", "a<|end|>b", "x = [i**2 for i in range(10)]\r\n",
)  # fmt: skip
CORPUS = [*TEXTS, "the end of the other thing there, then that one and another one again"] * 3
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6


def made(path: Path, **entries: object) -> Tokenizer | None:
    """The tokenizer of a file with these entries."""
    inputs = {f"tokenizer.{name.replace('__', '.')}": value for name, value in entries.items()}
    write_gguf(path, {"general.architecture": "llama", **inputs}, [])
    return find_tokenizer(path, GGUFCheckpoint(path))


def byte_level(pattern: str) -> Any:  # noqa: ANN401  # of a package without types
    """A tokenizer of pairs of bytes, trained."""
    cuts = tokenizers.pre_tokenizers
    result = tokenizers.Tokenizer(tokenizers.models.BPE())
    words = cuts.Split(tokenizers.Regex(pattern), "isolated")
    result.pre_tokenizer = cuts.Sequence([words, cuts.ByteLevel(False, use_regex=False)])
    result.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<|begin|>", "<|end|>"], show_progress=False,
        initial_alphabet=cuts.ByteLevel.alphabet(),
    )  # fmt: skip
    result.train_from_iterator(CORPUS, trainer)
    return result


def listed(inner: Any) -> dict[str, object]:  # noqa: ANN401  # as above
    """Its entries."""
    state = json.loads(inner.to_str())["model"]
    tokens = sorted(state["vocab"], key=state["vocab"].get)
    types = [CONTROL if token.startswith("<|") else NORMAL for token in tokens]
    merges = [item if isinstance(item, str) else " ".join(item) for item in state["merges"]]
    return {"ggml__tokens": tokens, "ggml__token_type": np.array(types, np.int32),
            "ggml__merges": merges}  # fmt: skip


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_bpe_matches_original(tmp_path: Path, text: str) -> None:
    inner = byte_level(GPT2)
    result = made(
        tmp_path / "a.gguf", ggml__model="gpt2", ggml__pre="gpt-2", **listed(inner),
        ggml__bos_token_id=0, ggml__add_bos_token=True, chat_template="{{ bos_token }}",
    )  # fmt: skip
    assert result is not None
    tokens = result.encode(text)
    assert tokens == [0, *inner.encode(text).ids]
    assert result.decode(tokens) == text.replace("<|end|>", "")
    assert result.conversation([]) == [0], "the template is the file's"
    kept = result.token_bytes(inner.get_vocab_size())
    assert kept[0] is None, "it only says something about a text"
    assert b"".join(kept[n] or b"" for n in tokens) == text.replace("<|end|>", "").encode()


def test_named_chat_templates_are_read(tmp_path: Path) -> None:
    entries = {"ggml__model": "gpt2", "ggml__pre": "gpt-2", **listed(byte_level(GPT2))}
    named = {"chat_template__tool_use": "T", "chat_template": "D", "chat_templates": ["tool_use"]}
    tokenizer = made(tmp_path / "a.gguf", **entries, **named)
    assert tokenizer is not None
    assert tokenizer.settings["chat_template"] == {"default": "D", "tool_use": "T"}


PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256))]
PARTS = "▁ t h e r n d o ▁t ▁th the ▁the re er here there ▁there nd ▁o one ▁one on en ▁▁".split()


def joined(text: str, score: dict[str, float]) -> list[str]:
    """As SentencePiece does it: the likeliest pair is joined as long as there is one, the first of
    equal ones; what is no token is its bytes."""
    parts = list("▁" + text.replace(" ", "▁"))
    while True:
        pairs = [a + b for a, b in itertools.pairwise(parts)]
        known = [(-score[p], n) for n, p in enumerate(pairs) if p in score]
        if not known:
            break
        _, n = min(known)
        parts[n : n + 2] = [pairs[n]]
    return [
        piece
        for part in parts
        for piece in ([part] if part in score else [f"<0x{b:02X}>" for b in part.encode()])
    ]


@pytest.mark.parametrize("seed", range(8))
def test_score_bpe_matches_greedy_merging(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(PARTS))
    score = {part: -float(n) for part, n in zip(PARTS, order, strict=True)}
    tokens = [*PIECES, *PARTS]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(PARTS)]
    scores = [0.0] * len(PIECES) + [score[part] for part in PARTS]
    result = made(
        tmp_path / "a.gguf", ggml__model="llama", ggml__tokens=tokens,
        ggml__scores=np.array(scores, np.float32), ggml__token_type=np.array(types, np.int32),
        ggml__bos_token_id=1, ggml__eos_token_id=2, ggml__unknown_token_id=0,
    )  # fmt: skip
    assert result is not None
    text = "".join(rng.choice(list("therndo  é漢"), 40))
    numbers = result.encode(text)
    assert numbers[0] == 1, "texts begin with a token"
    assert [tokens[n] for n in numbers[1:]] == joined(text, score)
    assert result.decode(numbers) == text


def test_token_may_be_as_long_as_a_text() -> None:
    """Pairs are looked for where there can be any, not at each of its letters."""

    class Counted(str):
        cuts = 0

        def __getitem__(self, at: SupportsIndex | slice) -> str:
            Counted.cuts += 1
            return str(self)[at]

    tokens = ["a", "b", "ab", "aab", Counted("ab" * 50000)]
    assert merge_pairs(tokens, [0.0, 0.0, 2.0, 1.0, 3.0]) == [("a", "b"), ("a", "ab")]
    assert not Counted.cuts


def test_unigram_matches_tokenizers(tmp_path: Path) -> None:
    inner = tokenizers.Tokenizer(tokenizers.models.Unigram())
    inner.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    )
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=120, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    inner.train_from_iterator(CORPUS, trainer)
    pairs = json.loads(inner.to_str())["model"]["vocab"]
    result = made(
        tmp_path / "a.gguf", ggml__model="t5", ggml__tokens=[name for name, _ in pairs],
        ggml__scores=np.array([score for _, score in pairs], np.float32),
        ggml__token_type=np.array([UNKNOWN] + [NORMAL] * (len(pairs) - 1), np.int32),
        ggml__unknown_token_id=0, ggml__add_eos_token=False,
    )  # fmt: skip
    assert result is not None
    for text in CORPUS:
        assert result.encode(text) == inner.encode(text).ids


def test_unknown_tokenizer_kind_gives_none(tmp_path: Path) -> None:
    assert made(tmp_path / "a.gguf", ggml__model="rwkv") is None
    assert made(tmp_path / "b.gguf") is None
    pre = made(tmp_path / "c.gguf", ggml__model="gpt2", ggml__pre="other", ggml__tokens=["a"])
    assert pre is None


def test_broken_tokenizer_entries_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    for entries, message in (
        ({}, "'tokenizer.ggml.tokens': a list of texts expected"),
        ({"ggml__tokens": ["a"], "ggml__scores": np.zeros(2, np.float32)},
         "'tokenizer.ggml.scores': 1 numbers expected, one for each token"),
        ({"ggml__tokens": ["a"], "ggml__bos_token_id": 7},
         "'tokenizer.ggml.bos_token_id': one of 1 tokens expected, got 7"),
    ):  # fmt: skip
        with pytest.raises(LoadError) as caught:
            made(path, ggml__model="llama", **entries)
        assert str(caught.value) == f"{path}: {message}"
