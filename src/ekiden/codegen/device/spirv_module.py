"""SPIR-V module as a list of instructions, encoded to words: types, constants and sections in the
required order.

Specification: https://registry.khronos.org/SPIR-V/specs/unified1/SPIRV.html (numbers of section 3).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TypeAlias

MAGIC, VERSION = 0x07230203, 0x00010500
"""MAGIC: SPIR-V magic number. VERSION: SPIR-V version 1.5, which Vulkan 1.2 accepts."""

# fmt: off
SPIRV_OPCODES: dict[str, int] = {
    "Name": 5, "Extension": 10, "ExtInstImport": 11, "ExtInst": 12, "MemoryModel": 14,
    "EntryPoint": 15, "ExecutionMode": 16, "Capability": 17, "TypeVoid": 19, "TypeBool": 20,
    "TypeInt": 21, "TypeFloat": 22, "TypeVector": 23, "TypeArray": 28, "TypeStruct": 30,
    "TypePointer": 32, "TypeFunction": 33, "ConstantTrue": 41, "ConstantFalse": 42, "Constant": 43,
    "ConstantComposite": 44, "Function": 54, "FunctionEnd": 56, "Variable": 59, "Load": 61,
    "Store": 62, "AccessChain": 65, "PtrAccessChain": 67, "Decorate": 71, "MemberDecorate": 72,
    "CompositeExtract": 81, "ConvertFToU": 109, "ConvertFToS": 110, "ConvertSToF": 111,
    "ConvertUToF": 112, "UConvert": 113, "SConvert": 114, "FConvert": 115, "ConvertUToPtr": 120,
    "Bitcast": 124, "FNegate": 127, "IAdd": 128, "FAdd": 129, "ISub": 130, "FSub": 131,
    "IMul": 132, "FMul": 133, "UDiv": 134, "SDiv": 135, "FDiv": 136, "UMod": 137, "SRem": 138,
    "IsNan": 156, "LogicalEqual": 164, "LogicalNotEqual": 165, "LogicalOr": 166, "LogicalAnd": 167,
    "LogicalNot": 168, "Select": 169, "IEqual": 170, "INotEqual": 171, "UGreaterThan": 172,
    "SGreaterThan": 173, "UGreaterThanEqual": 174, "SGreaterThanEqual": 175, "ULessThan": 176,
    "SLessThan": 177, "ULessThanEqual": 178, "SLessThanEqual": 179, "FOrdEqual": 180,
    "FOrdNotEqual": 182, "FUnordNotEqual": 183, "FOrdLessThan": 184, "FOrdGreaterThan": 186,
    "FOrdLessThanEqual": 188, "FOrdGreaterThanEqual": 190, "ShiftRightLogical": 194,
    "ShiftRightArithmetic": 195, "ShiftLeftLogical": 196, "BitwiseOr": 197, "BitwiseXor": 198,
    "BitwiseAnd": 199, "ControlBarrier": 224, "AtomicSMin": 236, "Phi": 245, "LoopMerge": 246,
    "SelectionMerge": 247, "Label": 248, "Branch": 249, "BranchConditional": 250, "Return": 253,
}
SPIRV_CAPABILITIES: dict[str, int] = {
    "Shader": 1, "Float64": 10, "Int64": 11, "Int16": 22, "Int8": 39,
    "StorageBuffer16BitAccess": 4433, "StorageBuffer8BitAccess": 4448,
    "SignedZeroInfNanPreserve": 4466,
    "PhysicalStorageBufferAddresses": 5347,
}
STORAGE_CLASS_INPUT, STORAGE_CLASS_WORKGROUP, STORAGE_CLASS_FUNCTION = 1, 4, 7
STORAGE_CLASS_PUSH_CONSTANT, STORAGE_CLASS_PHYSICAL = 9, 5349
"""Storage classes."""
DECORATION_BLOCK, DECORATION_ARRAY_STRIDE, DECORATION_BUILT_IN = 2, 6, 11
DECORATION_OFFSET, DECORATION_NO_CONTRACTION = 35, 42
"""Decorations."""
BUILT_IN_NUM_WORKGROUPS, BUILT_IN_WORKGROUP_ID, BUILT_IN_LOCAL_INVOCATION_ID = 24, 26, 27
"""Built-in inputs."""
EXECUTION_MODE_LOCAL_SIZE, EXECUTION_MODE_PRESERVE_NAN = 17, 4461
"""Modes of a kernel: threads of a block; no operation assumes that there are no NaNs."""
ADDRESSING_MODEL_PHYSICAL, MEMORY_MODEL_GLSL, EXECUTION_MODEL_COMPUTE = 5348, 1, 5
"""Addressing model, memory model and execution model of every module."""
SCALAR_TYPE_OPS: dict[str, tuple[str, int]] = {
    "i8": ("TypeInt", 8), "i16": ("TypeInt", 16), "i32": ("TypeInt", 32), "i64": ("TypeInt", 64),
    "f32": ("TypeFloat", 32), "f64": ("TypeFloat", 64),
}
_TYPE_CAPABILITIES = {"i8": "Int8", "i16": "Int16", "i64": "Int64", "f64": "Float64"}
# fmt: on


class Id(int):
    """Result id of an instruction."""

    __slots__ = ()


Operand: TypeAlias = Id | int | str
Instruction: TypeAlias = tuple[str, tuple[Operand, ...]]


class SpirvModule:
    """One kernel's module: `function` holds its instructions, `variables` its local memory."""

    def __init__(self) -> None:
        self.capabilities = {"Shader": None, "Int64": None, "PhysicalStorageBufferAddresses": None}
        self.declarations: list[Instruction] = []
        self.decorations: list[Instruction] = []
        self.variables: list[Instruction] = []
        self.function: list[Instruction] = []
        self.interface: list[Id] = []
        self._next_id = 1
        self._interned_ids: dict[object, Id] = {}
        self.glsl = self.fresh_id()

    def fresh_id(self) -> Id:
        """Return an unused result id."""
        self._next_id += 1
        return Id(self._next_id - 1)

    def require_capability(self, capability: str) -> None:
        """Declare a capability of the device."""
        self.capabilities[capability] = None

    def decorate(self, what: Id, decoration: int, *values: int) -> None:
        """Decorate a result."""
        self.decorations.append(("Decorate", (what, decoration, *values)))

    # Types and constants: each once.

    def _intern_declaration(self, op: str, *operands: Operand, typed: Id | None = None) -> Id:
        key = (op, operands, typed)
        if key not in self._interned_ids:
            result_id = self._interned_ids[key] = self.fresh_id()
            head = (result_id,) if typed is None else (typed, result_id)
            self.declarations.append((op, (*head, *operands)))
        return self._interned_ids[key]

    def type(self, name: str) -> Id:
        """Return a scalar type, "bool", "void" or a vector of three numbers ("v3")."""
        if name in ("bool", "void"):
            return self._intern_declaration(f"Type{name.capitalize()}")
        if name == "v3":
            return self._intern_declaration("TypeVector", self.type("i32"), 3)
        if name in _TYPE_CAPABILITIES:
            self.require_capability(_TYPE_CAPABILITIES[name])
        op, bits = SCALAR_TYPE_OPS[name]
        return self._intern_declaration(op, bits, *((0,) if op == "TypeInt" else ()))

    def pointer(self, storage: int, to: Id, stride: int = 0) -> Id:
        """Return a pointer type; for pointers to memory, with the array stride in bytes."""
        key = ("pointer", storage, to)
        if key not in self._interned_ids:
            pointer_type = self._interned_ids[key] = self._intern_declaration(
                "TypePointer", storage, to
            )
            if stride:
                self.decorate(pointer_type, DECORATION_ARRAY_STRIDE, stride)
        return self._interned_ids[key]

    def array(self, of: Id, count: int) -> Id:
        """Return the type of an array."""
        return self._intern_declaration("TypeArray", of, self.constant("i32", count))

    def constant(self, name: str, bits: int) -> Id:
        """Return a constant of a scalar type by its bits."""
        if name == "bool":
            op = "ConstantTrue" if bits else "ConstantFalse"
            return self._intern_declaration(op, typed=self.type("bool"))
        width = SCALAR_TYPE_OPS[name][1]
        bits &= (1 << width) - 1
        if width < 32 and bits >> (width - 1):  # words of narrow integers are extended by the sign
            bits |= 0xFFFFFFFF & ~((1 << width) - 1)
        words = (bits & 0xFFFFFFFF, bits >> 32) if width == 64 else (bits,)
        return self._intern_declaration("Constant", *words, typed=self.type(name))

    def constant_table(self, values: tuple[float, ...]) -> tuple[Id, int]:
        """Return a constant array of float64 and its length."""
        kind = self.array(self.type("f64"), len(values))
        bits = [struct.unpack("<Q", struct.pack("<d", v))[0] for v in values]
        element_ids = tuple(self.constant("f64", b) for b in bits)
        return self._intern_declaration("ConstantComposite", *element_ids, typed=kind), len(values)

    def global_variable(self, storage: int, kind: Id) -> Id:
        """Return a variable of the module."""
        variable, pointer = self.fresh_id(), self.pointer(storage, kind)
        self.declarations.append(("Variable", (pointer, variable, storage)))
        self.interface.append(variable)
        return variable

    def built_in(self, number: int) -> Id:
        """Return the built-in input variable (a vector of three integers) of a number."""
        key = ("built in", number)
        if key not in self._interned_ids:
            variable = self._interned_ids[key] = self.global_variable(
                STORAGE_CLASS_INPUT, self.type("v3")
            )
            self.decorate(variable, DECORATION_BUILT_IN, number)
        return self._interned_ids[key]

    def local_variable(self, kind: Id) -> Id:
        """Return a new local variable of the function."""
        variable = self.fresh_id()
        self.variables.append(
            (
                "Variable",
                (self.pointer(STORAGE_CLASS_FUNCTION, kind), variable, STORAGE_CLASS_FUNCTION),
            )
        )
        return variable

    # The whole.

    def instructions(self, name: str, threads: Iterable[int]) -> list[Instruction]:
        """Return all instructions of the module in the section order that the specification
        requires: one entry point `name` with the given workgroup size.
        """
        void = self.type("void")
        of_kernel = self._intern_declaration("TypeFunction", void)
        entry, first = self.fresh_id(), self.fresh_id()
        modes: list[Instruction] = [("ExecutionMode", (entry, EXECUTION_MODE_LOCAL_SIZE, *threads))]
        # Without this mode a driver may assume that no float is NaN or infinite (SPIR-V 1.4, float
        # controls).
        if ("TypeFloat", (32,), None) in self._interned_ids:
            self.require_capability("SignedZeroInfNanPreserve")
            modes.append(("ExecutionMode", (entry, EXECUTION_MODE_PRESERVE_NAN, 32)))
        return [
            *(("Capability", (SPIRV_CAPABILITIES[c],)) for c in self.capabilities),
            ("ExtInstImport", (self.glsl, "GLSL.std.450")),
            ("MemoryModel", (ADDRESSING_MODEL_PHYSICAL, MEMORY_MODEL_GLSL)),
            ("EntryPoint", (EXECUTION_MODEL_COMPUTE, entry, name, *self.interface)),
            *modes,
            ("Name", (entry, name)),
            *self.decorations,
            *self.declarations,
            ("Function", (void, entry, 0, of_kernel)),
            ("Label", (first,)),
            *self.variables,
            *self.function,
            ("FunctionEnd", ()),
        ]

    def encode(self, name: str, threads: Iterable[int]) -> bytes:
        """Encode the module as SPIR-V words, little endian."""
        words = [MAGIC, VERSION, 0, 0, 0]
        for op, operands in self.instructions(name, threads):
            body = [word for operand in operands for word in _encode_operand(operand)]
            words += [len(body) + 1 << 16 | SPIRV_OPCODES[op], *body]
        # The bound is above all ids, some of which `instructions` has just made.
        words[3] = self._next_id
        return struct.pack(f"<{len(words)}I", *words)

    def disassemble(self, name: str, threads: Iterable[int]) -> str:
        """Disassemble the module: an instruction a line, results as %1."""
        lines = [
            " ".join([f"Op{op}", *(f"%{o}" if isinstance(o, Id) else repr(o) for o in operands)])
            for op, operands in self.instructions(name, threads)
        ]
        return "\n".join([f"; SPIR-V 1.5, kernel {name}", *lines, ""])


def _encode_operand(operand: Operand) -> list[int]:
    if not isinstance(operand, str):
        return [int(operand) & 0xFFFFFFFF]
    data = operand.encode() + b"\0"
    # Literal strings end with a zero byte and fill whole words.
    data += bytes(-len(data) % 4)
    return list(struct.unpack(f"<{len(data) // 4}I", data))


__all__ = ["Id", "Instruction", "Operand", "SpirvModule"]
