"""Tokenizers from files of others: what their package refuses is an error of Ekiden's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ekiden.llm.tokenizer import Tokenizer
from ekiden.runtime.errors import InputError

pytest.importorskip("tokenizers", reason="needs the package tokenizers")


def _file(folder: Path, **changes: object) -> Path:
    fields: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None,
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [], "unk_token": None},
        **changes,
    }  # fmt: skip
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(fields))
    return path


def test_pattern_that_backtracks_without_end_refuses_the_prompt(tmp_path: Path) -> None:
    """The package panics at its limit of retries, with what is no Exception."""
    pattern = {"type": "Replace", "pattern": {"Regex": "(a+)+b"}, "content": "c"}
    tokenizer = Tokenizer.read(_file(tmp_path, normalizer=pattern))
    assert tokenizer.encode("ab") == []
    with pytest.raises(InputError, match="prompt: the tokenizer refuses it: .*retry-limit"):
        tokenizer.encode("a" * 60)
    assert tokenizer.encode("aab") == []
