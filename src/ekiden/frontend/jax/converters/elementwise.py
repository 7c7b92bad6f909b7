"""Elementwise operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ekiden.frontend.common import complex_arithmetic as complexes
from ekiden.frontend.common import constant_folding
from ekiden.frontend.common.complex_arithmetic import (
    complex_divide,
    complex_multiply,
    emit_complex_exp,
)
from ekiden.frontend.common.constant_folding import Rule
from ekiden.frontend.common.converters import stablehlo as shared
from ekiden.frontend.common.converters.elementwise import ElementwiseRow as Elementwise
from ekiden.frontend.common.converters.elementwise import elementwise_rows
from ekiden.frontend.common.node import Result
from ekiden.frontend.jax.converters.complex import (
    absolute,
    binary_rule,
    complex_atan2,
    complex_cbrt,
    complex_compare,
    complex_expm1,
    complex_is_finite,
    complex_log,
    complex_power,
    complex_rsqrt,
    complex_sign,
    convert_rule,
    lexicographic_extremum_rule,
    unary_rule,
)
from ekiden.frontend.jax.node import (
    ComplexRule,
    Converter,
    StablehloNode,
    StablehloRow,
    custom_complex_rule,
    per_part_rule,
)
from ekiden.ir import prim
from ekiden.ir.dtype import is_float
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Expr, const

BinaryFunction = Callable[[Expr, Expr], Expr]


def _ignore_node_rule(rule: Rule) -> Callable[[StablehloNode], Rule]:
    return lambda node: rule


def _unary_converter(function: Callable[[Expr, str], Expr]) -> Converter:
    return lambda node: function(node.expr(0), node.dtype(0))


def broadcast_operands(node: StablehloNode) -> tuple[Expr, Expr]:
    """Return two operands of one shape; a broadcast is replaced by its source, as Relay operators
    broadcast themselves.

    In a reduction body evaluated on tensors, scalars stay scalars.
    """
    x, y = node.expr(0), node.expr(1)
    if node.rank(0) == 0 or node.rank(1) == 0:
        return x, y
    node.scope.require_equal_dims(node.shape(0), node.shape(1))
    thin = node.broadcast_source(1)
    if thin is not y:
        return x, thin
    return node.broadcast_source(0), y


def _binary_converter(function: Callable[[StablehloNode, Expr, Expr], Expr]) -> Converter:
    return lambda node: function(node, *broadcast_operands(node))


def _shared_converter(row: Elementwise) -> Converter:
    def convert(node: StablehloNode) -> Expr:
        """Emit the call of the shared table's operator on one or two operands of one dtype."""
        sides = [node.expr(0)] if len(node.inputs) == 1 else broadcast_operands(node)
        return row.emit(node.dtype(0), *sides)

    return convert


# Bits.


def _shift_converter(
    function: BinaryFunction, is_logical: bool = True, keeps_sign: bool = False
) -> Converter:
    return lambda node: shared.emit_shift(
        node, *broadcast_operands(node), function, node.bits(0), is_logical, keeps_sign
    )


def _popcount(node: StablehloNode) -> Expr:
    """Emit the population count; a narrow integer counts only its own bits."""
    return _count_bits(_mask_storage_bits(node, 0), node.dtype(0))


def _count_leading_zeros(node: StablehloNode) -> Expr:
    dtype, width = node.dtype(0), node.bits(0)
    zeros = _leading_zeros(_mask_storage_bits(node, 0), dtype)
    beyond = shared.dtype_bits(dtype) - width
    return op.subtract(zeros, const(beyond, dtype)) if beyond else zeros


def _mask_storage_bits(node: StablehloNode, index: int) -> Expr:
    """Mask an integer input to the bits of its narrow dtype."""
    dtype, width = node.dtype(index), node.bits(index)
    if width == shared.dtype_bits(dtype):
        return node.expr(index)
    return op.bitwise_and(node.expr(index), const((1 << width) - 1, dtype))


def _count_bits(x: Expr, dtype: str) -> Expr:
    """Emit the population count by parallel summation of neighbouring bit fields."""
    width, plain = shared.dtype_bits(dtype), shared.unsigned_dtype(dtype)
    sums = x if plain == dtype else op.reinterpret(x, plain)
    step = 1
    while step < width:
        pattern = sum(((1 << step) - 1) << position for position in range(0, width, 2 * step))
        mask = const(np.array(pattern, plain))
        high = op.right_shift(sums, const(step, plain))
        sums = op.add(op.bitwise_and(sums, mask), op.bitwise_and(high, mask))
        step *= 2
    return op.cast(sums, dtype)


def _leading_zeros(x: Expr, dtype: str) -> Expr:
    """Emit the number of leading zeros: smear the highest set bit downwards and count the clear
    bits.
    """
    width, plain = shared.dtype_bits(dtype), shared.unsigned_dtype(dtype)
    smeared = x if plain == dtype else op.reinterpret(x, plain)
    step = 1
    while step < width:
        smeared = op.bitwise_or(smeared, op.right_shift(smeared, const(step, plain)))
        step *= 2
    return op.cast(_count_bits(op.bitwise_not(smeared), plain), dtype)


def _convert(node: StablehloNode) -> Result:
    dtype, target = node.dtype(0), node.out_dtype()
    if dtype == target:
        return node.value(0)
    return shared.convert_dtype(node.expr(0), dtype, target, node.out_bits())


# Choices.


def _not_rule(inputs: Sequence[Array]) -> Array | None:
    """Evaluate `not` on known values: logical on bools, bitwise on integers, None for symbolic
    integers.
    """
    if inputs[0].dtype == np.object_ and any(e.dtype != "bool" for e in inputs[0].ravel()):
        return None
    if inputs[0].dtype not in (np.object_, np.bool_):
        return np.invert(inputs[0])
    return constant_folding.logical_not(inputs)


_COMPARISONS: Mapping[str, tuple[BinaryFunction, Rule]] = {
    "EQ": (op.equal, constant_folding.equal),
    "NE": (op.not_equal, constant_folding.not_equal),
    "LT": (op.less, constant_folding.less),
    "LE": (op.less_equal, constant_folding.less_equal),
    "GT": (op.greater, constant_folding.greater),
    "GE": (op.greater_equal, constant_folding.greater_equal),
}


def total_order_key(x: Expr, dtype: str) -> Expr:
    """Map floats to integers of the same total order: -NaN, -inf, ..., -0, 0, ..., inf, NaN."""
    int_dtype = f"int{shared.dtype_bits(dtype)}"
    bits = op.reinterpret(x, int_dtype)
    # IEEE 754 floats order like sign-magnitude integers: flip the magnitude bits of negative ones.
    largest = const(np.array(np.iinfo(int_dtype).max, int_dtype))
    return op.where(op.less(bits, const(0, int_dtype)), op.bitwise_xor(bits, largest), bits)


def _compare(node: StablehloNode) -> Expr:
    x, y = broadcast_operands(node)
    if node.enum_keyword("compare_type") == "TOTALORDER" and is_float(node.dtype(0)):
        x, y = total_order_key(x, node.dtype(0)), total_order_key(y, node.dtype(0))
    return _COMPARISONS[node.enum_keyword("comparison_direction")][0](x, y)


def _compare_rule(node: StablehloNode) -> Rule:
    return _COMPARISONS[node.enum_keyword("comparison_direction")][1]


def _select(node: StablehloNode) -> Expr:
    if 0 in (node.rank(1), node.rank(2)):
        return op.where(node.expr(0), node.expr(1), node.expr(2))
    node.scope.require_equal_dims(node.shape(1), node.shape(2))
    test = node.expr(0) if node.rank(0) == 0 else node.broadcast_source(0)
    if test is not node.expr(0) or node.rank(0) == 0:
        return op.where(test, node.expr(1), node.expr(2))
    # One of the two branches must keep its full shape, which gives the result its own.
    thin = node.broadcast_source(2)
    if thin is not node.expr(2):
        return op.where(test, node.expr(1), thin)
    return op.where(test, node.broadcast_source(1), node.expr(2))


def _clamp(node: StablehloNode) -> Expr:
    low, high = (node.broadcast_source(i) if node.rank(1) else node.expr(i) for i in (0, 2))
    return shared.emit_clamp(low, node.expr(1), high)


def _clamp_rule(inputs: Sequence[Array]) -> Array | None:
    low, x, high = inputs
    raised = constant_folding.maximum([x, low])
    return None if raised is None else constant_folding.minimum([raised, high])


def _remainder_rule(inputs: Sequence[Array]) -> Array | None:
    if all(i.dtype != np.object_ for i in inputs):
        # A divisor of 0 is undefined in a known shape computation; 1 keeps NumPy from warning.
        return np.asarray(np.fmod(inputs[0], np.where(inputs[1] == 0, 1, inputs[1])))
    lifted = [constant_folding.to_expr_elements(i) for i in inputs]
    if any(is_float(e.dtype) for i in lifted for e in i.ravel()):
        return None
    return np.asarray(np.frompyfunc(constant_folding.truncated_mod, 2, 1)(*lifted), object)


def _bool_rule(numeric: Callable[..., Array], symbolic: Callable[..., object]) -> Rule:
    """Return a folding rule: bitwise on numbers, logical on symbolic conditions."""
    rule = constant_folding.elementwise_rule(numeric, symbolic)

    def apply_to_bools(inputs: Sequence[Array]) -> Array | None:
        lifted = [e for i in inputs if i.dtype == np.object_ for e in i.ravel()]
        return rule(inputs) if all(e.dtype == "bool" for e in lifted) else None

    return apply_to_bools


_and_rule = _bool_rule(np.bitwise_and, prim.logical_and)
_or_rule = _bool_rule(np.bitwise_or, lambda a, b: prim.fold_binary(prim.Or, a, b))
_xor_rule = _bool_rule(np.bitwise_xor, lambda a, b: prim.fold_binary(prim.NE, a, b))
_sign_rule = constant_folding.elementwise_rule(
    np.sign, lambda x: prim.maximum(prim.minimum(x, 1), -1)
)
_abs_rule = constant_folding.elementwise_rule(np.abs, lambda x: prim.maximum(x, -x))


_FOLDING_RULES: Mapping[str, Rule] = {
    "abs": _abs_rule, "not": _not_rule, "and": _and_rule, "or": _or_rule, "xor": _xor_rule,
    **{name: row.rule for name, _, row in elementwise_rows("stablehlo")
       if row.rule is not None and name in ("add", "subtract", "multiply", "maximum", "minimum")},
}  # fmt: skip
"""What is computed of sizes, which in JAX are integers."""
_COMPLEX_RULES: Mapping[str, Callable[[Converter], ComplexRule]] = {
    "add": per_part_rule,
    "subtract": per_part_rule,
    "multiply": binary_rule(complex_multiply),
    "maximum": lexicographic_extremum_rule(op.greater),
    "minimum": lexicographic_extremum_rule(op.less),
    "atan2": custom_complex_rule(complex_atan2),
    "abs": custom_complex_rule(absolute),
    "exponential_minus_one": custom_complex_rule(complex_expm1),
    "negate": per_part_rule,
    "exponential": unary_rule(emit_complex_exp),
    "log": custom_complex_rule(complex_log),
    "sine": unary_rule(complexes.complex_sin),
    "cosine": unary_rule(complexes.complex_cos),
    "tan": unary_rule(complexes.complex_tan),
    "tanh": unary_rule(complexes.complex_tanh),
    "logistic": unary_rule(complexes.complex_sigmoid),
    "rsqrt": custom_complex_rule(complex_rsqrt),
    "is_finite": custom_complex_rule(complex_is_finite),
}


def _shared_rows(name: str, row: Elementwise) -> list[StablehloRow]:
    """Return the rows of an operation of the shared table."""
    convert = _shared_converter(row)
    if name.startswith("chlo."):
        # jax before 0.7 emits CHLO operations of symbolic shapes as custom calls of mhlo.
        called = (name, f"custom_call:mhlo.{name.removeprefix('chlo.')}")
        return [StablehloRow(row_name, convert) for row_name in called]
    rule = _ignore_node_rule(_FOLDING_RULES[name]) if name in _FOLDING_RULES else None
    return [
        StablehloRow(f"stablehlo.{name}", convert, rule, make_complex_rule=_COMPLEX_RULES.get(name))
    ]


# fmt: off
ROWS: tuple[StablehloRow, ...] = (
    *(entry for name, _, row in elementwise_rows("stablehlo") for entry in _shared_rows(name, row)),
    StablehloRow("stablehlo.cbrt", _unary_converter(shared.emit_cbrt),
        make_complex_rule=custom_complex_rule(complex_cbrt)),
    StablehloRow("stablehlo.sign",                   _unary_converter(shared.emit_sign),
        _ignore_node_rule(_sign_rule), make_complex_rule=custom_complex_rule(complex_sign)),
    StablehloRow("stablehlo.round_nearest_afz",      _unary_converter(shared.round_half_away)),
    StablehloRow("stablehlo.popcnt",                 _popcount),
    StablehloRow("stablehlo.count_leading_zeros",    _count_leading_zeros),
    StablehloRow("stablehlo.divide",                 _binary_converter(shared.divide),
        _ignore_node_rule(constant_folding.divide), make_complex_rule=binary_rule(complex_divide)),
    StablehloRow("stablehlo.remainder",              _binary_converter(shared.remainder),
        _ignore_node_rule(_remainder_rule)),
    StablehloRow("stablehlo.power",
        lambda node: op.power(*broadcast_operands(node)),
        make_complex_rule=custom_complex_rule(complex_power)),
    StablehloRow("stablehlo.shift_left",             _shift_converter(op.left_shift)),
    StablehloRow("stablehlo.shift_right_logical",    _shift_converter(op.right_shift)),
    StablehloRow("stablehlo.shift_right_arithmetic", _shift_converter(op.right_shift, False, True)),
    StablehloRow("stablehlo.compare", _compare, _compare_rule,
        make_complex_rule=custom_complex_rule(complex_compare)),
    StablehloRow("stablehlo.select",                 _select,
        _ignore_node_rule(constant_folding.where), make_complex_rule=per_part_rule),
    StablehloRow("stablehlo.clamp",                  _clamp, _ignore_node_rule(_clamp_rule)),
    StablehloRow("stablehlo.convert",                _convert,
        lambda node: constant_folding.cast_rule(node.out_dtype()), make_complex_rule=convert_rule),
)
# fmt: on
