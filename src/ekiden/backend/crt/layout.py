"""Memory layout of values: a type is a sequence of leaves, each an address.

    Tensor[(2, 3), float32]       one leaf of 24 bytes
    (A, B)                        the leaves of A, then those of B
    Opt[A] { Some(A), No }        the number of the constructor, then the fields of each of them
    List[Tensor[(4), float32]]    how many elements there are, then these, the first one first
    ref(A)                        the leaves of A, which are written through
    fn (A) -> B                   one leaf without an address: which function it is must be known

A value of an algebraic type has addresses for the fields of all constructors; those of another than
its own are never read. A type whose values may be of any size has no row, but for lists: what
stacks one says how many elements it has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum

from ekiden.ir import dtype as dt
from ekiden.ir.node import Node
from ekiden.ir.prim import IntImm, SizeVar
from ekiden.ir.prim_visitor import free_vars
from ekiden.ir.text import shape_text, type_text
from ekiden.ir.type import (
    FuncType,
    GlobalTypeVar,
    RelayRefType,
    TensorType,
    TupleType,
    Type,
    TypeCall,
)
from ekiden.relay.expr import Constructor, TypeData
from ekiden.relay.visitor import substitute_type
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass

MAX_LEAVES = 4096
"""Addresses of one value: types that hold each other may be exponentially many."""
INT32_BYTES = 4
"""Of an int32: the number of a constructor, or of a list's elements."""


class LeafKind(Enum):
    """Kind of data at an address."""

    TENSOR = "tensor"
    NUMBER = "number"
    ELEMENTS = "elements"
    FUNCTION = "function"


@dataclass(frozen=True, slots=True)
class LeafType:
    """Leaf of a flattened value: the bytes at its address (for ELEMENTS: of each element), and
    whether it belongs to a reference cell, which is written through.
    """

    kind: LeafKind
    nbytes: int = 0
    is_cell: bool = False

    @property
    def is_list(self) -> bool:
        """Return whether the leaf holds the elements of a list."""
        return self.kind is LeafKind.ELEMENTS


_Part = tuple[Type, bool, frozenset[Type]]
"""A type, whether it is inside of a reference, and the data types that it is inside of."""


class Layouts:
    """Leaves of types, given the definitions of data types."""

    def __init__(self, definitions: Mapping[GlobalTypeVar, Node]) -> None:
        self._definitions = definitions
        self._known: dict[Type, tuple[LeafType, ...]] = {}

    def leaves(self, kind: Type, where: str) -> tuple[LeafType, ...]:
        """Return the leaves of a type. Raises CompileError, which begins with `where`, for one
        whose values have no bound."""
        leaves = self._known.get(kind)
        if leaves is None:
            leaves = self._known[kind] = tuple(self._leaves(kind, where))
        return leaves

    def _leaves(self, kind: Type, where: str) -> list[LeafType]:
        leaves: list[LeafType] = []
        stack: list[_Part] = [(kind, False, frozenset())]
        while stack:
            if len(leaves) + len(stack) > MAX_LEAVES:
                limit = f"more than {MAX_LEAVES} tensors"
                raise CompileError(f"{where}: a value of {type_text(kind)} has {limit}")
            at, is_cell, inside = stack.pop()
            match at:
                case TensorType():
                    leaves.append(LeafType(LeafKind.TENSOR, tensor_bytes(at, where), is_cell))
                case FuncType():
                    leaves.append(LeafType(LeafKind.FUNCTION, 0, is_cell))
                case TupleType(fields=fields):
                    stack.extend((f, is_cell, inside) for f in reversed(fields))
                case RelayRefType(value=held):
                    stack.append((held, True, inside))
                case TypeCall(args=(TensorType() as held,)) if _is_list(at):
                    leaves.append(LeafType(LeafKind.NUMBER, INT32_BYTES, is_cell))
                    size = tensor_bytes(held, where)
                    leaves.append(LeafType(LeafKind.ELEMENTS, size, is_cell))
                case _:
                    header = self._header(at, where)
                    if header in inside:
                        raise CompileError(
                            f"{where}: a value of {type_text(at)} holds values of its own type: "
                            f"its size has no bound, and there is no allocator; {PARTIAL}"
                        )
                    leaves.append(LeafType(LeafKind.NUMBER, INT32_BYTES, is_cell))
                    held_types = [f for _, row in self.constructors(at) for f in row]
                    stack.extend((f, is_cell, inside | {header}) for f in reversed(held_types))
        return leaves

    def _header(self, kind: Type, where: str) -> GlobalTypeVar:
        header = kind.func if isinstance(kind, TypeCall) else kind
        if isinstance(header, GlobalTypeVar) and isinstance(
            self._definitions.get(header), TypeData
        ):
            return header
        raise CompileError(f"{where}: a value of {type_text(kind)} is known when it runs only")

    def constructors(self, kind: Type) -> list[tuple[Constructor, tuple[Type, ...]]]:
        """Return the constructors of a data type, each with the types of its fields."""
        header = kind.func if isinstance(kind, TypeCall) else kind
        data = self._definitions[header]  # type: ignore[index]
        assert isinstance(data, TypeData)
        args = kind.args if isinstance(kind, TypeCall) else ()
        arguments = dict(zip(data.type_vars, args, strict=True))
        return [
            (c, tuple(substitute_type(f, arguments) for f in c.inputs)) for c in data.constructors
        ]

    def fields(self, kind: Type, constructor: Constructor | None, where: str) -> list[LayoutField]:
        """Return the fields of a tuple or of a constructor's value: the type of each, and its range
        of leaves.
        """
        if isinstance(kind, TupleType):
            return self._slices(kind.fields, 0, where)
        if _is_list(kind):
            raise CompileError(
                f"{where}: a match takes a list apart, whose length has no bound; a list can be "
                f"grown by Cons, and read by sequence.stack with a constant length; {PARTIAL}"
            )
        start = 1
        for declared, types in self.constructors(kind):
            row = self._slices(types, start, where)
            if constructor is not None and declared.tag == constructor.tag:
                return row
            start = row[-1].end if row else start
        raise AssertionError(kind)

    def _slices(self, types: Sequence[Type], start: int, where: str) -> list[LayoutField]:
        row: list[LayoutField] = []
        for kind in types:
            end = start + len(self.leaves(kind, where))
            row.append(LayoutField(kind, start, end))
            start = end
        return row


def _is_list(kind: Type) -> bool:
    """Return whether a type is a sequence of tensors."""
    match kind:
        case TypeCall(func=GlobalTypeVar(name_hint="List"), args=(TensorType(),)):
            return True
    return False


@dataclass(frozen=True, slots=True)
class LayoutField:
    """Component of a value: its type, and its leaves in [start, end)."""

    type: Type
    start: int
    end: int


def tensor_bytes(kind: TensorType, where: str) -> int:
    """Return the bytes of a tensor. Raises CompileError for a shape that is not constant."""
    sizes = [d.value for d in kind.shape if isinstance(d, IntImm)]
    if len(sizes) < len(kind.shape):
        raise CompileError(f"{where}: {unbounded(kind)}")
    return math.prod(sizes) * dt.itemsize(kind.dtype)


def unbounded(kind: TensorType) -> str:
    """Return the message why a tensor has no static size, and what would help."""
    names = dict.fromkeys(v for d in kind.shape for v in free_vars(d))
    limits = [f"{v.name} <= {v.upper}" for v in names if isinstance(v, SizeVar) and v.upper]
    sizes = " and ".join(v.name for v in names) or "a size"
    verb = "follow" if len(names) > 1 else "follows"
    bounds = f" ({', '.join(limits)})" if limits else ""
    return (
        f"a tensor {kind.dtype}{shape_text(kind.shape)} has no constant size: {sizes} {verb} from "
        f"data when it runs{bounds}, and there is no allocator; put it into a tensor of the "
        "largest shape, beside a number that says how much of it counts"
    )


PARTIAL = (
    "relay.transform.PartialEvaluate unrolls what is recursive over data whose structure is known"
)
"""What helps against types without a bound."""


__all__ = ["PARTIAL", "LayoutField", "Layouts", "LeafKind", "LeafType", "tensor_bytes", "unbounded"]
