/* Structural equality and hash of values.
**
** Both walks use an explicit work list, so that depth costs heap memory and no C stack, and memoise
** objects with several owners, so that each is visited once. Entries of the work list are borrowed
** from the compared values; only values that a field's getter creates are owned, until the end.
*/
#include "ek_type.h"

typedef struct pair {
  ek_value a, b;               /* hashes: b is where the value's hash stands whose parts are done */
} pair;

/* Fact about an object: for equality, its parent in the union-find forest (itself at a root); for
** hashing, its hash. */
typedef struct note {
  const ek_object *object;     /* NULL: a free place */
  uint64_t word;
} note;

typedef struct list {
  void *items;
  size_t n, capacity;
} list;

typedef struct walk {
  list pending, made, hashes;  /* pairs; owned values; finished hashes that wait for their parent */
  note *notes;                 /* an open table, at most half full */
  size_t n_notes, places;
} walk;

static int append(list *to, const void *item, size_t size) {
  if (to->n == to->capacity) {
    size_t wanted = to->capacity == 0 ? 32 : 2 * to->capacity;
    void *larger = ek_alloc_or_error(wanted * size);
    if (larger == NULL) return -1;
    if (to->n != 0) memcpy(larger, to->items, to->n * size);
    ek_free(to->items);
    to->items = larger;
    to->capacity = wanted;
  }
  memcpy((char *)to->items + to->n++ * size, item, size);
  return 0;
}

static int push(walk *w, ek_value a, ek_value b) {
  return append(&w->pending, &(pair){a, b}, sizeof(pair));
}

static pair pop(walk *w) { return ((pair *)w->pending.items)[--w->pending.n]; }

static void finish(walk *w) {
  for (size_t i = 0; i < w->made.n; i++) ek_value_release((ek_value *)w->made.items + i);
  ek_free(w->made.items);
  ek_free(w->hashes.items);
  ek_free(w->notes);
  ek_free(w->pending.items);
}

/* A field as a value that is borrowed from the object, or kept by the walk. */
static int read_field(walk *w, const ek_value *object, const ek_field *field, ek_value *out) {
  if (ek_field_get(object->v.obj, field, out) != 0) return -1;
  if (out->type_index < EK_OBJECT) return 0;
  if (append(&w->made, out, sizeof *out) == 0) return 0;
  ek_value_release(out);
  return -1;
}

/* Notes ---------------------------------------------------------------------------------------- */

/* Whether several hold an object: what one holds has one way to it, that of its holder. */
static bool is_shared(const ek_value *value) {
  return value->type_index >= EK_OBJECT &&
         (uint32_t)__atomic_load_n(&value->v.obj->refs, __ATOMIC_RELAXED) != 1;
}

/* The note of an object, or the free place where it would stand. */
static note *place_of(note *notes, size_t places, const ek_object *object) {
  size_t at = (size_t)ek_hash_mix(0, (uintptr_t)object);
  while (notes[at &= places - 1].object != NULL && notes[at].object != object) at++;
  return &notes[at];
}

static int make_room(walk *w) {
  size_t places = w->places == 0 ? 64 : 2 * w->places;
  note *larger = ek_alloc_or_error(places * sizeof *larger);
  if (larger == NULL) return -1;
  memset(larger, 0, places * sizeof *larger);
  for (size_t i = 0; i < w->places; i++) {
    const ek_object *object = w->notes[i].object;
    if (object != NULL) *place_of(larger, places, object) = w->notes[i];
  }
  ek_free(w->notes);
  w->notes = larger;
  w->places = places;
  return 0;
}

/* The note of an object, whose word is 'word' if it is new; NULL with the error set. Stands until
** the next call. */
static note *note_of(walk *w, const ek_object *object, uint64_t word) {
  if (2 * (w->n_notes + 1) > w->places && make_room(w) != 0) return NULL;
  note *found = place_of(w->notes, w->places, object);
  if (found->object != NULL) return found;
  w->n_notes++;
  *found = (note){object, word};
  return found;
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

/* A tensor of the host that is not contiguous becomes a copy that is, which the caller owns; others
** stay what they are, with '*copy' NULL. */
static int pack(ek_value *value, ek_object **copy) {
  const ek_dltensor *tensor = ek_value_tensor(value);
  *copy = NULL;
  if (tensor->device.type != EK_CPU || ek_dltensor_is_contiguous(tensor)) return 0;
  if (ek_tensor_new(tensor->shape, tensor->ndim, tensor->dtype, tensor->device, copy) != 0) {
    return -1;
  }
  *value = ek_value_object(*copy);
  if (ek_tensor_copy(tensor, &((ek_tensor *)(void *)*copy)->dl) == 0) return 0;
  ek_release(*copy);
  *copy = NULL;
  return -1;
}

static int same_elements(const ek_value *a, const ek_value *b) {
  if (!is_plain_tensor(a) || !is_plain_tensor(b)) return same_bits(a, b);
  const ek_dltensor *x = ek_value_tensor(a), *y = ek_value_tensor(b);
  size_t size = ek_dltensor_nbytes(x);
  return size == 0 || memcmp(ek_dltensor_data(x), ek_dltensor_data(y), size) == 0;
}

static int same_tensor(ek_value a, ek_value b) {
  ek_object *x = NULL, *y = NULL;
  if (!same_dims(ek_value_tensor(&a), ek_value_tensor(&b))) return 0;
  int equal = pack(&a, &x) != 0 || pack(&b, &y) != 0 ? -1 : same_elements(&a, &b);
  ek_object_release(x);
  ek_object_release(y);
  return equal;
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

/* The object that stands for all that were found equal to this one, itself if there is none; NULL
** with the error set. Halves the way for who comes next. */
static const ek_object *root_of(walk *w, const ek_object *object) {
  for (;;) {
    note *own = note_of(w, object, (uintptr_t)object);
    if (own == NULL || own->word == (uintptr_t)object) return own == NULL ? NULL : object;
    uint64_t above = place_of(w->notes, w->places, (const ek_object *)(uintptr_t)own->word)->word;
    own->word = above;
    object = (const ek_object *)(uintptr_t)above;
  }
}

/* Whether two objects are known to be equal, as all else is that was compared: 1; else 0, and now
** they count as equal, for one difference ends the walk. Each 0 makes one set of two, so that there
** are fewer of them than objects, whichever stand opposite each other. -1 with the error set. */
static int join(walk *w, const ek_object *a, const ek_object *b) {
  const ek_object *x = root_of(w, a), *y = x == NULL ? NULL : root_of(w, b);
  if (y == NULL) return -1;
  if (x == y) return 1;
  place_of(w->notes, w->places, x)->word = (uintptr_t)y;
  return 0;
}

/* Whether two values can be equal as far as they themselves show; their parts are put on the list.
** 1, 0 or -1. */
static int step(walk *w, const ek_value *a, const ek_value *b) {
  int32_t type = type_of(a);
  void *x = a->v.obj, *y = b->v.obj;
  bool is_tensor = ek_value_tensor(a) != NULL && ek_value_tensor(b) != NULL;
  if (!is_tensor && type != type_of(b)) return 0;
  if (type == EK_STR || type == EK_BYTES) return same_text(a, b);
  if (same_bits(a, b)) return 1;
  if (is_shared(a) || is_shared(b)) {
    int known = a->type_index < EK_OBJECT || b->type_index < EK_OBJECT ? 0 : join(w, x, y);
    if (known != 0) return known;
  }
  if (is_tensor) return same_tensor(*a, *b);
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

int ek_value_equal(const ek_value *a, const ek_value *b) {
  walk w = {0};
  int equal = step(&w, a, b);
  while (equal == 1 && w.pending.n != 0) {
    pair next = pop(&w);
    equal = step(&w, &next.a, &next.b);
  }
  finish(&w);
  return equal;
}

/* Hash -----------------------------------------------------------------------------------------
**
** The hash of a value is that of what it shows by itself, mixed with those of its parts in their
** order: whether two parts are one object or two equal ones makes no difference. The pairs of a map
** have no order, so they are summed, each by its key and what its value shows by itself. */

static uint64_t hash_type(int32_t type) {
  const char *key = type < EK_FIRST_FREE ? NULL : ek_type_key(type);
  return key == NULL ? (uint64_t)type : ek_hash_bytes(key, strlen(key));
}

static uint64_t hash_text(const ek_value *value) {
  ek_bytes bytes = {"", 0};
  ek_string_borrow(value, &bytes);
  return ek_hash_bytes(bytes.data, bytes.size);
}

/* Hashes a value without its parts; equal values have equal hashes. */
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

static int hash_tensor(ek_value value, uint64_t *hash) {
  ek_object *copy;
  if (pack(&value, &copy) != 0) return -1;
  const ek_dltensor *tensor = ek_value_tensor(&value);
  uint64_t dtype = 0;
  memcpy(&dtype, &tensor->dtype, sizeof tensor->dtype);
  *hash = ek_hash_mix(ek_hash_mix(*hash, dtype), (uint64_t)tensor->ndim);
  for (int32_t i = 0; i < tensor->ndim; i++) *hash = ek_hash_mix(*hash, (uint64_t)tensor->shape[i]);
  if (is_plain_tensor(&value)) {
    uint64_t data = ek_hash_bytes(ek_dltensor_data(tensor), ek_dltensor_nbytes(tensor));
    *hash = ek_hash_mix(*hash, data);
  }
  ek_object_release(copy);
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

/* Mixes a value without its parts into the hash, and puts its parts on the list. */
static int hash_step(walk *w, const ek_value *value, uint64_t *hash) {
  int32_t type = type_of(value);
  void *object = value->v.obj;
  if (ek_value_tensor(value) != NULL) {
    *hash = ek_hash_mix(*hash, EK_TENSOR);
    return hash_tensor(*value, hash);
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

static uint64_t *hash_at(walk *w, size_t index) { return (uint64_t *)w->hashes.items + index; }

/* The hash of a value goes to the end of the list of hashes; where it has parts, theirs come behind
** it, and what is left under them on the list of what is to be seen joins them. */
static int begin_hash(walk *w, const ek_value *value) {
  size_t own = w->hashes.n;
  uint64_t hash = 0;
  if (is_shared(value) && w->places != 0) {
    const note *known = place_of(w->notes, w->places, value->v.obj);
    if (known->object != NULL) return append(&w->hashes, &known->word, sizeof known->word);
  }
  if (append(&w->hashes, &hash, sizeof hash) != 0) return -1;
  if (value->type_index >= EK_OBJECT && push(w, *value, ek_value_int((int64_t)own)) != 0) return -1;
  int code = hash_step(w, value, &hash);
  *hash_at(w, own) = hash;
  return code;
}

static int end_hash(walk *w, const ek_value *value, size_t own) {
  uint64_t hash = *hash_at(w, own);
  for (size_t i = own + 1; i < w->hashes.n; i++) hash = ek_hash_mix(hash, *hash_at(w, i));
  w->hashes.n = own + 1;
  *hash_at(w, own) = hash;
  return is_shared(value) && note_of(w, value->v.obj, hash) == NULL ? -1 : 0;
}

int ek_value_hash(const ek_value *value, uint64_t *out) {
  walk w = {0};
  int code = begin_hash(&w, value);
  while (code == 0 && w.pending.n != 0) {
    pair next = pop(&w);
    bool is_end = next.b.type_index == EK_INT;
    code = is_end ? end_hash(&w, &next.a, (size_t)next.b.v.i64) : begin_hash(&w, &next.a);
  }
  if (code == 0) *out = *hash_at(&w, 0);
  finish(&w);
  return code;
}
