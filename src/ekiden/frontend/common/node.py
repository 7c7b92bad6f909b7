"""Node context of converters: inputs as values, attributes, and rejection with a reason. Frontends
add access to attributes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn, Protocol, Self, SupportsIndex, TypeAlias, overload

from ekiden.frontend.common import data_dependent_dims
from ekiden.frontend.common.scope import Scope
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value
from ekiden.ir.op import Array
from ekiden.ir.prim import PrimExpr
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Expr
from ekiden.topi.dimensions import Dim, Shape, as_dim, known_int

Result: TypeAlias = Expr | Value | Sequence[Expr | Value | None]
"""What a converter gives: an expression (its fields are the outputs where it is a tuple), a value,
or one of these for each output, None for one that is not supported.
"""


class Subgraph(Protocol):
    """Subgraph of a node: a branch, or the body of a loop."""

    @property
    def input_names(self) -> Sequence[str]:
        """Return the names of the subgraph's inputs."""

    def import_body(self, inputs: Sequence[Value]) -> list[Value]:
        """Import the subgraph's nodes for these inputs; return its outputs."""


MAX_DECLARED_ELEMENTS = 1 << 28
"""Elements of a table that is made while importing, at most."""


class TrackedInputs(list[Value | None]):
    """Inputs of a node that record which of them a converter reads."""

    def __init__(self, values: Iterable[Value | None]) -> None:
        super().__init__(values)
        self.read: set[int] = set()

    @overload
    def __getitem__(self, index: SupportsIndex) -> Value | None: ...
    @overload
    def __getitem__(self, index: slice) -> list[Value | None]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Value | list[Value | None] | None:
        """Return one input or several, and mark them as read."""
        indices = range(len(self))[index]
        # The registry rejects a node whose converter ignores a present input, instead of computing
        # something else.
        self.read.update(indices if isinstance(indices, range) else (indices,))
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[Value | None]:
        """Iterate over all inputs and mark them as read."""
        self.read.update(range(len(self)))
        return super().__iter__()

    def peek(self, index: int) -> Value | None:
        """Return an input without marking it as read; None for one that is absent."""
        return super().__getitem__(index) if index < len(self) else None

    def unused_inputs(self) -> list[int]:
        """Return the indices of the present inputs that no converter has used."""
        return [i for i in range(len(self)) if i not in self.read and self.peek(i) is not None]


class Node:
    """Node of a model graph in the form that converters receive: inputs, outputs and the import
    scope. Inputs that are absent are None.

    name: as messages have it. output_names: those of its output tensors, "" for an unused one.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[Value | None],
        scope: Scope,
        output_names: Sequence[str] = ("",),
    ) -> None:
        self.name, self.scope, self.output_names = name, scope, output_names
        self.inputs = TrackedInputs(
            None if v is None else data_dependent_dims.resolve_named_sizes(scope, v) for v in inputs
        )

    def with_inputs(self, inputs: Sequence[Value | None]) -> Self:
        """Return a copy of the node with other inputs, for converters composed of others."""
        copied = copy.copy(self)
        copied.inputs = TrackedInputs(
            None if v is None else data_dependent_dims.resolve_named_sizes(self.scope, v)
            for v in inputs
        )
        return copied

    def reject(self, reason: str) -> NoReturn:
        """Reject the node; `reason` follows its name in the error."""
        raise Unsupported(reason)

    def reject_dynamic_input(self, index: int, reason: str) -> NoReturn:
        """Reject the node because an input must be constant; the error lists the parameters that it
        depends on.
        """
        raise Unsupported(reason, self.scope.params_of(self.expr(index)))

    # Inputs.

    def optional_value(self, index: int) -> Value | None:
        """Return an input, or None if it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def peek(self, index: int) -> Value | None:
        """Return an input without marking it as read; None if it is absent."""
        return self.inputs.peek(index)

    def value(self, index: int) -> Value:
        """Return a required input. Raises Unsupported if it is missing."""
        operand = self.optional_value(index)
        return self.reject(f"input {index} is missing") if operand is None else operand

    def expr(self, index: int) -> Expr:
        """Return an input as an expression. Raises Unsupported for strings."""
        operand = self.value(index)
        if operand.is_string:
            self.reject("expected a tensor of numbers, got one of strings")
        return self.scope.expr(operand)

    def exprs(self) -> list[Expr]:
        """Return all inputs as expressions."""
        return [self.expr(i) for i in range(len(self.inputs))]

    def type(self, index: int) -> TensorType:
        """Return the type of an input."""
        return self.value(index).type

    def shape(self, index: int) -> Shape:
        """Return the shape of an input."""
        return self.type(index).shape

    def rank(self, index: int) -> int:
        """Return the rank of an input."""
        return len(self.shape(index))

    def dtype(self, index: int) -> str:
        """Return the dtype of an input."""
        return self.type(index).dtype

    def constant_array(self, index: int, what: str) -> Array:
        """Return the array of an input that must be constant; `what` names it in the error."""
        array = self.value(index).array
        return (
            self.reject_dynamic_input(index, f"{what!r} must be constant")
            if array is None
            else array
        )

    def constant_ints(self, index: int, what: str = "axes") -> tuple[int, ...]:
        """Return the integers of a constant input."""
        return tuple(int(v) for v in self.constant_array(index, what).ravel())

    def dims(self, index: int, what: str, count: int | None = None) -> tuple[Dim, ...]:
        """Return an integer input as dimensions; data-dependent elements become named dimensions.

        Where the node admits only `count` of them, a vector of unknown length is required to have
        that length.
        """
        operand = self.value(index)
        if (
            count is not None
            and len(operand.type.shape) == 1
            and known_int(operand.type.shape[0]) is None
        ):
            # The operator fixes the length of this vector: a dynamic extent can only be `count`.
            self.scope.require_equal_dims(operand.type.shape, (as_dim(count),))
            operand = self.as_value(op.reshape(self.expr(index), (count,)))
        extents = data_dependent_dims.to_named_dims(self.scope, operand)
        if extents is None:
            self.reject_dynamic_input(index, f"{what!r} must be a vector of known length")
        return extents

    def constrain_extent(self, index: int, axis: int, extent: Dim) -> None:
        """Require an axis of an input to have this extent, which may refine the model's shapes.

        A known mismatch is left to the operator, which rejects it.
        """
        shape = () if self.optional_value(index) is None else self.shape(index)
        if axis < len(shape) and (known_int(shape[axis]) is None or known_int(extent) is None):
            self.scope.require_equal_dims((shape[axis],), (as_dim(extent),))

    def partial_elements(self, index: int) -> Sequence[PrimExpr | None]:
        """Return the elements of an integer input as shape expressions, None for those that depend
        on data.
        """
        elements = data_dependent_dims.tracked_elements(self.scope, self.value(index))
        if elements is None:
            self.reject_dynamic_input(index, "expected a vector of known length")
        dims = [as_dim(e if isinstance(e, PrimExpr) else int(e)) for e in elements.ravel()]
        return [e if data_dependent_dims.is_dim(e) else None for e in dims]

    def check_declared_count(self, what: str, count: int) -> int:
        """Return a count that the model declares; reject it above MAX_DECLARED_ELEMENTS, before
        memory is allocated.

        Raises Unsupported where it is negative or beyond any model.
        """
        if not 0 <= count <= MAX_DECLARED_ELEMENTS:
            self.reject(f"{what} must be in [0, {MAX_DECLARED_ELEMENTS}], got {count}")
        return count

    def axis(self, axis: int, rank: int) -> int:
        """Normalize an axis: count negative ones from the end, and reject those out of range."""
        if not -rank <= axis < rank:
            self.reject(f"axis {axis} is out of range for rank {rank}")
        return axis + rank if axis < 0 else axis

    # Expressions under construction.

    def tensor_type_of(self, expr: Expr) -> TensorType:
        """Return the type of an expression under construction."""
        return self.scope.tensor_type_of(expr)

    def as_value(self, expr: Expr) -> Value:
        """Return an expression under construction as a value."""
        return Value(self.tensor_type_of(expr), expr=expr)

    def bind_shared(self, expr: Expr) -> Value:
        """Return an expression as a value that later expressions may share."""
        spanned = self.scope.attach_span(expr)
        return Value(self.scope.tensor_type_of(spanned), expr=spanned)

    def is_output_used(self, index: int) -> bool:
        """Return whether an output is used.

        An absent output, "", is not, though absent inputs have the same name.
        """
        name = self.output_names[index] if index < len(self.output_names) else ""
        return bool(name) and name in self.scope.used


class AttributeNode(Node):
    """Node of TensorFlow or TensorFlow Lite, whose attributes have TensorFlow's names, such as
    "keep_dims".

    Accessors return the default where the node does not state the attribute.
    """

    def bool_attribute(self, name: str) -> bool:
        """Return a Boolean attribute; False where it is absent."""
        raise NotImplementedError

    def int_attribute(self, name: str, default: int = 0) -> int:
        """Return an integer attribute."""
        raise NotImplementedError

    def dtype_attribute(self, name: str, default: str = "float32") -> str:
        """Return a dtype attribute. Raises Unsupported for one that no tensor has."""
        raise NotImplementedError

    def input_label(self, index: int) -> str:
        """Return " of <tensor>" for messages; "" where inputs have no names."""
        return ""
