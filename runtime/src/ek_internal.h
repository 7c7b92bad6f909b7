/* What the files of the runtime share with each other and with nobody else.
**
** One header for all: a declaration stands under the file that defines it. Nothing here is
** exported.
*/
#ifndef EK_INTERNAL_H_
#define EK_INTERNAL_H_

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ekiden/runtime.h"
#include "ek_platform.h"

#define EK_THREAD_LOCAL _Thread_local __attribute__((tls_model("initial-exec")))

/* ek_object.c ---------------------------------------------------------------------------------- */

#define EK_STRONG_MASK UINT64_C(0xffffffff)
#define EK_WEAK_ONE (UINT64_C(1) << 32)

/* The rare half of a release: 'before' is what 'refs' was, and no strong reference is left. */
void ek_object_last_release(ek_object *object, uint64_t before);

/* As ek_object_retain and ek_object_release, for objects that are not NULL. A new reference needs
** no ordering; whoever deletes must see all that happened before each release. */
static inline void ek_retain(ek_object *object) {
  __atomic_fetch_add(&object->refs, 1, __ATOMIC_RELAXED);
}

static inline void ek_release(ek_object *object) {
  uint64_t before = __atomic_fetch_sub(&object->refs, 1, __ATOMIC_RELEASE);
  if ((before & EK_STRONG_MASK) == 1) ek_object_last_release(object, before);
}

/* Weak references keep the memory, not the content. ek_weak_lock returns a strong reference, or
** NULL when the content is gone. */
void ek_weak_retain(ek_object *object);
void ek_weak_release(ek_object *object);
ek_object *ek_weak_lock(ek_object *object);

/* A zeroed object of 'size' bytes, header included, with one strong reference; NULL with a
** MemoryError set. Its deleter must give the memory back with ek_free(self) on EK_DELETE_MEMORY. */
void *ek_object_new(size_t size, int32_t type_index, void (*deleter)(void *self, int flags));

/* A deleter for objects that own nothing. */
void ek_object_plain_deleter(void *self, int flags);

static inline bool ek_is(const ek_object *object, int32_t type_index) {
  return object != NULL && object->type_index == type_index;
}

/* The bytes of a zero-terminated string. */
static inline ek_bytes ek_bytes_of(const char *text) {
  ek_bytes bytes = {text, strlen(text)};
  return bytes;
}

/* ek_alloc.c -----------------------------------------------------------------------------------
**
** Two shapes of one allocator. Blocks are for objects: aligned to 16, any size, kept on lists of
** the thread that freed them. Buffers are for tensor data: aligned to 64, and to 4096 from that
** size up, freed with the size they were given. Both return NULL without memory and set no
** error. */
void *ek_alloc(size_t size);
void ek_free(void *block);
void *ek_buffer_alloc(size_t size, size_t *actual);
void ek_buffer_free(void *buffer, size_t actual);

/* Adds one free block of the size of 'like' (from ek_alloc), or one free buffer of 'size' bytes, to
** what the pool keeps. Nothing happens without memory. */
void ek_alloc_reserve(const void *like);
void ek_buffer_reserve(size_t size);

/* ek_alloc, and a MemoryError when it fails. */
void *ek_alloc_or_error(size_t size);

/* ek_services.c --------------------------------------------------------------------------------
**
** A first workspace for a thread that is about to start: made by the thread that starts it (NULL
** without memory), then adopted by the new one, or discarded if it does not come to be. */
void *ek_workspace_prepare(void);
void ek_workspace_adopt(void *prepared);
void ek_workspace_discard(void *prepared);

#ifdef EK_HARD_TEST
/* Makes the n-th allocation from now fail (1 is the next one), once; 0 turns that off. */
void ek_hard_fail_at(int64_t n);
/* Blocks and buffers that are in use. */
int64_t ek_hard_live(void);
#endif

/* ek_error.c ----------------------------------------------------------------------------------- */

/* Sets a MemoryError naming how much was asked for. Returns -1. */
int ek_error_memory(size_t size);

/* ek_function.c -------------------------------------------------------------------------------- */

/* A function object whose code is called directly and gets the object as 'self', which it must
** ignore. 'owner' is retained for as long as the function lives. */
int ek_function_bind(ek_packed code, ek_object *owner, ek_object **out);

/* ek_array.c ----------------------------------------------------------------------------------- */

/* An array of 'size' NONEs, to be filled before it is shared; NULL with the error set. */
ek_array *ek_array_alloc(int64_t size);

/* An owned array of owned strings. */
int ek_array_of_names(const char *const *names, int64_t size, ek_object **out);

/* ek_tensor.c ---------------------------------------------------------------------------------- */

/* Bytes of a contiguous tensor; ValueError for negative dimensions, bad dtypes and overflow. */
int ek_shape_nbytes(const int64_t *shape, int32_t ndim, ek_dtype dtype, size_t *out);

/* An object with room for 'ndim' dimensions, shape and strides set up, all else zero. */
ek_tensor *ek_tensor_alloc(const int64_t *shape, int32_t ndim, ek_dtype dtype, ek_device device);

/* ek_module.c ----------------------------------------------------------------------------------
**
** A kind of module is a table of functions. 'get' leaves '*out' NULL when there is no such name. */
typedef struct ek_module ek_module;

typedef struct ek_module_kind {
  const char *name;
  int (*get)(ek_module *module, const char *name, ek_object **out);
  int (*names)(ek_module *module, ek_object **out);
  void (*destroy)(ek_module *module);
} ek_module_kind;

struct ek_module {
  ek_object base;
  const ek_module_kind *kind;
  void *self;                              /* the kind's own, freed by its destroy */
  ek_object **imports;                     /* owned modules, guarded by the lock of ek_module.c */
  int32_t import_count;
};

/* On failure 'self' is still the caller's. */
int ek_module_new(const ek_module_kind *kind, void *self, ek_object **out);

#endif /* EK_INTERNAL_H_ */
