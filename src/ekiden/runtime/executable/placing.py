"""Which instruction of a program makes the memory of each result, so that a caller's can stand in
its place.

Only in programs that go from the first instruction to the last one, and keep nothing of a run: each
storage is then made once, and what lies in it when the run ends is the result alone. Elsewhere
results are copied.

    alloc_storage $2 $1[0]   <- the place of result 0
    alloc_tensor $3 $2 ...
    invoke_packed ... out: $3
    ret $3
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from ekiden.runtime.binding._core import Executable, Tensor, VirtualMachine, get_global_func
from ekiden.runtime.binding.opcodes import BY_NAME
from ekiden.runtime.debug.instructions import Instruction, Operand, decode, encode

Place: TypeAlias = Tensor | npt.NDArray[Any]
"""Where one output is written to."""

Range = tuple[int, int]
"""The first byte of some memory, and the first one after it."""

ORDINARY = frozenset({"AllocArena", "AllocStorage", "AllocTensor", "AllocTensorReg", "InvokePacked",
                      "InvokePackedScratch", "KillRegister", "LoadConst", "LoadConsti", "Move",
                      "Own", "ReadElement", "ReshapeTensor", "ShapeOf"})  # fmt: skip
"""Instructions that a program may be made of, but for the last ones: they go on to the next one,
and no value outlives the run by them."""


def result_sites(
    executable: Executable, count: int, function: str = "main"
) -> tuple[int | None, ...]:
    """For each of the results of a function, the first word of the instruction that asks for its
    memory; None where there is none, or it cannot be told.
    """
    _, words = executable.code(function)
    code = decode(words)
    nowhere = (None,) * count
    if not code or code[-1].name != "Ret":
        return nowhere
    *before, last = code
    results = _registers(last.operands[0])
    if count > 1 and before and before[-1].name == "AllocADT":
        *before, made = before
        results = _registers(made["fields"]) if [made["dst"]] == results else []
    if len(results) != count or any(i.name not in ORDINARY for i in before):
        return nowhere
    ends = np.cumsum([0, *(len(encode(i)) for i in before)]).tolist()
    sites = [_site(before, register) for register in results]
    return tuple(None if s is None else int(ends[s]) for s in sites)


def _registers(operand: Operand) -> list[int]:
    """Registers as numbers; one that is left empty by the reading is written as its complement."""
    many = operand if isinstance(operand, tuple) else (operand,)
    return [~r if r < 0 else r for r in many]


def _site(code: Sequence[Instruction], register: int) -> int | None:
    """The position of the AllocStorage behind what a register holds in the end."""
    wanted = "tensor"
    for at in range(len(code) - 1, -1, -1):
        each = code[at]
        if "dst" not in BY_NAME[each.name].operands or each["dst"] != register:
            continue
        match each.name:
            case "AllocTensor" | "AllocTensorReg" if wanted == "tensor":
                (register,), wanted = _registers(each["storage"]), "storage"
            case "ReshapeTensor" if wanted == "tensor":
                (register,) = _registers(each["tensor"])
            case "Move":
                (register,) = _registers(each["src"])
            case "AllocStorage" if wanted == "storage":
                return at
            case _:
                return None
    return None


def direct_places(
    sites: Sequence[int | None], places: Sequence[Place | None], values: Sequence[object]
) -> list[object]:
    """Pairs (instruction, tensor) for the machine: the places that kernels can write themselves.

    Those are contiguous and aligned, of elements, and apart from each other and from all that the
    run reads.
    """
    if not all(isinstance(v, (Tensor, np.ndarray)) for v in values):
        return []
    read = [_memory(v) for v in values]
    taken = [None if p is None else _memory(p) for p in places]
    found: list[object] = []
    for n, (site, place) in enumerate(zip(sites, places, strict=True)):
        mine = taken[n]
        if site is None or place is None or mine is None or mine[0] == mine[1]:
            continue
        others = [*read, *(t for k, t in enumerate(taken) if k != n and t is not None)]
        if _is_plain(place) and not any(_overlap(mine, other) for other in others):
            found += (site, place)
    return found


def invoke_into(
    machine: VirtualMachine, places: Sequence[object], name: str, args: Sequence[object]
) -> object:
    """A call with `places`, those of `direct_places`, which are the machine's for this one only.
    What it gives lies in them: whoever holds it holds them, too.
    """
    if not places:
        return machine.invoke(name, *args)
    set_places = get_global_func("ek.vm.places")
    set_places(machine, *places)
    try:
        return machine.invoke(name, *args)
    finally:
        set_places(machine)


def is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of the host are one."""
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    return bool(one.numpy().ctypes.data == other.numpy().ctypes.data)


def _array(value: object) -> npt.NDArray[Any]:
    found = value if isinstance(value, np.ndarray) else cast(Tensor, value).numpy()
    return np.asarray(found)


def _is_plain(place: Place) -> bool:
    flags = _array(place).flags
    return flags.c_contiguous and flags.aligned


def _memory(value: object) -> Range:
    low, high = np.lib.array_utils.byte_bounds(_array(value))
    return int(low), int(high)


def _overlap(a: Range, b: Range) -> bool:
    return a[0] < b[1] and b[0] < a[1]


__all__ = ["Place", "direct_places", "invoke_into", "is_same", "result_sites"]
