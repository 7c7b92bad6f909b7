/* Sandbox restrictions that need no namespace: landlock, resource limits, the seccomp filter. */
#include "ek_rpc_sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>

/* Numbers that headers of some libraries and processors do not have. */
#ifndef CLONE_DETACHED
#define CLONE_DETACHED 0x00400000
#endif
#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#endif
#ifndef ARCH_SET_FS
#define ARCH_SET_FS 0x1002
#define ARCH_GET_FS 0x1003
#endif
#ifndef ARCH_REQ_XCOMP_PERM
#define ARCH_GET_XCOMP_SUPP 0x1021
#define ARCH_GET_XCOMP_PERM 0x1022
#define ARCH_REQ_XCOMP_PERM 0x1023
#endif
#ifndef SECCOMP_FILTER_FLAG_TSYNC
#define SECCOMP_FILTER_FLAG_TSYNC 1
#endif

#include "ek_rpc_calls.h"

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#elif defined(__riscv) && __riscv_xlen == 64
#define ARCHITECTURE AUDIT_ARCH_RISCV64
#elif defined(__arm__)
#define ARCHITECTURE AUDIT_ARCH_ARM
#else
#define ARCHITECTURE 0
#endif

#define COUNT(array) (sizeof(array) / sizeof *(array))

const char *const rpc_system_paths[] = {
    "/usr", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d",
    "/etc/OpenCL", "/etc/vulkan", "/sys/devices", "/sys/bus/pci", "/sys/class/drm",
    "/sys/module/nvidia", NULL};
const char *const rpc_device_paths[] = {
    "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/nvidiactl",
    "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-caps", "/dev/nvidia0", "/dev/nvidia1",
    "/dev/nvidia2", "/dev/nvidia3", "/dev/nvidia4", "/dev/nvidia5", "/dev/nvidia6", "/dev/nvidia7",
    "/dev/dri", "/dev/kfd", "/dev/mali0", NULL};

/* Files ---------------------------------------------------------------------------------------- */

enum { LANDLOCK_CREATE = 444, LANDLOCK_ADD = 445, LANDLOCK_RESTRICT = 446 };
enum {
  FILE_EXECUTE = 1 << 0, FILE_WRITE = 1 << 1, FILE_READ = 1 << 2, FOLDER_LIST = 1 << 3,
  FILE_REMOVE = 1 << 5, FILE_MAKE = 1 << 8, FILE_TRUNCATE = 1 << 14, DEVICE_IOCTL = 1 << 15,
};

/* landlock_ruleset_attr: handled access to files (ABI 1), TCP (ABI 4), and scopes (ABI 6: abstract
** sockets and signals). */
typedef struct landlock_rules {
  uint64_t files, tcp, scopes;
} landlock_rules;

int rpc_landlock(int max_landlock) {
  long version = syscall(LANDLOCK_CREATE, NULL, 0, 1);
  if (version < 0) return 0;
  return max_landlock >= 0 && max_landlock < version ? max_landlock : (int)version;
}

/* The rights to files that an ABI knows. */
static uint64_t known_rights(int version) {
  static const int counts[] = {0, 13, 14, 15, 15, 16};
  return (UINT64_C(1) << counts[version < 5 ? version : 5]) - 1;
}

/* Lets what is at a path, or below it, be used by 'rights'; a path that is not there is none. */
static int allow(int rules, const char *path, uint64_t rights) {
  struct __attribute__((packed)) {
    uint64_t rights;
    int32_t place;
  } rule = {rights, open(path, O_PATH | O_CLOEXEC)};
  struct stat about;
  if (rule.place < 0) return errno == ENOENT || errno == ENOTDIR || errno == EACCES ? 0 : -1;
  if (fstat(rule.place, &about) == 0 && !S_ISDIR(about.st_mode)) {
    rule.rights &= FILE_EXECUTE | FILE_WRITE | FILE_READ | FILE_TRUNCATE | DEVICE_IOCTL;
  }
  long code = syscall(LANDLOCK_ADD, rules, 1, &rule, 0);
  close(rule.place);
  return code == 0 ? 0 : -1;
}

static int allow_all(int rules, const char *const *paths, uint64_t rights) {
  for (; paths != NULL && *paths != NULL; paths++) {
    if (allow(rules, *paths, rights) != 0) return -1;
  }
  return 0;
}

/* A session's folder is flat: it makes files there, no folders, links, sockets or nodes. */
int rpc_confine_files(const rpc_program *program, const char *const *devices, int has_own_proc) {
  static const char *const own[] = {"/proc", NULL};
  static const char *const shared[] = {"/proc/self", "/proc/cpuinfo", "/proc/meminfo",
                                       "/proc/stat", NULL};
  int version = rpc_landlock(program->max_landlock);
  uint64_t known = known_rights(version), read = FILE_EXECUTE | FILE_READ | FOLDER_LIST;
  uint64_t use = (FILE_READ | FILE_WRITE | FOLDER_LIST | DEVICE_IOCTL) & known;
  uint64_t all = (read | FILE_WRITE | FILE_REMOVE | FILE_MAKE | FILE_TRUNCATE) & known;
  landlock_rules governed = {known, version >= 4 ? 3 : 0, version >= 6 ? 3 : 0};
  size_t size = version >= 6 ? 24 : version >= 4 ? 16 : 8;
  int rules = (int)syscall(LANDLOCK_CREATE, &governed, size, 0);
  if (rules < 0) return -1;
  int code = allow(rules, program->folder, all);
  if (code == 0) code = allow_all(rules, rpc_system_paths, read);
  if (code == 0) code = allow_all(rules, program->readable, read);
  if (code == 0) code = allow_all(rules, devices, use);
  if (code == 0) code = allow_all(rules, has_own_proc ? own : shared, read & ~(uint64_t)FILE_EXECUTE);
  if (code == 0) code = (int)syscall(LANDLOCK_RESTRICT, rules, 0);
  close(rules);
  return code;
}

/* Limits --------------------------------------------------------------------------------------- */

static int limit(int kind, uint64_t most) {
  struct rlimit now;
  if (getrlimit(kind, &now) != 0) return -1;
  if ((rlim_t)most != most) most = RLIM_INFINITY; /* more than this processor can have */
  if (now.rlim_max != RLIM_INFINITY && now.rlim_max < most) most = now.rlim_max;
  now.rlim_cur = now.rlim_max = (rlim_t)most;
  return setrlimit(kind, &now);
}

/* Bytes of the address space that the process has. */
static uint64_t address_space(void) {
  char text[64];
  unsigned long pages = 0;
  int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  ssize_t count = file < 0 ? -1 : read(file, text, sizeof text - 1);
  if (file >= 0) close(file);
  for (ssize_t i = 0; i < count && text[i] >= '0' && text[i] <= '9'; i++) {
    pages = pages * 10 + (unsigned long)(text[i] - '0');
  }
  return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* The number of a user's threads is one for all of its programs, but inside a namespace of users. */
static int set_limits(const rpc_limits *limits, unsigned walls) {
  int code = limit(RLIMIT_AS, address_space() + limits->memory);
  if (code == 0) code = limit(RLIMIT_FSIZE, limits->file);
  if (code == 0) code = limit(RLIMIT_CORE, 0);
  if (code == 0) code = limit(RLIMIT_MSGQUEUE, 0);
  if (code == 0) code = limit(RLIMIT_NOFILE, limits->open_files);
  if (code == 0 && (walls & RPC_USER_NAMESPACE)) code = limit(RLIMIT_NPROC, limits->threads);
  return code;
}

/* System calls --------------------------------------------------------------------------------- */

typedef struct sock_filter row;

static row *statement(row *at, uint16_t code, uint32_t operand) {
  *at = (row){code, 0, 0, operand};
  return at + 1;
}

/* Goes over 'yes' rows if the loaded number is 'operand', over 'no' rows if not. */
static row *compare(row *at, uint32_t operand, uint8_t yes, uint8_t no) {
  *at = (row){BPF_JMP | BPF_JEQ | BPF_K, yes, no, operand};
  return at + 1;
}

enum {
  LOAD = BPF_LD | BPF_W | BPF_ABS,
  GIVE = BPF_RET | BPF_K,
  PASS = SECCOMP_RET_ALLOW,
  ROWS_OF_TEST = 10, /* load, mask, six values, two answers */
};
#define REFUSE(error) (SECCOMP_RET_ERRNO | (error))

static row *load_argument(row *at, const rpc_test *test) {
  uint32_t place = (uint32_t)offsetof(struct seccomp_data, args) + 8u * test->argument;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  at = statement(at, LOAD, place + 4u * test->is_upper);
#else
  at = statement(at, LOAD, place + 4u * !test->is_upper);
#endif
  return statement(at, BPF_ALU | BPF_AND | BPF_K, test->mask);
}

/* A test: one that holds goes on behind these rows, one that does not refuses the call. */
static row *require(row *at, const rpc_test *test, uint32_t own) {
  at = load_argument(at, test);
  for (uint8_t i = 0; i < test->count; i++) {
    uint32_t value = test->values[i] == RPC_OWN_PROCESS ? own : test->values[i];
    uint8_t left = (uint8_t)(test->count - i - 1);
    at = compare(at, value, (uint8_t)(left + 1), 0);
  }
  if (test->forbids) *at++ = (row){BPF_JMP | BPF_JA, 0, 0, 1};
  return statement(at, GIVE, REFUSE(EPERM));
}

/* Calls of ioctl that pass by one test, before those that all tests must hold for. */
static row *pass_devices(row *at) {
  row *begin = at++;
  for (size_t i = 0; i < COUNT(rpc_device_requests); i++) {
    const rpc_test *test = &rpc_device_requests[i];
    at = load_argument(at, test);
    for (uint8_t k = 0; k < test->count; k++) {
      at = compare(at, test->values[k], 0, 1);
      at = statement(at, GIVE, PASS);
    }
  }
  at = statement(at, LOAD, offsetof(struct seccomp_data, nr));
  compare(begin, SYS_ioctl, 0, (uint8_t)(at - begin - 1));
  return at;
}

static row *pass_call(row *at, const rpc_call *call, uint32_t own) {
  row *begin = at++;
  for (uint8_t i = 0; i < call->count; i++) at = require(at, &rpc_tests[call->first + i], own);
  at = statement(at, GIVE, PASS);
  compare(begin, call->number, 0, (uint8_t)(at - begin - 1));
  return at;
}

static const char *filter_calls(int has_devices) {
  row rows[64 + 2 * COUNT(rpc_fallbacks) + 2 * COUNT(rpc_calls) + 3 * ROWS_OF_TEST * COUNT(rpc_tests)];
  uint32_t own = (uint32_t)getpid();
  row *at = statement(rows, LOAD, offsetof(struct seccomp_data, arch));
  at = compare(at, ARCHITECTURE, 1, 0);
  at = statement(at, GIVE, SECCOMP_RET_KILL_PROCESS);
  at = statement(at, LOAD, offsetof(struct seccomp_data, nr));
  *at++ = (row){BPF_JMP | BPF_JGE | BPF_K, 0, 1, 0x40000000}; /* the calls of another ABI */
  at = statement(at, GIVE, SECCOMP_RET_KILL_PROCESS);
  if (has_devices) at = pass_devices(at);
  for (size_t i = 0; i < COUNT(rpc_calls); i++) at = pass_call(at, &rpc_calls[i], own);
  for (size_t i = 0; i < COUNT(rpc_fallbacks); i++) {
    at = compare(at, rpc_fallbacks[i], 0, 1);
    at = statement(at, GIVE, REFUSE(ENOSYS));
  }
  at = statement(at, GIVE, REFUSE(EPERM));
  struct sock_fprog program = {(unsigned short)(at - rows), rows};
  long code = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
  return code == 0 ? NULL : "the kernel refuses the filter of system calls (seccomp)";
}

/* ---------------------------------------------------------------------------------------------- */

const char *rpc_lack(void) {
  const uint32_t refusal = SECCOMP_RET_ERRNO;
  if (ARCHITECTURE == 0) return "no filter of system calls for this processor";
  if (rpc_landlock(-1) < 1) return "the kernel has no landlock";
  if (syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &refusal) != 0) {
    return "the kernel has no filters of system calls (seccomp)";
  }
  return NULL;
}

const char *rpc_close(const rpc_limits *limits, unsigned walls, int has_devices) {
  if (set_limits(limits, walls) != 0) return "the kernel refuses a limit";
  return filter_calls(has_devices);
}
