/* Bytecode verifier: the interpreter loop does not check the operands of verified code.
**
** This is the trust boundary. Files are untrusted; later readers of the code (the loop, the
** native-code compiler, the profiler, the debugger) index by its operands unchecked. Code from any
** other source must be verified here too. A saved machine state (ek_vm_state.c) contains no code,
** only locations in verified code. */
#ifndef EK_VERIFY_H_
#define EK_VERIFY_H_

#include "ek_executable.h"
#include "ek_operands.h"

/* ORDER OP: numbers are the file format, and index ek_opcodes, ek_vm_ops and the labels of the
** loop. */
typedef enum ek_opcode {
#define EK_OPCODE(name, text, format, operands, properties, meaning) EK_OP_##name,
#include "vm_opcodes.def"
#undef EK_OPCODE
  EK_OP_COUNT,
  EK_OP_NATIVE = EK_OP_COUNT,  /* these two in memory only: ek_native.c */
  EK_OP_WATCH
} ek_opcode;

/* Properties of instructions; vm_opcodes.def has their meaning. */
enum {
  EK_ENDS = 1 << 0,
  EK_FRAMES = 1 << 1,
  EK_LONG = 1 << 2,
  EK_KERNEL = 1 << 3,
  EK_WORKS = 1 << 4,
  EK_ALLOCATES = 1 << 5,
  EK_FAILS = 1 << 6,
  EK_PURE = 1 << 7,
  EK_PLAIN = 1 << 8,
  EK_KEEPS = 1 << 9
};

enum { EK_VERIFY_MESSAGE = 200 };

/* The instruction set, in order of opcode number. The strings are those of vm_opcodes.def. */
typedef struct ek_opcode_info {
  const char *name;
  const char *text;
  const char *format;
  const char *meaning;
  int32_t properties;
} ek_opcode_info;

extern const ek_opcode_info ek_opcodes[EK_OP_COUNT];

/* Whether an instruction has one of these properties. */
static inline bool ek_opcode_has(int32_t opcode, int32_t properties) {
  return (ek_opcodes[opcode].properties & properties) != 0;
}

/* Proves that a function's words are whole instructions whose operands are in range, that jumps
** land on instructions, and that control cannot run off the end; then rewrites jumps from
** instructions to words, and raises the executable's 'max_args'. 0; 1 with a message; or -1 with
** an error set when there is no memory. Functions, constants and primitives must have been read. */
int ek_verify_function(ek_executable *executable, int32_t index, char message[EK_VERIFY_MESSAGE]);

/* The words of one operand, 'n' being the length of the list it may be. */
int32_t ek_operand_words(char letter, int32_t n);

/* The words of an instruction that was verified. */
int32_t ek_instruction_words(const int32_t *pc);

#endif /* EK_VERIFY_H_ */
