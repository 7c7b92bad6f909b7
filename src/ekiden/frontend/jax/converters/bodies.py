"""What the body of a reduction computes, where it is one operator; and bodies run on tensors.

A body takes and gives scalars. Its operations are of each element, so that it computes with tensors
of one shape as well: reductions without an operator of their own are made of that.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir

from ekiden.frontend.common.complex import Complex
from ekiden.frontend.common.value import Value
from ekiden.frontend.jax.node import Many, Node, Row, own
from ekiden.relay import op
from ekiden.topi.shape import as_attr

KINDS = {
    "stablehlo.add": "add", "stablehlo.multiply": "multiply", "stablehlo.maximum": "maximum",
    "stablehlo.minimum": "minimum", "stablehlo.and": "and", "stablehlo.or": "or",
}  # fmt: skip
"""Operation -> what a body of it alone is called."""


def operations(block: ir.Block) -> list[ir.Operation]:
    """Those of a block, the last of which ends it."""
    return [each.operation for each in block.operations]


def kind_of(node: Node, block: ir.Block) -> str:
    """What a body computes of its two arguments: a name of KINDS, "first", "second", or "" for
    anything else. Of truth values, sums and largest ones are "or", products and smallest "and".
    """
    *made, end = operations(block)
    if len(block.arguments) != 2 or len(end.operands) != 1:
        return ""
    (result,) = end.operands
    names = ("first", "second")
    for name, argument in zip(names, block.arguments, strict=True):
        if result == argument:
            return name
    if not made or result != made[-1].results[0]:
        return ""
    if len(made) == 1 and made[0].name == "func.call":
        return kind_of(node, node.graph.function(made[0].attributes["callee"].value))
    if len(made) > 1 or set(made[0].operands) != set(block.arguments):
        return ""
    found = KINDS.get(made[0].name, "")
    if str(ir.RankedTensorType(block.arguments[0].type).element_type) == "i1":
        return {"add": "or", "maximum": "or", "multiply": "and", "minimum": "and"}.get(found, found)
    return found if found not in ("and", "or") else f"bitwise_{found}"


def text_of(block: ir.Block) -> str:
    """A body as text: operations with the arguments and earlier results that they are of, as
    "compare LT a0 a2; select v0 a0 a2; return v1".
    """
    names = {a: f"a{i}" for i, a in enumerate(block.arguments)}
    lines = []
    for each in operations(block):
        words = [each.name.rpartition(".")[2]]
        if each.name == "stablehlo.compare":
            words.append(direction_of(each))
        lines.append(" ".join([*words, *(names.get(o, "?") for o in each.operands)]))
        names.update({r: f"v{len(lines) - 1}" for r in each.results})
    return "; ".join(lines)


def direction_of(comparison: ir.Operation) -> str:
    """What a comparison asks: "LT"."""
    return str(comparison.attributes["comparison_direction"]).rstrip(">").rpartition(" ")[2]


def is_total_order(comparison: ir.Operation) -> bool:
    """Whether a comparison of floats orders NaN and the zeros too; what does not say does not."""
    attributes = comparison.attributes
    return "compare_type" in attributes and "TOTALORDER" in str(attributes["compare_type"])


def combined(
    node: Node,
    block: ir.Block,
    first: Sequence[Value | Complex],
    second: Sequence[Value | Complex],
) -> Many:
    """Return what a body gives of tensors, each in the shape of the first: also where it gives a
    number that depends on none.
    """
    shape = as_attr((first[0].real if isinstance(first[0], Complex) else first[0]).type.shape)

    def wide(value: Value | Complex) -> Value | Complex:
        real = value.real if isinstance(value, Complex) else value
        if not shape or len(real.type.shape) == len(shape):
            return value
        return node.per_part(value, lambda expr: op.broadcast_to(expr, shape))

    return [wide(value) for value in node.graph.results(block, [*first, *second])]


def combined_real(
    node: Node,
    block: ir.Block,
    first: Sequence[Value | Complex],
    second: Sequence[Value | Complex],
) -> list[Value]:
    """The same of bodies that give no complex numbers. Raises Unsupported for others."""
    found = combined(node, block, first, second)
    real = [value for value in found if isinstance(value, Value)]
    if len(real) < len(found):
        node.unsupported("its body gives complex numbers")
    return real


def _map(node: Node) -> Many:
    """Return what a body gives of each element of tensors of one shape."""
    return combined(node, node.region(), node.whole, [])


ROWS: tuple[Row, ...] = (Row("stablehlo.map", _map, on_complex=own(_map)),)
