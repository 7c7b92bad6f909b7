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

TVM_FFI_DLL_EXPORT int __tvm_ffi_tensor(void *self, const TVMFFIAny *args, int32_t nargs,
                                        TVMFFIAny *result);

/* A tensor of that package's runtime over static memory. */
int __tvm_ffi_tensor(void *self, const TVMFFIAny *args, int32_t nargs, TVMFFIAny *result) {
  static float data[3] = {1, 2, 3};
  static int64_t shape[1] = {3}, strides[1] = {1};
  static DLManagedTensor managed = {
      {data, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, shape, strides, 0}, 0, 0};
  TVMFFIObjectHandle made;
  (void)self;
  (void)args;
  (void)nargs;
  if (TVMFFITensorFromDLPack(&managed, 0, 0, &made) != 0) return -1;
  result->type_index = kTVMFFITensor;
  result->zero_padding = 0;
  result->v_obj = made;
  return 0;
}
