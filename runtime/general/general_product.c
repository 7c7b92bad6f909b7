/* The products of general kernels. Compiled once for each class of processors.
**
** The left factor of a block of rows is computed into rows of K elements, the right one lies in
** panels of whole vectors of columns, as the weights do or made so first; a tile of rows and columns
** is summed up in registers.
*/
#include "general_class.h"

#include <string.h>

enum { ALONE = 1 << 18 }; /* multiplications that a thread does sooner than two share them */

/* As long as a register: of longer ones GCC keeps sums in memory. */
typedef float floats __attribute__((vector_size(REGISTER), aligned(4)));
typedef int32_t ints __attribute__((vector_size(REGISTER), aligned(4)));
enum { PARTS = 4 * VECTOR / REGISTER };
typedef union word {           /* an element of the factors and of sums, as the result's are */
  float f;
  int32_t i;
} word;

typedef struct product {
  loops left, right;
  const stage *s;
  bool is_int;
  bool is_loaded;                          /* whether a row of the left factor lies in memory */
  int64_t batches, rows, columns, depth;   /* depth: of the sum */
  int64_t width, per_panel, chunks;        /* columns of a chunk, chunks of a panel and in all */
  int64_t blocks, block_rows, splits;
  const word *panels;
  int64_t batch_step, panel_step, base;    /* batch_step: of panels that were made */
  const int64_t *offsets;                  /* of each term in a panel */
} product;

/* R * W sums stay in registers throughout the depth: each step loads W vectors of a panel, and
** broadcasts R elements of rows. The pragmas unroll over what are constants, so that the array of
** sums is registers and not memory. A tile of rows is left with smaller ones, then single rows. */
#define TILE(name, vector, member, R, W)                                                        \
  static void name(const word *left, int64_t step, int64_t depth, const word *right,            \
                   const int64_t *offsets, word *out) {                                         \
    vector sum[R][W];                                                                           \
    _Pragma("GCC unroll 12") for (int i = 0; i < R; i++)                                        \
      _Pragma("GCC unroll 4") for (int j = 0; j < W; j++) sum[i][j] = (vector){0};              \
    for (int64_t k = 0; k < depth; k++) {                                                       \
      const vector *b = (const vector *)(const void *)(right + offsets[k]);                     \
      _Pragma("GCC unroll 12") for (int i = 0; i < R; i++)                                      \
        _Pragma("GCC unroll 4") for (int j = 0; j < W; j++)                                     \
          sum[i][j] += left[i * step + k].member * b[j];                                       \
    }                                                                                           \
    vector *to = (vector *)(void *)out;                                                         \
    _Pragma("GCC unroll 12") for (int i = 0; i < R; i++)                                        \
      _Pragma("GCC unroll 4") for (int j = 0; j < W; j++) to[i * W + j] = sum[i][j];            \
  }
#define TILES(vector, member)                                                                   \
  TILE(all_1_##vector, vector, member, ROW_TILE, PARTS)                                         \
  TILE(some_1_##vector, vector, member, FEW_ROWS, PARTS)                                        \
  TILE(one_1_##vector, vector, member, 1, PARTS)                                                \
  TILE(all_2_##vector, vector, member, ROW_TILE, WIDE * PARTS)                                  \
  TILE(some_2_##vector, vector, member, FEW_ROWS, WIDE * PARTS)                                 \
  TILE(one_2_##vector, vector, member, 1, WIDE * PARTS)
TILES(floats, f)
TILES(ints, i)

typedef void tile(const word *, int64_t, int64_t, const word *, const int64_t *, word *);

/* By elements, vectors of a chunk, and rows. */
static tile *const tiles[2][2][3] = {
    {{all_1_floats, some_1_floats, one_1_floats}, {all_2_floats, some_2_floats, one_2_floats}},
    {{all_1_ints, some_1_ints, one_1_ints}, {all_2_ints, some_2_ints, one_2_ints}}};

/* How many rows are done at once of so many that are left. */
static int64_t rows_at_once(int64_t left) {
  return left >= ROW_TILE ? ROW_TILE : left >= FEW_ROWS ? FEW_ROWS : 1;
}

static tile *tile_of(const product *m, int64_t rows) {
  return tiles[m->is_int][m->width != VECTOR][rows == 1 ? 2 : rows == FEW_ROWS];
}

/* So many elements of a strip as those of a factor. */
static void take(const product *m, const strip *from, int64_t first, int64_t n, word *to) {
  if (m->is_int) EACH to[l].i = (int32_t)from->i[first + l];
  else memcpy(to, from->f + first, (size_t)n * sizeof *to);
}

/* The position of a number among the axes of one role. */
static void place_role(const product *m, int64_t number, int64_t role, int64_t *at) {
  for (int64_t a = m->s->n_axes - 1; a >= 0; a--) {
    if (m->s->roles[a] != role) continue;
    int64_t extent = m->left.r->sizes[m->s->extents[a]];
    at[a] = number % extent;
    number /= extent;
  }
}

/* One row of the left factor. */
static void left_row(const product *m, int64_t *at, strip *R, word *to) {
  const loops *p = &m->left;
  int64_t strips = strips_of(p), turns = count(p, p->n_spatial, p->n_axes);
  for (int64_t turn = 0; turn < turns; turn++) {
    place(p, turn, p->n_spatial, p->n_axes, at);
    for (int64_t k = 0; k < strips; k++) {
      int64_t n = begin_strip(p, k, at);
      run_code(p, at, n, R);
      take(m, &R[p->c->results[0]], 0, n, to);
      to += n;
    }
  }
}

static void store_tile(const product *m, const int64_t *row_at, int64_t rows, int64_t column,
                       const word *from) {
  int64_t buffer = m->s->results[0], step = m->left.out_steps[0][m->s->column_axis];
  int64_t n = m->columns - column < m->width ? m->columns - column : m->width;
  word *data = m->left.r->data[buffer];
  for (int64_t i = 0; i < rows; i++) {
    word *to = data + row_at[i] + column * step;
    const word *row = from + i * m->width;
    if (step == 1) memcpy(to, row, (size_t)n * sizeof *to);
    else EACH to[step * l] = row[l];
  }
}

/* The rows of the left factor where they lie in memory, at even distances; NULL where they do not.
** Rows at even distances are multiplied where they lie, and none is copied; a row may not begin
** before its buffer, nor end behind it, as one of a padded convolution would. */
static const word *rows_in_place(const product *m, const int64_t *from, int64_t rows, int64_t *step) {
  const loops *p = &m->left;
  const load *l = p->loads;
  *step = rows > 1 ? from[1] - from[0] : m->depth;
  if (!m->is_loaded || from[0] < 0 || from[rows - 1] < 0) return NULL;
  if (from[0] + m->depth > l->elements || from[rows - 1] + m->depth > l->elements) return NULL;
  for (int64_t i = 1; i < rows; i++) {
    if (from[i] - from[i - 1] != *step) return NULL;
  }
  return (const word *)p->r->data[l->buffer] + from[0];
}

static void block_of_rows(const product *m, int64_t batch, int64_t first, int64_t rows,
                          int64_t chunk, int64_t end, strip *R, word *made) {
  int64_t at[MAX_AXES] = {0}, row_at[ROW_TILE * BLOCK_TILES], from[ROW_TILE * BLOCK_TILES], step;
  word out[(ROW_TILE + 1) * WIDE * VECTOR] __attribute__((aligned(64)));
  const loops *p = &m->left;
  place_role(m, batch, BATCH, at);
  const word *panels = m->panels + m->base + batch * m->batch_step;
  for (int64_t a = 0; a < m->s->n_axes && m->s->tile != 0; a++) {
    panels += at[a] * p->r->sizes[m->s->steps[m->s->n_reduced + 1 + a]];
  }
  for (int64_t i = 0; i < rows; i++) {
    place_role(m, first + i, ROWS, at);
    at[m->s->column_axis] = 0;
    row_at[i] = out_at(p, 0, at);
    from[i] = m->is_loaded ? p->loads[0].offset : 0;
    for (int64_t a = 0; a < m->s->n_axes && m->is_loaded; a++) from[i] += p->loads[0].steps[a] * at[a];
  }
  const word *left = rows_in_place(m, from, rows, &step);
  for (int64_t i = 0; i < rows && left == NULL; i++) {
    place_role(m, first + i, ROWS, at);
    left_row(m, at, R, made + i * m->depth);
  }
  if (left == NULL) step = m->depth;
  if (left == NULL) left = made;
  for (; chunk < end; chunk++) {
    int64_t panel = chunk / m->per_panel, inside = chunk % m->per_panel * m->width;
    const word *right = panels + panel * m->panel_step + inside;
    int64_t column = panel * m->per_panel * m->width + inside;
    if (column >= m->columns) continue;
    for (int64_t i = 0; i < rows;) {
      int64_t some = rows_at_once(rows - i);
      tile_of(m, some)(left + i * step, step, m->depth, right, m->offsets, out);
      store_tile(m, row_at + i, some, column, out);
      i += some;
    }
  }
}

static int product_some(void *context, int64_t begin, int64_t end) {
  const product *m = context;
  strip *R = registers_of(&m->left, 1);
  word *left = R == NULL ? NULL : ek_workspace_alloc(m->block_rows * m->depth * 4 + 64);
  int status = left == NULL ? -1 : 0;
  for (int64_t i = begin; i < end && status == 0; i++) {
    int64_t split = i % m->splits, block = i / m->splits % m->blocks, batch = i / m->splits / m->blocks;
    int64_t first = block * m->block_rows, rows = m->rows - first;
    block_of_rows(m, batch, first, rows < m->block_rows ? rows : m->block_rows,
                  m->chunks * split / m->splits, m->chunks * (split + 1) / m->splits, R, left);
  }
  ek_workspace_free(left);
  ek_workspace_free(R);
  return status;
}

/* Rows of the right factor, for all columns, into panels. */
static int panels_some(void *context, int64_t begin, int64_t end) {
  const product *m = context;
  const loops *p = &m->right;
  word *panels = (word *)(uintptr_t)m->panels;
  strip *R = registers_of(p, 1);
  int64_t at[MAX_AXES] = {0};
  if (R == NULL) return -1;
  for (int64_t i = begin; i < end; i++) {
    int64_t batch = i / m->depth, k = i % m->depth;
    word *to = panels + batch * m->batch_step + k * m->width;
    place_role(m, batch, BATCH, at);
    place(p, k, p->n_spatial, p->n_axes, at);
    for (int64_t first = 0; first < m->columns; first += STRIP) {
      int64_t n = m->columns - first < STRIP ? m->columns - first : STRIP;
      at[p->lane] = first;
      run_code(p, at, n, R);
      for (int64_t l = 0; l < n; l += m->width) {
        int64_t some = n - l < m->width ? n - l : m->width;
        word *panel = to + (first + l) / m->width * m->panel_step;
        take(m, &R[p->c->results[0]], l, some, panel);
        if (some < m->width) memset(panel + some, 0, (size_t)(m->width - some) * sizeof *panel);
      }
    }
  }
  ek_workspace_free(R);
  return 0;
}

static int64_t extent_of(const product *m, int64_t role) {
  int64_t n = 1;
  for (int64_t a = 0; a < m->s->n_axes; a++) {
    if (m->s->roles[a] == role) n *= m->left.r->sizes[m->s->extents[a]];
  }
  return n;
}

static void lay_out(product *m) {
  const stage *s = m->s;
  bool is_wide = WIDE == 2 && (s->tile == 0 ? m->columns > VECTOR : s->tile % (2 * VECTOR) == 0);
  m->width = is_wide ? 2 * VECTOR : VECTOR;
  m->per_panel = s->tile == 0 ? 1 : s->tile / m->width;
  m->chunks = (m->columns + m->width - 1) / m->width;
  if (s->tile != 0) m->chunks = (m->columns + s->tile - 1) / s->tile * m->per_panel;
  m->block_rows = m->rows < ROW_TILE * BLOCK_TILES ? m->rows : ROW_TILE * BLOCK_TILES;
  m->blocks = (m->rows + m->block_rows - 1) / m->block_rows;
  m->splits = (FEW_TASKS + m->batches * m->blocks - 1) / (m->batches * m->blocks);
  if (m->splits > m->chunks) m->splits = m->chunks;
}

/* Where the terms of the sum lie in the weights, or in panels that are made now. */
static int find_right(product *m, int64_t *offsets, word *panels) {
  const stage *s = m->s;
  const run *r = m->left.r;
  m->offsets = offsets;
  if (s->tile != 0) {
    m->panels = r->data[s->buffer];
    m->panel_step = r->sizes[s->panel_step];
    m->base = r->sizes[s->steps[s->n_reduced]];
    int64_t at[MAX_AXES] = {0};
    for (int64_t k = 0; k < m->depth; k++) {
      int64_t left = k, offset = 0;
      for (int64_t a = s->n_reduced - 1; a >= 0; a--) {
        int64_t extent = r->sizes[s->extents[s->n_axes + a]];
        at[a] = left % extent;
        left /= extent;
        offset += at[a] * r->sizes[s->steps[a]];
      }
      offsets[k] = offset;
    }
    return 0;
  }
  m->panels = panels;
  m->panel_step = m->depth * m->width;
  m->batch_step = m->chunks * m->panel_step;
  for (int64_t k = 0; k < m->depth; k++) offsets[k] = k * m->width;
  return ek_parallel_for(panels_some, m, m->batches * m->depth, 1 + 65536 / (m->columns + 1));
}

/* Whether a code is the load of one element of float32 or int32, and its reduced axes are one row. */
static bool lies_in_rows(const loops *p) {
  const int64_t *row = p->c->instructions;
  const load *l = p->loads;
  return p->c->n_instructions == 1 && row[0] == O_LOAD && row[4] < 0 && p->outer < 0 &&
         count(p, p->n_spatial, p->n_axes) == 1 && l->steps[p->lane] == 1 &&
         (l->type == E_F32 || l->type == E_I32);
}

/* Multiplies what both factors are read of. */
static int multiply(product *m) {
  const stage *s = m->s;
  const run *r = m->left.r;
  m->is_int = r->types[s->results[0]] != E_F32;
  m->depth = 1;
  for (int64_t a = 0; a < s->n_reduced; a++) m->depth *= r->sizes[s->extents[s->n_axes + a]];
  m->batches = extent_of(m, BATCH);
  m->rows = extent_of(m, ROWS);
  m->columns = r->sizes[s->extents[s->column_axis]];
  if (m->batches == 0 || m->rows == 0 || m->columns == 0) return 0;
  merge_axes(&m->left, s, m->left.n_spatial, m->left.n_axes);
  m->left.lane = m->left.n_axes - 1;
  while (m->left.lane > m->left.n_spatial && m->left.extents[m->left.lane] == 1) m->left.lane--;
  m->right.lane = (int32_t)s->column_axis;
  choose_outer(&m->left, m->left.n_spatial);
  m->is_loaded = lies_in_rows(&m->left);
  find_same(&m->left);
  find_same(&m->right);
  lay_out(m);
  int64_t made = s->tile == 0 ? m->batches * m->chunks * m->width * m->depth : 0;
  int64_t *offsets = ek_workspace_alloc(m->depth * 8 + 8);
  word *panels = offsets == NULL ? NULL : ek_workspace_alloc(made * 4 + 64);
  int status = panels == NULL ? -1 : find_right(m, offsets, panels);
  if (status == 0) {
    int64_t each = m->block_rows * m->depth * (1 + m->columns / m->splits);
    int64_t grain = 1 + ALONE / (each + 1);
    status = ek_parallel_for(product_some, m, m->batches * m->blocks * m->splits, grain);
  }
  ek_workspace_free(panels);
  ek_workspace_free(offsets);
  return status;
}

int run_product(const run *r, const stage *s) {
  product m = {.s = s};
  int status = read_loops(&m.left, r, s, &s->codes[0]);
  if (status == 0) status = read_loops(&m.right, r, s, &s->codes[1]);
  if (status == 0) status = multiply(&m);
  ek_workspace_free(m.right.loads);
  ek_workspace_free(m.left.loads);
  return status;
}
