"""Conversion of conditionals (If, Switch) between subgraphs: If and Switch.

A condition that is known takes its branch. Else both are imported, and the results are seen under
what their types have in common, or, where they have nothing in common, as a sum of both types. A
branch that cannot be imported, or after which a later node cannot, ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ekiden.frontend.common.constant_folding import fold_select, to_expr_elements
from ekiden.frontend.common.import_block import ImportBlock, emit_failure
from ekiden.frontend.common.loop import as_scalar
from ekiden.frontend.common.node import Node
from ekiden.frontend.common.rank_cases import (
    find_sum_value,
    inject_values,
    sum_members,
    type_alternatives,
)
from ekiden.frontend.common.scope import Scope
from ekiden.frontend.common.sequence_value import AbsentValue
from ekiden.frontend.common.sum_value import SumValue, TypeCombination, merge_alternatives
from ekiden.frontend.common.value import Value, constant_value, known_value
from ekiden.ir.type import TensorType, Type
from ekiden.relay import op
from ekiden.relay.expr import Expr, If, Tuple, const
from ekiden.runtime.errors import CompileError, ImportModelError, UnsupportedError

SubgraphImport = Callable[[], list[Value]]
"""Imports a branch; what it gives."""


class _Branch:
    """Imported branch of an If: its values and result expression, or the error with which its
    import failed.
    """

    def __init__(self, scope: Scope, run: SubgraphImport) -> None:
        self.scope, self.block = scope, ImportBlock()
        self.values: list[Value] = []
        self.error: Exception | None = None
        with self.scope.enter_block(self.block):
            try:
                self.values = run()
            except UnsupportedError:
                raise
            except (CompileError, ValueError) as error:
                self.error = error
            self.types = [self.scope.erase_block_dims(v.relay_type) for v in self.values]

    def alternatives(self) -> list[TypeCombination]:
        """Return the type combinations of the branch's values in the enclosing scope."""
        return type_alternatives(self.scope, self.values, self.block)

    def inject_results(
        self, alternatives: Sequence[TypeCombination], numbers: Sequence[int]
    ) -> Expr:
        """Emit its results as a sum of these alternatives."""
        with self.scope.enter_block(self.block):
            return self.scope.close_block(
                inject_values(self.scope, self.values, alternatives, numbers)
            )

    def expr(self, kinds: Sequence[Type]) -> Expr:
        """Emit the branch's results as a tuple of these types."""
        scope = self.scope
        with scope.enter_block(self.block):
            pairs = zip(self.values, kinds, strict=True)
            results = [scope.relax_to_type(v, k) for v, k in pairs]
            return scope.close_block(Tuple(tuple(results), span=scope.span))


def emit_if(
    node: Node, condition: Value, runs: Sequence[SubgraphImport], names: Sequence[str]
) -> list[Value]:
    """Emit an If over a one-element condition; return its results.

    `names` are those of the branches in messages.

    Raises:
        Unsupported: where the branches return different numbers of values.
    """
    # A constant condition imports one branch alone; the other may be invalid for these shapes.
    if condition.array is not None and condition.array.size == 1:
        return runs[0 if condition.array.item() else 1]()
    sides = [_Branch(node.scope, run) for run in runs]
    errors = [s.error for s in sides if s.error is not None]
    if len(errors) == len(sides):
        raise errors[0]
    failures = {n: str(s.error) for n, s in enumerate(sides) if s.error is not None}
    failures |= node.scope.failing_branches()
    if failures:
        # A branch fails by its own import or by a later node that read its result
        # (Facts.failing_branches).
        if len(failures) == len(sides):
            raise ImportModelError("; ".join(f"{names[n]}: {failures[n]}" for n in failures))
        (failing,) = failures
        return _emit_runnable_branch(node, condition, sides, names, 1 - failing, failures[failing])
    if len(sides[0].values) != len(sides[1].values):
        node.reject("its branches have different numbers of outputs")
    if any(isinstance(v, AbsentValue) for s in sides for v in s.values):
        node.reject_dynamic_input(0, "whether an optional value is there depends on data")
    _check_dtypes(node, sides, names)
    alternatives, numbers = merge_alternatives([k for s in sides for k in s.alternatives()])
    if len(alternatives) > 1:
        return _emit_sum_if(node, condition, sides, alternatives, numbers)
    (common,) = alternatives
    test = as_scalar(node.scope, condition)
    chosen = If(test, sides[0].expr(common), sides[1].expr(common))
    chosen_fields = node.scope.bind_tuple_fields(
        chosen.with_fields(span=node.scope.span), _result_names(node, common)
    )
    pairs = zip(sides[0].values, sides[1].values, strict=True)
    known_results = [_fold_if_result(node.scope, condition, a, b) for a, b in pairs]
    return [v if k is None else k for k, v in zip(known_results, chosen_fields, strict=True)]


def emit_switch(
    node: Node, index: Value, runs: Sequence[SubgraphImport], what: str = "branch", at: int = 0
) -> list[Value]:
    """Emit nested Ifs that select the branch numbered `index`; indices out of range select the last
    one. Branches before `at` are known not to be selected.
    """
    if at == len(runs) - 1:
        return runs[at]()
    if index.array is not None:
        test = constant_value(np.asarray(index.array == at))
    else:
        test = node.bind_shared(op.equal(as_scalar(node.scope, index), const(at, index.type.dtype)))
    sides: list[SubgraphImport] = [runs[at], partial(emit_switch, node, index, runs, what, at + 1)]
    return emit_if(node, test, sides, (f"{what} {at}", f"a later {what}"))


def _emit_sum_if(
    node: Node,
    condition: Value,
    sides: Sequence[_Branch],
    alternatives: Sequence[TypeCombination],
    numbers: Sequence[int],
) -> list[Value]:
    """Emit an If whose branches differ in rank; its results are members of a sum."""
    scope = node.scope
    scope.declare_sum_type(len(alternatives))
    count = len(sides[0].alternatives())
    side_numbers = numbers[:count], numbers[count:]
    first, second = (
        s.inject_results(alternatives, n) for s, n in zip(sides, side_numbers, strict=True)
    )
    chosen = scope.attach_span(If(as_scalar(scope, condition), first, second, span=scope.span))
    origin = None
    if len(alternatives) == len(sides) and all(len(n) == 1 for n in side_numbers):
        branches = (0, 1) if numbers[0] == 0 else (1, 0)
        origin = (str(scope.span), branches)
    return sum_members(scope, SumValue(chosen, alternatives, origin))


def _check_dtypes(node: Node, sides: Sequence[_Branch], names: Sequence[str]) -> None:
    """Raise ImportModelError where a result has a different dtype in each branch."""
    every = zip(_result_names(node, sides[0].types), sides[0].types, sides[1].types, strict=True)
    for label, a, b in every:
        if isinstance(a, TensorType) and isinstance(b, TensorType) and a.dtype != b.dtype:
            raise ImportModelError(
                f"{label!r} must have one dtype, but {names[0]} gives {a.dtype} and {names[1]} "
                f"{b.dtype}"
            )


def _result_names(node: Node, results: Sequence[object]) -> list[str]:
    """Return a name for each result: the node's output names, then "resultN"."""
    names = list(node.output_names)[: len(results)]
    return names + [f"result{i}" for i in range(len(names), len(results))]


def _emit_runnable_branch(
    node: Node,
    condition: Value,
    sides: Sequence[_Branch],
    names: Sequence[str],
    runnable: int,
    reason: str,
) -> list[Value]:
    """Emit an If of which one branch cannot be imported and fails at run time."""
    side = sides[runnable]
    stop = emit_failure(f"{node.scope.span}: {names[1 - runnable]} is taken, but {reason}")
    test = as_scalar(node.scope, condition)
    if find_sum_value(side.values) is not None:
        alternatives, numbers = merge_alternatives(side.alternatives())
        node.scope.declare_sum_type(len(alternatives))
        held = side.inject_results(alternatives, numbers)
        arms = (held, stop) if runnable == 0 else (stop, held)
        chosen = node.scope.attach_span(If(test, *arms).with_fields(span=node.scope.span))
        return sum_members(node.scope, SumValue(chosen, alternatives))
    both = (side.expr(side.types), stop) if runnable == 0 else (stop, side.expr(side.types))
    chosen = If(test, *both).with_fields(span=node.scope.span)
    return node.scope.bind_tuple_fields(chosen, _result_names(node, side.types))


def _fold_if_result(scope: Scope, condition: Value, a: Value, b: Value) -> Value | None:
    """Return the result known at import: one that both branches agree on, or a Select of shape
    expressions; else None.
    """
    if a is b:
        return a
    if not a.is_known or not b.is_known or a.known_elements.shape != b.known_elements.shape:
        return None
    if a.array is not None and b.array is not None and np.array_equal(a.array, b.array):
        return a
    # A symbol bound inside a branch has no value outside of it.
    if condition.symbols is None or not scope.depends_on_main_only(a, b):
        return None
    x, y = to_expr_elements(a.known_elements), to_expr_elements(b.known_elements)
    chosen = np.frompyfunc(fold_select, 3, 1)(condition.symbols.item(), x, y)
    return known_value(np.asarray(chosen), a.type.dtype)
