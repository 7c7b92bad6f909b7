"""Instruments: print, dump, verify, stop."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from ekiden.ir.instrument import DumpIR, PrintIR, StopAfter, TimePasses, Verify
from ekiden.ir.structural import structural_equal
from ekiden.ir.transform import PassContext, PassInstrument, Sequential, module_pass
from ekiden.relay import Function, IRModule, op, parse, var
from ekiden.relay.analysis import verify
from ekiden.runtime.errors import InternalError

pytestmark = pytest.mark.quick

MODULE = parse("def @main(%x: float32) { %x }")


@module_pass("Exp")
def exp(module: IRModule) -> IRModule:
    """%x -> exp(%x)"""
    main = module["main"]
    assert isinstance(main, Function)
    return module.update("main", main.with_fields(body=op.exp(main.body)))


@module_pass("Same")
def same(module: IRModule) -> IRModule:
    """Changes nothing."""
    return module


@module_pass("Break")
def break_it(module: IRModule) -> IRModule:
    """Uses a variable that nothing binds."""
    return module.update("main", Function((), var("lost", shape=()), None))


def _run(*passes: object, instrument: PassInstrument) -> IRModule:
    with PassContext(instruments=[instrument]).scope():
        return Sequential(passes)(MODULE)  # type: ignore[arg-type]


def test_print_before_and_after_named_passes() -> None:
    file = io.StringIO()
    _run(exp, same, instrument=PrintIR(before=["Exp"], after=["Exp"], file=file))
    assert [line for line in file.getvalue().splitlines() if line.startswith("//")] == [
        "// before Exp",
        "// after Exp",
    ]
    assert "exp(%x)" in file.getvalue()


def test_print_goes_to_standard_error_after_every_pass(capsys: pytest.CaptureFixture[str]) -> None:
    _run(exp, same, instrument=PrintIR())
    assert capsys.readouterr().err.count("// after ") == 2


def test_dump_writes_a_file_per_pass_that_changes_something(tmp_path: Path) -> None:
    made = _run(exp, same, exp, instrument=DumpIR(tmp_path / "passes"))
    files = sorted((tmp_path / "passes").iterdir())
    assert [f.name for f in files] == ["00-input.relay", "01-Exp.relay", "03-Exp.relay"]
    assert structural_equal(parse(files[-1].read_text()), made)


def test_verify_names_the_pass_that_broke_the_module() -> None:
    with pytest.raises(InternalError, match="%lost is used where it is not bound") as caught:
        _run(exp, break_it, exp, instrument=Verify(verify))
    assert "after pass 'Break'" in caught.value.__notes__


def test_stop_after_runs_the_first_passes_only() -> None:
    stop = StopAfter(1)
    module = _run(exp, break_it, instrument=stop)
    assert stop.ran == ["Exp"]
    assert "exp(%x)" in str(module)
    assert _run(exp, instrument=StopAfter(0)) is MODULE


def test_time_of_passes_adds_up() -> None:
    timer = TimePasses()
    _run(exp, exp, same, instrument=timer)
    assert set(timer.seconds) == {"Exp", "Same"} and timer.seconds["Exp"] > 0
