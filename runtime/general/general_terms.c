/* Sums whose terms have the same offsets for every result: windows of depthwise convolution and
** pooling. Compiled once for each class of processors.
**
** Several adjacent results are accumulated in registers over all terms.
*/
#include "general_class.h"

#include <math.h>

enum { MOST_TERMS = 1 << 16 }; /* whose places are kept: beyond these a sum is long in any case */

typedef float floats __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t masks __attribute__((vector_size(4 * LANES), aligned(4)));

void term_offsets(const int64_t *extents, const int64_t *steps, int32_t n_axes, int64_t n,
                  int64_t *found) {
  int64_t at[MAX_AXES] = {0}, offset = 0;
  for (int64_t k = 0; k < n; k++) {
    found[k] = offset;
    for (int32_t a = n_axes - 1; a >= 0; a--) {
      offset += steps[a];
      if (++at[a] < extents[a]) break;
      offset -= at[a] * steps[a];
      at[a] = 0;
    }
  }
}

/* Whether the code gives one element, or the product of two, of float32 that lie side by side along
** the lane axis, or are one for all of it. */
static bool is_of_elements(const loops *p, int64_t reducer, int64_t *n_loads) {
  const int64_t *row = p->c->instructions;
  *n_loads = p->c->n_instructions == 3 ? 2 : 1;
  if (p->lane < 0 || p->lane >= p->n_spatial || p->c->n_instructions > 3) return false;
  if (p->c->n_instructions != 2 * *n_loads - 1) return false;
  for (int64_t i = 0; i < *n_loads; i++, row += 6) {
    if (row[0] != O_LOAD || row[4] >= 0) return false;
    const load *from = &p->loads[row[3]];
    int64_t by = from->steps[p->lane];
    if (from->type != E_F32 || by < 0 || by > 1 || (by == 0 && *n_loads == 1)) return false;
  }
  bool is_product = *n_loads == 2 && row[0] == O_MUL && row[1] == K_F32 && row[-4] != row[-10];
  return *n_loads == 1 ? reducer != R_PROD : is_product && reducer == R_SUM;
}

bool find_terms(const loops *p, int64_t reducer, terms *t) {
  int32_t n = p->n_axes - p->n_spatial;
  if (!is_of_elements(p, reducer, &t->n_loads)) return false;
  t->n = 1;
  for (int32_t a = 0; a < n; a++) t->n *= p->extents[p->n_spatial + a];
  bool fits = t->n > 0 && t->n <= MOST_TERMS;
  t->at[0] = fits ? ek_workspace_alloc(t->n * t->n_loads * 8) : NULL;
  if (t->at[0] == NULL) return false;
  t->at[1] = t->at[0] + t->n;
  for (int64_t i = 0; i < t->n_loads; i++) {
    const load *from = &p->loads[p->c->instructions[6 * i + 3]];
    term_offsets(p->extents + p->n_spatial, from->steps + p->n_spatial, n, t->n, t->at[i]);
    t->least[i] = t->most[i] = 0;
    for (int64_t k = 0; k < t->n; k++) {
      if (t->at[i][k] < t->least[i]) t->least[i] = t->at[i][k];
      if (t->at[i][k] > t->most[i]) t->most[i] = t->at[i][k];
    }
  }
  return true;
}

/* W vectors of results; the pragmas keep them in registers. Of two of which one is no number, that
** one is the greater and the less. */
#define MORE(x, y) chosen(((x) > (y)) | ((x) != (x)), x, y)
#define LESS(x, y) chosen(((x) < (y)) | ((x) != (x)), x, y)

static inline floats chosen(masks where, floats x, floats y) {
  return (floats)(((masks)x & where) | ((masks)y & ~where));
}

#define SOME(name, W, first, value, combined)                                               \
  static void name(const terms *t, const float *a, const float *b, float *to) {             \
    floats sum[W];                                                                          \
    (void)b;                                                                                \
    _Pragma("GCC unroll 4") for (int j = 0; j < W; j++) sum[j] = (floats){0} + (first);     \
    for (int64_t k = 0; k < t->n; k++) {                                                    \
      const float *x = a + t->at[0][k];                                                     \
      _Pragma("GCC unroll 4") for (int j = 0; j < W; j++) {                                 \
        floats each = value;                                                                \
        sum[j] = combined(sum[j], each);                                                    \
      }                                                                                     \
    }                                                                                       \
    _Pragma("GCC unroll 4") for (int j = 0; j < W; j++) ((floats *)(void *)to)[j] = sum[j]; \
  }
#define ADDED(x, y) ((x) + (y))
#define VECTOR_AT(from) (((const floats *)(const void *)(from))[j])
#define KINDS(W)                                                                            \
  SOME(sums_##W, W, 0.0f, VECTOR_AT(x), ADDED)                                              \
  SOME(highest_##W, W, -INFINITY, VECTOR_AT(x), MORE)                                       \
  SOME(lowest_##W, W, INFINITY, VECTOR_AT(x), LESS)                                         \
  SOME(products_##W, W, 0.0f, VECTOR_AT(x) * VECTOR_AT(b + t->at[1][k]), ADDED)             \
  SOME(scaled_##W, W, 0.0f, VECTOR_AT(x) * b[t->at[1][k]], ADDED)
KINDS(1)
KINDS(4)

typedef void some(const terms *, const float *, const float *, float *);

enum { SUMS, HIGHEST, LOWEST, PRODUCTS, SCALED };
static some *const kinds[2][5] = {{sums_1, highest_1, lowest_1, products_1, scaled_1},
                                  {sums_4, highest_4, lowest_4, products_4, scaled_4}};

/* Compute results one by one, for a remainder shorter than a vector. */
static void single(const terms *t, int kind, const float *a, const float *b, int64_t by, float *to) {
  float x = kind == HIGHEST ? -INFINITY : kind == LOWEST ? INFINITY : 0;
  for (int64_t k = 0; k < t->n; k++) {
    float y = a[t->at[0][k]];
    if (kind == PRODUCTS || kind == SCALED) x += y * b[t->at[1][k] + by];
    else if (kind == SUMS) x += y;
    else if (kind == HIGHEST) x = x > y || x != x ? x : y;
    else x = x < y || x != x ? x : y;
  }
  *to = x;
}

/* n results side by side; the last vector may compute some again. */
static void row_of(const terms *t, int kind, const float *a, const float *b, int64_t n, float *to) {
  int64_t l = 0, by = kind == PRODUCTS;
  for (; l + 4 * LANES <= n; l += 4 * LANES) kinds[1][kind](t, a + l, b + by * l, to + l);
  for (; l < n && n >= LANES; l += LANES) {
    if (l + LANES > n) l = n - LANES;
    kinds[0][kind](t, a + l, b + by * l, to + l);
  }
  for (; l < n; l++) single(t, kind, a + l, b, by * l, to + l);
}

bool sum_terms(const loops *p, const terms *t, int64_t reducer, const int64_t *at, int64_t n,
               strip *sum) {
  const float *from[2] = {NULL, NULL};
  int64_t by[2] = {1, 0}, next[2] = {0, 0}, width = p->outer < 0 ? n : p->extents[p->lane];
  for (int64_t i = 0; i < t->n_loads; i++) {
    const load *l = &p->loads[p->c->instructions[6 * i + 3]];
    int64_t first = l->offset;
    by[i] = l->steps[p->lane];
    next[i] = p->outer < 0 ? 0 : l->steps[p->outer];
    for (int32_t a = 0; a < p->n_spatial; a++) first += l->steps[a] * at[a];
    int64_t last = first + next[i] * (n / width - 1);
    int64_t low = first < last ? first : last, high = first < last ? last : first;
    if (low + t->least[i] < 0) return false;
    if (high + t->most[i] + by[i] * (width - 1) >= l->elements) return false;
    from[i] = (const float *)p->r->data[l->buffer] + first;
  }
  int x = t->n_loads == 2 && by[0] == 0; /* products commute: the first is the one with a step */
  if (x && by[1] == 0) return false;
  terms turned = *t;
  turned.at[0] = t->at[x];
  turned.at[1] = t->at[!x];
  int kind = reducer == R_MAX ? HIGHEST : reducer == R_MIN ? LOWEST : SUMS;
  if (t->n_loads == 2) kind = by[!x] == 1 ? PRODUCTS : SCALED;
  for (int64_t begin = 0; begin < n; begin += width) {
    row_of(&turned, kind, from[x], from[!x], width, sum->f + begin);
    from[0] = from[0] == NULL ? NULL : from[0] + next[0];
    from[1] = from[1] == NULL ? NULL : from[1] + next[1];
  }
  return true;
}
