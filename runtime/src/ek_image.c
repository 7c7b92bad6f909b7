/* The loader of native code images; runtime.h describes the format.
**
** A cursor reads the tables straight through, fails once and stays failed. Everything is checked
** before memory is mapped. What is checked is the container; code is code, and is trusted.
*/
#include "ek_image.h"

#include <errno.h>
#include <stdio.h>

#include "ek_cpu.h"

/* Why a format of our own and not ELF: a page of text and two tables is all that is needed where
** code refers to nothing but itself and a table of addresses behind it. So loading is one mapping,
** one copy and one change of protection, on every system, without a linker and without a file. */
enum { PAGE = 4096, HEADER_SIZE = 48 };

/* The byte of the header that names an architecture; no image is for others. */
#if defined(__x86_64__) && defined(_WIN32)
enum { ARCHITECTURE = 5 };     /* functions are called otherwise than on other systems */
#elif defined(__x86_64__)
enum { ARCHITECTURE = 0 };
#elif defined(__aarch64__)
enum { ARCHITECTURE = 1 };
#elif defined(__riscv) && __riscv_xlen == 64
enum { ARCHITECTURE = 2 };
#elif defined(__wasm32__)
enum { ARCHITECTURE = 3 };
#elif defined(__arm__)
enum { ARCHITECTURE = 4 };
#else
enum { ARCHITECTURE = 255 };
#endif

static const char *const architectures[] = {"x86-64", "AArch64", "RISC-V", "WebAssembly",
                                            "Armv7", "Windows"};

static const unsigned char magic[8] = {'E', 'K', 'I', 'M', 'G', 0, ARCHITECTURE, 1};

typedef struct image_export {
  ek_bytes name;               /* points into 'tail' of the image */
  uint64_t offset;
} image_export;

typedef struct image {
  ek_code code;
  image_export *exports;       /* sorted by name */
  uint32_t export_count;
  unsigned char *head;         /* a copy of the header's page */
  unsigned char *tail;         /* of all behind the text: the tables, whose names it holds */
  uint64_t text_size, total;
  uintptr_t *table;            /* an address per import, to be copied behind the text */
  ek_call_site *sites;         /* with names of their own */
  uint32_t site_count;
  unsigned char *held;         /* of an image that is not run here: its text */
  char absent[256];            /* the first C function that it needs and nobody has, or "" */
} image;

typedef struct header {
  uint32_t exports, imports;
  uint64_t text_size, export_offset, import_offset, total;
} header;

/* Reading -------------------------------------------------------------------------------------- */

typedef struct reader {
  const unsigned char *at, *end;
  const char *failed;          /* what went wrong first, or NULL */
} reader;

static void fail(reader *r, const char *what) {
  if (r->failed == NULL) r->failed = what;
  r->at = r->end;
}

/* Little-endian, whatever the machine. The comparison is with what is left, so that 'at' never
** passes 'end'; once failed nothing is left. */
static uint64_t unsigned_of(reader *r, size_t size) {
  uint64_t value = 0;
  if ((size_t)(r->end - r->at) < size) {
    fail(r, "the file ends inside it");
    return 0;
  }
  for (size_t i = 0; i < size; i++) value |= (uint64_t)r->at[i] << (8 * i);
  r->at += size;
  return value;
}

static uint32_t u32(reader *r) { return (uint32_t)unsigned_of(r, 4); }
static uint64_t u64(reader *r) { return unsigned_of(r, 8); }

static ek_bytes name_of(reader *r) {
  ek_bytes name = {"", 0};
  uint32_t size = u32(r);
  if (r->failed != NULL) return name;
  if (size > (size_t)(r->end - r->at)) fail(r, "a name is longer than the table");
  else if (size == 0) fail(r, "a name is empty");
  else if (memchr(r->at, 0, size) != NULL) fail(r, "a name contains a zero byte");
  if (r->failed != NULL) return name;
  name = (ek_bytes){(const char *)r->at, size};
  r->at += size;
  return name;
}

static void zeros_to_end(reader *r) {
  for (; r->at < r->end; r->at++) {
    if (*r->at != 0) fail(r, "there are bytes behind its last entry");
  }
}

/* Sections ------------------------------------------------------------------------------------- */

static int load_error(const char *section, const char *what) {
  return ek_error("LoadError", "load code image: %s: %s", section, what);
}

/* The text behind the numbers of the header: printable, to the first byte that is not. */
static ek_bytes needs_of(const unsigned char *bytes) {
  size_t size = 0;
  const unsigned char *text = bytes + HEADER_SIZE;
  while (size < PAGE - HEADER_SIZE && text[size] >= ' ' && text[size] <= '~') size++;
  return (ek_bytes){(const char *)text, size};
}

/* Takes the next word of a text. */
static ek_bytes word_of(ek_bytes *text) {
  const char *space = memchr(text->data, ' ', text->size);
  size_t size = space == NULL ? text->size : (size_t)(space - text->data);
  ek_bytes word = {text->data, size};
  size += space != NULL;
  *text = (ek_bytes){text->data + size, text->size - size};
  return word;
}

static void add(char *text, size_t capacity, const char *form, ek_bytes word) {
  size_t used = strlen(text);
  snprintf(text + used, capacity - used, form, (int)word.size, word.data);
}

/* Told before anything else of the image is looked at: the loader of executables asks it of each
** variant, to choose one. An image that is damaged lacks nothing here; loading it will say so. */
bool ek_image_lacks(const unsigned char *bytes, size_t size, char *out, size_t capacity) {
  bool lacks = false;
  if (size < PAGE || memcmp(bytes, magic, 6) != 0) return false;
  ek_bytes needs = needs_of(bytes), processor = word_of(&needs);
  if (bytes[6] != ARCHITECTURE) {
    bool is_known = bytes[6] < sizeof architectures / sizeof architectures[0];
    needs = ek_bytes_of(is_known ? architectures[bytes[6]] : "its architecture");
    add(out, capacity, "%.*s", needs);
    lacks = true;
  } else {
    while (needs.size != 0) {
      ek_bytes name = word_of(&needs);
      if (ek_cpu_has(name.data, name.size)) continue;
      add(out, capacity, lacks ? " %.*s" : "%.*s", name);
      lacks = true;
    }
  }
  if (lacks && processor.size != 0) add(out, capacity, " (%.*s)", processor);
  return lacks;
}

static int read_header(const unsigned char *bytes, size_t size, bool runs, header *out) {
  char lacks[EK_IMAGE_LACKS] = "";
  if (size < PAGE) return load_error("header", "the file ends inside it");
  if (memcmp(bytes, magic, 6) != 0) return load_error("header", "this is no code image");
  if (bytes[7] != magic[7]) return load_error("header", "it is of another version");
  if (runs && ek_image_lacks(bytes, size, lacks, sizeof lacks))
    return ek_error("LoadError",
                    "load code image: header: this machine lacks what its code needs: %s", lacks);
  reader r = {bytes + sizeof magic, bytes + HEADER_SIZE, NULL};
  out->exports = u32(&r);
  out->imports = u32(&r);
  out->text_size = u64(&r);
  out->export_offset = u64(&r);
  out->import_offset = u64(&r);
  out->total = u64(&r);
  r.end = bytes + PAGE;
  r.at += needs_of(bytes).size;
  zeros_to_end(&r);
  return r.failed == NULL ? 0 : load_error("header", r.failed);
}

/* A table of n entries of at least 'entry' bytes lies in [begin, end). */
static bool holds(uint64_t begin, uint64_t end, uint32_t n, uint64_t entry) {
  return begin <= end && (end - begin) / entry >= n;
}

static int check_header(const header *h, size_t size) {
  if (h->total != size) {
    return ek_error("LoadError", "load code image: header: expected %llu bytes, got %zu",
                    (unsigned long long)h->total, size);
  }
  if (h->text_size > size - PAGE) return load_error("text", "it is larger than the file");
  if (h->export_offset < PAGE + h->text_size ||
      !holds(h->export_offset, h->import_offset, h->exports, 13)) {
    return load_error("export table", "it does not fit between its neighbours");
  }
  if (!holds(h->import_offset, size, h->imports, 5)) {
    return load_error("import table", "it does not fit in the file");
  }
  return 0;
}

static int check_gap(const unsigned char *bytes, const header *h) {
  reader gap = {bytes + PAGE + h->text_size, bytes + h->export_offset, NULL};
  zeros_to_end(&gap);
  return gap.failed == NULL ? 0 : load_error("text", "there are bytes behind its end");
}

static int by_name(const void *a, const void *b) {
  const ek_bytes *x = &((const image_export *)a)->name, *y = &((const image_export *)b)->name;
  int order = memcmp(x->data, y->data, x->size < y->size ? x->size : y->size);
  return order != 0 ? order : (x->size > y->size) - (x->size < y->size);
}

/* Neighbours after sorting: names are looked up by halving, and a second one of a name could be
** found instead of the first on another machine's qsort. */
static int check_exports_unique(const image *self) {
  for (uint32_t i = 1; i < self->export_count; i++) {
    const image_export *item = &self->exports[i];
    if (by_name(item - 1, item) != 0) continue;
    int shown = ek_shown(item->name, 200);
    return ek_error("LoadError", "load code image: export table: '%.*s' stands there twice", shown,
                    item->name.data);
  }
  return 0;
}

static int read_exports(image *self, const header *h) {
  size_t size = (size_t)(h->import_offset - h->export_offset);
  const unsigned char *table = self->tail + (h->export_offset - PAGE - h->text_size);
  self->exports = ek_alloc_or_error((size_t)h->exports * sizeof(image_export) + 1);
  if (self->exports == NULL) return -1;
  reader r = {table, table + size, NULL};
  for (uint32_t i = 0; i < h->exports; i++) {
    ek_bytes name = name_of(&r);
    uint64_t offset = u64(&r);
    if (r.failed == NULL && offset >= h->text_size) fail(&r, "an offset lies outside the text");
    self->exports[i] = (image_export){name, offset};
  }
  zeros_to_end(&r);
  if (r.failed != NULL) return load_error("export table", r.failed);
  self->export_count = h->exports;
  qsort(self->exports, h->exports, sizeof(image_export), by_name);
  return check_exports_unique(self);
}

/* A call site for an import "packed:<name>": its slot in the table of addresses gets its own. */
static ek_call_site *add_site(image *self, ek_bytes name) {
  char *copy = ek_alloc_or_error(name.size + 1);
  if (copy == NULL) return NULL;
  memcpy(copy, name.data, name.size);
  copy[name.size] = '\0';
  ek_call_site *site = &self->sites[self->site_count++];
  *site = (ek_call_site){NULL, copy, NULL};
  return site;
}

/* C functions, whose import is "ek_extern_<name>": first those of the program or library that the
** image is part of, which its table names, then those of the process. */
EK_THREAD_LOCAL const ek_extern *ek_externs;

static uintptr_t address_of(const char *name) {
  for (const ek_extern *item = ek_externs; item != NULL && item->name != NULL; item++) {
    if (strcmp(item->name, name) == 0) return (uintptr_t)item->address;
  }
  return (uintptr_t)ek_dl_find(NULL, name);
}

static const char unlinked[] = "no C function '%s' is loaded";

static int no_extern(image *self, const char *name) {
  memcpy(self->absent, name, strlen(name) + 1); /* shorter than an import may be */
  return ek_error("MissingSymbolError", unlinked, name);
}

static int no_service(ek_bytes name) {
  int shown = ek_shown(name, 200);
  return ek_error("LoadError", "load code image: import table: there is no service '%.*s'", shown,
                  name.data);
}

/* The address that an import stands for, as a number. */
static int resolve(image *self, ek_bytes import, uintptr_t *address) {
  static const char prefix[] = "packed:";
  const size_t skip = sizeof prefix - 1, extern_skip = sizeof "ek_extern_" - 1;
  char name[256];
  if (import.size > skip && memcmp(import.data, prefix, skip) == 0) {
    *address = (uintptr_t)add_site(self, (ek_bytes){import.data + skip, import.size - skip});
    return *address == 0 ? -1 : 0;
  }
  if (import.size >= sizeof name) return no_service(import);
  memcpy(name, import.data, import.size);
  name[import.size] = '\0';
  if (strncmp(name, "ek_extern_", extern_skip) == 0) {
    *address = address_of(name + extern_skip);
    return *address == 0 ? no_extern(self, name + extern_skip) : 0;
  }
  *address = (uintptr_t)ek_service(name);
  return *address == 0 ? no_service(import) : 0;
}

static int read_imports(image *self, const unsigned char *bytes, const header *h) {
  reader r = {bytes + h->import_offset, bytes + h->total, NULL};
  self->table = ek_alloc_or_error((size_t)h->imports * sizeof *self->table + 1);
  self->sites = ek_alloc_or_error((size_t)h->imports * sizeof *self->sites + 1);
  if (self->table == NULL || self->sites == NULL) return -1;
  for (uint32_t i = 0; i < h->imports; i++) {
    ek_bytes import = name_of(&r);
    if (r.failed != NULL) break;
    if (resolve(self, import, &self->table[i]) != 0) return -1;
  }
  zeros_to_end(&r);
  return r.failed == NULL ? 0 : load_error("import table", r.failed);
}

/* Mapping -------------------------------------------------------------------------------------- */

/* Pages are written first and made executable after: never both at once. */
static int map(image *self, const unsigned char *bytes, const header *h) {
  size_t size = (size_t)h->text_size;
  if (ek_code_place(&self->code, bytes + PAGE, size, self->table, h->imports) == 0) return 0;
  if (errno == ENOMEM) return ek_error_memory(size);
  return ek_error("OSError", "load code image: the system refuses to make memory executable");
}

/* Names for profilers -------------------------------------------------------------------------- */

/* Return the end of an export's code, where the next export begins. Quadratic in the exports, which
** is acceptable as it runs only with EKIDEN_PERF_MAP. */
static uint64_t end_of(const image *self, uint64_t offset, uint64_t text_size) {
  uint64_t end = text_size;
  for (uint32_t i = 0; i < self->export_count; i++) {
    uint64_t other = self->exports[i].offset;
    if (other > offset && other < end) end = other;
  }
  return end;
}

/* Write the symbols of the code to the map file that 'perf report' reads, if EKIDEN_PERF_MAP is
** set. */
static void name_for_perf(const image *self, const header *h) {
  const char *setting = getenv("EKIDEN_PERF_MAP");
  char line[256];
  if (setting == NULL || strcmp(setting, "1") != 0) return;
  for (uint32_t i = 0; i < self->export_count; i++) {
    const image_export *item = &self->exports[i];
    uint64_t size = end_of(self, item->offset, h->text_size) - item->offset;
    snprintf(line, sizeof line, "%llx %llx %.*s\n",
             (unsigned long long)(uintptr_t)ek_code_at(&self->code, item->offset),
             (unsigned long long)size, ek_shown(item->name, 200),
             item->name.data);
    ek_code_name(line);
  }
}

/* The module ----------------------------------------------------------------------------------- */

static void image_delete(image *self) {
  ek_code_drop(&self->code);
  for (uint32_t i = 0; i < self->site_count; i++) {
    ek_object_release(self->sites[i].function);
    ek_free((void *)(uintptr_t)self->sites[i].name);
  }
  ek_free(self->sites);
  ek_free(self->table);
  ek_free(self->exports);
  ek_free(self->head);
  ek_free(self->tail);
  ek_free(self->held);
  ek_free(self);
}

static void image_destroy(void *self) { image_delete(self); }

static ek_packed code_at(const image *self, uint64_t offset) {
  const void *address = ek_code_at(&self->code, offset);
  ek_packed code;
  memcpy(&code, &address, sizeof code);
  return code;
}

/* Raises the load error of a held image, whose message is 'self'. */
static int refuse(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)args, (void)nargs, (void)ret;
  return ek_error("LoadError", "%s", (const char *)self);
}

static int refusing(const image *self, ek_bytes name, ek_object **out) {
  char lacks[EK_IMAGE_LACKS] = "";
  size_t size = EK_IMAGE_LACKS + name.size + 128;
  char *text = ek_alloc_or_error(size);
  if (text == NULL) return -1;
  ek_image_lacks(self->head, PAGE, lacks, sizeof lacks);
  if (self->absent[0] != '\0') snprintf(text, size, unlinked, self->absent);
  else
    snprintf(text, size,
             "call '%.*s': this machine lacks what its code needs: %s; export it and load it there",
             ek_shown(name, 200), name.data, lacks);
  if (ek_function_new(text, refuse, ek_free, out) == 0) return 0;
  ek_free(text);
  return -1;
}

static int image_get(void *context, ek_object *module, const char *name, ek_object **out) {
  const image *self = context;
  image_export key = {ek_bytes_of(name), 0};
  if (self->export_count == 0) return 0;
  const image_export *found =
      bsearch(&key, self->exports, self->export_count, sizeof(image_export), by_name);
  if (found == NULL) return 0;
  if (self->held != NULL) return refusing(self, found->name, out);
  return ek_function_bind(code_at(self, found->offset), module, out);
}

static int image_names(void *context, ek_object **out) {
  const image *self = context;
  ek_array *array = ek_array_alloc(self->export_count);
  if (array == NULL) return -1;
  for (uint32_t i = 0; i < self->export_count; i++) {
    ek_bytes name = self->exports[i].name;
    if (ek_string_new(EK_STR, name.data, name.size, &array->data[i]) == 0) continue;
    ek_release(&array->base);
    return -1;
  }
  *out = &array->base;
  return 0;
}

/* The image again: its code is as it was, for nothing in it is relocated. */
static int image_bytes(void *context, ek_value *out) {
  const image *self = context;
  size_t text = (size_t)self->text_size;
  const void *code_text = self->held != NULL ? self->held : ek_code_text(&self->code);
  if (code_text == NULL && text != 0)
    return ek_error("ValueError", "save code image: here the text of its code is not kept");
  char *whole = ek_alloc_or_error((size_t)self->total);
  if (whole == NULL) return -1;
  memcpy(whole, self->head, PAGE);
  if (text != 0) memcpy(whole + PAGE, code_text, text);
  memcpy(whole + PAGE + text, self->tail, (size_t)self->total - PAGE - text);
  int code = ek_string_new(EK_BYTES, whole, (size_t)self->total, out);
  ek_free(whole);
  return code;
}

static const ek_module_kind image_kind = {"image", image_get,     image_names,
                                          NULL,    image_destroy, image_bytes};

/* The parts of an image other than its code, for image_bytes. */
static int keep_remainder(image *self, const unsigned char *bytes, const header *h) {
  size_t behind = (size_t)(h->total - PAGE - h->text_size);
  self->head = ek_alloc_or_error(PAGE);
  self->tail = ek_alloc_or_error(behind + 1);
  if (self->head == NULL || self->tail == NULL) return -1;
  memcpy(self->head, bytes, PAGE);
  memcpy(self->tail, bytes + PAGE + h->text_size, behind);
  self->text_size = h->text_size;
  self->total = h->total;
  return 0;
}

static int hold(image *self, const unsigned char *bytes, const header *h) {
  self->held = ek_alloc_or_error((size_t)h->text_size + 1);
  if (self->held == NULL) return -1;
  memcpy(self->held, bytes + PAGE, (size_t)h->text_size);
  return 0;
}

/* 'holds': what needs a C function that nobody has is held, too. */
static int fill(image *self, const unsigned char *bytes, size_t size, bool runs, bool holds) {
  header h = {0};
  if (read_header(bytes, size, runs, &h) != 0 || check_header(&h, size) != 0) return -1;
  if (check_gap(bytes, &h) != 0 || keep_remainder(self, bytes, &h) != 0) return -1;
  if (read_exports(self, &h) != 0) return -1;
  if (!runs) return hold(self, bytes, &h);
  if (read_imports(self, bytes, &h) != 0) {
    if (!holds || self->absent[0] == '\0') return -1;
    ek_object_release(ek_error_take());
    return hold(self, bytes, &h);
  }
  if (map(self, bytes, &h) != 0) return -1;
  name_for_perf(self, &h);
  return 0;
}

/* Call sites know the module without owning it: they live in it, and it has what they call. */
static int make(const void *bytes, size_t size, bool runs, bool holds, ek_object **out) {
  image *self = ek_alloc_or_error(sizeof *self);
  if (self == NULL) return -1;
  *self = (image){0};
  if (fill(self, bytes, size, runs, holds) == 0 && ek_module_new(&image_kind, self, out) == 0) {
    for (uint32_t i = 0; i < self->site_count; i++) self->sites[i].image = *out;
    return 0;
  }
  image_delete(self);
  return -1;
}

int ek_image_load(const void *bytes, size_t size, ek_object **out) {
  return make(bytes, size, true, false, out);
}

int ek_image_hold(const void *bytes, size_t size, ek_object **out) {
  char lacks[EK_IMAGE_LACKS] = "";
  return make(bytes, size, !ek_image_lacks(bytes, size, lacks, sizeof lacks), true, out);
}
