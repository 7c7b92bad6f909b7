/* Find and replace the tensors inside a nested value.
**
** A value may be a list of a million cells that share substructure: the walk is iterative, and a
** table records visited objects with several owners. ADT values are immutable: a value that leads
** to a replaced tensor is copied along the path to it, and 'copies' maps each object to its copy. A
** value without replaced tensors is shared unchanged; each of its objects is visited once. */
#include "ek_tensor_walk.h"

#include "ek_vm.h"

/* Lists ---------------------------------------------------------------------------------------- */

/* A field still to visit; 'is_shared': its ADT value is a copy of one with other owners. */
typedef struct field {
  ek_value *value;
  bool is_shared;
} field;

/* A visited object and its copy; NULL if it is kept as it is. */
typedef struct visited {
  const ek_object *object;
  ek_object *copy;             /* borrowed: the value leads to it */
} visited;

enum { FIRST_FIELDS = 32 };    /* tuples of up to 32 fields need no allocation */

typedef struct walk {
  const ek_tensor_rule *rule;
  field *fields;
  size_t n_fields, fields_capacity;
  ek_value *pending;           /* values still to inspect, borrowed */
  size_t n_pending, pending_capacity;
  ek_value *held;              /* owned: objects replaced by their copies */
  size_t n_held, held_capacity;
  visited *table;              /* open addressing, at most half full */
  size_t n_visited, table_capacity;
  field first[FIRST_FIELDS];
} walk;

/* Ensures room for 'more' items after the first 'n'. 'first' is an inline block, which is not freed. */
static void *reserve(void *items, const void *first, size_t n, size_t more, size_t item,
                   size_t *room) {
  if (n + more <= *room) return items;
  size_t larger = 2 * (n + more) + 16;
  void *block = ek_alloc_or_error(larger * item);
  if (block == NULL) return NULL;
  if (n != 0) memcpy(block, items, n * item);
  if (items != first) ek_free(items);
  *room = larger;
  return block;
}

static int push_fields(walk *w, ek_adt *adt, bool is_shared) {
  size_t n = (size_t)adt->size;
  field *fields = reserve(w->fields, w->first, w->n_fields, n, sizeof *fields, &w->fields_capacity);
  if (fields == NULL) return -1;
  w->fields = fields;
  for (size_t i = 0; i < n; i++) w->fields[w->n_fields++] = (field){&adt->fields[i], is_shared};
  return 0;
}

static int push_pending(walk *w, const ek_value *values, size_t n) {
  ek_value *pending =
      reserve(w->pending, NULL, w->n_pending, n, sizeof *pending, &w->pending_capacity);
  if (pending == NULL) return -1;
  w->pending = pending;
  if (n != 0) memcpy(pending + w->n_pending, values, n * sizeof *values);
  w->n_pending += n;
  return 0;
}

static visited *slot_of(visited *table, size_t room, const ek_object *object) {
  size_t at = (size_t)ek_hash_mix(0, (uintptr_t)object) & (room - 1);
  while (table[at].object != NULL && table[at].object != object) at = (at + 1) & (room - 1);
  return &table[at];
}

static int grow_table(walk *w) {
  size_t room = w->table_capacity == 0 ? 64 : 2 * w->table_capacity;
  visited *table = ek_alloc_or_error(room * sizeof *table);
  if (table == NULL) return -1;
  memset(table, 0, room * sizeof *table);
  for (size_t i = 0; i < w->table_capacity; i++) {
    if (w->table[i].object != NULL) *slot_of(table, room, w->table[i].object) = w->table[i];
  }
  ek_free(w->table);
  w->table = table;
  w->table_capacity = room;
  return 0;
}

/* The table entry of an object, valid until the next call; NULL when out of memory. 'is_new': it was
** not in the table. */
static visited *visit(walk *w, const ek_object *object, bool *is_new) {
  if (2 * (w->n_visited + 1) > w->table_capacity && grow_table(w) != 0) return NULL;
  visited *entry = slot_of(w->table, w->table_capacity, object);
  *is_new = entry->object == NULL;
  if (*is_new) w->n_visited++;
  entry->object = object;
  return entry;
}

/* Inspection ----------------------------------------------------------------------------------- */

/* Relaxed order suffices: any other reference to a part of this value was taken by this thread. */
static bool has_one_owner(const ek_object *object) {
  return (__atomic_load_n(&object->refs, __ATOMIC_RELAXED) & EK_STRONG_MASK) == 1;
}

/* Keeps a value alive until the walk ends, so that no new object reuses an address in the table. */
static int hold(walk *w, ek_value value) {
  ek_value *held = reserve(w->held, NULL, w->n_held, 1, sizeof *held, &w->held_capacity);
  if (held == NULL) return -1;
  w->held = held;
  held[w->n_held++] = value;
  return 0;
}

static int enter(const walk *w, ek_object *reference) {
  return w->rule->enter == NULL ? 0 : w->rule->enter(w->rule->context, reference);
}

/* Whether a value with other owners can be shared unchanged, as the rule keeps all its tensors: 1, 0,
** or -1. An object that was already copied must be that copy here too, so the result is 0. */
static int can_share(walk *w, const ek_value *value) {
  bool is_new;
  w->n_pending = 0;
  if (push_pending(w, value, 1) != 0) return -1;
  while (w->n_pending != 0) {
    ek_value next = w->pending[--w->n_pending];
    if (next.type_index < EK_OBJECT) continue;
    if (next.type_index == EK_TENSOR) {
      if (!w->rule->keeps(w->rule->context, next.v.obj, true)) return 0;
      continue;
    }
    if (next.type_index == EK_REFERENCE && enter(w, next.v.obj) != 0) return -1;
    if (next.type_index != EK_ADT) continue;
    const ek_adt *adt = (const ek_adt *)(const void *)next.v.obj;
    const visited *entry = visit(w, &adt->base, &is_new);
    if (entry == NULL) return -1;
    if (entry->copy != NULL) return 0;
    if (is_new && push_pending(w, adt->fields, (size_t)adt->size) != 0) return -1;
  }
  return 1;
}

/* Replacement ---------------------------------------------------------------------------------- */

static int apply_to_tensor(const walk *w, const field *at) {
  if (w->rule->keeps(w->rule->context, at->value->v.obj, at->is_shared)) return 0;
  return w->rule->replace(w->rule->context, at->value, at->is_shared);
}

/* Replaces an ADT value with other owners by its copy, made at the first visit. */
static int apply_to_copy(walk *w, const field *at) {
  bool is_new;
  const ek_adt *from = (const ek_adt *)(const void *)at->value->v.obj;
  visited *entry = visit(w, &from->base, &is_new);
  if (entry == NULL) return -1;
  ek_object *copy = entry->copy;
  is_new = copy == NULL;
  if (!is_new) ek_retain(copy);
  else if (ek_container_new(EK_ADT, from->tag, from->fields, from->size, &copy) != 0) return -1;
  if (hold(w, *at->value) != 0) {
    ek_release(copy);
    return -1;
  }
  entry->copy = copy;
  *at->value = ek_value_object(copy);
  return is_new ? push_fields(w, (ek_adt *)(void *)copy, true) : 0;
}

static int apply_to_data(walk *w, const field *at) {
  ek_adt *adt = (ek_adt *)(void *)at->value->v.obj;
  bool is_own = has_one_owner(&adt->base), is_new = true;
  if (w->rule->in_place) {
    if (!is_own && visit(w, &adt->base, &is_new) == NULL) return -1;
    return is_new ? push_fields(w, adt, false) : 0;
  }
  if (is_own) return push_fields(w, adt, at->is_shared);
  if (at->is_shared) return apply_to_copy(w, at); /* a part of what is copied whole */
  int shares = can_share(w, at->value);
  return shares == 0 ? apply_to_copy(w, at) : shares == 1 ? 0 : -1;
}

/* Closures and references cannot be replaced: one with other owners is left unchanged. No reference
** holds a borrowed tensor, since programs that create references get copies (EK_KEEPS). */
static int apply_to_holder(walk *w, const field *at) {
  bool is_closure = at->value->type_index == EK_CLOSURE, is_new = true;
  ek_object *holder = at->value->v.obj;
  if (!is_closure && enter(w, holder) != 0) return -1;
  ek_adt *inner = is_closure ? ((ek_closure *)(void *)holder)->captured
                             : ((ek_reference *)(void *)holder)->cell;
  bool is_own = has_one_owner(holder) && has_one_owner(&inner->base);
  bool may_change = is_own || (is_closure && w->rule->in_place);
  if (!is_own && may_change && visit(w, holder, &is_new) == NULL) return -1;
  return may_change && is_new ? push_fields(w, inner, false) : 0;
}

static int apply(walk *w, const field *at) {
  switch (at->value->type_index) {
    case EK_TENSOR: return apply_to_tensor(w, at);
    case EK_ADT: return apply_to_data(w, at);
    case EK_CLOSURE:
    case EK_REFERENCE: return apply_to_holder(w, at);
    default: return 0;
  }
}

int ek_tensors_apply(ek_value *value, const ek_tensor_rule *rule) {
  walk w = {.rule = rule, .fields_capacity = FIRST_FIELDS};
  int status = 0;
  w.fields = w.first;
  w.first[w.n_fields++] = (field){value, false};
  while (status == 0 && w.n_fields != 0) {
    field next = w.fields[--w.n_fields];
    status = apply(&w, &next);
  }
  for (size_t i = 0; i < w.n_held; i++) ek_value_release(&w.held[i]);
  if (w.fields != w.first) ek_free(w.fields);
  ek_free(w.pending);
  ek_free(w.held);
  ek_free(w.table);
  return status;
}
