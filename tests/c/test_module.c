/* Modules: shared libraries and imports. The first argument is the path of library.c, built. */
#include "check.h"

#include <unistd.h>

static ek_object *load(const char *path) {
  ek_object *module = NULL;
  CHECK(ek_module_load(path, &module) == 0);
  return module;
}

static void a_library_gives_functions_that_outlive_it(const char *path) {
  ek_object *module = load(path), *function = NULL, *missing = module;
  ek_value arg = ek_value_int(20), ret = ek_value_none();
  CHECK(ek_module_get(module, "add_one", &function) == 0 && function != NULL);
  CHECK(ek_module_get(module, "no_such", &missing) == 0 && missing == NULL);
  ek_object_release(module);
  CHECK(ek_function_call(function, &arg, 1, &ret) == 0 && ret.v.i64 == 21);
  CHECK(ek_function_call(function, &arg, 0, &ret) == -1);
  ek_object_release(function);
}

static void a_library_is_initialised_once(const char *path) {
  ek_object *first = load(path), *second = load(path), *function = NULL;
  ek_value ret = ek_value_none();
  CHECK(ek_module_get(second, "times_initialised", &function) == 0 && function != NULL);
  CHECK(ek_function_call(function, NULL, 0, &ret) == 0 && ret.v.i64 == 1);
  ek_object_release(function);
  ek_object_release(second);
  ek_object_release(first);
}

static void a_bare_name_is_a_file_of_this_folder(const char *path) {
  char folder[512];
  const char *name = strrchr(path, '/') + 1;
  CHECK((size_t)(name - path) < sizeof folder);
  memcpy(folder, path, (size_t)(name - path));
  folder[name - path] = '\0';
  CHECK(chdir(folder) == 0);
  ek_object_release(load(name));
}

static void cycles_of_imports_are_refused(const char *path) {
  ek_object *top, *middle, *library = load(path), *function = NULL;
  top = load(path);
  middle = load(path);
  CHECK(ek_module_import(top, middle) == 0 && ek_module_import(middle, library) == 0);
  CHECK_ERROR(ek_module_import(library, top), "ValueError",
              "import module: the imported module imports this one already");
  CHECK_ERROR(ek_module_import(top, top), "ValueError",
              "import module: the imported module imports this one already");
  ek_object_release(middle);
  ek_object_release(library);
  CHECK(ek_module_get(top, "add_one", &function) == 0 && function != NULL);
  ek_object_release(function);
  ek_object_release(top);
}

/* A kind of module as a third party adds one: it gives what it holds under the name "held". */
typedef struct holder {
  int destroyed;
  char saved[64];
} holder;

static int held_call(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self;
  (void)args;
  *ret = ek_value_int(nargs);
  return 0;
}

static int holder_get(void *self, ek_object *module, const char *name, ek_object **out) {
  (void)self;
  (void)module;
  if (strcmp(name, "broken") == 0) return ek_error("IndexError", "holder: broken");
  return strcmp(name, "held") != 0 ? 0 : ek_function_new(NULL, held_call, NULL, out);
}

static int holder_names(void *self, ek_object **out) {
  static const char *const names[] = {"held"};
  (void)self;
  return ek_array_of_names(names, 1, out);
}

static int holder_save(void *self, const char *path) {
  snprintf(((holder *)self)->saved, sizeof ((holder *)self)->saved, "%s", path);
  return 0;
}

static void holder_destroy(void *self) { ((holder *)self)->destroyed++; }

static const ek_module_kind holder_kind = {"holder", holder_get, holder_names, holder_save,
                                           holder_destroy, NULL};
static const ek_module_kind bare_kind = {"bare", holder_get, NULL, NULL, NULL, NULL};

static ek_object *module_of(const ek_module_kind *kind, holder *self) {
  ek_object *module = NULL;
  CHECK(ek_module_new(kind, self, &module) == 0);
  return module;
}

static ek_value part_of(ek_object *module, int32_t part) {
  ek_value value = ek_value_none();
  CHECK(ek_module_part(module, part, &value) == 0);
  return value;
}

static int call_global(const char *name, const ek_value *args, int32_t nargs, ek_value *ret) {
  ek_object *function = ek_registry_get(name);
  CHECK(function != NULL);
  int code = ek_function_call(function, args, nargs, ret);
  ek_object_release(function);
  return code;
}

static void a_kind_is_a_table_of_functions(void) {
  holder self = {0, ""};
  ek_object *module = module_of(&holder_kind, &self), *out = NULL;
  CHECK(ek_module_implements(module, "held") == 1 && ek_module_implements(module, "x") == 0);
  CHECK_ERROR(ek_module_implements(module, "broken"), "IndexError", "holder: broken");
  ek_value kind = part_of(module, EK_MODULE_KIND), names = part_of(module, EK_MODULE_NAMES);
  ek_bytes text;
  CHECK(ek_string_borrow(&kind, &text) && same_text(text, "holder"));
  CHECK(((ek_array *)(void *)names.v.obj)->size == 1);
  ek_value_release(&names);
  ek_value args[2] = {ek_value_object(module), {EK_RAW_STR, 0, {0}}}, ret = ek_value_none();
  args[1].v.ptr = (void *)(uintptr_t) "there";
  CHECK(call_global("ek.module.save", args, 2, &ret) == 0 && strcmp(self.saved, "there") == 0);
  CHECK_ERROR(call_global("ek.module.save", args, 1, &ret), "TypeError",
              "ek.module.save: a module and a path expected");
  CHECK_ERROR(ek_module_part(module, 9, &kind), "ValueError", "read module: there is no part 9");
  CHECK(self.destroyed == 0);
  ek_object_release(module);
  CHECK(self.destroyed == 1);
  module = module_of(&bare_kind, NULL);
  names = part_of(module, EK_MODULE_NAMES);
  CHECK(((ek_array *)(void *)names.v.obj)->size == 0);
  ek_value_release(&names);
  args[0] = ek_value_object(module);
  CHECK_ERROR(call_global("ek.module.save", args, 2, &ret), "ValueError",
              "save module 'there': modules of kind 'bare' cannot be saved");
  CHECK(out == NULL);
  ek_object_release(module);
}

static void imports_are_listed_and_dropped(void) {
  holder first = {0, ""}, second = {0, ""};
  ek_object *module = module_of(&holder_kind, &first);
  ek_object *imported = module_of(&holder_kind, &second);
  CHECK(ek_module_import(module, imported) == 0);
  ek_value imports = part_of(module, EK_MODULE_IMPORTS);
  const ek_array *array = (const ek_array *)(const void *)imports.v.obj;
  CHECK(array->size == 1 && array->data[0].v.obj == imported);
  ek_value_release(&imports);
  ek_object_release(imported);
  CHECK(second.destroyed == 0);
  CHECK(ek_module_import(module, NULL) == 0 && second.destroyed == 1);
  ek_object_release(module);
}

static int load_held(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  ek_bytes path;
  ek_object *module;
  CHECK(nargs == 1 && ek_string_borrow(&args[0], &path));
  if (same_text(path, "not.held")) {
    *ret = ek_value_int(1);
    return 0;
  }
  if (ek_module_new(&bare_kind, self, &module) != 0) return -1;
  *ret = ek_value_object(module);
  return 0;
}

static void a_suffix_names_its_loader(void) {
  ek_object *loader = NULL, *module = NULL;
  CHECK_ERROR(ek_module_load("some.held", &module), "ValueError",
              "load module 'some.held': a suffix .so or .eki expected, or one with a registered "
              "function 'ek.module.load.held'");
  CHECK_ERROR(ek_module_load("/a.b/some", &module), "ValueError",
              "load module '/a.b/some': a suffix .so or .eki expected, or one with a registered "
              "function 'ek.module.load.'");
  CHECK(ek_function_new(NULL, load_held, NULL, &loader) == 0);
  CHECK(ek_registry_set("ek.module.load.held", loader, 0) == 0);
  CHECK(ek_module_load("some.held", &module) == 0 && module->type_index == EK_MODULE);
  ek_object_release(module);
  CHECK_ERROR(ek_module_load("not.held", &module), "TypeError",
              "load module 'not.held': its loader must give a module, got int");
  CHECK(ek_registry_remove("ek.module.load.held") == 1);
  ek_object_release(loader);
}

static int asked;

static int counting_get(void *self, ek_object *module, const char *name, ek_object **out) {
  (void)self;
  (void)module;
  (void)name;
  (void)out;
  asked++;
  return 0;
}

static const ek_module_kind counting_kind = {"counting", counting_get, NULL, NULL, NULL, NULL};

/* Each imports the next one 'ways' times; imported from the top down. The first is owned. */
static ek_object *chain(int length, int ways) {
  ek_object *top = module_of(&counting_kind, NULL), *last = top;
  for (int i = 1; i < length; i++) {
    ek_object *next = module_of(&counting_kind, NULL);
    for (int way = 0; way < ways; way++) CHECK(ek_module_import(last, next) == 0);
    ek_object_release(next);
    last = next;
  }
  return top;
}

/* By all ways it would be 2^40 modules. */
static void a_module_is_asked_once_however_many_ways_lead_to_it(void) {
  ek_object *top = chain(40, 2), *function = top, *above = module_of(&counting_kind, NULL);
  asked = 0;
  CHECK(ek_module_get(top, "missing", &function) == 0 && function == NULL && asked == 40);
  CHECK(ek_module_import(above, top) == 0);
  CHECK_ERROR(ek_module_import(top, above), "ValueError",
              "import module: the imported module imports this one already");
  asked = 0;
  CHECK(ek_module_get(above, "missing", &function) == 0 && asked == 41);
  ek_object_release(above);
  ek_object_release(top);
}

static void long_chains_of_imports_take_no_stack(void) {
  ek_object *top = chain(100000, 1), *function = NULL;
  asked = 0;
  CHECK(ek_module_get(top, "missing", &function) == 0 && asked == 100000);
  ek_object_release(top);
}

static int failing_get(void *self, ek_object *module, const char *name, ek_object **out) {
  (void)self;
  (void)module;
  (void)name;
  (void)out;
  return ek_error("IndexError", "the other was asked first");
}

static const ek_module_kind failing_kind = {"failing", failing_get, NULL, NULL, NULL, NULL};

/* What is below the first import comes before the second import. */
static void functions_are_looked_for_depth_first(void) {
  static holder self;
  ek_object *top = module_of(&counting_kind, NULL), *middle = module_of(&counting_kind, NULL);
  ek_object *below = module_of(&holder_kind, &self), *beside = module_of(&failing_kind, NULL);
  ek_object *function = NULL;
  CHECK(ek_module_import(top, middle) == 0 && ek_module_import(top, beside) == 0);
  CHECK(ek_module_import(middle, below) == 0);
  CHECK(ek_module_get(top, "held", &function) == 0 && function != NULL);
  CHECK_ERROR(ek_module_get(top, "missing", &function), "IndexError", "the other was asked first");
  ek_object_release(function);
  ek_object_release(beside);
  ek_object_release(below);
  ek_object_release(middle);
  ek_object_release(top);
}

/* An error's cause may be anything: a module that imports others when it goes. */
static ek_object *imports_when_it_goes[2];

static void importing_destroy(void *self) {
  (void)self;
  CHECK(ek_module_import(imports_when_it_goes[0], imports_when_it_goes[1]) == 0);
}

static const ek_module_kind importing_kind = {"importing", counting_get, NULL, NULL,
                                              importing_destroy, NULL};

static void errors_are_set_outside_the_lock(void) {
  ek_object *module = module_of(&bare_kind, NULL), *error;
  imports_when_it_goes[0] = module_of(&bare_kind, NULL);
  imports_when_it_goes[1] = module_of(&bare_kind, NULL);
  ek_error("ValueError", "one that is pending");
  error = ek_error_take();
  ((ek_error_object *)(void *)error)->cause = module_of(&importing_kind, NULL);
  ek_error_set(error);
  ek_object_release(error);
  CHECK_ERROR(ek_module_import(module, module), "ValueError",
              "import module: the imported module imports this one already");
  ek_object_release(imports_when_it_goes[0]);
  ek_object_release(imports_when_it_goes[1]);
  ek_object_release(module);
}

/* As TVM-FFI's modules: the same type index, another deleter. */
static void a_module_of_another_runtime_is_refused(void) {
  ek_object foreign = {EK_REFS_NEW, EK_MODULE, 0, ek_object_plain_deleter}, *out = NULL;
  CHECK_ERROR(ek_module_get(&foreign, "x", &out), "TypeError",
              "get function: expected a module made by this runtime, got one of another");
}

static void a_function_is_found_through_imports(const char *path) {
  ek_object *empty = NULL, *library = load(path), *function = NULL, *names = NULL;
  empty = module_of(&bare_kind, NULL);
  CHECK(ek_module_get(empty, "add_one", &function) == 0 && function == NULL);
  CHECK(ek_module_import(empty, library) == 0);
  CHECK(ek_module_get(empty, "add_one", &function) == 0 && function != NULL);
  CHECK(ek_module_names(empty, &names) == 0 && ((ek_array *)(void *)names)->size == 0);
  ek_object_release(names);
  ek_object_release(function);
  ek_object_release(library);
  ek_object_release(empty);
}

static void wrong_files_and_objects_are_refused(void) {
  ek_object *out = NULL;
  CHECK(ek_module_load("/no/such/library.so", &out) == -1);
  ek_error_object *error = (ek_error_object *)(void *)ek_error_take();
  CHECK(same_text(error->kind, "OSError"));
  CHECK(strstr(error->message.data, "load library '/no/such/library.so': ") != NULL);
  ek_object_release(&error->base);
  CHECK_ERROR(ek_module_get(NULL, "x", &out), "TypeError", "get function: expected a module");
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  a_library_gives_functions_that_outlive_it(argv[1]);
  a_library_is_initialised_once(argv[1]);
  cycles_of_imports_are_refused(argv[1]);
  a_function_is_found_through_imports(argv[1]);
  wrong_files_and_objects_are_refused();
  a_kind_is_a_table_of_functions();
  imports_are_listed_and_dropped();
  a_suffix_names_its_loader();
  a_module_of_another_runtime_is_refused();
  a_module_is_asked_once_however_many_ways_lead_to_it();
  long_chains_of_imports_take_no_stack();
  functions_are_looked_for_depth_first();
  errors_are_set_outside_the_lock();
  a_bare_name_is_a_file_of_this_folder(argv[1]);
  return 0;
}
