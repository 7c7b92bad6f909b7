"""GraphDef node context of converters, and the entries of the converter table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ekiden.frontend.common import node as common
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.value import Value
from ekiden.frontend.tensorflow.load import Proto, decode_shape, dtype_name
from ekiden.ir.op import Array
from ekiden.runtime.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from ekiden.frontend.tensorflow.graph import GraphImporter


class TensorflowNode(common.AttributeNode):
    """GraphDef node in the form that converters receive; `graph` is its importer."""

    def __init__(
        self,
        proto: Proto,
        inputs: Sequence[Value | None],
        graph: GraphImporter,
        outputs: Sequence[str],
    ) -> None:
        super().__init__(proto.name, inputs, graph.shared.scope, outputs)
        self.proto, self.graph, self.op = proto, graph, str(proto.op)

    def has_attribute(self, name: str) -> bool:
        """Return whether an attribute is set."""
        return name in self.proto.attr

    def bool_attribute(self, name: str) -> bool:
        """Return a bool attribute; False if it is absent."""
        return bool(self.proto.attr[name].b) if self.has_attribute(name) else False

    def int_attribute(self, name: str, default: int = 0) -> int:
        """Return an integer attribute."""
        return int(self.proto.attr[name].i) if self.has_attribute(name) else default

    def float_attribute(self, name: str, default: float = 0.0) -> float:
        """Return a float attribute."""
        return float(self.proto.attr[name].f) if self.has_attribute(name) else default

    def string_attribute(self, name: str, default: str = "") -> str:
        """Return a string attribute."""
        return self.proto.attr[name].s.decode() if self.has_attribute(name) else default

    def int_list_attribute(self, name: str) -> tuple[int, ...]:
        """Return an integer list attribute."""
        return (
            tuple(int(i) for i in self.proto.attr[name].list.i) if self.has_attribute(name) else ()
        )

    def float_list_attribute(self, name: str) -> tuple[float, ...]:
        """Return a float list attribute."""
        return (
            tuple(float(f) for f in self.proto.attr[name].list.f)
            if self.has_attribute(name)
            else ()
        )

    def dtype_attribute(self, name: str, default: str = "float32") -> str:
        """Return a dtype attribute. Raises Unsupported for a type without tensors here."""
        if not self.has_attribute(name):
            return default
        dtype = dtype_name(self.proto.attr[name].type)
        if dtype in ("string", "resource", "variant", "complex64", "complex128"):
            self.reject(f"its {name!r} is {dtype}")
        return dtype

    def shape_attribute(self, name: str) -> tuple[int, ...] | None:
        """Return a shape attribute; None for an unknown rank."""
        return decode_shape(self.proto.attr[name].shape) if self.has_attribute(name) else None

    def function_attribute(self, name: str) -> str:
        """Return the library function that an attribute names."""
        return str(self.proto.attr[name].func.name)

    def function_list_attribute(self, name: str) -> list[str]:
        """Return the library functions that a list attribute names."""
        return [str(f.name) for f in self.proto.attr[name].list.func]


Converter: TypeAlias = Callable[[TensorflowNode], Result]
Evaluator: TypeAlias = Callable[[TensorflowNode, Sequence[Array]], Array | None]
"""The elements of the output from those of the inputs, numbers or expressions of dimensions (see
ekiden.frontend.common.constant_folding); None to leave it to the converter."""


@dataclass(frozen=True, slots=True)
class TensorflowRow:
    """Converter table entry: operator, converter, evaluation rule."""

    op_type: str
    convert: Converter
    rule: Evaluator | None = None
    is_predicate: bool = False
    """Whether it gives truth values."""
    binds_outputs: bool = False
    """Whether it puts its outputs into the graph itself: not all of them are there."""
