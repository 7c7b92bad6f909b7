"""Reduction bodies: pattern matching of single-operator bodies, and evaluation of arbitrary ones on
whole tensors.

A body maps scalars to scalars. Its operations are elementwise, so that it also computes on tensors
of one shape: reductions without an operator of their own are built from that.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir

from ekiden.frontend.common.complex_arithmetic import ComplexValue
from ekiden.frontend.common.value import Value
from ekiden.frontend.jax.node import (
    ImportedValues,
    StablehloNode,
    StablehloRow,
    custom_complex_rule,
)
from ekiden.relay import op
from ekiden.topi.dimensions import to_attr_dims

REDUCER_KINDS = {
    "stablehlo.add": "add", "stablehlo.multiply": "multiply", "stablehlo.maximum": "maximum",
    "stablehlo.minimum": "minimum", "stablehlo.and": "and", "stablehlo.or": "or",
}  # fmt: skip
"""Operation -> what a body of it alone is called."""


def block_operations(block: ir.Block) -> list[ir.Operation]:
    """Return the operations of a block, terminator last."""
    return [operation.operation for operation in block.operations]


def match_reducer(node: StablehloNode, block: ir.Block) -> str:
    """Match a body of two arguments; return a name of REDUCER_KINDS, "first" or "second", or ""
    where nothing matches.

    Of Booleans, sums and maxima are "or", products and minima "and".
    """
    *body_operations, end = block_operations(block)
    if len(block.arguments) != 2 or len(end.operands) != 1:
        return ""
    (result,) = end.operands
    names = ("first", "second")
    for name, argument in zip(names, block.arguments, strict=True):
        if result == argument:
            return name
    if not body_operations or result != body_operations[-1].results[0]:
        return ""
    # A body may be a call of a function that holds the operation.
    if len(body_operations) == 1 and body_operations[0].name == "func.call":
        return match_reducer(
            node, node.graph.function_body(body_operations[0].attributes["callee"].value)
        )
    # All reducers are commutative, so the order of the arguments does not matter.
    if len(body_operations) > 1 or set(body_operations[0].operands) != set(block.arguments):
        return ""
    kind = REDUCER_KINDS.get(body_operations[0].name, "")
    if str(ir.RankedTensorType(block.arguments[0].type).element_type) == "i1":
        # On i1 StableHLO's add is or and multiply is and.
        return {"add": "or", "maximum": "or", "multiply": "and", "minimum": "and"}.get(kind, kind)
    # On integers, `and` and `or` are bitwise.
    return kind if kind not in ("and", "or") else f"bitwise_{kind}"


def canonical_body_text(block: ir.Block) -> str:
    """Return a canonical text of a body, with numbered arguments and results, to compare with known
    bodies.

    For example "compare LT a0 a2; select v0 a0 a2; return v1".
    """
    names = {a: f"a{i}" for i, a in enumerate(block.arguments)}
    lines = []
    for operation in block_operations(block):
        words = [operation.name.rpartition(".")[2]]
        if operation.name == "stablehlo.compare":
            words.append(compare_direction(operation))
        lines.append(" ".join([*words, *(names.get(o, "?") for o in operation.operands)]))
        names.update({r: f"v{len(lines) - 1}" for r in operation.results})
    return "; ".join(lines)


def compare_direction(comparison: ir.Operation) -> str:
    """Return the direction of a comparison, such as "LT"."""
    return str(comparison.attributes["comparison_direction"]).rstrip(">").rpartition(" ")[2]


def is_total_order(comparison: ir.Operation) -> bool:
    """Return whether a float comparison uses the IEEE 754 total order (NaN and signed zeros
    included).
    """
    attributes = comparison.attributes
    return "compare_type" in attributes and "TOTALORDER" in str(attributes["compare_type"])


def apply_body(
    node: StablehloNode,
    block: ir.Block,
    first: Sequence[Value | ComplexValue],
    second: Sequence[Value | ComplexValue],
) -> ImportedValues:
    """Evaluate a scalar body on whole tensors, elementwise."""
    shape = to_attr_dims(
        (first[0].real if isinstance(first[0], ComplexValue) else first[0]).type.shape
    )

    def broadcast_result(value: Value | ComplexValue) -> Value | ComplexValue:
        """Broadcast a result to the shape of the elements, if it is a scalar of them."""
        real = value.real if isinstance(value, ComplexValue) else value
        if not shape or len(real.type.shape) == len(shape):
            return value
        return node.map_parts(value, lambda expr: op.broadcast_to(expr, shape))

    return [broadcast_result(value) for value in node.graph.import_block(block, [*first, *second])]


def apply_real_body(
    node: StablehloNode,
    block: ir.Block,
    first: Sequence[Value | ComplexValue],
    second: Sequence[Value | ComplexValue],
) -> list[Value]:
    """Evaluate a body elementwise; reject one that returns complex numbers."""
    results = apply_body(node, block, first, second)
    real = [value for value in results if isinstance(value, Value)]
    if len(real) < len(results):
        node.reject("its body gives complex numbers")
    return real


def _map(node: StablehloNode) -> ImportedValues:
    """Convert map: apply a body to each element of tensors of one shape."""
    return apply_body(node, node.region_block(), node.whole, [])


ROWS: tuple[StablehloRow, ...] = (
    StablehloRow("stablehlo.map", _map, make_complex_rule=custom_complex_rule(_map)),
)
