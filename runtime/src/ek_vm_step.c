/* The stepping loop: the bodies of the instructions, called one by one through their table. */
#include "ek_vm_step.h"

static bool has_break(const ek_vm *vm) {
  for (int32_t i = 0; i < vm->n_breaks; i++) {
    if (vm->breaks[i] == vm->pc) return true;
  }
  return false;
}

void ek_vm_enter_bytecode(ek_vm *vm) {
  if (vm->pc != NULL && *vm->pc >= EK_OP_COUNT) vm->pc = vm->function->code;
}

/* Execute one instruction; the next one follows it unless the body jumps. */
static int step_once(ek_vm *vm, ek_vm_hook *hook) {
  const int32_t *pc = vm->pc;
  ek_value *R = vm->registers + vm->window;
  if (ek_vm_poll(vm) != 0 || (hook != NULL && hook->before(hook, vm, pc) != 0)) return -1;
  vm->pc = pc + ek_instruction_words(pc);
  if (ek_vm_ops[*pc](vm, R, pc) != 0) {
    ek_vm_failed(vm, pc);
    return -1;
  }
  ek_vm_enter_bytecode(vm);
  return hook == NULL ? 0 : hook->after(hook, vm, pc);
}

ek_vm_stop ek_vm_step(ek_vm *vm, int64_t limit, ek_vm_hook *hook) {
  for (int64_t i = 0; i != limit; i++) {
    if (step_once(vm, hook) != 0) {
      ek_vm_unwind(vm);
      ek_value_release(&vm->result);
      return EK_VM_FAILED;
    }
    if (vm->pc == NULL) return EK_VM_ENDED;
    if (vm->n_breaks != 0 && has_break(vm)) return EK_VM_AT_BREAK;
  }
  return EK_VM_PAUSED;
}

int32_t ek_vm_instruction(const ek_vm_function *f, const int32_t *pc) {
  int32_t count = 0;
  for (const int32_t *at = f->code; at < pc; at += ek_instruction_words(at)) count++;
  return count;
}

bool ek_vm_frame(const ek_vm *vm, int32_t depth, ek_vm_view *out) {
  if (depth < 0 || depth >= vm->n_frames) return false;
  size_t at = vm->window;
  *out = (ek_vm_view){vm->function, vm->pc, NULL};
  for (int32_t i = 0; i < depth; i++) {
    const ek_frame *frame = &vm->frames[vm->n_frames - 1 - i];
    at -= (size_t)frame->function->n_registers;
    *out = (ek_vm_view){frame->function, frame->pc, NULL};
  }
  out->registers = vm->registers + at;
  return true;
}
