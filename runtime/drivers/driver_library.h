/* Tables of functions that drivers look up in a vendor's library at run time (dlsym). A table is a
** list of rows `ROW(result, name, parameters)`, from which the structure is declared and filled. */
#ifndef EK_DRIVER_LIBRARY_H_
#define EK_DRIVER_LIBRARY_H_

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#define DRIVER_MEMBER(result, name, parameters) result(*name) parameters;
#define DRIVER_NAME(result, name, parameters) #name,

/* Fills 'table', a structure of nothing but 'n' pointers to functions, in the order of their names;
** the first name that the library lacks, or NULL. */
static inline const char *driver_find(void *library, const char *const *names, size_t n, void *table) {
  for (size_t i = 0; i < n; i++) {
    void *found = dlsym(library, names[i]);
    if (found == NULL) return names[i];
    memcpy((char *)table + i * sizeof found, &found, sizeof found);
  }
  return NULL;
}

#endif /* EK_DRIVER_LIBRARY_H_ */
