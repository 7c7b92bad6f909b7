"""Files that a user may get from others: programs of torch.export, model libraries, records of
tuning, checkpoints, tokenizers; and the grammars and stop texts of a request."""

from __future__ import annotations

import io
import json
import shutil
import struct
import tarfile
import typing
import zipfile
from contextlib import suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
from case_kinds import Kind, Loader, case_folder
from mutation import json_text, mutate_bytes, mutate_json

from ekiden.llm.checkpoint import Weight
from ekiden.llm.gguf import GGUFCheckpoint
from ekiden.llm.gguf_file import write_gguf
from ekiden.llm.gguf_tokenizer import build_gguf_tokenizer
from ekiden.llm.grammar import Grammar, LazyGrammar
from ekiden.llm.safetensors import SafetensorsFile, write_safetensors
from ekiden.llm.stop_filter import StopFilter
from ekiden.llm.token_trie import TokenTrie
from ekiden.micro import generate_project
from ekiden.runtime.errors import InputError
from ekiden.tune.records import Records


def _maker(corpus: list[bytes]) -> Any:  # noqa: ANN401
    return lambda rng: mutate_bytes(rng.choice(corpus), rng, corpus)


# Records of tuning.

TRIAL: dict[str, Any] = {
    "format": 1, "workload": "w", "target": "llvm", "rule": "dense", "choice": "{}", "name": "n",
    "status": "ok", "ratio": 0.5, "seconds": 0.001, "untuned": 0.002, "threads": 1,
    "sizes": [{"n": 4}, {"n": 8}], "shares": [0.5, 0.5], "said": "", "processor": "p", "at": 1.0,
}  # fmt: skip
RECORDS = [{"kind": "trial", **TRIAL}, {"kind": "best", **TRIAL, "confirmed": [0.5, 0.6]}]


def _records() -> tuple[Any, Loader]:
    folder = case_folder()

    def make(rng: Random) -> bytes:
        lines = [
            json_text(mutate_json(rng.choice(RECORDS), rng)) for _ in range(rng.randrange(1, 4))
        ]
        text = "\n".join(lines).encode("utf-8", "surrogatepass")
        return mutate_bytes(text, rng) if rng.random() < 0.5 else text

    def load(case: bytes) -> None:
        (folder / "records").write_bytes(case)
        records = Records.open(folder / "records")
        records.best(), records.by_sizes(), records.explain(), records.pruned()

    return make, load


# Model libraries.


def _tar(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


_TENSOR = {"dtype": "float32", "size": 16}
METADATA = {
    "version": 7,
    "modules": {
        "default": {
            "model_name": "default", "target": ["c"], "executors": ["aot"],
            "memory": {"functions": {
                "main": [{"inputs": {"x": _TENSOR}, "outputs": {"y": _TENSOR}, "device": 1,
                          "io_size_bytes": 32, "workspace_size_bytes": 64,
                          "workspace_pools": {"ram": {"size_bytes": 64, "limit_bytes": 128}}}],
                "operator_functions": [],
            }},
        },
    },
}  # fmt: skip


def _libraries() -> tuple[Any, Loader]:
    header = "codegen/host/include/ekiden_default.h"
    folder = case_folder()

    def make(rng: Random) -> bytes:
        about = json_text(mutate_json(METADATA, rng) if rng.random() < 0.7 else METADATA)
        files = {"metadata.json": about.encode("utf-8", "surrogatepass"), header: b"/* */"}
        if rng.random() < 0.1:
            files[rng.choice(("../x", "/x", "a/../../x", "metadata.json/x"))] = b"x"
        data = _tar(files)
        return mutate_bytes(data, rng) if rng.random() < 0.5 else data

    def load(case: bytes) -> None:
        (folder / "model.tar").write_bytes(case)
        shutil.rmtree(folder / "project", ignore_errors=True)
        generate_project("host", folder / "model.tar", folder / "project")

    return make, load


# Checkpoints and their tokenizers.


def _gguf_corpus(folder: Path) -> list[bytes]:
    weight = Weight("w", "float32", (2, 4), np.ones((2, 4), np.float32))
    tokens = ["<s>", "</s>", "a", "b", "ab", "Ġa"]
    common = {"general.architecture": "llama", "llama.block_count": 1}
    texts = {
        "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [3, 3, 1, 1, 1, 1],
        "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1,
    }  # fmt: skip
    metadata: list[dict[str, Any]] = [
        {**common, **texts, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.merges": ["a b"]},
        {**common, **texts, "tokenizer.ggml.model": "llama",
         "tokenizer.ggml.scores": [0.0, 0.0, -1.0, -2.0, -3.0, -4.0]},
    ]  # fmt: skip
    corpus = []
    for entries in metadata:
        write_gguf(folder / "seed.gguf", entries, [weight])
        corpus.append((folder / "seed.gguf").read_bytes())
    return corpus


def _gguf() -> tuple[Any, Loader]:
    folder = case_folder()

    def load(case: bytes) -> None:
        (folder / "model.gguf").write_bytes(case)
        checkpoint = GGUFCheckpoint(folder / "model.gguf")
        for name in checkpoint:
            checkpoint[name]
        if not Kind("", "", _gguf, ("tokenizers",)).missing():
            tokenizer = build_gguf_tokenizer(checkpoint)
            if tokenizer is not None:
                tokenizer.encode("ab a")

    return _maker(_gguf_corpus(folder)), load


def _safetensors() -> tuple[Any, Loader]:
    folder = case_folder()
    weights = {n: Weight(n, "float32", (2, 3), np.ones((2, 3), np.float32)) for n in ("a", "b")}
    write_safetensors(folder / "seed", weights)
    seed = (folder / "seed").read_bytes()
    size = int.from_bytes(seed[:8], "little")
    header, data = json.loads(seed[8 : 8 + size]), seed[8 + size :]

    def make(rng: Random) -> bytes:
        if rng.random() < 0.5:
            return mutate_bytes(seed, rng)
        text = json_text(mutate_json(header, rng)).encode("utf-8", "surrogatepass")
        return struct.pack("<Q", len(text)) + text + data

    def load(case: bytes) -> None:
        (folder / "model.safetensors").write_bytes(case)
        file = SafetensorsFile(folder / "model.safetensors")
        for name in file:
            file[name]

    return make, load


TOKENIZER: dict[str, Any] = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
    "normalizer": {"type": "Replace", "pattern": {"Regex": "(a+)+b"}, "content": "c"},
    "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\w+|\\s"}, "behavior": "Isolated",
                      "invert": False},
    "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": False,
                                        "trim_offsets": True, "use_regex": True},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "c": 3}, "merges": [["a", "b"]],
              "unk_token": None},
}  # fmt: skip


_PLAIN = {**TOKENIZER, "normalizer": {"type": "NFC"}}
_UNIGRAM = {
    **_PLAIN,
    "pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always",
        "split": True},
    "decoder": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always",
        "split": True},
    "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<u>", 0.0], ["a", -1.0], ["ab", -2.5]]},
}  # fmt: skip
_WORDS = {
    **_PLAIN, "pre_tokenizer": {"type": "BertPreTokenizer"},
    "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    "model": {"type": "WordPiece", "unk_token": "[U]", "continuing_subword_prefix": "##",
              "max_input_chars_per_word": 100, "vocab": {"[U]": 0, "a": 1, "##b": 2}},
}  # fmt: skip
TOKENIZERS = (_PLAIN, _PLAIN, _UNIGRAM, _UNIGRAM, _WORDS, _WORDS, TOKENIZER)
"""The last one gives up on a text after a second, in most of its cases."""


def _tokenizers() -> tuple[Any, Loader]:
    from ekiden.llm.tokenizer import Tokenizer  # needs an extra

    folder = case_folder()

    def make(rng: Random) -> bytes:
        text = json_text(mutate_json(rng.choice(TOKENIZERS), rng)).encode("utf-8", "surrogatepass")
        return mutate_bytes(text, rng) if rng.random() < 0.3 else text

    def load(case: bytes) -> None:
        (folder / "tokenizer.json").write_bytes(case)
        tokenizer = Tokenizer.read(folder / "tokenizer.json")
        tokenizer.decode(tokenizer.encode("ab a" + "a" * 40))

    return make, load


# What a request for text may hold.

PIECES = ("a", "b", ".", "[ab]", "[^a]", "(", ")", "|", "*", "+", "?", "{2}", "{1,3}",
          "{0,}", "(?:", "(?i)", "\\d", "\\w", "\\b", "\\p{L}", "\\x{10FFFF}", "^", "$", "é",
          "\U0001f600", "(a*)*", "(a+)+", "(a|a)*", "(.*)*", "[[:alpha:]]", "\\Q", "\\E", "\\", "[",
          "]", "{", "}", "(?P<n>", "\0", "(?&n)",
          "(?(DEFINE)(?<n>", "(?:(?!ab)(?s:.))*")  # fmt: skip
LARGE_PIECES = ("{1000}", "(a{1,50}){1,50}", ".{0,100}x", "[^a]{1,200}", "\\w{50}")
"""Patterns whose automata take up to a second: one case in 32 has one, else all time is theirs."""
VOCABULARY = [b"", b"a", b"b", b"ab", b" ", b"\xc3", b"\xa9", b"0", b"\xff", None, b"x" * 20]
TRIE = TokenTrie(VOCABULARY)


def _grammars() -> tuple[Any, Loader]:
    def make(rng: Random) -> str:
        pieces = [rng.choice(PIECES) for _ in range(rng.randrange(1, 12))]
        if rng.random() < 1 / 32:
            pieces.insert(rng.randrange(len(pieces)), rng.choice(LARGE_PIECES))
        return "".join(pieces)

    def load(case: str) -> None:
        Grammar.of(case, VOCABULARY, [0])

    def load_lazily(case: str) -> None:
        grammar, state = LazyGrammar(case, TRIE, [0]), 0
        for _ in range(3):
            allowed = np.flatnonzero(grammar.row(state) >= 0)
            if grammar.has_assertions or not len(allowed):
                return
            state = grammar.advance(state, int(allowed[-1]))

    def load_both(case: str) -> None:
        with suppress(InputError):  # patterns that only the other takes
            load_lazily(case)
        load(case)

    return make, load_both


def _stops() -> tuple[Any, Loader]:
    def make(rng: Random) -> tuple[list[str], list[str]]:
        letters = rng.choice(("a", "ab", "abé\U0001f600"))

        def text(most: int) -> str:
            return "".join(rng.choice(letters) for _ in range(rng.randrange(1, most)))

        stops = [text(rng.choice((3, 8, 1024))) for _ in range(rng.randrange(1, 5))]
        return stops, [text(rng.choice((2, 5, 40))) for _ in range(rng.randrange(1, 30))]

    def load(case: tuple[list[str], list[str]]) -> None:
        stops, pieces = case
        held, whole, answer = StopFilter(stops), "".join(pieces), ""
        for piece in pieces:
            answer += held.feed(piece)
            if held.has_stopped:
                break
        answer += held.flush()
        ends = [at for at in map(whole.find, stops) if at >= 0]
        if not ends and answer != whole:
            raise AssertionError(f"{answer!r} is not the whole text")
        if ends and not (whole.startswith(answer) and not any(s in answer for s in stops)):
            raise AssertionError(f"{answer!r} has a text that stops it")

    return make, load


# Programs of torch.export.


_HINTS: dict[type, Any] = {}


def _hints(kind: type, **names: Any) -> Any:  # noqa: ANN401
    """Return the hints of a class of torch.export's schema; a class has the same ones always."""
    if kind not in _HINTS:
        _HINTS[kind] = typing.get_type_hints(kind, **names)
    return _HINTS[kind]


def _pt2_seed() -> bytes:
    import torch  # an extra
    from torch._export.serde import serialize

    # its reader asks for the hints of a class at each object: two thirds of a case's time
    serialize.typing = SimpleNamespace(**{**vars(typing), "get_type_hints": _hints})

    class Small(torch.nn.Module):
        """A window, a view and a product."""

        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(2, 3, 3, stride=2, padding=1)
            self.dense = torch.nn.Linear(12, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.nn.functional.max_pool2d(self.conv(x), 2, 1, 1)
            result: torch.Tensor = self.dense(y.flatten(1)[:, :12]).softmax(-1)
            return result

    program = torch.export.export(Small().eval(), (torch.ones(1, 2, 4, 4),))
    out = io.BytesIO()
    torch.export.save(program, out)
    return out.getvalue()


def _pt2() -> tuple[Any, Loader]:
    from ekiden.frontend.common.options import ImportOptions
    from ekiden.frontend.torch.entry import import_model  # needs an extra

    with zipfile.ZipFile(io.BytesIO(_pt2_seed())) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    graphs = [name for name in members if name.endswith(".json") and len(members[name]) > 100]
    parsed = {name: json.loads(members[name]) for name in graphs}

    def packed(changed: dict[str, bytes]) -> bytes:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
            for name, data in {**members, **changed}.items():
                archive.writestr(name, data)
        return out.getvalue()

    whole = packed({})

    def make(rng: Random) -> bytes:
        if rng.random() < 0.15:
            return mutate_bytes(whole, rng)
        name = rng.choice(graphs)
        return packed({name: json_text(mutate_json(parsed[name], rng)).encode("utf-8", "replace")})

    def load(case: bytes) -> None:
        import_model(case, ImportOptions())

    return make, load


KINDS = (
    Kind("records", "records of tuning (`Records.open`)", _records),
    Kind("library", "model libraries (`micro.generate_project`)", _libraries),
    Kind("gguf", "GGUF checkpoints and the tokenizers in them", _gguf),
    Kind("safetensors", "safetensors checkpoints", _safetensors),
    Kind("tokenizer", "`tokenizer.json`", _tokenizers, ("tokenizers",)),
    Kind("grammar", "grammars of requests (`Grammar.of`)", _grammars),
    Kind("stops", "texts that stop an answer (`StopFilter`)", _stops),
    Kind("pt2", "programs of `torch.export.save`", _pt2, ("torch",)),
)
