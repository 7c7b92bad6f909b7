"""The fuzzer of operators: a little of it, all of it on request, and that it would see a fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import fuzz_operators
import numpy as np
import pytest

from ekiden import te
from ekiden.ir.attrs import Attrs
from ekiden.ir.op import OP_ATTRS, OPS
from ekiden.ir.type import Type
from ekiden.te import Tensor
from long_runs import alike


def _shown(tally: fuzz_operators.Tally) -> str:
    return "\n".join(f"{f.kind}: {f.variant}: {f.message}" for f in tally.finds)


def test_fuzzer_covers_index_checking_operators() -> None:
    names = sorted(n for n in fuzz_operators.SAMPLES if OPS[n].may_fail)
    assert len(names) > 10
    tally = fuzz_operators.fuzz(300, 3, names, each=30, seconds=60)
    assert not tally.finds, _shown(tally)
    assert sum(tally.refused.values()) > 30


@alike(2)
@pytest.mark.parametrize("seed", range(2))
def test_fuzzing_some_operators_finds_no_fault(seed: int) -> None:
    names = np.random.default_rng(seed).choice(sorted(fuzz_operators.SAMPLES), 8, replace=False)
    tally = fuzz_operators.fuzz(80, seed, [str(n) for n in names], each=15, seconds=60)
    assert not tally.finds, _shown(tally)


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
def test_fuzzing_a_million_cases_finds_no_fault() -> None:
    tally = fuzz_operators.fuzz(1_000_000, 0, each=4000, seconds=1.5)
    assert not tally.finds, _shown(tally)


def test_fuzzing_resumes_from_saved_tally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, names = tmp_path / "state.json", ["add", "take"]
    first = fuzz_operators.fuzz(30, 4, names, each=5, seconds=60, state=state)
    second = fuzz_operators.fuzz(40, 4, names, each=5, seconds=60, state=state)
    assert all(second.variants[n] >= first.variants[n] > 0 for n in names)
    assert sum(second.variants.values()) > sum(first.variants.values())
    assert sum(first.cases.values()) < 40 <= sum(second.cases.values())
    again = fuzz_operators.fuzz(40, 4, names, each=5, seconds=60, state=state)
    assert again.cases == second.cases  # there was nothing left to do
    monkeypatch.setattr(fuzz_operators, "_sources", lambda seed: "others")
    with pytest.raises(ValueError, match="of other sources or another seed"):
        fuzz_operators.fuzz(40, 4, names, state=state)


def _try_neighbours(names: Sequence[str], cases: int) -> fuzz_operators.Tally:
    fuzzer = fuzz_operators.Fuzzer(0)
    for name in names:
        for variant in fuzz_operators.neighbours(name):
            fuzzer.try_variant(variant, cases, 5)
    return fuzzer.tally


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_off_by_one_arguments_are_refused_or_agree() -> None:
    tally = _try_neighbours(sorted(fuzz_operators.SAMPLES), 2)
    assert not tally.finds, _shown(tally)


def test_off_by_one_sizes_of_past_finds() -> None:
    names = ["image.dilation2d", "nn.conv1d_transpose", "searchsorted", "text.concat"]
    tally = _try_neighbours(names, 1)
    assert not tally.finds, _shown(tally)
    assert len(tally.cases) == len(names)


def test_every_operator_that_computes_has_a_sample() -> None:
    """One that a kernel or a function of the host computes, or that is built from others."""
    rewritten = OP_ATTRS["FTVMQnnCanonicalize"]
    computes = {
        n for n, d in OPS.items() if d.lower or d.dims or d.host or d.gradient_of or n in rewritten
    }
    assert computes - set(fuzz_operators.SAMPLES) == set()


def test_fuzzer_detects_a_planted_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A gather that takes its indices as they are; its kernels must not be kept."""
    monkeypatch.setenv("EKIDEN_CACHE_DIR", str(tmp_path))

    def unchecked(attrs: Attrs, inputs: Sequence[Tensor], out: Type) -> list[Tensor]:
        data, indices = inputs
        at = attrs.axis % data.ndim  # type: ignore[attr-defined]
        return [te.compute(indices.shape, lambda *i: data[(*i[:at], indices[i], *i[at + 1 :])])]

    monkeypatch.setitem(OPS, "gather", replace(OPS["gather"], lower=unchecked))
    tally = fuzz_operators.fuzz(30, 5, ["gather"], each=15, seconds=60)
    assert {f.kind for f in tally.finds} <= {"bounds", "refusal", "index", "value"}
    assert any(f.kind == "bounds" for f in tally.finds)
