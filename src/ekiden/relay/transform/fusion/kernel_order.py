"""Happens-before order of a function's kernels, from the storages that they read and write (vector
clocks over chains).

    %a = f(%x); %b = g(%a); %c = h(%x); %d = k(%b, %c)
                              h may run beside f and g; k follows all of them

Kernels are numbered in program order and form chains, each of which follows the one before it. The
set that a kernel follows is then one number per chain: all of the chain up to there.

    k follows j   iff   k reads or writes what j wrote, or writes what j read, or follows such a one

the three hazards of a schedule. It is a vector clock with one entry per chain: a query is a
comparison, and construction takes kernels times chains, where the transitive closure would take
kernels squared. Two storages may share bytes only where all users of the one follow all of the
other: which of two independent kernels runs first is not known.
"""

from __future__ import annotations

from ekiden.relay.expr import Call, Tuple, Var
from ekiden.relay.transform.memory.storage_lifetimes import (
    LiveRange,
    StorageLifetimes,
    StorageRequest,
)

MAX_ORDER_ENTRIES = 500_000
"""Maximum vector-clock entries (kernels times chains); above it, kernels count as sequential."""


class KernelOrder:
    """Happens-before order of a function's kernels, which may run concurrently otherwise."""

    def __init__(self, lifetimes: StorageLifetimes) -> None:
        self.positions = [position for position, _ in lifetimes.invocations]
        self.users: dict[Var, list[int]] = {}
        """Kernels that read or write each storage."""
        self.chains: list[list[int]] = []
        self._chain_position: list[tuple[int, int]] = []
        """Chain and index within it of each kernel."""
        self._vector_clocks: list[dict[int, int]] = []
        """Vector clock of each kernel: chain -> last index that happens before."""
        self._last_writer: dict[Var, int] = {}
        self._readers: dict[Var, list[int]] = {}
        size = 0
        for number, (_, call) in enumerate(lifetimes.invocations):
            size += self._add_kernel(number, *_kernel_storages(call, lifetimes))
            if size > MAX_ORDER_ENTRIES:
                # An empty list says that nothing is known of the order.
                self._chain_position = []
                return
        self._last_concurrent_kernel = self._find_last_concurrent()

    def _add_kernel(self, number: int, reads: frozenset[Var], writes: frozenset[Var]) -> int:
        """Add a kernel, and return the number of entries in its vector clock."""
        before = {self._last_writer[s] for s in reads | writes if s in self._last_writer}
        # A write waits for earlier readers, which later writes need not wait for again.
        before.update(k for s in writes for k in self._readers.pop(s, ()))
        past: dict[int, int] = {}
        for kernel in before:
            chain, index = self._chain_position[kernel]
            for other_chain, last in (*self._vector_clocks[kernel].items(), (chain, index)):
                # A vector clock: the join of those of all predecessors.
                past[other_chain] = max(past.get(other_chain, -1), last)
        # Extending a chain whose last kernel it follows keeps the number of chains small.
        ends = sorted(c for c, index in past.items() if index == len(self.chains[c]) - 1)
        chain = ends[0] if ends else len(self.chains)
        if not ends:
            self.chains.append([])
        self._chain_position.append((chain, len(self.chains[chain])))
        self.chains[chain].append(number)
        self._vector_clocks.append(past)
        for storage in reads:
            self._readers.setdefault(storage, []).append(number)
        self._last_writer.update(dict.fromkeys(writes, number))
        for storage in reads | writes:
            self.users.setdefault(storage, []).append(number)
        return len(past) + len(self.chains)

    def _find_last_concurrent(self) -> list[int]:
        """Return for each kernel the last one that may run concurrently with it; itself if all
        later ones follow it.
        """
        latest = list(range(len(self._chain_position)))
        unknown = [len(c) for c in self.chains]
        for number in reversed(range(len(self._chain_position))):
            past, (own, index) = self._vector_clocks[number], self._chain_position[number]
            for chain, kernels in enumerate(self.chains):
                first = (index if chain == own else past.get(chain, -1)) + 1
                for kernel in kernels[first : unknown[chain]]:
                    latest[kernel] = max(kernel, number)
                # Each kernel is settled once, by the last one that it may run beside: linear in
                # all.
                unknown[chain] = min(unknown[chain], first)
        return latest

    def follows(self, later: int, earlier: int) -> bool:
        """Return whether a kernel can start only after an earlier one has ended."""
        chain, index = self._chain_position[earlier]
        own, _ = self._chain_position[later]
        return (own == chain and later > earlier) or self._vector_clocks[later].get(
            chain, -1
        ) >= index

    def extend_live_ranges(
        self, request: StorageRequest, spans: list[LiveRange]
    ) -> list[LiveRange]:
        """Extend a storage's live ranges to the last kernel that may run concurrently with one of
        its users.
        """
        kernels = self._kernels_using(request) if self._chain_position else []
        end = max((self.positions[self._last_concurrent_kernel[k]] for k in kernels), default=-1)
        first, last = spans[-1]
        return [*spans[:-1], (first, max(last, end))]

    def are_ordered(self, a: StorageRequest, b: StorageRequest) -> bool:
        """Return whether all users of one storage end before the other is first used, so that both
        may share memory.
        """
        return self._ends_before(a, b) or self._ends_before(b, a)

    def _ends_before(self, a: StorageRequest, b: StorageRequest) -> bool:
        first = min(r.first for r in (b, *b.in_place_successors))
        if any(not r.is_dead_after(first - 1) for r in (a, *a.in_place_successors)):
            return False
        # Then kernels count as following each other.
        if not self._chain_position:
            return True
        later = self._kernels_using(b)
        return all(self.follows(y, x) for x in self._kernels_using(a) for y in later)

    def _kernels_using(self, request: StorageRequest) -> list[int]:
        return [
            k
            for r in (request, *request.in_place_successors)
            for k in self.users.get(r.storage, ())
        ]


def _kernel_storages(
    call: Call, lifetimes: StorageLifetimes
) -> tuple[frozenset[Var], frozenset[Var]]:
    """Return the storages that a kernel reads, and those that it writes."""
    _, inputs, outputs = call.args
    read_and_written: list[frozenset[Var]] = []
    for group in (inputs, outputs):
        assert isinstance(group, Tuple)
        read_and_written.append(
            frozenset(s for f in group.fields for s in lifetimes.storages_by_value.get(f, ()))
        )
    return read_and_written[0], read_and_written[1]
