/* Register tiles of int8 matrix products, compiled once per processor class.
**
** Rows of the left factor are int8 values widened to int16. Weights are stored as words, one
** word per column of a panel: four or two consecutive int8 values along k, or two int16.
**
** Products are exact, since int8 is widened to int16 first: PMADDWD adds two products into an int32
** without saturation. A word of four int8 gives two partial sums, which are added at the end.
*/
#include "general_class.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX2__)

typedef __m256i words;

static inline words widened(const int8_t *from) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)from));
}

static inline words loaded(const int16_t *from) {
  return _mm256_loadu_si256((const __m256i *)(const void *)from);
}

static inline words repeated(const int16_t *from) {
  int64_t bits;
  memcpy(&bits, from, sizeof bits);
  return _mm256_set1_epi64x(bits);
}

static inline words repeated_pair(const int16_t *from) {
  int32_t bits;
  memcpy(&bits, from, sizeof bits);
  return _mm256_set1_epi32(bits);
}

static inline words with_sums(words sum, words a, words b) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
}

/* Columns 0 1 | 2 3 and 4 5 | 6 7, two sums of each: their sums in order. */
static inline void store_sums(words low, words high, word *out) {
  words sums = _mm256_permute4x64_epi64(_mm256_hadd_epi32(low, high), 0xd8);
  memcpy(out, &sums, sizeof sums);
}

#elif defined(__SSE4_1__)

typedef __m128i words;

static inline words widened(const int8_t *from) {
  return _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)from));
}

static inline words loaded(const int16_t *from) {
  return _mm_loadu_si128((const __m128i *)(const void *)from);
}

static inline words repeated(const int16_t *from) {
  int64_t bits;
  memcpy(&bits, from, sizeof bits);
  return _mm_set1_epi64x(bits);
}

static inline words repeated_pair(const int16_t *from) {
  int32_t bits;
  memcpy(&bits, from, sizeof bits);
  return _mm_set1_epi32(bits);
}

static inline words with_sums(words sum, words a, words b) {
  return _mm_add_epi32(sum, _mm_madd_epi16(a, b));
}

static inline void store_sums(words low, words high, word *out) {
  words sums = _mm_hadd_epi32(low, high);
  memcpy(out, &sums, sizeof sums);
}

#endif

#if defined(__SSE4_1__)

#define TILE(name, R)                                                                           \
  static void name(const void *const *left, const int64_t *left_at, int64_t depth,              \
                   const void *right, const int64_t *right_at, word *out) {                     \
    words sum[R][2];                                                                            \
    memset(sum, 0, sizeof sum);                                                                 \
    for (int64_t k = 0; k < depth; k++) {                                                       \
      const int8_t *from = (const int8_t *)right + right_at[k];                                 \
      words low = widened(from), high = widened(from + 2 * WORD_COLUMNS);                       \
      _Pragma("GCC unroll 4") for (int i = 0; i < R; i++) {                                     \
        words each = repeated((const int16_t *)left[i] + left_at[k]);                           \
        sum[i][0] = with_sums(sum[i][0], low, each);                                            \
        sum[i][1] = with_sums(sum[i][1], high, each);                                           \
      }                                                                                         \
    }                                                                                           \
    _Pragma("GCC unroll 4") for (int i = 0; i < R; i++)                                         \
      store_sums(sum[i][0], sum[i][1], out + i * WORD_COLUMNS);                                 \
  }

#define PAIR_TILE(name, R, element, LOAD)                                                       \
  static void name(const void *const *left, const int64_t *left_at, int64_t depth,              \
                   const void *right, const int64_t *right_at, word *out) {                     \
    words sum[R];                                                                               \
    memset(sum, 0, sizeof sum);                                                                 \
    for (int64_t k = 0; k < depth; k++) {                                                       \
      words pairs = LOAD((const element *)right + right_at[k]);                                 \
      _Pragma("GCC unroll 4") for (int i = 0; i < R; i++) {                                     \
        sum[i] = with_sums(sum[i], pairs, repeated_pair((const int16_t *)left[i] + left_at[k])); \
      }                                                                                         \
    }                                                                                           \
    memcpy(out, sum, sizeof sum);                                                               \
  }

#else

#define SCALAR_TILE(name, R, element, PER_WORD)                                                 \
  static void name(const void *const *left, const int64_t *left_at, int64_t depth,              \
                   const void *right, const int64_t *right_at, word *out) {                     \
    int32_t sum[R][WORD_COLUMNS] = {{0}};                                                       \
    for (int64_t k = 0; k < depth; k++) {                                                       \
      const element *from = (const element *)right + right_at[k];                               \
      for (int i = 0; i < R; i++) {                                                             \
        const int16_t *row = (const int16_t *)left[i] + left_at[k];                             \
        for (int j = 0; j < WORD_COLUMNS; j++) {                                                \
          for (int t = 0; t < PER_WORD; t++) sum[i][j] += row[t] * from[PER_WORD * j + t];      \
        }                                                                                       \
      }                                                                                         \
    }                                                                                           \
    memcpy(out, sum, sizeof sum);                                                               \
  }
#define TILE(name, R) SCALAR_TILE(name, R, int8_t, WORD_BYTES)
#define PAIR_TILE(name, R, element, LOAD) SCALAR_TILE(name, R, element, WORD_PAIR)

#endif

TILE(all_words, WORD_ROWS)
TILE(two_words, 2)
TILE(one_word, 1)

PAIR_TILE(all_pairs, WORD_ROWS, int16_t, loaded)
PAIR_TILE(two_pairs, 2, int16_t, loaded)
PAIR_TILE(one_pair, 1, int16_t, loaded)

PAIR_TILE(all_byte_pairs, WORD_ROWS, int8_t, widened)
PAIR_TILE(two_byte_pairs, 2, int8_t, widened)
PAIR_TILE(one_byte_pair, 1, int8_t, widened)

tile *const word_tiles[3][3] = {[FOUR_INT8] = {all_words, two_words, one_word},
                                [TWO_INT16] = {all_pairs, two_pairs, one_pair},
                                [TWO_INT8] = {all_byte_pairs, two_byte_pairs, one_byte_pair}};
