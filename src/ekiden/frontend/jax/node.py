"""StableHLO operation context of converters, and the entries of the converter table."""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from jaxlib.mlir import ir

from ekiden.frontend.common import node as common
from ekiden.frontend.common.complex_arithmetic import ComplexValue
from ekiden.frontend.common.constant_folding import Rule
from ekiden.frontend.common.dft import ComplexParts
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.scope import Scope
from ekiden.frontend.common.value import Value
from ekiden.frontend.jax.dtype import (
    decode_constant,
    element_bits,
    is_complex,
    part_dtype_of,
    static_extents,
)
from ekiden.relay import op
from ekiden.relay.expr import Call, Expr, const
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.dimensions import Dim, as_dim, known_int, to_attr_dims

if TYPE_CHECKING:
    from ekiden.frontend.jax.graph import StablehloImporter


def describe_operation(operation: ir.Operation, around: str = "") -> str:
    """Return an operation's name with its source line, such as `stablehlo.tanh
    (model.py:12: ...)`.
    """
    source_line = user_source_line(str(operation.location)) or around
    return f"{operation.name} ({source_line})" if source_line else str(operation.name)


_FRAME_PATTERN = re.compile(r'"([^"]+)":(\d+):\d+')
_SITE_PACKAGES = f"{os.sep}site-packages{os.sep}"


def user_source_line(location: str) -> str:
    """Return the innermost source line outside installed packages, as `model.py:12: y =
    jnp.tanh(x)`; "" without one.
    """
    frames = _FRAME_PATTERN.findall(location)
    user_frames = [f for f in frames if _SITE_PACKAGES not in f[0]] or frames
    if not user_frames:
        return ""
    file, line = user_frames[0]
    code = linecache.getline(file, int(line)).strip()
    return f"{os.path.basename(file)}:{line}" + (f": {code}" if code else "")


class StablehloNode(common.Node):
    """StableHLO operation in the form that converters receive."""

    def __init__(
        self,
        operation: ir.Operation,
        inputs: Sequence[Any],
        scope: Scope,
        output_names: Sequence[str],
        graph: StablehloImporter,
        name: str = "",
    ) -> None:
        """Initialize the node; of complex inputs `inputs` has the real part, of tuples None, and
        `whole` has all.
        """
        plain = [
            v.real if isinstance(v, ComplexValue) else None if isinstance(v, tuple) else v
            for v in inputs
        ]
        super().__init__(name or describe_operation(operation), plain, scope, output_names)
        self.whole = inputs
        self.operation, self.graph = operation, graph
        self.composite: Mapping[str, Any] = {}
        """The attributes of a composite, where the node is one whose name has a row."""

    def with_inputs(self, inputs: Sequence[Value | None]) -> Self:
        """Return a copy of the node with other inputs, all real."""
        copied = super().with_inputs(inputs)
        copied.whole = copied.inputs
        return copied

    # Attributes.

    def has_attribute(self, name: str) -> bool:
        """Return whether the operation has an attribute."""
        return name in self.operation.attributes

    def attribute(self, name: str) -> Any:  # noqa: ANN401 - whatever MLIR has
        """Return a required attribute. Raises Unsupported if it is missing."""
        if not self.has_attribute(name):
            self.reject(f"the attribute {name!r} is missing")
        return self.operation.attributes[name]

    def int_attribute(self, name: str, default: int = 0) -> int:
        """Return an integer attribute."""
        return int(self.attribute(name).value) if self.has_attribute(name) else default

    def bool_attribute(self, name: str) -> bool:
        """Return a Boolean attribute; absent ones are false."""
        return self.has_attribute(name) and bool(self.attribute(name).value)

    def string_attribute(self, name: str) -> str:
        """Return a string or symbol attribute; "" for an absent one."""
        return str(self.attribute(name).value) if self.has_attribute(name) else ""

    def int_array_attribute(self, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
        """Return an integer array attribute."""
        if not self.has_attribute(name):
            return tuple(default)
        attribute = self.attribute(name)
        elements = (
            decode_constant(attribute).ravel()
            if isinstance(attribute, ir.DenseElementsAttr)
            else attribute
        )
        return tuple(int(v) for v in elements)

    def enum_keyword(self, name: str) -> str:
        """Return the keyword of an enum attribute, such as "GE" of `#stablehlo<comparison_direction
        GE>`.
        """
        return (
            str(self.attribute(name)).rstrip(">").rpartition(" ")[2]
            if self.has_attribute(name)
            else ""
        )

    # Outputs, as they are declared.

    def out_dtype(self, index: int = 0) -> str:
        """Return the dtype of an output; of complex numbers that of their parts."""
        return part_dtype_of(self.operation.results[index].type)

    def static_output_extents(self, index: int = 0) -> list[int | None]:
        """Return the extents of an output, None for symbolic ones."""
        return static_extents(self.operation.results[index].type)

    def bits(self, index: int) -> int:
        """Return the width in bits of an input's elements; of complex numbers of a part."""
        return element_bits(self.operation.operands[index].type)

    def out_bits(self, index: int = 0) -> int:
        """Return the width in bits of an output's elements; of complex numbers of a part."""
        return element_bits(self.operation.results[index].type)

    # Complex numbers.

    def part_dtype(self, index: int) -> str:
        """Return the dtype of an input; of complex numbers that of their parts."""
        return part_dtype_of(self.operation.operands[index].type)

    def is_complex_out(self, index: int = 0) -> bool:
        """Return whether an output is complex."""
        return is_complex(self.operation.results[index].type)

    def part(self, index: int, which: int) -> Value:
        """Return the real (0) or imaginary (1) part of an input; a real input is its own part."""
        operand = self.whole[index]
        if isinstance(operand, ComplexValue):
            return (operand.real, operand.imaginary)[which]
        return self.value(index)

    def parts(self, index: int) -> ComplexParts:
        """Return the real and imaginary part of an input; a real input has imaginary part 0."""
        real, imaginary = (self.scope.expr(self.part(index, which)) for which in range(2))
        is_pair = isinstance(self.whole[index], ComplexValue)
        return real, imaginary if is_pair else op.zeros_like(real)

    # Regions.

    def region_block(self, index: int = 0) -> ir.Block:
        """Return the block of a region, or of the function that is called in its place."""
        regions = self.operation.regions
        if len(regions) > index and len(regions[index].blocks):
            return regions[index].blocks[0]
        named = self.attribute("called_computations")[index].value
        return self.graph.function_body(named)

    def import_block(self, block: ir.Block, inputs: Sequence[Value]) -> list[Value]:
        """Import a block for these inputs; return its results."""
        return self.graph.import_real_block(block, inputs)

    def import_block_by_parts(self, block: ir.Block, inputs: Sequence[Value]) -> list[Value]:
        """Import a block with complex inputs and results flattened to their parts."""
        return flatten_parts(
            self.graph.import_block(block, reassemble_complex(block.arguments, inputs))
        )

    def emit_once(self, expr: Expr) -> Expr:
        """Bind an expression to a variable, so that it is computed once for all its uses."""
        return self.scope.expr(self.bind_shared(expr))

    def map_parts(
        self, value: Value | ComplexValue, function: Callable[[Expr], Expr]
    ) -> Value | ComplexValue:
        """Apply a function to a tensor; to a complex one part by part."""
        if isinstance(value, ComplexValue):
            real, imaginary = (
                self.bind_shared(function(self.scope.expr(v)))
                for v in (value.real, value.imaginary)
            )
            return ComplexValue(real, imaginary)
        return self.bind_shared(function(self.scope.expr(value)))

    # Expressions.

    def sizes(self, index: int) -> tuple[Dim, ...]:
        """Return an integer input as dimensions."""
        return self.dims(index, "sizes")

    def signed_dims(self, index: int) -> list[Dim]:
        """Return an input that must follow from shapes as dimensions, which may be negative."""
        operand = self.value(index)
        if not operand.is_known:
            self.reject_dynamic_input(index, "padding must follow from shapes")
        if operand.array is not None:
            return [int(number) for number in operand.array.ravel()]
        return [to_attr_dims((as_dim(element),))[0] for element in operand.known_elements.ravel()]

    def static_dims(self, dims: Sequence[Dim], what: str) -> tuple[int, ...]:
        """Return dimensions as numbers; reject symbolic ones."""
        extents = [d if isinstance(d, int) else known_int(d) for d in dims]
        if None in extents:
            self.reject(f"{what} must have constant extents")
        return tuple(d for d in extents if d is not None)

    def broadcast_source(self, index: int) -> Expr:
        """Return an input, or the source of its broadcast for operators that broadcast
        themselves.
        """
        value = self.value(index)
        array = value.array
        # A stride-0 array is a splat: one number broadcasts as well and takes no memory.
        if array is not None and array.size > 1 and not any(array.strides):
            return const(array.flat[0])
        expr = self.expr(index)
        if isinstance(expr, Call) and expr.op is _BROADCAST_OP:
            return expr.args[0]
        return expr


def flatten_parts(values: Sequence[Value | ComplexValue]) -> list[Value]:
    """Flatten values to real tensors: both parts of complex ones."""
    return [
        component
        for value in values
        for component in (
            (value.real, value.imaginary) if isinstance(value, ComplexValue) else (value,)
        )
    ]


def reassemble_complex(kinds: Sequence[ir.Value], components: Sequence[Value]) -> ImportedValues:
    """Reassemble real and complex values of the given types from their flattened parts."""
    remaining = iter(components)
    return [
        ComplexValue(next(remaining), next(remaining)) if is_complex(kind.type) else next(remaining)
        for kind in kinds
    ]


_BROADCAST_OP = op.get("broadcast_to")

ImportedValues: TypeAlias = list[Value | ComplexValue]
"""What a function gives."""
Converter: TypeAlias = Callable[[StablehloNode], "Result | ImportedValues"]
ComplexPair: TypeAlias = tuple[Expr, Expr]
"""The two parts of what is complex."""
ComplexPairRule: TypeAlias = Callable[[StablehloNode], ComplexPair]
ComplexRule: TypeAlias = Callable[[StablehloNode], "ComplexPair | Result | ImportedValues"]


@dataclass(frozen=True, slots=True)
class StablehloRow:
    """Converter table entry: an MLIR operation, its converter, and its rules for known and complex
    inputs.
    """

    name: str
    """With its dialect: "stablehlo.add"."""
    convert: Converter
    rule: Callable[[StablehloNode], Rule] | None = None
    """What it gives of inputs whose elements are known, numbers or sizes."""
    is_view: bool = False
    """Whether it copies no elements."""
    make_complex_rule: Callable[[Converter], ComplexRule] | None = None
    """From its converter to what it does to complex numbers, or to get them; None where it takes
    none.
    """


def custom_complex_rule(rule: ComplexRule) -> Callable[[Converter], ComplexRule]:
    """Return a `make_complex_rule` that replaces the real converter by a separate rule."""
    return lambda convert: rule


def per_part_rule(convert: Converter) -> ComplexPairRule:
    """Return the complex rule that applies the converter to each part, for data movement
    and sums.
    """

    def rule(node: StablehloNode) -> ComplexPair:
        """Convert the real and the imaginary parts of all inputs."""
        component_results = []
        for which in range(2):
            inputs = [node.part(i, which) for i in range(len(node.whole))]
            converted = convert(node.with_inputs(inputs))
            output = converted[0] if isinstance(converted, Sequence) else converted
            component_results.append(
                node.scope.expr(output) if isinstance(output, Value) else output
            )
        real, imaginary = component_results
        assert isinstance(real, Expr) and isinstance(imaginary, Expr), "it gives one tensor"
        return real, imaginary

    return rule
