"""Trusted schedules: what they still refuse, what they do not prove, and where proofs are made."""

from __future__ import annotations

import pytest

from ekiden import te, tir
from ekiden.ir.prim import maximum
from ekiden.runtime import environment
from ekiden.runtime.errors import InputError, ScheduleError
from ekiden.tir import PrimFunc

pytestmark = pytest.mark.quick


def product() -> PrimFunc:
    """max(a @ b, 0) as blocks "c" and "d"."""
    a, b = te.placeholder((8, 6), name="a"), te.placeholder((6, 4), name="b")
    k = te.reduce_axis((0, 6), "k")
    c = te.compute((8, 4), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="c")
    d = te.compute((8, 4), lambda i, j: maximum(c[i, j], 0.0), name="d")
    return te.create_prim_func([a, b, d])


def test_trusted_schedule_refuses_what_it_cannot_transform() -> None:
    sch = tir.Schedule(product(), proofs="trusted")
    i, j, k = sch.get_loops("c")
    before = sch.func
    with pytest.raises(ScheduleError, match="must lie in one nest"):
        sch.reorder(i, sch.get_loops("d")[0])
    with pytest.raises(ScheduleError, match="is an ancestor of block 'c'"):
        sch.compute_at("c", i)
    sch.fuse(i, j)
    with pytest.raises(ScheduleError, match="has no such loop any more"):
        sch.unroll(j)
    assert sch.get(k) is not None
    assert before is not sch.func


def test_trusted_schedule_does_not_prove_that_results_stay() -> None:
    checked, trusted = (tir.Schedule(product(), proofs=mode) for mode in ("checked", "trusted"))
    with pytest.raises(ScheduleError, match="block 'c' reduces over it"):
        checked.parallel(checked.get_loops("c")[2])
    trusted.parallel(trusted.get_loops("c")[2])
    assert "T.parallel(6)" in str(trusted.func)


def test_checking_proves_steps_of_a_trusted_schedule() -> None:
    sch = tir.Schedule(product(), proofs="trusted")
    k = sch.get_loops("c")[2]
    with sch.checking():
        assert sch.proofs == "checked"
        with pytest.raises(ScheduleError, match="block 'c' reduces over it"):
            sch.parallel(k)
    assert sch.proofs == sch.copy().proofs == "trusted"
    sch.parallel(k)


def test_schedules_are_checked_unless_told() -> None:
    assert tir.Schedule(product()).proofs == "checked"
    with pytest.raises(ScheduleError, match="proofs is one of checked, trusted, got 'some'"):
        tir.Schedule(product(), proofs="some")


def test_variable_selects_the_proofs_of_families(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment.family_schedule_proofs() == "checked", "tests prove all steps"
    monkeypatch.delenv("EKIDEN_SCHEDULE_PROOFS")
    assert environment.family_schedule_proofs() == "trusted"
    monkeypatch.setenv("EKIDEN_SCHEDULE_PROOFS", "some")
    with pytest.raises(InputError, match="expected checked or trusted, got 'some'"):
        environment.family_schedule_proofs()
