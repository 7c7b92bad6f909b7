"""Overridden kernel decisions: printed, from Python and the command line, validated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import ekiden
from ekiden.cli import main
from ekiden.compiler.build import compile_to_bytes
from ekiden.ir.transform import PassContext
from ekiden.runtime.errors import CompileError
from onnx_files import arguments, expected, model

KERNEL = "fused_nn_contrib_dense_pack_add_nn_relu"


@pytest.fixture
def onnx_file(tmp_path: Path) -> str:
    path = tmp_path / "small.onnx"
    onnx.save(model(), path)
    return str(path)


def decided(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["inspect", *options, "--stage", "decisions"]) == 0
    return capsys.readouterr().out


def test_inspect_prints_family_decision_and_domains(
    onnx_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = decided(capsys, onnx_file, "--target", "llvm -mcpu=x86-64-v4 -cores=1")
    lines = text.splitlines()
    at = lines.index(f"{KERNEL}: dense_pack")
    assert lines[at + 1].startswith("  panel=16 rows=6 order=panel k_block=0 ")
    assert "    order: the outer loop: panels, or tiles of rows; one of panel row" in lines


@pytest.mark.parametrize("name", ["dense_pack", KERNEL])
def test_command_line_overrides_decisions(
    name: str, onnx_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "rows=2 order=row " in decided(
        capsys, onnx_file, "--decide", f"{name}: rows=2 order=row"
    )


@pytest.mark.parametrize("name", ["dense_pack", KERNEL])
def test_decisions_do_not_change_results(name: str) -> None:
    for fixed in (
        {"rows": 1, "l1_prefetch": 32},
        "order=row unroll=4",
        {"split": "panels", "l2_prefetch": 1},
    ):
        executable = ekiden.compile(model(), decisions={name: fixed})
        for n in (1, 9):
            argument = arguments(n)
            np.testing.assert_allclose(executable(**argument), expected(**argument), rtol=1e-5)


def artifact(decisions: dict[str, object]) -> bytes:
    with PassContext(config={"kernels.decisions": decisions}):
        return compile_to_bytes(model())


def test_decisions_are_part_of_the_cache_key() -> None:
    plain, other = artifact({}), artifact({"dense_pack": {"rows": 1}})
    assert plain != other
    assert artifact({"dense_pack": {"rows": 1}}) == artifact({"dense_pack": "rows=1"}) == other
    assert artifact({}) == plain


REFUSED = {
    "a kernel that there is not": (
        {"dense_pak": {"rows": 1}},
        "decisions: no kernel is called 'dense_pak'; there are: " + KERNEL,
    ),
    "a choice that there is not": (
        {"dense_pack": {"row": 1}},
        "decisions: 'dense_pack' has no choice 'row'; there are: panel, rows, ",
    ),
    "a value that there is not": (
        {"dense_pack": {"order": "column"}},
        "decisions: 'dense_pack': 'order' is one of panel, row, got 'column'",
    ),
    "a panel that there is not": (
        {"dense_pack": {"panel": 7}},
        "decisions: 'dense_pack': 'panel' is one of ",
    ),
    "what is no choice": (
        {"dense_pack": 3},
        "decisions: choices by name expected for 'dense_pack', got 3",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_decision_is_refused(case: str) -> None:
    decisions, message = REFUSED[case]
    with pytest.raises(CompileError) as caught:
        ekiden.compile(model(), decisions=decisions)
    assert str(caught.value).startswith(message)


def test_malformed_decision_text_is_refused(
    onnx_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", onnx_file, "--stage", "decisions", "--decide", "rows=1"]) == 1
    assert "read a decision: expected 'dense_pack: rows=6 order=row', each name once" in (
        capsys.readouterr().err
    )
