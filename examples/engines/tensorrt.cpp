// A template: regions of programs in TensorRT 10, whose code is a serialised engine.
//
//   c++ -std=c++17 -shared -fPIC -o libekiden_tensorrt.so tensorrt.cpp -I INCLUDE -lnvinfer -lcudart
//
// where INCLUDE is what `python -c "from ekiden import runtime; print(runtime.include_dir())"` prints.
// In Python, patterns and the region as a model of ONNX are those of ekiden.byoc.onnx_regions.OnnxEngine; the builder
// of TensorRT's Python package makes the engine of that (docs/byoc.md). An engine fits one kind of GPU, so that such
// artifacts are for one machine. It was compiled, and never run: there was no GPU with TensorRT.
#include <NvInfer.h>
#include <ekiden/runtime.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace {

// What TensorRT has to say goes into errors, not to the terminal.
class Log : public nvinfer1::ILogger {
 public:
  void log(Severity severity, char const *message) noexcept override {
    std::lock_guard<std::mutex> held(lock_);
    if (severity <= Severity::kERROR) last_ = message;
  }
  std::string last() {
    std::lock_guard<std::mutex> held(lock_);
    return last_.empty() ? "it gives no reason" : last_;
  }

 private:
  std::mutex lock_;
  std::string last_;
};

// Memory of the GPU that one tensor of a region lies in; it grows.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer &&other) noexcept : data_(other.data_), size_(other.size_) { other.data_ = nullptr; }
  Buffer(const Buffer &) = delete;
  ~Buffer() { cudaFree(data_); }
  void *of(size_t size) {
    if (size <= size_) return data_;
    cudaFree(data_);
    size_ = cudaMalloc(&data_, size) == cudaSuccess ? size : 0;
    if (size_ == 0) data_ = nullptr;
    return data_;
  }

 private:
  void *data_ = nullptr;
  size_t size_ = 0;
};

Log logger;
std::unique_ptr<nvinfer1::IRuntime> runtime;

struct Region {
  const ek_engine_host *host;
  std::string name;
  std::unique_ptr<nvinfer1::ICudaEngine> engine;
  std::unique_ptr<nvinfer1::IExecutionContext> context;
  std::vector<std::string> names;  // inputs, then outputs
  size_t inputs = 0;
  std::vector<Buffer> buffers;
  cudaStream_t stream = nullptr;
  std::mutex lock;  // a context runs one call at a time

  ~Region() {
    if (stream != nullptr) cudaStreamDestroy(stream);
  }
  int fail(const char *kind, const char *doing) const {
    return host->error(kind, "%s '%s': tensorrt: %s", doing, name.c_str(), logger.last().c_str());
  }
  bool open(const void *code, size_t size) {
    engine.reset(runtime->deserializeCudaEngine(code, size));
    if (engine == nullptr) return false;
    context.reset(engine->createExecutionContext());
    for (auto mode : {nvinfer1::TensorIOMode::kINPUT, nvinfer1::TensorIOMode::kOUTPUT}) {
      for (int32_t i = 0; i < engine->getNbIOTensors(); i++) {
        const char *at = engine->getIOTensorName(i);
        if (engine->getTensorIOMode(at) == mode) names.emplace_back(at);
      }
      if (mode == nvinfer1::TensorIOMode::kINPUT) inputs = names.size();
    }
    buffers.resize(names.size());
    return context != nullptr && cudaStreamCreate(&stream) == cudaSuccess;
  }
  bool give(size_t i, const ek_dltensor &tensor) {
    void *data = buffers[i].of(ek_dltensor_nbytes(&tensor));
    if (data == nullptr || !context->setTensorAddress(names[i].c_str(), data)) return false;
    if (i >= inputs) return true;
    nvinfer1::Dims dims{tensor.ndim, {}};
    if (tensor.ndim > nvinfer1::Dims::MAX_DIMS) return false;
    for (int32_t k = 0; k < tensor.ndim; k++) dims.d[k] = tensor.shape[k];
    return context->setInputShape(names[i].c_str(), dims) &&
           cudaMemcpyAsync(data, ek_dltensor_data(&tensor), ek_dltensor_nbytes(&tensor),
                           cudaMemcpyHostToDevice, stream) == cudaSuccess;
  }
  bool run(const ek_dltensor *const *tensors) {
    std::lock_guard<std::mutex> held(lock);
    for (size_t i = 0; i < names.size(); i++) {
      if (!give(i, *tensors[i])) return false;
    }
    if (!context->enqueueV3(stream)) return false;
    for (size_t i = inputs; i < names.size(); i++) {
      size_t size = ek_dltensor_nbytes(tensors[i]);
      if (cudaMemcpyAsync(ek_dltensor_data(tensors[i]), buffers[i].of(size), size,
                          cudaMemcpyDeviceToHost, stream) != cudaSuccess) {
        return false;
      }
    }
    return cudaStreamSynchronize(stream) == cudaSuccess;
  }
};

int load(const ek_engine_host *host, const char *name, const void *code, size_t size, void **out) {
  auto made = std::make_unique<Region>();
  made->host = host;
  made->name = name;
  if (!made->open(code, size)) return made->fail("LoadError", "link executable:");
  *out = made.release();
  return 0;
}

int run(void *self, const ek_dltensor *const *tensors, int32_t n) {
  auto *region = static_cast<Region *>(self);
  if (static_cast<size_t>(n) != region->names.size()) {
    return region->host->error("RunError", "run '%s': tensorrt: %zu tensors expected, got %d",
                               region->name.c_str(), region->names.size(), n);
  }
  return region->run(tensors) ? 0 : region->fail("RunError", "run");
}

void unload(void *self) { delete static_cast<Region *>(self); }

}  // namespace

extern "C" EK_API const ek_engine_table *ek_engine_open(const ek_engine_host *host) {
  static const ek_engine_table table = {load, run, unload};
  if (runtime == nullptr) runtime.reset(nvinfer1::createInferRuntime(logger));
  if (runtime != nullptr) return &table;
  host->error("LoadError", "tensorrt: %s", logger.last().c_str());
  return nullptr;
}
