/* Host-device copies that overlap with queued kernels: one copy stream per direction.
**
** The destination of a copy to a device is memory that no queued kernel uses (ek_device_pool.c). A
** copy from a device waits for the last launch that accessed its source, not for later launches: in
** programs on several devices, each launch is recorded with its memory ranges and an event. Events
** of a stream complete in order, so one older event stands for all launches that are no longer
** recorded. */
#include "ek_internal.h"

enum { KINDS = 64, MAX_DEVICES = 16, NOTED = 16 };

typedef struct launched {
  void *event;
  int32_t n;
  ek_memory_range memory[EK_DEVICE_MAX_ARGS];
} launched;

typedef struct queue {
  ek_mutex lock;               /* of what follows */
  void *streams[2];            /* to the device, from it; NULL until first used */
  launched *noted;             /* NOTED of them, in turn; NULL while nothing comes back */
  uint64_t n;                  /* launches that have been noted */
} queue;

static queue *queues[KINDS][MAX_DEVICES]; /* atomic: NULL until first used */
enum { TO, FROM };

/* Returns the state of a device; NULL with no error where its driver has no streams, or its number is
** larger than those kept here. */
static queue *queue_of(const ek_device_table *table, ek_device device) {
#ifdef EK_SMALL
  return (void)table, (void)device, NULL;
#endif
  bool is_known = device.type > 0 && device.type < KINDS && device.id >= 0 && device.id < MAX_DEVICES;
  if (!is_known || table->stream_new == NULL || table->synchronize == NULL) return NULL;
  queue **place = &queues[device.type][device.id], *found = __atomic_load_n(place, __ATOMIC_ACQUIRE);
  if (found != NULL) return found;
  queue *made = ek_alloc(sizeof *made);
  if (made == NULL) return NULL;
  *made = (queue){.lock = EK_MUTEX_INIT};
  if (__atomic_compare_exchange_n(place, &found, made, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    return made;
  }
  ek_free(made);
  return found;
}

static int stream_of(queue *q, const ek_device_table *table, ek_device device, int way, void **out) {
  int status = 0;
  ek_mutex_lock(&q->lock);
  if (q->streams[way] == NULL) status = table->stream_new(device, &q->streams[way]);
  *out = q->streams[way];
  ek_mutex_unlock(&q->lock);
  return status;
}

int ek_device_upload(const void *from, ek_device host, void *to, ek_device device, size_t size) {
  void *stream = NULL;
  const ek_device_table *table = ek_device_table_of(device, "copy tensor");
  if (table == NULL) return -1;
  queue *q = queue_of(table, device);
  if (q != NULL && stream_of(q, table, device, TO, &stream) != 0) return -1;
  if (ek_device_memory_ready(table, device, to, stream) != 0) return -1;
  int status = table->copy(from, host, to, device, size, stream);
  return status == 0 && stream != NULL ? table->synchronize(device, stream) : status;
}

/* Launches ------------------------------------------------------------------------------------- */

/* Under the lock: forgets the oldest where there is no room. The event is owned. */
static launched *note(queue *q, const ek_device_table *table, ek_device device, void *event) {
  launched *l = &q->noted[q->n % NOTED];
  if (q->n >= NOTED) table->event_free(device, l->event);
  l->event = event;
  l->n = 0;
  q->n++;
  return l;
}

void ek_device_note_launches(ek_device device) {
  const ek_device_table *table = ek_device_table_of(device, "copy tensor");
  queue *q = table == NULL || table->event_new == NULL || table->event_wait == NULL ||
                     table->event_free == NULL
                 ? NULL
                 : queue_of(table, device);
  void *event;
  if (q == NULL || __atomic_load_n(&q->noted, __ATOMIC_RELAXED) != NULL) return;
  launched *noted = ek_alloc(NOTED * sizeof *noted);
  if (noted == NULL) return;
  if (table->event_new(device, NULL, &event) != 0) {
    ek_object_release(ek_error_take()); /* whoever uses the device next meets it */
    ek_free(noted);
    return;
  }
  ek_mutex_lock(&q->lock);
  bool is_first = q->noted == NULL;
  if (is_first) {
    __atomic_store_n(&q->noted, noted, __ATOMIC_RELAXED);
    (void)note(q, table, device, event); /* stands for all that was launched before */
  }
  ek_mutex_unlock(&q->lock);
  if (is_first) return;
  table->event_free(device, event);
  ek_free(noted);
}

/* The bytes that a tensor may touch, whatever its strides. */
static ek_memory_range range_of(const ek_dltensor *tensor) {
  uintptr_t begin = (uintptr_t)ek_dltensor_data(tensor);
  int64_t low = 0, high = 0, step = 1;
  for (int32_t d = tensor->ndim - 1; d >= 0; d--) {
    int64_t stride = tensor->strides == NULL ? step : tensor->strides[d];
    int64_t far = (tensor->shape[d] - 1) * stride;
    if (tensor->shape[d] == 0) return (ek_memory_range){begin, begin};
    low += far < 0 ? far : 0;
    high += far > 0 ? far : 0;
    step *= tensor->shape[d];
  }
  int64_t item = ((int64_t)tensor->dtype.bits * tensor->dtype.lanes + 7) / 8;
  return (ek_memory_range){begin + (uintptr_t)(low * item), begin + (uintptr_t)((high + 1) * item)};
}

int ek_device_launched(const ek_device_table *table, ek_device device, const ek_value *args,
                       int32_t nargs) {
  queue *q = queue_of(table, device);
  void *event;
  if (q == NULL || __atomic_load_n(&q->noted, __ATOMIC_ACQUIRE) == NULL) return 0;
  ek_mutex_lock(&q->lock); /* around the event: notes have the order of their events */
  int status = table->event_new(device, NULL, &event);
  if (status == 0) {
    launched *l = note(q, table, device, event);
    for (int32_t i = 0; i < nargs; i++) {
      const ek_dltensor *tensor = ek_value_tensor(&args[i]);
      if (tensor != NULL && l->n < EK_DEVICE_MAX_ARGS) l->memory[l->n++] = range_of(tensor);
    }
  }
  ek_mutex_unlock(&q->lock);
  return status;
}

static bool touches(const launched *l, ek_memory_range range) {
  for (int32_t i = 0; i < l->n; i++) {
    if (l->memory[i].begin < range.end && range.begin < l->memory[i].end) return true;
  }
  return false;
}

/* Under the lock: the last launch that touched memory; else the oldest that is noted, behind which
** are all that are forgotten. */
static const launched *last_use(const queue *q, ek_memory_range range) {
  uint64_t oldest = q->n > NOTED ? q->n - NOTED : 0;
  for (uint64_t i = q->n; i > oldest; i--) {
    if (touches(&q->noted[(i - 1) % NOTED], range)) return &q->noted[(i - 1) % NOTED];
  }
  return &q->noted[oldest % NOTED];
}

int ek_device_fetch(const void *from, ek_device device, void *to, ek_device host, size_t size) {
  void *stream = NULL;
  const ek_device_table *table = ek_device_table_of(device, "copy tensor");
  if (table == NULL) return -1;
  queue *q = queue_of(table, device);
  bool is_beside = q != NULL && __atomic_load_n(&q->noted, __ATOMIC_ACQUIRE) != NULL;
  if (!is_beside) return table->copy(from, device, to, host, size, NULL);
  if (stream_of(q, table, device, FROM, &stream) != 0) return -1;
  ek_memory_range range = {(uintptr_t)from, (uintptr_t)from + size};
  ek_mutex_lock(&q->lock);
  int status = table->event_wait(device, stream, last_use(q, range)->event);
  ek_mutex_unlock(&q->lock);
  if (status == 0) status = table->copy(from, device, to, host, size, stream);
  return status == 0 ? table->synchronize(device, stream) : status;
}
