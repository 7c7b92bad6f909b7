"""Pytree arguments (JAX): dictionaries, lists and objects whose leaves are inputs, named by their
path (`params['w']`, `state.step`).

The names are all that is needed: an artifact is called in this way without JAX too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ekiden.runtime.errors import InputError

_ARGUMENT_NAME_PATTERN = re.compile(r"[A-Za-z_]\w*")
_ACCESS_STEP_PATTERN = re.compile(
    r"""\.([A-Za-z_]\w*) | \[( '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | [^\]'"]+ )\]""", re.VERBOSE
)


@dataclass(frozen=True)
class PytreeLeaf:
    """Location of an input: the argument that contains it, and the access steps."""

    name: str
    argument_name: str
    access_steps: tuple[tuple[str, object], ...]
    """(text of the step, key) from the argument to the leaf; the key of an attribute is None."""

    @staticmethod
    def parse(name: str) -> PytreeLeaf | None:
        """Parse an input's name. None for one that says no such place."""
        head = _ARGUMENT_NAME_PATTERN.match(name)
        if head is None:
            return None
        steps: list[tuple[str, object]] = []
        position = head.end()
        while position < len(name):
            step = _ACCESS_STEP_PATTERN.match(name, position)
            if step is None:
                return None
            steps.append((step[0], None if step[1] is not None else _parse_key(step[2])))
            position = step.end()
        return PytreeLeaf(name, head[0], tuple(steps))

    def extract_leaf(self, argument: object) -> object:
        """Return the leaf of an argument. Raises InputError if it has none there."""
        value = argument
        for index, (text, key) in enumerate(self.access_steps):
            try:
                value = getattr(value, text[1:]) if key is None else value[key]  # type: ignore[index]
            # A container without subscripts raises TypeError.
            except (AttributeError, LookupError, TypeError):
                holder = self.argument_name + "".join(step for step, _ in self.access_steps[:index])
                type_name = type(value).__name__
                raise InputError(
                    f"run: input {self.name!r} is missing: {holder!r} is a {type_name} "
                    f"without {text}"
                ) from None
        return value


def _parse_key(text: str) -> object:
    try:
        key: object = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
    return key


class PytreeInputs:
    """Inputs of a program of which some are leaves of arguments."""

    def __init__(self, leaves: Sequence[PytreeLeaf]) -> None:
        self._leaves = leaves
        self._heads = list(dict.fromkeys(leaf.argument_name for leaf in leaves))

    @staticmethod
    def from_input_names(names: Sequence[str]) -> PytreeInputs | None:
        """Parse input names; return None if none is a leaf of an argument."""
        leaves = [PytreeLeaf.parse(name) for name in names]
        parsed = [leaf for leaf in leaves if leaf is not None]
        # A name that is no access path shows that the names are the model's own.
        if len(parsed) < len(leaves) or not any(leaf.access_steps for leaf in parsed):
            return None
        return PytreeInputs(parsed)

    def passes_containers(self, args: Sequence[object], named: Mapping[str, object]) -> bool:
        """Return whether a call passes containers rather than the arrays one by one. Where all
        names have dots alone, as other frameworks write names too, only objects count as
        containers.
        """
        values = [*args, *named.values()]
        if all(key is None for leaf in self._leaves for _, key in leaf.access_steps):
            values = [v for v in values if hasattr(v, "_fields") or not _is_container(v)]
        return any(map(_contains_arrays, values))

    def flatten(self, args: Sequence[object], named: Mapping[str, object]) -> list[object]:
        """Return the inputs in their order. Raises InputError for an argument that is missing, left
        over, or has other leaves than the program.
        """
        free = [head for head in self._heads if head not in named]
        positional = list(args)
        # None and empty containers have no inputs, but they may also stand for an argument: they
        # are dropped only if there are too many.
        if len(positional) > len(free):
            positional = [argument for argument in positional if not _has_no_leaves(argument)]
        if len(positional) != len(free):
            names = ", ".join(f"'{head}'" for head in free)
            raise InputError(
                f"run: expected {len(free)} arguments ({names}), got {len(positional)}"
            )
        arguments = {**dict(zip(free, positional, strict=True)), **named}
        unknown = [name for name in named if name not in self._heads]
        if unknown:
            names = ", ".join(f"'{head}'" for head in self._heads)
            raise InputError(f"run: no argument is named '{unknown[0]}'; there are {names}")
        self._check_leaves(arguments)
        return [leaf.extract_leaf(arguments[leaf.argument_name]) for leaf in self._leaves]

    def _check_leaves(self, arguments: Mapping[str, object]) -> None:
        """Raise InputError for an array that the program has no input for."""
        input_names = {
            leaf.argument_name + "".join(text for text, _ in leaf.access_steps)
            for leaf in self._leaves
        }
        for head, argument in arguments.items():
            for leaf_name in _leaf_names(head, argument):
                if leaf_name not in input_names and not _has_nested_inputs(leaf_name, input_names):
                    raise InputError(f"run: the program has no input {leaf_name!r}")


def _has_nested_inputs(name_prefix: str, input_names: set[str]) -> bool:
    """Return whether inputs are below a name: the leaf is an object of a user class with leaves of
    its own.
    """
    return any(name.startswith((f"{name_prefix}.", f"{name_prefix}[")) for name in input_names)


def _leaf_names(head: str, argument: object) -> Iterator[str]:
    """Yield the names of the leaves of dictionaries, lists and tuples, in JAX's notation."""
    waiting = [(head, argument)]
    while waiting:
        leaf_name, value = waiting.pop()
        # JAX treats None as a container without leaves.
        if value is None:
            continue
        if isinstance(value, Mapping):
            waiting += [(f"{leaf_name}[{key!r}]", item) for key, item in value.items()]
        # A named tuple is a tuple too, but JAX names its fields, so this test comes first.
        elif isinstance(value, tuple) and hasattr(value, "_fields"):
            waiting += [(f"{leaf_name}.{name}", getattr(value, name)) for name in value._fields]
        elif isinstance(value, (list, tuple)):
            waiting += [(f"{leaf_name}[{index}]", element) for index, element in enumerate(value)]
        else:
            yield leaf_name


def _is_container(value: object) -> bool:
    return isinstance(value, (Mapping, list, tuple))


def _contains_arrays(value: object) -> bool:
    """Return whether a value contains arrays and is none itself."""
    if _is_container(value):
        return True
    is_array = hasattr(value, "dtype") or hasattr(value, "__dlpack__")
    return not is_array and not isinstance(value, (int, float, complex, str, bytes, np.generic))


def _has_no_leaves(value: object) -> bool:
    """Return whether a value has no leaves, as None in JAX."""
    return next(_leaf_names("", value), None) is None
