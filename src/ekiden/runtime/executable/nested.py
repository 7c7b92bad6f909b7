"""Arguments that hold arrays, as functions of JAX have them: dictionaries, lists and objects, whose
leaves are inputs that are named after where they are (`params['w']`, `state.step`, `xs[0]`).

The names are all that is needed: an artifact is called in this way without JAX too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ekiden.runtime.errors import InputError

_HEAD = re.compile(r"[A-Za-z_]\w*")
_STEP = re.compile(
    r"""\.([A-Za-z_]\w*) | \[( '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | [^\]'"]+ )\]""", re.VERBOSE
)


@dataclass(frozen=True)
class Leaf:
    """Where an input is: the argument that holds it, and the steps to it."""

    name: str
    head: str
    steps: tuple[tuple[str, object], ...]
    """(as it is written, the key, or None for an attribute)."""

    @staticmethod
    def of(name: str) -> Leaf | None:
        """Return what a name says; None for one that says no such place."""
        head = _HEAD.match(name)
        if head is None:
            return None
        steps: list[tuple[str, object]] = []
        at = head.end()
        while at < len(name):
            step = _STEP.match(name, at)
            if step is None:
                return None
            steps.append((step[0], None if step[1] is not None else _key(step[2])))
            at = step.end()
        return Leaf(name, head[0], tuple(steps))

    def find(self, argument: object) -> object:
        """Return the leaf of an argument. Raises InputError where it has none there."""
        value = argument
        for index, (text, key) in enumerate(self.steps):
            try:
                value = getattr(value, text[1:]) if key is None else value[key]  # type: ignore[index]
            except (AttributeError, LookupError, TypeError):
                holder = self.head + "".join(step for step, _ in self.steps[:index])
                got = type(value).__name__
                raise InputError(
                    f"run: input {self.name!r} is missing: {holder!r} is a {got} without {text}"
                ) from None
        return value


def _key(text: str) -> object:
    try:
        key: object = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
    return key


class Nesting:
    """The inputs of a program of which some are parts of arguments."""

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        self._leaves = leaves
        self._heads = list(dict.fromkeys(leaf.head for leaf in leaves))

    @staticmethod
    def of(names: Sequence[str]) -> Nesting | None:
        """Return those of these names; None where no name is of a part of an argument."""
        leaves = [Leaf.of(name) for name in names]
        known = [leaf for leaf in leaves if leaf is not None]
        if len(known) < len(leaves) or not any(leaf.steps for leaf in known):
            return None
        return Nesting(known)

    def is_meant(self, args: Sequence[object], named: Mapping[str, object]) -> bool:
        """Whether a call gives arguments that hold arrays, not the arrays one by one. Where all
        names have dots alone, as other frameworks write names too, only objects hold any.
        """
        values = [*args, *named.values()]
        if all(key is None for leaf in self._leaves for _, key in leaf.steps):
            values = [v for v in values if hasattr(v, "_fields") or not _is_container(v)]
        return any(map(_holds, values))

    def flat(self, args: Sequence[object], named: Mapping[str, object]) -> list[object]:
        """Return the inputs in their order. Raises InputError for an argument that is missing, left
        over, or has other leaves than the program.
        """
        free = [head for head in self._heads if head not in named]
        given = list(args)
        if len(given) > len(free):
            given = [each for each in given if not _is_empty(each)]
        if len(given) != len(free):
            names = ", ".join(f"'{head}'" for head in free)
            raise InputError(f"run: expected {len(free)} arguments ({names}), got {len(given)}")
        whole = {**dict(zip(free, given, strict=True)), **named}
        unknown = [name for name in named if name not in self._heads]
        if unknown:
            names = ", ".join(f"'{head}'" for head in self._heads)
            raise InputError(f"run: no argument is named '{unknown[0]}'; there are {names}")
        self._check_leaves(whole)
        return [leaf.find(whole[leaf.head]) for leaf in self._leaves]

    def _check_leaves(self, whole: Mapping[str, object]) -> None:
        """Raise InputError for an array that the program has no input for."""
        known = {leaf.head + "".join(text for text, _ in leaf.steps) for leaf in self._leaves}
        for head, argument in whole.items():
            for place in _places(head, argument):
                if place not in known and not _is_inside(place, known):
                    raise InputError(f"run: the program has no input {place!r}")


def _is_inside(place: str, known: set[str]) -> bool:
    """Whether inputs are parts of what is there: an object of a class of its own."""
    return any(name.startswith(place) for name in known)


def _places(head: str, argument: object) -> Iterator[str]:
    """Yield where the leaves of dictionaries, lists and tuples are, as JAX writes it."""
    waiting = [(head, argument)]
    while waiting:
        place, value = waiting.pop()
        if value is None:
            continue
        if isinstance(value, Mapping):
            waiting += [(f"{place}[{key!r}]", each) for key, each in value.items()]
        elif isinstance(value, tuple) and hasattr(value, "_fields"):
            waiting += [(f"{place}.{name}", getattr(value, name)) for name in value._fields]
        elif isinstance(value, (list, tuple)):
            waiting += [(f"{place}[{index}]", each) for index, each in enumerate(value)]
        else:
            yield place


def _is_container(value: object) -> bool:
    return isinstance(value, (Mapping, list, tuple))


def _holds(value: object) -> bool:
    """Whether a value holds arrays, and is none itself."""
    if _is_container(value):
        return True
    is_array = hasattr(value, "dtype") or hasattr(value, "__dlpack__")
    return not is_array and not isinstance(value, (int, float, complex, str, bytes, np.generic))


def _is_empty(value: object) -> bool:
    """Whether a value has no leaves, as None has none in JAX."""
    return next(_places("", value), None) is None
