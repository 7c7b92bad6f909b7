/* CPU feature detection. */
#ifndef EK_CPU_H_
#define EK_CPU_H_

#include <stdbool.h>
#include <stddef.h>

/* Whether there are the instructions that /proc/cpuinfo calls by this name, and the system keeps
** their registers. False for a name that is not known here; docs/artifact-format.md lists them. */
bool ek_cpu_has(const char *name, size_t size);

#endif /* EK_CPU_H_ */
