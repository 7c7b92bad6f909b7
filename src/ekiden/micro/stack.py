"""Worst-case stack usage of a program from its call graph and the frame size of each function.

Of a model's own functions GCC says both (-fcallgraph-info=su); of those of its libraries, and of
the calls to them that a compiler adds by itself, the instructions of the linked program do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ekiden.runtime.errors import ExportError
from ekiden.runtime.lazy_dataclass import dataclass

_REGISTER_LIST = re.compile(r"\{([^}]*)\}")
_PUSH_INSTRUCTION = re.compile(r"\t(v?push|stmdb(?:\.w)?\tsp!,)")
_STACK_DECREMENT = re.compile(r"\tsub(?:w|\.w)?\tsp, (?:sp, )?#(\d+)|\[sp, #-(\d+)\]!")
_CALL_INSTRUCTION = re.compile(r"\t(?:bl|b|b\.w|b\.n)\t[0-9a-f]+ <([\w.$]+)>")
_UNBOUNDED_STACK = re.compile(r"\tblx\tr|\t(?:mov|sub|add)[\w.]*\tsp, (?:sp, )?r")
"""Calls of what a register says, and stacks that grow by it."""


@dataclass(frozen=True, slots=True)
class CallGraph:
    """Call graph with the stack frame of each function in bytes, None if unknown, and its
    callees.
    """

    frame_bytes: Mapping[str, int | None]
    callees: Mapping[str, tuple[str, ...]]

    @staticmethod
    def read(files: list[Path]) -> CallGraph:
        """Parse the output of GCC's -fcallgraph-info=su. Static functions are prefixed there with
        their file, which is dropped, since all of a model's names are distinct.
        """
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
        return CallGraph(stack, callees)

    def with_disassembly(self, text: str) -> CallGraph:
        """Return the graph completed from objdump's Thumb disassembly: frames of library functions,
        and calls that the source lacks.
        """
        stack, callees = dict(self.frame_bytes), dict(self.callees)
        for name, body in re.findall(r"^[0-9a-f]+ <([\w.$]+)>:\n((?:.+\n?)*)", text, re.MULTILINE):
            called = {callee for callee in _CALL_INSTRUCTION.findall(body) if callee != name}
            callees[name] = tuple(dict.fromkeys((*callees.get(name, ()), *sorted(called))))
            if stack.get(name) is None:
                stack[name] = _frame_size_bound(body)
        return CallGraph(stack, callees)

    def worst_case_stack(self, entry: str) -> tuple[int, tuple[str, ...]]:
        """Return the worst-case stack in bytes of a call of `entry`, and the reachable functions of
        unknown frame. Raises ExportError for recursion.
        """
        beyond: dict[str, None] = {}
        totals: dict[str, int] = {}

        def stack_below(name: str, above: tuple[str, ...]) -> int:
            """Return the worst-case stack of a call of `name` and its callees; `above` is the chain
            of callers. Raises ExportError for recursion.
            """
            # A cycle in the call graph is recursion, which no static bound covers.
            if name in above:
                raise ExportError(f"footprint: {name} calls itself: its stack has no bound")
            frame_bytes = self.frame_bytes.get(name)
            if frame_bytes is None:
                beyond[name] = None
            if name not in totals:
                inside = (
                    stack_below(callee, (*above, name)) for callee in self.callees.get(name, ())
                )
                # Only one callee is active at a time: the deepest one counts, not their sum.
                totals[name] = (frame_bytes or 0) + max(inside, default=0)
            return totals[name]

        return stack_below(entry, ()), tuple(sorted(beyond)) if entry in self.frame_bytes else ()


def _frame_size_bound(body: str) -> int | None:
    """Return an upper bound of a function's frame in bytes, as if every instruction executed; None
    for indirect calls and register-sized frames.
    """
    if _UNBOUNDED_STACK.search(body):
        return None
    total = 0
    # No control flow: pushes of exclusive branches add up, which keeps the bound safe.
    for line in body.splitlines():
        if _PUSH_INSTRUCTION.search(line) and (registers := _REGISTER_LIST.search(line)):
            total += sum(
                _register_bytes(register.strip()) for register in registers.group(1).split(",")
            )
        elif lower := _STACK_DECREMENT.search(line):
            total += int(lower.group(1) or lower.group(2))
    return total


def _register_bytes(registers: str) -> int:
    """Return the bytes of one register or of a range such as d8-d15."""
    first, _, last = registers.partition("-")
    count = int(last[1:]) - int(first[1:]) + 1 if last else 1
    return count * (8 if first[0] == "d" else 4)


__all__ = ["CallGraph"]
