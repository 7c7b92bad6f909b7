"""An operation of StableHLO as converters see it, and the rows that they stand in."""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from jaxlib.mlir import ir

from ekiden.frontend.common import node as common
from ekiden.frontend.common.arithmetic import Rule
from ekiden.frontend.common.complex import Complex
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.scope import Scope
from ekiden.frontend.common.value import Value
from ekiden.frontend.common.waves import Parts
from ekiden.frontend.jax.dtype import array_of, bits_of, extents_of, is_complex, part_dtype_of
from ekiden.relay import op
from ekiden.relay.expr import Call, Expr, const
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.shape import Dim, as_attr, as_dim, known

if TYPE_CHECKING:
    from ekiden.frontend.jax.graph import Graph


def describe(operation: ir.Operation, around: str = "") -> str:
    """`stablehlo.tanh`, with the line of the user's program where it is known: its own, or that of
    the call `around` it.
    """
    place = source(str(operation.location)) or around
    return f"{operation.name} ({place})" if place else str(operation.name)


_FRAME = re.compile(r'"([^"]+)":(\d+):\d+')
_LIBRARIES = f"{os.sep}site-packages{os.sep}"


def source(location: str) -> str:
    """`model.py:12: y = jnp.tanh(x)`, the innermost line outside of installed packages; "" where
    the location names no file.
    """
    frames = _FRAME.findall(location)
    mine = [f for f in frames if _LIBRARIES not in f[0]] or frames
    if not mine:
        return ""
    file, line = mine[0]
    code = linecache.getline(file, int(line)).strip()
    return f"{os.path.basename(file)}:{line}" + (f": {code}" if code else "")


class Node(common.Node):
    """What a converter is given."""

    def __init__(
        self,
        operation: ir.Operation,
        inputs: Sequence[Any],
        scope: Scope,
        output_names: Sequence[str],
        graph: Graph,
        name: str = "",
    ) -> None:
        """Of what is complex `inputs` has the real part, of tuples None, and `whole` all."""
        plain = [
            v.real if isinstance(v, Complex) else None if isinstance(v, tuple) else v
            for v in inputs
        ]
        super().__init__(name or describe(operation), plain, scope, output_names)
        self.whole = inputs
        self.operation, self.graph = operation, graph
        self.composite: Mapping[str, Any] = {}
        """The attributes of a composite, where the node is one whose name has a row."""

    def with_inputs(self, inputs: Sequence[Value | None]) -> Self:
        """The same node of other inputs, none of which is complex."""
        made = super().with_inputs(inputs)
        made.whole = made.inputs
        return made

    # Attributes.

    def has(self, name: str) -> bool:
        """Whether the operation has an attribute."""
        return name in self.operation.attributes

    def attribute(self, name: str) -> Any:  # noqa: ANN401 - whatever MLIR has
        """An attribute that must be there."""
        if not self.has(name):
            self.unsupported(f"the attribute {name!r} is missing")
        return self.operation.attributes[name]

    def integer(self, name: str, default: int = 0) -> int:
        """An attribute that is an integer."""
        return int(self.attribute(name).value) if self.has(name) else default

    def flag(self, name: str) -> bool:
        """An attribute that is a truth value; absent ones are false."""
        return self.has(name) and bool(self.attribute(name).value)

    def text(self, name: str) -> str:
        """An attribute that is a string, or the name of a function; "" for an absent one."""
        return str(self.attribute(name).value) if self.has(name) else ""

    def ints(self, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
        """An attribute that is a list of integers."""
        if not self.has(name):
            return tuple(default)
        found = self.attribute(name)
        many = array_of(found).ravel() if isinstance(found, ir.DenseElementsAttr) else found
        return tuple(int(v) for v in many)

    def word(self, name: str) -> str:
        """An attribute that is a name of a list: `#stablehlo<comparison_direction GE>` is "GE"."""
        return str(self.attribute(name)).rstrip(">").rpartition(" ")[2] if self.has(name) else ""

    # Outputs, as they are declared.

    def out_dtype(self, index: int = 0) -> str:
        """The dtype of an output; of complex numbers that of their parts."""
        return part_dtype_of(self.operation.results[index].type)

    def out_extents(self, index: int = 0) -> list[int | None]:
        """The extents of an output, None for symbolic ones."""
        return extents_of(self.operation.results[index].type)

    def bits(self, index: int) -> int:
        """Return the width of an element of an input, of complex numbers of a part."""
        return bits_of(self.operation.operands[index].type)

    def out_bits(self, index: int = 0) -> int:
        """Return the width of an element of an output, of complex numbers of a part."""
        return bits_of(self.operation.results[index].type)

    # Complex numbers.

    def part_dtype(self, index: int) -> str:
        """Return the dtype of an input, of complex numbers that of their parts."""
        return part_dtype_of(self.operation.operands[index].type)

    def is_complex_out(self, index: int = 0) -> bool:
        """Whether an output is of complex numbers."""
        return is_complex(self.operation.results[index].type)

    def part(self, index: int, which: int) -> Value:
        """The real (0) or imaginary (1) part of an input; what is real stands for itself."""
        found = self.whole[index]
        if isinstance(found, Complex):
            return (found.real, found.imaginary)[which]
        return self.value(index)

    def parts(self, index: int) -> Parts:
        """Both parts of an input; of what is real the other is 0."""
        real, other = (self.scope.expr(self.part(index, which)) for which in range(2))
        is_pair = isinstance(self.whole[index], Complex)
        return real, other if is_pair else op.zeros_like(real)

    # Regions.

    def region(self, index: int = 0) -> ir.Block:
        """The block of a region, or of the function that stands in its place."""
        regions = self.operation.regions
        if len(regions) > index and len(regions[index].blocks):
            return regions[index].blocks[0]
        named = self.attribute("called_computations")[index].value
        return self.graph.function(named)

    def run(self, block: ir.Block, inputs: Sequence[Value]) -> list[Value]:
        """Import a block for these inputs; what it gives."""
        return self.graph.run(block, inputs)

    def run_flat(self, block: ir.Block, inputs: Sequence[Value]) -> list[Value]:
        """Import a block for inputs of which complex ones are two, their parts; return what it
        gives, in the same way.
        """
        return flat(self.graph.results(block, whole(block.arguments, inputs)))

    def shared(self, expr: Expr) -> Expr:
        """Return an expression that is computed once, however often it is read."""
        return self.scope.expr(self.given(expr))

    def per_part(self, value: Value | Complex, function: Callable[[Expr], Expr]) -> Value | Complex:
        """Return what a function gives of a tensor, of a complex one of each part."""
        if isinstance(value, Complex):
            real, imaginary = (
                self.given(function(self.scope.expr(v))) for v in (value.real, value.imaginary)
            )
            return Complex(real, imaginary)
        return self.given(function(self.scope.expr(value)))

    # Expressions.

    def sizes(self, index: int) -> tuple[Dim, ...]:
        """An input of integers as dimensions."""
        return self.dims(index, "sizes")

    def sizes_of_any_sign(self, index: int) -> list[Dim]:
        """Return the elements of an input that must follow from shapes, negative ones too."""
        given = self.value(index)
        if not given.is_known:
            self.needs(index, "padding must follow from shapes")
        if given.array is not None:
            return [int(number) for number in given.array.ravel()]
        return [as_attr((as_dim(element),))[0] for element in given.elements.ravel()]

    def static(self, dims: Sequence[Dim], what: str) -> tuple[int, ...]:
        """Extents that must be numbers."""
        found = [d if isinstance(d, int) else known(d) for d in dims]
        if None in found:
            self.unsupported(f"{what} must have constant extents")
        return tuple(d for d in found if d is not None)

    def narrow(self, index: int) -> Expr:
        """An input, or what it is a broadcast of: for operations that broadcast by themselves."""
        value = self.value(index)
        found = value.array
        if found is not None and found.size > 1 and not any(found.strides):
            return const(found.flat[0])
        expr = self.expr(index)
        if isinstance(expr, Call) and expr.op is _BROADCAST:
            return expr.args[0]
        return expr


def flat(values: Sequence[Value | Complex]) -> list[Value]:
    """Return real tensors: of complex ones both parts."""
    return [
        part
        for value in values
        for part in ((value.real, value.imaginary) if isinstance(value, Complex) else (value,))
    ]


def whole(kinds: Sequence[ir.Value], parts: Sequence[Value]) -> Many:
    """Return the tensors, as many and of the types of `kinds`, whose parts `flat` gave."""
    left = iter(parts)
    return [
        Complex(next(left), next(left)) if is_complex(kind.type) else next(left) for kind in kinds
    ]


_BROADCAST = op.get("broadcast_to")

Many: TypeAlias = list[Value | Complex]
"""What a function gives."""
Converter: TypeAlias = Callable[[Node], "Result | Many"]
Pair: TypeAlias = tuple[Expr, Expr]
"""The two parts of what is complex."""
PairRule: TypeAlias = Callable[[Node], Pair]
ComplexRule: TypeAlias = Callable[[Node], "Pair | Result | Many"]


@dataclass(frozen=True, slots=True)
class Row:
    """An operation of the table."""

    name: str
    """With its dialect: "stablehlo.add"."""
    convert: Converter
    rule: Callable[[Node], Rule] | None = None
    """What it gives of inputs whose elements are known, numbers or sizes."""
    is_view: bool = False
    """Whether it copies no elements."""
    on_complex: Callable[[Converter], ComplexRule] | None = None
    """From its converter to what it does to complex numbers, or to get them; None where it takes
    none.
    """


def own(rule: ComplexRule) -> Callable[[Converter], ComplexRule]:
    """A function of its own."""
    return lambda convert: rule


def per_part(convert: Converter) -> PairRule:
    """The same to each part: what moves elements, and sums."""

    def rule(node: Node) -> Pair:
        """(real part, imaginary part) of what the converter gives for those of all inputs."""
        found = []
        for which in range(2):
            inputs = [node.part(i, which) for i in range(len(node.whole))]
            given = convert(node.with_inputs(inputs))
            made = given[0] if isinstance(given, Sequence) else given
            found.append(node.scope.expr(made) if isinstance(made, Value) else made)
        real, imaginary = found
        assert isinstance(real, Expr) and isinstance(imaginary, Expr), "it gives one tensor"
        return real, imaginary

    return rule
