/* Modules: shared libraries and imports. The first argument is the path of library.c, built. */
#include "check.h"

static ek_object *load(const char *path) {
  ek_object *module = NULL;
  CHECK(ek_library_load(path, &module) == 0);
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

static int no_functions(ek_module *module, const char *name, ek_object **out) {
  (void)module;
  (void)name;
  (void)out;
  return 0;
}

static int no_names(ek_module *module, ek_object **out) {
  (void)module;
  return ek_array_new(NULL, 0, out);
}

static void no_destroy(ek_module *module) { (void)module; }

static const ek_module_kind empty_kind = {"empty", no_functions, no_names, no_destroy};

static void a_function_is_found_through_imports(const char *path) {
  ek_object *empty = NULL, *library = load(path), *function = NULL, *names = NULL;
  CHECK(ek_module_new(&empty_kind, NULL, &empty) == 0);
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
  CHECK(ek_library_load("/no/such/library.so", &out) == -1);
  ek_error_object *error = (ek_error_object *)(void *)ek_error_take();
  CHECK(same_text(error->kind, "OSError"));
  CHECK(strstr(error->message.data, "load library '/no/such/library.so': ") != NULL);
  ek_object_release(&error->base);
  CHECK_ERROR(ek_module_get(NULL, "x", &out), "TypeError", "get function: expected a module");
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  a_library_gives_functions_that_outlive_it(argv[1]);
  cycles_of_imports_are_refused(argv[1]);
  a_function_is_found_through_imports(argv[1]);
  wrong_files_and_objects_are_refused();
  return 0;
}
