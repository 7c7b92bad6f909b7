/* The machine's own instructions: tail calls, moved arguments, references, switches, primitives
** that give values. */
#include "program.h"

#include "ek_vm.h"

enum {
#define EK_OPCODE(name, text, format, operands, properties, meaning) name = EK_OP_##name,
#include "vm_opcodes.def"
#undef EK_OPCODE
};

#define MOVED(r) (-1 - (r))

static const int64_t numbers[] = {7, -1, 5};

static int64_t strong(const ek_value *value) {
  return (int64_t)(value->v.obj->refs & EK_STRONG_MASK);
}

static int decrement(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self;
  CHECK(nargs == 1);
  *ret = ek_value_int(args[0].v.i64 - 1);
  return 0;
}

/* Gives a transposed view of the matrix it gets: with strides. */
static int transpose(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self;
  CHECK(nargs == 1);
  ek_dltensor like = *ek_value_tensor(&args[0]);
  int64_t strides[2] = {1, like.shape[1]}, shape[2] = {like.shape[1], like.shape[0]};
  ek_object *out;
  like.strides = strides;
  like.shape = shape;
  CHECK(ek_tensor_strided(args[0].v.obj, &like, 0, &out) == 0);
  *ret = ek_value_object(out);
  return 0;
}

static void add_function(const char *name, ek_packed code) {
  ek_object *object;
  CHECK(ek_function_new(NULL, code, NULL, &object) == 0);
  CHECK(ek_registry_set(name, object, 1) == 0);
  ek_object_release(object);
}

static int64_t run_one(const program *p, int64_t number) {
  ek_object *vm = machine_of(p);
  int64_t result = run_ints(vm, &number, 1);
  ek_object_release(vm);
  return result;
}

/* count(n) = n == 0 ? 42 : count(n - 1): 1,000,000 calls deep, one frame high. */
static void tail_calls_keep_the_stack(void) {
  program p = {.functions = {{"count", 1, 3,
                              WORDS(LoadConsti, 1, 0, 0, /* 0 */
                                    If, 0, 1, 1, 3, /* 1: to 2, 4 */
                                    LoadConsti, 2, 42, 0, Ret, 2, /* 2 */
                                    InvokePackedValue, 0, 0, 1, 0, /* 4 */
                                    InvokeTail, 0, 1, 0)}},
               .primitives = {"ek.test.decrement"}};
  ek_object *vm = machine_of(&p);
  CHECK(run_ints(vm, (int64_t[]){1000000}, 1) == 42);
  CHECK(((ek_vm *)(void *)vm)->frame_capacity < 8);
  ek_object_release(vm);
}

/* even and odd call each other, one with more registers than the other, through a closure once. */
static void mutual_tail_calls(void) {
  program p = {.functions = {{"even", 1, 3,
                              WORDS(LoadConsti, 1, 0, 0, If, 0, 1, 1, 3, LoadConsti, 2, 1, 0, /**/
                                    Ret, 2, InvokePackedValue, 0, 0, 1, 0, InvokeTail, 1, 1, 0)},
                             {"odd", 1, 9,
                              WORDS(LoadConsti, 1, 0, 0, If, 0, 1, 1, 3, LoadConsti, 2, 0, 0, /**/
                                    Ret, 2, InvokePackedValue, 7, 0, 1, 0, /**/
                                    AllocClosure, 8, 0, 0, InvokeClosureTail, 8, 1, 7)}},
               .primitives = {"ek.test.decrement"}};
  CHECK(run_one(&p, 100000) == 1);
  CHECK(run_one(&p, 100001) == 0);
}

/* The arguments of a tail call come from registers in any order, and more than once. */
static void tail_calls_permute_arguments(void) {
  program p = {
      .functions = {{"main", 1, 4,
                     WORDS(AllocADT, 1, 1, 0, AllocADT, 2, 2, 1, 1, InvokeTail, 1, 3, 2, 1, 2)},
                    {"pick", 3, 5,
                     WORDS(GetTag, 3, 0, GetTag, 4, 2, AllocADT, 3, 0, 3, 0, 1, 2, Ret, 3)}}};
  ek_object *vm = machine_of(&p);
  ek_value argument = ek_value_int(0), result = ek_value_none();
  CHECK(ek_vm_invoke(vm, 0, &argument, 1, &result) == 0);
  const ek_adt *tuple = (ek_adt *)(void *)result.v.obj;
  CHECK(((ek_adt *)(void *)tuple->fields[0].v.obj)->tag == 2);
  CHECK(((ek_adt *)(void *)tuple->fields[1].v.obj)->tag == 1);
  CHECK(tuple->fields[0].v.obj == tuple->fields[2].v.obj && strong(&tuple->fields[0]) == 2);
  ek_value_release(&result);
  ek_object_release(vm);
}

/* What is moved has one owner in the callee; what is read has two. */
static void moved_arguments(void) {
  program p = {.functions = {{"main", 1, 3,
                              WORDS(AllocADT, 1, 1, 0, Invoke, 2, 1, 1, MOVED(1), Ret, 2)},
                             {"pass", 1, 2, WORDS(AllocADT, 1, 0, 1, MOVED(0), Ret, 1)},
                             {"gone", 1, 2, WORDS(Move, 1, MOVED(0), GetTag, 1, 0, Ret, 1)}}};
  ek_object *vm = machine_of(&p);
  ek_value argument = ek_value_int(0), result = ek_value_none();
  CHECK(ek_vm_invoke(vm, 0, &argument, 1, &result) == 0);
  CHECK(strong(&result) == 1 && strong(((ek_adt *)(void *)result.v.obj)->fields) == 1);
  CHECK_ERROR(ek_vm_invoke(vm, 2, &result, 1, &argument), "RunError",
              "GetTag: an ADT value expected, got nothing");
  ek_value_release(&result);
  ek_object_release(vm);
}

/* A counter: a closure over a reference, called twice. */
static void references(void) {
  program p = {.functions = {{"main", 1, 4,
                              WORDS(AllocRef, 1, 0, AllocClosure, 2, 1, 1, 1, /**/
                                    InvokeClosure, 3, 2, 0, InvokeClosure, 3, 2, 0, /**/
                                    ReadRef, 3, 1, Ret, 3)},
                             {"tick", 1, 3,
                              WORDS(ReadRef, 1, 0, InvokePackedValue, 1, 0, 1, 1, /**/
                                    WriteRef, 0, MOVED(1), Ret, 1)}},
               .primitives = {"ek.test.decrement"}};
  CHECK(run_one(&p, 10) == 8);
}

/* A register may be moved into the reference that it holds; the cycle is broken before the end. */
static void a_reference_is_moved_into_itself(void) {
  program p = {.functions = {{"main", 1, 3,
                              WORDS(AllocRef, 1, 0, Move, 2, 1, WriteRef, 1, MOVED(1), /**/
                                    WriteRef, 2, 0, ReadRef, 0, 2, Ret, 0)}}};
  CHECK(run_one(&p, 10) == 10);
}

/* A chain of references dies without recursion. */
static void long_chains_of_references(void) {
  program p = {.functions = {{"main", 1, 1, WORDS(AllocRef, 0, MOVED(0), Ret, 0)}}};
  ek_object *vm = machine_of(&p);
  ek_value chain = ek_value_int(0);
  for (int i = 0; i < 200000; i++) {
    ek_value result = ek_value_none();
    CHECK(ek_vm_invoke(vm, 0, &chain, 1, &result) == 0);
    ek_value_release(&chain);
    chain = result;
  }
  ek_value_release(&chain);
  ek_object_release(vm);
}

/* A tensor that was lent and put in a reference of the caller stays good: it is a copy. */
static void references_outlive_what_is_lent(void) {
  program p = {.functions = {{"new", 1, 1, WORDS(AllocRef, 0, 0, Ret, 0)},
                             {"put", 2, 2, WORDS(WriteRef, 0, 1, Ret, 0)},
                             {"get", 1, 1, WORDS(ReadRef, 0, 0, Ret, 0)}}};
  ek_object *vm = machine_of(&p);
  int64_t data[] = {1, 2}, shape[] = {2};
  ek_dltensor tensor = {data, {EK_CPU, 0}, 1, {EK_DTYPE_INT, 64, 1}, shape, NULL, 0};
  ek_value none = ek_value_int(0), args[2] = {ek_value_none(), {EK_DLTENSOR_PTR, 0, {0}}}, result;
  args[1].v.ptr = &tensor;
  result = ek_value_none();
  CHECK(ek_vm_invoke(vm, 0, &none, 1, &args[0]) == 0);
  CHECK(ek_vm_invoke(vm, 1, args, 2, &result) == 0);
  ek_value_release(&result);
  data[0] = data[1] = 0;
  CHECK(ek_vm_invoke(vm, 2, args, 1, &result) == 0);
  CHECK(((const int64_t *)ek_value_tensor(&result)->data)[1] == 2);
  ek_value_release(&result);
  ek_value_release(&args[0]);
  ek_object_release(vm);
}

static void switches(void) {
  program p = {.functions = {{"main", 1, 2,
                              WORDS(Switch, 0, 3, 1, 3, 5, /**/
                                    LoadConsti, 1, 10, 0, Ret, 1, LoadConsti, 1, 11, 0, Ret, 1, /**/
                                    LoadConsti, 1, 12, 0, Ret, 1)}}};
  CHECK(run_one(&p, 0) == 10 && run_one(&p, 1) == 11 && run_one(&p, 2) == 12);
  CHECK(run_one(&p, 3) == 12 && run_one(&p, -1) == 12 && run_one(&p, INT64_MAX) == 12);
  program q = p;
  q.functions[1] = (function){
      "tagged", 1, 2, WORDS(AllocADT, 1, 1, 0, AllocADT, 0, 0, 0, Invoke, 1, 0, 1, 1, Ret, 1)};
  ek_object *vm = machine_of(&q);
  ek_value argument = ek_value_int(0), result = ek_value_none();
  CHECK(ek_vm_invoke(vm, 1, &argument, 1, &result) == 0 && result.v.i64 == 11);
  ek_object_release(vm);
}

static void elements(void) {
  static const int8_t small[] = {3, -4};
  program p = {.functions = {{"main", 1, 2, WORDS(LoadConst, 1, 0, ReadElement, 1, 1, 1, Ret, 1)},
                             {"small", 1, 2, WORDS(LoadConst, 1, 1, ReadElement, 1, 1, 1, Ret, 1)},
                             {"far", 1, 2, WORDS(LoadConst, 1, 0, ReadElement, 1, 1, 3, Ret, 1)},
                             {"wrong", 1, 2, WORDS(ReadElement, 1, 0, 0, Ret, 1)}},
               .constants = {{numbers, 3}, {small, 2, 8}}};
  ek_object *vm = machine_of(&p);
  ek_value argument = ek_value_int(0), result = ek_value_none();
  CHECK(ek_vm_invoke(vm, 0, &argument, 1, &result) == 0 && result.v.i64 == -1);
  CHECK(ek_vm_invoke(vm, 1, &argument, 1, &result) == 0 && result.v.i64 == -4);
  result = ek_value_none();
  CHECK_ERROR(ek_vm_invoke(vm, 2, &argument, 1, &result), "RunError",
              "ReadElement: element 3 of a tensor with 3 is asked for");
  CHECK_ERROR(ek_vm_invoke(vm, 3, &argument, 1, &result), "RunError",
              "ReadElement: a tensor expected, got int");
  ek_object_release(vm);
}

/* What a primitive gives is made as registers hold it. */
static void values_of_primitives(void) {
  program p = {.functions = {{"main", 1, 2, WORDS(InvokePackedValue, 1, 0, 1, 0, Ret, 1)}},
               .primitives = {"ek.test.transpose"}};
  ek_object *vm = machine_of(&p);
  int64_t data[] = {1, 2, 3, 4}, shape[] = {2, 2};
  ek_dltensor matrix = {data, {EK_CPU, 0}, 2, {EK_DTYPE_INT, 64, 1}, shape, NULL, 0};
  ek_value argument = {EK_DLTENSOR_PTR, 0, {0}}, result = ek_value_none();
  argument.v.ptr = &matrix;
  CHECK(ek_vm_invoke(vm, 0, &argument, 1, &result) == 0);
  const ek_dltensor *transposed = ek_value_tensor(&result);
  CHECK(ek_dltensor_is_contiguous(transposed) && ((int64_t *)transposed->data)[1] == 3);
  ek_value_release(&result);
  ek_object_release(vm);
}

static void wrong_values_are_errors(void) {
  const struct {
    const int32_t *words;
    int32_t n_words;
    const char *message;
  } cases[] = {
      {WORDS(ReadRef, 0, 0, Ret, 0), "ReadRef: a reference expected, got int"},
      {WORDS(WriteRef, 0, 0, Ret, 0), "WriteRef: a reference expected, got int"},
      {WORDS(InvokeClosureTail, 0, 0), "InvokeClosureTail: a closure expected, got int"},
      {WORDS(AllocClosure, 0, 0, 0, InvokeClosureTail, 0, 0),
       "InvokeClosureTail: 'main' takes 1 arguments, got 0"},
      {WORDS(KillRegister, 0, Switch, 0, 1, 1, Ret, 0),
       "Switch: an integer or a tensor expected, got nothing"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    program p = {.functions = {{"main", 1, 2, cases[i].words, cases[i].n_words}}};
    ek_object *vm = machine_of(&p);
    ek_value argument = ek_value_int(1), result = ek_value_none();
    CHECK_ERROR(ek_vm_invoke(vm, 0, &argument, 1, &result), "RunError", cases[i].message);
    ek_object_release(vm);
  }
}

static void depth_can_be_set(void) {
  program p = {.functions = {{"main", 0, 1, WORDS(Invoke, 0, 0, 0, Ret, 0)}}};
  CHECK(setenv("EKIDEN_MAX_DEPTH", "500", 1) == 0);
  ek_object *vm = machine_of(&p);
  ek_value result = ek_value_none();
  CHECK_ERROR(ek_vm_invoke(vm, 0, NULL, 0, &result), "RunError",
              "call: recursion is deeper than 500 calls");
  unsetenv("EKIDEN_MAX_DEPTH");
  ek_object_release(vm);
}

int main(void) {
  add_function("ek.test.decrement", decrement);
  add_function("ek.test.transpose", transpose);
  tail_calls_keep_the_stack();
  mutual_tail_calls();
  tail_calls_permute_arguments();
  moved_arguments();
  references();
  a_reference_is_moved_into_itself();
  long_chains_of_references();
  references_outlive_what_is_lent();
  switches();
  elements();
  values_of_primitives();
  wrong_values_are_errors();
  depth_can_be_set();
  return 0;
}
