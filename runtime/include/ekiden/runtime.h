/* The Ekiden runtime ABI.
**
** This header is the specification of floor 0: everything a program, a binding or compiled code may
** rely on. Layouts and static type indices are those of the open TVM-FFI C ABI, so that functions,
** tensors and errors cross between the two without conversion. Nothing here is linked with TVM.
**
** Words used below, always in these meanings:
**   borrowed   the callee may read it until it returns, and must retain what it keeps
**   owned      one strong reference belongs to whoever is named; that one must release it
**   "or -1"    the function returns 0, or -1 with the error left in thread-local state
**
** Rules that hold everywhere:
**   - 'out' parameters come last. On failure they are left untouched, unless said otherwise.
**   - Any function may be called from any thread. Objects are immutable or lock themselves, except
**     where a line says "one caller at a time".
**   - No function here calls into Python, forks, or leaves signals or the locale changed.
**   - The byte order is little-endian. Pointers have 8 bytes, or 4 on WebAssembly: structures lie as C
**     lays them out there, values have 16 bytes and objects a header of 24 on both.
*/
#ifndef EKIDEN_RUNTIME_H_
#define EKIDEN_RUNTIME_H_

#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic" /* arrays at the end of structs */
extern "C" {
#endif

/* Marks what the shared library exports; everything else in it is hidden. The static library, which
** other libraries are linked with, defines it as hidden. */
#ifdef _WIN32
#define EK_EXPORT __declspec(dllexport)
#else
#define EK_EXPORT __attribute__((visibility("default")))
#endif
#ifndef EK_API
#define EK_API EK_EXPORT
#endif

/* Formats are the C standard's everywhere: GCC for Windows takes `printf` for an older system's. */
#if defined(__MINGW32__) && !defined(__clang__)
#define EK_PRINTF gnu_printf
#else
#define EK_PRINTF printf
#endif

/* 1. Type indices ------------------------------------------------------------------------------
**
** Below EK_OBJECT a value holds its payload itself. From EK_OBJECT on the payload is a pointer to a
** counted object whose header repeats the index. Indices below 128 are the ABI's; from EK_DYNAMIC
** on they are dealt out at run time by type key (section 5). The runtime registers its own types
** before anything else can run, so theirs are constants too, but valid in this process only: store
** type keys, never indices, outside it.
*/
typedef enum ek_type {
  EK_ANY = -1,             /* no value has it: a field of any type, an argument left out */
  EK_NONE = 0,
  EK_INT = 1,              /* v.i64 */
  EK_BOOL = 2,             /* v.i64, 0 or 1 */
  EK_FLOAT = 3,            /* v.f64 */
  EK_OPAQUE_PTR = 4,       /* v.ptr, meaning agreed between the two sides */
  EK_DTYPE = 5,            /* v.dtype */
  EK_DEVICE = 6,           /* v.device */
  EK_DLTENSOR_PTR = 7,     /* v.ptr is an ek_dltensor *, borrowed; only as an argument */
  EK_RAW_STR = 8,          /* v.ptr is zero-terminated UTF-8, borrowed; only as an argument */
  EK_BYTE_ARRAY_PTR = 9,   /* v.ptr is an ek_bytes *, borrowed; only as an argument */
  EK_OBJECT_RVALUE_REF = 10, /* v.ptr is an ek_object **, which the callee may move from */
  EK_SMALL_STR = 11,       /* v.bytes, at most 7 bytes and a zero; small_len is the length */
  EK_SMALL_BYTES = 12,     /* the same, not text */
  EK_OBJECT = 64,
  EK_STR = 65,             /* ek_string */
  EK_BYTES = 66,           /* ek_string */
  EK_ERROR = 67,           /* ek_error_object */
  EK_FUNCTION = 68,        /* ek_function */
  EK_SHAPE = 69,           /* ek_shape */
  EK_TENSOR = 70,          /* ek_tensor */
  EK_ARRAY = 71,           /* ek_array */
  EK_MAP = 72,             /* ek_map */
  EK_MODULE = 73,          /* section 10; one made by another runtime is passed through */
  EK_DYNAMIC = 128,
  EK_STORAGE = 128,        /* "ek.Storage": ek_storage */
  EK_ADT = 129,            /* "ek.ADT": ek_adt */
  EK_CLOSURE = 130,        /* "ek.Closure": made by the VM */
  EK_EXECUTABLE = 131,     /* "ek.Executable" */
  EK_VM = 132,             /* "ek.VirtualMachine" */
  EK_REFERENCE = 133,      /* "ek.Reference": made by the VM */
  EK_FIRST_FREE = 134      /* types registered at run time count up from here */
} ek_type;

/* 2. Objects -----------------------------------------------------------------------------------
**
** Every object starts with this 24-byte header. 'refs' counts strong references in its low 32 bits
** and weak ones in its high 32; all strong references together hold one weak one, so a new object
** has refs == EK_REFS_NEW. When the last strong reference goes, the deleter gets EK_DELETE_CONTENT;
** when the last weak one goes, EK_DELETE_MEMORY; both bits at once when both go together, which is
** the common case. The deleter belongs to the library that made the object, so memory returns to
** the allocator it came from. 'refs' is only touched atomically.
**
** Who owns whom. An object owns what its fields, items and captured values name, and drops it in
** its deleter. There is no collector, so nothing may come to own itself. That holds by itself where
** an object is handed what it owns when it is made: what is older cannot own what is younger. Five
** places write later, and each keeps the rule in a way of its own:
**   imports of a module     a module that reaches the importer is refused
**   fields of an object     whoever sets one to something younger keeps the graph free of cycles;
**                           a reference back to an owner is a weak one, or an index
**   the registry            a root: nothing owns it, it lives as long as the process
**   functions               one of a module owns the module, which never owns its functions
**   call sites in code      own what they found among global functions until their code goes. A
**                           global function that owns the code that calls it lives on after it was
**                           removed: register functions that own less
** A weak reference (ek_weak_*) keeps the memory of an object and nothing that it owns.
*/
typedef struct ek_object {
  uint64_t refs;
  int32_t type_index;
  uint32_t pad;                            /* always 0 */
  void (*deleter)(void *self, int flags);
} ek_object;

#define EK_REFS_NEW ((UINT64_C(1) << 32) | UINT64_C(1))
#define EK_DELETE_CONTENT 1
#define EK_DELETE_MEMORY 2

#define EK_STRONG_MASK UINT64_C(0xffffffff)
#define EK_WEAK_ONE (UINT64_C(1) << 32)

/* Weak references, for objects that are not NULL. Whoever takes one holds a strong one meanwhile.
** ek_weak_lock gives a strong reference, or NULL when the last one has gone: ask anew each time. */
static inline void ek_weak_retain(ek_object *object) {
  __atomic_fetch_add(&object->refs, EK_WEAK_ONE, __ATOMIC_RELAXED);
}

static inline void ek_weak_release(ek_object *object) {
  uint64_t before = __atomic_fetch_sub(&object->refs, EK_WEAK_ONE, __ATOMIC_RELEASE);
  if (before >= 2 * EK_WEAK_ONE) return;
  (void)__atomic_load_n(&object->refs, __ATOMIC_ACQUIRE);
  object->deleter(object, EK_DELETE_MEMORY);
}

static inline ek_object *ek_weak_lock(ek_object *object) {
  uint64_t refs = __atomic_load_n(&object->refs, __ATOMIC_RELAXED);
  while ((refs & EK_STRONG_MASK) != 0) {
    if (__atomic_compare_exchange_n(&object->refs, &refs, refs + 1, 1, __ATOMIC_ACQUIRE,
                                    __ATOMIC_RELAXED)) {
      return object;
    }
  }
  return NULL;
}

/* Strong references, for objects that are not NULL. A new one needs no ordering; whoever deletes
** must see all that happened before each release. That is a load here and no fence: sanitizers do
** not know fences. */
static inline void ek_retain(ek_object *object) {
  __atomic_fetch_add(&object->refs, 1, __ATOMIC_RELAXED);
}

static inline void ek_release(ek_object *object) {
  uint64_t before = __atomic_fetch_sub(&object->refs, 1, __ATOMIC_RELEASE);
  if ((before & EK_STRONG_MASK) != 1) return;
  (void)__atomic_load_n(&object->refs, __ATOMIC_ACQUIRE);
  if (before == EK_REFS_NEW) {
    object->deleter(object, EK_DELETE_CONTENT | EK_DELETE_MEMORY);
    return;
  }
  object->deleter(object, EK_DELETE_CONTENT);
  ek_weak_release(object);
}

/* ek_retain and ek_release as functions, for languages that cannot use inline functions.
**
** Adds one strong reference. NULL is allowed and ignored. The caller must already hold one. */
EK_API void ek_object_retain(ek_object *object);

/* Drops one strong reference and deletes the object with the last. NULL is allowed and ignored. */
EK_API void ek_object_release(ek_object *object);

/* 3. Values ------------------------------------------------------------------------------------
**
** A value is 16 bytes. Bytes 4 to 7 are zero but for small strings, where they are the length. A
** value that is stored or returned owns its object; a value in an argument list is borrowed. Unused
** bytes of the payload of BOOL, DTYPE and DEVICE are zero, so that values compare as bytes.
*/
typedef struct ek_dtype {                  /* DLPack's DLDataType */
  uint8_t code;                            /* an ek_dtype_code */
  uint8_t bits;                            /* of one lane */
  uint16_t lanes;                          /* 1, or the length of a short vector */
} ek_dtype;

typedef enum ek_dtype_code {
  EK_DTYPE_INT = 0,
  EK_DTYPE_UINT = 1,
  EK_DTYPE_FLOAT = 2,
  EK_DTYPE_OPAQUE = 3,
  EK_DTYPE_BFLOAT = 4,
  EK_DTYPE_COMPLEX = 5,
  EK_DTYPE_BOOL = 6,                       /* 8 bits, 0 or 1 */
  EK_DTYPE_FLOAT8_E3M4 = 7,                /* 8 bits up to E8M0FNU */
  EK_DTYPE_FLOAT8_E4M3 = 8,
  EK_DTYPE_FLOAT8_E4M3B11FNUZ = 9,
  EK_DTYPE_FLOAT8_E4M3FN = 10,
  EK_DTYPE_FLOAT8_E4M3FNUZ = 11,
  EK_DTYPE_FLOAT8_E5M2 = 12,
  EK_DTYPE_FLOAT8_E5M2FNUZ = 13,
  EK_DTYPE_FLOAT8_E8M0FNU = 14,
  EK_DTYPE_FLOAT6_E2M3FN = 15,             /* 6 bits */
  EK_DTYPE_FLOAT6_E3M2FN = 16,
  EK_DTYPE_FLOAT4_E2M1FN = 17              /* 4 bits */
} ek_dtype_code;

typedef struct ek_device {                 /* DLPack's DLDevice */
  int32_t type;                            /* an ek_device_type or another number of DLPack's */
  int32_t id;
} ek_device;

typedef enum ek_device_type { EK_CPU = 1, EK_CUDA = 2, EK_OPENCL = 4 } ek_device_type;

typedef struct ek_value {
  int32_t type_index;                      /* an ek_type */
  uint32_t small_len;
  union {
    int64_t i64;
    double f64;
    void *ptr;
    ek_object *obj;
    ek_dtype dtype;
    ek_device device;
    char bytes[8];
  } v;
} ek_value;

static inline ek_value ek_value_none(void) {
  ek_value value = {EK_NONE, 0, {0}};
  return value;
}

static inline ek_value ek_value_int(int64_t number) {
  ek_value value = {EK_INT, 0, {number}};
  return value;
}

/* The value takes over the reference that 'object' stands for, or borrows it in an argument
** list. */
static inline ek_value ek_value_object(ek_object *object) {
  ek_value value = {object->type_index, 0, {0}};
  value.v.obj = object;
  return value;
}

static inline void ek_value_retain(const ek_value *value) {
  if (value->type_index >= EK_OBJECT) ek_retain(value->v.obj);
}

/* Releases what the value owns and leaves NONE. */
static inline void ek_value_release(ek_value *value) {
  if (value->type_index >= EK_OBJECT) ek_release(value->v.obj);
  *value = ek_value_none();
}

/* 4. The call ----------------------------------------------------------------------------------
**
** The one signature of every function that crosses a boundary: kernels, callbacks, VM entry points.
** 'args' are borrowed for the call. '*ret' arrives as NONE and leaves owned; on failure it is NONE.
** 'self' is the function object for calls through ek_function; a bare symbol of a library or image
** must not look at it. Returns 0, or -1 with the error in thread-local state.
*/
typedef int (*ek_packed)(void *self, const ek_value *args, int32_t nargs, ek_value *ret);

typedef struct ek_function {
  ek_object base;
  ek_packed call;                          /* pass the function object as 'self' */
  void *cpp_call;                          /* C++ only; NULL in what Ekiden makes */
} ek_function;

/* Calls a function object. The caller keeps the function alive during the call. */
static inline int ek_function_call(ek_object *function, const ek_value *args, int32_t nargs,
                                   ek_value *ret) {
  return ((ek_function *)(void *)function)->call(function, args, nargs, ret);
}

/* Makes a function object that calls 'call(self, ...)'. 'self' is the callee's own data, passed
** through untouched; 'deleter' (may be NULL) runs once on it when the function object dies, on the
** thread that drops the last reference. On failure nothing is taken over. 0 or -1; '*out' owned. */
EK_API int ek_function_new(void *self, ek_packed call, void (*deleter)(void *self),
                           ek_object **out);

/* 5. Types ---------------------------------------------------------------------------------------
**
** A type has a key, a parent (one), and where it was defined, fields and methods. Any language may
** register and define types, and all see the same: an object made in C++ is read, changed, printed
** and compared by the names of its fields elsewhere.
**
** ek_type_register returns the index of 'key', registering it below 'parent' (EK_OBJECT when in
** doubt) if it is new; -1 when the key is empty, is known with another parent, or when 'parent' is
** unknown. With EK_ANY for a parent it only looks the key up: -1 without an error when it is
** unknown. Keys are copied and never go away.
*/
typedef enum ek_field_flag {
  EK_FIELD_READ_ONLY = 1,                  /* set when the object is made, and never again */
  EK_FIELD_DEFAULT = 2,                    /* may be left out: 'standard' is used, or for EK_ANY */
                                           /* what 'create' put there */
  EK_FIELD_IGNORE = 4,                     /* no part of structural equality and hash */
  EK_FIELD_UNSIGNED = 8                    /* an EK_INT of 1, 2 or 4 bytes without sign */
} ek_field_flag;

/* One field. How it lies in the object is said by 'type' and 'size':
**   size 16            an ek_value; 'type' is what it must be, or EK_ANY
**   EK_INT, EK_BOOL    an integer of 1, 2, 4 or 8 bytes, a bool of 1
**   EK_FLOAT           a float or a double: 4 or 8 bytes
**   EK_DTYPE           ek_dtype, 4 bytes; EK_DEVICE: ek_device, 8 bytes
**   an object type     ek_object *, 8 bytes, NULL for none: of that type or one derived from it;
**                      not EK_STR or EK_BYTES, whose short values are no objects
**   any, with get      what 'get' and 'set' make of it
** 'get' gives an owned value, 'set' takes a borrowed one: 0 or -1. Both may be NULL. */
typedef struct ek_field {
  const char *name;
  const char *doc;                         /* or NULL */
  int32_t type;
  int32_t size;
  int64_t offset;                          /* from the header's first byte */
  uint64_t flags;                          /* of ek_field_flag */
  int (*get)(const ek_object *self, const struct ek_field *field, ek_value *out);
  int (*set)(ek_object *self, const struct ek_field *field, const ek_value *value);
  ek_value standard;                       /* borrowed by ek_type_define, which retains it */
} ek_field;

/* A method is a function whose first argument is the object. */
typedef struct ek_method {
  const char *name;
  const char *doc;                         /* or NULL */
  ek_object *function;                     /* borrowed by ek_type_define, which retains it */
} ek_method;

/* Definition of a type. 'create' makes an object with its header and fields set up, before the
** fields are set: for languages with constructors; then 'size' must be given. Without it the
** runtime makes zeroed objects, and drops what their fields own. With 'size' 0 it also lays the
** fields out behind those of the parent, each as an ek_value ('offset' and 'size' are ignored).
**
** 'build' is for languages whose objects are made whole and do not change: it gets the values of all
** fields in order (borrowed; EK_ANY for one that is left out) and gives the object. Then 'create' is
** NULL, fields have 'get', and objects are equal only to themselves. */
struct ek_type_info;
typedef int (*ek_build)(const struct ek_type_info *type, const ek_value *values, int32_t n,
                        ek_object **out);

typedef struct ek_type_def {
  int64_t size;                            /* bytes of an object, header included */
  int (*create)(ek_object **out);          /* or NULL */
  const char *doc;                         /* or NULL */
  const ek_field *fields;                  /* without those of the parent */
  const ek_method *methods;
  int32_t n_fields, n_methods;
  ek_build build;                          /* or NULL */
} ek_type_def;

/* Reflection record of a type. Immutable; ek_type_get returns another record once the type has been
** defined or extended by methods, and both stay valid. */
typedef struct ek_type_info {
  const char *key;
  const char *doc;                         /* never NULL */
  int32_t index;
  int32_t parent;                          /* -1 for those that are no objects, and for EK_OBJECT */
  int32_t depth;                           /* 0 for EK_OBJECT */
  int32_t is_defined;                      /* whether ek_object_new can make one */
  int64_t size;
  int (*create)(ek_object **out);
  const ek_field *fields;                  /* those of the parents first */
  const ek_method *methods;                /* those of the parents first; a later one hides */
  int32_t n_fields, n_methods;
  ek_build build;                          /* or NULL */
} ek_type_info;

EK_API int32_t ek_type_register(const char *key, int32_t parent);

/* Defines a registered type, once, its parent first. All is copied but functions. A second call may
** only add methods (size 0, no fields). 0 or -1 (ValueError, TypeError). */
EK_API int ek_type_define(int32_t type_index, const ek_type_def *def);

/* NULL for an unknown index. */
EK_API const ek_type_info *ek_type_get(int32_t type_index);

static inline int32_t ek_type_index(const char *key) { return ek_type_register(key, EK_ANY); }

/* The key lives as long as the process; NULL for an unknown index. */
static inline const char *ek_type_key(int32_t type_index) {
  const ek_type_info *info = ek_type_get(type_index);
  return info == NULL ? NULL : info->key;
}

/* Whether objects of a type are of type 'ancestor' or derived from it. */
static inline int ek_type_is(int32_t type_index, int32_t ancestor) {
  while (type_index != ancestor && type_index > EK_OBJECT) {
    const ek_type_info *info = ek_type_get(type_index);
    type_index = info == NULL ? -1 : info->parent;
  }
  return type_index == ancestor;
}

/* Makes an object of a defined type. 'values' (borrowed) go to the first fields, in order; one of
** type EK_ANY and those after the last are left out and must have a default. 0 or -1 (TypeError,
** ValueError); '*out' owned. */
EK_API int ek_object_new(int32_t type_index, const ek_value *values, int32_t n, ek_object **out);

/* Read and write a field of an object whose type has it; no lock is taken: one caller at a time
** while somebody writes. Setting retains 'value', converts int to float, and refuses other types,
** numbers that do not fit, and read-only fields. 0 or -1; '*out' owned. */
EK_API int ek_field_get(const ek_object *object, const ek_field *field, ek_value *out);
EK_API int ek_field_set(ek_object *object, const ek_field *field, const ek_value *value);

/* Structural equality: 1 or 0, or -1 with an error. Numbers and text are equal with their types
** (small strings and string objects are one type; floats by their bits, so that equal values hash
** equal); arrays and shapes by their items, maps by their pairs in any order, tensors of the CPU by
** dtype, shape and elements, objects of one defined type by their fields; everything else, and
** tensors elsewhere, by identity. Takes no more C stack for deeper values. */
EK_API int ek_value_equal(const ek_value *a, const ek_value *b);

/* A hash that is equal for equal values, also in another process, but for what is compared by
** identity. 0 or -1. */
EK_API int ek_value_hash(const ek_value *value, uint64_t *out);

/* 6. Strings, bytes, arrays, maps, shapes ------------------------------------------------------ */

typedef struct ek_bytes {
  const char *data;
  size_t size;
} ek_bytes;

typedef struct ek_string {                 /* EK_STR (UTF-8) and EK_BYTES */
  ek_object base;
  ek_bytes bytes;                          /* data[size] == 0 in what Ekiden makes */
} ek_string;

typedef struct ek_shape {
  ek_object base;
  const int64_t *data;
  size_t size;
} ek_shape;

typedef struct ek_array {                  /* immutable once shared */
  ek_object base;
  ek_value *data;
  int64_t size;
  int64_t capacity;
  void (*data_deleter)(void *data);        /* NULL when data lies inside the object */
} ek_array;

/* Immutable. The layout is that of TVM-FFI's maps of few entries, which its code searches from
** first to last whatever their number; ek_map_get is faster. */
typedef struct ek_map {
  ek_object base;
  ek_value *data;                          /* keys and values alternately, in order of insertion */
  uint64_t size;                           /* pairs */
  uint64_t slots;                          /* EK_MAP_IN_ORDER | pairs there is room for */
  void (*data_deleter)(void *data);        /* NULL when data lies inside the object */
} ek_map;

#define EK_MAP_IN_ORDER (UINT64_C(1) << 63) /* not set: a table of TVM-FFI's, opaque to Ekiden */

/* A value of an algebraic data type, and tuples (tag 0): what the VM's AllocADT makes. */
typedef struct ek_adt {
  ek_object base;
  int32_t tag;
  int32_t size;
  ek_value fields[];                       /* owned */
} ek_adt;

/* Makes a string (type EK_STR) or bytes (EK_BYTES) value by copying: in the value itself up to 7
** bytes, else as an object. '*out' is overwritten, not released. 0 or -1. */
EK_API int ek_string_new(int32_t type, const char *data, size_t size, ek_value *out);

/* Reads any of the six text and bytes forms. Returns 1 and fills '*out', which points into the
** value or its object, or returns 0 when the value is something else. Never touches the error. */
static inline int ek_string_borrow(const ek_value *value, ek_bytes *out) {
  switch (value->type_index) {
    case EK_SMALL_STR:
    case EK_SMALL_BYTES:
      out->data = value->v.bytes;
      out->size = value->small_len;
      return 1;
    case EK_STR:
    case EK_BYTES: *out = ((const ek_string *)(const void *)value->v.obj)->bytes; return 1;
    case EK_RAW_STR:
      out->data = (const char *)value->v.ptr;
      out->size = strlen(out->data);
      return 1;
    case EK_BYTE_ARRAY_PTR: *out = *(const ek_bytes *)value->v.ptr; return 1;
    default: return 0;
  }
}

/* Makes a container from n values (borrowed, retained where they are objects):
**   EK_ARRAY   the items
**   EK_ADT     the fields, with 'tag'
**   EK_MAP     keys and values alternately; of equal keys the last value counts. Keys are text,
**              bytes, numbers, and objects by identity
**   EK_SHAPE   ints
** 'tag' is for EK_ADT alone. Text and bytes that the caller only lends (EK_RAW_STR,
** EK_BYTE_ARRAY_PTR) are copied; tensors that he only lends are refused. 0 or -1; '*out' owned. */
EK_API int ek_container_new(int32_t type, int32_t tag, const ek_value *items, int64_t n,
                            ek_object **out);

static inline int ek_array_new(const ek_value *items, int64_t size, ek_object **out) {
  return ek_container_new(EK_ARRAY, 0, items, size, out);
}

static inline int ek_adt_new(int32_t tag, const ek_value *fields, int32_t size, ek_object **out) {
  return ek_container_new(EK_ADT, tag, fields, size, out);
}

/* The value of a key: 1 and '*out' borrowed from the map, 0 when there is none, or -1 (TypeError:
** no map, or one that Ekiden cannot read). */
EK_API int ek_map_get(const ek_object *map, const ek_value *key, ek_value *out);

/* 7. Errors ------------------------------------------------------------------------------------
**
** An error is an object: kind, message, backtrace, and what caused it. One error at most is pending
** per thread; setting another replaces it. Kinds are names a binding maps to its exception classes:
** TypeError, ValueError, IndexError, KeyError, MemoryError, RuntimeError, LoadError, OSError,
** InternalError. Messages say what was being done, what was expected, what came, and for which
** thing; lower case, no full stop. The list of kinds is open.
*/
typedef struct ek_error_object {
  ek_object base;
  ek_bytes kind;
  ek_bytes message;
  ek_bytes backtrace;                      /* most recent call first, lines */
  void (*update_backtrace)(void *self, const ek_bytes *text, int32_t append);
  ek_object *cause;                        /* owned, or NULL */
  ek_object *context;                      /* owned, or NULL */
} ek_error_object;

/* Sets this thread's error from a printf format and returns -1, so that it ends in one line:
** return ek_error("ValueError", "...", ...). Cannot fail: without memory it sets a MemoryError
** that exists beforehand. */
EK_API int ek_error(const char *kind, const char *format, ...)
    __attribute__((format(EK_PRINTF, 2, 3)));

/* Sets this thread's error to an existing error object, which is retained. Returns -1. */
EK_API int ek_error_set(ek_object *error);

/* Hands over this thread's error, owned, and clears it; NULL when there is none. */
EK_API ek_object *ek_error_take(void);

/* 8. The registry of global functions -----------------------------------------------------------
**
** Names are UTF-8, by convention dotted ("ek.runtime.allocation_count"). Look a name up once and
** keep the function: lookups take a lock. ek_registry_set retains the function; it fails with
** ValueError when the name is taken and 'override' is 0. With NULL for a function it removes the
** name: 1 if it was there, else 0. ek_registry_get gives an owned reference, or NULL without an
** error when the name is unknown.
**
** The runtime registers what is called too rarely to be part of this header:
**   ek.registry.names()                       array of all names, sorted
**   ek.image.hold(bytes)                      a code image (tensor of uint8) as ek_image_load loads
**                                             it; where this machine lacks what it needs, a module
**                                             whose functions say so when they are called, and whose
**                                             bytes are the image
**   ek.module.save(module, path)              by the module's kind
**   ek.executable.bind_constant(executable, i, tensor)  gives late-bound constant i its data, before
**                                             the first virtual machine is made
**   ek.engine.open(engine, folder)            opens the library of an engine (section 9); 'folder',
**                                             or nothing, has the engine's own
**   ek.engine.load(engine, folder, name, code)  the same, and gives what runs a region
**   ek.executable.module(executable)          a module that gives its functions by name, then its
**                                             kernels, get_constant(index), default(device...),
**                                             which makes a graph executor of it, and
**                                             list_module_names(), what else that is called;
**                                             any other name is that of a global function
**                                             "ek.program.NAME", which gets the executable before
**                                             its arguments
**   ek.executable.attach(executable, image)   gives functions the native code that a module of the
**                                             compiler exports for them
**   ek.executable.link(executable, module)    takes kernels that the executable has not from a
**                                             module; once, before a machine is made for it
**   ek.executable.watch(executable, n, hot)   calls hot(name) when a function has been called n
**                                             times; once, before it runs
**   ek.graph_executor.create(executable, lib) a module of the kind "GraphExecutor" with TVM's
**                                             functions set_input(key, tensor), run(),
**                                             get_output(i), ... over a 'main' without jumps and
**                                             calls; kernels may also be in the module lib, or NONE.
**                                             The bytes of an executable's file do for one, which
**                                             is how they come from another machine
**   ek.reference.new(value)                   a reference of programs, that holds a tensor, a number
**                                             or an object; ek.reference.read(r) gives what it holds,
**                                             ek.reference.write(r, value) changes it
**   ek.runtime.allocation_count()             as ek_pool_stats.system_allocations
**   ek.runtime.num_threads([n])               as ek_num_threads
**   ek.runtime.config_threadpool(n, cpus)     n as for ek_num_threads, and an array: the processors
**                                             that workers 1, 2, ... keep to, from the first again
**                                             when it ends; empty: as at first. Callers go where
**                                             they like
**   ek.runtime.cpu_has(name)                  1 where the processor has an ability, by its name in
**                                             /proc/cpuinfo, and the system its registers, else 0
**   ek.runtime.crc32(bytes)                   the checksum of a tensor of uint8, one dimension, as
**                                             files have it (CRC-32 of zlib); not in small builds
**   ek.runtime.memory_limit()                 the limit of section 12 in bytes, 0 for none;
**   ek.runtime.memory_limit(n)                then sets it
**   ek.runtime.pool_trim()                    as ek_pool_get(1)
**   ek.runtime.reset_peak()                   bytes_peak of section 12 becomes bytes_in_use
** It looks up "ek.module.load.<suffix>"(path): loaders of module files, see ek_module_load. */
EK_API int ek_registry_set(const char *name, ek_object *function, int override);
EK_API ek_object *ek_registry_get(const char *name);

static inline int ek_registry_remove(const char *name) { return ek_registry_set(name, NULL, 1); }

/* An owned array of strings. */
static inline int ek_registry_names(ek_object **out) {
  ek_object *function = ek_registry_get("ek.registry.names");
  ek_value names = ek_value_none();
  if (function == NULL) return ek_error("KeyError", "list functions: no ek.registry.names");
  int code = ek_function_call(function, NULL, 0, &names);
  ek_release(function);
  if (code == 0) *out = names.v.obj;
  return code;
}

/* 9. Tensors and storage ------------------------------------------------------------------------
**
** A tensor object is the header, DLPack's DLTensor, then what Ekiden needs to free it. shape and
** strides are never NULL for ndim > 0 and never change. Tensors Ekiden allocates are contiguous,
** aligned to 64 bytes and have byte_offset 0. A view keeps its owner alive. Contents are shared and
** mutable; the runtime does not synchronise access to them. dtype lanes other than 1 are accepted
** only by DLPack import and export. Elements of fewer than 8 bits are packed, the first in the
** lowest bits; the data of a tensor begins with a whole byte.
*/
typedef struct ek_dltensor {               /* DLPack's DLTensor */
  void *data;
  ek_device device;
  int32_t ndim;
  ek_dtype dtype;
  int64_t *shape;
  int64_t *strides;                        /* in elements; NULL (old producers) means contiguous */
  uint64_t byte_offset;
} ek_dltensor;

typedef struct ek_managed {                /* DLPack's DLManagedTensor */
  ek_dltensor tensor;
  void *context;
  void (*deleter)(struct ek_managed *self);
} ek_managed;

typedef struct ek_managed_versioned {      /* DLPack's DLManagedTensorVersioned, major version 1 */
  uint32_t major, minor;
  void *context;
  void (*deleter)(struct ek_managed_versioned *self);
  uint64_t flags;                          /* EK_DLPACK_* */
  ek_dltensor tensor;
} ek_managed_versioned;

#define EK_DLPACK_READ_ONLY UINT64_C(1)
#define EK_DLPACK_IS_COPIED UINT64_C(2)
#define EK_DLPACK_SUBBYTE_PADDED UINT64_C(4)

typedef struct ek_tensor {
  ek_object base;
  ek_dltensor dl;
  uint64_t flags;                          /* EK_DLPACK_READ_ONLY or 0 */
  ek_object *owner;                        /* what keeps data alive; NULL when 'dispose' does */
  void (*dispose)(void *managed);          /* returns an imported tensor to its producer, or NULL */
  void *managed;
  int64_t dims[];                          /* shape, then strides */
} ek_tensor;

/* A block of device memory that tensors are cut from. data is aligned as asked, at least to 64. */
typedef struct ek_storage {
  ek_object base;
  void *data;
  size_t size;                             /* at least what was asked */
  ek_device device;
} ek_storage;

#define EK_MAX_NDIM 64

/* Bytes of the elements of a tensor, 0 if any dimension is 0, packed below 8 bits. Meant for shapes
** that are known to be valid: overflow is checked where tensors are made. */
static inline size_t ek_dltensor_nbytes(const ek_dltensor *tensor) {
  uint64_t count = 1;
  for (int32_t i = 0; i < tensor->ndim; i++) count *= (uint64_t)tensor->shape[i];
  return (size_t)((count * tensor->dtype.bits * tensor->dtype.lanes + 7) / 8);
}

static inline void *ek_dltensor_data(const ek_dltensor *tensor) {
  return (char *)tensor->data + tensor->byte_offset;
}

/* Whether the elements lie in row-major order without gaps. Tensors of no elements are contiguous;
** strides of dimensions of length 1 do not matter. */
static inline int ek_dltensor_is_contiguous(const ek_dltensor *tensor) {
  uint64_t expected = 1; /* wraps around only where another dimension is 0 */
  int contiguous = 1;
  if (tensor->strides == NULL) return 1;
  for (int32_t i = tensor->ndim - 1; i >= 0; i--) {
    if (tensor->shape[i] == 0) return 1;
    if (tensor->shape[i] != 1 && (uint64_t)tensor->strides[i] != expected) contiguous = 0;
    expected *= (uint64_t)tensor->shape[i];
  }
  return contiguous;
}

/* The tensor an argument refers to: TENSOR or DLTENSOR_PTR; NULL for any other value. Borrowed. */
static inline const ek_dltensor *ek_value_tensor(const ek_value *value) {
  if (value->type_index == EK_TENSOR) return &((ek_tensor *)(void *)value->v.obj)->dl;
  return value->type_index == EK_DLTENSOR_PTR ? (const ek_dltensor *)value->v.ptr : NULL;
}

/* Memory from the pool of 'device'; each CPU device, id 0 (the host) to 7, has one of its own, and
** counts as memory of the process like the others. 'alignment' is a power of two up to 4096, or 0 for 64. Contents
** are undefined. 0 or -1 (MemoryError, ValueError); '*out' owned. */
EK_API int ek_storage_new(size_t size, size_t alignment, ek_device device, ek_object **out);

/* A new contiguous tensor with its own storage. Negative dimensions and sizes beyond PTRDIFF_MAX
** are ValueErrors. Contents are undefined. 0 or -1; '*out' owned. */
EK_API int ek_tensor_new(const int64_t *shape, int32_t ndim, ek_dtype dtype, ek_device device,
                         ek_object **out);

/* A tensor over memory of someone else: a slice of a storage, another shape of a tensor, a mapped
** constant, a foreign buffer. 'like' says where the data is and how it is laid out; its strides may
** be NULL for contiguous. 'owner' is retained and keeps the data alive; NULL when the caller
** promises that it outlives the tensor. For an owner that is a storage, the bytes are checked to
** lie inside it; for one that is a tensor, READ_ONLY is inherited. 0 or -1; '*out' owned. */
EK_API int ek_tensor_strided(ek_object *owner, const ek_dltensor *like, uint64_t flags,
                             ek_object **out);

/* ek_tensor_strided with row-major strides. */
static inline int ek_tensor_view(ek_object *owner, void *data, const int64_t *shape, int32_t ndim,
                                 ek_dtype dtype, ek_device device, uint64_t flags,
                                 ek_object **out) {
  ek_dltensor like = {data, device, ndim, dtype, (int64_t *)(uintptr_t)shape, NULL, 0};
  return ek_tensor_strided(owner, &like, flags, out);
}

/* Whether the elements of a tensor must not be written; 0 also for a tensor of another library, which
** ends with its DLTensor. Constants are mapped from files: a write to one ends the process. A language
** whose users may write to what it gives them gives them a copy of such a tensor. */
static inline int ek_tensor_is_read_only(const ek_object *tensor) {
  static void (*own_deleter)(void *, int); /* what the runtime's own tensors have */
  void (*known)(void *, int) = __atomic_load_n(&own_deleter, __ATOMIC_RELAXED);
  if (known == NULL) {
    ek_object *made = NULL;
    ek_dtype dtype = {EK_DTYPE_INT, 8, 1};
    ek_device host = {EK_CPU, 0};
    if (ek_tensor_new(NULL, 0, dtype, host, &made) != 0) {
      ek_object_release(ek_error_take());
      return 1; /* not known without memory */
    }
    known = made->deleter;
    __atomic_store_n(&own_deleter, known, __ATOMIC_RELAXED);
    ek_object_release(made);
  }
  if (tensor == NULL || tensor->type_index != EK_TENSOR || tensor->deleter != known) return 0;
  return (((const ek_tensor *)(const void *)tensor)->flags & EK_DLPACK_READ_ONLY) != 0;
}

/* Imports a DLPack tensor without copying: an ek_managed_versioned if 'versioned', else an
** ek_managed. Takes the producer's tensor over and calls its deleter when the last reference goes,
** from whichever thread that is. Any strides are kept. On failure the caller still owns 'managed'.
** 0 or -1. */
EK_API int ek_tensor_from_dlpack(void *managed, int versioned, ek_object **out);

/* Exports a tensor without copying; the result retains it until the consumer calls the deleter. A
** read-only tensor cannot be exported in the legacy form (ValueError). 0 or -1. */
EK_API int ek_tensor_to_dlpack(ek_object *tensor, int versioned, void **managed);

/* Header in front of the DLPack tensor of such an export, with the number of its holders. A
** producer that reads the export after handing it out, as a Python capsule does in its destructor,
** holds it until then: it stays readable, and calling its deleter again has no effect.
** Thread-safe. */
typedef struct ek_exported {
  void (*end)(struct ek_exported *self);
  int32_t holders;
} ek_exported;

static inline void ek_dlpack_hold(void *managed) {
  ek_exported *self = (ek_exported *)managed - 1;
  __atomic_fetch_add(&self->holders, 1, __ATOMIC_RELAXED);
}

static inline void ek_dlpack_drop(void *managed) {
  ek_exported *self = (ek_exported *)managed - 1;
  if (__atomic_sub_fetch(&self->holders, 1, __ATOMIC_ACQ_REL) == 0) self->end(self);
}

/* Copies elements between tensors of one shape and dtype, not overlapping: of any strides on the
** CPU, contiguous where another device is involved. 0 or -1. */
EK_API int ek_tensor_copy(const ek_dltensor *from, const ek_dltensor *to);

/* A kind of device other than the CPU, as a table of functions that lives as long as the process.
** All of them may be called from any thread, and return 0 or -1 with an error set. Whoever has such
** devices writes one and registers it: nothing else in the runtime knows them.
**
** Memory. 'scope' says which memory of a device ("texture", ...), NULL the common one: a table
** refuses those it has not. An address of a device may be no address of the host, but counts bytes
** as one: tensors and views lie at distances from it. 'copy' serves every pair in which one is of
** this kind and the other too or the CPU. Without a stream it follows all that was queued before
** and is done when it returns; with one it is queued there. 'alloc' gives memory that nothing queued
** still uses: what is copied into it from the host goes by a stream of its own, where there are
** streams, and does not wait for kernels.
**
** The entries from 'count' on may be NULL: such devices hold tensors and run no code. A stream NULL
** is the device's own, which keeps the order of what is queued. Events stand for all that was queued
** on a stream before them. 'load' takes code in a format of the kind's own ("opencl", "ptx", ...),
** of which 'name' is for messages. */
typedef enum ek_device_attribute {
  EK_DEVICE_NAME = 0,          /* texts */
  EK_DEVICE_VENDOR = 1,
  EK_DEVICE_DRIVER = 2,        /* and its version */
  EK_DEVICE_VERSION = 3,       /* of the language of its code */
  EK_DEVICE_ABILITIES = 4,     /* words: "fp16 fp64 subgroups ..." */
  EK_DEVICE_MAX_THREADS = 5,   /* numbers: of a block */
  EK_DEVICE_SHARED_MEMORY = 6, /* bytes of a block */
  EK_DEVICE_UNITS = 7,
  EK_DEVICE_CLOCK = 8,         /* MHz */
  EK_DEVICE_MEMORY = 9,        /* bytes */
  EK_DEVICE_ALIGNMENT = 10,    /* bytes, of what 'alloc' gives at least */
  EK_DEVICE_WARP = 11,         /* threads that run together; 1 on a processor, 0 if not known */
  EK_DEVICE_VECTOR = 12,       /* bits of what a thread best computes with; 0 if not known */
  EK_DEVICE_LOCAL = 13         /* 1 where memory of a block is memory of its own, else 0 */
} ek_device_attribute;

/* Argument of a kernel launch: device memory (size 0), or a scalar of 'size' bytes. */
typedef struct ek_launch_arg {
  const void *memory;
  int64_t number;
  int32_t size;
} ek_launch_arg;

typedef struct ek_launch {
  int64_t blocks[3], threads[3];           /* of the grid, of a block: all at least 1 */
  const ek_launch_arg *args;
  int32_t n_args;
} ek_launch;

typedef struct ek_device_table {
  const char *name;
  int (*alloc)(ek_device device, size_t size, size_t alignment, const char *scope, void **out);
  void (*free)(ek_device device, void *data, size_t size);
  int (*copy)(const void *from, ek_device from_device, void *to, ek_device to_device, size_t size,
              void *stream);
  int (*count)(int32_t *out);
  int (*attribute)(ek_device device, int32_t which, int64_t *number, char *text, size_t capacity);
  int (*stream_new)(ek_device device, void **out);
  void (*stream_free)(ek_device device, void *stream);
  int (*synchronize)(ek_device device, void *stream);
  int (*event_new)(ek_device device, void *stream, void **out);
  int (*event_wait)(ek_device device, void *stream, void *event);
  int (*event_time)(ek_device device, void *from, void *to, int64_t *nanoseconds);
  void (*event_free)(ek_device device, void *event);
  int (*load)(ek_device device, const char *format, const char *name, const void *code, size_t size,
              void **out);
  void (*unload)(ek_device device, void *module);
  int (*kernel)(ek_device device, void *module, const char *name, void **out);
  int (*launch)(ek_device device, void *stream, void *kernel, const ek_launch *launch);
} ek_device_table;

/* Register the driver of a device type (2 to 63, DLPack's numbers); from then on storage and
** tensors can be allocated and copied there. Returns 0, or -1 (ValueError: another table is
** registered). */
EK_API int ek_device_register(int32_t type, const ek_device_table *table);

/* Devices that no table is registered for when they are first used: a library libekiden_<kind>.so
** (opencl, cuda, ...) is looked for in the folder EKIDEN_DRIVERS, beside the runtime, and where the
** system looks. Its one symbol 'ek_driver_open' registers the table, or fails with an error that says
** what to install. A driver is given what it calls, so that it serves every copy of the runtime. */
typedef struct ek_driver_host {
  int32_t version;                         /* of this structure and of ek_device_table: 1 */
  int (*error)(const char *kind, const char *format, ...);
  int (*register_device)(int32_t type, const ek_device_table *table);
} ek_driver_host;

typedef int (*ek_driver_open_t)(const ek_driver_host *host);

/* An engine of someone else that runs regions of programs (docs/byoc.md). A region is loaded by the
** global function ek.external.<engine>(name, metadata) where there is one, else by the library
** libekiden_<engine>.so, looked for as drivers are. Its one symbol 'ek_engine_open' gives a table, or
** NULL with an error that says what to install. The engine's own library is looked for in 'folders',
** then where the system looks.
**
** 'load' makes of the code of a region, which is the caller's, what runs it: 0 or -1 (LoadError).
** 'run' gets its inputs, then the tensors that it writes, each element of them, all contiguous and of
** the host, in any number of threads at once: 0 or -1 (RunError). 'name' is for messages. */
typedef struct ek_engine_host {
  int32_t version;                         /* of this structure and of ek_engine_table: 1 */
  int32_t threads;                         /* that a region may use */
  const char *folders;                     /* with ':' between each two; never NULL */
  int (*error)(const char *kind, const char *format, ...);
} ek_engine_host;

typedef struct ek_engine_table {
  int (*load)(const ek_engine_host *host, const char *name, const void *code, size_t size,
              void **region);
  int (*run)(void *region, const ek_dltensor *const *tensors, int32_t n);
  void (*unload)(void *region);
} ek_engine_table;

typedef const ek_engine_table *(*ek_engine_open_t)(const ek_engine_host *host);

/* Registered functions over devices:
**   "ek.device.count"(device)           how many there are of its kind
**   "ek.device.attribute"(device, n)    an ek_device_attribute: text or number
**   "ek.device.sync"(device)            waits for all that was queued on it
**   "ek.device.open"(device)            loads its driver: an error that says what is missing */

/* 10. Modules ----------------------------------------------------------------------------------
**
** A module gives functions by name, and asks the modules it imports, in order, for those it does
** not have itself. A function found keeps its module, and so its code, alive. A kind of module is a
** table of functions, by whoever wants one; 'self' is the kind's own data. The table outlives its
** modules. Each entry but 'get' may be NULL. */
typedef struct ek_module_kind {
  const char *name;
  /* An owned function, or NULL in '*out' (which arrives so) when there is none of that name. The
  ** function must retain 'module' if it needs 'self'. 0 or -1. */
  int (*get)(void *self, ek_object *module, const char *name, ek_object **out);
  int (*names)(void *self, ek_object **out);      /* an owned array of strings; 0 or -1 */
  int (*save)(void *self, const char *path);      /* 0 or -1 */
  void (*destroy)(void *self);
  int (*bytes)(void *self, ek_value *out);        /* owned bytes for ek_module_from_bytes; 0 or -1 */
} ek_module_kind;

/* 'self' is taken over: destroy(self) runs when the module dies. On failure it is still the
** caller's. 0 or -1; '*out' owned. */
EK_API int ek_module_new(const ek_module_kind *kind, void *self, ek_object **out);

/* An owned function, or NULL in '*out' when there is none of that name, here or in what is
** imported. 0 or -1. */
EK_API int ek_module_get(ek_object *module, const char *name, ek_object **out);

/* 1 or 0, or -1. */
static inline int ek_module_implements(ek_object *module, const char *name) {
  ek_object *found = NULL;
  if (ek_module_get(module, name, &found) != 0) return -1;
  ek_object_release(found);
  return found != NULL;
}

/* Retains 'imported'; one that reaches 'module' itself is a ValueError. NULL drops all imports. 0
** or -1. */
EK_API int ek_module_import(ek_object *module, ek_object *imported);

/* Properties of a module that ek_module_part returns, owned. Names are those of this module alone;
** empty where the kind cannot list them (shared libraries). Returns 0 or -1. */
typedef enum ek_module_about {
  EK_MODULE_KIND = 0,      /* string: the name of its kind */
  EK_MODULE_NAMES = 1,     /* array of strings */
  EK_MODULE_IMPORTS = 2,   /* array of modules */
  EK_MODULE_BYTES = 3      /* bytes: it alone, for ek_module_from_bytes; ValueError where its kind */
                           /* has none (shared libraries) */
} ek_module_about;

EK_API int ek_module_part(ek_object *module, int32_t part, ek_value *out);

static inline int ek_module_names(ek_object *module, ek_object **out) {
  ek_value names = ek_value_none();
  int code = ek_module_part(module, EK_MODULE_NAMES, &names);
  if (code == 0) *out = names.v.obj;
  return code;
}

/* The module in a file, by the suffix of its name:
**   .so    a shared library. Kind "library": functions are its symbols "__tvm_ffi_<name>" with the
**          signature of ek_packed. A library made by Executable.export_library or
**          Module.export_library gives what was exported. A symbol "int __ek_init(void)" is called first, once: there a library
**          registers its types and functions, and it is never unloaded then; others are unloaded
**          with the last function from them.
**   .eki   an executable. Kind "executable": its functions by name, each safe to call from several
**          threads at once.
**   else   what the registered function "ek.module.load.<suffix>" makes of the path. Those may
**          replace the two above.
** 0 or -1 (OSError, LoadError, ValueError for an unknown suffix). */
EK_API int ek_module_load(const char *path, ek_object **out);

/* The module that bytes hold: an executable, a native code image, or several of these that import
** each other, of which the first is given. 'bytes' must stay as they are as long as the process, and
** be aligned to 64. Everything is verified against 'size': 0 or -1 (LoadError). Code of devices, of
** which docs/artifact-format.md says how it lies, begins with "EKDEVC\0\1". Several, all numbers
** little-endian, begin with "EKMODS\0\1", then
**   u64 n, then for each module u64 offset and u64 size, offset a multiple of 64,
**   u64 m, then for each import u64 importer and u64 imported, both below n
*/
EK_API int ek_module_from_bytes(const void *bytes, size_t size, ek_object **out);

/* Loads a native code image: a module of kind "image". Everything is verified against 'size' before
** memory is mapped, so hostile bytes end as a LoadError; the code itself is trusted. 'bytes' are
** copied. Layout, little-endian:
**     0  "EKIMG\0", a, 1      16  u64 text size            32  u64 offset of the import table
**     8  u32 exports           24  u64 offset of exports    40  u64 total size
**    12  u32 imports           48  what it needs, then zeros up to 4096
**   4096  text: code and read-only data, position independent
** 'a' is the architecture: 0 x86-64, 1 AArch64, 2 RISC-V of 64 bits, 3 WebAssembly of 32, 4 Armv7,
** 5 x86-64 of Windows, where functions are called otherwise;
** another machine's image is refused. What it needs are words with a space between each two: the name of the processor that the
** code is for, which is for messages, then abilities by the names of /proc/cpuinfo, such as "avx2".
** The image is refused where one is missing, or is not known to this runtime. Nothing at all: it
** needs none.
** Export table: per export u32 name length, name, u64 offset in the text. Import table: per import
** u32 name length, name. The tables follow the text in this order without gaps but for zeros. In
** memory, a table of one address per import follows the text on the next 4096-byte boundary,
** filled with the address of a service (section 11), or for "packed:<name>" with that of an
** ek_call_site for the global function <name>, or for "ek_extern_<name>" with that of the C function
** <name>: of the library or program that the image is linked into, else of the process; LoadError
** where there is none. The text is mapped readable and executable, the
** table readable. 0 or -1. */
EK_API int ek_image_load(const void *bytes, size_t size, ek_object **out);

/* 11. Services to compiled code -------------------------------------------------------------------
**
** What compiled code calls; kernel.h declares it for C. ek_service returns the address of one by
** its name, or NULL: for code generators that place code themselves, and for languages that cannot
** use what is inline here. The table: ek_parallel_for, ek_kernel_error, ek_kernel_error_values,
** ek_workspace_alloc, ek_workspace_free, ek_device_workspace_alloc, ek_device_workspace_free,
** ek_call_packed, ek_value_drop, memcpy, memmove, memset.
*/
typedef void (*ek_address)(void);
EK_API ek_address ek_service(const char *name);

/* A place in code that calls a function by name. */
typedef struct ek_call_site {
  ek_object *function;                     /* NULL until the first call has found it; then owned */
  const char *name;
  void *image;                             /* NULL, or the loader's */
} ek_call_site;

/* Threads that share a parallel loop, the caller included. Initially EKIDEN_NUM_THREADS, else the
** number of physical cores that this process may use, within the quota of its control groups. With
** n > 0, first sets the number; waits for a running loop to end, and must not be called inside one.
** Workers start with the first loop that needs them. More than 256 are a ValueError, and -1. An
** EKIDEN_NUM_THREADS that is no number from 1 to 256 is reported once on standard error, and not
** used. */
EK_API int ek_num_threads(int n);

/* 12. Memory -----------------------------------------------------------------------------------
**
** Buffers and objects come from pools that keep freed blocks by size. 'system_allocations' counts
** requests to the operating system's allocator since the process began: a warm run of a static
** model leaves it unchanged. Also registered as the function "ek.runtime.allocation_count".
*/
typedef struct ek_pool_stats {
  uint64_t system_allocations;
  uint64_t bytes_held;                     /* from the system, in use or not */
  uint64_t bytes_free;                     /* of these, kept for reuse by this thread and by all */
  uint64_t bytes_in_use;                   /* of buffers: data, arenas (kept ones too), workspaces */
  uint64_t bytes_peak;                     /* most of these at once, since ek.runtime.reset_peak() */
  uint64_t bytes_limit;                    /* 0 for none */
} ek_pool_stats;

/* bytes_held never passes the limit, which is what EKIDEN_MEMORY_LIMIT says (a number of bytes, or
** of K, M or G) or ek.runtime.memory_limit(n) set last: a request beyond it fails with a
** MemoryLimitError that names the bytes asked for, after what is kept for reuse has been given back.
** Small blocks may pass it by 64 KB, for errors are made of them. Mapped files do not count. A limit
** that is below what is held is met as memory is freed and asked for again. */

/* Return the statistics of the pools; a non-zero 'trim' first returns cached memory to the system,
** except small blocks on the lists of other threads. */
EK_API ek_pool_stats ek_pool_get(int trim);

static inline ek_pool_stats ek_pool_get_stats(void) { return ek_pool_get(0); }
static inline void ek_pool_trim(void) { (void)ek_pool_get(1); }

/* 13. Executables and the virtual machine ---------------------------------------------------------
**
** An executable is an immutable program: bytecode, constants, names of primitives, native code. Its
** file is its memory form; the format stands in ek_executable.c. Loading proves every operand in
** range, so that running checks nothing; anything wrong is a LoadError that names the section.
**
** ek_executable_load maps the file; it may be deleted while loaded, but must not be rewritten in
** place. Who reads behind the end of one that was cut short gets SIGBUS; in a process that has called
** "ek.files.guard"(1) before, runs give a LoadError instead. ek_executable_from_bytes borrows 'bytes' until the executable and every constant taken
** from it have died, or copies them first if 'copy'. 0 or -1; '*out' owned. */
EK_API int ek_executable_load(const char *path, ek_object **out);
EK_API int ek_executable_from_bytes(const void *bytes, size_t size, int copy, ek_object **out);

/* Parts of an executable, for bindings and tools. ek_executable_item gives one item of a kind as a
** value, owned; with index -1 the number of items as an int. 0 or -1. */
typedef enum ek_executable_part {
  EK_PART_GLOBAL = 0,      /* string: name of function i */
  EK_PART_PARAMS = 1,      /* array of strings: parameter names of function i */
  EK_PART_CONSTANT = 2,    /* read-only tensor, shares the executable's memory; nothing if late-bound */
  EK_PART_PRIMITIVE = 3,   /* string: name of primitive i */
  EK_PART_CODE = 4,        /* bytes: int32 words of function i */
  EK_PART_REGISTERS = 5,   /* int: registers of function i */
  EK_PART_METADATA = 6,    /* one string: JSON */
  EK_PART_FILE = 7,        /* one item, bytes: the whole file */
  EK_PART_DEVICE = 8,      /* device i of the table; device 0 is the host */
  EK_PART_INSTRUCTIONS = 9 /* int: instructions of function i */
} ek_executable_part;

EK_API int ek_executable_item(ek_object *executable, int32_t part, int64_t index, ek_value *out);

/* -1 with an error for an unknown kind. */
static inline int64_t ek_executable_count(ek_object *executable, int32_t part) {
  ek_value count = ek_value_none();
  return ek_executable_item(executable, part, -1, &count) == 0 ? count.v.i64 : -1;
}

/* Limits of a run, as registered functions, since they are rarely set:
**   "ek.executable.num_threads"(executable[, n])  most threads of a run; 0 for the process's
**   "ek.executable.limit"(executable, steps, nanoseconds)  stop a run there; 0 for no limit
**   "ek.vm.limit"(machine, steps, nanoseconds)  the same for one machine; precedes its executable's
**   "ek.executable.check"(executable, function, arguments...)  refuse what a call would refuse
** EKIDEN_MAX_STEPS limits the steps of runs that have no other limit. A run that is stopped is a
** RunLimitError, and its machine is as before. */

/* A virtual machine holds the registers and frames of one caller and is reused call after call: one
** caller at a time (a second one gets a RuntimeError). It retains the executable. 'function' is an
** index into the globals. Arguments are borrowed: tensors, ints, ADTs; tensors that are not on the
** device of their parameter, alone or in an array, are copied there. They are held against the types
** that the function declares: an InputError names the input. Results are owned; a result
** that views a constant or an argument keeps that alive. Kernels that flush subnormal numbers set
** the mode of the thread (MXCSR, FPCR) for themselves: after a call, failed ones included, it is what
** the caller had set. 0 or -1. */
EK_API int ek_vm_new(ek_object *executable, ek_object **out);
EK_API int ek_vm_invoke(ek_object *vm, int32_t function, const ek_value *args, int32_t nargs,
                        ek_value *ret);

/* Sets what a run asks, on its own thread, whether to go on: between kernels and at calls and jumps
** back, from 30 ms after its start and then every 30 ms. 0 goes on; -1, with an error set, ends the
** run with that error and leaves its machine as before. NULL asks nobody, as at first. The binding
** for Python handles signals there, so that Ctrl-C ends a run. */
EK_API void ek_interrupt_check_set(int (*check)(void));

/* The ABI, held by the compiler. --------------------------------------------------------------- */
#define EK_BY_WIDTH(of_8, of_4) (sizeof(void *) == 8 ? (of_8) : (of_4))
static_assert(sizeof(void *) == 8 || sizeof(void *) == 4, "pointers have 8 bytes, or 4");
static_assert(sizeof(ek_value) == 16 && offsetof(ek_value, v) == 8, "generated code stores at +8");
static_assert(sizeof(ek_object) == 24 && offsetof(ek_object, deleter) == 16, "object header");
static_assert(offsetof(ek_function, call) == 24, "function cell follows the header");
static_assert(offsetof(ek_string, bytes) == 24, "byte array follows the header");
static_assert(offsetof(ek_array, data) == 24, "sequence cell follows the header");
static_assert(offsetof(ek_map, data) == 24 && sizeof(ek_map) == 56, "map cell follows the header");
static_assert(offsetof(ek_error_object, kind) == 24, "error cell follows the header");
static_assert(offsetof(ek_tensor, dl) == 24 && sizeof(ek_dltensor) == EK_BY_WIDTH(48, 40),
              "DLTensor is next");
static_assert(sizeof(ek_managed) == EK_BY_WIDTH(64, 48) &&
                  sizeof(ek_managed_versioned) == EK_BY_WIDTH(80, 64),
              "DLPack");

#ifdef __cplusplus
}
#pragma GCC diagnostic pop
#endif
#endif /* EKIDEN_RUNTIME_H_ */
