/* A driver of somebody else, written with runtime.h alone: one device of the kind "rocm", which the
** test says is there by the folder of EKIDEN_DRIVERS. It gives what it must, and says nothing of
** itself: no attributes, streams or events. Its language has one word: "times NUMBER". */
#include <ekiden/runtime.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROCM = 10 };
static const ek_driver_host *host;
static const uintptr_t moved = (uintptr_t)1 << 52;

static void *real(const void *data) { return (void *)((uintptr_t)data - moved); }

static int other_alloc(ek_device device, size_t size, size_t alignment, const char *scope, void **out) {
  (void)alignment, (void)scope;
  if (device.id != 0) return host->error("DeviceError", "rocm(%d): there is 1", device.id);
  *out = (void *)((uintptr_t)aligned_alloc(64, (size + 127) / 64 * 64) + moved);
  return 0;
}

static void other_free(ek_device device, void *data, size_t size) {
  (void)device, (void)size;
  free(real(data));
}

static int other_copy(const void *from, ek_device from_device, void *to, ek_device to_device,
                      size_t size, void *stream) {
  (void)stream;
  memcpy(to_device.type == ROCM ? real(to) : to, from_device.type == ROCM ? real(from) : from, size);
  return 0;
}

static int other_count(int32_t *out) {
  *out = 1;
  return 0;
}

static int other_load(ek_device device, const char *format, const char *name, const void *code,
                      size_t size, void **out) {
  char text[32] = "";
  float factor;
  if (strcmp(format, "words") != 0) return host->error("DeviceError", "rocm: 'words' expected, got '%s'", format);
  memcpy(text, code, size < sizeof text ? size : sizeof text - 1);
  if (sscanf(text, "times %f", &factor) != 1) {
    return host->error("DeviceError", "rocm(%d): kernel '%s': 'times' expected, got '%s'", device.id, name, text);
  }
  *out = malloc(sizeof factor);
  memcpy(*out, &factor, sizeof factor);
  return 0;
}

static void other_unload(ek_device device, void *module) {
  (void)device;
  free(module);
}

static int other_kernel(ek_device device, void *module, const char *name, void **out) {
  (void)device, (void)name;
  *out = module;
  return 0;
}

static int other_launch(ek_device device, void *stream, void *kernel, const ek_launch *launch) {
  float *data = real(launch->args[0].memory), factor;
  (void)device, (void)stream;
  memcpy(&factor, kernel, sizeof factor);
  for (int64_t i = 0; i < launch->args[1].number; i++) data[i] *= factor;
  return 0;
}

static const ek_device_table table = {.name = "other", .alloc = other_alloc, .free = other_free,
                                      .copy = other_copy, .count = other_count, .load = other_load,
                                      .unload = other_unload, .kernel = other_kernel,
                                      .launch = other_launch};

EK_API int ek_driver_open(const ek_driver_host *given);
int ek_driver_open(const ek_driver_host *given) {
  host = given;
  return given->register_device(ROCM, &table);
}
