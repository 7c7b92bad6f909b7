/* Objects: creation, reference counts, and deletion without recursion. */
#include "ek_internal.h"

void ek_object_retain(ek_object *object) {
  if (object != NULL) ek_retain(object);
}

void ek_object_release(ek_object *object) {
  if (object != NULL) ek_release(object);
}

/* Zeroed, so that a deleter may run over an object that was filled in part: NULL and NONE are
** released as nothing. */
void *ek_object_alloc(size_t size, int32_t type_index, void (*deleter)(void *self, int flags)) {
  ek_object *object = ek_alloc_or_error(size);
  if (object == NULL) return NULL;
  memset(object, 0, size);
  object->refs = EK_REFS_NEW;
  object->type_index = type_index;
  object->deleter = deleter;
  return object;
}

void ek_object_plain_deleter(void *self, int flags) {
  if (flags & EK_DELETE_MEMORY) ek_free(self);
}

void ek_values_release(ek_value *values, int64_t count) {
  for (int64_t i = 0; i < count; i++) ek_value_release(&values[i]);
}

/* Deleting ---------------------------------------------------------------------------------------
**
** A list of a million cells is a chain of a million objects. Its last reference must not take the C
** stack with it: an object that dies while another is being deleted on the same thread is queued,
** and deleted by the outer one. The header of a dead object is not needed any more: the count's
** place holds the link, the deleter's what will drop it.
**
** Both variables are the thread's: objects die on the thread that gave up the last reference. The
** order of deaths is not that of a recursion, so no deleter may count on a sibling being alive. */

static EK_THREAD_LOCAL ek_object *dying;
static EK_THREAD_LOCAL bool is_deleting;

static void queue(ek_object *self, void (*drop)(void *self, int flags)) {
  memcpy(&self->refs, &dying, sizeof dying);
  self->deleter = drop;
  dying = self;
}

void ek_delete_flat(ek_object *self, int flags, void (*drop)(void *self, int flags)) {
  if (flags != (EK_DELETE_CONTENT | EK_DELETE_MEMORY)) {
    drop(self, flags); /* somebody holds a weak reference: the header is still in use */
    return;
  }
  if (is_deleting) {
    queue(self, drop);
    return;
  }
  is_deleting = true;
  drop(self, flags);
  while (dying != NULL) {
    ek_object *next = dying;
    memcpy(&dying, &next->refs, sizeof dying);
    next->deleter(next, flags);
  }
  is_deleting = false;
}
