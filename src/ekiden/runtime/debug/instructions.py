"""Virtual machine instructions as values and as words.

An `Instruction` is its name and one operand for each name in its row of `OPCODES`: an int, or a
tuple of ints for a list; a dtype is the tuple (code, bits, lanes). Lengths of lists are implied.
Its words are what the C runtime reads: the opcode, then the operands, 64-bit ones as two words, low
first.
"""

from collections.abc import Sequence
from dataclasses import field
from typing import TypeAlias

from ekiden.runtime.binding.dtypes import dtype_code, dtype_name
from ekiden.runtime.binding.opcodes import BY_NAME, OPCODES, Opcode, operand_words
from ekiden.runtime.errors import InternalError, LoadError
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["Instruction", "decode", "dtype_code", "dtype_name", "encode", "make_instruction"]

Operand: TypeAlias = int | tuple[int, ...]

LIST_OPERAND_LETTERS = "RVJL"
"""The letters of operands that are lists, of which an instruction has at most one."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """Instruction of the virtual machine: `Instruction("Move", (dst, src))`. `make` takes operands
    by name.
    """

    name: str
    operands: tuple[Operand, ...] = ()
    source: str = field(default="", compare=False)
    """Model node or source location that the instruction was compiled from; not encoded in the
    words."""
    checks: tuple[str, ...] = field(default=(), compare=False)
    """For a kernel call, the display names of its operators that may reject an index."""

    def __getitem__(self, operand: str) -> Operand:
        """Return the operand of a name. Raises ValueError if the instruction has none."""
        return self.operands[BY_NAME[self.name].operands.index(operand)]

    def has(self, property: str) -> bool:
        """Return whether the opcode has a property of runtime/src/vm_opcodes.def."""
        return property in BY_NAME[self.name].properties


def make_instruction(name: str, **operands: int | str | Sequence[int]) -> Instruction:
    """Build an instruction from operands by name; a dtype may be a string such as "float32". Raises
    InternalError for other operands than the opcode's.
    """
    expected = BY_NAME[name].operands
    if set(operands) != set(expected):
        raise InternalError(
            f"{name}: expected the operands {', '.join(expected)}, got {', '.join(operands)}"
        )
    return Instruction(
        name, tuple(_normalize_operand(operands[operand_name]) for operand_name in expected)
    )


def _normalize_operand(value: int | str | Sequence[int]) -> Operand:
    if isinstance(value, str):
        return dtype_code(value)
    return value if isinstance(value, int) else tuple(int(item) for item in value)


def encode(instruction: Instruction) -> list[int]:
    """Return the instruction's words as signed 32-bit integers. Raises InternalError for another
    number of operands than the opcode's.
    """
    opcode = BY_NAME[instruction.name]
    if len(instruction.operands) != len(opcode.operands):
        raise InternalError(
            f"{instruction.name}: expected {len(opcode.operands)} operands"
            f" ({', '.join(opcode.operands)}), got {len(instruction.operands)}"
        )
    operands = dict(zip(_operand_format(opcode), instruction.operands, strict=True))
    words = [opcode.number]
    values = iter(instruction.operands)
    for letter in opcode.format:
        if letter == "n":
            (items,) = (
                operands[list_letter]
                for list_letter in LIST_OPERAND_LETTERS
                if list_letter in operands
            )
            words.append(len(_expect_tuple(items, instruction)))
        else:
            words += _encode_operand(letter, next(values), instruction)
    return words


def _operand_format(opcode: Opcode) -> str:
    """Return the format without 'n': a letter for each named operand."""
    return opcode.format.replace("n", "")


def _encode_operand(letter: str, value: Operand, instruction: Instruction) -> list[int]:
    match letter:
        case "R" | "V" | "J":
            return [_expect_word(item, instruction) for item in _expect_tuple(value, instruction)]
        case "L":
            return [
                w
                for number in _expect_tuple(value, instruction)
                for w in _split_int64(number, instruction)
            ]
        case "t":
            dtype = _expect_tuple(value, instruction)
            if len(dtype) != 3:
                raise InternalError(f"{instruction}: a dtype is (code, bits, lanes), got {dtype}")
            return [_expect_word(field, instruction) for field in dtype]
        case "I":
            return _split_int64(value, instruction)
        case _:
            return [_expect_word(value, instruction)]


def _expect_tuple(value: Operand | None, instruction: Instruction) -> tuple[int, ...]:
    if not isinstance(value, tuple):
        raise InternalError(f"{instruction}: a tuple expected where the operand is {value}")
    return value


def _expect_word(value: Operand, instruction: Instruction) -> int:
    if isinstance(value, tuple) or not -(2**31) <= value < 2**31:
        raise InternalError(
            f"{instruction}: a 32-bit integer expected where the operand is {value}"
        )
    return int(value)


def _split_int64(value: Operand, instruction: Instruction) -> list[int]:
    """Return the low and high word of a 64-bit integer."""
    if isinstance(value, tuple) or not -(2**63) <= value < 2**63:
        raise InternalError(
            f"{instruction}: a 64-bit integer expected where the operand is {value}"
        )
    return [_to_int32(value), _to_int32(value >> 32)]


def _to_int32(value: int) -> int:
    """Return the low 32 bits as a signed integer."""
    return (value + 2**31) % 2**32 - 2**31


def decode(words: Sequence[int]) -> list[Instruction]:
    """Decode words to instructions. Raises LoadError for invalid ones."""
    instructions = []
    position = 0
    while position < len(words):
        number = words[position]
        # Words come from files, so each is checked before it is used as an index.
        if not 0 <= number < len(OPCODES):
            raise LoadError(
                f"decoding word {position}: an opcode below {len(OPCODES)} expected, got {number}"
            )
        instruction, position = _decode_instruction(OPCODES[number], words, position + 1)
        instructions.append(instruction)
    return instructions


def _decode_instruction(opcode: Opcode, words: Sequence[int], at: int) -> tuple[Instruction, int]:
    """Decode the instruction whose operands start at `at`; return it and the start of the next."""
    operands: list[Operand] = []
    count = 0
    for letter in opcode.format:
        length = operand_words(letter, count)
        operand_words_read = [_to_int32(word) for word in words[at : at + length]]
        at += length
        if len(operand_words_read) != length:
            raise LoadError(f"decoding {opcode.name}: {at} words expected, got {len(words)}")
        if letter == "n":
            count = operand_words_read[0]
            if count < 0:
                raise LoadError(f"decoding {opcode.name}: a list length >= 0 expected, got {count}")
        else:
            operands.append(_decode_operand(letter, operand_words_read))
    return Instruction(opcode.name, tuple(operands)), at


def _decode_operand(letter: str, words: list[int]) -> Operand:
    match letter:
        case "R" | "V" | "J" | "t":
            return tuple(words)
        case "L":
            return tuple(map(_join_int64, words[::2], words[1::2]))
        case "I":
            return _join_int64(*words)
        case _:
            return words[0]


def _join_int64(low: int, high: int) -> int:
    """Return the signed 64-bit integer of two words."""
    return (low & 0xFFFFFFFF) | high << 32
