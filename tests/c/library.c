/* A shared library as others build them: it knows the header and nothing else. */
#include "ekiden/runtime.h"

EK_API int __tvm_ffi_add_one(void *self, const ek_value *args, int32_t nargs, ek_value *ret);

int __tvm_ffi_add_one(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self;
  if (nargs != 1 || args[0].type_index != EK_INT) return -1;
  *ret = ek_value_int(args[0].v.i64 + 1);
  return 0;
}

EK_API int __ek_init(void);
EK_API int __tvm_ffi_times_initialised(void *self, const ek_value *args, int32_t nargs,
                                       ek_value *ret);

static int times;

/* Called once, however often the library is loaded. */
int __ek_init(void) {
  times++;
  return 0;
}

int __tvm_ffi_times_initialised(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self;
  (void)args;
  (void)nargs;
  *ret = ek_value_int(times);
  return 0;
}
