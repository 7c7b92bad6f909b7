/* Sequences of tensors: what the operators sequence.* of Relay call. */
#include "check.h"

static const ek_dtype int64_type = {0, 64, 1};

static int call(const char *name, const ek_value *args, int32_t nargs, ek_value *ret) {
  ek_object *function = ek_registry_get(name);
  CHECK(function != NULL);
  *ret = ek_value_none();
  int status = ek_function_call(function, args, nargs, ret);
  ek_object_release(function);
  return status;
}

/* A vector of n numbers from 'first' on. */
static ek_value vector(int64_t n, int64_t first) {
  ek_object *tensor;
  CHECK(ek_tensor_new(&n, 1, int64_type, cpu, &tensor) == 0);
  int64_t *data = ek_dltensor_data(&((ek_tensor *)(void *)tensor)->dl);
  for (int64_t i = 0; i < n; i++) data[i] = first + i;
  return ek_value_object(tensor);
}

static ek_value nil(void) {
  ek_object *made;
  CHECK(ek_adt_new(1, NULL, 0, &made) == 0);
  return ek_value_object(made);
}

/* The sequence with a vector more; takes both over. */
static ek_value append(ek_value rest, ek_value element) {
  ek_value fields[2] = {element, rest};
  ek_object *made;
  CHECK(ek_adt_new(0, fields, 2, &made) == 0);
  ek_value_release(&element);
  ek_value_release(&rest);
  return ek_value_object(made);
}

static ek_value three(void) {
  return append(append(append(nil(), vector(2, 0)), vector(2, 10)), vector(2, 20));
}

/* The number at 'i' of a tensor. */
static int64_t number(const ek_value *tensor, int64_t i) {
  return ((int64_t *)ek_dltensor_data(ek_value_tensor(tensor)))[i];
}

static int64_t length(const ek_value *sequence) {
  ek_value found;
  CHECK(call("ek.sequence.length", sequence, 1, &found) == 0);
  int64_t n = number(&found, 0);
  ek_value_release(&found);
  return n;
}

/* The first number of the element at a position. */
static int64_t first_of(const ek_value *sequence, int64_t position) {
  ek_value args[2] = {*sequence, ek_value_int(position)}, found;
  CHECK(call("ek.sequence.at", args, 2, &found) == 0);
  int64_t n = number(&found, 0);
  ek_value_release(&found);
  return n;
}

static void elements_are_found_from_both_ends(void) {
  ek_value sequence = three();
  CHECK(length(&sequence) == 3);
  CHECK(first_of(&sequence, 0) == 0 && first_of(&sequence, 2) == 20);
  CHECK(first_of(&sequence, -1) == 20 && first_of(&sequence, -3) == 0);
  ek_value args[2] = {sequence, ek_value_int(3)}, found;
  CHECK_ERROR(call("ek.sequence.at", args, 2, &found), "RunError",
              "sequence.at: position 3 is out of range for 3 elements");
  ek_value_release(&sequence);
}

static void a_longer_and_a_shorter_one_share_the_rest(void) {
  ek_value sequence = three(), element = vector(2, 5), longer, shorter;
  ek_value args[3] = {sequence, element, ek_value_int(1)};
  CHECK(call("ek.sequence.insert", args, 3, &longer) == 0);
  CHECK(length(&longer) == 4 && first_of(&longer, 1) == 5 && first_of(&longer, 3) == 20);
  ek_value erase[2] = {longer, ek_value_int(-4)};
  CHECK(call("ek.sequence.erase", erase, 2, &shorter) == 0);
  CHECK(length(&shorter) == 3 && first_of(&shorter, 0) == 5 && first_of(&shorter, 1) == 10);
  CHECK(length(&sequence) == 3 && first_of(&sequence, 0) == 0);
  ek_value_release(&shorter);
  ek_value_release(&longer);
  ek_value_release(&element);
  ek_value_release(&sequence);
}

static void elements_become_one_tensor_and_parts_again(void) {
  ek_value sequence = three(), dims = vector(1, 2), whole, row, parts;
  ek_value stack[4] = {sequence, dims, dims, ek_value_int(0)};
  CHECK(call("ek.sequence.stack", stack, 4, &whole) == 0);
  const ek_dltensor *tensor = ek_value_tensor(&whole);
  CHECK(tensor->ndim == 2 && tensor->shape[0] == 3 && tensor->shape[1] == 2);
  CHECK(number(&whole, 0) == 0 && number(&whole, 2) == 10 && number(&whole, 5) == 21);
  ek_value concat[2] = {sequence, ek_value_int(0)};
  CHECK(call("ek.sequence.concat", concat, 2, &row) == 0);
  CHECK(ek_value_tensor(&row)->shape[0] == 6 && number(&row, 3) == 11);
  ek_value sizes = vector(3, 1); /* 1, 2, 3 */
  ek_value split[4] = {row, sizes, ek_value_int(0), ek_value_int(1)};
  CHECK(call("ek.sequence.split", split, 4, &parts) == 0);
  CHECK(length(&parts) == 3 && first_of(&parts, 1) == 1 && first_of(&parts, 2) == 11);
  ek_value_release(&parts);
  ek_value_release(&sizes);
  ek_value_release(&row);
  ek_value_release(&whole);
  ek_value_release(&dims);
  ek_value_release(&sequence);
}

static void what_does_not_fit_is_refused(void) {
  ek_value sequence = append(three(), vector(3, 0)), dims = vector(1, 2), found;
  ek_value stack[4] = {sequence, dims, dims, ek_value_int(0)};
  CHECK_ERROR(call("ek.sequence.stack", stack, 4, &found), "RunError",
              "sequence.stack: element 2 does not fit the first one in dtype, rank or shape");
  ek_value sizes = vector(2, 7), split[4] = {dims, sizes, ek_value_int(0), ek_value_int(1)};
  CHECK_ERROR(call("ek.sequence.split", split, 4, &found), "RunError",
              "sequence.split: part 0 of extent 7 does not fit an axis of extent 1");
  int64_t three_bits = 3;
  ek_object *packed;
  CHECK(ek_tensor_new(&three_bits, 1, (ek_dtype){EK_DTYPE_INT, 4, 1}, cpu, &packed) == 0);
  ek_value narrow = append(nil(), ek_value_object(packed)), concat[2] = {narrow, ek_value_int(0)};
  CHECK_ERROR(call("ek.sequence.concat", concat, 2, &found), "TypeError",
              "ek.sequence.concat: a tensor of elements of whole bytes expected");
  ek_value_release(&narrow);
  ek_value wrong = ek_value_int(3);
  CHECK_ERROR(call("ek.sequence.length", &wrong, 1, &found), "TypeError",
              "ek.sequence.length: a sequence expected, got int");
  CHECK_ERROR(call("ek.sequence.length", &wrong, 0, &found), "TypeError",
              "ek.sequence.length: expected 1 arguments, got 0");
  ek_value_release(&sizes);
  ek_value_release(&dims);
  ek_value_release(&sequence);
}

int main(void) {
  elements_are_found_from_both_ends();
  a_longer_and_a_shorter_one_share_the_rest();
  elements_become_one_tensor_and_parts_again();
  what_does_not_fit_is_refused();
  return 0;
}
