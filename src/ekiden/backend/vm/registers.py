"""From a register for each value to few: the last step of compiling a function to bytecode.

    0: alloc_data $1 tag(0) [$0]        0: alloc_data $0 tag(0) [$0]
    1: move $2 $1                 ->    1: ret $0
    2: ret $2

A register is taken again after the last use of its value, on every path by itself. Where an
instruction is the last to read a value, its result may take the same register, so instructions read
all they need before they write; where it can, it takes the value along (operands v and V). A Move
takes the register of what it copies where that dies, and goes. What nothing reads is not made. A
value that holds memory and is dead is forgotten (KillRegister) before memory is asked for or
another function runs, unless its register was taken again meanwhile. Jumps only lead forward: loops
are calls.

    live before i = (live after i - written by i) + read by i;   after a jump: the union of targets

A linear scan (Poletto and Sarkar 1999) over lifetimes that may have holes: registers are free in a
branch that does not need their value. As jumps lead forward, one pass backwards finds what is
alive, without a fixed point. There is no spilling; a register is 16 bytes of a frame, and fewer of
them keep frames of deep recursions in cache. Sets of live values are stored at targets of jumps
alone: linear for straight code, and values times branches for code that is all branches.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import field

from ekiden.backend.vm.operands import jumps, may_move, reads, rename, with_jumps, writes
from ekiden.runtime.debug.instructions import Instruction, make
from ekiden.runtime.errors import InternalError
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["allocate"]

VIEW, OWNER = 1, 2
"""What a dead value holds: a tensor in memory that others share, or memory of its own."""


def _targets(instruction: Instruction, at: int) -> list[int]:
    """Where an instruction jumps, as positions."""
    targets = [at + offset for offset in jumps(instruction)]
    if any(target <= at for target in targets):
        raise InternalError(f"registers: {instruction.name} at {at} jumps back")
    return targets


class _Liveness:
    """Which values are needed where, found from the last instruction to the first."""

    def __init__(self, code: Sequence[Instruction], n_params: int) -> None:
        self.at: dict[int, frozenset[int]] = {}
        """Values needed before an instruction that a jump leads to or that follows one."""
        self.dying: list[list[int]] = [[] for _ in code]
        """Values that an instruction reads last, or writes for nobody."""
        self.is_needed = _reachable(code)
        self.rivals: dict[int, set[int]] = {}
        """Values that another write of a value must not touch, for those written in several
        places; and back.
        """
        count: dict[int, int] = dict.fromkeys(range(n_params), 1)
        for each in code:
            for register in writes(each):
                count[register] = count.get(register, 0) + 1
        self._scan(code, {register for register, n in count.items() if n > 1})

    def _scan(self, code: Sequence[Instruction], joined: set[int]) -> None:
        """One pass backwards is enough: jumps only lead forward, so what a target needs is known
        when the jump to it is met. `joined` are the values that are written in several places, as
        the result of a choice is on each of its paths.
        """
        targets = [_targets(each, at) for at, each in enumerate(code)]
        leaders = {target for each in targets for target in each}
        leaders |= {at + 1 for at, each in enumerate(code) if _never_goes_on(each)}
        after: dict[int, list[frozenset[int]]] = {}
        live: set[int] = set()
        for at in range(len(code) - 1, -1, -1):
            if not self.is_needed[at]:
                continue
            if _never_goes_on(code[at]):
                live = set().union(*(self.at[target] for target in targets[at]))
            self._visit(at, code[at], live)
            for register in joined.intersection(writes(code[at])):
                after.setdefault(register, []).append(frozenset(live - {register}))
            live.difference_update(writes(code[at]))
            if self.is_needed[at]:
                live.update(reads(code[at]))
            if at in leaders:
                self.at[at] = frozenset(live)
        self._find_rivals(after)

    def _visit(self, at: int, instruction: Instruction, live: set[int]) -> None:
        """`live` is what is needed after the instruction."""
        written = writes(instruction)
        if instruction.has("pure") and live.isdisjoint(written):
            self.is_needed[at] = False
            return
        mine = dict.fromkeys((*reads(instruction), *written))
        self.dying[at] = [register for register in mine if register not in live]

    def _find_rivals(self, after: dict[int, list[frozenset[int]]]) -> None:
        """A value's register is taken at the first of its writes. What lives at a later one may not
        be there yet, and would seem to leave its own free: the two never share one.
        """
        for register, (*others, first) in after.items():
            for other in frozenset().union(*others) - first:
                self.rivals.setdefault(register, set()).add(other)
                self.rivals.setdefault(other, set()).add(register)


def _reachable(code: Sequence[Instruction]) -> list[bool]:
    """Whether something leads to each instruction."""
    reached = [at == 0 for at in range(len(code))]
    for at, each in enumerate(code):
        if reached[at]:
            for target in _targets(each, at):
                reached[target] = True
            if not _never_goes_on(each):
                reached[at + 1] = True
    return reached


def _never_goes_on(instruction: Instruction) -> bool:
    return instruction.has("ends")


@dataclass(slots=True)
class _Places:
    """The registers of a function: which value has which, and which are taken at the moment."""

    liveness: _Liveness
    of: dict[int, int]
    wishes: dict[int, int]
    """Value -> the value that it is moved to."""
    taken: set[int] = field(default_factory=set)
    free: list[int] = field(default_factory=list)
    """A heap of the others; some may have been taken since."""
    count: int = 0

    def enter(self, live: Iterable[int]) -> None:
        """Begin where exactly these values are needed: at the target of a jump, whatever the code
        before it in the file had taken."""
        self.taken = {self.of[value] for value in live}
        self.free = [place for place in range(self.count) if place not in self.taken]

    def leave(self, value: int) -> None:
        """The value is not needed any more."""
        place = self.of[value]
        if place in self.taken:
            self.taken.remove(place)
            heapq.heappush(self.free, place)

    def give(self, value: int, near: int | None = None) -> int:
        """A register for a value; best that of the dead value `near`. One that is written on
        several paths gets its register at the first of them and keeps it."""
        if value not in self.of:
            self.of[value] = self._pick(value, near)
        self.taken.add(self.of[value])
        return self.of[value]

    def _pick(self, value: int, near: int | None) -> int:
        rivals = self.liveness.rivals.get(value, ())
        barred = {self.of[rival] for rival in rivals if rival in self.of}
        wish = self.wishes.get(value)
        for other in (near, wish):
            place = self.of.get(other) if other is not None else None
            if place is not None and place not in self.taken and place not in barred:
                return place
        return self._lowest(barred)

    def _lowest(self, barred: set[int]) -> int:
        passed: list[int] = []
        found = None
        while self.free and found is None:
            place = heapq.heappop(self.free)
            if place in barred:
                passed.append(place)
            elif place not in self.taken:
                found = place
        for place in passed:
            heapq.heappush(self.free, place)
        if found is None:
            found, self.count = self.count, self.count + 1
        return found


class _Allocator:
    """Rewrites one function, first instruction to last."""

    def __init__(self, code: Sequence[Instruction], n_params: int) -> None:
        self.code = code
        self.liveness = _Liveness(code, n_params)
        moves = [(each["src"], each["dst"]) for each in code if each.name == "Move"]
        wishes = {src: dst for src, dst in moves if isinstance(src, int) and isinstance(dst, int)}
        self.places = _Places(self.liveness, {i: i for i in range(n_params)}, wishes)
        self.places.count = n_params
        self.places.taken = set(range(n_params))
        self.holds: dict[int, int] = dict.fromkeys(range(n_params), OWNER)
        """Register -> what is in it, dead or alive; registers that hold no memory are left out."""
        self.dead: set[int] = set()
        """Those of them that nothing needs any more."""
        self.coming: dict[int, dict[int, int]] = {}
        """`holds` at the instructions that jumps lead to."""
        self.made: list[list[Instruction]] = []

    def run(self) -> tuple[int, tuple[Instruction, ...]]:
        """The number of registers, and the instructions."""
        self._drop_unread()
        for at, instruction in enumerate(self.code):
            if at in self.liveness.at:
                self._enter(at)
            if not self.liveness.is_needed[at]:
                self.made.append([])
                continue
            self.made.append(self._instruction(at, instruction))
            for target in _targets(instruction, at):
                _join(self.coming.setdefault(target, {}), self.holds)
            if _never_goes_on(instruction):
                self.holds = {}
        return self.places.count, _layout(self.code, self.made)

    def _drop_unread(self) -> None:
        """Parameters that nothing reads are dead from the beginning."""
        used = {register for each in self.code for register in reads(each)}
        for param in [p for p in self.places.of if p not in used]:
            self._die(param)

    def _enter(self, at: int) -> None:
        self.places.enter(self.liveness.at[at])
        _join(self.holds, self.coming.pop(at, {}))
        self.dead = self.holds.keys() - self.places.taken

    def _die(self, value: int, is_moved: bool = False) -> None:
        self.places.leave(value)
        if is_moved:
            self.holds.pop(self.places.of[value], None)
        elif self.places.of[value] in self.holds:
            self.dead.add(self.places.of[value])

    def _instruction(self, at: int, instruction: Instruction) -> list[Instruction]:
        dying = self.liveness.dying[at]
        made = self._kills(instruction)
        read = {value: self.places.of[value] for value in reads(instruction)}
        kind = self._kind(instruction, dying)
        written = writes(instruction)
        movable = may_move(instruction)
        moved = {v for v in dying if movable.count(v) == reads(instruction).count(v) > 0}
        for value in dying:
            if value in read and value not in written:
                self._die(value, value in moved)
        near = next(iter(read), None) if instruction.name == "Move" else None
        write = {value: self.places.give(value, near) for value in written}
        self._write(write, kind, dying)
        if instruction.name != "Move" or list(write.values()) != list(read.values()):
            made.append(rename(instruction, read, write, moved))
        return made

    def _write(self, write: dict[int, int], kind: int, dying: Sequence[int]) -> None:
        for value, place in write.items():
            self.dead.discard(place)
            self.holds.pop(place, None)
            if kind:
                self.holds[place] = kind
            if value in dying:
                self._die(value)

    def _kind(self, instruction: Instruction, dying: Sequence[int]) -> int:
        """What the result of an instruction holds."""
        if instruction.has("plain"):
            return 0
        if instruction.name in ("AllocTensor", "AllocTensorReg"):
            return OWNER if instruction["storage"] in dying else VIEW
        if instruction.name in ("Move", "ReshapeTensor"):
            return max(self.holds.get(self.places.of[v], 0) for v in reads(instruction))
        return OWNER

    def _kills(self, instruction: Instruction) -> list[Instruction]:
        """What forgets dead values before an instruction that needs memory or runs long.

        Before memory is asked for only owners matter, whose memory then can be given out; before a
        call views too, as the callee may keep what is left alive by them for long. A register that
        something else was written to has let go of its value by that.
        """
        if not instruction.has("long") and not instruction.has("allocates"):
            return []
        least = VIEW if instruction.has("long") else OWNER
        found = sorted(place for place in self.dead if self.holds[place] >= least)
        for place in found:
            self.dead.remove(place)
            del self.holds[place]
        return [make("KillRegister", dst=place) for place in found]


def _join(into: dict[int, int], holds: dict[int, int]) -> None:
    """Add what registers may hold on another way here."""
    for place, kind in holds.items():
        into[place] = max(kind, into.get(place, 0))


def _layout(
    code: Sequence[Instruction], made: Sequence[list[Instruction]]
) -> tuple[Instruction, ...]:
    """The instructions made for each of the old ones, one after the other, with jumps to the next
    left out and jumps to jumps led on.
    """
    resolved: list[int] = [len(code)] * (len(code) + 1)
    """For each old position, the first one at or after it that something stands at; through
    jumps.
    """
    standing = list(resolved)
    for at in range(len(code) - 1, -1, -1):
        is_jump = len(made[at]) == 1 and made[at][0].name == "Goto"
        to = resolved[_targets(code[at], at)[0]] if is_jump else at
        if is_jump and standing[to] == standing[at + 1]:
            made[at].clear()
        standing[at] = at if made[at] else standing[at + 1]
        resolved[at] = to if is_jump else at if made[at] else resolved[at + 1]
    start: list[int] = [0]
    for each in made:
        start.append(start[-1] + len(each))
    out: list[Instruction] = []
    for at, each in enumerate(made):
        for instruction in each:
            places = _targets(code[at], at) if jumps(instruction) else []
            targets = [start[resolved[place]] - len(out) for place in places]
            out.append(with_jumps(instruction, targets))
    return tuple(out)


def allocate(code: Sequence[Instruction], n_params: int) -> tuple[int, tuple[Instruction, ...]]:
    """The number of registers that a function needs, and its instructions over them.

    Parameters arrive in registers 0 to n_params - 1. Raises InternalError for a jump that leads
    back.
    """
    return _Allocator(code, n_params).run()
