/* Serialisation of messages. The parser trusts nothing: every size and count is checked against the
** remaining bytes before memory is allocated for it. */
#include "ek_rpc_internal.h"

enum { MAX_RANK = 64, LEAST_TAIL = 4096 };

int rpc_frame_error(const char *what) { return ek_error("FrameError", "rpc: %s", what); }

/* Whether the pending error ends the session. */
bool rpc_is_frame_error(void) {
  ek_object *error = ek_error_take();
  if (error == NULL) return false;
  const ek_bytes *kind = &((ek_error_object *)(void *)error)->kind;
  bool is_it = kind->size == 10 && memcmp(kind->data, "FrameError", 10) == 0;
  ek_error_set(error);
  ek_release(error);
  return is_it;
}

/* Reading -------------------------------------------------------------------------------------- */

/* Numbers are little-endian as they lie: this server runs on such machines only. */
static int take(rpc_reader *reader, void *out, size_t size) {
  if ((size_t)(reader->end - reader->at) < size) return rpc_frame_error("a message is too short");
  memcpy(out, reader->at, size);
  reader->at += size;
  return 0;
}

/* A count of items that take at least 'least' bytes each. */
static int take_count(rpc_reader *reader, size_t least, uint32_t *out) {
  if (take(reader, out, 4) != 0) return -1;
  if (*out > (size_t)(reader->end - reader->at) / least) {
    return rpc_frame_error("more items announced than there are bytes");
  }
  return 0;
}

static int take_bytes(rpc_reader *reader, ek_bytes *out) {
  uint32_t size = 0;
  if (take_count(reader, 1, &size) != 0) return -1;
  out->data = (const char *)reader->at;
  out->size = size;
  reader->at += size;
  return 0;
}

/* Whether bytes are UTF-8 (surrogates are let through, as Python's names of files have them). */
static bool is_text(const ek_bytes *bytes) {
  const uint8_t *at = (const uint8_t *)bytes->data, *end = at + bytes->size;
  while (at < end) {
    uint8_t first = *at++;
    int more = first < 0x80 ? 0 : first >= 0xC2 && first < 0xE0 ? 1 : (first & 0xF0) == 0xE0 ? 2
               : first >= 0xF0 && first < 0xF5 ? 3 : -1;
    if (more < 0 || end - at < more) return false;
    if (first == 0xE0 && *at < 0xA0) return false;
    if (first == 0xF0 && *at < 0x90) return false;
    if (first == 0xF4 && *at > 0x8F) return false;
    for (; more > 0; more--) {
      if ((*at++ & 0xC0) != 0x80) return false;
    }
  }
  return true;
}

static int take_text(rpc_reader *reader, ek_bytes *out) {
  if (take_bytes(reader, out) != 0) return -1;
  return is_text(out) ? 0 : rpc_frame_error("text expected");
}

/* Bits of an element of each kind of number: those of DLPack that this runtime has. */
static int check_dtype(ek_dtype dtype) {
  bool fits;
  switch (dtype.code) {
    case EK_DTYPE_INT:
    case EK_DTYPE_UINT: fits = dtype.bits == 1 || dtype.bits == 2 || dtype.bits == 4 || dtype.bits == 8
                               || dtype.bits == 16 || dtype.bits == 32 || dtype.bits == 64; break;
    case EK_DTYPE_FLOAT: fits = dtype.bits == 16 || dtype.bits == 32 || dtype.bits == 64; break;
    case EK_DTYPE_BFLOAT: fits = dtype.bits == 16; break;
    case EK_DTYPE_COMPLEX: fits = dtype.bits == 64 || dtype.bits == 128; break;
    case EK_DTYPE_FLOAT6_E2M3FN:
    case EK_DTYPE_FLOAT6_E3M2FN: fits = dtype.bits == 6; break;
    case EK_DTYPE_FLOAT4_E2M1FN: fits = dtype.bits == 4; break;
    default: fits = dtype.code >= EK_DTYPE_BOOL && dtype.code <= EK_DTYPE_FLOAT8_E8M0FNU
                    && dtype.bits == 8;
  }
  return fits && dtype.lanes != 0 ? 0 : rpc_frame_error("a dtype expected");
}

static int take_type(rpc_reader *reader, rpc_field *out) {
  uint32_t rank = 0;
  if (take(reader, &out->device, 8) != 0 || take(reader, &out->dtype, 4) != 0
      || take_count(reader, 8, &rank) != 0 || check_dtype(out->dtype) != 0) {
    return -1;
  }
  if (rank > MAX_RANK) return rpc_frame_error("a rank of 64 at most expected");
  out->rank = (int32_t)rank;
  out->bytes.data = (const char *)reader->at;
  out->bytes.size = 8 * rank;
  for (uint32_t i = 0; i < rank; i++) {
    int64_t size = 0;
    if (take(reader, &size, 8) != 0) return -1;
    if (size < 0) return rpc_frame_error("sizes of a tensor expected");
  }
  return 0;
}

void *rpc_grow(void *array, size_t count, size_t *room, size_t item) {
  if (count < *room) return array;
  size_t capacity = *room == 0 ? 8 : 2 * *room;
  void *larger = realloc(array, capacity * item);
  if (larger == NULL) ek_error("MemoryError", "rpc: no memory for %zu items", capacity);
  else *room = capacity;
  return larger;
}

static void drop_values(ek_value *values, int64_t count) {
  for (int64_t i = 0; i < count; i++) ek_value_release(&values[i]);
  free(values);
}

/* 'count' values, owned. Room grows by doubling with what has been read, never to the announced
** count. A value of one byte takes 16 here, so that a message costs us some 50 times its length at
** most, and the limit of a message is a limit of memory. */
static int take_values(rpc_reader *reader, int depth, uint32_t count, ek_value **out) {
  ek_value *values = NULL;
  size_t room = 0;
  for (uint32_t i = 0; i < count; i++) {
    ek_value *larger = rpc_grow(values, i, &room, sizeof *values);
    ek_value value = ek_value_none();
    if (larger != NULL) values = larger;
    if (larger == NULL || rpc_read_value(reader, depth, &value) != 0) {
      drop_values(values, i);
      return -1;
    }
    values[i] = value;
  }
  *out = values;
  return 0;
}

static int take_container(rpc_reader *reader, int depth, int32_t type, int32_t tag, uint32_t count,
                          ek_value *out) {
  ek_value *values = NULL;
  ek_object *object = NULL;
  if (take_values(reader, depth + 1, count, &values) != 0) return -1;
  int code = ek_container_new(type, tag, values, count, &object);
  drop_values(values, count);
  if (code == 0) *out = ek_value_object(object);
  return code;
}

static int take_shape(rpc_reader *reader, ek_value *out) {
  uint32_t count = 0;
  ek_object *object = NULL;
  if (take_count(reader, 8, &count) != 0) return -1;
  ek_value *sizes = calloc(count + 1, sizeof *sizes);
  if (sizes == NULL) return ek_error("MemoryError", "rpc: no memory for %u sizes", count);
  for (uint32_t i = 0; i < count; i++) {
    int64_t size = 0;
    take(reader, &size, 8);
    sizes[i] = ek_value_int(size);
  }
  int code = ek_container_new(EK_SHAPE, 0, sizes, count, &object);
  free(sizes);
  if (code == 0) *out = ek_value_object(object);
  return code;
}

static int take_string(rpc_reader *reader, int32_t type, ek_value *out) {
  ek_bytes found;
  int code = type == EK_STR ? take_text(reader, &found) : take_bytes(reader, &found);
  return code != 0 ? -1 : ek_string_new(type, found.data, found.size, out);
}

static int take_number(rpc_reader *reader, int32_t type, size_t size, ek_value *out) {
  ek_value value = ek_value_none();
  if (take(reader, value.v.bytes, size) != 0) return -1;
  if (type == EK_BOOL && value.v.i64 > 1) return rpc_frame_error("0 or 1 expected");
  if (type == EK_DTYPE && check_dtype(value.v.dtype) != 0) return -1;
  value.type_index = type;
  *out = value;
  return 0;
}

static int take_yours(rpc_reader *reader, ek_value *out) {
  uint64_t handle = 0;
  if (take(reader, &handle, 8) != 0) return -1;
  const ek_value *value = rpc_local_object(reader->session, handle);
  if (value == NULL) return rpc_frame_error("no object has this handle");
  ek_value_retain(value);
  *out = *value;
  return 0;
}

static int read_client_function(rpc_reader *reader, ek_value *out) {
  uint64_t handle = 0;
  if (take(reader, &handle, 8) != 0) return -1;
  return rpc_client_function(reader->session, handle, out);
}

/* Other objects of the client: parsed, so that the rest of the message is, and refused. */
static int refuse_object(rpc_reader *reader, int tag) {
  uint64_t handle = 0;
  ek_bytes text;
  rpc_field type = {0};
  if (take(reader, &handle, 8) != 0) return -1;
  if (tag == RPC_TAG_TENSOR && take_type(reader, &type) != 0) return -1;
  if (tag == RPC_TAG_OBJECT && take_text(reader, &text) != 0) return -1;
  return ek_error("TypeError", "rpc: this server takes numbers, text, containers, functions and its "
                  "own objects; got an object of the client");
}

int rpc_read_value(rpc_reader *reader, int depth, ek_value *out) {
  uint8_t tag = 0;
  uint32_t count = 0;
  int32_t adt = 0;
  if (depth > RPC_DEPTH_LIMIT) return rpc_frame_error("too many containers inside each other");
  if (take(reader, &tag, 1) != 0) return -1;
  switch (tag) {
    case RPC_TAG_NONE: *out = ek_value_none(); return 0;
    case RPC_TAG_INT: return take_number(reader, EK_INT, 8, out);
    case RPC_TAG_BOOL: return take_number(reader, EK_BOOL, 1, out);
    case RPC_TAG_FLOAT: return take_number(reader, EK_FLOAT, 8, out);
    case RPC_TAG_DTYPE: return take_number(reader, EK_DTYPE, 4, out);
    case RPC_TAG_DEVICE: return take_number(reader, EK_DEVICE, 8, out);
    case RPC_TAG_STR: return take_string(reader, EK_STR, out);
    case RPC_TAG_BYTES: return take_string(reader, EK_BYTES, out);
    case RPC_TAG_SHAPE: return take_shape(reader, out);
    case RPC_TAG_YOURS: return take_yours(reader, out);
    case RPC_TAG_FUNCTION: return read_client_function(reader, out);
    case RPC_TAG_OBJECT:
    case RPC_TAG_TENSOR:
    case RPC_TAG_MODULE: return refuse_object(reader, tag);
    case RPC_TAG_ARRAY:
      if (take_count(reader, 1, &count) != 0) return -1;
      return take_container(reader, depth, EK_ARRAY, 0, count, out);
    case RPC_TAG_MAP:
      if (take_count(reader, 2, &count) != 0) return -1;
      return take_container(reader, depth, EK_MAP, 0, 2 * count, out);
    case RPC_TAG_ADT:
      if (take(reader, &adt, 4) != 0 || take_count(reader, 1, &count) != 0) return -1;
      return take_container(reader, depth, EK_ADT, adt, count, out);
    default: return rpc_frame_error("a kind of value expected");
  }
}

static int read_field(rpc_reader *reader, char letter, rpc_field *out) {
  uint32_t count = 0;
  switch (letter) {
    case 'u': return take(reader, &out->number, 4);
    case 'q':
    case 'i':
    case 'h': return take(reader, &out->number, 8);
    case 's': return take_text(reader, &out->bytes);
    case 'b': return take_bytes(reader, &out->bytes);
    case 't': return take_type(reader, out);
    case 'v': count = 1; break;
    case 'V':
      if (take_count(reader, 1, &count) != 0) return -1;
      break;
    default: /* H */
      if (take_count(reader, 8, &count) != 0) return -1;
      out->bytes.data = (const char *)reader->at;
      out->count = count;
      reader->at += 8 * (size_t)count;
      return 0;
  }
  if (take_values(reader, 0, count, &out->values) != 0) return -1;
  out->count = count;
  return 0;
}

/* The fields of the body in 'in', which are to be released. */
int rpc_read_fields(rpc_session *session, const char *letters, size_t size, rpc_field *fields) {
  rpc_reader reader = {session, session->in, session->in + size};
  memset(fields, 0, RPC_MAX_FIELDS * sizeof *fields);
  int code = 0;
  for (int i = 0; code == 0 && letters[i] != 0; i++) code = read_field(&reader, letters[i], &fields[i]);
  if (code == 0 && reader.at != reader.end) code = rpc_frame_error("a message is too long");
  if (code != 0) rpc_fields_release(fields);
  return code;
}

void rpc_fields_release(rpc_field *fields) {
  for (int i = 0; i < RPC_MAX_FIELDS; i++) {
    if (fields[i].values != NULL) drop_values(fields[i].values, fields[i].count);
    fields[i].values = NULL;
  }
}

/* Writing -------------------------------------------------------------------------------------- */

void rpc_begin(rpc_session *session, int kind) {
  uint8_t head[RPC_HEADER] = {0, 0, 0, 0, (uint8_t)kind};
  session->out_size = 0;
  session->exported_count = 0;
  session->is_full = false;
  session->tail.size = 0;
  rpc_put(session, head, sizeof head);
}

/* Adds bytes to the frame; when it is longer than the other side takes that is found in the end.
** The room left is peer_limit + header - out_size, which is never negative: the frame is full
** before. */
void rpc_put(rpc_session *session, const void *data, size_t size) {
  if (session->is_full || size > (size_t)session->peer_limit + RPC_HEADER - session->out_size) {
    session->is_full = true;
    return;
  }
  if (size > session->out_room - session->out_size) {
    size_t room = 2 * (session->out_size + size);
    uint8_t *larger = realloc(session->out, room);
    session->is_full = larger == NULL;
    if (larger == NULL) return;
    session->out = larger;
    session->out_room = room;
  }
  if (size > 0) memcpy(session->out + session->out_size, data, size);
  session->out_size += size;
}

void rpc_put_u32(rpc_session *session, uint32_t number) { rpc_put(session, &number, 4); }
void rpc_put_u64(rpc_session *session, uint64_t number) { rpc_put(session, &number, 8); }

/* A length of 4 GiB or more is cut here, and never seen: such a frame is full with the bytes that
** follow, and is not sent. */
void rpc_put_text(rpc_session *session, const char *data, size_t size) {
  rpc_put_u32(session, (uint32_t)size);
  rpc_put(session, data, size);
}

/* Bytes that stay where they are until the frame has been sent, and end it.
**
** Who lends them keeps them until then: a tensor by its handle, which no request can release before
** the answer to this one is out, a mapped file by the session. */
static void put_lent(rpc_session *session, const ek_bytes *lent) {
  rpc_put_u32(session, (uint32_t)lent->size);
  if (lent->size < LEAST_TAIL) rpc_put(session, lent->data, lent->size);
  else if (lent->size > session->peer_limit - (session->out_size - RPC_HEADER)) session->is_full = true;
  else session->tail = *lent;
}

static void put_tag(rpc_session *session, int tag) {
  uint8_t byte = (uint8_t)tag;
  rpc_put(session, &byte, 1);
}

static void put_payload(rpc_session *session, int tag, const ek_value *value, size_t size) {
  put_tag(session, tag);
  rpc_put(session, value->v.bytes, size);
}

static int put_values(rpc_session *session, const ek_value *values, int64_t count, int depth) {
  for (int64_t i = 0; i < count; i++) {
    if (rpc_put_value(session, &values[i], depth + 1) != 0) return -1;
  }
  return 0;
}

static void put_type(rpc_session *session, const ek_dltensor *tensor) {
  rpc_put(session, &tensor->device, 8);
  rpc_put(session, &tensor->dtype, 4);
  rpc_put_u32(session, (uint32_t)tensor->ndim);
  rpc_put(session, tensor->shape, 8 * (size_t)tensor->ndim);
}

/* A local object, by a new handle; one of the other side by its own. A callback of the
** client's that comes back to it is its own function again, and no chain of two. */
static int put_object(rpc_session *session, const ek_value *value) {
  uint64_t handle = 0;
  if (rpc_client_handle(session, value->v.obj, &handle)) {
    put_tag(session, RPC_TAG_YOURS);
    rpc_put_u64(session, handle);
    return 0;
  }
  int tag = value->type_index == EK_FUNCTION ? RPC_TAG_FUNCTION
            : value->type_index == EK_TENSOR ? RPC_TAG_TENSOR
            : value->type_index == EK_MODULE ? RPC_TAG_MODULE : RPC_TAG_OBJECT;
  if (rpc_export(session, value, &handle) != 0) return -1;
  put_tag(session, tag);
  rpc_put_u64(session, handle);
  if (tag == RPC_TAG_TENSOR) put_type(session, ek_value_tensor(value));
  if (tag == RPC_TAG_OBJECT) {
    const char *key = ek_type_key(value->type_index);
    rpc_put_text(session, key == NULL ? "" : key, key == NULL ? 0 : strlen(key));
  }
  return 0;
}

static int put_map(rpc_session *session, const ek_map *map, int depth) {
  if ((map->slots & EK_MAP_IN_ORDER) == 0) {
    return ek_error("TypeError", "rpc: a map of another runtime cannot cross");
  }
  put_tag(session, RPC_TAG_MAP);
  rpc_put_u32(session, (uint32_t)map->size);
  return put_values(session, map->data, (int64_t)(2 * map->size), depth);
}

int rpc_put_value(rpc_session *session, const ek_value *value, int depth) {
  ek_bytes text;
  if (depth > RPC_DEPTH_LIMIT) {
    return ek_error("ValueError", "rpc: more than %d containers inside each other", RPC_DEPTH_LIMIT);
  }
  if (ek_string_borrow(value, &text)) {
    bool is_text_value = value->type_index == EK_STR || value->type_index == EK_SMALL_STR
                         || value->type_index == EK_RAW_STR;
    put_tag(session, is_text_value ? RPC_TAG_STR : RPC_TAG_BYTES);
    if (value->type_index == EK_BYTE_ARRAY_PTR && value->v.ptr == &session->lent) put_lent(session, &text);
    else rpc_put_text(session, text.data, text.size);
    return 0;
  }
  switch (value->type_index) {
    case EK_NONE: put_tag(session, RPC_TAG_NONE); return 0;
    case EK_INT: put_payload(session, RPC_TAG_INT, value, 8); return 0;
    case EK_BOOL: put_payload(session, RPC_TAG_BOOL, value, 1); return 0;
    case EK_FLOAT: put_payload(session, RPC_TAG_FLOAT, value, 8); return 0;
    case EK_DTYPE: put_payload(session, RPC_TAG_DTYPE, value, 4); return 0;
    case EK_DEVICE: put_payload(session, RPC_TAG_DEVICE, value, 8); return 0;
    case EK_SHAPE: {
      const ek_shape *shape = (const ek_shape *)(const void *)value->v.obj;
      put_tag(session, RPC_TAG_SHAPE);
      rpc_put_u32(session, (uint32_t)shape->size);
      rpc_put(session, shape->data, 8 * shape->size);
      return 0;
    }
    case EK_ARRAY: {
      const ek_array *array = (const ek_array *)(const void *)value->v.obj;
      put_tag(session, RPC_TAG_ARRAY);
      rpc_put_u32(session, (uint32_t)array->size);
      return put_values(session, array->data, array->size, depth);
    }
    case EK_ADT: {
      const ek_adt *adt = (const ek_adt *)(const void *)value->v.obj;
      put_tag(session, RPC_TAG_ADT);
      rpc_put(session, &adt->tag, 4);
      rpc_put_u32(session, (uint32_t)adt->size);
      return put_values(session, adt->fields, adt->size, depth);
    }
    case EK_MAP: return put_map(session, (const ek_map *)(const void *)value->v.obj, depth);
    default: break;
  }
  if (value->type_index >= EK_OBJECT) return put_object(session, value);
  return ek_error("TypeError", "rpc: a value of type %d cannot cross", (int)value->type_index);
}

/* Sends the frame. 0, or -1 with a ValueError where it is too long and nothing was sent, or a
** FrameError where the other side has gone. */
int rpc_send(rpc_session *session) {
  if (session->is_full) {
    return ek_error("ValueError", "rpc: a message of %u bytes at most expected", session->peer_limit);
  }
  const ek_rpc_stream *stream = session->stream;
  const ek_bytes *tail = &session->tail;
  uint32_t size = (uint32_t)(session->out_size - RPC_HEADER + tail->size);
  memcpy(session->out, &size, 4);
  if (stream != NULL && stream->write(stream->self, session->out, session->out_size) == 0
      && (tail->size == 0 || stream->write(stream->self, tail->data, tail->size) == 0)) {
    return 0;
  }
  session->stream = NULL;
  return rpc_frame_error("the other side has gone");
}
