/* Errors: one pending error object per thread. A failing function sets it, and its handler takes
** it: the binding, to raise it, or the end of a parallel loop, which moves a worker's error to the
** calling thread. Setting an error drops a pending one. Allocating an error may itself fail; then
** the statically allocated out-of-memory error below is set. */
#include "ek_internal.h"

#include <stdarg.h>
#include <stdio.h>

static EK_THREAD_LOCAL ek_object *pending;

/* Static error that is set when there is no memory for another. It is immortal: its count starts at
** two, and every holder releases only what it retained. */
static void immortal_deleter(void *self, int flags) {
  (void)self;
  (void)flags;
}

static void immortal_backtrace(void *self, const ek_bytes *text, int32_t append) {
  (void)self;
  (void)text;
  (void)append;
}

static ek_error_object out_of_memory = {
    .base = {EK_REFS_NEW + 1, EK_ERROR, 0, immortal_deleter},
    .kind = {"MemoryError", 11},
    .message = {"out of memory", 13},
    .backtrace = {"", 0},
    .update_backtrace = immortal_backtrace,
};

/* Kind and message lie behind the object; the backtrace, which grows, is a block of its own. */
static void error_deleter(void *self, int flags) {
  ek_error_object *error = self;
  if (flags & EK_DELETE_CONTENT) {
    ek_object_release(error->cause);
    ek_object_release(error->context);
    if (error->backtrace.size != 0) ek_free((void *)(uintptr_t)error->backtrace.data);
  }
  if (flags & EK_DELETE_MEMORY) ek_free(self);
}

/* Best effort: without memory the backtrace stays as it was. A member of the ABI: another library's
** frames add themselves to the trace of an error of ours. */
static void update_backtrace(void *self, const ek_bytes *text, int32_t append) {
  ek_error_object *error = self;
  ek_bytes old = error->backtrace;
  size_t keep = append ? old.size : 0;
  char *joined = ek_alloc(keep + text->size + 1);
  if (joined == NULL) return;
  memcpy(joined, old.data, keep);
  if (text->size != 0) memcpy(joined + keep, text->data, text->size);
  joined[keep + text->size] = '\0';
  error->backtrace = (ek_bytes){joined, keep + text->size};
  if (error->backtrace.size == 0) {
    error->backtrace.data = "";
    ek_free(joined);
  }
  if (old.size != 0) ek_free((void *)(uintptr_t)old.data);
}

static ek_error_object *error_alloc(size_t kind_size, size_t message_size) {
  size_t size = sizeof(ek_error_object) + kind_size + message_size + 2;
  ek_error_object *error = ek_alloc(size);
  if (error == NULL) return NULL;
  memset(error, 0, size);
  error->base = (ek_object){EK_REFS_NEW, EK_ERROR, 0, error_deleter};
  error->backtrace.data = "";
  error->update_backtrace = update_backtrace;
  error->kind = (ek_bytes){(char *)(error + 1), kind_size};
  error->message = (ek_bytes){(char *)(error + 1) + kind_size + 1, message_size};
  return error;
}

/* Takes over one reference. */
static int set_pending(ek_object *error) {
  ek_object *old = pending;
  pending = error;
  ek_object_release(old);
  return -1;
}

static int set_out_of_memory(void) {
  ek_retain(&out_of_memory.base);
  return set_pending(&out_of_memory.base);
}

int ek_error(const char *kind, const char *format, ...) {
  va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  int length = vsnprintf(NULL, 0, format, args);
  va_end(args);
  size_t size = length < 0 ? 0 : (size_t)length;
  ek_error_object *error = error_alloc(strlen(kind), size);
  if (error != NULL) {
    memcpy((char *)(error + 1), kind, strlen(kind));
    vsnprintf((char *)(error + 1) + strlen(kind) + 1, size + 1, format, again);
  }
  va_end(again);
  return error == NULL ? set_out_of_memory() : set_pending(&error->base);
}

int ek_error_set(ek_object *error) {
  ek_retain(error);
  return set_pending(error);
}

ek_object *ek_error_take(void) {
  ek_object *error = pending;
  pending = NULL;
  return error;
}
