/* A library in C++ over the published TVM-FFI headers, which is given our maps and shapes. */
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

namespace ffi = tvm::ffi;

/* The sum of the values, of the dimensions, and 1000 times that of the key "k1". */
static int64_t total(ffi::Map<ffi::String, int64_t> map, ffi::Shape shape) {
  int64_t sum = 1000 * map["k1"];
  if (map.count("no such key") != 0) return -1;
  for (const auto& pair : map) sum += pair.second;
  for (int64_t dim : shape) sum += dim;
  return sum;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(total, total);
