/* Shared by the files that are compiled once per processor class (CLASS names it): strips, and the
** loops that interpret code on them.
*/
#ifndef EKIDEN_GENERAL_CLASS_H_
#define EKIDEN_GENERAL_CLASS_H_

#include "general.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

/* The elements of 32 bits of a vector register, and how many rows of one, two and three of them are
** summed up at once, so that all sums stay in registers. */
#if defined(__AVX512F__)
enum { LANES = 16, ROWS_1 = 8, ROWS_2 = 8, ROWS_3 = 8 };
#elif defined(__AVX__)
enum { LANES = 8, ROWS_1 = 8, ROWS_2 = 6, ROWS_3 = 4 };
#elif defined(__aarch64__)
enum { LANES = 4, ROWS_1 = 8, ROWS_2 = 8, ROWS_3 = 8 };
#else
enum { LANES = 4, ROWS_1 = 8, ROWS_2 = 6, ROWS_3 = 4 };
#endif
/* Of products of bytes: columns and rows of a tile, and the forms of a word of a panel, by its
** elements. */
#if defined(__AVX2__)
enum { WORD_COLUMNS = 8 };
#else
enum { WORD_COLUMNS = 4 };
#endif
enum { WORD_ROWS = 4, WORD_BYTES = 4, WORD_PAIR = 2 };
enum word_form { FOUR_INT8, TWO_INT16, TWO_INT8 };
enum { STRIP = 256, VECTOR = 16, MOST_ROWS = 8, MOST_VECTORS = 3, BLOCK_ROWS = 24, FEW_TASKS = 16 };

typedef union strip {
  float f[STRIP];
  double d[STRIP];
  int64_t i[STRIP];
} strip __attribute__((aligned(64)));

typedef struct load {
  int64_t steps[MAX_AXES], offset, buffer, elements;
  int32_t type;
  bool is_guarded;
} load;

/* A code with its numbers, and the axes as they are run. */
typedef struct loops {
  const run *r;
  const code *c;
  int32_t n_axes, n_spatial, lane; /* all axes, those that are not reduced, the lane axis or -1 */
  int32_t outer;                   /* an axis of which a strip takes several, or -1 */
  int64_t per_strip;               /* so many of it, each with all of the lane axis */
  int64_t length;                  /* of a strip along the lane axis alone, but for the last */
  int64_t extents[MAX_AXES];
  int64_t out_steps[MAX_RESULTS][MAX_AXES], out_offsets[MAX_RESULTS];
  load *loads;                             /* owned: working memory */
  bool is_same[MAX_INSTRUCTIONS];          /* whether all lanes of its result are equal */
  bool is_single[MAX_INSTRUCTIONS];        /* whether only the first of them is asked for */
  bool is_near[MAX_INSTRUCTIONS];          /* a load whose further offset is one for all lanes */
  int64_t n_results;
} loops;

/* Strips are the same or apart: where a result takes an operand's register, lanes stay independent,
** which no check of addresses would find. */
#define EACH _Pragma("GCC ivdep") for (int64_t l = 0; l < n; l++)

/* Names of this class. */
#define OF_CLASS(name) JOIN(JOIN(ek_general_, CLASS), JOIN(_, name))
#define read_loops OF_CLASS(read_loops)
#define merge_axes OF_CLASS(merge_axes)
#define find_same OF_CLASS(find_same)
#define choose_outer OF_CLASS(choose_outer)
#define run_code OF_CLASS(run_code)
#define run_product OF_CLASS(run_product)
#define registers_of OF_CLASS(registers_of)
#define word_tiles OF_CLASS(word_tiles)
#define term_offsets OF_CLASS(term_offsets)
#define find_terms OF_CLASS(find_terms)
#define sum_terms OF_CLASS(sum_terms)

/* 0 or -1; p->loads is to be freed by ek_workspace_free either way. */
int read_loops(loops *p, const run *r, const stage *s, const code *c);

/* Makes neighbouring axes one where all see them as one: the outer one is then of extent 1. */
void merge_axes(loops *p, const stage *s, int32_t first, int32_t end);

/* What is equal in all lanes is computed once, unless one that is not works on it. */
void find_same(loops *p);

/* Lets strips of a short lane axis take several of another one from 'first' on. */
void choose_outer(loops *p, int32_t first);

/* The registers of a code, in which constants stand, and so many more; NULL without memory. */
strip *registers_of(const loops *p, int64_t more);

/* Runs the code on the n elements of a strip, the first of which 'at' is. */
void run_code(const loops *p, const int64_t *at, int64_t n, strip *R);

int run_product(const run *r, const stage *s);

/* Terms of sums: how far each lies from the first, in each of the loads, and the ends of that. */
typedef struct terms {
  int64_t n, n_loads, *at[2]; /* at[0] is owned: working memory */
  int64_t least[2], most[2];
} terms;

/* How far so many terms lie from the first, by axes and their steps, of which the last is the
** innermost. */
void term_offsets(const int64_t *extents, const int64_t *steps, int32_t n_axes, int64_t n,
                  int64_t *found);

/* The terms of a reduction of elements, or of a sum of products of two, that lie at the same
** distances for every result; false for what is not such, or without memory. */
bool find_terms(const loops *p, int64_t reducer, terms *t);

/* Reduces them for the n results of a strip; false where one of them lies outside of its buffer. */
bool sum_terms(const loops *p, const terms *t, int64_t reducer, const int64_t *at, int64_t n,
               strip *sum);

typedef union word {           /* an element of the factors of products and of sums */
  float f;
  int32_t i;
} word;

/* Sums of so many products in registers, for some rows and the columns of a chunk: terms of a row
** lie at left_at, those of a chunk at right_at. */
typedef void tile(const void *const *left, const int64_t *left_at, int64_t depth, const void *right,
                  const int64_t *right_at, word *out);

/* Of words of bytes: of WORD_ROWS, two rows and one; a term is a word. */
extern tile *const word_tiles[3][3]; /* by the form of a word, and by rows */

/* The position of a number in a range of axes without those that strips lie along. */
static inline void place(const loops *p, int64_t number, int32_t first, int32_t end, int64_t *at) {
  for (int32_t a = end - 1; a >= first; a--) {
    if (a == p->lane || a == p->outer) continue;
    at[a] = number % p->extents[a];
    number /= p->extents[a];
  }
}

static inline int64_t count(const loops *p, int32_t first, int32_t end) {
  int64_t n = 1;
  for (int32_t a = first; a < end; a++) n *= a == p->lane || a == p->outer ? 1 : p->extents[a];
  return n;
}

/* How many strips there are along the lane axis and the outer one. */
static inline int64_t strips_of(const loops *p) {
  if (p->outer >= 0) return (p->extents[p->outer] + p->per_strip - 1) / p->per_strip;
  return p->lane < 0 ? 1 : (p->extents[p->lane] + p->length - 1) / p->length;
}

/* Places one of those, and gives the number of its elements. */
static inline int64_t begin_strip(const loops *p, int64_t number, int64_t *at) {
  if (p->lane < 0) return 1;
  if (p->outer >= 0) {
    int64_t first = number * p->per_strip, left = p->extents[p->outer] - first;
    at[p->lane] = 0;
    at[p->outer] = first;
    return (left < p->per_strip ? left : p->per_strip) * p->extents[p->lane];
  }
  int64_t left = p->extents[p->lane] - number * p->length;
  at[p->lane] = number * p->length;
  return left < p->length ? left : p->length;
}

static inline int64_t out_at(const loops *p, int64_t result, const int64_t *at) {
  int64_t offset = p->out_offsets[result];
  for (int32_t a = 0; a < p->n_spatial; a++) offset += p->out_steps[result][a] * at[a];
  return offset;
}

#endif /* EKIDEN_GENERAL_CLASS_H_ */
