/* Every allocation of a scenario fails once: there is an error, nothing leaks, nothing breaks. */
#include "image.h"

#ifdef EK_HARD_TEST
static int nothing(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self;
  (void)args;
  (void)nargs;
  (void)ret;
  return 0;
}

static int strings(void) {
  ek_value items[2] = {ek_value_int(1), ek_value_none()};
  ek_object *array = NULL, *adt = NULL;
  int code = ek_string_new(EK_STR, "more than seven", 15, &items[1]);
  if (code == 0) code = ek_array_new(items, 2, &array);
  if (code == 0) code = ek_adt_new(1, items, 2, &adt);
  ek_object_release(array);
  ek_object_release(adt);
  ek_value_release(&items[1]);
  return code;
}

static int tensors(void) {
  const int64_t shape[2] = {3, 5};
  ek_object *tensor = NULL, *view = NULL, *import = NULL;
  void *managed = NULL;
  int code = ek_tensor_new(shape, 2, float32, cpu, &tensor);
  if (code == 0) {
    void *data = ((ek_tensor *)(void *)tensor)->dl.data;
    code = ek_tensor_view(tensor, data, shape, 2, float32, cpu, 0, &view);
  }
  if (code == 0) code = ek_tensor_to_dlpack(view, 1, &managed);
  if (code == 0) code = ek_tensor_from_dlpack(managed, 1, &import);
  if (code != 0 && managed != NULL) ((ek_managed_versioned *)managed)->deleter(managed);
  ek_object_release(import);
  ek_object_release(view);
  ek_object_release(tensor);
  return code;
}

static int functions(void) {
  ek_object *function = NULL, *names = NULL;
  int code = ek_function_new(NULL, nothing, NULL, &function);
  if (code == 0) code = ek_registry_set("hard.function", function, 0);
  if (code == 0) code = ek_registry_names(&names);
  ek_registry_remove("hard.function");
  ek_object_release(names);
  ek_object_release(function);
  return code;
}

static int modules(void) {
  image_bytes image = make_image();
  ek_object *first = NULL, *second = NULL, *function = NULL, *names = NULL;
  int code = ek_image_load(image.bytes, image.size, &first);
  if (code == 0) code = ek_image_load(image.bytes, image.size, &second);
  if (code == 0) code = ek_module_import(first, second);
  if (code == 0) code = ek_module_get(first, "answer", &function);
  if (code == 0) code = ek_module_names(first, &names);
  ek_object_release(names);
  ek_object_release(function);
  ek_object_release(second);
  ek_object_release(first);
  return code;
}

/* A type may be defined once: what fails half way leaves the next try to define the rest. */
static int types(void) {
  static int tries;
  char key[32];
  ek_field fields[2] = {{"left", "a", EK_ANY, 0, 0, EK_FIELD_DEFAULT, NULL, NULL, {0, 0, {0}}},
                        {"text", NULL, EK_STR, 0, 0, 0, NULL, NULL, {0, 0, {0}}}};
  ek_value values[2] = {ek_value_none()};
  ek_object *object = NULL;
  snprintf(key, sizeof key, "hard.Type%d", tries++);
  ek_type_def def = {0, NULL, "a type", fields, NULL, 2, 0, NULL};
  int32_t index = ek_type_register(key, EK_OBJECT);
  int code = index < 0 ? -1 : ek_type_define(index, &def);
  values[1] = (ek_value){EK_RAW_STR, 0, {0}};
  values[1].v.ptr = key;
  if (code == 0) code = ek_object_new(index, values, 2, &object);
  ek_object_release(object);
  return code;
}

static int maps(void) {
  ek_value items[40], hash_of;
  uint64_t hash;
  char keys[40][16];
  ek_object *map = NULL, *other = NULL, *shape = NULL;
  for (int i = 0; i < 40; i++) {
    snprintf(keys[i], sizeof keys[i], "a long key %d", i % 4);
    items[i] = (ek_value){EK_RAW_STR, 0, {0}};
    items[i].v.ptr = keys[i];
  }
  int code = ek_container_new(EK_MAP, 0, items, 40, &map);
  if (code == 0) code = ek_container_new(EK_MAP, 0, items, 40, &other);
  hash_of = map == NULL ? ek_value_none() : ek_value_object(map);
  if (code == 0) code = ek_value_hash(&hash_of, &hash);
  if (code == 0) {
    ek_value b = ek_value_object(other);
    code = ek_value_equal(&hash_of, &b) == 1 ? 0 : -1;
  }
  items[0] = ek_value_int(3);
  if (code == 0) code = ek_container_new(EK_SHAPE, 0, items, 1, &shape);
  ek_object_release(shape);
  ek_object_release(map);
  ek_object_release(other);
  return code;
}

static int workspace(void) {
  void *small = ek_workspace_alloc(100);
  if (small == NULL) return -1;
  void *large = ek_workspace_alloc(3 << 20);
  ek_workspace_free(large);
  ek_workspace_free(small);
  return large == NULL ? -1 : 0;
}

static int loop_body(void *context, int64_t begin, int64_t end) {
  __atomic_fetch_add((int64_t *)context, end - begin, __ATOMIC_RELAXED);
  return 0;
}

/* Without memory for its workers a loop runs on the caller's thread: it never fails. */
static void a_loop_needs_no_memory(void) {
  int64_t sum = 0;
  ek_num_threads(3);
  ek_hard_fail_at(1);
  CHECK(ek_parallel_for(loop_body, &sum, 100, 1) == 0 && sum == 100);
  ek_num_threads(1);
}

/* Types stay: what each try has left is not counted. */
static void survive_staying(const char *name, int (*scenario)(void)) {
  int64_t n = 0;
  for (int code = -1; code != 0;) {
    CHECK(n < 1000);
    ek_hard_fail_at(++n);
    code = scenario();
    ek_hard_fail_at(0);
    ek_object *error = ek_error_take();
    CHECK(code == 0 || error != NULL);
    ek_object_release(error);
  }
  printf("%s: survives each of %lld failures\n", name, (long long)n - 1);
}

static void survive(const char *name, int (*scenario)(void)) {
  CHECK(scenario() == 0); /* what is made once per process is made now */
  int64_t live = ek_hard_live(), n = 0;
  for (int code = -1; code != 0;) {
    ek_hard_fail_at(++n);
    code = scenario();
    ek_hard_fail_at(0);
    ek_object *error = ek_error_take();
    bool silent = code != 0 && error == NULL;
    ek_object_release(error);
    if (silent || ek_hard_live() != live) fprintf(stderr, "%s, allocation %d\n", name, (int)n);
    CHECK(!silent && ek_hard_live() == live && n < 1000);
  }
  printf("%s: survives each of %lld failures\n", name, (long long)n - 1);
}

static void an_error_without_memory_is_still_an_error(void) {
  ek_hard_fail_at(1);
  CHECK_ERROR(ek_error("ValueError", "lost"), "MemoryError", "out of memory");
}

int main(void) {
  an_error_without_memory_is_still_an_error();
  survive("strings", strings);
  survive("tensors", tensors);
  survive("functions", functions);
  survive("modules", modules);
  survive("maps", maps);
  survive_staying("types", types);
  survive("workspace", workspace);
  a_loop_needs_no_memory();
  return 0;
}
#else
int main(void) { return 0; }
#endif
