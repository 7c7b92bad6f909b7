/* Serialise a paused virtual machine, and restore it.
**
** All numbers are little-endian. The file:
**   8 bytes   "EKSTATE\n"
**   u32       version, 1
**   u32       CRC-32 of what follows
**   32 bytes  the header of the executable's file, which holds its size and its sections' checksums
**   u32       number of objects, and each of them: u32 kind, then
**     MEMORY     i32 device, u64 size, bytes
**     TENSOR     u32 object (MEMORY), then as CONSTANT
**     CONSTANT   u32 constant, u64 offset, dtype (u8 code, u8 bits, u16 lanes), u64 flags, u32
**                rank, i64 dimensions
**     ADT        i32 tag, u32 size, fields
**     CLOSURE    u32 function, u32 size, captured values
**     REFERENCE  nothing: its value stands at the end
**     TEXT       u32 type (EK_STR or EK_BYTES), u32 size, bytes
**     ARRAY      u32 size, items
**     DEVICE_MEMORY  u32 device, by its number in the executable, u64 size, bytes
**   u32       number of frames, and each of them, the outermost first: u32 function, u32 word of
**             the next instruction, u32 register of its caller for its result, its registers
**   values of the references, in the order of the objects
** A value has 16 bytes: i32 type, u32 small_len, 8 bytes payload; EK_OBJECT stands for any object,
** and the payload is its number. An object refers to objects before it only, so that there are no
** cycles but through references. */
#include "ek_crc32.h"
#include "ek_vm_step.h"

enum { VERSION = 1, EXECUTABLE_HEADER = 32, PREFIX = 16 };

typedef enum kind {
  MEMORY, TENSOR, CONSTANT, ADT, CLOSURE, REFERENCE, TEXT, ARRAY, DEVICE_MEMORY, KINDS
} kind;

static const char magic[] = "EKSTATE\n";

/* Growing -------------------------------------------------------------------------------------- */

typedef struct block {
  char *data;
  size_t size, capacity;
} block;

/* Room for more bytes at the end; NULL without memory, with the error set. */
static void *extend(block *b, size_t size) {
  if (b->size + size > b->capacity) {
    size_t capacity = 2 * (b->size + size) + 256;
    char *larger = ek_alloc_or_error(capacity);
    if (larger == NULL) return NULL;
    if (b->size != 0) memcpy(larger, b->data, b->size);
    ek_free(b->data);
    b->data = larger;
    b->capacity = capacity;
  }
  b->size += size;
  return b->data + b->size - size;
}

static int append(block *b, const void *data, size_t size) {
  void *at = extend(b, size);
  if (at == NULL) return -1;
  if (size != 0) memcpy(at, data, size);
  return 0;
}

static int append_u32(block *b, int64_t value) {
  uint32_t word = (uint32_t)value;
  return append(b, &word, 4);
}

/* Finding objects ------------------------------------------------------------------------------
**
** A thing is an object, or, with its lowest bit set, the memory of a tensor that owns it in a way
** only its maker knows. */

typedef uintptr_t thing;

typedef struct visit {
  thing of;
  int64_t next;                /* child */
} visit;

typedef struct writer {
  const ek_vm *vm;
  block out;
  block things;                /* in the order of their numbers */
  block stack;                 /* of visits */
  block references;            /* found so far */
  uint32_t *table;             /* number + 1 by hash of the thing; 0 is free */
  size_t table_size;
} writer;

static size_t thing_count(const writer *w) { return w->things.size / sizeof(thing); }

static ek_object *object_of(thing t) { return (ek_object *)(t & ~(uintptr_t)1); }

/* The tensor or storage that owns what a tensor shows. */
static ek_object *root_of(ek_object *tensor) {
  ek_object *at = tensor;
  for (;;) {
    ek_object *owner = ((ek_tensor *)(void *)at)->owner;
    bool goes_on = owner != NULL && owner->type_index == EK_TENSOR && ek_tensor_is_own(owner);
    if (owner != NULL && ek_is(owner, EK_STORAGE) && ek_storage_is_own(owner)) return owner;
    if (!goes_on) return at;
    at = owner;
  }
}

static int32_t constant_of(const writer *w, const ek_object *root) {
  const ek_executable *e = w->vm->executable;
  for (int32_t i = 0; i < e->n_constants; i++) {
    ek_object *constant = e->constants[i];
    if (constant == root) return i;
    /* A constant copied to a device is a read-only view of the copy. */
    bool is_copy = ((ek_tensor *)(void *)constant)->dl.device.type != EK_CPU;
    if (is_copy && root_of(constant) == root) return i;
  }
  return -1;
}

/* The memory a tensor shows, or 0 for a constant's. */
static thing memory_of(const writer *w, ek_object *tensor) {
  ek_object *root = root_of(tensor);
  if (root->type_index == EK_STORAGE) return (thing)root;
  return constant_of(w, root) >= 0 ? 0 : ((thing)root | 1);
}

/* The values that an object owns and that were there before it. */
static int64_t values_of(ek_object *object, const ek_value **values) {
  switch (object->type_index) {
    case EK_CLOSURE: object = &((ek_closure *)(void *)object)->captured->base; /* fall through */
    case EK_ADT:
      *values = ((ek_adt *)(void *)object)->fields;
      return ((ek_adt *)(void *)object)->size;
    case EK_ARRAY:
      *values = ((ek_array *)(void *)object)->data;
      return ((ek_array *)(void *)object)->size;
    default: return 0;
  }
}

/* Child i of a thing that has children, 0 for one that is no object; false past the last. */
static bool child_of(const writer *w, thing of, int64_t i, thing *out) {
  const ek_value *values = NULL;
  *out = 0;
  if ((of & 1) != 0) return false;
  ek_object *object = object_of(of);
  if (object->type_index == EK_TENSOR && ek_tensor_is_own(object)) {
    *out = memory_of(w, object);
    return i == 0;
  }
  if (i >= values_of(object, &values)) return false;
  if (values[i].type_index >= EK_OBJECT) *out = (thing)values[i].v.obj;
  return true;
}

/* Returns the slot of a key in the table: open addressing, at most half full. */
static size_t slot_of(const writer *w, thing t) {
  const thing *things = (const thing *)(const void *)w->things.data;
  size_t at = (size_t)ek_hash_mix(0, t) & (w->table_size - 1);
  while (w->table[at] != 0 && things[w->table[at] - 1] != t) at = (at + 1) & (w->table_size - 1);
  return at;
}

static bool is_known(const writer *w, thing t) {
  return w->table_size != 0 && w->table[slot_of(w, t)] != 0;
}

static uint32_t number_of(const writer *w, thing t) { return w->table[slot_of(w, t)] - 1; }

static int grow_table(writer *w) {
  size_t size = w->table_size == 0 ? 64 : 2 * w->table_size;
  uint32_t *table = ek_alloc_or_error(size * sizeof *table);
  if (table == NULL) return -1;
  memset(table, 0, size * sizeof *table);
  ek_free(w->table);
  w->table = table;
  w->table_size = size;
  const thing *things = (const thing *)(const void *)w->things.data;
  for (size_t i = 0; i < thing_count(w); i++) table[slot_of(w, things[i])] = (uint32_t)i + 1;
  return 0;
}

static int add_thing(writer *w, thing t) {
  if (2 * (thing_count(w) + 1) > w->table_size && grow_table(w) != 0) return -1;
  size_t slot = slot_of(w, t);
  if (append(&w->things, &t, sizeof t) != 0) return -1;
  w->table[slot] = (uint32_t)thing_count(w);
  if ((t & 1) == 0 && object_of(t)->type_index == EK_REFERENCE) {
    return append(&w->references, &t, sizeof t);
  }
  return 0;
}

/* Numbers a thing and all it owns, owners last: depth first, with a stack of its own, as a list of
** a million cells is that deep and the stack of C is not. What is met from two owners before it has
** its number stands on the stack twice, and is known when it is left the second time. References
** own nothing here, so that there are no cycles. */
static int find_below(writer *w, thing root) {
  visit first = {root, 0};
  if (root == 0 || is_known(w, root)) return 0;
  if (append(&w->stack, &first, sizeof first) != 0) return -1;
  while (w->stack.size != 0) {
    visit *top = (visit *)(void *)(w->stack.data + w->stack.size) - 1;
    visit next = {0, 0};
    if (child_of(w, top->of, top->next++, &next.of)) {
      if (next.of == 0 || is_known(w, next.of)) continue;
      if (append(&w->stack, &next, sizeof next) != 0) return -1;
      continue;
    }
    w->stack.size -= sizeof(visit);
    if (!is_known(w, top->of) && add_thing(w, top->of) != 0) return -1;
  }
  return 0;
}

/* All that the registers lead to. What a reference holds may lead back to it, so references are
** followed from a list, which grows while it is read. */
static int find_all(writer *w) {
  for (size_t i = 0; i < w->vm->top; i++) {
    const ek_value *value = &w->vm->registers[i];
    if (value->type_index >= EK_OBJECT && find_below(w, (thing)value->v.obj) != 0) return -1;
  }
  for (size_t i = 0; i < w->references.size; i += sizeof(thing)) {
    thing t;
    memcpy(&t, w->references.data + i, sizeof t);
    const ek_value *value = ((ek_reference *)(void *)object_of(t))->cell->fields;
    if (value->type_index >= EK_OBJECT && find_below(w, (thing)value->v.obj) != 0) return -1;
  }
  return 0;
}

/* Writing -------------------------------------------------------------------------------------- */

static int refuse(const ek_value *value) {
  return ek_error("RunError", "save state: a value of type %s cannot be saved",
                  ek_value_type_name(value));
}

static int write_values(writer *w, const ek_value *values, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    ek_value value = values[i];
    if (value.type_index >= EK_OBJECT) {
      value.v.i64 = number_of(w, (thing)value.v.obj);
      value.type_index = EK_OBJECT;
      value.small_len = 0;
    } else if (value.type_index == EK_OPAQUE_PTR) {
      return refuse(&value);
    }
    if (append(&w->out, &value, sizeof value) != 0) return -1;
  }
  return 0;
}

/* The number of a device in the executable, or -1. */
static int32_t number_of_device(const ek_executable *e, ek_device device) {
  for (int32_t i = 0; i < e->n_devices; i++) {
    if (e->devices[i].type == device.type && e->devices[i].id == device.id) return i;
  }
  return -1;
}

static int write_memory(writer *w, const void *data, size_t size, ek_device device) {
  bool is_host = device.type == EK_CPU;
  int32_t number = is_host ? device.id : number_of_device(w->vm->executable, device);
  if (number < 0)
    return ek_error("RunError", "save state: memory of a device of the program expected, got "
                    "device type %d", device.type);
  if (append_u32(&w->out, is_host ? MEMORY : DEVICE_MEMORY) != 0) return -1;
  if (append_u32(&w->out, number) != 0 || append(&w->out, &(uint64_t){size}, 8) != 0) return -1;
  if (is_host) return append(&w->out, data, size);
  void *bytes = extend(&w->out, size);
  if (bytes == NULL) return -1;
  return size == 0 ? 0 : ek_device_fetch(data, device, bytes, (ek_device){EK_CPU, 0}, size);
}

static int write_tensor(writer *w, ek_object *object) {
  const ek_tensor *tensor = (const ek_tensor *)(const void *)object;
  const ek_dltensor *dl = &tensor->dl;
  ek_object *root = root_of(object);
  thing memory = memory_of(w, object);
  const char *start = root->type_index == EK_STORAGE
                          ? ((ek_storage *)(void *)root)->data
                          : ek_dltensor_data(&((ek_tensor *)(void *)root)->dl);
  if (!ek_dltensor_is_contiguous(dl))
    return ek_error("RunError", "save state: contiguous tensors expected, got one with strides");
  uint64_t offset = (uint64_t)((const char *)ek_dltensor_data(dl) - start), flags = tensor->flags;
  int64_t number = memory == 0 ? constant_of(w, root) : (int64_t)number_of(w, memory);
  if (append_u32(&w->out, memory == 0 ? CONSTANT : TENSOR) != 0) return -1;
  if (append_u32(&w->out, number) != 0 || append(&w->out, &offset, 8) != 0) return -1;
  if (append(&w->out, &dl->dtype, 4) != 0 || append(&w->out, &flags, 8) != 0) return -1;
  if (append_u32(&w->out, dl->ndim) != 0) return -1;
  return append(&w->out, dl->shape, 8 * (size_t)dl->ndim);
}

static int write_object(writer *w, ek_object *object) {
  const ek_value *values = NULL;
  int64_t n = values_of(object, &values);
  ek_value value = ek_value_object(object);
  ek_bytes bytes;
  block *out = &w->out;
  int failed;
  switch (object->type_index) {
    case EK_STORAGE: {
      const ek_storage *storage = (const ek_storage *)(const void *)object;
      return write_memory(w, storage->data, storage->size, storage->device);
    }
    case EK_TENSOR: return ek_tensor_is_own(object) ? write_tensor(w, object) : refuse(&value);
    case EK_ADT:
      failed = append_u32(out, ADT) || append_u32(out, ((ek_adt *)(void *)object)->tag);
      break;
    case EK_CLOSURE:
      if (((ek_closure *)(void *)object)->executable != &w->vm->executable->base)
        return ek_error("RunError", "save state: a closure belongs to another executable");
      failed = append_u32(out, CLOSURE) ||
               append_u32(out, ((ek_closure *)(void *)object)->function);
      break;
    case EK_ARRAY: failed = append_u32(out, ARRAY); break;
    case EK_REFERENCE: return append_u32(out, REFERENCE);
    case EK_STR:
    case EK_BYTES:
      (void)ek_string_borrow(&value, &bytes);
      if (bytes.size > UINT32_MAX) return refuse(&value);
      if (append_u32(out, TEXT) || append_u32(out, object->type_index)) return -1;
      return append_u32(out, (int64_t)bytes.size) || append(out, bytes.data, bytes.size) ? -1 : 0;
    default: return refuse(&value);
  }
  return failed || append_u32(out, n) || write_values(w, values, n) ? -1 : 0;
}

static int write_thing(writer *w, thing t) {
  if ((t & 1) == 0) return write_object(w, object_of(t));
  const ek_dltensor *dl = &((ek_tensor *)(void *)object_of(t))->dl;
  return write_memory(w, ek_dltensor_data(dl), ek_dltensor_nbytes(dl), dl->device);
}

static int write_frames(writer *w) {
  const ek_vm *vm = w->vm;
  if (append_u32(&w->out, vm->n_frames) != 0) return -1;
  for (int32_t depth = vm->n_frames - 1; depth >= 0; depth--) {
    ek_vm_view view;
    bool found = ek_vm_frame(vm, depth, &view);
    const ek_frame *own = &vm->frames[vm->n_frames - 1 - depth];
    assert(found);
    (void)found;
    if (append_u32(&w->out, view.function - vm->executable->functions) != 0) return -1;
    if (append_u32(&w->out, view.pc - view.function->code) != 0) return -1;
    if (append_u32(&w->out, own->dst) != 0) return -1;
    if (write_values(w, view.registers, view.function->n_registers) != 0) return -1;
  }
  return 0;
}

static int write_state(writer *w) {
  const ek_executable *e = w->vm->executable;
  if (append(&w->out, magic, 8) != 0 || append_u32(&w->out, VERSION) != 0) return -1;
  if (append_u32(&w->out, 0) != 0 || append(&w->out, e->data, EXECUTABLE_HEADER) != 0) return -1;
  if (find_all(w) != 0 || append_u32(&w->out, (int64_t)thing_count(w)) != 0) return -1;
  for (size_t i = 0; i < thing_count(w); i++) {
    if (write_thing(w, ((const thing *)(const void *)w->things.data)[i]) != 0) return -1;
  }
  if (write_frames(w) != 0) return -1;
  for (size_t i = 0; i < thing_count(w); i++) {
    thing t = ((const thing *)(const void *)w->things.data)[i];
    if ((t & 1) != 0 || object_of(t)->type_index != EK_REFERENCE) continue;
    if (write_values(w, ((ek_reference *)(void *)object_of(t))->cell->fields, 1) != 0) return -1;
  }
  uint32_t crc = ek_crc32(w->out.data + PREFIX, w->out.size - PREFIX);
  memcpy(w->out.data + PREFIX - 4, &crc, 4);
  return 0;
}

int ek_vm_save(const ek_vm *vm, ek_value *ret) {
  writer w = {.vm = vm};
  int status = write_state(&w);
  if (status == 0) status = ek_string_new(EK_BYTES, w.out.data, w.out.size, ret);
  ek_free(w.out.data);
  ek_free(w.things.data);
  ek_free(w.stack.data);
  ek_free(w.references.data);
  ek_free(w.table);
  return status;
}

/* Reading -------------------------------------------------------------------------------------- */

typedef struct reader {
  ek_vm *vm;
  const unsigned char *at, *end;
  ek_object **objects;         /* owned, 'known' of them */
  uint32_t known, n_objects;
  bool failed;
} reader;

static void *fail(reader *r, const char *what) {
  if (!r->failed) ek_error("LoadError", "resume state: %s", what);
  r->failed = true;
  return NULL;
}

static const unsigned char *take(reader *r, uint64_t size) {
  const unsigned char *at = r->at;
  if (r->failed || size > (uint64_t)(r->end - r->at)) return fail(r, "it ends too early");
  r->at += size;
  return at;
}

static uint32_t take_u32(reader *r) {
  uint32_t value = 0;
  const unsigned char *at = take(r, 4);
  if (at != NULL) memcpy(&value, at, 4);
  return value;
}

static uint64_t take_u64(reader *r) {
  uint64_t value = 0;
  const unsigned char *at = take(r, 8);
  if (at != NULL) memcpy(&value, at, 8);
  return value;
}

/* A count of things that take 'size' bytes each, at least; 0 where there cannot be as many. */
static int32_t take_count(reader *r, size_t size) {
  uint32_t n = take_u32(r);
  if (!r->failed && n <= (size_t)(r->end - r->at) / size && n <= INT32_MAX) return (int32_t)n;
  fail(r, "a count is larger than the file");
  return 0;
}

static bool is_plain(const ek_value *value) {
  bool is_text = value->type_index == EK_SMALL_STR || value->type_index == EK_SMALL_BYTES;
  if (is_text) return value->small_len <= 7 && value->v.bytes[7] == '\0';
  if (value->small_len != 0) return false;
  switch (value->type_index) {
    case EK_NONE: return value->v.i64 == 0;
    case EK_BOOL: return value->v.i64 == 0 || value->v.i64 == 1;
    case EK_INT:
    case EK_FLOAT: return true;
    default: return false;
  }
}

/* The next n values, owned; objects below 'limit' only. */
static void take_values(reader *r, ek_value *to, int64_t n, uint32_t limit) {
  for (int64_t i = 0; i < n && !r->failed; i++) {
    ek_value value = ek_value_none();
    const unsigned char *at = take(r, sizeof value);
    if (at == NULL) return;
    memcpy(&value, at, sizeof value);
    bool is_object = value.type_index == EK_OBJECT && value.small_len == 0;
    if (is_object && value.v.i64 >= 0 && value.v.i64 < limit) {
      value = ek_value_object(r->objects[value.v.i64]);
      ek_value_retain(&value);
    } else if (!is_plain(&value)) {
      fail(r, "a value is not one that a register can hold");
      return;
    }
    to[i] = value;
  }
}

static ek_object *take_memory(reader *r, kind k) {
  const ek_executable *e = r->vm->executable;
  uint32_t number = take_u32(r);
  uint64_t size = take_u64(r);
  const unsigned char *bytes = take(r, size);
  ek_object *storage;
  if (bytes == NULL) return NULL;
  if (number > INT32_MAX) return fail(r, "a device has a negative number");
  if (k == DEVICE_MEMORY && (number >= (uint32_t)e->n_devices || e->devices[number].type == EK_CPU))
    return fail(r, "a device is none of the executable's");
  ek_device host = {EK_CPU, (int32_t)number};
  ek_device device = k == MEMORY ? host : e->devices[number];
  if (ek_storage_new((size_t)size, 0, device, &storage) != 0) {
    r->failed = true;
    return NULL;
  }
  void *data = ((ek_storage *)(void *)storage)->data;
  if (size == 0) return storage;
  if (k == MEMORY) {
    memcpy(data, bytes, (size_t)size);
  } else if (ek_device_upload(bytes, (ek_device){EK_CPU, 0}, data, device, (size_t)size) != 0) {
    ek_release(storage);
    r->failed = true;
    return NULL;
  }
  return storage;
}

/* The object that owns a tensor's memory, and where that lies. */
static ek_object *take_owner(reader *r, kind k, const char **start, size_t *size) {
  const ek_executable *e = r->vm->executable;
  uint32_t number = take_u32(r);
  if (r->failed) return NULL;
  if (k == CONSTANT) {
    /* The verifier keeps code from absent constants, which have no data: nobody keeps a file. */
    if (number >= (uint32_t)e->n_constants || e->is_absent[number])
      return fail(r, "a constant has no such number");
    const ek_dltensor *dl = &((ek_tensor *)(void *)e->constants[number])->dl;
    *start = ek_dltensor_data(dl);
    *size = ek_dltensor_nbytes(dl);
    return e->constants[number];
  }
  if (number >= r->known || r->objects[number]->type_index != EK_STORAGE)
    return fail(r, "a tensor shows what is no memory");
  const ek_storage *storage = (const ek_storage *)(const void *)r->objects[number];
  *start = storage->data;
  *size = storage->size;
  return r->objects[number];
}

static ek_object *take_tensor(reader *r, kind k) {
  const char *start = NULL;
  size_t size = 0, nbytes;
  ek_device device;
  ek_dtype dtype = {0, 0, 0};
  ek_object *owner = take_owner(r, k, &start, &size), *tensor;
  uint64_t offset = take_u64(r);
  const unsigned char *type = take(r, 4);
  uint64_t flags = take_u64(r);
  uint32_t ndim = take_u32(r);
  int64_t shape[EK_MAX_NDIM];
  if (r->failed || ndim > EK_MAX_NDIM) return fail(r, "a tensor has too many dimensions");
  const unsigned char *dims = take(r, 8 * (uint64_t)ndim);
  if (dims == NULL) return NULL;
  memcpy(&dtype, type, 4);
  if (ndim != 0) memcpy(shape, dims, 8 * (size_t)ndim);
  if (dtype.code > EK_DTYPE_FLOAT4_E2M1FN || dtype.code == EK_DTYPE_OPAQUE || dtype.bits > 128)
    return fail(r, "a tensor has an unknown dtype");
  if (ek_shape_nbytes(shape, (int32_t)ndim, dtype, &nbytes) != 0) {
    r->failed = true;
    return NULL;
  }
  if (offset > size || nbytes > size - offset || offset % ((dtype.bits + 7u) / 8) != 0)
    return fail(r, "a tensor does not lie in its memory");
  device = k == TENSOR ? ((const ek_storage *)(const void *)owner)->device
                       : ((const ek_tensor *)(const void *)owner)->dl.device;
  void *data = (void *)(uintptr_t)(start + offset);
  if (ek_tensor_view(owner, data, shape, (int32_t)ndim, dtype, device,
                     flags & EK_DLPACK_READ_ONLY, &tensor) != 0) {
    r->failed = true;
    return NULL;
  }
  return tensor;
}

/* An ADT of the next values, as deep as those before it. */
static ek_adt *take_adt(reader *r, int32_t tag) {
  int32_t n = take_count(r, sizeof(ek_value));
  ek_adt *adt = r->failed ? NULL : ek_adt_alloc(tag, n);
  if (adt == NULL) {
    r->failed = true;
    return NULL;
  }
  take_values(r, adt->fields, n, r->known);
  return adt;
}

static ek_object *take_closure(reader *r) {
  const ek_executable *e = r->vm->executable;
  uint32_t function = take_u32(r);
  ek_adt *captured = take_adt(r, 0);
  ek_object *closure = NULL;
  if (captured == NULL) return NULL;
  if (function >= (uint32_t)e->n_functions || captured->size > e->functions[function].n_params) {
    fail(r, "a closure is of no function");
  }
  if (!r->failed) closure = ek_vm_closure(r->vm, (int32_t)function, captured);
  if (closure == NULL) {
    ek_release(&captured->base);
    r->failed = true;
  }
  return closure;
}

static ek_object *take_text(reader *r) {
  uint32_t type = take_u32(r);
  int32_t size = take_count(r, 1);
  const unsigned char *bytes = take(r, (uint64_t)size);
  ek_value value;
  if (bytes == NULL) return NULL;
  if ((type != EK_STR && type != EK_BYTES) || size <= 7) return fail(r, "a text is none");
  if (ek_string_new((int32_t)type, (const char *)bytes, (size_t)size, &value) == 0) {
    return value.v.obj;
  }
  r->failed = true;
  return NULL;
}

static ek_object *take_array(reader *r) {
  int32_t n = take_count(r, sizeof(ek_value));
  ek_array *array = r->failed ? NULL : ek_array_alloc(n);
  if (array == NULL) {
    r->failed = true;
    return NULL;
  }
  take_values(r, array->data, n, r->known);
  return &array->base;
}

static ek_object *take_reference(reader *r) {
  ek_object *reference = ek_vm_reference(ek_value_none());
  if (reference == NULL) r->failed = true;
  return reference;
}

static ek_object *take_object(reader *r) {
  uint32_t number = take_u32(r);
  ek_adt *adt;
  switch (r->failed ? KINDS : (kind)number) {
    case MEMORY:
    case DEVICE_MEMORY: return take_memory(r, (kind)number);
    case TENSOR:
    case CONSTANT: return take_tensor(r, (kind)number);
    case ADT:
      adt = take_adt(r, (int32_t)take_u32(r));
      return adt == NULL ? NULL : &adt->base;
    case CLOSURE: return take_closure(r);
    case REFERENCE: return take_reference(r);
    case TEXT: return take_text(r);
    case ARRAY: return take_array(r);
    default: return fail(r, "an object is of an unknown kind");
  }
}

static void take_objects(reader *r) {
  r->n_objects = (uint32_t)take_count(r, 4);
  r->objects = ek_alloc_or_error(((size_t)r->n_objects + 1) * sizeof *r->objects);
  if (r->objects == NULL) r->failed = true;
  while (!r->failed && r->known < r->n_objects) {
    ek_object *object = take_object(r);
    if (object != NULL) r->objects[r->known++] = object;
  }
}

/* The word of an instruction of the function, or NULL: instructions differ in length, so a word in
** the middle of one is told from its first only by walking there. */
static const int32_t *check_pc(const ek_vm_function *f, uint32_t word) {
  int32_t at = 0;
  while (at < f->n_words && (uint32_t)at < word) at += ek_instruction_words(f->code + at);
  return at < f->n_words && (uint32_t)at == word ? f->code + at : NULL;
}

static void take_frame(reader *r) {
  ek_vm *vm = r->vm;
  const ek_executable *e = vm->executable;
  const ek_vm_function *caller = vm->function;
  uint32_t function = take_u32(r), word = take_u32(r), dst = take_u32(r);
  if (r->failed) return;
  bool fits = function < (uint32_t)e->n_functions;
  const int32_t *pc = fits ? check_pc(&e->functions[function], word) : NULL;
  if (pc == NULL || dst >= (caller == NULL ? 1u : (uint32_t)caller->n_registers)) {
    fail(r, "a frame stands at no instruction of the executable");
    return;
  }
  if (ek_vm_enter(vm, &e->functions[function], vm->pc, (int32_t)dst) != 0) {
    r->failed = true;
    return;
  }
  take_values(r, vm->registers + vm->window, vm->function->n_registers, r->known);
  vm->pc = pc;
}

static void take_frames(reader *r) {
  uint32_t n = (uint32_t)take_count(r, 12);
  if (n == 0) fail(r, "it has no frames");
  r->vm->pc = NULL;
  for (uint32_t i = 0; i < n && !r->failed; i++) take_frame(r);
  for (uint32_t i = 0; i < r->known && !r->failed; i++) {
    if (r->objects[i]->type_index != EK_REFERENCE) continue;
    take_values(r, ((ek_reference *)(void *)r->objects[i])->cell->fields, 1, r->known);
  }
  if (!r->failed && r->at != r->end) fail(r, "bytes are left over");
}

static void take_header(reader *r) {
  const ek_executable *e = r->vm->executable;
  const unsigned char *start = take(r, 8);
  uint32_t version = take_u32(r), crc = take_u32(r);
  if (r->failed) return;
  if (memcmp(start, magic, 8) != 0 || version != VERSION) fail(r, "it is no state of this version");
  else if (ek_crc32(r->at, (size_t)(r->end - r->at)) != crc) fail(r, "its checksum is wrong");
  const unsigned char *header = take(r, EXECUTABLE_HEADER);
  if (header != NULL && memcmp(header, e->data, EXECUTABLE_HEADER) != 0)
    fail(r, "it belongs to another executable");
}

int ek_vm_resume(ek_vm *vm, ek_bytes state) {
  const unsigned char *data = (const unsigned char *)state.data;
  reader r = {.vm = vm, .at = data, .end = data + state.size};
  take_header(&r);
  if (!r.failed) take_objects(&r);
  if (!r.failed) take_frames(&r);
  if (r.failed) ek_vm_unwind(vm);
  for (uint32_t i = 0; i < r.known; i++) ek_release(r.objects[i]);
  ek_free(r.objects);
  return r.failed ? -1 : 0;
}
