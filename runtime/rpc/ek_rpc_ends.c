/* Byte stream over a pair of file descriptors. */
#include "ek_rpc.h"

#include <errno.h>
#include <unistd.h>

static int read_all(void *self, void *data, size_t size) {
  const ek_rpc_ends *ends = self;
  char *at = data;
  while (size > 0) {
    ssize_t got = read(ends->in, at, size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return -1;
    at += got;
    size -= (size_t)got;
  }
  return 0;
}

static int write_all(void *self, const void *data, size_t size) {
  const ek_rpc_ends *ends = self;
  const char *at = data;
  while (size > 0) {
    ssize_t put = write(ends->out, at, size);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return -1;
    at += put;
    size -= (size_t)put;
  }
  return 0;
}

ek_rpc_stream ek_rpc_stream_of(ek_rpc_ends *ends) {
  return (ek_rpc_stream){ends, read_all, write_all};
}
