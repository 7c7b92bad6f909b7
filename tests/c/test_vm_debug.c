/* The machine between two instructions: stepped, looked into, profiled, saved, resumed; and states
** that were tampered with. */
#include "program.h"

#include "ek_vm_step.h"

enum {
#define EK_OPCODE(name, text, format, operands, properties, meaning) name = EK_OP_##name,
#include "vm_opcodes.def"
#undef EK_OPCODE
};

#define INT64_SCALAR EK_DTYPE_INT, 64, 1

static const int64_t numbers[] = {7, -1, 5};

/* main(n): a tensor in a storage, a view of a constant, a closure, a tuple and a reference that
** holds a tuple around itself; then n + n through a call, and again. */
static const program example = {
    .functions = {{"main", 1, 10,
                   WORDS(LoadConsti, 1, 8, 0, /* 0 */
                         AllocStorage, 2, 1, 0, 64, 0, /* 1 */
                         AllocTensor, 3, 2, 0, 0, INT64_SCALAR, 0, /* 2 */
                         LoadConst, 4, 0, /* 3 */
                         AllocRef, 5, 0, /* 4 */
                         AllocClosure, 6, 1, 1, 5, /* 5 */
                         AllocADT, 7, 9, 4, 3, 4, 6, 5, /* 6 */
                         WriteRef, 5, 7, /* 7 */
                         Invoke, 8, 1, 2, 0, 3, /* 8 */
                         InvokePacked, 0, 3, 1, 8, 8, 3, /* 9 */
                         GetField, 9, 7, 0, /* 10 */
                         WriteRef, 5, 0, /* 11: no cycle is left */
                         Ret, 9)}, /* 12 */
                  {"double", 2, 3,
                   WORDS(InvokePacked, 0, 3, 1, 0, 0, 1, AllocADT, 2, 0, 0, Ret, 1)}},
    .constants = {{numbers, 3}},
    .primitives = {"ek.test.add"}};

static ek_object *call(ek_object *module, const char *name, const ek_value *args, int32_t nargs,
                       ek_value *ret) {
  ek_object *found = NULL;
  CHECK(ek_module_get(module, name, &found) == 0 && found != NULL);
  *ret = ek_value_none();
  CHECK(ek_function_call(found, args, nargs, ret) == 0);
  ek_object_release(found);
  return ret->type_index >= EK_OBJECT ? ret->v.obj : NULL;
}

static int try_call(ek_object *module, const char *name, const ek_value *args, int32_t nargs) {
  ek_object *found = NULL;
  ek_value ret = ek_value_none();
  CHECK(ek_module_get(module, name, &found) == 0 && found != NULL);
  int status = ek_function_call(found, args, nargs, &ret);
  ek_object_release(found);
  ek_value_release(&ret);
  return status;
}

static void call_ints(ek_object *module, const char *name, int64_t a, int64_t b, int64_t c,
                      int32_t nargs, ek_value *ret) {
  ek_value args[3] = {ek_value_int(a), ek_value_int(b), ek_value_int(c)};
  call(module, name, args, nargs, ret);
}

static ek_object *module_of(ek_object *vm) {
  ek_object *module;
  CHECK(ek_vm_module(vm, &module) == 0);
  return module;
}

static void expect_ints(const ek_value *value, int64_t n, const int64_t *expected) {
  const ek_array *array = (const ek_array *)(const void *)value->v.obj;
  CHECK(value->type_index == EK_ARRAY && array->size == n);
  for (int64_t i = 0; i < n; i++) CHECK(array->data[i].v.i64 == expected[i]);
}

static void expect_result(ek_value *value, int64_t expected) {
  const ek_array *array = (const ek_array *)(const void *)value->v.obj;
  CHECK(value->type_index == EK_ARRAY && array->size == 1);
  CHECK(*(int64_t *)ek_dltensor_data(ek_value_tensor(&array->data[0])) == expected);
  ek_value_release(value);
}

static void stepping(void) {
  ek_object *vm = machine_of(&example), *module = module_of(vm);
  ek_value ret;
  call_ints(module, "break", 1, 1, 1, 3, &ret);
  call_ints(module, "start", 0, 5, 0, 2, &ret);
  call_ints(module, "frames", 0, 0, 0, 0, &ret);
  expect_ints(&ret, 2, (int64_t[]){0, 0});
  ek_value_release(&ret);
  call_ints(module, "step", 2, 0, 0, 1, &ret);
  CHECK(ret.v.i64 == EK_VM_PAUSED);
  call_ints(module, "registers", 0, 0, 0, 1, &ret);
  const ek_array *registers = (const ek_array *)(const void *)ret.v.obj;
  CHECK(registers->size == 10 && registers->data[0].v.i64 == 5);
  CHECK(registers->data[2].type_index == EK_STORAGE && registers->data[3].type_index == EK_NONE);
  ek_value_release(&ret);
  call_ints(module, "step", -1, 0, 0, 1, &ret);
  CHECK(ret.v.i64 == EK_VM_AT_BREAK);
  call_ints(module, "frames", 0, 0, 0, 0, &ret);
  expect_ints(&ret, 4, (int64_t[]){1, 1, 0, 9});
  ek_value_release(&ret);
  call_ints(module, "registers", 1, 0, 0, 1, &ret);
  CHECK(((const ek_array *)(const void *)ret.v.obj)->data[7].type_index == EK_ADT);
  ek_value_release(&ret);
  ek_value number = ek_value_int(5), none = ek_value_none();
  CHECK_ERROR(ek_vm_invoke(vm, 0, &number, 1, &none), "RuntimeError",
              "call 'main': the virtual machine is running another call");
  call_ints(module, "break", 1, 1, 0, 3, &ret);
  call_ints(module, "step", -1, 0, 0, 1, &ret);
  expect_result(&ret, 20);
  CHECK(ek_vm_invoke(vm, 0, &number, 1, &none) == 0);
  ek_value_release(&none);
  ek_object_release(module);
  ek_object_release(vm);
}

static void wrong_uses(void) {
  ek_object *vm = machine_of(&example), *module = module_of(vm);
  ek_value args[3] = {ek_value_int(0), ek_value_int(13), ek_value_int(1)}, ret;
  CHECK_ERROR(try_call(module, "step", args, 1), "RuntimeError",
              "virtual machine: step: no call was started");
  CHECK_ERROR(try_call(module, "break", args, 3), "IndexError",
              "virtual machine: break: function 0 has no instruction 13");
  CHECK_ERROR(try_call(module, "step", NULL, 0), "TypeError",
              "virtual machine: step: 1 ints expected first");
  CHECK_ERROR(try_call(module, "start", args, 3), "InputError",
              "call 'main': 1 arguments expected, got 2");
  call_ints(module, "start", 0, 5, 0, 2, &ret);
  CHECK_ERROR(try_call(module, "registers", args + 1, 1), "IndexError",
              "virtual machine: registers: a frame below 1 expected, got 13");
  CHECK_ERROR(try_call(module, "start", args, 2), "RuntimeError",
              "call 'main': the virtual machine is running another call");
  call_ints(module, "step", 7, 0, 0, 1, &ret);
  ek_object_release(module); /* ends the call */
  ek_value number = ek_value_int(5), none = ek_value_none();
  CHECK(ek_vm_invoke(vm, 0, &number, 1, &none) == 0);
  ek_value_release(&none);
  ek_object_release(vm);
}

static void profiles(void) {
  ek_object *vm = machine_of(&example), *module = NULL;
  ek_value ret;
  CHECK(ek_program_new((ek_object *)((ek_vm *)(void *)vm)->executable, &module) == 0);
  ek_value none = ek_value_none();
  CHECK_ERROR(try_call(module, "profile", &none, 1), "TypeError",
              "profile: two numbers expected, then arguments");
  call_ints(module, "profile", 0, 1000, 5, 3, &ret);
  const ek_array *parts = (const ek_array *)(const void *)ret.v.obj;
  ek_bytes counts, events;
  CHECK(ret.type_index == EK_ARRAY && parts->size == 3);
  CHECK(*(int64_t *)ek_dltensor_data(ek_value_tensor(&parts->data[0])) == 20);
  CHECK(ek_string_borrow(&parts->data[1], &counts) && counts.size == 16 * 16);
  CHECK(ek_string_borrow(&parts->data[2], &events));
  int64_t count[32], event[256];
  memcpy(count, counts.data, counts.size);
  memcpy(event, events.data, events.size);
  for (int i = 0; i < 16; i++) CHECK(count[2 * i] == 1 && count[2 * i + 1] >= 0);
  static const int64_t enter[] = {EK_EVENT_ENTER, 0}, into[] = {EK_EVENT_ENTER, 1};
  CHECK(memcmp(event, enter, 16) == 0 && memcmp(event + 3, into, 16) == 0);
  const int64_t *at = event + 6; /* add(n, n, tensor) in the callee */
  CHECK(at[0] == EK_EVENT_CALL && at[1] == 1 && at[2] == 0 && at[5] == 3);
  CHECK(at[6] == EK_DTYPE_INT * 256 + 64 && at[7] == -1 && at[11] == 0);
  ek_value_release(&ret);
  ek_object_release(module);
  ek_object_release(vm);
}

static void names_kernels(void) {
  ek_object *vm = machine_of(&example), *module = module_of(vm);
  ek_value ret, none = ek_value_none();
  call_ints(module, "kernels", 0, 5, 0, 2, &ret);
  const ek_array *parts = (const ek_array *)(const void *)ret.v.obj;
  ek_bytes name;
  CHECK(ret.type_index == EK_ARRAY && parts->size % 3 == 1 && parts->size > 1);
  CHECK(*(int64_t *)ek_dltensor_data(ek_value_tensor(&parts->data[0])) == 20);
  for (int64_t i = 1; i < parts->size; i += 3) {
    CHECK(ek_string_borrow(&parts->data[i], &name) && name.size != 0);
    CHECK(parts->data[i + 1].v.i64 >= 1 && parts->data[i + 2].v.i64 >= 0);
  }
  ek_value_release(&ret);
  CHECK_ERROR(try_call(module, "kernels", &none, 1), "TypeError",
              "virtual machine: kernels: 1 ints expected first");
  ek_object_release(module);
  ek_object_release(vm);
}

/* The same without a reference: one that was damaged might own itself. */
static const program plain = {
    .functions = {{"main", 1, 10,
                   WORDS(LoadConsti, 1, 8, 0, AllocStorage, 2, 1, 0, 64, 0, /**/
                         AllocTensor, 3, 2, 0, 0, INT64_SCALAR, 0, LoadConst, 4, 0, /**/
                         AllocClosure, 6, 1, 1, 4, AllocADT, 7, 9, 3, 3, 4, 6, /**/
                         Invoke, 8, 1, 2, 0, 3, Ret, 8)},
                  {"double", 2, 3, WORDS(InvokePacked, 0, 3, 1, 0, 0, 1, AllocADT, 2, 0, 0, /**/
                                         InvokePacked, 0, 3, 1, 1, 1, 1, Ret, 1)}},
    .constants = {{numbers, 3}},
    .primitives = {"ek.test.add"}};

/* The state after 'steps' instructions of main(5), as bytes. */
static ek_value state_of(const program *p, int64_t steps) {
  ek_object *vm = machine_of(p), *module = module_of(vm);
  ek_value ret, state;
  call_ints(module, "start", 0, 5, 0, 2, &ret);
  call_ints(module, "step", steps, 0, 0, 1, &ret);
  call(module, "save", NULL, 0, &state);
  call_ints(module, "step", -1, 0, 0, 1, &ret); /* the reference lets go of itself */
  expect_result(&ret, 20);
  ek_object_release(module);
  ek_object_release(vm);
  return state;
}

static ek_value state_after(int64_t steps) { return state_of(&example, steps); }

static void states_go_on_elsewhere(void) {
  for (int64_t steps = 0; steps < 15; steps++) {
    ek_value state = state_after(steps), again, ret;
    ek_object *vm = machine_of(&example), *module = module_of(vm);
    call(module, "resume", &state, 1, &ret);
    call(module, "save", NULL, 0, &again);
    ek_bytes first, second;
    CHECK(ek_string_borrow(&state, &first) && ek_string_borrow(&again, &second));
    CHECK(first.size == second.size);
    ek_value_release(&again);
    call_ints(module, "step", -1, 0, 0, 1, &ret);
    expect_result(&ret, 20);
    ek_value_release(&state);
    ek_object_release(module);
    ek_object_release(vm);
  }
}

static void sharing_is_kept(void) {
  ek_value state = state_after(8), ret;
  ek_object *vm = machine_of(&example), *module = module_of(vm);
  call(module, "resume", &state, 1, &ret);
  call_ints(module, "registers", 0, 0, 0, 1, &ret);
  const ek_value *R = ((const ek_array *)(const void *)ret.v.obj)->data;
  const ek_adt *tuple = (const ek_adt *)(const void *)R[7].v.obj;
  const ek_reference *reference = (const ek_reference *)(const void *)R[5].v.obj;
  CHECK(tuple->tag == 9 && tuple->fields[0].v.obj == R[3].v.obj);
  CHECK(reference->cell->fields[0].v.obj == R[7].v.obj);
  CHECK(((const ek_closure *)(const void *)R[6].v.obj)->captured->fields[0].v.obj == R[5].v.obj);
  const ek_tensor *view = (const ek_tensor *)(const void *)R[4].v.obj;
  CHECK(((const int64_t *)view->dl.data)[2] == 5 && (view->flags & EK_DLPACK_READ_ONLY));
  CHECK(((const ek_tensor *)(const void *)R[3].v.obj)->owner == R[2].v.obj);
  ek_value_release(&ret);
  call_ints(module, "step", -1, 0, 0, 1, &ret);
  expect_result(&ret, 20);
  ek_value_release(&state);
  ek_object_release(module);
  ek_object_release(vm);
}

static int resume_bytes(ek_object *module, const char *data, size_t size) {
  ek_bytes text = {data, size};
  ek_value argument = {EK_BYTE_ARRAY_PTR, 0, {0}};
  argument.v.ptr = &text;
  return try_call(module, "resume", &argument, 1);
}

static void seal(char *data, size_t size) {
  uint32_t crc = ek_crc32(data + 16, size - 16);
  memcpy(data + 12, &crc, 4);
}

/* Whatever a state says, it is refused or runs: 100 instructions of it. */
static void hostile_states(void) {
  ek_value state = state_of(&plain, 8), ret;
  ek_object *vm = machine_of(&plain), *module = module_of(vm);
  ek_bytes good;
  CHECK(ek_string_borrow(&state, &good));
  for (size_t i = 0; i < good.size; i++) CHECK(resume_bytes(module, good.data, i) != 0);
  char *bad = malloc(good.size + 1);
  CHECK(bad != NULL);
  int accepted = 0;
  for (size_t i = 0; i < good.size; i++) {
    for (int flip = 0; flip < 4; flip++) {
      static const unsigned char masks[] = {0x01, 0x80, 0xff, 0x06};
      memcpy(bad, good.data, good.size);
      bad[i] = (char)((unsigned char)bad[i] ^ masks[flip]);
      if (i >= 16) seal(bad, good.size);
      else CHECK(resume_bytes(module, bad, good.size) != 0);
      if (resume_bytes(module, bad, good.size) != 0) continue;
      accepted++;
      ek_value limit = ek_value_int(100);
      (void)try_call(module, "step", &limit, 1);
      call(module, "stop", NULL, 0, &ret);
    }
  }
  CHECK(accepted > 0);
  memcpy(bad, good.data, good.size);
  bad[good.size] = 0;
  seal(bad, good.size + 1);
  CHECK_ERROR(resume_bytes(module, bad, good.size + 1), "LoadError",
              "resume state: bytes are left over");
  CHECK_ERROR(resume_bytes(module, good.data, 8), "LoadError",
              "resume state: it ends too early");
  free(bad);
  bool *is_absent = ((ek_vm *)(void *)vm)->executable->is_absent;
  is_absent[0] = true; /* as those that another variant of a file is made with */
  CHECK_ERROR(resume_bytes(module, good.data, good.size), "LoadError",
              "resume state: a constant has no such number");
  is_absent[0] = false;
  program other = plain;
  other.constants[0].size = 2;
  ek_object *other_vm = machine_of(&other), *other_module = module_of(other_vm);
  CHECK_ERROR(resume_bytes(other_module, good.data, good.size), "LoadError",
              "resume state: it belongs to another executable");
  ek_object_release(other_module);
  ek_object_release(other_vm);
  ek_value_release(&state);
  ek_object_release(module);
  ek_object_release(vm);
}

int main(void) {
  register_test_add();
  stepping();
  wrong_uses();
  profiles();
  names_kernels();
  states_go_on_elsewhere();
  sharing_is_kept();
  hostile_states();
  return 0;
}
