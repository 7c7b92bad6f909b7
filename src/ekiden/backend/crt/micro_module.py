"""MicroModule, a program for a machine without an allocator: statements in order with the memory
location of each value.

    MicroModule = inputs, outputs, constants    tensors; constants are read-only
                  kernels                       functions in C, each once
                  routines                      functions of the model, callees first; the last is
                                                its entry point, `main`
                  entry_points                  the other functions that C may call
                  pools                         memories, with the bytes that are used of each
    Routine     = code                          a flat list: what opens a block is closed by an End
                  frame                         bytes of memory that a call takes, from its caller
"""

from __future__ import annotations

import math
from dataclasses import field
from enum import Enum
from typing import TypeAlias

from ekiden.ir import dtype as dt
from ekiden.ir.op import Array
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target

POOL_ALIGNMENT_BYTES = 16
"""Alignment of pools and of allocations in them: the widest vector of such processors."""


@dataclass(frozen=True, slots=True)
class MicroTensor:
    """Input or output tensor with its name in the model."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Return the size of the elements in bytes."""
        return math.prod(self.shape) * dt.itemsize(self.dtype)


class MemorySpace(Enum):
    """Memory region of a location: the caller's inputs and outputs, read-only constants, a pool or
    frame, a routine's pointer variable, the table of numbers, or none.
    """

    INPUT = "input"
    OUTPUT = "output"
    CONSTANT = "constant"
    POOL = "pool"
    LOCAL = "local"
    NUMBER = "number"
    NOWHERE = "nowhere"


@dataclass(frozen=True, slots=True)
class Location:
    """Memory location: a byte offset into a numbered input, output, constant, pool or variable."""

    home: MemorySpace
    number: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class KernelParameter:
    """Kernel parameter with the C type of its elements and whether they are read-only."""

    c_type: str
    is_read: bool


@dataclass(frozen=True, slots=True)
class MicroKernel:
    """C function with one pointer per parameter, and one to its workspace if it needs any."""

    name: str
    parameters: tuple[KernelParameter, ...]
    text: str = field(repr=False)
    workspace: int
    """Workspace in bytes."""


@dataclass(frozen=True, slots=True)
class KernelCallStatement:
    """Kernel call or, without a kernel, a copy of `nbytes` bytes from the first location to the
    second.
    """

    kernel: MicroKernel | None
    locations: tuple[Location, ...]
    """Locations of the parameters, then of the workspace if it needs one."""
    nbytes: int = 0
    source: str = ""
    """Model node that it comes from."""


@dataclass(frozen=True, slots=True)
class SetAddressStatement:
    """Assignment of a location to a pointer variable."""

    local: int
    locations: tuple[Location, ...]


@dataclass(frozen=True, slots=True)
class IfHeader:
    """Header of the block that runs if the boolean at a location is true."""

    locations: tuple[Location, ...]


@dataclass(frozen=True, slots=True)
class ElseHeader:
    """Header of the block that runs if the boolean is false."""

    locations: tuple[Location, ...] = ()


@dataclass(frozen=True, slots=True)
class BlockEnd:
    """End of a block."""

    locations: tuple[Location, ...] = ()


@dataclass(frozen=True, slots=True)
class SwitchHeader:
    """Header of a C switch over the value at `locations`, or over the group's current function if
    there is none.
    """

    locations: tuple[Location, ...] = ()


@dataclass(frozen=True, slots=True)
class CaseHeader:
    """Header of a switch case; None is the default."""

    number: int | None
    locations: tuple[Location, ...] = ()


@dataclass(frozen=True, slots=True)
class SelectClause:
    """Assignment of the number of the clause that a match selects; -1 for none."""

    match: int
    clause: int
    locations: tuple[Location, ...] = ()


@dataclass(frozen=True, slots=True)
class ClauseSwitchHeader:
    """Header of a switch over the clause that a match selected."""

    match: int
    locations: tuple[Location, ...] = ()


@dataclass(frozen=True, slots=True)
class LoopHeader:
    """Header of the loop that `ContinueLoop` continues."""

    locations: tuple[Location, ...] = ()


@dataclass(frozen=True, slots=True)
class ContinueLoop:
    """Jump to the loop header with another function of the group."""

    entry: int
    locations: tuple[Location, ...] = ()


@dataclass(frozen=True, slots=True)
class ReturnStatement:
    """Return from the routine."""

    locations: tuple[Location, ...] = ()


@dataclass(frozen=True, slots=True)
class FailStatement:
    """Abort of the program with an error: the model rejects its input."""

    reason: str
    locations: tuple[Location, ...] = ()


@dataclass(frozen=True, slots=True)
class RoutineCallStatement:
    """Call of a routine."""

    routine: str
    entry: int
    """Index of the called function within its group."""
    locations: tuple[Location, ...]
    """Locations of the inputs and outputs, then of the frame if it needs one."""
    source: str = ""


@dataclass(frozen=True, slots=True)
class ListAppend:
    """Append of an element of `nbytes` bytes to a list of `capacity` elements; operands are the
    count, the elements, the new element and the new count.
    """

    capacity: int
    nbytes: int
    locations: tuple[Location, ...]


@dataclass(frozen=True, slots=True)
class CheckListLength:
    """Check that a list has `length` elements."""

    length: int
    locations: tuple[Location, ...]


@dataclass(frozen=True, slots=True)
class ReverseList:
    """Reversed copy of `length` elements of `nbytes` bytes from the first location to the
    second.
    """

    length: int
    nbytes: int
    locations: tuple[Location, ...]


Statement: TypeAlias = (
    KernelCallStatement
    | SetAddressStatement
    | IfHeader
    | ElseHeader
    | BlockEnd
    | SwitchHeader
    | CaseHeader
    | SelectClause
    | ClauseSwitchHeader
    | LoopHeader
    | ContinueLoop
    | ReturnStatement
    | FailStatement
    | RoutineCallStatement
    | ListAppend
    | CheckListLength
    | ReverseList
)


@dataclass(frozen=True, slots=True)
class Routine:
    """Function of the model, or a group of mutually recursive functions whose calls are jumps."""

    name: str
    inputs: tuple[bool, ...]
    """Whether each input address is written through."""
    outputs: int
    entries: int
    """Number of functions in the group."""
    locals: tuple[bool, ...]
    """Whether each local variable is written through."""
    initial_locations: tuple[Location | None, ...]
    """Initial location of each local variable."""
    matches: int
    code: tuple[Statement, ...]
    frame_bytes: int


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """Function besides `main` that C may call: function number `entry` of a routine, whose inputs
    begin at that routine's input `first_input`, and whose frame is at the start of pool `pool`.
    """

    name: str
    inputs: tuple[MicroTensor, ...]
    outputs: tuple[MicroTensor, ...]
    routine: str
    entry: int
    first_input: int
    pool: int


@dataclass(frozen=True, slots=True)
class Pool:
    """Memory pool: its name, its size limit in bytes (None: unlimited), and the bytes used."""

    name: str
    limit: int | None = None
    used: int = 0


@dataclass(frozen=True, slots=True)
class MicroModule:
    """Program for a machine without an allocator: inputs, outputs, constants, kernels, routines and
    memory pools.
    """

    name: str
    target: Target
    inputs: tuple[MicroTensor, ...]
    outputs: tuple[MicroTensor, ...]
    constants: tuple[Array, ...] = field(repr=False)
    kernels: tuple[MicroKernel, ...]
    routines: tuple[Routine, ...]
    pools: tuple[Pool, ...]
    entry_points: tuple[EntryPoint, ...] = ()
    helpers: tuple[str, ...] = field(default=(), repr=False)
    """C helper functions that kernels call."""
    has_own_memory: bool = True
    """Whether its pool is a static array of its own; otherwise the caller provides the pools."""
    is_packed: bool = False
    """Whether it also exports a function of the open C ABI."""
    constant_alignment: int = 4
    """Minimum alignment of constants, of which words are read."""

    @property
    def workspace(self) -> int:
        """Return the bytes used of all pools."""
        return sum(pool.used for pool in self.pools)

    @property
    def constant_bytes(self) -> int:
        """Return the bytes of the constants, each aligned as the processor requires."""
        end = 0
        for array in self.constants:
            to = self.alignment_of(array)
            end = -(-end // to) * to + array.nbytes
        return end

    def alignment_of(self, array: Array) -> int:
        """Return the alignment of a constant in bytes."""
        return max(self.constant_alignment, array.itemsize)


__all__ = [
    "POOL_ALIGNMENT_BYTES",
    "BlockEnd",
    "CaseHeader",
    "CheckListLength",
    "ClauseSwitchHeader",
    "ContinueLoop",
    "ElseHeader",
    "EntryPoint",
    "FailStatement",
    "IfHeader",
    "KernelCallStatement",
    "KernelParameter",
    "ListAppend",
    "Location",
    "LoopHeader",
    "MemorySpace",
    "MicroKernel",
    "MicroModule",
    "MicroTensor",
    "Pool",
    "ReturnStatement",
    "ReverseList",
    "Routine",
    "RoutineCallStatement",
    "SelectClause",
    "SetAddressStatement",
    "Statement",
    "SwitchHeader",
]
