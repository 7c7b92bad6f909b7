/* Runs a compiled model without Python: one float32 input of a given shape, all elements one.
**
**   cmake -B build -DCMAKE_PREFIX_PATH=WHERE && cmake --build build
**   build/run model.so 1 3 224 224
**
** model.so is what Executable.export_library wrote; model.eki, of Executable.save, does as well.
** Prints the shape of the output, its first elements, and the sum as a function registered here
** gives it.
*/
#include <ekiden/runtime.hpp>

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

static double sum(ekiden::Tensor tensor) {
  std::vector<float> elements = tensor.to_vector<float>();
  return std::accumulate(elements.begin(), elements.end(), 0.0);
}

static void run(const char* path, const std::vector<int64_t>& shape) {
  ekiden::Module model = ekiden::Module::load(path);
  ekiden::Tensor input = ekiden::Tensor::empty(shape, ekiden::dtype_of<float>());
  std::fill_n(input.data<float>(), input.size(), 1.0f);

  ekiden::Tensor output = model["main"](input);
  std::printf("shape");
  for (int64_t dim : output.shape()) std::printf(" %lld", static_cast<long long>(dim));
  std::printf("\nfirst");
  for (size_t i = 0; i < output.size() && i < 8; i++) {
    std::printf(" %g", static_cast<double>(output.data<float>()[i]));
  }

  ekiden::register_function("example.sum", sum);
  double total = ekiden::Function::global("example.sum")(output);
  std::printf("\nsum %g\n", total);
}

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: run MODEL [DIMENSION ...]\n");
    return 2;
  }
  std::vector<int64_t> shape;
  for (int i = 2; i < argc; i++) shape.push_back(std::strtoll(argv[i], nullptr, 10));
  try {
    run(argv[1], shape);
  } catch (const ekiden::Error& error) {
    std::fprintf(stderr, "%s: %s\n", error.kind().c_str(), error.what());
    return 1;
  }
  return 0;
}
