/* The machine: every instruction, deep recursion, errors in the middle of a call, no allocation
** once warm. */
#include <time.h>

#include "program.h"

#include "ek_vm.h"

enum {
#define EK_OPCODE(name, text, format, operands, properties, meaning) name = EK_OP_##name,
#include "vm_opcodes.def"
#undef EK_OPCODE
};

#define INT64_SCALAR EK_DTYPE_INT, 64, 1
#define FLOAT32_SCALAR EK_DTYPE_FLOAT, 32, 1

static const int64_t shape_one[] = {1};
static const int64_t shape_2_3[] = {9, 2, 3, 6};

static void moves_and_integers(void) {
  program p = {.functions = {{"main", 1, 3,
                              WORDS(LoadConsti, 1, -2, -1, Move, 2, 1, Move, 1, 1, /**/
                                    KillRegister, 1, Ret, 2)}}};
  ek_object *vm = machine_of(&p);
  CHECK(run_ints(vm, (int64_t[]){5}, 1) == -2);
  ek_object_release(vm);
}

/* while (n != 0) { n = n + -1 } with the sum in a tensor, as compiled code has it. */
static void loops(void) {
  program p = {.functions = {{"main", 1, 6,
                              WORDS(LoadConsti, 1, 0, 0, /* 0 */
                                    LoadConsti, 2, -1, -1, /* 1 */
                                    LoadConsti, 3, 8, 0, /* 2 */
                                    If, 0, 1, 6, 1, /* 3: to 9, 4 */
                                    AllocStorage, 4, 3, 0, 64, 0, /* 4 */
                                    AllocTensor, 5, 4, 0, 0, INT64_SCALAR, 1, 1, 0, /* 5 */
                                    InvokePacked, 0, 3, 1, 0, 2, 5, /* 6 */
                                    Move, 0, 5, /* 7 */
                                    Goto, -5, /* 8: to 3 */
                                    Ret, 0)}}, /* 9 */
               .primitives = {"ek.test.add"}};
  ek_object *vm = machine_of(&p);
  ek_value argument = ek_value_int(1000), result = ek_value_none();
  CHECK(ek_vm_invoke(vm, 0, &argument, 1, &result) == 0);
  CHECK(*(int64_t *)ek_dltensor_data(ek_value_tensor(&result)) == 0);
  ek_value_release(&result);
  uint64_t before = ek_pool_get_stats().system_allocations;
  for (int i = 0; i < 100; i++) {
    CHECK(ek_vm_invoke(vm, 0, &argument, 1, &result) == 0);
    ek_value_release(&result);
  }
#ifndef EK_HARD_TEST
  CHECK(ek_pool_get_stats().system_allocations == before);
#endif
  (void)before;
  ek_object_release(vm);
}

/* count(n, acc) = n == target ? acc : cons(acc): as deep as asked, through Invoke in tail
** position. The list that comes back is freed without recursion. */
static void recursion(void) {
  program p = {.functions = {{"main", 1, 5,
                              WORDS(LoadConsti, 1, 0, 0, /* 0 */
                                    If, 0, 1, 1, 4, /* 1: to 2, 5 */
                                    AllocADT, 2, 7, 0, /* 2: nil */
                                    Goto, 1, /* 3 */
                                    Ret, 2, /* 4 */
                                    LoadConsti, 3, 8, 0, /* 5 */
                                    Invoke, 4, 1, 1, 0, /* 6: n - 1 */
                                    Invoke, 2, 0, 1, 4, /* 7 */
                                    AllocADT, 2, 3, 2, 0, 2, /* 8: cons */
                                    Ret, 2)}, /* 9 */
                             {"decrement", 1, 5,
                              WORDS(LoadConsti, 1, 8, 0, LoadConsti, 2, -1, -1, /**/
                                    AllocStorage, 3, 1, 0, 64, 0, /**/
                                    AllocTensor, 4, 3, 0, 0, INT64_SCALAR, 0, /**/
                                    InvokePacked, 0, 3, 1, 0, 2, 4, Ret, 4)}},
               .primitives = {"ek.test.add"}};
  ek_object *vm = machine_of(&p);
  ek_value argument = ek_value_int(100000), result = ek_value_none();
  CHECK(ek_vm_invoke(vm, 0, &argument, 1, &result) == 0);
  int depth = 0;
  for (const ek_adt *cell = (ek_adt *)(void *)result.v.obj; cell->size == 2; depth++) {
    CHECK(cell->tag == 3);
    cell = (ek_adt *)(void *)cell->fields[1].v.obj;
  }
  CHECK(depth == 100000);
  ek_value_release(&result);
  ek_object_release(vm);
}

static void endless_recursion(void) {
  program p = {.functions = {{"main", 0, 1, WORDS(Invoke, 0, 0, 0, Ret, 0)}}};
  ek_object *vm = machine_of(&p);
  ek_value result = ek_value_none();
  CHECK_ERROR(ek_vm_invoke(vm, 0, NULL, 0, &result), "RunError",
              "call: recursion is deeper than 1000000 calls");
  CHECK_ERROR(ek_vm_invoke(vm, 0, NULL, 0, &result), "RunError",
              "call: recursion is deeper than 1000000 calls");
  ek_object_release(vm);
}

static void data_types(void) {
  program p = {.functions = {{"main", 1, 5,
                              WORDS(AllocADT, 1, 9, 2, 0, 0, AllocADT, 2, 4, 1, 1, /**/
                                    GetField, 3, 2, 0, GetTag, 4, 3, Ret, 4)}}};
  ek_object *vm = machine_of(&p);
  CHECK(run_ints(vm, (int64_t[]){1}, 1) == 9);
  ek_object_release(vm);
}

/* pick(a, b, c) = b, with a captured. A closure that captures a closure works too. */
static void closures(void) {
  program p = {.functions = {{"main", 2, 5,
                              WORDS(AllocClosure, 2, 1, 1, 0, AllocClosure, 3, 2, 1, 2, /**/
                                    InvokeClosure, 4, 3, 1, 1, Ret, 4)},
                             {"pick", 3, 3, WORDS(Ret, 1)},
                             {"through", 2, 3, WORDS(InvokeClosure, 2, 0, 2, 1, 1, Ret, 2)}}};
  ek_object *vm = machine_of(&p);
  CHECK(run_ints(vm, (int64_t[]){10, 20}, 2) == 20);
  ek_object_release(vm);
}

static void closures_check_their_arity(void) {
  program p = {
      .functions = {{"main", 1, 2, WORDS(AllocClosure, 1, 1, 1, 0, InvokeClosure, 1, 1, 0, Ret, 1)},
                    {"pick", 3, 3, WORDS(Ret, 1)}}};
  ek_object *vm = machine_of(&p);
  ek_value argument = ek_value_int(1), result = ek_value_none();
  CHECK_ERROR(ek_vm_invoke(vm, 0, &argument, 1, &result), "RunError",
              "InvokeClosure: 'pick' takes 2 arguments, got 0");
  ek_object_release(vm);
}

/* A chain of closures, each capturing the one before, dies without recursion. */
static void long_chains_of_closures(void) {
  program p = {.functions = {{"main", 2, 2, WORDS(AllocClosure, 0, 0, 1, 0, Ret, 0)}}};
  ek_object *vm = machine_of(&p);
  ek_value args[2] = {ek_value_int(0), ek_value_int(0)};
  for (int i = 0; i < 200000; i++) {
    ek_value result = ek_value_none();
    CHECK(ek_vm_invoke(vm, 0, args, 2, &result) == 0);
    ek_value_release(&args[0]);
    args[0] = result;
  }
  ek_value_release(&args[0]);
  ek_object_release(vm);
}

static void dynamic_tensors(void) {
  program p = {
      .functions = {{"main", 1, 7,
                     WORDS(LoadConst, 1, 0, /**/
                           AllocStorage, 2, 1, 0, 64, 0, /**/
                           LoadConsti, 3, 4, 0, /**/
                           AllocTensorReg, 4, 2, 3, 0, 1, 1, 1, EK_DTYPE_INT, 8, 1, /* (2,) at 4 */
                           ShapeOf, 5, 4, Ret, 5)}},
      .constants = {{shape_2_3, 4}}};
  ek_object *vm = machine_of(&p);
  ek_value argument = ek_value_int(1), result = ek_value_none();
  CHECK(ek_vm_invoke(vm, 0, &argument, 1, &result) == 0);
  const ek_dltensor *shape = ek_value_tensor(&result);
  CHECK(shape->ndim == 1 && shape->shape[0] == 1 && *(int64_t *)shape->data == 2);
  ek_value_release(&result);
  ek_object_release(vm);
}

/* A tensor is made anew where somebody refers to the one before, and moved where nobody does. */
static void tensors_take_the_place_of_others(void) {
  program p = {
      .functions = {{"main", 1, 6,
                     WORDS(LoadConsti, 1, 64, 0, AllocStorage, 2, 1, 0, 64, 0, /**/
                           AllocTensor, 3, 2, 0, 0, INT64_SCALAR, 0, /**/
                           Move, 4, 3, InvokePacked, 0, 2, 1, 0, 3, /* at 0: n */
                           AllocTensor, 3, 2, 8, 0, INT64_SCALAR, 0, /**/
                           InvokePacked, 0, 3, 1, 0, 0, 3, /* at 8: n + n */
                           AllocTensor, 3, 2, 16, 0, INT64_SCALAR, 0, /* moved */
                           InvokePacked, 0, 3, 1, 0, 4, 3, /* at 16: n + n */
                           AllocADT, 5, 0, 2, 4, 3, Ret, 5)},
                    {"beyond", 1, 6,
                     WORDS(LoadConsti, 1, 64, 0, AllocStorage, 2, 1, 0, 64, 0, /**/
                           AllocTensor, 3, 2, 0, 0, INT64_SCALAR, 1, 4, 0, /**/
                           AllocTensor, 3, 2, 40, 0, INT64_SCALAR, 1, 4, 0, Ret, 3)},
                    {"shorter", 1, 6,
                     WORDS(LoadConsti, 1, 64, 0, AllocStorage, 2, 1, 0, 64, 0, /**/
                           AllocTensor, 3, 2, 0, 0, INT64_SCALAR, 2, 2, 0, 4, 0, /**/
                           AllocTensor, 3, 2, 8, 0, FLOAT32_SCALAR, 2, 3, 0, 2, 0, Ret, 3)}},
      .primitives = {"ek.test.add"}};
  ek_object *vm = machine_of(&p);
  ek_value argument = ek_value_int(7), result = ek_value_none();
  CHECK(ek_vm_invoke(vm, 0, &argument, 1, &result) == 0);
  const ek_adt *both = (const ek_adt *)(const void *)result.v.obj;
  const ek_dltensor *first = ek_value_tensor(&both->fields[0]);
  const ek_dltensor *second = ek_value_tensor(&both->fields[1]);
  CHECK(*(int64_t *)first->data == 7 && *(int64_t *)second->data == 14);
  const ek_tensor *owners[2] = {(const ek_tensor *)(const void *)both->fields[0].v.obj,
                                (const ek_tensor *)(const void *)both->fields[1].v.obj};
  CHECK(owners[0]->owner != owners[1]->owner); /* results share no storage */
  ek_value_release(&result);
  CHECK_ERROR(ek_vm_invoke(vm, 1, &argument, 1, &result), "ValueError",
              "make view: 32 bytes at offset 40 do not lie in a storage of 64 bytes");
  CHECK(ek_vm_invoke(vm, 2, &argument, 1, &result) == 0);
  const ek_dltensor *other = ek_value_tensor(&result);
  CHECK(other->ndim == 2 && other->shape[0] == 3 && other->shape[1] == 2);
  CHECK(other->strides[0] == 2 && other->strides[1] == 1);
  CHECK(other->dtype.code == EK_DTYPE_FLOAT && other->dtype.bits == 32 && other->dtype.lanes == 1);
  ek_value_release(&result);
  ek_object_release(vm);
}

/* A tensor is given on where one reference leads to it and to its memory, else copied. */
static void tensors_are_owned_once(void) {
  program p = {
      .functions = {{"main", 1, 6,
                     WORDS(LoadConsti, 1, 64, 0, AllocStorage, 2, 1, 0, 64, 0, /**/
                           AllocTensor, 3, 2, 0, 0, INT64_SCALAR, 0, InvokePacked, 0, 2, 1, 0, 3, /**/
                           Own, 4, -4, 0, /* the storage is known in register 2 */
                           KillRegister, 2, InvokePacked, 0, 3, 1, 0, 4, 4, /* 7 + 7 */
                           Own, 3, -5, 0, /* now nothing else knows it */
                           Own, 5, 3, 0, /* not given up */
                           InvokePacked, 0, 3, 1, 0, 3, 3, /* 7 + 14 */
                           AllocADT, 5, 0, 2, 5, 3, Ret, 5)}},
      .primitives = {"ek.test.add"}};
  ek_object *vm = machine_of(&p);
  ek_value argument = ek_value_int(7), result = ek_value_none();
  CHECK(ek_vm_invoke(vm, 0, &argument, 1, &result) == 0);
  const ek_adt *both = (const ek_adt *)(const void *)result.v.obj;
  const ek_dltensor *first = ek_value_tensor(&both->fields[0]);
  const ek_dltensor *second = ek_value_tensor(&both->fields[1]);
  CHECK(*(int64_t *)first->data == 14 && *(int64_t *)second->data == 21);
  ek_value_release(&result);
  ek_object_release(vm);
}

static ek_value vector_of(const int64_t *numbers, int64_t n) {
  ek_dtype int64 = {EK_DTYPE_INT, 64, 1};
  ek_object *tensor;
  CHECK(ek_tensor_new(&n, 1, int64, cpu, &tensor) == 0);
  for (int64_t i = 0; i < n; i++)
    ((int64_t *)((ek_tensor *)(void *)tensor)->dl.data)[i] = numbers[i];
  return ek_value_object(tensor);
}

static void reshapes(void) {
  program p = {
      .functions = {{"main", 1, 3, WORDS(LoadConst, 1, 0, ReshapeTensor, 2, 0, 1, 1, 2, Ret, 2)}},
      .constants = {{shape_2_3, 4}}};
  ek_object *vm = machine_of(&p);
  ek_value six = vector_of((int64_t[]){1, 2, 3, 4, 5, 6}, 6), result = ek_value_none();
  CHECK(ek_vm_invoke(vm, 0, &six, 1, &result) == 0);
  const ek_dltensor *matrix = ek_value_tensor(&result);
  CHECK(matrix->ndim == 2 && matrix->shape[0] == 2 && matrix->shape[1] == 3);
  CHECK(matrix->data != ek_value_tensor(&six)->data); /* a view of an argument does not leave */
  ek_value_release(&six);
  CHECK(((int64_t *)matrix->data)[5] == 6);
  ek_value_release(&result);
  ek_value two = vector_of((int64_t[]){1, 2}, 2);
  CHECK_ERROR(ek_vm_invoke(vm, 0, &two, 1, &result), "RunError",
              "ReshapeTensor: a shape of 16 bytes expected, got one of 48");
  ek_value_release(&two);
  ek_object_release(vm);
}

static void *data_at(const ek_value *value) { return ek_dltensor_data(ek_value_tensor(value)); }

/* main(x, l) = (x, x, Cons(x, l), c, l, l): arguments and parts that stand twice become apart, a constant
** and what a list shares are read-only, and what is shared stays one. */
static void results_are_apart(void) {
  program p = {.functions = {{"main", 2, 5,
                              WORDS(LoadConst, 2, 0, AllocADT, 3, 1, 2, 0, 1, /**/
                                    AllocADT, 4, 0, 6, 0, 0, 3, 2, 1, 1, Ret, 4)}},
               .constants = {{shape_2_3, 4}}};
  ek_object *vm = machine_of(&p), *nil, *cell;
  ek_value head = vector_of((int64_t[]){5}, 1), result = ek_value_none();
  CHECK(ek_container_new(EK_ADT, 0, NULL, 0, &nil) == 0);
  ek_value fields[2] = {head, ek_value_object(nil)};
  CHECK(ek_container_new(EK_ADT, 1, fields, 2, &cell) == 0);
  ek_value args[2] = {vector_of((int64_t[]){1, 2}, 2), ek_value_object(cell)};
  for (int turn = 0; turn < 2; turn++) {
    CHECK(ek_vm_invoke(vm, 0, args, 2, &result) == 0);
    const ek_value *parts = ((const ek_adt *)(const void *)result.v.obj)->fields;
    const ek_adt *cons = (const ek_adt *)(const void *)parts[2].v.obj;
    const ek_adt *rest = (const ek_adt *)(const void *)parts[4].v.obj;
    const void *data[4] = {data_at(&args[0]), data_at(&parts[0]), data_at(&parts[1]),
                           data_at(&cons->fields[0])};
    for (int i = 0; i < 4; i++) {
      CHECK(*(const int64_t *)data[i] == 1);
      for (int k = 0; k < i; k++) CHECK(data[i] != data[k]);
    }
    CHECK(ek_tensor_is_read_only(parts[3].v.obj) && !ek_tensor_is_read_only(parts[0].v.obj));
    CHECK(rest != (const ek_adt *)(const void *)cell && parts[5].v.obj == parts[4].v.obj);
    CHECK(cons->fields[1].v.obj == parts[4].v.obj);
    CHECK(ek_tensor_is_read_only(rest->fields[0].v.obj) && !ek_tensor_is_read_only(head.v.obj));
    ek_value_release(&result);
  }
  ek_value_release(&args[0]);
  ek_value_release(&head);
  ek_release(nil);
  ek_release(cell);
  ek_object_release(vm);
}

static void copies_between_devices(void) {
  program p = {.functions = {{"main", 1, 2, WORDS(DeviceCopy, 1, 0, 0, 0, Ret, 1)}}};
  ek_object *vm = machine_of(&p);
  ek_value two = vector_of((int64_t[]){1, 2}, 2), result = ek_value_none();
  CHECK(ek_vm_invoke(vm, 0, &two, 1, &result) == 0);
  const ek_dltensor *copy = ek_value_tensor(&result);
  CHECK(copy->data != ek_value_tensor(&two)->data && ((int64_t *)copy->data)[1] == 2);
  ek_value_release(&two);
  ek_value_release(&result);
  ek_object_release(vm);
}

/* Equality of integers of any kind, and of one-element tensors of them. */
/* Where working memory of 256 bytes lies, as a number. */
static int where_to_work(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self;
  (void)ret;
  CHECK(nargs == 1);
  char *memory = ek_workspace_alloc(256);
  if (memory == NULL) return -1;
  memset(memory, 1, 256);
  *(int64_t *)ek_dltensor_data(ek_value_tensor(&args[0])) = (int64_t)(intptr_t)memory;
  ek_workspace_free(memory);
  return 0;
}

static void a_tensor_is_lent_to_a_call(void) {
  program p = {.functions = {{"main", 0, 5,
                              WORDS(LoadConsti, 0, 4096, 0, /**/
                                    AllocStorage, 1, 0, 0, 64, 0, /**/
                                    AllocTensor, 2, 1, 0, 0, EK_DTYPE_UINT, 8, 1, 1, 4096, 0, /**/
                                    AllocStorage, 3, 0, 0, 64, 0, /**/
                                    AllocTensor, 4, 3, 0, 0, INT64_SCALAR, 0, /**/
                                    InvokePackedScratch, 0, 1, 1, 4, 2, /**/
                                    AllocADT, 0, 0, 2, 2, 4, Ret, 0)}},
               .primitives = {"ek.test.where_to_work"}};
  ek_object *made;
  CHECK(ek_function_new(NULL, where_to_work, NULL, &made) == 0);
  CHECK(ek_registry_set("ek.test.where_to_work", made, 1) == 0);
  ek_object_release(made);
  ek_object *vm = machine_of(&p);
  for (int i = 0; i < 3; i++) {
    ek_value result = ek_value_none();
    CHECK(ek_vm_invoke(vm, 0, NULL, 0, &result) == 0);
    const ek_adt *both = (ek_adt *)(void *)result.v.obj;
    char *lent = ek_dltensor_data(ek_value_tensor(&both->fields[0]));
    int64_t at = *(int64_t *)ek_dltensor_data(ek_value_tensor(&both->fields[1]));
    CHECK(at >= (intptr_t)lent && at + 256 <= (intptr_t)lent + 4096);
    ek_value_release(&result);
  }
  ek_object_release(vm);
}

static void branches_on_scalars(void) {
  static const struct {
    uint8_t code, bits;
    int64_t stored;
    int64_t target;
    int64_t equal;
  } cases[] = {
      {EK_DTYPE_INT, 8, -1, -1, 1}, {EK_DTYPE_UINT, 8, -1, 255, 1},
      {EK_DTYPE_BOOL, 8, 1, 1, 1},  {EK_DTYPE_INT, 32, -7, -7, 1},
      {EK_DTYPE_INT, 64, 1, 0, 0},  {EK_DTYPE_UINT, 16, -1, 65535, 1},
  };
  program p = {.functions = {{"main", 2, 3,
                              WORDS(If, 0, 1, 1, 3, LoadConsti, 2, 1, 0, Ret, 2, /**/
                                    LoadConsti, 2, 0, 0, Ret, 2)}}};
  ek_object *vm = machine_of(&p);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    ek_dtype dtype = {cases[i].code, cases[i].bits, 1};
    ek_object *tensor;
    CHECK(ek_tensor_new(NULL, 0, dtype, cpu, &tensor) == 0);
    memcpy(((ek_tensor *)(void *)tensor)->dl.data, &cases[i].stored, cases[i].bits / 8);
    ek_value args[] = {ek_value_object(tensor), ek_value_int(cases[i].target)},
             result = ek_value_none();
    CHECK(ek_vm_invoke(vm, 0, args, 2, &result) == 0 && result.v.i64 == cases[i].equal);
    ek_object_release(tensor);
  }
  ek_value two[] = {vector_of((int64_t[]){1, 2}, 2), ek_value_int(1)}, result = ek_value_none();
  CHECK_ERROR(ek_vm_invoke(vm, 0, two, 2, &result), "RunError",
              "If: an integer or boolean tensor of one element expected, got another");
  ek_value_release(&two[0]);
  ek_object_release(vm);
}

/* ADT arguments stand for their fields, more of them than there are registers. */
static void packed_calls_flatten(void) {
  program p = {.functions = {{"main", 1, 6,
                              WORDS(AllocADT, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, /**/
                                    LoadConsti, 2, 8, 0, AllocStorage, 3, 2, 0, 64, 0, /**/
                                    AllocTensor, 4, 3, 0, 0, INT64_SCALAR, 0, /**/
                                    InvokePacked, 0, 4, 1, 1, 0, 1, 4, Ret, 4)}},
               .primitives = {"ek.test.add"}};
  ek_object *vm = machine_of(&p);
  ek_value argument = ek_value_int(5), result = ek_value_none();
  CHECK(ek_vm_invoke(vm, 0, &argument, 1, &result) == 0);
  CHECK(*(int64_t *)ek_dltensor_data(ek_value_tensor(&result)) == 95);
  ek_value_release(&result);
  ek_object_release(vm);
}

static int explode(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self, (void)args, (void)nargs, (void)ret;
  return ek_error("ValueError", "the kernel was called");
}

/* A kernel of one empty output is not called; its error otherwise comes out as it is. */
static void empty_outputs_skip_the_kernel(void) {
  ek_object *object;
  CHECK(ek_function_new(NULL, explode, NULL, &object) == 0);
  CHECK(ek_registry_set("ek.test.explode", object, 1) == 0);
  ek_object_release(object);
  program p = {.functions = {{"main", 1, 2, WORDS(InvokePacked, 0, 1, 1, 0, Ret, 0)}},
               .primitives = {"ek.test.explode"}};
  ek_object *vm = machine_of(&p);
  ek_value empty = vector_of(NULL, 0), one = vector_of(shape_one, 1), result = ek_value_none();
  CHECK(ek_vm_invoke(vm, 0, &empty, 1, &result) == 0);
  ek_value_release(&result);
  CHECK_ERROR(ek_vm_invoke(vm, 0, &one, 1, &result), "ValueError", "the kernel was called");
  ek_value_release(&empty);
  ek_value_release(&one);
  ek_object_release(vm);
}

static void constants_are_never_outputs(void) {
  program p = {
      .functions = {{"main", 0, 1, WORDS(LoadConst, 0, 0, InvokePacked, 0, 1, 1, 0, Ret, 0)}},
      .constants = {{shape_one, 1}},
      .primitives = {"ek.test.add"}};
  ek_object *vm = machine_of(&p);
  ek_value result = ek_value_none();
  CHECK_ERROR(ek_vm_invoke(vm, 0, NULL, 0, &result), "RunError",
              "InvokePacked: an output is a tensor that is read-only");
  ek_object_release(vm);
}

/* What a register holds is checked where it is used. */
static void wrong_values_are_errors(void) {
  const struct {
    const int32_t *words;
    int32_t n_words;
    const char *message;
  } cases[] = {
      {WORDS(GetField, 1, 0, 0, Ret, 1), "GetField: an ADT value expected, got int"},
      {WORDS(GetTag, 1, 1, Ret, 1), "GetTag: an ADT value expected, got nothing"},
      {WORDS(AllocADT, 1, 0, 0, GetField, 1, 1, 0, Ret, 1),
       "GetField: field 0 of an ADT value with 0 fields is asked for"},
      {WORDS(InvokeClosure, 1, 0, 0, Ret, 1), "InvokeClosure: a closure expected, got int"},
      {WORDS(ShapeOf, 1, 0, Ret, 1), "ShapeOf: a tensor expected, got int"},
      {WORDS(DeviceCopy, 1, 1, 0, 0, Ret, 1),
       "DeviceCopy: a tensor, a number or data of these expected, got None"},
      {WORDS(ReshapeTensor, 1, 0, 0, 0, 1, Ret, 1), "ReshapeTensor: a tensor expected, got int"},
      {WORDS(Own, 1, -1, 0, Ret, 1), "Own: a tensor expected, got int"},
      {WORDS(AllocTensor, 1, 0, 0, 0, INT64_SCALAR, 0, Ret, 1),
       "AllocTensor: a storage expected, got int"},
      {WORDS(AllocTensorReg, 1, 0, 0, 0, 0, 0, 1, INT64_SCALAR, Ret, 1),
       "AllocTensorReg: an int64 tensor expected, got int"},
      {WORDS(AllocStorage, 1, 0, 1, 64, 0, Ret, 1),
       "AllocStorage: an int64 tensor expected, got int"},
      {WORDS(LoadConst, 1, 0, AllocStorage, 1, 1, 4, 64, 0, Ret, 1),
       "AllocStorage: elements 4 to 5 of a tensor with 4 are asked for"},
      {WORDS(LoadConsti, 1, -1, -1, AllocStorage, 1, 1, 0, 64, 0, Ret, 1),
       "AllocStorage: a size >= 0 expected, got -1"},
      {WORDS(AllocADT, 1, 0, 0, If, 1, 0, 1, 1, Ret, 1),
       "If: an integer or a tensor expected, got ek.ADT"},
      {WORDS(Fatal), "Fatal: the program cannot go on"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    program p = {.functions = {{"main", 1, 2, cases[i].words, cases[i].n_words}},
                 .constants = {{shape_2_3, 4}}};
    ek_object *vm = machine_of(&p);
    ek_value argument = ek_value_int(1), result = ek_value_none();
    CHECK_ERROR(ek_vm_invoke(vm, 0, &argument, 1, &result), "RunError", cases[i].message);
    CHECK(result.type_index == EK_NONE);
    ek_object_release(vm);
  }
}

static void calls_check_their_arguments(void) {
  program p = {.functions = {{"main", 1, 1, WORDS(Ret, 0)}}};
  ek_object *vm = machine_of(&p);
  ek_value text = {EK_RAW_STR, 0, {0}}, result = ek_value_none();
  text.v.ptr = (void *)(uintptr_t)"hello";
  CHECK_ERROR(ek_vm_invoke(vm, 0, NULL, 0, &result), "InputError",
              "call 'main': 1 arguments expected, got 0");
  CHECK_ERROR(ek_vm_invoke(vm, 1, NULL, 0, &result), "IndexError",
              "call: a function below 1 expected, got 1");
  CHECK_ERROR(ek_vm_invoke(vm, 0, &text, 1, &result), "InputError",
              "input 'x': expected a tensor, a number or an ADT value, got a string");
  ek_object_release(vm);
}

/* A tensor with strides arrives as a contiguous copy, and a borrowed one as an owned one. */
static void arguments_are_made_contiguous(void) {
  program p = {.functions = {{"main", 1, 1, WORDS(Ret, 0)}}};
  ek_object *vm = machine_of(&p);
  int64_t data[] = {1, 2, 3, 4}, shape[] = {2, 2}, strides[] = {1, 2};
  ek_dltensor transposed = {data, {EK_CPU, 0}, 2, {EK_DTYPE_INT, 64, 1}, shape, strides, 0};
  ek_value argument = {EK_DLTENSOR_PTR, 0, {0}}, result = ek_value_none();
  argument.v.ptr = &transposed;
  CHECK(ek_vm_invoke(vm, 0, &argument, 1, &result) == 0);
  const int64_t *copied = ek_value_tensor(&result)->data;
  CHECK(copied[0] == 1 && copied[1] == 3 && copied[2] == 2 && copied[3] == 4);
  ek_value_release(&result);
  ek_object_release(vm);
}

static ek_value lent(ek_dltensor *tensor) {
  ek_value value = {EK_DLTENSOR_PTR, 0, {0}};
  value.v.ptr = tensor;
  return value;
}

static void check_copied(const ek_value *value, const int64_t *data) {
  const ek_dltensor *tensor = ek_value_tensor(value);
  CHECK(tensor != NULL && tensor->data != data && memcmp(tensor->data, data, 32) == 0);
}

/* What a program gives back of that is a copy, however deep it lies: the caller frees the rest. */
static void what_is_lent_does_not_leave(void) {
  static const int64_t flat[] = {4};
  program p = {
      .functions = {{"main", 1, 1, WORDS(Ret, 0)},
                    {"nested", 2, 3,
                     WORDS(AllocADT, 2, 1, 2, 0, 1, AllocADT, 2, 0, 2, 2, 0, Ret, 2)},
                    {"view", 1, 3, WORDS(LoadConst, 1, 0, ReshapeTensor, 2, 0, 1, 0, 1, Ret, 2)},
                    {"closure", 1, 2, WORDS(AllocClosure, 1, 0, 1, 0, Ret, 1)},
                    {"shape", 1, 2, WORDS(ShapeOf, 1, 0, Ret, 1)},
                    {"fails", 1, 1, WORDS(Fatal)}},
      .constants = {{flat, 1}}};
  ek_object *vm = machine_of(&p);
  int64_t data[] = {1, 2, 3, 4}, other[] = {5, 6, 7, 8}, shape[] = {2, 2};
  ek_dltensor one = {data, {EK_CPU, 0}, 2, {EK_DTYPE_INT, 64, 1}, shape, NULL, 0}, two = one;
  two.data = other;
  ek_value args[2] = {lent(&one), lent(&two)}, result = ek_value_none();
  for (int repeat = 0; repeat < 3; repeat++) {
    CHECK(ek_vm_invoke(vm, 0, args, 1, &result) == 0);
    check_copied(&result, data);
    ek_value_release(&result);
    CHECK(ek_vm_invoke(vm, 1, args, 2, &result) == 0);
    const ek_adt *outer = (const ek_adt *)(const void *)result.v.obj;
    const ek_adt *inner = (const ek_adt *)(const void *)outer->fields[0].v.obj;
    check_copied(&outer->fields[1], data);
    check_copied(&inner->fields[0], data);
    check_copied(&inner->fields[1], other);
    ek_value_release(&result);
    CHECK(ek_vm_invoke(vm, 2, args, 1, &result) == 0);
    CHECK(ek_value_tensor(&result)->ndim == 1);
    check_copied(&result, data);
    ek_value_release(&result);
    CHECK(ek_vm_invoke(vm, 3, args, 1, &result) == 0 && result.type_index == EK_CLOSURE);
    check_copied(&((ek_closure *)(void *)result.v.obj)->captured->fields[0], data);
    ek_value_release(&result);
    CHECK(ek_vm_invoke(vm, 4, args, 1, &result) == 0);
    ek_value_release(&result);
    CHECK_ERROR(ek_vm_invoke(vm, 5, args, 1, &result), "RunError",
                "Fatal: the program cannot go on");
  }
  ek_object_release(vm);
}

static ek_object *running;

static int call_again(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self;
  return ek_vm_invoke(running, 0, args, nargs, ret);
}

static void one_caller_at_a_time(void) {
  ek_object *object;
  CHECK(ek_function_new(NULL, call_again, NULL, &object) == 0);
  CHECK(ek_registry_set("ek.test.call_again", object, 1) == 0);
  ek_object_release(object);
  program p = {.functions = {{"main", 1, 1, WORDS(InvokePacked, 0, 1, 0, 0, Ret, 0)}},
               .primitives = {"ek.test.call_again"}};
  running = machine_of(&p);
  ek_value argument = ek_value_int(1), result = ek_value_none();
  CHECK_ERROR(ek_vm_invoke(running, 0, &argument, 1, &result), "RuntimeError",
              "call 'main': the virtual machine is running another call");
  ek_object_release(running);
}

static void unknown_primitives_are_found_when_linking(void) {
  program p = {.functions = {{"main", 0, 1, WORDS(Fatal)}}, .primitives = {"ek.test.nowhere"}};
  ek_object *executable, *vm;
  CHECK(load_program(&p, &executable) == 0);
  CHECK_ERROR(
      ek_vm_new(executable, &vm), "LoadError",
      "link executable: primitive 'ek.test.nowhere' is neither in its native code nor a registered "
      "function");
  ek_object_release(executable);
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

/* Printed, and held to the budget only roughly: machines that run tests are busy. */
static void speed(void) {
  enum { RUNS = 20000, STEPS = 1000 };
  program p = {.functions = {{"main", 1, 2, WORDS(Ret, 0)}}};
  int32_t words[4 * STEPS + 2];
  for (int i = 0; i < STEPS; i++) {
    int32_t load[] = {LoadConst, 1, 0, Move}, pair[] = {Move, 1, 0};
    memcpy(words + 6 * (i / 2) + 3 * (i % 2), i % 2 ? pair : load, 3 * sizeof *words);
  }
  words[3 * STEPS] = Ret;
  words[3 * STEPS + 1] = 1;
  ek_object *vm = machine_of(&p);
  double start = now();
  for (int i = 0; i < RUNS; i++) run_ints(vm, shape_one, 1);
  double empty = (now() - start) / RUNS;
  ek_object_release(vm);
  program q = {.functions = {{"main", 1, 2, words, 3 * STEPS + 2}}, .constants = {{shape_2_3, 4}}};
  vm = machine_of(&q);
  start = now();
  for (int i = 0; i < RUNS / 100; i++) run_ints(vm, shape_one, 1);
  double step = (now() - start) / (RUNS / 100) / STEPS;
  printf("empty run %.0f ns, load or move %.1f ns\n", empty, step);
  CHECK(empty < 20000 && step < 1000);
  ek_object_release(vm);
}

int main(void) {
  register_test_add();
  moves_and_integers();
  loops();
  recursion();
  endless_recursion();
  data_types();
  closures();
  closures_check_their_arity();
  long_chains_of_closures();
  dynamic_tensors();
  tensors_take_the_place_of_others();
  tensors_are_owned_once();
  reshapes();
  results_are_apart();
  copies_between_devices();
  a_tensor_is_lent_to_a_call();
  branches_on_scalars();
  packed_calls_flatten();
  empty_outputs_skip_the_kernel();
  constants_are_never_outputs();
  wrong_values_are_errors();
  calls_check_their_arguments();
  arguments_are_made_contiguous();
  what_is_lent_does_not_leave();
  one_caller_at_a_time();
  unknown_primitives_are_found_when_linking();
  speed();
  return 0;
}
