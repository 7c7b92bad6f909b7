"""Tuning records: appended, read from damaged files, merged, pruned."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest

from ekiden.runtime.errors import InputError, LoadError
from ekiden.tune import Best, Records, Trial
from ekiden.tune.records import parse_record, serialize_record, to_records


def trial(number: int = 0, **fields: object) -> Trial:
    message = {"workload": "w", "target": "t", "rule": "matmul", "choice": f"rows={number}"}
    return Trial(**{**message, "name": "fused_x", "ratio": 1.5, "seconds": 1e-3, **fields})  # type: ignore[arg-type]


def best(ratio: float, **fields: object) -> Best:
    message = {"workload": "w", "target": "t", "rule": "matmul", "choice": f"rows={ratio}"}
    confirmed = [ratio, ratio - 0.01]
    return Best(**{**message, "ratio": ratio, "untuned": 2e-3, "confirmed": confirmed, **fields})  # type: ignore[arg-type]


def test_appended_records_read_back(tmp_path: Path) -> None:
    records = Records.open(tmp_path / "r.json")
    records.append(trial(1), best(0.5))
    records.append(trial(2, status="crash", ratio=0.0, said='"quoted"\nlines'))
    again = Records.open(tmp_path / "r.json")
    assert list(again) == list(records) and again.damaged == 0
    assert [type(r) for r in again] == [Trial, Best, Trial]
    assert all(r.at > 0 and r.processor and r.version for r in again)


def test_later_trial_that_is_no_faster_takes_a_best_back() -> None:
    records = Records([best(0.9), best(0.8), trial(choice="rows=0.9", ratio=0.95)])
    assert records.best()["w t"].ratio == 0.8
    records.append(trial(choice="rows=0.8", ratio=1.1))
    assert records.best()["w t"].ratio == 0.9, "the next one"
    records.append(trial(choice="rows=0.9", status="wrong", ratio=0.0))
    assert not records.best() and not records.by_sizes() and not records.pruned()
    records.append(best(0.8))
    assert records.best()["w t"].ratio == 0.8, "found again"


@pytest.mark.parametrize("cut", [1, 20, 100])
def test_torn_last_line_is_counted_and_writing_goes_on(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    Records.open(path).append(trial(1), trial(2))
    path.write_bytes(path.read_bytes()[:-cut])
    torn = Records.open(path)
    # without its newline alone a line is whole
    assert (len(torn), torn.damaged) == ((2, 0) if cut == 1 else (1, 1))
    torn.append(trial(3))
    again = Records.open(path)
    assert [r.choice for r in again][-1] == "rows=3" and again.damaged == torn.damaged


def test_every_prefix_of_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    Records.open(path).append(trial(1), best(0.7))
    data = path.read_bytes()
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        assert len(Records.open(path)) + Records.open(path).damaged <= 2


WRONG = {
    "no JSON": "{",
    "a list": "[]",
    "another kind": '{"kind": "x", "format": 1}',
    "a later format": serialize_record(trial()).replace('"format": 1', '"format": 2'),
    "a field missing": '{"kind": "trial", "format": 1, "workload": "w"}',
    "a number that is text": serialize_record(trial()).replace("1.5", '"1.5"'),
    "a ratio that cannot be": serialize_record(trial()).replace("1.5", "NaN"),
    "a time that has no date": serialize_record(trial(at=1e300)),
    "a name that is a number": serialize_record(trial(name=7)),
    "sizes that are none": serialize_record(trial(sizes=5)),
    "a size that is text": serialize_record(trial(sizes=[{"n": "8"}])),
    "lists within lists": "[" * 100_000,
    "a best that is none": serialize_record(best(0.5)).replace('"ratio": 0.5', '"ratio": 1.5'),
}


@pytest.mark.parametrize("name", WRONG)
def test_malformed_records_are_skipped(name: str) -> None:
    assert parse_record(WRONG[name]) is None


def test_fields_of_later_versions_are_left_out() -> None:
    line = json.dumps({**json.loads(serialize_record(trial())), "color": "red"})
    assert parse_record(line) == trial()


def test_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_text("some\nother\nfile\n")
    with pytest.raises(LoadError, match="none of 3 lines is a record of tuning"):
        Records.open(path)
    path.write_text("{}\n")
    with pytest.raises(LoadError, match="none of 1 lines is a record of tuning"):
        Records.open(path)
    with pytest.raises(FileNotFoundError, match="there are no such records"):
        to_records(tmp_path / "nothing.json")
    with pytest.raises(InputError, match="a path or Records expected, got int"):
        to_records(3)  # type: ignore[arg-type]


def _write(path: str, writer: int) -> None:
    records = Records.open(path)
    for number in range(20):
        records.append(trial(number, name=f"writer{writer}"))


def test_several_writers_lose_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "r.json")
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_write, args=(path, n)) for n in range(2)]
    for item in workers:
        item.start()
    for item in workers:
        item.join()
    result = Records.open(path)
    assert result.damaged == 0
    for n in range(2):
        actual = [r.choice for r in result.query(name=f"writer{n}")]
        assert actual == [f"rows={i}" for i in range(20)]


def test_best_merge_prune_explain(tmp_path: Path) -> None:
    a = Records([trial(1), best(0.9, at=1.0), trial(2, status="crash")])
    b = Records([best(0.8, at=2.0), best(0.6, target="u", at=3.0), best(0.9, at=1.0)])
    assert a.merge([b]) == 2 and a.merge([b]) == 0
    assert {k: r.ratio for k, r in a.best().items()} == {"w t": 0.8, "w u": 0.6}
    pruned = a.pruned()
    assert [r.ratio for r in pruned] == [0.8, 0.6]
    pruned.write(tmp_path / "p.json")
    assert Records.open(tmp_path / "p.json").best() == a.best()
    lines = a.explain().splitlines()
    assert lines[0].startswith("fused_x [t]: 1 crash, 1 ok; 2000.0 -> ")
    assert "0.80 of the time: matmul rows=0.8" in lines[0]
    assert len(a.query(kind="best")) == 3 and len(a.query(target="u")) == 1
    with pytest.raises(InputError, match="one of trial, best expected, got 'bets'"):
        a.query(kind="bets")
    assert to_records([a, tmp_path / "p.json"]).best() == a.best()
