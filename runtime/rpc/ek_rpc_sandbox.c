/* The sandbox of a session's process, by the kernel's own calls. */
#include "ek_rpc_sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>

#ifndef CLONE_THREAD
#define CLONE_THREAD 0x00010000
#endif

enum { LANDLOCK_CREATE = 444, LANDLOCK_ADD = 445, LANDLOCK_RESTRICT = 446 };
enum { RIGHTS_EXECUTE = 1, RIGHTS_READ = 4, RIGHTS_LIST = 8, MAX_FILES = 256 };

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#elif defined(__riscv)
#define ARCHITECTURE AUDIT_ARCH_RISCV64
#elif defined(__arm__)
#define ARCHITECTURE AUDIT_ARCH_ARM
#else
#error "the sandbox does not know this processor"
#endif

static const int refused[] = {
    SYS_socket, SYS_connect, SYS_accept, SYS_accept4, SYS_bind, SYS_listen, SYS_execve, SYS_execveat,
    SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_mount, SYS_umount2, SYS_unshare,
    SYS_setns, SYS_pivot_root, SYS_chroot, SYS_bpf, SYS_perf_event_open, SYS_keyctl, SYS_add_key,
    SYS_request_key, 425 /* io_uring_setup */, SYS_init_module, SYS_finit_module, SYS_userfaultfd,
    SYS_tkill, 438 /* pidfd_getfd */, 424 /* pidfd_send_signal */, SYS_rt_sigqueueinfo,
#ifdef SYS_fork
    SYS_fork, SYS_vfork,
#endif
    /* Rights and owners of files, which landlock does not know of. */
    SYS_fchmod, SYS_fchmodat, 452 /* fchmodat2 */, SYS_fchown, SYS_fchownat, SYS_setxattr,
    SYS_lsetxattr, SYS_fsetxattr,
#ifdef SYS_chmod
    SYS_chmod, SYS_chown, SYS_lchown,
#endif
#ifdef SYS_chown32
    SYS_chown32, SYS_lchown32, SYS_fchown32,
#endif
};

/* Calls that are held to values of an argument, the process's own number where 'own': those get
** 'these', all others the contrary. */
typedef struct limited {
  uint32_t call;
  uint8_t argument, own, allows, count;
  uint32_t values[3];
} limited;

static const limited held[] = {
    {SYS_kill, 0, 1, 1, 0, {0}},
    {SYS_tgkill, 0, 1, 1, 0, {0}},
    {SYS_rt_tgsigqueueinfo, 0, 1, 1, 0, {0}},
    {SYS_prlimit64, 0, 1, 1, 1, {0}},
    /* who gets which signal when data come */
    {SYS_fcntl, 1, 0, 0, 3, {8 /* F_SETOWN */, 10 /* F_SETSIG */, 15 /* F_SETOWN_EX */}},
#ifdef SYS_fcntl64
    {SYS_fcntl64, 1, 0, 0, 3, {8, 10, 15}},
#endif
    {SYS_ioctl, 1, 0, 0, 2, {0x8901 /* FIOSETOWN */, 0x8902 /* SIOCSPGRP */, 0}},
};

void rpc_die_with_parent(int parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (getppid() != parent) _exit(1);
}

static int limit(int kind, rlim_t most) {
  struct rlimit now;
  if (getrlimit(kind, &now) != 0) return -1;
  if (now.rlim_max != RLIM_INFINITY && now.rlim_max < most) most = now.rlim_max;
  now.rlim_cur = now.rlim_max = most;
  return setrlimit(kind, &now);
}

/* Lets everything below a path that exists be used by 'rights'. */
static int allow(int rules, const char *path, uint64_t rights) {
  struct __attribute__((packed)) {
    uint64_t rights;
    int32_t place;
  } rule = {rights, open(path, O_PATH | O_CLOEXEC)};
  struct stat found;
  if (rule.place < 0) return errno == ENOENT ? 0 : -1;
  if (fstat(rule.place, &found) == 0 && !S_ISDIR(found.st_mode)) rule.rights &= ~(uint64_t)RIGHTS_LIST;
  long code = syscall(LANDLOCK_ADD, rules, 1, &rule, 0);
  close(rule.place);
  return code == 0 ? 0 : -1;
}

static const char *confine_files(const char *folder) {
  static const char *const readable[] = {"/lib", "/lib64", "/usr/lib", "/etc/ld.so.cache",
                                         "/sys/devices/system", "/proc/self", "/proc/cpuinfo",
                                         "/proc/meminfo", "/proc/stat", "/dev/null",
                                         "/dev/urandom"};
  static const int known[] = {0, 13, 14, 15, 15, 16};
  long version = syscall(LANDLOCK_CREATE, NULL, 0, 1);
  if (version < 1) return "the kernel has no landlock";
  uint64_t rights = (UINT64_C(1) << known[version < 5 ? version : 5]) - 1;
  int rules = (int)syscall(LANDLOCK_CREATE, &rights, sizeof rights, 0);
  if (rules < 0 || allow(rules, folder, rights) != 0) return "landlock refuses the folder";
  for (size_t i = 0; i < sizeof readable / sizeof *readable; i++) {
    if (allow(rules, readable[i], RIGHTS_EXECUTE | RIGHTS_READ | RIGHTS_LIST) != 0) {
      return "landlock refuses a folder of the system";
    }
  }
  long code = syscall(LANDLOCK_RESTRICT, rules, 0);
  close(rules);
  return code == 0 ? NULL : "landlock refuses";
}

typedef struct sock_filter row;

static row *statement(row *at, uint16_t code, uint32_t operand) {
  *at = (row){code, 0, 0, operand};
  return at + 1;
}

/* Skips 'over' rows unless the number is 'operand'. */
static row *unless(row *at, uint32_t operand, uint8_t over) {
  *at = (row){BPF_JMP | BPF_JEQ | BPF_K, 0, over, operand};
  return at + 1;
}

static const char *filter_calls(void) {
  enum { LOAD = BPF_LD | BPF_W | BPF_ABS, GIVE = BPF_RET | BPF_K };
  const uint32_t number = offsetof(struct seccomp_data, nr), first = offsetof(struct seccomp_data, args);
  const uint32_t no = SECCOMP_RET_ERRNO | EPERM;
  row rows[32 + 2 * sizeof refused / sizeof *refused + 7 * sizeof held / sizeof *held];
  row *at = statement(rows, LOAD, offsetof(struct seccomp_data, arch));
  *at++ = (row){BPF_JMP | BPF_JEQ | BPF_K, 1, 0, ARCHITECTURE};
  at = statement(at, GIVE, SECCOMP_RET_KILL_PROCESS);
  at = statement(at, LOAD, number);
  *at++ = (row){BPF_JMP | BPF_JGE | BPF_K, 0, 1, 0x40000000}; /* the calls of another ABI */
  at = statement(at, GIVE, SECCOMP_RET_KILL_PROCESS);
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    at = unless(at, (uint32_t)refused[i], 1);
    at = statement(at, GIVE, no);
  }
  at = unless(at, 435, 1); /* clone3: its flags lie in memory; libraries fall back to clone */
  at = statement(at, GIVE, SECCOMP_RET_ERRNO | ENOSYS);
  at = unless(at, SYS_clone, 4);
  at = statement(at, LOAD, first);
  *at++ = (row){BPF_JMP | BPF_JSET | BPF_K, 1, 0, CLONE_THREAD};
  at = statement(at, GIVE, no);
  at = statement(at, GIVE, SECCOMP_RET_ALLOW);
  for (size_t i = 0; i < sizeof held / sizeof *held; i++) {
    const limited *each = &held[i];
    uint8_t left = (uint8_t)(each->count + each->own);
    at = unless(at, each->call, (uint8_t)(left + 3));
    at = statement(at, LOAD, first + 8 * each->argument);
    for (int k = 0; left > 0; k++, left--) {
      uint32_t value = k < each->count ? each->values[k] : (uint32_t)getpid();
      *at++ = (row){BPF_JMP | BPF_JEQ | BPF_K, left, 0, value};
    }
    at = statement(at, GIVE, each->allows ? no : SECCOMP_RET_ALLOW);
    at = statement(at, GIVE, each->allows ? SECCOMP_RET_ALLOW : no);
  }
  at = statement(at, GIVE, SECCOMP_RET_ALLOW);
  struct sock_fprog program = {(unsigned short)(at - rows), rows};
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0 ? NULL : "seccomp refuses";
}

const char *rpc_sandbox(const char *folder) {
  const rlim_t most = (rlim_t)8 << 30;
  if (limit(RLIMIT_AS, most) != 0 || limit(RLIMIT_FSIZE, most) != 0 || limit(RLIMIT_CORE, 0) != 0
      || limit(RLIMIT_NOFILE, MAX_FILES) != 0) {
    return "a limit cannot be set";
  }
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return "no_new_privs cannot be set";
  const char *wrong = confine_files(folder);
  return wrong != NULL ? wrong : filter_calls();
}
