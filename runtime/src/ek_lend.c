/* Tensors that a caller lends for a call.
**
** A run reads them where they lie, through tensors that own nothing. When it ends, each of these is
** referred to by the list alone, but for programs that give back what they got: then the result is
** searched for what lies in them, and that is copied.
**
** This saves a copy of every argument, and holds only while nothing else outlives the run: programs
** that keep what they are given (EK_KEEPS, functions of others) are not lent anything
** (ek_vm_begin). Whether something escaped is told by the counts, so that the search, which takes a
** step for each part of the result, is made for few. */
#include "ek_lend.h"

#include "ek_vm.h"

/* Lending -------------------------------------------------------------------------------------- */

static int grow(ek_lent *lent) {
  if (lent->count < lent->capacity) return 0;
  int32_t capacity = lent->capacity == 0 ? 8 : 2 * lent->capacity;
  ek_object **larger = ek_alloc_or_error((size_t)capacity * sizeof *larger);
  if (larger == NULL) return -1;
  if (lent->count != 0) memcpy(larger, lent->tensors, (size_t)lent->count * sizeof *larger);
  ek_free(lent->tensors);
  lent->tensors = larger;
  lent->capacity = capacity;
  return 0;
}

int ek_lent_add(ek_lent *lent, const ek_dltensor *tensor, ek_value *out) {
  ek_object *made;
  if (grow(lent) != 0 || ek_tensor_strided(NULL, tensor, 0, &made) != 0) return -1;
  lent->tensors[lent->count++] = made;
  ek_retain(made);
  *out = ek_value_object(made);
  return 0;
}

void ek_lent_free(ek_lent *lent) { ek_free(lent->tensors); }

/* Ending --------------------------------------------------------------------------------------- */

static bool is_lent(const ek_lent *lent, const ek_object *object) {
  for (int32_t i = 0; i < lent->count; i++) {
    if (lent->tensors[i] == object) return true;
  }
  return false;
}

/* Whether a tensor is one of those, or a view of one. */
static bool lies_in(const ek_lent *lent, const ek_object *tensor) {
  const ek_object *at = tensor;
  while (ek_is(at, EK_TENSOR) && ek_tensor_is_own(at) && !is_lent(lent, at)) {
    at = ((const ek_tensor *)(const void *)at)->owner;
  }
  return at != NULL && is_lent(lent, at);
}

static int replace_by_copy(ek_value *value) {
  const ek_dltensor *from = ek_value_tensor(value);
  ek_object *copy;
  if (ek_tensor_copied(from, from->device, &copy) != 0) return -1;
  ek_value_release(value);
  *value = ek_value_object(copy);
  return 0;
}

/* What of a result is still to be searched: fields of values. */
typedef struct pending {
  ek_value **items;
  size_t count, capacity;
} pending;

static int push(pending *todo, ek_value *fields, int32_t n) {
  if (todo->count + (size_t)n > todo->capacity) {
    size_t capacity = 2 * (todo->count + (size_t)n) + 16;
    ek_value **larger = ek_alloc_or_error(capacity * sizeof *larger);
    if (larger == NULL) return -1;
    if (todo->count != 0) memcpy(larger, todo->items, todo->count * sizeof *larger);
    ek_free(todo->items);
    todo->items = larger;
    todo->capacity = capacity;
  }
  for (int32_t i = 0; i < n; i++) todo->items[todo->count++] = &fields[i];
  return 0;
}

/* The parts of a value: those of an ADT, or what a closure has captured. */
static int push_parts(pending *todo, const ek_value *value) {
  ek_adt *adt = NULL;
  if (value->type_index == EK_ADT) adt = (ek_adt *)(void *)value->v.obj;
  if (value->type_index == EK_CLOSURE) adt = ((ek_closure *)(void *)value->v.obj)->captured;
  return adt == NULL ? 0 : push(todo, adt->fields, adt->size);
}

static int copy_out(const ek_lent *lent, ek_value *result) {
  pending todo = {NULL, 0, 0};
  int code = push(&todo, result, 1);
  while (code == 0 && todo.count != 0) {
    ek_value *next = todo.items[--todo.count];
    bool is_tensor = next->type_index == EK_TENSOR;
    if (!is_tensor) code = push_parts(&todo, next);
    else if (lies_in(lent, next->v.obj)) code = replace_by_copy(next);
  }
  ek_free(todo.items);
  return code;
}

/* Relaxed is enough: the run's own thread, or the end of its tasks, came before this. */
static bool is_kept(const ek_object *tensor) {
  return (__atomic_load_n(&tensor->refs, __ATOMIC_RELAXED) & EK_STRONG_MASK) != 1;
}

int ek_lent_end(ek_lent *lent, ek_value *result) {
  bool escaped = false;
  for (int32_t i = 0; i < lent->count; i++) escaped = escaped || is_kept(lent->tensors[i]);
  int code = escaped ? copy_out(lent, result) : 0;
  for (int32_t i = 0; i < lent->count; i++) ek_release(lent->tensors[i]);
  lent->count = 0;
  if (code != 0) ek_value_release(result);
  return code;
}
