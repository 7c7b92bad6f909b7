/* Loads library_tvm_ffi.c, built, whose path is the argument; results and errors come through. */
#include "check.h"

int main(int argc, char **argv) {
  ek_object *module = NULL, *function = NULL;
  ek_value arg = ek_value_int(21), ret = ek_value_none();
  CHECK(argc == 2 && ek_module_load(argv[1], &module) == 0);
  CHECK(ek_module_get(module, "double", &function) == 0 && function != NULL);
  CHECK(ek_function_call(function, &arg, 1, &ret) == 0 && ret.v.i64 == 42);
  CHECK_ERROR(ek_function_call(function, &arg, 0, &ret), "TypeError", "double: expected one int");
  ek_object_release(function);
  CHECK(ek_module_get(module, "tensor", &function) == 0 && function != NULL);
  ret = ek_value_none();
  CHECK(ek_function_call(function, NULL, 0, &ret) == 0 && ret.type_index == EK_TENSOR);
  CHECK(ek_tensor_is_own(ret.v.obj) && ((float *)ek_value_tensor(&ret)->data)[2] == 3.0f);
  ek_value_release(&ret);
  ek_object_release(function);
  ek_object_release(module);
  return 0;
}
