/* Executables: read from a file or bytes, proven, taken apart for tools, linked.
**
** The format is docs/artifact-format.md, and src/ekiden/backend/vm/write_executable.py writes it. There is
** exactly one file for a given content: sections in order, without gaps but zeros up to the next
** multiple of 64.
** The reader is a cursor that fails once and stays failed: reads after that give zeros, and the
** end of a section is where failure is asked for. Counts are held against the bytes left before
** memory is taken.
*/
#include "ek_executable.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "ek_crc32.h"
#include "ek_guard.h"
#include "ek_image.h"
#include "ek_signature.h"
#include "ek_vm_step.h"

enum {
  FORMAT_VERSION = 1,
  BYTE_ORDER_MARK = 0x01020304,
  ALIGNMENT = 64,
  HEADER_SIZE = 32,
  ENTRY_SIZE = 24,
  CONSTANT_SIZE = 24,          /* of the record of a constant without dimensions */
  LATE_BOUND = 0,              /* in place of its lanes: its data comes from elsewhere */
  MADE_AT_LOAD = 0xffff,       /* in their place: section DERIVED says of what */
  MOST_DEVICES = 256           /* each is compared with all before it */
};

/* Magic bytes after PNG's: a byte above 127, which a 7-bit transfer would strip, and a line end,
** which a text-mode transfer would change. */
static const char magic[8] = {(char)0x89, 'E', 'K', 'I', 'D', 'E', 'N', '\n'};

/* ORDER SECTION: numbers are file format, and the order in which sections are read: each may name
** what those before it brought (CODE the constants and primitives, DERIVED both). */
typedef enum section {
  GLOBALS = 1,
  CONSTANTS,
  PRIMITIVES,
  CODE,
  IMAGE,
  METADATA,
  DEVICES,
  TYPES,
  DERIVED,
  DEVICE_CODE,
  SECTIONS
} section;

static const char *const section_names[SECTIONS] = {"header", "GLOBALS", "CONSTANTS", "PRIMITIVES",
                                                    "CODE",   "IMAGE",   "METADATA",
                                                    "DEVICES", "TYPES",   "DERIVED",
                                                    "DEVICE_CODE"};

/* The cursor ----------------------------------------------------------------------------------- */

typedef struct reader {
  const char *source;          /* a path, or what the bytes are called in messages */
  const char *section;
  const unsigned char *at, *end;
  bool failed;
} reader;

__attribute__((format(EK_PRINTF, 2, 3))) static void fail(reader *r, const char *format, ...) {
  char message[EK_IMAGE_LACKS + 64];
  va_list args;
  if (r->failed) return;
  r->failed = true;
  va_start(args, format);
  vsnprintf(message, sizeof message, format, args);
  va_end(args);
  ek_error("LoadError", "load %s: %s: %s", r->source, r->section, message);
}

static size_t left(const reader *r) { return r->failed ? 0 : (size_t)(r->end - r->at); }

/* The next bytes, or NULL once failed. The size is of 64 bits, as it may come from the file: it is
** compared with what is left, and never added to a pointer before. */
static const unsigned char *take(reader *r, uint64_t size) {
  if (size > left(r)) {
    fail(r, "%llu more bytes expected, %zu are left", (unsigned long long)size, left(r));
  }
  if (r->failed) return NULL;
  r->at += size;
  return r->at - size;
}

/* A little-endian number of 'size' bytes. */
static uint64_t number(reader *r, int size) {
  const unsigned char *bytes = take(r, (uint64_t)size);
  uint64_t value = 0;
  for (int i = 0; bytes != NULL && i < size; i++) value |= (uint64_t)bytes[i] << (8 * i);
  return value;
}

static uint32_t u32(reader *r) { return (uint32_t)number(r, 4); }
static uint64_t u64(reader *r) { return number(r, 8); }

/* A count of items that take at least 'item_size' bytes each.
**
** So a count is at most the file's size, and what is allocated for it at most some times that: a
** file of a few bytes cannot ask for much memory. */
static int32_t count(reader *r, size_t item_size) {
  uint32_t n = u32(r);
  if (n > left(r) / item_size || n > INT32_MAX) {
    fail(r, "%u items expected, %zu bytes are left", n, left(r));
  }
  return r->failed ? 0 : (int32_t)n;
}

/* The length of the UTF-8 sequence at 'at', 0 if it is malformed, overlong or a surrogate. Python
** would refuse such names later, where nobody expects it. RFC 3629: the second byte's range says
** which three- and four-byte forms are the shortest ones (not below a0 after e0, nor 90 after f0),
** no surrogates (not above 9f after ed) and no more than U+10FFFF (not above 8f after f4). */
static size_t utf8_length(const unsigned char *at, size_t size) {
  static const unsigned char second_low[] = {[0xe0 - 0xe0] = 0xa0, [0xf0 - 0xe0] = 0x90};
  unsigned char lead = at[0];
  size_t length = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (length == 0 || lead > 0xf4 || length > size) return 0;
  for (size_t i = 1; i < length; i++) {
    if ((at[i] & 0xc0) != 0x80) return 0;
  }
  if ((lead == 0xe0 || lead == 0xf0) && at[1] < second_low[lead - 0xe0]) return 0;
  if ((lead == 0xed && at[1] > 0x9f) || (lead == 0xf4 && at[1] > 0x8f)) return 0;
  return length;
}

/* Text without zero bytes. */
static ek_bytes text(reader *r, size_t size) {
  const unsigned char *bytes = take(r, size);
  ek_bytes result = {(const char *)bytes, bytes == NULL ? 0 : size};
  for (size_t i = 0; i < result.size;) {
    size_t length = bytes[i] == 0 ? 0 : utf8_length(bytes + i, size - i);
    if (length == 0) {
      fail(r, "text is not UTF-8 at its byte %zu", i);
      break;
    }
    i += length;
  }
  return result;
}

static ek_bytes string(reader *r) { return text(r, u32(r)); }

/* Memory for items of a count that was read, not initialised. */
static void *items(reader *r, size_t n, size_t size) {
  void *memory = r->failed ? NULL : ek_alloc_or_error(n * size + 1);
  if (memory == NULL) r->failed = true;
  return memory;
}

static void expect_end(reader *r) {
  if (left(r) != 0) fail(r, "%zu bytes follow its content", left(r));
}

static uint64_t aligned(uint64_t offset) {
  return (offset + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void expect_zeros(reader *r, const unsigned char *from, const unsigned char *to) {
  for (; from < to; from++) {
    if (*from != 0) fail(r, "zeros expected before it, got %d", *from);
  }
}

/* Header and section table --------------------------------------------------------------------- */

static void read_header(reader *r, size_t size, int32_t *n_sections) {
  if (size != 0 && memcmp(r->at, magic, size < sizeof magic ? size : sizeof magic) != 0) {
    fail(r, "not an Ekiden executable");
  }
  if (size < HEADER_SIZE) fail(r, "%d bytes expected, got %zu", HEADER_SIZE, size);
  take(r, sizeof magic);
  uint32_t version = u32(r), order = u32(r);
  if (version != FORMAT_VERSION)
    fail(r, "format version %d expected, got %u", FORMAT_VERSION, version);
  if (order != BYTE_ORDER_MARK)
    fail(r, "byte order mark %08x expected, got %08x", BYTE_ORDER_MARK, order);
  uint64_t total = u64(r);
  if (total != size) {
    fail(r, "the file has %llu bytes, got %zu", (unsigned long long)total, size);
  }
  uint32_t n = u32(r), checksum = u32(r);
  if (n > left(r) / ENTRY_SIZE) fail(r, "%u sections expected, the file ends before", n);
  if (!r->failed && ek_crc32(r->at, n * (size_t)ENTRY_SIZE) != checksum)
    fail(r, "the section table is corrupted: its checksum differs");
  *n_sections = r->failed ? 0 : (int32_t)n;
}

typedef struct entry {
  uint32_t kind, variant, checksum;
  uint64_t offset, length;
} entry;

static entry next_entry(reader *r) {
  uint32_t id = u32(r);
  entry next = {id & 0xffff, id >> 16, u32(r), 0, 0};
  next.offset = u64(r);
  next.length = u64(r);
  return next;
}

/* Constraints that the previous entries put on the next one. Sections of one kind may be there once
** for all, or once for each variant of the file, which are for different processors. So entries
** come by variant, then by kind, both rising, and their bytes follow one another: there is one
** table for a content, and the last entry's end is the file's. */
typedef struct table_state {
  entry last;
  uint32_t common, own;        /* a bit for each kind of section that all variants share, or not */
  uint64_t n_own, n_own_kinds;
  uint64_t end;                /* of the section before */
} table_state;

static void check_place(reader *r, const entry *e, const table_state *before) {
  if (e->kind < GLOBALS || e->kind >= SECTIONS) {
    fail(r, "unknown section %u", e->kind);
    return;
  }
  bool ascends = e->variant == before->last.variant ? e->kind > before->last.kind
                                                    : e->variant == before->last.variant + 1;
  if (!ascends)
    fail(r, "section %u of variant %u follows section %u of variant %u", e->kind, e->variant,
         before->last.kind, before->last.variant);
  if (e->variant != 0 && (e->kind == CONSTANTS || before->common >> e->kind & 1))
    fail(r, "section %u of variant %u: it is common to all", e->kind, e->variant);
}

static void check_entry(reader *r, const unsigned char *data, size_t size, table_state *before) {
  entry e = next_entry(r);
  if (r->failed) return;
  check_place(r, &e, before);
  if (e.offset != aligned(before->end))
    fail(r, "section %u: offset %llu expected, got %llu", e.kind,
         (unsigned long long)aligned(before->end), (unsigned long long)e.offset);
  if (e.offset > size || e.length > size - e.offset)
    fail(r, "section %u: it does not fit in the file", e.kind);
  if (r->failed) return;
  r->section = section_names[e.kind];
  expect_zeros(r, data + before->end, data + e.offset);
  if (ek_crc32(data + e.offset, (size_t)e.length) != e.checksum)
    fail(r, "corrupted: its checksum differs");
  r->section = section_names[0];
  uint32_t bit = 1u << e.kind;
  before->n_own += e.variant != 0;
  before->n_own_kinds += e.variant != 0 && (before->own & bit) == 0;
  *(e.variant == 0 ? &before->common : &before->own) |= bit;
  before->last = e;
  before->end = e.offset + e.length;
}

/* The first variant whose code this machine can run, or 0 where the code is one for all. 'table' is
** a copy of the cursor, by value: entries have been checked, and are read once more. Files have
** their best variant first. */
static uint32_t choose(reader *r, reader table, int32_t n, const unsigned char *data) {
  char lacks[EK_IMAGE_LACKS] = "";
  for (int32_t i = 0; i < n; i++) {
    entry e = next_entry(&table);
    if (e.kind != IMAGE) continue;
    size_t used = strlen(lacks);
    if (used != 0) snprintf(lacks + used, sizeof lacks - used, ", ");
    if (!ek_image_lacks(data + e.offset, (size_t)e.length, lacks, sizeof lacks)) return e.variant;
  }
  r->section = section_names[IMAGE];
  if (lacks[0] != '\0') fail(r, "this machine lacks what its code needs: %s", lacks);
  return 0;
}

/* Fills 'payloads' by section kind with what is common and what the chosen variant has of its own;
** absent ones stay NULL. */
static void read_table(reader *r, const unsigned char *data, size_t size, ek_bytes *payloads) {
  int32_t n;
  read_header(r, size, &n);
  reader table = *r;
  table_state before = {.end = HEADER_SIZE + (uint64_t)n * ENTRY_SIZE};
  for (int32_t i = 0; i < n && !r->failed; i++) check_entry(r, data, size, &before);
  if (!r->failed && before.end != size)
    fail(r, "%zu bytes follow the last section", size - (size_t)before.end);
  if (before.n_own != before.n_own_kinds * before.last.variant ||
      (before.own != 0 && (before.own >> IMAGE & 1) == 0))
    fail(r, "an IMAGE and the same sections expected of each of %u variants", before.last.variant);
  if (r->failed) return;
  uint32_t variant = choose(r, table, n, data);
  for (int32_t i = 0; i < n; i++) {
    entry e = next_entry(&table);
    if (e.variant != 0 && e.variant != variant) continue;
    payloads[e.kind] = (ek_bytes){(const char *)data + e.offset, (size_t)e.length};
  }
  for (int kind = GLOBALS; kind < SECTIONS; kind++) {
    if (payloads[kind].data == NULL && kind != IMAGE && kind < DEVICES)
      fail(r, "section %s is missing", section_names[kind]);
  }
}

/* Sections ------------------------------------------------------------------------------------- */

static int compare_names(const void *left_name, const void *right_name) {
  const ek_bytes *a = left_name, *b = right_name;
  int order = memcmp(a->data, b->data, a->size < b->size ? a->size : b->size);
  return order != 0 ? order : (a->size > b->size) - (a->size < b->size);
}

static void expect_distinct_names(reader *r, const ek_executable *e) {
  ek_bytes *names = items(r, (size_t)e->n_functions, sizeof *names);
  if (names == NULL) return;
  for (int32_t i = 0; i < e->n_functions; i++) names[i] = e->functions[i].name;
  qsort(names, (size_t)e->n_functions, sizeof *names, compare_names);
  for (int32_t i = 1; i < e->n_functions; i++) {
    if (compare_names(&names[i - 1], &names[i]) == 0) {
      fail(r, "two functions are named '%.*s'", ek_shown(names[i], 200), names[i].data);
    }
  }
  ek_free(names);
}

static void read_globals(reader *r, ek_executable *e) {
  int32_t n = count(r, 8);
  e->functions = items(r, (size_t)n, sizeof *e->functions);
  for (int32_t i = 0; i < n && !r->failed; i++) {
    ek_bytes name = string(r);
    int32_t n_params = count(r, 4);
    e->functions[i] = (ek_vm_function){.name = name, .params = r->at, .n_params = n_params};
    for (int32_t p = 0; p < n_params && !r->failed; p++) string(r);
  }
  if (r->failed) return;
  e->n_functions = n;
  expect_distinct_names(r, e);
}

/* Layout of the data that entries describe: the first offset, the next expected one, and the end. */
typedef struct layout {
  uint64_t first, next, end;
} layout;

/* A constant's tensor looks at the file's own bytes: nothing is copied, the system reads pages when
** a kernel first does, and processes that run one file share them. Its data has to be where the
** last constant's ended, aligned: two constants cannot overlap, nor bytes lie unused between
** them. */
static void read_constant(reader *r, ek_executable *e, int32_t index, layout *at) {
  int64_t shape[EK_MAX_NDIM];
  size_t expected = 0;
  ek_dtype dtype = {(uint8_t)number(r, 1), (uint8_t)number(r, 1), (uint16_t)number(r, 2)};
  uint32_t ndim = u32(r);
  if (ndim > EK_MAX_NDIM) fail(r, "constant %d: rank %u is above %d", index, ndim, EK_MAX_NDIM);
  for (uint32_t i = 0; i < ndim && !r->failed; i++) shape[i] = (int64_t)u64(r);
  uint64_t nbytes = u64(r), offset = u64(r);
  if (r->failed) return;
  bool is_elsewhere = dtype.lanes == LATE_BOUND || dtype.lanes == MADE_AT_LOAD;
  e->is_absent[index] = dtype.lanes == MADE_AT_LOAD;
  if (is_elsewhere) dtype.lanes = 1;
  uint64_t stored = is_elsewhere ? 0 : nbytes;
  if (index == 0) at->first = at->next = offset;
  if (ek_shape_nbytes(shape, (int32_t)ndim, dtype, &expected) != 0) {
    ek_object_release(ek_error_take());
    fail(r, "constant %d: its shape or dtype is not valid", index);
  }
  if (nbytes != expected)
    fail(r, "constant %d: its shape does not give %llu bytes", index, (unsigned long long)nbytes);
  if (offset != at->next || offset % ALIGNMENT != 0)
    fail(r, "constant %d: its data is not at %llu", index, (unsigned long long)at->next);
  if (offset > e->size || stored > e->size - offset)
    fail(r, "constant %d: its data is not in the file", index);
  if (r->failed) return;
  at->end = offset + stored;
  at->next = aligned(at->end);
  ek_device cpu = {EK_CPU, 0};
  if (is_elsewhere) {
    ek_tensor *unbound = ek_tensor_alloc(shape, (int32_t)ndim, dtype, cpu);
    r->failed = unbound == NULL;
    if (!r->failed) e->constants[e->n_constants++] = &unbound->base;
    return;
  }
  /* The cast drops const: READ_ONLY says it again. */
  r->failed = ek_tensor_view(e->file, (void *)(uintptr_t)(e->data + offset), shape, (int32_t)ndim,
                             dtype, cpu, EK_DLPACK_READ_ONLY, &e->constants[index]) != 0;
  if (!r->failed) e->n_constants++;
}

static void read_constants(reader *r, ek_executable *e) {
  layout at = {0, 0, 0};
  int32_t n = count(r, CONSTANT_SIZE);
  e->constants = items(r, (size_t)n, sizeof *e->constants);
  e->is_absent = items(r, (size_t)n, sizeof *e->is_absent);
  for (int32_t i = 0; i < n && !r->failed; i++) read_constant(r, e, i, &at);
  if (r->failed || n == 0) return;
  uint64_t records_end = (uint64_t)(r->at - e->data), end = (uint64_t)(r->end - e->data);
  if (at.first != aligned(records_end))
    fail(r, "data is expected at %llu, got %llu", (unsigned long long)aligned(records_end),
         (unsigned long long)at.first);
  if (at.end != end)
    fail(r, "its data ends at %llu, not at %llu", (unsigned long long)at.end,
         (unsigned long long)end);
  if (!r->failed) r->at = r->end;
}

static void read_primitives(reader *r, ek_executable *e) {
  int32_t n = count(r, 4);
  e->primitives = items(r, (size_t)n, sizeof *e->primitives);
  for (int32_t i = 0; i < n && !r->failed; i++) e->primitives[i] = string(r);
  if (!r->failed) e->n_primitives = n;
}

/* The words are copied to be of the machine's byte order and aligned, and because verifying changes
** jumps; 'file_words' stays for the disassembler and for copies. */
static void read_function(reader *r, ek_vm_function *f, int32_t *words) {
  uint32_t n_registers = u32(r);
  f->n_words = count(r, 4);
  f->file_words = r->at;
  f->code = words;
  f->entry = words;
  for (int32_t i = 0; i < f->n_words; i++) words[i] = (int32_t)u32(r);
  /* Every register is an argument or is named by a word, so that the file bounds the memory. */
  if (n_registers < (uint32_t)f->n_params ||
      n_registers - (uint32_t)f->n_params > (uint32_t)f->n_words) {
    fail(r, "'%.*s': %u registers do not go with %d parameters and %d words",
         ek_shown(f->name, 200), f->name.data, n_registers, f->n_params, f->n_words);
  }
  f->n_registers = (int32_t)n_registers;
}

static void read_code(reader *r, ek_executable *e) {
  uint32_t n = u32(r);
  if (n != (uint32_t)e->n_functions) fail(r, "%d functions expected, got %u", e->n_functions, n);
  e->words = items(r, left(r) / 4, sizeof *e->words);
  int32_t *words = e->words;
  for (int32_t i = 0; i < e->n_functions && !r->failed; i++) {
    read_function(r, &e->functions[i], words);
    words += e->functions[i].n_words;
  }
}

static void read_image(reader *r, ek_executable *e) {
  e->image = (ek_bytes){(const char *)r->at, left(r)};
  if (left(r) == 0) fail(r, "it is empty");
  take(r, left(r));
}

/* The module of it is made when the executable is linked. */
static void read_device_code(reader *r, ek_executable *e) {
  e->device_code = (ek_bytes){(const char *)r->at, left(r)};
  if (left(r) == 0) fail(r, "it is empty");
  take(r, left(r));
}

static void read_metadata(reader *r, ek_executable *e) { e->metadata = text(r, left(r)); }

/* A table of the host alone is not written: the file would not be the only one of its content. */
static void read_device_table(reader *r, ek_executable *e) {
  int32_t n = count(r, 8);
  if (!r->failed && (n < 2 || n > MOST_DEVICES)) {
    fail(r, "2 to %d devices expected, got %d", MOST_DEVICES, n);
  }
  ek_device *devices = items(r, (size_t)n, sizeof *devices);
  for (int32_t i = 0; i < n && !r->failed; i++) {
    devices[i].type = (int32_t)u32(r);
    devices[i].id = (int32_t)u32(r);
    bool is_new = true;
    for (int32_t k = 0; k < i; k++) is_new = is_new && !ek_device_same(devices[k], devices[i]);
    if (i == 0 && !ek_device_is_host(devices[0])) fail(r, "device 0 must be the host");
    if (devices[i].type < EK_CPU || devices[i].id < 0 || !is_new) {
      fail(r, "device %d: one that differs from those before it expected, got type %d, id %d", i,
           devices[i].type, devices[i].id);
    }
  }
  ek_free(e->devices);
  e->devices = devices;
  if (!r->failed) e->n_devices = n;
}

/* Read the devices of constants, primitives and parameters. */
static void read_places(reader *r, ek_executable *e) {
  int64_t n = (int64_t)e->n_constants + e->n_primitives;
  int64_t n_free = n; /* behind them, places name a device itself */
  for (int32_t i = 0; i < e->n_functions; i++) n += e->functions[i].n_params;
  if ((uint64_t)n != left(r) / 4 || n > INT32_MAX / 4) fail(r, "%lld places expected, got %zu", (long long)n, left(r) / 4);
  e->places = items(r, (size_t)n, sizeof *e->places);
  for (int64_t i = 0; i < n && !r->failed; i++) {
    bool is_primitive = i >= e->n_constants && i < n_free;
    uint32_t place = u32(r);
    if (place >= (uint32_t)e->n_devices + is_primitive) {
      fail(r, "place %lld: a device below %d expected, got %u", (long long)i, e->n_devices, place);
    }
    e->places[i] = (int32_t)place;
  }
  if (r->failed) return;
  e->primitive_places = e->places + e->n_constants;
  const int32_t *places = e->places + n_free;
  for (int32_t i = 0; i < e->n_functions; i++) {
    e->functions[i].places = places;
    places += e->functions[i].n_params;
  }
}

static void read_devices(reader *r, ek_executable *e) {
  read_device_table(r, e);
  if (!r->failed) read_places(r, e);
}

/* The next words of 64 bits, put behind those before; how many there are. */
static int32_t read_words(reader *r, int64_t **to) {
  int32_t n = count(r, sizeof **to);
  for (int32_t i = 0; i < n; i++) (*to)[i] = (int64_t)u64(r);
  *to += n;
  return n;
}

static void read_symbols(reader *r, ek_executable *e, int64_t **words) {
  int32_t n = count(r, 4 + 8 + 4);
  e->symbols = items(r, (size_t)n, sizeof *e->symbols);
  for (int32_t i = 0; i < n && !r->failed; i++) {
    ek_bytes name = string(r);
    int64_t most = (int64_t)u64(r), *definition = *words;
    int32_t n_words = read_words(r, words);
    if (most < 0) fail(r, "symbol %d: a limit of at least 0 expected, got %lld", i, (long long)most);
    if (!ek_definition_verify(definition, n_words, i)) {
      fail(r, "symbol %d: its definition is not valid", i);
    }
    e->symbols[i] = (ek_symbol){name, most, definition, n_words};
  }
  if (!r->failed) e->n_symbols = n;
}

/* The types of a function's parameters, or none. */
static void read_types_of(reader *r, ek_executable *e, int32_t index, int64_t **words) {
  ek_vm_function *f = &e->functions[index];
  const int64_t *at = *words;
  if (read_words(r, words) == 0) return;
  f->type = at;
  for (int32_t i = 0; i < f->n_params && at != NULL && !r->failed; i++) {
    at = ek_type_verify(at, *words, e->n_symbols, 0);
  }
  if (at != *words) fail(r, "function %d: the types of its parameters are not valid", index);
}

static void read_types(reader *r, ek_executable *e) {
  e->types = items(r, left(r) / 8, sizeof *e->types);
  int64_t *words = e->types;
  if (words != NULL) read_symbols(r, e, &words);
  for (int32_t i = 0; i < e->n_functions && !r->failed; i++) read_types_of(r, e, i, &words);
}

/* Read one derived constant: a host primitive computes it from constants that precede it. */
static void read_derived_one(reader *r, ek_executable *e, ek_derived *to) {
  uint32_t constant = u32(r), primitive = u32(r);
  to->n_inputs = count(r, 4);
  to->inputs = r->at;
  if (constant >= (uint32_t)e->n_constants || !e->is_absent[constant])
    fail(r, "constant %u: one that is made at loading, and was not before, expected", constant);
  if (primitive >= (uint32_t)e->n_primitives)
    fail(r, "a primitive below %d expected, got %u", e->n_primitives, primitive);
  for (int32_t i = 0; i < to->n_inputs && !r->failed; i++) {
    uint32_t input = u32(r);
    if (input >= (uint32_t)e->n_constants || e->is_absent[input])
      fail(r, "constant %u is made of constant %u, which is not there before it", constant, input);
  }
  if (r->failed) return;
  to->constant = (int32_t)constant;
  to->primitive = (int32_t)primitive;
  e->is_absent[constant] = false;
}

/* 'is_absent' marks what is still to be made, and reading a record clears it: inputs must be there
** before it, so records are in an order in which they can be made, and there is no cycle. */
static void read_derived(reader *r, ek_executable *e) {
  int32_t n = count(r, 12);
  if (!r->failed && n == 0) fail(r, "it is empty");
  if (e->n_devices > 1) fail(r, "constants are made at loading on the host alone");
  e->derived = items(r, (size_t)n, sizeof *e->derived);
  for (int32_t i = 0; i < n && !r->failed; i++) read_derived_one(r, e, &e->derived[i]);
  if (!r->failed) e->n_derived = n;
}

static void verify(reader *r, ek_executable *e) {
  char message[EK_VERIFY_MESSAGE];
  r->section = section_names[CODE];
  for (int32_t i = 0; i < e->n_functions && !r->failed; i++) {
    int status = ek_verify_function(e, i, message);
    if (status > 0) fail(r, "%s", message);
    if (status < 0) r->failed = true;
  }
}

static int read_executable(const char *source, ek_executable *e) {
  static void (*const readers[SECTIONS])(reader *, ek_executable *) = {
      [GLOBALS] = read_globals, [CONSTANTS] = read_constants, [PRIMITIVES] = read_primitives,
      [CODE] = read_code,       [IMAGE] = read_image,         [METADATA] = read_metadata,
      [DEVICES] = read_devices, [TYPES] = read_types,
      [DERIVED] = read_derived, [DEVICE_CODE] = read_device_code};
  ek_bytes payloads[SECTIONS] = {{NULL, 0}};
  reader r = {source, section_names[0], e->data, e->data + e->size, false};
  read_table(&r, e->data, e->size, payloads);
  for (int kind = GLOBALS; kind < SECTIONS && !r.failed; kind++) {
    if (payloads[kind].data == NULL) continue;
    r.section = section_names[kind];
    r.at = (const unsigned char *)payloads[kind].data;
    r.end = r.at + payloads[kind].size;
    readers[kind](&r, e);
    expect_end(&r);
  }
  if (!r.failed) verify(&r, e);
  return r.failed ? -1 : 0;
}

/* Life ----------------------------------------------------------------------------------------- */

/* The object that keeps the bytes of a file mapped. */
typedef struct file_object {
  ek_object base;
  const void *mapped;          /* from ek_file_map, or NULL */
  int place;                   /* where that is guarded, or -1 */
  void *buffer;                /* from ek_buffer_alloc, or NULL */
  size_t size;                 /* of either */
  ek_object *owner;            /* whose memory they are, or NULL */
} file_object;

static void file_deleter(void *self, int flags) {
  file_object *file = self;
  if ((flags & EK_DELETE_CONTENT) && file->mapped != NULL) {
    ek_guard_leave(file->place);
    ek_file_unmap(file->mapped, file->size);
  }
  if ((flags & EK_DELETE_CONTENT) && file->buffer != NULL) ek_buffer_free(file->buffer, file->size);
  if (flags & EK_DELETE_CONTENT) ek_object_release(file->owner);
  if (flags & EK_DELETE_MEMORY) ek_free(self);
}

static void release_items(ek_object **objects, int32_t n) {
  for (int32_t i = 0; objects != NULL && i < n; i++) ek_object_release(objects[i]);
  ek_free(objects);
}

static void drop_retired(ek_retired *first) {
  while (first != NULL) {
    ek_retired *gone = first;
    first = gone->next;
    ek_release(gone->function);
    ek_free(gone);
  }
}

/* Drops the native code of all functions, as after loading; nothing may run meanwhile. */
static void drop_native(ek_executable *e) {
  for (int32_t i = 0; e->functions != NULL && i < e->n_functions; i++) {
    ek_native_free(&e->functions[i]);
    e->functions[i].native = NULL;
    e->functions[i].entry = e->functions[i].code;
  }
}

static void executable_deleter(void *self, int flags) {
  ek_executable *e = self;
  if (flags & EK_DELETE_CONTENT) {
    release_items(e->constants, e->n_constants);
    release_items(e->linked, e->n_primitives);
    release_items(e->given, e->n_primitives);
    drop_retired(e->retired);
    drop_native(e);
    ek_object_release(e->hot);
    ek_free(e->functions);
    ek_free(e->is_absent);
    ek_free(e->derived);
    ek_free(e->primitives);
    ek_free(e->words);
    ek_free(e->devices);
    ek_free(e->places);
    ek_free(e->symbols);
    ek_free(e->types);
    ek_free(e->guarded);
    ek_object_release(e->file);
  }
  if (flags & EK_DELETE_MEMORY) ek_free(self);
}

/* Guarded files ------------------------------------------------------------------------------------
**
** What is guarded is held by the executable's file or by a constant, so that places stay theirs. */

/* Notes that data of an executable lies at an address. Before the first run. 0 or -1. */
static int note_guard(ek_executable *e, const void *address) {
  int place = ek_guard_at(address);
  for (int32_t i = 0; i < e->n_guarded; i++) {
    if (e->guarded[i] == place) return 0;
  }
  if (place < 0) return 0;
  int32_t *more = ek_alloc_or_error(((size_t)e->n_guarded + 1) * sizeof *more);
  if (more == NULL) return -1;
  if (e->n_guarded != 0) memcpy(more, e->guarded, (size_t)e->n_guarded * sizeof *more);
  more[e->n_guarded++] = place;
  ek_free(e->guarded);
  e->guarded = more;
  return 0;
}

int ek_executable_check_files(const ek_executable *e) {
  for (int32_t i = 0; i < e->n_guarded; i++) {
    if (ek_guard_is_whole(e->guarded[i])) continue;
    return ek_error("LoadError", "run: the file of the program, or of its constants, was cut short "
                    "while it was in use: write another file and rename it, and load that");
  }
  return 0;
}

/* Takes 'file' over, also on failure. */
static int executable_new(const char *source, file_object *file, const void *bytes, size_t size,
                          ek_object **out) {
  ek_executable *e = ek_object_alloc(sizeof *e, EK_EXECUTABLE, executable_deleter);
  if (e == NULL) {
    ek_release(&file->base);
    return -1;
  }
  static uint64_t result;
  e->number = __atomic_add_fetch(&result, 1, __ATOMIC_RELAXED);
  e->file = &file->base;
  e->data = bytes;
  e->size = size;
  e->externs = ek_externs;
  e->lock = (ek_mutex)EK_MUTEX_INIT;
  e->n_devices = 1;
  e->devices = ek_alloc_or_error(sizeof *e->devices);
  if (e->devices != NULL) e->devices[0] = (ek_device){EK_CPU, 0};
  if (e->devices == NULL || note_guard(e, bytes) != 0 || read_executable(source, e) != 0) {
    ek_release(&e->base);
    return -1;
  }
  *out = &e->base;
  return 0;
}

int ek_executable_load(const char *path, ek_object **out) {
  size_t size = 0;
  file_object *file = ek_object_alloc(sizeof *file, EK_OBJECT, file_deleter);
  if (file == NULL) return -1;
  file->mapped = ek_file_map(path, &size);
  file->size = size;
  if (file->mapped == NULL) {
    int reason = errno;
    ek_release(&file->base);
    return ek_error("OSError", "load '%s': %s", path, strerror(reason));
  }
  file->place = size == 0 ? -1 : ek_guard_file(file->mapped, size);
  char source[160];
  snprintf(source, sizeof source, "'%.150s'", path);
  return executable_new(source, file, file->mapped, size, out);
}

#ifdef EK_GUARDS
int ek_file_tensor(int file, size_t size, ek_object **out) {
  file_object *owner = ek_object_alloc(sizeof *owner, EK_OBJECT, file_deleter);
  if (owner == NULL) return -1;
  owner->place = -1;
  owner->size = size;
  owner->mapped = ek_guard_map(file, size);
  if (owner->mapped != NULL) owner->place = ek_guard_watch(owner->mapped, size);
  int64_t shape[] = {(int64_t)size};
  int status = owner->place >= 0 ? 0 : ek_error("OSError", "map a file: %s",
      owner->mapped == NULL ? strerror(errno) : "too many are");
  /* The cast drops const: READ_ONLY says it again. */
  if (status == 0) {
    status = ek_tensor_view(&owner->base, (void *)(uintptr_t)owner->mapped, shape, 1,
                            (ek_dtype){EK_DTYPE_UINT, 8, 1}, (ek_device){EK_CPU, 0},
                            EK_DLPACK_READ_ONLY, out);
  }
  ek_release(&owner->base);
  return status;
}
#endif

/* Constants must be aligned in memory as in the file: other bytes are copied even if not asked.
** Without 'copy' and without an owner, the bytes are the caller's to keep, for as long as the
** executable lives: data of a program that was linked with one. */
static int from_bytes(const void *bytes, size_t size, bool copy, ek_object *owner, ek_object **out) {
  file_object *file = ek_object_alloc(sizeof *file, EK_OBJECT, file_deleter);
  if (file == NULL) return -1;
  ek_object_retain(owner);
  file->owner = owner;
  if (copy || (uintptr_t)bytes % ALIGNMENT != 0) {
    file->buffer = ek_buffer_alloc(size, &file->size);
    if (file->buffer == NULL) {
      ek_release(&file->base);
      return ek_error_memory(size);
    }
    if (size != 0) memcpy(file->buffer, bytes, size);
    bytes = file->buffer;
  }
  return executable_new("executable", file, bytes, size, out);
}

int ek_executable_from_bytes(const void *bytes, size_t size, int copy, ek_object **out) {
  return from_bytes(bytes, size, copy != 0, NULL, out);
}

int ek_tensor_bytes(const char *what, const ek_object *tensor, ek_bytes *out) {
  const ek_dltensor *data = &((const ek_tensor *)(const void *)tensor)->dl;
  bool is_bytes = data->dtype.code == EK_DTYPE_UINT && data->dtype.bits == 8 &&
                  data->dtype.lanes == 1 && data->ndim == 1;
  if (!is_bytes || data->device.type != EK_CPU || !ek_dltensor_is_contiguous(data)) {
    return ek_error("TypeError", "%s: bytes of the host expected", what);
  }
  *out = (ek_bytes){(const char *)data->data + data->byte_offset, (size_t)data->shape[0]};
  return 0;
}

int ek_executable_of_tensor(ek_object *tensor, ek_object **out) {
  ek_bytes bytes;
  if (ek_tensor_bytes("ek.executable.of_tensor", tensor, &bytes) != 0) return -1;
  return from_bytes(bytes.data, bytes.size, false, tensor, out);
}

/* Late-bound constants ---------------------------------------------------------------------------
**
** Until its data is given, such a constant is a tensor that has none, and nobody sees it. */

static bool is_unbound(const ek_executable *e, int64_t index) {
  return ((const ek_tensor *)(const void *)e->constants[index])->owner == NULL;
}

static bool is_derived(const ek_executable *e, int64_t index) {
  bool is_found = e->is_absent[index];
  for (int32_t i = 0; i < e->n_derived; i++) is_found = is_found || e->derived[i].constant == index;
  return is_found;
}

/* Refuse to link while a late-bound constant has no data. A derived constant has none either until
** it is computed, and needs none from a user. */
static int expect_bound(const ek_executable *e) {
  int32_t first = -1, n = 0;
  for (int32_t i = 0; i < e->n_constants; i++) {
    if (!is_unbound(e, i) || is_derived(e, i)) continue;
    if (n++ == 0) first = i;
  }
  if (n == 0) return 0;
  return ek_error("LoadError", "link executable: %d late-bound constants are missing, the first is "
                  "const_%d: load them before the first run", n, first);
}

static bool is_same_kind(const ek_dltensor *a, const ek_dltensor *b) {
  return a->ndim == b->ndim && memcmp(&a->dtype, &b->dtype, sizeof a->dtype) == 0 &&
         (a->ndim == 0 || memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) == 0);
}

/* A read-only view of a tensor where kernels can read it, else of a copy. As it lies means that the
** caller's writes are seen by later runs: it is lent for good. */
static int as_constant(const ek_value *value, const ek_dltensor *data, ek_object **out) {
  ek_object *owner = value->v.obj, *copy = NULL;
  bool can_stay = value->type_index == EK_TENSOR && ek_device_is_host(data->device) &&
                  ek_dltensor_is_contiguous(data) &&
                  (uintptr_t)ek_dltensor_data(data) % ALIGNMENT == 0;
  if (!can_stay) {
    ek_device cpu = {EK_CPU, 0};
    if (ek_tensor_copied(data, cpu, &copy) != 0) return -1;
    owner = copy;
    data = &((ek_tensor *)(void *)copy)->dl;
  }
  int status = ek_tensor_strided(owner, data, EK_DLPACK_READ_ONLY, out);
  ek_object_release(copy);
  return status;
}

int ek_executable_bind(ek_executable *e, int64_t index, const ek_value *value) {
  const ek_dltensor *data = ek_value_tensor(value);
  if (index < 0 || index >= e->n_constants || data == NULL) {
    return ek_error("ValueError", "bind constant: one of %d constants and a tensor expected, got "
                    "constant %lld and %s", e->n_constants, (long long)index,
                    ek_value_type_name(value));
  }
  ek_mutex_lock(&e->lock);
  ek_object *old = e->constants[index], *bound = NULL;
  int status = 0;
  if (!is_unbound(e, index) || is_derived(e, index)) {
    status = ek_error("ValueError", "bind constant: const_%lld has its data", (long long)index);
  } else if (!is_same_kind(data, &((ek_tensor *)(void *)old)->dl)) {
    status = ek_error("ValueError", "bind constant: const_%lld: its shape and dtype expected, got "
                      "others", (long long)index);
  } else {
    status = as_constant(value, data, &bound);
  }
  if (status == 0 && note_guard(e, ((ek_tensor *)(void *)bound)->dl.data) != 0) {
    ek_release(bound);
    status = -1;
  }
  if (status == 0) e->constants[index] = bound;
  ek_mutex_unlock(&e->lock);
  if (status == 0) ek_release(old);
  return status;
}

/* Linking -------------------------------------------------------------------------------------- */

/* Link a function of an external compiler: call "ek.external.<compiler>"(name, metadata), or load
** it by the library of the engine of that name. */
static int make_external(const ek_executable *e, const char *name, ek_object **out) {
  char maker[128];
  ek_bytes compiler = ek_metadata_item(e->metadata, "external", name, 0);
  int shown = ek_shown(compiler, 64);
  if (compiler.size == 0) {
    return ek_error("LoadError",
                    "link executable: primitive '%s' is neither in its native code "
                    "nor a registered function",
                    name);
  }
  snprintf(maker, sizeof maker, "ek.external.%.*s", shown, compiler.data);
  ek_object *function = ek_registry_get(maker);
  if (function == NULL) {
    const char *engine = maker + strlen("ek.external.");
#ifdef EK_SMALL
    return ek_error("LoadError", "link executable: '%s' is for '%s': this program opens no engines",
                    name, engine);
#else
    ek_bytes text = ek_metadata_item(e->metadata, "external", name, 1);
    return ek_engine_link(engine, name, text, out);
#endif
  }
  ek_value args[2] = {{EK_RAW_STR, 0, {0}}, ek_value_none()}, made = ek_value_none();
  args[0].v.ptr = (void *)(uintptr_t)name;
  int status = ek_string_new(EK_STR, e->metadata.data, e->metadata.size, &args[1]);
  if (status == 0) status = ek_function_call(function, args, 2, &made);
  ek_value_release(&args[1]);
  ek_release(function);
  if (status != 0) return -1;
  if (made.type_index == EK_FUNCTION) {
    *out = made.v.obj;
    return 0;
  }
  ek_error("TypeError", "link executable: '%s' must give a function, got %s", maker,
           ek_value_type_name(&made));
  ek_value_release(&made);
  return -1;
}

/* What it makes, with a check of the outputs of an engine that is not one of ours. */
static int link_external(const ek_executable *e, const char *name, ek_object **out) {
  if (make_external(e, name, out) != 0) return -1;
#ifndef EK_SMALL
  ek_bytes engine = ek_metadata_item(e->metadata, "external", name, 0);
  int64_t n_outputs = ek_metadata_number(e->metadata, "external", name, 1);
  if (n_outputs != 0 && ek_engine_check(engine, name, (int32_t)n_outputs, out) != 0) {
    ek_release(*out);
    *out = NULL;
    return -1;
  }
#endif
  return 0;
}

/* Link a primitive to the first that provides it: a swap before linking, the file's own native
** code, the caller's library, the registry, a third-party engine. Only the first two are known to
** keep no reference to an argument and to write nothing but outputs ('is_kernel'); with any other,
** runs copy what they lend ('keeps_arguments') and do nothing beside it (ek_async.c). */
static int link_primitive(ek_executable *e, int32_t index, ek_object *image, ek_object *library,
                          ek_object **out) {
  ek_bytes name = e->primitives[index];
  char *key = ek_alloc_or_error(name.size + 1);
  if (key == NULL) return -1;
  memcpy(key, name.data, name.size);
  key[name.size] = '\0';
  if (e->given != NULL) *out = e->given[index];
  ek_object_retain(*out);
  int status = image == NULL || *out != NULL ? 0 : ek_module_get(image, key, out);
  e->is_kernel[index] = *out != NULL;
  if (*out == NULL) e->keeps_arguments = true;
  if (status == 0 && *out == NULL && library != NULL) status = ek_module_get(library, key, out);
  if (status == 0 && *out == NULL) *out = ek_registry_get(key);
  if (status == 0 && *out == NULL) status = link_external(e, key, out);
  ek_free(key);
  return status;
}

/* Whether the executable's file, or a constant on the host, lies at a guarded place. */
static bool is_at_guard(const ek_executable *e, int32_t place) {
  bool is_found = ek_guard_at(e->data) == place;
  for (int32_t i = 0; i < e->n_constants && !is_found; i++) {
    const ek_dltensor *data = &((ek_tensor *)(void *)e->constants[i])->dl;
    is_found = data->device.type == EK_CPU && ek_guard_at(data->data) == place;
  }
  return is_found;
}

/* Forgets the guards of what has moved to devices: its places are free for other files. */
static void release_guards(ek_executable *e) {
  int32_t n = 0;
  for (int32_t i = 0; i < e->n_guarded; i++) {
    if (is_at_guard(e, e->guarded[i])) e->guarded[n++] = e->guarded[i];
  }
  e->n_guarded = n;
}

static int place_constant(ek_executable *e, int32_t index) {
  const ek_dltensor *data = &((ek_tensor *)(void *)e->constants[index])->dl;
  ek_device device = e->devices[e->places[index]];
  ek_object *copy, *object;
  if (ek_device_same(data->device, device)) return 0;
  if (ek_tensor_copied(data, device, &copy) != 0) return -1;
  int status = ek_tensor_strided(copy, &((ek_tensor *)(void *)copy)->dl, EK_DLPACK_READ_ONLY, &object);
  ek_release(copy);
  /* The file that it was copied from has been whole until now. */
  if (status == 0 && ek_executable_check_files(e) != 0) {
    ek_release(object);
    status = -1;
  }
  if (status != 0) return -1;
  ek_release(e->constants[index]);
  e->constants[index] = object;
  release_guards(e);
  return 0;
}

/* Moves the constants that other devices have to these, once. Under the lock. If that fails half
** way, those that moved stay: linking again finds them where they should be. */
static int place_constants(ek_executable *e) {
  for (int32_t i = 0; e->places != NULL && i < e->n_constants; i++) {
    if (place_constant(e, i) != 0) return -1;
  }
  return 0;
}

/* Makes the constant that 'd' describes, by the functions of primitives: larger than what it is
** made of (weights transformed for Winograd's convolution are, four times), it takes no place in
** the file, but time at loading. */
static int derive(ek_executable *e, const ek_derived *d, ek_object *const *linked) {
  ek_object *old = e->constants[d->constant], *object;
  const ek_dltensor *like = &((ek_tensor *)(void *)old)->dl;
  ek_value *args = ek_alloc_or_error(((size_t)d->n_inputs + 1) * sizeof *args), dropped;
  if (args == NULL) return -1;
  int status = ek_tensor_new(like->shape, like->ndim, like->dtype, like->device, &object);
  if (status == 0) {
    reader r = {NULL, NULL, d->inputs, d->inputs + 4 * (size_t)d->n_inputs, false};
    for (int32_t i = 0; i < d->n_inputs; i++) args[i] = ek_value_object(e->constants[u32(&r)]);
    args[d->n_inputs] = ek_value_object(object);
    dropped = ek_value_none();
    status = ek_function_call(linked[d->primitive], args, d->n_inputs + 1, &dropped);
    if (status == 0) ek_value_release(&dropped);
    if (status != 0) ek_release(object);
  }
  ek_free(args);
  if (status != 0) return -1;
  ((ek_tensor *)(void *)object)->flags |= EK_DLPACK_READ_ONLY;
  e->constants[d->constant] = object;
  ek_release(old);
  return 0;
}

/* Compute the derived constants that are not computed yet. The lock is held. */
static int derive_all(ek_executable *e, ek_object *const *linked) {
  for (int32_t i = 0; i < e->n_derived; i++) {
    if (is_unbound(e, e->derived[i].constant) && derive(e, &e->derived[i], linked) != 0) return -1;
  }
  return 0;
}

/* The kernels of devices, which code of the host calls. */
static int import_device_code(ek_executable *e, ek_object *image) {
  ek_object *code;
  if (e->device_code.size == 0 || image == NULL) return 0;
  if (ek_device_code_load(e->device_code.data, e->device_code.size, e->file, &code) != 0) return -1;
  int status = ek_module_import(image, code);
  ek_release(code);
  return status;
}

/* Under the lock. All or nothing but for constants: on failure functions are as loaded, and linking
** may be tried again. 'is_kernel' lies behind the functions, in one block with them. Derived
** constants come last, as kernels make them; they see 'linked' by argument, as the executable has
** it only when all is there. */
static int link_all(ek_executable *e, ek_object *library) {
  ek_object *image = NULL;
  size_t n = (size_t)e->n_primitives, size = n * (sizeof *e->linked + sizeof *e->is_kernel) + 1;
  if (place_constants(e) != 0) return -1;
  const ek_extern *before = ek_externs;
  ek_externs = e->externs;
  int loaded = e->image.size == 0 ? 0 : ek_image_load(e->image.data, e->image.size, &image);
  ek_externs = before;
  if (loaded != 0) return -1;
  ek_object **linked = ek_alloc_or_error(size);
  int status = linked == NULL ? -1 : import_device_code(e, image);
  if (linked != NULL) memset(linked, 0, size);
  e->is_kernel = (bool *)(linked + n);
  for (int32_t i = 0; i < e->n_primitives && status == 0; i++) {
    status = link_primitive(e, i, image, library, &linked[i]);
  }
  if (status == 0) status = derive_all(e, linked);
  e->linked = linked;
  if (status == 0 && image != NULL) status = ek_native_attach(e, image);
  ek_object_release(image);
  if (status == 0) return 0;
  drop_native(e);
  e->linked = NULL;
  release_items(linked, e->n_primitives);
  return -1;
}

int ek_executable_link(ek_executable *executable, ek_object *library) {
  ek_mutex_lock(&executable->lock);
  int status = executable->linked != NULL ? 0 : expect_bound(executable);
  if (status == 0 && executable->linked == NULL) status = link_all(executable, library);
  ek_mutex_unlock(&executable->lock);
  return status;
}

static bool is_named(ek_bytes own, ek_bytes name) {
  return own.size == name.size && memcmp(own.data, name.data, own.size) == 0;
}

/* Puts a function into a table of primitives; what was there is kept for the runs that are in it.
** Under the lock. */
static int replace(ek_executable *e, ek_object **place, ek_object *function) {
  ek_retired *retired = *place == NULL ? NULL : ek_alloc_or_error(sizeof *retired);
  if (*place != NULL && retired == NULL) return -1;
  if (retired != NULL) {
    *retired = (ek_retired){e->retired, *place};
    e->retired = retired;
  }
  ek_retain(function);
  __atomic_store_n(place, function, __ATOMIC_RELEASE);
  return 0;
}

static ek_object **given_functions(ek_executable *e) {
  size_t size = (size_t)e->n_primitives * sizeof *e->given + 1;
  if (e->given == NULL && (e->given = ek_alloc_or_error(size)) != NULL) memset(e->given, 0, size);
  return e->given;
}

int ek_executable_swap(ek_executable *e, ek_bytes name, ek_object *function) {
  int status = 0;
  bool is_known = false;
  ek_mutex_lock(&e->lock);
  ek_object **table = e->linked != NULL ? e->linked : given_functions(e);
  if (table == NULL) status = -1;
  for (int32_t i = 0; i < e->n_primitives && status == 0; i++) {
    if (!is_named(e->primitives[i], name)) continue;
    is_known = true;
    status = replace(e, &table[i], function);
  }
  ek_mutex_unlock(&e->lock);
  if (status != 0 || is_known) return status;
  return ek_error("ValueError", "swap kernel: no primitive is named '%.*s'",
                  ek_shown(name, 200), name.data);
}

int ek_executable_kernel(ek_executable *e, const char *name, ek_object **out) {
  for (int32_t i = 0; i < e->n_primitives; i++) {
    if (!is_named(e->primitives[i], (ek_bytes){name, strlen(name)})) continue;
    if (ek_executable_link(e, NULL) != 0) return -1;
    *out = ek_executable_linked(e, i);
    ek_retain(*out);
    return 0;
  }
  return 0;
}

/* Parts ---------------------------------------------------------------------------------------- */

static ek_executable *as_executable(ek_object *object) {
  if (ek_is(object, EK_EXECUTABLE)) return (ek_executable *)(void *)object;
  ek_error("TypeError", "read executable: an executable expected, got another object");
  return NULL;
}

static int64_t count_of(const ek_executable *e, int32_t part) {
  switch (part) {
    case EK_PART_GLOBAL:
    case EK_PART_PARAMS:
    case EK_PART_CODE:
    case EK_PART_REGISTERS:
    case EK_PART_INSTRUCTIONS: return e->n_functions;
    case EK_PART_CONSTANT: return e->n_constants;
    case EK_PART_PRIMITIVE: return e->n_primitives;
    case EK_PART_DEVICE: return e->n_devices;
    case EK_PART_METADATA:
    case EK_PART_FILE: return 1;
    default: return ek_error("ValueError", "read executable: there is no part %d", part);
  }
}

/* A parameter's name, whose length stands before it. */
static ek_bytes name_at(const unsigned char *at) {
  reader r = {NULL, NULL, at, at + 4, false};
  return (ek_bytes){(const char *)at + 4, u32(&r)};
}

ek_bytes ek_executable_param(const ek_vm_function *f, int32_t i) {
  ek_bytes name = name_at(f->params);
  while (i-- > 0) name = name_at((const unsigned char *)name.data + name.size);
  return name;
}

static int params_of(const ek_vm_function *f, ek_value *out) {
  ek_array *array = ek_array_alloc(f->n_params);
  const unsigned char *at = f->params;
  if (array == NULL) return -1;
  for (int32_t i = 0; i < f->n_params; i++) {
    ek_bytes name = name_at(at);
    if (ek_string_new(EK_STR, name.data, name.size, &array->data[i]) != 0) {
      ek_release(&array->base);
      return -1;
    }
    at += 4 + name.size;
  }
  *out = ek_value_object(&array->base);
  return 0;
}

int ek_executable_item(ek_object *executable, int32_t part, int64_t index, ek_value *out) {
  const ek_executable *e = as_executable(executable);
  int64_t n = e == NULL ? -1 : count_of(e, part);
  if (n < 0) return -1;
  if (index == -1) {
    *out = ek_value_int(n);
    return 0;
  }
  if (index < 0 || index >= n) {
    return ek_error("IndexError", "read executable: part %d has %lld items, got index %lld", part,
                    (long long)n, (long long)index);
  }
  const ek_vm_function *f = &e->functions[index < e->n_functions ? index : 0];
  switch (part) {
    case EK_PART_GLOBAL: return ek_string_new(EK_STR, f->name.data, f->name.size, out);
    case EK_PART_PARAMS: return params_of(f, out);
    case EK_PART_CODE:
      return ek_string_new(EK_BYTES, (const char *)f->file_words, 4 * (size_t)f->n_words, out);
    case EK_PART_REGISTERS: *out = ek_value_int(f->n_registers); return 0;
    case EK_PART_INSTRUCTIONS:
      *out = ek_value_int(ek_vm_instruction(f, f->code + f->n_words));
      return 0;
    case EK_PART_CONSTANT:
      *out = ek_value_none();
      if (is_unbound(e, index)) return 0;
      *out = ek_value_object(e->constants[index]);
      ek_value_retain(out);
      return 0;
    case EK_PART_PRIMITIVE:
      return ek_string_new(EK_STR, e->primitives[index].data, e->primitives[index].size, out);
    case EK_PART_DEVICE:
      *out = (ek_value){.type_index = EK_DEVICE, .v.device = e->devices[index]};
      return 0;
    case EK_PART_METADATA: return ek_string_new(EK_STR, e->metadata.data, e->metadata.size, out);
    default: return ek_string_new(EK_BYTES, (const char *)e->data, e->size, out);
  }
}

int32_t ek_executable_find(const ek_executable *e, const char *name) {
  size_t size = strlen(name);
  for (int32_t i = 0; i < e->n_functions; i++) {
    ek_bytes of = e->functions[i].name;
    if (of.size == size && memcmp(of.data, name, size) == 0) return i;
  }
  return -1;
}

int ek_executable_save(const ek_executable *e, const char *path) {
  if (ek_file_write(path, e->data, e->size) == 0) return 0;
  return ek_error("OSError", "save '%s': %s", path, strerror(errno));
}
