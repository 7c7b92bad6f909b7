"""Regular expressions of JSON string literals.

A schema's "pattern" matches the value of a string; `json_string_pattern` rewrites it to match the
escaped form between quotes.
"""

from __future__ import annotations

from ekiden.frontend.onnx.regex import PatternParser, RegexError, SyntaxTree

__all__ = ["JSON_CHAR", "json_string_pattern"]

JSON_CHAR = r'([^"\\\x00-\x1f]|\\(["\\/bfnrt]|u[0-9a-fA-F]{4}))'
"""A character between quotes."""
_SHORT_ESCAPES = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: r"\\"}
_ESCAPED = (*range(32), 34, 92)
_BEGIN, _END = ("if", "^"), ("if", "$")


def json_string_pattern(pattern: str) -> str:
    """Return the expression of JSON string literals whose text contains a match of a pattern.
    Raises RegexError for an invalid pattern, and for one that looks at neighbours elsewhere than by
    "^" at its beginning and "$" at its end.
    """
    tree = PatternParser(pattern).parse_pattern()
    options = tree[1] if tree[0] == "alt" else [tree]
    assert isinstance(options, list)
    return f'"({"|".join(_anchored(option) for option in options)})"'


def _anchored(tree: SyntaxTree) -> str:
    """Return the expression of one alternative: without an anchor anything may stand beside it."""
    assert tree[0] == "cat" and isinstance(tree[1], list)
    items = list(tree[1])
    begins, ends = items[:1] == [_BEGIN], items[-1:] == [_END]
    body = "".join(map(_escaped, items[begins : len(items) - ends]))
    return f"{'' if begins else JSON_CHAR + '*'}{body}{'' if ends else JSON_CHAR + '*'}"


def _escaped(tree: SyntaxTree) -> str:
    """Return the expression of the JSON-escaped texts of a syntax tree."""
    match tree:
        case ("set", ranges):
            return _escaped_set(ranges)  # type: ignore[arg-type]
        case ("cat", list(items)):
            return f"({''.join(map(_escaped, items))})"
        case ("alt", list(items)):
            return f"({'|'.join(map(_escaped, items))})"
        case ("rep", tuple(inner), int(least), most):
            return f"{_escaped(inner)}{{{least},{'' if most is None else most}}}"
    raise RegexError("'^', '$', '\\b' and '\\B' are not supported inside a pattern")


def _escaped_set(ranges: tuple[tuple[int, int], ...]) -> str:
    """Return the expression of one JSON-escaped character of a set."""
    options = []
    plain = [plain_range for low, high in ranges for plain_range in _unescaped_ranges(low, high)]
    if plain:
        options.append("[" + "".join(rf"\x{{{a:x}}}-\x{{{b:x}}}" for a, b in plain) + "]")
    for code in _ESCAPED:
        if any(low <= code <= high for low, high in ranges):
            short = _SHORT_ESCAPES.get(code)
            options.append(rf"\\u00{code:02x}" if short is None else rf"\\{short}")
    if not options:
        raise RegexError("an empty set of characters matches nothing")
    return f"({'|'.join(options)})"


def _unescaped_ranges(low: int, high: int) -> list[tuple[int, int]]:
    """Return the parts of a code point range that need no escape in a JSON string."""
    plain_ranges = []
    for first, last in ((32, 33), (35, 91), (93, 0x10FFFF)):
        if max(low, first) <= min(high, last):
            plain_ranges.append((max(low, first), min(high, last)))
    return plain_ranges
