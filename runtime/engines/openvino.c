/* Run regions by OpenVINO's C API; a region's code is a model that OpenVINO reads, such as ONNX. */
#include "engine.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct ov_core ov_core;
typedef struct ov_model ov_model;
typedef struct ov_compiled ov_compiled;
typedef struct ov_request ov_request;
typedef struct ov_port ov_port;
typedef struct ov_tensor ov_tensor;

typedef struct ov_shape {
  int64_t rank;
  int64_t *dims;
} ov_shape;

/* OV(result, name, parameters): of OpenVINO 2023.1 or later. Results of type int are 0 or a code.
** The numbers of element types differ between versions, so they are asked of ports. */
#define OV_FUNCTIONS(OV)                                                                            \
  OV(const char *, ov_get_last_err_msg, (void))                                                     \
  OV(int, ov_core_create, (ov_core **))                                                             \
  OV(int, ov_core_read_model_from_memory_buffer,                                                    \
     (const ov_core *, const char *, size_t, const ov_tensor *, ov_model **))                       \
  OV(int, ov_core_compile_model,                                                                    \
     (const ov_core *, const ov_model *, const char *, size_t, ov_compiled **, ...))                \
  OV(void, ov_model_free, (ov_model *))                                                             \
  OV(int, ov_compiled_model_inputs_size, (const ov_compiled *, size_t *))                           \
  OV(int, ov_compiled_model_outputs_size, (const ov_compiled *, size_t *))                          \
  OV(int, ov_compiled_model_input_by_index, (const ov_compiled *, size_t, ov_port **))              \
  OV(int, ov_compiled_model_output_by_index, (const ov_compiled *, size_t, ov_port **))             \
  OV(int, ov_compiled_model_create_infer_request, (const ov_compiled *, ov_request **))             \
  OV(void, ov_compiled_model_free, (ov_compiled *))                                                 \
  OV(int, ov_port_get_element_type, (const ov_port *, int *))                                       \
  OV(void, ov_output_const_port_free, (ov_port *))                                                  \
  OV(int, ov_tensor_create_from_host_ptr, (int, ov_shape, void *, ov_tensor **))                    \
  OV(int, ov_tensor_get_byte_size, (const ov_tensor *, size_t *))                                   \
  OV(void, ov_tensor_free, (ov_tensor *))                                                           \
  OV(int, ov_infer_request_set_input_tensor_by_index, (ov_request *, size_t, const ov_tensor *))    \
  OV(int, ov_infer_request_set_output_tensor_by_index, (ov_request *, size_t, const ov_tensor *))   \
  OV(int, ov_infer_request_infer, (ov_request *))                                                   \
  OV(void, ov_infer_request_free, (ov_request *))

static struct {
#define OV_MEMBER(result, name, parameters) result(*name) parameters;
  OV_FUNCTIONS(OV_MEMBER)
#undef OV_MEMBER
} ov;

static ov_core *core;

/* A request that no call has. */
typedef struct idle {
  ov_request *request;
  struct idle *next;
} idle;

typedef struct region {
  const ek_engine_host *host;
  char *name;
  ov_compiled *model;
  size_t inputs, outputs;
  int *types;                  /* of inputs, then of outputs, as OpenVINO numbers them */
  pthread_mutex_t lock;        /* guards what is idle */
  idle *waiting;
} region;

/* The error that OpenVINO left, of this thread. */
static int fail(const ek_engine_host *host, const char *kind, const char *doing, const char *name) {
  const char *said = ov.ov_get_last_err_msg();
  return host->error(kind, "%s '%s': openvino: %s", doing, name,
                     said == NULL || *said == '\0' ? "it gives no reason" : said);
}

/* Loading -------------------------------------------------------------------------------------- */

static void unload(void *self) {
  region *r = self;
  while (r->waiting != NULL) {
    idle *first = r->waiting;
    r->waiting = first->next;
    ov.ov_infer_request_free(first->request);
    free(first);
  }
  if (r->model != NULL) ov.ov_compiled_model_free(r->model);
  pthread_mutex_destroy(&r->lock);
  free(r->types);
  free(r->name);
  free(r);
}

/* Floats stay floats: left alone, OpenVINO rounds to 16 bits where a processor multiplies those. */
static int compile(region *r, const void *code, size_t size) {
  char threads[16];
  ov_model *model = NULL;
  snprintf(threads, sizeof threads, "%d", (int)r->host->threads);
  int code_of = ov.ov_core_read_model_from_memory_buffer(core, code, size, NULL, &model);
  if (code_of == 0) {
    code_of = ov.ov_core_compile_model(core, model, "CPU", 4, &r->model, "INFERENCE_NUM_THREADS",
                                       threads, "INFERENCE_PRECISION_HINT", "f32");
    ov.ov_model_free(model);
  }
  return code_of;
}

static int read_type(const region *r, size_t at, int *out) {
  ov_port *port = NULL;
  int code = at < r->inputs
                 ? ov.ov_compiled_model_input_by_index(r->model, at, &port)
                 : ov.ov_compiled_model_output_by_index(r->model, at - r->inputs, &port);
  if (code != 0) return code;
  code = ov.ov_port_get_element_type(port, out);
  ov.ov_output_const_port_free(port);
  return code;
}

static int read_types(region *r) {
  int code = ov.ov_compiled_model_inputs_size(r->model, &r->inputs);
  if (code == 0) code = ov.ov_compiled_model_outputs_size(r->model, &r->outputs);
  if (code != 0) return code;
  r->types = calloc(r->inputs + r->outputs + 1, sizeof *r->types);
  for (size_t at = 0; r->types != NULL && at < r->inputs + r->outputs && code == 0; at++) {
    code = read_type(r, at, &r->types[at]);
  }
  return code;
}

static int load(const ek_engine_host *host, const char *name, const void *code, size_t size,
                void **out) {
  region *r = calloc(1, sizeof *r);
  char *copy = strdup(name);
  if (r == NULL || copy == NULL) {
    free(r);
    free(copy);
    return host->error("MemoryError", "link executable: '%s': no memory", name);
  }
  *r = (region){.host = host, .name = copy};
  pthread_mutex_init(&r->lock, NULL);
  if (compile(r, code, size) == 0 && read_types(r) == 0 && r->types != NULL) {
    *out = r;
    return 0;
  }
  fail(host, "LoadError", "link executable:", name);
  unload(r);
  return -1;
}

/* Running -------------------------------------------------------------------------------------- */

/* A request of this call's own, from those that are idle; NULL with OpenVINO's error. */
static idle *take(region *r) {
  pthread_mutex_lock(&r->lock);
  idle *found = r->waiting;
  if (found != NULL) r->waiting = found->next;
  pthread_mutex_unlock(&r->lock);
  if (found != NULL) return found;
  found = calloc(1, sizeof *found);
  if (found == NULL) return NULL;
  if (ov.ov_compiled_model_create_infer_request(r->model, &found->request) == 0) return found;
  free(found);
  return NULL;
}

static void give_back(region *r, idle *taken) {
  pthread_mutex_lock(&r->lock);
  taken->next = r->waiting;
  r->waiting = taken;
  pthread_mutex_unlock(&r->lock);
}

/* Has a request work on a tensor of the program; its model says of which type that is, and so where
** it ends. 0, or -1 with an error. */
static int set_tensor(const region *r, ov_request *request, size_t at, const ek_dltensor *tensor) {
  ov_shape shape = {tensor->ndim, tensor->shape};
  ov_tensor *created = NULL;
  size_t size = 0;
  int code = ov.ov_tensor_create_from_host_ptr(r->types[at], shape, ek_dltensor_data(tensor), &created);
  if (code == 0) code = ov.ov_tensor_get_byte_size(created, &size);
  if (code == 0 && size != ek_dltensor_nbytes(tensor)) {
    r->host->error("RunError", "run '%s': openvino: tensor %zu has other elements than its model's",
                   r->name, at);
    ov.ov_tensor_free(created);
    return -1;
  }
  if (code == 0) {
    code = at < r->inputs
               ? ov.ov_infer_request_set_input_tensor_by_index(request, at, created)
               : ov.ov_infer_request_set_output_tensor_by_index(request, at - r->inputs, created);
  }
  if (code != 0) fail(r->host, "RunError", "run", r->name);
  if (created != NULL) ov.ov_tensor_free(created);
  return code == 0 ? 0 : -1;
}

static int infer(const region *r, ov_request *request, const ek_dltensor *const *tensors, size_t n) {
  for (size_t at = 0; at < n; at++) {
    if (set_tensor(r, request, at, tensors[at]) != 0) return -1;
  }
  if (ov.ov_infer_request_infer(request) == 0) return 0;
  return fail(r->host, "RunError", "run", r->name);
}

static int run(void *self, const ek_dltensor *const *tensors, int32_t n) {
  region *r = self;
  size_t bytes = 0;
  if ((size_t)n != r->inputs + r->outputs) {
    return r->host->error("RunError", "run '%s': openvino: %zu tensors expected, got %d", r->name,
                          r->inputs + r->outputs, n);
  }
  for (size_t at = r->inputs; at < (size_t)n; at++) bytes += ek_dltensor_nbytes(tensors[at]);
  if (bytes == 0) return 0; /* it refuses tensors without elements */
  idle *taken = take(r);
  if (taken == NULL) return fail(r->host, "RunError", "run", r->name);
  int status = infer(r, taken->request, tensors, (size_t)n);
  give_back(r, taken);
  return status;
}

const ek_engine_table *ek_engine_open(const ek_engine_host *host) {
  static const ek_engine_table table = {load, run, unload};
  static const engine_symbol symbols[] = {
#define OV_SYMBOL(result, name, parameters) {#name, &ov.name},
      OV_FUNCTIONS(OV_SYMBOL)
#undef OV_SYMBOL
      {NULL, NULL}};
  if (engine_find(host, "openvino", "libopenvino_c.so", "libopenvino_c.so",
                  "pip install 'ekiden[openvino]'", symbols) != 0) {
    return NULL;
  }
  if (core == NULL && ov.ov_core_create(&core) != 0) {
    fail(host, "LoadError", "open the engine", "openvino");
    return NULL;
  }
  return &table;
}
