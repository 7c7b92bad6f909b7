"""Compiler of JSON schemas to regular expressions, for constrained decoding.

Properties come in the order of the schema, values with at most one space after a colon or comma. A
keyword that the pattern cannot hold is refused by name: an answer never breaks its schema.
References that lead into themselves, and values without a schema, are groups that are called
(`pushdown`); other schemas are regular expressions.

Source: JSON Schema 2020-12; RFC 8259 for the forms of values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ekiden.frontend.onnx.regex import RegexError
from ekiden.llm.json_numbers import MAX_BOUND, integer_range_pattern, number_range_pattern
from ekiden.llm.json_strings import JSON_CHAR, json_string_pattern
from ekiden.runtime.errors import InputError

__all__ = ["json_object_pattern", "json_schema_pattern"]

MAX_PATTERN_CHARS = 200_000
"""Of an expression: references may double it with each of their levels."""
MAX_TOTAL_CHARS = 10 * MAX_PATTERN_CHARS
"""Of all parts of an expression, which bounds the time and memory that a hostile schema takes."""
MAX_SCHEMA_DEPTH = 64
_ANNOTATIONS = frozenset({
    "title", "description", "default", "examples", "$schema", "$id", "$comment", "$defs",
    "definitions", "deprecated", "readOnly", "writeOnly",
})  # fmt: skip
"""Keywords that say nothing about a value."""
_INTEGER = "-?(0|[1-9][0-9]*)"
_NUMBER = rf"{_INTEGER}(\.[0-9]+)?([eE][+-]?[0-9]+)?"
_DATE = "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_HEX = "[0-9a-fA-F]"
_FORMATS: Mapping[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": f"{_HEX}{{8}}(-{_HEX}{{4}}){{3}}-{_HEX}{{12}}",
}
"""Formats of texts (RFC 3339, RFC 9562)."""
_VALUE, _OBJECT, _ARRAY, _MEMBER = "json", "json_object", "json_array", "json_member"
_ANY_GROUPS: Mapping[str, str] = {
    _VALUE: rf'(?&{_OBJECT})|(?&{_ARRAY})|"{JSON_CHAR}*"|{_NUMBER}|true|false|null',
    _OBJECT: rf"\{{((?&{_MEMBER})(, ?(?&{_MEMBER}))*)?\}}",
    _ARRAY: rf"\[((?&{_VALUE})(, ?(?&{_VALUE}))*)?\]",
    _MEMBER: rf'"{JSON_CHAR}*": ?(?&{_VALUE})',
}
"""Any value (RFC 8259), by the names of groups."""


def json_object_pattern() -> str:
    """Return the pattern of any object in JSON."""
    return _define(_ANY_GROUPS, f"(?&{_OBJECT})")


def json_schema_pattern(schema: object, prefix: str = "") -> str:
    """Return the pattern of a schema's values as JSON. Raises InputError for an invalid schema, one
    that needs too large a pattern, or an unsupported keyword. Names of its groups begin with
    `prefix`, by which several patterns can be parts of one.
    """
    compiler = _SchemaCompiler(schema, prefix)
    return _define(compiler.groups, compiler.value(schema, ()))


def _define(groups: Mapping[str, str], pattern: str) -> str:
    """Return a pattern with the named groups that it calls."""
    definitions = "".join(f"(?<{name}>{group})" for name, group in groups.items())
    return f"(?(DEFINE){definitions}){pattern}" if groups else pattern


class _SchemaCompiler:
    """Compiler of one schema; `path` is the JSON path for error messages."""

    def __init__(self, root: object, prefix: str) -> None:
        self._root, self._prefix = root, prefix
        self._total_chars = 0
        self._patterns: dict[str, str] = {}
        """By reference."""
        self._open: dict[str, str] = {}
        """Reference that is being compiled -> the group that it is called by."""
        self.groups: dict[str, str] = {}
        """The groups that the pattern calls."""

    def value(self, schema: object, path: tuple[str, ...]) -> str:
        """Return the expression of a schema's values."""
        if len(path) > MAX_SCHEMA_DEPTH:
            raise self._error(path, "is recursive, or too deep")
        if schema is True:
            return self._any_value(_VALUE)
        if not isinstance(schema, Mapping):
            raise self._error(path, f"an object expected, got {json.dumps(schema)[:64]}")
        keywords = {key: entry for key, entry in schema.items() if key not in _ANNOTATIONS}
        for key, rule in _RULES.items():
            if key in keywords:
                return self._count(rule(self, keywords, path), path)
        if not keywords:
            return self._any_value(_VALUE)
        raise self._error(path, f"one of {', '.join(map(repr, _RULES))} expected")

    def _any_value(self, name: str) -> str:
        """Return the call of the named group of arbitrary values."""
        self.groups.update(_ANY_GROUPS)
        return f"(?&{name})"

    def _count(self, pattern: str, path: tuple[str, ...]) -> str:
        """Count the characters of a subpattern towards the limit. Raises InputError for too
        many.
        """
        self._total_chars += len(pattern)
        if len(pattern) > MAX_PATTERN_CHARS or self._total_chars > MAX_TOTAL_CHARS:
            raise self._error(path, "is too large")
        return pattern

    def reference(self, keywords: Mapping[str, Any], path: tuple[str, ...]) -> str:
        """Return the expression of a local reference's target."""
        self._check_keywords(keywords, {"$ref"}, path)
        reference, target = keywords["$ref"], self._root
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise self._error(path, f"a local reference expected, got {json.dumps(reference)[:64]}")
        if reference in self._patterns:
            return self._patterns[reference]
        if reference in self._open:
            group = self._open[reference] or f"{self._prefix}group{len(self.groups)}"
            self._open[reference] = group
            self.groups.setdefault(group, "")
            return f"(?&{group})"
        for step in filter(None, reference[1:].split("/")):
            key = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, Mapping) or key not in target:
                raise self._error(path, f"'{reference[:64]}' leads nowhere")
            target = target[key]
        self._open[reference] = ""
        pattern = self.value(target, (*path, reference))
        if group := self._open.pop(reference):  # it led into itself
            self.groups[group] = pattern
            pattern = f"(?&{group})"
        self._patterns[reference] = pattern
        return pattern

    def constants(self, keywords: Mapping[str, Any], path: tuple[str, ...]) -> str:
        """Return the expression of "enum" or "const"."""
        self._check_keywords(keywords, {"enum", "const", "type"}, path)
        values = [keywords["const"]] if "const" in keywords else keywords["enum"]
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            raise self._error(path, "a list of values expected as 'enum'")
        texts = [json.dumps(value, ensure_ascii=False, separators=(",", ":")) for value in values]
        return f"({'|'.join(map(_escape, texts))})"

    def alternatives(self, keywords: Mapping[str, Any], path: tuple[str, ...]) -> str:
        """Return the expression of "anyOf"."""
        self._check_keywords(keywords, {"anyOf"}, path)
        schemas = keywords["anyOf"]
        if not isinstance(schemas, Sequence) or isinstance(schemas, str) or not schemas:
            raise self._error(path, "a list of schemas expected as 'anyOf'")
        options = (self.value(s, (*path, f"anyOf[{n}]")) for n, s in enumerate(schemas))
        return f"({'|'.join(options)})"

    def typed(self, keywords: Mapping[str, Any], path: tuple[str, ...]) -> str:
        """Return the expression of the values of a type, or of several."""
        kinds = keywords["type"]
        if isinstance(kinds, list) and kinds:
            type_keywords = {key for kind in kinds for key in _TYPE_KEYWORDS.get(str(kind), ())}
            self._check_keywords(keywords, {"type", *type_keywords}, path)
            return f"({'|'.join(self._of_kind(kind, keywords, path) for kind in kinds)})"
        self._check_keywords(keywords, {"type", *_TYPE_KEYWORDS.get(str(kinds), ())}, path)
        return self._of_kind(kinds, keywords, path)

    def _of_kind(self, kind: object, keywords: Mapping[str, Any], path: tuple[str, ...]) -> str:
        match kind:
            case "object":
                return self._object(keywords, path)
            case "array":
                return self._array(keywords, path)
            case "string":
                return self._string(keywords, path)
            case "integer":
                return self._number(keywords, path, is_integer=True)
            case "number":
                return self._number(keywords, path, is_integer=False)
            case "boolean":
                return "(true|false)"
            case "null":
                return "null"
        raise self._error(path, f"'type': {json.dumps(kind)[:64]} is no type")

    def _number(self, keywords: Mapping[str, Any], path: tuple[str, ...], is_integer: bool) -> str:
        """Return the expression of numbers within bounds."""
        bounds: dict[str, int] = {}
        for key in _TYPE_KEYWORDS["number"]:
            value = keywords.get(key)
            if value is None:
                continue
            if type(value) not in (int, float) or value % 1 or abs(value) > MAX_BOUND:
                raise self._error(path, f"'{key}': a whole number up to {MAX_BOUND} expected")
            bounds[key] = int(value)
        if not bounds:
            return _INTEGER if is_integer else _NUMBER
        low, is_above = _tighter(bounds.get("minimum"), bounds.get("exclusiveMinimum"), 1)
        high, is_below = _tighter(bounds.get("maximum"), bounds.get("exclusiveMaximum"), -1)
        if is_integer:
            low = None if low is None else low + is_above
            high = None if high is None else high - is_below
            pattern = integer_range_pattern(low, high)
        else:
            pattern = number_range_pattern(low, high, is_above, is_below)
        if not pattern:
            raise self._error(path, "there is no number between its bounds")
        return pattern

    def _string(self, keywords: Mapping[str, Any], path: tuple[str, ...]) -> str:
        if "pattern" in keywords:
            return self._matched_string(keywords, path)
        if "format" not in keywords:
            return f'"{JSON_CHAR}{self._repetition(keywords, "minLength", "maxLength", path)}"'
        form = _FORMATS.get(str(keywords["format"]))
        if form is None or len(keywords.keys() & {"minLength", "maxLength"}):
            expected = ", ".join(_FORMATS)
            raise self._error(path, f"'format': one of {expected}, without lengths, expected")
        return f'"{form}"'

    def _matched_string(self, keywords: Mapping[str, Any], path: tuple[str, ...]) -> str:
        if beside := sorted(keywords.keys() & {"minLength", "maxLength", "format"}):
            raise self._error(path, f"'{beside[0]}' is not supported beside 'pattern'")
        if not isinstance(keywords["pattern"], str):
            raise self._error(path, "'pattern': a regular expression expected")
        try:
            return json_string_pattern(keywords["pattern"])
        except RegexError as error:
            raise self._error(path, f"'pattern': {error}") from error

    def _array(self, keywords: Mapping[str, Any], path: tuple[str, ...]) -> str:
        item = self.value(keywords.get("items", True), (*path, "items"))
        minimum, maximum = self._bounds(keywords, "minItems", "maxItems", path)
        if maximum == 0:
            return r"\[\]"
        upper = "" if maximum is None else maximum - 1
        items = f"{item}(, ?{item}){{{max(minimum - 1, 0)},{upper}}}"
        return rf"\[{items}\]" if minimum else rf"\[({items})?\]"

    def _object(self, keywords: Mapping[str, Any], path: tuple[str, ...]) -> str:
        properties, required = keywords.get("properties", {}), keywords.get("required", [])
        if not isinstance(properties, Mapping) or not _is_string_list(required):
            raise self._error(path, "'properties' and a list of names 'required' expected")
        additional = keywords.get("additionalProperties", "properties" not in keywords)
        if not properties and not required and additional is not False:
            return self._any_object(additional, path)
        # Where others are allowed, an object without any is one of the schema too.
        if not isinstance(additional, bool):
            raise self._error(path, "'additionalProperties' are not supported beside 'properties'")
        if unknown := [name for name in required if name not in properties]:
            raise self._error(path, f"'required': '{unknown[0][:64]}' is no property")
        # Built from the last property: `first` where none came before, `later` after a comma.
        first = later = ""
        for name, schema in reversed(list(properties.items())):
            key = _escape(json.dumps(name, ensure_ascii=False))
            entry = f"{key}: ?{self.value(schema, (*path, name))}"
            if name in required:
                first, later = f"{entry}{later}", f", ?{entry}{later}"
            else:
                first = f"({entry}{later}|{first})" if first else f"({entry}{later})?"
                later = f"(, ?{entry})?{later}"
            self._count(first, path)
        return rf"\{{{first}\}}"

    def _any_object(self, schema: object, path: tuple[str, ...]) -> str:
        """Return the expression of objects of any names, with values of a schema."""
        if schema is True:
            return self._any_value(_OBJECT)
        value = self.value(schema, (*path, "additionalProperties"))
        member = f'"{JSON_CHAR}*": ?{value}'
        return rf"\{{({member}(, ?{member})*)?\}}"

    def _repetition(
        self, keywords: Mapping[str, Any], least: str, most: str, path: tuple[str, ...]
    ) -> str:
        minimum, maximum = self._bounds(keywords, least, most, path)
        if minimum == 0 and maximum is None:
            return "*"
        return f"{{{minimum},{'' if maximum is None else maximum}}}"

    def _bounds(
        self, keywords: Mapping[str, Any], least: str, most: str, path: tuple[str, ...]
    ) -> tuple[int, int | None]:
        for key in keywords.keys() & {least, most}:
            if type(keywords[key]) is not int or keywords[key] < 0:
                raise self._error(path, f"'{key}': a whole number from 0 on expected")
        minimum, maximum = keywords.get(least, 0), keywords.get(most)
        if maximum is not None and maximum < minimum:
            raise self._error(path, f"'{most}' is below '{least}'")
        return minimum, maximum

    def _check_keywords(
        self, keywords: Mapping[str, Any], known: set[str], path: tuple[str, ...]
    ) -> None:
        if unknown := sorted(keywords.keys() - known):
            raise self._error(path, f"'{unknown[0][:64]}' is not supported here")

    def _error(self, path: tuple[str, ...], message: str) -> InputError:
        schema_path = "/".join(path[:8])
        return InputError(f"schema{' at ' + schema_path if schema_path else ''}: {message}")


def _is_string_list(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(entry, str) for entry in value)


_Rule = Callable[[_SchemaCompiler, Mapping[str, Any], tuple[str, ...]], str]
_RULES: Mapping[str, _Rule] = {
    "$ref": _SchemaCompiler.reference,
    "enum": _SchemaCompiler.constants,
    "const": _SchemaCompiler.constants,
    "anyOf": _SchemaCompiler.alternatives,
    "type": _SchemaCompiler.typed,
}
"""The first of these keywords that a schema has decides on its form."""
_TYPE_KEYWORDS: Mapping[str, tuple[str, ...]] = {
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "minItems", "maxItems"),
    "string": ("minLength", "maxLength", "format", "pattern"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}


def _tighter(bound: int | None, exclusive: int | None, sign: int) -> tuple[int | None, bool]:
    """Return the tighter of two bounds, and whether it is exclusive; `sign` is 1 for lower ones."""
    if exclusive is None or (bound is not None and sign * bound > sign * exclusive):
        return bound, False
    return exclusive, True


def _escape(text: str) -> str:
    """Escape a text as a pattern."""
    return re.sub(
        r"([^\w ])", lambda found: "\\" + found[0] if found[0].isascii() else found[0], text
    )
