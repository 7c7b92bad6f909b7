"""Choices between graphs: If.

A condition that is known takes its branch. Else both are imported, and the results are seen under
what their types have in common. Where they have nothing in common, or one of the branches cannot
be, the other is taken and the run ends where the condition says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ekiden.frontend.common.arithmetic import lift, select
from ekiden.frontend.common.block import Block, fail
from ekiden.frontend.common.loop import as_scalar
from ekiden.frontend.common.node import Node
from ekiden.frontend.common.scope import Scope
from ekiden.frontend.common.sequence_value import Absent, joined
from ekiden.frontend.common.value import Value, known
from ekiden.ir.op import Op
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Constant, Expr, If, Tuple
from ekiden.runtime.errors import CompileError, ImportModelError, UnsupportedError

Run = Callable[[], list[Value]]
"""Imports a branch; what it gives."""


class _Branch:
    """One side: its values and the expression that gives them, or why it cannot run."""

    def __init__(self, scope: Scope, run: Run) -> None:
        self.scope, self.block = scope, Block()
        self.values: list[Value] = []
        self.error: Exception | None = None
        before = scope.choices_met()
        with self.scope.inside(self.block):
            try:
                self.values = run()
            except UnsupportedError:
                raise
            except (CompileError, ValueError) as error:
                scope.choose_another_since(before)
                self.error = error
            self.types = [self.scope.outside(v.kind) for v in self.values]

    def expr(self, kinds: Sequence[Type]) -> Expr:
        """Its results, under these types."""
        scope = self.scope
        with scope.inside(self.block):
            pairs = zip(self.values, kinds, strict=True)
            results = [scope.under(v, k) for v, k in pairs]
            return scope.close(Tuple(tuple(results), span=scope.span))


def choose(node: Node, condition: Value, runs: Sequence[Run], names: Sequence[str]) -> list[Value]:
    """The results of the first branch where a condition of one element holds, else of the second;
    `names` are those of the branches in messages.

    Raises Unsupported where the branches give different numbers of values.
    """
    if condition.array is not None and condition.array.size == 1:
        return runs[0 if condition.array.item() else 1]()
    sides = [_Branch(node.scope, run) for run in runs]
    errors = [s.error for s in sides if s.error is not None]
    if len(errors) == len(sides):
        raise errors[0]
    if errors:
        taken = 0 if sides[0].error is None else 1
        return _only(node, condition, sides, names, taken, str(errors[0]))
    if len(sides[0].values) != len(sides[1].values):
        node.unsupported("its branches have different numbers of outputs")
    if any(isinstance(v, Absent) for s in sides for v in s.values):
        node.needs(0, "whether an optional value is there depends on data")
    _check_dtypes(node, sides, names)
    kinds = [joined(a, b) for a, b in zip(sides[0].types, sides[1].types, strict=True)]
    for a, b in zip(sides[0].types, sides[1].types, strict=True):
        if isinstance(a, TensorType) and isinstance(b, TensorType) and a.dtype != b.dtype:
            node.unsupported(f"its branches give {a.dtype} and {b.dtype}")
    common = [k for k in kinds if k is not None]
    if len(common) < len(kinds):
        reason = "the rest of the model needs values of another rank"
        taken = node.scope.branch(_likelier(node.scope, condition))
        return _only(node, condition, sides, names, taken, reason)
    test = as_scalar(node.scope, condition)
    chosen = If(test, sides[0].expr(common), sides[1].expr(common))
    found = node.scope.fields(chosen.with_fields(span=node.scope.span), _labels(node, common))
    pairs = zip(sides[0].values, sides[1].values, strict=True)
    both = [_known(node.scope, condition, a, b) for a, b in pairs]
    return [v if k is None else k for k, v in zip(both, found, strict=True)]


def _check_dtypes(node: Node, sides: Sequence[_Branch], names: Sequence[str]) -> None:
    """Raise ImportModelError where a result has another dtype in each branch: no model may."""
    every = zip(_labels(node, sides[0].types), sides[0].types, sides[1].types, strict=True)
    for label, a, b in every:
        if isinstance(a, TensorType) and isinstance(b, TensorType) and a.dtype != b.dtype:
            raise ImportModelError(
                f"{label!r} must have one dtype, but {names[0]} gives {a.dtype} and {names[1]} "
                f"{b.dtype}"
            )


def _labels(node: Node, results: Sequence[object]) -> list[str]:
    """A name for each result: those of the node's outputs, as far as there are."""
    names = list(node.output_names)[: len(results)]
    return names + [f"result{i}" for i in range(len(names), len(results))]


def _likelier(scope: Scope, condition: Value) -> tuple[int, ...]:
    """The branches, the likelier one first. That data equal a constant is the special case; that an
    extent is 1 is asked by exporters before they drop the axis, and then it mostly is.
    """
    if condition.symbols is not None and scope.is_data(condition.symbols):
        return 1, 0
    match condition.expr:
        case Call(op=Op(name="equal"), args=args) if any(isinstance(a, Constant) for a in args):
            return 1, 0
    return 0, 1


def _only(
    node: Node,
    condition: Value,
    sides: Sequence[_Branch],
    names: Sequence[str],
    taken: int,
    reason: str,
) -> list[Value]:
    """One branch; where the other would be taken the run ends."""
    side = sides[taken]
    stop = fail(f"{node.scope.span}: {names[1 - taken]} is taken, but {reason}")
    both = (side.expr(side.types), stop) if taken == 0 else (stop, side.expr(side.types))
    chosen = If(as_scalar(node.scope, condition), *both).with_fields(span=node.scope.span)
    return node.scope.fields(chosen, _labels(node, side.types))


def _known(scope: Scope, condition: Value, a: Value, b: Value) -> Value | None:
    """The result of both branches where it is one, or a choice between expressions of shapes."""
    if a is b:
        return a
    if not a.is_known or not b.is_known or a.elements.shape != b.elements.shape:
        return None
    if a.array is not None and b.array is not None and np.array_equal(a.array, b.array):
        return a
    if condition.symbols is None or not scope.is_outside(a, b):
        return None
    x, y = lift(a.elements), lift(b.elements)
    chosen = np.frompyfunc(select, 3, 1)(condition.symbols.item(), x, y)
    return known(np.asarray(chosen), a.type.dtype)
