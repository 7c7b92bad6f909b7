"""Command line `ekiden`: one module of ekiden.cli for each command."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType

from ekiden import __version__
from ekiden.cli.completion import COMPLETION_SHELLS, completion_script

COMMANDS = {
    "compile": "compile a model to an artifact",
    "export": "write a model or an artifact as a shared library, an object, C or an archive",
    "run": "run an artifact on arrays",
    "bench": "time an artifact on random inputs",
    "profile": "show where the time of an artifact's run goes, kernel by kernel",
    "debug": "step through an artifact's run",
    "tune": "search for faster kernels of a model",
    "inspect": "print a stage of the compilation of a model, or an artifact",
    "check": "list a model's operators and check that it can be compiled",
    "fit": "show the memory that a run needs, and the largest batch that fits",
    "verify": "compare a compiled model with ONNX Runtime or ONNX's reference",
    "chat": "talk with a language model in the terminal",
    "generate": "generate text with a language model, token by token",
    "quantize": "quantise a model: replace floats by integers where little accuracy is lost",
    "serve": "serve models over HTTP and gRPC, and text over OpenAI's protocol",
    "cache": "show, export, import or prune the compilation cache",
    "web": "write a model with all files that a web page needs to run it",
    "rpc": "run programs on other machines: server, tracker, proxy, keygen, build",
    "doctor": "check the installation and print how to fix what does not work",
    "demo": "compile a trained model from PyPI and identify files with it",
}
"""Command -> help; each is a module here with `add_arguments(parser)` and `run(options)`."""


def _import_command_module(name: str) -> ModuleType:
    """Import the module of a command."""
    return import_module(f"ekiden.cli.{name}")


class CompletionAction(argparse.Action):
    """Argparse action of `--completion SHELL`: print the completion script and exit."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        """Print the script: the options of each command are those of its parser."""
        print(
            completion_script(
                str(values), {name: _option_strings(name) for name in COMMANDS}, COMMANDS
            )
        )
        parser.exit()


def _option_strings(name: str) -> list[str]:
    command = argparse.ArgumentParser()
    command.add_argument("-v", "--verbose")
    _import_command_module(name).add_arguments(command)
    return [text for action in command._actions for text in action.option_strings]


def build_parser(selected: str | None) -> argparse.ArgumentParser:
    """Build the argument parser. Only the selected command's module is imported, so that --help is
    fast.
    """
    description = "Compile deep-learning models to native code and run them."
    top = argparse.ArgumentParser(prog="ekiden", description=description)
    top.add_argument("--version", action="version", version=f"ekiden {__version__}")
    top.add_argument(
        "--completion", choices=COMPLETION_SHELLS, action=CompletionAction,
        help="print a shell completion script: eval \"$(ekiden --completion bash)\"",
    )  # fmt: skip
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument(
            "-v", "--verbose", action="count", default=0,
            help="log progress to standard error; twice (-vv): each pass and kernel",
        )  # fmt: skip
        # Only the selected command's module is imported: the others would double the start-up time.
        if name == selected:
            module = _import_command_module(name)
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`, and return the exit status: 0, or 1 after one line on standard
    error for a mistake of the user.

    Wrong usage exits with 2, as argparse does.
    """
    try:
        return _dispatch_command(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:  # while modules are imported, too
        # 128 + SIGINT, as shells report an interrupted command.
        return 130


def _dispatch_command(args: Sequence[str]) -> int:
    options = build_parser(args[0] if args and args[0] in COMMANDS else None).parse_args(args)
    errors = import_module("ekiden.runtime.errors")
    run: Callable[[argparse.Namespace], int] = options.run
    if isinstance(sys.stdout, io.TextIOWrapper):  # names of files need not be text, as on stderr
        sys.stdout.reconfigure(errors="backslashreplace")
    if options.verbose:
        logging = import_module("logging")  # takes longer than the rest of this module
        logging.basicConfig(format="%(relativeCreated)7.0f ms  %(message)s")
        logging.getLogger("ekiden").setLevel("INFO" if options.verbose == 1 else "DEBUG")
    try:
        with import_module("ekiden.runtime.devices.memory").within_free_memory():
            status = run(options)
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where what goes wrong with it is said
        return status
    except BrokenPipeError:  # the reader of our output, such as `head`, has had enough
        # Otherwise the interpreter's flush at exit raises the same error again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (errors.EkidenError, OSError, MemoryError) as error:
        print(f"ekiden {options.command}: {_format_error(error, options.command)}", file=sys.stderr)
        return 1


def _format_error(error: BaseException, command: str) -> str:
    """Format an exception with its notes as one line."""
    text = str(error).removeprefix(f"{command}: ")
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        text = f"'{error.filename}': {(error.strerror or '').lower()}"
    notes = "; ".join(getattr(error, "__notes__", ()))
    return text + (f" ({notes})" if notes else "")
