/* Source location of a failure: the function, and the model node of the instruction. The compiler
** records nodes in the metadata, which is JSON and untrusted like the rest of the file:
**
**   {..., "sources": {FUNCTION: [[INSTRUCTION, TEXT], ...], ...},
**        "checks": {FUNCTION: [[INSTRUCTION, [TEXT, ...]], ...], ...}, ...}
**
** where "checks" lists the nodes of a kernel's operators that check indices. */
#include "ek_vm_step.h"

#include <stdio.h>

/* A place in the text; 'at' is 'end' once something else was found than expected. */
typedef struct json {
  const char *at;
  const char *end;
} json;

/* Every function leaves 'at' at 'end' when it fails, so that those that follow fail too, and none
** reads on in the middle of something. Depth is counted and not recursed: a text of a million
** brackets is skipped. */
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

/* A string, without its quotes, as it is written. What is escaped is passed over in pairs: a quote
** behind a backslash ends nothing. */
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

ek_bytes ek_metadata_text(ek_bytes metadata, const char *key) {
  json j = {metadata.data, metadata.data + metadata.size};
  ek_bytes found, none = {"", 0};
  return enter_key(&j, key, strlen(key)) && take_string(&j, &found) ? found : none;
}

ek_bytes ek_metadata_item(ek_bytes metadata, const char *table, const char *key, int32_t index) {
  json j = {metadata.data, metadata.data + metadata.size};
  ek_bytes found, none = {"", 0};
  if (!enter_key(&j, table, strlen(table)) || !enter_key(&j, key, strlen(key))) return none;
  if (!take(&j, '[') || !take_string(&j, &found)) return none;
  while (index-- > 0) {
    if (!take(&j, ',') || !take_string(&j, &found)) return none;
  }
  return found;
}

static int64_t take_number(json *j) {
  int64_t number = 0;
  for (; j->at < j->end && *j->at >= '0' && *j->at <= '9' && number < INT32_MAX; j->at++) {
    number = number * 10 + (*j->at - '0');
  }
  return number;
}

int64_t ek_metadata_number(ek_bytes metadata, const char *table, const char *key, int32_t index) {
  ek_bytes item = ek_metadata_item(metadata, table, key, index);
  json j = {item.data + item.size, metadata.data + metadata.size};
  if (item.size == 0 || !take(&j, '"') || !take(&j, ',')) return 0;
  while (j.at < j.end && *j.at == ' ') j.at++;
  return take_number(&j);
}

/* The n-th text that a table has for an instruction; nothing where there is none. */
static ek_bytes text_of(const ek_vm *vm, const char *table, ek_bytes function, int32_t instruction,
                        int64_t n) {
  ek_bytes metadata = vm->executable->metadata, text = {"", 0}, none = {"", 0}, found = none;
  json j = {metadata.data, metadata.data + metadata.size};
  if (!enter_key(&j, table, strlen(table)) || !enter_key(&j, function.data, function.size)) {
    return none;
  }
  if (!take(&j, '[')) return none;
  while (take(&j, '[')) {
    int64_t number = take_number(&j), k = 0;
    if (!take(&j, ',')) return none;
    bool is_list = take(&j, '[');
    do {
      if (!take_string(&j, &text)) return none;
      if (number == instruction && k++ == n) found = text;
    } while (take(&j, ','));
    if ((is_list && !take(&j, ']')) || !take(&j, ']')) return none; /* cut text says nothing */
    if (found.size != 0) return found;
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

/* Copy a table's text for an instruction, at most LONGEST bytes. A longer text is cut at a UTF-8
** character boundary. */
static void copy_text(char *to, const ek_vm *vm, const char *table, const ek_vm_function *f,
                      int32_t instruction, int64_t n) {
  ek_bytes text = text_of(vm, table, f->name, instruction, n);
  if (text.size > LONGEST) {
    text.size = LONGEST;
    while (text.size != 0 && (text.data[text.size] & 0xC0) == 0x80) text.size--;
  }
  unescape(to, text);
}

/* Adds the place to the pending error, which is of a kind. */
static void add_place(const ek_vm *vm, const int32_t *pc, const char *kind,
                      const ek_error_object *error) {
  const ek_vm_function *f = vm->function;
  int32_t number = ek_vm_instruction(f, pc);
  char text[LONGEST + 1];
  copy_text(text, vm, "sources", f, number, 0);
  if (text[0] == '\0') snprintf(text, sizeof text, "instruction %d", number);
  ek_error(kind, "%.*s (in '%.*s': %s)", (int)error->message.size, error->message.data,
           (int)f->name.size, f->name.data, text);
}

static bool is_of_kind(const ek_error_object *error, const char *kind) {
  return error->kind.size == strlen(kind) && memcmp(error->kind.data, kind, strlen(kind)) == 0;
}

/* Whether the failed instruction is a check of data, which names its operator by number. */
static bool is_of_data(const ek_error_object *error) {
  return is_of_kind(error, "IndexRangeError") || is_of_kind(error, "LinAlgError");
}

/* "#1 take: index ..." as "Gather 'node': index ...", or "take: index ..." where the node has no
** name; other messages stay. */
static void name_node(const ek_vm *vm, const ek_vm_function *f, const int32_t *pc,
                      const ek_error_object *error) {
  json j = {error->message.data, error->message.data + error->message.size};
  if (!take(&j, '#')) return;
  int64_t n = take_number(&j);
  while (j.at < j.end && *j.at == ' ') j.at++;
  char name[LONGEST + 1] = "";
  if (pc != NULL) copy_text(name, vm, "checks", f, ek_vm_instruction(f, pc), n);
  const char *colon = memchr(j.at, ':', (size_t)(j.end - j.at));
  if (name[0] != '\0' && colon != NULL) j.at = colon;
  char kind[64];
  snprintf(kind, sizeof kind, "%.*s", (int)error->kind.size, error->kind.data);
  ek_error(kind, "%s%.*s", name, (int)(j.end - j.at), j.at);
}

void ek_vm_name_node(const ek_vm *vm, const ek_vm_function *f, const int32_t *pc) {
  ek_object *error = ek_error_take();
  if (error == NULL) return;
  ek_error_set(error);
  const ek_error_object *known = (const ek_error_object *)(const void *)error;
  if (is_of_data(known)) name_node(vm, f, pc, known);
  ek_object_release(error);
}

void ek_vm_say_where(const ek_vm *vm, const int32_t *pc) {
  uintptr_t place = (uintptr_t)pc;
  if (place & EK_NATIVE_FAILED) pc = (const int32_t *)(place - EK_NATIVE_FAILED);
  pc = pc == NULL ? NULL : ek_native_bytecode(vm->function, pc);
  if (pc == NULL || ek_opcode_has(*pc, EK_KERNEL)) ek_vm_name_node(vm, vm->function, pc);
  if (pc == NULL) return;
  ek_object *error = ek_error_take();
  if (error == NULL) return;
  ek_error_set(error);
  const ek_error_object *known = (const ek_error_object *)(const void *)error;
  /* of the host's memory the error says all, and there may be none for another text */
  static const char *const kinds[] = {"RunError", "DeviceError", "MemoryError"};
  size_t n = vm->executable->n_devices > 1 ? 3 : 2;
  for (size_t i = 0; i < n; i++) {
    if (!is_of_kind(known, kinds[i])) continue;
    add_place(vm, pc, kinds[i], known);
    break;
  }
  ek_object_release(error);
}

void ek_vm_failed(ek_vm *vm, const int32_t *pc) {
  ek_vm_say_where(vm, pc);
  ek_vm_unwind(vm);
}
