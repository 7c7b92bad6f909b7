"""Register allocation keeps the results of functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from ekiden.backend.vm.instruction_operands import written_registers
from ekiden.backend.vm.register_allocation import allocate_registers
from ekiden.runtime.debug.instructions import Instruction, make_instruction
from ekiden.runtime.errors import InternalError

quick = pytest.mark.quick

N_PARAMS = 3
Draw = st.DrawFn


def run(code: Sequence[Instruction], choices: int) -> tuple[object, list[object]]:
    """The result of a function whose values are terms, and the calls it makes; `choices` has a bit
    for each test.
    """
    held: dict[object, object] = {i: f"p{i}" for i in range(N_PARAMS)}
    effects: list[object] = []
    at = 0
    while True:
        item = code[at]
        match item.name:
            case "Ret":
                return held[item["src"]], effects
            case "Goto":
                at += _offset(item, "offset")
                continue
            case "If":
                term = (held[item["test"]], held[item["target"]])
                effects.append(term)
                is_true = choices >> len(effects) & 1
                at += _offset(item, "true_offset" if is_true else "false_offset")
                continue
            case "KillRegister":
                held.pop(item["dst"], None)
            case "InvokePacked":
                effects.append(_terms(item, held, "args"))
            case "Invoke":
                effects.append(_terms(item, held, "args"))
                held[item["dst"]] = ("call", effects[-1])
            case "Move":
                held[item["dst"]] = _take(item["src"], held)
            case "LoadConsti":
                held[item["dst"]] = item["value"]
            case "GetField":
                held[item["dst"]] = ("field", held[item["object"]], item["index"])
            case "AllocADT":
                held[item["dst"]] = ("data", _terms(item, held, "fields"))
        at += 1


def _offset(each: Instruction, name: str) -> int:
    offset = each[name]
    assert isinstance(offset, int)
    return offset


def _terms(each: Instruction, held: dict[object, object], name: str) -> tuple[object, ...]:
    registers = each[name]
    assert isinstance(registers, tuple)
    return tuple(_take(register, held) for register in registers)


def _take(register: object, held: dict[object, object]) -> object:
    """What a register holds; nothing is left in one that is written -1-r."""
    assert isinstance(register, int)
    return held[register] if register >= 0 else held.pop(-1 - register)


@dataclass
class Writer:
    """Draws the code of a function as the compiler emits it: joins are values written on every way
    to them.
    """

    draw: Draw
    code: list[Instruction] = field(default_factory=list)
    count: int = N_PARAMS

    def number(self, low: int, high: int) -> int:
        result: int = self.draw(st.integers(low, high))
        return result

    def new(self) -> int:
        self.count += 1
        return self.count - 1

    def some(self, known: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.pick(known) for _ in range(self.number(0, 3)))

    def pick(self, known: Sequence[int]) -> int:
        return known[self.number(0, len(known) - 1)]

    def simple(self, known: list[int]) -> None:
        kind = self.number(0, 5)
        if kind == 5:
            self.code.append(
                make_instruction(
                    "InvokePacked", packed_index=0, output_size=0, args=self.some(known)
                )
            )
            return
        dst = self.new()
        result = (
            lambda: make_instruction("LoadConsti", dst=dst, value=len(self.code)),
            lambda: make_instruction("Move", dst=dst, src=self.pick(known)),
            lambda: make_instruction("GetField", dst=dst, object=self.pick(known), index=1),
            lambda: make_instruction("AllocADT", dst=dst, tag=0, fields=self.some(known)),
            lambda: make_instruction("Invoke", dst=dst, func=0, args=self.some(known)),
        )
        self.code.append(result[kind]())
        known.append(dst)

    def block(self, known: list[int], depth: int) -> list[int]:
        """A few values, some of them chosen among branches that give several; what is known."""
        known = list(known)
        for _ in range(self.number(1, 5)):
            if depth and self.number(0, 2) == 0:
                known += self.branch(known, depth - 1)
            else:
                self.simple(known)
        return known

    def branch(self, known: list[int], depth: int) -> list[int]:
        """A test and two or three ways to values that each of them writes."""
        joined = [self.new() for _ in range(self.number(1, 3))]
        ends: list[int] = []
        for _ in range(self.number(1, 2)):
            at = len(self.code)
            test, target = self.pick(known), self.pick(known)
            branch = make_instruction("If", test=test, target=target, true_offset=1, false_offset=1)
            self.code.append(branch)
            self.leave(self.block(known, depth), joined)
            ends.append(len(self.code))
            self.code.append(make_instruction("Goto", offset=1))
            self.code[at] = make_instruction("If", test=test, target=target, true_offset=1,
                                             false_offset=len(self.code) - at)  # fmt: skip
        self.leave(self.block(known, depth), joined)
        for at in ends:
            self.code[at] = make_instruction("Goto", offset=len(self.code) - at)
        return joined

    def leave(self, known: list[int], joined: list[int]) -> None:
        for item in joined:
            self.code.append(make_instruction("Move", dst=item, src=self.pick(known)))


@st.composite
def functions(draw: Draw) -> list[Instruction]:
    writer = Writer(draw)
    known = writer.block(list(range(N_PARAMS)), 3)
    writer.code.append(make_instruction("Ret", src=writer.pick(known)))
    return writer.code


@settings(max_examples=60, deadline=None, phases=[Phase.generate])
@given(functions(), st.integers(0, 2**20))
def test_register_allocation_preserves_results(code: list[Instruction], choices: int) -> None:
    count, shared = allocate_registers(code, N_PARAMS)
    result, effects = run(code, choices)
    assert run(shared, choices) == (result, effects)
    highest = max((r for item in code for r in written_registers(item)), default=0)
    assert count <= max(highest + 1, N_PARAMS)


@quick
def test_moves_are_coalesced_at_last_use() -> None:
    code = [
        make_instruction("AllocADT", dst=1, tag=0, fields=(0,)),
        make_instruction("Move", dst=2, src=1),
        make_instruction("Ret", src=2),
    ]
    assert allocate_registers(code, 1) == (
        1,
        (make_instruction("AllocADT", dst=0, tag=0, fields=(-1,)), make_instruction("Ret", src=0)),
    )


@quick
def test_arguments_are_moved_at_last_use() -> None:
    code = [
        make_instruction("Invoke", dst=3, func=0, args=(0, 1, 0)),
        make_instruction("InvokeClosure", dst=4, closure=1, args=(1, 2)),
        make_instruction("Ret", src=4),
    ]
    _, result = allocate_registers(code, 3)
    assert result[0]["args"] == (0, 1, -1)
    assert result[-2]["args"] == (1, -3)  # the closure stays until it is called


@quick
def test_unread_values_are_not_computed() -> None:
    code = [
        make_instruction("GetField", dst=1, object=0, index=0),
        make_instruction("AllocADT", dst=2, tag=0, fields=(1,)),
        make_instruction("Ret", src=0),
    ]
    assert allocate_registers(code, 1) == (1, (make_instruction("Ret", src=0),))


@quick
def test_dead_registers_are_cleared_before_calls() -> None:
    """$1 is read on one way only; the other forgets it before its call."""
    code = [
        make_instruction("LoadConsti", dst=2, value=1),
        make_instruction("If", test=0, target=2, true_offset=1, false_offset=3),
        make_instruction("Invoke", dst=3, func=0, args=(1,)),
        make_instruction("Goto", offset=2),
        make_instruction("Invoke", dst=3, func=0, args=(0,)),
        make_instruction("Ret", src=3),
    ]
    count, result = allocate_registers(code, 2)
    assert count == 3
    assert [item.name for item in result] == [
        "LoadConsti", "If", "KillRegister", "Invoke", "Goto", "KillRegister", "Invoke", "Ret",
    ]  # fmt: skip
    assert result[2] == make_instruction("KillRegister", dst=0)
    assert result[5] == make_instruction("KillRegister", dst=1)
    assert result[1]["false_offset"] == 4


@quick
def test_tensors_in_shared_storage_are_not_killed_before_allocation() -> None:
    """The tensor of a storage of its own is; a view of the arena costs nothing to keep."""
    tensor = {"offset": 0, "dtype": "float32", "shape": ()}
    storage = {"size": 0, "size_index": 0, "alignment": 64, "device": 0}
    code = [
        make_instruction("AllocStorage", dst=1, **storage),  # type: ignore[arg-type]
        make_instruction("AllocTensor", dst=2, storage=1, **tensor),  # type: ignore[arg-type]
        make_instruction("AllocStorage", dst=3, **storage),  # type: ignore[arg-type]
        make_instruction("AllocTensor", dst=4, storage=3, **tensor),  # type: ignore[arg-type]
        make_instruction("InvokePacked", packed_index=0, output_size=1, args=(2, 4)),
        make_instruction("AllocStorage", dst=5, **storage),  # type: ignore[arg-type]
        make_instruction("AllocTensor", dst=6, storage=1, **tensor),  # type: ignore[arg-type]
        make_instruction("AllocTensor", dst=7, storage=5, **tensor),  # type: ignore[arg-type]
        make_instruction("InvokePacked", packed_index=0, output_size=1, args=(6, 7)),
        make_instruction("Ret", src=7),
    ]
    _, result = allocate_registers(code, 1)
    killed = [item["dst"] for item in result if item.name == "KillRegister"]
    own = next(item["args"] for item in result if item.name == "InvokePacked")
    assert isinstance(own, tuple)
    assert own[1] in killed
    assert own[0] not in killed


@quick
def test_backward_jump_is_refused() -> None:
    with pytest.raises(InternalError, match="registers: Goto at 1 jumps back"):
        allocate_registers(
            [make_instruction("LoadConsti", dst=0, value=1), make_instruction("Goto", offset=-1)], 0
        )


def test_long_function_needs_few_registers() -> None:
    code = [make_instruction("AllocADT", dst=i + 1, tag=0, fields=(i,)) for i in range(10_000)]
    count, result = allocate_registers([*code, make_instruction("Ret", src=10_000)], 1)
    assert (count, len(result)) == (1, 10_001)
