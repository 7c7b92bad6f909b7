/* A driver of somebody else: devices of the kind "cuda" on this processor. Its memory is the host's
** with every address moved by a constant, so that whoever takes one for the other crashes; kernels
** are compiled by the system's C++ compiler with fibre.h before them. FIBRE_HEADER names that file. */
#include <dlfcn.h>
#include <ekiden/runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { CUDA = 2 };
static const ek_driver_host *host;
static const uintptr_t moved = (uintptr_t)1 << 50;

static void *real(const void *data) { return (void *)((uintptr_t)data - moved); }

static int device_alloc(ek_device device, size_t size, size_t alignment, const char *scope,
                        void **out) {
  (void)alignment, (void)scope;
  if (device.id > 1) return host->error("DeviceError", "cuda(%d): there are 2", device.id);
  if (size > (size_t)1 << 32) return host->error("MemoryError", "cuda(%d): %zu bytes are too many", device.id, size);
  void *memory = aligned_alloc(64, (size + 127) / 64 * 64);
  memset(memory, 0xff, size);
  *out = (void *)((uintptr_t)memory + moved);
  return 0;
}

static void device_free(ek_device device, void *data, size_t size) {
  (void)device, (void)size;
  free(real(data));
}

static int device_copy(const void *from, ek_device from_device, void *to, ek_device to_device,
                       size_t size, void *stream) {
  (void)stream;
  memcpy(to_device.type == CUDA ? real(to) : to, from_device.type == CUDA ? real(from) : from, size);
  return 0;
}

static int device_count(int32_t *out) {
  *out = 2;
  return 0;
}

typedef struct program {
  void *library;
  const char *(*launch)(void (*)(void **), const int64_t *, void **);
  char name[128];
} program;

/* The text, and a function that calls its kernel with an array of arguments. */
static int write_source(const char *path, const char *name, const char *begin, const char *code,
                        size_t size) {
  FILE *file = fopen(path, "w");
  const char *at;
  int n = 1;
  if (file == NULL) return -1;
  fprintf(file, "#include \"%s\"\n%.*s\n", getenv("FIBRE_HEADER"), (int)size, code);
  for (at = strchr(begin, '('); at != NULL && *at != ')'; at++) n += *at == ',';
  fprintf(file, "extern \"C\" void fibre_call(void **args) {\n  %s(", name);
  for (int i = 0; i < n; i++) fprintf(file, "%sfibre_any{args[%d]}", i ? ", " : "", i);
  fprintf(file, ");\n}\n");
  return fclose(file);
}

static int device_load(ek_device device, const char *format, const char *name, const void *code,
                       size_t size, void **out) {
  char path[] = "/tmp/fibre-XXXXXX", source[64], library[64], command[512];
  (void)device;
  if (strcmp(format, "cuda") != 0) return host->error("DeviceError", "cuda: got format '%s'", format);
  program *made = calloc(1, sizeof *made);
  char *text = calloc(1, size + 1);
  memcpy(text, code, size);
  if (mkdtemp(path) == NULL) return host->error("OSError", "cuda: no folder");
  snprintf(source, sizeof source, "%s/k.cpp", path);
  snprintf(library, sizeof library, "%s/k.so", path);
  char declared[160];
  snprintf(declared, sizeof declared, "void %s", name);
  char *found = strstr(text, declared);
  int status = found == NULL ? -1 : write_source(source, name, found, text, size);
  snprintf(command, sizeof command,
           "c++ -std=c++17 -O1 -w -fwrapv -ffp-contract=off -shared -fPIC -o %s %s 2> %s/log", library, source, path);
  if (status != 0 || system(command) != 0) {
    return host->error("DeviceError", "cuda: kernel '%s': the compiler refuses it; see %s/log", name, path);
  }
  made->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  *(void **)&made->launch = dlsym(made->library, "fibre_launch");
  unlink(source), unlink(library);
  snprintf(command, sizeof command, "%s/log", path);
  unlink(command), rmdir(path);
  free(text);
  *out = made;
  return 0;
}

static int device_kernel(ek_device device, void *module, const char *name, void **out) {
  program *p = module;
  (void)device;
  snprintf(p->name, sizeof p->name, "%s", name);
  *out = p;
  return 0;
}

static int device_launch(ek_device device, void *stream, void *kernel, const ek_launch *launch) {
  program *p = kernel;
  void *args[64];
  int64_t grid[6];
  (void)stream;
  for (int i = 0; i < 3; i++) grid[i] = launch->blocks[i], grid[3 + i] = launch->threads[i];
  for (int32_t i = 0; i < launch->n_args; i++) {
    const ek_launch_arg *arg = &launch->args[i];
    args[i] = arg->size == 0 ? real(arg->memory) : (void *)arg->number;
  }
  void (*call)(void **);
  *(void **)&call = dlsym(p->library, "fibre_call");
  const char *wrong = p->launch(call, grid, args);
  return wrong == NULL ? 0 : host->error("DeviceError", "cuda(%d): kernel '%s': %s", device.id, p->name, wrong);
}

static const ek_device_table table = {.name = "fibres", .alloc = device_alloc, .free = device_free,
                                      .copy = device_copy, .count = device_count,
                                      .load = device_load, .kernel = device_kernel,
                                      .launch = device_launch};

EK_API int ek_driver_open(const ek_driver_host *given);
int ek_driver_open(const ek_driver_host *given) {
  host = given;
  return given->register_device(CUDA, &table);
}
