"""The command line: one module of ekiden.driver.commands for each command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

COMMANDS = {
    "compile": "compile a model to an artifact",
    "export": "write a model or an artifact as a shared library, an object, C or an archive",
    "run": "run an artifact on arrays",
    "bench": "time an artifact on random inputs",
    "profile": "show where the time of an artifact's run goes, kernel by kernel",
    "debug": "step through an artifact's run",
    "inspect": "print a stage of the compilation of a model, or an artifact",
    "check": "say what a model contains and whether it can be compiled",
    "verify": "compare a compiled model with ONNX Runtime or ONNX's reference",
    "doctor": "say what works on this machine, and what mends what does not",
    "demo": "compile a trained model from PyPI and show what it says about real files",
}
"""Command -> help; each is a module of `ekiden.driver.commands` with `arguments(parser)` and
`run(options)`.
"""


def parser(selected: str | None) -> argparse.ArgumentParser:
    """The argument parser; only the selected command's module is imported, so that --help is
    fast.
    """
    description = "Compile deep-learning models to native code and run them."
    top = argparse.ArgumentParser(prog="ekiden", description=description)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        if name == selected:
            module = import_module(f"ekiden.driver.commands.{name}")
            module.arguments(command)
            command.set_defaults(run=module.run)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 0, or 1 with one line on standard error for what the user can mend.

    Wrong usage exits with 2, as argparse does.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    options = parser(args[0] if args and args[0] in COMMANDS else None).parse_args(args)
    errors = import_module("ekiden.runtime.errors")
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        with import_module("ekiden.runtime.memory").within_free_memory():
            return run(options)
    except BrokenPipeError:  # the reader of our output, such as `head`, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (errors.EkidenError, OSError, MemoryError) as error:
        print(f"ekiden {options.command}: {_said(error, options.command)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _said(error: BaseException, command: str) -> str:
    """An error in one line: what it says, and what was noted of it on its way."""
    text = str(error).removeprefix(f"{command}: ")
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        text = f"'{error.filename}': {(error.strerror or '').lower()}"
    notes = "; ".join(getattr(error, "__notes__", ()))
    return text + (f" ({notes})" if notes else "")


if __name__ == "__main__":
    sys.exit(main())
