"""What a session's process may not do: new privileges, files, network, processes, memory.

By the kernel's own calls: landlock for files, seccomp for the rest. What a session is to use must
be open or imported before; after `enter` there is no way back.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

import ekiden
from ekiden.rpc.errors import RPCError
from ekiden.runtime.late_methods import dataclass

__all__ = ["Limits", "die_with_parent", "enter", "missing"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a session may take: bytes of memory and of a file beyond what the process has when it
    begins, open files, and how many sessions there may be at once.
    """

    memory: int = 8 << 30
    file: int = 8 << 30
    open_files: int = 256
    sessions: int = 16


@dataclass(frozen=True, slots=True)
class _Machine:
    """A processor's numbers: AUDIT_ARCH, and of the calls that are refused."""

    audit: int
    refused: dict[str, int]
    clone: int
    clone3: int
    signals: tuple[int, ...]
    """Of kill, tgkill and rt_tgsigqueueinfo, whose first argument is a process."""
    prlimit: int
    fcntl: int
    ioctl: int


_NAMES = (
    "socket connect accept accept4 bind listen execve execveat ptrace"
    " process_vm_readv process_vm_writev mount umount2 unshare setns pivot_root chroot bpf"
    " perf_event_open keyctl add_key request_key io_uring_setup init_module finit_module"
    " kexec_load userfaultfd tkill pidfd_getfd pidfd_send_signal rt_sigqueueinfo"
    " fchmod fchmodat fchmodat2 fchown fchownat setxattr lsetxattr fsetxattr"
).split()
_X86 = (
    41, 42, 43, 288, 49, 50, 59, 322, 101, 310, 311, 165, 166, 272, 308, 155, 161,
    321, 298, 250, 248, 249, 425, 175, 313, 246, 323, 200, 438, 424, 129,
    91, 268, 452, 93, 260, 188, 189, 190,
)  # fmt: skip
_ARM = (
    198, 203, 202, 242, 200, 201, 221, 281, 117, 270, 271, 40, 39, 97, 268, 41, 51,
    280, 241, 219, 217, 218, 425, 105, 273, 104, 282, 130, 438, 424, 138,
    52, 53, 452, 55, 54, 5, 6, 7,
)  # fmt: skip
_MACHINES = {
    "x86_64": _Machine(
        audit=0xC000003E,
        refused=dict(zip(_NAMES, _X86, strict=True))
        | {"fork": 57, "vfork": 58, "chmod": 90, "chown": 92, "lchown": 94},
        clone=56,
        clone3=435,
        signals=(62, 234, 297),
        prlimit=302,
        fcntl=72,
        ioctl=16,
    ),
    "aarch64": _Machine(
        audit=0xC00000B7,
        refused=dict(zip(_NAMES, _ARM, strict=True)),
        clone=220,
        clone3=435,
        signals=(129, 131, 240),
        prlimit=261,
        fcntl=25,
        ioctl=29,
    ),
}
"""A session keeps the one connection it has, on which it may send and receive. Rights and owners of
files are refused as such: landlock does not know of them."""

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_READ = 1 << 0 | 1 << 2 | 1 << 3
"""Landlock's rights to execute (map code), read a file, list a folder."""
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Version of landlock -> how many rights to files it knows."""
_DEATH_SIGNAL, _NO_NEW_PRIVS, _SET_SECCOMP, _SECCOMP_FILTER = 1, 38, 22, 2
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_THREAD = 0x00010000
"""CLONE_THREAD."""
_SET_OWNER = (8, 10, 15)
"""F_SETOWN, F_SETSIG, F_SETOWN_EX: who gets which signal when data come."""
_SET_OWNER_OF_DEVICE = (0x8901, 0x8902)
"""FIOSETOWN, SIOCSPGRP: the same for sockets."""

_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Have the kernel end this process with the one that forked it."""
    parent = os.getppid()
    _libc.prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def missing() -> str:
    """What this machine lacks for it; nothing where all is there."""
    if platform.machine() not in _MACHINES:
        return f"no table of calls for {platform.machine()}"
    if _landlock_version() < 1:
        return "the kernel has no landlock"
    return ""


def enter(folder: Path, limits: Limits) -> None:
    """Hold this process, and the threads it will start, to its folder and limits. Raises RPCError
    where the kernel refuses.
    """
    sys.dont_write_bytecode = True  # beside sources, which lie outside
    _limit(limits)
    _call("prctl", _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))
    _confine_files(folder)
    _filter_calls()


def _call(what: str, result: int) -> int:
    if result < 0:
        raise RPCError(f"sandbox: {what}: {os.strerror(ctypes.get_errno())}")
    return result


def _limit(limits: Limits) -> None:
    """Limits of memory and files."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    for kind, most in (
        (resource.RLIMIT_AS, pages * resource.getpagesize() + limits.memory),
        (resource.RLIMIT_FSIZE, limits.file),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (bound, bound))


def _landlock_version() -> int:
    return int(_libc.syscall(_LANDLOCK_CREATE, None, 0, 1))


def _readable() -> Iterable[Path]:
    """What programs need: libraries, Python's own files, what the kernel says of the machine."""
    system = ("/lib", "/lib64", "/usr", "/etc/ld.so.cache", "/sys/devices/system")
    process = ("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat")
    devices = ("/dev/null", "/dev/urandom", "/dev/zero")
    python = (sys.base_prefix, sys.prefix, *ekiden.__path__)
    packages = (p for p in sys.path if p.endswith(("site-packages", "dist-packages")))
    return {Path(p) for p in (*system, *process, *devices, *python, *packages) if os.path.exists(p)}


def _confine_files(folder: Path) -> None:
    """Landlock: everything in `folder`, reading of what programs need, nothing else."""
    rights = (1 << _RIGHTS.get(_landlock_version(), 16)) - 1
    asked = struct.pack("<Q", rights)
    rules = _call("landlock", _libc.syscall(_LANDLOCK_CREATE, asked, len(asked), 0))
    for path, right in [(folder, rights), *((p, _READ) for p in _readable())]:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        allowed = right if path.is_dir() else right & ~(1 << 3)
        rule = struct.pack("<Qi", allowed, place)
        _call(f"landlock '{path}'", _libc.syscall(_LANDLOCK_ADD, rules, 1, rule, 0))
        os.close(place)
    _call("landlock", _libc.syscall(_LANDLOCK_RESTRICT, rules, 0))
    os.close(rules)


def _filter_calls() -> None:
    """Seccomp: no sockets, programs, processes, nor signals to others."""
    code = _program(_MACHINES[platform.machine()], os.getpid())
    buffer = ctypes.create_string_buffer(code, len(code))
    head = struct.pack("<HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    _call("seccomp", _libc.prctl(_SET_SECCOMP, _SECCOMP_FILTER, head, 0, 0))


def _program(machine: _Machine, pid: int) -> bytes:
    """The filter, in the kernel's instructions: (code, jump if true, jump if false, operand)."""
    load, equal, at_least, bits, give = 0x20, 0x15, 0x35, 0x45, 0x06
    number, arch, first, second = 0, 4, 16, 24
    rows = [
        (load, 0, 0, arch),
        (equal, 1, 0, machine.audit),
        (give, 0, 0, _KILL),
        (load, 0, 0, number),
        (at_least, 0, 1, 0x40000000),  # the calls of another ABI
        (give, 0, 0, _KILL),
    ]
    for call in machine.refused.values():
        rows += [(equal, 0, 1, call), (give, 0, 0, _ERRNO | _EPERM)]
    rows += [(equal, 0, 1, machine.clone3), (give, 0, 0, _ERRNO | _ENOSYS)]
    rows += [
        (equal, 0, 4, machine.clone),
        (load, 0, 0, first),
        (bits, 1, 0, _THREAD),
        (give, 0, 0, _ERRNO | _EPERM),
        (give, 0, 0, _ALLOW),
    ]
    no = _ERRNO | _EPERM
    limited = [  # (call, argument, its values, what these get, what others get)
        *((call, first, (pid,), _ALLOW, no) for call in machine.signals),
        (machine.prlimit, first, (0, pid), _ALLOW, no),
        (machine.fcntl, second, _SET_OWNER, no, _ALLOW),
        (machine.ioctl, second, _SET_OWNER_OF_DEVICE, no, _ALLOW),
    ]
    for call, argument, values, these, others in limited:
        rows += [(equal, 0, len(values) + 3, call), (load, 0, 0, argument)]
        rows += [(equal, len(values) - at, 0, value) for at, value in enumerate(values)]
        rows += [(give, 0, 0, others), (give, 0, 0, these)]
    rows.append((give, 0, 0, _ALLOW))
    return b"".join(struct.pack("<HBBI", *row) for row in rows)
