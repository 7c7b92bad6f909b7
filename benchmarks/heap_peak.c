/* Counts the bytes that a process holds from the C library, and the most at once: loaded before the
** library (LD_PRELOAD) by peak_memory.py. The system's own count of resident pages lags behind by up
** to 32 pages for each processor. */

#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *block, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);
extern void __libc_free(void *block);

static atomic_long now, most;

static void *took(void *block) {
  if (block == NULL) return NULL;
  long size = (long)malloc_usable_size(block);
  long held = atomic_fetch_add(&now, size) + size, seen = atomic_load(&most);
  while (held > seen && !atomic_compare_exchange_weak(&most, &seen, held)) continue;
  return block;
}

static void gave(void *block) {
  if (block != NULL) atomic_fetch_sub(&now, (long)malloc_usable_size(block));
}

void *malloc(size_t size) { return took(__libc_malloc(size)); }

void *calloc(size_t count, size_t size) { return took(__libc_calloc(count, size)); }

void *memalign(size_t alignment, size_t size) { return took(__libc_memalign(alignment, size)); }

void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void **block, size_t alignment, size_t size) {
  *block = memalign(alignment, size);
  return *block == NULL ? 12 /* ENOMEM */ : 0;
}

void *realloc(void *block, size_t size) {
  gave(block);
  return took(__libc_realloc(block, size));
}

void free(void *block) {
  gave(block);
  __libc_free(block);
}

/* What is held now; the most since the last restart; begin anew. */
long heap_now(void) { return atomic_load(&now); }

long heap_most(void) { return atomic_load(&most); }

void heap_restart(void) { atomic_store(&most, atomic_load(&now)); }
