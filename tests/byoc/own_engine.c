/* An engine in C of one operator, x + x: the code of a region says how many of the elements of its
** output it writes, in its first call and in later ones, as text: "6 6". */
#include <ekiden/runtime.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct region {
  int first, later, calls;
} region;

static int load(const ek_engine_host *host, const char *name, const void *code, size_t size,
                void **out) {
  char text[64] = "";
  region *r = calloc(1, sizeof *r);
  (void)name;
  if (r == NULL) return host->error("MemoryError", "no memory");
  for (size_t i = 0; i < size && i < sizeof text - 1; i++) text[i] = ((const char *)code)[i];
  if (sscanf(text, "%d %d", &r->first, &r->later) != 2) {
    free(r);
    return host->error("LoadError", "two numbers expected");
  }
  *out = r;
  return 0;
}

static int run(void *self, const ek_dltensor *const *tensors, int32_t n) {
  region *r = self;
  (void)n;
  const float *x = ek_dltensor_data(tensors[0]);
  float *y = ek_dltensor_data(tensors[1]);
  int count = r->calls++ == 0 ? r->first : r->later;
  for (int i = 0; i < count && i < (int)(ek_dltensor_nbytes(tensors[1]) / sizeof *y); i++) {
    y[i] = x[i] + x[i];
  }
  return 0;
}

static void unload(void *self) {
  free(self);
}

__attribute__((visibility("default"))) const ek_engine_table *ek_engine_open(
    const ek_engine_host *host) {
  static const ek_engine_table table = {load, run, unload};
  (void)host;
  return &table;
}
