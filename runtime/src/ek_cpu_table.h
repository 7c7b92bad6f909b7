/* What processors may have, by the names of /proc/cpuinfo; included by ek_cpu.c alone.
**
** Generated from src/ekiden/target/features.py by scripts/generate_cpu.py. Do not edit. */

#if defined(__x86_64__)

/* Words: 1.ecx, 7.ebx, 7.ecx, 7.edx, 7.1.eax, 7.1.edx, 80000001.ecx. */
enum { WORDS = 7 };

static const ability abilities[] = {
    {"pni", 0, 0, NEEDS_NONE},
    {"pclmulqdq", 0, 1, NEEDS_NONE},
    {"ssse3", 0, 9, NEEDS_NONE},
    {"sse4_1", 0, 19, NEEDS_NONE},
    {"sse4_2", 0, 20, NEEDS_NONE},
    {"movbe", 0, 22, NEEDS_NONE},
    {"popcnt", 0, 23, NEEDS_NONE},
    {"bmi1", 1, 3, NEEDS_NONE},
    {"bmi2", 1, 8, NEEDS_NONE},
    {"gfni", 2, 8, NEEDS_NONE},
    {"abm", 6, 5, NEEDS_NONE},
    {"sse4a", 6, 6, NEEDS_NONE},
    {"avx", 0, 28, NEEDS_YMM},
    {"fma", 0, 12, NEEDS_YMM},
    {"f16c", 0, 29, NEEDS_YMM},
    {"avx2", 1, 5, NEEDS_YMM},
    {"avx_vnni", 4, 4, NEEDS_YMM},
    {"avx_ifma", 4, 23, NEEDS_YMM},
    {"avx_vnni_int8", 5, 4, NEEDS_YMM},
    {"avx_ne_convert", 5, 5, NEEDS_YMM},
    {"avx_vnni_int16", 5, 10, NEEDS_YMM},
    {"avx512f", 1, 16, NEEDS_ZMM},
    {"avx512dq", 1, 17, NEEDS_ZMM},
    {"avx512ifma", 1, 21, NEEDS_ZMM},
    {"avx512cd", 1, 28, NEEDS_ZMM},
    {"avx512bw", 1, 30, NEEDS_ZMM},
    {"avx512vl", 1, 31, NEEDS_ZMM},
    {"avx512vbmi", 2, 1, NEEDS_ZMM},
    {"avx512_vbmi2", 2, 6, NEEDS_ZMM},
    {"avx512_vnni", 2, 11, NEEDS_ZMM},
    {"avx512_bitalg", 2, 12, NEEDS_ZMM},
    {"avx512_vpopcntdq", 2, 14, NEEDS_ZMM},
    {"avx512_vp2intersect", 3, 8, NEEDS_ZMM},
    {"avx512_fp16", 3, 23, NEEDS_ZMM},
    {"avx512_bf16", 4, 5, NEEDS_ZMM},
    {"amx_bf16", 3, 22, NEEDS_TILE},
    {"amx_tile", 3, 24, NEEDS_TILE},
    {"amx_int8", 3, 25, NEEDS_TILE},
    {"amx_fp16", 4, 21, NEEDS_TILE},
};

#elif defined(__aarch64__) && defined(__linux__)

/* Words: hwcap, hwcap.high, hwcap2. */
enum { WORDS = 3 };

static const ability abilities[] = {
    {"asimdhp", 0, 10, NEEDS_NONE},
    {"asimdrdm", 0, 12, NEEDS_NONE},
    {"sha3", 0, 17, NEEDS_NONE},
    {"asimddp", 0, 20, NEEDS_NONE},
    {"sve", 0, 22, NEEDS_NONE},
    {"asimdfhm", 0, 23, NEEDS_NONE},
    {"flagm", 0, 27, NEEDS_NONE},
    {"sve2", 2, 1, NEEDS_NONE},
    {"i8mm", 2, 13, NEEDS_NONE},
    {"bf16", 2, 14, NEEDS_NONE},
};

#elif defined(__riscv) && defined(__linux__)

/* Words: hwcap. */
enum { WORDS = 1 };

static const ability abilities[] = {
    {"v", 0, 21, NEEDS_NONE},
};

#elif defined(__arm__) && defined(__linux__)

/* Words: hwcap, hwcap2. */
enum { WORDS = 2 };

static const ability abilities[] = {
    {"vfpv4", 0, 16, NEEDS_NONE},
    {"idiva", 0, 17, NEEDS_NONE},
    {"crc32", 1, 4, NEEDS_NONE},
};

#elif defined(__wasm32__)

/* Words: features. */
enum { WORDS = 1 };

static const ability abilities[] = {
    {"simd128", 0, 0, NEEDS_NONE},
    {"relaxed_simd", 0, 1, NEEDS_NONE},
};

#endif
