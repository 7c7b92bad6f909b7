/* Runs main of a model with one float32 tensor, x[i] = i % 17 - 8, and prints the bits of its float32
** result: `print_bits MODEL DIMENSION...`. */
#include <ekiden/runtime.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static int fail(void) {
  const ek_error_object *e = (const ek_error_object *)(const void *)ek_error_take();
  fprintf(stderr, "%.*s: %.*s\n", (int)e->kind.size, e->kind.data, (int)e->message.size,
          e->message.data);
  return 1;
}

static float *data_of(const ek_dltensor *tensor, size_t *count) {
  *count = ek_dltensor_nbytes(tensor) / sizeof(float);
  return ek_dltensor_data(tensor);
}

int main(int argc, char **argv) {
  int64_t shape[EK_MAX_NDIM];
  ek_object *model, *function, *input;
  ek_value result = ek_value_none();
  ek_dtype float32 = {EK_DTYPE_FLOAT, 32, 1};
  ek_device host = {EK_CPU, 0};
  size_t count;
  for (int i = 2; i < argc; i++) shape[i - 2] = strtoll(argv[i], NULL, 10);
  if (ek_module_load(argv[1], &model) != 0) return fail();
  if (ek_module_get(model, "main", &function) != 0) return fail();
  if (ek_tensor_new(shape, argc - 2, float32, host, &input) != 0) return fail();
  float *data = data_of(&((const ek_tensor *)(const void *)input)->dl, &count);
  for (size_t i = 0; i < count; i++) data[i] = (float)(i % 17) - 8;
  ek_value argument = ek_value_object(input);
  if (ek_function_call(function, &argument, 1, &result) != 0) return fail();
  data = data_of(ek_value_tensor(&result), &count);
  for (size_t i = 0; i < count; i++) {
    uint32_t bits;
    memcpy(&bits, &data[i], sizeof bits);
    printf("%08" PRIx32 "\n", bits);
  }
  ek_value_release(&result);
  ek_object_release(input);
  ek_object_release(function);
  ek_object_release(model);
  return 0;
}
