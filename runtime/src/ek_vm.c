/* The virtual machine: frames and the loop.
**
** The verifier has proven every operand in range, so the loop checks none of them. What registers
** hold is known only here: each body that needs a tensor, ADT, closure, storage or integer asks
** for it. The meaning of each instruction stands in vm_opcodes.def, in the same order as here.
**
*/
#include "ek_vm.h"

#include "ek_verify.h"

/* Values --------------------------------------------------------------------------------------- */

/* Puts an owned value in a register. The new value goes in before the old one dies. */
static inline void set(ek_value *to, ek_value value) {
  ek_value old = *to;
  *to = value;
  if (old.type_index >= EK_OBJECT) ek_release(old.v.obj);
}

static inline void set_copy(ek_value *to, ek_value value) {
  if (value.type_index >= EK_OBJECT) ek_retain(value.v.obj);
  set(to, value);
}

static inline void set_object(ek_value *to, ek_object *object) { set(to, ek_value_object(object)); }

static const char *type_name(const ek_value *value) {
  const char *key = ek_type_key(value->type_index);
  return value->type_index == EK_NONE ? "nothing" : key == NULL ? "an unknown type" : key;
}

static int wrong_type(const char *instruction, const char *expected, const ek_value *got) {
  return ek_error("RunError", "%s: %s expected, got %s", instruction, expected, type_name(got));
}

static inline int64_t wide(const int32_t *words) {
  return (int64_t)((uint64_t)(uint32_t)words[0] | (uint64_t)(uint32_t)words[1] << 32);
}

static const ek_dtype int64_dtype = {EK_DTYPE_INT, 64, 1};
static const ek_device host = {EK_CPU, 0};

/* The elements [index, index + n) of an int64 vector, as addresses and shapes are given. */
static int read_int64s(const char *instruction, const ek_value *value, int32_t index, int32_t n,
                       const int64_t **out) {
  if (value->type_index != EK_TENSOR) return wrong_type(instruction, "an int64 tensor", value);
  const ek_dltensor *tensor = &((ek_tensor *)(void *)value->v.obj)->dl;
  if (tensor->device.type != EK_CPU ||
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

static bool is_integral(ek_dtype dtype) {
  bool is_number = dtype.code == EK_DTYPE_INT || dtype.code == EK_DTYPE_UINT;
  return dtype.lanes == 1 && (is_number ? dtype.bits >= 8 && dtype.bits <= 64
                                        : dtype.code == EK_DTYPE_BOOL && dtype.bits == 8);
}

/* The one element of an integer or boolean tensor. */
static int read_scalar(const ek_value *value, int64_t *out) {
  if (value->type_index != EK_TENSOR) return wrong_type("If", "an integer or a tensor", value);
  const ek_dltensor *tensor = &((ek_tensor *)(void *)value->v.obj)->dl;
  const void *data = ek_dltensor_data(tensor);
  size_t size = tensor->dtype.bits / 8;
  if (tensor->device.type != EK_CPU || !is_integral(tensor->dtype) ||
      ek_dltensor_nbytes(tensor) != size) {
    return ek_error("RunError",
                    "If: an integer or boolean tensor of one element expected, got another");
  }
  bool is_signed = tensor->dtype.code == EK_DTYPE_INT;
  uint64_t bits = 0;
  memcpy(&bits, data, size);
  unsigned unused = 64 - tensor->dtype.bits;
  *out = is_signed ? (int64_t)(bits << unused) >> unused : (int64_t)bits;
  return 0;
}

static inline int read_test(const ek_value *value, int64_t *out) {
  if (value->type_index != EK_INT && value->type_index != EK_BOOL) return read_scalar(value, out);
  *out = value->v.i64;
  return 0;
}

/* Growing -------------------------------------------------------------------------------------- */

/* Makes room for 'needed' items of 'size' bytes by doubling; new items are zero. */
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

static int grow_frames(ek_vm *vm) {
  size_t capacity = (size_t)vm->frame_capacity;
  void *frames = vm->frames;
  if (vm->n_frames >= EK_VM_MAX_FRAMES) {
    return ek_error("RunError", "call: recursion is deeper than %d calls", EK_VM_MAX_FRAMES);
  }
  if (grow(&frames, (size_t)vm->n_frames, (size_t)vm->n_frames + 1, sizeof *vm->frames,
           &capacity) != 0)
    return -1;
  vm->frames = frames;
  vm->frame_capacity = capacity > EK_VM_MAX_FRAMES ? EK_VM_MAX_FRAMES : (int32_t)capacity;
  return 0;
}

static int grow_registers(ek_vm *vm, size_t needed) {
  void *registers = vm->registers;
  if (grow(&registers, vm->top, needed, sizeof *vm->registers, &vm->capacity) != 0) return -1;
  vm->registers = registers;
  return 0;
}

static int grow_args(ek_vm *vm, int64_t used, int64_t needed) {
  size_t capacity = (size_t)vm->args_capacity;
  void *args = vm->args;
  if (needed > INT32_MAX / 2) return ek_error("RunError", "InvokePacked: too many arguments");
  if (grow(&args, (size_t)used, (size_t)needed, sizeof *vm->args, &capacity) != 0) return -1;
  vm->args = args;
  vm->args_capacity = (int32_t)capacity;
  return 0;
}

/* Calls ---------------------------------------------------------------------------------------- */

/* The registers of the running function. */
typedef struct window {
  const int32_t *pc;
  size_t base;
  int32_t n_registers;
} window;

/* Pushes a frame and enters a function; its arguments are for the caller to write. 0 or -1. */
static inline int enter(ek_vm *vm, window *w, const ek_vm_function *f, const int32_t *next,
                        int32_t dst) {
  size_t top = vm->top + (size_t)f->n_registers;
  if (vm->n_frames == vm->frame_capacity && grow_frames(vm) != 0) return -1;
  if (top > vm->capacity && grow_registers(vm, top) != 0) return -1;
  vm->frames[vm->n_frames++] = (ek_frame){next, w->base, w->n_registers, dst};
  *w = (window){f->code, vm->top, f->n_registers};
  vm->top = top;
  return 0;
}

/* Empties the registers of the running function and goes back to its caller; returns that one's
** dst. */
static inline int32_t leave(ek_vm *vm, window *w) {
  const ek_frame *frame = &vm->frames[--vm->n_frames];
  ek_value *R = vm->registers + w->base;
  for (int32_t i = 0; i < w->n_registers; i++) {
    if (R[i].type_index >= EK_OBJECT) ek_release(R[i].v.obj);
    R[i] = ek_value_none();
  }
  vm->top = w->base;
  *w = (window){frame->pc, frame->base, frame->n_registers};
  return frame->dst;
}

static inline void copy_registers(ek_value *to, const ek_value *from, const int32_t *registers,
                                  int32_t n) {
  for (int32_t i = 0; i < n; i++) {
    to[i] = from[registers[i]];
    if (to[i].type_index >= EK_OBJECT) ek_retain(to[i].v.obj);
  }
}

/* Invoke dst func n args */
static inline int invoke(ek_vm *vm, window *w) {
  const int32_t *pc = w->pc;
  size_t caller = w->base;
  int32_t n = pc[3];
  if (enter(vm, w, &vm->executable->functions[pc[2]], pc + 4 + n, pc[1]) != 0) return -1;
  copy_registers(vm->registers + w->base, vm->registers + caller, pc + 4, n);
  return 0;
}

/* InvokeClosure dst closure n args */
static int invoke_closure(ek_vm *vm, window *w) {
  const int32_t *pc = w->pc;
  size_t caller = w->base;
  int32_t n = pc[3];
  const ek_value *value = &vm->registers[caller + (size_t)pc[2]];
  if (value->type_index != EK_CLOSURE) return wrong_type("InvokeClosure", "a closure", value);
  const ek_closure *closure = (ek_closure *)(void *)value->v.obj;
  if (closure->executable != &vm->executable->base) {
    return ek_error("RunError", "InvokeClosure: the closure belongs to another executable");
  }
  const ek_vm_function *f = &vm->executable->functions[closure->function];
  const ek_adt *captured = closure->captured;
  if (captured->size + n != f->n_params) {
    return ek_error("RunError", "InvokeClosure: '%.*s' takes %d arguments, got %d",
                    (int)f->name.size, f->name.data, f->n_params - captured->size, n);
  }
  if (enter(vm, w, f, pc + 4 + n, pc[1]) != 0) return -1;
  ek_value *R = vm->registers + w->base;
  for (int32_t i = 0; i < captured->size; i++) set_copy(&R[i], captured->fields[i]);
  copy_registers(R + captured->size, vm->registers + caller, pc + 4, n);
  return 0;
}

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
  if (needed > vm->args_capacity && grow_args(vm, count, needed) != 0) return -1;
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

/* InvokePacked primitive n outputs args. Arguments are borrowed: registers hold them meanwhile. */
static inline int invoke_packed(ek_vm *vm, const ek_value *R, const int32_t *pc) {
  int32_t n = pc[2], inputs = n - pc[3], count = 0, first_output = 0;
  const int32_t *registers = pc + 4;
  if (pc[3] == 1 && is_empty_tensor(&R[registers[n - 1]])) return 0;
  for (int32_t i = 0; i < n; i++) {
    const ek_value *value = &R[registers[i]];
    if (i == inputs) first_output = count;
    if (value->type_index != EK_ADT) {
      vm->args[count++] = *value;
    } else if ((count = flatten(vm, value, count, n - i)) < 0) {
      return -1;
    }
  }
  if (inputs < n && expect_writable(vm->args + first_output, vm->args + count) != 0) return -1;
  ek_value result = ek_value_none();
  int status = ek_function_call(vm->executable->linked[pc[1]], vm->args, count, &result);
  ek_value_release(&result);
  return status;
}

/* Allocation ----------------------------------------------------------------------------------- */

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
  if (ek_tensor_view(&storage->base, (char *)storage->data + offset, shape, ndim, dtype,
                     storage->device, 0, &tensor) != 0)
    return -1;
  set_object(dst, tensor);
  return 0;
}

/* AllocTensor dst storage offset:2 dtype:3 n shape:2n */
static int alloc_tensor(ek_value *R, const int32_t *pc) {
  int64_t shape[EK_MAX_NDIM];
  int32_t ndim = pc[8];
  for (int32_t i = 0; i < ndim; i++) shape[i] = wide(pc + 9 + 2 * i);
  return tensor_at("AllocTensor", &R[pc[2]], wide(pc + 3), shape, ndim, pc + 5, &R[pc[1]]);
}

/* AllocTensorReg dst storage offset offset_index shape shape_index ndim dtype:3 */
static int alloc_tensor_reg(ek_value *R, const int32_t *pc) {
  int64_t offset;
  const int64_t *shape;
  if (read_size("AllocTensorReg", &R[pc[3]], pc[4], &offset) != 0) return -1;
  if (read_int64s("AllocTensorReg", &R[pc[5]], pc[6], pc[7], &shape) != 0) return -1;
  return tensor_at("AllocTensorReg", &R[pc[2]], offset, shape, pc[7], pc + 8, &R[pc[1]]);
}

/* AllocADT dst tag n fields */
static int alloc_adt(ek_vm *vm, ek_value *R, const int32_t *pc) {
  ek_object *adt;
  for (int32_t i = 0; i < pc[3]; i++) vm->args[i] = R[pc[4 + i]];
  if (ek_adt_new(pc[2], vm->args, pc[3], &adt) != 0) return -1;
  set_object(&R[pc[1]], adt);
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

/* AllocClosure dst func n free */
static int alloc_closure(ek_vm *vm, ek_value *R, const int32_t *pc) {
  ek_object *captured;
  for (int32_t i = 0; i < pc[3]; i++) vm->args[i] = R[pc[4 + i]];
  if (ek_adt_new(0, vm->args, pc[3], &captured) != 0) return -1;
  ek_closure *closure = ek_object_alloc(sizeof *closure, EK_CLOSURE, closure_deleter);
  if (closure == NULL) {
    ek_release(captured);
    return -1;
  }
  ek_retain(&vm->executable->base);
  closure->executable = &vm->executable->base;
  closure->captured = (ek_adt *)(void *)captured;
  closure->function = pc[2];
  set_object(&R[pc[1]], &closure->base);
  return 0;
}

/* AllocStorage dst size size_index alignment device */
static int alloc_storage(ek_value *R, const int32_t *pc) {
  int64_t size;
  ek_object *storage;
  if (read_size("AllocStorage", &R[pc[2]], pc[3], &size) != 0) return -1;
  if (size < 0)
    return ek_error("RunError", "AllocStorage: a size >= 0 expected, got %lld", (long long)size);
  if (ek_storage_new((size_t)size, (size_t)pc[4], host, &storage) != 0) return -1;
  set_object(&R[pc[1]], storage);
  return 0;
}

/* Fields, shapes, copies ----------------------------------------------------------------------- */

/* GetField dst object index */
static inline int get_field(ek_value *R, const int32_t *pc) {
  const ek_value *value = &R[pc[2]];
  if (value->type_index != EK_ADT) return wrong_type("GetField", "an ADT value", value);
  const ek_adt *adt = (ek_adt *)(void *)value->v.obj;
  if (pc[3] >= adt->size) {
    return ek_error("RunError", "GetField: field %d of an ADT value with %d fields is asked for",
                    pc[3], adt->size);
  }
  set_copy(&R[pc[1]], adt->fields[pc[3]]);
  return 0;
}

/* GetTag dst object */
static inline int get_tag(ek_value *R, const int32_t *pc) {
  const ek_value *value = &R[pc[2]];
  if (value->type_index != EK_ADT) return wrong_type("GetTag", "an ADT value", value);
  set(&R[pc[1]], ek_value_int(((ek_adt *)(void *)value->v.obj)->tag));
  return 0;
}

static const ek_dltensor *tensor_in(const char *instruction, const ek_value *value) {
  if (value->type_index == EK_TENSOR) return &((ek_tensor *)(void *)value->v.obj)->dl;
  wrong_type(instruction, "a tensor", value);
  return NULL;
}

/* ShapeOf dst tensor */
static int shape_of(ek_value *R, const int32_t *pc) {
  const ek_dltensor *tensor = tensor_in("ShapeOf", &R[pc[2]]);
  ek_object *shape;
  if (tensor == NULL) return -1;
  int64_t ndim = tensor->ndim;
  if (ek_tensor_new(&ndim, 1, int64_dtype, host, &shape) != 0) return -1;
  int64_t *to = ((ek_tensor *)(void *)shape)->dl.data;
  for (int64_t i = 0; i < ndim; i++) to[i] = tensor->shape[i];
  set_object(&R[pc[1]], shape);
  return 0;
}

/* ReshapeTensor dst tensor shape shape_index ndim */
static int reshape_tensor(ek_value *R, const int32_t *pc) {
  const ek_dltensor *tensor = tensor_in("ReshapeTensor", &R[pc[2]]);
  const int64_t *shape;
  size_t nbytes;
  ek_object *view;
  if (tensor == NULL || read_int64s("ReshapeTensor", &R[pc[3]], pc[4], pc[5], &shape) != 0)
    return -1;
  if (!ek_dltensor_is_contiguous(tensor)) {
    return ek_error("RunError",
                    "ReshapeTensor: a contiguous tensor expected, got one with strides");
  }
  if (ek_shape_nbytes(shape, pc[5], tensor->dtype, &nbytes) != 0) return -1;
  if (nbytes != ek_dltensor_nbytes(tensor)) {
    return ek_error("RunError", "ReshapeTensor: a shape of %zu bytes expected, got one of %zu",
                    ek_dltensor_nbytes(tensor), nbytes);
  }
  if (ek_tensor_view(R[pc[2]].v.obj, ek_dltensor_data(tensor), shape, pc[5], tensor->dtype,
                     tensor->device, 0, &view) != 0)
    return -1;
  set_object(&R[pc[1]], view);
  return 0;
}

static int copy_tensor(const ek_dltensor *tensor, ek_object **out) {
  if (tensor->device.type != EK_CPU) {
    return ek_error("RunError", "copy tensor: a tensor of the host expected, got device type %d",
                    tensor->device.type);
  }
  if (ek_tensor_new(tensor->shape, tensor->ndim, tensor->dtype, host, out) != 0) return -1;
  if (ek_tensor_copy(tensor, &((ek_tensor *)(void *)*out)->dl) == 0) return 0;
  ek_release(*out);
  return -1;
}

/* DeviceCopy dst src dst_device src_device */
static int device_copy(ek_value *R, const int32_t *pc) {
  const ek_dltensor *tensor = tensor_in("DeviceCopy", &R[pc[2]]);
  ek_object *copy;
  if (tensor == NULL || copy_tensor(tensor, &copy) != 0) return -1;
  set_object(&R[pc[1]], copy);
  return 0;
}

/* If test target true_offset false_offset: the number of words to jump; 0 is an error. */
static inline int32_t choose(const ek_value *R, const int32_t *pc) {
  int64_t test, target;
  if (read_test(&R[pc[1]], &test) != 0 || read_test(&R[pc[2]], &target) != 0) return 0;
  return test == target ? pc[3] : pc[4];
}

/* The loop --------------------------------------------------------------------------------------
**
** CASE and NEXT hide computed goto from switch and nothing else. R is the running function's
** register 0; it moves when registers grow, that is, only in calls. */
/* clang-format off */
#ifdef EK_VM_SWITCH
#define CASE(name) case EK_OP_##name
#define DISPATCH() goto next
#else
#define CASE(name) on_##name
#define DISPATCH() goto *labels[*w.pc]
#endif
#define NEXT(words) do { w.pc += (words); DISPATCH(); } while (0)
#define TRY(call) do { if ((call) != 0) goto failed; } while (0)

/* Runs from the entry frame's function until that returns. Leaves all frames, also on failure. */
static int run(ek_vm *vm, window w, ek_value *ret) {
  ek_value *R = vm->registers + w.base;
  int32_t offset;
#ifdef EK_VM_SWITCH
next:
  switch ((ek_opcode)*w.pc) {
#else
  static const void *const labels[] = {
#define EK_OPCODE(name, text, format, operands, meaning) &&on_##name,
#include "vm_opcodes.def"
#undef EK_OPCODE
  };
  DISPATCH();
#endif
  CASE(Move): set_copy(&R[w.pc[1]], R[w.pc[2]]); NEXT(3);
  CASE(Ret): {
    ek_value result = R[w.pc[1]];
    R[w.pc[1]] = ek_value_none();
    int32_t dst = leave(vm, &w);
    if (w.pc == NULL) {
      *ret = result;
      return 0;
    }
    R = vm->registers + w.base;
    set(&R[dst], result);
  }
    NEXT(0);
  CASE(Invoke): TRY(invoke(vm, &w)); R = vm->registers + w.base; NEXT(0);
  CASE(InvokeClosure): TRY(invoke_closure(vm, &w)); R = vm->registers + w.base; NEXT(0);
  CASE(InvokePacked): TRY(invoke_packed(vm, R, w.pc)); NEXT(4 + w.pc[2]);
  CASE(AllocTensor): TRY(alloc_tensor(R, w.pc)); NEXT(9 + 2 * w.pc[8]);
  CASE(AllocTensorReg): TRY(alloc_tensor_reg(R, w.pc)); NEXT(11);
  CASE(AllocADT): TRY(alloc_adt(vm, R, w.pc)); NEXT(4 + w.pc[3]);
  CASE(AllocClosure): TRY(alloc_closure(vm, R, w.pc)); NEXT(4 + w.pc[3]);
  CASE(GetField): TRY(get_field(R, w.pc)); NEXT(4);
  CASE(If):
    offset = choose(R, w.pc);
    if (offset == 0) goto failed;
    NEXT(offset);
  CASE(LoadConst):
    set_copy(&R[w.pc[1]], ek_value_object(vm->executable->constants[w.pc[2]]));
    NEXT(3);
  CASE(Goto): NEXT(w.pc[1]);
  CASE(GetTag): TRY(get_tag(R, w.pc)); NEXT(3);
  CASE(LoadConsti): set(&R[w.pc[1]], ek_value_int(wide(w.pc + 2))); NEXT(4);
  CASE(Fatal): ek_error("RunError", "Fatal: no pattern of a match fits the value"); goto failed;
  CASE(AllocStorage): TRY(alloc_storage(R, w.pc)); NEXT(6);
  CASE(ShapeOf): TRY(shape_of(R, w.pc)); NEXT(3);
  CASE(ReshapeTensor): TRY(reshape_tensor(R, w.pc)); NEXT(6);
  CASE(DeviceCopy): TRY(device_copy(R, w.pc)); NEXT(5);
  CASE(KillRegister): set(&R[w.pc[1]], ek_value_none()); NEXT(2);
#ifdef EK_VM_SWITCH
  case EK_OP_COUNT: break;
  }
#endif
failed:
  while (w.pc != NULL) leave(vm, &w);
  return -1;
}
/* clang-format on */

/* The face ------------------------------------------------------------------------------------- */

static void vm_deleter(void *self, int flags) {
  ek_vm *vm = self;
  if (flags & EK_DELETE_CONTENT) {
    ek_free(vm->registers); /* all NONE outside a run */
    ek_free(vm->frames);
    ek_free(vm->args);
    ek_lent_free(&vm->lent);
    ek_release(&vm->executable->base);
  }
  if (flags & EK_DELETE_MEMORY) ek_free(self);
}

static int reserve(ek_vm *vm) {
  int32_t most = 1;
  for (int32_t i = 0; i < vm->executable->n_functions; i++) {
    int32_t n = vm->executable->functions[i].n_registers;
    if (n > most) most = n;
  }
  if (grow_registers(vm, (size_t)most) != 0 || grow_frames(vm) != 0) return -1;
  return grow_args(vm, 0, (int64_t)vm->executable->max_args + 1);
}

int ek_vm_new(ek_object *executable, ek_object **out) {
  if (!ek_is(executable, EK_EXECUTABLE))
    return ek_error("TypeError", "make virtual machine: an executable expected");
  if (ek_executable_link((ek_executable *)(void *)executable, NULL) != 0) return -1;
  ek_vm *vm = ek_object_alloc(sizeof *vm, EK_VM, vm_deleter);
  if (vm == NULL) return -1;
  ek_retain(executable);
  vm->executable = (ek_executable *)(void *)executable;
  if (reserve(vm) != 0) {
    ek_release(&vm->base);
    return -1;
  }
  *out = &vm->base;
  return 0;
}

/* Whether elements lie where loads of them may be made. */
static bool is_aligned(const ek_dltensor *tensor) {
  uintptr_t size = tensor->dtype.bits / 8;
  return size == 0 || (uintptr_t)ek_dltensor_data(tensor) % size == 0;
}

/* A tensor as a register can hold it: contiguous, owned, and ours. */
static int own_tensor(ek_vm *vm, const ek_value *value, const ek_dltensor *tensor, ek_value *to) {
  ek_object *copy;
  bool is_lent = value->type_index == EK_DLTENSOR_PTR;
  bool can_stay = ek_dltensor_is_contiguous(tensor) && is_aligned(tensor);
  if (is_lent && can_stay && tensor->device.type == EK_CPU && !vm->executable->calls_out) {
    return ek_lent_add(&vm->lent, tensor, to);
  }
  if (is_lent || !can_stay) {
    if (copy_tensor(tensor, &copy) != 0) return -1;
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

static int own_argument(ek_vm *vm, const ek_vm_function *f, int32_t index, const ek_value *value,
                        int depth, ek_value *to);

/* An array of arguments as a tuple: other languages know arrays. */
static int own_array(ek_vm *vm, const ek_vm_function *f, int32_t index, const ek_array *array,
                     int depth, ek_value *to) {
  ek_object *tuple;
  if (depth == MAX_NESTING) {
    return ek_error("TypeError", "call '%.*s': argument %d: arrays are nested more than %d deep",
                    (int)f->name.size, f->name.data, index, MAX_NESTING);
  }
  ek_array *items = ek_array_alloc(array->size);
  if (items == NULL) return -1;
  int code = 0;
  for (int64_t i = 0; code == 0 && i < array->size; i++) {
    code = own_argument(vm, f, index, &array->data[i], depth + 1, &items->data[i]);
  }
  if (code == 0) code = ek_container_new(EK_ADT, 0, items->data, items->size, &tuple);
  ek_release(&items->base);
  if (code == 0) *to = ek_value_object(tuple);
  return code;
}

/* An argument as a register can hold it. */
static int own_argument(ek_vm *vm, const ek_vm_function *f, int32_t index, const ek_value *value,
                        int depth, ek_value *to) {
  const ek_dltensor *tensor = ek_value_tensor(value);
  int32_t type = value->type_index;
  if (tensor != NULL) return own_tensor(vm, value, tensor, to);
  if (type == EK_ARRAY) {
    return own_array(vm, f, index, (ek_array *)(void *)value->v.obj, depth, to);
  }
  bool is_number = type >= EK_INT && type <= EK_FLOAT;
  if (is_number || type >= EK_OBJECT) {
    *to = *value;
    ek_value_retain(to);
    return 0;
  }
  return ek_error("TypeError",
                  "call '%.*s': argument %d must be a tensor, a number or an ADT value, got %s",
                  (int)f->name.size, f->name.data, index, type_name(value));
}

static int call(ek_vm *vm, const ek_vm_function *f, const ek_value *args, int32_t nargs,
                ek_value *ret) {
  window w = {NULL, 0, 0};
  if (enter(vm, &w, f, NULL, 0) != 0) return -1;
  for (int32_t i = 0; i < nargs; i++) {
    if (own_argument(vm, f, i, &args[i], 0, &vm->registers[w.base + (size_t)i]) == 0) continue;
    leave(vm, &w);
    (void)ek_lent_end(&vm->lent, ret);
    return -1;
  }
  int status = run(vm, w, ret);
  if (vm->lent.count != 0 && ek_lent_end(&vm->lent, ret) != 0) return -1;
  return status;
}

/* Reserves what a value made of tensors holds: the tensor, those it is a view of, their storage. */
static void reserve_like(const ek_value *value) {
  const ek_object *at = value->type_index == EK_TENSOR ? value->v.obj : NULL;
  while (at != NULL && at->type_index == EK_TENSOR && ek_tensor_is_own(at)) {
    ek_alloc_reserve(at);
    at = ((const ek_tensor *)(const void *)at)->owner;
  }
  if (at == NULL || !ek_storage_is_own(at)) return;
  ek_alloc_reserve(at);
  ek_buffer_reserve(((const ek_storage *)(const void *)at)->size);
}

/* A caller holds the last result while the next is computed, so after the first run the pool gets
** room for one more result of the same shapes. */
static void reserve_result(const ek_value *result) {
  if (result->type_index != EK_ADT) {
    reserve_like(result);
    return;
  }
  const ek_adt *many = (const ek_adt *)(const void *)result->v.obj;
  for (int32_t i = 0; i < many->size; i++) reserve_like(&many->fields[i]);
}

int ek_vm_invoke(ek_object *object, int32_t function, const ek_value *args, int32_t nargs,
                 ek_value *ret) {
  if (!ek_is(object, EK_VM)) return ek_error("TypeError", "call: a virtual machine expected");
  ek_vm *vm = (ek_vm *)(void *)object;
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
  if (__atomic_exchange_n(&vm->is_running, 1, __ATOMIC_ACQUIRE) != 0) {
    return ek_error("RuntimeError", "call '%.*s': the virtual machine is running another call",
                    (int)f->name.size, f->name.data);
  }
  int status = call(vm, f, args, nargs, ret);
  if (status == 0 && !vm->has_run) {
    vm->has_run = true;
    reserve_result(ret);
  }
  __atomic_store_n(&vm->is_running, 0, __ATOMIC_RELEASE);
  return status;
}
