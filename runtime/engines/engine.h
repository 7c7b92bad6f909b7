/* Shared by the adapters of third-party engines: the engine's library is loaded at run time, and
** its functions are looked up by name. Building needs neither the library nor its headers. */
#ifndef EK_ENGINE_H_
#define EK_ENGINE_H_

#include "ekiden/runtime.h"

/* The one symbol of such a library. */
EK_API const ek_engine_table *ek_engine_open(const ek_engine_host *host);

/* A function of the engine's library, by its name; the table of these ends with a name NULL. */
typedef struct engine_symbol {
  const char *name;
  void *place;                 /* where its address goes */
} engine_symbol;

/* Opens a library: the file that begins with 'file' in one of the host's folders (its name may end
** in a version), else 'soname' where the system looks; and finds the functions. 0, or -1 with an
** error that ends in 'advice'. */
int engine_find(const ek_engine_host *host, const char *engine, const char *file, const char *soname,
                const char *advice, const engine_symbol *symbols);

#endif /* EK_ENGINE_H_ */
