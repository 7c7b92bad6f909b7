"""Higher-order operators cond, while_loop, scan and map."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from ekiden.frontend.common.conditional import emit_if
from ekiden.frontend.common.loop import Iteration, Loop, stack_slices
from ekiden.frontend.common.value import Value, constant_value, known_value
from ekiden.frontend.torch.node import ConverterRow, FxNode, Operand
from ekiden.ir.prim import PrimExpr
from ekiden.relay import op

if TYPE_CHECKING:
    from ekiden.frontend.torch.graph import FxImporter

SubgraphResults = list[Value]


def _as_tensor_value(node: FxNode, operand: object) -> Value:
    """Return an operand as a value; a size becomes a tensor of rank 0."""
    if isinstance(operand, Value):
        return operand
    if isinstance(operand, PrimExpr):
        return known_value(np.array(operand, object), "int64")
    return constant_value(np.asarray(operand))


def _import_subgraph(
    node: FxNode, module: torch.fx.GraphModule, inputs: Sequence[object]
) -> SubgraphResults:
    """Import a subgraph of the node for these inputs; return its outputs."""
    inner = cast("FxImporter", node.graph).make_subgraph_importer(module)
    return [_as_tensor_value(node, output) for output in inner.import_graph(inputs)]


def _cond(
    node: FxNode, condition: Operand, yes: torch.fx.GraphModule, no: torch.fx.GraphModule,
    operands: Sequence[object] = (),
) -> SubgraphResults:  # fmt: skip
    runs = [partial(_import_subgraph, node, branch, operands) for branch in (yes, no)]
    return emit_if(
        node, _as_tensor_value(node, condition), runs, ("the true branch", "the false branch")
    )


def _while_loop(
    node: FxNode, test: torch.fx.GraphModule, body: torch.fx.GraphModule,
    carried: Sequence[object], extra: Sequence[object] = (),
) -> SubgraphResults:  # fmt: skip
    start = [_as_tensor_value(node, operand) for operand in carried]
    names = [f"carried{i}" for i in range(len(start))]
    (go,) = _import_subgraph(node, test, [*start, *extra])

    def loop_body(index: Value, condition: Value, values: Sequence[Value]) -> Iteration:
        """Import one iteration: the body, then the loop condition on its results."""
        carried_out = _import_subgraph(node, body, [*values, *extra])
        (again,) = _import_subgraph(node, test, [*carried_out, *extra])
        return Iteration(again, carried_out)

    # A loop whose test is false for constant operands never runs: no loop is emitted.
    if go.array is not None and not go.array.item():
        return start
    last, _, _ = Loop(node, names, start, None, go, loop_body).build()
    return last


def _scan(
    node: FxNode, body: torch.fx.GraphModule, carried: Sequence[object], xs: Sequence[Value],
    additional: Sequence[object] = (),
) -> SubgraphResults:  # fmt: skip
    """Convert scan along the first axis of all `xs`; results beyond the carried ones are
    stacked.
    """
    start = [_as_tensor_value(node, operand) for operand in carried]
    names = [f"carried{i}" for i in range(len(start))]
    # All scanned tensors have the same number of steps along axis 0.
    extent = xs[0].type.shape[0]
    node.scope.require_equal_dims([extent] * (len(xs) - 1), [x.type.shape[0] for x in xs[1:]])
    limit = node.scope.attach_span(node.scope.emit_dim(extent))

    def scan_body(index: Value, go: Value, values: Sequence[Value]) -> Iteration:
        """Import one iteration, (carried values, slices to stack), on row `index` of each
        of `xs`.
        """
        position = node.scope.expr(index)
        rows = []
        for sequence in xs:
            row = node.scope.attach_span(op.take(node.to_expr(sequence), position, axis=0))
            rows.append(node.as_value(row))
        outputs = _import_subgraph(node, body, [*values, *rows, *additional])
        return Iteration(go, outputs[: len(start)], outputs[len(start) :])

    last, pieces, _ = Loop(node, names, start, limit, None, scan_body).build()
    stacked_results = [
        stack_slices(node.scope, p, f"stacked{i}", extent) for i, p in enumerate(pieces)
    ]
    return [*last, *stacked_results]


def _map(
    node: FxNode, body: torch.fx.GraphModule, xs: Sequence[Value], additional: Sequence[object] = ()
) -> SubgraphResults:
    return _scan(node, body, (), xs, additional)


# fmt: off
ROWS: tuple[ConverterRow, ...] = (
    ("higher_order::cond", _cond),
    ("higher_order::while_loop", _while_loop),
    ("higher_order::scan", _scan),
    ("higher_order::map_impl", _map),
)
# fmt: on
