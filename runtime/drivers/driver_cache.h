/* Disk cache of device binaries, shared by all drivers, keyed by a digest of the source and of the
** compiler that built it.
** The folder is the first of EKIDEN_CACHE_DIR (empty: there is none), else ekiden below
** XDG_CACHE_HOME or ~/.cache; in it "device". A file that cannot be read is a miss; one that cannot
** be written is skipped. */
#ifndef EK_DRIVER_CACHE_H_
#define EK_DRIVER_CACHE_H_

#include <stddef.h>

enum { CACHE_KEY = 40 };

/* The digest of a text, of names and of options, as hexadecimal digits. */
void cache_key(const void *text, size_t size, char (*names)[256], int n_names, const char *options,
               char *key, size_t capacity);

/* Return the cached binary in memory from malloc; NULL for a miss or a damaged file. */
unsigned char *cache_read(const char *key, size_t *size);
void cache_write(const char *key, const void *data, size_t size);

#endif /* EK_DRIVER_CACHE_H_ */
