/* Runs a compiled model without Python: one float32 input of a given shape, all elements one.
**
**   cmake -B build -DCMAKE_PREFIX_PATH=WHERE && cmake --build build
**   build/run model.so 1 3 224 224
**
** model.so is what Executable.export_library wrote; model.eki, of Executable.save, does as well.
** Prints the shape of the output and its first elements.
*/
#include <ekiden/runtime.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* Prints this thread's error; returns the exit status. */
static int fail(void) {
  ek_object *error = ek_error_take();
  const ek_error_object *e = (const ek_error_object *)(const void *)error;
  fprintf(stderr, "%.*s: %.*s\n", (int)e->kind.size, e->kind.data, (int)e->message.size,
          e->message.data);
  ek_object_release(error);
  return 1;
}

/* A tensor of the host with the elements of one of a device; owned. */
static int fetch(const ek_dltensor *from, ek_object **out) {
  ek_device host = {EK_CPU, 0};
  if (ek_tensor_new(from->shape, from->ndim, from->dtype, host, out) != 0) return -1;
  return ek_tensor_copy(from, &((const ek_tensor *)(const void *)*out)->dl);
}

static int print_tensor(const ek_value *value) {
  const ek_dltensor *tensor = ek_value_tensor(value);
  if (tensor == NULL || tensor->dtype.code != EK_DTYPE_FLOAT || tensor->dtype.bits != 32) {
    return ek_error("TypeError", "print the result: expected one float32 tensor");
  }
  ek_object *fetched = NULL;
  if (tensor->device.type != EK_CPU) {
    if (fetch(tensor, &fetched) != 0) {
      ek_object_release(fetched);
      return -1;
    }
    tensor = &((const ek_tensor *)(const void *)fetched)->dl;
  }
  printf("shape");
  for (int32_t i = 0; i < tensor->ndim; i++) printf(" %" PRId64, tensor->shape[i]);
  const float *data = ek_dltensor_data(tensor);
  size_t count = ek_dltensor_nbytes(tensor) / sizeof(float);
  printf("\nfirst");
  for (size_t i = 0; i < count && i < 8; i++) printf(" %g", (double)data[i]);
  printf("\n");
  ek_object_release(fetched);
  return 0;
}

/* A float32 tensor of ones; owned. */
static int new_ones(const int64_t *shape, int32_t ndim, ek_object **out) {
  ek_dtype float32 = {EK_DTYPE_FLOAT, 32, 1};
  ek_device host = {EK_CPU, 0};
  if (ek_tensor_new(shape, ndim, float32, host, out) != 0) return -1;
  const ek_dltensor *tensor = &((const ek_tensor *)(const void *)*out)->dl;
  float *data = ek_dltensor_data(tensor);
  size_t count = ek_dltensor_nbytes(tensor) / sizeof(float);
  for (size_t i = 0; i < count; i++) data[i] = 1.0f;
  return 0;
}

int main(int argc, char **argv) {
  int64_t shape[EK_MAX_NDIM];
  int32_t ndim = argc - 2;
  ek_object *model = NULL, *function = NULL, *input = NULL;
  ek_value result = ek_value_none();
  int status = -1;
  if (argc < 2 || ndim > EK_MAX_NDIM) {
    fprintf(stderr, "usage: run MODEL [DIMENSION ...]\n");
    return 2;
  }
  for (int32_t i = 0; i < ndim; i++) shape[i] = strtoll(argv[i + 2], NULL, 10);

  if (ek_module_load(argv[1], &model) != 0) goto done;
  if (ek_module_get(model, "main", &function) != 0) goto done;
  if (function == NULL) {
    ek_error("AttributeError", "the model has no function 'main'");
    goto done;
  }
  if (new_ones(shape, ndim, &input) != 0) goto done;
  ek_value argument = ek_value_object(input);
  if (ek_function_call(function, &argument, 1, &result) != 0) goto done;
  status = print_tensor(&result);

done:
  ek_value_release(&result);
  ek_object_release(input);
  ek_object_release(function);
  ek_object_release(model);
  return status == 0 ? 0 : fail();
}
