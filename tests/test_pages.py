"""The examples of the documentation run, as they stand."""

from __future__ import annotations

import io
import logging
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import ekiden
from ekiden.cli import COMMANDS, main
from ekiden.tune import Records
from test_tutorials import code_of

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with model.onnx (y = x @ w of n rows) and x.npy."""
    weight = numpy_helper.from_array(np.eye(4, 3, dtype=np.float32), "w")
    infos = [helper.make_tensor_value_info(n, 1, ["n", d]) for n, d in (("x", 4), ("y", 3))]
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    graph = helper.make_graph([node], "page", infos[:1], infos[1:], [weight])
    graph_model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )
    onnx.save(graph_model, tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", np.ones((2, 4), np.float32))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    logging.getLogger("ekiden").setLevel(logging.NOTSET)


def test_page_on_models_runs(folder: Path) -> None:
    page = DOCS / "using-models.md"
    names: dict[str, object] = {"__name__": "page"}
    exec(compile(code_of(page), str(page), "exec"), names)
    assert names["in_model"] == 4 * 3 * 4


def test_page_on_sessions_runs() -> None:
    page = DOCS / "rpc.md"
    exec(compile(code_of(page), str(page), "exec"), {"__name__": "page"})


def commands(page: Path) -> list[str]:
    """The lines of a page's shell blocks that are commands of Ekiden, without comments; none of
    blocks that say why they are not run."""
    result = re.findall(r"^(<!-- not run.*\n)?```sh\n([^`]*)^```", page.read_text(), re.MULTILINE)
    blocks = [block for excuse, block in result if not excuse]
    lines = (line.partition("  #")[0].strip() for block in blocks for line in block.splitlines())
    return [line for line in lines if line.startswith("ekiden ")]


def test_commands_of_the_page_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    argument = commands(DOCS / "cli.md")
    assert len(argument) > 15
    for line in argument:
        assert main(shlex.split(line)[1:]) == 0, (line, capsys.readouterr().err)


def test_every_command_has_its_section() -> None:
    heads = re.findall(r"^## ekiden (\w+)", (DOCS / "cli.md").read_text(), re.MULTILINE)
    assert sorted(heads) == sorted(COMMANDS)


def section(page: Path, title: str, without: bool = False) -> str:
    """The Python blocks under a title of a page, or of all others, on the lines they have there."""
    kept, inside = [], False
    heads = page.read_text(encoding="utf-8").splitlines()
    for head, line in zip(heads, code_of(page).split("\n"), strict=True):
        inside = head == f"## {title}" if head.startswith("## ") else inside
        kept.append(line if inside != without else "")
    return "\n".join(kept)


def test_page_on_frontends_runs_for_jax() -> None:
    pytest.importorskip("jax", reason="the package jax is not installed")
    names: dict[str, object] = {"__name__": "page"}
    code = section(DOCS / "frontends.md", "JAX")
    exec(compile(code, "frontends.md", "exec"), names)
    assert np.asarray(names["y"]).shape == (5, 3)


@pytest.mark.filterwarnings("ignore")  # PyTorch warns of its own deprecations
def test_page_on_frontends_runs() -> None:
    registry = pytest.importorskip("ekiden.frontend.torch.registry", reason="needs torch")
    try:
        code = section(DOCS / "frontends.md", "JAX", without=True)
        exec(compile(code, "frontends.md", "exec"), {"__name__": "page"})
        assert "mylib::scale" in registry.CONVERTER_TABLE
    finally:
        registry.CONVERTER_TABLE.pop("mylib::scale", None)


@pytest.mark.filterwarnings("ignore")  # PyTorch warns of its own deprecations
def test_page_on_torch_compile_runs() -> None:
    """Here, where PyTorch's compiler is imported anyway."""
    pytest.importorskip("torch", reason="the package torch is not installed")
    page = DOCS / "guides" / "from-torch-compile.md"
    exec(compile(code_of(page), str(page), "exec"), {"__name__": "page"})


def test_page_on_tuning_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = code_of(DOCS / "tuning.md").replace("trials=200", "trials=2")
    Records([]).write("more.json")
    names: dict[str, object] = {"__name__": "page", "ekiden": ekiden}
    exec(compile(code, "tuning.md", "exec"), names)
    assert len(Records.open("records.json").query(kind="trial")) == 2
