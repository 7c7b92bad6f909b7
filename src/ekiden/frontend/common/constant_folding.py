"""Constant folding at import: element-wise rules on values that are known as numbers or as shape
expressions.

A rule takes the elements of a node's inputs (NumPy arrays, or object arrays of PrimExpr) and gives
those of its output, or None to leave the node to its converter.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ekiden._lazy import LazyModule
from ekiden.arith import Analyzer, simplify
from ekiden.frontend.common import data_dependent_dims
from ekiden.frontend.common.exact_integers import exact_floor, exact_integer
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.scope import Scope
from ekiden.frontend.common.sequence_value import NonTensorValue
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value, constant_value, known_value
from ekiden.ir import prim
from ekiden.ir.dtype import is_float, is_int, to_numpy
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.op import Array, Op
from ekiden.ir.prim import PrimExpr
from ekiden.ir.type import TupleType
from ekiden.relay.expr import Expr, TupleGetItem
from ekiden.relay.visitor import free_vars, post_order

if TYPE_CHECKING:
    from ekiden.relay import interpreter
else:
    interpreter = LazyModule("ekiden.relay.interpreter")

MAX_FOLDED_ELEMENTS = 1024
"""The most elements that are evaluated at import; more is left to constant folding."""

Rule = Callable[[Sequence[Array]], Array | None]
Scalar = Callable[..., object]


def to_node_rule(rule: Rule) -> Callable[[object, Sequence[Array]], Array | None]:
    """Adapt a rule on arrays to the signature of converters: (node, inputs) -> elements."""
    return lambda node, inputs: rule(inputs)


def evaluate_rule(
    inputs: Sequence[Value | None], rule: Rule, dtype: str, is_view: bool = False
) -> Value | None:
    """Evaluate a rule whose inputs are all known; return None where one is computed at run time.

    A view is cheap for any size: no elements are copied.
    """
    present = [v for v in inputs if v is not None]
    if not present or not all(v.is_known for v in present):
        return None
    # Views are exempt: they copy no elements, however large the tensor is.
    if not is_view and sum(v.known_elements.size for v in present) > MAX_FOLDED_ELEMENTS:
        return None
    elements = rule([v.known_elements for v in present])
    return None if elements is None else known_value(elements, dtype)


def propagate_elements(
    scope: Scope, inputs: Sequence[Value | None], rule: Rule, result: Value
) -> Value:
    """Annotate the output of a node computed from data with the elements that its rule proves.

    Where all elements are known, the result is a known value.
    """
    present = [v for v in inputs if v is not None]
    if result.is_known or not _is_trackable(result):
        return result
    if not all(_is_trackable(v) for v in present):
        return result
    input_elements = [data_dependent_dims.tracked_elements(scope, v) for v in present]
    known_inputs = [e for e in input_elements if e is not None]
    if len(known_inputs) < len(input_elements):
        return result
    try:
        elements = rule(known_inputs)
    except Unsupported:
        return result
    # Numbers alone would mean that the result is constant, which constant folding finds by itself.
    if elements is None or elements.dtype != np.object_:
        return result
    tidy = np.asarray(np.frompyfunc(simplify, 1, 1)(elements), object)
    if all(map(data_dependent_dims.is_dim, tidy.ravel())):
        return known_value(tidy, result.type.dtype)
    result.hint = tidy
    return result


def _is_trackable(value: Value) -> bool:
    """Return whether the elements of a value may be tracked: integers, or values known at
    import.
    """
    return not isinstance(value, NonTensorValue) and (is_int(value.type.dtype) or value.is_known)


def fold_results(scope: Scope, inputs: Sequence[Value | None], result: Result) -> Result:
    """Evaluate what a converter built from small constants with the Relay interpreter; return
    anything else unchanged.
    """
    present = [v for v in inputs if v is not None]
    # Symbols are not folded here: the interpreter evaluates arrays alone.
    if not present or any(v.array is None for v in present):
        return result
    size = sum(v.known_elements.size for v in present)
    if not isinstance(result, Expr):
        outputs = result if isinstance(result, Sequence) else [result]
        return [
            _fold_expr(scope, output, size) if isinstance(output, Expr) else output
            for output in outputs
        ]
    kind = scope.type_of(result)
    if isinstance(kind, TupleType):
        return [_fold_expr(scope, TupleGetItem(result, i), size) for i in range(len(kind.fields))]
    return _fold_expr(scope, result, size)


def _fold_expr(scope: Scope, result: Expr, size: int) -> Expr | Value:
    """Evaluate one expression with the interpreter; `size` is the number of elements of
    its inputs.
    """
    shape = getattr(scope.type_of(result), "shape", None)
    if shape is None or not all(map(prim.is_const, shape)) or free_vars(result):
        return result
    # Bounds import time and memory: larger results are left to the constant-folding pass.
    if size + math.prod(d.value for d in shape) > MAX_FOLDED_ELEMENTS or _is_stateful(result):
        return result
    evaluated_array = interpreter.Interpreter().evaluate(result)
    return constant_value(evaluated_array) if isinstance(evaluated_array, np.ndarray) else result


def _is_stateful(root: Expr) -> bool:
    """Return whether an expression calls a stateful operator, such as a random number generator."""
    return any(isinstance(e, Op) and e.definition.stateful for e in post_order(root))


def constant_shape(shape: Sequence[PrimExpr], dtype: str = "int64") -> Value | None:
    """Return a shape as an integer vector known at import; None if one of its dimensions is
    unknown.
    """
    if any(isinstance(d, prim.AnyDim) for d in shape):
        return None
    return known_value(np.array(shape, object), dtype)


# Element by element.


def elementwise_rule(numeric: Callable[..., Array], symbolic: Scalar) -> Rule:
    """Build a rule that applies `numeric` to arrays of numbers and `symbolic` to each element
    otherwise.
    """

    def rule(inputs: Sequence[Array]) -> Array | None:
        """Evaluate in NumPy where all inputs are numbers, with its rounding and overflow; else
        element by element.
        """
        if all(i.dtype != np.object_ for i in inputs):
            with np.errstate(all="ignore"):
                return np.asarray(numeric(*inputs))
        lifted = [to_expr_elements(i) for i in inputs]
        return np.asarray(np.frompyfunc(symbolic, len(lifted), 1)(*lifted), object)

    return rule


def left_fold_rule(numeric: Callable[..., Array], symbolic: Scalar) -> Rule:
    """Build a rule that folds a binary rule from the left over any number of inputs."""
    pair = elementwise_rule(numeric, symbolic)

    def rule(inputs: Sequence[Array]) -> Array | None:
        """Apply the binary rule from the left; return None where any step has no value."""
        total: Array | None = inputs[0]
        for operand in inputs[1:]:
            total = None if total is None else pair([total, operand])
        return total

    return rule


def arange_rule(inputs: Sequence[Array]) -> Array | None:
    """Evaluate a range (start, limit, step); return None above MAX_FOLDED_ELEMENTS elements."""
    if any(i.dtype == np.object_ for i in inputs):
        return None
    start, limit, step = (i.item() for i in inputs)
    if abs(limit - start) > MAX_FOLDED_ELEMENTS * abs(step):
        return None
    return np.arange(start, limit, step).astype(inputs[0].dtype)


def to_expr_elements(values: Array) -> Array:
    """Convert numbers to expressions: an object array of immediates, integers of any width as
    int64.
    """
    if values.dtype == np.object_:
        return values
    dtype = (
        "bool"
        if values.dtype == np.bool_
        else "int64"
        if values.dtype.kind in "iu"
        else str(values.dtype)
    )
    lifted = np.empty(values.shape, object)
    for position, element in np.ndenumerate(values):
        lifted[position] = prim.const(element.item(), dtype)
    return lifted


def _truncating_divide(a: Array, b: Array) -> Array:
    """Divide arrays as C does: integers truncate towards 0, and a division by 0 yields the
    dividend.
    """
    if a.dtype.kind not in "iu":
        return np.asarray(np.divide(a, b, dtype=a.dtype))
    x, y = a.astype(np.int64), b.astype(np.int64)
    # C truncates towards 0, NumPy's // floors; max(|y|, 1) avoids a division by 0.
    quotient = np.abs(x) // np.maximum(np.abs(y), 1)
    return np.where((x < 0) == (y < 0), quotient, -quotient).astype(a.dtype)


def _symbolic_divide(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """Divide expressions as C does, by floor division where both signs are known, which simplifies
    further.
    """
    if is_int(a.dtype) and is_non_negative(b):
        if is_non_negative(a):
            return a // b
        if is_non_negative(-a):
            return -((-a) // b)
    return a / b


def truncated_mod(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """Return C's remainder of expressions, whose sign is that of the dividend."""
    if is_non_negative(b):
        if is_non_negative(a):
            return a % b
        if is_non_negative(-a):
            return -((-a) % b)
    return a - b * _symbolic_divide(a, b)


def is_non_negative(value: PrimExpr) -> bool:
    """Return whether a value is known to be 0 or more."""
    return Analyzer().const_int_bound(value)[0] >= 0


def _symbolic_compare(kind: type[prim.BinaryExpr]) -> Scalar:
    """Return the rule of a comparison of two expressions."""

    def rule(a: PrimExpr, b: PrimExpr) -> PrimExpr:
        """Build a condition on symbols; fold it where it or its negation can be proved for all
        sizes.

        Conditions on floats are never decided: they may be NaN.
        """
        condition = prim.fold_binary(kind, a, b)
        analyzer = Analyzer()
        # With NaN both a < b and a >= b are false, so proving the opposite would be wrong for
        # floats.
        if is_float(a.dtype) or prim.is_const(condition):
            return condition
        # A comparison that holds for all sizes is a constant, so that both branches of an If need
        # not be imported.
        if analyzer.can_prove(condition):
            return prim.const(True)
        opposite = prim.fold_binary(_NEGATED_COMPARISONS[kind], a, b)
        return prim.const(False) if analyzer.can_prove(opposite) else condition

    return rule


_NEGATED_COMPARISONS = {
    prim.EQ: prim.NE, prim.NE: prim.EQ, prim.LT: prim.GE,
    prim.GE: prim.LT, prim.GT: prim.LE, prim.LE: prim.GT,
}  # fmt: skip


def fold_select(condition: PrimExpr, x: PrimExpr, y: PrimExpr) -> PrimExpr:
    """Select x where the condition holds, else y."""
    if prim.is_const(condition):
        return y if prim.is_const(condition, 0) else x
    return prim.Select(condition, x, y, x.dtype)


def _negate_condition(value: PrimExpr) -> PrimExpr:
    """Return the negated condition, with constants folded."""
    if prim.is_const(value):
        return prim.const(prim.is_const(value, 0))
    return prim.Not(value)


def _intrinsic_rule(name: str) -> Scalar:
    """Return the rule of a unary intrinsic such as "floor"."""
    return lambda x: call_intrin(name, x)


def cast_rule(dtype: str) -> Rule:
    """Return the rule of a cast to a dtype."""

    def rule(inputs: Sequence[Array]) -> Array | None:
        """Cast numbers as NumPy does, truncating, and symbols by a Cast node; return None for other
        dtypes.
        """
        (values,) = inputs
        if values.dtype != np.object_:
            with np.errstate(invalid="ignore"):
                return values.astype(to_numpy(dtype))
        if not (is_int(dtype) or is_float(dtype) or dtype == "bool"):
            return None
        return np.asarray(np.frompyfunc(lambda e: _cast_element(e, dtype), 1, 1)(values), object)

    return rule


def _cast_element(value: PrimExpr, dtype: str) -> PrimExpr:
    """Cast one symbolic element; a float computed from dimensions becomes an exact integer
    expression.
    """
    if is_int(dtype) and is_float(value.dtype):
        integer = exact_floor(value)
        if integer is not None and (exact_integer(value) is not None or is_non_negative(integer)):
            return integer
    return prim.cast(value, "int64" if is_int(dtype) else dtype)


def concat_elements(inputs: Sequence[Array], axis: int) -> Array:
    """Concatenate arrays along an axis; numbers become expressions where another array has some."""
    if any(i.dtype == np.object_ for i in inputs):
        inputs = [to_expr_elements(i) for i in inputs]
    return np.concatenate(inputs, axis=axis)


def reduce_elements(data: Array, function: Scalar) -> PrimExpr:
    """Fold the elements of a non-empty vector into one expression, from the left."""
    total, *remaining = to_expr_elements(data)
    for element in remaining:
        total = function(total, element)
    assert isinstance(total, PrimExpr)
    return total


# fmt: off
add           = elementwise_rule(np.add, operator.add)
subtract      = elementwise_rule(np.subtract, operator.sub)
multiply      = elementwise_rule(np.multiply, operator.mul)
divide        = elementwise_rule(_truncating_divide, _symbolic_divide)
floor_mod     = elementwise_rule(np.mod, operator.mod)
negative      = elementwise_rule(np.negative, operator.neg)
minimum       = left_fold_rule(np.minimum, prim.minimum)
maximum       = left_fold_rule(np.maximum, prim.maximum)
equal         = elementwise_rule(np.equal, _symbolic_compare(prim.EQ))
not_equal     = elementwise_rule(np.not_equal, _symbolic_compare(prim.NE))
less          = elementwise_rule(np.less, _symbolic_compare(prim.LT))
less_equal    = elementwise_rule(np.less_equal, _symbolic_compare(prim.LE))
greater       = elementwise_rule(np.greater, _symbolic_compare(prim.GT))
greater_equal = elementwise_rule(np.greater_equal, _symbolic_compare(prim.GE))
logical_not   = elementwise_rule(np.logical_not, _negate_condition)
logical_and   = elementwise_rule(np.logical_and, prim.logical_and)
where         = elementwise_rule(np.where, fold_select)
floor         = elementwise_rule(np.floor, _intrinsic_rule("floor"))
ceil          = elementwise_rule(np.ceil, _intrinsic_rule("ceil"))
sqrt          = elementwise_rule(np.sqrt, _intrinsic_rule("sqrt"))
# fmt: on
