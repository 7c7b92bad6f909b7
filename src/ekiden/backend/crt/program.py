"""Program state shared by the routines while they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ekiden.backend.crt.kernels import MicroKernels
from ekiden.backend.crt.micro_module import Location, MemorySpace
from ekiden.backend.crt.value_layout import LeafType, TypeLayouts
from ekiden.backend.crt.value_locations import ListClass, ValueLeaf
from ekiden.ir.op import Array
from ekiden.relay.expr import Function
from ekiden.relay.transform.memory.storage_lifetimes import StorageRequest
from ekiden.runtime.lazy_dataclass import dataclass

CRT_ERROR_PREFIX = "compile: runtime 'crt'"
DYNAMIC_CALL_MESSAGE = (
    "which function is called is known when it runs only; call the functions in the branches of an "
    "if in place of choosing one by it"
)


@dataclass(slots=True)
class RoutineSignature:
    """Calling convention of a function: its routine, its number in the group, and the leaves of its
    parameters (the first is input `first` of the routine) and of its result.
    """

    routine: str
    entry: int
    first_input: int
    params: tuple[tuple[LeafType, ...], ...]
    result: tuple[LeafType, ...]
    lists: dict[int, ListClass]
    """List classes of the parameters, by input number."""
    result_lists: dict[int, ListClass]


@dataclass(slots=True)
class MicroProgram:
    """Program state shared by the readers of routines."""

    kernels: MicroKernels
    layouts: TypeLayouts
    functions: Mapping[str, Function]
    """Functions by name, with captured variables as leading parameters."""
    closures: frozenset[str]
    """Functions that capture variables."""
    signatures: dict[str, RoutineSignature] = field(default_factory=dict)
    constants: dict[int, tuple[int, Array]] = field(default_factory=dict)
    """Number and array of each constant, by array identity."""
    frames: dict[str, int] = field(default_factory=dict)
    """Frame size in bytes of each planned routine."""

    def constant_leaf(self, data: Array) -> ValueLeaf:
        """Return the value leaf that refers to a constant array; the same array has one number."""
        number, _ = self.constants.setdefault(id(data), (len(self.constants), data))
        return ValueLeaf(Location(MemorySpace.CONSTANT, number))


@dataclass(slots=True)
class ListStorage:
    """Storage of a list: bytes of an element, the lists that share its capacity, and the model node
    that creates it.
    """

    request: StorageRequest
    nbytes: int
    lists: ListClass
    source_node: str


@dataclass(slots=True)
class CallFrame:
    """Stack frame of a routine's call."""

    request: StorageRequest
    routine: str


__all__ = [
    "CRT_ERROR_PREFIX",
    "DYNAMIC_CALL_MESSAGE",
    "CallFrame",
    "ListStorage",
    "MicroProgram",
    "RoutineSignature",
]
