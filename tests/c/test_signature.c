/* Arguments against the types that an executable declares; damaged types. */
#include "ek_signature.h"
#include "program.h"

enum { FLOAT = EK_DTYPE_FLOAT | 32 << 8, LONG = EK_DTYPE_INT | 64 << 8 };
enum { N = -1, N_AND_ONE = -2, M = -3 };

static void add_words(bytes *to, const int64_t *words, uint32_t n) {
  add_number(to, n, 4);
  for (uint32_t i = 0; i < n; i++) add_number(to, (uint64_t)words[i], 8);
}

#define ADD_WORDS(to, ...)                                                    \
  add_words(to, (const int64_t[]){__VA_ARGS__},                               \
            (uint32_t)(sizeof (const int64_t[]){__VA_ARGS__} / sizeof(int64_t)))

/* Symbols n, at most 8; n + 1; m. */
static bytes symbols(void) {
  bytes section = {0};
  add_number(&section, 3, 4);
  add_name(&section, "n");
  add_number(&section, 8, 8);
  add_number(&section, 0, 4);
  add_name(&section, "n + 1");
  add_number(&section, INT64_MAX, 8);
  ADD_WORDS(&section, EK_DIM_SYMBOL, 0, EK_DIM_CONST, 1, EK_DIM_ADD);
  add_name(&section, "m");
  add_number(&section, INT64_MAX, 8);
  add_number(&section, 0, 4);
  return section;
}

static const function two = {"main", 2, 2, WORDS(EK_OP_Ret, 0)};

/* A machine whose main takes x: Tensor[(n, 3), float32] and one of another type. */
static ek_object *machine_with(bytes section) {
  program p = {.functions = {two}, .types = section.data, .types_size = section.size};
  ek_object *vm = machine_of(&p);
  free(section.data);
  return vm;
}

static ek_value tensor_of(ek_dtype dtype, int32_t ndim, const int64_t *shape) {
  ek_object *made;
  CHECK(ek_tensor_new(shape, ndim, dtype, cpu, &made) == 0);
  return ek_value_object(made);
}

#define TENSOR(...)                                                           \
  tensor_of(float32, (int32_t)(sizeof (const int64_t[]){__VA_ARGS__} / 8),    \
            (const int64_t[]){__VA_ARGS__})

/* Calls with two arguments, which are released; the message, or NULL where the call is taken. */
static void expect(ek_object *vm, ek_value x, ek_value y, const char *message) {
  ek_value args[2] = {x, y}, result = ek_value_none();
  if (message == NULL) {
    CHECK(ek_vm_invoke(vm, 0, args, 2, &result) == 0);
    ek_value_release(&result);
  } else {
    CHECK_ERROR(ek_vm_invoke(vm, 0, args, 2, &result), "InputError", message);
  }
  ek_value_release(&args[0]);
  ek_value_release(&args[1]);
}

static void tensors_are_held_against_their_types(void) {
  bytes section = symbols();
  ADD_WORDS(&section, EK_TYPE_TENSOR, FLOAT, 2, N, 3, EK_TYPE_TENSOR, FLOAT, 1, N);
  ek_object *vm = machine_with(section);
  expect(vm, TENSOR(2, 3), TENSOR(2), NULL);
  expect(vm, TENSOR(0, 3), TENSOR(0), NULL);
  expect(vm, TENSOR(2, 4), TENSOR(2),
         "input 'x': expected Tensor[(n, 3), float32], got (2, 4) float32");
  expect(vm, TENSOR(2, 3), TENSOR(5),
         "input 'x': expected Tensor[(n), float32] with n = 2 as in input 'x', got (5) float32");
  expect(vm, TENSOR(9, 3), TENSOR(9),
         "input 'x': expected Tensor[(n, 3), float32] with n at most 8, got (9, 3) float32");
  expect(vm, TENSOR(2, 3, 1), TENSOR(2),
         "input 'x': expected Tensor[(n, 3), float32], got (2, 3, 1) float32");
  int64_t shape[] = {2, 3};
  expect(vm, tensor_of((ek_dtype){EK_DTYPE_BFLOAT, 16, 1}, 2, shape), TENSOR(2),
         "input 'x': expected Tensor[(n, 3), float32], got (2, 3) bfloat16");
  expect(vm, ek_value_int(7), TENSOR(2), "input 'x': expected Tensor[(n, 3), float32], got int");
  expect(vm, TENSOR(2, 3), TENSOR(2), NULL);
  ek_object_release(vm);
}

static void definitions_are_compared_last(void) {
  bytes section = symbols();
  ADD_WORDS(&section, EK_TYPE_TENSOR, FLOAT, 1, N_AND_ONE, EK_TYPE_TENSOR, FLOAT, 1, N);
  ek_object *vm = machine_with(section);
  expect(vm, TENSOR(4), TENSOR(3), NULL);
  expect(vm, TENSOR(3), TENSOR(3),
         "input 'x': expected Tensor[(n + 1), float32] with n + 1 = 4, got (3) float32");
  ek_object_release(vm);
  section = symbols();
  ADD_WORDS(&section, EK_TYPE_TENSOR, FLOAT, 2, N_AND_ONE, N_AND_ONE, EK_TYPE_ANY);
  vm = machine_with(section);
  expect(vm, TENSOR(4, 4), ek_value_int(1), NULL);
  expect(vm, TENSOR(4, 5), ek_value_int(1),
         "input 'x': expected Tensor[(n + 1, n + 1), float32] with n + 1 = 4, got (4, 5) float32");
  ek_object_release(vm);
}

static void tuples_and_numbers(void) {
  bytes section = symbols();
  ADD_WORDS(&section, EK_TYPE_TUPLE, 2, EK_TYPE_TENSOR, FLOAT, 1, M, EK_TYPE_TUPLE, 0,
            EK_TYPE_TENSOR, LONG, 0);
  ek_object *vm = machine_with(section), *empty, *pair;
  CHECK(ek_array_new(NULL, 0, &empty) == 0);
  ek_value fields[2] = {TENSOR(5), ek_value_object(empty)};
  CHECK(ek_array_new(fields, 2, &pair) == 0);
  expect(vm, ek_value_object(pair), ek_value_int(3), NULL);
  expect(vm, TENSOR(5), ek_value_int(3),
         "input 'x': expected a tuple of 2, got (5) float32");
  ek_value_release(&fields[0]);
  fields[0] = TENSOR(5, 5);
  CHECK(ek_array_new(fields, 2, &pair) == 0);
  expect(vm, ek_value_object(pair), ek_value_int(3),
         "field 0 of input 'x': expected Tensor[(m), float32], got (5, 5) float32");
  ek_value_release(&fields[0]);
  ek_value_release(&fields[1]);
  ek_object_release(vm);
}

/* Words that are no types, and what the loader says of them. */
static void damaged_types_are_refused(void) {
  static const struct {
    int64_t words[6];
    uint32_t n;
  } cases[] = {
      {{EK_TYPE_ANY}, 1},                                 /* of two parameters */
      {{EK_TYPE_ANY, EK_TYPE_ANY, EK_TYPE_ANY}, 3},
      {{EK_TYPE_ANY, 9}, 2},
      {{EK_TYPE_ANY, -1}, 2},
      {{EK_TYPE_ANY, EK_TYPE_TENSOR, FLOAT}, 3},
      {{EK_TYPE_ANY, EK_TYPE_TENSOR, FLOAT, 1}, 4},
      {{EK_TYPE_ANY, EK_TYPE_TENSOR, FLOAT, 1, -4}, 5},   /* there are three symbols */
      {{EK_TYPE_ANY, EK_TYPE_TENSOR, FLOAT, 65, 1}, 5},
      {{EK_TYPE_ANY, EK_TYPE_TENSOR, FLOAT, -1, 1}, 5},
      {{EK_TYPE_ANY, EK_TYPE_TENSOR, 1 << 16, 0}, 4},
      {{EK_TYPE_ANY, EK_TYPE_TUPLE, INT64_MAX}, 3},
      {{EK_TYPE_ANY, EK_TYPE_TUPLE, -1}, 3},
      {{EK_TYPE_ANY, EK_TYPE_TUPLE, 2, EK_TYPE_ANY}, 4},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    bytes section = symbols();
    ek_object *executable;
    add_words(&section, cases[i].words, cases[i].n);
    program p = {.functions = {two}, .types = section.data, .types_size = section.size};
    CHECK_ERROR(load_program(&p, &executable), "LoadError",
                "load executable: TYPES: function 0: the types of its parameters are not valid");
    free(section.data);
  }
}

static void deep_types_are_refused(void) {
  bytes section = {0};
  int64_t words[60];
  uint32_t n = 0;
  add_number(&section, 0, 4);
  for (int i = 0; i < EK_TYPE_NESTING; i++) {
    words[n++] = EK_TYPE_TUPLE;
    words[n++] = 1;
  }
  words[n++] = EK_TYPE_ANY;
  words[n++] = EK_TYPE_ANY;
  add_words(&section, words, n);
  program p = {.functions = {two}, .types = section.data, .types_size = section.size};
  ek_object *executable;
  CHECK_ERROR(load_program(&p, &executable), "LoadError",
              "load executable: TYPES: function 0: the types of its parameters are not valid");
  free(section.data);
}

static void damaged_definitions_are_refused(void) {
  static const struct {
    int64_t words[5];
    uint32_t n;
  } cases[] = {
      {{EK_DIM_CONST}, 1},        {{EK_DIM_ADD}, 1},
      {{EK_DIM_SYMBOL, 0}, 2},    {{EK_DIM_SYMBOL, -1}, 2},
      {{9, 0}, 2},                {{-1, 0}, 2},
      {{EK_DIM_CONST, 1, EK_DIM_CONST, 1}, 4},
      {{EK_DIM_CONST, 1, EK_DIM_ADD}, 3},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    bytes section = {0};
    ek_object *executable;
    add_number(&section, 1, 4);
    add_name(&section, "n");
    add_number(&section, 8, 8);
    add_words(&section, cases[i].words, cases[i].n);
    add_number(&section, 0, 4);
    program p = {.functions = {two}, .types = section.data, .types_size = section.size};
    CHECK_ERROR(load_program(&p, &executable), "LoadError",
                "load executable: TYPES: symbol 0: its definition is not valid");
    free(section.data);
  }
}

/* Operations that give nothing leave a symbol to stand for itself. */
static void what_cannot_be_computed_is_not_compared(void) {
  static const int64_t operations[] = {EK_DIM_FLOORDIV, EK_DIM_FLOORMOD, EK_DIM_ADD, EK_DIM_SUB,
                                       EK_DIM_MUL,      EK_DIM_MIN,      EK_DIM_MAX};
  static const int64_t operands[][2] = {{7, 0}, {7, 0}, {INT64_MAX, 1}, {INT64_MIN, 1},
                                        {INT64_MAX, 2}, {4, 9}, {4, -9}};
  for (int i = 0; i < 7; i++) {
    bytes section = {0};
    add_number(&section, 1, 4);
    add_name(&section, "a");
    add_number(&section, INT64_MAX, 8);
    ADD_WORDS(&section, EK_DIM_CONST, operands[i][0], EK_DIM_CONST, operands[i][1], operations[i]);
    ADD_WORDS(&section, EK_TYPE_TENSOR, FLOAT, 1, -1, EK_TYPE_ANY);
    ek_object *vm = machine_with(section);
    expect(vm, TENSOR(4), ek_value_int(0), NULL);
    if (i >= 5) {
      expect(vm, TENSOR(5), ek_value_int(0),
             "input 'x': expected Tensor[(a), float32] with a = 4, got (5) float32");
    }
    ek_object_release(vm);
  }
}

int main(void) {
  tensors_are_held_against_their_types();
  definitions_are_compared_last();
  tuples_and_numbers();
  damaged_types_are_refused();
  deep_types_are_refused();
  damaged_definitions_are_refused();
  what_cannot_be_computed_is_not_compared();
  return 0;
}
