"""Tensors of strings during import: expressions of bytes, see ekiden.runtime.text.

They are moved about as numbers: an operator that only moves elements is converted for the places of
the strings in a table, and the strings are then taken from there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import TypeVar

import numpy as np

from ekiden.frontend.common.node import Node, Result
from ekiden.frontend.common.scope import Scope
from ekiden.frontend.common.sequence_value import NoTensor
from ekiden.frontend.common.sum_value import Member
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value, constant
from ekiden.ir.op import Array
from ekiden.ir.prim import Max, PrimExpr, binary
from ekiden.ir.type import TensorType, Type
from ekiden.relay import op
from ekiden.relay.expr import Expr, Tuple, TupleGetItem, const
from ekiden.runtime.text import TEXT_END, encode
from ekiden.topi.shape import Dim, Shape, equal, known, product

N = TypeVar("N", bound=Node)


class TextValue(NoTensor):
    """A tensor of strings, as an expression of bytes."""

    __slots__ = ("bytes_type",)
    what = "a tensor of strings"
    is_text = True
    bytes_type: TensorType

    def __init__(self, expr: Expr, bytes_type: TensorType) -> None:
        self.array = self.symbols = self.hint = None
        self.expr, self.bytes_type = expr, bytes_type

    @property
    def shape(self) -> Shape:
        """The shape of the tensor of strings."""
        return self.bytes_type.shape[:-1]

    @property
    def width(self) -> PrimExpr:
        """The extent of the axis of bytes."""
        return self.bytes_type.shape[-1]

    @property
    def kind(self) -> Type:
        """The type of its bytes."""
        return self.bytes_type


def text_constant(texts: Array | Sequence[str]) -> TextValue:
    """A value of known strings."""
    data = encode(texts)
    value = constant(data)
    assert value.expr is not None
    return TextValue(value.expr, value.type)


def text_of(scope: Scope, data: Expr) -> TextValue:
    """An expression of bytes as strings; unknown dimensions get names."""
    found = scope.bound(data, "text")
    return TextValue(scope.expr(found), found.type)


def text(node: Node, index: int) -> TextValue:
    """An input that must be strings."""
    found = node.value(index)
    if not isinstance(found, TextValue):
        node.unsupported(f"input {index} must be a tensor of strings")
    return found


def has_text(node: Node) -> bool:
    """Whether an input is a tensor of strings."""
    return any(isinstance(v, TextValue) for v in node.inputs)


def rows(value: TextValue) -> Expr:
    """The strings one below the other: [n, width]."""
    assert value.expr is not None
    if len(value.bytes_type.shape) == 2:
        return value.expr
    return op.reshape(value.expr, (product(value.shape), value.width), allowzero=True)


def widened(value: TextValue, width: PrimExpr, data: Expr | None = None) -> Expr:
    """The strings (or `data` made of them) with a width that is at least theirs."""
    given = value.expr if data is None else data
    assert given is not None
    if equal(value.width, width):
        return given
    rank = len(value.bytes_type.shape) if data is None else 2
    room: list[tuple[Dim, Dim]] = [*[(0, 0)] * (rank - 1), (0, width - value.width)]
    return op.nn.pad(given, room, const(TEXT_END, "uint8"))


def common_width(values: Sequence[TextValue]) -> PrimExpr:
    """The greatest width."""
    return reduce(lambda a, b: a if equal(a, b) else binary(Max, a, b), (v.width for v in values))


def moved(node: N, apply: Callable[[N], Result]) -> Result:
    """The result of an operator that only moves elements."""
    texts = [v for v in node.inputs if isinstance(v, TextValue)]
    width = common_width(texts)
    parts = [widened(v, width, rows(v)) for v in texts]
    table = parts[0] if len(parts) == 1 else op.concatenate(Tuple(tuple(parts)), axis=0)
    result = measured(node, apply)
    many: list[Expr | Value | None]
    many = list(result) if isinstance(result, Sequence) else [result]
    if isinstance(result, Expr) and not isinstance(node.scope.type_of(result), TensorType):
        many = [TupleGetItem(result, i) for i in range(len(node.output_names))]
    return [None if m is None else _taken(node.scope, table, m) for m in many]


def measured(node: N, apply: Callable[[N], Result]) -> Result:
    """The result of an operator for the places of strings: of one that looks at shapes alone, all
    there is.
    """
    return apply(node.with_inputs(_places(node)))


def _taken(scope: Scope, table: Expr, places: Expr | Value) -> TextValue:
    """Return the strings at these places of a table. Raises Unsupported for places of several
    ranks."""
    if isinstance(places, Member):
        raise Unsupported("strings whose rank depends on data are not supported")
    at = scope.expr(places) if isinstance(places, Value) else places
    return text_of(scope, op.take(table, at, axis=0))


def _places(node: Node) -> list[Value | None]:
    """The inputs with places in the table in place of strings."""
    found: list[Value | None] = []
    start: PrimExpr | int = 0
    for each in node.inputs:
        if isinstance(each, TextValue):
            count = product(each.shape)
            found.append(_counted(node.scope, start, count, each.shape))
            start = start + count
        else:
            found.append(each)
    return found


def _counted(scope: Scope, start: PrimExpr | int, count: PrimExpr, shape: Shape) -> Value:
    """The numbers from `start`, in that shape."""
    dims = [known(d) for d in shape]
    first = start if isinstance(start, int) else known(start)
    if first is not None and None not in dims:
        sizes = [d for d in dims if d is not None]
        every = first + np.arange(math.prod(sizes), dtype=np.int64)
        return constant(every.reshape(sizes))
    numbers = op.arange(start, start + count, 1, dtype="int64")
    return scope.bound(op.reshape(numbers, shape, allowzero=True))
