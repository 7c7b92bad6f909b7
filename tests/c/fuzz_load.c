/* Any bytes are loaded or refused; what loads can be taken apart, and run without harm.
**
** With libFuzzer, where there is clang:
**     clang -g -O1 -D_GNU_SOURCE -DEK_LIBFUZZER -fsanitize=fuzzer,address,undefined \
**           -Iruntime/include -Iruntime/src -Itests/c runtime/src/[a-z]*.c tests/c/fuzz_load.c \
**           -pthread -ldl -o fuzz_load
**
** Without, this has a main of its own: "fuzz_load RUNS SEED" damages files made here RUNS times.
** Checksums would stop most damage at the door, so they are mended three times in four. Programs
** that load run in a process of their own, for damage can make loops endless.
*/
#include "image.h"
#include "program.h"

#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
#define EK_OPCODE(name, text, format, operands, meaning) name = EK_OP_##name,
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
    ek_object_release(object);
  }
  drop_error();
  return 0;
}

#ifndef EK_LIBFUZZER

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
    if (word_at(from, entry) != 5) continue;
    uint32_t offset = word_at(from, entry + 8), length = word_at(from, entry + 16);
    memcpy(file->data + entry, from->data + entry, 24);
    memcpy(file->data + offset, from->data + offset, length);
  }
}

/* Running -------------------------------------------------------------------------------------- */

static void run_all(const bytes *file) {
  ek_object *executable = NULL, *vm = NULL;
  if (ek_executable_from_bytes(file->data, file->size, 1, &executable) != 0) return;
  if (ek_vm_new(executable, &vm) != 0) return;
  for (int32_t i = 0; i < ek_executable_count(executable, EK_PART_GLOBAL); i++) {
    ek_value args[4] = {ek_value_int(3), ek_value_int(-1), ek_value_int(0), ek_value_int(1)};
    ek_value params = ek_value_none(), result = ek_value_none();
    CHECK(ek_executable_item(executable, EK_PART_PARAMS, i, &params) == 0);
    int64_t n = ((ek_array *)(void *)params.v.obj)->size;
    ek_value_release(&params);
    if (n > 4) continue;
    if (ek_vm_invoke(vm, i, args, (int32_t)n, &result) == 0) ek_value_release(&result);
    drop_error();
  }
  ek_object_release(vm);
  ek_object_release(executable);
}

/* Whether the file loads; then it has run, and what is too long was stopped. */
static bool loads_and_runs(const bytes *file) {
  ek_object *executable = NULL;
  if (ek_executable_from_bytes(file->data, file->size, 1, &executable) != 0) {
    drop_error();
    return false;
  }
  take_apart(executable);
  ek_object_release(executable);
  int status = 0;
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    struct itimerval limit = {{0, 0}, {0, 100000}}; /* of the processor's time */
    setitimer(ITIMER_VIRTUAL, &limit, NULL);
    run_all(file);
    _exit(0);
  }
  CHECK(waitpid(child, &status, 0) == child);
  bool is_fine = (WIFEXITED(status) && WEXITSTATUS(status) == 0) ||
                 (WIFSIGNALED(status) && WTERMSIG(status) == SIGVTALRM);
  if (!is_fine) {
    FILE *out = fopen("fuzz-failure.eki", "wb");
    if (out != NULL) fwrite(file->data, 1, file->size, out);
    if (out != NULL) fclose(out);
    fprintf(stderr, "a damaged program fails with status %d; see fuzz-failure.eki\n", status);
    exit(1);
  }
  return true;
}

/* The files ------------------------------------------------------------------------------------ */

static const int64_t shape[] = {2, 3};
static const int64_t values[] = {1, 2, 3, 4, 5, 6};

static bytes copy_of(const void *data, size_t size) {
  bytes copy = {0};
  add(&copy, data, size);
  return copy;
}

int main(int argc, char **argv) {
  long long runs = argc > 1 ? atoll(argv[1]) : 2000, loaded = 0;
  image_bytes image = make_image();
  program p = {
      .functions =
          {{"main", 1, 8,
            WORDS(LoadConsti, 1, 0, 0, LoadConst, 2, 0, If, 0, 1, 2, 1, Ret, 2, LoadConsti, 3, 64,
                  0, AllocStorage, 4, 3, 0, 64, 0, LoadConsti, 3, 0, 0, AllocTensorReg, 5, 4, 3, 0,
                  2, 0, 2, EK_DTYPE_INT, 64, 1, AllocTensor, 6, 4, 0, 0, EK_DTYPE_INT, 64, 1, 1, 2,
                  0, Invoke, 1, 1, 1, 0, Ret, 5)},
           {"loop", 1, 6,
            WORDS(AllocADT, 1, 3, 2, 0, 0, GetTag, 2, 1, GetField, 3, 1, 1, AllocClosure, 4, 2, 1,
                  3, InvokeClosure, 5, 4, 1, 0, Move, 2, 5, KillRegister, 1, Ret, 2)},
           {"add", 2, 5,
            WORDS(LoadConst, 2, 1, ShapeOf, 3, 2, ReshapeTensor, 4, 2, 3, 0, 1, DeviceCopy, 3, 4,
                  0, 0, InvokePacked, 0, 0, 0, Ret, 3)}},
      .constants = {{shape, 2}, {values, 6}},
      .primitives = {"answer"},
      .image = image.bytes,
      .image_size = image.size};
  bytes seeds[2] = {program_file(&p), copy_of(image.bytes, image.size)};
  state = argc > 2 ? (uint64_t)atoll(argv[2]) : 1;
  ek_num_threads(1);
  loaded += loads_and_runs(&seeds[0]);
  CHECK(loaded == 1 || (fprintf(stderr, "the seed does not load\n"), false));
  for (long long run = 0; run < runs; run++) {
    const bytes *from = &seeds[run % 8 == 0];
    bytes file = copy_of(from->data, from->size);
    for (uint32_t n = random_below(4) + 1; n > 0; n--) change(&file);
    if (random_below(16) == 0) file.size = random_below(file.size);
    if (from == &seeds[0]) keep_image(&file, from);
    if (random_below(4) != 0) mend(&file);
    bytes exact = copy_of(file.data, file.size); /* so that a read past the end is seen */
    LLVMFuzzerTestOneInput(exact.data, exact.size);
    if (from == &seeds[0] && exact.size != 0) loaded += loads_and_runs(&exact);
    free(exact.data);
    free(file.data);
  }
  free(seeds[0].data);
  free(seeds[1].data);
  printf("%lld damaged files, of which %lld loaded and ran\n", runs, loaded);
  return 0;
}
#endif
