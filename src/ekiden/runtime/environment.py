"""Environment variables that Ekiden reads, all in one place.

EKIDEN_CACHE_DIR        folder of what was compiled: `kernels`, `artifacts`, `device`; empty turns
                        the caches off (default: the user's cache folder). Several, with ':' between
                        them, are layers: the first is written, all are read, and `:/shared` writes
                        nothing
EKIDEN_CACHE_LIMIT      most bytes of compiled models that are kept, such as 500M; 0 keeps none
                        (default: 4G)
EKIDEN_KERNEL_LIMIT     most bytes of compiled kernels that are kept, about (default: 1G)
EKIDEN_NUM_THREADS      threads of the pool; read by the C runtime when it starts
EKIDEN_MEMORY_LIMIT     most bytes the runtime may hold, such as 500M; read by the C runtime when it
                        first asks the system for memory (default: no limit)
EKIDEN_MAX_DEPTH        calls inside each other; read when a virtual machine is made (default:
                        1,000,000)
EKIDEN_MAX_STEPS        instructions of bytecode that a run may take; read when a virtual machine is
                        made (default: no limit)
EKIDEN_COMPILE_JOBS     processes that compile kernels (default: the cores this process may use)
EKIDEN_KERNEL_TIMEOUT   seconds that one kernel may take in a process that compiles (default: 600)
EKIDEN_COMPILE_TIMEOUT  most seconds that compiling a model may take (default: no limit)
EKIDEN_RECORDS          files of records of tuning, with ':' between them, that models are compiled
                        by where `compile` is given none (default: none)
EKIDEN_DEBUG_DIR        folder for shared libraries with debug lines, and the text the lines are of,
                        of what ekiden.build makes: gdb and perf then name them (default: none are
                        made)
EKIDEN_SCHEDULE_PROOFS  "checked" proves each step of the schedules of kernels when they are
                        compiled, as the tests do (default: "trusted", which applies them)
EKIDEN_DUMP             folder for what each compilation makes: IR after each pass, schedules, code,
                        decisions. `folder,function=PATTERN,pass=PATTERN` writes what has such
                        names, as patterns of a shell (default: nothing is written)
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

from ekiden._lazy import LazyModule
from ekiden.runtime.errors import InputError

if TYPE_CHECKING:
    import pathlib
else:
    pathlib = LazyModule("pathlib")

DEFAULT_CACHE_LIMIT_BYTES = 4 << 30
DEFAULT_KERNEL_CACHE_LIMIT_BYTES = 1 << 30
DEFAULT_KERNEL_TIMEOUT_S = 600.0


def cache_folders() -> tuple[str | None, tuple[str, ...]] | None:
    """Return the folder that compiled models are written to (None: none) and the fallback folders,
    which are only read; None if the variable is unset.
    """
    chosen = os.environ.get("EKIDEN_CACHE_DIR")
    if chosen is None:
        return None
    first, *fallbacks = chosen.split(os.pathsep)
    return first or None, tuple(filter(None, fallbacks))


def cache_limit_bytes() -> int:
    """Return the size limit of compiled models in bytes. Raises InputError for an invalid
    number.
    """
    return _read_bytes("EKIDEN_CACHE_LIMIT", DEFAULT_CACHE_LIMIT_BYTES)


def kernel_cache_limit_bytes() -> int:
    """Return the size limit of compiled kernels in bytes. Raises InputError for an invalid
    number.
    """
    return _read_bytes("EKIDEN_KERNEL_LIMIT", DEFAULT_KERNEL_CACHE_LIMIT_BYTES)


def _read_bytes(name: str, default: int) -> int:
    chosen = os.environ.get(name, "")
    size = parse_bytes(chosen) if chosen else default
    if size is None:
        raise _invalid_variable_error(name, "bytes, such as 500M", chosen)
    return size


def parse_bytes(text: str) -> int | None:
    """Parse a number of bytes: 500M, 64K, 2G, 1000; None if it is invalid."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text)
    return int(match[1]) << 10 * " KMG".index(match[2] or " ") if match else None


def num_compile_jobs() -> int:
    """Return the number of processes that compile kernels. Raises InputError for an
    invalid number.
    """
    chosen = os.environ.get("EKIDEN_COMPILE_JOBS", "")
    if not chosen:
        # The affinity mask counts the cores of this process; `cpu_count` counts the machine's.
        return len(os.sched_getaffinity(0))
    # `int` alone would also accept signs, spaces and underscores.
    if not chosen.isdecimal() or int(chosen) == 0:
        raise _invalid_variable_error("EKIDEN_COMPILE_JOBS", "a whole number above 0", chosen)
    return int(chosen)


def kernel_timeout_s() -> float:
    """Return how many seconds one kernel may take to compile. Raises InputError for what is no
    number above 0."""
    return _read_seconds("EKIDEN_KERNEL_TIMEOUT") or DEFAULT_KERNEL_TIMEOUT_S


def compile_timeout_s() -> float | None:
    """Return the time limit of a compilation in seconds, None for no limit. Raises InputError for
    what is no number above 0.
    """
    return _read_seconds("EKIDEN_COMPILE_TIMEOUT")


def _read_seconds(name: str) -> float | None:
    text = os.environ.get(name, "")
    if not text:
        return None
    # `float` alone would also accept nan, inf and negative numbers.
    if not re.fullmatch(r"\d+(\.\d+)?", text) or float(text) == 0:
        raise _invalid_variable_error(name, "seconds above 0", text)
    return float(text)


def _invalid_variable_error(name: str, expected: str, value: str) -> InputError:
    return InputError(f"the variable {name}: expected {expected}, got '{value}'")


def tuning_record_files() -> list[pathlib.Path]:
    """Return the files of tuning records."""
    chosen = os.environ.get("EKIDEN_RECORDS", "")
    return [pathlib.Path(path) for path in chosen.split(os.pathsep) if path]


def debug_dir() -> pathlib.Path | None:
    """Return the folder of debug libraries, or None."""
    chosen = os.environ.get("EKIDEN_DEBUG_DIR")
    return pathlib.Path(chosen).absolute() if chosen else None


def family_schedule_proofs() -> str:
    """Return whether the steps of the kernels' schedules are "checked" or "trusted". Raises
    InputError for another value.
    """
    chosen = os.environ.get("EKIDEN_SCHEDULE_PROOFS") or "trusted"
    if chosen not in ("checked", "trusted"):
        raise _invalid_variable_error("EKIDEN_SCHEDULE_PROOFS", "checked or trusted", chosen)
    return chosen


class DumpRequest(NamedTuple):
    """Dump request of EKIDEN_DUMP: a folder, and patterns of function and pass names."""

    folder: str
    function: str = "*"
    pass_name: str = "*"

    def filters(self) -> dict[str, str]:
        """Return the patterns as they are written in the variable."""
        return {"function": self.function, "pass": self.pass_name}


def dump_request() -> DumpRequest | None:
    """Return the dump request of EKIDEN_DUMP, or None. Raises InputError for a value that names no
    folder, or another filter than those there are.
    """
    text = os.environ.get("EKIDEN_DUMP", "")
    if not text:
        return None
    folder, *filters = re.split(r",(?=\w+=)", text)  # a folder may have commas in its name
    patterns: dict[str, str] = dict(pattern.split("=", 1) for pattern in filters)
    is_known = patterns.keys() <= {"function", "pass"} and len(patterns) == len(filters)
    if not folder or not is_known or "" in patterns.values():
        raise _invalid_variable_error(
            "EKIDEN_DUMP", "folder[,function=PATTERN][,pass=PATTERN]", text
        )
    return DumpRequest(
        os.path.abspath(folder), patterns.get("function", "*"), patterns.get("pass", "*")
    )
