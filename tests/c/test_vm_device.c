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

/* A kind of device whose memory lies where the processor can touch none: what reads an address of it
** ends the process. */
enum { FAR_TYPE = 12 };
static const ek_device far = {FAR_TYPE, 0};
static const uintptr_t moved = (uintptr_t)1 << 62;
static int64_t n_far;

static int far_alloc(ek_device device, size_t size, size_t alignment, const char *scope, void **out) {
  (void)device, (void)alignment, (void)scope;
  void *memory = malloc(size + 1);
  if (memory == NULL) return ek_error("MemoryError", "the device is full");
  n_far++;
  *out = (void *)((uintptr_t)memory + moved);
  return 0;
}

static void *real(const void *data) { return (void *)((uintptr_t)data - moved); }

static void far_free(ek_device device, void *data, size_t size) {
  (void)device, (void)size;
  n_far--;
  free(real(data));
}

static int far_copy(const void *from, ek_device from_device, void *to, ek_device to_device,
                    size_t size, void *stream) {
  (void)stream;
  memcpy(to_device.type == FAR_TYPE ? real(to) : to, from_device.type == FAR_TYPE ? real(from) : from,
         size);
  return 0;
}

static ek_value far_number(int64_t number) {
  ek_value near = number_on(host, number);
  ek_object *tensor;
  CHECK(ek_tensor_copied(ek_value_tensor(&near), far, &tensor) == 0);
  ek_value_release(&near);
  return ek_value_object(tensor);
}

/* An ADT value of two fields, which it takes over. */
static ek_value pair(int32_t tag, ek_value first, ek_value second) {
  ek_object *adt;
  CHECK(ek_container_new(EK_ADT, tag, (ek_value[]){first, second}, 2, &adt) == 0);
  ek_value_release(&first);
  ek_value_release(&second);
  return ek_value_object(adt);
}

/* A reference to a value, which it takes over. */
static ek_value reference_to(ek_value value) {
  ek_value result = ek_value_none();
  ek_object *make = ek_registry_get("ek.reference.new");
  CHECK(make != NULL && ek_function_call(make, &value, 1, &result) == 0);
  ek_value_release(&value);
  ek_release(make);
  return result;
}

/* The number that a function gives for an argument, which it takes over, twice. */
static int64_t invoked(ek_object *vm, int32_t index, ek_value argument) {
  int64_t number = 0;
  for (int i = 0; i < 2; i++) {
    ek_value result = ek_value_none();
    CHECK(ek_vm_invoke(vm, index, &argument, 1, &result) == 0);
    const ek_dltensor *dl = ek_value_tensor(&result);
    CHECK(ek_device_same(dl->device, host));
    number = *(int64_t *)ek_dltensor_data(dl);
    ek_value_release(&result);
  }
  ek_value_release(&argument);
  return number;
}

#define ADD_40(from, to)                                                              \
  LoadConsti, 5, 8, 0, AllocStorage, 6, 5, 0, 64, 0, /**/                             \
      AllocTensor, to, 6, 0, 0, EK_DTYPE_INT, 64, 1, 0, LoadConst, 7, 0, /**/         \
      InvokePacked, 0, 3, 1, from, 7, to, Ret, to

/* Programs of the host alone, which get what a C program may give: data, references, data in
** references and references in data, and a closure of such a program. */
static void what_arguments_hold_is_copied_to_the_host(void) {
  static const ek_device_table table = {
      .name = "far", .alloc = far_alloc, .free = far_free, .copy = far_copy};
  CHECK(ek_device_register(FAR_TYPE, &table) == 0);
  program p = {.functions = {{"field", 1, 8, WORDS(GetField, 1, 0, 1, ADD_40(1, 2))},
                             {"nested", 1, 8,
                              WORDS(GetField, 1, 0, 1, GetField, 1, 1, 0, ADD_40(1, 2))},
                             {"read", 1, 8, WORDS(ReadRef, 1, 0, ADD_40(1, 2))},
                             {"read_field", 1, 8,
                              WORDS(GetField, 1, 0, 0, ReadRef, 1, 1, GetField, 1, 1, 0, /**/
                                    ADD_40(1, 2))},
                             {"captured", 1, 8, WORDS(ADD_40(0, 2))},
                             {"close", 1, 2, WORDS(AllocClosure, 1, 4, 1, 0, Ret, 1)},
                             {"call", 1, 2, WORDS(InvokeClosure, 1, 0, 0, Ret, 1)}},
               .constants = {{numbers, 1}}, .primitives = {"ek.test.add"}};
  ek_object *vm = machine_of(&p);
  CHECK(invoked(vm, 0, pair(0, number_on(host, 1), far_number(2))) == 42);
  CHECK(invoked(vm, 1, pair(0, far_number(1), pair(3, far_number(3), far_number(4)))) == 43);
  CHECK(invoked(vm, 2, reference_to(far_number(4))) == 44);
  CHECK(invoked(vm, 3, pair(0, reference_to(pair(1, far_number(5), far_number(0))), far_number(6))) ==
        45);
  ek_value x = far_number(7), closure = ek_value_none();
  CHECK(ek_vm_invoke(vm, 5, &x, 1, &closure) == 0);
  ek_value_release(&x);
  CHECK(invoked(vm, 6, closure) == 47);
  CHECK(n_far == 0);
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
  what_arguments_hold_is_copied_to_the_host();
  refuse_damaged_tables();
  survive_failing_allocations();
  return 0;
}
