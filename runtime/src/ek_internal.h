/* Internal declarations of the runtime, grouped by the file that defines them. Nothing here is
** exported.
*/
#ifndef EK_INTERNAL_H_
#define EK_INTERNAL_H_

/* EK_SMALL, for a program that only serves sessions, leaves out what these have no use for: the
** debugger of a virtual machine, engines of others, copies of devices beside their kernels. */

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ekiden/runtime.h"
#include "ek_platform.h"

/* The fast form of thread-local storage takes from a small store of the process, which is enough
** for one runtime but not for one in each of many libraries: the static library uses the other
** form. */
#ifdef EK_STATIC
#define EK_THREAD_LOCAL _Thread_local
#else
#define EK_THREAD_LOCAL _Thread_local __attribute__((tls_model("initial-exec")))
#endif

/* For functions that few programs call, or that calls enter once: made small, and not inlined. */
#define EK_COLD __attribute__((cold, noinline))

/* ek_object.c ---------------------------------------------------------------------------------- */

/* A zeroed object of 'size' bytes, header included, with one strong reference; NULL with a
** MemoryError set. Its deleter must give the memory back with ek_free(self) on
** EK_DELETE_MEMORY. */
void *ek_object_alloc(size_t size, int32_t type_index, void (*deleter)(void *self, int flags));

/* A deleter for objects that own nothing. */
void ek_object_plain_deleter(void *self, int flags);

/* Run drop(self, flags) of an object that owns others, or queue it if such a call is already
** running on this thread, so that a long chain of objects takes no C stack. 'drop' must be the same
** for all objects of one deleter. */
void ek_delete_flat(ek_object *self, int flags, void (*drop)(void *self, int flags));

void ek_values_release(ek_value *values, int64_t count);

static inline bool ek_is(const ek_object *object, int32_t type_index) {
  return object != NULL && object->type_index == type_index;
}

/* The bytes of a zero-terminated string. */
static inline ek_bytes ek_bytes_of(const char *text) {
  ek_bytes bytes = {text, strlen(text)};
  return bytes;
}

/* Return the number of bytes of a name that a message shows, at most 'most', as an int for
** "%.*s". */
static inline int ek_shown(ek_bytes name, size_t most) {
  return (int)(name.size < most ? name.size : most);
}

/* A C function that code calls by its symbol, as the linker has found it. NULL ends a table. */
typedef struct ek_extern {
  const char *name;
  const void *address;
} ek_extern;

/* ek_image.c: what this thread's loading of images looks for such functions in, before the process;
** who sets it puts back what was there. */
extern EK_THREAD_LOCAL const ek_extern *ek_externs;

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

/* Buffers from the pool of a CPU device; memory never moves between the pools of devices. */
enum { EK_CPU_DEVICES = 8 };
void *ek_device_buffer_alloc(int32_t device, size_t size, size_t *actual);
void ek_device_buffer_free(int32_t device, void *buffer, size_t actual);

/* Memory that will be needed at one moment: a block of the size of 'like' (from ek_alloc), or a
** buffer of 'size' bytes, is added to a list, until all of it goes back to what the pool keeps.
** Nothing happens without memory. */
typedef struct ek_spare ek_spare;
void ek_spare_block(ek_spare **spares, const void *like);
void ek_spare_buffer(ek_spare **spares, int32_t device, size_t size);
void ek_spares_give_back(ek_spare *spares);

/* ek_alloc, and a MemoryError when it fails. */
void *ek_alloc_or_error(size_t size);

/* Sets a MemoryError, or the MemoryLimitError, naming how much was asked for. Returns -1. */
int ek_error_memory(size_t size);

/* The most bytes that may be held from the system, 0 for no limit; then sets it where 'wanted' is
** given. */
uint64_t ek_memory_limit(const uint64_t *wanted);

/* The peak is what is in use, from now on. */
void ek_memory_reset_peak(void);

/* ek_arena.c -----------------------------------------------------------------------------------
**
** Storages that one owner keeps between its runs. */
typedef struct ek_arenas {
  struct ek_arenas *next, *previous; /* of all that are known */
  ek_object *kept[4];                /* owned storages, or NULL */
  uint32_t busy;                     /* atomic: 1 while a run, or a reclaim, has them */
  bool held;                         /* by the running owner */
} ek_arenas;

/* Makes zeroed arenas known, and forgets them. */
void ek_arenas_add(ek_arenas *arenas);
void ek_arenas_remove(ek_arenas *arenas);

/* A storage of at least 'size' bytes, owned; once it is referred to by 'arenas' alone, a later
** request takes it again. One that is too small is given up for a larger one. 0 or -1. */
int ek_arenas_take(ek_arenas *arenas, size_t size, size_t alignment, ek_device device,
                   ek_object **out);

/* A run has ended: others may reclaim. */
void ek_arenas_rest(ek_arenas *arenas);

/* Gives back the storages of all that rest. */
void ek_arenas_reclaim(void);

/* ek_services.c --------------------------------------------------------------------------------
**
** A first workspace for a thread that is about to start: made by the thread that starts it (NULL
** without memory), then adopted by the new one, or discarded if it does not come to be. */
void *ek_workspace_prepare(void);
void ek_workspace_adopt(void *prepared);
void ek_workspace_discard(void *prepared);
void ek_workspace_drop(void); /* all chunks of this thread */

/* Memory that someone lends to the workspace of a thread for a while: what fits is taken from
** there, the rest from chunks. 'top' bytes are taken. The size of a part is a multiple of the unit. */
typedef struct ek_scratch {
  char *begin;
  size_t size, top;
} ek_scratch;

enum { EK_SCRATCH_UNIT = 64 };

/* Lends memory to this thread; gives what was lent before. Nothing may be taken from it then. */
ek_scratch ek_workspace_lend(ek_scratch lent);
/* Part 'index' of 'count' of what is not taken. */
ek_scratch ek_scratch_part(ek_scratch whole, int64_t index, int64_t count);

/* Make the n-th allocation from now fail once (1 is the next one); 0 turns that off. Only in builds
** with fault injection. */
void ek_hard_fail_at(int64_t n);
/* Return the number of blocks and buffers in use. Only in builds with fault injection. */
int64_t ek_hard_live(void);

/* ek_function.c -------------------------------------------------------------------------------- */

/* A function object whose code is called directly and gets the object as 'self', which it must
** ignore. 'owner' is retained for as long as the function lives. */
int ek_function_bind(ek_packed code, ek_object *owner, ek_object **out);

/* ek_type.c ------------------------------------------------------------------------------------ */

/* "int", "a string", "myns.MyExpr": what a value is, for messages. Lives as long as the process. */
const char *ek_value_type_name(const ek_value *value);

/* A value as something may keep it: owned, text and bytes that were lent copied. TypeError for what
** can only be an argument; 'doing' begins the message. */
int ek_value_own(const char *doing, const ek_value *value, ek_value *out);

/* Forgets every type and function that was registered: when the process ends. */
void ek_types_clear(void);
void ek_libraries_clear(void);
void ek_registry_clear(void);

/* ek_registry.c, and files with functions that it registers ------------------------------------- */

typedef struct ek_builtin {
  const char *name;
  ek_packed call;
} ek_builtin;

/* ek_sequence.c -------------------------------------------------------------------------------- */

enum { EK_SEQUENCE_BUILTINS = 7 };
extern const ek_builtin ek_sequence_builtins[EK_SEQUENCE_BUILTINS];

/* ek_array.c ----------------------------------------------------------------------------------- */

/* An array of 'size' NONEs, to be filled before it is shared; NULL with the error set. */
ek_array *ek_array_alloc(int64_t size);

/* Allocate an ADT value with room for 'size' fields. */
ek_adt *ek_adt_alloc(int32_t tag, int32_t size);

/* An owned array of owned strings. */
int ek_array_of_names(const char *const *names, int64_t size, ek_object **out);

/* ek_map.c ------------------------------------------------------------------------------------- */

int ek_map_new(const ek_value *items, int64_t n, ek_object **out);

/* The hash and equality of keys: text, bytes and numbers by value, objects by identity. */
uint64_t ek_key_hash(const ek_value *key);
bool ek_key_equal(const ek_value *a, const ek_value *b);

/* Mix a word into a hash: one step of the hash function of the whole runtime. */
static inline uint64_t ek_hash_mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
  return hash ^ hash >> 32;
}

uint64_t ek_hash_bytes(const void *data, size_t size);

/* ek_tensor.c ---------------------------------------------------------------------------------- */

/* Bytes of a contiguous tensor; ValueError for negative dimensions, bad dtypes and overflow. */
int ek_shape_nbytes(const int64_t *shape, int32_t ndim, ek_dtype dtype, size_t *out);

/* An object with room for 'ndim' dimensions, shape and strides set up, all else zero. */
ek_tensor *ek_tensor_alloc(const int64_t *shape, int32_t ndim, ek_dtype dtype, ek_device device);

/* Whether this copy of the runtime made the object: what lies behind its DLTensor is ours. */
bool ek_tensor_is_own(const ek_object *object);
bool ek_storage_is_own(const ek_object *object);

/* A copy of a tensor on a device, contiguous, owned. 0 or -1. */
int ek_tensor_copied(const ek_dltensor *from, ek_device device, ek_object **out);

/* A storage over memory of the host that somebody else frees, when nothing refers to it. 0 or -1. */
int ek_storage_lent(void *data, size_t size, ek_object **out);

/* ek_device.c ---------------------------------------------------------------------------------- */

static inline bool ek_device_same(ek_device a, ek_device b) {
  return a.type == b.type && a.id == b.id;
}

/* Whether it is the host itself, not another CPU device. */
static inline bool ek_device_is_host(ek_device device) {
  return device.type == EK_CPU && device.id == 0;
}

/* "cpu(1)": what a device is called in messages. */
typedef struct ek_device_name {
  char text[32];
} ek_device_name;
ek_device_name ek_device_describe(ek_device device);

/* The table of a kind of device other than the CPU, whose driver is loaded if there is one; NULL with
** an error when there is none. */
const ek_device_table *ek_device_table_of(ek_device device, const char *doing);

/* ek_device_queue.c ----------------------------------------------------------------------------- */

enum { EK_DEVICE_MAX_ARGS = 64 };          /* of a kernel */

/* Bytes of memory: those from 'begin' on and before 'end'. */
typedef struct ek_memory_range {
  uintptr_t begin, end;
} ek_memory_range;

/* A copy from memory of a CPU into memory of a device that is new to its user, on a stream of its
** own: kernels that are queued go on meanwhile. Done when it returns; 0 or -1. */
int ek_device_upload(const void *from, ek_device host, void *to, ek_device device, size_t size);

/* A copy from memory of a device into memory of a CPU; where launches are noted, when the last one
** that touched what is read has run. Done when it returns; 0 or -1. */
int ek_device_fetch(const void *from, ek_device device, void *to, ek_device host, size_t size);

/* Start to record the launches on a device, so that copies to the host wait only for the last
** launch that touches the memory. */
void ek_device_note_launches(ek_device device);

/* A kernel was launched on the device's own stream, with tensors among its arguments. 0 or -1. */
int ek_device_launched(const ek_device_table *table, ek_device device, const ek_value *args,
                       int32_t nargs);

/* ek_device_pool.c ------------------------------------------------------------------------------ */

/* Memory of a device, perhaps with work on it still queued: the device's own stream may use it at
** once, others when ek_device_memory_ready has let 'stream' wait. Freeing waits for nothing. */
int ek_device_memory(const ek_device_table *table, ek_device device, size_t size, size_t alignment,
                     void **out);
void ek_device_memory_free(const ek_device_table *table, ek_device device, void *data, size_t size);
int ek_device_memory_ready(const ek_device_table *table, ek_device device, const void *data,
                           void *stream);

/* Gives back what is kept. */
void ek_device_pool_trim(void);

/* Memory of a device that lives as long as a call of a kernel: 'device' is its type and number. */
void *ek_device_workspace_alloc(int64_t type, int64_t id, int64_t nbytes);
void ek_device_workspace_free(int64_t type, int64_t id, void *memory, int64_t nbytes);

enum { EK_DEVICE_BUILTINS = 4 };
extern const ek_builtin ek_device_builtins[EK_DEVICE_BUILTINS];

/* libekiden_<kind>.so, in EKIDEN_DRIVERS, beside the runtime, or where the system looks; or NULL. */
void *ek_driver_library(const char *kind);

/* ek_engine.c ----------------------------------------------------------------------------------
**
** What runs the region 'name' in the engine 'kind', by its library; 'text' is its code in base64. 0
** or -1 (LoadError); '*out' owned. */
int ek_engine_link(const char *kind, const char *name, ek_bytes text, ek_object **out);

/* ek_engine_check.c: wraps the function that runs a region, whose last 'n_outputs' arguments it
** writes: an element that it leaves unwritten is a RunError of its runs. 0 or -1; on success the
** wrapper owns what '*function' was. */
int ek_engine_check(ek_bytes engine, const char *symbol, int32_t n_outputs, ek_object **function);

enum { EK_ENGINE_BUILTINS = 2 };
extern const ek_builtin ek_engine_builtins[EK_ENGINE_BUILTINS];

/* ek_device_code.c -----------------------------------------------------------------------------
**
** A module of kernels of devices, from bytes that docs/artifact-format.md describes; 'owner' keeps
** them where they are, without one they are copied. Each is built when it is first called. 0 or -1 (LoadError). */
int ek_device_code_load(const void *bytes, size_t size, ek_object *owner, ek_object **out);

/* ek_library.c --------------------------------------------------------------------------------- */

/* Load a shared library as a module (ek_module_load of ".so"). */
int ek_library_load(const char *path, ek_object **out);

/* ek_program.c --------------------------------------------------------------------------------- */

/* A module that gives the functions of an executable, which is retained. */
int ek_program_new(ek_object *executable, ek_object **out);

/* ek_vm_debug.c --------------------------------------------------------------------------------
**
** A module of functions over a virtual machine, which is retained: it is started, stepped, looked
** into, profiled, saved and resumed. Also the global function "ek.vm.module". 0 or -1. */
int ek_vm_module(ek_object *vm, ek_object **out);

/* ek_graph.c ----------------------------------------------------------------------------------- */

/* A module with TVM's functions of a graph executor over the 'main' of an executable, which must be
** a straight line: kind "GraphExecutor". 'library', a module or NULL, has kernels that the
** executable has not. */
int ek_graph_new(ek_object *executable, ek_object *library, ek_object **out);

/* ek_module.c ---------------------------------------------------------------------------------- */

/* The 'self' of a module of this kind, or NULL. */
void *ek_module_self(ek_object *module, const ek_module_kind *kind);

/* Save a module by the function of its kind. */
int ek_module_save(ek_object *module, const char *path);

/* ek_pool.c, ek_services.c: services that other files of the runtime use too. */
int ek_parallel_for(int (*body)(void *context, int64_t begin, int64_t end), void *context,
                    int64_t n, int64_t grain);
int ek_kernel_error(const char *kind, const char *message);
int ek_kernel_error_values(const char *kind, const char *format, const int64_t *values);
void *ek_workspace_alloc(int64_t nbytes);
void ek_workspace_free(void *memory);
int ek_call_packed(ek_call_site *site, const ek_value *args, int32_t nargs, ek_value *ret);
void ek_value_drop(ek_value *value);

enum { EK_MAX_THREADS = 256 };

/* Takes the pool for the calling thread, whose loops run inline from now on: how many workers there
** are, or 0 when it is another's, or the caller is inside a loop. A worker that is called runs
** body(context, its number, that + 1), which gives 0; the caller's number is 0. */
int32_t ek_pool_hold(int (*body)(void *context, int64_t begin, int64_t end), void *context);

/* Calls a worker that is idle; false when there is none, or when its core is another caller's. Only
** between ek_pool_hold and ek_pool_release, by any of their threads. */
bool ek_pool_call(void);

/* Waits until no worker runs what it was called for. Then the holder's loops use all workers
** ('for_loops'), until it unsettles: before that it calls none. */
void ek_pool_settle(bool for_loops);
void ek_pool_unsettle(void);
void ek_pool_release(void);

/* Whether a loop of this thread was large enough for several threads, since this was last asked. */
bool ek_pool_was_divisible(void);

/* Lets loops of this thread have at most so many threads; 0: as ek_num_threads says. Gives what was
** before. */
int32_t ek_pool_limit(int32_t most);

/* Lets the pool have at least so many threads, for those who ask for that many. 0 or -1. */
int ek_pool_ask(int32_t n);

/* The number of threads, and the processors they keep to: n of them, or none for the default. */
int ek_pool_config(int threads, const int *cpus, int n);

#endif /* EK_INTERNAL_H_ */
