/* The platform layer for Linux; other systems with POSIX threads work without pinning and
** futexes. */
#define _GNU_SOURCE 1
#include "ek_platform.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

#define HUGE_PAGE ((size_t)2 << 20)
#define EK_CODE_PAGE ((size_t)4096)

/* Locks and threads ---------------------------------------------------------------------------- */

void ek_mutex_lock(ek_mutex *mutex) { pthread_mutex_lock(mutex); }
void ek_mutex_unlock(ek_mutex *mutex) { pthread_mutex_unlock(mutex); }

void ek_mutex_make_recursive(ek_mutex *mutex) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
  pthread_mutex_init(mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

void ek_call_once(ek_once *flag, void (*once)(void)) { pthread_once(flag, once); }
void ek_thread_join(ek_thread thread) { pthread_join(thread, NULL); }
void ek_thread_yield(void) { sched_yield(); }

void ek_on_fork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void)) {
  pthread_atfork(before, in_parent, in_child);
}

typedef struct start {
  void (*run)(void *context);
  void *context;
  int cpu;
} start;

/* If the system refuses the affinity, the thread stays unpinned. */
static void pin_thread(int cpu) {
#if defined(__linux__)
  cpu_set_t set;
  if (cpu < 0 || cpu >= CPU_SETSIZE) return;
  CPU_ZERO(&set);
  CPU_SET((size_t)cpu, &set);
  sched_setaffinity(0, sizeof set, &set);
#else
  (void)cpu;
#endif
}

static void *thread_main(void *argument) {
  start begin = *(start *)argument;
  free(argument);
  pin_thread(begin.cpu);
  begin.run(begin.context);
  return NULL;
}

int ek_thread_start(ek_thread *thread, void (*run)(void *context), void *context, int cpu) {
  start *begin = malloc(sizeof *begin);
  if (begin == NULL) return -1;
  *begin = (start){run, context, cpu};
  int code = pthread_create(thread, NULL, thread_main, begin);
  if (code == 0) return 0;
  free(begin);
  errno = code;
  return -1;
}

/* Functions to call at the end of a thread: a list, stored under a POSIX thread key. */
typedef struct at_exit {
  void (*run)(void);
  struct at_exit *next;
} at_exit;

static pthread_key_t exit_key;
static pthread_once_t exit_once = PTHREAD_ONCE_INIT;

static void run_at_exit(void *first) {
  for (at_exit *item = first; item != NULL;) {
    at_exit *next = item->next;
    item->run();
    free(item);
    item = next;
  }
}

static void make_exit_key(void) { pthread_key_create(&exit_key, run_at_exit); }

void ek_thread_on_exit(void (*run)(void)) {
  pthread_once(&exit_once, make_exit_key);
  at_exit *item = malloc(sizeof *item);
  if (item == NULL) return;
  *item = (at_exit){run, pthread_getspecific(exit_key)};
  pthread_setspecific(exit_key, item);
}

/* Waiting -------------------------------------------------------------------------------------- */

/* FUTEX_WAIT compares and sleeps in one step, so that a wake between the caller's look and its
** sleep is not lost. It may also return without a wake (a signal): callers look again. Without
** futexes a short sleep is the same to them, as nobody relies on having been woken. */
void ek_wait(uint32_t *word, uint32_t expected) {
#if defined(__linux__)
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
#else
  if (__atomic_load_n(word, __ATOMIC_ACQUIRE) == expected) usleep(50);
#endif
}

/* The coarse clock, which the kernel updates at its ticks, takes no time-stamp read. */
#if defined(CLOCK_MONOTONIC_COARSE)
#define TICKS CLOCK_MONOTONIC_COARSE
#else
#define TICKS CLOCK_MONOTONIC
#endif

int64_t ek_now(bool is_coarse) {
  struct timespec time;
  clock_gettime(is_coarse ? TICKS : CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

void ek_wake(uint32_t *word) {
#if defined(__linux__)
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
#else
  (void)word;
#endif
}

/* Memory --------------------------------------------------------------------------------------- */

static size_t round_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

/* Page size in bytes: a multiple of 4096, 16 or 64 KiB on some AArch64, which tests simulate. */
static size_t system_page(void) {
#ifdef EK_HARD_TEST
  return 16 * EK_CODE_PAGE;
#else
  long size = sysconf(_SC_PAGESIZE);
  return size < (long)EK_CODE_PAGE ? EK_CODE_PAGE : (size_t)size;
#endif
}

/* No page is ever writable and executable: all is written, then the code becomes executable and the
** table of imports, which begins on a page of its own, read-only. What overruns a buffer can change
** neither code nor the addresses that it calls. Where pages of the system are larger than those that
** code counts in, it begins so far into the first that the table begins one. The caches are told
** before: AArch64's instruction cache does not see stores. */
int ek_code_place(ek_code *code, const void *text, size_t size, const uintptr_t *table,
                  uint32_t imports) {
  size_t page = system_page(), taken = round_up(size, EK_CODE_PAGE);
  size_t behind = round_up(taken, page), addresses = imports * sizeof *table;
  size_t mapped = behind + round_up(addresses, page);
  *code = (ek_code){NULL, 0, 0};
  if (mapped == 0) return 0;
  unsigned char *pages =
      mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return -1;
  *code = (ek_code){pages, mapped, behind - taken};
  memcpy(pages + code->before, text, size);
  if (imports != 0) memcpy(pages + behind, table, addresses);
  __builtin___clear_cache((char *)pages, (char *)pages + mapped);
  if ((behind == 0 || mprotect(pages, behind, PROT_READ | PROT_EXEC) == 0) &&
      (behind == mapped || mprotect(pages + behind, mapped - behind, PROT_READ) == 0)) {
    return 0;
  }
  ek_code_drop(code);
  errno = EPERM;
  return -1;
}

void *ek_code_at(const ek_code *code, uint64_t offset) { return code->pages + code->before + offset; }

const void *ek_code_text(const ek_code *code) { return code->pages + code->before; }

void ek_code_drop(ek_code *code) {
  if (code->pages != NULL) munmap(code->pages, code->mapped);
  *code = (ek_code){NULL, 0, 0};
}

void ek_code_name(const char *line) {
  char path[64];
  snprintf(path, sizeof path, "/tmp/perf-%ld.map", (long)getpid());
  FILE *file = fopen(path, "ae");
  if (file == NULL) return;
  fputs(line, file);
  fclose(file);
}

void ek_warn(const char *line) { fprintf(stderr, "%s\n", line); }

void *ek_system_alloc(size_t size, size_t alignment) {
  void *memory = NULL;
  bool huge = size >= 2 * HUGE_PAGE;
  if (huge) alignment = HUGE_PAGE;
  if (posix_memalign(&memory, alignment, size) != 0) return NULL;
#if defined(__linux__)
  if (huge) madvise(memory, size - size % HUGE_PAGE, MADV_HUGEPAGE); /* a wish: failure is fine */
#endif
  return memory;
}

void ek_system_free(void *memory) { free(memory); }

/* Files and libraries -------------------------------------------------------------------------- */

bool ek_file_exists(const char *path) { return access(path, F_OK) == 0; }

const void *ek_file_map(const char *path, size_t *size) {
  static const char empty[1] = {0};
  struct stat info;
  const void *data = NULL;
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return NULL;
  if (fstat(file, &info) != 0) goto done;
  if (!S_ISREG(info.st_mode)) {
    errno = S_ISDIR(info.st_mode) ? EISDIR : EINVAL;
    goto done;
  }
  *size = (size_t)info.st_size;
  data = empty;
  if (*size == 0) goto done;
  data = mmap(NULL, *size, PROT_READ, MAP_PRIVATE, file, 0);
  if (data == MAP_FAILED) data = NULL;
done:;
  int code = errno;
  close(file);
  errno = code;
  return data;
}

static int write_all(int file, const void *data, size_t size) {
  const char *at = data;
  for (size_t left = size; left > 0;) {
    ssize_t done = write(file, at, left);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) break;
    at += done;
    left -= (size_t)done;
  }
  int failed = at != (const char *)data + size ? errno : 0;
  if (close(file) != 0 && failed == 0) failed = errno;
  errno = failed;
  return failed == 0 ? 0 : -1;
}

/* Creates a file beside 'path' that nobody else writes, whatever others are left there: its name goes to
** 'draft'. A descriptor, or -1. */
static int new_draft(const char *path, mode_t mode, char *draft, size_t capacity) {
  static uint32_t drafts;      /* atomic */
  for (int tries = 0; tries < 1000; tries++) {
    unsigned number = __atomic_fetch_add(&drafts, 1, __ATOMIC_RELAXED);
    int length = snprintf(draft, capacity, "%s.%ld-%u.part", path, (long)getpid(), number);
    if (length < 0 || (size_t)length >= capacity) {
      errno = ENAMETOOLONG;
      return -1;
    }
    int file = open(draft, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (file >= 0 || errno != EEXIST) return file;
  }
  return -1;
}

/* A draft that is renamed to 'path'.
**
** Whoever opens or has mapped 'path' sees all of the old file or all of the new one, whatever fails
** on the way; of several who write it at once, the last. That is said of processes, not of power: the
** draft is not forced to the disk (fsync), as an artifact can be made again. */
static int replace_file(const char *path, mode_t mode, const void *data, size_t size) {
  char draft[4096];
  int file = new_draft(path, mode, draft, sizeof draft);
  if (file < 0) return -1;
  if (write_all(file, data, size) == 0 && rename(draft, path) == 0) return 0;
  int failed = errno;
  unlink(draft);
  errno = failed;
  return -1;
}

/* A link is followed to what is replaced, and stays a link; a pipe or device is written to, as it
** cannot be replaced. The mode is the old file's. */
int ek_file_write(const char *path, const void *data, size_t size) {
  struct stat info;
  if (stat(path, &info) != 0) return replace_file(path, 0666, data, size);
  if (!S_ISREG(info.st_mode)) {
    int file = open(path, O_WRONLY | O_CLOEXEC);
    return file < 0 ? -1 : write_all(file, data, size);
  }
  char *real = realpath(path, NULL);
  if (real == NULL) return -1;
  int code = replace_file(real, info.st_mode & 0777, data, size), failed = errno;
  free(real);
  errno = failed;
  return code;
}

void ek_file_unmap(const void *data, size_t size) {
  if (size != 0) munmap((void *)(uintptr_t)data, size);
}

/* Another path to the file that is at 'path' now: "/./" and "//" in front of its name say in binary
** which file that is. -1 for a name without a folder, or no room. */
static int path_of_file(const char *path, char *out, size_t capacity) {
  struct stat file;
  const char *slash = strrchr(path, '/');
  if (slash == NULL || stat(path, &file) != 0) return -1;
  size_t used = (size_t)(slash - path) + 1, name = strlen(slash);
  uint64_t number = (uint64_t)file.st_ino; /* of a file that is loaded, no other's on its disk */
  if (used + 3 * 64 + name > capacity) return -1;
  memcpy(out, path, used);
  for (; number != 0; number >>= 1) {
    if (number & 1) out[used++] = '.';
    out[used++] = '/';
  }
  memcpy(out + used, slash + 1, name);
  return 0;
}

/* The system gives a library that it has under the same path, without a look at the file: at the path
** of one that was loaded there may be another by now. Under another path it looks, and gives the one
** that it has if the file is the same. */
void *ek_dl_open(const char *path, const char **reason) {
  char other[4096];
  void *known = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  bool is_again = known != NULL && path_of_file(path, other, sizeof other) == 0;
  void *library = dlopen(is_again ? other : path, RTLD_NOW | RTLD_LOCAL);
  if (known != NULL) dlclose(known);
  if (library == NULL) *reason = dlerror();
  return library;
}

void *ek_dl_symbol(void *library, const char *name) { return dlsym(library, name); }
void ek_dl_close(void *library) { dlclose(library); }

void ek_dl_folder(char *out, size_t capacity) {
  static const char here = 0; /* an address in this library */
  Dl_info found;
  const char *path = dladdr(&here, &found) != 0 ? found.dli_fname : NULL;
  const char *slash = path == NULL ? NULL : strrchr(path, '/');
  size_t size = slash == NULL ? 0 : (size_t)(slash - path);
  if (size >= capacity) size = 0;
  if (size != 0) memcpy(out, path, size);
  out[size] = '\0';
}

int ek_dl_pin(void *library) {
  struct link_map *map;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) return -1;
  return dlopen(map->l_name, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE) == NULL ? -1 : 0;
}

void *ek_dl_find(const char *library, const char *name) {
  void *found = dlsym(RTLD_DEFAULT, name);
  void *handle = found != NULL ? NULL : dlopen(library, RTLD_NOW | RTLD_NOLOAD);
  if (handle == NULL) return found;
  found = dlsym(handle, name);
  dlclose(handle);
  return found;
}
