/* Two CPU devices: constants, arguments and results on them, copies, refusals, damaged tables. */
#include "ek_vm.h"
#include "program.h"

enum {
#define EK_OPCODE(name, text, format, operands, properties, meaning) name = EK_OP_##name,
#include "vm_opcodes.def"
#undef EK_OPCODE
};

static const ek_device host = {EK_CPU, 0}, other = {EK_CPU, 1};
static const int64_t numbers[] = {40};

/* main(x): x + 40, all on cpu(1). */
#define ADD                                                                               \
  .functions = {{"main", 1, 4,                                                            \
                 WORDS(LoadConsti, 1, 8, 0, AllocStorage, 1, 1, 0, 64, 1, /**/            \
                       AllocTensor, 2, 1, 0, 0, EK_DTYPE_INT, 64, 1, 0, LoadConst, 3, 0,  \
                       InvokePacked, 0, 3, 1, 0, 3, 2, Ret, 2)}},                         \
  .constants = {{numbers, 1}}, .primitives = {"ek.test.add"}

/* main(x): a copy of x on cpu(1). */
#define COPY .functions = {{"main", 1, 2, WORDS(DeviceCopy, 1, 0, 1, 0, Ret, 1)}}

static ek_value number_on(ek_device device, int64_t number) {
  ek_object *tensor;
  CHECK(ek_tensor_new(NULL, 0, (ek_dtype){EK_DTYPE_INT, 64, 1}, device, &tensor) == 0);
  memcpy(((ek_tensor *)(void *)tensor)->dl.data, &number, sizeof number);
  return ek_value_object(tensor);
}

static void work_on_another_device(void) {
  program p = {ADD, .devices = WORDS(2, 1, 0, 1, 1, 1, 2, 1)};
  ek_object *vm = machine_of(&p);
  ek_value x = number_on(host, 2), result = ek_value_none();
  for (int i = 0; i < 2; i++) {
    CHECK(ek_vm_invoke(vm, 0, &x, 1, &result) == 0);
    const ek_dltensor *sum = ek_value_tensor(&result);
    CHECK(ek_device_same(sum->device, other) && *(int64_t *)sum->data == 42);
    ek_value_release(&result);
  }
  ek_value_release(&x);
  ek_object_release(vm);
}

static void refuse_what_lies_elsewhere(void) {
  program p = {ADD, .devices = WORDS(2, 1, 0, 1, 1, 1, 2, 0)};
  ek_object *vm = machine_of(&p);
  ek_value x = number_on(host, 2), result = ek_value_none();
  CHECK_ERROR(ek_vm_invoke(vm, 0, &x, 1, &result), "RunError",
              "InvokePacked: argument 0 of 'ek.test.add': a tensor on cpu(1) expected, got one on "
              "cpu(0)");
  ek_value_release(&x);
  ek_object_release(vm);
}

/* A list of n tensors. */
static ek_value list_of(ek_device device, int32_t n) {
  ek_value list = ek_value_none();
  for (int32_t i = 0; i <= n; i++) {
    ek_value fields[2] = {i == 0 ? ek_value_int(7) : number_on(device, i), list};
    ek_object *adt;
    CHECK(ek_container_new(EK_ADT, i, fields, i == 0 ? 1 : 2, &adt) == 0);
    ek_value_release(&fields[0]);
    ek_value_release(&fields[1]);
    list = ek_value_object(adt);
  }
  return list;
}

static void copies_go_through_data(void) {
  enum { LENGTH = 20000 };
  program p = {COPY, .devices = WORDS(2, 1, 0, 1, 1, 0)};
  ek_object *vm = machine_of(&p);
  ek_value list = list_of(host, LENGTH), result = ek_value_none();
  CHECK(ek_vm_invoke(vm, 0, &list, 1, &result) == 0);
  const ek_adt *at = (const ek_adt *)(const void *)result.v.obj;
  for (int32_t i = LENGTH; i > 0; i--) {
    const ek_dltensor *head = ek_value_tensor(&at->fields[0]);
    CHECK(at->tag == i && ek_device_same(head->device, other) && *(int64_t *)head->data == i);
    at = (const ek_adt *)(const void *)at->fields[1].v.obj;
  }
  CHECK(at->tag == 0 && at->size == 1 && at->fields[0].v.i64 == 7);
  ek_value_release(&result);
  ek_value_release(&list);
  list = list_of(other, 3); /* comes in as one on the host */
  CHECK(ek_vm_invoke(vm, 0, &list, 1, &result) == 0);
  at = (const ek_adt *)(const void *)result.v.obj;
  CHECK(at->tag == 3 && ek_device_same(ek_value_tensor(&at->fields[0])->device, other));
  ek_value_release(&result);
  ek_value_release(&list);
  ek_object_release(vm);
}

static void refuse_damaged_tables(void) {
  const int32_t good[] = {2, 1, 0, 1, 1, 1, 2, 1}, values[] = {-1, 0, 1, 2, 3, 1 << 30};
  for (size_t at = 0; at < sizeof good / 4; at++) {
    for (size_t i = 0; i < sizeof values / 4; i++) {
      int32_t words[sizeof good / 4];
      memcpy(words, good, sizeof good);
      words[at] = values[i];
      program p = {ADD, .devices = words, .n_device_words = sizeof good / 4};
      ek_object *executable = NULL;
      int status = load_program(&p, &executable);
      if (status != 0) ek_object_release(ek_error_take());
      ek_object_release(executable);
      CHECK(at != 0 || (status == 0) == (values[i] == 2));
    }
  }
  for (int32_t n = 0; n < (int32_t)(sizeof good / 4); n++) {
    program p = {ADD, .devices = good, .n_device_words = n};
    ek_object *executable;
    CHECK(load_program(&p, &executable) == -1);
    ek_object_release(ek_error_take());
  }
  int32_t many[1 + 2 * 257] = {257};
  for (int32_t i = 0; i < 257; i++) many[1 + 2 * i] = EK_CPU, many[2 + 2 * i] = i;
  program crowded = {ADD, .devices = many, .n_device_words = sizeof many / 4};
  ek_object *executable;
  CHECK_ERROR(load_program(&crowded, &executable), "LoadError",
              "load executable: DEVICES: 2 to 256 devices expected, got 257");
}

#ifdef EK_HARD_TEST
static int copy_list(const program *p, const ek_value *list) {
  ek_object *executable = NULL, *vm = NULL;
  ek_value result = ek_value_none();
  int status = load_program(p, &executable);
  if (status == 0) status = ek_vm_new(executable, &vm);
  if (status == 0) status = ek_vm_invoke(vm, 0, list, 1, &result);
  ek_value_release(&result);
  ek_object_release(vm);
  ek_object_release(executable);
  return status;
}

static void survive_failing_allocations(void) {
  program copy = {COPY, .devices = WORDS(2, 1, 0, 1, 1, 0)};
  program add = {ADD, .devices = WORDS(2, 1, 0, 1, 1, 1, 2, 1)};
  ek_value list = list_of(host, 5), x = number_on(host, 2);
  for (int round = 0; round < 2; round++) {
    for (int64_t n = 1;; n++) {
      int64_t before = ek_hard_live();
      ek_hard_fail_at(n);
      int status = round == 0 ? copy_list(&copy, &list) : copy_list(&add, &x);
      ek_hard_fail_at(0);
      if (status != 0) ek_object_release(ek_error_take());
      CHECK(ek_hard_live() == before);
      if (status == 0) break;
    }
  }
  ek_value_release(&list);
  ek_value_release(&x);
}
#else
static void survive_failing_allocations(void) {}
#endif

int main(void) {
  register_test_add();
  work_on_another_device();
  refuse_what_lies_elsewhere();
  copies_go_through_data();
  refuse_damaged_tables();
  survive_failing_allocations();
  return 0;
}
