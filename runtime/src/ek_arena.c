/* Arenas: the storages that a virtual machine keeps from run to run.
**
** A function takes one for its intermediate tensors and lets go of it when it returns; the next
** function, or the next run, takes it again. So a warm run asks nobody for memory, and one over
** larger shapes asks for the difference once. Memory that rests here is not lost to others: a
** request that finds none elsewhere takes it away. */
#include "ek_internal.h"

/* Threads: an owner's storages are its own while it runs, from the first one taken to the end of
** the run ('busy' is 1). Between runs they are anybody's who sets 'busy' for a moment: only
** ek_arenas_reclaim does, which passes over owners that run. 'held' is the owner's own note that
** it has set it, so that it is set once for all storages of a run. */
enum { KEPT = sizeof((ek_arenas *)0)->kept / sizeof(ek_object *) };

#ifdef EK_HARD_TEST
static const bool keeps = false; /* so that each use after free is seen */
#else
static const bool keeps = true;
#endif

static ek_mutex lock = EK_MUTEX_INIT; /* guards the list */
static ek_arenas *known;

/* A child of a fork must find the list whole and the lock free. Handlers before a fork run in the
** order opposite to that of their registration: this one is registered when the first machine is
** made, long after the allocator's, so that at a fork this lock is taken first, as LOCK ORDER
** (ek_alloc.c) has it. */
static void lock_list(void) { ek_mutex_lock(&lock); }
static void unlock_list(void) { ek_mutex_unlock(&lock); }
static void watch_forks(void) { ek_on_fork(lock_list, unlock_list, unlock_list); }

void ek_arenas_add(ek_arenas *arenas) {
  static ek_once once = EK_ONCE_INIT;
  ek_call_once(&once, watch_forks);
  ek_mutex_lock(&lock);
  arenas->next = known;
  if (known != NULL) known->previous = arenas;
  known = arenas;
  ek_mutex_unlock(&lock);
}

/* Releases this reference: a result that lies in one keeps it. */
static void give_up(ek_arenas *arenas) {
  for (int i = 0; i < KEPT; i++) {
    ek_object_release(arenas->kept[i]);
    arenas->kept[i] = NULL;
  }
}

void ek_arenas_remove(ek_arenas *arenas) {
  ek_mutex_lock(&lock);
  if (arenas->previous != NULL) arenas->previous->next = arenas->next;
  if (arenas->next != NULL) arenas->next->previous = arenas->previous;
  if (known == arenas) known = arenas->next;
  ek_mutex_unlock(&lock);
  give_up(arenas);
}

/* Only a reclaim can have them meanwhile, which is short. */
static void hold(ek_arenas *arenas) {
  while (__atomic_exchange_n(&arenas->busy, 1, __ATOMIC_ACQUIRE) != 0) ek_thread_yield();
  arenas->held = true;
}

void ek_arenas_rest(ek_arenas *arenas) {
  if (!arenas->held) return;
  arenas->held = false;
  __atomic_store_n(&arenas->busy, 0, __ATOMIC_RELEASE);
}

/* Acquire, as in every place that counts down to one: the last owner's writes come before what is
** written next. */
static bool is_free(const ek_object *storage) {
  return (__atomic_load_n(&storage->refs, __ATOMIC_ACQUIRE) & EK_STRONG_MASK) == 1;
}

static bool is_like(const ek_storage *storage, size_t alignment, ek_device device) {
  return storage->device.type == device.type && storage->device.id == device.id &&
         (uintptr_t)storage->data % alignment == 0;
}

/* The place of the smallest free storage that is large enough; else of the largest that is free,
** else an empty one, else -1.
**
** Replacing the largest of those too small leaves the others for the smaller requests they were
** made for; with shapes that grow from run to run, one storage grows, and not four. */
static int choose(const ek_arenas *arenas, size_t size, size_t alignment, ek_device device,
                  bool *fits) {
  int fitting = -1, small = -1, empty = -1;
  size_t best = SIZE_MAX, largest = 0;
  for (int i = 0; i < KEPT; i++) {
    const ek_storage *storage = (const ek_storage *)(const void *)arenas->kept[i];
    if (storage == NULL) {
      empty = i;
    } else if (is_free(&storage->base) && is_like(storage, alignment, device)) {
      if (storage->size >= size && storage->size < best) best = storage->size, fitting = i;
      if (storage->size < size && storage->size >= largest) largest = storage->size, small = i;
    }
  }
  *fits = fitting >= 0;
  return fitting >= 0 ? fitting : small >= 0 ? small : empty;
}

int ek_arenas_take(ek_arenas *arenas, size_t size, size_t alignment, ek_device device,
                   ek_object **out) {
  bool fits = false;
  if (!keeps) return ek_storage_new(size, alignment, device, out);
  if (!arenas->held) hold(arenas);
  int at = choose(arenas, size, alignment, device, &fits);
  if (at < 0) return ek_storage_new(size, alignment, device, out);
  if (!fits) {
    ek_object_release(arenas->kept[at]);
    arenas->kept[at] = NULL;
    if (ek_storage_new(size, alignment, device, &arenas->kept[at]) != 0) return -1;
  }
  ek_retain(arenas->kept[at]);
  *out = arenas->kept[at];
  return 0;
}

void ek_arenas_reclaim(void) {
  ek_mutex_lock(&lock);
  for (ek_arenas *each = known; each != NULL; each = each->next) {
    if (__atomic_exchange_n(&each->busy, 1, __ATOMIC_ACQUIRE) != 0) continue;
    give_up(each);
    __atomic_store_n(&each->busy, 0, __ATOMIC_RELEASE);
  }
  ek_mutex_unlock(&lock);
}
