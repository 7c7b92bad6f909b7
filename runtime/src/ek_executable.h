/* An executable in memory: what the loader has read, for the verifier and the machine.
**
** It is made whole or not at all, and then shared by machines of any thread. What changes after
** that: linking, under 'lock', fills 'linked', places and makes constants, and attaches native
** code; it is done once, before the first run, so that runs read all of it without a lock. While
** machines run, only single words change, each atomically: a primitive's function
** (ek_executable_swap), a function's entry (ek_native_attach), counts of calls, limits and
** 'n_threads'. What such a store replaces lives as long as the executable does, as a run may be in
** it.
**
** Names and words with "in the file" point into the file's bytes, which 'file' keeps where they
** are. */
#ifndef EK_EXECUTABLE_H_
#define EK_EXECUTABLE_H_

#include "ek_internal.h"

struct ek_vm;

/* A function's native code, and what it needs of its executable. Native code reads the first four
** members: their layout, that of ek_value and ek_object, and the code's signature are what the
** prefix of the names of such code stands for. */
typedef struct ek_native {
  const int32_t *code;                     /* of the function */
  const int32_t *points;                   /* where the loop takes over; see ek_native.c */
  ek_object *const *constants;             /* of the executable */
  ek_object *const *linked;                /* its primitives */
  /* Goes on behind call 'point' (0: from the start); gives the next instruction for the loop, or,
  ** with an error, the one that failed and EK_NATIVE_FAILED more; NULL where that is not known. */
  const int32_t *(*run)(struct ek_vm *vm, ek_value *registers, const struct ek_native *native,
                        int32_t point);
  ek_object *owner;                        /* owned: keeps the code loaded */
} ek_native;

static_assert(offsetof(ek_native, linked) == 3 * sizeof(void *), "native code reads it there");

/* The names under which images export native code: this and the function's own. */
#define EK_NATIVE_PREFIX "vm2:"

enum { EK_NATIVE_FAILED = 1 };             /* bytes: instructions begin at multiples of four */

/* A name for sizes; "n + 1" has a definition, see ek_signature.h. */
typedef struct ek_symbol {
  ek_bytes name;
  int64_t most;                            /* that it may be */
  const int64_t *words;                    /* its definition */
  int32_t n_words;                         /* 0 where there is none */
} ek_symbol;

typedef struct ek_vm_function {
  ek_bytes name;
  const unsigned char *params;             /* in the file: n_params strings */
  const unsigned char *file_words;         /* in the file, as written */
  int32_t *code;                           /* verified words; jumps count words from their opcode */
  const int32_t *entry;                    /* atomic: where calls begin: 'code', or native points */
  ek_native *native;                       /* owned; NULL where there is none */
  const int32_t *places;                   /* device of each parameter; NULL: all on the host */
  const int64_t *type;                     /* of each parameter; NULL where none is declared */
  int32_t n_params;
  int32_t n_registers;
  int32_t n_words;
  uint32_t calls;                          /* atomic: counted while it is watched */
} ek_vm_function;

/* When a run is stopped; its members are atomic. */
typedef struct ek_limit {
  int64_t steps;                           /* instructions; 0: any number */
  int64_t nanoseconds;                     /* 0: any time */
} ek_limit;

/* A constant that is made of others by a primitive, once, when the executable is linked. */
typedef struct ek_derived {
  int32_t constant, primitive;
  int32_t n_inputs;
  const unsigned char *inputs;             /* in the file: numbers of constants */
} ek_derived;

/* A function that a primitive had, and that a run may still be in. */
typedef struct ek_retired {
  struct ek_retired *next;
  ek_object *function;                     /* owned */
} ek_retired;

typedef struct ek_executable {
  ek_object base;
  uint64_t number;                         /* from 1 on, no other's of this process */
  ek_object *file;                         /* owned: keeps data where it is, as constants do */
  int32_t *guarded;                        /* owned: places of ek_guard.h that its data lies in */
  int32_t n_guarded;
  const unsigned char *data;
  size_t size;
  ek_vm_function *functions;
  ek_object **constants;                   /* owned read-only tensors over the file */
  bool *is_absent;                         /* per constant: derived, but not in this variant */
  ek_derived *derived;                     /* in the order in which they are made */
  int32_t n_derived;
  ek_bytes *primitives;                    /* names, in the file */
  int32_t *words;                          /* the code of all functions */
  ek_bytes image;                          /* native code in the file; size 0 if absent */
  const ek_extern *externs;                /* that its library has, or NULL */
  ek_bytes device_code;                    /* kernels of devices, size 0 if absent */
  ek_bytes metadata;
  ek_symbol *symbols;                      /* that the types of parameters name */
  int64_t *types;                          /* words of these types and of definitions */
  int32_t n_functions;
  int32_t n_constants;
  int32_t n_primitives;
  int32_t n_devices;                       /* at least 1 */
  int32_t n_symbols;
  ek_device *devices;                      /* the first one is the host */
  int32_t *places;                         /* of constants, then primitives, then parameters */
  const int32_t *primitive_places;         /* in 'places': 1 + device, or 0 where any will do */
  int32_t max_args;                        /* the longest register list of any instruction */
  ek_mutex lock;                           /* guards linking */
  ek_object **linked;                      /* owned, one per primitive; NULL until linked */
  ek_object **given;                       /* owned: what linking takes first; NULL without any */
  ek_retired *retired;                     /* until the executable goes */
  bool *is_kernel;                         /* behind 'linked': whether the image has it */
  uint32_t hot_calls;                      /* from how many calls on a watched function is hot */
  ek_object *hot;                          /* owned function of its name, called once; or NULL */
  bool keeps_arguments;                    /* a run may leave references to them behind it */
  int32_t n_threads;                       /* atomic: of a run, at most; 0: as ek_num_threads */
  ek_limit limit;                          /* of a run, unless its machine has another */
} ek_executable;

/* Finds the functions of all primitives, once: in the executable's image, else in 'library' (a
** module, or NULL), else in the registry. After it has returned 0, only ek_executable_swap changes
** what 'linked' holds. 0 or -1. */
int ek_executable_link(ek_executable *executable, ek_object *library);

/* Gives the primitives of a name another function, which is retained and takes the same arguments.
** Machines may run meanwhile: each call takes the old one or the new one, and the old one lives as
** long as the executable does. Before linking it says what linking shall find. 0 or -1. */
int ek_executable_swap(ek_executable *executable, ek_bytes name, ek_object *function);

/* The function of a primitive of an executable that is linked, borrowed. */
static inline ek_object *ek_executable_linked(const ek_executable *executable, int32_t primitive) {
  return __atomic_load_n(&executable->linked[primitive], __ATOMIC_ACQUIRE);
}

/* The function of a primitive by its name, owned, linking first; NULL in '*out' when there is none
** of that name. 0 or -1. */
int ek_executable_kernel(ek_executable *executable, const char *name, ek_object **out);

/* Gives all functions that have none the native code that an image exports for them. Machines may
** run meanwhile: what they are in they go on with. The primitives are linked, and the lock is held.
** 0 or -1. */
int ek_native_attach(ek_executable *executable, ek_object *image);
void ek_native_free(ek_vm_function *function);

/* Counts the calls of functions without native code from now on: 'hot', a function object, is called
** with the name of one that has been called 'calls' times. To be done once, before machines run. 0 or
** -1. */
int ek_native_watch(ek_executable *executable, uint32_t calls, ek_object *hot);

/* Read the contents of a tensor of bytes; a TypeError that names 'what' for another value. Returns
** 0 or -1. */
int ek_tensor_bytes(const char *what, const ek_object *tensor, ek_bytes *out);

/* The executable whose file a tensor of bytes is: its memory, which is not written any more, is kept
** and not copied where it is aligned as constants are. 0 or -1; '*out' owned. */
int ek_executable_of_tensor(ek_object *tensor, ek_object **out);

/* Gives a late-bound constant its data, a tensor of its shape and dtype, which is retained or
** copied. Before linking, once for each; only then is the executable whole. 0 or -1. */
int ek_executable_bind(ek_executable *executable, int64_t index, const ek_value *value);

/* The name of parameter i of a function. */
ek_bytes ek_executable_param(const ek_vm_function *function, int32_t i);

/* The index of a function, or -1. */
int32_t ek_executable_find(const ek_executable *executable, const char *name);

/* The executable of a module of one, borrowed; NULL for another module. */
const ek_executable *ek_program_executable(ek_object *module);

/* A text of the metadata, as it is written there; empty where there is none. */
ek_bytes ek_metadata_text(ek_bytes metadata, const char *key);

/* A text of the list that a table of the metadata has under a key, by index; empty without one. */
ek_bytes ek_metadata_item(ek_bytes metadata, const char *table, const char *key, int32_t index);

/* The number behind that text in its list; 0 without one. */
int64_t ek_metadata_number(ek_bytes metadata, const char *table, const char *key, int32_t index);

/* 0, or -1 with a LoadError where a file that its data lies in was cut short: what a run has made of
** it counts for nothing. */
int ek_executable_check_files(const ek_executable *e);

/* A tensor of the bytes of an open file of a size that is not 0, which are mapped and guarded (see
** ek_guard.h). 0 or -1; '*out' owned. */
int ek_file_tensor(int file, size_t size, ek_object **out);

/* Writes the file anew: it appears whole or not at all. 0 or -1. */
int ek_executable_save(const ek_executable *executable, const char *path);

#endif /* EK_EXECUTABLE_H_ */
