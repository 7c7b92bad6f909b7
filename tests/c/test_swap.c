/* "test_swap LIBRARY CALLS": kernels that are replaced while four threads run them: every call takes the old one or the new one,
** nothing that a call is in goes away, and an executable that is not linked is given them before. */
#include "program.h"

#include "ek_vm.h"

enum {
#define EK_OPCODE(name, text, format, operands, properties, meaning) name = EK_OP_##name,
#include "vm_opcodes.def"
#undef EK_OPCODE
  THREADS = 4
};

static int64_t calls_per_thread;
static int32_t calling;        /* atomic: threads that call */

/* main(x): twice("kernel", x). */
static const program calls_a_kernel = {
    .functions = {{"main", 1, 2, WORDS(InvokePackedValue, 1, 0, 1, 0, Ret, 1)}},
    .primitives = {"kernel"}};

static int32_t alive;          /* atomic: contexts of functions */

/* Gives its argument plus what its context says. */
static int plus(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  CHECK(nargs == 1 && *(int64_t *)self != 0);
  *ret = ek_value_int(args[0].v.i64 + *(int64_t *)self);
  return 0;
}

static void drop(void *self) {
  *(int64_t *)self = 0;
  __atomic_fetch_sub(&alive, 1, __ATOMIC_RELAXED);
  free(self);
}

static ek_object *adds(int64_t number) {
  int64_t *self = malloc(sizeof *self);
  ek_object *made = NULL;
  CHECK(self != NULL);
  *self = number;
  __atomic_fetch_add(&alive, 1, __ATOMIC_RELAXED);
  CHECK(ek_function_new(self, plus, drop, &made) == 0);
  return made;
}

static int swap(ek_object *executable, const char *name, int64_t number) {
  ek_object *by = adds(number), *called = ek_registry_get("ek.executable.swap");
  ek_value args[] = {ek_value_object(executable), {EK_RAW_STR, 0, {0}}, ek_value_object(by)};
  ek_value ret = ek_value_none();
  args[1].v.ptr = (void *)(uintptr_t)name;
  int status = ek_function_call(called, args, 3, &ret);
  ek_object_release(called);
  ek_object_release(by);
  return status;
}

/* Until it has met both kernels, too. */
static void call_often(void *executable) {
  ek_object *vm = NULL;
  int64_t met[2] = {0, 0};
  CHECK(ek_vm_new(executable, &vm) == 0);
  for (int64_t i = 0; i < calls_per_thread || met[0] == 0 || met[1] == 0; i++) {
    ek_value arg = ek_value_int(i), result = ek_value_none();
    CHECK(ek_vm_invoke(vm, 0, &arg, 1, &result) == 0);
    CHECK(result.v.i64 == i + 1 || result.v.i64 == i + 2);
    met[result.v.i64 - i - 1]++;
  }
  ek_object_release(vm);
  __atomic_fetch_sub(&calling, 1, __ATOMIC_RELAXED);
}

static void calls_and_swaps_at_once(void) {
  ek_object *executable = NULL;
  ek_thread threads[THREADS];
  CHECK(load_program(&calls_a_kernel, &executable) == 0);
  CHECK(swap(executable, "kernel", 1) == 0);
  calling = THREADS;
  for (int i = 0; i < THREADS; i++)
    CHECK(ek_thread_start(&threads[i], call_often, executable, -1) == 0);
  for (int i = 1; __atomic_load_n(&calling, __ATOMIC_RELAXED) != 0; i++) {
    CHECK(swap(executable, "kernel", 1 + i % 2) == 0);
  }
  for (int i = 0; i < THREADS; i++) ek_thread_join(threads[i]);
  CHECK(alive > 1);            /* a run might be in them */
  ek_object_release(executable);
  CHECK(alive == 0);
}

static void what_is_given_before_linking_may_change(void) {
  ek_object *executable = NULL, *vm = NULL;
  ek_value arg = ek_value_int(5), result = ek_value_none();
  CHECK(load_program(&calls_a_kernel, &executable) == 0);
  CHECK(ek_vm_new(executable, &vm) != 0);      /* nobody has the kernel */
  drop_error();
  CHECK(swap(executable, "kernel", 1) == 0);
  CHECK(swap(executable, "kernel", 7) == 0);
  CHECK(ek_vm_new(executable, &vm) == 0);
  CHECK(ek_vm_invoke(vm, 0, &arg, 1, &result) == 0 && result.v.i64 == 12);
  CHECK(swap(executable, "kernel", 8) == 0);
  CHECK(ek_vm_invoke(vm, 0, &arg, 1, &result) == 0 && result.v.i64 == 13);
  CHECK_ERROR(swap(executable, "kernels", 1), "ValueError",
              "swap kernel: no primitive is named 'kernels'");
  ek_object_release(vm);
  ek_object_release(executable);
  CHECK(alive == 0);
}

int main(int argc, char **argv) {
  calls_per_thread = (argc > 2 ? atoll(argv[2]) : 2000) / THREADS;
  what_is_given_before_linking_may_change();
  calls_and_swaps_at_once();
  return 0;
}
