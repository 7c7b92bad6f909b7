/* SIGBUS handler for mapped files that another process truncates. */
#include "ek_guard.h"

#ifdef EK_GUARDS

#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ek_platform.h"

enum { PLACES = 4096 };

typedef struct range {
  uintptr_t begin;
  size_t size;                 /* atomic; 0: the place is free */
  int is_cut;                  /* atomic */
} range;

/* The handler reads all of it without a lock: a range is whole before its size is there. */
static range ranges[PLACES];
static int count, last_place;  /* under the lock: how many are used, and behind the last of them */
static size_t page_size;       /* set before the handler is */
static struct sigaction before;
static ek_mutex lock = EK_MUTEX_INIT;
static int is_wanted;          /* atomic */

static size_t size_of(const range *at) { return __atomic_load_n(&at->size, __ATOMIC_ACQUIRE); }

int ek_guard_at(const void *address) {
  int end = __atomic_load_n(&last_place, __ATOMIC_ACQUIRE);
  for (int i = 0; i < end; i++) {
    size_t size = size_of(&ranges[i]);
    if (size != 0 && (uintptr_t)address - ranges[i].begin < size) return i;
  }
  return -1;
}

/* Async-signal-safe: it calls the kernel alone, and loads are of words that are written whole. */
static void map_zeros_past_end(int number, siginfo_t *info, void *context) {
  int place = info->si_code > 0 ? ek_guard_at(info->si_addr) : -1;
  if (place >= 0) {
    range *at = &ranges[place];
    uintptr_t page = (uintptr_t)info->si_addr / page_size * page_size;
    size_t left = at->begin + size_of(at) - page;
    int how = MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS;
    if (mmap((void *)page, left, PROT_READ, how, -1, 0) != MAP_FAILED) {
      __atomic_store_n(&at->is_cut, 1, __ATOMIC_RELAXED);
      return;
    }
  }
  if (before.sa_flags & SA_SIGINFO) {
    before.sa_sigaction(number, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(number);
  } else {
    sigaction(SIGBUS, &before, NULL); /* what was read is read again, and it counts */
  }
}

/* Under the lock. */
static void set_handler(void) {
  struct sigaction now, mine = {.sa_sigaction = map_zeros_past_end,
                                .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
  page_size = (size_t)sysconf(_SC_PAGESIZE);
  sigaction(SIGBUS, NULL, &now);
  if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == map_zeros_past_end) return;
  before = now;
  sigaction(SIGBUS, &mine, NULL);
}

/* Gives the signal back, unless another handler stands over it. Under the lock. */
static void drop_handler(void) {
  struct sigaction now;
  sigaction(SIGBUS, NULL, &now);
  if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == map_zeros_past_end) {
    sigaction(SIGBUS, &before, NULL);
  }
}

int ek_guard_watch(const void *data, size_t size) {
  int place = 0;
  ek_mutex_lock(&lock);
  while (place < PLACES && ranges[place].size != 0) place++;
  if (place == PLACES) {
    place = -1;
  } else {
    if (count++ == 0) set_handler();
    ranges[place].begin = (uintptr_t)data;
    ranges[place].is_cut = 0;
    __atomic_store_n(&ranges[place].size, size, __ATOMIC_RELEASE);
    if (place >= last_place) __atomic_store_n(&last_place, place + 1, __ATOMIC_RELEASE);
  }
  ek_mutex_unlock(&lock);
  return place;
}

void ek_guard_leave(int place) {
  if (place < 0) return;
  ek_mutex_lock(&lock);
  __atomic_store_n(&ranges[place].size, 0, __ATOMIC_RELEASE);
  if (--count == 0) drop_handler();
  ek_mutex_unlock(&lock);
}

void ek_guard_files(bool wanted) { __atomic_store_n(&is_wanted, wanted, __ATOMIC_RELAXED); }

int ek_guard_file(const void *data, size_t size) {
  return __atomic_load_n(&is_wanted, __ATOMIC_RELAXED) ? ek_guard_watch(data, size) : -1;
}

bool ek_guard_has_seen(int place) {
  return __atomic_load_n(&ranges[place].is_cut, __ATOMIC_RELAXED) != 0;
}

bool ek_guard_is_whole(int place) {
  const range *at = &ranges[place];
  (void)*(const volatile char *)(at->begin + at->size - 1);
  return !ek_guard_has_seen(place);
}

void ek_guard_drop(const void *begin, size_t size) {
  int place = ek_guard_at(begin);
  if (place < 0) return;
  const range *at = &ranges[place];
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
