/* The loader and the verifier: good files, every prefix and every damaged byte of one, and each
** way an operand can be out of range. */
#include "image.h"
#include "program.h"

#include <unistd.h>

enum {
#define EK_OPCODE(name, text, format, operands, properties, meaning) name = EK_OP_##name,
#include "vm_opcodes.def"
#undef EK_OPCODE
};

static const int64_t numbers[] = {1, 2, 3};

/* Every instruction once. */
static const int32_t main_words[] = {LoadConst,
                                     2,
                                     0,
                                     LoadConsti,
                                     3,
                                     64,
                                     0,
                                     AllocStorage,
                                     4,
                                     3,
                                     0,
                                     64,
                                     0,
                                     AllocTensor,
                                     5,
                                     4,
                                     0,
                                     0,
                                     EK_DTYPE_FLOAT,
                                     32,
                                     1,
                                     1,
                                     3,
                                     0,
                                     AllocTensorReg,
                                     5,
                                     4,
                                     3,
                                     0,
                                     2,
                                     0,
                                     1,
                                     EK_DTYPE_FLOAT,
                                     32,
                                     1,
                                     InvokePacked,
                                     0,
                                     2,
                                     1,
                                     0,
                                     5,
                                     ShapeOf,
                                     5,
                                     5,
                                     ReshapeTensor,
                                     5,
                                     2,
                                     2,
                                     0,
                                     1,
                                     DeviceCopy,
                                     5,
                                     2,
                                     0,
                                     0,
                                     Own,
                                     5,
                                     -6,
                                     0,
                                     AllocADT,
                                     5,
                                     0,
                                     2,
                                     0,
                                     1,
                                     GetField,
                                     5,
                                     5,
                                     0,
                                     AllocClosure,
                                     5,
                                     1,
                                     0,
                                     InvokeClosure,
                                     5,
                                     5,
                                     1,
                                     0,
                                     GetTag,
                                     5,
                                     0,
                                     Invoke,
                                     5,
                                     1,
                                     1,
                                     0,
                                     If,
                                     0,
                                     1,
                                     2,
                                     1,
                                     Goto,
                                     1,
                                     Move,
                                     5,
                                     0,
                                     KillRegister,
                                     0,
                                     Ret,
                                     5};
static const int32_t other_words[] = {If, 0, 0, 1, 2, Ret, 0, Fatal};

/* Every section. */
static program full_program(const image_bytes *image) {
  return (program){.functions = {{"main", 2, 6, main_words, sizeof main_words / 4},
                                 {"other", 1, 1, other_words, sizeof other_words / 4}},
                   .constants = {{numbers, 3}, {numbers, 0}, {numbers, 2}},
                   .primitives = {"answer", "ek.runtime.allocation_count"},
                   .image = image->bytes,
                   .image_size = image->size};
}

static bool is_text(ek_value *value, const char *expected) {
  ek_bytes got;
  bool same = ek_string_borrow(value, &got) && same_text(got, expected);
  ek_value_release(value);
  return same;
}

static void parts_come_back(const program *p) {
  ek_object *executable;
  ek_value item;
  CHECK(load_program(p, &executable) == 0);
  CHECK(ek_executable_count(executable, EK_PART_GLOBAL) == 2);
  CHECK(ek_executable_item(executable, EK_PART_GLOBAL, 1, &item) == 0 && is_text(&item, "other"));
  CHECK(ek_executable_item(executable, EK_PART_PRIMITIVE, 0, &item) == 0 &&
        is_text(&item, "answer"));
  CHECK(ek_executable_item(executable, EK_PART_METADATA, 0, &item) == 0 && is_text(&item, "{}"));
  CHECK(ek_executable_item(executable, EK_PART_REGISTERS, 0, &item) == 0 && item.v.i64 == 6);
  CHECK(ek_executable_item(executable, EK_PART_PARAMS, 0, &item) == 0);
  CHECK(((ek_array *)(void *)item.v.obj)->size == 2);
  CHECK(is_text(&((ek_array *)(void *)item.v.obj)->data[1], "x"));
  ek_value_release(&item);
  CHECK(ek_executable_item(executable, EK_PART_CODE, 1, &item) == 0);
  ek_bytes code;
  CHECK(ek_string_borrow(&item, &code) && code.size == 4 * 8 && code.data[0] == If &&
        code.data[12] == 1);
  ek_value_release(&item);
  CHECK(ek_executable_item(executable, EK_PART_FILE, 0, &item) == 0);
  ek_value_release(&item);
  CHECK_ERROR((int)ek_executable_count(executable, 99), "ValueError",
              "read executable: there is no part 99");
  CHECK_ERROR(ek_executable_item(executable, EK_PART_GLOBAL, 2, &item), "IndexError",
              "read executable: part 0 has 2 items, got index 2");
  ek_object_release(executable);
}

/* A constant outlives its executable, is read-only and aligned. */
static void constants_stay(const program *p) {
  ek_object *executable;
  ek_value item;
  CHECK(load_program(p, &executable) == 0);
  CHECK(ek_executable_item(executable, EK_PART_CONSTANT, 2, &item) == 0);
  ek_object_release(executable);
  const ek_tensor *tensor = (ek_tensor *)(void *)item.v.obj;
  CHECK(tensor->flags == EK_DLPACK_READ_ONLY && (uintptr_t)tensor->dl.data % 64 == 0);
  CHECK(tensor->dl.shape[0] == 2 && ((int64_t *)tensor->dl.data)[1] == 2);
  ek_value_release(&item);
}

static void files_are_mapped(const bytes *file) {
  char path[] = "/tmp/ekiden_test_XXXXXX";
  ek_object *executable, *vm;
  int descriptor = mkstemp(path);
  FILE *stream = fdopen(descriptor, "wb");
  CHECK(stream != NULL && fwrite(file->data, 1, file->size, stream) == file->size);
  fclose(stream);
  CHECK(ek_executable_load(path, &executable) == 0);
  remove(path);
  CHECK(ek_vm_new(executable, &vm) == 0);
  ek_object_release(executable);
  ek_object_release(vm);
  CHECK(ek_executable_load("/nonexistent/x.eki", &executable) == -1);
  check_error(__FILE__, __LINE__, "OSError",
              "load '/nonexistent/x.eki': No such file or directory");
}

static int load_copy(const unsigned char *data, size_t size) {
  ek_object *executable = NULL;
  int status = ek_executable_from_bytes(data, size, 1, &executable);
  if (status != 0) {
    ek_error_object *error = (ek_error_object *)(void *)ek_error_take();
    CHECK(error != NULL && same_text(error->kind, "LoadError"));
    ek_object_release(&error->base);
  }
  ek_object_release(executable);
  return status;
}

static void every_prefix_is_refused(const bytes *file) {
  for (size_t size = 0; size < file->size; size++) CHECK(load_copy(file->data, size) == -1);
  bytes longer = {0};
  add(&longer, file->data, file->size);
  add(&longer, "", 1);
  CHECK(load_copy(longer.data, longer.size) == -1);
  free(longer.data);
}

/* No byte of a file is without a check. */
static void every_damaged_byte_is_refused(const bytes *file) {
  static const unsigned char damage[] = {0x01, 0x80, 0xff};
  for (size_t at = 0; at < file->size; at++) {
    for (size_t i = 0; i < sizeof damage; i++) {
      file->data[at] ^= damage[i];
      CHECK(load_copy(file->data, file->size) == -1);
      file->data[at] ^= damage[i];
    }
  }
  CHECK(load_copy(file->data, file->size) == 0);
}

static uint32_t get32(const unsigned char *at) {
  return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static void put32(unsigned char *at, uint32_t value) {
  for (int i = 0; i < 4; i++) at[i] = (unsigned char)(value >> (8 * i));
}

/* Makes the checksums right again, so that damage reaches the readers behind them. */
static void mend(bytes *file) {
  uint32_t n = get32(file->data + 24);
  for (uint32_t i = 0; i < n; i++) {
    unsigned char *entry = file->data + 32 + 24 * i;
    uint32_t offset = get32(entry + 8), length = get32(entry + 16);
    if (offset > file->size || length > file->size - offset) continue;
    put32(entry + 4, ek_crc32(file->data + offset, length));
  }
  put32(file->data + 28, ek_crc32(file->data + 32, 24 * n));
}

#ifdef EK_HARD_TEST
enum { DAMAGED = 8000 }; /* slower, each; the other builds, in long runs, make them all */
#else
enum { DAMAGED = 40000 };
#endif

/* A small deterministic fuzzer: some words are replaced, checksums mended. What still loads must be
** harmless to take apart; it is not run, for its loops may be endless. */
static void mended_damage_is_harmless(const bytes *file) {
  static const uint32_t values[] = {0,    1,      2,          7,          0x7f,
                                    0xff, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff};
  size_t image =
      get32(file->data + 32 + 24 * 4 + 8); /* hostile code is not the loader's to refuse */
  uint32_t random = 1;
  int loaded = 0;
  bytes copy = {0};
  add(&copy, file->data, file->size);
  for (int round = 0; round < DAMAGED; round++) {
    memcpy(copy.data, file->data, file->size);
    for (int change = 0; change <= round % 3; change++) {
      random = random * 1664525 + 1013904223;
      size_t at = 32 + (random >> 8) % (image - 32 - 4);
      random = random * 1664525 + 1013904223;
      put32(copy.data + at, values[(random >> 8) % (sizeof values / sizeof values[0])]);
    }
    mend(&copy);
    if (load_copy(copy.data, copy.size) == 0) loaded++;
  }
  CHECK(loaded > 0 && loaded < DAMAGED);
  free(copy.data);
}

static void image_functions_are_linked(const program *p) {
  program q = {
      .functions = {{"main", 0, 1, WORDS(InvokePacked, 0, 0, 0, LoadConsti, 0, 1, 0, Ret, 0)}},
      .primitives = {"answer"},
      .image = p->image,
      .image_size = p->image_size};
  ek_object *vm = machine_of(&q);
#if defined(__x86_64__)
  CHECK(run_ints(vm, NULL, 0) == 1);
#endif
  ek_object_release(vm);
}

static void constants_of_four_bits_are_packed(void) {
  static const unsigned char packed[] = {0x21, 0x43, 0x05};
  program p = {.functions = {{"main", 0, 1, WORDS(LoadConst, 0, 0, Ret, 0)}},
               .constants = {{packed, 5, 4}}};
  ek_object *vm = machine_of(&p);
  ek_value result = ek_value_none();
  CHECK(ek_vm_invoke(vm, 0, NULL, 0, &result) == 0);
  const ek_dltensor *tensor = ek_value_tensor(&result);
  CHECK(tensor->dtype.bits == 4 && tensor->shape[0] == 5 && ek_dltensor_nbytes(tensor) == 3);
  CHECK(memcmp(ek_dltensor_data(tensor), packed, 3) == 0);
  ek_value_release(&result);
  ek_object_release(vm);
}

static void an_executable_file_is_a_module(const program *p) {
  char path[] = "/tmp/ekiden-module-XXXXXX", name[64], copy[64];
  int file = mkstemp(path);
  bytes content = program_file(p);
  ek_object *module = NULL, *found = NULL, *save = NULL;
  CHECK(file >= 0 && close(file) == 0);
  snprintf(name, sizeof name, "%s.eki", path);
  snprintf(copy, sizeof copy, "%s.copy.eki", path);
  FILE *out = fopen(name, "wb");
  CHECK(fwrite(content.data, 1, content.size, out) == content.size && fclose(out) == 0);
  CHECK(ek_module_load(name, &module) == 0);
  CHECK(ek_module_get(module, "main", &found) == 0 && found != NULL);
  ek_object_release(found);
  ek_value args[2] = {ek_value_object(module), {EK_RAW_STR, 0, {0}}}, ret = ek_value_none();
  args[1].v.ptr = copy;
  save = ek_registry_get("ek.module.save");
  CHECK(ek_function_call(save, args, 2, &ret) == 0);
  ek_object_release(module);
  CHECK(ek_module_load(copy, &module) == 0 && ek_module_implements(module, "main") == 1);
  args[0] = ek_value_object(module);
  args[1].v.ptr = (void *)(uintptr_t) "/no/such/folder/x.eki";
  CHECK_ERROR(ek_function_call(save, args, 2, &ret), "OSError",
              "save '/no/such/folder/x.eki': No such file or directory");
  ek_object_release(save);
  ek_object_release(module);
  free(content.data);
  remove(name);
  remove(copy);
  remove(path);
}

static void names_must_differ(void) {
  program p = {.functions = {{"main", 0, 0, WORDS(Fatal)}, {"main", 0, 0, WORDS(Fatal)}}};
  ek_object *executable;
  CHECK_ERROR(load_program(&p, &executable), "LoadError",
              "load executable: GLOBALS: two functions are named 'main'");
  char name[257], message[300]; /* a message shows the beginning of a long name */
  memset(name, 'n', 256);
  name[256] = '\0';
  p.functions[0].name = p.functions[1].name = name;
  snprintf(message, sizeof message,
           "load executable: GLOBALS: two functions are named '%.200s'", name);
  CHECK_ERROR(load_program(&p, &executable), "LoadError", message);
}

static void text_must_be_utf8(void) {
  static const char *const names[] = {"\xc0\x80",     "\xed\xa0\x80", "\xf5\x80\x80\x80",
                                      "\xe0\x80\x80", "a\xff",        "\xc3"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    program p = {.functions = {{names[i], 0, 0, WORDS(Fatal)}}};
    ek_object *executable;
    CHECK(load_program(&p, &executable) == -1);
    drop_error();
  }
  program p = {.functions = {{"\xe9\xa7\x85\xc3\xa9\xf0\x9f\x98\x80", 0, 0, WORDS(Fatal)}}};
  ek_object *executable;
  CHECK(load_program(&p, &executable) == 0);
  ek_object_release(executable);
}

static void bytecode_is_verified(void) {
  const struct {
    const int32_t *words;
    int32_t n_words;
    const char *message;
  } cases[] = {
      {WORDS(Move, 2, 0, Ret, 0),
       "at instruction 0 (Move), word 1: a register below 2 expected, got 2"},
      {WORDS(Ret, -1), "at instruction 0 (Ret), word 1: a register below 2 expected, got -1"},
      {WORDS(32), "at instruction 0 (unknown), word 0: an opcode below 32 expected, got 32"},
      {WORDS(-1), "at instruction 0 (unknown), word 0: an opcode below 32 expected, got -1"},
      {WORDS(Move, 0, -3, Ret, 0),
       "at instruction 0 (Move), word 2: a register below 2 expected, got 2"},
      {WORDS(AllocADT, 0, 0, 2, -1, 2, Ret, 0),
       "at instruction 0 (AllocADT), word 5: a register below 2 expected, got 2"},
      {WORDS(InvokeTail, 0, 0),
       "at instruction 0 (InvokeTail), word 2: a number of arguments of 1 expected, got 0"},
      {WORDS(Switch, 0, 0, Ret, 0),
       "at instruction 0 (Switch), word 3: a number of jumps of at least 1 expected, got 0"},
      {WORDS(Switch, 0, 2, 1, 2, Ret, 0),
       "at instruction 0 (Switch), word 4: a jump to an instruction below 2 expected, got 2"},
      {WORDS(Switch, 0, 5, 1, 2, Ret, 0),
       "at instruction 0 (Switch), word 3: a function whose words are at least 8 expected, got 7"},
      {WORDS(Ret),
       "at instruction 0 (Ret), word 1: a function whose words are at least 2 expected, got 1"},
      {WORDS(LoadConsti, 0, 1),
       "at instruction 0 (LoadConsti), word 2: a function whose words are at least 4 "
       "expected, got 3"},
      {WORDS(LoadConst, 0, 1, Ret, 0),
       "at instruction 0 (LoadConst), word 2: a constant below 1 expected, got 1"},
      {WORDS(InvokePacked, 1, 0, 0, Ret, 0),
       "at instruction 0 (InvokePacked), word 1: a primitive below 1 expected, got 1"},
      {WORDS(InvokePacked, 0, 1, 2, 0, Ret, 0),
       "at instruction 0 (InvokePacked), word 3: a number of outputs below 2 expected, got 2"},
      {WORDS(InvokePacked, 0, 7, 0, Ret, 0),
       "at instruction 0 (InvokePacked), word 2: a length below 6 expected, got 7"},
      {WORDS(Invoke, 0, 1, 1, 0, Ret, 0),
       "at instruction 0 (Invoke), word 2: a function below 1 expected, got 1"},
      {WORDS(Invoke, 0, 0, 0, Ret, 0),
       "at instruction 0 (Invoke), word 3: a number of arguments of 1 expected, got 0"},
      {WORDS(AllocClosure, 0, 0, 2, 0, 0, Ret, 0),
       "at instruction 0 (AllocClosure), word 3: a number of captured values of at most 1 "
       "expected, got 2"},
      {WORDS(Goto, 0, Ret, 0),
       "at instruction 0 (Goto), word 1: a jump other than 0 expected, got 0"},
      {WORDS(Goto, 2, Ret, 0),
       "at instruction 0 (Goto), word 1: a jump to an instruction below 2 expected, got 2"},
      {WORDS(Move, 0, 0, Goto, -2),
       "at instruction 1 (Goto), word 1: a jump to an instruction below 2 expected, got -1"},
      {WORDS(AllocStorage, 0, 0, 0, 48, 0, Ret, 0),
       "at instruction 0 (AllocStorage), word 5: an alignment that is a power of two up to 4096 "
       "expected, got 48"},
      {WORDS(AllocStorage, 0, 0, 0, 64, 1, Ret, 0),
       "at instruction 0 (AllocStorage), word 5: a device below 1 expected, got 1"},
      {WORDS(AllocTensor, 0, 0, 0, 0, 19, 32, 1, 0, Ret, 0),
       "at instruction 0 (AllocTensor), word 5: a dtype code below 18 expected, got 19"},
      {WORDS(AllocTensor, 0, 0, 0, 0, 0, 32, 1, 1, 0, -1, Ret, 0),
       "at instruction 0 (AllocTensor), word 11: a dimension of at least 0 expected, got -1"},
      {WORDS(ReshapeTensor, 0, 0, 0, 0, 65, Ret, 0),
       "at instruction 0 (ReshapeTensor), word 5: a rank below 65 expected, got 65"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    program p = {.functions = {{"main", 1, 2, cases[i].words, cases[i].n_words}},
                 .constants = {{numbers, 1}},
                 .primitives = {"k"}};
    char message[256];
    ek_object *executable;
    snprintf(message, sizeof message, "load executable: CODE: 'main' %s", cases[i].message);
    CHECK_ERROR(load_program(&p, &executable), "LoadError", message);
  }
}

static void control_cannot_run_off_the_end(void) {
  program p = {.functions = {{"main", 1, 1, WORDS(Move, 0, 0)}}};
  program empty = {.functions = {{"main", 1, 1, NULL, 0}}};
  const char *message =
      "load executable: CODE: 'main': its last instruction must be one that never goes on to the next";
  ek_object *executable;
  CHECK_ERROR(load_program(&p, &executable), "LoadError", message);
  CHECK_ERROR(load_program(&empty, &executable), "LoadError", message);
}

static void registers_are_bounded_by_the_file(void) {
  program p = {.functions = {{"main", 1, 1 << 30, WORDS(Ret, 0)}}};
  ek_object *executable;
  CHECK_ERROR(load_program(&p, &executable), "LoadError",
              "load executable: CODE: 'main': 1073741824 registers do not go with 1 parameters and "
              "2 words");
}

/* Variants ------------------------------------------------------------------------------------- */

static image_bytes images[4];

/* Of three, the last two run here. */
static program with_variants(const program *p) {
  program q = *p;
  images[0] = make_image_for(1, "cortex-a72");
  images[1] = make_image_for(0, "x86-64 sse4_1");
  images[2] = make_image_for(0, "x86-64");
  q.image = NULL;
  for (int i = 0; i < 3; i++) q.variants[i] = images[i].bytes;
  q.variant_size = images[0].size;
  return q;
}

static void the_first_variant_that_runs_is_taken(const program *p) {
  program q = with_variants(p);
  ek_object *executable;
  ek_value metadata = ek_value_none();
  ek_bytes content;
  CHECK(load_program(&q, &executable) == 0);
  CHECK(ek_executable_item(executable, EK_PART_METADATA, 0, &metadata) == 0);
  CHECK(ek_string_borrow(&metadata, &content) && same_text(content, "2"));
  CHECK(((ek_executable *)(void *)executable)->image.size == q.variant_size);
  ek_value_release(&metadata);
  ek_object_release(executable);
}

static void where_none_runs_all_are_named(const program *p) {
  program q = with_variants(p);
  ek_object *executable;
  images[1] = make_image_for(0, "x86-64-v9 sse4_1 avx9 avx10_vnni");
  q.variants[2] = NULL;
  CHECK_ERROR(load_program(&q, &executable), "LoadError",
              "load executable: IMAGE: this machine lacks what its code needs: AArch64 "
              "(cortex-a72), avx9 avx10_vnni (x86-64-v9)");
  memset(images[0].bytes + 48, 'x', 4096 - 48);
  memset(images[1].bytes + 48, 'y', 4096 - 48);
  images[1].bytes[50] = ' ';
  CHECK(load_program(&q, &executable) == -1);
  drop_error();
}

static void refuse_entry(const program *p, uint32_t index, uint32_t kind, const char *reason) {
  bytes file = program_file(p);
  ek_object *executable;
  char message[160];
  snprintf(message, sizeof message, "load executable: header: %s", reason);
  put32(file.data + 32 + 24 * index, kind);
  put32(file.data + 28, ek_crc32(file.data + 32, 24 * get32(file.data + 24)));
  CHECK_ERROR(ek_executable_from_bytes(file.data, file.size, 1, &executable), "LoadError", message);
  free(file.data);
}

/* The table is 1 2 3 4, then 5 6 of each variant. */
static void variants_stand_in_order(const program *p) {
  const char *same = "an IMAGE and the same sections expected of each of 3 variants";
  program q = with_variants(p);
  refuse_entry(&q, 4, 2 << 16 | 5, "section 5 of variant 2 follows section 4 of variant 0");
  refuse_entry(&q, 5, 1 << 16 | 5, "section 5 of variant 1 follows section 5 of variant 1");
  refuse_entry(&q, 5, 6, "section 6 of variant 0 follows section 5 of variant 1");
  refuse_entry(&q, 4, 1 << 16 | 4, "section 4 of variant 1: it is common to all");
  refuse_entry(&q, 4, 1 << 16 | 2, "section 2 of variant 1: it is common to all");
  refuse_entry(&q, 4, 1 << 16 | 7, "section 6 of variant 1 follows section 7 of variant 1");
  refuse_entry(&q, 4, 1 << 16 | 11, "unknown section 11");
  refuse_entry(&q, 4, 5, "section 5 of variant 2: it is common to all");
  refuse_entry(&q, 8, 2 << 16 | 7, same);
  refuse_entry(&q, 9, 3 << 16 | 7, same);
}

/* Sections of a variant that is not taken are checked too. */
static void all_variants_are_checked(const program *p) {
  program q = with_variants(p);
  bytes file = program_file(&q);
  every_prefix_is_refused(&file);
  for (size_t at = 0; at < file.size; at += 7) {
    file.data[at] ^= 0x40;
    CHECK(load_copy(file.data, file.size) == -1);
    file.data[at] ^= 0x40;
  }
  free(file.data);
}

static void checksums_are_those_of_zlib(void) {
  unsigned char data[1000];
  CHECK(ek_crc32("123456789", 9) == 0xcbf43926);
  for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * 7 + i / 13);
  for (size_t size = 0; size < sizeof data; size++) {
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < size; i++) {
      crc ^= data[i];
      for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ ((crc & 1) ? 0xedb88320 : 0);
    }
    CHECK(ek_crc32(data, size) == ~crc);
  }
}

enum { WRITERS = 4, WRITES = 100, SIZE = 100000 };

static char write_path[64];
static int32_t writing;        /* atomic */

static void write_often(void *letter) {
  static char data[WRITERS][SIZE];
  char *own = data[*(char *)letter - 'a'];
  memset(own, *(char *)letter, SIZE);
  for (int i = 0; i < WRITES; i++) CHECK(ek_file_write(write_path, own, SIZE) == 0);
  __atomic_fetch_sub(&writing, 1, __ATOMIC_RELEASE);
}

static void a_whole_file_is_there(void) {
  size_t size = 0;
  const char *data = ek_file_map(write_path, &size);
  CHECK(data != NULL && size == SIZE);
  for (size_t i = 1; i < size; i++) CHECK(data[i] == data[0]);
  ek_file_unmap(data, size);
}

/* All succeed, also where one who died with this process's number has left a draft. */
static void several_write_one_path(void) {
  static char letters[WRITERS] = {'a', 'b', 'c', 'd'};
  ek_thread threads[WRITERS];
  char left[128];
  snprintf(write_path, sizeof write_path, "written-%ld", (long)getpid());
  snprintf(left, sizeof left, "%s.%ld-%d.part", write_path, (long)getpid(), 2 * WRITES);
  FILE *file = fopen(left, "w");
  CHECK(file != NULL && fclose(file) == 0);
  writing = WRITERS;
  for (int i = 0; i < WRITERS; i++) {
    CHECK(ek_thread_start(&threads[i], write_often, &letters[i], -1) == 0);
  }
  while (__atomic_load_n(&writing, __ATOMIC_ACQUIRE) != 0) {
    if (ek_file_exists(write_path)) a_whole_file_is_there();
  }
  for (int i = 0; i < WRITERS; i++) ek_thread_join(threads[i]);
  a_whole_file_is_there();
  CHECK(unlink(left) == 0 && unlink(write_path) == 0);
}

int main(void) {
  static image_bytes image;
  image = make_image();
  program p = full_program(&image);
  bytes file = program_file(&p);
  checksums_are_those_of_zlib();
  parts_come_back(&p);
  constants_stay(&p);
  files_are_mapped(&file);
  every_prefix_is_refused(&file);
  every_damaged_byte_is_refused(&file);
  mended_damage_is_harmless(&file);
  image_functions_are_linked(&p);
  names_must_differ();
  constants_of_four_bits_are_packed();
  an_executable_file_is_a_module(&p);
  text_must_be_utf8();
  bytecode_is_verified();
  control_cannot_run_off_the_end();
  registers_are_bounded_by_the_file();
  the_first_variant_that_runs_is_taken(&p);
  where_none_runs_all_are_named(&p);
  variants_stand_in_order(&p);
  all_variants_are_checked(&p);
  several_write_one_path();
  free(file.data);
  return 0;
}
