"""An operator of a model as converters see it, and the rows that they stand in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from ekiden.frontend.common import node as common
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.scope import Scope
from ekiden.frontend.common.value import Value
from ekiden.frontend.tflite.load import Operation, Tensor
from ekiden.relay import op
from ekiden.relay.expr import Expr
from ekiden.topi.shape import known


class Quantized(Enum):
    """What a converter does with quantised tensors."""

    REFUSED = "refused"
    MOVED = "moved"
    """It moves or chooses elements: the stored numbers stand, all with one scale and zero point."""
    OWN = "own"
    """The converter looks itself."""


class Node(common.Node):
    """What a converter is given. ins, outs: the tensors as the model declares them."""

    def __init__(
        self,
        operation: Operation,
        name: str,
        inputs: Sequence[Value | None],
        scope: Scope,
        ins: Sequence[Tensor | None],
        outs: Sequence[Tensor],
    ) -> None:
        super().__init__(name, inputs, scope, [t.name for t in outs])
        self.operation, self.ins, self.outs = operation, ins, outs

    def option(self, name: str, default: int = 0) -> Any:  # noqa: ANN401 - a field of the schema
        """A field of the operator's table; the default where it has no table."""
        options = self.operation.options
        return default if options is None else getattr(options, name)()

    def extents(self, index: int, axes: Sequence[int]) -> tuple[int | None, ...]:
        """Extents of an input as numbers, None for symbolic ones."""
        shape = self.shape(index)
        return tuple(known(shape[a]) for a in axes)

    def activated(self, expr: Expr) -> Expr:
        """An expression with the operator's fused activation."""
        kind = self.option("FusedActivationFunction")
        if kind not in _ACTIVATIONS:
            self.unsupported(f"the fused activation {kind} is not supported")
        return _ACTIVATIONS[kind](expr)


_ACTIVATIONS: dict[int, Callable[[Expr], Expr]] = {
    0: lambda x: x,
    1: op.nn.relu,
    2: lambda x: op.clip(x, -1.0, 1.0),
    3: lambda x: op.clip(x, 0.0, 6.0),
    4: op.tanh,
}
"""ActivationFunctionType of the schema; SIGN_BIT has no kernel."""

Converter: TypeAlias = Callable[[Node], Result]


@dataclass(frozen=True, slots=True)
class Row:
    """An operator of the table."""

    code: str
    convert: Converter
    quantized: Quantized = Quantized.REFUSED
    data: tuple[int, ...] = (0,)
    """The inputs whose elements are moved, of those that are MOVED; () for all."""
