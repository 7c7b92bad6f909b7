/* Structural equality and hash of values.
**
** Both walk with a list of what is still to be seen, so that depth costs memory and no C stack.
** What is on the list is borrowed from the values compared; only what the functions of a field made
** is owned, and kept until the end.
*/
#include "ek_type.h"

typedef struct pair {
  ek_value a, b;               /* 'b' is not used for hashes */
} pair;

typedef struct walk {
  pair *pending, *made;        /* made: owned */
  size_t n_pending, n_made, pending_capacity, made_capacity;
} walk;

static int append(pair **items, size_t *n, size_t *capacity, pair item) {
  if (*n == *capacity) {
    size_t wanted = *capacity == 0 ? 32 : 2 * *capacity;
    pair *larger = ek_alloc_or_error(wanted * sizeof *larger);
    if (larger == NULL) return -1;
    if (*n != 0) memcpy(larger, *items, *n * sizeof *larger);
    ek_free(*items);
    *items = larger;
    *capacity = wanted;
  }
  (*items)[(*n)++] = item;
  return 0;
}

static int push(walk *w, ek_value a, ek_value b) {
  return append(&w->pending, &w->n_pending, &w->pending_capacity, (pair){a, b});
}

static void finish(walk *w) {
  for (size_t i = 0; i < w->n_made; i++) {
    ek_value_release(&w->made[i].a);
    ek_value_release(&w->made[i].b);
  }
  ek_free(w->made);
  ek_free(w->pending);
}

/* A field as a value that is borrowed from the object, or kept by the walk. */
static int read_field(walk *w, const ek_value *object, const ek_field *field, ek_value *out) {
  if (ek_field_get(object->v.obj, field, out) != 0) return -1;
  if (out->type_index < EK_OBJECT) return 0;
  return append(&w->made, &w->n_made, &w->made_capacity, (pair){*out, ek_value_none()});
}

/* Forms ---------------------------------------------------------------------------------------- */

static bool is_text(const ek_value *value) {
  int32_t type = value->type_index;
  return type == EK_SMALL_STR || type == EK_RAW_STR || type == EK_STR;
}

/* Text and bytes have several forms each: one type for all of them. */
static int32_t type_of(const ek_value *value) {
  ek_bytes bytes;
  if (is_text(value)) return EK_STR;
  return ek_string_borrow(value, &bytes) ? EK_BYTES : value->type_index;
}

static const ek_type_info *fields_of(const ek_value *value) {
  const ek_type_info *info = ek_type_get(value->type_index);
  return info != NULL && info->is_defined && info->build == NULL ? info : NULL;
}

/* A tensor whose elements can be compared here: packed in the memory of the host. */
static bool is_plain_tensor(const ek_value *value) {
  const ek_dltensor *tensor = ek_value_tensor(value);
  return tensor != NULL && tensor->device.type == EK_CPU && ek_dltensor_is_contiguous(tensor);
}

/* Equality ------------------------------------------------------------------------------------- */

/* Floats too are compared by their bits: a NaN is equal to itself here, and 0.0 is not -0.0. So
** equal values have equal hashes, and may stand for each other in a cache. */
static bool same_bits(const ek_value *a, const ek_value *b) {
  return memcmp(&a->v, &b->v, sizeof a->v) == 0;
}

static bool same_text(const ek_value *a, const ek_value *b) {
  ek_bytes x = {"", 0}, y = {"", 0};
  ek_string_borrow(a, &x);
  ek_string_borrow(b, &y);
  return x.size == y.size && (x.size == 0 || memcmp(x.data, y.data, x.size) == 0);
}

static bool same_shape(const ek_shape *a, const ek_shape *b) {
  return a->size == b->size && (a->size == 0 || memcmp(a->data, b->data, 8 * a->size) == 0);
}

static bool same_dims(const ek_dltensor *a, const ek_dltensor *b) {
  if (a->ndim != b->ndim || memcmp(&a->dtype, &b->dtype, sizeof a->dtype) != 0) return false;
  return a->ndim == 0 || memcmp(a->shape, b->shape, 8 * (size_t)a->ndim) == 0;
}

/* A contiguous copy of a tensor of the host, as a value that the walk keeps. */
static int pack(walk *w, ek_value *value) {
  const ek_dltensor *tensor = ek_value_tensor(value);
  ek_object *copy;
  if (tensor == NULL || tensor->device.type != EK_CPU || ek_dltensor_is_contiguous(tensor)) {
    return 0;
  }
  if (ek_tensor_new(tensor->shape, tensor->ndim, tensor->dtype, tensor->device, &copy) != 0) {
    return -1;
  }
  *value = ek_value_object(copy);
  if (append(&w->made, &w->n_made, &w->made_capacity, (pair){*value, ek_value_none()}) != 0) {
    ek_release(copy);
    return -1;
  }
  return ek_tensor_copy(tensor, &((ek_tensor *)(void *)copy)->dl);
}

static int same_tensor(walk *w, ek_value a, ek_value b) {
  const ek_dltensor *x = ek_value_tensor(&a), *y = ek_value_tensor(&b);
  if (!same_dims(x, y)) return 0;
  if (pack(w, &a) != 0 || pack(w, &b) != 0) return -1;
  if (!is_plain_tensor(&a) || !is_plain_tensor(&b)) return same_bits(&a, &b);
  x = ek_value_tensor(&a);
  y = ek_value_tensor(&b);
  size_t size = ek_dltensor_nbytes(x);
  return size == 0 || memcmp(ek_dltensor_data(x), ek_dltensor_data(y), size) == 0;
}

/* Backwards, so that the first is on top: where values differ early, little is walked. */
static int push_all(walk *w, const ek_value *a, const ek_value *b, int64_t n) {
  for (int64_t i = n - 1; i >= 0; i--) {
    if (push(w, a[i], b[i]) != 0) return -1;
  }
  return 1;
}

static int push_map(walk *w, const ek_map *a, const ek_map *b) {
  ek_value other;
  if (a->size != b->size) return 0;
  for (uint64_t i = 0; i < a->size; i++) {
    int found = ek_map_get(&b->base, &a->data[2 * i], &other);
    if (found != 1) return found;
    if (push(w, a->data[2 * i + 1], other) != 0) return -1;
  }
  return 1;
}

static int push_fields(walk *w, const ek_value *a, const ek_value *b, const ek_type_info *info) {
  ek_value x, y;
  for (int32_t i = info->n_fields - 1; i >= 0; i--) {
    const ek_field *field = &info->fields[i];
    if (field->flags & EK_FIELD_IGNORE) continue;
    if (read_field(w, a, field, &x) != 0 || read_field(w, b, field, &y) != 0) return -1;
    if (push(w, x, y) != 0) return -1;
  }
  return 1;
}

/* Whether two values can be equal as far as they themselves show; their parts are put on the list.
** 1, 0 or -1. */
static int step(walk *w, const ek_value *a, const ek_value *b) {
  int32_t type = type_of(a);
  void *x = a->v.obj, *y = b->v.obj;
  if (ek_value_tensor(a) != NULL && ek_value_tensor(b) != NULL) {
    return same_bits(a, b) ? 1 : same_tensor(w, *a, *b);
  }
  if (type != type_of(b)) return 0;
  if (type == EK_STR || type == EK_BYTES) return same_text(a, b);
  if (same_bits(a, b)) return 1;
  switch (type) {
    case EK_SHAPE: return same_shape(x, y);
    case EK_MAP: return push_map(w, x, y);
    case EK_ARRAY:
      if (((ek_array *)x)->size != ((ek_array *)y)->size) return 0;
      return push_all(w, ((ek_array *)x)->data, ((ek_array *)y)->data, ((ek_array *)x)->size);
    case EK_ADT:
      if (((ek_adt *)x)->tag != ((ek_adt *)y)->tag || ((ek_adt *)x)->size != ((ek_adt *)y)->size) {
        return 0;
      }
      return push_all(w, ((ek_adt *)x)->fields, ((ek_adt *)y)->fields, ((ek_adt *)x)->size);
    default: break;
  }
  const ek_type_info *info = type < EK_OBJECT ? NULL : fields_of(a);
  return info == NULL ? 0 : push_fields(w, a, b, info);
}

/* Two shared parts are compared once for each way to them: linear for trees, but a value that
** contains the one before twice, n deep and copied, takes 2^n steps. One object with itself takes
** one. */
int ek_value_equal(const ek_value *a, const ek_value *b) {
  walk w = {0};
  int equal = step(&w, a, b);
  while (equal == 1 && w.n_pending != 0) {
    pair next = w.pending[--w.n_pending];
    equal = step(&w, &next.a, &next.b);
  }
  finish(&w);
  return equal;
}

/* Hash -----------------------------------------------------------------------------------------
**
** The values in the order of the walk, each with its type and the number of its parts, are one text
** that names the whole: that is hashed. The pairs of a map have no order, so they are summed, each
** by its key and what its value shows by itself. */

static uint64_t hash_type(int32_t type) {
  const char *key = type < EK_FIRST_FREE ? NULL : ek_type_key(type);
  return key == NULL ? (uint64_t)type : ek_hash_bytes(key, strlen(key));
}

static uint64_t hash_text(const ek_value *value) {
  ek_bytes bytes = {"", 0};
  ek_string_borrow(value, &bytes);
  return ek_hash_bytes(bytes.data, bytes.size);
}

/* What a value shows without its parts; the same for values that are equal. */
static uint64_t hash_shallow(const ek_value *value) {
  int32_t type = type_of(value);
  uint64_t hash = ek_hash_mix(7, hash_type(type));
  if (type == EK_STR || type == EK_BYTES) return ek_hash_mix(hash, hash_text(value));
  return type < EK_OBJECT && ek_value_tensor(value) == NULL
             ? ek_hash_mix(hash, (uint64_t)value->v.i64)
             : hash;
}

static uint64_t hash_map(const ek_map *map) {
  uint64_t sum = map->size;
  if ((map->slots & EK_MAP_IN_ORDER) == 0) return sum;
  for (uint64_t i = 0; i < map->size; i++) {
    const ek_value *key = &map->data[2 * i];
    uint64_t of_key = key->type_index >= EK_OBJECT && !is_text(key) ? 1 : hash_shallow(key);
    sum += ek_hash_mix(of_key, hash_shallow(key + 1));
  }
  return sum;
}

static int hash_tensor(walk *w, ek_value value, uint64_t *hash) {
  if (pack(w, &value) != 0) return -1;
  const ek_dltensor *tensor = ek_value_tensor(&value);
  uint64_t dtype = 0;
  memcpy(&dtype, &tensor->dtype, sizeof tensor->dtype);
  *hash = ek_hash_mix(ek_hash_mix(*hash, dtype), (uint64_t)tensor->ndim);
  for (int32_t i = 0; i < tensor->ndim; i++) *hash = ek_hash_mix(*hash, (uint64_t)tensor->shape[i]);
  if (is_plain_tensor(&value)) {
    uint64_t data = ek_hash_bytes(ek_dltensor_data(tensor), ek_dltensor_nbytes(tensor));
    *hash = ek_hash_mix(*hash, data);
  }
  return 0;
}

static int push_items(walk *w, uint64_t *hash, const ek_value *items, int64_t n) {
  *hash = ek_hash_mix(*hash, (uint64_t)n);
  for (int64_t i = n - 1; i >= 0; i--) {
    if (push(w, items[i], ek_value_none()) != 0) return -1;
  }
  return 0;
}

static int hash_fields(walk *w, const ek_value *value, const ek_type_info *info) {
  ek_value field;
  for (int32_t i = info->n_fields - 1; i >= 0; i--) {
    if (info->fields[i].flags & EK_FIELD_IGNORE) continue;
    if (read_field(w, value, &info->fields[i], &field) != 0) return -1;
    if (push(w, field, ek_value_none()) != 0) return -1;
  }
  return 0;
}

static int hash_step(walk *w, const ek_value *value, uint64_t *hash) {
  int32_t type = type_of(value);
  void *object = value->v.obj;
  if (ek_value_tensor(value) != NULL) {
    *hash = ek_hash_mix(*hash, EK_TENSOR);
    return hash_tensor(w, *value, hash);
  }
  *hash = ek_hash_mix(*hash, hash_shallow(value));
  switch (type) {
    case EK_STR:
    case EK_BYTES: return 0;
    case EK_MAP: *hash = ek_hash_mix(*hash, hash_map(object)); return 0;
    case EK_ARRAY:
      return push_items(w, hash, ((ek_array *)object)->data, ((ek_array *)object)->size);
    case EK_ADT:
      *hash = ek_hash_mix(*hash, (uint32_t)((ek_adt *)object)->tag);
      return push_items(w, hash, ((ek_adt *)object)->fields, ((ek_adt *)object)->size);
    case EK_SHAPE: {
      const ek_shape *shape = object;
      *hash = ek_hash_mix(*hash, ek_hash_bytes(shape->data, 8 * shape->size));
      return 0;
    }
    default: break;
  }
  const ek_type_info *info = type < EK_OBJECT ? NULL : fields_of(value);
  if (info != NULL) return hash_fields(w, value, info);
  if (type >= EK_OBJECT) *hash = ek_hash_mix(*hash, (uint64_t)(uintptr_t)object);
  return 0;
}

int ek_value_hash(const ek_value *value, uint64_t *out) {
  walk w = {0};
  uint64_t hash = 0;
  int code = hash_step(&w, value, &hash);
  while (code == 0 && w.n_pending != 0) {
    pair next = w.pending[--w.n_pending];
    code = hash_step(&w, &next.a, &hash);
  }
  finish(&w);
  if (code == 0) *out = hash;
  return code;
}
