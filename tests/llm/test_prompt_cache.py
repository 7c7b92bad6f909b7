"""The prompt cache on disk: texts of later processes begin where earlier ones have been."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_models import tiny

from ekiden import llm
from ekiden.llm.prompt_cache import PromptCache, prompt_model_digest
from ekiden.runtime.errors import InputError

PROMPT = np.random.default_rng(1).integers(0, 97, 70).tolist()
ANSWER = llm.Sampling(max_tokens=6)
PROGRAM = """
import json, sys
from tiny_models import tiny
from ekiden import llm
prompt = json.loads(sys.argv[2])
model = llm.load(tiny("llama"), page=16, sequences=2, prompt_cache=sys.argv[1])
answer = model.engine.run([prompt], llm.Sampling(max_tokens=6))[0]
print(json.dumps([answer, model.engine.prompt_tokens]))
"""
TOKENS = 64
"""Of the prompt in whole pages, of which the last token is none."""


def answer_of_process(folder: Path, prompt: list[int]) -> tuple[list[int], dict[str, int]]:
    """The answer of a process of its own, and its prompt tokens by source."""
    command = [sys.executable, "-c", PROGRAM, str(folder), json.dumps(prompt)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    answer, counts = json.loads(done.stdout)
    return answer, counts


@pytest.fixture(scope="module")
def plain() -> llm.Model:
    return llm.load(tiny("llama"), page=16, sequences=2)


def load(folder: Path, **options: int) -> llm.Model:
    return llm.load(tiny("llama"), page=16, sequences=2, prompt_cache=folder, **options)


def pages(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.page"))


def test_two_processes_share_the_pages_of_a_prompt(plain: llm.Model, tmp_path: Path) -> None:
    expected = plain.engine.run([PROMPT], ANSWER)[0]
    first = answer_of_process(tmp_path / "cache", PROMPT)
    assert first == (expected, {"computed": 70, "memory": 0, "disk": 0})
    assert answer_of_process(tmp_path / "cache", PROMPT) == (
        expected, {"computed": 6, "memory": 0, "disk": TOKENS}
    )  # fmt: skip
    root = tmp_path / "cache" / "prompt-pages"
    assert root.stat().st_mode & 0o077 == 0  # what prompts said is their owner's alone
    # Of a prompt that begins alike, the pages up to the first other token.
    other = [*PROMPT[:40], (PROMPT[40] + 1) % 97, *PROMPT[41:]]
    assert answer_of_process(tmp_path / "cache", other) == (
        plain.engine.run([other], ANSWER)[0], {"computed": 38, "memory": 0, "disk": 32}
    )  # fmt: skip


@pytest.mark.parametrize("damage", ["cut", "flipped", "longer", "others", "link"])
def test_file_that_cannot_be_trusted_is_computed_again(
    plain: llm.Model, tmp_path: Path, damage: str
) -> None:
    model = load(tmp_path)
    expected = plain.engine.run([PROMPT], ANSWER)[0]
    assert model.engine.run([PROMPT], ANSWER)[0] == expected
    cache = model.prompt_cache
    assert cache is not None
    cache.flush()
    files = pages(tmp_path)
    assert len(files) == 4 and cache.counts["written"] == 4
    for path in files:
        data = path.read_bytes()
        if damage == "others":
            path.chmod(0o666)
        elif damage == "link":
            path.rename(tmp_path / path.name)
            path.symlink_to(tmp_path / path.name)
        else:
            middle = len(data) // 2
            flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
            path.write_bytes({"cut": data[:-1], "flipped": flipped, "longer": data + b"x"}[damage])
    again = llm.Engine(model, sequences=2)
    assert again.run([PROMPT], ANSWER)[0] == expected
    assert again.prompt_tokens["disk"] == 0


def test_texts_under_way_get_tokens_while_pages_come_from_disk(
    plain: llm.Model, tmp_path: Path
) -> None:
    model = load(tmp_path)
    long = [*PROMPT, *PROMPT, *PROMPT]
    expected = plain.engine.run([long], ANSWER)[0]
    model.engine.run([long], ANSWER)
    assert model.prompt_cache is not None
    model.prompt_cache.flush()
    engine = llm.Engine(model, sequences=2, chunk=16)
    running = engine.submit([1, 2], llm.Sampling(max_tokens=60))
    engine.step()
    stream = engine.submit(long, ANSWER)
    for count in range(1, 13):  # a step copies as many tokens as it would read
        before = len(running.tokens)
        engine.step()
        assert (len(running.tokens), stream.read) == (before + 1, 16 * count)
    assert list(stream) == expected
    assert engine.prompt_tokens["disk"] == 208


def test_pages_depend_on_weights_adapters_and_layout(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text(name)
    base = tiny("llama")
    digests = {
        prompt_model_digest(sources, settings)
        for sources, settings in (
            ([base], [64]), ([base], [128]), ([tiny("llama", seed=1)], [64]), ([base, None], [64]),
            ([base, tmp_path / "one"], [64]), ([base, tmp_path / "two"], [64]),
        )
    }  # fmt: skip
    assert len(digests) == 6


def test_oldest_pages_make_room(tmp_path: Path) -> None:
    cache = PromptCache(tmp_path, "digest", limit=5000)
    (tmp_path / "mine").write_bytes(bytes(10_000))
    for number in range(10):
        cache.write(bytes([number]), bytes(1000))
    cache.flush()
    assert 0 < sum(path.stat().st_size for path in pages(tmp_path)) <= 5000
    assert (tmp_path / "mine").exists()  # what is not the cache's stays
    assert cache.read([bytes([9])], 1000) == {bytes([9]): bytes(1000)}


def test_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "prompt-pages"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(InputError, match="prompt cache: .* cannot be used: .*others than you"):
        load(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="prompt cache: .* cannot be used"):
        load(tmp_path / "file")
    with pytest.raises(InputError, match="a number of bytes from 1 on expected, got 0"):
        load(tmp_path / "new", prompt_cache_bytes=0)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who may give files away")
@pytest.mark.parametrize("planted", ["folder", "link"])
def test_cache_that_another_user_planted_changes_no_files(tmp_path: Path, planted: str) -> None:
    """A link in a shared folder led to files of the victim: the oldest of them were removed."""
    mine, shared = tmp_path / "mine", tmp_path / "shared"
    mine.mkdir(mode=0o755)
    (mine / "letter").write_bytes(bytes(1000))
    shared.mkdir()
    (shared / "prompt-pages").symlink_to(mine)
    owned = shared if planted == "folder" else shared / "prompt-pages"
    os.lchown(owned, 12345, 12345)
    with pytest.raises(InputError, match="prompt cache: .* cannot be used: .*others than you"):
        PromptCache(shared, "digest", limit=100)
    assert [path.name for path in mine.iterdir()] == ["letter"]
    assert mine.stat().st_mode & 0o777 == 0o755
