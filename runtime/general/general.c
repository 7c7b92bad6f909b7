/* General kernels: functions that interpret a program (general.h), with loops that were compiled for
** the class of the processor. A library of its own: runs of compiled models do not need it.
**
**   kernel(program: bytes) -> a function over tensors, as compiled kernels are
*/
#include "general.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reading --------------------------------------------------------------------------------------
**
** A program is trusted: it comes from the compiler in the same process (ekiden.backend.kernels),
** never from a file, so its words are taken as they are and numbers in it index without a check.
** What comes from callers, tensors, is checked (expect_argument). */

static const int64_t *read_code(const int64_t *at, code *to, int64_t n_axes, int64_t n_results) {
  to->n_loads = *at++;
  to->loads = at;
  at += to->n_loads * (n_axes + 3);
  to->n_registers = *at++;
  to->n_instructions = *at++;
  to->instructions = at;
  at += to->n_instructions * 6;
  to->results = at;
  return at + n_results;
}

static const int64_t *read_text(const int64_t *at, const char **to) {
  *to = (const char *)(at + 1);
  return at + 1 + *at;
}

static const int64_t *read_stage(const int64_t *at, stage *to) {
  to->kind = *at++;
  if (to->kind == REPEAT) {
    to->turns = *at++;
    to->symbol = *at++;
    to->n_repeated = *at++;
    return at;
  }
  to->n_axes = *at++;
  to->n_reduced = *at++;
  int64_t n = to->n_axes + to->n_reduced;
  to->extents = at;
  at += n;
  to->reducer = *at++;
  to->n_results = *at++;
  to->results = at;
  if (to->kind != CHECK) at += to->n_results * (to->n_axes + 2);
  at = read_code(at, &to->codes[0], n, to->n_results);
  if (to->kind == CHECK) return read_text(read_text(at, &to->error), &to->format);
  if (to->kind != PRODUCT) return at;
  at = read_code(at, &to->codes[1], n, 1);
  to->roles = at;
  at += to->n_axes;
  to->column_axis = *at++;
  to->tile = *at++;
  to->buffer = *at++;
  to->panel_step = *at++;
  to->word = *at++;
  to->steps = at;
  return at + to->n_reduced + 1 + to->n_axes;
}

static void drop(void *self) {
  program *p = self;
  if (p == NULL) return;
  free(p->words);
  free((void *)p->params);
  free((void *)p->buffers);
  free(p->stages);
  free(p);
}

static program *read_program(const char *bytes, size_t size) {
  program *p = calloc(1, sizeof *p);
  if (p == NULL || (p->words = malloc(size + 1)) == NULL) {
    free(p);
    return NULL;
  }
  memcpy(p->words, bytes, size);
  const int64_t *at = p->words + 2;
  p->n_params = *at++;
  p->params = calloc((size_t)p->n_params + 1, sizeof *p->params);
  for (int64_t i = 0; i < p->n_params && p->params != NULL; i++) {
    p->params[i] = at;
    at += 2 + at[1];
  }
  p->n_symbols = *at++;
  p->symbols = at;
  at += 2 * p->n_symbols;
  p->n_sizes = *at++;
  p->sizes = at;
  at += 4 * p->n_sizes;
  p->n_buffers = *at++;
  p->buffers = calloc((size_t)p->n_buffers + 1, sizeof *p->buffers);
  for (int64_t i = 0; i < p->n_buffers && p->buffers != NULL; i++) {
    p->buffers[i] = at;
    at += 3 + (at[2] > 0 ? at[2] : 0);
  }
  p->n_stages = *at++;
  p->stages = calloc((size_t)p->n_stages + 1, sizeof *p->stages);
  for (int64_t i = 0; i < p->n_stages && p->stages != NULL; i++) at = read_stage(at, &p->stages[i]);
  if (p->params != NULL && p->buffers != NULL && p->stages != NULL) return p;
  drop(p);
  return NULL;
}

/* Sizes ---------------------------------------------------------------------------------------- */

/* A size may be computed that is not used, as of a dimension that another value rules out: a
** division by 0 gives 0 and the least number by -1 itself, where C has no value. */
static int64_t floor_div(int64_t a, int64_t b) {
  if (b == 0) return 0;
  if (b == -1) return (int64_t)(0 - (uint64_t)a);
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

static int64_t size_of(const int64_t *row, const int64_t *known, const int64_t *symbols) {
  int64_t a = row[0] <= S_SYMBOL ? 0 : known[row[1]];
  int64_t b = row[0] <= S_SYMBOL || row[0] == S_NOT ? 0 : known[row[2]];
  switch (row[0]) {
    case S_CONST: return row[1];
    case S_SYMBOL: return symbols[row[1]];
    case S_ADD: return a + b;
    case S_SUB: return a - b;
    case S_MUL: return a * b;
    case S_DIV: return b == 0 ? 0 : a / b;
    case S_FLOORDIV: return floor_div(a, b);
    case S_FLOORMOD: return a - floor_div(a, b) * b;
    case S_MIN: return a < b ? a : b;
    case S_MAX: return a > b ? a : b;
    case S_EQ: return a == b;
    case S_NE: return a != b;
    case S_LT: return a < b;
    case S_LE: return a <= b;
    case S_GT: return a > b;
    case S_GE: return a >= b;
    case S_AND: return a && b;
    case S_OR: return a || b;
    case S_NOT: return !a;
    default: return a ? b : known[row[3]];
  }
}

/* Arguments ------------------------------------------------------------------------------------ */

static const struct { uint8_t code, bits; } element_types[] = {
    [E_F32] = {EK_DTYPE_FLOAT, 32}, [E_F64] = {EK_DTYPE_FLOAT, 64}, [E_BOOL] = {EK_DTYPE_BOOL, 8},
    [E_I8] = {EK_DTYPE_INT, 8},     [E_I16] = {EK_DTYPE_INT, 16},   [E_I32] = {EK_DTYPE_INT, 32},
    [E_I64] = {EK_DTYPE_INT, 64},   [E_U8] = {EK_DTYPE_UINT, 8},    [E_U16] = {EK_DTYPE_UINT, 16},
    [E_U32] = {EK_DTYPE_UINT, 32},  [E_F16] = {EK_DTYPE_FLOAT, 16}, [E_BF16] = {EK_DTYPE_BFLOAT, 16}};

static bool is_compact(const ek_dltensor *t) {
  int64_t expected = 1;
  bool fits = true, empty = false;
  for (int32_t i = t->ndim - 1; i >= 0 && t->strides != NULL; i--) {
    fits = fits && (t->strides[i] == expected || t->shape[i] == 1);
    empty = empty || t->shape[i] == 0;
    expected *= t->shape[i];
  }
  return fits || empty;
}

static int refuse(const char *kind, int64_t number, const char *what) {
  char text[96];
  snprintf(text, sizeof text, "general kernel: argument %lld %s", (long long)number, what);
  return ek_kernel_error(kind, text);
}

static const ek_dltensor *tensor_of(const ek_value *value) {
  return ek_value_tensor(value);
}

static int expect_argument(const program *p, int64_t i, const ek_value *value) {
  const ek_dltensor *t = tensor_of(value);
  int64_t type = p->params[i][0];
  if (t == NULL) return refuse("TypeError", i, "must be a tensor");
  if (t->ndim != p->params[i][1]) return refuse("ValueError", i, "has another rank");
  if (t->dtype.code != element_types[type].code || t->dtype.bits != element_types[type].bits ||
      t->dtype.lanes != 1) {
    return refuse("TypeError", i, "has another dtype");
  }
  return is_compact(t) ? 0 : refuse("ValueError", i, "must be without gaps");
}

static int64_t buffer_bytes(const program *p, const run *r, int64_t i) {
  return r->elements[i] * (element_types[p->buffers[i][0]].bits / 8);
}

/* Working memory is a stack: the blocks of a run, freed in reverse. Of buffers that share memory the
** first has it, as many bytes as the largest of them takes. */
static int take_memory(const program *p, run *r) {
  for (int64_t i = p->n_params; i < p->n_buffers; i++) {
    const int64_t *buffer = p->buffers[i];
    int64_t bytes = buffer_bytes(p, r, i);
    if (buffer[2] > 0) {
      r->data[i] = (void *)(uintptr_t)(buffer + 3);
    } else if (buffer[2] < 0) {
      r->data[i] = r->data[-1 - buffer[2]];
    } else {
      for (int64_t k = i + 1; k < p->n_buffers; k++) {
        int64_t other = p->buffers[k][2] == -1 - i ? buffer_bytes(p, r, k) : 0;
        if (other > bytes) bytes = other;
      }
      r->data[i] = ek_workspace_alloc(bytes + 64);
    }
    if (r->data[i] == NULL) return -1;
  }
  return 0;
}

static void free_memory(const program *p, run *r) {
  for (int64_t i = p->n_buffers - 1; i >= p->n_params; i--) {
    if (p->buffers[i][2] == 0 && r->data[i] != NULL) ek_workspace_free(r->data[i]);
  }
}

/* Whether the processor has all of these abilities, by their names in docs/artifact-format.md. */
static bool has_all(const char *const *names) {
  ek_object *function = ek_registry_get("ek.runtime.cpu_has");
  bool is_found = function != NULL;
  for (; is_found && *names != NULL; names++) {
    ek_value name = {EK_RAW_STR, 0, {0}}, answer = ek_value_none();
    name.v.ptr = (void *)(uintptr_t)*names;
    is_found = ek_function_call(function, &name, 1, &answer) == 0 && answer.v.i64 == 1;
  }
  if (function != NULL) ek_release(function);
  return is_found;
}

typedef int (*stage_runner)(const run *, const stage *);

/* The loops of the best class that the processor is of. */
static stage_runner best_runner(void) {
#if defined(__x86_64__)
  static const char *const v3[] = {"avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe", NULL};
  static const char *const v4[] = {"avx512f",  "avx512bw", "avx512cd",
                                   "avx512dq", "avx512vl", NULL};
  if (has_all(v3)) return has_all(v4) ? ek_general_v4 : ek_general_v3;
#endif
  return ek_general_v2;
}

/* Threads may find it out twice, with one result. */
static stage_runner runner(void) {
  static stage_runner known;
  stage_runner found = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (found == NULL) {
    found = best_runner();
    __atomic_store_n(&known, found, __ATOMIC_RELAXED);
  }
  return found;
}

static void compute_sizes(const program *p, run *r) {
  for (int64_t i = 0; i < p->n_sizes; i++) {
    r->sizes[i] = size_of(p->sizes + 4 * i, r->sizes, r->symbols);
  }
}

/* Bind the arguments of a run. The order matters, as each step needs the one before: check ranks
** and types, bind symbols from shapes, compute sizes from symbols, check shapes against sizes,
** allocate working memory by sizes. */
static int bind_arguments(const program *p, run *r, const ek_value *args) {
  for (int64_t i = 0; i < p->n_params; i++) {
    if (expect_argument(p, i, &args[i]) != 0) return -1;
    const ek_dltensor *t = tensor_of(&args[i]);
    r->data[i] = (char *)t->data + t->byte_offset;
    r->elements[i] = 1;
    for (int32_t k = 0; k < t->ndim; k++) r->elements[i] *= t->shape[k];
  }
  for (int64_t i = 0; i < p->n_symbols; i++) {
    int64_t from = p->symbols[2 * i];
    r->symbols[i] = from < 0 ? 0 : tensor_of(&args[from])->shape[p->symbols[2 * i + 1]];
  }
  compute_sizes(p, r);
  for (int64_t i = 0; i < p->n_params; i++) {
    const ek_dltensor *t = tensor_of(&args[i]);
    for (int32_t k = 0; k < t->ndim; k++) {
      if (t->shape[k] != r->sizes[p->params[i][2 + k]]) {
        return refuse("ValueError", i, "has another shape");
      }
    }
  }
  for (int64_t i = 0; i < p->n_buffers; i++) {
    r->types[i] = (int32_t)p->buffers[i][0];
    if (i >= p->n_params) r->elements[i] = r->sizes[p->buffers[i][1]];
  }
  return 0;
}

/* Runs stages in order. Recursive: repeats nest as the compiler writes them. */
static int run_some(const program *p, run *r, stage_runner run_stage, int64_t i, int64_t end) {
  int status = 0;
  for (; i < end && status == 0; i++) {
    const stage *s = &p->stages[i];
    if (s->kind != REPEAT) {
      status = run_stage(r, s);
      continue;
    }
    int64_t turns = r->sizes[s->turns];
    for (int64_t turn = 0; turn < turns && status == 0; turn++) {
      r->symbols[s->symbol] = turn;
      compute_sizes(p, r);
      status = run_some(p, r, run_stage, i + 1, i + 1 + s->n_repeated);
    }
    i += s->n_repeated;
  }
  return status;
}

static int run_stages(const program *p, run *r) {
  int status = take_memory(p, r);
  if (status == 0) status = run_some(p, r, runner(), 0, p->n_stages);
  free_memory(p, r);
  return status;
}

static int call(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  const program *p = self;
  size_t n = (size_t)p->n_buffers + 1;
  (void)ret;
  if (nargs != p->n_params) return refuse("TypeError", nargs, "more or less expected");
  size_t bytes = n * (sizeof(void *) + sizeof(int64_t) + sizeof(int64_t)) +
                 ((size_t)p->n_sizes + 1) * sizeof(int64_t);
  char *memory = ek_workspace_alloc((int64_t)bytes);
  if (memory == NULL) return -1;
  memset(memory, 0, bytes);
  run r = {.of = p};
  r.data = (void **)(void *)memory;
  r.elements = (int64_t *)(void *)(r.data + n);
  r.sizes = r.elements + n;
  r.types = (int32_t *)(void *)(r.sizes + p->n_sizes + 1);
  int status = bind_arguments(p, &r, args);
  if (status == 0) status = run_stages(p, &r);
  ek_workspace_free(memory);
  return status;
}

/* (program: bytes) -> function */
__attribute__((visibility("default"))) int __tvm_ffi_kernel(void *self, const ek_value *args,
                                                            int32_t nargs, ek_value *ret) {
  ek_bytes bytes;
  ek_object *object = NULL;
  (void)self;
  if (nargs != 1 || !ek_string_borrow(&args[0], &bytes) || bytes.size < 16) {
    return ek_kernel_error("TypeError", "general kernel: the bytes of a program expected");
  }
  int64_t head[2];
  memcpy(head, bytes.data, sizeof head);
  if (head[0] != MAGIC || head[1] != VERSION) {
    return ek_kernel_error("ValueError", "general kernel: a program of another version");
  }
  program *p = read_program(bytes.data, bytes.size);
  if (p == NULL) return ek_kernel_error("MemoryError", "general kernel: no memory");
  if (ek_function_new(p, call, drop, &object) != 0) {
    drop(p);
    return -1;
  }
  *ret = ek_value_object(object);
  return 0;
}
