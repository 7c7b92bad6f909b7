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
  int state;          /* 0 runs 1 waits 2 ended */
  unsigned calls;     /* that all threads of its warp make together */
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
    size_t waiting = 0;
    ended = 0;
    for (fibre_now = 0; fibre_now < n; fibre_now++) {
      fibre &f = fibres[fibre_now];
      if (f.state != 2) {
        threadIdx = f.index;
        f.state = 0;
        swapcontext(&fibre_home, &f.context);
      }
      waiting += f.state == 1;
      ended += f.state == 2;
    }
    if (waiting != 0 && ended != 0) return "a barrier that not all threads of a block reach";
    for (size_t i = 0; i < n; i++) {
      if (fibres[i].calls != fibres[i / 32 * 32].calls) return "a call that not all threads of a warp make";
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
