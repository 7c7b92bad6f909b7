"""Arguments of the command line from a JSON file: `tvmc compile --config FILE`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ekiden.runtime.errors import InputError

__all__ = [
    "convert_config_json_to_cli",
    "get_configs_json_dir",
    "read_and_convert_json_into_dict",
    "set_config_defaults",
]

CONFIGS_VARIABLE = "TVM_CONFIGS_JSON_DIR"
CONFIGS_JSON_DIR: str | None = None
"""Folder of configurations once it was looked up."""
CHOICES = ("executor", "runtime")
"""Keys whose value has a "kind" and options."""


def get_configs_json_dir() -> str:
    """Return the folder where `--config NAME` is looked for: TVM_CONFIGS_JSON_DIR if it is a
    folder, else `~/.config/ekiden/tvmc`.
    """
    global CONFIGS_JSON_DIR
    if CONFIGS_JSON_DIR is None:
        named = os.environ.get(CONFIGS_VARIABLE, "")
        default = Path.home() / ".config" / "ekiden" / "tvmc"
        CONFIGS_JSON_DIR = named if os.path.isdir(named) else str(default)
    return CONFIGS_JSON_DIR


def read_and_convert_json_into_dict(config: str) -> dict[str, Any]:
    """Read a configuration by its path, or by its name in `get_configs_json_dir`.

    Raises:
        InputError: No such file, or it holds no JSON object.
    """
    name = config.strip() if ".json" in config else f"{config.strip()}.json"
    folder = Path(get_configs_json_dir())
    named = sorted(path for path in folder.rglob("*.json") if path.name == name)
    path = Path(name) if Path(name).is_file() else next(iter(named), None)
    if path is None:
        raise InputError(f"tvmc: --config: no file '{name}' here or below '{folder}'")
    try:
        values = json.loads(path.read_text())
    except ValueError as error:
        raise InputError(f"tvmc: --config: '{path}' is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise InputError(f"tvmc: --config: '{path}': a JSON object expected")
    return values


def convert_config_json_to_cli(json_params: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a configuration as values of parsed arguments, one in each dictionary, in order."""
    return [{name: value} for name, value in _arguments(json_params)]


def _arguments(json_params: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in json_params.items():
        if key == "targets":
            yield from _target_arguments(value)
        elif key in CHOICES:
            yield key, value["kind"]
            for option, setting in value.items():
                if option != "kind":
                    yield f"{key}_{value['kind']}_{option.replace('-', '_')}", setting
        elif key == "pass-config":
            yield "pass_config", [f"{name}={setting}" for name, setting in value.items()]
        else:
            yield key.replace("-", "_"), value


def _target_arguments(targets: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    for target in targets:
        for option, value in target.items():
            if option != "kind":
                yield f"target_{target['kind']}_{option}", value
    yield "target", ", ".join(str(target["kind"]) for target in targets)


def set_config_defaults(parsers: Mapping[str, Any], argv: Sequence[str]) -> None:
    """Make the values of `--config FILE` among arguments the defaults of a command's parser; given
    arguments take precedence. Raises InputError for a value of no argument.
    """
    command = next((word for word in argv if word in parsers), None)
    texts = [text for flag, text in pairwise(argv) if flag == "--config"]
    texts += [word.partition("=")[2] for word in argv if word.startswith("--config=")]
    if command is None or not texts:
        return
    parser = parsers[command]
    actions = {action.dest: action for action in parser._actions}  # argparse has no public list
    for arguments in convert_config_json_to_cli(read_and_convert_json_into_dict(texts[-1])):
        for name, value in arguments.items():
            action = actions.get(name.replace("-", "_"))
            if action is None:
                raise InputError(f"tvmc: --config: {command} has no argument '{name}'")
            action.required = False
            is_text = isinstance(value, str) and action.type is not None
            parser.set_defaults(**{action.dest: action.type(value) if is_text else value})
