/* Borrowed argument tensors: a run reads the caller's memory in place, and no result aliases it.
**
** Each argument is wrapped in a non-owning tensor. When the run ends, the list holds the only
** reference to each wrapper, unless the program returned an argument: then the result is searched
** for tensors that alias the caller's memory, and those are copied.
**
** This saves a copy of every argument. It is valid only while nothing outlives the run: programs
** that may store an argument (EK_KEEPS, external functions) get copies instead (ek_vm_begin).
** Reference counts tell whether a wrapper escaped, so the search, which is linear in the size of
** the result, is rare. */
#include "ek_borrow.h"

#include "ek_tensor_walk.h"

/* Borrowing ------------------------------------------------------------------------------------ */

static int grow(ek_borrowed *borrowed) {
  if (borrowed->count < borrowed->capacity) return 0;
  int32_t capacity = borrowed->capacity == 0 ? 8 : 2 * borrowed->capacity;
  ek_object **larger = ek_alloc_or_error((size_t)capacity * sizeof *larger);
  if (larger == NULL) return -1;
  if (borrowed->count != 0) memcpy(larger, borrowed->tensors, (size_t)borrowed->count * sizeof *larger);
  ek_free(borrowed->tensors);
  borrowed->tensors = larger;
  borrowed->capacity = capacity;
  return 0;
}

int ek_borrow_tensor(ek_borrowed *borrowed, const ek_dltensor *tensor, ek_value *out) {
  ek_object *wrapper;
  if (grow(borrowed) != 0 || ek_tensor_strided(NULL, tensor, 0, &wrapper) != 0) return -1;
  borrowed->tensors[borrowed->count++] = wrapper;
  ek_retain(wrapper);
  *out = ek_value_object(wrapper);
  return 0;
}

void ek_borrow_free(ek_borrowed *borrowed) { ek_free(borrowed->tensors); }

/* Ending --------------------------------------------------------------------------------------- */

static bool is_borrowed(const ek_borrowed *borrowed, const ek_object *object) {
  for (int32_t i = 0; i < borrowed->count; i++) {
    if (borrowed->tensors[i] == object) return true;
  }
  return false;
}

/* Whether a tensor is a wrapper of the list, or a view of one. */
static bool is_view_of_borrowed(const ek_borrowed *borrowed, const ek_object *tensor) {
  const ek_object *at = tensor;
  while (ek_is(at, EK_TENSOR) && ek_tensor_is_own(at) && !is_borrowed(borrowed, at)) {
    at = ((const ek_tensor *)(const void *)at)->owner;
  }
  return at != NULL && is_borrowed(borrowed, at);
}

static int replace_by_copy(const void *context, ek_value *tensor, bool is_shared) {
  const ek_dltensor *from = ek_value_tensor(tensor);
  ek_object *copy;
  (void)context, (void)is_shared;
  if (ek_tensor_copied(from, from->device, &copy) != 0) return -1;
  ek_value_release(tensor);
  *tensor = ek_value_object(copy);
  return 0;
}

static bool is_not_borrowed(const void *borrowed, const ek_object *tensor, bool is_shared) {
  (void)is_shared;
  return !is_view_of_borrowed(borrowed, tensor);
}

/* ADT values that hold borrowed tensors were created in this run, so they are changed in place. */
static int copy_borrowed_tensors(const ek_borrowed *borrowed, ek_value *result) {
  ek_tensor_rule rule = {borrowed, is_not_borrowed, replace_by_copy, true, NULL};
  return ek_tensors_apply(result, &rule);
}

/* Relaxed order suffices: all references were taken by the run's thread, or by tasks it has joined. */
static bool is_referenced(const ek_object *tensor) {
  return (__atomic_load_n(&tensor->refs, __ATOMIC_RELAXED) & EK_STRONG_MASK) != 1;
}

int ek_borrow_end(ek_borrowed *borrowed, ek_value *result) {
  bool escaped = false;
  for (int32_t i = 0; i < borrowed->count; i++) escaped = escaped || is_referenced(borrowed->tensors[i]);
  int code = escaped ? copy_borrowed_tensors(borrowed, result) : 0;
  for (int32_t i = 0; i < borrowed->count; i++) ek_release(borrowed->tensors[i]);
  borrowed->count = 0;
  if (code != 0) ek_value_release(result);
  return code;
}

/* Aliasing of results -----------------------------------------------------------------------------
**
** A program may return a constant, an argument, another of its results, or a view of one. The
** language has no writes, but callers write to results: a write to an aliased result would change
** the argument, the other result, or all later runs. So a result is copied unless its memory has no
** other reference, by its reference counts, or is read-only, as constants are.
**
** ADT values with other owners (such as a list argument whose tail is returned) are not copied with
** their tensors, since a loop that passes each result to the next run would copy the whole list each
** time. Their tensors become read-only instead. */

static bool is_unaliased(const void *context, const ek_object *tensor, bool is_shared) {
  const ek_object *at = tensor;
  (void)context;
  if (ek_tensor_is_own(at) && ((const ek_tensor *)(const void *)at)->flags & EK_DLPACK_READ_ONLY) {
    return true;
  }
  while (!is_shared && at != NULL && !is_referenced(at)) {
    bool is_view = at->type_index == EK_TENSOR && ek_tensor_is_own(at);
    at = is_view ? ((const ek_tensor *)(const void *)at)->owner : NULL;
  }
  return !is_shared && at == NULL;
}

static int unalias(const void *context, ek_value *tensor, bool is_shared) {
  ek_object *view;
  if (!is_shared) return replace_by_copy(context, tensor, false);
  const ek_dltensor *of = ek_value_tensor(tensor);
  if (ek_tensor_strided(tensor->v.obj, of, EK_DLPACK_READ_ONLY, &view) != 0) return -1;
  ek_value_release(tensor);
  *tensor = ek_value_object(view);
  return 0;
}

int ek_result_unalias(ek_value *result) {
  ek_tensor_rule rule = {NULL, is_unaliased, unalias, false, NULL};
  bool is_plain = result->type_index < EK_OBJECT ||
                  (result->type_index == EK_TENSOR && is_unaliased(NULL, result->v.obj, false));
  if (is_plain || ek_tensors_apply(result, &rule) == 0) return 0;
  ek_value_release(result);
  return -1;
}
