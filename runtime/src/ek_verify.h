/* The verifier: what it has passed, the machine runs without checks of its own on operands. */
#ifndef EK_VERIFY_H_
#define EK_VERIFY_H_

#include "ek_executable.h"

typedef enum ek_opcode {
#define EK_OPCODE(name, text, format, operands, meaning) EK_OP_##name,
#include "vm_opcodes.def"
#undef EK_OPCODE
  EK_OP_COUNT,
  EK_OP_NATIVE = EK_OP_COUNT,  /* these two in memory only: ek_native.c */
  EK_OP_WATCH
} ek_opcode;

enum { EK_VERIFY_MESSAGE = 200 };

/* The instruction set, in order of opcode number. The strings are those of vm_opcodes.def. */
typedef struct ek_opcode_info {
  const char *name;
  const char *text;
  const char *format;
  const char *meaning;
} ek_opcode_info;

extern const ek_opcode_info ek_opcodes[EK_OP_COUNT];

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
