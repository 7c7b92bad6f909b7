"""Disassembler: an executable's bytecode in TVM's notation, an instruction a line."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from ekiden.runtime.binding.opcodes import BY_NAME
from ekiden.runtime.debug.instructions import Instruction, Operand, decode, dtype_name

__all__ = [
    "disassemble",
    "disassemble_function",
    "disassemble_functions",
    "print_instruction",
]


class DisassemblableProgram(Protocol):
    """Interface of `runtime.Executable` that the disassembler needs."""

    @property
    def globals(self) -> list[str]:
        """Return the names of the functions."""

    @property
    def primitives(self) -> list[str]:
        """Return the names of the primitives."""

    def code(self, name: str) -> tuple[int, list[int]]:
        """Return the number of registers and the code words of a function."""

    def params(self, name: str) -> list[str]:
        """Return the names of a function's parameters."""


class DisassemblableFunction(Protocol):
    """Interface of a bytecode function that the disassembler needs."""

    @property
    def name(self) -> str:
        """Return the function's name."""

    @property
    def params(self) -> Sequence[str]:
        """Return the names of the parameters."""

    @property
    def n_registers(self) -> int:
        """Return the number of registers."""

    @property
    def code(self) -> Sequence[Instruction]:
        """Return the instructions."""


def disassemble(executable: DisassemblableProgram) -> str:
    """Return the text of all functions of an executable in index order, then the
    primitives' names.
    """
    functions = []
    for name in executable.globals:
        n_registers, words = executable.code(name)
        functions.append((name, executable.params(name), n_registers, decode(words)))
    return _format_listing(functions, executable.primitives)


def disassemble_functions(
    functions: Iterable[DisassemblableFunction], primitives: Iterable[str]
) -> str:
    """Return the same text for functions outside of an executable."""
    return _format_listing(
        [(f.name, f.params, f.n_registers, f.code) for f in functions], primitives
    )


def _format_listing(
    functions: Iterable[tuple[str, Sequence[str], int, Sequence[Instruction]]],
    primitives: Iterable[str],
) -> str:
    texts = [
        disassemble_function(f"VMFunc[{index}]: {name}({', '.join(params)})", n_registers, code)
        for index, (name, params, n_registers, code) in enumerate(functions)
    ]
    names = [f"PackedFunc[{i}]: {name}" for i, name in enumerate(primitives)]
    return "\n\n".join([*texts, "\n".join(names)] if names else texts) + "\n"


def disassemble_function(head: str, n_registers: int, code: Sequence[Instruction]) -> str:
    """Return a heading, the function's size, and a line per instruction: its index and printed
    form.
    """
    lines = [head, f"  # {n_registers} registers, {len(code)} instructions"]
    width = len(str(max(len(code) - 1, 0)))
    for pc, instruction in enumerate(code):
        targets = _jump_targets_text(instruction, pc)
        lines.append(f"  {pc:>{width}}: {print_instruction(instruction)}{targets}")
    return "\n".join(lines)


def print_instruction(instruction: Instruction) -> str:
    """Return the printed form of an instruction, without its jump targets."""
    opcode = BY_NAME[instruction.name]
    letters = opcode.format.replace("n", "")
    shown = {
        name: _OPERAND_FORMATTERS.get(letter, str)(value)
        for name, letter, value in zip(opcode.operands, letters, instruction.operands, strict=True)
    }
    if instruction.has("kernel"):
        shown |= _split_kernel_operands(instruction)
    return opcode.text.format(**shown)


def _split_kernel_operands(instruction: Instruction) -> dict[str, str]:
    """Return a kernel's arguments as inputs and outputs."""
    args, output_size = instruction["args"], instruction["output_size"]
    assert isinstance(args, tuple) and isinstance(output_size, int)
    split = len(args) - output_size
    return {"inputs": _format_registers(args[:split]), "outputs": _format_registers(args[split:])}


def _jump_targets_text(instruction: Instruction, pc: int) -> str:
    """Return ' # to 5, 7' for an instruction that jumps."""
    opcode = BY_NAME[instruction.name]
    letters = opcode.format.replace("n", "")
    offsets: list[int] = []
    for letter, value in zip(letters, instruction.operands, strict=True):
        if letter in "jJ":
            offsets += value if isinstance(value, tuple) else [value]
    return f"  # to {', '.join(str(pc + offset) for offset in offsets)}" if offsets else ""


def _format_register(value: Operand) -> str:
    return f"${value}"


def _format_registers(value: Operand) -> str:
    assert isinstance(value, tuple)
    return ", ".join(f"${register}" for register in value)


def _format_read_register(value: Operand) -> str:
    """Return the text of a read register, with `~` if it is cleared by the read."""
    assert isinstance(value, int)
    return f"${value}" if value >= 0 else f"~${-1 - value}"


def _format_values(value: Operand) -> str:
    assert isinstance(value, tuple)
    return ", ".join(map(_format_read_register, value))


def _format_list(value: Operand) -> str:
    assert isinstance(value, tuple)
    return ", ".join(map(str, value))


def _format_dtype(value: Operand) -> str:
    assert isinstance(value, tuple)
    return dtype_name(*value)


_OPERAND_FORMATTERS: dict[str, Callable[[Operand], str]] = {
    "w": _format_register,
    "r": _format_register,
    "e": _format_register,
    "E": _format_register,
    "R": _format_registers,
    "u": _format_read_register,
    "v": _format_read_register,
    "V": _format_values,
    "J": _format_list,
    "L": _format_list,
    "t": _format_dtype,
    "f": "VMFunc[{}]".format,
    "F": "VMFunc[{}]".format,
    "p": "PackedFunc[{}]".format,
    "k": "Const[{}]".format,
}
