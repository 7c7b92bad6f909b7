/* Limits of a run: instructions, time, threads. */
#include <time.h>

#include "ek_vm_step.h"
#include "program.h"

#define EK_OPCODE(name, text, format, operands, properties, meaning) name = EK_OP_##name,
enum {
#include "vm_opcodes.def"
};
#undef EK_OPCODE

static ek_object *global(const char *name) {
  ek_object *found = ek_registry_get(name);
  CHECK(found != NULL);
  return found;
}

static int call3(const char *name, ek_object *first, int64_t a, int64_t b, int32_t n) {
  ek_value args[3] = {ek_value_object(first), ek_value_int(a), ek_value_int(b)};
  ek_value ret = ek_value_none();
  ek_object *called = global(name);
  int status = ek_function_call(called, args, n, &ret);
  ek_release(called);
  return status;
}

/* Steps and time ------------------------------------------------------------------------------- */

static const function forever = {"main", 0, 1, WORDS(LoadConsti, 0, 1, 0, Goto, -1)};

/* main calls itself; the frames that it leaves behind are given back. */
static const function deep = {"main", 0, 1, WORDS(Invoke, 0, 0, 0, Ret, 0)};

static void expect_stopped(ek_object *vm, const char *message) {
  ek_value result = ek_value_none();
  for (int i = 0; i < 2; i++) {
    CHECK_ERROR(ek_vm_invoke(vm, 0, NULL, 0, &result), "RunLimitError", message);
    CHECK(result.type_index == EK_NONE);
  }
}

static void a_run_stops_after_its_steps(void) {
  program loop = {.functions = {forever}}, calls = {.functions = {deep}};
  const program *programs[] = {&loop, &calls};
  for (int i = 0; i < 2; i++) {
    ek_object *vm = machine_of(programs[i]);
    for (int is_async = 0; is_async < 2; is_async++) {
      CHECK(ek_async_set((ek_vm *)(void *)vm, is_async != 0) == 0);
      CHECK(call3("ek.vm.limit", vm, 10, 0, 3) == 0);
      expect_stopped(vm, "run: its limit of 10 steps is reached, in 'main'");
    }
    ek_object_release(vm);
  }
}

static void a_run_stops_in_time(void) {
  program loop = {.functions = {forever}};
  ek_object *vm = machine_of(&loop);
  for (int is_async = 0; is_async < 2; is_async++) {
    CHECK(ek_async_set((ek_vm *)(void *)vm, is_async != 0) == 0);
    CHECK(call3("ek.vm.limit", vm, 0, 1000000, 3) == 0);
    expect_stopped(vm, "run: its limit of 0.001 s is reached, in 'main'");
  }
  ek_object_release(vm);
}

static int stop_it(void) { return ek_error("RunError", "stopped from outside"); }

static int n_checks;
static int count_and_stop(void) { return ++n_checks < 3 ? 0 : stop_it(); }

/* Whoever is n_checks during a run ends it, in every loop and kind of machine, and only long ones ask. */
static void a_run_asks_whether_to_go_on(void) {
  program loop = {.functions = {forever}};
  program quick = {.functions = {{"main", 0, 1, WORDS(LoadConsti, 0, 7, 0, Ret, 0)}}};
  ek_object *vm = machine_of(&loop), *other = machine_of(&quick);
  ek_interrupt_check_set(count_and_stop);
  for (int is_async = 0; is_async < 2; is_async++) {
    CHECK(ek_async_set((ek_vm *)(void *)vm, is_async != 0) == 0);
    n_checks = 0;
    ek_value result = ek_value_none();
    CHECK_ERROR(ek_vm_invoke(vm, 0, NULL, 0, &result), "RunError", "stopped from outside");
    CHECK(n_checks == 3);
  }
  n_checks = 0;
  CHECK(run_ints(other, NULL, 0) == 7 && n_checks == 0);
  ek_interrupt_check_set(NULL);
  ek_object_release(vm);
  ek_object_release(other);
}

/* A run of n instructions ends with a limit of n, and not with one of n - 1. */
static void the_last_step_is_counted(void) {
  program p = {.functions = {{"main", 0, 1, WORDS(LoadConsti, 0, 7, 0, Ret, 0)}}};
  ek_object *vm = machine_of(&p);
  CHECK(call3("ek.vm.limit", vm, 2, 0, 3) == 0);
  CHECK(run_ints(vm, NULL, 0) == 7);
  CHECK(call3("ek.vm.limit", vm, 1, 0, 3) == 0);
  expect_stopped(vm, "run: its limit of 1 steps is reached, in 'main'");
  CHECK(call3("ek.vm.limit", vm, 0, 0, 3) == 0);
  CHECK(run_ints(vm, NULL, 0) == 7);
  CHECK_ERROR(call3("ek.vm.limit", vm, -1, 0, 3), "ValueError",
              "ek.vm.limit: numbers of steps and nanoseconds >= 0 expected");
  ek_object_release(vm);
}

static void an_executable_limits_its_machines(void) {
  program loop = {.functions = {forever}};
  ek_object *executable, *vm;
  CHECK(load_program(&loop, &executable) == 0);
  CHECK(call3("ek.executable.limit", executable, 20, 0, 3) == 0);
  CHECK(ek_vm_new(executable, &vm) == 0);
  expect_stopped(vm, "run: its limit of 20 steps is reached, in 'main'");
  CHECK(call3("ek.vm.limit", vm, 5, 0, 3) == 0);
  expect_stopped(vm, "run: its limit of 5 steps is reached, in 'main'");
  ek_object_release(vm);
  ek_object_release(executable);
}

static void a_profile_is_limited_too(void) {
  program loop = {.functions = {forever}};
  ek_object *vm = machine_of(&loop);
  ek_value result = ek_value_none();
  CHECK(call3("ek.vm.limit", vm, 10, 0, 3) == 0);
  CHECK_ERROR(ek_vm_profile((ek_vm *)(void *)vm, 0, 100, NULL, 0, &result), "RunLimitError",
              "run: its limit of 10 steps is reached, in 'main'");
  ek_object_release(vm);
}

/* Threads -------------------------------------------------------------------------------------- */

static uint32_t chunks, inside, most_inside;

static int count_chunk(void *context, int64_t begin, int64_t end) {
  (void)context, (void)begin, (void)end;
  __atomic_fetch_add(&chunks, 1, __ATOMIC_RELAXED);
  uint32_t here = __atomic_add_fetch(&inside, 1, __ATOMIC_RELAXED);
  uint32_t most = __atomic_load_n(&most_inside, __ATOMIC_RELAXED);
  while (here > most && !__atomic_compare_exchange_n(&most_inside, &most, here, false,
                                                     __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  struct timespec pause = {0, 2000000};
  nanosleep(&pause, NULL);
  __atomic_fetch_sub(&inside, 1, __ATOMIC_RELAXED);
  return 0;
}

/* A function of a program: how many parts a loop of its is done in. */
static int run_loop(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self, (void)args, (void)nargs;
  chunks = 0;
  int status = ek_parallel_for(count_chunk, NULL, 1000, 1);
  *ret = ek_value_int(chunks);
  return status;
}

static const program looping = {
    .functions = {{"main", 0, 1, WORDS(InvokePackedValue, 0, 0, 0, Ret, 0)}},
    .primitives = {"test.loop"}};

static ek_object *executable_on(int64_t threads) {
  ek_object *executable;
  CHECK(load_program(&looping, &executable) == 0);
  if (threads != 0) CHECK(call3("ek.executable.num_threads", executable, threads, 0, 2) == 0);
  return executable;
}

/* Each executable has its own number, fewer or more than the process has. */
static void loops_have_the_threads_that_were_asked_for(void) {
  static const int64_t asked[] = {1, 2, 3, 5, 0};
  CHECK(ek_num_threads(2) == 2);
  ek_object *made[5], *vms[5];
  for (int i = 0; i < 5; i++) {
    made[i] = executable_on(asked[i]);
    CHECK(ek_vm_new(made[i], &vms[i]) == 0);
  }
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < 5; i++) {
      most_inside = 0;
      int64_t expected = asked[i] == 0 ? 2 : asked[i];
      CHECK(run_ints(vms[i], NULL, 0) == expected);
      CHECK(most_inside <= expected);
    }
  }
  CHECK(ek_num_threads(0) == 2);
  for (int i = 0; i < 5; i++) {
    ek_object_release(vms[i]);
    ek_object_release(made[i]);
  }
}

static void what_is_no_number_of_threads_is_refused(void) {
  ek_object *executable = executable_on(0);
  CHECK_ERROR(call3("ek.executable.num_threads", executable, -1, 0, 2), "ValueError",
              "num_threads: a number from 1 to 256 expected, got -1");
  CHECK_ERROR(call3("ek.executable.num_threads", executable, 257, 0, 2), "ValueError",
              "num_threads: a number from 1 to 256 expected, got 257");
  ek_object_release(executable);
}

int main(void) {
  ek_object *loop;
  CHECK(ek_function_new(NULL, run_loop, NULL, &loop) == 0);
  CHECK(ek_registry_set("test.loop", loop, 1) == 0);
  ek_release(loop);
  a_run_stops_after_its_steps();
  a_run_stops_in_time();
  a_run_asks_whether_to_go_on();
  the_last_step_is_counted();
  an_executable_limits_its_machines();
  a_profile_is_limited_too();
  loops_have_the_threads_that_were_asked_for();
  what_is_no_number_of_threads_is_refused();
  return 0;
}
