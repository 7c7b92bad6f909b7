"""Partition the patterns of a table into composite functions for an external compiler.

    nn.relu(nn.bias_add(nn.dense(%x, %w), %b))
    ->  fn (%x, %w, %b, Composite="test.dense_bias_relu") { .. }(%x, %w, %b)

Patterns are tried in the order of the table: the longer ones should come first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.transform import Pass, PassContext
from ekiden.relay.dataflow_pattern import partition
from ekiden.relay.dataflow_pattern.pattern import DFPattern
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import lift_body_rewrite, map_functions

PatternEntry = tuple[str, DFPattern] | tuple[str, DFPattern, Callable[[RelayExpr], bool]]
"""Pattern table entry: (name, pattern) or (name, pattern, check of the match)."""


def MergeComposite(pattern_table: Sequence[PatternEntry]) -> Pass:  # noqa: N802
    """Return a pass that wraps matches of named patterns in composite functions (TVM's
    MergeComposite).
    """

    def partition_all(body: RelayExpr) -> RelayExpr:
        """Partition a body by the patterns in table order; earlier matches are hidden from later
        patterns.
        """
        for name, pattern, *checks in pattern_table:
            body = partition(pattern, body, {"Composite": name}, checks[0] if checks else None)
        return body

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Partition each function by the patterns, in their order."""
        return InferType()(map_functions(module, lift_body_rewrite(partition_all)))

    return Pass("MergeComposite", transform, 0, (InferType(),))
