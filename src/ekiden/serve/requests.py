"""Requests and answers, whichever protocol they come by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ekiden.runtime.errors import RequestError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.serve.datatypes import LARGEST, Array
from ekiden.serve.signature import Signature

__all__ = [
    "Asked",
    "InferRequest",
    "InferResponse",
    "Parameters",
    "SequenceStep",
    "check_answer",
    "read_parameters",
    "too_large_answer",
]

Parameter = bool | int | float | str


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """The place of a request in its sequence."""

    id: int | str
    start: bool = False
    end: bool = False


@dataclass(frozen=True, slots=True)
class Parameters:
    """What a request says of itself beside its tensors."""

    priority: int = 0
    """1 is served first; 0 says nothing."""
    seconds: float = 0.0
    """How long it may take; 0 says nothing."""
    sequence: SequenceStep | None = None
    binary: bool = False
    """Outputs as binary data where they say nothing themselves; of HTTP only."""


@dataclass(frozen=True, slots=True)
class Asked:
    """An output that is asked for."""

    name: str
    binary: bool


@dataclass(slots=True)
class InferRequest:
    """A request with its tensors."""

    model: str
    version: str = ""
    id: str = ""
    inputs: dict[str, Array] = field(default_factory=dict)
    datatypes: dict[str, str] = field(default_factory=dict)
    """Input -> what the request says its datatype is."""
    outputs: tuple[Asked, ...] = ()
    """Those asked for; none: all."""
    parameters: Parameters = Parameters()

    def arrange(self, signature: Signature) -> list[Array]:
        """The arrays in the program's order. Raises RequestError for what does not fit."""
        arrays = signature.arrange(self.inputs)
        for port in signature.inputs:
            if self.datatypes[port.name] != port.datatype.name:
                got = self.datatypes[port.name]
                raise RequestError(f"input '{port.name}': expected {port.datatype.name}, got {got}")
        names = [port.name for port in signature.outputs]
        for asked in self.outputs:
            if asked.name not in names:
                there = ", ".join(names)
                raise RequestError(f"no output is named '{asked.name}'; there are {there}")
        many = len(self.outputs)
        if many > 1 and len({asked.name for asked in self.outputs}) != many:
            raise RequestError("outputs: an output is asked for twice")
        return arrays

    def wants(self, name: str) -> bool:
        """Return whether an output is asked for."""
        return not self.outputs or any(asked.name == name for asked in self.outputs)


@dataclass(slots=True)
class InferResponse:
    """An answer: the outputs in the program's order, all of them."""

    model: str
    version: str
    id: str
    signature: Signature
    outputs: list[Array]

    def chosen(self, request: InferRequest) -> list[tuple[int, bool]]:
        """The numbers of the outputs that were asked for, and whether each is binary."""
        names = [port.name for port in self.signature.outputs]
        if not request.outputs:
            return [(at, request.parameters.binary) for at in range(len(names))]
        return [(names.index(asked.name), asked.binary) for asked in request.outputs]


def check_answer(request: InferRequest, response: InferResponse, most: int) -> None:
    """Raises RequestError ("too_large") for an answer whose tensors have more than `most` bytes."""
    size = 0
    for array in response.outputs:  # nearly always little, whichever are asked for
        size += most if array.dtype == object else array.nbytes
    if size < most:
        return
    size = sum(
        sum(map(len, array.ravel().tolist())) + array.nbytes
        if array.dtype == object
        else array.nbytes
        for array in (response.outputs[at] for at, _ in response.chosen(request))
    )
    if size > most:
        raise too_large_answer(size, most)


def too_large_answer(size: int, most: int) -> RequestError:
    """Return the error of an answer that would have more bytes than it may."""
    return RequestError(
        f"the answer would have {size} bytes of tensors, at most {most} expected (answer_bytes)",
        "too_large",
    )


_SEQUENCE = frozenset({"sequence_id", "sequence_start", "sequence_end"})
_KNOWN = frozenset({"priority", "timeout", "binary_data_output", *_SEQUENCE})


def read_parameters(given: Mapping[str, object]) -> Parameters:
    """The parameters of a request, by Triton's names: `priority`, `timeout` in microseconds,
    `sequence_id`, `sequence_start`, `sequence_end`, `binary_data_output`.

    Raises RequestError for others, and for values that they cannot have.
    """
    if not given:
        return _NONE
    if unknown := [name for name in given if name not in _KNOWN]:
        there = ", ".join(sorted(_KNOWN))
        raise RequestError(f"no parameter is named '{unknown[0][:64]}'; there are {there}")
    timeout = _integer(given, "timeout")
    return Parameters(
        _integer(given, "priority"),
        timeout / 1e6,
        _sequence(given),
        _flag(given, "binary_data_output"),
    )


_NONE = Parameters()


def _integer(given: Mapping[str, object], name: str) -> int:
    value = given.get(name, 0)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)  # clients of gRPC say some numbers as text
    if type(value) is not int or not 0 <= value <= 2**63:
        raise RequestError(f"parameter '{name}': an integer from 0 on expected")
    return value


def _flag(given: Mapping[str, object], name: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise RequestError(f"parameter '{name}': true or false expected")
    return value


def _sequence(given: Mapping[str, object]) -> SequenceStep | None:
    """The sequence that is named; 0 and the empty text name none, as in Triton."""
    found = given.get("sequence_id", 0)
    if type(found) not in (int, str) or len(str(found)) > 128:
        raise RequestError("parameter 'sequence_id': an integer or a text of 128 letters expected")
    start, end = _flag(given, "sequence_start"), _flag(given, "sequence_end")
    if not found:
        if start or end:
            raise RequestError("parameter 'sequence_id': it is missing")
        return None
    assert isinstance(found, (int, str))
    return SequenceStep(found, start, end)


def read_shape(name: str, shape: object) -> list[int]:
    """The shape of an input. Raises RequestError for what is none."""
    if not isinstance(shape, list) or not all(type(s) is int and 0 <= s <= LARGEST for s in shape):
        raise RequestError(f"input '{name}': shape: a list of sizes from 0 to {LARGEST} expected")
    return shape
