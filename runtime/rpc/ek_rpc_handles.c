/* Handles: local objects that the client refers to, and client functions that this side refers to.
**
** Ownership. An object exported to the client is owned by its entry in the handle table until the
** client releases the handle or the session ends. For a client function it is the reverse: when its
** last reference here is dropped, its handle is queued, and the client is notified with the next
** message, since a deleter may run while another message is being sent. A function object that
** outlives its session raises an error when called: it owns the session's memory, not its
** stream. */
#include "ek_rpc_internal.h"

static uint64_t handle_at(const rpc_session *session, uint32_t index) {
  return (uint64_t)session->handles[index].generation << 32 | (index + 1);
}

/* A new handle, owning the value from now on as well as the caller does.
**
** It is noted with the frame that gives it away, so that a frame that cannot be sent takes it
** back. */
int rpc_export(rpc_session *session, const ek_value *value, uint64_t *handle) {
  uint32_t index = session->free_handle;
  if (index != 0) {
    session->free_handle = session->handles[--index].next;
  } else {
    if (session->handle_count >= RPC_MAX_HANDLES) {
      return ek_error("MemoryError", "rpc: the client holds %d objects already", RPC_MAX_HANDLES);
    }
    size_t room = session->handle_capacity;
    rpc_handle_slot *larger = rpc_grow(session->handles, session->handle_count, &room, sizeof *larger);
    if (larger == NULL) return -1;
    session->handles = larger;
    session->handle_capacity = (uint32_t)room;
    index = session->handle_count++;
    larger[index].generation = 0;
  }
  rpc_handle_slot *slot = &session->handles[index];
  slot->value = *value;
  slot->generation++;
  ek_value_retain(value);
  *handle = handle_at(session, index);
  uint64_t *larger =
      rpc_grow(session->exported, session->exported_count, &session->exported_room, sizeof *larger);
  if (larger == NULL) {
    rpc_release_handle(session, *handle);
    return -1;
  }
  session->exported = larger;
  session->exported[session->exported_count++] = *handle;
  return 0;
}

/* The value of a handle, borrowed; NULL without an error for a handle that there is not. */
ek_value *rpc_local_object(rpc_session *session, uint64_t handle) {
  uint32_t index = (uint32_t)handle - 1;
  if ((uint32_t)handle == 0 || index >= session->handle_count) return NULL;
  if (session->handles[index].value.type_index == EK_ANY) return NULL;
  return handle_at(session, index) == handle ? &session->handles[index].value : NULL;
}

void rpc_release_handle(rpc_session *session, uint64_t handle) {
  ek_value *value = rpc_local_object(session, handle);
  if (value == NULL) return;
  uint32_t index = (uint32_t)handle - 1;
  ek_value held = *value;
  value->type_index = EK_ANY;
  session->handles[index].next = session->free_handle;
  session->free_handle = index + 1;
  ek_value_release(&held);
}

/* Functions of the other side ------------------------------------------------------------------ */

static int call_client_function(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  const rpc_client_callback *callback = self;
  rpc_session *session = callback->session;
  if (session->stream == NULL) return ek_error("RPCError", "rpc: the session is over");
  if (session->thread != &rpc_thread) {
    return ek_error("RPCError", "rpc: a callback is called from the thread of its session alone");
  }
  rpc_begin(session, RPC_CALL);
  rpc_put_u64(session, callback->handle);
  rpc_put_u32(session, (uint32_t)nargs);
  for (int32_t i = 0; i < nargs; i++) {
    if (rpc_put_value(session, &args[i], 0) != 0) {
      for (size_t k = 0; k < session->exported_count; k++) rpc_release_handle(session, session->exported[k]);
      return -1;
    }
  }
  return rpc_request(session, ret);
}

static void release_client_function(void *self) {
  rpc_client_callback *callback = self;
  rpc_session *session = callback->session;
  rpc_client_callback **link = &session->callbacks;
  while (*link != callback) link = &(*link)->next;
  *link = callback->next;
  uint64_t *larger =
      rpc_grow(session->dropped, session->dropped_count, &session->dropped_room, sizeof *larger);
  if (larger != NULL) {
    session->dropped = larger;
    session->dropped[session->dropped_count++] = callback->handle;
  }
  free(callback);
  rpc_session_release(session);
}

/* A function that calls the client's. 0 or -1; '*out' owned. */
int rpc_client_function(rpc_session *session, uint64_t handle, ek_value *out) {
  rpc_client_callback *callback = malloc(sizeof *callback);
  ek_object *object = NULL;
  if (callback == NULL) return ek_error("MemoryError", "rpc: no memory for a callback");
  if (ek_function_new(callback, call_client_function, release_client_function, &object) != 0) {
    free(callback);
    return -1;
  }
  *callback = (rpc_client_callback){session, object, handle, session->callbacks};
  session->callbacks = callback;
  session->refs++;
  *out = ek_value_object(object);
  return 0;
}

/* Whether an object is a function of the other side, and which. */
bool rpc_client_handle(rpc_session *session, const ek_object *object, uint64_t *handle) {
  for (const rpc_client_callback *callback = session->callbacks; callback != NULL; callback = callback->next) {
    if (callback->function != object) continue;
    *handle = callback->handle;
    return true;
  }
  return false;
}

/* Life ----------------------------------------------------------------------------------------- */

rpc_session *rpc_session_new(const ek_rpc_stream *stream, const ek_rpc_options *options) {
  rpc_session *session = calloc(1, sizeof *session);
  uint32_t limit = options->limit < RPC_LEAST_LIMIT ? RPC_LEAST_LIMIT : options->limit;
  uint8_t *in = malloc(limit > RPC_HELLO_LIMIT ? limit : RPC_HELLO_LIMIT);
  if (session == NULL || in == NULL) {
    free(session);
    free(in);
    ek_error("MemoryError", "rpc: no memory for a session");
    return NULL;
  }
  session->refs = 1;
  session->stream = stream;
  session->options = options;
  session->thread = &rpc_thread;
  session->limit = limit;
  session->peer_limit = RPC_HELLO_LIMIT;
  session->in = in;
  session->upload.file = -1;
  return session;
}

/* The session itself lets go first: then what the client held goes, and with it callbacks, if
** nobody else has them. */
void rpc_session_release(rpc_session *session) {
  if (--session->refs > 0) return;
  free(session->in);
  free(session->out);
  rpc_unmap(session);
  rpc_cancel_upload(&session->upload);
  free(session->upload.part);
  free(session->handles);
  free(session->exported);
  free(session->dropped);
  free(session);
}
