/* The programs of general kernels, as the compiler writes them: 64-bit words, read once.
**
**   word    3 2 1 ...   counts stand before what they count; everything else refers by number
**
**   program: MAGIC, VERSION
**            parameters:  n, then each: element type, rank, a size per dimension
**            symbols:     n, then each: parameter, dimension: where its value is read; parameter -1:
**                         the number of a turn
**            sizes:       n, then each: op, a, b, c: in order, of earlier ones; see size_op
**            buffers:     n, then each: element type, size (elements), n words of data, the data
**                         behind the parameters; with data they are constants, with none working
**                         memory, and with -1 - k the working memory of an earlier one, k
**            stages:      n, then each, in order
**   stage:   REPEAT, a size (turns), the symbol of a turn's number, how many stages behind it are
**            repeated, each turn after the other
**   stage:   kind, n spatial axes, n reduced axes, a size (extent) for each, reducer
**            results: n, then each: buffer, a size (stride) per spatial axis, size (offset)
**            code; a product has two codes, of its left and its right factor, then a role per
**            spatial axis, then how the right factor lies: see 'product'
**   stage:   CHECK, n axes, 0, a size for each, 0, n values, code; two texts: n words, which hold
**            one that ends with 0: the kind of an error, and its format. The first value is whether
**            all is well; where it is not, the others are what the format shows
**   code:    loads: n, then each: buffer, is guarded, a size (step) per axis, size (offset)
**            n registers, instructions: n, then each: op, kind, to, a, b, c
**            a register per result
*/
#ifndef EKIDEN_GENERAL_H_
#define EKIDEN_GENERAL_H_

#include <stdbool.h>
#include <stdint.h>

#include "ekiden/kernel.h"

enum { MAGIC = 0x454b4746, VERSION = 4, MAX_AXES = 16, MAX_SYMBOLS = 256, MAX_RESULTS = 16,
       MAX_INSTRUCTIONS = 4096, MAX_REGISTERS = 512 };

enum element { E_F32, E_F64, E_BOOL, E_I8, E_I16, E_I32, E_I64, E_U8, E_U16, E_U32, E_F16, E_BF16 };

/* Kind of a register's elements, whatever their type in memory. Half floats are float32 in
** registers, rounded by O_WRAP. */
enum kind { K_F32, K_F64, K_INT };

enum size_op { S_CONST, S_SYMBOL, S_ADD, S_SUB, S_MUL, S_DIV, S_FLOORDIV, S_FLOORMOD, S_MIN, S_MAX,
               S_EQ, S_NE, S_LT, S_LE, S_GT, S_GE, S_AND, S_OR, S_NOT, S_SELECT };

enum stage_kind { MAP, REDUCE, PRODUCT, REPEAT, CHECK };
enum reducer { R_SUM, R_PROD, R_MAX, R_MIN };
enum role { BATCH, ROWS, COLUMNS };

/* 'kind' is that of the result; of comparisons and conversions that of the operands. */
enum op {
  O_CONST,                     /* a: bits of a double, or an integer */
  O_SIZE,                      /* a: a size */
  O_AXIS,                      /* a: an axis */
  O_LOAD,                      /* a: a load; b: a register of more elements from the start, or -1 */
  O_ADD, O_SUB, O_MUL, O_DIV, O_FLOORDIV, O_FLOORMOD, O_MIN, O_MAX,
  O_EQ, O_NE, O_LT, O_LE, O_GT, O_GE,
  O_AND, O_OR, O_NOT,          /* of truths */
  O_SELECT,                    /* a ? b : c */
  O_TO_F32, O_TO_F64, O_TO_INT,/* from 'kind'; b of O_TO_INT: element */
  O_WRAP,                      /* b: element */
  O_EXP, O_LOG, O_SQRT, O_RSQRT, O_TANH, O_ERF, O_SIGMOID, O_SIN, O_COS, O_POW, O_ABS, O_FLOOR,
  O_CEIL, O_ROUND, O_TRUNC, O_ISNAN, O_ISINF, O_FMA, O_BITAND, O_BITOR, O_BITXOR
};

typedef struct code {
  int64_t n_loads, n_registers, n_instructions;
  const int64_t *loads, *instructions, *results;
} code;

typedef struct stage {
  int64_t kind, n_axes, n_reduced, reducer, n_results;
  const int64_t *extents, *results, *roles;
  code codes[2];
  /* The right factor of a product as its weights lie: elements of a buffer in panels of 'tile'
  ** columns. tile 0: it is made by its code. word 4: panels hold four int8 for each column, word 2:
  ** two int8 or int16, those of neighbours on the last reduced axis, whose step is from one such word
  ** to the next, and numbers of the left factor fit int16. */
  int64_t tile, buffer, panel_step, word, column_axis;
  const int64_t *steps;        /* a size per reduced axis, the offset, a size per spatial axis */
  int64_t turns, symbol, n_repeated; /* of REPEAT */
  const char *error, *format;  /* of CHECK */
} stage;

typedef struct program {
  int64_t *words;              /* owned */
  int64_t n_params, n_symbols, n_sizes, n_buffers, n_stages;
  const int64_t **params;      /* owned */
  const int64_t *symbols, *sizes;
  const int64_t **buffers;     /* owned */
  stage *stages;               /* owned */
} program;

/* State of one run of a program. */
typedef struct run {
  const program *of;
  int64_t *sizes;
  void **data;                 /* of each buffer */
  int64_t *elements;           /* of each buffer */
  int32_t *types;
  int64_t symbols[MAX_SYMBOLS];
} run;

/* Runs one stage: made once for each class of processors. 0 or -1. */
int ek_general_v2(const run *r, const stage *s);
int ek_general_v3(const run *r, const stage *s);
int ek_general_v4(const run *r, const stage *s);

#endif /* EKIDEN_GENERAL_H_ */
