"""Protocol-independent inference requests and responses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

import numpy as np

from ekiden.runtime.errors import RequestError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.serve.datatypes import DATATYPE_BY_NAME, MAX_TENSOR_ELEMENTS, Array, Datatype
from ekiden.serve.signature import ModelSignature

__all__ = [
    "InferRequest",
    "InferResponse",
    "RequestParameters",
    "RequestedOutput",
    "SequencePosition",
    "answer_too_large_error",
    "best_classes",
    "check_answer_size",
    "parse_class_count",
    "parse_parameters",
]

Parameter = bool | int | float | str


@dataclass(frozen=True, slots=True)
class SequencePosition:
    """Position of a request in its stateful sequence."""

    id: int | str
    start: bool = False
    end: bool = False


@dataclass(frozen=True, slots=True)
class RequestParameters:
    """A request's parameters besides its tensors."""

    priority: int = 0
    """1 is served first; 0 says nothing."""
    seconds: float = 0.0
    """How long it may take; 0 says nothing."""
    sequence: SequencePosition | None = None
    binary: bool = False
    """Outputs as binary data where they say nothing themselves; of HTTP only."""


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """A requested output."""

    name: str
    binary: bool
    num_classes: int = 0
    """With Triton's `classification`, the number of best classes of each row; 0 for the tensor."""


@dataclass(slots=True)
class InferRequest:
    """Inference request with its tensors."""

    model: str
    version: str = ""
    id: str = ""
    inputs: dict[str, Array] = field(default_factory=dict)
    datatypes: dict[str, str] = field(default_factory=dict)
    """Input -> what the request says its datatype is."""
    outputs: tuple[RequestedOutput, ...] = ()
    """Those asked for; none: all."""
    parameters: RequestParameters = RequestParameters()

    def order_inputs(self, signature: ModelSignature) -> list[Array]:
        """Return the arrays in the program's order. Raises RequestError if they do not match the
        signature.
        """
        arrays = signature.order_inputs(self.inputs)
        for port in signature.inputs:
            if self.datatypes[port.name] != port.datatype.name:
                datatype = self.datatypes[port.name]
                raise RequestError(
                    f"input '{port.name}': expected {port.datatype.name}, got {datatype}"
                )
        names = [port.name for port in signature.outputs]
        for output in self.outputs:
            if output.name not in names:
                output_names = ", ".join(names)
                raise RequestError(f"no output is named '{output.name}'; there are {output_names}")
        count = len(self.outputs)
        if count > 1 and len({requested.name for requested in self.outputs}) != count:
            raise RequestError("outputs: an output is asked for twice")
        return arrays


@dataclass(slots=True)
class InferResponse:
    """Inference response with all outputs, in the program's order."""

    model: str
    version: str
    id: str
    signature: ModelSignature
    outputs: list[Array]

    def requested_outputs(self, request: InferRequest) -> list[tuple[int, bool]]:
        """Return the indices of the requested outputs, and whether each is binary."""
        names = [port.name for port in self.signature.outputs]
        if not request.outputs:
            return [(at, request.parameters.binary) for at in range(len(names))]
        return [(names.index(output.name), output.binary) for output in request.outputs]

    def answered_output(self, request: InferRequest, at: int) -> tuple[str, Datatype, Array]:
        """Return the name, datatype and array of a requested output in the form of the response:
        the tensor, or its best classes. Raises RequestError for classes of a tensor without
        numbers.
        """
        port, array = self.signature.outputs[at], self.outputs[at]
        count = next((o.num_classes for o in request.outputs if o.name == port.name), 0)
        if not count:
            return port.name, port.datatype, array
        if array.dtype == object or array.ndim == 0:
            raise RequestError(f"output '{port.name}': classification: a row of numbers expected")
        return port.name, DATATYPE_BY_NAME["BYTES"], best_classes(array, count)


def best_classes(array: Array, count: int) -> Array:
    """Return the `count` largest elements of each row along the last axis as Triton's texts
    "value:index", in descending order; ties by index, NaN last.
    """
    count = min(count, array.shape[-1])
    rows = array.reshape(-1, array.shape[-1])
    texts = np.empty((len(rows), count), object)
    for row, values in enumerate(rows):
        # Stable, so that equal values keep the order of their indices.
        order = np.argsort(-values.astype(np.float64), kind="stable")[:count]
        texts[row] = [f"{values[index]:f}:{index}" for index in order.tolist()]
    return texts.reshape(*array.shape[:-1], count)


def parse_class_count(name: str, parameters: Mapping[str, object]) -> int:
    """Return the parameter `classification` of an output, 0 by default. Raises RequestError."""
    count = parameters.get("classification", 0)
    if type(count) is not int or not 0 <= count < 2**31:
        raise RequestError(f"output '{name}': classification: an integer from 0 on expected")
    return count


def check_answer_size(request: InferRequest, response: InferResponse, max_bytes: int) -> None:
    """Raise RequestError ("too_large") for an answer whose tensors exceed `max_bytes`."""
    size = 0
    for array in response.outputs:  # nearly always little, whichever are asked for
        size += max_bytes if array.dtype == object else array.nbytes
    if size < max_bytes:
        return
    size = sum(
        sum(map(len, array.ravel().tolist())) + array.nbytes
        if array.dtype == object
        else array.nbytes
        for array in (response.outputs[at] for at, _ in response.requested_outputs(request))
    )
    if size > max_bytes:
        raise answer_too_large_error(size, max_bytes)


def answer_too_large_error(size: int, max_bytes: int) -> RequestError:
    """Return the error for an answer that would exceed its limit."""
    return RequestError(
        f"the answer would have {size} bytes of tensors, at most {max_bytes} expected "
        "(answer_bytes)",
        "too_large",
    )


_SEQUENCE_PARAMETERS = frozenset({"sequence_id", "sequence_start", "sequence_end"})
_SUPPORTED_PARAMETERS = frozenset(
    {"priority", "timeout", "binary_data_output", *_SEQUENCE_PARAMETERS}
)


def parse_parameters(values: Mapping[str, object]) -> RequestParameters:
    """Parse a request's parameters, by Triton's names: `priority`, `timeout` in microseconds,
    `sequence_id`, `sequence_start`, `sequence_end`, `binary_data_output`. Raises RequestError
    for unknown names or invalid values.
    """
    if not values:
        return _NO_PARAMETERS
    if unknown := [name for name in values if name not in _SUPPORTED_PARAMETERS]:
        known_names = ", ".join(sorted(_SUPPORTED_PARAMETERS))
        raise RequestError(f"no parameter is named '{unknown[0][:64]}'; there are {known_names}")
    timeout = _integer_parameter(values, "timeout")
    return RequestParameters(
        _integer_parameter(values, "priority"),
        timeout / 1e6,
        _parse_sequence(values),
        _boolean_parameter(values, "binary_data_output"),
    )


_NO_PARAMETERS = RequestParameters()


def _integer_parameter(values: Mapping[str, object], name: str) -> int:
    """Return a nonnegative integer parameter, 0 by default. Raises RequestError."""
    value = values.get(name, 0)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)  # clients of gRPC say some numbers as text
    if type(value) is not int or not 0 <= value <= 2**63:
        raise RequestError(f"parameter '{name}': an integer from 0 on expected")
    return value


def _boolean_parameter(values: Mapping[str, object], name: str) -> bool:
    """Return a boolean parameter, false by default. Raises RequestError."""
    value = values.get(name, False)
    if not isinstance(value, bool):
        raise RequestError(f"parameter '{name}': true or false expected")
    return value


def _parse_sequence(values: Mapping[str, object]) -> SequencePosition | None:
    """Parse the sequence parameters; 0 and the empty text mean none, as in Triton."""
    sequence_id = values.get("sequence_id", 0)
    if type(sequence_id) not in (int, str) or len(str(sequence_id)) > 128:
        raise RequestError("parameter 'sequence_id': an integer or a text of 128 letters expected")
    start, end = (
        _boolean_parameter(values, "sequence_start"),
        _boolean_parameter(values, "sequence_end"),
    )
    if not sequence_id:
        if start or end:
            raise RequestError("parameter 'sequence_id': it is missing")
        return None
    assert isinstance(sequence_id, (int, str))
    return SequencePosition(sequence_id, start, end)


def parse_shape(name: str, shape: object) -> list[int]:
    """Validate the shape of an input. Raises RequestError."""
    if not isinstance(shape, list) or not all(
        type(s) is int and 0 <= s <= MAX_TENSOR_ELEMENTS for s in shape
    ):
        raise RequestError(
            f"input '{name}': shape: a list of sizes from 0 to {MAX_TENSOR_ELEMENTS} expected"
        )
    return shape
