/* Executables as modules: functions by name that several threads may call at once.
**
** A virtual machine serves one caller at a time, so the module keeps those that are free: a call
** takes one, or makes one when there is none, and gives it back. There are as many as there were
** callers at once.
**
** Beside its functions a module gives their parameters' names (get_input_names), the kernels of the
** executable, its constants (get_constant),
** the executable itself (get_executable), runs that are measured (profile), and a factory of graph
** executors (ek_graph.c) as "default" and under the name that was given when it was compiled. What
** else is asked for is a function of its executable: "load" is the global function
** "ek.program.load", with the executable before its arguments. */
#include <stdio.h>

#include "ek_vm_step.h"

typedef struct spare {
  struct spare *next;
  ek_object *vm;               /* owned */
} spare;

typedef struct program {
  ek_object *executable;       /* owned */
  ek_mutex lock;               /* guards 'spares' */
  spare *spares;
} program;

/* A function of the program, as the 'self' of a function object. */
typedef struct program_function {
  ek_object *module;           /* owned */
  program *of;
  int32_t index;
  ek_object *global;           /* owned: the global function behind it; NULL for another */
} program_function;

/* Virtual machines ----------------------------------------------------------------------------- */

static spare *take(program *self) {
  ek_mutex_lock(&self->lock);
  spare *free_one = self->spares;
  if (free_one != NULL) self->spares = free_one->next;
  ek_mutex_unlock(&self->lock);
  if (free_one != NULL) return free_one;
  free_one = ek_alloc_or_error(sizeof *free_one);
  if (free_one == NULL) return NULL;
  if (ek_vm_new(self->executable, &free_one->vm) == 0) return free_one;
  ek_free(free_one);
  return NULL;
}

static void give_back(program *self, spare *used) {
  ek_mutex_lock(&self->lock);
  used->next = self->spares;
  self->spares = used;
  ek_mutex_unlock(&self->lock);
}

/* The machine that ran last is taken first: its registers and arenas are warm. After an error it is
** as good as before, so it goes back either way. */
static int call(void *context, const ek_value *args, int32_t nargs, ek_value *ret) {
  program_function *function = context;
  spare *used = take(function->of);
  if (used == NULL) return -1;
  int code = ek_vm_invoke(used->vm, function->index, args, nargs, ret);
  give_back(function->of, used);
  return code;
}

/* The kind ------------------------------------------------------------------------------------- */

static void delete_function(void *context) {
  program_function *function = context;
  ek_release(function->module);
  if (function->global != NULL) ek_release(function->global);
  ek_free(function);
}

/* Whether a program that names its devices itself runs on this one; any processor counts as the host. */
static bool is_device_of(const ek_executable *e, const ek_value *value) {
  bool is_found = value->type_index == EK_DEVICE && value->v.device.type == EK_CPU;
  for (int32_t i = 0; i < e->n_devices && !is_found && value->type_index == EK_DEVICE; i++) {
    is_found = ek_device_same(e->devices[i], value->v.device);
  }
  return is_found;
}

static int other_devices(const ek_executable *e, ek_device given) {
  ek_device_name expected = ek_device_describe(e->devices[e->n_devices - 1]);
  ek_device_name actual = ek_device_describe(given);
  return ek_error("InputError", "make graph executor: one of the %d devices of the program, as %s, "
                  "expected, got %s", e->n_devices, expected.text, actual.text);
}

/* Whether these are the host alone, and the program has other devices: which it would run on. */
static bool is_host_alone(const ek_executable *e, const ek_value *args, int32_t nargs) {
  bool is_alone = nargs != 0, has_others = false;
  for (int32_t i = 0; i < nargs; i++) is_alone = is_alone && args[i].v.device.type == EK_CPU;
  for (int32_t i = 0; i < e->n_devices; i++) has_others = has_others || e->devices[i].type != EK_CPU;
  return is_alone && has_others;
}

/* The function that TVM's factories have under their name: (device, ...) -> a graph executor. */
static int make_graph(void *context, const ek_value *args, int32_t nargs, ek_value *ret) {
  const program_function *function = context;
  const ek_executable *e = (const ek_executable *)(const void *)function->of->executable;
  ek_object *object;
  if (nargs > e->n_devices) {
    return ek_error("InputError", "make graph executor: at most %d devices expected, got %d",
                    e->n_devices, nargs);
  }
  for (int32_t i = 0; i < nargs; i++) {
    if (is_device_of(e, &args[i])) continue;
    if (args[i].type_index != EK_DEVICE) {
      return ek_error("TypeError", "make graph executor: a device expected, got %s",
                      ek_value_type_name(&args[i]));
    }
    return other_devices(e, args[i].v.device);
  }
  if (is_host_alone(e, args, nargs)) return other_devices(e, args[0].v.device);
  if (ek_graph_new(function->of->executable, NULL, &object) != 0) return -1;
  *ret = ek_value_object(object);
  return 0;
}

/* The names under which a module gives graph executors; TVM's. */
static int list_module_names(void *context, const ek_value *args, int32_t nargs, ek_value *ret) {
  const program_function *function = context;
  const ek_executable *e = (const ek_executable *)(const void *)function->of->executable;
  (void)args;
  if (nargs != 0) return ek_error("TypeError", "list_module_names: no argument expected");
  ek_bytes own = ek_metadata_text(e->metadata, "mod_name");
  ek_bytes name = own.size != 0 ? own : (ek_bytes){"default", strlen("default")};
  ek_array *names = ek_array_alloc(1);
  if (names == NULL) return -1;
  if (ek_string_new(EK_STR, name.data, name.size, &names->data[0]) != 0) {
    ek_release(&names->base);
    return -1;
  }
  *ret = ek_value_object(&names->base);
  return 0;
}

/* (index) -> a constant of the executable. */
static int get_constant(void *context, const ek_value *args, int32_t nargs, ek_value *ret) {
  const program_function *function = context;
  if (nargs != 1 || args[0].type_index != EK_INT || args[0].v.i64 < 0) {
    return ek_error("TypeError", "get_constant: one number >= 0 expected");
  }
  return ek_executable_item(function->of->executable, EK_PART_CONSTANT, args[0].v.i64, ret);
}

/* The executable itself. */
static int get_executable(void *context, const ek_value *args, int32_t nargs, ek_value *ret) {
  const program_function *function = context;
  (void)args;
  if (nargs != 0) return ek_error("TypeError", "get_executable: no argument expected");
  ek_retain(function->of->executable);
  *ret = ek_value_object(function->of->executable);
  return 0;
}

/* (name of a function) -> the names of its parameters. */
static int get_input_names(void *context, const ek_value *args, int32_t nargs, ek_value *ret) {
  const program_function *function = context;
  ek_object *executable = function->of->executable;
  ek_bytes name;
  if (nargs != 1 || !ek_string_borrow(&args[0], &name)) {
    return ek_error("TypeError", "get_input_names: the name of a function expected");
  }
  char text[256];
  size_t size = name.size < sizeof text ? name.size : 0;
  memcpy(text, name.data, size);
  text[size] = '\0';
  int32_t index = ek_executable_find((ek_executable *)(void *)executable, text);
  if (index < 0) {
    return ek_error("InputError", "get_input_names: there is no function '%.*s'",
                    ek_shown(name, 200), name.data);
  }
  return ek_executable_item(executable, EK_PART_PARAMS, index, ret);
}

/* (function, most words of events, arguments...) -> what ek_vm_profile gives. */
static int profile(void *context, const ek_value *args, int32_t nargs, ek_value *ret) {
  const program_function *function = context;
  if (nargs < 2 || args[0].type_index != EK_INT || args[1].type_index != EK_INT) {
    return ek_error("TypeError", "profile: two numbers expected, then arguments");
  }
  bool fits = args[0].v.i64 >= 0 && args[0].v.i64 <= INT32_MAX;
  spare *used = take(function->of);
  if (used == NULL) return -1;
  int code = ek_vm_profile((ek_vm *)(void *)used->vm, fits ? (int32_t)args[0].v.i64 : -1,
                           args[1].v.i64, args + 2, nargs - 2, ret);
  give_back(function->of, used);
  return code;
}

enum { MOST_ARGUMENTS = 8 };

/* (arguments...) -> what the global function gives for the executable and them. */
static int call_global(void *context, const ek_value *args, int32_t nargs, ek_value *ret) {
  const program_function *function = context;
  ek_value all[MOST_ARGUMENTS];
  if (nargs >= MOST_ARGUMENTS) {
    return ek_error("TypeError", "call of a module's function: at most %d arguments expected, "
                    "got %d", MOST_ARGUMENTS - 1, nargs);
  }
  all[0] = ek_value_object(function->of->executable);
  if (nargs != 0) memcpy(&all[1], args, (size_t)nargs * sizeof *args);
  return ek_function_call(function->global, all, nargs + 1, ret);
}

/* The global function that a module gives under a name, owned; NULL for none. */
static ek_object *find_global(const char *name) {
  char whole[64];
  int size = snprintf(whole, sizeof whole, "ek.program.%s", name);
  return size > 0 && (size_t)size < sizeof whole ? ek_registry_get(whole) : NULL;
}

/* Returns a function that a module has beside those of its program; NULL for an unknown name. */
static ek_packed find_extra(const ek_executable *executable, const char *name) {
  ek_bytes own = ek_metadata_text(executable->metadata, "mod_name");
  bool is_own = own.size != 0 && own.size == strlen(name) && memcmp(own.data, name, own.size) == 0;
  if (is_own || strcmp(name, "default") == 0) return make_graph;
  if (strcmp(name, "get_constant") == 0) return get_constant;
  if (strcmp(name, "get_input_names") == 0) return get_input_names;
  if (strcmp(name, "list_module_names") == 0) return list_module_names;
  if (strcmp(name, "profile") == 0) return profile;
  return strcmp(name, "get_executable") == 0 ? get_executable : NULL;
}

static int program_get(void *context, ek_object *module, const char *name, ek_object **out) {
  program *self = context;
  ek_executable *executable = (ek_executable *)(void *)self->executable;
  int32_t index = ek_executable_find(executable, name);
  ek_packed target = index >= 0 ? call : find_extra(executable, name);
  ek_object *global = target == NULL ? find_global(name) : NULL;
  if (global != NULL) target = call_global;
  if (target == NULL) return ek_executable_kernel(executable, name, out);
  program_function *function = ek_alloc_or_error(sizeof *function);
  if (function != NULL) {
    *function = (program_function){module, self, index, global};
    if (ek_function_new(function, target, delete_function, out) != 0) {
      ek_free(function);
      function = NULL;
    }
  }
  if (function == NULL) {
    if (global != NULL) ek_release(global);
    return -1;
  }
  ek_retain(module);
  return 0;
}

static int program_names(void *context, ek_object **out) {
  ek_object *executable = ((program *)context)->executable;
  int64_t n = ek_executable_count(executable, EK_PART_GLOBAL);
  ek_array *names = ek_array_alloc(n);
  if (names == NULL) return -1;
  for (int64_t i = 0; i < n; i++) {
    if (ek_executable_item(executable, EK_PART_GLOBAL, i, &names->data[i]) == 0) continue;
    ek_release(&names->base);
    return -1;
  }
  *out = &names->base;
  return 0;
}

static int program_save(void *context, const char *path) {
  return ek_executable_save((ek_executable *)(void *)((program *)context)->executable, path);
}

static void program_destroy(void *context) {
  program *self = context;
  for (spare *next = self->spares; next != NULL;) {
    spare *gone = next;
    next = gone->next;
    ek_release(gone->vm);
    ek_free(gone);
  }
  ek_release(self->executable);
  ek_free(self);
}

static int program_bytes(void *context, ek_value *out) {
  return ek_executable_item(((program *)context)->executable, EK_PART_FILE, 0, out);
}

static const ek_module_kind program_kind = {"executable", program_get,     program_names,
                                            program_save, program_destroy, program_bytes};

const ek_executable *ek_program_executable(ek_object *module) {
  const program *self = ek_module_self(module, &program_kind);
  return self == NULL ? NULL : (const ek_executable *)(const void *)self->executable;
}

int ek_program_new(ek_object *executable, ek_object **out) {
  if (!ek_is(executable, EK_EXECUTABLE)) {
    return ek_error("TypeError", "make module: an executable expected");
  }
  program *self = ek_alloc_or_error(sizeof *self);
  if (self == NULL) return -1;
  *self = (program){executable, EK_MUTEX_INIT, NULL};
  if (ek_module_new(&program_kind, self, out) != 0) {
    ek_free(self);
    return -1;
  }
  ek_retain(executable);
  return 0;
}
