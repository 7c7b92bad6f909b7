/* The driver of CUDA devices on every path, over the stand-ins for NVIDIA's libraries: memory, copies,
** streams and events in order, code of each format, and what fails where. One argument names what is
** tried; the test that runs it compiles driver and stand-ins under AddressSanitizer. */
#include <assert.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda_api.h"
#include "ekiden/runtime.h"

void stand_in_fail(const char *name, CUresult code, int skip);
int stand_in_calls(const char *name);
int stand_in_left(void);

int ek_driver_open(const ek_driver_host *given);

static const ek_device_table *table;
static char last[4096];                   /* kind and text of the last error */
static const ek_device cpu = {EK_CPU, 0}, gpu = {EK_CUDA, 0}, other = {EK_CUDA, 1};

static int error(const char *kind, const char *format, ...) {
  va_list args;
  int used = snprintf(last, sizeof last, "%s: ", kind);
  va_start(args, format);
  vsnprintf(last + used, sizeof last - (size_t)used, format, args);
  va_end(args);
  return -1;
}

static int take_table(int32_t type, const ek_device_table *given) {
  assert(type == EK_CUDA);
  table = given;
  return 0;
}

static const ek_driver_host host = {1, error, take_table};

static void fails(int status, const char *wanted) {
  if (status == -1 && strstr(last, wanted) != NULL) return;
  fprintf(stderr, "wanted an error with '%s', got %d: %s\n", wanted, status, last);
  abort();
}

static void works(int status) {
  if (status == 0) return;
  fprintf(stderr, "%s\n", last);
  abort();
}

enum { N = 1000 };
static const char twice[] =
    "extern \"C\" __global__ void twice(float *x, int64_t n) {\n"
    "  int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;\n"
    "  if (i < n) x[i] = x[i] * 2;\n"
    "}\n";
static const char torn[] =
    "extern \"C\" __global__ void torn(float *x, int64_t n) {\n"
    "  if (threadIdx.x < n) __syncthreads();\n"
    "}\n";
static const char wrong[] = "extern \"C\" __global__ void wrong(float *x) {\n  x[0] = nothing;\n}\n";

static void *floats_on(ek_device device, float first) {
  float data[N];
  void *there;
  for (int i = 0; i < N; i++) data[i] = first + (float)i;
  works(table->alloc(device, sizeof data, 64, NULL, &there));
  works(table->copy(data, cpu, there, device, sizeof data, NULL));
  return there;
}

static void check_floats(ek_device device, const void *there, float first, float factor) {
  float data[N];
  works(table->copy(there, device, data, cpu, sizeof data, NULL));
  for (int i = 0; i < N; i++) assert(data[i] == factor * (first + (float)i));
}

static void *kernel_of(ek_device device, const char *text, const char *name, void **module) {
  void *made;
  works(table->load(device, "cuda", name, text, strlen(text), module));
  works(table->kernel(device, *module, name, &made));
  return made;
}

static int run(ek_device device, void *stream, void *kernel, void *x, int64_t n) {
  ek_launch_arg args[2] = {{x, 0, 0}, {NULL, n, 8}};
  ek_launch launch = {{(N + 63) / 64, 1, 1}, {64, 1, 1}, args, 2};
  return table->launch(device, stream, kernel, &launch);
}

static void attributes(void) {
  char text[256];
  int64_t number;
  int32_t n;
  works(table->count(&n));
  assert(n == 2);
  for (int32_t which = 0; which <= EK_DEVICE_WARP; which++) {
    text[0] = '\0';
    number = -1;
    works(table->attribute(gpu, which, &number, text, sizeof text));
    assert(which > EK_DEVICE_ABILITIES ? number > 0 : text[0] != '\0');
    if (which == EK_DEVICE_VERSION) assert(strcmp(text, "sm_90") == 0);
    if (which == EK_DEVICE_DRIVER) assert(strcmp(text, "CUDA 13.0") == 0);
    if (which == EK_DEVICE_ABILITIES) assert(strstr(text, "fp16") != NULL && strstr(text, "mma") != NULL);
  }
  fails(table->attribute(gpu, 99, &number, text, sizeof text), "ValueError: cuda: there is no attribute 99");
  fails(table->attribute((ek_device){EK_CUDA, 2}, 0, &number, text, sizeof text), "cuda(2): there is no such device: 2 found");
  assert(stand_in_calls("cuDevicePrimaryCtxRetain") == 0); /* asking costs no context */
}

static void memory(void) {
  void *x = floats_on(gpu, 1), *y = floats_on(other, 2), *z = floats_on(gpu, 3), *far;
  works(table->copy(x, gpu, z, gpu, N * sizeof(float), NULL));
  check_floats(gpu, z, 1, 1);
  works(table->copy(z, gpu, y, other, N * sizeof(float), NULL));
  check_floats(other, y, 1, 1);
  works(table->copy(x, gpu, z, gpu, 0, NULL));
  works(table->alloc(gpu, 100, 1 << 20, "global", &far)); /* moved inside its block */
  assert((uintptr_t)far % (1 << 20) == 0);
  works(table->copy("far", cpu, far, gpu, 4, NULL));
  table->free(gpu, far, 100);
  works(table->alloc(gpu, 0, 0, NULL, &far));
  table->free(gpu, far, 0);
  fails(table->alloc(gpu, 100, 0, "texture", &far), "there is no memory 'texture'");
  fails(table->alloc(gpu, (size_t)2 << 30, 0, NULL, &far), "MemoryError: cuda(0): allocate 2147483648 bytes: it has too little memory");
  fails(table->alloc(gpu, SIZE_MAX, 1 << 20, NULL, &far), "MemoryError");
  fails(table->copy(x, gpu, y, (ek_device){EK_CUDA, 99}, 4, NULL), "cuda(99): there is no such device");
  fails(table->copy(x, gpu, cpu.id == 0 ? last : NULL, cpu, (size_t)1 << 20, NULL), "CUDA_ERROR_INVALID_VALUE (invalid argument)");
  check_floats(gpu, x, 1, 1); /* and goes on */
  table->free(gpu, x, 0);
  table->free(gpu, z, 0);
  table->free(other, y, 0);
}

static void streams(void) {
  void *module, *x = floats_on(gpu, 1), *one, *two, *event, *before, *after;
  void *kernel = kernel_of(gpu, twice, "twice", &module);
  float there[N];
  int64_t took = -1;
  works(table->stream_new(gpu, &one));
  works(table->stream_new(gpu, &two));
  works(table->event_new(gpu, one, &before));
  works(run(gpu, one, kernel, x, N));
  works(table->event_new(gpu, one, &event));
  works(table->event_wait(gpu, two, event)); /* else the copy in 'two' comes first */
  works(table->copy(x, gpu, there, cpu, sizeof there, two));
  works(table->synchronize(gpu, two));
  for (int i = 0; i < N; i++) assert(there[i] == 2 * (1 + (float)i));
  works(run(gpu, one, kernel, x, N));
  works(table->event_new(gpu, one, &after));
  works(table->event_time(gpu, before, after, &took));
  assert(took > 0);
  works(run(gpu, NULL, kernel, x, N));
  check_floats(gpu, x, 1, 8);
  table->event_free(gpu, before);
  table->event_free(gpu, after);
  table->event_free(gpu, event);
  stand_in_fail("cuStreamCreate", 2, 0);
  fails(table->stream_new(gpu, &event), "MemoryError: cuda(0): make a stream");
  stand_in_fail("cuEventRecord", 1, 0);
  fails(table->event_new(gpu, one, &event), "cuda(0): make an event: the driver failed");
  table->stream_free(gpu, one);
  table->stream_free(gpu, two);
  table->unload(gpu, module);
  table->free(gpu, x, 0);
}

static void code(void) {
  void *module, *kernel, *x = floats_on(gpu, 1);
  fails(table->load(gpu, "cuda", "wrong", wrong, strlen(wrong), &module),
        "DeviceError: cuda(0): kernel 'wrong': line 2 (x[0] = nothing;): NVRTC 13.0 refuses it");
  fails(table->load(gpu, "opencl", "f", "", 0, &module), "code of format 'cuda', 'ptx' or 'cubin' expected, got 'opencl'");
  fails(table->load(gpu, "ptx", "f", "// no PTX", 9, &module),
        "kernel 'f': the driver refuses its code: CUDA_ERROR_INVALID_PTX: ptxas application ptx input, line 1");
  fails(table->load(gpu, "cubin", "f", "\177ELF.........", 13, &module), "kernel 'f': the driver failed: CUDA_ERROR_INVALID_IMAGE");
  kernel = kernel_of(gpu, twice, "twice", &module);
  fails(table->kernel(gpu, module, "thrice", &kernel), "cuda(0): thrice: the driver failed: CUDA_ERROR_NOT_FOUND");
  works(table->kernel(gpu, module, "twice", &kernel));
  ek_launch wide = {{1, 1, 1}, {1 << 20, 1, 1}, NULL, 0}, tall = {{1, 1 << 20, 1}, {1, 1, 1}, NULL, 0};
  ek_launch many = {{1, 1, 1}, {1, 1, 1}, NULL, 1000};
  fails(table->launch(gpu, NULL, kernel, &wide), "kernel 'twice': 1048576 threads a block, of which this device runs at most 1024");
  fails(table->launch(gpu, NULL, kernel, &tall), "kernel 'twice': 1048576 blocks along y, of which there are at most 65535");
  fails(table->launch(gpu, NULL, kernel, &many), "kernel 'twice': 1000 arguments");
  stand_in_fail("cuLaunchKernel", 701, 0); /* refused, and the device goes on */
  fails(run(gpu, NULL, kernel, x, N), "kernel 'twice': the driver failed: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES");
  works(run(gpu, NULL, kernel, x, N));
  check_floats(gpu, x, 1, 2);
  table->unload(gpu, module);
  table->free(gpu, x, 0);
}

/* Binaries come from the cache, but for damaged files. */
static void cached(void) {
  void *module, *x = floats_on(gpu, 1);
  for (int i = 0; i < 2; i++) {
    void *kernel = kernel_of(gpu, twice, "twice", &module);
    works(run(gpu, NULL, kernel, x, N));
    table->unload(gpu, module);
  }
  check_floats(gpu, x, 1, 4);
  table->free(gpu, x, 0);
}

/* A kernel that fails is named by what waits for it and by every call after; the other device goes on. */
static void lost(void) {
  void *good, *bad, *there, *x = floats_on(gpu, 1), *y = floats_on(other, 1), *z;
  void *fine = kernel_of(gpu, twice, "twice", &good), *crash = kernel_of(gpu, torn, "torn", &bad);
  void *fine_there = kernel_of(other, twice, "twice", &there);
  float data[N];
  static const char said[] = "it is lost to this process: CUDA_ERROR_LAUNCH_FAILED (unspecified launch failure) in ";
  works(run(gpu, NULL, fine, x, N));
  works(table->synchronize(gpu, NULL)); /* which is out of suspicion then */
  works(run(gpu, NULL, crash, x, 3));
  fails(table->copy(x, gpu, data, cpu, sizeof data, NULL), "cuda(0): copy to the host: it is lost");
  fails(table->synchronize(gpu, NULL), said);
  fails(table->synchronize(gpu, NULL), "in kernel 'torn'");
  fails(run(gpu, NULL, fine, x, N), "cuda(0): kernel 'twice': it is lost");
  fails(table->alloc(gpu, 64, 0, NULL, &z), "in kernel 'torn'");
  fails(table->load(gpu, "cuda", "twice", twice, strlen(twice), &z), "in kernel 'torn'");
  works(run(other, NULL, fine_there, y, N));
  check_floats(other, y, 1, 2);
  table->free(gpu, x, 0);
  table->unload(gpu, good);
  table->unload(gpu, bad);
  table->free(other, y, 0);
  table->unload(other, there);
}

static void suspects(void) {
  void *good, *bad, *x = floats_on(gpu, 1);
  void *fine = kernel_of(gpu, twice, "twice", &good), *crash = kernel_of(gpu, torn, "torn", &bad);
  works(run(gpu, NULL, crash, x, 3));
  works(run(gpu, NULL, fine, x, N));
  fails(table->synchronize(gpu, NULL), "in one of the last 2 kernels, of which 'twice' came last (CUDA_LAUNCH_BLOCKING=1");
}

static void no_context(void) {
  void *x;
  stand_in_fail("cuDevicePrimaryCtxRetain", 2, 0);
  fails(table->alloc(gpu, 64, 0, NULL, &x), "MemoryError: cuda(0): allocate 64 bytes");
  works(table->alloc(gpu, 64, 0, NULL, &x));
  table->free(gpu, x, 64);
}

/* With NVIDIA's compiler, whose binaries nothing here can load. */
static void real_compiler(void) {
  void *module;
  fails(table->load(gpu, "cuda", "wrong", wrong, strlen(wrong), &module), "kernel 'wrong': line 2 (x[0] = nothing;): NVRTC 1");
  char text[sizeof twice + 64];
  snprintf(text, sizeof text, "typedef long long int64_t;\n%s", twice);
  fails(table->load(gpu, "cuda", "twice", text, strlen(text), &module), "kernel 'twice': the driver failed: CUDA_ERROR_INVALID_IMAGE");
}

static const struct { const char *name; void (*run)(void); bool keeps; } tries[] = {
    {"attributes", attributes, false}, {"memory", memory, false},     {"streams", streams, false},
    {"code", code, false},             {"cached", cached, false},     {"lost", lost, true},
    {"suspects", suspects, true},      {"no context", no_context, false},
    {"NVRTC", real_compiler, false}};

static int open_fails(const char *name) {
  static const ek_driver_host old = {0, error, take_table};
  if (strcmp(name, "old runtime") == 0) fails(ek_driver_open(&old), "a runtime of version 1 expected, got 0");
  else if (strcmp(name, "no library") == 0) fails(ek_driver_open(&host), "libcuda.so.1 is not there: install NVIDIA's driver");
  else if (strcmp(name, "no device") == 0) {
    stand_in_fail("cuInit", 100, 0);
    fails(ek_driver_open(&host), "libcuda.so.1 finds no device: CUDA_ERROR_NO_DEVICE");
    works(ek_driver_open(&host));
  } else if (strcmp(name, "no NVRTC") == 0) {
    void *module;
    works(ek_driver_open(&host));
    fails(table->load(gpu, "cuda", "twice", twice, strlen(twice), &module), getenv("WANTED"));
  } else return -1;
  return 0;
}

int main(int argc, char **argv) {
  assert(argc == 2);
  if (open_fails(argv[1]) == 0) return 0;
  works(ek_driver_open(&host));
  for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
    if (strcmp(tries[i].name, argv[1]) != 0) continue;
    tries[i].run();
    assert(tries[i].keeps || stand_in_left() == 0);
    return 0;
  }
  return 2;
}
