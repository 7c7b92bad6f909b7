"""Logging of compilation, and shell completion."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

import ekiden
from ekiden.cli import COMMANDS, main
from onnx_files import model


@pytest.fixture(autouse=True)
def quiet() -> None:
    """The level that -v sets is the process's."""
    logging.getLogger("ekiden").setLevel(logging.NOTSET)


def test_compiling_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("EKIDEN_CACHE_DIR", str(tmp_path))
    seen: list[tuple[int, int, str]] = []
    with caplog.at_level(logging.DEBUG, "ekiden"):
        ekiden.compile(model(), progress=lambda *row: seen.append(row))
    assert [row[:2] for row in seen] == [(1, 1)]
    for words in (
        "kernels: 1, of which 0 are in the cache",
        f"kernel 1 of 1: {seen[0][2]}",
        "pass FuseOps: ",
        "import: ",
        "link: ",
        "compile: 0.0 MB in ",
    ):
        assert words in caplog.text


def test_artifact_of_the_cache_is_logged(tmp_path: Path) -> None:
    onnx.save(model(), tmp_path / "m.onnx")
    code = f"""
import logging, ekiden
logging.basicConfig(level="INFO", format="%(name)s: %(message)s")
for _ in range(2):
    ekiden.compile({str(tmp_path / "m.onnx")!r})
"""
    folder = {"EKIDEN_CACHE_DIR": str(tmp_path / "cache"), "EKIDEN_CACHE_LIMIT": "1G"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **folder})
    last = "ekiden.compiler.cache.artifacts: compile: the artifact is in the cache"
    assert done.stderr.splitlines()[-1] == last, done.stderr


def test_compilation_prints_nothing_by_default(tmp_path: Path) -> None:
    onnx.save(model(), tmp_path / "m.onnx")
    code = f"import ekiden; ekiden.compile({str(tmp_path / 'm.onnx')!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stdout + done.stderr


def test_verbose_command_logs_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    onnx.save(model(), tmp_path / "m.onnx")
    monkeypatch.setenv("EKIDEN_CACHE_DIR", "")
    command = ["compile", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.eki"), "-v"]
    assert main(command) == 0
    assert "kernels: 1, of which 0 are in the cache" in caplog.text and "pass " not in caplog.text
    assert main([*command, "-v"]) == 0
    assert "pass FuseOps: " in caplog.text


def test_python_m_ekiden_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ekiden", "--version"], capture_output=True, text=True
    )
    assert done.stdout == f"ekiden {ekiden.__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_names_commands_and_options(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--completion", shell])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS) and "of-range" in text
    if shutil.which(shell) is None:
        return
    argument = ["-n"] if shell != "fish" else ["--no-execute"]
    assert subprocess.run([shell, *argument], input=text, text=True).returncode == 0


def test_bash_completes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--completion", "bash"])
    text = (
        capsys.readouterr().out
        + """
COMP_WORDS=(ekiden pro); COMP_CWORD=1; _ekiden; echo "${COMPREPLY[@]}"
COMP_WORDS=(ekiden bench --s); COMP_CWORD=2; _ekiden; echo "${COMPREPLY[@]}"
"""
    )
    done = subprocess.run(["bash"], input=text, capture_output=True, text=True)
    assert done.stdout.split() == ["profile", "--seconds"], done.stderr
