/* Native code of functions: entered by calls, resumed behind them, counted, and in the place of
** bytecode only where it is attached. What compilers write stands here as C. */
#include "ek_vm.h"
#include "program.h"

enum {
#define EK_OPCODE(name, text, format, operands, properties, meaning) name = EK_OP_##name,
#include "vm_opcodes.def"
#undef EK_OPCODE
  NATIVE_WORDS = 2,
  INVOKE_WORDS = 5
};

/* pair(x): (x, x); first(x): the first field of pair(x). */
static const program pairs = {
    .functions = {{"first", 1, 3, WORDS(Invoke, 1, 1, 1, 0, GetField, 2, 1, 0, Ret, 2)},
                  {"pair", 1, 2, WORDS(AllocADT, 1, 0, 2, 0, 0, Ret, 1)}}};

static int entered[2];       /* how often native code of 'first' was gone into, by point */

typedef const int32_t *(*native_code)(ek_vm *vm, ek_value *R, const ek_native *native,
                                      int32_t point);

/* What the compiler makes of 'first'. */
static const int32_t *first(ek_vm *vm, ek_value *R, const ek_native *native, int32_t point) {
  entered[point]++;
  if (point == 0) return native->points + NATIVE_WORDS;
  if (ek_op_GetField(vm, R, native->code + INVOKE_WORDS) != 0) return NULL;
  return native->points + NATIVE_WORDS + INVOKE_WORDS + NATIVE_WORDS;
}

static const int32_t *failing(ek_vm *vm, ek_value *R, const ek_native *native, int32_t point) {
  (void)vm, (void)R, (void)native, (void)point;
  ek_error("RunError", "as the test wants");
  return NULL;
}

/* A module that exports a function as native code of 'first'. */
static int image_get(void *self, ek_object *module, const char *name, ek_object **out) {
  ek_packed code;
  (void)module;
  if (strcmp(name, EK_NATIVE_PREFIX "first") != 0) return 0;
  memcpy(&code, self, sizeof code);
  return ek_function_bind(code, NULL, out);
}

static const ek_module_kind image_kind = {"test", image_get, NULL, NULL, NULL, NULL};

static int call_global(const char *name, const ek_value *args, int32_t nargs) {
  ek_object *called = ek_registry_get(name);
  ek_value ret = ek_value_none();
  CHECK(called != NULL);
  int code = ek_function_call(called, args, nargs, &ret);
  ek_object_release(called);
  return code;
}

static int attach(ek_object *executable, native_code *code) {
  ek_object *image = NULL;
  if (ek_module_new(&image_kind, code, &image) != 0) return -1;
  ek_value args[] = {ek_value_object(executable), ek_value_object(image)};
  int status = call_global("ek.executable.attach", args, 2);
  ek_object_release(image);
  return status;
}

static int run_first(ek_object *executable, int64_t number) {
  ek_object *vm = NULL;
  ek_value arg = ek_value_int(number), result = ek_value_none();
  if (ek_vm_new(executable, &vm) != 0) return -1;
  int status = ek_vm_invoke(vm, 0, &arg, 1, &result);
  CHECK(status != 0 || result.v.i64 == number);
  ek_object_release(vm);
  return status;
}

static void native_code_and_bytecode_call_each_other(void) {
  static native_code code = first;
  ek_object *executable = NULL;
  CHECK(load_program(&pairs, &executable) == 0);
  CHECK(run_first(executable, 3) == 0 && entered[0] == 0);
  CHECK(attach(executable, &code) == 0);
  CHECK(run_first(executable, 4) == 0 && entered[0] == 1 && entered[1] == 1);
  CHECK(attach(executable, &code) == 0); /* what has some keeps it */
  CHECK(run_first(executable, 5) == 0 && entered[0] == 2 && entered[1] == 2);
  ek_object_release(executable);
}

static void an_error_of_native_code_ends_the_run(void) {
  static native_code code = failing;
  ek_object *executable = NULL;
  CHECK(load_program(&pairs, &executable) == 0 && attach(executable, &code) == 0);
  for (int i = 0; i < 3; i++) {
    CHECK_ERROR(run_first(executable, 1), "RunError", "as the test wants");
  }
  ek_object_release(executable);
}

typedef struct watcher {
  ek_object *executable;
  native_code code;
  int calls;
} watcher;

static int make_native(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  watcher *of = self;
  ek_bytes name;
  (void)ret;
  CHECK(nargs == 1 && ek_string_borrow(&args[0], &name));
  of->calls++;
  return same_text(name, "first") ? attach(of->executable, &of->code) : 0;
}

static int watch(ek_object *executable, int64_t calls, ek_object *hot) {
  ek_value args[] = {ek_value_object(executable), ek_value_int(calls), ek_value_object(hot)};
  return call_global("ek.executable.watch", args, 3);
}

static void hot_functions_are_told_once(void) {
  watcher self = {.code = first};
  ek_object *hot = NULL;
  CHECK(load_program(&pairs, &self.executable) == 0);
  CHECK(ek_function_new(&self, make_native, NULL, &hot) == 0);
  CHECK_ERROR(watch(self.executable, 0, hot), "ValueError",
              "ek.executable.watch: a number of calls >= 1 expected");
  CHECK(watch(self.executable, 3, hot) == 0);
  CHECK_ERROR(watch(self.executable, 3, hot), "RuntimeError",
              "watch executable: it is watched already");
  int before = entered[0];
  for (int i = 0; i < 10; i++) CHECK(run_first(self.executable, i) == 0);
  CHECK(self.calls == 2 && entered[0] == before + 7);
  ek_object_release(hot);
  ek_object_release(self.executable);
}

#ifdef EK_HARD_TEST
static int load_attach_run(const bytes *file) {
  static native_code code = first;
  ek_object *executable = NULL;
  int status = ek_executable_from_bytes(file->data, file->size, 1, &executable);
  if (status == 0) status = attach(executable, &code);
  if (status == 0) status = run_first(executable, 7);
  ek_object_release(executable);
  return status;
}

static void each_allocation_may_fail(void) {
  bytes file = program_file(&pairs);
  CHECK(load_attach_run(&file) == 0);
  for (int64_t n = 1;; n++) {
    int64_t before = ek_hard_live();
    ek_hard_fail_at(n);
    int status = load_attach_run(&file);
    ek_hard_fail_at(0);
    drop_error();
    CHECK(ek_hard_live() == before);
    if (status == 0) break;
  }
  free(file.data);
}
#else
static void each_allocation_may_fail(void) {}
#endif

int main(void) {
  native_code_and_bytecode_call_each_other();
  an_error_of_native_code_ends_the_run();
  hot_functions_are_told_once();
  each_allocation_may_fail();
  return 0;
}
