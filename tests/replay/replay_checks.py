"""The test of a replay program."""

from __future__ import annotations

from collections.abc import Mapping

import digests
import pytest
from replay_programs import Program

TABLE = digests.read(digests.FILE.read_text())


def cases(group: str, programs: Mapping[str, Program]) -> pytest.MarkDecorator:
    """Return the parameters `name` and `program` of a test: a case for each program."""
    rows = [
        pytest.param(f"{group}/{name}", program, id=name, marks=_marks(program))
        for name, program in programs.items()
    ]
    return pytest.mark.parametrize(("name", "program"), rows)


def _marks(program: Program) -> list[pytest.MarkDecorator]:
    return [pytest.mark.quick] if program.is_quick else []


def check(name: str, program: Program) -> None:
    """Fail where the text of a kernel or of the bytecode is not the one whose digest the table has,
    naming them and the commands that show and accept the difference."""
    items = digests.changed(TABLE.get(name, {}), digests.digests_of(program.texts()))
    if items:
        rows = [f"  {item}: {', '.join(targets)}" for item, targets in items.items()]
        text = "\n".join([f"the code of {name} is not the one recorded:", *rows])
        accept = f"where it is meant: scripts/replay --update -p {name}"
        pytest.fail(f"{text}\nits diff: scripts/replay -p {name}\n{accept}", pytrace=False)
