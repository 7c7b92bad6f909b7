/* Shared libraries as modules. */
#include "ek_internal.h"

#include <stdio.h>

static const char symbol_prefix[] = "__tvm_ffi_";

typedef struct library {
  void *handle;                /* of the system's loader */
} library;

/* POSIX says that an object pointer from dlsym is a function pointer; C does not know such
** casts. */
static ek_packed code_at(void *address) {
  ek_packed code;
  static_assert(sizeof code == sizeof address, "code and data pointers have one size");
  memcpy(&code, &address, sizeof code);
  return code;
}

/* Symbols -------------------------------------------------------------------------------------- */

/* A symbol of a library, as the 'self' of a function object. */
typedef struct library_symbol {
  ek_packed code;
  int (*take_error)(void *out);            /* TVM-FFI's, or NULL */
  ek_object *module;                       /* owned: keeps the code loaded */
} library_symbol;

static void delete_symbol(void *self) {
  library_symbol *symbol = self;
  ek_release(symbol->module);
  ek_free(symbol);
}

/* A result of that runtime as one of ours: its tensors end with their DLTensor, and the indices of
** types registered at run time mean others here. Types that are registered at run time have an
** index by order of registration, in each runtime its own. Static ones are those of the ABI, and
** shared. */
static int adopt(ek_value *ret) {
  ek_object *theirs = ret->v.obj, *view = NULL;
  if (ret->type_index >= EK_DYNAMIC) {
    ek_value_release(ret);
    return ek_error("TypeError", "call library: the result is an object of another runtime");
  }
  if (ret->type_index != EK_TENSOR || ek_tensor_is_own(theirs)) return 0;
  int code = ek_tensor_strided(theirs, &((ek_tensor *)(void *)theirs)->dl, 0, &view);
  ek_release(theirs);
  *ret = code == 0 ? ek_value_object(view) : ek_value_none();
  return code;
}

/* A library built with TVM-FFI leaves its errors with that runtime. They have our layout. */
static int call_symbol(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  library_symbol *symbol = self;
  ek_object *error = NULL;
  int code = symbol->code(NULL, args, nargs, ret);
  if (code == 0) return adopt(ret);
  symbol->take_error(&error);
  if (error == NULL) return -1;
  ek_error_set(error);
  ek_release(error);
  return -1;
}

/* Functions that set this runtime's errors are called directly; they ignore 'self'. */
static int symbol_function(library *self, ek_object *module, ek_packed code, ek_object **out) {
  void *take = ek_dl_symbol(self->handle, "TVMFFIErrorMoveFromRaised");
  if (take == NULL) return ek_function_bind(code, module, out);
  library_symbol *symbol = ek_alloc_or_error(sizeof *symbol);
  if (symbol == NULL) return -1;
  *symbol = (library_symbol){code, NULL, module};
  memcpy(&symbol->take_error, &take, sizeof take);
  if (ek_function_new(symbol, call_symbol, delete_symbol, out) == 0) {
    ek_retain(module);
    return 0;
  }
  ek_free(symbol);
  return -1;
}

/* The kind ------------------------------------------------------------------------------------- */

static int library_get(void *self, ek_object *module, const char *name, ek_object **out) {
  char symbol_name[512];
  int length = snprintf(symbol_name, sizeof symbol_name, "%s%s", symbol_prefix, name);
  if (length < 0 || (size_t)length >= sizeof symbol_name) return 0; /* no symbol is that long */
  void *address = ek_dl_symbol(((library *)self)->handle, symbol_name);
  return address == NULL ? 0 : symbol_function(self, module, code_at(address), out);
}

static void library_destroy(void *self) {
  ek_dl_close(((library *)self)->handle);
  ek_free(self);
}

static const ek_module_kind library_kind = {"library", library_get, NULL, NULL, library_destroy,
                                            NULL};

/* Loading -------------------------------------------------------------------------------------- */

/* Libraries whose __ek_init has run. They stay loaded, so a handle is never another's later. */
typedef struct initialised {
  struct initialised *next;
  void *handle;
} initialised;

static initialised *all_initialised;
static ek_mutex init_lock;
static ek_once init_once = EK_ONCE_INIT;

/* Initialising a library may load others. */
static void make_init_lock(void) { ek_mutex_make_recursive(&init_lock); }

/* A library that registers things must stay, for nobody knows when the last of them is used. Under
** the lock. The handle is what tells libraries apart: the system gives one for all paths to a file.
** Marked only after its function has succeeded, so that a failed one is tried again. */
static int run_init(const char *path, void *handle, void *address) {
  int (*begin)(void);
  memcpy(&begin, &address, sizeof begin);
  for (initialised *known = all_initialised; known != NULL; known = known->next) {
    if (known->handle == handle) return 0;
  }
  if (ek_dl_pin(handle) != 0) return ek_error("OSError", "load library '%s': it cannot stay", path);
  initialised *added = ek_alloc_or_error(sizeof *added);
  if (added == NULL) return -1;
  if (begin() != 0) {
    ek_free(added);
    return -1;
  }
  *added = (initialised){all_initialised, handle};
  all_initialised = added;
  return 0;
}

static int initialise(const char *path, void *handle) {
  void *address = ek_dl_symbol(handle, "__ek_init");
  if (address == NULL) return 0;
  ek_call_once(&init_once, make_init_lock);
  ek_mutex_lock(&init_lock);
  int code = run_init(path, handle, address);
  ek_mutex_unlock(&init_lock);
  return code;
}

void ek_libraries_clear(void) {
  while (all_initialised != NULL) {
    initialised *gone = all_initialised;
    all_initialised = gone->next;
    ek_free(gone);
  }
}

/* A library that export_library made: what is in it runs here, and not by the runtime inside. */
static int program_in(const char *path, void *handle, ek_object **out) {
  const unsigned char *begin = ek_dl_symbol(handle, "__ek_executable");
  const uint64_t *size = ek_dl_symbol(handle, "__ek_executable_size");
  if (begin == NULL || size == NULL) return 0;
  if (ek_dl_pin(handle) != 0) return ek_error("OSError", "load library '%s': it cannot stay", path);
  const ek_extern *before = ek_externs;
  ek_externs = ek_dl_symbol(handle, "__ek_extern_");
  int code = ek_module_from_bytes(begin, (size_t)*size, out);
  ek_externs = before;
  return code;
}

static int library_module(void *handle, ek_object **out) {
  library *self = ek_alloc_or_error(sizeof *self);
  if (self == NULL) return -1;
  self->handle = handle;
  if (ek_module_new(&library_kind, self, out) == 0) return 0;
  ek_free(self);
  return -1;
}

int ek_library_load(const char *given, ek_object **out) {
  char here[4096];
  const char *reason = NULL, *path = given;
  /* The system looks for a bare name in its own folders, and not where we are. */
  if (ek_path_name(given) == given && ek_file_exists(given)) {
    int length = snprintf(here, sizeof here, "./%s", given);
    if (length > 0 && (size_t)length < sizeof here) path = here;
  }
  ek_object *module = NULL;
  void *handle = ek_dl_open(path, &reason);
  if (handle == NULL) {
    return ek_error("OSError", "load library '%s': %s", path, reason == NULL ? "" : reason);
  }
  int code = initialise(path, handle);
  if (code == 0) code = program_in(path, handle, &module);
  if (module != NULL) ek_dl_close(handle); /* pinned */
  else if (code == 0) code = library_module(handle, &module);
  if (code == 0) *out = module;
  else ek_dl_close(handle);
  return code;
}
