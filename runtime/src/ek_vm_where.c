/* Where in the program a run failed: the function, and what the instruction was made from. The
** compiler leaves the latter in the metadata, which is JSON and as little to be trusted as the rest
** of the file:
**
**   {..., "sources": {FUNCTION: [[INSTRUCTION, TEXT], ...], ...}, ...} */
#include "ek_vm_step.h"

#include <stdio.h>

/* A place in the text; 'at' is 'end' once something else was found than expected. */
typedef struct json {
  const char *at;
  const char *end;
} json;

static bool give_up(json *j) {
  j->at = j->end;
  return false;
}

static bool take(json *j, char c) {
  while (j->at < j->end && strchr(" \t\r\n", *j->at) != NULL && *j->at != '\0') j->at++;
  if (j->at == j->end || *j->at != c) return false;
  j->at++;
  return true;
}

/* A string, without its quotes, as it is written. */
static bool take_string(json *j, ek_bytes *out) {
  if (!take(j, '"')) return give_up(j);
  const char *start = j->at;
  while (j->at < j->end && *j->at != '"') j->at += *j->at == '\\' && j->end - j->at > 1 ? 2 : 1;
  *out = (ek_bytes){start, (size_t)(j->at - start)};
  return take(j, '"') || give_up(j);
}

/* Passes over a value of any kind. */
static void skip(json *j) {
  int64_t depth = 0;
  ek_bytes text;
  while (j->at < j->end) {
    char c = *j->at;
    if (depth == 0 && strchr(",]}", c) != NULL && c != '\0') return;
    if (c == '"') {
      take_string(j, &text);
      continue;
    }
    depth += (c == '[' || c == '{') - (c == ']' || c == '}');
    j->at++;
  }
}

/* Goes to the value of a key of the object that begins here. */
static bool enter_key(json *j, const char *key, size_t size) {
  ek_bytes found;
  if (!take(j, '{')) return give_up(j);
  do {
    if (!take_string(j, &found) || !take(j, ':')) return give_up(j);
    if (found.size == size && memcmp(found.data, key, size) == 0) return true;
    skip(j);
  } while (take(j, ','));
  return give_up(j);
}

static int64_t take_number(json *j) {
  int64_t number = 0;
  for (; j->at < j->end && *j->at >= '0' && *j->at <= '9' && number < INT32_MAX; j->at++) {
    number = number * 10 + (*j->at - '0');
  }
  return number;
}

/* What an instruction was made from; nothing where that is unknown. */
static ek_bytes source_of(const ek_vm *vm, ek_bytes function, int32_t instruction) {
  ek_bytes metadata = vm->executable->metadata, text = {"", 0}, none = {"", 0};
  json j = {metadata.data, metadata.data + metadata.size};
  if (!enter_key(&j, "sources", 7) || !enter_key(&j, function.data, function.size)) return none;
  if (!take(&j, '[')) return none;
  while (take(&j, '[')) {
    int64_t number = take_number(&j);
    if (!take(&j, ',') || !take_string(&j, &text) || !take(&j, ']')) return none;
    if (number == instruction) return text;
    if (!take(&j, ',')) return none;
  }
  return none;
}

/* Writes text of a JSON string without its backslashes; 'to' has room for 'size' and a zero. */
static void unescape(char *to, ek_bytes text) {
  for (size_t i = 0; i < text.size; i++) {
    if (text.data[i] == '\\' && i + 1 < text.size) i++;
    *to++ = text.data[i];
  }
  *to = '\0';
}

enum { LONGEST = 1000 };

/* Adds the place to the pending error. */
static void add_place(const ek_vm *vm, const int32_t *pc, const ek_error_object *error) {
  const ek_vm_function *f = vm->function;
  int32_t number = ek_vm_instruction(f, pc);
  ek_bytes source = source_of(vm, f->name, number);
  char text[LONGEST + 1];
  if (source.size > LONGEST) {
    source.size = LONGEST;
    while (source.size != 0 && (source.data[source.size] & 0xC0) == 0x80) source.size--;
  }
  unescape(text, source);
  if (source.size == 0) snprintf(text, sizeof text, "instruction %d", number);
  ek_error("RunError", "%.*s (in '%.*s': %s)", (int)error->message.size, error->message.data,
           (int)f->name.size, f->name.data, text);
}

void ek_vm_say_where(const ek_vm *vm, const int32_t *pc) {
  uintptr_t place = (uintptr_t)pc;
  if (place & EK_NATIVE_FAILED) pc = (const int32_t *)(place - EK_NATIVE_FAILED);
  pc = pc == NULL ? NULL : ek_native_bytecode(vm->function, pc);
  ek_object *error = ek_error_take();
  const ek_error_object *known = (const ek_error_object *)(const void *)error;
  bool is_plain = error != NULL && known->kind.size == 8 &&
                  memcmp(known->kind.data, "RunError", 8) == 0;
  if (error != NULL) ek_error_set(error);
  bool is_kernel = pc != NULL && (*pc == EK_OP_InvokePacked || *pc == EK_OP_InvokePackedScratch);
  if (is_plain && pc != NULL && !is_kernel) add_place(vm, pc, known);
  ek_object_release(error);
}

void ek_vm_failed(ek_vm *vm, const int32_t *pc) {
  ek_vm_say_where(vm, pc);
  ek_vm_unwind(vm);
}
