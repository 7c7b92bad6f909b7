/* Public interface of the virtual machine: creation, arguments and results of a call. */
#include <errno.h>

#include "ek_vm_step.h"

/* Life ----------------------------------------------------------------------------------------- */

/* The executable goes last: registers may hold closures and constants of it. */
static void vm_deleter(void *self, int flags) {
  ek_vm *vm = self;
  if (flags & EK_DELETE_CONTENT) {
    ek_vm_unwind(vm);       /* of a call that stands between two instructions */
    ek_value_release(&vm->result);
    ek_free(vm->breaks);
    ek_free(vm->registers); /* all NONE outside a run */
    ek_free(vm->frames);
    ek_free(vm->args);
    ek_free(vm->seen);
    ek_borrow_free(&vm->borrowed);
    ek_free(vm->places);
    ek_arenas_remove(&vm->arenas);
    (void)ek_async_set(vm, false);
    ek_release(&vm->executable->base);
  }
  if (flags & EK_DELETE_MEMORY) ek_free(self);
}

/* Room for the widest function, one frame and the longest list of arguments: a program without
** calls never asks for more, and arguments only where ADT values or closures bring more than the
** list has. */
static int reserve(ek_vm *vm) {
  int32_t most = 1;
  for (int32_t i = 0; i < vm->executable->n_functions; i++) {
    int32_t n = vm->executable->functions[i].n_registers;
    if (n > most) most = n;
  }
  if (ek_vm_grow_registers(vm, (size_t)most) != 0 || ek_vm_grow_frames(vm) != 0) return -1;
  vm->seen = ek_alloc_or_error(((size_t)vm->executable->n_symbols + 1) * sizeof *vm->seen);
  if (vm->seen == NULL) return -1;
  return ek_vm_grow_args(vm, 0, (int64_t)vm->executable->max_args + 1);
}

/* A number from 1 on that the environment sets; what is none is refused, for it was meant to be a
** limit. 0 or -1. */
static int read_limit(const char *variable, int64_t most, int64_t *out) {
  const char *text = getenv(variable);
  if (text == NULL || text[0] == '\0') return 0;
  char *end;
  errno = 0;
  long long number = strtoll(text, &end, 10);
  if (errno != 0 || *end != '\0' || number < 1 || number > most) {
    return ek_error("ValueError", "%s: a number from 1 to %lld expected, got '%.40s'", variable,
                    (long long)most, text);
  }
  *out = number;
  return 0;
}

int ek_vm_new(ek_object *executable, ek_object **out) {
  if (!ek_is(executable, EK_EXECUTABLE))
    return ek_error("TypeError", "make virtual machine: an executable expected");
  int64_t max_frames = EK_VM_MAX_FRAMES, max_steps = 0;
  if (read_limit("EKIDEN_MAX_DEPTH", INT32_MAX - 1, &max_frames) != 0 ||
      read_limit("EKIDEN_MAX_STEPS", INT64_MAX - 1, &max_steps) != 0) {
    return -1;
  }
  if (ek_executable_link((ek_executable *)(void *)executable, NULL) != 0) return -1;
  ek_vm *vm = ek_object_alloc(sizeof *vm, EK_VM, vm_deleter);
  if (vm == NULL) return -1;
  ek_retain(executable);
  vm->executable = (ek_executable *)(void *)executable;
  vm->max_frames = (int32_t)max_frames;
  vm->max_steps = max_steps;
  ek_arenas_add(&vm->arenas);
  if (reserve(vm) != 0) {
    ek_release(&vm->base);
    return -1;
  }
  *out = &vm->base;
  return 0;
}

/* Arguments ------------------------------------------------------------------------------------ */

/* Whether elements lie where loads of them may be made. */
static bool is_aligned(const ek_dltensor *tensor) {
  uintptr_t size = tensor->dtype.bits / 8;
  return size == 0 || (uintptr_t)ek_dltensor_data(tensor) % size == 0;
}

/* Whether kernels can read a tensor in place: contiguous, and aligned to its element size. */
bool ek_vm_is_readable(const ek_dltensor *tensor) {
  return ek_dltensor_is_contiguous(tensor) && is_aligned(tensor);
}

/* Convert a tensor argument by the cheapest possible form: borrowed for the call without a copy or
** a reference count; retained; wrapped, if another library made it; copied, if it is strided or
** misaligned for loads of its elements. */
int ek_vm_own_tensor(ek_vm *vm, const ek_value *value, const ek_dltensor *tensor, bool may_lend,
                     ek_value *to) {
  ek_object *copy;
  bool is_lent = value->type_index == EK_DLTENSOR_PTR;
  bool can_stay = ek_vm_is_readable(tensor);
  if (is_lent && may_lend && can_stay && tensor->device.type == EK_CPU) {
    return ek_borrow_tensor(&vm->borrowed, tensor, to);
  }
  if (is_lent || !can_stay) {
    if (ek_tensor_copied(tensor, tensor->device, &copy) != 0) return -1;
  } else if (!ek_tensor_is_own(value->v.obj)) {
    if (ek_tensor_strided(value->v.obj, tensor, 0, &copy) != 0) return -1;
  } else {
    ek_retain(value->v.obj);
    copy = value->v.obj;
  }
  *to = ek_value_object(copy);
  return 0;
}

enum { MAX_NESTING = 64 };

/* A parameter of a function that is called, and the device on which it takes tensors. */
typedef struct parameter {
  const ek_vm_function *function;
  int32_t index;
  ek_device device;
} parameter;

/* The function whose parameters say where the arguments of a call go, and in '*skipped' how many
** parameters it has before them. A function that does nothing but call its first argument, a closure
** of this executable, takes the others where that closure's function does. */
EK_COLD static const ek_vm_function *placing_function(const ek_vm *vm, const ek_vm_function *f,
                                                      const ek_value *args, int32_t *skipped) {
  const ek_executable *e = vm->executable;
  *skipped = 0;
  if (e->n_devices == 1 || f->n_params == 0 || args[0].type_index != EK_CLOSURE ||
      f->code[0] != EK_OP_InvokeClosureTail || ek_InvokeClosureTail_closure(f->code) != 0) {
    return f;
  }
  const ek_closure *closure = (const ek_closure *)(const void *)args[0].v.obj;
  if (closure->executable != &e->base) return f;
  const ek_vm_function *callee = &e->functions[closure->function];
  if (callee->n_params != closure->captured->size + f->n_params - 1) return f;
  *skipped = closure->captured->size - 1;
  return callee;
}

static int own_argument(ek_vm *vm, const parameter *p, const ek_value *value, int depth,
                        ek_value *to);

/* A tensor among the arguments, on the device of its parameter. */
static int own_on_device(ek_vm *vm, const parameter *p, const ek_value *value,
                         const ek_dltensor *tensor, ek_value *to) {
  ek_device device = p->device;
  ek_object *copy;
  if (ek_device_same(tensor->device, device)) {
    return ek_vm_own_tensor(vm, value, tensor, vm->may_lend, to);
  }
  if (ek_tensor_copied(tensor, device, &copy) != 0) return -1;
  *to = ek_value_object(copy);
  return 0;
}

/* An array of arguments as a tuple: other languages know arrays. This recurses on C's stack, hence
** the bound: an array may hold itself. */
EK_COLD static int own_array(ek_vm *vm, const parameter *p, const ek_array *array, int depth,
                     ek_value *to) {
  ek_object *tuple;
  if (depth == MAX_NESTING) {
    ek_bytes name = ek_executable_param(p->function, p->index);
    return ek_error("InputError", "input '%.*s': expected arrays at most %d deep, got deeper ones",
                    ek_shown(name, 200), name.data, MAX_NESTING);
  }
  ek_array *items = ek_array_alloc(array->size);
  if (items == NULL) return -1;
  int code = 0;
  for (int64_t i = 0; code == 0 && i < array->size; i++) {
    code = own_argument(vm, p, &array->data[i], depth + 1, &items->data[i]);
  }
  if (code == 0) code = ek_container_new(EK_ADT, 0, items->data, items->size, &tuple);
  ek_release(&items->base);
  if (code == 0) *to = ek_value_object(tuple);
  return code;
}

/* An argument as a register can hold it. */
static int own_argument(ek_vm *vm, const parameter *p, const ek_value *value, int depth,
                        ek_value *to) {
  const ek_dltensor *tensor = ek_value_tensor(value);
  int32_t type = value->type_index;
  if (tensor != NULL) return own_on_device(vm, p, value, tensor, to);
  if (type == EK_ARRAY) return own_array(vm, p, (ek_array *)(void *)value->v.obj, depth, to);
  bool is_number = type >= EK_INT && type <= EK_FLOAT;
  if (is_number || type >= EK_OBJECT) {
    *to = *value;
    ek_value_retain(to);
    if (is_number || ek_vm_own_data(vm, to, p->device) == 0) return 0;
    ek_value_release(to);
    return -1;
  }
  ek_bytes name = ek_executable_param(p->function, p->index);
  return ek_error("InputError", "input '%.*s': expected a tensor, a number or an ADT value, got %s",
                  ek_shown(name, 200), name.data, ek_value_type_name(value));
}

/* Adds what one more tensor like this takes: the tensor, those it is a view of, their storage. */
static void spare_like(const ek_value *value, ek_spare **spares) {
  const ek_object *at = value->type_index == EK_TENSOR ? value->v.obj : NULL;
  while (at != NULL && at->type_index == EK_TENSOR && ek_tensor_is_own(at)) {
    ek_spare_block(spares, at);
    at = ((const ek_tensor *)(const void *)at)->owner;
  }
  if (at == NULL || !ek_storage_is_own(at)) return;
  ek_spare_block(spares, at);
  const ek_storage *storage = (const ek_storage *)(const void *)at;
  if (storage->device.type == EK_CPU) ek_spare_buffer(spares, storage->device.id, storage->size);
}

/* A caller holds the last result while the next is computed, so after the first run the pool has
** room for one more result of the same shapes. */
static void reserve_result(const ek_value *result) {
  ek_spare *spares = NULL;
  if (result->type_index != EK_ADT) {
    spare_like(result, &spares);
  } else {
    const ek_adt *many = (const ek_adt *)(const void *)result->v.obj;
    for (int32_t i = 0; i < many->size; i++) spare_like(&many->fields[i], &spares);
  }
  ek_spares_give_back(spares);
}

/* Running -------------------------------------------------------------------------------------- */

static int enter_with(ek_vm *vm, const ek_vm_function *f, const ek_value *args, int32_t nargs) {
  int32_t skipped;
  const ek_vm_function *placing = placing_function(vm, f, args, &skipped);
  if (ek_vm_enter(vm, f, NULL, 0) != 0) return -1;
  for (int32_t i = 0; i < nargs; i++) {
    bool is_placed = placing->places != NULL && skipped + i >= 0;
    int32_t place = is_placed ? placing->places[skipped + i] : 0;
    parameter p = {f, i, vm->executable->devices[place]};
    if (own_argument(vm, &p, &args[i], 0, &vm->registers[vm->window + (size_t)i]) == 0) continue;
    ek_vm_unwind(vm);
    return -1;
  }
  return 0;
}

int ek_vm_acquire(ek_vm *vm, const char *doing, ek_bytes name) {
  if (__atomic_exchange_n(&vm->is_running, 1, __ATOMIC_ACQUIRE) == 0) return 0;
  return ek_error("RuntimeError", "%s '%.*s': the virtual machine is running another call", doing,
                  (int)name.size, name.data);
}

static uint64_t n_calls;       /* atomic: of programs of several devices, in all machines */

/* Arguments are held against the declared types before any is copied: a wrong one costs nothing. */
int ek_vm_begin(ek_vm *vm, int32_t function, const ek_value *args, int32_t nargs, bool may_lend) {
  const ek_executable *e = vm->executable;
  if (function < 0 || function >= e->n_functions) {
    return ek_error("IndexError", "call: a function below %d expected, got %d", e->n_functions,
                    function);
  }
  const ek_vm_function *f = &e->functions[function];
  if (nargs != f->n_params) {
    return ek_error("InputError", "call '%.*s': %d arguments expected, got %d", (int)f->name.size,
                    f->name.data, f->n_params, nargs);
  }
  if (ek_vm_acquire(vm, "call", f->name) != 0) return -1;
  vm->may_lend = may_lend && !e->keeps_arguments;
  if (e->n_devices > 1) vm->call = __atomic_add_fetch(&n_calls, 1, __ATOMIC_RELAXED);
  vm->next_check = 0;
  if (ek_signature_check(e, f, args, vm->seen) == 0 && enter_with(vm, f, args, nargs) == 0) {
    return 0;
  }
  ek_value none = ek_value_none();
  (void)ek_vm_end(vm, &none);
  return -1;
}

int ek_vm_set_places(ek_vm *vm, const ek_vm_place *places, int32_t n) {
  if (n > vm->n_places) {
    ek_vm_place *larger = ek_alloc_or_error((size_t)n * sizeof *larger);
    if (larger == NULL) return -1;
    ek_free(vm->places);
    vm->places = larger;
  }
  if (n != 0) memcpy(vm->places, places, (size_t)n * sizeof *places);
  vm->n_places = n;
  return 0;
}

/* End a call. Borrowed tensors are released before the machine is, since only then may the next run
** borrow again. The store is a release, which pairs with the exchange of ek_vm_acquire: the next
** caller, on whatever thread, sees the registers as they were left. */
int ek_vm_end(ek_vm *vm, ek_value *ret) {
  int status = 0;
  *ret = vm->result;
  vm->result = ek_value_none();
  if (vm->borrowed.count != 0) status = ek_borrow_end(&vm->borrowed, ret);
  if (status == 0) status = ek_result_unalias(ret);
  ek_arenas_rest(&vm->arenas);
  __atomic_store_n(&vm->is_running, 0, __ATOMIC_RELEASE);
  return status;
}

static int run(ek_vm *vm) {
  ek_limit limit;
  if (ek_vm_has_limit(vm, &limit)) return ek_vm_run_limited(vm);
  return vm->async == NULL ? ek_vm_run(vm) : ek_async_run(vm, NULL);
}

int ek_vm_invoke(ek_object *object, int32_t function, const ek_value *args, int32_t nargs,
                 ek_value *ret) {
  if (!ek_is(object, EK_VM)) return ek_error("TypeError", "call: a virtual machine expected");
  ek_vm *vm = (ek_vm *)(void *)object;
  if (ek_vm_begin(vm, function, args, nargs, true) != 0) return -1;
  int32_t before = ek_pool_limit(__atomic_load_n(&vm->executable->n_threads, __ATOMIC_RELAXED));
  int status = run(vm);
  ek_pool_limit(before);
  bool is_first = status == 0 && !vm->has_run;
  if (is_first) vm->has_run = true;
  if (ek_vm_end(vm, ret) != 0) return -1;
  if (is_first) reserve_result(ret);
  if (status == 0 && vm->executable->n_guarded != 0 &&
      ek_executable_check_files(vm->executable) != 0) {
    ek_value_release(ret);
    status = -1;
  }
  return status;
}
