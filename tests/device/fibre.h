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
#define EK_SHARED static
#define EK_TABLE static const
#define __global__

struct fibre_index { unsigned x, y, z; };
static fibre_index threadIdx, blockIdx, blockDim, gridDim;

struct fibre { ucontext_t context; fibre_index index; char *stack; int state; /* 0 runs 1 waits 2 ended */ };
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
  }
  return NULL;
}

struct fibre_any {
  void *p;
  template <typename T> operator T *() const { return (T *)p; }
  operator int64_t() const { return (int64_t)p; }
};

extern "C" const char *fibre_launch(void (*body)(void **), const int64_t *grid, void **args) {
  const char *wrong = NULL;
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
