"""Control flow: If becomes a choice, Loop and Scan become functions (see
ekiden.frontend.common.loop).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ekiden.frontend.common.choice import choose
from ekiden.frontend.common.loop import ChangesRank, Iteration, Loop, as_scalar, is_true, stacked
from ekiden.frontend.common.ranked_loop import build_ranked
from ekiden.frontend.common.value import Value, constant
from ekiden.frontend.onnx.messages import onnx
from ekiden.frontend.onnx.node import Node, Row
from ekiden.ir.prim import IntImm, maximum
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import as_dim

BRANCHES = ("then_branch", "else_branch")


def _if(node: Node) -> list[Value]:
    bodies = [node.body(name) for name in BRANCHES]
    return choose(node, node.value(0), [partial(b.run, []) for b in bodies], BRANCHES)


# Loops.


def _loop(node: Node) -> list[Value]:
    body = node.body("body")
    (inner,) = (a.g for a in node.proto.attribute if a.name == "body")
    limit, go, start = node.optional(0), node.optional(1), node.inputs[2:]
    carried = [node.value(i) for i in range(2, 2 + len(start))]
    if len(body.names) != 2 + len(carried):
        node.unsupported(f"expected a body with {2 + len(carried)} inputs, got {len(body.names)}")

    def step(index: Value, condition: Value, values: Sequence[Value]) -> Iteration:
        """Convert one iteration of Loop: (condition, carried values, scan outputs). Refuses a body
        that has fewer outputs than carried values.
        """
        pair = zip(inner.input, (index, condition), strict=False)
        head = [_declared(node, info, v) for info, v in pair]
        results = body.run([*head, *values])
        after = 1 + len(carried)
        if len(results) < after:
            node.unsupported(f"expected a body with at least {after} outputs, got {len(results)}")
        return Iteration(results[0], results[1:after], results[after:])

    # ONNX Loop: an initial condition of false runs no iteration, whatever the trip count is.
    if go is not None and go.array is not None and not is_true(go):
        limit = constant(np.zeros((), np.int64))
    if limit is not None and limit.array is not None and limit.array.size == 1:
        limit = constant(limit.array.reshape(()))
    trips = None if limit is None else as_scalar(node.scope, limit)
    loop = Loop(node, body.names[2:], carried, trips, go, step)
    try:
        last, scan_outputs, endless = loop.build()
    except ChangesRank as error:
        written = loop.written_out()
        if written is not None:
            return _collected(node, *written)
        last, scan_outputs, endless = build_ranked(loop, error)
    length = None
    if endless and limit is not None and limit.is_known:
        (length,) = (maximum(as_dim(d), 0) for d in limit.dims())
    outputs = node.proto.output[len(carried) :]
    return last + [
        stacked(node.scope, p, n, length) for p, n in zip(scan_outputs, outputs, strict=False)
    ]


def _declared(node: Node, info: onnx.ValueInfoProto, value: Value) -> Value:
    """Return the iteration number or the condition in the rank that the body declares: scalar, or
    one element, as older exporters write it.
    """
    stated = info.type.tensor_type
    if not stated.HasField("shape") or len(stated.shape.dim) != 1:
        return value
    if value.array is not None:
        return constant(value.array.reshape(1))
    return node.value_of(op.reshape(node.scope.expr(value), (1,)))


def _collected(node: Node, last: list[Value], iterations: list[list[Value]]) -> list[Value]:
    """Return the outputs of an unrolled loop: the scan outputs of its iterations are stacked."""
    rows = [[node.scope.expr(v) for v in column] for column in zip(*iterations, strict=True)]
    return last + [node.value_of(op.stack(column_values, axis=0)) for column_values in rows]


def _scan(node: Node) -> list[Value]:
    body, count = node.body("body"), node.get_int("num_scan_inputs")
    states = len(node.inputs) - count
    if len(body.names) != len(node.inputs):
        node.unsupported(f"expected a body with {len(node.inputs)} inputs, got {len(body.names)}")
    if count < 1 or states < 0:
        node.unsupported(f"attribute 'num_scan_inputs' must be in [1, {len(node.inputs)}]")
    inputs = [node.value(states + i) for i in range(count)]
    axes = _each(node, "scan_input_axes", count)
    axes = [node.axis(a, len(v.type.shape)) for a, v in zip(axes, inputs, strict=True)]
    backwards = _each(node, _DIRECTIONS[node.has("directions")], count)
    extents = [v.type.shape[a] for v, a in zip(inputs, axes, strict=True)]
    # All scan inputs have the same number of iterations (ONNX Scan).
    node.scope.same(extents[:1] * (count - 1), extents[1:])
    limit = node.scope.spanned(node.scope.scalar(extents[0]))
    last = node.scope.spanned(op.subtract(limit, const(np.int64(1))))

    def step(index: Value, go: Value, values: Sequence[Value]) -> Iteration:
        """Convert one iteration of Scan: slices of the inputs at its number, counted from the end
        for those scanned backwards.
        """
        at = node.scope.expr(index)
        slices = []
        for value, axis, is_backwards in zip(inputs, axes, backwards, strict=True):
            position = op.subtract(last, at) if is_backwards else at
            slice_ = node.scope.spanned(op.take(node.scope.expr(value), position, axis=axis))
            slices.append(Value(node.typed(slice_), expr=slice_))
        results = body.run([*values, *slices])
        return Iteration(go, results[:states], results[states:])

    carried = [node.value(i) for i in range(states)]
    final, scan_outputs, _ = Loop(node, body.names[:states], carried, limit, None, step).build()
    axes = _each(node, "scan_output_axes", len(scan_outputs))
    reverse = _each(node, "scan_output_directions", len(scan_outputs))
    outputs = node.proto.output[states:]
    return final + [
        stacked(node.scope, p, n, extents[0], node.axis(a, len(p.type.shape) + 1), bool(r))
        for p, n, a, r in zip(scan_outputs, outputs, axes, reverse, strict=True)
    ]


def _scan_8(node: Node) -> list[Value | Expr]:
    """Convert Scan of opset 8: the first axis of all inputs is the batch, and each sample is
    scanned on its own.
    """
    if node.optional(0) is not None:
        node.unsupported("input 0 (the lengths of sequences) is only supported since opset 9")
    samples = node.shape(1)[0]
    if not isinstance(samples, IntImm) or not samples.value:
        node.unsupported("the number of samples must be constant")
    sample_outputs = []
    for sample in range(samples.value):
        inputs: list[Value | None] = []
        for index in range(1, len(node.inputs)):
            one = op.take(node.expr(index), const(np.int64(sample)), axis=0)
            inputs.append(node.scope.bound(one))
        sample_outputs.append(_scan(node.with_inputs(inputs)))
    rows = [[node.scope.expr(v) for v in outputs] for outputs in zip(*sample_outputs, strict=True)]
    return [op.stack(column, axis=0) for column in rows]


def _each(node: Node, name: str, count: int) -> list[int]:
    """Return an attribute with a number for each scan input or output; zeros where it is
    not set.
    """
    values = node.get_ints(name, (0,) * count)
    if len(values) != count:
        node.unsupported(f"attribute {name!r} must have {count} numbers, got {len(values)}")
    return list(values)


_DIRECTIONS = ("scan_input_directions", "directions")
"""The attribute as it is called since opset 9, and before."""
SCAN = (
    "num_scan_inputs scan_input_axes scan_input_directions scan_output_axes scan_output_directions"
)
ROWS = (
    Row("If", _if, graphs="then_branch else_branch"),
    Row("Loop", _loop, graphs="body"),
    Row("Scan", _scan_8, since=8, attributes="directions num_scan_inputs", graphs="body"),
    Row("Scan", _scan, since=9, attributes=SCAN, graphs="body"),
)
