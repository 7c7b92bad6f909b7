/* See ek_micro_rpc.h. Everything that the other side says is checked before it is used.
**
** One frame is there for both directions: a request is read whole, its arguments taken, and only
** then is the answer begun, over the same bytes. 'done' marks that point in each service. Nothing
** is allocated: things have MAX_THINGS places, tensors lie in one heap. A mistake in a request is
** noted once, by the first who finds it, and every function after that does no harm, so that
** services need not ask after each step. */
#include "ek_micro_rpc.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "ek_rpc_table.h"

enum { HEADER = 8, MAX_THINGS = 64, MAX_RANK = 8, MAX_ARGUMENTS = 32, ALIGNMENT = 16, TIMES = 256 };

typedef enum { FREE, MODULE, FUNCTION, SYSTEM_LIB, STACK, TENSOR } thing_kind;

/* DLPack's words: code, bits, lanes. */
typedef struct {
  uint8_t code, bits;
  uint16_t lanes;
} dtype;

/* Object that the client holds. A handle is its slot and the slot's generation. */
typedef struct {
  thing_kind kind;
  uint32_t turn;
  uint32_t offset, nbytes;                 /* of a tensor, in the heap */
  dtype type;
  uint32_t rank;
  int64_t shape[MAX_RANK];
} thing;

typedef struct {
  const ekiden_micro_model *model;
  const ek_micro_io *io;
  const ek_micro_memory *memory;
  thing things[MAX_THINGS];
  uint32_t peer_limit;
  uint32_t at, end;                        /* what is left to read of the frame */
  uint32_t size;                           /* of the frame that is written */
  const char *failure;                     /* of a request: the class of its error */
  const char *message;
  bool is_broken;                          /* a rule was broken: the session is over */
} session;

static session state;                      /* one at a time */

/* Errors --------------------------------------------------------------------------------------- */

static int fail(const char *kind, const char *message) {
  if (state.failure == NULL) {
    state.failure = kind;
    state.message = message;
  }
  return -1;
}

static int broken(const char *message) {
  state.is_broken = true;
  return fail("FrameError", message);
}

/* Reading -------------------------------------------------------------------------------------- */

static int take(void *to, uint32_t size) {
  if (size > state.end - state.at) return broken("rpc: the message is too short");
  memcpy(to, state.memory->frame + state.at, size);
  state.at += size;
  return 0;
}

static uint32_t take_u32(void) {
  uint32_t found = 0;
  take(&found, 4);
  return found;
}

static uint64_t take_u64(void) {
  uint64_t found = 0;
  take(&found, 8);
  return found;
}

/* Bytes behind their number; they stay in the frame. */
static const uint8_t *take_bytes(uint32_t *size) {
  *size = take_u32();
  if (*size > state.end - state.at) {
    *size = 0;
    broken("rpc: the message is too short");
  }
  const uint8_t *found = state.memory->frame + state.at;
  state.at += *size;
  return found;
}

static bool is_text(const uint8_t *bytes, uint32_t size, const char *text) {
  for (uint32_t i = 0; i < size; i++) {
    if (text[i] == 0 || (uint8_t)text[i] != bytes[i]) return false;
  }
  return text[size] == 0;
}

/* The low byte is the place, the rest how often it was taken: a handle of what has gone fits
** nothing. */
static thing *held(uint64_t handle) {
  uint64_t place = handle & 0xff;
  if (place == 0 || place > MAX_THINGS) return NULL;
  thing *found = &state.things[place - 1];
  return found->kind != FREE && found->turn == handle >> 8 ? found : NULL;
}

static thing *read_object(void) {
  thing *found = held(take_u64());
  if (found == NULL) broken("rpc: no thing has this handle");
  return found;
}

/* Values that are tensors, in the places of 'found'. The number, or -1. */
static int32_t take_tensors(thing **found) {
  uint32_t count = take_u32();
  if (state.is_broken || count > (state.end - state.at)) return broken("rpc: too many values");
  for (uint32_t i = 0; i < count; i++) {
    uint8_t tag = 0;
    if (take(&tag, 1) != 0) return -1;
    if (tag != RPC_TAG_YOURS) return fail("TypeError", "micro: tensors of this side are taken");
    thing *each = read_object();
    if (each == NULL) return -1;
    if (each->kind != TENSOR) return fail("TypeError", "micro: tensors of this side are taken");
    if (i >= MAX_ARGUMENTS) return fail("ValueError", "micro: too many arguments");
    found[i] = each;
  }
  return (int32_t)count;
}

/* Writing -------------------------------------------------------------------------------------- */

static void put(const void *data, uint32_t size) {
  if (size > state.memory->frame_bytes - state.size) {
    fail("ValueError", "micro: the answer is too long");
    return;
  }
  memcpy(state.memory->frame + state.size, data, size);
  state.size += size;
}

static void put_u8(uint8_t number) { put(&number, 1); }
static void put_u32(uint32_t number) { put(&number, 4); }
static void put_u64(uint64_t number) { put(&number, 8); }

static void put_text(const char *text) {
  uint32_t size = 0;
  while (text[size] != 0) size++;
  put_u32(size);
  put(text, size);
}

static void begin(int kind) {
  state.size = 4;                          /* of the body: it is written when it is known */
  put_u32((uint32_t)kind);
}

static int send(void) {
  uint32_t size = state.size - HEADER;
  memcpy(state.memory->frame, &size, 4);
  return state.io->write(state.memory->frame, state.size);
}

static int send_error(void) {
  const char *kind = state.failure, *message = state.message;
  begin(RPC_ERROR);
  put_text(kind);
  put_text(message);
  put_text("");
  return send();
}

static uint64_t handle_of(const thing *of) {
  return (uint64_t)of->turn << 8 | (uint64_t)(of - state.things + 1);
}

static void put_tensor(const thing *of) {
  put_u8(RPC_TAG_TENSOR);
  put_u64(handle_of(of));
  put_u32(1);                              /* the host, its number 0 */
  put_u32(0);
  put(&of->type.code, 1);
  put(&of->type.bits, 1);
  put(&of->type.lanes, 2);
  put_u32(of->rank);
  put(of->shape, 8 * of->rank);
}

/* Things --------------------------------------------------------------------------------------- */

/* A place is used again with the next turn, of 32 bits: a handle that the other side kept too long
** fits nothing until a place has been taken four thousand million times. */
static thing *new_object(thing_kind kind) {
  for (uint32_t i = 0; i < MAX_THINGS; i++) {
    if (state.things[i].kind == FREE) {
      uint32_t turn = state.things[i].turn + 1;
      memset(&state.things[i], 0, sizeof state.things[i]);
      state.things[i].kind = kind;
      state.things[i].turn = turn;
      return &state.things[i];
    }
  }
  fail("MemoryError", "micro: the other side holds too many things");
  return NULL;
}

static void let_go(thing *of) { of->kind = FREE; }

/* The lowest bytes of the heap that no tensor has; -1 where there are not enough. First fit: the
** place is moved behind each tensor that it overlaps until it overlaps none. It only moves up, so
** this ends, after at most MAX_THINGS passes over as many. */
static int64_t room_for(uint32_t nbytes) {
  uint64_t offset = 0;
  for (bool has_moved = true; has_moved;) {
    has_moved = false;
    for (uint32_t i = 0; i < MAX_THINGS; i++) {
      const thing *other = &state.things[i];
      if (other->kind == TENSOR && other->nbytes > 0 && offset < other->offset + (uint64_t)other->nbytes
          && other->offset < offset + nbytes) {
        offset = (other->offset + (uint64_t)other->nbytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        has_moved = true;
      }
    }
  }
  return offset + nbytes <= state.memory->heap_bytes ? (int64_t)offset : -1;
}

static thing *new_tensor(dtype type, uint32_t rank, const int64_t *shape) {
  uint64_t nbytes = ((uint64_t)type.bits * type.lanes + 7) / 8;
  for (uint32_t i = 0; i < rank; i++) {
    if (shape[i] < 0 || shape[i] > INT32_MAX) {
      fail("ValueError", "micro: a size is negative or too large");
      return NULL;
    }
    nbytes *= (uint64_t)shape[i];
    if (nbytes > UINT32_MAX) break;
  }
  if (nbytes > state.memory->heap_bytes) {
    fail("MemoryError", "micro: the heap of tensors has no room");
    return NULL;
  }
  int64_t offset = room_for((uint32_t)nbytes);
  if (offset < 0) {
    fail("MemoryError", "micro: the heap of tensors has no room");
    return NULL;
  }
  thing *made = new_object(TENSOR);
  if (made == NULL) return NULL;
  made->offset = (uint32_t)offset;
  made->nbytes = (uint32_t)nbytes;
  made->type = type;
  made->rank = rank;
  memcpy(made->shape, shape, 8 * rank);
  return made;
}

/* The words of NumPy as those of DLPack. */
static dtype dtype_of(const char *name) {
  static const struct { const char *word; uint8_t code; } words[] = {
    {"int", 0}, {"uint", 1}, {"float", 2}, {"bfloat", 4},
  };
  dtype found = {6, 8, 1};                 /* bool */
  for (uint32_t i = 0; i < sizeof words / sizeof *words; i++) {
    uint32_t length = 0;
    while (words[i].word[length] != 0 && words[i].word[length] == name[length]) length++;
    if (words[i].word[length] != 0 || name[length] < '0' || name[length] > '9') continue;
    found.code = words[i].code;
    found.bits = 0;
    for (; name[length] != 0; length++) found.bits = (uint8_t)(found.bits * 10 + name[length] - '0');
  }
  return found;
}

/* Services: 0 or -1. They have read the whole message before they begin an answer. --------------- */

static int done(void) {
  return state.at == state.end || state.is_broken ? (state.is_broken ? -1 : 0)
                                                  : broken("rpc: bytes are left over");
}

static int answer_none(void) {
  begin(RPC_RETURN);
  put_u8(RPC_TAG_NONE);
  return 0;
}

static int answer_object(thing_kind kind, int tag) {
  thing *made = new_object(kind);
  if (made == NULL) return -1;
  begin(RPC_RETURN);
  put_u8((uint8_t)tag);
  put_u64(handle_of(made));
  return 0;
}

static int get_function(void) {
  uint64_t module = take_u64();
  uint32_t size;
  const uint8_t *name = take_bytes(&size);
  if (done() != 0) return -1;
  if (module != 0) {
    thing *of = held(module);
    if (of == NULL) return broken("rpc: no thing has this handle");
    if (of->kind != MODULE) return fail("TypeError", "micro: a module expected");
    bool is_main = size == 0 || is_text(name, size, "main") || is_text(name, size, "run");
    return is_main ? answer_object(FUNCTION, RPC_TAG_FUNCTION) : answer_none();
  }
  if (is_text(name, size, "runtime.SystemLib")) return answer_object(SYSTEM_LIB, RPC_TAG_FUNCTION);
  bool is_stack = state.io->measure_stack != NULL && is_text(name, size, "ek.micro.stack");
  return is_stack ? answer_object(STACK, RPC_TAG_FUNCTION) : answer_none();
}

static int load(void) {
  uint32_t size;
  const uint8_t *name = take_bytes(&size);
  if (done() != 0) return -1;
  if (!is_text(name, size, state.model->name)) {
    return fail("FileNotFoundError", "micro: there is only the model that is linked in, by its name");
  }
  return answer_object(MODULE, RPC_TAG_MODULE);
}

static int alloc(void) {
  dtype type = {0, 0, 0};
  int64_t shape[MAX_RANK];
  uint32_t device = take_u32();
  take_u32();
  take(&type.code, 1);
  take(&type.bits, 1);
  take(&type.lanes, 2);
  uint32_t rank = take_u32();
  if (state.is_broken) return -1;
  if (rank > (state.end - state.at) / 8) return broken("rpc: the message is too short");
  for (uint32_t i = 0; i < rank; i++) {
    int64_t extent = (int64_t)take_u64();
    if (i < MAX_RANK) shape[i] = extent;
  }
  if (done() != 0) return -1;
  if (rank > MAX_RANK) return fail("ValueError", "micro: tensors have at most 8 dimensions");
  if (device != 1 || type.bits == 0 || type.lanes == 0) return fail("ValueError", "micro: tensors of the host");
  thing *made = new_tensor(type, rank, shape);
  if (made == NULL) return -1;
  memset(state.memory->heap + made->offset, 0, made->nbytes);
  begin(RPC_RETURN);
  put_tensor(made);
  return 0;
}

/* The bytes of a tensor from an offset on; NULL with an error. */
static uint8_t *elements(const thing *of, uint64_t offset, uint32_t size) {
  if (of->kind != TENSOR) {
    fail("TypeError", "micro: a tensor expected");
    return NULL;
  }
  if (offset > of->nbytes || size > of->nbytes - offset) {
    fail("ValueError", "tensor: bytes beyond its end");
    return NULL;
  }
  return state.memory->heap + of->offset + offset;
}

static int write_tensor(void) {
  thing *of = read_object();
  uint64_t offset = take_u64();
  uint32_t size;
  const uint8_t *data = take_bytes(&size);
  if (done() != 0) return -1;
  uint8_t *to = elements(of, offset, size);
  if (to == NULL) return -1;
  memcpy(to, data, size);
  return answer_none();
}

/* The 16 bytes are head and tag of the answer, with room to spare: peers take 4096 at least, so
** that the difference is positive. */
static int read_tensor(void) {
  thing *of = read_object();
  uint64_t offset = take_u64();
  uint32_t size = take_u32();
  if (done() != 0) return -1;
  const uint8_t *from = elements(of, offset, size);
  if (from == NULL) return -1;
  if (size > state.peer_limit - 16) return fail("ValueError", "read: more than a message holds");
  begin(RPC_RETURN);
  put_u8(RPC_TAG_BYTES);
  put_u32(size);
  put(from, size);
  return 0;
}

static int copy_tensor(void) {
  thing *from = read_object(), *to = read_object();
  if (done() != 0) return -1;
  if (from->kind != TENSOR || to->kind != TENSOR || from->nbytes != to->nbytes) {
    return fail("ValueError", "copy: two tensors of one size expected");
  }
  if (from != to) {
    memcpy(state.memory->heap + to->offset, state.memory->heap + from->offset, from->nbytes);
  }
  return answer_none();
}

static bool fits(const thing *of, const ekiden_micro_tensor *wanted) {
  dtype type = dtype_of(wanted->dtype);
  if (of->type.code != type.code || of->type.bits != type.bits || of->type.lanes != 1
      || of->rank != (uint32_t)wanted->ndim) {
    return false;
  }
  for (uint32_t i = 0; i < of->rank; i++) {
    if (of->shape[i] != wanted->shape[i]) return false;
  }
  return true;
}

/* Addresses of the arguments and of new tensors for the results.
**
** All that can be refused is refused before the model runs, and results that were already made are
** let go; the model itself writes where it is told to and checks nothing. */
static int bind(thing *const *arguments, int32_t count, thing **results, void **inputs, void **outputs) {
  const ekiden_micro_model *model = state.model;
  if (count != model->num_inputs) return fail("TypeError", "micro: another number of inputs expected");
  if (model->num_outputs > MAX_ARGUMENTS) return fail("ValueError", "micro: too many outputs");
  for (int32_t i = 0; i < count; i++) {
    if (!fits(arguments[i], &model->inputs[i])) {
      return fail("ValueError", "micro: an input has another shape or dtype than the model's");
    }
    inputs[i] = state.memory->heap + arguments[i]->offset;
  }
  for (int32_t i = 0; i < model->num_outputs; i++) {
    const ekiden_micro_tensor *of = &model->outputs[i];
    int64_t shape[MAX_RANK];
    if (of->ndim > MAX_RANK) return fail("ValueError", "micro: tensors have at most 8 dimensions");
    for (int32_t axis = 0; axis < of->ndim; axis++) shape[axis] = of->shape[axis];
    results[i] = new_tensor(dtype_of(of->dtype), (uint32_t)of->ndim, shape);
    if (results[i] == NULL) {
      while (i-- > 0) let_go(results[i]);
      return -1;
    }
    outputs[i] = state.memory->heap + results[i]->offset;
  }
  return 0;
}

static int call(void) {
  thing *arguments[MAX_ARGUMENTS], *results[MAX_ARGUMENTS];
  void *inputs[MAX_ARGUMENTS], *outputs[MAX_ARGUMENTS];
  thing *function = read_object();
  int32_t count = take_tensors(arguments);
  if (state.failure != NULL || done() != 0) return -1;
  if (function->kind == SYSTEM_LIB) return answer_object(MODULE, RPC_TAG_MODULE);
  bool is_stack = function->kind == STACK;
  if (function->kind != FUNCTION && !is_stack) return fail("TypeError", "micro: a function expected");
  if (bind(arguments, count, results, inputs, outputs) != 0) return -1;
  int32_t outs = state.model->num_outputs;
  void *const *pools = state.memory->pools;
  uint32_t stack = 0;
  int32_t code = is_stack ? state.io->measure_stack(state.model, inputs, outputs, pools, &stack)
                          : state.model->run(inputs, outputs, pools);
  if (code != 0 || is_stack) {
    for (int32_t i = 0; i < outs; i++) let_go(results[i]);
  }
  if (code != 0) return fail("RunError", "micro: the model refuses its inputs");
  begin(RPC_RETURN);
  if (is_stack) {
    put_u8(RPC_TAG_INT);
    put_u64(stack);
    return 0;
  }
  if (outs != 1) {
    put_u8(RPC_TAG_ADT);
    put_u32(0);
    put_u32((uint32_t)outs);
  }
  for (int32_t i = 0; i < outs; i++) put_tensor(results[i]);
  return 0;
}

/* Seconds of 'number' calls. */
static double time_calls(void *const *inputs, void *const *outputs, uint32_t number) {
  uint64_t start = state.io->ticks();
  for (uint32_t i = 0; i < number; i++) {
    if (state.model->run(inputs, outputs, state.memory->pools) != 0) {
      fail("RunError", "micro: the model refuses its inputs");
      return 0;
    }
  }
  return (double)(state.io->ticks() - start) / (double)state.io->frequency;
}

/* Measure as time_evaluator does: a repeat that was too short to measure is repeated with twice as
** many calls. 'zeros_limit' bounds the doubling if the clock does not advance. */
static int measure(uint32_t number, uint32_t repeat, uint32_t least_ms, uint32_t zeros_limit,
                   void *const *inputs, void *const *outputs) {
  double times[TIMES];
  double least = least_ms * 1e-3;
  time_calls(inputs, outputs, 1);
  for (uint32_t i = 0; i < repeat && state.failure == NULL; i++) {
    for (uint32_t zeros = 0;;) {
      double seconds = time_calls(inputs, outputs, number);
      zeros += seconds == 0;
      times[i] = seconds / number;
      if (seconds >= least || zeros >= zeros_limit || state.failure != NULL) break;
      number = number * 2 > number ? number * 2 : number;
    }
  }
  if (state.failure != NULL) return -1;
  begin(RPC_RETURN);
  put_u8(RPC_TAG_BYTES);
  put_u32(8 * repeat);
  put(times, 8 * repeat);
  return 0;
}

static int time_function(void) {
  thing *arguments[MAX_ARGUMENTS], *results[MAX_ARGUMENTS];
  void *inputs[MAX_ARGUMENTS], *outputs[MAX_ARGUMENTS];
  uint32_t size, numbers[6];
  take_u64();
  take_bytes(&size);
  for (uint32_t i = 0; i < 6; i++) numbers[i] = take_u32();
  uint64_t flush = take_u64();
  take_bytes(&size);
  int32_t count = take_tensors(arguments);
  if (state.failure != NULL || done() != 0) return -1;
  if (flush != 0 || size != 0 || numbers[4] != 0) {
    return fail("ValueError", "micro: time_evaluator takes number, repeat and min_repeat_ms");
  }
  if (numbers[0] < 1 || numbers[1] < 1 || numbers[1] > TIMES) {
    return fail("ValueError", "micro: number and repeat from 1 on, at most 256 repeats");
  }
  if (bind(arguments, count, results, inputs, outputs) != 0) return -1;
  int code = measure(numbers[0], numbers[1], numbers[2], numbers[3], inputs, outputs);
  for (int32_t i = 0; i < state.model->num_outputs; i++) let_go(results[i]);
  return code;
}

static int release(void) {
  uint32_t count = take_u32();
  if (count > (state.end - state.at) / 8) return broken("rpc: the message is too short");
  for (uint32_t i = 0; i < count; i++) {
    thing *of = read_object();
    if (of == NULL) return -1;
    let_go(of);
  }
  return done();
}

/* The session ---------------------------------------------------------------------------------- */

/* The next frame; its kind, or -1 at the end of the stream and for what is none. */
static int receive(void) {
  uint8_t head[HEADER];
  if (state.io->read(head, HEADER) != 0) return -1;
  uint32_t size;
  memcpy(&size, head, 4);
  if (size > state.memory->frame_bytes || head[5] != 0 || head[6] != 0 || head[7] != 0) {
    return broken("rpc: this is no message");
  }
  if (size > 0 && state.io->read(state.memory->frame, size) != 0) return -1;
  state.at = 0;
  state.end = size;
  return head[4];
}

static int hello(int kind) {
  if (kind != RPC_HELLO) return broken("rpc: HELLO expected");
  uint32_t size;
  uint64_t magic = take_u64();
  uint32_t version = take_u32();
  state.peer_limit = take_u32();
  take_u32();
  take_bytes(&size);
  uint32_t constructor = take_u32();
  if (state.is_broken) return -1;
  if (magic != RPC_MAGIC || version != RPC_VERSION || state.peer_limit < RPC_LEAST_LIMIT) {
    return broken("rpc: this is another protocol");
  }
  if (constructor != 0) return broken("micro: a session cannot go on to another server");
  begin(RPC_HELLO);
  put_u64(RPC_MAGIC);
  put_u32(RPC_VERSION);
  put_u32(state.memory->frame_bytes - HEADER);
  put_u32(0);
  put_text("");
  put_u32(0);
  return send();
}

static int serve(int kind) {
  switch (kind) {
    case RPC_CALL: return call();
    case RPC_FUNCTION: return get_function();
    case RPC_LOAD: return load();
    case RPC_ALLOC: return alloc();
    case RPC_WRITE: return write_tensor();
    case RPC_READ: return read_tensor();
    case RPC_COPY: return copy_tensor();
    case RPC_TIME: return time_function();
    case RPC_UPLOAD: case RPC_DOWNLOAD: case RPC_SIZE: case RPC_REMOVE: case RPC_LIST:
      return fail("ValueError", "session: this server has no files");
    case RPC_IMPORT: return fail("ValueError", "micro: the only module imports none");
    default: return broken("rpc: the message was not expected");
  }
}

void ek_micro_serve(const ekiden_micro_model *model, const ek_micro_io *io,
                    const ek_micro_memory *memory) {
  memset(&state, 0, sizeof state);
  state.model = model;
  state.io = io;
  state.memory = memory;
  int kind = receive();
  if (kind < 0 && !state.is_broken) return;
  if (state.is_broken || hello(kind) != 0) {
    if (state.failure != NULL) send_error();
    return;
  }
  for (;;) {
    state.failure = NULL;
    kind = receive();
    if (kind < 0 && !state.is_broken) return;
    if (!state.is_broken && kind == RPC_RELEASE) {
      if (release() == 0) continue;
    }
    int code = state.is_broken ? -1 : serve(kind);
    if (code == 0 && state.failure == NULL) code = send();
    else code = send_error();
    if (code != 0 || state.is_broken) return;
  }
}
