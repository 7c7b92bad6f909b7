/* The pooled allocator.
**
** Memory comes from the system in single blocks, and goes on a list of its size class when it is
** freed. A warm program therefore finds all it needs on lists. Small blocks go on a list of the
** thread that frees them, which needs no lock; a list that grows too long moves to the shared
** lists, and so do all lists of a thread that ends. Buffers go on shared lists.
**
** The memory held may have a limit. A request beyond it first gives back what is kept for reuse,
** here and in the arenas of idle virtual machines, then fails.
**
** Under EK_HARD_TEST nothing is kept: every block is the system's own, so that sanitizers see each
** use after free, fresh and freed memory is filled, a chosen allocation fails, and a process that
** ends with blocks in use ends with an error.
**
** Why a pool of our own: a warm run has to ask nobody for memory, however its sizes come and go,
** while C's allocator gives large blocks back to the system, which hands them out again page by
** page, zeroed. What it costs: a buffer may be an eighth larger than asked for, or a half where a
** kept one is taken (LOOK_AHEAD).
**
** LOCK ORDER: the arenas' list (ek_arena.c), then 'shared_lock', under which nothing is called that
** takes another. */
#include "ek_internal.h"

#include <stdio.h>

enum {
  SMALL_STEP = 64,
  SMALL_CLASSES = 32,          /* blocks of up to 2048 bytes with their header */
  SMALL_CACHE = 128,           /* most blocks of one class a thread keeps */
  BUFFER_ALIGNMENT = 64,
  PAGE = 4096,
  STEPS = 8,                   /* buffer classes per power of two: at most 1/8 is unused */
  FIRST_LOG = 6,               /* the smallest buffer has 64 bytes */
  BUFFER_CLASSES = (63 - FIRST_LOG) * STEPS,
  LOOK_AHEAD = 4,              /* a buffer may be this many classes too large */
  ERROR_ROOM = 1 << 16         /* small blocks may pass the limit so far: errors are made of them */
};

/* Stands before every block; 16 bytes, so that blocks are aligned to 16. A block on a list has
** its link here. With pointers of 8 bytes that covers class and magic, and an address never
** looks like MAGIC in its upper half: a block that is freed twice is seen by the assertion. */
typedef struct header {
  uint32_t class_index;        /* SMALL_CLASSES for blocks that lie in a buffer */
  uint32_t magic;
  uint64_t actual;             /* of that buffer */
} header;

static_assert(sizeof(header) == 16, "atomic fields of 8 bytes stand where they must");

enum { MAGIC = 0x656b6b65 };    /* overwritten by the link of a kept block */

typedef struct link {
  struct link *next;
} link;

typedef struct list {
  link *first;
  uint32_t count;
} list;

/* Counts are relaxed atomics: each is right by itself, and two read one after the other need not be
** of one moment. 'bytes_held' includes what lies on lists. */
static uint64_t system_allocations, bytes_held;
static uint64_t bytes_in_use, bytes_peak; /* of buffers */
static uint64_t bytes_limit;              /* 0 for none */
static ek_once limit_once = EK_ONCE_INIT;
static EK_THREAD_LOCAL bool is_refused;   /* the last request of this thread, by the limit */

/* 'first' is stored atomically because take_small looks at it without the lock: what it sees may be
** old, which costs a block from the system, or a lock that finds nothing. */
static void push(list *to, link *item) {
  item->next = to->first;
  __atomic_store_n(&to->first, item, __ATOMIC_RELAXED);
  to->count++;
}

static link *pop(list *from) {
  link *item = from->first;
  if (item == NULL) return NULL;
  __atomic_store_n(&from->first, item->next, __ATOMIC_RELAXED);
  from->count--;
  return item;
}

#ifdef EK_HARD_TEST
static const bool keeps = false;
static int64_t fail_countdown, live_count;

void ek_hard_fail_at(int64_t n) { __atomic_store_n(&fail_countdown, n, __ATOMIC_RELAXED); }
int64_t ek_hard_live(void) { return __atomic_load_n(&live_count, __ATOMIC_RELAXED); }

static bool hard_fails(void) {
  return __atomic_load_n(&fail_countdown, __ATOMIC_RELAXED) > 0 &&
         __atomic_fetch_sub(&fail_countdown, 1, __ATOMIC_RELAXED) == 1;
}

/* Frees process-lifetime blocks first; after that no block may be left. */
static void check_at_exit(void) {
  ek_pool_config(0, NULL, 0);
  ek_registry_clear();
  ek_types_clear();
  ek_libraries_clear();
  ek_object_release(ek_error_take());
  ek_workspace_drop();
  if (ek_hard_live() == 0) return;
  fprintf(stderr, "ekiden: %lld blocks are in use at exit\n", (long long)ek_hard_live());
  fflush(stderr);
  _Exit(3);
}

static void register_check(void) { atexit(check_at_exit); }

static void *hard_fresh(void *memory, size_t size) {
  static ek_once once = EK_ONCE_INIT;
  ek_call_once(&once, register_check);
  __atomic_fetch_add(&live_count, 1, __ATOMIC_RELAXED);
  return memset(memory, 0xcd, size);
}

static void hard_freed(void *memory, size_t size) {
  __atomic_fetch_sub(&live_count, 1, __ATOMIC_RELAXED);
  memset(memory, 0xdd, size);
}
#else
static const bool keeps = true;
static bool hard_fails(void) { return false; }
static void *hard_fresh(void *memory, size_t size) {
  (void)size;
  return memory;
}
static void hard_freed(void *memory, size_t size) {
  (void)memory;
  (void)size;
}
#endif

/* The limit ------------------------------------------------------------------------------------ */

/* "1000", "64K", "500M", "2G"; 0 where it is no such size. */
static uint64_t parse_size(const char *text) {
  static const char units[] = "KMG";
  char *end;
  unsigned long long n = strtoull(text, &end, 10);
  const char *unit = *end == '\0' ? NULL : strchr(units, *end);
  int shift = unit == NULL ? 0 : 10 * (int)(unit - units + 1);
  bool is_size = text[0] >= '0' && text[0] <= '9' && (*end == '\0' || (unit != NULL && !end[1]));
  return is_size && n <= (uint64_t)INT64_MAX >> shift ? (uint64_t)n << shift : 0;
}

static void read_limit(void) {
  const char *text = getenv("EKIDEN_MEMORY_LIMIT");
  if (text == NULL || text[0] == '\0') return;
  bytes_limit = parse_size(text);
  if (bytes_limit != 0) return;
  char line[160];
  snprintf(line, sizeof line,
           "ekiden: EKIDEN_MEMORY_LIMIT: a number of bytes such as 500M expected, got '%.32s'; "
           "there is no limit",
           text);
  ek_warn(line);
}

static uint64_t limit(void) {
  ek_call_once(&limit_once, read_limit);
  return __atomic_load_n(&bytes_limit, __ATOMIC_RELAXED);
}

uint64_t ek_memory_limit(const uint64_t *new_limit) {
  uint64_t before = limit();
  if (new_limit != NULL) __atomic_store_n(&bytes_limit, *new_limit, __ATOMIC_RELAXED);
  return before;
}

/* Counts a request as held if the limit allows it. Added first and taken back if it was too much,
** so that two threads cannot both have the last bytes; both may be refused where one of them would
** have fit. */
static bool hold(size_t size, size_t room) {
  uint64_t most = limit(), held = __atomic_add_fetch(&bytes_held, size, __ATOMIC_RELAXED);
  is_refused = most != 0 && held > most + room;
  if (!is_refused) return true;
  __atomic_fetch_sub(&bytes_held, size, __ATOMIC_RELAXED);
  return false;
}

static void *from_system(size_t size, size_t alignment, size_t room) {
  if (!hold(size, room)) return NULL;
  void *memory = hard_fails() ? NULL : ek_system_alloc(size, alignment);
  if (memory == NULL) {
    __atomic_fetch_sub(&bytes_held, size, __ATOMIC_RELAXED);
    return NULL;
  }
  __atomic_fetch_add(&system_allocations, 1, __ATOMIC_RELAXED);
  return hard_fresh(memory, size);
}

static void to_system(void *memory, size_t size) {
  hard_freed(memory, size);
  ek_system_free(memory);
  __atomic_fetch_sub(&bytes_held, size, __ATOMIC_RELAXED);
}

/* Buffers -------------------------------------------------------------------------------------- */

static ek_mutex shared_lock = EK_MUTEX_INIT;
static list shared_buffers[EK_CPU_DEVICES][BUFFER_CLASSES]; /* each CPU device has its own */
static list shared_small[SMALL_CLASSES];

/* The size of class i is (STEPS + i % STEPS) << (i / STEPS + FIRST_LOG - 3): eight steps from each
** power of two to the next, 64, 72, 80, ... 128, 144, ... Both functions are shifts and a count of
** zeros. */
static size_t buffer_class_size(unsigned index) {
  return (size_t)(STEPS + index % STEPS) << (index / STEPS + FIRST_LOG - 3);
}

static unsigned buffer_class(size_t size) {
  if (size <= 64) return 0;
  unsigned log = 63U - (unsigned)__builtin_clzll(size - 1);
  unsigned step = (unsigned)((size - 1) >> (log - 3)) & (STEPS - 1);
  return (log - FIRST_LOG) * STEPS + step + 1;
}

/* Rounds up to the block size of a class: whole cache lines, and whole pages from a page up. */
static size_t buffer_actual(unsigned index) {
  size_t size = buffer_class_size(index);
  size_t unit = size >= PAGE ? PAGE : BUFFER_ALIGNMENT;
  return (size + unit - 1) / unit * unit;
}

/* The largest class that a buffer of 'actual' bytes can serve. Rounding up makes some neighbours of
** one actual size; this one stands for all of them, so that a freed buffer is found again. */
static unsigned list_of(size_t actual) {
  unsigned index = buffer_class(actual);
  return buffer_class_size(index) == actual ? index : index - 1;
}

/* First come is taken, within a few classes: looking for the best would hold the lock longer. */
static void *take_cached(int32_t device, size_t *actual) {
  unsigned first = list_of(*actual);
  void *found = NULL;
  ek_mutex_lock(&shared_lock);
  for (unsigned i = first; found == NULL && i <= first + LOOK_AHEAD && i < BUFFER_CLASSES; i++) {
    found = pop(&shared_buffers[device][i]);
    if (found != NULL) *actual = buffer_actual(i);
  }
  ek_mutex_unlock(&shared_lock);
  return found;
}

/* A buffer from the system; without room for it, after what is kept has been given back. */
static void *fresh_buffer(size_t actual) {
  size_t alignment = actual >= PAGE ? PAGE : BUFFER_ALIGNMENT;
  void *buffer = from_system(actual, alignment, 0);
  if (buffer != NULL || !keeps) return buffer;
  ek_pool_trim();
  return from_system(actual, alignment, 0);
}

/* Buffers in use by device and size class, and their maximum so far. */
static int32_t buffers_in_use[EK_CPU_DEVICES][BUFFER_CLASSES];
static int32_t buffers_peak[EK_CPU_DEVICES][BUFFER_CLASSES];

static void count_buffer(int32_t device, size_t actual, int32_t change) {
  unsigned index = list_of(actual);
  int32_t now = __atomic_add_fetch(&buffers_in_use[device][index], change, __ATOMIC_RELAXED);
  int32_t *most = &buffers_peak[device][index];
  int32_t peak = __atomic_load_n(most, __ATOMIC_RELAXED);
  while (now > peak && !__atomic_compare_exchange_n(most, &peak, now, true, __ATOMIC_RELAXED,
                                                    __ATOMIC_RELAXED)) {
  }
}

static void count_use(size_t actual) {
  uint64_t now = __atomic_add_fetch(&bytes_in_use, actual, __ATOMIC_RELAXED);
  uint64_t peak = __atomic_load_n(&bytes_peak, __ATOMIC_RELAXED);
  while (now > peak && !__atomic_compare_exchange_n(&bytes_peak, &peak, now, true,
                                                    __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

void *ek_device_buffer_alloc(int32_t device, size_t size, size_t *actual) {
  is_refused = false;
  if (size > (size_t)PTRDIFF_MAX / 2) return NULL;
  *actual = keeps ? buffer_actual(buffer_class(size)) : size == 0 ? 1 : size;
  void *buffer = keeps ? take_cached(device, actual) : NULL;
  if (buffer == NULL) buffer = fresh_buffer(*actual);
  if (buffer == NULL) return NULL;
  count_use(*actual);
  if (keeps) count_buffer(device, *actual, 1);
  return buffer;
}

void *ek_buffer_alloc(size_t size, size_t *actual) {
  return ek_device_buffer_alloc(0, size, actual);
}

static void keep_buffer(int32_t device, void *buffer, size_t actual) {
  ek_mutex_lock(&shared_lock);
  push(&shared_buffers[device][list_of(actual)], buffer);
  ek_mutex_unlock(&shared_lock);
}

void ek_device_buffer_free(int32_t device, void *buffer, size_t actual) {
  if (buffer == NULL) return;
  __atomic_fetch_sub(&bytes_in_use, actual, __ATOMIC_RELAXED);
  if (keeps) {
    count_buffer(device, actual, -1);
    keep_buffer(device, buffer, actual);
  } else {
    to_system(buffer, actual);
  }
}

void ek_buffer_free(void *buffer, size_t actual) { ek_device_buffer_free(0, buffer, actual); }

/* Small blocks --------------------------------------------------------------------------------- */

/* A thread frees what another allocated (a result, an argument), so lists are of the thread that
** frees. Where one only allocates and another only frees, the second's lists overflow to the
** shared ones, in whole and under one lock, and the first takes them from there, one by one. */
static EK_THREAD_LOCAL list local_small[SMALL_CLASSES];
static EK_THREAD_LOCAL bool local_registered;

static size_t small_size(unsigned class_index) { return (size_t)(class_index + 1) * SMALL_STEP; }

/* Moves a whole list in one go. */
static void share(list *from, unsigned class_index) {
  ek_mutex_lock(&shared_lock);
  list *to = &shared_small[class_index];
  for (link *item = pop(from); item != NULL; item = pop(from)) push(to, item);
  ek_mutex_unlock(&shared_lock);
}

/* Move a thread's lists to the shared ones at its end. A thread that frees more after this (in a
** destructor of another library) registers again. */
static void share_all(void) {
  for (unsigned i = 0; i < SMALL_CLASSES; i++) share(&local_small[i], i);
  local_registered = false;
}

/* A child of a fork must find the lists whole and the lock free. */
static void lock_lists(void) { ek_mutex_lock(&shared_lock); }
static void unlock_lists(void) { ek_mutex_unlock(&shared_lock); }
static void watch_forks(void) { ek_on_fork(lock_lists, unlock_lists, unlock_lists); }

static void register_thread(void) {
  static ek_once once = EK_ONCE_INIT;
  local_registered = true;
  ek_call_once(&once, watch_forks);
  ek_thread_on_exit(share_all);
}

static link *take_small(unsigned class_index) {
  link *item = pop(&local_small[class_index]);
  if (item != NULL || __atomic_load_n(&shared_small[class_index].first, __ATOMIC_RELAXED) == NULL) {
    return item;
  }
  ek_mutex_lock(&shared_lock);
  item = pop(&shared_small[class_index]);
  ek_mutex_unlock(&shared_lock);
  return item;
}

static header *small_alloc(unsigned class_index) {
  void *kept = keeps ? take_small(class_index) : NULL;
  return kept != NULL ? kept : from_system(small_size(class_index), 16, ERROR_ROOM);
}

void *ek_alloc(size_t size) {
  size_t actual = 0;
  header *block = NULL;
  is_refused = false;
  if (size > (size_t)PTRDIFF_MAX / 4) return NULL;
  size_t needed = size + sizeof(header);
  unsigned class_index = SMALL_CLASSES;
  if (needed > SMALL_CLASSES * SMALL_STEP) {
    block = ek_buffer_alloc(needed, &actual);
  } else {
    class_index = (unsigned)((needed - 1) / SMALL_STEP);
    block = small_alloc(class_index);
  }
  if (block == NULL) return NULL;
  *block = (header){class_index, MAGIC, actual};
  return block + 1;
}

void *ek_alloc_or_error(size_t size) {
  void *block = ek_alloc(size);
  if (block == NULL) ek_error_memory(size);
  return block;
}

void ek_free(void *memory) {
  if (memory == NULL) return;
  header *block = (header *)memory - 1;
  assert(block->magic == MAGIC && "freed twice, or not from ek_alloc");
  unsigned class_index = block->class_index;
  if (class_index == SMALL_CLASSES) {
    ek_buffer_free(block, (size_t)block->actual);
    return;
  }
  if (!keeps) {
    to_system(block, small_size(class_index));
    return;
  }
  if (!local_registered) register_thread();
  list *kept = &local_small[class_index];
  push(kept, (link *)(void *)block);
  if (kept->count > SMALL_CACHE) share(kept, class_index);
}

/* Spares ----------------------------------------------------------------------------------------
**
** What will be needed at one moment is taken, from the lists where they have more than the next run
** takes itself, and given back when all of it is there. A buffer that is free now may be working
** memory of that run, so a class has enough when it has one more buffer, in use and free, than were
** ever in use at once. Runs alike do not move that peak: a thousand programs that are loaded, run
** and dropped leave what one leaves. Blocks are not counted; a few free ones are left alone. */
#define BLOCK_MARGIN 8

/* Stands in a spare's own memory. */
struct ek_spare {
  ek_spare *next;
  size_t actual;               /* of a buffer; 0 for a block */
  int32_t device;
};

static_assert(sizeof(ek_spare) <= SMALL_STEP - sizeof(header), "the smallest block holds one");

static void add_spare(ek_spare **spares, void *memory, size_t actual, int32_t device) {
  ek_spare *made = memory;
  if (made == NULL) return;
  *made = (ek_spare){*spares, actual, device};
  *spares = made;
}

void ek_spare_block(ek_spare **spares, const void *like) {
  const header *block = (const header *)like - 1;
  if (!keeps || block->magic != MAGIC || block->class_index >= SMALL_CLASSES) return;
  header *spare = NULL;
  if (local_small[block->class_index].count > BLOCK_MARGIN) {
    spare = (header *)(void *)take_small(block->class_index);
  }
  if (spare == NULL) spare = from_system(small_size(block->class_index), 16, 0);
  if (spare == NULL) return;
  *spare = *block;
  add_spare(spares, spare + 1, 0, 0);
}

/* Whether a class has a buffer that a run like those before leaves alone. */
static bool has_room(int32_t device, unsigned index) {
  ek_mutex_lock(&shared_lock);
  int64_t have = (int64_t)shared_buffers[device][index].count;
  ek_mutex_unlock(&shared_lock);
  have += __atomic_load_n(&buffers_in_use[device][index], __ATOMIC_RELAXED);
  return have > __atomic_load_n(&buffers_peak[device][index], __ATOMIC_RELAXED);
}

void ek_spare_buffer(ek_spare **spares, int32_t device, size_t size) {
  if (!keeps || size > (size_t)PTRDIFF_MAX / 2) return;
  size_t actual = buffer_actual(buffer_class(size));
  void *spare = has_room(device, list_of(actual)) ? take_cached(device, &actual) : NULL;
  if (spare == NULL) spare = from_system(actual, actual >= PAGE ? PAGE : BUFFER_ALIGNMENT, 0);
  add_spare(spares, spare, actual, device);
}

void ek_spares_give_back(ek_spare *spares) {
  while (spares != NULL) {
    ek_spare spare = *spares;
    if (spare.actual == 0) ek_free(spares);
    else keep_buffer(spare.device, spares, spare.actual);
    spares = spare.next;
  }
}

/* Statistics ----------------------------------------------------------------------------------- */

static uint64_t free_bytes(void) {
  uint64_t total = 0;
  ek_mutex_lock(&shared_lock);
  for (unsigned i = 0; i < SMALL_CLASSES; i++) {
    total += small_size(i) * (shared_small[i].count + local_small[i].count);
  }
  for (unsigned i = 0; i < BUFFER_CLASSES; i++) {
    for (int d = 0; d < EK_CPU_DEVICES; d++) total += buffer_actual(i) * shared_buffers[d][i].count;
  }
  ek_mutex_unlock(&shared_lock);
  return total;
}

static void trim(list *from, size_t size) {
  for (link *item = pop(from); item != NULL; item = pop(from)) to_system(item, size);
}

/* Blocks on the lists of other threads stay there. */
static void trim_all(void) {
  ek_arenas_reclaim();
  for (unsigned i = 0; i < SMALL_CLASSES; i++) trim(&local_small[i], small_size(i));
  ek_mutex_lock(&shared_lock);
  for (unsigned i = 0; i < SMALL_CLASSES; i++) trim(&shared_small[i], small_size(i));
  for (unsigned i = 0; i < BUFFER_CLASSES; i++) {
    for (int d = 0; d < EK_CPU_DEVICES; d++) trim(&shared_buffers[d][i], buffer_actual(i));
  }
  ek_mutex_unlock(&shared_lock);
}

ek_pool_stats ek_pool_get(int wants_trim) {
  if (wants_trim) {
    ek_device_pool_trim();
    trim_all();
  }
  ek_pool_stats stats = {
      __atomic_load_n(&system_allocations, __ATOMIC_RELAXED),
      __atomic_load_n(&bytes_held, __ATOMIC_RELAXED),
      free_bytes(),
      __atomic_load_n(&bytes_in_use, __ATOMIC_RELAXED),
      __atomic_load_n(&bytes_peak, __ATOMIC_RELAXED),
      limit(),
  };
  return stats;
}

void ek_memory_reset_peak(void) {
  __atomic_store_n(&bytes_peak, __atomic_load_n(&bytes_in_use, __ATOMIC_RELAXED),
                   __ATOMIC_RELAXED);
}

int ek_error_memory(size_t size) {
  uint64_t most = limit(), held = __atomic_load_n(&bytes_held, __ATOMIC_RELAXED);
  if (!is_refused) {
    return ek_error("MemoryError", "allocate memory: the system has no %zu bytes left", size);
  }
  return ek_error("MemoryLimitError",
                  "allocate memory: %zu bytes expected within the limit of %llu, of which %llu are "
                  "in use",
                  size, (unsigned long long)most, (unsigned long long)held);
}
