"""`ekiden chat MODEL`: interactive chat in the terminal.

Ctrl-C ends an answer, Ctrl-D the conversation.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from ekiden.cli.text_options import (
    add_sampling_arguments,
    add_text_model_arguments,
    load_text_model,
    sampling_fields,
)
from ekiden.llm.model import Model
from ekiden.runtime.errors import InputError

_COMMANDS = {
    "/clear": "forget the conversation",
    "/undo": "forget the last question and its answer",
    "/help": "list the commands",
    "/exit": "leave (Ctrl-D)",
}
_COLOURS = {"prompt": "1;36", "reasoning": "2", "note": "33"}
"""What a text is -> its attributes (ECMA-48)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_text_model_arguments(parser)
    parser.add_argument("--system", help="the message of the system that conversations begin with")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE",
        help="a variable of the chat template, its value in JSON: enable_thinking=false",
    )  # fmt: skip
    add_sampling_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Answer the user's prompts until the end of input."""
    fields = sampling_fields(options)
    variables = _template_variables(options.option)
    chat = Chat(load_text_model(options), options.system, fields, variables)
    with suppress(ImportError):  # lines can be edited where the system has it
        __import__("readline")
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        chat.note("Ctrl-C ends an answer, Ctrl-D the conversation; /help lists commands")
    while (line := _read_line(chat.painted("prompt", "> ") if is_terminal else "")) is not None:
        if not chat.take(line.strip()):
            break
    return 0


def _read_line(prompt: str) -> str | None:
    """Return a line of input; None at its end, empty after Ctrl-C."""
    try:
        return input(prompt)
    except EOFError:
        return None
    except KeyboardInterrupt:
        print()
        return ""


def _template_variables(entries: Sequence[str]) -> dict[str, Any]:
    """Return the variables of the template. Raises InputError."""
    variables: dict[str, Any] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        try:
            variables[name] = json.loads(value)
        except ValueError:
            variables[name] = value
        if not equals:
            raise InputError(f"--option: NAME=VALUE expected, got '{entry}'")
    return variables


class Chat:
    """Interactive conversation with a model on standard output."""

    def __init__(
        self, model: Model, system: str | None, fields: dict[str, Any], variables: dict[str, Any]
    ) -> None:
        self._model, self._fields, self._variables = model, fields, variables
        self._first = [] if system is None else [{"role": "system", "content": system}]
        self.messages: list[dict[str, Any]] = list(self._first)
        self._has_colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def painted(self, kind: str, text: str) -> str:
        """Return a text in the terminal colour of its kind."""
        return f"\x1b[{_COLOURS[kind]}m{text}\x1b[0m" if self._has_colours else text

    def note(self, text: str) -> None:
        """Print a status line that is not part of a response."""
        print(self.painted("note", text), file=sys.stderr, flush=True)

    def take(self, line: str) -> bool:
        """Answer a prompt or run a slash command; return whether to continue."""
        match line:
            case "":
                return True
            case "/exit":
                return False
            case "/clear":
                self.messages = list(self._first)
            case "/undo":
                del self.messages[max(len(self.messages) - 2, len(self._first)) :]
            case "/help":
                for name, text in _COMMANDS.items():
                    self.note(f"{name:<8}{text}")
            case _ if line.startswith("/") and line.split()[0].isascii() and " " not in line:
                self.note(f"there is no command '{line}': /help lists them")
            case _:
                self._answer(line)
        return True

    def _answer(self, line: str) -> None:
        """Generate and print the response, and append both to the conversation; on an error print
        it and drop the prompt.
        """
        messages = [*self.messages, {"role": "user", "content": line}]
        try:
            answer = self._model.chat(messages, options=self._variables, **self._fields)
            kind = ""
            with _interrupts() as interrupts:
                for delta in answer:
                    if kind == "reasoning" and delta.kind != kind:
                        print("\n")
                    kind = delta.kind
                    text = delta.text if delta.call is None else f"{delta.call}"
                    print(
                        self.painted("reasoning", text) if kind == "reasoning" else text,
                        end="", flush=True,
                    )  # fmt: skip
                    if interrupts:
                        answer.close()
                        break
            print()
        except InputError as error:
            self.note(str(error))
            return
        if answer.finish == "length":
            self.note("the answer is cut: it has reached --max-tokens or the context")
        self.messages = [*messages, {"role": "assistant", "content": answer.text}]


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Record Ctrl-C instead of raising KeyboardInterrupt, so that an engine step is never
    interrupted.
    """
    signals: list[int] = []

    def take(number: int, frame: FrameType | None) -> None:
        signals.append(number)

    before = signal.signal(signal.SIGINT, take)
    try:
        yield signals
    finally:
        signal.signal(signal.SIGINT, before)
