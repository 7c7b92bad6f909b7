/* The loops of general kernels: maps and reductions. Compiled once for each class of processors:
** ek_general_v2, ek_general_v3, ek_general_v4.
**
** A stage runs in strips of consecutive elements along one axis, its lane axis: each instruction is
** executed for a whole strip before the next. Adjacent axes that every access treats as one are
** fused first. Sums are accumulated in the order of the reduced axes; a strip along a reduced axis
** is summed pairwise.
*/
#include "general_class.h"

#include <math.h>
#include <string.h>

/* Strips --------------------------------------------------------------------------------------- */

/* Numbers of half floats, as they lie in memory, and back. Multiplying by 2^112 moves the
** exponent's bias from 15 to 127, and makes subnormal halves normal by the way; infinities and NaNs
** get their exponent after. */
static inline float from_float16(uint16_t x) {
  uint32_t sign = (uint32_t)(x & 0x8000) << 16, rest = (uint32_t)(x & 0x7fff) << 13;
  union { uint32_t i; float f; } made = {rest}, up = {(254 - 15) << 23};
  made.f *= up.f;                          /* subnormal numbers too: they are below 2^-14 either way */
  if (rest >= (uint32_t)0x7c00 << 13) made.i |= 0xffu << 23;
  made.i |= sign;
  return made.f;
}

/* Round to float16, to nearest, ties to even. Below 2^-14 (subnormal results) adding 1/2 aligns the
** bits and the addition itself rounds them; above, half of the last kept place is added, less one
** where that place is even. From 2^16 on the result is infinity. */
static inline uint16_t to_float16(float x) {
  union { float f; uint32_t i; } from = {x}, y = {fabsf(x)};
  uint32_t sign = from.i >> 16 & 0x8000, bits;
  union { uint32_t i; float f; } least = {0x3f000000u}; /* 1/2: the last bit of its sum is 2^-24 */
  if (y.i >= 0x47800000u) bits = y.i > 0x7f800000u ? 0x7e00 : 0x7c00;
  else if (y.i < 0x38800000u) least.f += y.f, bits = least.i - 0x3f000000u;
  else bits = (y.i + 0xfffu + (y.i >> 13 & 1) - 0x38000000u) >> 13;
  return (uint16_t)(bits | sign);
}

static inline float from_bfloat16(uint16_t x) {
  union { uint32_t i; float f; } made = {(uint32_t)x << 16};
  return made.f;
}

static inline uint16_t to_bfloat16(float x) {
  union { float f; uint32_t i; } from = {x};
  uint32_t bits = (from.i + 0x7fffu + (from.i >> 16 & 1)) >> 16;
  return (uint16_t)(x != x ? 0x7fc0 : bits);
}

#define AS_IT_IS(x) (x)
/* The cases of a switch on an element's type: the member of a strip that it is in, its type, and
** what makes one of the other. */
#define OF_EACH_TYPE(DO)                            \
  case E_F32: DO(f, float, AS_IT_IS, AS_IT_IS);     \
  case E_F64: DO(d, double, AS_IT_IS, AS_IT_IS);    \
  case E_BOOL:                                      \
  case E_U8: DO(i, uint8_t, AS_IT_IS, AS_IT_IS);    \
  case E_I8: DO(i, int8_t, AS_IT_IS, AS_IT_IS);     \
  case E_I16: DO(i, int16_t, AS_IT_IS, AS_IT_IS);   \
  case E_U16: DO(i, uint16_t, AS_IT_IS, AS_IT_IS);  \
  case E_I32: DO(i, int32_t, AS_IT_IS, AS_IT_IS);   \
  case E_U32: DO(i, uint32_t, AS_IT_IS, AS_IT_IS);  \
  case E_F16: DO(f, uint16_t, from_float16, to_float16);    \
  case E_BF16: DO(f, uint16_t, from_bfloat16, to_bfloat16); \
  default: DO(i, int64_t, AS_IT_IS, AS_IT_IS);

static int64_t clamped(int64_t at, int64_t n) { return at < 0 ? 0 : at > n ? n : at; }

/* Elements from 'begin' of a strip on. */
static void load_strip(const load *from, const void *data, int64_t at, int64_t step, int64_t n,
                       int64_t begin, strip *to) {
  int64_t last = from->elements - 1;
#define COPY(member, type, read, write)                                                                 \
  {                                                                                        \
    const type *source = data;                                                             \
    if (from->is_guarded && (at < 0 || at > last || at + step * (n - 1) < 0 ||             \
                             at + step * (n - 1) > last)) {                                \
      int64_t l = 0, inside = step == 1 ? clamped(-at, n) : n;                             \
      int64_t end = step == 1 ? clamped(last + 1 - at, n) : n;                             \
      for (; l < inside; l++) {                                                            \
        int64_t k = at + step * l;                                                         \
        to->member[begin + l] = read(source[k < 0 ? 0 : k > last ? last : k]);                   \
      }                                                                                    \
      for (; l < end; l++) to->member[begin + l] = read(source[at + l]);                         \
      for (; l < n; l++) to->member[begin + l] = read(source[last]);                             \
    } else if (step == 1) {                                                                \
      source += at;                                                                        \
      EACH to->member[begin + l] = read(source[l]);                                                      \
    } else if (step == 0) {                                                                \
      type value = source[at];                                                             \
      EACH to->member[begin + l] = read(value);                                                          \
    } else {                                                                               \
      EACH to->member[begin + l] = read(source[at + step * l]);                                          \
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
                         const strip *more, int64_t n, int64_t begin, strip *to) {
  int64_t last = from->elements - 1;
#define COPY(member, type, read, write)                                         \
  EACH {                                                           \
    int64_t k = first + step * l + more->i[begin + l];             \
    to->member[begin + l] =                                        \
        read(((const type *)data)[k < 0 ? 0 : k > last ? last : k]);     \
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
                        int64_t begin, const strip *from) {
#define COPY(member, type, read, write)                                        \
  {                                                               \
    type *to = (type *)data + at;                                 \
    if (step == 1) EACH to[l] = (type)write(from->member[begin + l]);            \
    else EACH to[step * l] = (type)write(from->member[begin + l]);               \
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
  int64_t others = 0;
  EACH others |= b->i[l] ^ b->i[0];
  bool is_one = others == 0;
  if (is_one && b->i[0] > 0 && (b->i[0] & (b->i[0] - 1)) == 0) { /* sizes of tiles mostly */
    int64_t below = b->i[0] - 1, by = __builtin_ctzll((uint64_t)b->i[0]);
    if (is_rest) EACH to->i[l] = a->i[l] & below;
    else EACH to->i[l] = a->i[l] >> by;
    return;
  }
  EACH bits |= (uint64_t)(a->i[l] ^ a->i[l] >> 63) | (uint64_t)(b->i[l] ^ b->i[l] >> 63);
  if (bits >> 52 == 0 && is_one && b->i[0] > 0) {
    int64_t by = b->i[0];
    double inverse = 1.0 / (double)by;
    EACH {
      int64_t x = a->i[l], q = (int64_t)floor((double)x * inverse), rest = x - q * by;
      int64_t change = (rest >= by) - (rest < 0);
      to->i[l] = is_rest ? rest - change * by : q + change;
    }
    return;
  }
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

/* Integers as those of a type. */
static void wrap_strip(strip *to, const strip *a, int64_t type, int64_t n) {
  switch (type) {
    case E_BOOL: EACH to->i[l] = a->i[l] != 0; break;
    case E_I8: EACH to->i[l] = (int8_t)a->i[l]; break;
    case E_I16: EACH to->i[l] = (int16_t)a->i[l]; break;
    case E_I32: EACH to->i[l] = (int32_t)a->i[l]; break;
    case E_U8: EACH to->i[l] = (uint8_t)a->i[l]; break;
    case E_U16: EACH to->i[l] = (uint16_t)a->i[l]; break;
    case E_U32: EACH to->i[l] = (uint32_t)a->i[l]; break;
    default:
      if (to != a) memcpy(to->i, a->i, (size_t)n * sizeof *to->i);
  }
}

/* Converts as x86's instructions do: a value out of range becomes the lowest number. C leaves
** undefined what becomes of a double that does not fit; x86 gives the lowest number. */
static int64_t to_wide(double x) {
  return x >= -9223372036854775808.0 && x < 9223372036854775808.0 ? (int64_t)x : INT64_MIN;
}

static void integer_strip(strip *to, int64_t kind, const strip *a, int64_t type, int64_t n) {
  if (type == E_BOOL) {
    if (kind == K_F32) EACH to->i[l] = a->f[l] != 0;
    else EACH to->i[l] = a->d[l] != 0;
  } else if (type == E_I64 || type == E_U32) {
    if (kind == K_F32) EACH to->i[l] = to_wide((double)a->f[l]);
    else EACH to->i[l] = to_wide(a->d[l]);
  } else if (kind == K_F32) {
    EACH {
      float x = a->f[l];
      to->i[l] = x >= -2147483648.0f && x < 2147483648.0f ? (int32_t)x : INT32_MIN;
    }
  } else {
    EACH {
      double x = a->d[l];
      to->i[l] = x > -2147483649.0 && x < 2147483648.0 ? (int32_t)x : INT32_MIN;
    }
  }
  if (type != E_BOOL && type != E_I64 && type != E_I32) wrap_strip(to, to, type, n);
}

/* e^x: 2^n e^y with |y| <= ln 2 / 2, whose series ends at y^7. ln 2 is taken off in two parts, of
** which the first has few bits, so that its product with n is exact (Cody and Waite). 2^n in two
** factors: n may be below -126, where one would be subnormal. */
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

/* (e^x - e^-x) / (e^x + e^-x), or x times a series of its square where that loses digits. */
static inline float tanh_of(float x) {
  float y = fabsf(x), z = x * x;
  float p = -5.406310223e-3f;
  p = p * z + 2.035699512e-2f;
  p = p * z - 5.364653383e-2f;
  p = p * z + 1.333017547e-1f;
  p = p * z - 3.333321898e-1f;
  float e = exp_of(-2.0f * y), far = copysignf((1.0f - e) / (1.0f + e), x);
  return y < 0.65f ? x + x * (z * p) : x != x ? x : far;
}

/* x times a series of its square; from 1 on 1 - e^-r(x), where r is one of |x|. */
static inline float erf_of(float x) {
  float y = fabsf(x), z = x * x, c = y < 4.0f ? y : 4.0f;
  float p = 7.853857686e-5f;
  p = p * z - 8.010192514e-4f;
  p = p * z + 5.188327559e-3f;
  p = p * z - 2.685381187e-2f;
  p = p * z + 1.128358515e-1f;
  p = p * z - 3.761262582e-1f;
  p = p * z + 1.128379166f;
  float r = 2.060424779e-5f;
  r = r * c - 4.287214071e-4f;
  r = r * c + 4.142909986e-3f;
  r = r * c - 2.504436481e-2f;
  r = r * c + 1.081624885e-1f;
  r = r * c + 6.334552526e-1f;
  r = r * c + 1.129460534f;
  r = r * c - 1.631934969e-4f;
  float far = copysignf(1.0f - exp_of(-r), x);
  return y < 1.0f ? x * p : x != x ? x : far;
}

/* Return log(x) for x = 2^n (1 + y) with 1 + y in [sqrt(1/2), sqrt(2)]: n ln 2 + y - y^2 / 2 + y^3
** q(y). */
static inline float log_of(float x) {
  union { float f; int32_t i; } bits = {x < 1.17549435e-38f ? x * 8388608.0f : x};
  int32_t n = (bits.i - 0x3f3504f3) >> 23;
  bits.i -= (int32_t)((uint32_t)n << 23);
  float y = bits.f - 1.0f, z = y * y, whole = (float)(x < 1.17549435e-38f ? n - 23 : n);
  float q = 6.746601232e-2f;
  q = q * y - 1.167564126e-1f;
  q = q * y + 1.188817462e-1f;
  q = q * y - 1.240559143e-1f;
  q = q * y + 1.421955091e-1f;
  q = q * y - 1.666799567e-1f;
  q = q * y + 2.000211873e-1f;
  q = q * y - 2.500000960e-1f;
  q = q * y + 3.333331260e-1f;
  float result = whole * 0.693359375f + (y + (z * y * q - 0.5f * z - whole * 2.12194440e-4f));
  if (!(x > 0)) result = x == 0 ? -INFINITY : NAN;
  return x == INFINITY ? x : result;
}

/* If one of two operands is NaN, the result is NaN. */
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
    case O_LOG: UNARY(log_of(x), log(x));
    case O_SQRT: UNARY(sqrtf(x), sqrt(x));
    case O_RSQRT: UNARY(1.0f / sqrtf(x), 1.0 / sqrt(x));
    case O_TANH: UNARY(tanh_of(x), tanh(x));
    case O_ERF: UNARY(erf_of(x), erf(x));
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
    case O_WRAP:
      if (row[4] == E_F16) EACH to->f[l] = from_float16(to_float16(a->f[l]));
      else if (row[4] == E_BF16) EACH to->f[l] = from_bfloat16(to_bfloat16(a->f[l]));
      else wrap_strip(to, a, row[4], n);
      break;
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
    case O_TO_INT: integer_strip(to, kind, a, row[4], n); break;
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

/* Returns the number of contiguous elements of a strip along its lane axis. */
static int64_t lane_width(const loops *p, int64_t n) {
  return p->outer < 0 ? n : p->extents[p->lane];
}

static void run_load(const loops *p, const int64_t *row, const int64_t *at, bool is_same, int64_t n,
                     strip *R) {
  const load *from = &p->loads[row[3]];
  const void *data = p->r->data[from->buffer];
  int64_t first = from->offset, by = p->lane < 0 ? 0 : from->steps[p->lane];
  int64_t width = n == 1 ? 1 : lane_width(p, n), next = p->outer < 0 ? 0 : from->steps[p->outer];
  for (int32_t a = 0; a < p->n_axes; a++) first += from->steps[a] * at[a];
  bool is_gathered = row[4] >= 0 && !is_same;
  if (row[4] >= 0 && is_same) first += R[row[4]].i[0];
  if (next == by * width) width = n;
  for (int64_t begin = 0; begin < n; begin += width, first += next) {
    if (is_gathered) gather_strip(from, data, first, by, &R[row[4]], width, begin, &R[row[2]]);
    else load_strip(from, data, first, by, width, begin, &R[row[2]]);
  }
}

/* The numbers of an axis. */
static void run_axis(const loops *p, int64_t axis, int64_t first, int64_t n, strip *to) {
  int64_t width = lane_width(p, n);
  int64_t by = axis == p->lane, next = p->outer >= 0 && axis == p->outer;
  for (int64_t begin = 0; begin < n; begin += width, first += next) {
    int64_t *at = to->i + begin, some = n - begin < width ? n - begin : width;
    for (int64_t l = 0; l < some; l++) at[l] = first + by * l;
  }
}

/* Constants and sizes are written once for all strips of a run: their registers are nobody
** else's. */
strip *registers_of(const loops *p, int64_t more) {
  strip *R = ek_workspace_alloc((p->c->n_registers + more) * (int64_t)sizeof(strip));
  const int64_t *row = p->c->instructions;
  for (int64_t k = 0; k < p->c->n_instructions && R != NULL; k++, row += 6) {
    if (row[0] == O_CONST) fill(&R[row[2]], row[1], row[3], STRIP);
    if (row[0] == O_SIZE) fill(&R[row[2]], K_INT, p->r->sizes[row[3]], STRIP);
  }
  return R;
}

void run_code(const loops *p, const int64_t *at, int64_t all, strip *R) {
  const int64_t *row = p->c->instructions;
  for (int64_t k = 0; k < p->c->n_instructions; k++, row += 6) {
    int64_t n = p->is_single[k] ? 1 : all;
    switch (row[0]) {
      case O_CONST:
      case O_SIZE: break;
      case O_AXIS: run_axis(p, row[3], at[row[3]], n, &R[row[2]]); break;
      case O_LOAD: run_load(p, row, at, p->is_near[k], n, R); break;
      default: step(row, R, n);
    }
  }
}

/* Loops ---------------------------------------------------------------------------------------- */

int read_loops(loops *p, const run *r, const stage *s, const code *c) {
  p->r = r;
  p->c = c;
  p->n_axes = (int32_t)(s->n_axes + s->n_reduced);
  p->n_spatial = (int32_t)s->n_axes;
  p->lane = p->outer = -1;
  p->length = STRIP;
  p->n_results = c == &s->codes[0] ? s->n_results : 1;
  for (int32_t a = 0; a < p->n_axes; a++) p->extents[a] = r->sizes[s->extents[a]];
  for (int64_t k = 0; k < s->n_results && s->kind != CHECK; k++) {
    const int64_t *steps = s->results + k * (s->n_axes + 2) + 1;
    p->out_offsets[k] = r->sizes[steps[s->n_axes]];
    for (int32_t a = 0; a < p->n_axes; a++) {
      p->out_steps[k][a] = a < p->n_spatial ? r->sizes[steps[a]] : 0;
    }
  }
  p->loads = ek_workspace_alloc((c->n_loads + 1) * (int64_t)sizeof *p->loads);
  for (int64_t k = 0; k < c->n_loads && p->loads != NULL; k++) {
    const int64_t *row = c->loads + k * (p->n_axes + 3);
    load *to = &p->loads[k];
    to->buffer = row[0];
    to->is_guarded = row[1] != 0;
    to->type = r->types[row[0]];
    to->elements = r->elements[row[0]];
    for (int32_t a = 0; a < p->n_axes; a++) to->steps[a] = r->sizes[row[2 + a]];
    to->offset = r->sizes[row[2 + p->n_axes]];
  }
  return p->loads == NULL ? -1 : 0;
}

static bool names_axis(const code *c, int64_t axis) {
  for (int64_t k = 0; k < c->n_instructions; k++) {
    const int64_t *row = c->instructions + 6 * k;
    if (row[0] == O_AXIS && row[3] == axis) return true;
  }
  return false;
}

/* Two neighbouring axes are one of their product where every access steps over them as over one:
** outer step = inner step * inner extent. Longer strips cost fewer turns of the interpreter. */
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

void merge_axes(loops *p, const stage *s, int32_t first, int32_t end) {
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

/* Whether a load has one element for a whole strip. */
static bool is_lane_invariant(const loops *p, const load *from) {
  return p->lane >= 0 && from->steps[p->lane] == 0 &&
         (p->outer < 0 || from->steps[p->outer] == 0);
}

void find_same(loops *p) {
  int32_t writer[MAX_REGISTERS];
  const int64_t *row = p->c->instructions;
  for (int64_t k = 0; k < p->c->n_instructions; k++, row += 6) {
    int first = row[0] == O_LOAD ? 4 : 3, n = row[0] == O_LOAD ? row[4] >= 0 : operands_of(row);
    bool is_same = true;
    for (int i = 0; i < n; i++) is_same = is_same && p->is_same[writer[row[first + i]]];
    p->is_near[k] = row[0] == O_LOAD && is_same;
    if (row[0] == O_AXIS) is_same = row[3] != p->lane && row[3] != p->outer;
    if (row[0] == O_LOAD) is_same = is_same && is_lane_invariant(p, &p->loads[row[3]]);
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

/* Returns the number of loads that are not contiguous along an axis. */
static int64_t count_strided_loads(const loops *p, int32_t axis) {
  int64_t n = 0;
  for (int64_t k = 0; k < p->c->n_loads; k++) {
    int64_t by = p->loads[k].steps[axis];
    n += by != 0 && by != 1;
  }
  return n;
}

/* The axis that strips lie along: the innermost of those that are longer than 1, unless that is
** short and another one, of a sum a reduced one, is not; the reduced one too where elements lie side
** by side along it alone. */
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
  if (p->extents[reduced] >= VECTOR &&
      count_strided_loads(p, spatial) > count_strided_loads(p, reduced)) return reduced;
  return p->extents[spatial] < VECTOR && p->extents[reduced] > p->extents[spatial] ? reduced
                                                                                   : spatial;
}

void choose_outer(loops *p, int32_t first) {
  if (p->lane >= 0 && p->extents[p->lane] > STRIP) { /* strips that differ little */
    int64_t strips = (p->extents[p->lane] + STRIP - 1) / STRIP;
    p->length = ((p->extents[p->lane] + strips - 1) / strips + VECTOR - 1) / VECTOR * VECTOR;
  }
  if (p->lane < 0 || p->extents[p->lane] > STRIP / 2) return;
  int32_t outer = p->lane - 1;
  while (outer >= first && p->extents[outer] == 1) outer--;
  if (outer < first || p->extents[p->lane] == 0) return;
  p->outer = outer;
  p->per_strip = STRIP / p->extents[p->lane];
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

static int64_t kind_of(int32_t type) {
  switch (type) {
    case E_F32: case E_F16: case E_BF16: return K_F32;
    case E_F64: return K_F64;
    default: return K_INT;
  }
}

/* Initialises a strip with the identity element of a reducer. */
static void init_sum(strip *to, int64_t reducer, int32_t type, int64_t n) {
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
  if (kind == K_INT && type != E_I64) wrap_strip(to, to, type, n);
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
  terms t;                     /* of a sum whose terms lie evenly */
  int64_t strips;              /* along the axes that strips lie along, where those are spatial */
} work;

/* Keeps what a strip that begins at 'at' has for a result. */
static void keep(const work *w, int64_t result, const int64_t *at, int64_t n, const strip *from) {
  const loops *p = &w->p;
  int64_t buffer = w->s->results[result * (w->s->n_axes + 2)];
  int64_t by = p->lane < 0 ? 0 : p->out_steps[result][p->lane], first = out_at(p, result, at);
  int64_t width = lane_width(p, n), next = p->outer < 0 ? 0 : p->out_steps[result][p->outer];
  if (next == by * width) width = n;
  for (int64_t begin = 0; begin < n; begin += width, first += next) {
    store_strip(p->r->types[buffer], p->r->data[buffer], first, by, width, begin, from);
  }
}

static int map_some(void *context, int64_t begin, int64_t end) {
  const work *w = context;
  const loops *p = &w->p;
  strip *R = registers_of(p, 1);
  if (R == NULL) return -1;
  int64_t at[MAX_AXES] = {0};
  for (int64_t i = begin; i < end; i++) {
    place(p, i / w->strips, 0, p->n_spatial, at);
    int64_t n = begin_strip(p, i % w->strips, at);
    run_code(p, at, n, R);
    for (int64_t k = 0; k < w->s->n_results; k++) keep(w, k, at, n, &R[p->c->results[k]]);
  }
  ek_workspace_free(R);
  return 0;
}

/* Reduce with strips along a result axis: one accumulator strip per output strip. */
static int reduce_some(void *context, int64_t begin, int64_t end) {
  const work *w = context;
  const loops *p = &w->p;
  int32_t type = p->r->types[w->s->results[0]];
  int64_t at[MAX_AXES] = {0}, turns = count(p, p->n_spatial, p->n_axes);
  strip *R = registers_of(p, 1), *sum = R == NULL ? NULL : R + p->c->n_registers;
  if (R == NULL) return -1;
  for (int64_t i = begin; i < end; i++) {
    place(p, i / w->strips, 0, p->n_spatial, at);
    int64_t n = begin_strip(p, i % w->strips, at);
    bool is_done = w->t.at[0] != NULL && sum_terms(p, &w->t, w->s->reducer, at, n, sum);
    if (!is_done) init_sum(sum, w->s->reducer, type, n);
    for (int64_t turn = 0; turn < turns && !is_done; turn++) {
      place(p, turn, p->n_spatial, p->n_axes, at);
      run_code(p, at, n, R);
      combine(sum, &R[p->c->results[0]], w->s->reducer, type, n);
    }
    keep(w, 0, at, n, sum);
  }
  ek_workspace_free(R);
  return 0;
}

/* Reduce with strips along a reduced axis, whose lanes are combined at the end. */
static int reduce_across(void *context, int64_t begin, int64_t end) {
  const work *w = context;
  const loops *p = &w->p;
  int64_t buffer = w->s->results[0], length = p->extents[p->lane];
  int32_t type = p->r->types[buffer];
  int64_t at[MAX_AXES] = {0}, turns = count(p, p->n_spatial, p->n_axes);
  int64_t n = length < 1 ? 1 : length < STRIP ? length : STRIP; /* a sum of nothing is one lane too */
  int64_t strips = strips_of(p);
  strip *R = registers_of(p, 1), *sum = R == NULL ? NULL : R + p->c->n_registers;
  if (R == NULL) return -1;
  for (int64_t i = begin; i < end; i++) {
    place(p, i, 0, p->n_spatial, at);
    init_sum(sum, w->s->reducer, type, n);
    for (int64_t turn = 0; turn < turns; turn++) {
      place(p, turn, p->n_spatial, p->n_axes, at);
      for (int64_t k = 0; k < strips; k++) {
        int64_t some = begin_strip(p, k, at);
        run_code(p, at, some, R);
        combine(sum, &R[p->c->results[0]], w->s->reducer, type, some);
      }
    }
    at[p->lane] = 0;
    fold(sum, w->s->reducer, type, n);
    store_strip(type, p->r->data[buffer], out_at(p, 0, at), 0, 1, 0, sum);
  }
  ek_workspace_free(R);
  return 0;
}

static int64_t grain(const loops *p, int64_t work_of_one) {
  int64_t instructions = p->c->n_instructions + 1;
  return 1 + 65536 / (1 + work_of_one * instructions);
}

static int run_loops(work *w, const stage *s) {
  loops *p = &w->p;
  merge_axes(p, s, 0, p->n_spatial);
  if (s->kind == REDUCE) merge_axes(p, s, p->n_spatial, p->n_axes);
  if (p->n_axes > 0) p->lane = lane_of(p);
  bool is_across = s->kind == REDUCE && p->lane >= p->n_spatial;
  if (!is_across) choose_outer(p, 0);
  find_same(p);
  w->strips = is_across ? 1 : strips_of(p);
  int64_t length = p->lane < 0 ? 1 : p->extents[p->lane];
  int64_t width = p->outer >= 0 ? length * p->per_strip : length < STRIP ? length : STRIP;
  int64_t n = count(p, 0, p->n_spatial) * w->strips, turns = count(p, p->n_spatial, p->n_axes);
  if (s->kind == MAP) return ek_parallel_for(map_some, w, n, grain(p, width));
  if (is_across) return ek_parallel_for(reduce_across, w, n, grain(p, turns * length));
  if (!find_terms(p, s->reducer, &w->t)) w->t.at[0] = NULL;
  int status = ek_parallel_for(reduce_some, w, n, grain(p, turns * width));
  ek_workspace_free(w->t.at[0]);
  return status;
}

static int run_plain(const run *r, const stage *s) {
  work w = {.s = s};
  int status = read_loops(&w.p, r, s, &s->codes[0]);
  if (status == 0) status = run_loops(&w, s);
  ek_workspace_free(w.p.loads);
  return status;
}

static int fail(const loops *p, const stage *s, const strip *R, int64_t lane) {
  int64_t values[MAX_RESULTS] = {0};
  for (int64_t k = 1; k < s->n_results; k++) values[k - 1] = R[p->c->results[k]].i[lane];
  return ek_kernel_error_values(s->error, s->format, values);
}

static int check_all(loops *p, const stage *s, strip *R) {
  if (p->n_axes > 0) p->lane = lane_of(p);
  choose_outer(p, 0);
  find_same(p);
  int64_t at[MAX_AXES] = {0}, strips = strips_of(p), n = count(p, 0, p->n_axes) * strips;
  for (int64_t i = 0; i < n; i++) {
    place(p, i / strips, 0, p->n_axes, at);
    int64_t all = begin_strip(p, i % strips, at), l = 0;
    run_code(p, at, all, R);
    while (l < all && R[p->c->results[0]].i[l] != 0) l++;
    if (l < all) return fail(p, s, R, l);
  }
  return 0;
}

static int run_check(const run *r, const stage *s) {
  loops p;
  int status = read_loops(&p, r, s, &s->codes[0]);
  strip *R = status == 0 ? registers_of(&p, 1) : NULL;
  status = R == NULL ? -1 : check_all(&p, s, R);
  ek_workspace_free(R);
  ek_workspace_free(p.loads);
  return status;
}

int JOIN(ek_general_, CLASS)(const run *r, const stage *s) {
  switch (s->kind) {
    case PRODUCT: return run_product(r, s);
    case CHECK: return run_check(r, s);
    default: return run_plain(r, s);
  }
}
