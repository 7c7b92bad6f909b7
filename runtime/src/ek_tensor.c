/* Storage, tensors, views, and copies between them. */
#include "ek_internal.h"

/* Storage -------------------------------------------------------------------------------------- */

enum { MAX_ALIGNMENT = 4096 };

static void storage_deleter(void *self, int flags) {
  ek_storage *storage = self;
  if (flags & EK_DELETE_CONTENT) ek_buffer_free(storage->data, storage->size);
  if (flags & EK_DELETE_MEMORY) ek_free(self);
}

static int check_device(ek_device device, const char *doing) {
  if (device.type == EK_CPU) return 0;
  return ek_error("ValueError", "%s: expected the CPU (device type %d), got device type %d", doing,
                  EK_CPU, device.type);
}

int ek_storage_new(size_t size, size_t alignment, ek_device device, ek_object **out) {
  if (check_device(device, "allocate storage") != 0) return -1;
  if (alignment > MAX_ALIGNMENT || (alignment & (alignment - 1)) != 0) {
    return ek_error("ValueError", "allocate storage: alignment must be a power of two up to %d, "
                    "got %zu", MAX_ALIGNMENT, alignment);
  }
  ek_storage *storage = ek_object_new(sizeof *storage, EK_STORAGE, storage_deleter);
  if (storage == NULL) return -1;
  /* Buffers of a page and more are aligned to pages. */
  size_t wanted = alignment > 64 && size < MAX_ALIGNMENT ? MAX_ALIGNMENT : size;
  storage->data = ek_buffer_alloc(wanted, &storage->size);
  storage->device = device;
  if (storage->data == NULL) {
    ek_release(&storage->base);
    return ek_error_memory(size);
  }
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

int ek_shape_nbytes(const int64_t *shape, int32_t ndim, ek_dtype dtype, size_t *out) {
  uint64_t count = 1, bits;
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
  for (int32_t i = 0; i < ndim; i++) {
    if (__builtin_mul_overflow(count, (uint64_t)shape[i], &count)) count = UINT64_MAX / 2;
  }
  if (__builtin_mul_overflow(count, (uint64_t)dtype.bits, &bits) || bits / 8 > PTRDIFF_MAX / 2) {
    return ek_error("ValueError", "make tensor: the elements do not fit in memory");
  }
  *out = (size_t)((bits + 7) / 8);
  return 0;
}

ek_tensor *ek_tensor_alloc(const int64_t *shape, int32_t ndim, ek_dtype dtype, ek_device device) {
  ek_tensor *tensor = ek_alloc_or_error(sizeof *tensor + 2 * (size_t)ndim * sizeof(int64_t));
  if (tensor == NULL) return NULL;
  int64_t *strides = tensor->dims + ndim, stride = 1;
  *tensor = (ek_tensor){.base = {EK_REFS_NEW, EK_TENSOR, 0, tensor_deleter},
                        .dl = {NULL, device, ndim, dtype, tensor->dims, strides, 0}};
  for (int32_t i = ndim - 1; i >= 0; i--) {
    tensor->dims[i] = shape[i];
    strides[i] = stride;
    stride *= shape[i] == 0 ? 1 : shape[i];
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

/* Whether [data, data + size) lies in the storage. */
static int check_inside(const ek_storage *storage, const void *data, size_t size) {
  uintptr_t begin = (uintptr_t)storage->data, at = (uintptr_t)data;
  if (at >= begin && at - begin <= storage->size && size <= storage->size - (at - begin)) return 0;
  return ek_error("ValueError", "make view: %zu bytes at offset %lld do not lie in a storage of "
                  "%zu bytes", size, (long long)(at - begin), storage->size);
}

int ek_tensor_view(ek_object *owner, void *data, const int64_t *shape, int32_t ndim, ek_dtype dtype,
                   ek_device device, uint64_t flags, ek_object **out) {
  size_t size;
  if (ek_shape_nbytes(shape, ndim, dtype, &size) != 0) return -1;
  if (ek_is(owner, EK_STORAGE) && check_inside((ek_storage *)(void *)owner, data, size) != 0) {
    return -1;
  }
  ek_tensor *tensor = ek_tensor_alloc(shape, ndim, dtype, device);
  if (tensor == NULL) return -1;
  if (ek_is(owner, EK_TENSOR)) flags |= ((ek_tensor *)(void *)owner)->flags & EK_DLPACK_READ_ONLY;
  ek_object_retain(owner);
  tensor->owner = owner;
  tensor->flags = flags;
  tensor->dl.data = data;
  *out = &tensor->base;
  return 0;
}

/* Copies --------------------------------------------------------------------------------------- */

typedef struct copy_plan {
  int32_t ndim;
  size_t item;                             /* bytes of one element */
  int64_t shape[EK_MAX_NDIM];
  int64_t from[EK_MAX_NDIM], to[EK_MAX_NDIM]; /* strides in bytes */
} copy_plan;

static int check_copy(const ek_dltensor *from, const ek_dltensor *to) {
  if (check_device(from->device, "copy tensor") != 0) return -1;
  if (check_device(to->device, "copy tensor") != 0) return -1;
  if (memcmp(&from->dtype, &to->dtype, sizeof from->dtype) != 0) {
    return ek_error("TypeError", "copy tensor: the dtypes differ");
  }
  bool same = from->ndim == to->ndim && from->ndim <= EK_MAX_NDIM;
  for (int32_t i = 0; same && i < from->ndim; i++) same = from->shape[i] == to->shape[i];
  return same ? 0 : ek_error("ValueError", "copy tensor: the shapes differ");
}

/* Byte strides of 'tensor', in the order of its dimensions. */
static void byte_strides(const ek_dltensor *tensor, size_t item, int64_t *strides) {
  int64_t packed = (int64_t)item;
  for (int32_t i = tensor->ndim - 1; i >= 0; i--) {
    strides[i] = tensor->strides == NULL ? packed : tensor->strides[i] * (int64_t)item;
    packed *= tensor->shape[i];
  }
}

/* Drops dimensions of length 1 and joins neighbours that lie behind each other on both sides. */
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

/* One run along the last dimension. */
static void copy_row(const char *from, char *to, int64_t n, int64_t from_stride, int64_t to_stride,
                     size_t item) {
  if (from_stride == (int64_t)item && to_stride == (int64_t)item) {
    memcpy(to, from, (size_t)n * item);
    return;
  }
  for (int64_t i = 0; i < n; i++) memcpy(to + i * to_stride, from + i * from_stride, item);
}

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

int ek_tensor_copy(const ek_dltensor *from, const ek_dltensor *to) {
  copy_plan plan;
  if (check_copy(from, to) != 0) return -1;
  size_t nbytes = ek_dltensor_nbytes(from);
  if (nbytes == 0) return 0;
  if (ek_dltensor_is_contiguous(from) && ek_dltensor_is_contiguous(to)) {
    memcpy(ek_dltensor_data(to), ek_dltensor_data(from), nbytes);
    return 0;
  }
  size_t bits = (size_t)from->dtype.bits * from->dtype.lanes;
  if (bits % 8 != 0) {
    return ek_error("ValueError", "copy tensor: elements of %zu bits must be contiguous", bits);
  }
  plan.ndim = from->ndim;
  plan.item = bits / 8;
  memcpy(plan.shape, from->shape, (size_t)from->ndim * sizeof(int64_t));
  byte_strides(from, plan.item, plan.from);
  byte_strides(to, plan.item, plan.to);
  simplify(&plan);
  if (plan.ndim == 0) memcpy(ek_dltensor_data(to), ek_dltensor_data(from), plan.item);
  else copy_strided(&plan, ek_dltensor_data(from), ek_dltensor_data(to));
  return 0;
}
