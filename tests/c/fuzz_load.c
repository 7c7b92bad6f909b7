/* For libFuzzer: any bytes are loaded or refused, and what loads can be taken apart.
**
**     clang -g -O1 -D_GNU_SOURCE -fsanitize=fuzzer,address,undefined -Iruntime/include \
**           runtime/src/[a-z]*.c tests/c/fuzz_load.c -pthread -ldl -o fuzz_load
**
** Checksums stop most damage at the door; '-max_len' and a corpus of saved artifacts help less than
** the mended damage of test_executable.c, which reaches the readers behind them.
*/
#include <stddef.h>
#include <stdint.h>

#include "ekiden/runtime.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  ek_object *executable = NULL;
  if (ek_executable_from_bytes(data, size, 1, &executable) != 0) {
    ek_object_release(ek_error_take());
    return 0;
  }
  for (int32_t part = EK_PART_GLOBAL; part <= EK_PART_FILE; part++) {
    int64_t count = ek_executable_count(executable, part);
    for (int64_t i = 0; i < count; i++) {
      ek_value item = {EK_NONE, 0, {0}};
      if (ek_executable_item(executable, part, i, &item) == 0) ek_value_release(&item);
    }
  }
  ek_object_release(executable);
  return 0;
}
