/* Errors say where in the program they came up, from what the metadata says of instructions. */
#include "ek_vm.h"
#include "program.h"

enum {
#define EK_OPCODE(name, text, format, operands, properties, meaning) name = EK_OP_##name,
#include "vm_opcodes.def"
#undef EK_OPCODE
};

/* main(x): inner(x), which fails in its second instruction. */
#define PROGRAM                                                                  \
  .functions = {{"main", 1, 2, WORDS(Move, 1, 0, Invoke, 1, 1, 1, 1, Ret, 1)}, \
                {"inner", 1, 2, WORDS(Move, 1, 0, GetTag, 1, 1, Ret, 1)}}
#define MESSAGE "GetTag: an ADT value expected, got int"

static void run_and_expect(const char *metadata, const char *message) {
  program p = {PROGRAM, .metadata = metadata};
  ek_object *vm = machine_of(&p);
  ek_value argument = ek_value_int(1), result = ek_value_none();
  CHECK(ek_vm_invoke(vm, 0, &argument, 1, &result) == -1);
  ek_error_object *error = (ek_error_object *)(void *)ek_error_take();
  if (!same_text(error->message, message)) {
    fprintf(stderr, "%s\nexpected %s\n     got %s\n", metadata, message, error->message.data);
    exit(1);
  }
  ek_object_release(&error->base);
  ek_object_release(vm);
}

static void places_that_are_known(void) {
  const char *found = MESSAGE " (in 'inner': text:3:5)";
  run_and_expect("{\"sources\":{\"inner\":[[1,\"text:3:5\"]]}}", found);
  run_and_expect("{\"a\":{\"sources\":[1,{}]},\"b\":\"]}\\\"\",\"sources\":{\"main\":[[1,\"no\"]],"
                 "\"inner\":[[0,\"no\"],[1,\"text:3:5\"],[2,\"no\"]]},\"z\":1}",
                 found);
  run_and_expect("{ \"sources\" : {\"inner\" : [ [1, \"text:3:5\"] ] } }", found);
  run_and_expect("{\"sources\":{\"inner\":[[1,\"a \\\"b\\\" \\\\c\"]]}}",
                 MESSAGE " (in 'inner': a \"b\" \\c)");
}

static void places_that_are_not(void) {
  const char *metadata[] = {"", "{}", "[]", "{\"sources\":{}}", "{\"sources\":[]}",
                            "{\"sources\":{\"inner\":{}}}", "{\"sources\":{\"inner\":[[0,\"no\"]]}}",
                            "{\"sources\":{\"inner\":[[1]]}}", "{\"sources\":{\"inner\":[1]}}",
                            "{\"sources\":{\"inner\":[[99999999999999999999,\"no\"]]}}"};
  for (size_t i = 0; i < sizeof metadata / sizeof metadata[0]; i++) {
    run_and_expect(metadata[i], MESSAGE " (in 'inner': instruction 1)");
  }
}

static void metadata_cut_off_anywhere(void) {
  static const char whole[] = "{\"a\":[{\"b\":\"\\\"\"}],\"sources\":{\"inner\":[[0,\"\\\\\"],[1,\"x\"";
  char part[sizeof whole];
  for (size_t n = 0; n < sizeof whole; n++) {
    memcpy(part, whole, n);
    part[n] = '\0';
    run_and_expect(part, MESSAGE " (in 'inner': instruction 1)");
  }
}

static void long_texts_are_cut(void) {
  char metadata[4200], message[1100];
  int start = snprintf(metadata, sizeof metadata, "{\"sources\":{\"inner\":[[1,\"");
  memset(metadata + start, 'x', 4000);
  snprintf(metadata + start + 4000, 100, "\"]]}}");
  int at = snprintf(message, sizeof message, "%s (in 'inner': ", MESSAGE);
  memset(message + at, 'x', 1000);
  snprintf(message + at + 1000, 10, ")");
  run_and_expect(metadata, message);
}

int main(void) {
  places_that_are_known();
  places_that_are_not();
  metadata_cut_off_anywhere();
  long_texts_are_cut();
  return 0;
}
