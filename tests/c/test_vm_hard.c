/* Each allocation of a load and a run fails once: there is an error, nothing leaks, and the same
** machine runs again. */
#include "program.h"

#ifdef EK_HARD_TEST
enum {
#define EK_OPCODE(name, text, format, operands, properties, meaning) name = EK_OP_##name,
#include "vm_opcodes.def"
#undef EK_OPCODE
};

static const int64_t shape[] = {2, 3};

static const int32_t main_words[] = {LoadConst,
                                     1,
                                     0,
                                     LoadConsti,
                                     2,
                                     64,
                                     0,
                                     AllocStorage,
                                     3,
                                     2,
                                     0,
                                     64,
                                     0,
                                     LoadConsti,
                                     2,
                                     0,
                                     0,
                                     AllocTensorReg,
                                     4,
                                     3,
                                     2,
                                     0,
                                     1,
                                     0,
                                     2,
                                     EK_DTYPE_INT,
                                     64,
                                     1,
                                     ShapeOf,
                                     5,
                                     4,
                                     ReshapeTensor,
                                     5,
                                     4,
                                     1,
                                     0,
                                     2,
                                     DeviceCopy,
                                     5,
                                     1,
                                     0,
                                     0,
                                     AllocADT,
                                     5,
                                     1,
                                     2,
                                     4,
                                     5,
                                     AllocClosure,
                                     4,
                                     1,
                                     1,
                                     5,
                                     InvokeClosure,
                                     4,
                                     4,
                                     1,
                                     0,
                                     Invoke,
                                     4,
                                     1,
                                     2,
                                     4,
                                     0,
                                     Ret,
                                     4};
static const int32_t other_words[] = {Ret, 0};

static int load_and_run(const bytes *file) {
  ek_object *executable = NULL, *vm = NULL;
  ek_value argument = ek_value_int(1), result = ek_value_none();
  int status = ek_executable_from_bytes(file->data, file->size, 1, &executable);
  if (status == 0) status = ek_vm_new(executable, &vm);
  if (status == 0) status = ek_vm_invoke(vm, 0, &argument, 1, &result);
  CHECK(status == 0 || result.type_index == EK_NONE);
  ek_value_release(&result);
  if (vm != NULL && status != 0) {
    drop_error();
    CHECK(ek_vm_invoke(vm, 0, &argument, 1, &result) == 0);
    ek_value_release(&result);
    ek_error("MemoryError", "as before");
  }
  ek_object_release(vm);
  ek_object_release(executable);
  return status;
}

int main(void) {
  program p = {.functions = {{"main", 1, 6, main_words, sizeof main_words / 4},
                             {"other", 2, 2, other_words, sizeof other_words / 4}},
               .constants = {{shape, 2}},
               .primitives = {"ek.test.add"}};
  bytes file = program_file(&p);
  register_test_add();
  CHECK(load_and_run(&file) == 0);
  int failures = 0;
  for (int64_t n = 1;; n++) {
    int64_t before = ek_hard_live();
    ek_hard_fail_at(n);
    int status = load_and_run(&file);
    ek_hard_fail_at(0);
    drop_error();
    CHECK(ek_hard_live() == before);
    if (status == 0) break;
    failures++;
  }
  CHECK(failures > 15);
  free(file.data);
  return 0;
}
#else
int main(void) { return 0; }
#endif
