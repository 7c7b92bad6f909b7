"""String tensors during import: uint8 tensors [..., width] (see ekiden.runtime.string_tensors).

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
from ekiden.frontend.common.sequence_value import NonTensorValue
from ekiden.frontend.common.sum_value import SumMember
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value, constant_value
from ekiden.ir.op import Array
from ekiden.ir.prim import Max, PrimExpr, fold_binary
from ekiden.ir.type import TensorType, Type
from ekiden.relay import op
from ekiden.relay.expr import Expr, Tuple, TupleGetItem, const
from ekiden.runtime.string_tensors import STRING_TERMINATOR, encode_strings
from ekiden.topi.dimensions import Dim, Shape, are_equal_dims, known_int, product_of_dims

NodeType = TypeVar("NodeType", bound=Node)


class StringValue(NonTensorValue):
    """String tensor, as an expression of bytes [..., width]."""

    __slots__ = ("bytes_type",)
    description = "a tensor of strings"
    is_string = True
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
        """Return the extent of the byte axis: the length of the longest string."""
        return self.bytes_type.shape[-1]

    @property
    def relay_type(self) -> Type:
        """Return the type of its byte tensor."""
        return self.bytes_type


def string_constant(texts: Array | Sequence[str]) -> StringValue:
    """Return known strings as a value."""
    data = encode_strings(texts)
    value = constant_value(data)
    assert value.expr is not None
    return StringValue(value.expr, value.type)


def to_string_value(scope: Scope, data: Expr) -> StringValue:
    """Return a byte tensor as strings; unknown dimensions get names."""
    bytes_value = scope.bind_named(data, "text")
    return StringValue(scope.expr(bytes_value), bytes_value.type)


def string_input(node: Node, index: int) -> StringValue:
    """Return an input that must be a string tensor."""
    operand = node.value(index)
    if not isinstance(operand, StringValue):
        node.reject(f"input {index} must be a tensor of strings")
    return operand


def has_string_input(node: Node) -> bool:
    """Return whether an input is a string tensor."""
    return any(isinstance(v, StringValue) for v in node.inputs)


def flatten_strings(value: StringValue) -> Expr:
    """Emit the strings flattened to [n, width]."""
    assert value.expr is not None
    if len(value.bytes_type.shape) == 2:
        return value.expr
    return op.reshape(value.expr, (product_of_dims(value.shape), value.width), allowzero=True)


def pad_string_width(value: StringValue, width: PrimExpr, data: Expr | None = None) -> Expr:
    """Pad the strings to a larger width, up to which the end mark fills."""
    encoded = value.expr if data is None else data
    assert encoded is not None
    if are_equal_dims(value.width, width):
        return encoded
    rank = len(value.bytes_type.shape) if data is None else 2
    room: list[tuple[Dim, Dim]] = [*[(0, 0)] * (rank - 1), (0, width - value.width)]
    return op.nn.pad(encoded, room, const(STRING_TERMINATOR, "uint8"))


def max_string_width(values: Sequence[StringValue]) -> PrimExpr:
    """Return the greatest width."""
    return reduce(
        lambda a, b: a if are_equal_dims(a, b) else fold_binary(Max, a, b),
        (v.width for v in values),
    )


def move_strings(node: NodeType, apply: Callable[[NodeType], Result]) -> Result:
    """Convert a data-movement operator on strings: apply it to indices, then gather the strings."""
    texts = [v for v in node.inputs if isinstance(v, StringValue)]
    # All rows of the table need one byte width.
    width = max_string_width(texts)
    tables = [pad_string_width(v, width, flatten_strings(v)) for v in texts]
    table = tables[0] if len(tables) == 1 else op.concatenate(Tuple(tuple(tables)), axis=0)
    result = apply_to_indices(node, apply)
    outputs: list[Expr | Value | None]
    outputs = list(result) if isinstance(result, Sequence) else [result]
    if isinstance(result, Expr) and not isinstance(node.scope.type_of(result), TensorType):
        outputs = [TupleGetItem(result, i) for i in range(len(node.output_names))]
    return [None if m is None else _gather_strings(node.scope, table, m) for m in outputs]


def apply_to_indices(node: NodeType, apply: Callable[[NodeType], Result]) -> Result:
    """Convert an operator on the row indices of its strings; operators that read only shapes need
    nothing else.
    """
    return apply(node.with_inputs(_inputs_as_indices(node)))


def _gather_strings(scope: Scope, table: Expr, indices: Expr | Value) -> StringValue:
    """Gather the strings of a table at these indices. Raises UnsupportedError for indices of
    several ranks.
    """
    if isinstance(indices, SumMember):
        raise Unsupported("strings whose rank depends on data are not supported")
    position = scope.expr(indices) if isinstance(indices, Value) else indices
    return to_string_value(scope, op.take(table, position, axis=0))


def _inputs_as_indices(node: Node) -> list[Value | None]:
    """Return the inputs with strings replaced by their row numbers in the table."""
    replaced: list[Value | None] = []
    start: PrimExpr | int = 0
    for operand in node.inputs:
        if isinstance(operand, StringValue):
            count = product_of_dims(operand.shape)
            replaced.append(_index_range(node.scope, start, count, operand.shape))
            start = start + count
        else:
            replaced.append(operand)
    return replaced


def _index_range(scope: Scope, start: PrimExpr | int, count: PrimExpr, shape: Shape) -> Value:
    """Return consecutive integers from `start`, in that shape."""
    dims = [known_int(d) for d in shape]
    first = start if isinstance(start, int) else known_int(start)
    if first is not None and None not in dims:
        sizes = [d for d in dims if d is not None]
        every = first + np.arange(math.prod(sizes), dtype=np.int64)
        return constant_value(every.reshape(sizes))
    numbers = op.arange(start, start + count, 1, dtype="int64")
    return scope.bind_named(op.reshape(numbers, shape, allowzero=True))
