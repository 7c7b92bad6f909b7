"""Control flow: If as a choice, Loop and Scan as functions (see ekiden.frontend.onnx.loop)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden.frontend.onnx.block import Block, fail
from ekiden.frontend.onnx.loop import Iteration, Loop, as_scalar, is_true, stacked
from ekiden.frontend.onnx.node import Node, Row
from ekiden.frontend.onnx.sequence_value import Absent, joined
from ekiden.frontend.onnx.shape_value import lift, select
from ekiden.frontend.onnx.value import Value, constant, known
from ekiden.ir.op import Op
from ekiden.ir.prim import IntImm, maximum
from ekiden.ir.type import Type
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant, Expr, If, Tuple, const
from ekiden.runtime.errors import CompileError, UnsupportedError
from ekiden.topi.shape import as_dim

BRANCHES = ("then_branch", "else_branch")


# If.


class _Branch:
    """One side of an If: its values and the expression that gives them, or why it cannot run."""

    def __init__(self, node: Node, name: str) -> None:
        self.scope, self.block = node.scope, Block()
        self.values: list[Value] = []
        self.error: Exception | None = None
        body = node.body(name)
        with self.scope.inside(self.block):
            try:
                self.values = body.run([])
            except UnsupportedError:
                raise
            except (CompileError, ValueError) as error:
                self.error = error
            self.types = [self.scope.outside(v.kind) for v in self.values]

    def expr(self, kinds: Sequence[Type]) -> Expr:
        """Its results, under these types."""
        scope = self.scope
        with scope.inside(self.block):
            pairs = zip(self.values, kinds, strict=True)
            results = [scope.under(v, k) for v, k in pairs]
            return scope.close(Tuple(tuple(results), span=scope.span))


def _if(node: Node) -> list[Value]:
    condition = node.value(0).array
    if condition is not None and condition.size == 1:
        return node.body(BRANCHES[0 if condition.item() else 1]).run([])
    sides = [_Branch(node, name) for name in BRANCHES]
    errors = [s.error for s in sides if s.error is not None]
    if len(errors) == len(sides):
        raise errors[0]
    if errors:
        return _only(node, sides, 0 if sides[0].error is None else 1, str(errors[0]))
    if len(sides[0].values) != len(sides[1].values):
        node.unsupported("its branches have different numbers of outputs")
    if any(isinstance(v, Absent) for s in sides for v in s.values):
        node.needs(0, "whether an optional value is there depends on data")
    kinds = [joined(a, b) for a, b in zip(sides[0].types, sides[1].types, strict=True)]
    common = [k for k in kinds if k is not None]
    if len(common) < len(kinds):
        reason = "the rest of the model needs values of another rank"
        return _only(node, sides, node.scope.branch(_likelier(node)), reason)
    chosen = If(as_scalar(node, node.value(0)), sides[0].expr(common), sides[1].expr(common))
    found = node.scope.fields(_placed(node, chosen), node.proto.output)
    known = [_known(node, *pair) for pair in zip(sides[0].values, sides[1].values, strict=True)]
    return [v if k is None else k for k, v in zip(known, found, strict=True)]


def _likelier(node: Node) -> tuple[int, ...]:
    """The branches, the likelier one first. That data equal a constant is the special case; that an
    extent is 1 is asked by exporters before they drop the axis, and then it mostly is.
    """
    condition = node.value(0)
    if condition.symbols is not None and node.scope.is_data(condition.symbols):
        return 1, 0
    match condition.expr:
        case Call(op=Op(name="equal"), args=args) if any(isinstance(a, Constant) for a in args):
            return 1, 0
    return 0, 1


def _placed(node: Node, expr: Expr) -> Expr:
    return expr.with_fields(span=node.scope.span)


def _only(node: Node, sides: Sequence[_Branch], taken: int, reason: str) -> list[Value]:
    """One branch; where the other would be taken the run ends."""
    side = sides[taken]
    stop = fail(f"{node.scope.span}: {BRANCHES[1 - taken]} is taken, but {reason}")
    both = (side.expr(side.types), stop) if taken == 0 else (stop, side.expr(side.types))
    return node.scope.fields(
        _placed(node, If(as_scalar(node, node.value(0)), *both)), node.proto.output
    )


def _known(node: Node, a: Value, b: Value) -> Value | None:
    """The result of both branches where it is one, or a choice between expressions of shapes."""
    if a is b:
        return a
    condition = node.value(0).symbols
    if not a.is_known or not b.is_known or a.elements.shape != b.elements.shape:
        return None
    if a.array is not None and b.array is not None and np.array_equal(a.array, b.array):
        return a
    if condition is None or not node.scope.is_outside(a, b):
        return None
    x, y = lift(a.elements), lift(b.elements)
    return known(np.asarray(np.frompyfunc(select, 3, 1)(condition.item(), x, y)), a.type.dtype)


# Loops.


def _loop(node: Node) -> list[Value]:
    body = node.body("body")
    limit, go, start = node.optional(0), node.optional(1), node.inputs[2:]
    carried = [node.value(i) for i in range(2, 2 + len(start))]

    def step(index: Value, condition: Value, values: Sequence[Value]) -> Iteration:
        found = body.run([index, condition, *values])
        after = 1 + len(carried)
        if len(found) < after:
            node.unsupported(f"expected a body with at least {after} outputs, got {len(found)}")
        return Iteration(found[0], found[1:after], found[after:])

    if go is not None and go.array is not None and not is_true(go):
        limit = constant(np.zeros((), np.int64))
    trips = None if limit is None else as_scalar(node, limit)
    last, parts, endless = Loop(node, body.names[2:], carried, trips, go, step).build()
    length = None
    if endless and limit is not None and limit.is_known:
        (length,) = (maximum(as_dim(d), 0) for d in limit.dims())
    outputs = node.proto.output[len(carried) :]
    return last + [stacked(node, p, n, length) for p, n in zip(parts, outputs, strict=False)]


def _scan(node: Node) -> list[Value]:
    body, count = node.body("body"), node.get_int("num_scan_inputs")
    states = len(node.inputs) - count
    if count < 1 or states < 0:
        node.unsupported(f"attribute 'num_scan_inputs' must be in [1, {len(node.inputs)}]")
    inputs = [node.value(states + i) for i in range(count)]
    axes = _each(node, "scan_input_axes", count)
    axes = [node.axis(a, len(v.type.shape)) for a, v in zip(axes, inputs, strict=True)]
    backwards = _each(node, _DIRECTIONS[node.has("directions")], count)
    extents = [v.type.shape[a] for v, a in zip(inputs, axes, strict=True)]
    node.scope.same(extents[:1] * (count - 1), extents[1:])
    limit = node.scope.spanned(node.scope.scalar(extents[0]))
    last = node.scope.spanned(op.subtract(limit, const(np.int64(1))))

    def step(index: Value, go: Value, values: Sequence[Value]) -> Iteration:
        at = node.scope.expr(index)
        slices = []
        for value, axis, is_backwards in zip(inputs, axes, backwards, strict=True):
            place = op.subtract(last, at) if is_backwards else at
            taken = node.scope.spanned(op.take(node.scope.expr(value), place, axis=axis))
            slices.append(Value(node.typed(taken), expr=taken))
        found = body.run([*values, *slices])
        return Iteration(go, found[:states], found[states:])

    carried = [node.value(i) for i in range(states)]
    final, parts, _ = Loop(node, body.names[:states], carried, limit, None, step).build()
    axes = _each(node, "scan_output_axes", len(parts))
    reverse = _each(node, "scan_output_directions", len(parts))
    outputs = node.proto.output[states:]
    return final + [
        stacked(node, p, n, extents[0], node.axis(a, len(p.type.shape) + 1), bool(r))
        for p, n, a, r in zip(parts, outputs, axes, reverse, strict=True)
    ]


def _scan_8(node: Node) -> list[Value | Expr]:
    """Before opset 9: the first axis of everything is that of samples, each scanned on its own."""
    if node.optional(0) is not None:
        node.unsupported("input 0 (the lengths of sequences) is only supported since opset 9")
    samples = node.shape(1)[0]
    if not isinstance(samples, IntImm) or not samples.value:
        node.unsupported("the number of samples must be constant")
    made = []
    for sample in range(samples.value):
        inputs: list[Value | None] = []
        for index in range(1, len(node.inputs)):
            one = op.take(node.expr(index), const(np.int64(sample)), axis=0)
            inputs.append(node.scope.bound(one))
        made.append(_scan(node.with_inputs(inputs)))
    rows = [[node.scope.expr(v) for v in each] for each in zip(*made, strict=True)]
    return [op.stack(each, axis=0) for each in rows]


def _each(node: Node, name: str, count: int) -> list[int]:
    """An attribute with a number for each scan input or output; 0 where it is not set."""
    found = node.get_ints(name, (0,) * count)
    if len(found) != count:
        node.unsupported(f"attribute {name!r} must have {count} numbers, got {len(found)}")
    return list(found)


_DIRECTIONS = ("scan_input_directions", "directions")
"""The attribute as it is called since opset 9, and before."""
SCAN = (
    "body num_scan_inputs scan_input_axes scan_input_directions scan_output_axes "
    "scan_output_directions"
)
ROWS = (
    Row("If", _if, attributes="then_branch else_branch"),
    Row("Loop", _loop, attributes="body"),
    Row("Scan", _scan_8, since=8, attributes="body directions num_scan_inputs"),
    Row("Scan", _scan, since=9, attributes=SCAN),
)
