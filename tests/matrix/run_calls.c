/* Runs a compiled program as C does, without Python: the calls of one file, the results to another.
**
**   run_calls MODEL CALLS RESULTS STATES [TYPE:NUMBER ...]
**
** The function "main" is called; where devices are given, a graph executor on them has its inputs set.
** STATES says how many of the last results of a call are the last arguments of the next; CALLS has
** those of the first.
**
** CALLS: int64 tags of Cons and Nil, int64 calls; for each int64 arguments, each of which is a record.
** A record: 'T', uint8 code, uint8 bits, uint8 dimensions, int64 for each, the elements; or 'L', int64
** items, as many records of tensors. RESULTS: for each call int64 leaves, as many records of tensors;
** the tag of a constructor is a tensor of int64 before its fields, unless it is 0. */
#include <ekiden/runtime.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_ARGS = 64, MAX_OPEN = 1 << 16 };

static int64_t cons_tag, nil_tag;
static ek_value devices[MAX_ARGS];
static int32_t device_count;

static int read_bytes(FILE *file, void *data, size_t size) {
  if (size != 0 && fread(data, 1, size, file) != size) return ek_error("ValueError", "cut calls");
  return 0;
}

static int read_tensor(FILE *file, ek_value *out) {
  uint8_t head[3];
  int64_t shape[EK_MAX_NDIM];
  ek_object *tensor = NULL;
  if (read_bytes(file, head, sizeof head) != 0) return -1;
  if (read_bytes(file, shape, head[2] * sizeof *shape) != 0) return -1;
  ek_dtype dtype = {head[0], head[1], 1};
  ek_device host = {EK_CPU, 0};
  if (ek_tensor_new(shape, head[2], dtype, host, &tensor) != 0) return -1;
  *out = ek_value_object(tensor);
  const ek_dltensor *made = ek_value_tensor(out);
  return read_bytes(file, ek_dltensor_data(made), ek_dltensor_nbytes(made));
}

/* A list is read into an array first: it is made from its end. */
static int read_list(FILE *file, ek_value *out) {
  int64_t count = 0;
  ek_object *list = NULL;
  if (read_bytes(file, &count, sizeof count) != 0) return -1;
  ek_value *items = calloc((size_t)count + 1, sizeof *items);
  int status = items == NULL ? ek_error("MemoryError", "read calls") : 0;
  for (int64_t i = 0; status == 0 && i < count; i++) {
    status = getc(file) == 'T' ? read_tensor(file, &items[i]) : ek_error("ValueError", "no tensor");
  }
  if (status == 0) status = ek_adt_new((int32_t)nil_tag, NULL, 0, &list);
  for (int64_t i = count - 1; status == 0 && i >= 0; i--) {
    ek_value fields[2] = {items[i], ek_value_object(list)};
    ek_object *rest = list;
    list = NULL;
    status = ek_adt_new((int32_t)cons_tag, fields, 2, &list);
    ek_object_release(rest);
  }
  for (int64_t i = 0; items != NULL && i < count; i++) ek_value_release(&items[i]);
  free(items);
  if (status == 0) *out = ek_value_object(list);
  return status;
}

static int read_argument(FILE *file, ek_value *out) {
  int kind = getc(file);
  if (kind == 'T') return read_tensor(file, out);
  return kind == 'L' ? read_list(file, out) : ek_error("ValueError", "no argument");
}

static void write_record(FILE *file, const ek_dltensor *tensor, const void *data) {
  uint8_t head[4] = {'T', tensor->dtype.code, tensor->dtype.bits, (uint8_t)tensor->ndim};
  fwrite(head, 1, sizeof head, file);
  for (int32_t i = 0; i < tensor->ndim; i++) fwrite(&tensor->shape[i], sizeof(int64_t), 1, file);
  fwrite(data, 1, ek_dltensor_nbytes(tensor), file);
}

/* What lies on a device is copied to the host. */
static int write_tensor(FILE *file, const ek_dltensor *tensor) {
  ek_object *copy = NULL;
  ek_device host = {EK_CPU, 0};
  if (ek_tensor_new(tensor->shape, tensor->ndim, tensor->dtype, host, &copy) != 0) return -1;
  ek_value value = ek_value_object(copy);
  int status = ek_tensor_copy(tensor, ek_value_tensor(&value));
  if (status == 0) write_record(file, tensor, ek_dltensor_data(ek_value_tensor(&value)));
  ek_object_release(copy);
  return status;
}

static void write_number(FILE *file, int64_t number) {
  ek_dtype int64 = {EK_DTYPE_INT, 64, 1};
  ek_dltensor tensor = {NULL, {EK_CPU, 0}, 0, int64, NULL, NULL, 0};
  write_record(file, &tensor, &number);
}

/* Writes the leaves of 'count' values, of which later ones lie deeper on the stack 'open'. */
static int write_values(FILE *file, const ek_value *values, int32_t count, int64_t *leaves) {
  static const ek_value *open[MAX_OPEN];
  int32_t depth = 0;
  for (int32_t i = count - 1; i >= 0; i--) open[depth++] = &values[i];
  while (depth > 0) {
    const ek_value *value = open[--depth];
    const ek_dltensor *tensor = ek_value_tensor(value);
    if (tensor != NULL) {
      if (write_tensor(file, tensor) != 0) return -1;
      *leaves += 1;
      continue;
    }
    if (value->type_index != EK_ADT) return ek_error("TypeError", "a result is no tensor or data");
    const ek_adt *adt = (const ek_adt *)(const void *)value->v.obj;
    if (adt->tag != 0) {
      write_number(file, adt->tag);
      *leaves += 1;
    }
    if (depth + adt->size > MAX_OPEN) return ek_error("ValueError", "a result is too wide");
    for (int32_t i = adt->size - 1; i >= 0; i--) open[depth++] = &adt->fields[i];
  }
  return 0;
}

/* Results of a call, owned: the fields of a tuple where there are several. */
typedef struct results {
  ek_value whole;
  ek_value *values;
  int32_t count;
} results;

static int call(ek_object *module, const char *name, const ek_value *args, int32_t n, ek_value *out) {
  ek_object *function = NULL;
  if (ek_module_get(module, name, &function) != 0) return -1;
  if (function == NULL) return ek_error("AttributeError", "there is no function '%s'", name);
  int status = ek_function_call(function, args, n, out);
  ek_object_release(function);
  return status;
}

static int call_main(ek_object *model, const ek_value *args, int32_t n, results *out) {
  if (call(model, "main", args, n, &out->whole) != 0) return -1;
  out->values = &out->whole;
  out->count = 1;
  if (out->whole.type_index == EK_ADT) {
    ek_adt *adt = (ek_adt *)(void *)out->whole.v.obj;
    if (adt->tag == 0) {
      out->values = adt->fields;
      out->count = adt->size;
    }
  }
  return 0;
}

static int call_graph(ek_object *model, const ek_value *args, int32_t n, results *out) {
  static ek_value leaves[MAX_ARGS];
  ek_value executor = ek_value_none(), count = ek_value_none(), none = ek_value_none();
  if (call(model, "default", devices, device_count, &executor) != 0) return -1;
  ek_object *graph = executor.v.obj;
  int status = 0;
  for (int32_t i = 0; status == 0 && i < n; i++) {
    ek_value pair[2] = {ek_value_int(i), args[i]};
    status = call(graph, "set_input", pair, 2, &none);
  }
  if (status == 0) status = call(graph, "run", NULL, 0, &none);
  if (status == 0) status = call(graph, "get_num_outputs", NULL, 0, &count);
  for (int64_t i = 0; status == 0 && i < count.v.i64 && i < MAX_ARGS; i++) {
    ek_value number = ek_value_int(i);
    leaves[i] = ek_value_none();
    status = call(graph, "get_output", &number, 1, &leaves[i]);
    out->count = (int32_t)i + 1;
  }
  out->values = leaves;
  out->whole = executor;
  return status;
}

static int run(ek_object *model, FILE *calls, FILE *file, int32_t states) {
  int is_graph = device_count != 0;
  ek_value args[MAX_ARGS], carried[MAX_ARGS];
  int64_t heads[3], count = 0;
  if (read_bytes(calls, heads, sizeof heads) != 0) return -1;
  cons_tag = heads[0], nil_tag = heads[1];
  for (int64_t i = 0; i < heads[2]; i++) {
    results out = {ek_value_none(), NULL, 0};
    int64_t leaves = 0;
    if (read_bytes(calls, &count, sizeof count) != 0) return -1;
    if (count > MAX_ARGS) return ek_error("ValueError", "too many arguments");
    for (int64_t k = 0; k < count; k++) {
      if (read_argument(calls, &args[k]) != 0) return -1;
    }
    for (int32_t k = 0; i > 0 && k < states; k++) {
      ek_value_release(&args[count - states + k]);
      args[count - states + k] = carried[k];
    }
    if ((is_graph ? call_graph : call_main)(model, args, (int32_t)count, &out) != 0) return -1;
    if (out.count < states) return ek_error("ValueError", "fewer results than states");
    long start = ftell(file);
    fwrite(&leaves, sizeof leaves, 1, file);
    if (write_values(file, out.values, out.count - states, &leaves) != 0) return -1;
    fseek(file, start, SEEK_SET);
    fwrite(&leaves, sizeof leaves, 1, file);
    fseek(file, 0, SEEK_END);
    for (int32_t k = 0; k < states; k++) {
      carried[k] = out.values[out.count - states + k];
      ek_value_retain(&carried[k]);
    }
    for (int64_t k = 0; k < count; k++) ek_value_release(&args[k]);
    for (int32_t k = 0; is_graph && k < out.count; k++) ek_value_release(&out.values[k]);
    ek_value_release(&out.whole);
  }
  for (int32_t k = 0; heads[2] > 0 && k < states; k++) ek_value_release(&carried[k]);
  return 0;
}

int main(int argc, char **argv) {
  ek_object *model = NULL;
  if (argc < 5 || argc - 5 > MAX_ARGS) return 2;
  for (int i = 5; i < argc; i++) {
    ek_value *device = &devices[device_count++];
    device->type_index = EK_DEVICE;
    if (sscanf(argv[i], "%d:%d", &device->v.device.type, &device->v.device.id) != 2) return 2;
  }
  FILE *calls = fopen(argv[2], "rb"), *file = fopen(argv[3], "wb");
  if (calls == NULL || file == NULL) return 2;
  int status = ek_module_load(argv[1], &model);
  if (status == 0) status = run(model, calls, file, atoi(argv[4]));
  fclose(calls);
  fclose(file);
  ek_object_release(model);
  if (status == 0) return 0;
  ek_object *error = ek_error_take();
  const ek_error_object *e = (const ek_error_object *)(const void *)error;
  fprintf(stderr, "%.*s: %.*s\n", (int)e->kind.size, e->kind.data, (int)e->message.size,
          e->message.data);
  ek_object_release(error);
  return 1;
}
