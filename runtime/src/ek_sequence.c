/* Sequences of tensors, for the operators sequence.* of Relay.
**
** A sequence is a value of the type List of Relay's prelude, the last element first: Cons(element,
** rest) has tag 0, Nil has tag 1 and no fields. Positions count from the front, or where negative
** from the end. Every argument is checked: a program from a file may pass anything.
**
** The last element comes first since appending is what loops do: one cell, whatever the length.
** Cells are shared between sequences and never changed, so that inserting in the middle makes the
** cells before it anew, and only those. */
#include "ek_internal.h"

enum { CONS = 0, NIL = 1 };

static const ek_adt *adt_of(const ek_value *value) {
  return value->type_index == EK_ADT ? (const ek_adt *)(const void *)value->v.obj : NULL;
}

/* The cell of a sequence that is not empty, else NULL. */
static const ek_adt *cell_of(const ek_value *value) {
  const ek_adt *adt = adt_of(value);
  return adt != NULL && adt->tag == CONS && adt->size == 2 ? adt : NULL;
}

static int expect(const char *name, int32_t nargs, int32_t expected) {
  if (nargs == expected) return 0;
  return ek_error("TypeError", "ek.sequence.%s: expected %d arguments, got %d", name, expected,
                  nargs);
}

/* The number of elements, or -1 with a TypeError for what is no sequence. It ends: cells are made
** after what they hold, so that none leads back to itself. */
static int64_t length_of(const char *name, const ek_value *sequence) {
  int64_t n = 0;
  const ek_value *at = sequence;
  for (const ek_adt *cell = cell_of(at); cell != NULL; cell = cell_of(at)) {
    at = &cell->fields[1];
    n++;
  }
  const ek_adt *end = adt_of(at);
  if (end != NULL && end->tag == NIL && end->size == 0) return n;
  return ek_error("TypeError", "ek.sequence.%s: a sequence expected, got %s", name,
                  ek_value_type_name(at));
}

/* Read one integer: a number, or a host tensor of one element. */
static int read_int(const char *name, const ek_value *value, int64_t *out) {
  const ek_dltensor *tensor = ek_value_tensor(value);
  if (value->type_index == EK_INT || value->type_index == EK_BOOL) {
    *out = value->v.i64;
    return 0;
  }
  int64_t count = 1;
  for (int32_t i = 0; tensor != NULL && i < tensor->ndim; i++) count *= tensor->shape[i] == 1;
  if (tensor == NULL || count != 1 || tensor->device.type != EK_CPU || tensor->dtype.code != 0 ||
      tensor->dtype.lanes != 1 || (tensor->dtype.bits != 32 && tensor->dtype.bits != 64)) {
    return ek_error("TypeError", "ek.sequence.%s: an integer expected, got %s", name,
                    ek_value_type_name(value));
  }
  int32_t narrow;
  if (tensor->dtype.bits == 64) {
    memcpy(out, ek_dltensor_data(tensor), sizeof *out);
  } else {
    memcpy(&narrow, ek_dltensor_data(tensor), sizeof narrow);
    *out = narrow;
  }
  return 0;
}

/* A position from the front; 'end' is the greatest that may be. */
static int read_place(const char *name, const ek_value *value, int64_t length, int64_t end,
                      int64_t *out) {
  if (read_int(name, value, out) != 0) return -1;
  if (*out < 0) *out += length;
  if (*out >= 0 && *out <= end) return 0;
  return ek_error("RunError", "sequence.%s: position %lld is out of range for %lld elements", name,
                  (long long)(*out < 0 ? *out - length : *out), (long long)length);
}

static int sequence_length(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  static const int64_t scalar[1] = {0};
  const ek_dtype int64 = {0, 64, 1};
  const ek_device cpu = {EK_CPU, 0};
  ek_object *tensor;
  (void)self;
  if (expect("length", nargs, 1) != 0) return -1;
  int64_t n = length_of("length", &args[0]);
  if (n < 0 || ek_tensor_new(scalar, 0, int64, cpu, &tensor) != 0) return -1;
  memcpy(ek_dltensor_data(&((ek_tensor *)(void *)tensor)->dl), &n, sizeof n);
  *ret = ek_value_object(tensor);
  return 0;
}

static int sequence_at(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  int64_t place;
  (void)self;
  if (expect("at", nargs, 2) != 0) return -1;
  int64_t n = length_of("at", &args[0]);
  if (n < 0 || read_place("at", &args[1], n, n - 1, &place) != 0) return -1;
  const ek_adt *cell = cell_of(&args[0]);
  for (int64_t i = n - 1; i > place; i--) cell = cell_of(&cell->fields[1]);
  *ret = cell->fields[0];
  ek_value_retain(ret);
  return 0;
}

/* The sequence 'rest' (owned by the callee) with the elements of the first 'count' cells of
** 'sequence' after it. Not by recursion, as a sequence may be longer than the C stack is deep: the
** cells are listed first, and made from the last one on. */
static int with_cells(const ek_value *sequence, int64_t count, ek_value rest, ek_value *ret) {
  const ek_adt **cells = ek_alloc_or_error((size_t)count * sizeof *cells + 1);
  int status = cells == NULL ? -1 : 0;
  const ek_value *at = sequence;
  for (int64_t i = 0; status == 0 && i < count; i++) {
    cells[i] = cell_of(at);
    at = &cells[i]->fields[1];
  }
  for (int64_t i = count - 1; status == 0 && i >= 0; i--) {
    ek_value fields[2] = {cells[i]->fields[0], rest};
    ek_object *object;
    status = ek_adt_new(CONS, fields, 2, &object);
    if (status != 0) break;
    ek_value_release(&rest);
    rest = ek_value_object(object);
  }
  ek_free((void *)cells);
  if (status != 0) ek_value_release(&rest); else *ret = rest;
  return status;
}

/* Returns the tail of a sequence after its first 'count' cells. */
static const ek_value *skip(const ek_value *sequence, int64_t count) {
  for (int64_t i = 0; i < count; i++) sequence = &cell_of(sequence)->fields[1];
  return sequence;
}

static int sequence_insert(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  int64_t place;
  ek_object *object;
  (void)self;
  if (expect("insert", nargs, 3) != 0) return -1;
  int64_t n = length_of("insert", &args[0]);
  if (n < 0 || read_place("insert", &args[2], n, n, &place) != 0) return -1;
  ek_value fields[2] = {args[1], *skip(&args[0], n - place)};
  if (ek_adt_new(CONS, fields, 2, &object) != 0) return -1;
  return with_cells(&args[0], n - place, ek_value_object(object), ret);
}

static int sequence_erase(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  int64_t place;
  (void)self;
  if (expect("erase", nargs, 2) != 0) return -1;
  int64_t n = length_of("erase", &args[0]);
  if (n < 0 || read_place("erase", &args[1], n, n - 1, &place) != 0) return -1;
  ek_value rest = *skip(&args[0], n - place);
  ek_value_retain(&rest);
  return with_cells(&args[0], n - place - 1, rest, ret);
}

/* Tensors -------------------------------------------------------------------------------------- */

enum { MAX_RANK = 32 };

static int no_match(const char *name, int64_t position) {
  return ek_error("RunError", "sequence.%s: element %lld does not fit the first one in dtype, rank "
                  "or shape", name, (long long)position);
}

static const ek_dltensor *host_tensor(const char *name, const ek_value *value) {
  const ek_dltensor *tensor = ek_value_tensor(value);
  if (tensor != NULL && tensor->dtype.bits * tensor->dtype.lanes % 8 != 0) {
    /* a part of one may begin inside of a byte */
    ek_error("TypeError", "ek.sequence.%s: a tensor of elements of whole bytes expected", name);
    return NULL;
  }
  if (tensor != NULL && tensor->device.type == EK_CPU && tensor->ndim < MAX_RANK) return tensor;
  ek_error("TypeError", "ek.sequence.%s: a tensor of the host of rank below %d expected, got %s",
           name, MAX_RANK, ek_value_type_name(value));
  return NULL;
}

/* Whether two tensors may lie side by side: they differ in the extent of 'axis' at most. */
static bool fits(const ek_dltensor *a, const ek_dltensor *b, int32_t axis) {
  if (a->ndim != b->ndim || memcmp(&a->dtype, &b->dtype, sizeof a->dtype) != 0) return false;
  for (int32_t i = 0; i < a->ndim; i++) {
    if (i != axis && a->shape[i] != b->shape[i]) return false;
  }
  return true;
}

/* A part of a contiguous tensor: 'extent' places of an axis from 'first'. 'shape' and 'strides' are
** room for it. */
static ek_dltensor part_of(const ek_dltensor *whole, int32_t axis, int64_t first, int64_t extent,
                           int64_t *shape, int64_t *strides) {
  ek_dltensor part = *whole;
  int64_t step = 1;
  for (int32_t i = whole->ndim - 1; i >= 0; i--) {
    shape[i] = i == axis ? extent : whole->shape[i];
    strides[i] = step;
    step *= whole->shape[i];
  }
  size_t offset = (size_t)(first * strides[axis]) * ((size_t)whole->dtype.bits / 8);
  part.shape = shape;
  part.strides = strides;
  part.byte_offset += offset;
  return part;
}

/* Puts the elements side by side along an axis of a new tensor: each as a part of its own extent, or
** where 'is_new' of extent 1 of an axis that they lack. */
static int join(const char *name, const ek_value *sequence, int64_t n, const int64_t *result,
                int32_t ndim, int32_t axis, bool is_new, bool is_reversed, ek_value *ret) {
  int64_t shape[MAX_RANK], strides[MAX_RANK];
  const ek_dltensor *first = host_tensor(name, &cell_of(sequence)->fields[0]);
  const ek_device cpu = {EK_CPU, 0};
  ek_object *object;
  if (ek_tensor_new(result, ndim, first->dtype, cpu, &object) != 0) return -1;
  const ek_dltensor *whole = &((ek_tensor *)(void *)object)->dl;
  int64_t at = is_reversed ? 0 : result[axis];
  for (const ek_adt *cell = cell_of(sequence); cell != NULL; cell = cell_of(&cell->fields[1])) {
    const ek_dltensor *from = ek_value_tensor(&cell->fields[0]);
    int64_t extent = is_new ? 1 : from->shape[axis];
    if (!is_reversed) at -= extent;
    ek_dltensor to = part_of(whole, axis, at, extent, shape, strides);
    if (is_new) { /* the axis is the first */
      to.shape++;
      to.strides++;
      to.ndim--;
    }
    if (is_reversed) at += extent;
    if (ek_tensor_copy(from, &to) != 0) {
      ek_release(object);
      return -1;
    }
  }
  (void)n;
  *ret = ek_value_object(object);
  return 0;
}

/* Checks that all elements are tensors that fit the first cell's; the sum of their extents. */
static int check_all(const char *name, const ek_value *sequence, int64_t n, int32_t axis,
                     int64_t *total) {
  const ek_dltensor *first = host_tensor(name, &cell_of(sequence)->fields[0]);
  int64_t position = n;
  *total = 0;
  if (first == NULL) return -1;
  for (const ek_adt *cell = cell_of(sequence); cell != NULL; cell = cell_of(&cell->fields[1])) {
    const ek_dltensor *tensor = host_tensor(name, &cell->fields[0]);
    position--;
    if (tensor == NULL) return -1;
    if (!fits(first, tensor, axis)) return no_match(name, position);
    if (axis >= 0 && __builtin_add_overflow(*total, tensor->shape[axis], total)) {
      return no_match(name, position);
    }
  }
  return 0;
}

/* (sequence, dims int64[r], like, reverse): along a new first axis. */
static int sequence_stack(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  int64_t shape[MAX_RANK + 1], is_reversed, total;
  const ek_device cpu = {EK_CPU, 0};
  ek_object *object;
  (void)self;
  if (expect("stack", nargs, 4) != 0 || read_int("stack", &args[3], &is_reversed) != 0) return -1;
  int64_t n = length_of("stack", &args[0]);
  if (n < 0) return -1;
  const ek_dltensor *dims = host_tensor("stack", &args[1]), *like = host_tensor("stack", &args[2]);
  if (dims == NULL || like == NULL) return -1;
  if (dims->ndim != 1 || dims->dtype.code != 0 || dims->dtype.bits != 64 ||
      dims->dtype.lanes != 1 || dims->shape[0] >= MAX_RANK) {
    return ek_error("TypeError", "ek.sequence.stack: the shape of an element expected");
  }
  if (n == 0) {
    int64_t rank = dims->shape[0];
    shape[0] = 0;
    memcpy(&shape[1], ek_dltensor_data(dims), (size_t)rank * sizeof *shape);
    if (ek_tensor_new(shape, (int32_t)rank + 1, like->dtype, cpu, &object) != 0) return -1;
    *ret = ek_value_object(object);
    return 0;
  }
  if (check_all("stack", &args[0], n, -1, &total) != 0) return -1;
  const ek_dltensor *first = ek_value_tensor(&cell_of(&args[0])->fields[0]);
  shape[0] = n;
  for (int32_t i = 0; i < first->ndim; i++) shape[i + 1] = first->shape[i];
  return join("stack", &args[0], n, shape, first->ndim + 1, 0, true, is_reversed != 0, ret);
}

/* (sequence, axis): one after the other. */
static int sequence_concat(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  int64_t shape[MAX_RANK], axis, total;
  (void)self;
  if (expect("concat", nargs, 2) != 0 || read_int("concat", &args[1], &axis) != 0) return -1;
  int64_t n = length_of("concat", &args[0]);
  if (n < 0) return -1;
  if (n == 0) return ek_error("RunError", "sequence.concat: expected an element, got none");
  const ek_dltensor *first = host_tensor("concat", &cell_of(&args[0])->fields[0]);
  if (first == NULL) return -1;
  if (axis < 0) axis += first->ndim;
  if (axis < 0 || axis >= first->ndim) {
    return ek_error("RunError", "sequence.concat: the axis is out of range for rank %d",
                    first->ndim);
  }
  if (check_all("concat", &args[0], n, (int32_t)axis, &total) != 0) return -1;
  for (int32_t i = 0; i < first->ndim; i++) shape[i] = first->shape[i];
  shape[axis] = total;
  return join("concat", &args[0], n, shape, first->ndim, (int32_t)axis, false, false, ret);
}

/* Copy one part of a tensor to a new tensor. */
static int cut(const ek_dltensor *data, int32_t axis, int64_t first, int64_t extent, bool keepdims,
               ek_object **out) {
  int64_t shape[MAX_RANK], strides[MAX_RANK], kept[MAX_RANK];
  int32_t ndim = 0;
  const ek_device cpu = {EK_CPU, 0};
  ek_dltensor part = part_of(data, axis, first, extent, shape, strides);
  for (int32_t i = 0; i < data->ndim; i++) {
    if (i != axis || keepdims) kept[ndim++] = shape[i];
  }
  if (ek_tensor_new(kept, ndim, data->dtype, cpu, out) != 0) return -1;
  ek_dltensor to = ((ek_tensor *)(void *)*out)->dl;
  to.ndim = part.ndim;
  to.shape = part.shape;
  to.strides = NULL;
  if (ek_tensor_copy(&part, &to) == 0) return 0;
  ek_release(*out);
  return -1;
}

static int size_at(const ek_dltensor *sizes, int64_t i, int64_t *out) {
  ek_dltensor one = *sizes;
  ek_value value = {EK_DLTENSOR_PTR, 0, {0}};
  one.ndim = 0;
  one.byte_offset += (size_t)i * ((size_t)one.dtype.bits / 8);
  value.v.ptr = &one;
  return read_int("split", &value, out);
}

static int split_all(const ek_dltensor *data, const ek_dltensor *sizes, int32_t axis, bool keepdims,
                     ek_value *list) {
  int64_t first = 0, extent, n = sizes->ndim == 0 ? 1 : sizes->shape[0];
  for (int64_t i = 0; i < n; i++) {
    ek_object *part, *cell;
    if (size_at(sizes, i, &extent) != 0) return -1;
    if (extent < 0 || extent > data->shape[axis] - first || (!keepdims && extent != 1)) {
      return ek_error("RunError", "sequence.split: part %lld of extent %lld does not fit an axis of "
                      "extent %lld", (long long)i, (long long)extent, (long long)data->shape[axis]);
    }
    if (cut(data, axis, first, extent, keepdims, &part) != 0) return -1;
    ek_value fields[2] = {ek_value_object(part), *list};
    int status = ek_adt_new(CONS, fields, 2, &cell);
    ek_release(part);
    if (status != 0) return -1;
    ek_value_release(list);
    *list = ek_value_object(cell);
    first += extent;
  }
  if (first == data->shape[axis]) return 0;
  return ek_error("RunError", "sequence.split: the parts take %lld of an axis of extent %lld",
                  (long long)first, (long long)data->shape[axis]);
}

/* (data, sizes, axis, keepdims): parts of a tensor, whose extents are given. */
static int sequence_split(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  int64_t axis, keepdims;
  ek_object *nil;
  (void)self;
  if (expect("split", nargs, 4) != 0 || read_int("split", &args[2], &axis) != 0 ||
      read_int("split", &args[3], &keepdims) != 0) {
    return -1;
  }
  const ek_dltensor *data = host_tensor("split", &args[0]), *sizes = host_tensor("split", &args[1]);
  if (data == NULL || sizes == NULL) return -1;
  if (axis < 0) axis += data->ndim;
  if (axis < 0 || axis >= data->ndim || sizes->ndim > 1 || !ek_dltensor_is_contiguous(data) ||
      !ek_dltensor_is_contiguous(sizes)) {
    return ek_error("RunError", "sequence.split: an axis of the data and a vector of extents "
                    "expected");
  }
  if (ek_adt_new(NIL, NULL, 0, &nil) != 0) return -1;
  ek_value list = ek_value_object(nil);
  if (split_all(data, sizes, (int32_t)axis, keepdims != 0, &list) != 0) {
    ek_value_release(&list);
    return -1;
  }
  *ret = list;
  return 0;
}

const ek_builtin ek_sequence_builtins[EK_SEQUENCE_BUILTINS] = {
    {"ek.sequence.at", sequence_at},         {"ek.sequence.concat", sequence_concat},
    {"ek.sequence.erase", sequence_erase},   {"ek.sequence.insert", sequence_insert},
    {"ek.sequence.length", sequence_length}, {"ek.sequence.split", sequence_split},
    {"ek.sequence.stack", sequence_stack},
};
