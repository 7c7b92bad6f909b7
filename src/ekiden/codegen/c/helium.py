"""Four-lane vectors with Helium (MVE, Cortex-M55) instructions, in C that other processors compile
too.

    b[i : i + 4] = max(a[i : i + 4], 0)   ->   ek_v_store_f32(&b[i], ek_v_max_f32(...));

Numbers of fewer bits lie in words, extended; conditions are words of -1 and 0. An operation that C
has no infix for is a function: a row here says how it is written by intrinsics, and for one lane.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import ClassVar

from ekiden.codegen.c.types import C_SYNTAX
from ekiden.codegen.c.vectors import Kind, UnsupportedVectorError, VectorSyntax
from ekiden.ir import dtype as dt
from ekiden.ir.prim import Div, Max, Min
from ekiden.runtime.lazy_dataclass import dataclass

HELIUM_LANES = 4
HELIUM_HEADER = """\
#if defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 2)
#define EK_HELIUM 1
#include <arm_mve.h>
typedef float32x4_t ek_f32x4;
typedef int32x4_t ek_i32x4;
typedef uint32x4_t ek_u32x4;
#else
#define EK_HELIUM 0
typedef float ek_f32x4 __attribute__((vector_size(16)));
typedef int32_t ek_i32x4 __attribute__((vector_size(16)));
typedef uint32_t ek_u32x4 __attribute__((vector_size(16)));
#endif
typedef ek_i32x4 ek_i8x4, ek_u8x4, ek_i16x4, ek_u16x4, ek_b32x4; /* fewer bits, in words */
typedef ek_f32x4 ek_f32x4_near __attribute__((aligned(4), may_alias));
typedef ek_i32x4 ek_i32x4_near __attribute__((aligned(4), may_alias));
typedef ek_u32x4 ek_u32x4_near __attribute__((aligned(4), may_alias));"""
_PREDICATED_SELECT_ASM = '__asm__("vcmp.{test}\\n\\tvpsel %q0, {of}" : "=w"(r) : {given} : "p0")'
"""Inline assembly of a predicated select: the mask stays in the predicate register, where GCC 12
generates wrong or slow code.
"""
_TWO_VECTOR_INPUTS = '"w"(x), "w"(y)'
_SELECT_ASM = _PREDICATED_SELECT_ASM.format(
    test="i32 ne, %q1, zr", of="%q2, %q3", given=f'{_TWO_VECTOR_INPUTS}, "w"(z)'
)
_MAX_ASM = _PREDICATED_SELECT_ASM.format(
    test="f32 gt, %q2, %q1", of="%q2, %q1", given=_TWO_VECTOR_INPUTS
)
_MIN_ASM = _PREDICATED_SELECT_ASM.format(
    test="f32 gt, %q1, %q2", of="%q2, %q1", given=_TWO_VECTOR_INPUTS
)
_DIVIDE_ASM = (
    'register ek_f32x4 a __asm__("q0") = x; register ek_f32x4 b __asm__("q1") = y; '
    '__asm__("vdiv.f32 s0, s0, s4\\n\\tvdiv.f32 s1, s1, s5\\n\\tvdiv.f32 s2, s2, s6\\n\\t'
    'vdiv.f32 s3, s3, s7" : "+w"(a) : "w"(b)); r = a'
)
_LOAD_STATEMENT = (
    'r = *(const ek_{}x4_near *)x;\n#if EK_HELIUM\n  __asm__("" : "+w"(r));\n#endif\n  (void)0'
)
"""Load through an array type, so that compilers do not move it across stores of single elements. No
loop of loads and stores becomes a call of memcpy, which copies words.
"""
_WIDENING_LOAD_ASM = (
    '__asm__("vldrh.{}32 %q0, [%1]" : "=w"(r) : "r"(x), "m"(*(const int16_t(*)[4])x))'
)
_NARROWING_STORE_ASM = '__asm__("vstrh.32 %q2, [%1]" : "=m"(*(int16_t(*)[4])x) : "r"(x), "w"(y))'
# fmt: off
# ruff: noqa: E501 - rows of a table
_FUNCTION_ROWS = (
    # name         result  parameters                            by instructions, into r                                 a lane
    ("dup_f32",    "f32",  "float x",                            "r = vdupq_n_f32(x)",                                   "x"),
    ("dup_i32",    "i32",  "int32_t x",                          "r = vdupq_n_s32(x)",                                   "x"),
    ("load_f32",   "f32",  "const float *x",                     _LOAD_STATEMENT.format("f32"), ""),
    ("load_i32",   "i32",  "const int32_t *x",                   _LOAD_STATEMENT.format("i32"), ""),
    ("load_u32",   "u32",  "const uint32_t *x",                  _LOAD_STATEMENT.format("u32"), ""),
    ("load_i8",    "i8",   "const int8_t *x",                    "r = vldrbq_s32(x)",                                    "x[i]"),
    ("load_u8",    "u8",   "const uint8_t *x",                   "r = (ek_i32x4)vldrbq_u32(x)",                          "x[i]"),
    ("load_i16",   "i16",  "const int16_t *x",                   _WIDENING_LOAD_ASM.format("s"),                                    "x[i]"),
    ("load_u16",   "u16",  "const uint16_t *x",                  _WIDENING_LOAD_ASM.format("u"),                          "x[i]"),
    ("store_f32",  "",     "float *x, ek_f32x4 y",               "*(ek_f32x4_near *)x = y",                              ""),
    ("store_i32",  "",     "int32_t *x, ek_i32x4 y",             "*(ek_i32x4_near *)x = y",                              ""),
    ("store_u32",  "",     "uint32_t *x, ek_u32x4 y",            "*(ek_u32x4_near *)x = y",                              ""),
    ("store_i8",   "",     "int8_t *x, ek_i32x4 y",              "vstrbq_s32(x, y)",                                     "x[i] = (int8_t)y[i]"),
    ("store_u8",   "",     "uint8_t *x, ek_i32x4 y",             "vstrbq_u32(x, (ek_u32x4)y)",                           "x[i] = (uint8_t)y[i]"),
    ("store_i16",  "",     "int16_t *x, ek_i32x4 y",             _NARROWING_STORE_ASM,                                     "x[i] = (int16_t)y[i]"),
    ("store_u16",  "",     "uint16_t *x, ek_i32x4 y",            _NARROWING_STORE_ASM,                           "x[i] = (uint16_t)y[i]"),
    ("i8_of",      "i8",   "ek_i32x4 x",                         "r = vshrq_n_s32(vshlq_n_s32(x, 24), 24)",              "(int8_t)x[i]"),
    ("u8_of",      "u8",   "ek_i32x4 x",                         "r = vandq_s32(x, vdupq_n_s32(255))",                   "(uint8_t)x[i]"),
    ("i16_of",     "i16",  "ek_i32x4 x",                         "r = vmovlbq_s16(vreinterpretq_s16_s32(x))",            "(int16_t)x[i]"),
    ("u16_of",     "u16",  "ek_i32x4 x",                         "r = (ek_i32x4)vmovlbq_u16(vreinterpretq_u16_s32(x))",  "(uint16_t)x[i]"),
    ("f32_of_i32", "f32",  "ek_i32x4 x",                         "r = vcvtq_f32_s32(x)",                                 "(float)x[i]"),
    ("f32_of_u32", "f32",  "ek_u32x4 x",                         "r = vcvtq_f32_u32(x)",                                 "(float)x[i]"),
    ("i32_of_f32", "i32",  "ek_f32x4 x",                         "r = vcvtq_s32_f32(x)",                                 "(int32_t)x[i]"),
    ("u32_of_f32", "u32",  "ek_f32x4 x",                         "r = vcvtq_u32_f32(x)",                                 "(uint32_t)x[i]"),
    ("rint",       "f32",  "ek_f32x4 x",                         "r = vrndnq_f32(x)",                                    "rintf(x[i])"),
    ("floor",      "f32",  "ek_f32x4 x",                         "r = vrndmq_f32(x)",                                    "floorf(x[i])"),
    ("ceil",       "f32",  "ek_f32x4 x",                         "r = vrndpq_f32(x)",                                    "ceilf(x[i])"),
    ("trunc",      "f32",  "ek_f32x4 x",                         "r = vrndq_f32(x)",                                     "truncf(x[i])"),
    ("fabs",       "f32",  "ek_f32x4 x",                         "r = vabsq_f32(x)",                                     "fabsf(x[i])"),
    ("sqrt",       "f32",  "ek_f32x4 x",                         "",                                                     "sqrtf(x[i])"),
    ("copysign",   "f32",  "ek_f32x4 x, ek_f32x4 y",             "",                                                     "copysignf(x[i], y[i])"),
    ("fma",        "f32",  "ek_f32x4 x, ek_f32x4 y, ek_f32x4 z", "r = vfmaq_f32(z, x, y)",                               "fmaf(x[i], y[i], z[i])"),
    ("div_f32",    "f32",  "ek_f32x4 x, ek_f32x4 y",             _DIVIDE_ASM,                                               "x[i] / y[i]"),
    ("max_f32",    "f32",  "ek_f32x4 x, ek_f32x4 y",             _MAX_ASM,                                                   "x[i] < y[i] ? y[i] : x[i]"),
    ("min_f32",    "f32",  "ek_f32x4 x, ek_f32x4 y",             _MIN_ASM,                                                   "x[i] > y[i] ? y[i] : x[i]"),
    ("max_i32",    "i32",  "ek_i32x4 x, ek_i32x4 y",             "r = vmaxq_s32(x, y)",                                  "x[i] < y[i] ? y[i] : x[i]"),
    ("min_i32",    "i32",  "ek_i32x4 x, ek_i32x4 y",             "r = vminq_s32(x, y)",                                  "x[i] > y[i] ? y[i] : x[i]"),
    ("if_f32",     "f32",  "ek_b32x4 x, ek_f32x4 y, ek_f32x4 z", _SELECT_ASM,                                                    "x[i] ? y[i] : z[i]"),
    ("if_i32",     "i32",  "ek_b32x4 x, ek_i32x4 y, ek_i32x4 z", _SELECT_ASM,                                                    "x[i] ? y[i] : z[i]"),
)
# fmt: on


@dataclass(frozen=True, slots=True)
class _HeliumFunction:
    name: str
    result: str
    parameters: str
    instructions: str
    """Helium intrinsics that compute r; empty if there are none."""
    lane: str
    """Expression of one lane on other processors; empty if the instructions are C everywhere."""

    def text(self) -> str:
        """Return the C definition: instructions where Helium is present, else a loop over lanes."""
        kind = f"ek_{self.result}x4" if self.result else "void"
        lane_statement = f"r[i] = {self.lane}" if self.result else self.lane
        lanes = f"  for (int i = 0; i < {HELIUM_LANES}; ++i) {lane_statement};"
        body = [f"#if EK_HELIUM\n  {self.instructions};\n#else\n{lanes}\n#endif"]
        if not self.instructions or not self.lane:
            body = [lanes if self.lane else f"  {self.instructions};"]
        if self.result:
            body = [f"  {kind} r;", *body, "  return r;"]
        head = f"static inline {kind} ek_v_{self.name}({self.parameters}) {{"
        return "\n".join([head, *body, "}"])


_CONDITION_CODES = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}
_SWAPPED_COMPARISONS = {"<": ">", "<=": ">="}
"""Comparisons as the negation of their opposite, which also holds for NaN."""


def _comparison_function(symbol: str, word: str) -> _HeliumFunction:
    """Return the comparison function of a symbol and word type: -1 in lanes where it holds."""
    pair = "%q2, %q1" if symbol in _SWAPPED_COMPARISONS else "%q1, %q2"
    name = _CONDITION_CODES[_SWAPPED_COMPARISONS.get(symbol, symbol)]
    if word == "u32":
        name = {"gt": "hi", "ge": "cs"}.get(name, name)
    kind = {"f32": "f32", "u32": "u32"}.get(word, "s32")
    kind = "i32" if name in ("eq", "ne") and kind != "f32" else kind
    operands = f'{_TWO_VECTOR_INPUTS}, "w"(vdupq_n_s32(-1)), "w"(vdupq_n_s32(0))'
    instructions = _PREDICATED_SELECT_ASM.format(
        test=f"{kind} {name}, {pair}", of="%q3, %q4", given=operands
    )
    parameters = f"ek_{word}x4 x, ek_{word}x4 y"
    return _HeliumFunction(
        f"{_CONDITION_CODES[symbol]}_{word}",
        "b32",
        parameters,
        instructions,
        f"-(x[i] {symbol} y[i])",
    )


HELIUM_FUNCTIONS = {row[0]: _HeliumFunction(*row) for row in _FUNCTION_ROWS} | {
    row.name: row
    for row in (
        _comparison_function(symbol, w)
        for symbol in _CONDITION_CODES
        for w in ("f32", "i32", "u32")
    )
}


def used_functions(texts: Iterable[str]) -> list[str]:
    """Return the helper definitions that the given texts use, with the header before them."""
    used = {name for text in texts for name in re.findall(r"\bek_v_(\w+)", text)}
    definitions = [row.text() for name, row in HELIUM_FUNCTIONS.items() if name in used]
    return [HELIUM_HEADER, *definitions] if definitions else []


class HeliumSyntax(VectorSyntax):
    """Syntax of vectors of four lanes of at most 32 bits."""

    names: ClassVar = {
        "int8": "i8", "uint8": "u8", "int16": "i16", "uint16": "u16", "int32": "i32",
        "uint32": "u32", "float32": "f32", "bool": "b32",
    }  # fmt: skip
    has_vector_arrays = True

    def has(self, dtype: str) -> bool:
        """Return whether the dtype is a four-lane vector that Helium holds."""
        return dt.lanes(dtype) == HELIUM_LANES and dt.element_dtype(dtype) in self.names

    def type(self, dtype: str) -> str:
        """Return the vector type's name, such as `ek_f32x4`."""
        return C_SYNTAX.type(dtype) if dt.lanes(dtype) == 1 else f"ek_{self._type_suffix(dtype)}x4"

    def _type_suffix(self, dtype: str) -> str:
        suffix = self.names.get(dt.element_dtype(dtype))
        if suffix is None:
            raise UnsupportedVectorError
        return suffix

    def _register_lane_type(self, dtype: str) -> str:
        """Return a lane's register type: i32, u32 or f32."""
        return suffix if (suffix := self._type_suffix(dtype)) in ("f32", "u32") else "i32"

    def lane_type(self, dtype: str) -> str:
        """Return the C type of a 32-bit lane."""
        return {"f32": "float", "u32": "uint32_t", "i32": "int32_t"}[
            self._register_lane_type(dtype)
        ]

    def integer(self, dtype: str, unsigned: bool) -> str:
        """Return the integer vector of the same width, such as `ek_u32x4` for float32x4."""
        bits = 32 if dt.element_dtype(dtype) == "bool" else dt.SCALAR_BITS[dt.element_dtype(dtype)]
        kind = f"{'uint' if unsigned else 'int'}{bits}"
        return self.type(dt.with_lanes(kind, dt.lanes(dtype)))

    def broadcast(self, x: str, dtype: str) -> str:
        """Return a vector with the same value in every lane."""
        word = self._register_lane_type(dtype)
        if word == "f32":
            return f"ek_v_dup_f32({x})"
        # A mask is -1, all bits set, in lanes that are true.
        sign = "-" if dt.element_dtype(dtype) == "bool" else ""
        integer_vector = f"ek_v_dup_i32({sign}(int32_t)({x}))"
        return f"((ek_u32x4){integer_vector})" if word == "u32" else integer_vector

    def ramp(self, base: str, stride: str, dtype: str) -> str:
        """Return `base + lane * stride`. Raises UnsupportedVectorError for dtypes other than 32-bit
        integers.
        """
        if dt.element_dtype(dtype) not in ("int32", "uint32"):
            raise UnsupportedVectorError
        kind = self.type(dtype)
        first, step = self.broadcast(base, dtype), self.broadcast(stride, dtype)
        return f"({first} + {step} * ({kind}){{0, 1, 2, 3}})"

    def cast(self, kind: str, x: str) -> str:
        """Convert between integer types: the low bits are kept; between 32-bit types it is
        a no-op.
        """
        short = kind.removeprefix("ek_").removesuffix("x4")
        if not kind.startswith("ek_"):
            return C_SYNTAX.cast(kind, x)
        if short in ("i32", "u32", "b32", "f32"):
            return f"(({kind})({x}))"
        return f"ek_v_{short}_of((ek_i32x4)({x}))"

    def convert(self, source: str, target: str, x: str) -> str:
        """Convert between integers and floats too."""
        if dt.lanes(target) == 1:
            return super().convert(source, target, x)
        before, after = self._register_lane_type(source), self._register_lane_type(target)
        if "f32" in (before, after) and before != after:
            return f"ek_v_{after}_of_{before}({x})"
        return x if before == "f32" else self.cast(self.type(target), x)

    def bool_to_int(self, x: str, dtype: str) -> str:
        """Convert a condition to 1 or 0."""
        return f"({x} & ek_v_dup_i32(1))" if dt.lanes(dtype) > 1 else x

    def select(self, condition: str, yes: str, no: str, dtype: str) -> str:
        """Select lane by lane."""
        if dt.lanes(dtype) == 1:
            return C_SYNTAX.select(condition, yes, no, dtype)
        word = self._register_lane_type(dtype)
        if word == "u32":
            arguments = f"{condition}, (ek_i32x4)({yes}), (ek_i32x4)({no})"
            return f"((ek_u32x4)ek_v_if_i32({arguments}))"
        return f"ek_v_if_{word}({condition}, {yes}, {no})"

    def compare(self, x: str, symbol: str, y: str, dtype: str) -> str:
        """Return a comparison as a mask. Narrower numbers are extended to 32 bits, so that words
        are compared.
        """
        if dt.lanes(dtype) == 1:
            return super().compare(x, symbol, y, dtype)
        return f"ek_v_{_CONDITION_CODES[symbol]}_{self._register_lane_type(dtype)}({x}, {y})"

    def comparison(self, text: str, dtype: str) -> str:
        """Return the comparison unchanged: it is a mask already."""
        return text

    def load(self, pointer: str, index: str, dtype: str) -> str:
        """Load contiguous elements."""
        if dt.element_dtype(dtype) == "bool":
            return f"ek_v_ne_i32(ek_v_load_u8(&{pointer}[{index}]), ek_v_dup_i32(0))"
        return f"ek_v_load_{self._type_suffix(dtype)}(&{pointer}[{index}])"

    def load_stride2(self, pointer: str, index: str, dtype: str) -> str:
        """Load every second element, lane by lane."""
        raise UnsupportedVectorError

    def store(self, pointer: str, index: str, value: str, dtype: str) -> str:
        """Return the line that stores a vector contiguously; integers keep their low bits."""
        short = self._type_suffix(dtype)
        if short == "b32":
            short, value = "u8", self.bool_to_int(value, dtype)
        return f"ek_v_store_{short}(&{pointer}[{index}], {value});"

    def load_lanes(self, array: str, dtype: str) -> str:
        """Load a vector from an array of lanes."""
        return f"ek_v_load_{self._register_lane_type(dtype)}({array})"

    def lane_array(self, name: str, dtype: str) -> str:
        """Return the vector's name: GCC vectors are indexed like arrays."""
        return name

    def can_reinterpret(self, source: str, target: str) -> bool:
        """Return whether both types have 32-bit lanes. Narrower lanes are extended in registers, so
        their register bits differ from memory.
        """
        return all(dt.SCALAR_BITS.get(dt.element_dtype(dtype)) == 32 for dtype in (source, target))

    def bits(self, kind: str, x: str) -> str:
        """Reinterpret a vector as another type of the same width."""
        return f"(({kind})({x}))"

    def math(self, name: str, dtype: str) -> str:
        """Return the name of a vector math function, such as `ek_v_rint`. Raises UnsupportedVectorError if
        there is none.
        """
        if dt.lanes(dtype) == 1:
            return C_SYNTAX.math(name, dtype)
        if name not in HELIUM_FUNCTIONS or dt.element_dtype(dtype) != "float32":
            raise UnsupportedVectorError
        return f"ek_v_{name}"

    def native_operation(self, kind: Kind, dtype: str, x: str, y: str, y_is_number: bool) -> str:
        """Return a float32 division, minimum or maximum as Helium instructions, else ""; minima and
        maxima need a second operand that is not NaN.
        """
        word = self._register_lane_type(dtype)
        name = {Div: "div", Max: "max", Min: "min"}.get(kind)
        is_float = word == "f32"
        if name is None or word == "u32" or (kind is Div) > is_float:
            return ""
        if is_float and kind is not Div and not y_is_number:
            return ""
        return f"ek_v_{name}_{word}({x}, {y})"

    def all_lanes(self, condition: str) -> str:
        """Return whether a condition holds in all lanes."""
        return " && ".join(f"{condition}[{n}]" for n in range(HELIUM_LANES))

    def any_lane(self, condition: str) -> str:
        """Return whether a condition holds in at least one lane."""
        return f"({' || '.join(f'{condition}[{n}]' for n in range(HELIUM_LANES))})"


__all__ = ["HELIUM_LANES", "HeliumSyntax", "used_functions"]
