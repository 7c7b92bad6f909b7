"""Reduction bodies: recognition of single-operator bodies, and evaluation of bodies on whole
tensors.

A body maps scalars to scalars. Its operations are elementwise, so that it also computes on tensors
of one shape: reductions without an operator of their own are built from that.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir

from ekiden.frontend.common.complex import Complex
from ekiden.frontend.common.value import Value
from ekiden.frontend.jax.node import Many, Node, Row, own
from ekiden.relay import op
from ekiden.topi.dimensions import as_attr

KINDS = {
    "stablehlo.add": "add", "stablehlo.multiply": "multiply", "stablehlo.maximum": "maximum",
    "stablehlo.minimum": "minimum", "stablehlo.and": "and", "stablehlo.or": "or",
}  # fmt: skip
"""Operation -> what a body of it alone is called."""


def operations(block: ir.Block) -> list[ir.Operation]:
    """Return the operations of a block, the last of which is its terminator."""
    return [operation.operation for operation in block.operations]


def kind_of(node: Node, block: ir.Block) -> str:
    """Return what a body computes of its two arguments: a name of KINDS, "first", "second", or ""
    for anything else.

    Of Booleans, sums and maxima are "or", products and minima "and".
    """
    *body_operations, end = operations(block)
    if len(block.arguments) != 2 or len(end.operands) != 1:
        return ""
    (result,) = end.operands
    names = ("first", "second")
    for name, argument in zip(names, block.arguments, strict=True):
        if result == argument:
            return name
    if not body_operations or result != body_operations[-1].results[0]:
        return ""
    if len(body_operations) == 1 and body_operations[0].name == "func.call":
        return kind_of(node, node.graph.function(body_operations[0].attributes["callee"].value))
    if len(body_operations) > 1 or set(body_operations[0].operands) != set(block.arguments):
        return ""
    kind = KINDS.get(body_operations[0].name, "")
    if str(ir.RankedTensorType(block.arguments[0].type).element_type) == "i1":
        return {"add": "or", "maximum": "or", "multiply": "and", "minimum": "and"}.get(kind, kind)
    return kind if kind not in ("and", "or") else f"bitwise_{kind}"


def text_of(block: ir.Block) -> str:
    """Return a body as text: its operations with numbered arguments and results.

    For example "compare LT a0 a2; select v0 a0 a2; return v1".
    """
    names = {a: f"a{i}" for i, a in enumerate(block.arguments)}
    lines = []
    for operation in operations(block):
        words = [operation.name.rpartition(".")[2]]
        if operation.name == "stablehlo.compare":
            words.append(direction_of(operation))
        lines.append(" ".join([*words, *(names.get(o, "?") for o in operation.operands)]))
        names.update({r: f"v{len(lines) - 1}" for r in operation.results})
    return "; ".join(lines)


def direction_of(comparison: ir.Operation) -> str:
    """Return the direction of a comparison, such as "LT"."""
    return str(comparison.attributes["comparison_direction"]).rstrip(">").rpartition(" ")[2]


def is_total_order(comparison: ir.Operation) -> bool:
    """Return whether a float comparison is in total order (NaN and signed zeros included); by
    default it is not.
    """
    attributes = comparison.attributes
    return "compare_type" in attributes and "TOTALORDER" in str(attributes["compare_type"])


def combined(
    node: Node,
    block: ir.Block,
    first: Sequence[Value | Complex],
    second: Sequence[Value | Complex],
) -> Many:
    """Evaluate a body on tensors; every result has the shape of the first, even where it depends on
    no argument.
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
    """Evaluate a body that returns no complex numbers. Raises Unsupported for others."""
    results = combined(node, block, first, second)
    real = [value for value in results if isinstance(value, Value)]
    if len(real) < len(results):
        node.unsupported("its body gives complex numbers")
    return real


def _map(node: Node) -> Many:
    """Convert map: apply a body to each element of tensors of one shape."""
    return combined(node, node.region(), node.whole, [])


ROWS: tuple[Row, ...] = (Row("stablehlo.map", _map, on_complex=own(_map)),)
