"""Regions of programs in OpenVINO: their code is a model of ONNX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino

from ekiden.runtime._core import Tensor, num_threads
from ekiden.runtime.errors import LoadError, RunError

__all__ = ["load"]

Array = npt.NDArray[Any]


def load(symbol: str, code: bytes) -> Callable[..., None]:
    """What runs a region: requests of a compiled model, on the tensors of each call without copies.

    Floats stay floats: left alone, OpenVINO rounds to 16 bits where a processor multiplies those.
    Raises LoadError where OpenVINO refuses the model. The kernel raises RunError that names the
    region where a run fails.
    """
    core = openvino.Core()
    settings = {"INFERENCE_NUM_THREADS": num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
    try:
        model = core.compile_model(core.read_model(code), "CPU", settings)
    except Exception as error:  # its errors have no class of their own
        raise LoadError(f"link executable: '{symbol}': openvino: {error}") from error
    count = len(model.inputs)
    idle: list[openvino.InferRequest] = []
    """Requests that no call has."""

    def kernel(*tensors: Tensor) -> None:
        arrays = [tensor.numpy() for tensor in tensors]
        if all(array.size == 0 for array in arrays[count:]):
            return
        try:
            request = idle.pop()
        except IndexError:
            request = model.create_infer_request()
        try:
            for at, array in enumerate(arrays[:count]):
                request.set_input_tensor(at, shared(array))
            for at, array in enumerate(arrays[count:]):
                request.set_output_tensor(at, shared(array))
            request.infer()
        except Exception as error:
            raise RunError(f"run '{symbol}': openvino: {error}") from error
        idle.append(request)

    return kernel


class Readable:
    """An array as one that may be written, which OpenVINO asks of each that it shares; it only
    reads inputs.
    """

    def __init__(self, array: Array) -> None:
        self.array = array
        given = array.__array_interface__
        self.__array_interface__ = {**given, "data": (given["data"][0], False)}


def shared(array: Array) -> openvino.Tensor:
    """OpenVINO's view of an array."""
    whole = array if array.flags.writeable else np.asarray(Readable(array))
    return openvino.Tensor(whole, shared_memory=True)
