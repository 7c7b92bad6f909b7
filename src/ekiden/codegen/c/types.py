"""C spellings of Ekiden's data types and constants.

float16 and bfloat16 are uint16_t, whose arithmetic goes through float; bool is `bool` in
variables and a byte in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import ml_dtypes
import numpy as np

from ekiden.ir import dtype as dt

# fmt: off
C_TYPES: dict[str, str] = {
    "bool": "bool",
    "int8": "int8_t", "int16": "int16_t", "int32": "int32_t", "int64": "int64_t",
    "uint8": "uint8_t", "uint16": "uint16_t", "uint32": "uint32_t", "uint64": "uint64_t",
    "float16": "uint16_t", "bfloat16": "uint16_t", "float32": "float", "float64": "double",
    "handle": "void *",
}
# fmt: on


C_KEYWORDS = frozenset(
    "auto break case char const continue default do double else enum extern float for goto if "
    "inline int long register restrict return short signed sizeof static struct switch typedef "
    "union unsigned void volatile while bool true false lane self args nargs ret status main "
    "y0 y1 yn j0 j1 jn gamma exp log sin cos tan pow index signal time div abs floor ceil trunc "
    "rint fabs sqrt copysign fma floorf ceilf truncf rintf fabsf sqrtf copysignf fmaf memcpy "
    "memset memmove asm typeof linux unix".split()
)
"""Reserved names of C and its headers, which must not be used for variables."""


def is_macro_like(name: str) -> bool:
    """Return whether a name may be a macro of C's headers, such as `NAN`, `INT64_MIN` or `M_PI`."""
    return len(name) > 2 and name.isupper()


def c_type(dtype: str) -> str:
    """Return the C type of one lane in a variable."""
    return C_TYPES[dt.storage_dtype(dt.element_dtype(dtype))]


def memory_type(dtype: str) -> str:
    """Return the C type of one lane in memory."""
    return "uint8_t" if dt.element_dtype(dtype) == "bool" else c_type(dtype)


def constant(value: int | float, dtype: str) -> str:
    """Return a constant of one lane as C."""
    element = dt.element_dtype(dtype)
    if element == "bool":
        return "true" if value else "false"
    if element == "bfloat16":
        return str(int(np.array(value, ml_dtypes.bfloat16).view(np.uint16)))
    if element == "float16":
        with np.errstate(over="ignore"):
            return str(int(np.array(value, np.float16).view(np.uint16)))
    if dt.is_float(element):
        return _float_constant(float(value), element)
    return _integer_constant(int(value), element)


def _float_constant(value: float, dtype: str) -> str:
    if math.isnan(value):
        return f"({c_type(dtype)})NAN"
    if math.isinf(value):
        return f"({c_type(dtype)}){'-' if value < 0 else ''}INFINITY"
    if dtype == "float64":
        return _parenthesize_negative(repr(value))
    with np.errstate(over="ignore"):
        single = np.float32(value)
    # A finite double may be beyond the range of float32.
    if math.isinf(single):
        return _float_constant(float(single), dtype)
    return _parenthesize_negative(_add_decimal_point(str(single)) + "f")


def _add_decimal_point(text: str) -> str:
    """Add a decimal point where a floating constant lacks point and exponent."""
    return text if any(c in text for c in ".e") else text + ".0"


def _parenthesize_negative(text: str) -> str:
    return f"({text})" if text.startswith("-") else text


def _integer_constant(value: int, dtype: str) -> str:
    bits = dt.SCALAR_BITS[dtype]
    wrapped = value & ((1 << bits) - 1)
    if dt.is_unsigned(dtype):
        return f"{wrapped}u" if bits <= 32 else f"UINT64_C({wrapped})"
    signed = wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped
    # C reads the digits before their sign, and 2**63 fits no signed type.
    if signed == -(1 << 63):
        return "INT64_MIN"
    text = str(signed) if abs(signed) < 1 << 31 else f"INT64_C({signed})"
    return _parenthesize_negative(text)


class CSyntax:
    """Syntax of a C-family language, C by default; `codegen.device.wgsl` overrides it."""

    def type(self, dtype: str) -> str:
        """Return the type of one lane in a variable."""
        return c_type(dtype)

    def integer(self, dtype: str, unsigned: bool) -> str:
        """Return the integer type of a lane's width."""
        return f"{'u' if unsigned else ''}int{dt.SCALAR_BITS[dt.element_dtype(dtype)]}_t"

    def constant(self, value: int | float, dtype: str) -> str:
        """Return a constant of one lane."""
        return constant(value, dtype)

    def cast(self, kind: str, x: str) -> str:
        """Return the operand cast to another type."""
        return f"({kind}){x}"

    def convert(self, source: str, target: str, x: str) -> str:
        """Return an operand converted by value to another type."""
        return self.cast(self.type(target), x)

    def conditional(self, condition: str, yes: str, no: str) -> str:
        """Return a conditional expression, without parentheses."""
        return f"{condition} ? {yes} : {no}"

    def select(self, condition: str, yes: str, no: str, dtype: str) -> str:
        """Return a lane-wise choice between two values."""
        return self.conditional(condition, yes, no)

    def compare(self, x: str, symbol: str, y: str, dtype: str) -> str:
        """Return the raw comparison of two operands; `comparison` turns it into a condition."""
        return f"{x} {symbol} {y}"

    def comparison(self, text: str, dtype: str) -> str:
        """Return the result of a comparison as a condition."""
        return text

    def bool_to_int(self, x: str, dtype: str) -> str:
        """Return a condition as 1 or 0."""
        return x

    def let(self, kind: str, name: str, value: str) -> str:
        """Return the declaration of an immutable variable."""
        return f"const {kind} {name} = {value};"

    def var(self, kind: str, name: str, *extents: int) -> str:
        """Return the declaration of a variable or array."""
        return f"{kind} {name}{''.join(f'[{n}]' for n in extents)};"

    def for_header(self, kind: str, name: str, low: str, high: str) -> str:
        """Return the head of a counted loop."""
        return f"for ({kind} {name} = {low}; {name} < {high}; ++{name}) {{"

    def shift(self, kind: str, x: str, symbol: str, by: str) -> str:
        """Return a shift of an operand of type `kind`."""
        return f"({kind}){x} {symbol} {by}"

    def remainder(self, x: str, y: str) -> str:
        """Return the remainder of a truncating signed division, with the sign of x."""
        return f"{x} % {y}"

    def discard(self, value: str) -> str:
        """Return the line that evaluates a value and discards it."""
        return f"(void){value};"

    def function_header(self, name: str, parameters: Sequence[tuple[str, str]], result: str) -> str:
        """Return the head of a function, from its parameters' types and names."""
        return f"{result} {name}({', '.join(f'{kind} {x}' for kind, x in parameters)}) {{"

    def math(self, name: str, dtype: str) -> str:
        """Return the <math.h> function of LLVM's intrinsic name."""
        return name + ("f" if dt.element_dtype(dtype) == "float32" else "")


C_SYNTAX = CSyntax()


def is_parenthesized(text: str) -> bool:
    """Return whether one pair of parentheses encloses all of the text."""
    depth = 0
    for index, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return c == ")" and index == len(text) - 1
    return False
