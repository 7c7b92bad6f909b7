/* Profile of a run: counts and times per instruction, and a list of kernel calls. The time of a
** device kernel is measured between two device events, not until it was queued. */

#include "ek_vm_step.h"

typedef struct profile {
  ek_vm_hook hook;
  ek_vm_guard guard;
  int64_t *counts;             /* two for each instruction of the executable */
  int32_t *numbers;            /* of the instruction at each word, counted through all functions */
  int32_t n_instructions;
  int32_t *first;              /* the number of each function's first */
  int64_t *events;
  int64_t n_events, capacity, max_events;
  int64_t origin, start;
  const ek_device_table *table; /* of the device that the instruction runs on; NULL: the host */
  ek_device device;
  void *begin;                 /* an event of it, owned; NULL where its driver has none */
} profile;

static int64_t now(void) { return ek_now(false); }

/* Numbers -------------------------------------------------------------------------------------- */

static void number_instructions(const ek_executable *e, profile *p) {
  for (int32_t f = 0; f < e->n_functions; f++) {
    const ek_vm_function *function = &e->functions[f];
    p->first[f] = p->n_instructions;
    for (int32_t at = 0; at < function->n_words;) {
      p->numbers[function->code + at - e->words] = p->n_instructions++;
      at += ek_instruction_words(function->code + at);
    }
  }
}

static int prepare(const ek_executable *e, profile *p) {
  size_t words = 1;
  for (int32_t f = 0; f < e->n_functions; f++) words += (size_t)e->functions[f].n_words;
  p->numbers = ek_alloc_or_error(words * sizeof *p->numbers);
  p->first = ek_alloc_or_error(((size_t)e->n_functions + 1) * sizeof *p->first);
  if (p->numbers == NULL || p->first == NULL) return -1;
  number_instructions(e, p);
  size_t size = 2 * (size_t)p->n_instructions * sizeof *p->counts;
  p->counts = ek_alloc_or_error(size + 1);
  if (p->counts == NULL) return -1;
  memset(p->counts, 0, size);
  return 0;
}

/* Events --------------------------------------------------------------------------------------- */

/* Room for n more words; NULL without memory, with the error set. */
static int64_t *more(profile *p, int64_t n) {
  if (p->n_events + n > p->capacity) {
    int64_t capacity = 2 * (p->n_events + n) + 1024;
    int64_t *larger = ek_alloc_or_error((size_t)capacity * sizeof *larger);
    if (larger == NULL) return NULL;
    if (p->n_events != 0) memcpy(larger, p->events, (size_t)p->n_events * sizeof *larger);
    ek_free(p->events);
    p->events = larger;
    p->capacity = capacity;
  }
  p->n_events += n;
  return p->events + p->n_events - n;
}

static int add_argument(profile *p, const ek_value *value) {
  const ek_dltensor *tensor = ek_value_tensor(value);
  int64_t *at = more(p, 2 + (tensor == NULL ? 0 : tensor->ndim));
  if (at == NULL) return -1;
  if (tensor == NULL) {
    at[0] = EK_DTYPE_INT * 256 + 64;
    at[1] = -1;
    return 0;
  }
  at[0] = tensor->dtype.code * 256 + tensor->dtype.bits;
  at[1] = tensor->ndim;
  for (int32_t i = 0; i < tensor->ndim; i++) at[2 + i] = tensor->shape[i];
  return 0;
}

/* The arguments of a primitive as it gets them: an ADT stands for its fields. Of a copy between
** devices, the copy. */
static int add_call(profile *p, const ek_vm *vm, const int32_t *pc, int64_t took) {
  bool is_value = *pc == EK_OP_InvokePackedValue;
  bool is_copy = *pc == EK_OP_DeviceCopy;
  int32_t n = 1, copy = ek_DeviceCopy_dst(pc);
  const int32_t *registers = &copy;
  if (is_value) {
    n = ek_InvokePackedValue_n(pc);
    registers = ek_InvokePackedValue_args(pc);
  } else if (!is_copy) { /* operands of InvokePackedScratch begin as those of InvokePacked */
    n = ek_InvokePacked_n(pc);
    registers = ek_InvokePacked_args(pc);
  }
  const ek_value *R = vm->registers + vm->window;
  int64_t function = vm->function - vm->executable->functions;
  int64_t place = p->n_events, count = 0, *at = more(p, 6);
  if (at == NULL) return -1;
  int64_t number = p->numbers[pc - vm->executable->words] - p->first[function];
  memcpy(at, (int64_t[]){EK_EVENT_CALL, function, number, p->start - p->origin, took, 0}, 48);
  for (int32_t i = 0; i < n; i++) {
    const ek_value *value = &R[registers[i]];
    const ek_adt *adt = (const ek_adt *)(const void *)value->v.obj;
    bool is_adt = value->type_index == EK_ADT && !is_value;
    int32_t parts = is_adt ? adt->size : 1;
    for (int32_t k = 0; k < parts; k++) {
      if (add_argument(p, is_adt ? &adt->fields[k] : value) != 0) return -1;
    }
    count += parts;
  }
  p->events[place + 5] = count;
  return 0;
}

static int add_frame(profile *p, const ek_vm *vm, int64_t kind, const ek_vm_function *function,
                     int64_t time) {
  int64_t *at = more(p, 3);
  if (at == NULL) return -1;
  at[0] = kind;
  at[1] = function - vm->executable->functions;
  at[2] = time - p->origin;
  return 0;
}

/* Devices -------------------------------------------------------------------------------------- */

/* The primitive that an instruction calls, or -1. */
static int32_t primitive_of(const int32_t *pc) {
  if (!ek_opcode_has(*pc, EK_WORKS) || *pc == EK_OP_DeviceCopy) return -1;
  return *pc == EK_OP_InvokePackedValue ? ek_InvokePackedValue_packed_index(pc)
                                        : ek_InvokePacked_packed_index(pc);
}

/* Waits for an instruction's work on a device; events measure its time where the driver has them. */
static int enter_device(profile *p, const ek_executable *e, const int32_t *pc) {
  int32_t primitive = primitive_of(pc);
  bool is_placed = primitive >= 0 && e->primitive_places != NULL;
  int32_t place = is_placed ? e->primitive_places[primitive] : 0;
  p->table = NULL;
  if (place == 0 || e->devices[place - 1].type == EK_CPU) return 0;
  p->device = e->devices[place - 1];
  p->table = ek_device_table_of(p->device, "profile");
  if (p->table == NULL) return -1;
  if (p->table->event_new != NULL) return p->table->event_new(p->device, NULL, &p->begin);
  return p->table->synchronize == NULL ? 0 : p->table->synchronize(p->device, NULL);
}

static void forget_event(profile *p) {
  if (p->begin != NULL) p->table->event_free(p->device, p->begin);
  p->begin = NULL;
}

/* The nanoseconds of an instruction on its device; -1 with an error. */
static int64_t leave_device(profile *p) {
  void *end = NULL;
  int64_t took = -1;
  if (p->begin == NULL) {
    bool waits = p->table->synchronize != NULL;
    return waits && p->table->synchronize(p->device, NULL) != 0 ? -1 : now() - p->start;
  }
  if (p->table->event_new(p->device, NULL, &end) != 0) return -1;
  int status = p->table->event_time(p->device, p->begin, end, &took);
  p->table->event_free(p->device, end);
  forget_event(p);
  if (status != 0) return -1;
  return took < 0 ? 0 : took;
}

/* The hook ------------------------------------------------------------------------------------- */

static int before(ek_vm_hook *hook, ek_vm *vm, const int32_t *pc) {
  profile *p = (profile *)(void *)hook;
  int status = ek_vm_guard_check(&p->guard, vm, pc);
  if (status != 0) return -1;
  bool leaves = ek_opcode_has(*pc, EK_FRAMES) && ek_opcode_has(*pc, EK_ENDS);
  if (leaves && p->n_events < p->max_events) {
    status = add_frame(p, vm, EK_EVENT_LEAVE, vm->function, now());
  }
  if (status == 0) status = enter_device(p, vm->executable, pc);
  p->start = now();
  return status;
}

static int after(ek_vm_hook *hook, ek_vm *vm, const int32_t *pc) {
  profile *p = (profile *)(void *)hook;
  int64_t end = now(), *count = &p->counts[2 * p->numbers[pc - vm->executable->words]];
  int64_t took = p->table == NULL ? end - p->start : leave_device(p);
  if (took < 0) return -1;
  count[0] += 1;
  count[1] += took;
  if (p->n_events >= p->max_events) return 0;
  if (ek_opcode_has(*pc, EK_WORKS)) return add_call(p, vm, pc, took);
  bool enters = ek_opcode_has(*pc, EK_FRAMES) && *pc != EK_OP_Ret;
  return enters ? add_frame(p, vm, EK_EVENT_ENTER, vm->function, end) : 0;
}

/* The result ----------------------------------------------------------------------------------- */

static int describe(const profile *p, const ek_executable *e, const ek_value *result,
                    ek_value *ret) {
  (void)e;
  ek_value parts[3] = {*result, ek_value_none(), ek_value_none()};
  ek_object *array;
  int status = ek_string_new(EK_BYTES, (const char *)p->counts, 16 * (size_t)p->n_instructions,
                             &parts[1]);
  if (status == 0) {
    status = ek_string_new(EK_BYTES, p->n_events == 0 ? "" : (const char *)p->events,
                           8 * (size_t)p->n_events, &parts[2]);
  }
  if (status == 0) status = ek_array_new(parts, 3, &array);
  ek_value_release(&parts[1]);
  ek_value_release(&parts[2]);
  if (status == 0) *ret = ek_value_object(array);
  return status;
}

static int run(ek_vm *vm, profile *p) {
  int32_t before_it = ek_pool_limit(__atomic_load_n(&vm->executable->n_threads, __ATOMIC_RELAXED));
  p->guard = ek_vm_guard_of(vm);
  ek_vm_stop stop = ek_vm_step(vm, -1, &p->hook);
  ek_pool_limit(before_it);
  return stop == EK_VM_ENDED ? 0 : -1;
}

/* Arguments ------------------------------------------------------------------------------------ */

/* A tensor that lies elsewhere than the program takes it, copied there, which is an event; else the
** argument itself. '*placed' owned. */
static int place_argument(profile *p, const ek_vm *vm, const ek_vm_function *f, int32_t index,
                          const ek_value *arg, ek_value *placed) {
  const ek_executable *e = vm->executable;
  const ek_dltensor *tensor = ek_value_tensor(arg);
  bool is_placed = tensor != NULL && f->places != NULL && index < f->n_params;
  int32_t place = is_placed ? f->places[index] : 0;
  ek_object *copy;
  if (!is_placed || ek_device_same(tensor->device, e->devices[place])) {
    *placed = *arg;
    ek_value_retain(placed);
    return 0;
  }
  int64_t start = now();
  if (ek_tensor_copied(tensor, e->devices[place], &copy) != 0) return -1;
  int64_t took = now() - start, *at = p->n_events < p->max_events ? more(p, 6) : NULL;
  *placed = ek_value_object(copy);
  if (at == NULL) return p->n_events < p->max_events ? -1 : 0;
  memcpy(at, (int64_t[]){EK_EVENT_PLACE, f - e->functions, index, place, start - p->origin, took}, 48);
  return add_argument(p, placed);
}

/* All of them, in an array of 'n' that the caller frees: 0 or -1. */
static int place_arguments(profile *p, const ek_vm *vm, int32_t function, const ek_value *args,
                           int32_t n, ek_value *placed) {
  int status = 0;
  for (int32_t i = 0; i < n && status == 0; i++) {
    status = place_argument(p, vm, &vm->executable->functions[function], i, &args[i], &placed[i]);
  }
  return status;
}

/* Converts a profile to a value: '*ret' owned; 0 or -1. */
typedef int (*describer)(const profile *p, const ek_executable *e, const ek_value *result,
                         ek_value *ret);

static int profiled(ek_vm *vm, int32_t function, int64_t max_events, const ek_value *args,
                    int32_t nargs, describer tell, ek_value *ret) {
  profile p = {.hook = {before, after}, .max_events = max_events};
  ek_value result = ek_value_none();
  ek_value *placed = ek_alloc_or_error(((size_t)nargs + 1) * sizeof *placed);
  if (placed != NULL) memset(placed, 0, ((size_t)nargs + 1) * sizeof *placed); /* NONE */
  int status = placed == NULL ? -1 : prepare(vm->executable, &p);
  p.origin = now();
  if (placed != NULL && function >= 0 && function < vm->executable->n_functions) {
    int copied = place_arguments(&p, vm, function, args, nargs, placed);
    if (status == 0) status = copied;
  }
  if (status == 0) status = ek_vm_begin(vm, function, placed, nargs, true);
  if (status == 0) {
    ek_vm_enter_bytecode(vm);
    status = add_frame(&p, vm, EK_EVENT_ENTER, vm->function, p.origin);
    if (status != 0) ek_vm_unwind(vm);
    if (status == 0) status = run(vm, &p);
    if (ek_vm_end(vm, &result) != 0) status = -1;
  }
  if (status == 0) status = tell(&p, vm->executable, &result, ret);
  ek_value_release(&result);
  for (int32_t i = 0; placed != NULL && i < nargs; i++) ek_value_release(&placed[i]);
  ek_free(placed);
  forget_event(&p); /* of an instruction that failed */
  ek_free(p.counts);
  ek_free(p.numbers);
  ek_free(p.first);
  ek_free(p.events);
  return status;
}

int ek_vm_profile(ek_vm *vm, int32_t function, int64_t max_events, const ek_value *args,
                  int32_t nargs, ek_value *ret) {
  return profiled(vm, function, max_events, args, nargs, describe, ret);
}

/* By kernel ------------------------------------------------------------------------------------ */

/* Adds what the instructions that call primitives took: two numbers for each primitive. */
static void add_up(const profile *p, const ek_executable *e, int64_t *totals) {
  for (int32_t f = 0; f < e->n_functions; f++) {
    const ek_vm_function *function = &e->functions[f];
    for (int32_t at = 0; at < function->n_words;) {
      const int32_t *pc = function->code + at;
      int32_t primitive = primitive_of(pc);
      const int64_t *count = &p->counts[2 * p->numbers[pc - e->words]];
      if (primitive >= 0) totals[2 * primitive] += count[0];
      if (primitive >= 0) totals[2 * primitive + 1] += count[1];
      at += ek_instruction_words(pc);
    }
  }
}

static int describe_kernels(const profile *p, const ek_executable *e, const ek_value *result,
                            ek_value *ret) {
  size_t n = (size_t)e->n_primitives;
  int64_t *totals = ek_alloc_or_error((2 * n + 1) * sizeof *totals);
  ek_value *items = ek_alloc_or_error((3 * n + 1) * sizeof *items);
  ek_object *array;
  int32_t length = 0;
  int status = totals == NULL || items == NULL ? -1 : 0;
  if (status == 0) {
    memset(totals, 0, 2 * n * sizeof *totals);
    add_up(p, e, totals);
    items[length++] = *result;
  }
  for (size_t i = 0; status == 0 && i < n; i++) {
    if (totals[2 * i] == 0) continue;
    ek_bytes name = e->primitives[i];
    status = ek_string_new(EK_STR, name.data, name.size, &items[length]);
    if (status != 0) break;
    items[length + 1] = ek_value_int(totals[2 * i]);
    items[length + 2] = ek_value_int(totals[2 * i + 1]);
    length += 3;
  }
  if (status == 0) status = ek_array_new(items, length, &array);
  if (status == 0) *ret = ek_value_object(array);
  for (int32_t i = 1; i < length; i++) ek_value_release(&items[i]);
  ek_free(items);
  ek_free(totals);
  return status;
}

int ek_vm_kernel_times(ek_vm *vm, int32_t function, const ek_value *args, int32_t nargs,
                       ek_value *ret) {
  return profiled(vm, function, 0, args, nargs, describe_kernels, ret);
}
