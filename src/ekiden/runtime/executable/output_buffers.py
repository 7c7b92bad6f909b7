"""Output buffers: the allocation site of each result, so that the caller's memory can replace it.

Supported for straight-line programs without state: there each storage is allocated once and holds
only the result at the end of the run. Results of other programs are copied.

    alloc_storage $2 $1[0]   <- the buffer of result 0
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

OutputBuffer: TypeAlias = Tensor | npt.NDArray[Any]
"""Destination of one output."""

AddressRange = tuple[int, int]
"""Half-open range of addresses."""

STRAIGHT_LINE_OPCODES = frozenset({"AllocArena", "AllocStorage", "AllocTensor", "AllocTensorReg",
                                   "InvokePacked",
                      "InvokePackedScratch", "KillRegister", "LoadConst", "LoadConsti", "Move",
                                   "Own", "ReadElement", "ReshapeTensor", "ShapeOf"})  # fmt: skip
"""Opcodes allowed before the final AllocADT and Ret: they fall through to the next instruction and
let no value outlive the run."""


def result_sites(
    executable: Executable, count: int, function: str = "main"
) -> tuple[int | None, ...]:
    """Return for each result of a function the word offset of the instruction that allocates its
    memory; None where there is none or it is unknown.
    """
    _, words = executable.code(function)
    code = decode(words)
    nowhere = (None,) * count
    if not code or code[-1].name != "Ret":
        return nowhere
    *before, last = code
    results = _register_numbers(last.operands[0])
    if count > 1 and before and before[-1].name == "AllocADT":
        *before, tuple_instruction = before
        results = (
            _register_numbers(tuple_instruction["fields"])
            if [tuple_instruction["dst"]] == results
            else []
        )
    # Behind a branch or call, which allocation a result comes from is known at run time only.
    if len(results) != count or any(i.name not in STRAIGHT_LINE_OPCODES for i in before):
        return nowhere
    ends = np.cumsum([0, *(len(encode(i)) for i in before)]).tolist()
    sites = [_allocation_site(before, register) for register in results]
    return tuple(None if s is None else int(ends[s]) for s in sites)


def _register_numbers(operand: Operand) -> list[int]:
    """Return registers as numbers; one that is cleared by the read is stored as its complement."""
    items = operand if isinstance(operand, tuple) else (operand,)
    return [~r if r < 0 else r for r in items]


def _allocation_site(code: Sequence[Instruction], register: int) -> int | None:
    """Return the position of the AllocStorage behind a register's final value."""
    searched = "tensor"
    for position in range(len(code) - 1, -1, -1):
        instruction = code[position]
        if "dst" not in BY_NAME[instruction.name].operands or instruction["dst"] != register:
            continue
        match instruction.name:
            case "AllocTensor" | "AllocTensorReg" if searched == "tensor":
                (register,), searched = _register_numbers(instruction["storage"]), "storage"
            case "ReshapeTensor" if searched == "tensor":
                (register,) = _register_numbers(instruction["tensor"])
            case "Move":
                (register,) = _register_numbers(instruction["src"])
            case "AllocStorage" if searched == "storage":
                return position
            case _:
                return None
    return None


def direct_buffers(
    sites: Sequence[int | None],
    destinations: Sequence[OutputBuffer | None],
    values: Sequence[object],
) -> list[object]:
    """Return (instruction, tensor) pairs for the machine: the output buffers that kernels can write
    in place. They are contiguous, aligned, not empty, and disjoint from each other and from all
    that the run reads.
    """
    if not all(isinstance(v, (Tensor, np.ndarray)) for v in values):
        return []
    # A kernel must not write memory that a later kernel still reads as an input.
    read = [_address_range(v) for v in values]
    output_ranges = [None if p is None else _address_range(p) for p in destinations]
    pairs: list[object] = []
    for n, (site, destination) in enumerate(zip(sites, destinations, strict=True)):
        output_range = output_ranges[n]
        if (
            site is None
            or destination is None
            or output_range is None
            or output_range[0] == output_range[1]
        ):
            continue
        other_ranges = [
            *read,
            *(t for k, t in enumerate(output_ranges) if k != n and t is not None),
        ]
        if _is_dense_buffer(destination) and not any(
            _ranges_overlap(output_range, other_range) for other_range in other_ranges
        ):
            pairs += (site, destination)
    return pairs


def invoke_into(
    machine: VirtualMachine, buffer_pairs: Sequence[object], name: str, args: Sequence[object]
) -> object:
    """Call a function that writes its results to the buffers of `direct_buffers`, which hold for
    this call only. Its results share their memory and keep them alive.
    """
    if not buffer_pairs:
        return machine.invoke(name, *args)
    set_places = get_global_func("ek.vm.places")
    set_places(machine, *buffer_pairs)
    try:
        return machine.invoke(name, *args)
    finally:
        # The machine goes back to the pool, where another caller must not write to these buffers.
        set_places(machine)


def is_same_memory(one: Tensor, second: Tensor) -> bool:
    """Return whether two host tensors are the same memory."""
    if (one.shape, one.dtype) != (second.shape, second.dtype):
        return False
    return bool(one.numpy().ctypes.data == second.numpy().ctypes.data)


def _host_array(value: object) -> npt.NDArray[Any]:
    viewed = value if isinstance(value, np.ndarray) else cast(Tensor, value).numpy()
    return np.asarray(viewed)


def _is_dense_buffer(destination: OutputBuffer) -> bool:
    flags = _host_array(destination).flags
    return flags.c_contiguous and flags.aligned


def _address_range(value: object) -> AddressRange:
    low, high = np.lib.array_utils.byte_bounds(_host_array(value))
    return int(low), int(high)


def _ranges_overlap(a: AddressRange, b: AddressRange) -> bool:
    return a[0] < b[1] and b[0] < a[1]


__all__ = ["OutputBuffer", "direct_buffers", "invoke_into", "is_same_memory", "result_sites"]
