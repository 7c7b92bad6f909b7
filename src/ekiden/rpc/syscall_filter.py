"""The system calls a session may make, and the environment variables it inherits from its server:
one table, from which scripts/generate_rpc.py writes runtime/rpc/ek_rpc_calls.h, which both
servers' filters are made of, and docs/sandbox-calls.md.

What has no row is refused with EPERM. Constants are C's, by name, as processors number them
differently.
"""

from __future__ import annotations

from ekiden.runtime.lazy_dataclass import dataclass

__all__ = [
    "ALLOWED_CALLS",
    "CALL_GROUPS",
    "DEVICE_IOCTLS",
    "ENOSYS_CALLS",
    "FOLDER_VARIABLES",
    "INHERITED_VARIABLES",
    "OWN_PROCESS_MARK",
    "ArgumentTest",
    "SyscallRule",
]  # fmt: skip

OWN_PROCESS_MARK = "OWN_PROCESS"
"""Stands for the number of the session's own process, which the filter gets when it is made."""


@dataclass(frozen=True, slots=True)
class ArgumentTest:
    """Test of a system-call argument: the bits under `mask` equal one of `values`, or with
    `is_negated` none of them. A filter compares 32-bit halves: `tests_upper_half` selects the upper
    one.
    """

    argument_index: int
    values: tuple[str, ...]
    mask: str = ""
    is_negated: bool = False
    tests_upper_half: bool = False


@dataclass(frozen=True, slots=True)
class SyscallRule:
    """System call that is allowed if all of its argument tests hold."""

    name: str
    tests: tuple[ArgumentTest, ...] = ()
    reason: str = ""


def _null_pointer_tests(argument: int) -> tuple[ArgumentTest, ArgumentTest]:
    """Return the tests of a pointer that must be NULL."""
    return ArgumentTest(argument, ("0",)), ArgumentTest(argument, ("0",), tests_upper_half=True)


def _open_flag_tests(argument: int) -> tuple[ArgumentTest, ...]:
    """Return the tests of the flags of a file that is opened. O_PATH and access mode 3 would give a
    descriptor of any file, landlock or not; O_TRUNC with O_RDONLY empties a file before landlock's
    ABI 3.
    """
    return (
        ArgumentTest(argument, ("0",), mask="O_PATH"),
        ArgumentTest(argument, ("3",), mask="3", is_negated=True),
        ArgumentTest(argument, ("O_TRUNC",), mask="(O_TRUNC | 3)", is_negated=True),
    )


_DESCRIPTOR_COMMANDS = "F_DUPFD F_DUPFD_CLOEXEC F_GETFD F_SETFD F_GETFL F_SETFL".split()
_FCNTL_TESTS = (ArgumentTest(1, tuple(_DESCRIPTOR_COMMANDS)),)
_IOCTL_TESTS = (
    ArgumentTest(1, ("TCGETS", "TIOCGWINSZ", "FIONREAD", "FIONBIO", "FIOCLEX", "FIONCLEX")),
)
_PRCTL_TESTS = (
    ArgumentTest(
        0, ("PR_SET_NAME", "PR_GET_NAME", "PR_GET_NO_NEW_PRIVS", "PR_CAPBSET_READ", "PR_SET_VMA")
    ),
)
_ARCH_PRCTL_TESTS = (ArgumentTest(0, ("ARCH_SET_FS", "ARCH_GET_FS", "ARCH_GET_XCOMP_SUPP",
                                      "ARCH_GET_XCOMP_PERM", "ARCH_REQ_XCOMP_PERM")),)  # fmt: skip
_THREAD_FLAGS = (
    "(CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM"
    " | CLONE_SETTLS | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID | CLONE_CHILD_SETTID"
    " | CLONE_DETACHED)"
)
_CLONE_TESTS = (
    ArgumentTest(0, ("0",), mask=f"~{_THREAD_FLAGS}"),
    ArgumentTest(0, ("CLONE_THREAD",), mask="CLONE_THREAD"),
)
_OWN_PROCESS_TEST = (ArgumentTest(0, (OWN_PROCESS_MARK,)),)
_OWN_THREAD_TEST = (ArgumentTest(0, ("0",)),)

_MEMORY_CALLS = (
    "mmap mmap2 munmap mremap mprotect madvise brk mincore msync membarrier get_mempolicy"
)
_THREAD_CALLS = (
    "futex futex_time64 futex_waitv set_robust_list rseq set_tid_address gettid exit exit_group"
    " sched_yield sched_getaffinity sched_getparam sched_getscheduler sched_get_priority_max"
    " sched_get_priority_min getcpu restart_syscall"
    " riscv_flush_icache riscv_hwprobe __ARM_NR_cacheflush __ARM_NR_set_tls"
)
_SIGNAL_CALLS = (
    "rt_sigaction rt_sigprocmask rt_sigreturn sigreturn sigaltstack rt_sigpending"
    " rt_sigtimedwait rt_sigtimedwait_time64"
)
_TIME_CALLS = (
    "clock_gettime clock_gettime64 clock_getres clock_getres_time64 clock_nanosleep"
    " clock_nanosleep_time64 nanosleep gettimeofday time times"
)
_DESCRIPTOR_CALLS = (
    "read write readv writev pread64 pwrite64 preadv pwritev lseek _llseek close close_range"
    " dup dup2 dup3 pipe pipe2 eventfd2 epoll_create1 epoll_ctl epoll_wait epoll_pwait poll ppoll"
    " ppoll_time64 select pselect6 pselect6_time64 _newselect"
)
_FILE_CALLS = (
    "fstat fstat64 newfstatat fstatat64 stat stat64 lstat lstat64 statx access faccessat"
    " faccessat2 readlink readlinkat getcwd getdents64 getdents ftruncate ftruncate64 fallocate"
    " fsync fdatasync fadvise64 arm_fadvise64_64 rename renameat renameat2 unlink unlinkat umask"
)
_CONNECTION_CALLS = "recv recvfrom recvmsg send shutdown getsockname getpeername getsockopt"
_IDENTITY_CALLS = (
    "getpid getppid getuid getuid32 geteuid geteuid32 getgid getgid32 getegid getegid32 getpgrp"
    " uname sysinfo getrandom getrusage getrlimit ugetrlimit"
)


def _unconditional_calls(names: str) -> tuple[SyscallRule, ...]:
    """Return the rows of calls that pass whatever their arguments are."""
    return tuple(SyscallRule(name) for name in names.split())


CALL_GROUPS: dict[str, tuple[SyscallRule, ...]] = {
    "memory": _unconditional_calls(_MEMORY_CALLS),
    "threads": (
        *_unconditional_calls(_THREAD_CALLS),
        SyscallRule(
            "clone", _CLONE_TESTS, "a thread of the session, never a process or a namespace"
        ),
        SyscallRule("sched_setaffinity", _OWN_THREAD_TEST, "the calling thread alone"),
        SyscallRule("arch_prctl", _ARCH_PRCTL_TESTS, "thread-local storage, and matrix registers"),
        SyscallRule(
            "prctl", _PRCTL_TESTS, "names of threads and of memory; never the death signal"
        ),
    ),
    "signals": (
        *_unconditional_calls(_SIGNAL_CALLS),
        *(
            SyscallRule(name, _OWN_PROCESS_TEST, "to itself")
            for name in ("kill", "tgkill", "rt_tgsigqueueinfo")
        ),
    ),
    "time": _unconditional_calls(_TIME_CALLS),
    "descriptors": (
        *_unconditional_calls(_DESCRIPTOR_CALLS),
        *(
            SyscallRule(name, _FCNTL_TESTS, "no owner, no signals, no locks")
            for name in ("fcntl", "fcntl64")
        ),
        SyscallRule("ioctl", _IOCTL_TESTS, "what a stream is, and how much there is to read"),
    ),
    "files": (
        *_unconditional_calls(_FILE_CALLS),
        SyscallRule(
            "openat",
            _open_flag_tests(2),
            "not of a path alone; O_TRUNC of what may be written alone",
        ),
        SyscallRule("open", _open_flag_tests(1), "the same"),
    ),
    "connection": (
        *_unconditional_calls(_CONNECTION_CALLS),
        SyscallRule("sendto", _null_pointer_tests(4), "no address: to the client alone"),
    ),
    "about itself": (
        *_unconditional_calls(_IDENTITY_CALLS),
        SyscallRule(
            "prlimit64", (*_OWN_THREAD_TEST, *_null_pointer_tests(2)), "reads its own limits"
        ),
    ),
}
"""Calls by what they are for."""

ALLOWED_CALLS = tuple(call for group in CALL_GROUPS.values() for call in group)
"""All of them, in the order in which the filter looks."""

ENOSYS_CALLS = ("clone3", "openat2", "preadv2", "pwritev2")
"""Calls that are refused as if the kernel had none (ENOSYS), so that libraries use the older ones:
their flags lie in memory, where a filter cannot read them.
"""

DEVICE_IOCTLS = (
    ArgumentTest(1, ("0x4600", "0x6400", "0x4b00"), mask="0xff00"),  # NVIDIA, DRM, AMD's KFD
    ArgumentTest(1, ("0x0", "0x30000000"), mask="0xffffff00"),  # NVIDIA's unified memory
)
"""Requests of ioctl that a session with devices may make too: those for which one test holds."""

FOLDER_VARIABLES = ("LD_LIBRARY_PATH", "EKIDEN_DRIVERS", "EKIDEN_ENGINES")
"""Variables of folders with libraries, which a session may read."""

INHERITED_VARIABLES = (
    *FOLDER_VARIABLES,
    *"LANG LC_ALL LC_CTYPE TZ OMP_NUM_THREADS OPENBLAS_NUM_THREADS MKL_NUM_THREADS".split(),
    *"EKIDEN_NUM_THREADS EKIDEN_MEMORY_LIMIT EKIDEN_NVRTC".split(),
    *"CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES OCL_ICD_VENDORS OCL_ICD_FILENAMES".split(),
    *"POCL_DEVICES POCL_MAX_PTHREAD_COUNT VK_ICD_FILENAMES VK_DRIVER_FILES".split(),
)
"""Of the server's environment a session has these, and a HOME and TMPDIR of its own."""
