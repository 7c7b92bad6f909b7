"""PrimExpr: scalar expressions of shapes, indices and kernel arithmetic.

    PrimExpr = Var | IntImm | FloatImm | AnyDim | Binary (Add Sub Mul Div FloorDiv FloorMod Min Max
               EQ NE LT LE GT GE And Or) | Not | Select | Cast | Intrinsic
tir adds loads and vectors. Python operators build expressions and fold constants on the way; `//`
and `%` are floor division and floor modulo; `==` and `!=` give a DeferredComparison.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from typing import ClassVar, Union

import numpy as np

from ekiden.ir import arithmetic_identities
from ekiden.ir import dtype as dt
from ekiden.ir.constant_arithmetic import (
    cast_constant,
    fold_size_constants,
    nan_max,
    nan_min,
    trunc_div,
)
from ekiden.ir.node import NODE_TYPES, Node, as_untyped, ignored_field, node, set_frozen_fields
from ekiden.ir.op_name import OpName
from ekiden.runtime.errors import ExpressionError
from ekiden.runtime.lazy_dataclass import dataclass

ExprLike = Union["PrimExpr", int, float, bool]


# Two ways to build a node. A class builds exactly that node, as parser and tests need it:
# `Add(x, const(0))` stays one. `fold_binary` and the operators fold, so that no pass has to look
# for x + 0. What is known of variables is the Analyzer's (`ekiden.arith`).
class PrimExpr(Node):
    """Scalar (or, in TIR, vector) expression. Every subclass's last field is `dtype`."""

    __slots__ = ("_leaves",)  # cached result of `prim_visitor.expr_leaves`
    dtype: str
    printer: ClassVar[Callable[[PrimExpr], str] | None] = None
    """Printer of expressions for messages, set by `ekiden.ir.expr_text` and then by tir."""

    def astext(self) -> str:
        """Return the expression in Python syntax; variables print as their names."""
        printer = PrimExpr.printer
        return f"{type(self).__name__}(...)" if printer is None else printer(self)

    def __repr__(self) -> str:
        return self.astext()

    def __add__(self, rhs: ExprLike) -> PrimExpr:
        return fold_binary(Add, self, rhs)

    def __radd__(self, lhs: ExprLike) -> PrimExpr:
        return fold_binary(Add, lhs, self)

    def __sub__(self, rhs: ExprLike) -> PrimExpr:
        return fold_binary(Sub, self, rhs)

    def __rsub__(self, lhs: ExprLike) -> PrimExpr:
        return fold_binary(Sub, lhs, self)

    def __mul__(self, rhs: ExprLike) -> PrimExpr:
        return fold_binary(Mul, self, rhs)

    def __rmul__(self, lhs: ExprLike) -> PrimExpr:
        return fold_binary(Mul, lhs, self)

    def __truediv__(self, rhs: ExprLike) -> PrimExpr:
        return fold_binary(Div, self, rhs)

    def __rtruediv__(self, lhs: ExprLike) -> PrimExpr:
        return fold_binary(Div, lhs, self)

    def __floordiv__(self, rhs: ExprLike) -> PrimExpr:
        return fold_binary(FloorDiv, self, rhs)

    def __rfloordiv__(self, lhs: ExprLike) -> PrimExpr:
        return fold_binary(FloorDiv, lhs, self)

    def __mod__(self, rhs: ExprLike) -> PrimExpr:
        return fold_binary(FloorMod, self, rhs)

    def __rmod__(self, lhs: ExprLike) -> PrimExpr:
        return fold_binary(FloorMod, lhs, self)

    def __lshift__(self, rhs: ExprLike) -> PrimExpr:
        return _bitwise_op("left_shift", self, rhs)

    def __rshift__(self, rhs: ExprLike) -> PrimExpr:
        return _bitwise_op("right_shift", self, rhs)

    def __and__(self, rhs: ExprLike) -> PrimExpr:
        return _bitwise_op("bitwise_and", self, rhs)

    def __or__(self, rhs: ExprLike) -> PrimExpr:
        return _bitwise_op("bitwise_or", self, rhs)

    def __xor__(self, rhs: ExprLike) -> PrimExpr:
        return _bitwise_op("bitwise_xor", self, rhs)

    def __neg__(self) -> PrimExpr:
        return fold_binary(Sub, const(0, self.dtype), self)

    def __lt__(self, rhs: ExprLike) -> PrimExpr:
        return fold_binary(LT, self, rhs)

    def __le__(self, rhs: ExprLike) -> PrimExpr:
        return fold_binary(LE, self, rhs)

    def __gt__(self, rhs: ExprLike) -> PrimExpr:
        return fold_binary(GT, self, rhs)

    def __ge__(self, rhs: ExprLike) -> PrimExpr:
        return fold_binary(GE, self, rhs)

    def __eq__(self, rhs: object) -> bool:
        """Return a DeferredComparison with numbers and expressions."""
        if not isinstance(rhs, (PrimExpr, int, float)):
            return NotImplemented
        return DeferredComparison(EQ, self, rhs)  # type: ignore[return-value]  # its truth is one

    def __ne__(self, rhs: object) -> bool:
        """Return a DeferredComparison with numbers and expressions."""
        if not isinstance(rhs, (PrimExpr, int, float)):
            return NotImplemented
        return DeferredComparison(NE, self, rhs)  # type: ignore[return-value]

    __hash__ = Node.__hash__

    def equal(self, other: ExprLike) -> PrimExpr:
        """Return the expression `EQ(self, other)`; two calls of vscale() are equal."""
        if all(isinstance(e, Intrinsic) and e.op == "vscale" for e in (self, other)):
            # Nodes of calls are distinct objects, but the value is fixed for the machine.
            return const(True)
        return fold_binary(EQ, self, other)

    def astype(self, dtype: str) -> PrimExpr:
        """Cast to `dtype` with C semantics (floats truncate towards zero)."""
        return cast(self, dt.canonical_dtype(dtype))

    def __bool__(self) -> bool:
        raise ExpressionError(
            f"the truth of {self!r} is not known at compile time; use Select or IfThenElse"
        )


class DeferredComparison:
    """Result of `==` and `!=`: an expression where one is expected, identity where a bool is, so
    that nodes can be dictionary keys (TVM's EqualOp and NotEqualOp).

    te.if_then_else(i == 0, x, y)     the expression `i == 0`
    {i: 1}[i]; i in variables         the same object, as for all nodes
    """

    __slots__ = ("a", "b", "kind")

    def __init__(self, kind: type[BinaryExpr], a: PrimExpr, b: ExprLike) -> None:
        self.kind, self.a, self.b = kind, a, b

    def asobject(self) -> PrimExpr:
        """Return the comparison as an expression. Raises TypeError for other operands."""
        return fold_binary(self.kind, self.a, self.b)

    def __bool__(self) -> bool:
        # Identity, as dictionaries of nodes ask `==` after equal hashes.
        return (self.a is self.b) is (self.kind is EQ)

    def __getattr__(self, name: str) -> object:
        """Delegate to the expression: `dtype`, `astype`."""
        # Python and its libraries probe for protocols by such names; the expression has none to
        # offer.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.asobject(), name)

    def __repr__(self) -> str:
        return repr(self.asobject())


@node("tir.Var")
class Var(PrimExpr):
    """Named scalar variable; compared by identity."""

    name: str
    dtype: str = "int64"


@node("tir.SizeVar")
class SizeVar(Var):
    """Named dimension variable.

    A variable known to be >= 0 (`batch`, `sequence_length`), and <= `upper` where that is given.
    """

    upper: int | None = ignored_field(default=None)


@node("ir.IntImm")
class IntImm(PrimExpr):
    """Integer or bool constant."""

    value: int
    dtype: str = "int64"

    def __post_init__(self) -> None:
        """Accept TVM's argument order too: IntImm("int32", 1)."""
        first: object = self.value
        if isinstance(first, str):
            set_frozen_fields(self, value=int(self.dtype), dtype=first)

    def __int__(self) -> int:
        return self.value

    def __bool__(self) -> bool:
        return self.value != 0

    def __index__(self) -> int:
        return self.value

    def __eq__(self, rhs: object) -> bool:
        """Return whether the value equals a number, as TVM does: `shape[0] == 1`."""
        if self is rhs:
            return True
        return self.value == (rhs.value if isinstance(rhs, IntImm) else rhs)

    def __ne__(self, rhs: object) -> bool:
        return not self == rhs

    __hash__ = PrimExpr.__hash__  # by identity, as all nodes: constants are not shared


@node("ir.FloatImm")
class FloatImm(PrimExpr):
    """Floating-point constant."""

    value: float
    dtype: str = "float32"

    def __post_init__(self) -> None:
        """Accept TVM's argument order too: FloatImm("float32", 1)."""
        first: object = self.value
        if isinstance(first, str):
            set_frozen_fields(self, value=float(self.dtype), dtype=first)


@node("ir.StringImm")
class StringImm(PrimExpr):
    """String constant, used only as a call argument: a function name, a format."""

    value: str
    dtype: str = "handle"

    def __eq__(self, rhs: object) -> bool:
        """Return whether the text equals a str or another constant (TVM's rule)."""
        return self.value == (rhs.value if isinstance(rhs, StringImm) else rhs)

    def __ne__(self, rhs: object) -> bool:
        return not self == rhs

    __hash__ = PrimExpr.__hash__


@node("tir.Any")
class AnyDim(PrimExpr):
    """Unknown dimension; prints as `?`. Two of them are never known equal."""

    dtype: str = "int64"


# Each class below is a table row: its infix symbol, its function on numbers, and its identities for
# an operand of 0 or 1. Constant folding, the evaluator (`arith.evaluate`) and the printers read the
# row; code generators implement the machine semantics.
@dataclass(repr=False, eq=False, frozen=True, slots=True)
class BinaryExpr(PrimExpr):
    """Base class of binary expressions. Operands have one dtype; comparisons give bool.

    The class makes exactly this node: nothing folds. Without a dtype it is that of the operands, of
    which one may be a number: `Add(x, 1)`.
    """

    a: PrimExpr
    b: PrimExpr
    dtype: str = ""
    symbol: ClassVar[str]
    fold: ClassVar[Callable[..., int | float]]
    _identity: ClassVar[arithmetic_identities.Identity] = staticmethod(
        arithmetic_identities.no_identity
    )

    def __init__(self, a: ExprLike, b: ExprLike, dtype: str = "") -> None:
        raise TypeError(f"{type(self).__name__} is abstract")

    def __post_init__(self) -> None:
        """Convert number operands and infer the dtype. Raises TypeError for two dtypes."""
        if not self.dtype:
            kind = type(self)
            a, b = convert_operands(self.a, self.b)
            if a.dtype != b.dtype:
                raise _dtype_mismatch_error(kind.__name__, a, b)
            set_frozen_fields(self, a=a, b=b, dtype=_binary_result_dtype(kind, a.dtype))


def convert_operands(a: ExprLike, b: ExprLike) -> tuple[PrimExpr, PrimExpr]:
    """Convert two operands, of which one may be a Python number, to expressions."""
    if not isinstance(a, PrimExpr):
        a = convert_number_operand(a, b.dtype if isinstance(b, PrimExpr) else None)
    return a, b if isinstance(b, PrimExpr) else convert_number_operand(b, a.dtype)


def convert_number_operand(value: ExprLike, dtype: str | None) -> PrimExpr:
    """Convert a Python number to an expression with the other operand's dtype.

    But a float beside integers or bools is float32, as in TVM: `i * 0.5` is not `i * 0`.
    """
    if dtype and isinstance(value, (float, np.floating)) and dt.is_int_or_bool(dtype):
        return const(float(value), dt.with_lanes("float32", dt.lanes_suffix(dtype)))
    return convert(value, dtype)


def _dtype_mismatch_error(what: str, a: PrimExpr, b: PrimExpr) -> TypeError:
    return TypeError(f"{what}: operands must have one dtype, got {a.dtype} and {b.dtype}")


# Lanes stay: comparing vectors gives a vector of bools, which is a mask.
def _binary_result_dtype(kind: type[BinaryExpr], operands: str) -> str:
    if kind not in BOOL_VALUED_OPS:
        return operands
    return dt.with_lanes("bool", dt.lanes_suffix(operands))


@node("tir.Add")
class Add(BinaryExpr):
    """`a + b`."""

    symbol = "+"
    fold = staticmethod(operator.add)
    _identity = staticmethod(arithmetic_identities.add_identity)


@node("tir.Sub")
class Sub(BinaryExpr):
    """`a - b`."""

    symbol = "-"
    fold = staticmethod(operator.sub)
    _identity = staticmethod(arithmetic_identities.sub_identity)


@node("tir.Mul")
class Mul(BinaryExpr):
    """`a * b`."""

    symbol = "*"
    fold = staticmethod(operator.mul)
    _identity = staticmethod(arithmetic_identities.mul_identity)


@node("tir.Div")
class Div(BinaryExpr):
    """`a / b`; truncates towards zero for integers, as C does."""

    symbol = "/"
    fold = staticmethod(trunc_div)
    _identity = staticmethod(arithmetic_identities.div_identity)


@node("tir.FloorDiv")
class FloorDiv(BinaryExpr):
    """`a // b`, rounded down."""

    symbol = "//"
    fold = staticmethod(operator.floordiv)
    _identity = staticmethod(arithmetic_identities.floordiv_identity)


@node("tir.FloorMod")
class FloorMod(BinaryExpr):
    """`a % b`, with the sign of b."""

    symbol = "%"
    fold = staticmethod(operator.mod)
    _identity = staticmethod(arithmetic_identities.floormod_identity)


@node("tir.Min")
class Min(BinaryExpr):
    """Minimum of two values."""

    symbol = "min"
    fold = staticmethod(nan_min)


@node("tir.Max")
class Max(BinaryExpr):
    """Maximum of two values."""

    symbol = "max"
    fold = staticmethod(nan_max)


@node("tir.EQ")
class EQ(BinaryExpr):
    """`a == b` as a bool."""

    symbol = "=="
    fold = staticmethod(operator.eq)


@node("tir.NE")
class NE(BinaryExpr):
    """`a != b` as a bool."""

    symbol = "!="
    fold = staticmethod(operator.ne)


@node("tir.LT")
class LT(BinaryExpr):
    """`a < b`."""

    symbol = "<"
    fold = staticmethod(operator.lt)


@node("tir.LE")
class LE(BinaryExpr):
    """`a <= b`."""

    symbol = "<="
    fold = staticmethod(operator.le)


@node("tir.GT")
class GT(BinaryExpr):
    """`a > b`."""

    symbol = ">"
    fold = staticmethod(operator.gt)


@node("tir.GE")
class GE(BinaryExpr):
    """`a >= b`."""

    symbol = ">="
    fold = staticmethod(operator.ge)


@node("tir.And")
class And(BinaryExpr):
    """`a and b` on bools."""

    symbol = "and"
    fold = staticmethod(operator.and_)


@node("tir.Or")
class Or(BinaryExpr):
    """`a or b` on bools."""

    symbol = "or"
    fold = staticmethod(operator.or_)


COMPARISON_OPS = (EQ, NE, LT, LE, GT, GE)
BOOL_VALUED_OPS = frozenset((*COMPARISON_OPS, And, Or))


@node("tir.Not")
class Not(PrimExpr):
    """Logical negation of a bool."""

    a: PrimExpr
    dtype: str = "bool"

    def __post_init__(self) -> None:
        """Convert the operand: a comparison or a bool is accepted too."""
        set_frozen_fields(self, a=convert(self.a))


@node("tir.Select")
class Select(PrimExpr):
    """Ternary select `true_value if condition else false_value`; both sides may be evaluated.

    For guarded loads use Intrinsic if_then_else. The dtype may be left
    out, and one of the values be a number.
    """

    condition: PrimExpr
    true_value: PrimExpr
    false_value: PrimExpr
    dtype: str = ""

    def __post_init__(self) -> None:
        """Convert the values and widen integers of two widths. Raises TypeError for other values of
        two dtypes.
        """
        condition: object = self.condition
        if not isinstance(condition, PrimExpr):
            set_frozen_fields(self, condition=convert(self.condition))
        if not self.dtype:
            a, b = convert_operands(self.true_value, self.false_value)
            if a.dtype != b.dtype:
                wide = dt.wider_int(a.dtype, b.dtype)
                if wide is None:
                    kinds = f"{a.dtype} and {b.dtype}"
                    raise TypeError(f"Select: values must have one dtype, got {kinds}")
                a, b = cast(a, wide), cast(b, wide)
            set_frozen_fields(self, true_value=a, false_value=b, dtype=a.dtype)


@node("tir.Cast")
class Cast(PrimExpr):
    """Conversion of `value` to `dtype`."""

    value: PrimExpr
    dtype: str

    def __post_init__(self) -> None:
        """Accept TVM's argument order too: Cast("int32", x)."""
        first, second = as_untyped(self.value), as_untyped(self.dtype)
        if isinstance(first, str):
            set_frozen_fields(self, value=convert(second), dtype=first)


@node("tir.Call")
class Intrinsic(PrimExpr):
    """Call of an intrinsic of the table `ekiden.ir.intrinsic.INTRINSICS`: exp, tanh, ...

    `op` is an OpName, whatever text or operator it was made with.
    """

    op: OpName | str
    args: tuple[PrimExpr, ...]
    dtype: str

    def __post_init__(self) -> None:
        """Accept TVM's argument order too: Call("float32", Op.get("tir.exp"), [x])."""
        op, args = as_untyped(self.args), as_untyped(self.dtype)
        if not isinstance(op, (tuple, list)):
            name = getattr(op, "name", op).removeprefix("tir.")
            set_frozen_fields(self, op=name, args=tuple(map(convert, args)), dtype=self.op)
        if type(self.op) is not OpName:
            set_frozen_fields(self, op=_interned_op_name(self.op))


_interned_op_name: Callable[[str], OpName] = cache(OpName)
"""OpName of a text; there are as many as intrinsics."""


def _bitwise_op(op: str, a: ExprLike, b: ExprLike) -> PrimExpr:
    """Build a bitwise operation. Raises TypeError for operands but integers of one dtype."""
    x, y = convert_operands(a, b)
    if x.dtype != y.dtype or dt.is_float(x.dtype):
        raise TypeError(f"{op}: operands must be integers of one dtype, got {x.dtype}, {y.dtype}")
    return Intrinsic(op, (x, y), x.dtype)


# The value is as given. It is casts and folded arithmetic that give numbers which the dtype has.
def const(value: int | float | bool, dtype: str | None = None) -> PrimExpr:
    """Return a constant, broadcast to all lanes for a vector dtype.

    The dtype defaults to int64, float32 or bool by the Python type. An object with `asobject` (a
    DeferredComparison, an axis) gives its expression. Raises ExpressionError if it has none.
    """
    source: object = value
    if type(source) is int and dtype in _INDEX_DTYPES:
        return IntImm(source, dtype)
    if not isinstance(source, (int, float)):
        # An object that stands for an expression is converted where a number is expected.
        make = getattr(source, "asobject", None)  # of a comparison, and of an axis its variable
        if make is not None:
            expression = make()
            if not isinstance(expression, PrimExpr):
                raise ExpressionError(f"an expression expected, got {expression!r}")
            return expression if dtype is None else cast(expression, dtype)
    if dtype is None:
        dtype = (
            "bool" if isinstance(value, bool) else "int64" if isinstance(value, int) else "float32"
        )
    lanes = dt.lanes_suffix(dtype)
    if lanes:
        return NODE_TYPES["tir.Broadcast"](const(value, dt.element_dtype(dtype)), lanes, dtype)  # type: ignore[call-arg,return-value]
    if dt.is_float(dtype) or dtype in dt.SMALL_FLOATS:
        return FloatImm(float(value), dtype)
    return IntImm(int(value), dtype)


def convert(value: ExprLike, dtype: str | None = None) -> PrimExpr:
    """Convert a Python number to an expression; return expressions unchanged."""
    return value if isinstance(value, PrimExpr) else const(value, dtype)


def is_const(value: ExprLike, number: int | float | None = None) -> bool:
    """Return whether `value` is a constant (and equals `number`, if given)."""
    if isinstance(value, (IntImm, FloatImm)):
        return number is None or value.value == number
    is_number = not isinstance(value, (PrimExpr, DeferredComparison))
    return is_number and (number is None or value == number)


def cast(value: PrimExpr, dtype: str) -> PrimExpr:
    """Cast `value` to `dtype`, folding constants.

    No node is made when it already is; constants fold, a scalar stands in every lane of a vector.
    """
    if value.dtype == dtype:
        return value
    if type(value) is NODE_TYPES.get("tir.Broadcast") and dt.lanes_suffix(
        value.dtype
    ) == dt.lanes_suffix(dtype):
        # The conversion moves inside: one scalar is converted instead of all lanes.
        scalar = cast(value.value, dt.element_dtype(dtype))  # type: ignore[attr-defined]
        return value.with_fields(value=scalar, dtype=dtype)
    if dt.lanes_suffix(dtype) and not dt.lanes_suffix(value.dtype):
        return _broadcast_lanes(cast(value, dt.element_dtype(dtype)), dtype)
    if isinstance(value, (IntImm, FloatImm)) and not dt.lanes_suffix(dtype):
        number = cast_constant(value.value, value.dtype, dtype)
        # A float that the integer dtype does not hold: the machine that runs it decides.
        return Cast(value, dtype) if number is None else const(number, dtype)
    return Cast(value, dtype)


def _broadcast_lanes(a: PrimExpr, vector_dtype: str) -> PrimExpr:
    """Broadcast a scalar to the lanes of `vector_dtype`; return vectors unchanged."""
    lanes = dt.lanes_suffix(vector_dtype)
    if not lanes or dt.lanes_suffix(a.dtype):
        return a
    return NODE_TYPES["tir.Broadcast"](a, lanes, dt.with_lanes(a.dtype, lanes))  # type: ignore[call-arg,return-value]


def promote_operands(what: str, a: ExprLike, b: ExprLike) -> tuple[PrimExpr, PrimExpr]:
    """Promote two operands to one dtype. Raises TypeError."""
    a, b = convert_operands(a, b)
    if dt.lanes_suffix(a.dtype) != dt.lanes_suffix(b.dtype):
        # A scalar operand is broadcast to the lanes of a vector operand.
        a, b = _broadcast_lanes(a, b.dtype), _broadcast_lanes(b, a.dtype)
    if a.dtype == b.dtype:
        return a, b
    dtype = dt.promote_dtypes(a.dtype, b.dtype)
    if dtype is None:
        raise _dtype_mismatch_error(what, a, b)
    return cast(a, dtype), cast(b, dtype)


def fold_binary(kind: type[BinaryExpr], a: ExprLike, b: ExprLike) -> PrimExpr:
    """Build `kind(a, b)` with constant folding and the identities of 0 and 1 applied.

    A Python number takes the other side's dtype (see `convert_number_operand`), a scalar beside
    a vector its lanes, an integer beside a float its dtype. Raises TypeError for other operands of
    two dtypes.
    """
    # Indices beside small numbers are most of what is built: they need no promotion.
    if type(b) is int and isinstance(a, PrimExpr) and a.dtype in _INDEX_DTYPES:
        b = IntImm(b, a.dtype)
    elif not (isinstance(a, PrimExpr) and isinstance(b, PrimExpr) and a.dtype == b.dtype):
        a, b = promote_operands(kind.__name__, a, b)
    dtype = a.dtype
    result = _binary_result_dtype(kind, dtype) if kind in BOOL_VALUED_OPS else dtype
    lhs = a.value if isinstance(a, _NUMBERS) else None
    rhs = b.value if isinstance(b, _NUMBERS) else None
    if lhs is None and rhs is None:
        return kind(a, b, result)
    # A division by 0 is left to run time, where it is an error or never reached.
    if lhs is not None and rhs is not None and not (kind in _DIVISIONS and rhs == 0):
        return const(fold_size_constants(kind.fold, lhs, rhs, dtype, result), result)
    operand = kind._identity(lhs, rhs, dtype)
    if operand == arithmetic_identities.NO_OPERAND:
        return kind(a, b, result)
    # x % 1 is 0, and neither operand.
    return const(0, dtype) if operand == arithmetic_identities.ZERO_RESULT else (a, b)[operand]


_INDEX_DTYPES = frozenset(("int32", "int64"))
_NUMBERS = (IntImm, FloatImm)
_DIVISIONS = (Div, FloorDiv, FloorMod)


def minimum(a: ExprLike, b: ExprLike) -> PrimExpr:
    """Return min(a, b)."""
    return fold_binary(Min, a, b)


def maximum(a: ExprLike, b: ExprLike) -> PrimExpr:
    """Return max(a, b)."""
    return fold_binary(Max, a, b)


def logical_and(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """Return `a and b`, folding constant operands."""
    a, b = convert(a), convert(b)
    if is_const(a):
        return b if a.value else a  # type: ignore[attr-defined]
    if is_const(b):
        return a if b.value else b  # type: ignore[attr-defined]
    return fold_binary(And, a, b)
