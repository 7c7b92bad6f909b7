/* Check the instruction lengths of a SPIR-V module, for drivers whose compilers do not validate
** them. */
#ifndef EK_DRIVER_SPIRV_H_
#define EK_DRIVER_SPIRV_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { SPIRV_HEAD = 5 };

/* Return what is wrong with a module, or NULL. The first word of an instruction holds its length in
** words (SPIR-V specification 2.3). */
static inline const char *spirv_fault(const unsigned char *code, size_t size, uint32_t *version) {
  uint32_t word;
  size_t n = size / 4;
  if (size % 4 != 0 || n < SPIRV_HEAD) return "it is cut";
  memcpy(&word, code, sizeof word);
  if (word != 0x07230203) return "its first word is another";
  memcpy(version, code + 4, sizeof *version);
  for (size_t at = SPIRV_HEAD; at < n;) {
    memcpy(&word, code + 4 * at, sizeof word);
    size_t words = word >> 16;
    if (words == 0 || words > n - at) return "an instruction does not end in it";
    at += words;
  }
  return NULL;
}

#endif /* EK_DRIVER_SPIRV_H_ */
