/* A file is the digest of its contents followed by the binary; a damaged file is a cache miss. */
#include "driver_cache.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct digest {
  uint64_t low, high;
} digest;

static void add(digest *d, const void *data, size_t size) {
  const unsigned char *bytes = data;
  for (size_t i = 0; i < size; i++) {
    d->low = (d->low ^ bytes[i]) * UINT64_C(0x100000001b3);
    d->high = (d->high ^ bytes[i] ^ d->low >> 56) * UINT64_C(0x9e3779b97f4a7c15);
    d->high ^= d->high >> 29;
  }
}

static digest digest_of(const void *data, size_t size) {
  digest d = {UINT64_C(0xcbf29ce484222325), UINT64_C(0x6a09e667f3bcc908)};
  add(&d, &size, sizeof size);
  add(&d, data, size);
  return d;
}

void cache_key(const void *text, size_t size, char (*names)[256], int n_names, const char *options,
               char *key, size_t capacity) {
  digest d = digest_of(text, size);
  for (int i = 0; i < n_names; i++) add(&d, names[i], strlen(names[i]) + 1);
  add(&d, options, strlen(options) + 1);
  snprintf(key, capacity, "%016llx%016llx", (unsigned long long)d.high, (unsigned long long)d.low);
}

/* The path of a file, whose folders are made if asked for; false where there is no cache. */
static bool path_of(const char *key, bool make, char *path, size_t capacity) {
  const char *said = getenv("EKIDEN_CACHE_DIR"), *base = getenv("XDG_CACHE_HOME");
  const char *home = getenv("HOME");
  int used;
  const int first = said == NULL ? 0 : (int)strcspn(said, ":");  /* of several, it is written */
  if (said != NULL && first == 0) return false;
  if (said != NULL) used = snprintf(path, capacity, "%.*s", first, said);
  else if (base != NULL && base[0] != '\0') used = snprintf(path, capacity, "%s/ekiden", base);
  else if (home != NULL && home[0] != '\0') used = snprintf(path, capacity, "%s/.cache/ekiden", home);
  else return false;
  if (used < 0 || (size_t)used + CACHE_KEY + 48 > capacity) return false;
  if (make) mkdir(path, 0755);
  strcat(path, "/device");
  if (make) mkdir(path, 0755);
  strcat(path, "/");
  strcat(path, key);
  return true;
}

unsigned char *cache_read(const char *key, size_t *size) {
  char path[1024];
  digest kept;
  struct stat about;
  if (!path_of(key, false, path, sizeof path)) return NULL;
  FILE *file = fopen(path, "rbe");
  if (file == NULL) return NULL;
  bool fits = fstat(fileno(file), &about) == 0 && about.st_size > (off_t)sizeof kept &&
              (about.st_uid == geteuid() || about.st_uid == 0) && (about.st_mode & 022) == 0;
  *size = fits ? (size_t)about.st_size - sizeof kept : 0;
  unsigned char *data = fits ? malloc(*size) : NULL;
  fits = data != NULL && fread(&kept, sizeof kept, 1, file) == 1 && fread(data, *size, 1, file) == 1;
  fclose(file);
  if (fits) {
    digest found = digest_of(data, *size);
    if (memcmp(&found, &kept, sizeof kept) == 0) return data;
  }
  free(data);
  return NULL;
}

/* The file appears whole: a draft takes its place. Where there is such a draft, another thread writes
** the same. */
void cache_write(const char *key, const void *data, size_t size) {
  char path[1024], draft[1088];
  digest d = digest_of(data, size);
  if (!path_of(key, true, path, sizeof path)) return;
  snprintf(draft, sizeof draft, "%s.%ld", path, (long)getpid());
  int opened = open(draft, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  FILE *file = opened < 0 ? NULL : fdopen(opened, "wb");
  if (file == NULL) return;
  bool written = fwrite(&d, sizeof d, 1, file) == 1 && fwrite(data, size, 1, file) == 1;
  written = fclose(file) == 0 && written;
  if (!written || rename(draft, path) != 0) remove(draft);
}
