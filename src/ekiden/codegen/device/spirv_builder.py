"""Builder of the instructions of one SPIR-V function, with the interface of the LLVM and C
builders, so that expressions are lowered by shared code.

Operands are "%7", a result, or constants as LLVM writes them, whose type the instruction knows.
Values of 16-bit floats are their bits: arithmetic on them is float32's.
"""

from __future__ import annotations

import struct

from ekiden.codegen.device.spirv_module import (
    DECORATION_NO_CONTRACTION,
    STORAGE_CLASS_FUNCTION,
    Id,
    SpirvModule,
)
from ekiden.codegen.device.spirv_module import Operand as Word
from ekiden.codegen.llvm.builder import Arguments, FunctionBuilder, LlvmModule, Operand
from ekiden.ir import dtype as dt
from ekiden.runtime.errors import CompileError, InternalError

# fmt: off
SPIRV_TYPES: dict[str, str] = {
    "bool": "bool", "int8": "i8", "uint8": "i8", "int16": "i16", "uint16": "i16", "int32": "i32",
    "uint32": "i32", "int64": "i64", "uint64": "i64", "float16": "i16", "bfloat16": "i16",
    "float32": "f32", "float64": "f64",
}
_BINARY_OPCODES = {
    "fadd": "FAdd", "fsub": "FSub", "fmul": "FMul", "fdiv": "FDiv", "add": "IAdd", "sub": "ISub",
    "mul": "IMul", "sdiv": "SDiv", "udiv": "UDiv", "srem": "SRem", "urem": "UMod",
    "and": "BitwiseAnd", "or": "BitwiseOr", "xor": "BitwiseXor", "shl": "ShiftLeftLogical",
    "lshr": "ShiftRightLogical", "ashr": "ShiftRightArithmetic",
}
_BOOL_OPCODES = {"and": "LogicalAnd", "or": "LogicalOr", "xor": "LogicalNotEqual"}
_COMPARE_OPCODES = {
    "eq": "IEqual", "ne": "INotEqual", "ugt": "UGreaterThan", "sgt": "SGreaterThan",
    "uge": "UGreaterThanEqual", "sge": "SGreaterThanEqual", "ult": "ULessThan", "slt": "SLessThan",
    "ule": "ULessThanEqual", "sle": "SLessThanEqual", "oeq": "FOrdEqual", "one": "FOrdNotEqual",
    "une": "FUnordNotEqual", "olt": "FOrdLessThan", "ogt": "FOrdGreaterThan",
    "ole": "FOrdLessThanEqual", "oge": "FOrdGreaterThanEqual",
}
_CONVERT_OPCODES = {
    "trunc": "UConvert", "zext": "UConvert", "sext": "SConvert", "fptosi": "ConvertFToS",
    "fptoui": "ConvertFToU", "sitofp": "ConvertSToF", "uitofp": "ConvertUToF", "fpext": "FConvert",
    "fptrunc": "FConvert", "bitcast": "Bitcast",
}
_GLSL_STD_450 = {"roundeven": 2, "trunc": 3, "fabs": 4, "floor": 8, "ceil": 9, "sqrt": 31}
# fmt: on


def spirv_type(dtype: str) -> str:
    """Return the SPIR-V type of a value in a register. Raises CompileError where there is none."""
    name = SPIRV_TYPES.get(dt.storage_dtype(dt.element_dtype(dtype)))
    if name is None:
        raise CompileError(f"SPIR-V for Vulkan has no {dtype}")
    return name


class SpirvBuilder(FunctionBuilder):
    """Builder of the instructions of one SPIR-V function. It has the interface of the LLVM and C
    builders, so that the lowering of expressions is shared.
    """

    has_blocks = False

    def __init__(self, module: LlvmModule, spirv: SpirvModule) -> None:
        super().__init__(module)
        self.spirv = spirv
        self.label = Id(0)
        self._widened: dict[Operand, Operand] = {}
        """int64 values that are sign-extended int32 values -> what was extended."""

    # Instructions.

    def operand_id(self, operand: Operand, dtype: str) -> Id:
        """Return the id of an operand: that of a result, or of a constant of the dtype."""
        if operand[0] == "%":
            return Id(operand[1:])
        kind = spirv_type(dtype)
        return self.spirv.constant(kind, _parse_constant_bits(operand, kind))

    def append(self, op: str, *operands: Word) -> None:
        """Append an instruction without a result."""
        self.spirv.function.append((op, operands))

    def append_result(self, op: str, kind: Id, *operands: Word) -> Operand:
        """Append an instruction with a result that must not move or merge."""
        result = self.spirv.fresh_id()
        self.append(op, kind, result, *operands)
        return f"%{result}"

    def append_pure(self, op: str, kind: Id, *operands: Word, epoch: str = "") -> Operand:
        """Append an instruction without side effects, once per scope (local value numbering)."""
        key = f"{op} {kind} {' '.join(map(str, operands))}{epoch}"
        for table in reversed(self._scopes):
            if key in table:
                return table[key]
        result = self._scopes[-1][key] = self.append_result(op, kind, *operands)
        return result

    def append_typed(self, op: str, dtype: str, *operands: Word) -> Operand:
        """Append an instruction without side effects; the result has the given dtype."""
        return self.append_pure(op, self.spirv.type(spirv_type(dtype)), *operands)

    def memory_epoch(self, buffer: int) -> str:
        """Return the epoch of a buffer's memory: loads within one epoch return the same value."""
        return f"@{self._memory_epochs}.{self._num_epochs.get(buffer, 0)}"

    # Blocks.

    def start_block(self, label: Id) -> None:
        """Begin a block."""
        self.append("Label", label)
        self.label = label

    def jump(self, label: Id) -> None:
        """End a block."""
        self.append("Branch", label)

    # Interface of the builders, which shared emitters use.

    def binary(self, opcode: str, dtype: str, a: Operand, b: Operand) -> Operand:
        """Return the result of an arithmetic or bitwise operation."""
        is_bool = dt.element_dtype(dtype) == "bool"
        op = (_BOOL_OPCODES if is_bool else _BINARY_OPCODES)[opcode]
        result = self.append_typed(op, dtype, self.operand_id(a, dtype), self.operand_id(b, dtype))
        if op[0] == "F":
            self._forbid_contraction(result)
        return result

    def _forbid_contraction(self, result: Operand) -> None:
        """Decorate a float operation NoContraction, so that no driver fuses a product and a sum."""
        last = self.spirv.function[-1][1]
        if len(last) > 1 and f"%{last[1]}" == result:
            decorations = self.spirv.decorations
            if not decorations or decorations[-1] != (
                "Decorate",
                (last[1], DECORATION_NO_CONTRACTION),
            ):
                self.spirv.decorate(Id(last[1]), DECORATION_NO_CONTRACTION)

    def negate(self, dtype: str, a: Operand) -> Operand:
        """Return `-a` of floats."""
        return self.append_typed("FNegate", dtype, self.operand_id(a, dtype))

    def compare(self, predicate: str, dtype: str, a: Operand, b: Operand) -> Operand:
        """Return a bool by LLVM's predicate of icmp or fcmp."""
        if dt.element_dtype(dtype) == "bool":
            if predicate in ("eq", "ne"):
                op = "LogicalEqual" if predicate == "eq" else "LogicalNotEqual"
                return self.append_typed(
                    op, "bool", self.operand_id(a, "bool"), self.operand_id(b, "bool")
                )
            a, b = (self.convert("zext", "bool", "int32", x) for x in (a, b))
            dtype = "int32"
        # Mesa's NIR optimizer, seen in 22.3, miscompiles a sign-extended value compared with a
        # constant: "x < 4" is false for all x. What was extended compares the same.
        if any(x in self._widened and _is_int32_constant(y) for x, y in ((a, b), (b, a))):
            a, b, dtype = self._widened.get(a, a), self._widened.get(b, b), "int32"
        x, y = self.operand_id(a, dtype), self.operand_id(b, dtype)
        if predicate not in ("uno", "ord"):
            return self.append_typed(_COMPARE_OPCODES[predicate], "bool", x, y)
        is_nan = self.append_typed("IsNan", "bool", x)
        if x != y:
            y_is_nan = self.operand_id(self.append_typed("IsNan", "bool", y), "bool")
            is_nan = self.append_typed(
                "LogicalOr", "bool", self.operand_id(is_nan, "bool"), y_is_nan
            )
        if predicate == "uno":
            return is_nan
        return self.append_typed("LogicalNot", "bool", self.operand_id(is_nan, "bool"))

    def select(
        self, condition: Operand, dtype: str, a: Operand, b: Operand, lanes: int = 1
    ) -> Operand:
        """Return `a if condition else b`."""
        chosen = self.operand_id(a, dtype), self.operand_id(b, dtype)
        return self.append_typed("Select", dtype, self.operand_id(condition, "bool"), *chosen)

    def convert(self, opcode: str, source: str, target: str, a: Operand) -> Operand:
        """Return a converted value, by the names of LLVM's instructions."""
        if spirv_type(source) == spirv_type(target):
            return f"%{self.operand_id(a, source)}"
        if dt.element_dtype(source) == "bool":
            one = "0x3FF0000000000000" if dt.is_float(target) else "1"
            zero = "0x0000000000000000" if dt.is_float(target) else "0"
            return self.select(a, target, one, zero)
        converted = self.append_typed(_CONVERT_OPCODES[opcode], target, self.operand_id(a, source))
        if (opcode, source, target) == ("sext", "int32", "int64"):
            self._widened[converted] = a
        return converted

    def call(self, name: str, result: str, arguments: Arguments) -> Operand:
        """Raise CompileError: SPIR-V kernels call no functions; there is nothing to call."""
        raise InternalError(f"SPIR-V: no meaning for a call of {name!r}")

    def intrinsic(self, name: str, dtype: str, *operands: Operand) -> Operand:
        """Emit an instruction of the GLSL.std.450 set, or its replacement."""
        if name == "copysign":
            word = "int32" if dt.element_dtype(dtype) == "float32" else "int64"
            sign = 1 << (dt.SCALAR_BITS[word] - 1)
            size, of = (self.convert("bitcast", dtype, word, o) for o in operands)
            bits = self.binary("and", word, size, self.const(sign - 1, word))
            sign_bit = self.binary("and", word, of, self.const(-sign, word))
            combined = self.binary("or", word, bits, sign_bit)
            return self.convert("bitcast", word, dtype, combined)
        ids = [self.operand_id(o, dtype) for o in operands]
        return self.append_typed("ExtInst", dtype, self.spirv.glsl, _GLSL_STD_450[name], *ids)

    def load_table_element(self, values: tuple[float, ...], index: Operand, lanes: int) -> Operand:
        """Load an element of a constant table, which a local variable of the function holds."""
        spirv = self.spirv
        table, count = spirv.constant_table(values)
        kind = spirv.array(spirv.type("f64"), count)
        variable = spirv.local_variable(kind)
        # The optional last operand of OpVariable is its initializer.
        spirv.variables[-1] = ("Variable", (*spirv.variables[-1][1], table))
        pointer = spirv.pointer(STORAGE_CLASS_FUNCTION, spirv.type("f64"))
        position = self.append_pure(
            "AccessChain", pointer, variable, self.operand_id(index, "int64")
        )
        return self.append_pure("Load", spirv.type("f64"), self.operand_id(position, "int64"))


def _is_int32_constant(operand: Operand) -> bool:
    """Return whether an operand is an integer constant that int32 has."""
    return operand[0] != "%" and -(2**31) <= int(operand, 0) < 2**31


def _parse_constant_bits(text: str, kind: str) -> int:
    """Parse the bits of a constant in LLVM's notation, where floats are written as the bits of a
    double.
    """
    if kind == "bool":
        return int(text == "true")
    # LLVM writes half-precision constants as 0xH and four digits.
    if text.startswith("0xH"):
        return int(text[3:], 16)
    if not text.startswith("0x"):
        return int(text)
    bits = int(text, 16)
    if kind == "f64":
        return bits
    number = struct.unpack("<d", struct.pack("<Q", bits))[0]
    single: int = struct.unpack("<I", struct.pack("<f", number))[0]
    return single


__all__ = ["SpirvBuilder", "spirv_type"]
