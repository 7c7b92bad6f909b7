/* Gives maps of few and of many entries to map_tvm_ffi.cpp, built, whose path is the argument. */
#include "check.h"

enum { MOST = 25 };

static int64_t total(ek_object *function, int n) {
  ek_value items[2 * MOST], dims[2] = {ek_value_int(3), ek_value_int(4)}, ret = ek_value_none();
  ek_object *map = NULL, *shape = NULL;
  char key[16];
  for (int i = 0; i < n; i++) {
    snprintf(key, sizeof key, "k%d", i);
    CHECK(ek_string_new(EK_STR, key, strlen(key), &items[2 * i]) == 0);
    items[2 * i + 1] = ek_value_int(i);
  }
  CHECK(ek_container_new(EK_MAP, 0, items, 2 * n, &map) == 0);
  CHECK(ek_container_new(EK_SHAPE, 0, dims, 2, &shape) == 0);
  ek_value args[2] = {ek_value_object(map), ek_value_object(shape)};
  CHECK(ek_function_call(function, args, 2, &ret) == 0);
  ek_object_release(shape);
  ek_object_release(map);
  return ret.v.i64;
}

int main(int argc, char **argv) {
  ek_object *module = NULL, *function = NULL;
  CHECK(argc == 2 && ek_module_load(argv[1], &module) == 0);
  CHECK(ek_module_get(module, "total", &function) == 0 && function != NULL);
  for (int n = 2; n <= MOST; n++) CHECK(total(function, n) == 1000 + n * (n - 1) / 2 + 7);
  ek_object_release(function);
  ek_object_release(module);
  return 0;
}
