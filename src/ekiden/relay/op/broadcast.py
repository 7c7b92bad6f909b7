"""Broadcasting operators: arithmetic, comparisons, logic, bit operations, where.

Shapes are paired from the last axis on; of two extents they are equal, or one is 1. A symbol beside
a 1 is the symbol; two symbols must be equal, which a run checks where a proof does not. Dtypes are
not promoted: both arguments have one, as a program says its casts.

Integers are those of C on the machine: sums wrap around, division truncates towards zero (`divide`,
`mod`) or rounds down (`floor_divide`, `floor_mod`), and gives 0 by 0, so that a kernel raises no
signal. Floats follow IEEE 754; a NaN in an argument of `maximum` or `minimum` is the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.intrinsic import INTRINSICS
from ekiden.ir.op import (
    NAMED_TYPE_RELATIONS,
    Array,
    LinearForm,
    OpDef,
    OpPattern,
    PrecisionPolicy,
    register_op,
)
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import (
    DtypeKind,
    call_op,
    check_dtype,
    check_same_dtype,
    check_tensors,
    identity_relation,
    raise_type_error,
    shape_text,
)
from ekiden.runtime import register_func
from ekiden.te import Tensor
from ekiden.topi.dimensions import Shape, broadcast_shape


def infer_broadcast_shape(name: str, arguments: Sequence[TensorType]) -> Shape:
    """Infer the shape that arguments broadcast to.

    Raises:
        TypeInferenceError: The shapes do not broadcast.
    """
    shape: Shape = ()
    for argument in arguments:
        joint = broadcast_shape(shape, argument.shape)
        if joint is None:
            raise_type_error(
                name,
                f"shapes {' and '.join(shape_text(a.shape) for a in arguments)} do not broadcast",
            )
        shape = joint
    return shape


def _broadcast_relation(
    name: str, dtype: str | None, takes: DtypeKind
) -> Callable[[Sequence[Type], Attrs | None], Type]:
    def relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
        """Infer the broadcast shape, in the operator's dtype or in the arguments' common one.

        Raises:
            TypeInferenceError: Shapes or dtypes do not fit.
        """
        arguments = check_tensors(name, types, 2)
        # Relay has no implicit promotion: frontends insert casts.
        operand_dtype = check_same_dtype(name, arguments)
        check_dtype(name, "lhs", operand_dtype, takes)
        return TensorType(infer_broadcast_shape(name, arguments), dtype or operand_dtype)

    return relation


def _bool_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = check_tensors("IdentityCompRel", types, 1)
    return TensorType(data.shape, "bool")


NAMED_TYPE_RELATIONS.update(
    Identity=identity_relation("Identity"),
    IdentityCompRel=_bool_relation,
    Broadcast=_broadcast_relation("Broadcast", None, "any"),
    BroadcastComp=_broadcast_relation("BroadcastComp", "bool", "any"),
)
for _name, _of_types in NAMED_TYPE_RELATIONS.items():
    register_func(f"tvm.relay.type_relation.{_name}", _of_types, override=True)


def _numpy_reference(function: Callable[..., Array], dtype: str | None) -> Callable[..., Array]:
    """Wrap a NumPy function so that its result has the arguments' dtype where NumPy promotes."""

    def reference(attrs: Attrs | None, lhs: Array, rhs: Array) -> Array:
        """Compute the operator with NumPy, without warnings."""
        # Infinities and NaN are results of the operator, not mistakes of the program.
        with np.errstate(all="ignore"):
            return np.asarray(function(lhs, rhs)).astype(dtype or lhs.dtype, copy=False)

    return reference


_DESCRIPTIONS = {
    "add": "lhs + rhs",
    "subtract": "lhs - rhs",
    "multiply": "lhs * rhs",
    "widening_multiply": "lhs * rhs as int64, of int32",
    "divide": "lhs / rhs; integers truncate towards zero and give 0 when divided by it",
    "power": "lhs to the power rhs",
    "maximum": "The larger of lhs and rhs",
    "minimum": "The smaller of lhs and rhs",
    "mod": "The remainder of lhs / rhs with the sign of lhs",
    "floor_divide": "lhs / rhs rounded down",
    "floor_mod": "The remainder of lhs / rhs with the sign of rhs",
    "bitwise_and": "The bits set in both lhs and rhs",
    "bitwise_or": "The bits set in lhs or rhs",
    "bitwise_xor": "The bits set in one of lhs and rhs",
    "equal": "lhs == rhs",
    "not_equal": "lhs != rhs",
    "less": "lhs < rhs",
    "less_equal": "lhs <= rhs",
    "greater": "lhs > rhs",
    "greater_equal": "lhs >= rhs",
    "logical_and": "Whether both lhs and rhs are not 0",
    "logical_or": "Whether lhs or rhs is not 0",
    "logical_xor": "Whether one of lhs and rhs is not 0",
}
"""Verb phrases of the operators' descriptions, which "elementwise" follows."""


def declare_binary(
    name: str,
    function: Callable[..., Array],
    compute: Callable[[Tensor, Tensor], Tensor],
    dtype: str | None = None,
    takes: DtypeKind = "any",
    mixed: PrecisionPolicy = PrecisionPolicy.UNKNOWN,
    commutes: bool = False,
    linear: LinearForm = LinearForm.NO,
    costly: bool = False,
) -> Callable[[Expr, Expr], Call]:
    """Declare a broadcasting binary operator; `dtype` is the result's where it differs from the
    arguments'.
    """
    register_op(
        OpDef(
            name=name,
            arguments=("lhs", "rhs"),
            precision=mixed,
            relation=_broadcast_relation(name, dtype, takes),
            reference=_numpy_reference(function, dtype),
            lower=lambda attrs, inputs, out: [compute(inputs[0], inputs[1])],
            pattern=OpPattern.BROADCAST,
            result=f"the shape both broadcast to, with {dtype or 'their dtype'}",
            commutes=commutes,
            linear=linear,
            is_expensive=costly,
        )
    )

    def build_call(lhs: Expr, rhs: Expr) -> Call:
        """Return a call of the operator."""
        return call_op(name, lhs, rhs)

    build_call.__name__ = build_call.__qualname__ = name
    build_call.__doc__ = f"{_DESCRIPTIONS.get(name, f'`{name}`')}, elementwise; both broadcast."
    return build_call


def _divide_reference(a: Array, b: Array) -> Array:
    """Divide as C does: integers truncate towards zero; division of integers by zero gives 0."""
    if a.dtype.kind not in "iu":
        return np.asarray(np.divide(a, b))
    return _trunc_divide_reference(a, b)


def _floor_divide_reference(a: Array, b: Array) -> Array:
    """Floor-divide as NumPy does, but keep infinite float quotients."""
    quotient = np.asarray(np.floor_divide(a, b))
    if a.dtype.kind in "iub":
        return quotient
    # NumPy gives NaN for inf // x, where the floor of the quotient is infinite.
    ratio = np.divide(a, b)
    return np.where(np.isinf(ratio), ratio, quotient)


def _trunc_divide_reference(a: Array, b: Array) -> Array:
    """Divide and truncate towards zero; division of integers by zero gives 0.

    Integers are divided by way of the floor, as a float64 holds no integers above 2**53; the least
    number by -1 wraps around to itself.
    """
    if a.dtype.kind not in "iu":
        return np.asarray(np.trunc(a.astype(np.float64) / b))
    # Divided by 1 where the divisor is 0: the result there is replaced below.
    floor = np.floor_divide(a, np.where(b == 0, 1, b))
    inexact = np.subtract(a, floor * b, dtype=a.dtype) != 0
    # Floor and truncation differ by one where the signs differ and the division has a remainder.
    toward_zero = inexact & ((a < 0) != (b < 0))
    return np.where(b == 0, 0, floor + toward_zero.astype(a.dtype)).astype(a.dtype)


def _power_reference(a: Array, b: Array) -> Array:
    """Raise to a power as C's pow does (0 ** 0 = 1); integers wrap, and negative exponents give 0
    except for bases 1 and -1.
    """
    shape = np.broadcast_shapes(a.shape, b.shape)  # to one exponent of 0.5 NumPy takes roots
    operands = (np.array(np.broadcast_to(x, shape or (1,))) for x in (a, b))
    return np.asarray(INTRINSICS["pow"].reference(*operands)).reshape(shape)


FOLLOW, NEVER = PrecisionPolicy.FOLLOW, PrecisionPolicy.NEVER
SCALES, SHIFTS, SHIFTS_BACK = LinearForm.SCALES, LinearForm.SHIFTS, LinearForm.SHIFTS_BACK

# fmt: off
add           = declare_binary("add", np.add, topi.add, mixed=FOLLOW, commutes=True, linear=SHIFTS)
subtract      = declare_binary("subtract", np.subtract, topi.subtract, takes="number", mixed=FOLLOW,
                               linear=SHIFTS_BACK)
multiply      = declare_binary("multiply", np.multiply, topi.multiply, mixed=FOLLOW, commutes=True,
                               linear=SCALES)
widening_multiply = declare_binary(
    "widening_multiply", lambda a, b: np.multiply(a, b, dtype=np.int64),
    topi.widening_multiply, "int64", takes="int32", commutes=True)
divide        = declare_binary("divide", _divide_reference, topi.divide, takes="number",
                               mixed=FOLLOW, costly=True)
power         = declare_binary("power", _power_reference, topi.power, takes="number", mixed=NEVER,
                               costly=True)
maximum       = declare_binary("maximum", np.maximum, topi.maximum, mixed=FOLLOW, commutes=True)
minimum       = declare_binary("minimum", np.minimum, topi.minimum, mixed=FOLLOW, commutes=True)
mod           = declare_binary("mod", np.fmod, topi.mod, takes="number", costly=True)
floor_divide  = declare_binary("floor_divide", _floor_divide_reference, topi.floor_divide,
                               takes="number", costly=True)
floor_mod     = declare_binary("floor_mod", np.mod, topi.floor_mod, takes="number", costly=True)
trunc_divide  = declare_binary("trunc_divide", _trunc_divide_reference, topi.trunc_divide,
                               takes="number", costly=True)
trunc_mod     = declare_binary("trunc_mod", np.fmod, topi.trunc_mod, takes="number", costly=True)
left_shift    = declare_binary("left_shift", np.left_shift, topi.left_shift, takes="integer")
right_shift   = declare_binary("right_shift", np.right_shift, topi.right_shift, takes="integer")
bitwise_and   = declare_binary("bitwise_and", np.bitwise_and, topi.bitwise_and, takes="bits",
                               commutes=True)
bitwise_or    = declare_binary("bitwise_or", np.bitwise_or, topi.bitwise_or, takes="bits",
                               commutes=True)
bitwise_xor   = declare_binary("bitwise_xor", np.bitwise_xor, topi.bitwise_xor, takes="bits",
                               commutes=True)
equal         = declare_binary("equal", np.equal, topi.equal, "bool", mixed=FOLLOW, commutes=True)
not_equal     = declare_binary("not_equal", np.not_equal, topi.not_equal, "bool", mixed=FOLLOW,
                               commutes=True)
less          = declare_binary("less", np.less, topi.less, "bool", mixed=FOLLOW)
less_equal    = declare_binary("less_equal", np.less_equal, topi.less_equal, "bool", mixed=FOLLOW)
greater       = declare_binary("greater", np.greater, topi.greater, "bool", mixed=FOLLOW)
greater_equal = declare_binary("greater_equal", np.greater_equal, topi.greater_equal, "bool",
                               mixed=FOLLOW)
logical_and   = declare_binary("logical_and", np.logical_and, topi.logical_and, "bool",
                               commutes=True)
logical_or    = declare_binary("logical_or", np.logical_or, topi.logical_or, "bool", commutes=True)
logical_xor   = declare_binary("logical_xor", np.logical_xor, topi.logical_xor, "bool",
                               commutes=True)
# fmt: on


def _where_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    condition, x, y = check_tensors("where", types, 3)
    return TensorType(
        infer_broadcast_shape("where", (condition, x, y)), check_same_dtype("where", (x, y))
    )


register_op(
    OpDef(
        name="where",
        precision=PrecisionPolicy.FOLLOW,
        arguments=("condition", "x", "y"),
        relation=_where_relation,
        reference=lambda attrs, condition, x, y: np.where(condition != 0, x, y),
        lower=lambda attrs, inputs, out: [topi.where(*inputs)],
        pattern=OpPattern.BROADCAST,
        result="the shape that all three broadcast to, with the dtype of x and y",
    )
)


def where(condition: Expr, x: Expr, y: Expr) -> Call:
    """Select elements of `x` where the condition is non-zero, else of `y`; all three broadcast."""
    return call_op("where", condition, x, y)


__all__ = [
    "add", "bitwise_and", "bitwise_or", "bitwise_xor", "divide", "equal", "floor_divide",
    "floor_mod", "greater", "greater_equal", "left_shift", "less", "less_equal", "logical_and",
    "logical_or", "logical_xor", "maximum", "minimum", "mod", "multiply", "not_equal", "power",
    "right_shift", "subtract", "trunc_divide", "trunc_mod", "where",
    "widening_multiply",
]  # fmt: skip
