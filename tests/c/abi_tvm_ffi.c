/* Compiles if and only if the layouts are those of the published TVM-FFI headers. */
#include <dlpack/dlpack.h>
#include <tvm/ffi/c_api.h>

#include "ekiden/runtime.h"

#define SAME_SIZE(ours, theirs) static_assert(sizeof(ours) == sizeof(theirs), #theirs)
#define SAME_FIELD(ours, field, base, theirs, their_field)                               \
  static_assert(offsetof(ours, field) == (base) + offsetof(theirs, their_field) &&       \
                    sizeof(((ours *)0)->field) == sizeof(((theirs *)0)->their_field),    \
                #theirs "." #their_field)
#define SAME_NUMBER(ours, theirs) static_assert((int)(ours) == (int)(theirs), #theirs)

enum { HEADER = sizeof(TVMFFIObject) };

SAME_SIZE(ek_value, TVMFFIAny);
SAME_FIELD(ek_value, type_index, 0, TVMFFIAny, type_index);
SAME_FIELD(ek_value, small_len, 0, TVMFFIAny, small_str_len);
SAME_FIELD(ek_value, v, 0, TVMFFIAny, v_int64);
SAME_SIZE(ek_object, TVMFFIObject);
SAME_FIELD(ek_object, refs, 0, TVMFFIObject, combined_ref_count);
SAME_FIELD(ek_object, type_index, 0, TVMFFIObject, type_index);
SAME_FIELD(ek_object, deleter, 0, TVMFFIObject, deleter);
SAME_NUMBER(EK_DELETE_CONTENT, kTVMFFIObjectDeleterFlagBitMaskStrong);
SAME_NUMBER(EK_DELETE_MEMORY, kTVMFFIObjectDeleterFlagBitMaskWeak);
SAME_FIELD(ek_function, call, HEADER, TVMFFIFunctionCell, safe_call);
SAME_FIELD(ek_function, cpp_call, HEADER, TVMFFIFunctionCell, cpp_call);
SAME_SIZE(ek_bytes, TVMFFIByteArray);
SAME_FIELD(ek_bytes, data, 0, TVMFFIByteArray, data);
SAME_FIELD(ek_bytes, size, 0, TVMFFIByteArray, size);
SAME_FIELD(ek_shape, data, HEADER, TVMFFIShapeCell, data);
SAME_FIELD(ek_shape, size, HEADER, TVMFFIShapeCell, size);
SAME_FIELD(ek_array, data, HEADER, TVMFFISeqCell, data);
SAME_FIELD(ek_array, size, HEADER, TVMFFISeqCell, size);
SAME_FIELD(ek_array, capacity, HEADER, TVMFFISeqCell, capacity);
SAME_FIELD(ek_array, data_deleter, HEADER, TVMFFISeqCell, data_deleter);
SAME_FIELD(ek_error_object, kind, HEADER, TVMFFIErrorCell, kind);
SAME_FIELD(ek_error_object, message, HEADER, TVMFFIErrorCell, message);
SAME_FIELD(ek_error_object, backtrace, HEADER, TVMFFIErrorCell, backtrace);
SAME_FIELD(ek_error_object, update_backtrace, HEADER, TVMFFIErrorCell, update_backtrace);
SAME_FIELD(ek_error_object, cause, HEADER, TVMFFIErrorCell, cause_chain);
SAME_FIELD(ek_error_object, context, HEADER, TVMFFIErrorCell, extra_context);

SAME_SIZE(ek_dltensor, DLTensor);
SAME_FIELD(ek_dltensor, data, 0, DLTensor, data);
SAME_FIELD(ek_dltensor, device, 0, DLTensor, device);
SAME_FIELD(ek_dltensor, ndim, 0, DLTensor, ndim);
SAME_FIELD(ek_dltensor, dtype, 0, DLTensor, dtype);
SAME_FIELD(ek_dltensor, shape, 0, DLTensor, shape);
SAME_FIELD(ek_dltensor, strides, 0, DLTensor, strides);
SAME_FIELD(ek_dltensor, byte_offset, 0, DLTensor, byte_offset);
SAME_SIZE(ek_managed, DLManagedTensor);
SAME_FIELD(ek_managed, context, 0, DLManagedTensor, manager_ctx);
SAME_FIELD(ek_managed, deleter, 0, DLManagedTensor, deleter);
SAME_SIZE(ek_managed_versioned, DLManagedTensorVersioned);
SAME_FIELD(ek_managed_versioned, context, 0, DLManagedTensorVersioned, manager_ctx);
SAME_FIELD(ek_managed_versioned, deleter, 0, DLManagedTensorVersioned, deleter);
SAME_FIELD(ek_managed_versioned, flags, 0, DLManagedTensorVersioned, flags);
SAME_FIELD(ek_managed_versioned, tensor, 0, DLManagedTensorVersioned, dl_tensor);
SAME_NUMBER(EK_DLPACK_READ_ONLY, DLPACK_FLAG_BITMASK_READ_ONLY);
SAME_NUMBER(EK_DLPACK_IS_COPIED, DLPACK_FLAG_BITMASK_IS_COPIED);
SAME_NUMBER(EK_DLPACK_SUBBYTE_PADDED, DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED);

SAME_NUMBER(EK_NONE, kTVMFFINone);
SAME_NUMBER(EK_INT, kTVMFFIInt);
SAME_NUMBER(EK_BOOL, kTVMFFIBool);
SAME_NUMBER(EK_FLOAT, kTVMFFIFloat);
SAME_NUMBER(EK_OPAQUE_PTR, kTVMFFIOpaquePtr);
SAME_NUMBER(EK_DTYPE, kTVMFFIDataType);
SAME_NUMBER(EK_DEVICE, kTVMFFIDevice);
SAME_NUMBER(EK_DLTENSOR_PTR, kTVMFFIDLTensorPtr);
SAME_NUMBER(EK_RAW_STR, kTVMFFIRawStr);
SAME_NUMBER(EK_BYTE_ARRAY_PTR, kTVMFFIByteArrayPtr);
SAME_NUMBER(EK_OBJECT_RVALUE_REF, kTVMFFIObjectRValueRef);
SAME_NUMBER(EK_SMALL_STR, kTVMFFISmallStr);
SAME_NUMBER(EK_SMALL_BYTES, kTVMFFISmallBytes);
SAME_NUMBER(EK_OBJECT, kTVMFFIObject);
SAME_NUMBER(EK_STR, kTVMFFIStr);
SAME_NUMBER(EK_BYTES, kTVMFFIBytes);
SAME_NUMBER(EK_ERROR, kTVMFFIError);
SAME_NUMBER(EK_FUNCTION, kTVMFFIFunction);
SAME_NUMBER(EK_SHAPE, kTVMFFIShape);
SAME_NUMBER(EK_TENSOR, kTVMFFITensor);
SAME_NUMBER(EK_ARRAY, kTVMFFIArray);
SAME_NUMBER(EK_MAP, kTVMFFIMap);
SAME_NUMBER(EK_MODULE, kTVMFFIModule);
SAME_NUMBER(EK_DYNAMIC, kTVMFFIDynObjectBegin);
SAME_NUMBER(EK_CPU, kDLCPU);
SAME_NUMBER(EK_CUDA, kDLCUDA);
SAME_NUMBER(EK_DTYPE_FLOAT, kDLFloat);
SAME_NUMBER(EK_DTYPE_BFLOAT, kDLBfloat);
SAME_NUMBER(EK_DTYPE_BOOL, kDLBool);
SAME_NUMBER(EK_DTYPE_FLOAT8_E3M4, kDLFloat8_e3m4);
SAME_NUMBER(EK_DTYPE_FLOAT8_E4M3, kDLFloat8_e4m3);
SAME_NUMBER(EK_DTYPE_FLOAT8_E4M3B11FNUZ, kDLFloat8_e4m3b11fnuz);
SAME_NUMBER(EK_DTYPE_FLOAT8_E4M3FN, kDLFloat8_e4m3fn);
SAME_NUMBER(EK_DTYPE_FLOAT8_E4M3FNUZ, kDLFloat8_e4m3fnuz);
SAME_NUMBER(EK_DTYPE_FLOAT8_E5M2, kDLFloat8_e5m2);
SAME_NUMBER(EK_DTYPE_FLOAT8_E5M2FNUZ, kDLFloat8_e5m2fnuz);
SAME_NUMBER(EK_DTYPE_FLOAT8_E8M0FNU, kDLFloat8_e8m0fnu);
SAME_NUMBER(EK_DTYPE_FLOAT6_E2M3FN, kDLFloat6_e2m3fn);
SAME_NUMBER(EK_DTYPE_FLOAT6_E3M2FN, kDLFloat6_e3m2fn);
SAME_NUMBER(EK_DTYPE_FLOAT4_E2M1FN, kDLFloat4_e2m1fn);
