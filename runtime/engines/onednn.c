/* Run regions by oneDNN's C API; a region's code is a program in the format of onednn_plan.h. */
#include "engine.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "onednn_plan.h"

enum { MOST_IDLE = 16 };

onednn_api dnnl;
dnnl_engine *dnnl_cpu;

/* A plan that no call has. */
typedef struct idle {
  onednn_plan *plan;
  struct idle *next;
} idle;

typedef struct region {
  const ek_engine_host *host;
  char *name;
  onednn_program program;
  pthread_mutex_t lock;        /* guards what is idle */
  idle *waiting;
  int n_waiting;
} region;

static void drop(idle *taken) {
  onednn_plan_free(taken->plan);
  free(taken);
}

static void unload(void *self) {
  region *r = self;
  while (r->waiting != NULL) {
    idle *first = r->waiting;
    r->waiting = first->next;
    drop(first);
  }
  pthread_mutex_destroy(&r->lock);
  onednn_free(&r->program);
  free(r->name);
  free(r);
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
  r->host = host;
  r->name = copy;
  pthread_mutex_init(&r->lock, NULL);
  const char *why = onednn_read(&r->program, code, size);
  if (why == NULL) {
    *out = r;
    return 0;
  }
  unload(r);
  return host->error("LoadError", "link executable: '%s': onednn: %s", name, why);
}

/* A plan of this call's own: one that is idle, or a new one. NULL with an error. */
static idle *take(region *r, const ek_dltensor *const *tensors) {
  const char *why = "no memory";
  idle **at = &r->waiting;
  pthread_mutex_lock(&r->lock);
  while (*at != NULL && !onednn_plan_fits((*at)->plan, tensors)) at = &(*at)->next;
  idle *found = *at;
  if (found != NULL) {
    *at = found->next;
    r->n_waiting--;
  }
  pthread_mutex_unlock(&r->lock);
  if (found != NULL) return found;
  found = calloc(1, sizeof *found);
  if (found != NULL) found->plan = onednn_plan_new(&r->program, tensors, &why);
  if (found != NULL && found->plan != NULL) return found;
  free(found);
  r->host->error("RunError", "run '%s': onednn: %s", r->name, why);
  return NULL;
}

/* The plan becomes the first of those that are idle; beyond MOST_IDLE the last one goes. */
static void give_back(region *r, idle *taken) {
  idle *last = NULL, **at = &r->waiting;
  pthread_mutex_lock(&r->lock);
  taken->next = r->waiting;
  r->waiting = taken;
  if (++r->n_waiting > MOST_IDLE) {
    while ((*at)->next != NULL) at = &(*at)->next;
    last = *at;
    *at = NULL;
    r->n_waiting--;
  }
  pthread_mutex_unlock(&r->lock);
  if (last != NULL) drop(last);
}

/* NULL where tensors are such as plans take. */
static const char *refusal(const region *r, const ek_dltensor *const *tensors, int32_t n) {
  if (n != r->program.n_inputs + r->program.n_results) return "another number of tensors expected";
  for (int32_t i = 0; i < n; i++) {
    if (tensors[i]->dtype.code != EK_DTYPE_FLOAT || tensors[i]->dtype.bits != 32) return "floats expected";
    if (tensors[i]->ndim > DNNL_MAX_DIMS || tensors[i]->ndim < 1) return "1 to 12 dimensions expected";
  }
  return NULL;
}

static bool is_empty(const ek_dltensor *const *tensors, int64_t from, int64_t to, bool all) {
  bool is_found = all;
  for (int64_t i = from; i < to; i++) {
    bool empty = ek_dltensor_nbytes(tensors[i]) == 0;
    is_found = all ? is_found && empty : is_found || empty;
  }
  return is_found;
}

static int run(void *self, const ek_dltensor *const *tensors, int32_t n) {
  region *r = self;
  const char *why = refusal(r, tensors, n);
  if (why == NULL && is_empty(tensors, r->program.n_inputs, n, true)) return 0;
  if (why == NULL && is_empty(tensors, 0, n, false)) why = "it takes no tensors without elements";
  if (why != NULL) return r->host->error("RunError", "run '%s': onednn: %s", r->name, why);
  idle *taken = take(r, tensors);
  if (taken == NULL) return -1;
  why = onednn_plan_run(taken->plan, tensors);
  give_back(r, taken);
  if (why != NULL) return r->host->error("RunError", "run '%s': onednn: %s", r->name, why);
  return 0;
}

const ek_engine_table *ek_engine_open(const ek_engine_host *host) {
  static const ek_engine_table table = {load, run, unload};
  static const engine_symbol symbols[] = {
#define DNNL_SYMBOL(result, name, parameters) {#name, &dnnl.name},
      DNNL_FUNCTIONS(DNNL_SYMBOL)
#undef DNNL_SYMBOL
      {NULL, NULL}};
  if (engine_find(host, "onednn", "libdnnl.so.3", "libdnnl.so.3", "pip install 'ekiden[onednn]'",
                  symbols) != 0) {
    return NULL;
  }
  if (dnnl_cpu == NULL && dnnl.dnnl_engine_create(&dnnl_cpu, DNNL_CPU, 0) != 0) {
    host->error("LoadError", "onednn: it has no engine for this processor");
    return NULL;
  }
  return &table;
}
