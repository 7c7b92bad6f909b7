"""ONNX control flow: If, Loop and Scan (loops: ekiden.frontend.common.loop)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ekiden.frontend.common.conditional import emit_if
from ekiden.frontend.common.loop import (
    CarriedRankChange,
    Iteration,
    Loop,
    as_scalar,
    is_constant_true,
    stack_slices,
)
from ekiden.frontend.common.rank_polymorphic_loop import build_rank_polymorphic_loop
from ekiden.frontend.common.value import Value, constant_value
from ekiden.frontend.onnx.lazy_onnx import onnx
from ekiden.frontend.onnx.node import OnnxNode, OnnxRow
from ekiden.ir.prim import IntImm, maximum
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import as_dim

BRANCH_ATTRIBUTES = ("then_branch", "else_branch")


def _if(node: OnnxNode) -> list[Value]:
    """Convert If: both branches are imported in place."""
    bodies = [node.subgraph_importer(name) for name in BRANCH_ATTRIBUTES]
    return emit_if(
        node, node.value(0), [partial(b.import_body, []) for b in bodies], BRANCH_ATTRIBUTES
    )


# Loops.


def _loop(node: OnnxNode) -> list[Value]:
    """Convert Loop: trip count, condition, carried values and stacked scan outputs."""
    body = node.subgraph_importer("body")
    (inner,) = (a.g for a in node.proto.attribute if a.name == "body")
    limit, go, start = node.optional_value(0), node.optional_value(1), node.inputs[2:]
    carried = [node.value(i) for i in range(2, 2 + len(start))]
    if len(body.input_names) != 2 + len(carried):
        node.reject(f"expected a body with {2 + len(carried)} inputs, got {len(body.input_names)}")

    def loop_body(index: Value, condition: Value, values: Sequence[Value]) -> Iteration:
        """Import one iteration: (condition, carried values, scan outputs). Raises UnsupportedError
        for a body with fewer outputs than carried values.
        """
        pair = zip(inner.input, (index, condition), strict=False)
        head = [_reshape_to_declared_rank(node, info, v) for info, v in pair]
        results = body.import_body([*head, *values])
        after = 1 + len(carried)
        if len(results) < after:
            node.reject(f"expected a body with at least {after} outputs, got {len(results)}")
        return Iteration(results[0], results[1:after], results[after:])

    # ONNX Loop: an initial condition of false runs no iteration, whatever the trip count is.
    if go is not None and go.array is not None and not is_constant_true(go):
        limit = constant_value(np.zeros((), np.int64))
    if limit is not None and limit.array is not None and limit.array.size == 1:
        limit = constant_value(limit.array.reshape(()))
    trips = None if limit is None else as_scalar(node.scope, limit)
    loop = Loop(node, body.input_names[2:], carried, trips, go, loop_body)
    try:
        last, scan_outputs, endless = loop.build()
    except CarriedRankChange as error:
        # A carried value that changes its rank has no type in a loop: known trip counts are
        # unrolled.
        written = loop.unroll()
        if written is not None:
            return _stack_iterations(node, *written)
        last, scan_outputs, endless = build_rank_polymorphic_loop(loop, error)
    length = None
    if endless and limit is not None and limit.is_known:
        (length,) = (maximum(as_dim(d), 0) for d in limit.dims())
    outputs = node.proto.output[len(carried) :]
    return last + [
        stack_slices(node.scope, p, n, length) for p, n in zip(scan_outputs, outputs, strict=False)
    ]


def _reshape_to_declared_rank(node: OnnxNode, info: onnx.ValueInfoProto, value: Value) -> Value:
    """Reshape the iteration number or condition to the rank that the body declares: 0, or 1 from
    older exporters.
    """
    stated = info.type.tensor_type
    if not stated.HasField("shape") or len(stated.shape.dim) != 1:
        return value
    if value.array is not None:
        return constant_value(value.array.reshape(1))
    return node.as_value(op.reshape(node.scope.expr(value), (1,)))


def _stack_iterations(
    node: OnnxNode, last: list[Value], iterations: list[list[Value]]
) -> list[Value]:
    """Return the outputs of an unrolled loop, with its scan outputs stacked."""
    rows = [[node.scope.expr(v) for v in column] for column in zip(*iterations, strict=True)]
    return last + [node.as_value(op.stack(column_values, axis=0)) for column_values in rows]


def _scan(node: OnnxNode) -> list[Value]:
    """Convert Scan: the body runs over slices of the scan inputs."""
    body, count = node.subgraph_importer("body"), node.get_int("num_scan_inputs")
    states = len(node.inputs) - count
    if len(body.input_names) != len(node.inputs):
        node.reject(f"expected a body with {len(node.inputs)} inputs, got {len(body.input_names)}")
    if count < 1 or states < 0:
        node.reject(f"attribute 'num_scan_inputs' must be in [1, {len(node.inputs)}]")
    inputs = [node.value(states + i) for i in range(count)]
    axes = _scan_attribute(node, "scan_input_axes", count)
    axes = [node.axis(a, len(v.type.shape)) for a, v in zip(axes, inputs, strict=True)]
    backwards = _scan_attribute(node, _DIRECTION_ATTRIBUTES[node.has("directions")], count)
    extents = [v.type.shape[a] for v, a in zip(inputs, axes, strict=True)]
    # All scan inputs have the same number of iterations (ONNX Scan).
    node.scope.require_equal_dims(extents[:1] * (count - 1), extents[1:])
    limit = node.scope.attach_span(node.scope.emit_dim(extents[0]))
    last = node.scope.attach_span(op.subtract(limit, const(np.int64(1))))

    def scan_body(index: Value, go: Value, values: Sequence[Value]) -> Iteration:
        """Import one iteration on the slices at its number, counted from the end for reversed
        inputs.
        """
        offset = node.scope.expr(index)
        slices = []
        for value, axis, is_backwards in zip(inputs, axes, backwards, strict=True):
            position = op.subtract(last, offset) if is_backwards else offset
            slice_ = node.scope.attach_span(op.take(node.scope.expr(value), position, axis=axis))
            slices.append(Value(node.tensor_type_of(slice_), expr=slice_))
        results = body.import_body([*values, *slices])
        return Iteration(go, results[:states], results[states:])

    carried = [node.value(i) for i in range(states)]
    final, scan_outputs, _ = Loop(
        node, body.input_names[:states], carried, limit, None, scan_body
    ).build()
    axes = _scan_attribute(node, "scan_output_axes", len(scan_outputs))
    reverse = _scan_attribute(node, "scan_output_directions", len(scan_outputs))
    outputs = node.proto.output[states:]
    return final + [
        stack_slices(node.scope, p, n, extents[0], node.axis(a, len(p.type.shape) + 1), bool(r))
        for p, n, a, r in zip(scan_outputs, outputs, axes, reverse, strict=True)
    ]


def _scan_8(node: OnnxNode) -> list[Value | Expr]:
    """Convert Scan of opset 8, whose first axis is the batch: each sample is scanned on its own."""
    if node.optional_value(0) is not None:
        node.reject("input 0 (the lengths of sequences) is only supported since opset 9")
    samples = node.shape(1)[0]
    if not isinstance(samples, IntImm) or not samples.value:
        node.reject("the number of samples must be constant")
    sample_outputs = []
    for sample in range(samples.value):
        inputs: list[Value | None] = []
        for index in range(1, len(node.inputs)):
            one = op.take(node.expr(index), const(np.int64(sample)), axis=0)
            inputs.append(node.scope.bind_named(one))
        sample_outputs.append(_scan(node.with_inputs(inputs)))
    rows = [[node.scope.expr(v) for v in outputs] for outputs in zip(*sample_outputs, strict=True)]
    return [op.stack(column, axis=0) for column in rows]


def _scan_attribute(node: OnnxNode, name: str, count: int) -> list[int]:
    """Return an attribute with one number per scan input or output; zeros where it is not set."""
    values = node.get_ints(name, (0,) * count)
    if len(values) != count:
        node.reject(f"attribute {name!r} must have {count} numbers, got {len(values)}")
    return list(values)


_DIRECTION_ATTRIBUTES = ("scan_input_directions", "directions")
"""The attribute as it is called since opset 9, and before."""
SCAN_ATTRIBUTES = (
    "num_scan_inputs scan_input_axes scan_input_directions scan_output_axes scan_output_directions"
)
ROWS = (
    OnnxRow("If", _if, graph_attributes="then_branch else_branch"),
    OnnxRow("Loop", _loop, graph_attributes="body"),
    OnnxRow(
        "Scan",
        _scan_8,
        since_version=8,
        attributes="directions num_scan_inputs",
        graph_attributes="body",
    ),
    OnnxRow("Scan", _scan, since_version=9, attributes=SCAN_ATTRIBUTES, graph_attributes="body"),
)
