/* libcuda.so.1 without a GPU: the calls of CUDA's driver that the driver of Ekiden makes, on this
** processor, as late and as strict as they may be. Nothing queued happens before something waits for
** it. Addresses of a device are those of the host moved by a constant, so that whoever takes one for
** the other crashes. Every call checks that the thread's context is the one of what it is given. Code
** is what nvrtc_stand_in.c makes. An error of a kernel loses its device, as it does there.
**
** stand_in_fail(function, code, skip): a later call of that function gives the code instead; of a
** negative skip all calls from the -skip-th on, until it is told otherwise.
** stand_in_calls(function): how often it was called. stand_in_left(): what was not given back.
** stand_in_overtaken(): how many copies there were before kernels that were queued first. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cuda_api.h"

#define STAND_IN __attribute__((visibility("default")))

enum { DEVICES = 16, THREADS = 1024, CALLS = 64, DEPTH = 16 };
static const size_t memory_size = (size_t)1 << 30;
static const uint64_t moved = (uint64_t)1 << 50;

typedef struct block { struct block *next; char *data; size_t size; } block;

struct cuda_context {
  int device;
  CUresult error;                          /* what lost it */
  size_t used;
  block *blocks;
  struct cuda_stream *streams;
};

typedef enum command_kind { COPY, LAUNCH, RECORD, WAIT } command_kind;

typedef struct command {
  struct command *next;
  command_kind kind;
  uint64_t number, order;                  /* in its stream, among all commands */
  void *to;
  const void *from;
  size_t size;
  struct cuda_function *function;
  int64_t grid[6];
  void *args[64];
  struct cuda_event *event;
} command;

struct cuda_stream { struct cuda_stream *next; CUcontext context; command *first, **last; uint64_t queued; };
struct cuda_event { CUcontext context; CUstream stream; uint64_t number; bool is_done, is_freed; int uses; struct timespec time; };
struct cuda_module {
  CUcontext context;
  void *library;
  struct cuda_function *functions;
  const char *(*launch)(void (*)(void **), const int64_t *, void **);
};
struct cuda_function { struct cuda_function *next; CUmodule module; void (*call)(void **); int n_args; };

static struct cuda_context contexts[DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread CUcontext stack[DEPTH];
static __thread int depth;
static int events, streams, modules, blocks;
static uint64_t queued;

/* Calls ---------------------------------------------------------------------------------------- */

static struct { char name[40]; int calls, skip; CUresult code; } all[CALLS];

static int row_of(const char *name) {
  for (int i = 0; i < CALLS; i++) {
    if (all[i].name[0] == '\0') snprintf(all[i].name, sizeof all[i].name, "%s", name);
    if (strcmp(all[i].name, name) == 0) return i;
  }
  abort();
}

STAND_IN void stand_in_fail(const char *name, CUresult code, int skip) {
  int row = row_of(name);
  all[row].code = code;
  all[row].skip = skip;
}

static int overtaken;
STAND_IN int stand_in_overtaken(void) { return overtaken; }

STAND_IN int stand_in_calls(const char *name) { return all[row_of(name)].calls; }

STAND_IN int stand_in_left(void) { return events + streams + modules + blocks + depth; }

/* A device as it was before it was lost: what a new process would see. */
STAND_IN void stand_in_mend(void) { contexts[0].error = contexts[1].error = CUDA_SUCCESS; }

/* Under the lock, of which each call is the holder. */
static CUresult begin(const char *name) {
  int row = row_of(name);
  all[row].calls++;
  if (all[row].skip == -1) return all[row].code;
  if (all[row].code != CUDA_SUCCESS && all[row].skip < -1) {
    all[row].skip++;
  } else if (all[row].code != CUDA_SUCCESS && all[row].skip-- == 0) {
    CUresult code = all[row].code;
    all[row].code = CUDA_SUCCESS;
    return code;
  }
  return CUDA_SUCCESS;
}

static CUcontext current(void) { return depth == 0 ? NULL : stack[depth - 1]; }

/* The start of a call that needs the context of something, or any where that is NULL. */
static CUresult begin_in(const char *name, CUcontext wanted) {
  CUresult code = begin(name);
  if (current() == NULL || (wanted != NULL && wanted != current())) return 201;
  if (code >= CUDA_ERROR_ILLEGAL_ADDRESS && code != 701) current()->error = code; /* what is queued is lost */
  return code != CUDA_SUCCESS ? code : current()->error;
}

#define CALL(check)                                                                                \
  pthread_mutex_lock(&lock);                                                                       \
  CUresult code = check;

static CUresult end(CUresult code) {
  pthread_mutex_unlock(&lock);
  return code;
}

/* Memory --------------------------------------------------------------------------------------- */

/* Where 'size' bytes at an address of a device are here; NULL if they are not in one block. */
static char *real(CUcontext context, uint64_t address, size_t size) {
  char *at = (char *)(uintptr_t)(address - moved);
  for (block *b = context->blocks; b != NULL && address >= moved; b = b->next) {
    if (at >= b->data && at + size <= b->data + b->size) return at;
  }
  return NULL;
}

/* Commands ------------------------------------------------------------------------------------- */

static CUresult run_until(CUstream stream, uint64_t number);

/* Whether kernels that were queued before a command have not run. */
static bool is_first(CUcontext context, const command *c) {
  for (CUstream s = context->streams; s != NULL; s = s->next) {
    for (const command *other = s->first; other != NULL; other = other->next) {
      if (other->kind == LAUNCH && other->order < c->order) return true;
    }
  }
  return false;
}

static CUresult run(CUcontext context, command *c) {
  CUresult code = CUDA_SUCCESS;
  if (c->kind == COPY) overtaken += is_first(context, c);
  if (c->kind == COPY) memcpy(c->to, c->from, c->size);
  if (c->kind == WAIT && !c->event->is_done) code = run_until(c->event->stream, c->event->number);
  if (c->kind == RECORD) {
    clock_gettime(CLOCK_MONOTONIC, &c->event->time);
    c->event->is_done = true;
  }
  if (c->kind == LAUNCH) {
    const char *wrong = c->function->module->launch(c->function->call, c->grid, c->args);
    if (wrong != NULL) fprintf(stderr, "cuda_stand_in: %s\n", wrong);
    if (wrong != NULL) code = CUDA_ERROR_LAUNCH_FAILED;
  }
  if (code != CUDA_SUCCESS) context->error = code;
  return code;
}

static void forget(CUevent event) {
  if (event == NULL || --event->uses != 0) return;
  events--;
  free(event);
}

/* Does what was queued up to a number; an error loses the device, and what follows is dropped. */
static CUresult run_until(CUstream stream, uint64_t number) {
  while (stream->first != NULL && stream->first->number <= number) {
    command *c = stream->first;
    stream->first = c->next;
    if (stream->first == NULL) stream->last = &stream->first;
    if (stream->context->error == CUDA_SUCCESS) run(stream->context, c);
    forget(c->event);
    free(c);
  }
  return stream->context->error;
}

static CUresult run_all(CUcontext context) {
  for (CUstream s = context->streams; s != NULL; s = s->next) run_until(s, UINT64_MAX);
  return context->error;
}

static CUstream own_stream(CUcontext context) {
  CUstream made = context->streams;
  while (made != NULL && made->next != NULL) made = made->next; /* the first that was made */
  return made;
}

static CUstream new_stream(CUcontext context) {
  CUstream made = calloc(1, sizeof *made);
  made->context = context;
  made->last = &made->first;
  made->next = context->streams;
  return context->streams = made;
}

static CUresult queue(CUstream stream, command given) {
  command *made = malloc(sizeof *made);
  *made = given;
  if (stream == NULL) stream = own_stream(current());
  made->next = NULL;
  made->number = ++stream->queued;
  made->order = ++queued;
  *stream->last = made;
  stream->last = &made->next;
  return CUDA_SUCCESS;
}

static CUcontext context_of_stream(CUstream stream) { return stream == NULL ? NULL : stream->context; }

/* The driver's ----------------------------------------------------------------------------------- */

STAND_IN CUresult cuInit(unsigned flags) {
  CALL(begin("cuInit"))
  return end(flags != 0 ? 1 : code);
}

/* NVRTC asks whatever libcuda.so.1 it finds for tables that no manual describes. */
STAND_IN CUresult cuGetExportTable(const void **out, const void *which) {
  (void)which;
  *out = NULL;
  return 500;
}

static const struct { CUresult code; const char *name, *text; } errors[] = {
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"}};

static CUresult said(CUresult code, const char **out, bool is_name) {
  *out = NULL;
  for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
    if (errors[i].code == code) *out = is_name ? errors[i].name : errors[i].text;
  }
  return *out == NULL ? 1 : CUDA_SUCCESS;
}

STAND_IN CUresult cuGetErrorName(CUresult code, const char **out) { return said(code, out, true); }
STAND_IN CUresult cuGetErrorString(CUresult code, const char **out) { return said(code, out, false); }

STAND_IN CUresult cuDriverGetVersion(int *out) {
  *out = 13000;
  return CUDA_SUCCESS;
}

STAND_IN CUresult cuDeviceGetCount(int *out) {
  CALL(begin("cuDeviceGetCount"))
  *out = DEVICES;
  return end(code);
}

STAND_IN CUresult cuDeviceGet(CUdevice *out, int number) {
  *out = number;
  return CUDA_SUCCESS;
}

STAND_IN CUresult cuDeviceGetName(char *out, int size, CUdevice device) {
  snprintf(out, (size_t)size, "stand-in %d", device);
  return CUDA_SUCCESS;
}

STAND_IN CUresult cuDeviceGetAttribute(int *out, int which, CUdevice device) {
  static const int values[][2] = {{CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, THREADS},
                                  {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
                                  {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
                                  {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1500000},
                                  {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 4},
                                  {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
                                  {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0}};
  (void)device;
  for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
    if (values[i][0] == which) *out = values[i][1];
    if (values[i][0] == which) return CUDA_SUCCESS;
  }
  return 1;
}

STAND_IN CUresult cuDeviceTotalMem_v2(size_t *out, CUdevice device) {
  (void)device;
  *out = memory_size;
  return CUDA_SUCCESS;
}

STAND_IN CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
  CALL(begin("cuDevicePrimaryCtxRetain"))
  contexts[device].device = device;
  if (code == CUDA_SUCCESS && contexts[device].streams == NULL) new_stream(&contexts[device]);
  if (code == CUDA_SUCCESS) *out = &contexts[device];
  return end(code);
}

STAND_IN CUresult cuCtxPushCurrent_v2(CUcontext context) {
  if (depth == DEPTH) abort();
  stack[depth++] = context;
  return CUDA_SUCCESS;
}

STAND_IN CUresult cuCtxPopCurrent_v2(CUcontext *out) {
  if (depth == 0) return 201;
  *out = stack[--depth];
  return CUDA_SUCCESS;
}

STAND_IN CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size) {
  CALL(begin_in("cuMemAlloc_v2", NULL))
  CUcontext context = current();
  if (code != CUDA_SUCCESS || size == 0) return end(code != CUDA_SUCCESS ? code : 1);
  if (size > memory_size - context->used) return end(CUDA_ERROR_OUT_OF_MEMORY);
  block *made = malloc(sizeof *made);
  *made = (block){context->blocks, aligned_alloc(256, (size + 255) / 256 * 256), size};
  memset(made->data, 0xff, size);
  context->blocks = made;
  context->used += size;
  blocks++;
  *out = (uint64_t)(uintptr_t)made->data + moved;
  return end(CUDA_SUCCESS);
}

STAND_IN CUresult cuMemFree_v2(CUdeviceptr address) {
  CALL(begin_in("cuMemFree_v2", NULL))
  CUcontext context = current();
  if (code == CUDA_SUCCESS) code = run_all(context);
  for (block **at = &context->blocks; *at != NULL; at = &(*at)->next) {
    block *found = *at;
    if ((uint64_t)(uintptr_t)found->data + moved != address) continue;
    *at = found->next;
    context->used -= found->size;
    blocks--;
    free(found->data);
    free(found);
    return end(code);
  }
  return end(1);
}

STAND_IN CUresult cuMemGetAddressRange_v2(CUdeviceptr *begin_of, size_t *size, CUdeviceptr address) {
  CALL(begin("cuMemGetAddressRange_v2"))
  char *at = (char *)(uintptr_t)(address - moved);
  for (block *b = current()->blocks; b != NULL; b = b->next) {
    if (at < b->data || at >= b->data + b->size) continue;
    *begin_of = (uint64_t)(uintptr_t)b->data + moved;
    *size = b->size;
    return end(code);
  }
  return end(1);
}

static CUresult copy(CUresult code, CUstream stream, void *to, const void *from, size_t size) {
  if (code == CUDA_SUCCESS && (to == NULL || from == NULL)) code = 1;
  if (code == CUDA_SUCCESS) code = queue(stream, (command){.kind = COPY, .to = to, .from = from, .size = size});
  return end(code);
}

STAND_IN CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream) {
  CALL(begin_in("cuMemcpyHtoDAsync_v2", context_of_stream(stream)))
  return copy(code, stream, real(current(), to, size), from, size);
}

STAND_IN CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream) {
  CALL(begin_in("cuMemcpyDtoHAsync_v2", context_of_stream(stream)))
  return copy(code, stream, to, real(current(), from, size), size);
}

STAND_IN CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  CALL(begin_in("cuMemcpyDtoDAsync_v2", context_of_stream(stream)))
  return copy(code, stream, real(current(), to, size), real(current(), from, size), size);
}

STAND_IN CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here,
                                    size_t size, CUstream stream) {
  CALL(begin_in("cuMemcpyPeerAsync", context_of_stream(stream)))
  return copy(code, stream, real(there, to, size), real(here, from, size), size);
}

STAND_IN CUresult cuStreamCreate(CUstream *out, unsigned flags) {
  CALL(begin_in("cuStreamCreate", NULL))
  if (code != CUDA_SUCCESS || flags != CU_STREAM_NON_BLOCKING) return end(code != CUDA_SUCCESS ? code : 1);
  *out = new_stream(current());
  streams++;
  return end(code);
}

STAND_IN CUresult cuStreamDestroy_v2(CUstream stream) {
  CALL(begin_in("cuStreamDestroy_v2", stream->context))
  run_until(stream, UINT64_MAX);
  for (CUstream *at = &stream->context->streams; *at != NULL; at = &(*at)->next) {
    if (*at != stream) continue;
    *at = stream->next;
    break;
  }
  free(stream);
  streams--;
  return end(code);
}

STAND_IN CUresult cuStreamSynchronize(CUstream stream) {
  CALL(begin_in("cuStreamSynchronize", context_of_stream(stream)))
  if (code == CUDA_SUCCESS) code = run_until(stream == NULL ? own_stream(current()) : stream, UINT64_MAX);
  return end(code);
}

STAND_IN CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  CALL(begin_in("cuStreamWaitEvent", context_of_stream(stream)))
  if (code != CUDA_SUCCESS || flags != 0) return end(code != CUDA_SUCCESS ? code : 1);
  event->uses++;
  return end(queue(stream, (command){.kind = WAIT, .event = event}));
}

STAND_IN CUresult cuEventCreate(CUevent *out, unsigned flags) {
  CALL(begin_in("cuEventCreate", NULL))
  if (code != CUDA_SUCCESS || flags != 0) return end(code != CUDA_SUCCESS ? code : 1);
  *out = calloc(1, sizeof **out);
  (*out)->context = current();
  (*out)->uses = 1;
  events++;
  return end(code);
}

STAND_IN CUresult cuEventRecord(CUevent event, CUstream stream) {
  CALL(begin_in("cuEventRecord", event->context))
  if (code != CUDA_SUCCESS) return end(code);
  event->stream = stream == NULL ? own_stream(current()) : stream;
  event->number = event->stream->queued + 1;
  event->uses++;
  return end(queue(stream, (command){.kind = RECORD, .event = event}));
}

STAND_IN CUresult cuEventSynchronize(CUevent event) {
  CALL(begin_in("cuEventSynchronize", event->context))
  if (code == CUDA_SUCCESS && !event->is_done) code = run_until(event->stream, event->number);
  return end(code);
}

STAND_IN CUresult cuEventElapsedTime(float *out, CUevent from, CUevent to) {
  CALL(begin_in("cuEventElapsedTime", from->context))
  if (code == CUDA_SUCCESS && (!from->is_done || !to->is_done)) code = 600;
  *out = (float)(1e3 * (double)(to->time.tv_sec - from->time.tv_sec) +
                 1e-6 * (double)(to->time.tv_nsec - from->time.tv_nsec));
  return end(code);
}

STAND_IN CUresult cuEventDestroy_v2(CUevent event) {
  CALL(begin_in("cuEventDestroy_v2", event->context))
  forget(event);
  return end(code);
}

/* The code of nvrtc_stand_in.c: "FIBRES", a size, a library. */
static void *open_library(const char *image) {
  char path[] = "/tmp/cuda-stand-in-XXXXXX";
  uint64_t size;
  memcpy(&size, image + 8, sizeof size);
  int file = mkstemp(path);
  bool is_written = file >= 0 && write(file, image + 16, size) == (ssize_t)size;
  if (file >= 0) close(file);
  void *library = is_written ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  unlink(path);
  return library;
}

STAND_IN CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned n, int *options, void **values) {
  CALL(begin_in("cuModuleLoadDataEx", NULL))
  if (code != CUDA_SUCCESS) return end(code);
  if (memcmp(image, "FIBRES\0", 8) != 0) {
    bool is_text = memcmp(image, "//", 2) == 0;
    for (unsigned i = 0; i < n && is_text; i++) {
      if (options[i] == CU_JIT_ERROR_LOG_BUFFER) strcpy(values[i], "ptxas application ptx input, line 1; fatal");
    }
    return end(is_text ? 218 : 200);
  }
  void *library = open_library(image);
  if (library == NULL) return end(200);
  CUmodule made = calloc(1, sizeof *made);
  made->context = current();
  made->library = library;
  *(void **)&made->launch = dlsym(library, "fibre_launch");
  modules++;
  *out = made;
  return end(CUDA_SUCCESS);
}

STAND_IN CUresult cuModuleUnload(CUmodule module) {
  CALL(begin_in("cuModuleUnload", module->context))
  run_all(module->context);
  for (CUfunction f = module->functions, next; f != NULL; f = next) next = f->next, free(f);
  dlclose(module->library);
  free(module);
  modules--;
  return end(code);
}

STAND_IN CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name) {
  char symbol[300];
  CALL(begin_in("cuModuleGetFunction", module->context))
  snprintf(symbol, sizeof symbol, "fibre_call_%s", name);
  void *found = dlsym(module->library, symbol);
  if (code == CUDA_SUCCESS && found == NULL) code = 500;
  if (code != CUDA_SUCCESS) return end(code);
  snprintf(symbol, sizeof symbol, "fibre_args_%s", name);
  const int *n = dlsym(module->library, symbol);
  *out = calloc(1, sizeof **out);
  **out = (struct cuda_function){module->functions, module, NULL, *n};
  *(void **)&(*out)->call = found;
  module->functions = *out;
  return end(code);
}

STAND_IN CUresult cuFuncGetAttribute(int *out, int which, CUfunction function) {
  CALL(begin_in("cuFuncGetAttribute", function->module->context))
  *out = THREADS;
  return end(which != CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1 : code);
}

STAND_IN CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned x, unsigned y,
                                 unsigned z, unsigned shared, CUstream stream, void **args, void **extra) {
  CALL(begin_in("cuLaunchKernel", f->module->context))
  command made = {.kind = LAUNCH, .function = f, .grid = {gx, gy, gz, x, y, z}};
  if (code == CUDA_SUCCESS && (extra != NULL || shared != 0 || x * y * z > THREADS)) code = 1;
  for (int i = 0; i < f->n_args && code == CUDA_SUCCESS; i++) {
    uint64_t value;
    memcpy(&value, args[i], sizeof value);
    char *at = real(current(), value, 0);
    made.args[i] = at == NULL ? (void *)(uintptr_t)value : at;
  }
  return end(code != CUDA_SUCCESS ? code : queue(stream, made));
}
