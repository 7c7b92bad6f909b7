/* The state of one caller of an executable. */
#ifndef EK_VM_H_
#define EK_VM_H_

#include "ek_executable.h"
#include "ek_lend.h"

/* A function with some of its parameters bound. Captured values lie in an ADT, which knows how to
** die in chains of any length. */
typedef struct ek_closure {
  ek_object base;
  ek_object *executable;                   /* owned */
  ek_adt *captured;                        /* owned */
  int32_t function;
} ek_closure;

/* Where a call came from. */
typedef struct ek_frame {
  const int32_t *pc;                       /* the caller's next instruction; NULL ends the run */
  size_t base;                             /* the caller's register 0 */
  int32_t n_registers;                     /* of the caller */
  int32_t dst;                             /* the caller's register for the result */
} ek_frame;

/* Registers of all frames lie one after another; those at 'top' and beyond are NONE, so that
** entering a function writes its arguments only. All grows and nothing shrinks: a warm run
** allocates nothing. */
typedef struct ek_vm {
  ek_object base;
  ek_executable *executable;               /* owned */
  ek_value *registers;
  size_t capacity;
  size_t top;
  ek_frame *frames;
  int32_t n_frames;
  int32_t frame_capacity;
  ek_value *args;                          /* borrowed values of the call being made */
  int32_t args_capacity;
  ek_lent lent;                            /* by the caller, during a call */
  uint32_t is_running;                     /* atomic */
  bool has_run;                            /* once, at least */
} ek_vm;

enum { EK_VM_MAX_FRAMES = 1000000 };

#endif /* EK_VM_H_ */
