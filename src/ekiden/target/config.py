"""The texts of targets: words with options, JSON, tags; and dictionaries."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence

from ekiden.runtime.debug.shown import shown
from ekiden.runtime.errors import CompileError
from ekiden.target.facts import OPTIONS, SAME
from ekiden.target.kinds import KINDS, TargetKind
from ekiden.target.tags import TAGS

Config = dict[str, object]
"""What a target's text says: "kind", perhaps "host", and options by name."""


def read_config(target: str | Mapping[str, object]) -> Config:
    """A configuration with values of the right types, from a text, a tag, JSON or a dictionary.

    Raises CompileError for a kind, tag or option that there is not, and for what is no target.
    """
    if isinstance(target, Mapping):
        return _checked(dict(target))
    given: object = target  # whatever the caller's types say
    if not isinstance(given, str):
        raise CompileError(f"target: one text or dictionary expected, got {shown(given)}")
    text = given.strip()
    if text.startswith("{"):
        try:
            found = json.loads(text)
        except json.JSONDecodeError as error:
            raise CompileError(f"target: wrong JSON: {error}") from error
        return _checked(found)
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise CompileError(f"target: wrong text {target!r}: {error}") from error
    if not words:
        raise CompileError(f"target: expected a kind and options, got {target!r}")
    options = _options(words[1:])
    if words[0] in TAGS:
        return _checked({**TAGS[words[0]], "tag": words[0], **options})
    _kind(words[0], target)
    return _checked({"kind": words[0], **options})


def _kind(name: object, whole: object) -> TargetKind:
    if isinstance(name, TargetKind):
        return name
    if name not in KINDS:
        known = ", ".join(KINDS)
        hint = f"; tags are {', '.join(TAGS)}" if "/" in str(name) else ""
        raise CompileError(f"target: unknown kind in {whole!r}; there are {known}{hint}")
    return KINDS[str(name)]


def _options(words: Sequence[str]) -> Config:
    """Of -name=value, -name value, or -name for a flag."""
    found: Config = {}
    name = ""
    for word in words:
        if word.startswith("-") and word.strip("-"):
            name, equals, value = word.lstrip("-").partition("=")
            if name in found:
                raise CompileError(f"target: option -{name} is given twice, in {' '.join(words)!r}")
            found[name] = value if equals else True
        elif name and found[name] is True:
            found[name] = word
        else:
            raise CompileError(f"target: expected options -name=value, got {word!r}")
    return found


def _checked(given: Config) -> Config:
    """The same under our names, with every option known to the kind and of its type."""
    if "kind" not in given:
        tag = given.pop("tag", None)
        if tag not in TAGS:
            raise CompileError(f"target: expected a 'kind', got {given!r}")
        given = {**TAGS[str(tag)], "tag": tag, **given}
    kind = _kind(given["kind"], given["kind"])
    found: Config = {"kind": kind}
    for written, value in given.items():
        name = SAME.get(written, written) if kind.is_cpu else written
        if name == "kind" or value is None or (name == "tag" and not value):
            continue
        known = (*OPTIONS, *kind.option_table) if kind.is_cpu else tuple(kind.option_table)
        if name != "host" and name not in known:
            listed = ", ".join(f"-{each}=" for each in (*known, "host"))
            raise CompileError(f"target: {kind.name}: unknown option {name!r}; there are {listed}")
        if name in found:
            raise CompileError(f"target: option -{name} is given twice, once as another name of it")
        found[name] = _typed(kind, name, value)
    return found


def _typed(kind: TargetKind, name: str, value: object) -> object:
    """An option of the kind in its type; a fact as it is."""
    option = kind.option_table.get(name)
    if option is None:
        return value
    if option.type is str:
        text = str(value).removesuffix(option.usual)
        if option.form and not re.fullmatch(option.form, text):
            expected = option.expected
            raise CompileError(f"target: option -{name} must be {expected}, got {text!r}")
        return text
    if option.type is bool and str(value).lower() in ("1", "true", "0", "false"):
        return str(value).lower() in ("1", "true")
    if option.type is int and re.fullmatch(r"-?[0-9]+", str(value)):
        if int(str(value)) < option.least:
            raise CompileError(
                f"target: option -{name} must be at least {option.least}, got {value}"
            )
        return int(str(value))
    if option.type not in (int, bool):
        listed = value.split(",") if isinstance(value, str) else value
        if isinstance(listed, Sequence):
            return tuple(map(str, listed))
    expected = {int: "a number", bool: "0 or 1"}.get(option.type, "a list")
    raise CompileError(f"target: option -{name} must be {expected}, got {value!r}")


def written(value: object) -> str:
    """The value of an option as text."""
    if isinstance(value, bool):
        return str(int(value))
    return shlex.quote(",".join(value) if isinstance(value, tuple) else str(value))


__all__ = ["Config", "read_config", "written"]
