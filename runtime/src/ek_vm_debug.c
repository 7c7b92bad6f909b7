/* Debugger interface of a virtual machine, as a module: start, step, inspect, stop and save a call.
**
** A paused call occupies its machine. The functions accept ints and return ints, arrays of ints and
** values; the table at the end lists them.
**
** Arguments are copied instead of borrowed: a paused call may outlive its caller's tensors. */
#include "ek_vm_step.h"

typedef struct debugger {
  ek_vm *vm;                   /* owned */
  uint32_t is_busy;            /* atomic: one function at a time */
} debugger;

typedef int (*operation)(ek_vm *vm, const ek_value *args, int32_t nargs, ek_value *ret);

/* Arguments ------------------------------------------------------------------------------------ */

static int expect_ints(const char *name, const ek_value *args, int32_t nargs, int32_t n) {
  bool fits = nargs >= n;
  for (int32_t i = 0; fits && i < n; i++) fits = args[i].type_index == EK_INT;
  return fits ? 0 : ek_error("TypeError", "virtual machine: %s: %d ints expected first", name, n);
}

static int expect_paused(const ek_vm *vm, const char *name) {
  if (vm->is_paused) return 0;
  return ek_error("RuntimeError", "virtual machine: %s: no call was started", name);
}


/* Running -------------------------------------------------------------------------------------- */

static int start(ek_vm *vm, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)ret;
  if (expect_ints("start", args, nargs, 1) != 0) return -1;
  int64_t function = args[0].v.i64;
  if (function < INT32_MIN || function > INT32_MAX) function = -1;
  if (ek_vm_begin(vm, (int32_t)function, args + 1, nargs - 1, false) != 0) return -1;
  ek_vm_enter_bytecode(vm);
  vm->is_paused = true;
  return 0;
}

static int step(ek_vm *vm, const ek_value *args, int32_t nargs, ek_value *ret) {
  if (expect_ints("step", args, nargs, 1) != 0 || expect_paused(vm, "step") != 0) return -1;
  ek_value result = ek_value_none();
  int32_t before = ek_pool_limit(__atomic_load_n(&vm->executable->n_threads, __ATOMIC_RELAXED));
  ek_vm_stop stop = ek_vm_step(vm, args[0].v.i64, NULL);
  ek_pool_limit(before);
  if (stop == EK_VM_PAUSED || stop == EK_VM_AT_BREAK) {
    *ret = ek_value_int(stop);
    return 0;
  }
  vm->is_paused = false;
  if (ek_vm_end(vm, &result) != 0 || stop == EK_VM_FAILED) return -1;
  ek_object *array;
  int status = ek_array_new(&result, 1, &array);
  ek_value_release(&result);
  if (status == 0) *ret = ek_value_object(array);
  return status;
}

static int stop(ek_vm *vm, const ek_value *args, int32_t nargs, ek_value *ret) {
  ek_value result = ek_value_none();
  (void)args, (void)nargs, (void)ret;
  if (!vm->is_paused) return 0;
  vm->is_paused = false;
  ek_vm_unwind(vm);
  return ek_vm_end(vm, &result);
}

static int kernels(ek_vm *vm, const ek_value *args, int32_t nargs, ek_value *ret) {
  if (expect_ints("kernels", args, nargs, 1) != 0) return -1;
  int64_t function = args[0].v.i64;
  if (function < INT32_MIN || function > INT32_MAX) function = -1;
  return ek_vm_kernel_times(vm, (int32_t)function, args + 1, nargs - 1, ret);
}

static int set_async(ek_vm *vm, const ek_value *args, int32_t nargs, ek_value *ret) {
  ek_value none;
  (void)ret;
  if (expect_ints("async", args, nargs, 1) != 0) return -1;
  if (ek_vm_acquire(vm, "change executor of", ek_bytes_of("virtual machine")) != 0) return -1;
  int status = ek_async_set(vm, args[0].v.i64 != 0);
  (void)ek_vm_end(vm, &none);
  return status;
}

/* Breakpoints ---------------------------------------------------------------------------------- */

/* The word of instruction 'number' of a function, or NULL with the error set. */
static const int32_t *find_instruction(const ek_vm *vm, int64_t function, int64_t number) {
  const ek_executable *e = vm->executable;
  if (function >= 0 && function < e->n_functions && number >= 0) {
    const ek_vm_function *f = &e->functions[function];
    const int32_t *pc = f->code, *end = f->code + f->n_words;
    for (int64_t i = 0; i < number && pc < end; i++) pc += ek_instruction_words(pc);
    if (pc < end) return pc;
  }
  ek_error("IndexError", "virtual machine: break: function %lld has no instruction %lld",
           (long long)function, (long long)number);
  return NULL;
}

static int add_break(ek_vm *vm, const int32_t *pc) {
  size_t n = (size_t)vm->n_breaks;
  const int32_t **longer = ek_alloc_or_error((n + 1) * sizeof *longer);
  if (longer == NULL) return -1;
  if (n != 0) memcpy(longer, vm->breaks, n * sizeof *longer);
  longer[n] = pc;
  ek_free(vm->breaks);
  vm->breaks = longer;
  vm->n_breaks++;
  return 0;
}

static int set_break(ek_vm *vm, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)ret;
  if (expect_ints("break", args, nargs, 3) != 0) return -1;
  const int32_t *pc = find_instruction(vm, args[0].v.i64, args[1].v.i64);
  if (pc == NULL) return -1;
  for (int32_t i = 0; i < vm->n_breaks; i++) {
    if (vm->breaks[i] == pc) vm->breaks[i--] = vm->breaks[--vm->n_breaks];
  }
  return args[2].v.i64 == 0 ? 0 : add_break(vm, pc);
}

/* Looking -------------------------------------------------------------------------------------- */

static int frames(ek_vm *vm, const ek_value *args, int32_t nargs, ek_value *ret) {
  ek_vm_view view;
  (void)args, (void)nargs;
  if (expect_paused(vm, "frames") != 0) return -1;
  ek_array *array = ek_array_alloc(2 * (int64_t)vm->n_frames);
  if (array == NULL) return -1;
  size_t at = 0;
  for (int32_t i = vm->n_frames; i >= 1; i--) {
    const ek_frame *below = i == vm->n_frames ? NULL : &vm->frames[i];
    view.function = below == NULL ? vm->function : below->function;
    view.pc = below == NULL ? vm->pc : below->pc;
    array->data[at++] = ek_value_int(view.function - vm->executable->functions);
    array->data[at++] = ek_value_int(ek_vm_instruction(view.function, view.pc));
  }
  *ret = ek_value_object(&array->base);
  return 0;
}

static int registers(ek_vm *vm, const ek_value *args, int32_t nargs, ek_value *ret) {
  ek_vm_view view;
  if (expect_ints("registers", args, nargs, 1) != 0 || expect_paused(vm, "registers") != 0) {
    return -1;
  }
  if (args[0].v.i64 > INT32_MAX || !ek_vm_frame(vm, (int32_t)args[0].v.i64, &view)) {
    return ek_error("IndexError", "virtual machine: registers: a frame below %d expected, got %lld",
                    vm->n_frames, (long long)args[0].v.i64);
  }
  ek_array *array = ek_array_alloc(view.function->n_registers);
  if (array == NULL) return -1;
  for (int32_t i = 0; i < view.function->n_registers; i++) {
    array->data[i] = view.registers[i];
    ek_value_retain(&array->data[i]);
  }
  *ret = ek_value_object(&array->base);
  return 0;
}

/* Saving --------------------------------------------------------------------------------------- */

static int save(ek_vm *vm, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)args, (void)nargs;
  return expect_paused(vm, "save") != 0 ? -1 : ek_vm_save(vm, ret);
}

static int resume(ek_vm *vm, const ek_value *args, int32_t nargs, ek_value *ret) {
  ek_bytes state;
  (void)ret;
  if (nargs != 1 || ek_string_borrow(&args[0], &state) == 0) {
    return ek_error("TypeError", "virtual machine: resume: the bytes of a state expected");
  }
  if (ek_vm_acquire(vm, "resume", ek_bytes_of("state")) != 0) return -1;
  vm->is_paused = ek_vm_resume(vm, state) == 0;
  if (vm->is_paused) return 0;
  ek_value none = ek_value_none();
  (void)ek_vm_end(vm, &none);
  return -1;
}

/* The module ----------------------------------------------------------------------------------- */

static const struct {
  const char *name;
  operation run;
} operations[] = {
    {"start", start},          /* function, arguments: stand before its first instruction */
    {"step", step},            /* most instructions, -1 for all: EK_VM_PAUSED or EK_VM_AT_BREAK, */
                               /* or an array of the result when the call has ended */
    {"stop", stop},            /* forget the call */
    {"break", set_break},      /* function, instruction, 1 or 0: stop there or not */
    {"frames", frames},        /* array of function, instruction of each frame, innermost first */
    {"registers", registers},  /* depth of a frame, 0 the innermost: array of its values */
    {"kernels", kernels},      /* function, arguments: see ek_vm_kernel_times */
    {"async", set_async},      /* 1 or 0: run independent kernels at the same time, or not */
    {"save", save},            /* the state as bytes */
    {"resume", resume},        /* bytes: stand where they say */
};

enum { OPERATIONS = sizeof operations / sizeof operations[0] };

typedef struct bound {
  ek_object *module;           /* owned */
  debugger *of;
  operation run;
} bound;

static int call_bound(void *context, const ek_value *args, int32_t nargs, ek_value *ret) {
  bound *self = context;
  if (__atomic_exchange_n(&self->of->is_busy, 1, __ATOMIC_ACQUIRE) != 0) {
    return ek_error("RuntimeError", "virtual machine: another of its functions is running");
  }
  int status = self->run(self->of->vm, args, nargs, ret);
  __atomic_store_n(&self->of->is_busy, 0, __ATOMIC_RELEASE);
  return status;
}

static void delete_bound(void *context) {
  bound *self = context;
  ek_release(self->module);
  ek_free(self);
}

static int debugger_get(void *context, ek_object *module, const char *name, ek_object **out) {
  int32_t at = 0;
  while (at < OPERATIONS && strcmp(operations[at].name, name) != 0) at++;
  if (at == OPERATIONS) return 0;
  bound *self = ek_alloc_or_error(sizeof *self);
  if (self == NULL) return -1;
  *self = (bound){module, context, operations[at].run};
  if (ek_function_new(self, call_bound, delete_bound, out) != 0) {
    ek_free(self);
    return -1;
  }
  ek_retain(module);
  return 0;
}

static int debugger_names(void *context, ek_object **out) {
  const char *names[OPERATIONS];
  (void)context;
  for (int32_t i = 0; i < OPERATIONS; i++) names[i] = operations[i].name;
  return ek_array_of_names(names, OPERATIONS, out);
}

/* A call that was started ends with its module. */
static void debugger_destroy(void *context) {
  debugger *self = context;
  (void)stop(self->vm, NULL, 0, NULL);
  ek_release(&self->vm->base);
  ek_free(self);
}

static const ek_module_kind debugger_kind = {"virtual machine", debugger_get, debugger_names, NULL,
                                             debugger_destroy, NULL};

int ek_vm_module(ek_object *vm, ek_object **out) {
  if (!ek_is(vm, EK_VM)) return ek_error("TypeError", "make module: a virtual machine expected");
  debugger *self = ek_alloc_or_error(sizeof *self);
  if (self == NULL) return -1;
  *self = (debugger){(ek_vm *)(void *)vm, 0};
  if (ek_module_new(&debugger_kind, self, out) != 0) {
    ek_free(self);
    return -1;
  }
  ek_retain(vm);
  return 0;
}
