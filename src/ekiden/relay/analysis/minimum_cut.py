"""The cheapest way to part the nodes of a network in two, by Dinic's method."""

from __future__ import annotations

from collections import deque

__all__ = ["NEVER", "Network"]

NEVER = 1 << 60
"""A cost that no cut pays."""


class Network:
    """Nodes by number, 0 the source and 1 the sink, and edges with what it costs to cut them."""

    SOURCE, SINK = 0, 1

    def __init__(self) -> None:
        self._to: list[int] = []
        """Of each edge; the one back has the next number if it is even, else the one before."""
        self._left: list[int] = []
        self._edges: list[list[int]] = [[], []]

    def node(self) -> int:
        """Return a new node."""
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, start: int, end: int, cost: int) -> None:
        """Add an edge: a cut pays `cost` if `start` is with the source and `end` with the sink."""
        for tail, head, capacity in ((start, end, cost), (end, start, 0)):
            self._edges[tail].append(len(self._to))
            self._to.append(head)
            self._left.append(capacity)

    def with_source(self) -> set[int]:
        """Return the nodes that the cheapest cut leaves with the source.

        Of several such cuts, the one with the fewest nodes is taken.
        """
        while self.SINK in (levels := self._levels()):
            nexts = [0] * len(self._edges)
            while self._augment(levels, nexts):
                pass
        return set(levels)

    def _levels(self) -> dict[int, int]:
        """Return the distance of nodes from the source, by edges with remaining capacity."""
        levels, work = {self.SOURCE: 0}, deque([self.SOURCE])
        while work:
            at = work.popleft()
            for edge in self._edges[at]:
                if self._left[edge] and self._to[edge] not in levels:
                    levels[self._to[edge]] = levels[at] + 1
                    work.append(self._to[edge])
        return levels

    def _augment(self, levels: dict[int, int], nexts: list[int]) -> bool:
        """Push as much as one shortest path allows, and return whether there was a path.

        `nexts` has the edge of each node that is to be tried next.
        """
        path: list[int] = []
        at = self.SOURCE
        while at != self.SINK:
            edges = self._edges[at]
            while nexts[at] < len(edges) and not self._leads(levels, at, edges[nexts[at]]):
                nexts[at] += 1
            if nexts[at] < len(edges):
                path.append(edges[nexts[at]])
                at = self._to[path[-1]]
            # No edge of the source leads on: this level graph has no further path.
            elif not path:
                return False
            else:
                # A dead end: back to the node before it, whose next edge is tried.
                at = self._to[path.pop() ^ 1]
                nexts[at] += 1
        pushed = min(self._left[edge] for edge in path)
        for edge in path:
            self._left[edge] -= pushed
            # The edge back allows a later path to undo this one.
            self._left[edge ^ 1] += pushed
        return True

    def _leads(self, levels: dict[int, int], at: int, edge: int) -> bool:
        return self._left[edge] > 0 and levels.get(self._to[edge]) == levels[at] + 1
