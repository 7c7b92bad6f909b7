"""Live ranges of a function's storages, through branches.

All bindings of a function are numbered in one order, that of evaluation, in which the branches of
an `If` or `Match` follow each other. A storage is alive in ranges of that order:

    let %a = ...;                     0    %a: 0-1, 2-3 (only one branch reads it, nothing after)
    let %y = if (%c) {                1
      let %b = f(%a); %b              2-4  %b: 2-4, 8-9 (the result of its branch)
    } else {
      let %d = f(%x); %d              5-7  %d: 5-7, 8-9: %b and %d may have the same bytes
    };                                8
    let %z = f(%y);                   9

Branches that exclude each other thus share bytes like tensors that follow each other.

Positions are one number for the whole function, so that lifetimes are intervals of integers, and a
planner need not know of branches. A storage that is allocated outside and read in one branch is
alive there and not in the other: hence several ranges. What leaves the function (`escaped`) has no
end here, and is not planned. Linear in bindings, but for ranges of storages that many branches
read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import field

from ekiden.ir.expr import GlobalVar, RelayExpr
from ekiden.ir.op import MemoryAliasing, Op
from ekiden.ir.prim import PrimExpr
from ekiden.relay.expr import Call, If, Match, Tuple, TupleGetItem, Var
from ekiden.relay.op.memory import AllocStorageAttrs
from ekiden.relay.transform.language.let_chains import LetChain, called_op_name, parse_let_chain
from ekiden.relay.transform.language.scope_tree import bodies, evaluation_order, operands
from ekiden.relay.visitor import pattern_vars
from ekiden.runtime.lazy_dataclass import dataclass

LiveRange = tuple[int, int]
"""First and last position of a live range."""


@dataclass(slots=True, eq=False)
class LifetimeBlock:
    """Let chain with the positions of its bindings in program order."""

    chain: LetChain
    root: RelayExpr
    parent: LifetimeBlock | None = None
    index: int = 0
    """Index of the parent's binding that opens the block."""
    opened_at: int = 0
    """Position of the binding that opens the block."""
    joined_at: int = 0
    """Position after all blocks of that binding."""
    positions: list[int] = field(default_factory=list)
    end: int = 0
    barriers: list[int] = field(default_factory=list)
    """Indices of bindings that end arenas, ascending."""

    def begin_position(self) -> int:
        """Return the position of the first binding, or of the result."""
        return self.positions[0] if self.positions else self.end


@dataclass(slots=True, eq=False)
class StorageRequest:
    """Request for storage: size in bytes, allocation point and uses."""

    storage: Var
    size: PrimExpr
    block: LifetimeBlock
    index: int
    first: int
    device: int = 0
    uses: dict[LifetimeBlock, int] = field(default_factory=dict)
    """Last use in each block."""
    in_place_successors: list[StorageRequest] = field(default_factory=list)
    """Requests that reuse this storage's bytes in place."""

    def live_ranges(self) -> list[LiveRange]:
        """Return the disjoint, ascending live ranges of the storage and its in-place successors."""
        ranges: list[LiveRange] = []
        for first, last in sorted(
            s for r in (self, *self.in_place_successors) for s in _live_ranges(r)
        ):
            if ranges and first <= ranges[-1][1]:
                ranges[-1] = ranges[-1][0], max(ranges[-1][1], last)
            else:
                ranges.append((first, last))
        return ranges

    def is_dead_after(self, position: int) -> bool:
        """Return whether the storage has no use after a position in any block."""
        return all(last <= position for last in self.uses.values())

    def last_reads(self) -> frozenset[int]:
        """Return the positions after which no execution path uses the storage."""
        return frozenset(last for _, last in _live_ranges(self))


def are_mutually_exclusive(a: StorageRequest, b: StorageRequest) -> bool:
    """Return whether two requests are never allocated in the same run: they are in different
    branches of one value.
    """
    return all(
        _are_in_different_branches(x.block, y.block)
        for x in (a, *a.in_place_successors)
        for y in (b, *b.in_place_successors)
    )


def _are_in_different_branches(a: LifetimeBlock, b: LifetimeBlock) -> bool:
    """Return whether two blocks are in different branches of one `If` or `Match`.

    Walk outwards to the first block around both, and compare the bindings through which they came.
    """
    if a is b:
        return False
    ancestors: dict[LifetimeBlock | None, LifetimeBlock] = {}
    current: LifetimeBlock | None = a
    while current is not None:
        # By parent, to find the two children of the common ancestor.
        ancestors[current.parent] = current
        if current is b:
            return False
        current = current.parent
    current = b
    while current is not None and current.parent not in ancestors:
        current = current.parent
    if current is None or current.parent is None or current is a:
        return False
    branch_of_a = ancestors[current.parent]
    # The same binding opened both, so only one of them runs.
    return current is not branch_of_a and current.opened_at == branch_of_a.opened_at


class StorageLifetimes:
    """Storages of a function with their live ranges, and which of them escape."""

    def __init__(self, body: RelayExpr, is_barrier: Callable[[GlobalVar], bool]) -> None:
        self.blocks: list[LifetimeBlock] = []
        self.requests: dict[Var, StorageRequest] = {}
        self.storages_by_value: dict[RelayExpr, frozenset[Var]] = {}
        """Possible storages of each variable's value."""
        self.escaped: set[Var] = set()
        self.invocations: list[tuple[int, Call]] = []
        """Kernel calls with their positions."""
        self.calls: list[tuple[int, Call]] = []
        """Other calls with their positions."""
        self._is_barrier = is_barrier
        self._position = 0
        root = LifetimeBlock(parse_let_chain(body), body)
        self._walk_blocks(root)
        assert root.chain.result is not None
        # The caller keeps the result.
        self.escaped |= self._storages_of(root.chain.result)

    def _next_position(self) -> int:
        self._position += 1
        return self._position - 1

    def _walk_blocks(self, root: LifetimeBlock) -> None:
        self.blocks.append(root)
        # A stack of its own: branches may be nested deeper than Python's recursion allows.
        stack: list[tuple[LifetimeBlock, int, list[LifetimeBlock]]] = [(root, 0, [])]
        while stack:
            block, index, opened = stack.pop()
            if opened:
                self._join_branches(block, index, opened)
                index += 1
            if index == len(block.chain.bindings):
                block.end = self._next_position()
                assert block.chain.result is not None
                self._record_use(self._storages_of(block.chain.result), block.end, block)
                continue
            # Positions number the bindings of all blocks in one order, so that ranges are plain
            # intervals.
            position = self._next_position()
            block.positions.append(position)
            self._visit_binding(block, index, position)
            inner = self._open_branches(block, index, position)
            # The block resumes at this binding once its branches are done.
            stack.append((block, index if inner else index + 1, inner))
            stack.extend((inner_block, 0, []) for inner_block in reversed(inner))

    def _open_branches(self, block: LifetimeBlock, index: int, at: int) -> list[LifetimeBlock]:
        """Return the blocks of a value's branches."""
        value = block.chain.bindings[index][1]
        if not isinstance(value, (If, Match)):
            return []
        inner = [
            LifetimeBlock(parse_let_chain(body), body, block, index, at) for body in bodies(value)
        ]
        self.blocks.extend(inner)
        if isinstance(value, Match):
            data = self._storages_of(value.data)
            variables = [v for c in value.clauses for v in pattern_vars(c.lhs)]
            # Parts that a pattern binds lie in the memory of what is matched.
            self.storages_by_value.update((v, data) for v in variables)
        return inner

    def _join_branches(self, block: LifetimeBlock, index: int, opened: list[LifetimeBlock]) -> None:
        position = self._next_position()
        storages: frozenset[Var] = frozenset()
        for opened_block in opened:
            opened_block.joined_at = position
            assert opened_block.chain.result is not None
            # Which branch ran is not known, so the value may lie in any of them.
            storages |= self._storages_of(opened_block.chain.result)
        self.storages_by_value[block.chain.bindings[index][0]] = storages

    def _visit_binding(self, block: LifetimeBlock, index: int, at: int) -> None:
        variable, value = block.chain.bindings[index]
        if isinstance(value, Call) and isinstance(value.attrs, AllocStorageAttrs):
            self.requests[variable] = StorageRequest(
                variable, value.attrs.size, block, index, at, value.attrs.device
            )
            self.storages_by_value[variable] = frozenset((variable,))
            return
        used = self._storages_of(value)
        self._record_use(used, at, block)
        if is_alias(value):
            self.storages_by_value[variable] = used
        elif isinstance(value, Call):
            self._visit_call(block, index, at, value, used)
        # Whatever a closure or a reference captures may live longer than this function.
        elif not isinstance(value, (If, Match)):  # references, closures: they keep what they get
            self.escaped |= used
            for inner_expr in evaluation_order(value) if bodies(value) else ():
                self.escaped |= self.storages_by_value.get(inner_expr, frozenset())

    def _visit_call(
        self, block: LifetimeBlock, index: int, at: int, value: Call, used: frozenset[Var]
    ) -> None:
        name = called_op_name(value)
        if name == "vm.invoke_tvm_op":
            self.invocations.append((at, value))
        else:
            self.calls.append((at, value))
            # The callee may keep a reference.
            if _memory_aliasing(value) is not MemoryAliasing.NO_ALIAS:
                self.escaped |= used
        if isinstance(value.op, GlobalVar) and self._is_barrier(value.op):
            self._mark_barrier(block, index)

    @staticmethod
    def _mark_barrier(block: LifetimeBlock, index: int) -> None:
        """Mark a binding that may call this function recursively as a barrier in all enclosing
        blocks.

        Each block records a binding once: the last one it has is the greatest so far, as bindings
        are met in order.
        """
        current: LifetimeBlock | None = block
        while current is not None and (not current.barriers or current.barriers[-1] != index):
            current.barriers.append(index)
            index = current.index
            current = current.parent

    def _record_use(self, storages: frozenset[Var], at: int, block: LifetimeBlock) -> None:
        for storage in storages:
            self.requests[storage].uses[block] = at

    def _storages_of(self, value: RelayExpr) -> frozenset[Var]:
        """Return the storages that a value or its operands may be in."""
        used = self.storages_by_value.get(value, frozenset())
        for operand in operands(value):
            for leaf in operand.fields if isinstance(operand, Tuple) else (operand,):
                used |= self.storages_by_value.get(leaf, frozenset())
        return used


def _memory_aliasing(value: RelayExpr) -> MemoryAliasing:
    is_operator = isinstance(value, Call) and isinstance(value.op, Op)
    return value.op.definition.memory if is_operator else MemoryAliasing.MAY_ALIAS  # type: ignore[attr-defined]


def is_alias(value: RelayExpr) -> bool:
    """Return whether a value shares the memory of its operands."""
    return (
        isinstance(value, (Var, Tuple, TupleGetItem))
        or _memory_aliasing(value) is MemoryAliasing.MUST_ALIAS
    )


def barrier_free_region(block: LifetimeBlock, index: int) -> tuple[LifetimeBlock, int]:
    """Return the outermost barrier-free region of bindings that contains a binding.

    Returns:
        Its block, and how many barriers precede it.
    """
    stretch = block, bisect_left(block.barriers, index)
    current: LifetimeBlock | None = block
    while current is not None:
        count = bisect_left(current.barriers, index)
        # The binding that leads here is no barrier of this block, so the stretch reaches outwards.
        if count == len(current.barriers) or current.barriers[count] != index:
            stretch = current, count
        index = current.index
        current = current.parent
    return stretch


def _live_ranges(request: StorageRequest) -> list[LiveRange]:
    """Return the live ranges of a request: outward from its allocation to the outermost use, then
    inward to the last uses.
    """
    ranges: list[LiveRange] = []
    block, start = request.block, request.first
    last = max(request.uses.values(), default=start)
    while last > block.end:
        ranges.append((start, block.end))
        assert block.parent is not None
        start, block = block.joined_at, block.parent
    inner = _last_uses(request, block)
    stack = [(block, start)]
    while stack:
        block, start = stack.pop()
        last, children = inner.get(block, (start, []))
        # A last use inside of branches ends at each branch's own last use, not at the end of all.
        ends = [c for c in children if c.begin_position() <= last <= c.end]
        ranges.append((start, ends[0].opened_at if ends else max(last, start)))
        if ends:
            stack.extend(
                (c, c.begin_position()) for c in children if c.opened_at == ends[0].opened_at
            )
    return ranges


def _last_uses(
    request: StorageRequest, outer: LifetimeBlock
) -> dict[LifetimeBlock, tuple[int, list[LifetimeBlock]]]:
    """Return for each block in `outer` the last use of a storage in or below it, and its child
    blocks with uses.
    """
    uses_of: dict[LifetimeBlock, tuple[int, list[LifetimeBlock]]] = {}
    for block, last in request.uses.items():
        current, child = block, None
        while True:
            previous, children = uses_of.setdefault(current, (last, []))
            uses_of[current] = max(previous, last), children
            # A block may be reached from several of its descendants.
            if child is not None and child not in children:
                children.append(child)
            if current is outer or current.parent is None:
                break
            current, child = current.parent, current
    return uses_of
