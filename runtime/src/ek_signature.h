/* Parameter types of functions, as encoded in section TYPES, and the check of arguments against
** them.
**
** A type is words of 64 bits:
**   EK_TYPE_ANY                            anything
**   EK_TYPE_TENSOR dtype rank dimensions   dtype is code + 256 * bits; a dimension is a number, or
**                                          -1-i for symbol i, or EK_TYPE_ANY_DIM
**   EK_TYPE_TUPLE n types                  a tuple of n
*/
#ifndef EK_SIGNATURE_H_
#define EK_SIGNATURE_H_

#include "ek_executable.h"

enum { EK_TYPE_ANY, EK_TYPE_TENSOR, EK_TYPE_TUPLE };
enum { EK_TYPE_NESTING = 16, EK_TYPE_STACK = 16 };

#define EK_TYPE_ANY_DIM INT64_MIN

/* The words of a symbol's definition: operands, which take the next word, and operations on the two
** values before. */
enum {
  EK_DIM_CONST,
  EK_DIM_SYMBOL,               /* one before it */
  EK_DIM_ADD,
  EK_DIM_SUB,
  EK_DIM_MUL,
  EK_DIM_FLOORDIV,
  EK_DIM_FLOORMOD,
  EK_DIM_MIN,
  EK_DIM_MAX
};

/* A symbol during a call: its size and the parameter that showed it. */
typedef struct ek_seen {
  int64_t size;
  int32_t param;
} ek_seen;

/* A value as messages name it, cut where it is long: "(300, 3) float32", "a tuple of 2". */
enum { EK_VALUE_TEXT = 256 };
void ek_value_describe(const ek_value *value, char text[EK_VALUE_TEXT]);

/* Whether arguments are of the types that a function declares; there are as many as parameters, and
** room in 'seen' for each symbol of the executable. 0, or -1 with an InputError that names the input,
** what is expected and what came. */
int ek_signature_check(const ek_executable *executable, const ek_vm_function *function,
                       const ek_value *args, ek_seen *seen);

/* The end of a type that is whole and in range; NULL for one that is not. */
const int64_t *ek_type_verify(const int64_t *type, const int64_t *end, int32_t n_symbols,
                              int32_t depth);

/* Whether words are a definition from symbols below 'n_known', or none. */
bool ek_definition_verify(const int64_t *words, int32_t n, int32_t n_known);

#endif /* EK_SIGNATURE_H_ */
