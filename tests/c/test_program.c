/* Executables as modules: functions by name, for several callers at once. */
#include "program.h"

enum {
#define EK_OPCODE(name, text, format, operands, properties, meaning) name = EK_OP_##name,
#include "vm_opcodes.def"
#undef EK_OPCODE
};

static ek_object *module_of(const program *p) {
  ek_object *executable = NULL, *make = ek_registry_get("ek.executable.module");
  ek_value arg, ret = ek_value_none();
  CHECK(load_program(p, &executable) == 0 && make != NULL);
  arg = ek_value_object(executable);
  CHECK(ek_function_call(make, &arg, 1, &ret) == 0 && ret.type_index == EK_MODULE);
  CHECK(ek_function_call(make, NULL, 0, &ret) == -1);
  drop_error();
  ek_object_release(executable);
  ek_object_release(make);
  return ret.v.obj;
}

/* pair(x): (x, x); first(x): the first field of pair(x); fails: never returns. */
static const program pairs = {
    .functions = {{"pair", 1, 2, WORDS(AllocADT, 1, 0, 2, 0, 0, Ret, 1)},
                  {"first", 1, 3, WORDS(Invoke, 1, 0, 1, 0, GetField, 2, 1, 0, Ret, 2)},
                  {"fails", 0, 0, WORDS(Fatal)}}};

static ek_object *function_of(ek_object *module, const char *name) {
  ek_object *named = NULL;
  CHECK(ek_module_get(module, name, &named) == 0 && named != NULL);
  return named;
}

static void functions_are_found_by_name(void) {
  ek_object *module = module_of(&pairs), *names = NULL, *missing = NULL;
  ek_bytes kind;
  ek_value value = ek_value_none();
  CHECK(ek_module_part(module, EK_MODULE_KIND, &value) == 0);
  CHECK(ek_string_borrow(&value, &kind) && same_text(kind, "executable"));
  ek_value_release(&value);
  CHECK(ek_module_names(module, &names) == 0 && ((ek_array *)(void *)names)->size == 3);
  CHECK(ek_module_get(module, "firs", &missing) == 0 && missing == NULL);
  ek_object_release(names);
  ek_object_release(module);
}

static void a_function_outlives_its_module(void) {
  ek_object *module = module_of(&pairs), *named = function_of(module, "first");
  ek_value arg = ek_value_int(7), ret = ek_value_none();
  ek_object_release(module);
  CHECK(ek_function_call(named, &arg, 1, &ret) == 0 && ret.v.i64 == 7);
  CHECK_ERROR(ek_function_call(named, NULL, 0, &ret), "InputError",
              "call 'first': 1 arguments expected, got 0");
  ek_object_release(named);
}

/* Other languages have arrays for tuples. */
static void arrays_are_taken_for_tuples(void) {
  program p = {
      .functions = {{"main", 1, 3, WORDS(GetField, 1, 0, 1, GetField, 2, 1, 0, Ret, 2)}}};
  ek_object *module = module_of(&p), *named = function_of(module, "main");
  ek_value inner[1] = {ek_value_int(5)}, outer[2] = {ek_value_int(4)}, arg, ret = ek_value_none();
  ek_object *first = NULL, *second = NULL;
  CHECK(ek_array_new(inner, 1, &first) == 0);
  outer[1] = ek_value_object(first);
  CHECK(ek_array_new(outer, 2, &second) == 0);
  arg = ek_value_object(second);
  CHECK(ek_function_call(named, &arg, 1, &ret) == 0 && ret.v.i64 == 5);
  for (int depth = 0; depth < 100; depth++) {
    ek_object *deeper = NULL;
    arg = ek_value_object(second);
    CHECK(ek_array_new(&arg, 1, &deeper) == 0);
    ek_object_release(second);
    second = deeper;
  }
  arg = ek_value_object(second);
  CHECK_ERROR(ek_function_call(named, &arg, 1, &ret), "InputError",
              "input 'x': expected arrays at most 64 deep, got deeper ones");
  ek_object_release(first);
  ek_object_release(second);
  ek_object_release(named);
  ek_object_release(module);
}

typedef struct caller {
  ek_object *called;
  int64_t number;
  ek_thread thread;
} caller;

static void call_often(void *context) {
  caller *self = context;
  for (int64_t i = 0; i < 3000; i++) {
    ek_value arg = ek_value_int(self->number + i), ret = ek_value_none();
    CHECK(ek_function_call(self->called, &arg, 1, &ret) == 0);
    CHECK(ret.v.i64 == self->number + i);
  }
}

static void several_threads_call_one_function(void) {
  ek_object *module = module_of(&pairs), *named = function_of(module, "first");
  caller callers[4];
  for (int i = 0; i < 4; i++) {
    callers[i] = (caller){named, 1000000 * i, 0};
    CHECK(ek_thread_start(&callers[i].thread, call_often, &callers[i], -1) == 0);
  }
  for (int i = 0; i < 4; i++) ek_thread_join(callers[i].thread);
  ek_object_release(named);
  ek_object_release(module);
}

int main(void) {
  functions_are_found_by_name();
  a_function_outlives_its_module();
  arrays_are_taken_for_tuples();
  several_threads_call_one_function();
  return 0;
}
