/* Global functions by name: an array sorted by name, under one lock.
**
** Lookup is a binary search, and registration moves the later entries: there are some hundred
** functions, and callers cache what they look up. No foreign code runs under the lock: replaced
** functions are released after unlocking, since their deleters may call the registry. */
#include "ek_cpu.h"
#include "ek_crc32.h"
#include "ek_guard.h"
#include "ek_image.h"
#include "ek_vm.h"

typedef struct entry {
  char *name;                  /* owned */
  ek_object *function;         /* owned */
} entry;

static ek_mutex lock = EK_MUTEX_INIT;
static entry *entries;
static int64_t entry_count, entry_capacity;
static ek_once builtins_once = EK_ONCE_INIT;

/* Rarely used services without a function of their own in the header
** ------------------------------- */

/* Arguments have exactly these types; for those who call by name from other languages. */
static int expect_args(const char *name, const ek_value *args, int32_t nargs, int32_t n,
                       const int32_t *types) {
  bool fits = nargs == n;
  for (int32_t i = 0; fits && i < n; i++) fits = args[i].type_index == types[i];
  return fits ? 0 : ek_error("TypeError", "%s: wrong arguments, see runtime.h", name);
}

static int allocation_count(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self;
  (void)args;
  if (nargs != 0) {
    return ek_error("TypeError", "ek.runtime.allocation_count: expected no argument, got %d",
                    nargs);
  }
  *ret = ek_value_int((int64_t)ek_pool_get_stats().system_allocations);
  return 0;
}

static int num_threads(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self;
  if (nargs > 1 || (nargs == 1 && args[0].type_index != EK_INT)) {
    return ek_error("TypeError", "ek.runtime.num_threads: expected one int or no argument");
  }
  int64_t n = nargs == 0 ? 0 : args[0].v.i64;
  if (n < 0 || n > EK_MAX_THREADS) {
    return ek_error("ValueError", "num_threads: a number from 1 to %d expected, got %lld",
                    EK_MAX_THREADS, (long long)n);
  }
  int known = ek_num_threads((int)n);
  if (known < 0) return -1;
  *ret = ek_value_int(known);
  return 0;
}

static int config_threadpool(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  static const char name[] = "ek.runtime.config_threadpool";
  static const int32_t types[] = {EK_INT, EK_ARRAY};
  int cpus[EK_MAX_THREADS];
  (void)self;
  (void)ret;
  if (expect_args(name, args, nargs, 2, types) != 0) return -1;
  const ek_array *array = (const ek_array *)(const void *)args[1].v.obj;
  if (array->size > EK_MAX_THREADS || args[0].v.i64 < 0 || args[0].v.i64 > INT32_MAX) {
    return ek_error("ValueError", "%s: at most %d processors and no negative number of threads "
                    "expected", name, EK_MAX_THREADS);
  }
  for (int64_t i = 0; i < array->size; i++) {
    const ek_value *cpu = &array->data[i];
    if (cpu->type_index != EK_INT || cpu->v.i64 < 0 || cpu->v.i64 > INT32_MAX) {
      return ek_error("ValueError", "%s: processor %lld: a number >= 0 expected, got %s", name,
                      (long long)i, ek_value_type_name(cpu));
    }
    cpus[i] = (int)cpu->v.i64;
  }
  return ek_pool_config((int)args[0].v.i64, cpus, (int)array->size);
}

static int pool_trim(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self;
  (void)args;
  (void)nargs;
  (void)ret;
  ek_pool_trim();
  return 0;
}

/* (name of an ability) -> whether the processor has it, and the system its registers */
static int cpu_has(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  ek_bytes name;
  (void)self;
  if (nargs != 1 || !ek_string_borrow(&args[0], &name)) {
    return ek_error("TypeError", "ek.runtime.cpu_has: the name of an ability expected");
  }
  *ret = ek_value_int(ek_cpu_has(name.data, name.size));
  return 0;
}

#ifndef EK_SMALL /* who writes files is no server */
/* (a tensor of bytes[, the checksum of those before them]) -> their checksum, as files have it. */
static int crc32_of(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  static const int32_t types[] = {EK_TENSOR, EK_INT};
  ek_bytes bytes;
  (void)self;
  if (expect_args("ek.runtime.crc32", args, nargs, nargs == 1 ? 1 : 2, types) != 0 ||
      ek_tensor_bytes("ek.runtime.crc32", args[0].v.obj, &bytes) != 0) {
    return -1;
  }
  uint32_t before = nargs == 1 ? 0 : (uint32_t)args[1].v.i64;
  *ret = ek_value_int((int64_t)ek_crc32_next(before, bytes.data, bytes.size));
  return 0;
}

#ifdef EK_GUARDS
/* Whether files that executables lie in are guarded from now on (see ek_guard.h). */
static int guard_files(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  static const int32_t types[] = {EK_INT};
  (void)self;
  (void)ret;
  if (expect_args("ek.files.guard", args, nargs, 1, types) != 0) return -1;
  ek_guard_files(args[0].v.i64 != 0);
  return 0;
}

/* (an open file, its size, which is not 0) -> a tensor of its bytes, which are mapped and guarded. */
static int map_file(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  static const int32_t types[] = {EK_INT, EK_INT};
  ek_object *object;
  (void)self;
  if (expect_args("ek.files.map", args, nargs, 2, types) != 0) return -1;
  if (args[0].v.i64 < 0 || args[0].v.i64 > INT32_MAX || args[1].v.i64 <= 0) {
    return ek_error("ValueError", "ek.files.map: an open file and a size above 0 expected");
  }
  if (ek_file_tensor((int)args[0].v.i64, (size_t)args[1].v.i64, &object) != 0) return -1;
  *ret = ek_value_object(object);
  return 0;
}

/* Such a tensor -> whether something that was read had gone from the file. */
static int is_file_cut(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  static const int32_t types[] = {EK_TENSOR};
  ek_bytes bytes;
  (void)self;
  if (expect_args("ek.files.is_cut", args, nargs, 1, types) != 0 ||
      ek_tensor_bytes("ek.files.is_cut", args[0].v.obj, &bytes) != 0) {
    return -1;
  }
  int place = ek_guard_at(bytes.data);
  *ret = ek_value_int(place >= 0 && ek_guard_has_seen(place));
  return 0;
}

/* (an address, bytes): release the guarded pages among them from memory (MADV_DONTNEED). */
static int drop_file(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  static const int32_t types[] = {EK_INT, EK_INT};
  (void)self;
  (void)ret;
  if (expect_args("ek.files.drop", args, nargs, 2, types) != 0) return -1;
  ek_guard_drop((const void *)(uintptr_t)args[0].v.i64, (size_t)args[1].v.i64);
  return 0;
}
#endif

/* An executable -> a tensor of the bytes of its file, which are its memory. */
static int executable_file(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  static const int32_t types[] = {EK_EXECUTABLE};
  ek_object *view;
  (void)self;
  if (expect_args("ek.executable.file", args, nargs, 1, types) != 0) return -1;
  const ek_executable *e = (const ek_executable *)(const void *)args[0].v.obj;
  const int64_t shape[] = {(int64_t)e->size};
  /* The cast drops const: READ_ONLY says it again. */
  if (ek_tensor_view(e->file, (void *)(uintptr_t)e->data, shape, 1, (ek_dtype){EK_DTYPE_UINT, 8, 1},
                     (ek_device){EK_CPU, 0}, EK_DLPACK_READ_ONLY, &view) != 0) {
    return -1;
  }
  *ret = ek_value_object(view);
  return 0;
}

/* A tensor of bytes -> the module of the code image that they are, to be handed on. */
static int hold_image(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  static const int32_t types[] = {EK_TENSOR};
  ek_bytes bytes;
  ek_object *module = NULL;
  (void)self;
  if (expect_args("ek.image.hold", args, nargs, 1, types) != 0 ||
      ek_tensor_bytes("ek.image.hold", args[0].v.obj, &bytes) != 0 ||
      ek_image_hold(bytes.data, bytes.size, &module) != 0) {
    return -1;
  }
  *ret = ek_value_object(module);
  return 0;
}
#endif

static int memory_limit(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self;
  if (nargs > 1 || (nargs == 1 && (args[0].type_index != EK_INT || args[0].v.i64 < 0))) {
    return ek_error("TypeError", "ek.runtime.memory_limit: expected one int >= 0 or no argument");
  }
  uint64_t limit = nargs == 0 ? 0 : (uint64_t)args[0].v.i64;
  *ret = ek_value_int((int64_t)ek_memory_limit(nargs == 0 ? NULL : &limit));
  return 0;
}

static int reset_peak(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self;
  (void)ret;
  if (expect_args("ek.runtime.reset_peak", args, nargs, 0, NULL) != 0) return -1;
  ek_memory_reset_peak();
  return 0;
}

static int save_module(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  ek_bytes path;
  char text[4096];
  (void)self;
  (void)ret;
  if (nargs != 2 || !ek_string_borrow(&args[1], &path) || path.size >= sizeof text ||
      args[0].type_index != EK_MODULE) {
    return ek_error("TypeError", "ek.module.save: a module and a path expected");
  }
  memcpy(text, path.data, path.size);
  text[path.size] = '\0';
  return ek_module_save(args[0].v.obj, text);
}

static int executable_module(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  static const int32_t types[] = {EK_EXECUTABLE};
  ek_object *module;
  (void)self;
  if (expect_args("ek.executable.module", args, nargs, 1, types) != 0) return -1;
  if (ek_program_new(args[0].v.obj, &module) != 0) return -1;
  *ret = ek_value_object(module);
  return 0;
}

#ifndef EK_SMALL /* a program without a machine of its own has no use for the debugger */
static int vm_module(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  static const int32_t types[] = {EK_VM};
  ek_object *module;
  (void)self;
  if (expect_args("ek.vm.module", args, nargs, 1, types) != 0) return -1;
  if (ek_vm_module(args[0].v.obj, &module) != 0) return -1;
  *ret = ek_value_object(module);
  return 0;
}
#endif

/* A value for a reference: what a register can hold. 0 or -1. */
static int own_value(const char *name, const ek_value *value, ek_value *to) {
  const ek_dltensor *tensor = ek_value_tensor(value);
  int32_t type = value->type_index;
  if (tensor != NULL) return ek_vm_own_tensor(NULL, value, tensor, false, to);
  if ((type < EK_INT || type > EK_FLOAT) && type < EK_OBJECT) {
    return ek_error("TypeError", "%s: a tensor, a number or an object expected, got %s", name,
                    ek_value_type_name(value));
  }
  *to = *value;
  ek_value_retain(to);
  return 0;
}

static int reference_new(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  ek_value value;
  (void)self;
  if (nargs != 1) return ek_error("TypeError", "ek.reference.new: expected 1 argument");
  if (own_value("ek.reference.new", &args[0], &value) != 0) return -1;
  ek_object *object = ek_vm_reference(value);
  if (object == NULL) {
    ek_value_release(&value);
    return -1;
  }
  *ret = ek_value_object(object);
  return 0;
}

static int reference_read(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  static const int32_t types[] = {EK_REFERENCE};
  (void)self;
  if (expect_args("ek.reference.read", args, nargs, 1, types) != 0) return -1;
  *ret = ek_vm_reference_read(args[0].v.obj);
  return 0;
}

static int reference_write(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  ek_value value;
  (void)self;
  (void)ret;
  if (nargs != 2 || args[0].type_index != EK_REFERENCE) {
    return ek_error("TypeError", "ek.reference.write: a reference and a value expected");
  }
  if (own_value("ek.reference.write", &args[1], &value) != 0) return -1;
  ek_vm_reference_write(args[0].v.obj, value, 0);
  return 0;
}

/* (executable, module whose exports are native code of its functions) */
static int attach_native(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  static const int32_t types[] = {EK_EXECUTABLE, EK_MODULE};
  (void)self;
  (void)ret;
  if (expect_args("ek.executable.attach", args, nargs, 2, types) != 0) return -1;
  ek_executable *executable = (ek_executable *)(void *)args[0].v.obj;
  if (ek_executable_link(executable, NULL) != 0) return -1;
  ek_mutex_lock(&executable->lock);
  int code = ek_native_attach(executable, args[1].v.obj);
  ek_mutex_unlock(&executable->lock);
  return code;
}

/* (executable), or (executable, n): how many threads a run of it has at most, after it was set to n;
** 0 where that is the process's number. */
static int executable_threads(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  static const int32_t types[] = {EK_EXECUTABLE, EK_INT};
  (void)self;
  if (expect_args("ek.executable.num_threads", args, nargs, nargs == 1 ? 1 : 2, types) != 0) return -1;
  ek_executable *e = (ek_executable *)(void *)args[0].v.obj;
  if (nargs == 2) {
    int64_t n = args[1].v.i64;
    if (n < 0 || n > EK_MAX_THREADS) {
      return ek_error("ValueError", "num_threads: a number from 1 to %d expected, got %lld",
                      EK_MAX_THREADS, (long long)n);
    }
    if (ek_pool_ask((int32_t)n) != 0) return -1;
    __atomic_store_n(&e->n_threads, (int32_t)n, __ATOMIC_RELAXED);
  }
  *ret = ek_value_int(__atomic_load_n(&e->n_threads, __ATOMIC_RELAXED));
  return 0;
}

static int set_limit(const char *name, const ek_value *args, ek_limit *limit) {
  if (args[1].v.i64 < 0 || args[2].v.i64 < 0) {
    return ek_error("ValueError", "%s: numbers of steps and nanoseconds >= 0 expected", name);
  }
  __atomic_store_n(&limit->steps, args[1].v.i64, __ATOMIC_RELAXED);
  __atomic_store_n(&limit->nanoseconds, args[2].v.i64, __ATOMIC_RELAXED);
  return 0;
}

/* (executable, steps, nanoseconds): the limit of a run from now on; 0 for none. */
static int executable_limit(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  static const int32_t types[] = {EK_EXECUTABLE, EK_INT, EK_INT};
  (void)self;
  (void)ret;
  if (expect_args("ek.executable.limit", args, nargs, 3, types) != 0) return -1;
  return set_limit("ek.executable.limit", args, &((ek_executable *)(void *)args[0].v.obj)->limit);
}

/* (virtual machine, steps, nanoseconds): the same of its runs; 0 for what its executable has. */
static int vm_limit(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  static const int32_t types[] = {EK_VM, EK_INT, EK_INT};
  (void)self;
  (void)ret;
  if (expect_args("ek.vm.limit", args, nargs, 3, types) != 0) return -1;
  return set_limit("ek.vm.limit", args, &((ek_vm *)(void *)args[0].v.obj)->limit);
}

enum { MOST_PLACES = 256 };

/* (virtual machine), or with it pairs of an instruction's place and a tensor: where results of its
** next run are to lie; the tensors stay until those are gone. */
static int vm_places(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  ek_vm_place places[MOST_PLACES];
  int32_t n = (nargs - 1) / 2;
  (void)self;
  (void)ret;
  bool fits = nargs % 2 == 1 && n <= MOST_PLACES && args[0].type_index == EK_VM;
  for (int32_t i = 0; fits && i < n; i++) {
    const ek_dltensor *tensor = ek_value_tensor(&args[2 + 2 * i]);
    fits = args[1 + 2 * i].type_index == EK_INT && tensor != NULL &&
           ek_dltensor_is_contiguous(tensor) && ek_device_is_host(tensor->device);
    if (fits) {
      places[i] = (ek_vm_place){(int32_t)args[1 + 2 * i].v.i64, false, ek_dltensor_nbytes(tensor),
                                ek_dltensor_data(tensor)};
    }
  }
  if (!fits) return ek_error("TypeError", "ek.vm.places: wrong arguments, see ek_registry.c");
  return ek_vm_set_places((ek_vm *)(void *)args[0].v.obj, places, n);
}

/* (executable, number of calls, function of a name) */
static int watch(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  static const int32_t types[] = {EK_EXECUTABLE, EK_INT, EK_FUNCTION};
  (void)self;
  (void)ret;
  if (expect_args("ek.executable.watch", args, nargs, 3, types) != 0) return -1;
  if (args[1].v.i64 < 1 || args[1].v.i64 > UINT32_MAX) {
    return ek_error("ValueError", "ek.executable.watch: a number of calls >= 1 expected");
  }
  return ek_native_watch((ek_executable *)(void *)args[0].v.obj, (uint32_t)args[1].v.i64,
                         args[2].v.obj);
}

/* (executable or the bytes of its file, module with kernels or nothing) */
static int graph_executor(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  ek_object *module, *library, *program;
  ek_bytes file;
  (void)self;
  bool is_file = nargs == 2 && ek_string_borrow(&args[0], &file);
  if (nargs != 2 || !(is_file || args[0].type_index == EK_EXECUTABLE) ||
      (args[1].type_index != EK_MODULE && args[1].type_index != EK_NONE)) {
    return ek_error("TypeError", "ek.graph_executor.create: wrong arguments, see runtime.h");
  }
  library = args[1].type_index == EK_NONE ? NULL : args[1].v.obj;
  if (!is_file) {
    program = args[0].v.obj;
    ek_retain(program);
  } else if (ek_executable_from_bytes(file.data, file.size, 1, &program) != 0) {
    return -1;
  }
  int code = ek_graph_new(program, library, &module);
  ek_release(program);
  if (code == 0) *ret = ek_value_object(module);
  return code;
}

static int bind_constant(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self;
  (void)ret;
  if (nargs != 3 || args[0].type_index != EK_EXECUTABLE || args[1].type_index != EK_INT) {
    return ek_error("TypeError", "ek.executable.bind_constant: an executable, an int and a tensor "
                    "expected");
  }
  return ek_executable_bind((ek_executable *)(void *)args[0].v.obj, args[1].v.i64, &args[2]);
}

/* A tensor of bytes, which stay as they are -> the executable that they are the file of. */
static int of_tensor(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  static const int32_t types[] = {EK_TENSOR};
  ek_object *object;
  (void)self;
  if (expect_args("ek.executable.of_tensor", args, nargs, 1, types) != 0) return -1;
  if (ek_executable_of_tensor(args[0].v.obj, &object) != 0) return -1;
  *ret = ek_value_object(object);
  return 0;
}

/* (executable, number of a function, its arguments) -> nothing, or an error where a call would refuse
** them. */
static int check_arguments(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self;
  (void)ret;
  bool is_good = nargs >= 2 && args[0].type_index == EK_EXECUTABLE && args[1].type_index == EK_INT;
  const ek_executable *e = is_good ? (ek_executable *)(void *)args[0].v.obj : NULL;
  if (e == NULL || args[1].v.i64 < 0 || args[1].v.i64 >= e->n_functions ||
      nargs - 2 != e->functions[args[1].v.i64].n_params) {
    return ek_error("TypeError", "ek.executable.check: an executable, the number of a function and "
                    "its arguments expected");
  }
  ek_seen *seen = ek_alloc_or_error(((size_t)e->n_symbols + 1) * sizeof *seen);
  if (seen == NULL) return -1;
  int code = ek_signature_check(e, &e->functions[args[1].v.i64], args + 2, seen);
  ek_free(seen);
  return code;
}

/* (executable, module with kernels that it has not) */
static int link_executable(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  static const int32_t types[] = {EK_EXECUTABLE, EK_MODULE};
  (void)self;
  (void)ret;
  if (expect_args("ek.executable.link", args, nargs, 2, types) != 0) return -1;
  return ek_executable_link((ek_executable *)(void *)args[0].v.obj, args[1].v.obj);
}

/* (executable, name of a primitive, function that it is from now on) */
static int swap_kernel(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  ek_bytes name;
  (void)self;
  (void)ret;
  if (nargs != 3 || args[0].type_index != EK_EXECUTABLE || !ek_string_borrow(&args[1], &name) ||
      args[2].type_index != EK_FUNCTION) {
    return ek_error("TypeError", "ek.executable.swap: an executable, a name and a function expected");
  }
  return ek_executable_swap((ek_executable *)(void *)args[0].v.obj, name, args[2].v.obj);
}

static int registry_names(void *self, const ek_value *args, int32_t nargs, ek_value *ret);

static const ek_builtin builtins[] = {
    {"ek.executable.attach", attach_native},
    {"ek.executable.bind_constant", bind_constant},
    {"ek.executable.check", check_arguments},
#ifndef EK_SMALL
    {"ek.executable.file", executable_file},
#endif
    {"ek.executable.limit", executable_limit},
    {"ek.executable.link", link_executable},
    {"ek.executable.module", executable_module},
    {"ek.executable.num_threads", executable_threads},
    {"ek.executable.of_tensor", of_tensor},
    {"ek.executable.swap", swap_kernel},
    {"ek.executable.watch", watch},
#ifdef EK_GUARDS
    {"ek.files.drop", drop_file},
    {"ek.files.guard", guard_files},
    {"ek.files.is_cut", is_file_cut},
    {"ek.files.map", map_file},
#endif
    {"ek.graph_executor.create", graph_executor},
#ifndef EK_SMALL
    {"ek.image.hold", hold_image},
#endif
    {"ek.module.save", save_module},
    {"ek.reference.new", reference_new},
    {"ek.reference.read", reference_read},
    {"ek.reference.write", reference_write},
    {"ek.registry.names", registry_names},
    {"ek.runtime.allocation_count", allocation_count},
    {"ek.runtime.config_threadpool", config_threadpool},
    {"ek.runtime.cpu_has", cpu_has},
#ifndef EK_SMALL
    {"ek.runtime.crc32", crc32_of},
#endif
    {"ek.runtime.memory_limit", memory_limit},
    {"ek.runtime.num_threads", num_threads},
    {"ek.runtime.pool_trim", pool_trim},
    {"ek.runtime.reset_peak", reset_peak},
    {"ek.vm.limit", vm_limit},
#ifndef EK_SMALL
    {"ek.vm.module", vm_module},
#endif
    {"ek.vm.places", vm_places},
};

/* The table ------------------------------------------------------------------------------------ */

/* The place of 'name', or where it belongs. Under the lock. */
static int64_t place(const char *name, bool *found) {
  int64_t low = 0, high = entry_count;
  *found = false;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    int order = strcmp(entries[middle].name, name);
    if (order == 0) {
      *found = true;
      return middle;
    }
    if (order < 0) low = middle + 1; else high = middle;
  }
  return low;
}

/* Whether there is room for one more. Under the lock. */
static bool grow(void) {
  if (entry_count < entry_capacity) return true;
  int64_t capacity = entry_capacity == 0 ? 32 : 2 * entry_capacity;
  entry *larger = ek_alloc((size_t)capacity * sizeof(entry));
  if (larger == NULL) return false;
  if (entry_count != 0) memcpy(larger, entries, (size_t)entry_count * sizeof(entry));
  ek_free(entries);
  entries = larger;
  entry_capacity = capacity;
  return true;
}

/* Under the lock; false without memory. */
static bool insert(int64_t at, const char *name, ek_object *function) {
  size_t size = strlen(name) + 1;
  char *copy = grow() ? ek_alloc(size) : NULL;
  if (copy == NULL) return false;
  memcpy(copy, name, size);
  memmove(&entries[at + 1], &entries[at], (size_t)(entry_count - at) * sizeof(entry));
  ek_retain(function);
  entries[at] = (entry){copy, function};
  entry_count++;
  return true;
}

/* '*replaced' is what the caller must release, outside the lock: deleters may call us again. Errors
** are set there too, as the one that was pending goes then, and may be another library's. */
static int set(const char *name, ek_object *function, int override, ek_object **replaced) {
  bool is_found, has_room = true;
  ek_mutex_lock(&lock);
  int64_t at = place(name, &is_found);
  if (!is_found) {
    has_room = insert(at, name, function);
  } else if (override) {
    *replaced = entries[at].function;
    ek_retain(function);
    entries[at].function = function;
  }
  ek_mutex_unlock(&lock);
  if (!has_room) return ek_error_memory(strlen(name) + 1);
  if (!is_found || override) return 0;
  return ek_error("ValueError", "register function '%s': the name is taken", name);
}

/* Without memory for them a process starts without; they are looked up with an error then. */
static void add_table(const ek_builtin *table, size_t size) {
  for (size_t i = 0; i < size; i++) {
    ek_object *function = NULL, *replaced = NULL;
    if (ek_function_new(NULL, table[i].call, NULL, &function) != 0) continue;
    set(table[i].name, function, 1, &replaced);
    ek_object_release(function);
  }
}

static void add_builtins(void) {
  add_table(builtins, sizeof builtins / sizeof builtins[0]);
  add_table(ek_sequence_builtins, EK_SEQUENCE_BUILTINS);
  add_table(ek_device_builtins, EK_DEVICE_BUILTINS);
#ifndef EK_SMALL
  add_table(ek_engine_builtins, EK_ENGINE_BUILTINS);
#endif
}

static int remove_name(const char *name) {
  bool is_found;
  entry old = {NULL, NULL};
  ek_mutex_lock(&lock);
  int64_t at = place(name, &is_found);
  if (is_found) {
    old = entries[at];
    entry_count--;
    memmove(&entries[at], &entries[at + 1], (size_t)(entry_count - at) * sizeof(entry));
  }
  ek_mutex_unlock(&lock);
  ek_object_release(old.function);
  ek_free(old.name);
  return is_found ? 1 : 0;
}

int ek_registry_set(const char *name, ek_object *function, int override) {
  ek_object *replaced = NULL;
  ek_call_once(&builtins_once, add_builtins);
  if (function == NULL) return remove_name(name);
  if (!ek_is(function, EK_FUNCTION)) {
    return ek_error("TypeError", "register function '%s': expected a function object", name);
  }
  if (name[0] == '\0') return ek_error("ValueError", "register function: the name is empty");
  int code = set(name, function, override, &replaced);
  ek_object_release(replaced);
  return code;
}

ek_object *ek_registry_get(const char *name) {
  bool is_found;
  ek_object *function = NULL;
  ek_call_once(&builtins_once, add_builtins);
  ek_mutex_lock(&lock);
  int64_t at = place(name, &is_found);
  if (is_found) {
    function = entries[at].function;
    ek_retain(function);
  }
  ek_mutex_unlock(&lock);
  return function;
}

static int registry_names(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self;
  (void)args;
  if (nargs != 0) return ek_error("TypeError", "ek.registry.names: no argument expected");
  ek_mutex_lock(&lock);
  ek_array *array = ek_array_alloc(entry_count);
  int code = array == NULL ? -1 : 0;
  for (int64_t i = 0; code == 0 && i < entry_count; i++) {
    const char *name = entries[i].name;
    code = ek_string_new(EK_STR, name, strlen(name), &array->data[i]);
  }
  ek_mutex_unlock(&lock);
  if (code == 0) *ret = ek_value_object(&array->base);
  else if (array != NULL) ek_release(&array->base);
  return code;
}

void ek_registry_clear(void) {
  for (int64_t i = 0; i < entry_count; i++) {
    ek_release(entries[i].function);
    ek_free(entries[i].name);
  }
  ek_free(entries);
  entries = NULL;
  entry_count = entry_capacity = 0;
}
