/* Strings, bytes, arrays, shapes and values of algebraic data types: the objects that hold
** values. */
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

/* Arrays --------------------------------------------------------------------------------------- */

/* The values of n items; those it made are released on failure. */
static int own_all(const char *doing, ek_value *to, const ek_value *from, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    if (ek_value_own(doing, &from[i], &to[i]) == 0) continue;
    ek_values_release(to, i);
    return -1;
  }
  return 0;
}

static void drop_array(void *self, int flags) {
  ek_array *array = self;
  if (flags & EK_DELETE_CONTENT) ek_values_release(array->data, array->size);
  if (flags & EK_DELETE_MEMORY) ek_free(self);
}

static void array_deleter(void *self, int flags) { ek_delete_flat(self, flags, drop_array); }

ek_array *ek_array_alloc(int64_t size) {
  if (size < 0 || size > PTRDIFF_MAX / 64) {
    ek_error("ValueError", "make array: the size must be in range, got %lld", (long long)size);
    return NULL;
  }
  size_t bytes = sizeof(ek_array) + (size_t)size * sizeof(ek_value);
  ek_array *array = ek_object_alloc(bytes, EK_ARRAY, array_deleter);
  if (array == NULL) return NULL;
  array->data = (ek_value *)(void *)(array + 1);
  array->size = size;
  array->capacity = size;
  return array;
}

static int array_new(const ek_value *items, int64_t size, ek_object **out) {
  ek_array *array = ek_array_alloc(size);
  if (array == NULL) return -1;
  if (own_all("make array", array->data, items, size) != 0) {
    ek_free(array);
    return -1;
  }
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

/* Shapes --------------------------------------------------------------------------------------- */

static int shape_new(const ek_value *items, int64_t n, ek_object **out) {
  if (n < 0 || n > INT32_MAX) {
    return ek_error("ValueError", "make shape: the number of dimensions must be in range, got %lld",
                    (long long)n);
  }
  size_t size = sizeof(ek_shape) + (size_t)n * sizeof(int64_t);
  ek_shape *shape = ek_object_alloc(size, EK_SHAPE, ek_object_plain_deleter);
  if (shape == NULL) return -1;
  int64_t *dims = (int64_t *)(void *)(shape + 1);
  shape->data = dims;
  shape->size = (size_t)n;
  for (int64_t i = 0; i < n; i++) {
    if (items[i].type_index != EK_INT) {
      ek_free(shape);
      return ek_error("TypeError", "make shape: dimension %lld: an int expected, got %s",
                      (long long)i, ek_value_type_name(&items[i]));
    }
    dims[i] = items[i].v.i64;
  }
  *out = &shape->base;
  return 0;
}

/* Algebraic data types ------------------------------------------------------------------------- */

static void drop_adt(void *self, int flags) {
  ek_adt *adt = self;
  if (flags & EK_DELETE_CONTENT) ek_values_release(adt->fields, adt->size);
  if (flags & EK_DELETE_MEMORY) ek_free(self);
}

static void adt_deleter(void *self, int flags) { ek_delete_flat(self, flags, drop_adt); }

ek_adt *ek_adt_alloc(int32_t tag, int32_t size) {
  size_t nbytes = (size_t)size * sizeof(ek_value);
  ek_adt *adt = ek_alloc_or_error(sizeof *adt + nbytes);
  if (adt == NULL) return NULL;
  adt->base = (ek_object){EK_REFS_NEW, EK_ADT, 0, adt_deleter};
  adt->tag = tag;
  adt->size = size;
  memset(adt->fields, 0, nbytes);
  return adt;
}

static int adt_new(int32_t tag, const ek_value *fields, int64_t size, ek_object **out) {
  if (size < 0 || size > INT32_MAX) {
    return ek_error("ValueError", "make ADT: the number of fields must be in range, got %lld",
                    (long long)size);
  }
  ek_adt *adt = ek_adt_alloc(tag, (int32_t)size);
  if (adt == NULL) return -1;
  if (own_all("make ADT", adt->fields, fields, size) != 0) {
    ek_free(adt);
    return -1;
  }
  *out = &adt->base;
  return 0;
}

int ek_container_new(int32_t type, int32_t tag, const ek_value *items, int64_t n,
                     ek_object **out) {
  switch (type) {
    case EK_ARRAY: return array_new(items, n, out);
    case EK_ADT: return adt_new(tag, items, n, out);
    case EK_MAP: return ek_map_new(items, n, out);
    case EK_SHAPE: return shape_new(items, n, out);
    default: return ek_error("ValueError", "make container: there is none of type %d", type);
  }
}
