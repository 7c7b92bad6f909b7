"""Memory layout of values, which flattens a type to leaves with one address each.

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
from ekiden.ir.expr_text import format_shape, format_type
from ekiden.ir.node import Node
from ekiden.ir.prim import IntImm, SizeVar
from ekiden.ir.prim_visitor import free_vars
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

MAX_TYPE_LEAVES = 4096
"""Maximum number of leaves of a type; nested types may have exponentially many."""
TAG_BYTES = 4
"""Size in bytes of an int32 constructor tag or list length."""


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


_FlattenedComponent = tuple[Type, bool, frozenset[Type]]
"""Type, whether it is inside a reference, and the enclosing data types."""


class TypeLayouts:
    """Leaves of types, given the definitions of data types."""

    def __init__(self, definitions: Mapping[GlobalTypeVar, Node]) -> None:
        self._definitions = definitions
        self._leaves_by_type: dict[Type, tuple[LeafType, ...]] = {}

    def leaves(self, kind: Type, where: str) -> tuple[LeafType, ...]:
        """Return the leaves of a type. Raises CompileError, which begins with `where`, for a type
        of unbounded size.
        """
        leaves = self._leaves_by_type.get(kind)
        if leaves is None:
            leaves = self._leaves_by_type[kind] = tuple(self._flatten_type(kind, where))
        return leaves

    def _flatten_type(self, kind: Type, where: str) -> list[LeafType]:
        leaves: list[LeafType] = []
        stack: list[_FlattenedComponent] = [(kind, False, frozenset())]
        while stack:
            if len(leaves) + len(stack) > MAX_TYPE_LEAVES:
                limit = f"more than {MAX_TYPE_LEAVES} tensors"
                raise CompileError(f"{where}: a value of {format_type(kind)} has {limit}")
            position, is_cell, inside = stack.pop()
            match position:
                case TensorType():
                    leaves.append(LeafType(LeafKind.TENSOR, tensor_bytes(position, where), is_cell))
                case FuncType():
                    leaves.append(LeafType(LeafKind.FUNCTION, 0, is_cell))
                case TupleType(fields=fields):
                    stack.extend((f, is_cell, inside) for f in reversed(fields))
                case RelayRefType(value=held):
                    stack.append((held, True, inside))
                case TypeCall(args=(TensorType() as held,)) if _is_tensor_list(position):
                    leaves.append(LeafType(LeafKind.NUMBER, TAG_BYTES, is_cell))
                    size = tensor_bytes(held, where)
                    leaves.append(LeafType(LeafKind.ELEMENTS, size, is_cell))
                case _:
                    header = self._data_type_header(position, where)
                    if header in inside:
                        raise CompileError(
                            f"{where}: a value of {format_type(position)} holds values of its own "
                            "type: its size has no bound, and there is no allocator; "
                            f"{PARTIAL_EVALUATE_HINT}"
                        )
                    leaves.append(LeafType(LeafKind.NUMBER, TAG_BYTES, is_cell))
                    held_types = [f for _, row in self.constructors(position) for f in row]
                    stack.extend((f, is_cell, inside | {header}) for f in reversed(held_types))
        return leaves

    def _data_type_header(self, kind: Type, where: str) -> GlobalTypeVar:
        header = kind.func if isinstance(kind, TypeCall) else kind
        if isinstance(header, GlobalTypeVar) and isinstance(
            self._definitions.get(header), TypeData
        ):
            return header
        raise CompileError(f"{where}: a value of {format_type(kind)} is known when it runs only")

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
            return self._consecutive_fields(kind.fields, 0, where)
        if _is_tensor_list(kind):
            raise CompileError(
                f"{where}: a match takes a list apart, whose length has no bound; a list can be "
                "grown by Cons, and read by sequence.stack with a constant length; "
                f"{PARTIAL_EVALUATE_HINT}"
            )
        start = 1
        for declared, types in self.constructors(kind):
            row = self._consecutive_fields(types, start, where)
            if constructor is not None and declared.tag == constructor.tag:
                return row
            start = row[-1].end if row else start
        raise AssertionError(kind)

    def _consecutive_fields(
        self, types: Sequence[Type], start: int, where: str
    ) -> list[LayoutField]:
        row: list[LayoutField] = []
        for kind in types:
            end = start + len(self.leaves(kind, where))
            row.append(LayoutField(kind, start, end))
            start = end
        return row


def _is_tensor_list(kind: Type) -> bool:
    """Return whether a type is a sequence of tensors."""
    match kind:
        case TypeCall(func=GlobalTypeVar(name_hint="List"), args=(TensorType(),)):
            return True
    return False


@dataclass(frozen=True, slots=True)
class LayoutField:
    """Component of a value with its type and the leaves [start, end)."""

    type: Type
    start: int
    end: int


def tensor_bytes(kind: TensorType, where: str) -> int:
    """Return the bytes of a tensor. Raises CompileError for a shape that is not constant."""
    sizes = [d.value for d in kind.shape if isinstance(d, IntImm)]
    if len(sizes) < len(kind.shape):
        raise CompileError(f"{where}: {unbounded_message(kind)}")
    return math.prod(sizes) * dt.itemsize(kind.dtype)


def unbounded_message(kind: TensorType) -> str:
    """Return the message why a tensor has no static size, and what would help."""
    names = dict.fromkeys(v for d in kind.shape for v in free_vars(d))
    limits = [f"{v.name} <= {v.upper}" for v in names if isinstance(v, SizeVar) and v.upper]
    sizes = " and ".join(v.name for v in names) or "a size"
    verb = "follow" if len(names) > 1 else "follows"
    bounds = f" ({', '.join(limits)})" if limits else ""
    return (
        f"a tensor {kind.dtype}{format_shape(kind.shape)} has no constant size: {sizes} {verb} "
        f"from data when it runs{bounds}, and there is no allocator; put it into a tensor of the "
        "largest shape, beside a number that says how much of it counts"
    )


PARTIAL_EVALUATE_HINT = (
    "relay.transform.PartialEvaluate unrolls what is recursive over data whose structure is known"
)
"""Hint for types without a static size bound."""


__all__ = [
    "PARTIAL_EVALUATE_HINT",
    "LayoutField",
    "LeafKind",
    "LeafType",
    "TypeLayouts",
    "tensor_bytes",
    "unbounded_message",
]
