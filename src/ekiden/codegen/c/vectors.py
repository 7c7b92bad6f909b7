"""Vector syntax of the C dialects: the types, and the operations without an infix operator.

A condition is a vector of int32, -1 in the lanes in which it holds; in memory it is a byte. Helper
functions over vectors are those of `codegen.c.helpers`, in this syntax: `ek_exp_float32x16`.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias

from ekiden.codegen.c.types import C_SYNTAX, CSyntax, is_parenthesized
from ekiden.ir import dtype as dt
from ekiden.ir.prim import BinaryExpr, Max, Min

OPENCL_VECTOR_LANES = (2, 4, 8, 16)
"""Numbers of lanes of OpenCL's vector types; others are computed lane by lane."""


Kind: TypeAlias = type[BinaryExpr]


class UnsupportedVectorError(Exception):
    """Exception for a vector function that the dialect cannot express; it is then computed by
    lanes.
    """


class VectorSyntax(CSyntax):
    """Vectors of OpenCL C: `float16`, `convert_int16(x)`, `vload16(0, p + i)`. Types of one lane
    are those of C."""

    names: ClassVar = {
        "int8": "char", "uint8": "uchar", "int16": "short", "uint16": "ushort", "int32": "int",
        "uint32": "uint", "int64": "long", "uint64": "ulong", "float32": "float",
        "float64": "double", "float16": "ushort", "bfloat16": "ushort", "bool": "int",
    }  # fmt: skip
    """Stem of the vector type of each dtype; 16-bit floats are stored as their bits."""
    has_vector_arrays: ClassVar = False
    """Whether buffers of vectors are arrays of vector types rather than of lanes."""

    def has(self, dtype: str) -> bool:
        """Return whether the dialect has this vector type."""
        return dt.lanes(dtype) in OPENCL_VECTOR_LANES and dt.element_dtype(dtype) in self.names

    def type(self, dtype: str) -> str:
        """Return the vector type, such as `float16`."""
        lanes = dt.lanes(dtype)
        return (
            C_SYNTAX.type(dtype) if lanes == 1 else f"{self.names[dt.element_dtype(dtype)]}{lanes}"
        )

    def type_word(self, dtype: str) -> str:
        """Return the type as one word, for a scalar too: `int`."""
        return self.type(dtype) if dt.lanes(dtype) > 1 else self.names[dt.element_dtype(dtype)]

    def lane_type(self, dtype: str) -> str:
        """Return the type of one lane of a vector variable."""
        return C_SYNTAX.type("int32" if dt.element_dtype(dtype) == "bool" else dtype)

    def integer(self, dtype: str, unsigned: bool) -> str:
        """Return the integer type of the same shape, such as `uint16` for float32x16."""
        bits = dt.SCALAR_BITS[dt.element_dtype(dtype)]
        kind = f"{'uint' if unsigned else 'int'}{32 if dt.element_dtype(dtype) == 'bool' else bits}"
        return self.type(dt.with_lanes(kind, dt.lanes(dtype)))

    def constant(self, value: int | float, dtype: str) -> str:
        """Return a constant, such as `(float16)(0.5f)`."""
        if dt.lanes(dtype) == 1:
            return C_SYNTAX.constant(value, dtype)
        return self.broadcast(C_SYNTAX.constant(value, dt.element_dtype(dtype)), dtype)

    def broadcast(self, x: str, dtype: str) -> str:
        """Return a vector with the same value in every lane."""
        if dt.element_dtype(dtype) == "bool":
            x = f"-(int)({x})"
        return f"({self.type(dtype)})({x})"

    def ramp(self, base: str, stride: str, dtype: str) -> str:
        """Return `base + lane * stride`."""
        kind = self.type(dtype)
        numbers = f"({kind})({', '.join(map(str, range(dt.lanes(dtype))))})"
        steps = numbers if stride == "1" else f"{numbers} * ({kind})({stride})"
        return f"(({kind})({base}) + {steps})"

    def cast(self, kind: str, x: str) -> str:
        """Return `convert_int16(x)`: integers keep their low bits, as in C."""
        if not kind[-1:].isdigit() or kind.endswith("_t"):
            return C_SYNTAX.cast(kind, x)
        return f"convert_{kind}{x}" if is_parenthesized(x) else f"convert_{kind}({x})"

    def shift(self, kind: str, x: str, symbol: str, by: str) -> str:
        """Return a lane-wise shift by another vector."""
        return f"{self.cast(kind, x)} {symbol} {by}"

    def bool_to_int(self, x: str, dtype: str) -> str:
        """Return a condition as 1 and 0."""
        lanes = dt.lanes(dtype)
        return f"({x} & (int{lanes})(1))" if lanes > 1 else x

    def select(self, condition: str, yes: str, no: str, dtype: str) -> str:
        """Return `select(no, yes, condition)`; the condition is converted to the lanes' width."""
        lanes, bits = dt.lanes(dtype), dt.SCALAR_BITS[dt.element_dtype(dtype)]
        if dt.element_dtype(dtype) != "bool" and bits != 32:
            condition = f"convert_{self.type(dt.with_lanes(f'int{bits}', lanes))}({condition})"
        return f"select({no}, {yes}, {condition})"

    def comparison(self, text: str, dtype: str) -> str:
        """Return a comparison of such operands as a 32-bit condition."""
        bits = 32 if dt.element_dtype(dtype) == "bool" else dt.SCALAR_BITS[dt.element_dtype(dtype)]
        return f"({text})" if bits == 32 else f"convert_int{dt.lanes(dtype)}({text})"

    def load(self, pointer: str, index: str, dtype: str) -> str:
        """Load contiguous elements."""
        lanes = dt.lanes(dtype)
        text = f"vload{lanes}(0, &{pointer}[{index}])"
        return f"(convert_int{lanes}({text}) != 0)" if dt.element_dtype(dtype) == "bool" else text

    def load_stride2(self, pointer: str, index: str, dtype: str) -> str:
        """Load every second element, without reading beyond the last one."""
        lanes = dt.lanes(dtype)
        # Two overlapping loads: the second starts one element early, so that nothing beyond the
        # last element is read.
        near = self.load(pointer, index, dtype), self.load(pointer, f"{index} + {lanes - 1}", dtype)
        return f"({self.type(dtype)})({near[0]}.even, {near[1]}.odd)"

    def store(self, pointer: str, index: str, value: str, dtype: str) -> str:
        """Return the line that stores a vector contiguously."""
        if dt.element_dtype(dtype) == "bool":
            value = f"convert_uchar{dt.lanes(dtype)}({self.bool_to_int(value, dtype)})"
        return f"vstore{dt.lanes(dtype)}({value}, 0, &{pointer}[{index}]);"

    def load_lanes(self, array: str, dtype: str) -> str:
        """Load a vector from an array of lanes."""
        return f"vload{dt.lanes(dtype)}(0, {array})"

    def lane_array(self, name: str, dtype: str) -> str:
        """Return a pointer to the lanes of a variable."""
        return f"((const {self.lane_type(dtype)} *)&{name})"

    def halves(self, name: str) -> tuple[str, str]:
        """Return the low and the high half of a vector."""
        return f"{name}.lo", f"{name}.hi"

    def can_reinterpret(self, source: str, target: str) -> bool:
        """Return whether `bits` reinterprets the vector as it is stored in memory."""
        return True

    def bits(self, kind: str, x: str) -> str:
        """Return a reinterpretation such as `as_int16(x)`."""
        return f"as_{kind}({x})"

    def native_operation(self, kind: Kind, dtype: str, x: str, y: str, y_is_number: bool) -> str:
        """Return the dialect's native function for a node, else "". `y_is_number`: the second
        operand is not NaN.
        """
        name = {Min: "min", Max: "max"}.get(kind)
        return f"{name}({x}, {y})" if name and dt.is_int(dt.element_dtype(dtype)) else ""

    def all_lanes(self, condition: str) -> str:
        """Return whether a named condition holds in all lanes."""
        return f"all({condition})"

    def any_lane(self, condition: str) -> str:
        """Return whether a named condition holds in at least one lane."""
        return f"any({condition})"
