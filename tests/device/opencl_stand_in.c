/* A stand-in for libOpenCL.so.1 with one device, for what its driver does with SPIR-V: it refuses what
** stand_in_says, and else takes any module whose instructions fill it. Its kernels write 2 into the first
** float of their first argument. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "opencl_api.h"

#define API __attribute__((visibility("default")))
#define DECLARED(result, name, parameters) API result name parameters;
OPENCL_FUNCTIONS(DECLARED)
API cl_program clCreateProgramWithIL(cl_context, const void *, size_t, cl_int *);
API void stand_in_says(const char *what);
API long stand_in_modules(void);

struct opencl_memory { char bytes[1 << 12]; };
struct opencl_kernel { cl_mem memory; int64_t at; };
static struct opencl_kernel the_kernel;
static char mode[32], one;             /* 'one' is whatever a handle must point to */
static long modules;                   /* of SPIR-V that came here */

void stand_in_says(const char *what) { snprintf(mode, sizeof mode, "%s", what); }
long stand_in_modules(void) { return modules; }
static bool is(const char *what) { return strcmp(mode, what) == 0; }

static cl_int text(const char *what, size_t capacity, void *out, size_t *size) {
  if (out != NULL) snprintf(out, capacity, "%s", what);
  if (size != NULL) *size = strlen(what) + 1;
  return CL_SUCCESS;
}

static cl_int give(cl_int code, cl_int *out) {
  if (out != NULL) *out = code;
  return code;
}

cl_int clGetPlatformIDs(cl_uint n, cl_platform_id *out, cl_uint *count) {
  if (n != 0 && out != NULL) out[0] = (cl_platform_id)&one;
  if (count != NULL) *count = 1;
  return CL_SUCCESS;
}

cl_int clGetDeviceIDs(cl_platform_id platform, cl_bits kind, cl_uint n, cl_device_id *out, cl_uint *count) {
  (void)platform;
  *count = (kind & CL_DEVICE_TYPE_CPU) != 0;
  if (n != 0 && *count != 0) out[0] = (cl_device_id)&one;
  return CL_SUCCESS;
}

cl_int clGetDeviceInfo(cl_device_id device, cl_uint which, size_t capacity, void *out, size_t *size) {
  bool is_extension = is("extension") || is("nothing behind the extension");
  (void)device;
  switch (which) {
    case CL_DEVICE_NAME: return text("stand-in", capacity, out, size);
    case CL_DEVICE_VERSION: return text(is_extension ? "OpenCL 2.0 x" : "OpenCL 3.0 x", capacity, out, size);
    case CL_DEVICE_IL_VERSION:
      if (is("unknown question")) return -30;
      return text(is("takes none") ? "" : is("takes 1.0") ? "SPIR-V_1.0" : "ABC_1.9 SPIR-V_1.0 SPIR-V_1.2 SPIR-V_",
                  capacity, out, size);
    case CL_DEVICE_VENDOR: case CL_DRIVER_VERSION: case CL_DEVICE_EXTENSIONS:
    case CL_DEVICE_OPENCL_C_VERSION: return text("", capacity, out, size);
    default: memset(out, 0, capacity); ((unsigned char *)out)[0] = 64; return CL_SUCCESS;
  }
}

static cl_program made(const void *code, size_t size, cl_int *out) {
  const unsigned char *bytes = code;
  uint32_t word, at = 5, n = (uint32_t)(size / 4);
  modules++;
  for (; at < n; at += word >> 16) {   /* ends for any module that the driver should let through */
    memcpy(&word, bytes + 4 * (size_t)at, sizeof word);
    if (word >> 16 == 0) abort();
  }
  if (at != n || size % 4 != 0) abort();
  cl_int code_of = is("refuses") ? -30 : is("no memory") ? CL_OUT_OF_HOST_MEMORY : CL_SUCCESS;
  return give(code_of, out) == CL_SUCCESS ? (cl_program)&one : NULL;
}

cl_program clCreateProgramWithIL(cl_context context, const void *code, size_t size, cl_int *out) {
  (void)context;
  if (is("extension")) abort();        /* a device of before 2.1 has none */
  return made(code, size, out);
}

static cl_program by_extension(cl_context context, const void *code, size_t size, cl_int *out) {
  (void)context;
  return made(code, size, out);
}

void *clGetExtensionFunctionAddressForPlatform(cl_platform_id platform, const char *name) {
  (void)platform;
  if (!is("extension") || strcmp(name, "clCreateProgramWithILKHR") != 0) return NULL;
  opencl_from_il *found = by_extension;
  void *address;
  memcpy(&address, &found, sizeof address);
  return address;
}

cl_int clBuildProgram(cl_program program, cl_uint n, const cl_device_id *devices, const char *options,
                      void (*done)(cl_program, void *), void *data) {
  (void)program, (void)n, (void)devices, (void)options, (void)done, (void)data;
  return is("does not build") ? -11 : is("no memory to build") ? CL_OUT_OF_RESOURCES : CL_SUCCESS;
}

cl_int clGetProgramBuildInfo(cl_program program, cl_device_id device, cl_uint which, size_t capacity,
                             void *out, size_t *size) {
  (void)program, (void)device, (void)which;
  return text("error: line 3: no such thing", capacity, out, size);
}

cl_context clCreateContext(const intptr_t *p, cl_uint n, const cl_device_id *d,
                           void (*say)(const char *, const void *, size_t, void *), void *data, cl_int *out) {
  (void)p, (void)n, (void)d, (void)say, (void)data;
  give(CL_SUCCESS, out);
  return (cl_context)&one;
}

cl_command_queue clCreateCommandQueue(cl_context c, cl_device_id d, cl_bits b, cl_int *out) {
  (void)c, (void)d, (void)b;
  give(CL_SUCCESS, out);
  return (cl_command_queue)&one;
}

cl_mem clCreateBuffer(cl_context c, cl_bits b, size_t size, void *from, cl_int *out) {
  (void)c, (void)b, (void)from;
  cl_mem memory = size <= sizeof memory->bytes ? calloc(1, sizeof *memory) : NULL;
  give(memory == NULL ? CL_OUT_OF_HOST_MEMORY : CL_SUCCESS, out);
  return memory;
}

cl_int clEnqueueReadBuffer(cl_command_queue q, cl_mem m, cl_bool b, size_t at, size_t size, void *to,
                           cl_uint n, const cl_event *w, cl_event *e) {
  (void)q, (void)b, (void)n, (void)w, (void)e;
  memcpy(to, m->bytes + at, size);
  return CL_SUCCESS;
}

cl_int clEnqueueWriteBuffer(cl_command_queue q, cl_mem m, cl_bool b, size_t at, size_t size,
                            const void *from, cl_uint n, const cl_event *w, cl_event *e) {
  (void)q, (void)b, (void)n, (void)w, (void)e;
  memcpy(m->bytes + at, from, size);
  return CL_SUCCESS;
}

cl_int clEnqueueCopyBuffer(cl_command_queue q, cl_mem m, cl_mem to, size_t at, size_t to_at, size_t size,
                           cl_uint n, const cl_event *w, cl_event *e) {
  (void)q, (void)n, (void)w, (void)e;
  memmove(to->bytes + to_at, m->bytes + at, size);
  return CL_SUCCESS;
}

cl_kernel clCreateKernel(cl_program p, const char *name, cl_int *out) {
  (void)p;
  bool is_there = strcmp(name, "f") == 0;
  give(is_there ? CL_SUCCESS : CL_INVALID_KERNEL_NAME, out);
  return is_there ? &the_kernel : NULL;
}

cl_int clGetKernelWorkGroupInfo(cl_kernel k, cl_device_id d, cl_uint which, size_t size, void *out, size_t *n) {
  (void)k, (void)d, (void)which, (void)n;
  memset(out, 1, size);
  return CL_SUCCESS;
}

cl_int clSetKernelArg(cl_kernel k, cl_uint at, size_t size, const void *value) {
  if (at == 0) memcpy(&k->memory, value, size);
  if (at == 1) memcpy(&k->at, value, size);
  return CL_SUCCESS;
}

cl_int clEnqueueNDRangeKernel(cl_command_queue q, cl_kernel k, cl_uint n, const size_t *o, const size_t *g,
                              const size_t *l, cl_uint w, const cl_event *e, cl_event *out) {
  const float two = 2;
  (void)q, (void)n, (void)o, (void)g, (void)l, (void)w, (void)e, (void)out;
  memcpy(k->memory->bytes + k->at, &two, sizeof two);
  return CL_SUCCESS;
}

cl_program clCreateProgramWithSource(cl_context c, cl_uint n, const char **t, const size_t *s, cl_int *out) {
  (void)c, (void)n, (void)t, (void)s;
  give(CL_SUCCESS, out);
  return (cl_program)&one;
}

cl_program clCreateProgramWithBinary(cl_context c, cl_uint n, const cl_device_id *d, const size_t *s,
                                     const unsigned char **b, cl_int *status, cl_int *out) {
  (void)c, (void)n, (void)d, (void)s, (void)b, (void)status;
  give(-30, out);
  return NULL;
}

cl_int clGetProgramInfo(cl_program p, cl_uint which, size_t c, void *out, size_t *size) {
  (void)p, (void)which, (void)c, (void)out, (void)size;
  return -30;
}

cl_int clEnqueueMarkerWithWaitList(cl_command_queue q, cl_uint n, const cl_event *w, cl_event *out) {
  (void)q, (void)n, (void)w;
  *out = (cl_event)&one;
  return CL_SUCCESS;
}

cl_int clGetEventProfilingInfo(cl_event e, cl_uint which, size_t size, void *out, size_t *n) {
  (void)e, (void)which, (void)n;
  memset(out, 0, size);
  return CL_SUCCESS;
}

cl_int clEnqueueBarrierWithWaitList(cl_command_queue q, cl_uint n, const cl_event *w, cl_event *e) {
  (void)q, (void)n, (void)w, (void)e;
  return CL_SUCCESS;
}

cl_int clWaitForEvents(cl_uint n, const cl_event *e) { (void)n, (void)e; return CL_SUCCESS; }
cl_int clFinish(cl_command_queue q) { (void)q; return CL_SUCCESS; }
cl_int clFlush(cl_command_queue q) { (void)q; return CL_SUCCESS; }
cl_int clReleaseEvent(cl_event e) { (void)e; return CL_SUCCESS; }
cl_int clReleaseCommandQueue(cl_command_queue q) { (void)q; return CL_SUCCESS; }
cl_int clRetainMemObject(cl_mem m) { (void)m; return CL_SUCCESS; }
cl_int clReleaseMemObject(cl_mem m) { (void)m; return CL_SUCCESS; }
cl_int clReleaseProgram(cl_program p) { (void)p; return CL_SUCCESS; }
