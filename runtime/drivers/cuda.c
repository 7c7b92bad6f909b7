/* The driver of CUDA devices: a table of functions for the runtime over the system's libcuda.so.1,
** which comes with NVIDIA's driver and is looked for when this library is opened. It needs neither
** header nor library to be built.
**
** Everything happens in the primary context of a device, which other libraries of the process use
** too; each call restores the thread's current context when it returns. Stream 0 is the device's
** default stream; other streams run concurrently.
**
** Errors of a kernel are reported by the next synchronisation. From then on the driver refuses
** every call for that device, so kernels launched since the last synchronisation are recorded, and
** every later error names what lost the device. */
#include "ekiden/runtime.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda_api.h"
#include "cuda_build.h"

enum { MAX_DEVICES = 16, MAX_ARGS = 128, NAME = 96, MEMORY_ALIGNMENT = 256, LOG = 1 << 14 };

typedef struct device_state {
  CUdevice id;
  CUcontext context;           /* NULL until it is first used */
  pthread_mutex_t lock;        /* guards all of this */
  int64_t n_launched;          /* since the last wait */
  char last[NAME];             /* the last kernel of those */
  char lost[512];              /* what went wrong, once something did that cannot be mended */
} device_state;

static const ek_driver_host *host;
static cuda_api cu;
static int driver_version;     /* 13000 for CUDA 13.0 */
static device_state devices[MAX_DEVICES];
static int32_t n_devices;

/* Errors --------------------------------------------------------------------------------------- */

static const char *said(CUresult (*ask)(CUresult, const char **), CUresult code) {
  const char *text = NULL;
  return ask(code, &text) == CUDA_SUCCESS && text != NULL ? text : "unknown";
}

/* Whether a device refuses everything from now on. */
static bool is_lost(CUresult code) {
  switch (code) {
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_EXTERNAL_DEVICE: return true;
    default: return code >= CUDA_ERROR_HARDWARE_STACK_ERROR && code <= CUDA_ERROR_LAUNCH_FAILED;
  }
}

/* Remembers what lost a device, by the kernels that it had not finished. Under the state's lock.
** Kernels run behind their launch, so that what is known when one has failed is which were not
** waited for; CUDA_LAUNCH_BLOCKING=1 makes every launch wait. */
static void lose(device_state *state, CUresult code) {
  char suspects[NAME + 96] = "";
  if (state->n_launched == 1) snprintf(suspects, sizeof suspects, " in kernel '%s'", state->last);
  if (state->n_launched > 1) {
    snprintf(suspects, sizeof suspects, " in one of the last %lld kernels, of which '%s' came last "
             "(CUDA_LAUNCH_BLOCKING=1 tells which)", (long long)state->n_launched, state->last);
  }
  snprintf(state->lost, sizeof state->lost, "it is lost to this process: %s (%s)%s",
           said(cu.cuGetErrorName, code), said(cu.cuGetErrorString, code), suspects);
}

static int fail(ek_device device, const char *doing, CUresult code) {
  device_state *state = &devices[device.id];
  char lost[sizeof state->lost] = "";
  if (code == CUDA_ERROR_OUT_OF_MEMORY) {
    return host->error("MemoryError", "cuda(%d): %s: it has too little memory", device.id, doing);
  }
  pthread_mutex_lock(&state->lock);
  if (is_lost(code) && state->lost[0] == '\0') lose(state, code);
  memcpy(lost, state->lost, sizeof lost);
  pthread_mutex_unlock(&state->lock);
  if (lost[0] != '\0') return host->error("DeviceError", "cuda(%d): %s: %s", device.id, doing, lost);
  return host->error("DeviceError", "cuda(%d): %s: the driver failed: %s (%s)", device.id, doing,
                     said(cu.cuGetErrorName, code), said(cu.cuGetErrorString, code));
}

/* Devices -------------------------------------------------------------------------------------- */

static device_state *known(ek_device device) {
  if (device.id >= 0 && device.id < n_devices) return &devices[device.id];
  host->error("DeviceError", "cuda(%d): there is no such device: %d found here", device.id, n_devices);
  return NULL;
}

/* The context of a device, which is made at its first use. */
static CUresult context_of(device_state *state, CUcontext *out) {
  CUresult code = CUDA_SUCCESS;
  pthread_mutex_lock(&state->lock);
  if (state->context == NULL) code = cu.cuDevicePrimaryCtxRetain(&state->context, state->id);
  *out = state->context;
  pthread_mutex_unlock(&state->lock);
  return code;
}

/* The state of a device, whose context is the thread's until 'leave'; NULL with an error. Pushed
** and popped, and never set: a thread of PyTorch's, which calls us in the middle of its own work,
** finds the context that it had. */
static device_state *enter(ek_device device, const char *doing) {
  CUcontext context;
  device_state *state = known(device);
  if (state == NULL) return NULL;
  CUresult code = context_of(state, &context);
  if (code == CUDA_SUCCESS) code = cu.cuCtxPushCurrent_v2(context);
  if (code == CUDA_SUCCESS) return state;
  fail(device, doing, code);
  return NULL;
}

/* The end of what 'enter' began: 0, or -1 with an error for a code that is one. */
static int leave(ek_device device, const char *doing, CUresult code) {
  CUcontext context;
  cu.cuCtxPopCurrent_v2(&context);
  return code == CUDA_SUCCESS ? 0 : fail(device, doing, code);
}

static int device_count(int32_t *out) {
  *out = n_devices;
  return 0;
}

static int number_of(const device_state *state, int which) {
  int number = 0;
  return cu.cuDeviceGetAttribute(&number, which, state->id) == CUDA_SUCCESS ? number : 0;
}

/* Compute capability 9.0 is 90. */
static int architecture(const device_state *state) {
  return 10 * number_of(state, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
         number_of(state, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
}

/* Abilities that code may require, by short names, and the first architecture with each. */
static void abilities(int has, char *text, size_t capacity) {
  static const struct { const char *name; int since; } all[] = {
      {"fp64", 13}, {"subgroups", 30}, {"atomics64", 13}, {"fp16", 53},        {"dot4", 61},
      {"mma", 70},  {"bf16", 80},      {"async_copy", 80}, {"fp8", 89}};
  text[0] = '\0';
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    size_t used = strlen(text);
    if (has >= all[i].since) {
      snprintf(text + used, capacity - used, "%s%s", used == 0 ? "" : " ", all[i].name);
    }
  }
}

static int64_t memory_of(const device_state *state) {
  size_t size = 0;
  return cu.cuDeviceTotalMem_v2(&size, state->id) == CUDA_SUCCESS ? (int64_t)size : 0;
}

static int device_attribute(ek_device device, int32_t which, int64_t *number, char *text,
                            size_t capacity) {
  const device_state *state = known(device);
  if (state == NULL) return -1;
  switch (which) {
    case EK_DEVICE_NAME:
      if (cu.cuDeviceGetName(text, (int)capacity, state->id) != CUDA_SUCCESS) text[0] = '\0';
      break;
    case EK_DEVICE_VENDOR: snprintf(text, capacity, "NVIDIA"); break;
    case EK_DEVICE_DRIVER:
      snprintf(text, capacity, "CUDA %d.%d", driver_version / 1000, driver_version % 1000 / 10);
      break;
    case EK_DEVICE_VERSION: snprintf(text, capacity, "sm_%d", architecture(state)); break;
    case EK_DEVICE_ABILITIES: abilities(architecture(state), text, capacity); break;
    case EK_DEVICE_MAX_THREADS: *number = number_of(state, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK); break;
    case EK_DEVICE_SHARED_MEMORY:
      *number = number_of(state, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
      break;
    case EK_DEVICE_UNITS: *number = number_of(state, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT); break;
    case EK_DEVICE_CLOCK: *number = number_of(state, CU_DEVICE_ATTRIBUTE_CLOCK_RATE) / 1000; break;
    case EK_DEVICE_MEMORY: *number = memory_of(state); break;
    case EK_DEVICE_ALIGNMENT: *number = MEMORY_ALIGNMENT; break;
    case EK_DEVICE_WARP: *number = number_of(state, CU_DEVICE_ATTRIBUTE_WARP_SIZE); break;
    default: return host->error("ValueError", "cuda: there is no attribute %d", which);
  }
  return 0;
}

/* Memory --------------------------------------------------------------------------------------- */

static CUdeviceptr address(const void *data) { return (CUdeviceptr)(uintptr_t)data; }

/* cuMemAlloc aligns to MEMORY_ALIGNMENT. For a larger alignment, that many bytes more are allocated
** and the address is rounded up; device_free asks the driver for the start of the block. */
static int device_alloc(ek_device device, size_t size, size_t alignment, const char *scope,
                        void **out) {
  char doing[64];
  size_t more = alignment > MEMORY_ALIGNMENT ? alignment : 0;
  CUdeviceptr memory = 0;
  snprintf(doing, sizeof doing, "allocate %zu bytes", size);
  if (scope != NULL && strcmp(scope, "global") != 0) {
    return host->error("DeviceError", "cuda(%d): there is no memory '%s', expected 'global'",
                       device.id, scope);
  }
  if (enter(device, doing) == NULL) return -1;
  CUresult code = size > SIZE_MAX - more ? CUDA_ERROR_OUT_OF_MEMORY
                                         : cu.cuMemAlloc_v2(&memory, size + more == 0 ? 1 : size + more);
  if (more != 0) memory = (memory + alignment - 1) / alignment * alignment;
  if (code == CUDA_SUCCESS) *out = (void *)(uintptr_t)memory;
  return leave(device, doing, code);
}

/* Waits for what uses the memory. An address behind the begin of a block, where an alignment moved
** it, frees the block. */
static void device_free(ek_device device, void *data, size_t size) {
  CUcontext context;
  CUdeviceptr begin = 0;
  size_t whole;
  device_state *state = known(device);
  (void)size;
  if (state == NULL || context_of(state, &context) != CUDA_SUCCESS) return;
  if (cu.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS) return;
  if (cu.cuMemGetAddressRange_v2(&begin, &whole, address(data)) == CUDA_SUCCESS) cu.cuMemFree_v2(begin);
  cu.cuCtxPopCurrent_v2(&context);
}

/* All that was launched on the device's own stream has been waited for. */
static void finished(device_state *state) {
  pthread_mutex_lock(&state->lock);
  state->n_launched = 0;
  pthread_mutex_unlock(&state->lock);
}

static CUresult wait_for(device_state *state, CUstream stream) {
  CUresult code = cu.cuStreamSynchronize(stream);
  if (code == CUDA_SUCCESS && stream == NULL) finished(state);
  return code;
}

static CUresult copy_between(ek_device from_device, const void *from, ek_device to_device, void *to,
                             size_t size, CUstream stream) {
  CUcontext source, target;
  if (from_device.type != EK_CUDA) return cu.cuMemcpyHtoDAsync_v2(address(to), from, size, stream);
  if (to_device.type != EK_CUDA) return cu.cuMemcpyDtoHAsync_v2(to, address(from), size, stream);
  if (from_device.id == to_device.id) {
    return cu.cuMemcpyDtoDAsync_v2(address(to), address(from), size, stream);
  }
  CUresult code = context_of(&devices[from_device.id], &source);
  if (code == CUDA_SUCCESS) code = context_of(&devices[to_device.id], &target);
  if (code != CUDA_SUCCESS) return code;
  return cu.cuMemcpyPeerAsync(address(to), target, address(from), source, size, stream);
}

/* Queued like kernels, and waited for where the caller gives no stream: a copy to the host follows
** what computes it. */
static int device_copy(const void *from, ek_device from_device, void *to, ek_device to_device,
                       size_t size, void *stream) {
  bool is_fetched = to_device.type != EK_CUDA;
  ek_device device = from_device.type == EK_CUDA ? from_device : to_device;
  const char *doing = is_fetched ? "copy to the host" : device.id == to_device.id &&
                      from_device.type == EK_CUDA ? "copy" : "copy to the device";
  if (size == 0) return 0;
  if (!is_fetched && known(to_device) == NULL) return -1;
  device_state *state = enter(device, doing);
  if (state == NULL) return -1;
  CUresult code = copy_between(from_device, from, to_device, to, size, stream);
  if (code == CUDA_SUCCESS && stream == NULL) code = wait_for(state, NULL);
  return leave(device, doing, code);
}

/* Streams and events --------------------------------------------------------------------------- */

/* NON_BLOCKING: the device's own stream, where it is the legacy one, would else wait for this and
** this for it. */
static int stream_new(ek_device device, void **out) {
  CUstream result = NULL;
  if (enter(device, "make a stream") == NULL) return -1;
  CUresult code = cu.cuStreamCreate(&result, CU_STREAM_NON_BLOCKING);
  *out = result;
  return leave(device, "make a stream", code);
}

static void stream_free(ek_device device, void *stream) {
  if (enter(device, "free a stream") == NULL) return;
  cu.cuStreamDestroy_v2(stream);
  leave(device, "free a stream", CUDA_SUCCESS);
}

static int synchronize(ek_device device, void *stream) {
  device_state *state = enter(device, "wait");
  return state == NULL ? -1 : leave(device, "wait", wait_for(state, stream));
}

static int event_new(ek_device device, void *stream, void **out) {
  CUevent event = NULL;
  if (enter(device, "make an event") == NULL) return -1;
  CUresult code = cu.cuEventCreate(&event, 0);
  if (code == CUDA_SUCCESS) {
    code = cu.cuEventRecord(event, stream);
    if (code != CUDA_SUCCESS) cu.cuEventDestroy_v2(event);
  }
  *out = event;
  return leave(device, "make an event", code);
}

static int event_wait(ek_device device, void *stream, void *event) {
  if (enter(device, "wait for an event") == NULL) return -1;
  return leave(device, "wait for an event", cu.cuStreamWaitEvent(stream, event, 0));
}

static int event_time(ek_device device, void *from, void *to, int64_t *nanoseconds) {
  float milliseconds = 0;
  if (enter(device, "time an event") == NULL) return -1;
  CUresult code = cu.cuEventSynchronize(from);
  if (code == CUDA_SUCCESS) code = cu.cuEventSynchronize(to);
  if (code == CUDA_SUCCESS) code = cu.cuEventElapsedTime(&milliseconds, from, to);
  *nanoseconds = (int64_t)((double)milliseconds * 1e6);
  return leave(device, "time an event", code);
}

static void event_free(ek_device device, void *event) {
  if (enter(device, "free an event") == NULL) return;
  cu.cuEventDestroy_v2(event);
  leave(device, "free an event", CUDA_SUCCESS);
}

/* Code ----------------------------------------------------------------------------------------- */

typedef struct kernel {
  struct kernel *next;         /* of the same module */
  CUfunction function;
  int64_t most;                /* threads of a block */
  char name[NAME];
} kernel;

typedef struct module {
  CUmodule code;
  kernel *kernels;             /* owned */
  pthread_mutex_t lock;        /* guards the list */
} module;

/* The driver's half of building, which PTX goes through a compiler in. */
static int load_image(ek_device device, const char *name, const char *image, CUmodule *out) {
  int options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  char doing[NAME + 32];
  char *log = calloc(1, LOG);
  void *values[] = {log, (void *)(uintptr_t)(log == NULL ? 0 : LOG - 1)};
  snprintf(doing, sizeof doing, "kernel '%.96s'", name);
  CUresult code = CUDA_ERROR_OUT_OF_MEMORY;
  if (enter(device, doing) == NULL) {
    free(log);
    return -1;
  }
  if (log != NULL) code = cu.cuModuleLoadDataEx(out, image, 2, options, values);
  int status = 0;
  if (code != CUDA_SUCCESS && log != NULL && log[0] != '\0' && !is_lost(code)) {
    leave(device, doing, CUDA_SUCCESS);
    status = host->error("DeviceError", "cuda(%d): %s: the driver refuses its code: %s: %.1500s",
                         device.id, doing, said(cu.cuGetErrorName, code), log);
  } else {
    status = leave(device, doing, code);
  }
  free(log);
  return status;
}

/* Code as the driver takes it, a zero behind it, in memory from malloc; NULL with an error. */
static char *image_of(ek_device device, const device_state *state, const char *format,
                      const char *name, const void *code, size_t size) {
  if (strcmp(format, "cuda") == 0) {
    cuda_kind kind = {architecture(state), driver_version};
    return cuda_build(host, device, kind, name, code, size, &size);
  }
  if (strcmp(format, "ptx") != 0 && strcmp(format, "cubin") != 0) {
    host->error("DeviceError", "cuda(%d): kernel '%s': code of format 'cuda', 'ptx' or 'cubin' "
                "expected, got '%s'", device.id, name, format);
    return NULL;
  }
  char *image = malloc(size + 1);
  if (image == NULL) {
    host->error("MemoryError", "cuda(%d): kernel '%s': no memory for its code", device.id, name);
    return NULL;
  }
  memcpy(image, code, size);
  image[size] = '\0';
  return image;
}

static int device_load(ek_device device, const char *format, const char *name, const void *code,
                       size_t size, void **out) {
  const device_state *state = known(device);
  char *image = state == NULL ? NULL : image_of(device, state, format, name, code, size);
  module *new_module = image == NULL ? NULL : calloc(1, sizeof *new_module);
  int status = -1;
  if (image != NULL && new_module == NULL) fail(device, name, CUDA_ERROR_OUT_OF_MEMORY);
  if (new_module != NULL) status = load_image(device, name, image, &new_module->code);
  free(image);
  if (status == 0) {
    pthread_mutex_init(&new_module->lock, NULL);
    *out = new_module;
  } else {
    free(new_module);
  }
  return status;
}

static void device_unload(ek_device device, void *given) {
  module *m = given;
  if (enter(device, "unload code") != NULL) {
    cu.cuModuleUnload(m->code);
    leave(device, "unload code", CUDA_SUCCESS);
  }
  for (kernel *k = m->kernels, *next; k != NULL; k = next) {
    next = k->next;
    free(k);
  }
  pthread_mutex_destroy(&m->lock);
  free(m);
}

static int kernel_of(ek_device device, void *given, const char *name, void **out) {
  module *m = given;
  int most = 0;
  kernel *new_kernel = calloc(1, sizeof *new_kernel);
  if (new_kernel == NULL) return fail(device, name, CUDA_ERROR_OUT_OF_MEMORY);
  snprintf(new_kernel->name, sizeof new_kernel->name, "%s", name);
  if (enter(device, name) == NULL) {
    free(new_kernel);
    return -1;
  }
  CUresult code = cu.cuModuleGetFunction(&new_kernel->function, m->code, name);
  if (code == CUDA_SUCCESS) {
    code = cu.cuFuncGetAttribute(&most, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, new_kernel->function);
  }
  new_kernel->most = most;
  if (code != CUDA_SUCCESS) {
    free(new_kernel);
    return leave(device, name, code);
  }
  pthread_mutex_lock(&m->lock);
  new_kernel->next = m->kernels;
  m->kernels = new_kernel;
  pthread_mutex_unlock(&m->lock);
  *out = new_kernel;
  return leave(device, name, code);
}

/* A kernel was launched, and may be what goes wrong. */
static void launched(device_state *state, const kernel *k) {
  pthread_mutex_lock(&state->lock);
  state->n_launched++;
  memcpy(state->last, k->name, sizeof state->last);
  pthread_mutex_unlock(&state->lock);
}

static int check_launch(ek_device device, const kernel *k, const ek_launch *launch) {
  static const int64_t most[3] = {INT32_MAX, 65535, 65535};
  double threads = 1;
  for (int i = 0; i < 3; i++) threads *= (double)launch->threads[i];
  if (threads > (double)k->most) {
    return host->error("DeviceError", "cuda(%d): kernel '%s': %.0f threads a block, of which this "
                       "device runs at most %lld; the target's option max_num_threads says so",
                       device.id, k->name, threads, (long long)k->most);
  }
  for (int i = 0; i < 3; i++) {
    if (launch->blocks[i] <= most[i]) continue;
    return host->error("DeviceError", "cuda(%d): kernel '%s': %lld blocks along %c, of which there "
                       "are at most %lld", device.id, k->name, (long long)launch->blocks[i], "xyz"[i],
                       (long long)most[i]);
  }
  if (launch->n_args <= MAX_ARGS) return 0;
  return host->error("DeviceError", "cuda(%d): kernel '%s': %d arguments, at most %d expected",
                     device.id, k->name, launch->n_args, MAX_ARGS);
}

static int device_launch(ek_device device, void *stream, void *given, const ek_launch *launch) {
  kernel *k = given;
  void *args[MAX_ARGS];
  char doing[NAME + 32];
  unsigned grid[6];
  if (check_launch(device, k, launch) != 0) return -1;
  snprintf(doing, sizeof doing, "kernel '%s'", k->name);
  for (int32_t i = 0; i < launch->n_args; i++) {
    const ek_launch_arg *arg = &launch->args[i];
    const void *place = arg->size == 0 ? (const void *)&arg->memory : (const void *)&arg->number;
    memcpy(&args[i], &place, sizeof place);
  }
  for (int i = 0; i < 3; i++) {
    grid[i] = (unsigned)launch->blocks[i];
    grid[3 + i] = (unsigned)launch->threads[i];
  }
  device_state *state = enter(device, doing);
  if (state == NULL) return -1;
  launched(state, k);
  CUresult code = cu.cuLaunchKernel(k->function, grid[0], grid[1], grid[2], grid[3], grid[4], grid[5],
                                    0, stream, args, NULL);
  return leave(device, doing, code);
}

/* The table ------------------------------------------------------------------------------------ */

static const ek_device_table table = {
    .name = "cuda", .alloc = device_alloc, .free = device_free, .copy = device_copy,
    .count = device_count, .attribute = device_attribute, .stream_new = stream_new,
    .stream_free = stream_free, .synchronize = synchronize, .event_new = event_new,
    .event_wait = event_wait, .event_time = event_time, .event_free = event_free,
    .load = device_load, .unload = device_unload, .kernel = kernel_of, .launch = device_launch};

static CUresult find_devices(void) {
  int n = 0;
  CUresult code = cu.cuInit(0);
  if (code == CUDA_SUCCESS) code = cu.cuDriverGetVersion(&driver_version);
  if (code == CUDA_SUCCESS) code = cu.cuDeviceGetCount(&n);
  for (int i = 0; i < n && i < MAX_DEVICES && code == CUDA_SUCCESS; i++) {
    code = cu.cuDeviceGet(&devices[i].id, i);
    if (code == CUDA_SUCCESS) pthread_mutex_init(&devices[n_devices++].lock, NULL);
  }
  return code == CUDA_SUCCESS && n_devices == 0 ? CUDA_ERROR_NO_DEVICE : code;
}

EK_API int ek_driver_open(const ek_driver_host *given);
int ek_driver_open(const ek_driver_host *given) {
  static const char *const names[] = {CUDA_FUNCTIONS(DRIVER_NAME)};
  host = given;
  if (given->version != 1) {
    return given->error("DeviceError", "cuda: a runtime of version 1 expected, got %d; install "
                        "driver and runtime together", given->version);
  }
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    return given->error("DeviceError", "cuda: libcuda.so.1 is not there: install NVIDIA's driver "
                        "(Debian: nvidia-driver; in a container, NVIDIA's container toolkit); the "
                        "system says: %s", dlerror());
  }
  const char *missing = driver_find(library, names, sizeof names / sizeof names[0], &cu);
  if (missing != NULL) {
    return given->error("DeviceError", "cuda: libcuda.so.1 has no '%s'; install a driver of CUDA 11 or "
                        "later", missing);
  }
  n_devices = 0;
  CUresult code = find_devices();
  if (code != CUDA_SUCCESS) {
    return given->error("DeviceError", "cuda: libcuda.so.1 finds no device: %s (%s); nvidia-smi shows "
                        "what the driver sees", said(cu.cuGetErrorName, code),
                        said(cu.cuGetErrorString, code));
  }
  return given->register_device(EK_CUDA, &table);
}
