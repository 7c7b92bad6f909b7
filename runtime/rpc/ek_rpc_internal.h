/* Internal declarations of the RPC server library. */
#ifndef EK_RPC_INTERNAL_H_
#define EK_RPC_INTERNAL_H_

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ek_rpc.h"
#include "ek_rpc_table.h"
#include "ekiden/runtime.h"

/* Slot of the handle table: an object that the client holds, or a free slot. A handle is the slot's
** index and its generation, so a stale handle never refers to the object that reuses the slot. */
typedef struct rpc_handle_slot {
  ek_value value;                          /* owned; EK_ANY: free */
  uint32_t generation;
  uint32_t next;                           /* the next free slot + 1, or 0 */
} rpc_handle_slot;

/* A client's function that is referenced here. */
typedef struct rpc_client_callback {
  struct rpc_session *session;             /* retained */
  ek_object *function;                     /* not retained: it owns this */
  uint64_t handle;
  struct rpc_client_callback *next;
} rpc_client_callback;

/* An upload in progress: a file that arrives in pieces. */
typedef struct rpc_partial_upload {
  int file;                                /* -1: none */
  char *part;                              /* its path until it is whole, owned; NULL before the first */
  uint64_t at, size;                       /* bytes that have come, and all */
  uint64_t reserved;                       /* bytes of which the disk has blocks */
} rpc_partial_upload;

typedef struct rpc_session {
  int32_t refs;                            /* the session itself and its client callbacks; one thread */
  const ek_rpc_stream *stream;             /* NULL when it is over */
  const ek_rpc_options *options;
  const char *thread;                      /* which thread serves it */
  uint32_t limit, peer_limit;
  int32_t depth;
  uint8_t *in;                             /* the body that is being read, 'limit' bytes */
  uint8_t *out;                            /* the frame that is being made */
  size_t out_size, out_room;
  bool is_full;                            /* the frame would be longer than the other side takes */
  ek_bytes lent;                           /* what an answer gives without a copy: elements, a piece */
  ek_bytes tail;                           /* what is sent behind the frame in 'out', if it is large */
  ek_bytes mapped;                         /* of a file, what is lent of it; size 0: nothing */
  rpc_partial_upload upload;
  rpc_handle_slot *handles;
  uint32_t handle_count, handle_capacity, free_handle;
  uint64_t *exported;                      /* handles that the frame in 'out' gives away */
  size_t exported_count, exported_room;
  uint64_t *dropped;                       /* of the other side's, to be released */
  size_t dropped_count, dropped_room;
  rpc_client_callback *callbacks;
} rpc_session;

/* Field of a message, selected by its letter: a number, bytes, or values. */
typedef struct rpc_field {
  uint64_t number;
  ek_bytes bytes;                          /* s, b; for H the handles as they lie, for t the sizes */
  ek_dtype dtype;
  ek_device device;
  int32_t rank;
  ek_value *values;                        /* owned */
  int64_t count;
} rpc_field;

enum { RPC_MAX_FIELDS = 11, RPC_HEADER = 8, RPC_MAX_HANDLES = 1 << 16 };

/* ek_rpc_wire.c: bytes. Reading gives 0, or -1 with an error: a FrameError ends the session. */
typedef struct rpc_reader {
  rpc_session *session;
  const uint8_t *at, *end;
} rpc_reader;

int rpc_frame_error(const char *what);
bool rpc_is_frame_error(void);
int rpc_read_fields(rpc_session *session, const char *letters, size_t size, rpc_field *fields);
void rpc_fields_release(rpc_field *fields);
int rpc_read_value(rpc_reader *reader, int depth, ek_value *out);

void rpc_begin(rpc_session *session, int kind);
void rpc_put(rpc_session *session, const void *data, size_t size);
void rpc_put_u32(rpc_session *session, uint32_t number);
void rpc_put_u64(rpc_session *session, uint64_t number);
void rpc_put_text(rpc_session *session, const char *data, size_t size);
int rpc_put_value(rpc_session *session, const ek_value *value, int depth);
int rpc_send(rpc_session *session);

/* ek_rpc_handles.c: handles. */
int rpc_export(rpc_session *session, const ek_value *value, uint64_t *handle);
ek_value *rpc_local_object(rpc_session *session, uint64_t handle);
void rpc_release_handle(rpc_session *session, uint64_t handle);
int rpc_client_function(rpc_session *session, uint64_t handle, ek_value *out);
bool rpc_client_handle(rpc_session *session, const ek_object *object, uint64_t *handle);
rpc_session *rpc_session_new(const ek_rpc_stream *stream, const ek_rpc_options *options);
void rpc_session_release(rpc_session *session);
void *rpc_grow(void *array, size_t count, size_t *room, size_t item);

/* ek_rpc_serve.c */
int rpc_request(rpc_session *session, ek_value *result);
extern _Thread_local char rpc_thread;

/* ek_rpc_services.c: what a message asks for; '*result' arrives as none and leaves owned. */
typedef int (*rpc_service)(rpc_session *session, rpc_field *fields, ek_value *result);
rpc_service rpc_service_of(int kind);
int rpc_lend(rpc_session *session, const char *data, size_t size, ek_value *result);

/* ek_rpc_files.c: services, and where a file of the session lies (to be freed; NULL with an error). */
int rpc_upload(rpc_session *session, rpc_field *fields, ek_value *result);
int rpc_download(rpc_session *session, rpc_field *fields, ek_value *result);
int rpc_file_size(rpc_session *session, rpc_field *fields, ek_value *result);
int rpc_remove_file(rpc_session *session, rpc_field *fields, ek_value *result);
int rpc_list_files(rpc_session *session, rpc_field *fields, ek_value *result);
char *rpc_path_of(rpc_session *session, const ek_bytes *name);
void rpc_cancel_upload(rpc_partial_upload *upload);
void rpc_unmap(rpc_session *session);

#endif /* EK_RPC_INTERNAL_H_ */
