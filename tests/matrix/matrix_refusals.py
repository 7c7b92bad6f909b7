"""The documented refusals: what two features cannot do together, in the words of the error.

A cell that refuses with another sentence is a fault. docs/matrix.md prints both tables.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from program_features import FEATURES


@dataclass(frozen=True)
class Refusal:
    """A row of REFUSALS: in a cell that has all `values`, an error that `pattern` finds in."""

    values: tuple[str, ...]
    """Names of the values of axes and of features that do not go together."""
    pattern: str
    sentence: str
    """What the user is told, with ... for names."""
    why: str


@dataclass(frozen=True)
class NoCall:
    """A row of NO_CALLS: values for which there is no function to call."""

    values: tuple[str, str]
    sentence: str


_NO_LINE = (
    "a graph is one line of kernels: the virtual machine runs what branches, calls and recurs"
)
_STATIC = "a graph's storage is planned in numbers"
_NOT_STRAIGHT = tuple(row.name for row in FEATURES if not row.is_straight)
REFUSALS: tuple[Refusal, ...] = (
    *(
        Refusal(
            ("graph", name),
            r"graph: 'main' has none: it (is not a straight line|handles more than tensors) "
            r"\(instruction \w+\)",
            "graph: 'main' has none: it is not a straight line (instruction ...), or: it handles "
            "more than tensors (instruction ...); the virtual machine runs it",
            _NO_LINE,
        )
        for name in _NOT_STRAIGHT
    ),
    *(
        Refusal(
            ("graph", name),
            r"graph: input '\w+' is no tensor of a known shape",
            "graph: input ... is no tensor of a known shape: ...; the virtual machine runs it",
            _STATIC,
        )
        for name in ("symbolic sizes", "unknown sizes", "list argument")
    ),
    Refusal(
        ("graph", "data sizes"),
        r"graph: 'main' has none: shapes in it are only known when it runs \(instruction \w+\)",
        "graph: 'main' has none: shapes in it are only known when it runs (instruction ...); the "
        "virtual machine runs it",
        _STATIC,
    ),
    *(
        Refusal(
            ("graph", "PrimFunc call", view),
            r"graph: 'main' has none: it is not a straight line \(instruction Invoke\)",
            "graph: 'main' has none: it is not a straight line (instruction ...); the virtual "
            "machine runs it",
            "without the passes that inline it, a PrimFunc stays a function that is called",
        )
        for view in ("opt level", "pass disabled")
    ),
    *(
        Refusal(
            ("RPC", target),
            r"in the sandbox of a session a compiler starts no other programs",
            "... the OpenCL compiler of ... refuses it ...; in the sandbox of a session a compiler "
            "starts no other programs, such as a linker: a server that trusts its clients has none "
            "(sandbox=False, --no-sandbox)",
            "PoCL links kernels by a program of its own, which the sandbox does not let it start",
        )
        for target in ("opencl", "llvm+opencl")
    ),
    *(
        Refusal(
            ("pass disabled", target),
            r"pass 'SplitArgs' is disabled, and the sequence 'vm' needs it",
            "pass 'SplitArgs' is disabled, and the sequence 'vm' needs it as a kernel of a device "
            "takes no more inputs",
            "a device limits the arguments of a kernel",
        )
        for target in ("opencl", "llvm+opencl")
    ),
    *(
        Refusal(
            ("tuned", target),
            r"tune: one target expected, got ",
            "tune: one target expected, got ...: tune for each, and compile with all records",
            "a kernel is measured for the one device that it runs on",
        )
        for target in ("llvm+llvm", "llvm+opencl")
    ),
    *(
        Refusal(
            ("debug", target),
            r"create_executor: 'debug' interprets on the host",
            "create_executor: 'debug' interprets on the host: expected cpu(0), got opencl(0)",
            "the interpreter computes with NumPy",
        )
        for target in ("opencl", "llvm+opencl")
    ),
)

OPEN: tuple[Refusal, ...] = ()
"""Faults that are known and not mended yet, as rows of REFUSALS; the page names them as such."""

_FILES = (".eki", ".so", ".tar", "other process", "RPC", "state resumed", "from C")
_INTERPRETED = "the interpreter makes no artifact"
_BUILT = "relay.build has no such option: compile(...) has"
NO_CALLS: tuple[NoCall, ...] = (
    *(NoCall(("debug", way), _INTERPRETED) for way in _FILES),
    NoCall(("debug", "profile"), "profiles are of executables"),
    NoCall(("debug", "tuned"), "the interpreter has no kernels"),
    NoCall(("debug", "tier quick"), "the interpreter has no kernels"),
    NoCall(("graph", "tuned"), _BUILT),
    NoCall(("graph", "tier quick"), _BUILT),
)


def no_call(values: Collection[str]) -> str:
    """Return why there is no function to call for the values of a cell, or ""."""
    return next((row.sentence for row in NO_CALLS if set(row.values) <= set(values)), "")


def documented(text: str, values: Collection[str], features: Collection[str]) -> Refusal | None:
    """Return the row that a refusal's text is documented in, for a cell and a program."""
    return _row(REFUSALS, text, {*values, *features})


def open_fault(text: str, values: Collection[str], features: Collection[str]) -> Refusal | None:
    """Return the row of OPEN that an error is of, for a cell and a program."""
    return _row(OPEN, text, {*values, *features})


def _row(rows: Sequence[Refusal], text: str, present: set[str]) -> Refusal | None:
    result = (r for r in rows if set(r.values) <= present and re.search(r.pattern, text))
    return next(result, None)
