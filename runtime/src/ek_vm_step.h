/* The stepping loop: run instruction by instruction, with hooks. */
#ifndef EK_VM_STEP_H_
#define EK_VM_STEP_H_

#include "ek_vm.h"

/* Hooks that the stepping loop calls before and after each instruction, with its first word. */
typedef struct ek_vm_hook {
  int (*before)(struct ek_vm_hook *hook, ek_vm *vm, const int32_t *pc); /* 0 or -1 */
  int (*after)(struct ek_vm_hook *hook, ek_vm *vm, const int32_t *pc);  /* 0 or -1 */
} ek_vm_hook;

typedef enum ek_vm_stop {
  EK_VM_FAILED = -1,           /* with an error; all frames were left */
  EK_VM_ENDED = 0,             /* the result is in 'vm->result' */
  EK_VM_PAUSED = 1,            /* as many instructions as asked for were run */
  EK_VM_AT_BREAK = 2           /* the next instruction has a breakpoint */
} ek_vm_stop;

/* Switch a frame that was entered in native code to its bytecode, which is what stepping
** executes. */
void ek_vm_enter_bytecode(ek_vm *vm);

/* Runs up to 'limit' instructions from 'vm->pc'; a negative one is none. 'hook' may be NULL. */
ek_vm_stop ek_vm_step(ek_vm *vm, int64_t limit, ek_vm_hook *hook);

/* ek_vm_limit.c --------------------------------------------------------------------------------
**
** Whether a run of the machine has a limit, and then what it is. */
bool ek_vm_has_limit(const ek_vm *vm, ek_limit *out);

/* Guard of a run's limits: checked before each instruction, it fails with a RunLimitError. The
** guard of a machine without limits never fails. */
typedef struct ek_vm_guard {
  ek_limit limit;
  int64_t steps;               /* so far */
  int64_t end;                 /* when, of the monotonic clock; INT64_MAX for never */
} ek_vm_guard;
ek_vm_guard ek_vm_guard_of(const ek_vm *vm);
int ek_vm_guard_check(ek_vm_guard *guard, const ek_vm *vm, const int32_t *pc);

/* Run like ek_vm_run, or ek_async_run for an asynchronous machine, instruction by instruction
** within the limit. Returns 0 or -1. */
int ek_vm_run_limited(ek_vm *vm);

/* Instructions before the one at 'pc' in its function. */
int32_t ek_vm_instruction(const ek_vm_function *f, const int32_t *pc);

/* Frame 'depth' from the innermost: its function, next instruction and registers. False past the
** outermost. */
typedef struct ek_vm_view {
  const ek_vm_function *function;
  const int32_t *pc;
  ek_value *registers;
} ek_vm_view;
bool ek_vm_frame(const ek_vm *vm, int32_t depth, ek_vm_view *out);

/* ek_vm_profile.c ------------------------------------------------------------------------------
**
** Runs a function and tells where the time went: '*ret' becomes an array of the result, bytes of
** two int64 for each instruction of the executable (how often it ran, nanoseconds in it; functions
** in order), and bytes of events, which are int64 words:
**   EK_EVENT_CALL   kind, function, instruction, start, nanoseconds, number of arguments, and for
**                   each: dtype (code * 256 + bits), rank (-1 for a number), dimensions
**   EK_EVENT_ENTER  kind, function, start
**   EK_EVENT_LEAVE  kind, function, start
**   EK_EVENT_PLACE  kind, function, parameter, place it was copied to, start, nanoseconds, and its
**                   argument as that of a call
** Once there are 'max_events' words or more, calls are counted and no more events made. 0 or -1. */
enum { EK_EVENT_CALL, EK_EVENT_ENTER, EK_EVENT_LEAVE, EK_EVENT_PLACE };
int ek_vm_profile(ek_vm *vm, int32_t function, int64_t max_events, const ek_value *args,
                  int32_t nargs, ek_value *ret);

/* Profile a call by kernel: '*ret' becomes an array of the result followed by (name, number of
** calls, nanoseconds) of each called primitive. Returns 0 or -1. */
int ek_vm_kernel_times(ek_vm *vm, int32_t function, const ek_value *args, int32_t nargs,
                       ek_value *ret);

/* ek_vm_state.c --------------------------------------------------------------------------------
**
** A machine that stands between two instructions, as bytes, and one made to stand there. 0 or -1.
** docs/vm.md has the format. Resuming trusts nothing in the bytes (LoadError); on failure the
** machine is idle. */
int ek_vm_save(const ek_vm *vm, ek_value *ret);
int ek_vm_resume(ek_vm *vm, ek_bytes state);

#endif /* EK_VM_STEP_H_ */
