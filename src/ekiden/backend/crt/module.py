"""A program for a machine without an allocator: statements in order, and where each value lies. C
and the metadata of a model library are made from it.

    MicroModule = inputs, outputs, constants    tensors; constants are read-only
                  kernels                       functions in C, each once
                  routines                      functions of the model, callees first; the last is
                                                its entry point
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

ALIGNMENT = 16
"""Of memories, and of what lies in them: the widest vector of such processors."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output, under the name that the model gives it."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * dt.itemsize(self.dtype)


class Home(Enum):
    """Where a value lies: in what the caller gives, in read-only memory, in a pool or the frame of
    a routine, where a variable of the routine says, in the table of numbers, or nowhere."""

    INPUT = "input"
    OUTPUT = "output"
    CONSTANT = "constant"
    POOL = "pool"
    LOCAL = "local"
    NUMBER = "number"
    NOWHERE = "nowhere"


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes from an offset on, of the input, output, constant, pool or variable of a number."""

    home: Home
    number: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Parameter:
    """What a kernel takes: the type of its elements in C, and whether it only reads them."""

    c_type: str
    is_read: bool


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function in C: over one address for each parameter, and where it needs one, of working
    memory."""

    name: str
    parameters: tuple[Parameter, ...]
    text: str = field(repr=False)
    workspace: int
    """Bytes of working memory."""


@dataclass(frozen=True, slots=True)
class Step:
    """A call of a kernel, or of none: a copy of `nbytes` bytes from the first place to the
    second."""

    kernel: Kernel | None
    places: tuple[Place, ...]
    """Of its parameters, then of the working memory where it needs some."""
    nbytes: int = 0
    source: str = ""
    """The node of the model that it comes from."""


@dataclass(frozen=True, slots=True)
class SetAddress:
    """The variable of a number stands for a place from here on."""

    local: int
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class If:
    """Opens a block for where the one boolean at a place is true."""

    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Else:
    """Opens the block for where it is not."""

    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class End:
    """Closes a block."""

    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class Switch:
    """Opens a choice by the number at a place, or where there is none, by which function of a group
    runs."""

    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """Opens the block of a number; None: of all others."""

    number: int | None
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class Choose:
    """The clause of a number is that of the match of a number; -1: none is."""

    match: int
    clause: int
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class Clauses:
    """Opens a choice by the clause that was chosen in the match of a number."""

    match: int
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class Loop:
    """Opens the block that Again begins anew."""

    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class Again:
    """Go on at the begin of the loop, with the function of that number in its group."""

    entry: int
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class Return:
    """The end of the routine."""

    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class Fail:
    """The end of the program: the model refuses what it was given."""

    reason: str
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class Invoke:
    """A call of a routine."""

    routine: str
    entry: int
    """Which function of its group."""
    places: tuple[Place, ...]
    """Of its inputs and outputs, then of its frame where it needs one."""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Append:
    """Put an element of `nbytes` bytes behind those of a list that has room for `capacity`: the
    number of elements, the elements, the new one, the number after that."""

    capacity: int
    nbytes: int
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Expect:
    """Refuse a list whose number of elements is another than `length`."""

    length: int
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Reverse:
    """Copy `length` elements of `nbytes` bytes from the first place to the second, the last one
    first."""

    length: int
    nbytes: int
    places: tuple[Place, ...]


Statement: TypeAlias = (
    Step | SetAddress | If | Else | End | Switch | Case | Choose | Clauses | Loop | Again | Return
    | Fail | Invoke | Append | Expect | Reverse
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Routine:
    """A function of the model, or a group of functions whose calls of each other are jumps."""

    name: str
    inputs: tuple[bool, ...]
    """Of each address that it is given: whether it is written through."""
    outputs: int
    entries: int
    """How many functions of the group there are."""
    locals: tuple[bool, ...]
    """Of each variable: whether it is written through."""
    starts: tuple[Place | None, ...]
    """Of each variable: what it stands for at first."""
    matches: int
    code: tuple[Statement, ...]
    frame: int


@dataclass(frozen=True, slots=True)
class Pool:
    """A memory: its name, the most bytes it may give (None: no limit), and those that are used."""

    name: str
    limit: int | None = None
    used: int = 0


@dataclass(frozen=True, slots=True)
class MicroModule:
    """The program; see the top of this file."""

    name: str
    target: Target
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    constants: tuple[Array, ...] = field(repr=False)
    kernels: tuple[Kernel, ...]
    routines: tuple[Routine, ...]
    pools: tuple[Pool, ...]
    helpers: tuple[str, ...] = field(default=(), repr=False)
    """Functions in C that kernels call."""
    has_own_memory: bool = True
    """Whether its pool is a static array of its own; otherwise the caller gives the pools."""
    is_packed: bool = False
    """Whether it has a function of the open C ABI too."""
    constant_alignment: int = 4
    """Of constants, where their elements need no more; words are read of smaller ones."""

    @property
    def workspace(self) -> int:
        """Bytes used of all pools."""
        return sum(pool.used for pool in self.pools)

    @property
    def constant_bytes(self) -> int:
        """Bytes of the constants, each where a processor can read its words."""
        end = 0
        for array in self.constants:
            to = self.alignment_of(array)
            end = -(-end // to) * to + array.nbytes
        return end

    def alignment_of(self, array: Array) -> int:
        """Of a constant: bytes that its address is a multiple of."""
        return max(self.constant_alignment, array.itemsize)


__all__ = [
    "ALIGNMENT",
    "Again",
    "Append",
    "Case",
    "Choose",
    "Clauses",
    "Else",
    "End",
    "Expect",
    "Fail",
    "Home",
    "If",
    "Invoke",
    "Kernel",
    "Loop",
    "MicroModule",
    "Parameter",
    "Place",
    "Pool",
    "Return",
    "Reverse",
    "Routine",
    "SetAddress",
    "Statement",
    "Step",
    "Switch",
    "Tensor",
]
