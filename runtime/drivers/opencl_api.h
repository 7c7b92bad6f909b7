/* The part of OpenCL 1.2 that the driver uses, and what of 2.1 takes SPIR-V: types, numbers, and
** functions, found in a library at run time. The numbers are those of the specification. */
#ifndef EK_OPENCL_API_H_
#define EK_OPENCL_API_H_

#include <stddef.h>
#include <stdint.h>

#include "driver_library.h"

typedef int32_t cl_int;
typedef uint32_t cl_uint, cl_bool;
typedef uint64_t cl_bits;
typedef struct opencl_platform *cl_platform_id;
typedef struct opencl_device *cl_device_id;
typedef struct opencl_context *cl_context;
typedef struct opencl_queue *cl_command_queue;
typedef struct opencl_memory *cl_mem;
typedef struct opencl_program *cl_program;
typedef struct opencl_kernel *cl_kernel;
typedef struct opencl_event *cl_event;

enum {
  CL_SUCCESS = 0,
  CL_MEM_OBJECT_ALLOCATION_FAILURE = -4,
  CL_OUT_OF_RESOURCES = -5,
  CL_OUT_OF_HOST_MEMORY = -6,
  CL_INVALID_VALUE = -30,
  CL_INVALID_KERNEL_NAME = -46,
  CL_INVALID_ARG_INDEX = -49,
  CL_INVALID_ARG_SIZE = -51,
  CL_INVALID_KERNEL_ARGS = -52,
  CL_INVALID_BUFFER_SIZE = -61
};

enum {
  CL_DEVICE_TYPE_CPU = 1 << 1,
  CL_DEVICE_TYPE_GPU = 1 << 2,
  CL_DEVICE_TYPE_ACCELERATOR = 1 << 3,
  CL_QUEUE_PROFILING_ENABLE = 1 << 1,
  CL_MEM_READ_WRITE = 1 << 0
};

enum {
  CL_DEVICE_TYPE = 0x1000,
  CL_DEVICE_MAX_COMPUTE_UNITS = 0x1002,
  CL_DEVICE_MAX_WORK_GROUP_SIZE = 0x1004,
  CL_DEVICE_PREFERRED_VECTOR_WIDTH_FLOAT = 0x100A,
  CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT = 0x103A,
  CL_DEVICE_MAX_CLOCK_FREQUENCY = 0x100C,
  CL_DEVICE_MEM_BASE_ADDR_ALIGN = 0x1019,
  CL_DEVICE_GLOBAL_MEM_SIZE = 0x101F,
  CL_DEVICE_LOCAL_MEM_TYPE = 0x1022, /* 1: memory of its own */
  CL_DEVICE_LOCAL_MEM_SIZE = 0x1023,
  CL_DEVICE_NAME = 0x102B,
  CL_DEVICE_VENDOR = 0x102C,
  CL_DRIVER_VERSION = 0x102D,
  CL_DEVICE_VERSION = 0x102F,
  CL_DEVICE_EXTENSIONS = 0x1030,
  CL_DEVICE_PLATFORM = 0x1031,
  CL_DEVICE_OPENCL_C_VERSION = 0x103D,
  CL_DEVICE_IL_VERSION = 0x105B, /* of OpenCL 2.1, or of cl_khr_il_program */
  CL_DEVICE_PREFERRED_WORK_GROUP_SIZE_MULTIPLE = 0x1067, /* of OpenCL 3.0 */
  CL_DEVICE_WARP_SIZE_NV = 0x4003,
  CL_DEVICE_WAVEFRONT_WIDTH_AMD = 0x4043,
  CL_PROGRAM_BINARY_SIZES = 0x1165,
  CL_PROGRAM_BINARIES = 0x1166,
  CL_PROGRAM_BUILD_LOG = 0x1183,
  CL_KERNEL_WORK_GROUP_SIZE = 0x11B0,
  CL_PROFILING_COMMAND_END = 0x1283
};

/* OPENCL(result, name, parameters) */
#define OPENCL_FUNCTIONS(OPENCL)                                                                    \
  OPENCL(cl_int, clGetPlatformIDs, (cl_uint, cl_platform_id *, cl_uint *))                          \
  OPENCL(cl_int, clGetDeviceIDs, (cl_platform_id, cl_bits, cl_uint, cl_device_id *, cl_uint *))     \
  OPENCL(cl_int, clGetDeviceInfo, (cl_device_id, cl_uint, size_t, void *, size_t *))                \
  OPENCL(cl_context, clCreateContext, (const intptr_t *, cl_uint, const cl_device_id *,             \
         void (*)(const char *, const void *, size_t, void *), void *, cl_int *))                   \
  OPENCL(cl_command_queue, clCreateCommandQueue, (cl_context, cl_device_id, cl_bits, cl_int *))     \
  OPENCL(cl_int, clReleaseCommandQueue, (cl_command_queue))                                         \
  OPENCL(cl_mem, clCreateBuffer, (cl_context, cl_bits, size_t, void *, cl_int *))                   \
  OPENCL(cl_int, clRetainMemObject, (cl_mem))                                                       \
  OPENCL(cl_int, clReleaseMemObject, (cl_mem))                                                      \
  OPENCL(cl_int, clEnqueueReadBuffer, (cl_command_queue, cl_mem, cl_bool, size_t, size_t, void *,   \
         cl_uint, const cl_event *, cl_event *))                                                    \
  OPENCL(cl_int, clEnqueueWriteBuffer, (cl_command_queue, cl_mem, cl_bool, size_t, size_t,          \
         const void *, cl_uint, const cl_event *, cl_event *))                                      \
  OPENCL(cl_int, clEnqueueCopyBuffer, (cl_command_queue, cl_mem, cl_mem, size_t, size_t, size_t,    \
         cl_uint, const cl_event *, cl_event *))                                                    \
  OPENCL(cl_int, clFinish, (cl_command_queue))                                                      \
  OPENCL(cl_int, clFlush, (cl_command_queue))                                                       \
  OPENCL(cl_int, clEnqueueMarkerWithWaitList, (cl_command_queue, cl_uint, const cl_event *,         \
         cl_event *))                                                                               \
  OPENCL(cl_int, clEnqueueBarrierWithWaitList, (cl_command_queue, cl_uint, const cl_event *,        \
         cl_event *))                                                                               \
  OPENCL(cl_int, clWaitForEvents, (cl_uint, const cl_event *))                                      \
  OPENCL(cl_int, clGetEventProfilingInfo, (cl_event, cl_uint, size_t, void *, size_t *))            \
  OPENCL(cl_int, clReleaseEvent, (cl_event))                                                        \
  OPENCL(cl_program, clCreateProgramWithSource, (cl_context, cl_uint, const char **, const size_t *,\
         cl_int *))                                                                                 \
  OPENCL(cl_program, clCreateProgramWithBinary, (cl_context, cl_uint, const cl_device_id *,         \
         const size_t *, const unsigned char **, cl_int *, cl_int *))                               \
  OPENCL(void *, clGetExtensionFunctionAddressForPlatform, (cl_platform_id, const char *))          \
  OPENCL(cl_int, clBuildProgram, (cl_program, cl_uint, const cl_device_id *, const char *,          \
         void (*)(cl_program, void *), void *))                                                     \
  OPENCL(cl_int, clGetProgramInfo, (cl_program, cl_uint, size_t, void *, size_t *))                 \
  OPENCL(cl_int, clGetProgramBuildInfo, (cl_program, cl_device_id, cl_uint, size_t, void *,         \
         size_t *))                                                                                 \
  OPENCL(cl_int, clReleaseProgram, (cl_program))                                                    \
  OPENCL(cl_kernel, clCreateKernel, (cl_program, const char *, cl_int *))                           \
  OPENCL(cl_int, clGetKernelWorkGroupInfo, (cl_kernel, cl_device_id, cl_uint, size_t, void *,       \
         size_t *))                                                                                 \
  OPENCL(cl_int, clSetKernelArg, (cl_kernel, cl_uint, size_t, const void *))                        \
  OPENCL(cl_int, clEnqueueNDRangeKernel, (cl_command_queue, cl_kernel, cl_uint, const size_t *,     \
         const size_t *, const size_t *, cl_uint, const cl_event *, cl_event *))

/* clCreateProgramWithIL, which a library of OpenCL 2.1 has; before it was an extension. */
typedef cl_program opencl_from_il(cl_context, const void *, size_t, cl_int *);

typedef struct opencl_api {
  OPENCL_FUNCTIONS(DRIVER_MEMBER)
} opencl_api;

/* Fills the table from a library; the name of the first function that it lacks, or NULL. */
static inline const char *opencl_api_load(opencl_api *api, void *library) {
  static const char *const names[] = {OPENCL_FUNCTIONS(DRIVER_NAME)};
  return driver_find(library, names, sizeof names / sizeof names[0], api);
}

#endif /* EK_OPENCL_API_H_ */
