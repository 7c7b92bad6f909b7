/* DLPack in and out, both forms. */
#include "check.h"

static int returned;
static void return_legacy(ek_managed *self) { returned += self->context == &returned; }
static void return_versioned(ek_managed_versioned *self) { returned += self->context == &returned; }

static float data[6] = {0, 1, 2, 3, 4, 5};
static int64_t shape[2] = {2, 3}, transposed[2] = {3, 2}, by_column[2] = {1, 3};

static ek_managed legacy(void) {
  returned = 0;
  return (ek_managed){{data, {EK_CPU, 0}, 2, float32, shape, NULL, 0}, &returned, return_legacy};
}

static ek_managed_versioned versioned(uint64_t flags) {
  returned = 0;
  return (ek_managed_versioned){1, 3, &returned, return_versioned, flags,
                                {data, {EK_CPU, 0}, 2, float32, transposed, by_column, 8}};
}

static void import_takes_over(void) {
  ek_managed from = legacy();
  ek_object *object = NULL;
  CHECK(ek_tensor_from_dlpack(&from, 0, &object) == 0);
  ek_tensor *tensor = (ek_tensor *)(void *)object;
  CHECK(tensor->dl.data == data && tensor->dl.shape != shape && tensor->dl.strides[0] == 3);
  CHECK(ek_dltensor_is_contiguous(&tensor->dl) && tensor->flags == 0 && returned == 0);
  ek_object_release(object);
  CHECK(returned == 1);
}

static void import_keeps_strides_offset_and_read_only(void) {
  ek_managed_versioned from = versioned(EK_DLPACK_READ_ONLY | EK_DLPACK_IS_COPIED);
  ek_object *object = NULL;
  CHECK(ek_tensor_from_dlpack(&from, 1, &object) == 0);
  ek_tensor *tensor = (ek_tensor *)(void *)object;
  CHECK(tensor->dl.strides[1] == 3 && !ek_dltensor_is_contiguous(&tensor->dl));
  CHECK(ek_dltensor_data(&tensor->dl) == data + 2 && tensor->flags == EK_DLPACK_READ_ONLY);
  ek_object_release(object);
  CHECK(returned == 1);
}

static void a_refused_import_stays_with_the_caller(void) {
  ek_object *out = NULL;
  ek_managed_versioned future = versioned(0);
  future.major = 2;
  CHECK_ERROR(ek_tensor_from_dlpack(&future, 1, &out), "ValueError",
              "import DLPack tensor: expected version 1, got 2.3");
  ek_managed no_shape = legacy();
  no_shape.tensor.shape = NULL;
  CHECK_ERROR(ek_tensor_from_dlpack(&no_shape, 0, &out), "ValueError",
              "import DLPack tensor: there is no shape for 2 dimensions");
  ek_managed no_data = legacy();
  no_data.tensor.data = NULL;
  CHECK_ERROR(ek_tensor_from_dlpack(&no_data, 0, &out), "ValueError",
              "import DLPack tensor: there are elements but no data");
  ek_managed deep = legacy();
  deep.tensor.ndim = 65;
  CHECK_ERROR(ek_tensor_from_dlpack(&deep, 0, &out), "ValueError",
              "import DLPack tensor: the number of dimensions must be 0 to 64, got 65");
  ek_managed no_bits = legacy();
  no_bits.tensor.dtype.lanes = 0;
  CHECK_ERROR(ek_tensor_from_dlpack(&no_bits, 0, &out), "ValueError",
              "import DLPack tensor: the dtype has no bits");
  CHECK(returned == 0 && out == NULL);
}

static void export_retains_until_deleted(void) {
  ek_object *object = NULL;
  void *out = NULL;
  CHECK(ek_tensor_new(shape, 2, float32, cpu, &object) == 0);
  CHECK(ek_tensor_to_dlpack(object, 0, &out) == 0);
  ek_managed *old = out;
  CHECK(ek_tensor_to_dlpack(object, 1, &out) == 0);
  ek_managed_versioned *modern = out;
  ek_object_release(object);
  CHECK(modern->major == 1 && modern->flags == 0 && old->tensor.shape == modern->tensor.shape);
  memset(old->tensor.data, 0, ek_dltensor_nbytes(&old->tensor));
  old->deleter(old);
  CHECK(modern->tensor.strides[0] == 3);
  modern->deleter(modern);
}

static void read_only_is_exported_only_where_it_can_be_said(void) {
  ek_object *object = NULL;
  void *out = NULL;
  CHECK(ek_tensor_view(NULL, data, shape, 2, float32, cpu, EK_DLPACK_READ_ONLY, &object) == 0);
  CHECK_ERROR(ek_tensor_to_dlpack(object, 0, &out), "ValueError",
              "export DLPack tensor: a read-only tensor needs DLPack 1.0 or later, the consumer "
              "asked for the legacy form");
  CHECK(ek_tensor_to_dlpack(object, 1, &out) == 0);
  CHECK(((ek_managed_versioned *)out)->flags == EK_DLPACK_READ_ONLY);
  ((ek_managed_versioned *)out)->deleter(out);
  ek_object_release(object);
}

static void a_held_export_may_be_deleted_twice(void) {
  ek_object *object = NULL;
  void *out = NULL;
  CHECK(ek_tensor_new(shape, 2, float32, cpu, &object) == 0);
  for (int form = 0; form < 2; form++) {
    CHECK(ek_tensor_to_dlpack(object, form, &out) == 0);
    ek_dlpack_hold(out);
    for (int i = 0; i < 2; i++) {
      if (form == 0) ((ek_managed *)out)->deleter(out);
      else ((ek_managed_versioned *)out)->deleter(out);
    }
    ek_dlpack_drop(out);
  }
  ((float *)((ek_tensor *)(void *)object)->dl.data)[5] = 1;
  ek_object_release(object);
}

int main(void) {
  import_takes_over();
  import_keeps_strides_offset_and_read_only();
  a_refused_import_stays_with_the_caller();
  export_retains_until_deleted();
  read_only_is_exported_only_where_it_can_be_said();
  a_held_export_may_be_deleted_twice();
  return 0;
}
