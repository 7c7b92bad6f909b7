/* A template: regions of programs on an NPU, over an interface in C like that of headers/npu.h.
**
**   cc -shared -fPIC -o libekiden_npu.so npu.c -I HEADERS -I $(python -c \
**       "from ekiden import runtime; print(runtime.include_dir())") -lnpu
**
** The folder of the result is what EKIDEN_DRIVERS names. In Python, patterns and the compiler of regions
** are a class (docs/byoc.md), whose `load` is ekiden.runtime.devices.engines.load_region("npu", symbol, code). */
#include <ekiden/runtime.h>
#include <npu.h>
#include <stdlib.h>

enum { MOST = 64 };            /* tensors of a region */

typedef struct region {
  const ek_engine_host *host;
  npu_program *program;
  uint32_t inputs, outputs;
  char name[];
} region;

static npu_context *context;

static void unload(void *self) {
  region *r = self;
  if (r->program != NULL) npu_program_free(r->program);
  free(r);
}

/* Says what the NPU's code means; -1. */
static int fail(const region *r, const char *kind, const char *doing, int code) {
  return r->host->error(kind, "%s '%s': npu: %s", doing, r->name, npu_message(code));
}

static int load(const ek_engine_host *host, const char *name, const void *code, size_t size,
                void **out) {
  region *r = calloc(1, sizeof *r + strlen(name) + 1);
  if (r == NULL) return host->error("MemoryError", "link executable: '%s': no memory", name);
  r->host = host;
  strcpy(r->name, name);
  int status = npu_program_load(context, code, size, &r->program);
  if (status == 0) status = npu_program_counts(r->program, &r->inputs, &r->outputs);
  if (status == 0 && r->inputs + r->outputs <= MOST) {
    *out = r;
    return 0;
  }
  if (status != 0) fail(r, "LoadError", "link executable:", status);
  else host->error("LoadError", "link executable: '%s': npu: more than %d tensors", name, MOST);
  unload(r);
  return -1;
}

/* Inputs, then the tensors that are written; any number of threads at once, which this NPU allows. */
static int run(void *self, const ek_dltensor *const *tensors, int32_t n) {
  region *r = self;
  npu_buffer buffers[MOST];
  if ((uint32_t)n != r->inputs + r->outputs) {
    return r->host->error("RunError", "run '%s': npu: %u tensors expected, got %d", r->name,
                          r->inputs + r->outputs, n);
  }
  for (int32_t i = 0; i < n; i++) {
    buffers[i] = (npu_buffer){ek_dltensor_data(tensors[i]), ek_dltensor_nbytes(tensors[i])};
  }
  int status = npu_program_run(r->program, buffers, buffers + r->inputs);
  return status == 0 ? 0 : fail(r, "RunError", "run", status);
}

EK_API const ek_engine_table *ek_engine_open(const ek_engine_host *host);

const ek_engine_table *ek_engine_open(const ek_engine_host *host) {
  static const ek_engine_table table = {load, run, unload};
  int status = context == NULL ? npu_context_create(&context) : 0;
  if (status == 0) return &table;
  host->error("LoadError", "npu: there is none here: %s", npu_message(status));
  return NULL;
}
