/* Find and replace the tensors inside a nested value. */
#ifndef EK_PARTS_H_
#define EK_PARTS_H_

#include "ek_internal.h"

/* Rule that ek_tensors_apply applies to the tensors of a value. A tensor is 'shared' where an ADT
** value around it has other owners than the value: those see what is written to it. */
typedef struct ek_tensor_rule {
  const void *context;
  /* Whether the tensor may stay. */
  bool (*stays)(const void *context, const ek_object *tensor, bool is_shared);
  /* Puts another in its place: '*tensor' is owned, before and after. 0 or -1. */
  int (*replace)(const void *context, ek_value *tensor, bool is_shared);
  /* Data with other owners is changed where it lies. Else it is copied, the parts that lead to a
  ** tensor which may not stay alone. */
  bool in_place;
} ek_tensor_rule;

/* Applies a rule to all tensors of an owned value: of ADT values, and of what closures and
** references hold that nobody else has. What several parts lead to is looked at once, and stays
** one. 0, or -1 with the value as far as it came. */
int ek_tensors_apply(ek_value *value, const ek_tensor_rule *rule);

#endif /* EK_PARTS_H_ */
