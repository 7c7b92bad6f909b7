"""What is shared by the nodes of one import: symbols of dimensions, types of expressions, spans, shapes as tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ekiden.frontend.onnx.value import Value
from ekiden.ir import prim
from ekiden.ir.op import Op
from ekiden.ir.prim import IntImm, PrimExpr, SizeVar
from ekiden.ir.span import Span
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var
from ekiden.relay.expr import const as relay_const
from ekiden.relay.type_infer import infer_expr_type
from ekiden.runtime.errors import ImportModelError


class Learned(Exception):
    """The model implies a fact about its dimensions that earlier nodes should have known: import again with it."""


class Facts:
    """What the nodes of a model imply about its named dimensions: names that are one, and upper bounds."""

    def __init__(self) -> None:
        self.same: dict[str, str] = {}
        self.upper: dict[str, int] = {}

    def name(self, name: str) -> str:
        """The name that stands for all names equal to it."""
        while name in self.same:
            name = self.same[name]
        return name


class Scope:
    """State of one import."""

    def __init__(self, facts: Facts, used: frozenset[str]) -> None:
        self.used = used
        self.span = Span("model")
        self.params: list[Var] = []
        self._facts = facts
        self._symbols: dict[str, SizeVar] = {}
        self._sources: dict[SizeVar, tuple[Var, int]] = {}
        self._scalars: dict[int, Expr] = {}

    # Dimensions.

    def symbol(self, name: str) -> SizeVar:
        """The dimension of that name."""
        name = self._facts.name(name)
        if name not in self._symbols:
            self._symbols[name] = SizeVar(name, upper=self._facts.upper.get(name))
        return self._symbols[name]

    def add_param(self, var: Var, type_: TensorType) -> None:
        """A parameter of `main`; its plain symbols can be read from its shape at run time."""
        self.params.append(var)
        for axis, dim in enumerate(type_.shape):
            if isinstance(dim, SizeVar):
                self._sources.setdefault(dim, (var, axis))

    def same(self, a: PrimExpr, b: PrimExpr) -> None:
        """Note that two dimensions must be equal. Raises Learned when that was not known."""
        if isinstance(a, SizeVar) and isinstance(b, SizeVar) and a is not b:
            self._facts.same[b.name] = a.name
            raise Learned

    def broadcasts(self, a: PrimExpr, b: PrimExpr) -> None:
        """Note what follows from `a` and `b` broadcasting: s against min(s, c), c > 1, means s <= c."""
        for symbol, other in ((a, b), (b, a)):
            if isinstance(symbol, SizeVar) and isinstance(other, prim.Min):
                self._bound(symbol, other)

    def _bound(self, symbol: SizeVar, other: prim.Min) -> None:
        for x, limit in ((other.a, other.b), (other.b, other.a)):
            if x is symbol and isinstance(limit, IntImm) and limit.value > 1:
                self._facts.upper[symbol.name] = limit.value
                raise Learned

    # Expressions.

    def typed(self, expr: Expr) -> TensorType:
        """The type of a tensor expression; ImportModelError if it is a tuple."""
        found = self.type_of(expr)
        if not isinstance(found, TensorType):
            raise ImportModelError(f"expected a tensor, got {found!r}")
        return found

    def type_of(self, expr: Expr) -> Type:
        """The type of an expression, inferring what is new."""
        return expr.checked_type_or_none() or infer_expr_type(expr)

    def expr(self, value: Value) -> Expr:
        """A value as an expression; an array of shape expressions is computed from the shapes of the parameters."""
        if value.expr is None:
            assert value.symbols is not None
            parts = [self._scalar(e) for e in value.symbols.ravel()]
            vector = op.stack(parts, axis=0) if parts else relay_const(np.zeros(0, np.int64))
            shaped = op.reshape(vector, value.symbols.shape) if value.symbols.ndim != 1 else vector
            dtype = self.typed(shaped).dtype
            value.expr = self.spanned(shaped if dtype == value.type.dtype else op.cast(shaped, value.type.dtype))
        return value.expr

    def spanned(self, expr: Expr) -> Expr:
        """An expression with its type, and the current node as the span of what is new in it."""
        self.type_of(expr)
        return with_span([expr], self.span)[0]

    def scalar(self, dim: PrimExpr) -> Expr:
        """A dimension as an int64 scalar tensor."""
        return self._scalar(dim)

    def _scalar(self, root: PrimExpr) -> Expr:
        """Depth of shape arithmetic is bounded by what `simplify` leaves, so this may recurse."""
        match root:
            case prim.IntImm() | prim.FloatImm():
                return relay_const(np.asarray(root.value), root.dtype)
            case SizeVar():
                return self._size(root)
            case prim.Cast():
                return op.cast(self._scalar(root.value), root.dtype)
            case prim.Select():
                return op.where(*(self._scalar(e) for e in (root.condition, root.true_value, root.false_value)))
            case prim.Not():
                return op.logical_not(self._scalar(root.a))
            case prim.BinaryExpr() if type(root) in _BINARY:
                return _BINARY[type(root)](self._scalar(root.a), self._scalar(root.b))
            case prim.Intrinsic(op=("floor" | "ceil" | "sqrt") as name, args=(argument,)):
                return _UNARY[name](self._scalar(argument))
        raise ImportModelError(f"cannot compute {root!r} at run time")

    def _size(self, symbol: SizeVar) -> Expr:
        var, axis = self._sources[symbol]
        key = id(symbol)
        if key not in self._scalars:
            shape = op.shape_of(var, dtype="int64")
            self._scalars[key] = self.spanned(op.take(shape, relay_const(axis, "int64"), axis=0))
        return self._scalars[key]


_BINARY: Mapping[type[PrimExpr], Callable[[Expr, Expr], Expr]] = {
    prim.Add: op.add,
    prim.Sub: op.subtract,
    prim.Mul: op.multiply,
    prim.Div: op.divide,
    prim.FloorDiv: op.floor_divide,
    prim.FloorMod: op.floor_mod,
    prim.Min: op.minimum,
    prim.Max: op.maximum,
    prim.EQ: op.equal,
    prim.NE: op.not_equal,
    prim.LT: op.less,
    prim.LE: op.less_equal,
    prim.GT: op.greater,
    prim.GE: op.greater_equal,
    prim.And: op.logical_and,
    prim.Or: op.logical_or,
}
_UNARY: Mapping[str, Callable[[Expr], Expr]] = {"floor": op.floor, "ceil": op.ceil, "sqrt": op.sqrt}


def with_span(roots: Sequence[Expr], span: Span) -> list[Expr]:
    """The same expressions with every new node (one without a span) carrying `span` and its inferred type."""
    done: dict[int, Expr] = {}
    stack: list[tuple[Expr, bool]] = [(r, False) for r in reversed(roots)]
    while stack:
        each, ready = stack.pop()
        if id(each) in done:
            continue
        if each.span is not None or isinstance(each, Op):
            done[id(each)] = each
        elif ready:
            done[id(each)] = _respan(each, [done[id(c)] for c in _parts(each)], span)
        else:
            stack.append((each, True))
            stack.extend((c, False) for c in _parts(each))
    return [done[id(r)] for r in roots]


def _parts(each: Expr) -> Sequence[Expr]:
    match each:
        case Call():
            return each.args
        case Tuple():
            return each.fields
        case TupleGetItem():
            return (each.tuple_value,)
    assert not isinstance(each, Function), "converters make no functions"
    return ()


def _respan(each: Expr, parts: Sequence[Expr], span: Span) -> Expr:
    found = each.checked_type_or_none()
    if isinstance(each, Constant):
        found = found or infer_expr_type(each)
    made = _rebuild(each, parts, span)
    if found is not None:
        made.set_checked_type(found)
    return made


def _rebuild(each: Expr, parts: Sequence[Expr], span: Span) -> Expr:
    match each:
        case Call():
            return each.with_fields(args=tuple(parts), span=span)
        case Tuple():
            return each.with_fields(fields=tuple(parts), span=span)
        case TupleGetItem():
            return each.with_fields(tuple_value=parts[0], span=span)
    return each.with_fields(span=span)


def field_types(found: Type) -> tuple[Type, ...]:
    """The fields of a tuple type."""
    assert isinstance(found, TupleType), f"expected a tuple, got {found!r}"
    return found.fields
