/* The runtime for Node: values both ways, functions both ways, calls on Node's threads.
**
** index.js wraps the functions of this file in classes. A handle is an external value with one strong reference,
** which its finaliser drops; close() drops it earlier, and leaves NULL. Memory of typed arrays is
** lent to the runtime for a call; that of tensors of the runtime becomes an ArrayBuffer without a
** copy, where Node allows it.
*/
#include <ekiden/runtime.h>
#include <math.h>
#include <node_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef struct addon {
  napi_ref error_class, tensor_class; /* of index.js */
} addon;

static addon *addon_of(napi_env env) {
  void *found = NULL;
  napi_get_instance_data(env, &found);
  return found;
}

static napi_value undefined(napi_env env) {
  napi_value value = NULL;
  napi_get_undefined(env, &value);
  return value;
}

static napi_value text_of(napi_env env, ek_bytes bytes) {
  napi_value value = NULL;
  napi_create_string_utf8(env, bytes.data, bytes.size, &value);
  return value;
}

static napi_value property(napi_env env, napi_value object, const char *name) {
  napi_value value = NULL;
  napi_get_named_property(env, object, name, &value);
  return value;
}

/* Errors --------------------------------------------------------------------------------------- */

/* This thread's error as an object of index.js's class. */
static napi_value error_value(napi_env env) {
  napi_value class, args[3], made = NULL;
  ek_object *object = ek_error_take();
  const ek_error_object *error = (const ek_error_object *)(const void *)object;
  ek_bytes none = {"", 0}, kind = {"InternalError", 13};
  napi_get_reference_value(env, addon_of(env)->error_class, &class);
  args[0] = text_of(env, error == NULL ? kind : error->kind);
  args[1] = text_of(env, error == NULL ? none : error->message);
  args[2] = text_of(env, error == NULL ? none : error->backtrace);
  napi_new_instance(env, class, 3, args, &made);
  ek_object_release(object);
  return made;
}

/* What JavaScript threw is pending already where a callback of its failed: that is the error to
** see, and the runtime's copy of it is dropped. */
static napi_value throw_error(napi_env env) {
  bool is_pending = false;
  napi_is_exception_pending(env, &is_pending);
  if (is_pending) ek_object_release(ek_error_take());
  if (!is_pending) napi_throw(env, error_value(env));
  return NULL;
}

static char *copy_text(napi_env env, napi_value value) {
  size_t size = 0;
  if (napi_get_value_string_utf8(env, value, NULL, 0, &size) != napi_ok) return NULL;
  char *text = malloc(size + 1);
  if (text != NULL) napi_get_value_string_utf8(env, value, text, size + 1, &size);
  return text;
}

/* Makes what JavaScript threw this thread's error: its kind, or what its name stands for. */
static void set_error(napi_env env) {
  napi_value thrown = NULL, text = NULL;
  napi_valuetype type = napi_undefined;
  napi_get_and_clear_last_exception(env, &thrown);
  char *kind = NULL, *message = NULL;
  if (thrown != NULL) napi_typeof(env, thrown, &type);
  if (type == napi_object) {
    kind = copy_text(env, property(env, thrown, "kind"));
    if (kind == NULL) kind = copy_text(env, property(env, thrown, "name"));
    message = copy_text(env, property(env, thrown, "message"));
  } else if (thrown != NULL && napi_coerce_to_string(env, thrown, &text) == napi_ok) {
    message = copy_text(env, text);
  }
  bool is_plain = kind == NULL || strcmp(kind, "Error") == 0;
  if (!is_plain && strcmp(kind, "RangeError") == 0) {
    ek_error("ValueError", "%s", message == NULL ? "" : message);
  } else {
    ek_error(is_plain ? "RuntimeError" : kind, "%s", message == NULL ? "thrown" : message);
  }
  free(kind);
  free(message);
}

/* Handles -------------------------------------------------------------------------------------- */

static const napi_type_tag handle_tag = {0x656b6964656e0001, 0x68616e646c650001};

typedef struct handle {
  ek_object *object; /* NULL once it is closed */
  size_t quick;      /* 1 + bytes of tensors that a call with them was quick for; 0 for none */
} handle;

static void finalize_handle(napi_env env, void *data, void *hint) {
  handle *self = data;
  (void)env, (void)hint;
  ek_object_release(self->object);
  free(self);
}

/* Takes the reference over. */
static napi_value handle_value(napi_env env, ek_object *object) {
  napi_value value = NULL;
  handle *self = malloc(sizeof *self);
  if (self == NULL) abort();
  *self = (handle){object, 0};
  napi_create_external(env, self, finalize_handle, NULL, &value);
  napi_type_tag_object(env, value, &handle_tag);
  return value;
}

/* NULL for another value, and for one that is closed. The type tag tells our externals from those
** of other addons, whose pointers mean something else. */
static handle *handle_of(napi_env env, napi_value value) {
  bool is_handle = false;
  void *data = NULL;
  napi_valuetype type = napi_undefined;
  napi_typeof(env, value, &type);
  if (type != napi_external) return NULL;
  napi_check_object_type_tag(env, value, &handle_tag, &is_handle);
  if (is_handle) napi_get_value_external(env, value, &data);
  return data;
}

static ek_object *object_of(napi_env env, napi_value value) {
  const handle *self = handle_of(env, value);
  if (self == NULL) ek_error("TypeError", "a handle of the runtime expected");
  if (self != NULL && self->object == NULL) ek_error("ValueError", "it is closed");
  return self == NULL ? NULL : self->object;
}

/* The same where an object of one type is expected. */
static ek_object *object_as(napi_env env, napi_value value, int32_t type) {
  ek_object *object = object_of(env, value);
  if (object == NULL || object->type_index == type) return object;
  const char *wanted = ek_type_key(type), *got = ek_type_key(object->type_index);
  ek_error("TypeError", "%s expected, got %s", wanted == NULL ? "an object" : wanted,
           got == NULL ? "another object" : got);
  return NULL;
}

/* Element types -------------------------------------------------------------------------------- */

static const struct {
  const char *name;
  ek_dtype dtype;
  napi_typedarray_type array; /* what holds the elements */
} dtypes[] = {
    {"float32", {EK_DTYPE_FLOAT, 32, 1}, napi_float32_array},
    {"float64", {EK_DTYPE_FLOAT, 64, 1}, napi_float64_array},
    {"int8", {EK_DTYPE_INT, 8, 1}, napi_int8_array},
    {"uint8", {EK_DTYPE_UINT, 8, 1}, napi_uint8_array},
    {"int16", {EK_DTYPE_INT, 16, 1}, napi_int16_array},
    {"uint16", {EK_DTYPE_UINT, 16, 1}, napi_uint16_array},
    {"int32", {EK_DTYPE_INT, 32, 1}, napi_int32_array},
    {"uint32", {EK_DTYPE_UINT, 32, 1}, napi_uint32_array},
    {"int64", {EK_DTYPE_INT, 64, 1}, napi_bigint64_array},
    {"uint64", {EK_DTYPE_UINT, 64, 1}, napi_biguint64_array},
    {"bool", {EK_DTYPE_BOOL, 8, 1}, napi_uint8_array},
    {"float16", {EK_DTYPE_FLOAT, 16, 1}, napi_uint16_array},
    {"bfloat16", {EK_DTYPE_BFLOAT, 16, 1}, napi_uint16_array},
};

enum { DTYPES = sizeof dtypes / sizeof dtypes[0] };

static int dtype_named(const char *name) {
  int at = 0;
  while (at < DTYPES && strcmp(dtypes[at].name, name) != 0) at++;
  return at < DTYPES ? at : ek_error("TypeError", "no tensors of dtype '%s'", name);
}

static int dtype_number(ek_dtype dtype) {
  int at = 0;
  while (at < DTYPES && memcmp(&dtypes[at].dtype, &dtype, sizeof dtype) != 0) at++;
  return at < DTYPES ? at
                     : ek_error("TypeError", "a tensor of dtype %d of %d bits is not for JavaScript",
                                dtype.code, dtype.bits);
}

/* Arguments ------------------------------------------------------------------------------------ */

/* A tensor of the caller's memory. */
typedef struct lent {
  ek_dltensor tensor;
  struct lent *next;
  int64_t dims[];
} lent;

/* What a call needs until it ends. */
typedef struct arguments {
  ek_value *values;
  int32_t count;
  ek_object **owned; /* made for the call */
  int32_t n_owned, capacity;
  lent *lents;
} arguments;

static int own(arguments *self, ek_object *object) {
  if (self->n_owned == self->capacity) {
    int32_t capacity = 2 * self->capacity + 4;
    ek_object **more = realloc(self->owned, (size_t)capacity * sizeof(ek_object *));
    if (more == NULL) {
      ek_object_release(object);
      return ek_error("MemoryError", "out of memory");
    }
    self->owned = more;
    self->capacity = capacity;
  }
  self->owned[self->n_owned++] = object;
  return 0;
}

static void drop_arguments(arguments *self) {
  for (int32_t i = 0; i < self->n_owned; i++) ek_object_release(self->owned[i]);
  while (self->lents != NULL) {
    lent *next = self->lents->next;
    free(self->lents);
    self->lents = next;
  }
  free(self->owned);
  free(self->values);
}

static int read_shape(napi_env env, napi_value shape, lent *out) {
  for (int32_t i = 0; i < out->tensor.ndim; i++) {
    napi_value extent;
    double number = -1;
    napi_get_element(env, shape, (uint32_t)i, &extent);
    napi_get_value_double(env, extent, &number);
    if (number < 0 || number > 9007199254740991.0 || number != floor(number)) {
      return ek_error("ValueError", "tensor: dimension %d of its shape is no size", i);
    }
    out->dims[i] = (int64_t)number;
  }
  return 0;
}

/* {dtype, shape, data} of JavaScript, whose memory is lent. The count of elements is compared as a
** double: a product of sizes that has no exact one is larger than any array. */
static int read_tensor(napi_env env, napi_value value, arguments *args, ek_value *out) {
  uint32_t ndim = 0;
  napi_value shape = property(env, value, "shape"), data = property(env, value, "data");
  napi_value buffer;
  napi_typedarray_type array;
  size_t length = 0, offset;
  void *memory = NULL;
  char *name = copy_text(env, property(env, value, "dtype"));
  int dtype = name == NULL ? ek_error("TypeError", "tensor: its dtype is no text")
                           : dtype_named(name);
  free(name);
  if (dtype < 0) return -1;
  if (napi_get_array_length(env, shape, &ndim) != napi_ok || ndim > EK_MAX_NDIM) {
    return ek_error("TypeError", "tensor: its shape is no list of sizes");
  }
  if (napi_get_typedarray_info(env, data, &array, &length, &memory, &buffer, &offset) != napi_ok ||
      array != dtypes[dtype].array) {
    return ek_error("TypeError", "tensor of %s: data in an array of another type",
                    dtypes[dtype].name);
  }
  lent *made = malloc(sizeof *made + ndim * sizeof(int64_t));
  if (made == NULL) return ek_error("MemoryError", "out of memory");
  made->tensor = (ek_dltensor){memory, {EK_CPU, 0}, (int32_t)ndim, dtypes[dtype].dtype,
                               made->dims, NULL, 0};
  made->next = args->lents;
  args->lents = made;
  if (read_shape(env, shape, made) != 0) return -1;
  double count = 1;
  for (uint32_t i = 0; i < ndim; i++) count *= (double)made->dims[i];
  if (count != (double)length) {
    return ek_error("ValueError", "tensor: %.0f elements expected, got %zu", count, length);
  }
  *out = ek_value_none();
  out->type_index = EK_DLTENSOR_PTR;
  out->v.ptr = &made->tensor;
  return 0;
}

static ek_object *new_callback(napi_env env, napi_value function);
static int read_value(napi_env env, napi_value value, arguments *args, ek_value *out);

static int read_array(napi_env env, napi_value value, arguments *args, ek_value *out) {
  uint32_t length = 0;
  ek_object *made = NULL;
  napi_get_array_length(env, value, &length);
  ek_value *items = calloc(length + 1, sizeof *items);
  int code = items == NULL ? ek_error("MemoryError", "out of memory") : 0;
  for (uint32_t i = 0; code == 0 && i < length; i++) {
    napi_value item;
    napi_get_element(env, value, i, &item);
    code = read_value(env, item, args, &items[i]);
    if (code == 0 && items[i].type_index == EK_DLTENSOR_PTR) { /* containers own what they hold */
      const ek_dltensor *from = items[i].v.ptr;
      code = ek_tensor_new(from->shape, from->ndim, from->dtype, from->device, &made);
      if (code == 0) code = own(args, made);
      if (code == 0) items[i] = ek_value_object(made);
      if (code == 0) code = ek_tensor_copy(from, ek_value_tensor(&items[i]));
    }
  }
  if (code == 0) code = ek_array_new(items, length, &made);
  free(items);
  if (code == 0) code = own(args, made);
  if (code == 0) *out = ek_value_object(made);
  return code;
}

static int read_string(napi_env env, napi_value value, arguments *args, ek_value *out) {
  size_t size = 0;
  napi_get_value_string_utf8(env, value, NULL, 0, &size);
  char *text = malloc(size + 1);
  if (text == NULL) return ek_error("MemoryError", "out of memory");
  napi_get_value_string_utf8(env, value, text, size + 1, &size);
  int code = ek_string_new(EK_STR, text, size, out);
  free(text);
  return code == 0 && out->type_index >= EK_OBJECT ? own(args, out->v.obj) : code;
}

/* JavaScript has one kind of number: what is whole and exact as one is an int. BigInt says int
** where 2^53 is not enough. */
static int read_number(napi_env env, napi_value value, ek_value *out) {
  double number = 0;
  napi_get_value_double(env, value, &number);
  bool is_whole = number == floor(number) && fabs(number) <= 9007199254740991.0;
  *out = ek_value_none();
  out->type_index = is_whole ? EK_INT : EK_FLOAT;
  if (is_whole) out->v.i64 = (int64_t)number;
  if (!is_whole) out->v.f64 = number;
  return 0;
}

static int read_object(napi_env env, napi_value value, arguments *args, ek_value *out) {
  napi_value inner, tensor_class;
  bool is_array = false, is_tensor = false, has_handle = false;
  napi_is_array(env, value, &is_array);
  if (is_array) return read_array(env, value, args, out);
  napi_get_reference_value(env, addon_of(env)->tensor_class, &tensor_class);
  napi_instanceof(env, value, tensor_class, &is_tensor);
  if (is_tensor) return read_tensor(env, value, args, out);
  napi_has_named_property(env, value, "handle", &has_handle);
  if (!has_handle) return ek_error("TypeError", "a value expected, got an object of another kind");
  inner = property(env, value, "handle");
  ek_object *object = object_of(env, inner);
  if (object == NULL) return -1;
  ek_retain(object); /* it may be closed while the call runs */
  *out = ek_value_object(object);
  return own(args, object);
}

static int read_value(napi_env env, napi_value value, arguments *args, ek_value *out) {
  napi_valuetype type;
  bool flag = false, fits = false;
  ek_object *function;
  *out = ek_value_none();
  napi_typeof(env, value, &type);
  switch (type) {
    case napi_undefined:
    case napi_null: return 0;
    case napi_boolean:
      napi_get_value_bool(env, value, &flag);
      out->type_index = EK_BOOL;
      out->v.i64 = flag;
      return 0;
    case napi_number: return read_number(env, value, out);
    case napi_bigint:
      out->type_index = EK_INT;
      napi_get_value_bigint_int64(env, value, &out->v.i64, &fits);
      return fits ? 0 : ek_error("ValueError", "a number of 64 bits expected");
    case napi_string: return read_string(env, value, args, out);
    case napi_function:
      function = new_callback(env, value);
      if (function == NULL) return -1;
      *out = ek_value_object(function);
      return own(args, function);
    case napi_object: return read_object(env, value, args, out);
    default: return ek_error("TypeError", "a value expected, got a symbol or a bare handle");
  }
}

/* An array of JavaScript as arguments. 0 or -1; to be dropped either way. */
static int read_arguments(napi_env env, napi_value list, arguments *out) {
  uint32_t length = 0;
  memset(out, 0, sizeof *out);
  if (napi_get_array_length(env, list, &length) != napi_ok) {
    return ek_error("TypeError", "arguments: a list expected");
  }
  out->values = calloc(length + 1, sizeof *out->values);
  if (out->values == NULL) return ek_error("MemoryError", "out of memory");
  for (uint32_t i = 0; i < length; i++) {
    napi_value item;
    napi_get_element(env, list, i, &item);
    if (read_value(env, item, out, &out->values[i]) != 0) return -1;
    out->count++;
  }
  return 0;
}

/* Results -------------------------------------------------------------------------------------- */

static void release_memory(napi_env env, void *data, void *hint) {
  (void)env, (void)data;
  ek_object_release(hint);
}

/* Results of so many bytes are copied: what Node keeps of memory of others costs more. */
enum { SMALL = 4096 };

/* An ArrayBuffer over a contiguous tensor, which it keeps; a copy where it is small, or where Node
** forbids that. */
static napi_value buffer_of(napi_env env, ek_object *tensor) {
  const ek_dltensor *dl = &((const ek_tensor *)(const void *)tensor)->dl;
  size_t nbytes = ek_dltensor_nbytes(dl);
  napi_value buffer = NULL;
  void *memory = NULL;
  if (nbytes > SMALL) {
    ek_retain(tensor);
    if (napi_create_external_arraybuffer(env, ek_dltensor_data(dl), nbytes, release_memory, tensor,
                                         &buffer) == napi_ok) {
      return buffer;
    }
    ek_release(tensor);
  }
  napi_create_arraybuffer(env, nbytes, &memory, &buffer);
  if (nbytes != 0) memcpy(memory, ek_dltensor_data(dl), nbytes);
  return buffer;
}

static napi_value write_tensor(napi_env env, ek_object *object) {
  const ek_dltensor *dl = &((const ek_tensor *)(const void *)object)->dl;
  ek_object *whole = NULL;
  napi_value class, args[3], made = NULL, extent;
  int dtype = dtype_number(dl->dtype);
  bool is_read_only = ek_tensor_is_read_only(object) != 0; /* JavaScript could write to it */
  if (dtype < 0) return NULL;
  if (!ek_dltensor_is_contiguous(dl) || is_read_only || dl->device.type != EK_CPU) {
    if (ek_tensor_new(dl->shape, dl->ndim, dl->dtype, (ek_device){EK_CPU, 0}, &whole) != 0) {
      return NULL;
    }
    if (ek_tensor_copy(dl, &((const ek_tensor *)(const void *)whole)->dl) != 0) {
      ek_release(whole);
      return NULL;
    }
  }
  napi_create_string_utf8(env, dtypes[dtype].name, NAPI_AUTO_LENGTH, &args[0]);
  napi_create_array_with_length(env, (size_t)dl->ndim, &args[1]);
  for (int32_t i = 0; i < dl->ndim; i++) {
    napi_create_int64(env, dl->shape[i], &extent);
    napi_set_element(env, args[1], (uint32_t)i, extent);
  }
  size_t bytes = (size_t)dl->dtype.bits / 8;
  napi_value buffer = buffer_of(env, whole == NULL ? object : whole);
  napi_create_typedarray(env, dtypes[dtype].array, ek_dltensor_nbytes(dl) / bytes, buffer, 0,
                         &args[2]);
  napi_get_reference_value(env, addon_of(env)->tensor_class, &class);
  napi_new_instance(env, class, 3, args, &made);
  ek_object_release(whole);
  return made;
}

static napi_value write_value(napi_env env, const ek_value *value);

static napi_value write_items(napi_env env, const ek_value *items, int64_t n) {
  napi_value list = NULL;
  napi_create_array_with_length(env, (size_t)n, &list);
  for (int64_t i = 0; i < n; i++) {
    napi_value item = write_value(env, &items[i]);
    if (item == NULL) return NULL;
    napi_set_element(env, list, (uint32_t)i, item);
  }
  return list;
}

/* {kind, handle}: index.js makes its classes of it. */
static napi_value write_object(napi_env env, ek_object *object) {
  napi_value made = NULL, kind;
  ek_retain(object);
  napi_create_object(env, &made);
  napi_create_int32(env, object->type_index, &kind);
  napi_set_named_property(env, made, "kind", kind);
  napi_set_named_property(env, made, "handle", handle_value(env, object));
  return made;
}

/* NULL with an error set, or thrown. */
static napi_value write_value(napi_env env, const ek_value *value) {
  napi_value made = NULL;
  ek_bytes bytes;
  int64_t number = value->v.i64;
  switch (value->type_index) {
    case EK_NONE: return undefined(env);
    case EK_BOOL: napi_get_boolean(env, number != 0, &made); return made;
    case EK_FLOAT: napi_create_double(env, value->v.f64, &made); return made;
    case EK_INT:
      if (number > 9007199254740991 || number < -9007199254740991) {
        napi_create_bigint_int64(env, number, &made);
      } else {
        napi_create_int64(env, number, &made);
      }
      return made;
    case EK_TENSOR: return write_tensor(env, value->v.obj);
    case EK_ARRAY: {
      const ek_array *array = (const ek_array *)(const void *)value->v.obj;
      return write_items(env, array->data, array->size);
    }
    case EK_ADT: {
      const ek_adt *adt = (const ek_adt *)(const void *)value->v.obj;
      if (adt->tag == 0) return write_items(env, adt->fields, adt->size);
      break;
    }
    default: break;
  }
  if (ek_string_borrow(value, &bytes)) return text_of(env, bytes);
  if (value->type_index >= EK_OBJECT) return write_object(env, value->v.obj);
  ek_error("TypeError", "a value of type %s is not for JavaScript", ek_type_key(value->type_index));
  return NULL;
}

/* Functions of JavaScript ---------------------------------------------------------------------- */

typedef struct callback {
  napi_env env;
  pthread_t thread; /* where JavaScript runs */
  napi_ref function;
  napi_threadsafe_function remote; /* for calls from other threads */
  pthread_mutex_t lock;            /* guards what follows: the runtime may keep a function longer */
  bool is_ended, is_deleted;       /* JavaScript has ended; the function is gone */
} callback;

/* A call from another thread, which waits for it. */
typedef struct remote_call {
  callback *of;
  const ek_value *args;
  int32_t nargs;
  ek_value *ret;
  int code;
  ek_object *error; /* owned */
  bool is_done;
  pthread_mutex_t lock;
  pthread_cond_t done;
} remote_call;

/* On the thread of JavaScript. */
static int run_callback(callback *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  napi_env env = self->env;
  napi_handle_scope scope;
  napi_value function, result = NULL, *values = calloc((size_t)nargs + 1, sizeof *values);
  arguments made;
  memset(&made, 0, sizeof made);
  if (values == NULL) return ek_error("MemoryError", "out of memory");
  napi_open_handle_scope(env, &scope);
  int code = 0;
  for (int32_t i = 0; code == 0 && i < nargs; i++) {
    ek_value value = args[i];
    ek_object *copied = NULL;
    if (value.type_index == EK_DLTENSOR_PTR) { /* lent for this call, and JavaScript may keep it */
      const ek_dltensor *from = value.v.ptr;
      code = ek_tensor_new(from->shape, from->ndim, from->dtype, from->device, &copied);
      if (code == 0) value = ek_value_object(copied);
      if (code == 0) code = ek_tensor_copy(from, ek_value_tensor(&value));
    }
    if (code == 0) values[i] = write_value(env, &value);
    if (code == 0 && values[i] == NULL) code = -1;
    ek_object_release(copied);
  }
  if (code == 0) {
    napi_value wrap;
    napi_get_reference_value(env, self->function, &function);
    napi_get_undefined(env, &wrap);
    if (napi_call_function(env, wrap, function, (size_t)nargs, values, &result) != napi_ok) {
      set_error(env);
      code = -1;
    }
  }
  ek_value value = ek_value_none();
  if (code == 0) code = read_value(env, result, &made, &value);
  if (code == 0 && value.type_index == EK_DLTENSOR_PTR) {
    ek_object *copied;
    const ek_dltensor *from = value.v.ptr;
    code = ek_tensor_new(from->shape, from->ndim, from->dtype, from->device, &copied);
    if (code == 0) value = ek_value_object(copied);
    if (code == 0) code = ek_tensor_copy(from, ek_value_tensor(&value));
  } else if (code == 0) {
    ek_value_retain(&value);
  }
  if (code == 0) *ret = value;
  drop_arguments(&made);
  free(values);
  napi_close_handle_scope(env, scope);
  return code;
}

static void run_remote(napi_env env, napi_value function, void *context, void *data) {
  remote_call *call = data;
  (void)function, (void)context;
  pthread_mutex_lock(&call->lock);
  call->code = env == NULL ? ek_error("RuntimeError", "JavaScript has ended")
                           : run_callback(call->of, call->args, call->nargs, call->ret);
  if (call->code != 0) call->error = ek_error_take();
  call->is_done = true;
  pthread_cond_signal(&call->done);
  pthread_mutex_unlock(&call->lock);
}

static int call_back(void *context, const ek_value *args, int32_t nargs, ek_value *ret) {
  callback *self = context;
  pthread_mutex_lock(&self->lock);
  bool is_ended = self->is_ended;
  pthread_mutex_unlock(&self->lock);
  if (is_ended) return ek_error("RuntimeError", "JavaScript has ended");
  if (pthread_equal(pthread_self(), self->thread)) {
    return run_callback(self, args, nargs, ret);
  }
  remote_call call = {.of = self, .args = args, .nargs = nargs, .ret = ret};
  pthread_mutex_init(&call.lock, NULL);
  pthread_cond_init(&call.done, NULL);
  if (napi_call_threadsafe_function(self->remote, &call, napi_tsfn_blocking) != napi_ok) {
    return ek_error("RuntimeError", "JavaScript has ended");
  }
  pthread_mutex_lock(&call.lock);
  while (!call.is_done) pthread_cond_wait(&call.done, &call.lock);
  pthread_mutex_unlock(&call.lock);
  if (call.error != NULL) ek_error_set(call.error);
  ek_object_release(call.error);
  return call.code;
}

/* Whoever of the two comes last frees it. */
static void finalize_callback(napi_env env, void *data, void *hint) {
  callback *self = data;
  (void)hint;
  napi_delete_reference(env, self->function);
  pthread_mutex_lock(&self->lock);
  self->is_ended = true;
  bool is_last = self->is_deleted;
  pthread_mutex_unlock(&self->lock);
  if (is_last) free(self);
}

static void delete_callback(void *context) {
  callback *self = context;
  pthread_mutex_lock(&self->lock);
  self->is_deleted = true;
  bool is_last = self->is_ended;
  if (!is_last) napi_release_threadsafe_function(self->remote, napi_tsfn_release);
  pthread_mutex_unlock(&self->lock);
  if (is_last) free(self);
}

/* An owned function, or NULL. */
static ek_object *new_callback(napi_env env, napi_value function) {
  ek_object *made = NULL;
  napi_value name;
  callback *self = calloc(1, sizeof *self);
  if (self == NULL) {
    ek_error("MemoryError", "out of memory");
    return NULL;
  }
  self->env = env;
  self->thread = pthread_self();
  pthread_mutex_init(&self->lock, NULL);
  napi_create_reference(env, function, 1, &self->function);
  napi_create_string_utf8(env, "ekiden", NAPI_AUTO_LENGTH, &name);
  napi_create_threadsafe_function(env, NULL, NULL, name, 0, 1, self, finalize_callback, NULL,
                                  run_remote, &self->remote);
  napi_unref_threadsafe_function(env, self->remote); /* it keeps no program alive */
  if (ek_function_new(self, call_back, delete_callback, &made) != 0) delete_callback(self);
  return made;
}

/* What JavaScript calls ------------------------------------------------------------------------ */

/* Its arguments, undefined for those left out. */
static void take(napi_env env, napi_callback_info info, size_t n, napi_value *args) {
  napi_get_cb_info(env, info, &n, args, NULL, NULL);
}

static napi_value finish(napi_env env, int code, ek_value *result) {
  if (code != 0) return throw_error(env);
  napi_value made = write_value(env, result);
  ek_value_release(result);
  return made == NULL ? throw_error(env) : made;
}

static napi_value load(napi_env env, napi_callback_info info) {
  napi_value path;
  ek_object *module = NULL;
  take(env, info, 1, &path);
  char *text = copy_text(env, path);
  int code = text == NULL ? ek_error("TypeError", "load: a path expected")
                          : ek_module_load(text, &module);
  free(text);
  return code == 0 ? handle_value(env, module) : throw_error(env);
}

static napi_value close_handle(napi_env env, napi_callback_info info) {
  napi_value value;
  take(env, info, 1, &value);
  handle *self = handle_of(env, value);
  if (self != NULL) {
    ek_object *object = self->object;
    self->object = NULL;
    ek_object_release(object);
  }
  return undefined(env);
}

static napi_value names(napi_env env, napi_callback_info info) {
  napi_value value;
  ek_value result = ek_value_none();
  take(env, info, 1, &value);
  ek_object *module = object_as(env, value, EK_MODULE);
  int code = module == NULL ? -1 : ek_module_part(module, EK_MODULE_NAMES, &result);
  return finish(env, code, &result);
}

/* (module, name) -> the handle of a function, or undefined. */
static napi_value get_function(napi_env env, napi_callback_info info) {
  napi_value args[2];
  ek_object *found = NULL;
  take(env, info, 2, args);
  ek_object *module = object_as(env, args[0], EK_MODULE);
  char *name = copy_text(env, args[1]);
  int code = -1;
  if (module != NULL) {
    code = name == NULL ? ek_error("TypeError", "the name of a function expected")
                        : ek_module_get(module, name, &found);
  }
  free(name);
  if (code != 0) return throw_error(env);
  return found == NULL ? undefined(env) : handle_value(env, found);
}

static napi_value call(napi_env env, napi_callback_info info) {
  napi_value args[2];
  arguments given;
  ek_value result = ek_value_none();
  take(env, info, 2, args);
  ek_object *function = object_as(env, args[0], EK_FUNCTION);
  if (function == NULL) return throw_error(env);
  ek_retain(function);
  int code = read_arguments(env, args[1], &given);
  if (code == 0) code = ek_function_call(function, given.values, given.count, &result);
  drop_arguments(&given);
  ek_release(function);
  return finish(env, code, &result);
}

/* A call on a thread of Node's pool. */
typedef struct work {
  napi_async_work work;
  napi_deferred deferred;
  napi_ref source; /* keeps the memory of typed arrays, and the handle */
  handle *of;
  size_t bytes;
  int64_t took;
  ek_object *function;
  arguments args;
  ek_value result;
  ek_object *error;
} work;

/* A call that takes less costs less where it is made than handed to another thread and back. */
enum { QUICK = 20000 };

static int64_t nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* What a call's tensors have together. */
static size_t bytes_of(const arguments *args) {
  size_t bytes = 0;
  for (const lent *each = args->lents; each != NULL; each = each->next) {
    bytes += ek_dltensor_nbytes(&each->tensor);
  }
  return bytes;
}

/* Remembers that a call with so many bytes took so long. */
static void learn(handle *of, size_t bytes, int64_t took) {
  if (took < QUICK && bytes >= of->quick) of->quick = bytes + 1;
  if (took >= QUICK && bytes < of->quick) of->quick = 0;
}

static void execute(napi_env env, void *data) {
  work *self = data;
  (void)env;
  int64_t begun = nanoseconds();
  if (ek_function_call(self->function, self->args.values, self->args.count, &self->result) != 0) {
    self->error = ek_error_take();
  }
  self->took = nanoseconds() - begun;
}

static void complete(napi_env env, napi_status status, void *data) {
  work *self = data;
  napi_value made = NULL;
  (void)status;
  if (self->error == NULL) learn(self->of, self->bytes, self->took);
  if (self->error == NULL) made = write_value(env, &self->result);
  if (self->error != NULL) ek_error_set(self->error);
  if (made != NULL) {
    napi_resolve_deferred(env, self->deferred, made);
  } else {
    napi_reject_deferred(env, self->deferred, error_value(env));
  }
  ek_object_release(self->error);
  ek_value_release(&self->result);
  drop_arguments(&self->args);
  ek_release(self->function);
  napi_delete_reference(env, self->source);
  napi_delete_async_work(env, self->work);
  free(self);
}

/* The same call where it is made; NULL with an error. */
static napi_value call_here(napi_env env, napi_value of, ek_object *function, arguments *given) {
  ek_value result = ek_value_none();
  size_t bytes = bytes_of(given);
  int64_t begun = nanoseconds();
  ek_retain(function);
  int code = ek_function_call(function, given->values, given->count, &result);
  if (code == 0) learn(handle_of(env, of), bytes, nanoseconds() - begun);
  drop_arguments(given);
  ek_release(function);
  return finish(env, code, &result);
}

/* A promise of the result; the result itself where the function is known to be quick. */
static napi_value call_async(napi_env env, napi_callback_info info) {
  napi_value args[2], kept, name, promise = NULL;
  take(env, info, 2, args);
  ek_object *function = object_as(env, args[0], EK_FUNCTION);
  if (function == NULL) return throw_error(env);
  work *self = calloc(1, sizeof *self);
  if (self == NULL || read_arguments(env, args[1], &self->args) != 0) {
    if (self == NULL) ek_error("MemoryError", "out of memory");
    if (self != NULL) drop_arguments(&self->args);
    free(self);
    return throw_error(env);
  }
  self->of = handle_of(env, args[0]);
  self->bytes = bytes_of(&self->args);
  if (self->bytes < self->of->quick) {
    arguments given = self->args;
    free(self);
    return call_here(env, args[0], function, &given);
  }
  ek_retain(function);
  self->function = function;
  self->result = ek_value_none();
  napi_create_array_with_length(env, 2, &kept);
  napi_set_element(env, kept, 0, args[0]);
  napi_set_element(env, kept, 1, args[1]);
  napi_create_reference(env, kept, 1, &self->source);
  napi_create_promise(env, &self->deferred, &promise);
  napi_create_string_utf8(env, "ekiden", NAPI_AUTO_LENGTH, &name);
  napi_create_async_work(env, NULL, name, execute, complete, self, &self->work);
  napi_queue_async_work(env, self->work);
  return promise;
}

/* (executable, part, index) */
static napi_value executable_item(napi_env env, napi_callback_info info) {
  napi_value args[3];
  ek_value result = ek_value_none();
  int32_t part = 0;
  int64_t index = 0;
  take(env, info, 3, args);
  ek_object *executable = object_as(env, args[0], EK_EXECUTABLE);
  napi_get_value_int32(env, args[1], &part);
  napi_get_value_int64(env, args[2], &index);
  int code = executable == NULL ? -1 : ek_executable_item(executable, part, index, &result);
  return finish(env, code, &result);
}

static napi_value new_machine(napi_env env, napi_callback_info info) {
  napi_value value;
  ek_object *made = NULL;
  take(env, info, 1, &value);
  ek_object *executable = object_as(env, value, EK_EXECUTABLE);
  if (executable == NULL || ek_vm_new(executable, &made) != 0) return throw_error(env);
  return handle_value(env, made);
}

static napi_value registry_get(napi_env env, napi_callback_info info) {
  napi_value value;
  take(env, info, 1, &value);
  char *name = copy_text(env, value);
  ek_object *found = name == NULL ? NULL : ek_registry_get(name);
  free(name);
  return found == NULL ? undefined(env) : handle_value(env, found);
}

/* (name, function) */
static napi_value registry_set(napi_env env, napi_callback_info info) {
  napi_value args[2];
  arguments made;
  ek_value value;
  memset(&made, 0, sizeof made);
  take(env, info, 2, args);
  char *name = copy_text(env, args[0]);
  int code = read_value(env, args[1], &made, &value);
  if (code == 0 && (value.type_index != EK_FUNCTION || name == NULL)) {
    code = ek_error("TypeError", "register: a name and a function expected");
  }
  if (code == 0) code = ek_registry_set(name, value.v.obj, 0);
  drop_arguments(&made);
  free(name);
  return code == 0 ? undefined(env) : throw_error(env);
}

static napi_value registry_remove(napi_env env, napi_callback_info info) {
  napi_value value, made = NULL;
  take(env, info, 1, &value);
  char *name = copy_text(env, value);
  int code = name == NULL ? 0 : ek_registry_remove(name);
  free(name);
  if (code < 0) return throw_error(env);
  napi_get_boolean(env, code == 1, &made);
  return made;
}

/* Objects -------------------------------------------------------------------------------------- */

/* (key, names, numbers of types) */
static napi_value define_type(napi_env env, napi_callback_info info) {
  napi_value args[3], item;
  uint32_t n = 0;
  take(env, info, 3, args);
  char *key = copy_text(env, args[0]);
  napi_get_array_length(env, args[1], &n);
  ek_field *fields = calloc(n + 1, sizeof *fields);
  int code = key == NULL || fields == NULL ? ek_error("TypeError", "define: a key expected") : 0;
  for (uint32_t i = 0; code == 0 && i < n; i++) {
    napi_get_element(env, args[1], i, &item);
    fields[i].name = copy_text(env, item);
    napi_get_element(env, args[2], i, &item);
    napi_get_value_int32(env, item, &fields[i].type);
    if (fields[i].name == NULL) code = ek_error("TypeError", "define: names of fields expected");
  }
  if (code == 0) {
    ek_type_def def = {.fields = fields, .n_fields = (int32_t)n};
    int32_t index = ek_type_register(key, EK_OBJECT);
    code = index < 0 ? -1 : ek_type_define(index, &def);
  }
  for (uint32_t i = 0; fields != NULL && i < n; i++) free((void *)(uintptr_t)fields[i].name);
  free(fields);
  free(key);
  return code == 0 ? undefined(env) : throw_error(env);
}

/* (key, values) */
static napi_value new_object(napi_env env, napi_callback_info info) {
  napi_value args[2];
  arguments values;
  ek_object *made = NULL;
  take(env, info, 2, args);
  char *key = copy_text(env, args[0]);
  int32_t index = key == NULL ? -1 : ek_type_index(key);
  int code = index < 0 ? ek_error("TypeError", "there is no type '%s'", key == NULL ? "" : key) : 0;
  free(key);
  if (code != 0) return throw_error(env);
  code = read_arguments(env, args[1], &values);
  if (code == 0) code = ek_object_new(index, values.values, values.count, &made);
  drop_arguments(&values);
  return code == 0 ? handle_value(env, made) : throw_error(env);
}

static napi_value type_key(napi_env env, napi_callback_info info) {
  napi_value value, made = NULL;
  take(env, info, 1, &value);
  const ek_object *object = object_of(env, value);
  if (object == NULL) return throw_error(env);
  napi_create_string_utf8(env, ek_type_key(object->type_index), NAPI_AUTO_LENGTH, &made);
  return made;
}

static napi_value field_names(napi_env env, napi_callback_info info) {
  napi_value value, list = NULL, item;
  take(env, info, 1, &value);
  const ek_object *object = object_of(env, value);
  if (object == NULL) return throw_error(env);
  const ek_type_info *type = ek_type_get(object->type_index);
  napi_create_array(env, &list);
  for (int32_t i = 0; i < type->n_fields; i++) {
    napi_create_string_utf8(env, type->fields[i].name, NAPI_AUTO_LENGTH, &item);
    napi_set_element(env, list, (uint32_t)i, item);
  }
  return list;
}

/* The field that the second argument names; NULL with an error. */
static const ek_field *find_field(napi_env env, const ek_object *object, napi_value value) {
  const ek_type_info *type = ek_type_get(object->type_index);
  const ek_field *found = NULL;
  char *name = copy_text(env, value);
  for (int32_t i = 0; name != NULL && i < type->n_fields; i++) {
    if (strcmp(type->fields[i].name, name) == 0) found = &type->fields[i];
  }
  if (found == NULL) {
    ek_error("AttributeError", "'%s' has no field '%s'", type->key, name == NULL ? "" : name);
  }
  free(name);
  return found;
}

static napi_value get_field(napi_env env, napi_callback_info info) {
  napi_value args[2];
  ek_value result = ek_value_none();
  take(env, info, 2, args);
  const ek_object *object = object_of(env, args[0]);
  const ek_field *field = object == NULL ? NULL : find_field(env, object, args[1]);
  return finish(env, field == NULL ? -1 : ek_field_get(object, field, &result), &result);
}

static napi_value set_field(napi_env env, napi_callback_info info) {
  napi_value args[3];
  arguments made;
  ek_value value;
  memset(&made, 0, sizeof made);
  take(env, info, 3, args);
  ek_object *object = object_of(env, args[0]);
  const ek_field *field = object == NULL ? NULL : find_field(env, object, args[1]);
  int code = field == NULL ? -1 : read_value(env, args[2], &made, &value);
  if (code == 0) code = ek_field_set(object, field, &value);
  drop_arguments(&made);
  return code == 0 ? undefined(env) : throw_error(env);
}

static napi_value equal(napi_env env, napi_callback_info info) {
  napi_value args[2], made = NULL;
  take(env, info, 2, args);
  ek_object *a = object_of(env, args[0]), *b = a == NULL ? NULL : object_of(env, args[1]);
  if (b == NULL) return throw_error(env);
  ek_value left = ek_value_object(a), right = ek_value_object(b);
  int code = ek_value_equal(&left, &right);
  if (code < 0) return throw_error(env);
  napi_get_boolean(env, code == 1, &made);
  return made;
}

static napi_value num_threads(napi_env env, napi_callback_info info) {
  napi_value value, made = NULL;
  int32_t n = 0;
  take(env, info, 1, &value);
  napi_get_value_int32(env, value, &n);
  napi_create_int32(env, ek_num_threads(n), &made);
  return made;
}

/* (error class, tensor class) */
static napi_value set_classes(napi_env env, napi_callback_info info) {
  napi_value args[2];
  take(env, info, 2, args);
  napi_create_reference(env, args[0], 1, &addon_of(env)->error_class);
  napi_create_reference(env, args[1], 1, &addon_of(env)->tensor_class);
  return undefined(env);
}

static void finalize_addon(napi_env env, void *data, void *hint) {
  (void)env, (void)hint;
  free(data);
}

static napi_value init(napi_env env, napi_value exports) {
  static const struct {
    const char *name;
    napi_callback function;
  } functions[] = {
      {"load", load},         {"close", close_handle},     {"names", names},
      {"get", get_function},  {"call", call},              {"callAsync", call_async},
      {"item", executable_item}, {"machine", new_machine}, {"registryGet", registry_get},
      {"registrySet", registry_set}, {"registryRemove", registry_remove},
      {"define", define_type}, {"object", new_object},     {"typeKey", type_key},
      {"fields", field_names}, {"getField", get_field},    {"setField", set_field},
      {"equal", equal},       {"numThreads", num_threads}, {"setClasses", set_classes},
  };
  addon *self = calloc(1, sizeof *self);
  if (self == NULL) return NULL;
  napi_set_instance_data(env, self, finalize_addon, NULL);
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
    napi_value function;
    napi_create_function(env, functions[i].name, NAPI_AUTO_LENGTH, functions[i].function, NULL,
                         &function);
    napi_set_named_property(env, exports, functions[i].name, function);
  }
  return exports;
}

NAPI_MODULE(NODE_GYP_MODULE_NAME, init)
