/* Functions that the C source of an exported library calls
** (src/ekiden/compiler/export/library.py). */
#ifndef EK_EXPORT_H_
#define EK_EXPORT_H_

#include "ek_internal.h"

/* Exported function of the executable inside a library. The layout is part of the generated C
** source. */
typedef struct ek_export {
  ek_object *function;         /* NULL until the first call */
  const char *name;
  const void *begin;           /* of the executable's bytes */
  uint64_t size;
  const ek_extern *externs;    /* C functions that it is linked with */
} ek_export;

int ek_export_call(ek_export *program, const ek_value *args, int32_t nargs, ek_value *ret);

#endif /* EK_EXPORT_H_ */
