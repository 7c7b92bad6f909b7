/* What the script in data cannot say: handles of other things, callbacks that throw, threads that end,
** functions whose module is gone. `check FOLDER` ends well, by exceptions alone. */
#include <ekiden/runtime.hpp>
#include <iostream>
#include <thread>

using ekiden::Error;
using ekiden::Function;
using ekiden::Module;
using ekiden::Tensor;
using ekiden::Value;

template <typename F>
static void refused(F call) {
  try {
    call();
  } catch (const Error&) {
    return;
  }
  throw std::logic_error("an error expected");
}

int main(int, char** argv) {
  Module module = Module::load(std::string(argv[1]) + "/scaled.eki");
  Function scaled = module["main"];
  Tensor x = Tensor::from<float>({1, 4}, {1, 1, 1, 1}), scale = Tensor::from<float>({}, {2});
  refused([&] { scaled(module, scale); });
  refused([&] { scaled(scaled, x); });
  refused([&] { scaled(); });
  refused([&] { Value(module).as<Tensor>(); });
  refused([&] { Value(x).as<Function>(); });
  refused([&] { module["nothing"]; });
  refused([] { Function()(1); });
  refused([] { Function().call({}); });
  refused([] { Tensor().shape(); });
  refused([] { Module().names(); });
  Function bad = Function::of([](int64_t) -> int64_t { throw std::runtime_error("told to"); });
  Function odd = Function::of([](int64_t n) -> int64_t { throw static_cast<int>(n); });
  refused([&] { bad(1); });
  refused([&] { odd(1); });
  std::thread([&] {
    refused([&] { bad(1); });
    scaled(x, scale);
  }).join();
  ekiden::ADT both = scaled(x, scale).as<ekiden::ADT>();
  if (both.tag() != 0 || both.size() != 2 || both[1].as<Tensor>().to_vector<float>()[0] != 8) {
    throw std::logic_error("a tuple of a product and its sum expected");
  }
  refused([&] { both[2]; });
  refused([&] { Value(x).as<ekiden::ADT>(); });
  Value made = ekiden::ADT(3, {Value(x), Value(int64_t{1})});
  if (made.as<ekiden::ADT>().tag() != 3 || made.as<ekiden::ADT>()[1].as<int64_t>() != 1) {
    throw std::logic_error("data with the fields that it was made of expected");
  }
  module = Module();
  scaled(x, scale);
  std::cout << "right\n";
}
