"""Arguments of registered executors and runtimes, such as `--executor-aot-interface-api`."""

from __future__ import annotations

import argparse
from typing import TypeVar

from ekiden.driver.tvmc.shape_parser import ArgumentError
from ekiden.relay.backend.executor_options import RegisteredChoice
from ekiden.runtime.errors import InputError

__all__ = ["generate_registry_args", "reconstruct_registry_entity"]

Choice = TypeVar("Choice", bound=RegisteredChoice)


def _parse_bool(text: str) -> bool:
    if text.lower() not in ("true", "false", "0", "1"):
        raise ArgumentError(f"true or false expected, got '{text}'")
    return text.lower() in ("true", "1")


def generate_registry_args(
    parser: argparse.ArgumentParser, registry: type[RegisteredChoice], default: str | None = None
) -> None:
    """Add `--KIND NAME`, and `--KIND-NAME-OPTION` for the options of all names."""
    kind = registry.__name__.lower()
    parser.add_argument(f"--{kind}", default=default, help=f"the {kind}")
    for name in registry.list_registered():
        for option, (value_type, _) in registry.list_registered_options_of(name).items():
            parser.add_argument(
                f"--{kind}-{name}-{option}",
                type=_parse_bool if value_type is bool else value_type,
                help=f"{option} of the {kind} '{name}'",
            )


def reconstruct_registry_entity(args: argparse.Namespace, registry: type[Choice]) -> Choice | None:
    """Return what the parsed arguments say, or None without a name.

    Raises:
        InputError: An unknown name, or an option of another one.
    """
    kind = registry.__name__
    chosen = getattr(args, kind.lower())
    if chosen is None:
        return None
    if chosen not in registry.list_registered():
        raise InputError(f'tvmc: {kind} "{chosen}" is not defined')
    options: dict[str, object] = {}
    for name in registry.list_registered():
        for option in registry.list_registered_options_of(name):
            argument = f"{kind.lower()}-{name}-{option}"
            value = getattr(args, argument.replace("-", "_"))
            if value is None:
                continue
            if name != chosen:
                raise InputError(
                    f"tvmc: Passed --{argument} but did not specify {name} {kind.lower()}"
                )
            options[option] = value
    return registry(chosen, options)
