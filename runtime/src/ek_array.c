/* Strings, bytes, arrays and values of algebraic data types: the objects that hold values. */
#include "ek_internal.h"

/* Strings -------------------------------------------------------------------------------------- */

int ek_string_new(int32_t type, const char *data, size_t size, ek_value *out) {
  if (size < sizeof out->v.bytes) {
    ek_value value = {type == EK_STR ? EK_SMALL_STR : EK_SMALL_BYTES, (uint32_t)size, {0}};
    if (size != 0) memcpy(value.v.bytes, data, size);
    *out = value;
    return 0;
  }
  if (size > (size_t)PTRDIFF_MAX / 8) return ek_error_memory(size);
  ek_string *string = ek_alloc_or_error(sizeof *string + size + 1);
  if (string == NULL) return -1;
  char *copy = (char *)(string + 1);
  string->base = (ek_object){EK_REFS_NEW, type, 0, ek_object_plain_deleter};
  string->bytes = (ek_bytes){copy, size};
  memcpy(copy, data, size);
  copy[size] = '\0';
  *out = ek_value_object(&string->base);
  return 0;
}

int ek_string_borrow(const ek_value *value, ek_bytes *out) {
  switch (value->type_index) {
    case EK_SMALL_STR:
    case EK_SMALL_BYTES: *out = (ek_bytes){value->v.bytes, value->small_len}; return 1;
    case EK_STR:
    case EK_BYTES: *out = ((ek_string *)(void *)value->v.obj)->bytes; return 1;
    case EK_RAW_STR: *out = ek_bytes_of(value->v.ptr); return 1;
    case EK_BYTE_ARRAY_PTR: *out = *(ek_bytes *)value->v.ptr; return 1;
    default: return 0;
  }
}

/* Arrays --------------------------------------------------------------------------------------- */

static void release_all(ek_value *values, int64_t count) {
  for (int64_t i = 0; i < count; i++) ek_value_release(&values[i]);
}

static void copy_all(ek_value *to, const ek_value *from, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    to[i] = from[i];
    ek_value_retain(&to[i]);
  }
}

static void array_deleter(void *self, int flags) {
  ek_array *array = self;
  if (flags & EK_DELETE_CONTENT) release_all(array->data, array->size);
  if (flags & EK_DELETE_MEMORY) ek_free(self);
}

ek_array *ek_array_alloc(int64_t size) {
  if (size < 0 || size > PTRDIFF_MAX / 64) {
    ek_error("ValueError", "make array: the size must be in range, got %lld", (long long)size);
    return NULL;
  }
  size_t bytes = sizeof(ek_array) + (size_t)size * sizeof(ek_value);
  ek_array *array = ek_object_new(bytes, EK_ARRAY, array_deleter);
  if (array == NULL) return NULL;
  array->data = (ek_value *)(void *)(array + 1);
  array->size = size;
  array->capacity = size;
  return array;
}

int ek_array_new(const ek_value *items, int64_t size, ek_object **out) {
  ek_array *array = ek_array_alloc(size);
  if (array == NULL) return -1;
  copy_all(array->data, items, size);
  *out = &array->base;
  return 0;
}

int ek_array_of_names(const char *const *names, int64_t size, ek_object **out) {
  ek_array *array = ek_array_alloc(size);
  if (array == NULL) return -1;
  for (int64_t i = 0; i < size; i++) {
    if (ek_string_new(EK_STR, names[i], strlen(names[i]), &array->data[i]) == 0) continue;
    ek_release(&array->base);
    return -1;
  }
  *out = &array->base;
  return 0;
}

/* Algebraic data types --------------------------------------------------------------------------
**
** A list of a million cells is a chain of a million ADTs. Its last reference must not take the C
** stack with it: an ADT that dies while another is being deleted on the same thread is queued,
** linked through the place of its deleter, and deleted by the outer one. */

static EK_THREAD_LOCAL ek_adt *dying;
static EK_THREAD_LOCAL bool is_deleting;

static void delete_adt(ek_adt *adt, int flags) {
  if (flags & EK_DELETE_CONTENT) release_all(adt->fields, adt->size);
  if (flags & EK_DELETE_MEMORY) ek_free(adt);
}

static void adt_deleter(void *self, int flags) {
  ek_adt *adt = self;
  if (adt->size == 0 || flags != (EK_DELETE_CONTENT | EK_DELETE_MEMORY)) {
    delete_adt(adt, flags);
    return;
  }
  if (is_deleting) {
    /* The deleter is not needed any more: its place holds the link. */
    memcpy(&adt->base.deleter, &dying, sizeof dying);
    dying = adt;
    return;
  }
  is_deleting = true;
  while (adt != NULL) {
    delete_adt(adt, flags);
    adt = dying;
    if (adt != NULL) memcpy(&dying, &adt->base.deleter, sizeof dying);
  }
  is_deleting = false;
}

int ek_adt_new(int32_t tag, const ek_value *fields, int32_t size, ek_object **out) {
  if (size < 0) return ek_error("ValueError", "make ADT: the number of fields is negative");
  size_t bytes = sizeof(ek_adt) + (size_t)size * sizeof(ek_value);
  ek_adt *adt = ek_alloc_or_error(bytes);
  if (adt == NULL) return -1;
  adt->base = (ek_object){EK_REFS_NEW, EK_ADT, 0, adt_deleter};
  adt->tag = tag;
  adt->size = size;
  copy_all(adt->fields, fields, size);
  *out = &adt->base;
  return 0;
}
