/* DLPack import and export, without copying.
**
** Who owns what. Import: the tensor made here owns 'managed' and calls its deleter, once, when it
** dies itself; on failure the caller still has it. Export: the consumer owns the managed tensor,
** which holds a reference to ours, whose shape and strides it points to; its deleter may be called
** on any thread. Of two forms, the legacy one cannot say that a tensor is read-only, so such a one
** is refused there. */
#include "ek_internal.h"

enum { DLPACK_MAJOR = 1, DLPACK_MINOR = 0 };

/* Import --------------------------------------------------------------------------------------- */

static void dispose_legacy(void *managed) {
  ek_managed *from = managed;
  if (from->deleter != NULL) from->deleter(from);
}

static void dispose_versioned(void *managed) {
  ek_managed_versioned *from = managed;
  if (from->deleter != NULL) from->deleter(from);
}

static int check_foreign(const ek_dltensor *tensor) {
  if (tensor->ndim < 0 || tensor->ndim > EK_MAX_NDIM) {
    return ek_error("ValueError", "import DLPack tensor: the number of dimensions must be 0 to %d, "
                    "got %d", EK_MAX_NDIM, tensor->ndim);
  }
  if (tensor->ndim > 0 && tensor->shape == NULL) {
    return ek_error("ValueError", "import DLPack tensor: there is no shape for %d dimensions",
                    tensor->ndim);
  }
  if (tensor->dtype.bits == 0 || tensor->dtype.lanes == 0) {
    return ek_error("ValueError", "import DLPack tensor: the dtype has no bits");
  }
  /* Lanes are left aside: what is asked is whether there are elements, and that their count can be
  ** one. */
  size_t size;
  ek_dtype dtype = {tensor->dtype.code, tensor->dtype.bits, 1};
  if (ek_shape_nbytes(tensor->shape, tensor->ndim, dtype, &size) != 0) return -1;
  if (size > 0 && tensor->data == NULL) {
    return ek_error("ValueError", "import DLPack tensor: there are elements but no data");
  }
  return 0;
}

int ek_tensor_from_dlpack(void *managed, int versioned, ek_object **out) {
  ek_managed_versioned *modern = managed;
  if (versioned && modern->major != DLPACK_MAJOR) {
    return ek_error("ValueError", "import DLPack tensor: expected version %d, got %u.%u",
                    DLPACK_MAJOR, modern->major, modern->minor);
  }
  const ek_dltensor *from = versioned ? &modern->tensor : &((ek_managed *)managed)->tensor;
  if (check_foreign(from) != 0) return -1;
  ek_tensor *tensor = ek_tensor_alloc(from->shape, from->ndim, from->dtype, from->device);
  if (tensor == NULL) return -1;
  tensor->dl.data = from->data;
  tensor->dl.byte_offset = from->byte_offset;
  if (from->strides != NULL && from->ndim > 0) {
    memcpy(tensor->dl.strides, from->strides, (size_t)from->ndim * sizeof(int64_t));
  }
  tensor->flags = versioned ? modern->flags & EK_DLPACK_READ_ONLY : 0;
  tensor->dispose = versioned ? dispose_versioned : dispose_legacy;
  tensor->managed = managed;
  *out = &tensor->base;
  return 0;
}

/* Export --------------------------------------------------------------------------------------- */

/* Exported DLPack tensor of either version. A consumer that fails halfway may call the deleter and
** leave the capsule unconsumed (PyTorch, for devices that it only knows by name); the capsule then
** calls it again. */
typedef struct export {
  ek_exported shared;
  union {
    ek_managed legacy;
    ek_managed_versioned versioned;
  } managed;
} export;

static_assert(offsetof(export, managed) == sizeof(ek_exported), "holders lie before it");

static void end(ek_exported *self) {
  ek_free(self);
}

static export *new_export(void) {
  export *made = ek_alloc_or_error(sizeof *made);
  if (made != NULL) made->shared = (ek_exported){end, 1};
  return made;
}

/* The first call counts. */
static void give_back(void *managed, void **context) {
  ek_object *tensor = __atomic_exchange_n(context, NULL, __ATOMIC_ACQ_REL);
  if (tensor == NULL) return;
  ek_release(tensor);
  ek_dlpack_drop(managed);
}

static void delete_legacy(ek_managed *self) {
  give_back(self, &self->context);
}

static void delete_versioned(ek_managed_versioned *self) {
  give_back(self, &self->context);
}

/* A tensor of another runtime ends with its DLTensor. */
static uint64_t flags_of(const ek_tensor *tensor) {
  return ek_tensor_is_own(&tensor->base) ? tensor->flags : 0;
}

static int export_legacy(ek_tensor *tensor, void **managed) {
  if (flags_of(tensor) & EK_DLPACK_READ_ONLY) {
    return ek_error("ValueError", "export DLPack tensor: a read-only tensor needs DLPack 1.0 or "
                    "later, the consumer asked for the legacy form");
  }
  export *made = new_export();
  if (made == NULL) return -1;
  made->managed.legacy = (ek_managed){tensor->dl, tensor, delete_legacy};
  *managed = &made->managed;
  return 0;
}

static int export_versioned(ek_tensor *tensor, void **managed) {
  export *made = new_export();
  if (made == NULL) return -1;
  made->managed.versioned = (ek_managed_versioned){
      DLPACK_MAJOR, DLPACK_MINOR, tensor, delete_versioned, flags_of(tensor), tensor->dl};
  *managed = &made->managed;
  return 0;
}

int ek_tensor_to_dlpack(ek_object *object, int versioned, void **managed) {
  ek_tensor *tensor = (ek_tensor *)(void *)object;
  if (!ek_is(object, EK_TENSOR)) {
    return ek_error("TypeError", "export DLPack tensor: expected a tensor");
  }
  int code = versioned ? export_versioned(tensor, managed) : export_legacy(tensor, managed);
  if (code == 0) ek_retain(object);
  return code;
}
