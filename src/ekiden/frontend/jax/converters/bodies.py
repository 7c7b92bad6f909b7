"""What the body of a reduction computes, where it is one operator; and bodies run on tensors.

A body takes and gives scalars. Its operations are of each element, so that it computes with tensors
of one shape as well: reductions without an operator of their own are made of that.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir

from ekiden.frontend.common.value import Value
from ekiden.frontend.jax.node import Node

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


def combined(
    node: Node, block: ir.Block, first: Sequence[Value], second: Sequence[Value]
) -> list[Value]:
    """What a body gives of tensors."""
    return node.run(block, [*first, *second])
