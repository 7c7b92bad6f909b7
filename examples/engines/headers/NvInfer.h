/* The part of TensorRT 10's interface that tensorrt.cpp uses, so that it compiles where TensorRT is not.
** Only names and parameters are right: take NVIDIA's own header to build it for use. */
#pragma once
#include <cstddef>
#include <cstdint>

#include "cuda_runtime_api.h"

namespace nvinfer1 {

struct Dims {
  static constexpr int32_t MAX_DIMS = 8;
  int32_t nbDims;
  int64_t d[MAX_DIMS];
};

enum class TensorIOMode : int32_t { kNONE = 0, kINPUT = 1, kOUTPUT = 2 };

class ILogger {
 public:
  enum class Severity : int32_t { kINTERNAL_ERROR = 0, kERROR = 1, kWARNING = 2, kINFO = 3, kVERBOSE = 4 };
  virtual void log(Severity severity, char const *message) noexcept = 0;
  virtual ~ILogger() = default;
};

class IExecutionContext {
 public:
  virtual ~IExecutionContext() noexcept = default;
  bool setInputShape(char const *name, Dims const &dims) noexcept;
  bool setTensorAddress(char const *name, void *data) noexcept;
  bool enqueueV3(cudaStream_t stream) noexcept;
};

class ICudaEngine {
 public:
  virtual ~ICudaEngine() noexcept = default;
  int32_t getNbIOTensors() const noexcept;
  char const *getIOTensorName(int32_t index) const noexcept;
  TensorIOMode getTensorIOMode(char const *name) const noexcept;
  IExecutionContext *createExecutionContext() noexcept;
};

class IRuntime {
 public:
  virtual ~IRuntime() noexcept = default;
  ICudaEngine *deserializeCudaEngine(void const *data, std::size_t size) noexcept;
};

IRuntime *createInferRuntime(ILogger &logger) noexcept;

}  // namespace nvinfer1
