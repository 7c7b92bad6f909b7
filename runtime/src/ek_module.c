/* Modules: functions by name, and shared libraries as one kind of them. */
#include "ek_internal.h"

#include <stdio.h>

/* Modules in general --------------------------------------------------------------------------- */

/* Guards every module's list of imports: importing is rare, and cycles need a view of all lists. */
static ek_mutex imports_lock = EK_MUTEX_INIT;

enum { MAX_IMPORT_DEPTH = 64 };

static void module_deleter(void *self, int flags) {
  ek_module *module = self;
  if (flags & EK_DELETE_CONTENT) {
    for (int32_t i = 0; i < module->import_count; i++) ek_release(module->imports[i]);
    ek_free(module->imports);
    if (module->self != NULL) module->kind->destroy(module);
  }
  if (flags & EK_DELETE_MEMORY) ek_free(self);
}

int ek_module_new(const ek_module_kind *kind, void *self, ek_object **out) {
  ek_module *module = ek_object_new(sizeof *module, EK_MODULE, module_deleter);
  if (module == NULL) return -1;
  module->kind = kind;
  module->self = self;
  *out = &module->base;
  return 0;
}

static int check_module(ek_object *object, const char *doing) {
  if (ek_is(object, EK_MODULE)) return 0;
  return ek_error("TypeError", "%s: expected a module", doing);
}

/* An owned reference to import number 'index', or NULL past the end. */
static ek_object *import_at(ek_module *module, int32_t index) {
  ek_object *found = NULL;
  ek_mutex_lock(&imports_lock);
  if (index < module->import_count) {
    found = module->imports[index];
    ek_retain(found);
  }
  ek_mutex_unlock(&imports_lock);
  return found;
}

int ek_module_get(ek_object *object, const char *name, ek_object **out) {
  ek_object *found = NULL, *imported;
  if (check_module(object, "get function") != 0) return -1;
  ek_module *module = (ek_module *)(void *)object;
  int code = module->kind->get(module, name, &found);
  for (int32_t i = 0; code == 0 && found == NULL; i++) {
    imported = import_at(module, i);
    if (imported == NULL) break;
    code = ek_module_get(imported, name, &found); /* ek_module_import bounds the depth */
    ek_release(imported);
  }
  if (code == 0) *out = found;
  return code;
}

/* Length of the longest chain of imports from 'module', or a number past the limit if 'target' is
** on it. Under the lock. */
static int32_t depth_below(const ek_module *module, const ek_module *target) {
  int32_t deepest = 0;
  if (module == target) return MAX_IMPORT_DEPTH + 1;
  for (int32_t i = 0; i < module->import_count; i++) {
    int32_t depth = depth_below((const ek_module *)(void *)module->imports[i], target);
    if (depth >= MAX_IMPORT_DEPTH) return depth;
    if (depth > deepest) deepest = depth;
  }
  return deepest + 1;
}

/* Under the lock. */
static int add_import(ek_module *module, ek_object *imported) {
  int32_t count = module->import_count;
  int32_t depth = depth_below((ek_module *)(void *)imported, module);
  if (depth >= MAX_IMPORT_DEPTH) {
    return ek_error("ValueError", depth > MAX_IMPORT_DEPTH
                    ? "import module: the imported module imports this one already"
                    : "import module: the chain of imports is too long");
  }
  ek_object **longer = ek_alloc_or_error(((size_t)count + 1) * sizeof *longer);
  if (longer == NULL) return -1;
  if (count != 0) memcpy(longer, module->imports, (size_t)count * sizeof *longer);
  ek_retain(imported);
  longer[count] = imported;
  ek_free(module->imports);
  module->imports = longer;
  module->import_count = count + 1;
  return 0;
}

int ek_module_import(ek_object *object, ek_object *imported) {
  if (check_module(object, "import module") != 0) return -1;
  if (check_module(imported, "import module") != 0) return -1;
  ek_mutex_lock(&imports_lock);
  int code = add_import((ek_module *)(void *)object, imported);
  ek_mutex_unlock(&imports_lock);
  return code;
}

int ek_module_names(ek_object *object, ek_object **out) {
  if (check_module(object, "list functions") != 0) return -1;
  ek_module *module = (ek_module *)(void *)object;
  return module->kind->names(module, out);
}

/* Shared libraries ----------------------------------------------------------------------------- */

static const char symbol_prefix[] = "__tvm_ffi_";

/* POSIX says that an object pointer from dlsym is a function pointer; C does not know such
** casts. */
static ek_packed code_at(void *address) {
  ek_packed code;
  static_assert(sizeof code == sizeof address, "code and data pointers have one size");
  memcpy(&code, &address, sizeof code);
  return code;
}

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

/* A library built with TVM-FFI leaves its errors with that runtime. They have our layout. */
static int call_symbol(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  library_symbol *symbol = self;
  ek_object *error = NULL;
  int code = symbol->code(NULL, args, nargs, ret);
  if (code == 0) return 0;
  if (symbol->take_error == NULL) return -1;
  symbol->take_error(&error);
  if (error == NULL) return -1;
  ek_error_set(error);
  ek_release(error);
  return -1;
}

static int symbol_function(ek_module *module, ek_packed code, ek_object **out) {
  library_symbol *symbol = ek_alloc_or_error(sizeof *symbol);
  if (symbol == NULL) return -1;
  void *take = ek_dl_symbol(module->self, "TVMFFIErrorMoveFromRaised");
  symbol->code = code;
  symbol->take_error = NULL;
  symbol->module = &module->base;
  if (take != NULL) memcpy(&symbol->take_error, &take, sizeof take);
  if (ek_function_new(symbol, call_symbol, delete_symbol, out) == 0) {
    ek_retain(&module->base);
    return 0;
  }
  ek_free(symbol);
  return -1;
}

static int library_get(ek_module *module, const char *name, ek_object **out) {
  char symbol_name[512];
  int length = snprintf(symbol_name, sizeof symbol_name, "%s%s", symbol_prefix, name);
  if (length < 0 || (size_t)length >= sizeof symbol_name) return 0; /* no symbol is that long */
  void *address = ek_dl_symbol(module->self, symbol_name);
  return address == NULL ? 0 : symbol_function(module, code_at(address), out);
}

static int library_names(ek_module *module, ek_object **out) {
  (void)module;
  return ek_array_new(NULL, 0, out);
}

static void library_destroy(ek_module *module) { ek_dl_close(module->self); }

static const ek_module_kind library_kind = {"library", library_get, library_names, library_destroy};

int ek_library_load(const char *path, ek_object **out) {
  const char *reason = NULL;
  void *library = ek_dl_open(path, &reason);
  if (library == NULL) {
    return ek_error("OSError", "load library '%s': %s", path, reason == NULL ? "" : reason);
  }
  if (ek_module_new(&library_kind, library, out) == 0) return 0;
  ek_dl_close(library);
  return -1;
}
