/* Everything that differs between operating systems: threads, waiting, pages, files, libraries.
**
** The functions are as small as the systems allow. None sets an ek_error: those that can fail
** return -1 or NULL and leave errno, for the caller knows what was being done.
*/
#ifndef EK_PLATFORM_H_
#define EK_PLATFORM_H_

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(_WIN32)
typedef struct ek_mutex {
  void *lock;                  /* a slim lock */
  uint32_t owner, depth;       /* of a recursive one: atomic, the thread that has it or 0 */
  bool is_recursive;
} ek_mutex;
typedef void *ek_once, *ek_thread;
#define EK_MUTEX_INIT {NULL, 0, 0, false}
#define EK_ONCE_INIT NULL
#define EK_LIBRARY_SUFFIX "dll"
#define EK_FOLDER_SEPARATORS "/\\:"
#else
#include <pthread.h>
typedef pthread_mutex_t ek_mutex;
typedef pthread_once_t ek_once;
typedef pthread_t ek_thread;
#define EK_MUTEX_INIT PTHREAD_MUTEX_INITIALIZER
#define EK_ONCE_INIT PTHREAD_ONCE_INIT
#define EK_LIBRARY_SUFFIX "so"
#define EK_FOLDER_SEPARATORS "/"
#endif

/* Locks. An ek_mutex may be initialised with EK_MUTEX_INIT and needs no destroying. */
void ek_mutex_lock(ek_mutex *mutex);
void ek_mutex_unlock(ek_mutex *mutex);

/* Makes one that its holder may lock again. */
void ek_mutex_make_recursive(ek_mutex *mutex);

/* Runs 'once' exactly one time in the process, before any caller returns. */
void ek_call_once(ek_once *flag, void (*once)(void));

/* Threads. 'cpu' is one to stay on, or -1 for any. */
int ek_thread_start(ek_thread *thread, void (*run)(void *context), void *context, int cpu);
void ek_thread_join(ek_thread thread);
void ek_thread_yield(void);

/* Calls 'run' when the calling thread ends, the last one given first. */
void ek_thread_on_exit(void (*run)(void));

/* Register fork handlers (pthread_atfork): 'before' runs in the forking thread before every fork,
** 'in_parent' there after it, and 'in_child' in the child, where only the forking thread exists.
** Each may be NULL. */
void ek_on_fork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void));

/* Tells the core that this is a spin loop. */
static inline void ek_pause(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
#endif
}

/* Sleeps while *word == expected; may wake for no reason. ek_wake wakes all sleepers on 'word'. */
void ek_wait(uint32_t *word, uint32_t expected);
void ek_wake(uint32_t *word);

/* Nanoseconds of a clock that only goes forward; with 'is_coarse' of one that the system updates at
** ticks of its own, 1 to 16 ms apart, whose reading takes a fifth of the time. */
int64_t ek_now(bool is_coarse);

/* Fill 'cpus' with one logical processor per physical core that the process may use, at most 'max',
** that of the calling thread first. Returns their number, at least 1. */
int ek_physical_cpus(int *cpus, int max);

/* Returns how many cores the control groups of the process allow in the long run (a container's
** --cpus), rounded up; 0 without a limit. 'groups' is /proc/self/cgroup, 'mount' where the groups
** are mounted, which tests make their own. */
int ek_cpu_quota(const char *groups, const char *mount);

/* Code that an image brings: position-independent, with a table of addresses that it reads through,
** which lies on the next page of 4096 bytes behind it, whatever pages the system has. Code that was placed stays where it is until it is dropped.
** ek_code_place returns 0, or -1 with errno: ENOMEM, or EPERM where memory cannot be made executable.
** ek_code_at gives the address of what begins at an offset of the code. */
typedef struct ek_code {
  unsigned char *pages;        /* NULL for no code */
  size_t mapped, before;       /* bytes; those in front of the code */
} ek_code;
int ek_code_place(ek_code *code, const void *text, size_t size, const uintptr_t *table,
                  uint32_t imports);
void *ek_code_at(const ek_code *code, uint64_t offset);
void ek_code_drop(ek_code *code);

/* The text as it was given; NULL where it is not kept. */
const void *ek_code_text(const ek_code *code);

/* Adds a line to what profilers read names of code from, where they do. */
void ek_code_name(const char *line);

/* Writes a line on standard error. */
void ek_warn(const char *line);

/* Memory from the system for buffers: 'alignment' is a power of two. Large ones ask for huge
** pages. */
void *ek_system_alloc(size_t size, size_t alignment);
void ek_system_free(void *memory);

#if defined(__wasm32__)
/* Brings this thread the code that others have placed since: threads share memory, but not tables. 0,
** or -1 where the engine cannot. */
int ek_code_follow(void);

/* Return the features of the WebAssembly engine: bit 0 for 128-bit SIMD, bit 1 for relaxed SIMD. */
uint32_t ek_host_features(void);
#else
static inline int ek_code_follow(void) { return 0; }
#endif

/* The name of a file, behind the last folder of its path. */
static inline const char *ek_path_name(const char *path) {
  for (size_t size; path[size = strcspn(path, EK_FOLDER_SEPARATORS)] != '\0';) path += size + 1;
  return path;
}

bool ek_file_exists(const char *path);

/* A file, read-only in memory. An empty file maps as '*size' 0 and a pointer that is not NULL. */
const void *ek_file_map(const char *path, size_t *size);
void ek_file_unmap(const void *data, size_t size);

/* Writes a file that appears whole or not at all: a draft beside it takes its place. A link stays,
** and leads to the file that is replaced; what is no regular file, such as a device or a pipe, is
** written to. 0, or -1 with errno set, and the path is as it was. */
int ek_file_write(const char *path, const void *data, size_t size);

/* Shared libraries. On failure '*reason' is a text of the system's, valid until the next call. */
void *ek_dl_open(const char *path, const char **reason);
void *ek_dl_symbol(void *library, const char *name);
void ek_dl_close(void *library);

/* The address of a name in the process, or in a library that is loaded already; NULL if neither. */
void *ek_dl_find(const char *library, const char *name);

/* The folder of the library, or program, that this code is in; "" where the system cannot say. */
void ek_dl_folder(char *out, size_t capacity);

/* Keeps an open library loaded until the process ends. */
int ek_dl_pin(void *library);

#endif /* EK_PLATFORM_H_ */
