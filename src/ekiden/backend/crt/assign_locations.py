"""Assign memory locations to the leaves of a routine.

A storage that is a result uses the caller's memory, where nothing else that is the same result is
live with it. The next iteration's value of a loop parameter lies in the parameter's memory from the
start, if nothing reads the parameter's last value any more: then nothing is copied between
iterations. All other storages share a frame, by the memory planner of the virtual machine.

    loop (n, x) { t = tanh(x); u = add(t, x); again(n, u) }     u lies in the memory of x, as add
                                                                reads x element by element
    loop (a, b) { c = add(a, b); again(b, c) }                  b is copied to a, then c to b

Moves at the end of an iteration are parallel copies, as in SSA destruction (Boissinot et al. 2009):
a move that overwrites another's source comes after it, and in a cycle one value is saved first.
Storages and parameters correspond to registers and phis there; they are coalesced where their live
ranges do not overlap, so that copies vanish.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import pairwise
from typing import TypeAlias

from ekiden.backend.crt import micro_module as crt
from ekiden.backend.crt.micro_module import Location, MemorySpace, Routine, Statement
from ekiden.backend.crt.read_routine import RoutineReader
from ekiden.backend.crt.value_locations import (
    NO_LEAF,
    NO_LOCATION,
    LeafMove,
    ParallelMoves,
    StorageOffset,
    UnresolvedStatement,
    ValueLeaf,
)
from ekiden.ir.prim import IntImm, const
from ekiden.relay.expr import Var
from ekiden.relay.transform.memory.storage_in_place import merge_requests
from ekiden.relay.transform.memory.storage_lifetimes import (
    LiveRange,
    StorageRequest,
    are_mutually_exclusive,
)
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass

AllocateRequests: TypeAlias = Callable[
    [Sequence[StorageRequest]], tuple[dict[StorageRequest, Location], int]
]
"""Function that assigns offsets to storage requests and returns the total bytes."""
_Token: TypeAlias = "StorageRequest | int"
"""Memory that a move reads or writes: a request's or a result's."""


@dataclass(slots=True)
class _OrderedMove:
    """Move in its sequential order: from a leaf, or from the temporary that saved it, to a result
    or loop parameter; `saved` is the temporary, if one is needed.
    """

    move: LeafMove
    source: ValueLeaf
    saved: StorageRequest | None = None


@dataclass(slots=True)
class _LocationAssigner:
    """Assigner of memory locations to the leaves of one routine."""

    reader: RoutineReader
    owners: dict[Var, StorageRequest] = field(default_factory=dict)
    """Request whose memory each storage uses."""
    outputs: dict[int, list[StorageRequest]] = field(default_factory=dict)
    """Requests that are placed in each result's memory."""
    output_of: dict[StorageRequest, int] = field(default_factory=dict)
    offsets: dict[StorageRequest, Location] = field(default_factory=dict)
    temporaries: list[StorageRequest] = field(default_factory=list)
    """Temporaries of cyclic moves."""

    def assign(self, frames: Mapping[str, int], place_all: AllocateRequests) -> Routine:
        """Assign a location to each storage and return the routine."""
        reader = self.reader
        self._set_dynamic_sizes(frames)
        self._drop_loop_invariants()
        requests = list(reader.requests.values())
        self.owners = {r.storage: r for r in requests}
        loop_ends = [e for e in self._parallel_moves() if e.entry is not None]
        # Values carried into the next iteration must not be stored in a result before the loop
        # ends.
        carried = {s for loop_end in loop_ends for m in loop_end.moves for s in m.source.storages}
        self._alias_results(carried.union(p.storage for p in reader.params if p is not None))
        unbound = [r for r in requests if r not in self.output_of]
        for request in merge_requests(unbound, reader.requests, reader.replacements):
            self._set_owner(request, request.in_place_successors)
        self._alias_loop_params(loop_ends)
        self._alias_results(frozenset())
        moves = [self._sequentialize_moves(leave) for leave in self._parallel_moves()]
        roots = dict.fromkeys(self.owners[r.storage] for r in requests)
        placed = [r for r in roots if r not in self.output_of]
        self.offsets, size = place_all([*placed, *self.temporaries])
        signature = reader.program.signatures[reader.names[0]]
        return Routine(
            name=reader.names[0],
            inputs=tuple(reader.inputs),
            outputs=len(signature.result),
            entries=len(reader.names),
            locals=tuple(kind.is_cell for kind in reader.locals),
            initial_locations=tuple(map(self._initial_location, range(len(reader.locals)))),
            matches=reader.matches,
            code=tuple(self._emit_statements(moves)),
            frame_bytes=size,
        )

    def _parallel_moves(self) -> list[ParallelMoves]:
        """Return the parallel moves at the ends of loop iterations and of the routine."""
        return [item for item in self.reader.code if isinstance(item, ParallelMoves)]

    def _set_dynamic_sizes(self, frames: Mapping[str, int]) -> None:
        """Set the sizes that are now determined: of lists, by their capacity, and of the frames of
        called routines.
        """
        for row in self.reader.elements:
            capacity = row.lists.root().capacity
            if capacity is None:
                raise CompileError(
                    f"{row.source_node}: nothing bounds how many elements of {row.nbytes} bytes a "
                    "list has, and there is no allocator; let the loop have a constant number of "
                    "turns, so that what stacks the list says its length, or write into a tensor "
                    "of a constant shape"
                )
            row.request.size = const(capacity * row.nbytes)
        for frame in self.reader.frames:
            frame.request.size = const(frames[frame.routine])

    def _drop_loop_invariants(self) -> None:
        """Drop the storage of loop parameters that no iteration changes."""
        changed = {m.number for e in self._parallel_moves() if e.entry is not None for m in e.moves}
        for number, request in enumerate(self.reader.params):
            if request is not None and number not in changed:
                del self.reader.requests[request.storage]
                self.reader.params[number] = None

    def _set_owner(self, owner: StorageRequest, shares: Iterable[StorageRequest]) -> None:
        self.owners.update((r.storage, owner) for r in (owner, *shares))

    def _alias_results(self, excluded: Collection[Var]) -> None:
        """Alias storages that are whole results with the result's memory, except those
        `excluded`.
        """
        for leave in self._parallel_moves():
            if leave.entry is not None:
                continue
            for move in leave.moves:
                members = self.outputs.setdefault(move.number, [])
                for owner in self._whole_source_requests(move, excluded):
                    # Storages of one result may share its memory only if they are never live
                    # together.
                    if owner not in self.output_of and not any(
                        _interfere(owner, m) for m in members
                    ):
                        members.append(owner)
                        self.output_of[owner] = move.number

    def _whole_source_requests(
        self, move: LeafMove, excluded: Collection[Var]
    ) -> list[StorageRequest]:
        """Return the requests that make up the whole source of a move."""
        storages = [s for s in move.source.storages if s in self.owners and s not in excluded]
        size = _constant_size(move.size)
        owners = dict.fromkeys(self.owners[s] for s in storages) if move.source.is_whole else ()
        ordered = sorted(owners, key=lambda r: r.first)
        return [r for r in ordered if _constant_size(r) == size]

    def _alias_loop_params(self, loop_ends: Sequence[ParallelMoves]) -> None:
        """Alias an iteration's results with the memory of the loop's parameters."""
        for leave in loop_ends:
            for move in leave.moves:
                param = self._loop_param_request(move.number)
                for owner in self._whole_source_requests(move, ()):
                    # Sharing needs disjoint live ranges: a parameter that is still read must not be
                    # overwritten.
                    apart = owner is not param and owner not in self.output_of
                    if apart and not _interfere(owner, param):
                        param.in_place_successors += [owner, *owner.in_place_successors]
                        self._set_owner(param, param.in_place_successors)

    def _loop_param_request(self, number: int) -> StorageRequest:
        request = self.reader.params[number]
        assert request is not None
        return self.owners[request.storage]

    # moves

    def _sequentialize_moves(self, leave: ParallelMoves) -> list[_OrderedMove]:
        """Sequentialise parallel moves: return copies, in an order in which none overwrites a
        source that is read later.
        """
        pending = [
            _OrderedMove(m, m.source) for m in leave.moves if not self._is_redundant_move(m, leave)
        ]
        for copy in pending:
            if leave.entry is not None:
                param = self._loop_param_request(copy.move.number)
                param.in_place_successors.append(self._temporary_request(leave, copy.move.size))
        reads = [self._read_tokens(copy.source) for copy in pending]
        writes = [self._written_token(copy.move, leave) for copy in pending]
        ordered: list[_OrderedMove] = []
        waiting = list(range(len(pending)))
        while waiting:
            readers = Counter(token for n in waiting for token in reads[n])
            # A move may go when no waiting move reads its destination; one that reads its own does
            # not count.
            free = [n for n in waiting if readers[writes[n]] - (writes[n] in reads[n]) == 0]
            if not free:
                # Only cycles remain: saving the readers of one destination breaks a cycle.
                free = waiting[:1]
                for n in waiting[1:]:
                    if writes[free[0]] in reads[n]:
                        ordered.append(self._save_to_temporary(pending[n], leave))
                        reads[n] = frozenset()
            ordered.append(pending[free[0]])
            waiting.remove(free[0])
        return ordered

    def _save_to_temporary(self, copy: _OrderedMove, leave: ParallelMoves) -> _OrderedMove:
        """Save a source that another move overwrites to a temporary, and move it from there."""
        saved = self._temporary_request(leave, copy.move.size)
        self.temporaries.append(saved)
        self.owners[saved.storage] = saved
        first = _OrderedMove(copy.move, copy.source, saved)
        copy.source = ValueLeaf(StorageOffset(saved.storage), frozenset((saved.storage,)), True)
        return first

    @staticmethod
    def _temporary_request(leave: ParallelMoves, size: StorageRequest) -> StorageRequest:
        """Return a request for `size` bytes that is live during the moves."""
        position = leave.position
        uses = {leave.block: position}
        return StorageRequest(
            Var("moved"), size.size, leave.block, leave.index, position, uses=uses
        )

    def _is_redundant_move(self, move: LeafMove, leave: ParallelMoves) -> bool:
        """Return whether a move needs no copy: source and destination coincide, or the leaf has no
        memory.
        """
        home = move.source.home
        if home is NO_LEAF.home:
            return True
        is_start = isinstance(home, StorageOffset) and home.bytes == 0
        return is_start and self._read_tokens(move.source) == {self._written_token(move, leave)}

    def _storage_token(self, storage: Var) -> _Token:
        owner = self.owners[storage]
        return self.output_of.get(owner, owner)

    def _read_tokens(self, source: ValueLeaf) -> frozenset[_Token]:
        return frozenset(self._storage_token(s) for s in source.storages if s in self.owners)

    def _written_token(self, move: LeafMove, leave: ParallelMoves) -> _Token:
        if leave.entry is None:
            return move.number
        param = self._loop_param_request(move.number)
        return self.output_of.get(param, param)

    # statements

    def _location_of_leaf(self, leaf: ValueLeaf) -> Location:
        """Return the location of a leaf."""
        home = leaf.home
        if isinstance(home, StorageOffset):
            return self._location_of_request(self.owners[home.storage], home.bytes)
        is_steady = home.home is MemorySpace.LOCAL and self._initial_location(home.number) is None
        return replace(home, home=MemorySpace.INPUT) if is_steady else home

    def _location_of_request(self, owner: StorageRequest, offset: int = 0) -> Location:
        output = self.output_of.get(owner)
        start = self.offsets[owner] if output is None else Location(MemorySpace.OUTPUT, output)
        return replace(start, offset=start.offset + offset)

    def _initial_location(self, number: int) -> Location | None:
        """Return the initial location of a pointer variable; None for one that no iteration
        changes.
        """
        params = self.reader.params if self.reader.is_loop else ()
        if number >= len(params):
            return NO_LOCATION
        return None if params[number] is None else Location(MemorySpace.INPUT, number)

    def _emit_statements(self, moves: Sequence[Sequence[_OrderedMove]]) -> Iterator[Statement]:
        ends = iter(moves)
        for item in self.reader.code:
            if isinstance(item, UnresolvedStatement):
                yield from self._locate_operands(item)
            else:
                yield from self._emit_iteration_end(item, next(ends))

    def _locate_operands(self, draft: UnresolvedStatement) -> Iterator[Statement]:
        statement = replace(
            draft.statement, locations=tuple(map(self._location_of_leaf, draft.leaves))
        )
        lists = [leaf.lists for leaf in draft.leaves if leaf.lists is not None]
        capacity = (lists[0].root().capacity or 0) if lists else 0
        if isinstance(statement, crt.ListAppend):
            yield replace(statement, capacity=capacity)
        elif isinstance(statement, crt.KernelCallStatement) and statement.kernel is None:
            source, target = statement.locations
            # A copy whose ends were placed in the same location is elided.
            if source != target:
                size = statement.nbytes * capacity if lists else statement.nbytes
                yield replace(statement, nbytes=size)
        else:
            yield statement

    def _emit_iteration_end(
        self, leave: ParallelMoves, copies: Sequence[_OrderedMove]
    ) -> Iterator[Statement]:
        for copy in copies:
            source, move = self._location_of_leaf(copy.source), copy.move
            if copy.saved is not None:
                target = self._location_of_request(copy.saved)
            elif leave.entry is None:
                target = Location(MemorySpace.OUTPUT, move.number)
            else:
                target = self._location_of_request(self._loop_param_request(move.number))
            if source != target:
                yield crt.KernelCallStatement(None, (source, target), _constant_size(move.size))
        if leave.entry is None:
            yield crt.ReturnStatement()
            return
        for move in leave.moves:
            yield crt.SetAddressStatement(
                move.number, (self._location_of_request(self._loop_param_request(move.number)),)
            )
        yield crt.ContinueLoop(leave.entry)


def _constant_size(request: StorageRequest) -> int:
    assert isinstance(request.size, IntImm)
    return request.size.value


def _interfere(a: StorageRequest, b: StorageRequest) -> bool:
    """Return whether two requests are live at once."""
    spans: list[LiveRange] = sorted([*a.live_ranges(), *b.live_ranges()])
    overlap = any(first <= last for (_, last), (first, _) in pairwise(spans))
    return overlap and not are_mutually_exclusive(a, b)


def assign_locations(
    reader: RoutineReader, frames: Mapping[str, int], place_all: AllocateRequests
) -> Routine:
    """Assign a memory location to every value of a routine. `frames` are the bytes of the routines
    that it calls, `place_all` assigns an offset to each request that is no result.

    Raises CompileError for lists that have no bound.
    """
    return _LocationAssigner(reader).assign(frames, place_all)


__all__ = ["AllocateRequests", "assign_locations"]
