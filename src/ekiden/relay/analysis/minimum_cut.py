"""Minimum s-t cut by Dinic's algorithm."""

from __future__ import annotations

from collections import deque

__all__ = ["INFINITE_COST", "FlowNetwork"]

INFINITE_COST = 1 << 60
"""Capacity of an edge that no minimum cut contains."""


class FlowNetwork:
    """Flow network with integer nodes (0 the source, 1 the sink) and edge capacities."""

    SOURCE, SINK = 0, 1

    def __init__(self) -> None:
        self._edge_ends: list[int] = []
        """End node of each edge; an even edge's reverse is the next one."""
        self._residual_capacities: list[int] = []
        self._edges: list[list[int]] = [[], []]

    def add_node(self) -> int:
        """Add a node, and return its number."""
        self._edges.append([])
        return len(self._edges) - 1

    def add_edge(self, start: int, end: int, cost: int) -> None:
        """Add an edge whose `cost` a cut pays if it separates `start` (source side) from `end`."""
        # An edge and its reverse are neighbours in the list: `edge ^ 1` is the other one.
        for tail, head, capacity in ((start, end, cost), (end, start, 0)):
            self._edges[tail].append(len(self._edge_ends))
            self._edge_ends.append(head)
            self._residual_capacities.append(capacity)

    def source_side(self) -> set[int]:
        """Return the nodes on the source side of a minimum cut.

        Of several such cuts, the one with the fewest nodes is taken.
        """
        while self.SINK in (levels := self._bfs_levels()):
            # An edge that leads nowhere stays so within one level graph: each is tried once.
            nexts = [0] * len(self._edges)
            while self._augment_path(levels, nexts):
                pass
        # Max-flow min-cut: what the residual graph still reaches lies on the source's side.
        return set(levels)

    def _bfs_levels(self) -> dict[int, int]:
        """Return the BFS levels of nodes in the residual network."""
        levels, work = {self.SOURCE: 0}, deque([self.SOURCE])
        while work:
            current = work.popleft()
            for edge in self._edges[current]:
                if self._residual_capacities[edge] and self._edge_ends[edge] not in levels:
                    levels[self._edge_ends[edge]] = levels[current] + 1
                    work.append(self._edge_ends[edge])
        return levels

    def _augment_path(self, levels: dict[int, int], nexts: list[int]) -> bool:
        """Augment the flow along one shortest path; return whether there was one.

        `nexts` has the edge of each node that is to be tried next.
        """
        path: list[int] = []
        current = self.SOURCE
        while current != self.SINK:
            edges = self._edges[current]
            while nexts[current] < len(edges) and not self._is_admissible(
                levels, current, edges[nexts[current]]
            ):
                nexts[current] += 1
            if nexts[current] < len(edges):
                path.append(edges[nexts[current]])
                current = self._edge_ends[path[-1]]
            # No edge of the source leads on: this level graph has no further path.
            elif not path:
                return False
            else:
                # A dead end: back to the node before it, whose next edge is tried.
                current = self._edge_ends[path.pop() ^ 1]
                nexts[current] += 1
        pushed = min(self._residual_capacities[edge] for edge in path)
        for edge in path:
            self._residual_capacities[edge] -= pushed
            # The edge back allows a later path to undo this one.
            self._residual_capacities[edge ^ 1] += pushed
        return True

    def _is_admissible(self, levels: dict[int, int], at: int, edge: int) -> bool:
        """Return whether an edge is admissible: residual capacity left, and one level further from
        the source.
        """
        return (
            self._residual_capacities[edge] > 0
            and levels.get(self._edge_ends[edge]) == levels[at] + 1
        )
