/* Function objects and the registry of global functions. */
#include "check.h"

static int deleted;

static void delete_self(void *self) {
  CHECK(self == &deleted);
  deleted++;
}

static int add(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  CHECK(self == &deleted);
  if (nargs != 2) return ek_error("TypeError", "add: expected 2 arguments, got %d", nargs);
  *ret = ek_value_int(args[0].v.i64 + args[1].v.i64);
  return 0;
}

static ek_object *new_add(void) {
  ek_object *function = NULL;
  deleted = 0;
  CHECK(ek_function_new(&deleted, add, delete_self, &function) == 0);
  return function;
}

static void a_function_passes_its_self_and_errors(void) {
  ek_object *function = new_add();
  ek_value args[2] = {ek_value_int(2), ek_value_int(40)}, ret = ek_value_none();
  CHECK(ek_function_call(function, args, 2, &ret) == 0);
  CHECK(ret.type_index == EK_INT && ret.v.i64 == 42);
  CHECK_ERROR(ek_function_call(function, args, 1, &ret), "TypeError",
              "add: expected 2 arguments, got 1");
  ek_object_release(function);
  CHECK(deleted == 1);
}

static void names_are_taken_once(void) {
  ek_object *function = new_add(), *other = new_add();
  CHECK(ek_registry_set("test.add", function, 0) == 0);
  CHECK_ERROR(ek_registry_set("test.add", other, 0), "ValueError",
              "register function 'test.add': the name is taken");
  CHECK_ERROR(ek_registry_set("", other, 0), "ValueError", "register function: the name is empty");
  ek_object *array = NULL;
  CHECK(ek_array_new(NULL, 0, &array) == 0);
  CHECK_ERROR(ek_registry_set("x", array, 0), "TypeError",
              "register function 'x': expected a function object");
  ek_object_release(array);
  CHECK(ek_registry_set("x", NULL, 0) == 0 && ek_registry_remove("x") == 0);
  ek_object *found = ek_registry_get("test.add");
  CHECK(found == function);
  ek_object_release(found);
  CHECK(ek_registry_set("test.add", other, 1) == 0);
  ek_object_release(function);
  CHECK(deleted == 1);
  ek_object_release(other);
  CHECK(ek_registry_remove("test.add") == 1 && deleted == 2);
  CHECK(ek_registry_remove("test.add") == 0 && ek_registry_get("test.add") == NULL);
}

/* An error of another library that was pending: it goes when the next one is set. */
static void delete_foreign(void *self, int flags) {
  (void)self;
  if ((flags & EK_DELETE_CONTENT) == 0) return;
  CHECK(ek_registry_get("test.add") != NULL);
  deleted++;
}

static void what_goes_with_a_refusal_may_look_names_up(void) {
  ek_object *function = new_add();
  ek_error_object foreign = {{EK_REFS_NEW, EK_ERROR, 0, delete_foreign},
                             {"ValueError", 10}, {"", 0}, {"", 0}, NULL, NULL, NULL};
  CHECK(ek_registry_set("test.add", function, 0) == 0);
  CHECK(ek_error_set(&foreign.base) == -1);
  ek_object_release(&foreign.base);
  CHECK_ERROR(ek_registry_set("test.add", function, 0), "ValueError",
              "register function 'test.add': the name is taken");
  CHECK(deleted == 1);
  ek_object_release(function); /* that of the deleter, of the registry, and ours */
  CHECK(ek_registry_remove("test.add") == 1);
  ek_object_release(function);
  CHECK(deleted == 2);
}

static void names_come_sorted(void) {
  ek_object *function = new_add(), *names = NULL;
  const char *wanted[] = {"test.b", "test.a", "test.zzz.long.enough"};
  for (int i = 0; i < 3; i++) CHECK(ek_registry_set(wanted[i], function, 0) == 0);
  CHECK(ek_registry_names(&names) == 0);
  ek_array *array = (ek_array *)(void *)names;
  ek_bytes before = {"", 0}, name;
  int found = 0;
  for (int64_t i = 0; i < array->size; i++) {
    CHECK(ek_string_borrow(&array->data[i], &name) == 1);
    CHECK(strcmp(before.data, name.data) < 0);
    for (int k = 0; k < 3; k++) found += same_text(name, wanted[k]);
    before = name;
  }
  CHECK(found == 3);
  for (int i = 0; i < 3; i++) CHECK(ek_registry_remove(wanted[i]) == 1);
  ek_object_release(names);
  ek_object_release(function);
  CHECK(deleted == 1);
}

static void the_runtime_registers_its_own(void) {
  ek_value ret = ek_value_none(), bad = ek_value_none();
  ek_object *function = ek_registry_get("ek.runtime.allocation_count");
  CHECK(function != NULL && ek_function_call(function, NULL, 0, &ret) == 0);
  CHECK(ret.type_index == EK_INT && ret.v.i64 > 0);
  CHECK_ERROR(ek_function_call(function, &bad, 1, &ret), "TypeError",
              "ek.runtime.allocation_count: expected no argument, got 1");
  ek_object_release(function);
}

static void churn(void *context) {
  char name[32];
  ek_object *function = context;
  for (int i = 0; i < 200; i++) {
    snprintf(name, sizeof name, "churn.%d", i % 7);
    CHECK(ek_registry_set(name, function, 1) == 0);
    ek_object *found = ek_registry_get(name);
    ek_object_release(found);
    ek_registry_remove(name);
  }
}

static void many_threads_may_use_it(void) {
  ek_thread threads[4];
  ek_object *function = new_add();
  for (int i = 0; i < 4; i++) ek_thread_start(&threads[i], churn, function, -1);
  for (int i = 0; i < 4; i++) ek_thread_join(threads[i]);
  ek_object_release(function);
  CHECK(deleted == 1);
}

/* Each of four threads registers the same types, defines one that all define, and gives a method to
** one that is defined. */
enum { THREADS = 4, ROUNDS = 50 };

static int32_t defined, methods_of[ROUNDS]; /* 'defined' is atomic */

static void define_at_once(void *name) {
  ek_field field = {"x", NULL, EK_ANY, 0, 0, 0, NULL, NULL, {0, 0, {0}}};
  ek_method method = {name, NULL, NULL};
  ek_type_def fields = {0, NULL, NULL, &field, NULL, 1, 0, NULL};
  ek_type_def methods = {0, NULL, NULL, NULL, &method, 0, 1, NULL};
  char key[32];
  CHECK(ek_function_new(NULL, add, NULL, &method.function) == 0);
  for (int i = 0; i < ROUNDS; i++) {
    snprintf(key, sizeof key, "test.AtOnce%d", i);
    int32_t type = ek_type_register(key, EK_OBJECT);
    CHECK(type > 0 && ek_type_register(key, EK_OBJECT) == type);
    if (ek_type_define(type, &fields) == 0) __atomic_fetch_add(&defined, 1, __ATOMIC_RELAXED);
    drop_error();
    CHECK(ek_type_get(type)->is_defined && ek_type_define(type, &methods) == 0);
    __atomic_store_n(&methods_of[i], type, __ATOMIC_RELAXED);
  }
  ek_object_release(method.function);
}

static void types_are_defined_once_by_any_thread(void) {
  static char names[THREADS][2] = {"a", "b", "c", "d"};
  ek_thread threads[THREADS];
  for (int i = 0; i < THREADS; i++) {
    CHECK(ek_thread_start(&threads[i], define_at_once, names[i], -1) == 0);
  }
  for (int i = 0; i < THREADS; i++) ek_thread_join(threads[i]);
  CHECK(defined == ROUNDS);
  for (int i = 0; i < ROUNDS; i++) {
    const ek_type_info *info = ek_type_get(methods_of[i]);
    CHECK(info->n_fields == 1 && info->n_methods == THREADS);
  }
}

int main(void) {
  a_function_passes_its_self_and_errors();
  names_are_taken_once();
  what_goes_with_a_refusal_may_look_names_up();
  names_come_sorted();
  the_runtime_registers_its_own();
  many_threads_may_use_it();
  types_are_defined_once_by_any_thread();
  return 0;
}
