/* SIGBUS handler for mapped files that another process truncates. */
#include "ek_guard.h"

#ifdef EK_GUARDS

#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ek_platform.h"

enum { MAX_RANGES = 4096 };

typedef struct range {
  uintptr_t begin;
  size_t size;                 /* atomic; 0: the slot is free */
  int is_cut;                  /* atomic */
} range;

/* The handler reads the table without a lock: a slot's other fields are written before its size. */
static range ranges[MAX_RANGES];
static int num_ranges;          /* under the lock: slots in use */
static int num_slots;           /* atomic: the end of the last slot that was used */
static size_t page_size;       /* set before the handler is installed */
static struct sigaction previous_handler;
static ek_mutex lock = EK_MUTEX_INIT;
static int is_enabled;          /* atomic */

static size_t size_of(const range *at) { return __atomic_load_n(&at->size, __ATOMIC_ACQUIRE); }

int ek_guard_at(const void *address) {
  int end = __atomic_load_n(&num_slots, __ATOMIC_ACQUIRE);
  for (int i = 0; i < end; i++) {
    size_t size = size_of(&ranges[i]);
    if (size != 0 && (uintptr_t)address - ranges[i].begin < size) return i;
  }
  return -1;
}

/* Async-signal-safe: it only makes system calls, and loads words that are written atomically. */
static void map_zeros_past_end(int number, siginfo_t *info, void *context) {
  int slot = info->si_code > 0 ? ek_guard_at(info->si_addr) : -1;
  if (slot >= 0) {
    range *at = &ranges[slot];
    uintptr_t page = (uintptr_t)info->si_addr / page_size * page_size;
    size_t left = at->begin + size_of(at) - page;
    int flags = MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS;
    if (mmap((void *)page, left, PROT_READ, flags, -1, 0) != MAP_FAILED) {
      __atomic_store_n(&at->is_cut, 1, __ATOMIC_RELAXED);
      return;
    }
  }
  if (previous_handler.sa_flags & SA_SIGINFO) {
    previous_handler.sa_sigaction(number, info, context);
  } else if (previous_handler.sa_handler != SIG_DFL && previous_handler.sa_handler != SIG_IGN) {
    previous_handler.sa_handler(number);
  } else {
    /* The read is repeated, and faults under the previous handler. */
    sigaction(SIGBUS, &previous_handler, NULL);
  }
}

/* Install the handler. Under the lock. */
static void set_handler(void) {
  struct sigaction now, mine = {.sa_sigaction = map_zeros_past_end,
                                .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
  page_size = (size_t)sysconf(_SC_PAGESIZE);
  sigaction(SIGBUS, NULL, &now);
  if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == map_zeros_past_end) return;
  previous_handler = now;
  sigaction(SIGBUS, &mine, NULL);
}

/* Restore the previous handler, unless another one was installed since. Under the lock. */
static void drop_handler(void) {
  struct sigaction now;
  sigaction(SIGBUS, NULL, &now);
  if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == map_zeros_past_end) {
    sigaction(SIGBUS, &previous_handler, NULL);
  }
}

int ek_guard_watch(const void *data, size_t size) {
  int slot = 0;
  ek_mutex_lock(&lock);
  while (slot < MAX_RANGES && ranges[slot].size != 0) slot++;
  if (slot == MAX_RANGES) {
    slot = -1;
  } else {
    if (num_ranges++ == 0) set_handler();
    ranges[slot].begin = (uintptr_t)data;
    ranges[slot].is_cut = 0;
    __atomic_store_n(&ranges[slot].size, size, __ATOMIC_RELEASE);
    if (slot >= num_slots) __atomic_store_n(&num_slots, slot + 1, __ATOMIC_RELEASE);
  }
  ek_mutex_unlock(&lock);
  return slot;
}

void ek_guard_leave(int slot) {
  if (slot < 0) return;
  ek_mutex_lock(&lock);
  __atomic_store_n(&ranges[slot].size, 0, __ATOMIC_RELEASE);
  if (--num_ranges == 0) drop_handler();
  ek_mutex_unlock(&lock);
}

void ek_guard_files(bool wanted) { __atomic_store_n(&is_enabled, wanted, __ATOMIC_RELAXED); }

int ek_guard_file(const void *data, size_t size) {
  return __atomic_load_n(&is_enabled, __ATOMIC_RELAXED) ? ek_guard_watch(data, size) : -1;
}

bool ek_guard_has_seen(int slot) {
  return __atomic_load_n(&ranges[slot].is_cut, __ATOMIC_RELAXED) != 0;
}

bool ek_guard_is_whole(int slot) {
  const range *at = &ranges[slot];
  (void)*(const volatile char *)(at->begin + at->size - 1);
  return !ek_guard_has_seen(slot);
}

void ek_guard_drop(const void *begin, size_t size) {
  int slot = ek_guard_at(begin);
  if (slot < 0) return;
  const range *at = &ranges[slot];
  uintptr_t from = (uintptr_t)begin;
  if (size > at->begin + at->size - from) return;
  uintptr_t first = from + (page_size - from % page_size) % page_size;
  uintptr_t end = (from + size) / page_size * page_size;
  if (end > first) madvise((void *)first, end - first, MADV_DONTNEED);
}

const void *ek_guard_map(int file, size_t size) {
  const void *data = mmap(NULL, size, PROT_READ, MAP_PRIVATE, file, 0);
  return data == MAP_FAILED ? NULL : data;
}

#else
typedef int ek_guard_is_empty;
#endif
