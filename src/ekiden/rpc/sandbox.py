"""Sandbox of a session's process: resource limits, isolation, and the environment it inherits.

Isolation is implemented in runtime/rpc/ek_rpc_start.c and ek_rpc_sandbox.c, which `ekiden-rpc` uses
too; syscall_filter.py lists the allowed system calls.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import ekiden
from ekiden.rpc.errors import RPCError
from ekiden.rpc.syscall_filter import FOLDER_VARIABLES, INHERITED_VARIABLES
from ekiden.runtime import close_sandbox, library_path, sandbox_lack, start_session
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = [
    "Limits",
    "SandboxState",
    "missing_sandbox_facilities",
    "restrict_process",
    "set_parent_death_signal",
    "start_sandboxed_process",
]

DAY_SECONDS = 86_400.0
MAX_LANDLOCK_VARIABLE = "EKIDEN_RPC_MAX_LANDLOCK"
"""The newest ABI of landlock that servers use: tests have those of older kernels by it."""
NAMESPACES_VARIABLE = "EKIDEN_RPC_NAMESPACES"
"""0: servers use no namespaces, as where a kernel or a container gives none."""
_DEATH_SIGNAL_BIT = 1
"""PR_SET_PDEATHSIG."""
_NAMESPACES_BIT = 2
"""The bit of `start_session`'s isolation for namespaces; 1 is that of its user namespace."""

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of a session: bytes of memory and of a file beyond the process's initial
    ones, open files, threads, bytes of its folder, seconds; and the number of concurrent
    sessions. A client may ask for fewer seconds, never for more.
    """

    memory: int = 8 << 30
    file: int = 8 << 30
    open_files: int = 256
    sessions: int = 16
    threads: int = 1024
    disk: int = 16 << 30
    seconds: float = DAY_SECONDS


@dataclass(frozen=True, slots=True)
class SandboxState:
    """Sandbox facilities in effect for a session's process, as the bits of `start_session`."""

    bits: int = 0

    @property
    def has_namespaces(self) -> bool:
        """Return whether the process has its own file, process, IPC and network namespaces."""
        return bool(self.bits & _NAMESPACES_BIT)


def set_parent_death_signal() -> None:
    """Make the kernel end this process together with its parent (PR_SET_PDEATHSIG)."""
    parent = os.getppid()
    _libc.prctl(_DEATH_SIGNAL_BIT, signal.SIGKILL, 0, 0, 0)
    # The parent may have ended before the call, and then no signal would come.
    if os.getppid() != parent:
        os._exit(1)


def missing_sandbox_facilities() -> str:
    """Return which sandbox facilities this machine does not have, as text; "" if none."""
    return sandbox_lack()


def start_sandboxed_process(
    command: Sequence[str],
    folder: str,
    descriptors: Sequence[int],
    output: int,
    libraries: Sequence[str] = (),
    has_sandbox: bool = True,
) -> tuple[int, SandboxState]:
    """Start a session's process, which can write only in its folder; return its process id and its
    isolation. Raises RPCError where a restriction cannot be applied.

    It ends with the thread that calls this. `descriptors` become 3 and so on; `output` takes what
    it prints, `libraries` are files that it may read.
    """
    newest = os.environ.get(MAX_LANDLOCK_VARIABLE, "")
    pid, bits, wrong = start_session(
        [os.fsencode(word) for word in command],
        [
            f"{name}={value}".encode()
            for name, value in _session_environment(folder, has_sandbox).items()
        ],
        os.fsencode(folder),
        [os.fsencode(path) for path in _readable_paths(libraries)],
        tuple(descriptors),
        output,
        has_sandbox,
        int(newest) if newest else -1,
        0 if os.environ.get(NAMESPACES_VARIABLE) == "0" else -1,
    )
    if pid < 0:
        raise RPCError(f"rpc: a session cannot be started: {wrong}")
    return pid, SandboxState(bits)


def restrict_process(limits: Limits, isolation: int) -> None:
    """Apply the final restrictions (seccomp, landlock, limits) to this process, in all of its
    threads.
    """
    sys.dont_write_bytecode = True  # beside sources, which lie outside
    # The limits are relative to what the process uses by now: libraries and drivers are loaded.
    wrong = close_sandbox(
        limits.memory, limits.file, limits.open_files, limits.threads, isolation, _has_devices()
    )
    if wrong:
        raise RPCError(f"rpc: no sandbox: {wrong}")


def _has_devices() -> bool:
    """Return whether a driver can access a device on this machine."""
    nodes = ("/dev/nvidiactl", "/dev/dri", "/dev/kfd", "/dev/mali0")
    return any(os.path.exists(node) for node in nodes)


def _session_environment(folder: str, has_sandbox: bool) -> dict[str, str]:
    """Return the environment of a session, with folders of its own; EKIDEN_SESSION marks a
    sandboxed session, so that a failing driver is reported as such.
    """
    # Only listed variables are inherited: others may hold secrets of the server.
    variables = {name: value for name, value in os.environ.items() if name in INHERITED_VARIABLES}
    folder_variables = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME", "POCL_CACHE_DIR"), folder)
    return {
        **variables,
        **folder_variables,
        "PATH": "/usr/bin",
        "EKIDEN_SESSION": "1" if has_sandbox else "",
    }


def _readable_paths(libraries: Iterable[str]) -> list[str]:
    """Return the paths that Python programs read besides the system's libraries."""
    packages = [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
    python = (sys.base_prefix, sys.prefix, os.path.realpath(sys.executable), sys.executable)
    paths = [*python, *packages, *ekiden.__path__, str(Path(library_path()).parent), *libraries]
    return [os.path.abspath(path) for path in (*paths, *_library_folders())]


def _library_folders() -> Iterator[str]:
    """Yield the library folders named in the environment."""
    for name in FOLDER_VARIABLES:
        yield from filter(None, os.environ.get(name, "").split(":"))
