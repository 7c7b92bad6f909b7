/* Find the shared library of an engine. */
#include "engine.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>

/* The library in a folder of 'size' bytes; NULL where it is not there, or does not load. */
static void *open_in(const char *folder, int size, const char *file) {
  char pattern[1024];
  glob_t found;
  void *library = NULL;
  int written = snprintf(pattern, sizeof pattern, "%.*s/%s*", size, folder, file);
  if (size == 0 || written < 0 || written >= (int)sizeof pattern) return NULL;
  if (glob(pattern, 0, NULL, &found) != 0) return NULL;
  for (size_t i = 0; i < found.gl_pathc && library == NULL; i++) {
    library = dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_LOCAL);
  }
  globfree(&found);
  return library;
}

static void *open_library(const char *folders, const char *file, const char *soname) {
  void *library = NULL;
  while (library == NULL && *folders != '\0') {
    int size = (int)strcspn(folders, ":");
    library = open_in(folders, size, file);
    folders += size + (folders[size] == ':');
  }
  return library != NULL ? library : dlopen(soname, RTLD_NOW | RTLD_LOCAL);
}

int engine_find(const ek_engine_host *host, const char *engine, const char *file, const char *soname,
                const char *advice, const engine_symbol *symbols) {
  void *library = open_library(host->folders, file, soname);
  if (library == NULL) {
    const char *reason = dlerror();
    return host->error("LoadError", "%s: its library %s is not here (%s): %s; EKIDEN_ENGINES names "
                       "its folder", engine, soname, reason == NULL ? "no reason given" : reason,
                       advice);
  }
  for (; symbols->name != NULL; symbols++) {
    void *address = dlsym(library, symbols->name);
    if (address == NULL) {
      return host->error("LoadError", "%s: its library has no '%s': %s", engine, symbols->name,
                         advice);
    }
    memcpy(symbols->place, &address, sizeof address);
  }
  return 0;
}
