/* CUDA C on a processor: the threads of a block are fibres of one thread of the system, which take
** turns at barriers. Enough for what Ekiden prints; a barrier that not all threads of a block reach
** is an error. Compiled as C++ before the text of a kernel. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <vector>

#define EK_DEVICE static inline
#define EK_SHARED alignas(32) static
#define EK_TABLE static const
#define __global__

struct fibre_index { unsigned x, y, z; };
static fibre_index threadIdx, blockIdx, blockDim, gridDim;

struct fibre {
  ucontext_t context;
  fibre_index index;
  char *stack;
  int state;          /* 0 runs 1 waits 2 ended 3 waits for its warp */
  unsigned calls;     /* that all threads of its warp make together */
  unsigned way, mask, lane, width;  /* of a shuffle */
  uint32_t given, taken;
};
static std::vector<fibre> fibres;
static ucontext_t fibre_home;
static size_t fibre_now;
static void (*fibre_body)(void **);
static void **fibre_args;

static void __syncthreads() {
  fibres[fibre_now].state = 1;
  swapcontext(&fibres[fibre_now].context, &fibre_home);
}

static int atomicMin(int *place, int value) {
  int old = *place;
  if (value < old) *place = value;
  return old;
}

/* Matrices that a warp holds together: its first thread has them, and does what all do. */
static bool fibre_leads() {
  fibres[fibre_now].calls++;
  return fibre_now % 32 == 0;
}

static const char *fibre_wrong;

/* Words that threads of a warp hand each other: each waits until all of its mask have come. What one
** takes from a thread that has not is no number, so that it shows where it is used. */
enum { FIBRE_IDX, FIBRE_UP, FIBRE_DOWN };

template <typename T> static T fibre_shuffle(unsigned way, unsigned mask, T value, int lane, int width) {
  static_assert(sizeof(T) == 4, "threads of a warp exchange words");
  fibre &f = fibres[fibre_now];
  f.way = way, f.mask = mask, f.lane = (unsigned)lane, f.width = (unsigned)width, f.state = 3;
  memcpy(&f.given, &value, 4);
  swapcontext(&f.context, &fibre_home);
  memcpy(&value, &fibres[fibre_now].taken, 4);
  return value;
}

#define FIBRE_SHUFFLES(T)                                                                          \
  static T __shfl_sync(unsigned mask, T x, int lane, int width) {                                  \
    return fibre_shuffle(FIBRE_IDX, mask, x, lane, width);                                         \
  }                                                                                                \
  static T __shfl_up_sync(unsigned mask, T x, int by, int width) {                                 \
    return fibre_shuffle(FIBRE_UP, mask, x, by, width);                                            \
  }                                                                                                \
  static T __shfl_down_sync(unsigned mask, T x, int by, int width) {                               \
    return fibre_shuffle(FIBRE_DOWN, mask, x, by, width);                                          \
  }
FIBRE_SHUFFLES(float)
FIBRE_SHUFFLES(int)
FIBRE_SHUFFLES(unsigned)

static unsigned __activemask() {
  unsigned mask = 0;
  size_t first = fibre_now / 32 * 32;
  for (size_t i = first; i < fibres.size() && i < first + 32; i++)
    mask |= (unsigned)(fibres[i].state != 2) << (i - first);
  return mask;
}

/* The shuffle that a thread waits in, for all of its mask: NULL, or what is wrong. */
static const char *fibre_exchange(size_t number) {
  const fibre call = fibres[number];
  size_t first = number / 32 * 32;
  if ((call.mask >> (number - first) & 1) == 0) return "a shuffle by a thread that its mask has not";
  for (unsigned i = 0; i < 32; i++) {
    if ((call.mask >> i & 1) == 0) continue;
    if (first + i >= fibres.size() || fibres[first + i].state != 3)
      return "a shuffle that not all threads of its mask make";
    const fibre &f = fibres[first + i];
    if (f.mask != call.mask || f.way != call.way || f.width != call.width)
      return "shuffles of a warp that differ";
  }
  for (unsigned i = 0; i < 32; i++) {
    if ((call.mask >> i & 1) == 0) continue;
    fibre &f = fibres[first + i];
    unsigned begin = i / f.width * f.width, from = i;
    if (f.way == FIBRE_IDX) from = begin + f.lane % f.width;
    if (f.way == FIBRE_UP && i - begin >= f.lane) from = i - f.lane;
    if (f.way == FIBRE_DOWN && i - begin + f.lane < f.width) from = i + f.lane;
    f.taken = call.mask >> from & 1 ? fibres[first + from].given : 0x7fc0bad0u;
  }
  for (unsigned i = 0; i < 32; i++)
    if (call.mask >> i & 1) fibres[first + i].state = 0;
  return NULL;
}

static void fibre_check(const void *place, int64_t stride, size_t size) {
  bool is_aligned = (uintptr_t)place % (size == 1 ? 16 : 32) == 0 && stride * (int64_t)size % 16 == 0;
  if (!is_aligned) fibre_wrong = "a matrix that is not aligned";
}

template <typename T> struct fibre_matrix { T at[16][16]; };

template <typename T, typename M>
static void fibre_load(fibre_matrix<T> *d, const M *p, int64_t stride, bool by_rows, T (*value)(M)) {
  if (!fibre_leads()) return;
  fibre_check(p, stride, sizeof *p);
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 16; j++) d->at[i][j] = value(by_rows ? p[i * stride + j] : p[j * stride + i]);
}

template <typename T> static void fibre_store(const fibre_matrix<T> *d, T *p, int64_t stride, bool by_rows) {
  if (!fibre_leads()) return;
  fibre_check(p, stride, sizeof *p);
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 16; j++) (by_rows ? p[i * stride + j] : p[j * stride + i]) = d->at[i][j];
}

template <typename T>
static void fibre_multiply(fibre_matrix<T> *d, const fibre_matrix<T> *a, const fibre_matrix<T> *b,
                           const fibre_matrix<T> *c) {
  if (!fibre_leads()) return;
  fibre_matrix<T> sum = *c;
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 16; j++)
      for (int k = 0; k < 16; k++) sum.at[i][j] += a->at[i][k] * b->at[k][j];
  *d = sum;
}

static float fibre_f16(uint16_t x) {
  _Float16 half;
  memcpy(&half, &x, sizeof half);
  return (float)half;
}

static float fibre_bf16(uint16_t x) {
  uint32_t word = (uint32_t)x << 16;
  float value;
  memcpy(&value, &word, sizeof value);
  return value;
}

static int32_t fibre_s8(int8_t x) { return x; }
static int32_t fibre_u8(uint8_t x) { return x; }

/* Products of four bytes. */
#define FIBRE_DOT(ways, left, right)                                              \
  static int32_t ek_dot4_##ways##_int32(int32_t sum, int32_t x, int32_t y) {      \
    for (int n = 0; n < 32; n += 8)                                               \
      sum += (int32_t)(left)((uint32_t)x >> n) * (right)((uint32_t)y >> n);       \
    return sum;                                                                   \
  }
FIBRE_DOT(s8s8, int8_t, int8_t)
FIBRE_DOT(u8u8, uint8_t, uint8_t)
FIBRE_DOT(u8s8, uint8_t, int8_t)

#define EK_MATRICES
#define FIBRE_LOAD(which, word, type, kind, layout)                                               \
  static void ek_load_##which##_##word##_##layout(ek_factor_##word *d, const kind *p, int64_t n) { \
    fibre_load<type, kind>(d, p, n, #layout[0] == 'r', fibre_##word);                              \
  }
#define FIBRE_MULTIPLY(word, total, ways)                                                         \
  static void ek_multiply_##word##_##ways(ek_sums_##total *d, const ek_factor_##word *a,          \
                                          const ek_factor_##word *b, const ek_sums_##total *c) {   \
    fibre_multiply(d, a, b, c);                                                                    \
  }
#define FIBRE_FACTOR(word, type, kind, total)                                                     \
  typedef fibre_matrix<type> ek_factor_##word;                                                     \
  FIBRE_LOAD(a, word, type, kind, row) FIBRE_LOAD(a, word, type, kind, col)                        \
  FIBRE_LOAD(b, word, type, kind, row) FIBRE_LOAD(b, word, type, kind, col)                        \
  FIBRE_MULTIPLY(word, total, row_row) FIBRE_MULTIPLY(word, total, row_col)                        \
  FIBRE_MULTIPLY(word, total, col_row) FIBRE_MULTIPLY(word, total, col_col)
#define FIBRE_SUMS(total, type)                                                                   \
  typedef fibre_matrix<type> ek_sums_##total;                                                      \
  static void ek_fill_##total(ek_sums_##total *d, type x) {                                        \
    for (int i = 0; i < 256; i++) d->at[i / 16][i % 16] = x;                                       \
  }                                                                                                \
  static void ek_store_##total##_row(const ek_sums_##total *d, type *p, int64_t n) {               \
    fibre_store(d, p, n, true);                                                                    \
  }                                                                                                \
  static void ek_store_##total##_col(const ek_sums_##total *d, type *p, int64_t n) {               \
    fibre_store(d, p, n, false);                                                                   \
  }
FIBRE_SUMS(f32, float)
FIBRE_SUMS(s32, int32_t)
FIBRE_FACTOR(f16, float, uint16_t, f32)
FIBRE_FACTOR(bf16, float, uint16_t, f32)
FIBRE_FACTOR(s8, int32_t, int8_t, s32)
FIBRE_FACTOR(u8, int32_t, uint8_t, s32)

/* Neighbours as one access, which must be aligned. */
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
#define EK_NEAR
template <typename W> static void fibre_check_near(const void *place) {
  if ((uintptr_t)place % sizeof(W) != 0) fibre_wrong = "an access of neighbours that is not aligned";
}
template <typename W, int N, typename T> static void ek_load_near(T (&to)[N], const T *from, bool near) {
  if (near) fibre_check_near<W>(from);
  memcpy(to, from, sizeof to);
}
template <typename W, int N, typename T> static void ek_store_near(T *to, const T (&from)[N], bool near) {
  if (near) fibre_check_near<W>(to);
  memcpy(to, from, sizeof from);
}

static void fibre_main() {
  fibre_body(fibre_args);
  fibres[fibre_now].state = 2;
  swapcontext(&fibres[fibre_now].context, &fibre_home);
}

/* One block: NULL, or what is wrong. */
static const char *fibre_block() {
  size_t n = fibres.size(), ended = 0;
  for (size_t i = 0; i < n; i++) {
    getcontext(&fibres[i].context);
    fibres[i].context.uc_stack.ss_sp = fibres[i].stack;
    fibres[i].context.uc_stack.ss_size = 1 << 17;
    fibres[i].context.uc_link = &fibre_home;
    fibres[i].state = 0;
    fibres[i].calls = 0;
    makecontext(&fibres[i].context, fibre_main, 0);
  }
  while (ended < n) {
    size_t waiting = 0, exchanging = 0;
    ended = 0;
    for (fibre_now = 0; fibre_now < n; fibre_now++) {
      fibre &f = fibres[fibre_now];
      if (f.state == 0) {
        threadIdx = f.index;
        swapcontext(&fibre_home, &f.context);
      }
      waiting += f.state == 1;
      ended += f.state == 2;
      exchanging += f.state == 3;
    }
    for (size_t i = 0; i < n; i++) {  /* none runs: who is not here does not come */
      const char *wrong = fibres[i].state == 3 ? fibre_exchange(i) : NULL;
      if (wrong != NULL) return wrong;
    }
    if (exchanging != 0) continue;
    if (waiting != 0 && ended != 0) return "a barrier that not all threads of a block reach";
    for (size_t i = 0; i < n; i++) {
      if (fibres[i].calls != fibres[i / 32 * 32].calls) return "a call that not all threads of a warp make";
      if (fibres[i].state == 1) fibres[i].state = 0;
    }
  }
  return fibre_wrong;
}

struct fibre_any {
  void *p;
  template <typename T> operator T *() const { return (T *)p; }
  operator int64_t() const { return (int64_t)p; }
};

extern "C" const char *fibre_launch(void (*body)(void **), const int64_t *grid, void **args) {
  const char *wrong = fibre_wrong = NULL;
  gridDim = {(unsigned)grid[0], (unsigned)grid[1], (unsigned)grid[2]};
  blockDim = {(unsigned)grid[3], (unsigned)grid[4], (unsigned)grid[5]};
  fibre_body = body;
  fibre_args = args;
  fibres.resize((size_t)(grid[3] * grid[4] * grid[5]));
  for (size_t i = 0; i < fibres.size(); i++) {
    fibres[i].stack = (char *)malloc(1 << 17);
    fibres[i].index = {(unsigned)(i % blockDim.x), (unsigned)(i / blockDim.x % blockDim.y),
                       (unsigned)(i / blockDim.x / blockDim.y)};
  }
  for (unsigned z = 0; z < gridDim.z && !wrong; z++)
    for (unsigned y = 0; y < gridDim.y && !wrong; y++)
      for (unsigned x = 0; x < gridDim.x && !wrong; x++) {
        blockIdx = {x, y, z};
        wrong = fibre_block();
      }
  for (fibre &f : fibres) free(f.stack);
  return wrong;
}
