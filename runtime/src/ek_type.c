/* Type registry: types by key, with the fields and methods of each. */
#include "ek_type.h"

/* The table ------------------------------------------------------------------------------------
**
** A row is a pointer to what is known of the type. That is never changed but replaced, and what was
** replaced stays, so that readers need no lock. */

enum { MAX_TYPES = 4096 };

/* Static types, which every program has: number, parent, depth, key. clang-format off */
#define STATIC_TYPES(ROW) \
  ROW(EK_NONE, -1, 0, "None") \
  ROW(EK_INT, -1, 0, "int") \
  ROW(EK_BOOL, -1, 0, "bool") \
  ROW(EK_FLOAT, -1, 0, "float") \
  ROW(EK_OPAQUE_PTR, -1, 0, "void*") \
  ROW(EK_DTYPE, -1, 0, "DataType") \
  ROW(EK_DEVICE, -1, 0, "Device") \
  ROW(EK_DLTENSOR_PTR, -1, 0, "DLTensor*") \
  ROW(EK_RAW_STR, -1, 0, "const char*") \
  ROW(EK_BYTE_ARRAY_PTR, -1, 0, "TVMFFIByteArray*") \
  ROW(EK_OBJECT_RVALUE_REF, -1, 0, "ObjectRValueRef") \
  ROW(EK_SMALL_STR, -1, 0, "ffi.SmallStr") \
  ROW(EK_SMALL_BYTES, -1, 0, "ffi.SmallBytes") \
  ROW(EK_OBJECT, -1, 0, "ffi.Object") \
  ROW(EK_STR, EK_OBJECT, 1, "ffi.String") \
  ROW(EK_BYTES, EK_OBJECT, 1, "ffi.Bytes") \
  ROW(EK_ERROR, EK_OBJECT, 1, "ffi.Error") \
  ROW(EK_FUNCTION, EK_OBJECT, 1, "ffi.Function") \
  ROW(EK_SHAPE, EK_OBJECT, 1, "ffi.Shape") \
  ROW(EK_TENSOR, EK_OBJECT, 1, "ffi.Tensor") \
  ROW(EK_ARRAY, EK_OBJECT, 1, "ffi.Array") \
  ROW(EK_MAP, EK_OBJECT, 1, "ffi.Map") \
  ROW(EK_MODULE, EK_OBJECT, 1, "ffi.Module") \
  ROW(EK_STORAGE, EK_OBJECT, 1, "ek.Storage") \
  ROW(EK_ADT, EK_OBJECT, 1, "ek.ADT") \
  ROW(EK_CLOSURE, EK_OBJECT, 1, "ek.Closure") \
  ROW(EK_EXECUTABLE, EK_OBJECT, 1, "ek.Executable") \
  ROW(EK_VM, EK_OBJECT, 1, "ek.VirtualMachine") \
  ROW(EK_REFERENCE, EK_OBJECT, 1, "ek.Reference")
/* clang-format on */

enum {
#define ROW(index, parent, depth, key) PLACE_OF_##index,
  STATIC_TYPES(ROW)
#undef ROW
};

/* Without gaps, and where the type of a number stands in them, plus one: the numbers have large gaps. */
static const ek_type_info static_types[] = {
#define ROW(index, parent, depth, key) {key, "", index, parent, depth, 0, 0, 0, 0, 0, 0, 0, 0},
    STATIC_TYPES(ROW)
#undef ROW
};
static const uint8_t places[EK_FIRST_FREE] = {
#define ROW(index, parent, depth, key) [index] = PLACE_OF_##index + 1,
    STATIC_TYPES(ROW)
#undef ROW
};

static ek_type_info *rows[MAX_TYPES];      /* of types registered at run time, by their index */
static int32_t row_end = EK_FIRST_FREE;
static ek_mutex lock = EK_MUTEX_INIT;

const ek_type_info *ek_type_get(int32_t index) {
  if (index < 0) return NULL;
  if (index < EK_FIRST_FREE) return places[index] == 0 ? NULL : &static_types[places[index] - 1];
  if (index >= __atomic_load_n(&row_end, __ATOMIC_ACQUIRE)) return NULL;
  return __atomic_load_n(&rows[index], __ATOMIC_ACQUIRE);
}

/* A walk of all rows: keys are asked for once, by whoever then keeps the index. */
static const ek_type_info *find(const char *key) {
  int32_t end = __atomic_load_n(&row_end, __ATOMIC_ACQUIRE);
  for (int32_t i = 0; i < end; i++) {
    const ek_type_info *info = ek_type_get(i);
    if (info != NULL && strcmp(info->key, key) == 0) return info;
  }
  return NULL;
}

const char *ek_value_type_name(const ek_value *value) {
  switch (value->type_index) {
    case EK_ANY: return "nothing";
    case EK_NONE: return "None";
    case EK_SMALL_STR:
    case EK_RAW_STR:
    case EK_STR: return "a string";
    case EK_SMALL_BYTES:
    case EK_BYTE_ARRAY_PTR:
    case EK_BYTES: return "bytes";
    default: {
      const char *key = ek_type_key(value->type_index);
      return key == NULL ? "an unknown type" : key;
    }
  }
}

/* Memory and references that definitions take are kept for the life of the process, on one list. A
** reader may hold a row that was replaced, and readers are not counted; the number of types is
** bounded by the program's classes. */
typedef struct kept {
  struct kept *next;
  ek_object *object;           /* owned, or NULL */
} kept;

static kept *all_kept;         /* atomic */

static void keep(kept *block) {
  block->next = __atomic_load_n(&all_kept, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(&all_kept, &block->next, block, false, __ATOMIC_RELEASE,
                                      __ATOMIC_RELAXED)) {
  }
}

static void *keep_block(size_t size) {
  kept *block = ek_alloc_or_error(sizeof *block + size);
  if (block == NULL) return NULL;
  block->object = NULL;
  keep(block);
  return block + 1;
}

static void *keep_copy(const void *from, size_t size) {
  void *copy = keep_block(size + 1);
  if (copy == NULL) return NULL;
  if (size != 0) memcpy(copy, from, size);
  ((char *)copy)[size] = '\0';
  return copy;
}

static const char *keep_text(const char *text) {
  return text == NULL ? "" : keep_copy(text, strlen(text));
}

/* Takes the reference over, also on failure. */
static int keep_object(ek_object *object) {
  kept *block = ek_alloc_or_error(sizeof *block);
  if (block == NULL) {
    ek_release(object);
    return -1;
  }
  block->object = object;
  keep(block);
  return 0;
}

void ek_types_clear(void) {
  while (all_kept != NULL) {
    kept *gone = all_kept;
    all_kept = gone->next;
    ek_object_release(gone->object);
    ek_free(gone);
  }
  row_end = EK_FIRST_FREE;
}

/* Registering ---------------------------------------------------------------------------------- */

/* A row of its own with a text behind it, not on the list yet; NULL with the error set. */
static kept *new_row(const char *key, const ek_type_info *parent) {
  size_t size = strlen(key) + 1;
  kept *block = ek_alloc_or_error(sizeof *block + sizeof(ek_type_info) + size);
  if (block == NULL) return NULL;
  ek_type_info *row = (ek_type_info *)(void *)(block + 1);
  block->object = NULL;
  *row = (ek_type_info){.key = memcpy(row + 1, key, size),
                        .doc = "",
                        .parent = parent->index,
                        .depth = parent->depth + 1};
  return block;
}

/* The row of a key: the one that is there, or 'block', which then is kept; NULL where no more fit. The
** row is stored before the end that lets readers see it, both with release. Nothing under the lock
** sets an error: that drops the one before, and whatever goes with it may come back here. */
static const ek_type_info *add(kept *block) {
  ek_type_info *row = (ek_type_info *)(void *)(block + 1);
  ek_mutex_lock(&lock);
  const ek_type_info *found = find(row->key);
  if (found == NULL && row_end < MAX_TYPES) {
    found = row;
    row->index = row_end;
    keep(block);
    __atomic_store_n(&rows[row_end], row, __ATOMIC_RELEASE);
    __atomic_store_n(&row_end, row_end + 1, __ATOMIC_RELEASE);
  }
  ek_mutex_unlock(&lock);
  if (found != row) ek_free(block);
  return found;
}

int32_t ek_type_register(const char *key, int32_t parent) {
  const ek_type_info *row = find(key);
  if (parent == EK_ANY) return row == NULL ? -1 : row->index;
  const ek_type_info *above = ek_type_get(parent);
  if (key[0] == '\0') return ek_error("ValueError", "register type: the key is empty");
  if (parent < EK_OBJECT || above == NULL) {
    return ek_error("ValueError", "register type '%s': parent must be the index of an object type, "
                    "got %d", key, parent);
  }
  if (row == NULL) {
    kept *block = new_row(key, above);
    if (block == NULL) return -1;
    row = add(block);
  }
  if (row == NULL) {
    return ek_error("RuntimeError", "register type '%s': at most %d types fit", key, MAX_TYPES);
  }
  if (row->parent == parent) return row->index;
  return ek_error("ValueError", "register type '%s': its parent is '%s' already, got '%s'", key,
                  row->parent < 0 ? "none" : ek_type_key(row->parent), above->key);
}

/* Defining ------------------------------------------------------------------------------------- */

static int refuse(const ek_type_info *info, const char *field, const char *why) {
  return ek_error("ValueError", "define type '%s': field '%s': %s", info->key, field, why);
}

static bool is_size(int32_t size, int32_t a, int32_t b, int32_t c, int32_t d) {
  return size == a || size == b || size == c || size == d;
}

/* Whether a field of this type can have this size. */
static bool is_layout(const ek_field *field) {
  if (field->get != NULL || field->size == sizeof(ek_value)) return true;
  switch (field->type) {
    case EK_INT: return is_size(field->size, 1, 2, 4, 8);
    case EK_BOOL: return field->size == 1;
    case EK_FLOAT: return is_size(field->size, 4, 8, 8, 8);
    case EK_DTYPE: return field->size == sizeof(ek_dtype);
    case EK_DEVICE: return field->size == sizeof(ek_device);
    case EK_STR:
    case EK_BYTES: return false; /* short ones are no objects */
    default: return field->type >= EK_OBJECT && field->size == sizeof(ek_object *);
  }
}

static int check_field(const ek_type_info *info, const ek_field *field, int64_t size) {
  const ek_field *same = ek_type_field(info, field->name);
  if (field->name[0] == '\0') return refuse(info, "", "the name is empty");
  if (same != NULL) return refuse(info, field->name, "there is one of that name already");
  if (field->type != EK_ANY && ek_type_get(field->type) == NULL) {
    return refuse(info, field->name, "its type is unknown");
  }
  if (!is_layout(field)) return refuse(info, field->name, "its size does not go with its type");
  if (field->offset < (int64_t)sizeof(ek_object) || field->size < 0 ||
      field->offset > size - field->size) {
    return refuse(info, field->name, "it lies outside the object");
  }
  return 0;
}

/* A field as the table keeps it: with texts of its own. */
static int keep_field(const ek_field *from, ek_field *to) {
  *to = *from;
  to->name = keep_text(from->name);
  to->doc = keep_text(from->doc);
  if (to->name == NULL || to->doc == NULL) return -1;
  bool has_value = (from->flags & EK_FIELD_DEFAULT) != 0 && from->standard.type_index != EK_ANY;
  if (!has_value) {
    to->standard = (ek_value){EK_ANY, 0, {0}};
    return 0;
  }
  if (ek_value_own("define type: default of a field", &from->standard, &to->standard) != 0) {
    return -1;
  }
  return to->standard.type_index < EK_OBJECT ? 0 : keep_object(to->standard.v.obj);
}

static int keep_method(const ek_method *from, ek_method *to) {
  if (!ek_is(from->function, EK_FUNCTION)) {
    return ek_error("TypeError", "define type: method '%s': expected a function", from->name);
  }
  to->name = keep_text(from->name);
  to->doc = keep_text(from->doc);
  to->function = from->function;
  if (to->name == NULL || to->doc == NULL) return -1;
  ek_retain(to->function);
  return keep_object(to->function);
}

/* The fields of the parent, then those of the definition. */
static int add_fields(ek_type_info *info, const ek_type_info *parent, const ek_type_def *def) {
  bool lays_out = def->size == 0;
  ek_field *fields = keep_block((size_t)(parent->n_fields + def->n_fields) * sizeof *fields);
  if (fields == NULL) return -1;
  if (parent->n_fields != 0) {
    memcpy(fields, parent->fields, (size_t)parent->n_fields * sizeof *fields);
  }
  info->fields = fields;
  info->n_fields = parent->n_fields;
  info->size = parent->size > 0 ? parent->size : (int64_t)sizeof(ek_object);
  if (!lays_out && def->size < info->size) {
    return ek_error("ValueError", "define type '%s': at least the %lld bytes of its parent "
                    "expected, got %lld", info->key, (long long)info->size, (long long)def->size);
  }
  info->size = lays_out ? (info->size + 7) / 8 * 8 : def->size;
  for (int32_t i = 0; i < def->n_fields; i++) {
    ek_field field = def->fields[i];
    if (lays_out) {
      field.offset = info->size;
      field.size = sizeof(ek_value);
      info->size += field.size;
    }
    if (check_field(info, &field, info->size) != 0) return -1;
    if (keep_field(&field, &fields[info->n_fields]) != 0) return -1;
    info->n_fields++;
  }
  return 0;
}

static int add_methods(ek_type_info *info, const ek_type_info *base, const ek_type_def *def) {
  ek_method *methods = keep_block((size_t)(base->n_methods + def->n_methods) * sizeof *methods);
  if (methods == NULL) return -1;
  if (base->n_methods != 0) {
    memcpy(methods, base->methods, (size_t)base->n_methods * sizeof *methods);
  }
  info->methods = methods;
  info->n_methods = base->n_methods;
  for (int32_t i = 0; i < def->n_methods; i++) {
    if (keep_method(&def->methods[i], &methods[info->n_methods]) != 0) return -1;
    info->n_methods++;
  }
  return 0;
}

static int fill(ek_type_info *info, const ek_type_info *parent, const ek_type_def *def) {
  if (info->is_defined) return add_methods(info, info, def);
  if (def->create == NULL && parent->create != NULL) {
    return ek_error("TypeError", "define type '%s': objects of its parent '%s' are made by a "
                    "constructor; give one", info->key, parent->key);
  }
  info->create = def->create;
  info->build = def->build;
  info->doc = keep_text(def->doc);
  if (info->doc == NULL || add_fields(info, parent, def) != 0) return -1;
  info->is_defined = 1;
  return add_methods(info, parent, def);
}

/* Whether a type below this one was defined: its fields begin with those of this one. A child's layout
** begins with its parent's, so that a parent defined later would move it. */
static const ek_type_info *defined_child(int32_t index) {
  int32_t end = __atomic_load_n(&row_end, __ATOMIC_ACQUIRE);
  for (int32_t i = EK_FIRST_FREE; i < end; i++) {
    const ek_type_info *row = ek_type_get(i);
    if (row->parent == index && row->is_defined) return row;
  }
  return NULL;
}

static int check_definition(const ek_type_info *old, const ek_type_def *def) {
  const ek_type_info *child = defined_child(old->index);
  if (old->is_defined && (def->n_fields != 0 || def->size != 0 || def->create != NULL)) {
    return ek_error("ValueError", "define type '%s': it is defined already", old->key);
  }
  if (!old->is_defined && child != NULL) {
    return ek_error("ValueError", "define type '%s': '%s', derived from it, is defined already",
                    old->key, child->key);
  }
  if ((def->create != NULL || def->build != NULL) && def->size == 0) {
    return ek_error("ValueError", "define type '%s': a size goes with a constructor", old->key);
  }
  return 0;
}

/* Puts a definition in the place of the row it was made from, unless another was faster, of this type
** or of what the definition was made with: its parent, or a type below. */
static bool replace(const ek_type_info *old, const ek_type_info *parent, ek_type_info *info) {
  ek_mutex_lock(&lock);
  bool is_last = rows[old->index] == old && ek_type_get(old->parent) == parent &&
                 (old->is_defined || defined_child(old->index) == NULL);
  if (is_last) __atomic_store_n(&rows[old->index], info, __ATOMIC_RELEASE);
  ek_mutex_unlock(&lock);
  return is_last;
}

/* Define a type. The memory of a failed definition is not reclaimed: it is a programming error that
** happens once. */
int ek_type_define(int32_t index, const ek_type_def *def) {
  if (index < EK_FIRST_FREE || ek_type_get(index) == NULL) {
    return ek_error("ValueError", "define type: expected the index of a type registered at run "
                    "time, got %d", index);
  }
  for (;;) {
    const ek_type_info *old = ek_type_get(index), *parent = ek_type_get(old->parent);
    ek_type_info *info = keep_block(sizeof *info);
    if (info == NULL || check_definition(old, def) != 0) return -1;
    *info = *old;
    if (fill(info, parent, def) != 0) return -1;
    if (replace(old, parent, info)) return 0;
  }
}

const ek_field *ek_type_field(const ek_type_info *info, const char *name) {
  for (int32_t i = 0; i < info->n_fields; i++) {
    if (strcmp(info->fields[i].name, name) == 0) return &info->fields[i];
  }
  return NULL;
}
