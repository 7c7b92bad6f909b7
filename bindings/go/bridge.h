/* What Go cannot say of ekiden/runtime.h: unions, arrays at the end of structs, inline functions. */
#ifndef EKIDEN_GO_BRIDGE_H_
#define EKIDEN_GO_BRIDGE_H_

#include <ekiden/runtime.h>
#include <stdlib.h>

extern int ekidenGoCall(uintptr_t self, ek_value *args, int32_t n, ek_value *ret);
extern void ekidenGoDelete(uintptr_t self);

/* Whether a tensor must not be written. */
static inline int go_is_read_only(const ek_object *tensor) {
  return ek_tensor_is_read_only(tensor);
}

static inline int go_call(void *self, const ek_value *args, int32_t n, ek_value *ret) {
  return ekidenGoCall((uintptr_t)self, (ek_value *)(uintptr_t)args, n, ret);
}

static inline void go_delete(void *self) { ekidenGoDelete((uintptr_t)self); }

static inline int go_function_new(uintptr_t self, ek_object **out) {
  return ek_function_new((void *)self, go_call, go_delete, out);
}

static inline int go_invoke(ek_object *function, const ek_value *args, int32_t n, ek_value *ret) {
  return ek_function_call(function, args, n, ret);
}

static inline int go_set_error(const char *kind, const char *message) {
  return ek_error(kind, "%s", message);
}

static inline int32_t go_type(const ek_object *object) { return object->type_index; }

static inline ek_bytes go_text(const ek_value *value) {
  ek_bytes bytes = {"", 0};
  ek_string_borrow(value, &bytes);
  return bytes;
}

static inline int go_is_tuple(const ek_object *object) {
  return object->type_index == EK_ARRAY ||
         (object->type_index == EK_ADT && ((const ek_adt *)(const void *)object)->tag == 0);
}

/* The items of an array or a tuple, and how many. */
static inline ek_value *go_items(ek_object *object, int64_t *n) {
  if (object->type_index == EK_ARRAY) {
    ek_array *array = (ek_array *)(void *)object;
    *n = array->size;
    return array->data;
  }
  ek_adt *adt = (ek_adt *)(void *)object;
  *n = adt->size;
  return adt->fields;
}

static inline ek_dltensor *go_tensor(ek_object *object) {
  return &((ek_tensor *)(void *)object)->dl;
}

static inline ek_dltensor *go_lent(const ek_value *value) { return value->v.ptr; }

static inline int go_field(ek_object *object, const char *name, const ek_field **out) {
  const ek_type_info *info = ek_type_get(object->type_index);
  for (int32_t i = 0; i < info->n_fields; i++) {
    if (strcmp(info->fields[i].name, name) == 0) {
      *out = &info->fields[i];
      return 0;
    }
  }
  return ek_error("AttributeError", "'%s' has no field '%s'", info->key, name);
}

static inline const char *go_field_name(ek_object *object, int32_t i) {
  return ek_type_get(object->type_index)->fields[i].name;
}

static inline int32_t go_field_count(ek_object *object) {
  return ek_type_get(object->type_index)->n_fields;
}

/* The kind, the message and the backtrace of an error. */
static inline void go_error_parts(ek_object *object, ek_bytes *parts) {
  const ek_error_object *error = (const ek_error_object *)(const void *)object;
  parts[0] = error->kind;
  parts[1] = error->message;
  parts[2] = error->backtrace;
}

#endif
