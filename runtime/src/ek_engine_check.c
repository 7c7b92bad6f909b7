/* Whether an engine of someone else writes all of its outputs: what it leaves unwritten is memory of
** other programs, which looks like a result.
**
** Outputs begin with a pattern of bytes, and what still has it was not written. A result may be a
** pattern, so that a run over the next one decides. The first call at each set of shapes looks at
** every element, since what an engine writes depends on them; later calls look at a few. */
#include "ek_internal.h"
#include "ek_signature.h"

#include <stdio.h>

#ifndef EK_SMALL

enum { PATTERNS = 4, SAMPLES = 16, MAX_SHAPES = 4096, ROOM = 256 };

/* Engines whose results change from run to run need more than two. */
static const unsigned char patterns[PATTERNS] = {0xA5, 0x5A, 0x3C, 0xC3};

typedef struct checked {
  ek_object *function;
  ek_mutex lock;
  uint64_t *shapes;            /* hashes of the sets of shapes that were looked at in full */
  int32_t n_shapes;
  int32_t n_outputs;
  const char *engine;
  char symbol[];               /* and the engine's name behind it */
} checked;

static void drop(void *self) {
  checked *c = self;
  ek_release(c->function);
  ek_free(c->shapes);
  ek_free(c);
}

/* FNV-1a over the shapes, of which a hash in common costs no more than a check of samples. */
static uint64_t shapes_hash(const ek_value *args, int32_t nargs) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (int32_t i = 0; i < nargs; i++) {
    const ek_dltensor *t = ek_value_tensor(&args[i]);
    int32_t rank = t == NULL ? 0 : t->ndim;
    for (int32_t k = 0; k <= rank; k++) {
      hash = (hash ^ (uint64_t)(k == rank ? -1 : t->shape[k])) * 0x100000001b3u;
    }
  }
  return hash;
}

static bool is_known(checked *c, uint64_t hash) {
  bool is_found = false;
  ek_mutex_lock(&c->lock);
  for (int32_t i = 0; i < c->n_shapes && !is_found; i++) is_found = c->shapes[i] == hash;
  ek_mutex_unlock(&c->lock);
  return is_found;
}

/* Beyond MAX_SHAPES, or without memory, the shapes are looked at in full again. */
static void note(checked *c, uint64_t hash) {
  ek_mutex_lock(&c->lock);
  if (c->shapes == NULL) c->shapes = ek_alloc(MAX_SHAPES * sizeof *c->shapes);
  if (c->shapes != NULL && c->n_shapes < MAX_SHAPES) c->shapes[c->n_shapes++] = hash;
  ek_mutex_unlock(&c->lock);
}

/* The elements of an output that a call looks at: every 'step'-th of 'count', of 'width' bytes. */
typedef struct look {
  unsigned char *data;
  size_t width, step, count;
} look;

static look look_at(const ek_value *output, bool is_sampled) {
  const ek_dltensor *t = ek_value_tensor(output);
  look l = {NULL, 1, 1, 0};
  if (t == NULL || !ek_device_is_host(t->device) || !ek_dltensor_is_contiguous(t)) return l;
  size_t width = (size_t)t->dtype.bits * t->dtype.lanes / 8, size = ek_dltensor_nbytes(t);
  l.width = width == 0 ? 1 : width;
  l.count = size / l.width;
  l.data = ek_dltensor_data(t);
  if (is_sampled && l.count > SAMPLES) l.step = l.count / SAMPLES;
  l.count = (l.count + l.step - 1) / l.step;
  return l;
}

/* Writes a pattern, or clears the marks of what no longer has it; how many still do. */
static size_t visit(const look *l, unsigned char pattern, bool is_before, unsigned char *left) {
  size_t n = 0;
  for (size_t i = 0; i < l->count; i++) {
    unsigned char *element = l->data + i * l->step * l->width;
    if (is_before) memset(element, pattern, l->width);
    for (size_t k = 0; k < l->width && left[i]; k++) left[i] = element[k] == pattern;
    n += left[i];
  }
  return n;
}

static int refuse(const checked *c, const ek_value *output, int32_t number, const look *l,
                  const unsigned char *left, size_t n) {
  char tensor[EK_VALUE_TEXT], first[EK_VALUE_TEXT] = "";
  const ek_dltensor *t = ek_value_tensor(output);
  ek_value_describe(output, tensor);
  size_t at = 0, size = 0;
  if (n == l->count || l->step > 1) {
    return ek_error("RunError", "run '%s': engine '%s': it wrote %s its output %d, a tensor %s",
                    c->symbol, c->engine, n == l->count ? "nothing to" : "only a part of",
                    number, tensor);
  }
  while (!left[at]) at++;
  for (int32_t k = 0; k < t->ndim && size < sizeof first - 24; k++) {
    int64_t inner = 1;
    for (int32_t i = k + 1; i < t->ndim; i++) inner *= t->shape[i];
    int64_t index = (int64_t)at / inner % t->shape[k];
    size += (size_t)snprintf(first + size, sizeof first - size, "%s%lld", k == 0 ? "" : ", ",
                             (long long)index);
  }
  return ek_error("RunError", "run '%s': engine '%s': it left %zu elements of its output %d, a "
                  "tensor %s, unwritten, the first at (%s)", c->symbol, c->engine, n, number, tensor,
                  first);
}

/* Runs over patterns until all is written; 'left' has a mark for each element. */
static int run_over(const checked *c, const ek_value *args, int32_t nargs, bool is_sampled,
                    unsigned char *left, size_t marks) {
  const ek_value *outputs = args + nargs - c->n_outputs;
  memset(left, 1, marks);
  for (int32_t pattern = 0; pattern < PATTERNS; pattern++) {
    size_t n = 0, at = 0;
    for (int32_t is_before = 1; is_before >= 0; is_before--) {
      ek_value none = ek_value_none();
      if (!is_before && ek_function_call(c->function, args, nargs, &none) != 0) return -1;
      ek_value_release(&none);
      n = at = 0;
      for (int32_t i = 0; i < c->n_outputs; i++) {
        look l = look_at(&outputs[i], is_sampled);
        size_t unwritten = visit(&l, patterns[pattern], is_before, left + at);
        n += unwritten;
        if (!is_before && pattern == PATTERNS - 1 && unwritten != 0) {
          return refuse(c, &outputs[i], i, &l, left + at, unwritten);
        }
        at += l.count;
      }
    }
    if (n == 0) return 0;
  }
  return 0;
}

static int run(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  checked *c = self;
  unsigned char room[ROOM], *left = room;
  size_t marks = 0;
  (void)ret;
  if (nargs < c->n_outputs) {
    return ek_error("RunError", "run '%s': %d outputs and inputs expected, got %d", c->symbol,
                    c->n_outputs, nargs);
  }
  uint64_t hash = shapes_hash(args, nargs);
  bool is_sampled = is_known(c, hash);
  for (int32_t i = nargs - c->n_outputs; i < nargs; i++) marks += look_at(&args[i], is_sampled).count;
  if (marks > ROOM && (left = ek_alloc_or_error(marks)) == NULL) return -1;
  int status = run_over(c, args, nargs, is_sampled, left, marks);
  if (status == 0 && !is_sampled) note(c, hash);
  if (left != room) ek_free(left);
  return status;
}

int ek_engine_check(ek_bytes engine, const char *symbol, int32_t n_outputs, ek_object **function) {
  size_t size = strlen(symbol) + 1, all = size + engine.size + 1;
  checked *c = ek_alloc_or_error(sizeof *c + all);
  if (c == NULL) return -1;
  *c = (checked){.function = *function, .lock = EK_MUTEX_INIT, .n_outputs = n_outputs,
                 .engine = c->symbol + size};
  memcpy(c->symbol, symbol, size);
  memcpy(c->symbol + size, engine.data, engine.size);
  c->symbol[all - 1] = '\0';
  int status = ek_function_new(c, run, drop, function);
  if (status != 0) {
    ek_free(c->shapes);
    ek_free(c);
  }
  return status;
}

#endif
