/* Storage, tensors, views, and copies between them. */
#include "ek_internal.h"

/* Storage -------------------------------------------------------------------------------------- */

enum { MAX_ALIGNMENT = 4096 };

static void storage_empty(ek_storage *storage) {
  ek_device device = storage->device;
  if (storage->data == NULL) return;
  if (device.type == EK_CPU) {
    ek_device_buffer_free(device.id, storage->data, storage->size);
    return;
  }
  const ek_device_table *table = ek_device_table_of(device, "free storage");
  if (table != NULL) ek_device_memory_free(table, device, storage->data, storage->size);
}

static void storage_deleter(void *self, int flags) {
  ek_storage *storage = self;
  if (flags & EK_DELETE_CONTENT) storage_empty(storage);
  if (flags & EK_DELETE_MEMORY) ek_free(self);
}

/* 'size' of a storage is what it can hold, which may be more than was asked for: it goes back to
** the pool with it. */
static int storage_fill(ek_storage *storage, size_t size, size_t alignment) {
  ek_device device = storage->device;
  if (device.type != EK_CPU) {
    const ek_device_table *table = ek_device_table_of(device, "allocate storage");
    storage->size = size;
    return table == NULL ? -1 : ek_device_memory(table, device, size, alignment, &storage->data);
  }
  if (device.id < 0 || device.id >= EK_CPU_DEVICES) {
    return ek_error("ValueError", "allocate storage: a CPU device from 0 to %d expected, got %d",
                    EK_CPU_DEVICES - 1, device.id);
  }
  /* Buffers of a page and more are aligned to pages. */
  size_t padded_size = alignment > 64 && size < MAX_ALIGNMENT ? MAX_ALIGNMENT : size;
  storage->data = ek_device_buffer_alloc(device.id, padded_size, &storage->size);
  return storage->data == NULL ? ek_error_memory(size) : 0;
}

int ek_storage_new(size_t size, size_t alignment, ek_device device, ek_object **out) {
  if (alignment > MAX_ALIGNMENT || (alignment & (alignment - 1)) != 0) {
    return ek_error("ValueError", "allocate storage: alignment must be a power of two up to %d, "
                    "got %zu", MAX_ALIGNMENT, alignment);
  }
  ek_storage *storage = ek_object_alloc(sizeof *storage, EK_STORAGE, storage_deleter);
  if (storage == NULL) return -1;
  storage->device = device;
  if (storage_fill(storage, size, alignment < 64 ? 64 : alignment) != 0) {
    ek_release(&storage->base);
    return -1;
  }
  *out = &storage->base;
  return 0;
}

/* Delete a storage over lent memory, without freeing the memory. */
static void lent_deleter(void *self, int flags) {
  if (flags & EK_DELETE_MEMORY) ek_free(self);
}

int ek_storage_lent(void *data, size_t size, ek_object **out) {
  ek_storage *storage = ek_object_alloc(sizeof *storage, EK_STORAGE, lent_deleter);
  if (storage == NULL) return -1;
  storage->device = (ek_device){EK_CPU, 0};
  storage->data = data;
  storage->size = size;
  *out = &storage->base;
  return 0;
}

/* Tensors -------------------------------------------------------------------------------------- */

static void tensor_deleter(void *self, int flags) {
  ek_tensor *tensor = self;
  if (flags & EK_DELETE_CONTENT) {
    ek_object_release(tensor->owner);
    if (tensor->dispose != NULL) tensor->dispose(tensor->managed);
  }
  if (flags & EK_DELETE_MEMORY) ek_free(self);
}

/* A tensor with a dimension of 0 has no bytes, however large the others are, so zeros are looked
** for before anything is multiplied. The result is held to a quarter of the address space, so
** that offsets and sums of two sizes fit signed numbers. */
int ek_shape_nbytes(const int64_t *shape, int32_t ndim, ek_dtype dtype, size_t *out) {
  uint64_t count = 1, bits = 0;
  if (ndim < 0 || ndim > EK_MAX_NDIM) {
    return ek_error("ValueError", "make tensor: the number of dimensions must be 0 to %d, got %d",
                    EK_MAX_NDIM, ndim);
  }
  if (dtype.bits == 0 || dtype.lanes != 1) {
    return ek_error("ValueError", "make tensor: expected a dtype of one lane and at least one bit, "
                    "got code %d, %d bits, %d lanes", dtype.code, dtype.bits, dtype.lanes);
  }
  for (int32_t i = 0; i < ndim; i++) {
    if (shape[i] < 0) {
      return ek_error("ValueError", "make tensor: dimension %d must not be negative, got %lld", i,
                      (long long)shape[i]);
    }
  }
  for (int32_t i = 0; i < ndim; i++) {
    if (shape[i] == 0) {
      *out = 0;
      return 0;
    }
  }
  bool fits = true;
  for (int32_t i = 0; i < ndim && fits; i++) {
    fits = !__builtin_mul_overflow(count, (uint64_t)shape[i], &count);
  }
  fits = fits && !__builtin_mul_overflow(count, (uint64_t)dtype.bits, &bits);
  if (!fits || bits / 8 > PTRDIFF_MAX / 2) {
    return ek_error("ValueError", "make tensor: the elements do not fit in memory");
  }
  *out = (size_t)((bits + 7) / 8);
  return 0;
}

bool ek_storage_is_own(const ek_object *object) {
  return object->deleter == storage_deleter || object->deleter == lent_deleter;
}

/* Another library with the same ABI (TVM-FFI's) may give a tensor whose struct ends with its
** DLTensor: owner and flags are read only of those that this deleter marks. */
bool ek_tensor_is_own(const ek_object *object) { return object->deleter == tensor_deleter; }

/* Shape and strides stand behind the object in its block: one allocation for a tensor. Strides are
** never NULL here, as DLPack 1.2 asks of producers. */
ek_tensor *ek_tensor_alloc(const int64_t *shape, int32_t ndim, ek_dtype dtype, ek_device device) {
  ek_tensor *tensor = ek_alloc_or_error(sizeof *tensor + 2 * (size_t)ndim * sizeof(int64_t));
  if (tensor == NULL) return NULL;
  int64_t *strides = tensor->dims + ndim;
  uint64_t stride = 1; /* wraps around only where another dimension is 0 */
  *tensor = (ek_tensor){.base = {EK_REFS_NEW, EK_TENSOR, 0, tensor_deleter},
                        .dl = {NULL, device, ndim, dtype, tensor->dims, strides, 0}};
  for (int32_t i = ndim - 1; i >= 0; i--) {
    tensor->dims[i] = shape[i];
    strides[i] = (int64_t)stride;
    stride *= shape[i] == 0 ? 1 : (uint64_t)shape[i];
  }
  return tensor;
}

int ek_tensor_new(const int64_t *shape, int32_t ndim, ek_dtype dtype, ek_device device,
                  ek_object **out) {
  size_t size;
  ek_object *storage;
  if (ek_shape_nbytes(shape, ndim, dtype, &size) != 0) return -1;
  if (ek_storage_new(size, 0, device, &storage) != 0) return -1;
  ek_tensor *tensor = ek_tensor_alloc(shape, ndim, dtype, device);
  if (tensor == NULL) {
    ek_release(storage);
    return -1;
  }
  tensor->owner = storage;
  tensor->dl.data = ((ek_storage *)(void *)storage)->data;
  *out = &tensor->base;
  return 0;
}

/* Whether [begin, begin + size) lies in the storage. */
static int check_inside(const ek_storage *storage, const void *begin, size_t size) {
  uintptr_t start = (uintptr_t)storage->data, at = (uintptr_t)begin;
  if (at >= start && at - start <= storage->size && size <= storage->size - (at - start)) return 0;
  return ek_error("ValueError", "make view: %zu bytes at offset %lld do not lie in a storage of "
                  "%zu bytes", size, (long long)(at - start), storage->size);
}

/* The elements, counted from the first, that strides reach below it and from it on.
**
** With a stride below 0 the first element is not the lowest: of x[::-1] it is the last in memory.
** So both directions are summed apart, dimension by dimension: -below .. above - 1 are the
** places. */
static int reach(const ek_dltensor *like, int64_t *below, int64_t *above) {
  *below = 0;
  *above = 1;
  for (int32_t i = 0; i < like->ndim; i++) {
    bool goes_down = like->strides[i] < 0;
    int64_t steps, *to = goes_down ? below : above;
    if (__builtin_mul_overflow(like->shape[i] - 1, like->strides[i], &steps) ||
        (goes_down ? __builtin_sub_overflow(*to, steps, to)
                   : __builtin_add_overflow(*to, steps, to))) {
      return ek_error("ValueError", "make view: the strides do not fit in memory");
    }
  }
  return 0;
}

static int check_strided(const ek_storage *storage, const ek_dltensor *like, size_t nbytes) {
  int64_t below, above, bits = (int64_t)like->dtype.bits;
  const char *data = ek_dltensor_data(like);
  if (nbytes == 0 || like->strides == NULL) return check_inside(storage, data, nbytes);
  if (reach(like, &below, &above) != 0) return -1;
  if (below > PTRDIFF_MAX / 512 || above > PTRDIFF_MAX / 512) {
    return ek_error("ValueError", "make view: the strides do not fit in memory");
  }
  int64_t first = (below * bits + 7) / 8, last = (above * bits + 7) / 8;
  return check_inside(storage, data - first, (size_t)(first + last));
}

/* Bounds are checked against a storage of ours alone. With another owner the caller vouches for
** them. A view of what is read-only is read-only, whatever its flags say. */
int ek_tensor_strided(ek_object *owner, const ek_dltensor *like, uint64_t flags, ek_object **out) {
  size_t size;
  if (ek_shape_nbytes(like->shape, like->ndim, like->dtype, &size) != 0) return -1;
  bool is_storage = owner != NULL && ek_storage_is_own(owner);
  if (is_storage && check_strided((ek_storage *)(void *)owner, like, size) != 0) {
    return -1;
  }
  ek_tensor *tensor = ek_tensor_alloc(like->shape, like->ndim, like->dtype, like->device);
  if (tensor == NULL) return -1;
  if (like->strides != NULL && like->ndim > 0) {
    memcpy(tensor->dl.strides, like->strides, (size_t)like->ndim * sizeof(int64_t));
  }
  if (ek_is(owner, EK_TENSOR) && ek_tensor_is_own(owner)) {
    flags |= ((ek_tensor *)(void *)owner)->flags & EK_DLPACK_READ_ONLY;
  }
  ek_object_retain(owner);
  tensor->owner = owner;
  tensor->flags = flags;
  tensor->dl.data = like->data;
  tensor->dl.byte_offset = like->byte_offset;
  *out = &tensor->base;
  return 0;
}

/* Copies --------------------------------------------------------------------------------------- */

typedef struct copy_plan {
  int32_t ndim;
  size_t item;                             /* bytes of one element, or bits of a packed one */
  int64_t shape[EK_MAX_NDIM];
  int64_t from[EK_MAX_NDIM], to[EK_MAX_NDIM]; /* strides in bytes, or in packed elements */
} copy_plan;

static int check_copy(const ek_dltensor *from, const ek_dltensor *to) {
  if (memcmp(&from->dtype, &to->dtype, sizeof from->dtype) != 0) {
    return ek_error("TypeError", "copy tensor: the dtypes differ");
  }
  bool same = from->ndim == to->ndim && from->ndim <= EK_MAX_NDIM;
  for (int32_t i = 0; same && i < from->ndim; i++) same = from->shape[i] == to->shape[i];
  return same ? 0 : ek_error("ValueError", "copy tensor: the shapes differ");
}

/* Strides of 'tensor' in units of which an element has 'item', in the order of its dimensions. */
static void strides_of(const ek_dltensor *tensor, size_t item, int64_t *strides) {
  int64_t packed = (int64_t)item;
  for (int32_t i = tensor->ndim - 1; i >= 0; i--) {
    strides[i] = tensor->strides == NULL ? packed : tensor->strides[i] * (int64_t)item;
    packed *= tensor->shape[i];
  }
}

/* Drops dimensions of length 1 and joins neighbours that lie behind each other on both sides. Of a
** copy that is whole but for its outermost dimension, one memcpy a row is left; of one between two
** equal layouts, one in all. */
static void simplify(copy_plan *plan) {
  int32_t kept = 0;
  for (int32_t i = 0; i < plan->ndim; i++) {
    int64_t n = plan->shape[i];
    if (n == 1) continue;
    bool joins = kept > 0 && plan->from[kept - 1] == n * plan->from[i] &&
                 plan->to[kept - 1] == n * plan->to[i];
    int32_t at = joins ? kept - 1 : kept++;
    plan->shape[at] = joins ? plan->shape[at] * n : n;
    plan->from[at] = plan->from[i];
    plan->to[at] = plan->to[i];
  }
  plan->ndim = kept;
}

/* Copy one row along the last dimension. */
static void copy_row(const char *from, char *to, int64_t n, int64_t from_stride, int64_t to_stride,
                     size_t item) {
  if (from_stride == (int64_t)item && to_stride == (int64_t)item) {
    memcpy(to, from, (size_t)n * item);
    return;
  }
  for (int64_t i = 0; i < n; i++) memcpy(to + i * to_stride, from + i * from_stride, item);
}

/* An odometer over all dimensions but the last: pointers move by strides, and back when one has
** turned over, so that no index is multiplied out. At least one dimension is left, none is
** empty. */
static void copy_strided(const copy_plan *plan, const char *from, char *to) {
  int64_t index[EK_MAX_NDIM] = {0};
  int32_t last = plan->ndim - 1;
  for (;;) {
    copy_row(from, to, plan->shape[last], plan->from[last], plan->to[last], plan->item);
    int32_t d = last - 1;
    for (; d >= 0; d--) {
      from += plan->from[d];
      to += plan->to[d];
      if (++index[d] < plan->shape[d]) break;
      from -= plan->shape[d] * plan->from[d];
      to -= plan->shape[d] * plan->to[d];
      index[d] = 0;
    }
    if (d < 0) return;
  }
}

/* Elements of fewer than 8 bits, one by one: element i of a row lies at bit i * bits. */
static int64_t bit_of(const copy_plan *plan, const int64_t *strides, const int64_t *index) {
  int64_t element = 0;
  for (int32_t i = 0; i < plan->ndim; i++) element += strides[i] * index[i];
  return element * (int64_t)plan->item;
}

static void copy_bits(const unsigned char *from, int64_t from_bit, unsigned char *to,
                      int64_t to_bit, size_t bits) {
  for (size_t i = 0; i < bits; i++, from_bit++, to_bit++) {
    /* Arithmetic shifts and masks find the byte and the bit in it below zero, too. */
    unsigned bit = (unsigned)from[from_bit >> 3] >> (from_bit & 7) & 1u;
    unsigned char mask = (unsigned char)(1u << (to_bit & 7)), *at = &to[to_bit >> 3];
    *at = bit ? (unsigned char)(*at | mask) : (unsigned char)(*at & ~mask);
  }
}

/* 'plan' in elements, its item in bits. */
static void copy_packed(const copy_plan *plan, const void *from, void *to) {
  int64_t index[EK_MAX_NDIM] = {0};
  for (int32_t d = 0; d >= 0;) {
    copy_bits(from, bit_of(plan, plan->from, index), to, bit_of(plan, plan->to, index), plan->item);
    for (d = plan->ndim - 1; d >= 0 && ++index[d] == plan->shape[d]; d--) index[d] = 0;
  }
}

/* Through the table of the kind of device that is not the host's. is_fresh: nothing has used the
** memory that is written. */
static int copy_device(const ek_dltensor *from, const ek_dltensor *to, size_t nbytes,
                       bool is_fresh) {
  ek_device other = from->device.type != EK_CPU ? from->device : to->device;
  const ek_device_table *table = ek_device_table_of(other, "copy tensor");
  if (table == NULL) return -1;
  if (!ek_dltensor_is_contiguous(from) || !ek_dltensor_is_contiguous(to)) {
    return ek_error("ValueError", "copy tensor: contiguous tensors expected between devices, got "
                    "strides");
  }
  if (nbytes == 0) return 0;
  const void *data = ek_dltensor_data(from);
  if (is_fresh && from->device.type == EK_CPU) {
    return ek_device_upload(data, from->device, ek_dltensor_data(to), to->device, nbytes);
  }
  if (to->device.type == EK_CPU) {
    return ek_device_fetch(data, from->device, ek_dltensor_data(to), to->device, nbytes);
  }
  return table->copy(data, from->device, ek_dltensor_data(to), to->device, nbytes, NULL);
}

static int copy(const ek_dltensor *from, const ek_dltensor *to, bool is_fresh);

/* Between kinds of devices, which know nothing of each other. */
static int copy_over_host(const ek_dltensor *from, const ek_dltensor *to, bool is_fresh) {
  ek_object *staged;
  ek_device cpu = {EK_CPU, 0};
  if (ek_tensor_copied(from, cpu, &staged) != 0) return -1;
  int status = copy(&((ek_tensor *)(void *)staged)->dl, to, is_fresh);
  ek_release(staged);
  return status;
}

static int copy(const ek_dltensor *from, const ek_dltensor *to, bool is_fresh) {
  copy_plan plan;
  if (check_copy(from, to) != 0) return -1;
  size_t nbytes = ek_dltensor_nbytes(from);
  if (from->device.type != EK_CPU && to->device.type != EK_CPU &&
      from->device.type != to->device.type) {
    return copy_over_host(from, to, is_fresh);
  }
  if (from->device.type != EK_CPU || to->device.type != EK_CPU) {
    return copy_device(from, to, nbytes, is_fresh);
  }
  if (nbytes == 0) return 0;
  if (ek_dltensor_is_contiguous(from) && ek_dltensor_is_contiguous(to)) {
    memcpy(ek_dltensor_data(to), ek_dltensor_data(from), nbytes);
    return 0;
  }
  size_t bits = (size_t)from->dtype.bits * from->dtype.lanes;
  bool is_packed = bits % 8 != 0;
  plan.ndim = from->ndim;
  plan.item = is_packed ? bits : bits / 8;
  memcpy(plan.shape, from->shape, (size_t)from->ndim * sizeof(int64_t));
  strides_of(from, is_packed ? 1 : plan.item, plan.from);
  strides_of(to, is_packed ? 1 : plan.item, plan.to);
  if (is_packed) {
    copy_packed(&plan, ek_dltensor_data(from), ek_dltensor_data(to));
    return 0;
  }
  simplify(&plan);
  if (plan.ndim == 0) memcpy(ek_dltensor_data(to), ek_dltensor_data(from), plan.item);
  else copy_strided(&plan, ek_dltensor_data(from), ek_dltensor_data(to));
  return 0;
}

int ek_tensor_copy(const ek_dltensor *from, const ek_dltensor *to) { return copy(from, to, false); }

/* Copy a tensor to new memory on a device. No queued work can use the new memory, so the copy need
** not wait for it. */
int ek_tensor_copied(const ek_dltensor *from, ek_device device, ek_object **out) {
  if (ek_tensor_new(from->shape, from->ndim, from->dtype, device, out) != 0) return -1;
  if (copy(from, &((ek_tensor *)(void *)*out)->dl, true) == 0) return 0;
  ek_release(*out);
  return -1;
}
