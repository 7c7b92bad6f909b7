"""Relay expressions (TVM's names).

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

import ekiden.relay.text_hooks  # noqa: F401  # how expressions show themselves
from ekiden._lazy import LazyModule
from ekiden.ir.attrs import Attrs
from ekiden.ir.dtype import is_float, to_numpy
from ekiden.ir.expr import BaseFunc, GlobalVar, RelayExpr
from ekiden.ir.node import Node, binding, ignored_field, node, set_frozen_fields
from ekiden.ir.op import OPS, Array, Op, get
from ekiden.ir.prim import PrimExpr
from ekiden.ir.span import Span
from ekiden.ir.type import GlobalTypeVar, TensorType, TupleType, Type, TypeVar, tensor_type
from ekiden.runtime.devices.memory import track_array
from ekiden.runtime.errors import TypeInferenceError
from ekiden.target.virtual_device import RESULT_DEVICE_ATTR

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
    """Array of a constant. What NumPy computes from it is a plain array."""

    source: RelayExpr | None = None
    """Call of constants that produced the array, where an artifact stores its arguments instead. It
    is of this array alone: views of it have none.
    """
    origin_bytes: int = -1
    """Bytes of the constants that the array was folded from; negative if it was not folded."""

    def numpy(self) -> Array:
        """Return the plain NumPy array, sharing memory."""
        return self.view(np.ndarray)

    def __array_wrap__(  # type: ignore[override]
        self, array: Array, context: object = None, return_scalar: bool = False
    ) -> Array:
        # Results of NumPy functions are new arrays, which come from no constant call.
        plain = array.view(np.ndarray)
        return plain[()] if return_scalar else plain


def _binary_method(name: str) -> Callable[[ExprWithOp, object], Call]:
    def method(self: ExprWithOp, operand: object) -> Call:
        return Call(get(name), (self, _to_operand(operand, self)))

    method.__doc__ = f"`{name}(self, other)`"
    return method


def _reflected_method(name: str) -> Callable[[ExprWithOp, object], Call]:
    def method(self: ExprWithOp, operand: object) -> Call:
        return Call(get(name), (_to_operand(operand, self), self))

    method.__doc__ = f"`{name}(other, self)`"
    return method


class ExprWithOp(RelayExpr):
    """Expression with overloaded Python operators (TVM's name). A number beside one becomes a
    constant of its dtype.
    """

    __slots__ = ()

    # fmt: off
    __add__,      __radd__      = _binary_method("add"),           _reflected_method("add")
    __sub__,      __rsub__      = _binary_method("subtract"),      _reflected_method("subtract")
    __mul__,      __rmul__      = _binary_method("multiply"),      _reflected_method("multiply")
    __truediv__,  __rtruediv__  = _binary_method("divide"),        _reflected_method("divide")
    __floordiv__, __rfloordiv__ = _binary_method("floor_divide"),  _reflected_method("floor_divide")
    __mod__,      __rmod__      = _binary_method("floor_mod"),     _reflected_method("floor_mod")
    __pow__,      __rpow__      = _binary_method("power"),         _reflected_method("power")
    __lt__,       __le__        = _binary_method("less"),          _binary_method("less_equal")
    __gt__,       __ge__        = _binary_method("greater"),       _binary_method("greater_equal")
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
        count, index = _tuple_length(self), operator.index(index)
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
        count = _tuple_length(self)
        if count is None:
            raise TypeError(
                f"a {type(self).__name__} cannot be unpacked: it is not known to be a tuple; "
                "wrap it as relay.TupleWrapper(value, count)"
            )
        return (self[i] for i in range(count))


def _tuple_length(expr: ExprWithOp) -> int | None:
    """Return the number of fields of a tuple expression, or None if unknown.

    Raises:
        TypeError: The expression is known to be no tuple.
    """
    if isinstance(expr, Tuple):
        return len(expr.fields)
    if isinstance(expr, Call) and isinstance(expr.op, Op):
        fields = OPS[expr.op.name].fields
        # Before type inference: the declaration of an operator knows how many results it has.
        return fields(expr.attrs) if fields is not None else _static_tuple_length(expr)
    return _static_tuple_length(expr)


def _static_tuple_length(expr: ExprWithOp) -> int | None:
    kind = _known_type(expr)
    if kind is None:
        return None
    if not isinstance(kind, TupleType):
        raise TypeError(f"expected a tuple to take a field of, got {kind!r}")
    return len(kind.fields)


def _known_type(expr: RelayExpr) -> Type | None:
    checked = expr.checked_type_or_none()
    return expr.type_annotation if checked is None and isinstance(expr, Var) else checked


def _to_operand(value: object, beside: RelayExpr) -> RelayExpr:
    """Convert an operand to an expression: an expression, or a number in the dtype of the other
    operand.

    Raises:
        TypeError: The value is no operand, or the dtype is not known or does not fit.
    """
    if isinstance(value, RelayExpr):
        return value
    if not isinstance(value, (Number, np.ndarray)):
        raise TypeError(f"expected an expression or a number as an operand, got {value!r}")
    # A number takes the dtype of the other operand, as in NumPy.
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
    """Local variable, distinguished by identity, not by name."""

    name_hint: str
    type_annotation: Type | None = None
    span: Span | None = ignored_field(default=None)

    @property
    def vid(self) -> Var:
        """Return the identity of the variable (TVM's name): the variable itself."""
        return self


@node("relay.Constant")
class Constant(ExprWithOp):
    """Tensor constant (a NumPy array, ml_dtypes included; read-only)."""

    data: Array
    span: Span | None = ignored_field(default=None)

    def __post_init__(self) -> None:
        """Keep an array as a view of itself that has TVM's `numpy()`."""
        if type(self.data) is not ConstantData:
            data = self.data.numpy() if hasattr(self.data, "numpy") else np.asarray(self.data)
            # The array may be shared with the caller, who must not change it from here on.
            track_array(data)
            set_frozen_fields(self, data=data.view(ConstantData))


@node("relay.Tuple")
class Tuple(ExprWithOp):
    """Tuple of expressions."""

    fields: tuple[RelayExpr, ...]
    span: Span | None = ignored_field(default=None)

    def __post_init__(self) -> None:
        """Accept any sequence for the fields."""
        if type(self.fields) is not tuple:
            set_frozen_fields(self, fields=tuple(self.fields))
        _unwrap_tuple_fields(self, "fields")

    def __len__(self) -> int:
        return len(self.fields)

    def __bool__(self) -> bool:
        return True  # an expression is there, however many fields it has


@node("relay.TupleGetItem")
class TupleGetItem(ExprWithOp):
    """Projection of a tuple field."""

    tuple_value: RelayExpr
    index: int
    span: Span | None = ignored_field(default=None)

    def __post_init__(self) -> None:
        """Accept a wrapped tuple."""
        _unwrap_tuple_field(self, "tuple_value")


@node("relay.Call")
class Call(ExprWithOp):
    """Call `op(args)` of an Op, GlobalVar, Constructor or function-valued expression."""

    op: RelayExpr
    args: tuple[RelayExpr, ...]
    attrs: Attrs | None = None
    type_args: tuple[Type, ...] = ()
    span: Span | None = ignored_field(default=None)

    def __post_init__(self) -> None:
        """Accept any sequence for the arguments, and None for no type arguments."""
        if type(self.args) is not tuple:
            set_frozen_fields(self, args=tuple(self.args))
        if type(self.type_args) is not tuple:
            set_frozen_fields(self, type_args=tuple(self.type_args or ()))
        _unwrap_tuple_fields(self, "args")

    def astuple(self) -> Call:
        """Return the call itself: multi-result operators return one tuple (TVM's TupleWrapper)."""
        return self

    @property
    def tuple_value(self) -> Call:
        """Return the call itself, as `TupleWrapper` has it."""
        return self


@node("relay.Let")
class Let(ExprWithOp):
    """Let binding `let var = value; body`; function values may be recursive."""

    var: Var = binding()
    value: RelayExpr
    body: RelayExpr
    span: Span | None = ignored_field(default=None)

    def __post_init__(self) -> None:
        """Accept wrapped tuples for value and body."""
        _unwrap_tuple_field(self, "value")
        _unwrap_tuple_field(self, "body")


@node("relay.If")
class If(ExprWithOp):
    """Conditional on a boolean scalar."""

    cond: RelayExpr
    true_branch: RelayExpr
    false_branch: RelayExpr
    span: Span | None = ignored_field(default=None)

    def __post_init__(self) -> None:
        """Accept wrapped tuples for the branches."""
        _unwrap_tuple_field(self, "true_branch")
        _unwrap_tuple_field(self, "false_branch")


@node("relay.Function")
class Function(BaseFunc):
    """Function expression. Well-known keys of `attrs`: Primitive, Closure, relay.reshape_only."""

    params: tuple[Var, ...] = binding()
    body: RelayExpr
    ret_type: Type | None = None
    type_params: tuple[TypeVar, ...] = binding(default=())
    attrs: Mapping[str, object] | None = None
    span: Span | None = ignored_field(default=None)

    def __post_init__(self) -> None:
        """Accept any sequences for the parameters, and a wrapped tuple for the body."""
        _unwrap_tuple_field(self, "body")
        if type(self.params) is not tuple:
            set_frozen_fields(self, params=tuple(self.params))
        if type(self.type_params) is not tuple:
            set_frozen_fields(self, type_params=tuple(self.type_params or ()))
        if self.attrs and any(isinstance(v, PrimExpr) for v in self.attrs.values()):
            # Attributes from Python code may be scalar constants; they are kept as plain numbers.
            plain = {k: getattr(v, "value", v) for k, v in self.attrs.items()}
            set_frozen_fields(self, attrs=plain)

    @property
    def virtual_device_(self) -> object:
        """Return the device of the result set by PlanDevices, or None (TVM's name)."""
        return self.attr(RESULT_DEVICE_ATTR)


@node("relay.RefCreate")
class RefCreate(ExprWithOp):
    """Creation of a mutable reference."""

    value: RelayExpr
    span: Span | None = ignored_field(default=None)


@node("relay.RefRead")
class RefRead(ExprWithOp):
    """Read of a reference."""

    ref: RelayExpr
    span: Span | None = ignored_field(default=None)


@node("relay.RefWrite")
class RefWrite(ExprWithOp):
    """Write to a reference; its value is the empty tuple."""

    ref: RelayExpr
    value: RelayExpr
    span: Span | None = ignored_field(default=None)


@node("relay.Constructor")
class Constructor(RelayExpr):
    """Constructor of an algebraic data type."""

    name_hint: str
    inputs: tuple[Type, ...]
    belong_to: GlobalTypeVar
    tag: int = -1
    """Index of the constructor within its TypeData, which sets it."""
    span: Span | None = ignored_field(default=None)

    def __post_init__(self) -> None:
        """Accept any sequence for the inputs."""
        set_frozen_fields(self, inputs=tuple(self.inputs))


@node("relay.TypeData")
class TypeData(Type):
    """Definition of an algebraic data type."""

    header: GlobalTypeVar
    type_vars: tuple[TypeVar, ...] = binding()
    constructors: tuple[Constructor, ...]

    def __post_init__(self) -> None:
        """Accept any sequences, and number constructors that have no number by their positions."""
        set_frozen_fields(
            self, type_vars=tuple(self.type_vars), constructors=tuple(self.constructors)
        )
        for position, constructor in enumerate(self.constructors):
            if constructor.tag < 0:
                # The tag is what compiled matches compare: it must be the same in every process.
                set_frozen_fields(constructor, tag=position)


class Pattern(Node):
    """Base class of match patterns."""

    __slots__ = ()


@node("relay.PatternWildcard")
class PatternWildcard(Pattern):
    """Wildcard pattern `_`."""


@node("relay.PatternVar")
class PatternVar(Pattern):
    """Variable pattern `%x`."""

    var: Var = binding()


@node("relay.PatternConstructor")
class PatternConstructor(Pattern):
    """Constructor pattern `Cons(p, q)`."""

    constructor: Constructor
    patterns: tuple[Pattern, ...] = ()

    def __post_init__(self) -> None:
        """Accept any sequence, or None, for the patterns."""
        set_frozen_fields(self, patterns=tuple(self.patterns or ()))


@node("relay.PatternTuple")
class PatternTuple(Pattern):
    """Tuple pattern `(p, q)`."""

    patterns: tuple[Pattern, ...] = ()

    def __post_init__(self) -> None:
        """Accept any sequence, or None, for the patterns."""
        set_frozen_fields(self, patterns=tuple(self.patterns or ()))


@node("relay.Clause")
class Clause(Node):
    """Match clause `lhs => rhs`."""

    lhs: Pattern = binding()
    rhs: RelayExpr


@node("relay.Match")
class Match(ExprWithOp):
    """Pattern match by the first matching clause; `complete` asserts exhaustiveness."""

    data: RelayExpr
    clauses: tuple[Clause, ...]
    complete: bool = True
    span: Span | None = ignored_field(default=None)

    def __post_init__(self) -> None:
        """Accept any sequence for the clauses."""
        set_frozen_fields(self, clauses=tuple(self.clauses))


class TupleWrapper(Sequence[RelayExpr]):
    """Tuple-valued expression as a Python sequence of `size` fields (TVM's name)."""

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


def _unwrap_tuple_field(expr: RelayExpr, field: str) -> None:
    """Replace a TupleWrapper in a field by its tuple expression."""
    value = getattr(expr, field)
    if type(value) is TupleWrapper:
        set_frozen_fields(expr, **{field: value.astuple()})


def _unwrap_tuple_fields(expr: RelayExpr, field: str) -> None:
    values = getattr(expr, field)
    if TupleWrapper in map(type, values):
        plain = (v.astuple() if type(v) is TupleWrapper else v for v in values)
        set_frozen_fields(expr, **{field: tuple(plain)})


def var(
    name_hint: str,
    type_annotation: Type | str | None = None,
    shape: Sequence[object] | None = None,
    dtype: str = "float32",
    span: Span | None = None,
) -> Var:
    """Return a new variable from a type, a scalar's dtype, or a shape.

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
    """Return a constant from a number, nested lists, an array, a tensor or another constant.

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
    # TVM's defaults for Python's numbers: 32 bits, whatever NumPy's are.
    default = {"f": "float32", "i": "int32", "b": "bool"}.get(array.dtype.kind, str(array.dtype))
    return Constant(array.astype(to_numpy(dtype or default)), span)
