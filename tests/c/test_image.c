/* The loader of native code images: what it runs and what it refuses. */
#include "image.h"

#include <unistd.h>

enum { EXPORTS = 8, IMPORTS = 12, TEXT = 16, EXPORT_TABLE = 24, IMPORT_TABLE = 32, TOTAL = 40 };

static void functions_are_found_and_keep_the_code(void) {
  image_bytes image = make_image();
  ek_object *module = NULL, *answer = NULL, *fail = NULL, *missing = NULL;
  ek_value ret = ek_value_none();
  CHECK(ek_image_load(image.bytes, image.size, &module) == 0);
  memset(image.bytes, 0xee, sizeof image.bytes);
  CHECK(ek_module_get(module, "answer", &answer) == 0 && answer != NULL);
  CHECK(ek_module_get(module, "fail", &fail) == 0 && fail != NULL);
  CHECK(ek_module_get(module, "answers", &missing) == 0 && missing == NULL);
  CHECK(ek_module_get(module, "", &missing) == 0 && missing == NULL);
  ek_object_release(module);
#if defined(__x86_64__)
  CHECK(ek_function_call(answer, NULL, 0, &ret) == 0 && ret.v.i64 == 42);
  CHECK(ret.type_index == EK_INT);
  CHECK_ERROR(ek_function_call(fail, NULL, 0, &ret), "ValueError", "no such index");
#endif
  ek_object_release(answer);
  ek_object_release(fail);
}

static void names_are_listed_sorted(void) {
  image_bytes image = make_image();
  ek_object *module = NULL, *names = NULL;
  ek_bytes name;
  CHECK(ek_image_load(image.bytes, image.size, &module) == 0);
  CHECK(ek_module_names(module, &names) == 0);
  ek_array *array = (ek_array *)(void *)names;
  CHECK(array->size == 2);
  CHECK(ek_string_borrow(&array->data[0], &name) == 1 && same_text(name, "answer"));
  CHECK(ek_string_borrow(&array->data[1], &name) == 1 && same_text(name, "fail"));
  ek_object_release(names);
  ek_object_release(module);
}

static void an_empty_image_is_an_image(void) {
  image_bytes image = {{'E', 'K', 'I', 'M', 'G', 0, 0, 1}, 4096};
  ek_object *module = NULL, *missing = NULL;
  put_at(&image, EXPORT_TABLE, 4096, 8);
  put_at(&image, IMPORT_TABLE, 4096, 8);
  put_at(&image, TOTAL, 4096, 8);
  CHECK(ek_image_load(image.bytes, image.size, &module) == 0);
  CHECK(ek_module_get(module, "x", &missing) == 0 && missing == NULL);
  ek_object_release(module);
}

/* Loads a copy that lies in memory of exactly its size, so that a sanitizer sees any byte read
** beyond. */
static int load_exact(const image_bytes *image, size_t size) {
  ek_object *module = NULL;
  void *exact = malloc(size == 0 ? 1 : size);
  CHECK(exact != NULL);
  memcpy(exact, image->bytes, size);
  int code = ek_image_load(exact, size, &module);
  free(exact);
  if (code == 0) ek_object_release(module);
  return code;
}

static void every_prefix_is_refused(void) {
  image_bytes image = make_image();
  for (size_t size = 0; size < image.size; size++) {
    CHECK(load_exact(&image, size) == -1);
    ek_error_object *error = (ek_error_object *)(void *)ek_error_take();
    CHECK(same_text(error->kind, "LoadError"));
    ek_object_release(&error->base);
  }
  image.size += 8;
  CHECK_ERROR(load_exact(&image, image.size), "LoadError",
              "load code image: header: expected 4255 bytes, got 4263");
}

/* Any byte outside the text may have any value: the loader refuses or loads, and survives. */
static void damaged_bytes_do_no_harm(void) {
  const unsigned char values[] = {0, 1, 0x7f, 0x80, 0xff};
  for (size_t at = 0; at < make_image().size; at++) {
    if (at == 64) at = TABLES;
    for (size_t i = 0; i < sizeof values; i++) {
      image_bytes image = make_image();
      image.bytes[at] = values[i];
      if (load_exact(&image, image.size) != 0) drop_error();
    }
  }
}

static void refuse(size_t at, uint64_t value, int size, const char *message) {
  image_bytes image = make_image();
  put_at(&image, at, value, size);
  CHECK_ERROR(load_exact(&image, image.size), "LoadError", message);
}

static void errors_name_the_section(void) {
  const size_t first_export = TABLES, first_offset = TABLES + 8, second_export = TABLES + 16;
  refuse(0, 'X', 1, "load code image: header: this is no code image");
  refuse(48, 1, 1, "load code image: header: there are bytes behind its last entry");
  refuse(TEXT, UINT64_MAX, 8, "load code image: text: it is larger than the file");
  refuse(TEXT, 90, 8, "load code image: text: there are bytes behind its end");
  refuse(EXPORTS, UINT32_MAX, 4,
         "load code image: export table: it does not fit between its neighbours");
  refuse(EXPORTS, 1, 4, "load code image: export table: there are bytes behind its last entry");
  refuse(IMPORTS, UINT32_MAX, 4, "load code image: import table: it does not fit in the file");
  refuse(IMPORTS, 1, 4, "load code image: import table: there are bytes behind its last entry");
  refuse(EXPORT_TABLE, 4096, 8,
         "load code image: export table: it does not fit between its neighbours");
  refuse(IMPORT_TABLE, UINT64_MAX, 8, "load code image: import table: it does not fit in the file");
  refuse(first_export, UINT32_MAX, 4,
         "load code image: export table: a name is longer than the table");
  refuse(first_export, 0, 4, "load code image: export table: a name is empty");
  refuse(first_export + 5, 0, 1, "load code image: export table: a name contains a zero byte");
  refuse(first_offset, TEXT_SIZE, 8,
         "load code image: export table: an offset lies outside the text");
  refuse(second_export + 18 + 4, 'x', 1,
         "load code image: import table: there is no service 'xemcpy'");
}

static void a_name_may_stand_once(void) {
  image_bytes image = make_image();
  size_t size = image.size;
  image.size = TABLES;
  put_name(&image, "answer"); /* 18 bytes each, as 16 and 18 before: the import table moves by 2 */
  put(&image, 0, 8);
  put_name(&image, "answer");
  put(&image, 0, 8);
  put_at(&image, IMPORT_TABLE, image.size, 8);
  put_name(&image, "memcpy");
  put_name(&image, "ek_kernel_error");
  put_at(&image, TOTAL, image.size, 8);
  CHECK(image.size == size + 2);
  CHECK_ERROR(load_exact(&image, image.size), "LoadError",
              "load code image: export table: 'answer' stands there twice");
}

/* x86-64. "call" calls ek_call_packed(site, args, nargs, ret): the first argument is another. */
static image_bytes calling_image(const char *import) {
  static const unsigned char code[13] = {
      0x48, 0x8b, 0x3d, 0xf9, 0x0f, 0, 0, /* mov rdi, [rip+4089] */
      0xff, 0x25, 0xfb, 0x0f, 0, 0};      /* jmp [rip+4091] */
  image_bytes image = {{'E', 'K', 'I', 'M', 'G', 0, 0, 1}, 4096 + 16};
  memcpy(image.bytes + 4096, code, sizeof code);
  put_name(&image, "call");
  put(&image, 0, 8);
  size_t imports = image.size;
  put_name(&image, import);
  put_name(&image, "ek_call_packed");
  put_at(&image, 8, 1, 4);
  put_at(&image, 12, 2, 4);
  put_at(&image, 16, 16, 8);
  put_at(&image, 24, 4096 + 16, 8);
  put_at(&image, 32, imports, 8);
  put_at(&image, 40, image.size, 8);
  return image;
}

#if defined(__x86_64__)
static int constant(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)args;
  *ret = ek_value_int(*(const int64_t *)self + nargs);
  return 0;
}

static void set_global(const char *name, int64_t *number) {
  ek_object *function = NULL;
  CHECK(ek_function_new(number, constant, NULL, &function) == 0);
  CHECK(ek_registry_set(name, function, 1) == 0);
  ek_object_release(function);
}

static int64_t call_with_one(ek_object *function) {
  ek_value arg = ek_value_none(), ret = ek_value_none();
  CHECK(ek_function_call(function, &arg, 1, &ret) == 0);
  return ret.v.i64;
}

/* What a call site has found it keeps: for as long as the code is there, and no longer. */
static void calls_by_name_are_found_once(void) {
  static int64_t ten = 10, twenty = 20;
  image_bytes image = calling_image("packed:test.by_name");
  ek_object *module = NULL, *function = NULL, *found;
  ek_value ret = ek_value_none();
  CHECK(ek_image_load(image.bytes, image.size, &module) == 0);
  CHECK(ek_module_get(module, "call", &function) == 0);
  CHECK_ERROR(ek_function_call(function, NULL, 0, &ret), "KeyError",
              "call 'test.by_name': there is no global function of that name");
  set_global("test.by_name", &ten);
  CHECK(call_with_one(function) == 11);
  found = ek_registry_get("test.by_name");
  CHECK((found->refs & EK_STRONG_MASK) == 3);
  set_global("test.by_name", &twenty);
  CHECK(call_with_one(function) == 11 && (found->refs & EK_STRONG_MASK) == 2);
  ek_object_release(function);
  ek_object_release(module);
  CHECK((found->refs & EK_STRONG_MASK) == 1);
  ek_object_release(found);
  ek_registry_remove("test.by_name");
}

static void calls_by_name_look_in_imports_first(void) {
  static int64_t ten = 10;
  image_bytes image = calling_image("packed:answer"), answer = make_image();
  ek_object *module = NULL, *imported = NULL, *function = NULL;
  set_global("answer", &ten);
  CHECK(ek_image_load(image.bytes, image.size, &module) == 0);
  CHECK(ek_image_load(answer.bytes, answer.size, &imported) == 0);
  CHECK(ek_module_import(module, imported) == 0);
  CHECK(ek_module_get(module, "call", &function) == 0 && call_with_one(function) == 42);
  ek_object_release(function);
  ek_object_release(imported);
  ek_object_release(module);
  ek_registry_remove("answer");
}
#endif

static void what_a_machine_lacks_is_named(void) {
  ek_object *module = NULL;
  image_bytes plain = make_image_for(0, "x86-64"), other = make_image_for(1, "neoverse-n1 sve");
  image_bytes strange = make_image_for(0, "z80 sse4_1 sixty avx9"), unnamed = make_image_for(7, "");
  image_bytes damaged = make_image_for(0, "x86-64\n");
  CHECK(load_exact(&plain, plain.size) == 0);
  CHECK_ERROR(load_exact(&damaged, damaged.size), "LoadError",
              "load code image: header: there are bytes behind its last entry");
  CHECK_ERROR(ek_image_load(other.bytes, other.size, &module), "LoadError",
              "load code image: header: this machine lacks what its code needs: AArch64 "
              "(neoverse-n1)");
  CHECK_ERROR(ek_image_load(strange.bytes, strange.size, &module), "LoadError",
              "load code image: header: this machine lacks what its code needs: sixty avx9 (z80)");
  CHECK_ERROR(ek_image_load(unnamed.bytes, unnamed.size, &module), "LoadError",
              "load code image: header: this machine lacks what its code needs: its architecture");
}

static void what_is_lacking_may_be_long(void) {
  image_bytes image = make_image();
  ek_object *module = NULL;
  memset(image.bytes + 48, 'a', 4096 - 48);
  for (int at = 100; at < 4000; at += 10) image.bytes[at] = ' ';
  CHECK(ek_image_load(image.bytes, image.size, &module) == -1);
  drop_error();
}

static void profilers_are_told_the_names(void) {
  image_bytes image = make_image();
  ek_object *module = NULL;
  char path[64], line[128];
  unsigned long long start, size;
  int lines = 0;
  snprintf(path, sizeof path, "/tmp/perf-%ld.map", (long)getpid());
  CHECK(setenv("EKIDEN_PERF_MAP", "1", 1) == 0);
  CHECK(ek_image_load(image.bytes, image.size, &module) == 0);
  CHECK(unsetenv("EKIDEN_PERF_MAP") == 0);
  ek_object_release(module);
  FILE *file = fopen(path, "r");
  CHECK(file != NULL);
  for (char name[32]; fgets(line, sizeof line, file) != NULL; lines++) {
    CHECK(sscanf(line, "%llx %llx %31s", &start, &size, name) == 3);
    CHECK(start != 0 && size == (strcmp(name, "fail") == 0 ? TEXT_SIZE - 32 : 32));
  }
  CHECK(lines == 2 && fclose(file) == 0 && remove(path) == 0);
}

static void imports_of_calls_have_names(void) {
  image_bytes image = calling_image("packed:");
  ek_object *module = NULL;
  CHECK_ERROR(ek_image_load(image.bytes, image.size, &module), "LoadError",
              "load code image: import table: there is no service 'packed:'");
}

/* Two modules, of which the first imports the second. */
typedef struct several {
  _Alignas(64) unsigned char bytes[2 * 4608 + 256];
  size_t size;
} several;

static void put_word(several *to, size_t at, uint64_t value) {
  for (size_t i = 0; i < 8; i++) to->bytes[at + i] = (unsigned char)(value >> (8 * i));
}

static several two_modules(void) {
  static const char magic[8] = {'E', 'K', 'M', 'O', 'D', 'S', 0, 1};
  image_bytes image = make_image();
  several made = {{0}, 0};
  size_t first = 128, second = (first + image.size + 63) / 64 * 64;
  memcpy(made.bytes, magic, sizeof magic);
  const uint64_t words[] = {2, first, image.size, second, image.size, 1, 0, 1};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) put_word(&made, 8 + 8 * i, words[i]);
  memcpy(made.bytes + first, image.bytes, image.size);
  memcpy(made.bytes + second, image.bytes, image.size);
  made.size = second + image.size;
  return made;
}

static void an_image_gives_its_bytes(void) {
  image_bytes image = make_image();
  ek_object *module = NULL;
  ek_value bytes = ek_value_none();
  ek_bytes found;
  CHECK(ek_image_load(image.bytes, image.size, &module) == 0);
  CHECK(ek_module_part(module, EK_MODULE_BYTES, &bytes) == 0 && ek_string_borrow(&bytes, &found));
  CHECK(found.size == image.size && memcmp(found.data, image.bytes, image.size) == 0);
  ek_value_release(&bytes);
  ek_object_release(module);
}

static void modules_come_with_what_they_import(void) {
  several given = two_modules();
  ek_object *module = NULL;
  ek_value imports = ek_value_none();
  CHECK(ek_module_from_bytes(given.bytes, given.size, &module) == 0);
  CHECK(ek_module_part(module, EK_MODULE_IMPORTS, &imports) == 0);
  CHECK(((const ek_array *)(const void *)imports.v.obj)->size == 1);
  CHECK(ek_module_implements(module, "answer") == 1);
  ek_value_release(&imports);
  ek_object_release(module);
}

static void damaged_modules_do_no_harm(void) {
  several given = two_modules();
  ek_object *module = NULL;
  for (size_t size = 0; size < given.size; size += size < 200 ? 1 : 61) {
    CHECK(ek_module_from_bytes(given.bytes, size, &module) != 0);
    ek_object_release(ek_error_take());
  }
  static const struct {
    size_t at;
    uint64_t value;
    const char *message;
  } wrong[] = {
      {8, 5000, "load modules: a table is larger than the bytes"},
      {16, 129, "load modules: a module lies outside of the bytes"},
      {16, UINT64_MAX - 63, "load modules: a module lies outside of the bytes"},
      {24, UINT64_MAX, "load modules: a module lies outside of the bytes"},
      {56, 2, "load modules: an import names no module"},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    several damaged = given;
    put_word(&damaged, wrong[i].at, wrong[i].value);
    CHECK_ERROR(ek_module_from_bytes(damaged.bytes, damaged.size, &module), "LoadError",
                wrong[i].message);
  }
  several cycle = given;
  put_word(&cycle, 56, 1);
  put_word(&cycle, 64, 1);
  CHECK(ek_module_from_bytes(cycle.bytes, cycle.size, &module) != 0);
  ek_object_release(ek_error_take());
}

int main(void) {
  an_image_gives_its_bytes();
  modules_come_with_what_they_import();
  damaged_modules_do_no_harm();
  functions_are_found_and_keep_the_code();
  names_are_listed_sorted();
  an_empty_image_is_an_image();
  every_prefix_is_refused();
  damaged_bytes_do_no_harm();
  errors_name_the_section();
  a_name_may_stand_once();
  what_a_machine_lacks_is_named();
  what_is_lacking_may_be_long();
  profilers_are_told_the_names();
  imports_of_calls_have_names();
#if defined(__x86_64__)
  calls_by_name_are_found_once();
  calls_by_name_look_in_imports_first();
#endif
  return 0;
}
