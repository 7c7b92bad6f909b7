/* Function objects. */
#include "ek_internal.h"

/* Function object of ek_function_new: 'base.call' is a trampoline that passes 'self' on. */
typedef struct closure_function {
  ek_function base;
  void *self;
  ek_packed target;
  void (*deleter)(void *self);
} closure_function;

/* Function object of ek_function_bind: 'base.call' is the code itself. */
typedef struct bound_function {
  ek_function base;
  ek_object *owner;
} bound_function;

static int call_target(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  closure_function *function = self;
  return function->target(function->self, args, nargs, ret);
}

static void closure_deleter(void *self, int flags) {
  closure_function *function = self;
  if ((flags & EK_DELETE_CONTENT) && function->deleter != NULL) function->deleter(function->self);
  if (flags & EK_DELETE_MEMORY) ek_free(self);
}

static void bound_deleter(void *self, int flags) {
  if (flags & EK_DELETE_CONTENT) ek_object_release(((bound_function *)self)->owner);
  if (flags & EK_DELETE_MEMORY) ek_free(self);
}

int ek_function_new(void *self, ek_packed call, void (*deleter)(void *self), ek_object **out) {
  closure_function *function = ek_object_alloc(sizeof *function, EK_FUNCTION, closure_deleter);
  if (function == NULL) return -1;
  function->base.call = call_target;
  function->self = self;
  function->target = call;
  function->deleter = deleter;
  *out = &function->base.base;
  return 0;
}

int ek_function_bind(ek_packed code, ek_object *owner, ek_object **out) {
  bound_function *function = ek_object_alloc(sizeof *function, EK_FUNCTION, bound_deleter);
  if (function == NULL) return -1;
  function->base.call = code;
  function->owner = owner;
  ek_object_retain(owner);
  *out = &function->base.base;
  return 0;
}
