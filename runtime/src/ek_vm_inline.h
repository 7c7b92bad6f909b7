/* Bodies of the instructions that the loop has inline, and what they are made of.
**
** The verifier has proven every operand in range, so nothing here checks them. What registers hold
** is known only at run time: each body that needs a tensor, ADT, closure, storage or integer asks
** for it. */
#ifndef EK_VM_INLINE_H_
#define EK_VM_INLINE_H_

#include "ek_vm.h"

/* Values --------------------------------------------------------------------------------------- */

/* Puts an owned value in a register. The new value goes in before the old one dies, since a death
** may run code of others, which must find the register whole. */
static inline void set(ek_value *to, ek_value value) {
  ek_value old = *to;
  *to = value;
  if (old.type_index >= EK_OBJECT) ek_release(old.v.obj);
}

/* Store a borrowed value in a register. It is retained before the old value is released, as both
** may be one object. */
static inline void set_copy(ek_value *to, ek_value value) {
  if (value.type_index >= EK_OBJECT) ek_retain(value.v.obj);
  set(to, value);
}

static inline void set_object(ek_value *to, ek_object *object) { set(to, ek_value_object(object)); }

/* An owned value from operand 'v': register r, or, of -1-r, what it held. */
static inline ek_value fetch(ek_value *R, int32_t operand) {
  if (operand < 0) {
    ek_value moved = R[-1 - operand];
    R[-1 - operand] = ek_value_none();
    return moved;
  }
  if (R[operand].type_index >= EK_OBJECT) ek_retain(R[operand].v.obj);
  return R[operand];
}

/* The compiler moves a register at its last use, so that a callee often has the only reference, and
** Own or AllocTensor may work in place. What one instruction moves twice is NONE the second time: a
** value as any other, that bodies refuse by its type. */
static inline void fetch_all(ek_value *to, ek_value *R, const int32_t *operands, int32_t n) {
  for (int32_t i = 0; i < n; i++) to[i] = fetch(R, operands[i]);
}

/* Calls ---------------------------------------------------------------------------------------- */

/* Pushes a frame. Of all frames top == window + function->n_registers, and registers from top on
** are NONE: leaving cleared them, so that entering need not. On failure nothing has changed. The
** caller's R is no longer good: registers may have moved. */
static inline int enter(ek_vm *vm, const ek_vm_function *f, const int32_t *next, int32_t dst) {
  size_t top = vm->top + (size_t)f->n_registers;
  if (vm->n_frames == vm->frame_capacity && ek_vm_grow_frames(vm) != 0) return -1;
  if (top > vm->capacity && ek_vm_grow_registers(vm, top) != 0) return -1;
  vm->frames[vm->n_frames++] = (ek_frame){next, vm->function, dst};
  vm->function = f;
  vm->pc = __atomic_load_n(&f->entry, __ATOMIC_ACQUIRE);
  vm->window = vm->top;
  vm->top = top;
  return 0;
}

/* Forgets what registers hold. */
static inline void clear(ek_value *R, int32_t n) {
  for (int32_t i = 0; i < n; i++) {
    if (R[i].type_index >= EK_OBJECT) ek_release(R[i].v.obj);
    R[i] = ek_value_none();
  }
}

/* Empties the registers of the running function and goes back to its caller; returns that one's
** dst. */
static inline int32_t leave(ek_vm *vm) {
  const ek_frame *frame = &vm->frames[--vm->n_frames];
  clear(vm->registers + vm->window, vm->function->n_registers);
  vm->top = vm->window;
  vm->pc = frame->pc;
  vm->function = frame->function;
  if (frame->function != NULL) vm->window -= (size_t)frame->function->n_registers;
  return frame->dst;
}

/* Bodies --------------------------------------------------------------------------------------- */

/* Invoke dst func n args */
static inline int op_invoke(ek_vm *vm, const int32_t *pc) {
  size_t caller = vm->window;
  int32_t n = ek_Invoke_n(pc);
  const ek_vm_function *f = &vm->executable->functions[ek_Invoke_func(pc)];
  if (enter(vm, f, pc + ek_Invoke_words(pc), ek_Invoke_dst(pc)) != 0) return -1;
  fetch_all(vm->registers + vm->window, vm->registers + caller, ek_Invoke_args(pc), n);
  return 0;
}

/* Ret src */
static inline void op_ret(ek_vm *vm, ek_value *R, const int32_t *pc) {
  ek_value result = R[ek_Ret_src(pc)];
  R[ek_Ret_src(pc)] = ek_value_none();
  int32_t dst = leave(vm);
  if (vm->pc == NULL) vm->result = result;
  else set(&vm->registers[vm->window + (size_t)dst], result);
}

/* GetField dst object index, where that is right; else the body says what is wrong. */
static inline int op_get_field(ek_vm *vm, ek_value *R, const int32_t *pc) {
  const ek_value *value = &R[ek_GetField_object(pc)];
  const ek_adt *adt = (ek_adt *)(void *)value->v.obj;
  if (value->type_index != EK_ADT || ek_GetField_index(pc) >= adt->size) {
    return ek_op_GetField(vm, R, pc);
  }
  set_copy(&R[ek_GetField_dst(pc)], adt->fields[ek_GetField_index(pc)]);
  return 0;
}

/* GetTag dst object */
static inline int op_get_tag(ek_vm *vm, ek_value *R, const int32_t *pc) {
  const ek_value *value = &R[ek_GetTag_object(pc)];
  if (value->type_index != EK_ADT) return ek_op_GetTag(vm, R, pc);
  set(&R[ek_GetTag_dst(pc)], ek_value_int(((ek_adt *)(void *)value->v.obj)->tag));
  return 0;
}

static inline bool is_plain_integer(const ek_value *value) {
  return value->type_index == EK_INT || value->type_index == EK_BOOL;
}

/* If test target true_offset false_offset: the number of words to jump; 0 is an error. The verifier
** refuses jumps of 0 instructions, which leaves 0 to say that the body has failed. */
static inline int32_t op_if(ek_vm *vm, ek_value *R, const int32_t *pc) {
  const ek_value *test = &R[ek_If_test(pc)], *target = &R[ek_If_target(pc)];
  if (!is_plain_integer(test) || !is_plain_integer(target)) {
    return ek_op_If(vm, R, pc) == 0 ? (int32_t)(vm->pc - pc) : 0;
  }
  return test->v.i64 == target->v.i64 ? ek_If_true_offset(pc) : ek_If_false_offset(pc);
}

/* The jump of Switch for a number: the last one is for what has none of its own. */
static inline int32_t switch_offset(const int32_t *pc, int64_t number) {
  int32_t last = ek_Switch_n(pc) - 1;
  return ek_Switch_offsets(pc)[number >= 0 && number < last ? (int32_t)number : last];
}

/* Switch value n offsets: as op_if. */
static inline int32_t op_switch(ek_vm *vm, ek_value *R, const int32_t *pc) {
  const ek_value *value = &R[ek_Switch_value(pc)];
  if (value->type_index != EK_ADT) {
    return ek_op_Switch(vm, R, pc) == 0 ? (int32_t)(vm->pc - pc) : 0;
  }
  return switch_offset(pc, ((ek_adt *)(void *)value->v.obj)->tag);
}

#endif /* EK_VM_INLINE_H_ */
