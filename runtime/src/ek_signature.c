/* Check arguments against the types that the executable declares, before anything runs; errors name
** the model's inputs and dimensions.
**
** A dimension is a number, or a symbol with one value for all arguments. Some symbols are defined
** by expressions of others ("n + 1"), which are checked after all arguments have bound theirs. A
** symbol whose definition uses an unbound symbol is bound by its own dimension. */
#include "ek_signature.h"

#include <stdarg.h>
#include <stdio.h>

#include "ek_vm.h"

enum { UNSEEN = -1, STACK = EK_TYPE_STACK, MESSAGE = 600 };

/* State of the check of one call. */
typedef struct look {
  const ek_executable *executable;
  const ek_vm_function *function;
  const ek_value *args;
  ek_seen *seen;                           /* one per symbol of the executable */
  int32_t param;
  int32_t depth;                           /* of tuples around what is looked at */
  int32_t path[EK_TYPE_NESTING];           /* numbers of their fields */
} look;

/* Messages ------------------------------------------------------------------------------------- */

typedef struct text {
  char bytes[MESSAGE];
  size_t size;
} text;

__attribute__((format(EK_PRINTF, 2, 3))) static void put(text *to, const char *format, ...) {
  va_list args;
  va_start(args, format);
  int n = vsnprintf(to->bytes + to->size, sizeof to->bytes - to->size, format, args);
  va_end(args);
  if (n > 0) to->size += (size_t)n;
  if (to->size >= sizeof to->bytes) to->size = sizeof to->bytes - 1;
}

static void put_name(text *to, ek_bytes name) {
  put(to, "%.*s", ek_shown(name, 100), name.data);
}

static void put_dtype(text *to, unsigned code, unsigned bits) {
  static const char *const kinds[] = {"int", "uint", "float", "opaque", "bfloat", "complex"};
  static const char *const small[] = {
      "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz",
      "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn",
      "float4_e2m1fn"};
  if (code == EK_DTYPE_BOOL) put(to, "bool");
  else if (code < EK_DTYPE_BOOL) put(to, "%s%u", kinds[code], bits);
  else if (code <= EK_DTYPE_FLOAT4_E2M1FN) put(to, "%s", small[code - EK_DTYPE_FLOAT8_E3M4]);
  else put(to, "dtype%u_%u", code, bits);
}

static void put_dim(text *to, const look *at, int64_t dim) {
  if (dim >= 0) put(to, "%lld", (long long)dim);
  else if (dim == EK_TYPE_ANY_DIM) put(to, "?");
  else put_name(to, at->executable->symbols[-1 - dim].name);
}

/* "Tensor[(n, 3), float32]", "a tuple of 2". */
static void put_type(text *to, const look *at, const int64_t *type) {
  if (type[0] == EK_TYPE_TUPLE) {
    put(to, "a tuple of %lld", (long long)type[1]);
    return;
  }
  put(to, "Tensor[(");
  for (int64_t i = 0; i < type[2]; i++) {
    put(to, i == 0 ? "" : ", ");
    put_dim(to, at, type[3 + i]);
  }
  put(to, "), ");
  put_dtype(to, (unsigned)(type[1] & 0xff), (unsigned)(type[1] >> 8));
  put(to, "]");
}

static void put_value(text *to, const ek_value *value) {
  const ek_dltensor *tensor = ek_value_tensor(value);
  if (tensor == NULL && value->type_index == EK_ADT) {
    put(to, "a tuple of %d", ((const ek_adt *)(const void *)value->v.obj)->size);
  } else if (tensor == NULL) {
    put(to, "%s", ek_value_type_name(value));
  } else {
    put(to, "(");
    for (int32_t i = 0; i < tensor->ndim; i++) {
      put(to, "%s%lld", i == 0 ? "" : ", ", (long long)tensor->shape[i]);
    }
    put(to, ") ");
    put_dtype(to, tensor->dtype.code, tensor->dtype.bits);
  }
}

void ek_value_describe(const ek_value *value, char out[EK_VALUE_TEXT]) {
  text message = {.size = 0};
  put_value(&message, value);
  snprintf(out, EK_VALUE_TEXT, "%.*s", EK_VALUE_TEXT - 1, message.bytes);
}

static ek_bytes name_of(const look *at, int32_t param) {
  return ek_executable_param(at->function, param);
}

/* "field 0 of input 'x': expected TYPE" */
static void put_start(text *to, const look *at, const int64_t *type) {
  for (int32_t i = at->depth; i-- > 0;) put(to, "field %d of ", at->path[i]);
  put(to, "input '");
  put_name(to, name_of(at, at->param));
  put(to, "': expected ");
  put_type(to, at, type);
}

static int refuse(const text *message, const ek_value *value) {
  text all = *message;
  put(&all, ", got ");
  put_value(&all, value);
  return ek_error("InputError", "%s", all.bytes);
}

static int wrong(const look *at, const int64_t *type, const ek_value *value) {
  text message = {.size = 0};
  put_start(&message, at, type);
  return refuse(&message, value);
}

/* A symbol that must be 'wanted', as in another input. */
static int conflicts(const look *at, const int64_t *type, const ek_value *value, int64_t symbol,
                     int64_t expected, int32_t shown) {
  text message = {.size = 0};
  put_start(&message, at, type);
  put(&message, " with ");
  put_name(&message, at->executable->symbols[symbol].name);
  put(&message, " = %lld", (long long)expected);
  if (shown != at->param) {
    put(&message, " as in input '");
    put_name(&message, name_of(at, shown));
    put(&message, "'");
  }
  return refuse(&message, value);
}

static int above(const look *at, const int64_t *type, const ek_value *value, int64_t symbol) {
  text message = {.size = 0};
  put_start(&message, at, type);
  put(&message, " with ");
  put_name(&message, at->executable->symbols[symbol].name);
  put(&message, " at most %lld", (long long)at->executable->symbols[symbol].most);
  return refuse(&message, value);
}

/* Looking -------------------------------------------------------------------------------------- */

static int look_at_symbol(look *at, const int64_t *type, const ek_value *value, int64_t symbol,
                          int64_t size) {
  ek_seen *seen = &at->seen[symbol];
  if (seen->size == UNSEEN) *seen = (ek_seen){size, at->param};
  if (seen->size != size) return conflicts(at, type, value, symbol, seen->size, seen->param);
  return size > at->executable->symbols[symbol].most ? above(at, type, value, symbol) : 0;
}

/* Numbers stand for tensors without dimensions where registers may hold either. Of integers alone:
** a float is given as a tensor. */
static bool is_number(const int64_t *type, const ek_value *value) {
  int64_t code = type[1] & 0xff;
  bool is_whole = code == EK_DTYPE_INT || code == EK_DTYPE_UINT || code == EK_DTYPE_BOOL;
  return type[2] == 0 && is_whole && (value->type_index == EK_INT || value->type_index == EK_BOOL);
}

static int look_at_tensor(look *at, const int64_t *type, const ek_value *value) {
  const ek_dltensor *tensor = ek_value_tensor(value);
  if (tensor == NULL) return is_number(type, value) ? 0 : wrong(at, type, value);
  if (tensor->ndim != type[2] || tensor->dtype.lanes != 1 ||
      (tensor->dtype.code | tensor->dtype.bits << 8) != type[1]) {
    return wrong(at, type, value);
  }
  for (int32_t i = 0; i < tensor->ndim; i++) {
    int64_t expected = type[3 + i], size = tensor->shape[i];
    if (expected >= 0 && expected != size) return wrong(at, type, value);
    if (expected >= 0 || expected == EK_TYPE_ANY_DIM) continue;
    if (look_at_symbol(at, type, value, -1 - expected, size) != 0) return -1;
  }
  return 0;
}

/* The fields of a tuple, which other languages give as an array; NULL where there are not 'n', else
** not NULL. */
static const ek_value *fields_of(const ek_value *value, int64_t n) {
  const ek_adt *tuple = (const ek_adt *)(const void *)value->v.obj;
  const ek_array *array = (const ek_array *)(const void *)value->v.obj;
  if (value->type_index == EK_ADT) {
    return tuple->tag == 0 && tuple->size == n ? tuple->fields : NULL;
  }
  if (value->type_index != EK_ARRAY || array->size != n) return NULL;
  return n == 0 ? value : array->data;
}

/* Looks at a value of the type at '*type', which is moved behind it. */
static int look_at(look *at, const int64_t **type, const ek_value *value) {
  const int64_t *own = *type;
  if (own[0] != EK_TYPE_TUPLE) {
    *type = own + (own[0] == EK_TYPE_TENSOR ? 3 + own[2] : 1);
    return own[0] == EK_TYPE_TENSOR ? look_at_tensor(at, own, value) : 0;
  }
  const ek_value *fields = fields_of(value, own[1]);
  if (fields == NULL) return wrong(at, own, value);
  *type = own + 2;
  int32_t place = at->depth++;
  for (int64_t i = 0; i < own[1]; i++) {
    at->path[place] = (int32_t)i;
    if (look_at(at, type, &fields[i]) != 0) return -1;
  }
  at->depth--;
  return 0;
}

/* Definitions ---------------------------------------------------------------------------------- */

static int64_t floor_quotient(int64_t a, int64_t b) {
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

/* a OP b; false where there is none such. */
static bool combine(int64_t op, int64_t a, int64_t b, int64_t *out) {
  bool divides = b != 0 && !(a == INT64_MIN && b == -1);
  switch (op) {
    case EK_DIM_ADD: return !__builtin_add_overflow(a, b, out);
    case EK_DIM_SUB: return !__builtin_sub_overflow(a, b, out);
    case EK_DIM_MUL: return !__builtin_mul_overflow(a, b, out);
    case EK_DIM_MIN: *out = a < b ? a : b; return true;
    case EK_DIM_MAX: *out = a > b ? a : b; return true;
    default: break;
  }
  if (divides) *out = op == EK_DIM_FLOORDIV ? floor_quotient(a, b) : a - b * floor_quotient(a, b);
  return divides;
}

/* Evaluate a symbol's definition; false if a part of it is unknown. A stack machine in reverse
** Polish order. ek_definition_verify has held its depth between 1 and STACK, that operands are
** there and symbols come before the one defined; so nothing is checked here. */
static bool evaluate(const look *at, const ek_symbol *symbol, int64_t *out) {
  int64_t stack[STACK];
  int32_t top = 0;
  for (int32_t i = 0; i < symbol->n_words; i++) {
    int64_t word = symbol->words[i];
    if (word == EK_DIM_CONST) {
      stack[top++] = symbol->words[++i];
    } else if (word == EK_DIM_SYMBOL) {
      stack[top] = at->seen[symbol->words[++i]].size;
      if (stack[top++] == UNSEEN) return false;
    } else if (!combine(word, stack[top - 2], stack[top - 1], &stack[top - 2])) {
      return false;
    } else {
      top--;
    }
  }
  *out = stack[0];
  return true;
}

/* Says of a tensor of a parameter which of its dimensions is not as defined. */
static int blame(look *at, const int64_t **type, const ek_value *value, int64_t symbol,
                 int64_t expected) {
  const int64_t *own = *type;
  *type = own + (own[0] == EK_TYPE_TENSOR ? 3 + own[2] : own[0] == EK_TYPE_TUPLE ? 2 : 1);
  for (int64_t i = 0; own[0] == EK_TYPE_TENSOR && i < own[2]; i++) {
    if (own[3 + i] == -1 - symbol) return conflicts(at, own, value, symbol, expected, at->param);
  }
  if (own[0] != EK_TYPE_TUPLE) return 0;
  int32_t place = at->depth++;
  for (int64_t i = 0; i < own[1]; i++) {
    at->path[place] = (int32_t)i;
    if (blame(at, type, &fields_of(value, own[1])[i], symbol, expected) != 0) return -1;
  }
  at->depth--;
  return 0;
}

static int check_definitions(look *at) {
  const ek_executable *e = at->executable;
  for (int32_t i = 0; i < e->n_symbols; i++) {
    const ek_symbol *symbol = &e->symbols[i];
    int64_t expected;
    if (symbol->n_words == 0 || at->seen[i].size == UNSEEN) continue;
    if (!evaluate(at, symbol, &expected) || expected == at->seen[i].size) continue;
    const int64_t *type = at->function->type;
    for (at->param = 0; at->param < at->function->n_params; at->param++) {
      if (blame(at, &type, &at->args[at->param], i, expected) != 0) return -1;
    }
  }
  return 0;
}

int ek_signature_check(const ek_executable *e, const ek_vm_function *f, const ek_value *args,
                       ek_seen *seen) {
  look at = {.executable = e, .function = f, .args = args, .seen = seen};
  const int64_t *type = f->type;
  if (type == NULL) return 0;
  for (int32_t i = 0; i < e->n_symbols; i++) seen[i] = (ek_seen){UNSEEN, 0};
  for (; at.param < f->n_params; at.param++) {
    if (look_at(&at, &type, &args[at.param]) != 0) return -1;
  }
  return check_definitions(&at);
}

/* Verifying ------------------------------------------------------------------------------------ */

/* Recursion is bounded by EK_TYPE_NESTING, which is also the room in 'path'. A tuple of no fields
** at the last level has none to go into. */
const int64_t *ek_type_verify(const int64_t *type, const int64_t *end, int32_t n_symbols,
                              int32_t depth) {
  int64_t left = end - type;
  if (left < 1 || depth == EK_TYPE_NESTING) return NULL;
  if (type[0] == EK_TYPE_ANY) return type + 1;
  if (type[0] == EK_TYPE_TENSOR) {
    if (left < 3 || type[2] < 0 || type[2] > EK_MAX_NDIM || left - 3 < type[2]) return NULL;
    if (type[1] < 0 || type[1] > 0xffff) return NULL;
    for (int64_t i = 0; i < type[2]; i++) {
      int64_t dim = type[3 + i];
      if (dim < 0 && dim != EK_TYPE_ANY_DIM && dim < -(int64_t)n_symbols) return NULL;
    }
    return type + 3 + type[2];
  }
  if (type[0] != EK_TYPE_TUPLE || left < 2 || type[1] < 0 || type[1] > left - 2) return NULL;
  const int64_t *at = type + 2;
  for (int64_t i = 0; i < type[1] && at != NULL; i++) {
    at = ek_type_verify(at, end, n_symbols, depth + 1);
  }
  return at;
}

bool ek_definition_verify(const int64_t *words, int32_t n, int32_t n_known) {
  int32_t top = 0;
  for (int32_t i = 0; i < n; i++) {
    bool is_leaf = words[i] == EK_DIM_CONST || words[i] == EK_DIM_SYMBOL;
    if (words[i] < EK_DIM_CONST || words[i] > EK_DIM_MAX) return false;
    if (is_leaf && (++i == n || top == STACK)) return false;
    if (is_leaf && words[i - 1] == EK_DIM_SYMBOL && (words[i] < 0 || words[i] >= n_known)) {
      return false;
    }
    if (!is_leaf && top < 2) return false;
    top += is_leaf ? 1 : -1;
  }
  return n == 0 || top == 1;
}
