"""Tuning from Python and the command line, and compilation with tuning records."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import ekiden
from ekiden.backend.kernels.lower import Overrides
from ekiden.backend.kernels.size_ranges import SizeRange, tuned_size_ranges
from ekiden.cli import main
from ekiden.compiler.build import compile_to_bytes
from ekiden.compiler.options import tuning_record_options
from ekiden.compiler.tune import extract_tasks, profile_sizes
from ekiden.ir.transform import PassContext
from ekiden.runtime.errors import CompileError, EkidenError, InputError, LoadError
from ekiden.target import Target
from ekiden.tune import Best, Records, Task, Trial
from onnx_files import arguments, expected, model


@pytest.fixture(scope="module")
def task() -> Task:
    tasks = extract_tasks(model(), Target("llvm"), {"n": 4}).tasks
    return next(t for t in tasks if t.space.default.rule == "dense_pack")


def found(task: Task, **fields: object) -> Records:
    """Records with one decision that is not the default's."""
    message = {"workload": task.workload, "target": str(task.target), "rule": "dense_pack"}
    message |= {"choice": "rows=1 order=row", "name": task.name, "ratio": 0.5, "at": 1.0}
    return Records([Best(**{**message, **fields})])  # type: ignore[arg-type]


def test_tuned_records_select_kernels(task: Task, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "ekiden"):
        executable = ekiden.compile(model(), records=found(task))
    assert any("1 of" in r.message and "are tuned" in r.message for r in caplog.records)
    for n in (1, 9):
        argument = arguments(n)
        np.testing.assert_allclose(executable(**argument), expected(**argument), rtol=1e-5)


def artifact(records: Records | None, decisions: dict[str, object] | None = None) -> bytes:
    config = tuning_record_options(records) | {"kernels.decisions": decisions or {}}
    with PassContext(config=config):
        return compile_to_bytes(model())


def test_tuning_records_are_part_of_the_cache_key(task: Task) -> None:
    plain, tuned = artifact(None), artifact(found(task))
    assert plain != tuned
    assert tuned == artifact(None, {"dense_pack": "rows=1 order=row"})
    assert artifact(found(task), {"dense_pack": "rows=2 order=row"}) == artifact(
        None, {"dense_pack": "rows=2 order=row"}
    )


def test_size_ranges_have_separate_loops(task: Task) -> None:
    one, many = [{"n0": 1}], [{"n0": 64}, {"n0": 128}]
    records = found(task, sizes=one)
    message = {"workload": task.workload, "target": str(task.target), "at": 1.0}
    records.append(
        Best(**message, rule="dense_pack", choice="rows=2 order=row", ratio=0.6, sizes=many),
        Trial(
            **message, rule="dense_pack", choice="rows=3 order=row", ratio=1.1, sizes=[{"n0": 900}]
        ),
    )
    assert records.by_sizes()[task.key] == [
        [one, "dense_pack", "rows=1 order=row"],
        [many, "dense_pack", "rows=2 order=row"],
        [[{"n0": 900}], "", ""],
    ]
    executable = ekiden.compile(model(), records=records)
    for n in (1, 8, 9, 100, 400):
        argument = arguments(n)
        np.testing.assert_allclose(executable(**argument), expected(**argument), rtol=1e-5)
    assert artifact(records) not in (artifact(None), artifact(found(task)))


def test_sizes_are_weighted_by_frequency() -> None:
    runs = [{"x": (n, 3)} for n in (1, 1, 8, 1)]
    dims = profile_sizes(model(), runs)
    assert dims == [({"n": 1}, 0.75), ({"n": 8}, 0.25)]
    for item in (dims, {"n": {1: 3.0, 8: 1.0}}):
        for task in extract_tasks(model(), "llvm", item).tasks:
            assert [s["n0"] for s in task.sizes] == [1, 8] and task.shares == (0.75, 0.25)
    assert all(not t.shares for t in extract_tasks(model(), None, {"n": {1: 2, 8: 2}}).tasks)
    with pytest.raises(InputError, match="no input is named 'z'; there are x"):
        profile_sizes(model(), [{"z": (1, 3)}])
    with pytest.raises(InputError, match="'x' has 2 axes, got"):
        profile_sizes(model(), [{"x": (1,)}])
    with pytest.raises(CompileError, match="shares above 0 expected of sizes"):
        extract_tasks(model(), None, {"n": {1: 0.0}})


def test_size_range_boundaries_are_inclusive() -> None:
    a: Overrides = {"dense_pack": {"rows": 1}}
    assert tuned_size_ranges([([], a)]) == [SizeRange(None, a)]
    assert tuned_size_ranges([([{"n0": 1}], a), ([{"n0": 64}], {})]) == [
        SizeRange(8, a),
        SizeRange(None, {}),
    ]
    same = [([{"n0": 2, "m0": 2}], a), ([{"n0": 4, "m0": 4}], a), ([{"n0": 25, "m0": 4}], {})]
    assert tuned_size_ranges(same) == [SizeRange(40, a), SizeRange(None, {})]


REFUSED = {
    "another family": ({"rule": "matmul"}, "the kernel is of the family 'dense_pack' now"),
    "a choice that is gone": ({"choice": "row=1"}, "has no choice 'row'"),
    "a value that is gone": ({"choice": "rows=99"}, "'rows' is one of"),
    "no decision": ({"choice": "rows"}, "expected 'name=value ...'"),
    "another target": ({"target": "llvm -mcpu=z16"}, "none of 1 is of one of the"),
    "another model": ({"workload": "0" * 32}, "none of 1 is of one of the"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_record_that_does_not_apply_is_named(
    name: str, task: Task, caplog: pytest.LogCaptureFixture
) -> None:
    fields, output = REFUSED[name]
    with caplog.at_level(logging.WARNING, "ekiden"):
        result = artifact(found(task, **fields))
    assert result == artifact(None)
    (message,) = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    assert message.startswith("records: ") and output in message


def test_environment_names_records(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.json"
    found(task).write(path)
    monkeypatch.setenv("EKIDEN_RECORDS", str(path))
    assert tuning_record_options(None)["kernels.records"] == {
        task.key: [[[], "dense_pack", "rows=1 order=row"]]
    }
    assert tuning_record_options(()) == {}
    monkeypatch.setenv("EKIDEN_RECORDS", str(tmp_path / "nothing.json"))
    with pytest.raises(FileNotFoundError, match="there are no such records"):
        ekiden.compile(model())


def test_one_target_is_tuned_for_at_a_time() -> None:
    with pytest.raises(InputError, match=r"got cpu\(0\), cpu\(1\): tune for each"):
        ekiden.tune(model(), [ekiden.cpu(0), ekiden.cpu(1)])  # type: ignore[arg-type]


def test_unknown_size_is_requested() -> None:
    with pytest.raises(InputError, match="the size of 'n' is not known: dims="):
        ekiden.tune(model())
    two = helper.make_graph(
        [helper.make_node("MatMul", ["x", "y"], ["z"])], "g",
        [helper.make_tensor_value_info(n, 1, ["b", "n", "n"]) for n in "xy"],
        [helper.make_tensor_value_info("z", 1, None)],
    )  # fmt: skip
    every = "sizes of 'b' and 'n' are not known: .*--dim b=1 --dim n=1"
    with pytest.raises(InputError, match=every):
        ekiden.tune(helper.make_model(two, opset_imports=[helper.make_opsetid("", 17)]))
    with pytest.raises(InputError, match="no symbol is named 'm'; there are: 'n'"):
        ekiden.tune(model(), dims={"m": 1})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"search": "annealing"}, "search 'evolution' or 'random' or a Search expected"),
        ({"trials": 0}, "trials above 0 expected"),
        ({"threads": 0}, "threads above 0 expected"),
        ({"kernels": "nothing"}, "no kernel's name or node holds 'nothing'"),
    ],
)
def test_conflicting_tuning_options_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(EkidenError, match=said):
        ekiden.tune(model(), dims={"n": 4}, **options)


def test_target_that_cannot_run_here_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before trials are spent, all of which would crash."""
    records = Records.open(tmp_path / "r.json")
    other = "llvm -mtriple=riscv64-unknown-linux-gnu"
    with pytest.raises(InputError, match="cannot be measured here: this machine is no riscv64.*re"):
        ekiden.tune(model(), other, trials=2, records=records, dims={"n": 4})

    def lacking(image: bytes) -> None:
        raise LoadError("load code image: header: this machine lacks what its code needs: amx_tile")

    monkeypatch.setattr("ekiden.compiler.tune.load_image", lacking)
    with pytest.raises(InputError, match="here: this machine lacks .* amx_tile; remote="):
        ekiden.tune(model(), trials=2, records=records, dims={"n": 4})
    assert not len(records)


def test_command_line_tunes_and_compiles(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, records, page = (str(tmp_path / n) for n in ("m.onnx", "r.json", "report.html"))
    onnx.save(model(), file)
    inputs = ["tune", file, "-o", records, "--trials", "3", "--dim", "n=4", "--report", page]
    assert main(inputs) == 0
    shown = capsys.readouterr()
    assert "dense_pack" in shown.out and "3 of 3 trials" in shown.err
    assert len(Records.open(records).query(kind="trial")) == 3
    assert "no records" not in shown.out
    with open(records, "a") as file_of_records:
        file_of_records.write("a line of something else\n")
    assert main(inputs) == 0  # everything was tried already
    assert f"'{records}': lines that are no records: 1" in capsys.readouterr().out
    assert len(Records.open(records).query(kind="trial")) == 3
    text = Path(page).read_text()
    assert "<svg" in text and "3 trials" in text
    assert main(["compile", file, "-o", str(tmp_path / "m.eki"), "--records", records]) == 0
