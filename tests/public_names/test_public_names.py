"""Public names of the baseline exist, and are called as they were."""

from __future__ import annotations

import inspect
import re

import pytest

import public_names
from public_names import ADDED, BASELINE, COMMAND, added_text, all_names, parse

EXCEPTIONS = {
    "ekiden.kernels": "kernel families are `ekiden.kernels`; TVM has no such name",
    "ekiden.instrument.*.begin_worker": "no process is forked; `for_worker` gives it an instrument",
    "ekiden.micro.MicroModule": "a program is routines, since it may have control flow",
    "ekiden.rpc.server.fork": "sessions are processes that are started fresh",
    "ekiden.rpc.server.has_parent": "the same",
    "ekiden.relay.backend.interpreter.ConstructorValue": "it is the class `ADT`, with the names of "
    "TVM's arguments: a constructor is still taken first, and `tag` is set on each value",
}
"""Names that are not what they were, and why: a name takes along what it has, `*` is any name."""


@pytest.fixture(scope="module")
def today() -> dict[str, str]:
    """All names of today, the members of a class under each of its names."""
    return all_names(is_every_member=True)


@pytest.fixture(scope="module")
def baseline() -> dict[str, str]:
    """The names that the first record has."""
    return parse(BASELINE.read_text())


def _is_excepted(name: str) -> bool:
    patterns = (re.escape(exception).replace(r"\*", r"\w+") for exception in EXCEPTIONS)
    return any(re.fullmatch(rf"{pattern}(\..+)?", name) for pattern in patterns)


@pytest.mark.slow
def test_no_public_name_is_missing(today: dict[str, str], baseline: dict[str, str]) -> None:
    assert [n for n in baseline if n not in today and not _is_excepted(n)] == []


@pytest.mark.slow
def test_public_names_are_called_as_they_were(
    today: dict[str, str], baseline: dict[str, str]
) -> None:
    shared = [name for name in baseline if name in today and not _is_excepted(name)]
    broken = {
        name: f"{baseline[name]} -> {today[name]}: {why}"
        for name in shared
        if (why := incompatibility(baseline[name], today[name]))
    }
    assert broken == {}


@pytest.mark.slow
def test_names_that_were_added_are_recorded() -> None:
    names = all_names()
    expected = added_text(names, parse(BASELINE.read_text()))
    unavailable = [name for name, text in names.items() if text == " unavailable"]
    recorded = parse(ADDED.read_text())
    for name in unavailable:  # what it is cannot be told where a package is missing
        recorded.pop(name, None)
    assert {n: t for n, t in parse(expected).items() if n not in unavailable} == recorded, (
        f"public names changed: {COMMAND}"
    )


def incompatibility(old: str, new: str) -> str:
    """Return why what was written for the first signature fails with the second; "" where nothing
    does."""
    if old == new or " unavailable" in (old, new) or "(?)" in (old, new):
        return ""
    if old.startswith(" nargs="):
        return _option_incompatibility(old, new)
    if not (old.startswith("(") and new.startswith("(")):
        return "it is another kind of thing"
    before, after = _parameters(old), _parameters(new)
    for name, parameter in before.items():
        if why := _parameter_incompatibility(name, parameter, list(before), after):
            return why
    needed = [
        name
        for name, item in after.items()
        if name not in before
        and item.default is inspect.Parameter.empty
        and item.kind not in (item.VAR_POSITIONAL, item.VAR_KEYWORD)
    ]
    return f"{needed[0]!r} must be given" if needed else ""


def _parameters(text: str) -> dict[str, inspect.Parameter]:
    """Return the parameters of a signature, whose defaults are values or `...`."""
    scope: dict[str, object] = {}
    exec(f"def function{text}: ...", {"inf": float("inf"), "nan": float("nan")}, scope)
    function = scope["function"]
    assert callable(function)
    return dict(inspect.signature(function).parameters)


def _parameter_incompatibility(
    name: str,
    old: inspect.Parameter,
    order: list[str],
    after: dict[str, inspect.Parameter],
) -> str:
    """Return why a parameter cannot be given as it was."""
    new = after.get(name)
    takes_any = {item.kind for item in after.values()}
    if new is None:
        by_name = old.kind is old.KEYWORD_ONLY and old.VAR_KEYWORD in takes_any
        by_place = old.kind is old.POSITIONAL_ONLY and old.VAR_POSITIONAL in takes_any
        return "" if by_name or by_place else f"{name!r} is gone"
    if old.kind is old.POSITIONAL_OR_KEYWORD and new.kind is not old.kind:
        return f"{name!r} is given in another way"
    if old.kind is old.KEYWORD_ONLY and new.kind is old.POSITIONAL_ONLY:
        return f"{name!r} is given in another way"
    if old.kind is old.POSITIONAL_OR_KEYWORD and list(after).index(name) != order.index(name):
        return f"{name!r} has another place"
    if old.default is not old.empty and new.default is new.empty:
        return f"{name!r} must be given"
    is_told = Ellipsis not in (old.default, new.default)
    if old.default is not old.empty and is_told and repr(old.default) != repr(new.default):
        return f"{name!r} is {new.default!r} by default"
    return ""


def _option_incompatibility(old: str, new: str) -> str:
    """Return why an option of a command cannot be given as it was."""
    pattern = r" nargs=(\S+)(?: of (\S+))?( required)?"
    before, after = re.fullmatch(pattern, old), re.fullmatch(pattern, new)
    if before is None or after is None or before[1] != after[1]:
        return "it takes another number of values"
    if after[2] and not set(before[2].split(",") if before[2] else ["?"]) <= set(
        after[2].split(",")
    ):
        return "it takes fewer values"
    return "it must be given" if after[3] and not before[3] else ""


@pytest.mark.quick
@pytest.mark.parametrize(
    "old, new, why",
    [
        ("(a, b=1)", "(a, b=1, c=2)", ""),
        ("(a, b=1)", "(a, *, b=1)", "'b' is given in another way"),
        ("(a, b=1)", "(a, c=2, b=1)", "'b' has another place"),
        ("(a, b=1)", "(a)", "'b' is gone"),
        ("(a, b=1)", "(a, b)", "'b' must be given"),
        ("(a, b=1)", "(a, b=2)", "'b' is 2 by default"),
        ("(a, b=...)", "(a, b=2)", ""),
        ("(a)", "(a, b)", "'b' must be given"),
        ("(a, *, b=1)", "(a, c=2, *, d=3, b=1)", ""),
        ("(a, *, b=1)", "(a, **rest)", ""),
        ("(*a, **b)", "(*a, **b)", ""),
        (" property", "(self)", "it is another kind of thing"),
        (" nargs=None", " nargs=+", "it takes another number of values"),
        (" nargs=None of a,b", " nargs=None of a,b,c", ""),
        (" nargs=None of a,b", " nargs=None of a", "it takes fewer values"),
        (" nargs=None", " nargs=None required", "it must be given"),
    ],
)
def test_signature_is_compatible_where_calls_of_the_old_one_still_work(
    old: str, new: str, why: str
) -> None:
    assert incompatibility(old, new) == why


@pytest.mark.quick
def test_each_line_of_a_record_reads_back() -> None:
    names = {
        "ekiden.f": "(a, b='(x')",
        "ekiden.C.x": " property",
        "ekiden compile --target": " nargs=None of a,b",
        "ekiden cache import": " command",
    }
    assert public_names.parse(public_names.text_of(names)) == names
