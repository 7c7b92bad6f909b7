"""Remove functions that are unreachable from the entry points.

def @main(%x) { @f(%x) }
def @f(%x) { .. }           ->   the same without @g
def @g(%x) { .. }
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.module import IRModule
from ekiden.ir.transform import Pass, PassContext
from ekiden.relay.analysis.call_graph import CallGraph
from ekiden.relay.expr import Function
from ekiden.runtime.errors import CompileError

ENTRY_FUNCTIONS_ATTR = "entries"
"""Module attribute that names the entry functions besides main."""


def declared_entries(module: IRModule) -> tuple[str, ...]:
    """Return the names of the entry functions besides main, which the module's attribute declares.

    Raises CompileError where the attribute is no sequence of names.
    """
    names = module.attrs.get(ENTRY_FUNCTIONS_ATTR, ())
    if isinstance(names, (tuple, list)) and all(isinstance(name, str) for name in names):
        return tuple(names)
    raise CompileError(
        f"compile: the module's attribute '{ENTRY_FUNCTIONS_ATTR}': expected names of functions, "
        f"as ('encode', 'decode'), got {names!r}"
    )


def check_entries(module: IRModule) -> None:
    """Raise CompileError for a declared entry function that the module does not have."""
    relay_names = {g.name_hint for g, f in module.functions.items() if isinstance(f, Function)}
    for name in declared_entries(module):
        if name not in relay_names:
            raise CompileError(
                f"compile: the module has no Relay function '{name}', which its attribute "
                f"'{ENTRY_FUNCTIONS_ATTR}' names"
            )


def RemoveUnusedFunctions(entry_functions: Sequence[str] = ("main",)) -> Pass:  # noqa: N802
    """Return a pass that removes functions unreachable from the entries (TVM's
    RemoveUnusedFunctions).
    """

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Remove functions that neither `entry_functions` nor the module's attribute of entry
        points reach.
        """
        roots = (*entry_functions, *declared_entries(module))
        dropped = set(CallGraph(module).unreachable(roots))
        reachable = {g: f for g, f in module.functions.items() if g not in dropped}
        return module.with_functions(reachable)

    return Pass("RemoveUnusedFunctions", transform, 1)
