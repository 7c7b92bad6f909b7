/* Byte stream over a pair of file descriptors. */
#include "ek_rpc.h"

#include <errno.h>
#include <unistd.h>

static int read_all(void *self, void *data, size_t size) {
  const ek_rpc_fds *fds = self;
  char *at = data;
  while (size > 0) {
    ssize_t received = read(fds->in, at, size);
    if (received < 0 && errno == EINTR) continue;
    if (received <= 0) return -1;
    at += received;
    size -= (size_t)received;
  }
  return 0;
}

static int write_all(void *self, const void *data, size_t size) {
  const ek_rpc_fds *fds = self;
  const char *at = data;
  while (size > 0) {
    ssize_t put = write(fds->out, at, size);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return -1;
    at += put;
    size -= (size_t)put;
  }
  return 0;
}

ek_rpc_stream ek_rpc_fd_stream(ek_rpc_fds *fds) {
  return (ek_rpc_stream){fds, read_all, write_all};
}
