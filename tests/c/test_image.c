/* The loader of native code images: what it runs and what it refuses. */
#include "image.h"

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

int main(void) {
  functions_are_found_and_keep_the_code();
  names_are_listed_sorted();
  an_empty_image_is_an_image();
  every_prefix_is_refused();
  damaged_bytes_do_no_harm();
  errors_name_the_section();
  a_name_may_stand_once();
  return 0;
}
