"""User values as messages show them."""

from __future__ import annotations

from collections.abc import Mapping

MAX_SHOWN_CHARS = 120
MAX_SHOWN_ELEMENTS = 4


def short_repr(value: object) -> str:
    """Return a short representation of a value for messages: numbers, texts and small containers as
    Python prints them, an array as dtype and shape, other objects as their class.
    """
    if isinstance(value, (str, bytes)):
        return repr(value) if len(value) <= MAX_SHOWN_CHARS else f"{value[:MAX_SHOWN_CHARS]!r}..."
    if value is None or isinstance(value, (bool, int, float, complex)):
        return repr(value)
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{type(value).__name__} of {value.dtype}{_format_shape(value.shape)}"
    if isinstance(value, (list, tuple, set, frozenset, Mapping)):
        return _format_container(value)
    return f"an object of class {type(value).__name__!r}"


def _format_shape(shape: object) -> str:
    return f"({', '.join(map(str, shape))})" if isinstance(shape, tuple) else ""


def _format_container(value: object) -> str:
    """Return the first elements of a container; of a nested one the class name alone."""
    assert isinstance(value, (list, tuple, set, frozenset, Mapping))
    first = [item for item, _ in zip(value, range(MAX_SHOWN_ELEMENTS), strict=False)]
    if isinstance(value, Mapping):
        texts = [f"{_format_element(key)}: {_format_element(value[key])}" for key in first]
    else:
        texts = [_format_element(shown_item) for shown_item in first]
    if len(value) > len(first):
        texts.append("...")
    ends = "[]" if isinstance(value, list) else "()" if isinstance(value, tuple) else "{}"
    return f"{ends[0]}{', '.join(texts)}{ends[1]}"


def _format_element(value: object) -> str:
    if (
        isinstance(value, (list, tuple, set, frozenset, Mapping))
        and len(value) > MAX_SHOWN_ELEMENTS
    ):
        return f"{type(value).__name__} of {len(value)} elements"
    return short_repr(value)
