/* The platform layer for Windows 8 and later, on x86-64. Paths are UTF-8. */
#define WIN32_LEAN_AND_MEAN 1
#define _WIN32_WINNT 0x0602    /* WaitOnAddress */
#include "ek_platform.h"

#include <windows.h>

#include <errno.h>
#include <fcntl.h>
#include <io.h>
#include <process.h>
#include <psapi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>

enum { PATH_CHARS = 4096, CODE_PAGE_BYTES = 4096, MODULES = 1024 };

/* Locks ---------------------------------------------------------------------------------------- */

static_assert(sizeof(SRWLOCK) == sizeof(void *) && sizeof(INIT_ONCE) == sizeof(ek_once),
              "ek_platform.h declares them without the system's header");

static SRWLOCK *lock_of(ek_mutex *mutex) { return (SRWLOCK *)(void *)&mutex->lock; }

/* A slim lock has no owner. Only the owner itself can see its own number there. */
void ek_mutex_lock(ek_mutex *mutex) {
  if (!mutex->is_recursive) {
    AcquireSRWLockExclusive(lock_of(mutex));
    return;
  }
  uint32_t self = GetCurrentThreadId();
  if (__atomic_load_n(&mutex->owner, __ATOMIC_RELAXED) != self) {
    AcquireSRWLockExclusive(lock_of(mutex));
    __atomic_store_n(&mutex->owner, self, __ATOMIC_RELAXED);
  }
  mutex->depth++;
}

void ek_mutex_unlock(ek_mutex *mutex) {
  if (mutex->is_recursive) {
    if (--mutex->depth != 0) return;
    __atomic_store_n(&mutex->owner, 0, __ATOMIC_RELAXED);
  }
  ReleaseSRWLockExclusive(lock_of(mutex));
}

void ek_mutex_make_recursive(ek_mutex *mutex) { *mutex = (ek_mutex){.is_recursive = true}; }

static BOOL CALLBACK run_once(PINIT_ONCE flag, PVOID once, PVOID *context) {
  (void)flag;
  (void)context;
  (*(void (**)(void))once)();
  return TRUE;
}

void ek_call_once(ek_once *flag, void (*once)(void)) {
  InitOnceExecuteOnce((INIT_ONCE *)(void *)flag, run_once, &once, NULL);
}

/* Threads -------------------------------------------------------------------------------------- */

typedef struct start {
  void (*run)(void *context);
  void *context;
  int cpu;
} start;

static unsigned __stdcall thread_main(void *argument) {
  start begin = *(start *)argument;
  free(argument);
  /* If the system refuses the affinity, the thread stays unpinned. */
  if (begin.cpu >= 0 && begin.cpu < 64) {
    SetThreadAffinityMask(GetCurrentThread(), (DWORD_PTR)1 << begin.cpu);
  }
  begin.run(begin.context);
  return 0;
}

int ek_thread_start(ek_thread *thread, void (*run)(void *context), void *context, int cpu) {
  start *begin = malloc(sizeof *begin);
  if (begin == NULL) return -1;
  *begin = (start){run, context, cpu};
  uintptr_t handle = _beginthreadex(NULL, 0, thread_main, begin, 0, NULL);
  if (handle != 0) {
    *thread = (ek_thread)handle;
    return 0;
  }
  free(begin);
  return -1;
}

void ek_thread_join(ek_thread thread) {
  WaitForSingleObject(thread, INFINITE);
  CloseHandle(thread);
}

void ek_thread_yield(void) { SwitchToThread(); }

/* Functions to call at the end of a thread: a list in a slot of fiber-local storage, whose callback
** the system calls then. */
typedef struct at_exit {
  void (*run)(void);
  struct at_exit *next;
} at_exit;

static DWORD exit_slot = FLS_OUT_OF_INDEXES;
static ek_once exit_once = EK_ONCE_INIT;

static void CALLBACK run_at_exit(void *first) {
  for (at_exit *item = first; item != NULL;) {
    at_exit *next = item->next;
    item->run();
    free(item);
    item = next;
  }
}

static void make_exit_slot(void) { exit_slot = FlsAlloc(run_at_exit); }

void ek_thread_on_exit(void (*run)(void)) {
  ek_call_once(&exit_once, make_exit_slot);
  at_exit *item = exit_slot == FLS_OUT_OF_INDEXES ? NULL : malloc(sizeof *item);
  if (item == NULL) return;
  *item = (at_exit){run, FlsGetValue(exit_slot)};
  FlsSetValue(exit_slot, item);
}

/* There is no fork. */
void ek_on_fork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void)) {
  (void)before;
  (void)in_parent;
  (void)in_child;
}

/* Waiting -------------------------------------------------------------------------------------- */

void ek_wait(uint32_t *word, uint32_t expected) {
  WaitOnAddress(word, &expected, sizeof expected, INFINITE);
}

void ek_wake(uint32_t *word) { WakeByAddressAll(word); }

int64_t ek_now(bool is_coarse) {
  LARGE_INTEGER ticks, second;
  if (is_coarse) return (int64_t)GetTickCount64() * 1000000;
  QueryPerformanceFrequency(&second);
  QueryPerformanceCounter(&ticks);
  int64_t whole = ticks.QuadPart / second.QuadPart, part = ticks.QuadPart % second.QuadPart;
  return whole * 1000000000 + part * 1000000000 / second.QuadPart;
}

/* Processors ----------------------------------------------------------------------------------- */

int ek_cpu_quota(const char *groups, const char *mount) {
  (void)groups;
  (void)mount;
  return 0;
}

/* The first processor of each core that the process may use; of the processor group it is in. */
int ek_physical_cpus(int *cpus, int max) {
  DWORD_PTR allowed = 1, system;
  DWORD size = 0;
  int count = 0;
  GetProcessAffinityMask(GetCurrentProcess(), &allowed, &system);
  GetLogicalProcessorInformation(NULL, &size);
  SYSTEM_LOGICAL_PROCESSOR_INFORMATION *rows = malloc(size);
  if (rows != NULL && GetLogicalProcessorInformation(rows, &size)) {
    for (DWORD i = 0; i < size / sizeof *rows && count < max; i++) {
      DWORD_PTR usable = rows[i].ProcessorMask & allowed;
      if (rows[i].Relationship != RelationProcessorCore || usable == 0) continue;
      cpus[count++] = __builtin_ctzll(usable);
    }
  }
  free(rows);
  if (count == 0) cpus[count++] = -1;
  return count;
}

/* Memory --------------------------------------------------------------------------------------- */

static size_t round_up(size_t size) {
  return (size + CODE_PAGE_BYTES - 1) / CODE_PAGE_BYTES * CODE_PAGE_BYTES;
}

/* No page is ever writable and executable. Pages are those that code counts in. */
int ek_code_place(ek_code *code, const void *text, size_t size, const uintptr_t *table,
                  uint32_t imports) {
  size_t behind = round_up(size), addresses = imports * sizeof *table;
  size_t mapped = behind + round_up(addresses);
  DWORD before;
  *code = (ek_code){NULL, 0, 0};
  if (mapped == 0) return 0;
  unsigned char *pages = VirtualAlloc(NULL, mapped, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
  if (pages == NULL) {
    errno = ENOMEM;
    return -1;
  }
  *code = (ek_code){pages, mapped, 0};
  memcpy(pages, text, size);
  if (imports != 0) memcpy(pages + behind, table, addresses);
  if ((behind == 0 || VirtualProtect(pages, behind, PAGE_EXECUTE_READ, &before)) &&
      (behind == mapped || VirtualProtect(pages + behind, mapped - behind, PAGE_READONLY, &before))) {
    FlushInstructionCache(GetCurrentProcess(), pages, behind);
    return 0;
  }
  ek_code_drop(code);
  errno = EPERM;
  return -1;
}

void *ek_code_at(const ek_code *code, uint64_t offset) { return code->pages + offset; }
const void *ek_code_text(const ek_code *code) { return code->pages; }

void ek_code_drop(ek_code *code) {
  if (code->pages != NULL) VirtualFree(code->pages, 0, MEM_RELEASE);
  *code = (ek_code){NULL, 0, 0};
}

/* No profiler here reads such lines. */
void ek_code_name(const char *line) { (void)line; }

void ek_warn(const char *line) { fprintf(stderr, "%s\n", line); }

void *ek_system_alloc(size_t size, size_t alignment) { return _aligned_malloc(size, alignment); }
void ek_system_free(void *memory) { _aligned_free(memory); }

/* Files ---------------------------------------------------------------------------------------- */

/* Backslashes alone: the loader of libraries looks for no others. 0, or -1 with errno. */
static int wide_of(const char *path, WCHAR *out) {
  int count = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, out, PATH_CHARS);
  if (count == 0) {
    errno = GetLastError() == ERROR_INSUFFICIENT_BUFFER ? ENAMETOOLONG : EINVAL;
    return -1;
  }
  for (; *out != 0; out++) {
    if (*out == L'/') *out = L'\\';
  }
  return 0;
}

bool ek_file_exists(const char *path) {
  WCHAR wide[PATH_CHARS];
  return wide_of(path, wide) == 0 && _waccess(wide, 0) == 0;
}

/* A file that is mapped cannot be cut: the system refuses that. */
const void *ek_file_map(const char *path, size_t *size) {
  static const char empty[1] = {0};
  WCHAR wide[PATH_CHARS];
  struct _stat64 info;
  const void *data = NULL;
  if (wide_of(path, wide) != 0 || _wstat64(wide, &info) != 0) return NULL;
  if ((info.st_mode & _S_IFMT) != _S_IFREG) {
    errno = (info.st_mode & _S_IFMT) == _S_IFDIR ? EISDIR : EINVAL;
    return NULL;
  }
  int file = _wopen(wide, _O_RDONLY | _O_BINARY | _O_NOINHERIT);
  if (file < 0) return NULL;
  *size = (size_t)_filelengthi64(file);
  if (*size == 0) {
    _close(file);
    return empty;
  }
  HANDLE mapping =
      CreateFileMappingW((HANDLE)_get_osfhandle(file), NULL, PAGE_READONLY, 0, 0, NULL);
  if (mapping != NULL) data = MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, 0);
  if (mapping != NULL) CloseHandle(mapping); /* the view holds it */
  _close(file);
  if (data == NULL) errno = ENOMEM;
  return data;
}

void ek_file_unmap(const void *data, size_t size) {
  if (size != 0) UnmapViewOfFile(data);
}

static int write_all(int file, const void *data, size_t size) {
  const char *at = data;
  int failed = 0;
  while (size > 0 && failed == 0) {
    int done = _write(file, at, size < 1u << 30 ? (unsigned)size : 1u << 30);
    if (done <= 0) failed = done == 0 ? ENOSPC : errno;
    else at += done, size -= (size_t)done;
  }
  if (_close(file) != 0 && failed == 0) failed = errno;
  errno = failed;
  return failed == 0 ? 0 : -1;
}

/* A draft beside the file takes its place. While somebody has mapped the old file the system refuses
** that, and the old file stays. */
int ek_file_write(const char *path, const void *data, size_t size) {
  static uint32_t drafts;      /* atomic */
  WCHAR wide[PATH_CHARS], draft[PATH_CHARS];
  if (wide_of(path, wide) != 0) return -1;
  unsigned number = __atomic_fetch_add(&drafts, 1, __ATOMIC_RELAXED);
  int length = _snwprintf(draft, PATH_CHARS, L"%ls.%lu-%u.part", wide,
                          (unsigned long)GetCurrentProcessId(), number);
  if (length < 0 || length >= PATH_CHARS) {
    errno = ENAMETOOLONG;
    return -1;
  }
  int file = _wopen(draft, _O_WRONLY | _O_CREAT | _O_EXCL | _O_BINARY | _O_NOINHERIT,
                    _S_IREAD | _S_IWRITE);
  if (file < 0) return -1;
  if (write_all(file, data, size) == 0) {
    if (MoveFileExW(draft, wide, MOVEFILE_REPLACE_EXISTING)) return 0;
    errno = EACCES;
  }
  int failed = errno;
  _wunlink(draft);
  errno = failed;
  return -1;
}

/* Libraries ------------------------------------------------------------------------------------ */

static _Thread_local char dl_reason[256];

static const char *describe(DWORD code) {
  DWORD size = FormatMessageA(FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS, NULL, code, 0,
                              dl_reason, sizeof dl_reason, NULL);
  while (size > 0 && (unsigned char)dl_reason[size - 1] <= ' ') size--;
  dl_reason[size] = '\0';
  if (size == 0) snprintf(dl_reason, sizeof dl_reason, "error %lu of the system", code);
  return dl_reason;
}

/* Libraries that this one needs are looked for beside it. */
void *ek_dl_open(const char *path, const char **reason) {
  WCHAR wide[PATH_CHARS], full[PATH_CHARS];
  bool is_bare = ek_path_name(path) == path;
  HMODULE library = NULL;
  if (wide_of(path, wide) != 0) {
    *reason = "the path is too long or not UTF-8";
    return NULL;
  }
  if (is_bare) library = LoadLibraryW(wide);
  else if (GetFullPathNameW(wide, PATH_CHARS, full, NULL) < PATH_CHARS) {
    library = LoadLibraryExW(full, NULL, LOAD_WITH_ALTERED_SEARCH_PATH);
  }
  if (library == NULL) *reason = describe(GetLastError());
  return library;
}

static void *address_in(HMODULE library, const char *name) {
  FARPROC code = GetProcAddress(library, name);
  void *address;
  memcpy(&address, &code, sizeof address);
  return address;
}

void *ek_dl_symbol(void *library, const char *name) { return address_in(library, name); }
void ek_dl_close(void *library) { FreeLibrary(library); }

/* The module that an address of this code is in. */
static HMODULE module_here(DWORD flags, const void *address) {
  HMODULE module = NULL;
  flags |= GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS;
  return GetModuleHandleExW(flags, address, &module) ? module : NULL;
}

void ek_dl_folder(char *out, size_t capacity) {
  static const char here = 0;
  WCHAR wide[PATH_CHARS];
  char path[PATH_CHARS];
  HMODULE module = module_here(GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT, &here);
  DWORD length = module == NULL ? 0 : GetModuleFileNameW(module, wide, PATH_CHARS);
  out[0] = '\0';
  if (length == 0 || length == PATH_CHARS) return;
  if (WideCharToMultiByte(CP_UTF8, 0, wide, -1, path, sizeof path, NULL, NULL) == 0) return;
  size_t size = (size_t)(ek_path_name(path) - path);
  if (size == 0 || size > capacity) return;
  memcpy(out, path, size - 1); /* without the separator */
  out[size - 1] = '\0';
}

int ek_dl_pin(void *library) {
  return module_here(GET_MODULE_HANDLE_EX_FLAG_PIN, library) == NULL ? -1 : 0;
}

void *ek_dl_find(const char *library, const char *name) {
  HMODULE modules[MODULES];
  DWORD size = 0;
  (void)library;               /* one that is loaded is among the modules */
  if (!K32EnumProcessModules(GetCurrentProcess(), modules, sizeof modules, &size)) return NULL;
  size_t count = size / sizeof modules[0] < MODULES ? size / sizeof modules[0] : MODULES;
  for (size_t i = 0; i < count; i++) {
    void *address = address_in(modules[i], name);
    if (address != NULL) return address;
  }
  return NULL;
}
