"""JSON schemas as regular expressions, by which `Grammar` constrains answers.

Properties come in the order of the schema, values with at most one space after a colon or comma. A
keyword that the expression cannot hold is refused by name: an answer never breaks its schema.

Source: JSON Schema 2020-12; RFC 8259 for the forms of values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ekiden.runtime.errors import InputError

__all__ = ["json_schema_pattern"]

MAX_PATTERN_CHARS = 200_000
"""Of an expression: references may double it with each of their levels."""
MAX_TOTAL_CHARS = 10 * MAX_PATTERN_CHARS
"""Of all parts of an expression, which bounds the time and memory that a hostile schema takes."""
MAX_SCHEMA_DEPTH = 64
_ANNOTATION_KEYWORDS = frozenset({
    "title", "description", "default", "examples", "$schema", "$id", "$comment", "$defs",
    "definitions", "deprecated", "readOnly", "writeOnly",
})  # fmt: skip
"""Keywords that say nothing about a value."""
_CHAR_PATTERN = r'([^"\\\x00-\x1f]|\\(["\\/bfnrt]|u[0-9a-fA-F]{4}))'
_INTEGER_PATTERN = "-?(0|[1-9][0-9]*)"
_NUMBER_PATTERN = rf"{_INTEGER_PATTERN}(\.[0-9]+)?([eE][+-]?[0-9]+)?"
_DATE_PATTERN = "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_TIME_PATTERN = (
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
_HEX_DIGIT_PATTERN = "[0-9a-fA-F]"
_FORMAT_PATTERNS: Mapping[str, str] = {
    "date": _DATE_PATTERN,
    "time": _TIME_PATTERN,
    "date-time": f"{_DATE_PATTERN}T{_TIME_PATTERN}",
    "uuid": f"{_HEX_DIGIT_PATTERN}{{8}}(-{_HEX_DIGIT_PATTERN}{{4}}){{3}}"
    f"-{_HEX_DIGIT_PATTERN}{{12}}",
}
"""Formats of texts (RFC 3339, RFC 9562)."""


def json_schema_pattern(schema: object) -> str:
    """Return the regular expression of a schema's values as JSON. Raises InputError for an invalid
    or recursive schema, one that needs too large an expression, or an unsupported keyword.
    """
    return _SchemaCompiler(schema).compile_schema(schema, ())


class _SchemaCompiler:
    """Compiler of one schema; `path` is the location within it for errors."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._total_chars = 0
        self._patterns: dict[str, str] = {}
        """By reference."""

    def compile_schema(self, schema: object, path: tuple[str, ...]) -> str:
        """Return the expression of a schema's values."""
        if len(path) > MAX_SCHEMA_DEPTH:
            raise self._schema_error(path, "is recursive, or too deep")
        if not isinstance(schema, Mapping):
            raise self._schema_error(path, f"an object expected, got {json.dumps(schema)[:64]}")
        keywords = {key: entry for key, entry in schema.items() if key not in _ANNOTATION_KEYWORDS}
        for key, rule in _TYPE_RULES.items():
            if key in keywords:
                return self._count_pattern_chars(rule(self, keywords, path), path)
        raise self._schema_error(path, f"one of {', '.join(map(repr, _TYPE_RULES))} expected")

    def _count_pattern_chars(self, pattern: str, path: tuple[str, ...]) -> str:
        """Count the characters of a subpattern towards the limit. Raises InputError for too
        many.
        """
        self._total_chars += len(pattern)
        if len(pattern) > MAX_PATTERN_CHARS or self._total_chars > MAX_TOTAL_CHARS:
            raise self._schema_error(path, "is too large")
        return pattern

    def compile_reference(self, keywords: Mapping[str, Any], path: tuple[str, ...]) -> str:
        """Return the expression of a local reference's target."""
        self._check_keywords(keywords, {"$ref"}, path)
        reference, target = keywords["$ref"], self._root
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise self._schema_error(
                path, f"a local reference expected, got {json.dumps(reference)[:64]}"
            )
        if reference in self._patterns:
            return self._patterns[reference]
        for step in filter(None, reference[1:].split("/")):
            key = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, Mapping) or key not in target:
                raise self._schema_error(path, f"'{reference[:64]}' leads nowhere")
            target = target[key]
        pattern = self.compile_schema(target, (*path, reference))
        self._patterns[reference] = pattern
        return pattern

    def compile_constants(self, keywords: Mapping[str, Any], path: tuple[str, ...]) -> str:
        """Return the expression of "enum" or "const"."""
        self._check_keywords(keywords, {"enum", "const", "type"}, path)
        values = [keywords["const"]] if "const" in keywords else keywords["enum"]
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            raise self._schema_error(path, "a list of values expected as 'enum'")
        texts = [json.dumps(value, ensure_ascii=False, separators=(",", ":")) for value in values]
        return f"({'|'.join(map(_escape_literal, texts))})"

    def compile_any_of(self, keywords: Mapping[str, Any], path: tuple[str, ...]) -> str:
        """Return the expression of "anyOf"."""
        self._check_keywords(keywords, {"anyOf"}, path)
        schemas = keywords["anyOf"]
        if not isinstance(schemas, Sequence) or isinstance(schemas, str) or not schemas:
            raise self._schema_error(path, "a list of schemas expected as 'anyOf'")
        options = (self.compile_schema(s, (*path, f"anyOf[{n}]")) for n, s in enumerate(schemas))
        return f"({'|'.join(options)})"

    def compile_types(self, keywords: Mapping[str, Any], path: tuple[str, ...]) -> str:
        """Return the expression of the values of a type, or of several."""
        kinds = keywords["type"]
        if isinstance(kinds, list) and kinds:
            known = {key for kind in kinds for key in _TYPE_KEYWORDS.get(str(kind), ())}
            self._check_keywords(keywords, {"type", *known}, path)
            return f"({'|'.join(self._compile_type(kind, keywords, path) for kind in kinds)})"
        self._check_keywords(keywords, {"type", *_TYPE_KEYWORDS.get(str(kinds), ())}, path)
        return self._compile_type(kinds, keywords, path)

    def _compile_type(
        self, kind: object, keywords: Mapping[str, Any], path: tuple[str, ...]
    ) -> str:
        match kind:
            case "object":
                return self._compile_object(keywords, path)
            case "array":
                return self._compile_array(keywords, path)
            case "string":
                return self._compile_string(keywords, path)
            case "integer":
                return _INTEGER_PATTERN
            case "number":
                return _NUMBER_PATTERN
            case "boolean":
                return "(true|false)"
            case "null":
                return "null"
        raise self._schema_error(path, f"'type': {json.dumps(kind)[:64]} is no type")

    def _compile_string(self, keywords: Mapping[str, Any], path: tuple[str, ...]) -> str:
        if "format" not in keywords:
            repetition = self._repetition_quantifier(keywords, "minLength", "maxLength", path)
            return f'"{_CHAR_PATTERN}{repetition}"'
        form = _FORMAT_PATTERNS.get(str(keywords["format"]))
        if form is None or len(keywords.keys() & {"minLength", "maxLength"}):
            expected = ", ".join(_FORMAT_PATTERNS)
            raise self._schema_error(
                path, f"'format': one of {expected}, without lengths, expected"
            )
        return f'"{form}"'

    def _compile_array(self, keywords: Mapping[str, Any], path: tuple[str, ...]) -> str:
        if "items" not in keywords:
            raise self._schema_error(path, "'items' expected for an array")
        item = self.compile_schema(keywords["items"], (*path, "items"))
        minimum, maximum = self._parse_bounds(keywords, "minItems", "maxItems", path)
        if maximum == 0:
            return r"\[\]"
        upper = "" if maximum is None else maximum - 1
        items = f"{item}(, ?{item}){{{max(minimum - 1, 0)},{upper}}}"
        return rf"\[{items}\]" if minimum else rf"\[({items})?\]"

    def _compile_object(self, keywords: Mapping[str, Any], path: tuple[str, ...]) -> str:
        properties, required = keywords.get("properties", {}), keywords.get("required", [])
        if not isinstance(properties, Mapping) or not isinstance(required, list):
            raise self._schema_error(path, "'properties' and a list 'required' expected")
        if keywords.get("additionalProperties", False) is not False:
            raise self._schema_error(
                path, "'additionalProperties' other than false is not supported"
            )
        if unknown := [name for name in required if name not in properties]:
            raise self._schema_error(path, f"'required': '{str(unknown[0])[:64]}' is no property")
        # Built from the last property: `first` where none came before, `later` after a comma.
        first = later = ""
        for name, schema in reversed(list(properties.items())):
            key = _escape_literal(json.dumps(name, ensure_ascii=False))
            entry = f"{key}: ?{self.compile_schema(schema, (*path, name))}"
            if name in required:
                first, later = f"{entry}{later}", f", ?{entry}{later}"
            else:
                first = f"({entry}{later}|{first})" if first else f"({entry}{later})?"
                later = f"(, ?{entry})?{later}"
            self._count_pattern_chars(first, path)
        return rf"\{{{first}\}}"

    def _repetition_quantifier(
        self, keywords: Mapping[str, Any], least: str, most: str, path: tuple[str, ...]
    ) -> str:
        minimum, maximum = self._parse_bounds(keywords, least, most, path)
        if minimum == 0 and maximum is None:
            return "*"
        return f"{{{minimum},{'' if maximum is None else maximum}}}"

    def _parse_bounds(
        self, keywords: Mapping[str, Any], least: str, most: str, path: tuple[str, ...]
    ) -> tuple[int, int | None]:
        minimum, maximum = keywords.get(least, 0), keywords.get(most)
        for key, bound in ((least, minimum), (most, maximum)):
            if bound is not None and (type(bound) is not int or bound < 0):
                raise self._schema_error(path, f"'{key}': a whole number from 0 on expected")
        if maximum is not None and maximum < minimum:
            raise self._schema_error(path, f"'{most}' is below '{least}'")
        return minimum, maximum

    def _check_keywords(
        self, keywords: Mapping[str, Any], known: set[str], path: tuple[str, ...]
    ) -> None:
        if unknown := sorted(keywords.keys() - known):
            raise self._schema_error(path, f"'{unknown[0][:64]}' is not supported here")

    def _schema_error(self, path: tuple[str, ...], message: str) -> InputError:
        place = "/".join(path[:8])
        return InputError(f"schema{' at ' + place if place else ''}: {message}")


_TypeRule = Callable[[_SchemaCompiler, Mapping[str, Any], tuple[str, ...]], str]
_TYPE_RULES: Mapping[str, _TypeRule] = {
    "$ref": _SchemaCompiler.compile_reference,
    "enum": _SchemaCompiler.compile_constants,
    "const": _SchemaCompiler.compile_constants,
    "anyOf": _SchemaCompiler.compile_any_of,
    "type": _SchemaCompiler.compile_types,
}
"""The first of these keywords that a schema has decides on its form."""
_TYPE_KEYWORDS: Mapping[str, tuple[str, ...]] = {
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "minItems", "maxItems"),
    "string": ("minLength", "maxLength", "format"),
}


def _escape_literal(text: str) -> str:
    """Return an expression that matches a text alone."""
    return re.sub(
        r"([^\w ])", lambda found: "\\" + found[0] if found[0].isascii() else found[0], text
    )
