/* Objects of registered types: create and destroy them, read and write their fields.
**
** Fields are read and written without a lock: an object that several threads write is its users' to
** guard, as a struct of C is. What a field holds it owns. */
#include "ek_type.h"

/* Values that may be kept ---------------------------------------------------------------------- */

int ek_value_own(const char *doing, const ek_value *value, ek_value *out) {
  ek_bytes text;
  switch (value->type_index) {
    case EK_RAW_STR:
    case EK_BYTE_ARRAY_PTR:
      ek_string_borrow(value, &text);
      return ek_string_new(value->type_index == EK_RAW_STR ? EK_STR : EK_BYTES, text.data,
                           text.size, out);
    case EK_ANY:
    case EK_DLTENSOR_PTR:
      return ek_error("TypeError", "%s: a value that can be kept expected, got %s", doing,
                      ek_value_type_name(value));
    case EK_OBJECT_RVALUE_REF:
      *out = ek_value_object(*(ek_object **)value->v.ptr);
      ek_value_retain(out);
      return 0;
    default:
      *out = *value;
      ek_value_retain(out);
      return 0;
  }
}

/* Reading -------------------------------------------------------------------------------------- */

static int64_t read_int(const void *at, const ek_field *field) {
  uint64_t bits = 0;
  unsigned unused = 64 - 8 * (unsigned)field->size;
  memcpy(&bits, at, (size_t)field->size);
  bool is_signed = field->type == EK_INT && (field->flags & EK_FIELD_UNSIGNED) == 0;
  return is_signed ? (int64_t)(bits << unused) >> unused : (int64_t)bits;
}

static double read_float(const void *at, const ek_field *field) {
  float single;
  double number;
  if (field->size == sizeof number) {
    memcpy(&number, at, sizeof number);
    return number;
  }
  memcpy(&single, at, sizeof single);
  return (double)single;
}

static ek_value read_plain(const void *at, const ek_field *field) {
  ek_value value = {field->type, 0, {0}};
  if (field->type == EK_FLOAT) value.v.f64 = read_float(at, field);
  else if (field->type == EK_INT || field->type == EK_BOOL) value.v.i64 = read_int(at, field);
  else memcpy(&value.v, at, (size_t)field->size);
  return value;
}

int ek_field_get(const ek_object *object, const ek_field *field, ek_value *out) {
  const void *at = ek_field_at(object, field);
  switch (ek_field_form(field)) {
    case EK_FORM_CODE: return field->get(object, field, out);
    case EK_FORM_PLAIN: *out = read_plain(at, field); return 0;
    case EK_FORM_VALUE: *out = *(const ek_value *)at; break;
    case EK_FORM_POINTER: {
      ek_object *target = *(ek_object *const *)at;
      *out = target == NULL ? ek_value_none() : ek_value_object(target);
    }
  }
  ek_value_retain(out);
  return 0;
}

/* Writing -------------------------------------------------------------------------------------- */

static int wrong(const ek_object *object, const ek_field *field, const char *expected,
                 const ek_value *actual) {
  return ek_error("TypeError", "set field '%s' of '%s': %s expected, got %s", field->name,
                  ek_type_key(object->type_index), expected, ek_value_type_name(actual));
}

/* A number fits if it reads back the same. Fields are the low bytes of 64 bits, on little-endian
** processors only. */
static int write_int(ek_object *object, const ek_field *field, const ek_value *value) {
  int64_t number = value->v.i64;
  if (value->type_index != EK_INT && value->type_index != EK_BOOL) {
    return wrong(object, field, field->type == EK_BOOL ? "a bool" : "an int", value);
  }
  ek_value kept = ek_value_none();
  memcpy(&kept.v, &number, (size_t)field->size);
  bool fits = field->type == EK_BOOL ? number == 0 || number == 1
                                     : read_int(&kept.v, field) == number;
  if (!fits) {
    return ek_error("ValueError", "set field '%s' of '%s': %lld does not fit", field->name,
                    ek_type_key(object->type_index), (long long)number);
  }
  memcpy(ek_field_at(object, field), &number, (size_t)field->size);
  return 0;
}

/* An int as a float, where a float is wanted; anything else as it is. */
static ek_value as_float(const ek_value *value) {
  if (value->type_index != EK_INT) return *value;
  ek_value number = {EK_FLOAT, 0, {0}};
  number.v.f64 = (double)value->v.i64;
  return number;
}

static int write_plain(ek_object *object, const ek_field *field, const ek_value *value) {
  void *at = ek_field_at(object, field);
  if (field->type == EK_INT || field->type == EK_BOOL) return write_int(object, field, value);
  if (field->type == EK_FLOAT) {
    ek_value number = as_float(value);
    float single = (float)number.v.f64;
    if (number.type_index != EK_FLOAT) return wrong(object, field, "a number", value);
    memcpy(at, field->size == sizeof single ? (void *)&single : (void *)&number.v,
           (size_t)field->size);
    return 0;
  }
  if (value->type_index != field->type) {
    return wrong(object, field, ek_type_key(field->type), value);
  }
  memcpy(at, &value->v, (size_t)field->size);
  return 0;
}

/* The new target is taken before the old one is let go: they may be one object, or the old may own
** the new. */
static int write_pointer(ek_object *object, const ek_field *field, const ek_value *value) {
  ek_object **at = ek_field_at(object, field), *old = *at;
  if (value->type_index != EK_NONE && !ek_type_is(value->type_index, field->type)) {
    return wrong(object, field, ek_type_key(field->type), value);
  }
  *at = value->type_index == EK_NONE ? NULL : value->v.obj;
  ek_object_retain(*at);
  ek_object_release(old);
  return 0;
}

/* Whether a value may stand in a field declared with this type. Text and bytes have two forms. */
static bool goes_with(const ek_value *value, int32_t type) {
  int32_t is = value->type_index;
  if (is == EK_SMALL_STR) is = EK_STR;
  if (is == EK_SMALL_BYTES) is = EK_BYTES;
  if (type == EK_ANY || is == type) return true;
  return type >= EK_OBJECT && (is == EK_NONE || ek_type_is(is, type));
}

/* The old value is let go last, when the field already holds the new one: its deleter may read the
** field. */
static int write_value(ek_object *object, const ek_field *field, const ek_value *value) {
  ek_value *at = ek_field_at(object, field), old = *at, owned;
  ek_value given = field->type == EK_FLOAT ? as_float(value) : *value;
  if (ek_value_own("set field", &given, &owned) != 0) return -1;
  if (!goes_with(&owned, field->type)) {
    ek_value_release(&owned);
    return wrong(object, field, ek_type_key(field->type), value);
  }
  *at = owned;
  ek_value_release(&old);
  return 0;
}

static int store(ek_object *object, const ek_field *field, const ek_value *value) {
  switch (ek_field_form(field)) {
    case EK_FORM_VALUE: return write_value(object, field, value);
    case EK_FORM_POINTER: return write_pointer(object, field, value);
    case EK_FORM_PLAIN: return write_plain(object, field, value);
    default: break;
  }
  if (field->set != NULL) return field->set(object, field, value);
  return ek_error("TypeError", "set field '%s' of '%s': it can only be read", field->name,
                  ek_type_key(object->type_index));
}

int ek_field_set(ek_object *object, const ek_field *field, const ek_value *value) {
  if (field->flags & EK_FIELD_READ_ONLY) {
    return ek_error("TypeError", "set field '%s' of '%s': it can only be read", field->name,
                    ek_type_key(object->type_index));
  }
  return store(object, field, value);
}

/* Objects -------------------------------------------------------------------------------------- */

static void drop_fields(ek_object *object) {
  const ek_type_info *info = ek_type_get(object->type_index);
  for (int32_t i = 0; i < info->n_fields; i++) {
    const ek_field *field = &info->fields[i];
    void *at = ek_field_at(object, field);
    if (ek_field_form(field) == EK_FORM_VALUE) ek_value_release(at);
    if (ek_field_form(field) == EK_FORM_POINTER) ek_object_release(*(ek_object **)at);
  }
}

static void drop(void *self, int flags) {
  if (flags & EK_DELETE_CONTENT) drop_fields(self); /* of the header only the type is left */
  if (flags & EK_DELETE_MEMORY) ek_free(self);
}

static void defined_deleter(void *self, int flags) { ek_delete_flat(self, flags, drop); }

static int make(const ek_type_info *info, ek_object **out) {
  if (info->create != NULL) return info->create(out);
  *out = ek_object_alloc((size_t)info->size, info->index, defined_deleter);
  return *out == NULL ? -1 : 0;
}

static int missing(const ek_type_info *info, const ek_field *field) {
  return ek_error("TypeError", "make '%s': field '%s' is missing", info->key, field->name);
}

/* Fields that nothing is given for have their standard value; EK_ANY stands for nothing given. The
** object is dropped by the caller if a field refuses: the fields behind it are still zero, which is
** "none" to the deleter. */
static int fill(ek_object *object, const ek_type_info *info, const ek_value *values, int32_t n) {
  for (int32_t i = 0; i < info->n_fields; i++) {
    const ek_field *field = &info->fields[i];
    const ek_value *value = i < n ? &values[i] : &field->standard;
    if (value->type_index == EK_ANY) value = &field->standard;
    if (value == &field->standard && (field->flags & EK_FIELD_DEFAULT) == 0) {
      return missing(info, field);
    }
    if (value->type_index != EK_ANY && store(object, field, value) != 0) return -1;
  }
  return 0;
}

/* Creates an object from the values of all fields. */
static int build(const ek_type_info *info, const ek_value *values, int32_t n, ek_object **out) {
  ek_value *all = ek_alloc_or_error((size_t)info->n_fields * sizeof *all + 1);
  if (all == NULL) return -1;
  int code = 0;
  for (int32_t i = 0; i < info->n_fields && code == 0; i++) {
    const ek_field *field = &info->fields[i];
    all[i] = i < n ? values[i] : (ek_value){EK_ANY, 0, {0}};
    if (all[i].type_index == EK_ANY && (field->flags & EK_FIELD_DEFAULT) == 0) {
      code = missing(info, field);
    }
  }
  if (code == 0) code = info->build(info, all, info->n_fields, out);
  ek_free(all);
  return code;
}

int ek_object_new(int32_t type_index, const ek_value *values, int32_t n, ek_object **out) {
  const ek_type_info *info = ek_type_get(type_index);
  ek_object *object = NULL;
  if (info == NULL || !info->is_defined) {
    return ek_error("TypeError", "make object: type '%s' has not been defined",
                    info == NULL ? "?" : info->key);
  }
  if (n > info->n_fields) {
    return ek_error("TypeError", "make '%s': at most %d fields expected, got %d", info->key,
                    info->n_fields, n);
  }
  if (info->build != NULL) return build(info, values, n, out);
  if (make(info, &object) != 0) return -1;
  if (fill(object, info, values, n) != 0) {
    ek_release(object);
    return -1;
  }
  *out = object;
  return 0;
}
