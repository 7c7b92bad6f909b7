/* The loop of the virtual machine. The meaning of each instruction stands in vm_opcodes.def, its
** body in ek_vm_ops.c; those that are short and frequent are inline here, from ek_vm_inline.h.
**
** CASE, JUMP and NEXT hide computed goto from switch and nothing else. R is the running function's
** register 0; ENTER takes it and the next instruction from the machine, after calls and returns.
**
** There is no 'default' and no check of an operand: the verifier has been through every word that
** can be reached (ek_verify.h). Nor is there one of a limit or a breakpoint: a run that has any goes
** through ek_vm_step, which calls the same bodies, so that all others pay nothing for it. Whether
** the run is to be interrupted is asked before kernels, calls and jumps back (ek_vm_poll). */
#include "ek_vm.h"

#include "ek_vm_inline.h"

/* clang-format off */
#ifdef EK_VM_SWITCH
/* Computed goto gives each instruction a jump of its own, whose target the processor learns from
** what came before; with switch all share one. ORDER OP: 'labels' is made of the table, and the two
** instructions that exist in memory only stand behind it, as in ek_verify.h. */
#define CASE(name) case EK_OP_##name
#define DISPATCH() goto next
#else
#define CASE(name) on_##name
#define DISPATCH() goto *labels[*pc]
#endif
#define JUMP(words) do { pc += (words); DISPATCH(); } while (0)
#define NEXT(name) JUMP(ek_##name##_words(pc))
#define ENTER() do { pc = vm->pc; R = vm->registers + vm->window; DISPATCH(); } while (0)
#define TRY(call) do { if ((call) != 0) goto failed; } while (0)
#define POLL() TRY(ek_vm_poll(vm))
#define FOLLOW(offset) do { if ((offset) < 0) POLL(); JUMP(offset); } while (0)
#define BODY(name) TRY(ek_op_##name(vm, R, pc))

int ek_vm_run(ek_vm *vm) {
  const int32_t *pc = vm->pc;
  ek_value *R = vm->registers + vm->window;
  int32_t offset;
#ifdef EK_VM_SWITCH
next:
  switch ((ek_opcode)*pc) {
#else
  static const void *const labels[] = {
#define EK_OPCODE(name, text, format, operands, properties, meaning) &&on_##name,
#include "vm_opcodes.def"
#undef EK_OPCODE
      &&on_NATIVE,
      &&on_WATCH,
  };
  DISPATCH();
#endif
  CASE(Move): set(&R[ek_Move_dst(pc)], fetch(R, ek_Move_src(pc))); NEXT(Move);
  CASE(Ret):
    op_ret(vm, R, pc);
    if (vm->pc == NULL) return 0;
    ENTER();
  CASE(Invoke): POLL(); TRY(op_invoke(vm, pc)); ENTER();
  CASE(InvokeClosure): POLL(); BODY(InvokeClosure); ENTER();
  CASE(InvokePacked): POLL(); BODY(InvokePacked); NEXT(InvokePacked);
  CASE(AllocTensor): BODY(AllocTensor); NEXT(AllocTensor);
  CASE(AllocTensorReg): BODY(AllocTensorReg); NEXT(AllocTensorReg);
  CASE(AllocADT): BODY(AllocADT); NEXT(AllocADT);
  CASE(AllocClosure): BODY(AllocClosure); NEXT(AllocClosure);
  CASE(GetField): TRY(op_get_field(vm, R, pc)); NEXT(GetField);
  CASE(If):
    offset = op_if(vm, R, pc);
    if (offset == 0) goto failed;
    FOLLOW(offset);
  CASE(LoadConst): BODY(LoadConst); NEXT(LoadConst);
  CASE(Goto): FOLLOW(ek_Goto_offset(pc));
  CASE(GetTag): TRY(op_get_tag(vm, R, pc)); NEXT(GetTag);
  CASE(LoadConsti):
    set(&R[ek_LoadConsti_dst(pc)], ek_value_int(ek_LoadConsti_value(pc)));
    NEXT(LoadConsti);
  CASE(Fatal): BODY(Fatal); goto failed;
  CASE(AllocStorage): BODY(AllocStorage); NEXT(AllocStorage);
  CASE(ShapeOf): BODY(ShapeOf); NEXT(ShapeOf);
  CASE(ReshapeTensor): BODY(ReshapeTensor); NEXT(ReshapeTensor);
  CASE(DeviceCopy): BODY(DeviceCopy); NEXT(DeviceCopy);
  CASE(KillRegister): set(&R[ek_KillRegister_dst(pc)], ek_value_none()); NEXT(KillRegister);
  CASE(InvokeTail): POLL(); BODY(InvokeTail); ENTER();
  CASE(InvokeClosureTail): POLL(); BODY(InvokeClosureTail); ENTER();
  CASE(AllocRef): BODY(AllocRef); NEXT(AllocRef);
  CASE(ReadRef): BODY(ReadRef); NEXT(ReadRef);
  CASE(WriteRef): BODY(WriteRef); NEXT(WriteRef);
  CASE(InvokePackedValue): POLL(); BODY(InvokePackedValue); NEXT(InvokePackedValue);
  CASE(ReadElement): BODY(ReadElement); NEXT(ReadElement);
  CASE(Switch):
    offset = op_switch(vm, R, pc);
    if (offset == 0) goto failed;
    FOLLOW(offset);
  CASE(AllocArena): BODY(AllocArena); NEXT(AllocArena);
  CASE(InvokePackedScratch): POLL(); BODY(InvokePackedScratch); NEXT(InvokePackedScratch);
  CASE(Own): BODY(Own); NEXT(Own);
  CASE(NATIVE):
    pc = vm->function->native->run(vm, R, vm->function->native, pc[1]);
    if (pc == NULL || ((uintptr_t)pc & EK_NATIVE_FAILED) != 0) goto failed;
    DISPATCH();
  CASE(WATCH):
    TRY(ek_native_watched(vm));
    pc = vm->function->code;
    DISPATCH();
#ifdef EK_VM_SWITCH
  }
#endif
failed:
  ek_vm_failed(vm, pc);
  return -1;
}
/* clang-format on */
