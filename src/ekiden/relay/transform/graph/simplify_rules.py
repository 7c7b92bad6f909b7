"""Rewrite rules of SimplifyExpr, as tables of equations.

Equations are read literally: a name is any expression (the same in both places), a name that starts
with `c` a constant, a number a constant all of whose elements are that number. What an equation
cannot say (attributes, shapes) is a function in a second table, with its equation beside it.

The tier of a rule (ir/float_tier.py) says how much of floats it preserves. A rule is exact if for
every value of its dtypes, NaN, infinities and the ends of integers included, both sides have the
same bits. `multiply(x, 0) = 0` is not, as NaN * 0 is NaN; `subtract(x, x) = 0` neither, nor `add(x,
0.0) = x`, as -0.0 + 0.0 is 0.0. Integers wrap around, in which ring negation and sums obey the laws
of algebra, but an order does not: abs(-x) of unsigned x is no |x|. The caller checks types: a
result of another shape or dtype than the call's is rejected, so that a rule need not ask which of
its operands broadcasts.

Constants are merged where the result keeps its range and they do not cancel
(constant_arithmetic.py): x * 1e30 * 1e30 stays, and so does (x + c) - c.

Rules that could undo each other would run to MAX_INTERPRETED_STEPS; each makes the program smaller,
or moves constants outwards, or names a cheaper operator.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ekiden._lazy import LazyModule
from ekiden.arith import prove_equal
from ekiden.ir.dtype import int_range, is_float, is_int, itemsize
from ekiden.ir.expr import RelayExpr
from ekiden.ir.float_tier import FloatTier
from ekiden.ir.op import OPS, LinearForm, Op, TransposeRule
from ekiden.ir.prim import IntImm, PrimExpr, is_const
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.dataflow_pattern.matcher import NodeMap, find_match
from ekiden.relay.dataflow_pattern.pattern import (
    DFPattern,
    PredicatePattern,
    is_constant,
    is_op,
    is_tuple,
    wildcard,
)
from ekiden.relay.expr import Call, Constant, const
from ekiden.relay.op.transform import TransposeAttrs, normalize_transpose_axes
from ekiden.relay.transform.graph.constant_arithmetic import fold_factors, fold_sum
from ekiden.relay.transform.graph.gather_scatter_rows import (
    rewrite_gather_as_take,
    rewrite_scatter_as_scatter_nd,
)
from ekiden.topi.dimensions import as_dim, as_shape

if TYPE_CHECKING:
    import ekiden.relay.op.nn.padding as pad
    import ekiden.relay.op.slice as slices
else:
    slices = LazyModule("ekiden.relay.op.slice")
    pad = LazyModule("ekiden.relay.op.nn.padding")

ReplacementBuilder = Callable[[NodeMap], RelayExpr | None]
CompiledRule = tuple[DFPattern, ReplacementBuilder]
"""Pattern of a rule, and its replacement builder."""


class RewriteRule:
    """Rewrite rule for calls of the operator `root`.

    Pattern and replacement are built when all operators of the left side are loaded: no other
    program has calls of them, and those that an equation names would load for nothing. `tier` says
    how much the result may differ.
    """

    __slots__ = ("_compile", "_compiled", "_operators", "equation", "root", "tier")

    def __init__(
        self,
        equation: str,
        root: str,
        write: Callable[[], CompiledRule],
        tier: FloatTier = FloatTier.EXACT,
        operators: Sequence[str] = (),
    ) -> None:
        self.equation, self.root, self.tier = equation, root, tier
        self._compile, self._operators = write, operators
        self._compiled: CompiledRule | None = None

    def apply(self, call: RelayExpr) -> RelayExpr | None:
        """Return the replacement of a call, or None where the rule does not match."""
        if self._compiled is None:
            # A program without these operators has no call that matches.
            if not all(map(OPS.has, self._operators)):
                return None
            self._compiled = self._compile()
        pattern, make = self._compiled
        match = find_match(pattern, call)
        return None if match is None else make(match)


# fmt: off
EXACT_EQUATIONS = (
    "add(x, -0.0) = x",
    "subtract(x, 0.0) = x",
    "multiply(x, 1) = x",
    "divide(x, 1) = x",
    "power(x, 1) = x",
    "negative(negative(x)) = x",
    "subtract(x, negative(y)) = add(x, y)",
    "add(x, negative(y)) = subtract(x, y)",
    "abs(abs(x)) = abs(x)",
    "maximum(x, x) = x",
    "minimum(x, x) = x",
    "nn.relu(nn.relu(x)) = nn.relu(x)",
    "logical_not(logical_not(x)) = x",
    "logical_and(x, x) = x",
    "logical_or(x, x) = x",
    "where(x, y, y) = y",
    "floor(floor(x)) = floor(x)",
    "ceil(ceil(x)) = ceil(x)",
    "round(round(x)) = round(x)",
    "copy(x) = x",
    "add(x, x) = multiply(x, 2)",
)
"""Bit-exact equations; an integer 0 matches 0.0 and -0.0. A 0 of integers is 0.0 and -0.0."""

ROUNDED_EQUATIONS = (
    "divide(1, sqrt(x)) = rsqrt(x)",
    "divide(x, sqrt(y)) = multiply(x, rsqrt(y))",
    "power(x, 2) = multiply(x, x)",
    "divide(1, add(1, exp(negative(x)))) = sigmoid(x)",
    "add(add(x, c1), c2) = add(x, add(c1, c2))",
    "add(subtract(x, c1), c2) = add(x, subtract(c2, c1))",
    "multiply(multiply(x, c1), c2) = multiply(x, multiply(c1, c2))",
)
"""Real equations that differ only by rounding."""

FREE_EQUATIONS = (
    "add(x, 0) = x",
    "subtract(x, 0) = x",
    "power(x, 0.5) = sqrt(x)",
    "power(x, -0.5) = rsqrt(x)",
    "multiply(add(x, c1), c2) = add(multiply(x, c2), multiply(c1, c2))",
    "add(add(multiply(x, x), multiply(multiply(x, y), 2)), multiply(y, y))"
    " = multiply(add(x, y), add(x, y))",
    "log(exp(x)) = x",
)
"""Real equations whose sides may differ arbitrarily in floating point.

    add(x, 0)              0.0 for -0.0
    power(x, 0.5)          inf for -inf, where the square root is NaN
    multiply(add(x, c1), c2)   loses digits, or overflows, where x is close to -c1
    log(exp(x))            inf where exp overflows
"""
# fmt: on


class _EquationRule:
    """Rule from an equation: the left side as a pattern, the right side as its replacement."""

    def __init__(self, text: str) -> None:
        lhs, rhs = text.split(" = ")
        self._names: dict[str, DFPattern] = {}
        self._constant_patterns: list[tuple[DFPattern, int | float]] = []
        self._replacement_tree = ast.parse(rhs, mode="eval").body
        tree = ast.parse(lhs, mode="eval").body
        self.pattern = self._build_pattern(tree)

    def _build_pattern(self, tree: ast.expr) -> DFPattern:
        if isinstance(tree, ast.Call):
            return is_op(ast.unparse(tree.func))(*map(self._build_pattern, tree.args))
        if isinstance(tree, ast.Name):
            fresh = is_constant() if tree.id.startswith("c") else wildcard()
            return self._names.setdefault(tree.id, fresh)
        number = PredicatePattern(_may_be_uniform)
        self._constant_patterns.append((number, ast.literal_eval(tree)))
        return number

    def build_replacement(self, match: NodeMap) -> RelayExpr | None:
        """Build the right side for a match; None unless all constants have the equation's
        values.
        """
        # Patterns only match the kind of node; the value is tested once the match is complete.
        if not all(_is_filled_with(match[p][0], value) for p, value in self._constant_patterns):
            return None
        return self._build_expression(self._replacement_tree, match)

    def _build_expression(self, tree: ast.expr, match: NodeMap) -> RelayExpr | None:
        if isinstance(tree, ast.Name):
            return match[self._names[tree.id]][0]
        if isinstance(tree, ast.Call):
            args = [self._build_expression(a, match) for a in tree.args]
            built_args = tuple(a for a in args if a is not None)
            new_call = Call(op.get(ast.unparse(tree.func)), built_args)
            return _fold_constant_call(new_call) if len(built_args) == len(args) else None
        some = next(iter(self._names.values()))
        kind = match[some][0].checked_type
        assert isinstance(kind, TensorType)
        return const(ast.literal_eval(tree), kind.dtype)


def _fold_constant_call(call: Call) -> RelayExpr | None:
    """Fold a call of constants; None where the result leaves its dtype's range."""
    assert isinstance(call.op, Op)
    row = call.op.definition
    values = [a.data for a in call.args if isinstance(a, Constant)]
    if len(values) < len(call.args):
        return call
    if row.linear is LinearForm.NO:
        if row.reference is None:
            return call
        return Constant(np.asarray(row.reference(call.attrs, *values)))
    lhs, rhs = values
    if row.linear is LinearForm.SCALES:
        merged = fold_factors(lhs, rhs)
    else:
        merged = fold_sum(lhs, -rhs if row.linear is LinearForm.SHIFTS_BACK else rhs)
    return None if merged is None else Constant(merged)


def _may_be_uniform(expr: RelayExpr) -> bool:
    """Return whether all elements may be equal: a constant, or a call that fills its result."""
    return isinstance(expr, Constant) or _fill_value(expr) is not None


def _is_filled_with(expr: RelayExpr, value: int | float) -> bool:
    """Return whether all elements equal a number; for a float zero also whether its sign agrees."""
    number = _fill_value(expr) or expr
    if not isinstance(number, Constant) or number.data.size == 0:
        return False
    data = number.data
    if not np.all(data == value):
        return False
    if value != 0 or isinstance(value, int) or not is_float(str(data.dtype)):
        return True
    # x + -0.0 = x is exact, x + 0.0 = x is not: the sign of zero decides.
    return bool(np.all(np.signbit(data) == np.signbit(value)))


def _fill_value(expr: RelayExpr) -> Constant | None:
    """Return the value of all elements of a filling call as a scalar constant, or None."""
    if not isinstance(expr, Call) or not isinstance(expr.op, Op):
        return None
    number: object = expr.op.definition.fills
    if number is None and expr.op.name.startswith("full"):
        fill_value = expr.args[-1]
        number = (
            fill_value.data
            if isinstance(fill_value, Constant) and fill_value.data.size == 1
            else None
        )
    return None if number is None else const(np.asarray(number).reshape(()), _tensor_dtype(expr))


def _tensor_shape(expr: RelayExpr) -> tuple[PrimExpr, ...]:
    kind = expr.checked_type
    assert isinstance(kind, TensorType)
    return kind.shape


def _tensor_dtype(expr: RelayExpr) -> str:
    kind = expr.checked_type
    assert isinstance(kind, TensorType)
    return kind.dtype


def _same_shape(a: RelayExpr, b: RelayExpr) -> bool:
    shape_a, shape_b = _tensor_shape(a), _tensor_shape(b)
    return len(shape_a) == len(shape_b) and all(map(prove_equal, shape_a, shape_b))


class _ShapedMatch:
    """Match of a shape rule: the outer call, an optional inner call, and its argument."""

    def __init__(self, outer: RelayExpr, inner: RelayExpr, x: RelayExpr) -> None:
        assert isinstance(outer, Call)
        self.outer, self.inner, self.x = outer, inner, x

    def inner_call(self) -> Call:
        """Return the inner call."""
        assert isinstance(self.inner, Call)
        return self.inner


def _is_lossless_cast(dtype: str, source: str) -> bool:
    """Return whether a cast from `source` to `dtype` preserves all values.

    NumPy calls float64 safe for 64-bit integers, of which it represents only those up to 2**53.
    """
    is_rounded = is_int(source) and itemsize(source) == 8 and is_float(dtype)
    return np.can_cast(source, dtype, "safe") and not is_rounded


def _merge_casts(m: _ShapedMatch) -> RelayExpr | None:
    through, source, target = _tensor_dtype(m.inner), _tensor_dtype(m.x), _tensor_dtype(m.outer)
    # The cast in the middle must not change any value.
    if _is_lossless_cast(through, source) or _is_clipped_to(m.x, through):
        return op.cast(m.x, target)
    return None


def _is_clipped_to(x: RelayExpr, dtype: str) -> bool:
    """Return whether x is an integer clip to within the range of a dtype.

    Of floats a NaN is not clipped: as int8 it is 0, where a wider dtype would let a number out that
    is no int8.
    """
    if not isinstance(x, Call) or x.op != op.get("clip") or not is_int(_tensor_dtype(x)):
        return False
    low, high = (getattr(x.attrs, name) for name in ("a_min", "a_max"))
    ends = int_range(dtype)
    return ends is not None and ends[0] <= low and high <= ends[1]


def _drop_clip(m: _ShapedMatch) -> RelayExpr | None:
    """Drop a clip whose range covers all integers of the dtype."""
    ends = int_range(_tensor_dtype(m.x))
    low, high = (getattr(m.outer.attrs, name) for name in ("a_min", "a_max"))
    return m.x if ends is not None and low <= ends[0] and ends[1] <= high else None


def _merge_transposes(m: _ShapedMatch) -> RelayExpr:
    rank = len(_tensor_shape(m.x))
    inner, outer = m.inner_call().attrs, m.outer.attrs
    assert isinstance(inner, TransposeAttrs) and isinstance(outer, TransposeAttrs)
    # Composition of permutations: output axis i reads axis first[second[i]].
    first = normalize_transpose_axes(inner, rank)
    return op.transpose(m.x, [first[i] for i in normalize_transpose_axes(outer, rank)])


def _drop_transpose(m: _ShapedMatch) -> RelayExpr | None:
    assert isinstance(m.outer.attrs, TransposeAttrs)
    axes = normalize_transpose_axes(m.outer.attrs, len(_tensor_shape(m.x)))
    return m.x if list(axes) == sorted(axes) else None


def _merge_clips(m: _ShapedMatch) -> RelayExpr:
    inner, outer = m.inner_call().attrs, m.outer.attrs
    low, high = (getattr(outer, n) for n in ("a_min", "a_max"))
    inner_low, inner_high = (getattr(inner, n) for n in ("a_min", "a_max"))
    # Where the ranges do not overlap, both ends become the outer end that is nearer.
    return op.clip(m.x, min(max(inner_low, low), high), max(min(inner_high, high), low))


def _drop_slice(m: _ShapedMatch) -> RelayExpr | None:
    attrs = m.outer.attrs
    assert isinstance(attrs, slices.StridedSliceAttrs)
    ranges = slices.normalize_slice(attrs, _tensor_shape(m.x))
    is_whole = all(
        step == 1 and isinstance(begin, IntImm) and begin.value == 0 for begin, step, _ in ranges
    )
    return m.x if is_whole and _same_shape(m.outer, m.x) else None


def _filled_like(value: int) -> Callable[[_ShapedMatch], RelayExpr | None]:
    def build_filled(m: _ShapedMatch) -> RelayExpr | None:
        """Return zeros or ones in the static shape of `x`, or None."""
        sizes = [d.value if isinstance(d, IntImm) else None for d in _tensor_shape(m.x)]
        if None in sizes:
            return None
        return (op.zeros if value == 0 else op.ones)(
            [s for s in sizes if s is not None], _tensor_dtype(m.x)
        )

    return build_filled


def _merge_reshapes(m: _ShapedMatch) -> RelayExpr:
    return _reshape_to(m.x, _tensor_shape(m.outer))


def _reshape_to(x: RelayExpr, shape: tuple[PrimExpr, ...]) -> RelayExpr:
    """Reshape to a shape in which 0 means an empty axis, not a copied dimension.

    By itself a 0 copies the extent that the data has there, also where a symbol happens to be 0.
    """
    is_plain = all(isinstance(d, IntImm) and d.value > 0 for d in shape)
    return op.reshape(x, shape, allowzero=not is_plain)


def _static_shape(expr: RelayExpr) -> list[int] | None:
    """Return a static shape as integers, or None."""
    sizes = [d.value for d in _tensor_shape(expr) if isinstance(d, IntImm)]
    return sizes if len(sizes) == len(_tensor_shape(expr)) else None


def _with_static_shape(
    make: Callable[[RelayExpr, list[int]], RelayExpr],
) -> Callable[[_ShapedMatch], RelayExpr | None]:
    """Return a rule that replaces a `*_like` operator by the one with an explicit static shape."""

    def build_static(m: _ShapedMatch) -> RelayExpr | None:
        shape = _static_shape(m.outer)
        return None if shape is None else make(m.x, shape)

    return build_static


def _lower_full_like(m: _ShapedMatch) -> RelayExpr | None:
    shape = _static_shape(m.outer)
    return None if shape is None else op.full(m.outer.args[1], shape, _tensor_dtype(m.outer))


def _merge_layout_transforms(m: _ShapedMatch) -> RelayExpr | None:
    """Merge two consecutive layout transforms.

    Not where the first one pads or cuts off: the elements are not those of x then.
    """
    inner, outer = m.inner_call().attrs, m.outer.attrs
    source, through = (str(getattr(inner, n)) for n in ("src_layout", "dst_layout"))
    sizes = [_num_elements(_tensor_shape(x)) for x in (m.x, m.inner, m.outer)]
    if getattr(outer, "src_layout", "") != through or None in sizes or len(set(sizes)) > 1:
        return None
    return op.layout_transform(m.x, source, str(getattr(outer, "dst_layout", "")))


def _num_elements(shape: tuple[PrimExpr, ...]) -> int | None:
    sizes = [d.value for d in shape if isinstance(d, IntImm)]
    return math.prod(sizes) if len(sizes) == len(shape) else None


def _drop_pad(m: _ShapedMatch) -> RelayExpr | None:
    """Drop a padding of width 0. By the shapes alone (1, -1) would look so, which moves
    elements.
    """
    assert isinstance(m.outer.attrs, pad.PadAttrs)
    widths = [w for pair in m.outer.attrs.pad_width for w in as_shape(pair)]
    return m.x if all(is_const(w, 0) for w in widths) else None


def _drop_negative(m: _ShapedMatch) -> RelayExpr | None:
    """Drop a negation under abs. Not of an unsigned x, as -x is 2**bits - x, whose absolute value
    is itself.
    """
    # abs(-x) of an unsigned x would be its wrapped value.
    return None if _tensor_dtype(m.x).startswith("uint") else op.abs(m.x)


def _drop_if_same_type(m: _ShapedMatch) -> RelayExpr | None:
    return (
        m.x if _same_shape(m.outer, m.x) and _tensor_dtype(m.outer) == _tensor_dtype(m.x) else None
    )


# fmt: off
SHAPE_RULES: tuple[tuple[str, Callable[[_ShapedMatch], RelayExpr | None]], ...] = (
    ("cast(x, dtype of x) = x",                             _drop_if_same_type),
    ("cast(cast(x, wider), dtype) = cast(x, dtype)",        _merge_casts),
    ("reshape(x, shape of x) = x",                          _drop_if_same_type),
    ("reshape(reshape(x, s), t) = reshape(x, t)",           _merge_reshapes),
    ("reshape(contrib_reverse_reshape(x, s), t) = reshape(x, t)", _merge_reshapes),
    ("contrib_reverse_reshape(x, s) = reshape(x, t)",       _merge_reshapes),
    ("reshape(squeeze(x), t) = reshape(x, t)",              _merge_reshapes),
    ("reshape(expand_dims(x), t) = reshape(x, t)",          _merge_reshapes),
    ("squeeze(expand_dims(x)) = x",                         _drop_if_same_type),
    ("squeeze(x, nothing) = x",                             _drop_if_same_type),
    ("broadcast_to(x, shape of x) = x",                     _drop_if_same_type),
    ("transpose(x, identity) = x",                          _drop_transpose),
    ("transpose(transpose(x, p), q) = transpose(x, p q)",   _merge_transposes),
    ("clip(clip(x, a, b), c, d) = clip(x, max(a, c), min(b, d))", _merge_clips),
    ("strided_slice(x, all of x) = x",                      _drop_slice),
    ("nn.pad(x, nothing) = x",                              _drop_pad),
    ("abs(negative(x)) = abs(x)",                           _drop_negative),
    ("tile(x, once) = x",                                   _drop_if_same_type),
    ("repeat(x, once) = x",                                 _drop_if_same_type),
    ("layout_transform(x, same layout) = x",
        lambda m: m.x if getattr(m.outer.attrs, "src_layout", 0)
        == getattr(m.outer.attrs, "dst_layout", 1) else None),
    ("reverse(reverse(x, axis), axis) = x",
        lambda m: m.x if getattr(m.outer.attrs, "axis", 0)
        == getattr(m.inner_call().attrs, "axis", 1) else None),
    ("clip(x, all of its integers) = x",                    _drop_clip),
    ("layout_transform(layout_transform(x, a, b), b, c) = layout_transform(x, a, c)",
        _merge_layout_transforms),
    ("cast_like(x, y) = cast(x, dtype of y)",
        lambda m: op.cast(m.x, _tensor_dtype(m.outer))),
    ("reshape_like(x, y) = reshape(x, shape of y)",
        _with_static_shape(lambda x, shape: _reshape_to(x, tuple(map(as_dim, shape))))),
    ("broadcast_to_like(x, y) = broadcast_to(x, shape of y)",
        _with_static_shape(lambda x, shape: op.broadcast_to(x, shape))),
    ("collapse_sum_like(x, y) = collapse_sum_to(x, shape of y)",
        _with_static_shape(lambda x, shape: op.collapse_sum_to(x, shape))),
    ("full_like(x, number) = full(number, shape of x)",     _lower_full_like),
    ("zeros_like(x) = zeros(shape of x)",                   _filled_like(0)),
    ("ones_like(x) = ones(shape of x)",                     _filled_like(1)),
)
"""Rules on attributes and shapes: (equation, replacement builder).

The operators on the left of the equation say what is matched: one call, or one in the other.
"""
# fmt: on


def _equation_rule(text: str, tier: FloatTier) -> RewriteRule:
    def compile_rule() -> CompiledRule:
        """Compile both sides of the equation."""
        equation = _EquationRule(text)
        return equation.pattern, equation.build_replacement

    return RewriteRule(text, _root_operator(text), compile_rule, tier, _matched_operators(text))


def _root_operator(text: str) -> str:
    """Return the outermost operator of an equation's left side."""
    return text.partition("(")[0]


def _matched_operators(text: str) -> list[str]:
    """Return all operators of an equation's left side."""
    lhs = text.partition(" = ")[0]
    return [opening.rpartition(" ")[2] for opening in lhs.replace(",", " ").split("(")[:-1]]


def _shape_rule(text: str, make: Callable[[_ShapedMatch], RelayExpr | None]) -> RewriteRule:
    def compile_rule() -> CompiledRule:
        """Build a pattern of one call, or of one nested in another; the replacement is a
        function.
        """
        outer, _, arguments = text.partition("(")
        inner, bracket, _ = arguments.partition("(")
        x = wildcard()
        # "reshape(x, shape of x)" also has words inside, but no call.
        is_nested = bool(bracket) and inner.replace("_", "").replace(".", "").isalnum()
        below: DFPattern = _call_pattern(inner, x) if is_nested else x
        outer_pattern = _call_pattern(outer, below)
        return outer_pattern, lambda match: make(
            _ShapedMatch(match[outer_pattern][0], match[below][0], match[x][0])
        )

    return RewriteRule(text, _root_operator(text), compile_rule, operators=_matched_operators(text))


def _call_pattern(name: str, first: DFPattern) -> DFPattern:
    """Return a pattern of an operator call whose first argument matches and whose others are
    wildcards.
    """
    num_open = len(OPS[name].arguments) - 1
    return is_op(name)(first, *(wildcard() for _ in range(num_open)))


def _single_concatenate_rule() -> RewriteRule:
    def compile_rule() -> CompiledRule:
        """Build the pattern of concatenating a one-field tuple."""
        x = wildcard()
        return is_op("concatenate")(is_tuple([x])), lambda match: match[x][0]

    return RewriteRule("concatenate((x,)) = x", "concatenate", compile_rule)


def _call_rule(text: str, make: Callable[[Call], RelayExpr | None]) -> RewriteRule:
    root = _root_operator(text)

    def compile_rule() -> CompiledRule:
        """Build a pattern of any call of the operator; `make` checks the details."""
        call_pattern = is_op(root)(*(wildcard() for _ in OPS[root].arguments))

        def from_match(match: NodeMap) -> RelayExpr | None:
            """Apply `make` to the matched call."""
            call = match[call_pattern][0]
            assert isinstance(call, Call)
            return make(call)

        return call_pattern, from_match

    return RewriteRule(text, root, compile_rule)


def _replace_filled_by_scalar(call: Call) -> RelayExpr | None:
    """Replace a uniformly filled operand by a scalar where the result's shape is unchanged."""
    args = list(call.args)
    for index, (arg, partner) in enumerate(zip(args, reversed(args), strict=True)):
        number = _fill_value(arg)
        if number is not None and _same_shape(partner, call):
            args[index] = number
            return Call(call.op, tuple(args), call.attrs)
    return None


def _drop_dequantize(call: Call) -> RelayExpr | None:
    """Drop a dequantize under an order-only operator (argmax, argmin, argsort): it is strictly
    monotonic.

        x < y  <=>  scale * (x - zero) < scale * (y - zero), for one scale above 0 and one zero
        point.

    Rounding keeps them apart where the differences have fewer bits than the result's significand,
    and no product is so large or so small that it leaves the numbers of full precision.
    """
    inner = call.args[0]
    if not isinstance(inner, Call) or getattr(inner.op, "name", "") != "qnn.dequantize":
        return None
    x, scale, zero = inner.args
    if _tensor_dtype(x) not in ("int8", "uint8", "int16") or not (
        _is_single_element(scale) and _is_single_element(zero)
    ):
        return None
    int_info, float_info = np.iinfo(_tensor_dtype(x)), np.finfo(_tensor_dtype(inner))
    factor, shift = (float(a.data.item()) for a in (scale, zero) if isinstance(a, Constant))
    reach = int_info.max - int_info.min
    is_apart = int_info.bits < float_info.nmant and int_info.min <= shift <= int_info.max
    # Subnormal or infinite products would merge neighbours.
    if not is_apart or not float_info.tiny <= factor <= float_info.max / reach:
        return None
    return Call(call.op, (x,), call.attrs)


def _replace_min_by_max_of_nonnegative(call: Call) -> RelayExpr | None:
    """Replace minimum(min(x), 0) of non-negative x by a form of max(x), so that min and max share
    one pass.

    Both are 0, or NaN where an element is; of no elements 0. A quantiser wants both ends of the
    range, so that one pass over the data is left.
    """
    for least, cap in (call.args, call.args[::-1]):
        if not (isinstance(least, Call) and least.op == op.get("min") and _is_filled_with(cap, 0)):
            continue
        if is_float(_tensor_dtype(least)) and _is_bounded_below(least.args[0], 0.0):
            largest = Call(op.get("max"), least.args, least.attrs)
            return op.minimum(op.maximum(largest, cap), cap)
    return None


def _is_bounded_below(expr: RelayExpr, number: float) -> bool:
    """Return whether all elements are at least a number, by the operator's declared lower bound."""
    while isinstance(expr, Call) and isinstance(expr.op, Op):
        row = expr.op.definition
        if row.lowest is not None:
            return row.lowest(expr.attrs) >= number
        if not row.reshape_only and row.transpose_rule is not TransposeRule.ORDER:
            return False
        expr = expr.args[0]
    return False


def _is_single_element(expr: RelayExpr) -> bool:
    """Return whether an expression is a constant of one element."""
    return isinstance(expr, Constant) and expr.data.size == 1


# fmt: off
CALL_RULES: tuple[tuple[str, Callable[[Call], RelayExpr | None]], ...] = (
    ("gather(x, broadcast_to(i), axis) = take(x, i, axis)",            rewrite_gather_as_take),
    ("scatter_elements(x, broadcast_to(i), u) = scatter_nd(x, i, u)",
        rewrite_scatter_as_scatter_nd),
    ("argmax(qnn.dequantize(x, scale, zero)) = argmax(x)",             _drop_dequantize),
    ("argmin(qnn.dequantize(x, scale, zero)) = argmin(x)",             _drop_dequantize),
    ("argsort(qnn.dequantize(x, scale, zero)) = argsort(x)",           _drop_dequantize),
    ("minimum(min(x), 0) = minimum(maximum(max(x), 0), 0)",
        _replace_min_by_max_of_nonnegative),
    ("add(x, copies of number) = add(x, number)",                      _replace_filled_by_scalar),
    ("subtract(x, copies of number) = subtract(x, number)",            _replace_filled_by_scalar),
    ("multiply(x, copies of number) = multiply(x, number)",            _replace_filled_by_scalar),
    ("divide(x, copies of number) = divide(x, number)",                _replace_filled_by_scalar),
    ("maximum(x, copies of number) = maximum(x, number)",              _replace_filled_by_scalar),
    ("minimum(x, copies of number) = minimum(x, number)",              _replace_filled_by_scalar),
)
"""Rules on whole calls: (equation, replacement builder)."""
# fmt: on

SIMPLIFY_RULES: tuple[RewriteRule, ...] = (
    *(_equation_rule(text, FloatTier.EXACT) for text in EXACT_EQUATIONS),
    *(_shape_rule(text, make) for text, make in SHAPE_RULES),
    _single_concatenate_rule(),
    *(_call_rule(text, make) for text, make in CALL_RULES),
    *(_equation_rule(text, FloatTier.ROUNDED) for text in ROUNDED_EQUATIONS),
    *(_equation_rule(text, FloatTier.FREE) for text in FREE_EQUATIONS),
)
"""All rules in the order in which they are tried."""
