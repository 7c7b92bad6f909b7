/* Run regions by ONNX Runtime's C API; a region's code is an ONNX model. */
#include "engine.h"

#include <stdlib.h>

typedef struct ort_status ort_status; /* NULL: it went well */
typedef struct ort_env ort_env;
typedef struct ort_options ort_options;
typedef struct ort_session ort_session;
typedef struct ort_value ort_value;
typedef struct ort_memory ort_memory;
typedef struct ort_allocator ort_allocator;

/* The table of functions that the library gives, whose first 102 entries are the same in all
** versions. ORT(entry, result, name, parameters) */
#define ORT_FUNCTIONS(ORT)                                                                          \
  ORT(2, const char *, GetErrorMessage, (const ort_status *))                                       \
  ORT(3, ort_status *, CreateEnv, (int, const char *, ort_env **))                                  \
  ORT(8, ort_status *, CreateSessionFromArray,                                                      \
      (const ort_env *, const void *, size_t, const ort_options *, ort_session **))                 \
  ORT(9, ort_status *, Run,                                                                         \
      (ort_session *, const void *, const char *const *, const ort_value *const *, size_t,          \
       const char *const *, size_t, ort_value **))                                                  \
  ORT(10, ort_status *, CreateSessionOptions, (ort_options **))                                     \
  ORT(22, ort_status *, SetSessionLogSeverityLevel, (ort_options *, int))                           \
  ORT(24, ort_status *, SetIntraOpNumThreads, (ort_options *, int))                                 \
  ORT(30, ort_status *, SessionGetInputCount, (const ort_session *, size_t *))                      \
  ORT(31, ort_status *, SessionGetOutputCount, (const ort_session *, size_t *))                     \
  ORT(36, ort_status *, SessionGetInputName,                                                        \
      (const ort_session *, size_t, ort_allocator *, char **))                                      \
  ORT(37, ort_status *, SessionGetOutputName,                                                       \
      (const ort_session *, size_t, ort_allocator *, char **))                                      \
  ORT(49, ort_status *, CreateTensorWithDataAsOrtValue,                                             \
      (const ort_memory *, void *, size_t, const int64_t *, size_t, int, ort_value **))             \
  ORT(69, ort_status *, CreateCpuMemoryInfo, (int, int, ort_memory **))                             \
  ORT(76, ort_status *, AllocatorFree, (ort_allocator *, void *))                                   \
  ORT(78, ort_status *, GetAllocatorWithDefaultOptions, (ort_allocator **))                         \
  ORT(93, void, ReleaseStatus, (ort_status *))                                                      \
  ORT(95, void, ReleaseSession, (ort_session *))                                                    \
  ORT(96, void, ReleaseValue, (ort_value *))                                                        \
  ORT(100, void, ReleaseSessionOptions, (ort_options *))

enum { ORT_LOG_FATAL = 4, ORT_VERSION = 1, MAX_TENSORS = 256 };

typedef struct ort_base {
  void *const *(*GetApi)(uint32_t version);
} ort_base;

static struct {
#define ORT_MEMBER(entry, result, name, parameters) result(*name) parameters;
  ORT_FUNCTIONS(ORT_MEMBER)
#undef ORT_MEMBER
} ort;

static ort_env *env;
static ort_memory *memory;
static ort_allocator *allocator;

typedef struct region {
  const ek_engine_host *host;
  char *name;
  ort_session *session;
  size_t inputs, outputs;
  char **names;                /* of inputs, then of outputs; the allocator's */
} region;

/* Ends a status with an error, -1; 0 for one that went well. */
static int check(const ek_engine_host *host, const char *kind, const char *doing, const char *name,
                 ort_status *status) {
  if (status == NULL) return 0;
  host->error(kind, "%s '%s': onnxruntime: %s", doing, name, ort.GetErrorMessage(status));
  ort.ReleaseStatus(status);
  return -1;
}

/* Loading -------------------------------------------------------------------------------------- */

static int check_load(const region *r, ort_status *status) {
  return check(r->host, "LoadError", "link executable:", r->name, status);
}

static void unload(void *self) {
  region *r = self;
  for (size_t at = 0; r->names != NULL && at < r->inputs + r->outputs; at++) {
    if (r->names[at] == NULL) continue;
    ort_status *status = ort.AllocatorFree(allocator, r->names[at]);
    if (status != NULL) ort.ReleaseStatus(status);
  }
  if (r->session != NULL) ort.ReleaseSession(r->session);
  free(r->names);
  free(r->name);
  free(r);
}

static int open_session(region *r, const void *code, size_t size) {
  ort_options *options = NULL;
  if (check_load(r, ort.CreateSessionOptions(&options)) != 0) return -1;
  int status = check_load(r, ort.SetIntraOpNumThreads(options, r->host->threads));
  if (status == 0) status = check_load(r, ort.SetSessionLogSeverityLevel(options, ORT_LOG_FATAL));
  if (status == 0) {
    status = check_load(r, ort.CreateSessionFromArray(env, code, size, options, &r->session));
  }
  ort.ReleaseSessionOptions(options);
  return status;
}

static int read_names(region *r) {
  if (check_load(r, ort.SessionGetInputCount(r->session, &r->inputs)) != 0) return -1;
  if (check_load(r, ort.SessionGetOutputCount(r->session, &r->outputs)) != 0) return -1;
  r->names = calloc(r->inputs + r->outputs + 1, sizeof *r->names);
  if (r->names == NULL || r->inputs + r->outputs > MAX_TENSORS) {
    return r->host->error("LoadError", "link executable: '%s': onnxruntime: at most %d tensors "
                          "expected, got %zu", r->name, MAX_TENSORS, r->inputs + r->outputs);
  }
  for (size_t at = 0; at < r->inputs + r->outputs; at++) {
    ort_status *status =
        at < r->inputs
            ? ort.SessionGetInputName(r->session, at, allocator, &r->names[at])
            : ort.SessionGetOutputName(r->session, at - r->inputs, allocator, &r->names[at]);
    if (check_load(r, status) != 0) return -1;
  }
  return 0;
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
  if (open_session(r, code, size) == 0 && read_names(r) == 0) {
    *out = r;
    return 0;
  }
  unload(r);
  return -1;
}

/* Running -------------------------------------------------------------------------------------- */

/* ONNX's number of a dtype; 0, its "undefined", for one that it has not. */
static int type_of(ek_dtype dtype) {
  static const struct {
    uint8_t code, bits;
    int number;
  } rows[] = {{EK_DTYPE_FLOAT, 32, 1},  {EK_DTYPE_UINT, 8, 2},   {EK_DTYPE_INT, 8, 3},
              {EK_DTYPE_UINT, 16, 4},   {EK_DTYPE_INT, 16, 5},   {EK_DTYPE_INT, 32, 6},
              {EK_DTYPE_INT, 64, 7},    {EK_DTYPE_BOOL, 8, 9},   {EK_DTYPE_FLOAT, 16, 10},
              {EK_DTYPE_FLOAT, 64, 11}, {EK_DTYPE_UINT, 32, 12}, {EK_DTYPE_UINT, 64, 13},
              {EK_DTYPE_BFLOAT, 16, 16}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    if (rows[i].code == dtype.code && rows[i].bits == dtype.bits) return rows[i].number;
  }
  return 0;
}

/* A session's view of a tensor of the program. */
static ort_status *wrap(const ek_dltensor *tensor, ort_value **out) {
  return ort.CreateTensorWithDataAsOrtValue(memory, ek_dltensor_data(tensor),
                                            ek_dltensor_nbytes(tensor), tensor->shape,
                                            (size_t)tensor->ndim, type_of(tensor->dtype), out);
}

static int run(void *self, const ek_dltensor *const *tensors, int32_t n) {
  region *r = self;
  ort_value *values[MAX_TENSORS];
  ort_status *status = NULL;
  size_t created = 0, count = r->inputs + r->outputs;
  if ((size_t)n != count) {
    return r->host->error("RunError", "run '%s': onnxruntime: %zu tensors expected, got %d", r->name,
                          count, n);
  }
  while (created < count && status == NULL) {
    status = wrap(tensors[created], &values[created]);
    if (status == NULL) created++;
  }
  if (status == NULL) {
    status = ort.Run(r->session, NULL, (const char *const *)r->names,
                     (const ort_value *const *)values, r->inputs,
                     (const char *const *)r->names + r->inputs, r->outputs, values + r->inputs);
  }
  while (created > 0) ort.ReleaseValue(values[--created]);
  return check(r->host, "RunError", "run", r->name, status);
}

/* Initialise the state that all regions share: environment, memory info, allocator. */
static int set_up(const ek_engine_host *host) {
  static const char *const doing = "open the engine", *const name = "onnxruntime";
  if (env == NULL &&
      check(host, "LoadError", doing, name, ort.CreateEnv(ORT_LOG_FATAL, "ekiden", &env)) != 0) {
    return -1;
  }
  if (memory == NULL &&
      check(host, "LoadError", doing, name, ort.CreateCpuMemoryInfo(0, 0, &memory)) != 0) {
    return -1;
  }
  return check(host, "LoadError", doing, name, ort.GetAllocatorWithDefaultOptions(&allocator));
}

const ek_engine_table *ek_engine_open(const ek_engine_host *host) {
  static const ek_engine_table table = {load, run, unload};
  static const char *const advice = "pip install 'ekiden[onnxruntime]'";
  const ort_base *(*base)(void) = NULL;
  const engine_symbol symbols[] = {{"OrtGetApiBase", &base}, {NULL, NULL}};
  if (engine_find(host, "onnxruntime", "libonnxruntime.so", "libonnxruntime.so.1", advice,
                  symbols) != 0) {
    return NULL;
  }
  void *const *api = base()->GetApi(ORT_VERSION);
  if (api == NULL) {
    host->error("LoadError", "onnxruntime: its library is of another interface: %s", advice);
    return NULL;
  }
#define ORT_TAKE(entry, result, name, parameters) memcpy(&ort.name, &api[entry], sizeof ort.name);
  ORT_FUNCTIONS(ORT_TAKE)
#undef ORT_TAKE
  return set_up(host) == 0 ? &table : NULL;
}
