/* What this machine's processor can do, asked of it and not of /proc, which need not be there. */
#include "ek_cpu.h"

#include <stdint.h>
#include <string.h>

#include "ek_platform.h"

typedef struct ability {
  char name[17];
  uint8_t at;                  /* 32 * word + bit of what 'ask' finds */
} ability;

enum { WORDS = 6 };

static uint32_t words[WORDS];
static size_t n_usable;        /* so many of the abilities have registers that are kept */
static ek_once asked = EK_ONCE_INIT;

#if defined(__x86_64__)
#include <cpuid.h>

/* Words: 1.ecx, 7.ebx, 7.ecx, 7.edx, 7.1.eax and 80000001.ecx. Those that need wide registers stand
** last, the widest behind the others. */
static const ability abilities[] = {
    {"pclmulqdq", 1},         {"sse4_1", 19},          {"pni", 0},
    {"ssse3", 9},             {"sse4_2", 20},          {"movbe", 22},
    {"popcnt", 23},           {"bmi1", 32 + 3},        {"bmi2", 32 + 8},
    {"gfni", 64 + 8},         {"abm", 160 + 5},        {"sse4a", 160 + 6},
    {"avx", 28},              {"fma", 12},             {"f16c", 29},
    {"avx2", 32 + 5},         {"avx_vnni", 128 + 4},   {"avx512f", 32 + 16},
    {"avx512dq", 32 + 17},    {"avx512ifma", 32 + 21}, {"avx512cd", 32 + 28},
    {"avx512bw", 32 + 30},    {"avx512vl", 32 + 31},   {"avx512vbmi", 64 + 1},
    {"avx512_vbmi2", 64 + 6}, {"avx512_vnni", 64 + 11}, {"avx512_bitalg", 64 + 12},
    {"avx512_vpopcntdq", 64 + 14}, {"avx512_fp16", 96 + 23}, {"avx512_bf16", 128 + 5}};

enum {
  N_ABILITIES = sizeof abilities / sizeof abilities[0],
  FIRST_YMM = 12,
  FIRST_ZMM = 17,
  OSXSAVE = 1 << 27,
  YMM_STATE = 0x06,
  ZMM_STATE = 0xe6
};

static void ask(void) {
  uint32_t a, b, d, state = 0;
  __get_cpuid(1, &a, &b, &words[0], &d);
  __get_cpuid_count(7, 0, &a, &words[1], &words[2], &words[3]);
  __get_cpuid_count(7, 1, &words[4], &b, &d, &d);
  __get_cpuid(0x80000001, &a, &b, &words[5], &d);
  if (words[0] & OSXSAVE) __asm__("xgetbv" : "=a"(state), "=d"(d) : "c"(0));
  n_usable = (state & ZMM_STATE) == ZMM_STATE   ? N_ABILITIES
             : (state & YMM_STATE) == YMM_STATE ? FIRST_ZMM
                                                : FIRST_YMM;
}
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

/* Words: HWCAP, then HWCAP2. */
static const ability abilities[] = {{"asimdhp", 10},  {"sha3", 17},     {"asimddp", 20},
                                    {"sve", 22},      {"asimdfhm", 23}, {"flagm", 27},
                                    {"sve2", 64 + 1}, {"i8mm", 64 + 13}, {"bf16", 64 + 14}};

static void ask(void) {
  words[0] = (uint32_t)getauxval(AT_HWCAP);
  words[2] = (uint32_t)getauxval(AT_HWCAP2);
  n_usable = sizeof abilities / sizeof abilities[0];
}
#else
static const ability abilities[1];

static void ask(void) {}
#endif

bool ek_cpu_has(const char *name, size_t size) {
  ek_call_once(&asked, ask);
  for (size_t i = 0; i < n_usable; i++) {
    const ability *each = &abilities[i];
    if (strlen(each->name) != size || memcmp(each->name, name, size) != 0) continue;
    return words[each->at / 32] >> (each->at % 32) & 1;
  }
  return false;
}
