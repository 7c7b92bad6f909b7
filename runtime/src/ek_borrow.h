/* Borrowed argument tensors, read in place, and results that do not alias them. */
#ifndef EK_BORROW_H_
#define EK_BORROW_H_

#include "ek_internal.h"

/* The wrappers of the tensors borrowed for one call. The list grows until it is freed. */
typedef struct ek_borrowed {
  ek_object **tensors;         /* owned */
  int32_t count, capacity;
} ek_borrowed;

/* Wraps a caller's tensor; '*out' is owned. 0 or -1. */
int ek_borrow_tensor(ek_borrowed *borrowed, const ek_dltensor *tensor, ek_value *out);

/* Ends the call: copies the tensors of 'result' (owned, may be NONE) that alias borrowed memory. On
** failure -1, with the result released. */
int ek_borrow_end(ek_borrowed *borrowed, ek_value *result);

void ek_borrow_free(ek_borrowed *borrowed);

/* Copies the tensors of 'result' (owned) that alias an argument, another tensor of the result, or
** state of the program, unless they are read-only, as constants are. On failure -1, with the result
** released. */
int ek_result_unalias(ek_value *result);

#endif /* EK_BORROW_H_ */
