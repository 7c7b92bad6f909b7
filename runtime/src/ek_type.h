/* Internal declarations of the type registry. */
#ifndef EK_TYPE_H_
#define EK_TYPE_H_

#include "ek_internal.h"

/* The field of a name, or NULL. */
const ek_field *ek_type_field(const ek_type_info *info, const char *name);

/* Storage form of a field in an object; see ek_field. */
typedef enum ek_storage_form {
  EK_FORM_VALUE,               /* an ek_value */
  EK_FORM_POINTER,             /* an ek_object * that may be NULL */
  EK_FORM_PLAIN,               /* bytes of a number, dtype or device */
  EK_FORM_CODE                 /* only its functions know */
} ek_storage_form;

static inline ek_storage_form ek_field_form(const ek_field *field) {
  if (field->get != NULL) return EK_FORM_CODE;
  if (field->size == sizeof(ek_value)) return EK_FORM_VALUE;
  return field->type >= EK_OBJECT ? EK_FORM_POINTER : EK_FORM_PLAIN;
}

static inline void *ek_field_at(const ek_object *object, const ek_field *field) {
  return (char *)(uintptr_t)object + field->offset;
}

#endif /* EK_TYPE_H_ */
