"""The expressions of Relay (TVM's names), in one screen.

    Expr = Var | GlobalVar | Constant | Tuple | TupleGetItem | Call | Let | If | Function | Match
         | Constructor | RefCreate | RefRead | RefWrite | Op
A node used twice is a shared value (a graph); `Let` makes order explicit (A-normal form).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from numbers import Number
from typing import TYPE_CHECKING, cast

import numpy as np

import ekiden.relay.texts  # noqa: F401  # how expressions show themselves
from ekiden._lazy import LazyModule
from ekiden.ir.attrs import Attrs
from ekiden.ir.dtype import is_float, to_numpy
from ekiden.ir.expr import BaseFunc, GlobalVar, RelayExpr
from ekiden.ir.node import Node, binding, freeze, ignored, node
from ekiden.ir.op import OPS, Array, Op, get
from ekiden.ir.prim import PrimExpr
from ekiden.ir.span import Span
from ekiden.ir.type import GlobalTypeVar, TensorType, TupleType, Type, TypeVar, tensor_type
from ekiden.runtime.devices.memory import hold_array
from ekiden.runtime.errors import TypeInferenceError
from ekiden.target.virtual_device import RESULT_PLACE

if TYPE_CHECKING:
    from ekiden.relay import type_infer
else:
    type_infer = LazyModule("ekiden.relay.type_infer")

Expr = RelayExpr
__all__ = [
    "Call",
    "Clause",
    "Constant",
    "Constructor",
    "Expr",
    "ExprWithOp",
    "Function",
    "GlobalVar",
    "If",
    "Let",
    "Match",
    "Op",
    "Pattern",
    "PatternConstructor",
    "PatternTuple",
    "PatternVar",
    "PatternWildcard",
    "RefCreate",
    "RefRead",
    "RefWrite",
    "Tuple",
    "TupleGetItem",
    "TupleWrapper",
    "TypeData",
    "Var",
    "const",
    "var",
]


class ConstantData(np.ndarray[tuple[int, ...], np.dtype[np.generic]]):
    """The array of a constant. What NumPy computes from it is a plain array."""

    source: RelayExpr | None = None
    """The call of constants that gave it, where an artifact is to hold those and not it. It is of
    this array alone: views of it have none."""
    origin_bytes: int = -1
    """The bytes of the constants that it was folded from, below 0 for one that was not."""

    def numpy(self) -> Array:
        """Return the plain array, sharing memory."""
        return self.view(np.ndarray)

    def __array_wrap__(  # type: ignore[override]
        self, array: Array, context: object = None, return_scalar: bool = False
    ) -> Array:
        plain = array.view(np.ndarray)
        return plain[()] if return_scalar else plain


def _binary(name: str) -> Callable[[ExprWithOp, object], Call]:
    def method(self: ExprWithOp, operand: object) -> Call:
        return Call(get(name), (self, _operand(operand, self)))

    method.__doc__ = f"`{name}(self, other)`"
    return method


def _reflected(name: str) -> Callable[[ExprWithOp, object], Call]:
    def method(self: ExprWithOp, operand: object) -> Call:
        return Call(get(name), (_operand(operand, self), self))

    method.__doc__ = f"`{name}(other, self)`"
    return method


class ExprWithOp(RelayExpr):
    """An expression with Python's operators (TVM's name). A number beside one becomes a constant of
    its dtype.
    """

    __slots__ = ()

    # fmt: off
    __add__,      __radd__      = _binary("add"),           _reflected("add")
    __sub__,      __rsub__      = _binary("subtract"),      _reflected("subtract")
    __mul__,      __rmul__      = _binary("multiply"),      _reflected("multiply")
    __truediv__,  __rtruediv__  = _binary("divide"),        _reflected("divide")
    __floordiv__, __rfloordiv__ = _binary("floor_divide"),  _reflected("floor_divide")
    __mod__,      __rmod__      = _binary("floor_mod"),     _reflected("floor_mod")
    __pow__,      __rpow__      = _binary("power"),         _reflected("power")
    __lt__,       __le__        = _binary("less"),          _binary("less_equal")
    __gt__,       __ge__        = _binary("greater"),       _binary("greater_equal")
    # fmt: on

    def __neg__(self) -> Call:
        return Call(get("negative"), (self,))

    def astype(self, dtype: str) -> Call:
        """Return `cast(self, dtype)`."""
        attrs = cast(Callable[..., Attrs], OPS["cast"].attrs)
        return Call(get("cast"), (self,), attrs(dtype=dtype))

    def __getitem__(self, index: int) -> RelayExpr:
        """Return a field of a tuple.

        Raises:
            IndexError: The number of fields is known, and the index is beyond it.
        """
        count, index = _field_count(self), operator.index(index)
        if count is not None and not -count <= index < count:
            raise IndexError(f"field {index}: the tuple has {count} fields")
        if index < 0:
            if count is None:
                raise IndexError(f"field {index}: the number of fields is not known here")
            index += count
        return self.fields[index] if isinstance(self, Tuple) else TupleGetItem(self, index)

    def __iter__(self) -> Iterator[RelayExpr]:
        """Yield the fields of a tuple of a known number of fields.

        Raises:
            TypeError: The expression is not known to be a tuple.
        """
        count = _field_count(self)
        if count is None:
            raise TypeError(
                f"a {type(self).__name__} cannot be unpacked: it is not known to be a tuple; "
                "wrap it as relay.TupleWrapper(value, count)"
            )
        return (self[i] for i in range(count))


def _field_count(expr: ExprWithOp) -> int | None:
    """Return how many fields a tuple has, or None if that is not known.

    Raises:
        TypeError: The expression is known to be no tuple.
    """
    if isinstance(expr, Tuple):
        return len(expr.fields)
    if isinstance(expr, Call) and isinstance(expr.op, Op):
        fields = OPS[expr.op.name].fields
        return fields(expr.attrs) if fields is not None else _known_count(expr)
    return _known_count(expr)


def _known_count(expr: ExprWithOp) -> int | None:
    kind = _known_type(expr)
    if kind is None:
        return None
    if not isinstance(kind, TupleType):
        raise TypeError(f"expected a tuple to take a field of, got {kind!r}")
    return len(kind.fields)


def _known_type(expr: RelayExpr) -> Type | None:
    checked = expr.checked_type_or_none()
    return expr.type_annotation if checked is None and isinstance(expr, Var) else checked


def _operand(value: object, beside: RelayExpr) -> RelayExpr:
    """Return an operand: an expression, or a number in the dtype of the expression beside it.

    Raises:
        TypeError: The value is no operand, or the dtype is not known or does not fit.
    """
    if isinstance(value, RelayExpr):
        return value
    if not isinstance(value, (Number, np.ndarray)):
        raise TypeError(f"expected an expression or a number as an operand, got {value!r}")
    kind = _known_type(beside)
    if kind is None:
        # An expression without a type is inferred here, if it can be inferred alone.
        with suppress(TypeInferenceError):
            kind = type_infer.infer_expr_type(beside)
    if not isinstance(kind, TensorType):
        raise TypeError(
            f"the dtype beside {value!r} is not known here: make it a constant with relay.const"
        )
    if isinstance(value, float) and not is_float(kind.dtype):
        raise TypeError(f"expected a number of dtype {kind.dtype} as an operand, got {value!r}")
    return const(value, kind.dtype)


@node("relay.Var")
class Var(ExprWithOp):
    """A local variable; identity, not name, tells two apart."""

    name_hint: str
    type_annotation: Type | None = None
    span: Span | None = ignored(default=None)

    @property
    def vid(self) -> Var:
        """Return the identity of the variable (TVM's name): the variable itself."""
        return self


@node("relay.Constant")
class Constant(ExprWithOp):
    """A tensor known at compile time (a NumPy array, ml_dtypes included; treat it as read-only)."""

    data: Array
    span: Span | None = ignored(default=None)

    def __post_init__(self) -> None:
        """Keep an array as a view of itself that has TVM's `numpy()`."""
        if type(self.data) is not ConstantData:
            data = self.data.numpy() if hasattr(self.data, "numpy") else np.asarray(self.data)
            hold_array(data)
            freeze(self, data=data.view(ConstantData))


@node("relay.Tuple")
class Tuple(ExprWithOp):
    """A tuple of values."""

    fields: tuple[RelayExpr, ...]
    span: Span | None = ignored(default=None)

    def __post_init__(self) -> None:
        """Accept any sequence for the fields."""
        if type(self.fields) is not tuple:
            freeze(self, fields=tuple(self.fields))
        _unwrap_all(self, "fields")

    def __len__(self) -> int:
        return len(self.fields)

    def __bool__(self) -> bool:
        return True  # an expression is there, however many fields it has


@node("relay.TupleGetItem")
class TupleGetItem(ExprWithOp):
    """One field of a tuple."""

    tuple_value: RelayExpr
    index: int
    span: Span | None = ignored(default=None)

    def __post_init__(self) -> None:
        """Accept a wrapped tuple."""
        _unwrap(self, "tuple_value")


@node("relay.Call")
class Call(ExprWithOp):
    """`op(args)`: op is an Op, GlobalVar, Constructor or any function-valued expression."""

    op: RelayExpr
    args: tuple[RelayExpr, ...]
    attrs: Attrs | None = None
    type_args: tuple[Type, ...] = ()
    span: Span | None = ignored(default=None)

    def __post_init__(self) -> None:
        """Accept any sequence for the arguments, and None for no type arguments."""
        if type(self.args) is not tuple:
            freeze(self, args=tuple(self.args))
        if type(self.type_args) is not tuple:
            freeze(self, type_args=tuple(self.type_args or ()))
        _unwrap_all(self, "args")

    def astuple(self) -> Call:
        """Return the call itself: operators with several results return one tuple (TVM's
        TupleWrapper).
        """
        return self

    @property
    def tuple_value(self) -> Call:
        """Return the call itself, as `TupleWrapper` has it."""
        return self


@node("relay.Let")
class Let(ExprWithOp):
    """`let var = value; body`; a function value may refer to its own var."""

    var: Var = binding()
    value: RelayExpr
    body: RelayExpr
    span: Span | None = ignored(default=None)

    def __post_init__(self) -> None:
        """Accept wrapped tuples for value and body."""
        _unwrap(self, "value")
        _unwrap(self, "body")


@node("relay.If")
class If(ExprWithOp):
    """A choice by a bool scalar."""

    cond: RelayExpr
    true_branch: RelayExpr
    false_branch: RelayExpr
    span: Span | None = ignored(default=None)

    def __post_init__(self) -> None:
        """Accept wrapped tuples for the branches."""
        _unwrap(self, "true_branch")
        _unwrap(self, "false_branch")


@node("relay.Function")
class Function(BaseFunc):
    """A function value. Well-known keys of `attrs`: Primitive, Closure, relay.reshape_only."""

    params: tuple[Var, ...] = binding()
    body: RelayExpr
    ret_type: Type | None = None
    type_params: tuple[TypeVar, ...] = binding(default=())
    attrs: Mapping[str, object] | None = None
    span: Span | None = ignored(default=None)

    def __post_init__(self) -> None:
        """Accept any sequences for the parameters, and a wrapped tuple for the body."""
        _unwrap(self, "body")
        if type(self.params) is not tuple:
            freeze(self, params=tuple(self.params))
        if type(self.type_params) is not tuple:
            freeze(self, type_params=tuple(self.type_params or ()))
        if self.attrs and any(isinstance(v, PrimExpr) for v in self.attrs.values()):
            # Attributes from Python code may be scalar constants; they are kept as plain numbers.
            plain = {k: getattr(v, "value", v) for k, v in self.attrs.items()}
            freeze(self, attrs=plain)

    @property
    def virtual_device_(self) -> object:
        """Return the device of the result according to PlanDevices, or None (TVM's name)."""
        return self.attr(RESULT_PLACE)


@node("relay.RefCreate")
class RefCreate(ExprWithOp):
    """A new mutable cell."""

    value: RelayExpr
    span: Span | None = ignored(default=None)


@node("relay.RefRead")
class RefRead(ExprWithOp):
    """The value in a cell."""

    ref: RelayExpr
    span: Span | None = ignored(default=None)


@node("relay.RefWrite")
class RefWrite(ExprWithOp):
    """Store into a cell; gives the empty tuple."""

    ref: RelayExpr
    value: RelayExpr
    span: Span | None = ignored(default=None)


@node("relay.Constructor")
class Constructor(RelayExpr):
    """A constructor of an algebraic data type."""

    name_hint: str
    inputs: tuple[Type, ...]
    belong_to: GlobalTypeVar
    tag: int = -1
    """Its place in its TypeData, which sets it."""
    span: Span | None = ignored(default=None)

    def __post_init__(self) -> None:
        """Accept any sequence for the inputs."""
        freeze(self, inputs=tuple(self.inputs))


@node("relay.TypeData")
class TypeData(Type):
    """The definition of an algebraic data type."""

    header: GlobalTypeVar
    type_vars: tuple[TypeVar, ...] = binding()
    constructors: tuple[Constructor, ...]

    def __post_init__(self) -> None:
        """Accept any sequences, and number constructors that have no number by their positions."""
        freeze(self, type_vars=tuple(self.type_vars), constructors=tuple(self.constructors))
        for position, constructor in enumerate(self.constructors):
            if constructor.tag < 0:
                freeze(constructor, tag=position)


class Pattern(Node):
    """Base of match patterns."""

    __slots__ = ()


@node("relay.PatternWildcard")
class PatternWildcard(Pattern):
    """`_`"""


@node("relay.PatternVar")
class PatternVar(Pattern):
    """`%x`"""

    var: Var = binding()


@node("relay.PatternConstructor")
class PatternConstructor(Pattern):
    """`Cons(p, q)`"""

    constructor: Constructor
    patterns: tuple[Pattern, ...] = ()

    def __post_init__(self) -> None:
        """Accept any sequence, or None, for the patterns."""
        freeze(self, patterns=tuple(self.patterns or ()))


@node("relay.PatternTuple")
class PatternTuple(Pattern):
    """`(p, q)`"""

    patterns: tuple[Pattern, ...] = ()

    def __post_init__(self) -> None:
        """Accept any sequence, or None, for the patterns."""
        freeze(self, patterns=tuple(self.patterns or ()))


@node("relay.Clause")
class Clause(Node):
    """`lhs => rhs`"""

    lhs: Pattern = binding()
    rhs: RelayExpr


@node("relay.Match")
class Match(ExprWithOp):
    """The first clause whose pattern fits; `complete` promises that one does."""

    data: RelayExpr
    clauses: tuple[Clause, ...]
    complete: bool = True
    span: Span | None = ignored(default=None)

    def __post_init__(self) -> None:
        """Accept any sequence for the clauses."""
        freeze(self, clauses=tuple(self.clauses))


class TupleWrapper(Sequence[RelayExpr]):
    """A tuple-valued expression of `size` fields as a Python sequence (TVM's name)."""

    def __init__(self, tuple_value: RelayExpr, size: int) -> None:
        self.tuple_value = tuple_value
        self.size = size

    def astuple(self) -> RelayExpr:
        """Return the expression."""
        return self.tuple_value

    def __getitem__(self, index: int) -> RelayExpr:  # type: ignore[override]
        if not -self.size <= index < self.size:
            raise IndexError(f"field {index}: the tuple has {self.size} fields")
        return TupleGetItem(self.tuple_value, index % self.size)

    def __len__(self) -> int:
        return self.size


def _unwrap(expr: RelayExpr, field: str) -> None:
    """Replace a wrapped tuple in a field by the tuple, as nodes hold expressions alone."""
    value = getattr(expr, field)
    if type(value) is TupleWrapper:
        freeze(expr, **{field: value.astuple()})


def _unwrap_all(expr: RelayExpr, field: str) -> None:
    values = getattr(expr, field)
    if TupleWrapper in map(type, values):
        plain = (v.astuple() if type(v) is TupleWrapper else v for v in values)
        freeze(expr, **{field: tuple(plain)})


def var(
    name_hint: str,
    type_annotation: Type | str | None = None,
    shape: Sequence[object] | None = None,
    dtype: str = "float32",
    span: Span | None = None,
) -> Var:
    """Return a new variable, from a type, from the dtype of a scalar, or from a shape.

    Args:
        name_hint: The name.
        type_annotation: The type, or the dtype of a scalar.
        shape: Ints and expressions.
        dtype: The dtype of a tensor of that shape.
        span: The position in a source.

    Raises:
        ValueError: Both a type and a shape are passed.
    """
    if type_annotation is not None and shape is not None:
        raise ValueError(f"var {name_hint!r}: expected a type or a shape, got both")
    if isinstance(type_annotation, str):
        return Var(name_hint, TensorType((), type_annotation), span)
    if shape is not None:
        return Var(name_hint, tensor_type(shape, dtype), span)  # type: ignore[arg-type]
    return Var(name_hint, type_annotation, span)


def const(
    value: object, dtype: str | TensorType | None = None, span: Span | None = None
) -> Constant:
    """Return a constant from a Python number, nested lists, an array, a tensor or another constant.

    Python floats become float32 and ints int32, as in TVM; an array keeps its dtype.

    Raises:
        ValueError: The value holds no numbers.
    """
    if isinstance(value, Constant):
        value = value.data
    if isinstance(dtype, TensorType):
        dtype = dtype.dtype
    if hasattr(value, "numpy"):  # a tensor of the runtime or of PyTorch
        value = value.numpy()
    if isinstance(value, (np.ndarray, np.generic)):
        return Constant(np.asarray(value, None if dtype is None else to_numpy(dtype)), span)
    array = np.asarray(value)
    if array.dtype == object:
        raise ValueError(f"const: expected numbers, got {type(value).__name__}")
    default = {"f": "float32", "i": "int32", "b": "bool"}.get(array.dtype.kind, str(array.dtype))
    return Constant(array.astype(to_numpy(dtype or default)), span)
