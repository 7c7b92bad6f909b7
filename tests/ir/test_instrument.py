"""Passes, PassContext and instruments."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from ekiden.ir.instrument import (
    DumpIR,
    PassPrintingInstrument,
    PassTimingInstrument,
    PrintAfterAll,
    PrintBeforeAll,
    StopAfter,
    Verify,
    find_breaking_pass,
    pass_instrument,
)
from ekiden.ir.pass_context import notify_product, time_phase
from ekiden.ir.structural import structural_equal
from ekiden.ir.transform import Pass, PassContext, PassInfo, PassInstrument, Sequential
from ekiden.relay import Expr, Function, IRModule, op, parse, var
from ekiden.relay.analysis import verify
from ekiden.relay.transform import function_pass, module_pass
from ekiden.runtime.errors import InputError, InternalError, PassError

pytestmark = pytest.mark.quick

MODULE = parse("def @main(%x: float32) { %x }")


def _main(module: IRModule) -> Function:
    main = module["main"]
    assert isinstance(main, Function)
    return main


@module_pass(name="Exp")
def exp(module: IRModule, context: PassContext) -> IRModule:
    """%x -> exp(%x)"""
    main = _main(module)
    return module.with_function("main", main.with_fields(body=op.exp(main.body)))


@module_pass(name="Same")
def same(module: IRModule, context: PassContext) -> IRModule:
    """Changes nothing."""
    return module


@module_pass(name="Break")
def break_it(module: IRModule, context: PassContext) -> IRModule:
    """Uses a variable that nothing binds."""
    return module.with_function("main", Function((), var("lost", shape=()), None))


def _run(*passes: Pass, instrument: PassInstrument) -> IRModule:
    with PassContext(instruments=[instrument]):
        return Sequential(passes)(MODULE)


# Passes that a user writes.


def test_module_pass_is_named_after_its_function() -> None:
    @module_pass
    def nothing(module: IRModule, context: PassContext) -> IRModule:
        return module

    assert nothing.info == PassInfo("nothing") and nothing(MODULE) is MODULE
    assert str(nothing) == "nothing (opt level 0)"


def test_function_pass_sees_each_relay_function_once() -> None:
    seen = []

    @function_pass(opt_level=1)
    def look(function: Function, module: IRModule, context: PassContext) -> Function:
        seen.append(function.attr("name"))
        return function.with_fields(body=op.exp(function.body))

    module = parse("def @main(%x: float32) { %x } def @other(%y: float32) { %y }")
    skipped = _main(module).with_fields(attrs={"SkipOptimization": 1})
    result = look(module.with_function("main", skipped))
    assert len(seen) == 1
    assert result["main"] is skipped and "exp(%y)" in str(result["other"])


def test_pass_class_carries_its_own_arguments() -> None:
    @function_pass(opt_level=1)
    class Apply:
        """Put an operator around every body."""

        def __init__(self, name: str) -> None:
            self.name = name

        def transform_function(
            self, function: Function, module: IRModule, context: PassContext
        ) -> Function:
            return function.with_fields(body=getattr(op, self.name)(function.body))

    result = Apply("tanh")
    assert result.info.name == "Apply" and "tanh(%x)" in str(result(MODULE))


def test_pass_class_needs_its_method() -> None:
    with pytest.raises(PassError) as caught:

        @module_pass
        class Wrong:
            pass

    assert str(caught.value) == "pass class 'Wrong' has no method 'transform_module'"


def test_passes_take_and_give_modules() -> None:
    with pytest.raises(PassError) as caught:
        exp(_main(MODULE))  # type: ignore[arg-type]
    assert str(caught.value) == (
        "pass 'Exp' got a Function, expected an IRModule; wrap it: IRModule.from_expr(...)"
    )

    @module_pass
    def forgets(module: IRModule, context: PassContext) -> IRModule:
        return None  # type: ignore[return-value]

    with pytest.raises(PassError, match="pass 'forgets' returned a NoneType, expected an IRModule"):
        forgets(MODULE)


def test_required_passes_run_first_by_object_or_name() -> None:
    @module_pass(required=["InferType", exp])
    def needy(module: IRModule, context: PassContext) -> IRModule:
        assert "exp(%x)" in str(module)
        return module

    assert needy.info.required == ("InferType", "Exp")
    assert _main(needy(MODULE)).body.checked_type_or_none() is None  # exp made it after InferType
    assert Sequential(["InferType", needy]).passes[0].name == "InferType"


def test_unknown_name_lists_the_passes() -> None:
    with pytest.raises(PassError, match="no pass 'Fuse'; there are .*FuseOps"):
        Sequential(["Fuse"])


# The context.


def test_opt_level_and_lists_decide_what_runs() -> None:
    @module_pass(opt_level=3, name="Costly")
    def costly(module: IRModule, context: PassContext) -> IRModule:
        return exp(module)

    both = Sequential([costly])
    with PassContext(opt_level=2) as outer:
        assert PassContext.current() is outer
        assert both(MODULE) is MODULE
        with PassContext(opt_level=0, required_pass=["Costly"]):
            assert "exp" in str(both(MODULE))
        with PassContext(disabled_pass=["Costly"]):
            assert both(MODULE) is MODULE
        assert PassContext.current() is outer
    assert PassContext.current() is not outer


def test_context_can_be_entered_again() -> None:
    context = PassContext(opt_level=1)
    with context, context:
        assert PassContext.current() is context
    with context:
        assert PassContext.current() is context
    assert PassContext.current() is not context


def test_options_are_typed() -> None:
    context = PassContext(config={"relay.FuseOps.max_depth": 8})
    assert context.option("relay.FuseOps.max_depth") == 8
    assert PassContext().option("relay.FuseOps.max_depth") == 256
    assert PassContext.list_configs()["relay.FuseOps.max_depth"]["type"] == "int"
    with pytest.raises(PassError) as caught:
        PassContext(config={"relay.FuseOps.max_depth": "8"})
    assert str(caught.value) == (
        "PassContext: option 'relay.FuseOps.max_depth' is a int, got str: '8'"
    )
    with pytest.raises(PassError, match="no option 'nonsense'"):
        context.option("nonsense")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"relay.FuseOps.depth": 8},
            "no option 'relay.FuseOps.depth'; nearest: relay.FuseOps.max_depth; "
            "PassContext.list_configs() has all",
        ),
        (
            {"unroll": {}},
            "no option 'unroll'; nearest: tir.UnrollLoop; PassContext.list_configs() has all",
        ),
        ({"nonsense": 1}, "no option 'nonsense'; PassContext.list_configs() has all"),
        (
            {"tir.UnrollLoop": {"auto_step": 1}},
            "no option 'auto_step'; there are auto_max_step, auto_max_depth, auto_max_extent",
        ),
    ],
)
def test_unknown_pass_option_is_refused(config: dict[str, object], message: str) -> None:
    """The nearest are named, and where all are: a list of them is too long to be read."""
    with pytest.raises(PassError) as caught:
        PassContext(config=config)
    assert str(caught.value) == f"PassContext: {message}"


# Instruments.


def test_print_before_and_after_named_passes() -> None:
    file = io.StringIO()
    _run(exp, same, instrument=PassPrintingInstrument(["Exp"], ["Exp"], file=file))
    assert [line for line in file.getvalue().splitlines() if line.startswith("//")] == [
        "// before Exp",
        "// after Exp",
    ]
    assert "exp(%x)" in file.getvalue()


@pytest.mark.parametrize("kind, word", [(PrintAfterAll, "after"), (PrintBeforeAll, "before")])
def test_print_goes_to_standard_error_around_every_pass(
    kind: type[PrintAfterAll], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(exp, same, instrument=kind())
    assert capsys.readouterr().err.count(f"// {word} ") == 2


def test_dump_writes_a_file_per_pass_that_changes_something(tmp_path: Path) -> None:
    result = _run(exp, same, exp, instrument=DumpIR(tmp_path / "passes"))
    files = sorted((tmp_path / "passes").glob("*.relay"))
    assert [f.name for f in files] == ["000-input.relay", "001-Exp.relay", "003-Exp.relay"]
    assert structural_equal(parse(files[-1].read_text()), result)
    index = (tmp_path / "passes" / "index.txt").read_text()
    assert "002-Same: nothing changed" in index and "after Exp" in index


def test_dump_of_a_pass_has_the_module_before_and_after_it(tmp_path: Path) -> None:
    _run(exp, same, exp, exp, instrument=DumpIR(tmp_path, pass_name="Exp", function="ma*"))
    assert sorted(f.name for f in tmp_path.glob("*.relay")) == [
        "000-input.relay", "001-Exp.relay", "003-Exp.relay", "004-Exp.relay",
    ]  # fmt: skip
    _run(exp, same, exp, instrument=DumpIR(tmp_path / "same", pass_name="Same"))
    assert [f.name for f in (tmp_path / "same").glob("*.relay")] == ["002-Same-before.relay"]
    _run(exp, instrument=DumpIR(tmp_path / "other", function="other"))
    assert not list((tmp_path / "other").glob("*.relay"))


def test_dump_leaves_the_passes_inside_of_a_pass_to_it(tmp_path: Path) -> None:
    @module_pass(name="Twice")
    def twice(module: IRModule, context: PassContext) -> IRModule:
        return exp(exp(module))

    _run(twice, exp, instrument=DumpIR(tmp_path))
    names = sorted(f.name for f in tmp_path.glob("*.relay"))
    assert names == ["000-input.relay", "001-Twice.relay", "002-Exp.relay"]


def test_dump_has_the_module_that_a_pass_failed_on(tmp_path: Path) -> None:
    @module_pass(name="Refuse")
    def refuse(module: IRModule, context: PassContext) -> IRModule:
        raise InternalError("on purpose\nwith more")

    with pytest.raises(InternalError, match="on purpose"):
        _run(exp, refuse, instrument=DumpIR(tmp_path, pass_name="Refuse"))
    assert "exp(%x)" in (tmp_path / "002-Refuse-before.relay").read_text()
    last = (tmp_path / "index.txt").read_text().splitlines()[-1]
    assert last.endswith("Refuse failed: InternalError: on purpose")
    _run(exp, instrument=DumpIR(tmp_path))  # what a name is taken by stays
    assert (tmp_path / "001-Exp.relay").exists()


def test_dump_of_an_error_that_is_caught_goes_on_with_the_next_pass(tmp_path: Path) -> None:
    @module_pass(name="Refuse")
    def refuse(module: IRModule, context: PassContext) -> IRModule:
        raise ValueError("no error of ours")

    with PassContext(instruments=[DumpIR(tmp_path)]):
        with pytest.raises(ValueError, match="no error of ours"):
            refuse(MODULE)
        exp(MODULE)
    assert (tmp_path / "001-Exp.relay").exists()


def test_dump_gives_every_pass_a_name_that_files_can_have(tmp_path: Path) -> None:
    named = Pass("../up/" + "x" * 300, exp.transform)
    _run(named, instrument=DumpIR(tmp_path / "in"))
    (written,) = (f for f in (tmp_path / "in").glob("001-*"))
    assert written.parent == tmp_path / "in" and len(written.name) < 130
    assert [f.name for f in tmp_path.iterdir()] == ["in"]


def test_dump_to_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="DumpIR: no file can be written in '.*file/passes'"):
        _run(exp, instrument=DumpIR(tmp_path / "file" / "passes"))


def test_instruments_see_non_module_and_failing_passes(tmp_path: Path) -> None:
    @pass_instrument
    class Sees:
        """Keeps texts."""

        def __init__(self) -> None:
            self.texts: list[str] = []

        def see_product(self, file_name: str, meaning: str, render: Callable[[], str]) -> None:
            """Keep it."""
            self.texts.append(f"{file_name} {meaning} {render()}")

    sees = Sees()
    with PassContext(instruments=[sees]):  # type: ignore[list-item]
        notify_product("code.c", "the code as C", lambda: "int x;")
        exp(MODULE)
    notify_product("code.c", "nobody asks for it", lambda: pytest.fail("it was rendered"))
    assert sees.texts == ["code.c the code as C int x;"]


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


@pytest.mark.parametrize("position", range(5))
def test_bisecting_finds_the_pass_that_breaks_a_module(position: int) -> None:
    passes = [same, exp, same, exp]
    passes.insert(position, break_it)

    def is_right(module: IRModule) -> bool:
        return "lost" not in str(module)

    assert find_breaking_pass(Sequential(passes), MODULE, is_right) == (position, "Break")
    assert find_breaking_pass(Sequential([exp, same]), MODULE, is_right) is None


def test_timing_is_the_tree_of_what_ran() -> None:
    timer = PassTimingInstrument()
    with PassContext(instruments=[timer]):
        Sequential([exp, Sequential([same, exp], name="inner")], name="outer")(MODULE)
    (outer,) = timer.root.children
    assert [c.name for c in outer.children] == ["Exp", "inner"]
    assert [c.name for c in outer.children[1].children] == ["Same", "Exp"]
    assert outer.seconds >= sum(c.seconds for c in outer.children) > 0
    assert set(timer.seconds) == {"outer", "inner", "Same", "Exp"}
    lines = timer.render().splitlines()
    assert len(lines) == 5 and lines[0].startswith("outer: ") and lines[0].endswith("(100.0%)")
    assert lines[3].startswith("    Same: ")


def test_phases_are_timed_with_the_passes_inside() -> None:
    @time_phase("all of it")
    def work() -> None:
        with time_phase("part"):
            exp(MODULE)
        raise ValueError("on purpose")

    timer = PassTimingInstrument()
    with PassContext(instruments=[timer]), pytest.raises(ValueError, match="on purpose"):
        work()
    (whole,) = timer.root.children
    assert (whole.name, whole.children[0].name) == ("all of it", "part")
    assert [c.name for c in whole.children[0].children] == ["Exp"]
    assert whole.seconds >= whole.children[0].seconds > 0


def test_timing_survives_a_pass_that_fails() -> None:
    @module_pass
    def fails(module: IRModule, context: PassContext) -> IRModule:
        raise InternalError("on purpose")

    timer = PassTimingInstrument()
    with PassContext(instruments=[timer]):
        with pytest.raises(InternalError) as caught:
            Sequential([exp, fails])(MODULE)
        exp(MODULE)
    assert caught.value.__notes__ == ["in pass 'fails'"]
    assert "Exp" in timer.render()


def _logger(log: list[str], name: str, raises: str = "") -> PassInstrument:
    def hook(event: str) -> None:
        log.append(f"{name} {event}")
        if event == raises:
            raise RuntimeError(f"{name} {event}")

    @pass_instrument
    class Logger:
        def enter_pass_ctx(self) -> None:
            hook("enter")

        def exit_pass_ctx(self) -> None:
            hook("exit")

        def should_run(self, module: IRModule, info: PassInfo) -> bool:
            hook("should run")
            return True

        def run_before_pass(self, module: IRModule, info: PassInfo) -> None:
            hook("before")

        def run_after_pass(self, module: IRModule, info: PassInfo) -> None:
            hook("after")

    instrument = Logger()
    assert isinstance(instrument, PassInstrument)
    return instrument


def test_hooks_are_called_in_order() -> None:
    log: list[str] = []
    with PassContext(instruments=[_logger(log, "a"), _logger(log, "b")]):
        exp(MODULE)
    events = ["enter", "should run", "before", "after", "exit"]
    assert log == [f"{name} {event}" for event in events for name in "ab"]


@pytest.mark.parametrize(
    "raises, expected",
    [
        ("enter", ["a enter", "b enter", "a exit"]),
        ("before", ["a enter", "b enter", *(f"{n} {e}" for e in ("should run", "before")
                                            for n in "ab"), "a exit", "b exit"]),
        ("exit", ["a enter", "b enter", *(f"{n} {e}" for e in ("should run", "before", "after")
                                          for n in "ab"), "a exit", "b exit"]),
    ],
)  # fmt: skip
def test_broken_instrument_is_called_no_more(raises: str, expected: list[str]) -> None:
    log: list[str] = []
    context = PassContext(instruments=[_logger(log, "a"), _logger(log, "b", raises)])
    with pytest.raises(RuntimeError, match=f"b {raises}"), context:
        exp(MODULE)
    assert log == expected
    assert context.instruments == () or raises == "exit"


def test_instruments_can_be_exchanged_inside() -> None:
    log: list[str] = []
    with PassContext(instruments=[_logger(log, "a")]) as context:
        context.override_instruments([_logger(log, "b")])
        exp(MODULE)
    assert log == ["a enter", "a exit", "b enter", "b should run", "b before", "b after", "b exit"]


def test_instrument_can_leave_a_pass_out() -> None:
    @pass_instrument
    class NoExp:
        def should_run(self, module: IRModule, info: PassInfo) -> bool:
            return info.name != "Exp"

    assert _run(exp, same, instrument=NoExp()) is MODULE


def test_expressions_are_no_modules() -> None:
    expr: Expr = var("x", shape=())
    with pytest.raises(PassError, match="got a Var, expected an IRModule$"):
        exp(expr)  # type: ignore[arg-type]
