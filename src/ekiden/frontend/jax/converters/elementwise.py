"""Operations on each element."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ekiden.frontend.common import arithmetic
from ekiden.frontend.common.arithmetic import Rule
from ekiden.frontend.common.complex import divided, exponential, multiplied
from ekiden.frontend.common.functions import atan2, expm1, fmod, log1p, whole
from ekiden.frontend.common.node import Result
from ekiden.frontend.jax.converters.complex import absolute, binary, compare, convert, log, unary
from ekiden.frontend.jax.node import ComplexRule, Converter, Node, Row, own, per_part
from ekiden.ir import prim
from ekiden.ir.dtype import is_float, itemsize
from ekiden.ir.op import Array
from ekiden.ir.prim import int_range
from ekiden.relay import op
from ekiden.relay.expr import Expr, const

Unary = Callable[[Expr], Expr]
Binary = Callable[[Expr, Expr], Expr]


def _fixed(rule: Rule) -> Callable[[Node], Rule]:
    return lambda node: rule


def _unary(function: Unary) -> Converter:
    return lambda node: function(node.expr(0))


def _with_dtype(function: Callable[[Expr, str], Expr]) -> Converter:
    return lambda node: function(node.expr(0), node.dtype(0))


def operands(node: Node) -> tuple[Expr, Expr]:
    """Two inputs of one shape; one that is a broadcast stands for itself, for the operation
    broadcasts it. In the body of a reduction that is computed with tensors numbers stay such.
    """
    x, y = node.expr(0), node.expr(1)
    if node.rank(0) == 0 or node.rank(1) == 0:
        return x, y
    node.scope.same(node.shape(0), node.shape(1))
    thin = node.narrow(1)
    if thin is not y:
        return x, thin
    return node.narrow(0), y


def _binary(function: Binary, of_truth: Binary | None = None) -> Converter:
    """`of_truth` is what it means for truth values, where that is another operator."""

    def convert(node: Node) -> Expr:
        """The call on both operands, which have one shape and dtype in StableHLO."""
        x, y = operands(node)
        chosen = of_truth if of_truth is not None and node.dtype(0) == "bool" else function
        return chosen(x, y)

    return convert


def _round_away(x: Expr, dtype: str) -> Expr:
    """To the nearest integer, halves away from 0."""
    whole = op.trunc(x)
    is_half = op.greater_equal(op.abs(op.subtract(x, whole)), const(0.5, dtype))
    return op.add(whole, op.where(is_half, op.sign(x), const(0, dtype)))


def _sign(x: Expr, dtype: str) -> Expr:
    if not is_float(dtype):
        return op.sign(x)
    return op.where(op.logical_or(op.isnan(x), op.equal(x, const(0, dtype))), x, op.sign(x))


def _cbrt(x: Expr, dtype: str) -> Expr:
    root = op.power(op.abs(x), const(1 / 3, dtype))
    return op.where(op.less(x, const(0, dtype)), op.negative(root), root)


def _not(node: Node) -> Expr:
    return (op.logical_not if node.dtype(0) == "bool" else op.bitwise_not)(node.expr(0))


def _remainder(node: Node) -> Expr:
    """Of integers by 0 what is divided."""
    x, y = operands(node)
    found = fmod(node.dtype(0), x, y)
    return found if _never_zero(node) else op.where(op.equal(y, const(0, node.dtype(0))), x, found)


def _never_zero(node: Node) -> bool:
    """Whether the divisor is of floats, or known not to be 0."""
    given = node.value(1).array
    is_known = given is not None and given.dtype != np.object_
    return is_float(node.dtype(0)) or (is_known and bool(np.all(given)))


def _atan2(node: Node) -> Expr:
    return atan2(*operands(node), node.dtype(0))


def _divide(node: Node) -> Expr:
    """Of integers by 0 all bits are set, as XLA has them."""
    (x, y), dtype = operands(node), node.dtype(0)
    if is_float(dtype):
        return op.divide(x, y)
    found = op.trunc_divide(x, y)
    ones = const(np.array(-1).astype(dtype))
    return found if _never_zero(node) else op.where(op.equal(y, const(0, dtype)), ones, found)


def _power(node: Node) -> Expr:
    x, y = operands(node)
    if is_float(node.dtype(0)):
        return op.power(x, y)
    exponent = node.value(1).array
    if exponent is None or exponent.size == 0 or exponent.min() != exponent.max():
        node.unsupported("integers are raised to one constant power only")
    return _integer_power(x, int(exponent.flat[0]), node.dtype(0))


def _integer_power(x: Expr, exponent: int, dtype: str) -> Expr:
    """By squares; a negative power of 1 and -1 is their odd or even one, of others 0."""
    if exponent < 0:
        kept = _integer_power(x, exponent % 2, dtype)
        return op.where(op.equal(op.abs(x), const(1, dtype)), kept, const(0, dtype))
    found, square = op.full_like(x, const(1, dtype)), x
    while exponent:
        found = op.multiply(found, square) if exponent % 2 else found
        square, exponent = op.multiply(square, square), exponent // 2
    return found


# Bits.


def _bits(dtype: str) -> int:
    return 8 * itemsize(dtype)


def _unsigned(dtype: str) -> str:
    return dtype if dtype.startswith("uint") else f"u{dtype}"


def _shift(function: Binary, is_logical: bool, is_kept: bool = False) -> Converter:
    """A shift by as many bits as there are, or more, gives 0, or the sign where it is kept."""

    def convert(node: Node) -> Expr:
        """StableHLO leaves no shift undefined: counts that are not known to be below the width are
        held there, and what is beyond it is 0 (or the sign, which the longest shift leaves).
        """
        x, count = operands(node)
        dtype = node.dtype(0)
        plain = _unsigned(dtype) if is_logical else dtype.removeprefix("u")
        width = _bits(dtype)
        given = node.value(1).array
        x = x if plain == dtype else op.reinterpret(x, plain)
        inside = given is not None and bool(np.all((given >= 0) & (given < width)))
        by = count
        if not inside:  # counts below 0 are large as well
            by = op.minimum(op.cast(by, _unsigned(dtype)), const(width - 1, _unsigned(dtype)))
        by = by if node.scope.typed(by).dtype == plain else op.cast(by, plain)
        found = function(x, by)
        found = found if plain == dtype else op.reinterpret(found, dtype)
        if inside or is_kept:
            return found
        far = op.greater_equal(op.cast(count, _unsigned(dtype)), const(width, _unsigned(dtype)))
        return op.where(far, const(0, dtype), found)

    return convert


def _count_bits(x: Expr, dtype: str) -> Expr:
    """How many are set: sums of neighbours, then of pairs, and so on."""
    width, plain = _bits(dtype), _unsigned(dtype)
    found = x if plain == dtype else op.reinterpret(x, plain)
    step = 1
    while step < width:
        pattern = sum(((1 << step) - 1) << at for at in range(0, width, 2 * step))
        mask = const(np.array(pattern, plain))
        high = op.right_shift(found, const(step, plain))
        found = op.add(op.bitwise_and(found, mask), op.bitwise_and(high, mask))
        step *= 2
    return op.cast(found, dtype)


def _leading_zeros(x: Expr, dtype: str) -> Expr:
    """Those that are not set once every bit below the first one is."""
    width, plain = _bits(dtype), _unsigned(dtype)
    found = x if plain == dtype else op.reinterpret(x, plain)
    step = 1
    while step < width:
        found = op.bitwise_or(found, op.right_shift(found, const(step, plain)))
        step *= 2
    return op.cast(_count_bits(op.bitwise_not(found), plain), dtype)


def _bitcast(node: Node) -> Expr:
    dtype, wanted = node.dtype(0), node.out_dtype()
    if "bool" in (dtype, wanted) or _bits(dtype) != _bits(wanted):
        node.unsupported(f"the bits of {dtype} as {wanted}, which is of another width")
    return op.reinterpret(node.expr(0), wanted)


def _convert(node: Node) -> Result:
    dtype, wanted = node.dtype(0), node.out_dtype()
    if dtype == wanted:
        return node.value(0)
    if wanted == "bool":
        return op.not_equal(node.expr(0), const(0, dtype))
    if is_float(dtype) and int_range(wanted) is not None:
        return whole(node.expr(0), dtype, wanted)
    return op.cast(node.expr(0), wanted)


_NARROW: Mapping[tuple[int, int], str] = {(8, 7): "bfloat16", (5, 10): "float16"}


def _reduce_precision(node: Node) -> Result:
    bits = (node.integer("exponent_bits"), node.integer("mantissa_bits"))
    whole = {"float32": (8, 23), "float64": (11, 52), "float16": (5, 10), "bfloat16": (8, 7)}
    if whole.get(node.dtype(0)) == bits:
        return node.value(0)
    if bits not in _NARROW:
        node.unsupported(f"{bits[0]} bits of exponent and {bits[1]} of mantissa")
    return op.cast(op.cast(node.expr(0), _NARROW[bits]), node.dtype(0))


# Choices.


def _different(inputs: Sequence[Array]) -> Array | None:
    found = arithmetic.equal(inputs)
    return None if found is None else arithmetic.logical_not([found])


_COMPARE: Mapping[str, tuple[Binary, Rule]] = {
    "EQ": (op.equal, arithmetic.equal),
    "NE": (op.not_equal, _different),
    "LT": (op.less, arithmetic.less),
    "LE": (op.less_equal, arithmetic.less_equal),
    "GT": (op.greater, arithmetic.greater),
    "GE": (op.greater_equal, arithmetic.greater_equal),
}


def ordered(x: Expr, dtype: str) -> Expr:
    """Floats as integers that are in total order: -NaN, -inf, ..., -0, 0, ..., inf, NaN."""
    whole = f"int{_bits(dtype)}"
    bits = op.reinterpret(x, whole)
    largest = const(np.array(np.iinfo(whole).max, whole))
    return op.where(op.less(bits, const(0, whole)), op.bitwise_xor(bits, largest), bits)


def _compare(node: Node) -> Expr:
    x, y = operands(node)
    if node.word("compare_type") == "TOTALORDER":
        x, y = ordered(x, node.dtype(0)), ordered(y, node.dtype(0))
    return _COMPARE[node.word("comparison_direction")][0](x, y)


def _compared(node: Node) -> Rule:
    return _COMPARE[node.word("comparison_direction")][1]


def _select(node: Node) -> Expr:
    if 0 in (node.rank(1), node.rank(2)):
        return op.where(node.expr(0), node.expr(1), node.expr(2))
    node.scope.same(node.shape(1), node.shape(2))
    test = node.expr(0) if node.rank(0) == 0 else node.narrow(0)
    if test is not node.expr(0) or node.rank(0) == 0:
        return op.where(test, node.expr(1), node.expr(2))
    thin = node.narrow(2)
    if thin is not node.expr(2):
        return op.where(test, node.expr(1), thin)
    return op.where(test, node.narrow(1), node.expr(2))


def _clamp(node: Node) -> Expr:
    """(low, x, high): NaN stays."""
    low, high = (node.narrow(i) if node.rank(1) else node.expr(i) for i in (0, 2))
    return op.minimum(op.maximum(node.expr(1), low), high)


def _clamped(inputs: Sequence[Array]) -> Array | None:
    low, x, high = inputs
    raised = arithmetic.maximum([x, low])
    return None if raised is None else arithmetic.minimum([raised, high])


def _remainders(inputs: Sequence[Array]) -> Array | None:
    if all(i.dtype != np.object_ for i in inputs):
        return np.asarray(np.fmod(inputs[0], np.where(inputs[1] == 0, 1, inputs[1])))
    lifted = [arithmetic.lift(i) for i in inputs]
    if not all(arithmetic.is_not_negative(e) for i in lifted for e in i.ravel()):
        return None
    return np.asarray(lifted[0] % lifted[1], object)


def _truth(numeric: Callable[..., Array], symbolic: Callable[..., object]) -> Rule:
    """A rule of bits of numbers, and of conditions that are symbolic."""
    rule = arithmetic.elementwise(numeric, symbolic)

    def of_truth(inputs: Sequence[Array]) -> Array | None:
        lifted = [e for i in inputs if i.dtype == np.object_ for e in i.ravel()]
        return rule(inputs) if all(e.dtype == "bool" for e in lifted) else None

    return of_truth


_and = _truth(np.bitwise_and, prim.logical_and)
_or = _truth(np.bitwise_or, lambda a, b: prim.binary(prim.Or, a, b))
_xor = _truth(np.bitwise_xor, lambda a, b: prim.binary(prim.NE, a, b))
_signs = arithmetic.elementwise(np.sign, lambda x: prim.maximum(prim.minimum(x, 1), -1))
_absolute = arithmetic.elementwise(np.abs, lambda x: prim.maximum(x, -x))


_UNARY: Mapping[str, Unary] = {
    "negate": op.negative, "exponential": op.exp, "log": op.log,
    "logistic": op.sigmoid, "tanh": op.tanh, "sine": op.sin, "cosine": op.cos, "tan": op.tan,
    "sqrt": op.sqrt, "rsqrt": op.rsqrt, "floor": op.floor, "ceil": op.ceil,
    "round_nearest_even": op.round, "is_finite": op.isfinite,
}  # fmt: skip
_UNARY_COMPLEX: Mapping[str, Callable[[Converter], ComplexRule]] = {
    "negate": per_part, "exponential": unary(exponential), "log": own(log),
}  # fmt: skip
_CHLO: Mapping[str, Unary] = {
    "acos": op.acos, "acosh": op.acosh, "asin": op.asin, "asinh": op.asinh, "atan": op.atan,
    "atanh": op.atanh, "cosh": op.cosh, "sinh": op.sinh, "tan": op.tan, "erf": op.erf,
    "is_inf": op.isinf,
}  # fmt: skip

# fmt: off
ROWS: tuple[Row, ...] = (
    *(Row(f"stablehlo.{name}", _unary(function), on_complex=_UNARY_COMPLEX.get(name))
      for name, function in _UNARY.items()),
    *(Row(f"chlo.{name}", _unary(function)) for name, function in _CHLO.items()),
    Row("stablehlo.exponential_minus_one", _with_dtype(expm1)),
    Row("stablehlo.log_plus_one",          _with_dtype(log1p)),
    Row("stablehlo.cbrt",                  _with_dtype(_cbrt)),
    Row("stablehlo.sign",                  _with_dtype(_sign), _fixed(_signs)),
    Row("stablehlo.abs",        _unary(op.abs), _fixed(_absolute), on_complex=own(absolute)),
    Row("stablehlo.round_nearest_afz",     _with_dtype(_round_away)),
    Row("stablehlo.popcnt",                _with_dtype(_count_bits)),
    Row("stablehlo.count_leading_zeros",   _with_dtype(_leading_zeros)),
    Row("stablehlo.not",                   _not, _fixed(arithmetic.logical_not)),
    Row("stablehlo.add",       _binary(op.add, op.logical_or),       _fixed(arithmetic.add),
        on_complex=per_part),
    Row("stablehlo.subtract",  _binary(op.subtract),                 _fixed(arithmetic.subtract),
        on_complex=per_part),
    Row("stablehlo.multiply",  _binary(op.multiply, op.logical_and), _fixed(arithmetic.multiply),
        on_complex=binary(multiplied)),
    Row("stablehlo.divide",    _divide,                              _fixed(arithmetic.divide),
        on_complex=binary(divided)),
    Row("stablehlo.remainder", _remainder,                       _fixed(_remainders)),
    Row("stablehlo.maximum",   _binary(op.maximum, op.logical_or),   _fixed(arithmetic.maximum)),
    Row("stablehlo.minimum",   _binary(op.minimum, op.logical_and),  _fixed(arithmetic.minimum)),
    Row("stablehlo.power",     _power),
    Row("stablehlo.atan2",     _atan2),
    Row("stablehlo.and",       _binary(op.bitwise_and, op.logical_and),  _fixed(_and)),
    Row("stablehlo.or",        _binary(op.bitwise_or, op.logical_or),    _fixed(_or)),
    Row("stablehlo.xor",       _binary(op.bitwise_xor, op.logical_xor),  _fixed(_xor)),
    Row("stablehlo.shift_left",             _shift(op.left_shift, is_logical=True)),
    Row("stablehlo.shift_right_logical",    _shift(op.right_shift, is_logical=True)),
    Row("stablehlo.shift_right_arithmetic", _shift(op.right_shift, is_logical=False, is_kept=True)),
    Row("stablehlo.compare",   _compare,  _compared, on_complex=own(compare)),
    Row("stablehlo.select",    _select,   _fixed(arithmetic.where), on_complex=per_part),
    Row("stablehlo.clamp",     _clamp,    _fixed(_clamped)),
    Row("stablehlo.convert",   _convert,  lambda node: arithmetic.cast(node.out_dtype()),
        on_complex=own(convert)),
    Row("stablehlo.bitcast_convert",  _bitcast),
    Row("stablehlo.reduce_precision", _reduce_precision),
)
# fmt: on
