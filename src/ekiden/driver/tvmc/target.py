"""Targets of the command line: "llvm -mcpu=haswell", "cuda, llvm" and "onnxruntime, llvm"."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from ekiden.driver.tvmc.composite_target import get_codegen_names
from ekiden.runtime.errors import InputError
from ekiden.target import Target, TargetLike
from ekiden.target.kinds import TARGET_KINDS
from ekiden.target.tags import TARGET_TAGS

__all__ = [
    "generate_target_args",
    "parse_target",
    "reconstruct_target_args",
    "target_from_cli",
    "tokenize_target",
]

Options = Mapping[str, Mapping[str, object]]
TARGET_OPTIONS: Mapping[str, type] = {
    "device": str, "from_device": int, "keys": str, "libs": str, "mabi": str, "mattr": str,
    "mcpu": str, "mfloat-abi": str, "model": str, "mtriple": str, "num-cores": int, "tag": str,
    "max_num_threads": int, "thread_warp_size": int, "arch": str,
}  # fmt: skip
"""Options of `--target-KIND-OPTION`, with their types."""

_TOKEN = re.compile(
    r"""
    -{0,2}[\w-]+=(?: "[^"]*" | '[^']*' | [^\s,"']*(?:,[^\s,"'-][^\s,"']*)* )  # -name=value
    | -{0,2}[\w-]+                                                           # name or --flag
    | ,                                                                      # between targets
    """,
    re.VERBOSE,
)
"""A value continues behind a comma without a space, unless an option or a quote follows."""


class ParsedTarget(TypedDict):
    """One of the targets between commas: its name, options and text, and whether it is a kind of
    Target rather than a code generator of regions.
    """

    name: str
    opts: dict[str, object]
    raw: str
    is_tvm_target: bool


def tokenize_target(target: str) -> list[str]:
    """Split a text of targets into names, options and the commas between targets."""
    return _TOKEN.findall(target)


def parse_target(target: str) -> list[ParsedTarget]:
    """Parse the targets of a text such as "opencl -device=mali, llvm". Raises InputError."""
    target_tokens: list[list[str]] = [[]]
    for token in tokenize_target(target):
        if token == ",":
            target_tokens.append([])
        else:
            target_tokens[-1].append(token)
    if not all(target_tokens):
        raise InputError(f"tvmc: --target: a name expected beside each comma, got '{target}'")
    codegens = get_codegen_names()
    return [
        {
            "name": name,
            "opts": dict(map(_parse_option, options)),
            "raw": " ".join((name, *options)),
            "is_tvm_target": name in TARGET_KINDS and name not in codegens,
        }
        for name, *options in target_tokens
    ]


def _parse_option(text: str) -> tuple[str, object]:
    name, equals, value = text.lstrip("-").partition("=")
    if equals:
        return name, value.strip("'\"")
    if not text.startswith("--"):
        raise InputError(f"tvmc: --target: -option=value expected, got '{text}'")
    return name, True


def target_from_cli(
    target: TargetLike, additional_target_options: Options | None = None
) -> tuple[Target, list[ParsedTarget]]:
    """Return the target of a text, JSON text or JSON file, and the code generators before it.

    Args:
        target: Of two kinds of targets the second one is the host.
        additional_target_options: Options by name.

    Raises:
        InputError: A name twice, an unknown or third target, or options of another.
    """
    if not isinstance(target, str) or _is_json(target):
        return Target.parse(target), []
    if Path(target).is_file():
        return Target.parse(Path(target).read_text()), []
    extra_options = {
        name: dict(values) for name, values in (additional_target_options or {}).items()
    }
    if target in TARGET_TAGS and not extra_options:
        return Target.parse(target), []
    parsed = parse_target(target)
    _check_targets(parsed, extra_options)
    for parsed_target in parsed:
        parsed_target["opts"] |= extra_options.get(parsed_target["name"], {})
    texts = [
        " ".join(
            (
                parsed_target["name"],
                *(f"-{key}={value}" for key, value in parsed_target["opts"].items()),
            )
        )
        for parsed_target in parsed
        if parsed_target["is_tvm_target"]
    ]
    host = texts[1] if len(texts) > 1 else None
    return Target(texts[0], host=host), [
        parsed_target for parsed_target in parsed if not parsed_target["is_tvm_target"]
    ]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _check_targets(parsed: Sequence[ParsedTarget], options: Mapping[str, Any]) -> None:
    names = [parsed_target["name"] for parsed_target in parsed]
    if len(set(names)) < len(names):
        raise InputError("tvmc: --target: a target is given twice")
    if names[-1] not in TARGET_KINDS:
        kinds = ", ".join(TARGET_KINDS)
        raise InputError(f"tvmc: --target: the last one of {kinds} expected, got '{names[-1]}'")
    kind_names = [
        parsed_target["name"] for parsed_target in parsed if parsed_target["is_tvm_target"]
    ]
    if len(kind_names) > 2:
        raise InputError(
            f"tvmc: --target: a target and a host expected, got {', '.join(kind_names)}"
        )
    codegens = get_codegen_names()
    for parsed_target in parsed:
        if not parsed_target["is_tvm_target"] and parsed_target["name"] not in codegens:
            raise InputError(f"tvmc: --target: no target is called '{parsed_target['name']}'")
    for name, values in options.items():
        if name not in names:
            raise InputError(
                f"tvmc: Passed --target-{name}-{next(iter(values))} but did not specify {name} "
                "target"
            )


def generate_target_args(parser: argparse.ArgumentParser) -> None:
    """Add `--target` and `--target-KIND-OPTION`."""
    parser.add_argument("--target", default="llvm", help="the target")
    for kind in sorted(TARGET_KINDS):
        for option, value_type in TARGET_OPTIONS.items():
            name = f"--target-{kind}-{option}"
            parser.add_argument(name, type=value_type, help=argparse.SUPPRESS)


def reconstruct_target_args(args: argparse.Namespace) -> dict[str, dict[str, object]]:
    """Return the options of targets among parsed arguments, by kind."""
    values: dict[str, dict[str, object]] = {}
    for kind in TARGET_KINDS:
        for option in TARGET_OPTIONS:
            value = getattr(args, f"target_{kind}_{option}".replace("-", "_"), None)
            if value is not None:
                values.setdefault(kind, {})[option] = value
    return values
