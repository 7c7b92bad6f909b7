"""Debug information: machine code maps to lines of the printed loop program."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ekiden import te
from ekiden.codegen.build import build
from ekiden.codegen.llvm import DebugInfo, emit_module, ir_to_assembly
from ekiden.ir.prim import Var, const
from ekiden.target import Target
from ekiden.tir import Buffer, BufferStore, For, ForKind, PrimFunc
from ekiden.tir.printer import astext, print_with_lines
from ekiden.tir.transform import lower

PROGRAM = """
import site

for folder in {folders!r}:
    site.addsitedir(folder)

import numpy as np
from ekiden import te
from ekiden.codegen.build import build
x = te.placeholder(({size},), name="x")
y = te.compute(({size},), lambda i: x[i] + 1.0, name="y")
module = build(te.create_prim_func([x, y], "add_one"))
a, b = np.zeros({size}, "float32"), np.zeros({size}, "float32")
for _ in range({times}):
    module["add_one"](a, b)
"""


def add_one(kind: ForKind = ForKind.SERIAL) -> PrimFunc:
    """y[i] = x[i] + 1"""
    x, y, i = Buffer("x", (const(64),)), Buffer("y", (const(64),)), Var("i")
    body = For(i, const(0), const(64), kind, BufferStore(y, x[i] + 1.0, (i,)))
    return PrimFunc((x, y), body, {"global_symbol": "add_one"})


def test_printer_reports_statement_lines() -> None:
    func = add_one()
    text, lines = print_with_lines(func)
    assert text == astext(func)
    assert isinstance(func.body, For)
    loop, store = (
        text.splitlines()[lines[func.body] - 1],
        text.splitlines()[lines[func.body.body] - 1],
    )
    assert "for i in" in loop and store.strip().startswith("y[i] = ")


@pytest.mark.parametrize("kind", [ForKind.SERIAL, ForKind.PARALLEL])
def test_instructions_carry_lines(kind: ForKind) -> None:
    func = lower(add_one(kind))
    path = Path("/somewhere/add.tir.py")
    _, lines = print_with_lines(func)
    code = ir_to_assembly(emit_module([func], Target.host(), DebugInfo(path, lines)), Target.host())
    assert isinstance(func.body, For)
    assert '.file\t1 "/somewhere" "add.tir.py"' in code
    for line in (lines[func.body] - 1, lines[func.body], lines[func.body.body]):
        assert f".loc\t1 {line} " in code


@pytest.mark.parametrize("target", ["llvm", "c"])
def test_debug_library_computes_the_same(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EKIDEN_DEBUG_DIR", str(tmp_path))
    x = te.placeholder((8, 8), name="x")
    y = te.compute((8, 8), lambda i, j: x[i, j] * 2.0, name="y")
    module = build(te.create_prim_func([x, y], "twice"), target)
    a, b = np.arange(64, dtype="float32").reshape(8, 8), np.zeros((8, 8), "float32")
    module["twice"](a, b)
    np.testing.assert_array_equal(b, a * 2)
    with pytest.raises(TypeError, match="twice: expected 2 arguments"):
        module["twice"](a)
    suffixes = sorted("".join(p.suffixes) for p in tmp_path.iterdir())
    assert suffixes == [".so", *([".tir.kernel.c"] if target == "c" else []), ".tir.py"]


@pytest.mark.skipif(shutil.which("gdb") is None, reason="gdb is not installed")
def test_gdb_stops_on_a_line_of_the_program(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(program_text(times=1, size=64))
    commands = ["set breakpoint pending on", "set debuginfod enabled off", "break add_one", "run"]
    inputs = [word for item in [*commands, "bt 1", "list"] for word in ("-ex", item)]
    shown = subprocess.run(
        [
            "gdb",
            "-q",
            "-nx",
            "-batch",
            *inputs,
            "--args",
            os.path.realpath(sys.executable),
            program,
        ],
        capture_output=True,
        text=True,
        env=environment(tmp_path),
        timeout=120,
        check=False,
    ).stdout
    if "Couldn't get registers" in shown or "ptrace" in shown:
        pytest.skip("this machine does not let gdb trace a process")
    assert "add_one () at add_one-" in shown, shown
    assert ".tir.py:" in shown and "for i in" in shown


@pytest.mark.skipif(shutil.which("perf") is None, reason="perf is not installed")
def test_perf_names_functions(tmp_path: Path) -> None:
    program, data = tmp_path / "program.py", tmp_path / "perf.data"
    program.write_text(program_text(times=5_000, size=65536))
    python = os.path.realpath(sys.executable)
    record = ["perf", "record", "-q", "-F", "999", "-o", str(data), python, str(program)]
    done = subprocess.run(record, capture_output=True, env=environment(tmp_path), check=False)
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    if done.returncode != 0 or not data.exists():
        pytest.skip("this machine does not let perf record")
    report = ["perf", "report", "-i", str(data), "--stdio", "--sort", "dso,sym"]
    report += ["--symbol-filter", "add_one"]
    shown = subprocess.run(report, capture_output=True, text=True, check=False).stdout
    assert "] add_one" in shown, shown


def program_text(times: int, size: int) -> str:
    """A program that finds Ekiden where this one does, run by the interpreter that is behind the
    one of a virtual environment.
    """
    return PROGRAM.format(times=times, size=size, folders=[p for p in sys.path if p])


def environment(folder: Path) -> dict[str, str]:
    """Of a process that writes what debuggers read."""
    return {**os.environ, "EKIDEN_DEBUG_DIR": str(folder)}
