/* Regions that third-party engines run: load an engine's library, and wrap its regions as
** functions. */
#include "ek_internal.h"

#include <stdio.h>
#include <stdlib.h>

#ifndef EK_SMALL /* the server of sessions is smaller without */

enum { LONGEST_NAME = 32, MAX_ENGINES = 16, HOST_VERSION = 1, MAX_TENSORS = 256 };

/* An engine whose library is open, which stays: regions of it live as long as programs do. */
typedef struct engine {
  char name[LONGEST_NAME];
  char *folders;
  ek_engine_host host;
  const ek_engine_table *table;
} engine;

static engine engines[MAX_ENGINES];
static int32_t n_engines;
static ek_mutex lock = EK_MUTEX_INIT;

typedef struct region {
  const ek_engine_table *table;
  void *loaded;
  char name[];
} region;

/* Libraries ------------------------------------------------------------------------------------ */

/* A file name is made of it, and it comes from artifacts. */
static bool is_name(const char *text) {
  size_t size = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_");
  return size != 0 && text[size] == '\0' && size < LONGEST_NAME;
}

/* The folders that a caller names, then those of the environment; NULL with an error. */
static char *folders_of(const char *folder) {
  const char *said = getenv("EKIDEN_ENGINES");
  size_t size = strlen(folder) + (said == NULL ? 0 : strlen(said)) + 2;
  char *folders = ek_alloc_or_error(size);
  if (folders != NULL) snprintf(folders, size, "%s:%s", folder, said == NULL ? "" : said);
  return folders;
}

/* Opens the library of an engine into 'out'. Under the lock. */
static int open_engine(const char *name, const char *folder, engine *out) {
  ek_engine_open_t open;
  void *library = is_name(name) ? ek_driver_library(name) : NULL;
  void *found = library == NULL ? NULL : ek_dl_symbol(library, "ek_engine_open");
  if (found == NULL) {
    return ek_error("LoadError", "the external compiler '%s' is not registered in this process "
                    "(ekiden.byoc.register and ekiden.backend.external.register_external do it), and "
                    "there is no library libekiden_%s.so of an engine; EKIDEN_DRIVERS names the "
                    "folder of one", name, name);
  }
  memcpy(&open, &found, sizeof open);
  out->folders = folders_of(folder);
  if (out->folders == NULL) return -1;
  snprintf(out->name, sizeof out->name, "%s", name);
  out->host = (ek_engine_host){HOST_VERSION, ek_num_threads(0), out->folders, ek_error};
  out->table = open(&out->host);
  if (out->table != NULL) return 0;
  ek_free(out->folders);
  return -1;
}

/* An engine that is open from now on; NULL with an error. */
static const engine *find_engine(const char *name, const char *folder) {
  engine *found = NULL;
  ek_mutex_lock(&lock);
  for (int32_t i = 0; i < n_engines && found == NULL; i++) {
    if (strcmp(engines[i].name, name) == 0) found = &engines[i];
  }
  if (found == NULL && n_engines == MAX_ENGINES) {
    ek_error("LoadError", "the engine '%s': there are %d open, which is all there can be", name,
             MAX_ENGINES);
  } else if (found == NULL && open_engine(name, folder, &engines[n_engines]) == 0) {
    found = &engines[n_engines++];
  }
  ek_mutex_unlock(&lock);
  return found;
}

/* Regions -------------------------------------------------------------------------------------- */

static void unload(void *self) {
  region *r = self;
  if (r->loaded != NULL) r->table->unload(r->loaded);
  ek_free(r);
}

static int run(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  const region *r = self;
  const ek_dltensor *tensors[MAX_TENSORS];
  (void)ret;
  if (nargs > MAX_TENSORS) {
    return ek_error("RunError", "run '%s': at most %d tensors expected, got %d", r->name,
                    MAX_TENSORS, nargs);
  }
  for (int32_t i = 0; i < nargs; i++) {
    tensors[i] = ek_value_tensor(&args[i]);
    if (tensors[i] == NULL || !ek_device_is_host(tensors[i]->device) ||
        !ek_dltensor_is_contiguous(tensors[i])) {
      return ek_error("RunError", "run '%s': argument %d must be a contiguous tensor of the host",
                      r->name, i);
    }
  }
  return r->table->run(r->loaded, tensors, nargs);
}

/* Says in the pending error which region is loaded. */
static int name_region(const char *symbol) {
  ek_object *error = ek_error_take();
  const ek_error_object *e = (const ek_error_object *)(const void *)error;
  ek_error("LoadError", "link executable: '%s': %.*s", symbol, (int)e->message.size, e->message.data);
  ek_release(error);
  return -1;
}

static int load(const char *name, const char *folder, const char *symbol, ek_bytes code,
                ek_object **out) {
  const engine *found = find_engine(name, folder);
  size_t size = strlen(symbol) + 1;
  if (found == NULL) return name_region(symbol);
  region *r = ek_alloc_or_error(sizeof *r + size);
  if (r == NULL) return -1;
  r->table = found->table;
  r->loaded = NULL;
  memcpy(r->name, symbol, size);
  int status = r->table->load(&found->host, symbol, code.data, code.size, &r->loaded);
  if (status == 0) status = ek_function_new(r, run, unload, out);
  if (status != 0) unload(r);
  return status;
}

/* Base64 --------------------------------------------------------------------------------------- */

/* The six bits that a character stands for, or -1. */
static int bits_of(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Writes what a text stands for; how many bytes, or -1. 'to' has room for three of each four. */
static int64_t decode(ek_bytes text, unsigned char *to) {
  uint32_t word = 0, n = 0;
  int64_t size = 0;
  while (text.size != 0 && text.data[text.size - 1] == '=') text.size--;
  for (size_t i = 0; i < text.size; i++) {
    int bits = bits_of(text.data[i]);
    if (bits < 0) return -1;
    word = word << 6 | (uint32_t)bits;
    n += 6;
    if (n < 8) continue;
    n -= 8;
    to[size++] = (unsigned char)(word >> n);
  }
  return size;
}

int ek_engine_link(const char *kind, const char *name, ek_bytes text, ek_object **out) {
  /* First: what is kept for a compiler that is not here need not be base64. */
  if (find_engine(kind, "") == NULL) return name_region(name);
  unsigned char *code = ek_alloc_or_error(text.size / 4 * 3 + 3);
  if (code == NULL) return -1;
  int64_t size = decode(text, code);
  int status = 0;
  if (size < 0) {
    status = ek_error("LoadError", "link executable: '%s': its code for the engine '%s' is no base64",
                      name, kind);
  } else {
    status = load(kind, "", name, (ek_bytes){(const char *)code, (size_t)size}, out);
  }
  ek_free(code);
  return status;
}

/* Texts, or bytes at the end, that a function is given; 0 or -1. */
static int take_texts(const char *name, const ek_value *args, int32_t nargs, int32_t n, ek_bytes *out) {
  bool are_texts = nargs == n;
  for (int32_t i = 0; i < n && are_texts; i++) are_texts = ek_string_borrow(&args[i], &out[i]) != 0;
  return are_texts ? 0 : ek_error("TypeError", "%s: %d texts expected", name, n);
}

/* (engine, folder): a LoadError that says what to install where the engine is not here. */
static int engine_open(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  ek_bytes text[2];
  (void)self, (void)ret;
  if (take_texts("ek.engine.open", args, nargs, 2, text) != 0) return -1;
  return find_engine(text[0].data, text[1].data) == NULL ? -1 : 0;
}

/* (engine, folder, name, code): a function. */
static int engine_load(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  ek_bytes text[4];
  ek_object *object = NULL;
  (void)self;
  if (take_texts("ek.engine.load", args, nargs, 4, text) != 0) return -1;
  if (load(text[0].data, text[1].data, text[2].data, text[3], &object) != 0) return -1;
  *ret = ek_value_object(object);
  return 0;
}

const ek_builtin ek_engine_builtins[EK_ENGINE_BUILTINS] = {{"ek.engine.load", engine_load},
                                                           {"ek.engine.open", engine_open}};

#endif
