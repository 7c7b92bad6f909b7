/* Entry points of a library that export_library made: run its executable or modules for any loader.
**
** Ekiden's own loader runs them with the runtime of the process and calls nothing here
** (ek_library.c). Every other loader finds functions with the signature of ek_packed under their
** symbols, and those lead here. Types registered at run time have other indices there, so nothing
** of such a type crosses: tuples leave as arrays. Errors are left with TVM-FFI's runtime where
** there is one, for that is where its callers look. */
#include "ek_export.h"

#include "ek_executable.h"

/* A loaded export, by the bytes of its artifact; a program may link several models. */
typedef struct loaded {
  struct loaded *next;
  const void *begin;
  ek_object *module;
} loaded;

static ek_mutex lock = EK_MUTEX_INIT;
static loaded *all_loaded;     /* as long as the process lives */

/* The module of an export that has been called. Entries are only added, in front. */
static ek_object *module_of(const ek_export *program) {
  const loaded *item = __atomic_load_n(&all_loaded, __ATOMIC_ACQUIRE);
  while (item != NULL && item->begin != program->begin) item = item->next;
  return item == NULL ? NULL : item->module;
}

/* Errors --------------------------------------------------------------------------------------- */

static void (*find_reporter(void))(void *) {
  static void (*known)(void *);
  void (*found)(void *) = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (found != NULL) return found;
  void *address = ek_dl_find("libtvm_ffi." EK_LIBRARY_SUFFIX, "TVMFFIErrorSetRaised");
  memcpy(&found, &address, sizeof found);
  __atomic_store_n(&known, found, __ATOMIC_RELAXED);
  return found;
}

static bool is_kind(const ek_error_object *error, const char *kind) {
  return error->kind.size == strlen(kind) && memcmp(error->kind.data, kind, error->kind.size) == 0;
}

/* Others know the kinds of Python: an InputError is a ValueError too. */
static ek_object *as_known(ek_object *object) {
  const ek_error_object *error = (const ek_error_object *)(const void *)object;
  if (object == NULL || !is_kind(error, "InputError")) return object;
  int size = error->message.size < INT32_MAX ? (int)error->message.size : INT32_MAX;
  ek_error("ValueError", "%.*s", size, error->message.data);
  ek_release(object);
  return ek_error_take();
}

/* Hands this thread's error to TVM-FFI's runtime, if there is one. Returns -1. */
static int report(void) {
  void (*reporter)(void *) = find_reporter();
  ek_object *error = reporter == NULL ? NULL : as_known(ek_error_take());
  if (error == NULL) return -1;
  reporter(error); /* retains it */
  ek_release(error);
  return -1;
}

/* Values --------------------------------------------------------------------------------------- */

enum { MAX_NESTING = 64 };

/* A result without types of our own, as a new value. 0 or -1. */
static int leave(const char *name, const ek_value *value, int depth, ek_value *out) {
  if (value->type_index < EK_DYNAMIC) {
    *out = *value;
    ek_value_retain(out);
    return 0;
  }
  const ek_adt *tuple = (const ek_adt *)(const void *)value->v.obj;
  if (value->type_index != EK_ADT || tuple->tag != 0 || depth == MAX_NESTING) {
    return ek_error("TypeError", "call '%s': the result has a part of type %s, which cannot leave "
                    "the library; tensors, numbers and tuples can", name,
                    ek_type_key(value->type_index));
  }
  ek_array *array = ek_array_alloc(tuple->size);
  if (array == NULL) return -1;
  for (int32_t i = 0; i < tuple->size; i++) {
    if (leave(name, &tuple->fields[i], depth + 1, &array->data[i]) == 0) continue;
    ek_release(&array->base);
    return -1;
  }
  *out = ek_value_object(&array->base);
  return 0;
}

static int check_args(const ek_export *program, const ek_value *args, int32_t nargs) {
  const char *name = program->name;
  for (int32_t i = 0; i < nargs; i++) {
    if (args[i].type_index < EK_DYNAMIC) continue;
    const ek_executable *executable = ek_program_executable(module_of(program));
    int32_t at = executable == NULL ? -1 : ek_executable_find(executable, name);
    bool is_input = at >= 0 && i < executable->functions[at].n_params;
    ek_bytes input = is_input ? ek_executable_param(&executable->functions[at], i) : ek_bytes_of("?");
    return ek_error("InputError", "input '%.*s': expected tensors, numbers and arrays of them, got an "
                    "object of another runtime", ek_shown(input, 200), input.data);
  }
  return 0;
}

/* Calls ---------------------------------------------------------------------------------------- */

/* Under the lock: loads the module of an export. 0 or -1. */
static int load(const ek_export *program) {
  if (module_of(program) != NULL) return 0;
  loaded *added = ek_alloc_or_error(sizeof *added);
  if (added == NULL) return -1;
  const ek_extern *before = ek_externs;
  ek_externs = program->externs;
  int code = ek_module_from_bytes(program->begin, (size_t)program->size, &added->module);
  ek_externs = before;
  if (code != 0) {
    ek_free(added);
    return -1;
  }
  added->next = all_loaded;
  added->begin = program->begin;
  __atomic_store_n(&all_loaded, added, __ATOMIC_RELEASE);
  return 0;
}

/* The function of a name, found once; NULL with an error. */
static ek_object *function_of(ek_export *program) {
  ek_object *known = __atomic_load_n(&program->function, __ATOMIC_ACQUIRE);
  if (known != NULL) return known;
  ek_mutex_lock(&lock);
  known = program->function;
  if (known == NULL && load(program) == 0 &&
      ek_module_get(module_of(program), program->name, &known) == 0) {
    __atomic_store_n(&program->function, known, __ATOMIC_RELEASE);
  }
  ek_mutex_unlock(&lock);
  return known;
}

int ek_export_call(ek_export *program, const ek_value *args, int32_t nargs, ek_value *ret) {
  ek_value result = ek_value_none();
  ek_object *function = function_of(program);
  if (function == NULL || check_args(program, args, nargs) != 0) return report();
  if (ek_function_call(function, args, nargs, &result) != 0) return report();
  if (result.type_index < EK_DYNAMIC) {
    *ret = result;
    return 0;
  }
  int code = leave(program->name, &result, 0, ret);
  ek_value_release(&result);
  return code == 0 ? 0 : report();
}
