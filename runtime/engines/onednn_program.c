/* Parse the code of a oneDNN region. */
#include "onednn_plan.h"

#include <stdbool.h>
#include <stdlib.h>

enum { MOST = 1 << 16 };       /* inputs, constants, steps, results of a region */

typedef struct reader {
  const char *at, *end;
  bool failed;
} reader;

/* The next word, from 0 to 'most'; once one is not, all are 0. */
static int64_t word(reader *r, int64_t most) {
  int64_t value = 0;
  if (r->end - r->at < (ptrdiff_t)sizeof value) r->failed = true;
  if (r->failed) return 0;
  memcpy(&value, r->at, sizeof value);
  r->at += sizeof value;
  if (value < 0 || value > most) r->failed = true;
  return r->failed ? 0 : value;
}

static void read_constant(reader *r, onednn_constant *out) {
  uint64_t count = 1, left = (uint64_t)(r->end - r->at) / sizeof(float);
  out->shape.ndim = (int32_t)word(r, DNNL_MAX_DIMS);
  for (int32_t i = 0; i < out->shape.ndim; i++) {
    out->shape.dims[i] = word(r, (int64_t)left);
    count *= (uint64_t)out->shape.dims[i];
    if (count > left) r->failed = true;
    if (r->failed) return;
  }
  size_t size = (count + 1) / 2 * 2 * sizeof(float);
  if ((size_t)(r->end - r->at) < size) r->failed = true;
  if (!r->failed) out->data = malloc(size + 1);
  if (out->data == NULL) r->failed = true;
  if (r->failed) return;
  memcpy(out->data, r->at, size);
  r->at += size;
}

static void read_step(reader *r, onednn_step *out, int64_t n_values) {
  static const int8_t attrs[ONEDNN_KINDS] = {1, 10, 10, 1, 1, 1};
  static const int8_t least[ONEDNN_KINDS] = {2, 2, 1, 1, 2, 1}, most[ONEDNN_KINDS] = {3, 3, 1, 1, 2, 1};
  out->kind = word(r, ONEDNN_KINDS - 1);
  out->n_args = word(r, most[out->kind]);
  for (int64_t i = 0; i < out->n_args; i++) out->args[i] = word(r, n_values - 1);
  out->n_attrs = word(r, ONEDNN_MAX_ATTRS);
  for (int64_t i = 0; i < out->n_attrs; i++) out->attrs[i] = word(r, INT32_MAX);
  if (out->n_args < least[out->kind] || out->n_attrs != attrs[out->kind]) r->failed = true;
}

const char *onednn_read(onednn_program *program, const void *code, size_t size) {
  reader r = {code, (const char *)code + size, false};
  memset(program, 0, sizeof *program);
  if (word(&r, INT64_MAX) != ONEDNN_MAGIC) return "this is no code for it";
  program->n_inputs = word(&r, MOST);
  program->n_constants = word(&r, MOST);
  program->n_steps = word(&r, MOST);
  program->n_results = word(&r, MOST);
  program->constants = calloc((size_t)program->n_constants + 1, sizeof *program->constants);
  program->steps = calloc((size_t)program->n_steps + 1, sizeof *program->steps);
  program->results = calloc((size_t)program->n_results + 1, sizeof *program->results);
  if (program->constants == NULL || program->steps == NULL || program->results == NULL) {
    return "no memory";
  }
  int64_t n_values = program->n_inputs + program->n_constants;
  for (int64_t i = 0; i < program->n_constants; i++) read_constant(&r, &program->constants[i]);
  for (int64_t i = 0; i < program->n_steps; i++) read_step(&r, &program->steps[i], n_values++);
  for (int64_t i = 0; i < program->n_results; i++) program->results[i] = word(&r, n_values - 1);
  return r.failed || r.at != r.end ? "its code is damaged" : NULL;
}

void onednn_free(onednn_program *program) {
  for (int64_t i = 0; program->constants != NULL && i < program->n_constants; i++) {
    free(program->constants[i].data);
  }
  free(program->constants);
  free(program->steps);
  free(program->results);
}
