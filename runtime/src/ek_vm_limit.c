/* Limits of a run: a number of instructions, a time, or an interrupt by another thread.
**
** Limited runs use the stepping loop, which checks before each instruction; the fast loop and
** native code have no checks, so that limits cost unlimited runs nothing. Natively compiled
** functions then run as bytecode, kernels as usual: the clock is read before each call and at
** intervals. */
#include <stdio.h>

#include "ek_vm_step.h"

enum {
  BETWEEN = 64,                /* instructions between two looks at the clock */
  SKIPPED_POLLS = 15,
  CHECK_INTERVAL_NS = 30000000
};

static int64_t now(void) { return ek_now(false); }

static int64_t first_of(int64_t own, const int64_t *shared) {
  return own != 0 ? own : __atomic_load_n(shared, __ATOMIC_RELAXED);
}

bool ek_vm_has_limit(const ek_vm *vm, ek_limit *out) {
  const ek_limit *shared = &vm->executable->limit;
  out->steps = first_of(vm->limit.steps, &shared->steps);
  if (out->steps == 0) out->steps = vm->max_steps;
  out->nanoseconds = first_of(vm->limit.nanoseconds, &shared->nanoseconds);
  return out->steps != 0 || out->nanoseconds != 0;
}

/* Read once, when the run begins: a limit that is set meanwhile is that of the next run. */
ek_vm_guard ek_vm_guard_of(const ek_vm *vm) {
  ek_vm_guard guard = {.end = INT64_MAX};
  int64_t start = ek_vm_has_limit(vm, &guard.limit) ? now() : 0;
  if (guard.limit.nanoseconds != 0 && guard.limit.nanoseconds < INT64_MAX - start) {
    guard.end = start + guard.limit.nanoseconds;
  }
  return guard;
}

static int reached(const ek_vm *vm, const char *limit) {
  ek_bytes name = vm->function->name;
  return ek_error("RunLimitError", "run: its limit of %s is reached, in '%.*s'", limit,
                  ek_shown(name, 200), name.data);
}

/* An instruction that may be long is preceded by a look at the clock; a loop without any, by one in
** BETWEEN. A kernel that has begun is not stopped. */
int ek_vm_guard_check(ek_vm_guard *guard, const ek_vm *vm, const int32_t *pc) {
  char text[40];
  if (guard->steps++ == guard->limit.steps && guard->limit.steps != 0) {
    snprintf(text, sizeof text, "%lld steps", (long long)guard->limit.steps);
    return reached(vm, text);
  }
  if (guard->end == INT64_MAX) return 0;
  bool looks = ek_opcode_has(*pc, EK_KERNEL | EK_LONG | EK_FRAMES) || guard->steps % BETWEEN == 0;
  if (!looks || now() < guard->end) return 0;
  snprintf(text, sizeof text, "%g s", (double)guard->limit.nanoseconds * 1e-9);
  return reached(vm, text);
}

/* Interruption --------------------------------------------------------------------------------- */

static int (*interrupt_check)(void);   /* atomic */

void ek_interrupt_check_set(int (*check)(void)) {
  __atomic_store_n(&interrupt_check, check, __ATOMIC_RELEASE);
}

/* While the clock stands still, one poll in 16 reads it: what takes longer than a tick moves it, so
** that the others hide at most 15 ticks. A run shorter than the interval asks nobody, so that
** Python's lock, which others may hold for 5 ms, is taken by long runs only. */
int ek_vm_look(ek_vm *vm) {
  int64_t time = ek_now(true);
  vm->polls = time == vm->looked ? SKIPPED_POLLS : 0;
  vm->looked = time;
  if (time < vm->next_check) return 0;
  bool is_first = vm->next_check == 0;
  vm->next_check = time + CHECK_INTERVAL_NS;
  int (*check)(void) = __atomic_load_n(&interrupt_check, __ATOMIC_ACQUIRE);
  return is_first || check == NULL ? 0 : check();
}

int ek_native_poll(ek_vm *vm) { return ek_vm_poll(vm); }

/* The hook of a run that is stepped for its limit alone. */
typedef struct stepped {
  ek_vm_hook hook;
  ek_vm_guard guard;
} stepped;

static int before(ek_vm_hook *hook, ek_vm *vm, const int32_t *pc) {
  return ek_vm_guard_check(&((stepped *)(void *)hook)->guard, vm, pc);
}

static int after(ek_vm_hook *hook, ek_vm *vm, const int32_t *pc) {
  (void)hook, (void)vm, (void)pc;
  return 0;
}

int ek_vm_run_limited(ek_vm *vm) {
  stepped run = {{before, after}, ek_vm_guard_of(vm)};
  if (vm->async != NULL) return ek_async_run(vm, &run.hook);
  ek_vm_enter_bytecode(vm);
  ek_vm_stop stop = EK_VM_AT_BREAK;
  while (stop == EK_VM_AT_BREAK) stop = ek_vm_step(vm, -1, &run.hook);
  return stop == EK_VM_ENDED ? 0 : -1;
}
