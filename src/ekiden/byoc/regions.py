"""What engines share: tables of the operators that go there, and walks over a region."""

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
from ekiden.relay.transform.external.merge_composite import Entry
from ekiden.relay.transform.language.scopes import evaluation_order
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["Region", "Row", "patterns_of", "pool_padding", "results_of", "tensor_of"]

K = TypeVar("K")
A = TypeVar("A")
V = TypeVar("V")
DTYPE = "float32"
"""Of the tensors that regions have: what all engines have all of their rows for."""


@dataclass(frozen=True, slots=True)
class Row(Generic[K, A]):
    """An operator of Relay that an engine has: what it is there, how many arguments it takes, and
    its attributes; None where this call has no such form.
    """

    op: K
    arity: int
    attributes: Callable[[Call], A | None]


def tensor_of(expr: RelayExpr) -> TensorType:
    """The type of an argument or result of an operator in a table."""
    found = expr.checked_type
    assert isinstance(found, TensorType), "operators of the tables take and give tensors"
    return found


def pool_padding(call: Call) -> list[int] | None:
    """The borders (top, left, bottom, right) of a pooling, such that windows counted downwards are
    all that it has: where sizes are counted upwards, engines differ in what the last window may be.

    None where a size that this takes is not known, or where a window may lie in the border alone,
    which engines do not have, or fill with other numbers.
    """
    attrs: Any = call.attrs
    begin, end = list(attrs.padding[:2]), list(attrs.padding[2:])
    spans = [(k - 1) * d + 1 for k, d in zip(attrs.pool_size, attrs.dilation, strict=True)]
    if attrs.ceil_mode:
        given, made = (tensor_of(each).shape[2:] for each in (call.args[0], call))
        for i in range(2):
            before, after = given[i], made[i]
            if not (isinstance(before, IntImm) and isinstance(after, IntImm)):
                return None
            last = (after.value - 1) * attrs.strides[i] + spans[i]
            end[i] = max(end[i], last - before.value - begin[i])
    is_inside = all(pad < span for pad, span in zip((*begin, *end), spans * 2, strict=True))
    return [*begin, *end] if is_inside else None


def results_of(body: RelayExpr) -> Sequence[RelayExpr]:
    """What a region gives, in order."""
    return body.fields if isinstance(body, Tuple) else (body,)


def patterns_of(engine: str, rows: Mapping[str, Row[K, A]]) -> list[Entry]:
    """A pattern for each operator of a table, as `Backend.patterns` gives them."""
    return [
        (
            f"{engine}.{name}",
            is_op(name)(*(wildcard() for _ in range(row.arity))),
            partial(_takes, row),
        )
        for name, row in rows.items()
    ]


def _takes(row: Row[K, A], expr: RelayExpr) -> bool:
    """Whether a matched call has a form in an engine, of the dtype that engines compute."""
    assert isinstance(expr, Call)
    kinds = [each.checked_type for each in (*expr.args, expr)]
    if not all(isinstance(kind, TensorType) and kind.dtype == DTYPE for kind in kinds):
        return False
    return row.attributes(expr) is not None


class Region(ABC, Generic[V]):
    """A region on its way to an engine: the engine's value for each expression so far."""

    engine: str

    def __init__(self) -> None:
        self.values: dict[RelayExpr, V] = {}

    @abstractmethod
    def constant(self, expr: Constant) -> V:
        """A constant that the region has in place."""

    @abstractmethod
    def operator(self, name: str, call: Call, inputs: Sequence[V]) -> V:
        """A call of an operator; CompileError for one that the engine has not."""

    def convert(self, root: RelayExpr) -> None:
        """Make the values of all below an expression; composite functions are their bodies."""
        order = evaluation_order(root)
        inner = {
            id(each)
            for function in order
            if isinstance(function, Function)
            for each in evaluation_order(function.body)
        }
        for expr in order:
            if id(expr) not in inner and expr not in self.values:
                self._convert(expr)

    def _convert(self, expr: RelayExpr) -> None:
        match expr:
            case Constant():
                self.values[expr] = self.constant(expr)
            case Call(op=Op() as op):
                inputs = [self.values[arg] for arg in expr.args]
                self.values[expr] = self.operator(op.name, expr, inputs)
            case Call(op=Function() as composite):
                for param, arg in zip(composite.params, expr.args, strict=True):
                    self.values[param] = self.values[arg]
                self.convert(composite.body)
                self.values[expr] = self.values[composite.body]
            case TupleGetItem(tuple_value=Tuple() as made):
                self.values[expr] = self.values[made.fields[expr.index]]
            case Function() | Tuple() | Op() | Var():
                pass
            case _:
                raise CompileError(f"a {type(expr).__name__} has no form in {self.engine}")
