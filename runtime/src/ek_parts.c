/* Find and replace the tensors inside a nested value.
**
** A value may be a list of a million cells that share substructure: the walk is iterative, and a
** table records visited objects with several owners. ADT values are immutable: a value that leads
** to a replaced tensor is copied along the path to it, and 'copies' maps each object to its copy. A
** value without replaced tensors is shared unchanged; each of its objects is visited once. */
#include "ek_parts.h"

#include "ek_vm.h"

/* Lists ---------------------------------------------------------------------------------------- */

/* A field that is still to be looked at; 'is_shared': it stands in a copy of data of others. */
typedef struct field {
  ek_value *value;
  bool is_shared;
} field;

/* A part that was met, and what it became; NULL for one that stays. */
typedef struct met {
  const ek_object *part;
  ek_object *copy;             /* borrowed: the value leads to it */
} met;

enum { FIRST_FIELDS = 32 };    /* tuples of so many fields need no memory */

typedef struct walk {
  const ek_tensor_rule *rule;
  field *fields;
  size_t n_fields, room_fields;
  ek_value *looks;             /* values that are looked into, borrowed */
  size_t n_looks, room_looks;
  ek_value *held;              /* owned: parts that copies took the place of */
  size_t n_held, room_held;
  met *table;                  /* open addressing, at most half full */
  size_t n_met, room_met;
  field first[FIRST_FIELDS];
} walk;

/* Room for 'more' items behind the first 'n'. The first block may be one that is not to be freed. */
static void *grown(void *items, const void *first, size_t n, size_t more, size_t item,
                   size_t *room) {
  if (n + more <= *room) return items;
  size_t larger = 2 * (n + more) + 16;
  void *made = ek_alloc_or_error(larger * item);
  if (made == NULL) return NULL;
  if (n != 0) memcpy(made, items, n * item);
  if (items != first) ek_free(items);
  *room = larger;
  return made;
}

static int push_fields(walk *w, ek_adt *adt, bool is_shared) {
  size_t n = (size_t)adt->size;
  field *fields = grown(w->fields, w->first, w->n_fields, n, sizeof *fields, &w->room_fields);
  if (fields == NULL) return -1;
  w->fields = fields;
  for (size_t i = 0; i < n; i++) w->fields[w->n_fields++] = (field){&adt->fields[i], is_shared};
  return 0;
}

static int push_looks(walk *w, const ek_value *values, size_t n) {
  ek_value *looks = grown(w->looks, NULL, w->n_looks, n, sizeof *looks, &w->room_looks);
  if (looks == NULL) return -1;
  w->looks = looks;
  if (n != 0) memcpy(looks + w->n_looks, values, n * sizeof *values);
  w->n_looks += n;
  return 0;
}

static met *slot_of(met *table, size_t room, const ek_object *part) {
  size_t at = (size_t)ek_hash_mix(0, (uintptr_t)part) & (room - 1);
  while (table[at].part != NULL && table[at].part != part) at = (at + 1) & (room - 1);
  return &table[at];
}

static int grow_table(walk *w) {
  size_t room = w->room_met == 0 ? 64 : 2 * w->room_met;
  met *table = ek_alloc_or_error(room * sizeof *table);
  if (table == NULL) return -1;
  memset(table, 0, room * sizeof *table);
  for (size_t i = 0; i < w->room_met; i++) {
    if (w->table[i].part != NULL) *slot_of(table, room, w->table[i].part) = w->table[i];
  }
  ek_free(w->table);
  w->table = table;
  w->room_met = room;
  return 0;
}

/* The entry of a part, good until the next call; NULL without memory. 'is_new': it had none. */
static met *meet(walk *w, const ek_object *part, bool *is_new) {
  if (2 * (w->n_met + 1) > w->room_met && grow_table(w) != 0) return NULL;
  met *entry = slot_of(w->table, w->room_met, part);
  *is_new = entry->part == NULL;
  if (*is_new) w->n_met++;
  entry->part = part;
  return entry;
}

/* Looking -------------------------------------------------------------------------------------- */

/* Relaxed is enough: who else refers to a part of this value got it from this thread. */
static bool has_one_owner(const ek_object *object) {
  return (__atomic_load_n(&object->refs, __ATOMIC_RELAXED) & EK_STRONG_MASK) == 1;
}

/* Keeps a value until the walk ends: no other part comes to its address while the table has it. */
static int hold(walk *w, ek_value value) {
  ek_value *held = grown(w->held, NULL, w->n_held, 1, sizeof *held, &w->room_held);
  if (held == NULL) return -1;
  w->held = held;
  held[w->n_held++] = value;
  return 0;
}

/* Whether all tensors of a value of others may stay: 1, 0, or -1. A part that has a copy already is
** to be that copy here, too. */
static int all_stay(walk *w, const ek_value *value) {
  bool is_new;
  w->n_looks = 0;
  if (push_looks(w, value, 1) != 0) return -1;
  while (w->n_looks != 0) {
    ek_value next = w->looks[--w->n_looks];
    if (next.type_index < EK_OBJECT) continue;
    if (next.type_index == EK_TENSOR) {
      if (!w->rule->stays(w->rule->context, next.v.obj, true)) return 0;
      continue;
    }
    if (next.type_index != EK_ADT) continue;
    const ek_adt *adt = (const ek_adt *)(const void *)next.v.obj;
    const met *entry = meet(w, &adt->base, &is_new);
    if (entry == NULL) return -1;
    if (entry->copy != NULL) return 0;
    if (is_new && push_looks(w, adt->fields, (size_t)adt->size) != 0) return -1;
  }
  return 1;
}

/* Changing ------------------------------------------------------------------------------------- */

static int apply_to_tensor(const walk *w, const field *at) {
  if (w->rule->stays(w->rule->context, at->value->v.obj, at->is_shared)) return 0;
  return w->rule->replace(w->rule->context, at->value, at->is_shared);
}

/* Puts the copy of an ADT value of others in its place; one is made when it is first met. */
static int apply_to_copy(walk *w, const field *at) {
  bool is_new;
  const ek_adt *from = (const ek_adt *)(const void *)at->value->v.obj;
  met *entry = meet(w, &from->base, &is_new);
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
    if (!is_own && meet(w, &adt->base, &is_new) == NULL) return -1;
    return is_new ? push_fields(w, adt, false) : 0;
  }
  if (is_own) return push_fields(w, adt, at->is_shared);
  if (at->is_shared) return apply_to_copy(w, at); /* a part of what is copied whole */
  int stay = all_stay(w, at->value);
  return stay == 0 ? apply_to_copy(w, at) : stay == 1 ? 0 : -1;
}

/* A closure or a reference, which nothing can take the place of: one of others stays as it is. What is
** lent no reference holds: a program that makes one keeps what it gets, and is lent nothing. */
static int apply_to_holder(walk *w, const field *at) {
  bool is_closure = at->value->type_index == EK_CLOSURE, is_new = true;
  ek_object *holder = at->value->v.obj;
  ek_adt *inner = is_closure ? ((ek_closure *)(void *)holder)->captured
                             : ((ek_reference *)(void *)holder)->cell;
  bool is_own = has_one_owner(holder) && has_one_owner(&inner->base);
  bool may_change = is_own || (is_closure && w->rule->in_place);
  if (!is_own && may_change && meet(w, holder, &is_new) == NULL) return -1;
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
  walk w = {.rule = rule, .room_fields = FIRST_FIELDS};
  int status = 0;
  w.fields = w.first;
  w.first[w.n_fields++] = (field){value, false};
  while (status == 0 && w.n_fields != 0) {
    field next = w.fields[--w.n_fields];
    status = apply(&w, &next);
  }
  for (size_t i = 0; i < w.n_held; i++) ek_value_release(&w.held[i]);
  if (w.fields != w.first) ek_free(w.fields);
  ek_free(w.looks);
  ek_free(w.held);
  ek_free(w.table);
  return status;
}
