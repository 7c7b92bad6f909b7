/* The parts of CUDA's driver API and of NVRTC that the driver uses: types, numbers, and functions,
** found in libraries at run time. The numbers are those of NVIDIA's manuals; a name that ends in _v2
** is the one of 64-bit addresses, which their header gives without it. */
#ifndef EK_CUDA_API_H_
#define EK_CUDA_API_H_

#include <stddef.h>
#include <stdint.h>

#include "driver_library.h"

typedef int32_t CUresult;
typedef int32_t CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct cuda_context *CUcontext;
typedef struct cuda_stream *CUstream;
typedef struct cuda_event *CUevent;
typedef struct cuda_module *CUmodule;
typedef struct cuda_function *CUfunction;
typedef int32_t nvrtcResult;
typedef struct cuda_program *nvrtcProgram;

enum {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_ECC_UNCORRECTABLE = 214,
  CUDA_ERROR_NVLINK_UNCORRECTABLE = 220,
  CUDA_ERROR_CONTAINED = 226,
  CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  CUDA_ERROR_LAUNCH_TIMEOUT = 702,
  CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
  CUDA_ERROR_ASSERT = 710,
  CUDA_ERROR_HARDWARE_STACK_ERROR = 714,
  CUDA_ERROR_LAUNCH_FAILED = 719,       /* and what lies between: errors of the code that ran */
  CUDA_ERROR_EXTERNAL_DEVICE = 911
};

enum {
  CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1,
  CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK = 8,
  CU_DEVICE_ATTRIBUTE_WARP_SIZE = 10,
  CU_DEVICE_ATTRIBUTE_CLOCK_RATE = 13,
  CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
  CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0,
  CU_STREAM_NON_BLOCKING = 1,
  CU_JIT_ERROR_LOG_BUFFER = 5,
  CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6
};

/* CUDA(result, name, parameters) */
#define CUDA_FUNCTIONS(CUDA)                                                                        \
  CUDA(CUresult, cuInit, (unsigned))                                                                \
  CUDA(CUresult, cuGetErrorName, (CUresult, const char **))                                         \
  CUDA(CUresult, cuGetErrorString, (CUresult, const char **))                                       \
  CUDA(CUresult, cuDriverGetVersion, (int *))                                                       \
  CUDA(CUresult, cuDeviceGetCount, (int *))                                                         \
  CUDA(CUresult, cuDeviceGet, (CUdevice *, int))                                                    \
  CUDA(CUresult, cuDeviceGetName, (char *, int, CUdevice))                                          \
  CUDA(CUresult, cuDeviceGetAttribute, (int *, int, CUdevice))                                      \
  CUDA(CUresult, cuDeviceTotalMem_v2, (size_t *, CUdevice))                                         \
  CUDA(CUresult, cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                 \
  CUDA(CUresult, cuCtxPushCurrent_v2, (CUcontext))                                                  \
  CUDA(CUresult, cuCtxPopCurrent_v2, (CUcontext *))                                                 \
  CUDA(CUresult, cuMemAlloc_v2, (CUdeviceptr *, size_t))                                            \
  CUDA(CUresult, cuMemFree_v2, (CUdeviceptr))                                                       \
  CUDA(CUresult, cuMemGetAddressRange_v2, (CUdeviceptr *, size_t *, CUdeviceptr))                   \
  CUDA(CUresult, cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream))               \
  CUDA(CUresult, cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream))                     \
  CUDA(CUresult, cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                \
  CUDA(CUresult, cuMemcpyPeerAsync, (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t,        \
       CUstream))                                                                                   \
  CUDA(CUresult, cuStreamCreate, (CUstream *, unsigned))                                            \
  CUDA(CUresult, cuStreamDestroy_v2, (CUstream))                                                    \
  CUDA(CUresult, cuStreamSynchronize, (CUstream))                                                   \
  CUDA(CUresult, cuStreamWaitEvent, (CUstream, CUevent, unsigned))                                  \
  CUDA(CUresult, cuEventCreate, (CUevent *, unsigned))                                              \
  CUDA(CUresult, cuEventRecord, (CUevent, CUstream))                                                \
  CUDA(CUresult, cuEventSynchronize, (CUevent))                                                     \
  CUDA(CUresult, cuEventElapsedTime, (float *, CUevent, CUevent))                                   \
  CUDA(CUresult, cuEventDestroy_v2, (CUevent))                                                      \
  CUDA(CUresult, cuModuleLoadDataEx, (CUmodule *, const void *, unsigned, int *, void **))          \
  CUDA(CUresult, cuModuleUnload, (CUmodule))                                                        \
  CUDA(CUresult, cuModuleGetFunction, (CUfunction *, CUmodule, const char *))                       \
  CUDA(CUresult, cuFuncGetAttribute, (int *, int, CUfunction))                                      \
  CUDA(CUresult, cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,     \
       unsigned, unsigned, CUstream, void **, void **))

/* NVRTC(result, name, parameters) */
#define NVRTC_FUNCTIONS(NVRTC)                                                                      \
  NVRTC(nvrtcResult, nvrtcVersion, (int *, int *))                                                  \
  NVRTC(const char *, nvrtcGetErrorString, (nvrtcResult))                                           \
  NVRTC(nvrtcResult, nvrtcGetNumSupportedArchs, (int *))                                            \
  NVRTC(nvrtcResult, nvrtcGetSupportedArchs, (int *))                                               \
  NVRTC(nvrtcResult, nvrtcCreateProgram, (nvrtcProgram *, const char *, const char *, int,          \
        const char *const *, const char *const *))                                                  \
  NVRTC(nvrtcResult, nvrtcDestroyProgram, (nvrtcProgram *))                                         \
  NVRTC(nvrtcResult, nvrtcCompileProgram, (nvrtcProgram, int, const char *const *))                 \
  NVRTC(nvrtcResult, nvrtcGetProgramLogSize, (nvrtcProgram, size_t *))                              \
  NVRTC(nvrtcResult, nvrtcGetProgramLog, (nvrtcProgram, char *))                                    \
  NVRTC(nvrtcResult, nvrtcGetCUBINSize, (nvrtcProgram, size_t *))                                   \
  NVRTC(nvrtcResult, nvrtcGetCUBIN, (nvrtcProgram, char *))                                         \
  NVRTC(nvrtcResult, nvrtcGetPTXSize, (nvrtcProgram, size_t *))                                     \
  NVRTC(nvrtcResult, nvrtcGetPTX, (nvrtcProgram, char *))

typedef struct cuda_api {
  CUDA_FUNCTIONS(DRIVER_MEMBER)
} cuda_api;

typedef struct nvrtc_api {
  NVRTC_FUNCTIONS(DRIVER_MEMBER)
} nvrtc_api;

#endif /* EK_CUDA_API_H_ */
