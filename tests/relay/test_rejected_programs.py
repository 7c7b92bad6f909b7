"""Every invalid program gives its message, line and caret."""

from __future__ import annotations

import re

import pytest
from rejected_programs import ILL_TYPED, UNREADABLE

from ekiden.relay import parse
from ekiden.runtime.errors import CompileError, ParseError, TypeInferenceError

pytestmark = pytest.mark.quick


def shown(text: str, line: int, column: int) -> str:
    """A line of a text with a caret below."""
    return text.split("\n")[line - 1] + "\n" + " " * (column - 1) + "^"


@pytest.mark.parametrize(
    ("text", "message", "kind"),
    [
        *((t, m, ParseError) for t, m in UNREADABLE),
        *((t, m, TypeInferenceError) for t, m in ILL_TYPED),
    ],
)
def test_rejected_program(text: str, message: str, kind: type[CompileError]) -> None:
    with pytest.raises(kind) as caught:
        parse(text)
    place = re.search(r"text:(\d+):(\d+)", message)
    assert place is not None
    assert str(caught.value) == f"{message}\n{shown(text, int(place[1]), int(place[2]))}"
