/* Long runs: "soak CALLS OBJECTS". Four threads make CALLS calls, each with a callback in it, of
** functions they share; then objects of all kinds are made and dropped, OBJECTS rounds of them, and
** the memory of the process stays what it was. */
#include "check.h"

#include <pthread.h>
#include <unistd.h>

enum { THREADS = 4 };

static ek_object *caller, *adder;
static ek_call_site site = {NULL, "soak.add", NULL};
static int64_t calls_per_thread;

/* add(x): x + 1 */
static int add(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self;
  if (nargs != 1 || args[0].type_index != EK_INT) return ek_error("TypeError", "add: one int");
  *ret = ek_value_int(args[0].v.i64 + 1);
  return 0;
}

/* call(f, x): f(x), the callback */
static int call(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self;
  if (nargs != 2 || args[0].type_index != EK_FUNCTION) return ek_error("TypeError", "call: f, x");
  return ek_function_call(args[0].v.obj, args + 1, 1, ret);
}

static void one_round(int64_t i, ek_object *own) {
  ek_value args[2] = {ek_value_object(i % 2 == 0 ? adder : own), ek_value_int(i)};
  ek_value ret = ek_value_none();
  CHECK(ek_function_call(caller, args, 2, &ret) == 0 && ret.v.i64 == i + 1);
  if (i % 16 == 0) {
    ret = ek_value_none();
    CHECK(ek_call_packed(&site, args + 1, 1, &ret) == 0 && ret.v.i64 == i + 1);
  }
  if (i % 64 == 0) {
    ret = ek_value_none();
    CHECK(ek_function_call(caller, args, 1, &ret) == -1); /* an error per thread */
    ek_object *found = ek_registry_get("soak.add"), *error = ek_error_take();
    CHECK(found == adder && error != NULL);
    ek_object_release(error);
    ek_object_release(found);
  }
}

static void *make_calls(void *context) {
  ek_object *own = NULL;
  (void)context;
  CHECK(ek_function_new(NULL, add, NULL, &own) == 0);
  for (int64_t i = 0; i < calls_per_thread; i++) one_round(i, own);
  ek_object_release(own);
  return NULL;
}

static void calls_from_all_threads(void) {
  pthread_t threads[THREADS];
  CHECK(ek_function_new(NULL, call, NULL, &caller) == 0);
  CHECK(ek_function_new(NULL, add, NULL, &adder) == 0);
  CHECK(ek_registry_set("soak.add", adder, 1) == 0);
  for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, make_calls, NULL);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  ek_object_release(caller);
  ek_object_release(adder);
  ek_object_release(site.function);
  printf("%lld calls and as many callbacks from %d threads\n",
         (long long)calls_per_thread * THREADS, THREADS);
}

/* Objects -------------------------------------------------------------------------------------- */

static int32_t pair_type(void) {
  ek_field fields[2] = {{"left", NULL, EK_ANY, 0, 0, EK_FIELD_DEFAULT, NULL, NULL, {0, 0, {0}}},
                        {"right", NULL, EK_ANY, 0, 0, EK_FIELD_DEFAULT, NULL, NULL, {0, 0, {0}}}};
  ek_type_def def = {0, NULL, NULL, fields, NULL, 2, 0, NULL};
  int32_t index = ek_type_register("soak.Pair", EK_OBJECT);
  CHECK(ek_type_define(index, &def) == 0);
  return index;
}

static void make_objects(int32_t type, int64_t round) {
  const int64_t shape[2] = {round % 7 + 1, 9};
  ek_object *tensor = NULL, *array = NULL, *map = NULL, *pair = NULL, *copy = NULL;
  ek_value items[4] = {ek_value_none()}, equal;
  void *managed = NULL;
  CHECK(ek_string_new(EK_STR, "a string that is an object", 26, &items[0]) == 0);
  CHECK(ek_tensor_new(shape, 2, float32, cpu, &tensor) == 0);
  items[1] = ek_value_object(tensor);
  items[2] = ek_value_int(round);
  items[3] = items[0];
  CHECK(ek_array_new(items, 4, &array) == 0);
  CHECK(ek_container_new(EK_MAP, 0, items, 4, &map) == 0);
  ek_value fields[2] = {ek_value_object(array), ek_value_object(map)};
  CHECK(ek_object_new(type, fields, 2, &pair) == 0);
  equal = ek_value_object(pair);
  CHECK(ek_value_equal(&equal, &equal) == 1);
  CHECK(ek_tensor_to_dlpack(tensor, 1, &managed) == 0);
  CHECK(ek_tensor_from_dlpack(managed, 1, &copy) == 0);
  ek_weak_retain(pair);
  ek_object_release(pair);
  CHECK(ek_weak_lock(pair) == NULL);
  ek_weak_release(pair);
  ek_object_release(copy);
  ek_object_release(map);
  ek_object_release(array);
  ek_object_release(tensor);
  ek_value_release(&items[0]);
}

static long resident_pages(void) {
  long size = 0, resident = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (file == NULL) return 0;
  CHECK(fscanf(file, "%ld %ld", &size, &resident) == 2);
  fclose(file);
  return resident;
}

static void memory_stays_flat(int64_t rounds) {
  int32_t type = pair_type();
  for (int64_t i = 0; i < 2000; i++) make_objects(type, i);
  long before = resident_pages();
  uint64_t allocations = ek_pool_get_stats().system_allocations;
  for (int64_t i = 0; i < rounds; i++) make_objects(type, i);
  long grown = resident_pages() - before;
  printf("%lld rounds of objects: %ld pages more\n", (long long)rounds, grown);
#if !defined(EK_HARD_TEST) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
  CHECK(ek_pool_get_stats().system_allocations == allocations && grown <= 64);
#else
  (void)allocations;
#endif
}

int main(int argc, char **argv) {
  calls_per_thread = (argc > 1 ? atoll(argv[1]) : 10000) / THREADS;
  calls_from_all_threads();
  memory_stays_flat(argc > 2 ? atoll(argv[2]) : 1000);
  return 0;
}
