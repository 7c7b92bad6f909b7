/* Types defined at run time: fields, defaults, methods, inheritance, objects of them. */
#include "check.h"

typedef struct point {
  ek_object base;
  int8_t x;
  uint8_t y;
  bool is_set;
  float weight;
  ek_dtype dtype;
  ek_device device;
  double scale;
  ek_value name;
  ek_object *next;
} point;

#define FIELD(field, type_index, flag)                                              \
  {#field,           NULL, type_index, (int32_t)sizeof(((point *)0)->field),         \
   offsetof(point, field), flag, NULL, NULL, {EK_ANY, 0, {0}}}

static int doubled(const ek_object *self, const ek_field *field, ek_value *out) {
  (void)field;
  *out = ek_value_int(2 * ((const point *)(const void *)self)->x);
  return 0;
}

static int32_t point_type(void) {
  static int32_t index = -1;
  if (index >= 0) return index;
  index = ek_type_register("test.Point", EK_OBJECT);
  ek_field fields[] = {
      FIELD(x, EK_INT, 0),
      FIELD(y, EK_INT, EK_FIELD_UNSIGNED | EK_FIELD_DEFAULT),
      FIELD(is_set, EK_BOOL, EK_FIELD_DEFAULT),
      FIELD(weight, EK_FLOAT, EK_FIELD_DEFAULT),
      FIELD(dtype, EK_DTYPE, EK_FIELD_DEFAULT),
      FIELD(device, EK_DEVICE, EK_FIELD_DEFAULT),
      FIELD(scale, EK_FLOAT, EK_FIELD_DEFAULT),
      FIELD(name, EK_STR, EK_FIELD_DEFAULT),
      FIELD(next, index, EK_FIELD_DEFAULT),
      {"twice", "2 x", EK_INT, 0, sizeof(ek_object), EK_FIELD_DEFAULT | EK_FIELD_IGNORE, doubled,
       NULL, {EK_ANY, 0, {0}}},
  };
  fields[1].standard = ek_value_int(7);
  ek_type_def def = {sizeof(point), NULL, "a point", fields, NULL,
                     (int32_t)(sizeof fields / sizeof fields[0]), 0, NULL};
  CHECK(ek_type_define(index, &def) == 0);
  return index;
}

static const ek_field *field_of(const ek_object *object, const char *name) {
  const ek_type_info *info = ek_type_get(object->type_index);
  for (int32_t i = 0; i < info->n_fields; i++) {
    if (strcmp(info->fields[i].name, name) == 0) return &info->fields[i];
  }
  CHECK(!"there is such a field");
  return NULL;
}

static int set(ek_object *object, const char *name, ek_value value) {
  return ek_field_set(object, field_of(object, name), &value);
}

static ek_value get(const ek_object *object, const char *name) {
  ek_value value = ek_value_none();
  CHECK(ek_field_get(object, field_of(object, name), &value) == 0);
  return value;
}

static ek_object *new_point(int64_t x) {
  ek_object *object = NULL;
  ek_value value = ek_value_int(x);
  CHECK(ek_object_new(point_type(), &value, 1, &object) == 0);
  return object;
}

static ek_value raw(const char *text) {
  ek_value value = {EK_RAW_STR, 0, {0}};
  value.v.ptr = (void *)(uintptr_t)text;
  return value;
}

static ek_value number(double x) {
  ek_value value = {EK_FLOAT, 0, {0}};
  value.v.f64 = x;
  return value;
}

static void fields_are_read_and_written_by_name(void) {
  ek_object *object = new_point(-3), *other = new_point(1);
  point *self = (point *)(void *)object;
  CHECK(self->x == -3 && self->y == 7 && get(object, "y").v.i64 == 7);
  CHECK(get(object, "x").v.i64 == -3 && get(object, "twice").v.i64 == -6);
  CHECK(set(object, "y", ek_value_int(255)) == 0 && get(object, "y").v.i64 == 255);
  CHECK(set(object, "weight", ek_value_int(2)) == 0 && self->weight == 2.0f);
  CHECK(set(object, "scale", number(0.1)) == 0 && get(object, "scale").v.f64 == 0.1);
  CHECK(get(object, "weight").v.f64 == 2.0 && get(object, "next").type_index == EK_NONE);
  ek_value yes = {EK_BOOL, 0, {1}}, dtype = {EK_DTYPE, 0, {0}}, device = {EK_DEVICE, 0, {0}};
  dtype.v.dtype = float32;
  device.v.device = (ek_device){2, 3};
  CHECK(set(object, "is_set", yes) == 0 && self->is_set);
  CHECK(set(object, "dtype", dtype) == 0 && get(object, "dtype").v.dtype.bits == 32);
  CHECK(set(object, "device", device) == 0 && get(object, "device").v.device.id == 3);
  CHECK(set(object, "name", raw("a name of many letters")) == 0);
  CHECK(self->name.type_index == EK_STR); /* a copy of its own */
  CHECK(set(object, "name", raw("short")) == 0 && self->name.type_index == EK_SMALL_STR);
  CHECK(set(object, "next", ek_value_object(other)) == 0);
  CHECK((other->refs & EK_STRONG_MASK) == 2);
  ek_value next = get(object, "next");
  CHECK(next.v.obj == other && (other->refs & EK_STRONG_MASK) == 3);
  ek_value_release(&next);
  CHECK(set(object, "next", ek_value_none()) == 0 && (other->refs & EK_STRONG_MASK) == 1);
  CHECK(set(object, "next", ek_value_object(other)) == 0);
  ek_object_release(object);
  CHECK((other->refs & EK_STRONG_MASK) == 1);
  ek_object_release(other);
}

static void wrong_values_are_refused(void) {
  ek_object *object = new_point(1), *array = NULL;
  CHECK(ek_array_new(NULL, 0, &array) == 0);
  CHECK_ERROR(set(object, "x", raw("1")), "TypeError",
              "set field 'x' of 'test.Point': an int expected, got a string");
  CHECK_ERROR(set(object, "x", ek_value_int(128)), "ValueError",
              "set field 'x' of 'test.Point': 128 does not fit");
  CHECK_ERROR(set(object, "y", ek_value_int(-1)), "ValueError",
              "set field 'y' of 'test.Point': -1 does not fit");
  CHECK_ERROR(set(object, "is_set", ek_value_int(2)), "ValueError",
              "set field 'is_set' of 'test.Point': 2 does not fit");
  CHECK_ERROR(set(object, "weight", raw("1")), "TypeError",
              "set field 'weight' of 'test.Point': a number expected, got a string");
  CHECK_ERROR(set(object, "dtype", ek_value_int(1)), "TypeError",
              "set field 'dtype' of 'test.Point': DataType expected, got int");
  CHECK_ERROR(set(object, "name", ek_value_int(1)), "TypeError",
              "set field 'name' of 'test.Point': ffi.String expected, got int");
  CHECK_ERROR(set(object, "next", ek_value_object(array)), "TypeError",
              "set field 'next' of 'test.Point': test.Point expected, got ffi.Array");
  CHECK_ERROR(set(object, "twice", ek_value_int(1)), "TypeError",
              "set field 'twice' of 'test.Point': it can only be read");
  ek_object_release(array);
  ek_object_release(object);
}

static void making_needs_what_has_no_default(void) {
  ek_object *object = NULL;
  ek_value values[11] = {{EK_ANY, 0, {0}}};
  CHECK_ERROR(ek_object_new(point_type(), NULL, 0, &object), "TypeError",
              "make 'test.Point': field 'x' is missing");
  CHECK_ERROR(ek_object_new(point_type(), values, 11, &object), "TypeError",
              "make 'test.Point': at most 10 fields expected, got 11");
  CHECK_ERROR(ek_object_new(EK_STORAGE, NULL, 0, &object), "TypeError",
              "make object: type 'ek.Storage' has not been defined");
  CHECK_ERROR(ek_object_new(100000, NULL, 0, &object), "TypeError",
              "make object: type '?' has not been defined");
}

/* A type without C behind it: the runtime lays its fields out. */
static int32_t laid_out_type(void) {
  static int32_t index = -1;
  ek_field fields[2] = {{"left", NULL, EK_ANY, 0, 0, EK_FIELD_DEFAULT, NULL, NULL, {0, 0, {0}}},
                        {"right", NULL, EK_ANY, 0, 0, EK_FIELD_READ_ONLY | EK_FIELD_DEFAULT, NULL,
                         NULL, {0, 0, {0}}}};
  if (index >= 0) return index;
  index = ek_type_register("test.Pair", EK_OBJECT);
  ek_type_def def = {0, NULL, NULL, fields, NULL, 2, 0, NULL};
  CHECK(ek_type_define(index, &def) == 0);
  return index;
}

static void types_inherit_fields(void) {
  int32_t pair = laid_out_type(), triple = ek_type_register("test.Triple", pair);
  ek_field field = {"third", NULL, EK_INT, 0, 0, 0, NULL, NULL, {0, 0, {0}}};
  ek_type_def def = {0, NULL, NULL, &field, NULL, 1, 0, NULL};
  ek_object *object = NULL;
  CHECK(ek_type_define(triple, &def) == 0);
  const ek_type_info *info = ek_type_get(triple);
  CHECK(info->n_fields == 3 && strcmp(info->fields[0].name, "left") == 0 && info->depth == 2);
  CHECK(info->size == 24 + 3 * 16 && info->fields[2].offset == 24 + 2 * 16);
  CHECK(ek_type_is(triple, pair) && ek_type_is(triple, EK_OBJECT) && !ek_type_is(pair, triple));
  CHECK(!ek_type_is(EK_INT, EK_OBJECT) && ek_type_is(EK_INT, EK_INT));
  ek_value values[3] = {raw("left"), ek_value_int(2), ek_value_int(3)};
  CHECK(ek_object_new(triple, values, 3, &object) == 0);
  CHECK(get(object, "right").v.i64 == 2 && get(object, "third").v.i64 == 3);
  CHECK_ERROR(set(object, "right", ek_value_int(1)), "TypeError",
              "set field 'right' of 'test.Triple': it can only be read");
  CHECK_ERROR(set(object, "third", number(1)), "TypeError",
              "set field 'third' of 'test.Triple': int expected, got float");
  ek_object_release(object);
}

static void a_chain_of_objects_dies_quietly(void) {
  ek_object *chain = NULL, *longer = NULL;
  for (int i = 0; i < 300000; i++) {
    ek_value left = chain == NULL ? ek_value_none() : ek_value_object(chain), item;
    ek_object *array = NULL, *map = NULL;
    CHECK(ek_array_new(&left, 1, &array) == 0);
    ek_value pair[2] = {ek_value_int(i), ek_value_object(array)};
    CHECK(ek_container_new(EK_MAP, 0, pair, 2, &map) == 0);
    item = ek_value_object(map);
    CHECK(ek_object_new(laid_out_type(), &item, 1, &longer) == 0);
    ek_object_release(chain);
    ek_object_release(array);
    ek_object_release(map);
    chain = longer;
  }
  ek_object_release(chain);
}

static int made;

static int create(ek_object **out) {
  point *self = ek_object_alloc(sizeof *self, ek_type_index("test.Made"), ek_object_plain_deleter);
  if (self == NULL) return -1;
  self->y = 9;
  made++;
  *out = &self->base;
  return 0;
}

static void a_constructor_makes_what_is_not_given(void) {
  int32_t index = ek_type_register("test.Made", EK_OBJECT);
  ek_field fields[] = {FIELD(x, EK_INT, EK_FIELD_DEFAULT),
                       FIELD(y, EK_INT, EK_FIELD_DEFAULT | EK_FIELD_UNSIGNED)};
  ek_type_def def = {sizeof(point), create, NULL, fields, NULL, 2, 0, NULL}, none = {0};
  ek_value x = ek_value_int(4);
  ek_object *object = NULL;
  CHECK(ek_type_define(index, &def) == 0);
  CHECK(ek_object_new(index, &x, 1, &object) == 0 && made == 1);
  CHECK(get(object, "x").v.i64 == 4 && get(object, "y").v.i64 == 9);
  ek_object_release(object);
  int32_t child = ek_type_register("test.MadeChild", index);
  CHECK_ERROR(ek_type_define(child, &none), "TypeError",
              "define type 'test.MadeChild': objects of its parent 'test.Made' are made by a "
              "constructor; give one");
}

/* Built whole: a number that says which values it was given. */
static int get_code(const ek_object *self, const ek_field *field, ek_value *out) {
  (void)field;
  *out = ek_value_int(((const point *)(const void *)self)->x);
  return 0;
}

static int build_code(const ek_type_info *type, const ek_value *values, int32_t n,
                      ek_object **out) {
  if (values[0].v.i64 < 0) return ek_error("ValueError", "build '%s': negative", type->key);
  if (create(out) != 0) return -1;
  (*out)->type_index = type->index;
  int64_t code = values[0].v.i64 * 10 + (values[1].type_index == EK_ANY) + n;
  ((point *)(void *)*out)->x = (int8_t)code;
  return 0;
}

static void objects_are_built_whole(void) {
  int32_t index = ek_type_register("test.Built", EK_OBJECT);
  ek_field fields[2] = {{"a", NULL, EK_INT, 0, sizeof(ek_object), EK_FIELD_READ_ONLY, get_code,
                         NULL, {EK_ANY, 0, {0}}},
                        {"b", NULL, EK_INT, 0, sizeof(ek_object),
                         EK_FIELD_READ_ONLY | EK_FIELD_DEFAULT, get_code, NULL,
                         {EK_ANY, 0, {0}}}};
  ek_type_def def = {sizeof(point), NULL, NULL, fields, NULL, 2, 0, build_code};
  ek_value a = ek_value_int(4), negative = ek_value_int(-1), values[2];
  ek_object *one = NULL, *two = NULL;
  CHECK(ek_type_define(index, &def) == 0);
  CHECK(ek_object_new(index, &a, 1, &one) == 0 && ek_object_new(index, &a, 1, &two) == 0);
  CHECK(get(one, "a").v.i64 == 43);
  CHECK_ERROR(ek_object_new(index, NULL, 0, &one), "TypeError",
              "make 'test.Built': field 'a' is missing");
  CHECK_ERROR(ek_object_new(index, &negative, 1, &one), "ValueError",
              "build 'test.Built': negative");
  values[0] = ek_value_object(one);
  values[1] = ek_value_object(two);
  CHECK(ek_value_equal(&values[0], &values[1]) == 0 && ek_value_equal(values, values) == 1);
  ek_object_release(one);
  ek_object_release(two);
}

static int area(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self;
  CHECK(nargs == 1);
  const point *p = (const point *)(const void *)args[0].v.obj;
  *ret = ek_value_int(p->x * p->y);
  return 0;
}

static void methods_are_functions(void) {
  ek_object *function = NULL, *object = new_point(3);
  CHECK(ek_function_new(NULL, area, NULL, &function) == 0);
  ek_method method = {"area", "x y", function};
  ek_type_def def = {0, NULL, NULL, NULL, &method, 0, 1, NULL};
  CHECK(ek_type_define(point_type(), &def) == 0);
  ek_object_release(function);
  const ek_type_info *info = ek_type_get(point_type());
  CHECK(info->n_methods == 1 && strcmp(info->methods[0].name, "area") == 0);
  CHECK(info->n_fields == 10 && strcmp(info->doc, "a point") == 0);
  ek_value arg = ek_value_object(object), ret = ek_value_none();
  CHECK(ek_function_call(info->methods[0].function, &arg, 1, &ret) == 0 && ret.v.i64 == 21);
  ek_object_release(object);
}

static int define_one(const char *key, ek_field field, int64_t size) {
  ek_type_def def = {size, NULL, NULL, &field, NULL, 1, 0, NULL};
  return ek_type_define(ek_type_register(key, EK_OBJECT), &def);
}

static void bad_definitions_are_refused(void) {
  ek_field x = FIELD(x, EK_INT, 0), wide = x, far = x, unknown = x, text = FIELD(next, EK_STR, 0);
  ek_type_def def = {0};
  wide.size = 3;
  far.offset = 1000;
  unknown.type = 99999;
  CHECK_ERROR(define_one("test.Bad", wide, 100), "ValueError",
              "define type 'test.Bad': field 'x': its size does not go with its type");
  CHECK_ERROR(define_one("test.Bad", far, 100), "ValueError",
              "define type 'test.Bad': field 'x': it lies outside the object");
  CHECK_ERROR(define_one("test.Bad", unknown, 100), "ValueError",
              "define type 'test.Bad': field 'x': its type is unknown");
  CHECK_ERROR(define_one("test.Bad", text, 100), "ValueError",
              "define type 'test.Bad': field 'next': its size does not go with its type");
  CHECK_ERROR(define_one("test.Bad", x, 8), "ValueError",
              "define type 'test.Bad': at least the 24 bytes of its parent expected, got 8");
  CHECK_ERROR(define_one("test.Point", x, sizeof(point)), "ValueError",
              "define type 'test.Point': it is defined already");
  CHECK_ERROR(ek_type_define(EK_ARRAY, &def), "ValueError",
              "define type: expected the index of a type registered at run time, got 71");
  int32_t parent = ek_type_register("test.Late", EK_OBJECT);
  CHECK(ek_type_define(ek_type_register("test.Early", parent), &def) == 0);
  CHECK_ERROR(ek_type_define(parent, &def), "ValueError",
              "define type 'test.Late': 'test.Early', derived from it, is defined already");
}

/* An error's cause may be anything: an object that registers a type when it goes. */
static void registering_deleter(void *self, int flags) {
  if (flags & EK_DELETE_CONTENT) CHECK(ek_type_register("test.Late", EK_OBJECT) > 0);
  ek_object_plain_deleter(self, flags);
}

static void fail_with_such_a_cause(void) {
  ek_error("ValueError", "one that is pending");
  ek_object *error = ek_error_take();
  ((ek_error_object *)(void *)error)->cause =
      ek_object_alloc(sizeof(ek_object), EK_OBJECT, registering_deleter);
  ek_error_set(error);
  ek_object_release(error);
}

static void errors_are_set_outside_the_lock(void) {
  ek_field bad = {"", NULL, EK_ANY, 0, 0, 0, NULL, NULL, {0, 0, {0}}};
  ek_type_def def = {0, NULL, NULL, &bad, NULL, 1, 0, NULL};
  int32_t type = ek_type_register("test.Bad", EK_OBJECT);
  fail_with_such_a_cause();
  CHECK_ERROR(ek_type_define(type, &def), "ValueError",
              "define type 'test.Bad': field '': the name is empty");
  fail_with_such_a_cause();
  CHECK_ERROR(ek_type_define(point_type(), &def), "ValueError",
              "define type 'test.Point': it is defined already");
}

int main(void) {
  fields_are_read_and_written_by_name();
  wrong_values_are_refused();
  making_needs_what_has_no_default();
  types_inherit_fields();
  a_chain_of_objects_dies_quietly();
  a_constructor_makes_what_is_not_given();
  objects_are_built_whole();
  methods_are_functions();
  bad_definitions_are_refused();
  errors_are_set_outside_the_lock();
  return 0;
}
