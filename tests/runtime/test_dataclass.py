"""Ekiden's own `dataclass` gives what the standard library's does."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from ekiden.runtime.dataclass import dataclass as ours

pytestmark = pytest.mark.quick

OPTIONS = (
    {},
    {"frozen": True},
    {"slots": True},
    {"frozen": True, "slots": True},
    {"eq": False, "slots": True},
    {"frozen": True, "slots": True, "kw_only": True},
    {"frozen": True, "slots": True, "repr": False},
)


def made(by: Callable[..., Any], options: dict[str, bool]) -> tuple[type, type]:
    """A class with every kind of field, and one that is derived from it."""

    class Base:
        count: ClassVar[int] = 3
        a: int
        b: list[int] = dataclasses.field(default_factory=list, hash=False)
        c: str = dataclasses.field(default="c", compare=False, repr=False)
        d: int = dataclasses.field(default=4, init=False)
        e: dataclasses.InitVar[int] = 5
        f: int = dataclasses.field(init=False)

        def __post_init__(self, e: int) -> None:
            object.__setattr__(self, "f", self.a + e)

    base = by(**options)(Base)

    class Derived(base):  # type: ignore[misc, valid-type]
        a: int = 7
        g: tuple[int, ...] = ()

    return base, by(**options)(Derived)


def seen(call: Callable[[], object]) -> object:
    """What a call gives, or the class and text of what it raises."""
    try:
        return call()
    except (TypeError, AttributeError) as error:
        return type(error)


def answers(cls: Any, options: dict[str, bool]) -> list[object]:  # noqa: ANN401
    """What a class and its values say."""
    one, same, other = cls(a=1), cls(a=1, c="x"), cls(a=2, b=[1], e=0)
    return [
        [f.name for f in dataclasses.fields(cls)],
        list(inspect.signature(cls).parameters),
        cls.__match_args__,
        repr(one) if options.get("repr", True) else None,
        [getattr(other, f.name) for f in dataclasses.fields(cls)],
        one == same,
        one == other,
        one != same,
        one.__eq__(3),
        seen(lambda: hash(one) == hash(same)),
        seen(lambda: setattr(one, "a", 3)),
        seen(lambda: delattr(same, "a")),
        seen(lambda: cls().f),
        seen(lambda: cls(a=1, d=2).f),
        dataclasses.asdict(other),
        seen(lambda: dataclasses.replace(cls(a=1), a=9, e=1).f),
        dataclasses.asdict(copy.copy(other)),
        hasattr(one, "__dict__"),
        other.b is not cls(a=1).b,
    ]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_each_option_is_as_in_the_standard_library(options: dict[str, bool]) -> None:
    for mine, theirs in zip(made(ours, options), made(dataclasses.dataclass, options), strict=True):
        assert answers(mine, options) == answers(theirs, options)


@ours(frozen=True, slots=True)
class Point:
    x: int
    y: int = 0

    def __hash__(self) -> int:
        return 17


def test_what_a_class_writes_itself_stays() -> None:
    assert hash(Point(1)) == 17 and Point(1) == Point(1) != Point(2)


def test_values_are_pickled() -> None:
    assert pickle.loads(pickle.dumps(Point(3, 4))) == Point(3, 4)


def test_what_is_frozen_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
        Point(1).x = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'x'"):
        del Point(1).x


def test_a_required_field_after_one_with_a_default_is_refused() -> None:
    with pytest.raises((TypeError, SyntaxError)):

        @ours
        class Wrong:
            a: int = 1
            b: int  # type: ignore[misc]
