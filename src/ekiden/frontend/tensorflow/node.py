"""A node of a graph as converters see it, and the rows that they stand in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ekiden.frontend.common import node as common
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.value import Value
from ekiden.frontend.tensorflow.load import Proto, dims_of, dtype_name
from ekiden.ir.op import Array
from ekiden.runtime.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from ekiden.frontend.tensorflow.graph import Graph


class Node(common.AttributeNode):
    """What a converter is given. graph: where the node stands."""

    def __init__(
        self, proto: Proto, inputs: Sequence[Value | None], graph: Graph, outputs: Sequence[str]
    ) -> None:
        super().__init__(proto.name, inputs, graph.shared.scope, outputs)
        self.proto, self.graph, self.op = proto, graph, str(proto.op)

    def has(self, name: str) -> bool:
        """Whether an attribute is given."""
        return name in self.proto.attr

    def flag(self, name: str) -> bool:
        """A truth value; False where it is not given."""
        return bool(self.proto.attr[name].b) if self.has(name) else False

    def number(self, name: str, default: int = 0) -> int:
        """An integer."""
        return int(self.proto.attr[name].i) if self.has(name) else default

    def real(self, name: str, default: float = 0.0) -> float:
        """A float."""
        return float(self.proto.attr[name].f) if self.has(name) else default

    def text(self, name: str, default: str = "") -> str:
        """A string."""
        return self.proto.attr[name].s.decode() if self.has(name) else default

    def ints(self, name: str) -> tuple[int, ...]:
        """A list of integers."""
        return tuple(int(i) for i in self.proto.attr[name].list.i) if self.has(name) else ()

    def reals(self, name: str) -> tuple[float, ...]:
        """A list of floats."""
        return tuple(float(f) for f in self.proto.attr[name].list.f) if self.has(name) else ()

    def dtype_of(self, name: str, default: str = "float32") -> str:
        """A dtype. Raises Unsupported for one of no tensor."""
        if not self.has(name):
            return default
        found = dtype_name(self.proto.attr[name].type)
        if found in ("string", "resource", "variant", "complex64", "complex128"):
            self.unsupported(f"its {name!r} is {found}")
        return found

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        """A shape; None for any."""
        return dims_of(self.proto.attr[name].shape) if self.has(name) else None

    def function(self, name: str) -> str:
        """The name of a function of the library."""
        return str(self.proto.attr[name].func.name)

    def functions(self, name: str) -> list[str]:
        """The names of several."""
        return [str(f.name) for f in self.proto.attr[name].list.func]


Converter: TypeAlias = Callable[[Node], Result]
Evaluator: TypeAlias = Callable[[Node, Sequence[Array]], Array | None]
"""The elements of the output from those of the inputs, numbers or expressions of dimensions (see
ekiden.frontend.common.arithmetic); None to leave it to the converter."""


@dataclass(frozen=True, slots=True)
class Row:
    """An operator of the table."""

    op: str
    convert: Converter
    rule: Evaluator | None = None
    is_predicate: bool = False
    """Whether it gives truth values."""
    places: bool = False
    """Whether it puts its outputs into the graph itself: not all of them are there."""
