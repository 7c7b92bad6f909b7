/* Reference counts, weak references, types by key. */
#include "check.h"

static int content_deleted, memory_deleted;

static void counting_deleter(void *self, int flags) {
  if (flags & EK_DELETE_CONTENT) content_deleted++;
  if (flags & EK_DELETE_MEMORY) {
    memory_deleted++;
    ek_free(self);
  }
}

static ek_object *fresh(void) {
  content_deleted = memory_deleted = 0;
  ek_object *object = ek_object_alloc(64, EK_OBJECT, counting_deleter);
  CHECK(object != NULL && object->refs == EK_REFS_NEW && object->type_index == EK_OBJECT);
  return object;
}

static void the_last_release_deletes_both(void) {
  ek_object *object = fresh();
  ek_object_retain(object);
  ek_object_release(object);
  CHECK(content_deleted == 0);
  ek_object_release(object);
  CHECK(content_deleted == 1 && memory_deleted == 1);
  ek_object_retain(NULL);
  ek_object_release(NULL);
}

static void a_weak_reference_keeps_the_memory_only(void) {
  ek_object *object = fresh();
  ek_weak_retain(object);
  CHECK(ek_weak_lock(object) == object);
  ek_object_release(object);
  ek_object_release(object);
  CHECK(content_deleted == 1 && memory_deleted == 0);
  CHECK(ek_weak_lock(object) == NULL);
  ek_weak_release(object);
  CHECK(content_deleted == 1 && memory_deleted == 1);
}

static void types_have_keys_and_indices(void) {
  CHECK(strcmp(ek_type_key(EK_TENSOR), "ffi.Tensor") == 0);
  CHECK(ek_type_index("ek.ADT") == EK_ADT && ek_type_index("ffi.Module") == EK_MODULE);
  CHECK(ek_type_index("test.Nothing") == -1 && ek_type_key(127) == NULL && ek_type_key(-5) == NULL);
  int32_t point = ek_type_register("test.Point", EK_OBJECT);
  CHECK(point > EK_VM && ek_type_register("test.Point", EK_OBJECT) == point);
  CHECK(ek_type_index("test.Point") == point && strcmp(ek_type_key(point), "test.Point") == 0);
  int32_t child = ek_type_register("test.Point3", point);
  CHECK(child == point + 1 && ek_type_key(child + 1) == NULL);
}

static void bad_types_are_refused(void) {
  CHECK_ERROR(ek_type_register("", EK_OBJECT), "ValueError", "register type: the key is empty");
  CHECK_ERROR(ek_type_register("test.A", EK_INT), "ValueError",
              "register type 'test.A': parent must be the index of an object type, got 1");
  CHECK_ERROR(ek_type_register("test.A", 999), "ValueError",
              "register type 'test.A': parent must be the index of an object type, got 999");
  CHECK_ERROR(ek_type_register("ek.ADT", EK_ARRAY), "ValueError",
              "register type 'ek.ADT': its parent is 'ffi.Object' already, got 'ffi.Array'");
}

static void share_one_object(void *context) {
  ek_object *object = context;
  for (int i = 0; i < 20000; i++) {
    ek_object_retain(object);
    ek_weak_retain(object);
    ek_weak_release(object);
    ek_object_release(object);
  }
  ek_object_release(object);
}

static void many_threads_may_share_an_object(void) {
  ek_thread threads[4];
  ek_object *object = fresh();
  for (int i = 0; i < 4; i++) {
    ek_object_retain(object);
    CHECK(ek_thread_start(&threads[i], share_one_object, object, -1) == 0);
  }
  ek_object_release(object);
  for (int i = 0; i < 4; i++) ek_thread_join(threads[i]);
  CHECK(content_deleted == 1 && memory_deleted == 1);
}

static void register_types(void *context) {
  char key[32];
  int32_t *sum = context;
  for (int i = 0; i < 50; i++) {
    snprintf(key, sizeof key, "test.T%d", i);
    *sum += ek_type_register(key, EK_OBJECT);
    CHECK(ek_type_index(key) > EK_VM);
  }
}

static void many_threads_may_register_types(void) {
  ek_thread threads[4];
  int32_t sums[4] = {0};
  for (int i = 0; i < 4; i++) ek_thread_start(&threads[i], register_types, &sums[i], -1);
  for (int i = 0; i < 4; i++) ek_thread_join(threads[i]);
  for (int i = 1; i < 4; i++) CHECK(sums[i] == sums[0]);
}

int main(void) {
  the_last_release_deletes_both();
  a_weak_reference_keeps_the_memory_only();
  types_have_keys_and_indices();
  bad_types_are_refused();
  many_threads_may_share_an_object();
  many_threads_may_register_types();
  return 0;
}
