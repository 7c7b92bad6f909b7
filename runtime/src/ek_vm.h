/* Virtual machine: the execution state of one caller of an executable, and the instruction
** bodies. */
#ifndef EK_VM_H_
#define EK_VM_H_

#include "ek_executable.h"
#include "ek_borrow.h"
#include "ek_signature.h"
#include "ek_verify.h"

/* A function with some of its parameters bound. Captured values lie in an ADT, which knows how to
** die in chains of any length. */
typedef struct ek_closure {
  ek_object base;
  ek_object *executable;                   /* owned */
  ek_adt *captured;                        /* owned */
  int32_t function;
} ek_closure;

/* A place whose value changes. It lies in an ADT of one field, for the same reason. */
typedef struct ek_reference {
  ek_object base;
  ek_adt *cell;                            /* owned; its field changes under the lock */
  uint32_t lock;                           /* atomic: 1 while somebody reads or writes */
  uint64_t known_to;                       /* number of the executable whose registers can hold it */
  uint64_t entered;                        /* atomic: number of the last call it was an argument of */
} ek_reference;

/* Return address of a call. */
typedef struct ek_frame {
  const int32_t *pc;                       /* the caller's next instruction; NULL ends the run */
  const ek_vm_function *function;          /* the caller; NULL for that of the run */
  int32_t dst;                             /* the caller's register for the result */
} ek_frame;

/* Memory of the caller where a result of the next run is to lie: what an AllocStorage of the run's
** own function gives, the first time that it is asked for as many bytes. */
typedef struct ek_vm_place {
  int32_t at;                              /* the instruction's first word, in its function */
  bool is_taken;
  size_t size;
  void *data;                              /* the caller keeps it until the run's result is gone */
} ek_vm_place;

/* Registers of all frames lie one after another; those at 'top' and beyond are NONE, so that
** entering a function writes its arguments only. All grows and nothing shrinks: a warm run
** allocates nothing.
**
** The running function's registers are those from 'window' on; its caller's lie right below. The
** loop keeps the next instruction in a local variable, and in 'pc' only across calls and returns.
**
** A machine is one caller's at a time, and refuses a second ('is_running'); another thread may set
** 'limit' meanwhile, and nothing else. Its executable is shared by any number of machines. What
** registers below 'top' hold is owned; 'args' are copies without references, good for the call
** being made. */
typedef struct ek_vm {
  ek_object base;
  ek_executable *executable;               /* owned */
  ek_value *registers;
  size_t capacity;
  size_t window;
  size_t top;
  const ek_vm_function *function;          /* the one that runs */
  const int32_t *pc;
  ek_frame *frames;
  int32_t n_frames;
  int32_t frame_capacity;
  int32_t max_frames;
  int64_t max_steps;                       /* of a run that has no other limit: EKIDEN_MAX_STEPS */
  ek_limit limit;                          /* of its runs; none: those of the executable */
  int32_t args_capacity;
  ek_value *args;                          /* borrowed values of the call being made */
  ek_value result;                         /* owned: of a run that ended, until it is handed out */
  ek_seen *seen;                           /* one per symbol of the executable */
  ek_borrowed borrowed;                    /* the caller's tensors, during a call */
  ek_vm_place *places;                     /* owned */
  int32_t n_places;
  ek_arenas arenas;                        /* kept from run to run */
  struct ek_async *async;                  /* owned; NULL where kernels run one after another */
  int32_t polls;                           /* of ek_vm_poll, before the next look at the clock */
  int64_t looked;                          /* when that was last */
  int64_t next_check;                      /* when to ask whether to go on; 0 at the start of a run */
  uint64_t call;                           /* number of its call in the process, of several devices */
  uint32_t is_running;                     /* atomic */
  bool has_run;                            /* once, at least */
  bool may_lend;                           /* what the caller lends is read where it lies */
  bool is_paused;                          /* between two instructions, for ek_vm_debug.c */
  int32_t n_breaks;
  const int32_t **breaks;                  /* instructions at which stepping stops */
} ek_vm;

enum { EK_VM_MAX_FRAMES = 1000000 };       /* unless EKIDEN_MAX_DEPTH says otherwise */

/* ek_vm_call.c --------------------------------------------------------------------------------- */

/* Makes the machine the caller's and puts it before the first instruction of a function; 'may_lend'
** says that tensors among the arguments stay until ek_vm_end. 0, or -1 and the machine is idle. */
int ek_vm_begin(ek_vm *vm, int32_t function, const ek_value *args, int32_t nargs, bool may_lend);

/* Ends what ek_vm_begin began, when no frames are left: hands out 'result' (NONE after a failure),
** which then refers to nothing that was lent. 0 or -1. */
int ek_vm_end(ek_vm *vm, ek_value *ret);

/* The places of results from now on, 'n' of them, in the machine's own copy. 0 or -1. */
int ek_vm_set_places(ek_vm *vm, const ek_vm_place *places, int32_t n);

/* Makes an idle machine the caller's; "'doing' 'name': ..." is the error. 0 or -1. */
int ek_vm_acquire(ek_vm *vm, const char *doing, ek_bytes name);

/* A tensor as a register can hold it: contiguous, owned, and ours, on the device that it is on.
** 'may_lend' lets it be borrowed until the call ends. 0 or -1. */
int ek_vm_own_tensor(ek_vm *vm, const ek_value *value, const ek_dltensor *tensor, bool may_lend,
                     ek_value *to);

/* Whether kernels of its device can read a tensor as it is. */
bool ek_vm_is_readable(const ek_dltensor *tensor);

/* ek_vm_device.c ------------------------------------------------------------------------------- */

/* A copy on 'device' of a value whose tensors lie on 'from': a tensor, a number, or an ADT value of
** these to any depth. 0, or -1 and '*out' is NONE. */
int ek_vm_copy_value(const ek_value *value, ek_device from, ek_device device, ek_value *out);

/* Makes all tensors inside an owned value of others such as registers hold, on 'device': those that
** are not are copied, with the data around them. What closures hold is so already, and what references
** hold is made so when it is read, or here in a program of several devices. 0, or -1 with the value
** as far as it came. */
int ek_vm_own_data(ek_vm *vm, ek_value *value, ek_device device);

/* The same of a value inside 'depth' references. */
int ek_vm_own_nested(ek_vm *vm, ek_value *value, ek_device device, int depth);

/* In a program of several devices, brings what a reference among the arguments holds to 'device',
** once a call; 'depth' as above. 0 or -1. */
int ek_vm_enter_reference(ek_vm *vm, ek_object *reference, ek_device device, int depth);

/* Whether the first n of 'vm->args' lie where a primitive works. 0 or -1. */
int ek_vm_check_places(const ek_vm *vm, int32_t primitive, int32_t n);

/* ek_vm_limit.c -------------------------------------------------------------------------------- */

/* Asks whether the run is to go on, where ek_interrupt_check_set has set whom to ask and 30 ms have
** passed. Called before kernels, calls and jumps back; most calls only count. 0 or -1. */
int ek_vm_look(ek_vm *vm);
static inline int ek_vm_poll(ek_vm *vm) { return --vm->polls >= 0 ? 0 : ek_vm_look(vm); }

/* ek_vm_poll as a function, for native code. */
int ek_native_poll(ek_vm *vm);

/* ek_vm.c -------------------------------------------------------------------------------------- */

/* Runs from 'pc' of the running function until the run's frame is left; its result is then in
** 'result'. On failure all frames are left. 0 or -1. */
int ek_vm_run(ek_vm *vm);

struct ek_vm_hook;

/* ek_async.c ------------------------------------------------------------------------------------
**
** The same with independent kernels at the same time, for a machine that was made so: ek_async_set
** takes an idle one there, and back. */
int ek_async_set(ek_vm *vm, bool is_async);
int ek_async_run(ek_vm *vm, struct ek_vm_hook *hook); /* 'hook' may be NULL */

/* ek_vm_ops.c -----------------------------------------------------------------------------------
**
** The body of each instruction: R is the running function's register 0, pc the instruction's first
** word. 0 or -1. Instructions that may go elsewhere than to the next one (Ret, the calls, If, Goto,
** Switch) leave in 'vm->pc' where that is, and in 'vm->window' whose registers; 'pc' NULL is the
** end of the run. R is good until the next of these. */
typedef int (*ek_vm_op)(ek_vm *vm, ek_value *R, const int32_t *pc);

#define EK_OPCODE(name, text, format, operands, properties, meaning) \
  int ek_op_##name(ek_vm *vm, ek_value *R, const int32_t *pc);
#include "vm_opcodes.def"
#undef EK_OPCODE

extern const ek_vm_op ek_vm_ops[EK_OP_COUNT];

/* The arguments of an InvokePacked as its primitive gets them, borrowed in 'vm->args'. 1, 0 when it is
** not to be called, or -1. */
typedef struct ek_vm_call {
  int32_t n, n_inputs;         /* the others are written */
} ek_vm_call;
int ek_vm_gather(ek_vm *vm, const ek_value *R, const int32_t *pc, ek_vm_call *call);

/* Make room. 0 or -1. */
int ek_vm_grow_frames(ek_vm *vm);
int ek_vm_grow_registers(ek_vm *vm, size_t needed);
int ek_vm_grow_args(ek_vm *vm, int64_t used, int64_t needed);

/* Pushes a frame and enters a function, whose first registers are for the caller to write; 'next'
** and 'dst' are where its result goes. 0 or -1. */
int ek_vm_enter(ek_vm *vm, const ek_vm_function *f, const int32_t *next, int32_t dst);

/* Execute an If or a Switch for native code; returns the index of the taken jump among its offsets,
** or -1. */
int ek_native_choose(ek_vm *vm, ek_value *R, const int32_t *pc);

/* A closure over captured values, which it takes over, and a reference that takes a value over;
** NULL without memory. */
ek_object *ek_vm_closure(ek_vm *vm, int32_t function, ek_adt *captured);
ek_object *ek_vm_reference(ek_value value);

/* Return the value of a reference, owned; or replace it by a value that the reference takes over.
** 'from' is the number of the executable that the value comes from, 0 for none. */
ek_value ek_vm_reference_read(ek_object *reference);
void ek_vm_reference_write(ek_object *reference, ek_value value, uint64_t from);

/* The place in the bytecode of a function for one among its calls for native code; NULL for those
** that are in neither. */
const int32_t *ek_native_bytecode(const ek_vm_function *f, const int32_t *pc);

/* Counts a call of the running function; when there have been enough, has native code made for the
** next ones. 0 or -1. */
int ek_native_watched(ek_vm *vm);

/* Leaves all frames. */
void ek_vm_unwind(ek_vm *vm);

/* ek_vm_where.c --------------------------------------------------------------------------------
**
** After the instruction at 'pc' of the running function failed: says in the pending error where in
** the program that was, if it is a RunError (kernels say it themselves). 'pc' may be what native code
** gave. */
void ek_vm_say_where(const ek_vm *vm, const int32_t *pc);

/* ek_vm_say_where, and leaves all frames. */
void ek_vm_failed(ek_vm *vm, const int32_t *pc);

/* After the kernel that the instruction at 'pc' of 'f' calls failed, on any thread: an error about an
** index names the node of the model. 'pc' may be NULL. */
void ek_vm_name_node(const ek_vm *vm, const ek_vm_function *f, const int32_t *pc);


#endif /* EK_VM_H_ */
