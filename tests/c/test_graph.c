/* The graph executor: inputs set, a run, outputs asked for. */
#include "program.h"

enum {
#define EK_OPCODE(name, text, format, operands, properties, meaning) name = EK_OP_##name,
#include "vm_opcodes.def"
#undef EK_OPCODE
};

/* main(x, y): (x, (y, x)), nested tuples laid out as three outputs. */
static const program straight = {
    .functions = {{"main", 2, 4, WORDS(AllocADT, 2, 0, 2, 1, 0, AllocADT, 3, 0, 2, 0, 2, Ret, 3)}}};

static int call(ek_object *module, const char *name, const ek_value *args, int32_t nargs,
                ek_value *ret) {
  ek_object *found = NULL;
  if (ek_module_get(module, name, &found) != 0) return -1;
  CHECK(found != NULL);
  *ret = ek_value_none();
  int status = ek_function_call(found, args, nargs, ret);
  ek_object_release(found);
  return status;
}

static int create(const program *p, ek_object **module) {
  ek_object *executable = NULL, *make = ek_registry_get("ek.graph_executor.create");
  ek_value ret = ek_value_none();
  CHECK(make != NULL);
  int status = load_program(p, &executable);
  if (status == 0) {
    ek_value args[] = {ek_value_object(executable), ek_value_none()};
    status = ek_function_call(make, args, 2, &ret);
  }
  if (status == 0) *module = ret.v.obj;
  ek_object_release(executable);
  ek_object_release(make);
  return status;
}

static int set_number(ek_object *module, ek_value key, float number, const char *how) {
  int64_t shape = 1;
  ek_object *tensor = NULL;
  ek_value ret;
  if (ek_tensor_new(&shape, 1, float32, cpu, &tensor) != 0) return -1;
  *(float *)((ek_tensor *)(void *)tensor)->dl.data = number;
  ek_value args[] = {key, ek_value_object(tensor)};
  int status = call(module, how, args, 2, &ret);
  ek_object_release(tensor);
  return status;
}

static float number_at(ek_object *module, int64_t index) {
  ek_value arg = ek_value_int(index), ret;
  CHECK(call(module, "get_output", &arg, 1, &ret) == 0 && ret.type_index == EK_TENSOR);
  float number = *(float *)ek_dltensor_data(ek_value_tensor(&ret));
  ek_value_release(&ret);
  return number;
}

static int64_t int_of(ek_object *module, const char *name) {
  ek_value ret;
  CHECK(call(module, name, NULL, 0, &ret) == 0 && ret.type_index == EK_INT);
  return ret.v.i64;
}

static void outputs_are_those_of_the_last_run(void) {
  ek_object *module = NULL;
  ek_value ret;
  CHECK(create(&straight, &module) == 0);
  CHECK(int_of(module, "get_num_inputs") == 2);
  CHECK_ERROR(call(module, "get_num_outputs", NULL, 0, &ret), "RunError",
              "get_num_outputs: nothing has run yet");
  CHECK_ERROR(call(module, "run", NULL, 0, &ret), "InputError", "run: input 'x' is not set");
  for (int round = 0; round < 3; round++) {
    CHECK(set_number(module, ek_value_int(0), 1.5f, "set_input") == 0);
    CHECK(set_number(module, ek_value_int(1), (float)round, "set_input_zero_copy") == 0);
    CHECK(call(module, "run", NULL, 0, &ret) == 0);
    CHECK(int_of(module, "get_num_outputs") == 3);
    CHECK(number_at(module, 0) == 1.5f && number_at(module, 1) == (float)round);
    CHECK(number_at(module, 2) == 1.5f);
  }
  ek_object_release(module);
}

static void a_kept_result_is_not_written_by_the_next_input(void) {
  ek_object *module = NULL;
  ek_value index = ek_value_int(0), kept, ret;
  CHECK(create(&straight, &module) == 0);
  CHECK(set_number(module, ek_value_int(0), 1, "set_input") == 0);
  CHECK(set_number(module, ek_value_int(1), 2, "set_input") == 0);
  CHECK(call(module, "run", NULL, 0, &ret) == 0);
  CHECK(call(module, "get_output", &index, 1, &kept) == 0);
  CHECK(set_number(module, ek_value_int(0), 9, "set_input") == 0);
  CHECK(*(float *)ek_dltensor_data(ek_value_tensor(&kept)) == 1);
  ek_value_release(&kept);
  ek_object_release(module);
}

static void wrong_arguments_are_named(void) {
  ek_object *module = NULL;
  ek_value ret, text;
  CHECK(create(&straight, &module) == 0);
  CHECK(ek_string_new(EK_STR, "other", 5, &text) == 0);
  CHECK_ERROR(set_number(module, text, 1, "set_input"), "InputError",
              "set_input: no input is named 'other'");
  CHECK_ERROR(set_number(module, ek_value_int(2), 1, "set_input"), "IndexError",
              "set_input: an input below 2 expected, got 2");
  CHECK_ERROR(set_number(module, ek_value_none(), 1, "set_input"), "TypeError",
              "set_input: the name or number of an input expected, got None");
  CHECK_ERROR(call(module, "run", &text, 1, &ret), "TypeError", "run: 0 arguments expected, got 1");
  ek_value_release(&text);
  ek_object_release(module);
}

static void branches_are_refused(void) {
  program p = {.functions = {{"main", 1, 1, WORDS(Switch, 0, 2, 1, 2, Ret, 0, Ret, 0)}}};
  ek_object *module = NULL;
  CHECK_ERROR(create(&p, &module), "CompileError",
              "graph executor: 'main' is not a straight line: it has the instruction Switch; the "
              "virtual machine runs it");
}

#ifdef EK_HARD_TEST
static int create_and_run(void) {
  ek_object *module = NULL;
  ek_value ret;
  int status = create(&straight, &module);
  if (status == 0) status = set_number(module, ek_value_int(0), 1, "set_input");
  if (status == 0) status = set_number(module, ek_value_int(1), 1, "set_input");
  if (status == 0) status = call(module, "run", NULL, 0, &ret);
  ek_object_release(module);
  return status;
}

static void each_allocation_may_fail(void) {
  CHECK(create_and_run() == 0);
  for (int64_t n = 1;; n++) {
    int64_t before = ek_hard_live();
    ek_hard_fail_at(n);
    int status = create_and_run();
    ek_hard_fail_at(0);
    drop_error();
    CHECK(ek_hard_live() == before);
    if (status == 0) break;
  }
}
#else
static void each_allocation_may_fail(void) {}
#endif

int main(void) {
  outputs_are_those_of_the_last_run();
  a_kept_result_is_not_written_by_the_next_input();
  wrong_arguments_are_named();
  branches_are_refused();
  each_allocation_may_fail();
  return 0;
}
