/* Borrowed argument tensors, read in place, and results that do not alias them. */
#ifndef EK_LEND_H_
#define EK_LEND_H_

#include "ek_internal.h"

/* The tensors made over what was lent for one call. Grows, and shrinks only when it is freed. */
typedef struct ek_lent {
  ek_object **tensors;         /* owned */
  int32_t count, capacity;
} ek_lent;

/* A tensor over the elements of one that is lent, owned. 0 or -1. */
int ek_lent_add(ek_lent *lent, const ek_dltensor *tensor, ek_value *out);

/* Ends the call: whatever of 'result' (owned, may be NONE) lies in what was lent is copied. -1 when
** that fails; the result is then released. */
int ek_lent_end(ek_lent *lent, ek_value *result);

void ek_lent_free(ek_lent *lent);

/* Copies whatever of 'result' (owned) shares memory with an argument, with another part of the
** result, or with what its program keeps, unless it is read-only, as constants are. -1 when that
** fails; the result is then released. */
int ek_result_part(ek_value *result);

#endif /* EK_LEND_H_ */
