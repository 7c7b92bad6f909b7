/* The thread pool. Prints what an empty parallel loop costs; a plain build is the one to
** believe. */
#include "check.h"

#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Programs under the thread sanitizer must not fork while they have threads. */
#ifdef __SANITIZE_THREAD__
static const bool can_fork = false;
#else
static const bool can_fork = true;
#endif

enum { N = 1000 };

typedef struct work {
  int32_t seen[N];             /* how often each index was given out */
  int32_t calls;
  int64_t smallest;            /* chunk */
} work;

static int count_indices(void *context, int64_t begin, int64_t end) {
  work *w = context;
  for (int64_t i = begin; i < end; i++) w->seen[i]++;
  __atomic_fetch_add(&w->calls, 1, __ATOMIC_RELAXED);
  if (end - begin < __atomic_load_n(&w->smallest, __ATOMIC_RELAXED)) {
    __atomic_store_n(&w->smallest, end - begin, __ATOMIC_RELAXED);
  }
  return 0;
}

static work run(int64_t n, int64_t grain) {
  work w = {{0}, 0, INT64_MAX};
  CHECK(ek_parallel_for(count_indices, &w, n, grain) == 0);
  for (int64_t i = 0; i < N; i++) CHECK(w.seen[i] == (i < n ? 1 : 0));
  return w;
}

static void every_index_is_given_out_once(void) {
  for (int threads = 1; threads <= 5; threads++) {
    CHECK(ek_num_threads(threads) == threads && ek_num_threads(0) == threads);
    for (int64_t n = 0; n <= 20; n++) CHECK(run(n, 1).calls == (n < threads ? n : threads));
    for (int repeat = 0; repeat < 200; repeat++) CHECK(run(N, 0).calls == threads);
  }
}

static void chunks_are_as_large_as_the_grain(void) {
  ek_num_threads(4);
  CHECK(run(N, N).calls == 1 && run(N, N - 1).calls == 1 && run(N, N / 2).calls == 2);
  for (int64_t grain = 1; grain < N; grain += 37) CHECK(run(N, grain).smallest >= grain);
  CHECK(run(-3, 1).calls == 0 && run(5, -9).calls == 4);
}

static int nest(void *context, int64_t begin, int64_t end) {
  work *w = context;
  int64_t cells[2] = {begin * 10, end * 10};
  CHECK(cells[1] <= N);
  work inner = {{0}, 0, INT64_MAX};
  CHECK(ek_parallel_for(count_indices, &inner, N, 1) == 0 && inner.calls == 1);
  for (int64_t i = cells[0]; i < cells[1]; i++) w->seen[i]++;
  return 0;
}

static void nested_loops_run_inline(void) {
  work w = {{0}, 0, INT64_MAX};
  ek_num_threads(3);
  CHECK(ek_parallel_for(nest, &w, N / 10, 1) == 0);
  for (int i = 0; i < N; i++) CHECK(w.seen[i] == 1);
}

static int fail_from(void *context, int64_t begin, int64_t end) {
  (void)end;
  if (begin < *(int64_t *)context) return 0;
  return ek_error("ValueError", "chunk at %lld", (long long)begin);
}

static int fail_silently(void *context, int64_t begin, int64_t end) {
  (void)context;
  (void)end;
  return begin == 0 ? 0 : 7;
}

static void the_first_failing_chunk_is_reported(void) {
  int64_t from = 0;
  ek_num_threads(4);
  for (int repeat = 0; repeat < 50; repeat++) {
    from = 0;
    CHECK_ERROR(ek_parallel_for(fail_from, &from, 100, 1), "ValueError", "chunk at 0");
    from = 30;
    CHECK_ERROR(ek_parallel_for(fail_from, &from, 100, 1), "ValueError", "chunk at 50");
  }
  CHECK(ek_parallel_for(fail_silently, NULL, 100, 1) == -1 && ek_error_take() == NULL);
  CHECK(run(N, 1).calls == 4);
}

static int change_threads(void *context, int64_t begin, int64_t end) {
  (void)context;
  (void)begin;
  (void)end;
  return ek_num_threads(2) == -1 ? -1 : 0;
}

static void the_number_is_fixed_inside_a_loop(void) {
  ek_num_threads(3);
  CHECK_ERROR(ek_parallel_for(change_threads, NULL, 9, 1), "RuntimeError",
              "set the number of threads: a parallel loop is running");
}

static void call_often(void *context) {
  for (int i = 0; i < 300; i++) *(int64_t *)context += run(N, 1).calls;
}

static void several_callers_share_it(void) {
  ek_thread threads[3];
  int64_t calls[3] = {0};
  ek_num_threads(3);
  for (int i = 0; i < 3; i++) ek_thread_start(&threads[i], call_often, &calls[i], -1);
  for (int i = 0; i < 3; i++) ek_thread_join(threads[i]);
  for (int i = 0; i < 3; i++) CHECK(calls[i] >= 300 && calls[i] <= 900);
}

/* Another model's loop, which goes on until it is told to end. */
static uint32_t other_is_inside, other_may_end;

static int stay_inside(void *context, int64_t begin, int64_t end) {
  (void)context;
  (void)begin;
  (void)end;
  __atomic_store_n(&other_is_inside, 1, __ATOMIC_SEQ_CST);
  while (!__atomic_load_n(&other_may_end, __ATOMIC_SEQ_CST)) ek_thread_yield();
  return 0;
}

static void other_model(void *context) {
  CHECK(ek_parallel_for(stay_inside, context, N, 1) == 0);
}

static int start_other(void *context, int64_t begin, int64_t end) {
  (void)end;
  if (begin != 0) return 0;
  CHECK(ek_thread_start(context, other_model, NULL, -1) == 0);
  while (!__atomic_load_n(&other_is_inside, __ATOMIC_SEQ_CST)) ek_thread_yield();
  return 0;
}

/* While another caller's loop runs on its own thread, ours leaves one thread out for it. */
static void two_models_share_the_cores(void) {
  ek_thread other;
  ek_num_threads(4);
  CHECK(ek_parallel_for(start_other, &other, N, 1) == 0);
  for (int i = 0; i < 50; i++) CHECK(run(N, 1).calls == 3);
  __atomic_store_n(&other_may_end, 1, __ATOMIC_SEQ_CST);
  ek_thread_join(other);
  CHECK(run(N, 1).calls == 4);
}

/* How many processors each chunk may run on. The caller lets the worker come first. */
static int count_processors(void *context, int64_t begin, int64_t end) {
  struct timespec pause = {0, 1000000};
  cpu_set_t set;
  (void)end;
  if (begin == 0) nanosleep(&pause, NULL);
  CHECK(sched_getaffinity(0, sizeof set, &set) == 0);
  ((int *)context)[begin] = CPU_COUNT(&set);
  return 0;
}

static int config(int64_t threads, const int64_t *cpus, int64_t n) {
  ek_value items[4], args[2] = {ek_value_int(threads)}, ret = ek_value_none();
  ek_object *array = NULL, *function = ek_registry_get("ek.runtime.config_threadpool");
  for (int64_t i = 0; i < n; i++) items[i] = ek_value_int(cpus[i]);
  CHECK(ek_array_new(items, n, &array) == 0);
  args[1] = ek_value_object(array);
  int code = ek_function_call(function, args, 2, &ret);
  ek_object_release(array);
  ek_object_release(function);
  return code;
}

static void workers_keep_to_the_processors_given(void) {
  int allowed[2] = {0, 0};
  int64_t here = sched_getcpu(), wrong = -1;
  CHECK(config(2, &here, 1) == 0 && ek_num_threads(0) == 2);
  for (int i = 0; i < 100 && allowed[1] != 1; i++) { /* the caller may do both chunks */
    CHECK(ek_parallel_for(count_processors, allowed, 2, 1) == 0);
  }
  CHECK(allowed[1] == 1);
  CHECK_ERROR(config(2, &wrong, 1), "ValueError",
              "ek.runtime.config_threadpool: processor 0: a number >= 0 expected, got int");
  CHECK_ERROR(config(-1, NULL, 0), "ValueError",
              "ek.runtime.config_threadpool: at most 256 processors and no negative number of "
              "threads expected");
  CHECK(config(3, NULL, 0) == 0 && run(N, 1).calls == 3);
}

static void parked_workers_wake(void) {
  struct timespec pause = {0, 5000000};
  ek_num_threads(3);
  for (int i = 0; i < 10; i++) {
    CHECK(run(N, 1).calls == 3);
    nanosleep(&pause, NULL);
  }
}

static void a_forked_child_starts_its_own_workers(void) {
  int status = 0;
  ek_num_threads(3);
  run(N, 1);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) _exit(run(N, 1).calls == 3 ? 0 : 1);
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static int nothing(void *context, int64_t begin, int64_t end) {
  (void)context;
  (void)begin;
  (void)end;
  return 0;
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int spin(void *context, int64_t begin, int64_t end) {
  (void)begin;
  (void)end;
  for (double until = seconds() + *(double *)context; seconds() < until;) continue;
  return 0;
}

/* Seconds of one loop of two chunks, the best of some rounds. */
static double time_loop(int (*body)(void *context, int64_t begin, int64_t end), double each) {
  double best = 1;
  for (int repeat = 0; repeat < 20; repeat++) {
    double start = seconds();
    for (int i = 0; i < 1000; i++) ek_parallel_for(body, &each, 2, 1);
    double taken = (seconds() - start) / 1000;
    if (taken < best) best = taken;
  }
  return best;
}

/* A loop of chunks too short to be worth a hand-over is done by its caller. One of chunks of 2 us
** is shared, and what it takes beyond 2 us is the price of fork and join. */
static void print_the_cost_of_a_loop(void) {
  ek_num_threads(2);
  printf("empty loop: %.2f us\n", 1e6 * time_loop(nothing, 0));
  printf("two chunks of 2 us: %.2f us\n", 1e6 * time_loop(spin, 2e-6));
}

static uint32_t visits[5];     /* atomic, one per worker */

static int visit(void *context, int64_t begin, int64_t end) {
  CHECK(context == visits && end == begin + 1 && begin >= 1 && begin < 4);
  CHECK(run(N, 1).calls == 1); /* its loops run inline */
  __atomic_fetch_add(&visits[begin], 1, __ATOMIC_RELAXED);
  return 0;
}

static void hold_nothing(void *context) {
  (void)context;
  CHECK(ek_pool_hold(visit, visits) == 0 && run(N, 1).calls == 1);
}

/* Visits of workers beyond the 'before' first ones. */
static uint32_t came_since(uint32_t before) {
  uint32_t came = 0;
  for (int i = 1; i < 4; i++) came += __atomic_load_n(&visits[i], __ATOMIC_RELAXED);
  return came - before;
}

/* Its workers come one by one; between that its loops have all threads, and others none. */
static void a_caller_holds_the_pool(void) {
  ek_thread other;
  ek_num_threads(4);
  for (int repeat = 0; repeat < 50; repeat++) {
    CHECK(ek_pool_hold(visit, visits) == 3 && ek_pool_hold(visit, visits) == 0);
    uint32_t called = 0, before = came_since(0);
    for (int i = 0; i < 3; i++) called += ek_pool_call();
    while (repeat == 0 && came_since(before) == 0) ek_thread_yield();
    CHECK(called >= 1 && run(N, 1).calls == 1);
    ek_pool_settle(true);
    CHECK(came_since(before) <= called && run(N, 1).calls == 4 && ek_pool_was_divisible());
    ek_pool_unsettle();
    CHECK(!ek_pool_was_divisible() && run(N, N).calls == 1 && !ek_pool_was_divisible());
    if (repeat == 0) {
      CHECK(ek_thread_start(&other, hold_nothing, NULL, -1) == 0);
      ek_thread_join(other);
    }
    CHECK_ERROR(ek_num_threads(2), "RuntimeError",
                "set the number of threads: a parallel loop is running");
    ek_pool_release();
  }
  CHECK(run(N, 1).calls == 4);
}

static void write_file(const char *folder, const char *name, const char *text) {
  char path[256];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  for (char *end = strchr(path + 1, '/'); end != NULL; end = strchr(end + 1, '/')) {
    *end = '\0';
    mkdir(path, 0700);
    *end = '/';
  }
  FILE *file = fopen(path, "w");
  CHECK(file != NULL);
  fputs(text, file);
  fclose(file);
}

static int quota_in(const char *folder) {
  char groups[256];
  snprintf(groups, sizeof groups, "%s/cgroup", folder);
  return ek_cpu_quota(groups, folder);
}

/* In both versions of control groups, with limits of ancestors, in a container and outside. */
static void control_groups_limit_the_cores(void) {
#if defined(__linux__)
  char folder[] = "/tmp/ek_groups_XXXXXX";
  CHECK(mkdtemp(folder) != NULL);
  CHECK(quota_in(folder) == 0);
  write_file(folder, "cgroup", "0::/\n");
  CHECK(quota_in(folder) == 0);
  write_file(folder, "cpu.max", "max 100000\n");
  CHECK(quota_in(folder) == 0);
  write_file(folder, "cpu.max", "150000 100000\n");
  CHECK(quota_in(folder) == 2);
  write_file(folder, "cpu.max", "nothing\n");
  CHECK(quota_in(folder) == 0);
  write_file(folder, "cgroup", "0::/system.slice/model.service\n");
  write_file(folder, "system.slice/model.service/cpu.max", "400000 100000\n");
  CHECK(quota_in(folder) == 4);
  write_file(folder, "system.slice/cpu.max", "300000 100000\n");
  CHECK(quota_in(folder) == 3);
  write_file(folder, "system.slice/cpu.max", "9223372036854775807 1\n");
  CHECK(quota_in(folder) == 4);
  write_file(folder, "cgroup", "5:memory:/a\n4:cpu,cpuacct:/docker/b\nno group\n");
  CHECK(quota_in(folder) == 0);
  write_file(folder, "cpu/docker/b/cpu.cfs_quota_us", "50000\n");
  write_file(folder, "cpu/docker/b/cpu.cfs_period_us", "100000\n");
  CHECK(quota_in(folder) == 1);
  write_file(folder, "cpu/docker/b/cpu.cfs_quota_us", "-1\n");
  CHECK(quota_in(folder) == 0);
  char command[64];
  snprintf(command, sizeof command, "rm -r %s", folder);
  CHECK(system(command) == 0);
#endif
}

int main(void) {
  control_groups_limit_the_cores();
  every_index_is_given_out_once();
  chunks_are_as_large_as_the_grain();
  nested_loops_run_inline();
  the_first_failing_chunk_is_reported();
  the_number_is_fixed_inside_a_loop();
  several_callers_share_it();
  two_models_share_the_cores();
  a_caller_holds_the_pool();
  workers_keep_to_the_processors_given();
  parked_workers_wake();
  if (can_fork) a_forked_child_starts_its_own_workers();
  print_the_cost_of_a_loop();
  ek_num_threads(1);
  return 0;
}
