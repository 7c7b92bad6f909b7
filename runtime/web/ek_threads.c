/* Locks and threads of WebAssembly. There are none but where the memory is shared; then the host has
** workers that it makes ahead, each an instance of this module with a stack and a table of its own, and
** a thread is something that one of them is told to do. The host's first thread never sleeps, for a
** page's must not: it spins. */
#include "ek_web.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

void ek_thread_yield(void) {}
void ek_thread_on_exit(void (*run)(void)) { (void)run; }

void ek_on_fork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void)) {
  (void)before, (void)in_parent, (void)in_child;
}

#if !defined(__wasm_atomics__)

void ek_mutex_lock(ek_mutex *mutex) { (void)mutex; }
void ek_mutex_unlock(ek_mutex *mutex) { (void)mutex; }
void ek_mutex_make_recursive(ek_mutex *mutex) { (void)mutex; }

void ek_call_once(ek_once *flag, void (*once)(void)) {
  static const ek_once fresh = EK_ONCE_INIT;
  if (memcmp(flag, &fresh, sizeof fresh) != 0) return;
  memset(flag, 0xff, sizeof *flag);
  once();
}

int ek_thread_start(ek_thread *thread, void (*run)(void *context), void *context, int cpu) {
  (void)thread, (void)run, (void)context, (void)cpu;
  errno = ENOSYS;
  return -1;
}

void ek_thread_join(ek_thread thread) { (void)thread; }
void ek_wait(uint32_t *word, uint32_t expected) { (void)word, (void)expected; }
void ek_wake(uint32_t *word) { (void)word; }

int ek_physical_cpus(int *cpus, int max) {
  (void)max;
  cpus[0] = -1;
  return 1;
}

int ek_code_follow(void) { return 0; }

int ek_web_share(const void *text, size_t size, const uintptr_t *table, uint32_t imports, void *data,
                 int32_t first) {
  (void)text, (void)size, (void)table, (void)imports, (void)data, (void)first;
  return 0;
}

void ek_web_unshare(int32_t first) { (void)first; }

#else

#define HOST(name) __attribute__((import_module("ek"), import_name(#name)))
#define SHOWN __attribute__((visibility("default")))

/* Places code once more, for the thread that calls: at 'first', its data as they are. */
HOST(follow) int32_t host_follow(const void *text, size_t size, const uintptr_t *table, void *data,
                                 int32_t first);

static _Thread_local char own_place;       /* its address is the thread's number */
static _Thread_local bool is_worker;

/* Locks ---------------------------------------------------------------------------------------- */

typedef struct lock {
  uint32_t taken, is_recursive;
  uintptr_t owner;
  uint32_t depth;
} lock;

/* 'taken' is 1 while somebody has it. Unlocking wakes all who wait, and they race for it: locks
** here are held for a few instructions, and there are few threads. */
static_assert(sizeof(lock) <= sizeof(ek_mutex), "a lock fits what holds it");

void ek_mutex_lock(ek_mutex *mutex) {
  lock *l = (lock *)(void *)mutex;
  uintptr_t own = (uintptr_t)&own_place;
  if (l->is_recursive && __atomic_load_n(&l->owner, __ATOMIC_RELAXED) == own) {
    l->depth++;
    return;
  }
  while (__atomic_exchange_n(&l->taken, 1, __ATOMIC_ACQUIRE) != 0) ek_wait(&l->taken, 1);
  __atomic_store_n(&l->owner, own, __ATOMIC_RELAXED);
  l->depth = 1;
}

void ek_mutex_unlock(ek_mutex *mutex) {
  lock *l = (lock *)(void *)mutex;
  if (--l->depth != 0) return;
  __atomic_store_n(&l->owner, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&l->taken, 0, __ATOMIC_RELEASE);
  ek_wake(&l->taken);
}

void ek_mutex_make_recursive(ek_mutex *mutex) { ((lock *)(void *)mutex)->is_recursive = 1; }

void ek_call_once(ek_once *flag, void (*once)(void)) {
  enum { FRESH, RUNNING, DONE };
  uint32_t *state = (uint32_t *)(void *)flag, expected = FRESH;
  static_assert(sizeof *flag >= sizeof *state && PTHREAD_ONCE_INIT == FRESH, "a word");
  if (__atomic_load_n(state, __ATOMIC_ACQUIRE) == DONE) return;
  if (__atomic_compare_exchange_n(state, &expected, RUNNING, false, __ATOMIC_ACQUIRE,
                                  __ATOMIC_ACQUIRE)) {
    once();
    __atomic_store_n(state, DONE, __ATOMIC_RELEASE);
  }
  while (__atomic_load_n(state, __ATOMIC_ACQUIRE) != DONE) ek_pause();
}

void ek_wait(uint32_t *word, uint32_t expected) {
  /* The first thread returns at once, which "may wake for no reason" allows: callers look again,
  ** and so spin. */
  if (is_worker) __builtin_wasm_memory_atomic_wait32((int *)word, (int)expected, -1);
}

void ek_wake(uint32_t *word) { __builtin_wasm_memory_atomic_notify((int *)word, UINT32_MAX); }

/* Threads -------------------------------------------------------------------------------------- */

enum { MAX_WORKERS = 64, ABSENT = 0, READY, STARTED };

static struct worker {
  uint32_t state;
  void (*run)(void *context);
  void *context;
} workers[MAX_WORKERS];

static ek_mutex worker_lock = EK_MUTEX_INIT;

SHOWN void ek_web_worker(int32_t number);
SHOWN int32_t ek_web_workers(void);

/* The loop of a worker thread of the host. */
void ek_web_worker(int32_t number) {
  struct worker *self = &workers[number];
  is_worker = true;
  for (;;) {
    __atomic_store_n(&self->state, READY, __ATOMIC_SEQ_CST);
    ek_wake(&self->state);
    while (__atomic_load_n(&self->state, __ATOMIC_SEQ_CST) == READY) ek_wait(&self->state, READY);
    self->run(self->context);
  }
}

/* Returns the number of waiting threads. */
int32_t ek_web_workers(void) {
  int32_t found = 0;
  for (int i = 0; i < MAX_WORKERS; i++) {
    found += __atomic_load_n(&workers[i].state, __ATOMIC_SEQ_CST) != ABSENT;
  }
  return found;
}

int ek_thread_start(ek_thread *thread, void (*run)(void *context), void *context, int cpu) {
  (void)cpu;
  ek_mutex_lock(&worker_lock);
  int i = 0;
  while (i < MAX_WORKERS && __atomic_load_n(&workers[i].state, __ATOMIC_SEQ_CST) != READY) i++;
  if (i < MAX_WORKERS) {
    workers[i].run = run;
    workers[i].context = context;
    __atomic_store_n(&workers[i].state, STARTED, __ATOMIC_SEQ_CST);
    ek_wake(&workers[i].state);
    *thread = (ek_thread)(uintptr_t)(i + 1);
  }
  ek_mutex_unlock(&worker_lock);
  return i < MAX_WORKERS ? 0 : (errno = EAGAIN, -1);
}

void ek_thread_join(ek_thread thread) {
  struct worker *of = &workers[(uintptr_t)thread - 1];
  while (__atomic_load_n(&of->state, __ATOMIC_SEQ_CST) != READY) ek_pause();
}

int ek_physical_cpus(int *cpus, int max) {
  int found = 1 + (int)ek_web_workers();
  if (found > max) found = max;
  for (int i = 0; i < found; i++) cpus[i] = -1;
  return found;
}

/* Code ----------------------------------------------------------------------------------------- */

typedef struct shared_code {
  struct shared_code *next;
  uint32_t order;                          /* of those that were placed */
  int32_t first;
  size_t size;
  void *text, *data;
  uintptr_t table[];
} shared_code;

static ek_mutex code_lock = EK_MUTEX_INIT; /* guards the list */
static shared_code *newest;
static uint32_t placed;                    /* how many ever were */
static _Thread_local uint32_t followed;    /* how many of them this thread has, or has no use for */

int ek_web_share(const void *text, size_t size, const uintptr_t *table, uint32_t imports, void *data,
                 int32_t first) {
  shared_code *made = ek_system_alloc(sizeof *made + imports * sizeof *table, 16);
  void *copy = made == NULL ? NULL : ek_system_alloc(size, 16);
  if (copy == NULL) {
    ek_system_free(made);
    return -1;
  }
  memcpy(copy, text, size);
  memcpy(made->table, table, imports * sizeof *table);
  made->size = size, made->text = copy, made->data = data, made->first = first;
  ek_mutex_lock(&code_lock);
  made->next = newest;
  newest = made;
  made->order = placed;
  __atomic_store_n(&placed, placed + 1, __ATOMIC_RELEASE);
  ek_mutex_unlock(&code_lock);
  return 0;
}

/* Threads that have it keep it until the place is taken again. */
void ek_web_unshare(int32_t first) {
  ek_mutex_lock(&code_lock);
  shared_code **at = &newest;
  while (*at != NULL && (*at)->first != first) at = &(*at)->next;
  shared_code *found = *at;
  if (found != NULL) *at = found->next;
  ek_mutex_unlock(&code_lock);
  if (found == NULL) return;
  ek_system_free(found->text);
  ek_system_free(found);
}

int ek_code_follow(void) {
  /* Code is a module of WebAssembly here, whose functions have places in a table, and each thread's
  ** instance has a table of its own. What was placed since this thread last looked is placed in the
  ** same places; the list is newest first, and 'order' says where to stop. */
  uint32_t known = __atomic_load_n(&placed, __ATOMIC_ACQUIRE);
  if (!is_worker || followed == known) return 0;
  int code = 0;
  ek_mutex_lock(&code_lock);
  for (const shared_code *each = newest; each != NULL && each->order >= followed; each = each->next) {
    if (host_follow(each->text, each->size, each->table, each->data, each->first) != 0) code = -1;
  }
  if (code == 0) followed = placed;
  ek_mutex_unlock(&code_lock);
  return code;
}

#endif
