/* Requests of a client to a session: functions, modules, tensors. */
#include "ek_rpc_internal.h"

#include <errno.h>
#include <time.h>

/* The object of a handle, borrowed, which is of a type; NULL with a FrameError for another. */
static ek_object *object_of(rpc_session *session, const rpc_field *field, int32_t type) {
  const ek_value *value = rpc_local_object(session, field->number);
  if (value != NULL && value->type_index == type) return value->v.obj;
  rpc_frame_error(value == NULL ? "no object has this handle" : "a handle of another kind expected");
  return NULL;
}

/* A zero-terminated copy of a text without zeros, to be freed; NULL with an error. */
static char *copied(const ek_bytes *text) {
  if (memchr(text->data, 0, text->size) != NULL) {
    ek_error("ValueError", "rpc: a name without zeros expected");
    return NULL;
  }
  char *copy = malloc(text->size + 1);
  if (copy == NULL) {
    ek_error("MemoryError", "rpc: no memory for a name");
    return NULL;
  }
  memcpy(copy, text->data, text->size);
  copy[text->size] = 0;
  return copy;
}

/* Functions and modules ------------------------------------------------------------------------ */

static int call(rpc_session *session, rpc_field *fields, ek_value *result) {
  ek_object *function = object_of(session, &fields[0], EK_FUNCTION);
  if (function == NULL) return -1;
  ek_retain(function); /* the client may release it in a callback */
  int code = ek_function_call(function, fields[1].values, (int32_t)fields[1].count, result);
  ek_release(function);
  return code;
}

/* The name of a module's only function, or "main", to be freed; NULL with an error. */
static char *entry_of(ek_object *module) {
  ek_object *names = NULL;
  ek_bytes name = {"main", 4};
  if (ek_module_names(module, &names) != 0) return NULL;
  const ek_array *array = (const ek_array *)(const void *)names;
  if (array->size == 1) ek_string_borrow(&array->data[0], &name);
  char *text = copied(&name);
  ek_release(names);
  return text;
}

/* An owned function of a module, or of all for the handle 0; NULL in '*out' where there is none. */
static int find(rpc_session *session, const rpc_field *module, const ek_bytes *name,
                ek_object **out) {
  ek_object *from = module->number == 0 ? NULL : object_of(session, module, EK_MODULE);
  if (module->number != 0 && from == NULL) return -1;
  char *text = from != NULL && name->size == 0 ? entry_of(from) : copied(name);
  if (text == NULL) return -1;
  int code = 0;
  const ek_rpc_options *options = session->options;
  if (from != NULL) code = ek_module_get(from, text, out);
  else if (options->find != NULL) options->find(options->self, text, out);
  if (from == NULL && *out == NULL) *out = ek_registry_get(text);
  free(text);
  return code;
}

static int get_function(rpc_session *session, rpc_field *fields, ek_value *result) {
  ek_object *object = NULL;
  if (find(session, &fields[0], &fields[1].bytes, &object) != 0) return -1;
  if (object != NULL) *result = ek_value_object(object);
  return 0;
}

static int import(rpc_session *session, rpc_field *fields, ek_value *result) {
  (void)result;
  ek_object *module = object_of(session, &fields[0], EK_MODULE);
  ek_object *other = module == NULL ? NULL : object_of(session, &fields[1], EK_MODULE);
  return other == NULL ? -1 : ek_module_import(module, other);
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* Waits for what computes a value, where that is a tensor of a device. 0 or -1. */
static int wait_for(const ek_value *value) {
  const ek_dltensor *tensor = ek_value_tensor(value);
  if (tensor == NULL || tensor->device.type == EK_CPU) return 0;
  ek_value device = ek_value_none(), nothing = ek_value_none();
  device.type_index = EK_DEVICE;
  device.v.device = tensor->device;
  ek_object *sync = ek_registry_get("ek.device.sync");
  int code = sync == NULL ? -1 : ek_function_call(sync, &device, 1, &nothing);
  ek_object_release(sync);
  return code;
}

/* Seconds of so many calls in a row and of what they left running on devices, or -1. */
static double time_calls(ek_object *function, const rpc_field *arguments, uint64_t count) {
  double begin = now();
  for (uint64_t i = 0; i < count; i++) {
    ek_value result = ek_value_none();
    int code = ek_function_call(function, arguments->values, (int32_t)arguments->count, &result);
    if (code == 0 && i + 1 == count) code = wait_for(&result);
    ek_value_release(&result);
    if (code != 0) return -1;
  }
  for (int64_t i = 0; i < arguments->count; i++) {
    if (wait_for(&arguments->values[i]) != 0) return -1;
  }
  return now() - begin;
}

static void pause_ms(uint64_t milliseconds) {
  struct timespec time = {(time_t)(milliseconds / 1000), (long)(milliseconds % 1000) * 1000000};
  while (nanosleep(&time, &time) != 0 && errno == EINTR) continue;
}

/* Evict the caches by writing a buffer larger than they are: one byte per line fetches the line,
** and volatile keeps the store. */
static void empty_caches(volatile char *memory, uint64_t size) {
  for (uint64_t i = 0; i < size; i += 64) memory[i] = 1;
}

/* Measure one repeat, raising '*number' until it takes long enough. Returns seconds, or -1. The
** number of calls grows by the factor that the last repeat indicates, and at least by the golden
** ratio, as in TVM's time_evaluator, so that an accidentally slow first repeat does not decide
** it. */
static double time_repeat(ek_object *function, ek_object *prepare, char *flush, rpc_field *fields,
                          uint64_t *number) {
  rpc_field *arguments = &fields[10];
  double least = (double)fields[4].number * 1e-3;
  for (uint64_t zeros = 0;;) {
    ek_value ignored = ek_value_none();
    int32_t count = (int32_t)arguments->count;
    if (prepare != NULL && ek_function_call(prepare, arguments->values, count, &ignored) != 0) return -1;
    ek_value_release(&ignored);
    if (flush != NULL) empty_caches(flush, fields[8].number);
    double seconds = time_calls(function, arguments, *number);
    if (seconds < 0) return -1;
    zeros += seconds == 0;
    if (seconds >= least || zeros >= fields[5].number) return seconds / (double)*number;
    double estimate = seconds > 0 ? least / (seconds / (double)*number) + 1 : 0;
    double larger = (double)*number * 1.618 + 1;
    *number = (uint64_t)(estimate > larger ? estimate : larger);
  }
}

static int time_all(ek_object *function, ek_object *prepare, char *flush, rpc_field *fields,
                    ek_value *result) {
  uint64_t number = fields[2].number, repeat = fields[3].number;
  double *times = calloc(repeat, sizeof *times);
  if (times == NULL) return ek_error("MemoryError", "rpc: no memory for the times");
  int code = time_calls(function, &fields[10], 1) < 0 ? -1 : 0;
  for (uint64_t i = 0; code == 0 && i < repeat; i++) {
    times[i] = time_repeat(function, prepare, flush, fields, &number);
    if (times[i] < 0) code = -1;
    if (fields[6].number > 0 && (i + 1) % fields[7].number == 0) pause_ms(fields[6].number);
  }
  if (code == 0) {
    code = ek_string_new(EK_BYTES, (const char *)times, repeat * sizeof *times, result);
  }
  free(times);
  return code;
}

static int time_function(rpc_session *session, rpc_field *fields, ek_value *result) {
  ek_object *function = NULL, *prepare = NULL;
  rpc_field all = {0};
  if (fields[2].number < 1 || fields[3].number < 1 || fields[7].number < 1
      || fields[3].number > session->peer_limit / 16) {
    return ek_error("ValueError", "time_evaluator: number, repeat and repeats_to_cooldown must be "
                    "positive, and the times fit a message");
  }
  if (fields[8].number > UINT32_MAX) return ek_error("ValueError", "time_evaluator: cache_flush_bytes");
  if (find(session, &fields[0], &fields[1].bytes, &function) != 0) return -1;
  if (function == NULL) return ek_error("AttributeError", "time_evaluator: no function of that name");
  int code = fields[9].bytes.size == 0 ? 0 : find(session, &all, &fields[9].bytes, &prepare);
  if (code == 0 && fields[9].bytes.size > 0 && prepare == NULL) {
    code = ek_error("ValueError", "time_evaluator: no function of the name f_preproc has");
  }
  char *flush = fields[8].number == 0 ? NULL : malloc(fields[8].number);
  if (code == 0 && fields[8].number > 0 && flush == NULL) {
    code = ek_error("MemoryError", "time_evaluator: no memory for cache_flush_bytes");
  }
  if (code == 0) code = time_all(function, prepare, flush, fields, result);
  free(flush);
  ek_object_release(prepare);
  ek_release(function);
  return code;
}

/* Tensors -------------------------------------------------------------------------------------- */

static int alloc_tensor(rpc_session *session, rpc_field *fields, ek_value *result) {
  (void)session;
  int64_t shape[EK_MAX_NDIM];
  ek_object *object = NULL;
  memcpy(shape, fields[0].bytes.data, fields[0].bytes.size);
  if (ek_tensor_new(shape, fields[0].rank, fields[0].dtype, fields[0].device, &object) != 0) return -1;
  const ek_dltensor *tensor = &((ek_tensor *)(void *)object)->dl;
  if (tensor->device.type == EK_CPU) memset(ek_dltensor_data(tensor), 0, ek_dltensor_nbytes(tensor));
  *result = ek_value_object(object);
  return 0;
}

/* The bytes of a contiguous tensor from 'offset' on, 'size' of them, as a tensor of bytes where it lies.
** 0 or -1. */
static int piece_of(rpc_session *session, const rpc_field *fields, uint64_t size, int64_t *shape,
                    ek_dltensor *piece) {
  ek_object *object = object_of(session, &fields[0], EK_TENSOR);
  if (object == NULL) return -1;
  const ek_dltensor *tensor = &((ek_tensor *)(void *)object)->dl;
  size_t all = ek_dltensor_nbytes(tensor);
  uint64_t offset = fields[1].number;
  if (offset > all || size > all - offset) {
    return ek_error("ValueError", "tensor: bytes %llu and %llu more of %zu", (unsigned long long)offset,
                    (unsigned long long)size, all);
  }
  if (!ek_dltensor_is_contiguous(tensor)) {
    return ek_error("ValueError", "tensor: a contiguous one expected");
  }
  *shape = (int64_t)size;
  *piece = (ek_dltensor){tensor->data, tensor->device, 1, {EK_DTYPE_UINT, 8, 1}, shape, NULL,
                         tensor->byte_offset + offset};
  return 0;
}

/* Return the bytes in host memory as a DLPack tensor. */
static ek_dltensor bytes_at(const void *data, int64_t *shape) {
  return (ek_dltensor){(void *)(uintptr_t)data, {EK_CPU, 0}, 1, {EK_DTYPE_UINT, 8, 1}, shape, NULL, 0};
}

static int write_tensor(rpc_session *session, rpc_field *fields, ek_value *result) {
  (void)result;
  const ek_bytes *data = &fields[2].bytes;
  int64_t shape;
  ek_dltensor to;
  if (piece_of(session, fields, data->size, &shape, &to) != 0) return -1;
  const ek_tensor *tensor = (const ek_tensor *)(const void *)rpc_local_object(session, fields[0].number)->v.obj;
  if (tensor->flags & EK_DLPACK_READ_ONLY) return ek_error("ValueError", "write: the tensor can only be read");
  ek_dltensor from = bytes_at(data->data, &shape);
  return ek_tensor_copy(&from, &to);
}

/* Bytes as an answer, which stay where they are until it has been sent. */
int rpc_lend(rpc_session *session, const char *data, size_t size, ek_value *result) {
  session->lent = (ek_bytes){data, size};
  *result = ek_value_none();
  result->type_index = EK_BYTE_ARRAY_PTR;
  result->v.ptr = &session->lent;
  return 0;
}

/* Tensors on a device are copied to the host first. */
static int fetch(const ek_dltensor *from, size_t size, int64_t *shape, ek_value *result) {
  char *data = malloc(size + 1);
  if (data == NULL) return ek_error("MemoryError", "read: no memory for %zu bytes", size);
  ek_dltensor to = bytes_at(data, shape);
  int code = ek_tensor_copy(from, &to);
  if (code == 0) code = ek_string_new(EK_BYTES, data, size, result);
  free(data);
  return code;
}

static int read_tensor(rpc_session *session, rpc_field *fields, ek_value *result) {
  uint64_t size = fields[2].number;
  int64_t shape;
  ek_dltensor from;
  if (piece_of(session, fields, size, &shape, &from) != 0) return -1;
  if (size > session->peer_limit) return ek_error("ValueError", "read: more than a message holds");
  if (from.device.type != EK_CPU) return fetch(&from, size, &shape, result);
  return rpc_lend(session, ek_dltensor_data(&from), size, result);
}

static int copy_tensor(rpc_session *session, rpc_field *fields, ek_value *result) {
  (void)result;
  ek_object *from = object_of(session, &fields[0], EK_TENSOR);
  ek_object *to = from == NULL ? NULL : object_of(session, &fields[1], EK_TENSOR);
  if (to == NULL) return -1;
  if (((ek_tensor *)(void *)to)->flags & EK_DLPACK_READ_ONLY) {
    return ek_error("ValueError", "copy: the tensor can only be read");
  }
  if (from == to) return 0;
  return ek_tensor_copy(&((ek_tensor *)(void *)from)->dl, &((ek_tensor *)(void *)to)->dl);
}

static int release(rpc_session *session, rpc_field *fields, ek_value *result) {
  (void)result;
  for (int64_t i = 0; i < fields[0].count; i++) {
    uint64_t handle;
    memcpy(&handle, fields[0].bytes.data + 8 * i, 8);
    if (rpc_local_object(session, handle) == NULL) return rpc_frame_error("no object has this handle");
    rpc_release_handle(session, handle);
  }
  return 0;
}

/* Modules in files ------------------------------------------------------------------------------ */

static int load(rpc_session *session, rpc_field *fields, ek_value *result) {
  ek_object *object = NULL;
  char *path = rpc_path_of(session, &fields[0].bytes);
  if (path == NULL) return -1;
  int code = ek_module_load(path, &object);
  free(path);
  if (code == 0) *result = ek_value_object(object);
  return code;
}

/* ---------------------------------------------------------------------------------------------- */

rpc_service rpc_service_of(int kind) {
  switch (kind) {
    case RPC_CALL: return call;
    case RPC_FUNCTION: return get_function;
    case RPC_LOAD: return load;
    case RPC_ALLOC: return alloc_tensor;
    case RPC_WRITE: return write_tensor;
    case RPC_READ: return read_tensor;
    case RPC_COPY: return copy_tensor;
    case RPC_TIME: return time_function;
    case RPC_UPLOAD: return rpc_upload;
    case RPC_DOWNLOAD: return rpc_download;
    case RPC_SIZE: return rpc_file_size;
    case RPC_REMOVE: return rpc_remove_file;
    case RPC_LIST: return rpc_list_files;
    case RPC_RELEASE: return release;
    case RPC_IMPORT: return import;
    default: return NULL;
  }
}
