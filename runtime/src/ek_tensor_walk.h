/* Find and replace the tensors inside a nested value. */
#ifndef EK_TENSOR_WALK_H_
#define EK_TENSOR_WALK_H_

#include "ek_internal.h"

/* Rule that ek_tensors_apply applies to the tensors of a value. A tensor is 'shared' if an ADT value
** around it has other owners than the value: they would see writes to it. */
typedef struct ek_tensor_rule {
  const void *context;
  /* Whether the tensor is kept. */
  bool (*keeps)(const void *context, const ek_object *tensor, bool is_shared);
  /* Replaces '*tensor', which is owned before and after. 0 or -1. */
  int (*replace)(const void *context, ek_value *tensor, bool is_shared);
  /* Whether ADT values with other owners are changed in place. Otherwise they are copied, but only
  ** along the paths to replaced tensors. */
  bool in_place;
  /* Called for each reference, before what it holds is looked at where it has no other owner. 0 or
  ** -1; NULL for nothing. */
  int (*enter)(const void *context, ek_object *reference);
} ek_tensor_rule;

/* Applies a rule to all tensors of an owned value: those in ADT values, and those in closures and
** references that have no other owner. An object that occurs several times is visited once and
** stays one object. 0, or -1 with the value partly rewritten. */
int ek_tensors_apply(ek_value *value, const ek_tensor_rule *rule);

#endif /* EK_TENSOR_WALK_H_ */
