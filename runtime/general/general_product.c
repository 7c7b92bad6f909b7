/* The products of general kernels. Compiled once for each class of processors.
**
** A row of the left factor is read in place if its elements have the same offsets in every row,
** else copied to a buffer of K elements. The right factor is packed in panels of whole vectors of
** columns, at compile time for weights. A tile of rows and columns is accumulated in registers.
*/
#include "general_class.h"

#include <string.h>

enum { ALONE = 1 << 18 }; /* multiplications that a thread does sooner than two share them */

/* Vectors of register width: GCC keeps wider sums in memory. */
typedef float floats __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t ints __attribute__((vector_size(4 * LANES), aligned(4)));
typedef struct product {
  loops left, right;
  const stage *s;
  bool is_int;
  bool is_bytes;                           /* whether rows are int16 that hold bytes, terms words */
  bool is_loaded;                          /* whether the left factor is elements of a buffer */
  int64_t batches, rows, columns, depth;   /* depth: terms of the sum */
  int64_t length;                          /* elements of a row */
  int64_t tile, vectors, width;            /* columns of a panel of weights, or 0; a chunk's */
  int64_t per_panel, chunks;               /* chunks of a panel and in all */
  int64_t blocks, block_rows, splits;
  const char *panels;
  int64_t per_word;                        /* elements of a column that a term multiplies */
  enum word_form form;                     /* of words of bytes */
  int64_t element;                         /* bytes of one of them; steps are in elements */
  int64_t batch_step, panel_step, base;    /* batch_step: of panels that were made */
  int64_t *left_at, *right_at, *in_order;  /* of each term: from a row's first element, in a panel, */
  int64_t least, most;                     /* and 0, 1, 2, ...; the ends of left_at */
} product;

/* R * W sums stay in registers throughout the depth: each step loads W vectors of a panel, and
** broadcasts an element of each of R rows. The pragmas unroll over what are constants, so that the
** array of sums is registers and not memory. */
#define TILE(name, vector, member, R, W)                                                        \
  static void name(const void *const *left, const int64_t *left_at, int64_t depth,              \
                   const void *right, const int64_t *right_at, word *out) {                     \
    vector sum[R][W];                                                                           \
    const word *rows[R];                                                                        \
    _Pragma("GCC unroll 8") for (int i = 0; i < R; i++) {                                       \
      rows[i] = left[i];                                                                        \
      _Pragma("GCC unroll 3") for (int j = 0; j < W; j++) sum[i][j] = (vector){0};              \
    }                                                                                           \
    for (int64_t k = 0; k < depth; k++) {                                                       \
      const vector *b = (const vector *)(const void *)((const word *)right + right_at[k]);      \
      int64_t at = left_at[k];                                                                  \
      _Pragma("GCC unroll 8") for (int i = 0; i < R; i++)                                       \
        _Pragma("GCC unroll 3") for (int j = 0; j < W; j++) sum[i][j] += rows[i][at].member * b[j]; \
    }                                                                                           \
    vector *to = (vector *)(void *)out;                                                         \
    _Pragma("GCC unroll 8") for (int i = 0; i < R; i++)                                         \
      _Pragma("GCC unroll 3") for (int j = 0; j < W; j++) to[i * W + j] = sum[i][j];            \
  }
#define TILES(vector, member, W)                                                                \
  TILE(all_##W##_##vector, vector, member, ROWS_##W, W)                                         \
  TILE(two_##W##_##vector, vector, member, 2, W)                                                \
  TILE(one_##W##_##vector, vector, member, 1, W)
TILES(floats, f, 1)
TILES(floats, f, 2)
TILES(floats, f, 3)
TILES(ints, i, 1)
TILES(ints, i, 2)
TILES(ints, i, 3)

/* By elements, vectors of a chunk, and rows. */
#define OF_ROWS(vector, W) {all_##W##_##vector, two_##W##_##vector, one_##W##_##vector}
static tile *const tiles[2][MOST_VECTORS][3] = {
    {OF_ROWS(floats, 1), OF_ROWS(floats, 2), OF_ROWS(floats, 3)},
    {OF_ROWS(ints, 1), OF_ROWS(ints, 2), OF_ROWS(ints, 3)}};

/* Returns the number of rows to compute together when 'left' remain. */
static int64_t rows_at_once(const product *m, int64_t left) {
  static const int64_t all[] = {ROWS_1, ROWS_2, ROWS_3};
  int64_t most = m->is_bytes ? WORD_ROWS : all[m->vectors - 1];
  return left >= most ? most : left >= 2 ? 2 : 1;
}

static tile *tile_of(const product *m, int64_t rows) {
  int of_rows = rows == 1 ? 2 : rows == 2;
  if (m->is_bytes) return word_tiles[m->form][of_rows];
  return tiles[m->is_int][m->vectors - 1][of_rows];
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
    at[a] = number % m->left.extents[a];
    number /= m->left.extents[a];
  }
}

/* The position of the next one. */
static void next_row(const product *m, int64_t *at) {
  for (int64_t a = m->s->n_axes - 1; a >= 0; a--) {
    if (m->s->roles[a] != ROWS) continue;
    if (++at[a] < m->left.extents[a]) return;
    at[a] = 0;
  }
}

/* Evaluate one row of the left factor into 'row'. */
static void left_row(const product *m, int64_t *at, strip *R, void *row) {
  const loops *p = &m->left;
  int64_t strips = strips_of(p), turns = count(p, p->n_spatial, p->n_axes);
  word *words = row;
  int16_t *bytes = row;
  for (int64_t turn = 0; turn < turns; turn++) {
    place(p, turn, p->n_spatial, p->n_axes, at);
    for (int64_t k = 0; k < strips; k++) {
      int64_t n = begin_strip(p, k, at);
      run_code(p, at, n, R);
      const strip *from = &R[p->c->results[0]];
      if (m->is_bytes) EACH bytes[l] = (int16_t)from->i[l];
      else take(m, from, 0, n, words);
      words += n;
      bytes += n;
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

/* A block of rows: where each is read and written. */
typedef struct block {
  const void *from[BLOCK_ROWS];
  int64_t to[BLOCK_ROWS];
  const int64_t *at;           /* of each term of a row */
} block;

/* The rows of a block where they lie in memory; false where one of them begins before its buffer or
** ends behind it, as one of a padded convolution would. Places the results either way. */
static bool find_rows(const product *m, const int64_t *first, int64_t rows, block *b) {
  const loops *p = &m->left;
  const load *l = p->loads;
  bool is_inside = m->is_loaded;
  int64_t at[MAX_AXES];
  memcpy(at, first, sizeof at);
  for (int64_t i = 0; i < rows; i++, next_row(m, at)) {
    b->to[i] = out_at(p, 0, at);
    if (!is_inside) continue;
    int64_t from = l->offset;
    for (int64_t a = 0; a < m->s->n_axes; a++) from += l->steps[a] * at[a];
    is_inside = from + m->least >= 0 && from + m->most < l->elements;
    if (is_inside) b->from[i] = (const word *)p->r->data[l->buffer] + from;
  }
  b->at = m->left_at;
  return is_inside;
}

/* The rows of a block, computed. */
static void make_rows(const product *m, int64_t *at, int64_t rows, strip *R, char *text, block *b) {
  int64_t next[MAX_AXES], bytes = m->length * (m->is_bytes ? 2 : 4);
  for (int64_t i = 0; i < rows; i++) {
    memcpy(next, at, sizeof next);
    b->from[i] = text + i * bytes;
    left_row(m, next, R, text + i * bytes);
    next_row(m, at);
  }
  b->at = m->in_order;
}

static void block_of_rows(const product *m, int64_t batch, int64_t first, int64_t rows,
                          int64_t chunk, int64_t end, strip *R, char *text) {
  int64_t at[MAX_AXES] = {0};
  word out[MOST_ROWS * MOST_VECTORS * LANES] __attribute__((aligned(64)));
  block b;
  place_role(m, batch, BATCH, at);
  int64_t base = m->base + batch * m->batch_step;
  for (int64_t a = 0; a < m->s->n_axes && m->tile != 0; a++) {
    base += at[a] * m->left.r->sizes[m->s->steps[m->s->n_reduced + 1 + a]];
  }
  place_role(m, first, ROWS, at);
  if (!find_rows(m, at, rows, &b)) make_rows(m, at, rows, R, text, &b);
  for (; chunk < end; chunk++) {
    int64_t panel = chunk / m->per_panel, inside = chunk % m->per_panel * m->width;
    int64_t at_column = inside * m->per_word;
    const char *right = m->panels + (base + panel * m->panel_step + at_column) * m->element;
    int64_t column = panel * m->per_panel * m->width + inside;
    if (column >= m->columns) continue;
    for (int64_t i = 0; i < rows;) {
      int64_t some = rows_at_once(m, rows - i);
      tile_of(m, some)(b.from + i, b.at, m->depth, right, m->right_at, out);
      store_tile(m, b.to + i, some, column, out);
      i += some;
    }
  }
}

static int product_some(void *context, int64_t begin, int64_t end) {
  const product *m = context;
  strip *R = registers_of(&m->left, 1);
  char *left = R == NULL ? NULL : ek_workspace_alloc(m->block_rows * m->length * 4 + 64);
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

/* Chooses the layout of the right factor: weights in panels of whole vectors, or panels of the run. */
static void lay_out(product *m) {
  int64_t tile = m->s->tile;
  m->is_bytes = m->s->word > 1 && tile % WORD_COLUMNS == 0;
  m->per_word = m->is_bytes ? m->s->word : 1;
  m->tile = m->is_bytes || (tile % LANES == 0 && m->s->word == 1) ? tile : 0;
  m->vectors = m->tile == 0 && m->columns > LANES ? 2 : 1;
  for (int64_t n = MOST_VECTORS; m->tile != 0 && m->vectors == 1 && n > 1; n--) {
    if (tile % (n * LANES) == 0) m->vectors = n;
  }
  m->width = m->is_bytes ? WORD_COLUMNS : m->vectors * LANES;
  m->element = WORD_BYTES;
  if (m->is_bytes) {
    bool is_int16 = m->left.r->types[m->s->buffer] == E_I16;
    m->element = is_int16 ? 2 : 1;
    m->form = is_int16 ? TWO_INT16 : m->per_word == WORD_PAIR ? TWO_INT8 : FOUR_INT8;
  }
  m->depth /= m->per_word;
  m->per_panel = m->tile == 0 ? 1 : tile / m->width;
  m->chunks = (m->columns + m->width - 1) / m->width;
  if (m->tile != 0) m->chunks = (m->columns + tile - 1) / tile * m->per_panel;
  m->block_rows = m->rows < BLOCK_ROWS ? m->rows : BLOCK_ROWS;
  m->blocks = (m->rows + m->block_rows - 1) / m->block_rows;
  m->splits = (FEW_TASKS + m->batches * m->blocks - 1) / (m->batches * m->blocks);
  int64_t most = 1 + m->batches * m->rows * m->length * m->columns / ALONE;
  if (m->splits > most) m->splits = most; /* each computes its rows anew */
  if (m->splits > m->chunks) m->splits = m->chunks;
}

/* Compute the offset of each term of the sum from the first, from the strides of the reduced axes,
** the last of which counts words of bytes. */
static void find_distances(const product *m, const int64_t *steps, int64_t *found) {
  int64_t extents[MAX_AXES];
  int32_t n = (int32_t)m->s->n_reduced;
  for (int32_t a = 0; a < n; a++) extents[a] = m->left.r->sizes[m->s->extents[m->s->n_axes + a]];
  extents[n - 1] /= m->per_word;
  term_offsets(extents, steps, n, m->depth, found);
}

/* Finds the terms of a row where the left factor is float32 or int32 and each term is one load. */
static void find_left(product *m) {
  const loops *p = &m->left;
  const int64_t *row = p->c->instructions;
  const load *l = p->loads;
  for (int64_t k = 0; k < m->depth; k++) m->in_order[k] = k * m->per_word;
  m->is_loaded = !m->is_bytes && p->c->n_instructions == 1 && row[0] == O_LOAD && row[4] < 0 &&
                 l->type == (m->is_int ? E_I32 : E_F32);
  if (!m->is_loaded) return;
  find_distances(m, l->steps + m->s->n_axes, m->left_at);
  for (int64_t k = 0; k < m->depth; k++) {
    if (m->left_at[k] < m->least) m->least = m->left_at[k];
    if (m->left_at[k] > m->most) m->most = m->left_at[k];
  }
}

/* Finds the terms of the sum in the weights, or packs them into panels now. */
static int find_right(product *m, word *panels) {
  const stage *s = m->s;
  const run *r = m->left.r;
  if (m->tile != 0) {
    int64_t steps[MAX_AXES];
    for (int64_t a = 0; a < s->n_reduced; a++) steps[a] = r->sizes[s->steps[a]];
    m->panels = r->data[s->buffer];
    m->panel_step = r->sizes[s->panel_step];
    m->base = r->sizes[s->steps[s->n_reduced]];
    find_distances(m, steps, m->right_at);
    return 0;
  }
  m->panels = (const char *)panels;
  m->panel_step = m->depth * m->width;
  m->batch_step = m->chunks * m->panel_step;
  for (int64_t k = 0; k < m->depth; k++) m->right_at[k] = k * m->width;
  return ek_parallel_for(panels_some, m, m->batches * m->depth, 1 + 65536 / (m->columns + 1));
}

/* Multiplies what both factors are read of. */
static int multiply(product *m) {
  const stage *s = m->s;
  const run *r = m->left.r;
  m->is_int = r->types[s->results[0]] != E_F32;
  m->length = 1;
  for (int64_t a = 0; a < s->n_reduced; a++) m->length *= r->sizes[s->extents[s->n_axes + a]];
  m->depth = m->length;
  m->batches = extent_of(m, BATCH);
  m->rows = extent_of(m, ROWS);
  m->columns = r->sizes[s->extents[s->column_axis]];
  if (m->batches == 0 || m->rows == 0 || m->columns == 0) return 0;
  merge_axes(&m->left, s, m->left.n_spatial, m->left.n_axes);
  m->left.lane = m->left.n_axes - 1;
  while (m->left.lane > m->left.n_spatial && m->left.extents[m->left.lane] == 1) m->left.lane--;
  m->right.lane = (int32_t)s->column_axis;
  choose_outer(&m->left, m->left.n_spatial);
  find_same(&m->left);
  find_same(&m->right);
  lay_out(m);
  int64_t result = m->tile == 0 ? m->batches * m->chunks * m->width * m->depth : 0;
  m->left_at = ek_workspace_alloc(m->depth * 3 * 8 + 8);
  word *panels = m->left_at == NULL ? NULL : ek_workspace_alloc(result * 4 + 64);
  int status = panels == NULL ? -1 : 0;
  if (status == 0) {
    m->right_at = m->left_at + m->depth;
    m->in_order = m->right_at + m->depth;
    find_left(m);
    status = find_right(m, panels);
  }
  if (status == 0) {
    int64_t each = m->block_rows * m->length * (1 + m->columns / m->splits);
    int64_t grain = 1 + ALONE / (each + 1);
    status = ek_parallel_for(product_some, m, m->batches * m->blocks * m->splits, grain);
  }
  ek_workspace_free(panels);
  ek_workspace_free(m->left_at);
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
