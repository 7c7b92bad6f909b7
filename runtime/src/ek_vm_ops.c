/* The bodies of the instructions, which the loop, the stepping loop and native code share.
**
** What a body may count on: operands are in range, lists have the length that they say, alignments
** and dtypes are valid (ek_verify.c). What it may not: that a register holds what its use needs, or
** that a size or an index computed by the program is one. Those come from a file or from a caller,
** and may be anything; so each body asks before it touches memory.
**
** When a body fails, a register is as it was, or NONE where it was moved from: unwinding clears
** both alike. Code of others (kernels, deleters) may run inside a body, but none that makes the
** registers grow, as a machine refuses a second run while it has one. */
#include "ek_vm.h"

#include "ek_vm_inline.h"

/* Values --------------------------------------------------------------------------------------- */

static const char *type_name(const ek_value *value) {
  const char *key = ek_type_key(value->type_index);
  return value->type_index == EK_NONE ? "nothing" : key == NULL ? "an unknown type" : key;
}

static int wrong_type(const char *instruction, const char *expected, const ek_value *got) {
  return ek_error("RunError", "%s: %s expected, got %s", instruction, expected, type_name(got));
}

static const ek_dtype int64_dtype = {EK_DTYPE_INT, 64, 1};
static const ek_device host = {EK_CPU, 0};

/* The elements [index, index + n) of an int64 vector, as addresses and shapes are given. Both
** 'index' and 'n' are >= 0 by the verifier: their sum in 64 bits does not wrap around. */
static int read_int64s(const char *instruction, const ek_value *value, int32_t index, int32_t n,
                       const int64_t **out) {
  if (value->type_index != EK_TENSOR) return wrong_type(instruction, "an int64 tensor", value);
  const ek_dltensor *tensor = &((ek_tensor *)(void *)value->v.obj)->dl;
  if (!ek_device_is_host(tensor->device) ||
      memcmp(&tensor->dtype, &int64_dtype, sizeof int64_dtype) != 0 ||
      !ek_dltensor_is_contiguous(tensor)) {
    return ek_error("RunError", "%s: an int64 tensor of the host expected, got another",
                    instruction);
  }
  uint64_t count = ek_dltensor_nbytes(tensor) / sizeof(int64_t);
  if ((uint64_t)index + (uint64_t)n > count) {
    return ek_error("RunError", "%s: elements %d to %lld of a tensor with %llu are asked for",
                    instruction, index, (long long)index + n, (unsigned long long)count);
  }
  *out = (const int64_t *)ek_dltensor_data(tensor);
  if (n != 0) *out += index;
  return 0;
}

/* An integer register, or one element of an int64 vector. */
static int read_size(const char *instruction, const ek_value *value, int32_t index, int64_t *out) {
  const int64_t *element;
  if (value->type_index == EK_INT && index == 0) {
    *out = value->v.i64;
    return 0;
  }
  if (read_int64s(instruction, value, index, 1, &element) != 0) return -1;
  *out = *element;
  return 0;
}

/* Whether elements are integers of whole bytes, or booleans. */
static bool is_integral(ek_dtype dtype) {
  bool is_number = dtype.code == EK_DTYPE_INT || dtype.code == EK_DTYPE_UINT;
  bool is_size = dtype.bits == 8 || dtype.bits == 16 || dtype.bits == 32 || dtype.bits == 64;
  bool is_bool = dtype.code == EK_DTYPE_BOOL && dtype.bits == 8;
  return dtype.lanes == 1 && (is_bool || (is_number && is_size));
}

/* An element of an integer or boolean tensor of the host. Its bytes are the low ones of a word,
** which a shift up and down extends by the sign: machines are little-endian here. */
static int64_t element_of(const ek_dltensor *tensor, int64_t index) {
  size_t size = tensor->dtype.bits / 8;
  uint64_t bits = 0;
  memcpy(&bits, (const char *)ek_dltensor_data(tensor) + (size_t)index * size, size);
  unsigned unused = 64 - tensor->dtype.bits;
  bool is_signed = tensor->dtype.code == EK_DTYPE_INT;
  return is_signed ? (int64_t)(bits << unused) >> unused : (int64_t)bits;
}

/* An integer or boolean, or the one element of a tensor of these. */
static int read_scalar(const char *instruction, const ek_value *value, int64_t *out) {
  if (is_plain_integer(value)) {
    *out = value->v.i64;
    return 0;
  }
  if (value->type_index != EK_TENSOR)
    return wrong_type(instruction, "an integer or a tensor", value);
  const ek_dltensor *tensor = &((ek_tensor *)(void *)value->v.obj)->dl;
  if (!ek_device_is_host(tensor->device) || !is_integral(tensor->dtype) ||
      ek_dltensor_nbytes(tensor) != tensor->dtype.bits / 8) {
    return ek_error("RunError",
                    "%s: an integer or boolean tensor of one element expected, got another",
                    instruction);
  }
  *out = element_of(tensor, 0);
  return 0;
}

/* Growing -------------------------------------------------------------------------------------- */

/* Makes room for 'needed' items of 'size' bytes by doubling; new items are zero, which as a value
** is NONE. Without memory the old ones stay as they are. */
static int grow(void **items, size_t used, size_t needed, size_t size, size_t *capacity) {
  size_t wanted = needed > 2 * *capacity ? needed : 2 * *capacity;
  char *larger = ek_alloc_or_error(wanted * size);
  if (larger == NULL) return -1;
  if (used != 0) memcpy(larger, *items, used * size);
  memset(larger + used * size, 0, (wanted - used) * size);
  ek_free(*items);
  *items = larger;
  *capacity = wanted;
  return 0;
}

/* The one bound on recursion. Frames lie on the heap and no call of the language takes C's stack,
** so a program may be as deep as EKIDEN_MAX_DEPTH says on any thread, however small its stack. */
int ek_vm_grow_frames(ek_vm *vm) {
  size_t capacity = (size_t)vm->frame_capacity;
  void *frames = vm->frames;
  if (vm->n_frames >= vm->max_frames) {
    return ek_error("RunError", "call: recursion is deeper than %d calls", vm->max_frames);
  }
  if (grow(&frames, (size_t)vm->n_frames, (size_t)vm->n_frames + 1, sizeof *vm->frames,
           &capacity) != 0)
    return -1;
  vm->frames = frames;
  size_t most = (size_t)vm->max_frames;
  vm->frame_capacity = (int32_t)(capacity < most ? capacity : most);
  return 0;
}

int ek_vm_grow_registers(ek_vm *vm, size_t needed) {
  void *registers = vm->registers;
  if (grow(&registers, vm->top, needed, sizeof *vm->registers, &vm->capacity) != 0) return -1;
  vm->registers = registers;
  return 0;
}

int ek_vm_grow_args(ek_vm *vm, int64_t used, int64_t needed) {
  size_t capacity = (size_t)vm->args_capacity;
  void *args = vm->args;
  if (needed > INT32_MAX / 2) return ek_error("RunError", "InvokePacked: too many arguments");
  if (grow(&args, (size_t)used, (size_t)needed, sizeof *vm->args, &capacity) != 0) return -1;
  vm->args = args;
  vm->args_capacity = (int32_t)capacity;
  return 0;
}

/* Calls ---------------------------------------------------------------------------------------- */

int ek_vm_enter(ek_vm *vm, const ek_vm_function *f, const int32_t *next, int32_t dst) {
  return enter(vm, f, next, dst);
}

void ek_vm_unwind(ek_vm *vm) {
  while (vm->n_frames != 0) leave(vm);
}

int ek_op_Invoke(ek_vm *vm, ek_value *R, const int32_t *pc) {
  (void)R;
  return op_invoke(vm, pc);
}

int ek_op_Ret(ek_vm *vm, ek_value *R, const int32_t *pc) {
  op_ret(vm, R, pc);
  return 0;
}

/* Returns the function that a closure calls with n more arguments, or NULL. */
static const ek_vm_function *function_of(const ek_vm *vm, const char *instruction,
                                         const ek_value *value, int32_t n) {
  if (value->type_index != EK_CLOSURE) {
    wrong_type(instruction, "a closure", value);
    return NULL;
  }
  const ek_closure *closure = (ek_closure *)(void *)value->v.obj;
  if (closure->executable != &vm->executable->base) {
    ek_error("RunError", "%s: the closure belongs to another executable", instruction);
    return NULL;
  }
  const ek_vm_function *f = &vm->executable->functions[closure->function];
  int32_t bound = closure->captured->size;
  if (bound + n == f->n_params) return f;
  ek_error("RunError", "%s: '%.*s' takes %d arguments, got %d", instruction, (int)f->name.size,
           f->name.data, f->n_params - bound, n);
  return NULL;
}

/* Captured values are copied, not moved: the closure may be called again, or be shared. */
static int32_t copy_captured(ek_value *to, const ek_value *closure) {
  const ek_adt *captured = ((ek_closure *)(void *)closure->v.obj)->captured;
  for (int32_t i = 0; i < captured->size; i++) {
    to[i] = captured->fields[i];
    ek_value_retain(&to[i]);
  }
  return captured->size;
}

/* InvokeClosure dst closure n args */
int ek_op_InvokeClosure(ek_vm *vm, ek_value *R, const int32_t *pc) {
  size_t caller = vm->window;
  int32_t n = ek_InvokeClosure_n(pc);
  ek_value closure = R[ek_InvokeClosure_closure(pc)];
  const ek_vm_function *f = function_of(vm, "InvokeClosure", &closure, n);
  const int32_t *next = pc + ek_InvokeClosure_words(pc);
  if (f == NULL || enter(vm, f, next, ek_InvokeClosure_dst(pc)) != 0) return -1;
  ek_value *callee = vm->registers + vm->window;
  int32_t bound = copy_captured(callee, &closure);
  fetch_all(callee + bound, vm->registers + caller, ek_InvokeClosure_args(pc), n);
  return 0;
}

/* Takes arguments out of registers that die now; one that is asked for again is copied. All are
** read before any is cleared: a register that is given twice is found NONE the second time, and
** that argument gets a reference of its own. */
static void move_all(ek_value *to, ek_value *R, const int32_t *registers, int32_t n) {
  for (int32_t i = 0; i < n; i++) to[i] = R[registers[i]];
  for (int32_t i = 0; i < n; i++) {
    if (R[registers[i]].type_index == EK_NONE) ek_value_retain(&to[i]);
    R[registers[i]] = ek_value_none();
  }
}

/* Puts a function in the place of the running one; its first n registers come from vm->args, which
** they were copied to first, as they lie in the registers that are cleared. The registers must have
** room for it: from here on nothing fails, so that the frame is always whole. */
static void replace(ek_vm *vm, const ek_vm_function *f, int32_t n) {
  ek_value *R = vm->registers + vm->window;
  clear(R, vm->function->n_registers);
  if (n != 0) memcpy(R, vm->args, (size_t)n * sizeof *R);
  vm->function = f;
  vm->pc = __atomic_load_n(&f->entry, __ATOMIC_ACQUIRE);
  vm->top = vm->window + (size_t)f->n_registers;
}

/* A tail call keeps the window, and pushes no frame: a loop of a million turns, written as
** recursion, runs where its first turn does. */
static int reserve_registers(ek_vm *vm, const ek_vm_function *f) {
  size_t top = vm->window + (size_t)f->n_registers;
  return top > vm->capacity ? ek_vm_grow_registers(vm, top) : 0;
}

/* InvokeTail func n args */
int ek_op_InvokeTail(ek_vm *vm, ek_value *R, const int32_t *pc) {
  const ek_vm_function *f = &vm->executable->functions[ek_InvokeTail_func(pc)];
  (void)R;
  if (reserve_registers(vm, f) != 0) return -1;
  move_all(vm->args, vm->registers + vm->window, ek_InvokeTail_args(pc), ek_InvokeTail_n(pc));
  replace(vm, f, ek_InvokeTail_n(pc));
  return 0;
}

/* InvokeClosureTail closure n args */
int ek_op_InvokeClosureTail(ek_vm *vm, ek_value *R, const int32_t *pc) {
  int32_t n = ek_InvokeClosureTail_n(pc);
  const ek_value *closure = &R[ek_InvokeClosureTail_closure(pc)];
  const ek_vm_function *f = function_of(vm, "InvokeClosureTail", closure, n);
  if (f == NULL || reserve_registers(vm, f) != 0) return -1;
  if (f->n_params > vm->args_capacity && ek_vm_grow_args(vm, 0, f->n_params) != 0) return -1;
  R = vm->registers + vm->window;
  int32_t bound = copy_captured(vm->args, &R[ek_InvokeClosureTail_closure(pc)]);
  move_all(vm->args + bound, R, ek_InvokeClosureTail_args(pc), n);
  replace(vm, f, bound + n);
  return 0;
}

/* Primitives ----------------------------------------------------------------------------------- */

static bool is_empty_tensor(const ek_value *value) {
  const ek_dltensor *tensor = ek_value_tensor(value);
  for (int32_t i = 0; tensor != NULL && i < tensor->ndim; i++) {
    if (tensor->shape[i] == 0) return true;
  }
  return false;
}

/* The fields of an ADT argument; returns the new number of arguments, or -1. */
static int32_t flatten(ek_vm *vm, const ek_value *value, int32_t count, int32_t after) {
  const ek_adt *adt = (ek_adt *)(void *)value->v.obj;
  int64_t needed = (int64_t)count + adt->size + after;
  if (needed > vm->args_capacity && ek_vm_grow_args(vm, count, needed) != 0) return -1;
  if (adt->size != 0) memcpy(vm->args + count, adt->fields, (size_t)adt->size * sizeof *vm->args);
  return count + adt->size;
}

/* Constants are mapped read-only: a kernel that wrote to one would end the process. */
static int expect_writable(const ek_value *outputs, const ek_value *end) {
  for (; outputs < end; outputs++) {
    if (outputs->type_index != EK_TENSOR) continue;
    const ek_object *object = outputs->v.obj;
    if (ek_tensor_is_own(object) &&
        ((const ek_tensor *)(const void *)object)->flags & EK_DLPACK_READ_ONLY) {
      return ek_error("RunError", "InvokePacked: an output is a tensor that is read-only");
    }
  }
  return 0;
}

/* Kernels borrow: registers own the arguments meanwhile, and no count is touched on the way. Of an
** ADT value its fields are given, one level deep. A call whose one output has no elements is left
** out, so that kernels need not know of sizes of 0; with several outputs it is made, as another may
** have some. */
int ek_vm_gather(ek_vm *vm, const ek_value *R, const int32_t *pc, ek_vm_call *call) {
  int32_t n = ek_InvokePacked_n(pc), inputs = n - ek_InvokePacked_output_size(pc), count = 0;
  const int32_t *registers = ek_InvokePacked_args(pc);
  if (ek_InvokePacked_output_size(pc) == 1 && is_empty_tensor(&R[registers[n - 1]])) return 0;
  for (int32_t i = 0; i < n; i++) {
    const ek_value *value = &R[registers[i]];
    if (i == inputs) call->n_inputs = count;
    if (value->type_index != EK_ADT) {
      vm->args[count++] = *value;
    } else if ((count = flatten(vm, value, count, n - i)) < 0) {
      return -1;
    }
  }
  call->n = count;
  if (inputs == n) call->n_inputs = count;
  if (expect_writable(vm->args + call->n_inputs, vm->args + count) != 0) return -1;
  if (vm->executable->n_devices == 1) return 1;
  return ek_vm_check_places(vm, ek_InvokePacked_packed_index(pc), count) == 0 ? 1 : -1;
}

/* InvokePacked primitive n outputs args. Arguments are borrowed: registers hold them meanwhile. */
int ek_op_InvokePacked(ek_vm *vm, ek_value *R, const int32_t *pc) {
  ek_vm_call call;
  ek_value result = ek_value_none();
  int status = ek_vm_gather(vm, R, pc, &call);
  if (status <= 0) return status;
  ek_object *called = ek_executable_linked(vm->executable, ek_InvokePacked_packed_index(pc));
  status = ek_function_call(called, vm->args, call.n, &result);
  ek_value_release(&result);
  return status;
}

/* The bytes that a tensor may lend; none where it is not whole, or on no CPU. The memory planner
** gives a kernel's working memory a place among the run's tensors; what does not fit there comes
** from the thread's own workspace (ek_services.c). */
static ek_scratch lendable(const ek_value *value) {
  const ek_dltensor *tensor = ek_value_tensor(value);
  ek_scratch none = {NULL, 0, 0};
  bool is_bytes = tensor != NULL && tensor->ndim == 1 && tensor->dtype.bits == 8 &&
                  tensor->dtype.lanes == 1 && tensor->device.type == EK_CPU &&
                  tensor->shape[0] > 0 && (tensor->strides == NULL || tensor->strides[0] == 1);
  if (!is_bytes || expect_writable(value, value + 1) != 0) return none;
  char *begin = (char *)tensor->data + tensor->byte_offset;
  size_t skip = -(uintptr_t)begin % EK_SCRATCH_UNIT, size = (size_t)tensor->shape[0];
  return size < skip ? none : (ek_scratch){begin + skip, size - skip, 0};
}

/* InvokePackedScratch primitive n outputs args scratch */
int ek_op_InvokePackedScratch(ek_vm *vm, ek_value *R, const int32_t *pc) {
  ek_scratch before = ek_workspace_lend(lendable(&R[ek_InvokePackedScratch_scratch(pc)]));
  int status = ek_op_InvokePacked(vm, R, pc);
  ek_workspace_lend(before);
  return status;
}

/* Convert the result of a foreign function to a form that a register can hold. A program for one
** device checks its device here; in other programs the reading calls do (ek_vm_check_places). */
static int own_result(ek_vm *vm, ek_value *result) {
  const ek_executable *e = vm->executable;
  const ek_dltensor *tensor = ek_value_tensor(result);
  ek_value own;
  bool is_elsewhere = tensor != NULL && e->n_devices == 1 &&
                      !ek_device_same(tensor->device, e->devices[0]);
  int status = 0;
  if (tensor != NULL && !is_elsewhere) {
    status = ek_vm_own_tensor(vm, result, tensor, false, &own);
    ek_value_release(result);
    *result = status == 0 ? own : ek_value_none();
  } else if (result->type_index >= EK_OBJECT && e->n_devices == 1) {
    status = ek_vm_own_data(vm, result, e->devices[0]);
    if (status != 0) ek_value_release(result);
  }
  return status;
}

/* InvokePackedValue dst primitive n args: what the function gives, as a register can hold it. */
int ek_op_InvokePackedValue(ek_vm *vm, ek_value *R, const int32_t *pc) {
  ek_value result = ek_value_none();
  int32_t n = ek_InvokePackedValue_n(pc);
  ek_object *called = ek_executable_linked(vm->executable, ek_InvokePackedValue_packed_index(pc));
  for (int32_t i = 0; i < n; i++) vm->args[i] = R[ek_InvokePackedValue_args(pc)[i]];
  if (ek_function_call(called, vm->args, n, &result) != 0) return -1;
  if (own_result(vm, &result) != 0) return -1;
  set(&R[ek_InvokePackedValue_dst(pc)], result);
  return 0;
}

/* Allocation ----------------------------------------------------------------------------------- */

/* Whether the register holds a tensor that nobody else knows, of this storage and as many dimensions:
** it becomes the one that is asked for, which costs less than another.
**
** A loop allocates one tensor anew each turn, while its register still has that of the turn before;
** a straight program has few registers for many tensors. If this is the only reference, nobody can
** tell the two apart. The load is acquire: what other owners wrote before they let go comes before
** what is written from here on. What does not fit is left to where it is an error. */
static bool move_tensor(const ek_value *dst, const ek_storage *storage, int64_t offset,
                        const int64_t *shape, int32_t ndim, ek_dtype dtype) {
  if (dst->type_index != EK_TENSOR || !ek_tensor_is_own(dst->v.obj)) return false;
  ek_tensor *tensor = (ek_tensor *)(void *)dst->v.obj;
  if (__atomic_load_n(&tensor->base.refs, __ATOMIC_ACQUIRE) != EK_REFS_NEW) return false;
  if (tensor->owner != &storage->base || tensor->dl.ndim != ndim) return false;
  uint64_t stride = 1, bytes; /* the stride wraps around only where another dimension is 0 */
  for (int32_t i = 0; i < ndim; i++) {
    if (shape[i] < 0 || __builtin_mul_overflow(stride, (uint64_t)shape[i], &stride)) return false;
  }
  if (dtype.bits == 0 || dtype.bits % 8 != 0 || dtype.lanes != 1) return false;
  if (__builtin_mul_overflow(stride, (uint64_t)dtype.bits / 8, &bytes)) return false;
  if (bytes > storage->size - (size_t)offset) return false;
  stride = 1;
  for (int32_t i = ndim - 1; i >= 0; i--) {
    tensor->dims[i] = shape[i];
    tensor->dims[ndim + i] = (int64_t)stride;
    stride *= shape[i] == 0 ? 1 : (uint64_t)shape[i];
  }
  tensor->dl.dtype = dtype;
  tensor->dl.data = (char *)storage->data + offset;
  tensor->dl.byte_offset = 0;
  tensor->flags = 0;
  return true;
}

static int tensor_at(const char *instruction, const ek_value *value, int64_t offset,
                     const int64_t *shape, int32_t ndim, const int32_t *dtype_words,
                     ek_value *dst) {
  if (value->type_index != EK_STORAGE) return wrong_type(instruction, "a storage", value);
  ek_storage *storage = (ek_storage *)(void *)value->v.obj;
  ek_dtype dtype = {(uint8_t)dtype_words[0], (uint8_t)dtype_words[1], (uint16_t)dtype_words[2]};
  ek_object *tensor;
  if (offset < 0 || (uint64_t)offset > storage->size) {
    return ek_error("RunError", "%s: an offset in a storage of %zu bytes expected, got %lld",
                    instruction, storage->size, (long long)offset);
  }
  if (move_tensor(dst, storage, offset, shape, ndim, dtype)) return 0;
  if (ek_tensor_view(&storage->base, (char *)storage->data + offset, shape, ndim, dtype,
                     storage->device, 0, &tensor) != 0)
    return -1;
  set_object(dst, tensor);
  return 0;
}

/* AllocTensor dst storage offset:2 dtype:3 n shape:2n */
int ek_op_AllocTensor(ek_vm *vm, ek_value *R, const int32_t *pc) {
  (void)vm;
  int64_t shape[EK_MAX_NDIM];
  int32_t ndim = ek_AllocTensor_n(pc);
  for (int32_t i = 0; i < ndim; i++) shape[i] = ek_wide(ek_AllocTensor_shape(pc) + 2 * i);
  return tensor_at("AllocTensor", &R[ek_AllocTensor_storage(pc)], ek_AllocTensor_offset(pc), shape,
                   ndim, ek_AllocTensor_dtype(pc), &R[ek_AllocTensor_dst(pc)]);
}

/* AllocTensorReg dst storage offset offset_index shape shape_index ndim dtype:3 */
int ek_op_AllocTensorReg(ek_vm *vm, ek_value *R, const int32_t *pc) {
  (void)vm;
  int64_t offset;
  const int64_t *shape;
  int32_t ndim = ek_AllocTensorReg_ndim(pc);
  if (read_size("AllocTensorReg", &R[ek_AllocTensorReg_offset(pc)],
                ek_AllocTensorReg_offset_index(pc), &offset) != 0 ||
      read_int64s("AllocTensorReg", &R[ek_AllocTensorReg_shape(pc)],
                  ek_AllocTensorReg_shape_index(pc), ndim, &shape) != 0) {
    return -1;
  }
  return tensor_at("AllocTensorReg", &R[ek_AllocTensorReg_storage(pc)], offset, shape, ndim,
                   ek_AllocTensorReg_dtype(pc), &R[ek_AllocTensorReg_dst(pc)]);
}

/* Whether a value is a tensor that one reference leads to, in a storage that only it refers to, by
** itself or as a view of a tensor that nobody else has: what is written there nobody else sees.
**
** That is counted when the program runs because it cannot be known before, across calls, loops and
** data: a table updated row by row would else be copied for every row. */
static bool is_alone(const ek_value *value, ek_device device) {
  if (value->type_index != EK_TENSOR) return false;
  const ek_object *object = value->v.obj;
  for (;;) { /* from a view to what it is a view of: each step is one reference that is counted */
    if (!ek_tensor_is_own(object)) return false;
    const ek_tensor *tensor = (const ek_tensor *)(const void *)object;
    if (__atomic_load_n(&object->refs, __ATOMIC_ACQUIRE) != EK_REFS_NEW) return false;
    if ((tensor->flags & EK_DLPACK_READ_ONLY) != 0) return false;
    if (!ek_device_same(tensor->dl.device, device) || tensor->owner == NULL) return false;
    object = tensor->owner;
    if (ek_is(object, EK_STORAGE)) break;
    if (!ek_is(object, EK_TENSOR)) return false;
  }
  return __atomic_load_n(&object->refs, __ATOMIC_ACQUIRE) == EK_REFS_NEW;
}

/* Own dst tensor device */
int ek_op_Own(ek_vm *vm, ek_value *R, const int32_t *pc) {
  ek_device device = vm->executable->devices[ek_Own_device(pc)];
  int32_t operand = ek_Own_tensor(pc);
  ek_value *given = &R[operand < 0 ? -1 - operand : operand];
  const ek_dltensor *tensor = ek_value_tensor(given);
  ek_object *copy;
  if (tensor == NULL) return wrong_type("Own", "a tensor", given);
  if (operand < 0 && is_alone(given, device)) {
    set(&R[ek_Own_dst(pc)], fetch(R, operand));
    return 0;
  }
  if (ek_tensor_copied(tensor, device, &copy) != 0) return -1;
  if (operand < 0) set(given, ek_value_none());
  set_object(&R[ek_Own_dst(pc)], copy);
  return 0;
}

/* AllocADT dst tag n fields */
int ek_op_AllocADT(ek_vm *vm, ek_value *R, const int32_t *pc) {
  ek_adt *adt = ek_adt_alloc(ek_AllocADT_tag(pc), ek_AllocADT_n(pc));
  (void)vm;
  if (adt == NULL) return -1;
  fetch_all(adt->fields, R, ek_AllocADT_fields(pc), ek_AllocADT_n(pc));
  set_object(&R[ek_AllocADT_dst(pc)], &adt->base);
  return 0;
}

static void closure_deleter(void *self, int flags) {
  ek_closure *closure = self;
  if (flags & EK_DELETE_CONTENT) {
    ek_release(&closure->captured->base);
    ek_release(closure->executable);
  }
  if (flags & EK_DELETE_MEMORY) ek_free(self);
}

ek_object *ek_vm_closure(ek_vm *vm, int32_t function, ek_adt *captured) {
  ek_closure *closure = ek_object_alloc(sizeof *closure, EK_CLOSURE, closure_deleter);
  if (closure == NULL) return NULL;
  ek_retain(&vm->executable->base);
  closure->executable = &vm->executable->base;
  closure->captured = captured;
  closure->function = function;
  return &closure->base;
}

/* AllocClosure dst func n free */
int ek_op_AllocClosure(ek_vm *vm, ek_value *R, const int32_t *pc) {
  ek_adt *captured = ek_adt_alloc(0, ek_AllocClosure_n(pc));
  if (captured == NULL) return -1;
  ek_object *closure = ek_vm_closure(vm, ek_AllocClosure_func(pc), captured);
  if (closure == NULL) {
    ek_release(&captured->base);
    return -1;
  }
  fetch_all(captured->fields, R, ek_AllocClosure_free(pc), ek_AllocClosure_n(pc));
  set_object(&R[ek_AllocClosure_dst(pc)], closure);
  return 0;
}

/* A size in bytes: operands size and size_index of an allocation. */
static int read_bytes(const char *instruction, const ek_value *value, int32_t index, size_t *out) {
  int64_t size;
  if (read_size(instruction, value, index, &size) != 0) return -1;
  if (size < 0) {
    return ek_error("RunError", "%s: a size >= 0 expected, got %lld", instruction, (long long)size);
  }
  *out = (size_t)size;
  return 0;
}

/* The caller's memory for the storage that an instruction asks for; NULL where there is none. In
** the run's own function alone, and once: an allocation that is met again is not that of the
** result. */
static ek_vm_place *place_of(ek_vm *vm, const int32_t *pc, size_t size) {
  if (vm->n_frames != 1) return NULL;
  for (int32_t i = 0; i < vm->n_places; i++) {
    ek_vm_place *place = &vm->places[i];
    bool is_here = vm->function->code + place->at == pc && place->size == size;
    if (is_here && !place->is_taken) return place;
  }
  return NULL;
}

/* AllocStorage dst size size_index alignment device */
int ek_op_AllocStorage(ek_vm *vm, ek_value *R, const int32_t *pc) {
  size_t size;
  ek_object *storage;
  ek_device device = vm->executable->devices[ek_AllocStorage_device(pc)];
  const ek_value *wanted = &R[ek_AllocStorage_size(pc)];
  if (read_bytes("AllocStorage", wanted, ek_AllocStorage_size_index(pc), &size) != 0) return -1;
  ek_vm_place *place = place_of(vm, pc, size);
  if (place != NULL && ek_device_is_host(device)) {
    if (ek_storage_lent(place->data, size, &storage) != 0) return -1;
    place->is_taken = true;
  } else {
    size_t alignment = (size_t)ek_AllocStorage_alignment(pc);
    if (ek_storage_new(size, alignment, device, &storage) != 0) return -1;
  }
  set_object(&R[ek_AllocStorage_dst(pc)], storage);
  return 0;
}

/* AllocArena dst size size_index alignment device */
int ek_op_AllocArena(ek_vm *vm, ek_value *R, const int32_t *pc) {
  size_t size;
  ek_object *storage;
  ek_device device = vm->executable->devices[ek_AllocArena_device(pc)];
  size_t alignment = (size_t)ek_AllocArena_alignment(pc);
  const ek_value *wanted = &R[ek_AllocArena_size(pc)];
  if (read_bytes("AllocArena", wanted, ek_AllocArena_size_index(pc), &size) != 0) return -1;
  if (ek_arenas_take(&vm->arenas, size, alignment, device, &storage) != 0) return -1;
  set_object(&R[ek_AllocArena_dst(pc)], storage);
  return 0;
}

/* Fields, shapes, copies ----------------------------------------------------------------------- */

/* GetField dst object index */
int ek_op_GetField(ek_vm *vm, ek_value *R, const int32_t *pc) {
  const ek_value *value = &R[ek_GetField_object(pc)];
  if (value->type_index != EK_ADT) return wrong_type("GetField", "an ADT value", value);
  const ek_adt *adt = (ek_adt *)(void *)value->v.obj;
  if (ek_GetField_index(pc) < adt->size) return op_get_field(vm, R, pc);
  return ek_error("RunError", "GetField: field %d of an ADT value with %d fields is asked for",
                  ek_GetField_index(pc), adt->size);
}

/* GetTag dst object */
int ek_op_GetTag(ek_vm *vm, ek_value *R, const int32_t *pc) {
  if (R[ek_GetTag_object(pc)].type_index == EK_ADT) return op_get_tag(vm, R, pc);
  return wrong_type("GetTag", "an ADT value", &R[ek_GetTag_object(pc)]);
}

static const ek_dltensor *tensor_in(const char *instruction, const ek_value *value) {
  if (value->type_index == EK_TENSOR) return &((ek_tensor *)(void *)value->v.obj)->dl;
  wrong_type(instruction, "a tensor", value);
  return NULL;
}

/* ShapeOf dst tensor */
int ek_op_ShapeOf(ek_vm *vm, ek_value *R, const int32_t *pc) {
  (void)vm;
  const ek_dltensor *tensor = tensor_in("ShapeOf", &R[ek_ShapeOf_tensor(pc)]);
  ek_object *shape;
  if (tensor == NULL) return -1;
  int64_t ndim = tensor->ndim;
  if (ek_tensor_new(&ndim, 1, int64_dtype, host, &shape) != 0) return -1;
  int64_t *to = ((ek_tensor *)(void *)shape)->dl.data;
  for (int64_t i = 0; i < ndim; i++) to[i] = tensor->shape[i];
  set_object(&R[ek_ShapeOf_dst(pc)], shape);
  return 0;
}

/* ReshapeTensor dst tensor shape shape_index ndim The result is a view, which owns its tensor and
** through it the memory. */
int ek_op_ReshapeTensor(ek_vm *vm, ek_value *R, const int32_t *pc) {
  (void)vm;
  const ek_dltensor *tensor = tensor_in("ReshapeTensor", &R[ek_ReshapeTensor_tensor(pc)]);
  const int64_t *shape;
  size_t nbytes;
  ek_object *view;
  int32_t ndim = ek_ReshapeTensor_ndim(pc);
  if (tensor == NULL || read_int64s("ReshapeTensor", &R[ek_ReshapeTensor_shape(pc)],
                                    ek_ReshapeTensor_shape_index(pc), ndim, &shape) != 0) {
    return -1;
  }
  if (!ek_dltensor_is_contiguous(tensor)) {
    return ek_error("RunError",
                    "ReshapeTensor: a contiguous tensor expected, got one with strides");
  }
  if (ek_shape_nbytes(shape, ndim, tensor->dtype, &nbytes) != 0) return -1;
  if (nbytes != ek_dltensor_nbytes(tensor)) {
    return ek_error("RunError", "ReshapeTensor: a shape of %zu bytes expected, got one of %zu",
                    ek_dltensor_nbytes(tensor), nbytes);
  }
  ek_object *owner = R[ek_ReshapeTensor_tensor(pc)].v.obj;
  if (ek_tensor_view(owner, ek_dltensor_data(tensor), shape, ndim, tensor->dtype, tensor->device, 0,
                     &view) != 0) {
    return -1;
  }
  set_object(&R[ek_ReshapeTensor_dst(pc)], view);
  return 0;
}

/* ReadElement dst tensor index */
int ek_op_ReadElement(ek_vm *vm, ek_value *R, const int32_t *pc) {
  const ek_dltensor *tensor = tensor_in("ReadElement", &R[ek_ReadElement_tensor(pc)]);
  (void)vm;
  if (tensor == NULL) return -1;
  if (!ek_device_is_host(tensor->device) || !is_integral(tensor->dtype) ||
      !ek_dltensor_is_contiguous(tensor)) {
    return ek_error("RunError",
                    "ReadElement: an integer or boolean tensor of the host expected, got another");
  }
  size_t n = ek_dltensor_nbytes(tensor) / (tensor->dtype.bits / 8u);
  if ((size_t)ek_ReadElement_index(pc) >= n) {
    return ek_error("RunError", "ReadElement: element %d of a tensor with %zu is asked for",
                    ek_ReadElement_index(pc), n);
  }
  set(&R[ek_ReadElement_dst(pc)], ek_value_int(element_of(tensor, ek_ReadElement_index(pc))));
  return 0;
}

/* References -----------------------------------------------------------------------------------
**
** Values may be shared by machines of several threads, so a reference is read and written under a
** lock; it is held for a few instructions. */

static void reference_deleter(void *self, int flags) {
  ek_reference *reference = self;
  if (flags & EK_DELETE_CONTENT) ek_release(&reference->cell->base);
  if (flags & EK_DELETE_MEMORY) ek_free(self);
}

EK_COLD static void lock_reference(ek_reference *reference) {
  for (int spins = 0; __atomic_exchange_n(&reference->lock, 1, __ATOMIC_ACQUIRE) != 0; spins++) {
    if (spins < 100) ek_pause();
    else ek_thread_yield();
  }
}

static void unlock_reference(ek_reference *reference) {
  __atomic_store_n(&reference->lock, 0, __ATOMIC_RELEASE);
}

ek_object *ek_vm_reference(ek_value value) {
  ek_adt *cell = ek_adt_alloc(0, 1);
  if (cell == NULL) return NULL;
  ek_reference *reference = ek_object_alloc(sizeof *reference, EK_REFERENCE, reference_deleter);
  if (reference == NULL) {
    ek_release(&cell->base);
    return NULL;
  }
  cell->fields[0] = value;
  reference->cell = cell;
  return &reference->base;
}

/* Returns the cell's value, owned, and the executable that wrote it. */
EK_COLD static ek_value read_reference(ek_reference *reference, uint64_t *from) {
  lock_reference(reference);
  ek_value value = reference->cell->fields[0];
  *from = reference->known_to;
  ek_value_retain(&value);
  unlock_reference(reference);
  return value;
}

ek_value ek_vm_reference_read(ek_object *object) {
  uint64_t from;
  return read_reference((ek_reference *)(void *)object, &from);
}

/* Replaces the cell's value by '*value', which it takes over; leaves in '*value' the old one, or the
** new one where 'expected' is not NULL and the cell holds another object. */
EK_COLD static void exchange(ek_reference *reference, ek_value *value, const ek_object *expected,
                             uint64_t from) {
  ek_value *held = &reference->cell->fields[0];
  lock_reference(reference);
  if (expected == NULL || (held->type_index >= EK_OBJECT && held->v.obj == expected)) {
    ek_value old = *held;
    *held = *value;
    *value = old;
    reference->known_to = from;
  }
  unlock_reference(reference);
  ek_value_release(value);
}

void ek_vm_reference_write(ek_object *object, ek_value value, uint64_t from) {
  exchange((ek_reference *)(void *)object, &value, NULL, from);
}

/* AllocRef dst value */
int ek_op_AllocRef(ek_vm *vm, ek_value *R, const int32_t *pc) {
  ek_object *object = ek_vm_reference(ek_value_none());
  if (object == NULL) return -1;
  ek_reference *reference = (ek_reference *)(void *)object; /* nobody else has it yet: no lock */
  reference->cell->fields[0] = fetch(R, ek_AllocRef_value(pc));
  reference->known_to = vm->executable->number;
  set_object(&R[ek_AllocRef_dst(pc)], object);
  return 0;
}

/* Converts a value that was read from a reference for a device of the program, and stores what it
** became there, unless the reference was written meanwhile. 0 or -1. */
EK_COLD static int own_held(ek_vm *vm, ek_reference *reference, ek_value *value, ek_device device,
                            int depth) {
  const ek_object *before = value->v.obj;
  if (value->type_index < EK_OBJECT) return 0;
  if (ek_vm_own_nested(vm, value, device, depth) != 0) return -1;
  ek_value stored = *value;
  ek_value_retain(&stored);
  exchange(reference, &stored, before, vm->executable->number);
  return 0;
}

/* Convert a value that another program or the host wrote to a reference to a form that registers of
** this program can hold. The converted value is stored back, so this happens once. In a program of
** several devices the place of a reference is known where it enters (ek_vm_enter_reference); what is
** written later is checked where it is used (ek_vm_check_places). */
EK_COLD static int own_unknown(ek_vm *vm, ek_reference *reference, ek_value *value) {
  const ek_executable *e = vm->executable;
  return e->n_devices != 1 ? 0 : own_held(vm, reference, value, e->devices[0], 0);
}

EK_COLD int ek_vm_enter_reference(ek_vm *vm, ek_object *object, ek_device device, int depth) {
  ek_reference *reference = (ek_reference *)(void *)object;
  uint64_t from, call = vm->call;
  /* Marked first: a reference may hold data that leads back to it. */
  if (vm->executable->n_devices == 1 ||
      __atomic_exchange_n(&reference->entered, call, __ATOMIC_RELAXED) == call) {
    return 0;
  }
  /* What this program wrote, too: references in it may have been written by others. */
  ek_value value = read_reference(reference, &from);
  int status = own_held(vm, reference, &value, device, depth);
  ek_value_release(&value);
  return status;
}

/* ReadRef dst ref */
int ek_op_ReadRef(ek_vm *vm, ek_value *R, const int32_t *pc) {
  const ek_value *ref = &R[ek_ReadRef_ref(pc)];
  if (ref->type_index != EK_REFERENCE) return wrong_type("ReadRef", "a reference", ref);
  ek_reference *reference = (ek_reference *)(void *)ref->v.obj;
  uint64_t from;
  ek_value value = read_reference(reference, &from);
  if (from != vm->executable->number && own_unknown(vm, reference, &value) != 0) {
    ek_value_release(&value);
    return -1;
  }
  set(&R[ek_ReadRef_dst(pc)], value);
  return 0;
}

/* WriteRef ref value */
int ek_op_WriteRef(ek_vm *vm, ek_value *R, const int32_t *pc) {
  const ek_value *ref = &R[ek_WriteRef_ref(pc)];
  if (ref->type_index != EK_REFERENCE) return wrong_type("WriteRef", "a reference", ref);
  ek_object *reference = ref->v.obj;   /* read first: the value may be moved from there */
  ek_vm_reference_write(reference, fetch(R, ek_WriteRef_value(pc)), vm->executable->number);
  return 0;
}

/* Jumps and plain values ----------------------------------------------------------------------- */

/* If test target true_offset false_offset */
int ek_op_If(ek_vm *vm, ek_value *R, const int32_t *pc) {
  int64_t test, target;
  if (read_scalar("If", &R[ek_If_test(pc)], &test) != 0) return -1;
  if (read_scalar("If", &R[ek_If_target(pc)], &target) != 0) return -1;
  vm->pc = pc + (test == target ? ek_If_true_offset(pc) : ek_If_false_offset(pc));
  return 0;
}

/* Switch value n offsets */
int ek_op_Switch(ek_vm *vm, ek_value *R, const int32_t *pc) {
  int64_t number;
  const ek_value *value = &R[ek_Switch_value(pc)];
  if (value->type_index == EK_ADT) number = ((ek_adt *)(void *)value->v.obj)->tag;
  else if (read_scalar("Switch", value, &number) != 0) return -1;
  vm->pc = pc + switch_offset(pc, number);
  return 0;
}

int ek_op_Goto(ek_vm *vm, ek_value *R, const int32_t *pc) {
  (void)R;
  vm->pc = pc + ek_Goto_offset(pc);
  return 0;
}

int ek_op_Move(ek_vm *vm, ek_value *R, const int32_t *pc) {
  (void)vm;
  set(&R[ek_Move_dst(pc)], fetch(R, ek_Move_src(pc)));
  return 0;
}

int ek_op_LoadConst(ek_vm *vm, ek_value *R, const int32_t *pc) {
  ek_object *constant = vm->executable->constants[ek_LoadConst_const_index(pc)];
  set_copy(&R[ek_LoadConst_dst(pc)], ek_value_object(constant));
  return 0;
}

int ek_op_LoadConsti(ek_vm *vm, ek_value *R, const int32_t *pc) {
  (void)vm;
  set(&R[ek_LoadConsti_dst(pc)], ek_value_int(ek_LoadConsti_value(pc)));
  return 0;
}

int ek_op_KillRegister(ek_vm *vm, ek_value *R, const int32_t *pc) {
  (void)vm;
  set(&R[ek_KillRegister_dst(pc)], ek_value_none());
  return 0;
}

int ek_op_Fatal(ek_vm *vm, ek_value *R, const int32_t *pc) {
  (void)vm, (void)R, (void)pc;
  return ek_error("RunError", "Fatal: the program cannot go on");
}

const ek_vm_op ek_vm_ops[EK_OP_COUNT] = {
#define EK_OPCODE(name, text, format, operands, properties, meaning) ek_op_##name,
#include "vm_opcodes.def"
#undef EK_OPCODE
};
