/* The platform layer for WebAssembly: no files, no libraries, a few functions of the host; threads are
** in ek_threads.c.
**
** It takes the place of src/ek_platform.c and of what the C library would ask a system for, so that
** the module imports nothing but "ek": place, drop, features, now and warn. docs/guides/web.md says
** what a host does for each. */
#include "ek_web.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define HOST(name) __attribute__((import_module("ek"), import_name(#name)))

/* Instantiates a module of code, whose data begins at 'data' and whose functions are put into the table
** one after the other: the index of the first, or -1. 'table' has what its imports stand for. */
HOST(place) int32_t host_place(const void *text, size_t size, const uintptr_t *table, void *data);
HOST(drop) void host_drop(int32_t first);
HOST(features) uint32_t host_features(void);
HOST(now) double host_now(void); /* milliseconds */
HOST(warn) void host_warn(const char *line, size_t size);

uint32_t ek_host_features(void) { return host_features(); }

/* Code ----------------------------------------------------------------------------------------- */

/* Read the size and alignment of a module's data from its first section, "dylink.0". False if it
** has none. */
static bool data_of(const unsigned char *text, size_t size, uint32_t *bytes, uint32_t *alignment) {
  static const char head[] = "\0asm\1\0\0\0", name[] = "\10dylink.0\1";
  const unsigned char *at = text + 8, *end = text + size;
  uint32_t numbers[4] = {0};                     /* the section's size, the row's, ours */
  if (size < 32 || memcmp(text, head, 8) != 0 || *at++ != 0) return false;
  for (int i = 0; i < 4; i++) {
    int shift = 0;
    for (; at < end && *at >= 0x80 && shift < 28; at++, shift += 7)
      numbers[i] |= (uint32_t)(*at & 0x7f) << shift;
    if (at >= end) return false;
    numbers[i] |= (uint32_t)*at++ << shift;
    if (i != 0) continue;
    if ((size_t)(end - at) < sizeof name || memcmp(at, name, sizeof name - 1) != 0) return false;
    at += sizeof name - 1;
  }
  *bytes = numbers[2];
  *alignment = 1u << (numbers[3] & 15);
  return true;
}

int ek_code_place(ek_code *code, const void *text, size_t size, const uintptr_t *table,
                  uint32_t imports) {
  uint32_t bytes = 0, alignment = 16;
  void *data = NULL;
  *code = (ek_code){NULL, 0, 0};
  if (size == 0) return 0;
  if (!data_of(text, size, &bytes, &alignment)) return errno = EINVAL, -1;
  if (bytes != 0 && (data = ek_system_alloc(bytes, alignment < 16 ? 16 : alignment)) == NULL)
    return errno = ENOMEM, -1;
  int32_t first = host_place(text, size, table, data);
  if (first < 0 || ek_web_share(text, size, table, imports, data, first) != 0) {
    if (first >= 0) host_drop(first);
    ek_system_free(data);
    return errno = first < 0 ? EPERM : ENOMEM, -1;
  }
  *code = (ek_code){data, (size_t)first, 0};
  return 0;
}

/* Functions have indices, not addresses. */
void *ek_code_at(const ek_code *code, uint64_t offset) {
  return (void *)(code->mapped + (uintptr_t)offset);
}

void ek_code_drop(ek_code *code) {
  if (code->mapped != 0) {
    ek_web_unshare((int32_t)code->mapped);
    host_drop((int32_t)code->mapped);
  }
  ek_system_free(code->pages);
  *code = (ek_code){NULL, 0, 0};
}

const void *ek_code_text(const ek_code *code) {
  (void)code;
  return NULL;
}

void ek_code_name(const char *line) { (void)line; }
void ek_warn(const char *line) { host_warn(line, strlen(line)); }

/* Memory --------------------------------------------------------------------------------------- */

/* The C library's allocator knows of one thread. */
static ek_mutex memory_lock = EK_MUTEX_INIT;

void *ek_system_alloc(size_t size, size_t alignment) {
  void *memory = NULL;
  ek_mutex_lock(&memory_lock);
  int code = posix_memalign(&memory, alignment, size);
  ek_mutex_unlock(&memory_lock);
  return code == 0 ? memory : NULL;
}

void ek_system_free(void *memory) {
  ek_mutex_lock(&memory_lock);
  free(memory);
  ek_mutex_unlock(&memory_lock);
}

/* Files and libraries --------------------------------------------------------------------------- */

/* There is one file at most: what the host has put there to be loaded. */
static void *file_data;
static size_t file_size;

__attribute__((visibility("default"))) void *ek_web_file(size_t size);

/* Room for the bytes of a file, for ek_module_load; NULL without memory. */
void *ek_web_file(size_t size) {
  ek_system_free(file_data);
  file_data = ek_system_alloc(size == 0 ? 1 : size, 64);
  file_size = size;
  return file_data;
}

bool ek_file_exists(const char *path) {
  (void)path;
  return file_data != NULL;
}

/* Whoever maps it owns it. */
const void *ek_file_map(const char *path, size_t *size) {
  void *data = file_data;
  (void)path;
  if (data == NULL) return errno = ENOENT, NULL;
  file_data = NULL;
  *size = file_size;
  return data;
}

void ek_file_unmap(const void *data, size_t size) {
  (void)size;
  ek_system_free((void *)(uintptr_t)data);
}

int ek_file_write(const char *path, const void *data, size_t size) {
  (void)path, (void)data, (void)size;
  errno = ENOSYS;
  return -1;
}

void *ek_dl_open(const char *path, const char **reason) {
  (void)path;
  *reason = "WebAssembly loads no shared libraries";
  return NULL;
}

void *ek_dl_symbol(void *library, const char *name) {
  (void)library, (void)name;
  return NULL;
}

void ek_dl_close(void *library) { (void)library; }

void *ek_dl_find(const char *library, const char *name) {
  (void)library, (void)name;
  return NULL;
}

void ek_dl_folder(char *out, size_t capacity) {
  (void)capacity;
  out[0] = '\0';
}

int ek_dl_pin(void *library) {
  (void)library;
  return -1;
}

int64_t ek_now(bool is_coarse) {
  (void)is_coarse;
  return (int64_t)(host_now() * 1e6);
}

/* A service of the C library's: -D maps getenv to it ------------------------------------------- */

char *ek_web_getenv(const char *name) {
  (void)name;
  return NULL;
}
