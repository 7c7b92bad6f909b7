/* The functions of the tests for a server that runs no Python. They use what is inline in the
** header alone, as nothing of the runtime is seen outside the server. */
#include <stdlib.h>

#include "ekiden/runtime.h"

typedef struct adder {
  ek_function function;
  int64_t x;
} adder;

static int add(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)nargs;
  *ret = ek_value_int(((adder *)self)->x + args[0].v.i64);
  return 0;
}

static void delete_adder(void *self, int flags) {
  if (flags & EK_DELETE_MEMORY) free(self);
}

int __tvm_ffi_adder(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self, (void)nargs;
  adder *made = calloc(1, sizeof *made);
  made->function.base = (ek_object){EK_REFS_NEW, EK_FUNCTION, 0, delete_adder};
  made->function.call = add;
  made->x = args[0].v.i64;
  *ret = ek_value_object(&made->function.base);
  return 0;
}

int __tvm_ffi_echo(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self;
  if (nargs == 0) return 0;
  ek_value_retain(&args[0]);
  *ret = args[0];
  return 0;
}

int __tvm_ffi_apply(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self;
  return ek_function_call(args[0].v.obj, args + 1, nargs - 1, ret);
}

int __tvm_ffi_total(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self, (void)nargs;
  const ek_dltensor *tensor = ek_value_tensor(&args[0]);
  const float *data = ek_dltensor_data(tensor);
  double sum = 0;
  for (size_t i = 0; i < ek_dltensor_nbytes(tensor) / sizeof *data; i++) sum += data[i];
  ret->type_index = EK_FLOAT;
  ret->v.f64 = sum;
  return 0;
}

int __tvm_ffi_fill(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self, (void)nargs, (void)ret;
  const ek_dltensor *tensor = ek_value_tensor(&args[0]);
  float *data = ek_dltensor_data(tensor);
  for (size_t i = 0; i < ek_dltensor_nbytes(tensor) / sizeof *data; i++) data[i] = (float)args[1].v.f64;
  return 0;
}

int __tvm_ffi_silent(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self, (void)args, (void)nargs, (void)ret;
  return -1;
}

int __tvm_ffi_spin(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self, (void)args, (void)nargs, (void)ret;
  for (volatile int i = 0;; i++) continue;
}
