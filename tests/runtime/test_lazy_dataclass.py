"""Lazy dataclasses behave like Python's."""

import copy
import dataclasses
import inspect
import pickle
import threading
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from typing import Any, ClassVar

import pytest

from ekiden.runtime.lazy_dataclass import dataclass

OPTIONS: list[dict[str, bool]] = [
    {},
    {"frozen": True},
    {"slots": True},
    {"frozen": True, "slots": True},
    {"frozen": True, "slots": True, "eq": False},
    {"slots": True, "eq": False, "repr": False},
    {"frozen": True, "slots": True, "kw_only": True},
]
CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    (("a",), {}), (("a", 2), {"tags": ("t",)}), ((), {"name": "a", "hidden": 3}), ((), {}),
    (("a",), {"name": "b"}), (("a",), {"no": 1}), (("a", 1, [], 0, 5, 6), {}),
]  # fmt: skip


def row(decorator: Any, options: dict[str, bool]) -> Any:  # noqa: ANN401
    """A class with every kind of field."""

    class Row:
        count: ClassVar[int] = 3
        name: str
        size: int = 4
        tags: tuple[str, ...] = field(default=(), kw_only=True)
        parts: list[int] = field(default_factory=list, hash=False)
        hidden: int = field(default=0, repr=False, compare=False)
        made: dict[str, int] = field(init=False, default_factory=dict, hash=False)
        later: int = field(init=False, compare=False, repr=False)

    return decorator(**options)(Row)


@pytest.fixture(params=OPTIONS, ids=str)
def both(request: pytest.FixtureRequest) -> list[Any]:
    """A class by Python's decorator and one by ours."""
    return [row(decorator, request.param) for decorator in (dataclasses.dataclass, dataclass)]


def said(work: Callable[[], object]) -> str:
    """What a call gives, or what it raises."""
    try:
        return str(work())
    except (TypeError, AttributeError) as reason:
        return f"{type(reason).__name__}: {reason}"


def alike(both: list[Any], work: Callable[[Any], object]) -> bool:
    """Whether both classes give or raise the same."""
    theirs, ours = (said(lambda cls=cls: work(cls)) for cls in both)  # type: ignore[misc]
    assert ours == theirs
    return True


def values(value: Any) -> list[object]:  # noqa: ANN401
    return [getattr(value, f.name, None) for f in dataclasses.fields(value)]


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_constructors_take_and_refuse_the_same(both: list[Any], call: tuple[Any, Any]) -> None:
    positional, named = call
    assert alike(both, lambda cls: values(cls(*positional, **named)))


def test_signatures_and_patterns_are_the_same(both: list[Any]) -> None:
    assert alike(both, inspect.signature) and alike(both, lambda cls: cls.__match_args__)


def test_values_compare_and_hash_alike(both: list[Any]) -> None:
    assert alike(both, lambda cls: cls(name="a") == cls(name="a", hidden=1))
    assert alike(both, lambda cls: cls(name="a") == cls(name="b"))
    assert alike(both, lambda cls: cls(name="a") == "a")
    pairs = {cls: (cls(name="a"), cls(name="a", hidden=1)) for cls in both}  # of places apart
    assert alike(both, lambda cls: len(set(map(hash, pairs[cls]))))


def test_repr_copy_and_replace_match_dataclasses(both: list[Any]) -> None:
    assert alike(both, lambda cls: repr(cls(name="a")).partition(" at 0x")[0])
    assert alike(both, lambda cls: values(dataclasses.replace(cls(name="a"), size=9)))
    assert alike(both, lambda cls: setattr(cls(name="a"), "size", 9))
    assert alike(both, lambda cls: delattr(cls(name="a"), "size"))


def test_default_factories_run_per_instance(both: list[Any]) -> None:
    for cls in both:
        assert cls(name="a").parts is not cls(name="a").parts


@dataclass(frozen=True, slots=True)
class Point:
    """A class that pickles find."""

    x: float
    y: float = 0.0


@dataclass(frozen=True, slots=True)
class Named(Point):
    """One with fields of another, and a constructor's last step."""

    name: str = "here"

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name.upper())


def test_frozen_values_are_pickled_and_copied() -> None:
    made = Named(1.0, name="a")
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == made
    assert made.name == "A" and made != Point(1.0) and repr(made) == "Named(x=1.0, y=0.0, name='A')"


def test_own_methods_stay() -> None:
    @dataclass(frozen=True, slots=True)
    class Own:
        x: int

        def __init__(self) -> None:
            object.__setattr__(self, "x", 5)

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

        def __repr__(self) -> str:
            return "own"

    assert (Own().x, Own() == 3, hash(Own()), repr(Own())) == (5, True, 7, "own")


def test_assigning_to_a_frozen_value_names_the_field() -> None:
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'x'"):
        Point(1.0).x = 2.0  # type: ignore[misc]


def test_default_before_a_field_without_one_is_refused() -> None:
    @dataclass
    class Wrong:
        x: int = 1
        y: int  # type: ignore[misc]

    with pytest.raises(TypeError, match=r"Wrong.*without a default follows one that has it"):
        Wrong(1, 2)


def test_concurrent_first_use_is_safe() -> None:
    for _ in range(50):
        cls = row(dataclass, {"frozen": True, "slots": True})
        gate, found = threading.Barrier(4), []

        def work(cls: Any = cls, gate: Any = gate, found: Any = found) -> None:  # noqa: ANN401
            gate.wait()
            found.append(cls(name="a") == cls(name="a"))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert found == [True] * 4


def test_fields_of_bases_stand_before_own_ones() -> None:
    @dataclass(frozen=True, slots=True)
    class Wide(Point):
        y: float = 3.0
        z: float = 1.0

    assert [(f.name, f.type, f.default) for f in dataclasses.fields(Wide)][1:] == [
        ("y", float, 3.0), ("z", float, 1.0)
    ]  # fmt: skip
    assert Wide(0.0) == Wide(0.0, 3.0, 1.0) and Wide.__slots__ == ("z",)  # type: ignore[attr-defined]


def test_python_derives_its_own_dataclasses_from_ours() -> None:
    @dataclasses.dataclass
    class Derived(row(dataclass, {})):  # type: ignore[misc]
        last: int = 9

    assert Derived("a").last == 9 and Derived("a", 1, [2], last=3).parts == [2]


def test_default_that_instances_would_share_is_refused() -> None:
    @dataclass(frozen=True, slots=True)
    class Wrong:
        tags: list[str] = []  # noqa: RUF012

    with pytest.raises(ValueError, match="mutable default"):
        Wrong()


def test_field_may_have_a_default_of_a_base_that_is_no_dataclass() -> None:
    class Base:
        size = 5

    @dataclass
    class Derived(Base):
        size: int

    assert Derived().size == 5  # type: ignore[call-arg]
