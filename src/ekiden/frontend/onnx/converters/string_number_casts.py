"""ONNX casts between strings and numbers.

Strings that are not numbers are a run-time error. A number may have blanks around it; for an
integer dtype the digits after a decimal point are dropped. Floats are formatted with eight
significant digits, as by ONNX Runtime.
"""

from __future__ import annotations

import numpy as np

from ekiden.frontend.common.node import Result
from ekiden.frontend.common.string_value import StringValue, flatten_strings, to_string_value
from ekiden.frontend.onnx.dtype import from_onnx_dtype
from ekiden.frontend.onnx.lazy_onnx import onnx
from ekiden.frontend.onnx.node import OnnxNode
from ekiden.frontend.onnx.regex import compile_dfa
from ekiden.ir.dtype import is_float
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import product_of_dims
from ekiden.topi.text import INFINITE_SIGN, MAX_SIGNIFICANT_DIGITS, NAN_SIGN

INTEGER_PATTERN = r"\s*[+-]?\d+(\.\d*)?\s*"
FLOAT_PATTERN = r"(?i)\s*[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf|infinity|nan)\s*"
SIGNIFICANT_DIGITS = 8
"""Significant digits of a float, as of C's %.8g."""
MAX_DECIMAL_EXPONENT = 308


def parse_numbers(node: OnnxNode, strings: StringValue, dtype: str) -> Expr:
    """Emit strings parsed as numbers of a dtype; another text is a run-time error."""
    data = flatten_strings(strings)
    tables = compile_dfa(FLOAT_PATTERN if is_float(dtype) else INTEGER_PATTERN)
    is_number = op.text.match(data, *map(const, tables))
    node.scope.require_at_run_time(op.all(is_number), f" (a string is no number of type {dtype})")
    if not is_float(dtype):
        integers = op.text.whole_number(data)
        numbers: Expr = integers if dtype == "int64" else op.cast(integers, dtype)
        if dtype == "bool":
            numbers = op.not_equal(integers, const(np.int64(0)))
    else:
        numbers = op.cast(_assemble_float(op.text.number_parts(data)), dtype)
    return op.reshape(numbers, strings.shape, allowzero=True)


def _split_columns(table: Expr, count: int) -> list[Expr]:
    """Emit the columns of a table."""
    return [op.take(table, const(np.int64(i)), axis=1) for i in range(count)]


def _power_of_ten(exponents: Expr) -> Expr:
    """Emit 10 ** exponents for exponents from 0 to MAX_DECIMAL_EXPONENT."""
    table = np.array([float(f"1e{e}") for e in range(MAX_DECIMAL_EXPONENT + 1)])
    return op.take(const(table), exponents, axis=0)


def _scale_by_power_of_ten(value: Expr, exponents: Expr) -> Expr:
    """Emit float64 values times 10 ** exponents, in two steps where one would overflow."""
    zero, last = const(np.int64(0)), const(np.int64(MAX_DECIMAL_EXPONENT))
    for sign, apply in ((1, op.multiply), (-1, op.divide)):
        remaining = op.maximum(op.multiply(exponents, const(np.int64(sign))), zero)
        for _ in range(2):
            step = op.minimum(remaining, last)
            value = apply(value, _power_of_ten(step))
            remaining = op.subtract(remaining, step)
    return value


def _assemble_float(number_parts: Expr) -> Expr:
    """Emit float64 from columns of sign, digits and exponent."""
    sign, digits, exponent = _split_columns(number_parts, 3)
    max_exponent = const(np.int64(MAX_DECIMAL_EXPONENT + MAX_SIGNIFICANT_DIGITS))
    exponent = op.minimum(op.maximum(exponent, op.negative(max_exponent)), max_exponent)
    value = _scale_by_power_of_ten(op.cast(digits, "float64"), exponent)
    value = op.where(
        op.equal(op.abs(sign), _int64_const(INFINITE_SIGN)), const(np.inf, "float64"), value
    )
    # The sign is a column of its own, so that -0.0 keeps it.
    value = op.where(op.less(sign, _int64_const(0)), op.negative(value), value)
    return op.where(op.equal(sign, _int64_const(NAN_SIGN)), const(np.nan, "float64"), value)


def _int64_const(value: int) -> Expr:
    """Return an int64 scalar constant."""
    return const(np.int64(value))


def format_numbers(node: OnnxNode, index: int = 0) -> StringValue:
    """Emit the numbers of an input as strings."""
    shape, dtype = node.shape(index), node.dtype(index)
    data = op.reshape(node.expr(index), (product_of_dims(shape),), allowzero=True)
    if is_float(dtype):
        sign, digits, exponent = _decimal_digits(op.cast(data, "float64"))
        texts = op.text.written(sign, digits, exponent, SIGNIFICANT_DIGITS)
    else:
        wide = data if dtype == "uint64" else op.cast(data, "int64")
        digits = op.cast(wide, "uint64")
        sign = op.full_like(op.cast(digits, "int64"), _int64_const(1))
        if dtype != "uint64":
            below = op.less(wide, _int64_const(0))
            sign = op.where(below, _int64_const(-1), sign)
            digits = op.where(below, op.subtract(const(np.uint64(0)), digits), digits)
        texts = op.text.written(sign, digits, op.zeros_like(sign))
    width = node.tensor_type_of(texts).shape[-1]
    return to_string_value(node.scope, op.reshape(texts, (*shape, width), allowzero=True))


def _decimal_digits(data: Expr) -> tuple[Expr, Expr, Expr]:
    """Emit sign, SIGNIFICANT_DIGITS decimal digits and exponent of floats."""
    is_finite = op.isfinite(data)
    size = op.where(is_finite, op.abs(data), const(0.0, "float64"))
    is_zero = op.equal(size, const(0.0, "float64"))
    safe = op.where(is_zero, const(1.0, "float64"), size)
    first = op.cast(op.floor(op.log10(safe)), "int64")  # of the first digit, or one beside it
    last = op.subtract(first, _int64_const(SIGNIFICANT_DIGITS - 1))
    low, high = _int64_const(10 ** (SIGNIFICANT_DIGITS - 1)), _int64_const(10**SIGNIFICANT_DIGITS)
    # the logarithm may be off by one where a number is near a power of ten
    for _ in range(2):
        digits = op.cast(op.round(_scale_by_power_of_ten(safe, op.negative(last))), "int64")
        last = op.where(op.less(digits, low), op.subtract(last, _int64_const(1)), last)
        last = op.where(op.greater_equal(digits, high), op.add(last, _int64_const(1)), last)
    digits = op.cast(op.round(_scale_by_power_of_ten(safe, op.negative(last))), "uint64")
    digits = op.where(is_zero, const(np.uint64(0)), digits)
    bits = op.reinterpret(data, "int64")  # -0.0 has a sign, too
    sign = op.where(op.less(bits, _int64_const(0)), _int64_const(-1), _int64_const(1))
    infinite = op.where(op.isinf(data), op.multiply(sign, _int64_const(INFINITE_SIGN)), sign)
    return op.where(op.isnan(data), _int64_const(NAN_SIGN), infinite), digits, last


def cast_text(node: OnnxNode) -> Result:
    """Convert Cast and CastLike from or to strings."""
    data = node.value(0)
    if node.op_type == "CastLike":
        to_text = node.value(1).is_string
        dtype = "" if to_text else node.dtype(1)
    else:
        kind = node.get_int("to")
        to_text = kind == onnx.TensorProto.STRING
        dtype = "" if to_text else from_onnx_dtype(kind)
    if not isinstance(data, StringValue):
        return format_numbers(node)
    return data if to_text else parse_numbers(node, data, dtype)
