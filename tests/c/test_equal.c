/* Structural equality and hash, maps and shapes. */
#include "check.h"

static ek_value raw(const char *text) {
  ek_value value = {EK_RAW_STR, 0, {0}};
  value.v.ptr = (void *)(uintptr_t)text;
  return value;
}

static ek_value text(const char *from) {
  ek_value value;
  CHECK(ek_string_new(EK_STR, from, strlen(from), &value) == 0);
  return value;
}

static ek_value container(int32_t type, const ek_value *items, int64_t n) {
  ek_object *out = NULL;
  CHECK(ek_container_new(type, 0, items, n, &out) == 0);
  return ek_value_object(out);
}

static uint64_t hash(ek_value value) {
  uint64_t out = 0;
  CHECK(ek_value_hash(&value, &out) == 0);
  return out;
}

/* Both values are released. */
static void expect(ek_value a, ek_value b, int equal) {
  CHECK(ek_value_equal(&a, &b) == equal && ek_value_equal(&b, &a) == equal);
  CHECK(!equal || hash(a) == hash(b));
  ek_value_release(&a);
  ek_value_release(&b);
}

static ek_value number(double x) {
  ek_value value = {EK_FLOAT, 0, {0}};
  value.v.f64 = x;
  return value;
}

static void plain_values_are_equal_with_their_types(void) {
  ek_value yes = {EK_BOOL, 0, {1}};
  expect(ek_value_int(1), ek_value_int(1), 1);
  expect(ek_value_int(1), ek_value_int(2), 0);
  expect(ek_value_int(1), yes, 0);
  expect(ek_value_int(1), number(1), 0);
  expect(number(0.5), number(0.5), 1);
  expect(ek_value_none(), ek_value_none(), 1);
  expect(ek_value_none(), ek_value_int(0), 0);
  CHECK(hash(ek_value_int(1)) != hash(ek_value_int(2)));
}

static void text_is_equal_in_all_its_forms(void) {
  ek_value bytes;
  expect(raw("short"), text("short"), 1);
  expect(raw("a text of some length"), text("a text of some length"), 1);
  expect(raw("a text of some length"), text("a text of some lengtH"), 0);
  CHECK(ek_string_new(EK_BYTES, "short", 5, &bytes) == 0);
  expect(text("short"), bytes, 0);
}

static void containers_are_equal_by_their_items(void) {
  ek_value a[3] = {ek_value_int(1), raw("two"), number(3)};
  ek_value b[3] = {ek_value_int(1), raw("two"), number(4)};
  expect(container(EK_ARRAY, a, 3), container(EK_ARRAY, a, 3), 1);
  expect(container(EK_ARRAY, a, 3), container(EK_ARRAY, b, 3), 0);
  expect(container(EK_ARRAY, a, 3), container(EK_ARRAY, a, 2), 0);
  expect(container(EK_ARRAY, a, 3), container(EK_ADT, a, 3), 0);
  ek_value dims[2] = {ek_value_int(3), ek_value_int(4)};
  expect(container(EK_SHAPE, dims, 2), container(EK_SHAPE, dims, 2), 1);
  expect(container(EK_SHAPE, dims, 2), container(EK_SHAPE, dims, 1), 0);
  expect(container(EK_SHAPE, dims, 0), container(EK_SHAPE, dims, 0), 1);
}

static void maps_are_equal_in_any_order(void) {
  ek_value items[40], reversed[40];
  char names[20][16];
  for (int i = 0; i < 20; i++) {
    snprintf(names[i], sizeof names[i], "key%d", i);
    items[2 * i] = raw(names[i]);
    items[2 * i + 1] = ek_value_int(i);
    memcpy(&reversed[38 - 2 * i], &items[2 * i], 2 * sizeof(ek_value));
  }
  expect(container(EK_MAP, items, 40), container(EK_MAP, reversed, 40), 1);
  expect(container(EK_MAP, items, 40), container(EK_MAP, items, 38), 0);
  expect(container(EK_MAP, items, 6), container(EK_MAP, reversed + 34, 6), 1);
  reversed[1] = ek_value_int(-1);
  expect(container(EK_MAP, items, 40), container(EK_MAP, reversed, 40), 0);
}

static ek_value tensor(int32_t a, int32_t b) {
  const int64_t shape[1] = {2};
  const ek_dtype int32 = {EK_DTYPE_INT, 32, 1};
  ek_object *object = NULL;
  CHECK(ek_tensor_new(shape, 1, int32, cpu, &object) == 0);
  int32_t *data = ((ek_tensor *)(void *)object)->dl.data;
  data[0] = a;
  data[1] = b;
  return ek_value_object(object);
}

static void tensors_are_equal_by_their_elements(void) {
  expect(tensor(1, 2), tensor(1, 2), 1);
  expect(tensor(1, 2), tensor(2, 1), 0);
  ek_value whole = tensor(1, 2), backwards = ek_value_none();
  const ek_dltensor *dl = ek_value_tensor(&whole);
  int64_t shape = 2, stride = -1;
  ek_dltensor like = {dl->data, dl->device, 1, dl->dtype, &shape, &stride, 4};
  ek_object *view = NULL;
  CHECK(ek_tensor_strided(whole.v.obj, &like, 0, &view) == 0);
  backwards = ek_value_object(view);
  expect(backwards, tensor(2, 1), 1);
  ek_value_release(&whole);
}

static void objects_are_equal_by_their_fields(void) {
  ek_field fields[2] = {{"a", NULL, EK_ANY, 0, 0, 0, NULL, NULL, {0, 0, {0}}},
                        {"note", NULL, EK_ANY, 0, 0, EK_FIELD_IGNORE, NULL, NULL, {0, 0, {0}}}};
  ek_type_def def = {0, NULL, NULL, fields, NULL, 2, 0, NULL};
  int32_t type = ek_type_register("test.Equal", EK_OBJECT);
  ek_object *objects[3] = {NULL};
  CHECK(ek_type_define(type, &def) == 0);
  for (int i = 0; i < 3; i++) {
    ek_value values[2] = {ek_value_int(i / 2), ek_value_int(i)};
    CHECK(ek_object_new(type, values, 2, &objects[i]) == 0);
  }
  ek_object_retain(objects[0]);
  expect(ek_value_object(objects[0]), ek_value_object(objects[1]), 1);
  expect(ek_value_object(objects[0]), ek_value_object(objects[2]), 0);
}

static ek_value deep(int64_t last) {
  ek_value inner = container(EK_ARRAY, &(ek_value){EK_INT, 0, {last}}, 1);
  for (int i = 0; i < 200000; i++) {
    ek_value outer = container(EK_ARRAY, &inner, 1);
    ek_value_release(&inner);
    inner = outer;
  }
  return inner;
}

static void depth_takes_no_stack(void) {
  expect(deep(1), deep(1), 1);
  expect(deep(1), deep(2), 0);
}

/* A value that holds another one twice: in an array, in the values of a map, in fields. */
static ek_value twice(int form, ek_value left, ek_value right) {
  static int32_t type = -1;
  ek_field fields[2] = {{"left", NULL, EK_ANY, 0, 0, 0, NULL, NULL, {0, 0, {0}}},
                        {"right", NULL, EK_ANY, 0, 0, 0, NULL, NULL, {0, 0, {0}}}};
  ek_type_def def = {0, NULL, NULL, fields, NULL, 2, 0, NULL};
  ek_value items[4] = {left, right}, pairs[4] = {raw("l"), left, raw("r"), right};
  ek_object *out = NULL;
  if (type < 0) CHECK(ek_type_define(type = ek_type_register("test.Twice", EK_OBJECT), &def) == 0);
  if (form == 0) return container(EK_ARRAY, items, 2);
  if (form == 1) return container(EK_ADT, items, 2);
  if (form == 2) return container(EK_MAP, pairs, 4);
  CHECK(ek_object_new(type, items, 2, &out) == 0);
  return ek_value_object(out);
}

/* So many levels, each of which holds the one below twice: 'split' ones hold two of it in turn, which
** are equal. */
static ek_value shared(int form, int levels, bool split, int64_t last) {
  ek_value p = container(EK_ARRAY, &(ek_value){EK_INT, 0, {1}}, 1);
  ek_value q = container(EK_ARRAY, &(ek_value){EK_INT, 0, {last}}, 1);
  for (int i = 0; i < levels; i++) {
    ek_value next_p = twice(form, p, split ? q : p), next_q = twice(form, q, split ? p : q);
    ek_value_release(&p);
    ek_value_release(&q);
    p = next_p;
    q = next_q;
  }
  ek_value_release(&p);
  return q;
}

/* The same with nothing shared. */
static ek_value unshared(int form, int levels) {
  if (levels == 0) return container(EK_ARRAY, &(ek_value){EK_INT, 0, {1}}, 1);
  ek_value left = unshared(form, levels - 1), right = unshared(form, levels - 1);
  ek_value out = twice(form, left, right);
  ek_value_release(&left);
  ek_value_release(&right);
  return out;
}

/* A walk of all ways would take 2^1000 steps. */
static void what_is_shared_is_seen_once(void) {
  for (int form = 0; form < 4; form++) {
    expect(shared(form, 1000, false, 1), shared(form, 1000, false, 1), 1);
    expect(shared(form, 1000, false, 1), shared(form, 1000, true, 1), 1);
    expect(shared(form, 1000, true, 1), shared(form, 1000, true, 1), 1);
    expect(shared(form, 1000, true, 1), shared(form, 1000, true, 2), 0);
    expect(shared(form, 1000, false, 1), shared(form, 1000, false, 2), 0);
    expect(shared(form, 1000, false, 1), shared(form, 999, false, 1), 0);
    expect(shared(form, 8, false, 1), unshared(form, 8), 1);
    expect(shared(form, 8, false, 2), unshared(form, 8), 0);
    CHECK(ek_error_take() == NULL);
  }
}

static void hashes_tell_parts_apart(void) {
  ek_value x = ek_value_int(1), y = ek_value_int(2), inner = container(EK_ARRAY, &y, 1);
  ek_value a = twice(0, x, inner), b = twice(0, inner, x), c = twice(0, inner, inner);
  CHECK(hash(a) != hash(b) && hash(a) != hash(c) && hash(b) != hash(c));
  ek_value_release(&a);
  ek_value_release(&b);
  ek_value_release(&c);
  ek_value_release(&inner);
}

static void maps_find_their_keys(void) {
  enum { N = 5000 };
  static ek_value items[2 * N];
  ek_object *object = NULL;
  for (int i = 0; i < N; i++) {
    items[2 * i] = ek_value_int(i % (N / 2)); /* every key twice: the last value counts */
    items[2 * i + 1] = ek_value_int(i);
  }
  CHECK(ek_container_new(EK_MAP, 0, items, 2 * N, &object) == 0);
  const ek_map *map = (const ek_map *)(const void *)object;
  CHECK(map->size == N / 2 && (map->slots & EK_MAP_IN_ORDER) != 0);
  for (int i = 0; i < N / 2; i++) {
    ek_value found, key = ek_value_int(i);
    CHECK(map->data[2 * i].v.i64 == i);
    CHECK(ek_map_get(object, &key, &found) == 1 && found.v.i64 == i + N / 2);
  }
  ek_value missing = ek_value_int(N), found = raw("untouched");
  CHECK(ek_map_get(object, &missing, &found) == 0 && found.type_index == EK_RAW_STR);
  ek_object_release(object);
}

static void keys_are_text_and_objects_by_identity(void) {
  ek_value one = tensor(1, 1), other = tensor(1, 1), found;
  ek_value items[4] = {raw("name"), ek_value_int(1), one, ek_value_int(2)};
  ek_value map = container(EK_MAP, items, 4), name = text("name");
  CHECK(ek_map_get(map.v.obj, &name, &found) == 1 && found.v.i64 == 1);
  CHECK(ek_map_get(map.v.obj, &one, &found) == 1 && found.v.i64 == 2);
  CHECK(ek_map_get(map.v.obj, &other, &found) == 0);
  ek_value_release(&map);
  ek_value_release(&one);
  ek_value_release(&other);
}

static void bad_containers_are_refused(void) {
  ek_object *out = NULL;
  ek_value items[3] = {ek_value_int(1), {EK_DLTENSOR_PTR, 0, {0}}, raw("x")}, found;
  CHECK_ERROR(ek_container_new(EK_MAP, 0, items, 3, &out), "ValueError",
              "make map: keys and values alternately expected, got 3 items");
  CHECK_ERROR(ek_container_new(EK_MAP, 0, items, 2, &out), "TypeError",
              "make map: a value that can be kept expected, got DLTensor*");
  CHECK_ERROR(ek_container_new(EK_ARRAY, 0, items, 2, &out), "TypeError",
              "make array: a value that can be kept expected, got DLTensor*");
  CHECK_ERROR(ek_container_new(EK_SHAPE, 0, &items[2], 1, &out), "TypeError",
              "make shape: dimension 0: an int expected, got a string");
  CHECK_ERROR(ek_container_new(EK_STR, 0, items, 1, &out), "ValueError",
              "make container: there is none of type 65");
  CHECK_ERROR(ek_map_get(NULL, &items[0], &found), "TypeError", "get from map: a map expected");
  ek_map foreign = {.base = {EK_REFS_NEW, EK_MAP, 0, ek_object_plain_deleter}};
  CHECK_ERROR(ek_map_get(&foreign.base, &items[0], &found), "TypeError",
              "get from map: a map made by Ekiden expected, got one of another runtime");
}

int main(void) {
  plain_values_are_equal_with_their_types();
  text_is_equal_in_all_its_forms();
  containers_are_equal_by_their_items();
  maps_are_equal_in_any_order();
  tensors_are_equal_by_their_elements();
  objects_are_equal_by_their_fields();
  depth_takes_no_stack();
  what_is_shared_is_seen_once();
  hashes_tell_parts_apart();
  maps_find_their_keys();
  keys_are_text_and_objects_by_identity();
  bad_containers_are_refused();
  return 0;
}
