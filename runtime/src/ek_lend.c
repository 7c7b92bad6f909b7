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
#include "ek_lend.h"

#include "ek_parts.h"

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

static int replace_by_copy(const void *context, ek_value *tensor, bool is_shared) {
  const ek_dltensor *from = ek_value_tensor(tensor);
  ek_object *copy;
  (void)context, (void)is_shared;
  if (ek_tensor_copied(from, from->device, &copy) != 0) return -1;
  ek_value_release(tensor);
  *tensor = ek_value_object(copy);
  return 0;
}

static bool is_elsewhere(const void *lent, const ek_object *tensor, bool is_shared) {
  (void)is_shared;
  return !lies_in(lent, tensor);
}

/* Data that leads to what was lent is of this run, whoever has parts of it: it is changed. */
static int copy_out(const ek_lent *lent, ek_value *result) {
  ek_tensor_rule rule = {lent, is_elsewhere, replace_by_copy, true};
  return ek_tensors_apply(result, &rule);
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

/* Results apart from all else --------------------------------------------------------------------
**
** What a program gives may be a constant, an argument, or another of its results, or a view of one.
** Its language knows no writes, but its callers do: one that wrote to such a result would change
** the argument, or the other, or all later runs. So a result is a copy unless nobody else refers to
** its memory, or it is read-only, which constants are. Counts say so, as for what was lent.
**
** Data with other owners (a list that was an argument, and of which the result has a part) is not
** copied with its tensors: a loop that gives each run the list of the last would copy all of it
** each time. Its tensors become read-only there. */

static bool is_apart(const void *context, const ek_object *tensor, bool is_shared) {
  const ek_object *at = tensor;
  (void)context;
  if (ek_tensor_is_own(at) && ((const ek_tensor *)(const void *)at)->flags & EK_DLPACK_READ_ONLY) {
    return true;
  }
  while (!is_shared && at != NULL && !is_kept(at)) {
    bool is_view = at->type_index == EK_TENSOR && ek_tensor_is_own(at);
    at = is_view ? ((const ek_tensor *)(const void *)at)->owner : NULL;
  }
  return !is_shared && at == NULL;
}

static int take_apart(const void *context, ek_value *tensor, bool is_shared) {
  ek_object *view;
  if (!is_shared) return replace_by_copy(context, tensor, false);
  const ek_dltensor *of = ek_value_tensor(tensor);
  if (ek_tensor_strided(tensor->v.obj, of, EK_DLPACK_READ_ONLY, &view) != 0) return -1;
  ek_value_release(tensor);
  *tensor = ek_value_object(view);
  return 0;
}

int ek_result_part(ek_value *result) {
  ek_tensor_rule rule = {NULL, is_apart, take_apart, false};
  bool is_plain = result->type_index < EK_OBJECT ||
                  (result->type_index == EK_TENSOR && is_apart(NULL, result->v.obj, false));
  if (is_plain || ek_tensors_apply(result, &rule) == 0) return 0;
  ek_value_release(result);
  return -1;
}
