"""Remove functions that are unreachable from the entry points.

def @main(%x) { @f(%x) }
def @f(%x) { .. }           ->   the same without @g
def @g(%x) { .. }
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from ekiden.ir.module import IRModule
from ekiden.ir.transform import Pass, PassContext
from ekiden.relay.analysis.call_graph import CallGraph

ENTRY_FUNCTIONS_ATTR = "entries"
"""Module attribute that names the entry functions besides main."""


def RemoveUnusedFunctions(entry_functions: Sequence[str] = ("main",)) -> Pass:  # noqa: N802
    """Return a pass that removes functions unreachable from the entries (TVM's
    RemoveUnusedFunctions).
    """

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Remove functions that neither `entry_functions` nor the module's attribute of entry
        points reach.
        """
        further = cast(Sequence[str], module.attrs.get(ENTRY_FUNCTIONS_ATTR, ()))
        dropped = set(CallGraph(module).unreachable((*entry_functions, *further)))
        reachable = {g: f for g, f in module.functions.items() if g not in dropped}
        return module.with_functions(reachable)

    return Pass("RemoveUnusedFunctions", transform, 1)
