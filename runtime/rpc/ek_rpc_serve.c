/* RPC session: HELLO, then requests and answers, which nest.
**
** One thread serves a session, with one receive buffer. While a local function calls a function of
** the client, requests that arrive before the answer are served: calls nest as on one stack, and an
** answer always belongs to the most recent request. Fields of a message point into the receive
** buffer 'in' and are invalid once the next message is received: services copy what they retain.
**
** Two kinds of errors. A FrameError means that the bytes violate the protocol: no later message can
** be parsed, and the session ends. Any other error belongs to the request, and is sent as its
** answer. */
#include "ek_rpc_internal.h"

_Thread_local char rpc_thread;

/* Message descriptor: the letters of the message's fields. */
typedef struct row {
  const char *fields;
  uint32_t least;
} row;

static const row rows[] = {
#define ROW(name, number, fields, least) [number] = {fields, least},
    RPC_MESSAGES(ROW)
#undef ROW
};

/* Reads a frame into 'in': its kind, or -1. The size is held against the limit before a byte of the
** body is read: 'in' has room for that much. */
static int receive(rpc_session *session, uint32_t limit, uint32_t *size) {
  uint8_t head[RPC_HEADER];
  const ek_rpc_stream *stream = session->stream;
  if (stream == NULL || stream->read(stream->self, head, sizeof head) != 0) {
    session->stream = NULL;
    return rpc_frame_error("the other side has gone");
  }
  memcpy(size, head, 4);
  int kind = head[4];
  bool is_known = (size_t)kind < sizeof rows / sizeof *rows && rows[kind].fields != NULL;
  if (!is_known || head[5] != 0 || head[6] != 0 || head[7] != 0) {
    return rpc_frame_error("a message expected");
  }
  if (*size < rows[kind].least || *size > limit) return rpc_frame_error("the size of a message");
  if (stream->read(stream->self, session->in, *size) != 0) {
    session->stream = NULL;
    return rpc_frame_error("the other side has gone");
  }
  return kind;
}

/* Sends the pending error, as much of it as the other side takes, and clears it. A quarter of a
** message for each of three texts, cut before a character of UTF-8: it always fits. */
static int send_error(rpc_session *session) {
  ek_object *object = ek_error_take();
  if (object == NULL) {
    ek_error("InternalError", "a function failed without saying why");
    object = ek_error_take();
  }
  const ek_error_object *error = (const ek_error_object *)(const void *)object;
  const ek_bytes *texts[] = {&error->kind, &error->message, &error->backtrace};
  rpc_begin(session, RPC_ERROR);
  for (int i = 0; i < 3; i++) {
    size_t room = session->peer_limit / 4, size = texts[i]->size < room ? texts[i]->size : room;
    while (size < texts[i]->size && size > 0 && (texts[i]->data[size] & 0xC0) == 0x80) size--;
    rpc_put_text(session, texts[i]->data, size);
  }
  ek_release(object);
  return rpc_send(session);
}

static void take_back(rpc_session *session) {
  for (size_t i = 0; i < session->exported_count; i++) rpc_release_handle(session, session->exported[i]);
  session->exported_count = 0;
}

/* Sends RETURN with a value, or the error that it makes. */
static int send_result(rpc_session *session, const ek_value *result) {
  rpc_begin(session, RPC_RETURN);
  if (rpc_put_value(session, result, 0) == 0 && rpc_send(session) == 0) return 0;
  take_back(session);
  return session->stream == NULL ? -1 : send_error(session);
}

/* Does what a message in 'in' asks for, and answers. -1 ends the session. */
static int serve(rpc_session *session, int kind, uint32_t size) {
  rpc_field fields[RPC_MAX_FIELDS];
  ek_value result = ek_value_none();
  rpc_service service = rpc_service_of(kind);
  if (service == NULL) return rpc_frame_error("this message was not expected");
  if (rpc_read_fields(session, rows[kind].fields, size, fields) != 0) {
    return rpc_is_frame_error() ? -1 : send_error(session);
  }
  int code;
  if (++session->depth > RPC_CALL_DEPTH) {
    code = ek_error("RecursionError", "rpc: more than %d calls wait for each other", RPC_CALL_DEPTH);
  } else {
    code = service(session, fields, &result);
  }
  session->depth--;
  rpc_fields_release(fields);
  if (session->stream == NULL) code = -1;
  else if (code == 0 && kind != RPC_RELEASE) code = send_result(session, &result);
  else if (code != 0 && !rpc_is_frame_error()) code = send_error(session);
  ek_value_release(&result);
  return code;
}

/* Notifies the client which of its objects are no longer referenced here. */
static int send_releases(rpc_session *session) {
  while (session->dropped_count > 0) {
    size_t most = (session->peer_limit - 4) / 8;
    size_t count = session->dropped_count < most ? session->dropped_count : most;
    rpc_begin(session, RPC_RELEASE);
    rpc_put_u32(session, (uint32_t)count);
    session->dropped_count -= count;
    rpc_put(session, session->dropped + session->dropped_count, 8 * count);
    if (rpc_send(session) != 0) return -1;
  }
  return 0;
}

/* Raises what came in an ERROR. */
static int raise(rpc_field *fields) {
  char kind[64];
  size_t size = fields[0].bytes.size < sizeof kind - 1 ? fields[0].bytes.size : sizeof kind - 1;
  memcpy(kind, fields[0].bytes.data, size);
  kind[size] = 0;
  int length = fields[1].bytes.size < 4096 ? (int)fields[1].bytes.size : 4096;
  if (strcmp(kind, "FrameError") == 0) return ek_error("RPCError", "%.*s", length, fields[1].bytes.data);
  return ek_error(kind, "%.*s", length, fields[1].bytes.data);
}

/* Sends the frame that was made, a request, and serves until it is answered. */
int rpc_request(rpc_session *session, ek_value *result) {
  rpc_field fields[RPC_MAX_FIELDS];
  uint32_t size = 0;
  if (rpc_send(session) != 0) {
    take_back(session);
    return -1;
  }
  for (;;) {
    int kind = receive(session, session->limit, &size);
    if (kind < 0) return -1;
    if (kind != RPC_RETURN && kind != RPC_ERROR) {
      if (serve(session, kind, size) != 0) return -1;
      continue;
    }
    if (rpc_read_fields(session, rows[kind].fields, size, fields) != 0) return -1;
    if (kind == RPC_ERROR) return raise(fields);
    *result = fields[0].values[0];
    fields[0].values[0] = ek_value_none();
    rpc_fields_release(fields);
    return 0;
  }
}

/* Hears HELLO: 0, or -1 with why there is no session. */
static int receive_hello(rpc_session *session) {
  rpc_field fields[RPC_MAX_FIELDS];
  uint32_t size = 0;
  int kind = receive(session, RPC_HELLO_LIMIT, &size);
  if (kind < 0) return -1;
  if (kind != RPC_HELLO) return rpc_frame_error("HELLO expected");
  if (rpc_read_fields(session, rows[kind].fields, size, fields) != 0) return -1;
  const char *key = session->options->key;
  const ek_bytes *said = &fields[4].bytes;
  /* The constructor is one array: a server like this connects to no other. */
  bool is_plain = fields[5].count == 0;
  int code = 0;
  if (fields[0].number != RPC_MAGIC) code = rpc_frame_error("this is another protocol");
  else if (fields[1].number != RPC_VERSION) code = rpc_frame_error("version 1 expected");
  else if (fields[2].number < RPC_LEAST_LIMIT) code = rpc_frame_error("a limit is too small");
  else if (!is_plain) code = ek_error("RPCError", "rpc: this server makes no sessions with others");
  else if (key != NULL && (said->size != strlen(key) || memcmp(said->data, key, said->size) != 0)) {
    code = ek_error("RPCError", "rpc: the key is not that of this server");
  }
  session->peer_limit = (uint32_t)fields[2].number;
  uint32_t milliseconds = (uint32_t)fields[3].number;
  rpc_fields_release(fields);
  if (code == 0 && session->options->begin != NULL) {
    code = session->options->begin(session->options->self, milliseconds);
  }
  return code;
}

static int send_hello(rpc_session *session) {
  const char *key = session->options->key == NULL ? "" : session->options->key;
  rpc_begin(session, RPC_HELLO);
  rpc_put_u64(session, RPC_MAGIC);
  rpc_put_u32(session, RPC_VERSION);
  rpc_put_u32(session, session->limit);
  rpc_put_u32(session, 0);
  rpc_put_text(session, key, strlen(key));
  rpc_put_u32(session, 0);
  return rpc_send(session);
}

static int run(rpc_session *session) {
  uint32_t size = 0;
  bool is_heard = session->options->heard >= RPC_LEAST_LIMIT;
  if (is_heard) session->peer_limit = session->options->heard;
  else if (receive_hello(session) != 0) return -1;
  if (send_hello(session) != 0) return -1;
  for (;;) {
    if (send_releases(session) != 0) return -1;
    int kind = receive(session, session->limit, &size);
    if (kind < 0 || serve(session, kind, size) != 0) return -1;
  }
}

int ek_rpc_serve(const ek_rpc_stream *stream, const ek_rpc_options *options) {
  rpc_session *session = rpc_session_new(stream, options);
  if (session == NULL) return -1;
  run(session);
  bool is_over = session->stream == NULL; /* the other side ended it, which is no error */
  ek_object *error = ek_error_take();
  if (!is_over && error != NULL) {
    ek_error_set(error);
    send_error(session);
  }
  session->stream = NULL;
  for (uint32_t i = 0; i < session->handle_count; i++) {
    rpc_handle_slot *slot = &session->handles[i];
    if (slot->value.type_index != EK_ANY) rpc_release_handle(session, (uint64_t)slot->generation << 32 | (i + 1));
  }
  rpc_session_release(session);
  if (is_over || error == NULL) {
    ek_object_release(error);
    return 0;
  }
  ek_error_set(error);
  ek_release(error);
  return -1;
}
