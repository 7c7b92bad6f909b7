"""Regions of programs in ONNX Runtime: their code is a model of ONNX."""

from __future__ import annotations

from collections.abc import Callable

import onnxruntime

from ekiden.runtime._core import Tensor, num_threads
from ekiden.runtime.errors import LoadError, RunError

__all__ = ["load"]

_CPU = ["CPUExecutionProvider"]


def load(symbol: str, code: bytes) -> Callable[..., None]:
    """What runs a region: a session, bound to the tensors of each call without copies.

    Raises LoadError where ONNX Runtime refuses the model. The kernel raises RunError that names the
    region where a run fails.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads()
    options.log_severity_level = 4  # what it has to say is in the error
    try:
        session = onnxruntime.InferenceSession(code, options, providers=_CPU)
    except Exception as error:  # its errors have no class of their own
        raise LoadError(f"link executable: '{symbol}': onnxruntime: {error}") from error
    inputs = [each.name for each in session.get_inputs()]
    outputs = [each.name for each in session.get_outputs()]

    def kernel(*tensors: Tensor) -> None:
        arrays = [tensor.numpy() for tensor in tensors]
        given, results = arrays[: len(inputs)], arrays[len(inputs) :]
        binding = session.io_binding()
        for name, array in zip(inputs, given, strict=True):
            binding.bind_cpu_input(name, array)
        for name, array in zip(outputs, results, strict=True):
            binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        try:
            session.run_with_iobinding(binding)
        except Exception as error:
            raise RunError(f"run '{symbol}': onnxruntime: {error}") from error

    return kernel
