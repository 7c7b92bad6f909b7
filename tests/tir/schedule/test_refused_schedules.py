"""Schedules that would change a program's meaning are rejected, with reason and location."""

from __future__ import annotations

import pytest
from illegal_schedules import CASES, Refused

from ekiden.tir import Schedule, ScheduleError

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_invalid_schedule_is_refused(case: Refused) -> None:
    sch = Schedule(case.program)
    with pytest.raises(ScheduleError) as error:
        case.steps(sch)
    assert str(error.value) == case.message


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_refusal_changes_nothing(case: Refused) -> None:
    """The program is that before the refused step, and the trace replays to it."""
    sch = Schedule(case.program)
    with pytest.raises(ScheduleError):
        case.steps(sch)
    again = Schedule(case.program)
    sch.trace.apply_to_schedule(again)
    assert str(again.func) == str(sch.func)


def test_refused_schedules_are_numerous() -> None:
    assert len(CASES) >= 80
    assert len({case.message for case in CASES}) >= 80


def test_error_location_can_be_omitted() -> None:
    sch = Schedule(CASES[0].program, error_render_level="fast")
    with pytest.raises(ScheduleError) as error:
        CASES[0].steps(sch)
    assert str(error.value) == CASES[0].message.split("\n")[0]


def test_unknown_intrinsic_names_those_there_are() -> None:
    sch = Schedule(CASES[0].program)
    message = "tensor intrinsic 'no.such': there is none; there are .*'test.dot8'"
    with pytest.raises(ScheduleError, match=message):
        sch.tensorize(sch.get_loops("c")[2], "no.such")
