"""The expressions of Relay (TVM's names), in one screen.

    Expr = Var | GlobalVar | Constant | Tuple | TupleGetItem | Call | Let | If | Function | Match
         | Constructor | RefCreate | RefRead | RefWrite | Op
A node used twice is a shared value (a graph); `Let` makes order explicit (A-normal form).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ekiden.ir.attrs import Attrs
from ekiden.ir.dtype import to_numpy
from ekiden.ir.expr import BaseFunc, GlobalVar, RelayExpr
from ekiden.ir.node import Node, binding, ignored, node
from ekiden.ir.op import Array, Op
from ekiden.ir.span import Span
from ekiden.ir.type import GlobalTypeVar, Type, TypeVar, tensor_type

Expr = RelayExpr
__all__ = [
    "Call",
    "Clause",
    "Constant",
    "Constructor",
    "Expr",
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
    "TypeData",
    "Var",
    "const",
    "var",
]


@node("relay.Var")
class Var(RelayExpr):
    """A local variable; identity, not name, tells two apart."""

    name_hint: str
    type_annotation: Type | None = None
    span: Span | None = ignored(default=None)


@node("relay.Constant")
class Constant(RelayExpr):
    """A tensor known at compile time (a NumPy array, ml_dtypes included; treat it as read-only)."""

    data: Array
    span: Span | None = ignored(default=None)


@node("relay.Tuple")
class Tuple(RelayExpr):
    """A tuple of values."""

    fields: tuple[RelayExpr, ...]
    span: Span | None = ignored(default=None)


@node("relay.TupleGetItem")
class TupleGetItem(RelayExpr):
    """One field of a tuple."""

    tuple_value: RelayExpr
    index: int
    span: Span | None = ignored(default=None)


@node("relay.Call")
class Call(RelayExpr):
    """`op(args)`: op is an Op, GlobalVar, Constructor or any function-valued expression."""

    op: RelayExpr
    args: tuple[RelayExpr, ...]
    attrs: Attrs | None = None
    type_args: tuple[Type, ...] = ()
    span: Span | None = ignored(default=None)


@node("relay.Let")
class Let(RelayExpr):
    """`let var = value; body`; a function value may refer to its own var."""

    var: Var = binding()
    value: RelayExpr
    body: RelayExpr
    span: Span | None = ignored(default=None)


@node("relay.If")
class If(RelayExpr):
    """A choice by a bool scalar."""

    cond: RelayExpr
    true_branch: RelayExpr
    false_branch: RelayExpr
    span: Span | None = ignored(default=None)


@node("relay.Function")
class Function(BaseFunc):
    """A function value. Well-known keys of `attrs`: Primitive, Closure, relay.reshape_only."""

    params: tuple[Var, ...] = binding()
    body: RelayExpr
    ret_type: Type | None
    type_params: tuple[TypeVar, ...] = ()
    attrs: Mapping[str, object] | None = None
    span: Span | None = ignored(default=None)

    def attr(self, key: str) -> object:
        """An attribute of the function, None if it has none of that key."""
        return (self.attrs or {}).get(key)


@node("relay.RefCreate")
class RefCreate(RelayExpr):
    """A new mutable cell."""

    value: RelayExpr
    span: Span | None = ignored(default=None)


@node("relay.RefRead")
class RefRead(RelayExpr):
    """The value in a cell."""

    ref: RelayExpr
    span: Span | None = ignored(default=None)


@node("relay.RefWrite")
class RefWrite(RelayExpr):
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
    tag: int
    span: Span | None = ignored(default=None)


@node("relay.TypeData")
class TypeData(Type):
    """The definition of an algebraic data type."""

    header: GlobalTypeVar
    type_vars: tuple[TypeVar, ...] = binding()
    constructors: tuple[Constructor, ...]


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
    patterns: tuple[Pattern, ...]


@node("relay.PatternTuple")
class PatternTuple(Pattern):
    """`(p, q)`"""

    patterns: tuple[Pattern, ...]


@node("relay.Clause")
class Clause(Node):
    """`lhs => rhs`"""

    lhs: Pattern = binding()
    rhs: RelayExpr


@node("relay.Match")
class Match(RelayExpr):
    """The first clause whose pattern fits; `complete` promises that one does."""

    data: RelayExpr
    clauses: tuple[Clause, ...]
    complete: bool = True
    span: Span | None = ignored(default=None)


def var(
    name_hint: str,
    type_annotation: Type | None = None,
    shape: Sequence[object] | None = None,
    dtype: str = "float32",
) -> Var:
    """A new variable, from a type or from a shape of ints and expressions."""
    from_shape = tensor_type(shape, dtype) if shape is not None else None  # type: ignore[arg-type]
    return Var(name_hint, type_annotation if type_annotation is not None else from_shape)


def const(value: object, dtype: str | None = None) -> Constant:
    """A constant from a Python number, nested lists or an array.

    Python floats become float32 and ints int32, as in TVM; an array keeps its dtype.
    """
    if isinstance(value, (np.ndarray, np.generic)):
        return Constant(np.asarray(value, None if dtype is None else to_numpy(dtype)))
    array = np.asarray(value)
    default = {"f": "float32", "i": "int32", "b": "bool"}.get(array.dtype.kind, str(array.dtype))
    return Constant(array.astype(to_numpy(dtype or default)))
