"""Parser of target strings and dictionaries: options, JSON, tags."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence

from ekiden.runtime.debug.short_repr import short_repr
from ekiden.runtime.errors import CompileError
from ekiden.target.facts import FACT_OPTION_ALIASES, FACT_OPTIONS
from ekiden.target.kinds import TARGET_KINDS, TargetKind
from ekiden.target.tags import TARGET_TAGS

Config = dict[str, object]
"""Parsed target: kind, options by name, and host if given."""


def parse_target_config(target: str | Mapping[str, object]) -> Config:
    """Return a typed configuration from a string, a tag, JSON or a dictionary. Raises CompileError
    for an unknown kind, tag or option, or for a value that is no target.
    """
    if isinstance(target, Mapping):
        return _validate_options(dict(target))
    source: object = target  # whatever the caller's types say
    if not isinstance(source, str):
        raise CompileError(f"target: one text or dictionary expected, got {short_repr(source)}")
    text = source.strip()
    if text.startswith("{"):
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError) as error:  # also numbers of more than 4,300 digits
            raise CompileError(f"target: wrong JSON: {error}") from error
        return _validate_options(parsed)
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise CompileError(f"target: wrong text {target!r}: {error}") from error
    if not words:
        raise CompileError(f"target: expected a kind and options, got {target!r}")
    options = _parse_options(words[1:])
    if words[0] in TARGET_TAGS:
        return _validate_options({**TARGET_TAGS[words[0]], "tag": words[0], **options})
    _target_kind(words[0], target)
    return _validate_options({"kind": words[0], **options})


def _target_kind(name: object, source: object) -> TargetKind:
    """Look up a target kind by name. Raises CompileError if it is unknown."""
    if isinstance(name, TargetKind):
        return name
    if name not in TARGET_KINDS:
        kind_names = ", ".join(TARGET_KINDS)
        hint = f"; tags are {', '.join(TARGET_TAGS)}" if "/" in str(name) else ""
        raise CompileError(f"target: unknown kind in {source!r}; there are {kind_names}{hint}")
    return TARGET_KINDS[str(name)]


def _parse_options(words: Sequence[str]) -> Config:
    """Parse options written as -name=value, -name value, or -name for a flag."""
    options: Config = {}
    name = ""
    for word in words:
        if word.startswith("-") and word.strip("-"):
            name, equals, value = word.lstrip("-").partition("=")
            if name in options:
                raise CompileError(f"target: option -{name} is given twice, in {' '.join(words)!r}")
            options[name] = value if equals else True
        # The value may also be the next word: `-name value`.
        elif name and options[name] is True:
            options[name] = word
        else:
            raise CompileError(f"target: expected options -name=value, got {word!r}")
    return options


def _validate_options(config: Config) -> Config:
    """Return the configuration under canonical names, each option validated against the kind and
    typed.
    """
    if "kind" not in config:
        tag = config.pop("tag", None)
        if tag not in TARGET_TAGS:
            raise CompileError(f"target: expected a 'kind', got {config!r}")
        config = {**TARGET_TAGS[str(tag)], "tag": tag, **config}
    kind = _target_kind(config["kind"], config["kind"])
    checked: Config = {"kind": kind}
    for written, value in config.items():
        name = FACT_OPTION_ALIASES.get(written, written) if kind.is_cpu else written
        if name == "kind" or value is None or (name == "tag" and not value):
            continue
        allowed = (*FACT_OPTIONS, *kind.option_table) if kind.is_cpu else tuple(kind.option_table)
        if name != "host" and name not in allowed:
            listed = ", ".join(f"-{option}=" for option in (*allowed, "host"))
            raise CompileError(f"target: {kind.name}: unknown option {name!r}; there are {listed}")
        if name in checked:
            raise CompileError(f"target: option -{name} is given twice, once as another name of it")
        checked[name] = _convert_option(kind, name, value)
    return checked


def _convert_option(kind: TargetKind, name: str, value: object) -> object:
    """Convert an option to its declared type; processor facts are returned unchanged."""
    option = kind.option_table.get(name)
    if option is None:
        return value
    if option.type is str:
        text = str(value).removesuffix(option.default_suffix)
        if option.pattern and not re.fullmatch(option.pattern, text):
            expected = option.expected
            raise CompileError(f"target: option -{name} must be {expected}, got {text!r}")
        return text
    if option.type is bool and str(value).lower() in ("1", "true", "0", "false"):
        return str(value).lower() in ("1", "true")
    if option.type is int and re.fullmatch(r"-?[0-9]+", str(value)):
        if int(str(value)) < option.minimum:
            raise CompileError(
                f"target: option -{name} must be at least {option.minimum}, got {value}"
            )
        return int(str(value))
    if option.type not in (int, bool):
        listed = value.split(",") if isinstance(value, str) else value
        if isinstance(listed, Sequence):
            return tuple(map(str, listed))
    expected = {int: "a number", bool: "0 or 1"}.get(option.type, "a list")
    raise CompileError(f"target: option -{name} must be {expected}, got {value!r}")


def format_option(value: object) -> str:
    """Format an option's value as text."""
    if isinstance(value, bool):
        return str(int(value))
    return shlex.quote(",".join(value) if isinstance(value, tuple) else str(value))


__all__ = ["Config", "format_option", "parse_target_config"]
