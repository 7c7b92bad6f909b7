"""Declare the conditions that main's operators impose on its named dimensions.

def @main(%x: Tensor[(1, n), float32]) { nn.dense(%x, %w) }    %w: Tensor[(5, 10), float32]
-> the same, and the module's attribute `constraints`: ((n == 10, "nn.dense"),)

A run whose sizes break a condition is refused by it, with the name of the operator.
"""

from __future__ import annotations

from ekiden.ir.module import IRModule
from ekiden.ir.transform import Pass, PassContext
from ekiden.relay.analysis.shape_constraints import shape_conditions
from ekiden.relay.expr import Function

CONSTRAINTS_ATTR = "constraints"
"""Module attribute: (condition on the symbolic dimensions, node that needs it), in a tuple."""


def DeclareConditions() -> Pass:  # noqa: N802
    """Return a pass that declares the conditions of a typed module, unless its frontend has."""

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Return the module with the attribute `constraints`."""
        main = module["main"]
        if CONSTRAINTS_ATTR in module.attrs or not isinstance(main, Function):
            return module
        return module.with_attr(CONSTRAINTS_ATTR, tuple(shape_conditions(main)))

    return Pass("DeclareConditions", transform)
