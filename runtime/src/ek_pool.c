/* The fork-join thread pool.
**
** Each worker has a slot of its own, on cache lines of its own. A loop offers chunk i to worker i
** by writing the state of its slot, does chunk 0 itself, and then goes through the slots in order:
** a chunk whose worker has not come yet (it sleeps, or the system runs something else there) is
** taken back and done by the caller; a chunk that was taken is waited for. So chunk i is mostly the
** same worker's, whose cache holds what it wrote in the loop before, and a late worker delays
** nobody.
**
** State of a slot, and who changes it:
**   IDLE -> OFFERED    caller, which has written the job before (release)
**   OFFERED -> TAKEN   worker (acquire), by compare and exchange
**   OFFERED -> IDLE    caller, by compare and exchange: taken back
**   TAKEN -> IDLE      worker, which has written the outcome before (release)
**   IDLE -> STOP       ek_num_threads
** A worker that finds nothing for a while sets 'parked', looks once more, and sleeps on it. The
** caller writes the state, then reads 'parked': sequentially consistent on both sides, so one sees
** the other.
**
** Several callers. One has the workers; a loop of any other runs on its own thread. Each of those
** takes a core, so the one with the workers leaves as many of them out, and workers that wait do
** not spin then: there are never more busy threads than threads in the pool, nor do two models that
** run at once take each other's cores.
*/
#include "ek_internal.h"

#include <stdio.h>

enum {
  MAX_THREADS = EK_MAX_THREADS,
  SPINS = 20000,               /* pauses before a worker parks: 0.3 to 0.8 ms */
  SPINS_CROWDED = 100,         /* the same when there are more threads than cores */
  PATIENCE = 2000,             /* pauses before a waiting caller yields its core */
  SLOT_SIZE = 128              /* two cache lines: processors fetch them in pairs */
};

enum { IDLE, OFFERED, TAKEN, STOP };

typedef int (*loop_body)(void *context, int64_t begin, int64_t end);

/* 'state' and 'parked' are atomic; the rest is written by one side while the state says that it is
** its own: 'index' at the start, 'failed' and 'error' by the worker before IDLE. */
typedef struct slot {
  uint32_t state;
  uint32_t parked;
  int32_t index;               /* of the chunk that this worker is offered */
  int32_t failed;              /* outcome of the chunk */
  ek_object *error;            /* owned, may be NULL even if it failed */
  void *workspace;             /* made for the worker before it starts */
  ek_thread thread;
} slot;

static_assert(sizeof(slot) <= SLOT_SIZE, "a slot fits its cache lines");

/* Written by the caller that holds 'busy', read by workers between OFFERED and IDLE. One for all: a
** second loop cannot begin while a worker could still read this one, as fork_join waits until every
** slot is IDLE. */
static struct job {
  loop_body body;
  void *context;
  int64_t n;
  int64_t chunks;
  ek_scratch scratch;          /* lent to the caller */
} job;

static uint32_t busy;          /* 1 while a caller has the pool */
static int32_t thread_count;   /* of loops of those who ask for no number; 0 until it is known */
static int32_t most_asked;     /* by those who do: the pool has threads for both */
static int32_t worker_count;   /* threads that run */
static int32_t idle_spins;     /* pauses before a worker parks */
static bool is_started;
static uint32_t callers;       /* threads inside ek_parallel_for, those that run inline too */
static int own_cpus[MAX_THREADS]; /* what workers 1, 2, ... were told to keep to */
static int own_cpu_count;
static unsigned char *slots;
static size_t slots_actual;
static struct job held;         /* what called workers do; its n is that of its chunks */
static int32_t held_count;      /* of workers that may be called */
/* 'is_inside': this thread runs a chunk, so its loops run inline: a nested loop would wait for
** workers that wait for it. 'is_holder': it has the pool for longer (ek_pool_hold). */
static EK_THREAD_LOCAL bool is_inside;
static EK_THREAD_LOCAL bool is_holder;
static EK_THREAD_LOCAL bool was_divisible; /* a loop since ek_pool_was_divisible */
static EK_THREAD_LOCAL int32_t own_limit;  /* of threads in loops of this one; 0 for thread_count */

static slot *slot_at(int64_t worker) { return (slot *)(void *)(slots + worker * SLOT_SIZE); }

/* Chunks --------------------------------------------------------------------------------------- */

/* The first n % chunks chunks are one longer. */
static int64_t chunk_begin(int64_t index) {
  int64_t size = job.n / job.chunks, longer = job.n % job.chunks;
  return index * size + (index < longer ? index : longer);
}

/* Each chunk has a part of what is lent to the caller. */
static int run_chunk(int64_t index) {
  ek_scratch before = ek_workspace_lend(ek_scratch_part(job.scratch, index, job.chunks));
  int status = job.body(job.context, chunk_begin(index), chunk_begin(index + 1));
  ek_workspace_lend(before);
  return status;
}

/* Workers -------------------------------------------------------------------------------------- */

/* Waits until there is something to do: OFFERED or STOP. */
static uint32_t await(slot *own) {
  for (;;) {
    for (int i = 0; i < idle_spins; i++) {
      uint32_t state = __atomic_load_n(&own->state, __ATOMIC_RELAXED);
      if (state != IDLE) return state;
      /* another caller runs its loop on a core of its own: it may be this one */
      if (i > SPINS_CROWDED && __atomic_load_n(&callers, __ATOMIC_RELAXED) > 1) break;
      ek_pause();
    }
    __atomic_store_n(&own->parked, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&own->state, __ATOMIC_SEQ_CST) == IDLE) ek_wait(&own->parked, 1);
    __atomic_store_n(&own->parked, 0, __ATOMIC_SEQ_CST);
  }
}

static void worker_main(void *context) {
  slot *own = context;
  is_inside = true;
  ek_workspace_adopt(own->workspace);
  while (await(own) != STOP) {
    uint32_t expected = OFFERED;
    if (!__atomic_compare_exchange_n(&own->state, &expected, TAKEN, false, __ATOMIC_ACQUIRE,
                                     __ATOMIC_RELAXED)) {
      continue;
    }
    int status = ek_code_follow();
    if (status != 0) ek_error("RuntimeError", "a thread could not place code that another has");
    own->failed = status != 0 || run_chunk(own->index) != 0;
    own->error = own->failed ? ek_error_take() : NULL;
    __atomic_store_n(&own->state, IDLE, __ATOMIC_RELEASE);
  }
}

/* After a state was written. 'parked' is cleared before the wake, as a worker may have looked at
** its state and not be asleep yet: ek_wait compares, finds the word changed, and does not sleep. */
static void rouse(slot *to) {
  if (__atomic_load_n(&to->parked, __ATOMIC_SEQ_CST) == 0) return;
  __atomic_store_n(&to->parked, 0, __ATOMIC_SEQ_CST);
  ek_wake(&to->parked);
}

static void post(slot *to, uint32_t state) {
  __atomic_exchange_n(&to->state, state, __ATOMIC_SEQ_CST);
  rouse(to);
}

/* Reset the pool in the child of a fork, where only the forking thread exists. The buffer of the
** slots is leaked, not freed, once per fork of a process that had a pool. */
static void forget_workers(void) {
  is_started = false;
  worker_count = 0;
  slots = NULL;
  callers = is_inside || is_holder ? 1 : 0;
  __atomic_store_n(&busy, 0, __ATOMIC_RELEASE);
}

static void watch_forks(void) { ek_on_fork(NULL, NULL, forget_workers); }

/* Starts as many workers as it can; loops use those there are. The caller holds 'busy'. Each gets
** its first workspace here, so that none allocates when it first takes part in a later run. Workers
** stay on cores of their own when the pool has all cores, and float when it shares them by
** choice. */
static void start_workers(void) {
  static ek_once once = EK_ONCE_INIT;
  int cpus[MAX_THREADS];
  int32_t size = most_asked > thread_count ? most_asked : thread_count, num_workers = size - 1;
  is_started = true;
  ek_call_once(&once, watch_forks);
  int cores = ek_physical_cpus(cpus, MAX_THREADS);
  bool pinned = cores == size;
  if (own_cpu_count != 0) {
    for (int32_t i = 0; i < num_workers; i++) cpus[i + 1] = own_cpus[i % own_cpu_count];
    pinned = true;
  }
  idle_spins = size <= cores ? SPINS : SPINS_CROWDED;
  slots = ek_buffer_alloc((size_t)num_workers * SLOT_SIZE, &slots_actual);
  if (slots == NULL) return;
  memset(slots, 0, (size_t)num_workers * SLOT_SIZE);
  for (int32_t i = 0; i < num_workers; i++) {
    slot *own = slot_at(i);
    own->index = i + 1;
    own->workspace = ek_workspace_prepare();
    if (ek_thread_start(&own->thread, worker_main, own, pinned ? cpus[i + 1] : -1) != 0) {
      ek_workspace_discard(own->workspace);
      return;
    }
    worker_count = i + 1;
  }
}

/* The caller holds 'busy'. */
static void stop_workers(void) {
  for (int32_t i = 0; i < worker_count; i++) post(slot_at(i), STOP);
  for (int32_t i = 0; i < worker_count; i++) ek_thread_join(slot_at(i)->thread);
  ek_buffer_free(slots, slots_actual);
  slots = NULL;
  worker_count = 0;
  is_started = false;
}

/* The loop ------------------------------------------------------------------------------------- */

typedef struct outcome {
  bool failed;
  ek_object *error;            /* owned, of the first chunk that failed */
} outcome;

/* Chunks are looked at in order, so the error that is told does not depend on which thread was
** faster. */
static void note(outcome *total, bool failed, ek_object *error) {
  if (failed && !total->failed) *total = (outcome){true, error};
  else ek_object_release(error);
}

static void run_here(outcome *total, int64_t index) {
  bool failed = run_chunk(index) != 0;
  note(total, failed, failed ? ek_error_take() : NULL);
}

/* Takes an offer back (true), or waits until its worker has done it. A worker that the system runs
** elsewhere may have taken its chunk and lost its core: after PATIENCE pauses the caller yields its
** own, which on a full machine is the one that it waits for. */
static bool take_back(slot *of) {
  uint32_t expected = OFFERED;
  if (__atomic_compare_exchange_n(&of->state, &expected, IDLE, false, __ATOMIC_RELAXED,
                                  __ATOMIC_RELAXED)) {
    return true;
  }
  for (int spins = 0; __atomic_load_n(&of->state, __ATOMIC_ACQUIRE) != IDLE; spins++) {
    if (spins < PATIENCE) ek_pause(); else ek_thread_yield();
  }
  return false;
}

static void finish_chunk(outcome *total, slot *of) {
  if (take_back(of)) run_here(total, of->index);
  else note(total, of->failed != 0, of->error);
}

/* The caller holds 'busy' and has set the job. */
static int fork_join(void) {
  outcome total = {false, NULL};
  for (int64_t i = 1; i < job.chunks; i++) post(slot_at(i - 1), OFFERED);
  run_here(&total, 0);
  for (int64_t i = 1; i < job.chunks; i++) finish_chunk(&total, slot_at(i - 1));
  if (!total.failed) return 0;
  if (total.error != NULL) {
    ek_error_set(total.error);
    ek_release(total.error);
  }
  return -1;
}

/* Returns the number of threads that a loop of this thread may use. */
static int32_t threads(void) {
  if (own_limit != 0) return own_limit;
  int32_t known = __atomic_load_n(&thread_count, __ATOMIC_RELAXED);
  return known != 0 ? known : ek_num_threads(0);
}

/* The caller has 'busy'. 'most' is how many chunks there can be. */
static int run_shared(loop_body body, void *context, int64_t n, int64_t most, uint32_t others) {
  if (!is_started) start_workers();
  int64_t cores = (int64_t)worker_count + 1 - (int64_t)others, limit = threads();
  if (cores > limit) cores = limit;
  int64_t chunks = cores < 1 ? 1 : most < cores ? most : cores;
  ek_scratch scratch = ek_workspace_lend((ek_scratch){NULL, 0, 0});
  job = (struct job){body, context, n, chunks, scratch};
  int code = fork_join();
  ek_workspace_lend(scratch);
  return code;
}

static int run_held(loop_body body, void *context, int64_t n, int64_t most) {
  is_inside = true;
  int code = run_shared(body, context, n, most, __atomic_load_n(&callers, __ATOMIC_RELAXED) - 1);
  is_inside = false;
  return code;
}

/* A loop shorter than two grains is a call of its body, with no atomic operation before it.
** Whether a loop could have been split is noted even where it is not, since the scheduler of
** tasks (ek_async.c) wants to know that of kernels that it runs on one thread. */
int ek_parallel_for(loop_body body, void *context, int64_t n, int64_t grain) {
  if (n <= 0) return 0;
  if (grain < 1) grain = 1;
  if (n / grain < 2) return body(context, 0, n);
  was_divisible = true;
  if (is_inside || threads() == 1) return body(context, 0, n);
  if (is_holder) return run_held(body, context, n, n / grain);
  uint32_t others = __atomic_fetch_add(&callers, 1, __ATOMIC_RELAXED);
  bool has_pool = __atomic_exchange_n(&busy, 1, __ATOMIC_ACQUIRE) == 0;
  is_inside = true;
  int code = has_pool ? run_shared(body, context, n, n / grain, others) : body(context, 0, n);
  is_inside = false;
  if (has_pool) __atomic_store_n(&busy, 0, __ATOMIC_RELEASE);
  __atomic_fetch_sub(&callers, 1, __ATOMIC_RELAXED);
  return code;
}

/* Holding -------------------------------------------------------------------------------------- */

bool ek_pool_was_divisible(void) {
  bool was = was_divisible;
  was_divisible = false;
  return was;
}

/* A job of MAX_THREADS chunks of one element each: chunk i is worker i's number, so that run_chunk
** serves calls of workers as it does loops. */
int32_t ek_pool_hold(loop_body body, void *context) {
  if (is_inside || is_holder || threads() == 1) return 0;
  __atomic_fetch_add(&callers, 1, __ATOMIC_RELAXED);
  bool has_pool = __atomic_exchange_n(&busy, 1, __ATOMIC_ACQUIRE) == 0;
  if (has_pool && !is_started) start_workers();
  if (has_pool && worker_count != 0) {
    job = held = (struct job){body, context, MAX_THREADS, MAX_THREADS, {NULL, 0, 0}};
    is_inside = is_holder = true;
    held_count = threads() - 1 < worker_count ? threads() - 1 : worker_count;
    return held_count;
  }
  if (has_pool) __atomic_store_n(&busy, 0, __ATOMIC_RELEASE);
  __atomic_fetch_sub(&callers, 1, __ATOMIC_RELAXED);
  return 0;
}

bool ek_pool_call(void) {
  int32_t most = worker_count + 1 - (int32_t)__atomic_load_n(&callers, __ATOMIC_RELAXED);
  if (most > held_count) most = held_count;
  for (int32_t i = 0; i < most; i++) {
    uint32_t expected = IDLE;
    slot *of = slot_at(i);
    if (__atomic_load_n(&of->state, __ATOMIC_RELAXED) != IDLE) continue;
    if (!__atomic_compare_exchange_n(&of->state, &expected, OFFERED, false, __ATOMIC_SEQ_CST,
                                     __ATOMIC_RELAXED)) {
      continue;
    }
    rouse(of);
    return true;
  }
  return false;
}

void ek_pool_settle(bool for_loops) {
  for (int32_t i = 0; i < worker_count; i++) (void)take_back(slot_at(i));
  is_inside = !for_loops;
}

void ek_pool_unsettle(void) {
  job = held;
  is_inside = true;
}

void ek_pool_release(void) {
  ek_pool_settle(true);
  is_holder = false;
  __atomic_store_n(&busy, 0, __ATOMIC_RELEASE);
  __atomic_fetch_sub(&callers, 1, __ATOMIC_RELAXED);
}

/* The number of threads ------------------------------------------------------------------------ */

/* EKIDEN_NUM_THREADS where it is a number of threads, else one thread per core that the process may
** use: more threads than a container's quota would be stopped for the rest of each period. */
static int32_t default_threads(void) {
  int cpus[MAX_THREADS];
  const char *text = getenv("EKIDEN_NUM_THREADS");
  int32_t cores = ek_physical_cpus(cpus, MAX_THREADS);
  int32_t quota = ek_cpu_quota("/proc/self/cgroup", "/sys/fs/cgroup");
  if (quota != 0 && quota < cores) cores = quota;
  if (text == NULL || text[0] == '\0') return cores;
  char *end;
  long n = strtol(text, &end, 10);
  if (*end == '\0' && n >= 1 && n <= MAX_THREADS) return (int32_t)n;
  char line[128];
  snprintf(line, sizeof line,
           "ekiden: EKIDEN_NUM_THREADS: a number from 1 to %d expected, got '%.32s'; using %d",
           MAX_THREADS, text, cores);
  ek_warn(line);
  return cores;
}

/* Until no loop runs: the caller then holds 'busy'. */
static int acquire(void) {
  if (is_inside || is_holder) {
    return ek_error("RuntimeError", "set the number of threads: a parallel loop is running");
  }
  while (__atomic_exchange_n(&busy, 1, __ATOMIC_ACQUIRE) != 0) ek_thread_yield();
  return 0;
}

static void resize(int n) {
  if (n > 0 && n != thread_count) stop_workers();
  if (n > 0) __atomic_store_n(&thread_count, n, __ATOMIC_RELAXED);
  if (thread_count == 0) __atomic_store_n(&thread_count, default_threads(), __ATOMIC_RELAXED);
}

int ek_num_threads(int n) {
  int32_t known = __atomic_load_n(&thread_count, __ATOMIC_RELAXED);
  if (n > MAX_THREADS) {
    return ek_error("ValueError", "num_threads: a number from 1 to %d expected, got %d",
                    MAX_THREADS, n);
  }
  if (n <= 0 && known != 0) return known;
  if (acquire() != 0) return -1;
  resize(n);
  known = thread_count;
  __atomic_store_n(&busy, 0, __ATOMIC_RELEASE);
  return known;
}

int32_t ek_pool_limit(int32_t most) {
  int32_t before = own_limit;
  own_limit = most;
  return before;
}

int ek_pool_ask(int32_t n) {
  if (n <= __atomic_load_n(&most_asked, __ATOMIC_RELAXED)) return 0;
  if (acquire() != 0) return -1;
  stop_workers();
  if (n > most_asked) __atomic_store_n(&most_asked, n, __ATOMIC_RELAXED);
  resize(0);
  __atomic_store_n(&busy, 0, __ATOMIC_RELEASE);
  return 0;
}

int ek_pool_config(int threads, const int *cpus, int n) {
  if (acquire() != 0) return -1;
  stop_workers();
  own_cpu_count = n;
  if (n != 0) memcpy(own_cpus, cpus, (size_t)n * sizeof *cpus);
  resize(threads);
  __atomic_store_n(&busy, 0, __ATOMIC_RELEASE);
  return 0;
}
