/* Declarations shared by the parts of the platform layer for WebAssembly. */
#ifndef EK_WEB_H_
#define EK_WEB_H_

#include "ek_platform.h"

/* Code that was placed is placed by each thread for itself, for it has a table of its own: remembers
** copies of what that takes. 0, or -1 without memory. */
int ek_web_share(const void *text, size_t size, const uintptr_t *table, uint32_t imports, void *data,
                 int32_t first);
void ek_web_unshare(int32_t first);

#endif /* EK_WEB_H_ */
