"""The command line: compile, run, bench, inspect, demo."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

COMMANDS = {
    "compile": "compile a model to an artifact",
    "run": "run an artifact on arrays",
    "bench": "time an artifact on random inputs",
    "inspect": "print a stage of the compilation of a model, or an artifact",
    "demo": "compile a trained model from PyPI and show what it says about real files",
}
"""Command -> help; each is a module of `ekiden.driver.commands` with `arguments(parser)` and
`run(options)`.
"""


def parser(selected: str | None) -> argparse.ArgumentParser:
    """The argument parser; only the selected command's module is imported, so that --help is
    fast.
    """
    top = argparse.ArgumentParser(
        prog="ekiden", description="Compile deep-learning models to native code and run them."
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        if name == selected:
            module = import_module(f"ekiden.driver.commands.{name}")
            module.arguments(command)
            command.set_defaults(run=module.run)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 0, or 1 with one line on standard error for what the user can mend, or 2 for
    wrong usage.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    options = parser(next((a for a in args if a in COMMANDS), None)).parse_args(args)
    errors = import_module("ekiden.runtime.errors")
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except (errors.EkidenError, OSError) as error:
        print(
            f"ekiden {options.command}: {error}",
            *getattr(error, "__notes__", ()),
            sep="\n  ",
            file=sys.stderr,
        )
        return 1


if __name__ == "__main__":
    sys.exit(main())
