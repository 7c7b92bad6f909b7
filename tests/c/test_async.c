/* Independent kernels at the same time: random programs over overlapping bytes give what they give
** one kernel after another, errors too. Under the thread sanitizer, that no two touch the same. */
#include <time.h>

#include "program.h"

#include "ek_vm.h"

enum {
#define EK_OPCODE(name, text, format, operands, properties, meaning) name = EK_OP_##name,
#include "vm_opcodes.def"
#undef EK_OPCODE
};

enum {
  CELLS = 96,                  /* int64 in the arena */
  WIDTH = 8,                   /* of a tensor */
  TENSORS = 10,
  STEPS = 60,
  ROUNDS = 40,
  ARENA = 3, FIRST = 4, READ = FIRST + TENSORS, ZERO, N_REGISTERS
};

enum { MIX, MIX_WIDE, HOST, FAIL, CLEAR, PRIMITIVES };

/* Kernels -------------------------------------------------------------------------------------- */

static uint32_t calls;         /* atomic */

/* A time that differs from call to call, so that orders do. */
static void dally(void) {
  struct timespec start, time;
  uint32_t number = __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED) * UINT32_C(2654435761);
  int64_t nanoseconds = (number >> 24) * 60;
  clock_gettime(CLOCK_MONOTONIC, &start);
  do {
    clock_gettime(CLOCK_MONOTONIC, &time);
  } while ((time.tv_sec - start.tv_sec) * 1000000000 + time.tv_nsec - start.tv_nsec < nanoseconds);
}

static int64_t *cells(const ek_value *value) { return ek_dltensor_data(ek_value_tensor(value)); }

static int mix_some(void *context, int64_t begin, int64_t end) {
  const ek_value *args = context;
  for (int64_t i = begin; i < end; i++) {
    uint64_t a = (uint64_t)cells(&args[0])[i], b = (uint64_t)cells(&args[1])[WIDTH - 1 - i];
    ((int64_t **)args[3].v.ptr)[0][i] = (int64_t)(3 * a + b + (uint64_t)i + 1);
  }
  return 0;
}

/* out[i] = 3 a[i] + b[WIDTH - 1 - i] + i + 1, where 'out' may share bytes with a and b. */
static int mix_by(int64_t grain, const ek_value *args) {
  int64_t made[WIDTH], *to = made;
  ek_value operands[4] = {args[0], args[1], args[2], ek_value_none()};
  operands[3].v.ptr = &to;
  dally();
  if (ek_parallel_for(mix_some, operands, WIDTH, grain) != 0) return -1;
  memcpy(cells(&args[2]), made, sizeof made);
  return 0;
}

static int mix(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self, (void)nargs, (void)ret;
  return mix_by(WIDTH, args);
}

static int mix_wide(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self, (void)nargs, (void)ret;
  return mix_by(1, args);
}

/* Fails with its number, unless what it reads says otherwise. */
static int fail(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self, (void)nargs, (void)ret;
  dally();
  int64_t seen = cells(&args[0])[0];
  if (seen % 3 == 0) return ek_error("ValueError", "kernel %lld", (long long)args[1].v.i64);
  cells(&args[2])[0] = seen;
  return 0;
}

static int clear(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self, (void)nargs, (void)ret;
  for (int i = 0; i < CELLS; i++) cells(&args[0])[i] = i;
  return 0;
}

static const struct {
  const char *name;
  ek_packed call;
} primitives[PRIMITIVES] = {{"async.mix", mix}, {"async.mix_wide", mix_wide}, {"async.host", mix},
                            {"async.fail", fail}, {"async.clear", clear}};

static void register_all(void) {
  for (int i = 0; i < PRIMITIVES; i++) {
    ek_object *made;
    CHECK(ek_function_new(NULL, primitives[i].call, NULL, &made) == 0);
    CHECK(ek_registry_set(primitives[i].name, made, 1) == 0);
    ek_object_release(made);
  }
}

/* Programs ------------------------------------------------------------------------------------- */

static _Thread_local uint32_t seed;

static int32_t below(int32_t n) {
  seed = seed * UINT32_C(1664525) + UINT32_C(1013904223);
  return (int32_t)((seed >> 8) % (uint32_t)n);
}

typedef struct code {
  int32_t words[4096];
  int32_t n;
} code;

static void put(code *c, const int32_t *words, int32_t n) {
  CHECK(c->n + n <= 4096);
  memcpy(c->words + c->n, words, (size_t)n * sizeof *words);
  c->n += n;
}

#define PUT(c, ...) put(c, WORDS(__VA_ARGS__))

static int32_t any(void) { return FIRST + below(TENSORS); }

static void put_tensor(code *c, int32_t at, int32_t n_cells, int32_t first) {
  PUT(c, AllocTensor, at, 2, 8 * first, 0, EK_DTYPE_INT, 64, 1, 1, n_cells, 0);
}

static void put_step(code *c, int32_t number, bool fails) {
  int32_t kind = below(20);
  if (kind < 12) PUT(c, InvokePacked, kind < 9 ? MIX : MIX_WIDE, 3, 1, any(), any(), any());
  else if (kind < 13) PUT(c, InvokePacked, HOST, 3, 1, any(), any(), any());
  else if (kind < 15) put_tensor(c, any(), WIDTH, below(CELLS - WIDTH + 1));
  else if (kind < 17 && fails) {
    PUT(c, LoadConsti, 1, number, 0, InvokePacked, FAIL, 3, 1, any(), 1, any());
  } else if (kind < 18) {
    PUT(c, ReadElement, READ, any(), 0, If, READ, ZERO, 1, 2);
    PUT(c, InvokePacked, MIX, 3, 1, any(), any(), any());
  } else {
    PUT(c, InvokePacked, MIX, 3, 1, ARENA, any(), any());
  }
}

static void put_program(code *c, bool fails) {
  PUT(c, LoadConsti, 1, 8 * CELLS, 0, AllocStorage, 2, 1, 0, 64, 0, LoadConsti, ZERO, 0, 0);
  put_tensor(c, ARENA, CELLS, 0);
  PUT(c, InvokePacked, CLEAR, 1, 1, ARENA);
  for (int i = 0; i < TENSORS; i++) put_tensor(c, FIRST + i, WIDTH, below(CELLS - WIDTH + 1));
  for (int i = 0; i < STEPS; i++) put_step(c, i, fails);
  PUT(c, Ret, ARENA);
}

static ek_vm *machine(bool fails, bool is_async) {
  code c = {.n = 0};
  put_program(&c, fails);
  program p = {.functions = {{"main", 0, N_REGISTERS, c.words, c.n}}};
  for (int i = 0; i < PRIMITIVES; i++) p.primitives[i] = primitives[i].name;
  ek_vm *vm = (ek_vm *)(void *)machine_of(&p);
  for (int i = 0; i < PRIMITIVES; i++) vm->executable->is_kernel[i] = i != HOST;
  if (is_async) CHECK(ek_async_set(vm, true) == 0);
  return vm;
}

/* Running -------------------------------------------------------------------------------------- */

typedef struct outcome {
  int64_t cells[CELLS];
  char error[64];
} outcome;

static outcome run(ek_vm *vm) {
  outcome found = {{0}, ""};
  ek_value result = ek_value_none();
  if (ek_vm_invoke(&vm->base, 0, NULL, 0, &result) == 0) {
    memcpy(found.cells, cells(&result), sizeof found.cells);
    ek_value_release(&result);
    return found;
  }
  ek_error_object *error = (ek_error_object *)(void *)ek_error_take();
  CHECK(error != NULL && error->message.size < sizeof found.error);
  memcpy(found.error, error->message.data, error->message.size);
  ek_object_release(&error->base);
  return found;
}

static void random_programs(bool fails) {
  int failed = 0;
  for (uint32_t i = 0; i < ROUNDS; i++) {
    seed = i;
    ek_vm *vm = machine(fails, false);
    seed = i;
    ek_vm *async = machine(fails, true);
    outcome expected = run(vm);
    failed += expected.error[0] != '\0';
    for (int k = 0; k < 4; k++) {
      outcome got = run(async);
      CHECK(memcmp(&got, &expected, sizeof got) == 0);
    }
    ek_object_release(&vm->base);
    ek_object_release(&async->base);
  }
  CHECK(fails ? failed > ROUNDS / 4 && failed < ROUNDS : failed == 0);
}

static void run_failing(void *context) {
  (void)context;
  random_programs(true);
}

/* One has the workers at a time, the other runs as it would alone on one thread. */
static void two_callers(void) {
  ek_thread other;
  CHECK(ek_thread_start(&other, run_failing, NULL, -1) == 0);
  random_programs(false);
  ek_thread_join(other);
}

int main(void) {
  register_all();
  for (int threads = 1; threads <= 4; threads++) {
    CHECK(ek_num_threads(threads) == threads);
    random_programs(false);
    random_programs(true);
  }
  CHECK(ek_num_threads(3) == 3);
  two_callers();
  return 0;
}
