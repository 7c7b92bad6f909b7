/* CPU feature detection by CPUID or its equivalent, so that /proc is not required. */
#include "ek_cpu.h"

#include <stdint.h>
#include <string.h>

#include "ek_platform.h"

/* Registers that the system must keep for an ability's instructions. */
enum { NEEDS_NONE, NEEDS_YMM, NEEDS_ZMM, NEEDS_TILE, STATES };

typedef struct ability {
  char name[22];
  uint8_t word, bit;           /* of what 'ask' finds */
  uint8_t needs;
} ability;

#include "ek_cpu_table.h"

static ek_once asked = EK_ONCE_INIT;
static bool is_kept[STATES] = {true};

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

static uint32_t words[WORDS];

enum {
  OSXSAVE = 1 << 27,
  YMM_STATE = 0x06,
  ZMM_STATE = 0xe6,
  TILE_STATE = 0x60000,
  ASK_FOR_STATE = 0x1023,      /* ARCH_REQ_XCOMP_PERM */
  TILE_DATA = 18
};

/* Linux gives a process registers for tiles when it asks; the threads it starts later have them. */
static bool may_use_tiles(void) {
#if defined(__linux__)
  return syscall(SYS_arch_prctl, ASK_FOR_STATE, TILE_DATA) == 0;
#else
  return false;
#endif
}

static void ask(void) {
  uint32_t a, b, c, d, last = 0, state = 0;
  __get_cpuid(1, &a, &b, &words[0], &d);
  __get_cpuid_count(7, 0, &last, &words[1], &words[2], &words[3]);
  if (last >= 1) __get_cpuid_count(7, 1, &words[4], &b, &c, &words[5]);
  __get_cpuid(0x80000001, &a, &b, &words[6], &d);
  if (words[0] & OSXSAVE) __asm__("xgetbv" : "=a"(state), "=d"(d) : "c"(0));
  is_kept[NEEDS_YMM] = (state & YMM_STATE) == YMM_STATE;
  is_kept[NEEDS_ZMM] = (state & ZMM_STATE) == ZMM_STATE;
  is_kept[NEEDS_TILE] = (state & TILE_STATE) == TILE_STATE && may_use_tiles();
}
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

static uint32_t words[WORDS];

static void ask(void) {
  uint64_t first = getauxval(AT_HWCAP);
  words[0] = (uint32_t)first;
  words[1] = (uint32_t)(first >> 32);
  words[2] = (uint32_t)getauxval(AT_HWCAP2);
}
#elif defined(__arm__) && defined(__linux__)
#include <sys/auxv.h>

static uint32_t words[WORDS];

static void ask(void) {
  words[0] = (uint32_t)getauxval(AT_HWCAP);
  words[1] = (uint32_t)getauxval(AT_HWCAP2);
}
#elif defined(__riscv) && defined(__linux__)
#include <sys/auxv.h>

static uint32_t words[WORDS];

static void ask(void) { words[0] = (uint32_t)getauxval(AT_HWCAP); }
#elif defined(__wasm32__)
static uint32_t words[WORDS];

static void ask(void) { words[0] = ek_host_features(); }
#else
static const ability abilities[1];
static uint32_t words[1];

static void ask(void) {}
#endif

bool ek_cpu_has(const char *name, size_t size) {
  ek_call_once(&asked, ask);
  for (size_t i = 0; i < sizeof abilities / sizeof abilities[0]; i++) {
    const ability *each = &abilities[i];
    if (strlen(each->name) != size || memcmp(each->name, name, size) != 0) continue;
    return is_kept[each->needs] && (words[each->word] >> each->bit & 1);
  }
  return false;
}
