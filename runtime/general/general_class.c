/* The loops of general kernels. This file is compiled once for each class of processors, whose name
** CLASS is: ek_general_v2, ek_general_v3, ek_general_v4.
**
** A stage is run in strips: so many consecutive elements along one axis, its lane axis, on which
** every instruction of the code works in turn. Neighbouring axes that are one as far as the code can
** see are made one first. What is summed is summed in the order of the reduced axes, but for strips
** along one of them, which are summed up in halves.
*/
#include "general.h"

#include <math.h>
#include <string.h>

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

#ifdef __AVX512F__
enum { ROW_TILE = 12, WIDE = 2 };
#else
enum { ROW_TILE = 6, WIDE = 1 };
#endif
enum { STRIP = 256, VECTOR = 16, BLOCK_TILES = 4, FEW_TASKS = 16 };

typedef union strip {
  float f[STRIP];
  double d[STRIP];
  int64_t i[STRIP];
} strip __attribute__((aligned(64)));

typedef struct load {
  int64_t steps[MAX_AXES], offset, buffer, elements;
  int32_t type;
  bool is_guarded;
} load;

/* A code with its numbers, and the axes as they are run. */
typedef struct loops {
  const run *r;
  const code *c;
  int32_t n_axes, n_spatial, lane; /* all axes, those that are not reduced, the lane axis or -1 */
  int64_t extents[MAX_AXES];
  int64_t out_steps[MAX_RESULTS][MAX_AXES];
  load loads[MAX_LOADS];
  bool is_same[MAX_INSTRUCTIONS];          /* whether all lanes of its result are equal */
  bool is_single[MAX_INSTRUCTIONS];        /* whether only the first of them is asked for */
  bool is_near[MAX_INSTRUCTIONS];          /* a load whose further offset is one for all lanes */
  int64_t n_results;
} loops;

/* Strips --------------------------------------------------------------------------------------- */

#define EACH for (int64_t l = 0; l < n; l++)
/* The cases of a switch on an element's type: the member of a strip that it is in, and its type. */
#define OF_EACH_TYPE(DO)       \
  case E_F32: DO(f, float);    \
  case E_F64: DO(d, double);   \
  case E_BOOL:                 \
  case E_U8: DO(i, uint8_t);   \
  case E_I8: DO(i, int8_t);    \
  case E_I16: DO(i, int16_t);  \
  case E_U16: DO(i, uint16_t); \
  case E_I32: DO(i, int32_t);  \
  case E_U32: DO(i, uint32_t); \
  default: DO(i, int64_t);

static void load_strip(const load *from, const void *data, int64_t at, int64_t step, int64_t n,
                       strip *to) {
  int64_t last = from->elements - 1;
#define COPY(member, type)                                                                 \
  {                                                                                        \
    const type *source = data;                                                             \
    if (from->is_guarded && (at < 0 || at > last || at + step * (n - 1) < 0 ||             \
                             at + step * (n - 1) > last)) {                                \
      EACH {                                                                               \
        int64_t k = at + step * l;                                                         \
        to->member[l] = source[k < 0 ? 0 : k > last ? last : k];                           \
      }                                                                                    \
    } else if (step == 1) {                                                                \
      source += at;                                                                        \
      EACH to->member[l] = source[l];                                                      \
    } else if (step == 0) {                                                                \
      type value = source[at];                                                             \
      EACH to->member[l] = value;                                                          \
    } else {                                                                               \
      EACH to->member[l] = source[at + step * l];                                          \
    }                                                                                      \
  }                                                                                        \
  break
  if (from->elements == 0) {
    memset(to, 0, sizeof *to);
    return;
  }
  switch (from->type) {
    OF_EACH_TYPE(COPY)
  }
#undef COPY
}

/* The element 'at' and so many more for each lane. */
static void gather_strip(const load *from, const void *data, int64_t first, int64_t step,
                         const strip *more, int64_t n, strip *to) {
  int64_t last = from->elements - 1;
#define COPY(member, type)                                         \
  EACH {                                                           \
    int64_t k = first + step * l + more->i[l];                                        \
    to->member[l] = ((const type *)data)[k < 0 ? 0 : k > last ? last : k]; \
  }                                                                \
  break
  if (from->elements == 0) {
    memset(to, 0, sizeof *to);
    return;
  }
  switch (from->type) {
    OF_EACH_TYPE(COPY)
  }
#undef COPY
}

static void store_strip(int32_t type, void *data, int64_t at, int64_t step, int64_t n,
                        const strip *from) {
#define COPY(member, type)                                        \
  {                                                               \
    type *to = (type *)data + at;                                 \
    if (step == 1) EACH to[l] = (type)from->member[l];            \
    else EACH to[step * l] = (type)from->member[l];               \
  }                                                               \
  break
  switch (type) {
    OF_EACH_TYPE(COPY)
  }
#undef COPY
}

static int64_t floor_div(int64_t a, int64_t b) {
  if (b == 0) return 0;
  if (b == -1) return (int64_t)(0 - (uint64_t)a);
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

/* Quotients rounded down, or what they leave. Those of numbers below 2^52 are those of doubles, for
** which there are vectors: a quotient that is no integer is further from one than doubles round. */
static void divide_strip(strip *to, const strip *a, const strip *b, int64_t n, bool is_rest) {
  uint64_t bits = 0;
  EACH bits |= (uint64_t)(a->i[l] ^ a->i[l] >> 63) | (uint64_t)(b->i[l] ^ b->i[l] >> 63);
  if (bits >> 52 == 0) {
    EACH {
      int64_t by = b->i[l], q = (int64_t)floor((double)a->i[l] / (double)(by == 0 ? 1 : by));
      q = by == 0 ? 0 : q;
      to->i[l] = is_rest ? a->i[l] - q * by : q;
    }
    return;
  }
  EACH {
    int64_t q = floor_div(a->i[l], b->i[l]);
    to->i[l] = is_rest ? (int64_t)((uint64_t)a->i[l] - (uint64_t)q * (uint64_t)b->i[l]) : q;
  }
}

static int64_t wrap(int64_t value, int64_t type) {
  switch (type) {
    case E_BOOL: return value != 0;
    case E_I8: return (int8_t)value;
    case E_I16: return (int16_t)value;
    case E_I32: return (int32_t)value;
    case E_U8: return (uint8_t)value;
    case E_U16: return (uint16_t)value;
    case E_U32: return (uint32_t)value;
    default: return value;
  }
}

/* As the processor's instructions convert: what does not fit is the lowest number. */
static int64_t to_int(double value, int64_t type) {
  bool is_wide = type == E_I64 || type == E_U32;
  double limit = is_wide ? 9223372036854775808.0 : 2147483648.0;
  int64_t lowest = is_wide ? INT64_MIN : INT32_MIN;
  bool fits = value > -limit - (is_wide ? 0 : 1) && value < limit;
  return wrap(fits ? (int64_t)value : lowest, type);
}

/* e^x: 2^n e^y with |y| <= ln 2 / 2, whose series ends at y^7. */
static inline float exp_of(float x) {
  float z = x < -104.0f ? -104.0f : x > 89.0f ? 89.0f : x;
  float n = rintf(z * 1.44269504f);
  float y = z - n * 0.693359375f + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * y + 1.3981999507e-3f;
  p = p * y + 8.3334519073e-3f;
  p = p * y + 4.1665795894e-2f;
  p = p * y + 1.6666665459e-1f;
  p = p * y + 5.0000001201e-1f;
  p = p * y * y + y + 1.0f;
  int32_t whole = (int32_t)n, half = whole / 2;
  union { int32_t i; float f; } a = {(half + 127) << 23}, b = {(whole - half + 127) << 23};
  return x != x ? x : p * a.f * b.f;
}

/* Of two of which one is no number, that one. */
#define MORE(x, y) ((x) > (y) || (x) != (x) ? (x) : (y))
#define LESS(x, y) ((x) < (y) || (x) != (x) ? (x) : (y))

#define BINARY(of_float, of_int)                            \
  if (kind == K_F32) {                                      \
    EACH { float x = a->f[l], y = b->f[l]; to->f[l] = of_float; }   \
  } else if (kind == K_F64) {                               \
    EACH { double x = a->d[l], y = b->d[l]; to->d[l] = of_float; }  \
  } else {                                                  \
    EACH { int64_t x = a->i[l], y = b->i[l]; to->i[l] = of_int; }   \
  }                                                         \
  break
#define COMPARE(what)                                       \
  if (kind == K_F32) EACH to->i[l] = a->f[l] what b->f[l];  \
  else if (kind == K_F64) EACH to->i[l] = a->d[l] what b->d[l]; \
  else EACH to->i[l] = a->i[l] what b->i[l];                \
  break
#define UNARY(of_float, of_double)                          \
  if (kind == K_F32) EACH { float x = a->f[l]; to->f[l] = of_float; }   \
  else EACH { double x = a->d[l]; to->d[l] = of_double; }   \
  break

static void mathematics(int64_t op, int64_t kind, strip *to, const strip *a, const strip *b,
                        int64_t n) {
  switch (op) {
    case O_EXP: UNARY(exp_of(x), exp(x));
    case O_LOG: UNARY(logf(x), log(x));
    case O_SQRT: UNARY(sqrtf(x), sqrt(x));
    case O_RSQRT: UNARY(1.0f / sqrtf(x), 1.0 / sqrt(x));
    case O_TANH: UNARY(tanhf(x), tanh(x));
    case O_ERF: UNARY(erff(x), erf(x));
    case O_SIGMOID: UNARY(1.0f / (1.0f + exp_of(-x)), 1.0 / (1.0 + exp(-x)));
    case O_SIN: UNARY(sinf(x), sin(x));
    case O_COS: UNARY(cosf(x), cos(x));
    case O_FLOOR: UNARY(floorf(x), floor(x));
    case O_CEIL: UNARY(ceilf(x), ceil(x));
    case O_ROUND: UNARY(rintf(x), rint(x));
    case O_TRUNC: UNARY(truncf(x), trunc(x));
    case O_POW:
      if (kind == K_F32) EACH to->f[l] = powf(a->f[l], b->f[l]);
      else EACH to->d[l] = pow(a->d[l], b->d[l]);
      break;
    case O_ISNAN:
      if (kind == K_F32) EACH to->i[l] = a->f[l] != a->f[l];
      else EACH to->i[l] = a->d[l] != a->d[l];
      break;
    default: /* O_ISINF */
      if (kind == K_F32) EACH to->i[l] = fabsf(a->f[l]) > 3.402823466e38f;
      else EACH to->i[l] = fabs(a->d[l]) > 1.7976931348623157e308;
  }
}

static void step(const int64_t *row, strip *R, int64_t n) {
  int64_t op = row[0], kind = row[1];
  strip *to = &R[row[2]];
  const strip *a = &R[row[3]], *b = &R[row[4]];
  switch (op) {
    case O_ADD: BINARY(x + y, (int64_t)((uint64_t)x + (uint64_t)y));
    case O_SUB: BINARY(x - y, (int64_t)((uint64_t)x - (uint64_t)y));
    case O_MUL: BINARY(x * y, (int64_t)((uint64_t)x * (uint64_t)y));
    case O_DIV: BINARY(x / y, y == 0 ? 0 : y == -1 ? (int64_t)(0 - (uint64_t)x) : x / y);
    case O_MIN: BINARY(LESS(x, y), x < y ? x : y);
    case O_MAX: BINARY(MORE(x, y), x > y ? x : y);
    case O_FLOORDIV: divide_strip(to, a, b, n, false); break;
    case O_FLOORMOD: divide_strip(to, a, b, n, true); break;
    case O_EQ: COMPARE(==);
    case O_NE: COMPARE(!=);
    case O_LT: COMPARE(<);
    case O_LE: COMPARE(<=);
    case O_GT: COMPARE(>);
    case O_GE: COMPARE(>=);
    case O_AND: EACH to->i[l] = a->i[l] & b->i[l]; break;
    case O_OR: EACH to->i[l] = a->i[l] | b->i[l]; break;
    case O_BITAND: EACH to->i[l] = a->i[l] & b->i[l]; break;
    case O_BITOR: EACH to->i[l] = a->i[l] | b->i[l]; break;
    case O_BITXOR: EACH to->i[l] = a->i[l] ^ b->i[l]; break;
    case O_NOT: EACH to->i[l] = !a->i[l]; break;
    case O_WRAP: EACH to->i[l] = wrap(a->i[l], row[4]); break;
    case O_ABS:
      if (kind == K_F32) EACH to->f[l] = fabsf(a->f[l]);
      else if (kind == K_F64) EACH to->d[l] = fabs(a->d[l]);
      else EACH to->i[l] = a->i[l] < 0 ? (int64_t)(0 - (uint64_t)a->i[l]) : a->i[l];
      break;
    case O_FMA: {
      const strip *c = &R[row[5]];
      if (kind == K_F32) EACH to->f[l] = fmaf(a->f[l], b->f[l], c->f[l]);
      else EACH to->d[l] = fma(a->d[l], b->d[l], c->d[l]);
      break;
    }
    case O_SELECT: {
      const strip *c = &R[row[5]];
      if (kind == K_F32) EACH to->f[l] = a->i[l] ? b->f[l] : c->f[l];
      else if (kind == K_F64) EACH to->d[l] = a->i[l] ? b->d[l] : c->d[l];
      else EACH to->i[l] = a->i[l] ? b->i[l] : c->i[l];
      break;
    }
    case O_TO_F32:
      if (kind == K_F64) EACH to->f[l] = (float)a->d[l];
      else EACH to->f[l] = (float)a->i[l];
      break;
    case O_TO_F64:
      if (kind == K_F32) EACH to->d[l] = a->f[l];
      else EACH to->d[l] = (double)a->i[l];
      break;
    case O_TO_INT:
      if (row[4] == E_BOOL && kind == K_F32) EACH to->i[l] = a->f[l] != 0;
      else if (row[4] == E_BOOL) EACH to->i[l] = a->d[l] != 0;
      else if (kind == K_F32) EACH to->i[l] = to_int((double)a->f[l], row[4]);
      else EACH to->i[l] = to_int(a->d[l], row[4]);
      break;
    default: mathematics(op, kind, to, a, b, n);
  }
}

static void fill(strip *to, int64_t kind, int64_t bits, int64_t n) {
  double value;
  memcpy(&value, &bits, sizeof value);
  if (kind == K_F32) EACH to->f[l] = (float)value;
  else if (kind == K_F64) EACH to->d[l] = value;
  else EACH to->i[l] = bits;
}

static void run_load(const loops *p, const int64_t *row, const int64_t *at, bool is_same, int64_t n,
                     strip *R) {
  const load *from = &p->loads[row[3]];
  const void *data = p->r->data[from->buffer];
  int64_t first = from->offset, by = p->lane < 0 ? 0 : from->steps[p->lane];
  for (int32_t a = 0; a < p->n_axes; a++) first += from->steps[a] * at[a];
  if (row[4] >= 0 && !is_same) {
    gather_strip(from, data, first, by, &R[row[4]], n, &R[row[2]]);
    return;
  }
  if (row[4] >= 0) first += R[row[4]].i[0];
  load_strip(from, data, first, by, n, &R[row[2]]);
}

/* Runs the code on n elements along the lane axis, the first of which 'at' is. */
static void run_code(const loops *p, const int64_t *at, int64_t all, strip *R) {
  const int64_t *row = p->c->instructions;
  for (int64_t k = 0; k < p->c->n_instructions; k++, row += 6) {
    int64_t n = p->is_single[k] ? 1 : all;
    switch (row[0]) {
      case O_CONST: fill(&R[row[2]], row[1], row[3], n); break;
      case O_SIZE: {
        int64_t value = p->r->sizes[row[3]];
        EACH R[row[2]].i[l] = value;
        break;
      }
      case O_AXIS: {
        int64_t first = at[row[3]], by = row[3] == p->lane;
        EACH R[row[2]].i[l] = first + by * l;
        break;
      }
      case O_LOAD: run_load(p, row, at, p->is_near[k], n, R); break;
      default: step(row, R, n);
    }
  }
}

/* Loops ---------------------------------------------------------------------------------------- */

static void read_loops(loops *p, const run *r, const stage *s, const code *c) {
  p->r = r;
  p->c = c;
  p->n_axes = (int32_t)(s->n_axes + s->n_reduced);
  p->n_spatial = (int32_t)s->n_axes;
  p->lane = -1;
  p->n_results = c == &s->codes[0] ? s->n_results : 1;
  for (int32_t a = 0; a < p->n_axes; a++) p->extents[a] = r->sizes[s->extents[a]];
  for (int64_t k = 0; k < s->n_results; k++) {
    const int64_t *steps = s->results + k * (s->n_axes + 1) + 1;
    for (int32_t a = 0; a < p->n_axes; a++) {
      p->out_steps[k][a] = a < p->n_spatial ? r->sizes[steps[a]] : 0;
    }
  }
  for (int64_t k = 0; k < c->n_loads; k++) {
    const int64_t *row = c->loads + k * (p->n_axes + 3);
    load *to = &p->loads[k];
    to->buffer = row[0];
    to->is_guarded = row[1] != 0;
    to->type = r->types[row[0]];
    to->elements = r->elements[row[0]];
    for (int32_t a = 0; a < p->n_axes; a++) to->steps[a] = r->sizes[row[2 + a]];
    to->offset = r->sizes[row[2 + p->n_axes]];
  }
}

static bool names_axis(const code *c, int64_t axis) {
  for (int64_t k = 0; k < c->n_instructions; k++) {
    const int64_t *row = c->instructions + 6 * k;
    if (row[0] == O_AXIS && row[3] == axis) return true;
  }
  return false;
}

static bool are_one(const loops *p, const stage *s, int32_t outer, int32_t inner) {
  int64_t extent = p->extents[inner];
  bool can = !names_axis(p->c, outer) && !names_axis(p->c, inner);
  for (int64_t k = 0; k < p->c->n_loads && can; k++) {
    can = p->loads[k].steps[outer] == p->loads[k].steps[inner] * extent;
  }
  for (int64_t k = 0; k < s->n_results && can; k++) {
    can = p->out_steps[k][outer] == p->out_steps[k][inner] * extent;
  }
  return can;
}

/* Makes neighbouring axes one where all see them as one: the outer one is then of extent 1. */
static void merge_axes(loops *p, const stage *s, int32_t first, int32_t end) {
  int32_t inner = end - 1;
  for (int32_t a = end - 2; a >= first; a--) {
    if (p->extents[a] == 1) continue;
    if (p->extents[inner] != 1 && are_one(p, s, a, inner)) {
      p->extents[inner] *= p->extents[a];
      p->extents[a] = 1;
    } else {
      inner = a;
    }
  }
}

static void spread(loops *p, int64_t k);

static int operands_of(const int64_t *row) {
  switch (row[0]) {
    case O_CONST: case O_SIZE: case O_AXIS: return 0;
    case O_SELECT: case O_FMA: return 3;
    case O_NOT: case O_TO_F32: case O_TO_F64: case O_TO_INT: case O_WRAP: case O_ABS: case O_EXP:
    case O_LOG: case O_SQRT: case O_RSQRT: case O_TANH: case O_ERF: case O_SIGMOID: case O_SIN:
    case O_COS: case O_FLOOR: case O_CEIL: case O_ROUND: case O_TRUNC: case O_ISNAN: case O_ISINF:
      return 1;
    default: return 2;
  }
}

/* What is equal in all lanes is computed once, unless one that is not works on it. */
static void find_same(loops *p) {
  int32_t writer[MAX_REGISTERS];
  const int64_t *row = p->c->instructions;
  for (int64_t k = 0; k < p->c->n_instructions; k++, row += 6) {
    int first = row[0] == O_LOAD ? 4 : 3, n = row[0] == O_LOAD ? row[4] >= 0 : operands_of(row);
    bool is_same = true;
    for (int i = 0; i < n; i++) is_same = is_same && p->is_same[writer[row[first + i]]];
    p->is_near[k] = row[0] == O_LOAD && is_same;
    if (row[0] == O_AXIS) is_same = row[3] != p->lane;
    if (row[0] == O_LOAD) is_same = is_same && p->lane >= 0 && p->loads[row[3]].steps[p->lane] == 0;
    p->is_same[k] = p->is_single[k] = is_same;
    for (int i = 0; i < n && !is_same; i++) {
      if (!p->is_near[k]) p->is_single[writer[row[first + i]]] = false;
    }
    writer[row[2]] = (int32_t)k;
  }
  for (int64_t k = 0; k < p->n_results; k++) p->is_single[writer[p->c->results[k]]] = false;
  /* who is asked for in all lanes needs its operands so: backwards, as they stand before it */
  for (int64_t k = p->c->n_instructions - 1; k >= 0; k--) spread(p, k);
}

/* The axis that strips lie along: the innermost of those that are longer than 1, unless that is
** short and another one, of a sum a reduced one, is not. */
static int32_t lane_of(const loops *p) {
  int32_t spatial = p->n_spatial - 1, reduced = p->n_axes - 1;
  while (spatial > 0 && p->extents[spatial] == 1) spatial--;
  while (reduced > p->n_spatial && p->extents[reduced] == 1) reduced--;
  if (reduced < p->n_spatial) {
    int32_t longer = spatial;
    while (longer > 0 && p->extents[longer] < VECTOR) longer--;
    return spatial >= 0 && p->extents[longer] >= VECTOR ? longer : spatial;
  }
  if (spatial < 0) return reduced;
  return p->extents[spatial] < VECTOR && p->extents[reduced] > p->extents[spatial] ? reduced
                                                                                   : spatial;
}

/* Lets the writers of the operands of an instruction that works on all lanes do so too. */
static void spread(loops *p, int64_t k) {
  const int64_t *row = p->c->instructions + 6 * k;
  int first = row[0] == O_LOAD ? 4 : 3, n = row[0] == O_LOAD ? row[4] >= 0 : operands_of(row);
  if (p->is_single[k] || p->is_near[k]) return;
  for (int i = 0; i < n; i++) {
    int64_t by = k - 1;
    while (by >= 0 && p->c->instructions[6 * by + 2] != row[first + i]) by--;
    if (by >= 0) p->is_single[by] = false;
  }
}

/* The position of a number in a range of axes without the lane axis. */
static void place(const loops *p, int64_t number, int32_t first, int32_t end, int64_t *at) {
  for (int32_t a = end - 1; a >= first; a--) {
    if (a == p->lane) continue;
    at[a] = number % p->extents[a];
    number /= p->extents[a];
  }
}

static int64_t count(const loops *p, int32_t first, int32_t end) {
  int64_t n = 1;
  for (int32_t a = first; a < end; a++) n *= a == p->lane ? 1 : p->extents[a];
  return n;
}

static int64_t out_at(const loops *p, int64_t result, const int64_t *at) {
  int64_t offset = 0;
  for (int32_t a = 0; a < p->n_spatial; a++) offset += p->out_steps[result][a] * at[a];
  return offset;
}

static int64_t kind_of(int32_t type) {
  return type == E_F32 ? K_F32 : type == E_F64 ? K_F64 : K_INT;
}

/* What a reduction of nothing gives. */
static void begin_sum(strip *to, int64_t reducer, int32_t type, int64_t n) {
  static const int64_t highest[] = {[E_BOOL] = 1,         [E_I8] = 127,        [E_I16] = 32767,
                                    [E_I32] = 2147483647, [E_I64] = INT64_MAX, [E_U8] = 255,
                                    [E_U16] = 65535,      [E_U32] = 4294967295};
  int64_t kind = kind_of(type);
  double value = reducer == R_SUM ? 0 : reducer == R_PROD ? 1 : reducer == R_MAX ? -INFINITY
                                                                                 : INFINITY;
  if (kind != K_INT) {
    int64_t bits;
    memcpy(&bits, &value, sizeof bits);
    fill(to, kind, bits, n);
    return;
  }
  bool is_signed = type == E_I8 || type == E_I16 || type == E_I32 || type == E_I64;
  int64_t low = is_signed ? -highest[type] - 1 : 0;
  fill(to, kind, reducer <= R_PROD ? reducer : reducer == R_MAX ? low : highest[type], n);
}

static void combine(strip *to, const strip *by, int64_t reducer, int32_t type, int64_t n) {
  static const int64_t ops[] = {O_ADD, O_MUL, O_MAX, O_MIN};
  int64_t kind = kind_of(type);
  strip *a = to;
  const strip *b = by;
  switch (ops[reducer]) {
    case O_ADD: BINARY(x + y, (int64_t)((uint64_t)x + (uint64_t)y));
    case O_MUL: BINARY(x * y, (int64_t)((uint64_t)x * (uint64_t)y));
    case O_MAX: BINARY(MORE(x, y), x > y ? x : y);
    default: BINARY(LESS(x, y), x < y ? x : y);
  }
  if (kind == K_INT && type != E_I64) EACH to->i[l] = wrap(to->i[l], type);
}

/* The lanes of a strip become one, in halves. */
static void fold(strip *of, int64_t reducer, int32_t type, int64_t n) {
  while (n > 1) {
    int64_t half = n / 2, rest = n - half;
    strip upper;
    int64_t kind = kind_of(type);
    if (kind == K_F32) memcpy(upper.f, of->f + rest, (size_t)half * sizeof *upper.f);
    else memcpy(upper.i, of->i + rest, (size_t)half * sizeof *upper.i);
    combine(of, &upper, reducer, type, half);
    n = rest;
  }
}

typedef struct work {
  loops p;
  const stage *s;
  int64_t strips;              /* along the lane axis, where that is spatial */
} work;

static strip *registers_of(const loops *p, int64_t more) {
  return ek_workspace_alloc((p->c->n_registers + more) * (int64_t)sizeof(strip));
}

static int map_some(void *context, int64_t begin, int64_t end) {
  const work *w = context;
  const loops *p = &w->p;
  strip *R = registers_of(p, 1);
  if (R == NULL) return -1;
  int64_t at[MAX_AXES] = {0}, length = p->lane < 0 ? 1 : p->extents[p->lane];
  for (int64_t i = begin; i < end; i++) {
    int64_t first = i % w->strips * STRIP, n = length - first < STRIP ? length - first : STRIP;
    place(p, i / w->strips, 0, p->n_spatial, at);
    if (p->lane >= 0) at[p->lane] = first;
    run_code(p, at, n, R);
    for (int64_t k = 0; k < w->s->n_results; k++) {
      int64_t buffer = w->s->results[k * (w->s->n_axes + 1)];
      int64_t by = p->lane < 0 ? 0 : p->out_steps[k][p->lane];
      store_strip(p->r->types[buffer], p->r->data[buffer], out_at(p, k, at), by, n,
                  &R[p->c->results[k]]);
    }
  }
  ek_workspace_free(R);
  return 0;
}

static int reduce_some(void *context, int64_t begin, int64_t end) {
  const work *w = context;
  const loops *p = &w->p;
  bool is_across = p->lane >= p->n_spatial;
  int64_t buffer = w->s->results[0];
  int32_t type = p->r->types[buffer];
  int64_t at[MAX_AXES] = {0}, length = p->extents[p->lane];
  int64_t turns = count(p, p->n_spatial, p->n_axes);
  strip *R = registers_of(p, 1), *sum = R == NULL ? NULL : R + p->c->n_registers;
  if (R == NULL) return -1;
  for (int64_t i = begin; i < end; i++) {
    int64_t first = is_across ? 0 : i % w->strips * STRIP;
    int64_t n = is_across || length - first > STRIP ? STRIP : length - first;
    if (is_across && length < STRIP) n = length;
    place(p, i / w->strips, 0, p->n_spatial, at);
    begin_sum(sum, w->s->reducer, type, STRIP);
    for (int64_t turn = 0; turn < turns; turn++) {
      place(p, turn, p->n_spatial, p->n_axes, at);
      for (at[p->lane] = first; at[p->lane] < length; at[p->lane] += STRIP) {
        int64_t some = length - at[p->lane] < n ? length - at[p->lane] : n;
        run_code(p, at, some, R);
        combine(sum, &R[p->c->results[0]], w->s->reducer, type, some);
        if (!is_across) break;
      }
    }
    at[p->lane] = first;
    if (is_across) fold(sum, w->s->reducer, type, n);
    store_strip(type, p->r->data[buffer], out_at(p, 0, at), is_across ? 0 : p->out_steps[0][p->lane],
                is_across ? 1 : n, sum);
  }
  ek_workspace_free(R);
  return 0;
}

static int64_t grain(const loops *p, int64_t work_of_one) {
  int64_t instructions = p->c->n_instructions + 1;
  return 1 + 65536 / (1 + work_of_one * instructions);
}

static int run_plain(const run *r, const stage *s) {
  work w = {.s = s};
  read_loops(&w.p, r, s, &s->codes[0]);
  loops *p = &w.p;
  merge_axes(p, s, 0, p->n_spatial);
  if (s->kind == REDUCE) merge_axes(p, s, p->n_spatial, p->n_axes);
  if (p->n_axes > 0) p->lane = lane_of(p);
  find_same(p);
  int64_t length = p->lane < 0 ? 1 : p->extents[p->lane];
  bool is_across = s->kind == REDUCE && p->lane >= p->n_spatial;
  w.strips = is_across ? 1 : (length + STRIP - 1) / STRIP;
  int64_t n = count(p, 0, p->n_spatial) * w.strips;
  if (s->kind == MAP) return ek_parallel_for(map_some, &w, n, grain(p, length < STRIP ? length : STRIP));
  int64_t each = count(p, p->n_spatial, p->n_axes) * (is_across || length < STRIP ? length : STRIP);
  return ek_parallel_for(reduce_some, &w, n, grain(p, each));
}

/* Products --------------------------------------------------------------------------------------
**
** The left factor of a block of rows is computed into rows of K elements, the right one lies in
** panels of whole vectors of columns, as the weights do or made so first; a tile of rows and columns
** is summed up in registers. */

typedef float vector __attribute__((vector_size(4 * VECTOR), aligned(4)));

typedef struct product {
  loops left, right;
  const stage *s;
  int64_t batches, rows, columns, depth;   /* depth: of the sum */
  int64_t width, per_panel, chunks;        /* columns of a chunk, chunks of a panel and in all */
  int64_t blocks, block_rows, splits;
  const float *panels;
  int64_t batch_step, panel_step, base;    /* batch_step: of panels that were made */
  const int64_t *offsets;                  /* of each term in a panel */
} product;

#define TILE(name, R, W)                                                                        \
  static void name(const float *left, int64_t depth, const float *right, const int64_t *offsets, \
                   vector *out) {                                                               \
    vector sum[R][W];                                                                           \
    _Pragma("GCC unroll 12") for (int i = 0; i < R; i++)                                        \
      _Pragma("GCC unroll 2") for (int j = 0; j < W; j++) sum[i][j] = (vector){0};              \
    for (int64_t k = 0; k < depth; k++) {                                                       \
      const vector *b = (const vector *)(const void *)(right + offsets[k]);                     \
      _Pragma("GCC unroll 12") for (int i = 0; i < R; i++)                                      \
        _Pragma("GCC unroll 2") for (int j = 0; j < W; j++)                                     \
          sum[i][j] += left[i * depth + k] * b[j];                                              \
    }                                                                                           \
    _Pragma("GCC unroll 12") for (int i = 0; i < R; i++)                                        \
      _Pragma("GCC unroll 2") for (int j = 0; j < W; j++) out[i * W + j] = sum[i][j];           \
  }
TILE(tile_all_1, ROW_TILE, 1)
TILE(tile_four_1, 4, 1)
TILE(tile_one_1, 1, 1)
TILE(tile_all_2, ROW_TILE, 2)
TILE(tile_four_2, 4, 2)
TILE(tile_one_2, 1, 2)

typedef void tile(const float *, int64_t, const float *, const int64_t *, vector *);

/* How many rows are done at once of so many that are left. */
static int64_t rows_at_once(int64_t left) { return left >= ROW_TILE ? ROW_TILE : left >= 4 ? 4 : 1; }

static tile *tile_of(int64_t rows, int64_t width) {
  if (width == VECTOR) return rows == 1 ? tile_one_1 : rows == 4 ? tile_four_1 : tile_all_1;
  return rows == 1 ? tile_one_2 : rows == 4 ? tile_four_2 : tile_all_2;
}

/* The position of a number among the axes of one role. */
static void place_role(const product *m, int64_t number, int64_t role, int64_t *at) {
  for (int64_t a = m->s->n_axes - 1; a >= 0; a--) {
    if (m->s->roles[a] != role) continue;
    int64_t extent = m->left.r->sizes[m->s->extents[a]];
    at[a] = number % extent;
    number /= extent;
  }
}

/* One row of the left factor. */
static void left_row(const product *m, int64_t *at, strip *R, float *to) {
  const loops *p = &m->left;
  int64_t length = p->extents[p->lane], turns = count(p, p->n_spatial, p->n_axes);
  for (int64_t turn = 0; turn < turns; turn++) {
    place(p, turn, p->n_spatial, p->n_axes, at);
    for (int64_t first = 0; first < length; first += STRIP) {
      int64_t n = length - first < STRIP ? length - first : STRIP;
      at[p->lane] = first;
      run_code(p, at, n, R);
      memcpy(to + turn * length + first, R[p->c->results[0]].f, (size_t)n * sizeof(float));
    }
  }
}

static void store_tile(const product *m, const int64_t *row_at, int64_t rows, int64_t column,
                       const float *from) {
  int64_t buffer = m->s->results[0], step = m->left.out_steps[0][m->s->column_axis];
  int64_t n = m->columns - column < m->width ? m->columns - column : m->width;
  float *data = m->left.r->data[buffer];
  for (int64_t i = 0; i < rows; i++) {
    float *to = data + row_at[i] + column * step;
    const float *row = from + i * m->width;
    if (step == 1) memcpy(to, row, (size_t)n * sizeof *to);
    else EACH to[step * l] = row[l];
  }
}

static void block_of_rows(const product *m, int64_t batch, int64_t first, int64_t rows,
                          int64_t chunk, int64_t end, strip *R, float *left) {
  int64_t at[MAX_AXES] = {0}, row_at[ROW_TILE * BLOCK_TILES];
  vector out[ROW_TILE * WIDE + WIDE];
  place_role(m, batch, BATCH, at);
  const float *panels = m->panels + m->base + batch * m->batch_step;
  for (int64_t a = 0; a < m->s->n_axes && m->s->tile != 0; a++) {
    panels += at[a] * m->left.r->sizes[m->s->steps[m->s->n_reduced + 1 + a]];
  }
  for (int64_t i = 0; i < rows; i++) {
    place_role(m, first + i, ROWS, at);
    at[m->s->column_axis] = 0;
    row_at[i] = out_at(&m->left, 0, at);
    left_row(m, at, R, left + i * m->depth);
  }
  for (; chunk < end; chunk++) {
    int64_t panel = chunk / m->per_panel, inside = chunk % m->per_panel * m->width;
    const float *right = panels + panel * m->panel_step + inside;
    int64_t column = panel * m->per_panel * m->width + inside;
    if (column >= m->columns) continue;
    for (int64_t i = 0; i < rows;) {
      int64_t some = rows_at_once(rows - i);
      tile_of(some, m->width)(left + i * m->depth, m->depth, right, m->offsets, out);
      store_tile(m, row_at + i, some, column, (const float *)(const void *)out);
      i += some;
    }
  }
}

static int product_some(void *context, int64_t begin, int64_t end) {
  const product *m = context;
  strip *R = registers_of(&m->left, 1);
  float *left = R == NULL ? NULL : ek_workspace_alloc(m->block_rows * m->depth * 4 + 64);
  int status = left == NULL ? -1 : 0;
  for (int64_t i = begin; i < end && status == 0; i++) {
    int64_t split = i % m->splits, block = i / m->splits % m->blocks, batch = i / m->splits / m->blocks;
    int64_t first = block * m->block_rows, rows = m->rows - first;
    block_of_rows(m, batch, first, rows < m->block_rows ? rows : m->block_rows,
                  m->chunks * split / m->splits, m->chunks * (split + 1) / m->splits, R, left);
  }
  ek_workspace_free(left);
  ek_workspace_free(R);
  return status;
}

/* Rows of the right factor, for all columns, into panels. */
static int panels_some(void *context, int64_t begin, int64_t end) {
  const product *m = context;
  const loops *p = &m->right;
  float *panels = (float *)(uintptr_t)m->panels;
  strip *R = registers_of(p, 1);
  int64_t at[MAX_AXES] = {0};
  if (R == NULL) return -1;
  for (int64_t i = begin; i < end; i++) {
    int64_t batch = i / m->depth, k = i % m->depth;
    float *to = panels + batch * m->batch_step + k * m->width;
    place_role(m, batch, BATCH, at);
    place(p, k, p->n_spatial, p->n_axes, at);
    for (int64_t first = 0; first < m->columns; first += STRIP) {
      int64_t n = m->columns - first < STRIP ? m->columns - first : STRIP;
      at[p->lane] = first;
      run_code(p, at, n, R);
      const float *row = R[p->c->results[0]].f;
      for (int64_t l = 0; l < n; l += m->width) {
        int64_t some = n - l < m->width ? n - l : m->width;
        float *panel = to + (first + l) / m->width * m->panel_step;
        memcpy(panel, row + l, (size_t)some * sizeof *panel);
        if (some < m->width) memset(panel + some, 0, (size_t)(m->width - some) * sizeof *panel);
      }
    }
  }
  ek_workspace_free(R);
  return 0;
}

static int64_t extent_of(const product *m, int64_t role) {
  int64_t n = 1;
  for (int64_t a = 0; a < m->s->n_axes; a++) {
    if (m->s->roles[a] == role) n *= m->left.r->sizes[m->s->extents[a]];
  }
  return n;
}

static void lay_out(product *m) {
  const stage *s = m->s;
  bool is_wide = WIDE == 2 && (s->tile == 0 ? m->columns > VECTOR : s->tile % (2 * VECTOR) == 0);
  m->width = is_wide ? 2 * VECTOR : VECTOR;
  m->per_panel = s->tile == 0 ? 1 : s->tile / m->width;
  m->chunks = (m->columns + m->width - 1) / m->width;
  if (s->tile != 0) m->chunks = (m->columns + s->tile - 1) / s->tile * m->per_panel;
  m->block_rows = m->rows < ROW_TILE * BLOCK_TILES ? m->rows : ROW_TILE * BLOCK_TILES;
  m->blocks = (m->rows + m->block_rows - 1) / m->block_rows;
  m->splits = (FEW_TASKS + m->batches * m->blocks - 1) / (m->batches * m->blocks);
  if (m->splits > m->chunks) m->splits = m->chunks;
}

/* Where the terms of the sum lie in the weights, or in panels that are made now. */
static int find_right(product *m, int64_t *offsets, float *panels) {
  const stage *s = m->s;
  const run *r = m->left.r;
  m->offsets = offsets;
  if (s->tile != 0) {
    m->panels = r->data[s->buffer];
    m->panel_step = r->sizes[s->panel_step];
    m->base = r->sizes[s->steps[s->n_reduced]];
    int64_t at[MAX_AXES] = {0};
    for (int64_t k = 0; k < m->depth; k++) {
      int64_t left = k, offset = 0;
      for (int64_t a = s->n_reduced - 1; a >= 0; a--) {
        int64_t extent = r->sizes[s->extents[s->n_axes + a]];
        at[a] = left % extent;
        left /= extent;
        offset += at[a] * r->sizes[s->steps[a]];
      }
      offsets[k] = offset;
    }
    return 0;
  }
  m->panels = panels;
  m->panel_step = m->depth * m->width;
  m->batch_step = m->chunks * m->panel_step;
  for (int64_t k = 0; k < m->depth; k++) offsets[k] = k * m->width;
  return ek_parallel_for(panels_some, m, m->batches * m->depth, 1 + 65536 / (m->columns + 1));
}

static int run_product(const run *r, const stage *s) {
  product m = {.s = s};
  read_loops(&m.left, r, s, &s->codes[0]);
  read_loops(&m.right, r, s, &s->codes[1]);
  m.depth = 1;
  for (int64_t a = 0; a < s->n_reduced; a++) m.depth *= r->sizes[s->extents[s->n_axes + a]];
  m.batches = extent_of(&m, BATCH);
  m.rows = extent_of(&m, ROWS);
  m.columns = r->sizes[s->extents[s->column_axis]];
  if (m.batches == 0 || m.rows == 0 || m.columns == 0) return 0;
  merge_axes(&m.left, s, m.left.n_spatial, m.left.n_axes);
  m.left.lane = m.left.n_axes - 1;
  while (m.left.lane > m.left.n_spatial && m.left.extents[m.left.lane] == 1) m.left.lane--;
  m.right.lane = (int32_t)s->column_axis;
  find_same(&m.left);
  find_same(&m.right);
  lay_out(&m);
  int64_t made = s->tile == 0 ? m.batches * m.chunks * m.width * m.depth : 0;
  int64_t *offsets = ek_workspace_alloc(m.depth * 8 + 8);
  float *panels = offsets == NULL ? NULL : ek_workspace_alloc(made * 4 + 64);
  int status = panels == NULL ? -1 : find_right(&m, offsets, panels);
  if (status == 0) {
    status = ek_parallel_for(product_some, &m, m.batches * m.blocks * m.splits, 1);
  }
  ek_workspace_free(panels);
  ek_workspace_free(offsets);
  return status;
}

int JOIN(ek_general_, CLASS)(const run *r, const stage *s) {
  return s->kind == PRODUCT ? run_product(r, s) : run_plain(r, s);
}
