"""Control flow: while, if and case as Relay functions and conditionals."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from jaxlib.mlir import ir

from ekiden.frontend.common.conditional import emit_if, emit_switch
from ekiden.frontend.common.loop import Iteration, Loop
from ekiden.frontend.common.value import Value
from ekiden.frontend.jax.converters.reduction_bodies import block_operations
from ekiden.frontend.jax.node import (
    ImportedValues,
    StablehloNode,
    StablehloRow,
    custom_complex_rule,
    flatten_parts,
    reassemble_complex,
)
from ekiden.relay import op
from ekiden.relay.expr import Expr

MAX_UNROLLED_OPERATIONS = 256
"""The most operations that a loop of a few known turns is written out to."""


def _while(node: StablehloNode) -> ImportedValues:
    test, body = node.region_block(0), node.region_block(1)
    start = flatten_parts(node.whole)
    trip_count = _trip_count(node, test, body)
    # Short loops are unrolled, as constant indices fold; the limit bounds the code size.
    if (
        trip_count is not None
        and trip_count * _count_operations(node, body) <= MAX_UNROLLED_OPERATIONS
    ):
        for _ in range(trip_count):
            start = node.import_block_by_parts(body, start)
        return reassemble_complex(node.operation.results, start)
    names = [f"carried{i}" for i in range(len(start))]
    (go,) = node.import_block_by_parts(test, start)
    # A condition that is false at once runs no iteration, so the body need not be importable.
    if go.array is not None and not go.array.item():
        return reassemble_complex(node.operation.results, start)

    def loop_body(index: Value, condition: Value, values: Sequence[Value]) -> Iteration:
        """Import one iteration: the body, then the loop condition on its results."""
        next_values = node.import_block_by_parts(body, list(values))
        (again,) = node.import_block_by_parts(test, next_values)
        return Iteration(again, next_values)

    last, _, _ = Loop(node, names, start, None, go, loop_body).build()
    return reassemble_complex(node.operation.results, last)


def _trip_count(node: StablehloNode, test: ir.Block, body: ir.Block) -> int | None:
    """Return the trip count of a loop that counts by 1 between two constants; None for any
    other.
    """
    *test_operations, end = block_operations(test)
    compared = [o for o in test_operations if o.name == "stablehlo.compare"]
    if len(compared) != 1 or end.operands[0] != compared[0].results[0]:
        return None
    if "LT" not in str(compared[0].attributes["comparison_direction"]):
        return None
    counter, limit = compared[0].operands
    indices = [i for i, a in enumerate(test.arguments) if a == counter]
    inside = {r: o for o in test_operations for r in o.results}
    owner = inside.get(limit)
    bound = _splat_int(owner) if owner is not None else _constant_int(node.graph.real_value(limit))
    if len(indices) != 1 or bound is None or not _is_unit_increment(node, body, indices[0]):
        return None
    first = _constant_int(node.value(indices[0]))
    return None if first is None else max(int(bound) - int(first), 0)


def _constant_int(value: Value | None) -> int | None:
    if value is None or value.array is None or value.array.size != 1:
        return None
    return int(value.array.item())


def _splat_int(operation: ir.Operation | None) -> int | None:
    """Return the number of a splat constant; None for other operations."""
    if operation is None or operation.name != "stablehlo.constant":
        return None
    attribute = operation.attributes["value"]
    return int(np.array(attribute).item()) if attribute.is_splat else None


def _is_unit_increment(node: StablehloNode, body: ir.Block, at: int) -> bool:
    """Return whether a loop body adds 1 to its argument."""
    *body_operations, end = block_operations(body)
    added = next(
        (o for o in body_operations if o.results and o.results[0] == end.operands[at]), None
    )
    if added is None or added.name != "stablehlo.add" or added.operands[0] != body.arguments[at]:
        return False
    inside = {r: o for o in body_operations for r in o.results}
    one = inside.get(added.operands[1])
    if one is not None:
        return _splat_int(one) == 1
    return _constant_int(node.graph.real_value(added.operands[1])) == 1


def _count_operations(node: StablehloNode, block: ir.Block) -> int:
    """Count the operations of a block and of the functions it calls, up to the unrolling limit."""
    total, waiting = 0, [block]
    while waiting and total <= MAX_UNROLLED_OPERATIONS:
        for operation in block_operations(waiting.pop()):
            total += 1
            waiting += [r.blocks[0] for r in operation.regions if len(r.blocks)]
            if operation.name == "func.call":
                waiting.append(node.graph.function_body(operation.attributes["callee"].value))
    return total


def _if(node: StablehloNode) -> ImportedValues:
    runs = [partial(node.import_block_by_parts, node.region_block(i), []) for i in (0, 1)]
    if node.rank(0):  # in a body that is run on tensors
        return _select_elementwise(node, node.expr(0), [run() for run in runs])
    results = emit_if(node, node.value(0), runs, ("the true branch", "the false branch"))
    return reassemble_complex(node.operation.results, results)


def _select_elementwise(
    node: StablehloNode, test: Expr, sides: Sequence[Sequence[Value]]
) -> ImportedValues:
    """Select between the results of both branches elementwise."""
    pairs = zip(*([node.scope.expr(v) for v in side] for side in sides), strict=True)
    # Inside a body evaluated on tensors, elements take different branches; both are pure.
    chosen = [
        node.bind_shared(op.where(test, true_value, false_value))
        for true_value, false_value in pairs
    ]
    return reassemble_complex(node.operation.results, chosen)


def _case(node: StablehloNode) -> ImportedValues:
    """Convert case; an index out of range selects the last branch (StableHLO)."""
    count = len(node.operation.regions)
    runs = [
        partial(node.import_block_by_parts, node.region_block(position), [])
        for position in range(count)
    ]
    return reassemble_complex(node.operation.results, emit_switch(node, node.value(0), runs))


# fmt: off
ROWS: tuple[StablehloRow, ...] = (
    StablehloRow("stablehlo.while", _while, make_complex_rule=custom_complex_rule(_while)),
    StablehloRow("stablehlo.if",    _if,    make_complex_rule=custom_complex_rule(_if)),
    StablehloRow("stablehlo.case",  _case,  make_complex_rule=custom_complex_rule(_case)),
)
# fmt: on
