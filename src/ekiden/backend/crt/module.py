"""A program for a machine without an allocator: calls of kernels in order, and where each value
lies. C and the metadata of a model library are made from it.

    MicroModule = inputs, outputs, constants    tensors; constants are read-only
                  kernels                       functions in C, each once
                  steps                         calls of them, in order
                  pools                         memories, with the bytes that are used of each
"""

from __future__ import annotations

import math
from dataclasses import field
from enum import Enum

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
    """Where a value lies: in what the caller gives, in read-only memory, or in a pool."""

    INPUT = "input"
    OUTPUT = "output"
    CONSTANT = "constant"
    POOL = "pool"


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes from an offset on, of the input, output, constant or pool of a number."""

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
    steps: tuple[Step, ...]
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
    "Home",
    "Kernel",
    "MicroModule",
    "Parameter",
    "Place",
    "Pool",
    "Step",
    "Tensor",
]
