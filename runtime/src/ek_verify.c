/* The verifier, driven by the operand letters of vm_opcodes.def.
**
** It goes over a function's words twice. Instructions differ in length, so that they can be read in
** one direction only: the first pass reads them all and notes where each starts. Only then can a
** jump to an instruction be told from one into the middle of another, and be turned from a number
** of instructions, as the file has it, to a number of words, which the loop adds to pc. Time and
** memory are linear in the words.
**
** Proven is what the loop would otherwise ask each time: registers, constants, functions and
** primitives are in range, arguments are as many as there are parameters, lists end inside of the
** function, and so does control: the last instruction never goes on, and jumps land on
** instructions. Not proven is what registers hold (ek_vm_ops.c) nor that a program ends
** (ek_vm_limit.c).
**
** The first fault is the one that is told; after it every word is read as 0. */
#include "ek_verify.h"

#include <stdio.h>

const ek_opcode_info ek_opcodes[EK_OP_COUNT] = {
#define EK_OPCODE(name, text, format, operands, properties, meaning) \
  {#name, text, format, meaning, properties},
#include "vm_opcodes.def"
#undef EK_OPCODE
};

typedef struct verifier {
  const ek_executable *executable;
  const ek_vm_function *function;
  char *message;               /* empty while all is well */
  int32_t instruction;         /* number of the one being read, and its first word */
  int32_t start;
  int32_t at;                  /* next word */
  int32_t callee;              /* the last function operand */
  int32_t n;                   /* the last list length */
  int32_t max_args;
  bool keeps_arguments;        /* something it writes may outlive the call */
} verifier;

static void refuse(verifier *v, int64_t value, const char *expected, int64_t limit) {
  int32_t opcode = v->function->code[v->start];
  bool known = opcode >= 0 && opcode < EK_OP_COUNT;
  if (v->message[0] != '\0') return;
  snprintf(v->message, EK_VERIFY_MESSAGE,
           "'%.*s' at instruction %d (%s), word %d: %s %lld expected, got %lld",
           ek_shown(v->function->name, 60), v->function->name.data,
           v->instruction, known ? ek_opcodes[opcode].name : "unknown", v->at - v->start, expected,
           (long long)limit, (long long)value);
}

static bool failed(const verifier *v) { return v->message[0] != '\0'; }

/* The next word, which must be in [0, limit); 0 where it is not. */
static int32_t below(verifier *v, int64_t limit, const char *what) {
  if (v->at >= v->function->n_words) {
    refuse(v, v->function->n_words, "a function whose words are at least", (int64_t)v->at + 1);
    return 0;
  }
  int32_t word = v->function->code[v->at];
  bool is_good = word >= 0 && word < limit;
  if (!is_good) refuse(v, word, what, limit);
  v->at++;
  return is_good ? word : 0;
}

/* Skips words of which all values are allowed. */
static void skip(verifier *v, int64_t words) {
  if (words > v->function->n_words - v->at) {
    refuse(v, v->function->n_words, "a function whose words are at least", v->at + words);
    return;
  }
  v->at += (int32_t)words;
}

static void check_registers(verifier *v) {
  for (int32_t i = 0; i < v->n && !failed(v); i++) {
    below(v, v->function->n_registers, "a register below");
  }
  if (v->n > v->max_args) v->max_args = v->n;
}

/* A register that is read, or, as a negative word, moved from: -1 - r, so that 0 can be as well. */
static void check_value(verifier *v) {
  int32_t word = v->at < v->function->n_words ? v->function->code[v->at] : 0;
  if (word >= 0) {
    below(v, v->function->n_registers, "a register below");
    return;
  }
  if (-1 - word >= v->function->n_registers) {
    refuse(v, -1 - (int64_t)word, "a register below", v->function->n_registers);
  }
  v->at++;
}

static void check_jumps(verifier *v) {
  if (v->n == 0) refuse(v, 0, "a number of jumps of at least", 1);
  skip(v, v->n);
}

static void check_dimensions(verifier *v) {
  if (v->n > EK_MAX_NDIM) refuse(v, v->n, "a rank of at most", EK_MAX_NDIM);
  for (int32_t i = 0; i < v->n && !failed(v); i++) {
    skip(v, 2);
    if (!failed(v) && v->function->code[v->at - 1] < 0) refuse(v, -1, "a dimension of at least", 0);
  }
}

static void check_dtype(verifier *v) {
  int32_t code = below(v, EK_DTYPE_FLOAT4_E2M1FN + 1, "a dtype code below");
  int32_t bits = below(v, 129, "bits below");
  int32_t lanes = below(v, 2, "lanes below");
  if (code == EK_DTYPE_OPAQUE) refuse(v, code, "a dtype code other than", EK_DTYPE_OPAQUE);
  if (bits == 0 || lanes == 0) refuse(v, 0, "dtype bits and lanes of at least", 1);
}

static void check_alignment(verifier *v) {
  int32_t alignment = below(v, 4097, "an alignment below");
  if (alignment == 0 || (alignment & (alignment - 1)) != 0) {
    refuse(v, alignment, "an alignment that is a power of two up to", 4096);
  }
}

/* A constant that only another variant of the file makes has no data: nothing may load it. */
static void check_constant(verifier *v) {
  const ek_executable *e = v->executable;
  int32_t constant = below(v, e->n_constants, "a constant below");
  if (!failed(v) && e->is_absent[constant]) refuse(v, constant, "a constant other than", constant);
}

/* The number of arguments stands in the word behind: it is looked at here, before the letter 'n'
** reads it, as that one knows of no function. */
static void check_callee(verifier *v, bool exactly) {
  v->callee = below(v, v->executable->n_functions, "a function below");
  if (failed(v)) return;
  int32_t n_params = v->executable->functions[v->callee].n_params;
  int32_t n = v->at < v->function->n_words ? v->function->code[v->at] : -1;
  if (exactly && n != n_params) refuse(v, n, "a number of arguments of", n_params);
  if (n > n_params) refuse(v, n, "a number of captured values of at most", n_params);
}

static void check_operand(verifier *v, char letter) {
  const ek_executable *e = v->executable;
  switch (letter) {
    case 'w':
    case 'r':
    case 'e':
    case 'E': below(v, v->function->n_registers, "a register below"); break;
    case 'R': check_registers(v); break;
    case 'n': v->n = below(v, v->function->n_words, "a length below"); break;
    case 'u':
    case 'v': check_value(v); break;
    case 'V':
      for (int32_t i = 0; i < v->n && !failed(v); i++) check_value(v);
      break;
    case 'L': check_dimensions(v); break;
    case 'f': check_callee(v, false); break;
    case 'F': check_callee(v, true); break;
    case 'p': below(v, e->n_primitives, "a primitive below"); break;
    case 'k': check_constant(v); break;
    case 'o': below(v, (int64_t)v->n + 1, "a number of outputs below"); break;
    case 's': below(v, INT64_C(1) << 31, "an integer below"); break;
    case 'm': below(v, EK_MAX_NDIM + 1, "a rank below"); break;
    case 'I': skip(v, 2); break;
    case 't': check_dtype(v); break;
    case 'a': check_alignment(v); break;
    case 'd': below(v, e->n_devices, "a device below"); break;
    case 'j': skip(v, 1); break; /* when all instructions are known */
    case 'J': check_jumps(v); break;
    default: assert(!"a letter of vm_opcodes.def without a check");
  }
}

/* Reads all instructions and notes where each starts; returns how many there are. */
static int32_t check_instructions(verifier *v, int32_t *starts) {
  int32_t opcode = -1;
  bool keeps = false;
  for (v->instruction = 0; v->at < v->function->n_words && !failed(v); v->instruction++) {
    starts[v->instruction] = v->start = v->at;
    opcode = below(v, EK_OP_COUNT, "an opcode below");
    const char *format = failed(v) ? "" : ek_opcodes[opcode].format;
    keeps |= !failed(v) && ek_opcode_has(opcode, EK_KEEPS);
    for (; *format != '\0' && !failed(v); format++) check_operand(v, *format);
  }
  if (!failed(v) && (opcode < 0 || !ek_opcode_has(opcode, EK_ENDS))) {
    snprintf(v->message, EK_VERIFY_MESSAGE,
             "'%.*s': its last instruction must be one that never goes on to the next",
             ek_shown(v->function->name, 60),
             v->function->name.data);
  }
  v->keeps_arguments = keeps;
  return v->instruction;
}

/* Turns one jump from instructions to words. */
static void resolve_jump(verifier *v, const int32_t *starts, int32_t n_instructions) {
  int64_t target = (int64_t)v->instruction + v->function->code[v->at];
  if (target < 0 || target >= n_instructions)
    refuse(v, target, "a jump to an instruction below", n_instructions);
  if (target == v->instruction) refuse(v, 0, "a jump other than", 0);
  if (!failed(v)) v->function->code[v->at] = starts[target] - v->start;
  v->at++;
}

int32_t ek_operand_words(char letter, int32_t n) {
  switch (letter) {
    case 'R':
    case 'V':
    case 'J': return n;
    case 'L': return 2 * n;
    case 'I': return 2;
    case 't': return 3;
    default: return 1;
  }
}

int32_t ek_instruction_words(const int32_t *pc) {
  int32_t at = 1, n = 0;
  for (const char *letter = ek_opcodes[*pc].format; *letter != '\0'; letter++) {
    if (*letter == 'n') n = pc[at];
    at += ek_operand_words(*letter, n);
  }
  return at;
}

static void resolve_jumps(verifier *v, const int32_t *starts, int32_t n_instructions) {
  const int32_t *code = v->function->code;
  for (v->instruction = 0; v->instruction < n_instructions && !failed(v); v->instruction++) {
    v->start = starts[v->instruction];
    v->at = v->start + 1;
    const char *letter = ek_opcodes[code[v->start]].format;
    if (strpbrk(letter, "jJ") == NULL) continue;
    for (int32_t n = 0; *letter != '\0' && !failed(v); letter++) {
      int32_t words = ek_operand_words(*letter, n);
      bool jumps = *letter == 'j' || *letter == 'J';
      if (*letter == 'n') n = code[v->at];
      for (; jumps && words > 0 && !failed(v); words--) resolve_jump(v, starts, n_instructions);
      v->at += words;
    }
  }
}

int ek_verify_function(ek_executable *executable, int32_t index, char message[EK_VERIFY_MESSAGE]) {
  verifier v = {
      .executable = executable, .function = &executable->functions[index], .message = message};
  size_t size = ((size_t)v.function->n_words + 1) * sizeof(int32_t);
  int32_t *starts = ek_alloc_or_error(size);
  if (starts == NULL) return -1;
  message[0] = '\0';
  int32_t n_instructions = check_instructions(&v, starts);
  if (!failed(&v)) resolve_jumps(&v, starts, n_instructions);
  if (v.max_args > executable->max_args) executable->max_args = v.max_args;
  if (v.keeps_arguments) executable->keeps_arguments = true;
  ek_free(starts);
  return failed(&v) ? 1 : 0;
}
