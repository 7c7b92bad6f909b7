/* The pooled allocator and the workspace. */
#include "check.h"

static uint64_t allocations(void) { return ek_pool_get_stats().system_allocations; }

/* What one run of a static model asks for. */
static void one_run(void) {
  void *blocks[40], *buffers[10];
  size_t actual[10];
  for (size_t i = 0; i < 40; i++) {
    blocks[i] = ek_alloc(i * 67);
    CHECK(blocks[i] != NULL && (uintptr_t)blocks[i] % 16 == 0);
    memset(blocks[i], 1, i * 67);
  }
  for (size_t i = 0; i < 10; i++) {
    size_t size = i * i * i * i * 97;
    buffers[i] = ek_buffer_alloc(size, &actual[i]);
    CHECK(buffers[i] != NULL && actual[i] >= size && (uintptr_t)buffers[i] % 64 == 0);
    memset(buffers[i], 2, actual[i]);
  }
  for (size_t i = 0; i < 40; i++) ek_free(blocks[i]);
  for (size_t i = 0; i < 10; i++) ek_buffer_free(buffers[i], actual[i]);
}

static void every_size_finds_its_list_again(void) {
#ifndef EK_HARD_TEST
  for (size_t size = 0; size < 100000; size += size < 5000 ? 1 : 77) {
    size_t first, second;
    void *buffer = ek_buffer_alloc(size, &first);
    CHECK(buffer != NULL && first >= size);
    CHECK(size < 4096 || ((uintptr_t)buffer % 4096 == 0 && first - size <= size / 8 + 4096));
    ek_buffer_free(buffer, first);
    uint64_t before = allocations();
    void *again = ek_buffer_alloc(size, &second);
    CHECK(allocations() == before);
    ek_buffer_free(again, second);
  }
#endif
}

static void a_warm_program_allocates_nothing(void) {
#ifndef EK_HARD_TEST
  one_run();
  uint64_t before = allocations();
  for (int i = 0; i < 100; i++) one_run();
  CHECK(allocations() == before);
#else
  int64_t live = ek_hard_live();
  one_run();
  CHECK(ek_hard_live() == live);
#endif
}

static void trim_gives_everything_back(void) {
  one_run();
  uint64_t before = ek_pool_get_stats().bytes_held;
  ek_pool_trim();
  ek_pool_stats stats = ek_pool_get_stats();
  CHECK(stats.bytes_free == 0 && stats.bytes_held <= before);
}

static void impossible_sizes_are_refused(void) {
  size_t actual;
  CHECK(ek_alloc(SIZE_MAX) == NULL && ek_alloc(SIZE_MAX - 8) == NULL);
  CHECK(ek_buffer_alloc(SIZE_MAX, &actual) == NULL);
  CHECK(ek_alloc_or_error((size_t)PTRDIFF_MAX) == NULL);
  check_error(__FILE__, __LINE__, "MemoryError",
              "allocate memory: the system has no 9223372036854775807 bytes left");
  ek_free(NULL);
}

static void free_all(void *context) {
  void **blocks = context;
  for (int i = 0; i < 500; i++) ek_free(blocks[i]);
}

static void blocks_may_die_on_another_thread(void) {
  static void *blocks[500];
  for (int round = 0; round < 5; round++) {
    ek_thread thread;
    for (int i = 0; i < 500; i++) blocks[i] = ek_alloc(100);
    uint64_t before = allocations();
    CHECK(ek_thread_start(&thread, free_all, blocks, -1) == 0);
    ek_thread_join(thread);
#ifndef EK_HARD_TEST
    for (int i = 0; i < 500; i++) blocks[i] = ek_alloc(100);
    CHECK(allocations() == before); /* the ended thread left them to us */
    free_all(blocks);
#endif
    (void)before;
  }
}

static void churn(void *context) {
  (void)context;
  for (int i = 0; i < 200; i++) one_run();
  CHECK(ek_workspace_alloc(1000) != NULL); /* freed with the thread */
}

static void many_threads_may_allocate(void) {
  ek_thread threads[3];
  for (int i = 0; i < 3; i++) ek_thread_start(&threads[i], churn, NULL, -1);
  for (int i = 0; i < 3; i++) ek_thread_join(threads[i]);
}

static void nested_workspaces(int depth) {
  if (depth == 0) return;
  int64_t size = depth * depth * 3001;
  char *memory = ek_workspace_alloc(size);
  CHECK(memory != NULL && (uintptr_t)memory % 64 == 0);
  memset(memory, depth, (size_t)size);
  nested_workspaces(depth - 1);
  CHECK(memory[0] == depth && memcmp(memory, memory + 1, (size_t)size - 1) == 0); /* all alike */
  ek_workspace_free(memory);
}

static _Alignas(64) char lent_memory[1 << 16];

static bool is_lent(const void *at) {
  return (const char *)at >= lent_memory && (const char *)at < lent_memory + sizeof lent_memory;
}

static void lent_memory_is_used_first(void) {
  ek_scratch none = {NULL, 0, 0};
  ek_scratch before = ek_workspace_lend((ek_scratch){lent_memory, 4096, 0});
  CHECK(before.begin == NULL);
  char *first = ek_workspace_alloc(1000), *second = ek_workspace_alloc(1000);
  CHECK(is_lent(first) && is_lent(second) && second >= first + 1000);
  char *large = ek_workspace_alloc(4096); /* does not fit */
  char *small = ek_workspace_alloc(64);
  CHECK(!is_lent(large) && is_lent(small));
  ek_workspace_free(small);
  ek_workspace_free(large);
  ek_workspace_free(second);
  CHECK(ek_workspace_alloc(1000) == second);
  ek_workspace_free(second);
  ek_workspace_free(first);
  CHECK(ek_workspace_lend(none).top == 0);
  void *own = ek_workspace_alloc(64);
  CHECK(own != NULL && !is_lent(own));
  ek_workspace_free(own);
}

/* Every chunk has a part of its own: all write all they get at once. */
static int take_part(void *context, int64_t begin, int64_t end) {
  (void)context;
  for (int64_t i = begin; i < end; i++) {
    char *memory = ek_workspace_alloc(4096);
    if (!is_lent(memory)) return ek_error("RuntimeError", "not lent");
    memset(memory, (int)i, 4096);
    for (int k = 0; k < 4096; k += 63) { /* its first and its last byte, and what lies between */
      if (memory[k] != (char)i) return ek_error("RuntimeError", "shared");
    }
    ek_workspace_free(memory);
  }
  return 0;
}

static void a_loop_shares_what_is_lent(void) {
  ek_scratch lent = {lent_memory, sizeof lent_memory, 0};
  ek_scratch before = ek_workspace_lend(lent);
  void *outer = ek_workspace_alloc(1000);
  CHECK(is_lent(outer));
  for (int i = 0; i < 100; i++) CHECK(ek_parallel_for(take_part, NULL, 64, 1) == 0);
  ek_workspace_free(outer);
  CHECK(ek_workspace_lend(before).top == 0);
}

static void the_workspace_is_a_stack(void) {
  nested_workspaces(30);
  uint64_t before = allocations();
  for (int i = 0; i < 10; i++) nested_workspaces(30);
#ifndef EK_HARD_TEST
  CHECK(allocations() == before);
#endif
  (void)before;
  ek_workspace_free(NULL);
  CHECK(ek_workspace_alloc(-1) == NULL);
  check_error(__FILE__, __LINE__, "MemoryError",
              "allocate workspace: the size must be in range, got -1");
}

static void the_peak_is_of_what_is_in_use(void) {
  size_t first, second;
  ek_memory_reset_peak();
  uint64_t before = ek_pool_get_stats().bytes_in_use;
  CHECK(ek_pool_get_stats().bytes_peak == before);
  void *a = ek_buffer_alloc(100000, &first), *b = ek_buffer_alloc(300000, &second);
  ek_buffer_free(a, first);
  a = ek_buffer_alloc(5000, &first);
  ek_pool_stats stats = ek_pool_get_stats();
  CHECK(stats.bytes_in_use == before + first + second);
  CHECK(stats.bytes_peak >= before + 400000 && stats.bytes_peak > stats.bytes_in_use);
  ek_buffer_free(a, first);
  ek_buffer_free(b, second);
  CHECK(ek_pool_get_stats().bytes_in_use == before);
}

static void nothing_passes_the_limit(void) {
  size_t actual, other;
  ek_pool_trim();
  uint64_t most = ek_pool_get_stats().bytes_held + 1000000, none = 0;
  CHECK(ek_memory_limit(&most) == 0 && ek_pool_get_stats().bytes_limit == most);
  void *half = ek_buffer_alloc(600000, &actual);
  CHECK(half != NULL && ek_buffer_alloc(600000, &other) == NULL);
  CHECK(ek_pool_get_stats().bytes_held <= most);
  CHECK(ek_buffer_alloc(600000, &other) == NULL);
  unsigned long long held = ek_pool_get_stats().bytes_held;
  CHECK(ek_error_memory(600000) == -1);
  char expected[160];
  snprintf(expected, sizeof expected,
           "allocate memory: 600000 bytes expected within the limit of %llu, of which %llu are in "
           "use", (unsigned long long)most, held);
  check_error(__FILE__, __LINE__, "MemoryLimitError", expected);
  ek_buffer_free(half, actual);
  half = ek_buffer_alloc(900000, &actual); /* in the place of what is kept for reuse */
  CHECK(half != NULL && ek_pool_get_stats().bytes_held <= most);
  ek_buffer_free(half, actual);
  CHECK(ek_memory_limit(&none) == most && ek_memory_limit(NULL) == 0);
}

static void *taken(ek_arenas *arenas, size_t size, ek_object **out) {
  CHECK(ek_arenas_take(arenas, size, 64, cpu, out) == 0);
  CHECK(((ek_storage *)(void *)*out)->size >= size);
  return *out;
}

static void arenas_are_taken_again(void) {
  ek_arenas arenas = {0};
  ek_object *one, *two;
  ek_arenas_add(&arenas);
  void *first = taken(&arenas, 10000, &one);
  CHECK(taken(&arenas, 5000, &two) != first); /* the first is in use */
  ek_release(one);
  ek_release(two);
#ifndef EK_HARD_TEST
  CHECK(taken(&arenas, 9000, &one) == first); /* the smallest that fits */
  ek_release(one);
  taken(&arenas, 50000, &one);                /* instead of the largest that is free */
  ek_release(one);
  taken(&arenas, 50000, &two);
  CHECK(one == two);
  ek_release(two);
  uint64_t before = ek_pool_get_stats().bytes_in_use;
  ek_arenas_reclaim(); /* a run has them */
  CHECK(ek_pool_get_stats().bytes_in_use == before);
  ek_arenas_rest(&arenas);
  ek_arenas_reclaim();
  CHECK(ek_pool_get_stats().bytes_in_use < before);
#endif
  ek_arenas_rest(&arenas);
  ek_arenas_remove(&arenas);
}

static void use_arenas(void *context) {
  ek_arenas arenas = {0};
  (void)context;
  ek_arenas_add(&arenas);
  for (size_t i = 0; i < 300; i++) {
    ek_object *storage;
    taken(&arenas, i * 1000, &storage);
    memset(((ek_storage *)(void *)storage)->data, 3, i * 1000);
    ek_release(storage);
    ek_arenas_rest(&arenas);
    if (i % 20 == 0) ek_arenas_reclaim();
  }
  ek_arenas_remove(&arenas);
}

static void arenas_of_several_threads(void) {
  ek_thread threads[3];
  for (int i = 0; i < 3; i++) ek_thread_start(&threads[i], use_arenas, NULL, -1);
  for (int i = 0; i < 3; i++) ek_thread_join(threads[i]);
}

int main(void) {
  every_size_finds_its_list_again();
  a_warm_program_allocates_nothing();
  trim_gives_everything_back();
  impossible_sizes_are_refused();
  blocks_may_die_on_another_thread();
  many_threads_may_allocate();
  the_workspace_is_a_stack();
  lent_memory_is_used_first();
  a_loop_shares_what_is_lent();
  the_peak_is_of_what_is_in_use();
  nothing_passes_the_limit();
  arenas_are_taken_again();
  arenas_of_several_threads();
  return 0;
}
