"""Cost model of chat templates: what a step is, what an operation costs, and the limits.

A template of a downloaded model is a program that others wrote. Its loops, macros and operators are
charged before they run: steps for time, bytes for memory. A row of FILTER_COSTS, TEST_COSTS or
METHOD_COSTS says how much an operation of that name can take, given its arguments; most are linear
in their sizes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set, ValuesView
from itertools import chain
from typing import Any

from ekiden.runtime.errors import InputError

__all__ = [
    "FILTER_COSTS",
    "MAX_NODES",
    "MAX_TEMPLATE_CHARACTERS",
    "METHOD_COSTS",
    "TEST_COSTS",
    "Cost",
    "TemplateBudget",
    "charge_binary_operator",
    "charge_constant",
    "charge_contains",
    "charge_copy",
    "charge_format_method",
    "charge_linear",
    "charge_time",
]

MAX_TEMPLATE_CHARACTERS = 1 << 18
"""Length of a template: ten times that of the longest known."""
MAX_NODES = 1 << 14
"""Nodes of a template's syntax tree: more take longer than two seconds to compile."""
MAX_STEPS = 10_000_000
"""A step is a node of the syntax tree, or BYTES_PER_STEP that an operation reads: about 0.1 us."""
STEPS_PER_PASS = 8
"""The charge of an empty loop's iteration, which takes about 1 us."""
MAX_BYTES = 256 << 20
"""Bytes of all values that a rendering creates."""
MAX_NESTING = 100
"""Depth of lists and dictionaries: hashing and comparing them recurse in C."""
MAX_INTEGER_BITS = 1 << 14
MAX_PRECISION = 1000
BYTES_PER_STEP = 256
ELEMENT_BYTES = 64
"""An element of a list or an entry of a dictionary, with a small value."""
OPAQUE_BYTES = 256
"""The text of an object that has no elements, as an undefined variable."""
WHITESPACE = "".join(chr(code) for code in range(0x3001) if chr(code).isspace())

Cost = Callable[["TemplateBudget", Any, Sequence[Any]], None]
"""Charges an operation: (budget, the value or receiver, the other arguments)."""


class TemplateBudget:
    """Steps and bytes of one rendering, and the sizes of the containers that it has seen.

    Containers do not change while a template is rendered (the sandbox is immutable), so that each
    is measured once: the deep size of `[x, x]` is twice that of x, however often it is nested.
    """

    def __init__(
        self,
        textless_types: tuple[type, ...] = (),
        max_steps: int | None = None,
        max_bytes: int | None = None,
    ) -> None:
        self._textless_types = textless_types
        self._max_steps = MAX_STEPS if max_steps is None else max_steps
        self._max_bytes = MAX_BYTES if max_bytes is None else max_bytes
        self._steps = self._bytes = 0
        self._line = 1
        # Objects are referred to, so that no other one has the id.
        self._measured: dict[int, tuple[object, int, int]] = {}

    def enter(self, line: int, steps: int, num_bytes: int) -> None:
        """Charge one pass through the body of a loop or macro at a line of the template."""
        self._line = line
        self.charge(STEPS_PER_PASS + max(steps, 0), max(num_bytes, 0))

    def charge(self, steps: int = 1, num_bytes: int = 0) -> None:
        """Count steps and created bytes. Raises InputError beyond a limit."""
        self._steps += steps
        self._bytes += num_bytes
        if self._steps > self._max_steps:
            raise self.refusal(f"takes more than {self._max_steps:,} steps")
        if self._bytes > self._max_bytes:
            raise self.refusal(f"creates more than {self._max_bytes:,} bytes of values")

    def refusal(self, text: str) -> InputError:
        """Return the error of a template that exceeds a limit; it names the line of its loop."""
        return InputError(f"messages: the model's chat template (line {self._line}) {text}")

    def measure(self, value: object) -> int:
        """Return the bytes of a value's text and elements at every depth, approximately. Raises
        InputError for a value that is too large or nested too deeply.
        """
        if isinstance(value, (str, bytes)):
            return len(value) + ELEMENT_BYTES
        if isinstance(value, range):
            return len(value) * ELEMENT_BYTES
        if isinstance(value, int):
            if value.bit_length() > MAX_INTEGER_BITS:
                raise self.refusal("computes too large an integer")
            return value.bit_length() // 3 + ELEMENT_BYTES
        known = self._measured.get(id(value))
        if known is not None:
            return known[1]
        if _is_container(value):
            return self._measure_container(value)
        if isinstance(value, self._textless_types):
            raise self.refusal(f"takes a {type(value).__name__} for a value")
        return OPAQUE_BYTES

    def nesting(self, value: object) -> int:
        """Return the depth of a value that was measured."""
        known = self._measured.get(id(value))
        return 0 if known is None else known[2]

    def record_iterator(self, iterator: Iterator[Any], elements: list[Any]) -> None:
        """Measure an iterator as the list whose elements it gives."""
        self._measured[id(iterator)] = (iterator, self.measure(elements), self.nesting(elements))

    def _measure_container(self, root: object) -> int:
        """Measure a container after its elements, without recursion."""
        pending = [root]
        size = 0
        while pending:
            container = pending[-1]
            elements = _elements(container)
            # A container of the caller that contains itself ends here, too: each visit is charged.
            self.charge(4 * len(elements) + 1)
            inner = [e for e in elements if _is_container(e) and id(e) not in self._measured]
            if inner:
                pending += inner
                if len(pending) > self._max_steps:
                    raise self.refusal(f"takes more than {self._max_steps:,} steps")
                continue
            pending.pop()
            size = ELEMENT_BYTES + sum(map(self.measure, elements))
            if size > self._max_bytes:
                raise self.refusal(f"creates more than {self._max_bytes:,} bytes of values")
            depth = 1 + max(map(self.nesting, elements), default=0)
            if depth > MAX_NESTING:
                raise self.refusal(f"nests values more than {MAX_NESTING} deep")
            self._measured[id(container)] = (container, size, depth)
        return size

    def charge_value(self, value: Any) -> Any:  # noqa: ANN401
        """Charge a value that an operation created, and return it."""
        if isinstance(value, (str, bytes, int, list, tuple, dict)):
            self.charge(1, sys.getsizeof(value))
        self.measure(value)
        return value

    def charge_text(self, value: object) -> None:
        """Charge a value's text, which is created where the value is none."""
        size = self.measure(value)
        self.charge(1 + size // BYTES_PER_STEP, size)


_CONTAINER_TYPES = (Mapping, Sequence, Set, ValuesView)


_IS_CONTAINER_TYPE: dict[type, bool] = dict.fromkeys((str, bytes, range), False)
"""Abstract base classes take a microsecond to ask."""


def _is_container(value: object) -> bool:
    kind = type(value)
    is_container = _IS_CONTAINER_TYPE.get(kind)
    if is_container is None:
        is_text = issubclass(kind, (str, bytes))
        is_container = issubclass(kind, _CONTAINER_TYPES) and not is_text
        _IS_CONTAINER_TYPE[kind] = is_container
    return is_container


def _elements(container: object) -> list[object]:
    """Return the elements of a container, of a mapping its keys and values."""
    if isinstance(container, Mapping):
        return list(chain.from_iterable(container.items()))
    assert isinstance(container, Iterable)
    return list(container)


def _count_items(budget: TemplateBudget, value: object) -> int:
    """Return an upper bound of the number of items of an iterable."""
    if isinstance(value, (str, bytes, range, list, tuple, dict)):
        return len(value)
    return budget.measure(value) // ELEMENT_BYTES


def _size(budget: TemplateBudget, values: Sequence[object]) -> int:
    return sum(map(budget.measure, values))


def _widths(values: Sequence[object]) -> int:
    """Return the sum of integers, which may be widths, and of the lengths of strings."""
    integers = sum(abs(value) for value in values if isinstance(value, int))
    return integers + sum(len(value) for value in values if isinstance(value, (str, bytes)))


# The rows' costs.


def charge_constant(budget: TemplateBudget, value: object, rest: Sequence[Any]) -> None:
    """Charge an operation that reads no content."""
    budget.charge(1 + len(rest))


def charge_linear(
    budget: TemplateBudget, value: object, rest: Sequence[Any], factor: int = 1
) -> None:
    """Charge an operation that reads its arguments once."""
    size = budget.measure(value) + _size(budget, rest)
    budget.charge(1 + factor * size // BYTES_PER_STEP)


def charge_slow(budget: TemplateBudget, value: object, rest: Sequence[Any]) -> None:
    """Charge an operation that takes a regular expression or Python code for each character."""
    charge_linear(budget, value, rest, 32)


def charge_copy(budget: TemplateBudget, value: object, rest: Sequence[Any]) -> None:
    """Charge a copy of a container, not of its elements."""
    items = _count_items(budget, value) + sum(_count_items(budget, item) for item in rest)
    budget.charge(1 + items, ELEMENT_BYTES * items)


def charge_padding(budget: TemplateBudget, value: object, rest: Sequence[Any]) -> None:
    """Charge an operation that pads a text, or each of its lines or tabs, to a width."""
    count = 1
    if isinstance(value, str):
        count += value.count("\t") + sum(
            map(value.count, "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")
        )
    elif isinstance(value, bytes):
        count += len(value)
    charge_linear(budget, value, rest)
    budget.charge(1, count * max(_widths(rest), 8))


def charge_search(budget: TemplateBudget, value: object, rest: Sequence[Any]) -> None:
    """Charge a search for a text in another, as CPython's algorithms have it."""
    length = budget.measure(value)
    needle = len(rest[0]) if rest and isinstance(rest[0], (str, bytes)) else 1
    # fastsearch.h compares naively where a table would not pay, else by the two-way algorithm.
    is_naive = length < 2500 or (needle < 100 and length < 30_000) or needle < 6
    factor = max(needle, 1) if is_naive else 16
    budget.charge(1 + length * factor // 1024 + _size(budget, rest) // BYTES_PER_STEP)


def charge_reverse_search(budget: TemplateBudget, value: object, rest: Sequence[Any]) -> None:
    """Charge a search from the end, which compares naively at every length."""
    needle = len(rest[0]) if rest and isinstance(rest[0], (str, bytes)) else 1
    budget.charge(1 + budget.measure(value) * max(needle, 1) // 1024)


def charge_split(budget: TemplateBudget, value: Any, rest: Sequence[Any]) -> None:  # noqa: ANN401
    """Charge a text's division, with the parts that it creates."""
    charge_reverse_search(budget, value, rest)
    separator: Any = next((item for item in rest if isinstance(item, (str, bytes))), None)
    if separator:
        parts = int(value.count(separator)) if isinstance(separator, type(value)) else 0
    elif isinstance(value, str):
        parts = sum(map(value.count, WHITESPACE))
    else:
        parts = len(value)
    limits = [n for n in rest if isinstance(n, int) and not isinstance(n, bool) and n >= 0]
    budget.charge(1, len(value) + ELEMENT_BYTES * (1 + min([parts, *limits])))


def charge_replace(budget: TemplateBudget, value: object, rest: Sequence[Any]) -> None:
    """Charge a replacement, with the text that it creates."""
    charge_search(budget, value, rest)
    old, new = [*rest, "", ""][:2]
    if isinstance(value, str) and isinstance(old, str) and old:
        count = value.count(old)
    else:
        count = budget.measure(value)
    budget.charge(1, budget.measure(value) + count * budget.measure(new))


def charge_translate(budget: TemplateBudget, value: object, rest: Sequence[Any]) -> None:
    """Charge a replacement of characters by texts of a table."""
    budget.charge(1, budget.measure(value) * _size(budget, rest))


def charge_items(budget: TemplateBudget, value: object, rest: Sequence[Any]) -> None:
    """Charge an operation on the items of an iterable, which reads the arguments for each."""
    items = _count_items(budget, value)
    budget.charge(1 + items * (4 + _size(budget, rest) // 16), ELEMENT_BYTES * items)


def charge_sort(budget: TemplateBudget, value: object, rest: Sequence[Any]) -> None:
    """Charge an operation that compares items with each other, or adds them up."""
    charge_items(budget, value, rest)
    items = _count_items(budget, value)
    budget.charge(32 * budget.measure(value) // BYTES_PER_STEP + items * items.bit_length())


def charge_sum(budget: TemplateBudget, value: object, rest: Sequence[Any]) -> None:
    """Charge a sum, which copies lists for each item."""
    charge_items(budget, value, rest)
    is_of_lists = any(_is_container(item) for item in rest)
    budget.charge(1, _count_items(budget, value) * budget.measure(value) if is_of_lists else 0)


def charge_parts(budget: TemplateBudget, value: object, rest: Sequence[Any]) -> None:
    """Charge a division of items into a number of lists."""
    charge_items(budget, value, ())
    budget.charge(1, ELEMENT_BYTES * sum(abs(n) for n in rest if isinstance(n, int)))


def charge_join(budget: TemplateBudget, value: object, rest: Sequence[Any]) -> None:
    """Charge the concatenation of items with a separator."""
    charge_items(budget, value, rest[1:])
    separator = _size(budget, rest[:1])
    budget.charge(1, budget.measure(value) + _count_items(budget, value) * separator)


def charge_join_method(budget: TemplateBudget, value: object, rest: Sequence[Any]) -> None:
    """Charge `separator.join(items)`."""
    charge_join(budget, rest[0] if rest else (), (value,))


def charge_json(budget: TemplateBudget, value: object, rest: Sequence[Any]) -> None:
    """Charge a value's serialization."""
    charge_slow(budget, value, ())
    size = budget.measure(value)
    indentation = _widths(rest) * (1 + budget.nesting(value))
    separators = sum(budget.measure(item) for item in rest if _is_container(item))
    budget.charge(1, 2 * size + (1 + size // ELEMENT_BYTES) * (indentation + separators))


def charge_rounding(budget: TemplateBudget, value: object, rest: Sequence[Any]) -> None:
    """Charge a rounding, which computes 10 to the precision."""
    if any(isinstance(item, int) and abs(item) > MAX_PRECISION for item in rest):
        raise budget.refusal(f"rounds to more than {MAX_PRECISION} digits")
    charge_linear(budget, value, rest)


def charge_percent(budget: TemplateBudget, value: Any, rest: Sequence[Any]) -> None:  # noqa: ANN401
    """Charge `format % arguments`, whose directives have widths and repeat arguments."""
    if not isinstance(value, (str, bytes)):
        charge_linear(budget, value, rest)
        return
    text = value if isinstance(value, str) else value.decode("latin-1")
    digits = sum(int(number[:18]) for number in re.findall("[0-9]+", text))
    arguments: list[object] = []
    for item in rest:
        arguments += item if isinstance(item, tuple) else [item]
    starred = text.count("*") * sum(abs(n) for n in arguments if isinstance(n, int))
    size = _size(budget, rest)
    budget.charge(1, len(text) + digits + starred + text.count("%") * size)


def charge_format_method(budget: TemplateBudget, value: str, rest: Sequence[Any]) -> None:
    """Charge `text.format(...)`. Raises InputError for a width that is computed."""
    fields = re.findall(r"\{[^{}]*(\{)?", value)
    if any(fields) and re.search(r":[^{}]*\{", value):
        raise budget.refusal("formats to a width that is computed")
    digits = sum(int(number[:18]) for number in re.findall("[0-9]+", value))
    budget.charge(1, len(value) + digits + len(fields) * _size(budget, rest))


def charge_time(budget: TemplateBudget, value: object, rest: Sequence[Any]) -> None:
    """Charge the formatting of a time, whose buffer grows to 256 times the format."""
    budget.charge(1, 256 * budget.measure(value))


def charge_binary_operator(
    budget: TemplateBudget,
    symbol: str,
    left: object,
    right: object,
) -> None:
    """Charge an arithmetic operator. Raises InputError for integers that are too long."""
    budget.charge()
    if symbol == "+" and isinstance(left, str) and isinstance(right, str):
        length = len(left) + len(right)
        budget.charge(length // BYTES_PER_STEP, sys.getsizeof(left) + sys.getsizeof(right))
    elif isinstance(left, int) and isinstance(right, int):
        bits = max(left.bit_length(), right.bit_length())
        if symbol == "**":
            bits = max(bits, left.bit_length() * abs(right))
        if bits > MAX_INTEGER_BITS:
            raise budget.refusal("computes too large an integer")
    elif symbol == "%":
        charge_percent(budget, left, (right,))
    elif symbol == "*":
        for value, count in ((left, right), (right, left)):
            if isinstance(count, int) and isinstance(value, (str, bytes, list, tuple)):
                budget.charge(1, sys.getsizeof(value) * max(count, 1))
    elif symbol == "+":
        for value in (left, right):
            if isinstance(value, (str, bytes, list, tuple)):
                budget.charge(1 + len(value) // BYTES_PER_STEP, sys.getsizeof(value))


def charge_contains(budget: TemplateBudget, value: object, rest: Sequence[Any]) -> None:
    """Charge `item in value`."""
    if isinstance(value, (str, bytes)):
        charge_search(budget, value, rest)
    elif isinstance(value, Mapping):
        charge_linear(budget, None, rest)
    else:
        charge_linear(budget, value, rest)


# fmt: off
FILTER_COSTS: dict[str, Cost] = {
    "abs": charge_linear,          "attr": charge_constant,      "batch": charge_parts,
    "capitalize": charge_slow,     "center": charge_padding,     "count": charge_constant,
    "d": charge_constant,          "default": charge_constant,   "dictsort": charge_sort,
    "e": charge_linear,            "escape": charge_linear,      "filesizeformat": charge_linear,
    "first": charge_constant,      "float": charge_linear,       "forceescape": charge_linear,
    "format": charge_percent,      "groupby": charge_sort,       "indent": charge_padding,
    "int": charge_linear,          "items": charge_items,        "join": charge_join,
    "last": charge_constant,       "length": charge_constant,    "list": charge_items,
    "lower": charge_linear,        "map": charge_items,          "max": charge_sort,
    "min": charge_sort,            "random": charge_constant,    "reject": charge_items,
    "rejectattr": charge_items,    "replace": charge_replace,    "reverse": charge_items,
    "round": charge_rounding,      "safe": charge_linear,        "select": charge_items,
    "selectattr": charge_items,    "slice": charge_parts,        "sort": charge_sort,
    "string": charge_linear,       "sum": charge_sum,            "title": charge_slow,
    "tojson": charge_json,         "trim": charge_linear,        "truncate": charge_linear,
    "unique": charge_sort,         "upper": charge_linear,       "urlencode": charge_slow,
    "wordcount": charge_slow,
}
"""The filters that a template may use. Those of HTML and prose (pprint, striptags, urlize,
wordwrap, xmlattr) are no part of chat templates; their time is not linear."""

TEST_COSTS: dict[str, Cost] = {
    **dict.fromkeys(("divisibleby", "even", "odd"), charge_percent),
    **dict.fromkeys(("!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt",
                     "le", "lessthan", "lower", "lt", "ne", "upper"), charge_linear),
    "in": lambda budget, value, rest: charge_contains(budget, [*rest, ""][0], (value,)),
}
"""The tests that read content; others take constant time."""

METHOD_COSTS: dict[str, Cost] = {
    **dict.fromkeys(("center", "expandtabs", "hex", "ljust", "rjust", "to_bytes", "zfill"),
                    charge_padding),
    **dict.fromkeys(("count", "endswith", "find", "index", "partition", "removeprefix",
                     "removesuffix", "startswith"), charge_search),
    **dict.fromkeys(("rfind", "rindex", "rpartition"), charge_reverse_search),
    **dict.fromkeys(("rsplit", "split", "splitlines"), charge_split),
    **dict.fromkeys(("copy", "fromkeys"), charge_copy),
    **dict.fromkeys(("get", "items", "keys", "values"), charge_constant),
    "join": charge_join_method, "replace": charge_replace, "translate": charge_translate,
}
"""The methods of texts, numbers, lists and dictionaries that are not linear."""
# fmt: on
