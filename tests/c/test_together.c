/* What a process may do at once with one runtime: programs are loaded, run by machines that come and
** go, and dropped; the pool and what a program may have of it get other sizes; functions are
** registered and removed while they are called; and the process forks. */
#include <sys/wait.h>
#include <unistd.h>

#include "program.h"

#include "ek_vm.h"

enum {
#define EK_OPCODE(name, text, format, operands, properties, meaning) name = EK_OP_##name,
#include "vm_opcodes.def"
#undef EK_OPCODE
  ROUNDS = 200,
  N = 64
};

/* main(x): kernel(x). */
static const program calls_a_kernel = {
    .functions = {{"main", 1, 2, WORDS(InvokePackedValue, 1, 0, 1, 0, Ret, 1)}},
    .primitives = {"kernel"}};

static int count(void *context, int64_t begin, int64_t end) {
  __atomic_fetch_add((int64_t *)context, end - begin, __ATOMIC_RELAXED);
  return 0;
}

/* Gives its argument plus N, which all threads of the pool count together. */
static int kernel(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  int64_t counted = 0;
  (void)self;
  CHECK(nargs == 1 && ek_parallel_for(count, &counted, N, 1) == 0);
  *ret = ek_value_int(args[0].v.i64 + counted);
  return 0;
}

static int call(const char *name, const ek_value *args, int32_t n, ek_value *ret) {
  ek_object *called = ek_registry_get(name);
  if (called == NULL) return 1;
  int status = ek_function_call(called, args, n, ret);
  ek_object_release(called);
  return status;
}

static ek_object *loaded(void) {
  ek_object *executable = NULL, *by = NULL;
  ek_value ret = ek_value_none(), args[3];
  CHECK(load_program(&calls_a_kernel, &executable) == 0);
  CHECK(ek_function_new(NULL, kernel, NULL, &by) == 0);
  args[0] = ek_value_object(executable);
  args[1] = (ek_value){EK_RAW_STR, 0, {0}};
  args[1].v.ptr = (void *)(uintptr_t) "kernel";
  args[2] = ek_value_object(by);
  CHECK(call("ek.executable.swap", args, 3, &ret) == 0);
  ek_object_release(by);
  return executable;
}

static void run_once(ek_object *executable, int64_t x) {
  ek_value arg = ek_value_int(x), result = ek_value_none();
  ek_object *vm = NULL;
  CHECK(ek_vm_new(executable, &vm) == 0);
  CHECK(ek_vm_invoke(vm, 0, &arg, 1, &result) == 0 && result.v.i64 == x + N);
  ek_object_release(vm);
}

static void run_often(void *executable) {
  for (int64_t i = 0; i < ROUNDS; i++) run_once(executable, i);
}

static void load_and_drop(void *context) {
  (void)context;
  for (int64_t i = 0; i < ROUNDS; i++) {
    ek_object *executable = loaded();
    run_once(executable, i);
    ek_object_release(executable);
  }
}

/* The number of threads is fixed while some loop runs. */
static void change_sizes(void *executable) {
  ek_value ret = ek_value_none(), args[2] = {ek_value_object(executable)};
  for (int i = 0; i < ROUNDS; i++) {
    if (ek_num_threads(1 + i % 4) < 0) drop_error();
    args[1] = ek_value_int(1 + i % 3);
    CHECK(call("ek.executable.num_threads", args, 2, &ret) == 0);
    CHECK(call("ek.runtime.memory_limit", NULL, 0, &ret) == 0);
  }
}

static void register_and_call(void *context) {
  ek_object *called = NULL, *names = NULL;
  (void)context;
  CHECK(ek_function_new(NULL, kernel, NULL, &called) == 0);
  for (int i = 0; i < ROUNDS; i++) {
    ek_value arg = ek_value_int(i), ret = ek_value_none();
    CHECK(ek_registry_set("test.together", called, 1) == 0);
    int status = call("test.together", &arg, 1, &ret); /* 1: the other thread has removed it */
    CHECK(status == 1 || (status == 0 && ret.v.i64 == i + N));
    ek_registry_remove("test.together");
    if (i % 16 == 0) {
      CHECK(ek_registry_names(&names) == 0);
      ek_object_release(names);
    }
  }
  ek_object_release(called);
}

/* A sanitizer of threads lets none be made in the child of a process that has some; that of addresses
** (GCC 12) leaves the locks of its allocator closed there, where another thread was inside. */
static void fork_often(void *executable) {
#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
  run_often(executable);
#else
  for (int i = 0; i < ROUNDS / 10; i++) {
    int status = -1;
    pid_t child = fork();
    if (child == 0) {
      alarm(60);
      run_once(executable, i);
      ek_object *own = loaded();
      run_once(own, i);
      ek_object_release(own);
      _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
  }
#endif
}

static void all_at_once(void) {
  void (*works[])(void *) = {run_often,         run_often,         load_and_drop, change_sizes,
                             register_and_call, register_and_call, fork_often};
  enum { WORKS = sizeof works / sizeof *works };
  ek_thread threads[WORKS];
  ek_object *executable = loaded();
  for (int i = 0; i < WORKS; i++)
    CHECK(ek_thread_start(&threads[i], works[i], executable, -1) == 0);
  for (int i = 0; i < WORKS; i++) ek_thread_join(threads[i]);
  run_once(executable, 1);
  ek_object_release(executable);
}

int main(void) {
  all_at_once();
  return 0;
}
