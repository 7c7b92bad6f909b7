/* Executables made by hand in C: what the tests of the loader and the machine load, run and
** damage. */
#ifndef PROGRAM_H_
#define PROGRAM_H_

#include "check.h"
#include "ek_crc32.h"
#include "ek_verify.h"

typedef struct bytes {
  unsigned char *data;
  size_t size, capacity;
} bytes;

static inline void add(bytes *to, const void *data, size_t size) {
  if (to->size + size > to->capacity) {
    to->capacity = 2 * (to->size + size);
    to->data = realloc(to->data, to->capacity);
    CHECK(to->data != NULL);
  }
  if (size != 0) memcpy(to->data + to->size, data, size);
  to->size += size;
}

static inline void add_number(bytes *to, uint64_t value, int size) {
  unsigned char little[8];
  for (int i = 0; i < size; i++) little[i] = (unsigned char)(value >> (8 * i));
  add(to, little, (size_t)size);
}

static inline void add_name(bytes *to, const char *name) {
  add_number(to, strlen(name), 4);
  add(to, name, strlen(name));
}

static inline void pad(bytes *to) {
  static const unsigned char zeros[64];
  add(to, zeros, (64 - to->size % 64) % 64);
}

enum { MAX_FUNCTIONS = 8, MAX_CONSTANTS = 8, MAX_PRIMITIVES = 8 };

typedef struct function {
  const char *name;
  int32_t n_params, n_registers;
  const int32_t *words;
  int32_t n_words;
} function;

/* Vectors: of int64, or of 'size' elements of 'bits' bits in 'data'. */
typedef struct constant {
  const void *data;
  int64_t size;
  int bits;                    /* 0 for int64 */
} constant;

static inline int bits_of(const constant *c) { return c->bits == 0 ? 64 : c->bits; }

static inline uint64_t nbytes_of(const constant *c) {
  return ((uint64_t)c->size * (uint64_t)bits_of(c) + 7) / 8;
}

typedef struct program {
  function functions[MAX_FUNCTIONS];
  constant constants[MAX_CONSTANTS];
  const char *primitives[MAX_PRIMITIVES];
  const void *image;
  size_t image_size;
  const char *metadata;        /* NULL for an empty object */
  const int32_t *devices;      /* words of the section DEVICES, or NULL */
  int32_t n_device_words;
  const void *types;           /* the section TYPES, or NULL */
  size_t types_size;
  const void *variants[4];     /* images of variants, in place of 'image', or NULLs; */
  size_t variant_size;         /* all have this size, and metadata of their own: their number */
} program;

#define WORDS(...) \
  (const int32_t[]){__VA_ARGS__}, (int32_t)(sizeof (const int32_t[]){__VA_ARGS__} / sizeof(int32_t))

static inline bytes globals_section(const program *p) {
  bytes section = {0};
  uint32_t n = 0;
  while (n < MAX_FUNCTIONS && p->functions[n].name != NULL) n++;
  add_number(&section, n, 4);
  for (uint32_t i = 0; i < n; i++) {
    add_name(&section, p->functions[i].name);
    add_number(&section, (uint64_t)p->functions[i].n_params, 4);
    for (int32_t k = 0; k < p->functions[i].n_params; k++) add_name(&section, "x");
  }
  return section;
}

static inline bytes code_section(const program *p) {
  bytes section = {0};
  uint32_t n = 0;
  while (n < MAX_FUNCTIONS && p->functions[n].name != NULL) n++;
  add_number(&section, n, 4);
  for (uint32_t i = 0; i < n; i++) {
    const function *f = &p->functions[i];
    add_number(&section, (uint64_t)f->n_registers, 4);
    add_number(&section, (uint64_t)f->n_words, 4);
    for (int32_t k = 0; k < f->n_words; k++) add_number(&section, (uint32_t)f->words[k], 4);
  }
  return section;
}

static inline bytes constants_section(const program *p, size_t start) {
  bytes section = {0};
  uint64_t n = 0;
  while (n < MAX_CONSTANTS && p->constants[n].data != NULL) n++;
  uint64_t at = start + (4 + n * 32 + 63) / 64 * 64;
  add_number(&section, n, 4);
  for (uint64_t i = 0; i < n; i++) {
    const constant *c = &p->constants[i];
    add_number(&section, EK_DTYPE_INT | (uint64_t)bits_of(c) << 8 | 1 << 16, 4);
    add_number(&section, 1, 4);
    add_number(&section, (uint64_t)c->size, 8);
    add_number(&section, nbytes_of(c), 8);
    add_number(&section, at, 8);
    at += (nbytes_of(c) + 63) / 64 * 64;
  }
  for (uint64_t i = 0; i < n; i++) {
    pad(&section);
    add(&section, p->constants[i].data, nbytes_of(&p->constants[i]));
  }
  return section;
}

static inline bytes primitives_section(const program *p) {
  bytes section = {0};
  uint32_t n = 0;
  while (n < MAX_PRIMITIVES && p->primitives[n] != NULL) n++;
  add_number(&section, n, 4);
  for (uint32_t i = 0; i < n; i++) add_name(&section, p->primitives[i]);
  return section;
}

static inline bytes metadata_section(const program *p, uint32_t variant) {
  bytes section = {0};
  const char *content = p->metadata == NULL ? "{}" : p->metadata;
  if (variant != 0) add_number(&section, '0' + variant, 1);
  else add(&section, content, strlen(content));
  return section;
}

/* The section of a variant, or of all, if there is one: whether there is. */
static inline bool section_of(const program *p, uint32_t kind, uint32_t variant, size_t at,
                              bytes *section) {
  bool has_variants = p->variants[0] != NULL;
  *section = (bytes){0};
  if (variant != 0) {
    if (kind != 5 && kind != 6) return false;
    if (kind == 5) add(section, p->variants[variant - 1], p->variant_size);
    if (kind == 6) *section = metadata_section(p, variant);
    return true;
  }
  if (kind == 1) *section = globals_section(p);
  if (kind == 2) *section = constants_section(p, at);
  if (kind == 3) *section = primitives_section(p);
  if (kind == 4) *section = code_section(p);
  if (kind == 5 && p->image != NULL) add(section, p->image, p->image_size);
  if (kind == 6 && !has_variants) *section = metadata_section(p, 0);
  for (int32_t i = 0; kind == 7 && i < p->n_device_words; i++) {
    add_number(section, (uint32_t)p->devices[i], 4);
  }
  if (kind == 8 && p->types != NULL) add(section, p->types, p->types_size);
  if (kind == 8) return p->types != NULL;
  if (kind == 6) return !has_variants;
  return kind != 0 && (kind != 5 || p->image != NULL) && (kind != 7 || p->devices != NULL);
}

/* The file of a program; the caller frees its data. */
static inline bytes program_file(const program *p) {
  bytes file = {0}, table = {0}, body = {0};
  uint32_t n_variants = 0, n = 5u + (p->image != NULL ? 1 : 0) + (p->devices != NULL ? 1 : 0) +
      (p->types != NULL ? 1 : 0);
  while (n_variants < 4 && p->variants[n_variants] != NULL) n_variants++;
  if (n_variants != 0) n += 2 * n_variants - 1;
  size_t start = (32 + 24 * n + 63) / 64 * 64;
  for (uint32_t each = 0; each < 9 * (n_variants + 1); each++) {
    uint32_t kind = each % 9, variant = each / 9;
    bytes section;
    size_t end = body.size;
    pad(&body);
    if (!section_of(p, kind, variant, start + body.size, &section)) {
      body.size = end;
      continue;
    }
    add_number(&table, variant << 16 | kind, 4);
    add_number(&table, ek_crc32(section.data, section.size), 4);
    add_number(&table, start + body.size, 8);
    add_number(&table, section.size, 8);
    add(&body, section.data, section.size);
    free(section.data);
  }
  add(&file,
      "\x89"
      "EKIDEN\n",
      8);
  add_number(&file, 1, 4);
  add_number(&file, 0x01020304, 4);
  add_number(&file, start + body.size, 8);
  add_number(&file, n, 4);
  add_number(&file, ek_crc32(table.data, table.size), 4);
  add(&file, table.data, table.size);
  pad(&file);
  add(&file, body.data, body.size);
  free(table.data);
  free(body.data);
  return file;
}

/* Loads a program, or leaves an error: 0 or -1. */
static inline int load_program(const program *p, ek_object **executable) {
  bytes file = program_file(p);
  int status = ek_executable_from_bytes(file.data, file.size, 1, executable);
  free(file.data);
  return status;
}

static inline ek_object *machine_of(const program *p) {
  ek_object *executable, *vm;
  CHECK(load_program(p, &executable) == 0);
  CHECK(ek_vm_new(executable, &vm) == 0);
  ek_object_release(executable);
  return vm;
}

/* Calls function 0 with integers and expects an integer. */
static inline int64_t run_ints(ek_object *vm, const int64_t *numbers, int32_t n) {
  ek_value args[8] = {{0}}, result = ek_value_none();
  for (int32_t i = 0; i < n; i++) args[i] = ek_value_int(numbers[i]);
  if (ek_vm_invoke(vm, 0, args, n, &result) != 0) {
    ek_error_object *error = (ek_error_object *)(void *)ek_error_take();
    fprintf(stderr, "run: %s\n", error->message.data);
    exit(1);
  }
  CHECK(result.type_index == EK_INT);
  return result.v.i64;
}

/* The element of an int64 tensor of one, or NULL with an error set: programs may be damaged. */
static inline int64_t *test_element(const ek_value *value) {
  const ek_dltensor *tensor = ek_value_tensor(value);
  bool fits = tensor != NULL && tensor->dtype.code == EK_DTYPE_INT && tensor->dtype.bits == 64 &&
              ek_dltensor_nbytes(tensor) == 8 &&
              (uintptr_t)ek_dltensor_data(tensor) % sizeof(int64_t) == 0;
  if (fits) return ek_dltensor_data(tensor);
  ek_error("TypeError", "test_add: int64 tensors of one element expected");
  return NULL;
}

/* ek.test.add adds integers and int64 tensors of one element into a tensor, the last argument. */
static inline int test_add(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  uint64_t sum = 0;
  (void)self, (void)ret;
  for (int32_t i = 0; i < nargs - 1; i++) {
    bool is_int = args[i].type_index == EK_INT;
    const int64_t *element = is_int ? &args[i].v.i64 : test_element(&args[i]);
    if (element == NULL) return -1;
    sum += (uint64_t)*element;
  }
  int64_t *to = nargs == 0 ? NULL : test_element(&args[nargs - 1]);
  if (to == NULL) return nargs == 0 ? ek_error("TypeError", "test_add: no argument") : -1;
  *to = (int64_t)sum;
  return 0;
}

static inline void register_test_add(void) {
  ek_object *function_object;
  CHECK(ek_function_new(NULL, test_add, NULL, &function_object) == 0);
  CHECK(ek_registry_set("ek.test.add", function_object, 1) == 0);
  ek_object_release(function_object);
}

#endif /* PROGRAM_H_ */
