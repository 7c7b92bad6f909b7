"""Call graph of a module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ekiden.ir.expr import GlobalVar
from ekiden.ir.module import IRModule
from ekiden.relay.expr import Function
from ekiden.relay.visitor import children, post_order


class CallGraph:
    """Call graph of the Relay functions of a module; kernels are leaves.

    Methods take a GlobalVar or a name. They raise KeyError for a function the module does not have.
    """

    def __init__(self, module: IRModule) -> None:
        self.module = module
        self._callees: dict[GlobalVar, Counter[GlobalVar]] = {}
        for name, function in module.functions.items():
            used: Counter[GlobalVar] = Counter()
            if isinstance(function, Function):
                used.update(_count_references(function, module))
            self._callees[name] = used
        # Every function has an entry, so that unknown names are a KeyError and uncalled ones are
        # not.
        self._callers: dict[GlobalVar, Counter[GlobalVar]] = {g: Counter() for g in self._callees}
        for name, used in self._callees.items():
            for callee, count in used.items():
                self._callers[callee][name] += count

    def __contains__(self, var: GlobalVar | str) -> bool:
        return var in self._callees if isinstance(var, GlobalVar) else var in self.module

    def __getitem__(self, var: GlobalVar | str) -> Mapping[GlobalVar, int]:
        """Return the functions that a function refers to, with the number of references."""
        return self._callees[self._resolve_var(var)]

    def callers(self, var: GlobalVar | str) -> Mapping[GlobalVar, int]:
        """Return the functions that reference a function, with counts."""
        return self._callers[self._resolve_var(var)]

    def ref_count(self, var: GlobalVar | str) -> int:
        """Return the number of references to a function."""
        return self._callers[self._resolve_var(var)].total()

    def global_call_count(self, var: GlobalVar | str) -> int:
        """Return the number of references that a function makes."""
        return self._callees[self._resolve_var(var)].total()

    def is_recursive(self, var: GlobalVar | str) -> bool:
        """Return whether a function is directly or mutually recursive."""
        name = self._resolve_var(var)
        return any(name in group for group in self.cycles())

    def print_var(self, var: GlobalVar | str) -> str:
        """Format a function and its references."""
        name = self._resolve_var(var)
        lines = [f"@{name.name_hint}: #refs = {self.ref_count(name)}"]
        used = self._callees[name].items()
        return "\n".join(lines + [f"  @{g.name_hint}, {count} times" for g, count in used])

    def __str__(self) -> str:
        return "\n".join(self.print_var(g) for g in self._callees)

    def components(self) -> list[list[GlobalVar]]:
        """Return the strongly connected components, callees first.

        A group comes after those that it refers to (R. Tarjan, 1972).
        """
        return _StronglyConnectedComponents(self._callees).components

    def cycles(self) -> list[list[GlobalVar]]:
        """Return the recursive components."""
        return [c for c in self.components() if len(c) > 1 or c[0] in self._callees[c[0]]]

    def unreachable(self, roots: tuple[str, ...] = ("main",)) -> list[GlobalVar]:
        """Return the functions unreachable from the roots."""
        # A module without the root, such as a library, reaches nothing from it.
        work = [self._resolve_var(r) for r in roots if r in self.module]
        reached = set(work)
        while work:
            new = [g for g in self._callees[work.pop()] if g not in reached]
            reached.update(new)
            work.extend(new)
        return [g for g in self._callees if g not in reached]

    def _resolve_var(self, var: GlobalVar | str) -> GlobalVar:
        return self.module.get_global_var(var) if isinstance(var, str) else var


def _count_references(function: Function, module: IRModule) -> Counter[GlobalVar]:
    """Count a function's references to each function of the module."""
    counts: Counter[GlobalVar] = Counter()
    for expr in post_order(function, into_functions=True):
        for child in children(expr):
            if isinstance(child, GlobalVar) and child in module.functions:
                counts[child] += 1
    return counts


class _StronglyConnectedComponents:
    """Tarjan's strongly connected components algorithm, iterative."""

    def __init__(self, edges: Mapping[GlobalVar, Mapping[GlobalVar, int]]) -> None:
        self.edges = edges
        self.components: list[list[GlobalVar]] = []
        self.low_links: dict[GlobalVar, int] = {}
        """Tarjan's low-link of each node; a node's index is its position in `low_links`."""
        self.stack_indices: dict[GlobalVar, int] = {}
        """Nodes on Tarjan's stack, with their indices."""
        for root in edges:
            if root not in self.low_links:
                self._visit_from(root)

    def _open_node(self, node: GlobalVar) -> tuple[GlobalVar, list[GlobalVar]]:
        self.stack_indices[node] = self.low_links[node] = len(self.low_links)
        return node, list(self.edges[node])

    def _visit_from(self, root: GlobalVar) -> None:
        stack = [self._open_node(root)]
        while stack:
            node, unvisited = stack[-1]
            if unvisited:
                # In the order of the references, so that groups come out the same in every run.
                callee = unvisited.pop(0)
                if callee not in self.low_links:
                    stack.append(self._open_node(callee))
                elif callee in self.stack_indices:
                    self.low_links[node] = min(self.low_links[node], self.stack_indices[callee])
                continue
            stack.pop()
            if stack:
                above = stack[-1][0]
                # The result of the callee, as a recursion would return it.
                self.low_links[above] = min(self.low_links[above], self.low_links[node])
            # No callee leads further up: the node is the first of its group.
            if self.low_links[node] == self.stack_indices[node]:
                self._close_component(node)

    def _close_component(self, node: GlobalVar) -> None:
        group: list[GlobalVar] = []
        # All above the first node of a group on the stack belong to it.
        while node in self.stack_indices:
            group.append(self.stack_indices.popitem()[0])
        self.components.append(group[::-1])
