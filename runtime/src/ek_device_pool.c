/* Memory of devices that is kept for reuse. A block that is freed may still be used by what is queued
** on its device, so that freeing it would wait or, where a driver does not, be work for it each time.
** Who gets the block next queues behind that; what goes beside the queue, a copy to the device, waits
** for the event that was recorded when the block was freed.
**
** Under EK_HARD_TEST, where a driver has no events, and in programs that are to be small
** (EK_SMALL), nothing is kept. */
#include "ek_internal.h"

enum { BUCKETS = 256, UNIT = 256, COARSE = 8, FINE = 32, ROUNDED_FROM = 4096, FINE_FROM = 1 << 20 };

typedef struct block {
  struct block *next;
  ek_device device;
  void *data, *event;          /* the event of its last use before, or NULL */
  size_t size;
} block;

static block *live[BUCKETS], *kept[BUCKETS]; /* by address; by size */
static ek_mutex lock = EK_MUTEX_INIT;

#if defined(EK_HARD_TEST) || defined(EK_SMALL)
static bool keeps(const ek_device_table *table) { return (void)table, false; }
#else
static bool keeps(const ek_device_table *table) {
  return table->free != NULL && table->event_new != NULL && table->event_wait != NULL &&
         table->event_free != NULL;
}
#endif

static size_t bucket_of(uint64_t key) { return (size_t)(key * 0x9e3779b97f4a7c15u >> 56); }

/* Round a size up to the size requested from the driver, so that blocks of similar sizes are
** interchangeable: at most 1/8 more, for large blocks 1/32. Small blocks keep their exact size, so
** that memory checkers of devices see where each ends. */
static size_t rounded(size_t size) {
  size_t power = UNIT, steps = size < FINE_FROM ? COARSE : FINE;
  if (size < ROUNDED_FROM) return size;
  while (power <= size / 2) power *= 2;
  size_t unit = power / steps > UNIT ? power / steps : UNIT;
  return (size + unit - 1) / unit * unit;
}

static void put(block **list, uint64_t key, block *b) {
  b->next = list[bucket_of(key)];
  list[bucket_of(key)] = b;
}

/* Under the lock: the block of an address, taken off the list of those in use or left on it. */
static block *used_block(ek_device device, const void *data, bool is_taken) {
  block **at = &live[bucket_of((uintptr_t)data)];
  while (*at != NULL && ((*at)->data != data || !ek_device_same((*at)->device, device))) {
    at = &(*at)->next;
  }
  block *found = *at;
  if (found != NULL && is_taken) *at = found->next;
  return found;
}

static block *take_cached(ek_device device, size_t size, size_t alignment) {
  ek_mutex_lock(&lock);
  block **at = &kept[bucket_of(size)];
  while (*at != NULL && ((*at)->size != size || !ek_device_same((*at)->device, device) ||
                         (uintptr_t)(*at)->data % alignment != 0)) {
    at = &(*at)->next;
  }
  block *found = *at;
  if (found != NULL) {
    *at = found->next;
    put(live, (uintptr_t)found->data, found);
  }
  ek_mutex_unlock(&lock);
  return found;
}

static void destroy(const ek_device_table *table, block *b) {
  if (b->event != NULL) table->event_free(b->device, b->event);
  table->free(b->device, b->data, b->size);
  ek_free(b);
}

/* Gives back what is kept of a device, or of all where 'device' is NULL; how many blocks. */
static int trim(const ek_device *device) {
  block *all = NULL;
  int n = 0;
  ek_mutex_lock(&lock);
  for (size_t i = 0; i < BUCKETS; i++) {
    for (block **at = &kept[i]; *at != NULL;) {
      block *b = *at;
      if (device != NULL && !ek_device_same(b->device, *device)) {
        at = &b->next;
        continue;
      }
      *at = b->next;
      b->next = all;
      all = b;
    }
  }
  ek_mutex_unlock(&lock);
  while (all != NULL) {
    block *b = all;
    const ek_device_table *table = ek_device_table_of(b->device, "free memory");
    all = b->next;
    if (table != NULL) destroy(table, b);
    n++;
  }
  return n;
}

void ek_device_pool_trim(void) { (void)trim(NULL); }

/* Allocate from the driver; if that fails, return cached blocks to it and try again. */
static int fresh(const ek_device_table *table, ek_device device, size_t size, size_t alignment,
                 void **out) {
  int status = table->alloc(device, size, alignment, NULL, out);
  if (status == 0 || trim(&device) == 0) return status;
  ek_object_release(ek_error_take());
  return table->alloc(device, size, alignment, NULL, out);
}

int ek_device_memory(const ek_device_table *table, ek_device device, size_t size, size_t alignment,
                     void **out) {
  if (!keeps(table) || size > SIZE_MAX / 2) return fresh(table, device, size, alignment, out);
  size_t whole = rounded(size);
  block *b = take_cached(device, whole, alignment == 0 ? 1 : alignment);
  if (b == NULL) {
    b = ek_alloc_or_error(sizeof *b);
    if (b == NULL) return -1;
    *b = (block){NULL, device, NULL, NULL, whole};
    if (fresh(table, device, whole, alignment, &b->data) != 0) {
      ek_free(b);
      return -1;
    }
    ek_mutex_lock(&lock);
    put(live, (uintptr_t)b->data, b);
    ek_mutex_unlock(&lock);
  }
  *out = b->data;
  return 0;
}

/* An error here is of the device, and met by whoever uses it next. */
void ek_device_memory_free(const ek_device_table *table, ek_device device, void *data, size_t size) {
  ek_mutex_lock(&lock);
  block *b = used_block(device, data, true);
  ek_mutex_unlock(&lock);
  if (b == NULL) {
    if (table->free != NULL) table->free(device, data, size);
    return;
  }
  void *event = NULL;
  ek_object *before = ek_error_take();
  int status = table->event_new(device, NULL, &event);
  ek_object_release(ek_error_take());
  if (before != NULL) (void)ek_error_set(before);
  ek_object_release(before);
  if (status != 0) {
    destroy(table, b);
    return;
  }
  if (b->event != NULL) table->event_free(device, b->event);
  b->event = event;
  ek_mutex_lock(&lock);
  put(kept, b->size, b);
  ek_mutex_unlock(&lock);
}

int ek_device_memory_ready(const ek_device_table *table, ek_device device, const void *data,
                           void *stream) {
  void *event = NULL;
  ek_mutex_lock(&lock);
  block *b = used_block(device, data, false);
  if (b != NULL) {
    event = b->event;
    b->event = NULL;
  }
  ek_mutex_unlock(&lock);
  if (event == NULL) return 0;
  int status = stream == NULL ? 0 : table->event_wait(device, stream, event);
  table->event_free(device, event);
  return status;
}
