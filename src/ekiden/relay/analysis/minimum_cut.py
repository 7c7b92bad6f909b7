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
        """A new one."""
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, start: int, end: int, cost: int) -> None:
        """Where `start` is with the source and `end` with the sink, a cut pays `cost`."""
        for here, there, left in ((start, end, cost), (end, start, 0)):
            self._edges[here].append(len(self._to))
            self._to.append(there)
            self._left.append(left)

    def with_source(self) -> set[int]:
        """The nodes that the cheapest cut leaves with the source; of several such cuts, the one
        with the fewest of them.
        """
        while self.SINK in (levels := self._levels()):
            nexts = [0] * len(self._edges)
            while self._augment(levels, nexts):
                pass
        return set(levels)

    def _levels(self) -> dict[int, int]:
        """How far each node is from the source, by edges with something left."""
        found, work = {self.SOURCE: 0}, deque([self.SOURCE])
        while work:
            at = work.popleft()
            for edge in self._edges[at]:
                if self._left[edge] and self._to[edge] not in found:
                    found[self._to[edge]] = found[at] + 1
                    work.append(self._to[edge])
        return found

    def _augment(self, levels: dict[int, int], nexts: list[int]) -> bool:
        """Push what one shortest path takes; whether there was one. `nexts` has the edge of each
        node that is to be tried next.
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
            elif not path:
                return False
            else:
                at = self._to[path.pop() ^ 1]
                nexts[at] += 1
        pushed = min(self._left[edge] for edge in path)
        for edge in path:
            self._left[edge] -= pushed
            self._left[edge ^ 1] += pushed
        return True

    def _leads(self, levels: dict[int, int], at: int, edge: int) -> bool:
        return self._left[edge] > 0 and levels.get(self._to[edge]) == levels[at] + 1
