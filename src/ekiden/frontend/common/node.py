"""A node of a model as converters see it: inputs as values, and ways to say what is unsupported.
Each frontend adds how attributes are read.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn, Protocol, Self, SupportsIndex, TypeAlias, overload

from ekiden.frontend.common import sizes
from ekiden.frontend.common.scope import Scope
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value
from ekiden.ir.op import Array
from ekiden.ir.prim import PrimExpr
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Expr
from ekiden.topi.shape import Dim, Shape, as_dim, known

Result: TypeAlias = Expr | Value | Sequence[Expr | Value | None]
"""What a converter gives: an expression (its fields are the outputs where it is a tuple), a value,
or one of these for each output, None for one that is not supported.
"""


class Body(Protocol):
    """A graph inside a node: a branch, the body of a loop."""

    @property
    def names(self) -> Sequence[str]:
        """The names of its inputs."""

    def run(self, inputs: Sequence[Value]) -> list[Value]:
        """Import its nodes for these inputs; its outputs."""


MAX_DECLARED = 1 << 28
"""Elements of a table that is made while importing, at most."""


class Inputs(list[Value | None]):
    """The inputs of a node, and which of them a converter has looked at."""

    def __init__(self, values: Iterable[Value | None]) -> None:
        super().__init__(values)
        self.read: set[int] = set()

    @overload
    def __getitem__(self, index: SupportsIndex) -> Value | None: ...
    @overload
    def __getitem__(self, index: slice) -> list[Value | None]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Value | list[Value | None] | None:
        """Return one input or several, which are read from here on."""
        places = range(len(self))[index]
        self.read.update(places if isinstance(places, range) else (places,))
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[Value | None]:
        """Give all inputs, which are read from here on."""
        self.read.update(range(len(self)))
        return super().__iter__()

    def peek(self, index: int) -> Value | None:
        """Return an input that is not read thereby; None for one that is absent."""
        return super().__getitem__(index) if index < len(self) else None

    def unread(self) -> list[int]:
        """Return the places of the inputs that are there and that nobody has read."""
        return [i for i in range(len(self)) if i not in self.read and self.peek(i) is not None]


class Node:
    """What a converter is given. Inputs that are absent are None.

    name: as messages have it. output_names: those of the tensors that it makes, "" for one that
    nobody wants.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[Value | None],
        scope: Scope,
        output_names: Sequence[str] = ("",),
    ) -> None:
        self.name, self.scope, self.output_names = name, scope, output_names
        self.inputs = Inputs(None if v is None else sizes.resolved(scope, v) for v in inputs)

    def with_inputs(self, inputs: Sequence[Value | None]) -> Self:
        """The same node of other inputs: for converters that are made of others."""
        made = copy.copy(self)
        made.inputs = Inputs(None if v is None else sizes.resolved(self.scope, v) for v in inputs)
        return made

    def unsupported(self, reason: str) -> NoReturn:
        """Give up on this node; `reason` follows the node's name in the error."""
        raise Unsupported(reason)

    def needs(self, index: int, reason: str) -> NoReturn:
        """Give up because an input's value has to be known; says which parameters it is made of.
        Raises Unsupported always."""
        raise Unsupported(reason, self.scope.params_of(self.expr(index)))

    # Inputs.

    def optional(self, index: int) -> Value | None:
        """An input, or None if it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def peek(self, index: int) -> Value | None:
        """Return an input, or None, for a check of it: it does not count as read."""
        return self.inputs.peek(index)

    def value(self, index: int) -> Value:
        """An input that must be there."""
        found = self.optional(index)
        return self.unsupported(f"input {index} is missing") if found is None else found

    def expr(self, index: int) -> Expr:
        """An input as an expression."""
        found = self.value(index)
        if found.is_text:
            self.unsupported("expected a tensor of numbers, got one of strings")
        return self.scope.expr(found)

    def exprs(self) -> list[Expr]:
        """All inputs as expressions."""
        return [self.expr(i) for i in range(len(self.inputs))]

    def type(self, index: int) -> TensorType:
        """The type of an input."""
        return self.value(index).type

    def shape(self, index: int) -> Shape:
        """The shape of an input."""
        return self.type(index).shape

    def rank(self, index: int) -> int:
        """The rank of an input."""
        return len(self.shape(index))

    def dtype(self, index: int) -> str:
        """The dtype of an input."""
        return self.type(index).dtype

    def numbers(self, index: int, what: str) -> Array:
        """An input that must be constant; `what` names it in the error."""
        found = self.value(index).array
        return self.needs(index, f"{what!r} must be constant") if found is None else found

    def axes(self, index: int, what: str = "axes") -> tuple[int, ...]:
        """A constant input of integers."""
        return tuple(int(v) for v in self.numbers(index, what).ravel())

    def dims(self, index: int, what: str, count: int | None = None) -> tuple[Dim, ...]:
        """An input of integers as numbers and dimensions, of which data gets names from here on.
        Where the node can have `count` of them alone, so many there are of a length that is not
        known.
        """
        given = self.value(index)
        if count is not None and len(given.type.shape) == 1 and known(given.type.shape[0]) is None:
            self.scope.same(given.type.shape, (as_dim(count),))
            given = self.value_of(op.reshape(self.expr(index), (count,)))
        found = sizes.dims(self.scope, given)
        if found is None:
            self.needs(index, f"{what!r} must be a vector of known length")
        return found

    def learn(self, index: int, axis: int, extent: Dim) -> None:
        """An axis of an input, where it has that one, must be so long, which may say more of it
        than the model does. What is known to differ is left to the operator, which refuses it."""
        shape = () if self.optional(index) is None else self.shape(index)
        if axis < len(shape) and (known(shape[axis]) is None or known(extent) is None):
            self.scope.same((shape[axis],), (as_dim(extent),))

    def partial(self, index: int) -> Sequence[PrimExpr | None]:
        """What is known of the elements of an input of integers: a number or an expression of
        dimensions each, None for data.
        """
        found = sizes.elements(self.scope, self.value(index))
        if found is None:
            self.needs(index, "expected a vector of known length")
        each = [as_dim(e if isinstance(e, PrimExpr) else int(e)) for e in found.ravel()]
        return [e if sizes.is_dim(e) else None for e in each]

    def believed(self, what: str, count: int) -> int:
        """Return a size that the model declares, before that much is allocated.

        Raises Unsupported where it is negative or beyond any model.
        """
        if not 0 <= count <= MAX_DECLARED:
            self.unsupported(f"{what} must be in [0, {MAX_DECLARED}], got {count}")
        return count

    def axis(self, axis: int, rank: int) -> int:
        """`axis` counted from the front."""
        if not -rank <= axis < rank:
            self.unsupported(f"axis {axis} is out of range for rank {rank}")
        return axis + rank if axis < 0 else axis

    # Expressions under construction.

    def typed(self, expr: Expr) -> TensorType:
        """The type of an expression that is being built."""
        return self.scope.typed(expr)

    def value_of(self, expr: Expr) -> Value:
        """An expression under construction as a value."""
        return Value(self.typed(expr), expr=expr)

    def given(self, expr: Expr) -> Value:
        """An expression under construction as a value that further ones share."""
        spanned = self.scope.spanned(expr)
        return Value(self.scope.typed(spanned), expr=spanned)

    def wants(self, index: int) -> bool:
        """Whether an output is used by anyone; one that is absent, "", is not, though absent inputs
        are called the same."""
        name = self.output_names[index] if index < len(self.output_names) else ""
        return bool(name) and name in self.scope.used


class AttributeNode(Node):
    """A node of TensorFlow or TensorFlow Lite, whose attributes have the same names, as TensorFlow
    writes them: "keep_dims". Readers give the default where a node does not say it.
    """

    def flag(self, name: str) -> bool:
        """Return a truth value; False where it is not given."""
        raise NotImplementedError

    def number(self, name: str, default: int = 0) -> int:
        """Return an integer."""
        raise NotImplementedError

    def dtype_of(self, name: str, default: str = "float32") -> str:
        """Return a dtype. Raises Unsupported for one of no tensor."""
        raise NotImplementedError

    def of_input(self, index: int) -> str:
        """Return " of <tensor>" for messages; "" where inputs have no names."""
        return ""
