/* Plans: sizes of all values, primitives, and memory between them.
**
** Each value has the memory layout that its producer prefers; a reorder is inserted where a
** consumer requires another. Steps over constants alone run once, when the plan is created.
**
** Errors. Every function may be called after a failure: 'why' keeps the first reason, calls with
** NULL do nothing, and the plan is freed at the end, so that no step needs a check of its own.
** Owned objects are freed in the reverse order of their creation, since later ones refer to earlier
** ones. */
#include "onednn_plan.h"

#include <stdbool.h>
#include <stdlib.h>

enum { MAX_RUN_ARGS = 6 };

typedef struct run_step {
  dnnl_primitive *primitive;
  int n;
  dnnl_arg args[MAX_RUN_ARGS];
} run_step;

typedef struct value {
  onednn_shape shape;
  dnnl_memory *memory;
  bool is_constant;
} value;

/* A list of what is freed at the end. */
typedef struct owned {
  void *thing;
  void (*drop)(void *thing);
  struct owned *next;
} owned;

struct onednn_plan {
  const onednn_program *program;
  value *values;
  dnnl_memory **results;       /* over the tensors of the program */
  run_step *steps;
  int64_t n_steps, capacity;
  owned *things;
  dnnl_stream *stream;
  const char *why;             /* the first thing that failed, or NULL */
};

/* What is owned ---------------------------------------------------------------------------------- */

static void drop_memory(void *thing) { dnnl.dnnl_memory_destroy(thing); }
static void drop_desc(void *thing) { dnnl.dnnl_memory_desc_destroy(thing); }
static void drop_primitive(void *thing) { dnnl.dnnl_primitive_destroy(thing); }
static void drop_primitive_desc(void *thing) { dnnl.dnnl_primitive_desc_destroy(thing); }
static void drop_attr(void *thing) { dnnl.dnnl_primitive_attr_destroy(thing); }

/* Keeps what a call made, whose status is given, at 'made'. 'made' is the address of the variable
** that the call has filled. In C the order in which arguments are evaluated is not said, so the
** variable itself, given beside the call that fills it, might be read too early. */
static void keep(onednn_plan *p, int status, const char *doing, const void *made, void (*drop)(void *)) {
  void *thing;
  memcpy(&thing, made, sizeof thing); /* only now: the call is an argument too */
  if (status != 0 || thing == NULL) {
    if (p->why == NULL) p->why = doing;
    return;
  }
  owned *kept = malloc(sizeof *kept);
  if (kept == NULL) {
    drop(thing);
    p->why = "no memory";
    return;
  }
  *kept = (owned){thing, drop, p->things};
  p->things = kept;
}

static void *buffer(onednn_plan *p, size_t size) {
  void *memory = aligned_alloc(64, (size + 127) / 64 * 64);
  keep(p, 0, "no memory", &memory, free);
  return memory;
}

/* Descriptions and memory ------------------------------------------------------------------------ */

/* Row-major; a bias is seen with 'ndim' dimensions, of which the others are 1 and come first. */
static dnnl_desc *plain(onednn_plan *p, const onednn_shape *shape, int32_t ndim) {
  int64_t dims[DNNL_MAX_DIMS], strides[DNNL_MAX_DIMS], stride = 1;
  dnnl_desc *result = NULL;
  int32_t more = ndim - shape->ndim;
  for (int32_t i = ndim - 1; i >= 0; i--) {
    dims[i] = i < more ? 1 : shape->dims[i - more];
    strides[i] = stride;
    stride *= dims[i];
  }
  keep(p, dnnl.dnnl_memory_desc_create_with_strides(&result, ndim, dims, DNNL_F32, strides),
       "a size that it has not", &result, drop_desc);
  return result;
}

/* Leaves to oneDNN how the elements lie: weights get its blocked forms, which are made once, and
** values between steps stay in what the last one liked. */
static dnnl_desc *any(onednn_plan *p, int32_t ndim, const int64_t *dims) {
  dnnl_desc *result = NULL;
  keep(p, dnnl.dnnl_memory_desc_create_with_tag(&result, ndim, dims, DNNL_F32, DNNL_ANY),
       "a size that it has not", &result, drop_desc);
  return result;
}

static dnnl_memory *memory_at(onednn_plan *p, const dnnl_desc *desc, void *data) {
  dnnl_memory *result = NULL;
  if (p->why != NULL) return NULL;
  keep(p, dnnl.dnnl_memory_create(&result, desc, dnnl_cpu, data), "memory", &result, drop_memory);
  return result;
}

static dnnl_memory *memory_of(onednn_plan *p, const dnnl_desc *desc) {
  if (p->why != NULL) return NULL;
  return memory_at(p, desc, buffer(p, dnnl.dnnl_memory_desc_get_size(desc)));
}

static const dnnl_desc *desc_of(const dnnl_memory *memory) {
  const dnnl_desc *found = NULL;
  if (memory != NULL) dnnl.dnnl_memory_get_memory_desc(memory, &found);
  return found;
}

/* Steps ------------------------------------------------------------------------------------------ */

static void execute(onednn_plan *p, const run_step *step) {
  if (dnnl.dnnl_primitive_execute(step->primitive, p->stream, step->n, step->args) != 0) {
    p->why = "a primitive failed";
  }
}

/* Adds a primitive to the plan, with its working memory; of constants alone it runs now. */
static void add_step(onednn_plan *p, dnnl_primitive_desc *desc, const dnnl_arg *args, int n,
                     bool is_constant) {
  run_step step = {NULL, n, {{0}}};
  if (p->why != NULL) return;
  keep(p, dnnl.dnnl_primitive_create(&step.primitive, desc), "a primitive", &step.primitive,
       drop_primitive);
  const dnnl_desc *scratch = dnnl.dnnl_primitive_desc_query_md(desc, DNNL_SCRATCHPAD_MD, 0);
  for (int i = 0; i < n; i++) step.args[i] = args[i];
  if (scratch != NULL && dnnl.dnnl_memory_desc_get_size(scratch) != 0) {
    step.args[step.n++] = (dnnl_arg){DNNL_ARG_SCRATCHPAD, memory_of(p, scratch)};
  }
  if (p->why != NULL) return;
  if (is_constant) {
    execute(p, &step);
    return;
  }
  if (p->n_steps == p->capacity) {
    int64_t capacity = 2 * p->capacity + 16;
    run_step *larger = realloc(p->steps, (size_t)capacity * sizeof *larger);
    if (larger == NULL) {
      p->why = "no memory";
      return;
    }
    p->steps = larger;
    p->capacity = capacity;
  }
  p->steps[p->n_steps++] = step;
}

/* Attributes of a primitive: working memory is given, and what follows it. */
static dnnl_attr *attr_of(onednn_plan *p, bool has_relu) {
  dnnl_attr *result = NULL;
  dnnl_post_ops *after = NULL;
  keep(p, dnnl.dnnl_primitive_attr_create(&result), "attributes", &result, drop_attr);
  if (p->why != NULL) return NULL;
  int status = dnnl.dnnl_primitive_attr_set_scratchpad_mode(result, DNNL_USER_SCRATCHPAD);
  if (has_relu && status == 0) {
    status = dnnl.dnnl_post_ops_create(&after);
    if (status == 0) status = dnnl.dnnl_post_ops_append_eltwise(after, DNNL_RELU, 0.0f, 0.0f);
    if (status == 0) status = dnnl.dnnl_primitive_attr_set_post_ops(result, after);
    if (after != NULL) dnnl.dnnl_post_ops_destroy(after);
  }
  if (status != 0) p->why = "attributes";
  return result;
}

static void reorder(onednn_plan *p, dnnl_memory *from, dnnl_memory *to, bool is_constant) {
  dnnl_primitive_desc *desc = NULL;
  if (p->why != NULL) return;
  int status = dnnl.dnnl_reorder_primitive_desc_create(&desc, desc_of(from), dnnl_cpu, desc_of(to),
                                                       dnnl_cpu, attr_of(p, false));
  keep(p, status, "a reorder", &desc, drop_primitive_desc);
  dnnl_arg args[] = {{DNNL_ARG_SRC, from}, {DNNL_ARG_DST, to}};
  add_step(p, desc, args, 2, is_constant);
}

/* A value's memory as a primitive wants it. */
static dnnl_memory *to_wanted_layout(onednn_plan *p, const value *v, dnnl_memory *has, const dnnl_desc *target_desc) {
  if (p->why != NULL || target_desc == NULL || dnnl.dnnl_memory_desc_equal(desc_of(has), target_desc)) return has;
  dnnl_memory *result = memory_of(p, target_desc);
  reorder(p, has, result, v->is_constant);
  return result;
}

/* The elements of a value, row-major, under a description of as many. */
static dnnl_memory *viewed(onednn_plan *p, const value *v, const dnnl_desc *desc) {
  if (p->why != NULL) return NULL;
  void *data = buffer(p, dnnl.dnnl_memory_desc_get_size(desc));
  reorder(p, v->memory, memory_at(p, plain(p, &v->shape, v->shape.ndim), data), v->is_constant);
  return memory_at(p, desc, data);
}

/* A value row-major, with 1 for sizes that others have before its own. */
static dnnl_memory *widened(onednn_plan *p, const value *v, int32_t ndim) {
  const dnnl_desc *target_desc = plain(p, &v->shape, ndim);
  return v->shape.ndim == ndim ? to_wanted_layout(p, v, v->memory, target_desc) : viewed(p, v, target_desc);
}

/* Kinds of steps ----------------------------------------------------------------------------------
**
** Each gives the shape of its result, and a step that makes it; sizes that do not fit are refused by
** oneDNN when the primitive is described. */

static const dnnl_desc *asked(const dnnl_primitive_desc *desc, int what) {
  return desc == NULL ? NULL : dnnl.dnnl_primitive_desc_query_md(desc, what, 0);
}

/* Whether all that a step takes is constant, and so is what it gives. */
static bool are_constant(value *const *args, int64_t n) {
  bool all = true;
  for (int64_t i = 0; i < n; i++) all = all && args[i]->is_constant;
  return all;
}

/* Ends a product or convolution: weights under 'weights', with a bias where there is one. */
static void finish(onednn_plan *p, dnnl_primitive_desc *desc, value *const *args, int64_t n,
                   dnnl_memory *weights, int32_t bias_ndim, value *out) {
  dnnl_memory *src = to_wanted_layout(p, args[0], args[0]->memory, asked(desc, DNNL_SRC_MD));
  dnnl_memory *own = to_wanted_layout(p, args[1], weights, asked(desc, DNNL_WEIGHTS_MD));
  if (p->why != NULL) return;
  out->memory = memory_of(p, asked(desc, DNNL_DST_MD));
  dnnl_arg result[4] = {{DNNL_ARG_SRC, src}, {DNNL_ARG_WEIGHTS, own}, {DNNL_ARG_DST, out->memory}};
  if (n == 3) result[3] = (dnnl_arg){DNNL_ARG_BIAS, widened(p, args[2], bias_ndim)};
  add_step(p, desc, result, n == 3 ? 4 : 3, out->is_constant);
}

static void product(onednn_plan *p, const onednn_step *s, value *const *args, value *out) {
  const int64_t *x = args[0]->shape.dims, *w = args[1]->shape.dims;
  dnnl_desc *turned = NULL;
  dnnl_primitive_desc *desc = NULL;
  if (args[0]->shape.ndim != 2 || args[1]->shape.ndim != 2 ||
      (s->n_args == 3 && args[2]->shape.ndim != 1)) {
    p->why = "a product of other than two dimensions";
    return;
  }
  out->shape = (onednn_shape){2, {x[0], w[0]}};
  int64_t dims[] = {w[1], w[0]}, strides[] = {1, w[1]};
  keep(p, dnnl.dnnl_memory_desc_create_with_strides(&turned, 2, dims, DNNL_F32, strides), "weights",
       &turned, drop_desc);
  const dnnl_desc *src = plain(p, &args[0]->shape, 2), *dst = plain(p, &out->shape, 2);
  const dnnl_desc *bias = s->n_args == 3 ? plain(p, &args[2]->shape, 2) : NULL;
  const dnnl_desc *weights = args[1]->is_constant ? any(p, 2, dims) : turned;
  dnnl_attr *attr = attr_of(p, s->attrs[0] != 0);
  if (p->why != NULL) return;
  keep(p, dnnl.dnnl_matmul_primitive_desc_create(&desc, dnnl_cpu, src, weights, bias, dst, attr),
       "a product of these sizes", &desc, drop_primitive_desc);
  finish(p, desc, args, s->n_args, viewed(p, args[1], turned), 2, out);
}

/* The size that windows of 'k' elements leave. */
static int64_t windows(int64_t size, int64_t k, int64_t stride, int64_t pads, int64_t dilation) {
  int64_t room = size + pads - (k - 1) * dilation - 1;
  return stride < 1 || room < 0 ? -1 : room / stride + 1;
}

/* Strides, padding (four), dilation of a step: those of oneDNN, whose dilation counts gaps. A
** kernel of k elements with dilation d spans (k - 1) * d + 1. */
static bool window_shape(onednn_shape *out, const int64_t *x, const int64_t *k, const int64_t *strides,
                         const int64_t *pads, const int64_t *dilation, int64_t channels) {
  *out = (onednn_shape){4, {x[0], channels}};
  for (int i = 0; i < 2; i++) {
    out->dims[2 + i] = windows(x[2 + i], k[i], strides[i], pads[i] + pads[2 + i], dilation[i]);
  }
  return out->dims[2] >= 0 && out->dims[3] >= 0;
}

static void convolution(onednn_plan *p, const onednn_step *s, value *const *args, value *out) {
  const int64_t *x = args[0]->shape.dims, *w = args[1]->shape.dims, *a = s->attrs;
  dnnl_primitive_desc *desc = NULL;
  int64_t groups = a[8];
  if (args[0]->shape.ndim != 4 || args[1]->shape.ndim != 4 || groups < 1 || w[0] % groups != 0 ||
      (s->n_args == 3 && args[2]->shape.ndim != 1) ||
      !window_shape(&out->shape, x, w + 2, a, a + 2, a + 6, w[0])) {
    p->why = "a convolution of these sizes";
    return;
  }
  onednn_shape grouped = {5, {groups, w[0] / groups, w[1], w[2], w[3]}};
  const onednn_shape *own = groups > 1 ? &grouped : &args[1]->shape;
  const dnnl_desc *lies = plain(p, own, own->ndim);
  const dnnl_desc *bias = s->n_args == 3 ? plain(p, &args[2]->shape, 1) : NULL;
  const dnnl_desc *weights = args[1]->is_constant ? any(p, own->ndim, own->dims) : lies;
  const dnnl_desc *src = any(p, 4, x), *dst = any(p, 4, out->shape.dims);
  int64_t gaps[] = {a[6] - 1, a[7] - 1};
  dnnl_attr *attr = attr_of(p, a[9] != 0);
  if (p->why != NULL) return;
  keep(p,
       dnnl.dnnl_convolution_forward_primitive_desc_create(&desc, dnnl_cpu, DNNL_INFERENCE,
                                                           DNNL_CONVOLUTION, src, weights, bias, dst,
                                                           a, gaps, a + 2, a + 4, attr),
       "a convolution of these sizes", &desc, drop_primitive_desc);
  finish(p, desc, args, s->n_args, viewed(p, args[1], lies), 1, out);
}

/* Ends a step of one input that takes it as it lies. */
static void finish_one(onednn_plan *p, dnnl_primitive_desc *desc, dnnl_memory *src, value *out) {
  if (p->why != NULL) return;
  out->memory = memory_of(p, asked(desc, DNNL_DST_MD));
  dnnl_arg result[] = {{DNNL_ARG_SRC, src}, {DNNL_ARG_DST, out->memory}};
  add_step(p, desc, result, 2, out->is_constant);
}

static void pooling(onednn_plan *p, const onednn_step *s, value *const *args, value *out) {
  const int64_t *x = args[0]->shape.dims, *a = s->attrs;
  dnnl_primitive_desc *desc = NULL;
  if (args[0]->shape.ndim != 4 || !window_shape(&out->shape, x, a, a + 2, a + 4, a + 8, x[1])) {
    p->why = "a pooling of these sizes";
    return;
  }
  int64_t gaps[] = {a[8] - 1, a[9] - 1};
  const dnnl_desc *dst = any(p, 4, out->shape.dims);
  dnnl_attr *attr = attr_of(p, false);
  if (p->why != NULL) return;
  keep(p,
       dnnl.dnnl_pooling_forward_primitive_desc_create(&desc, dnnl_cpu, DNNL_INFERENCE,
                                                       DNNL_POOLING_MAX, desc_of(args[0]->memory), dst,
                                                       a + 2, a, gaps, a + 4, a + 6, attr),
       "a pooling of these sizes", &desc, drop_primitive_desc);
  finish_one(p, desc, args[0]->memory, out);
}

static void element(onednn_plan *p, const onednn_step *s, value *const *args, value *out) {
  dnnl_primitive_desc *desc = NULL;
  const dnnl_desc *lies = desc_of(args[0]->memory);
  dnnl_attr *attr = attr_of(p, false);
  out->shape = args[0]->shape;
  if (p->why != NULL) return;
  keep(p,
       dnnl.dnnl_eltwise_forward_primitive_desc_create(&desc, dnnl_cpu, DNNL_INFERENCE,
                                                       (int)s->attrs[0], lies, lies, 0.0f, 0.0f, attr),
       "a function of elements", &desc, drop_primitive_desc);
  finish_one(p, desc, args[0]->memory, out);
}

/* The shape that two broadcast to; -1 where they do not. */
static int broadcast(const onednn_shape *a, const onednn_shape *b, onednn_shape *out) {
  out->ndim = a->ndim > b->ndim ? a->ndim : b->ndim;
  for (int32_t i = 0; i < out->ndim; i++) {
    int32_t at_a = i - (out->ndim - a->ndim), at_b = i - (out->ndim - b->ndim);
    int64_t x = at_a < 0 ? 1 : a->dims[at_a], y = at_b < 0 ? 1 : b->dims[at_b];
    if (x != y && x != 1 && y != 1) return -1;
    out->dims[i] = x == 1 ? y : x;
  }
  return 0;
}

static void binary(onednn_plan *p, const onednn_step *s, value *const *args, value *out) {
  dnnl_primitive_desc *desc = NULL;
  if (broadcast(&args[0]->shape, &args[1]->shape, &out->shape) != 0) {
    p->why = "sizes that do not broadcast";
    return;
  }
  int32_t ndim = out->shape.ndim;
  dnnl_memory *x = widened(p, args[0], ndim), *y = widened(p, args[1], ndim);
  const dnnl_desc *dst = plain(p, &out->shape, ndim);
  dnnl_attr *attr = attr_of(p, false);
  if (p->why != NULL) return;
  keep(p, dnnl.dnnl_binary_primitive_desc_create(&desc, dnnl_cpu, (int)s->attrs[0], desc_of(x),
                                                 desc_of(y), dst, attr),
       "an operator of two such tensors", &desc, drop_primitive_desc);
  if (p->why != NULL) return;
  out->memory = memory_of(p, asked(desc, DNNL_DST_MD));
  dnnl_arg result[] = {{DNNL_ARG_SRC, x}, {DNNL_ARG_SRC_1, y}, {DNNL_ARG_DST, out->memory}};
  add_step(p, desc, result, 3, out->is_constant);
}

static void softmax(onednn_plan *p, const onednn_step *s, value *const *args, value *out) {
  dnnl_primitive_desc *desc = NULL;
  dnnl_memory *x = widened(p, args[0], args[0]->shape.ndim);
  dnnl_attr *attr = attr_of(p, false);
  out->shape = args[0]->shape;
  if (p->why != NULL) return;
  keep(p,
       dnnl.dnnl_softmax_forward_primitive_desc_create(&desc, dnnl_cpu, DNNL_INFERENCE, DNNL_SOFTMAX,
                                                       desc_of(x), desc_of(x), (int)s->attrs[0], attr),
       "a softmax", &desc, drop_primitive_desc);
  finish_one(p, desc, x, out);
}

typedef void (*build)(onednn_plan *, const onednn_step *, value *const *, value *);
static const build builds[ONEDNN_KINDS] = {product, convolution, pooling, element, binary, softmax};

/* Plans ------------------------------------------------------------------------------------------ */

static void read_shape(const ek_dltensor *tensor, onednn_shape *out) {
  out->ndim = tensor->ndim;
  for (int32_t i = 0; i < tensor->ndim; i++) out->dims[i] = tensor->shape[i];
}

static bool is_shape(const ek_dltensor *tensor, const onednn_shape *shape) {
  if (tensor->ndim != shape->ndim) return false;
  return memcmp(tensor->shape, shape->dims, (size_t)shape->ndim * sizeof(int64_t)) == 0;
}

static void bind(onednn_plan *p, const ek_dltensor *const *inputs) {
  const onednn_program *program = p->program;
  value *v = p->values;
  for (int64_t i = 0; i < program->n_inputs; i++, v++) {
    read_shape(inputs[i], &v->shape);
    v->memory = memory_at(p, plain(p, &v->shape, v->shape.ndim), ek_dltensor_data(inputs[i]));
  }
  for (int64_t i = 0; i < program->n_constants; i++, v++) {
    *v = (value){program->constants[i].shape, NULL, true};
    v->memory = memory_at(p, plain(p, &v->shape, v->shape.ndim), program->constants[i].data);
  }
}

static void add_steps(onednn_plan *p) {
  const onednn_program *program = p->program;
  value *out = p->values + program->n_inputs + program->n_constants;
  for (int64_t i = 0; i < program->n_steps && p->why == NULL; i++, out++) {
    const onednn_step *s = &program->steps[i];
    value *args[ONEDNN_MAX_ARGS] = {NULL};
    for (int64_t k = 0; k < s->n_args; k++) args[k] = &p->values[s->args[k]];
    out->is_constant = are_constant(args, s->n_args);
    builds[s->kind](p, s, args, out);
  }
}

/* Results go row-major to tensors that each run gives. */
static void add_results(onednn_plan *p) {
  for (int64_t i = 0; i < p->program->n_results && p->why == NULL; i++) {
    const value *v = &p->values[p->program->results[i]];
    p->results[i] = memory_at(p, plain(p, &v->shape, v->shape.ndim), NULL);
    reorder(p, v->memory, p->results[i], false);
  }
}

onednn_plan *onednn_plan_new(const onednn_program *program, const ek_dltensor *const *inputs,
                             const char **why) {
  onednn_plan *p = calloc(1, sizeof *p);
  int64_t n_values = program->n_inputs + program->n_constants + program->n_steps;
  *why = "no memory";
  if (p == NULL) return NULL;
  p->program = program;
  p->values = calloc((size_t)n_values + 1, sizeof *p->values);
  p->results = calloc((size_t)program->n_results + 1, sizeof(dnnl_memory *));
  bool is_whole = p->values != NULL && p->results != NULL &&
                  dnnl.dnnl_stream_create(&p->stream, dnnl_cpu, DNNL_IN_ORDER) == 0;
  if (is_whole) {
    bind(p, inputs);
    add_steps(p);
    add_results(p);
    dnnl.dnnl_stream_wait(p->stream);
    *why = p->why;
  }
  if (*why == NULL) return p;
  onednn_plan_free(p);
  return NULL;
}

int onednn_plan_fits(const onednn_plan *p, const ek_dltensor *const *inputs) {
  for (int64_t i = 0; i < p->program->n_inputs; i++) {
    if (!is_shape(inputs[i], &p->values[i].shape)) return 0;
  }
  return 1;
}

const char *onednn_plan_run(onednn_plan *p, const ek_dltensor *const *tensors) {
  int64_t n_inputs = p->program->n_inputs;
  p->why = NULL;
  for (int64_t i = 0; i < n_inputs; i++) {
    dnnl.dnnl_memory_set_data_handle(p->values[i].memory, ek_dltensor_data(tensors[i]));
  }
  for (int64_t i = 0; i < p->program->n_results; i++) {
    const ek_dltensor *out = tensors[n_inputs + i];
    if (!is_shape(out, &p->values[p->program->results[i]].shape)) return "a result of another shape";
    dnnl.dnnl_memory_set_data_handle(p->results[i], ek_dltensor_data(out));
  }
  for (int64_t i = 0; i < p->n_steps && p->why == NULL; i++) execute(p, &p->steps[i]);
  if (dnnl.dnnl_stream_wait(p->stream) != 0 && p->why == NULL) p->why = "a primitive failed";
  return p->why;
}

void onednn_plan_free(onednn_plan *p) {
  while (p->things != NULL) {
    owned *last = p->things;
    p->things = last->next;
    last->drop(last->thing);
    free(last);
  }
  if (p->stream != NULL) dnnl.dnnl_stream_destroy(p->stream);
  free(p->values);
  free(p->results);
  free(p->steps);
  free(p);
}
