/* Strings, bytes, arrays, values of algebraic data types. */
#include "check.h"

static void short_strings_need_no_object(void) {
  ek_value value;
  ek_bytes text;
  CHECK(ek_string_new(EK_STR, "seven77", 7, &value) == 0);
  CHECK(value.type_index == EK_SMALL_STR && value.small_len == 7 && value.v.bytes[7] == 0);
  CHECK(ek_string_borrow(&value, &text) == 1 && same_text(text, "seven77"));
  CHECK(ek_string_new(EK_BYTES, NULL, 0, &value) == 0);
  CHECK(value.type_index == EK_SMALL_BYTES && value.small_len == 0);
}

static void long_strings_are_objects(void) {
  ek_value value;
  ek_bytes text;
  CHECK(ek_string_new(EK_BYTES, "eight\0 8", 8, &value) == 0);
  CHECK(value.type_index == EK_BYTES && ek_string_borrow(&value, &text) == 1);
  CHECK(text.size == 8 && memcmp(text.data, "eight\0 8", 9) == 0);
  ek_value_release(&value);
  CHECK(value.type_index == EK_NONE);
}

static void borrowed_forms_are_read(void) {
  char raw[] = "raw";
  ek_bytes array = {"array", 5}, text;
  ek_value value = {EK_RAW_STR, 0, {0}};
  value.v.ptr = raw;
  CHECK(ek_string_borrow(&value, &text) == 1 && same_text(text, "raw"));
  value.type_index = EK_BYTE_ARRAY_PTR;
  value.v.ptr = &array;
  CHECK(ek_string_borrow(&value, &text) == 1 && same_text(text, "array"));
  value = ek_value_int(3);
  CHECK(ek_string_borrow(&value, &text) == 0 && ek_error_take() == NULL);
}

static void containers_share_their_items(void) {
  ek_value items[2] = {ek_value_int(1)};
  ek_object *array = NULL, *adt = NULL;
  CHECK(ek_string_new(EK_STR, "a longer string", 15, &items[1]) == 0);
  CHECK(ek_array_new(items, 2, &array) == 0 && ek_adt_new(7, items, 2, &adt) == 0);
  CHECK((items[1].v.obj->refs & EK_STRONG_MASK) == 3);
  CHECK(((ek_array *)(void *)array)->data[1].v.obj == items[1].v.obj);
  CHECK(((ek_adt *)(void *)adt)->tag == 7 && ((ek_adt *)(void *)adt)->size == 2);
  ek_object_release(array);
  ek_object_release(adt);
  CHECK((items[1].v.obj->refs & EK_STRONG_MASK) == 1);
  ek_value_release(&items[1]);
}

static void empty_containers_and_bad_sizes(void) {
  ek_object *out = NULL;
  CHECK(ek_array_new(NULL, 0, &out) == 0);
  ek_object_release(out);
  CHECK(ek_adt_new(0, NULL, 0, &out) == 0);
  ek_object_release(out);
  CHECK_ERROR(ek_array_new(NULL, -1, &out), "ValueError",
              "make array: the size must be in range, got -1");
  CHECK_ERROR(ek_adt_new(0, NULL, -1, &out), "ValueError",
              "make ADT: the number of fields must be in range, got -1");
}

/* cons(n, cons(n - 1, ... nil)): deleted without recursion. */
static void a_list_of_a_million_cells_dies_quietly(void) {
  ek_object *list = NULL;
  CHECK(ek_adt_new(0, NULL, 0, &list) == 0);
  for (int i = 0; i < 1000000; i++) {
    ek_value fields[2] = {ek_value_int(i), ek_value_object(list)};
    ek_object *longer = NULL;
    CHECK(ek_adt_new(1, fields, 2, &longer) == 0);
    ek_object_release(list);
    list = longer;
  }
  ek_object_release(list);
}

int main(void) {
  short_strings_need_no_object();
  long_strings_are_objects();
  borrowed_forms_are_read();
  containers_share_their_items();
  empty_containers_and_bad_sizes();
  a_list_of_a_million_cells_dies_quietly();
  return 0;
}
