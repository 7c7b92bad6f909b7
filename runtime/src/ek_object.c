/* Objects: reference counts, and the table of types by key. */
#include "ek_internal.h"

/* Reference counts ----------------------------------------------------------------------------- */

void ek_object_last_release(ek_object *object, uint64_t before) {
  /* See every write made before the other releases. A load: sanitizers do not know fences. */
  (void)__atomic_load_n(&object->refs, __ATOMIC_ACQUIRE);
  if (before == EK_REFS_NEW) {
    object->deleter(object, EK_DELETE_CONTENT | EK_DELETE_MEMORY);
    return;
  }
  object->deleter(object, EK_DELETE_CONTENT);
  ek_weak_release(object);
}

void ek_object_retain(ek_object *object) {
  if (object != NULL) ek_retain(object);
}

void ek_object_release(ek_object *object) {
  if (object != NULL) ek_release(object);
}

void ek_weak_retain(ek_object *object) {
  __atomic_fetch_add(&object->refs, EK_WEAK_ONE, __ATOMIC_RELAXED);
}

void ek_weak_release(ek_object *object) {
  uint64_t before = __atomic_fetch_sub(&object->refs, EK_WEAK_ONE, __ATOMIC_RELEASE);
  if (before >= 2 * EK_WEAK_ONE) return;
  (void)__atomic_load_n(&object->refs, __ATOMIC_ACQUIRE);
  object->deleter(object, EK_DELETE_MEMORY);
}

ek_object *ek_weak_lock(ek_object *object) {
  uint64_t refs = __atomic_load_n(&object->refs, __ATOMIC_RELAXED);
  while ((refs & EK_STRONG_MASK) != 0) {
    if (__atomic_compare_exchange_n(&object->refs, &refs, refs + 1, true, __ATOMIC_ACQUIRE,
                                    __ATOMIC_RELAXED)) {
      return object;
    }
  }
  return NULL;
}

void *ek_object_new(size_t size, int32_t type_index, void (*deleter)(void *self, int flags)) {
  ek_object *object = ek_alloc_or_error(size);
  if (object == NULL) return NULL;
  memset(object, 0, size);
  object->refs = EK_REFS_NEW;
  object->type_index = type_index;
  object->deleter = deleter;
  return object;
}

void ek_object_plain_deleter(void *self, int flags) {
  if (flags & EK_DELETE_MEMORY) ek_free(self);
}

/* Types ---------------------------------------------------------------------------------------- */

typedef struct type_row {
  int32_t index;
  int32_t parent;
  const char *key;
} type_row;

static const type_row static_types[] = {
    {EK_NONE, -1, "None"},
    {EK_INT, -1, "int"},
    {EK_BOOL, -1, "bool"},
    {EK_FLOAT, -1, "float"},
    {EK_OPAQUE_PTR, -1, "void*"},
    {EK_DTYPE, -1, "DataType"},
    {EK_DEVICE, -1, "Device"},
    {EK_DLTENSOR_PTR, -1, "DLTensor*"},
    {EK_RAW_STR, -1, "const char*"},
    {EK_BYTE_ARRAY_PTR, -1, "TVMFFIByteArray*"},
    {EK_OBJECT_RVALUE_REF, -1, "ObjectRValueRef"},
    {EK_SMALL_STR, -1, "ffi.SmallStr"},
    {EK_SMALL_BYTES, -1, "ffi.SmallBytes"},
    {EK_OBJECT, -1, "ffi.Object"},
    {EK_STR, EK_OBJECT, "ffi.String"},
    {EK_BYTES, EK_OBJECT, "ffi.Bytes"},
    {EK_ERROR, EK_OBJECT, "ffi.Error"},
    {EK_FUNCTION, EK_OBJECT, "ffi.Function"},
    {EK_SHAPE, EK_OBJECT, "ffi.Shape"},
    {EK_TENSOR, EK_OBJECT, "ffi.Tensor"},
    {EK_ARRAY, EK_OBJECT, "ffi.Array"},
    {EK_MAP, EK_OBJECT, "ffi.Map"},
    {EK_MODULE, EK_OBJECT, "ffi.Module"},
    {EK_STORAGE, EK_OBJECT, "ek.Storage"}, /* ORDER TYPES: the dynamic ones count up from here */
    {EK_ADT, EK_OBJECT, "ek.ADT"},
    {EK_CLOSURE, EK_OBJECT, "ek.Closure"},
    {EK_EXECUTABLE, EK_OBJECT, "ek.Executable"},
    {EK_VM, EK_OBJECT, "ek.VirtualMachine"},
};

enum { STATIC_TYPES = sizeof static_types / sizeof static_types[0], MAX_TYPES = 1024 };

/* Types registered at run time: row i has index FIRST_NEW + i. Rows are written before the count is
** raised and never change, so readers need no lock. */
enum { FIRST_NEW = EK_VM + 1 };
static type_row new_types[MAX_TYPES];
static int32_t new_count;
static ek_mutex types_lock = EK_MUTEX_INIT;

static const type_row *row_of_index(int32_t index) {
  int32_t count = __atomic_load_n(&new_count, __ATOMIC_ACQUIRE);
  if (index >= FIRST_NEW) return index - FIRST_NEW < count ? &new_types[index - FIRST_NEW] : NULL;
  for (size_t i = 0; i < STATIC_TYPES; i++) {
    if (static_types[i].index == index) return &static_types[i];
  }
  return NULL;
}

static const type_row *row_of_key(const char *key) {
  int32_t count = __atomic_load_n(&new_count, __ATOMIC_ACQUIRE);
  for (size_t i = 0; i < STATIC_TYPES; i++) {
    if (strcmp(static_types[i].key, key) == 0) return &static_types[i];
  }
  for (int32_t i = 0; i < count; i++) {
    if (strcmp(new_types[i].key, key) == 0) return &new_types[i];
  }
  return NULL;
}

/* Under the lock. */
static int32_t add_type(const char *key, int32_t parent) {
  size_t size = strlen(key) + 1;
  if (new_count == MAX_TYPES) {
    return ek_error("RuntimeError", "register type '%s': at most %d types fit", key, MAX_TYPES);
  }
  char *copy = ek_alloc_or_error(size);
  if (copy == NULL) return -1;
  memcpy(copy, key, size);
  new_types[new_count] = (type_row){FIRST_NEW + new_count, parent, copy};
  __atomic_store_n(&new_count, new_count + 1, __ATOMIC_RELEASE);
  return FIRST_NEW + new_count - 1;
}

int32_t ek_type_register(const char *key, int32_t parent) {
  if (key[0] == '\0') return ek_error("ValueError", "register type: the key is empty");
  if (parent < EK_OBJECT || row_of_index(parent) == NULL) {
    return ek_error("ValueError", "register type '%s': parent must be the index of an object type, "
                    "got %d", key, parent);
  }
  ek_mutex_lock(&types_lock);
  const type_row *row = row_of_key(key);
  int32_t index = row == NULL ? add_type(key, parent) : row->index;
  ek_mutex_unlock(&types_lock);
  if (row != NULL && row->parent != parent) {
    return ek_error("ValueError", "register type '%s': it has the parent %d already, got %d", key,
                    row->parent, parent);
  }
  return index;
}

int32_t ek_type_index(const char *key) {
  const type_row *row = row_of_key(key);
  return row == NULL ? -1 : row->index;
}

const char *ek_type_key(int32_t type_index) {
  const type_row *row = row_of_index(type_index);
  return row == NULL ? NULL : row->key;
}
