"""A fuzzer of what comes from outside: models, files, requests and handshakes.

    python tests/fuzz/fuzz_inputs.py                       the kinds there are
    python tests/fuzz/fuzz_inputs.py onnx --cases 100000   cases 0, 1, ... of seed 0
    python tests/fuzz/fuzz_inputs.py onnx --seed 3 --number 12     a find again, with its traceback

A case is made by its number and seed alone. Right is an error of the project's own, or that it is
accepted; a find is any other exception (also MemoryError), a signal or a hang. Workers are
fresh processes that try CASES_PER_WORKER cases each; one that dies or hangs is replaced by another
that goes on behind the case that did it. Finds are told apart by the error and the place of ours
that it came from, and the smallest case of each is kept. `scripts/fuzz_inputs` runs this with the
runtime built for AddressSanitizer. docs/fuzzing.md says what ran how long.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import math
import os
import resource
import select
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import checkpoint_kinds
import file_kinds
import message_kinds
import model_kinds
import relay_kinds
import template_kinds
import tensorflow_kinds
from case_kinds import Kind, SlowError, WrongResultError

from ekiden.runtime.errors import EkidenError, InternalError

TABLES = (
    model_kinds.KINDS,
    relay_kinds.KINDS,
    tensorflow_kinds.KINDS,
    file_kinds.KINDS,
    checkpoint_kinds.KINDS,
    message_kinds.KINDS,
    template_kinds.KINDS,
)
KINDS = {kind.name: kind for table in TABLES for kind in table}
CASES_PER_WORKER = 20_000
SLOW_S = 20.0
"""Seconds of the processor that a case may take; then it is a find, with where it stands."""
HANG_S = 600.0
"""Seconds for a case that waits, or that C code does not give back, however busy the machine is."""
MEMORY = 8 << 30
SHRINKING_STEPS = 200


@dataclass
class Find:
    """An input that was not treated as it should be."""

    kind: str
    number: int
    place: str
    """The error and where it came from: what tells finds apart."""
    text: str
    case: str
    """The smallest input that does it, cut."""
    count: int = 1


@dataclass
class Tally:
    """What became of the cases of a kind."""

    kind: str
    cases: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    finds: dict[str, Find] = field(default_factory=dict)
    seconds: float = 0.0
    """Of the processor, by the workers that have ended."""

    def add(self, find: Find) -> None:
        """Count a find, and keep the first of its place."""
        if find.place in self.finds:
            self.finds[find.place].count += 1
        else:
            self.finds[find.place] = find

    def __str__(self) -> str:
        outcomes = ", ".join(f"{count} {name}" for name, count in self.outcomes.most_common())
        rate = f", {self.cases / self.seconds:.0f} a second of a processor" if self.seconds else ""
        return f"{self.kind}: {self.cases} cases ({outcomes}), {len(self.finds)} finds{rate}"


def rng_of(kind: str, seed: int, number: int) -> Random:
    """Return the generator of a case."""
    return Random(f"{kind} {seed} {number}")


def _stop(number: int, frame: FrameType | None) -> None:
    raise SlowError(f"it takes more than {SLOW_S:g} seconds of the processor")


def attempt(load: Callable[[Any], None], case: object) -> tuple[str, BaseException | None]:
    """Try a case: its outcome, and the error that is a find.

    A MemoryError of Python's is one: the worker has a limit of memory (EKIDEN_MEMORY_LIMIT), which
    must have been asked before so much was allocated.
    """
    signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, SLOW_S)
    try:
        load(case)
    except InternalError as error:
        return "find", error
    except (EkidenError, FileExistsError):
        return "refused", None
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # panics of Rust code are no Exceptions
        return "find", error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return "accepted", None


def place_of(error: BaseException) -> str:
    """Return the error's class, its innermost line of ours or subject, and where it was raised."""
    if isinstance(error, WrongResultError):
        return f"WrongResultError of {error.subject}"
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "/ekiden/" in f.filename] or frames
    where = f"{ours[-1].filename.rpartition('/ekiden/')[2]}:{ours[-1].lineno}"
    return f"{type(error).__name__} at {where}"


def shrunk(load: Callable[[Any], None], case: Any, place: str) -> Any:  # noqa: ANN401
    """Return a shorter text or bytes that give the same find; other cases as they are."""
    if not isinstance(case, (bytes, str)):
        return case

    def is_same(shorter: object) -> bool:
        _, error = attempt(load, shorter)
        return error is not None and place_of(error) == place

    size, steps = len(case) // 2, 0
    while size and steps < SHRINKING_STEPS:
        at = 0
        while at < len(case) and steps < SHRINKING_STEPS:
            shorter = case[:at] + case[at + size :]
            steps += 1
            if is_same(shorter):
                case = shorter
            else:
                at += size
        size //= 2
    return case


def tried(kind: Kind, seed: int, numbers: range) -> Iterator[tuple[int, str, Find | None]]:
    """Try cases in this process: the number before each, with "", then what became of it."""
    make, load = kind.start()
    seen: set[str] = set()
    for number in numbers:
        case = make(rng_of(kind.name, seed, number))
        yield number, "", None
        outcome, error = attempt(load, case)
        find = None
        if error is not None:
            place = place_of(error)
            text = "".join(traceback.format_exception_only(error)).strip()[:300]
            is_slow = isinstance(error, SlowError)  # each step of shrinking would be, too
            short = case if place in seen or is_slow else shrunk(load, case, place)
            seen.add(place)
            find = Find(kind.name, number, place, text, repr(short)[:600])
        yield number, outcome, find


def work(kind: Kind, seed: int, numbers: range) -> None:
    """Be a worker: a line of JSON to standard output for each case before and after it."""
    if "asan" not in os.environ.get("LD_PRELOAD", ""):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print
    for number, outcome, find in tried(kind, seed, numbers):
        if not outcome:
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            out.write(f"[{number}]\n")
        else:
            faulthandler.cancel_dump_traceback_later()
            out.write(json.dumps([number, outcome, find and vars(find)]) + "\n")


def fuzz(
    kind: str,
    cases: int,
    seed: int = 0,
    first: int = 0,
    quiet: bool = True,
    seconds: float = math.inf,
) -> Tally:
    """Run cases of a kind in fresh processes, or as many as there are in so many seconds."""
    tally, number, shown = Tally(kind), first, time.monotonic()
    before = _children_seconds()
    end = shown + seconds
    while number < first + cases and time.monotonic() < end:
        last = min(number + CASES_PER_WORKER, first + cases)
        command = [sys.executable, __file__, kind, "--seed", str(seed)]
        command += ["--worker", str(number), str(last)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={"EKIDEN_MEMORY_LIMIT": "1G", "EKIDEN_COMPILE_JOBS": "1", **os.environ},
        ) as process:  # fmt: skip
            begun, errors = number - 1, _Tail()
            for line in _lines(process, errors):
                said = json.loads(line)
                if len(said) == 1:
                    begun = said[0]
                    continue
                number, outcome, find = said[0] + 1, said[1], said[2]
                tally.cases += 1
                tally.outcomes[outcome] += 1
                if find:
                    tally.add(Find(**find))
                if not quiet and time.monotonic() - shown > 30:
                    shown = time.monotonic()
                    print(tally, flush=True)
                if time.monotonic() > end:
                    process.kill()
                    break
        if number < last and time.monotonic() < end:
            if begun < number:
                raise RuntimeError(f"{kind}: the worker did not begin:\n{errors.text}")
            is_hang = "Timeout (" in errors.text
            what = "hang" if is_hang else f"signal or exit {process.returncode}"
            tally.add(Find(kind, begun, f"{what}: {errors.place()}", errors.text[-2000:], ""))
            tally.cases += 1
            tally.outcomes["find"] += 1
            number = begun + 1
        tally.seconds = _children_seconds() - before
    return tally


def _children_seconds() -> float:
    """Return the seconds of the processor that processes took which this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class _Tail:
    """The end of what a worker writes to its standard error."""

    def __init__(self) -> None:
        self.text = ""

    def add(self, data: str) -> None:
        """Append text, and forget what is long ago."""
        self.text = (self.text + data)[-20_000:]

    def place(self) -> str:
        """Return the first lines of ours in it."""
        lines = [line.strip() for line in self.text.splitlines() if "/ekiden/" in line]
        return " < ".join(line.rpartition("/ekiden/")[2] for line in lines[:2])[:200]


def _lines(process: subprocess.Popen[str], errors: _Tail) -> Iterator[str]:
    """Give the lines of a worker's output, and collect its errors meanwhile."""
    assert process.stdout is not None and process.stderr is not None
    streams = {process.stdout.fileno(): "", process.stderr.fileno(): ""}
    output, left = process.stdout.fileno(), {*streams}
    while left:
        for source in select.select(left, [], [])[0]:
            data = os.read(source, 1 << 16)
            if not data:
                left.discard(source)
            elif source == output:
                streams[output] += data.decode()
                *whole, streams[output] = streams[output].split("\n")
                yield from whole
            else:
                errors.add(data.decode(errors="replace"))


def again(kind: Kind, seed: int, number: int) -> int:
    """Try one case with all that it prints; 1 where it is a find."""
    make, load = kind.start()
    case = make(rng_of(kind.name, seed, number))
    print(repr(case)[:4000])
    outcome, error = attempt(load, case)
    print(outcome)
    if error is not None:
        traceback.print_exception(error)
    return outcome == "find"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND")
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=math.inf, help="of a kind, at most")
    parser.add_argument("--number", type=int, help="this case of the kind alone, in this process")
    parser.add_argument("--worker", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--finds", type=Path, help="a file that finds are appended to, as JSON")
    options = parser.parse_args()
    if not options.kinds:
        for kind in KINDS.values():
            print(f"{kind.name:12} {kind.about}{''.join(f'; needs {n}' for n in kind.missing())}")
        return 0
    if unknown := [name for name in options.kinds if name not in KINDS]:
        parser.error(f"no kind is named {unknown[0]}; there are {', '.join(KINDS)}")
    chosen = [KINDS[name] for name in options.kinds]
    if options.worker:
        work(chosen[0], options.seed, range(*options.worker))
        return 0
    if options.number is not None:
        return again(chosen[0], options.seed, options.number)
    found = 0
    for kind in chosen:
        if missing := kind.missing():
            print(f"{kind.name}: skipped: {', '.join(missing)} is not installed")
            continue
        tally = fuzz(
            kind.name,
            options.cases,
            options.seed,
            options.first,
            quiet=False,
            seconds=options.seconds,
        )
        print(tally, flush=True)
        found += len(tally.finds)
        for find in tally.finds.values():
            print(f"  {find.place} ({find.count} times): {find.text[:300]}\n    {find.case[:300]}\n"
                  f"    again: --seed {options.seed} --number {find.number}",
                  flush=True)  # fmt: skip
            if options.finds:
                with options.finds.open("a") as file:
                    file.write(json.dumps(vars(find)) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
