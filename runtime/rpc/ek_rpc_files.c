/* Files of a session's folder. An upload has a temporary name until it is complete. */
#include "ek_rpc_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_NAME = 255, RESERVE = 16 << 20, PAGES = 64 << 10 /* a multiple of any page's size */ };

/* The path of a name in the session's folder, to be freed; NULL with an error. */
static char *joined(rpc_session *session, const ek_bytes *name) {
  const char *folder = session->options->folder;
  size_t length = strlen(folder);
  char *text = malloc(length + name->size + 2);
  if (text == NULL) {
    ek_error("MemoryError", "session: no memory for a path");
    return NULL;
  }
  memcpy(text, folder, length);
  text[length] = '/';
  memcpy(text + length + 1, name->data, name->size);
  text[length + 1 + name->size] = 0;
  return text;
}

/* Whether a file of the session may have such a name: without folders, and not that of what comes. */
static bool is_name(const char *name, size_t size) {
  static const char *const others[] = {"", ".", "..", RPC_PART};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    if (size == strlen(others[i]) && memcmp(name, others[i], size) == 0) return false;
  }
  return size <= MAX_NAME && memchr(name, '/', size) == NULL && memchr(name, 0, size) == NULL;
}

/* The path of a file of the session, to be freed; NULL with an error. */
char *rpc_path_of(rpc_session *session, const ek_bytes *name) {
  const char *folder = session->options->folder;
  if (folder == NULL || !is_name(name->data, name->size)) {
    ek_error("ValueError", folder == NULL ? "session: this server has no files"
                                          : "session: the name of a file without folders expected");
    return NULL;
  }
  return joined(session, name);
}

/* Sets what errno says, by Python's names. */
static int system_error(const char *doing, const ek_bytes *name) {
  int code = errno;
  const char *kind = code == ENOENT ? "FileNotFoundError" : code == EACCES || code == EPERM
                     ? "PermissionError" : code == EISDIR ? "IsADirectoryError" : "OSError";
  return ek_error(kind, "%s '%.*s': %s", doing, (int)name->size, name->data, strerror(code));
}

/* An open file, or -1 with an error. */
static int open_at(const char *path, int flags, const char *doing, const ek_bytes *name) {
  int file = open(path, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
  return file < 0 ? system_error(doing, name) : file;
}

/* Lets go of what has come of a file. */
void rpc_cancel_upload(rpc_partial_upload *upload) {
  if (upload->file < 0) return;
  close(upload->file);
  unlink(upload->part);
  upload->file = -1;
}

/* Begins a file anew. 0 or -1. */
static int begin(rpc_session *session, const ek_bytes *name, uint64_t size) {
  rpc_partial_upload *upload = &session->upload;
  rpc_cancel_upload(upload);
  if (upload->part == NULL) upload->part = joined(session, &(ek_bytes){RPC_PART, sizeof RPC_PART - 1});
  if (upload->part == NULL) return -1;
  upload->file = open_at(upload->part, O_WRONLY | O_CREAT | O_TRUNC, "upload", name);
  upload->at = upload->reserved = 0;
  upload->size = size;
  return upload->file < 0 ? -1 : 0;
}

/* Has the disk give blocks for what comes next, which is faster than one by one; not for more than
** somewhat ahead of what has come. -1 where it is full.
**
** The size is the client's word, so that the disk is not asked for all of it at once; that the
** blocks lie beyond the end of what is written shows to nobody, as the file has its name only when
** all of it has come. */
static int reserve(rpc_partial_upload *upload, uint64_t end) {
#if defined(__linux__)
  uint64_t from = upload->reserved;
  if (end <= from) return 0;
  upload->reserved = upload->size - end < RESERVE ? upload->size : end + RESERVE;
  off_t count = (off_t)(upload->reserved - from);
  return fallocate(upload->file, 0, (off_t)from, count) != 0 && errno == ENOSPC ? -1 : 0;
#else
  (void)upload, (void)end;
  return 0;
#endif
}

static int write_piece(rpc_partial_upload *upload, const ek_bytes *data) {
  if (reserve(upload, upload->at + data->size) != 0) return -1;
  for (size_t at = 0; at < data->size;) {
    ssize_t written = pwrite(upload->file, data->data + at, data->size - at, (off_t)upload->at);
    if (written <= 0) return -1;
    at += (size_t)written;
    upload->at += (uint64_t)written;
  }
  return 0;
}

/* The next piece of a file; with the last one it takes its place. What fails on the way lets go of it. */
int rpc_upload(rpc_session *session, rpc_field *fields, ek_value *result) {
  (void)result;
  const ek_bytes *name = &fields[0].bytes, *data = &fields[3].bytes;
  uint64_t offset = fields[1].number, size = fields[2].number;
  rpc_partial_upload *upload = &session->upload;
  char *path = rpc_path_of(session, name);
  if (path == NULL) return -1;
  int code = offset == 0 ? begin(session, name, size) : 0;
  if (code == 0 && (upload->file < 0 || offset != upload->at || size != upload->size
                    || data->size > size - offset)) {
    code = ek_error("ValueError", "upload: the next piece of a file expected");
  } else if (code == 0 && (write_piece(upload, data) != 0
                           || (upload->at == size && rename(upload->part, path) != 0))) {
    code = system_error("upload", name);
  }
  if (code != 0 || upload->at == size) rpc_cancel_upload(upload);
  free(path);
  return code;
}

/* A piece of a file goes from the system's pages to the stream: it is mapped until the next one.
**
** A mapped file that becomes shorter ends the process that reads it (SIGBUS). Files of a session do
** not: they come under another name and take their place by rename, which leaves the pages of the
** one before to those who have them. */
int rpc_download(rpc_session *session, rpc_field *fields, ek_value *result) {
  const ek_bytes *name = &fields[0].bytes;
  uint64_t offset = fields[1].number, size = fields[2].number;
  struct stat found;
  char *path = rpc_path_of(session, name);
  int file = path == NULL ? -1 : open_at(path, O_RDONLY, "download", name);
  free(path);
  if (file < 0) return -1;
  uint64_t all = fstat(file, &found) == 0 ? (uint64_t)found.st_size : 0;
  if (size > session->peer_limit) size = session->peer_limit;
  if (offset > all) offset = all;
  if (size > all - offset) size = all - offset;
  size_t before = (size_t)(offset % PAGES), length = size == 0 ? 0 : before + (size_t)size;
  rpc_unmap(session);
  char *mapped = length == 0 ? NULL
                 : mmap(NULL, length, PROT_READ, MAP_SHARED, file, (off_t)(offset - before));
  close(file);
  if (mapped == MAP_FAILED) return system_error("download", name);
  session->mapped = (ek_bytes){mapped, length};
  return rpc_lend(session, length == 0 ? "" : mapped + before, (size_t)size, result);
}

void rpc_unmap(rpc_session *session) {
  if (session->mapped.size > 0) munmap((void *)(uintptr_t)session->mapped.data, session->mapped.size);
  session->mapped.size = 0;
}

int rpc_file_size(rpc_session *session, rpc_field *fields, ek_value *result) {
  struct stat found;
  char *path = rpc_path_of(session, &fields[0].bytes);
  if (path == NULL) return -1;
  int code = lstat(path, &found) == 0 ? 0 : system_error("size", &fields[0].bytes);
  free(path);
  if (code == 0) *result = ek_value_int(found.st_size);
  return code;
}

int rpc_remove_file(rpc_session *session, rpc_field *fields, ek_value *result) {
  (void)result;
  char *path = rpc_path_of(session, &fields[0].bytes);
  if (path == NULL) return -1;
  int code = unlink(path) == 0 ? 0 : system_error("remove", &fields[0].bytes);
  free(path);
  return code;
}

static int by_name(const void *a, const void *b) {
  ek_bytes one = {0}, other = {0};
  ek_string_borrow(a, &one);
  ek_string_borrow(b, &other);
  size_t size = one.size < other.size ? one.size : other.size;
  int order = memcmp(one.data, other.data, size);
  return order != 0 ? order : one.size < other.size ? -1 : one.size > other.size;
}

int rpc_list_files(rpc_session *session, rpc_field *fields, ek_value *result) {
  (void)fields;
  ek_value *names = NULL;
  size_t count = 0, room = 0;
  int code = 0;
  const char *folder = session->options->folder;
  DIR *open_folder = folder == NULL ? NULL : opendir(folder);
  if (open_folder == NULL) return ek_error("ValueError", "session: this server has no files");
  for (struct dirent *entry; code == 0 && (entry = readdir(open_folder)) != NULL;) {
    size_t length = strlen(entry->d_name);
    if (!is_name(entry->d_name, length)) continue;
    ek_value *larger = rpc_grow(names, count, &room, sizeof *names);
    if (larger != NULL) names = larger;
    code = larger == NULL ? -1 : ek_string_new(EK_STR, entry->d_name, length, &names[count]);
    count += code == 0;
  }
  closedir(open_folder);
  if (count > 0) qsort(names, count, sizeof *names, by_name);
  ek_object *object = NULL;
  if (code == 0) code = ek_array_new(names, (int64_t)count, &object);
  for (size_t i = 0; i < count; i++) ek_value_release(&names[i]);
  free(names);
  if (code == 0) *result = ek_value_object(object);
  return code;
}

