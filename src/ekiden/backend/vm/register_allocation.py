"""Linear-scan register allocation of bytecode, the last step of compiling a function.

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

from ekiden.backend.vm.instruction_operands import (
    jump_offsets,
    movable_registers,
    read_registers,
    rename_registers,
    with_jump_offsets,
    written_registers,
)
from ekiden.runtime.debug.instructions import Instruction, make_instruction
from ekiden.runtime.errors import InternalError
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["allocate_registers"]

VIEW_KIND, OWNER_KIND = 1, 2
"""VIEW_KIND: register kind: a tensor in shared memory. OWNER_KIND: register kind: memory of its
own.
"""


def _jump_positions(instruction: Instruction, at: int) -> list[int]:
    """Return an instruction's jump targets as positions. Raises InternalError for a
    backward jump.
    """
    targets = [at + offset for offset in jump_offsets(instruction)]
    if any(target <= at for target in targets):
        raise InternalError(f"registers: {instruction.name} at {at} jumps back")
    return targets


class _Liveness:
    """Liveness of values by a backward pass over the instructions."""

    def __init__(self, code: Sequence[Instruction], n_params: int) -> None:
        self.live_in: dict[int, frozenset[int]] = {}
        """Live values before instructions that are jump targets or follow one."""
        self.last_uses: list[list[int]] = [[] for _ in code]
        """Values whose last use, or unused definition, is at each instruction."""
        self.is_needed = _reachable_instructions(code)
        self.interference: dict[int, set[int]] = {}
        """Interference of values written in several places (symmetric)."""
        count: dict[int, int] = dict.fromkeys(range(n_params), 1)
        for instruction in code:
            for register in written_registers(instruction):
                count[register] = count.get(register, 0) + 1
        self._compute_live_sets(code, {register for register, n in count.items() if n > 1})

    def _compute_live_sets(self, code: Sequence[Instruction], joined: set[int]) -> None:
        """Compute liveness in one backward pass: jumps only lead forward, so a target's live set is
        known when the jump is met. `joined` are the values that several instructions write, such
        as the result of a choice.
        """
        targets = [_jump_positions(instruction, index) for index, instruction in enumerate(code)]
        leaders = {target for target_list in targets for target in target_list}
        leaders |= {
            index + 1 for index, instruction in enumerate(code) if _never_falls_through(instruction)
        }
        after: dict[int, list[frozenset[int]]] = {}
        live: set[int] = set()
        # One pass suffices because jumps only lead forward: loops are calls.
        for index in range(len(code) - 1, -1, -1):
            if not self.is_needed[index]:
                continue
            if _never_falls_through(code[index]):
                live = set().union(*(self.live_in[target] for target in targets[index]))
            self._transfer(index, code[index], live)
            for register in joined.intersection(written_registers(code[index])):
                after.setdefault(register, []).append(frozenset(live - {register}))
            live.difference_update(written_registers(code[index]))
            if self.is_needed[index]:
                live.update(read_registers(code[index]))
            if index in leaders:
                self.live_in[index] = frozenset(live)
        self._find_interference(after)

    def _transfer(self, at: int, instruction: Instruction, live: set[int]) -> None:
        """Process an instruction; `live` is the live set after it."""
        written = written_registers(instruction)
        # Dead code: a pure instruction whose results nothing reads.
        if instruction.has("pure") and live.isdisjoint(written):
            self.is_needed[at] = False
            return
        registers = dict.fromkeys((*read_registers(instruction), *written))
        self.last_uses[at] = [register for register in registers if register not in live]

    def _find_interference(self, after: dict[int, list[frozenset[int]]]) -> None:
        """Record interference of values written in several places: their register is taken at the
        first write, and values live at a later write may not exist yet, so the two must never
        share one.
        """
        for register, (*later_sets, first) in after.items():
            for rival in frozenset().union(*later_sets) - first:
                self.interference.setdefault(register, set()).add(rival)
                self.interference.setdefault(rival, set()).add(register)


def _reachable_instructions(code: Sequence[Instruction]) -> list[bool]:
    """Return whether each instruction is reachable."""
    reached = [index == 0 for index in range(len(code))]
    for index, instruction in enumerate(code):
        if reached[index]:
            for target in _jump_positions(instruction, index):
                reached[target] = True
            if not _never_falls_through(instruction):
                reached[index + 1] = True
    return reached


def _never_falls_through(instruction: Instruction) -> bool:
    return instruction.has("ends")


@dataclass(slots=True)
class _RegisterFile:
    """Register file of a function: the register of each value, and which registers are occupied."""

    liveness: _Liveness
    register_of: dict[int, int]
    preferences: dict[int, int]
    """Preferred register: the value that it is moved to."""
    occupied: set[int] = field(default_factory=set)
    free_heap: list[int] = field(default_factory=list)
    """Heap of free registers, some of which may have been taken since."""
    count: int = 0

    def reset_to_live(self, live: Iterable[int]) -> None:
        """Enter a jump target, where exactly these values are live, whatever the code before it had
        occupied.
        """
        self.occupied = {self.register_of[value] for value in live}
        self.free_heap = [
            register for register in range(self.count) if register not in self.occupied
        ]

    def release(self, value: int) -> None:
        """Free the register of a dead value."""
        register = self.register_of[value]
        if register in self.occupied:
            self.occupied.remove(register)
            heapq.heappush(self.free_heap, register)

    def allocate(self, value: int, near: int | None = None) -> int:
        """Allocate a register for a value, preferably that of the dying value `near`. A value
        written on several paths gets its register at the first write and keeps it.
        """
        if value not in self.register_of:
            self.register_of[value] = self._choose_register(value, near)
        self.occupied.add(self.register_of[value])
        return self.register_of[value]

    def _choose_register(self, value: int, near: int | None) -> int:
        rivals = self.liveness.interference.get(value, ())
        barred = {self.register_of[rival] for rival in rivals if rival in self.register_of}
        wish = self.preferences.get(value)
        # A Move becomes a no-op where source and destination get the same register.
        for preferred in (near, wish):
            register = self.register_of.get(preferred) if preferred is not None else None
            if register is not None and register not in self.occupied and register not in barred:
                return register
        return self._lowest_free(barred)

    def _lowest_free(self, barred: set[int]) -> int:
        passed: list[int] = []
        chosen = None
        while self.free_heap and chosen is None:
            register = heapq.heappop(self.free_heap)
            # Barred registers return to the heap: they are barred for this value only.
            if register in barred:
                passed.append(register)
            elif register not in self.occupied:
                chosen = register
        for register in passed:
            heapq.heappush(self.free_heap, register)
        if chosen is None:
            chosen, self.count = self.count, self.count + 1
        return chosen


class _LinearScanAllocator:
    """Linear-scan allocator that rewrites one function from first to last instruction."""

    def __init__(self, code: Sequence[Instruction], n_params: int) -> None:
        self.code = code
        self.liveness = _Liveness(code, n_params)
        moves = [
            (instruction["src"], instruction["dst"])
            for instruction in code
            if instruction.name == "Move"
        ]
        wishes = {src: dst for src, dst in moves if isinstance(src, int) and isinstance(dst, int)}
        self.register_file = _RegisterFile(self.liveness, {i: i for i in range(n_params)}, wishes)
        self.register_file.count = n_params
        self.register_file.occupied = set(range(n_params))
        self.register_kinds: dict[int, int] = dict.fromkeys(range(n_params), OWNER_KIND)
        """Kind of value in each register that holds memory, dead or alive."""
        self.dead_registers: set[int] = set()
        """Registers whose value is dead."""
        self.kinds_at_target: dict[int, dict[int, int]] = {}
        """Register kinds at the targets of jumps."""
        self.rewritten: list[list[Instruction]] = []

    def rewrite(self) -> tuple[int, tuple[Instruction, ...]]:
        """Rewrite the function; return the number of registers and the instructions."""
        self._free_unused_params()
        for index, instruction in enumerate(self.code):
            if index in self.liveness.live_in:
                self._enter_target(index)
            if not self.liveness.is_needed[index]:
                self.rewritten.append([])
                continue
            self.rewritten.append(self._rewrite_instruction(index, instruction))
            for target in _jump_positions(instruction, index):
                _join_register_kinds(
                    self.kinds_at_target.setdefault(target, {}), self.register_kinds
                )
            # What registers hold is known again at the next jump target.
            if _never_falls_through(instruction):
                self.register_kinds = {}
        return self.register_file.count, _thread_jumps(self.code, self.rewritten)

    def _free_unused_params(self) -> None:
        """Free parameters that nothing reads at entry."""
        used = {register for instruction in self.code for register in read_registers(instruction)}
        for param in [p for p in self.register_file.register_of if p not in used]:
            self._end_live_range(param)

    def _enter_target(self, at: int) -> None:
        self.register_file.reset_to_live(self.liveness.live_in[at])
        _join_register_kinds(self.register_kinds, self.kinds_at_target.pop(at, {}))
        self.dead_registers = self.register_kinds.keys() - self.register_file.occupied

    def _end_live_range(self, value: int, is_moved: bool = False) -> None:
        self.register_file.release(value)
        if is_moved:
            self.register_kinds.pop(self.register_file.register_of[value], None)
        elif self.register_file.register_of[value] in self.register_kinds:
            self.dead_registers.add(self.register_file.register_of[value])

    def _rewrite_instruction(self, at: int, instruction: Instruction) -> list[Instruction]:
        dying = self.liveness.last_uses[at]
        rewritten = self._kill_instructions(instruction)
        read = {
            value: self.register_file.register_of[value] for value in read_registers(instruction)
        }
        kind = self._result_kind(instruction, dying)
        written = written_registers(instruction)
        movable = movable_registers(instruction)
        # A last read may move the value out, which saves a reference count, if all reads of it are
        # movable.
        moved = {v for v in dying if movable.count(v) == read_registers(instruction).count(v) > 0}
        # Operands die before the results get registers, so that a result may reuse theirs.
        for value in dying:
            if value in read and value not in written:
                self._end_live_range(value, value in moved)
        near = next(iter(read), None) if instruction.name == "Move" else None
        write = {value: self.register_file.allocate(value, near) for value in written}
        self._allocate_result(write, kind, dying)
        if instruction.name != "Move" or list(write.values()) != list(read.values()):
            rewritten.append(rename_registers(instruction, read, write, moved))
        return rewritten

    def _allocate_result(self, write: dict[int, int], kind: int, dying: Sequence[int]) -> None:
        for value, register in write.items():
            self.dead_registers.discard(register)
            self.register_kinds.pop(register, None)
            if kind:
                self.register_kinds[register] = kind
            if value in dying:
                self._end_live_range(value)

    def _result_kind(self, instruction: Instruction, dying: Sequence[int]) -> int:
        """Return the kind of value that an instruction's result holds."""
        if instruction.has("plain"):
            return 0
        if instruction.name in ("AllocTensor", "AllocTensorReg"):
            return OWNER_KIND if instruction["storage"] in dying else VIEW_KIND
        if instruction.name in ("Move", "ReshapeTensor"):
            return max(
                self.register_kinds.get(self.register_file.register_of[v], 0)
                for v in read_registers(instruction)
            )
        return OWNER_KIND

    def _kill_instructions(self, instruction: Instruction) -> list[Instruction]:
        """Return KillRegister instructions for dead values before an instruction that allocates or
        runs long. Before an allocation only owners matter, whose memory it can reuse; before a
        call views too, since the callee may keep their memory alive for long. A register that
        has been overwritten has released its value already.
        """
        if not instruction.has("long") and not instruction.has("allocates"):
            return []
        # A view pins its storage, which matters for the duration of a long instruction; before an
        # allocation only memory that it can reuse matters.
        lowest_kind = VIEW_KIND if instruction.has("long") else OWNER_KIND
        dead_registers = sorted(
            candidate
            for candidate in self.dead_registers
            if self.register_kinds[candidate] >= lowest_kind
        )
        for register in dead_registers:
            self.dead_registers.remove(register)
            del self.register_kinds[register]
        return [
            make_instruction("KillRegister", dst=dead_register) for dead_register in dead_registers
        ]


def _join_register_kinds(into: dict[int, int], holds: dict[int, int]) -> None:
    """Join what registers may hold on another control-flow path."""
    for register, kind in holds.items():
        into[register] = max(kind, into.get(register, 0))


def _thread_jumps(
    code: Sequence[Instruction], rewritten: Sequence[list[Instruction]]
) -> tuple[Instruction, ...]:
    """Lay out the rewritten instructions: jumps to the next instruction are removed, jumps to jumps
    threaded.
    """
    resolved: list[int] = [len(code)] * (len(code) + 1)
    """For each old position, the first position at or after it that still has an instruction,
    following jumps.
    """
    standing = list(resolved)
    for index in range(len(code) - 1, -1, -1):
        is_jump = len(rewritten[index]) == 1 and rewritten[index][0].name == "Goto"
        to = resolved[_jump_positions(code[index], index)[0]] if is_jump else index
        if is_jump and standing[to] == standing[index + 1]:
            rewritten[index].clear()
        standing[index] = index if rewritten[index] else standing[index + 1]
        resolved[index] = to if is_jump else index if rewritten[index] else resolved[index + 1]
    start: list[int] = [0]
    for instructions in rewritten:
        start.append(start[-1] + len(instructions))
    out: list[Instruction] = []
    for index, instructions in enumerate(rewritten):
        for instruction in instructions:
            old_targets = _jump_positions(code[index], index) if jump_offsets(instruction) else []
            targets = [start[resolved[old_target]] - len(out) for old_target in old_targets]
            out.append(with_jump_offsets(instruction, targets))
    return tuple(out)


def allocate_registers(
    code: Sequence[Instruction], n_params: int
) -> tuple[int, tuple[Instruction, ...]]:
    """Allocate registers by linear scan: return the number of registers and the rewritten
    instructions. Parameters arrive in registers 0 to n_params - 1. Raises InternalError for a
    backward jump.
    """
    return _LinearScanAllocator(code, n_params).rewrite()
