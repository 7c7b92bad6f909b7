/* Load modules from bytes: an executable, a code image, or several that import each other;
** runtime.h specifies the format. */
#include "ek_internal.h"

static const char magic[8] = {'E', 'K', 'M', 'O', 'D', 'S', 0, 1};

enum { ALIGNMENT = 64, PAIR = 16, MOST = 4096 };

static int wrong(const char *what) { return ek_error("LoadError", "load modules: %s", what); }

static bool begins(const unsigned char *bytes, size_t size, const char *with, size_t n) {
  return size >= n && memcmp(bytes, with, n) == 0;
}

static uint64_t u64_at(const unsigned char *bytes) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; i--) value = value << 8 | bytes[i];
  return value;
}

static int load_one(const unsigned char *bytes, size_t size, ek_object **out) {
  ek_object *executable;
  if (begins(bytes, size, "EKIMG", 6)) return ek_image_load(bytes, size, out);
  if (begins(bytes, size, "EKDEVC", 7)) return ek_device_code_load(bytes, size, NULL, out);
  if (ek_executable_from_bytes(bytes, size, 0, &executable) != 0) return -1;
  int code = ek_program_new(executable, out);
  ek_release(executable);
  return code;
}

/* A table of pairs of numbers: their count, then they. Moves '*at' behind it. 0 or -1. */
static int read_table(const unsigned char *bytes, size_t size, size_t *at, size_t *count) {
  if (size - *at < 8) return wrong("the bytes end inside of a table");
  uint64_t n = u64_at(bytes + *at);
  *at += 8;
  if (n > MOST || n > (size - *at) / PAIR) return wrong("a table is larger than the bytes");
  *count = (size_t)n;
  *at += (size_t)n * PAIR;
  return 0;
}

/* Fills 'made' with 'count' owned modules; what is there on failure is the caller's too. */
static int load_parts(const unsigned char *bytes, size_t size, const unsigned char *rows,
                      size_t count, ek_object **object) {
  for (size_t i = 0; i < count; i++) {
    uint64_t offset = u64_at(rows + i * PAIR), length = u64_at(rows + i * PAIR + 8);
    if (offset % ALIGNMENT != 0 || offset > size || length > size - offset) {
      return wrong("a module lies outside of the bytes");
    }
    if (load_one(bytes + offset, (size_t)length, &object[i]) != 0) return -1;
  }
  return 0;
}

static int import_modules(const unsigned char *rows, size_t count, ek_object **object, size_t n) {
  for (size_t i = 0; i < count; i++) {
    uint64_t importer = u64_at(rows + i * PAIR), imported = u64_at(rows + i * PAIR + 8);
    if (importer >= n || imported >= n) return wrong("an import names no module");
    if (ek_module_import(object[importer], object[imported]) != 0) return -1;
  }
  return 0;
}

static int load_modules(const unsigned char *bytes, size_t size, ek_object **out) {
  size_t at = sizeof magic, parts = 0, imports = 0;
  const unsigned char *part_rows = bytes + at + 8;
  if (read_table(bytes, size, &at, &parts) != 0) return -1;
  const unsigned char *import_rows = bytes + at + 8;
  if (read_table(bytes, size, &at, &imports) != 0) return -1;
  if (parts == 0) return wrong("there is none");
  ek_object **object = ek_alloc_or_error(parts * sizeof *object);
  if (object == NULL) return -1;
  memset(object, 0, parts * sizeof *object);
  int code = load_parts(bytes, size, part_rows, parts, object);
  if (code == 0) code = import_modules(import_rows, imports, object, parts);
  if (code == 0) {
    *out = object[0];
    object[0] = NULL;
  }
  for (size_t i = 0; i < parts; i++) ek_object_release(object[i]);
  ek_free(object);
  return code;
}

int ek_module_from_bytes(const void *bytes, size_t size, ek_object **out) {
  if (begins(bytes, size, magic, sizeof magic)) return load_modules(bytes, size, out);
  return load_one(bytes, size, out);
}
