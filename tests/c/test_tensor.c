/* Storage, tensors, views, copies. */
#include "check.h"

static ek_tensor *as_tensor(ek_object *object) { return (ek_tensor *)(void *)object; }
static ek_storage *as_storage(ek_object *object) { return (ek_storage *)(void *)object; }

static void storage_is_aligned(void) {
  const size_t sizes[] = {0, 1, 63, 64, 65, 4095, 4096, 5000, 1 << 20, (4 << 20) + 1};
  const size_t alignments[] = {0, 1, 64, 128, 4096};
  for (int i = 0; i < 10; i++) {
    for (int k = 0; k < 5; k++) {
      ek_object *object = NULL;
      CHECK(ek_storage_new(sizes[i], alignments[k], cpu, &object) == 0);
      size_t alignment = alignments[k] < 64 ? 64 : alignments[k];
      CHECK((uintptr_t)as_storage(object)->data % alignment == 0);
      CHECK(as_storage(object)->size >= sizes[i]);
      if (sizes[i] != 0) memset(as_storage(object)->data, 1, sizes[i]);
      ek_object_release(object);
    }
  }
}

static void bad_storage_is_refused(void) {
  ek_object *out = NULL;
  CHECK_ERROR(ek_storage_new(1, 48, cpu, &out), "ValueError",
              "allocate storage: alignment must be a power of two up to 4096, got 48");
  CHECK_ERROR(ek_storage_new(1, 0, (ek_device){62, 0}, &out), "ValueError",
              "allocate storage: expected the CPU (device type 1) or a registered device, got "
              "device type 62");
  CHECK_ERROR(ek_storage_new(SIZE_MAX, 0, cpu, &out), "MemoryError",
              "allocate memory: the system has no 18446744073709551615 bytes left");
}

static void a_tensor_knows_its_layout(void) {
  const int64_t shape[3] = {2, 3, 4};
  ek_object *object = NULL;
  CHECK(ek_tensor_new(shape, 3, float32, cpu, &object) == 0);
  const ek_dltensor *dl = &as_tensor(object)->dl;
  CHECK(dl->ndim == 3 && memcmp(dl->shape, shape, sizeof shape) == 0);
  CHECK(dl->strides[0] == 12 && dl->strides[1] == 4 && dl->strides[2] == 1);
  CHECK(ek_dltensor_nbytes(dl) == 96 && ek_dltensor_is_contiguous(dl));
  CHECK((uintptr_t)dl->data % 64 == 0 && dl->byte_offset == 0);
  ek_value value = ek_value_object(object), none = ek_value_none();
  CHECK(ek_value_tensor(&value) == dl && ek_value_tensor(&none) == NULL);
  ek_object_release(object);
}

static void scalars_and_empty_tensors(void) {
  const int64_t empty[2] = {0, INT64_MAX};
  ek_object *object = NULL;
  CHECK(ek_tensor_new(NULL, 0, float32, cpu, &object) == 0);
  CHECK(ek_dltensor_nbytes(&as_tensor(object)->dl) == 4);
  ek_object_release(object);
  CHECK(ek_tensor_new(empty, 2, float32, cpu, &object) == 0);
  CHECK(ek_dltensor_is_contiguous(&as_tensor(object)->dl));
  ek_object_release(object);
}

static void bad_shapes_are_refused(void) {
  const int64_t negative[2] = {2, -3}, large[2] = {INT64_C(1) << 40, INT64_C(1) << 40};
  const ek_dtype vector = {EK_DTYPE_FLOAT, 32, 4};
  ek_object *out = NULL;
  CHECK_ERROR(ek_tensor_new(negative, 2, float32, cpu, &out), "ValueError",
              "make tensor: dimension 1 must not be negative, got -3");
  CHECK_ERROR(ek_tensor_new(large, 2, float32, cpu, &out), "ValueError",
              "make tensor: the elements do not fit in memory");
  CHECK_ERROR(ek_tensor_new(NULL, 65, float32, cpu, &out), "ValueError",
              "make tensor: the number of dimensions must be 0 to 64, got 65");
  CHECK_ERROR(ek_tensor_new(NULL, 0, vector, cpu, &out), "ValueError",
              "make tensor: expected a dtype of one lane and at least one bit, got code 2, 32 "
              "bits, 4 lanes");
}

static void a_view_keeps_its_storage(void) {
  const int64_t shape[1] = {16}, longer[1] = {1000};
  ek_object *storage = NULL, *view = NULL, *second = NULL;
  CHECK(ek_storage_new(256, 0, cpu, &storage) == 0);
  char *data = as_storage(storage)->data;
  CHECK(ek_tensor_view(storage, data + 64, shape, 1, float32, cpu, 0, &view) == 0);
  CHECK_ERROR(ek_tensor_view(storage, data + 64, longer, 1, float32, cpu, 0, &second), "ValueError",
              "make view: 4000 bytes at offset 64 do not lie in a storage of 256 bytes");
  CHECK_ERROR(ek_tensor_view(storage, data - 64, shape, 1, float32, cpu, 0, &second), "ValueError",
              "make view: 64 bytes at offset -64 do not lie in a storage of 256 bytes");
  ek_object_release(storage);
  memset(as_tensor(view)->dl.data, 0, 64);
  ek_object_release(view);
}

static void a_view_of_a_read_only_tensor_is_read_only(void) {
  const int64_t shape[1] = {4}, other[2] = {2, 2};
  static float constants[4] = {1, 2, 3, 4};
  ek_object *tensor = NULL, *view = NULL;
  CHECK(ek_tensor_view(NULL, constants, shape, 1, float32, cpu, EK_DLPACK_READ_ONLY, &tensor) == 0);
  CHECK(ek_tensor_view(tensor, constants, other, 2, float32, cpu, 0, &view) == 0);
  CHECK(as_tensor(view)->flags == EK_DLPACK_READ_ONLY);
  ek_object_release(tensor);
  ek_object_release(view);
}

/* Copies the transpose of a, with its rows reversed, and compares with indexing by hand. */
static void strided_copies_follow_the_strides(void) {
  enum { R = 5, C = 3 };
  int16_t a[R][C], b[C][R];
  int64_t shape[2] = {C, R}, strides[2] = {1, -C};
  ek_dtype int16 = {EK_DTYPE_INT, 16, 1};
  for (int i = 0; i < R * C; i++) a[i / C][i % C] = (int16_t)i;
  ek_dltensor from = {&a[R - 1][0], cpu, 2, int16, shape, strides, 0};
  ek_dltensor to = {b, cpu, 2, int16, shape, NULL, 0};
  CHECK(!ek_dltensor_is_contiguous(&from) && ek_tensor_copy(&from, &to) == 0);
  for (int c = 0; c < C; c++) {
    for (int r = 0; r < R; r++) CHECK(b[c][r] == a[R - 1 - r][c]);
  }
}

static void a_broadcast_dimension_is_copied_out(void) {
  float one = 3, many[6] = {0};
  int64_t shape[3] = {2, 1, 3}, strides[3] = {0, 77, 0};
  ek_dltensor from = {&one, cpu, 3, float32, shape, strides, 0};
  ek_dltensor to = {many, cpu, 3, float32, shape, NULL, 0};
  CHECK(ek_tensor_copy(&from, &to) == 0);
  for (int i = 0; i < 6; i++) CHECK(many[i] == 3);
}

static void copies_check_both_sides(void) {
  float a[4], b[4];
  int64_t four[1] = {4}, two[1] = {2};
  ek_dtype int32 = {EK_DTYPE_INT, 32, 1};
  ek_dltensor from = {a, cpu, 1, float32, four, NULL, 0}, to = {b, cpu, 1, float32, two, NULL, 0};
  CHECK_ERROR(ek_tensor_copy(&from, &to), "ValueError", "copy tensor: the shapes differ");
  to.shape = four;
  to.dtype = int32;
  CHECK_ERROR(ek_tensor_copy(&from, &to), "TypeError", "copy tensor: the dtypes differ");
}

/* Strided views -------------------------------------------------------------------------------- */

static ek_object *strided(ek_object *owner, const ek_dltensor *from, int64_t n, int64_t stride,
                          uint64_t offset) {
  ek_dltensor like = {from->data, from->device, 1, from->dtype, &n, &stride, offset};
  ek_object *view = NULL;
  return ek_tensor_strided(owner, &like, 0, &view) == 0 ? view : NULL;
}

static void views_have_strides(void) {
  const int64_t six[1] = {6}, three[1] = {3};
  ek_object *whole = NULL, *part = NULL;
  CHECK(ek_tensor_new(six, 1, float32, cpu, &whole) == 0);
  CHECK(ek_tensor_new(three, 1, float32, cpu, &part) == 0);
  float *data = as_tensor(whole)->dl.data, *to = as_tensor(part)->dl.data;
  for (int i = 0; i < 6; i++) data[i] = (float)i;
  ek_object *storage = as_tensor(whole)->owner;
  ek_object *odd = strided(storage, &as_tensor(whole)->dl, 3, 2, 4);
  ek_object *backwards = strided(storage, &as_tensor(whole)->dl, 3, -1, 20);
  CHECK(odd != NULL && backwards != NULL && as_tensor(odd)->dl.strides[0] == 2);
  CHECK(ek_tensor_copy(&as_tensor(odd)->dl, &as_tensor(part)->dl) == 0);
  CHECK(to[0] == 1 && to[1] == 3 && to[2] == 5);
  CHECK(ek_tensor_copy(&as_tensor(backwards)->dl, &as_tensor(part)->dl) == 0);
  CHECK(to[0] == 5 && to[1] == 4 && to[2] == 3);
  ek_object_release(odd);
  ek_object_release(backwards);
  CHECK(strided(storage, &as_tensor(whole)->dl, 3, INT64_MAX / 2, 0) == NULL);
  drop_error();
  CHECK(strided(storage, &as_tensor(whole)->dl, 100, -1, 0) == NULL);
  drop_error();
  CHECK(strided(storage, &as_tensor(whole)->dl, 2, 100000, 0) == NULL);
  drop_error();
  ek_dltensor bits = as_tensor(whole)->dl;
  bits.dtype = (ek_dtype){EK_DTYPE_UINT, 1, 1}; /* so many that the last one lies at -2^63 */
  CHECK(strided(storage, &bits, ((int64_t)1 << 62) + 1, -2, 0) == NULL);
  drop_error();
  const int64_t square[2] = {(int64_t)1 << 40, (int64_t)1 << 40};
  size_t nbytes;
  CHECK_ERROR(ek_shape_nbytes(square, 2, bits.dtype, &nbytes), "ValueError",
              "make tensor: the elements do not fit in memory");
  ek_object_release(part);
  ek_object_release(whole);
}

/* Elements of fewer than 8 bits ---------------------------------------------------------------- */

static unsigned element_of(const ek_dltensor *tensor, int64_t index) {
  int64_t bits = tensor->dtype.bits, value = 0;
  const unsigned char *data = ek_dltensor_data(tensor);
  for (int64_t i = 0, at = index * bits; i < bits; i++, at++) {
    value |= (int64_t)(data[at / 8] >> (at % 8) & 1) << i;
  }
  return (unsigned)value;
}

static void set_element(const ek_dltensor *tensor, int64_t index, unsigned value) {
  int64_t bits = tensor->dtype.bits;
  unsigned char *data = ek_dltensor_data(tensor);
  for (int64_t i = 0, at = index * bits; i < bits; i++, at++) {
    unsigned char mask = (unsigned char)(1u << (at % 8));
    data[at / 8] = (unsigned char)((data[at / 8] & ~mask) | ((value >> i & 1) ? mask : 0));
  }
}

static void small_elements_are_packed(void) {
  static const ek_dtype dtypes[] = {{EK_DTYPE_INT, 4, 1},
                                    {EK_DTYPE_UINT, 1, 1},
                                    {EK_DTYPE_UINT, 2, 1},
                                    {EK_DTYPE_FLOAT6_E2M3FN, 6, 1},
                                    {EK_DTYPE_FLOAT4_E2M1FN, 4, 1}};
  const int64_t shape[2] = {3, 5};
  for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++) {
    ek_object *from = NULL, *to = NULL, *view = NULL;
    unsigned mask = (1u << dtypes[d].bits) - 1;
    const int64_t turned[2] = {5, 3};
    int64_t strides[2] = {1, 5};
    CHECK(ek_tensor_new(shape, 2, dtypes[d], cpu, &from) == 0);
    CHECK(ek_tensor_new(turned, 2, dtypes[d], cpu, &to) == 0);
    const ek_dltensor *a = &as_tensor(from)->dl, *b = &as_tensor(to)->dl;
    CHECK(ek_dltensor_nbytes(a) == (15 * (size_t)dtypes[d].bits + 7) / 8);
    for (int64_t i = 0; i < 15; i++) set_element(a, i, (unsigned)(7 * i + 3) & mask);
    ek_dltensor like = {a->data, cpu, 2, dtypes[d], (int64_t *)(uintptr_t)turned, strides, 0};
    CHECK(ek_tensor_strided(from, &like, 0, &view) == 0);
    CHECK(ek_tensor_copy(&as_tensor(view)->dl, b) == 0);
    for (int64_t i = 0; i < 15; i++) CHECK(element_of(b, i) == element_of(a, i % 3 * 5 + i / 3));
    ek_object_release(view);
    ek_object_release(to);
    ek_object_release(from);
  }
}

/* Another kind of device: memory of the host with a header that the host does not look for. */
static int64_t allocated, copies;

static int device_alloc(ek_device device, size_t size, size_t alignment, const char *scope,
                        void **out) {
  (void)alignment, (void)scope;
  if (device.id == 9) return ek_error("MemoryError", "device 9 is full");
  allocated += (int64_t)size;
  *out = malloc(size + 1);
  return 0;
}

static void device_free(ek_device device, void *data, size_t size) {
  (void)device;
  allocated -= (int64_t)size;
  free(data);
}

static int device_copy(const void *from, ek_device from_device, void *to, ek_device to_device,
                       size_t size, void *stream) {
  (void)stream;
  CHECK(from_device.type == EK_CPU || to_device.type == EK_CPU);
  copies++;
  memcpy(to, from, size);
  return 0;
}

static void copies_go_through_the_table_of_the_device(void) {
  static const ek_device_table table = {
      .name = "test", .alloc = device_alloc, .free = device_free, .copy = device_copy};
  static const ek_device_table other = {
      .name = "other", .alloc = device_alloc, .free = device_free, .copy = device_copy};
  const ek_device device = {12, 0}, full = {12, 9}, unknown = {13, 0};
  const int64_t shape[1] = {4};
  ek_object *here = NULL, *there = NULL, *back = NULL;
  CHECK_ERROR(ek_tensor_new(shape, 1, float32, device, &there), "ValueError",
              "allocate storage: expected the CPU (device type 1) or a registered device, got "
              "device type 12");
  CHECK(ek_device_register(12, &table) == 0 && ek_device_register(12, &table) == 0);
  CHECK_ERROR(ek_device_register(12, &other), "ValueError",
              "register device: type 12 is 'test' already, got 'other'");
  CHECK_ERROR(ek_device_register(1, &table), "ValueError",
              "register device: a type from 2 to 63 expected, got 1");
  CHECK(ek_tensor_new(shape, 1, float32, cpu, &here) == 0);
  CHECK(ek_tensor_new(shape, 1, float32, device, &there) == 0 && allocated == 16);
  CHECK(ek_tensor_new(shape, 1, float32, cpu, &back) == 0);
  float *data = as_tensor(here)->dl.data;
  for (int i = 0; i < 4; i++) data[i] = (float)i;
  CHECK(ek_tensor_copy(&as_tensor(here)->dl, &as_tensor(there)->dl) == 0);
  CHECK(ek_tensor_copy(&as_tensor(there)->dl, &as_tensor(back)->dl) == 0 && copies == 2);
  CHECK(memcmp(as_tensor(back)->dl.data, data, 16) == 0);
  ek_object *elsewhere;
  CHECK(ek_device_register(14, &table) == 0);
  CHECK(ek_tensor_copied(&as_tensor(there)->dl, (ek_device){14, 0}, &elsewhere) == 0 && copies == 4);
  CHECK(memcmp(as_tensor(elsewhere)->dl.data, data, 16) == 0); /* over the host */
  ek_release(elsewhere);
  ek_dltensor foreign = as_tensor(there)->dl, turned = as_tensor(here)->dl;
  int64_t two = 2;
  foreign.device = unknown;
  turned.strides = &two;
  CHECK(ek_tensor_copy(&foreign, &as_tensor(there)->dl) == -1);
  drop_error();
  CHECK_ERROR(ek_tensor_copy(&turned, &as_tensor(there)->dl), "ValueError",
              "copy tensor: contiguous tensors expected between devices, got strides");
  ek_object_release(here);
  ek_object_release(there);
  ek_object_release(back);
  CHECK(allocated == 0);
  CHECK_ERROR(ek_tensor_new(shape, 1, float32, full, &there), "MemoryError", "device 9 is full");
}

int main(void) {
  storage_is_aligned();
  bad_storage_is_refused();
  a_tensor_knows_its_layout();
  scalars_and_empty_tensors();
  bad_shapes_are_refused();
  a_view_keeps_its_storage();
  a_view_of_a_read_only_tensor_is_read_only();
  strided_copies_follow_the_strides();
  a_broadcast_dimension_is_copied_out();
  copies_check_both_sides();
  views_have_strides();
  small_elements_are_packed();
  copies_go_through_the_table_of_the_device();
  return 0;
}
