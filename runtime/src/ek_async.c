/* Independent kernels of one program at the same time.
**
** The machine's thread issues: it runs the bytecode in order, but an InvokePacked that waits for
** others, or that is better done by a worker, becomes a task that holds its arguments. A task
** follows those before it that write bytes it reads or writes, or that read bytes it writes: of
** memory, not of registers, so that tensors which share bytes of an arena, views, and the iterations
** of loops need no thought of their own. All other instructions run at once, for they look at
** registers only; one that reads the elements of a tensor waits for the tasks that write it. So
** every kernel gets the operands that it gets in a sequential run, and results are bit-equal.
**
** Who runs what. A long kernel whose loops split among threads runs on all of them and by itself: that
** is no slower than two such kernels side by side, and waits for nobody. A shorter one does so when
** nothing else can run: else what its loops lose by splitting counts, and it runs on one thread,
** beside others, as do kernels that do not split. Workers are called when there is something for
** them; the issuing thread goes on, and takes part when there is more to do than workers, or when it
** is far enough ahead. What a kernel took last time says which is which, and whether a short one is
** worth a task.
**
** Functions that are no kernels of the executable may do anything, so they run when all tasks have
** ended, and by themselves. The first error in program order is the one that is reported; what comes
** before it is still run, as it might fail, and what comes after it is not. */

#include "ek_vm_step.h"

enum {
  WINDOW = 64,                 /* tasks at most: how far the issuer may be ahead */
  CHEAP = 2000,                /* nanoseconds that are not worth a task */
  LONG = 30000,                /* nanoseconds from which splitting loses little */
  PATIENCE = 1000              /* pauses before a waiting issuer yields its core */
};

typedef uint64_t set_of_tasks; /* a bit for each */

/* Bytes of memory. */
typedef struct span {
  uintptr_t begin, end;
} span;

/* A task's place in 'tasks' is its bit in every set. It goes free -> waiting -> ready -> running ->
** done -> free; the lock guards all steps but the first and the last, which are the issuer's alone:
** it fills a task before anybody sees it, and gives back what one held after its end. */
typedef struct task {
  set_of_tasks after;          /* those before it that have not ended */
  int64_t order;               /* in the program */
  int64_t started;             /* when, by now() */
  ek_value *args;              /* owned, with spans behind them */
  span *spans;                 /* what it reads, then what it writes */
  const ek_vm_function *function;
  const int32_t *pc;           /* the instruction of the function that calls it */
  int32_t primitive;
  int32_t n_args, n_spans, n_reads;
  int32_t capacity;            /* of args and of spans */
} task;

/* Last measured time of a kernel on one thread in nanoseconds, and whether its loops split. */
typedef struct kernel_cost {
  uint32_t nanoseconds;        /* atomic; 0 before it has run */
  uint32_t is_wide;            /* atomic */
} kernel_cost;

typedef struct ek_async {
  ek_vm *vm;
  kernel_cost *costs;                 /* one per primitive */
  int32_t n_threads;           /* of this run */
  int64_t n_issued;            /* instructions; this and the next three are the issuer's */
  int32_t n_live;              /* tasks that are not known to have ended */
  set_of_tasks free;           /* the others */
  uint32_t seen;               /* the count of ends at the last look */
  uint32_t ends;               /* atomic: how often a task has ended */
  ek_mutex lock;               /* guards the rest, and 'after' of live tasks */
  set_of_tasks waiting, ready, running, done;
  bool is_exclusive;           /* a kernel has all threads, or is about to */
  bool is_issuing;             /* the issuer takes no part now */
  int64_t failed;              /* atomic: order of the first that failed, or INT64_MAX */
  ek_object *error;            /* owned: its error */
  task tasks[WINDOW];
} ek_async;

static int64_t now(void) { return ek_now(false); }

/* Sets ----------------------------------------------------------------------------------------- */

static void include(set_of_tasks *set, int i) { *set |= UINT64_C(1) << i; }
static void exclude(set_of_tasks *set, int i) { *set &= ~(UINT64_C(1) << i); }

/* Takes one out of a set; -1 when it is empty. */
static int pop(set_of_tasks *set) {
  if (*set == 0) return -1;
  int found = __builtin_ctzll(*set);
  *set &= *set - 1;
  return found;
}

static set_of_tasks live(const ek_async *a) { return a->waiting | a->ready | a->running; }

/* Bytes ---------------------------------------------------------------------------------------- */

/* The bytes of a contiguous tensor of the host; empty for constants, which nobody writes. False for
** what is none, so that nobody knows what it refers to.
**
** A number refers to nothing. Memory of other devices, strided tensors and objects are not told
** apart by bytes here: a call with one runs when all before it has ended. */
static bool span_of(const ek_value *value, span *out) {
  const ek_dltensor *tensor = ek_value_tensor(value);
  *out = (span){0, 0};
  if (tensor == NULL) return value->type_index < EK_OBJECT && value->type_index != EK_OPAQUE_PTR;
  if (tensor->device.type != EK_CPU || !ek_dltensor_is_contiguous(tensor)) return false;
  if (value->type_index == EK_TENSOR && ek_tensor_is_own(value->v.obj) &&
      ((const ek_tensor *)(const void *)value->v.obj)->flags & EK_DLPACK_READ_ONLY) {
    return true;
  }
  out->begin = (uintptr_t)ek_dltensor_data(tensor);
  out->end = out->begin + ek_dltensor_nbytes(tensor);
  return true;
}

/* All pairs: n and m are arguments of kernels, a few, and at most WINDOW tasks are compared. */
static bool overlap(const span *a, int32_t n, const span *b, int32_t m) {
  for (int32_t i = 0; i < n; i++) {
    for (int32_t k = 0; k < m; k++) {
      if (a[i].begin < b[k].end && b[k].begin < a[i].end) return true;
    }
  }
  return false;
}

/* Whether 'later' must wait for 'earlier': read after write and write after write in the first
** line, write after read in the second. Two that only read need no order. */
static bool follows(const task *later, const task *earlier) {
  return overlap(later->spans, later->n_spans, earlier->spans + earlier->n_reads,
                 earlier->n_spans - earlier->n_reads) ||
         overlap(later->spans + later->n_reads, later->n_spans - later->n_reads, earlier->spans,
                 earlier->n_reads);
}

/* Choosing ------------------------------------------------------------------------------------- */

static int64_t cost_of(const ek_async *a, const task *t) {
  return __atomic_load_n(&a->costs[t->primitive].nanoseconds, __ATOMIC_RELAXED);
}

static bool is_wide(const ek_async *a, int32_t primitive) {
  return __atomic_load_n(&a->costs[primitive].is_wide, __ATOMIC_RELAXED) != 0;
}

static bool is_long_and_wide(const ek_async *a, const task *t) {
  return cost_of(a, t) >= LONG && is_wide(a, t->primitive);
}

/* The earliest ready task, of those for one thread where 'narrow' asks for that; -1. */
static int earliest(const ek_async *a, bool narrow) {
  set_of_tasks left = a->ready;
  int found = -1;
  for (int i; (i = pop(&left)) >= 0;) {
    if (narrow && is_long_and_wide(a, &a->tasks[i])) continue;
    if (found < 0 || a->tasks[i].order < a->tasks[found].order) found = i;
  }
  return found;
}

/* Whether the others are busy for longer than a wide task would save by waiting for them. */
static bool is_worth_running_alone(const ek_async *a, const task *wide) {
  set_of_tasks left = a->running;
  int64_t longest = 0, time = now(), cost = cost_of(a, wide);
  for (int i; (i = pop(&left)) >= 0;) {
    int64_t remains = cost_of(a, &a->tasks[i]) - (time - a->tasks[i].started);
    if (remains > longest) longest = remains;
  }
  return longest > cost - cost / a->n_threads;
}

/* A task to run now, which is running from here on, or -1. Under the lock. Only the issuer takes a
** kernel for all threads: it has the pool (ek_pool_hold), and workers in a loop of it would wait
** for themselves. A worker that finds one leaves it, or takes what is behind it. */
static int take(ek_async *a, bool is_issuer) {
  int i = a->is_exclusive ? -1 : earliest(a, false);
  if (i >= 0 && is_wide(a, a->tasks[i].primitive)) {
    bool is_free = a->running == 0, is_long = is_long_and_wide(a, &a->tasks[i]);
    bool has_company = !is_free || (a->ready & (a->ready - 1)) != 0 ||
                       (a->is_issuing && !is_issuer);
    bool may_wait = is_long ? is_free || !is_worth_running_alone(a, &a->tasks[i]) : !has_company;
    if (is_free && is_issuer && may_wait) a->is_exclusive = true;
    else if (may_wait) i = is_long ? earliest(a, true) : -1;
  }
  if (i < 0) return -1;
  exclude(&a->ready, i);
  include(&a->running, i);
  a->tasks[i].started = now();
  return i;
}

/* Running -------------------------------------------------------------------------------------- */

/* Keeps the error of this thread, if it is the first in program order. Under the lock. */
static void note_failure(ek_async *a, int64_t order) {
  ek_object *error = ek_error_take();
  if (order < a->failed) {
    ek_object *later = a->error;
    __atomic_store_n(&a->failed, order, __ATOMIC_RELAXED);
    a->error = error;
    error = later;
  }
  ek_object_release(error);
}

static int call(ek_async *a, int32_t primitive, const ek_value *args, int32_t n, int32_t threads) {
  ek_value result = ek_value_none();
  kernel_cost *known = &a->costs[primitive];
  (void)ek_pool_was_divisible();
  int64_t start = now();
  int status = ek_function_call(ek_executable_linked(a->vm->executable, primitive), args, n, &result);
  int64_t took = (now() - start) * threads;
  ek_value_release(&result);
  __atomic_store_n(&known->is_wide, ek_pool_was_divisible(), __ATOMIC_RELAXED);
  __atomic_store_n(&known->nanoseconds, took < UINT32_MAX ? (uint32_t)took : UINT32_MAX,
                   __ATOMIC_RELAXED);
  return status;
}

/* A call of the issuer's on all threads, while no task runs and none is taken. */
static int call_wide(ek_async *a, int32_t primitive, const ek_value *args, int32_t n) {
  ek_pool_settle(true);
  int status = call(a, primitive, args, n, is_wide(a, primitive) ? a->n_threads : 1);
  ek_pool_unsettle();
  return status;
}

/* Notes the end of a task and what may begin now. Under the lock. */
static void finish(ek_async *a, int i, int status) {
  if (status != 0) {
    ek_vm_name_node(a->vm, a->tasks[i].function, a->tasks[i].pc);
    note_failure(a, a->tasks[i].order);
  }
  exclude(&a->running, i);
  include(&a->done, i);
  __atomic_fetch_add(&a->ends, 1, __ATOMIC_RELEASE);
  set_of_tasks left = a->waiting;
  for (int k; (k = pop(&left)) >= 0;) {
    exclude(&a->tasks[k].after, i);
    if (a->tasks[k].after != 0) continue;
    exclude(&a->waiting, k);
    include(&a->ready, k);
  }
}

/* Runs one task if there is one to run now. A task behind the first failure is ended without being
** run, so that what waits for it ends too. */
static bool work(ek_async *a, bool is_issuer) {
  ek_mutex_lock(&a->lock);
  int i = take(a, is_issuer), status = 0;
  bool has_all = i >= 0 && a->is_exclusive, is_skipped = i >= 0 && a->tasks[i].order > a->failed;
  bool are_others = !has_all && a->ready != 0;
  ek_mutex_unlock(&a->lock);
  if (i < 0) return false;
  if (are_others) (void)ek_pool_call();
  const task *t = &a->tasks[i];
  if (has_all && !is_skipped) status = call_wide(a, t->primitive, t->args, t->n_args);
  else if (!is_skipped) status = call(a, t->primitive, t->args, t->n_args, 1);
  ek_mutex_lock(&a->lock);
  finish(a, i, status);
  if (has_all) a->is_exclusive = false;
  ek_mutex_unlock(&a->lock);
  return true;
}

static int work_as_worker(void *context, int64_t begin, int64_t end) {
  (void)begin, (void)end;
  while (work(context, false)) continue;
  return 0;
}

/* Waiting -------------------------------------------------------------------------------------- */

/* Gives back what ended tasks hold. The count of ends is read relaxed, and the sets under the lock:
** seeing it late only retires later. Arguments are released by the issuer, on whose thread their
** deleters may run. */
static void retire(ek_async *a) {
  uint32_t ends = __atomic_load_n(&a->ends, __ATOMIC_RELAXED);
  if (a->seen == ends) return;
  a->seen = ends;
  ek_mutex_lock(&a->lock);
  set_of_tasks ended = a->done;
  a->done = 0;
  ek_mutex_unlock(&a->lock);
  for (int i; (i = pop(&ended)) >= 0;) {
    task *t = &a->tasks[i];
    for (int32_t k = 0; k < t->n_args; k++) ek_value_release(&t->args[k]);
    include(&a->free, i);
    a->n_live--;
  }
}

/* Whether a task that has not ended writes these bytes. */
static bool is_written(ek_async *a, const span *bytes) {
  bool is_found = false;
  ek_mutex_lock(&a->lock);
  set_of_tasks left = live(a);
  for (int i; !is_found && (i = pop(&left)) >= 0;) {
    const task *t = &a->tasks[i];
    is_found = overlap(bytes, 1, t->spans + t->n_reads, t->n_spans - t->n_reads);
  }
  ek_mutex_unlock(&a->lock);
  return is_found;
}

static void set_issuing(ek_async *a, bool is_issuing) {
  ek_mutex_lock(&a->lock);
  a->is_issuing = is_issuing;
  bool are_some = a->ready != 0;
  ek_mutex_unlock(&a->lock);
  if (is_issuing && are_some) (void)ek_pool_call();
}

/* Whether the run is to end here; the error counts as the first in program order, so that no task
** begins any more. */
static bool is_interrupted(ek_async *a) {
  if (ek_vm_poll(a->vm) == 0) return false;
  ek_mutex_lock(&a->lock);
  note_failure(a, 0);
  ek_mutex_unlock(&a->lock);
  return true;
}

/* Takes part, or waits until a task has ended since the last look. */
static void help(ek_async *a) {
  bool waits = !work(a, true);
  for (int spins = 0; waits && __atomic_load_n(&a->ends, __ATOMIC_RELAXED) == a->seen; spins++) {
    if (spins < PATIENCE) ek_pause(); else ek_thread_yield();
  }
  retire(a);
  (void)is_interrupted(a);
}

static void wait_until_few(ek_async *a, int32_t n_live) {
  retire(a);
  if (a->n_live <= n_live) return;
  set_issuing(a, false);
  while (a->n_live > n_live) help(a);
  set_issuing(a, true);
}

static void wait_for_all(ek_async *a) { wait_until_few(a, 0); }

/* Until the elements of a tensor may be read. */
static void wait_for(ek_async *a, const ek_value *value) {
  span bytes;
  if (a->n_live == 0) return;
  if (!span_of(value, &bytes)) wait_for_all(a);
  set_issuing(a, false);
  while (a->n_live != 0 && is_written(a, &bytes)) help(a);
  set_issuing(a, true);
}

/* Issuing -------------------------------------------------------------------------------------- */

static int reserve(task *t, int32_t n) {
  if (n <= t->capacity) return 0;
  ek_value *args = ek_alloc_or_error((size_t)n * (sizeof *args + sizeof *t->spans));
  if (args == NULL) return -1;
  ek_free(t->args);
  t->args = args;
  t->spans = (span *)(void *)(args + n);
  t->capacity = n;
  return 0;
}

/* The bytes that a call reads and writes; false where that is not known. */
static bool fill_spans(task *t, const ek_value *args, const ek_vm_call *of) {
  t->n_spans = t->n_reads = 0;
  for (int32_t i = 0; i < of->n; i++) {
    span *next = &t->spans[t->n_spans];
    if (!span_of(&args[i], next)) return false;
    if (next->begin == next->end) continue;
    t->n_spans++;
    if (i < of->n_inputs) t->n_reads++;
  }
  return true;
}

/* Returns the earlier tasks on which a new task depends; empty when it may run at once. */
static set_of_tasks find_earlier(ek_async *a, const task *t) {
  set_of_tasks found = 0, left = live(a);
  for (int i; (i = pop(&left)) >= 0;) {
    if (follows(t, &a->tasks[i])) include(&found, i);
  }
  return found;
}

/* Puts a task among the others. Whether the issuer has something to run then: more than there are
** workers for, or what is for all threads. */
static bool add(ek_async *a, int i, const ek_value *args, int32_t n) {
  task *t = &a->tasks[i];
  exclude(&a->free, i);
  a->n_live++;
  for (int32_t k = 0; k < n; k++) {
    t->args[k] = args[k];
    ek_value_retain(&t->args[k]);
  }
  t->n_args = n;
  t->order = a->n_issued;
  ek_mutex_lock(&a->lock);
  t->after = find_earlier(a, t);
  bool is_ready = t->after == 0, is_narrow = !is_long_and_wide(a, t);
  include(is_ready ? &a->ready : &a->waiting, i);
  bool is_due = a->running == 0 && a->ready != 0 && earliest(a, true) < 0;
  ek_mutex_unlock(&a->lock);
  return is_ready && is_narrow ? !ek_pool_call() : is_ready || is_due;
}

/* A kernel that needs no task: nothing is under way that it must wait for, and it is short, or it
** takes all threads and they are free. */
static bool is_direct(ek_async *a, const task *t) {
  bool is_short = cost_of(a, t) < CHEAP;
  if (a->n_live == 0) return is_short || is_long_and_wide(a, t);
  if (!is_short) return false;
  ek_mutex_lock(&a->lock);
  set_of_tasks earlier = find_earlier(a, t);
  ek_mutex_unlock(&a->lock);
  return earlier == 0;
}

/* The call of a kernel that needs no task. */
static int call_now(ek_async *a, int32_t primitive, const ek_value *args, int32_t n) {
  bool is_known = __atomic_load_n(&a->costs[primitive].nanoseconds, __ATOMIC_RELAXED) != 0;
  bool has_all = a->n_live == 0 && (is_wide(a, primitive) || !is_known);
  return has_all ? call_wide(a, primitive, args, n) : call(a, primitive, args, n, 1);
}

/* Order matters: ended tasks are retired first, as what they hold is what a full window waits for;
** a task's place is filled and compared before it is known whether it becomes one. */
static int issue(ek_async *a, const ek_value *R, const int32_t *pc) {
  ek_vm_call of;
  int status = ek_vm_gather(a->vm, R, pc, &of);
  const ek_value *args = a->vm->args;
  if (status <= 0) return status;
  retire(a);
  if (a->n_live == WINDOW) wait_until_few(a, WINDOW / 2);
  set_of_tasks places = a->free;
  int i = pop(&places);
  task *t = &a->tasks[i];
  if (reserve(t, of.n) != 0) return -1;
  t->primitive = ek_InvokePacked_packed_index(pc);
  t->function = a->vm->function;
  t->pc = pc;
  bool is_known = fill_spans(t, args, &of);
  if (!is_known) wait_for_all(a);
  if (!is_known || is_direct(a, t)) return call_now(a, t->primitive, args, of.n);
  if (add(a, i, args, of.n)) {
    while (work(a, true)) continue;
  }
  return 0;
}

/* Instructions --------------------------------------------------------------------------------- */

static bool has_failed(ek_async *a) {
  return __atomic_load_n(&a->failed, __ATOMIC_RELAXED) != INT64_MAX;
}

/* An instruction that may do anything: by itself, with all threads. */
static int run_alone(ek_async *a, ek_value *R, const int32_t *pc) {
  wait_for_all(a);
  if (has_failed(a)) return 0;
  ek_pool_settle(true);
  int status = ek_vm_ops[*pc](a->vm, R, pc);
  ek_pool_unsettle();
  return status;
}

/* Waits for the elements that an instruction reads: operands e and E of the table. */
static void wait_for_operands(ek_async *a, const ek_value *R, const int32_t *pc) {
  int32_t at = 1, n = 0;
  if (a->n_live == 0) return;
  for (const char *letter = ek_opcodes[*pc].format; *letter != '\0'; letter++) {
    if (*letter == 'n') n = pc[at];
    if (*letter == 'E' && R[pc[at]].type_index == EK_ADT) wait_for_all(a);
    else if (*letter == 'e' || *letter == 'E') wait_for(a, &R[pc[at]]);
    else if (*letter == 'u') wait_for(a, &R[pc[at] < 0 ? -1 - pc[at] : pc[at]]);
    at += ek_operand_words(*letter, n);
  }
}

/* An allocation that fails is tried again when all tasks have given back what they hold. */
static int retry(ek_async *a, ek_value *R, const int32_t *pc) {
  if (!ek_opcode_has(*pc, EK_ALLOCATES) || a->n_live == 0) return -1;
  ek_object_release(ek_error_take());
  wait_for_all(a);
  return has_failed(a) ? 0 : ek_vm_ops[*pc](a->vm, R, pc);
}

static int run_instruction(ek_async *a, ek_value *R, const int32_t *pc) {
  const bool *is_kernel = a->vm->executable->is_kernel;
  if (*pc == EK_OP_InvokePacked && is_kernel[ek_InvokePacked_packed_index(pc)]) {
    return issue(a, R, pc);
  }
  if (ek_opcode_has(*pc, EK_KERNEL | EK_LONG) && !ek_opcode_has(*pc, EK_FRAMES)) {
    return run_alone(a, R, pc);
  }
  wait_for_operands(a, R, pc);
  if (has_failed(a)) return 0; /* what it would read may not have been written */
  return ek_vm_ops[*pc](a->vm, R, pc) == 0 ? 0 : retry(a, R, pc);
}

/* The bytecode, until it ends or something fails. */
static void issue_all(ek_async *a, ek_vm_hook *hook) {
  ek_vm *vm = a->vm;
  ek_vm_enter_bytecode(vm);
  while (vm->pc != NULL && !has_failed(a) && !is_interrupted(a)) {
    const int32_t *pc = vm->pc;
    vm->pc = pc + ek_instruction_words(pc);
    a->n_issued++;
    bool may_run = hook == NULL || hook->before(hook, vm, pc) == 0;
    if (!may_run || run_instruction(a, vm->registers + vm->window, pc) != 0) {
      ek_vm_say_where(vm, pc);
      ek_mutex_lock(&a->lock);
      note_failure(a, a->n_issued);
      ek_mutex_unlock(&a->lock);
    }
    ek_vm_enter_bytecode(vm);
  }
  wait_for_all(a);
}

/* Without workers: one kernel after another. */
static int run_in_order(ek_vm *vm, ek_vm_hook *hook) {
  if (hook == NULL) return ek_vm_run(vm);
  ek_vm_enter_bytecode(vm);
  return ek_vm_step(vm, -1, hook) == EK_VM_ENDED ? 0 : -1;
}

int ek_async_run(ek_vm *vm, ek_vm_hook *hook) {
  ek_async *a = vm->async;
  int32_t workers = ek_pool_hold(work_as_worker, a);
  if (workers == 0) return run_in_order(vm, hook);
  a->n_threads = workers + 1;
  a->n_issued = 0;
  a->is_issuing = true;
  a->failed = INT64_MAX;
  issue_all(a, hook);
  ek_pool_release();
  if (a->failed == INT64_MAX) return 0;
  ek_vm_unwind(vm);
  ek_value_release(&vm->result);
  if (a->error != NULL) ek_error_set(a->error);
  ek_object_release(a->error);
  a->error = NULL;
  return -1;
}

/* Life ----------------------------------------------------------------------------------------- */

static ek_async *make(ek_vm *vm) {
  size_t costs = (size_t)vm->executable->n_primitives * sizeof(kernel_cost);
  ek_async *a = ek_alloc_or_error(sizeof *a + costs);
  if (a == NULL) return NULL;
  memset(a, 0, sizeof *a + costs);
  a->vm = vm;
  a->costs = (kernel_cost *)(void *)(a + 1);
  a->lock = (ek_mutex)EK_MUTEX_INIT;
  a->free = ~UINT64_C(0);
  return a;
}

int ek_async_set(ek_vm *vm, bool is_async) {
  ek_async *a = vm->async;
  if (is_async == (a != NULL)) return 0;
  vm->async = NULL;
  for (int i = 0; a != NULL && i < WINDOW; i++) ek_free(a->tasks[i].args);
  ek_free(a);
  if (is_async) vm->async = make(vm);
  return is_async && vm->async == NULL ? -1 : 0;
}
