/* Any bytes are loaded or refused; what loads can be taken apart, and runs without harm: 100
** instructions of each function. The same for states of machines.
**
** With libFuzzer, where there is clang:
**     clang -g -O1 -D_GNU_SOURCE -DEK_LIBFUZZER -fsanitize=fuzzer,address,undefined \
**           -Iruntime/include -Iruntime/src -Itests/c runtime/src/[a-z]*.c tests/c/fuzz_load.c \
**           -pthread -ldl -o fuzz_load
**
** Run it with ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1: objects that come to own
** themselves are not freed, and other leaks are seen under EK_HARD_TEST.
**
** Without, this has a main of its own: "fuzz_load RUNS SEED" damages files made here RUNS times.
** Checksums would stop most damage at the door, so they are mended three times in four. What was
** being tried when it fails lies in fuzz-failure.eki.
*/
#include "image.h"
#include "program.h"

#include <signal.h>
#include <sys/resource.h>

#include "ek_vm_step.h"

enum {
#define EK_OPCODE(name, text, format, operands, properties, meaning) name = EK_OP_##name,
#include "vm_opcodes.def"
#undef EK_OPCODE
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void take_apart(ek_object *executable) {
  for (int32_t part = EK_PART_GLOBAL; part <= EK_PART_FILE; part++) {
    int64_t count = ek_executable_count(executable, part);
    for (int64_t i = 0; i < count; i++) {
      ek_value item = {EK_NONE, 0, {0}};
      if (ek_executable_item(executable, part, i, &item) == 0) ek_value_release(&item);
    }
  }
}

/* Running -------------------------------------------------------------------------------------- */

enum { STEPS = 100 };

#ifdef EK_HARD_TEST
enum { IS_HARD = 1 };          /* what is never freed ends the process with an error */
#else
enum { IS_HARD = 0 };
#endif

/* References are the one way to make an object own itself, and so never to be freed. */
static bool writes_references(const ek_executable *e) {
  for (int32_t i = 0; i < e->n_functions; i++) {
    const ek_vm_function *f = &e->functions[i];
    for (int32_t at = 0; at < f->n_words; at += ek_instruction_words(f->code + at)) {
      if (f->code[at] == EK_OP_WriteRef) return true;
    }
  }
  return false;
}

static void finish(ek_vm *vm) {
  ek_value result = ek_value_none();
  ek_vm_enter_bytecode(vm);
  (void)ek_vm_step(vm, STEPS, NULL);
  ek_vm_unwind(vm);
  if (ek_vm_end(vm, &result) == 0) ek_value_release(&result);
  drop_error();
}

static void run_function(ek_vm *vm, int32_t number) {
  ek_value args[4] = {ek_value_int(0), ek_value_int(-1), ek_value_int(0), ek_value_int(1)};
  int32_t n = vm->executable->functions[number].n_params;
  if (n > 4) return;
  if (ek_vm_begin(vm, number, args, n, true) == 0) finish(vm);
  drop_error();
}

static void run_all(ek_object *executable) {
  ek_object *vm = NULL;
  if (IS_HARD && writes_references((ek_executable *)(void *)executable)) return;
  if (ek_vm_new(executable, &vm) == 0) {
    int64_t n = ek_executable_count(executable, EK_PART_GLOBAL);
    for (int32_t i = 0; i < n; i++) run_function((ek_vm *)(void *)vm, i);
    ek_object_release(vm);
  }
  drop_error();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  ek_object *object = NULL;
  if (ek_image_load(data, size, &object) == 0) {
    ek_object *names = NULL;
    if (ek_module_names(object, &names) == 0) ek_object_release(names);
    ek_object_release(object);
  }
  drop_error();
  if (ek_executable_from_bytes(data, size, 1, &object) == 0) {
    take_apart(object);
#ifdef EK_LIBFUZZER
    /* native code is trusted, so damaged native code must not run */
    if (((ek_executable *)(void *)object)->image.size == 0) run_all(object);
#endif
    ek_object_release(object);
  }
  drop_error();
  return 0;
}

#ifdef EK_LIBFUZZER

int LLVMFuzzerInitialize(int *argc, char ***argv);

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc, (void)argv;
  register_test_add();
  return 0;
}

#else

/* Damage --------------------------------------------------------------------------------------- */

static uint64_t state = 1;

static uint32_t random_below(uint64_t n) {
  state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return n == 0 ? 0 : (uint32_t)((state >> 33) % n);
}

static uint32_t word_at(const bytes *file, size_t at) {
  uint32_t word = 0;
  if (at + 4 <= file->size) memcpy(&word, file->data + at, 4);
  return word;
}

static void put_word(bytes *file, size_t at, uint32_t word) {
  if (at + 4 <= file->size) memcpy(file->data + at, &word, 4);
}

static void mend(bytes *file) {
  uint32_t n = word_at(file, 24);
  if (n > 16 || file->size < 32 + 24 * (size_t)n) return;
  put_word(file, 16, (uint32_t)file->size);
  for (uint32_t i = 0; i < n; i++) {
    size_t entry = 32 + 24 * (size_t)i;
    uint32_t offset = word_at(file, entry + 8), length = word_at(file, entry + 16);
    if (offset > file->size || length > file->size - offset) continue;
    put_word(file, entry + 4, ek_crc32(file->data + offset, length));
  }
  put_word(file, 28, ek_crc32(file->data + 32, 24 * (size_t)n));
}

static void change(bytes *file) {
  static const uint32_t words[] = {0,      1,       2,          4,          7,         63,
                                   64,     65,      0x7f,       0xff,       0x100,     0xffff,
                                   0x10000, 0x7fffffff, 0x80000000, 0xffffffff, 0xfffffffe, 12};
  size_t at = random_below(file->size), other = random_below(file->size);
  size_t most = file->size - (at > other ? at : other), n = random_below(most < 64 ? most : 64);
  switch (random_below(7)) {
    case 0: file->data[at] ^= (unsigned char)(1u << random_below(8)); break;
    case 1: file->data[at] = (unsigned char)random_below(256); break;
    case 2: put_word(file, at, words[random_below(sizeof words / sizeof words[0])]); break;
    case 3:
      put_word(file, at / 4 * 4, words[random_below(sizeof words / sizeof words[0])]);
      break;
    case 4: put_word(file, at / 4 * 4, word_at(file, at / 4 * 4) + random_below(5) - 2); break;
    case 5: memmove(file->data + at, file->data + other, n); break;
    default: put_word(file, at / 4 * 4, word_at(file, other / 4 * 4)); break;
  }
}

/* Native code is trusted: what is damaged there must not run, so it is put back. */
static void keep_image(bytes *file, const bytes *from) {
  for (uint32_t i = 0; i < word_at(from, 24) && file->size == from->size; i++) {
    size_t entry = 32 + 24 * (size_t)i;
    if ((word_at(from, entry) & 0xffff) != 5) continue;
    uint32_t offset = word_at(from, entry + 8), length = word_at(from, entry + 16);
    memcpy(file->data + entry, from->data + entry, 24);
    memcpy(file->data + offset, from->data + offset, length);
  }
}

/* Trying --------------------------------------------------------------------------------------- */

static const bytes *trying;

/* Keeps what was being tried. */
static void on_failure(int number) {
  FILE *out = fopen("fuzz-failure.eki", "wb");
  if (out != NULL && trying != NULL) fwrite(trying->data, 1, trying->size, out);
  if (out != NULL) fclose(out);
  signal(number, SIG_DFL);
  raise(number);
}

/* Whether the file loads; then it has run. */
static bool loads_and_runs(const bytes *file) {
  ek_object *executable = NULL;
  trying = file;
  if (ek_executable_from_bytes(file->data, file->size, 1, &executable) != 0) {
    drop_error();
    return false;
  }
  run_all(executable);
  ek_object_release(executable);
  return true;
}

/* Whether a machine stands where the state says; then it has gone on. */
static bool goes_on(ek_object *vm, const bytes *file) {
  trying = file;
  ek_vm *machine = (ek_vm *)(void *)vm;
  ek_bytes span = {(const char *)file->data, file->size};
  ek_value none = ek_value_none();
  CHECK(ek_vm_acquire(machine, "resume", span) == 0);
  bool is_good = ek_vm_resume(machine, span) == 0;
  if (is_good) finish(machine);
  else (void)ek_vm_end(machine, &none);
  drop_error();
  return is_good;
}

/* The files ------------------------------------------------------------------------------------ */

static const int64_t shape[] = {2, 3};
static const int64_t values[] = {1, 2, 3, 4, 5, 6};

static bytes copy_of(const void *data, size_t size) {
  bytes copy = {0};
  add(&copy, data, size);
  return copy;
}

/* The file of a program with all instructions; with the image, or as two variants, of which the
** first is not for this machine. */
static bytes all_instructions(const image_bytes *image, const image_bytes *other) {
  program p = {
      .functions =
          {{"main", 1, 8,
            WORDS(LoadConsti, 1, 0, 0, LoadConst, 2, 0, If, 0, 1, 2, 1, Ret, 2, LoadConsti, 3, 64,
                  0, AllocStorage, 4, 3, 0, 64, 0, LoadConsti, 3, 0, 0, AllocTensorReg, 5, 4, 3, 0,
                  2, 0, 2, EK_DTYPE_INT, 64, 1, AllocTensor, 6, 4, 0, 0, EK_DTYPE_INT, 64, 1, 1, 1,
                  0, InvokePacked, 1, 2, 1, 0, 6, Invoke, 1, 1, 1, 0, Ret, 5)},
           {"loop", 1, 6,
            WORDS(AllocADT, 1, 3, 2, 0, -1, GetTag, 2, 1, GetField, 3, 1, 1, AllocClosure, 4, 2, 1,
                  3, InvokeClosure, 5, 4, 1, 0, Move, 2, -6, KillRegister, 1, Ret, 2)},
           {"add", 2, 5,
            WORDS(LoadConst, 2, 1, ShapeOf, 3, 2, ReshapeTensor, 4, 2, 3, 0, 1, Own, 3, -5, 0, DeviceCopy, 3, 4,
                  0, 0, InvokePacked, 0, 0, 0, InvokePackedScratch, 0, 0, 0, 2, ReadElement, 1, 2, 1, Ret, 3)},
           {"tail", 2, 4,
            WORDS(AllocClosure, 2, 3, 1, 0, Switch, 1, 3, 1, 2, 3, Fatal, InvokeTail, 4, 1, 1,
                  InvokeClosureTail, 2, 1, 0, Goto, -2)},
           {"refs", 1, 4,
            WORDS(LoadConsti, 2, 64, 0, AllocArena, 3, 2, 0, 64, 0, AllocRef, 1, 0, ReadRef, 2, 1, InvokePackedValue, 3, 0, 1, 2, AllocADT, 3, 1, 2,
                  -4, 1, Ret, 3)},
           {"cycle", 1, 3, WORDS(AllocRef, 1, -1, WriteRef, 1, 2, Ret, 1)}},
      .constants = {{shape, 2}, {values, 6}},
      .primitives = {"answer", "ek.test.add"},
      .image = other == NULL ? image->bytes : NULL,
      .image_size = image->size,
      .variants = {other == NULL ? NULL : other->bytes, image->bytes},
      .variant_size = image->size};
  return program_file(&p);
}

static void damage(bytes *file) {
  for (uint32_t n = random_below(4) + 1; n > 0; n--) change(file);
  if (random_below(16) == 0) file->size = random_below(file->size);
}

/* One more damaged program, or image; whether it loaded. One in four with damaged native code, or
** words on what that needs, does not run. */
static bool try_program(const bytes *seed, const bytes *image) {
  const bytes *from = random_below(8) == 0 ? image : seed;
  bytes file = copy_of(from->data, from->size);
  bool runs = from == seed && random_below(4) != 0;
  damage(&file);
  if (runs) keep_image(&file, from);
  if (random_below(4) != 0) mend(&file);
  bytes exact = copy_of(file.data, file.size); /* so that a read past the end is seen */
  trying = &exact;
  LLVMFuzzerTestOneInput(exact.data, exact.size);
  bool loaded = runs && exact.size != 0 && loads_and_runs(&exact);
  free(exact.data);
  free(file.data);
  return loaded;
}

/* The state of a machine after some instructions of the program. */
static bytes state_after(ek_object *vm, int32_t number, int64_t steps) {
  ek_vm *machine = (ek_vm *)(void *)vm;
  ek_value args[2] = {ek_value_int(0), ek_value_int(0)}, result = ek_value_none();
  ek_value state_value = ek_value_none();
  ek_bytes span;
  int32_t n = machine->executable->functions[number].n_params;
  CHECK(ek_vm_begin(machine, number, args, n, false) == 0);
  CHECK(ek_vm_step(machine, steps, NULL) == EK_VM_PAUSED);
  CHECK(ek_vm_save(machine, &state_value) == 0 && ek_string_borrow(&state_value, &span));
  bytes copy = copy_of(span.data, span.size);
  ek_value_release(&state_value);
  ek_vm_unwind(machine);
  CHECK(ek_vm_end(machine, &result) == 0);
  return copy;
}

static bool try_state(ek_object *vm, const bytes *seed) {
  bytes file = copy_of(seed->data, seed->size);
  damage(&file);
  if (random_below(8) != 0 && file.size > 48) { /* past the header, with a good checksum */
    memcpy(file.data, seed->data, 48);
    put_word(&file, 12, ek_crc32(file.data + 16, file.size - 16));
  }
  bytes exact = copy_of(file.data, file.size);
  bool is_good = goes_on(vm, &exact);
  free(exact.data);
  free(file.data);
  return is_good;
}

int main(int argc, char **argv) {
  long long runs = argc > 1 ? atoll(argv[1]) : 2000, loaded = 0, resumed = 0;
  image_bytes image = make_image_for(0, "x86-64 sse4_1"), other = make_image_for(1, "cortex-a72");
  bytes file = all_instructions(&image, NULL), image_file = copy_of(image.bytes, image.size);
  bytes variants = all_instructions(&image, &other);
  ek_object *executable, *vm;
  state = argc > 2 ? (uint64_t)atoll(argv[2]) : 1;
  signal(SIGABRT, on_failure);
  signal(SIGSEGV, on_failure);
#ifndef __SANITIZE_ADDRESS__
  struct rlimit limit = {(rlim_t)2 << 30, (rlim_t)2 << 30};
  setrlimit(RLIMIT_AS, &limit);
#endif
  register_test_add();
  ek_num_threads(1);
  CHECK(loads_and_runs(&file) || (fprintf(stderr, "the seed does not load\n"), false));
  CHECK(loads_and_runs(&variants));
  CHECK(ek_executable_from_bytes(file.data, file.size, 1, &executable) == 0);
  CHECK(ek_vm_new(executable, &vm) == 0);
  bytes states[3] = {state_after(vm, 0, 8), state_after(vm, 1, 5), state_after(vm, 4, 6)};
  for (long long run = 0; run < runs; run++) {
    loaded += try_program(run % 2 == 0 ? &file : &variants, &image_file);
    if (!IS_HARD) resumed += try_state(vm, &states[run % 3]); /* may hold a cycle */
    if (run % 64 == 0) ek_pool_trim();
  }
  ek_object_release(vm);
  ek_object_release(executable);
  for (int i = 0; i < 3; i++) free(states[i].data);
  free(file.data);
  free(variants.data);
  free(image_file.data);
  printf("%lld damaged programs and states: %lld loaded, %lld resumed\n", runs, loaded, resumed);
  return 0;
}
#endif
