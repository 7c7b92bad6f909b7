/* The devices of WebGPU, whose driver is the host's: each entry of the table asks it. */
#include "ek_internal.h"

#define HOST(name) __attribute__((import_module("ek"), import_name(#name)))
#define SHOWN __attribute__((visibility("default")))

enum { WEBGPU = 15 };

/* Requests to the host, numbered by the entry of the device table: ALLOC size out, FREE data, COPY
** from from_type to to_type size, SYNCHRONIZE, LOAD format name code size out, KERNEL module name
** out, LAUNCH kernel launch; before them the device's number. */
enum request { ALLOC, FREE, COPY, SYNCHRONIZE, LOAD, UNLOAD, KERNEL, LAUNCH };

enum answer { DONE = 0, WAIT = 1 };

/* 0; -1 with an error set; or WAIT, where it is done once 'host_wait' has given 0. A host that cannot
** wait does not say so. */
HOST(device) int32_t host_device(enum request what, int32_t id, const uintptr_t *args);
HOST(wait) int32_t host_wait(void);

SHOWN int ek_web_webgpu(void);

static int ask(enum request what, ek_device device, const uintptr_t *args) {
  int32_t answer = host_device(what, device.id, args);
  return answer == WAIT ? host_wait() : answer;
}

#define ASK(what, device, ...) ask(what, device, (const uintptr_t[]){__VA_ARGS__})
#define AT(pointer) ((uintptr_t)(pointer))

static int gpu_alloc(ek_device device, size_t size, size_t alignment, const char *scope, void **out) {
  (void)alignment, (void)scope;            /* what it gives is aligned to 256 bytes */
  return ASK(ALLOC, device, size, AT(out));
}

static void gpu_free(ek_device device, void *data, size_t size) {
  (void)size;
  (void)ASK(FREE, device, AT(data));
}

static int gpu_copy(const void *from, ek_device from_device, void *to, ek_device to_device, size_t size,
                    void *stream) {
  ek_device device = from_device.type == WEBGPU ? from_device : to_device;
  (void)stream;
  if (size == 0) return 0;
  return ASK(COPY, device, AT(from), (uintptr_t)from_device.type, AT(to), (uintptr_t)to_device.type,
             size);
}

static int gpu_count(int32_t *out) {
  *out = 1;
  return 0;
}

static int gpu_synchronize(ek_device device, void *stream) {
  (void)stream;
  return ASK(SYNCHRONIZE, device, 0);
}

static int gpu_load(ek_device device, const char *format, const char *name, const void *code, size_t size,
                    void **out) {
  return ASK(LOAD, device, AT(format), AT(name), AT(code), size, AT(out));
}

static void gpu_unload(ek_device device, void *module) { (void)ASK(UNLOAD, device, AT(module)); }

static int gpu_kernel(ek_device device, void *module, const char *name, void **out) {
  return ASK(KERNEL, device, AT(module), AT(name), AT(out));
}

static int gpu_launch(ek_device device, void *stream, void *kernel, const ek_launch *launch) {
  (void)stream;
  return ASK(LAUNCH, device, AT(kernel), AT(launch));
}

/* Makes the host's driver that of "webgpu". */
int ek_web_webgpu(void) {
  static const ek_device_table table = {
      .name = "webgpu", .alloc = gpu_alloc, .free = gpu_free, .copy = gpu_copy, .count = gpu_count,
      .synchronize = gpu_synchronize, .load = gpu_load, .unload = gpu_unload, .kernel = gpu_kernel,
      .launch = gpu_launch};
  return ek_device_register(WEBGPU, &table);
}
