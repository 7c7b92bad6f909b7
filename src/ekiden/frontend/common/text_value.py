"""String tensors during import: uint8 expressions, see ekiden.runtime.text.

An operator that only moves elements is converted for the strings' indices into a table; the strings
are then gathered from it.
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
from ekiden.topi.dimensions import Dim, Shape, equal, known, product

N = TypeVar("N", bound=Node)


class TextValue(NoTensor):
    """String tensor, as an expression of bytes [.., width]."""

    __slots__ = ("bytes_type",)
    what = "a tensor of strings"
    is_text = True
    bytes_type: TensorType

    def __init__(self, expr: Expr, bytes_type: TensorType) -> None:
        self.array = self.symbols = self.hint = None
        self.expr, self.bytes_type = expr, bytes_type

    @property
    def shape(self) -> Shape:
        """Return the shape of the string tensor."""
        return self.bytes_type.shape[:-1]

    @property
    def width(self) -> PrimExpr:
        """Return the extent of the byte axis."""
        return self.bytes_type.shape[-1]

    @property
    def kind(self) -> Type:
        """Return the type of its byte tensor."""
        return self.bytes_type


def text_constant(texts: Array | Sequence[str]) -> TextValue:
    """Return a value of known strings."""
    data = encode(texts)
    value = constant(data)
    assert value.expr is not None
    return TextValue(value.expr, value.type)


def text_of(scope: Scope, data: Expr) -> TextValue:
    """Return an expression of bytes as strings; unknown dimensions get names."""
    bytes_value = scope.bound(data, "text")
    return TextValue(scope.expr(bytes_value), bytes_value.type)


def text(node: Node, index: int) -> TextValue:
    """Return an input that must be strings. Raises Unsupported for another."""
    operand = node.value(index)
    if not isinstance(operand, TextValue):
        node.unsupported(f"input {index} must be a tensor of strings")
    return operand


def has_text(node: Node) -> bool:
    """Return whether an input is a string tensor."""
    return any(isinstance(v, TextValue) for v in node.inputs)


def rows(value: TextValue) -> Expr:
    """Return the strings flattened to [n, width]."""
    assert value.expr is not None
    if len(value.bytes_type.shape) == 2:
        return value.expr
    return op.reshape(value.expr, (product(value.shape), value.width), allowzero=True)


def widened(value: TextValue, width: PrimExpr, data: Expr | None = None) -> Expr:
    """Pad the strings (or `data` made of them) to a width that is at least theirs."""
    encoded = value.expr if data is None else data
    assert encoded is not None
    if equal(value.width, width):
        return encoded
    rank = len(value.bytes_type.shape) if data is None else 2
    room: list[tuple[Dim, Dim]] = [*[(0, 0)] * (rank - 1), (0, width - value.width)]
    return op.nn.pad(encoded, room, const(TEXT_END, "uint8"))


def common_width(values: Sequence[TextValue]) -> PrimExpr:
    """Return the greatest width."""
    return reduce(lambda a, b: a if equal(a, b) else binary(Max, a, b), (v.width for v in values))


def moved(node: N, apply: Callable[[N], Result]) -> Result:
    """Convert an operator that only moves elements: move indices, then gather the strings."""
    texts = [v for v in node.inputs if isinstance(v, TextValue)]
    # All rows of the table need one byte width.
    width = common_width(texts)
    tables = [widened(v, width, rows(v)) for v in texts]
    table = tables[0] if len(tables) == 1 else op.concatenate(Tuple(tuple(tables)), axis=0)
    result = measured(node, apply)
    outputs: list[Expr | Value | None]
    outputs = list(result) if isinstance(result, Sequence) else [result]
    if isinstance(result, Expr) and not isinstance(node.scope.type_of(result), TensorType):
        outputs = [TupleGetItem(result, i) for i in range(len(node.output_names))]
    return [None if m is None else _taken(node.scope, table, m) for m in outputs]


def measured(node: N, apply: Callable[[N], Result]) -> Result:
    """Convert an operator for the strings' indices; for one that reads shapes alone this is the
    result.
    """
    return apply(node.with_inputs(_places(node)))


def _taken(scope: Scope, table: Expr, indices: Expr | Value) -> TextValue:
    """Gather the strings at these indices of a table. Raises Unsupported for indices of several
    ranks.
    """
    if isinstance(indices, Member):
        raise Unsupported("strings whose rank depends on data are not supported")
    at = scope.expr(indices) if isinstance(indices, Value) else indices
    return text_of(scope, op.take(table, at, axis=0))


def _places(node: Node) -> list[Value | None]:
    """Return the inputs with table indices in place of strings."""
    replaced: list[Value | None] = []
    start: PrimExpr | int = 0
    for operand in node.inputs:
        if isinstance(operand, TextValue):
            count = product(operand.shape)
            replaced.append(_counted(node.scope, start, count, operand.shape))
            start = start + count
        else:
            replaced.append(operand)
    return replaced


def _counted(scope: Scope, start: PrimExpr | int, count: PrimExpr, shape: Shape) -> Value:
    """Return consecutive numbers from `start`, in that shape."""
    dims = [known(d) for d in shape]
    first = start if isinstance(start, int) else known(start)
    if first is not None and None not in dims:
        sizes = [d for d in dims if d is not None]
        every = first + np.arange(math.prod(sizes), dtype=np.int64)
        return constant(every.reshape(sizes))
    numbers = op.arange(start, start + count, 1, dtype="int64")
    return scope.bound(op.reshape(numbers, shape, allowzero=True))
