"""The most that a program takes of the stack: along its calls, with what each function takes.

Of a model's own functions GCC says both (-fcallgraph-info=su); of those of its libraries, and of
the calls to them that a compiler adds by itself, the instructions of the linked program do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ekiden.runtime.errors import ExportError
from ekiden.runtime.lazy_dataclass import dataclass

_REGISTERS = re.compile(r"\{([^}]*)\}")
_PUSH = re.compile(r"\t(v?push|stmdb(?:\.w)?\tsp!,)")
_LOWER = re.compile(r"\tsub(?:w|\.w)?\tsp, (?:sp, )?#(\d+)|\[sp, #-(\d+)\]!")
_CALL = re.compile(r"\t(?:bl|b|b\.w|b\.n)\t[0-9a-f]+ <([\w.$]+)>")
_UNKNOWN = re.compile(r"\tblx\tr|\t(?:mov|sub|add)[\w.]*\tsp, (?:sp, )?r")
"""Calls of what a register says, and stacks that grow by it."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Functions with what each takes of the stack (None: nobody knows), and what it calls."""

    stack: Mapping[str, int | None]
    callees: Mapping[str, tuple[str, ...]]

    @staticmethod
    def read(files: list[Path]) -> Calls:
        """What GCC's -fcallgraph-info=su wrote. Static functions are named after their file there,
        which is left out: all of the model's names are different."""
        stack: dict[str, int | None] = {}
        callees: dict[str, tuple[str, ...]] = {}
        for file in files:
            text = file.read_text()
            for title, label in re.findall(
                r'^node: \{ title: "([^"]*)" label: "([^"]*)"', text, re.M
            ):
                size = re.search(r"(\d+) bytes", label)
                name = title.rpartition(":")[2]
                stack[name] = int(size.group(1)) if size else stack.get(name)
            for pair in re.findall(r'sourcename: "([^"]*)" targetname: "([^"]*)"', text):
                caller, callee = (end.rpartition(":")[2] for end in pair)
                callees[caller] = (*callees.get(caller, ()), callee)
        return Calls(stack, callees)

    def with_library(self, text: str) -> Calls:
        """With what the instructions of the whole program say, of which `text` is objdump's for
        Thumb: what functions take of which nothing is known, and calls that are in no source."""
        stack, callees = dict(self.stack), dict(self.callees)
        for name, body in re.findall(r"^[0-9a-f]+ <([\w.$]+)>:\n((?:.+\n?)*)", text, re.MULTILINE):
            called = {each for each in _CALL.findall(body) if each != name}
            callees[name] = tuple(dict.fromkeys((*callees.get(name, ()), *sorted(called))))
            if stack.get(name) is None:
                stack[name] = _taken(body)
        return Calls(stack, callees)

    def most(self, entry: str) -> tuple[int, tuple[str, ...]]:
        """The most bytes from a function on, and the functions without a file that it reaches.
        Raises ExportError for calls in a circle."""
        beyond: dict[str, None] = {}
        known: dict[str, int] = {}

        def below(name: str, above: tuple[str, ...]) -> int:
            """The most stack, in bytes, that a call of `name` takes with all that it calls. `above`
            is the chain of callers. Raises ExportError where a function calls itself.
            """
            if name in above:
                raise ExportError(f"footprint: {name} calls itself: its stack has no bound")
            own = self.stack.get(name)
            if own is None:
                beyond[name] = None
            if name not in known:
                inside = (below(each, (*above, name)) for each in self.callees.get(name, ()))
                known[name] = (own or 0) + max(inside, default=0)
            return known[name]

        return below(entry, ()), tuple(sorted(beyond)) if entry in self.stack else ()


def _taken(body: str) -> int | None:
    """The bytes that the instructions of a function take of the stack at most: as if all of them
    ran. None where a register says how many, or what is called."""
    if _UNKNOWN.search(body):
        return None
    taken = 0
    for line in body.splitlines():
        if _PUSH.search(line) and (registers := _REGISTERS.search(line)):
            taken += sum(_bytes_of(each.strip()) for each in registers.group(1).split(","))
        elif lower := _LOWER.search(line):
            taken += int(lower.group(1) or lower.group(2))
    return taken


def _bytes_of(registers: str) -> int:
    """Of a register, or of several as in d8-d15."""
    first, _, last = registers.partition("-")
    count = int(last[1:]) - int(first[1:]) + 1 if last else 1
    return count * (8 if first[0] == "d" else 4)


__all__ = ["Calls"]
