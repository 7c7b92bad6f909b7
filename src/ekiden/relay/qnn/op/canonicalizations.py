"""Lookup tables for unary functions of quantised tensors (TVM's names)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ekiden.ir.module import IRModule
from ekiden.ir.op import Array
from ekiden.relay.expr import Constant, Expr, const
from ekiden.relay.interpreter import Interpreter
from ekiden.relay.op import cast, reinterpret, take
from ekiden.relay.qnn.scale_conversion import dequantize_array, quantize_array
from ekiden.relay.type_infer import infer_type
from ekiden.relay.visitor import free_vars
from ekiden.runtime.errors import CompileError

Function = Callable[[Array], Array]
"""Elementwise function of a float32 array."""


def _scalar_constant(value: Expr, what: str) -> Array:
    if not isinstance(value, Constant) or value.data.size != 1:
        raise ValueError(f"lookup table: {what!r} must be a constant scalar")
    return value.data.reshape(())


def create_integer_lookup_table(
    floating_point_func: Function,
    input_scale: Expr,
    input_zero_point: Expr,
    output_scale: Expr,
    output_zero_point: Expr,
    in_axis: int = -1,
    out_axis: int = -1,
    in_dtype: str = "uint8",
    out_dtype: str = "uint8",
) -> Array:
    """Tabulate a float function over all integers of `in_dtype`, indexed by their unsigned bit
    pattern.

    Scales and zero points are constant scalars.

    Raises:
        ValueError: They are not, or a dtype has other than 8 or 16 bits.
    """
    if np.dtype(in_dtype).kind not in "iu" or np.dtype(out_dtype).kind not in "iu":
        raise ValueError(f"lookup table: expected integer dtypes, got {in_dtype} to {out_dtype}")
    bits = np.iinfo(in_dtype).bits
    if bits > 16:
        raise ValueError(f"lookup table: {in_dtype} has too many numbers for a table")
    input_steps = (
        _scalar_constant(input_scale, "input_scale"),
        _scalar_constant(input_zero_point, "input_zero_point"),
    )
    output_steps = (
        _scalar_constant(output_scale, "output_scale"),
        _scalar_constant(output_zero_point, "output_zero_point"),
    )
    # Entry n is the integer whose bits are n: negative ones follow the positive.
    numbers = np.arange(1 << bits, dtype=f"uint{bits}").view(in_dtype)
    results = floating_point_func(dequantize_array(numbers, input_steps)).astype(np.float32)
    return quantize_array(results, output_steps, out_dtype=out_dtype)


def create_integer_lookup_op(
    input_arg: Expr,
    floating_point_func: Function,
    in_scale: Expr,
    in_zero_point: Expr,
    out_scale: Expr,
    out_zero_point: Expr,
    in_axis: int = -1,
    out_axis: int = -1,
    in_dtype: str = "uint8",
    out_dtype: str = "uint8",
) -> Expr:
    """Return a unary function of a quantised tensor as a table lookup (take)."""
    table = create_integer_lookup_table(
        floating_point_func, in_scale, in_zero_point, out_scale, out_zero_point,
        in_axis, out_axis, in_dtype, out_dtype,
    )  # fmt: skip
    bits = np.iinfo(in_dtype).bits
    # take needs positions from 0 on: signed integers are read as unsigned bits.
    positions = reinterpret(input_arg, f"uint{bits}") if in_dtype.startswith("int") else input_arg
    return take(const(table), cast(positions, "int32"), 0)


def run_const_expr(expr: Expr) -> Array:
    """Evaluate a constant expression.

    Raises:
        CompileError: The expression has free variables.
    """
    if unbound := free_vars(expr):
        names = ", ".join(f"%{v.name_hint}" for v in unbound)
        raise CompileError(f"run_const_expr: the expression has free variables: {names}")
    return np.asarray(Interpreter(infer_type(IRModule.from_expr(expr))).evaluate("main"))


__all__ = ["create_integer_lookup_op", "create_integer_lookup_table", "run_const_expr"]
