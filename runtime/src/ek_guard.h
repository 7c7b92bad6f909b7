/* Protection of mapped files against truncation by another process: reading past the new end raises
** SIGBUS, which would kill the process. While a file is guarded, a handler maps zero pages there
** and records the truncation; it forwards every other SIGBUS to the previous handler.
**
** Signal handlers belong to the application: the handler is installed only if the process requests
** it ("ek.files.guard", as the Python binding does).
** Windows does not let anyone truncate a mapped file.
*/
#ifndef EK_GUARD_H_
#define EK_GUARD_H_

#include <stdbool.h>
#include <stddef.h>

/* All of these from any thread. A place is a number >= 0 that stands for memory which is
** guarded. */

#if defined(EK_SMALL) || defined(__wasm__) || defined(_WIN32)
static inline int ek_guard_file(const void *data, size_t size) {
  (void)data;
  (void)size;
  return -1;
}
static inline void ek_guard_leave(int place) { (void)place; }
static inline int ek_guard_at(const void *address) {
  (void)address;
  return -1;
}
static inline bool ek_guard_is_whole(int place) {
  (void)place;
  return true;
}
#else
#define EK_GUARDS 1

/* Whether files of executables are guarded from now on. */
void ek_guard_files(bool wanted);

/* Guards the memory of a file that is mapped read-only and private, if that is wanted: its place, or
** -1 where it is not, or no place is left. 'size' is not 0. */
int ek_guard_file(const void *data, size_t size);

/* ek_guard_file, whether or not ek_guard_files has enabled guards. */
int ek_guard_watch(const void *data, size_t size);

/* Stop guarding a place, before its memory is unmapped; the last one removes the handler. */
void ek_guard_leave(int place);

/* The place of the memory that an address lies in, or -1. */
int ek_guard_at(const void *address);

/* Whether nothing of a file was gone when it was read, nor is now: its last page is read, which goes
** whatever is cut. A cut within that page takes only what stands there, and makes zeros of it. */
bool ek_guard_is_whole(int place);

/* Return whether a read hit a truncated part. */
bool ek_guard_has_seen(int place);

/* Lets whole pages from memory go that are guarded: they come again when they are read. */
void ek_guard_drop(const void *begin, size_t size);

/* Maps all of an open file of a size that is not 0; NULL with errno set. */
const void *ek_guard_map(int file, size_t size);
#endif

#endif /* EK_GUARD_H_ */
