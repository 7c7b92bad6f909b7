/* The driver of OpenCL devices: a table of functions for the runtime over the system's libOpenCL,
** which is looked for when this library is opened. It needs neither header nor library to be built.
**
** Memory. OpenCL refers to memory by handles, and tensors by addresses. So each block of memory
** reserves a range of inaccessible addresses (pages that are not backed), and an address is looked
** up among the ranges, which yields the handle and the byte offset. A kernel gets both for each
** argument: `__global char *p, long p_at`. */
#include "ekiden/runtime.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "driver_blocks.h"
#include "driver_cache.h"
#include "driver_log.h"
#include "driver_spirv.h"
#include "opencl_api.h"

enum { EK_OPENCL_TYPE = 4, MAX_PLATFORMS = 16, MAX_DEVICES = 16, PAGE = 4096 };

typedef struct block {
  driver_range range;          /* of its addresses */
  cl_mem memory;
} block;

typedef struct device_state {
  cl_device_id id;
  cl_context context;          /* NULL until it is first used */
  cl_command_queue queue;      /* in order; its commands are timed */
  driver_blocks blocks;
} device_state;

static const ek_driver_host *host;
static opencl_api cl;
static opencl_from_il *from_il; /* of the library; NULL in one before 2.1 */
static device_state devices[MAX_DEVICES];
static int32_t n_devices;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards contexts and blocks */
static bool is_forked;         /* this process is a copy of one that had devices */

/* Errors --------------------------------------------------------------------------------------- */

static bool is_memory(cl_int code) {
  return code == CL_MEM_OBJECT_ALLOCATION_FAILURE || code == CL_OUT_OF_HOST_MEMORY ||
         code == CL_OUT_OF_RESOURCES || code == CL_INVALID_BUFFER_SIZE;
}

static int fail(ek_device device, const char *doing, cl_int code) {
  return host->error(is_memory(code) ? "MemoryError" : "DeviceError", "opencl(%d): %s: %s (error %d)",
                     device.id, doing,
                     is_memory(code) ? "it has too little memory" : "the driver failed", code);
}

/* Devices -------------------------------------------------------------------------------------- */

/* Returns the state of a device; NULL with an error. */
static device_state *state_of_device(ek_device device) {
  if (device.id >= 0 && device.id < n_devices) return &devices[device.id];
  host->error("DeviceError", "opencl(%d): there is no such device: %d found here", device.id,
              n_devices);
  return NULL;
}

/* A fork copies what the system's library knows, but not its threads, for which it would wait. */
static void after_fork(void) { is_forked = true; }

/* The state of a device, ready for use; NULL with an error. */
static device_state *state_of(ek_device device) {
  cl_int code = CL_SUCCESS;
  device_state *state = state_of_device(device);
  if (state == NULL) return NULL;
  if (is_forked) {
    host->error("DeviceError", "opencl(%d): this process was forked from one that had its devices, "
                "which cannot be used here: start it afresh (multiprocessing's 'spawn')", device.id);
    return NULL;
  }
  pthread_mutex_lock(&lock);
  if (state->context == NULL) {
    cl_context context = cl.clCreateContext(NULL, 1, &state->id, NULL, NULL, &code);
    if (code == CL_SUCCESS) {
      state->queue =
          cl.clCreateCommandQueue(context, state->id, CL_QUEUE_PROFILING_ENABLE, &code);
    }
    if (code == CL_SUCCESS) state->context = context;
  }
  pthread_mutex_unlock(&lock);
  if (code == CL_SUCCESS) return state;
  fail(device, "open the device", code);
  return NULL;
}

static int device_count(int32_t *out) {
  *out = n_devices;
  return 0;
}

static void device_text(const device_state *state, cl_uint which, char *text, size_t capacity) {
  if (cl.clGetDeviceInfo(state->id, which, capacity, text, NULL) != CL_SUCCESS) text[0] = '\0';
}

static int64_t device_number(const device_state *state, cl_uint which, size_t size) {
  uint64_t number = 0; /* little-endian: a narrower one fills its low bytes */
  return cl.clGetDeviceInfo(state->id, which, size, &number, NULL) == CL_SUCCESS ? (int64_t)number : 0;
}

/* Whether a device is of OpenCL 2.1, or later: its text is "OpenCL 3.0 of somebody". */
static bool has_core_il(const device_state *state) {
  char version[128];
  int major = 0, minor = 0;
  device_text(state, CL_DEVICE_VERSION, version, sizeof version);
  return sscanf(version, "OpenCL %d.%d", &major, &minor) == 2 && (major > 2 || (major == 2 && minor >= 1));
}

/* Return the function that creates a program from SPIR-V for a device; NULL if there is none. A
** device older than OpenCL 2.1 is not queried through the library, whose dispatch table may lack
** the entry. */
static opencl_from_il *il_of(const device_state *state) {
  cl_platform_id platform = NULL;
  if (from_il != NULL && has_core_il(state)) return from_il;
  if (cl.clGetDeviceInfo(state->id, CL_DEVICE_PLATFORM, sizeof platform, &platform, NULL) != CL_SUCCESS) {
    return NULL;
  }
  void *found = cl.clGetExtensionFunctionAddressForPlatform(platform, "clCreateProgramWithILKHR");
  opencl_from_il *made;
  memcpy(&made, &found, sizeof made);
  return made;
}

/* The newest version of SPIR-V that a device takes, as the second word of a module has it: 0x10200 is
** 1.2. 0 for none. The device says a list, "SPIR-V_1.0 SPIR-V_1.2". */
static uint32_t newest_il(const device_state *state) {
  char list[1024] = "";
  uint32_t newest = 0;
  device_text(state, CL_DEVICE_IL_VERSION, list, sizeof list);
  list[sizeof list - 1] = '\0';
  for (const char *at = list; (at = strstr(at, "SPIR-V_")) != NULL; at++) {
    unsigned major, minor;
    if (sscanf(at, "SPIR-V_%3u.%3u", &major, &minor) != 2) continue;
    uint32_t found = (uint32_t)major << 16 | (uint32_t)minor << 8;
    if (found > newest) newest = found;
  }
  return newest == 0 || il_of(state) == NULL ? 0 : newest;
}

/* The extensions that code may ask for, by short names, and whether it may be SPIR-V. */
static void abilities(const device_state *state, char *text, size_t capacity) {
  static const char *const known[][2] = {{"cl_khr_fp16", "fp16"},
                                         {"cl_khr_fp64", "fp64"},
                                         {"cl_khr_subgroups", "subgroups"},
                                         {"cl_khr_int64_base_atomics", "atomics64"},
                                         {"cl_khr_integer_dot_product", "dot4"}};
  char *list = malloc(1 << 16);
  snprintf(text, capacity, "%s", newest_il(state) != 0 ? "spirv" : "");
  if (list == NULL) return;
  device_text(state, CL_DEVICE_EXTENSIONS, list, 1 << 16);
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    if (strstr(list, known[i][0]) == NULL) continue;
    size_t used = strlen(text);
    snprintf(text + used, capacity - used, "%s%s", used == 0 ? "" : " ", known[i][1]);
  }
  free(list);
}

/* Threads that run together: each alone on a processor; elsewhere as the first says that knows. */
static int64_t warp_of(const device_state *state) {
  static const cl_uint asked[] = {CL_DEVICE_WARP_SIZE_NV, CL_DEVICE_WAVEFRONT_WIDTH_AMD,
                                  CL_DEVICE_PREFERRED_WORK_GROUP_SIZE_MULTIPLE};
  int64_t found = (device_number(state, CL_DEVICE_TYPE, 8) & CL_DEVICE_TYPE_CPU) != 0;
  for (size_t i = 0; i < sizeof asked / sizeof asked[0] && found == 0; i++) {
    found = device_number(state, asked[i], sizeof(size_t));
  }
  return found;
}

/* Bits of a vector of floats. Compilers for processors may ask for single numbers, of which they make
** vectors across threads (Intel's); of vectors that are there they make more: a product of 512 has 83
** GFLOP/s instead of 23 (Zen 4 under load). */
static int64_t vector_of(const device_state *state) {
  int64_t wanted = device_number(state, CL_DEVICE_PREFERRED_VECTOR_WIDTH_FLOAT, 4);
  int64_t native = device_number(state, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, 4);
  bool is_processor = (device_number(state, CL_DEVICE_TYPE, 8) & CL_DEVICE_TYPE_CPU) != 0;
  return 32 * (is_processor && native > wanted ? native : wanted);
}

static int device_attribute(ek_device device, int32_t which, int64_t *number, char *text,
                            size_t capacity) {
  const device_state *state = state_of_device(device);
  if (state == NULL) return -1;
  switch (which) {
    case EK_DEVICE_NAME: device_text(state, CL_DEVICE_NAME, text, capacity); break;
    case EK_DEVICE_VENDOR: device_text(state, CL_DEVICE_VENDOR, text, capacity); break;
    case EK_DEVICE_DRIVER: device_text(state, CL_DRIVER_VERSION, text, capacity); break;
    case EK_DEVICE_VERSION: device_text(state, CL_DEVICE_OPENCL_C_VERSION, text, capacity); break;
    case EK_DEVICE_ABILITIES: abilities(state, text, capacity); break;
    case EK_DEVICE_MAX_THREADS:
      *number = device_number(state, CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof(size_t));
      break;
    case EK_DEVICE_SHARED_MEMORY: *number = device_number(state, CL_DEVICE_LOCAL_MEM_SIZE, 8); break;
    case EK_DEVICE_UNITS: *number = device_number(state, CL_DEVICE_MAX_COMPUTE_UNITS, 4); break;
    case EK_DEVICE_CLOCK: *number = device_number(state, CL_DEVICE_MAX_CLOCK_FREQUENCY, 4); break;
    case EK_DEVICE_MEMORY: *number = device_number(state, CL_DEVICE_GLOBAL_MEM_SIZE, 8); break;
    case EK_DEVICE_ALIGNMENT:
      *number = device_number(state, CL_DEVICE_MEM_BASE_ADDR_ALIGN, 4) / 8;
      break;
    case EK_DEVICE_WARP: *number = warp_of(state); break;
    case EK_DEVICE_VECTOR: *number = vector_of(state); break;
    case EK_DEVICE_LOCAL: *number = device_number(state, CL_DEVICE_LOCAL_MEM_TYPE, 4) == 1; break;
    default: return host->error("ValueError", "opencl: there is no attribute %d", which);
  }
  return 0;
}

/* Memory --------------------------------------------------------------------------------------- */

/* The block that holds 'size' bytes from an address on; its memory is retained. 0 or -1. */
static int find_memory(ek_device device, device_state *state, const void *at, size_t size,
                       cl_mem *memory, size_t *offset) {
  pthread_mutex_lock(&lock);
  const block *b = (const block *)driver_block_of(&state->blocks, sizeof *b, at, size);
  if (b != NULL) {
    *offset = (uintptr_t)at - b->range.begin;
    *memory = b->memory;
    cl.clRetainMemObject(b->memory);
  }
  pthread_mutex_unlock(&lock);
  if (b != NULL) return 0;
  return host->error("DeviceError", "opencl(%d): %zu bytes at %p are no memory of the device",
                     device.id, size, at);
}

/* Return the reserved address range of a block: at least one page more than its bytes, so that the
** address past the end still belongs to this block, where an empty tensor may begin. */
static size_t range_of(size_t size) { return (size / PAGE + 1) * PAGE; }

/* The range costs address space alone. Whoever reads such an address on the host by mistake is
** stopped at once, and does not read something else. */
static int device_alloc(ek_device device, size_t size, size_t alignment, const char *scope,
                        void **out) {
  device_state *state = state_of(device);
  cl_int code = CL_SUCCESS;
  (void)alignment; /* blocks begin at pages, and the driver aligns its memory for every type */
  if (state == NULL) return -1;
  if (scope != NULL && strcmp(scope, "global") != 0) {
    return host->error("DeviceError", "opencl(%d): there is no memory '%s', expected 'global'",
                       device.id, scope);
  }
  void *range = mmap(NULL, range_of(size), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return fail(device, "allocate memory", CL_OUT_OF_HOST_MEMORY);
  cl_mem memory =
      cl.clCreateBuffer(state->context, CL_MEM_READ_WRITE, size == 0 ? 1 : size, NULL, &code);
  if (code == CL_SUCCESS) {
    pthread_mutex_lock(&lock);
    block made = {{(uintptr_t)range, size}, memory};
    bool added = driver_block_add(&state->blocks, sizeof made, &made.range);
    pthread_mutex_unlock(&lock);
    *out = range;
    if (added) return 0;
    cl.clReleaseMemObject(memory);
    code = CL_OUT_OF_HOST_MEMORY;
  }
  munmap(range, range_of(size));
  char doing[64];
  snprintf(doing, sizeof doing, "allocate %zu bytes", size);
  return fail(device, doing, code);
}

/* Commands that are queued keep what they use. */
static void device_free(ek_device device, void *data, size_t size) {
  device_state *state = &devices[device.id];
  block gone;
  if (is_forked) return; /* the lock may be held by a thread that is not here */
  pthread_mutex_lock(&lock);
  bool is_known = driver_block_remove(&state->blocks, sizeof gone, data, &gone.range);
  pthread_mutex_unlock(&lock);
  if (!is_known) return;
  cl.clReleaseMemObject(gone.memory);
  munmap(data, range_of(size));
}

static cl_command_queue queue_of(const device_state *state, void *stream) {
  return stream == NULL ? state->queue : (cl_command_queue)stream;
}

/* Between the host and a device. */
static int copy_host(ek_device device, const void *there, void *to, const void *from, size_t size,
                     void *stream) {
  device_state *state = state_of(device);
  cl_mem memory;
  size_t offset;
  if (state == NULL || find_memory(device, state, there, size, &memory, &offset) != 0) return -1;
  cl_command_queue queue = queue_of(state, stream);
  cl_bool blocking = stream == NULL;
  cl_int code = from == there
                    ? cl.clEnqueueReadBuffer(queue, memory, blocking, offset, size, to, 0, NULL, NULL)
                    : cl.clEnqueueWriteBuffer(queue, memory, blocking, offset, size, from, 0, NULL, NULL);
  cl.clReleaseMemObject(memory);
  return code == CL_SUCCESS ? 0 : fail(device, from == there ? "copy to the host" : "copy from the host", code);
}

static int copy_within_device(ek_device device, void *to, const void *from, size_t size, void *stream) {
  device_state *state = state_of(device);
  cl_mem source, target;
  size_t source_at, target_at;
  if (state == NULL || find_memory(device, state, from, size, &source, &source_at) != 0) return -1;
  if (find_memory(device, state, to, size, &target, &target_at) != 0) {
    cl.clReleaseMemObject(source);
    return -1;
  }
  cl_int code = cl.clEnqueueCopyBuffer(queue_of(state, stream), source, target, source_at, target_at,
                                       size, 0, NULL, NULL);
  if (code == CL_SUCCESS && stream == NULL) code = cl.clFinish(state->queue);
  cl.clReleaseMemObject(source);
  cl.clReleaseMemObject(target);
  return code == CL_SUCCESS ? 0 : fail(device, "copy", code);
}

static int device_copy(const void *from, ek_device from_device, void *to, ek_device to_device,
                       size_t size, void *stream) {
  if (size == 0) return 0;
  if (from_device.type != EK_OPENCL_TYPE) return copy_host(to_device, to, to, from, size, stream);
  if (to_device.type != EK_OPENCL_TYPE) return copy_host(from_device, from, to, from, size, stream);
  if (from_device.id == to_device.id) return copy_within_device(to_device, to, from, size, stream);
  void *between = malloc(size); /* devices of several platforms share nothing */
  if (between == NULL) return fail(to_device, "copy", CL_OUT_OF_HOST_MEMORY);
  int status = copy_host(from_device, from, between, from, size, NULL);
  if (status == 0) status = copy_host(to_device, to, to, between, size, NULL);
  free(between);
  return status;
}

/* Streams and events --------------------------------------------------------------------------- */

static int stream_new(ek_device device, void **out) {
  cl_int code;
  device_state *state = state_of(device);
  if (state == NULL) return -1;
  *out = cl.clCreateCommandQueue(state->context, state->id, CL_QUEUE_PROFILING_ENABLE, &code);
  return code == CL_SUCCESS ? 0 : fail(device, "make a stream", code);
}

static void stream_free(ek_device device, void *stream) {
  (void)device;
  if (!is_forked) cl.clReleaseCommandQueue(stream);
}

static int synchronize(ek_device device, void *stream) {
  device_state *state = state_of(device);
  if (state == NULL) return -1;
  cl_int code = cl.clFinish(queue_of(state, stream));
  return code == CL_SUCCESS ? 0 : fail(device, "wait", code);
}

static int event_new(ek_device device, void *stream, void **out) {
  cl_event event;
  device_state *state = state_of(device);
  if (state == NULL) return -1;
  cl_int code = cl.clEnqueueMarkerWithWaitList(queue_of(state, stream), 0, NULL, &event);
  if (code != CL_SUCCESS) return fail(device, "make an event", code);
  *out = event;
  return 0;
}

static int event_wait(ek_device device, void *stream, void *event) {
  cl_event waited = event;
  device_state *state = state_of(device);
  if (state == NULL) return -1;
  cl_int code = cl.clFlush(state->queue); /* what the event waits for may not have been sent yet */
  if (code == CL_SUCCESS) {
    code = cl.clEnqueueBarrierWithWaitList(queue_of(state, stream), 1, &waited, NULL);
  }
  return code == CL_SUCCESS ? 0 : fail(device, "wait for an event", code);
}

/* Both are the ends of markers: what lies between is what was queued between them. */
static int event_time(ek_device device, void *from, void *to, int64_t *nanoseconds) {
  cl_event events[2] = {from, to};
  uint64_t times[2] = {0, 0};
  if (state_of(device) == NULL) return -1;
  cl_int code = cl.clWaitForEvents(2, events);
  for (int i = 0; i < 2 && code == CL_SUCCESS; i++) {
    code = cl.clGetEventProfilingInfo(events[i], CL_PROFILING_COMMAND_END, sizeof times[i],
                                      &times[i], NULL);
  }
  *nanoseconds = (int64_t)(times[1] - times[0]);
  return code == CL_SUCCESS ? 0 : fail(device, "time an event", code);
}

static void event_free(ek_device device, void *event) {
  (void)device;
  if (!is_forked) cl.clReleaseEvent(event);
}

/* Code ----------------------------------------------------------------------------------------- */

/* A form that code comes in. */
typedef struct code_form {
  const char *name, *options;
  bool is_text;
  cl_program (*make)(const device_state *state, const void *code, size_t size, cl_int *status);
} code_form;

static cl_program program_of_text(const device_state *state, const void *code, size_t size,
                                  cl_int *status) {
  const char *texts[1] = {code};
  return cl.clCreateProgramWithSource(state->context, 1, texts, &size, status);
}

static cl_program program_of_il(const device_state *state, const void *code, size_t size,
                                cl_int *status) {
  return il_of(state)(state->context, code, size, status);
}

static const code_form forms[] = {
    {"opencl", "-cl-std=CL1.2 -w", true, program_of_text},
    {"spirv", "", false, program_of_il},
};

/* 0 where a device takes a module of SPIR-V, else -1 with an error that says what it would take. */
static int check_il(ek_device device, const device_state *state, const char *name, const void *code,
                    size_t size) {
  char vendor[128];
  uint32_t wanted = 0, newest = newest_il(state);
  const char *fault = spirv_fault(code, size, &wanted);
  if (fault != NULL) {
    return host->error("DeviceError", "opencl(%d): kernel '%s': its code is no SPIR-V: %s", device.id,
                       name, fault);
  }
  if (newest >= wanted) return 0;
  device_text(state, CL_DEVICE_NAME, vendor, sizeof vendor);
  if (newest == 0) {
    return host->error("DeviceError", "opencl(%d): kernel '%s': the driver of '%s' takes no SPIR-V "
                       "(clCreateProgramWithIL); compile for 'opencl' without -mtriple, which makes "
                       "OpenCL C", device.id, name, vendor);
  }
  return host->error("DeviceError", "opencl(%d): kernel '%s': it is SPIR-V %u.%u, of which the driver "
                     "of '%s' takes %u.%u at most; compile for 'opencl -mtriple=spirv64v%u.%u', or for "
                     "'opencl', which makes OpenCL C", device.id, name, wanted >> 16 & 255,
                     wanted >> 8 & 255, vendor, newest >> 16, newest >> 8 & 255, newest >> 16,
                     newest >> 8 & 255);
}

/* The hint for a compiler that fails in a session, whose sandbox lets it start no linker. */
static const char *session_hint(void) {
  const char *said = getenv("EKIDEN_SESSION");
  if (said == NULL || *said == 0) return "";
  return "; in the sandbox of a session a compiler starts no other programs, such as a linker: a "
         "server that trusts its clients has none (sandbox=False, --no-sandbox)";
}

/* A text of the first bytes of what the compiler says. */
static int build_error(ek_device device, const device_state *state, cl_program program,
                       const char *name, const char *text, size_t size, cl_int code) {
  char vendor[128], place[256];
  char *log = calloc(1, 1 << 16);
  device_text(state, CL_DEVICE_NAME, vendor, sizeof vendor);
  if (log != NULL) {
    cl.clGetProgramBuildInfo(program, state->id, CL_PROGRAM_BUILD_LOG, (1 << 16) - 1, log, NULL);
  }
  log_place(log == NULL ? "" : log, text, size, place, sizeof place);
  int status = host->error("DeviceError", "opencl(%d): kernel '%s': %sthe OpenCL compiler of '%s' "
                           "refuses it (error %d): %.1500s%s", device.id, name, place, vendor, code,
                           log == NULL ? "" : log, session_hint());
  free(log);
  return status;
}

/* The program that was built before, or NULL. */
static cl_program program_of_cache(const device_state *state, const code_form *form, const char *key) {
  size_t size = 0;
  cl_int status, code = CL_SUCCESS;
  unsigned char *binary = cache_read(key, &size);
  if (binary == NULL) return NULL;
  const unsigned char *binaries[1] = {binary};
  cl_program program = cl.clCreateProgramWithBinary(state->context, 1, &state->id, &size, binaries,
                                                    &status, &code);
  free(binary);
  if (code != CL_SUCCESS) return NULL;
  if (cl.clBuildProgram(program, 1, &state->id, form->options, NULL, NULL) == CL_SUCCESS) return program;
  cl.clReleaseProgram(program);
  return NULL;
}

static void keep_program(cl_program program, const char *key) {
  size_t size = 0;
  if (cl.clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, NULL) != CL_SUCCESS) return;
  unsigned char *binary = size == 0 ? NULL : malloc(size);
  if (binary != NULL &&
      cl.clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof binary, &binary, NULL) == CL_SUCCESS) {
    cache_write(key, binary, size);
  }
  free(binary);
}

static void cache_name(const device_state *state, const code_form *form, const void *code, size_t size,
                       char *key, size_t capacity) {
  char names[3][256];
  device_text(state, CL_DEVICE_NAME, names[0], sizeof names[0]);
  device_text(state, CL_DRIVER_VERSION, names[1], sizeof names[1]);
  device_text(state, CL_DEVICE_VERSION, names[2], sizeof names[2]);
  cache_key(code, size, names, 3, form->options, key, capacity);
}

/* Sets the error of a kernel, with its name. */
static int fail_kernel(ek_device device, const char *name, cl_int code) {
  bool is_other = code == CL_INVALID_ARG_INDEX || code == CL_INVALID_KERNEL_ARGS ||
                  code == CL_INVALID_ARG_SIZE;
  const char *why = is_other                          ? "it takes other arguments than it is given"
                    : code == CL_INVALID_KERNEL_NAME ? "its code has none of that name"
                                                     : NULL;
  if (why != NULL) {
    return host->error("DeviceError", "opencl(%d): kernel '%s': %s (error %d)", device.id, name, why,
                       code);
  }
  char doing[128];
  snprintf(doing, sizeof doing, "kernel '%.96s'", name);
  return fail(device, doing, code);
}

/* A program by the driver's compiler; NULL with an error. */
static cl_program built(ek_device device, const device_state *state, const code_form *form,
                        const char *name, const void *code, size_t size) {
  cl_int status = CL_SUCCESS;
  if (!form->is_text && check_il(device, state, name, code, size) != 0) return NULL;
  cl_program program = form->make(state, code, size, &status);
  if (status == CL_INVALID_VALUE && !form->is_text) {
    char vendor[128];
    device_text(state, CL_DEVICE_NAME, vendor, sizeof vendor);
    host->error("DeviceError", "opencl(%d): kernel '%s': the driver of '%s' refuses its SPIR-V (error %d)",
                device.id, name, vendor, status);
    return NULL;
  }
  if (status != CL_SUCCESS || program == NULL) {
    fail_kernel(device, name, status);
    return NULL;
  }
  status = cl.clBuildProgram(program, 1, &state->id, form->options, NULL, NULL);
  if (status == CL_SUCCESS) return program;
  if (is_memory(status)) fail_kernel(device, name, status);
  else build_error(device, state, program, name, form->is_text ? code : "", form->is_text ? size : 0, status);
  cl.clReleaseProgram(program);
  return NULL;
}

static int device_load(ek_device device, const char *format, const char *name, const void *code,
                       size_t size, void **out) {
  char key[CACHE_KEY];
  const code_form *form = NULL;
  const device_state *state = state_of(device);
  if (state == NULL) return -1;
  for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
    if (strcmp(format, forms[i].name) == 0) form = &forms[i];
  }
  if (form == NULL) {
    return host->error("DeviceError", "opencl(%d): kernel '%s': code of format 'opencl' or 'spirv' "
                       "expected, got '%s'", device.id, name, format);
  }
  cache_name(state, form, code, size, key, sizeof key);
  cl_program program = program_of_cache(state, form, key);
  if (program == NULL) {
    program = built(device, state, form, name, code, size);
    if (program == NULL) return -1;
    keep_program(program, key);
  }
  *out = program;
  return 0;
}

static void device_unload(ek_device device, void *module) {
  (void)device;
  if (!is_forked) cl.clReleaseProgram(module);
}

/* A kernel, whose arguments are its own state: one launch at a time sets them. */
typedef struct device_kernel {
  cl_kernel kernel;
  size_t most;                 /* threads of a block */
  pthread_mutex_t lock;
  char name[96];
} device_kernel;

static int kernel_of(ek_device device, void *module, const char *name, void **out) {
  cl_int code;
  const device_state *state = state_of(device);
  if (state == NULL) return -1;
  device_kernel *made = calloc(1, sizeof *made);
  if (made == NULL) return fail_kernel(device, name, CL_OUT_OF_HOST_MEMORY);
  made->kernel = cl.clCreateKernel(module, name, &code);
  if (code == CL_SUCCESS) {
    code = cl.clGetKernelWorkGroupInfo(made->kernel, state->id, CL_KERNEL_WORK_GROUP_SIZE,
                                       sizeof made->most, &made->most, NULL);
  }
  if (code != CL_SUCCESS) {
    free(made);
    return fail_kernel(device, name, code);
  }
  pthread_mutex_init(&made->lock, NULL);
  snprintf(made->name, sizeof made->name, "%s", name);
  *out = made; /* as its program, it lives as long as the code that has it: the process, mostly */
  return 0;
}

static int set_args(ek_device device, device_state *state, device_kernel *k, const ek_launch *launch) {
  cl_uint at = 0;
  cl_int code = CL_SUCCESS;
  for (int32_t i = 0; i < launch->n_args && code == CL_SUCCESS; i++) {
    const ek_launch_arg *arg = &launch->args[i];
    if (arg->size != 0) {
      code = cl.clSetKernelArg(k->kernel, at++, (size_t)arg->size, &arg->number);
      continue;
    }
    cl_mem memory;
    size_t offset;
    if (find_memory(device, state, arg->memory, 0, &memory, &offset) != 0) {
      return host->error("DeviceError", "opencl(%d): kernel '%s': argument %d, at %p, is no memory of "
                         "the device", device.id, k->name, i, arg->memory);
    }
    int64_t place = (int64_t)offset;
    code = cl.clSetKernelArg(k->kernel, at++, sizeof memory, &memory);
    if (code == CL_SUCCESS) code = cl.clSetKernelArg(k->kernel, at++, sizeof place, &place);
    cl.clReleaseMemObject(memory);
  }
  return code == CL_SUCCESS ? 0 : fail_kernel(device, k->name, code);
}

static int device_launch(ek_device device, void *stream, void *kernel, const ek_launch *launch) {
  device_kernel *k = kernel;
  size_t global[3], local[3], threads = 1;
  device_state *state = state_of(device);
  if (state == NULL) return -1;
  for (int i = 0; i < 3; i++) {
    local[i] = (size_t)launch->threads[i];
    global[i] = (size_t)launch->blocks[i] * local[i];
    threads *= local[i];
  }
  if (threads > k->most) {
    return host->error("DeviceError", "opencl(%d): kernel '%s': %zu threads a block, of which this "
                       "device runs at most %zu; the target's option max_num_threads says so",
                       device.id, k->name, threads, k->most);
  }
  pthread_mutex_lock(&k->lock);
  int status = set_args(device, state, k, launch);
  cl_int code = CL_SUCCESS;
  if (status == 0) {
    code = cl.clEnqueueNDRangeKernel(queue_of(state, stream), k->kernel, 3, NULL, global, local, 0,
                                     NULL, NULL);
  }
  pthread_mutex_unlock(&k->lock);
  if (status != 0) return -1;
  return code == CL_SUCCESS ? 0 : fail_kernel(device, k->name, code);
}

/* The table ------------------------------------------------------------------------------------ */

static const ek_device_table table = {
    .name = "opencl", .alloc = device_alloc, .free = device_free, .copy = device_copy,
    .count = device_count, .attribute = device_attribute, .stream_new = stream_new,
    .stream_free = stream_free, .synchronize = synchronize, .event_new = event_new,
    .event_wait = event_wait, .event_time = event_time, .event_free = event_free,
    .load = device_load, .unload = device_unload, .kernel = kernel_of, .launch = device_launch};

/* Devices other than processors come first. */
static void find_devices(void) {
  static const uint64_t kinds[] = {CL_DEVICE_TYPE_GPU | CL_DEVICE_TYPE_ACCELERATOR,
                                   CL_DEVICE_TYPE_CPU};
  cl_platform_id platforms[MAX_PLATFORMS];
  cl_uint n_platforms = 0;
  if (cl.clGetPlatformIDs(MAX_PLATFORMS, platforms, &n_platforms) != CL_SUCCESS) return;
  if (n_platforms > MAX_PLATFORMS) n_platforms = MAX_PLATFORMS;
  for (size_t kind = 0; kind < 2; kind++) {
    for (cl_uint p = 0; p < n_platforms && n_devices < MAX_DEVICES; p++) {
      cl_device_id found[MAX_DEVICES];
      cl_uint n = 0, room = (cl_uint)(MAX_DEVICES - n_devices);
      if (cl.clGetDeviceIDs(platforms[p], kinds[kind], room, found, &n) != CL_SUCCESS) continue;
      for (cl_uint i = 0; i < n && i < room; i++) devices[n_devices++].id = found[i];
    }
  }
}

EK_API int ek_driver_open(const ek_driver_host *given);
int ek_driver_open(const ek_driver_host *given) {
  const char *missing = NULL;
  host = given;
  if (given->version != 1) {
    return given->error("DeviceError", "opencl: a runtime of version 1 expected, got %d; install "
                        "driver and runtime together", given->version);
  }
  char why[256];
  void *library = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) snprintf(why, sizeof why, "%s", dlerror());
  if (library == NULL) library = dlopen("libOpenCL.so", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    return given->error("DeviceError", "opencl: libOpenCL.so.1 is not there: install an OpenCL loader "
                        "and a driver (Debian: ocl-icd-libopencl1, and pocl-opencl-icd for CPUs); the "
                        "system says: %s", why);
  }
  missing = opencl_api_load(&cl, library);
  void *found = dlsym(library, "clCreateProgramWithIL");
  memcpy(&from_il, &found, sizeof from_il);
  if (missing != NULL) {
    return given->error("DeviceError", "opencl: libOpenCL.so.1 has no '%s'; install one of OpenCL 1.2 "
                        "or later", missing);
  }
  if (n_devices == 0) find_devices();
  if (n_devices != 0) pthread_atfork(NULL, NULL, after_fork);
  if (n_devices == 0) {
    return given->error("DeviceError", "opencl: libOpenCL.so.1 finds no device: install a driver "
                        "(Debian: pocl-opencl-icd for CPUs)");
  }
  return given->register_device(EK_OPENCL_TYPE, &table);
}
