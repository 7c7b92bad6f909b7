/* RPC server library: serve a session over any byte stream (socket, pipe, serial line).
**
** docs/rpc.md specifies the messages. A program needs this header, the runtime, and the files of
** this folder except ek_rpc_main.c.
*/
#ifndef EK_RPC_H_
#define EK_RPC_H_

#include <stddef.h>
#include <stdint.h>

#include "ekiden/runtime.h"

/* A stream. Each call moves all of the bytes: 0, or -1 at the end of the stream or an error, after
** which it is not called again. */
typedef struct ek_rpc_stream {
  void *self;
  int (*read)(void *self, void *data, size_t size);
  int (*write)(void *self, const void *data, size_t size);
} ek_rpc_stream;

/* File descriptors of a stream: two of pipes, or that of a socket twice. 'fds' is borrowed. */
typedef struct ek_rpc_fds {
  int in, out;
} ek_rpc_fds;

ek_rpc_stream ek_rpc_fd_stream(ek_rpc_fds *fds);

/* Names before 0.2. */
typedef ek_rpc_fds ek_rpc_ends __attribute__((deprecated("ek_rpc_fds")));
#define ek_rpc_stream_of ek_rpc_fd_stream

typedef struct ek_rpc_options {
  const char *key;                         /* what a client must say; NULL for anything */
  const char *folder;                      /* of the session's files; NULL: it has none */
  uint32_t limit;                          /* bytes of the largest message it takes; 4096 at least */
  /* Called when a client has said HELLO, with the milliseconds the session may last, 0 for any
  ** number: 0, or -1 with an error to refuse it. May be NULL. */
  int (*begin)(void *self, uint32_t milliseconds);
  void *self;
  /* Functions of the session, which come before those that are registered: '*found' arrives as NULL
  ** and leaves owned, or NULL for a name that is none. May be NULL. */
  void (*find)(void *self, const char *name, ek_object **found);
  /* Non-zero if the program has received HELLO itself: the largest message that its client
  ** accepts. */
  uint32_t heard;
} ek_rpc_options;

/* Serves one session until the other side ends it or breaks a rule, and lets go of all that it
** held. Callbacks to the client are made from the calling thread alone. 0 or -1 (FrameError, and
** MemoryError when it could not begin), the error left in thread-local state. */
int ek_rpc_serve(const ek_rpc_stream *stream, const ek_rpc_options *options);

#endif /* EK_RPC_H_ */
