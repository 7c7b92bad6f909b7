"""The prompt cache of served models: a server begins prompts where an earlier one has been."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from serving import Running, serving
from soak_texts import TEMPLATE

from ekiden.llm.safetensors import write_safetensors

PAGES = 3
"""That the prompt fills."""


def write_model(folder: Path) -> None:
    """Write a served model with its checkpoint, whose tokens are characters."""
    tokenizers = pytest.importorskip("tokenizers", reason="the checkpoint has a tokenizer")
    from tiny_models import tiny  # soak_texts has put its folder on the path

    checkpoint = tiny("llama", vocab_size=128)
    folder.mkdir(parents=True)
    write_safetensors(folder / "model.safetensors", dict(checkpoint.tensors))
    config = {**checkpoint.config, "torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config))
    letters = {chr(n): n for n in range(128)}
    tokenizers.Tokenizer(tokenizers.models.BPE(letters, [])).save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "model.toml").write_text('[text]\ncheckpoint = "."\nsequences = 2\n')


def ask(server: Running) -> tuple[str, dict[str, int]]:
    """The answer to a long prompt, and the tokens of prompts by source."""
    body = {"model": "talk", "messages": [{"role": "user", "content": "hello " * 30}],
            "temperature": 0, "max_tokens": 4, "ignore_eos": True}  # fmt: skip
    answer = server.ask("POST", "/v1/chat/completions", body)
    assert answer.status == 200, answer.data
    text = server.ask("GET", "/metrics").data.decode()
    row = r'ekiden_prompt_tokens_total\{model="talk",source="(\w+)"\} (\d+)'
    counts = {source: int(count) for source, count in re.findall(row, text)}
    return answer.json["choices"][0]["message"]["content"], counts


def test_later_server_reads_prompts_from_the_cache(tmp_path: Path) -> None:
    pytest.importorskip("jinja2", reason="the package jinja2 renders templates")
    write_model(tmp_path / "models" / "talk")
    answers = []
    for _ in range(2):
        with serving(tmp_path / "models", prompt_cache=str(tmp_path / "cache")) as server:
            answers.append(ask(server))
        while len(list(tmp_path.rglob("*.page"))) < PAGES:  # they are written behind the answers
            time.sleep(0.01)
    (first, computed), (second, restored) = answers
    assert first == second
    assert computed["disk"] == 0 and computed["memory"] == 0
    tokens = 64 * PAGES
    assert restored["disk"] == tokens and restored["computed"] == computed["computed"] - tokens
