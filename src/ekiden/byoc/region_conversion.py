"""Conversion of regions to engine formats, shared by engines: operator tables, and traversal of a
region.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from ekiden.ir.expr import RelayExpr
from ekiden.ir.op import Op
from ekiden.ir.prim import IntImm
from ekiden.ir.type import TensorType
from ekiden.relay.dataflow_pattern.pattern import is_op, wildcard
from ekiden.relay.expr import Call, Constant, Function, Tuple, TupleGetItem, Var
from ekiden.relay.transform.external.merge_composite import PatternEntry
from ekiden.relay.transform.language.scope_tree import evaluation_order
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = [
    "OperatorMapping",
    "RegionConverter",
    "floor_mode_pool_padding",
    "operator_patterns",
    "region_results",
    "tensor_type",
]

K = TypeVar("K")
A = TypeVar("A")
V = TypeVar("V")
ENGINE_DTYPE = "float32"
"""Of the tensors that regions have: what all engines have all of their rows for."""


@dataclass(frozen=True, slots=True)
class OperatorMapping(Generic[K, A]):
    """Mapping of a Relay operator to an engine's operator: arity, and a function that returns its
    attributes, or None for a call the engine cannot run.
    """

    engine_operator: K
    arity: int
    attributes: Callable[[Call], A | None]


def tensor_type(expr: RelayExpr) -> TensorType:
    """Return the tensor type of an argument or result."""
    kind = expr.checked_type
    assert isinstance(kind, TensorType), "operators of the tables take and give tensors"
    return kind


def floor_mode_pool_padding(call: Call) -> list[int] | None:
    """Return the padding (top, left, bottom, right) with which a floor-mode pooling has this call's
    result size, since engines disagree about the last window in ceil mode. None if a required
    size is unknown, or a window may lie entirely in the padding, which engines do not support or
    fill differently.
    """
    attrs: Any = call.attrs
    begin, end = list(attrs.padding[:2]), list(attrs.padding[2:])
    spans = [(k - 1) * d + 1 for k, d in zip(attrs.pool_size, attrs.dilation, strict=True)]
    if attrs.ceil_mode:
        input_shape, output_shape = (tensor_type(expr).shape[2:] for expr in (call.args[0], call))
        for i in range(2):
            before, after = input_shape[i], output_shape[i]
            if not (isinstance(before, IntImm) and isinstance(after, IntImm)):
                return None
            # Ceil mode: pad the end until the last window lies inside.
            last = (after.value - 1) * attrs.strides[i] + spans[i]
            end[i] = max(end[i], last - before.value - begin[i])
    is_inside = all(pad < span for pad, span in zip((*begin, *end), spans * 2, strict=True))
    return [*begin, *end] if is_inside else None


def region_results(body: RelayExpr) -> Sequence[RelayExpr]:
    """Return the result expressions of a region: its fields if it returns a tuple."""
    return body.fields if isinstance(body, Tuple) else (body,)


def operator_patterns(engine: str, rows: Mapping[str, OperatorMapping[K, A]]) -> list[PatternEntry]:
    """Return one single-operator pattern per row of an engine's table."""
    return [
        (
            f"{engine}.{name}",
            is_op(name)(*(wildcard() for _ in range(row.arity))),
            partial(_is_supported_call, row),
        )
        for name, row in rows.items()
    ]


def _is_supported_call(row: OperatorMapping[K, A], expr: RelayExpr) -> bool:
    """Return whether the engine supports a matched call, including its dtypes."""
    assert isinstance(expr, Call)
    kinds = [expr_or_arg.checked_type for expr_or_arg in (*expr.args, expr)]
    if not all(isinstance(kind, TensorType) and kind.dtype == ENGINE_DTYPE for kind in kinds):
        return False
    return row.attributes(expr) is not None


class RegionConverter(ABC, Generic[V]):
    """Base class of converters of a region to an engine's format; `values` maps expressions to
    converted values.
    """

    engine: str

    def __init__(self) -> None:
        self.values: dict[RelayExpr, V] = {}

    @abstractmethod
    def convert_constant(self, expr: Constant) -> V:
        """Convert an embedded constant."""

    @abstractmethod
    def convert_call(self, name: str, call: Call, inputs: Sequence[V]) -> V:
        """Convert an operator call. Raises CompileError if the engine does not support it."""

    def convert(self, root: RelayExpr) -> None:
        """Convert all expressions below `root`; composite functions are converted through their
        bodies.
        """
        order = evaluation_order(root)
        # Bodies of composite functions are converted at their calls, when arguments have values.
        inner = {
            id(inner_expr)
            for function in order
            if isinstance(function, Function)
            for inner_expr in evaluation_order(function.body)
        }
        for expr in order:
            if id(expr) not in inner and expr not in self.values:
                self._convert_expr(expr)

    def _convert_expr(self, expr: RelayExpr) -> None:
        """Convert one expression."""
        match expr:
            case Constant():
                self.values[expr] = self.convert_constant(expr)
            case Call(op=Op() as op):
                inputs = [self.values[arg] for arg in expr.args]
                self.values[expr] = self.convert_call(op.name, expr, inputs)
            case Call(op=Function() as composite):
                for param, arg in zip(composite.params, expr.args, strict=True):
                    self.values[param] = self.values[arg]
                self.convert(composite.body)
                self.values[expr] = self.values[composite.body]
            case TupleGetItem(tuple_value=Tuple() as tuple_expr):
                self.values[expr] = self.values[tuple_expr.fields[expr.index]]
            case Function() | Tuple() | Op() | Var():
                pass
            case _:
                raise CompileError(f"a {type(expr).__name__} has no form in {self.engine}")
