/* A region for oneDNN as a program of steps, and a plan: its primitives for inputs of given sizes.
**
** The code of a region is words of 64 bits, little-endian:
**
**   MAGIC, inputs, constants, steps, results
**   for each constant: ndim, its sizes, then its floats of 32 bits, filled up to a whole word
**   for each step: an onednn_kind, n, the numbers of n values, m, m attributes
**   for each result: the number of a value
**
** Values are numbered in that order: inputs, constants, results of steps. */
#ifndef EK_ONEDNN_PLAN_H_
#define EK_ONEDNN_PLAN_H_

#include "ekiden/runtime.h"
#include "onednn_api.h"

#define ONEDNN_MAGIC INT64_C(0x314c4e4e444b45) /* "EKDNNL1" */

/* Kind of a step, in the order of KINDS in src/ekiden/byoc/onednn_regions.py. Attributes:
**   PRODUCT      relu; of (rows, k), (columns, k) and, in all kinds that have one, a bias
**   CONVOLUTION  strides, padding (top, left, bottom, right), dilation, groups, relu
**   POOLING      window, strides, padding, dilation
**   ELEMENT      oneDNN's number of the function
**   BINARY       oneDNN's number of the operator
**   SOFTMAX      axis, not negative */
typedef enum onednn_kind {
  ONEDNN_PRODUCT,
  ONEDNN_CONVOLUTION,
  ONEDNN_POOLING,
  ONEDNN_ELEMENT,
  ONEDNN_BINARY,
  ONEDNN_SOFTMAX,
  ONEDNN_KINDS
} onednn_kind;

enum { ONEDNN_MAX_ARGS = 3, ONEDNN_MAX_ATTRS = 10 };

typedef struct onednn_step {
  int64_t kind, n_args, n_attrs;
  int64_t args[ONEDNN_MAX_ARGS];
  int64_t attrs[ONEDNN_MAX_ATTRS];
} onednn_step;

typedef struct onednn_shape {
  int32_t ndim;
  int64_t dims[DNNL_MAX_DIMS];
} onednn_shape;

typedef struct onednn_constant {
  onednn_shape shape;
  float *data;
} onednn_constant;

typedef struct onednn_program {
  int64_t n_inputs, n_constants, n_steps, n_results;
  onednn_constant *constants;
  onednn_step *steps;
  int64_t *results;
} onednn_program;

/* Reads code, whose every count and number is checked. NULL, or what is wrong. */
const char *onednn_read(onednn_program *program, const void *code, size_t size);
void onednn_free(onednn_program *program);

typedef struct onednn_plan onednn_plan;

/* The primitives for inputs of these sizes; NULL with what failed in '*why'. */
onednn_plan *onednn_plan_new(const onednn_program *program, const ek_dltensor *const *inputs,
                             const char **why);

/* Whether a plan is for inputs of these sizes. */
int onednn_plan_fits(const onednn_plan *plan, const ek_dltensor *const *inputs);

/* Runs it, one caller at a time. NULL, or what failed. */
const char *onednn_plan_run(onednn_plan *plan, const ek_dltensor *const *tensors);
void onednn_plan_free(onednn_plan *plan);

#endif /* EK_ONEDNN_PLAN_H_ */
