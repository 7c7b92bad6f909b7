/* A shared library as users of TVM-FFI build them: its errors go to that package's runtime. */
#include <tvm/ffi/c_api.h>

TVM_FFI_DLL_EXPORT int __tvm_ffi_double(void *self, const TVMFFIAny *args, int32_t nargs,
                                        TVMFFIAny *result);

int __tvm_ffi_double(void *self, const TVMFFIAny *args, int32_t nargs, TVMFFIAny *result) {
  (void)self;
  if (nargs != 1 || args[0].type_index != kTVMFFIInt) {
    TVMFFIErrorSetRaisedFromCStr("TypeError", "double: expected one int");
    return -1;
  }
  result->type_index = kTVMFFIInt;
  result->zero_padding = 0;
  result->v_int64 = 2 * args[0].v_int64;
  return 0;
}
