/* The system calls of sessions, as docs/sandbox-calls.md has them.
**
** Generated from src/ekiden/rpc/syscall_filter.py by scripts/generate_rpc.py. Do not edit. */
#ifndef EK_RPC_CALLS_H_
#define EK_RPC_CALLS_H_

/* A test of an argument: its bits of 'mask' are one of 'values', or with 'forbids' none of them. */
typedef struct rpc_test {
  unsigned char argument, is_upper, forbids, count;
  unsigned mask, values[6];
} rpc_test;

/* A call, and its tests: 'count' of rpc_tests from 'first' on, all of which must hold. */
typedef struct rpc_call {
  unsigned number;
  unsigned char first, count;
} rpc_call;

enum { RPC_OWN_PROCESS = 0x7FFFFFFF }; /* among values: the number of the session's process */

static const rpc_test rpc_tests[] = {
    {0, 0, 0, 1, (unsigned)(~(CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID | CLONE_CHILD_SETTID | CLONE_DETACHED)), {0}},
    {0, 0, 0, 1, (unsigned)(CLONE_THREAD), {(unsigned)(CLONE_THREAD)}},
    {0, 0, 0, 1, 0xFFFFFFFF, {0}},
    {0, 0, 0, 5, 0xFFFFFFFF, {(unsigned)(ARCH_SET_FS), (unsigned)(ARCH_GET_FS), (unsigned)(ARCH_GET_XCOMP_SUPP), (unsigned)(ARCH_GET_XCOMP_PERM), (unsigned)(ARCH_REQ_XCOMP_PERM)}},
    {0, 0, 0, 5, 0xFFFFFFFF, {(unsigned)(PR_SET_NAME), (unsigned)(PR_GET_NAME), (unsigned)(PR_GET_NO_NEW_PRIVS), (unsigned)(PR_CAPBSET_READ), (unsigned)(PR_SET_VMA)}},
    {0, 0, 0, 1, 0xFFFFFFFF, {(unsigned)(RPC_OWN_PROCESS)}},
    {1, 0, 0, 6, 0xFFFFFFFF, {(unsigned)(F_DUPFD), (unsigned)(F_DUPFD_CLOEXEC), (unsigned)(F_GETFD), (unsigned)(F_SETFD), (unsigned)(F_GETFL), (unsigned)(F_SETFL)}},
    {1, 0, 0, 6, 0xFFFFFFFF, {TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIOCLEX, FIONCLEX}},
    {2, 0, 0, 1, (unsigned)(O_PATH), {0}},
    {2, 0, 1, 1, (unsigned)(3), {3}},
    {2, 0, 1, 1, (unsigned)((O_TRUNC | 3)), {(unsigned)(O_TRUNC)}},
    {1, 0, 0, 1, (unsigned)(O_PATH), {0}},
    {1, 0, 1, 1, (unsigned)(3), {3}},
    {1, 0, 1, 1, (unsigned)((O_TRUNC | 3)), {(unsigned)(O_TRUNC)}},
    {4, 0, 0, 1, 0xFFFFFFFF, {0}},
    {4, 1, 0, 1, 0xFFFFFFFF, {0}},
    {0, 0, 0, 1, 0xFFFFFFFF, {0}},
    {2, 0, 0, 1, 0xFFFFFFFF, {0}},
    {2, 1, 0, 1, 0xFFFFFFFF, {0}},
};

static const rpc_call rpc_calls[] = {
#ifdef SYS_mmap
    {SYS_mmap, 0, 0},
#endif
#ifdef SYS_mmap2
    {SYS_mmap2, 0, 0},
#endif
#ifdef SYS_munmap
    {SYS_munmap, 0, 0},
#endif
#ifdef SYS_mremap
    {SYS_mremap, 0, 0},
#endif
#ifdef SYS_mprotect
    {SYS_mprotect, 0, 0},
#endif
#ifdef SYS_madvise
    {SYS_madvise, 0, 0},
#endif
#ifdef SYS_brk
    {SYS_brk, 0, 0},
#endif
#ifdef SYS_mincore
    {SYS_mincore, 0, 0},
#endif
#ifdef SYS_msync
    {SYS_msync, 0, 0},
#endif
#ifdef SYS_membarrier
    {SYS_membarrier, 0, 0},
#endif
#ifdef SYS_get_mempolicy
    {SYS_get_mempolicy, 0, 0},
#endif
#ifdef SYS_futex
    {SYS_futex, 0, 0},
#endif
#ifdef SYS_futex_time64
    {SYS_futex_time64, 0, 0},
#endif
#ifdef SYS_futex_waitv
    {SYS_futex_waitv, 0, 0},
#endif
#ifdef SYS_set_robust_list
    {SYS_set_robust_list, 0, 0},
#endif
#ifdef SYS_rseq
    {SYS_rseq, 0, 0},
#endif
#ifdef SYS_set_tid_address
    {SYS_set_tid_address, 0, 0},
#endif
#ifdef SYS_gettid
    {SYS_gettid, 0, 0},
#endif
#ifdef SYS_exit
    {SYS_exit, 0, 0},
#endif
#ifdef SYS_exit_group
    {SYS_exit_group, 0, 0},
#endif
#ifdef SYS_sched_yield
    {SYS_sched_yield, 0, 0},
#endif
#ifdef SYS_sched_getaffinity
    {SYS_sched_getaffinity, 0, 0},
#endif
#ifdef SYS_sched_getparam
    {SYS_sched_getparam, 0, 0},
#endif
#ifdef SYS_sched_getscheduler
    {SYS_sched_getscheduler, 0, 0},
#endif
#ifdef SYS_sched_get_priority_max
    {SYS_sched_get_priority_max, 0, 0},
#endif
#ifdef SYS_sched_get_priority_min
    {SYS_sched_get_priority_min, 0, 0},
#endif
#ifdef SYS_getcpu
    {SYS_getcpu, 0, 0},
#endif
#ifdef SYS_restart_syscall
    {SYS_restart_syscall, 0, 0},
#endif
#ifdef SYS_riscv_flush_icache
    {SYS_riscv_flush_icache, 0, 0},
#endif
#ifdef SYS_riscv_hwprobe
    {SYS_riscv_hwprobe, 0, 0},
#endif
#ifdef __ARM_NR_cacheflush
    {__ARM_NR_cacheflush, 0, 0},
#endif
#ifdef __ARM_NR_set_tls
    {__ARM_NR_set_tls, 0, 0},
#endif
#ifdef SYS_clone
    {SYS_clone, 0, 2},
#endif
#ifdef SYS_sched_setaffinity
    {SYS_sched_setaffinity, 2, 1},
#endif
#ifdef SYS_arch_prctl
    {SYS_arch_prctl, 3, 1},
#endif
#ifdef SYS_prctl
    {SYS_prctl, 4, 1},
#endif
#ifdef SYS_rt_sigaction
    {SYS_rt_sigaction, 0, 0},
#endif
#ifdef SYS_rt_sigprocmask
    {SYS_rt_sigprocmask, 0, 0},
#endif
#ifdef SYS_rt_sigreturn
    {SYS_rt_sigreturn, 0, 0},
#endif
#ifdef SYS_sigreturn
    {SYS_sigreturn, 0, 0},
#endif
#ifdef SYS_sigaltstack
    {SYS_sigaltstack, 0, 0},
#endif
#ifdef SYS_rt_sigpending
    {SYS_rt_sigpending, 0, 0},
#endif
#ifdef SYS_rt_sigtimedwait
    {SYS_rt_sigtimedwait, 0, 0},
#endif
#ifdef SYS_rt_sigtimedwait_time64
    {SYS_rt_sigtimedwait_time64, 0, 0},
#endif
#ifdef SYS_kill
    {SYS_kill, 5, 1},
#endif
#ifdef SYS_tgkill
    {SYS_tgkill, 5, 1},
#endif
#ifdef SYS_rt_tgsigqueueinfo
    {SYS_rt_tgsigqueueinfo, 5, 1},
#endif
#ifdef SYS_clock_gettime
    {SYS_clock_gettime, 0, 0},
#endif
#ifdef SYS_clock_gettime64
    {SYS_clock_gettime64, 0, 0},
#endif
#ifdef SYS_clock_getres
    {SYS_clock_getres, 0, 0},
#endif
#ifdef SYS_clock_getres_time64
    {SYS_clock_getres_time64, 0, 0},
#endif
#ifdef SYS_clock_nanosleep
    {SYS_clock_nanosleep, 0, 0},
#endif
#ifdef SYS_clock_nanosleep_time64
    {SYS_clock_nanosleep_time64, 0, 0},
#endif
#ifdef SYS_nanosleep
    {SYS_nanosleep, 0, 0},
#endif
#ifdef SYS_gettimeofday
    {SYS_gettimeofday, 0, 0},
#endif
#ifdef SYS_time
    {SYS_time, 0, 0},
#endif
#ifdef SYS_times
    {SYS_times, 0, 0},
#endif
#ifdef SYS_read
    {SYS_read, 0, 0},
#endif
#ifdef SYS_write
    {SYS_write, 0, 0},
#endif
#ifdef SYS_readv
    {SYS_readv, 0, 0},
#endif
#ifdef SYS_writev
    {SYS_writev, 0, 0},
#endif
#ifdef SYS_pread64
    {SYS_pread64, 0, 0},
#endif
#ifdef SYS_pwrite64
    {SYS_pwrite64, 0, 0},
#endif
#ifdef SYS_preadv
    {SYS_preadv, 0, 0},
#endif
#ifdef SYS_pwritev
    {SYS_pwritev, 0, 0},
#endif
#ifdef SYS_lseek
    {SYS_lseek, 0, 0},
#endif
#ifdef SYS__llseek
    {SYS__llseek, 0, 0},
#endif
#ifdef SYS_close
    {SYS_close, 0, 0},
#endif
#ifdef SYS_close_range
    {SYS_close_range, 0, 0},
#endif
#ifdef SYS_dup
    {SYS_dup, 0, 0},
#endif
#ifdef SYS_dup2
    {SYS_dup2, 0, 0},
#endif
#ifdef SYS_dup3
    {SYS_dup3, 0, 0},
#endif
#ifdef SYS_pipe
    {SYS_pipe, 0, 0},
#endif
#ifdef SYS_pipe2
    {SYS_pipe2, 0, 0},
#endif
#ifdef SYS_eventfd2
    {SYS_eventfd2, 0, 0},
#endif
#ifdef SYS_epoll_create1
    {SYS_epoll_create1, 0, 0},
#endif
#ifdef SYS_epoll_ctl
    {SYS_epoll_ctl, 0, 0},
#endif
#ifdef SYS_epoll_wait
    {SYS_epoll_wait, 0, 0},
#endif
#ifdef SYS_epoll_pwait
    {SYS_epoll_pwait, 0, 0},
#endif
#ifdef SYS_poll
    {SYS_poll, 0, 0},
#endif
#ifdef SYS_ppoll
    {SYS_ppoll, 0, 0},
#endif
#ifdef SYS_ppoll_time64
    {SYS_ppoll_time64, 0, 0},
#endif
#ifdef SYS_select
    {SYS_select, 0, 0},
#endif
#ifdef SYS_pselect6
    {SYS_pselect6, 0, 0},
#endif
#ifdef SYS_pselect6_time64
    {SYS_pselect6_time64, 0, 0},
#endif
#ifdef SYS__newselect
    {SYS__newselect, 0, 0},
#endif
#ifdef SYS_fcntl
    {SYS_fcntl, 6, 1},
#endif
#ifdef SYS_fcntl64
    {SYS_fcntl64, 6, 1},
#endif
#ifdef SYS_ioctl
    {SYS_ioctl, 7, 1},
#endif
#ifdef SYS_fstat
    {SYS_fstat, 0, 0},
#endif
#ifdef SYS_fstat64
    {SYS_fstat64, 0, 0},
#endif
#ifdef SYS_newfstatat
    {SYS_newfstatat, 0, 0},
#endif
#ifdef SYS_fstatat64
    {SYS_fstatat64, 0, 0},
#endif
#ifdef SYS_stat
    {SYS_stat, 0, 0},
#endif
#ifdef SYS_stat64
    {SYS_stat64, 0, 0},
#endif
#ifdef SYS_lstat
    {SYS_lstat, 0, 0},
#endif
#ifdef SYS_lstat64
    {SYS_lstat64, 0, 0},
#endif
#ifdef SYS_statx
    {SYS_statx, 0, 0},
#endif
#ifdef SYS_access
    {SYS_access, 0, 0},
#endif
#ifdef SYS_faccessat
    {SYS_faccessat, 0, 0},
#endif
#ifdef SYS_faccessat2
    {SYS_faccessat2, 0, 0},
#endif
#ifdef SYS_readlink
    {SYS_readlink, 0, 0},
#endif
#ifdef SYS_readlinkat
    {SYS_readlinkat, 0, 0},
#endif
#ifdef SYS_getcwd
    {SYS_getcwd, 0, 0},
#endif
#ifdef SYS_getdents64
    {SYS_getdents64, 0, 0},
#endif
#ifdef SYS_getdents
    {SYS_getdents, 0, 0},
#endif
#ifdef SYS_ftruncate
    {SYS_ftruncate, 0, 0},
#endif
#ifdef SYS_ftruncate64
    {SYS_ftruncate64, 0, 0},
#endif
#ifdef SYS_fallocate
    {SYS_fallocate, 0, 0},
#endif
#ifdef SYS_fsync
    {SYS_fsync, 0, 0},
#endif
#ifdef SYS_fdatasync
    {SYS_fdatasync, 0, 0},
#endif
#ifdef SYS_fadvise64
    {SYS_fadvise64, 0, 0},
#endif
#ifdef SYS_arm_fadvise64_64
    {SYS_arm_fadvise64_64, 0, 0},
#endif
#ifdef SYS_rename
    {SYS_rename, 0, 0},
#endif
#ifdef SYS_renameat
    {SYS_renameat, 0, 0},
#endif
#ifdef SYS_renameat2
    {SYS_renameat2, 0, 0},
#endif
#ifdef SYS_unlink
    {SYS_unlink, 0, 0},
#endif
#ifdef SYS_unlinkat
    {SYS_unlinkat, 0, 0},
#endif
#ifdef SYS_umask
    {SYS_umask, 0, 0},
#endif
#ifdef SYS_openat
    {SYS_openat, 8, 3},
#endif
#ifdef SYS_open
    {SYS_open, 11, 3},
#endif
#ifdef SYS_recv
    {SYS_recv, 0, 0},
#endif
#ifdef SYS_recvfrom
    {SYS_recvfrom, 0, 0},
#endif
#ifdef SYS_recvmsg
    {SYS_recvmsg, 0, 0},
#endif
#ifdef SYS_send
    {SYS_send, 0, 0},
#endif
#ifdef SYS_shutdown
    {SYS_shutdown, 0, 0},
#endif
#ifdef SYS_getsockname
    {SYS_getsockname, 0, 0},
#endif
#ifdef SYS_getpeername
    {SYS_getpeername, 0, 0},
#endif
#ifdef SYS_getsockopt
    {SYS_getsockopt, 0, 0},
#endif
#ifdef SYS_sendto
    {SYS_sendto, 14, 2},
#endif
#ifdef SYS_getpid
    {SYS_getpid, 0, 0},
#endif
#ifdef SYS_getppid
    {SYS_getppid, 0, 0},
#endif
#ifdef SYS_getuid
    {SYS_getuid, 0, 0},
#endif
#ifdef SYS_getuid32
    {SYS_getuid32, 0, 0},
#endif
#ifdef SYS_geteuid
    {SYS_geteuid, 0, 0},
#endif
#ifdef SYS_geteuid32
    {SYS_geteuid32, 0, 0},
#endif
#ifdef SYS_getgid
    {SYS_getgid, 0, 0},
#endif
#ifdef SYS_getgid32
    {SYS_getgid32, 0, 0},
#endif
#ifdef SYS_getegid
    {SYS_getegid, 0, 0},
#endif
#ifdef SYS_getegid32
    {SYS_getegid32, 0, 0},
#endif
#ifdef SYS_getpgrp
    {SYS_getpgrp, 0, 0},
#endif
#ifdef SYS_uname
    {SYS_uname, 0, 0},
#endif
#ifdef SYS_sysinfo
    {SYS_sysinfo, 0, 0},
#endif
#ifdef SYS_getrandom
    {SYS_getrandom, 0, 0},
#endif
#ifdef SYS_getrusage
    {SYS_getrusage, 0, 0},
#endif
#ifdef SYS_getrlimit
    {SYS_getrlimit, 0, 0},
#endif
#ifdef SYS_ugetrlimit
    {SYS_ugetrlimit, 0, 0},
#endif
#ifdef SYS_prlimit64
    {SYS_prlimit64, 16, 3},
#endif
};

/* Refused as if the kernel had none. */
static const unsigned rpc_fallbacks[] = {
#ifdef SYS_clone3
    SYS_clone3,
#endif
#ifdef SYS_openat2
    SYS_openat2,
#endif
#ifdef SYS_preadv2
    SYS_preadv2,
#endif
#ifdef SYS_pwritev2
    SYS_pwritev2,
#endif
};

/* Requests of ioctl to devices: one of these tests holds. */
static const rpc_test rpc_device_requests[] = {
    {1, 0, 0, 3, (unsigned)(0xff00), {0x4600, 0x6400, 0x4b00}},
    {1, 0, 0, 2, (unsigned)(0xffffff00), {0x0, 0x30000000}},
};

#endif /* EK_RPC_CALLS_H_ */
