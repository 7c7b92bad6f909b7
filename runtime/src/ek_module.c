/* Modules: what all kinds have in common, and loading one from a file. */
#include "ek_internal.h"

#include <stdio.h>

typedef struct ek_module {
  ek_object base;
  const ek_module_kind *kind;
  void *self;                              /* the kind's own, freed by its destroy */
  ek_object **imports;                     /* owned modules */
  int32_t import_count;
  int32_t place;                           /* of a walk: the import it looks at next */
  uint64_t walk;                           /* the last one that came here */
  struct ek_module *above, *next;          /* of that walk: where it came from, whom it came to next */
} ek_module;

/* Guards what every module has of imports and walks: importing is rare, and cycles need a view of all
** lists. No error is set while it is held, as setting one drops the one before, with whatever that
** refers to. */
static ek_mutex imports_lock = EK_MUTEX_INIT;
static uint64_t walks;

/* Life ----------------------------------------------------------------------------------------- */

static void drop_imports(ek_object **imports, int32_t count) {
  for (int32_t i = 0; i < count; i++) ek_release(imports[i]);
  ek_free(imports);
}

static void drop(void *self, int flags) {
  ek_module *module = self;
  if (flags & EK_DELETE_CONTENT) {
    drop_imports(module->imports, module->import_count);
    if (module->kind->destroy != NULL) module->kind->destroy(module->self);
  }
  if (flags & EK_DELETE_MEMORY) ek_free(self);
}

static void module_deleter(void *self, int flags) { ek_delete_flat(self, flags, drop); }

int ek_module_new(const ek_module_kind *kind, void *self, ek_object **out) {
  ek_module *module = ek_object_alloc(sizeof *module, EK_MODULE, module_deleter);
  if (module == NULL) return -1;
  module->kind = kind;
  module->self = self;
  *out = &module->base;
  return 0;
}

/* Modules of another runtime have the same type index and another layout. */
static int check_module(ek_object *object, const char *doing) {
  if (!ek_is(object, EK_MODULE)) return ek_error("TypeError", "%s: expected a module", doing);
  if (object->deleter == module_deleter) return 0;
  return ek_error("TypeError", "%s: expected a module made by this runtime, got one of another",
                  doing);
}

void *ek_module_self(ek_object *object, const ek_module_kind *kind) {
  const ek_module *module = (const ek_module *)(const void *)object;
  bool is_it = ek_is(object, EK_MODULE) && object->deleter == module_deleter;
  return is_it && module->kind == kind ? module->self : NULL;
}

/* Functions ------------------------------------------------------------------------------------ */

/* Links a module and all below it by 'next', each once, depth first and in order; gives how many are
** below. Chains may be long: no C stack is taken. Under the lock. */
static int32_t link_below(ek_module *module) {
  ek_module *at = module, *last = module;
  int32_t count = 0;
  at->walk = ++walks;
  at->place = 0;
  at->above = at->next = NULL;
  while (at != NULL) {
    ek_module *import = at->place < at->import_count ? (void *)at->imports[at->place++] : NULL;
    if (import == NULL) {
      at = at->above;
    } else if (import->walk != walks) {
      import->walk = walks;
      import->place = 0;
      import->above = at;
      import->next = NULL;
      last = last->next = at = import;
      count++;
    }
  }
  return count;
}

/* Owned references to all modules below one, each once, '*out' NULL for none: 0, or -1 without an
** error where memory is short. Under the lock. */
static int retain_below(ek_module *module, ek_object ***out, int32_t *count) {
  ek_object **all = NULL;
  *count = link_below(module);
  if (*count != 0 && (all = ek_alloc((size_t)*count * sizeof *all)) == NULL) return -1;
  int32_t n = 0;
  for (ek_module *at = module->next; at != NULL; at = at->next) {
    ek_retain(&at->base);
    all[n++] = &at->base;
  }
  *out = all;
  return 0;
}

static int get_own(ek_object *object, const char *name, ek_object **out) {
  ek_module *module = (ek_module *)(void *)object;
  return module->kind->get(module->self, object, name, out);
}

/* Its own functions first, then those of its imports, depth first and in order, each once however
** many ways lead to it. The lock is not held while a module is asked, which may be code of others:
** the imports are retained for that long. */
int ek_module_get(ek_object *object, const char *name, ek_object **out) {
  ek_object *result = NULL, **below = NULL;
  int32_t count = 0;
  if (check_module(object, "get function") != 0) return -1;
  int code = get_own(object, name, &result);
  if (code == 0 && result == NULL) {
    ek_mutex_lock(&imports_lock);
    int status = retain_below((ek_module *)(void *)object, &below, &count);
    ek_mutex_unlock(&imports_lock);
    if (status != 0) return ek_error_memory((size_t)count * sizeof *below);
  }
  for (int32_t i = 0; i < count && code == 0 && result == NULL; i++) {
    code = get_own(below[i], name, &result);
  }
  drop_imports(below, count);
  if (code == 0) *out = result;
  return code;
}

/* Imports -------------------------------------------------------------------------------------- */

/* Under the lock. */
static bool reaches(ek_module *module, const ek_module *target) {
  link_below(module);
  for (const ek_module *at = module; at != NULL; at = at->next) {
    if (at == target) return true;
  }
  return false;
}

/* Appends to the imports, which 'longer' has room for; gives what is free now. Under the lock. */
static ek_object **add_import(ek_module *module, ek_object *imported, ek_object **longer) {
  ek_object **shorter = module->imports;
  int32_t count = module->import_count;
  if (count != 0) memcpy(longer, shorter, (size_t)count * sizeof *longer);
  ek_retain(imported);
  longer[count] = imported;
  module->imports = longer;
  module->import_count = count + 1;
  return shorter;
}

/* Modules are released outside the lock, because destroying one runs its kind's own code. */
static int clear_imports(ek_module *module) {
  ek_mutex_lock(&imports_lock);
  ek_object **imports = module->imports;
  int32_t count = module->import_count;
  module->imports = NULL;
  module->import_count = 0;
  ek_mutex_unlock(&imports_lock);
  drop_imports(imports, count);
  return 0;
}

int ek_module_import(ek_object *object, ek_object *imported) {
  if (check_module(object, "import module") != 0) return -1;
  ek_module *module = (ek_module *)(void *)object;
  if (imported == NULL) return clear_imports(module);
  if (check_module(imported, "import module") != 0) return -1;
  ek_mutex_lock(&imports_lock);
  size_t size = ((size_t)module->import_count + 1) * sizeof(ek_object *);
  bool is_cycle = reaches((ek_module *)(void *)imported, module);
  ek_object **unused = is_cycle ? NULL : ek_alloc(size);
  bool is_added = unused != NULL;
  if (is_added) unused = add_import(module, imported, unused);
  ek_mutex_unlock(&imports_lock);
  ek_free(unused);
  if (is_added) return 0;
  if (!is_cycle) return ek_error_memory(size);
  return ek_error("ValueError", "import module: the imported module imports this one already");
}

/* Parts ---------------------------------------------------------------------------------------- */

/* The list may grow between the two looks at it: then what was made for it does not fit. */
static int imports_of(ek_module *module, ek_object **out) {
  for (;;) {
    ek_mutex_lock(&imports_lock);
    int32_t count = module->import_count;
    ek_mutex_unlock(&imports_lock);
    ek_array *array = ek_array_alloc(count);
    if (array == NULL) return -1;
    ek_mutex_lock(&imports_lock);
    bool fits = module->import_count == count;
    for (int32_t i = 0; fits && i < count; i++) {
      array->data[i] = ek_value_object(module->imports[i]);
      ek_value_retain(&array->data[i]);
    }
    ek_mutex_unlock(&imports_lock);
    *out = &array->base;
    if (fits) return 0;
    ek_release(&array->base);
  }
}

int ek_module_part(ek_object *object, int32_t part, ek_value *out) {
  ek_object *array = NULL;
  int code = -1;
  if (check_module(object, "read module") != 0) return -1;
  ek_module *module = (ek_module *)(void *)object;
  const ek_module_kind *kind = module->kind;
  switch (part) {
    case EK_MODULE_KIND: return ek_string_new(EK_STR, kind->name, strlen(kind->name), out);
    case EK_MODULE_NAMES:
      code = kind->names != NULL ? kind->names(module->self, &array)
                                 : ek_array_new(NULL, 0, &array);
      break;
    case EK_MODULE_IMPORTS: code = imports_of(module, &array); break;
    case EK_MODULE_BYTES:
      if (kind->bytes != NULL) return kind->bytes(module->self, out);
      return ek_error("ValueError", "save module: modules of kind '%s' cannot be saved", kind->name);
    default: return ek_error("ValueError", "read module: there is no part %d", part);
  }
  if (code == 0) *out = ek_value_object(array);
  return code;
}

int ek_module_save(ek_object *object, const char *path) {
  if (check_module(object, "save module") != 0) return -1;
  const ek_module *module = (const ek_module *)(const void *)object;
  if (module->kind->save != NULL) return module->kind->save(module->self, path);
  return ek_error("ValueError", "save module '%s': modules of kind '%s' cannot be saved", path,
                  module->kind->name);
}

/* Files ---------------------------------------------------------------------------------------- */

static int load_executable(const char *path, ek_object **out) {
  ek_object *executable;
  if (ek_executable_load(path, &executable) != 0) return -1;
  int code = ek_program_new(executable, out);
  ek_release(executable);
  return code;
}

static int call_loader(ek_object *loader, const char *path, ek_object **out) {
  ek_value argument = {EK_RAW_STR, 0, {0}}, result = ek_value_none();
  argument.v.ptr = (void *)(uintptr_t)path;
  if (ek_function_call(loader, &argument, 1, &result) != 0) return -1;
  if (result.type_index == EK_MODULE) {
    *out = result.v.obj;
    return 0;
  }
  ek_error("TypeError", "load module '%s': its loader must give a module, got %s", path,
           ek_value_type_name(&result));
  ek_value_release(&result);
  return -1;
}

/* "so" of "dir.d/libm.so.6", "" without any. */
static const char *suffix_of(const char *path) {
  const char *name = ek_path_name(path), *dot = strrchr(name, '.');
  if (strstr(name, ".so.") != NULL) return "so";
  return dot == NULL ? "" : dot + 1;
}

int ek_module_load(const char *path, ek_object **out) {
  char name[64];
  const char *suffix = suffix_of(path);
  snprintf(name, sizeof name, "ek.module.load.%.40s", suffix);
  ek_object *loader = ek_registry_get(name);
  if (loader != NULL) {
    int code = call_loader(loader, path, out);
    ek_release(loader);
    return code;
  }
  if (strcmp(suffix, EK_LIBRARY_SUFFIX) == 0) return ek_library_load(path, out);
  if (strcmp(suffix, "eki") == 0) return load_executable(path, out);
  return ek_error("ValueError", "load module '%s': a suffix ." EK_LIBRARY_SUFFIX " or .eki expected, or one with a "
                  "registered function '%s'", path, name);
}
