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
**   - The byte order is little-endian and pointers have 8 bytes.
*/
#ifndef EKIDEN_RUNTIME_H_
#define EKIDEN_RUNTIME_H_

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Marks what the shared library exports; everything else in it is hidden. */
#define EK_API __attribute__((visibility("default")))

/* 1. Type indices ------------------------------------------------------------------------------
**
** Below EK_OBJECT a value holds its payload itself. From EK_OBJECT on the payload is a pointer to a
** counted object whose header repeats the index. Indices below 128 are the ABI's; from EK_DYNAMIC
** on they are dealt out at run time by type key (section 5). The runtime registers its own types
** before anything else can run, so theirs are constants too, but valid in this process only: store
** type keys, never indices, outside it.
*/
typedef enum ek_type {
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
  EK_SHAPE = 69,           /* made by others; Ekiden reads it as ek_shape */
  EK_TENSOR = 70,          /* ek_tensor */
  EK_ARRAY = 71,           /* ek_array */
  EK_MAP = 72,             /* made by others; Ekiden passes it through */
  EK_MODULE = 73,
  EK_DYNAMIC = 128,
  EK_STORAGE = 128,        /* "ek.Storage": ek_storage */
  EK_ADT = 129,            /* "ek.ADT": ek_adt */
  EK_CLOSURE = 130,        /* "ek.Closure": made by the VM */
  EK_EXECUTABLE = 131,     /* "ek.Executable" */
  EK_VM = 132              /* "ek.VirtualMachine" */
} ek_type;

/* 2. Objects -----------------------------------------------------------------------------------
**
** Every object starts with this 24-byte header. 'refs' counts strong references in its low 32 bits
** and weak ones in its high 32; all strong references together hold one weak one, so a new object
** has refs == EK_REFS_NEW. When the last strong reference goes, the deleter gets EK_DELETE_CONTENT;
** when the last weak one goes, EK_DELETE_MEMORY; both bits at once when both go together, which is
** the common case. The deleter belongs to the library that made the object, so memory returns to
** the allocator it came from. 'refs' is only touched atomically.
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

/* Adds one strong reference. NULL is allowed and ignored. The caller must already hold one. */
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
  EK_DTYPE_BOOL = 6                        /* 8 bits, 0 or 1 */
} ek_dtype_code;

typedef struct ek_device {                 /* DLPack's DLDevice */
  int32_t type;                            /* an ek_device_type or another number of DLPack's */
  int32_t id;
} ek_device;

typedef enum ek_device_type { EK_CPU = 1, EK_CUDA = 2 } ek_device_type;

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
  if (value->type_index >= EK_OBJECT) ek_object_retain(value->v.obj);
}

/* Releases what the value owns and leaves NONE. */
static inline void ek_value_release(ek_value *value) {
  if (value->type_index >= EK_OBJECT) ek_object_release(value->v.obj);
  *value = ek_value_none();
}

/* 4. The call ----------------------------------------------------------------------------------
**
** The one signature of every function that crosses a boundary: kernels, callbacks, VM entry points.
** 'args' are borrowed for the call. '*ret' arrives as NONE and leaves owned; on failure it is NONE.
** 'self' is the function object for calls through ek_function, and NULL for a bare symbol of a
** native code image. Returns 0, or -1 with the error in thread-local state.
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

/* 5. Types by key ------------------------------------------------------------------------------
**
** Returns the index of 'key', registering it below 'parent' (EK_OBJECT when in doubt) if it is new;
** -1 when the key is empty, is known with another parent, or when 'parent' is unknown. Keys are
** copied and never go away. ek_type_index returns -1 without an error when the key is unknown;
** ek_type_key returns NULL for an unknown index. The returned string lives as long as the
** process. */
EK_API int32_t ek_type_register(const char *key, int32_t parent);
EK_API int32_t ek_type_index(const char *key);
EK_API const char *ek_type_key(int32_t type_index);

/* 6. Strings, bytes, arrays, shapes ------------------------------------------------------------ */

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
EK_API int ek_string_borrow(const ek_value *value, ek_bytes *out);

/* Both copy and retain 'items' (borrowed). 0 or -1; '*out' owned. */
EK_API int ek_array_new(const ek_value *items, int64_t size, ek_object **out);
EK_API int ek_adt_new(int32_t tag, const ek_value *fields, int32_t size, ek_object **out);

/* 7. Errors ------------------------------------------------------------------------------------
**
** An error is an object: kind, message, backtrace, and what caused it. One error at most is pending
** per thread; setting another replaces it. Kinds are names a binding maps to its exception classes:
** TypeError, ValueError, IndexError, KeyError, MemoryError, RuntimeError, LoadError, OSError,
** InternalError. Messages say what was being done, what was expected, what came, and for which
** thing; lower case, no full stop.
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
    __attribute__((format(printf, 2, 3)));

/* Sets this thread's error to an existing error object, which is retained. Returns -1. */
EK_API int ek_error_set(ek_object *error);

/* Hands over this thread's error, owned, and clears it; NULL when there is none. */
EK_API ek_object *ek_error_take(void);

/* 8. The registry of global functions -----------------------------------------------------------
**
** Names are UTF-8, by convention dotted ("ek.runtime.allocation_count"). Look a name up once and
** keep the function: lookups take a lock. ek_registry_set fails with ValueError when the name is
** taken and 'override' is 0; the function is retained. ek_registry_get gives an owned reference, or
** NULL without an error when the name is unknown. ek_registry_remove returns 1 if the name was
** there, else 0. ek_registry_names gives an owned array of strings, sorted. */
EK_API int ek_registry_set(const char *name, ek_object *function, int override);
EK_API ek_object *ek_registry_get(const char *name);
EK_API int ek_registry_remove(const char *name);
EK_API int ek_registry_names(ek_object **out);

/* 9. Tensors and storage ------------------------------------------------------------------------
**
** A tensor object is the header, DLPack's DLTensor, then what Ekiden needs to free it. shape and
** strides are never NULL for ndim > 0 and never change. Tensors Ekiden allocates are contiguous,
** aligned to 64 bytes and have byte_offset 0. A view keeps its owner alive. Contents are shared and
** mutable; the runtime does not synchronise access to them. dtype lanes other than 1 are accepted
** only by DLPack import and export.
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
  int64_t expected = 1;
  int contiguous = 1;
  if (tensor->strides == NULL) return 1;
  for (int32_t i = tensor->ndim - 1; i >= 0; i--) {
    if (tensor->shape[i] == 0) return 1;
    if (tensor->shape[i] != 1 && tensor->strides[i] != expected) contiguous = 0;
    expected *= tensor->shape[i];
  }
  return contiguous;
}

/* The tensor an argument refers to: TENSOR or DLTENSOR_PTR; NULL for any other value. Borrowed. */
static inline const ek_dltensor *ek_value_tensor(const ek_value *value) {
  if (value->type_index == EK_TENSOR) return &((ek_tensor *)(void *)value->v.obj)->dl;
  return value->type_index == EK_DLTENSOR_PTR ? (const ek_dltensor *)value->v.ptr : NULL;
}

/* Memory from the pool of 'device'. 'alignment' is a power of two up to 4096, or 0 for 64. Contents
** are undefined. 0 or -1 (MemoryError, ValueError); '*out' owned. */
EK_API int ek_storage_new(size_t size, size_t alignment, ek_device device, ek_object **out);

/* A new contiguous tensor with its own storage. Negative dimensions and sizes beyond PTRDIFF_MAX
** are ValueErrors. Contents are undefined. 0 or -1; '*out' owned. */
EK_API int ek_tensor_new(const int64_t *shape, int32_t ndim, ek_dtype dtype, ek_device device,
                         ek_object **out);

/* A contiguous tensor over memory of someone else: a slice of a storage, another shape of a tensor,
** a mapped constant, a foreign buffer. 'owner' is retained and keeps 'data' alive; NULL when the
** caller promises that data outlives the tensor. For an owner that is a storage, the bytes are
** checked to lie inside it; for one that is a tensor, READ_ONLY is inherited. 0 or -1; '*out'
** owned. */
EK_API int ek_tensor_view(ek_object *owner, void *data, const int64_t *shape, int32_t ndim,
                          ek_dtype dtype, ek_device device, uint64_t flags, ek_object **out);

/* Imports a DLPack tensor without copying: an ek_managed_versioned if 'versioned', else an
** ek_managed. Takes the producer's tensor over and calls its deleter when the last reference goes,
** from whichever thread that is. Any strides are kept. On failure the caller still owns 'managed'.
** 0 or -1. */
EK_API int ek_tensor_from_dlpack(void *managed, int versioned, ek_object **out);

/* Exports a tensor without copying; the result retains it until the consumer calls the deleter. A
** read-only tensor cannot be exported in the legacy form (ValueError). 0 or -1. */
EK_API int ek_tensor_to_dlpack(ek_object *tensor, int versioned, void **managed);

/* Copies elements between CPU tensors of one shape and dtype, any strides, not overlapping. 0 or
** -1. */
EK_API int ek_tensor_copy(const ek_dltensor *from, const ek_dltensor *to);

/* 10. Modules ----------------------------------------------------------------------------------
**
** A module gives functions by name, and asks the modules it imports, in order, for those it does
** not have itself. A function found keeps its module, and so its code, alive. ek_module_get gives
** an owned function, or NULL in '*out' when there is none of that name: 0 or -1. ek_module_import
** retains 'imported'; a cycle is a ValueError. ek_module_names gives the names of this module
** alone, an owned array of strings; empty where the kind cannot list them (shared libraries). */
EK_API int ek_module_get(ek_object *module, const char *name, ek_object **out);
EK_API int ek_module_import(ek_object *module, ek_object *imported);
EK_API int ek_module_names(ek_object *module, ek_object **out);

/* Opens a shared library whose functions are exported as "__tvm_ffi_<name>" with the signature of
** ek_packed. The library is never unloaded before the last function from it dies. 0 or -1
** (OSError). */
EK_API int ek_library_load(const char *path, ek_object **out);

/* Loads a native code image. Everything is verified against 'size' before memory is mapped, so
** hostile bytes end as a LoadError; the code itself is trusted. 'bytes' are copied. Layout,
** little-endian:
**     0  "EKIMG\0\0\1"         16  u64 text size            32  u64 offset of the import table
**     8  u32 exports           24  u64 offset of exports    40  u64 total size
**    12  u32 imports           48  zeros up to 4096
**   4096  text: code and read-only data, position independent
** Export table: per export u32 name length, name, u64 offset in the text. Import table: per import
** u32 name length, name. The tables follow the text in this order without gaps but for zeros. In
** memory, a table of one 8-byte address per import follows the text on the next 4096-byte boundary,
** filled from the services below. The text is mapped readable and executable, the table readable. 0
** or -1. */
EK_API int ek_image_load(const void *bytes, size_t size, ek_object **out);

/* 11. Services to compiled code -------------------------------------------------------------------
**
** What a native code image may import. ek_service returns the address of one by its name, for code
** generators that place code themselves, or NULL. The table: the four below, memcpy, memmove,
** memset.
*/
typedef void (*ek_address)(void);
EK_API ek_address ek_service(const char *name);

/* Splits [0, n) into contiguous chunks of at least 'grain' (below 1 counts as 1), at most as many
** as there are threads, calls body(context, begin, end) for each and returns when all are done: 0,
** or -1 if any body returned other than 0, with the error of the lowest failing chunk set in the
** calling thread. Chunk i goes to the same worker each time, unless that one is late: then the
** caller does it. Runs inline, as one chunk, when n < 2 * grain, when there is one thread, inside
** another ek_parallel_for, or while another caller has the pool; it then returns what body returns.
** n <= 0 calls nothing. Bodies run concurrently. */
int ek_parallel_for(int (*body)(void *context, int64_t begin, int64_t end), void *context,
                    int64_t n, int64_t grain);

/* ek_error with a ready message. Returns -1. */
int ek_kernel_error(const char *kind, const char *message);

/* Scratch memory of this thread, aligned to 64 bytes, from a stack of blocks that are kept between
** calls. Free in reverse order of allocation, on the same thread. NULL without memory or for a
** negative size, with the error set. ek_workspace_free(NULL) does nothing. */
void *ek_workspace_alloc(int64_t nbytes);
void ek_workspace_free(void *memory);

/* Threads that share a parallel loop, the caller included. Initially EKIDEN_NUM_THREADS, else the
** number of physical cores this process may use. With n > 0, first sets the number; waits for a
** running loop to end, and must not be called inside one. Workers start with the first loop that
** needs them. */
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
} ek_pool_stats;

EK_API ek_pool_stats ek_pool_get_stats(void);

/* Gives what is kept for reuse back to the system, but for small blocks on the lists of other
** threads. */
EK_API void ek_pool_trim(void);

/* 13. Executables and the virtual machine ---------------------------------------------------------
**
** An executable is an immutable program: bytecode, constants, names of primitives, native code. Its
** file is its memory form; the format stands in ek_executable.c. Loading proves every operand in
** range, so that running checks nothing; anything wrong is a LoadError that names the section.
**
** ek_executable_load maps the file; it may be deleted while loaded, but must not be rewritten in
** place. ek_executable_from_bytes borrows 'bytes' until the executable and every constant taken
** from it have died, or copies them first if 'copy'. 0 or -1; '*out' owned. */
EK_API int ek_executable_load(const char *path, ek_object **out);
EK_API int ek_executable_from_bytes(const void *bytes, size_t size, int copy, ek_object **out);

/* What an executable is made of, for bindings and tools. ek_executable_count gives the number of
** items of a kind (-1 with an error for an unknown kind); ek_executable_item gives one as a value,
** owned. */
typedef enum ek_executable_part {
  EK_PART_GLOBAL = 0,      /* string: name of function i */
  EK_PART_PARAMS = 1,      /* array of strings: parameter names of function i */
  EK_PART_CONSTANT = 2,    /* read-only tensor, shares the executable's memory */
  EK_PART_PRIMITIVE = 3,   /* string: name of primitive i */
  EK_PART_CODE = 4,        /* bytes: int32 words of function i */
  EK_PART_REGISTERS = 5,   /* int: registers of function i */
  EK_PART_METADATA = 6,    /* one string: JSON */
  EK_PART_FILE = 7         /* one item, bytes: the whole file */
} ek_executable_part;

EK_API int64_t ek_executable_count(ek_object *executable, int32_t part);
EK_API int ek_executable_item(ek_object *executable, int32_t part, int64_t index, ek_value *out);

/* A virtual machine holds the registers and frames of one caller and is reused call after call: one
** caller at a time (a second one gets a RuntimeError). It retains the executable. 'function' is an
** index into the globals. Arguments are borrowed: tensors, ints, ADTs. Results are owned; a result
** that views a constant or an argument keeps that alive. 0 or -1. */
EK_API int ek_vm_new(ek_object *executable, ek_object **out);
EK_API int ek_vm_invoke(ek_object *vm, int32_t function, const ek_value *args, int32_t nargs,
                        ek_value *ret);

/* The instruction set, in order of opcode number, as the library was built with it. The strings are
** those of vm_opcodes.def, where the operand letters are explained. Lives as long as the
** process. */
typedef struct ek_opcode_info {
  const char *name;
  const char *mnemonic;
  const char *format;
  const char *meaning;
} ek_opcode_info;

EK_API const ek_opcode_info *ek_opcode_table(size_t *count);

/* The ABI, held by the compiler. --------------------------------------------------------------- */
static_assert(sizeof(void *) == 8, "pointers have 8 bytes");
static_assert(sizeof(ek_value) == 16 && offsetof(ek_value, v) == 8, "generated code stores at +8");
static_assert(sizeof(ek_object) == 24 && offsetof(ek_object, deleter) == 16, "object header");
static_assert(offsetof(ek_function, call) == 24, "function cell follows the header");
static_assert(offsetof(ek_string, bytes) == 24, "byte array follows the header");
static_assert(offsetof(ek_array, data) == 24, "sequence cell follows the header");
static_assert(offsetof(ek_error_object, kind) == 24, "error cell follows the header");
static_assert(offsetof(ek_tensor, dl) == 24 && sizeof(ek_dltensor) == 48, "DLTensor is next");
static_assert(sizeof(ek_managed) == 64 && sizeof(ek_managed_versioned) == 80, "DLPack");

#ifdef __cplusplus
}
#endif
#endif /* EKIDEN_RUNTIME_H_ */
